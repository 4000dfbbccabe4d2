"""What a journal holds apart and bounds: ids, capacity, time, and its own end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from minutebook.errors import DecisionHistoryAbsent, DecisionHistoryStoreFull, StoreClosed
from minutebook.model.keys import ConversationKey
from minutebook.testing.conformance import samples
from minutebook.testing.conformance.lab import WORKERS, Lab, refused
from minutebook.testing.conformance.report import expect
from minutebook.testing.conformance.samples import EVERYTHING, FORMAT, KEY, answer, append, dump, say

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


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
    keys = [ConversationKey(KEY.namespace, f"racer-{number}") for number in range(WORKERS)]
    answers = await asyncio.gather(*(append(journal, key, "one", draft) for key in keys), return_exceptions=True)
    won = sum(answer is None for answer in answers)
    expect(won == 1, f"{won} of {WORKERS} got the last bytes")
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


async def lists_nothing_expired(lab: Lab) -> None:
    """A listing leaves out what has expired and nobody has removed yet, and what comes behind that is in its page."""
    lab.needs_listing()
    journal = await lab.journal(ttl_ms=1000)
    keys = [ConversationKey(KEY.namespace, name) for name in ("1", "2", "3")]
    for key in keys:
        await append(journal, key, "one", say("a"))
    lab.clock.advance(600)
    await append(journal, keys[1], "two", answer("b"))
    lab.clock.advance(600)
    listed = [listing.key for listing in await journal.list(KEY.namespace, "", 1)]
    expect(listed == [keys[1]], f"a page of 1 lists {len(listed)}, and not the one that is left of three")


async def closes_quietly(lab: Lab) -> None:
    """Closing twice does nothing more; what comes afterwards is refused by name."""
    journal = await lab.journal()
    await append(journal, KEY, "one", say("a"))
    await journal.close()
    await journal.close()
    await refused(journal.header(KEY), StoreClosed, "a read after closing")
    await refused(append(journal, KEY, "two", say("a")), StoreClosed, "a write after closing")
