"""
A Redis or Valkey server, or a cluster of them, as a `Remote`: one script for each method (SPEC B2, D21 to D24).

Where keys live. A namespace has *buckets*, and all keys of a bucket are in one slot, so one node decides about it
alone. One bucket is enough for a single server, and for bounds: only where all conversations are counted in one place
can nobody go beyond them. In a cluster a namespace without bounds has 64, spread over the nodes by what their
conversations are called. How many it has is written into its buckets by the first write and never changes. Who finds
nothing where he knew of buckets asks the first one once more: a cluster that was emptied is begun anew by everybody.

How keys are called: `minutebook:{<64 hex digits>}` and a letter, the digits being the SHA-256 of the namespace and the
bucket's number, and for a conversation's log those of its id behind them. Nobody's braces, line breaks or separators
get into a key, every part of one has its length, and the names themselves are kept inside (promise I-32).
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import itertools
import os
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from minutebook.errors import (
    DecisionHistoryCorrupt,
    DecisionHistorySchemaUnsupported,
    DecisionHistoryStorageFailed,
    DecisionHistoryStorageLocked,
    InvalidOption,
    MinutebookError,
)
from minutebook.model.keys import ConversationKey
from minutebook.ports import Totals
from minutebook.stores import redis_scripts as lua
from minutebook.stores.packed import (
    pack_header,
    read_header,
    unpack_id,
    unpack_receipt,
)
from minutebook.stores.redis_payloads import (
    APART,
    SLICE,
    Slice,
    head_parts,
    outcome_of,
    paged_as,
    pairs_of,
    read_entries,
    read_look,
    slices_of,
    written_as,
)
from minutebook.stores.redis_refusals import foreign
from minutebook.stores.redis_wire import Wire
from minutebook.stores.remote import Look, Written
from minutebook.stores.streams import named_in_listing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from minutebook.model.bounds import StoreBounds
    from minutebook.model.entries import Entry
    from minutebook.model.record import Header, Receipt
    from minutebook.ports import Page
    from minutebook.stores.redis_address import Address
    from minutebook.stores.redis_scripts import Script
    from minutebook.stores.remote import Change

BUCKETS: Final = 64
"""How many buckets a namespace without bounds has in a cluster."""

_KNOWN_NAMESPACES: Final = 4096
_SCANNED: Final = 10_000
"""How many ids one script looks at: about ten milliseconds in which its server does nothing else (promise I-31)."""
_LAYOUTS: Final = 8
_LAST: Final = 2**53


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
        """Whether the servers said, when they were last looked at, that they sync each write; `False` before that."""
        return self._wire.durable

    async def look(self, key: ConversationKey, *, receipt: str = "") -> Look:
        """See `Remote.look`."""
        now, head, found, damaged = await self._read(lua.LOOK, key, name=receipt.encode())
        look = read_look(now, head, found, damaged=bool(damaged))
        if look.receipt is not None and look.receipt.idempotency != receipt:
            raise DecisionHistoryCorrupt(APART)
        return look

    async def write(self, key: ConversationKey, change: Change, bounds: StoreBounds, *, tail: Page | None) -> Written:
        """See `Remote.write`. One of more than a slice is staged first; its last slice goes with the write itself."""
        if change.entries and change.entries[-1].seq > _LAST:
            raise DecisionHistoryStorageFailed(
                f"an entry of the number {change.entries[-1].seq:,}; a server counts to {_LAST:,}; nothing was written",
                problem="too_large",
            )
        # A server without memory still takes what grows nothing: marks, releases, deletions.
        grows = change.header is not None and (change.grown > 0 or not change.expected)
        script = lua.WRITE if grows else lua.WRITE_WITHIN
        packed = pack_header(change.header) if change.header is not None else b""
        given = written_as(change, packed, bounds, tail)
        slices = slices_of(change)
        part, *following = itertools.islice(slices, 2)
        if not following:
            answer = await self._change(script, key, given | part.given, part.rest)
        else:
            answer = await self._staged(script, key, given, itertools.chain((part, *following), slices))
        return outcome_of(answer, change.header, packed)

    async def _staged(
        self, script: Script, key: ConversationKey, change: dict[str, object], slices: Iterator[Slice]
    ) -> list[Any]:
        """
        Write in slices, the last one with the change itself; a reader sees nothing of it before.

        Raises:
            DecisionHistoryStorageLocked: another worker began to do the same, or slices were lost; nothing was written.
        """
        given, part = change, next(slices)
        try:
            for following in slices:
                given = {**given, "becomes": os.urandom(16)}
                answer = await self._change(lua.STAGE, key, given | part.given, part.rest)
                if answer[0] != b"ok":
                    break
                given, part = {**given, "stager": given["becomes"]}, following
            else:
                answer = await self._change(script, key, given | part.given, part.rest)
        except MinutebookError as failed:
            if failed.facts.get("problem") != "connection":
                await self._unstage(key, given)
            raise
        if answer[0] == b"taken":
            raise DecisionHistoryStorageLocked(
                "the slices of this large write are not there any more: another worker began one, or a replica took "
                "over; nothing was written; repeat it"
            )
        if answer[0] != b"ok":
            await self._unstage(key, given)
        return answer

    async def _unstage(self, key: ConversationKey, given: Mapping[str, object]) -> None:
        """Take back what was staged, if the server can be asked; else it goes by itself."""
        with contextlib.suppress(MinutebookError):
            await self._change(lua.UNSTAGE, key, given)

    async def page(
        self, key: ConversationKey, first: int, last: int, page: Page, *, newest_first: bool
    ) -> tuple[Look, Sequence[Entry]]:
        """See `Remote.page`."""
        wanted = {"first": first, "last": min(last, _LAST), "newest_first": int(newest_first), **paged_as(page)}
        now, head, start, rows = await self._read(lua.PAGE, key, **wanted)
        return read_look(now, head), read_entries(rows, start, -1 if newest_first else 1)

    async def receipts(self, key: ConversationKey, after: int, rows: int) -> tuple[Look, Sequence[Receipt]]:
        """See `Remote.receipts`."""
        now, head, found = await self._read(lua.RECEIPTS, key, after=after, rows=rows)
        return read_look(now, head), [unpack_receipt(receipt) for receipt in found]

    async def names(self, namespace: str, after: str, rows: int, ttl_ms: int | None) -> Sequence[tuple[str, Header]]:
        """See `Remote.names`. With 64 buckets they are asked one after the other, so that is not one moment."""
        buckets = await self._laid_out(namespace, guess=False)
        share = rows if buckets == 1 else rows // buckets * 2 + 4
        wanted = {"rows": share, "ttl": "" if ttl_ms is None else ttl_ms, "scanned": _SCANNED}
        streams = [
            _Stream(partial(self._above, (namespace, buckets, bucket), wanted), after) for bucket in range(buckets)
        ]
        heads = [(name, number) for number, stream in enumerate(streams) if (name := await stream.name()) is not None]
        heapq.heapify(heads)
        found: list[tuple[str, Header]] = []
        while heads and len(found) < rows:
            name, number = heads[0]
            with named_in_listing(ConversationKey(namespace, name), len(found)):
                stamp, packed = head_parts(streams[number].pop())
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
            found += await self._due((namespace, buckets, bucket % buckets), ttl_ms, rows - len(found))
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
        return Totals(
            conversations=max(conversations - gone, 0), bytes=size - gone_size, reserved=max(reserved, 0), expired=gone
        )

    async def close(self) -> None:
        """See `Remote.close`."""
        await self._wire.close()

    # --- the parts ---------------------------------------------------------------------------------------------------

    async def _above(self, place: tuple[str, int, int], wanted: Mapping[str, object], after: bytes) -> list[Any]:
        """Return a bucket's next share of ids and headers, after which id it ends, and whether that is the last."""
        return await self._run(lua.NAMES, place, {**wanted, "after": after})

    async def _due(self, place: tuple[str, int, int], ttl_ms: int, rows: int) -> list[tuple[str, Look]]:
        """
        Return up to `rows` of a bucket's conversations to be seen to; see `stale`.

        What is no id names no conversation that could be removed. It stands there for good, so what comes behind it is
        looked at as well, by more at a time.
        """
        found: list[tuple[str, Look]] = []
        seen, share = 0, rows
        while True:
            now, gone, ids = await self._run(lua.STALE, place, {"ttl": ttl_ms, "rows": share, "seen": seen})
            for number, (name, head) in enumerate(pairs_of(ids)):
                look = read_look(now, head, damaged=not head)
                with contextlib.suppress(DecisionHistoryCorrupt):
                    if number < gone or not look.damage:
                        found.append((unpack_id(name), look))
            if len(found) >= rows or len(ids) < 2 * share:
                return found[:rows]
            seen, share = seen + share, min(4 * share, SLICE)

    async def _counted(self, place: tuple[str, int, int], ttl_ms: int | None) -> tuple[int, int, int, int, int]:
        """
        Return a bucket's conversations, their bytes, how many are reserved, how many expired, and bytes of these.

        What stands among the unreserved and is no conversation is found once it has expired. Before that there may
        seem to be too few that are reserved, none at the least.
        """
        seen = expired_bytes = strays = 0
        while True:
            wanted = {"ttl": "" if ttl_ms is None else ttl_ms, "seen": seen, "scanned": _SCANNED}
            count, size, reserved, gone, more, astray, ids = (await self._run(lua.TOTALS, place, wanted))[1:]
            seen += ids
            expired_bytes += more
            strays += astray
            if seen >= gone or not ids:
                return count, size, reserved + strays, gone - strays, expired_bytes

    async def _read(self, script: Script, key: ConversationKey, **given: object) -> list[Any]:
        """Run a script that reads one conversation, and return the server's time and what it says."""
        return (await self._ask(script, key, given))[1:]

    async def _change(
        self, script: Script, key: ConversationKey, given: Mapping[str, object], rest: Iterable[object] = ()
    ) -> list[Any]:
        """Run a script that changes one conversation, and return its word, the server's time and what it says."""
        return await self._ask(script, key, given, rest, writes=True)

    async def _ask(
        self,
        script: Script,
        key: ConversationKey,
        given: Mapping[str, object],
        rest: Iterable[object] = (),
        *,
        writes: bool = False,
    ) -> list[Any]:
        begins = key.namespace not in self._buckets
        for _ in range(_LAYOUTS):
            buckets = await self._laid_out(key.namespace, writes=writes)
            place = (key.namespace, buckets, _bucket(key.id, buckets))
            named = {"id": key.id.encode(), "begins": int(begins), **given}
            answer = await self._run(script, place, named, rest, log=key.id, told=True)
            if answer[0] == b"unlaid":
                self._buckets.pop(key.namespace, None)
                begins = True  # or it is another layout by now
            elif answer[0] == b"layout":
                self._note(key.namespace, answer[2])
            else:
                return answer
        raise _relaid()

    async def _run(
        self,
        script: Script,
        place: tuple[str, int, int],
        given: Mapping[str, object],
        rest: Iterable[object] = (),
        *,
        log: str = "",
        told: bool = False,
    ) -> list[Any]:
        """Run a script in a bucket; with `told` its word comes first, and is none that this refuses."""
        namespace, buckets, bucket = place
        tag = b"minutebook:{%s}" % hashlib.sha256(b"%d\n%s" % (bucket, namespace.encode())).hexdigest().encode()
        keys = [tag + letter for letter in (b"m", b"h", b"i", b"f")]
        if log:
            keys.append(tag + b"c" + hashlib.sha256(log.encode()).hexdigest().encode())
        answer = await self._wire.run(script, keys[: script.keys], script.arguments(buckets, given, rest))
        word = answer[0]
        if word == b"layout" and not told:
            self._note(namespace, answer[2])
            raise _relaid()
        if word == b"foreign":
            raise foreign()
        if word == b"schema":
            raise DecisionHistorySchemaUnsupported(
                f"the namespace was written in schema {answer[2]}, this library knows {lua.SCHEMA}; nothing was changed"
            )
        if word == b"damaged":
            raise DecisionHistoryCorrupt(APART)
        return answer if told else answer[1:]

    async def _laid_out(self, namespace: str, *, writes: bool = False, guess: bool = True) -> int:
        """Return how many buckets a namespace has: as many as it was given, or as this store would give it."""
        buckets = self._buckets.get(namespace, 0)
        if buckets:
            return buckets
        # What only reads lays nothing out: names that nobody writes to cost nothing.
        if writes and self._wire.cluster:
            return await self._lay_out(namespace)
        chosen = BUCKETS if self._wire.cluster and not self._bounded else 1
        if chosen == 1 and guess:
            return 1  # a conversation's script says so if there are more
        found = await self._layout(lua.LAYOUT_SEEN, (namespace, chosen, 0))
        if found:
            self._note(namespace, found)
        return found or chosen

    async def _lay_out(self, namespace: str) -> int:
        """
        Return how many buckets a namespace of a cluster has by its first one, which is told now where it did not say.

        The first one's node may have lost that, so with bounds every bucket is looked at before the namespace counts as
        new: what others hold in the rest of them would never be found again beside a new layout.
        """
        found = 0
        if self._bounded:
            for bucket in range(BUCKETS):
                found = found or await self._layout(lua.LAYOUT_SEEN, (namespace, 1, bucket))
            found = found or 1  # the write itself notes it
        else:
            found = await self._layout(lua.LAYOUT, (namespace, BUCKETS, 0))
        self._note(namespace, found)
        return found

    async def _layout(self, script: Script, place: tuple[str, int, int]) -> int:
        """Return how many buckets a bucket says that there are; 0 where it says nothing."""
        (found,) = (await self._run(script, place, {"makes": int(script is lua.LAYOUT)}))[1:]
        return int(found)

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
    """
    The conversations of one bucket above an id, in order, a share at a time.

    Args:
        ask: returns the share above `after`.
    """

    def __init__(self, ask: Callable[[bytes], Awaitable[list[Any]]], after: str) -> None:
        self._ask = ask
        self._after = after.encode()
        self._ready: list[tuple[bytes, bytes]] = []
        self._ended = False

    async def name(self) -> str | None:
        """Return the next id, or `None` behind the last."""
        while not self._ready and not self._ended:
            _, self._ended, self._after, found = await self._ask(self._after)
            self._ready = [*pairs_of(found)][::-1]
        return unpack_id(self._ready[-1][0]) if self._ready else None

    def pop(self) -> bytes:
        """Return the header of the id that `name` told, and go on behind it."""
        return self._ready.pop()[1]


def _bucket(name: str, buckets: int) -> int:
    return 0 if buckets == 1 else int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % buckets


def _relaid() -> DecisionHistoryStorageFailed:
    return DecisionHistoryStorageFailed(
        "the namespace was laid out anew meanwhile; nothing was written; repeat", problem="layout"
    )
