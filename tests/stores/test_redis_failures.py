"""What a failover, a closing, a fork and damage do to a store on a Redis server; all on real servers of each kind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from servers.proxy import proxy
from servers.redis import Cluster, Server, binaries, cluster, single, until
from tests.budgets import budget
from tests.stores.redis_lab import SaltedRedis, address
from tests.stores.test_redis import KEY, content, journal

from minutebook.errors import (
    DecisionHistoryCorrupt,
    DecisionHistoryStorageFailed,
    DecisionHistoryStorageLocked,
    DecisionHistoryStorageUnsafe,
    MinutebookError,
    StoreReentered,
)
from minutebook.model.bounds import StoreBounds
from minutebook.model.keys import ConversationKey
from minutebook.stores.journal import JournalStore
from minutebook.stores.memory import MemoryJournal
from minutebook.stores.redis_scripts import STAGE
from minutebook.stores.remote_journal import RemoteJournal
from minutebook.testing import drive
from minutebook.testing.conformance import samples
from minutebook.testing.conformance.samples import append, say

COLOURS = pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "asynchronous"])


@pytest.fixture(params=sorted(binaries(), reverse=True)[: budget(1, 9)] or [""])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of the test's own; to prove, of each kind that this machine has, as in test_redis.py."""
    with single(name=request.param) as made:
        yield made


def all_of(error: BaseException | None) -> str:
    """Return all that an error and those behind it say."""
    told = ""
    while error is not None:
        told += f" {error!r} {vars(error)}"
        error = error.__cause__ or error.__context__
    return told


def run(story: Any, *, blocking: bool) -> Any:
    """Run a coroutine as a caller of that colour does."""
    return drive(story) if blocking else asyncio.run(story)


# --- failover --------------------------------------------------------------------------------------------------------


def follow(replica: Server, primary: Server) -> None:
    """Have one server follow another, and wait until it has all of it."""
    replica.ask("REPLICAOF", "127.0.0.1", primary.port)
    until(lambda: replica.info("replication")["master_link_status"] == "up", "the replica is linked")
    offset = "master_repl_offset"
    until(lambda: replica.info("replication")[offset] == primary.info("replication")[offset], "the replica has it all")


@COLOURS
@pytest.mark.parametrize("stale", ["yes", "no"])
def test_b2_bad_input_97_store_goes_on_behind_a_name_that_failed_over(blocking: bool, stale: str) -> None:
    """
    A name leads to the new primary, the old one is its replica: reads and writes of an open store reach the new one.

    Whether the replica answers without its primary or says MASTERDOWN, nothing of it is ever read (97).
    """
    with (
        single("--replica-serve-stale-data", stale, "--repl-diskless-sync-delay", "0") as old,
        single("--repl-diskless-sync-delay", "0") as new,
        proxy(old.port) as name,
    ):
        store, other = journal(name.url, blocking=blocking), journal(new.url, blocking=blocking)

        async def story() -> None:
            await append(store, KEY, "one", say("x"))
            follow(new, old)
            new.ask("REPLICAOF", "NO", "ONE")
            old.ask("REPLICAOF", "127.0.0.1", 1)  # which leads nowhere, so that it stays behind
            name.upstream = new.port
            await append(other, KEY, "two", say("y"))
            found = await store.header(KEY)
            assert found is not None
            assert found.version == 2, "read from the new primary"
            old.ask("REPLICAOF", "NO", "ONE")
            name.upstream = old.port  # and back, over connections that led to the other one
            follow(old, new)
            old.ask("REPLICAOF", "NO", "ONE")
            new.ask("REPLICAOF", "127.0.0.1", 1)
            await append(store, KEY, "three", say("z"))
            assert len(await samples.entries(store, KEY)) == 3
            await store.close()
            await other.close()

        run(story(), blocking=blocking)


@COLOURS
def test_bad_input_97_replica_refuses_reads_too(blocking: bool, server: Server) -> None:
    """While the name still leads to what is a replica now, every call is refused by name, a read like a write (97)."""
    store = journal(server.url, StoreBounds(ttl_ms=10**9), blocking=blocking)

    async def story() -> None:
        await append(store, KEY, "one", say("x"))
        server.ask("REPLICAOF", "127.0.0.1", 1)
        for call in (
            lambda: store.header(KEY),
            lambda: store.list("lab", "", 9),
            lambda: store.totals("lab"),
            lambda: samples.entries(store, KEY),
            lambda: append(store, KEY, "two", say("y")),
        ):
            with pytest.raises(DecisionHistoryStorageUnsafe) as refused:
                await call()
            assert refused.value.problem == "replica"
        server.ask("REPLICAOF", "NO", "ONE")
        assert len(await samples.entries(store, KEY)) == 1
        await store.close()

    run(story(), blocking=blocking)


@COLOURS
def test_b2_settings_that_change_are_noticed_over_open_connections(
    blocking: bool, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`durable` follows the server, and a policy of eviction is refused, though the connection stands (B2, 98)."""
    monkeypatch.setattr("minutebook.stores.redis_wire.LOOKED_SECONDS", 0.0)
    store = journal(server.url, blocking=blocking)

    async def story() -> None:
        await append(store, KEY, "one", say("x"))
        assert store.durable is True
        before = clients(server)
        for name, less, full in (
            ("no-appendfsync-on-rewrite", "yes", "no"),
            ("appendfsync", "everysec", "always"),
            ("appendonly", "no", "yes"),
        ):
            for value, durable in ((less, False), (full, True)):
                server.ask("CONFIG", "SET", name, value)
                until(lambda: not rewriting(server), "the append-only file is whole")
                await store.header(KEY)
                assert store.durable is durable, name
        assert clients(server) == before, "the connection stood all the time"
        server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        with pytest.raises(DecisionHistoryStorageUnsafe) as refused:
            await append(store, KEY, "two", say("y"))
        assert refused.value.problem == "evicting"
        await store.close()

    run(story(), blocking=blocking)


def clients(server: Server) -> set[str]:
    """Return the numbers of a server's connections but the one that asks."""
    return {each["id"] for each in server.ask("CLIENT LIST") if each["cmd"] != "client|list"}


def rewriting(server: Server) -> bool:
    """Return whether a server rewrites its append-only file, or is about to."""
    told = server.info("persistence")
    return bool(told["aof_rewrite_in_progress"] or told["aof_rewrite_scheduled"])


@COLOURS
@pytest.mark.parametrize("began", ["off", "on and off"])
def test_b2_durable_is_not_told_before_the_first_rewrite_has_ended(blocking: bool, began: str, server: Server) -> None:
    """
    After `CONFIG SET appendonly yes` nothing is durable until the file is whole, however often it was on before (B2).

    A server that is killed in between begins again without what it acknowledged.
    """
    if began == "off":
        server.stop()
        server.settings = ("--appendonly", "no")
        server.start()
    for number in range(50):
        server.ask("SET", f"other{number}", "x")
    if began == "on and off":
        server.ask("BGREWRITEAOF")
        until(lambda: not rewriting(server), "the append-only file is whole")
        server.ask("CONFIG", "SET", "appendonly", "no")
    server.ask("CONFIG", "SET", "rdb-key-save-delay", 1_000_000)  # 50 seconds, as a large server takes
    server.ask("CONFIG", "SET", "appendonly", "yes")

    async def acknowledged() -> bool:
        store = journal(server.url, blocking=blocking)
        await append(store, KEY, "one", say("x"))
        await store.close()
        return bool(store.durable)

    assert run(acknowledged(), blocking=blocking) is False
    assert rewriting(server), "it was asked in between"
    if began == "off":
        server.kill()
        server.settings = ()
        server.start()
        assert run(journal(server.url, blocking=blocking).header(KEY), blocking=blocking) is None
        return
    server.ask("CONFIG", "SET", "rdb-key-save-delay", 0)
    server.ask("CONFIG", "SET", "appendonly", "no")
    server.ask("CONFIG", "SET", "appendonly", "yes")
    until(lambda: not rewriting(server), "the append-only file is whole")
    assert run(acknowledged(), blocking=blocking) is True


# --- closing, and a fork ---------------------------------------------------------------------------------------------


@COLOURS
def test_i09_d23_close_under_way_leaves_no_connection(blocking: bool, server: Server) -> None:
    """A store that is closed while ten calls are under way has no connection once they ended (I-9, D23)."""
    with proxy(server.port) as between:
        store = journal(between.url, blocking=blocking)
        drive(store.header(KEY)) if blocking else None
        between.delay = (0.2, 0.2)

        def calling() -> None:
            until(lambda: server.info("commandstats")["cmdstat_evalsha"]["calls"] >= 10, "the calls are under way")

        async def story() -> None:
            calls = [asyncio.create_task(store.header(KEY)) for _ in range(10)]
            await asyncio.to_thread(calling)
            await store.close()
            await asyncio.gather(*calls)

        if blocking:
            threads = [threading.Thread(target=lambda: drive(store.header(KEY))) for _ in range(10)]
            for thread in threads:
                thread.start()
            calling()
            drive(store.close())
            for thread in threads:
                thread.join()
        else:
            asyncio.run(story())
        until(lambda: server.info("clients")["connected_clients"] == 1, "only the one that asks is connected")


@contextlib.contextmanager
def other_loop(standing: bool) -> Iterator[Callable[[Any], Any]]:
    """Yield what runs coroutines in a loop of another thread, or in one that stands still in between."""
    loop = asyncio.new_event_loop()
    if standing:
        yield loop.run_until_complete
        loop.close()
        return
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield lambda story: asyncio.run_coroutine_threadsafe(story, loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.mark.parametrize("standing", [True, False], ids=["standing", "running"])
def test_i09_d23_close_ends_what_another_loop_opened(standing: bool, server: Server) -> None:
    """What was opened under another loop is closed too, whether that runs or not, and no descriptor stays (I-9)."""
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    with other_loop(standing) as elsewhere:
        store = journal(server.url, blocking=False)

        async def several() -> None:
            await asyncio.gather(*(store.header(KEY) for _ in range(8)))

        elsewhere(several())
        assert server.info("clients")["connected_clients"] >= 4
        asyncio.run(store.close())
        until(lambda: server.info("clients")["connected_clients"] == 1, "only the one that asks is connected")
        elsewhere(asyncio.sleep(0))
    until(lambda: len(os.listdir("/proc/self/fd")) <= before, "no descriptor stays")


def test_i09_loops_that_ended_leave_no_connection(server: Server) -> None:
    """A store that is used by one loop after the other keeps the connections of the last one alone (I-9)."""
    store = journal(server.url, blocking=False)
    for _ in range(5):
        asyncio.run(store.header(KEY))
    until(lambda: server.info("clients")["connected_clients"] <= 2, "the others are closed")
    asyncio.run(store.close())
    until(lambda: server.info("clients")["connected_clients"] == 1, "only the one that asks is connected")


def test_i17_child_that_collects_a_store_leaves_the_parents_connections(server: Server) -> None:
    """A forked child inside a running loop may collect the store, idle and in use: the parent goes on (I-17)."""

    async def story() -> None:
        store = journal(server.url, blocking=False, timeout=3)
        await append(store, KEY, "one", say("x"))
        with proxy(server.port) as between:
            busy = journal(between.url, blocking=False, timeout=3)
            await busy.header(KEY)
            between.delay = (0.5, 0.5)
            call = asyncio.create_task(busy.header(KEY))
            await asyncio.sleep(0)
            child = os.fork()
            if child == 0:
                left: list[Any] = [call, store, busy]
                del store, busy, call

                async def collect() -> None:
                    left.pop(0).get_coro().close()
                    left.clear()
                    gc.collect()

                code = 1
                try:
                    asyncio.new_event_loop().run_until_complete(collect())
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            await call
            await busy.close()
        for _ in range(3):
            assert len(await samples.entries(store, KEY)) == 1
        await store.close()

    asyncio.run(story())


# --- a network that says nothing -------------------------------------------------------------------------------------


@contextlib.contextmanager
def silent(count: int) -> Iterator[list[int]]:
    """Ports on which somebody takes connections and never says anything."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
            one.listen()
        yield [one.getsockname()[1] for one in sockets]


@COLOURS
@pytest.mark.parametrize("kind", ["single", "cluster"])
def test_bad_input_95_nothing_sent_is_said_within_the_time(blocking: bool, kind: str) -> None:
    """Where no server answers a call ends within its time, and says that nothing was sent (95)."""
    with silent(6) as ports:
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        url = f"redis+cluster://{hosts}" if kind == "cluster" else f"redis://127.0.0.1:{ports[0]}"
        store = journal(url, blocking=blocking, timeout=0.6)

        async def story() -> None:
            for call in (lambda: append(store, KEY, "one", say("x")), lambda: store.header(KEY)):
                begun = time.monotonic()
                with pytest.raises(DecisionHistoryStorageFailed, match="nothing was sent") as refused:
                    await call()
                assert "may have been made" not in str(refused.value)
                assert refused.value.problem == "connection"
                assert 0.5 < time.monotonic() - begun < 3
            await store.close()

        run(story(), blocking=blocking)


@COLOURS
def test_bad_input_95_reply_that_drips_ends_at_the_deadline(blocking: bool, server: Server) -> None:
    """A server that sends a byte now and then holds no call beyond its time, however many bytes there are (95)."""
    with proxy(server.port) as between:
        store = journal(between.url, blocking=blocking, timeout=0.5)

        async def story() -> None:
            await append(store, KEY, "one", say("x"))
            for call, told in (
                (lambda: store.header(KEY), "nothing was changed"),
                (lambda: append(store, KEY, "two", say("y")), "may have been made"),
            ):
                between.drip = None
                await store.header(KEY)  # a connection stands
                between.drip = 0.1
                begun = time.monotonic()
                with pytest.raises(DecisionHistoryStorageFailed, match=told):
                    await call()
                assert 0.4 < time.monotonic() - begun < 1.5
            between.drip = 0
            assert len(await samples.entries(store, KEY)) in {1, 2}
            await store.close()

        run(story(), blocking=blocking)


@COLOURS
def test_bad_input_95_connecting_that_drips_ends_at_the_deadline(blocking: bool, server: Server) -> None:
    """So it is where the answers to AUTH, and to what is asked of a new connection, drip; nothing was sent (95)."""
    server.ask("ACL", "SETUSER", "app", "on", ">word", "~minutebook*", "+@all")
    with proxy(server.port) as between:
        url = between.url.replace("redis://", "redis://app:word@")
        between.drip = 0.1

        async def story(seconds: float) -> None:
            store = journal(url, blocking=blocking, timeout=seconds)
            begun = time.monotonic()
            with pytest.raises(DecisionHistoryStorageFailed, match="it took too long; nothing was sent"):
                await append(store, KEY, "one", say("x"))
            assert 0.9 * seconds < time.monotonic() - begun < seconds + 1
            await store.close()

        for seconds in (0.3, 1.0):
            run(story(seconds), blocking=blocking)


@contextlib.contextmanager
def deaf(port: int) -> Iterator[str]:
    """An address of this machine at which a port is open and takes no more connections."""
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(socket.socket())
        one.bind(("127.0.0.2", port))
        one.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.2", port))
        yield "127.0.0.2"


@COLOURS
@pytest.mark.parametrize("addresses", ["deaf, deaf", "deaf, right", "right, deaf"])
def test_bad_input_95_each_address_of_a_name_has_its_share(
    addresses: str, blocking: bool, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that takes no connection neither hides the next one nor lengthens the call (95)."""
    with deaf(server.port) as silent_one:
        given = {"deaf": silent_one, "right": "127.0.0.1"}
        found = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (given[each], server.port)) for each in addresses.split(", ")
        ]
        real = socket.getaddrinfo
        monkeypatch.setattr(
            socket, "getaddrinfo", lambda host, *rest, **named: found if host == "both" else real(host, *rest, **named)
        )
        store = journal(server.url.replace("127.0.0.1", "both"), blocking=blocking, timeout=1)

        async def story() -> None:
            begun = time.monotonic()
            if "right" in addresses:
                await append(store, KEY, "one", say("x"))
            else:
                with pytest.raises(DecisionHistoryStorageFailed, match="it took too long; nothing was sent"):
                    await append(store, KEY, "one", say("x"))
            assert time.monotonic() - begun < 1.5
            await store.close()

        run(story(), blocking=blocking)


@COLOURS
@pytest.mark.parametrize("connected", [True, False])
def test_b2_bad_input_95_another_script_is_waited_out(connected: bool, blocking: bool, server: Server) -> None:
    """A server that is at another's script has run nothing: it is asked again until the deadline, and told by name."""
    server.ask("CONFIG", "SET", "busy-reply-threshold", "50")

    @contextlib.contextmanager
    def busy() -> Iterator[None]:
        there = threading.Thread(target=spin)
        there.start()
        until(lambda: is_busy(server), "the server is busy")
        yield
        with contextlib.suppress(Exception):
            server.ask("SCRIPT", "KILL")
        there.join()

    def spin() -> None:
        with contextlib.suppress(Exception):
            server.ask("EVAL", "while true do end", 0)

    async def story(seconds: float) -> None:
        store = journal(server.url, blocking=blocking, timeout=seconds)
        if connected:
            await store.header(KEY)
        with busy():
            if seconds < 1:
                begun = time.monotonic()
                with pytest.raises(DecisionHistoryStorageFailed, match=r"another client's script.*nothing") as refused:
                    await append(store, KEY, "one", say("x"))
                assert (refused.value.problem, refused.value.sent) == ("busy", False)
                assert time.monotonic() - begun > 0.2
            else:
                threading.Timer(0.3, lambda: server.ask("SCRIPT", "KILL")).start()
                await append(store, KEY, "one", say("x"))
        await store.close()

    run(story(0.4), blocking=blocking)
    run(story(10), blocking=blocking)


class TimeIsUp(Exception):
    """What a worker's time limit raises in the middle of a call."""


@pytest.mark.parametrize("kind", ["single", "cluster"])
@pytest.mark.parametrize("raised", [TimeIsUp, StoreReentered])
def test_b2_i18_what_a_signals_handler_raises_goes_on_to_the_caller(kind: str, raised: type[Exception]) -> None:
    """B2, I-18: in the middle of a reply too: it is no broken connection, is not tried again, and is told as itself."""

    def up(*_: object) -> None:
        raise raised("up")

    before = signal.signal(signal.SIGALRM, up)
    try:
        with single() if kind == "single" else cluster() as made:
            nodes = made.servers if isinstance(made, Cluster) else [made]
            store = journal(made.url, blocking=True, timeout=20)
            drive(append(store, KEY, "one", say("x")))
            for call in (store.header(KEY), append(store, KEY, "two", say("y")), journal(made.url).header(KEY)):
                for node in nodes:
                    node.ask("CLIENT", "PAUSE", 1_000, "ALL")
                signal.setitimer(signal.ITIMER_REAL, 0.2)
                with pytest.raises(raised, match="up"):
                    drive(call)
                for node in nodes:
                    node.ask("PING")  # which waits for the end of the pause
            assert drive(store.header(KEY)).version in (1, 2)
            drive(store.close())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def is_busy(server: Server) -> bool:
    try:
        server.ask("GET", "x")
    except Exception as error:
        return str(error).startswith("BUSY")
    return False


@COLOURS
def test_b2_bad_input_95_too_many_connections_are_told_as_that(blocking: bool, server: Server) -> None:
    """A server that takes no more connections says so, and that is the reason that is told (95)."""
    store = journal(server.url, blocking=blocking, timeout=2)
    with socket.create_connection(("127.0.0.1", server.port)) as other:
        other.sendall(b"*4\r\n$6\r\nCONFIG\r\n$3\r\nSET\r\n$10\r\nmaxclients\r\n$1\r\n1\r\n")
        assert other.recv(64) == b"+OK\r\n"

        def reason() -> str:
            with pytest.raises(DecisionHistoryStorageFailed, match="nothing was sent") as refused:
                run(store.header(KEY), blocking=blocking)
            return str(refused.value.reason)

        # It says so and hangs up, which may be noticed first.
        until(lambda: reason() == "the server has too many connections", "it is told")
        other.sendall(b"*4\r\n$6\r\nCONFIG\r\n$3\r\nSET\r\n$10\r\nmaxclients\r\n$2\r\n99\r\n")
        assert other.recv(64) == b"+OK\r\n"


UNREADABLE = {
    "number of bytes": b"$canary\r\n",
    "number": b":canary\r\n",
    "number of values": b"*canary\r\n",
    "negative": b"$-5\r\ncanary\r\n",
    "nothing": b"\r\n",
    "kind": b"HTTP/1.1 400 canary\r\n\r\n",
    "depth": b"*1\r\n" * 5_000 + b":1\r\n",
    "MOVED to nowhere": b"-MOVED 1\r\n",
    "MOVED to no port": b"-MOVED 1 canary:y\r\n",
    "MOVED to no possible port": b"-MOVED 1 canary:99999999\r\n",
    "MOVED to no possible host": b"-MOVED 1 canary..a:1\r\n",
    "ASK": b"-ASK 1 canary\r\n",
}


@COLOURS
@pytest.mark.parametrize("during", ["call", "connecting"])
@pytest.mark.parametrize("reply", UNREADABLE)
def test_i37_d23_bad_input_96_reply_that_cannot_be_read_is_told_as_that(
    reply: str, during: str, blocking: bool, server: Server
) -> None:
    """It is no answer to a call, nor to a new connection's questions, and nothing of it is in the error (96, I-37)."""
    with proxy(server.port) as between:
        store = journal(between.url, blocking=blocking, timeout=2)

        async def story() -> None:
            if during == "call":
                await append(store, KEY, "one", say("x"))
            for call in (lambda: store.header(KEY), lambda: append(store, KEY, "two", say("y"))):
                between.becomes = lambda _: UNREADABLE[reply]
                with pytest.raises(DecisionHistoryStorageFailed) as refused:
                    await call()
                assert refused.value.problem == "connection"
                told = all_of(refused.value)
                assert "canary" not in told
                assert refused.value.__context__ is None
                between.becomes = None
                await store.header(KEY)
            await append(store, KEY, "two", say("y"))
            await store.close()

        run(story(), blocking=blocking)


@COLOURS
def test_i37_bad_input_96_reply_that_lost_the_end_of_a_line_is_no_answer(
    blocking: bool, server: Server, figure: Callable[[str], None]
) -> None:
    """Whichever line it is, so that content is read as a length, the error is typed and repeats nothing (96, I-37)."""
    ends = [0]

    def without(number: int) -> Callable[[bytes], bytes]:
        def lost(reply: bytes) -> bytes:
            if b"canary" not in reply:
                return reply
            lines = reply.split(b"\r\n")
            ends[0] = len(lines) - 2
            return b"\r\n".join(lines[: number + 1]) + b"\r\n".join(lines[number + 1 :])

        return lost

    with proxy(server.port) as between:
        drive(append(journal(server.url), KEY, "one", say("canary"), say("canary")))

        async def story(number: int) -> None:
            store = JournalStore(journal(between.url, blocking=blocking, timeout=0.5), namespace=KEY.namespace)
            await store.header(KEY)
            between.becomes = without(number)
            with pytest.raises(MinutebookError) as refused:
                [entry async for entry in store.entries(KEY)]
            between.becomes = None
            assert "canary" not in all_of(refused.value)
            assert len([entry async for entry in store.entries(KEY)]) == 2
            await store.close()

        number = 0
        while number <= ends[0]:
            run(story(number), blocking=blocking)
            number += 1
    assert number > 8
    figure(f"a reply without the end of each of {number} lines, 0 untyped errors")


@COLOURS
def test_i03_only_a_write_that_was_sent_may_have_been_made(blocking: bool, server: Server) -> None:
    """What was refused a connection was not sent, and what only reads changes nothing: neither is in doubt (I-3)."""
    with proxy(server.port) as between:
        store = journal(between.url, blocking=blocking, timeout=0.3)
        port = between.port

        async def story() -> None:
            await append(store, KEY, "one", say("x"))
            between.silent = True
            with pytest.raises(DecisionHistoryStorageFailed, match="nothing was changed"):
                await store.header(KEY)
            between.silent = False
            await store.header(KEY)
            between.silent = True
            with pytest.raises(DecisionHistoryStorageFailed, match="may have been made"):
                await append(store, KEY, "two", say("y"))
            await store.close()

        run(story(), blocking=blocking)
    refused = journal(f"redis://127.0.0.1:{port}", blocking=blocking)
    with pytest.raises(DecisionHistoryStorageFailed, match="nothing was sent"):
        run(append(refused, KEY, "three", say("z")), blocking=blocking)


@COLOURS
def test_i16_no_free_connection_is_told_as_that(blocking: bool, server: Server) -> None:
    """Where all connections are in use for the whole time, the call says so, and that nothing was sent (I-16)."""
    store: Any = journal(server.url, blocking=blocking, timeout=0.5, max_connections=1)
    wire = store._remote._wire
    refused = pytest.raises(DecisionHistoryStorageLocked, match="none of 1 connections was free")

    def in_use(hold: Callable[[Any], Any]) -> Any:
        return wire._links.lend(wire._address.nodes[0], hold, time.monotonic() + 60)

    async def beside() -> None:
        used, over = asyncio.Event(), asyncio.Event()

        async def hold(link: Any) -> None:
            used.set()
            await over.wait()

        other = asyncio.create_task(in_use(hold))
        await used.wait()
        with refused:
            await store.header(KEY)
        over.set()
        await other
        assert await store.header(KEY) is None

    if not blocking:
        asyncio.run(beside())
        return
    used, over = threading.Event(), threading.Event()

    async def hold(link: Any) -> None:
        used.set()
        over.wait()

    other = threading.Thread(target=lambda: drive(in_use(hold)))
    other.start()
    used.wait()
    with refused:
        drive(store.header(KEY))
    over.set()
    other.join()
    assert drive(store.header(KEY)) is None


# --- damage ----------------------------------------------------------------------------------------------------------


def letters(server: Server) -> dict[str, bytes]:
    """Return the keys of a server with one conversation by their letters."""
    return {key.decode().partition("}")[2][:1]: key for key in server.ask("KEYS", "*")}


@pytest.mark.parametrize("value", ["x", "", "-1", "2", "1e3", "nan"])
def test_bad_input_102_layout_that_cannot_be_ends_every_call(value: str, server: Server) -> None:
    """A number of buckets that this library never wrote is damage by name in every call, and no loop (102, I-39)."""
    drive(append(journal(server.url), KEY, "one", say("x")))
    server.ask("HSET", letters(server)["m"], "buckets", value)
    before, store = content(server), journal(server.url, StoreBounds(ttl_ms=10**9))
    for call in (
        lambda: store.header(KEY),
        lambda: append(store, KEY, "two", say("y")),
        lambda: store.list("lab", "", 9),
        lambda: store.totals("lab"),
    ):
        asked = server.info("commandstats")["cmdstat_evalsha"]["calls"]
        with pytest.raises(MinutebookError) as refused:
            drive(call())
        assert refused.value.code == "DecisionHistoryCorrupt"
        assert server.info("commandstats")["cmdstat_evalsha"]["calls"] <= asked + 2
    assert content(server) == before


def test_i39_entry_that_was_cut_short_is_named(server: Server) -> None:
    """Cut to any length, an entry is damage with its number, to whoever reads its page and to `verify` (I-39)."""
    store = journal(server.url)
    for number in range(3):
        drive(append(store, KEY, f"{number}", say("x")))
    log = letters(server)["c"]
    whole = server.ask("HGET", log, "e2")
    shelf = JournalStore(journal(server.url), namespace="lab")
    for length in range(len(whole)):
        server.ask("HSET", log, "e2", whole[:length])
        for call in (lambda: shelf.read(shelf.key("chat")), lambda: shelf.verify(shelf.key("chat"))):
            with pytest.raises(DecisionHistoryCorrupt) as refused:
                drive(call())
            assert refused.value.seq == 2, length
    server.ask("HSET", log, "e2", whole)
    drive(shelf.verify(shelf.key("chat")))


@pytest.mark.parametrize("damage", ["lost", "another's"])
def test_i39_id_whose_receipt_is_not_its_own_is_damage(damage: str, server: Server) -> None:
    """An id that leads to no receipt, or to that of another commit, ends a repetition by name and at once (I-39)."""
    for name in ("one", "two"):
        drive(append(journal(server.url), KEY, name, say(name)))
    log = letters(server)["c"]
    server.ask("HDEL", log, "v1") if damage == "lost" else server.ask("HSET", log, "rone", "2")
    before, store = content(server), journal(server.url)
    for call in (store.receipt(KEY, "one"), append(store, KEY, "one", say("one"))):
        with pytest.raises(MinutebookError) as refused:
            drive(call)
        assert refused.value.code == "DecisionHistoryCorrupt"
    assert content(server) == before


@pytest.mark.parametrize("where", ["ih", "h", ""], ids=["indexed", "unindexed", "without a header"])
@pytest.mark.parametrize("count", [1, 8, 9, 100])
def test_i39_i31_ids_that_are_none_stop_no_other(count: int, where: str, server: Server) -> None:
    """
    However many ids are no text, a write beside them is made and what expired behind them is removed (I-39, I-31).

    They are damage to a listing, where they stand in the index; where they do not, nothing counts them.
    """
    indexed = "i" in where
    bounds = StoreBounds(max_sessions=4 + count * indexed, ttl_ms=60)
    names = ("chat", "other", "third", "fourth")
    for name in names:
        drive(append(journal(server.url), ConversationKey("lab", name), "one", say("x")))
    keys = letters(server)
    for number in range(count):
        stray = b"\xff%d" % number
        server.ask("ZADD", keys["f"], 5 + number, stray)
        if indexed:
            server.ask("ZADD", keys["i"], 0, stray)
        if "h" in where:
            server.ask("HSET", keys["h"], stray, b"\0" * 40)
    there = 4 + count * indexed
    until(lambda: drive(journal(server.url, bounds).totals("lab")).expired == there, "they expired")
    totals = drive(journal(server.url, bounds).totals("lab"))
    assert (totals.conversations, totals.reserved, totals.bytes) == (0, 0, 0)
    unbounded = drive(journal(server.url).totals("lab"))
    assert (unbounded.conversations, unbounded.reserved) == (there, 0)
    store = journal(server.url, bounds)
    for name in ("new", "newer", "newest"):
        drive(append(store, ConversationKey("lab", name), "one", say("y")))
    assert not [name for name in names if server.ask("ZSCORE", keys["i"], name) is not None]
    if indexed:
        with pytest.raises(DecisionHistoryCorrupt):
            drive(journal(server.url).list("lab", "z", 9))


@pytest.mark.parametrize("count", [1, 8, 9, 100])
def test_i30_i39_ids_that_are_none_keep_nothing_in_the_future(count: int, server: Server) -> None:
    """What was written before the server's clock was set back is brought to the present, whatever stands before it."""
    store, now = journal(server.url, StoreBounds(ttl_ms=3_600_000)), int(server.ask("TIME")[0]) * 1_000
    drive(append(store, KEY, "one", say("x")))
    keys = letters(server)
    for number in range(count):
        server.ask("ZADD", keys["f"], now + 10**8 + number, b"\xff%d" % number)
        server.ask("HSET", keys["h"], b"\xff%d" % number, b"\0" * 40)
    ahead = SaltedRedis(address(server.url), bounded=False, blocking=True)
    ahead.clock, ahead.salt = lambda: now + 10**9, ""
    drive(append(RemoteJournal(ahead, StoreBounds(), ticks=ahead.clock), ConversationKey("lab", "late"), "1", say("y")))
    assert float(server.ask("ZSCORE", keys["f"], "late")) == now + 10**9
    drive(append(journal(server.url, StoreBounds(ttl_ms=3_600_000)), KEY, "two", say("z")))
    assert float(server.ask("ZSCORE", keys["f"], "late")) < now + 10**8


# --- what is large ---------------------------------------------------------------------------------------------------


def log_slow(server: Server) -> None:
    """Have the server log every command as slow."""
    server.ask("CONFIG", "SET", "slowlog-max-len", 100_000)
    server.ask("CONFIG", "SET", "slowlog-log-slower-than", 0)


def slow_requests(server: Server) -> list[tuple[int, list[bytes]]]:
    """Return the microseconds and arguments of each request that was logged, without what scripts called."""
    server.ask("CONFIG", "SET", "slowlog-log-slower-than", -1)
    logged = [(entry[2], entry[3]) for entry in server.ask("SLOWLOG", "GET", -1)]
    return [(spent, command) for spent, command in logged if command[0] in {b"EVALSHA", b"EVAL"}]


@COLOURS
def test_i31_i34_large_write_is_staged_in_slices(blocking: bool, server: Server, figure: Callable[[str], None]) -> None:
    """
    No script of a write of 30,000 entries writes more than 1,500 of them, and it is seen whole or not at all (I-31).

    Neither a record that is new nor one that is there already has anything of it before, and each is sound after.
    """
    count = 30_000
    store, other = journal(server.url, blocking=blocking), journal(server.url, blocking=blocking)
    shelf = JournalStore(store, namespace="lab")
    many = [say(f"{number}") for number in range(count)]

    async def story() -> int:
        for before, name in ((0, "new"), (3, "there")):
            key = ConversationKey("lab", name)
            if before:
                await append(store, key, "first", *[say("x")] * before)
            seen: list[int] = []
            run = store._remote._wire.run  # type: ignore[attr-defined]

            async def watched(script: Any, *given: Any, key: Any = key, run: Any = run, seen: Any = seen) -> Any:
                answer = await run(script, *given)
                if script is STAGE:
                    found = await other.header(key)
                    assert await other.receipts(key, 1, 9) == ()
                    seen.append(found.entries if found else 0)
                    assert len(await samples.entries(other, key)) == seen[-1]
                return answer

            store._remote._wire.run = watched  # type: ignore[attr-defined]
            await append(store, key, "many", *many)
            store._remote._wire.run = run  # type: ignore[attr-defined]
            assert len(seen) >= 20, "it was staged"
            assert set(seen) == {before}, "and not seen before it was whole"
            assert (await shelf.verify(key)).entries == before + count
            assert not [name for name in server.ask("HKEYS", log_of(server, name)) if name.startswith(b"stag")]
            assert server.ask("PTTL", log_of(server, name)) == -1
        await store.close()
        await other.close()
        return len(seen)

    server.ask("CONFIG", "SET", "slowlog-log-slower-than", 2_000)
    slices = run(story(), blocking=blocking)
    worst = max([0, *(spent for spent, _ in slow_requests(server))])
    figure(f"{count:,} entries in {slices} slices, the longest script {worst / 1_000:.1f} ms")


def log_of(server: Server, name: str) -> bytes:
    """Return the key of a conversation's log."""
    digest = hashlib.sha256(name.encode()).hexdigest().encode()
    return next(key for key in server.ask("KEYS", "*c*") if key.endswith(b"c" + digest))


class Stopped(BaseException):
    """Stands for the end of a process between two of its requests."""


def staged_by_one_that_died(server: Server, key: ConversationKey, *entries: Any, slices: int = 2) -> None:
    """Have a writer die after so many slices."""
    store = journal(server.url)
    drive_until_slice(store, slices, append(store, key, "died", *entries))


def drive_until_slice(store: Any, slices: int, story: Any) -> None:
    """Run a coroutine that writes to a store, and have it die after so many slices."""
    run, left = store._remote._wire.run, [slices]

    async def dying(script: Any, *given: Any) -> Any:
        if script is STAGE:
            if not left[0]:
                raise Stopped
            left[0] -= 1
        return await run(script, *given)

    store._remote._wire.run = dying
    with pytest.raises(Stopped):
        drive(story)


@pytest.mark.parametrize("before", [0, 2])
def test_i08_i31_what_a_killed_copy_left_is_nowhere(before: int, server: Server) -> None:
    """
    A writer that dies between two slices leaves nothing that a reader sees or a total counts (I-8, I-31).

    On a record that is there later writes take it away, some with each; a new one's goes by itself or with the next.
    """
    store, shelf = journal(server.url), JournalStore(journal(server.url), namespace="lab")
    many = [say(f"lost {number}") for number in range(5_000)]
    if before:
        drive(append(store, KEY, "first", *[say("x")] * before))
    totals = drive(store.totals("lab"))
    staged_by_one_that_died(server, KEY, *many)
    log = log_of(server, "chat")
    assert server.ask("HLEN", log) > 2_000
    assert drive(store.totals("lab")) == totals
    assert len(drive(store.list("lab", "", 9))) == bool(before)
    assert len(drive(samples.entries(store, KEY))) == before
    assert drive(store.receipt(KEY, "died")) is None
    assert (server.ask("PTTL", log) > 0) is (not before)
    for number in range(3):
        drive(append(store, KEY, f"{number}", say("after")))
    found = drive(samples.entries(store, KEY))
    assert [entry.payload for entry in found[before:]] == [say("after").payload] * 3
    assert server.ask("PTTL", log) == -1
    assert server.ask("HLEN", log) == len(found) + 4 + 2 * (3 + bool(before)), "nothing of it is kept"
    drive(shelf.verify(KEY))
    staged_by_one_that_died(server, KEY, *many)
    drive(append(store, KEY, "many", *many))
    assert len(drive(samples.entries(store, KEY))) == before + 3 + len(many)
    drive(shelf.verify(KEY))
    drive(store.delete(KEY))
    assert server.ask("KEYS", "*") == []


def test_i08_ids_of_a_copy_that_was_killed_stand_for_nothing(server: Server) -> None:
    """What a killed copy had sent of its receipts answers nobody, whichever way the conversation begins (I-8)."""
    memory = JournalStore(MemoryJournal(), namespace="lab")
    for number in range(2_500):
        drive(append(memory.journal, KEY, f"{number}", say(f"theirs {number}")))
    for many in (1, 3_000):
        dying = journal(server.url)
        drive_until_slice(dying, 3, memory.copy(KEY, JournalStore(dying, namespace="lab")))
        assert server.ask("HEXISTS", log_of(server, "chat"), "r7"), "it was sent"
        fresh = journal(server.url)
        drive(append(fresh, KEY, "begun", *[say("ours")] * many))
        drive(append(fresh, KEY, "7", say("ours")))
        drive(append(fresh, KEY, "8", say("ours")))
        assert {entry.payload for entry in drive(samples.entries(fresh, KEY))} == {say("ours").payload}
        assert len(drive(samples.entries(fresh, KEY))) == many + 2
        names = {name for name in server.ask("HKEYS", log_of(server, "chat")) if name.startswith(b"r")}
        assert names == {b"rbegun", b"r7", b"r8"}
        drive(fresh.delete(KEY))


def test_e6_what_leaves_a_record_leaves_the_server(server: Server) -> None:
    """E6: of what a cut takes nothing is kept, of one entry as of thousands; what stays is read as before."""
    store = journal(server.url)
    drive(append(store, KEY, "many", *[say(f"{number}") for number in range(3_000)]))
    for cut in (1, 2_500):
        opening = samples.adding(f"cut {cut}", cut=cut)
        drive(store.reserve(KEY, f"token {cut}", format=samples.FORMAT, opening=opening, release=True))
        kept = {name for name in server.ask("HKEYS", log_of(server, "chat")) if name.startswith(b"e")}
        assert kept == {b"e%d" % seq for seq in range(cut + 1, 3_001)}
        assert [entry.seq for entry in drive(samples.entries(store, KEY))] == [*range(cut + 1, 3_001)]


def test_i10_two_large_writes_at_once_do_not_mix(server: Server) -> None:
    """Where two workers stage at once, one of them is told so, and the other's is whole (I-10)."""
    ours, theirs = journal(server.url), journal(server.url)
    run, met = ours._remote._wire.run, [0]  # type: ignore[attr-defined]

    async def meeting(script: Any, *given: Any) -> Any:
        answer = await run(script, *given)
        if script is STAGE and not met[0]:
            met[0] = 1
            staged_by_one_that_died(server, KEY, *[say("theirs")] * 5_000)
        return answer

    ours._remote._wire.run = meeting  # type: ignore[attr-defined]
    with pytest.raises(DecisionHistoryStorageLocked, match="nothing was written"):
        drive(append(ours, KEY, "ours", *[say("ours")] * 5_000))
    assert drive(theirs.header(KEY)) is None
    drive(append(ours, KEY, "ours", *[say("ours")] * 5_000))
    assert {entry.payload for entry in drive(samples.entries(theirs, KEY))} == {say("ours").payload}


@pytest.mark.parametrize("lost", [3, 6], ids=["in the middle", "the last"])
@pytest.mark.parametrize("before", [0, 2])
def test_i15_slice_that_a_failover_lost_is_not_gone_on_from(before: int, lost: int, server: Server) -> None:
    """
    A replica that lacks one of the slices takes over: the write is refused, and none of it is seen (I-15).

    Where it is the last one, no other slice comes that could find out: the write itself has to.
    """
    store = journal(server.url)
    if before:
        drive(append(store, KEY, "first", *[say("x")] * before))
    run, kept = store._remote._wire.run, list[dict[bytes, bytes]]()  # type: ignore[attr-defined]

    async def losing(script: Any, *given: Any) -> Any:
        answer = await run(script, *given)
        if script is STAGE:
            kept.append(server.ask("HGETALL", log_of(server, "chat")))
            if len(kept) == lost:
                log = log_of(server, "chat")
                server.ask("DEL", log)
                server.ask("HSET", log, *(part for pair in kept[-2].items() for part in pair))
        return answer

    store._remote._wire.run = losing  # type: ignore[attr-defined]
    with pytest.raises(DecisionHistoryStorageLocked, match="nothing was written"):
        drive(append(store, KEY, "many", *[say("y")] * 6_500))
    assert lost in (3, len(kept)), "it was the last one"
    assert len(drive(samples.entries(journal(server.url), KEY))) == before
    again = journal(server.url)
    drive(append(again, KEY, "many", *[say("y")] * 6_500))
    drive(JournalStore(again, namespace="lab").verify(KEY))


def test_bad_input_99_memory_that_fills_while_it_is_staged_keeps_nothing(server: Server) -> None:
    """A large write that finds the server full in its middle is refused, and takes back what it staged (99)."""
    store = journal(server.url)
    run, left = store._remote._wire.run, [3]  # type: ignore[attr-defined]

    async def filling(script: Any, *given: Any) -> Any:
        if script is STAGE:
            left[0] -= 1
            if not left[0]:
                server.ask("CONFIG", "SET", "maxmemory", "100kb")
        return await run(script, *given)

    store._remote._wire.run = filling  # type: ignore[attr-defined]
    with pytest.raises(DecisionHistoryStorageFailed) as refused:
        drive(append(store, KEY, "many", *[say("y")] * 9_000))
    assert refused.value.problem == "out_of_memory"
    assert server.ask("KEYS", "*") == []


def test_o44_copy_with_its_receipts_is_staged(server: Server) -> None:
    """A record of thousands of commits is copied in slices, receipts and all, and its oldest id is answered (O-44)."""
    memory, target = JournalStore(MemoryJournal(), namespace="lab"), JournalStore(journal(server.url), namespace="lab")
    for number in range(2_500):
        drive(append(memory.journal, KEY, f"{number}", say(f"{number}")))
    copied = drive(memory.copy(KEY, target))
    assert copied.written
    drive(target.verify(KEY))
    receipts = drive(target.journal.receipts(KEY, 0, 5_000))
    assert [receipt.idempotency for receipt in receipts] == [f"{number}" for number in range(2_500)]
    assert not drive(memory.copy(KEY, target)).written
    for name in ("0", "1234", "2499"):
        drive(append(journal(server.url), KEY, name, say(name)))
    assert len(drive(samples.entries(journal(server.url), KEY))) == 2_500, "each was answered"


# --- what else a server keeps ----------------------------------------------------------------------------------------


def test_i37_slow_log_holds_no_content(server: Server) -> None:
    """Of whatever a store asks, neither an id nor a text is in what the server logs of slow commands (I-37)."""
    store = journal(server.url, StoreBounds(ttl_ms=10**9, max_sessions=9))
    key = ConversationKey("lab", "id-marker")
    log_slow(server)
    for number in range(2):
        drive(append(store, key, f"commit-marker-{number}", say("text-marker")))
    drive(append(store, key, "commit-marker-many", *[say("text-marker")] * 2_500))
    drive(samples.entries(store, key))
    drive(store.receipt(key, "commit-marker-0"))
    drive(store.receipts(key, 0, 9))
    drive(store.list("lab", "id-marke", 9))
    drive(store.totals("lab"))
    drive(store.delete(key))
    logged = [command for _, command in slow_requests(server)]
    assert {command[0] for command in logged} == {b"EVALSHA", b"EVAL"}
    told = b" ".join(b" ".join(command) for command in logged)
    assert b"marker" not in told
    log_slow(server)
    server.ask("EVAL", "return 1", 0, "control-marker")
    assert b"control-marker" in b" ".join(slow_requests(server)[0][1]), "it would be found"


def test_i31_many_expired_stall_no_listing(server: Server, figure: Callable[[str], None]) -> None:
    """With 100,000 expired a listing and totals are exact, and no script of theirs looks at more than 10,000 (I-31)."""
    store = journal(server.url, StoreBounds(ttl_ms=3_600_000))
    drive(append(store, ConversationKey("lab", "zz"), "one", say("x")))
    keys, count = letters(server), 100_000
    head = server.ask("HGET", keys["h"], "zz")
    names = [b"a%06d" % number for number in range(count)]
    for first in range(0, count, 10_000):
        some = names[first : first + 10_000]
        server.ask("ZADD", keys["i"], *(part for name in some for part in (0, name)))
        server.ask("ZADD", keys["f"], *(part for name in some for part in (1_000, name)))
        server.ask("HSET", keys["h"], *(part for name in some for part in (name, head)))
    log_slow(server)
    totals = drive(store.totals("lab"))
    assert (totals.conversations, totals.expired) == (1, count)
    assert [each.key.id for each in drive(store.list("lab", "", 10))] == ["zz"]
    spent = [spent for spent, _ in slow_requests(server)]
    assert len(spent) >= 20
    figure(
        f"{count:,} expired: {len(spent)} scripts, {sum(spent) / 1_000:.0f} ms of the server in all, "
        f"{max(spent) / 1_000:.1f} ms the longest"
    )
