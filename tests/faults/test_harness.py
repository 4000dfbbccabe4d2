"""
The fault harness proves itself on plain SQLite, whose behaviour under each setting is known.

What must hold (WAL with FULL, a rollback journal with EXTRA) is only believed because the same runs find the losses
that must be there (WAL with NORMAL, a rollback journal with FULL). With MINUTEBOOK_PROVE=1 the budgets are the long
ones.
"""

from __future__ import annotations

import shutil
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from tests.budgets import PROVE, budget
from tests.faults import bare_sqlite
from tests.faults.kill import (
    ERRORS,
    FAILING_CALLS,
    SYNCS,
    database_files,
    fault_points,
    inject_error,
    kill_after,
    kill_at,
)
from tests.faults.loopfs import cut_during, loop_disk, loop_problem
from tests.faults.powercut import SOUND, Keep, Outcome, Report, State, Verdict, rebuild, replay
from tests.faults.trace import (
    DirectorySynced,
    Event,
    Made,
    Renamed,
    Synced,
    Trace,
    Untraceable,
    Wrote,
    strace_problem,
    trace_child,
)

STATES = budget(2_000, 200_000)
ROWS = budget(30, 320)
SEED = 20

needs_strace = pytest.mark.skipif(strace_problem() is not None, reason=str(strace_problem()))
needs_loop = pytest.mark.skipif(loop_problem() is not None, reason=str(loop_problem()))
long_run = pytest.mark.timeout(3_600 if PROVE else 120)


def check(directory: Path, acknowledged: tuple[str, ...]) -> Verdict:
    """Every acknowledged row is there, and at most the one more whose commit was never heard of."""
    try:
        found = bare_sqlite.found_rows(directory)
    except (sqlite3.DatabaseError, ValueError) as error:
        return Verdict(Outcome.CORRUPT, str(error))
    if found < len(acknowledged):
        return Verdict(Outcome.LOST, f"{found} rows found")
    return SOUND if found <= len(acknowledged) + 1 else Verdict(Outcome.OTHER, f"{found} rows found")


def child(root: Path, journal_mode: str = "WAL", synchronous: str = "FULL", rows: int = 10) -> list[str]:
    return [sys.executable, bare_sqlite.__file__, str(root / bare_sqlite.NAME), journal_mode, synchronous, str(rows)]


def python(source: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", source, *map(str, arguments)]


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    return lambda: tmp_path_factory.mktemp("root")


def cut_everywhere(root: Path, journal_mode: str, synchronous: str) -> Report:
    trace = trace_child(child(root, journal_mode, synchronous, ROWS), root=root, timeout_seconds=300)
    assert trace.acknowledged == tuple(map(str, range(1, ROWS + 1)))
    report = rebuild(trace, None, check, budget=STATES, seed=SEED)
    print(f"{journal_mode} {synchronous}, {ROWS} rows: {report}")
    assert report.states >= 0.8 * STATES, report  # a rollback journal's states repeat: no more of them are different
    assert report.acknowledged > 0.75 * report.states, report
    return report


@needs_strace
@long_run
@pytest.mark.parametrize(("journal_mode", "synchronous"), [("WAL", "FULL"), ("DELETE", "EXTRA")])
def test_i02_synced_commits_survive_every_power_cut(tmp_path: Path, journal_mode: str, synchronous: str) -> None:
    """WAL with FULL, and a rollback journal with EXTRA, lose no acknowledged row and are never corrupt."""
    report = cut_everywhere(tmp_path, journal_mode, synchronous)
    assert report.clean, report


@needs_strace
@long_run
def test_i02_control_wal_normal_loses_rows(tmp_path: Path) -> None:
    """WAL with NORMAL does not sync its commits: a harness that finds no loss there finds nothing anywhere."""
    report = cut_everywhere(tmp_path, "WAL", "NORMAL")
    assert report.lost > 0, report
    assert (report.corrupt, report.other) == (0, 0), report


@needs_strace
@long_run
def test_i02_control_unsynced_unlink_brings_the_journal_back(tmp_path: Path) -> None:
    """
    A rollback journal with FULL removes the journal without syncing the directory.

    The journal can return after the power cut and undo the acknowledged commit. Only the directory model sees that;
    without it FULL and EXTRA look the same.
    """
    report = cut_everywhere(tmp_path, "DELETE", "FULL")
    assert report.lost > 0, report
    assert (report.corrupt, report.other) == (0, 0), report
    assert {failure.state.entries for failure in report.failures} <= {Keep.NOTHING, Keep.SOME}, report


@needs_strace
def test_same_seed_same_states_and_replay(tmp_path: Path, fresh: Callable[[], Path]) -> None:
    """A seed gives the same failures again, and each failure can be rebuilt alone from what it prints."""
    trace = trace_child(child(tmp_path, "WAL", "NORMAL"), root=tmp_path)
    first, second = (rebuild(trace, None, check, budget=700, seed=7) for _ in range(2))
    assert first == second
    assert "seed 7" in str(first)
    state = eval(str(first.failures[-1].state), {"State": State, "Keep": Keep})
    assert replay(trace, fresh(), check, state) == first.failures[-1].verdict


def made_by_hand(tmp_path: Path, *events: Event, initial: bytes = b"old") -> Trace:
    return Trace(tmp_path, {"file": initial}, {"file": 0}, events)


def seen_images(trace: Trace, budget: int = 200) -> set[tuple[tuple[str, bytes], ...]]:
    """Return every different directory that `rebuild` gives to its check after the last event."""
    seen = set()

    def look(directory: Path, acknowledged: tuple[str, ...]) -> Verdict:
        seen.add(tuple(sorted((path.name, path.read_bytes()) for path in directory.iterdir())))
        return SOUND

    rebuild(trace, None, look, budget=budget)
    return seen


def test_rename_without_a_sync_may_leave_either_name_and_an_empty_file(tmp_path: Path) -> None:
    """Writing a new file and renaming it over the old one is safe only if the new one is synced first."""
    unsynced = (Made("new", 1), Wrote(1, 0, b"new"), Renamed("new", "file", 1))
    assert (("file", b""),) in seen_images(made_by_hand(tmp_path, *unsynced))
    synced = (Made("new", 1), Wrote(1, 0, b"new"), Synced(1, 2), Renamed("new", "file", 1))
    files = {dict(image)["file"] for image in seen_images(made_by_hand(tmp_path, *synced))}
    assert files == {b"old", b"new"}


def test_entry_is_certain_only_after_its_directory_was_synced(tmp_path: Path) -> None:
    """A synced file can be gone whole while its directory was not synced."""
    events = (Made("new", 1), Wrote(1, 0, b"x"), Synced(1, 2), DirectorySynced("", 3), Wrote(1, 1, b"y"))
    assert (("file", b"old"),) in seen_images(made_by_hand(tmp_path, *events[:3]))
    check_names = [State(cut, Keep.NOTHING, Keep.NOTHING) for cut in (3, 4, 5)]
    names: list[list[str]] = []

    def look(directory: Path, acknowledged: tuple[str, ...]) -> Verdict:
        names.append(sorted(path.name for path in directory.iterdir()))
        return SOUND

    for state in check_names:
        replay(made_by_hand(tmp_path, *events), tmp_path, look, state)
    assert names == [["file"], ["file", "new"], ["file", "new"]]


def test_sync_covers_only_what_came_before_it_was_called(tmp_path: Path) -> None:
    """A write of another thread during a sync is not certain when the sync returns."""
    trace = made_by_hand(tmp_path, Wrote(0, 0, b"one"), Wrote(0, 0, b"two"), Synced(0, 1))
    assert (("file", b"one"),) in seen_images(trace)


def test_torn_write_keeps_any_of_its_sectors(tmp_path: Path) -> None:
    """A write of two sectors can arrive as either of them alone."""
    trace = made_by_hand(tmp_path, Wrote(0, 0, b"A" * 512 + b"B" * 512), initial=b"-" * 1024)
    expected = {a * 512 + b * 512 for a in (b"-", b"A") for b in (b"-", b"B")}
    assert {dict(image)["file"] for image in seen_images(trace)} == expected


def test_broken_check_is_counted_and_not_swallowed(tmp_path: Path) -> None:
    """A check that raises makes its state a finding."""

    def broken(directory: Path, acknowledged: tuple[str, ...]) -> Verdict:
        raise OSError("unreadable")

    report = rebuild(made_by_hand(tmp_path, Wrote(0, 0, b"new")), None, broken, budget=10)
    assert report.other == report.states > 0
    assert not report.clean


FILE_CALLS = """
import os, sys, threading
os.chdir(sys.argv[1])
os.mkdir("sub")
with open("sub/temporary", "wb", buffering=0) as file:
    file.write(b"first"); file.write(b" second"); file.seek(2); file.write(b"X"); os.fsync(file.fileno())
directory = os.open("sub", os.O_RDONLY)
os.rename("temporary", "kept", src_dir_fd=directory, dst_dir_fd=directory)
os.fsync(directory)
os.link("sub/kept", "linked"); os.unlink("sub/kept"); os.truncate("linked", 7)
slots = os.open("slots", os.O_WRONLY | os.O_CREAT)
def fill(first):
    mine = os.dup(slots)
    for slot in range(first, 100, 2):
        os.pwrite(mine, b"%9d" % slot, slot * 9); os.fdatasync(mine)
threads = [threading.Thread(target=fill, args=(first,)) for first in (0, 1)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(log, b"parent and ")
if os.fork() == 0:
    os.write(log, b"child"); os._exit(0)
os.wait()
"""


@needs_strace
def test_trace_follows_threads_forks_renames_and_directories(tmp_path: Path) -> None:
    """The events explain every byte that many kinds of calls left; otherwise `trace_child` refuses the trace."""
    trace = trace_child(python(FILE_CALLS, tmp_path), root=tmp_path)
    assert Made("sub", None) in trace.events
    assert any(isinstance(event, Renamed) and event.new == "sub/kept" for event in trace.events)
    assert any(isinstance(event, DirectorySynced) and event.path == "sub" for event in trace.events)
    assert sum(isinstance(event, Synced) for event in trace.events) == 101


@needs_strace
def test_trace_refuses_what_it_cannot_see(tmp_path: Path) -> None:
    """A write through a mapping is in no traced call, so nothing may be proved from that run."""
    source = "import mmap, sys; f = open(sys.argv[1], 'w+b'); f.truncate(9); m = mmap.mmap(f.fileno(), 9); m[0] = 1"
    with pytest.raises(Untraceable, match="hidden"):
        trace_child(python(source, tmp_path / "hidden"), root=tmp_path)


@needs_strace
@long_run
def test_i01_kill_at_every_sync_and_unlink(fresh: Callable[[], Path]) -> None:
    """Killed as it enters its n-th sync or unlink, for every n, the child leaves each acknowledged row or one more."""
    points = fault_points(child(fresh()), (*SYNCS, "unlink"))
    proving = 0
    for call, n in points:
        root = fresh()
        end = kill_at(child(root), n, call=call)
        assert end.struck, f"{call} {n} was never reached"
        assert check(root, end.acknowledged) == SOUND, f"killed at {call} {n}"
        proving += len(end.acknowledged) > 0
    print(f"{len(points)} kills at calls, {proving} of them after an acknowledgement")
    assert proving > len(points) / 2


@long_run
def test_i01_kill_at_random_moments(fresh: Callable[[], Path]) -> None:
    """Killed at a random moment of its work, without any tracer, the child leaves each acknowledged row or one more."""
    kills, random, struck = budget(25, 1_000), Random(SEED), 0
    for _ in range(kills):
        root, delay_seconds = fresh(), random.uniform(0, 0.02)
        end = kill_after(child(root, rows=100_000), delay_seconds, acks=random.randrange(1, 30))
        assert check(root, end.acknowledged) == SOUND, f"seed {SEED}, delay {delay_seconds}"
        struck += end.struck and len(end.acknowledged) > 0
    assert struck == kills


@needs_strace
@long_run
def test_i05_failing_calls_are_never_silent(fresh: Callable[[], Path]) -> None:
    """With its n-th call failing, the child either fails by name or has every row; what it acknowledged stays."""
    root = fresh()
    points = fault_points(child(root), FAILING_CALLS, paths=database_files(root / bare_sqlite.NAME))
    assert {call for call, _ in points} >= {"openat", "pwrite64", "ftruncate"}
    cases = [(call, n, error) for call, n in points for error in ERRORS]
    named = 0
    for call, n, error in budget(cases[:: len(cases) // 40], cases):
        root = fresh()
        end = inject_error(child(root), call, error, n, paths=database_files(root / bare_sqlite.NAME))
        case = f"{error} from {call} {n}: {end}"
        assert end.struck, case
        assert check(root, end.acknowledged) == SOUND, case
        named += "sqlite3." in end.stderr
        assert "sqlite3." in end.stderr or (end.status, len(end.acknowledged)) == (0, 10), case
    assert named > 0


@needs_loop
@long_run
@pytest.mark.parametrize(
    ("journal_mode", "synchronous", "survives"),
    [("WAL", "FULL", True), ("WAL", "NORMAL", False), ("DELETE", "FULL", False), ("DELETE", "EXTRA", True)],
)
def test_i02_ext4_agrees_with_the_rebuilt_disks(journal_mode: str, synchronous: str, survives: bool) -> None:
    """A real ext4 whose power is cut keeps and loses rows under the same settings as the rebuilt disks."""
    cuts, lost = budget(12, 300), 0
    with loop_disk(64) as disk:
        for n in range(cuts):
            root = disk.root / str(n)
            root.mkdir()
            disk.sync()
            command = child(root, journal_mode, synchronous, 100_000)
            acknowledged = cut_during(disk, command, 3 + n % 40, held=not survives)
            lost += bare_sqlite.found_rows(root) < len(acknowledged)
            shutil.rmtree(root)
    print(f"ext4, {journal_mode} {synchronous}: {lost} of {cuts} cuts lost an acknowledged row")
    assert (lost == 0) is survives
