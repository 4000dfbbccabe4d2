"""What a journal keeps, gives back and refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from minutebook.errors import (
    DecisionHistoryConflict,
    DecisionHistoryCorrupt,
    DecisionHistoryRetentionExceeded,
    PairingViolation,
)
from minutebook.model.arrivals import draft_of
from minutebook.model.entries import Kind, first_digest, recompute_digest
from minutebook.ports import Page
from minutebook.testing.conformance import samples
from minutebook.testing.conformance.lab import Lab, refused
from minutebook.testing.conformance.report import expect
from minutebook.testing.conformance.samples import EVERYTHING, FORMAT, KEY, adding, answer, append, dump, result, say

if TYPE_CHECKING:
    pass


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
    made, anew = (adding("three", say(text), given=b"the same") for text in ("c", "d"))
    third = (await journal.reserve(KEY, "w", format=FORMAT, opening=made, release=True)).receipt
    other = await journal.reserve(KEY, "x", format=FORMAT, opening=anew, release=True)
    expect(other.receipt == third and other.written == (), "what was given is not what a replay is known by")


async def takes_a_record_with_its_receipts(lab: Lab) -> None:
    """A record that is imported with its receipts has these and no other, and goes on from their version and epoch."""
    first, second = await lab.journal(), await lab.journal()
    for number in range(40):
        await append(first, KEY, f"id-{number}", say(f"ask {number}"), answer("so"))
    header, entries = await first.header(KEY), await samples.entries(first, KEY)
    receipts = await first.receipts(KEY, 0, EVERYTHING.rows)
    moved = samples.adding(
        receipts[-1].idempotency,
        *map(draft_of, entries),
        imported=True,
        settles=True,
        ends=header.state if header else None,
        receipts=receipts,
    )
    await refused(
        second.reserve(KEY, "t", format=FORMAT, opening=replace(moved, drafts=moved.drafts[:-2]), release=True),
        DecisionHistoryCorrupt,
        "a record that ends before its receipts do",
    )
    expect(await second.header(KEY) is None, "a refused import created the conversation")
    for number in range(2):
        reserved = await second.reserve(KEY, f"t-{number}", format=FORMAT, opening=moved, release=True)
        expect(reserved.receipt == receipts[-1], "an import is not answered by the last receipt that came with it")
        expect(len(reserved.written) == (0 if number else len(entries)), "a repeated import was written twice")
    expect(await samples.entries(second, KEY) == entries, "an imported entry is not what it was")
    expect(await second.receipts(KEY, 0, EVERYTHING.rows) == receipts, "the receipts are not those that came")
    expect(await second.receipts(KEY, 37, 2) == receipts[37:39], "the receipts above a version are not those asked for")
    for receipt in (receipts[0], receipts[-1]):
        expect(await second.receipt(KEY, receipt.idempotency) == receipt, "a receipt that came is not found by its id")
    await append(second, KEY, "id-0", say("ask 0"), answer("so"))
    await append(second, KEY, "next", say("more"))
    after = await second.header(KEY)
    counted = (after.version, after.entries) if after else None
    expect(counted == (41, 81), f"the next commit has version and entry {counted} and not 41 and 81")
    epoch = receipts[-1].epoch
    expect(after is not None and after.epoch > epoch, "the epoch does not go on from the last one that came")
