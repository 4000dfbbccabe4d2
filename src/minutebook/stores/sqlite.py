"""
The SQLite journal: conversations in one private file, durable when a call returns (SPEC D19, D20).

The rules are the model's; here they meet rows. Every method is a job on a cursor that the writer runs inside its
transaction, so a method is a plain story: find the header, ask the model, store what it says. The same jobs serve a
connection of the host's own, where the host's settings decide how durable they are.
"""

from __future__ import annotations

import sqlite3
import threading
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar, cast

from minutebook.errors import DecisionHistoryAbsent, DecisionHistoryStoreFull, InvalidOption, StoreClosed
from minutebook.model.bounds import StoreBounds
from minutebook.model.clock import read_clock
from minutebook.model.cuts import leaving
from minutebook.model.keys import ConversationKey, check_id
from minutebook.model.law import extend
from minutebook.model.record import new_header
from minutebook.model.reservation import check_idle, check_owner, expired, free, is_blank, recover, store_full, take
from minutebook.ports import Committed, Listing, Reserved, Totals
from minutebook.stores import sqlite_statements as sql
from minutebook.stores.clock import system_clock
from minutebook.stores.sqlite_jobs import Kept
from minutebook.stores.sqlite_rows import (
    MINUTE_BITS,
    RESIDUE_ROWS,
    Place,
    add_conversation,
    add_entries,
    add_receipts,
    at_most,
    cut_entries,
    drop_conversation,
    drop_header,
    earlier_receipt,
    find_doomed,
    find_place,
    find_receipt,
    first_entries,
    header_of,
    newest_entries,
    note_receipt,
    oldest_entries,
    receipt_of,
    set_conversation,
    set_minute,
    settle_grants,
    sweep_residue,
    unpack_receipts,
)
from minutebook.stores.sqlite_writer import acquire_writer
from minutebook.stores.streams import named_in_listing

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from minutebook.model.entries import Entry
    from minutebook.model.record import Delta, Extension, Header, Receipt
    from minutebook.ports import Page
    from minutebook.stores.sqlite_jobs import Database, Work

__all__ = ["PURGED_PER_WRITE", "SQLiteJournal"]

T = TypeVar("T")

PURGED_PER_WRITE: Final = 8
"""How many expired conversations a write removes beside the one it is about (promise I-31)."""

_AHEAD_BYTES = 64 * 1024
_KNOWN_NAMESPACES = 1024


class SQLiteJournal:
    """
    A journal in one SQLite file. Any number of them, in any threads and event loops, share one writer per file.

    With `blocking` every method finishes without suspending, for drivers without an event loop; otherwise concurrent
    commits of a loop are made durable together. A new reservation without an opening survives the process; all other
    writes also survive a power cut.
    """

    tasks_alone = False
    """Whether its calls may only be made in tasks of their own; see `Aftermath`."""

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
            DecisionHistorySchemaUnsupported: our tables in it are of a newer version, or do not say which.
        """
        from minutebook.stores.sqlite_host import HostConnection

        journal = cls.__new__(cls)
        journal._begin(HostConnection(connection), bounds, clock, blocking=True)
        return journal

    def _begin(self, database: Database, bounds: StoreBounds | None, clock: Callable[[], int], blocking: bool) -> None:
        self._database = database
        self._bounds = bounds or StoreBounds()
        self.ttl_ms = self._bounds.ttl_ms
        self._clock = clock
        self._blocking = blocking
        self._closed = False
        self._given_back = threading.Lock()
        """Held by whoever gave the database back, or is about to: after a failure two threads may come to do it."""
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
        return await self._write(
            job, delta, durable=bool(delta.drafts or delta.abandons or delta.supersedes or delta.cut)
        )

    async def recover(self, key: ConversationKey, epoch: int | None) -> Header:
        """See `Journal.recover`."""
        return await self._write(partial(self._recover, key, epoch))

    async def delete(self, key: ConversationKey) -> bool:
        """See `Journal.delete`. Rows are overwritten with zeros, and the log that held them is cut to nothing."""
        return await self._write(partial(self._delete, key), erases=True)

    async def close(self) -> None:
        """Give the file back; the last journal closes it, off an event loop's thread. A second call does nothing."""
        if self._given_back.locked():
            return
        self._closed = True
        if self._blocking:
            self._give_back()
            return
        from minutebook.stores.sqlite_waiting import released  # loads asyncio, which blocking callers do without

        await released(self._give_back)

    def _give_back(self) -> None:
        if self._given_back.acquire(blocking=False):
            self._database.release()

    # --- reading -----------------------------------------------------------------------------------------------------

    async def header(self, key: ConversationKey) -> Header | None:
        """See `Journal.header`."""
        return self._look(key, lambda _, place: place.header)

    async def newest(self, key: ConversationKey, before: int, page: Page) -> tuple[Entry, ...]:
        """See `Journal.newest`."""

        def job(cursor: sqlite3.Cursor, place: Place) -> tuple[Entry, ...]:
            last, cut = (place.header.entries, place.header.cut.seq) if place.header is not None else (0, 0)
            return newest_entries(cursor, place.conversation, min(before, last + 1), page, cut)

        return self._look(key, job)

    async def oldest(self, key: ConversationKey, after: int, page: Page) -> tuple[Entry, ...]:
        """See `Journal.oldest`."""

        def job(cursor: sqlite3.Cursor, place: Place) -> tuple[Entry, ...]:
            last, cut = (place.header.entries, place.header.cut.seq) if place.header is not None else (0, 0)
            return oldest_entries(cursor, place.conversation, max(after, cut), last, page)

        return self._look(key, job)

    async def receipts(self, key: ConversationKey, after: int, rows: int) -> tuple[Receipt, ...]:
        """See `Journal.receipts`."""

        def job(cursor: sqlite3.Cursor, place: Place) -> tuple[Receipt, ...]:
            moved = cursor.execute(sql.LIST_RECEIPTS, (place.conversation, after, at_most(rows))).fetchall()
            recent = [receipt for receipt in unpack_receipts(place.recent) if receipt.version > after]
            return (*map(receipt_of, moved), *recent)[: at_most(rows)]

        return self._look(key, job)

    async def receipt(self, key: ConversationKey, idempotency: str) -> Receipt | None:
        """See `Journal.receipt`."""
        check_id(idempotency, "idempotency id")
        return self._look(key, lambda cursor, place: find_receipt(cursor, place, idempotency))

    async def list(self, namespace: str, after: str, rows: int) -> tuple[Listing, ...]:
        """See `Journal.list`."""
        check_id(namespace, "namespace")

        def job(cursor: sqlite3.Cursor) -> tuple[Listing, ...]:
            bound = (namespace.encode(), after.encode(), self._oldest_live(self._now()), at_most(rows))
            found: list[Listing] = []
            for name, *columns in cursor.execute(sql.LIST_CONVERSATIONS, bound).fetchall():
                key = ConversationKey(namespace, name.decode())
                with named_in_listing(key, len(found)):
                    found.append(Listing(key=key, header=header_of(columns)))
            return tuple(found)

        return self._read(job)

    async def totals(self, namespace: str) -> Totals:
        """See `Journal.totals`. Linear in the namespace's conversations."""
        check_id(namespace, "namespace")

        def job(cursor: sqlite3.Cursor) -> Totals:
            oldest = self._oldest_live(self._now())
            bound = (oldest, oldest, namespace.encode())
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
        erases = erases or (delta is not None and delta.cut > 0)
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

    def _look(self, key: ConversationKey, job: Callable[[sqlite3.Cursor, Place], T]) -> T:
        """Run a reading job on a conversation; one that has expired is as if absent, and is removed (SPEC D6)."""

        def look(cursor: sqlite3.Cursor) -> tuple[Header | None, T]:
            place = find_place(cursor, key)
            if place.header is None or not expired(place.header, self._bounds.ttl_ms, self._now()):
                return None, job(cursor, place)
            return place.header, job(cursor, Place())

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
        for _ in range(rows // RESIDUE_ROWS + 1):
            if not self._database.attempt(partial(self._remove_slice, key)):
                self._residue = True
                return
            if not self._residue:
                return

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
        place = self._accessed(cursor, key, wall, opening.idempotency if opening is not None else "")
        held = take(place.header or new_header(key, format, wall), token, format, wall)
        receipt = earlier_receipt(cursor, place, opening) if opening is not None else None
        header, grown = self._store(cursor, key, place, held, None if receipt else opening, wall, release=release)
        shown = tail is not None and header.version != known
        return Reserved(
            header=header,
            tail=newest_entries(cursor, place.conversation, header.entries + 1, tail, header.cut.seq)
            if shown and tail is not None
            else (),
            written=grown.entries if grown else (),
            receipt=receipt or (grown.receipt if grown else None),
        )

    def _commit(
        self, key: ConversationKey, token: str, epoch: int, delta: Delta, release: bool, cursor: sqlite3.Cursor
    ) -> Committed:
        wall = self._now()
        place = find_place(cursor, key, delta.idempotency)
        held = check_owner(place.header, token, epoch)
        receipt = earlier_receipt(cursor, place, delta)
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
        note_receipt(cursor, place, grown.receipt)
        set_conversation(cursor, place, grown.header)
        add_entries(cursor, place.conversation, grown.entries)
        set_minute(cursor, place, wall)
        return grown.header

    def _delete(self, key: ConversationKey, cursor: sqlite3.Cursor) -> bool | Kept[bool]:
        wall = self._now()
        place = find_doomed(cursor, key)
        if place.conversation:
            gone = place.header is not None and expired(place.header, self._bounds.ttl_ms, wall)
            if place.header is not None and not gone:
                check_idle(place.header, wall)
            drop_conversation(cursor, place)
            if not gone:
                return True
        return Kept(DecisionHistoryAbsent("no such conversation to delete"))

    def _remove_slice(self, key: ConversationKey, cursor: sqlite3.Cursor) -> None:
        place = self._accessed(cursor, key, self._now())
        self._residue = sweep_residue(cursor)
        cursor.execute(sql.DROP_EMPTY_NAMESPACE, (place.namespace,))

    # --- what the jobs share -----------------------------------------------------------------------------------------

    def _store(
        self,
        cursor: sqlite3.Cursor,
        key: ConversationKey,
        place: Place,
        held: Header,
        delta: Delta | None,
        wall: int,
        *,
        release: bool,
    ) -> tuple[Header, Extension | None]:
        """Store the header as the reservation and `delta` leave it, with the rows that `delta` adds."""
        grown = None
        if delta is not None:
            stored = first_entries(cursor, place.conversation, leaving(held, delta))
            grown = extend(held, delta, wall, self._bounds.max_retained_bytes, stored)
        after = grown.header if grown else held
        header = free(after) if release else after
        self._grow_namespace(cursor, key, place, header.bytes, wall)
        if grown is not None:
            note_receipt(cursor, place, grown.receipt)
        if place.header is None:
            add_conversation(cursor, key, place, header, wall)
        else:
            set_conversation(cursor, place, header)
            set_minute(cursor, place, header.touched)
        if header.cut.seq > held.cut.seq:
            cut_entries(cursor, place.conversation, header.cut.seq)
        if grown is not None:
            add_receipts(cursor, place.conversation, grown.receipts[:-1])
            add_entries(cursor, place.conversation, grown.entries)
        if release and is_blank(header):
            drop_conversation(cursor, place)
        self._purge_some(cursor, place, wall)
        return header, grown

    def _grow_namespace(self, cursor: sqlite3.Cursor, key: ConversationKey, place: Place, size: int, wall: int) -> None:
        """
        Count a new conversation and its growth to `size` bytes, once the namespace has room for them.

        Raises:
            DecisionHistoryStoreFull: it has none, even without grants ahead of need and all that has expired.
        """
        new = int(place.header is None)
        if not new and self._grant(place, new, size) == 0:
            if size < place.own and not place.ahead:  # a cut gave bytes back; they are taken where they are needed
                cursor.execute(sql.GROW_NAMESPACE, (0, 0, True, place.namespace))
            return
        while (more := self._grant(place, new, size)) is None:
            # First what has expired, a few at a time; settling looks at every conversation of the namespace.
            if self._purge_oldest(cursor, place, wall):
                continue
            if not place.ahead:
                raise store_full(place.conversations + new, place.granted + size - place.own, self._bounds)
            settle_grants(cursor, place)
        if not place.namespace:
            cursor.execute(sql.ADD_NAMESPACE, (key.namespace.encode(),))
            place.namespace = cast("int", cursor.lastrowid)
        place.own += more
        cursor.execute(sql.GROW_NAMESPACE, (new, more, place.own > size, place.namespace))

    def _grant(self, place: Place, new: int, size: int) -> int | None:
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

    def _accessed(self, cursor: sqlite3.Cursor, key: ConversationKey, wall: int, idempotency: str = "") -> Place:
        """Find a conversation for writing, removing it if it has expired."""
        place = find_place(cursor, key, idempotency)
        if place.header is not None and expired(place.header, self._bounds.ttl_ms, wall):
            self._purge(cursor, place, place.conversation, place.own)
            place.leave()
        return place

    def _purge(self, cursor: sqlite3.Cursor, place: Place, conversation: int, granted: int) -> None:
        """Remove an expired conversation at once, and leave its rows to be deleted in slices, so that none is long."""
        drop_header(cursor, place, conversation, granted)
        cursor.execute(sql.ADD_RESIDUE, (conversation,))
        self._residue = True

    def _purge_oldest(self, cursor: sqlite3.Cursor, place: Place, wall: int) -> bool:
        """Remove some conversations that have expired to the millisecond; False when there is none."""
        if self._bounds.ttl_ms is None or not place.namespace:
            return False
        oldest = self._oldest_live(wall)
        bound = (place.namespace, oldest >> MINUTE_BITS, oldest, PURGED_PER_WRITE)
        found = cursor.execute(sql.LIST_EXPIRED, bound).fetchall()
        for conversation, granted in found:
            self._purge(cursor, place, conversation, granted)
        return bool(found)

    def _purge_some(self, cursor: sqlite3.Cursor, place: Place, wall: int) -> None:
        """
        Remove a few expired conversations, as each write does beside its own work (promise I-31).

        After a look that found no more, nothing can expire for a while, so the next look waits for a minute of the
        index to pass. A clock that stands before the last look means that it was set back: look again.
        """
        if self._residue:
            self._residue = sweep_residue(cursor)
        if self._bounds.ttl_ms is None:
            return
        looked, due = self._purges.get(place.namespace, (wall, wall))
        if looked <= wall < due:
            return
        minute = self._oldest_live(wall) >> MINUTE_BITS
        found = cursor.execute(sql.LIST_OLD, (place.namespace, minute, PURGED_PER_WRITE)).fetchall()
        for conversation, granted, token in found:
            if token:
                cursor.execute(sql.SET_MINUTE, (None, conversation))
            else:
                self._purge(cursor, place, conversation, granted)
        present = wall >> MINUTE_BITS
        cursor.execute(sql.CLAMP_FUTURE, (wall, present, place.namespace, present, PURGED_PER_WRITE))
        if len(self._purges) >= _KNOWN_NAMESPACES:
            self._purges.clear()
        more = len(found) == PURGED_PER_WRITE or cursor.rowcount == PURGED_PER_WRITE
        self._purges[place.namespace] = (wall, wall if more else wall + min(1 << MINUTE_BITS, self._bounds.ttl_ms))


def _keeping(job: Work[T | Kept[T]], cursor: sqlite3.Cursor) -> T | Kept[T]:
    """
    Run a job, and let what it purged and settled stand where the store is full all the same.

    That refusal comes before the job wrote anything else, and the next one would only have to do it all again.
    """
    try:
        return job(cursor)
    except DecisionHistoryStoreFull as error:
        return Kept(error)
