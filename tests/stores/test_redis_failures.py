"""What a failover, a closing, a fork and damage do to a store on a Redis server; all on real servers of each kind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.servers.proxy import proxy
from tests.servers.redis import Server, binaries, single, until
from tests.stores.test_redis import KEY, journal

from minutebook.errors import (
    DecisionHistoryStorageFailed,
    DecisionHistoryStorageUnsafe,
    MinutebookError,
)
from minutebook.model.bounds import StoreBounds
from minutebook.testing import drive
from minutebook.testing.conformance import samples
from minutebook.testing.conformance.samples import append, say

COLOURS = pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "asynchronous"])


@pytest.fixture(params=sorted(binaries()) or [""])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of the test's own, of each kind that this machine has."""
    with single(name=request.param) as made:
        yield made


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
        single("--replica-serve-stale-data", stale) as old,
        single() as new,
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
        connections = server.info("stats")["total_connections_received"]
        for name, less, full in (
            ("no-appendfsync-on-rewrite", "yes", "no"),
            ("appendfsync", "everysec", "always"),
            ("appendonly", "no", "yes"),
        ):
            for value, durable in ((less, False), (full, True)):
                server.ask("CONFIG", "SET", name, value)
                connections += 1  # the one that sets
                await store.header(KEY)
                assert store.durable is durable, name
        server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        with pytest.raises(DecisionHistoryStorageUnsafe) as refused:
            await append(store, KEY, "two", say("y"))
        assert refused.value.problem == "evicting"
        # The connection was ours all the time: those that were made since are the test's own.
        assert server.info("stats")["total_connections_received"] == connections + 2
        await store.close()

    run(story(), blocking=blocking)


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
                assert 0.5 < time.monotonic() - begun < 1.8
            await store.close()

        run(story(), blocking=blocking)


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
    with proxy(server.port) as between:
        store = journal(between.url, blocking=blocking, timeout=0.5, max_connections=1)

        async def first() -> None:
            await store.header(KEY)

        async def both() -> list[Any]:
            await store.header(KEY)
            between.silent = True
            return await asyncio.gather(first(), first(), return_exceptions=True)

        if blocking:
            drive(store.header(KEY))
            between.silent = True
            told: list[Any] = []

            def call() -> None:
                try:
                    drive(store.header(KEY))
                except MinutebookError as error:
                    told.append(error)

            threads = [threading.Thread(target=call) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        else:
            told = asyncio.run(both())
        assert any("none of 1 connections was free" in str(each) for each in told)
        assert all(isinstance(each, DecisionHistoryStorageFailed) for each in told)
