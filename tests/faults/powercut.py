"""
Every disk that a power cut could leave behind, rebuilt from a trace and given to a check.

A disk keeps what was synced. Of the rest it may keep all, nothing, some of the writes, or some of the 512-byte sectors
of a write. The same holds for names: an entry that was created, renamed or removed is certain only once its directory
was synced, whatever was done to the file itself. That is stricter than most file systems are and exactly what POSIX
promises, so a store that passes here does not lean on the habits of one file system.

`rebuild` walks through the events of a trace, stops the power after each, and builds a number of such images. First
come the four corners of every cut (contents and entries, each kept or dropped), then random ones where there is
something left to choose. Images that were already checked against the same acknowledgements are not counted twice.
Each state is printed with what `replay` needs to build it again.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from random import Random

from tests.faults.trace import (
    Acked,
    Contents,
    DirectorySynced,
    Event,
    Made,
    Renamed,
    Resized,
    Synced,
    Trace,
    Unlinked,
    Wrote,
    apply_size,
    apply_write,
    scratch_parent,
)

SECTOR_BYTES = 512
KEPT_FAILURES = 5
ROUNDS = 6  # of random states: cuts that turn out to have fewer images than was thought leave their share to the next


class Outcome(StrEnum):
    """What a check found in an image."""

    SOUND = "sound"
    LOST = "lost"  # something acknowledged is missing
    CORRUPT = "corrupt"  # the store cannot be read, or holds what was never written
    OTHER = "other"  # everything else that must not be, an exception of the check among it


@dataclass(frozen=True, slots=True)
class Verdict:
    """An outcome with the numbers of the case."""

    outcome: Outcome
    note: str = ""


SOUND = Verdict(Outcome.SOUND)

# Gets the directory that the disk holds after the cut, which it may change, and what was acknowledged before it.
Check = Callable[[Path, tuple[str, ...]], Verdict]


class Keep(StrEnum):
    """What the disk keeps of the things that were not synced."""

    NOTHING = "nothing"
    ALL = "all"
    SOME = "some"  # each write or entry for itself
    TORN = "torn"  # each sector of each write for itself (contents only)

    def __repr__(self) -> str:  # so that a printed state can be pasted into `replay`
        return f"Keep.{self.name}"


@dataclass(frozen=True, slots=True)
class State:
    """One image: the power fails after `cut` events. `seed` and `salt` choose what SOME and TORN keep."""

    cut: int
    contents: Keep
    entries: Keep
    seed: int = 0
    salt: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """A state whose check did not find it sound."""

    state: State
    verdict: Verdict
    last_event: str
    acknowledged: int

    def __str__(self) -> str:
        verdict = f"{self.verdict.outcome}: {self.verdict.note}"
        return f"{verdict} ({self.acknowledged} acknowledged, after {self.last_event}) {self.state}"


@dataclass
class Report:
    """How many different states were checked, what was found, and the first failures."""

    seed: int
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    repeated: int = 0
    acknowledged: int = 0  # states in which something had been acknowledged: the others prove little
    failures: list[Failure] = field(default_factory=list)

    @property
    def states(self) -> int:
        return self.outcomes.total()

    @property
    def lost(self) -> int:
        return self.outcomes[Outcome.LOST]

    @property
    def corrupt(self) -> int:
        return self.outcomes[Outcome.CORRUPT]

    @property
    def other(self) -> int:
        return self.outcomes[Outcome.OTHER]

    @property
    def clean(self) -> bool:
        return self.states > 0 and self.outcomes[Outcome.SOUND] == self.states

    def __str__(self) -> str:
        counts = f"{self.states:,} states, {self.lost:,} lost, {self.corrupt:,} corrupt, {self.other:,} other"
        head = f"{counts} (seed {self.seed}; {self.acknowledged:,} after an acknowledgement; {self.repeated:,} repeats)"
        return "\n".join([head, *map(str, self.failures)])


def rebuild(
    trace: Trace, root: Path | None, check: Check, *, budget: int = 2_000, seed: int = 0, stop_after: int | None = None
) -> Report:
    """
    Check up to `budget` different images of what a power cut during `trace` could leave, and return the counts.

    Images are laid out one after the other in a fresh directory under `root`, or in memory where `root` is None. The
    same trace, budget and seed give the same states. `stop_after` ends the run after so many failures.
    """
    report = Report(seed)
    with tempfile.TemporaryDirectory(dir=root or scratch_parent()) as scratch:
        bench = _Bench(trace, Path(scratch, "disk"), check, report, stop_after)
        choices = bench.run(_corners(len(trace.events), budget, seed))
        for turn in range(ROUNDS):
            bench.run(_random_states(choices, budget - report.states, seed, turn))
    return report


def replay(trace: Trace, root: Path, check: Check, state: State) -> Verdict:
    """Build the one image that a failure names, in a directory `disk` under `root` that stays, and check it."""
    report = Report(state.seed)
    _Bench(trace, root / "disk", check, report, None).run({state.cut: [state]})
    return report.failures[0].verdict if report.failures else SOUND


Plan = dict[int, Iterable[State]]


def _corners(events: int, budget: int, seed: int) -> Plan:
    """Return the four images of each cut that need no choice, or a sample of them where the budget is smaller."""
    sides = (Keep.NOTHING, Keep.ALL)
    states = [State(cut, contents, entries) for cut in range(events + 1) for contents in sides for entries in sides]
    if len(states) > budget:
        states = Random(seed).sample(states, budget)
    plan: dict[int, list[State]] = {}
    for state in states:
        plan.setdefault(state.cut, []).append(state)
    return dict(plan)


def _random_states(choices: list[int], budget: int, seed: int, turn: int) -> Plan:
    """Spread `budget` over the cuts by how many images each can have, which the corners have had four of."""
    weights = [2 ** min(parts, 6) - 1 for parts in choices]
    if budget <= 0 or not any(weights):
        return {}
    wanted = Counter(Random(f"{seed}:{turn}").choices(range(len(weights)), weights, k=budget))
    return {cut: _Wanted(cut, count, seed, turn) for cut, count in wanted.items()}


class _Wanted:
    """Up to `count` new random states of one cut, in at most twice as many attempts."""

    def __init__(self, cut: int, count: int, seed: int, turn: int) -> None:
        self.cut, self.count, self.seed, self.turn = cut, count, seed, turn

    def __iter__(self) -> Iterator[State]:
        random = Random(f"{self.seed}:{self.cut}:{self.turn}")
        for salt in range(self.turn, 2 * self.count * ROUNDS, ROUNDS):
            contents = random.choice((Keep.SOME, Keep.TORN, Keep.TORN, Keep.ALL))
            entries = random.choice((Keep.NOTHING, Keep.ALL, Keep.SOME))
            was_new = yield State(self.cut, contents, entries, self.seed, salt)
            self.count -= bool(was_new)
            if self.count <= 0:
                return


class _Bench:
    """Lays images out and has them checked."""

    def __init__(self, trace: Trace, directory: Path, check: Check, report: Report, stop_after: int | None) -> None:
        self.trace, self.directory, self.check, self.report = trace, directory, check, report
        self.stop_after = stop_after
        self.seen: set[int] = set()

    def run(self, plan: Plan) -> list[int]:
        """Check the planned states, cut by cut, and return how many choices each cut leaves open."""
        disk = _Disk(self.trace)
        choices: list[int] = []
        for cut in range(len(self.trace.events) + 1):
            if cut:
                disk.take(cut - 1, self.trace.events[cut - 1])
            choices.append(disk.open_choices())
            self._check_cut(disk, iter(plan.get(cut, ())))
        return choices

    def _check_cut(self, disk: _Disk, states: Iterator[State]) -> None:
        acknowledged = tuple(disk.acknowledged)
        state = next(states, None)
        while state is not None and not self._stopped():
            was_new = self._check_state(disk.image(state), state, acknowledged)
            state = _advance(states, was_new)

    def _stopped(self) -> bool:
        failed = self.report.states - self.report.outcomes[Outcome.SOUND]
        return self.stop_after is not None and failed >= self.stop_after

    def _check_state(self, image: Contents, state: State, acknowledged: tuple[str, ...]) -> bool:
        """Check one image; False where it had been checked before."""
        identity = hash((len(acknowledged), tuple(sorted(image.items()))))
        if identity in self.seen:
            self.report.repeated += 1
            return False
        self.seen.add(identity)
        _lay_out(image, self.directory)
        verdict = self._verdict(acknowledged)
        self.report.outcomes[verdict.outcome] += 1
        self.report.acknowledged += bool(acknowledged)
        if verdict.outcome is not Outcome.SOUND and len(self.report.failures) < KEPT_FAILURES:
            last = _describe(self.trace.events[state.cut - 1]) if state.cut else "nothing"
            self.report.failures.append(Failure(state, verdict, last, len(acknowledged)))
        return True

    def _verdict(self, acknowledged: tuple[str, ...]) -> Verdict:
        try:
            return self.check(self.directory, acknowledged)
        except Exception as error:  # a check that breaks is a finding about this image, not the end of the run
            return Verdict(Outcome.OTHER, f"the check raised {error!r}")


def _advance(states: Iterator[State], was_new: bool) -> State | None:
    """Return the next state, telling a generator of random ones whether the last was new."""
    try:
        return states.send(was_new) if hasattr(states, "send") else next(states)
    except StopIteration:
        return None


def _describe(event: Event) -> str:
    if isinstance(event, Wrote):
        return f"Wrote(file={event.file}, offset={event.offset}, {len(event.data)} bytes)"
    return repr(event)


def _lay_out(image: Contents, directory: Path) -> None:
    """Make `directory` hold exactly `image`, readable by the owner alone as a store demands of its files."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700)
    for path, content in sorted(image.items()):
        if content is None:
            (directory / path).mkdir(mode=0o700)
            continue
        descriptor = os.open(directory / path, os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(descriptor, content)
        os.close(descriptor)


ContentsChange = Wrote | Resized
EntryChange = Made | Unlinked | Renamed


class _Disk:
    """What is certain, and what is still open, after the events taken so far."""

    def __init__(self, trace: Trace) -> None:
        self.certain = {file: bytearray(trace.initial[path] or b"") for path, file in trace.initial_files.items()}
        self.live = {file: bytearray(content) for file, content in self.certain.items()}
        self.entries: dict[str, int | None] = {path: trace.initial_files.get(path) for path in trace.initial}
        self.open_contents: dict[int, list[tuple[int, ContentsChange]]] = {}
        self.open_entries: list[tuple[int, EntryChange]] = []
        self.acknowledged: list[str] = []

    def take(self, index: int, event: Event) -> None:
        if isinstance(event, Wrote | Resized):
            self.open_contents.setdefault(event.file, []).append((index, event))
            _apply(self.live.setdefault(event.file, bytearray()), event)
        elif isinstance(event, Made | Unlinked | Renamed):
            self.open_entries.append((index, event))
        elif isinstance(event, Synced):
            self._settle_contents(event)
        elif isinstance(event, DirectorySynced):
            self._settle_entries(event)
        else:
            assert isinstance(event, Acked)
            self.acknowledged.append(event.text)

    def open_choices(self) -> int:
        """Return how many sectors and entries the disk may keep or drop, each for itself."""
        contents = (_sectors(change) for changes in self.open_contents.values() for _, change in changes)
        return sum(contents) + len(self.open_entries)

    def image(self, state: State) -> Contents:
        """Return the files and directories that `state` leaves."""
        random = Random(f"{state.seed}:{state.cut}:{state.salt}")
        entries = self._kept_entries(state.entries, random)
        contents = {file: self._kept_contents(file, state.contents, random) for file in sorted(_files(entries))}
        return {
            path: None if file is None else contents[file]
            for path, file in entries.items()
            if all(entries.get(parent, 0) is None for parent in _parents(path))
        }

    def _settle_contents(self, event: Synced) -> None:
        certain = self.certain.setdefault(event.file, bytearray())
        changes = self.open_contents.pop(event.file, [])
        for _, change in (entry for entry in changes if entry[0] < event.began):
            _apply(certain, change)
        later = [entry for entry in changes if entry[0] >= event.began]
        if later:
            self.open_contents[event.file] = later

    def _settle_entries(self, event: DirectorySynced) -> None:
        still_open = []
        for index, change in self.open_entries:
            if index < event.began and _directory(change) == event.path:
                _enter(self.entries, change)
            else:
                still_open.append((index, change))
        self.open_entries = still_open

    def _kept_entries(self, keep: Keep, random: Random) -> dict[str, int | None]:
        entries = dict(self.entries)
        for _, change in self.open_entries:
            if keep is Keep.ALL or (keep is Keep.SOME and random.random() < 0.5):
                _enter(entries, change)
        return entries

    def _kept_contents(self, file: int, keep: Keep, random: Random) -> bytes:
        if keep is Keep.ALL:
            return bytes(self.live.get(file, b""))
        content = bytearray(self.certain.get(file, b""))
        if keep is not Keep.NOTHING:
            chance = random.choice((0.1, 0.5, 0.9))
            for _, change in self.open_contents.get(file, ()):
                _apply_part(content, change, keep, chance, random)
        return bytes(content)


def _apply_part(content: bytearray, change: ContentsChange, keep: Keep, chance: float, random: Random) -> None:
    """Apply a change by `chance`, as a whole or, torn, each of its sectors for itself."""
    if keep is Keep.SOME or isinstance(change, Resized):
        if random.random() < chance:
            _apply(content, change)
        return
    start = change.offset
    while start < change.offset + len(change.data):
        end = min((start // SECTOR_BYTES + 1) * SECTOR_BYTES, change.offset + len(change.data))
        if random.random() < chance:
            apply_write(content, start, change.data[start - change.offset : end - change.offset])
        start = end


def _sectors(change: ContentsChange) -> int:
    if isinstance(change, Resized) or not change.data:
        return 1
    return (change.offset + len(change.data) - 1) // SECTOR_BYTES - change.offset // SECTOR_BYTES + 1


def _apply(content: bytearray, change: ContentsChange) -> None:
    if isinstance(change, Wrote):
        apply_write(content, change.offset, change.data)
    else:
        apply_size(content, change.size)


def _enter(entries: dict[str, int | None], change: EntryChange) -> None:
    if isinstance(change, Made):
        entries[change.path] = change.file
    elif isinstance(change, Unlinked):
        entries.pop(change.path, None)
    else:
        entries.pop(change.old, None)
        entries[change.new] = change.file


def _directory(change: EntryChange) -> str:
    """Return the directory whose sync makes the change certain; for a rename, the one that receives the file."""
    return posixpath.dirname(change.new if isinstance(change, Renamed) else change.path)


def _files(entries: dict[str, int | None]) -> set[int]:
    return {file for file in entries.values() if file is not None}


def _parents(path: str) -> Iterator[str]:
    while path := posixpath.dirname(path):
        yield path
