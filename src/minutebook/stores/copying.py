"""
A copy of one conversation in another store: an export that goes straight into an import, and is proved on both sides
(SPEC B10, B8).

No file lies between, so nothing has to be taken on trust: the original is proved as it is read, the copy is one commit
by the record's own law, and then it is proved as it was stored. Unlike an import it brings the receipts along, so that
whoever repeats a commit after the move is answered, and not recorded twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from minutebook.errors import (
    DecisionHistoryAbsent,
    DecisionHistoryConflict,
    DecisionHistoryCorrupt,
    DecisionHistoryRetentionExceeded,
    InvalidMessage,
    InvalidOption,
    PairingViolation,
)
from minutebook.model.arrivals import MAX_IMPORT_BYTES, MAX_IMPORT_ENTRIES, draft_of
from minutebook.model.clock import read_clock
from minutebook.model.colours import check_store_colour
from minutebook.model.entries import Draft, Entry
from minutebook.model.imported import all_parked
from minutebook.model.record import Delta, Receipt
from minutebook.model.reservation import check_idle
from minutebook.model.transfer import Copied
from minutebook.ports import Page
from minutebook.reserving import Reservation
from minutebook.stores.journal import JournalStore
from minutebook.stores.streams import stream_proved
from minutebook.stores.transfer import Counting, settled_header

if TYPE_CHECKING:
    from minutebook.model.keys import ConversationKey
    from minutebook.model.record import Header, State
    from minutebook.stores.transfer import Progress

_ONE = Page(rows=1, messages=1, size=1)
_OTHER_WAY = "copy from there, once the one here is deleted"


async def copy_record(
    source: JournalStore, key: ConversationKey, target: JournalStore, progress: Progress | None
) -> Copied:
    """See `JournalStore.copy`."""
    _check_store(target)
    there = await target.header(key)
    if there is None:
        return await _copied(source, key, target, progress)
    header = await settled_header(source, key)
    check_idle(there, read_clock(target.clock))
    newest = await _receipt(source, key, header.version)
    if newest is None:
        raise DecisionHistoryAbsent("the conversation was deleted or expired while it was copied")
    original = _Original(source, key, header, newest)
    await original.check_same(target, there)
    proved = await _proved(target, key, Counting(progress, header.retained))
    await original.check_same(target, proved)  # it may have gone on since it was looked at
    return Copied(header=proved, written=False)


async def _copied(
    source: JournalStore, key: ConversationKey, target: JournalStore, progress: Progress | None
) -> Copied:
    """Write what the other store does not hold yet, and prove it there; from then on it may go on."""
    header = await settled_header(source, key)
    count = Counting(progress, 2 * header.retained)
    try:
        delta = await gathered(source, key, header, count)
    except DecisionHistoryAbsent as gone:
        if "cut" not in gone.facts:
            raise
        return await _copied(source, key, target, progress)  # its oldest entries left it while it was read
    original = _Original(source, key, header, delta.receipts[-1])
    await original.check_same(target, await _written(target, key, header, delta))
    return Copied(header=await _proved(target, key, count), written=True)


def _check_store(target: object) -> None:
    if not isinstance(target, JournalStore):
        check_store_colour(target, "target", blocking=False)
        raise InvalidOption(f"target is a store of minutebook, not {type(target).__name__}", option="target")


async def gathered(source: JournalStore, key: ConversationKey, header: Header, count: Counting) -> Delta:
    """Return the one commit that records the conversation again, once all of it is proved."""
    if header.retained > MAX_IMPORT_ENTRIES or header.bytes > MAX_IMPORT_BYTES:
        raise DecisionHistoryRetentionExceeded(
            f"a copy is one commit, of {MAX_IMPORT_ENTRIES:,} entries and {MAX_IMPORT_BYTES:,} bytes at most; the "
            f"conversation has {header.retained:,} and {header.bytes:,}",
            size=header.bytes,
            limit=MAX_IMPORT_BYTES,
        )
    drafts: list[Draft] = []
    receipts: list[Receipt] = []
    async for proved in stream_proved(source.journal, key, header):
        if isinstance(proved, Entry):
            drafts.append(draft_of(proved))
            count(len(drafts))
        else:
            receipts.append(proved)
    state = header.state
    return Delta(
        drafts=tuple(drafts),
        idempotency=receipts[-1].idempotency,
        imported=True,
        begins=state.cut,
        ends=state,
        receipts=tuple(receipts),
        settles=state.unanswered is None,
        window_from=state.window_from,
        window_limits=state.window_limits,
        cut_at=state.cut_at,
        prelude=state.prelude,
        outgrown=state.outgrown,
    )


async def _written(target: JournalStore, key: ConversationKey, header: Header, delta: Delta) -> Header:
    """Record the conversation, unless somebody has made one under its key just now, and return its header there."""
    reservation = Reservation(target.journal, target.tokens, key)
    try:
        return (await reservation.take(header.format, opening=delta, release=True)).header
    except DecisionHistoryConflict:
        there = await target.header(key)
        if there is None:
            raise
        return there
    except (PairingViolation, InvalidMessage) as unlawful:
        raise DecisionHistoryCorrupt("the conversation is none that its own law makes; restore a backup") from unlawful
    finally:
        target.tails.drop(key)


async def _proved(target: JournalStore, key: ConversationKey, count: Counting) -> Header:
    """Prove the conversation as it is stored, and return its header."""
    header = await target.header(key)
    if header is None:
        raise DecisionHistoryAbsent("the copy was deleted or has expired before it was proved")
    done = count.total - header.retained
    async for proved in stream_proved(target.journal, key, header):
        if isinstance(proved, Entry):
            done += 1
            count(done)
    return header


class _Original:
    """What is copied, and what another store holds of it."""

    def __init__(self, store: JournalStore, key: ConversationKey, header: Header, newest: Receipt) -> None:
        self._store = store
        self._key = key
        self._header = header
        self._newest = newest
        """The receipt of the version that `header` has."""

    async def check_same(self, target: JournalStore, there: Header) -> None:
        """
        See that the other store holds the same record: by its digest chain, its newest receipt and its state.

        Raises:
            DecisionHistoryConflict: it does not; `problem` says how it differs.
        """
        header = self._header
        newest = await _receipt(target, self._key, there.version)
        if _place(there) == _place(header) and _answers_alike(newest, self._newest):
            return
        here, elsewhere = header.retained, there.retained
        problem, told = "other", f"another conversation of this id, with {elsewhere:,} entries"
        behind = await self._is_earlier(there, self._store, header)
        ahead = await self._is_earlier(header, target, there)
        if behind and await self._went_on(there, newest, self._store, header):
            problem = "behind"
            told = f"an earlier state of this conversation, {elsewhere:,} entries to {here:,}; delete it there first"
        elif ahead and await self._went_on(header, self._newest, target, there):
            problem = "ahead"
            told = f"a later state of this conversation, {elsewhere:,} entries to {here:,}; {_OTHER_WAY}"
        elif behind or ahead:
            problem = "receipts"
            told = (
                f"the entries of this conversation, {elsewhere:,} to {here:,}, under other receipts or with another "
                "window, as an import from a file leaves them: a commit that is repeated from before would be recorded "
                "twice where those are kept; " + _way_out(there.entries - header.entries, same=behind and ahead)
            )
        raise DecisionHistoryConflict(f"the other store holds {told}; nothing was changed", problem=problem)

    async def _is_earlier(self, earlier: Header, store: JournalStore, later: Header) -> bool:
        """Return whether the entries that `store` holds go on from those of another record, or are the same."""
        if earlier.format != later.format or earlier.cut.seq > later.cut.seq:
            return False
        if earlier.entries == later.cut.seq:
            return earlier.digest == later.cut.digest
        found = await store.journal.oldest(self._key, earlier.entries - 1, _ONE)
        return bool(found) and (found[0].seq, found[0].digest) == (earlier.entries, earlier.digest)

    async def _went_on(self, earlier: Header, newest: Receipt | None, store: JournalStore, later: Header) -> bool:
        """Return whether the record that `store` holds has a later version, and the receipt of the earlier one."""
        if earlier.version >= later.version:
            return False
        return _answers_alike(await _receipt(store, self._key, earlier.version), newest)


def _way_out(more: int, *, same: bool) -> str:
    """Return what to do where another store has `more` of a conversation's entries; no entry is lost by it."""
    if more > 0:
        return f"{more:,} of them are only there: {_OTHER_WAY}, and repeat no commit from before"
    return "delete the imported one" if same else "delete it there first, all of it was recorded here"


def _place(header: Header) -> tuple[str, int, int, bytes, int, State]:
    """Return what is the same of two headers where their records are: the chain, its start, the version, the state."""
    return (header.format, header.version, header.bytes, header.digest, header.cut.seq, all_parked(header.state))


async def _receipt(store: JournalStore, key: ConversationKey, version: int) -> Receipt | None:
    found = await store.journal.receipts(key, version - 1, 1)
    return found[0] if found and found[0].version == version else None


def _answers_alike(one: Receipt | None, other: Receipt | None) -> bool:
    """Return whether who repeats a commit is answered the same by both; two imports of a file differ in their times."""
    if one is None or other is None:
        return False
    return msgspec.structs.replace(one, wall=0, epoch=0) == msgspec.structs.replace(other, wall=0, epoch=0)
