"""Runs that go on in another process, over one SQLite file: killed, recovered, raced for (D22, D25, I-44)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.budgets import budget
from tests.runtime.programs import call, calls, finish, kept, program
from tests.stores.test_processes import HandsOver

from minutebook import sync
from minutebook.errors import ApprovalRefused, DecisionHistoryBusy, DecisionHistoryError, MinutebookError
from minutebook.runtime import Approval, Program, capability, checkpoints
from minutebook.stores.journal import JournalStore
from minutebook.stores.sqlite import SQLiteJournal
from minutebook.testing import drive

ROOT = Path(__file__).parents[2]
ROUNDS = budget(200, 2_000)


def effect(folder: str, text: str) -> None:
    """Do what cannot be undone, so that every process sees that it was done."""
    descriptor = os.open(Path(folder) / "effects", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.write(descriptor, text.encode() + b"\n")
    os.close(descriptor)


def effects(folder: Path) -> list[str]:
    path = folder / "effects"
    return path.read_text().splitlines() if path.exists() else []


# --- killed ----------------------------------------------------------------------------------------------------------

PLACES = ("asking", "before the effect", "after the effect", "between two calls", "second request")
"""Where a worker is killed: while its model answers, around an effect, and once everything is known."""


def worker(folder: str, place: str) -> Any:
    """Return a runtime over the folder's file whose process is killed at `place`; nowhere for any other word."""

    def here(at: str) -> None:
        if at == place:
            os.kill(os.getpid(), signal.SIGKILL)

    def generate(messages: Any, schema: Any) -> Any:
        effect(folder, "asked")
        told = len(messages) > 2  # more than the instructions and the task
        here("second request" if told else "asking")
        if told:
            return {"decision": {"action": "finish", "output": "done"}}
        return {"decision": {"action": "pay", "amount": 3}}

    def pay(amount: int) -> str:
        """Pay."""
        here("before the effect")
        effect(folder, f"paid {amount}")
        here("after the effect")
        return "paid"

    store = sync.SQLiteStore(Path(folder) / "runs.sqlite", namespace="t")
    provider = sync.OpenAIChatDecisionProvider(
        model="m", decision_interface="structured", generate=generate, history=sync.HistoryOptions(store=store)
    )
    declared: Program[str] = Program(name="clerk", instructions="", capabilities=[capability(pay)])
    return sync.Runtime(declared, provider), (lambda _: here("between two calls"))


def run(folder: str, place: str) -> None:
    runtime, report = worker(folder, place)
    runtime.run("Pay it.", run_id="r", invocation_id="i", on_observation=report)


def go_on(folder: str, place: str) -> None:
    """Recover what the killed worker held, go on, and tell what came of it."""
    runtime, report = worker(folder, place)
    try:
        runtime.resume("r", "i", on_observation=report)
    except DecisionHistoryBusy as busy:
        runtime.recover("r", "i", worker_stopped=True, epoch=busy.epoch)
    outcome = runtime.resume("r", "i", on_observation=report)
    print(msgspec.json.encode([outcome.kind, outcome.output, [each.value for each in outcome.observations]]).decode())


def child(function: Callable[..., None], *arguments: str) -> subprocess.Popen[str]:
    code = f"from tests.runtime import test_resume_processes as t; import sys; t.{function.__name__}(*sys.argv[1:])"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    told, _ = process.communicate(timeout=60)
    return process.returncode, told


@pytest.mark.parametrize("place", PLACES)
def test_i44_a_worker_killed_anywhere_pays_at_most_once(place: str, tmp_path: Path) -> None:
    """D25, I-44, O-33: the next process goes on with the run; an effect of unknown outcome is told, not repeated."""
    tmp_path.chmod(0o700)
    assert ended(child(run, str(tmp_path), place)) == (-signal.SIGKILL, "")
    status, told = ended(child(go_on, str(tmp_path), "nowhere"))
    assert status == 0
    kind, output, observed = msgspec.json.decode(told)
    unknown = place in ("before the effect", "after the effect", "between two calls")
    assert (kind, output) == ("finished", "done")
    assert observed == [{"interrupted": "outcome unknown"} if unknown else "paid"]
    assert effects(tmp_path).count("paid 3") == (0 if place == "before the effect" else 1)
    assert effects(tmp_path).count("asked") == (3 if place in ("asking", "second request") else 2)


def test_i44_a_worker_killed_five_times_pays_once_and_tells_it_once(tmp_path: Path) -> None:
    """O-33: five more kills in the request after it add nothing."""
    tmp_path.chmod(0o700)
    ended(child(run, str(tmp_path), "after the effect"))
    for _ in range(5):
        assert ended(child(go_on, str(tmp_path), "second request"))[0] == -signal.SIGKILL
    status, told = ended(child(go_on, str(tmp_path), "nowhere"))
    assert (status, msgspec.json.decode(told)[2]) == (0, [{"interrupted": "outcome unknown"}])
    assert effects(tmp_path).count("paid 3") == 1


def test_d22_a_killed_workers_run_is_busy_until_somebody_says_that_it_is_stopped(tmp_path: Path) -> None:
    """D22: time and another process alone end no reservation."""
    tmp_path.chmod(0o700)
    ended(child(run, str(tmp_path), "after the effect"))
    runtime, _ = worker(str(tmp_path), "nowhere")
    for _ in range(2):
        with pytest.raises(DecisionHistoryBusy):
            runtime.resume("r", "i")
    assert effects(tmp_path) == ["asked", "paid 3"]


# --- raced for -------------------------------------------------------------------------------------------------------


class BothRead(HandsOver):
    """A planted fault: a held run is handed over, and each worker goes on once both have read what waits."""

    folder = ""

    async def reserve(self, key: Any, token: str, **options: Any) -> Any:
        return await super().reserve(key, token, **options | {"format": checkpoints.FORMAT})

    async def oldest(self, key: Any, after: int, page: Any) -> Any:
        entries = await super().oldest(key, after, page)
        if not after:
            name = key.id.encode().hex()
            Path(f"{self.folder}/{name}-{os.getpid()}").touch()
            deadline = time.monotonic() + 10
            while len(list(Path(self.folder).glob(f"{name}-*"))) < 2 and time.monotonic() < deadline:
                os.sched_yield()
        return entries


def paying(folder: str) -> Any:
    @capability(needs_approval=True)
    def pay(number: int) -> str:
        """Pay."""
        effect(folder, str(number))
        return "paid"

    return program(pay)


def racer(folder: str, kind: str) -> None:
    """Answer each line, an approval, by what came of going on with it."""
    journal = {"right": SQLiteJournal, "hands over": BothRead}[kind](Path(folder) / "runs.sqlite", blocking=True)
    journal.folder = folder  # type: ignore[attr-defined]
    if kind != "right":
        checkpoints.check_end = lambda key, header, entries: None  # which would find the other worker's records
    store = JournalStore(journal, namespace="t")
    print("ready", flush=True)
    for line in sys.stdin:
        approval = msgspec.json.decode(line, type=Approval)
        made, _ = kept(paying(folder), store, finish())
        try:
            outcome = drive(made.resume(approval.run_id, "i", approvals=[approval]))
            told = outcome.kind
        except ApprovalRefused as refused:
            told = refused.problem
        except MinutebookError as error:
            told = error.code
        print(told, flush=True)


@contextmanager
def racers(folder: Path, kind: str) -> Iterator[list[subprocess.Popen[str]]]:
    both = [child(racer, str(folder), kind) for _ in range(2)]
    try:
        for each in both:
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"
        yield both
    finally:
        for each in both:
            each.communicate(timeout=60)


def race(folder: Path, kind: str, rounds: int) -> Iterator[tuple[list[str], int]]:
    """Give one approval to two processes at once, round after round; yield what they say and how often was paid."""
    folder.chmod(0o700)
    store = JournalStore(SQLiteJournal(folder / "runs.sqlite", blocking=True), namespace="t")
    with racers(folder, kind) as both:
        for number in range(rounds):
            made, _ = kept(paying(str(folder)), store, calls(call("pay", number=number), exchange=2))
            outcome = drive(made.run("go", run_id=f"run-{number}", invocation_id="i"))
            answer = msgspec.json.encode(outcome.pending[0].approve(by="ann")).decode() + "\n"
            for each in both:
                assert each.stdin is not None
                each.stdin.write(answer)
                each.stdin.flush()
            told = [each.stdout.readline().strip() for each in both if each.stdout is not None]
            yield told, effects(folder).count(str(number))
    with suppress(DecisionHistoryError):
        drive(store.close())


def test_i42_of_two_workers_with_one_approval_exactly_one_executes(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """I-42: atomic in the checkpoint store: one process executes and finishes, the other is refused by name."""
    refusals: dict[str, int] = {}
    for told, paid in race(tmp_path, "right", ROUNDS):
        assert paid == 1, told
        assert told.count("finished") == 1, told
        (other,) = [each for each in told if each != "finished"]
        assert other in ("DecisionHistoryBusy", "used"), told
        refusals[other] = refusals.get(other, 0) + 1
    assert sum(refusals.values()) == ROUNDS
    figure(f"{ROUNDS:,} races, 1 execution each; the other: {refusals}")


def test_i42_control_a_store_that_hands_over_lets_both_execute(tmp_path: Path) -> None:
    """A race that nobody can lose would prove nothing: without exclusion and fencing some calls are executed twice."""
    assert any(paid > 1 for _, paid in race(tmp_path, "hands over", 3))
