"""What leaves a record by a cut: a prefix between two turns, in the write that asks for it, and nothing else (E6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minutebook.errors import (
    DecisionHistoryFenced,
    DecisionHistoryStoreFull,
    InvalidOption,
    PairingViolation,
)
from minutebook.model.keys import ConversationKey
from minutebook.model.proof import Proof
from minutebook.ports import Page
from minutebook.testing.conformance import samples
from minutebook.testing.conformance.lab import Lab, refused
from minutebook.testing.conformance.report import expect
from minutebook.testing.conformance.samples import EVERYTHING, FORMAT, KEY, adding, answer, append, dump, result, say

if TYPE_CHECKING:
    from minutebook.model.entries import Entry
    from minutebook.model.record import Header
    from minutebook.ports import Journal


async def _turns(journal: Journal, count: int) -> tuple[Entry, ...]:
    """Record turns of two entries, each in a commit of its own, and return all of them."""
    for number in range(count):
        await append(journal, KEY, f"turn-{number}", say(f"ask {number}"), answer(f"answer {number}"))
    return await samples.entries(journal, KEY)


async def _cut(journal: Journal, at: int, id: str = "cut") -> None:  # noqa: A002 - the field's standard word
    await journal.reserve(KEY, f"token-{id}", format=FORMAT, opening=adding(id, cut=at), release=True)


async def _proved(journal: Journal) -> Header:
    """Prove the record by its chain, its counters and its receipts, and return its header."""
    header = await journal.header(KEY)
    assert header is not None
    proof = Proof(KEY, header)
    entries = iter(await samples.entries(journal, KEY))
    for receipt in await journal.receipts(KEY, 0, EVERYTHING.rows):
        while proof.seq < receipt.last:
            proof.take_entry(next(entries))
        proof.take_receipt(receipt)
    proof.close()
    return header


async def cuts_the_oldest(lab: Lab) -> None:
    """What a cut takes is in no read any more; what stays is as it was, and the record is proved from its anchor."""
    journal = await lab.journal()
    before = await _turns(journal, 5)
    await _cut(journal, 4)
    expect(await samples.entries(journal, KEY) == before[4:], "what stays behind a cut is not what stood there")
    for place in (-1, 0, 1, 4):
        oldest = await journal.oldest(KEY, place, Page(rows=1, messages=9, size=10**6))
        expect(oldest == before[4:5], f"the oldest above {place} is not the first that stays")
    newest = await journal.newest(KEY, 99, EVERYTHING)
    expect(newest == before[:3:-1], "read newest first, the record does not end at the cut")
    expect(await journal.newest(KEY, 5, EVERYTHING) == (), "there is something below the cut")
    header = await _proved(journal)
    expect(header.entries == 10 and header.retained == 6, "the header does not count what left")
    expect(header.state.turns - header.cut.turns == 3, "the turns that left are not counted")
    expect(header.bytes == sum(len(entry.payload) for entry in before[4:]), "the bytes that left are still counted")


async def cuts_inside_a_commit(lab: Lab) -> None:
    """A cut may stand anywhere between two turns, whatever commits they came with; again and again."""
    journal = await lab.journal()
    drafts = [draft for number in range(8) for draft in (say(f"ask {number}"), answer("x" * 3_000))]
    await append(journal, KEY, "all", *drafts)
    before = await samples.entries(journal, KEY)
    for at in (2, 4, 10, 14):
        await _cut(journal, at, f"cut-{at}")
        expect(await samples.entries(journal, KEY) == before[at:], f"what stays behind entry {at} is something else")
        await _proved(journal)


async def goes_on_behind_a_cut(lab: Lab) -> None:
    """A cut may take all there is, its own commit's entries too; numbers and the chain go on behind it."""
    journal = await lab.journal()
    await _turns(journal, 2)
    await journal.reserve(
        KEY, "t", format=FORMAT, opening=adding("both", say("in"), answer("out"), say("stays"), cut=6), release=True
    )
    found = await samples.entries(journal, KEY)
    expect([entry.seq for entry in found] == [7], "of a commit that cuts into itself something else stays")
    await _cut(journal, 7, "all")
    expect(await samples.entries(journal, KEY) == (), "something stays where all was cut")
    header = await journal.header(KEY)
    expect(header is not None and header.bytes == 0 and header.entries == 7, "a record cut to nothing is miscounted")
    await append(journal, KEY, "next", say("next"), answer("next"))
    expect([entry.seq for entry in await samples.entries(journal, KEY)] == [8, 9], "numbers do not go on")
    await _proved(journal)


async def answers_for_what_left(lab: Lab) -> None:
    """A commit that is repeated after its entries left is answered by its first receipt, and records nothing."""
    journal = await lab.journal()
    await _turns(journal, 3)
    receipts = await journal.receipts(KEY, 0, 9)
    await _cut(journal, 4)
    expect((await journal.receipts(KEY, 0, 9))[:3] == receipts, "a cut took or changed receipts")
    before = await dump(journal, KEY)
    again = await journal.reserve(
        KEY, "t", format=FORMAT, opening=adding("turn-0", say("ask 0"), answer("answer 0"), cut=6), release=True
    )
    expect(again.receipt == receipts[0] and again.written == (), "a repeated commit is not answered by its receipt")
    after = await journal.header(KEY)
    expect(after is not None and after.cut.seq == 4, "a repeated commit cut something")
    await _cut(journal, 4)
    await _cut(journal, 2, "older")
    expect(len(await samples.entries(journal, KEY)) == 2, "a cut that is passed already took something")
    expect(before != await dump(journal, KEY), "a cut that takes nothing is no commit")
    await _proved(journal)


async def refuses_a_cut_whole(lab: Lab) -> None:
    """A cut inside a turn, of what waits, of what is not there or by a holder that was fenced leaves no trace."""
    journal = await lab.journal()
    await _turns(journal, 2)
    await append(journal, KEY, "waits", say("ask"), answer("", "call-1", "call-2"))
    before = await dump(journal, KEY)
    await refused(_cut(journal, 1), InvalidOption, "a cut between an input and its answer")
    await refused(_cut(journal, 99), InvalidOption, "a cut beyond the end")
    await refused(_cut(journal, 6), PairingViolation, "a cut of an exchange that waits")
    more = adding("more", result(0, "a"), cut=3)
    call = journal.reserve(KEY, "t", format=FORMAT, opening=more, release=True)
    await refused(call, InvalidOption, "a commit whose cut is refused")
    expect(await dump(journal, KEY) == before, "a refused cut left a trace")
    held = await journal.reserve(KEY, "old", format=FORMAT, opening=adding("opens", opens=True))
    cutting = adding("inside", cut=2)
    await refused(journal.commit(KEY, "old", held.header.epoch, cutting), InvalidOption, "a cut while a turn is open")
    await journal.recover(KEY, held.header.epoch)
    before = await dump(journal, KEY)
    late = journal.commit(KEY, "old", held.header.epoch, adding("late", cut=2))
    await refused(late, DecisionHistoryFenced, "the cut of an old holder")
    expect(await dump(journal, KEY) == before, "a fenced cut left a trace")


async def frees_what_was_cut(lab: Lab) -> None:
    """What leaves makes room to the byte, for its own commit and for other conversations."""
    size = len(say("x" * 100).payload)
    journal = await lab.journal(max_bytes=4 * size, max_retained_bytes=3 * size)
    for number in range(3):
        await append(journal, KEY, f"id-{number}", say("x" * 100))
    other = ConversationKey(KEY.namespace, "other")
    await append(journal, other, "one", say("x" * 100))
    full = append(journal, other, "two", say("x" * 100))
    await refused(full, DecisionHistoryStoreFull, "a write to a full store")
    turned = adding("turns over", say("x" * 100), cut=1)
    await journal.reserve(KEY, "t", format=FORMAT, opening=turned, release=True)
    await _cut(journal, 3)
    await append(journal, other, "two", say("x" * 100))
    await append(journal, other, "three", say("x" * 100))
    full = append(journal, KEY, "more", say("x" * 100))
    await refused(full, DecisionHistoryStoreFull, "a write to a store that is full again")
