"""Figures 8, 10 and 11: bytes on the disk, bytes in memory, and the time to import."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tracemalloc
from typing import TYPE_CHECKING, Any

from bench import ours, peers
from bench.limits import Raw
from bench.measure import drive, written_bytes
from bench.table import Row
from bench.workload import compact, exchange, rows
from minutebook.conversation import Conversation
from minutebook.stores.journal import JournalStore
from minutebook.stores.memory import MemoryJournal

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.lab import Lab

NOTE_8 = (
    "1,000 appends of one exchange, one by one, in a new file that is closed at the end, so that the last checkpoint "
    "counts: /proc/self/io, without what the opening writes. Raw checkpoints by SQLite's default. Stored: the files "
    "after closing."
)
NOTE_10 = "what Python allocates for 2,000 exchanges appended one by one, against the bytes of their JSON."
NOTE_11 = "in a new process each, measured inside it; bytecode is compiled before."


def written(lab: Lab) -> list[Row]:
    """Figure 8."""
    count = 300 if lab.quick else 1000
    payload = sum(len(compact(exchange(n))) for n in range(count))
    spent: dict[str, list[float]] = {}
    stored: dict[str, float] = {}
    subjects: dict[str, Callable[[Lab, int], tuple[int, str]]] = {
        "raw": _raw_files,
        "raw, a row per message": _raw_split_files,
        "reserve": _entry_files,
        "Conversation.append": _our_files,
        **{name: _peer_files(name) for name in peers.names()},
    }
    for _ in range(1 if lab.quick else 3):
        for name, work in subjects.items():
            cost, path = work(lab, count)
            spent.setdefault(name, []).append(cost / count)
            stored[name] = _size(path) / payload
    base = spent["raw"]
    shown = ", ".join(f"{name} {_median_ratio(spent[name], base):.1f}" for name in peers.names())
    sizes = ", ".join(f"{name} {stored[name]:.2f}" for name in ("raw", *peers.names()))
    lines = []
    for name in ("raw, a row per message", "reserve", "Conversation.append"):
        bound = None if name.startswith("raw") else 1.5
        kilobytes = statistics.median(spent[name]) / 1000
        what = f"written per exchange, {name} ({kilobytes:.1f} KB; raw {statistics.median(base) / 1000:.1f})"
        lines.append(
            Row(
                figure="8",
                what=what,
                median=_median_ratio(spent[name], base),
                least=min(spent[name]) / min(base),
                fast=bound,
                peer=shown if bound else "",
                note=NOTE_8,
            )
        )
    lines += [
        Row(
            figure="8",
            what=f"stored / payload after {count:,}, {name}",
            median=stored[name],
            fast=1.5,
            peer=sizes,
            note=NOTE_8,
        )
        for name in ("reserve", "Conversation.append")
    ]
    return lines


def _median_ratio(own: list[float], base: list[float]) -> float:
    return statistics.median(own) / statistics.median(base)


def _size(path: str) -> int:
    return sum(os.path.getsize(path + end) for end in ("", "-wal", "-journal") if os.path.exists(path + end))


def _raw_files(lab: Lab, count: int) -> tuple[int, str]:
    return _raw_written(lab, [[compact(exchange(n))] for n in range(count)])


def _raw_split_files(lab: Lab, count: int) -> tuple[int, str]:
    return _raw_written(lab, [rows(n) for n in range(count)])


def _raw_written(lab: Lab, transactions: list[list[bytes]]) -> tuple[int, str]:
    path = lab.path("raw")
    raw = Raw(path)
    before = written_bytes()
    for payloads in transactions:
        raw.append(*payloads)
    raw.close()
    return written_bytes() - before, path


def _our_files(lab: Lab, count: int) -> tuple[int, str]:
    path = lab.path("ours")
    store = ours.store_at(path, blocking=True)
    talk = ours.conversation(store, "talk")
    before = written_bytes()
    for number in range(count):
        drive(talk.append(exchange(number)))
    drive(store.close())
    return written_bytes() - before, path


def _entry_files(lab: Lab, count: int) -> tuple[int, str]:
    path = lab.path("ours")
    store = ours.store_at(path, blocking=True)
    before = written_bytes()
    for number in range(count):
        drive(ours.reserve_entry(store, store.key("entries"), compact(exchange(number))))
    drive(store.close())
    return written_bytes() - before, path


def _peer_files(name: str) -> Callable[[Lab, int], tuple[int, str]]:
    def work(lab: Lab, count: int) -> tuple[int, str]:
        path = lab.path(name)
        session = peers.session(name, path)

        async def fill() -> None:
            for number in range(count):
                await session.add_items(exchange(number))
            await peers.close(session)

        before = written_bytes()
        lab.run(fill())
        return written_bytes() - before, path

    return work


def memory(lab: Lab) -> list[Row]:
    """Figure 10."""
    count = 500 if lab.quick else 2000
    payload = sum(len(row) for n in range(count) for row in rows(n))

    def store() -> Any:
        return JournalStore(MemoryJournal(), namespace="bench")

    def fill(kept: Any) -> None:
        talk = Conversation(kept, "talk", format="openai-chat")
        for number in range(count):
            drive(talk.append(exchange(number)))

    drive(Conversation(store(), "warm", format="openai-chat").append(exchange(0)))
    ratio = _allocated(store, fill) / payload
    plain = _allocated(list, lambda kept: kept.extend(m for n in range(count) for m in exchange(n))) / payload
    shown = f"a list of the same dicts {plain:.2f}"
    return [
        Row(
            figure="10", what="RAM store, bytes per message / payload", median=ratio, fast=1.3, peer=shown, note=NOTE_10
        )
    ]


def _allocated(make: Callable[[], Any], fill: Callable[[Any], None]) -> int:
    """Return how many bytes stay allocated for what `make` made, once it is filled."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    kept = make()
    fill(kept)
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del kept
    return after - before


BASE = "import asyncio, sqlite3, json"
IMPORTS = {
    "minutebook": "import minutebook",
    "minutebook with its SQLite store": BASE
    + "; import minutebook.conversation, minutebook.stores.journal, minutebook.stores.sqlite",
}


def imports(lab: Lab) -> list[Row]:
    """Figure 11."""
    programs = {"base": BASE, **IMPORTS} | ({"openai-agents": "import agents"} if peers.INSTALLED else {})
    taken: dict[str, list[float]] = {}
    for nth in range(-1, 7 if lab.quick else 15):
        for name, program in programs.items():
            if name == "openai-agents" and nth >= 3:
                continue
            seconds = _import_seconds(lab, program)
            if nth >= 0:
                taken.setdefault(name, []).append(seconds)
    base = taken["base"]
    shown = f"openai-agents {_median_ratio(taken['openai-agents'], base):.0f}" if peers.INSTALLED else ""
    return [
        Row(
            figure="11",
            what=f"import {name} (base {min(base) * 1000:.0f} ms)",
            median=_median_ratio(taken[name], base),
            least=min(taken[name]) / min(base),
            fast=1.5,
            peer=shown,
            note=NOTE_11,
        )
        for name in IMPORTS
    ]


def _import_seconds(lab: Lab, program: str) -> float:
    timed = f"import time; begin = time.perf_counter()\n{program}\nprint(time.perf_counter() - begin)"
    # The first round leaves the bytecode there, whatever the caller's environment says of it.
    given = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment = given | {"PYTHONPYCACHEPREFIX": os.path.join(lab.directory, "bytecode")}
    command = [sys.executable, "-c", timed]
    return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
