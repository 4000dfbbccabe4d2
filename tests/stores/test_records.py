"""What a record is, on every store: exact, ordered, read without a trace, small, and gone when deleted."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import sqlite3
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budgets import budget
from tests.stores import postgres_lab, redis_lab
from tests.stores.hosts import PlainHost, ThreadedHost
from tests.stores.labs import KINDS, PROVE, SERVERS, chat, in_threads, open_journal, said
from tests.stores.postgres_lab import POSTGRES
from tests.stores.redis_lab import REDIS

from minutebook.conversation import Conversation
from minutebook.errors import (
    DecisionHistoryAbsent,
    DecisionHistoryBusy,
    DecisionHistoryConflict,
    DecisionHistoryCorrupt,
    DecisionHistoryFenced,
    DecisionHistorySchemaUnsupported,
    InvalidMessage,
    InvalidOption,
    InvalidValue,
    MinutebookError,
    StoreClosed,
)
from minutebook.model.bounds import WindowLimits
from minutebook.model.entries import Call, Draft, Kind
from minutebook.model.keys import ConversationKey
from minutebook.stores.hosted import HostedJournal
from minutebook.stores.journal import JournalStore
from minutebook.stores.memory import MemoryJournal
from minutebook.testing import FaultyJournal, FrozenClock, checkpoint, drive
from minutebook.testing.conformance import samples
from minutebook.testing.conformance.samples import FORMAT, adding, answer, append, dump, say

# --- exactness -------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(14_400 if PROVE else 300)
@pytest.mark.parametrize("kind", KINDS)
def test_i20_what_was_appended_is_read_back_equal(kind: str, tmp_path: Path) -> None:
    """Payloads come back byte for byte whatever bytes they are, with every number beside them (I-20)."""
    journal = open_journal(kind, tmp_path)
    numbers = itertools.count()
    text = st.text(max_size=40)
    payloads = st.one_of(
        text.map(str.encode), st.binary(max_size=40), st.sampled_from([b"", b"\0", b"\xff\xfe", b"1", b"1.0", b"true"])
    )

    @settings(max_examples=budget(200, 100_000), deadline=None, database=None, derandomize=not PROVE)
    @given(
        payloads=st.lists(payloads, min_size=1, max_size=5),
        names=st.lists(text, max_size=3),
        sizes=st.tuples(*[st.integers(0, 2**62)] * 2),
    )
    def story(payloads: list[bytes], names: list[str], sizes: tuple[int, int]) -> None:
        key = ConversationKey("lab", f"{next(numbers)}")
        calls = tuple(Call(name, name[::-1]) for name in names)
        drafts = [
            Draft(kind=Kind.INPUT, payload=payload, messages=sizes[0] % 99, size=sizes[1], stop=len(payload))
            for payload in payloads
        ]
        drafts.append(Draft(kind=Kind.RESPONSE, payload=payloads[0], calls=calls))
        drive(append(journal, key, "one", *drafts))
        entries = drive(samples.entries(journal, key))
        for draft, entry in zip(drafts, entries, strict=True):
            for field in ("kind", "payload", "messages", "size", "start", "stop", "calls"):
                assert getattr(entry, field) == getattr(draft, field)
                assert type(getattr(entry, field)) is type(getattr(draft, field))
        drive(JournalStore(journal, namespace="lab").verify(key))

    story()


@pytest.mark.parametrize("kind", KINDS)
def test_i25_reading_and_windows_leave_no_trace(kind: str, tmp_path: Path) -> None:
    """Windows, pages, verification and listings change nothing of the record (I-25)."""
    clock = FrozenClock()
    journal = open_journal(kind, tmp_path, clock=clock)
    conversation = chat(journal)
    for number in range(5):
        drive(conversation.append([{"role": "user", "content": f"{number}"}, {"role": "assistant", "content": "a"}]))
    before = drive(dump(journal, conversation.key))
    clock.advance(10_000)
    faulty = FaultyJournal(journal)
    reader = chat(faulty)

    async def read() -> None:
        await reader.window()
        await reader.last(3)
        await reader.page(after=0)
        await reader.store.read(reader.key)
        await reader.store.verify(reader.key)
        await reader.store.list()
        await reader.store.totals()
        await reader.open_calls()

    drive(read())
    writes = {"reserve", "commit", "recover", "delete"}
    assert not writes & set(faulty.calls)
    assert drive(dump(journal, conversation.key)) == before


@pytest.mark.parametrize("kind", KINDS)
def test_o39_order_is_by_seq_alone(kind: str, tmp_path: Path) -> None:
    """Two entries of the same millisecond, and one from an earlier clock, keep their order over 100 readings (O-39)."""
    clock = FrozenClock()
    journal = open_journal(kind, tmp_path, clock=clock)
    key = ConversationKey("lab", "a")
    drive(append(journal, key, "one", say("q"), answer("thinking"), answer("said")))
    clock.set_back(3_600_000)
    drive(append(journal, key, "two", say("earlier by the clock")))
    if kind == "SQLite":
        drive(journal.close())
        journal = open_journal(kind, tmp_path, clock=clock)
    first = drive(samples.entries(journal, key))
    assert [entry.seq for entry in first] == [1, 2, 3, 4]
    assert first[3].wall < first[0].wall == first[1].wall == first[2].wall
    for _ in range(100):
        assert drive(samples.entries(journal, key)) == first
        assert drive(journal.newest(key, 5, samples.EVERYTHING)) == first[::-1]


@pytest.mark.parametrize("kind", KINDS)
def test_o40_a_limit_returns_the_newest_in_order(kind: str, tmp_path: Path) -> None:
    """Of exchanges 1 to 10 a limit of 3 gives 8, 9, 10; 0 none, 11 and `None` all; paging meets each once (O-40)."""
    conversation = chat(open_journal(kind, tmp_path))

    def add(number: int) -> None:
        messages = [{"role": "user", "content": f"{number}"}, {"role": "assistant", "content": f"answer {number}"}]
        drive(conversation.append(messages))

    def numbers(exchanges: Any) -> list[int]:
        return [int(exchange.messages[0]["content"]) for exchange in exchanges]

    for number in range(1, 11):
        add(number)
    for limit, expected in ((3, [8, 9, 10]), (0, []), (1, [10]), (10, [*range(1, 11)]), (11, [*range(1, 11)])):
        assert numbers(drive(conversation.last(limit))) == expected
        assert numbers(drive(conversation.page(limit=limit))) == expected
    assert numbers(drive(conversation.last(None))) == [*range(1, 11)]
    forth: list[int] = []
    after = 0
    while page := drive(conversation.page(after=after, limit=3)):
        forth += numbers(page)
        after = page[-1].seq
        if len(forth) < 12:
            add(len(forth) + 200)
    assert sorted(set(forth)) == sorted(forth)
    assert forth == numbers(drive(conversation.last(None)))


@pytest.mark.parametrize("kind", KINDS)
def test_o40_paging_backwards_meets_each_exchange_once(kind: str, tmp_path: Path) -> None:
    """Pages before the first exchange of the last page meet every exchange once while others append (O-40)."""
    conversation = chat(open_journal(kind, tmp_path))

    def add(number: int) -> None:
        messages = [{"role": "user", "content": f"{number}"}, {"role": "assistant", "content": f"answer {number}"}]
        drive(conversation.append(messages))

    for number in range(1, 11):
        add(number)
    back: list[int] = []
    before = 0
    while page := drive(conversation.page(before=before, limit=3)):
        back = [int(exchange.messages[0]["content"]) for exchange in page] + back
        before = page[0].seq
        add(len(back) + 100)  # others append meanwhile
    assert back == [*range(1, 11)]


# --- growth ----------------------------------------------------------------------------------------------------------


GROWING = ConversationKey("lab", "a")


def _stored(kind: str, folder: Path, turns: int) -> tuple[float, list[float]]:
    """Return the bytes that so many turns of 1 KB take, and the bytes per append of the first and last hundred."""
    name = f"{turns}.db"
    journal = open_journal(kind, folder, name=name)
    text = "x" * 900
    written: list[int] = []
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(turns):
            drive(append(journal, GROWING, f"{number}", say(text), answer(text)))
            if number in (100, 200, turns - 101, turns - 1):
                written.append(_size(kind, folder / name))
    finally:
        tracemalloc.stop()
    return written[-1], [(written[1] - written[0]) / 100, (written[3] - written[2]) / 100]


def _size(kind: str, path: Path) -> int:
    if kind == "RAM":
        return tracemalloc.get_traced_memory()[0]
    if kind in POSTGRES:
        return postgres_lab.size_of(f"{path}", GROWING)
    if kind in REDIS:
        return redis_lab.size_of(kind, f"{path}", GROWING)
    with sqlite3.connect(path) as connection:
        pages, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    return int(pages * size)


@pytest.mark.parametrize("kind", ["RAM", "SQLite", *SERVERS])
def test_o49_storage_grows_with_the_length(kind: str, tmp_path: Path, figure: Callable[[str], None]) -> None:
    """Twice the turns take at most 2.2 times the bytes, and an append costs the same at any length (O-49)."""
    small, _ = _stored(kind, tmp_path, 1_000)
    large, (first, last) = _stored(kind, tmp_path, 2_000)
    assert large <= 2.2 * small
    assert last <= 1.3 * first
    figure(f"{kind}: size(2,000) = {large / small:.2f} × size(1,000); bytes per append {first:,.0f} then {last:,.0f}")


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("low_water", [None, 1.0])
def test_o49_appending_does_not_read_the_record(steps: int, low_water: float | None, tmp_path: Path) -> None:
    """Turns on a warm process read nothing, at any length, while their windows are cut again and again (O-49, B1)."""

    async def turn(conversation: Any) -> None:
        async with conversation.turn("q") as turn:
            await turn.window()
            for step in range(steps):
                (call,) = await turn.respond(said("", f"call-{step}"))
                await turn.result(call, "r")
                await turn.window()
            await turn.respond(said("a"))

    messages = [{"role": "user", "content": "x" * 1_000}, {"role": "assistant", "content": "y" * 1_000}]
    for exchanges in (50, 500, 2_000):
        faulty = FaultyJournal(open_journal("SQLite", tmp_path))
        conversation = chat(faulty, f"{exchanges}", limits=WindowLimits(max_messages=24, low_water=low_water))
        drive(conversation.append(messages * exchanges))
        for _ in range(3):
            drive(turn(conversation))
        for _ in range(20):
            faulty.calls.clear()
            drive(turn(conversation))
            assert faulty.calls == ["reserve", *["commit"] * (2 * steps + 1)]


def test_o49_a_turn_of_many_steps_is_not_remembered_whole(tmp_path: Path) -> None:
    """What one process remembers is bounded by the limits, also where the input of a turn lies far behind (B1)."""
    conversation = chat(open_journal("SQLite", tmp_path), limits=WindowLimits(max_messages=8))

    async def many_steps() -> None:
        async with conversation.turn("q") as turn:
            for step in range(100):
                (call,) = await turn.respond(said("", f"call-{step}"))
                await turn.result(call, "r")
            await turn.respond(said("a"))

    drive(many_steps())
    remembered = conversation.store.tails.get(conversation.key)
    assert remembered is not None
    assert len(remembered.tail.entries) <= 2 * 8 + 2
    assert remembered.tail.held < 8 * 1_000


# --- locks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_o31_a_refused_batch_leaves_no_lock_and_no_row(kind: str, tmp_path: Path) -> None:
    """A batch whose second message cannot be encoded leaves 0 rows, and a second writer goes on at once (O-31 a)."""
    journal = open_journal(kind, tmp_path)
    conversation = chat(journal)
    for bad in (object(), {"role": "user", "content": float("nan")}, {"role": "user", "content": "\ud800"}):
        with pytest.raises((InvalidValue, InvalidMessage)):
            drive(conversation.append([{"role": "user", "content": "valid"}, bad]))
        assert drive(journal.header(conversation.key)) is None
    if kind == "SQLite":
        with sqlite3.connect(tmp_path / "lab.db", timeout=0, isolation_level=None) as second:
            second.execute("BEGIN IMMEDIATE")
            second.execute("ROLLBACK")
    drive(chat(journal, "b").append([{"role": "user", "content": "goes on"}]))


@pytest.mark.parametrize("kind", ["SQLite", *SERVERS])
def test_o31_readers_beside_a_writer_never_see_a_lock(kind: str, tmp_path: Path) -> None:
    """One reader polls while a writer commits 200 times: no failure on either side (O-31 b)."""
    journal, other = open_journal(kind, tmp_path), open_journal(kind, tmp_path)
    key = ConversationKey("lab", "a")
    done: list[bool] = []

    def write() -> None:
        for number in range(200):
            drive(append(journal, key, f"{number}", say("x")))
        done.append(True)

    def read() -> int:
        seen = 0
        while not done:
            header = drive(other.header(key))
            entries = drive(samples.entries(other, key))
            assert [entry.seq for entry in entries] == [*range(1, len(entries) + 1)]
            assert len(entries) >= (header.entries if header else 0)
            seen += 1
        return seen

    written, seen = in_threads([write, read])
    assert written is None
    assert isinstance(seen, int), seen
    assert seen > 0


# --- deletion --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_o51_deleted_stays_deleted(kind: str, tmp_path: Path) -> None:
    """Deleting an active conversation is Busy; after a delete a late commit is fenced and creates nothing (O-51)."""
    journal = open_journal(kind, tmp_path)
    worker, operator = chat(journal), chat(journal)

    async def turn() -> None:
        async with worker.turn("hi", id="turn-id") as turn:
            with pytest.raises(DecisionHistoryBusy):
                await operator.store.delete(operator.key)
            await turn.window()
            await operator.store.recover(operator.key, worker_stopped=True)
            await operator.store.delete(operator.key)
            await turn.respond(said("late"))

    with pytest.raises(DecisionHistoryFenced):
        drive(turn())
    assert drive(operator.store.read(operator.key)) is None
    assert drive(operator.store.list()) == ()
    assert drive(journal.receipt(operator.key, "turn-id")) is None
    assert drive(worker.window()).messages == []
    assert drive(journal.totals("lab")).bytes == 0

    async def again() -> None:
        async with worker.turn("anew", id="turn-id") as turn:
            assert [message["content"] for message in await turn.window()] == ["anew"]
            await turn.respond(said("a"))

    drive(again())
    assert drive(journal.header(worker.key)).entries == 2


# --- closing, loops, forks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_bad_input_61_two_loops_share_a_store(kind: str, tmp_path: Path) -> None:
    """Two threads with an event loop each: every conversation is written whole, held ones are Busy (61)."""
    journal = open_journal(kind, tmp_path, blocking=False)

    def work(name: str) -> int:
        async def turns() -> int:
            done = 0
            for number in range(40):
                try:
                    async with chat(journal, f"{number % 3}").turn(f"{name}-{number}") as turn:
                        await turn.respond(said("a"))
                        done += 1
                except DecisionHistoryBusy:
                    await asyncio.sleep(0)
            return done

        return asyncio.run(turns())

    done = in_threads([lambda: work("one"), lambda: work("two")])
    assert all(isinstance(count, int) for count in done), done
    reader = open_journal(kind, tmp_path) if kind in SERVERS else journal
    total = sum(drive(reader.header(chat(journal, f"{n}").key)).entries for n in range(3))
    assert total == 2 * sum(done)


@pytest.mark.parametrize("kind", KINDS)
def test_bad_input_63_loop_closed_with_work_pending(kind: str, tmp_path: Path) -> None:
    """A loop that ends in the middle of a turn leaves a record that the next loop goes on with (63)."""
    journal = open_journal(kind, tmp_path, blocking=False)
    conversation = chat(journal)

    async def forever() -> None:
        async with conversation.turn("hi") as turn:
            await turn.window()
            await asyncio.sleep(3_600)

    async def leaves() -> None:
        task = asyncio.ensure_future(forever())
        while not (header := await journal.header(conversation.key)) or not header.token:
            await asyncio.sleep(0)
        assert not task.done()

    asyncio.run(leaves())

    async def next_turn() -> None:
        async with conversation.turn("go on") as turn:
            assert [message["content"] for message in await turn.window()] == ["go on"]
            await turn.respond(said("a"))

    asyncio.run(next_turn())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("kind", ["RAM", "SQLite"])
def test_bad_input_64_use_after_a_fork_is_refused(kind: str, tmp_path: Path) -> None:
    """In a forked child every call raises StoreClosed; the parent goes on unharmed (64, I-17)."""
    journal = open_journal(kind, tmp_path)
    key = ConversationKey("lab", "a")
    drive(append(journal, key, "one", say("x")))
    child = os.fork()
    if not child:
        try:
            for call in (journal.header(key), append(journal, key, "two", say("y"))):
                try:
                    drive(call)
                except StoreClosed:
                    continue
                os._exit(1)
            os._exit(0)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    drive(append(journal, key, "two", say("y")))
    assert len(drive(samples.entries(journal, key))) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_bad_input_69_closing_while_in_use(kind: str, tmp_path: Path) -> None:
    """A store that is closed in a turn refuses by name from then on, and closes only once (69)."""
    journal = open_journal(kind, tmp_path)
    conversation = chat(journal)

    async def turn() -> None:
        async with conversation.turn("hi") as turn:
            await conversation.store.close()
            await conversation.store.close()
            await turn.respond(said("a", "call"))

    with pytest.raises(StoreClosed):
        drive(turn())
    with pytest.raises(StoreClosed):
        drive(conversation.window())


@pytest.mark.parametrize("kind", KINDS)
def test_bad_input_70_turn_that_is_never_finished_is_visible(kind: str, tmp_path: Path) -> None:
    """A turn that nobody goes on with holds a reservation that totals and listings show, and can be recovered (70)."""
    journal = open_journal(kind, tmp_path)
    conversation = chat(journal)

    async def never_finished() -> None:
        async with conversation.turn("hi"):
            await checkpoint()

    dropped = never_finished()
    dropped.send(None)
    assert drive(conversation.store.totals()).reserved == 1
    assert drive(conversation.store.list())[0].header.token
    drive(conversation.store.recover(conversation.key, worker_stopped=True))
    assert drive(conversation.store.totals()).reserved == 0
    dropped.close()
    drive(conversation.store.verify(conversation.key))


# --- the hosted journal's document -----------------------------------------------------------------------------------


def test_d24_host_without_listing_is_told_so() -> None:
    """A host that cannot name its records gets a refusal that says what it lacks; all else works (SPEC D24)."""
    store = JournalStore(HostedJournal(PlainHost()), namespace="lab")
    drive(append(store.journal, store.key("a"), "one", say("x")))
    for call in (store.list(), store.totals()):
        with pytest.raises(InvalidOption, match="keys"):
            drive(call)
    drive(store.verify(store.key("a")))


@pytest.mark.parametrize("place", [0, 40, -1])
def test_bad_input_48_a_signature_altered_by_one_byte_is_found(place: int, tmp_path: Path) -> None:
    """Opaque data is stored as it came and never judged; that the file was changed since is told by the chain (48)."""
    conversation = Conversation(
        JournalStore(open_journal("SQLite", tmp_path), namespace="lab"), "a", format="anthropic"
    )
    signature = "EqQB" + "Abc+/" * 20 + "=="
    thinking = [{"type": "thinking", "thinking": "hm", "signature": signature}, {"type": "text", "text": "yes"}]
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": thinking}]
    drive(conversation.append(messages))
    assert drive(conversation.window()).messages == messages
    assert drive(conversation.store.verify(conversation.key)).entries == 2
    letters = list(signature)
    letters[place] = "X"
    connection = sqlite3.connect(tmp_path / "lab.db", isolation_level=None)
    ((row,),) = connection.execute("SELECT entries FROM minutebook_log").fetchall()
    changed = row.replace(signature.encode(), "".join(letters).encode())
    assert changed != row
    connection.execute("UPDATE minutebook_log SET entries = ?", (changed,))
    connection.close()
    with pytest.raises(DecisionHistoryCorrupt) as found:
        drive(conversation.store.verify(conversation.key))
    assert found.value.seq == 2


def rewritten(path: Path, alter: Callable[[list[Any]], None]) -> None:
    """Change what the rows of the log hold, without a word to the chain."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for row, packed in connection.execute("SELECT rowid, entries FROM minutebook_log").fetchall():
            entries = msgspec.msgpack.decode(packed)
            for entry in entries:
                alter(entry)
            changed = msgspec.msgpack.encode(entries)
            connection.execute("UPDATE minutebook_log SET entries = ? WHERE rowid = ?", (changed, row))


def test_i39_an_exchange_of_a_turn_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    """A turn that was altered where it is stored: the window says where first, and sends nothing (I-39)."""
    conversation = chat(open_journal("SQLite", tmp_path))
    drive(conversation.append([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]))

    def elsewhere(entry: list[Any]) -> None:
        entry[2] = 7

    rewritten(tmp_path / "lab.db", elsewhere)
    with pytest.raises(DecisionHistoryCorrupt) as caught:
        drive(chat(open_journal("SQLite", tmp_path)).window())
    assert caught.value.seq == 1


def test_i39_a_waiting_call_that_its_response_does_not_make_is_refused_by_name(tmp_path: Path) -> None:
    """The header tells of a call and the stored response of none: `open_calls` says so (I-39)."""
    conversation = chat(open_journal("SQLite", tmp_path))

    async def story() -> None:
        async with conversation.turn("q") as turn:
            (call,) = await turn.respond(said("", "call-1"))
            await turn.park(call)

    drive(story())

    def silent(entry: list[Any]) -> None:
        if entry[1] == 4:
            entry[12] = entry[12].replace(b'"tool_calls"', b'"tool_callz"')

    rewritten(tmp_path / "lab.db", silent)
    with pytest.raises(DecisionHistoryCorrupt):
        drive(chat(open_journal("SQLite", tmp_path)).open_calls())


def test_i39_altered_hosted_record_is_refused_and_left_alone() -> None:
    """A record that is cut, altered or foreign gives a named error, and its bytes stay as they are (I-39)."""
    host = ThreadedHost()
    store = JournalStore(HostedJournal(host), namespace="lab")
    key = store.key("a")
    drive(append(store.journal, key, "one", say("x"), answer("y", "call")))
    good = host.records[key]
    refusals = (DecisionHistoryCorrupt, DecisionHistorySchemaUnsupported)
    seen: set[str] = set()

    def refused() -> None:
        with pytest.raises(refusals) as told:
            drive(store.verify(key))
        seen.add(told.value.code)

    for bad in (b"", b"[]", b"{}", b"null", good[:-1], good[: len(good) // 2], good + b"x", b"\x80\x04K\x01.", b"\xff"):
        host.records[key] = bad
        refused()
        with pytest.raises(refusals):
            drive(append(store.journal, key, "two", say("z")))
        assert host.records[key] == bad
    host.records[key] = good.replace(b'"version":1', b'"version":2', 1)
    refused()
    assert seen == {"DecisionHistoryCorrupt", "DecisionHistorySchemaUnsupported"}
    unchanged = 0
    for place in range(len(good)):
        host.records[key] = good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :]
        with contextlib.suppress(*refusals):
            drive(store.verify(key))
            entries = drive(samples.entries(store.journal, key))
            assert [entry.payload for entry in entries] == [say("x").payload, answer("y").payload]
            unchanged += 1
    assert unchanged < len(good) / 2


def test_hosted_record_is_one_readable_document() -> None:
    """What a host keeps is one JSON document with the messages as text; bytes that are no text are kept too."""
    import json

    host = ThreadedHost()
    journal = HostedJournal(host, clock=FrozenClock())
    key = ConversationKey("lab", "a")
    drive(append(journal, key, "one", say("\u00e9"), Draft(kind=Kind.RESPONSE, payload=b"\xff\x00")))
    document = json.loads(host.records[key])
    assert document["version"] == 1
    assert json.loads(document["entries"][0][12]) == {"role": "user", "content": "\u00e9"}
    assert drive(samples.entries(journal, key))[1].payload == b"\xff\x00"
    with pytest.raises(DecisionHistoryConflict):
        drive(journal.reserve(key, "t", format="another"))


def test_hosted_operations_never_wait_and_may_run_twice() -> None:
    """A host may run an operation again after a conflict of its own: nothing is written twice (SPEC D24)."""

    class RunsTwice(ThreadedHost):
        async def transact(self, key: Any, operation: Any) -> Any:
            stored = self.records.get(key)
            with self.lock:
                try:
                    operation(stored).send(None)
                except StopIteration:
                    pass
                except MinutebookError:
                    pass
                else:
                    raise AssertionError("the operation waited")
            return await super().transact(key, operation)

    journal = HostedJournal(RunsTwice(), clock=FrozenClock())
    key = ConversationKey("lab", "a")
    epoch = drive(journal.reserve(key, "t", format=FORMAT, opening=adding("one", say("x")))).header.epoch
    drive(journal.commit(key, "t", epoch, adding("two", answer("y")), release=True))
    assert epoch == 1
    assert len(drive(samples.entries(journal, key))) == 2


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "made again"])
def test_i39_a_conversation_deleted_while_it_is_verified_is_absent_and_not_corrupt(again: bool) -> None:
    """I-39: what somebody deleted meanwhile is no damage; an operator is not sent to a backup for it."""
    store = JournalStore(MemoryJournal(clock=FrozenClock()), namespace="n")
    conversation = Conversation(store, "c", format="openai-chat")
    drive(conversation.append([{"role": "user", "content": f"{number}"} for number in range(600)]))
    proving = store.verify(conversation.key)
    proving.send(None)  # at the pause after the first page
    drive(store.delete(conversation.key))
    if again:
        drive(conversation.append([{"role": "user", "content": "other"}]))
    with pytest.raises(DecisionHistoryAbsent, match="deleted"):
        drive(proving)
