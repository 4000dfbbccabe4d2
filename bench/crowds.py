"""
Figures 6 and 7: many tasks at once, each with a conversation of its own, in one file or on one server.

The limit is a loop that puts as many rows into each transaction as there are tasks: a group commit without anybody who
waits for it.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench import ours, peers
from bench.host_limits import RawPostgres
from bench.hosts import POSTGRES, store_on
from bench.limits import Raw
from bench.measure import Times
from bench.table import Row
from bench.workload import compact, exchange

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bench.lab import Lab
    from minutebook.stores.journal import JournalStore

NOTE_6 = (
    "exchanges a second, as a share of the raw loop's; more is better. `reserve`: each task writes a whole exchange as "
    "one entry, like the raw loop. `Conversation.append` reads and checks four messages and writes four entries. "
    "On Postgres the raw loop is one prepared statement for all rows of a transaction."
)
NOTE_7 = (
    NOTE_6
    + " p99 / p50 is of one task's wait for its durable append. Locked: errors seen by the tasks of two processes."
)
OURS = ("reserve", "Conversation.append")


@dataclass
class Subjects:
    """What takes turns in a crowd: a raw loop, a store of ours, and sessions of peers, one for each task."""

    group: Callable[[list[tuple[int, bytes]]], object]
    """Writes as many payloads as there are tasks, each into a conversation of its own, as one piece."""
    store: JournalStore
    sessions: dict[str, list[Any]] = field(default_factory=dict)
    alone: Callable[[bytes], object] | None = None
    """Writes one payload, where a loop that writes one by one is measured too."""


async def crowd(works: list[Callable[[], Awaitable[object]]], each: int) -> tuple[float, list[float]]:
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


def crowd_times(lab: Lab, tasks: int, subjects: Subjects) -> tuple[Times, dict[str, float]]:
    """Return seconds per exchange of each subject by round, and each one's median p99 / p50 of waits."""
    payloads = [compact(exchange(n)) for n in range(500)]
    transcripts = [exchange(n) for n in range(500)]
    store = subjects.store
    keys = [store.key(f"entries-{n}") for n in range(tasks)]
    talks = [ours.conversation(store, f"talk-{n}") for n in range(tasks)]
    each = max(4, (192 if lab.quick else 384) // tasks)

    def raw_round() -> float:
        begin = time.perf_counter()
        for _ in range(each):
            subjects.group([(n, payloads[lab.number() % 500]) for n in range(tasks)])
        return (time.perf_counter() - begin) / (each * tasks)

    def alone_round(write: Callable[[bytes], object]) -> float:
        begin = time.perf_counter()
        for n in range(96):
            write(payloads[n])
        return (time.perf_counter() - begin) / 96

    def reserve(key: Any) -> Callable[[], Awaitable[object]]:
        return lambda: ours.reserve_entry(store, key, payloads[lab.number() % 500])

    def append(talk: Any) -> Callable[[], Awaitable[object]]:
        return lambda: talk.append(transcripts[lab.number() % 500])

    def add(session: Any) -> Callable[[], Awaitable[object]]:
        return lambda: session.add_items(transcripts[lab.number() % 500])

    crowds = {
        "reserve": [reserve(key) for key in keys],
        "Conversation.append": [append(talk) for talk in talks],
        **{name: [add(session) for session in many] for name, many in subjects.sessions.items()},
    }
    times = Times()
    waits: dict[str, list[float]] = {}
    for nth in range(-1, lab.rounds if tasks <= 16 else 7):
        found = {"raw": raw_round()}
        if subjects.alone is not None:
            found["alone"] = alone_round(subjects.alone)
        for name, works in crowds.items():
            count = each if name in OURS else max(1, each // 4)
            found[name], waited = lab.run(crowd(works, count))
            waits.setdefault(name, []).append(_spread(waited))
        for name, seconds in found.items() if nth >= 0 else ():
            times.add(name, [seconds])
    return times, {name: statistics.median(spreads) for name, spreads in waits.items()}


def share(times: Times, name: str, limit: str = "raw") -> tuple[float, float]:
    """Return the rate as a share of the limit's: by medians of rounds, and at best."""
    median, least = times.ratios(name, limit)
    return 1 / median, 1 / least


def rates(times: Times, *names: str) -> str:
    """Return how many exchanges a second there were at best."""
    return "; ".join(f"{name} {1 / times.least(name):,.0f}/s" for name in names)


def _crowd_rows(lab: Lab, figure: str, tasks: int, bound: float, kind: str, subjects: Subjects) -> list[Row]:
    times, spreads = crowd_times(lab, tasks, subjects)
    shown = ", ".join(f"{name} {share(times, name)[0]:.2f}" for name in subjects.sessions)
    note = NOTE_6 if figure == "6" else NOTE_7
    lines = []
    for name in OURS:
        median, best = share(times, name)
        what = f"{tasks} tasks, {kind}, {name}, share of raw"
        peer = shown or rates(times, "raw", name)
        lines.append(
            Row(figure=figure, what=what, median=median, least=best, fast=bound, at_least=True, peer=peer, note=note)
        )
    if tasks > 16:
        for name in OURS:
            what = f"{tasks} tasks, {kind}, {name}, p99 / p50"
            lines.append(Row(figure=figure, what=what, median=spreads[name], fast=4, note=note))
    return lines


def _on_file(lab: Lab, figure: str, tasks: int, bound: float) -> list[Row]:
    raw = Raw(lab.path("raw"))
    few = peers.names() if tasks <= 16 else peers.names()[:1]
    sessions = {name: _sessions(lab, name, tasks) for name in few}
    store = ours.store_at(lab.path("ours"), blocking=False)
    lines = _crowd_rows(lab, figure, tasks, bound, "SQLite", Subjects(raw.group, store, sessions))
    lab.run(store.close())
    raw.close()
    for many in sessions.values():
        for session in many:
            lab.run(peers.close(session))
    return lines


def _on_postgres(lab: Lab, figure: str, tasks: int, bound: float) -> list[Row]:
    server = lab.hosts.server(POSTGRES)
    if server is None:
        return []
    raw, store = RawPostgres(server), store_on(POSTGRES, server, blocking=False, namespace=f"crowd-{tasks}")
    lines = _crowd_rows(lab, figure, tasks, bound, POSTGRES, Subjects(raw.group, store))
    lab.run(store.close())
    lab.run(raw.close())
    return lines


def _sessions(lab: Lab, name: str, tasks: int) -> list[Any]:
    path = lab.path(name)
    return [peers.session(name, path, f"talk-{n}") for n in range(tasks)]


def _spread(waits: list[float]) -> float:
    """Return the 99th percentile over the median."""
    ordered = sorted(waits)
    return ordered[int(len(ordered) * 0.99)] / ordered[len(ordered) // 2]


def sixteen(lab: Lab) -> list[Row]:
    """Figure 6."""
    return [*_on_file(lab, "6", 16, 0.6), *_on_postgres(lab, "6", 16, 0.6)]


def many(lab: Lab) -> list[Row]:
    """Figure 7."""
    lines = [*_on_file(lab, "7", 256, 0.7), *_on_postgres(lab, "7", 256, 0.7)]
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
