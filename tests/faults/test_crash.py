"""
The store's process is killed, at every system call that makes something durable and at random moments.

A kill leaves all that was written, so the record is the one acknowledged last or the next one, whole. The next one was
committed and never heard of: its idempotency id tells, and a repetition writes nothing twice. With MINUTEBOOK_PROVE=1
the budgets are the long ones.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.budgets import PROVE, budget
from tests.faults import workload
from tests.faults.kill import SYNCS, Nursery, database_files, fault_points, kill_at
from tests.faults.trace import strace_problem
from tests.faults.workload import NAME, Clock, Found, Plan, Store, Story

from minutebook.conversation import Conversation
from minutebook.errors import DecisionHistoryBusy, DecisionHistorySchemaUnsupported, StorageError
from minutebook.model.entries import Kind
from minutebook.stores import sqlite_connection
from minutebook.stores.sqlite import SQLiteJournal
from minutebook.testing.drive import drive

KILLS = budget(40, 10_000)
SEED = 20

Figure = Callable[[str], None]
Fresh = Callable[[], Path]

needs_strace = pytest.mark.skipif(strace_problem() is not None, reason=str(strace_problem()))
long_run = pytest.mark.timeout(7_200 if PROVE else 120)


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    return lambda: tmp_path_factory.mktemp("root")


def created(root: Path) -> Path:
    """Return `root` with a database in it that holds nothing yet: its making has syncs enough of its own."""
    workload.run_plan(Plan("append", count=0), root / NAME)
    return root


def repeat(plan: Plan, root: Path, story: Story) -> None:
    """Run a script again after its kill: what was recorded stays, what was not is added, nothing is there twice."""
    workload.run_plan(plan, root / NAME)
    with Found(plan, root / NAME) as found:
        assert workload.recorded(found.at(0)) == workload.recorded(story.final)


# --- I-1, I-3, I-8 ---------------------------------------------------------------------------------------------------

PLANS = [
    Plan("append", count=2, log_bytes=30_000, blocking=True),
    Plan("turns", count=2, blocking=False),
    Plan("delete", count=2, blocking=True),
    Plan("recover", count=1, blocking=False),
    Plan("tasks", count=3, blocking=False),
    Plan("cut", count=4, blocking=True),
]


@needs_strace
@long_run
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.script)
def test_i01_killed_at_every_sync_and_unlink(plan: Plan, fresh: Fresh, figure: Figure) -> None:
    """For every n: each acknowledged commit is there, at most one more is, and a repetition writes nothing twice."""
    start = fresh if plan.script == "append" else lambda: created(fresh())
    told, kills, proving = workload.stories(plan), 0, 0
    points = fault_points(plan.command(start()), (*SYNCS, "unlink"))
    for call, n in points:
        root = start()
        end = kill_at(plan.command(root), n, call=call)
        # Where a thread writes too, which of the two makes a checkpoint is not the same in every run.
        assert end.struck or not plan.blocking, f"{call} {n} was never reached"
        assert workload.judged(told, root, end.acknowledged) is None, f"killed at {call} {n}"
        kills, proving = kills + end.struck, proving + (end.struck and len(end.acknowledged) > 0)
        if plan.script == "append":
            repeat(plan, root, told[0])
    figure(f"{plan.script}: {kills} kills at {len(points)} points, {proving} after an acknowledgement, 0 lost")
    assert proving > 0


@needs_strace
def test_i01_control_an_early_acknowledgement_is_found(fresh: Fresh) -> None:
    """A store that acknowledged before its commit loses what it acknowledged, in kills as it enters its writes."""
    plan = Plan("append", count=1, early=True)
    root, outcomes, told = created(fresh()), [], workload.stories(Plan("append", count=1))
    for call, n in fault_points(plan.command(root), ("pwrite64",), paths=database_files(root / NAME))[::2]:
        root = created(fresh())
        end = kill_at(plan.command(root), n, call=call, paths=database_files(root / NAME))
        outcomes.append(workload.judged(told, root, end.acknowledged))
    assert "lost" in [problem[0] for problem in outcomes if problem], outcomes


@long_run
def test_i01_killed_at_random_moments(tmp_path: Path, figure: Figure) -> None:
    """Killed at any instruction, without a tracer; each run with other contents."""
    random, root, kills = Random(SEED), tmp_path / "root", 0
    seeds = range(budget(3, 20))
    plans = [Plan(script, 30, seed, blocking=seed % 2 == 0) for seed in seeds for script in ("append", "turns")]
    told = {plan: workload.stories(plan) for plan in plans}
    with Nursery(workload.__file__) as nursery:
        while kills < KILLS:
            plan, delay_seconds = random.choice(plans), random.uniform(0, 0.01)
            root.mkdir(0o700)
            end = nursery.kill_after(plan.arguments(root), delay_seconds, acks=random.randrange(1, 25))
            case = f"seed {SEED}, kill {kills}, {plan}, {len(end.acknowledged)} acknowledged"
            assert workload.judged(told[plan], root, end.acknowledged) is None, case
            assert end.acknowledged, case
            if plan.script == "append":
                repeat(plan, root, told[plan][0])
            shutil.rmtree(root)
            kills += end.struck  # a short one may end first
    figure(f"{kills:,} kills at random moments, 0 lost, 0 torn, 0 written twice")


# --- O-33: killed during a tool --------------------------------------------------------------------------------------


def killed_in(script: Callable[[Store], Any], database: Path) -> None:
    """Run a script in a process of its own that kills itself with SIGKILL at its end, without any clean-up."""
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            drive(script(Store(SQLiteJournal(database, blocking=True))))
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def talk_of(store: Store, **options: Any) -> Conversation:
    return Conversation(store, "talk", format="openai-chat", **options)


async def killed_in_a_tool(store: Store) -> None:
    turn = talk_of(store).turn("pay the bill")
    await turn.__aenter__()
    await turn.window()
    await turn.respond(workload.called(1, "C1"))


@contextlib.contextmanager
def opened(database: Path) -> Iterator[Store]:
    store = Store(SQLiteJournal(database, blocking=True))
    store.ids = 1_000
    try:
        yield store
    finally:
        drive(store.close())


async def entries_of(store: Store) -> list[Kind]:
    return [entry.kind async for entry in store.entries(store.key("talk"))]


def test_o33_killed_during_a_tool(tmp_path: Path) -> None:
    """The call is in no window, was marked once over five reopenings, stays in the record, and the turn can go on."""
    database = tmp_path / NAME
    killed_in(killed_in_a_tool, database)
    for attempt in range(5):
        with opened(database) as store:
            if attempt == 0:
                with pytest.raises(DecisionHistoryBusy):
                    drive(talk_of(store).turn("and now?").__aenter__())
                drive(store.recover(store.key("talk"), worker_stopped=True))
            window = drive(talk_of(store).window())
            assert b"C1" not in window.json
            assert drive(entries_of(store)) == [Kind.INPUT, Kind.RESPONSE, Kind.ABANDONED]

    async def go_on(store: Store) -> bytes:
        async with talk_of(store).turn("and now?") as turn:
            sent = (await turn.window()).json
            await turn.respond({"role": "assistant", "content": "the outcome is unknown"})
        return sent

    with opened(database) as store:
        assert b"and now?" in drive(go_on(store))
        recorded = drive(entries_of(store))
        assert recorded.count(Kind.RESPONSE) == 2
        assert recorded.count(Kind.RESULT) == 0
        assert recorded.count(Kind.ABANDONED) <= 2
        drive(store.verify(store.key("talk")))


# --- O-20: cutting a window deletes nothing --------------------------------------------------------------------------


@needs_strace
@long_run
def test_o20_a_kill_while_the_window_is_cut_loses_nothing(fresh: Fresh, figure: Figure) -> None:
    """A turn whose window leaves most of the record out, killed at its n-th write or sync: before or after."""
    plan = Plan("compact")
    told = workload.stories(plan)
    root = fresh()
    points = fault_points(plan.command(root), ("pwrite64", *SYNCS), paths=database_files(root / NAME))
    chosen = budget(points[:: len(points) // 12], points)
    for call, n in chosen:
        root = fresh()
        end = kill_at(plan.command(root), n, call=call, paths=database_files(root / NAME))
        assert end.struck, f"{call} {n} was never reached"
        assert workload.judged(told, root, end.acknowledged) is None, f"killed at {call} {n}"
    figure(f"{len(chosen)} of {len(points)} points, 0 lost")


def test_o20_cutting_a_window_deletes_nothing(tmp_path: Path) -> None:
    """No statement of such a turn removes a row."""
    statements: list[str] = []
    journal = SQLiteJournal(tmp_path / NAME, blocking=True)
    journal._database._connection.set_trace_callback(statements.append)  # type: ignore[attr-defined]
    store = Store(journal)
    drive(workload.compact(workload.Run(Plan("compact"), store, Clock(), lambda label: None)))
    drive(store.close())
    assert any(statement.startswith("INSERT INTO minutebook_log") for statement in statements)
    assert not [statement for statement in statements if "DELETE" in statement or "DROP" in statement]


# --- I-40, O-47: first start and upgrades ----------------------------------------------------------------------------


@needs_strace
@long_run
def test_i40_killed_at_every_write_of_a_migration(fresh: Fresh, figure: Figure) -> None:
    """The file is of one version or the other, and every row of the old one is there."""
    old, plan, versions = Plan("append", count=3), Plan("migrate"), set()

    def prepared() -> Path:
        root = fresh()
        workload.run_plan(old, root / NAME)
        return root

    before = workload.recorded(Story.of(old).final)["talk"][1]
    root = prepared()
    points = fault_points(plan.command(root), ("pwrite64", *SYNCS), paths=database_files(root / NAME))
    chosen = budget(points[:: len(points) // 10], points)
    for call, n in chosen:
        root = prepared()
        end = kill_at(plan.command(root), n, call=call, paths=database_files(root / NAME))
        version = workload.schema_of(root / NAME)
        assert version in ((1, False, 1), (2, True, 2)), f"{call} {n}"
        assert not end.acknowledged or version[0] == 2
        versions.add(version)
        with workload.newer_schema(), Found(old, root / NAME) as found:
            assert workload.recorded(found.at(0))["talk"][1][: len(before)] == before
    assert len(versions) == 2
    figure(f"{len(chosen)} of {len(points)} points of a migration, 0 lost")


def test_i40_a_failed_migration_leaves_the_old_schema_working(tmp_path: Path) -> None:
    """It is one transaction: its error is named, every row is as it was, and the old release goes on."""
    plan = Plan("append", count=3)
    workload.run_plan(plan, tmp_path / NAME)
    with workload.newer_schema(broken=True), pytest.raises(StorageError):
        SQLiteJournal(tmp_path / NAME, blocking=True)
    assert workload.schema_of(tmp_path / NAME) == (1, False, 1)
    assert workload.judged(workload.stories(plan), tmp_path, tuple(Story.of(plan).labels)) is None
    repeat(Plan("append", count=5), tmp_path, Story.of(Plan("append", count=5)))


def test_i40_control_a_migration_in_two_transactions_is_found(tmp_path: Path) -> None:
    """One that commits half way leaves the newer tables behind when its other half fails."""

    def torn(cursor: sqlite3.Cursor) -> None:
        workload._next_schema(cursor)
        cursor.execute("COMMIT")
        cursor.execute("BEGIN IMMEDIATE")
        cursor.execute("UPDATE minutebook_log SET no_such_column = 1")

    workload.run_plan(Plan("append", count=3), tmp_path / NAME)
    with workload.newer_schema(broken=True):
        sqlite_connection.MIGRATIONS = (*sqlite_connection.MIGRATIONS[:-1], torn)  # type: ignore[misc]
        with pytest.raises(StorageError):
            SQLiteJournal(tmp_path / NAME, blocking=True)
    assert workload.schema_of(tmp_path / NAME)[:2] == (2, True)


@pytest.mark.parametrize("logged", [False, True], ids=["in the file", "in the log alone"])
def test_i40_a_newer_schema_is_refused_with_both_numbers(tmp_path: Path, logged: bool) -> None:
    """An older release does not touch it, also where the newer one died before its first checkpoint (bad input 88)."""
    plan = Plan("append", count=2)
    workload.run_plan(plan, tmp_path / NAME)
    if logged:
        with workload.newer_schema():
            killed_in(forty_messages, tmp_path / NAME)
    else:
        with workload.newer_schema():
            workload.run_plan(plan, tmp_path / NAME)
    with pytest.raises(DecisionHistorySchemaUnsupported) as caught:
        SQLiteJournal(tmp_path / NAME, blocking=True)
    assert (caught.value.found, caught.value.supported) == (2, 1)
    assert workload.schema_of(tmp_path / NAME) == (2, True, 2)
    with workload.newer_schema(), Found(plan, tmp_path / NAME) as found:
        assert found.at(0)["talk"][1][:4] == Story.of(plan).final["talk"][1]


async def forty_messages(store: Store) -> None:
    await talk_of(store).append(workload.pair(3, "more") * 20, id="forty")


@long_run
def test_o47_eight_processes_start_on_an_empty_directory(fresh: Fresh, figure: Figure) -> None:
    """All of them succeed, there is one version row, and each one's write is there."""
    source = (
        "import sys; from tests.faults import workload as w; plan = w.Plan('append', 1, int(sys.argv[2]));"
        "store = w.Store(w.open_journal(plan, w.Path(sys.argv[1]), w.Clock()));"
        "w.drive(w.lane(w.Run(plan, store, w.Clock(), print), sys.argv[2])); w.drive(store.close())"
    )
    rounds = budget(2, 20)
    for _ in range(rounds):
        database = fresh() / NAME
        command = [sys.executable, "-c", source, str(database)]
        cwd = Path(__file__).parents[2]
        children = [subprocess.Popen([*command, str(n)], cwd=cwd, stderr=subprocess.PIPE, text=True) for n in range(8)]
        told = [(child.communicate()[1], child.returncode) for child in children]
        assert told == [("", 0)] * 8
        with contextlib.closing(sqlite3.connect(database)) as connection:
            assert connection.execute("SELECT version FROM minutebook_schema").fetchall() == [(1,)]
        with Found(Plan("append"), database) as found:
            assert sorted(found.at(0)) == [str(n) for n in range(8)]
    figure(f"{rounds} rounds of 8 processes, 0 failed")
