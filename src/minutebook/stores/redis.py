"""
A Redis or Valkey server, or a cluster of them, as a `Remote`: one script for each method (SPEC B2, D21 to D24).

Where keys live. A namespace has *buckets*, and all keys of a bucket are in one slot, so one node decides about it
alone. One bucket is enough for a single server, and for bounds: only where all conversations are counted in one place
can nobody go beyond them. In a cluster a namespace without bounds has 64, spread over the nodes by what their
conversations are called. How many it has is written into its buckets by the first write and never changes.

How keys are called: `minutebook:{<64 hex digits>}` and a letter, the digits being the SHA-256 of the namespace and the
bucket's number, and for a conversation's log those of its id behind them. Nobody's braces, line breaks or separators
get into a key, every part of one has its length, and the names themselves are kept inside (promise I-32).
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import struct
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, Literal

from minutebook.errors import (
    DecisionHistoryCorrupt,
    DecisionHistorySchemaUnsupported,
    DecisionHistoryStorageFailed,
    InvalidOption,
)
from minutebook.model.entries import damaged, pack_entries, unpack_entries
from minutebook.model.keys import ConversationKey
from minutebook.ports import Totals
from minutebook.stores import redis_scripts as lua
from minutebook.stores.packed import (
    STAMP_BYTES,
    look_of,
    pack_header,
    pack_receipt,
    read_header,
    stamp_of,
    unpack_id,
    unpack_receipt,
)
from minutebook.stores.redis_wire import Wire, foreign
from minutebook.stores.remote import Look, Written
from minutebook.stores.streams import named_in_listing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from minutebook.model.bounds import StoreBounds
    from minutebook.model.entries import Entry
    from minutebook.model.record import Header, Receipt
    from minutebook.ports import Page
    from minutebook.stores.redis_address import Address
    from minutebook.stores.redis_scripts import Script
    from minutebook.stores.remote import Change

BUCKETS: Final = 64
"""How many buckets a namespace without bounds has in a cluster."""

_SIZE = struct.Struct(">Q")
_WEIGHT = struct.Struct(">QQ")
_KNOWN_NAMESPACES: Final = 4096
_SCANNED: Final = 10_000
"""How many ids one script looks at: about ten milliseconds in which its server does nothing else (promise I-31)."""
_LAST: Final = 2**53
_APART: Final = "a conversation's keys do not belong together; restore a backup"
MOST_ENTRIES: Final = 1_000_000
"""In one write, as in an import; a server reads at most 1,048,576 arguments, and closes the connection at one more."""


class RedisRemote:
    """
    One server or one cluster. It serves any number of threads or of event loops.

    Args:
        address: where it is.
        bounded: whether a namespace has bounds, for which all its conversations are counted in one place.
        blocking: whether no method ever suspends.
    """

    def __init__(self, address: Address, *, bounded: bool, blocking: bool) -> None:
        """Connect nothing yet: the first call does, and is refused where the server is not fit."""
        self._wire = Wire(address, blocking=blocking)
        self._bounded = bounded
        self._buckets: OrderedDict[str, int] = OrderedDict()
        self._sweeps = itertools.count()

    @property
    def durable(self) -> bool:
        """Whether the servers that were met say `appendonly yes` and `appendfsync always`; `False` before the first."""
        return self._wire.durable

    async def look(self, key: ConversationKey, *, receipt: str = "") -> Look:
        """See `Remote.look`."""
        now, head, found, damaged = await self._ask(lua.LOOK, key, receipt)
        return _look(now, head, found, damaged=bool(damaged))

    async def write(self, key: ConversationKey, change: Change, bounds: StoreBounds, *, tail: Page | None) -> Written:
        """See `Remote.write`."""
        if len(change.entries) > MOST_ENTRIES:
            raise DecisionHistoryStorageFailed(
                f"{len(change.entries):,} entries in one write; a server takes {MOST_ENTRIES:,}; nothing was written",
                problem="too_large",
            )
        if change.entries and change.entries[-1].seq > _LAST:
            raise DecisionHistoryStorageFailed(
                f"an entry of the number {change.entries[-1].seq:,}; a server counts to {_LAST:,}; nothing was written",
                problem="too_large",
            )
        # A server without memory still takes what grows nothing: marks, releases, deletions.
        grows = change.header is not None and (change.grown > 0 or not change.expected)
        script = lua.WRITE if grows else lua.WRITE_WITHIN
        packed = pack_header(change.header) if change.header is not None else b""
        answer = await self._ask(script, key, *_written(change, packed, bounds, tail), writes=True)
        return _outcome(answer, change.header, packed)

    async def page(
        self, key: ConversationKey, first: int, last: int, page: Page, *, newest_first: bool
    ) -> tuple[Look, Sequence[Entry]]:
        """See `Remote.page`."""
        wanted = (first, min(last, _LAST), int(newest_first), page.rows, page.messages, page.size)
        now, head, start, rows = await self._ask(lua.PAGE, key, *wanted)
        return _look(now, head), _entries(rows, start, -1 if newest_first else 1)

    async def receipts(self, key: ConversationKey, after: int, rows: int) -> tuple[Look, Sequence[Receipt]]:
        """See `Remote.receipts`."""
        now, head, found = await self._ask(lua.RECEIPTS, key, after, rows)
        return _look(now, head), [unpack_receipt(receipt) for receipt in found]

    async def names(self, namespace: str, after: str, rows: int, ttl_ms: int | None) -> Sequence[tuple[str, Header]]:
        """See `Remote.names`. With 64 buckets they are asked one after the other, so that is not one moment."""
        buckets = await self._laid_out(namespace, guess=False)
        share = rows if buckets == 1 else rows // buckets * 2 + 4
        streams = [_Stream(self, (namespace, buckets, bucket), after, share, ttl_ms) for bucket in range(buckets)]
        heads = [(name, number) for number, stream in enumerate(streams) if (name := await stream.name()) is not None]
        heapq.heapify(heads)
        found: list[tuple[str, Header]] = []
        while heads and len(found) < rows:
            name, number = heads[0]
            with named_in_listing(ConversationKey(namespace, name), len(found)):
                stamp, packed = _parts(streams[number].pop())
                found.append((name, read_header(packed, stamp)))
            following = await streams[number].name()
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (following, number))
        return found

    async def stale(self, namespace: str, ttl_ms: int, rows: int) -> Sequence[tuple[str, Look]]:
        """See `Remote.stale`. With 64 buckets it asks one after the other until it has enough, and each time others."""
        buckets = await self._laid_out(namespace, guess=False)
        found: list[tuple[str, Look]] = []
        begun = next(self._sweeps)
        for bucket in range(begun, begun + buckets):
            place = (namespace, buckets, bucket % buckets)
            now, gone, ids = await self._run(lua.STALE, place, ttl_ms, rows - len(found))
            looks = [(unpack_id(name), _look(now, head, damaged=not head)) for name, head in _pairs(ids)]
            found += [(name, look) for number, (name, look) in enumerate(looks) if number < gone or not look.damage]
            if len(found) >= rows:
                break
        return found

    async def totals(self, namespace: str, ttl_ms: int | None) -> Totals:
        """See `Remote.totals`. Linear in the expired conversations, in slices."""
        buckets = await self._laid_out(namespace, guess=False)
        sums = [0, 0, 0, 0, 0]
        for bucket in range(buckets):
            for number, counted in enumerate(await self._counted((namespace, buckets, bucket), ttl_ms)):
                sums[number] += counted
        conversations, size, reserved, gone, gone_size = sums
        return Totals(conversations=conversations - gone, bytes=size - gone_size, reserved=reserved, expired=gone)

    async def close(self) -> None:
        """See `Remote.close`."""
        await self._wire.close()

    # --- the parts ---------------------------------------------------------------------------------------------------

    async def _counted(self, place: tuple[str, int, int], ttl_ms: int | None) -> tuple[int, int, int, int, int]:
        """Return a bucket's conversations, their bytes, how many are reserved, how many expired and those's bytes."""
        seen = expired_bytes = 0
        while True:
            count, size, reserved, gone, more, ids = (
                await self._run(lua.TOTALS, place, "" if ttl_ms is None else ttl_ms, seen, _SCANNED)
            )[1:]
            seen += ids
            expired_bytes += more
            if seen >= gone or not ids:
                return count, size, reserved, gone, expired_bytes

    async def _ask(self, script: Script, key: ConversationKey, *arguments: object, writes: bool = False) -> list[Any]:
        """Run a script on one conversation and return the server's time and what it says."""
        while True:
            buckets = await self._laid_out(key.namespace, writes=writes)
            place = (key.namespace, buckets, _bucket(key.id, buckets))
            answer = await self._run(script, place, key.id.encode(), *arguments, log=key.id, told=True)
            if answer[0] != b"layout":
                return answer if writes else answer[1:]
            self._note(key.namespace, answer[2])

    async def _run(
        self, script: Script, place: tuple[str, int, int], *arguments: object, log: str = "", told: bool = False
    ) -> list[Any]:
        """Run a script in a bucket; with `told` its word comes first, and is none that this refuses."""
        namespace, buckets, bucket = place
        tag = b"minutebook:{%s}" % hashlib.sha256(b"%d\n%s" % (bucket, namespace.encode())).hexdigest().encode()
        keys = [tag + letter for letter in (b"m", b"h", b"i", b"f")]
        if log:
            keys.append(tag + b"c" + hashlib.sha256(log.encode()).hexdigest().encode())
        answer = await self._wire.run(script, keys[: script.keys], (buckets, *arguments))
        word = answer[0]
        if word == b"layout" and not told:
            self._note(namespace, answer[2])
            raise DecisionHistoryStorageFailed("the namespace was laid out anew meanwhile; repeat", problem="layout")
        if word == b"foreign":
            raise foreign()
        if word == b"schema":
            raise DecisionHistorySchemaUnsupported(
                f"the namespace was written in schema {answer[2]}, this library knows {lua.SCHEMA}; nothing was changed"
            )
        if word == b"damaged":
            raise DecisionHistoryCorrupt(_APART)
        return answer if told else answer[1:]

    async def _laid_out(self, namespace: str, *, writes: bool = False, guess: bool = True) -> int:
        """Return how many buckets a namespace has: as many as it was given, or as this store would give it."""
        buckets = self._buckets.get(namespace, 0)
        if buckets:
            return buckets
        chosen = BUCKETS if self._wire.cluster and not self._bounded else 1
        if chosen == 1 and guess:
            return 1  # a conversation's script says so if there are more
        # What only reads lays nothing out: names that nobody writes to cost nothing.
        script = lua.LAYOUT if writes else lua.LAYOUT_SEEN
        (found,) = (await self._run(script, (namespace, chosen, 0), int(writes)))[1:]
        if found:
            self._note(namespace, found)
        return found or chosen

    def _note(self, namespace: str, buckets: int) -> None:
        """Remember how many buckets a namespace has, if this store can go on with so many."""
        if buckets not in (1, BUCKETS):
            raise DecisionHistoryCorrupt("a namespace's layout is not what was written; restore a backup")
        if buckets != 1 and self._bounded:
            raise InvalidOption(
                f"the namespace was begun without bounds and is spread over {buckets} buckets, where conversations "
                "cannot be counted together; open it without max_sessions and max_bytes, or copy it to another one",
                option="max_sessions",
            )
        self._buckets[namespace] = buckets
        while len(self._buckets) > _KNOWN_NAMESPACES:
            self._buckets.popitem(last=False)


class _Stream:
    """The conversations of one bucket above an id, in order, a share at a time."""

    def __init__(
        self, remote: RedisRemote, place: tuple[str, int, int], after: str, share: int, ttl_ms: int | None
    ) -> None:
        self._remote = remote
        self._place = place
        self._after = after.encode()
        self._share = share
        self._ttl: object = "" if ttl_ms is None else ttl_ms
        self._ready: list[tuple[bytes, bytes]] = []
        self._ended = False

    async def name(self) -> str | None:
        """Return the next id, or `None` behind the last."""
        while not self._ready and not self._ended:
            answer = await self._remote._run(  # pyright: ignore[reportPrivateUsage]
                lua.NAMES, self._place, self._after, self._share, self._ttl, _SCANNED
            )
            _, self._ended, self._after, found = answer
            self._ready = [*_pairs(found)][::-1]
        return unpack_id(self._ready[-1][0]) if self._ready else None

    def pop(self) -> bytes:
        """Return the header of the id that `name` told, and go on behind it."""
        return self._ready.pop()[1]


def _bucket(name: str, buckets: int) -> int:
    return 0 if buckets == 1 else int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % buckets


def _written(change: Change, packed: bytes, bounds: StoreBounds, tail: Page | None) -> Iterable[object]:
    """Return a change as what the script is given behind the conversation's id, in its order."""
    header, receipt = change.header, change.receipt
    yield change.expected
    yield change.wall
    yield _SIZE.pack(header.bytes) + stamp_of(packed) + packed if header is not None else b""
    yield "" if header is None or header.token else header.touched
    yield "" if change.damaged else change.grown
    yield bounds.max_sessions or ""
    yield bounds.max_bytes or ""
    yield receipt.idempotency.encode() if receipt else b""
    yield receipt.version if receipt else ""
    yield pack_receipt(receipt) if receipt else b""
    yield change.entries[0].seq - 1 if change.entries else 0
    yield header.cut.seq if header is not None else 0
    yield from (tail.rows, tail.messages, tail.size) if tail is not None else (0, 0, 0)
    yield change.drift
    yield header.entries if header is not None else 0
    yield len(change.earlier)
    for earlier in change.earlier:
        yield from (earlier.idempotency.encode(), earlier.version, pack_receipt(earlier))
    for entry in change.entries:
        yield _WEIGHT.pack(entry.messages, entry.size) + pack_entries((entry,))


def _outcome(answer: list[Any], header: Header | None, packed: bytes) -> Written:
    """Return what became of a change to `header`, which is `packed` where it is one."""
    word, now, *said = answer
    if word == b"ok":
        newest, tail = said
        look = Look(now=now, header=header, stamp=stamp_of(packed) if packed else b"")
        return Written(look=look, tail=tuple(_entries(tail, newest, -1)))
    refused: Literal["stale", "full"] = "stale" if word == b"stale" else "full"
    if refused == "stale":
        return Written(refused=refused, look=_look(now, *said))
    head, conversations, size = said
    return Written(refused=refused, look=_look(now, head), conversations=conversations, bytes=size)


def _look(now: int, head: bytes, receipt: bytes = b"", *, damaged: bool = False) -> Look:
    stamp, packed = _parts(head)
    if damaged:
        return Look(now=now, stamp=stamp, damage=_APART)
    return look_of(now, packed if head else None, stamp, receipt)


def _parts(head: bytes) -> tuple[bytes, bytes]:
    """Return the stamp and the packed header of a bucket's entry; less than there should be where it is damaged."""
    return head[_SIZE.size : _SIZE.size + STAMP_BYTES], head[_SIZE.size + STAMP_BYTES :]


def _entries(rows: Sequence[bytes], start: int, step: int) -> list[Entry]:
    found: list[Entry] = []
    for number, row in enumerate(rows):
        seq = start + step * number
        if not row:
            raise damaged(seq, "is missing")
        found += unpack_entries(row[_WEIGHT.size :], seq)
    return found


def _pairs(flat: Sequence[bytes]) -> Iterable[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)
