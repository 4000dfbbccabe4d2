"""
System calls of a store fail, one at a time and for good, and disks fill up.

Nothing fails silently: a call either did its work or raises an error of ours, never the driver's. What was
acknowledged stays, the file can be opened again, and the same call by the same id then succeeds once. With
MINUTEBOOK_PROVE=1 every point is tried.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.budgets import PROVE, budget
from tests.faults import workload
from tests.faults.kill import ERRORS, SYNCS, database_files, fault_points, inject_error
from tests.faults.trace import strace_problem
from tests.faults.workload import NAME, Clock, Found, Plan, Store, Story

from minutebook.conversation import Conversation
from minutebook.errors import DecisionHistoryStorageFailed, MinutebookError, StorageError, StoreClosed
from minutebook.stores.sqlite import SQLiteJournal
from minutebook.testing.drive import drive

CASES = budget(14, None)
CALLS = ("openat", "write", "pwrite64", "ftruncate", "unlink", *SYNCS)

Figure = Callable[[str], None]
Fresh = Callable[[], Path]

needs_strace = pytest.mark.skipif(strace_problem() is not None, reason=str(strace_problem()))
long_run = pytest.mark.timeout(7_200 if PROVE else 120)


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    return lambda: tmp_path_factory.mktemp("root")


def store_files(database: Path) -> tuple[Path, ...]:
    return (*database_files(database), database.with_name(database.name + "-lock"))


def sampled(cases: list[tuple[str, int, str]]) -> list[tuple[str, int, str]]:
    """Return every case under prove, else some of each call."""
    return cases if CASES is None else cases[:: max(1, len(cases) // CASES)]


def stages(stderr: str) -> dict[str, str]:
    """Return how each stage of the child ended, from what it says on standard error."""
    told = {}
    for line in stderr.splitlines():
        stage, _, outcome = line.partition(" ")
        assert stage in ("open", "work", "again"), f"not an error of ours: {stderr[-1500:]}"
        told[stage] = outcome
    return told


# --- I-5, I-6 --------------------------------------------------------------------------------------------------------


@needs_strace
@long_run
@pytest.mark.parametrize("persistent", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("script", ["append", "delete", "recover"])
def test_i05_a_failing_call_is_named_and_loses_nothing(
    script: str, persistent: bool, fresh: Fresh, figure: Figure
) -> None:
    """For every call and error: no silent success, an error of ours, nothing acknowledged gone, reopening works."""
    plan = Plan(script, count=1 if script == "recover" else 2, log_bytes=20_000)
    told = workload.stories(plan)
    root = fresh()
    points = fault_points(plan.command(root), CALLS, paths=store_files(root / NAME))
    assert {call for call, _ in points} >= {"openat", "pwrite64", "fdatasync"}
    # Whoever is interrupted tries again, so an interruption for good would last for good.
    errors = [error for error in ERRORS if not (persistent and error == "EINTR")]
    cases = [(call, n, error) for call, n in points for error in errors]
    chosen, named = sampled(cases), 0
    for call, n, error in chosen:
        root = fresh()
        end = inject_error(plan.command(root), call, error, n, persistent=persistent, paths=store_files(root / NAME))
        case = f"{error} from {call} {n}{' for good' if persistent else ''}: {end}"
        assert end.status == 0, case
        outcome = stages(end.stderr)
        assert outcome or len(end.acknowledged) == len(told[0].labels), case
        assert all(word == "ok" or word.startswith("DecisionHistory") for word in outcome.values()), case
        if call in SYNCS and outcome.get("work", "").startswith("DecisionHistoryStorageFailed SQLITE_IOERR"):
            assert outcome["again"] == "DecisionHistoryStorageFailed failed_before", f"promise I-6: {case}"
        if outcome.get("again") == "ok" and script == "recover":
            with Found(plan, root / NAME) as found:  # a second turn is another turn
                assert len(found.at(0)["talk"][1]) >= 5, case
        elif outcome.get("again") == "ok":
            with Found(plan, root / NAME) as found:
                assert workload.recorded(found.at(told[0].states[-1][0])) == workload.recorded(told[0].final), case
        else:
            assert workload.judged(told, root, erased(end.acknowledged)) is None, case
        named += bool(outcome)
    kind = "for good" if persistent else "once"
    figure(f"{script}, {kind}: {len(chosen)} of {len(cases)} points, {named} named errors, 0 lost")
    assert named > 0


def erased(acknowledged: tuple[str, ...]) -> tuple[str, ...]:
    """Return what the story acknowledges: there every deletion erases, under a fault it may say that it did not."""
    return tuple(label.replace("False", "True") for label in acknowledged)


@needs_strace
def test_i06_after_a_failed_sync_everything_is_refused_until_it_is_opened_again(fresh: Fresh) -> None:
    """The second attempt finds a healthy disk, and is refused all the same; the third, on a new store, is not."""
    plan = Plan("append", count=2)
    root = fresh()
    points = fault_points(plan.command(root), ("fdatasync",), paths=store_files(root / NAME))
    refused = []
    for call, n in budget(points[-8:], points):
        root = fresh()
        end = inject_error(plan.command(root), call, "EIO", n, paths=store_files(root / NAME))
        refused.append(stages(end.stderr).get("again"))
        workload.run_plan(plan, root / NAME)
        with Found(plan, root / NAME) as found:
            assert workload.recorded(found.at(0)) == workload.recorded(Story.of(plan).final)
    assert "DecisionHistoryStorageFailed failed_before" in refused
    assert set(refused) <= {None, "DecisionHistoryStorageFailed failed_before"}, refused


@needs_strace
@pytest.mark.parametrize("host", ["WAL-FULL", "DELETE-EXTRA", "TRUNCATE-FULL", "PERSIST-FULL"])
def test_i06_after_a_failed_sync_a_hosts_connection_is_refused_until_it_is_opened_again(
    host: str, fresh: Fresh, figure: Figure
) -> None:
    """In every journal mode, at every sync of the work: named, refused from then on, right on a new connection."""
    plan = Plan("append", count=2, host=host)
    root = fresh()
    points = fault_points(plan.command(root), SYNCS, paths=store_files(root / NAME))
    refused = 0
    for call, n in budget(points[-8:], points):
        root = fresh()
        end = inject_error(plan.command(root), call, "EIO", n, paths=store_files(root / NAME))
        outcome = stages(end.stderr)
        if outcome.get("work", "").startswith("DecisionHistoryStorageFailed SQLITE_IOERR"):
            assert outcome["again"] == "DecisionHistoryStorageFailed failed_before", f"{call} {n}: {end}"
            refused += 1
        workload.run_plan(plan, root / NAME)
        with Found(plan, root / NAME) as found:
            assert workload.recorded(found.at(0)) == workload.recorded(Story.of(plan).final)
    figure(f"{host}: {refused} of {len(points)} syncs refused everything after them")
    assert refused > 0


# --- I-7: disks that fill up -----------------------------------------------------------------------------------------


def in_child(work: Callable[[], None]) -> None:
    """Run `work` in a process of its own, whose limits and signals are not ours."""
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@contextlib.contextmanager
def small_disk(root: Path, size: int) -> Iterator[Path]:
    """Mount a tmpfs of `size` bytes."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(root)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"small disks cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield root
    finally:
        subprocess.run(["umount", str(root)], check=True)


def fill(root: Path, left: int) -> None:
    """Leave `left` bytes free, by a file of ballast."""
    free = os.statvfs(root)
    with (root / "ballast").open("wb") as ballast:
        ballast.write(bytes(max(0, free.f_bavail * free.f_frsize - left)))


def appended(root: Path, name: str) -> None:
    """Open the store, append once, close it."""
    journal = SQLiteJournal(root / NAME, blocking=True)
    store = Store(journal)
    try:
        drive(append_to(store, name))
    finally:
        drive(store.close())


async def append_to(store: Store, name: str) -> object:
    talk = Conversation(store, "talk", format="openai-chat")
    return await talk.append(workload.pair(1, name) * 4, id=name)


PAGE = 4096
LEVELS = budget((0, 1 * PAGE, 3 * PAGE, 9 * PAGE, 14 * PAGE, 20 * PAGE), range(0, 34 * PAGE, PAGE))
"""A tmpfs gives space by pages, so every level in steps of one page is every level there is."""


@long_run
def test_i07_a_full_disk_refuses_and_the_same_call_succeeds_once(tmp_path: Path, figure: Figure) -> None:
    """In the middle of use: a named refusal, nothing lost, and with space again the same id is recorded once."""
    refusals = 0
    for level in LEVELS:
        refusals += fill_up_in_use(tmp_path, level)
    figure(f"{len(LEVELS)} fill levels in use, {refusals} refusals, 0 lost")
    assert refusals > 0


def fill_up_in_use(root: Path, level: int) -> int:
    refusals = 0
    with small_disk(root, 512 * 1024):
        reader, writer = os.pipe()

        def work() -> None:
            store = Store(SQLiteJournal(root / NAME, blocking=True))
            drive(append_to(store, "before"))
            fill(root, level)
            for n in range(8):
                try:
                    drive(append_to(store, f"under {n}"))
                except DecisionHistoryStorageFailed:
                    os.write(writer, b"x")
                    break
            (root / "ballast").unlink()
            with contextlib.suppress(DecisionHistoryStorageFailed):  # it may have to be opened again first
                drive(append_to(store, f"under {n}"))
            drive(store.close())
            store = Store(SQLiteJournal(root / NAME, blocking=True))
            receipt = drive(append_to(store, f"under {n}"))
            assert drive(append_to(store, f"under {n}")) == receipt
            header = drive(store.verify(store.key("talk")))
            assert header.entries == 8 * (n + 2), (header.entries, n)
            drive(store.close())

        in_child(work)
        os.close(writer)
        refusals = len(os.read(reader, 10))
        os.close(reader)
    return refusals


@long_run
def test_i07_a_disk_full_from_the_start_refuses_and_can_be_used_later(tmp_path: Path, figure: Figure) -> None:
    """Bad input 82, at each step of the first opening: a named error, and with space again everything works."""
    refusals = 0
    for level in LEVELS:
        with small_disk(tmp_path, 512 * 1024):
            fill(tmp_path, level)
            refused = tmp_path.with_name("refused")

            def work(refused: Path = refused) -> None:
                try:
                    appended(tmp_path, "first")
                except StorageError:
                    refused.touch()
                (tmp_path / "ballast").unlink()
                appended(tmp_path, "first")
                appended(tmp_path, "first")
                with Found(Plan("append"), tmp_path / NAME) as found:
                    assert found.at(0)["talk"][0]["entries"] == 8

            in_child(work)
            refusals += refused.exists()
            refused.unlink(missing_ok=True)
    figure(f"{len(LEVELS)} fill levels at the first opening, {refusals} refusals")
    assert refusals > 0


@long_run
def test_bad_input_83_a_file_size_limit_cuts_writes_short(fresh: Fresh, figure: Figure) -> None:
    """A write that is cut short by the limit, with its signal ignored, is a named error and loses nothing."""
    limits = range(0, 256 * 1024, budget(24 * 1024, 512))
    for limit in limits:
        root = fresh()

        def work(root: Path = root, limit: int = limit) -> None:
            acknowledged: list[str] = []
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            plan = Plan("append", count=12, log_bytes=40_000)
            with contextlib.suppress(StorageError):
                workload.run_plan(plan, root / NAME, acknowledged.append)
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            told = workload.stories(plan)
            assert workload.judged(told, root, tuple(acknowledged)) is None, limit
            workload.run_plan(plan, root / NAME)
            with Found(plan, root / NAME) as found:
                assert workload.recorded(found.at(0)) == workload.recorded(told[0].final)

        in_child(work)
    figure(f"{len(limits)} limits, 0 lost")


def test_bad_input_84_no_descriptors_left(fresh: Fresh) -> None:
    """Opening and reading without a free descriptor is a named error, and works once there is one."""
    root = fresh()

    def work() -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        used = max(map(int, os.listdir("/proc/self/fd")))
        for spare in range(8):
            resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, hard))
            try:
                store = Store(SQLiteJournal(root / NAME, blocking=True))
            except StorageError:
                continue
            with contextlib.suppress(StorageError):
                drive(append_to(store, "first"))
                drive(store.header(store.key("talk")))
            drive(store.close())
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        appended(root, "first")
        with Found(Plan("append"), root / NAME) as found:
            assert found.at(0)["talk"][0]["entries"] == 8

    in_child(work)


# --- I-9 -------------------------------------------------------------------------------------------------------------


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@long_run
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are counted in /proc")
def test_i09_closing_in_the_middle_of_use_leaks_nothing(tmp_path: Path, figure: Figure) -> None:
    """Closed with a turn open, or with writers at work in other threads: descriptors and threads are flat."""
    cycles = budget(100, 1_000)
    appended(tmp_path, "warm")
    before, threads = descriptors(), threading.active_count()
    for n in range(cycles):
        store = Store(SQLiteJournal(tmp_path / NAME, clock=Clock(), blocking=True))
        store.ids = n * 1_000
        talk = Conversation(store, f"talk {n % 3}", format="openai-chat")
        if n % 4 == 0:
            drive(talk.turn("left open").__aenter__())
        elif n % 4 == 1:
            close_under_writers(store, n)
        else:
            drive(store.header(talk.key))
        drive(store.close())
        with pytest.raises(StoreClosed):
            drive(store.header(talk.key))
        recover_all(tmp_path)
    assert descriptors() <= before
    assert threading.active_count() <= threads
    figure(f"{cycles} cycles, descriptors and threads flat")


def test_i09_control_what_is_left_open_is_counted(tmp_path: Path) -> None:
    """A store that is not closed shows in the descriptors, and one whose thread still runs in the threads too."""
    appended(tmp_path, "warm")
    before, threads = descriptors(), threading.active_count()
    left = SQLiteJournal(tmp_path / NAME)
    both = (append_to(Store(left), str(number)) for number in range(2))

    async def together() -> None:
        await asyncio.gather(*both)

    asyncio.run(together())
    assert descriptors() > before
    assert threading.active_count() > threads
    drive(left.close())
    assert (descriptors(), threading.active_count()) == (before, threads)


def close_under_writers(store: Store, n: int) -> None:
    errors: list[BaseException] = []

    def write(worker: int) -> None:
        try:
            for m in range(20):
                talk = Conversation(store, f"of worker {worker}", format="openai-chat")
                drive(talk.append(workload.pair(n, str(m))[:2], id=f"{n} {m}"))
        except StoreClosed:
            return
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=write, args=(worker,)) for worker in range(2)]
    for worker in workers:
        worker.start()
    drive(store.close())
    for worker in workers:
        worker.join()
    assert not errors, errors


def recover_all(root: Path) -> None:
    with Found(Plan("append"), root / NAME) as found:
        for listing in drive(found.store.list(limit=100)):
            if listing.header.token:
                with contextlib.suppress(MinutebookError):
                    drive(found.store.recover(listing.key, worker_stopped=True))
