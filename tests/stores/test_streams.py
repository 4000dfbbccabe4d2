"""
Reading while the conversation is deleted, and while another one is made under its key.

Every reading is stopped at each of its awaits in turn; there the conversation is deleted or replaced; then it goes on.
What it gave is of one conversation, and if that one is gone it says so: absent, and never damaged (I-39, O-51).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from minutebook import reading
from minutebook.cli.view import look
from minutebook.conversation import Conversation
from minutebook.errors import DecisionHistoryAbsent
from minutebook.model.bounds import WindowLimits
from minutebook.model.keys import ConversationKey
from minutebook.ports import Journal, Page
from minutebook.stores import streams
from minutebook.stores.journal import JournalStore
from minutebook.stores.memory import MemoryJournal
from minutebook.stores.sqlite import SQLiteJournal
from minutebook.testing.clock import FrozenClock
from minutebook.testing.drive import drive
from minutebook.testing.faults import SuspendingJournal

KEY = ConversationKey("n", "c")
SMALL = Page(rows=8, messages=2**62, size=2**62)
TURNS = 20
MOST_AWAITS = 400

Given = list[str]
Read = Callable[[Conversation, Given, Path], Awaitable[object]]


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of eight rows, so that a short conversation has many."""
    monkeypatch.setattr(streams, "STREAM_PAGE", SMALL)
    monkeypatch.setattr(reading, "STREAM_PAGE", SMALL)


def chat(journal: Journal) -> Conversation:
    limits = WindowLimits(max_messages=12)  # a window's first page ends before its oldest turn begins
    return Conversation(JournalStore(journal, namespace=KEY.namespace), KEY.id, format="openai-chat", limits=limits)


def reply(text: str, *ids: str) -> dict[str, object]:
    calls = [{"id": id_, "type": "function", "function": {"name": "f", "arguments": "{}"}} for id_ in ids]
    return {"choices": [{"message": {"role": "assistant", "content": text, **({"tool_calls": calls} if ids else {})}}]}


async def tell(conversation: Conversation, mark: str, turns: int) -> None:
    """Fill a conversation whose every text begins with `mark`; two calls are parked, and one has a late result."""
    parked = []
    for number in range(turns):
        async with conversation.turn(f"{mark} asks {number}") as turn:
            if number in (1, 3):
                parked += await turn.respond(reply(f"{mark} calls", f"{mark}{number}"))
                await turn.park(parked[-1])
            await turn.respond(reply(f"{mark} answers {number}"))
    if parked:
        await conversation.complete(parked[0], f"{mark} is late")


def marks(payload: bytes) -> list[str]:
    """Return whose texts stand in a payload, window or exchange."""
    text = payload.decode()
    return [mark for mark in "AB" for word in ("asks", "calls", "answers", "is late") if f"{mark} {word}" in text]


# --- the readings ----------------------------------------------------------------------------------------------------


async def store_entries(conversation: Conversation, given: Given, folder: Path) -> None:
    async for entry in conversation.store.entries(KEY):
        given += marks(entry.payload)


async def store_receipts(conversation: Conversation, given: Given, folder: Path) -> None:
    async for receipt in conversation.store.receipts(KEY):
        given.append(receipt.digest.hex())


async def entries(conversation: Conversation, given: Given, folder: Path) -> None:
    async for entry in conversation.entries():
        given += marks(entry.payload)


async def exchanges(conversation: Conversation, given: Given, folder: Path) -> None:
    async for exchange in conversation.exchanges():
        given += marks(exchange.json)


async def later_exchanges(conversation: Conversation, given: Given, folder: Path) -> None:
    async for exchange in conversation.exchanges(after=5):
        given += marks(exchange.json)


async def last(conversation: Conversation, given: Given, folder: Path) -> None:
    given += [mark for exchange in await conversation.last(None) for mark in marks(exchange.json)]


async def pages(conversation: Conversation, given: Given, folder: Path) -> None:
    given += [mark for exchange in await conversation.page(before=30, limit=9) for mark in marks(exchange.json)]


async def window(conversation: Conversation, given: Given, folder: Path) -> None:
    given += marks((await conversation.window()).json)


async def record(conversation: Conversation, given: Given, folder: Path) -> None:
    found = await conversation.store.read(KEY)
    if found is None:
        raise DecisionHistoryAbsent("a snapshot says it by None (SPEC D23)")
    given += [mark for entry in found.entries for mark in marks(entry.payload)]


async def verify(conversation: Conversation, given: Given, folder: Path) -> None:
    given.append((await conversation.store.verify(KEY)).digest.hex())


async def export(conversation: Conversation, given: Given, folder: Path) -> None:
    path = folder / "out.jsonl"
    path.unlink(missing_ok=True)
    await conversation.export(path)
    given += [
        mark for line in path.read_bytes().splitlines()[1:-1] for mark in marks(json.loads(line)["payload"].encode())
    ]


async def open_calls(conversation: Conversation, given: Given, folder: Path) -> None:
    given += [call.id[0] for call in await conversation.open_calls()]


async def shown(conversation: Conversation, given: Given, folder: Path) -> None:
    header = await conversation.store.header(KEY)
    if header is not None:
        found = await look(conversation.store, KEY.id, header, 9)
        given += [f"{row.seq} of turn {row.turn}" for row in found.retained]
        given += [f"to {sent.to_seq}" for sent in found.sent]


READINGS: tuple[Read, ...] = (
    store_entries,
    store_receipts,
    entries,
    exchanges,
    later_exchanges,
    last,
    pages,
    window,
    record,
    verify,
    export,
    open_calls,
    shown,
)


async def unguarded(conversation: Conversation, given: Given, folder: Path) -> None:
    """Page after page by numbers alone."""
    after = 0
    while page := await conversation.store.journal.oldest(KEY, after, SMALL):
        given += [mark for entry in page for mark in marks(entry.payload)]
        after = page[-1].seq


# --- the harness -----------------------------------------------------------------------------------------------------


class Outcome:
    """What a reading gave that was stopped at its n-th await, and whether it called the conversation absent."""

    def __init__(
        self, journal: Journal, read: Read, folder: Path, stop: int, change: Callable[[Journal], None]
    ) -> None:
        self.given: Given = []
        self.absent = self.struck = False
        steps = read(chat(SuspendingJournal(journal)), self.given, folder).__await__()
        try:
            for _ in range(stop):
                next(steps)
            change(journal)
            self.struck = True
            while True:
                next(steps)
        except StopIteration:
            pass
        except DecisionHistoryAbsent:
            self.absent = True


def journal_of(kind: str) -> Journal:
    clock = FrozenClock()  # everything is of one millisecond: times tell nothing apart
    if kind == "RAM":
        return MemoryJournal(clock=clock)
    return SQLiteJournal.on_connection(sqlite3.connect(":memory:", isolation_level=None), clock=clock)


def outcomes(kind: str, read: Read, folder: Path, turns: int | None) -> list[Outcome]:
    """Return what comes of stopping `read` at every await, deleting there, and telling another story of `turns`."""

    def change(journal: Journal) -> None:
        drive(journal.delete(KEY))
        if turns is not None:
            drive(tell(chat(journal), "B", turns))

    found: list[Outcome] = []
    for stop in range(1, MOST_AWAITS):
        journal = journal_of(kind)
        drive(tell(chat(journal), "A", TURNS))
        found.append(Outcome(journal, read, folder, stop, change))
        if not found[-1].struck:
            return found
    raise AssertionError("the reading never ended")


def whole(kind: str, read: Read, folder: Path, mark: str, turns: int | None) -> Given:
    """Return what a reading gives that nobody disturbs."""
    journal, given = journal_of(kind), list[str]()
    if turns is not None:
        drive(tell(chat(journal), mark, turns))
    try:
        drive(read(chat(journal), given, folder))
    except DecisionHistoryAbsent:
        assert turns is None
    return given


REPLACED = {"deleted": None, "shorter": 5, "as long": TURNS, "longer": TURNS + 5}


@pytest.mark.parametrize("turns", REPLACED.values(), ids=REPLACED)
@pytest.mark.parametrize("read", READINGS, ids=lambda read: read.__name__)
@pytest.mark.parametrize("kind", ["RAM", "SQLite"])
def test_i39_o51_a_reading_never_mixes_two_conversations(
    kind: str, read: Read, turns: int | None, tmp_path: Path
) -> None:
    """All of the old one, all of the new one, or the beginning of the old one and then: absent."""
    old, new = whole(kind, read, tmp_path, "A", TURNS), whole(kind, read, tmp_path, "B", turns)
    found = outcomes(kind, read, tmp_path, turns)
    for outcome in found:
        if outcome.absent:
            assert outcome.given == old[: len(outcome.given)]
        else:
            assert outcome.given in (old, new)
    assert found[-1].given == old != []
    assert any(outcome.absent for outcome in found)


@pytest.mark.parametrize("kind", ["RAM", "SQLite"])
def test_i39_control_the_harness_sees_a_mixture(kind: str, tmp_path: Path) -> None:
    """A reading by numbers alone mixes two conversations at some await."""
    found = outcomes(kind, unguarded, tmp_path, TURNS)
    assert any({"A", "B"} <= set(outcome.given) for outcome in found)


@pytest.mark.parametrize("read", READINGS, ids=lambda read: read.__name__)
@pytest.mark.parametrize("kind", ["RAM", "SQLite"])
def test_o31_a_conversation_that_goes_on_is_read_all_the_same(kind: str, read: Read, tmp_path: Path) -> None:
    """Others write while somebody reads: that is no deletion, at whichever await it happens."""
    old = whole(kind, read, tmp_path, "A", TURNS)
    for stop in range(1, MOST_AWAITS):
        journal = journal_of(kind)
        drive(tell(chat(journal), "A", TURNS))
        outcome = Outcome(journal, read, tmp_path, stop, lambda journal: drive(tell(chat(journal), "A", 1)))
        assert not outcome.absent
        if read not in (window, verify, pages, shown):
            assert outcome.given[: len(old)] == old
        if not outcome.struck:
            return
    raise AssertionError("the reading never ended")


@pytest.mark.parametrize(
    ("roles", "snapshots"),
    [(["user", "assistant"] * TURNS, 2), (["user", *["assistant"] * TURNS], 4)],
    ids=["turns", "one long turn"],
)
def test_b1_a_page_with_the_headers_digest_needs_no_second_look(roles: list[str], snapshots: int) -> None:
    """The header and one page are a cold window; where its input is sought too, that page is looked at again."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    journal = SQLiteJournal.on_connection(connection, clock=FrozenClock())
    drive(chat(journal).append([{"role": role, "content": "A"} for role in roles]))
    taken: list[str] = []
    connection.set_trace_callback(taken.append)
    assert drive(chat(journal).window(WindowLimits(max_messages=6)))
    assert taken.count("BEGIN") == snapshots
