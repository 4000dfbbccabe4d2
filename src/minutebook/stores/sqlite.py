"""
The SQLite journal: conversations in one private file, durable when a call returns (SPEC D19, D20).

The rules are the model's; here they meet rows. Every method is a job on a cursor that the writer runs inside its
transaction, so a method is a plain story: find the header, ask the model, store what it says. The same jobs serve a
connection of the host's own, where the host's settings decide how durable they are.
"""

from __future__ import annotations

import sqlite3
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import msgspec

from minutebook.errors import (
    DecisionHistoryAbsent,
    DecisionHistoryCorrupt,
    DecisionHistoryStoreFull,
    InvalidOption,
    StoreClosed,
)
from minutebook.model.bounds import StoreBounds
from minutebook.model.clock import read_clock, system_clock
from minutebook.model.entries import Call, Entry, Kind, encode_calls
from minutebook.model.keys import ConversationKey, check_id
from minutebook.model.record import Attempt, Header, Receipt, State, extend, new_header, replayed
from minutebook.model.reservation import check_idle, check_owner, expired, free, is_blank, recover, store_full, take
from minutebook.ports import Committed, Listing, Page, Reserved, Totals
from minutebook.stores import sqlite_statements as sql
from minutebook.stores.sqlite_host import HostConnection
from minutebook.stores.sqlite_writer import Kept, acquire_writer

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence

    from minutebook.model.record import Delta, Extension
    from minutebook.stores.sqlite_writer import Database, Work

__all__ = ["PURGED_PER_WRITE", "SQLiteJournal"]

T = TypeVar("T")

PURGED_PER_WRITE: Final = 8
"""How many expired conversations a write removes beside the one it is about (promise I-31)."""

_RESIDUE_ROWS = 256
_RECENT_BYTES = 1500
_AHEAD_BYTES = 64 * 1024
_MINUTE_BITS = 16
_KNOWN_NAMESPACES = 1024
_LARGEST = 2**63 - 1

_KINDS = {int(kind): kind for kind in Kind}
_ENTRY_TYPES = (*(int for _ in range(10)), bytes, bytes, bytes)
_HEADER_TYPES = (bytes, int, int, int, bytes, int, int, int, int, bytes, bytes, bytes)
_RECEIPT_TYPES = (bytes, int, int, int, int, bytes, bytes, int, bytes)

_encode = msgspec.json.Encoder().encode
_encode_packed = msgspec.msgpack.Encoder().encode
_decode_packed = msgspec.msgpack.Decoder(tuple[bytes, int, int, int, int, bytes, bytes, int, bytes]).decode
_decode_state = msgspec.json.Decoder(State).decode
_decode_attempt = msgspec.json.Decoder(Attempt).decode
_decode_calls = msgspec.json.Decoder(tuple[Call, ...]).decode


class _Place:
    """Where a job works: a namespace's row, and a conversation's row in it; ids are 0 where there is none."""

    __slots__ = ("ahead", "conversation", "conversations", "granted", "header", "minute", "namespace", "own", "recent")

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
        self.header: Header | None = None


class SQLiteJournal:
    """
    A journal in one SQLite file. Any number of them, in any threads and event loops, share one writer per file.

    With `blocking` every method finishes without suspending, for drivers without an event loop; otherwise concurrent
    commits of a loop are made durable together. A new reservation without an opening survives the process; all other
    writes also survive a power cut.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        bounds: StoreBounds | None = None,
        *,
        clock: Callable[[], int] = system_clock,
        blocking: bool = False,
        allow_network_filesystem: bool = False,
    ) -> None:
        """
        Open the file, creating it with mode 0600; without `bounds` nothing is refused and nothing expires.

        Raises:
            InvalidOption: the name is none that a database can have.
            DecisionHistoryStorageUnsafe: the file, a sidecar or a directory is not private; nothing was changed.
            DecisionHistorySchemaUnsupported: another application's database or a newer version; it is unchanged.
            DecisionHistoryCorrupt: no database; the file is unchanged.
            DecisionHistoryStorageFailed: the disk failed.
            DecisionHistoryStorageLocked: another program kept the database locked.
        """
        self._begin(acquire_writer(path, allow_network_filesystem=allow_network_filesystem), bounds, clock, blocking)

    @classmethod
    def on_connection(
        cls,
        connection: sqlite3.Connection,
        bounds: StoreBounds | None = None,
        *,
        clock: Callable[[], int] = system_clock,
    ) -> SQLiteJournal:
        """
        Return a journal on a connection of the host's, who owns its closing, its settings and its file modes.

        Nothing of the connection is changed; see `durable` for what its settings promise. Our tables, all named
        `minutebook_…`, are created beside the host's. Everything runs in the caller's thread, without suspending.

        Raises:
            InvalidOption: the connection is inside a transaction.
            DecisionHistorySchemaUnsupported: our tables in it are of a newer version.
        """
        journal = cls.__new__(cls)
        journal._begin(HostConnection(connection), bounds, clock, blocking=True)
        return journal

    def _begin(self, database: Database, bounds: StoreBounds | None, clock: Callable[[], int], blocking: bool) -> None:
        self._database = database
        self._bounds = bounds or StoreBounds()
        self._clock = clock
        self._blocking = blocking
        self._closed = False
        self._purges: dict[int, tuple[int, int]] = {}
        self._residue = True

    @property
    def durable(self) -> bool:
        """Whether a commit that returned survives a power cut: always for a file, by its settings for a connection."""
        return self._database.durable

    # --- writing -----------------------------------------------------------------------------------------------------

    async def reserve(
        self,
        key: ConversationKey,
        token: str,
        *,
        format: str,  # noqa: A002 - the field's standard word
        opening: Delta | None = None,
        release: bool = False,
        tail: Page | None = None,
        known: int = -1,
    ) -> Reserved:
        """See `Journal.reserve`."""
        if not token:
            raise InvalidOption("a reservation needs a token", option="token")
        if opening is not None:
            check_id(opening.idempotency, "idempotency id")
        job = partial(self._reserve, key, token, format, opening, release, tail, known)
        return await self._write(job, opening, durable=opening is not None)

    async def commit(
        self, key: ConversationKey, token: str, epoch: int, delta: Delta, *, release: bool = False
    ) -> Committed:
        """See `Journal.commit`."""
        check_id(delta.idempotency, "idempotency id")
        job = partial(self._commit, key, token, epoch, delta, release)
        return await self._write(job, delta, durable=bool(delta.drafts or delta.abandons))

    async def recover(self, key: ConversationKey, epoch: int | None) -> Header:
        """See `Journal.recover`."""
        return await self._write(partial(self._recover, key, epoch))

    async def delete(self, key: ConversationKey) -> bool:
        """See `Journal.delete`. Rows are overwritten with zeros, and the log that held them is cut to nothing."""
        return await self._write(partial(self._delete, key), erases=True)

    async def close(self) -> None:
        """Give the file back; the last journal closes it. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._database.release()

    # --- reading -----------------------------------------------------------------------------------------------------

    async def header(self, key: ConversationKey) -> Header | None:
        """See `Journal.header`."""
        return self._look(key, lambda _, place: place.header)

    async def newest(self, key: ConversationKey, before: int, page: Page) -> tuple[Entry, ...]:
        """See `Journal.newest`."""

        def job(cursor: sqlite3.Cursor, place: _Place) -> tuple[Entry, ...]:
            last = place.header.entries if place.header is not None else 0
            return _newest(cursor, place.conversation, min(before, last + 1), page)

        return self._look(key, job)

    async def oldest(self, key: ConversationKey, after: int, page: Page) -> tuple[Entry, ...]:
        """See `Journal.oldest`."""
        after = max(after, 0)

        def job(cursor: sqlite3.Cursor, place: _Place) -> tuple[Entry, ...]:
            if place.header is None:
                return ()
            found = cursor.execute(sql.OLDEST_ENTRIES, (place.conversation, after, _rows(page.rows)))
            return _paged(found, page, range(after + 1, min(place.header.entries, after + page.rows) + 1))

        return self._look(key, job)

    async def receipts(self, key: ConversationKey, after: int, rows: int) -> tuple[Receipt, ...]:
        """See `Journal.receipts`."""

        def job(cursor: sqlite3.Cursor, place: _Place) -> tuple[Receipt, ...]:
            moved = cursor.execute(sql.LIST_RECEIPTS, (place.conversation, after, _rows(rows))).fetchall()
            recent = [receipt for receipt in _unpacked(place.recent) if receipt.version > after]
            return (*map(_receipt, moved), *recent)[: _rows(rows)]

        return self._look(key, job)

    async def receipt(self, key: ConversationKey, idempotency: str) -> Receipt | None:
        """See `Journal.receipt`."""
        check_id(idempotency, "idempotency id")
        return self._look(key, lambda cursor, place: _find_receipt(cursor, place, idempotency))

    async def list(self, namespace: str, after: str, rows: int) -> tuple[Listing, ...]:
        """See `Journal.list`."""
        check_id(namespace, "namespace")

        def job(cursor: sqlite3.Cursor) -> tuple[Listing, ...]:
            bound = (namespace.encode(), after.encode(), self._oldest_live(self._now()), _rows(rows))
            return tuple(
                Listing(key=ConversationKey(namespace, name.decode()), header=_header(columns))
                for name, *columns in cursor.execute(sql.LIST_CONVERSATIONS, bound).fetchall()
            )

        return self._read(job)

    async def totals(self, namespace: str) -> Totals:
        """See `Journal.totals`. Linear in the namespace's conversations."""
        check_id(namespace, "namespace")

        def job(cursor: sqlite3.Cursor) -> Totals:
            bound = (self._oldest_live(self._now()), namespace.encode())
            count, size, reserved, gone, gone_size = cursor.execute(sql.GET_TOTALS, bound).fetchone()
            return Totals(conversations=count - gone, bytes=size - gone_size, reserved=reserved, expired=gone)

        return self._read(job)

    # --- running jobs ------------------------------------------------------------------------------------------------

    async def _write(
        self, job: Work[T | Kept[T]], delta: Delta | None = None, *, durable: bool = True, erases: bool = False
    ) -> T:
        if self._closed:
            raise StoreClosed("the store is closed")
        job = partial(_keeping, job)
        size = sum([len(draft.payload) for draft in delta.drafts]) if delta is not None else 0
        if self._blocking:
            return cast("T", self._database.run(job, size=size, durable=durable, erases=erases))
        return cast("T", await self._database.submit(job, size=size, durable=durable, erases=erases))

    def _read(self, job: Work[T]) -> T:
        if self._closed:
            raise StoreClosed("the store is closed")
        return self._database.read(job)

    def _now(self) -> int:
        return read_clock(self._clock)

    def _oldest_live(self, wall: int) -> int:
        """The earliest `touched` of a conversation that has not expired."""
        return 0 if self._bounds.ttl_ms is None else wall - self._bounds.ttl_ms

    def _look(self, key: ConversationKey, job: Callable[[sqlite3.Cursor, _Place], T]) -> T:
        """Run a reading job on a conversation; one that has expired is as if absent, and is removed (SPEC D6)."""

        def look(cursor: sqlite3.Cursor) -> tuple[Header | None, T]:
            place = _find(cursor, key)
            if place.header is None or not expired(place.header, self._bounds.ttl_ms, self._now()):
                return None, job(cursor, place)
            return place.header, job(cursor, _Place())

        gone, found = self._read(look)
        if gone is not None:
            self._remove_expired(key, gone.entries + gone.version)
        return found

    def _remove_expired(self, key: ConversationKey, rows: int) -> None:
        """
        Remove what a read found expired, with its rows, in slices; only such a read writes.

        Where nothing can be written just now, on a connection that only reads or beside another writer, it is left to
        the next access: a read never fails or waits for it.
        """
        for _ in range(rows // _RESIDUE_ROWS + 1):
            if not self._database.attempt(partial(self._remove_slice, key)):
                self._residue = True
                break

    # --- the jobs ----------------------------------------------------------------------------------------------------

    def _reserve(
        self,
        key: ConversationKey,
        token: str,
        format: str,  # noqa: A002 - the field's standard word
        opening: Delta | None,
        release: bool,
        tail: Page | None,
        known: int,
        cursor: sqlite3.Cursor,
    ) -> Reserved:
        wall = self._now()
        place = self._accessed(cursor, key, wall)
        held = take(place.header or new_header(key, format, wall), token, format, wall)
        receipt = _earlier(cursor, place, opening) if opening is not None else None
        header, grown = self._store(cursor, key, place, held, None if receipt else opening, wall, release=release)
        shown = tail is not None and header.version != known
        return Reserved(
            header=header,
            tail=_newest(cursor, place.conversation, header.entries + 1, tail) if shown and tail is not None else (),
            written=grown.entries if grown else (),
            receipt=receipt or (grown.receipt if grown else None),
        )

    def _commit(
        self, key: ConversationKey, token: str, epoch: int, delta: Delta, release: bool, cursor: sqlite3.Cursor
    ) -> Committed:
        wall = self._now()
        place = _find(cursor, key)
        held = check_owner(place.header, token, epoch)
        receipt = _earlier(cursor, place, delta)
        header, grown = self._store(cursor, key, place, held, None if receipt else delta, wall, release=release)
        if grown is None:
            return Committed(header=header, written=(), receipt=cast("Receipt", receipt))
        return Committed(header=header, written=grown.entries, receipt=grown.receipt)

    def _recover(self, key: ConversationKey, epoch: int | None, cursor: sqlite3.Cursor) -> Header | Kept[Header]:
        wall = self._now()
        place = self._accessed(cursor, key, wall)
        if place.header is None:
            return Kept(DecisionHistoryAbsent("no such conversation to recover"))
        grown = recover(place.header, epoch, wall)
        _note_receipt(cursor, place, grown.receipt)
        _set_conversation(cursor, place, grown.header)
        _add_entries(cursor, place.conversation, grown.entries)
        _set_minute(cursor, place, wall)
        return grown.header

    def _delete(self, key: ConversationKey, cursor: sqlite3.Cursor) -> bool | Kept[bool]:
        wall = self._now()
        place = _find(cursor, key)
        header = place.header
        if header is not None:
            gone = expired(header, self._bounds.ttl_ms, wall)
            if not gone:
                check_idle(header, wall)
            _drop(cursor, place)
            if not gone:
                return True
        return Kept(DecisionHistoryAbsent("no such conversation to delete"))

    def _remove_slice(self, key: ConversationKey, cursor: sqlite3.Cursor) -> None:
        place = self._accessed(cursor, key, self._now())
        self._residue = _sweep(cursor)
        cursor.execute(sql.DROP_EMPTY_NAMESPACE, (place.namespace,))

    # --- what the jobs share -----------------------------------------------------------------------------------------

    def _store(
        self,
        cursor: sqlite3.Cursor,
        key: ConversationKey,
        place: _Place,
        held: Header,
        delta: Delta | None,
        wall: int,
        *,
        release: bool,
    ) -> tuple[Header, Extension | None]:
        """Store the header as the reservation and `delta` leave it, with the rows that `delta` adds."""
        grown = extend(held, delta, wall, self._bounds.max_retained_bytes) if delta is not None else None
        after = grown.header if grown else held
        header = free(after) if release else after
        self._grow_namespace(cursor, key, place, header.bytes, wall)
        if grown is not None:
            _note_receipt(cursor, place, grown.receipt)
        if place.header is None:
            _add_conversation(cursor, key, place, header, wall)
        else:
            _set_conversation(cursor, place, header)
            _set_minute(cursor, place, header.touched)
        if grown is not None:
            _add_entries(cursor, place.conversation, grown.entries)
        if release and is_blank(header):
            _drop(cursor, place)
        self._purge_some(cursor, place, wall)
        return header, grown

    def _grow_namespace(
        self, cursor: sqlite3.Cursor, key: ConversationKey, place: _Place, size: int, wall: int
    ) -> None:
        """
        Count a new conversation and its growth to `size` bytes, once the namespace has room for them.

        Raises:
            DecisionHistoryStoreFull: it has none, even without grants ahead of need and all that has expired.
        """
        new = int(place.header is None)
        if not new and self._grant(place, new, size) == 0:
            return
        while (more := self._grant(place, new, size)) is None:
            # First what has expired, a few at a time; settling looks at every conversation of the namespace.
            if self._purge_oldest(cursor, place, wall):
                continue
            if not place.ahead:
                raise store_full(place.conversations + new, place.granted + size - place.own, self._bounds)
            _settle(cursor, place)
        if not place.namespace:
            cursor.execute(sql.ADD_NAMESPACE, (key.namespace.encode(),))
            place.namespace = cast("int", cursor.lastrowid)
        place.own += more
        cursor.execute(sql.GROW_NAMESPACE, (new, more, place.own > size, place.namespace))

    def _grant(self, place: _Place, new: int, size: int) -> int | None:
        """Return by how much to raise the conversation's grant, with something ahead of need while room is plenty."""
        bounds = self._bounds
        if new and bounds.max_sessions is not None and place.conversations + new > bounds.max_sessions:
            return None
        need = size - place.own
        if need <= 0:
            # A journal with wider bounds on the same file may have granted more than this one may hand out.
            over = bounds.max_bytes is not None and place.granted > bounds.max_bytes
            return None if over and place.ahead else 0
        if bounds.max_bytes is None or place.granted + need + _AHEAD_BYTES <= bounds.max_bytes * 7 // 8:
            return need + _AHEAD_BYTES
        return need if place.granted + need <= bounds.max_bytes else None

    # --- expiry ------------------------------------------------------------------------------------------------------

    def _accessed(self, cursor: sqlite3.Cursor, key: ConversationKey, wall: int) -> _Place:
        """Find a conversation for writing, removing it if it has expired."""
        place = _find(cursor, key)
        if place.header is not None and expired(place.header, self._bounds.ttl_ms, wall):
            self._purge(cursor, place, place.conversation, place.own)
            place.leave()
        return place

    def _purge(self, cursor: sqlite3.Cursor, place: _Place, conversation: int, granted: int) -> None:
        """Remove an expired conversation at once, and leave its rows to be deleted in slices, so that none is long."""
        _drop_header(cursor, place, conversation, granted)
        cursor.execute(sql.ADD_RESIDUE, (conversation,))
        self._residue = True

    def _purge_oldest(self, cursor: sqlite3.Cursor, place: _Place, wall: int) -> bool:
        """Remove some conversations that have expired to the millisecond; False when there is none."""
        if self._bounds.ttl_ms is None or not place.namespace:
            return False
        oldest = self._oldest_live(wall)
        bound = (place.namespace, oldest >> _MINUTE_BITS, oldest, PURGED_PER_WRITE)
        found = cursor.execute(sql.LIST_EXPIRED, bound).fetchall()
        for conversation, granted in found:
            self._purge(cursor, place, conversation, granted)
        return bool(found)

    def _purge_some(self, cursor: sqlite3.Cursor, place: _Place, wall: int) -> None:
        """
        Remove a few expired conversations, as each write does beside its own work (promise I-31).

        After a look that found no more, nothing can expire for a while, so the next look waits for a minute of the
        index to pass. A clock that stands before the last look means that it was set back: look again.
        """
        if self._residue:
            self._residue = _sweep(cursor)
        if self._bounds.ttl_ms is None:
            return
        looked, due = self._purges.get(place.namespace, (wall, wall))
        if looked <= wall < due:
            return
        minute = self._oldest_live(wall) >> _MINUTE_BITS
        found = cursor.execute(sql.LIST_OLD, (place.namespace, minute, PURGED_PER_WRITE)).fetchall()
        for conversation, granted, token in found:
            if token:
                cursor.execute(sql.SET_MINUTE, (None, conversation))
            else:
                self._purge(cursor, place, conversation, granted)
        cursor.execute(sql.CLAMP_FUTURE, (wall, wall >> _MINUTE_BITS, place.namespace, PURGED_PER_WRITE))
        if len(self._purges) >= _KNOWN_NAMESPACES:
            self._purges.clear()
        more = len(found) == PURGED_PER_WRITE or cursor.rowcount == PURGED_PER_WRITE
        self._purges[place.namespace] = (wall, wall if more else wall + min(1 << _MINUTE_BITS, self._bounds.ttl_ms))


def _keeping(job: Work[T | Kept[T]], cursor: sqlite3.Cursor) -> T | Kept[T]:
    """
    Run a job, and let what it purged and settled stand where the store is full all the same.

    That refusal comes before the job wrote anything else, and the next one would only have to do it all again.
    """
    try:
        return job(cursor)
    except DecisionHistoryStoreFull as error:
        return Kept(error)


# --- headers and rows ------------------------------------------------------------------------------------------------


def _rows(count: int) -> int:
    return max(0, min(count, _LARGEST))


def _find(cursor: sqlite3.Cursor, key: ConversationKey) -> _Place:
    row = cursor.execute(sql.GET_PLACE, (key.id.encode(), key.namespace.encode())).fetchone()
    if row is None:
        return _Place()
    place = _Place(*row[:4])
    if row[4] is not None:
        place.conversation, place.minute, place.own, place.recent = row[4:8]
        place.header = _header(row[8:])
        if type(place.recent) is not bytes:
            raise DecisionHistoryCorrupt("a conversation's receipts have another type than was written")
    return place


def _header(columns: Iterable[Any]) -> Header:
    row = tuple(columns)
    if tuple(map(type, row)) != _HEADER_TYPES:
        raise DecisionHistoryCorrupt("a conversation's header has columns of other types than were written")
    format_, created, touched, epoch, token, since, version, entries, size, digest, state, attempt = row
    try:
        return Header(
            format=format_.decode(),
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


def _columns(header: Header) -> tuple[object, ...]:
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


def _add_conversation(cursor: sqlite3.Cursor, key: ConversationKey, place: _Place, header: Header, wall: int) -> None:
    place.minute = wall >> _MINUTE_BITS
    own = (place.namespace, key.id.encode(), header.format.encode(), header.created, place.minute)
    cursor.execute(sql.ADD_CONVERSATION, (*_columns(header), place.own, place.recent, *own))
    place.conversation = cast("int", cursor.lastrowid)


def _set_conversation(cursor: sqlite3.Cursor, place: _Place, header: Header) -> None:
    before = cast("Header", place.header)
    cursor.execute(
        sql.SET_CONVERSATION,
        (*_columns(header), place.own, place.recent, place.conversation, before.epoch, before.token.encode()),
    )
    check_owner(before if cursor.rowcount == 1 else None, before.token, before.epoch)


def _set_minute(cursor: sqlite3.Cursor, place: _Place, touched: int) -> None:
    """Keep the index of ages right; it is NULL where a purge had put the conversation aside while it was reserved."""
    if place.minute != touched >> _MINUTE_BITS:
        cursor.execute(sql.SET_MINUTE, (touched >> _MINUTE_BITS, place.conversation))


def _drop(cursor: sqlite3.Cursor, place: _Place) -> None:
    """Delete a conversation with all that belongs to it, and its namespace once it was the last one."""
    cursor.execute(sql.DROP_ENTRIES, (place.conversation,))
    cursor.execute(sql.DROP_RECEIPTS, (place.conversation,))
    _drop_header(cursor, place, place.conversation, place.own)
    cursor.execute(sql.DROP_EMPTY_NAMESPACE, (place.namespace,))


def _drop_header(cursor: sqlite3.Cursor, place: _Place, conversation: int, granted: int) -> None:
    cursor.execute(sql.DROP_CONVERSATION, (conversation,))
    cursor.execute(sql.GROW_NAMESPACE, (-1, -granted, False, place.namespace))
    place.conversations -= 1
    place.granted -= granted


def _settle(cursor: sqlite3.Cursor, place: _Place) -> None:
    """Take back all that the namespace's conversations were granted ahead of need; linear in their number."""
    cursor.execute(sql.SETTLE_CONVERSATIONS, (place.namespace,))
    place.granted = cursor.execute(sql.SUM_BYTES, (place.namespace,)).fetchone()[0]
    cursor.execute(sql.SETTLE_NAMESPACE, (place.granted, place.namespace))
    place.ahead = 0
    place.own = place.header.bytes if place.header is not None else 0


def _sweep(cursor: sqlite3.Cursor) -> bool:
    """Delete a slice of the rows that purged conversations left; False when none were left."""
    found = cursor.execute(sql.GET_RESIDUE).fetchone()
    if found is None:
        return False
    conversation = found[0]
    left = _RESIDUE_ROWS - cursor.execute(sql.DROP_SOME_ENTRIES, (conversation, _RESIDUE_ROWS)).rowcount
    if left:
        left -= cursor.execute(sql.DROP_SOME_RECEIPTS, (conversation, left)).rowcount
    if left:
        cursor.execute(sql.DROP_RESIDUE, (conversation,))
    return True


def _add_entries(cursor: sqlite3.Cursor, conversation: int, entries: Sequence[Entry]) -> None:
    cursor.executemany(
        sql.ADD_ENTRY,
        [
            (
                conversation,
                entry.seq,
                int(entry.kind),
                entry.turn,
                entry.exchange,
                entry.call,
                entry.messages,
                entry.size,
                entry.start,
                entry.stop,
                entry.wall,
                encode_calls(entry.calls),
                entry.digest,
                entry.payload,
            )
            for entry in entries
        ],
    )


# --- receipts --------------------------------------------------------------------------------------------------------


def _note_receipt(cursor: sqlite3.Cursor, place: _Place, receipt: Receipt) -> None:
    """Add a receipt to the recent ones, which are stored with the header; move them all once they are too many."""
    packed = _pack(receipt)
    place.recent += len(packed).to_bytes(4, "big") + packed
    if len(place.recent) > _RECENT_BYTES and place.conversation:
        rows = [(place.conversation, *_receipt_columns(recent)) for recent in _unpacked(place.recent)]
        cursor.executemany(sql.ADD_RECEIPT, rows)
        place.recent = b""


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


def _unpacked(recent: bytes) -> list[Receipt]:
    receipts: list[Receipt] = []
    start = 0
    while start < len(recent):
        stop = start + 4 + int.from_bytes(recent[start : start + 4], "big")
        try:
            receipts.append(_receipt(_decode_packed(recent[start + 4 : stop])))
        except msgspec.MsgspecError:
            raise DecisionHistoryCorrupt("a conversation's receipts do not decode; restore a backup") from None
        start = stop
    return receipts


def _find_receipt(cursor: sqlite3.Cursor, place: _Place, idempotency: str) -> Receipt | None:
    name = idempotency.encode()
    # Where the bytes of the id do not even occur, nothing has to be decoded: the usual case.
    if name in place.recent:
        for receipt in _unpacked(place.recent):
            if receipt.idempotency == idempotency:
                return receipt
    row = cursor.execute(sql.GET_RECEIPT, (place.conversation, name)).fetchone()
    return None if row is None else _receipt(row)


def _earlier(cursor: sqlite3.Cursor, place: _Place, delta: Delta) -> Receipt | None:
    """Return the receipt of the commit that `delta` repeats, if it does."""
    receipt = _find_receipt(cursor, place, delta.idempotency)
    return None if receipt is None else replayed(receipt, delta)


def _receipt(row: tuple[Any, ...]) -> Receipt:
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


def _newest(cursor: sqlite3.Cursor, conversation: int, before: int, page: Page) -> tuple[Entry, ...]:
    if before <= 1 or page.rows < 1:
        return ()
    found = cursor.execute(sql.NEWEST_ENTRIES, (conversation, before, _rows(page.rows)))
    return _paged(found, page, range(before - 1, max(0, before - 1 - page.rows), -1))


def _paged(rows: Iterable[tuple[Any, ...]], page: Page, expected: range) -> tuple[Entry, ...]:
    """Return the entries up to where the page is full; one that is missing or does not decode is refused by name."""
    taken: list[Entry] = []
    messages = size = 0
    found = iter(rows)
    for seq in expected:
        entry = _entry(next(found, None), seq)
        taken.append(entry)
        messages += entry.messages
        size += entry.size
        if messages > page.messages or size > page.size:
            break
    return tuple(taken)


def _entry(row: tuple[Any, ...] | None, place: int) -> Entry:
    """Return one entry, or refuse the row that stands at `place`."""
    if row is None or row[0] != place:
        raise _corrupt(place, "is missing")
    if tuple(map(type, row)) != _ENTRY_TYPES:
        raise _corrupt(place, "has columns of other types than were written")
    seq, kind, turn, exchange, call, messages, size, start, stop, wall, calls, digest, payload = row
    if kind not in _KINDS or min(row[:10]) < 0 or not start <= stop <= len(payload):
        raise _corrupt(place, "has a kind or a fragment that cannot be")
    try:
        decoded = _decode_calls(calls) if calls else ()
    except msgspec.MsgspecError:
        raise _corrupt(place, "has calls that do not decode") from None
    return Entry(
        seq, _KINDS[kind], turn, exchange, call, messages, size, start, stop, wall, decoded, digest, payload
    )  # by position, which takes a third of the time


def _corrupt(seq: int, what: str) -> DecisionHistoryCorrupt:
    return DecisionHistoryCorrupt(f"entry {seq} {what}; restore a backup", seq=seq)
