"""Field cases O-31 to O-40 and O-49, O-51, stores under load: through `Conversation`, on every store."""

# ruff: noqa: PT012 - what fails here is a turn, which is a block

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest
from tests.budgets import budget
from tests.faces.places import Place, calling, chat, dump, lasting, output, reply, said, seen, short, tell, user

from minutebook.conversation import Conversation
from minutebook.errors import (
    DecisionHistoryAbsent,
    DecisionHistoryBusy,
    DecisionHistoryConflict,
    DecisionHistoryFenced,
    InvalidOption,
    InvalidValue,
    PairingViolation,
)
from minutebook.model.bounds import WindowLimits
from minutebook.model.entries import Kind


@pytest.fixture
def file(tmp_path):
    return Place("sqlite", tmp_path)


async def child(code, path, *arguments):
    """Start a process that runs `code` with the imports of these tests, and return it."""
    prelude = "import asyncio, os, signal, sys\nfrom tests.faces.places import *\n"
    prelude += "store = JournalStore(SQLiteJournal(sys.argv[1]), namespace='tests')\n"
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        prelude + code,
        str(path),
        *arguments,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
    )


def test_o31_a_refused_append_leaves_no_lock_behind(file):
    """A second connection writes at once, with timeout 0; the batch left no row."""

    @lasting
    async def body(place):
        store = place.open()
        await tell(chat(store), "before")
        before = await dump(store)
        with pytest.raises(InvalidValue):
            await chat(store).append([user("valid"), user({1, 2})])
        other = sqlite3.connect(place.path, timeout=0)
        other.execute("BEGIN IMMEDIATE")
        other.rollback()
        other.close()
        assert await dump(store) == before

    body(file)


def test_o31_a_reader_and_a_writer_do_not_see_locked(file):
    """One polls, in a process of its own, while the other commits 100 turns: nobody fails."""

    @lasting
    async def body(place):
        await tell(chat(place.open()), "first")
        reader = await child(
            "async def main():\n"
            "    print('ready', flush=True)\n"
            "    seen = 0\n"
            "    while seen < 202:\n"
            "        seen = len(await chat(store).window(limits=None)) and len(await chat(store).last(None)) * 2\n"
            "    print(seen)\n"
            "asyncio.run(main())",
            place.path,
        )
        await reader.stdout.readline()
        for number in range(100):
            await tell(chat(place.open() if number % 50 == 0 else place._opened[-1]), f"q{number}")
        assert int((await reader.communicate())[0]) == 202
        assert reader.returncode == 0

    body(file)


def test_o32_a_second_run_is_busy_until_the_first_is_recovered(file):
    """Two processes, one key: B is refused before it could call a provider, also after A was killed."""

    @lasting
    async def body(place):
        first = await child(
            "async def main():\n"
            "    async with chat(store).turn('A') as turn:\n"
            "        (call,) = await turn.respond(reply(calling('C1')))\n"
            "        print('held', flush=True)\n"
            "        sys.stdin.readline()\n"
            "        await turn.result(call, 'r')\n"
            "        await turn.respond(reply(said('A done')))\n"
            "asyncio.run(main())",
            place.path,
        )
        await first.stdout.readline()
        store = place.open()
        for _ in range(3):
            with pytest.raises(DecisionHistoryBusy):
                await tell(chat(store), "B")
        await first.communicate(b"go\n")
        await tell(chat(store), "B", "B done")
        assert await seen(chat(store)) == ["U A", "A{C1}", "R C1", "A A done", "U B", "A B done"]
        killed = await child(
            "async def main():\n"
            "    async with chat(store).turn('A again') as turn:\n"
            "        await turn.respond(reply(calling('C2')))\n"
            "        os.kill(os.getpid(), signal.SIGKILL)\n"
            "asyncio.run(main())",
            place.path,
        )
        await killed.wait()
        assert killed.returncode == -signal.SIGKILL
        with pytest.raises(DecisionHistoryBusy):
            await tell(chat(place.open()), "B")
        with pytest.raises(InvalidOption):
            await store.recover(store.key("c"), worker_stopped=None)
        await store.recover(store.key("c"), worker_stopped=True)
        await tell(chat(store), "C")
        assert (await seen(chat(store)))[-2:] == ["U C", "A ok"]

    body(file)


@lasting
async def test_o33_killed_during_a_tool_the_next_window_is_legal_and_the_mark_stands_once(place):
    """The interrupted call is left out, never shown as done; five reopenings add nothing."""
    store = place.open()
    turn = chat(store).turn("U")
    await turn.__aenter__()
    await turn.respond(reply(calling("C1", name="pay")))
    other = place.open()
    await other.recover(other.key("c"), worker_stopped=True)
    before = await dump(other)
    for _ in range(5):
        again = place.open()
        assert await seen(chat(again)) == []
        with pytest.raises(Exception, match="nobody holds"):
            await again.recover(again.key("c"), worker_stopped=True)
    assert await dump(other) == before
    with pytest.raises(DecisionHistoryFenced):
        await turn.respond(reply(calling("C9")))
    await tell(chat(other), "U2")
    assert await seen(chat(other)) == ["U U2", "A ok"]
    kinds = [entry.kind async for entry in other.entries(other.key("c"))]
    assert kinds[:3] == [Kind.INPUT, Kind.RESPONSE, Kind.ABANDONED]


@lasting
async def test_o34_retry_and_fallback_do_not_multiply_the_prompt(place):
    """Two providers fail, the third answers, eleven times: one prompt a turn in record and window."""
    store = place.open()
    conversation = chat(store)
    for number in range(11):
        for error in (ConnectionError, TimeoutError):
            with pytest.raises(error):
                async with conversation.turn(f"prompt {number}") as turn:
                    await turn.window()
                    raise error
        await tell(conversation, f"prompt {number}")
    assert await seen(conversation) == [x for n in range(11) for x in (f"U prompt {n}", "A ok")]
    kinds = [entry.kind for entry in (await dump(store))[1]]
    assert (kinds.count(Kind.INPUT), kinds.count(Kind.ABANDONED)) == (11, 22)
    first = await conversation.append([user("x"), said("y")], id="turn-7")
    assert await conversation.append([user("x"), said("y")], id="turn-7") == first
    with pytest.raises(DecisionHistoryConflict):
        await conversation.append([user("x"), said("z")], id="turn-7")


@lasting
async def test_o35_stop_and_guard_leave_no_completed_exchange(place):
    """The prompt is durable before generation; what a guard blocked is never shown; the next turn works."""
    store = place.open()
    conversation = chat(store)
    for text, error in (("U1", asyncio.CancelledError), ("U2", ValueError)):
        with pytest.raises(error):
            async with conversation.turn(text) as turn:
                rows = [entry async for entry in place.open().entries(store.key("c"))]
                assert rows[-1].kind is Kind.INPUT
                await turn.respond(reply(said("blocked")))
                raise error
    await tell(conversation, "go on")
    window = await conversation.window()
    assert short(window) == ["U go on", "A ok"]
    assert b"blocked" not in window.json
    assert sum(b"blocked" in entry.payload for entry in (await dump(store))[1]) == 2


@lasting
async def test_o36_pause_resume_and_the_call_stands_once(place):
    """Parked in one store, approved in another; resumed twice; one of two approved and one declined."""
    async with chat(place.open()).turn("mail it") as turn:
        for call in await turn.respond(reply(calling("C1", "C2", name="send_mail"))):
            await turn.park(call)
    store = place.open()
    conversation = chat(store)
    approved, declined = await conversation.open_calls()
    for _ in range(2):
        await conversation.complete(approved, "sent")
        await conversation.complete(declined, "declined by the user", error=True)
    with pytest.raises((DecisionHistoryConflict, PairingViolation)):
        await conversation.complete(approved, "sent again")
    async with conversation.turn() as turn:
        assert short(await turn.window()) == ["U mail it", "A{C1, C2}", "R C1", "R C2"]
        await turn.respond(reply(said("done")))
    kinds = [entry.kind for entry in (await dump(store))[1]]
    assert (kinds.count(Kind.RESPONSE), kinds.count(Kind.RESULT)) == (2, 2)
    with pytest.raises(DecisionHistoryConflict):
        async with Conversation(store, "c", format="anthropic").turn("resume"):
            pass


@lasting
async def test_o37_delegates_have_conversations_of_their_own(place):
    """What passes between two agents is explicit input; each item is in a window once."""
    store = place.open()
    one, two = chat(store, "one"), chat(store, "two")
    async with one.turn("hand it over") as turn:
        (call,) = await turn.respond(reply(calling("C1", name="handoff")))
        await tell(two, "the user wants it handed over", "on it")
        await turn.result(call, "two says: on it")
        await turn.respond(reply(said("handed over")))
    assert await seen(two) == ["U the user wants it handed over", "A on it"]
    assert await seen(one) == ["U hand it over", "A{C1}", "R C1", "A handed over"]


def own_seconds():
    """
    Return seconds of this thread's own: those in which it computed, slept or waited for a disk.

    Those in which it was ready and the machine ran something else are not among them, where the system counts them, so
    that a busy machine counts for nothing and a call that blocks for everything.
    """
    now = time.monotonic()
    with contextlib.suppress(OSError), open("/proc/thread-self/schedstat") as counted:
        now -= int(counted.read().split()[1]) / 1e9
    return now


async def largest_gap(work):
    """Return how long a ticker waited at the most for its turn while `work` ran, and how long the work took."""
    gaps, done = [], False

    async def tick():
        while not done:
            before = own_seconds()
            await asyncio.sleep(0.001)
            gaps.append(own_seconds() - before)

    ticker = asyncio.create_task(tick())
    await asyncio.sleep(0)
    begun = own_seconds()
    await work()
    took = own_seconds() - begun
    done = True
    await ticker
    return max(gaps, default=0.0), took


async def gaps_of(place, items, size):
    """Return the largest gap, in seconds, that each way to use a long conversation leaves, and how long it took."""
    conversation = chat(place.open())
    batch = 500
    for start in range(0, items, batch):
        numbers = range(start, min(start + batch, items), 2)
        await conversation.append([m for n in numbers for m in (user(f"{n}" + "x" * size), said("y" * size))])

    async def whole():
        assert len([exchange async for exchange in conversation.exchanges()]) == items // 2 + 1

    works = {
        "page": lambda: conversation.page(limit=50),
        "window": lambda: chat(place.open()).window(),
        "append": lambda: tell(conversation, "more"),
        "stream": whole,
        "all": conversation.last,
    }
    return {name: await largest_gap(work) for name, work in works.items()}


def holding(gaps):
    """Return what held the loop. Against the work itself: long work is cut, short work may be whole."""
    return {name for name, (gap, took) in gaps.items() if gap >= max(0.25, took / 20)}


@pytest.mark.timeout(1_200)
def test_o38_no_async_call_holds_the_event_loop(place, figure):
    """A long conversation: a page, the whole record, an append, a window and a stream leave the loop to others."""
    items, size = budget((4_000, 4_000), (100_000, 4_000))

    @lasting
    async def body(place):
        gaps = await gaps_of(place, items, size)
        assert holding(gaps) == set(), gaps
        told = ", ".join(f"{name} {gap * 1000:.0f} ms" for name, (gap, _) in gaps.items())
        figure(f"{place.kind}, {items:,} items, {items * size:,} bytes; largest gap: {told}")

    body(place)


@pytest.mark.parametrize(
    ("method", "held"),
    [("newest", {"page", "window"}), ("oldest", {"stream"}), ("reserve", {"append"}), ("commit", {"append"})],
)
def test_o38_control_a_call_that_blocks_is_found(place, method, held, monkeypatch):
    """The planted fault: a method that sleeps where nothing is computed holds whatever calls it."""
    journal = type(place.open().journal)
    real = getattr(journal, method)

    async def blocking(self, *arguments, **options):
        time.sleep(0.3)
        return await real(self, *arguments, **options)

    @lasting
    async def body(place):
        monkeypatch.setattr(journal, method, blocking)
        assert held <= holding(await gaps_of(place, 4, 10))

    body(place)


@lasting
async def test_o39_order_is_by_sequence_and_never_by_the_clock(place):
    """Reasoning and its message in one batch, listed a hundred times, always in order."""
    items = [user("q"), {"type": "reasoning", "id": "r", "encrypted_content": "c2ln"}, said("a")]
    for number in range(20):
        await Conversation(place.open(), f"c{number}", format="openai-responses").append(items)
    for _ in range(5):
        store = place.open()
        for number in range(20):
            assert (await Conversation(store, f"c{number}", format="openai-responses").window()).messages == items


@lasting
async def test_o40_a_limit_gives_the_newest_in_order(place):
    """Of ten: 3 gives 8, 9, 10; then 0, 1, 10, 11 and all."""
    conversation = chat(place.open())
    for number in range(1, 11):
        await tell(conversation, f"{number}")
    every = range(1, 11)
    for limit, expected in ((3, [8, 9, 10]), (0, []), (1, [10]), (10, every), (11, every), (None, every)):
        found = [int(exchange.messages[0]["content"]) for exchange in await conversation.last(limit)]
        assert found == list(expected)


def test_o49_size_grows_with_length_and_not_with_its_square(file):
    """Twice the turns take at most 2.2 times the file."""

    @lasting
    async def body(place):
        sizes = []
        store = place.open()
        conversation = chat(store)
        turns = budget(150, 1_000)
        for number in range(2 * turns):
            await tell(conversation, "x" * 500, "y" * 500)
            if number + 1 in (turns, 2 * turns):
                await place.close()
                sizes.append(place.path.stat().st_size)
                store = place.open()
                conversation = chat(store)
        assert sizes[1] <= 2.2 * sizes[0]
        assert sizes[0] < 2.5 * turns * 1_100 + 100_000

    body(file)


@lasting
async def test_o51_a_deleted_conversation_does_not_come_back(place):
    """Busy while a turn runs; after recovery and delete, the old turn's late write creates nothing."""
    store, other = place.open(), place.open()
    with pytest.raises(DecisionHistoryFenced):
        async with chat(store).turn("x") as turn:
            with pytest.raises(DecisionHistoryBusy):
                await other.delete(other.key("c"))
            await other.recover(other.key("c"), worker_stopped=True)
            await other.delete(other.key("c"))
            await turn.respond(reply(calling("late")))
    assert await other.header(other.key("c")) is None
    assert await seen(chat(other)) == []
    with pytest.raises(DecisionHistoryAbsent):
        await other.delete(other.key("c"))


@lasting
async def test_o27_bytes_run_out_before_messages_do(place):
    """Sixty screenshots: the oldest exchanges leave until the bytes fit; one that is too large alone is refused."""
    store = place.open()
    conversation = chat(store, limits=WindowLimits(max_messages=1_000, max_bytes=200_000, low_water=1))
    shots = [m for n in range(60) for m in (user(f"s{n}"), calling(f"C{n}"), output(f"C{n}", "A" * 15_000), said("ok"))]
    await conversation.append(shots)
    async with conversation.turn("continue") as turn:
        window = await turn.window()
        assert 180_000 < len(window.json) <= 200_000
        await turn.respond(reply(said("fine")))
    with pytest.raises(Exception, match="max_bytes"):
        async with conversation.turn("x" * 200_000) as turn:
            await turn.window()
    await tell(conversation, "without it")
    assert (await seen(conversation))[-2:] == ["U without it", "A ok"]
