"""
The power goes at any moment of a store's work, and the disk keeps what it must and any part of the rest.

Every image is opened as a program would open it; what it holds must be a state of the story, from the one acknowledged
last to the next. With MINUTEBOOK_PROVE=1 the budgets are the long ones.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.budgets import PROVE, budget
from tests.faults import workload
from tests.faults.loopfs import cut_during, loop_disk, loop_problem
from tests.faults.powercut import SOUND, Check, Outcome, Report, Verdict, rebuild
from tests.faults.trace import Trace, strace_problem, trace_child
from tests.faults.workload import NAME, Clock, Found, Plan, Run, Store, Story

from minutebook.errors import DecisionHistoryFenced
from minutebook.model.record import Delta
from minutebook.stores.sqlite import SQLiteJournal
from minutebook.testing.drive import drive

STATES = budget(3_200, 200_000)
SEED = 20

Figure = Callable[[str], None]

needs_strace = pytest.mark.skipif(strace_problem() is not None, reason=str(strace_problem()))
needs_loop = pytest.mark.skipif(loop_problem() is not None, reason=str(loop_problem()))
long_run = pytest.mark.timeout(7_200 if PROVE else 120)

PLANS = [
    Plan("create", blocking=True),
    Plan("append", blocking=False),
    Plan("turns", count=4, blocking=True),
    Plan("delete", count=3, blocking=False),
    Plan("expire", blocking=True),
    Plan("recover", blocking=False),
    Plan("reserve", blocking=True),
    Plan("tasks", blocking=False),
    Plan("cut", blocking=True),
]

HOSTS = {
    "WAL-FULL": True,
    "TRUNCATE-FULL": True,
    "PERSIST-FULL": True,
    "DELETE-EXTRA": True,
    "DELETE-FULL": False,
    "WAL-NORMAL": False,
}
"""Settings of a host's connection, and whether its commits are durable."""


def story_check(plan: Plan) -> Check:
    """Return the check that the disk holds a state which the acknowledgements allow."""
    told = workload.stories(plan)

    def check(directory: Path, acknowledged: tuple[str, ...]) -> Verdict:
        problem = workload.judged(told, directory, acknowledged)
        return SOUND if problem is None else Verdict(Outcome(problem[0]), problem[1])

    return check


def traced(plan: Plan, root: Path) -> Trace:
    trace = trace_child(plan.command(root), root=root)
    assert trace.acknowledged
    return trace


def cut_everywhere(plan: Plan, root: Path, figure: Figure, check: Check | None = None) -> Report:
    budget = STATES // len(PLANS)
    report = rebuild(traced(plan, root), None, check or story_check(plan), budget=budget, seed=SEED)
    figure(f"{plan.script}: {report.states:,} states, {report.lost:,} lost, {report.corrupt:,} corrupt")
    assert report.acknowledged > 0, report
    return report


@needs_strace
@long_run
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.script)
def test_i02_acknowledged_commits_survive_every_power_cut(tmp_path: Path, plan: Plan, figure: Figure) -> None:
    """Nothing acknowledged is lost, nothing is corrupt, and the record is the old or the new one (also I-3)."""
    report = cut_everywhere(plan, tmp_path, figure)
    assert report.clean, report


@needs_strace
@long_run
def test_i02_control_commits_without_a_sync_are_lost(tmp_path: Path, figure: Figure) -> None:
    """The same store on a connection set to NORMAL loses rows: a harness that misses them would miss ours."""
    report = cut_everywhere(Plan("append", normal=True), tmp_path, figure)
    assert report.lost > 0, report
    assert (report.corrupt, report.other) == (0, 0), report


@needs_strace
@long_run
@pytest.mark.parametrize("host", HOSTS)
def test_i02_bad_input_89_a_hosts_connection_loses_nothing_where_it_claims_so(
    tmp_path: Path, host: str, figure: Figure
) -> None:
    """What is acknowledged on settings that count as durable survives; those that do not do lose something."""
    plan = Plan("append", host=host)
    with Found(plan, tmp_path / NAME) as found:
        durable = found.journal.durable
    for file in tmp_path.iterdir():
        file.unlink()
    report = cut_everywhere(plan, tmp_path, figure)
    assert (report.lost == 0) is durable is HOSTS[host], report
    assert (report.corrupt, report.other) == (0, 0), report


@pytest.mark.parametrize(
    ("damage", "outcome"),
    [
        ("DELETE FROM minutebook_log WHERE seq = 3", "corrupt"),
        ("UPDATE minutebook_log SET entries = substr(entries, 1, length(entries) - 1)", "corrupt"),
        ("UPDATE minutebook_conversation SET epoch = epoch + 1", "other"),
        ("DELETE FROM minutebook_receipt", "corrupt"),
        ("UPDATE minutebook_conversation SET recent = x''", "corrupt"),
    ],
)
def test_i03_control_the_check_sees_half_a_commit(tmp_path: Path, damage: str, outcome: str) -> None:
    """Whatever part of a commit is missing or changed, the record is in no state of the story."""
    plan = Plan("append", count=18)
    workload.run_plan(plan, tmp_path / NAME)
    told = workload.stories(plan)
    assert workload.judged(told, tmp_path, tuple(told[0].labels)) is None
    with contextlib.closing(sqlite3.connect(tmp_path / NAME, isolation_level=None)) as connection:
        assert connection.execute(damage).rowcount > 0
    found = workload.judged(told, tmp_path, tuple(told[0].labels))
    assert found is not None
    assert found[0] == outcome


@needs_strace
@long_run
def test_i02_what_was_erased_does_not_come_back(tmp_path: Path, figure: Figure) -> None:
    """After `delete` has returned True no power cut leaves a byte of the content in any file of the store."""
    plan = Plan("delete", count=3)
    texts = {
        n: [workload.body(plan.seed, f"goes {n} {word}")[:40].encode() for word in ("asks", "answers")] for n in "012"
    }

    def check(directory: Path, acknowledged: tuple[str, ...]) -> Verdict:
        disk = b"".join(path.read_bytes() for path in directory.iterdir())
        back = [n for n in texts if f"deleted {n} True" in acknowledged and any(text in disk for text in texts[n])]
        return Verdict(Outcome.OTHER, f"{back} are back") if back else SOUND

    report = cut_everywhere(plan, tmp_path, figure, check)
    assert report.clean, report


@needs_strace
@long_run
def test_e6_what_was_cut_does_not_come_back(tmp_path: Path, figure: Figure) -> None:
    """After a commit that cuts has returned, no power cut leaves a byte of what it took in any file of the store."""
    plan = Plan("cut", count=6)
    texts = [[workload.body(plan.seed, f"{n} {word}")[:40].encode() for word in ("asks", "answers")] for n in range(6)]

    def check(directory: Path, acknowledged: tuple[str, ...]) -> Verdict:
        disk = b"".join(path.read_bytes() for path in directory.iterdir())
        gone = range(max(0, len(acknowledged) - workload.KEPT))
        back = [n for n in gone if any(text in disk for text in texts[n])]
        return Verdict(Outcome.OTHER, f"{back} are back") if back else SOUND

    report = cut_everywhere(plan, tmp_path, figure, check)
    assert report.clean, report


@needs_strace
@long_run
def test_i12_a_lost_reservation_is_fenced_by_token_and_epoch(tmp_path: Path, figure: Figure) -> None:
    """A plain reservation may be gone after the cut, and its epoch may come again; its holder writes nothing (I-15)."""
    plan, gone, again = Plan("reserve", count=3), 0, 0

    def check(directory: Path, acknowledged: tuple[str, ...]) -> Verdict:
        nonlocal gone, again
        with Found(plan, directory / NAME) as found:
            old, epoch = f"token {len(acknowledged)}", 1 + len(acknowledged)
            key, journal = found.store.key("talk"), found.journal
            header = drive(journal.header(key))
            if header is not None and header.token:
                drive(found.store.recover(key, worker_stopped=True))
            else:
                gone += 1
            new = drive(journal.reserve(key, "new token", format="openai-chat"))
            try:
                drive(journal.commit(key, old, epoch, Delta(idempotency="late")))
            except DecisionHistoryFenced:
                pass
            else:
                return Verdict(Outcome.OTHER, "a fenced holder wrote")
            again += new.header.epoch == epoch
            drive(journal.commit(key, "new token", new.header.epoch, Delta(idempotency="x"), release=True))
            return SOUND

    report = cut_everywhere(plan, tmp_path, figure, check)
    assert report.clean, report
    assert gone > 0
    assert again > 0, "no epoch came again, so the token was not needed here"


@needs_strace
@long_run
def test_i40_a_migration_survives_every_power_cut(tmp_path: Path, figure: Figure) -> None:
    """The file is of the old version or of the new one, with all that was recorded, in every state."""
    old, after = Plan("append"), Plan("migrate", count=1)
    workload.run_plan(old, tmp_path / NAME)
    before = workload.recorded(Story.of(old).final)
    versions = set()

    def check(directory: Path, acknowledged: tuple[str, ...]) -> Verdict:
        version = workload.schema_of(directory / NAME)
        versions.add(version)
        if version not in ((1, False, 1), (2, True, 2)) or (acknowledged and version[0] == 1):
            return Verdict(Outcome.CORRUPT, f"schema {version}")
        with workload.newer_schema(), Found(old, directory / NAME) as found:
            held = workload.recorded(found.at(0))
        _, entries, receipts = held["talk"]
        _, old_entries, old_receipts = before["talk"]
        if (entries[: len(old_entries)], receipts[: len(old_receipts)]) != (old_entries, old_receipts):
            return Verdict(Outcome.LOST, "of what the old version wrote")
        return (
            SOUND
            if len(receipts) - len(old_receipts) in (len(acknowledged), 1)
            else Verdict(Outcome.LOST, "the append")
        )

    report = cut_everywhere(after, tmp_path, figure, check)
    assert report.clean, report
    assert len(versions) == 2, versions


@needs_loop
@long_run
@pytest.mark.parametrize("normal", [False, True], ids=["full", "control_normal"])
def test_i02_ext4_agrees_with_the_rebuilt_disks(normal: bool, figure: Figure) -> None:
    """A real ext4 whose power is cut loses nothing that was acknowledged, and loses rows of the unsynced control."""
    plan = Plan("append", count=150, normal=normal, log_bytes=10**9 if normal else 60_000)
    told, lost, cuts = workload.stories(plan), 0, budget(8, 300)
    with loop_disk(64) as disk:
        for n in range(cuts):
            root = disk.root / str(n)
            root.mkdir(0o700)
            disk.sync()
            acknowledged = cut_during(disk, plan.command(root), 3 + n * 7 % 40, held=normal)
            problem = workload.judged(told, root, acknowledged, later=True)
            assert problem is None or (normal and problem[0] == "lost"), problem
            lost += problem is not None
            shutil.rmtree(root)  # three hundred databases would fill the disk
    figure(f"ext4{' without syncs' if normal else ''}: {lost} of {cuts} cuts lost an acknowledged row")
    assert (lost > 0) is normal


def test_i15_an_epoch_that_was_durable_never_goes_back(tmp_path: Path) -> None:
    """Reopening after every step of a story sees epochs and versions that only grow."""
    plan, clock, seen = Plan("recover", count=2), Clock(), [(0, 0)]

    def look(label: str) -> None:
        other = SQLiteJournal(tmp_path / NAME, clock=clock, blocking=True)
        header = drive(other.header(Store(other).key("talk")))
        drive(other.close())
        assert header is not None
        seen.append((header.epoch, header.version))

    store = Store(SQLiteJournal(tmp_path / NAME, clock=clock, blocking=True))
    drive(workload.recover(Run(plan, store, clock, look)))
    drive(store.close())
    assert seen == sorted(seen)
    assert len(set(seen)) == len(seen)
