"""
Figures 4, 9 and 13: the window, its bound, and the whole conversation.

Both sides end with Python values, for that is what a caller of an SDK needs.
"""

from __future__ import annotations

import itertools
import json
import tracemalloc
from typing import TYPE_CHECKING, Any

import msgspec

from bench import ours
from bench.limits import decode
from bench.measure import drive, interleave
from bench.table import Row
from minutebook.model.bounds import WindowLimits
from minutebook.policy.window import Scan
from minutebook.ports import Page

if TYPE_CHECKING:
    from bench.lab import Lab
    from bench.measure import Step

NOTE_4 = (
    "64 messages as Python values. Raw: the newest 16 rows of an exchange each, decoded; the other raw line reads 64 "
    "rows. Cold: nothing remembered of the conversation. Warm: right after a turn in the same process."
)
NOTE_9 = (
    "where a window of 256 KiB begins, found from the sizes that the entries carry, against encoding its messages once "
    "more to measure them: by msgspec, the fastest there is, and by json, which is what the peers use. Sums alone: the "
    "bisection over what a process remembers. Warm: also what is new put together to exchanges, and the plan of the "
    "window. Cold: all its entries put together anew."
)
NOTE_13 = (
    "every exchange as Python values, in a stream. `exchanges` groups and pairs them; `entries` yields rows as stored, "
    "decoded by the caller. Raw streams rows of one exchange. Memory is the peak that Python allocates."
)


def window(lab: Lab) -> list[Row]:
    """Figure 4."""
    return [row for length in (lab.lengths[1], lab.longest) for row in _window(lab, length)]


def _window(lab: Lab, length: int) -> list[Row]:
    raw, split = lab.raw_at(length), lab.raw_at(length, split=True)
    store = ours.store_at(lab.ours_at(length), blocking=True)
    talk = ours.conversation(store, "talk")
    sessions = lab.peers_at(length) if length == lab.lengths[1] else {}

    def cold() -> None:
        store.tails.drop(talk.key)
        drive(talk.window()).messages  # noqa: B018 - decodes

    def warm() -> None:
        drive(talk.window()).messages  # noqa: B018 - decodes

    def peer(session: Any) -> Step:
        async def step() -> None:
            await session.get_items(limit=64)

        return step

    steps: dict[str, Step] = {
        "raw": lambda: raw.tail_values(16),
        "raw, a row per message": lambda: split.tail_values(64),
        "cold": cold,
        **{name: peer(session) for name, session in sessions.items()},
    }
    times = interleave(lab.loop, steps, rounds=lab.rounds, each=20)
    drive(ours.step(talk, lab.number()))
    again = interleave(lab.loop, {"raw": steps["raw"], "warm": warm}, rounds=lab.rounds, each=20)
    drive(store.close())
    raw.close()
    split.close()
    lab.close_peers(sessions)
    shown = ", ".join(f"{name} {times.ratios(name, 'raw')[0]:.1f}" for name in sessions)
    lines = []
    for name, taken in (("raw, a row per message", times), ("cold", times), ("warm", again)):
        median, least = taken.ratios(name, "raw")
        bound = None if name.startswith("raw") else 1.3
        lines.append(
            Row(
                figure="4",
                what=f"window, {name}, N = {length:,}",
                median=median,
                least=least,
                fast=bound,
                peer=shown if bound else "",
                note=NOTE_4,
            )
        )
    return lines


def bound(lab: Lab) -> list[Row]:
    """Figure 9."""
    store = ours.store_at(lab.ours_at(lab.lengths[0]), blocking=True)
    talk = ours.conversation(store, "talk")
    limits = WindowLimits(max_messages=10_000, max_bytes=262_144, low_water=1.0)
    header = drive(store.header(talk.key))
    assert header is not None
    tail = drive(store.journal.newest(talk.key, header.entries + 1, Page(rows=10_000, messages=10_000, size=262_144)))
    messages = drive(talk.window(limits)).messages
    drive(store.close())

    def ours_bound() -> None:
        scan = Scan(header)
        scan.add(tail)
        scan.plan(limits)

    scan = Scan(header)
    scan.add(tail)
    settled = scan.settle(header)
    assert settled is not None
    live = [entry for entry in tail if entry.seq >= settled.below]

    def next_bound() -> None:
        scan = Scan(header)
        scan.add(live)
        scan.join(settled)
        scan.settle(header)
        scan.plan(limits)

    steps: dict[str, Step] = {
        "cold": ours_bound,
        "warm": next_bound,
        "sums alone": lambda: settled.first_fitting(10_000, 262_144, 0),
        "msgspec": lambda: msgspec.json.encode(messages),
        "json": lambda: json.dumps(messages, ensure_ascii=False, separators=(",", ":")).encode(),
    }
    times = interleave(lab.loop, steps, rounds=lab.rounds, each=20)
    lines = []
    for own, name in itertools.product(("sums alone", "warm", "cold"), ("msgspec", "json")):
        median, least = times.ratios(own, name)
        what = f"bound of {len(messages)} messages, {own}, vs encoding by {name}"
        lines.append(Row(figure="9", what=what, median=median, least=least, fast=0.05, note=NOTE_9))
    return lines


def whole(lab: Lab) -> list[Row]:
    """Figure 13."""
    length = lab.lengths[1]
    raw = lab.raw_at(length)
    store = ours.store_at(lab.ours_at(length), blocking=True)
    talk = ours.conversation(store, "talk")
    sessions = lab.peers_at(length)

    def raw_all() -> None:
        for payload in raw.every():
            decode(payload)

    async def exchanges() -> None:
        async for exchange in talk.exchanges():
            exchange.messages  # noqa: B018 - decodes

    async def entries() -> None:
        async for entry in store.entries(talk.key):
            decode(entry.payload)

    def peer(session: Any) -> Step:
        async def step() -> None:
            await session.get_items()

        return step

    steps: dict[str, Step] = {
        "raw": raw_all,
        "exchanges": lambda: drive(exchanges()),
        "entries": lambda: drive(entries()),
        **{name: peer(session) for name, session in sessions.items()},
    }
    times = interleave(lab.loop, steps, rounds=7, each=1, warm=1)
    peaks = {name: _peak(step) for name, step in steps.items() if name in ("raw", "exchanges", "entries")}
    drive(store.close())
    raw.close()
    lab.close_peers(sessions)
    shown = ", ".join(f"{name} {times.ratios(name, 'raw')[0]:.1f}" for name in sessions)
    lines = []
    for name in ("exchanges", "entries"):
        median, least = times.ratios(name, "raw")
        what = f"whole conversation, N = {length:,}, by {name} (peak {peaks[name]:.1f} MB, raw {peaks['raw']:.1f})"
        lines.append(Row(figure="13", what=what, median=median, least=least, fast=1.3, peer=shown, note=NOTE_13))
    return lines


def _peak(step: Step) -> float:
    """Return the most megabytes that Python allocated at once during a step."""
    tracemalloc.start()
    step()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6
