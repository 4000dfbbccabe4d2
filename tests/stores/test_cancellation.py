"""
Every public method, cut at every await in every way: what is left is old or new, and the next call works (I-18).

A cut method runs over a journal that suspends before and after each call, so that a cut strikes once where nothing was
sent and once where everything was done and nobody heard of it. Old or new is judged by what counts: the window of the
next turn is the one without the method or the one with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import random
import sqlite3
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.budgets import budget
from tests.journals import is_writing
from tests.stores.labs import KINDS, PROVE, chat, open_journal, said

import minutebook.stores.sqlite_pace as pace_module
from minutebook.conversation import Conversation
from minutebook.errors import (
    DecisionHistoryAbsent,
    DecisionHistoryBusy,
    DecisionHistoryStorageFailed,
    MinutebookError,
    PairingViolation,
)
from minutebook.model.entries import Draft, Kind
from minutebook.model.keys import ConversationKey
from minutebook.model.record import Delta
from minutebook.reserving import Reservation
from minutebook.stores.opening import SQLiteStore
from minutebook.testing import Cut, Fault, FaultyJournal, SuspendingJournal, cancel_at, checkpoint, drive
from minutebook.testing.conformance import samples

Method = Callable[[Conversation], Awaitable[Any]]

# --- the methods -----------------------------------------------------------------------------------------------------


async def turn(conversation: Conversation) -> None:
    async with conversation.turn("asks") as turn:
        await turn.window()
        await turn.respond(said("answers"))


async def turn_with_tools(conversation: Conversation) -> None:
    async with conversation.turn("asks", id="turn-id") as turn:
        await turn.window()
        calls = await turn.respond(said("", "call-1", "call-2"))
        await turn.result(calls[1], "two")
        await turn.say("and be quick")
        await turn.result(calls[0], "one")
        await turn.window()
        await turn.respond(said("answers"))


async def turn_with_parked_call(conversation: Conversation) -> None:
    async with conversation.turn("asks") as turn:
        (call,) = await turn.respond(said("", "call-1"))
        await turn.park(call)


async def append(conversation: Conversation) -> None:
    await conversation.append([{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}], id="one")


async def append_whole(conversation: Conversation) -> None:
    messages = [{"role": "user", "content": "first"}, {"role": "assistant", "content": "first answer"}]
    fresh = Conversation(conversation.store, "whole", format="openai-chat")
    await fresh.append([*messages, {"role": "user", "content": "u"}], whole=True)


async def complete(conversation: Conversation) -> None:
    (call,) = await conversation.open_calls()
    await conversation.complete(call, "late result")


async def read_all(conversation: Conversation) -> None:
    [entry async for entry in conversation.entries()]
    [exchange async for exchange in conversation.exchanges()]
    await conversation.last(1)
    await conversation.page(after=0, limit=2)
    await conversation.window()


async def read_store(conversation: Conversation) -> None:
    store, key = conversation.store, conversation.key
    await store.read(key)
    [entry async for entry in store.entries(key)]
    [receipt async for receipt in store.receipts(key)]
    await store.header(key)
    await store.list()
    await store.totals()
    await store.verify(key)


async def transact(conversation: Conversation) -> None:
    async def operation(record: Any) -> Any:
        await checkpoint()
        wire = conversation.history.wire
        return record.adding(wire.input("asks"), wire.response(said("answers"))), None

    await conversation.store.transact(conversation.key, operation)


async def delete(conversation: Conversation) -> None:
    await conversation.store.delete(conversation.key)


async def recover(conversation: Conversation) -> None:
    await conversation.store.recover(conversation.key, worker_stopped=True)


METHODS: tuple[Method, ...] = (
    turn,
    turn_with_tools,
    turn_with_parked_call,
    append,
    append_whole,
    complete,
    read_all,
    read_store,
    transact,
    delete,
    recover,
)

# --- the story -------------------------------------------------------------------------------------------------------


async def prepare(journal: Any, method: Method) -> None:
    """Record two exchanges with a parked call between them; for a recovery, have another worker hold all that."""
    other = chat(journal)
    await other.append([{"role": "user", "content": "first"}, {"role": "assistant", "content": "first answer"}])
    await turn_with_parked_call(other)
    async with other.turn("second") as turn:
        await turn.respond(said("second answer"))
    if method is recover:
        await chat(journal).turn("held").__aenter__()


async def next_window(conversation: Conversation) -> str:
    """Return what the next turn sends, or that there can be none."""
    try:
        async with conversation.turn("next") as turn:
            window = await turn.window()
            await turn.respond(said("done"))
    except DecisionHistoryBusy:
        return "busy"
    return json.dumps(window.messages)


async def lawful(journal: Any, method: Method) -> set[str]:
    """Return the windows of the next turn without the method and with it."""
    found: set[str] = set()
    for done in (False, True):
        fresh = journal(f"{done}")
        await prepare(fresh, method)
        conversation = chat(fresh)
        if done:
            await method(conversation)
        found.add(await next_window(conversation))
        await fresh.close()
    return found


async def struck(journal: Any, around: Any, method: Method, step: int, cut: Cut, windows: set[str]) -> bool:
    """Cut the method at one await, and see that everything is right afterwards."""
    await prepare(journal, method)
    conversation = chat(around(journal))
    ended = await cancel_at(lambda: method(conversation), step, cut)  # type: ignore[arg-type, return-value]
    if not ended.struck:
        assert ended.error is None
        return False
    place = f"{method.__name__} {cut.value} at await {step}"
    await settled(journal)
    assert not isinstance(ended.error, (MinutebookError, AssertionError)), f"{place}: {ended.error!r}"
    header = await journal.header(conversation.key)
    if header is not None and header.token and method is not recover:
        assert cut is Cut.KILLED, f"{place}: the reservation was left"
        assert conversation.store.tokens.is_orphan(header.token), f"{place}: a stranger's reservation"
    if header is not None:
        await conversation.store.verify(conversation.key)
    assert await next_window(conversation) in windows, f"{place}: neither old nor new"
    header = await journal.header(conversation.key)
    if method is recover and header.token:
        await conversation.store.recover(conversation.key, worker_stopped=True)
        assert await next_window(conversation) in windows
    await conversation.store.verify(conversation.key)
    return True


async def settled(journal: Any) -> None:
    """
    Wait for what a closed coroutine left behind, with the event loop and with the store's writer.

    A coroutine that is closed can wait for nothing: what it had handed over is done later. The writer takes its jobs
    in order, so that it has done them once another one came back.
    """
    with contextlib.suppress(RuntimeError):  # no event loop
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
    with contextlib.suppress(DecisionHistoryAbsent):
        await journal.delete(ConversationKey("lab", "nobody"))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cut", [Cut.CANCELLED, Cut.CLOSED, Cut.INTERRUPTED, Cut.KILLED], ids=lambda cut: cut.value)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_i18_cut_at_any_await(kind: str, method: Method, cut: Cut, tmp_path: Path) -> None:
    """Without an event loop: cancelled, closed or interrupted at each await, the result is old or new (I-18)."""
    windows = drive(lawful(lambda name: open_journal(kind, tmp_path, name=name), method))
    step = 1
    while drive(struck(open_journal(kind, tmp_path, name=f"{step}"), SuspendingJournal, method, step, cut, windows)):
        step += 1
    assert step > 2, "the method was never seen waiting"


EVERYWHERE = [pytest.param(kind, method, id=f"{kind}-{method.__name__}") for kind in KINDS for method in METHODS]
SWEPT = [
    each
    for each in EVERYWHERE
    # On a server each step costs new connections, so a short run has it for two methods there.
    if each.values[0] in ("RAM", "SQLite")
    or (each.values[0] in ("Postgres", "Redis") and each.values[1] in (turn, append))
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cut", list(Cut), ids=lambda cut: cut.value)
@pytest.mark.parametrize(("kind", "method"), budget(SWEPT, EVERYWHERE))
def test_i18_cut_at_any_await_under_asyncio(kind: str, method: Method, cut: Cut, tmp_path: Path) -> None:
    """Under asyncio: a cancelled task, an expired timeout, a closed and an interrupted coroutine (I-18)."""
    sweep(kind, method, cut, tmp_path)


def sweep(kind: str, method: Method, cut: Cut, tmp_path: Path) -> None:
    """Cut the method at each of its awaits under asyncio, each time in a store of its own."""

    async def everywhere() -> int:
        def fresh(name: str) -> Any:
            return open_journal(kind, tmp_path, name=name, blocking=False)

        windows = await lawful(fresh, method)
        step = 1
        while True:
            journal = fresh(f"{step}")
            if not await struck(journal, SuspendingJournal, method, step, cut, windows):
                return step
            await journal.close()
            step += 1

    assert asyncio.run(everywhere()) > 2


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cut", list(Cut), ids=lambda cut: cut.value)
@pytest.mark.parametrize("method", budget((turn, transact), METHODS), ids=lambda method: method.__name__)
def test_i18_o38_cut_at_any_await_of_a_slow_disk(
    method: Method, cut: Cut, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-18 where each commit is made in the writer's thread: a cut one is withdrawn, or its end is waited for."""
    monkeypatch.setattr(pace_module, "SLOW_SECONDS", -1.0)  # every commit is slow, so the first alone is on the loop
    sweep("SQLite", method, cut, tmp_path)


@pytest.mark.parametrize(
    ("part", "method"),
    [("give_up", turn), ("give_up", transact), ("_look", turn), ("_look", transact)],
)
def test_i18_a_reservation_that_is_left_would_be_found(
    part: str, method: Method, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Control: without the part that gives a reservation back, the same harness fails."""

    async def nothing(*_: Any) -> None:
        return None

    windows = drive(lawful(lambda name: open_journal("RAM", tmp_path, name=name), method))
    monkeypatch.setattr(Reservation, part, nothing)

    async def everywhere() -> None:
        for step in range(1, 20):
            await struck(open_journal("RAM", tmp_path), SuspendingJournal, method, step, Cut.CANCELLED, windows)

    with pytest.raises(AssertionError, match="the reservation was left"):
        drive(everywhere())


@pytest.mark.parametrize("kind", KINDS)
def test_bad_input_62_cancelled_commit_may_be_written(kind: str, tmp_path: Path) -> None:
    """A commit that was cancelled after it was written is found by its id, and is not written twice (62)."""
    journal = open_journal(kind, tmp_path)
    faulty = FaultyJournal(journal, [Fault(call=1, after=True, error=asyncio.CancelledError)])
    conversation = chat(faulty)
    with pytest.raises(asyncio.CancelledError):
        drive(append(conversation))
    assert faulty.left == ()
    drive(append(conversation))
    assert len(drive(samples.entries(journal, conversation.key))) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_d22_orphan_of_an_interrupt_is_continued_by_its_own_process(kind: str, tmp_path: Path) -> None:
    """
    A reservation whose holder died in this process is continued by the next turn and by the next `transact`.

    A stranger still gets Busy: it cannot know that the holder is dead.
    """
    journal = open_journal(kind, tmp_path)
    for then in (turn, transact, append):
        conversation = chat(journal, then.__name__)
        drive(conversation.turn("asks").__aenter__())  # and nobody leaves it
        with pytest.raises(DecisionHistoryBusy):
            drive(turn(chat(journal, then.__name__)))
        drive(then(conversation))
        drive(turn(conversation))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("then", [turn, transact, append], ids=lambda method: method.__name__)
def test_d22_orphan_that_two_tasks_find_is_recovered_once(kind: str, then: Method, tmp_path: Path) -> None:
    """Two tasks that find the same orphan: whoever recovers it second goes on and meets no odd refusal."""

    class RecoveredMeanwhile(FaultyJournal):
        async def recover(self, *positional: Any, **named: Any) -> Any:
            await super().recover(*positional, **named)
            return await super().recover(*positional, **named)

    conversation = chat(RecoveredMeanwhile(open_journal(kind, tmp_path)))
    drive(conversation.turn("asks").__aenter__())  # and nobody leaves it
    drive(then(conversation))
    drive(conversation.store.verify(conversation.key))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("then", [turn, transact], ids=lambda method: method.__name__)
def test_i18_a_cancelled_call_that_took_the_place_of_an_orphan_gives_it_back(
    kind: str, then: Method, tmp_path: Path
) -> None:
    """I-18: the second reservation, behind the orphan's end, is looked after like the first one."""
    cut = Fault(method="reserve", call=3, after=True, error=asyncio.CancelledError)
    faulty = FaultyJournal(open_journal(kind, tmp_path), [cut])
    conversation = chat(faulty)
    drive(conversation.turn("asks").__aenter__())  # and nobody leaves it
    with pytest.raises(asyncio.CancelledError):
        drive(then(conversation))
    assert faulty.left == ()
    header = drive(faulty.header(conversation.key))
    assert header is not None
    assert not header.token


TENANTS = 200


class LeavesReplies(SuspendingJournal):
    """A toy of a client with the fault of 2023: a caller that is cancelled leaves its reply to the next (V-14)."""

    def __init__(self, journal: Any) -> None:
        super().__init__(journal)
        self.replies: deque[Any] = deque()

    async def _around(self, method: str, call: Callable[[], Awaitable[Any]]) -> Any:
        self.replies.append(await call())
        await checkpoint()
        return self.replies.popleft()


async def tenant(journal: Any, number: int, calls: int, writing: float, counts: Counter[str]) -> None:
    """Append and read, a fifth of it cancelled, and count every payload of a reply that is another tenant's."""
    chance = random.Random(number)
    key = ConversationKey(f"tenant-{number}", "chat")
    canary = samples.say(f"canary of {number}")

    async def read() -> list[bytes]:
        return [entry.payload for entry in await samples.entries(journal, key)]

    async def write(name: str) -> list[bytes]:
        opening = samples.adding(name, canary)
        reserved = await journal.reserve(key, f"token-{name}", format=samples.FORMAT, opening=opening, release=True)
        return [entry.payload for entry in reserved.written]

    await samples.append(journal, key, "one", canary)
    for call in range(calls):
        task = asyncio.ensure_future(write(str(call)) if chance.random() < writing else read())
        if chance.random() < 0.2:
            await asyncio.sleep(0)
            counts["cancelled"] += task.cancel()
        (found,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(found, (list, asyncio.CancelledError)), found
        replies = [found, await read()] if isinstance(found, list) else [await read()]
        for payloads in replies:
            counts["replies"] += 1
            counts["empty"] += not payloads
            counts["entries"] += len(payloads)
            counts["foreign"] += sum(payload != canary.payload for payload in payloads)


def raced(opened: Callable[[], Any], calls: int, writing: float = 0.5) -> Counter[str]:
    """Let all tenants work on one journal, and return what was counted."""
    counts: Counter[str] = Counter()

    async def everybody() -> None:
        journal = opened()
        each = calls // TENANTS
        await asyncio.gather(*(tenant(journal, number, each, writing, counts) for number in range(TENANTS)))
        await journal.close()

    asyncio.run(everybody())
    assert counts["cancelled"] > calls / 20
    return counts


@pytest.mark.timeout(3_600 if PROVE else 300)
@pytest.mark.parametrize("kind", KINDS)
def test_i19_v14_no_reply_reaches_another_caller(kind: str, tmp_path: Path, figure: Callable[[str], None]) -> None:
    """200 tenants at once on one journal, a fifth of the calls cancelled: nobody is given a foreign byte (I-19)."""
    calls = budget(3_000, 100_000)
    counts = raced(lambda: SuspendingJournal(open_journal(kind, tmp_path, blocking=False)), calls)
    assert (counts["foreign"], counts["empty"]) == (0, 0)
    figure(
        f"{kind}: {calls:,} calls, {counts['cancelled']:,} cancelled, {counts['entries']:,} entries, 0 foreign bytes"
    )


def test_i19_v14_control_a_reply_left_unread_is_found(tmp_path: Path) -> None:
    """Over the toy the same race gives tenants what is another's; reads alone, so that every reply is a page."""
    counts = raced(lambda: LeavesReplies(open_journal("RAM", tmp_path)), 3_000, writing=0)
    assert counts["foreign"] > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, asyncio.CancelledError, DecisionHistoryBusy])
def test_d24_failed_first_operation_leaves_nothing(kind: str, error: type[BaseException], tmp_path: Path) -> None:
    """An operation on an absent record is given `None`; if it raises, there is still none, and the next gets `None`."""
    store = chat(open_journal(kind, tmp_path)).store
    key = store.key("new")
    given: list[Any] = []

    async def operation(record: Any) -> Any:
        given.append(record)
        raise error("refused")

    for _ in range(2):
        with pytest.raises(error):
            drive(store.transact(key, operation))
        assert drive(store.read(key)) is None
    assert given == [None, None]


@pytest.mark.parametrize("kind", KINDS)
def test_d24_snapshot_is_taken_under_the_reservation(kind: str, tmp_path: Path) -> None:
    """What others wrote between the call and the reservation is in the snapshot: it is never `None` by mistake."""
    journal = open_journal(kind, tmp_path)
    key = chat(journal).key

    class WritesBetween(FaultyJournal):
        async def reserve(self, *positional: Any, **named: Any) -> Any:
            await samples.append(journal, key, "one", samples.say("first"))
            return await super().reserve(*positional, **named)

    given: list[Any] = []

    async def operation(record: Any) -> Any:
        given.append(record)
        return record, None

    drive(chat(WritesBetween(journal)).store.transact(key, operation, format=samples.FORMAT))
    assert len(given[0].entries) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_i04_refused_write_leaves_content_identical(kind: str, tmp_path: Path) -> None:
    """Every call of a turn fails once before and once after its work; the next window is the old or the new (I-4)."""
    windows = drive(lawful(lambda name: open_journal(kind, tmp_path, name=name), turn_with_tools))
    for after in (False, True):
        number = 0
        while True:
            number += 1
            journal = open_journal(kind, tmp_path, name=f"{after}-{number}")
            drive(prepare(journal, turn))
            faulty = FaultyJournal(journal, [Fault(call=number, after=after)])
            conversation = chat(faulty)
            with contextlib.suppress(DecisionHistoryStorageFailed):
                drive(turn_with_tools(conversation))
            if faulty.left:
                break
            assert drive(next_window(conversation)) in windows, f"call {number}, after={after}"
            drive(conversation.store.verify(conversation.key))
        assert number > 5


# --- a cancellation while the job runs in the writer's thread ---------------------------------------------------------


def test_i18_a_reservation_that_lands_after_its_cancellation_is_given_back(tmp_path):
    """I-18: whoever is cancelled while the writer's thread waits for the file sees what the job did, and undoes it."""
    tmp_path.chmod(0o700)
    path = tmp_path / "book.sqlite"

    async def cancelled_while_another_writes() -> None:
        async with SQLiteStore(path, namespace="n") as store:
            conversation = Conversation(store, "c", format="openai-chat")
            other = sqlite3.connect(path, isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            task = asyncio.create_task(conversation.turn("hello").__aenter__())
            while not _begun(store):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.sleep(0)
            assert not task.done(), "it waits for what has begun"
            task.cancel()
            other.execute("ROLLBACK")
            with pytest.raises(asyncio.CancelledError):
                await task
            other.close()
            header = await store.header(conversation.key)
            assert header is None or not header.token
        async with (
            SQLiteStore(path, namespace="n") as store,
            Conversation(store, "c", format="openai-chat").turn("hi") as turn,
        ):
            await turn.respond(said("hello"))

    asyncio.run(cancelled_while_another_writes())


def _begun(store: SQLiteStore) -> bool:
    """Whether the writer's thread has taken the one job that was submitted."""
    writer = store.journal._database
    return writer._thread is not None and not writer._queue and is_writing(writer)


def test_i06_a_lock_that_cannot_be_had_ends_no_writer(tmp_path, monkeypatch):
    """I-6: a file system that refuses the checkpoint's lock costs the checkpoint, never the thread that writes."""
    tmp_path.chmod(0o700)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    async def write_on() -> None:
        async with SQLiteStore(tmp_path / "book.sqlite", namespace="n") as store:
            monkeypatch.setattr(fcntl, "flock", refuse)
            for batch in range(4):
                large = [{"role": "user", "content": "x" * 1_500_000}]
                talks = [Conversation(store, f"{batch}-{n}", format="openai-chat").append(large) for n in range(3)]
                await asyncio.gather(*talks)
            monkeypatch.undo()
            assert (await store.totals()).conversations == 12

    asyncio.run(write_on())


def test_i18_a_second_cancellation_in_the_cleaning_up_leaves_nothing_busy(tmp_path):
    """I-18: a task that is cancelled while it gives its reservation back gives it back all the same."""
    tmp_path.chmod(0o700)

    async def cancelled_twice(store: SQLiteStore, name: str, steps: int) -> None:
        conversation = Conversation(store, name, format="openai-chat")
        entered = asyncio.Event()

        async def turn() -> None:
            async with conversation.turn("hello"):
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(turn())
        await entered.wait()
        task.cancel()
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def run() -> None:
        async with SQLiteStore(tmp_path / "book.sqlite", namespace="n") as store:
            for steps in range(6):
                await cancelled_twice(store, f"c{steps}", steps)
            assert not (await store.totals()).reserved
            for listing in await store.list():
                await store.verify(listing.key)

    asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
def test_d22_a_release_whose_drafts_the_record_refuses_gives_the_reservation_back(kind: str, tmp_path: Path) -> None:
    """What has no place in the record is lost and told; the conversation is idle, with all that was recorded."""
    store = chat(open_journal(kind, tmp_path)).store
    drive(chat(store.journal).append([{"role": "user", "content": "first"}]))
    before = len(drive(samples.entries(store.journal, store.key("chat"))))

    async def release() -> None:
        reservation = Reservation(store.journal, store.tokens, store.key("chat"))
        await reservation.take("openai-chat")
        stray = Draft(kind=Kind.RESULT, payload=b"{}", exchange=1)
        await reservation.release(Delta(drafts=(stray,), idempotency="stray", abandons="failed"))

    with pytest.raises(PairingViolation):
        drive(release())
    assert drive(store.totals()).reserved == 0
    assert len(drive(samples.entries(store.journal, store.key("chat")))) == before + 1  # the mark
