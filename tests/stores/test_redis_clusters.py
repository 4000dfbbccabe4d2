"""What a cluster's nodes tell of each other: of those that know nothing, were forgotten, or have no name to tell."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers.proxy import proxy
from servers.redis import Cluster, Server, binary, cluster, free_ports, until
from tests.stores.redis_lab import address
from tests.stores.test_redis import KEY, journal

from minutebook.errors import (
    DecisionHistoryStorageFailed,
    DecisionHistoryStorageLocked,
    DecisionHistoryStorageUnsafe,
)
from minutebook.model.bounds import StoreBounds
from minutebook.model.keys import ConversationKey
from minutebook.stores.redis_scripts import LAYOUT_SEEN
from minutebook.stores.redis_wire import Wire
from minutebook.testing import drive
from minutebook.testing.conformance.samples import append, say

BOUNDED = StoreBounds(max_sessions=99)
META = b"minutebook:{%s}m" % hashlib.sha256(b"0\nlab").hexdigest().encode()
COLOURS = pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "asynchronous"])


def run(story: Any, *, blocking: bool) -> Any:
    return drive(story) if blocking else asyncio.run(story)


@contextlib.contextmanager
def stranger(folder: Path, *settings: str) -> Iterator[Server]:
    """Run a node of a cluster that knows no other and has no slots."""
    node = Server(binary(), folder, free_ports(1)[0], "--cluster-enabled", "yes", *settings).start()
    try:
        yield node
    finally:
        node.stop()


def behind(node: Server, made: Cluster) -> str:
    """Return the URL of a cluster that begins with one more node."""
    return f"redis+cluster://127.0.0.1:{node.port},{made.url.partition('//')[2]}"


def take_in(node: Server, made: Cluster) -> None:
    made.servers[0].ask("CLUSTER", "MEET", "127.0.0.1", node.port)
    until(lambda: node.ask("CLUSTER INFO")["cluster_state"] == "ok", "it knows the others' slots")
    until(lambda: all(s.ask("CLUSTER INFO")["cluster_known_nodes"] == "7" for s in made.servers), "they know it")


def forget(node: Server, made: Cluster) -> None:
    """Take a node out as operators do: the others forget it, and it is reset."""
    identity = node.ask("CLUSTER MYID")
    for server in made.servers:
        server.ask("CLUSTER", "FORGET", identity)
    node.ask("CLUSTER", "RESET", "SOFT")


@pytest.fixture(scope="module")
def six() -> Iterator[Cluster]:
    """A cluster that the tests of this file share."""
    with cluster() as made:
        yield made


@COLOURS
def test_bad_input_101_a_node_without_slots_hides_no_other(blocking: bool, six: Cluster, tmp_path: Path) -> None:
    """A node that knows of no slot, first in the URL, is passed over; what it says of its disk does not count (101)."""
    with stranger(tmp_path, "--appendonly", "no") as node:

        async def story() -> None:
            store = journal(behind(node, six), BOUNDED, blocking=blocking)
            await append(store, ConversationKey("lab", f"hidden-{blocking}"), "one", say("x"))
            assert store.durable is True
            await store.close()

        run(story(), blocking=blocking)


NOWHERE = (
    (b":7\r\n", b""),
    (b"*1\r\n:7\r\n", b""),
    (b"*1\r\n*2\r\n:0\r\n:16383\r\n", b""),
    (b"*1\r\n*3\r\n$1\r\nx\r\n$1\r\ny\r\n*2\r\n$1\r\nh\r\n:1\r\n", b""),
    (b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$1\r\nh\r\n:99999999\r\n", b""),
    (b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$4\r\na..b\r\n:1\r\n", b""),
    (b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$1\r\n\xff\r\n:1\r\n", b""),
    (b"", b"-MOVED 1 h:99999999\r\n"),
    (b"", b"-MOVED 1 a..b:1\r\n"),
    (b"", b"-ASK 1 h:-1\r\n"),
)
"""What a cluster tells of its slots, or else answers to a script, where nobody can be reached."""


@COLOURS
def test_d23_bad_input_96_101_where_no_node_can_be_none_is_asked(blocking: bool, tmp_path: Path) -> None:
    """A map or a redirection that leads nowhere is a reply that cannot be read, told within the time (96, 101)."""
    given, moved = NOWHERE[0]
    with stranger(tmp_path) as node, proxy(node.port) as between:
        node.ask("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        until(lambda: node.ask("CLUSTER INFO")["cluster_state"] == "ok", "it has all slots")
        map_there = [b":%d\r\n" % port for port in (node.port, between.port)]

        def sound(reply: bytes) -> bytes:
            return reply.replace(*map_there)

        def becomes(reply: bytes) -> bytes:
            if reply.startswith(b"+OK") or b"role:" in reply:
                return reply
            return (given if map_there[0] in reply else moved) or sound(reply)

        async def story() -> None:
            store = journal(f"redis+cluster://127.0.0.1:{between.port}", BOUNDED, blocking=blocking, timeout=0.5)
            between.becomes = becomes
            for call in (store.header(KEY), append(store, KEY, "one", say("x"))):
                with pytest.raises(DecisionHistoryStorageFailed) as refused:
                    await call
                assert refused.value.problem == "connection"
                assert ("nothing was sent" in str(refused.value)) is bool(given)
            between.becomes = sound
            await append(store, KEY, f"{given!r} {moved!r}", say("x"))
            await store.close()

        for told in NOWHERE:
            given, moved = told
            run(story(), blocking=blocking)


@COLOURS
def test_b2_bad_input_95_a_node_that_says_nothing_leaves_the_others_their_share_of_the_time(
    blocking: bool, six: Cluster
) -> None:
    """A node that takes connections and never answers, first in the URL, ends no call of a cluster that serves (95)."""
    with socket.create_server(("127.0.0.1", 0)) as silent:

        async def story() -> None:
            url = f"redis+cluster://127.0.0.1:{silent.getsockname()[1]},{six.url.partition('//')[2]}"
            store = journal(url, BOUNDED, blocking=blocking, timeout=3)
            await append(store, ConversationKey("lab", f"silent-{blocking}"), "one", say("x"))
            await store.close()

        run(story(), blocking=blocking)


@COLOURS
@pytest.mark.parametrize(
    ("setting", "value", "problem"),
    [
        ("cluster-enabled", "no", "cluster"),
        ("requirepass", "another", "denied"),
        ("maxmemory-policy", "allkeys-lru", "evicting"),
    ],
)
def test_bad_input_97_98_101_a_node_that_is_something_else_hides_no_other(
    setting: str, value: str, problem: str, blocking: bool, six: Cluster, tmp_path: Path
) -> None:
    """What stands where a node was, and is unfit or another's by now, is passed over; alone it is refused by name."""
    begun_with = (f"--{setting}", value) if setting == "cluster-enabled" else ()
    with stranger(tmp_path, *begun_with) as node:
        if not begun_with:
            node.ask("CONFIG", "SET", setting, value)

        async def story() -> None:
            store = journal(behind(node, six), BOUNDED, blocking=blocking)
            await append(store, ConversationKey("lab", f"{problem}-{blocking}"), "one", say("x"))
            await store.close()
            alone = journal(f"redis+cluster://127.0.0.1:{node.port}", BOUNDED, blocking=blocking)
            with pytest.raises(DecisionHistoryStorageUnsafe) as refused:
                await alone.header(KEY)
            assert refused.value.problem == problem
            await alone.close()

        run(story(), blocking=blocking)


@COLOURS
def test_bad_input_101_no_node_that_knows_a_slot_is_told_at_the_deadline(blocking: bool, tmp_path: Path) -> None:
    """Where nobody has a slot the call ends in time with that, and nothing was changed (101)."""
    with stranger(tmp_path) as node:

        async def story() -> None:
            url = f"redis+cluster://127.0.0.1:{node.port}"
            store = journal(url, BOUNDED, blocking=blocking, timeout=0.5)
            with pytest.raises(DecisionHistoryStorageFailed) as refused:
                await store.header(KEY)
            assert refused.value.problem == "clusterdown"
            await store.close()

        run(story(), blocking=blocking)


class Left(socketserver.StreamRequestHandler):
    """A node that was cut off from its cluster: it answers, and its map is what it was."""

    INFO = b"redis_version:7.2.4\r\nredis_mode:cluster\r\nrole:master\r\nmaxmemory_policy:noeviction\r\n"

    def handle(self) -> None:
        while line := self.rfile.readline():
            words = [self.rfile.read(int(self.rfile.readline()[1:]) + 2)[:-2] for _ in range(int(line[1:]))]
            answers = {
                b"INFO": b"$%d\r\n%b\r\n" % (len(self.INFO), self.INFO),
                b"CONFIG": b"*0\r\n",
                b"CLUSTER": b"*1\r\n*3\r\n:0\r\n:16383\r\n" + self.server.told,  # type: ignore[attr-defined]
            }
            self.wfile.write(answers.get(words[0], b"+OK\r\n"))


@contextlib.contextmanager
def left_behind(host: bytes) -> Iterator[int]:
    """Run a node that says of every slot that a host has it, at a port where nobody listens."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Left) as node:
        node.daemon_threads = True
        node.told = b"*2\r\n$%d\r\n%b\r\n:%d\r\n" % (len(host), host, free_ports(1)[0])  # type: ignore[attr-defined]
        threading.Thread(target=node.serve_forever, daemon=True).start()
        yield int(node.server_address[1])
        node.shutdown()


@COLOURS
@pytest.mark.parametrize("host", [b"127.0.0.1", b"a..b", b"no.such.host.invalid"])
def test_bad_input_101_a_node_whose_map_is_old_is_asked_once(host: bytes, blocking: bool, six: Cluster) -> None:
    """
    Where the map of one node leads nowhere another node is asked, whatever is wrong with the host that it names (101).

    Alone, it is told as a connection that could not be made, and nothing was sent.
    """
    with left_behind(host) as port:

        async def story() -> None:
            url = f"redis+cluster://127.0.0.1:{port},{six.url.partition('//')[2]}"
            store = journal(url, BOUNDED, blocking=blocking)
            await append(store, ConversationKey("lab", f"old-{blocking}-{host.decode()}"), "one", say("x"))
            await store.close()
            alone = journal(f"redis+cluster://127.0.0.1:{port}", BOUNDED, blocking=blocking, timeout=0.5)
            with pytest.raises(DecisionHistoryStorageFailed, match="nothing was sent") as refused:
                await alone.header(KEY)
            assert refused.value.problem == "connection"
            await alone.close()

        run(story(), blocking=blocking)


def test_b2_i15_a_node_that_was_taken_out_hides_no_failover(tmp_path: Path) -> None:
    """A node that a store asked first is taken out and reset; after a failover the store goes on all the same (B2)."""
    with cluster() as made, stranger(tmp_path) as node:
        take_in(node, made)
        store = journal(behind(node, made), BOUNDED, timeout=20)
        drive(append(store, KEY, "one", say("x")))
        forget(node, made)
        drive(append(store, KEY, "two", say("y")))
        failing = made.master_of(META)
        failing.kill()
        until(lambda: made.master_of(META) is not failing, "a replica took over")
        for number in range(6):
            drive(append(store, ConversationKey("lab", f"{number}"), "one", say("z")))
        drive(store.close())


@COLOURS
@pytest.mark.parametrize("kind", ["unknown-endpoint", "hostname"])
def test_bad_input_101_nodes_whose_endpoint_is_unknown_are_reached(kind: str, blocking: bool, six: Cluster) -> None:
    """Where a cluster tells no endpoint, or `?` for a name that is none, each node is found, by MOVED too (101)."""
    for server in six.servers:
        server.ask("CONFIG", "SET", "cluster-preferred-endpoint-type", kind)
    try:
        told = [node[0] for _, _, *nodes in six.servers[0].ask("CLUSTER", "SLOTS") for node in nodes]
        assert set(told) == {None if kind == "unknown-endpoint" else b"?"}

        async def story() -> None:
            store = journal(six.url, blocking=blocking)
            for number in range(12):
                await append(store, ConversationKey("spread", f"{kind}-{blocking}-{number}"), "one", say("x"))
            wire = store._remote._wire  # type: ignore[attr-defined]
            assert len(set(wire._slots.values())) == 3
            wire._slots = dict.fromkeys(wire._slots, next(iter(wire._slots.values())))
            for number in range(12):
                found = await store.header(ConversationKey("spread", f"{kind}-{blocking}-{number}"))
                assert found is not None
            await store.close()

        run(story(), blocking=blocking)
    finally:
        for server in six.servers:
            server.ask("CONFIG", "SET", "cluster-preferred-endpoint-type", "ip")


@pytest.mark.parametrize("blocking", [True, False])
def test_b2_a_call_that_looks_for_its_node_waits_for_room_as_long_as_any_other(blocking: bool) -> None:
    """What each of six nodes has a share of is the time to answer, not the time until a connection is free (B2)."""
    nodes = ",".join(f"127.0.0.1:{number}" for number in range(1, 7))
    wire = Wire(address(f"redis+cluster://{nodes}", timeout=1.2, max_connections=1), blocking=blocking)

    async def waiting(_: object) -> float:
        begun = time.monotonic()
        with pytest.raises(DecisionHistoryStorageLocked):
            await wire.run(LAYOUT_SEEN, [b"minutebook:{x}m"], [1, 0])
        return time.monotonic() - begun

    lent = wire._links.lend(wire._address.nodes[0], waiting, time.monotonic() + 1)
    assert run(lent, blocking=blocking) >= 1.2
