"""
Figures 6 and 7: many tasks at once, each with a conversation of its own in one file.

The limit is a loop that puts as many rows into each transaction as there are tasks: a group commit without anybody who
waits for it.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from bench import ours, peers
from bench.limits import Raw
from bench.measure import Times
from bench.table import Row
from bench.workload import compact, exchange

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bench.lab import Lab

NOTE_6 = (
    "exchanges a second, as a share of the raw loop's; more is better. `reserve`: each task writes a whole exchange as "
    "one entry, like the raw loop. `Conversation.append` reads and checks four messages and writes four entries."
)
NOTE_7 = (
    NOTE_6
    + " p99 / p50 is of one task's wait for its durable append. Locked: errors seen by the tasks of two processes."
)


async def _crowd(works: list[Callable[[], Awaitable[object]]], each: int) -> tuple[float, list[float]]:
    """Let each work run `each` times in a task of its own; return seconds per exchange and the waits."""
    waits: list[float] = []

    async def task(work: Callable[[], Awaitable[object]]) -> None:
        for _ in range(each):
            begin = time.perf_counter()
            await work()
            waits.append(time.perf_counter() - begin)

    begin = time.perf_counter()
    await asyncio.gather(*(task(work) for work in works))
    return (time.perf_counter() - begin) / (each * len(works)), waits


def _share(times: Times, name: str) -> tuple[float, float]:
    """Return the rate as a share of the raw loop's: by medians of rounds, and at best."""
    median, least = times.ratios(name, "raw")
    return 1 / median, 1 / least


def _crowd_rows(lab: Lab, figure: str, tasks: int, share: float) -> list[Row]:
    payloads = [compact(exchange(n)) for n in range(500)]
    transcripts = [exchange(n) for n in range(500)]
    raw = Raw(lab.path("raw"))
    store = ours.store_at(lab.path("ours"), blocking=False)
    keys = [store.key(f"entries-{n}") for n in range(tasks)]
    talks = [ours.conversation(store, f"talk-{n}") for n in range(tasks)]
    few = peers.names() if tasks <= 16 else peers.names()[:1]
    sessions = {name: _sessions(lab, name, tasks) for name in few}
    each = max(4, (192 if lab.quick else 384) // tasks)

    def raw_round() -> float:
        begin = time.perf_counter()
        for _ in range(each):
            raw.group([(n, payloads[lab.number() % 500]) for n in range(tasks)])
        return (time.perf_counter() - begin) / (each * tasks)

    def reserve(key: Any) -> Callable[[], Awaitable[object]]:
        return lambda: ours.reserve_entry(store, key, payloads[lab.number() % 500])

    def append(talk: Any) -> Callable[[], Awaitable[object]]:
        return lambda: talk.append(transcripts[lab.number() % 500])

    def add(session: Any) -> Callable[[], Awaitable[object]]:
        return lambda: session.add_items(transcripts[lab.number() % 500])

    crowds = {
        "reserve": [reserve(key) for key in keys],
        "Conversation.append": [append(talk) for talk in talks],
        **{name: [add(session) for session in many] for name, many in sessions.items()},
    }
    times = Times()
    waits: dict[str, list[tuple[float, float]]] = {}
    for nth in range(-1, lab.rounds if tasks <= 16 else 7):
        for name in ("raw", *crowds):
            if name == "raw":
                seconds = raw_round()
            else:
                count = each if name in ("reserve", "Conversation.append") else max(1, each // 4)
                seconds, waited = lab.run(_crowd(crowds[name], count))
                waits.setdefault(name, []).append(_percentiles(waited))
            if nth >= 0:
                times.add(name, [seconds])
    lab.run(store.close())
    raw.close()
    for many in sessions.values():
        for session in many:
            lab.run(peers.close(session))
    shown = ", ".join(f"{name} {_share(times, name)[0]:.2f}" for name in sessions)
    note = NOTE_6 if figure == "6" else NOTE_7
    lines = []
    for name in ("reserve", "Conversation.append"):
        median, best = _share(times, name)
        lines.append(
            Row(
                figure=figure,
                what=f"{tasks} tasks, {name}, share of raw",
                median=median,
                least=best,
                fast=share,
                at_least=True,
                peer=shown,
                note=note,
            )
        )
    if tasks > 16:
        for name in ("reserve", "Conversation.append"):
            spread = statistics.median(high / low for low, high in waits[name])
            lines.append(Row(figure=figure, what=f"{tasks} tasks, {name}, p99 / p50", median=spread, fast=4, note=note))
    return lines


def _sessions(lab: Lab, name: str, tasks: int) -> list[Any]:
    path = lab.path(name)
    return [peers.session(name, path, f"talk-{n}") for n in range(tasks)]


def _percentiles(waits: list[float]) -> tuple[float, float]:
    ordered = sorted(waits)
    return ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]


def sixteen(lab: Lab) -> list[Row]:
    """Figure 6."""
    return _crowd_rows(lab, "6", 16, 0.6)


def many(lab: Lab) -> list[Row]:
    """Figure 7."""
    lines = _crowd_rows(lab, "7", 256, 0.7)
    path = lab.path("shared")
    command = [sys.executable, "-m", "bench.crowds", path, "2" if lab.quick else "6"]
    children = [subprocess.Popen([*command, str(n)], stdout=subprocess.PIPE, text=True) for n in range(2)]
    answers = [child.communicate()[0] for child in children]
    locked = sum(int(answer) if answer.strip().isdigit() else 256 for answer in answers)
    lines.append(Row(figure="7", what="2 processes x 128 tasks, errors seen", median=locked, fast=0, note=NOTE_7))
    return lines


async def _contend(path: str, each: int, name: str) -> int:
    """Append from 128 tasks beside another process; return how many calls failed."""
    store = ours.store_at(path, blocking=False)
    failed = 0

    async def task(nth: int) -> None:
        nonlocal failed
        talk = ours.conversation(store, f"process-{name}-{nth}")
        for number in range(each):
            try:
                await talk.append(exchange(number))
            except Exception as error:
                failed += 1
                print(repr(error), file=sys.stderr)

    await asyncio.gather(*(task(nth) for nth in range(128)))
    await store.close()
    return failed


if __name__ == "__main__":
    print(asyncio.run(_contend(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
