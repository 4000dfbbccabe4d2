"""One SQLite file, many processes: excluded, stopped, killed and forked ones (I-10, I-12, I-13, I-17, I-25, O-32)."""

from __future__ import annotations

import ast
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.budgets import budget
from tests.stores.labs import BOUNDED, PROVE, chat, open_journal, said
from tests.stores.test_exclusion import Held, Refused, violations, work

from minutebook.errors import (
    DecisionHistoryBusy,
    DecisionHistoryFenced,
    DecisionHistoryNotReserved,
    DecisionHistoryStorageFailed,
    StoreClosed,
)
from minutebook.model.keys import ConversationKey
from minutebook.stores.clock import system_clock
from minutebook.stores.sqlite import SQLiteJournal
from minutebook.testing import FrozenClock, drive
from minutebook.testing.conformance.samples import FORMAT, dump

ROOT = Path(__file__).parents[2]
SECONDS = budget(2.0, 200.0)
NAMES = ["a", "A", "b:c", "\u00e9"]

# --- what the other processes run ------------------------------------------------------------------------------------


class HandsOver(SQLiteJournal):
    """A planted fault: whoever asks gets a held conversation, and whoever lost one writes all the same."""

    async def reserve(self, key: ConversationKey, token: str, **options: Any) -> Any:
        while True:
            try:
                return await super().reserve(key, token, **options)
            except DecisionHistoryBusy:
                with suppress(DecisionHistoryNotReserved):
                    await super().recover(key, None)

    async def commit(self, key: ConversationKey, token: str, epoch: int, delta: Any, **options: Any) -> Any:
        try:
            return await super().commit(key, token, epoch, delta, **options)
        except DecisionHistoryFenced:
            return await self.reserve(key, token, format=FORMAT, opening=delta, release=True)


def four_workers(folder: str, number: str, kind: str, seconds: str) -> None:
    """Four threads take, write and give back until the time is over; then the diary of all goes to the parent."""
    journal = {"right": SQLiteJournal, "hands over": HandsOver}[kind](Path(folder) / "lab.db", blocking=True)
    diaries: list[list[Held | Refused]] = []
    print("ready", flush=True)
    sys.stdin.readline()
    until = time.monotonic() + float(seconds)

    def one(seed: int) -> None:
        while time.monotonic() < until:
            diaries.append(work(journal, seed, NAMES, 20))
            seed += 1_000

    threads = [threading.Thread(target=one, args=(int(number) * 10 + thread,)) for thread in range(4)]
    failures: list[object] = []
    threading.excepthook = failures.append
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    drive(journal.close())
    for event in (event for diary in diaries for event in diary):
        fields = [getattr(event, name) for name in event.__struct_fields__]
        print([type(event).__name__, *fields])
    print(["failed", *(str(failure) for failure in failures)])


async def _stopped_turn(folder: str, at: str) -> None:
    """Stop this process for real in the middle of a turn, and go on when somebody lets it."""

    def stop(here: str) -> None:
        if here == at:
            os.kill(os.getpid(), signal.SIGSTOP)

    old = chat(SQLiteJournal(Path(folder) / "lab.db", blocking=True))
    async with old.turn("old question") as turn:
        await turn.window()
        stop("window")
        (call,) = await turn.respond(said("", "call-1"))
        stop("respond")
        await turn.result(call, "old result")
        stop("result")
        await turn.respond(said("old answer"))
        stop("end")


def stopped(folder: str, at: str) -> None:
    try:
        drive(_stopped_turn(folder, at))
    except DecisionHistoryFenced:
        print("fenced")


def child(function: Callable[..., None], *arguments: str) -> subprocess.Popen[str]:
    code = f"from tests.stores import test_processes as t; import sys; t.{function.__name__}(*sys.argv[1:])"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,  # a group of its own, so that it can be stopped and killed whole
    )


@contextmanager
def held_by(folder: Path, at: str) -> Iterator[subprocess.Popen[str]]:
    """Give a process that the system has stopped in the middle of its turn."""
    folder.chmod(0o700)
    with child(stopped, str(folder), at) as worker:
        try:
            assert os.WIFSTOPPED(os.waitpid(worker.pid, os.WUNTRACED)[1]), "the worker ended before it could be stopped"
            yield worker
        finally:
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)


# --- exclusion -------------------------------------------------------------------------------------------------------


def told_by_processes(folder: Path, kind: str, seconds: float) -> list[Held | Refused]:
    """Let 16 workers in four processes race on four conversations, and return all that they noted."""
    folder.chmod(0o700)
    workers = [child(four_workers, str(folder), str(number), kind, str(seconds)) for number in range(1, 5)]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        _start(worker)
    told = [worker.communicate() for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 4
    events: list[Held | Refused] = []
    for out, _ in told:
        for line in out.splitlines():
            name, *fields = ast.literal_eval(line)
            if name == "failed":
                assert fields == [], "a worker met an error that is not Busy"
            else:
                events.append({"Held": Held, "Refused": Refused}[name](*fields))
    return events


def _start(worker: subprocess.Popen[str]) -> None:
    assert worker.stdin is not None
    worker.stdin.write("go\n")
    worker.stdin.flush()


@pytest.mark.timeout(3_600 if PROVE else 120)
def test_i10_o32_one_live_decision_over_processes(tmp_path: Path, figure: Callable[[str], None]) -> None:
    """16 workers in 4 processes on one file: no two holds overlap, nobody sees "database is locked" (I-10, O-32)."""
    history = told_by_processes(tmp_path, "right", SECONDS)
    assert violations(history) == []
    holds = [event for event in history if isinstance(event, Held)]
    assert 20 < len(holds) < len(history), "too few holds, or nobody was refused: the run proves nothing"
    journal = open_journal("SQLite", tmp_path)
    for name in NAMES:
        header = drive(journal.header(ConversationKey("lab", name)))
        assert header.entries == 2 * sum(held.conversation == name for held in holds)
        assert not header.token
    figure(f"4 processes, {SECONDS:.0f} s: {len(history):,} attempts, {len(holds):,} holds, 0 violations")


def test_i10_control_processes_without_exclusion_are_found(tmp_path: Path) -> None:
    """Control: four processes that hand a held conversation over are found out by the same checker."""
    for attempt in range(5):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        found = violations(told_by_processes(folder, "hands over", 0.5))
        if found:
            return
    pytest.fail("the checker found nothing in processes without exclusion")


# --- stopped and killed holders --------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["window", "respond", "result", "end"])
def test_i13_a_stopped_process_that_wakes_after_recovery_is_fenced(at: str, tmp_path: Path) -> None:
    """SIGSTOP in a turn, recovered and continued by another process, SIGCONT: fenced (bad input 65)."""
    with held_by(tmp_path, at) as worker:
        new = chat(open_journal("SQLite", tmp_path, clock=system_clock))
        with pytest.raises(DecisionHistoryBusy):
            drive(_one_turn(new))
        drive(new.store.recover(new.key, worker_stopped=True))
        drive(_one_turn(new))
        before = drive(dump(new.store.journal, new.key))
        os.killpg(worker.pid, signal.SIGCONT)
        assert worker.communicate(timeout=60)[0] == "fenced\n"
        assert worker.returncode == 0
        assert drive(dump(new.store.journal, new.key)) == before
        assert [message["content"] for message in drive(new.window())] == ["new question", "new answer"]
        drive(new.store.verify(new.key))


def test_bad_input_65_a_stopped_holder_that_nobody_recovered_goes_on(tmp_path: Path) -> None:
    """Control: without a recovery the same process wakes and ends its turn, so it is the recovery that fences it."""
    with held_by(tmp_path, "respond") as worker:
        os.killpg(worker.pid, signal.SIGCONT)
        assert worker.communicate(timeout=60)[0] == ""
        left = chat(open_journal("SQLite", tmp_path))
        assert [message["content"] for message in drive(left.window())][-1] == "old answer"


def test_i12_a_killed_process_group_keeps_its_conversation_until_it_is_recovered(tmp_path: Path) -> None:
    """Busy however often the file is opened and however much time passes; after `recover` the next turn works."""
    with held_by(tmp_path, "respond") as worker:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
    clock = FrozenClock()
    for _ in range(3):
        clock.advance(20 * 365 * 86_400_000)
        store = chat(open_journal("SQLite", tmp_path, clock=clock)).store
        with pytest.raises(DecisionHistoryBusy):
            drive(_one_turn(chat(store.journal)))
        assert drive(store.totals()).reserved == 1
        drive(store.close())
    new = chat(open_journal("SQLite", tmp_path, clock=clock))
    drive(new.store.recover(new.key, worker_stopped=True))
    drive(_one_turn(new))
    assert [message["content"] for message in drive(new.window())] == ["new question", "new answer"]


async def _one_turn(conversation: Any) -> None:
    async with conversation.turn("new question") as turn:
        await turn.window()
        await turn.respond(said("new answer"))


# --- fork ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BOUNDED)
def test_i17_a_turn_that_is_used_in_a_forked_child_writes_nothing(kind: str, tmp_path: Path) -> None:
    """Every call of the turn and of its store raises in the child; the parent's turn ends as if nothing had been."""
    conversation = chat(open_journal(kind, tmp_path))

    async def turn_with_a_fork() -> int:
        async with conversation.turn("hi") as turn:
            child = os.fork()
            if not child:
                os._exit(await _refusals(conversation, turn))
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            await turn.respond(said("hello"))
        return 1

    assert drive(turn_with_a_fork())
    assert [message["content"] for message in drive(conversation.window())] == ["hi", "hello"]
    drive(conversation.store.verify(conversation.key))


async def _refusals(conversation: Any, turn: Any) -> int:
    """Return how many calls of a forked child were not refused by name."""
    store = conversation.store
    calls = (
        lambda: turn.respond(said("child", "call-1")),
        lambda: turn.say("child"),
        lambda: conversation.last(1),
        lambda: conversation.append([{"role": "user", "content": "child"}]),
        lambda: store.recover(conversation.key, worker_stopped=True),
        lambda: store.list(),
    )
    missed = 0
    for call in calls:
        try:
            await call()
        except StoreClosed:
            continue
        except BaseException:
            pass
        missed += 1
    return missed


# --- read-only -------------------------------------------------------------------------------------------------------


def test_i25_windows_and_reading_work_on_a_connection_that_cannot_write(tmp_path: Path) -> None:
    """On a host's `mode=ro` connection everything is read; a write is refused by name, and no byte changes."""
    journal = open_journal("SQLite", tmp_path)
    drive(_one_turn(chat(journal)))
    expected = drive(chat(journal).window()).json
    drive(journal.close())
    path = tmp_path / "lab.db"
    before = path.read_bytes()
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    read_only = chat(SQLiteJournal.on_connection(connection))
    assert drive(read_only.window()).json == expected
    assert len(drive(read_only.last())) == 1
    assert drive(read_only.store.read(read_only.key)) is not None
    drive(read_only.store.verify(read_only.key))
    for write in (_one_turn(read_only), read_only.store.delete(read_only.key)):
        with pytest.raises(DecisionHistoryStorageFailed):
            drive(write)
    connection.close()
    assert path.read_bytes() == before


def test_i25_a_window_is_the_same_while_another_process_writes_elsewhere(tmp_path: Path) -> None:
    """Reading 200 windows beside a writing process changes nothing of the conversation that is read."""
    quiet = chat(open_journal("SQLite", tmp_path), "quiet")
    drive(_one_turn(quiet))
    before = drive(dump(quiet.store.journal, quiet.key))
    worker = child(four_workers, str(tmp_path), "1", "right", "0.5")
    assert worker.stdout is not None
    worker.stdout.readline()
    _start(worker)
    windows = {drive(quiet.window()).json for _ in range(200)}
    worker.communicate()
    assert worker.returncode == 0
    assert len(windows) == 1
    assert drive(dump(quiet.store.journal, quiet.key)) == before
