"""
The prefix cut: what leaves a record leaves it whole, in every store, and all that stays is as it was (SPEC E6).

What the suite of journals proves of each journal is not repeated here; this is about windows, readers, files and
exports of a record that was cut.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from tests.stores.labs import KINDS, chat, open_journal, said

from minutebook.conversation import Conversation
from minutebook.errors import (
    DecisionHistoryAbsent,
    DecisionHistoryCorrupt,
    DecisionHistoryStorageFailed,
    InvalidOption,
    PairingViolation,
)
from minutebook.model.bounds import StoreBounds, WindowLimits
from minutebook.model.entries import Entry, Kind
from minutebook.model.keys import ConversationKey
from minutebook.model.record import Cut, State
from minutebook.model.summaries import Summary
from minutebook.ports import Page
from minutebook.providers.derivation import derived_entries
from minutebook.stores import streams
from minutebook.stores.journal import JournalStore
from minutebook.stores.memory import MemoryJournal
from minutebook.testing import FrozenClock, drive
from minutebook.testing.faults import SuspendingJournal

Figure = Callable[[str], None]
WIDE = WindowLimits(max_messages=10_000, max_bytes=10_000_000)
MARKER = "MARKER-5c07"


@pytest.fixture(params=KINDS)
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    made = open_journal(request.param, tmp_path)
    yield made
    drive(made.close())


async def cut(talk: Conversation, at: int) -> None:
    """Have the entries up to `at` leave."""
    async with await talk.history.open(attempt=False) as hold:
        await hold.commit((), cut=at, release=True)


async def turn(talk: Conversation, text: str, chance: Random) -> None:
    """A turn that answers, calls, parks, fails or is said more to."""
    with contextlib.suppress(OSError):
        async with talk.turn(text) as turn:
            if chance.random() < 0.3:
                await turn.say(f"{text}, quickly")
            for _ in range(chance.choice((0, 0, 1, 2))):
                calls = await turn.respond(said("", *(f"{chance.random()}" for _ in range(chance.randint(1, 2)))))
                if chance.random() < 0.3:
                    await turn.park(calls[0])
                    break
                for call in calls:
                    await turn.result(call, f"result of {text}")
            await turn.window()
            if chance.random() < 0.15:
                raise OSError
            await turn.respond(said(f"answer to {text}"))


async def tell(talk: Conversation, chance: Random, turns: int) -> None:
    """Tell a random story, in which late results come and failed turns are tried again."""
    for number in range(turns):
        await turn(talk, f"{chance.choice('abc')} {number // 2}", chance)
        for call in await talk.open_calls():
            if chance.random() < 0.6:
                await talk.complete(call, "late")


async def all_of(talk: Conversation) -> list[Entry]:
    return [entry async for entry in talk.store.entries(talk.key)]


def places(entries: list[Entry], first: int = 1) -> list[int]:
    """Return every place at which a cut may stand: before an input that stays, or behind all."""
    return [entry.seq - 1 for entry in entries if entry.kind is Kind.INPUT and entry.seq > first] + [entries[-1].seq]


async def settled_place(talk: Conversation, chance: Random, *, answered: bool = False) -> int:
    """
    Return a place to cut at that takes no exchange which waits, 0 if there is none; where it has to be `answered`, no
    input either whose retry would go on from it.
    """
    entries = await all_of(talk)
    header = await talk.store.header(talk.key)
    assert header is not None
    waiting = min((open_.exchange for open_ in header.state.open), default=header.entries + 1)
    lawful = [at for at in places(entries, entries[0].seq) if at < waiting]
    if answered and header.state.unanswered:
        lawful = [at for at in lawful if at < header.state.turn]
    return chance.choice(lawful) if lawful else 0


# --- what stays is as it was -----------------------------------------------------------------------------------------


def exchanges(found: list[Any], at: int) -> list[Any]:
    """Return of some exchanges those behind a cut."""
    return [exchange for exchange in found if exchange.turn > at]


def test_e6_what_stays_is_read_and_sent_as_before(tmp_path: Path, figure: Figure) -> None:
    """Of a twin that is never cut, windows and readings of the turns that stay are the same, to the byte."""
    cuts = 0
    for seed in range(60):
        chance = Random(seed)
        kind = KINDS[seed % 3]
        journal = open_journal(kind, tmp_path, name=f"{seed}.db")
        talk, twin = chat(journal), chat(MemoryJournal(clock=FrozenClock()))
        at = 0
        for _ in range(3):
            story = chance.random()
            for each in (talk, twin):
                drive(tell(each, Random(story), 5))
            if place := drive(settled_place(talk, chance, answered=True)):
                drive(cut(talk, place))
                at, cuts = place, cuts + 1
            stays, whole = drive(all_of(talk)), drive(all_of(twin))
            assert [entry.payload for entry in stays] == [entry.payload for entry in whole if entry.seq > at]
            assert drive(talk.last()) == exchanges(drive(twin.last()), at), f"seed {seed}"
            sent, shown = drive(talk.window(WIDE)), drive(twin.window(WIDE)).messages
            assert sent.messages == shown[len(shown) - len(sent) :], f"seed {seed}"
            inputs = [entry.fragment for entry in stays if entry.kind is Kind.INPUT]
            assert not sent.messages or msgspec.json.encode(sent.messages[0]) in inputs
            header = drive(talk.store.verify(talk.key))
            assert header.retained == len(stays)
            assert header.bytes == sum(len(entry.payload) for entry in stays if entry.kind is not Kind.ABANDONED)
        drive(journal.close())
    figure(f"60 stories, {cuts} cuts, 0 differences")
    assert cuts > 100


def test_e6_the_window_of_a_record_that_was_cut_is_that_of_its_turns(journal: Any) -> None:
    """A window under wide limits holds exactly the turns that stay, whatever the process remembered before."""
    talk = chat(journal)
    for number in range(6):
        drive(talk.append([{"role": "user", "content": f"{number}"}, {"role": "assistant", "content": "yes"}]))
    assert len(drive(talk.window(WIDE))) == 12
    drive(cut(talk, 4))
    assert [message["content"] for message in drive(talk.window(WIDE))][::2] == ["2", "3", "4", "5"]
    other = chat(journal)
    drive(cut(other, 8))
    assert [message["content"] for message in drive(talk.window(WIDE))][::2] == ["4", "5"]

    async def inside() -> list[Any]:
        async with talk.turn("6") as turn:
            window = await turn.window(WIDE)
            await turn.respond(said("yes"))
        return window.messages

    assert [message["content"] for message in drive(inside())] == ["4", "yes", "5", "yes", "6"]
    drive(cut(talk, 14))
    assert drive(talk.window(WIDE)).json == b"[]"
    assert drive(talk.last()) == []


def test_e6_counters_count_what_stays(journal: Any) -> None:
    """Turns and exchanges that left are known, also where attempts among them failed."""
    for seed in range(30):
        chance = Random(seed)
        talk = chat(journal, f"chat {seed}")
        drive(tell(talk, chance, 8))
        before = drive(talk.store.header(talk.key))
        place = drive(settled_place(talk, chance))
        if not place:
            continue
        drive(cut(talk, place))
        after = drive(talk.store.header(talk.key))
        assert before is not None
        assert after is not None
        assert (after.state.turns, after.state.exchanges) == (before.state.turns, before.state.exchanges)
        marks = [entry for entry in drive(all_of(talk)) if entry.kind is Kind.ABANDONED]
        out = {seq for mark in marks for seq in range(mark.exchange, mark.call + 1)}
        for kind, told, left in (
            (Kind.INPUT, after.state.turns, after.cut.turns),
            (Kind.RESPONSE, after.state.exchanges, after.cut.exchanges),
        ):
            stays = [entry for entry in drive(all_of(talk)) if entry.kind is kind and entry.seq not in out]
            assert told - left == len(stays), f"seed {seed}, {kind.name}"


def test_e6_a_summary_goes_with_its_own_entry(journal: Any) -> None:
    """One that stays is shown; one that leaves is shown no more, and the next begins anew."""

    def summarize(*, previous_summary: str | None, turns: list[Any], max_bytes: int) -> str:
        return f"after {previous_summary}: {len(turns)}"

    limits = WindowLimits(max_messages=6, max_bytes=10_000)
    talk = chat(journal, limits=limits, summarize=summarize, max_summary_bytes=200)

    async def ask(text: str) -> str:
        async with talk.turn(text) as turn:
            window = await turn.window()
            await turn.respond(said("yes"))
        return window.json.decode()

    shown = [drive(ask(f"{number}")) for number in range(8)]
    assert "after None" in shown[4]
    entries = drive(all_of(talk))
    newest = max(entry.seq for entry in entries if entry.kind is Kind.SUMMARY)
    stands = next(entry.seq - 1 for entry in entries if entry.kind is Kind.INPUT and entry.seq < newest < entry.seq + 3)
    drive(cut(talk, stands))
    assert Summary.__name__.lower() in drive(talk.window()).json.decode()
    drive(cut(talk, entries[-1].seq))
    assert "summary" not in drive(talk.window()).json.decode()
    assert [drive(ask(f"again {number}")) for number in range(5)][-1].count("after None") == 1
    drive(talk.store.verify(talk.key))


def test_e6_d24_a_transaction_is_given_what_stays(journal: Any) -> None:
    """A record that was cut to nothing is a record without entries, not an absent one."""
    talk = chat(journal)
    for number in range(2):
        drive(talk.append([{"role": "user", "content": f"{number}"}, {"role": "assistant", "content": "yes"}]))
    given: list[Any] = []

    async def look(record: Any) -> tuple[Any, None]:
        given.append(record)
        return record.adding(talk.history.wire.input("next")), None

    for at, stays in ((2, [3, 4]), (5, [])):
        drive(cut(talk, at))
        before = drive(talk.store.read(talk.key))
        assert before is not None
        assert [entry.seq for entry in before.entries] == stays
        drive(talk.store.transact(talk.key, look))
        assert given[-1].entries == before.entries
    assert [entry.seq for entry in drive(all_of(talk))] == [6]


# --- who waits -------------------------------------------------------------------------------------------------------


def test_e6_a_parked_call_keeps_its_exchange_and_can_be_completed(journal: Any) -> None:
    """A cut that would take it is refused whole; once it is complete it may leave, and what came late is harmless."""
    talk = chat(journal)

    async def parks() -> Any:
        async with talk.turn("one") as turn:
            (call,) = await turn.respond(said("", "slow"))
            await turn.park(call)
        return call

    call = drive(parks())
    drive(talk.append([{"role": "user", "content": "two"}, {"role": "assistant", "content": "yes"}]))
    with pytest.raises(PairingViolation):
        drive(cut(talk, 2))
    assert drive(talk.store.header(talk.key)).token == ""  # type: ignore[union-attr]
    drive(talk.complete(call, "late"))
    drive(cut(talk, 2))
    assert [message["content"] for message in drive(talk.window())] == ["two", "yes"]
    with pytest.raises(PairingViolation):
        drive(talk.complete(call, "late again"))
    drive(talk.store.verify(talk.key))


def test_e6_an_attempt_under_way_is_never_cut_into(journal: Any) -> None:
    """Not by its own holder, and a recovered one goes back to nothing that has left."""
    talk = chat(journal)
    drive(talk.append([{"role": "user", "content": "one"}, {"role": "assistant", "content": "yes"}]))
    begun = talk.turn("two")
    drive(begun.__aenter__())
    assert begun._hold is not None
    with pytest.raises(InvalidOption):
        drive(begun._hold.commit((), cut=2))
    drive(talk.store.recover(talk.key, worker_stopped=True))
    drive(cut(chat(journal), 2))
    fresh = chat(journal)

    async def retry() -> None:
        async with fresh.turn("two") as turn:
            assert len(await turn.window()) == 1
            await turn.respond(said("yes"))

    drive(retry())
    assert [entry.kind for entry in drive(all_of(fresh))] == [Kind.INPUT, Kind.ABANDONED, Kind.RESPONSE]
    drive(cut(fresh, 5))
    drive(fresh.store.verify(fresh.key))


def test_e6_an_unanswered_input_that_left_is_recorded_anew(journal: Any) -> None:
    """Its retry finds nothing to go on from, and is an input like any other."""
    talk = chat(journal)

    async def fails() -> None:
        async with talk.turn("one") as turn:
            await turn.window()
            raise ConnectionResetError

    for _ in range(2):
        with pytest.raises(ConnectionResetError):
            drive(fails())
    drive(cut(talk, 3))
    with pytest.raises(ConnectionResetError):
        drive(fails())
    assert [(entry.seq, entry.kind) for entry in drive(all_of(talk))] == [(4, Kind.INPUT), (5, Kind.ABANDONED)]
    drive(talk.store.verify(talk.key))


# --- readers ---------------------------------------------------------------------------------------------------------

READS: dict[str, Callable[[Conversation], Any]] = {
    "entries": lambda talk: all_of(talk),
    "last": lambda talk: talk.last(),
    "page": lambda talk: talk.page(after=0, limit=9),
    "window": lambda talk: talk.window(WIDE),
    "read": lambda talk: talk.store.read(talk.key),
    "verify": lambda talk: talk.store.verify(talk.key),
}


@pytest.mark.parametrize("name", READS)
def test_e6_no_reading_has_a_hole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut at each await of a reading: it gives one state, or says that what comes next has left; never Corrupt."""
    monkeypatch.setattr(streams, "STREAM_PAGE", Page(rows=4, messages=2**62, size=2**62))
    outcomes = set()
    for place in range(1, 200):
        ram = MemoryJournal(clock=FrozenClock())
        talk = Conversation(
            JournalStore(SuspendingJournal(ram), namespace="lab"), "chat", format="openai-chat", limits=WIDE
        )
        for number in range(12):
            drive(chat(ram).append([{"role": "user", "content": f"{number}"}, {"role": "assistant", "content": "yes"}]))
        coroutine = READS[name](talk)
        try:
            for _ in range(place):
                coroutine.send(None)
            drive(cut(chat(ram), 18))
            result = _finish(coroutine)
        except StopIteration:
            break
        except DecisionHistoryAbsent as error:
            outcomes.add(f"left {error.facts['cut']}")
            continue
        outcomes.add("given")
        if name in ("entries", "read"):
            numbers = [entry.seq for entry in (result.entries if name == "read" else result)]
            assert numbers in ([*range(1, 25)], [*range(19, 25)]), numbers
    else:
        pytest.fail("the reading never ended")
    assert outcomes == ({"given"} if name == "read" else {"given", "left 18"})


def _finish(coroutine: Any) -> Any:
    while True:
        try:
            coroutine.send(None)
        except StopIteration as end:
            return end.value


# --- files -----------------------------------------------------------------------------------------------------------


def copies(folder: Path) -> int:
    return sum(file.read_bytes().count(MARKER.encode()) for file in folder.iterdir())


def marked(talk: Conversation, count: int, text: str = MARKER) -> None:
    """Append exchanges in one commit, so that a row of the log holds several of them."""
    messages: list[object] = []
    for number in range(count):
        messages += [
            {"role": "user", "content": f"{text} {number} " + "x" * 900},
            {"role": "assistant", "content": text * 20},
        ]
    drive(talk.append(messages))


@pytest.mark.parametrize("blocking", [True, False])
def test_e6_what_was_cut_is_in_none_of_the_files(tmp_path: Path, blocking: bool) -> None:
    """Not in the database, its log or its sidecars, also where a row holds some that stay; before, it is there."""
    import asyncio

    async def work() -> None:
        store = JournalStore(open_journal("SQLite", tmp_path, blocking=blocking), namespace="lab")
        talk = Conversation(store, "chat", format="openai-chat")
        for part in range(3):
            messages: list[object] = []
            for number in range(5):
                messages += [
                    {"role": "user", "content": f"{MARKER if part < 2 else 'stays'} {number} " + "x" * 900},
                    {"role": "assistant", "content": (MARKER if part < 2 and number < 4 else "stays") * 20},
                ]
            await talk.append(messages)
        assert copies(tmp_path) > 100
        # Entry 20 answers the last question that is marked: the cut falls inside the second commit, then behind it.
        await cut(talk, 18)
        assert copies(tmp_path) == 1
        await cut(talk, 20)
        assert copies(tmp_path) == 0
        stays = [entry async for entry in store.entries(talk.key)]
        assert [entry.seq for entry in stays] == [*range(21, 31)]
        await store.verify(talk.key)
        await store.close()

    asyncio.run(work())
    assert copies(tmp_path) == 0


def test_e6_a_reader_keeps_a_copy_no_longer_than_it_reads(tmp_path: Path) -> None:
    """A snapshot that is open beside the cut still sees it; with a later write it is gone."""
    journal = open_journal("SQLite", tmp_path)
    talk = chat(journal)
    marked(talk, 3)
    reader = sqlite3.connect(tmp_path / "lab.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM minutebook_log").fetchall()
    drive(cut(talk, 6))
    assert copies(tmp_path) > 0
    reader.execute("COMMIT")
    reader.close()
    for number in range(3):
        marked(chat(journal, f"other {number}"), 1, "other")
    assert copies(tmp_path) == 0
    drive(journal.close())


def test_e6_a_cut_costs_what_leaves_and_not_what_stays(tmp_path: Path, figure: Figure) -> None:
    """Statements and pages written by an append that takes the oldest out are the same at any length."""
    costs: list[tuple[int, int]] = []
    for length in (20, 200, 2_000):
        journal = open_journal("SQLite", tmp_path, name=f"{length}.db")
        talk = chat(journal)
        for _ in range(length // 10):
            marked(talk, 10, "text")
        statements: list[str] = []
        drive(cut(talk, 2))
        journal._database._connection.set_trace_callback(statements.append)
        before = journal._database._connection.total_changes
        drive(cut(talk, 4))
        costs.append((len(statements), journal._database._connection.total_changes - before))
        drive(journal.close())
    figure(f"(statements, rows changed) of a cut with 20, 200 and 2,000 exchanges behind it: {costs}")
    assert len(set(costs)) == 1, costs


def test_e6_bytes_that_leave_make_room_in_every_bounded_store(tmp_path: Path) -> None:
    """To the byte, also where SQLite had granted a conversation more than it needed."""
    for kind in ("RAM", "SQLite"):
        for seed in range(20):
            chance = Random(seed)
            bound = 200_000 + chance.randrange(50_000)
            journal = open_journal(kind, tmp_path, StoreBounds(max_bytes=bound), name=f"{seed}.db")
            talk, other = chat(journal), chat(journal, "other")
            marked(talk, 60)
            drive(cut(talk, 2 * chance.randrange(1, 60)))
            room = bound - drive(talk.store.totals()).bytes
            size = len(b'{"role":"user","content":""}')
            drive(other.append([{"role": "user", "content": "x" * (room - size)}]))
            assert drive(talk.store.totals()).bytes == bound
            drive(journal.close())


def test_e6_a_file_from_before_there_were_cuts_opens_and_can_be_cut(tmp_path: Path) -> None:
    """A header without the field is that of a whole record."""
    journal = open_journal("SQLite", tmp_path)
    marked(chat(journal), 4, "text")
    drive(journal.close())
    with contextlib.closing(sqlite3.connect(tmp_path / "lab.db", isolation_level=None)) as connection:
        state = json.loads(connection.execute("SELECT state FROM minutebook_conversation").fetchone()[0])
        assert len(state) == len(State.__struct_fields__)
        connection.execute("UPDATE minutebook_conversation SET state = ?", (json.dumps(state[:-1]).encode(),))
    talk = chat(open_journal("SQLite", tmp_path))
    assert drive(talk.store.verify(talk.key)).cut == Cut()
    drive(cut(talk, 4))
    assert len(drive(talk.last())) == 2
    drive(talk.store.close())


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE minutebook_conversation SET state = replace(state, '[4,', '[6,')",
        "UPDATE minutebook_conversation SET bytes = bytes + 1",
        "DELETE FROM minutebook_log WHERE seq = 5",
        "UPDATE minutebook_log SET seq = seq + 1",
    ],
)
def test_e6_b8_a_cut_record_that_was_altered_is_found(tmp_path: Path, damage: str) -> None:
    """The anchor, the counters and what stays prove each other: the control is the record as it was."""
    journal = open_journal("SQLite", tmp_path)
    talk = chat(journal)
    for _ in range(4):
        marked(talk, 1, "text")
    drive(cut(talk, 4))
    drive(talk.store.verify(talk.key))
    drive(journal.close())
    with contextlib.closing(sqlite3.connect(tmp_path / "lab.db", isolation_level=None)) as connection:
        assert connection.execute(damage).rowcount > 0
    talk = chat(open_journal("SQLite", tmp_path))
    with pytest.raises(DecisionHistoryCorrupt):
        drive(talk.store.verify(talk.key))
    drive(talk.store.close())


def test_e6_an_interrupted_cut_in_ram_took_all_or_nothing() -> None:
    """Struck at every line of a write that cuts: the header alone says what is recorded, and the rest follows it."""
    import sys

    struck = 0
    for strike in range(1, 400):
        journal = MemoryJournal(clock=FrozenClock())
        talk = chat(journal)
        for number in range(4):
            drive(talk.append([{"role": "user", "content": f"{number}"}, {"role": "assistant", "content": "yes"}]))
        lines = iter(range(1, strike + 1))

        def trace(frame: Any, event: str, _: Any, lines: Iterator[int] = lines, strike: int = strike) -> Any:
            code = frame.f_code
            inside = code.co_filename.endswith("stores/memory.py") and code.co_name in ("store", "add", "without")
            if inside and event == "line" and next(lines, 0) == strike:
                sys.settrace(None)
                raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            drive(cut(talk, 4))
        except KeyboardInterrupt:
            struck += 1
        else:
            break
        finally:
            sys.settrace(None)
        again = chat(journal)
        header = drive(again.store.header(again.key))
        assert header is not None
        if header.token:
            header = drive(again.store.recover(again.key, worker_stopped=True))
        assert header.cut.seq in (0, 4)
        drive(again.append([{"role": "user", "content": "next"}, {"role": "assistant", "content": "yes"}]))
        drive(again.store.verify(again.key))
        assert len(drive(again.last())) == 5 - header.cut.seq // 2
    assert struck > 15


# --- transfer --------------------------------------------------------------------------------------------------------


def test_e6_an_export_begins_where_the_record_does_and_comes_back(tmp_path: Path, figure: Figure) -> None:
    """Numbers, digests, marks, late results, counters and windows are those of the original; it goes on like it."""
    tmp_path.chmod(0o700)
    cuts = 0
    for seed in range(60):
        chance = Random(seed)
        here, there = MemoryJournal(clock=FrozenClock()), open_journal(KINDS[seed % 3], tmp_path, name=f"{seed}.db")
        talk, again = chat(here), chat(there)
        for _ in range(2):
            drive(tell(talk, chance, 6))
            if place := drive(settled_place(talk, chance)):
                drive(cut(talk, place))
                cuts += 1
        path = tmp_path / f"{seed}.jsonl"
        entries = drive(all_of(talk))
        assert drive(talk.export(path)) == len(entries)
        drive(again.import_(path))
        assert drive(all_of(again)) == entries
        before, after = drive(talk.store.header(talk.key)), drive(again.store.header(again.key))
        assert before is not None
        assert after is not None
        assert after.state == before.state, f"seed {seed}"
        assert (after.entries, after.bytes, after.digest) == (before.entries, before.bytes, before.digest)
        assert drive(again.window(WIDE)).json == drive(talk.window(WIDE)).json
        drive(again.store.verify(again.key))
        drive(again.export(tmp_path / f"{seed} again.jsonl"))
        first, second = (file.read_bytes() for file in (path, tmp_path / f"{seed} again.jsonl"))
        assert first == second
        for each in (talk, again):
            drive(tell(each, Random(seed), 3))
        assert drive(again.window(WIDE)).json == drive(talk.window(WIDE)).json
        drive(there.close())
    figure(f"60 exports, {cuts} cuts before them, 0 differences")
    assert cuts > 70


def test_o48_a_forged_anchor_is_refused(tmp_path: Path) -> None:
    """A file cannot begin where its own chain does not, nor claim an anchor that none can have."""
    from minutebook.errors import ImportRefused
    from minutebook.model.transfer import Checks, Head

    tmp_path.chmod(0o700)
    talk = chat(MemoryJournal())
    for _ in range(3):
        marked(talk, 1, "text")
    drive(cut(talk, 2))
    drive(talk.export(tmp_path / "file.jsonl"))
    lines = (tmp_path / "file.jsonl").read_bytes().splitlines()

    def forged(**changes: object) -> Path:
        checks, told = Checks(), []
        for number, line in enumerate(lines):
            value = json.loads(line)
            del value["check"]
            if not number:
                head = msgspec.structs.replace(msgspec.convert(value, Head), **changes)
                told.append(checks.sealed(head))
            else:
                body = msgspec.json.encode(value)[:-1]
                checks.last = checks._next(body)
                told.append(body + b',"check":"%s"}\n' % checks.last)
        (tmp_path / "forged.jsonl").write_bytes(b"".join(told))
        return tmp_path / "forged.jsonl"

    async def taken(path: Path) -> None:
        store = JournalStore(MemoryJournal(), namespace="lab")
        await store.import_(ConversationKey("lab", "chat"), path, check=derived_entries)

    drive(taken(forged()))  # the control: this forger's files pass
    for changes in (
        {"cut": 1},
        {"cut": 4},
        {"cut": 0, "cut_digest": ""},
        {"cut": -2},
        {"cut": 2**62 + 1},
        {"cut_digest": "00" * 32},
        {"cut_digest": "0"},
        {"cut_turns": -1},
        {"cut_turns": 7},
    ):
        with pytest.raises(ImportRefused):
            drive(taken(forged(**changes)))


def test_e6_a_claimed_anchor_costs_no_memory(tmp_path: Path) -> None:
    """An export that says that billions of entries have left is a few lines; so is what becomes of it, in any store."""
    from minutebook.model.record import Delta
    from minutebook.testing.conformance.samples import EVERYTHING, say

    begins = Cut(2**60, b"d" * 32, 2**59, 0)
    for kind in KINDS:
        journal = open_journal(kind, tmp_path)
        key = ConversationKey("lab", "claims")
        delta = Delta(drafts=(say("a"), say("b")), idempotency="one", imported=True, begins=begins, settles=True)
        if kind.startswith("Redis"):  # whose scripts count in doubles
            with pytest.raises(DecisionHistoryStorageFailed, match="a server counts to"):
                drive(journal.reserve(key, "t", format="f", opening=delta, release=True))
            assert drive(journal.header(key)) is None
            continue
        drive(journal.reserve(key, "t", format="f", opening=delta, release=True))
        assert [entry.seq for entry in drive(journal.oldest(key, 0, EVERYTHING))] == [2**60 + 1, 2**60 + 2]
        more = Delta(drafts=(say("c"),), idempotency="two", cut=2**60 + 1)
        drive(journal.reserve(key, "t", format="f", opening=more, release=True))
        assert len(drive(journal.newest(key, 2**62, EVERYTHING))) == 2
        drive(JournalStore(journal, namespace="lab").verify(key))
        drive(journal.close())
