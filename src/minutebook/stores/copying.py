"""
A copy of one conversation in another store: an export that goes straight into an import, and is proved on both sides
(SPEC B10, B8).

No file lies between, so nothing has to be taken on trust: the original is proved as it is read, the copy is one commit
by the record's own law, and then it is proved as it was stored. Unlike an import it brings the receipts along, so that
whoever repeats a commit after the move is answered, and not recorded twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from minutebook.model.colours import check_store_colour
from minutebook.model.entries import Draft, Entry
from minutebook.model.record import Delta, Receipt
from minutebook.model.reservation import check_idle
from minutebook.model.transfer import Copied
from minutebook.ports import Page
from minutebook.reserving import Reservation
from minutebook.stores.clock import system_clock
from minutebook.stores.journal import JournalStore
from minutebook.stores.streams import stream_proved
from minutebook.stores.transfer import Counting, settled_header

if TYPE_CHECKING:
    from minutebook.model.keys import ConversationKey
    from minutebook.model.record import Header
    from minutebook.stores.transfer import Progress

_ONE = Page(rows=1, messages=1, size=1)


async def copy_record(
    source: JournalStore, key: ConversationKey, target: JournalStore, progress: Progress | None
) -> Copied:
    """See `JournalStore.copy`."""
    _check_store(target)
    there = await target.header(key)
    if there is None:
        return await _copied(source, key, target, progress)
    header = await settled_header(source, key)
    check_idle(there, system_clock())
    await _check_same(source, header, target, there, key)
    proved = await _proved(target, key, Counting(progress, header.retained))
    await _check_same(source, header, target, proved, key)  # it may have gone on since it was looked at
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
    await _check_same(source, header, target, await _written(target, key, header, delta), key)
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


async def _check_same(
    source: JournalStore, header: Header, target: JournalStore, there: Header, key: ConversationKey
) -> None:
    """See that both stores hold the same conversation, by its digest chain."""
    if _place(there) == _place(header):
        return
    here, elsewhere = header.retained, there.retained
    problem, told = "other", f"another conversation of this id, with {elsewhere:,} entries"
    if there.format == header.format:
        if await _is_earlier(there, source, header, key):
            problem = "behind"
            told = f"an earlier state of this conversation, {elsewhere:,} entries to {here:,}; delete it there first"
        elif await _is_earlier(header, target, there, key):
            problem, told = "ahead", f"a later state of this conversation, {elsewhere:,} entries to {here:,}"
    raise DecisionHistoryConflict(f"the other store holds {told}; nothing was changed", problem=problem)


def _place(header: Header) -> tuple[str, int, int, bytes, int]:
    """Return what is the same of two headers where their conversations are: their whole digest chain, and its start."""
    return (header.format, header.entries, header.bytes, header.digest, header.cut.seq)


async def _is_earlier(earlier: Header, store: JournalStore, later: Header, key: ConversationKey) -> bool:
    """Return whether the record that `store` holds has passed through the state of another one."""
    if earlier.cut.seq > later.cut.seq:
        return False
    if earlier.entries == later.cut.seq:
        return earlier.digest == later.cut.digest
    found = await store.journal.oldest(key, earlier.entries - 1, _ONE)
    return bool(found) and (found[0].seq, found[0].digest) == (earlier.entries, earlier.digest)
