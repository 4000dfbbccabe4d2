"""What a server can do to a store on it: settings, failures, foreign keys and broken connections, on real servers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
import uuid
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from servers.proxy import Proxy, proxy
from servers.redis import Cluster, Server, binaries, cluster, shared, single, until
from tests.budgets import PROVE, budget
from tests.stores.kills import survive_kills, write_until_killed
from tests.stores.labs import chat, in_threads, said
from tests.stores.redis_lab import address
from tests.stores.test_exclusion import check_contest, failing

import minutebook
from minutebook import sync
from minutebook.errors import (
    DecisionHistoryBusy,
    DecisionHistoryFenced,
    DecisionHistoryRegressed,
    DecisionHistorySchemaUnsupported,
    DecisionHistoryStorageFailed,
    DecisionHistoryStorageUnsafe,
    InvalidOption,
    MinutebookError,
    StoreClosed,
)
from minutebook.model.bounds import StoreBounds
from minutebook.model.keys import ConversationKey
from minutebook.stores.redis import RedisRemote
from minutebook.stores.remote import DRIFT_MS
from minutebook.stores.remote_journal import RemoteJournal
from minutebook.testing import FrozenClock, drive
from minutebook.testing.conformance import samples
from minutebook.testing.conformance.samples import FORMAT, adding, append, dump, say

KEY = ConversationKey("lab", "chat")


@pytest.fixture(params=sorted(binaries()) or [""])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of the test's own, of each kind that this machine has."""
    with single(name=request.param) as made:
        yield made


def journal(url: str, bounds: StoreBounds | None = None, *, blocking: bool = True, **options: Any) -> RemoteJournal:
    """Return a journal as a `RedisStore` makes it."""
    bounds = bounds or StoreBounds()
    bounded = bounds.max_sessions is not None or bounds.max_bytes is not None
    return RemoteJournal(RedisRemote(address(url, **options), bounded=bounded, blocking=blocking), bounds)


def content(server: Server) -> dict[bytes, Any]:
    """Return all that a server holds, by value: tables have no order."""
    reads = {b"hash": ("HGETALL",), b"zset": ("ZRANGE", 0, -1, "WITHSCORES"), b"string": ("GET",)}
    found: dict[bytes, Any] = {}
    for key in sorted(server.ask("KEYS", "*")):
        command, *more = reads[server.ask("TYPE", key)]
        found[key] = server.ask(command, key, *more)
    return found


# --- keys ------------------------------------------------------------------------------------------------------------

HOSTILE = ("a", "a}b", "{a}", "}{", "{}", "a\nb", "\r\nQUIT\r\n", "\u00e9{", "{\U0001f600}", "*", "a:b", "x" * 512)


def test_o46_i32_v06_keys_of_a_conversation_are_in_one_slot(server: Server) -> None:
    """Whatever braces and line breaks ids hold, a namespace's bucket is one slot, and no id is in a key (O-46, 9)."""
    from redis.crc import key_slot

    store = journal(server.url)
    slots: set[int] = set()
    for namespace in HOSTILE:
        before = set(server.ask("KEYS", "*"))
        for name in HOSTILE:
            drive(append(store, ConversationKey(namespace, name), "one", say(f"{namespace} {name}")))
        made = set(server.ask("KEYS", "*")) - before
        assert len(made) == 4 + len(HOSTILE)
        assert len({key_slot(key) for key in made}) == 1
        assert all(key.startswith(b"minutebook:{") and key.isascii() and key.decode().isprintable() for key in made)
        slots |= {key_slot(key) for key in made}
        listed = drive(store.list(namespace, "", 99))
        assert [each.key.id for each in listed] == sorted(HOSTILE)
    assert len(slots) > len(HOSTILE) // 2
    assert {server.ask("TTL", key) for key in server.ask("KEYS", "*")} == {-1}, "no record has a time of its own"


def test_d22_o51_delete_leaves_no_key(server: Server) -> None:
    """Items, receipts, reservation and indexes leave together, and an empty namespace leaves nothing (O-51)."""
    store = journal(server.url, StoreBounds(max_sessions=3))
    for name in ("a", "b"):
        drive(append(store, ConversationKey("lab", name), "one", say("x")))
    drive(store.delete(ConversationKey("lab", "a")))
    assert len(server.ask("KEYS", "*")) == 5
    drive(store.delete(ConversationKey("lab", "b")))
    assert server.ask("KEYS", "*") == []


# --- what a server has to be -----------------------------------------------------------------------------------------


def unfit(url: str, **options: Any) -> DecisionHistoryStorageUnsafe:
    """See that a store of either colour is refused at its first call, and return how."""

    async def asynchronous() -> None:
        async with minutebook.RedisStore(url, namespace="lab", **options) as store:
            await store.read(store.key("chat"))

    with pytest.raises(DecisionHistoryStorageUnsafe) as first:
        asyncio.run(asynchronous())
    with (
        sync.RedisStore(url, namespace="lab", **options) as store,
        pytest.raises(DecisionHistoryStorageUnsafe) as second,
    ):
        sync.Conversation(store, "chat", format="openai-chat").append([{"role": "user", "content": "hi"}])
    assert not hasattr(second.value, "__notes__")  # nothing was written, so nothing can be held
    assert (str(first.value), first.value.facts) == (str(second.value), second.value.facts)
    return first.value


def test_bad_input_97_replica_is_refused() -> None:
    """A replica is refused at open, and so is a primary that became one under an open connection (97)."""
    with single() as primary, single("--replicaof", f"127.0.0.1 {primary.port}") as replica:
        assert unfit(replica.url).problem == "replica"
        store = journal(primary.url)
        drive(append(store, KEY, "one", say("x")))
        before = drive(dump(store, KEY))
        primary.ask("REPLICAOF", "127.0.0.1", replica.port)
        with pytest.raises(DecisionHistoryStorageUnsafe) as refused:
            drive(append(store, KEY, "two", say("y")))
        assert refused.value.problem == "replica"
        primary.ask("REPLICAOF", "NO", "ONE")
        assert drive(dump(store, KEY)) == before


def test_bad_input_107_a_user_without_rights_is_told_what_it_needs(server: Server) -> None:
    """Without keys, scripts or settings the refusal says what to grant; with them all is well (107)."""
    asked = ("ACL", "SETUSER", "worker", "reset", "on", ">word")
    url = server.url.replace("redis://", "redis://worker:word@")
    for rights, missing in (
        (("~minutebook*", "+info"), "EVALSHA"),
        (("~other*", "+@all"), "all keys that begin with minutebook"),
        (("~minutebook*", "+@all", "-eval", "-evalsha"), "EVALSHA, EVAL"),
        (("~minutebook*", "+@all", "-info"), "INFO"),
    ):
        server.ask(*asked, *rights)
        refused = unfit(url)
        assert (refused.problem, missing in str(refused)) == ("denied", True), rights
        assert server.ask("KEYS", "*") == []
    server.ask(*asked, "~minutebook*", "+@all", "-hset")
    with pytest.raises(DecisionHistoryStorageUnsafe, match="what the scripts call"):
        drive(append(journal(url), KEY, "one", say("x")))
    assert server.ask("KEYS", "*") == []
    commands = ("+evalsha", "+eval", "+info", "+@read", "+@write", "+@transaction", "+time")
    server.ask(*asked, "~minutebook*", *commands)
    store = journal(url)
    drive(append(store, KEY, "one", say("x")))
    assert len(drive(samples.entries(store, KEY))) == 1
    assert not store.durable  # which it may not ask for


def opened(url: str) -> None:
    """Open a store in this process once the parent says so, and write into it."""
    print("ready", flush=True)
    sys.stdin.readline()
    with sync.RedisStore(url, namespace="n") as store:
        sync.Conversation(store, f"{os.getpid()}", format="openai-chat").append([{"role": "user", "content": "q"}])
    print("done")


@pytest.mark.parametrize("kind", ["Redis", "Redis cluster"])
def test_o47_eight_processes_open_an_empty_server_at_once(kind: str, figure: Callable[[str], None]) -> None:
    """All succeed, and the namespace is laid out once, however it is spread (O-47 a)."""
    rounds = budget(2, 20)
    with single() if kind == "Redis" else cluster() as made:
        nodes = made.servers[:3] if isinstance(made, Cluster) else [made]
        for _ in range(rounds):
            for node in nodes:
                node.ask("FLUSHALL")
            code = "import sys; from tests.stores.test_redis import opened; opened(*sys.argv[1:])"
            children = [
                subprocess.Popen(
                    [sys.executable, "-c", code, made.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
                for _ in range(8)
            ]
            for child in children:
                assert child.stdout is not None
                assert child.stdout.readline() == "ready\n"
            for child in children:
                assert child.stdin is not None
                child.stdin.write("\n")
                child.stdin.flush()
            assert [child.communicate()[0] for child in children] == ["done\n"] * 8
            with sync.RedisStore(made.url, namespace="n") as store:
                assert len(store.list()) == store.totals().conversations == 8
            metas = [(node, key) for node in nodes for key in node.ask("KEYS", "*}m")]
            layouts = {node.ask("HGET", key, "buckets") for node, key in metas}
            assert layouts == {b"1" if kind == "Redis" else b"64"}
    figure(f"{kind}: {rounds} times 8 processes on an empty server, one layout each")


def test_bad_input_98_evicting_policy_is_refused(server: Server) -> None:
    """A server that would delete history to make room is refused; every new connection looks again (98)."""
    for policy in ("allkeys-lru", "volatile-ttl", "allkeys-random"):
        server.ask("CONFIG", "SET", "maxmemory-policy", policy)
        assert unfit(server.url).problem == "evicting"
    assert server.ask("KEYS", "*") == []
    server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    drive(append(journal(server.url), KEY, "one", say("x")))


def test_bad_input_101_a_cluster_is_no_single_server_and_the_other_way_round() -> None:
    """Each is refused with a word on what to give instead; a cluster's node found as a single one too (101)."""
    one, many = shared("Redis"), shared("Redis cluster")
    assert isinstance(one, Server)
    refused = unfit(one.url.replace("redis:", "redis+cluster:"))
    assert refused.problem == "cluster"
    assert "redis://" in str(refused)
    refused = unfit(many.servers[0].url)
    assert refused.problem == "cluster"
    assert "redis+cluster://" in str(refused)
    with sync.RedisStore(many.servers[4].url, cluster=True, namespace=f"{uuid.uuid4()}") as store:
        assert store.list() == ()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"redis_version": "6.2.14"}, None),
        ({"redis_version": "5"}, None),
        ({"redis_version": "soon"}, None),
        ({"redis_mode": "sentinel"}, "sentinel"),
        ({"role": "slave"}, "replica"),
        ({"maxmemory_policy": "allkeys-lfu"}, "evicting"),
        ({"redis_mode": "cluster"}, "cluster"),
    ],
)
def test_bad_input_97_98_101_settings_one_by_one(settings: dict[str, str], problem: str | None) -> None:
    """Each setting alone is enough to refuse; without it the same server is fit."""
    from minutebook.stores.redis_servers import check_server

    good = {
        "redis_version": "7.0.15",
        "redis_mode": "standalone",
        "role": "master",
        "maxmemory_policy": "noeviction",
    }
    check_server(good, cluster=False)
    kind = DecisionHistoryStorageUnsafe if problem else DecisionHistorySchemaUnsupported
    with pytest.raises(kind) as refused:
        check_server(good | settings, cluster=False)
    assert refused.value.facts.get("problem") == problem


def test_b2_durability_is_told_as_the_server_has_it(server: Server) -> None:
    """`appendonly yes` with `appendfsync always` is durable; less, or what may not be asked, is not (SPEC B2)."""

    def durable(url: str) -> bool:
        store = journal(url)
        assert store.durable is False, "before it was asked, nothing is promised"
        drive(append(store, KEY, uuid.uuid4().hex, say("x")))
        return store.durable

    assert durable(server.url) is True
    server.ask("CONFIG", "SET", "appendfsync", "everysec")
    assert durable(server.url) is False
    server.ask("CONFIG", "SET", "appendfsync", "always")
    server.ask("ACL", "SETUSER", "app", "on", ">word", "~minutebook*", "+@all", "-config")
    assert durable(f"redis://app:word@127.0.0.1:{server.port}") is False
    server.ask("CONFIG", "SET", "appendonly", "no")
    assert durable(server.url) is False
    server.ask("ACL", "SETUSER", "app", "-info")
    assert unfit(f"redis://app:word@127.0.0.1:{server.port}").problem == "denied"
    server.ask("ACL", "SETUSER", "app", "+info", "-evalsha")
    assert unfit(f"redis://app:word@127.0.0.1:{server.port}").problem == "denied"


# --- failures of the server ------------------------------------------------------------------------------------------


@pytest.mark.timeout(3_600 if PROVE else 300)
def test_i01_bad_input_94_server_killed_in_commit_is_resolved_by_id(
    server: Server, figure: Callable[[str], None]
) -> None:
    """
    A server that is killed at any moment of a commit has all that it acknowledged, and at most one commit more (94).

    What became of that one is found by its id, and a repetition writes nothing twice (I-1, I-3, I-8).
    """
    chance = random.Random(94)
    acknowledged: list[str] = []
    more = 0
    for round_ in range(budget(12, 200)):
        store = journal(server.url)
        killer = threading.Timer(chance.uniform(0.005, 0.06), server.kill)
        killer.start()
        number = 0
        while True:
            name = f"{round_}-{number}"
            try:
                drive(append(store, KEY, name, say(name)))
            except DecisionHistoryStorageFailed:
                break
            acknowledged.append(name)
            number += 1
        killer.join()
        server.start()
        again = journal(server.url)
        entries = [entry.payload for entry in drive(samples.entries(again, KEY))]
        assert entries[: len(acknowledged)] == [say(each).payload for each in acknowledged]
        assert len(entries) <= len(acknowledged) + 1
        found = drive(again.receipt(KEY, name)) is not None
        assert found is (len(entries) > len(acknowledged))
        more += found
        drive(append(again, KEY, name, say(name)))
        acknowledged.append(name)
        assert len(drive(samples.entries(again, KEY))) == len(acknowledged)
    assert len(acknowledged) > 12
    figure(f"{round_ + 1} kills, {len(acknowledged):,} commits, 0 lost, {more} written without a word and found by id")


def writing(url: str, first: str) -> None:
    write_until_killed(journal(url), int(first))


@pytest.mark.timeout(7_200 if PROVE else 300)
def test_i01_i03_a_worker_killed_at_any_moment(server: Server, figure: Callable[[str], None]) -> None:
    """SIGKILL: every turn that was acknowledged is whole, and one more may be; the rest is recovered (I-1, I-3)."""
    code = "import sys; from tests.stores.test_redis import writing; writing(*sys.argv[1:])"

    def start(first: int) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", code, server.url, f"{first}"], stdout=subprocess.PIPE, text=True)

    def alone() -> bool:
        return bool(server.info("clients")["connected_clients"] == 2)  # who asks, and the journal that looks

    store = journal(server.url)
    drive(store.header(KEY))
    figure(survive_kills(store, budget(6, 500), start, lambda: until(alone, "the server saw it go")))


def test_bad_input_99_memory_that_is_full_refuses_whole(server: Server) -> None:
    """A full server refuses a write as a whole by name; it still ends turns and deletes, and room helps (99)."""
    store = journal(server.url)
    drive(append(store, KEY, "one", say("x" * 1_000)))
    held = drive(store.reserve(ConversationKey("lab", "held"), "t", format=FORMAT, opening=adding("o", say("q"))))
    before = content(server)
    server.ask("CONFIG", "SET", "maxmemory", "100kb")
    for call in (
        append(store, KEY, "two", *[say("y" * 5_000) for _ in range(9)]),
        append(store, ConversationKey("lab", "new"), "one", say("z")),
        append(journal(server.url), KEY, "two", say("y")),
    ):
        with pytest.raises(DecisionHistoryStorageFailed) as refused:
            drive(call)
        assert refused.value.problem == "out_of_memory"
    assert content(server) == before
    assert drive(samples.entries(store, KEY))[0].payload == say("x" * 1_000).payload
    drive(store.commit(ConversationKey("lab", "held"), "t", held.header.epoch, adding("e"), release=True))
    drive(store.delete(ConversationKey("lab", "held")))
    server.ask("CONFIG", "SET", "maxmemory", "0")
    drive(append(store, KEY, "two", say("y")))
    assert len(drive(samples.entries(store, KEY))) == 2


def test_bad_input_100_scripts_that_a_server_forgot_come_along_again(server: Server) -> None:
    """After SCRIPT FLUSH and after a restart every method goes on (100)."""
    store = journal(server.url, StoreBounds(ttl_ms=10**9))
    for forget in (lambda: server.ask("SCRIPT", "FLUSH"), lambda: (server.kill(), server.start())):
        for number in range(3):
            forget()
            drive(append(store, KEY, uuid.uuid4().hex, say(f"{number}")))
            for read in (store.header(KEY), store.list("lab", "", 9), store.totals("lab"), store.receipts(KEY, 0, 9)):
                forget()
                assert drive(read)
    assert len(drive(samples.entries(store, KEY))) == 6


@pytest.mark.parametrize("foreign", ["another type", "another hash"])
def test_bad_input_102_foreign_value_at_our_key_is_refused(server: Server, foreign: str) -> None:
    """What another program put at any of our keys is refused by name, and nothing at all is changed (102)."""
    drive(append(journal(server.url), KEY, "one", say("x")))
    ours = content(server)
    assert len(ours) == 5
    for key in ours:
        server.ask("FLUSHALL")
        if foreign == "another hash":
            server.ask("HSET", key, "theirs", "1")
        else:
            server.ask("SET", key, "theirs")
        before = content(server)
        store = journal(server.url)
        if foreign == "another hash" and key[-1:] in b"hif":  # a table of ours by its type; nothing of us is in it
            continue
        with pytest.raises(DecisionHistorySchemaUnsupported):
            drive(append(store, KEY, "one", say("x")))
        assert content(server) == before


def test_i40_newer_schema_is_refused(server: Server) -> None:
    """What a newer version wrote is refused with both numbers by every method, and left as it is (I-40)."""
    store = journal(server.url)
    drive(append(store, KEY, "one", say("x")))
    (meta,) = [key for key in server.ask("KEYS", "*") if key.endswith(b"}m")]
    server.ask("HSET", meta, "schema", "2")
    before = content(server)
    for call in (append(store, KEY, "two", say("y")), store.header(KEY), store.list("lab", "", 1), store.totals("lab")):
        with pytest.raises(DecisionHistorySchemaUnsupported, match=r"schema 2.* knows 1"):
            drive(call)
    assert content(server) == before


def test_i39_keys_that_do_not_belong_together_are_refused(server: Server) -> None:
    """A log that was lost, or is another one's, and a header that was altered: named, and never gone on with (I-39)."""
    for damage in (
        lambda keys: server.ask("DEL", keys["c"]),
        lambda keys: server.ask("HSET", keys["c"], "stamp", b"x" * 16),
        lambda keys: server.ask("HSET", keys["c"], "id", b"other"),
        lambda keys: server.ask("HSET", keys["h"], b"chat", server.ask("HGET", keys["h"], b"chat")[:-1] + b"\0"),
        lambda keys: server.ask("ZREM", keys["i"], b"chat"),
        lambda keys: server.ask("HDEL", keys["c"], "e1"),
    ):
        server.ask("FLUSHALL")
        drive(append(journal(server.url), KEY, "one", say("x")))
        keys = {key.decode().partition("}")[2][:1]: key for key in server.ask("KEYS", "*")}
        damage(keys)
        before = content(server)
        store = journal(server.url)

        async def go_on(store: Any = store) -> None:
            await append(store, KEY, "two", say("y"))
            await samples.entries(store, KEY)

        with pytest.raises(MinutebookError) as refused:
            drive(go_on())
        assert refused.value.code in {"DecisionHistoryCorrupt", "DecisionHistorySchemaUnsupported"}
        assert content(server) == before or damage.__code__.co_consts[-1] == "e1"


# --- failures of the network -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "asynchronous"])
def test_bad_input_95_half_open_socket_has_a_deadline(blocking: bool, server: Server) -> None:
    """A server that says nothing any more ends a call within its time, by name; then the store works again (95)."""
    with proxy(server.port) as between:
        store = journal(between.url, blocking=blocking, timeout=0.3)

        async def story() -> None:
            await append(store, KEY, "one", say("x"))
            between.silent = True
            for call in (lambda: append(store, KEY, "two", say("y")), lambda: store.header(KEY)):
                begun = time.monotonic()
                with pytest.raises(DecisionHistoryStorageFailed) as refused:
                    await call()
                assert refused.value.problem == "connection"
                assert 0.2 < time.monotonic() - begun < 3
            between.silent = False
            await append(store, KEY, "two", say("y"))
            assert len(await samples.entries(store, KEY)) == 2
            await store.close()

        drive(story()) if blocking else asyncio.run(story())


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "asynchronous"])
def test_bad_input_96_reply_cut_after_each_byte(blocking: bool, server: Server, figure: Callable[[str], None]) -> None:
    """A reply cut after any byte is no answer: the outcome is unknown, found by its id, and written once (96, I-8)."""
    with proxy(server.port) as between:
        store = journal(between.url, blocking=blocking)

        async def story() -> int:
            await append(store, KEY, "zero", say("x"))
            before = between.replied
            await append(store, KEY, "first", say("x"))
            length = between.replied - before
            for cut in range(length):
                await store.header(KEY)  # connects, if need be
                between.left = cut
                with pytest.raises(DecisionHistoryStorageFailed):
                    await append(store, KEY, f"{cut}", say("x"))
                between.left = None
                await append(store, KEY, f"{cut}", say("x"))
                receipt = await store.receipt(KEY, f"{cut}")
                assert receipt is not None
                assert receipt.version == cut + 3
            assert len(await samples.entries(store, KEY)) == length + 2
            await store.close()
            return length

        length = drive(story()) if blocking else asyncio.run(story())
        assert length > 30
        figure(f"cut after each of {length} bytes, 0 written twice, 0 lost")


# --- no foreign reply ------------------------------------------------------------------------------------------------


TENANTS = {"timeout": 30, "max_connections": 200}
"""So many connections that a call that is cancelled is on its way, and not in a queue for one."""


async def tenants(store: Any, calls: int, counts: dict[str, int], between: Proxy) -> None:
    """Have 200 tenants read and write their own text, a fifth of the calls cancelled at any moment."""

    async def tenant(number: int) -> None:
        chance = random.Random(number)
        key = ConversationKey(f"tenant-{number}", "chat")
        canary = say(f"canary of {number}")
        await append(store, key, "one", canary)
        for call in range(calls // 200):
            work = append(store, key, f"{call}", canary) if chance.random() < 0.3 else samples.entries(store, key)
            task = asyncio.ensure_future(work)
            if chance.random() < 0.2:
                await asyncio.sleep(chance.uniform(0, 0.05))
                counts["cancelled"] += task.cancel()
            (found,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(found, Exception) and not isinstance(found, asyncio.CancelledError):
                counts["failed"] += 1
            if isinstance(found, tuple):
                counts["read"] += len(found)
                counts["foreign"] += sum(entry.payload != canary.payload for entry in found)

    between.delay = (0, 0.02)
    answers = await asyncio.gather(*(tenant(number) for number in range(200)), return_exceptions=True)
    counts["failed"] += sum(isinstance(answer, Exception) for answer in answers)
    await store.close()


@pytest.mark.timeout(3_600 if PROVE else 300)
def test_i19_v14_no_reply_reaches_another_caller(server: Server, figure: Callable[[str], None]) -> None:
    """Through a proxy that delays replies, a fifth of the calls cancelled: nobody reads a foreign byte (I-19, A14)."""
    counts = dict.fromkeys(("read", "cancelled", "foreign", "failed"), 0)
    calls = budget(2_000, 100_000)
    with proxy(server.port) as between:
        asyncio.run(tenants(journal(between.url, blocking=False, **TENANTS), calls, counts, between))
        assert between.connections > 16, "connections that were interrupted are not used again"
    assert counts["cancelled"] > calls / 20
    assert counts["foreign"] == counts["failed"] == 0
    figure(
        f"{calls:,} calls through a delaying proxy, {counts['cancelled']:,} cancelled, {counts['read']:,} entries, "
        "0 foreign bytes"
    )


@pytest.mark.parametrize("canary", [False, True], ids=["without canary", "with canary"])
def test_i19_connection_that_is_used_again_would_be_found(
    canary: bool, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: with the fault of 2023 planted the harness finds foreign text; the canary makes errors of it (A14)."""
    from redis.exceptions import ResponseError

    from minutebook.stores import redis_wire
    from minutebook.stores.redis_links import AsyncLinks, _AsyncLink

    def nothing(_: Any) -> None:
        return None

    def keep(self: AsyncLinks, idle: list[Any], link: Any, *, clean: bool) -> None:
        idle.append(link)

    async def no_look(self: Any, until: float) -> bool:
        if self._connection.is_connected:
            return False
        self._connection.deadline.until = until
        await self._connection.connect()
        return True

    async def unguarded(self: Any, commands: Any, until: float) -> list[Any]:
        await self._connection.send_packed_command(self._connection.pack_commands(commands), check_health=False)
        return [await reply(self._connection) for _ in commands]

    async def reply(connection: Any) -> Any:
        try:
            return await connection.read_response(disconnect_on_error=False)
        except ResponseError as error:
            return error

    monkeypatch.setattr(_AsyncLink, "drop", nothing)
    monkeypatch.setattr(_AsyncLink, "open", no_look)
    monkeypatch.setattr(_AsyncLink, "exchange", unguarded)
    monkeypatch.setattr(AsyncLinks, "_give", keep)
    if not canary:
        monkeypatch.setattr(redis_wire, "_check_canary", lambda answer, nonce: None)
    counts = dict.fromkeys(("read", "cancelled", "foreign", "failed"), 0)
    with proxy(server.port) as between:
        asyncio.run(tenants(journal(between.url, blocking=False, **TENANTS), 2_000, counts, between))
    assert counts["cancelled"] > 100
    assert counts["read"] > 100
    assert (counts["foreign"] == 0) is canary


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("url", ["redis://127.0.0.1:1", "redis+cluster://127.0.0.1:1", "refused"])
def test_d23_a_call_that_fails_keeps_nothing_of_its_callers(url: str, blocking: bool) -> None:
    """Once its error is handled, what the callers had is gone with them, and not when the collector runs (D23)."""

    class Thing:
        """What a caller has in hand."""

    async def caller() -> None:
        thing = Thing()
        seen.append(weakref.ref(thing))
        await calls.header(KEY)

    async def story() -> None:
        with pytest.raises(MinutebookError):
            await caller()

    seen: list[weakref.ref[Thing]] = []
    wrong = shared("Redis").url.replace("redis://", "redis://nobody:wrong@")
    calls = journal(wrong if url == "refused" else url, blocking=blocking, timeout=0.3)
    with without_collector():
        drive(story()) if blocking else asyncio.run(story())
        assert seen[0]() is None


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Collect nothing meanwhile but what nobody refers to."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# --- processes -------------------------------------------------------------------------------------------------------

_HOLDER = """
import sys
import time
from minutebook import DecisionHistoryBusy, DecisionHistoryFenced, MinutebookError
from minutebook.sync import Conversation, RedisStore

with RedisStore(sys.argv[1], namespace="lab") as store:
    talk = Conversation(store, "chat", format="openai-chat")
    number = 0
    while True:
        try:
            with talk.turn(f"holder {number}") as turn:
                print("held", flush=True)
                turn.respond({"choices": [{"index": 0, "finish_reason": "stop",
                    "message": {"role": "assistant", "content": f"holder {number}"}}]})
            print("written", flush=True)
        except DecisionHistoryFenced:
            print("fenced", flush=True)
        except DecisionHistoryBusy:
            print("busy", flush=True)
        number += 1
        time.sleep(0.005)
"""


@pytest.mark.timeout(3_600 if PROVE else 300)
def test_i13_bad_input_65_paused_holder_writes_nothing_after_recover(
    server: Server, figure: Callable[[str], None]
) -> None:
    """A process stopped at any moment, its reservation recovered: whatever it does then is fenced (I-13, 65)."""
    chance = random.Random(13)
    store = sync.RedisStore(server.url, namespace="lab")
    key = store.key("chat")
    with subprocess.Popen([sys.executable, "-c", _HOLDER, server.url], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            told: list[str] = []
            reader = threading.Thread(target=lambda: told.extend(line.strip() for line in holder.stdout))  # type: ignore[union-attr]
            reader.start()
            until(lambda: "written" in told, "the holder writes")
            recovered = 0
            stops = budget(25, 1_000)
            for number in itertools.count():
                if number >= stops and recovered > 3:  # a stop may find the holder between two turns
                    break
                time.sleep(chance.uniform(0, 0.02))
                holder.send_signal(signal.SIGSTOP)
                until(lambda: Path(f"/proc/{holder.pid}/stat").read_text().split()[2] == "T", "it is stopped")
                header = store.header(key)
                if header is not None and header.token:
                    store.recover(key, worker_stopped=True, epoch=header.epoch)
                    recovered += 1
                talk = sync.Conversation(store, "chat", format="openai-chat")
                talk.append([{"role": "user", "content": f"q {number}"}, {"role": "assistant", "content": f"{number}"}])
                before = [entry.digest for entry in store.entries(key)] if not number % 10 else []
                fenced, written = told.count("fenced"), told.count("written")
                holder.send_signal(signal.SIGCONT)
                until(lambda: told.count("fenced") + told.count("written") > fenced + written, "it went on")  # noqa: B023
                assert [entry.digest for entry in store.entries(key)][: len(before)] == before
        finally:
            holder.kill()
            holder.wait()
            reader.join()
    # Each holder that was recovered in the middle of a turn found itself fenced; none wrote its answer.
    assert told.count("fenced") >= recovered - 1
    header = store.header(key)
    if header is not None and header.token:
        store.recover(key, worker_stopped=True)
    store.verify(key)
    store.close()
    figure(f"{number} stops, {recovered} recoveries, {told.count('fenced')} fenced, 0 late writes")


_WORKERS = """
import sys
from tests.stores.test_exclusion import contest
from tests.stores.test_redis import journal

print(contest(journal(sys.argv[1], timeout=0.5), int(sys.argv[2]), int(sys.argv[3])))
"""


@pytest.mark.timeout(3_600 if PROVE else 300)
def test_i10_one_live_decision_over_processes_behind_a_network_that_fails(
    server: Server, figure: Callable[[str], None]
) -> None:
    """16 workers in 4 processes, replies late, cut, swallowed or reset: no two holds overlap (I-10)."""
    attempts, root = budget(8, 2_000), Path(__file__).parents[2]
    with proxy(server.port) as between, failing(between) as done:
        between.delay = (0, 0.002)
        commands = [
            [sys.executable, "-c", _WORKERS, between.url, f"{4 * number}", f"{attempts}"] for number in range(4)
        ]
        processes = [subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root, text=True) for command in commands]
        told = [process.communicate()[0] for process in processes]
    store = journal(server.url)
    figure(f"{check_contest(told, attempts, store)}; {', '.join(f'{n} {how}' for how, n in done.items())}")
    drive(store.close())


def test_i17_use_after_fork_is_refused(server: Server) -> None:
    """A child may not use what its parent opened, and the parent goes on (I-17, 64)."""
    store = sync.RedisStore(server.url, namespace="lab")
    store.list()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            store.list()
        except StoreClosed:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.list() == ()
    store.close()
    with pytest.raises(StoreClosed):
        store.list()


@pytest.mark.parametrize("skew", [-86_400_000, 86_400_000, 300_000])
def test_i30_bad_input_59_skewed_workers_expire_nothing(skew: int, server: Server) -> None:
    """A worker whose clock is a day off writes the server's time and expires nothing early (I-30, 59)."""
    from minutebook.stores.journal import JournalStore

    bounds = StoreBounds(ttl_ms=60_000)
    right = JournalStore(journal(server.url, bounds), namespace="lab")
    wrong = JournalStore(journal(server.url, bounds), namespace="lab", clock=lambda: time.time_ns() // 10**6 + skew)
    for number in range(4):
        drive(append((right, wrong)[number % 2].journal, KEY, f"{number}", say(f"{number}")))
        drive(append((wrong, right)[number % 2].journal, ConversationKey("lab", f"{number}"), "one", say("x")))
    seconds, _ = server.ask("TIME")
    entries = drive(samples.entries(wrong.journal, KEY))
    assert len(entries) == 4
    assert all(abs(entry.wall - seconds * 1_000) < 10_000 for entry in entries)
    assert len(drive(wrong.list())) == len(drive(right.list())) == 5


@pytest.mark.parametrize("astray", [5 * DRIFT_MS, -5 * DRIFT_MS])
def test_i30_a_workers_ticks_that_went_astray_are_not_believed(astray: int, server: Server) -> None:
    """Whatever a worker reckons from its last look and its own ticks, the server compares it and says better (I-30)."""
    store, ticks = journal(server.url), FrozenClock(10**9)
    store._ticks = ticks
    drive(append(store, KEY, "before", say("x")))
    for number in range(3):
        ticks.advance(astray)
        drive(append(store, KEY, f"{number}", say("x")))
    seconds, _ = server.ask("TIME")
    walls = [entry.wall for entry in drive(samples.entries(store, KEY))]
    assert len(walls) == 4
    assert all(abs(wall - seconds * 1_000) < DRIFT_MS for wall in walls)


# --- secrets ---------------------------------------------------------------------------------------------------------


def test_i37_password_is_in_no_error_and_no_repr(server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    """A password of a URL is in no message, repr, fact or traceback, whatever fails (I-37)."""
    marker = f"secret{uuid.uuid4().hex}"
    server.ask("CONFIG", "SET", "requirepass", "right")
    told: list[str] = []
    for url in (
        f"redis://:{marker}@127.0.0.1:{server.port}",
        f"redis://{marker}:{marker}@127.0.0.1:1",
        f"redis+cluster://:{marker}@127.0.0.1:1",
        f"redis://:{marker}@127.0.0.1:{server.port}?nothing={marker}",
        f"redis://:{marker}@127.0.0.1:{marker}",
        f"redis://:{marker}@127.0.0.1:{server.port}?socket_timeout={marker}",
        f"redis+cluster://:{marker}@127.0.0.1,{marker}:x",
        f"http://{marker}",
        f"redis://:right@127.0.0.1:{server.port}/99?{marker}",
    ):
        try:
            store = sync.RedisStore(url, namespace="lab", timeout=0.3)
            told.append(repr(store) + repr(vars(store)) + repr(vars(store._core.journal)))
            store.read(store.key(marker))
            told.append("no refusal")
        except MinutebookError as error:
            told.append(f"{error!r} {error.facts}" + "".join(traceback.format_exception(error)))
    assert "no refusal" not in told
    server.ask("CONFIG", "SET", "requirepass", "", password="right")
    out, err = capfd.readouterr()
    for each in (*told, out, err):
        assert marker not in each.replace(f'"{marker}"', "")


# --- clusters --------------------------------------------------------------------------------------------------------


def test_i29_bounds_and_buckets_do_not_mix() -> None:
    """What was spread over a cluster cannot be bounded exactly, and says so; what has bounds is read without (I-29)."""
    many = shared("Redis cluster")
    spread, counted = (ConversationKey(f"{kind} {uuid.uuid4()}", "chat") for kind in ("spread", "counted"))
    free, bound = journal(many.url), journal(many.url, StoreBounds(max_sessions=3))
    drive(append(free, spread, "one", say("x")))
    for call in (append(bound, spread, "two", say("y")), bound.header(spread), bound.list(spread.namespace, "", 9)):
        with pytest.raises(InvalidOption, match="without bounds"):
            drive(call)
    drive(append(bound, counted, "one", say("x")))
    for number, store in enumerate((free, journal(many.url)), 1):
        assert len(drive(samples.entries(store, counted))) == number
        assert len(drive(store.list(counted.namespace, "", 9))) == 1
        drive(append(store, counted, f"more {number}", say("y")))
    assert drive(bound.totals(counted.namespace)).conversations == 1


def test_i33_listing_of_a_spread_namespace_is_in_order() -> None:
    """Ids of 64 buckets are listed by their code points, page by page, each once (SPEC D21)."""
    many = shared("Redis cluster")
    store, namespace = journal(many.url), f"{uuid.uuid4()}"
    chance = random.Random(33)
    names = {"".join(chance.choice("aZ0\u00e9\U0001f600~") for _ in range(chance.randint(1, 6))) for _ in range(300)}
    for name in names:
        drive(append(store, ConversationKey(namespace, name), "one", say("x")))
    for rows in (1, 7, 64, 1_000):
        listed: list[str] = []
        while page := drive(store.list(namespace, listed[-1] if listed else "", rows)):
            assert len(page) <= rows
            listed += [each.key.id for each in page]
        assert listed == sorted(names)
    assert drive(store.totals(namespace)).conversations == len(names)


@pytest.mark.timeout(300)
def test_i15_acknowledged_write_that_a_failover_lost_is_detected() -> None:
    """A replica that had not everything takes over: whoever wrote what is missing is told (I-15)."""
    with cluster("--cluster-replica-validity-factor", "0") as made:
        store = journal(made.url, timeout=20)
        drive(append(store, KEY, "one", say("kept")))
        (log,) = [key for server in made.servers for key in server.ask("KEYS", "*c*") if b"}c" in key][:1]
        master = made.master_of(log)
        replica = next(
            server for server in made.servers if server.info("replication").get("master_port") == master.port
        )
        assert master.ask("WAIT", 1, 5_000) == 1, "the replica has it"
        replica.signal(signal.SIGSTOP)
        master.ask("CLIENT", "KILL", "TYPE", "replica")
        drive(append(store, KEY, "two", say("lost")))
        master.kill()
        replica.signal(signal.SIGCONT)
        until(lambda: replica.info("replication")["role"] == "master", "the replica took over")
        with pytest.raises(DecisionHistoryRegressed) as refused:
            drive(append(store, KEY, "three", say("after")))
        assert (refused.value.version, refused.value.seen) == (1, 2)
        with pytest.raises(DecisionHistoryRegressed):
            drive(store.header(KEY))
        fresh = journal(made.url)
        assert [entry.payload for entry in drive(samples.entries(fresh, KEY))] == [say("kept").payload]
        for number in range(3):
            drive(append(fresh, KEY, f"{number}", say("another story")))
        with pytest.raises(DecisionHistoryRegressed):
            drive(append(store, KEY, "three", say("after")))


@pytest.mark.timeout(3_600 if PROVE else 300)
def test_i01_i15_master_killed_in_the_middle_of_writes(figure: Callable[[str], None]) -> None:
    """Eight writers go on over a failover: what was acknowledged is there, or its writer was told that it is not."""
    with cluster() as made:
        stop = threading.Event()

        def writer(number: int) -> tuple[list[str], int, bool]:
            store, key = journal(made.url, timeout=20), ConversationKey("lab", f"{number}")
            done, unknown, at = list[str](), 0, 0
            while not stop.is_set():
                try:
                    drive(append(store, key, f"{at}", say(f"{at}")))
                except DecisionHistoryStorageFailed:
                    unknown += 1
                    continue
                except DecisionHistoryRegressed:
                    return done, unknown, True
                done.append(f"{at}")
                at += 1
            return done, unknown, False

        def killer() -> None:
            time.sleep(0.5)
            made.servers[0].kill()
            made.settle()
            time.sleep(0.5)
            stop.set()

        *answers, _ = in_threads([*(lambda number=number: writer(number) for number in range(8)), killer])
        unknown = written = told = 0
        for number, answer in enumerate(answers):
            assert isinstance(answer, tuple), answer
            done, unsure, regressed = answer
            found = drive(samples.entries(journal(made.url), ConversationKey("lab", f"{number}")))
            if not regressed:
                assert [entry.payload for entry in found] == [say(each).payload for each in done]
            unknown, written, told = unknown + unsure, written + len(done), told + regressed
        assert written > 100
        figure(
            f"{written:,} commits over a failover, {unknown} unknown and resolved by id, {told} writers told of a loss"
        )


@pytest.mark.timeout(300)
def test_bad_input_101_slot_that_moves_while_it_is_written_to() -> None:
    """MOVED, ASK and TRYAGAIN while a slot goes from one master to another: no call fails, nothing is lost (101)."""
    from redis.crc import key_slot

    with cluster() as made:
        store = journal(made.url, StoreBounds(max_sessions=9), timeout=20)
        drive(append(store, KEY, "first", say("first")))
        keys = [key for server in made.servers[:3] for key in server.ask("KEYS", "*")]
        slot = key_slot(keys[0])
        source = made.master_of(keys[0])
        target = next(server for server in made.servers[:3] if server is not source)
        stop = threading.Event()

        def writer() -> int:
            number = 0
            while not stop.is_set():
                drive(append(store, KEY, f"{number}", say(f"{number}")))
                number += 1
            return number

        def mover() -> None:
            there, here = target.ask("CLUSTER MYID"), source.ask("CLUSTER MYID")
            target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", here)
            source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", there)
            for key in keys:
                time.sleep(0.1)
                source.ask("MIGRATE", "127.0.0.1", target.port, key, 0, 5_000)
            time.sleep(0.3)
            for server in (target, source):
                server.ask("CLUSTER", "SETSLOT", slot, "NODE", there)
            time.sleep(0.3)
            stop.set()

        written, moved = in_threads([writer, mover])
        assert moved is None
        assert written > 10
        assert len(drive(samples.entries(store, KEY))) == written + 1
        assert target.ask("CLUSTER", "COUNTKEYSINSLOT", slot) == 5


# --- both faces ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Redis", "Redis cluster"])
def test_b2_a_conversation_on_a_shared_server(kind: str) -> None:
    """The same conversation from an event loop and without one, and a second worker is Busy (SPEC B2, D22)."""
    url, namespace = shared(kind).url, f"{uuid.uuid4()}"

    async def asynchronous() -> None:
        async with minutebook.RedisStore(url, namespace=namespace) as store:
            talk = minutebook.Conversation(store, "order", format="openai-chat")
            async with talk.turn("Where is it?") as turn:
                with pytest.raises(DecisionHistoryBusy):
                    await chat_on(store).turn("And mine?").__aenter__()
                await turn.respond(said("On its way."))

    def chat_on(store: Any) -> Any:
        return minutebook.Conversation(store, "order", format="openai-chat")

    asyncio.run(asynchronous())
    with sync.RedisStore(url, namespace=namespace) as store:
        talk = sync.Conversation(store, "order", format="openai-chat")
        with talk.turn("Thanks") as turn:
            assert len(turn.window().messages) == 3
            turn.respond(said("You are welcome."))
        assert store.totals().conversations == 1
        store.verify(store.key("order"))


def test_b2_socket_in_the_file_system() -> None:
    """A server behind a Unix socket is reached by its path (SPEC B2)."""
    with (
        single("--unixsocket", "sock") as server,  # in the server's own folder
        sync.RedisStore(f"unix://{server.folder}/sock", namespace="lab") as store,
    ):
        talk = sync.Conversation(store, "chat", format="openai-chat")
        talk.append([{"role": "user", "content": "hi"}])
        assert server.ask("KEYS", "*")


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("url", {"url": "sqlite:///x"}),
        ("url", {"url": "redis://a,b"}),
        ("url", {"url": None}),
        ("url", {"url": "redis+cluster://a/1"}),
        ("cluster", {"url": "redis+cluster://a", "cluster": False}),
        ("timeout", {"timeout": 0}),
        ("timeout", {"timeout": True}),
        ("timeout", {"timeout": float("nan")}),
        ("max_connections", {"max_connections": 0}),
        ("protocol", {"client_options": {"protocol": 3}}),
        ("socket_timeout", {"url": "redis://a?socket_timeout=3"}),
        ("max_sessions", {"max_sessions": 0}),
        *(("url", {"url": f"redis://a{path}"}) for path in ("/1x", "/abc", "/0/1", "/-1", "/0/", "/ 1", "/0#x", "/١")),
        *(
            ("url", {"url": f"redis://a?{query}"})
            for query in ("db=x", "db=-1", "db", "db=", "db=1&db=2", "host=b", "x")
        ),
        *(
            ("url", {"url": f"{scheme}{host}:1"})
            for scheme in ("redis://:pass-marker@", "rediss://", "redis+cluster://a,")
            for host in ("a..b", ".a", "a" * 64, f"a.{'b' * 64}.c", "\u00fc" * 63)
        ),
        ("url", {"url": "redis://a%00b"}),
        *(
            ("url", {"url": f"redis://{rest}"})
            for rest in ("a?password=marker\udcff", "u:marker\udcff@a", "a?marker\udcff=1")
        ),
        ("url", {"url": "redis+cluster://a,b:65536"}),
        ("url", {"url": "redis://a/1?db=1"}),
        ("url", {"url": "unix://run/redis.sock"}),
        ("db", {"client_options": {"db": "x"}}),
        ("db", {"url": "redis+cluster://a", "client_options": {"db": 1}}),
        ("db", {"url": "redis://a/1", "client_options": {"db": 2}}),
        ("client_options", {"client_options": {"nonsense": 1}}),
        ("client_options", {"url": "redis://a?nonsense=1"}),
        ("client_options", {"url": "rediss+cluster://a,b?nonsense=1"}),
        ("timeout", {"url": "redis://a?timeout=3"}),
        *(
            ("client_name", {"url": f"redis://a?client_name={name}"})
            for name in ("marker%20b", "marker%0A", "marker%C3%A4")
        ),
        ("client_name", {"client_options": {"client_name": "marker b"}}),
    ],
)
def test_v08_bad_input_118_options_are_refused_where_they_are_given(option: str, given: dict[str, Any]) -> None:
    """Nothing that is no option is passed over: it is refused by its name before anything is connected (V-8, 118)."""
    pytest.importorskip("redis")
    for face in (minutebook, sync):
        with pytest.raises(InvalidOption) as refused:
            face.RedisStore(**({"url": "redis://127.0.0.1:1", "namespace": "lab"} | given))
        assert refused.value.option == option
        assert "marker" not in repr(vars(refused.value)) + str(refused.value)


@pytest.mark.parametrize("host", ["a.", "my_redis", "[::1]", "[fe80::1%25lo]", "b\u00fccher.example", "a" * 63])
def test_b2_every_host_that_can_be_one_is_taken(host: str) -> None:
    """A name of any alphabet, an address, one part or a dot at the end: what can be looked up is not refused (B2)."""
    pytest.importorskip("redis")
    for url in (f"redis://{host}:1", f"redis+cluster://{host}:1,{host}:2"):
        sync.RedisStore(url, namespace="lab")


@pytest.mark.parametrize(
    ("url", "database", "timeout"),
    [
        ("redis://a", 0, 5.0),
        ("redis://a/", 0, 5.0),
        ("redis://a:1/3", 3, 5.0),
        ("redis://a?db=3&timeout=0.25", 3, 0.25),
        ("redis+cluster://a,b:2?timeout=30", 0, 30.0),
        ("unix:///run/redis.sock?db=2", 2, 5.0),
        ("rediss://me:p%23w%2F@a/7?timeout=30&ssl_ca_certs=/etc/a%20b.pem", 7, 30.0),
    ],
)
def test_b2_url_says_the_database_and_the_time(url: str, database: int, timeout: float) -> None:
    """A URL's number is what is taken, and with `open_store` its timeout, whatever else stands there (B2)."""
    read = sync.open_store(url, namespace="lab")._core.journal._remote._wire._address
    assert (read.database, read.timeout) == (database, timeout)
    if "ssl" in url:
        assert (read.connect["password"], read.connect["ssl_ca_certs"]) == ("p#w/", "/etc/a b.pem")


@pytest.mark.parametrize("seconds", ["0", "soon", "", "nan", "3&timeout=4"])
def test_v08_time_that_a_url_cannot_mean_is_refused(seconds: str) -> None:
    """A timeout in a URL that is none is refused where the URL is given (V-8)."""
    with pytest.raises(InvalidOption) as refused:
        sync.open_store(f"redis://a?timeout={seconds}", namespace="lab")
    assert refused.value.option == "timeout"


def test_b2_database_that_a_server_does_not_have_is_named(server: Server) -> None:
    """`/99` on a server of 16 databases is refused at the first call, with its number and the setting (B2)."""
    refused = unfit(f"{server.url}/99")
    assert refused.problem == "database"
    assert "no database 99" in str(refused)


def test_b2_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without redis-py the store says what to install, and the package itself needs none of it."""
    code = (
        "import sys; sys.modules['redis'] = None\n"
        "import minutebook\n"
        "try: minutebook.RedisStore('redis://a', namespace='n')\n"
        "except minutebook.InvalidOption as error: print(error)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'minutebook[redis]'" in told


def test_i19_chat_on_a_shared_journal(server: Server) -> None:
    """Conversations of many tasks on one store of 16 connections all come to their end."""
    store = journal(server.url, blocking=False)

    async def talk(number: int) -> None:
        for turns in range(3):
            async with chat(store, f"{number}").turn(f"{turns}") as turn:
                await turn.respond(said("a"))

    async def everybody() -> None:
        await asyncio.gather(*(talk(number) for number in range(64)))
        assert (await store.totals("lab")).conversations == 64
        await store.close()

    asyncio.run(everybody())


def test_i16_pending_decisions_hold_no_connection(server: Server) -> None:
    """Fifty turns that wait for their model at once need one connection between them (I-16)."""
    store = journal(server.url, blocking=False, max_connections=1)

    async def everybody() -> None:
        entered, asked = asyncio.Barrier(51), asyncio.Event()

        async def talk(number: int) -> None:
            async with chat(store, f"{number}").turn("q") as turn:
                await entered.wait()
                await asked.wait()
                await turn.respond(said("a"))

        tasks = [asyncio.create_task(talk(number)) for number in range(50)]
        await entered.wait()
        assert (await store.totals("lab")).reserved == 50
        assert server.info("clients")["connected_clients"] <= 2  # ours, and the one that asks
        asked.set()
        await asyncio.gather(*tasks)
        assert (await store.totals("lab")).reserved == 0
        await store.close()

    asyncio.run(everybody())


def test_i09_open_and_close_leave_nothing(server: Server) -> None:
    """Stores that are opened, used and closed again and again leave no descriptor and no connection (I-9)."""

    async def asynchronous() -> None:
        async with minutebook.RedisStore(server.url, namespace="lab") as store:
            await asyncio.gather(*(store.list() for _ in range(4)))

    def once() -> int:
        with sync.RedisStore(server.url, namespace="lab") as store:
            store.list()
        asyncio.run(asynchronous())
        return len(os.listdir("/proc/self/fd"))

    gc.collect()  # what other tests left must not hide what is left here
    first = once()
    assert max(once() for _ in range(budget(30, 1_000))) <= first + 1
    until(lambda: server.info("clients")["connected_clients"] == 1, "the server has no connection of ours")


def test_i25_reading_writes_nothing(server: Server) -> None:
    """Whatever is read, windows included, the server holds what it held, and so does one that may only read (I-25)."""
    store = journal(server.url)
    talk = chat(store)
    drive(talk.append([{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]))
    before = content(server)

    async def read() -> None:
        await talk.window()
        [entry async for entry in talk.store.entries(talk.key)]
        [receipt async for receipt in talk.store.receipts(talk.key)]
        await talk.store.read(talk.key)
        await talk.store.list()
        await talk.store.totals()
        await talk.store.verify(talk.key)

    drive(read())
    assert content(server) == before
    server.ask("CONFIG", "SET", "maxmemory", "1")  # nothing that would write is let in any more
    drive(read())


def test_i13_fenced_commit_writes_nothing(server: Server) -> None:
    """Another worker's recovery ends a reservation on the server, whatever the first one remembers (I-13)."""
    first, second = journal(server.url), journal(server.url)
    held = drive(first.reserve(KEY, "t", format=FORMAT, opening=adding("one", say("q"))))
    drive(second.recover(KEY, held.header.epoch))
    before = content(server)
    with pytest.raises(DecisionHistoryFenced):
        drive(first.commit(KEY, "t", held.header.epoch, adding("two", say("late"))))
    assert content(server) == before
