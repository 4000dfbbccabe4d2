"""
Every SQL text of the SQLite journal, each under a name and an English line.

Nothing else is ever given to `execute`: values are bound, and no text is put together at run time (a test walks the
code for it). They are bound by their order alone: of a number at a place (`?1`) Python 3.12.0 to 3.12.3 warn. Strings
are stored as UTF-8 in BLOB columns. So they compare by exact bytes, which is the order of code points, and neither a
collation nor the `text_factory` of a host's connection can change them. The prefix keeps our tables apart from a host's
own in a database that the host shares with us.
"""

from __future__ import annotations

from typing import Final

# --- the schema ------------------------------------------------------------------------------------------------------

APPLICATION_ID: Final = 0x4D42_4B31
"""`MBK1`: tells a database of ours from that of another application."""

SCHEMA_VERSION: Final = 1
"""The newest schema that this code reads and writes."""

CREATE_SCHEMA: Final = "CREATE TABLE minutebook_schema (version INTEGER NOT NULL)"
"""The version of our tables, also where `user_version` belongs to a host."""

CREATE_NAMESPACE: Final = """
CREATE TABLE minutebook_namespace (
    id INTEGER PRIMARY KEY,
    name BLOB NOT NULL UNIQUE,
    conversations INTEGER NOT NULL,
    granted INTEGER NOT NULL,
    ahead INTEGER NOT NULL
)
"""
"""
What each namespace holds, so that nobody has to sum.

A conversation is granted bytes somewhat ahead of its need while there is plenty of room, so that most commits leave
this row, and so its page, alone. `granted` is the sum over its conversations, never less than what they hold; `ahead`
says that it may be more. Before a write is refused the grants are taken back, so that no refusal is early by a byte.
"""

CREATE_CONVERSATION: Final = """
CREATE TABLE minutebook_conversation (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace INTEGER NOT NULL,
    name BLOB NOT NULL,
    format BLOB NOT NULL,
    birth BLOB NOT NULL,
    created INTEGER NOT NULL,
    touched INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    token BLOB NOT NULL,
    since INTEGER NOT NULL,
    version INTEGER NOT NULL,
    entries INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    granted INTEGER NOT NULL,
    digest BLOB NOT NULL,
    state BLOB NOT NULL,
    attempt BLOB NOT NULL,
    recent BLOB NOT NULL,
    minute INTEGER,
    UNIQUE (namespace, name)
)
"""
"""
The headers. A number is never given twice: rows of a purged conversation may outlive it for a while (see RESIDUE).

`recent` holds the newest receipts until there are some to be moved together: a commit that wrote its receipt into the
receipts' own tree would write one more page.

`minute` is `touched` in units of 65,536 ms. It changes seldom, so its index costs most commits nothing. It is NULL
while a purge has put a reserved conversation aside, so that old reservations do not stand in the next purge's way.
"""

CREATE_CONVERSATION_AGE: Final = """
CREATE INDEX minutebook_conversation_age ON minutebook_conversation (namespace, minute)
"""
"""Finds what has expired, oldest first."""

CREATE_LOG: Final = """
CREATE TABLE minutebook_log (
    conversation INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    entries BLOB NOT NULL,
    UNIQUE (conversation, seq)
)
"""
"""
The log. A row holds consecutive entries of one commit, packed, and the `seq` of the first of them.

With a rowid: bodies of some KB in an index tree would go to overflow pages of their own.
"""

CREATE_RECEIPT: Final = """
CREATE TABLE minutebook_receipt (
    conversation INTEGER NOT NULL,
    idempotency BLOB NOT NULL,
    version INTEGER NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    digest BLOB NOT NULL,
    content BLOB NOT NULL,
    wall INTEGER NOT NULL,
    sent BLOB NOT NULL,
    PRIMARY KEY (conversation, idempotency)
) WITHOUT ROWID
"""
"""
What each commit did, but for the newest ones (see `recent`). Found by its id in every commit, listed by version only
for export and verification.
"""

CREATE_RESIDUE: Final = "CREATE TABLE minutebook_residue (conversation INTEGER PRIMARY KEY)"
"""Purged conversations whose entries and receipts are still to be deleted, a slice at each write."""

ADD_VERSION: Final = "INSERT INTO minutebook_schema (version) VALUES (?)"
"""Note the version of tables just created."""

HAS_SCHEMA: Final = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'minutebook_schema'"
"""Whether our tables are there."""

GET_VERSION: Final = "SELECT coalesce(max(CAST(version AS INTEGER)), 0) FROM minutebook_schema"
"""The version of our tables; 0 where a stranger left no number."""

COUNT_OBJECTS: Final = "SELECT count(*) FROM sqlite_master"
"""How many tables and indexes of anybody there are: none in a new database."""

GET_APPLICATION_ID: Final = "PRAGMA application_id"
"""Whose database it is, 0 where nobody said."""

SET_APPLICATION_ID: Final = "PRAGMA application_id = 1296190257"
"""Mark a new database as ours; a pragma takes no bound value, so the number stands here."""

READ_DAMAGED: Final = "PRAGMA writable_schema = ON"
"""Read a header although the file is shorter than it says; on a connection that writes nothing."""

GET_USER_VERSION: Final = "PRAGMA user_version"
"""The schema version in the file's header."""

SET_USER_VERSION: Final = "PRAGMA user_version = 1"
"""Note `SCHEMA_VERSION` in the file's header; a pragma takes no bound value, so the number stands here."""

# --- connections and transactions ------------------------------------------------------------------------------------

BEGIN_READ: Final = "BEGIN"
"""Begin a snapshot for reading."""

BEGIN_WRITE: Final = "BEGIN IMMEDIATE"
"""Begin a write transaction, or fail at once while another process has one."""

COMMIT: Final = "COMMIT"
"""Make the transaction's changes lasting."""

ROLLBACK: Final = "ROLLBACK"
"""Take the transaction's changes back."""

SAVE_JOB: Final = "SAVEPOINT job"
"""Begin one job of a group."""

UNDO_JOB: Final = "ROLLBACK TO job"
"""Take one refused job back and leave the rest of its group."""

FREE_JOB: Final = "RELEASE job"
"""End one job of a group."""

USE_WAL: Final = "PRAGMA journal_mode = WAL"
"""Readers beside the writer, and one sync for each commit."""

GET_JOURNAL_MODE: Final = "PRAGMA journal_mode"
"""The journal mode in use."""

SYNC_EXTRA: Final = "PRAGMA synchronous = EXTRA"
"""Sync the directory too: for the one transaction that creates the tables under a rollback journal."""

SYNC_FULL: Final = "PRAGMA synchronous = FULL"
"""Sync each commit."""

SYNC_NORMAL: Final = "PRAGMA synchronous = NORMAL"
"""Leave the sync to the next durable commit: for reservations, which need only outlive the process."""

GET_SYNCHRONOUS: Final = "PRAGMA synchronous"
"""How commits are synced: 2 is FULL, 3 is EXTRA."""

USE_SECURE_DELETE: Final = "PRAGMA secure_delete = ON"
"""Overwrite what is deleted with zeros."""

GET_SECURE_DELETE: Final = "PRAGMA secure_delete"
"""Whether deleted content is overwritten: 1 is yes."""

NO_AUTOCHECKPOINT: Final = "PRAGMA wal_autocheckpoint = 0"
"""Leave checkpoints to the writer, which makes them under its lock file."""

LIMIT_WAL: Final = "PRAGMA journal_size_limit = 4194304"
"""Cut a log that outgrew its size when it is next begun anew."""

USE_FULLFSYNC: Final = "PRAGMA fullfsync = ON"
"""macOS: have syncs reach the disk and not only the drive's cache."""

USE_CHECKPOINT_FULLFSYNC: Final = "PRAGMA checkpoint_fullfsync = ON"
"""macOS: the same for checkpoints."""

WAIT_FOR_NOBODY: Final = "PRAGMA busy_timeout = 0"
"""Fail at once where another connection holds a lock."""

QUERY_ONLY: Final = "PRAGMA query_only = ON"
"""Refuse writes on the reading connection."""

CHECKPOINT: Final = "PRAGMA wal_checkpoint(PASSIVE)"
"""Copy what readers allow from the log into the database, waiting for nobody."""

TRUNCATE: Final = "PRAGMA wal_checkpoint(TRUNCATE)"
"""Copy all of the log into the database and cut it to nothing: (busy, frames, frames copied)."""

# --- namespaces and headers ------------------------------------------------------------------------------------------

GET_PLACE: Final = """
SELECT n.id, n.conversations, n.granted, n.ahead, c.id, c.minute, c.granted, c.recent,
       EXISTS (SELECT 1 FROM minutebook_receipt AS r WHERE r.conversation = c.id AND r.idempotency = ?),
       c.format, c.birth, c.created, c.touched, c.epoch, c.token, c.since, c.version, c.entries, c.bytes, c.digest,
       c.state, c.attempt
FROM minutebook_namespace AS n
LEFT JOIN minutebook_conversation AS c ON c.namespace = n.id AND c.name = ?
WHERE n.name = ?
"""
"""
A namespace's totals and one conversation's header in it, NULLs where there is none.

Whether a receipt of its own tree has an idempotency id is asked in the same breath: a commit wants to know, and a
statement costs more than a look-up.
"""

ADD_NAMESPACE: Final = "INSERT INTO minutebook_namespace (name, conversations, granted, ahead) VALUES (?, 0, 0, 0)"
"""A namespace that holds nothing yet."""

GROW_NAMESPACE: Final = """
UPDATE minutebook_namespace SET conversations = conversations + ?, granted = granted + ?, ahead = ahead OR ?
WHERE id = ?
"""
"""Change a namespace's totals."""

SETTLE_CONVERSATIONS: Final = """
UPDATE minutebook_conversation SET granted = bytes WHERE namespace = ? AND granted > bytes
"""
"""Take back what was granted ahead of need."""

SUM_BYTES: Final = "SELECT coalesce(sum(bytes), 0) FROM minutebook_conversation WHERE namespace = ?"
"""What the conversations of a namespace hold."""

SETTLE_NAMESPACE: Final = "UPDATE minutebook_namespace SET granted = ?, ahead = 0 WHERE id = ?"
"""Note that a namespace's grants are exactly what its conversations hold."""

DROP_EMPTY_NAMESPACE: Final = "DELETE FROM minutebook_namespace WHERE id = ? AND conversations = 0"
"""Forget the name of a namespace that holds nothing any more."""

ADD_CONVERSATION: Final = """
INSERT INTO minutebook_conversation (
    touched, epoch, token, since, version, entries, bytes, digest, state, attempt,
    granted, recent, namespace, name, format, birth, created, minute
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
"""A new header."""

SET_CONVERSATION: Final = """
UPDATE minutebook_conversation
SET touched = ?, epoch = ?, token = ?, since = ?, version = ?, entries = ?, bytes = ?, digest = ?, state = ?,
    attempt = ?, granted = ?, recent = ?
WHERE id = ? AND epoch = ? AND token = ?
"""
"""A changed header, if the reservation is still the one that was read: the row count is the fence."""

SET_MINUTE: Final = "UPDATE minutebook_conversation SET minute = ? WHERE id = ?"
"""Move a conversation in the index of ages."""

DROP_CONVERSATION: Final = "DELETE FROM minutebook_conversation WHERE id = ?"
"""Remove a header."""

LIST_CONVERSATIONS: Final = """
SELECT c.name,
       c.format, c.birth, c.created, c.touched, c.epoch, c.token, c.since, c.version, c.entries, c.bytes, c.digest,
       c.state, c.attempt
FROM minutebook_conversation AS c
WHERE c.namespace = (SELECT id FROM minutebook_namespace WHERE name = ?) AND c.name > ?
  AND (c.touched >= ? OR c.token <> x'')
ORDER BY c.name LIMIT ?
"""
"""Headers by name, without the expired."""

GET_TOTALS: Final = """
SELECT count(*), coalesce(sum(bytes), 0), coalesce(sum(token <> x''), 0),
       coalesce(sum(token = x'' AND touched < ?), 0),
       coalesce(sum(CASE WHEN token = x'' AND touched < ? THEN bytes ELSE 0 END), 0)
FROM minutebook_conversation
WHERE namespace = (SELECT id FROM minutebook_namespace WHERE name = ?)
"""
"""Conversations, their bytes, and of them the reserved, the expired and the bytes of the expired."""

# --- the log and receipts --------------------------------------------------------------------------------------------

ADD_ENTRIES: Final = "INSERT INTO minutebook_log (conversation, seq, entries) VALUES (?, ?, ?)"
"""One row of the log."""

NEWEST_ENTRIES: Final = """
SELECT seq, entries FROM minutebook_log WHERE conversation = ? AND seq < ? ORDER BY seq DESC LIMIT ?
"""
"""The log below a place, newest first; the first row may go on above it."""

OLDEST_ENTRIES: Final = """
SELECT seq, entries FROM minutebook_log
WHERE conversation = ?
  AND seq >= coalesce((SELECT max(seq) FROM minutebook_log WHERE conversation = ? AND seq <= ?), 0)
ORDER BY seq LIMIT ?
"""
"""The log from the row that holds a place, oldest first."""

MOVE_ENTRIES: Final = "UPDATE minutebook_log SET seq = ?, entries = ? WHERE conversation = ? AND seq = ?"
"""What stays of a row that a cut goes through."""

DROP_OLDEST_ENTRIES: Final = "DELETE FROM minutebook_log WHERE conversation = ? AND seq <= ?"
"""Remove the rows that begin at a place or before it."""

DROP_ENTRIES: Final = "DELETE FROM minutebook_log WHERE conversation = ?"
"""Remove a conversation's log."""

DROP_SOME_ENTRIES: Final = """
DELETE FROM minutebook_log WHERE rowid IN (SELECT rowid FROM minutebook_log WHERE conversation = ? LIMIT ?)
"""
"""Remove a slice of a conversation's log."""

ADD_RECEIPT: Final = """
INSERT INTO minutebook_receipt (
    conversation, idempotency, version, first, last, epoch, digest, content, wall, sent
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
"""What one commit did."""

GET_RECEIPT: Final = """
SELECT idempotency, version, first, last, epoch, digest, content, wall, sent
FROM minutebook_receipt WHERE conversation = ? AND idempotency = ?
"""
"""The receipt of one idempotency id."""

LIST_RECEIPTS: Final = """
SELECT idempotency, version, first, last, epoch, digest, content, wall, sent
FROM minutebook_receipt WHERE conversation = ? AND version > ? ORDER BY version LIMIT ?
"""
"""Receipts above a version, oldest first; a scan of the conversation's receipts that keeps no more than it returns."""

DROP_RECEIPTS: Final = "DELETE FROM minutebook_receipt WHERE conversation = ?"
"""Remove a conversation's receipts."""

DROP_SOME_RECEIPTS: Final = """
DELETE FROM minutebook_receipt WHERE conversation = ? AND idempotency IN (
    SELECT idempotency FROM minutebook_receipt WHERE conversation = ? LIMIT ?
)
"""
"""Remove a slice of a conversation's receipts."""

# --- expiry ----------------------------------------------------------------------------------------------------------

LIST_OLD: Final = """
SELECT id, granted, token FROM minutebook_conversation WHERE namespace = ? AND minute < ? ORDER BY minute LIMIT ?
"""
"""Conversations whose last write is some whole minutes beyond the time to live, oldest first."""

LIST_EXPIRED: Final = """
SELECT id, granted FROM minutebook_conversation
WHERE namespace = ? AND minute <= ? AND touched < ? AND token = x'' ORDER BY minute LIMIT ?
"""
"""Conversations that have expired to the millisecond, oldest minute first."""

CLAMP_FUTURE: Final = """
UPDATE minutebook_conversation SET touched = ?, minute = ?
WHERE id IN (SELECT id FROM minutebook_conversation WHERE namespace = ? AND minute > ? LIMIT ?)
"""
"""Bring back to the present what was written while the clock stood ahead, lest it never expire."""

ADD_RESIDUE: Final = "INSERT INTO minutebook_residue (conversation) VALUES (?)"
"""Leave a purged conversation's rows to be deleted in slices."""

GET_RESIDUE: Final = "SELECT conversation FROM minutebook_residue LIMIT 1"
"""A purged conversation that still has rows, if any."""

DROP_RESIDUE: Final = "DELETE FROM minutebook_residue WHERE conversation = ?"
"""All rows of a purged conversation are gone."""
