"""
The journal of every server that several hosts share: the model's law over conditional writes (SPEC B2, D22).

A worker decides here, in Python, what a conversation becomes, and the server writes it if the conversation still is
what the worker thinks. So a journal remembers the headers that it wrote or read last (`remote_memory`): whoever holds a
reservation, or comes back to a conversation that nobody else went on with, needs one round trip. Where the header was
another one by now, the server sends it with its refusal, and the worker decides anew: each such turn means that
somebody else got on. Nothing is refused on the strength of what is only remembered. A change that is large is made on a
fresh look, one round trip more, so that it is sent once.

Time is the server's: a worker's wall clock may say what it likes (promise I-30).

A server that knows less of a conversation than this journal saw of it has lost what it acknowledged, as a standby does
that was promoted too early. That is refused by name (promise I-15), also where somebody has written on meanwhile: a
version that is not this journal's own has to go on from the one it saw last, by the receipt of that. What cannot be
told apart is a loss of the whole conversation and a deletion, since neither leaves anything behind, nor one that was
begun anew after either. A receipt that somebody kept finds these too.
"""

from __future__ import annotations

import contextlib
import os
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from minutebook.errors import (
    DecisionHistoryAbsent,
    DecisionHistoryCorrupt,
    DecisionHistoryRegressed,
    DecisionHistoryStorageLocked,
    InvalidOption,
    MinutebookError,
    StoreClosed,
)
from minutebook.model.bounds import MAX_COUNT, StoreBounds
from minutebook.model.cuts import leaving
from minutebook.model.entries import damaged
from minutebook.model.keys import ConversationKey, check_id
from minutebook.model.law import extend
from minutebook.model.record import Delta, Header, Receipt, new_header, replayed
from minutebook.model.reservation import check_idle, check_owner, expired, free, is_blank, recover, store_full, take
from minutebook.model.shown import type_alone
from minutebook.ports import STREAM_PAGE, Committed, Listing, Reserved, Totals
from minutebook.stores.remote import LARGE_BYTES, Change, Look, Written, drift_of, weight_of
from minutebook.stores.remote_memory import Mark, RemoteMemory, is_overtaken, monotonic_ms, regressed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from minutebook.model.entries import Entry
    from minutebook.model.record import Extension
    from minutebook.ports import Page
    from minutebook.stores.remote import Remote

T = TypeVar("T")

PURGED_PER_WRITE: Final = 8
"""How many expired conversations a write removes beside the one it is about (promise I-31)."""

_TRIES: Final = 64
_LATE_TRIES: Final = 3
_KNOWN_NAMESPACES: Final = 1024
_PURGE_MS: Final = 65_536


class _Step(msgspec.Struct, frozen=True, kw_only=True):
    """What a method decided on one look."""

    change: Change | None = None
    header: Header | None = None
    """The header afterwards, as the caller is told."""
    extension: Extension | None = None
    receipt: Receipt | None = None
    tail: Page | None = None

    __repr__ = type_alone


class RemoteJournal:
    """
    A journal over a server. It serves any number of threads or tasks, as its remote does.

    Args:
        remote: the server.
        bounds: of each namespace; without them nothing is refused and nothing expires.
        ticks: gives milliseconds that only go on; what time has passed since the server told its own.
    """

    def __init__(
        self, remote: Remote, bounds: StoreBounds | None = None, *, ticks: Callable[[], int] = monotonic_ms
    ) -> None:
        self._remote = remote
        self._bounds = bounds or StoreBounds()
        self.ttl_ms = self._bounds.ttl_ms
        self._memory = RemoteMemory(ticks)
        self._purges: dict[str, tuple[int, int]] = {}
        self._process = os.getpid()
        self._closed = False

    @property
    def durable(self) -> bool:
        """Whether a commit that returned survives a power cut, as far as the server's settings say."""
        return self._remote.durable

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

        async def decide(look: Look) -> _Step | None:
            held = take(_sound(look).header or new_header(key, format, look.now), token, format, look.now)
            step = await self._grow(key, look, held, opening, release=release)
            if step is None or step.header is None or step.header.version == known or tail is None or tail.rows <= 0:
                return step
            return msgspec.structs.replace(step, tail=tail)

        id_ = opening.idempotency if opening is not None else ""
        step, written = await self._change(key, decide, id_, guess=True, fresh=_is_large(opening))
        assert step.header is not None
        added = step.extension.entries if step.extension else ()
        return Reserved(
            header=step.header,
            tail=_newest((*reversed(added), *written.tail), step.header, MAX_COUNT, step.tail) if step.tail else (),
            written=added,
            receipt=step.receipt,
        )

    async def commit(
        self, key: ConversationKey, token: str, epoch: int, delta: Delta, *, release: bool = False
    ) -> Committed:
        """See `Journal.commit`."""
        check_id(delta.idempotency, "idempotency id")

        async def decide(look: Look) -> _Step | None:
            held = check_owner(_sound(look).header, token, epoch)
            return await self._grow(key, look, held, delta, release=release)

        step, _ = await self._change(key, decide, delta.idempotency, fresh=_is_large(delta))
        assert step.header is not None
        assert step.receipt is not None
        added = step.extension.entries if step.extension else ()
        return Committed(header=step.header, written=added, receipt=step.receipt)

    async def recover(self, key: ConversationKey, epoch: int | None) -> Header:
        """See `Journal.recover`."""

        async def decide(look: Look) -> _Step:
            held = _sound(look).header
            if held is None:
                raise DecisionHistoryAbsent("no such conversation to recover")
            grown = recover(held, epoch, look.now)
            return _Step(change=_change_to(look, grown.header, grown), header=grown.header, extension=grown)

        step, _ = await self._change(key, decide, fresh=True)
        assert step.header is not None
        return step.header

    async def delete(self, key: ConversationKey) -> bool:
        """See `Journal.delete`. Always `False`: what copies the server's files keep is not known here."""

        async def decide(look: Look) -> _Step:
            if look.header is not None:
                check_idle(look.header, look.now)
            elif not look.damage:  # nobody holds what cannot be read any more
                raise DecisionHistoryAbsent("no such conversation to delete")
            return _Step(change=_removal(look))

        await self._change(key, decide, fresh=True)
        return False

    async def close(self) -> None:
        """Release what the remote opened; a second call does nothing."""
        if not self._closed:
            self._closed = True
            if os.getpid() == self._process:  # in a forked child its connections are the parent's
                await self._remote.close()

    # --- reading -----------------------------------------------------------------------------------------------------

    async def header(self, key: ConversationKey) -> Header | None:
        """See `Journal.header`."""
        return (await self._read(key)).header

    async def newest(self, key: ConversationKey, before: int, page: Page) -> tuple[Entry, ...]:
        """See `Journal.newest`."""
        before = min(before, MAX_COUNT)
        if before <= 1 or page.rows <= 0:
            await self._read(key)
            return ()
        call = partial(self._remote.page, key, 1, before - 1, page, newest_first=True)
        look, entries = await self._paged(key, call)
        return _newest(entries, look.header, before, page) if look.header is not None else ()

    async def oldest(self, key: ConversationKey, after: int, page: Page) -> tuple[Entry, ...]:
        """See `Journal.oldest`."""
        if after >= MAX_COUNT or page.rows <= 0:
            await self._read(key)
            return ()
        call = partial(self._remote.page, key, max(after, 0) + 1, MAX_COUNT, page, newest_first=False)
        look, entries = await self._paged(key, call)
        if look.header is None:
            return ()
        cut, last = look.header.cut.seq, look.header.entries
        return _taken(entries, range(max(after, cut) + 1, last + 1), page)

    async def receipts(self, key: ConversationKey, after: int, rows: int) -> tuple[Receipt, ...]:
        """See `Journal.receipts`."""
        if after >= MAX_COUNT or rows <= 0:
            await self._read(key)
            return ()
        rows = min(rows, MAX_COUNT)
        look, receipts = await self._paged(key, partial(self._remote.receipts, key, max(after, 0), rows))
        return tuple(receipts)[:rows] if look.header is not None else ()

    async def receipt(self, key: ConversationKey, idempotency: str) -> Receipt | None:
        """See `Journal.receipt`."""
        check_id(idempotency, "idempotency id")
        return (await self._read(key, idempotency)).receipt

    async def list(self, namespace: str, after: str, rows: int) -> tuple[Listing, ...]:
        """See `Journal.list`."""
        check_id(namespace, "namespace")
        self._check_open()
        if rows <= 0:
            return ()
        found = await self._remote.names(namespace, after, min(rows, MAX_COUNT), self._bounds.ttl_ms)
        return tuple(Listing(key=ConversationKey(namespace, name), header=header) for name, header in found)

    async def totals(self, namespace: str) -> Totals:
        """See `Journal.totals`."""
        check_id(namespace, "namespace")
        self._check_open()
        return await self._remote.totals(namespace, self._bounds.ttl_ms)

    # --- changes -----------------------------------------------------------------------------------------------------

    async def _change(
        self,
        key: ConversationKey,
        decide: Callable[[Look], Awaitable[_Step | None]],
        idempotency: str = "",
        *,
        guess: bool = False,
        fresh: bool = False,
    ) -> tuple[_Step, Written]:
        """
        Have what `decide` makes of a conversation written; it is asked again where another header stood there.

        With `guess` a conversation that nothing is known of is thought not to be there, which the write finds out;
        with `fresh` nothing that is remembered counts.
        """
        self._check_open()
        look = None if fresh else self._memory.recall(key, guess=guess)
        sure = False
        late = 0
        for _ in range(_TRIES):
            if look is None:
                look, sure = await self._look(key, idempotency), True
            if self._expired(look):
                removed = sure and await self._remove(key, look)
                look = Look(now=look.now) if removed else None
                continue
            try:
                step = await decide(look)
            except MinutebookError:
                if sure:
                    raise
                step = None  # what is only remembered refuses nothing
            if step is None:
                look = None
                continue
            if step.change is None:
                return step, Written(look=look)
            written = await self._write(key, step.change, step.tail)
            if not written.refused:
                await self._follow(key, step, written)
                return step, written
            if written.refused == "full":
                if not await self._make_room(key.namespace):
                    raise store_full(written.conversations, written.bytes, self._bounds)
            else:
                late += written.look.now - step.change.wall > step.change.drift
                if late == _LATE_TRIES:
                    raise DecisionHistoryStorageLocked(
                        f"this write arrived more than {step.change.drift:,} ms after the time it was made for, "
                        f"{late} times; nothing was written: the way to the server is too slow for it"
                    )
                look, sure = written.look, True
        raise DecisionHistoryStorageLocked(
            f"other workers changed this conversation {_TRIES} times before this one could; nothing was written"
        )

    async def _grow(
        self, key: ConversationKey, look: Look, held: Header, delta: Delta | None, *, release: bool
    ) -> _Step | None:
        """Decide what the reservation and `delta` make of the conversation; `None` where that went on meanwhile."""
        receipt = replayed(look.receipt, delta) if delta is not None and look.receipt is not None else None
        grown = None
        if delta is not None and receipt is None:
            stored = await self._leaving(key, look, leaving(held, delta))
            if stored is None:
                return None
            grown = extend(held, delta, look.now, self._bounds.max_retained_bytes, stored)
            receipt = grown.receipt
        after = grown.header if grown else held
        header = free(after) if release else after
        if look.header is not None and release and is_blank(header):
            change: Change | None = _removal(look)
        else:
            change = _change_to(look, header, grown) if header != look.header else None
        return _Step(change=change, header=header, extension=grown, receipt=receipt)

    async def _leaving(self, key: ConversationKey, look: Look, seqs: range) -> Sequence[Entry] | None:
        """Return the stored entries that a cut has to see; `None` where the conversation is not as it was seen."""
        found: list[Entry] = []
        while len(found) < len(seqs):
            first = seqs[0] + len(found)
            call = partial(self._remote.page, key, first, seqs[-1], STREAM_PAGE, newest_first=False)
            now, entries = await self._paged(key, call)
            if now.stamp != look.stamp:
                return None
            found.extend(_taken(entries, range(first, seqs[-1] + 1), STREAM_PAGE))
        return found

    async def _follow(self, key: ConversationKey, step: _Step, written: Written) -> None:
        """Do what a write leaves to do: blank records go, and some of what has expired."""
        if step.header is not None and step.change is not None and step.change.header is not None:
            if is_blank(step.header):
                await self._remove(key, written.look)
            with contextlib.suppress(MinutebookError):  # the write itself is done
                await self._purge_some(key.namespace)

    async def _remove(self, key: ConversationKey, look: Look) -> bool:
        """Remove a conversation as it was seen; False where it went on meanwhile."""
        return not (await self._write(key, _removal(look), None)).refused

    # --- expiry ------------------------------------------------------------------------------------------------------

    def _expired(self, look: Look) -> bool:
        return look.header is not None and expired(look.header, self._bounds.ttl_ms, look.now)

    async def _make_room(self, namespace: str) -> bool:
        """Remove some conversations that have expired; False when there is none."""
        return self._bounds.ttl_ms is not None and await self._see_to_stale(namespace, self._bounds.ttl_ms) > 0

    async def _see_to_stale(self, namespace: str, ttl_ms: int) -> int:
        """Remove some expired conversations, and bring back to the present what was written in the future."""
        removed = 0
        for name, look in await self._remote.stale(namespace, ttl_ms, PURGED_PER_WRITE):
            key = ConversationKey(namespace, name)
            # Nobody is told of what is wrong with somebody else's conversation, and it stops no other's removal.
            with contextlib.suppress(DecisionHistoryCorrupt, DecisionHistoryRegressed):
                if self._expired(look) or look.damage:
                    removed += await self._remove(key, look)
                elif look.header is not None and look.header.touched > look.now:
                    # The server's clock was set back: else the record would outlive its time by the whole jump.
                    header = msgspec.structs.replace(look.header, touched=look.now)
                    await self._write(key, _change_to(look, header), None)
        return removed

    async def _purge_some(self, namespace: str) -> None:
        """
        Remove a few expired conversations, as each write does beside its own work (promise I-31).

        After a look that found no more nothing can expire for a while, so the next one waits.
        """
        ttl_ms, now = self._bounds.ttl_ms, self._memory.now()
        if ttl_ms is None or now is None:
            return
        looked, due = self._purges.get(namespace, (now, now))
        if looked <= now < due:
            return
        if len(self._purges) >= _KNOWN_NAMESPACES:
            self._purges.clear()
        # Noted before it is tried: where somebody else has one of them locked, not every write waits for that.
        self._purges[namespace] = (now, now + min(_PURGE_MS, ttl_ms))
        if await self._see_to_stale(namespace, ttl_ms) == PURGED_PER_WRITE:
            self._purges[namespace] = (now, now)

    # --- the server --------------------------------------------------------------------------------------------------

    async def _read(self, key: ConversationKey, receipt: str = "") -> Look:
        """Return a look for a reader, to whom an expired conversation is absent."""
        self._check_open()
        look = _sound(await self._look(key, receipt))
        return await self._unless_expired(key, look)

    async def _paged(self, key: ConversationKey, call: Callable[[], Awaitable[tuple[Look, T]]]) -> tuple[Look, T]:
        """Return what a remote read, and the look that came with it."""
        self._check_open()
        begun = self._memory.heard
        look, found = await call()
        await self._learn(key, look, begun)
        return await self._unless_expired(key, _sound(look)), found

    async def _unless_expired(self, key: ConversationKey, look: Look) -> Look:
        """Return the look, or an empty one where it has expired: the access that finds it so removes it (SPEC D6)."""
        if not self._expired(look):
            return look
        with contextlib.suppress(MinutebookError):  # a read never fails for that
            await self._remove(key, look)
        return Look(now=look.now)

    async def _look(self, key: ConversationKey, receipt: str) -> Look:
        begun = self._memory.heard
        look = await self._remote.look(key, receipt=receipt)
        await self._learn(key, look, begun)
        return look

    async def _write(self, key: ConversationKey, change: Change, tail: Page | None) -> Written:
        begun = self._memory.heard
        # Where this fails nobody knows whether it is written; if so, the next write is refused and told of it.
        written = await self._remote.write(key, change, self._bounds, tail=tail)
        if written.refused:
            await self._learn(key, written.look, begun)
        else:
            self._memory.hear(key, written.look, begun)  # it goes on from what was seen, or it would have been refused
        return written

    async def _learn(self, key: ConversationKey, look: Look, begun: int) -> None:
        """
        Remember what a reply says that may tell of another worker's writes.

        Raises:
            DecisionHistoryRegressed: it does not go on from the newest version that the server told of before.
        """
        before = self._memory.seen(key)
        if before is not None and look.header is not None and is_overtaken(before, look.header):
            await self._check_continued(key, before)
        self._memory.hear(key, look, begun)

    async def _check_continued(self, key: ConversationKey, before: Mark) -> None:
        """Look up the receipt of a version that others went on from."""
        try:
            look, receipts = await self._remote.receipts(key, before.version - 1, 1)
        except DecisionHistoryCorrupt:
            return  # damage is for whoever reads it to tell
        if look.header is None or look.header.birth != before.birth:
            return  # deleted meanwhile: these are another record's
        if any(receipt.version == before.version and receipt.digest != before.digest for receipt in receipts):
            raise regressed(look.header, before)

    def _check_open(self) -> None:
        if os.getpid() != self._process:
            raise StoreClosed("the store was opened before a fork; open one in this process")
        if self._closed:
            raise StoreClosed("the store is closed")


def _change_to(look: Look, header: Header, grown: Extension | None = None) -> Change:
    """Return the change from what was seen to `header`, with what a delta adds."""
    before = look.header
    cut = header.cut.seq
    return Change(
        expected=look.stamp,
        header=header,
        wall=look.now,
        drift=drift_of(grown.entries if grown else ()),
        entries=grown.entries if grown else (),
        receipt=grown.receipt if grown else None,
        earlier=grown.receipts[:-1] if grown else (),
        cut=cut if before is not None and cut > before.cut.seq else 0,
        grown=header.bytes - (before.bytes if before is not None else 0),
    )


def _is_large(delta: Delta | None) -> bool:
    return delta is not None and weight_of(delta.drafts) > LARGE_BYTES


def _removal(look: Look) -> Change:
    grown = -look.header.bytes if look.header is not None else 0
    return Change(expected=look.stamp, header=None, wall=look.now, grown=grown, damaged=bool(look.damage))


def _sound(look: Look) -> Look:
    """
    Return a look whose header could be read, or was not there.

    Raises:
        DecisionHistoryCorrupt: it is damaged.
    """
    if look.damage:
        raise DecisionHistoryCorrupt(look.damage)
    return look


def _newest(entries: Iterable[Entry], header: Header, before: int, page: Page) -> tuple[Entry, ...]:
    return _taken(entries, range(min(before - 1, header.entries), header.cut.seq, -1), page)


def _taken(entries: Iterable[Entry], due: range, page: Page) -> tuple[Entry, ...]:
    """
    Return one page of the entries that are `due`, in that order.

    Raises:
        DecisionHistoryCorrupt: one is missing.
    """
    return page.taken(_all_due(entries, due))


def _all_due(entries: Iterable[Entry], due: range) -> Iterator[Entry]:
    rest = (entry for entry in entries if entry.seq in due)
    for seq in due:
        entry = next(rest, None)
        if entry is None or entry.seq != seq:
            raise damaged(seq, "is missing")
        yield entry
