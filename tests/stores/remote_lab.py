"""A server of a few dictionaries: the smallest `Remote`, by which the journal over servers is tried without one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from minutebook.model.bounds import StoreBounds
from minutebook.model.entries import Entry, pack_entries, unpack_entries
from minutebook.model.keys import ConversationKey
from minutebook.model.record import Header, Receipt
from minutebook.model.reservation import expired
from minutebook.ports import Page, Totals
from minutebook.stores.packed import look_of, pack_header, pack_receipt, stamp_of, unpack_header, unpack_receipt
from minutebook.stores.remote import Change, Look, Written


class _Row:
    """One conversation as bytes."""

    def __init__(self) -> None:
        self.head = b""
        self.entries: dict[int, bytes] = {}
        self.receipts: dict[str, bytes] = {}


class Rows(dict[ConversationKey, _Row]):
    """What several remotes share, as workers share a server."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class LabRemote:
    """A `Remote` in RAM. It counts its round trips."""

    durable = False

    def __init__(self, clock: Callable[[], int], rows: Rows | None = None) -> None:
        self.clock = clock
        self.rows = Rows() if rows is None else rows
        self.trips = 0

    async def look(self, key: ConversationKey, *, receipt: str = "") -> Look:
        with self._trip():
            return self._look(key, receipt)

    async def write(self, key: ConversationKey, change: Change, bounds: StoreBounds, *, tail: Page | None) -> Written:
        with self._trip():
            id_ = change.receipt.idempotency if change.receipt else ""
            look = self._look(key, id_)
            if look.stamp != change.expected or look.receipt or abs(look.now - change.wall) > change.drift:
                return Written(refused="stale", look=look)
            count, size = self._size(key.namespace)
            count, size = count + (not change.expected), size + change.grown
            if (not change.expected and _over(count, bounds.max_sessions)) or (
                change.grown > 0 and _over(size, bounds.max_bytes)
            ):
                return Written(refused="full", look=look, conversations=count, bytes=size)
            before = self._entries(key, 1, 2**62, newest_first=True)[: tail.rows] if tail else []
            if change.header is None:
                self.rows.pop(key, None)
            else:
                self._put(self.rows.setdefault(key, _Row()), change, change.header)
            return Written(look=self._look(key, ""), tail=tuple(before))

    def _put(self, row: _Row, change: Change, header: Header) -> None:
        row.head = pack_header(header)
        for seq in [seq for seq in row.entries if seq <= change.cut]:
            del row.entries[seq]
        row.entries.update((entry.seq, pack_entries((entry,))) for entry in change.entries)
        row.receipts.update((each.idempotency, pack_receipt(each)) for each in change.earlier)
        if change.receipt:
            row.receipts[change.receipt.idempotency] = pack_receipt(change.receipt)

    async def page(
        self, key: ConversationKey, first: int, last: int, page: Page, *, newest_first: bool
    ) -> tuple[Look, Sequence[Entry]]:
        with self._trip():
            return self._look(key, ""), self._entries(key, first, last, newest_first=newest_first)[: page.rows]

    async def receipts(self, key: ConversationKey, after: int, rows: int) -> tuple[Look, Sequence[Receipt]]:
        with self._trip():
            found = map(unpack_receipt, self.rows[key].receipts.values() if key in self.rows else ())
            above = sorted((each for each in found if each.version > after), key=lambda receipt: receipt.version)
            return self._look(key, ""), above[:rows]

    async def names(self, namespace: str, after: str, rows: int, ttl_ms: int | None) -> Sequence[tuple[str, Header]]:
        with self._trip():
            now = self.clock()
            looks = sorted((name, look) for name, look in self._all(namespace).items() if name > after)
            return [(name, header) for name, header in looks if not expired(header, ttl_ms, now)][:rows]

    async def stale(self, namespace: str, ttl_ms: int, rows: int) -> Sequence[tuple[str, Look]]:
        with self._trip():
            now = self.clock()
            due = [
                (header.touched, name)
                for name, header in self._all(namespace).items()
                if expired(header, ttl_ms, now) or (header.touched > now and not header.token)
            ]
            return [(name, self._look(ConversationKey(namespace, name), "")) for _, name in sorted(due)[:rows]]

    async def totals(self, namespace: str, ttl_ms: int | None) -> Totals:
        with self._trip():
            headers = list(self._all(namespace).values())
            live = [header for header in headers if not expired(header, ttl_ms, self.clock())]
            return Totals(
                conversations=len(live),
                bytes=sum(header.bytes for header in live),
                reserved=sum(bool(header.token) for header in live),
                expired=len(headers) - len(live),
            )

    async def close(self) -> None:
        return None

    def _trip(self) -> Any:
        self.trips += 1
        return self.rows.lock

    def _look(self, key: ConversationKey, receipt: str) -> Look:
        row = self.rows.get(key)
        if row is None:
            return Look(now=self.clock())
        return look_of(self.clock(), row.head, stamp_of(row.head), row.receipts.get(receipt))

    def _entries(self, key: ConversationKey, first: int, last: int, *, newest_first: bool) -> list[Entry]:
        held = self.rows[key].entries if key in self.rows else {}
        seqs = sorted((seq for seq in held if first <= seq <= last), reverse=newest_first)
        return [unpack_entries(held[seq], seq)[0] for seq in seqs]

    def _all(self, namespace: str) -> dict[str, Header]:
        return {key.id: unpack_header(row.head) for key, row in self.rows.items() if key.namespace == namespace}

    def _size(self, namespace: str) -> tuple[int, int]:
        headers = self._all(namespace).values()
        return len(headers), sum(header.bytes for header in headers)


def _over(value: int, bound: int | None) -> bool:
    return bound is not None and value > bound
