"""Who may write: reservation, fencing, recovery, deletion, and what a cancelled call leaves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from minutebook.errors import (
    DecisionHistoryAbsent,
    DecisionHistoryBusy,
    DecisionHistoryFenced,
    DecisionHistoryNotReserved,
)
from minutebook.model.entries import Kind
from minutebook.model.keys import ConversationKey
from minutebook.testing.conformance import samples
from minutebook.testing.conformance.lab import WORKERS, Lab, refused
from minutebook.testing.conformance.report import expect
from minutebook.testing.conformance.samples import FORMAT, KEY, adding, answer, append, dump, result, say
from minutebook.testing.drive import Cut, cancel_at

if TYPE_CHECKING:
    pass

_MOST_AWAITS = 200  # a driver that polls would have no last one


async def excludes_others(lab: Lab) -> None:
    """A held conversation refuses every other writer at once, at any age; other conversations go on."""
    journal = await lab.journal(ttl_ms=1000 if lab.expiring else None)
    held = await journal.reserve(KEY, "t", format=FORMAT, opening=adding("one", say("a")))
    before = await dump(journal, KEY)
    lab.clock.advance(10**10)
    busy = await refused(journal.reserve(KEY, "u", format=FORMAT), DecisionHistoryBusy, "a second reservation")
    expect(busy.facts.get("epoch") == held.header.epoch, "Busy does not say which epoch holds")
    await refused(append(journal, KEY, "two", say("b")), DecisionHistoryBusy, "an append beside a hold")
    await refused(journal.delete(KEY), DecisionHistoryBusy, "a deletion beside a hold")
    expect(await dump(journal, KEY) == before, "a busy conversation was changed")
    await append(journal, ConversationKey(KEY.namespace, "another"), "one", say("a"))


async def fences_the_old_holder(lab: Lab) -> None:
    """After a recovery the old holder can write nothing, neither before nor after a new one has come."""
    journal = await lab.journal()
    old = await journal.reserve(KEY, "old", format=FORMAT, opening=adding("one", say("a"), opens=True))
    epoch = old.header.epoch
    recovered = await journal.recover(KEY, epoch)
    expect(not recovered.token and recovered.epoch > epoch, "a recovery leaves the holder or the epoch")
    last = (await samples.entries(journal, KEY))[-1]
    expect(last.kind is Kind.ABANDONED, "the interrupted attempt is not marked")
    before = await dump(journal, KEY)
    late = adding("late", answer("b"))
    await refused(journal.commit(KEY, "old", epoch, late), DecisionHistoryFenced, "the old holder, nobody else there")
    expect(await dump(journal, KEY) == before, "a fenced commit left a trace")
    new = await journal.reserve(KEY, "new", format=FORMAT)
    expect(new.header.epoch > recovered.epoch - 1 > epoch - 1, "an epoch went backwards")
    for token, number in (("old", epoch), ("old", new.header.epoch), ("new", epoch), ("", new.header.epoch)):
        await refused(journal.commit(KEY, token, number, late), DecisionHistoryFenced, "another token or epoch")
    await journal.commit(KEY, "new", new.header.epoch, adding("two", say("b")), release=True)


async def recovers_once(lab: Lab) -> None:
    """A recovery needs a reservation, of that epoch; the second of two is told that there is none."""
    journal = await lab.journal()
    await refused(journal.recover(KEY, None), DecisionHistoryAbsent, "a recovery of nothing")
    held = await journal.reserve(KEY, "t", format=FORMAT)
    wrong = held.header.epoch + 1
    await refused(journal.recover(KEY, wrong), DecisionHistoryNotReserved, "a recovery of another epoch")
    await journal.recover(KEY, held.header.epoch)
    await refused(journal.recover(KEY, held.header.epoch), DecisionHistoryNotReserved, "a second recovery")
    await refused(journal.recover(KEY, None), DecisionHistoryNotReserved, "a recovery of whatever epoch")


async def keeps_no_blank_record(lab: Lab) -> None:
    """A first reservation that is given back unused leaves nothing; one on a record with entries leaves those."""
    journal = await lab.journal()
    for number in range(2):
        held = await journal.reserve(KEY, f"t-{number}", format=FORMAT)
        await journal.commit(KEY, f"t-{number}", held.header.epoch, adding(f"release-{number}"), release=True)
        expect(await journal.header(KEY) is None, "a reservation that was given back unused left a conversation")
        expect(await journal.receipt(KEY, f"release-{number}") is None, "a receipt outlives its blank conversation")
    again = await journal.reserve(KEY, "t-0", format="another", opening=adding("one", say("a")), release=True)
    expect(again.written[0].seq == 1, "the first write after a blank one is not alone")
    held = await journal.reserve(KEY, "u", format="another")
    await journal.commit(KEY, "u", held.header.epoch, adding("release"), release=True)
    expect(len(await samples.entries(journal, KEY)) == 1, "giving back unused took recorded entries with it")


async def deletes_for_good(lab: Lab) -> None:
    """A deleted conversation is gone with all that belongs to it; a late commit is fenced and creates nothing."""
    journal = await lab.journal()
    held = await journal.reserve(KEY, "t", format=FORMAT, opening=adding("one", say("a")))
    await journal.recover(KEY, held.header.epoch)
    await journal.delete(KEY)
    expect(await journal.header(KEY) is None, "a deleted conversation is still there")
    expect(await samples.entries(journal, KEY) == (), "entries outlive their conversation")
    expect(await journal.receipt(KEY, "one") is None, "receipts outlive their conversation")
    await refused(journal.delete(KEY), DecisionHistoryAbsent, "a second deletion")
    late = journal.commit(KEY, "t", held.header.epoch, adding("late", answer("b")))
    await refused(late, DecisionHistoryFenced, "a commit after the deletion")
    expect(await journal.header(KEY) is None, "a late commit brought a deleted conversation back")
    again = await journal.reserve(KEY, "u", format="another", opening=adding("one", say("other")), release=True)
    expect(again.written[0].seq == 1, "a new conversation of the same name goes on from the old one")


async def tells_a_new_record_from_the_old_one(lab: Lab) -> None:
    """A conversation keeps its birth; one that is begun anew has another, also in the same millisecond."""
    journal = await lab.journal()
    births: list[bytes] = []
    for name in ("old", "new"):
        held = await journal.reserve(KEY, f"token-{name}", format=FORMAT, opening=adding("one", say("a")))
        births.append(held.header.birth)
        await journal.recover(KEY, held.header.epoch)
        await append(journal, KEY, "two", say("b"))
        header = await journal.header(KEY)
        expect(header is not None and header.birth == births[-1] != b"", "a record has not the birth that it had")
        await journal.delete(KEY)
    expect(births[0] != births[1], "a record that was begun anew has the birth of the one before it")


async def one_of_many_wins(lab: Lab) -> None:
    """Of many who reserve one conversation at once exactly one gets it, and the others are told at once."""
    journal = await lab.journal()
    tokens = [f"worker-{number}" for number in range(WORKERS)]
    calls = (journal.reserve(KEY, token, format=FORMAT) for token in tokens)
    answers = await asyncio.gather(*calls, return_exceptions=True)
    winners = [answer for answer in answers if not isinstance(answer, BaseException)]
    expect(len(winners) == 1, f"{len(winners)} of {WORKERS} got the reservation")
    others = {type(answer).__name__ for answer in answers if isinstance(answer, BaseException)}
    expect(others == {"DecisionHistoryBusy"}, f"the others were told {sorted(others)}")
    recoveries = (journal.recover(KEY, None) for _ in range(WORKERS))
    told = await asyncio.gather(*recoveries, return_exceptions=True)
    won = sum(not isinstance(answer, BaseException) for answer in told)
    expect(won == 1, f"{won} of {WORKERS} recoveries succeeded")


async def survives_cancellation(lab: Lab) -> None:
    """A write cut at any await is there whole or not at all, and the same id again makes it exactly once."""
    for cut in (Cut.CANCELLED, Cut.TIMEOUT, Cut.INTERRUPTED, Cut.CLOSED):
        step, struck = 0, True
        while struck and step < _MOST_AWAITS:
            step += 1
            journal = await lab.journal()
            epoch = (await journal.reserve(KEY, "t", format=FORMAT, opening=adding("one", say("a")))).header.epoch
            delta = adding("two", answer("b", "call"), result(0, "c"))
            struck = (await cancel_at(lambda: journal.commit(KEY, "t", epoch, delta), step, cut)).struck  # noqa: B023
            await _drained()
            count = len(await samples.entries(journal, KEY))
            expect(count in (1, 3), f"{count} entries after a commit was {cut.value} at await {step}; 1 or 3 is right")
            await journal.commit(KEY, "t", epoch, delta, release=True)
            count = len(await samples.entries(journal, KEY))
            expect(count == 3, f"{count} entries after the same commit came again; 3 is right")


async def _drained() -> None:
    """Let the loop run what a cut call may have left under way."""
    for _ in range(20):
        await asyncio.sleep(0)
    await asyncio.sleep(0.002)
