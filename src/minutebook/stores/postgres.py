"""
PostgreSQL as a `Remote`: each method is one statement, so one round trip and one transaction (SPEC B2).

What a server is, is looked at on every new connection, since behind a pooler or after a failover each may be to another
one: settings under which it could lose what it acknowledged are refused, and so are a standby and tables of a newer
version. What only reads makes no tables: where there are none yet, nothing is recorded. Errors of the driver are
translated here; their own words may quote ids or a connection string, so none of them is passed on.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg.errors import DuplicateFunction, DuplicateObject, DuplicateTable

from minutebook.errors import (
    DecisionHistoryCorrupt,
    DecisionHistorySchemaUnsupported,
    DecisionHistoryStorageFailed,
    DecisionHistoryStorageLocked,
    DecisionHistoryStorageUnsafe,
    StorageError,
)
from minutebook.model.bounds import check_count
from minutebook.model.clock import read_clock
from minutebook.model.entries import pack_entries
from minutebook.model.keys import ConversationKey
from minutebook.ports import Totals
from minutebook.stores import postgres_statements as sql
from minutebook.stores.packed import (
    look_of,
    pack_header,
    pack_receipt,
    read_header,
    stamp_of,
    unpack_entry,
    unpack_id,
    unpack_receipt,
)
from minutebook.stores.postgres_address import Address
from minutebook.stores.postgres_lines import (
    READ_ONLY,
    AsynchronousLines,
    BlockingLines,
    ForeignReply,
    Unreplicated,
    nonce,
)
from minutebook.stores.postgres_schema import CREATE_SCHEMA, KEPT_OUT, MIGRATIONS, SCHEMA_VERSION
from minutebook.stores.remote import Look, Written
from minutebook.stores.streams import named_in_listing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from minutebook.model.bounds import StoreBounds
    from minutebook.model.entries import Entry
    from minutebook.model.record import Header, Receipt
    from minutebook.ports import Page
    from minutebook.stores.postgres_lines import Line, Lines, Row
    from minutebook.stores.postgres_statements import Statement
    from minutebook.stores.remote import Change

__all__ = ["PostgresRemote"]

T = TypeVar("T")

AHEAD_BYTES: Final = 64 * 1024
"""What a conversation is granted ahead of its need while its namespace has plenty of room."""

OLDEST_SERVER: Final = 120_000
"""PostgreSQL 12, as `server_version_num` counts."""

_SHARE: Final = 1_000
"""How many conversations one statement looks at for what has expired, at most."""

_TRIES: Final = 128
_REPEATED = ("40001", "40P01")
_UNKNOWN = ("08", "57P", "40003")
"""The beginnings of the codes after which an outcome is unknown: connections, shutdowns, and the one that says so."""
_VERSION = re.compile("[1-9][0-9]{0,8}")
_TAKEN = (DuplicateTable, DuplicateObject, DuplicateFunction)
_MADE = re.compile(r"CREATE [A-Z ]+ (?:\{schema\}\.)?([a-z_]+)")
_CONSTRAINTS = ("23503", "23514", "23P01")
"""The codes of foreign keys, conditions and exclusions: what our functions write breaks none of ours."""


class PostgresRemote:
    """
    Conversations in one schema of a PostgreSQL database.

    Args:
        url: `postgresql://…`, or `key=value …` as libpq reads it.
        schema: where our tables and functions are; made when it is first used.
        timeout: how many seconds a call may take, its connection included.
        max_connections: how many to have at most, for each event loop or for all threads.
        blocking: whether methods finish without suspending.
        clock: in place of the server's, for runs that are replayed.
    """

    durable = True
    """Settings under which an acknowledged write could be lost are refused."""

    def __init__(
        self,
        url: str,
        *,
        schema: str = "minutebook",
        timeout: float = 30.0,
        max_connections: int = 8,
        blocking: bool = False,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._schema = sql.check_schema(schema)
        self._clock = clock
        self._found = self._writable = False
        lines = BlockingLines if blocking else AsynchronousLines
        address = Address(url, timeout)
        self._lines: Lines = lines(address, check_count(max_connections, "max_connections"), self._greet)

    async def look(self, key: ConversationKey, *, receipt: str = "") -> Look:
        """See `Remote.look`."""
        row = await self._ask(sql.LOOK, *_address(key), receipt.encode())
        return _look_with(receipt, *row[1:5])

    async def write(self, key: ConversationKey, change: Change, bounds: StoreBounds, *, tail: Page | None) -> Written:
        """See `Remote.write`."""
        header, entries, receipt = change.header, change.entries, change.receipt
        packed = pack_header(header) if header is not None else None
        stamp = stamp_of(packed) if packed is not None else b""
        row = await self._ask(
            sql.WRITE,
            *_address(key),
            change.expected,
            change.wall,
            change.drift,
            packed,
            stamp,
            header.touched if header is not None else 0,
            bool(header.token) if header is not None else False,
            header.bytes if header is not None else 0,
            change.grown,
            entries[0].seq if entries else 0,
            [pack_entries((entry,)) for entry in entries],
            [entry.messages for entry in entries],
            [entry.size for entry in entries],
            receipt.idempotency.encode() if receipt is not None else b"",
            receipt.version if receipt is not None else 0,
            pack_receipt(receipt) if receipt is not None else None,
            [each.idempotency.encode() for each in change.earlier] or None,
            [each.version for each in change.earlier] or None,
            [pack_receipt(each) for each in change.earlier] or None,
            change.cut,
            bounds.max_sessions,
            bounds.max_bytes,
            AHEAD_BYTES,
            *((tail.rows, tail.messages, tail.size) if tail is not None else (None, None, None)),
        )
        _, now, refused, stored, mark, earlier, seqs, packs, conversations, size, _ = row
        if refused == "":
            return Written(look=Look(now=now, header=header, stamp=stamp), tail=_entries(seqs, packs))
        look = _look_with(receipt.idempotency if receipt is not None else "", now, stored, mark, earlier)
        if refused == "stale":
            return Written(refused="stale", look=look)
        if refused != "full":
            raise _may_lose(refused)
        return Written(refused="full", look=look, conversations=conversations, bytes=size)

    async def page(
        self, key: ConversationKey, first: int, last: int, page: Page, *, newest_first: bool
    ) -> tuple[Look, Sequence[Entry]]:
        """See `Remote.page`."""
        bound = (first, last, page.rows, page.messages, page.size, newest_first)
        _, now, header, stamp, seqs, packs = await self._ask(sql.PAGE, *_address(key), *bound)
        return look_of(now, header, stamp, None), _entries(seqs, packs)

    async def receipts(self, key: ConversationKey, after: int, rows: int) -> tuple[Look, Sequence[Receipt]]:
        """See `Remote.receipts`."""
        _, now, header, stamp, packs = await self._ask(sql.RECEIPTS, *_address(key), after, rows)
        return look_of(now, header, stamp, None), [unpack_receipt(packed) for packed in packs or ()]

    async def names(self, namespace: str, after: str, rows: int, ttl_ms: int | None) -> Sequence[tuple[str, Header]]:
        """See `Remote.names`."""
        _, _, *columns = await self._ask(sql.NAMES, namespace.encode(), after.encode(), rows, ttl_ms)
        found: list[tuple[str, Header]] = []
        for packed, header, stamp in _rows(columns):
            name = unpack_id(packed)
            with named_in_listing(ConversationKey(namespace, name), len(found)):
                found.append((name, read_header(header, stamp)))
        return found

    async def stale(self, namespace: str, ttl_ms: int, rows: int) -> Sequence[tuple[str, Look]]:
        """
        See `Remote.stale`.

        What is no id names no conversation that could be removed. It stands there for good, so what comes behind it is
        looked at as well, by more at a time.
        """
        passed: list[bytes] = []
        share = rows
        while True:
            _, now, *columns = await self._ask(sql.STALE, namespace.encode(), ttl_ms, share, passed)
            told = {row[0]: _due(now, *row) for row in _rows(columns)}
            found = [due for due in told.values() if due is not None]
            if len(found) >= rows or len(told) < share:
                return found[:rows]
            passed += [name for name, due in told.items() if due is None]
            share = min(4 * share, _SHARE)

    async def totals(self, namespace: str, ttl_ms: int | None) -> Totals:
        """See `Remote.totals`. Linear in the namespace's conversations."""
        _, _, *counts = await self._ask(sql.TOTALS, namespace.encode(), ttl_ms)
        conversations, size, reserved, gone = (count or 0 for count in counts)
        return Totals(conversations=conversations, bytes=size, reserved=reserved, expired=gone)

    async def close(self) -> None:
        """Close the connections."""
        await self._lines.close()

    # --- asking ------------------------------------------------------------------------------------------------------

    async def _ask(self, statement: Statement, *values: object) -> Row:
        """
        Return what a statement answers; one that the server broke off to let another go first is sent again.

        Raises:
            StorageError: see `_translated`.
        """
        number = nonce()
        clock = read_clock(self._clock) if self._clock is not None else None

        async def work(line: Line) -> Row:
            if not (self._writable if statement.writes else self._found) and not await self._find(line, statement):
                row = await line.ask(sql.TIME, self._schema, (number, clock))
                return (*row, *[None] * (len(statement.columns) - len(row)))
            row = await line.ask(statement, self._schema, (number, clock, *values))
            if not statement.answers(row):
                raise _answered_otherwise()
            return row

        until = self._lines.deadline()
        for _ in range(_TRIES):
            try:
                return await self._lines.lend(work, until)
            except psycopg.Error as error:
                refused = None if error.sqlstate in _REPEATED else _translated(error)
            except ForeignReply:
                refused = DecisionHistoryStorageFailed(
                    "the connection gave a reply that belongs to another call, and was closed; nothing of it was used. "
                    "Whether a write is there is unknown: ask for its receipt",
                    problem="foreign_reply",
                )
            except Unreplicated:
                refused = DecisionHistoryStorageFailed(
                    "the write is on the server, which was told not to wait for its synchronous standby; whether it "
                    "outlives a failover is unknown: ask for its receipt once there is a standby",
                    problem="replication",
                )
            if refused is not None:
                raise refused  # out here: a driver's error knows the connection, and so the password
            if time.monotonic() >= until:
                break
        raise DecisionHistoryStorageLocked("the server broke this call off again and again; nothing was written")

    async def _greet(self, line: Line) -> None:
        """See that a new connection leads to a server that keeps what it acknowledges, and to tables that we know."""
        *told, process = await line.ask(sql.GREET, self._schema, (nonce(),))
        _check_server(told)
        found = self._found  # as it was before: another connection may be making them just now
        version = await self._version(line)
        _check_version(version, gone=found)
        self._found = self._found or version == SCHEMA_VERSION
        line.keep_prepared(process)

    async def _find(self, line: Line, statement: Statement) -> bool:
        """Return whether there are tables for a statement; what writes makes them."""
        version = await self._version(line)
        if version < SCHEMA_VERSION and statement.writes:
            version = await self._migrate(line)
        _check_version(version, gone=False)
        self._found = self._found or version == SCHEMA_VERSION
        if statement.writes and (await line.ask(sql.GET_RIGHTS, self._schema))[0] is not True:
            raise _no_rights("its tables")
        self._writable = self._writable or statement.writes
        return self._found

    async def _version(self, line: Line) -> int:
        """Return the version of our tables, 0 where there are none."""
        _, tables = await self._look_for_schema(line)
        if not tables:
            return 0
        if "version" not in tables:
            raise DecisionHistorySchemaUnsupported(
                f"the schema holds a table or type named `{tables[0]}` and no table `version`: this library did not "
                "make it, or the table that says its version was taken away; nothing was changed: restore that, or "
                "name another schema"
            )
        found = (await line.ask(sql.GET_VERSIONS, self._schema))[0]
        if found is None or len(found) != 1 or not _VERSION.fullmatch(str(found[0])):
            raise DecisionHistorySchemaUnsupported("the table `version` in the schema is not ours; nothing was changed")
        return int(found[0])

    async def _look_for_schema(self, line: Line) -> tuple[bool, Sequence[str]]:
        """
        Return whether the schema is there, and which tables of our names are in it.

        Raises:
            DecisionHistoryStorageUnsafe: a stranger could have put something there for us to run, or a crash would
                empty a table.
        """
        _, there, tables, unlogged, of_a_stranger = await line.ask(
            sql.FIND_SCHEMA, self._schema, (nonce(), self._schema)
        )
        if of_a_stranger is not None:
            raise _not_ours(of_a_stranger)
        if unlogged is not None:
            raise DecisionHistoryStorageUnsafe(
                f"the server would lose what it acknowledged: a crash empties the table `{unlogged:.63}`, since it is "
                "UNLOGGED; nothing was used: say ALTER TABLE … SET LOGGED",
                problem="unlogged",
            )
        return there, tables or ()

    async def _migrate(self, line: Line) -> int:
        """Bring the tables to the newest version, in one transaction; of several that begin at once one does it."""
        await line.tell(sql.BEGIN, self._schema)
        await line.tell(sql.LOCK_SCHEMA, self._schema)
        version = await self._version(line)
        if not (await self._look_for_schema(line))[0]:
            await line.tell(CREATE_SCHEMA, self._schema)
        for number, statements in enumerate(MIGRATIONS[version:], version + 1):
            for statement in statements:
                await self._make(line, statement)
            await line.tell(sql.SET_VERSION, self._schema, (number,))
            version = number
        await line.tell(sql.COMMIT, self._schema)
        return version

    async def _make(self, line: Line, statement: Statement) -> None:
        """
        Run one statement of a migration.

        Raises:
            DecisionHistorySchemaUnsupported: what it makes has the name of something that is there.
        """
        try:
            return await line.tell(statement, self._schema)
        except _TAKEN as error:
            state = error.sqlstate
        (name,) = _MADE.findall(statement.text)
        raise DecisionHistorySchemaUnsupported(
            f"the schema holds a table, type or function named `{name}` that this library did not make ({state}); "
            "nothing was changed: name another schema",
            sqlstate=state,
        )


def _address(key: ConversationKey) -> tuple[bytes, bytes]:
    return key.namespace.encode(), key.id.encode()


def _look_with(idempotency: str, now: int, header: bytes | None, stamp: bytes, receipt: bytes | None) -> Look:
    """
    Return what the server said of a conversation, with the receipt of an idempotency id.

    Raises:
        DecisionHistoryCorrupt: it is that of another id.
    """
    look = look_of(now, header, stamp, receipt)
    if look.receipt is not None and look.receipt.idempotency != idempotency:
        raise DecisionHistoryCorrupt("a receipt stands under an id that is not its own; restore a backup")
    return look


def _rows(columns: Sequence[Any]) -> Iterable[tuple[Any, ...]]:
    """
    Return the rows of arrays that stand beside each other; one of nothing is `None`.

    Raises:
        DecisionHistorySchemaUnsupported: one is longer than another.
    """
    if len({len(column or ()) for column in columns}) > 1:
        raise _answered_otherwise()
    return zip(*(column or () for column in columns), strict=True)


def _due(now: int, name: bytes, header: bytes, stamp: bytes, touched: int) -> tuple[str, Look] | None:
    """Return a conversation to be seen to, or `None` of one that nothing can be done about."""
    look = look_of(now, header, stamp, None)
    if look.damage and touched >= now:
        return None
    try:
        return unpack_id(name), look
    except DecisionHistoryCorrupt:
        return None


def _entries(seqs: Any, packs: Any) -> tuple[Entry, ...]:
    return tuple([unpack_entry(packed, seq) for seq, packed in _rows((seqs, packs))])


# --- what is refused -------------------------------------------------------------------------------------------------


def _check_server(told: Sequence[Any]) -> None:
    _, encoding, synchronous, standbys, fsync, pages, standby, read_only, version = told
    if version < OLDEST_SERVER:
        raise DecisionHistoryStorageUnsafe(
            f"the server is PostgreSQL {version // 10_000}; this library needs {OLDEST_SERVER // 10_000} or newer",
            problem="server_version",
        )
    if encoding != "UTF8":
        raise DecisionHistoryStorageUnsafe(
            "the database's encoding is not UTF8; make one with `CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0`",
            problem="server_encoding",
        )
    if standby or read_only != "off":
        raise DecisionHistoryStorageUnsafe(
            "the server only reads: it is a standby, or its transactions are read-only; connect to the primary, for "
            "example with several hosts and target_session_attrs=read-write",
            problem="read_only",
        )
    if synchronous == "local" and standbys:
        raise _may_lose("synchronous_commit")
    for name, value in (("synchronous_commit", synchronous), ("fsync", fsync), ("full_page_writes", pages)):
        if value == "off":
            raise _may_lose(name)


def _may_lose(setting: str) -> StorageError:
    return DecisionHistoryStorageUnsafe(
        f"the server may lose what it acknowledged: {setting} is off, or local where there are synchronous standbys; "
        "set it to on, for this role at least",
        problem=setting,
    )


def _check_version(version: int, *, gone: bool) -> None:
    if version > SCHEMA_VERSION:
        raise DecisionHistorySchemaUnsupported(
            f"the schema has version {version}; this library reads {SCHEMA_VERSION}: update it",
            found=version,
            supported=SCHEMA_VERSION,
        )
    if gone and version != SCHEMA_VERSION:
        raise DecisionHistorySchemaUnsupported(
            "the tables that this store has worked on are not there any more", found=version, supported=SCHEMA_VERSION
        )


def _answered_otherwise() -> StorageError:
    return DecisionHistorySchemaUnsupported(
        "a function in the schema answers otherwise than the one that this library made; its answer was not used: "
        "restore that, or name another schema"
    )


def _no_rights(what: str) -> StorageError:
    return DecisionHistoryStorageUnsafe(
        f"this role may not use {what}. Have the owner of the schema say GRANT USAGE ON SCHEMA … and GRANT SELECT, "
        "INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA … TO this role, and GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA … "
        "where not everybody may; where there is no schema yet, either open the store once as a role that may make "
        "one, or CREATE SCHEMA … AUTHORIZATION this role, or GRANT CREATE ON DATABASE … TO this role",
        problem="rights",
    )


def _not_ours(what: str) -> StorageError:
    return DecisionHistoryStorageUnsafe(
        f"in the way is {what!r:.200}: a role that this one has no reason to trust owns it, or may make something on "
        "it; what it puts there would run as this role; nothing of the schema was used. The schema, its tables and "
        "functions and what these come to, as a table with a foreign key to one or a function that a trigger calls, "
        "must belong to this role, to a member of it, to a superuser or to the database's owner, and nobody else may "
        "have CREATE on the schema, or TRIGGER or REFERENCES on a table: REVOKE that, and drop the triggers and "
        "foreign keys that were made with it, since they stay; or connect as the owner, GRANT this role TO the owner, "
        "or name another schema",
        problem="owner",
    )


def _translated(error: psycopg.Error) -> StorageError:
    """Return our error for one of the driver's, by its code alone."""
    state = error.sqlstate
    # A server that ends itself over a commit, as when a sync fails, may have it in its log all the same.
    ended = error.diag.severity_nonlocalized in ("FATAL", "PANIC")
    if state is None or state.startswith(_UNKNOWN) or ended:
        return DecisionHistoryStorageFailed(
            f"the connection to the server failed ({state or type(error).__name__}); whether a write that was under "
            "way is there is unknown: ask for its receipt",
            problem="connection",
            sqlstate=state,
        )
    if state in ("55P03", "57014"):
        return DecisionHistoryStorageLocked(
            f"the server's own time limit ended this call ({state}: lock_timeout or statement_timeout); nothing was "
            "written",
            sqlstate=state,
        )
    if state == "42501":
        return _no_rights("what it needs")
    if state in ("42P01", "42883", "3F000", "42703", "42809"):
        return DecisionHistorySchemaUnsupported(
            f"the schema holds something else than this library made ({state}); nothing was changed", sqlstate=state
        )
    if state == READ_ONLY:
        return DecisionHistoryStorageUnsafe(
            "the server has begun to only read: another one is the primary now; try again", problem="read_only"
        )
    if state == KEPT_OUT:
        return DecisionHistorySchemaUnsupported(
            "something this library did not make keeps rows from being written or deleted, as a trigger on its tables "
            "does that returns NULL, or a rule; nothing was written: drop it",
            sqlstate=state,
        )
    if state in _CONSTRAINTS:
        return DecisionHistorySchemaUnsupported(
            f"a constraint that this library did not make forbids this ({state}), as a foreign key of another table "
            "keeps a conversation from being deleted; nothing was changed",
            sqlstate=state,
        )
    if state[:2] in ("22", "23") or state in ("XX001", "XX002"):
        return DecisionHistoryCorrupt(
            f"the database is not as it was written ({state}); restore a backup", sqlstate=state
        )
    return DecisionHistoryStorageFailed(
        f"the server failed ({state}); nothing was written", problem="server", sqlstate=state
    )
