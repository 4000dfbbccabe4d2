"""
Runs of a child that end badly: killed at an exact system call or at a random moment, or with a call that fails.

A kill leaves everything that was written, so a store must hold each acknowledged row and may hold one more: the commit
whose caller never heard of it. That is why a check demands "acknowledged or one more" and never equality, and why a
run in which nothing had been acknowledged proves nothing.

Calls are counted for each thread by itself, from its start, and `paths` narrows the count to calls on these files and
directories. Without it the n-th `openat` is one of the interpreter's own. A call is killed or failed before it is
carried out: a failed write wrote nothing, a failed sync synced nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol, cast

from tests.faults.trace import child_environment, read_acks, run_group, scratch_parent

SYNCS = ("fdatasync", "fsync")
ERRORS = ("EIO", "ENOSPC", "EDQUOT", "EINTR")
FAILING_CALLS = ("openat", "write", "pwrite64", "ftruncate", *SYNCS)

_STRACE = ("strace", "-f", "-qq", "-a1", "-s0", "-e", "signal=none")

# The filter stops the child at the traced calls alone, but strace 6.1 delivers no injected signal under it: the child
# runs to its end as if nothing had been asked. So kills go without, and `struck` says whether a fault was delivered.
_FAST = ("--seccomp-bpf",)

_ENTERED = re.compile(r"(\d+) +(\w+)\(")


@dataclass(frozen=True)
class End:
    """How a child ended: `struck` where the fault was delivered, `status` as of subprocess (-9 when killed)."""

    struck: bool
    status: int
    acknowledged: tuple[str, ...]
    stderr: str


def database_files(database: Path) -> tuple[Path, ...]:
    """Return the paths that SQLite opens for `database`, with the directory it syncs."""
    suffixes = ("", "-wal", "-journal", "-shm")
    return (database.parent, *(database.with_name(database.name + suffix) for suffix in suffixes))


def fault_points(
    command: Sequence[str],
    calls: Iterable[str],
    *,
    env: Mapping[str, str] | None = None,
    paths: Iterable[Path] = (),
    timeout_seconds: float = 60,
) -> list[tuple[str, int]]:
    """
    Run `command` without a fault and return (call, n) for each n-th call of `calls` that one of its threads makes.

    Raises:
        RuntimeError: the child failed without any fault.
    """
    end, trace = _run(command, calls, _FAST, env, paths, timeout_seconds)
    if end.status != 0:
        raise RuntimeError(f"the child fails by itself, exit status {end.status}: {end.stderr[-2000:]}")
    by_thread = Counter((match[2], match[1]) for match in map(_ENTERED.match, trace.splitlines()) if match)
    most = {call: max(n for (name, _), n in by_thread.items() if name == call) for call, _ in by_thread}
    return [(call, n) for call in sorted(most) for n in range(1, most[call] + 1)]


def kill_at(
    command: Sequence[str],
    n: int,
    *,
    call: str = "fdatasync",
    env: Mapping[str, str] | None = None,
    paths: Iterable[Path] = (),
    timeout_seconds: float = 60,
) -> End:
    """Run `command` and kill it with SIGKILL as it enters its n-th `call`."""
    fault = ("-e", f"inject={call}:signal=KILL:when={n}")
    return _run(command, (call,), fault, env, paths, timeout_seconds)[0]


def inject_error(
    command: Sequence[str],
    call: str,
    error: str,
    n: int,
    *,
    persistent: bool = False,
    env: Mapping[str, str] | None = None,
    paths: Iterable[Path] = (),
    timeout_seconds: float = 60,
) -> End:
    """Run `command` with its n-th `call` failing by `error` (such as "EIO"), and every later one if `persistent`."""
    fault = (*_FAST, "-e", f"inject={call}:error={error}:when={n}{'+' if persistent else ''}")
    return _run(command, (call,), fault, env, paths, timeout_seconds)[0]


def kill_after(
    command: Sequence[str],
    delay_seconds: float,
    *,
    acks: int = 1,
    env: Mapping[str, str] | None = None,
    timeout_seconds: float = 600,
) -> End:
    """
    Run `command` without strace and kill it `delay_seconds` after its first `acks` acknowledgements.

    Counting from an acknowledgement instead of from the start keeps the kills out of the interpreter's start-up.
    """
    with tempfile.TemporaryDirectory(dir=scratch_parent()) as scratch, Path(scratch, "stderr").open("w+") as stderr:
        ack_file = Path(scratch, "acks")
        environment = child_environment(ack_file, env)
        child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=stderr)
        status = _killed(child, delay_seconds, ack_file, acks, timeout_seconds)
        stderr.seek(0)
        return End(status == -9, status, read_acks(ack_file), stderr.read())


class Child(Protocol):
    """A process under way, as `subprocess.Popen` is one."""

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


class Nursery:
    """
    A process that has imported everything and forks a child for each order: a kill costs no start of an interpreter.

    It runs `script --nursery`, which answers each line, a list of arguments and the file of acknowledgements, with the
    child's process id, and with its status once that has ended.
    """

    def __init__(self, script: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, script, "--nursery"],
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._orders = cast("IO[bytes]", self._process.stdin)
        self._answers = cast("IO[bytes]", self._process.stdout)

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        self._orders.close()
        self._process.wait()
        self._answers.close()

    def kill_after(self, arguments: Sequence[str], delay_seconds: float, *, acks: int = 1) -> End:
        """Fork a child that runs with `arguments`, and kill it as `kill_after` does."""
        with tempfile.TemporaryDirectory(dir=scratch_parent()) as scratch:
            ack_file = Path(scratch, "acks")
            self._orders.write(json.dumps([*arguments, str(ack_file)]).encode() + b"\n")
            child = _Forked(self._answers)
            status = _killed(child, delay_seconds, ack_file, acks, timeout_seconds=600)
            return End(status == -9, status, read_acks(ack_file), "")


class _Forked:
    """A nursery's child."""

    def __init__(self, answers: IO[bytes]) -> None:
        self._answers = answers
        self._pid = int(answers.readline())
        self._status: int | None = None

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        if self._status is None:
            if not select.select([self._answers], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("fork", timeout or 0)
            self._status = int(self._answers.readline())
        return self._status

    def kill(self) -> None:
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)


def _killed(child: Child, delay_seconds: float, ack_file: Path, acks: int, timeout_seconds: float) -> int:
    """Kill a child so long after its first `acks` acknowledgements; return its status."""
    try:
        await_acks(child, ack_file, acks, timeout_seconds)
        child.wait(delay_seconds)
    except subprocess.TimeoutExpired:
        pass
    finally:
        child.kill()
        child.wait()
    return child.wait()


def await_acks(child: Child, ack_file: Path, acks: int, timeout_seconds: float = 600) -> None:
    """Wait until `child` has acknowledged `acks` times or has ended; one that has used up its time proves nothing."""
    deadline = time.monotonic() + timeout_seconds
    while len(read_acks(ack_file)) < acks and child.poll() is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the child has not acknowledged {acks} times within {timeout_seconds:.0f} s")
        time.sleep(0.0005)


def _run(
    command: Sequence[str],
    calls: Iterable[str],
    fault: Sequence[str],
    env: Mapping[str, str] | None,
    paths: Iterable[Path],
    timeout_seconds: float,
) -> tuple[End, str]:
    """Run `command` under strace with a fault, and return its end and the trace of `calls`."""
    only = [option for path in paths for option in ("-P", str(path))]
    with tempfile.TemporaryDirectory(dir=scratch_parent()) as scratch:
        ack_file, output = Path(scratch, "acks"), Path(scratch, "strace")
        traced = ("-e", "trace=" + ",".join(calls), "-o", str(output))
        status, stderr = run_group(
            [*_STRACE, *traced, *only, *fault, *command], child_environment(ack_file, env), timeout_seconds
        )
        trace = output.read_text()
        struck = status == -9 or "(INJECTED)" in trace
        return End(struck, status, read_acks(ack_file), stderr), trace
