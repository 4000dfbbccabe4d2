"""
How time is taken: small pieces of work in many interleaved rounds, compared by the round and by the minimum.

A disk stalls and a machine has other guests, so a subject is never measured in one go. The ratio of a figure is the
median over rounds of (median of the subject's round / median of the limit's round), beside the ratio of the minima.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
Step = Callable[[], Any]
"""One piece of work; `None` or a value means it is done, a coroutine is awaited in the bench's loop."""


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for nothing to its end, through bare pauses: how blocking callers use the library."""
    try:
        while work.send(None) is None:
            pass
    except StopIteration as stop:
        return stop.value
    work.close()
    raise RuntimeError("the coroutine waits for a loop; a blocking journal was expected")


class Times:
    """The seconds that each subject of one figure took, by round."""

    def __init__(self) -> None:
        self.rounds: dict[str, list[list[float]]] = {}

    def add(self, name: str, seconds: list[float]) -> None:
        """Note one round of a subject."""
        self.rounds.setdefault(name, []).append(seconds)

    def least(self, name: str) -> float:
        """Return the shortest time of all."""
        return min(map(min, self.rounds[name]))

    def middle(self, name: str) -> float:
        """Return the median over all rounds."""
        return statistics.median(statistics.median(one) for one in self.rounds[name])

    def ratios(self, name: str, limit: str) -> tuple[float, float]:
        """Return the median ratio of a subject to the limit, and the ratio of their minima."""
        pairs = zip(self.rounds[name], self.rounds[limit], strict=True)
        middle = statistics.median(statistics.median(own) / statistics.median(raw) for own, raw in pairs)
        return middle, self.least(name) / self.least(limit)

    def beyond(self, name: str, limit: str) -> tuple[float, float]:
        """Return the median of the seconds that a subject takes longer than the limit, and the same of their minima."""
        pairs = zip(self.rounds[name], self.rounds[limit], strict=True)
        middle = statistics.median(statistics.median(own) - statistics.median(raw) for own, raw in pairs)
        return middle, self.least(name) - self.least(limit)


async def _timed(step: Callable[[], Awaitable[object]], count: int) -> list[float]:
    seconds: list[float] = []
    for _ in range(count):
        begin = time.perf_counter()
        await step()
        seconds.append(time.perf_counter() - begin)
    return seconds


def _timed_here(step: Step, count: int) -> list[float]:
    seconds: list[float] = []
    for _ in range(count):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    return seconds


def interleave(
    loop: asyncio.AbstractEventLoop,
    subjects: dict[str, Step],
    *,
    rounds: int,
    each: int,
    warm: int = 3,
    before: dict[str, Step] | None = None,
) -> Times:
    """
    Take turns: in each round `each` pieces of every subject's work, in an order that moves on by one.

    What `before` has for a subject is done ahead of each of its rounds, and is not timed.
    """
    times = Times()
    before = before or {}
    names = list(subjects)
    for nth in range(-1, rounds):
        gc.collect()
        for name in names[nth % len(names) :] + names[: nth % len(names)]:
            step, count = subjects[name], each if nth >= 0 else warm
            if name in before:
                before[name]()
            if asyncio.iscoroutinefunction(step):
                seconds = loop.run_until_complete(_timed(step, count))
            else:
                seconds = _timed_here(step, count)
            if nth >= 0:
                times.add(name, seconds)
    return times


def exponent(points: dict[int, float]) -> float:
    """Return the slope of log time over log size by least squares: 0 is flat, 1 is linear."""
    xs = [math.log(size) for size in points]
    ys = [math.log(seconds) for seconds in points.values()]
    return statistics.linear_regression(xs, ys).slope


def sync_seconds(directory: str, count: int = 200) -> float:
    """Return the median time to append 3 KB to a file and sync its data."""
    path = os.path.join(directory, "sync-probe")
    block = os.urandom(3072)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def step() -> None:
        os.write(descriptor, block)
        os.fdatasync(descriptor)

    try:
        return statistics.median(_timed_here(step, count))
    finally:
        os.close(descriptor)
        os.unlink(path)


def written_bytes() -> int:
    """Return how many bytes this process has caused to be sent to storage."""
    with open("/proc/self/io") as counters:
        return next(int(line.split()[1]) for line in counters if line.startswith("write_bytes"))


def tree_seconds(pid: int) -> float:
    """Return the processor time that a process and those below it, which still run, have used so far."""
    below: dict[int, list[tuple[int, float]]] = {}
    ticks = os.sysconf("SC_CLK_TCK")
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
            spent = (int(fields[11]) + int(fields[12])) / ticks
            below.setdefault(int(fields[1]), []).append((int(name), spent))
            if int(name) == pid:
                below[-1] = [(pid, spent)]
    total, found = 0.0, below[-1]
    while found:
        child, spent = found.pop()
        total += spent
        found += below.get(child, [])
    return total
