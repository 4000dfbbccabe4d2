"""
How a conversation stands in rows: its header, its log and its receipts.

A header is one row of columns, since statements ask for some of them. Of the log a row holds the consecutive entries of
one commit, packed: an exchange is written, found and decoded at once, which is what it costs to keep each message an
entry of its own. Receipts stand with the header until there are some to be moved together.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from minutebook.errors import DecisionHistoryCorrupt
from minutebook.model.entries import damaged, pack_entries, unpack_entries
from minutebook.model.record import Attempt, Header, Receipt, State, replayed
from minutebook.model.reservation import check_owner
from minutebook.stores import sqlite_statements as sql

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Sequence

    from minutebook.model.entries import Entry
    from minutebook.model.keys import ConversationKey
    from minutebook.model.record import Delta
    from minutebook.ports import Page

MINUTE_BITS: Final = 16
"""`minute` is `touched` without these bits."""

RESIDUE_ROWS: Final = 64
"""How many rows of purged conversations a write deletes beside its own work."""

_ROW_BYTES = 16 * 1024
_RECENT_BYTES = 1500
_LARGEST = 2**63 - 1

_HEADER_TYPES = (bytes, bytes, int, int, int, bytes, int, int, int, int, bytes, bytes, bytes)
_RECEIPT_TYPES = (bytes, int, int, int, int, bytes, bytes, int, bytes)

_encode = msgspec.json.Encoder().encode
_encode_packed = msgspec.msgpack.Encoder().encode
_decode_packed = msgspec.msgpack.Decoder(tuple[bytes, int, int, int, int, bytes, bytes, int, bytes]).decode
_decode_state = msgspec.json.Decoder(State).decode
_decode_attempt = msgspec.json.Decoder(Attempt).decode


class Place:
    """Where a job works: a namespace's row, and a conversation's row in it; ids are 0 where there is none."""

    __slots__ = (
        "ahead",
        "conversation",
        "conversations",
        "granted",
        "header",
        "minute",
        "namespace",
        "own",
        "recent",
        "repeats",
    )

    def __init__(self, namespace: int = 0, conversations: int = 0, granted: int = 0, ahead: int = 0) -> None:
        self.namespace = namespace
        self.conversations = conversations
        self.granted = granted
        self.ahead = ahead
        self.leave()

    def leave(self) -> None:
        """Be where no conversation is."""
        self.conversation = 0
        self.minute: int | None = None
        self.own = 0
        self.recent = b""
        self.repeats = False
        """Whether a receipt that was moved has the id that was asked for."""
        self.header: Header | None = None


def at_most(count: int) -> int:
    """Return a count as SQLite can hold one: between 0 and its largest integer."""
    return max(0, min(count, _LARGEST))


def find_place(cursor: sqlite3.Cursor, key: ConversationKey, idempotency: str = "") -> Place:
    """
    Return where a key's conversation is, its header read; its ids are 0 where there is none.

    With an `idempotency` id it also says whether the commit of that id was here before, but for the recent ones.
    """
    place, columns = _find_row(cursor, key, idempotency)
    if columns:
        place.header = header_of(columns)
        if type(place.recent) is not bytes:
            raise DecisionHistoryCorrupt("a conversation's receipts have another type than was written")
    return place


def find_doomed(cursor: sqlite3.Cursor, key: ConversationKey) -> Place:
    """Return where the conversation is that is to be deleted; its header is `None` where that does not decode."""
    place, columns = _find_row(cursor, key)
    if columns:
        with contextlib.suppress(DecisionHistoryCorrupt):
            place.header = header_of(columns)
        if type(place.own) is not int:
            place.own = 0  # the namespace's total is made right when it is settled
    return place


def _find_row(cursor: sqlite3.Cursor, key: ConversationKey, idempotency: str = "") -> tuple[Place, tuple[Any, ...]]:
    bound = (idempotency.encode(), key.id.encode(), key.namespace.encode())
    row = cursor.execute(sql.GET_PLACE, bound).fetchone()
    if row is None:
        return Place(), ()
    place = Place(*row[:4])
    if row[4] is None:
        return place, ()
    place.conversation, place.minute, place.own, place.recent, place.repeats = row[4:9]
    return place, row[9:]


def header_of(columns: Iterable[Any]) -> Header:
    """Return the header that a row's columns hold; `DecisionHistoryCorrupt` where they are not what was written."""
    row = tuple(columns)
    if tuple(map(type, row)) != _HEADER_TYPES:
        raise DecisionHistoryCorrupt("a conversation's header has columns of other types than were written")
    format_, birth, created, touched, epoch, token, since, version, entries, size, digest, state, attempt = row
    try:
        return Header(
            format=format_.decode(),
            birth=birth,
            created=created,
            touched=touched,
            epoch=epoch,
            token=token.decode(),
            since=since,
            version=version,
            entries=entries,
            bytes=size,
            digest=digest,
            state=_decode_state(state),
            attempt=_decode_attempt(attempt) if attempt else None,
        )
    except (msgspec.MsgspecError, UnicodeDecodeError):
        # Their texts may hold a piece of what they could not read.
        raise DecisionHistoryCorrupt("a conversation's header does not decode; restore a backup") from None


def header_columns(header: Header) -> tuple[object, ...]:
    """Return the columns of a header that a commit may change, in the order of its statement."""
    return (
        header.touched,
        header.epoch,
        header.token.encode(),
        header.since,
        header.version,
        header.entries,
        header.bytes,
        header.digest,
        _encode(header.state),
        _encode(header.attempt) if header.attempt is not None else b"",
    )


def add_conversation(cursor: sqlite3.Cursor, key: ConversationKey, place: Place, header: Header, wall: int) -> None:
    """Add the row of a conversation that is new, and be in it."""
    place.minute = wall >> MINUTE_BITS
    own = (place.namespace, key.id.encode(), header.format.encode(), header.birth, header.created, place.minute)
    cursor.execute(sql.ADD_CONVERSATION, (*header_columns(header), place.own, place.recent, *own))
    place.conversation = cast("int", cursor.lastrowid)


def set_conversation(cursor: sqlite3.Cursor, place: Place, header: Header) -> None:
    """Write a conversation's new header over the one that was read; refused where it has another owner by now."""
    before = cast("Header", place.header)
    cursor.execute(
        sql.SET_CONVERSATION,
        (*header_columns(header), place.own, place.recent, place.conversation, before.epoch, before.token.encode()),
    )
    check_owner(before if cursor.rowcount == 1 else None, before.token, before.epoch)


def set_minute(cursor: sqlite3.Cursor, place: Place, touched: int) -> None:
    """Keep the index of ages right; it is NULL where a purge had put the conversation aside while it was reserved."""
    if place.minute != touched >> MINUTE_BITS:
        cursor.execute(sql.SET_MINUTE, (touched >> MINUTE_BITS, place.conversation))


def drop_conversation(cursor: sqlite3.Cursor, place: Place) -> None:
    """Delete a conversation with all that belongs to it, and its namespace once it was the last one."""
    cursor.execute(sql.DROP_ENTRIES, (place.conversation,))
    cursor.execute(sql.DROP_RECEIPTS, (place.conversation,))
    drop_header(cursor, place, place.conversation, place.own)
    cursor.execute(sql.DROP_EMPTY_NAMESPACE, (place.namespace,))


def drop_header(cursor: sqlite3.Cursor, place: Place, conversation: int, granted: int) -> None:
    """Delete the row of one conversation, and what its namespace counted of it; entries and receipts stay."""
    cursor.execute(sql.DROP_CONVERSATION, (conversation,))
    cursor.execute(sql.GROW_NAMESPACE, (-1, -granted, False, place.namespace))
    place.conversations -= 1
    place.granted -= granted


def settle_grants(cursor: sqlite3.Cursor, place: Place) -> None:
    """Take back all that the namespace's conversations were granted ahead of need; linear in their number."""
    cursor.execute(sql.SETTLE_CONVERSATIONS, (place.namespace,))
    place.granted = cursor.execute(sql.SUM_BYTES, (place.namespace,)).fetchone()[0]
    cursor.execute(sql.SETTLE_NAMESPACE, (place.granted, place.namespace))
    place.ahead = 0
    place.own = place.header.bytes if place.header is not None else 0


def sweep_residue(cursor: sqlite3.Cursor) -> bool:
    """Delete a slice of the rows that purged conversations left; False when none were left."""
    found = cursor.execute(sql.GET_RESIDUE).fetchone()
    if found is None:
        return False
    conversation = found[0]
    left = RESIDUE_ROWS - cursor.execute(sql.DROP_SOME_ENTRIES, (conversation, RESIDUE_ROWS)).rowcount
    if left:
        left -= cursor.execute(sql.DROP_SOME_RECEIPTS, (conversation, conversation, left)).rowcount
    if left:
        cursor.execute(sql.DROP_RESIDUE, (conversation,))
    return True


# --- the log ---------------------------------------------------------------------------------------------------------


def add_entries(cursor: sqlite3.Cursor, conversation: int, entries: Sequence[Entry]) -> None:
    """Add what one commit wrote: usually one row, more for a long transcript."""
    for part in _parts(entries):
        cursor.execute(sql.ADD_ENTRIES, (conversation, part[0].seq, pack_entries(part)))


def first_entries(cursor: sqlite3.Cursor, conversation: int, seqs: range) -> Iterator[Entry]:
    """Yield the stored entries that a cut has to see, oldest first; one that is missing is for `extend` to tell."""
    if seqs:
        bound = (conversation, conversation, seqs[0], len(seqs))
        for first, packed in cursor.execute(sql.OLDEST_ENTRIES, bound):
            entries = _entries(first, packed)
            yield from entries[max(0, seqs[0] - first) : max(0, seqs[-1] + 1 - first)]
            if first + len(entries) > seqs[-1]:
                break


def cut_entries(cursor: sqlite3.Cursor, conversation: int, cut: int) -> None:
    """Delete the entries up to `cut`; the row that it goes through is written again with those that stay."""
    for first, packed in cursor.execute(sql.NEWEST_ENTRIES, (conversation, cut + 1, 1)).fetchall():
        staying = _entries(first, packed)[cut + 1 - first :]
        if staying:
            cursor.execute(sql.MOVE_ENTRIES, (cut + 1, pack_entries(staying), conversation, first))
    cursor.execute(sql.DROP_OLDEST_ENTRIES, (conversation, cut))


def _parts(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """Divide entries where a row has become large enough; each part holds at least one."""
    first = size = 0
    for position, entry in enumerate(entries):
        size += len(entry.payload)
        if size > _ROW_BYTES and position > first:
            yield entries[first:position]
            first, size = position, len(entry.payload)
    if entries:
        yield entries[first:]


def newest_entries(
    cursor: sqlite3.Cursor, conversation: int, before: int, page: Page, cut: int = 0
) -> tuple[Entry, ...]:
    """
    Return the entries below `before` and above `cut`, newest first, one page of them; one that is missing is refused
    by name.
    """
    taken = _Taken(page)
    due = before - 1
    bound = (conversation, before, at_most(page.rows))
    for first, packed in cursor.execute(sql.NEWEST_ENTRIES, bound) if due > cut and page.rows > 0 else ():
        entries = _entries(first, packed)
        if first + len(entries) <= due:
            raise damaged(due, "is missing")
        if taken.fill(entries[due - first :: -1]):
            return tuple(taken.entries)
        due = first - 1
    if due > cut and page.rows > 0:
        raise damaged(due, "is missing")
    return tuple(taken.entries)


def oldest_entries(cursor: sqlite3.Cursor, conversation: int, after: int, last: int, page: Page) -> tuple[Entry, ...]:
    """Return the entries above `after` and up to `last`, oldest first; one page of them."""
    taken = _Taken(page)
    due = after + 1
    bound = (conversation, conversation, due, at_most(page.rows))
    for first, packed in cursor.execute(sql.OLDEST_ENTRIES, bound) if due <= last and page.rows > 0 else ():
        entries = _entries(first, packed)
        if not first <= due < first + len(entries):
            raise damaged(due, "is missing")
        if taken.fill(entries[due - first : last + 1 - first]):
            return tuple(taken.entries)
        due = first + len(entries)
    if due <= last and page.rows > 0:
        raise damaged(due, "is missing")
    return tuple(taken.entries)


def _entries(first: object, packed: object) -> tuple[Entry, ...]:
    if type(first) is not int or type(packed) is not bytes:
        raise DecisionHistoryCorrupt("a row of the log has columns of other types than were written")
    return unpack_entries(packed, first)


class _Taken:
    """The entries of one page, as rows of several come in."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.entries: list[Entry] = []
        self.messages = self.size = 0

    def fill(self, entries: Iterable[Entry]) -> bool:
        """Take entries until the page is full; return whether it is."""
        page, taken, messages, size = self.page, self.entries, self.messages, self.size
        for entry in entries:
            taken.append(entry)
            messages += entry.messages
            size += entry.size
            if len(taken) >= page.rows or messages > page.messages or size > page.size:
                return True
        self.messages, self.size = messages, size
        return False


# --- receipts --------------------------------------------------------------------------------------------------------


def note_receipt(cursor: sqlite3.Cursor, place: Place, receipt: Receipt) -> None:
    """Add a receipt to the recent ones, which are stored with the header; move them all once they are too many."""
    packed = _pack(receipt)
    place.recent += len(packed).to_bytes(4, "big") + packed
    if len(place.recent) > _RECENT_BYTES and place.conversation:
        add_receipts(cursor, place.conversation, unpack_receipts(place.recent))
        place.recent = b""


def add_receipts(cursor: sqlite3.Cursor, conversation: int, receipts: Sequence[Receipt]) -> None:
    """Add receipts to their own rows; usually there are none, since the newest stand with the header."""
    if receipts:
        cursor.executemany(sql.ADD_RECEIPT, [(conversation, *_receipt_columns(receipt)) for receipt in receipts])


def _receipt_columns(receipt: Receipt) -> tuple[object, ...]:
    return (
        receipt.idempotency.encode(),
        receipt.version,
        receipt.first,
        receipt.last,
        receipt.epoch,
        receipt.digest,
        receipt.content,
        receipt.wall,
        receipt.sent,
    )


def _pack(receipt: Receipt) -> bytes:
    return _encode_packed(_receipt_columns(receipt))


def unpack_receipts(recent: bytes) -> list[Receipt]:
    """Return the receipts that are stored with a header; `DecisionHistoryCorrupt` where they do not decode."""
    receipts: list[Receipt] = []
    start = 0
    while start < len(recent):
        stop = start + 4 + int.from_bytes(recent[start : start + 4], "big")
        try:
            receipts.append(receipt_of(_decode_packed(recent[start + 4 : stop])))
        except msgspec.MsgspecError:
            raise DecisionHistoryCorrupt("a conversation's receipts do not decode; restore a backup") from None
        start = stop
    return receipts


def find_receipt(cursor: sqlite3.Cursor, place: Place, idempotency: str) -> Receipt | None:
    """Return the receipt of a commit by its idempotency id, if there is one."""
    for receipt in unpack_receipts(place.recent):
        if receipt.idempotency == idempotency:
            return receipt
    row = cursor.execute(sql.GET_RECEIPT, (place.conversation, idempotency.encode())).fetchone()
    return None if row is None else receipt_of(row)


def earlier_receipt(cursor: sqlite3.Cursor, place: Place, delta: Delta) -> Receipt | None:
    """Return the receipt of the commit that `delta` repeats, if it does; its id was asked for with the place."""
    # Where the bytes of the id do not even occur, nothing has to be decoded: the usual case.
    if not place.repeats and delta.idempotency.encode() not in place.recent:
        return None
    receipt = find_receipt(cursor, place, delta.idempotency)
    return None if receipt is None else replayed(receipt, delta)


def receipt_of(row: tuple[Any, ...]) -> Receipt:
    """Return the receipt that a row's columns hold; `DecisionHistoryCorrupt` where they are not what was written."""
    if tuple(map(type, row)) != _RECEIPT_TYPES:
        raise DecisionHistoryCorrupt("a receipt has columns of other types than were written")
    idempotency, version, first, last, epoch, digest, content, wall, sent = row
    try:
        name = idempotency.decode()
    except UnicodeDecodeError:
        raise DecisionHistoryCorrupt("a receipt's id does not decode", version=version) from None
    return Receipt(
        idempotency=name,
        first=first,
        last=last,
        version=version,
        epoch=epoch,
        digest=digest,
        content=content,
        wall=wall,
        sent=sent,
    )
