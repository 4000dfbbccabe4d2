"""
Between a store and its server: system calls that fail, disks of servers that fill up, and what closing leaves.

Nothing fails silently: a call either did its work or raises an error of ours, never a driver's. What was acknowledged
stays, and the same call by the same id succeeds once. With MINUTEBOOK_PROVE=1 every point is tried.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import postgres
from servers.postgres import Server as PostgresServer
from servers.postgres import descendants
from servers.redis import Server as RedisServer
from servers.redis import binary, free_ports, shared, single, until
from tests.budgets import PROVE, budget
from tests.faults.kill import fault_points, inject_error
from tests.faults.test_io_errors import descriptors, fill, small_disk
from tests.faults.trace import ACK_VARIABLE, strace_problem

import minutebook
from minutebook import sync
from minutebook.errors import MinutebookError, StorageError, StoreClosed

ROOT = Path(__file__).parents[2]
CASES = budget(3, None)
CALLS = ("connect", "sendto", "recvfrom", "getsockopt", "setsockopt", "socket")
ERRORS = ("EIO", "ECONNRESET", "EPIPE", "ENOBUFS", "EINTR")
WORK = 4
"""How many conversations a child writes to, one commit each."""

Figure = Callable[[str], None]
needs_strace = pytest.mark.skipif(strace_problem() is not None, reason=str(strace_problem()))
long_run = pytest.mark.timeout(7_200 if PROVE else 300)

KINDS = ("Postgres", "Redis")
WAYS = [
    pytest.param("blocking", False, id="blocking-once"),
    pytest.param("blocking", True, id="blocking-for good"),
    # For good the calls that wake up an event loop would fail as well, and its own timers with them.
    pytest.param("asynchronous", False, id="asynchronous-once"),
]


def url_of(kind: str) -> str:
    return postgres.shared().url() if kind == "Postgres" else str(shared(kind).url)


def opened(url: str, namespace: str, *, blocking: bool = True) -> Any:
    """Return a store of its kind, by its name."""
    module: Any = sync if blocking else minutebook
    store = module.PostgresStore if url.startswith("postgresql") else module.RedisStore
    return store(url, namespace=namespace, timeout=3)


PAIR = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]

# --- I-5 -------------------------------------------------------------------------------------------------------------


def acknowledge(number: int) -> None:
    with open(os.environ[ACK_VARIABLE], "ab", buffering=0) as acknowledged:
        acknowledged.write(f"ack {number}\n".encode())


def tell(stage: str, error: MinutebookError) -> None:
    print(stage, error.code, error.facts.get("problem", ""), file=sys.stderr)


async def asynchronous_work(url: str, namespace: str) -> None:
    """Write, tell the parent what was acknowledged and what was refused; each call is made twice, by its id."""
    async with opened(url, namespace, blocking=False) as store:
        for number, stage in itertools.product(range(WORK), ("work", "again")):
            try:
                await minutebook.Conversation(store, f"{number}", format="openai-chat").append(PAIR, id=f"id-{number}")
                acknowledge(number)
            except MinutebookError as error:
                tell(stage, error)


def blocking_work(url: str, namespace: str) -> None:
    """The same without an event loop."""
    with opened(url, namespace) as store:
        for number, stage in itertools.product(range(WORK), ("work", "again")):
            try:
                sync.Conversation(store, f"{number}", format="openai-chat").append(PAIR, id=f"id-{number}")
                acknowledge(number)
            except MinutebookError as error:
                tell(stage, error)


def main(colour: str, url: str, namespace: str) -> None:
    if colour == "blocking":
        blocking_work(url, namespace)
    else:
        asyncio.run(asynchronous_work(url, namespace))


def command(colour: str, url: str, namespace: str) -> list[str]:
    code = "import sys; from tests.faults import test_server_faults as t; t.main(*sys.argv[1:])"
    return [sys.executable, "-c", code, colour, url, namespace]


def check(url: str, namespace: str, acknowledged: tuple[str, ...], case: str) -> None:
    """See that what was acknowledged is there, and that the same calls once more record everything once."""
    with opened(url, namespace) as store:
        for number in acknowledged:
            assert store.receipt(store.key(number), f"id-{number}") is not None, f"lost: {case}"
        for number in range(WORK):
            talk = sync.Conversation(store, f"{number}", format="openai-chat")
            talk.append(PAIR, id=f"id-{number}")
            assert store.verify(talk.key).entries == 2, case
            store.delete(talk.key)


@needs_strace
@long_run
@pytest.mark.parametrize(("colour", "persistent"), WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_i05_a_failing_call_to_a_server_is_named_and_loses_nothing(
    kind: str, colour: str, persistent: bool, figure: Figure
) -> None:
    """For every call of the network and error: an error of ours or success, nothing acknowledged gone (I-5)."""
    url = url_of(kind)
    points = fault_points(command(colour, url, "points"), CALLS)
    errors = [error for error in ERRORS if not (persistent and error == "EINTR")]
    cases = [(call, n, error) for call, n in points for error in errors]
    chosen = cases if CASES is None else cases[:: max(1, len(cases) // CASES)]
    named = 0
    for call, n, error in chosen:
        namespace = uuid.uuid4().hex
        end = inject_error(command(colour, url, namespace), call, error, n, persistent=persistent)
        case = f"{error} from {call} {n}{' for good' if persistent else ''}: {end}"
        assert end.status == 0, case
        lines = [line.split() for line in end.stderr.splitlines()]
        assert all(line[0] in ("work", "again") and line[1].startswith("DecisionHistory") for line in lines), case
        check(url, namespace, end.acknowledged, case)
        named += bool(lines)
    figure(
        f"{kind}, {colour}, {'for good' if persistent else 'once'}: {len(chosen)} of {len(cases)} points, {named} named"
    )
    assert named > 0


# --- I-7: servers whose disk fills up --------------------------------------------------------------------------------


@contextlib.contextmanager
def postgres_on(folder: Path) -> Iterator[PostgresServer]:
    postgres.programs()
    folder.chmod(0o755)
    inner = folder / "server"
    inner.mkdir()
    server = PostgresServer(inner, {"max_wal_size": "32MB", "min_wal_size": "32MB", "wal_recycle": "off"})
    try:
        yield server.create().start()
    finally:
        server.stop()


@contextlib.contextmanager
def redis_on(folder: Path) -> Iterator[RedisServer]:
    server = RedisServer(binary(), folder / "server", free_ports(1)[0])
    try:
        yield server.start()
    finally:
        server.stop()


DISKS: dict[str, tuple[Any, int, int]] = {"Postgres": (postgres_on, 160, 200_000), "Redis": (redis_on, 16, 200_000)}
"""How a server is run in a folder, how many MiB its disk has, and how many bytes one write takes."""


@long_run
@pytest.mark.parametrize("kind", DISKS)
def test_i03_i07_a_server_whose_disk_is_full_refuses_and_the_same_call_succeeds_once(kind: str, figure: Figure) -> None:
    """Refused by name, nothing acknowledged is lost, and with space again the same id is recorded once (I-7, I-3)."""
    run, mebibytes, size = DISKS[kind]
    message = [{"role": "user", "content": os.urandom(size // 2).hex()}, {"role": "assistant", "content": "a"}]
    with (
        tempfile.TemporaryDirectory() as made,
        small_disk(Path(made), mebibytes << 20) as folder,
        run(folder) as server,
    ):
        url = server.url() if kind == "Postgres" else server.url
        with opened(url, "full") as store:
            sync.Conversation(store, "before", format="openai-chat").append(message, id="first")
            fill(folder, 4 << 20)
            acknowledged, refused = 0, None
            while refused is None:
                talk = sync.Conversation(store, f"{acknowledged}", format="openai-chat")
                try:
                    talk.append(message, id="id")
                except StorageError as error:
                    refused = error
                else:
                    acknowledged += 1
                    assert acknowledged < 1_000, "the disk never filled up"
        (folder / "ballast").unlink()
        server.stop()
        server.start()
        with opened(url, "full") as store:
            for name, id_ in [("before", "first"), *((f"{number}", "id") for number in range(acknowledged))]:
                assert store.receipt(store.key(name), id_) is not None, "what was acknowledged is lost"
            talk = sync.Conversation(store, f"{acknowledged}", format="openai-chat")
            receipt = talk.append(message, id="id")
            assert talk.append(message, id="id") == receipt
            assert store.verify(talk.key).entries == 2
    figure(f"{kind}: {acknowledged} writes until {refused.code} ({refused.facts.get('problem', '')}), 0 lost")


# --- I-6: servers whose syncs fail -----------------------------------------------------------------------------------


@contextlib.contextmanager
def failing_syncs(pid: int, output: Path) -> Iterator[None]:
    """Have every sync of a server's processes fail."""
    pids = [pid, *descendants(pid)]
    fault = ("-e", "trace=fsync,fdatasync,sync_file_range", "-e", "inject=fsync,fdatasync:error=EIO")
    told = output.with_suffix(".told")
    with told.open("w") as errors:
        tracer = subprocess.Popen(
            ["strace", "-f", "-o", str(output), *fault, *(part for each in pids for part in ("-p", str(each)))],
            stderr=errors,
        )
    try:
        until(lambda: told.read_text().count("attached") >= len(pids), "the server's processes are traced")
        yield
    finally:
        tracer.terminate()
        try:
            tracer.wait(10)
        except subprocess.TimeoutExpired:  # now and then it waits for the threads of a server that ended itself
            tracer.kill()
            tracer.wait()


@needs_strace
@long_run
@pytest.mark.parametrize("kind", KINDS)
def test_i06_a_server_whose_sync_fails_acknowledges_nothing(kind: str, tmp_path: Path, figure: Figure) -> None:
    """The write is refused as one in doubt; once the server runs again its id tells, and it is there once (I-6)."""
    with postgres.single() if kind == "Postgres" else single() as server:
        url = server.url() if kind == "Postgres" else server.url
        with opened(url, "synced") as store:
            sync.Conversation(store, "before", format="openai-chat").append(PAIR, id="id")
            assert server.process is not None
            with failing_syncs(server.process.pid, tmp_path / "strace"):
                with pytest.raises(StorageError) as refused:
                    sync.Conversation(store, "under", format="openai-chat").append(PAIR, id="id")
                assert "unknown" in str(refused.value) or "may have been made" in str(refused.value)
        assert "(INJECTED)" in (tmp_path / "strace").read_text()
        server.stop()
        server.start()
        with opened(url, "synced") as store:
            assert store.receipt(store.key("before"), "id") is not None
            talk = sync.Conversation(store, "under", format="openai-chat")
            receipt = talk.append(PAIR, id="id")
            assert talk.append(PAIR, id="id") == receipt
            assert store.verify(talk.key).entries == 2
    figure(f"{kind}: {refused.value.code} ({refused.value.facts['problem']}), 0 acknowledged, 0 lost")


# --- I-9 -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def server_of(kind: str) -> Iterator[tuple[str, Callable[[], int]]]:
    """Yield a server's URL, and how many connections it has beside the one that asks."""
    if kind == "Postgres":
        asked = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'i09'"
        yield postgres.shared().url() + "?application_name=i09", lambda: int(postgres.shared().ask(asked)[0][0])
    else:
        with single() as server:
            yield server.url, lambda: int(server.info("clients")["connected_clients"]) - 1


def used(url: str, number: int) -> None:
    """Open stores of both colours, use them, and close them in every state: idle, with a turn open, under writers."""
    with opened(url, "i09") as store:
        store.list()
    with opened(url, "i09") as store:
        turn = sync.Conversation(store, f"left open {number}", format="openai-chat").turn("q")
        turn.__enter__()
    close_under_writers(opened(url, "i09"))

    async def asynchronous() -> None:
        async with opened(url, "i09", blocking=False) as store:
            await asyncio.gather(*(store.list() for _ in range(4)))
            held = minutebook.Conversation(store, f"left too {number}", format="openai-chat").turn("q")
            await held.__aenter__()

    asyncio.run(asynchronous())


def close_under_writers(store: Any) -> None:
    errors: list[BaseException] = []

    def write(worker: int) -> None:
        try:
            for number in range(50):
                sync.Conversation(store, f"of {worker}", format="openai-chat").append(PAIR, id=f"{number}")
        except StoreClosed:
            return
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=write, args=(worker,)) for worker in range(2)]
    for worker in workers:
        worker.start()
    store.close()
    for worker in workers:
        worker.join()
    assert not errors, errors


@long_run
@pytest.mark.parametrize("kind", KINDS)
def test_i09_closing_a_store_in_any_state_leaves_no_connection(kind: str, figure: Figure) -> None:
    """Again and again, in both colours: descriptors and threads here and connections there are flat (I-9)."""
    cycles = budget(20, 1_000)
    with server_of(kind) as (url, connections):
        used(url, 0)
        before, threads = descriptors(), threading.active_count()
        for number in range(1, cycles + 1):
            used(url, number)
        assert descriptors() <= before
        assert threading.active_count() <= threads
        until(lambda: connections() == 0, "the server has no connection of ours")
    figure(f"{kind}: {cycles} cycles of four stores each, descriptors and threads flat")


@pytest.mark.parametrize("kind", KINDS)
def test_i09_control_a_store_that_is_left_open_is_counted(kind: str) -> None:
    """One that is not closed shows in the descriptors here and in the connections there."""
    with server_of(kind) as (url, connections):
        used(url, 0)
        before = descriptors()
        store = opened(url, "i09")
        store.list()
        assert descriptors() > before
        assert connections() == 1
        store.close()
        assert descriptors() == before
