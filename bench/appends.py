"""
Figures 1, 2, 3 and 5: what one durable append and one whole step cost, and how that grows.

Figure 1 and 2 compare like with like: the raw row holds a whole exchange, so ours is one entry with the same bytes,
given to the journal. The four-message exchange through `Conversation.append`, with its reading and checking of JSON
and four rows, stands beside it, and so does a raw transaction of four rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench import ours
from bench.hosts import ALWAYS, POSTGRES, store_on
from bench.measure import Times, drive, exponent, interleave
from bench.table import Row
from bench.workload import body, compact, exchange, rows, text
from minutebook.stores.journal import JournalStore
from minutebook.stores.memory import MemoryJournal

if TYPE_CHECKING:
    from bench.lab import Lab
    from bench.measure import Step

STEADY = 200
"""Commits before the clock starts: by then a log was copied back once and is written over, which syncs far faster than
a file that grows."""

NOTE_1 = (
    "raw is one row with the whole exchange (3 KB); `reserve` and `commit` write the same bytes as one entry; "
    "`Conversation.append` takes four messages as Python values and writes four entries. Peers add four items."
)
NOTE_3 = "slope of log(minimum) over log(exchanges); 0 is flat, 1 is linear. Windows are cold: nothing is remembered."
NOTE_5 = (
    "input 200 B, window of 64 messages as bytes, answer 600 B. Raw: insert, read the newest 64 rows and join them, "
    "insert. Peers: add_items, get_items(limit=64), add_items; they give Python values."
)


def _peer_append(lab: Lab, session: Any) -> Step:
    async def step() -> None:
        await session.add_items(exchange(lab.number()))

    return step


def _shown_peers(times: Times, limit: str, names: list[str]) -> str:
    return ", ".join(f"{name} {times.ratios(name, limit)[0]:.1f}" for name in names)


def append_steps(lab: Lab, store: JournalStore, *, blocking: bool) -> tuple[dict[str, Step], Step]:
    """Return our ways to append, coroutine functions unless `blocking`, and what ends them."""
    talk, entries, held = ours.conversation(store, "talk"), store.key("entries"), store.key("held")
    drafted = [compact(exchange(n)) for n in range(500)]
    epoch = lab.run(ours.hold(store, held))

    async def reserve() -> None:
        await ours.reserve_entry(store, entries, drafted[lab.number() % 500])

    async def commit() -> None:
        await ours.commit_entry(store, held, drafted[lab.number() % 500], epoch)

    transcripts = [exchange(lab.number()) for _ in range(500)]

    async def append() -> None:
        await talk.append(transcripts[lab.number() % 500])

    steps: dict[str, Step] = {"reserve": reserve, "commit": commit, "Conversation.append": append}
    if blocking:
        steps = {name: (lambda work=work: drive(work())) for name, work in steps.items()}

    def end() -> None:
        lab.run(store.journal.recover(held, epoch))
        lab.run(store.close())

    return steps, end


def _append_figure(lab: Lab, figure: str, length: int, *, blocking: bool, slow: float) -> list[Row]:
    raw, split = lab.raw_at(length), lab.raw_at(length, split=True)
    whole = [compact(exchange(n)) for n in range(500)]
    parts = [rows(n) for n in range(500)]
    store = ours.store_at(lab.entries_at(length), blocking=blocking)
    mine, end = append_steps(lab, store, blocking=blocking)
    sessions = lab.peers_at(length)
    steps: dict[str, Step] = {
        "raw": lambda: raw.append(whole[lab.number() % 500]),
        "raw, a row per message": lambda: split.append(*parts[lab.number() % 500]),
        **mine,
        **{name: _peer_append(lab, session) for name, session in sessions.items()},
    }
    times = interleave(lab.loop, steps, rounds=lab.rounds, each=12, warm=STEADY)
    end()
    raw.close()
    split.close()
    lab.close_peers(sessions)
    shown = _shown_peers(times, "raw", list(sessions))
    at = f"N = {length:,}"
    lines = []
    for name in ("raw, a row per message", *mine):
        median, least = times.ratios(name, "raw")
        bound = None if name.startswith("raw") else 1.6
        what = f"{name}, {'sync' if blocking else 'async'}, {at}"
        micro = f"raw minimum {times.least('raw') * 1e6:.0f} us"
        lines.append(
            Row(
                figure=figure,
                what=what,
                median=median,
                least=least,
                fast=bound,
                slow=bound and slow,
                peer=shown if bound else micro,
                note=NOTE_1,
            )
        )
    return lines


def durable_append(lab: Lab) -> list[Row]:
    """Figure 1."""
    return [row for length in lab.lengths for row in _append_figure(lab, "1", length, blocking=True, slow=1.15)]


def async_append(lab: Lab) -> list[Row]:
    """Figure 2."""
    return _append_figure(lab, "2", lab.lengths[0], blocking=False, slow=1.2)


def growth(lab: Lab) -> list[Row]:
    """Figure 3, on each store; a server's conversations are filled by bulk appends too, in one namespace."""
    lengths = [100, 1000, 3000] if lab.quick else [100, 1000, 10_000, 100_000]
    lines = _growth("SQLite", lab, {length: ours.store_at(lab.ours_at(length), blocking=True) for length in lengths})
    lines += _growth("RAM", lab, _filled(JournalStore(MemoryJournal(), namespace="bench"), lengths))
    for kind in (POSTGRES, ALWAYS):
        server = lab.hosts.server(kind)
        if server is not None:
            lines += _growth(kind, lab, _filled(store_on(kind, server, blocking=True, namespace="growth"), lengths))
    return lines


def _filled(store: JournalStore, lengths: list[int]) -> dict[int, JournalStore]:
    for length in lengths:
        ours.fill(store, f"talk-{length}", length)
    return dict.fromkeys(lengths, store)


def _growth(kind: str, lab: Lab, stores: dict[int, JournalStore]) -> list[Row]:
    steps: dict[str, Step] = {}
    for length, store in stores.items():
        talk = ours.conversation(store, "talk" if kind == "SQLite" else f"talk-{length}")

        def append(talk: Any = talk) -> None:
            drive(talk.append(exchange(lab.number())))

        def window(talk: Any = talk, store: Any = store) -> None:
            store.tails.drop(talk.key)
            drive(talk.window())

        def step(talk: Any = talk) -> None:
            drive(ours.step(talk, lab.number()))

        steps |= {f"append {length}": append, f"window {length}": window, f"step {length}": step}
    times = interleave(lab.loop, steps, rounds=lab.rounds, each=12)
    for store in set(stores.values()):
        drive(store.close())
    lines = []
    for what in ("append", "window", "step"):
        least = exponent({length: times.least(f"{what} {length}") for length in stores})
        median = exponent({length: times.middle(f"{what} {length}") for length in stores})
        shown = f"growth of {what}, {kind}, {min(stores)} to {max(stores):,} exchanges"
        lines.append(Row(figure="3", what=shown, median=median, least=least, fast=0.05, note=NOTE_3))
    return lines


def whole_step(lab: Lab) -> list[Row]:
    """Figure 5."""
    length = lab.lengths[1]
    raw = lab.raw_at(length, split=True)
    store = ours.store_at(lab.ours_at(length), blocking=True)
    talk = ours.conversation(store, "talk")
    sessions = lab.peers_at(length)

    def raw_step() -> None:
        number = lab.number()
        raw.append(compact({"role": "user", "content": text("user", number, 200)}))
        b"[" + b",".join(raw.tail(64)) + b"]"
        raw.append(body(number))

    def peer_step(session: Any) -> Step:
        async def step() -> None:
            number = lab.number()
            await session.add_items([{"role": "user", "content": text("user", number, 200)}])
            await session.get_items(limit=64)
            await session.add_items([{"role": "assistant", "content": text("answer", number, 600)}])

        return step

    steps: dict[str, Step] = {"raw": raw_step, "ours": lambda: drive(ours.step(talk, lab.number()))}
    steps |= {name: peer_step(session) for name, session in sessions.items()}
    times = interleave(lab.loop, steps, rounds=lab.rounds, each=12, warm=STEADY)
    drive(store.close())
    raw.close()
    lab.close_peers(sessions)
    shown = _shown_peers(times, "raw", list(sessions))
    median, least = times.ratios("ours", "raw")
    lines = [
        Row(
            figure="5",
            what=f"turn, N = {length:,}, vs raw insert, tail, insert",
            median=median,
            least=least,
            fast=1.5,
            slow=1.15,
            peer=shown,
            note=NOTE_5,
        )
    ]
    for name in sessions:
        median, least = times.ratios("ours", name)
        bound = 0.5 if name == "SQLiteSession" else None
        lines.append(Row(figure="5", what=f"turn, vs {name}", median=median, least=least, fast=bound, note=NOTE_5))
    return lines
