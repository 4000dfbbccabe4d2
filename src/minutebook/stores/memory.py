"""
The RAM journal: the same atomic methods as every other one, on a dictionary under one lock.

An entry is kept as one packed `bytes`, so that a retained message costs its payload and about a hundred bytes. The
journal serves any number of threads and event loops: no method waits for anything while it holds the lock.
"""

from __future__ import annotations

import heapq
import itertools
import os
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

import msgspec

from minutebook.errors import DecisionHistoryAbsent, InvalidOption, StoreClosed
from minutebook.model.bounds import StoreBounds
from minutebook.model.clock import read_clock
from minutebook.model.cuts import leaving
from minutebook.model.entries import pack_entries, unpack_entries
from minutebook.model.keys import ConversationKey, check_id
from minutebook.model.law import extend
from minutebook.model.record import Delta, Header, Receipt, new_header, replayed
from minutebook.model.reservation import check_idle, check_owner, expired, free, is_blank, recover, store_full, take
from minutebook.ports import Committed, Listing, Page, Reserved, Totals
from minutebook.stores.clock import system_clock
from minutebook.stores.sections import section

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from minutebook.model.entries import Entry
    from minutebook.model.record import Extension

PURGED_PER_WRITE = 8
"""How many expired conversations a write removes beside the one it is about (promise I-31)."""

_encode_into = msgspec.msgpack.Encoder().encode_into
_unpack_receipt = msgspec.msgpack.Decoder(Receipt).decode


class _Rows:
    """Packed entries, of which the first is the one behind entry `base`; those that a cut took are empty."""

    __slots__ = ("base", "packed")

    def __init__(self, base: int, packed: list[bytes]) -> None:
        self.base = base
        self.packed = packed

    def at(self, seqs: range) -> Iterable[Entry]:
        return map(_entry, [self.packed[seq - self.base - 1] for seq in seqs], seqs)

    def without(self, cut: int, before: int) -> _Rows:
        """Return these without the entries up to `cut`; linear in what leaves, since places are closed up by halves."""
        first, end = max(before - self.base, 0), cut - self.base
        self.packed[first:end] = [b""] * (end - first)
        return _Rows(cut, self.packed[end:]) if 2 * end >= len(self.packed) else self


class _Log:
    """One conversation in RAM."""

    __slots__ = ("header", "receipts", "rows")

    def __init__(self, header: Header) -> None:
        self.header = header
        self.rows = _Rows(0, [])
        self.receipts: dict[str, bytes] = {}

    def add(self, entries: Iterable[Entry], after: int) -> None:
        """Add entries, of which the first comes behind the entry `after`."""
        if not self.header.retained:
            self.rows = _Rows(after, [])
        # Of what a cut takes from its own commit only the places are there.
        places = [b""] * (after - self.rows.base - len(self.rows.packed))
        self.rows.packed.extend(itertools.chain(places, (pack_entries((entry,)) for entry in entries)))

    def entries(self, first: int, last: int) -> range:
        """Return which entries from `first` to `last` it holds."""
        held = self.rows.base + len(self.rows.packed)
        return range(max(first, self.header.cut.seq + 1), min(last, self.header.entries, held) + 1)

    def earlier(self, delta: Delta) -> Receipt | None:
        """Return the receipt of the commit that `delta` repeats, if it does."""
        return replayed(self.unpacked(delta.idempotency), delta) if delta.idempotency in self.receipts else None

    def unpacked(self, idempotency: str) -> Receipt:
        return _unpack_receipt(self.receipts[idempotency])

    def forget_unrecorded(self) -> None:
        """Drop rows and receipts that the header does not count."""
        if self.header.retained:
            del self.rows.packed[self.header.entries - self.rows.base :]
            self.rows = self.rows.without(self.header.cut.seq, self.rows.base)
        else:
            self.rows = _Rows(self.header.entries, [])
        for name in [name for name in self.receipts if self.unpacked(name).version > self.header.version]:
            del self.receipts[name]


class _Namespace:
    """
    One namespace: its conversations by the time of their last write, oldest first, and their bytes in all.

    It is in the journal's own table while it holds a conversation, and only then: names that came once and were
    refused, deleted or expired cost nothing afterwards.
    """

    __slots__ = ("bytes", "changing", "logs", "name", "table")

    def __init__(self, name: str, table: dict[str, _Namespace]) -> None:
        self.name = name
        self.table = table
        self.logs: OrderedDict[str, _Log] = OrderedDict()
        self.bytes = 0
        self.changing = False
        """Whether a change is under way; found so under the lock, an interrupt has cut one short."""

    def mended(self) -> _Namespace:
        """Return this namespace without what an interrupted change left: a header alone says what is recorded."""
        if self.changing:
            for log in self.logs.values():
                log.forget_unrecorded()
            self.bytes = sum(log.header.bytes for log in self.logs.values())
            self.changing = False
            self.leave_if_empty()
        return self

    def leave_if_empty(self) -> None:
        if not self.logs:
            self.table.pop(self.name, None)

    def store(self, name: str, log: _Log, grown: Extension | None, held: Header, *, release: bool) -> tuple[Entry, ...]:
        after = grown.header if grown else held
        size = self.bytes + (grown.header.bytes - held.bytes if grown else 0)
        self.changing = True
        if grown is not None:
            log.add(grown.entries, after.entries - len(grown.entries))
            log.receipts.update((receipt.idempotency, _pack(receipt)) for receipt in grown.receipts)
        log.header = free(after) if release else after
        if after.cut.seq > held.cut.seq:
            log.rows = log.rows.without(after.cut.seq, held.cut.seq)
        self.logs[name] = log
        self.table[self.name] = self
        if grown is not None:  # a replay or a bare reservation renews nothing, so it keeps its place in the order
            self.logs.move_to_end(name)
        self.bytes = size
        if release and is_blank(log.header):
            del self.logs[name]
        self.changing = False
        return grown.entries if grown else ()

    def remove(self, name: str) -> None:
        size = self.bytes - self.logs[name].header.bytes
        self.changing = True
        del self.logs[name]
        self.bytes = size
        self.leave_if_empty()
        self.changing = False


class MemoryJournal:
    """A journal in RAM (SPEC D6): gone with the process, bounded like any other, no secure erasure."""

    durable = False
    tasks_alone = False
    """Whether its calls may only be made in tasks of their own; see `Aftermath`."""

    def __init__(self, bounds: StoreBounds | None = None, *, clock: Callable[[], int] = system_clock) -> None:
        """Begin empty; without `bounds` nothing is refused and nothing expires."""
        self._bounds = bounds or StoreBounds()
        self.ttl_ms = self._bounds.ttl_ms
        self._clock = clock
        self._lock = threading.Lock()
        self._namespaces: dict[str, _Namespace] = {}
        self._process = os.getpid()
        self._closed = False

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
        wall = self._access()
        with section as inside, inside, self._lock:
            space = self._space(key.namespace)
            self._purge(space, key.id, wall)
            log = space.logs.get(key.id) or _Log(new_header(key, format, wall))
            held = take(log.header, token, format, wall)
            receipt = log.earlier(opening) if opening else None
            grown = self._grow(space, key.id, log, held, opening if receipt is None else None, wall)
            written = space.store(key.id, log, grown, held, release=release)
            shown = tail is not None and log.header.version != known
            return Reserved(
                header=log.header,
                tail=_newest(log, log.header.entries + 1, tail) if shown and tail else (),
                written=written,
                receipt=receipt or (grown.receipt if grown else None),
            )

    async def commit(
        self, key: ConversationKey, token: str, epoch: int, delta: Delta, *, release: bool = False
    ) -> Committed:
        """See `Journal.commit`."""
        check_id(delta.idempotency, "idempotency id")
        wall = self._access()
        with section as inside, inside, self._lock:
            space, log = self._find(key)
            held = check_owner(log.header if log else None, token, epoch)
            assert log is not None
            receipt = log.earlier(delta)
            grown = self._grow(space, key.id, log, held, delta if receipt is None else None, wall)
            written = space.store(key.id, log, grown, held, release=release)
            return Committed(header=log.header, written=written, receipt=receipt or log.unpacked(delta.idempotency))

    async def recover(self, key: ConversationKey, epoch: int | None) -> Header:
        """See `Journal.recover`."""
        wall = self._access()
        with section as inside, inside, self._lock:
            space, log = self._live(key, wall)
            if log is None:
                raise DecisionHistoryAbsent("no such conversation to recover")
            grown = recover(log.header, epoch, wall)
            space.store(key.id, log, grown, log.header, release=False)
            return log.header

    async def delete(self, key: ConversationKey) -> bool:
        """See `Journal.delete`. Always `False`: Python's memory is freed, not overwritten."""
        wall = self._access()
        with section as inside, inside, self._lock:
            space, log = self._live(key, wall)
            if log is None:
                raise DecisionHistoryAbsent("no such conversation to delete")
            check_idle(log.header, wall)
            space.remove(key.id)
            return False

    async def close(self) -> None:
        """Forget everything; a second call does nothing, nor does one after a fork."""
        if os.getpid() != self._process:
            return
        with section as inside, inside, self._lock:
            self._closed = True
            self._namespaces.clear()

    # --- reading -----------------------------------------------------------------------------------------------------

    async def header(self, key: ConversationKey) -> Header | None:
        """See `Journal.header`."""
        wall = self._access()
        with section as inside, inside, self._lock:
            log = self._live(key, wall)[1]
            return log.header if log else None

    async def newest(self, key: ConversationKey, before: int, page: Page) -> tuple[Entry, ...]:
        """See `Journal.newest`."""
        wall = self._access()
        with section as inside, inside, self._lock:
            log = self._live(key, wall)[1]
            return _newest(log, before, page) if log else ()

    async def oldest(self, key: ConversationKey, after: int, page: Page) -> tuple[Entry, ...]:
        """See `Journal.oldest`."""
        wall = self._access()
        with section as inside, inside, self._lock:
            log = self._live(key, wall)[1]
            if log is None:
                return ()
            seqs = log.entries(after + 1, log.header.entries)
            return page.taken(log.rows.at(seqs[: max(0, page.rows)]))

    async def receipts(self, key: ConversationKey, after: int, rows: int) -> tuple[Receipt, ...]:
        """See `Journal.receipts`."""
        wall = self._access()
        with section as inside, inside, self._lock:
            log = self._live(key, wall)[1]
            # Each version added one, so the first is of version 1, the second of version 2, and so on.
            found = log.receipts.values() if log else ()
            return tuple(map(_unpack_receipt, itertools.islice(found, max(0, after), max(0, after) + max(0, rows))))

    async def receipt(self, key: ConversationKey, idempotency: str) -> Receipt | None:
        """See `Journal.receipt`."""
        check_id(idempotency, "idempotency id")
        wall = self._access()
        with section as inside, inside, self._lock:
            log = self._live(key, wall)[1]
            packed = log.receipts.get(idempotency) if log else None
            return _unpack_receipt(packed) if packed else None

    async def list(self, namespace: str, after: str, rows: int) -> tuple[Listing, ...]:
        """See `Journal.list`."""
        check_id(namespace, "namespace")
        wall = self._access()
        with section as inside, inside, self._lock:
            space = self._space(namespace)
            above = [name for name, log in space.logs.items() if name > after and not self._expired(log.header, wall)]
            return tuple(
                Listing(key=ConversationKey(namespace, name), header=space.logs[name].header)
                for name in heapq.nsmallest(rows, above)
            )

    async def totals(self, namespace: str) -> Totals:
        """See `Journal.totals`."""
        check_id(namespace, "namespace")
        wall = self._access()
        with section as inside, inside, self._lock:
            space = self._space(namespace)
            headers = [log.header for log in space.logs.values()]
            expired = [header for header in headers if self._expired(header, wall)]
            return Totals(
                conversations=len(headers) - len(expired),
                bytes=space.bytes - sum(header.bytes for header in expired),
                reserved=sum(bool(header.token) for header in headers),
                expired=len(expired),
            )

    # --- the parts ---------------------------------------------------------------------------------------------------

    def _access(self) -> int:
        """Return the time of an access, once the store may be used. Whoever asks takes the lock right after."""
        if os.getpid() != self._process:
            raise StoreClosed("the store was opened before a fork; open one in this process")
        if self._closed:
            raise StoreClosed("the store is closed")
        return read_clock(self._clock)

    def _find(self, key: ConversationKey) -> tuple[_Namespace, _Log | None]:
        space = self._space(key.namespace)
        return space, space.logs.get(key.id)

    def _space(self, namespace: str) -> _Namespace:
        """Return a namespace as it stands, or an empty one."""
        return (self._namespaces.get(namespace) or _Namespace(namespace, self._namespaces)).mended()

    def _live(self, key: ConversationKey, wall: int) -> tuple[_Namespace, _Log | None]:
        """Return the log unless it has expired: the access that finds it so removes it (SPEC D6)."""
        space, log = self._find(key)
        if log is not None and self._expired(log.header, wall):
            space.remove(key.id)
            log = None
        return space, log

    def _expired(self, header: Header, wall: int) -> bool:
        return expired(header, self._bounds.ttl_ms, wall)

    def _purge(self, space: _Namespace, name: str, wall: int) -> None:
        log = space.logs.get(name)
        if log is not None and self._expired(log.header, wall):
            space.remove(name)
        for _ in range(PURGED_PER_WRITE):
            if not self._purge_oldest(space, wall):
                break

    def _purge_oldest(self, space: _Namespace, wall: int) -> bool:
        """Remove the conversation that was written to least recently, if it has expired; reserved ones stand aside."""
        if self._bounds.ttl_ms is None:
            return False
        for name, log in space.logs.items():
            if self._expired(log.header, wall):
                space.remove(name)
                return True
            if not log.header.token:
                if log.header.touched > wall:
                    # The clock was set back. Without this the record would outlive its time by the whole jump.
                    log.header = msgspec.structs.replace(log.header, touched=wall)
                return False
        return False

    def _grow(
        self, space: _Namespace, name: str, log: _Log, held: Header, delta: Delta | None, wall: int
    ) -> Extension | None:
        """Return what `delta` makes of the record, once the namespace has room for it."""
        stored = log.rows.at(leaving(held, delta)) if delta else ()
        grown = extend(held, delta, wall, self._bounds.max_retained_bytes, stored) if delta else None
        more = grown.header.bytes - held.bytes if grown else 0
        while True:
            sessions = len(space.logs) + (name not in space.logs)
            if not self._full(sessions if name not in space.logs else 0, space.bytes + more if more > 0 else 0):
                return grown
            if not self._purge_oldest(space, wall):
                raise store_full(sessions, space.bytes + more, self._bounds)

    def _full(self, sessions: int, size: int) -> bool:
        bounds = self._bounds
        return (bounds.max_sessions is not None and sessions > bounds.max_sessions) or (
            bounds.max_bytes is not None and size > bounds.max_bytes
        )


def _pack(value: object) -> bytes:
    # The encoder's own bytes keep the room that it grew into, half as much again; a copy has just its size.
    room = bytearray()
    _encode_into(value, room)
    return bytes(room)


def _entry(row: bytes, seq: int) -> Entry:
    return unpack_entries(row, seq)[0]


def _newest(log: _Log, before: int, page: Page) -> tuple[Entry, ...]:
    seqs = log.entries(1, before - 1)
    return page.taken(log.rows.at(seqs[::-1][: max(0, page.rows)]))
