"""
What every journal must do: the checks for authors of a backend.

A check is a function of a `Lab`; its docstring is the rule that it proves. They run in the table's order, each on fresh
journals, so that one failure does not hide another.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from minutebook.errors import (
    DecisionHistoryAbsent,
    DecisionHistoryBusy,
    DecisionHistoryConflict,
    DecisionHistoryFenced,
    DecisionHistoryNotReserved,
    DecisionHistoryRetentionExceeded,
    DecisionHistoryStoreFull,
    MinutebookError,
    PairingViolation,
    StoreClosed,
)
from minutebook.model.bounds import StoreBounds
from minutebook.model.entries import Kind, first_digest, recompute_digest
from minutebook.model.keys import ConversationKey
from minutebook.ports import Page
from minutebook.testing.clock import FrozenClock
from minutebook.testing.conformance import samples
from minutebook.testing.conformance.report import Report, Skipped, check_name, expect, run_check
from minutebook.testing.conformance.samples import EVERYTHING, FORMAT, KEY, adding, answer, append, dump, result, say
from minutebook.testing.drive import Cut, cancel_at

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeAlias

    from minutebook.ports import Journal

__all__ = ["JOURNAL_CHECKS", "Lab", "check_journal"]

if TYPE_CHECKING:
    JournalFactory: TypeAlias = Callable[[StoreBounds, FrozenClock], Awaitable[Journal]]

_MOST_AWAITS = 200  # a driver that polls would have no last one
_WORKERS = 16


class Lab:
    """Where a check works: it makes journals, and knows what this kind of journal leaves to somebody else."""

    def __init__(self, factory: JournalFactory, *, bounded: bool, expiring: bool, listing: bool) -> None:
        """Take what `check_journal` was given."""
        self._factory = factory
        self._bounded = bounded
        self.expiring = expiring
        self._listing = listing
        self._opened: list[Journal] = []
        self.clock = FrozenClock()

    async def journal(
        self,
        *,
        max_sessions: int | None = None,
        max_bytes: int | None = None,
        max_retained_bytes: int | None = None,
        ttl_ms: int | None = None,
    ) -> Journal:
        """Return a fresh journal with these bounds."""
        if not self._bounded and (max_sessions or max_bytes):
            raise Skipped("this store's bounds are kept by somebody else")
        if not self.expiring and ttl_ms:
            raise Skipped("this store's expiry is kept by somebody else")
        bounds = StoreBounds(
            max_sessions=max_sessions, max_bytes=max_bytes, max_retained_bytes=max_retained_bytes, ttl_ms=ttl_ms
        )
        journal = await self._factory(bounds, self.clock)
        self._opened.append(journal)
        return journal

    def needs_listing(self) -> None:
        """Leave the check where the store cannot name its conversations."""
        if not self._listing:
            raise Skipped("this store cannot list")

    async def close(self) -> None:
        """Close what the check opened."""
        for journal in self._opened:
            await journal.close()


async def refused(call: Awaitable[object], error: type[MinutebookError], what: str) -> MinutebookError:
    """See that `call` is refused with exactly `error`, and return it."""
    try:
        await call
    except MinutebookError as raised:
        expect(type(raised) is error, f"{what}: {raised.code} instead of {error.__name__}")
        return raised
    expect(False, f"{what}: nothing was refused; {error.__name__} is the rule")
    raise AssertionError


# --- the record ------------------------------------------------------------------------------------------------------


async def reads_back_what_was_written(lab: Lab) -> None:
    """Entries come back byte for byte, in order, numbered 1, 2, 3 … over any number of commits."""
    journal = await lab.journal()
    texts = ["plain", "\u00e9e\u0301", "\U0001f600", "\u2028", "\x00\x1f", "'\"\\", "x" * 70_000, ""]
    drafts = [draft for text in texts for draft in (say(text), answer(text))]
    for number, draft in enumerate(drafts):
        await append(journal, KEY, f"id-{number}", draft)
    found = await samples.entries(journal, KEY)
    expect([entry.seq for entry in found] == [*range(1, len(drafts) + 1)], "numbers have gaps or another order")
    for entry, draft in zip(found, drafts, strict=True):
        expect(type(entry.payload) is bytes, f"entry {entry.seq} came back as {type(entry.payload).__name__}")
        expect(entry.payload == draft.payload, f"entry {entry.seq} came back with other bytes")
        told = (draft.kind, draft.calls, draft.messages, draft.size, draft.start, draft.stop)
        same = told == (entry.kind, entry.calls, entry.messages, entry.size, entry.start, entry.stop)
        expect(same and type(entry.kind) is Kind, f"entry {entry.seq} came back with another place or other calls")


async def keeps_the_digest_chain(lab: Lab) -> None:
    """Every entry carries the digest that follows from the one before, and the header carries the last."""
    journal = await lab.journal()
    await append(journal, KEY, "one", say("a"), answer("b", "call-1", "call-2"))
    await append(journal, KEY, "two", result(1, "c"), result(0, "d"))
    digest = first_digest(KEY)
    for entry in await samples.entries(journal, KEY):
        digest = recompute_digest(digest, entry)
        expect(entry.digest == digest, f"entry {entry.seq} does not follow from the one before")
    header = await journal.header(KEY)
    expect(header is not None and header.digest == digest, "the header's digest is not the last entry's")


async def answers_by_commit_as_it_reads(lab: Lab) -> None:
    """What a reserve or commit says it wrote is what is read afterwards."""
    journal = await lab.journal()
    reserved = await journal.reserve(KEY, "t", format=FORMAT, opening=adding("one", say("a")), tail=EVERYTHING)
    expect(reserved.written == reserved.tail, "the tail under a reservation is not what the opening wrote")
    committed = await journal.commit(KEY, "t", reserved.header.epoch, adding("two", answer("b")), release=True)
    found = await samples.entries(journal, KEY)
    expect((*reserved.written, *committed.written) == found, "the entries that were answered are not those read")
    expect(await journal.header(KEY) == committed.header, "the header that was answered is not the one read")
    told = (reserved.receipt, committed.receipt)
    expect(await journal.receipts(KEY, 0, 9) == told, "the receipts that were answered are not those read")


async def reads_change_nothing(lab: Lab) -> None:
    """No read changes a record, its times or its reservation."""
    journal = await lab.journal()
    await append(journal, KEY, "one", say("a"), answer("b"))
    before = await dump(journal, KEY)
    lab.clock.advance(1000)
    await journal.header(KEY)
    await journal.newest(KEY, 9, EVERYTHING)
    await journal.receipt(KEY, "one")
    expect(await dump(journal, KEY) == before, "a read left a trace in the record")


async def pages_as_asked(lab: Lab) -> None:
    """Pages hold what was asked for: newest first or oldest first, ended by rows, messages or size."""
    journal = await lab.journal()
    for number in range(10):
        await append(journal, KEY, f"id-{number}", say("x" * 100))
    size = len(say("x" * 100).payload)
    wide = {"rows": 99, "messages": 99, "size": 10**6}
    table = [({"rows": 3}, 3), ({"messages": 3}, 4), ({"size": 3 * size}, 4), ({"rows": 99}, 10), ({"rows": 1}, 1)]
    for narrow, count in table:
        page = Page(**{**wide, **narrow})
        newest = [entry.seq for entry in await journal.newest(KEY, 11, page)]
        expect(newest == [*range(10, 10 - count, -1)], f"newest by {[*narrow]}: {newest}")
        oldest = [entry.seq for entry in await journal.oldest(KEY, 0, page)]
        expect(oldest == [*range(1, count + 1)], f"oldest by {[*narrow]}: {oldest}")
    middle = Page(rows=2, messages=99, size=10**6)
    expect([e.seq for e in await journal.newest(KEY, 5, middle)] == [4, 3], "newest below 5 are not 4 and 3")
    expect([e.seq for e in await journal.oldest(KEY, 5, middle)] == [6, 7], "oldest above 5 are not 6 and 7")
    expect(await journal.newest(KEY, 1, middle) == (), "there is something below the first entry")
    expect(await journal.oldest(KEY, 10, middle) == (), "there is something above the last entry")


async def leaves_out_a_known_tail(lab: Lab) -> None:
    """Whoever names the present version gets no tail; whoever names another one gets it."""
    journal = await lab.journal()
    await append(journal, KEY, "one", say("a"))
    header = await journal.header(KEY)
    version = header.version if header else -1
    reserved = await journal.reserve(KEY, "t", format=FORMAT, tail=EVERYTHING, known=version)
    expect(reserved.tail == (), "the tail came although its version was known")
    await journal.commit(KEY, "t", reserved.header.epoch, adding("two"), release=True)
    reserved = await journal.reserve(KEY, "u", format=FORMAT, tail=EVERYTHING, known=version)
    expect(len(reserved.tail) == 1, "the tail did not come although the version was another one")


async def finds_receipts(lab: Lab) -> None:
    """Receipts are found by id, and listed by version, oldest first."""
    journal = await lab.journal()
    for number in range(5):
        await append(journal, KEY, f"id-{number}", say("a"))
    listed = await journal.receipts(KEY, 1, 3)
    expect([receipt.version for receipt in listed] == [2, 3, 4], "the receipts above version 1 are not 2, 3, 4")
    expect(await journal.receipt(KEY, "id-1") == listed[0], "the receipt found by id is another one")
    expect(await journal.receipt(KEY, "id-9") is None, "a receipt was found for an id that was never committed")


# --- refusals --------------------------------------------------------------------------------------------------------


async def refuses_whole(lab: Lab) -> None:
    """A write that is refused for any part leaves the record as it was, to the byte."""
    journal = await lab.journal(max_retained_bytes=5_000)
    await append(journal, KEY, "one", say("a"), answer("b"))
    before = await dump(journal, KEY)
    await refused(append(journal, KEY, "two", say("c"), result(0, "none")), PairingViolation, "a result without a call")
    await refused(append(journal, KEY, "two", say("c" * 6_000)), DecisionHistoryRetentionExceeded, "over the bound")
    await refused(append(journal, KEY, "one", say("other")), DecisionHistoryConflict, "the same id with other content")
    call = journal.reserve(KEY, "t", format="another", opening=adding("two", say("c")), release=True)
    await refused(call, DecisionHistoryConflict, "another format")
    expect(await dump(journal, KEY) == before, "a refused write left a trace")


async def refuses_first_write_whole(lab: Lab) -> None:
    """A first write that is refused creates no conversation."""
    journal = await lab.journal(max_retained_bytes=5_000)
    await refused(append(journal, KEY, "one", result(0, "none")), PairingViolation, "a result without a call")
    await refused(append(journal, KEY, "one", say("c" * 6_000)), DecisionHistoryRetentionExceeded, "over the bound")
    expect(await journal.header(KEY) is None, "a refused first write created the conversation")
    await append(journal, KEY, "one", say("a"))
    expect(len(await samples.entries(journal, KEY)) == 1, "the first write after a refused one is not alone")


async def replays_the_first_receipt(lab: Lab) -> None:
    """The same id with the same content writes nothing and answers the first receipt, in a hold and without one."""
    journal = await lab.journal()
    opening = adding("one", say("a"))
    first = (await journal.reserve(KEY, "t", format=FORMAT, opening=opening, release=True)).receipt
    again = await journal.reserve(KEY, "u", format=FORMAT, opening=opening, release=True)
    expect(again.receipt == first and again.written == (), "a replayed append answers another receipt")
    expect(not again.header.token, "a replayed append kept the reservation that it was to give back")
    reserved = await journal.reserve(KEY, "v", format=FORMAT, opening=opening)
    expect(reserved.receipt == first and bool(reserved.header.token), "a replayed opening took no reservation")
    epoch = reserved.header.epoch
    second = await journal.commit(KEY, "v", epoch, adding("two", answer("b")))
    repeated = await journal.commit(KEY, "v", epoch, adding("two", answer("b")), release=True)
    expect(repeated.receipt == second.receipt and repeated.written == (), "a replayed commit answers another receipt")
    expect(not repeated.header.token, "a replayed commit kept the reservation that it was to give back")
    expect(len(await samples.entries(journal, KEY)) == 2, "a replay was written twice")


# --- reservation -----------------------------------------------------------------------------------------------------


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


async def one_of_many_wins(lab: Lab) -> None:
    """Of many who reserve one conversation at once exactly one gets it, and the others are told at once."""
    journal = await lab.journal()
    tokens = [f"worker-{number}" for number in range(_WORKERS)]
    calls = (journal.reserve(KEY, token, format=FORMAT) for token in tokens)
    answers = await asyncio.gather(*calls, return_exceptions=True)
    winners = [answer for answer in answers if not isinstance(answer, BaseException)]
    expect(len(winners) == 1, f"{len(winners)} of {_WORKERS} got the reservation")
    others = {type(answer).__name__ for answer in answers if isinstance(answer, BaseException)}
    expect(others == {"DecisionHistoryBusy"}, f"the others were told {sorted(others)}")
    recoveries = (journal.recover(KEY, None) for _ in range(_WORKERS))
    told = await asyncio.gather(*recoveries, return_exceptions=True)
    won = sum(not isinstance(answer, BaseException) for answer in told)
    expect(won == 1, f"{won} of {_WORKERS} recoveries succeeded")


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


# --- identity --------------------------------------------------------------------------------------------------------


async def compares_ids_exactly(lab: Lab) -> None:
    """Every id is its own conversation and every namespace its own world: nothing is folded, trimmed or joined."""
    journal = await lab.journal()
    keys = [ConversationKey("tenant", id) for id in samples.ODD_IDS]  # noqa: A001 - the field's standard word
    keys += [ConversationKey(id, "tenant") for id in samples.ODD_IDS]  # noqa: A001
    keys += [ConversationKey(*pair) for pair in samples.JOINED]
    for number, key in enumerate(keys):
        await append(journal, key, "one", say(f"{number}"))
    for number, key in enumerate(keys):
        found = await samples.entries(journal, key)
        expect([e.payload for e in found] == [say(f"{number}").payload], f"pair {number} shares a conversation")


async def lists_by_code_points(lab: Lab) -> None:
    """Listing names one namespace's conversations, each once, in the order of code points, in pages."""
    lab.needs_listing()
    journal = await lab.journal()
    for name in samples.ODD_IDS:
        await append(journal, ConversationKey("tenant", name), "one", say("a"))
    await append(journal, ConversationKey("tenan", "t"), "one", say("a"))
    found: list[str] = []
    while page := await journal.list("tenant", found[-1] if found else "", 7):
        expect(len(page) <= 7, f"a page of 7 holds {len(page)}")
        found.extend(listing.key.id for listing in page)
    expect(found == sorted(samples.ODD_IDS), "the ids listed are not those written, in the order of code points")
    for pattern in ("%", "tenan%", "*", "tenant' OR '1'='1", "_enant"):
        expect(await journal.list(pattern, "", 9) == (), "a namespace was taken for a pattern")
    totals = await journal.totals("tenant")
    expect(totals.conversations == len(samples.ODD_IDS), f"totals count {totals.conversations} conversations")
    expect(totals.bytes == len(say("a").payload) * len(samples.ODD_IDS), f"totals count {totals.bytes} bytes")


# --- bounds and time -------------------------------------------------------------------------------------------------


async def refuses_when_full(lab: Lab) -> None:
    """A full namespace refuses whole, evicts nothing, and leaves other namespaces alone."""
    draft = say("a")
    journal = await lab.journal(max_sessions=2, max_bytes=3 * len(draft.payload))
    keys = [ConversationKey("full", name) for name in ("one", "two", "three")]
    await append(journal, keys[0], "1", draft)
    await append(journal, keys[1], "1", draft)
    before = [await dump(journal, key) for key in keys]
    await refused(append(journal, keys[2], "1", draft), DecisionHistoryStoreFull, "one conversation too many")
    await refused(append(journal, keys[0], "2", draft, draft), DecisionHistoryStoreFull, "some bytes too many")
    expect([await dump(journal, key) for key in keys] == before, "a refused write changed a full store")
    await append(journal, keys[0], "3", draft)
    await append(journal, ConversationKey("empty", "one"), "1", draft)
    await journal.delete(keys[1])
    await append(journal, keys[2], "1", draft)


async def last_byte_has_one_winner(lab: Lab) -> None:
    """Of many who race for the last free bytes exactly one gets them; the bound is never passed."""
    draft = say("a")
    journal = await lab.journal(max_bytes=2 * len(draft.payload))
    await append(journal, KEY, "one", draft)
    keys = [ConversationKey(KEY.namespace, f"racer-{number}") for number in range(_WORKERS)]
    answers = await asyncio.gather(*(append(journal, key, "one", draft) for key in keys), return_exceptions=True)
    won = sum(answer is None for answer in answers)
    expect(won == 1, f"{won} of {_WORKERS} got the last bytes")
    others = {type(answer).__name__ for answer in answers if answer is not None}
    expect(others == {"DecisionHistoryStoreFull"}, f"the others were told {sorted(others)}")


async def expires_as_one(lab: Lab) -> None:
    """After its time a conversation is absent whole; writing prolongs, reading does not, a hold stops it."""
    journal = await lab.journal(ttl_ms=1000, max_sessions=2)
    await append(journal, KEY, "one", say("a"))
    lab.clock.advance(1000)
    expect(await journal.header(KEY) is not None, "it expired at its time to live, not after it")
    await append(journal, KEY, "two", answer("b"))
    lab.clock.advance(1000)
    expect(len(await samples.entries(journal, KEY)) == 2, "a write did not prolong it")
    lab.clock.advance(1)
    expect(await journal.header(KEY) is None, "it is still there after its time, or reading prolonged it")
    expect(await samples.entries(journal, KEY) == () and await journal.receipt(KEY, "one") is None, "a part is left")
    await refused(journal.delete(KEY), DecisionHistoryAbsent, "a deletion of what has expired")
    await append(journal, KEY, "one", say("other"))
    held = await journal.reserve(ConversationKey(KEY.namespace, "held"), "t", format=FORMAT)
    lab.clock.advance(5000)
    await append(journal, ConversationKey(KEY.namespace, "new"), "one", say("a"))
    expect(await journal.header(ConversationKey(KEY.namespace, "held")) == held.header, "a held one expired")


async def removes_what_expired(lab: Lab) -> None:
    """Every method that is given the key of an expired conversation removes it, reads too; nothing of it is counted."""
    lab.needs_listing()
    journal = await lab.journal(ttl_ms=1000)
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "header": lambda: journal.header(KEY),
        "newest": lambda: journal.newest(KEY, 9, EVERYTHING),
        "oldest": lambda: journal.oldest(KEY, 0, EVERYTHING),
        "receipts": lambda: journal.receipts(KEY, 0, 9),
        "receipt": lambda: journal.receipt(KEY, "one"),
        "delete": lambda: refused(journal.delete(KEY), DecisionHistoryAbsent, "a deletion of what has expired"),
        "recover": lambda: refused(journal.recover(KEY, None), DecisionHistoryAbsent, "a recovery of what has expired"),
    }
    for name, call in calls.items():
        await append(journal, KEY, "one", say("a"))
        lab.clock.advance(1001)
        await call()
        totals = await journal.totals(KEY.namespace)
        expect((totals.conversations, totals.bytes, totals.expired) == (0, 0, 0), f"`{name}` left what has expired")


async def closes_quietly(lab: Lab) -> None:
    """Closing twice does nothing more; what comes afterwards is refused by name."""
    journal = await lab.journal()
    await append(journal, KEY, "one", say("a"))
    await journal.close()
    await journal.close()
    await refused(journal.header(KEY), StoreClosed, "a read after closing")
    await refused(append(journal, KEY, "two", say("a")), StoreClosed, "a write after closing")


JOURNAL_CHECKS: tuple[Callable[[Lab], Awaitable[None]], ...] = (
    reads_back_what_was_written,
    keeps_the_digest_chain,
    answers_by_commit_as_it_reads,
    reads_change_nothing,
    pages_as_asked,
    leaves_out_a_known_tail,
    finds_receipts,
    refuses_whole,
    refuses_first_write_whole,
    replays_the_first_receipt,
    excludes_others,
    fences_the_old_holder,
    recovers_once,
    keeps_no_blank_record,
    deletes_for_good,
    one_of_many_wins,
    survives_cancellation,
    compares_ids_exactly,
    lists_by_code_points,
    refuses_when_full,
    last_byte_has_one_winner,
    expires_as_one,
    removes_what_expired,
    closes_quietly,
)
"""Every check, in the order of the report."""


async def check_journal(
    factory: JournalFactory,
    *,
    bounded: bool = True,
    expiring: bool = True,
    listing: bool = True,
    only: Callable[[Lab], Awaitable[None]] | None = None,
) -> Report:
    """
    Prove a journal: `factory(bounds, clock)` gives a fresh and empty one, as often as it is asked.

    Say `bounded=False`, `expiring=False` or `listing=False` where the store leaves that to somebody else; what a check
    needs and cannot have is told as skipped. `only` runs one check. Needs asyncio.
    """
    outcomes = [
        await run_check(_on_a_lab(check, factory, bounded, expiring, listing), check_name(check), _rule(check))
        for check in ((only,) if only else JOURNAL_CHECKS)
    ]
    return Report(tuple(outcomes))


def _on_a_lab(
    check: Callable[[Lab], Awaitable[None]], factory: JournalFactory, bounded: bool, expiring: bool, listing: bool
) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        lab = Lab(factory, bounded=bounded, expiring=expiring, listing=listing)
        try:
            await check(lab)
        finally:
            await lab.close()

    return run


def _rule(check: Callable[..., object]) -> str:
    return (check.__doc__ or "").strip()
