"""
The window: which part of a record a model sees.

A record is read newest first, only as far as the limits reach, and grouped into *units*: an exchange with the results
that answer it, an input that nothing has answered yet, or what was said while an exchange waits. A unit is sent whole
or left out whole, and the kept ones are always the newest without a gap. A turn of which any unit is kept keeps its
input, so that a window opens with an input and never with an answer (SPEC D7, D8; cases O-01 to O-08).

Everything here is pure: the same record and the same limits give the same units, on any Python and any hash seed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from minutebook.errors import DecisionHistoryLimitExceeded
from minutebook.model.entries import ABANDONED, INJECTION, INPUT, INSTRUCTIONS, RESPONSE, RESULT, Entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from minutebook.model.bounds import WindowLimits
    from minutebook.model.record import Header


class Unit(msgspec.Struct, kw_only=True):
    """What is sent whole or not at all: an exchange, or a message without one. `key` is the `seq` it stands at."""

    key: int
    turn: int
    entries: list[Entry]
    """Oldest first: the response, its results in call order, what was said meanwhile. Empty for a turn's input."""
    messages: int = 0
    """The wire messages it adds, its turn's input left out."""
    size: int = 0
    """The bytes it adds, separators left out."""

    @property
    def is_exchange(self) -> bool:
        """Whether it holds a response."""
        return bool(self.entries) and self.entries[0].kind is RESPONSE


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A window's content, oldest first, and where it begins."""

    units: tuple[Unit, ...]
    inputs: dict[int, tuple[Entry, ...]]
    messages: int
    size: int
    """Bytes of the JSON array that the messages make."""
    start: int
    """The key of the oldest unit; 0 for a window that holds none."""
    window_from: int
    """Where the next window begins if it keeps its start: `start`, or its turn's input if nothing stands between."""
    trimmed: bool
    """Whether the record holds older units that this window leaves out."""
    left: tuple[int, int] = (0, 0)
    """Where the last window began (1 before the first), and the key of the newest unit left out since; else zeros."""


class Scan:
    """
    Units found so far, as entries come in newest first.

    Abandoned attempts, parked exchanges and an input that is still unanswered (but for its own turn) are passed over.
    What comes out does not depend on how much is read at once.
    """

    def __init__(self, header: Header, *, below: int = 0, answered: int = 0, reading: bool = False) -> None:
        """
        Begin at the end of the record that `header` describes, or right below the unit whose key is `below`; that one
        answers the turn `answered`, whose input is then no unit of its own.

        A scan for `reading` takes parked exchanges and answers without an input too; no window shows those.
        """
        state = header.state
        self._state = state
        self._below = below or header.entries + 1
        self._reading = reading
        self._superseded = {state.turn} if state.unanswered and header.attempt is None else set[int]()
        self._open = set[int]() if reading else {waiting.exchange for waiting in state.open}
        self._parts: dict[int, list[Entry]] = {}
        self._found: list[Unit] = []
        self._waiting_turns: set[int] = set()
        self._answered: set[int] = {answered}
        self.inputs: dict[int, list[Entry]] = {}
        self.next_seq = self._below - 1
        """The `seq` to read on from, downwards; what lies in an abandoned attempt is not read at all."""
        self.messages = 0
        self.size = 0

    def add(self, entries: Iterable[Entry]) -> None:
        """Take the next entries, newest first and without a gap."""
        for entry in entries:
            self.next_seq = entry.seq - 1
            if entry.seq < self._below:
                self._take(entry)
        self.next_seq = min(self.next_seq, self._below - 1)

    def _take(self, entry: Entry) -> None:
        if entry.kind is ABANDONED:
            self._pass_over(entry)
        elif entry.kind is INPUT:
            if entry.seq not in self._superseded:
                self._take_input(entry)
        elif entry.kind is INJECTION and not entry.exchange:
            self.inputs.setdefault(entry.turn, []).append(entry)
        elif entry.exchange in self._open:
            self._take_waiting(entry)
        elif entry.kind is not INSTRUCTIONS:
            self._take_part(entry)

    def _pass_over(self, mark: Entry) -> None:
        # An attempt holds the reservation, so its entries stand right before its mark. An input that another one
        # superseded stands alone: the late result of a parked call may have come between it and its mark.
        if mark.call == mark.seq - 1:
            self._below = mark.exchange
        else:
            self._superseded.add(mark.exchange)

    def _take_input(self, entry: Entry) -> None:
        inputs = self.inputs.setdefault(entry.seq, [])
        inputs.append(entry)
        # Counted only now: before, the units that this input goes with may not all be found.
        for said in inputs:
            self.messages += said.messages
            self.size += said.size
        if entry.seq not in self._answered:
            self._find(Unit(key=entry.seq, turn=entry.seq, entries=[]))

    def _take_waiting(self, entry: Entry) -> None:
        """Pass over an exchange that waits; what was said meanwhile is shown without it."""
        if entry.kind is not RESULT:  # a late one stands in a later turn
            self._waiting_turns.add(entry.turn)
        if entry.kind is INJECTION and entry.turn:
            self._find(_unit(entry.seq, entry.turn, [entry]))

    def _take_part(self, entry: Entry) -> None:
        if entry.kind is not RESPONSE:
            self._parts.setdefault(entry.exchange, []).append(entry)
        elif entry.turn or self._reading:
            parts = sorted(self._parts.pop(entry.exchange, ()), key=_shown_order)
            self._find(_unit(entry.seq, entry.turn, [entry, *parts]))

    def _find(self, unit: Unit) -> None:
        self._answered.add(unit.turn)
        self._found.append(unit)
        self.messages += unit.messages
        self.size += unit.size

    @property
    def units(self) -> Sequence[Unit]:
        """The units found so far, newest first."""
        return self._found

    @property
    def exhausted(self) -> bool:
        """Whether the record has nothing older."""
        return self.next_seq < 1

    def reaches(self, limits: WindowLimits, low_water: float) -> bool:
        """Return whether what was read decides the window: a limit is passed, or the last window's start is."""
        if self.exhausted:
            return True
        if len(self._found) <= self._waiting() + 1:
            return False
        if self.messages > limits.max_messages or self.size > limits.max_bytes:
            return True
        return low_water < 1 and self._resumes(limits) and self._found[-1].key < self._state.window_from

    def _resumes(self, limits: WindowLimits) -> bool:
        return self._state.window_limits == (limits.max_messages, limits.max_bytes)

    def missing_input(self) -> tuple[int, int]:
        """
        Return which input is not read yet: the `seq` of the oldest unit's turn, or 0 when none is missing.

        With it comes the `seq` of the newest message said beside it, 0 when it stands alone.
        """
        oldest = self._found[-1] if self._found else None
        if oldest is None or any(entry.kind is INPUT for entry in self.inputs.get(oldest.turn, ())):
            return 0, 0
        return oldest.turn, oldest.entries[0].call

    def add_input(self, entries: Iterable[Entry]) -> None:
        """Take the input of the oldest unit's turn and what was said beside it; oldest first and without a gap."""
        standing: dict[int, Entry] = {}
        turn = 0
        for entry in entries:
            turn = turn or entry.turn
            if entry.kind is ABANDONED:
                standing = {seq: said for seq, said in standing.items() if not entry.exchange <= seq <= entry.call}
            elif entry.kind in (INPUT, INJECTION) and not entry.exchange and entry.turn == turn:
                standing[entry.seq] = entry
        standing.update((entry.seq, entry) for entry in self.inputs.get(turn, ()))
        self.inputs[turn] = [standing[seq] for seq in sorted(standing, reverse=True)]

    def plan(self, limits: WindowLimits, low_water: float) -> Plan:
        """
        Return the newest units within `limits`, oldest first.

        With a `low_water` below 1 the window keeps its start for as long as it fits, and is cut to that fraction of the
        limits when it does not (SPEC B3).

        Raises:
            DecisionHistoryLimitExceeded: the latest exchange and the current input alone exceed a limit (SPEC D8).
        """
        must = self._mandatory()
        full = (limits.max_messages, limits.max_bytes)
        kept = self._largest(full)
        if kept < must:
            raise self._refusal(must, limits)
        if low_water < 1:
            kept = self._steady(full, low_water, kept, must, limits)
        return self._planned(kept)

    def _waiting(self) -> int:
        """Count the newest units that are no exchange: the current input, and turns before it whose exchange waits."""
        for position, unit in enumerate(self._found):
            if unit.is_exchange or (position and unit.turn not in self._waiting_turns):
                return position
        return len(self._found)

    def _mandatory(self) -> int:
        """The newest exchange always stays, and with it an input that waits for its answer."""
        waiting = self._waiting()
        latest = self._found[waiting : waiting + 1]
        return waiting + 1 if latest and latest[0].is_exchange else min(len(self._found), 1)

    def _steady(self, full: tuple[int, int], low_water: float, kept: int, must: int, limits: WindowLimits) -> int:
        if self._resumes(limits) and self._state.window_from:
            before = sum(unit.key >= self._state.window_from for unit in self._found)
            if before <= kept:
                return max(before, must)
        elif kept == len(self._found):
            return kept
        low = (int(full[0] * low_water), int(full[1] * low_water))
        return min(kept, max(must, self._largest(low)))

    def _largest(self, bounds: tuple[int, int]) -> int:
        """Return how many of the newest units fit `bounds`; all tests are sums of stored sizes."""
        messages = size = kept = 0
        turns: set[int] = set()
        for unit in self._found:
            messages += unit.messages
            size += unit.size
            if unit.turn not in turns:
                turns.add(unit.turn)
                for entry in self.inputs.get(unit.turn, ()):
                    messages += entry.messages
                    size += entry.size
            if messages > bounds[0] or array_size(messages, size) > bounds[1]:
                break
            kept += 1
        return kept

    def _planned(self, kept: int) -> Plan:
        units = tuple(reversed(self._found[:kept]))
        inputs = {unit.turn: tuple(reversed(self.inputs.get(unit.turn, ()))) for unit in units}
        said = [entry for part in inputs.values() for entry in part]
        messages = sum([unit.messages for unit in units]) + sum([entry.messages for entry in said])
        size = sum([unit.size for unit in units]) + sum([entry.size for entry in said])
        left = [unit.key for unit in self._found[kept:] if unit.key >= self._state.window_from]
        return Plan(
            units=units,
            inputs=inputs,
            messages=messages,
            size=array_size(messages, size),
            start=units[0].key if units else 0,
            window_from=self._window_from(kept),
            trimmed=kept < len(self._found),
            left=(max(self._state.window_from, 1), left[0]) if left else (0, 0),
        )

    def _window_from(self, kept: int) -> int:
        # A parked exchange at the head of the turn is not seen yet; once complete it belongs behind the turn's input.
        if not kept:
            return 0
        unit, older = self._found[kept - 1], self._found[kept : kept + 1]
        return unit.key if older and older[0].turn == unit.turn else unit.turn

    def without_oldest(self, plan: Plan, limits: WindowLimits) -> Plan:
        """
        Return `plan` without its oldest unit, for a window that came out larger than its parts.

        Raises:
            DecisionHistoryLimitExceeded: only what must stay is left.
        """
        kept = len(plan.units) - 1
        if kept < self._mandatory():
            raise self._refusal(self._mandatory(), limits)
        return self._planned(kept)

    def _refusal(self, must: int, limits: WindowLimits) -> DecisionHistoryLimitExceeded:
        least = self._planned(must)
        return DecisionHistoryLimitExceeded(
            f"what must stay needs {least.messages:,} messages and {least.size:,} bytes, limits "
            f"{limits.max_messages:,} and {limits.max_bytes:,}; raise max_messages or max_bytes, or shorten the newest "
            "exchange before it is recorded",
            messages=least.messages,
            bytes=least.size,
            max_messages=limits.max_messages,
            max_bytes=limits.max_bytes,
            mandatory=must,
        )


def array_size(messages: int, size: int) -> int:
    """Return the bytes of a JSON array of `messages` members that measure `size` together."""
    return 2 + size + max(0, messages - 1)


def with_entry(unit: Unit, entry: Entry) -> Unit:
    """Return the unit with one more entry in its place."""
    return _unit(unit.key, unit.turn, sorted([*unit.entries, entry], key=_shown_order))


def _unit(key: int, turn: int, entries: list[Entry]) -> Unit:
    messages = sum([entry.messages for entry in entries])
    return Unit(key=key, turn=turn, entries=entries, messages=messages, size=sum([entry.size for entry in entries]))


def _shown_order(entry: Entry) -> tuple[int, int]:
    """A response, then its results in call order whatever order they came in, then what was said meanwhile."""
    if entry.kind is RESPONSE:
        return (0, 0)
    return (1, entry.call) if entry.kind is RESULT else (2, entry.seq)
