"""
The window: which part of a record a model sees.

A record is read newest first, only as far as the limits reach, and grouped into *units*: an exchange with the results
that answer it, an input that nothing has answered yet, or what was said while an exchange waits. A unit is sent whole
or left out whole, and the kept ones are always the newest without a gap. A turn of which any unit is kept keeps its
input, so that a window opens with an input and never with an answer (SPEC D7, D8; cases O-01 to O-08).

Units that nothing recorded later can change are settled (`model.units`). A scan may begin with those it is given, and
says at its end what is settled by now: then a window costs what is new and a bisection.

Everything here is pure: the same record and the same limits give the same units, on any Python and any hash seed.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import msgspec

from minutebook.errors import DecisionHistoryLimitExceeded
from minutebook.model.entries import ABANDONED, INJECTION, INPUT, INSTRUCTIONS, RESPONSE, RESULT, SUMMARY, Entry
from minutebook.model.units import Settled, Unit, settle, weigh
from minutebook.policy.standing import pass_over, standing_entries

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from minutebook.model.bounds import WindowLimits
    from minutebook.model.record import Header, State
    from minutebook.policy.room import Room


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A window's content, oldest first, and where it begins."""

    units: tuple[Unit, ...]
    inputs: Mapping[int, Sequence[Entry]]
    """By turn, newest first; of more turns than the units'."""
    messages: int
    size: int
    """Bytes of the JSON array that the messages make."""
    start: int
    """The key of the oldest unit; 0 for a window that holds none."""
    window_from: int
    """Where the next window begins if it keeps its start: `start`, or its turn's input if nothing stands between."""
    trimmed: bool
    """Whether the record holds older units that this window leaves out."""
    uncovered: bool
    """Whether a unit that no summary covers is left out of it, or was passed over while it waited."""
    left: tuple[int, int] = (0, 0)
    """Where the last window began (1 before the first), and the key of the newest unit left out since; else zeros."""
    cut_at: int = 0
    """The newest `seq` when the window's start last moved, where reasoning is bound to that; see `policy.binding`."""
    stripped: int = 0
    """How many responses stand in it without their stale reasoning."""
    stale: bool = False
    """Whether stale reasoning stands in it all the same."""


class Scan:
    """
    Units found so far, as entries come in newest first.

    Abandoned attempts, parked exchanges and an input that is still unanswered (but for its own turn) are passed over.
    What comes out does not depend on how much is read at once, nor on how much was settled before.
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
        self._covered = 0 if reading else state.summarised
        self._superseded = {state.turn} if state.unanswered and header.attempt is None else set[int]()
        self._cut = header.cut.seq
        self._open = set[int]() if reading else {waiting.exchange for waiting in state.open}
        self._parts: dict[int, list[Entry]] = {}
        self._found: list[Unit] = []
        self._sums: list[tuple[int, int]] = []
        """For each of them, what it and all newer ones add, with the inputs of the turns after its own."""
        self._settled: Settled | None = None
        self._waiting_turns: set[int] = set()
        self._answered: set[int] = {answered}
        self.inputs: dict[int, list[Entry]] = {}
        self.next_seq = self._below - 1
        """The `seq` to read on from, downwards; what lies in an abandoned attempt is not read at all."""
        self.messages = 0
        self.size = 0

    # --- taking entries in -------------------------------------------------------------------------------------------

    def add(self, entries: Iterable[Entry]) -> None:
        """Take the next entries, newest first and without a gap."""
        for entry in entries:
            self.next_seq = entry.seq - 1
            if entry.seq >= self._below:
                continue
            kind = entry.kind
            if kind is RESPONSE:
                self._take_response(entry)
            elif kind is INPUT:
                if entry.seq not in self._superseded:
                    self._take_input(entry)
            elif kind is ABANDONED:
                self._below = pass_over(entry, self._below, self._superseded)
            elif kind is INJECTION and not entry.exchange:
                self.inputs.setdefault(entry.turn, []).append(entry)
            elif entry.exchange in self._open:
                self._take_waiting(entry)
            elif kind is not INSTRUCTIONS and kind is not SUMMARY:
                self._parts.setdefault(entry.exchange, []).append(entry)
        self.next_seq = min(self.next_seq, self._below - 1)

    def _take_input(self, entry: Entry) -> None:
        inputs = self.inputs.setdefault(entry.seq, [])
        inputs.append(entry)
        if entry.seq not in self._answered:
            self._find(Unit(entry.seq, entry.seq, []))
        # Counted only now: before, the units that this input goes with may not all be found.
        messages, size = weigh(inputs)
        self.messages += messages
        self.size += size

    def _take_waiting(self, entry: Entry) -> None:
        """Pass over an exchange that waits; what was said meanwhile is shown without it."""
        if entry.kind is not RESULT:  # a late one stands in a later turn
            self._waiting_turns.add(entry.turn)
        if entry.kind is INJECTION and entry.turn:
            self._find(Unit(entry.seq, entry.turn, [entry], entry.messages, entry.size))

    def _take_response(self, entry: Entry) -> None:
        exchange = entry.exchange
        if exchange in self._open:
            self._take_waiting(entry)
        elif entry.turn or self._reading:
            parts = self._parts.pop(exchange, None)
            if parts is None:
                self._find(Unit(exchange, entry.turn, [entry], entry.messages, entry.size))
            else:
                self._find(_unit(exchange, entry.turn, [entry, *sorted(parts, key=_shown_order)]))

    def _find(self, unit: Unit) -> None:
        self._answered.add(unit.turn)
        self._found.append(unit)
        self.messages += unit.messages
        self.size += unit.size
        self._sums.append((self.messages, self.size))

    @property
    def units(self) -> Sequence[Unit]:
        """The units found so far, newest first, without the settled ones."""
        return self._found

    @property
    def exhausted(self) -> bool:
        """Whether the record has nothing older."""
        return self._settled.whole if self._settled else self.next_seq <= self._cut

    # --- what is settled ---------------------------------------------------------------------------------------------

    def join(self, settled: Settled) -> None:
        """Take all that is older from what was settled before; nothing can be added any more."""
        messages, size = settled.cost(0, 0)
        self.messages += messages
        self.size += size
        self.inputs = {**settled.inputs, **self.inputs}
        self._settled = settled

    def settle(self, header: Header) -> Settled | None:
        """
        Return what is settled by now, as `header` describes the record without what is only staged; `None` for nothing.

        The units that it holds are no longer looked at one by one.
        """
        before = self._settled
        below = self._settled_below(header)
        if below <= (before.below if before else 1):
            return before if before and below == before.below else None
        live = sum(unit.key >= below for unit in self._found)
        units = self._found[: live - 1 if live else None : -1]
        turns = {unit.turn for unit in units}
        inputs = {turn: said for turn, said in self.inputs.items() if turn in turns}
        if before is not None:
            inputs = {**before.inputs, **inputs}
        self._settled = settle(before, below, units, inputs, whole=self.exhausted)
        del self._found[live:], self._sums[live:]
        return self._settled

    def _settled_below(self, header: Header) -> int:
        """
        Return up to where nothing that may be recorded can change a unit, or 0 while an exchange is parked.

        What is said belongs to the newest exchange, a result to its open one, and a mark takes back an attempt or an
        input that nothing answered; after that the conversation goes on from the state before.
        """
        states = list(_states(header))
        if any(waiting.parked for state in states for waiting in state.open):
            return 0
        places = [(state.turn, state.exchange) for state in states]
        places += [(before.turn, before.exchange) for state in states if (before := state.unanswered)]
        below = min(exchange or turn for turn, exchange in places)
        below = min([below, *(waiting.exchange for state in states for waiting in state.open)])
        if header.attempt is not None:
            below = min(below, header.attempt.first)
        for turn, _ in places:
            # An input that has no exchange down there goes with one that is still to come.
            if turn < below and not self._has_exchange(turn, below):
                below = turn
        return below

    def _has_exchange(self, turn: int, below: int) -> bool:
        for unit in self._newest():
            if unit.turn == turn and unit.key < below and unit.is_exchange:
                return True
            if unit.turn < turn:
                break
        return False

    def _newest(self) -> Iterator[Unit]:
        yield from self._found
        if self._settled:
            yield from reversed(self._settled.units)

    def newest_turn(self) -> list[Unit]:
        """Return the units of the newest turn, oldest first, as far as they were read."""
        found: list[Unit] = []
        for unit in self._newest():
            if found and unit.turn != found[0].turn:
                break
            found.append(unit)
        return found[::-1]

    def _count(self) -> int:
        return len(self._found) + (len(self._settled.units) if self._settled else 0)

    def _shown(self) -> int:
        """Count the units that no summary covers; the others are in no window any more."""
        return self._since(self._covered + 1) if self._covered else self._count()

    def late(self) -> set[int]:
        """
        Return the exchanges that a summary passed over because they waited, and that are complete since.

        All entries behind the summary have to be read by now.
        """
        found = ((unit.key, unit.entries) for unit in self._found)
        return {
            exchange
            for exchange, parts in (*self._parts.items(), *found)
            if self._cut < exchange <= self._covered
            and any(part.kind is RESULT and part.seq > self._state.summary for part in parts)
        }

    def _at(self, position: int) -> Unit | None:
        """Return the unit that so many newer ones precede, if there is one."""
        if position < len(self._found):
            return self._found[position]
        position -= len(self._found)
        older = self._settled.units if self._settled else ()
        return older[-1 - position] if position < len(older) else None

    # --- how far a window reaches ------------------------------------------------------------------------------------

    def reaches(self, limits: WindowLimits, low_water: float, roomy: bool) -> bool:
        """
        Return whether what was read decides the window: a limit is passed, or the last window's start is.

        A `roomy` one depends on all that the limits reach, and on the whole of a loop that the last window held.
        """
        if self.exhausted:
            return True
        if self._count() <= self._waiting() + 1:
            return False
        oldest = self._at(self._count() - 1)
        if oldest is None or (roomy and oldest.turn == self._state.turn and oldest.key > self._state.window_from > 0):
            return False
        if self.messages > limits.max_messages or self.size > limits.max_bytes:
            return True
        bound = self._state.window_from if low_water < 1 and not roomy and self._resumes(limits) else 0
        return oldest.key < max(bound, self._covered + 1)

    def _resumes(self, limits: WindowLimits) -> bool:
        return self._state.window_limits == (limits.max_messages, limits.max_bytes)

    def missing_input(self, limits: WindowLimits | None) -> tuple[int, int]:
        """
        Return which input is not read yet: the `seq` of the oldest unit's turn, or 0 when none is missing.

        With it comes the `seq` of the newest message said beside it, 0 when it stands alone. An input is not missed
        where the window of these limits leaves out all of its turn; without limits nothing is left out.
        """
        oldest = self._found[-1] if self._found else None
        if oldest is None or any(entry.kind is INPUT for entry in self.inputs.get(oldest.turn, ())):
            return 0, 0
        if limits is not None and self._leaves_out_oldest_turn(limits):
            return 0, 0
        return oldest.turn, oldest.entries[0].call

    def _leaves_out_oldest_turn(self, limits: WindowLimits) -> bool:
        count = self._count()
        oldest, newer = self._at(count - 1), self._at(count - 2)
        alone = oldest and newer and oldest.turn != newer.turn
        return bool(alone) and self._largest((limits.max_messages, limits.max_bytes)) < count

    def add_input(self, entries: Iterable[Entry]) -> None:
        """Take the input of the oldest unit's turn and what was said beside it; oldest first and without a gap."""
        read = tuple(entries)
        turn = read[0].turn if read else 0
        said = {
            entry.seq: entry
            for entry in standing_entries(read)
            if entry.kind in (INPUT, INJECTION) and not entry.exchange and entry.turn == turn
        }
        said.update((entry.seq, entry) for entry in self.inputs.get(turn, ()))
        self.inputs[turn] = [said[seq] for seq in sorted(said, reverse=True)]

    def plan(self, limits: WindowLimits, room: Room | None = None, reserved: int = 0) -> Plan:
        """
        Return the newest units within `limits`, oldest first, with so many bytes reserved for a summary.

        With `room` the window keeps its start for as long as it fits and leaves that, and is cut when it does not (SPEC
        B3); without, it fills the limits.

        Raises:
            DecisionHistoryLimitExceeded: the latest exchange and the current input alone exceed a limit (SPEC D8).
        """
        must = self._mandatory()
        full = (limits.max_messages, limits.max_bytes - reserved)
        kept = min(self._largest(full), self._shown())
        if kept < must:
            raise self._refusal(must, limits, reserved)
        return self._planned(kept if room is None else self._steady(full, kept, must, limits, room))

    def _waiting(self) -> int:
        """Count the newest units that are no exchange: the current input, and turns before it whose exchange waits."""
        for position, unit in enumerate(self._newest()):
            if unit.is_exchange or (position and unit.turn not in self._waiting_turns):
                return position
        return self._count()

    def _mandatory(self) -> int:
        """The newest exchange always stays, if no summary covers it, and with it an input that waits for its answer."""
        waiting = self._waiting()
        latest = self._at(waiting)
        return waiting + 1 if latest and latest.is_exchange and latest.key > self._covered else min(self._shown(), 1)

    def _steady(self, full: tuple[int, int], kept: int, must: int, limits: WindowLimits, room: Room) -> int:
        wanted = (room.messages, room.size)
        resumes = self._state.window_from and (room.loop is not None or self._resumes(limits))
        before = self._since(self._state.window_from) if resumes else self._shown()
        if before <= min(kept, self._largest((room.may_fill(full[0], wanted[0]), room.may_fill(full[1], wanted[1])))):
            return max(before, must)
        # Never more than may be filled by what keeps its start, so nothing comes back that had left.
        cut = self._largest((room.cut_to(full[0], wanted[0]), room.cut_to(full[1], wanted[1])))
        return max(must, min(kept, cut))

    def _since(self, key: int) -> int:
        """Count the units that stand at `key` or behind it."""
        settled = self._settled
        older = len(settled.units) - settled.first_from(key) if settled else 0
        return sum(unit.key >= key for unit in self._found) + older

    def _largest(self, bounds: tuple[int, int]) -> int:
        """Return how many of the newest units fit `bounds`; found by bisection, from sums of stored sizes alone."""

        def exceeds(units: int) -> bool:
            messages, size = self._cost(units)
            return messages > bounds[0] or array_size(messages, size) > bounds[1]

        live, settled = len(self._found), self._settled
        if settled is None or exceeds(live):
            return bisect_left(range(1, live + 1), True, key=exceeds)
        messages, size = self._cost(live)
        turn = self._found[-1].turn if live else 0
        first = settled.first_fitting(bounds[0] - messages, bounds[1] - 1 - size - messages, turn)
        return live + len(settled.units) - first

    def _cost(self, kept: int) -> tuple[int, int]:
        """Return the messages and bytes of so many of the newest units, with the inputs of their turns."""
        live = min(kept, len(self._found))
        messages = size = turn = 0
        if live:
            turn = self._found[live - 1].turn
            said = weigh(self.inputs.get(turn, ()))
            messages, size = self._sums[live - 1]
            messages += said[0]
            size += said[1]
        if kept > live and self._settled:
            older = self._settled.cost(len(self._settled.units) - (kept - live), turn)
            messages += older[0]
            size += older[1]
        return messages, size

    def _planned(self, kept: int) -> Plan:
        live = self._found[:kept]
        units = tuple(reversed(live))
        if kept > len(live) and self._settled:
            units = (*self._settled.units[len(live) - kept :], *units)
        messages, size = self._cost(kept)
        newest_left = self._at(kept)
        left = newest_left.key if newest_left and newest_left.key >= self._state.window_from else 0
        left = left if left > self._covered else 0
        return Plan(
            units=units,
            inputs=self.inputs,
            messages=messages,
            size=array_size(messages, size),
            start=units[0].key if units else 0,
            window_from=self._window_from(kept),
            trimmed=newest_left is not None,
            uncovered=bool(self._state.late) or (newest_left is not None and newest_left.key > self._covered),
            left=(max(self._state.window_from, self._cut + 1), left) if left else (0, 0),
        )

    def _window_from(self, kept: int) -> int:
        # A parked exchange at the head of the turn is not seen yet; once complete it belongs behind the turn's input.
        unit, older = self._at(kept - 1) if kept else None, self._at(kept)
        if unit is None:
            return 0
        return unit.key if older and older.turn == unit.turn else unit.turn

    def without_oldest(self, plan: Plan, limits: WindowLimits, reserved: int = 0, size: int = 0) -> Plan:
        """
        Return `plan` without its oldest unit, for a window that came out larger than its parts and so many bytes of a
        summary: at `size` bytes.

        Raises:
            DecisionHistoryLimitExceeded: only what must stay is left.
        """
        kept = len(plan.units) - 1
        if kept < self._mandatory():
            raise self._refusal(self._mandatory(), limits, reserved, size - reserved)
        return self._planned(kept)

    def removable(self, plan: Plan) -> int:
        """Return how many of the oldest units of `plan` may leave: all but what must stay."""
        return max(0, len(plan.units) - self._mandatory())

    def narrowed(self, plan: Plan, removed: int) -> Plan:
        """Return `plan` without so many of its oldest units, at most those that are `removable`."""
        return self._planned(len(plan.units) - removed)

    def _refusal(
        self, must: int, limits: WindowLimits, reserved: int = 0, size: int = 0
    ) -> DecisionHistoryLimitExceeded:
        least = self._planned(must)
        size = max(least.size, size)
        room = (
            f", of which {reserved:,} bytes are kept for a summary (max_summary_bytes; drop_summary ends it)"
            if reserved
            else ""
        )
        return DecisionHistoryLimitExceeded(
            f"what must stay needs {least.messages:,} messages and {size:,} bytes, limits "
            f"{limits.max_messages:,} and {limits.max_bytes:,}{room}; raise max_messages or max_bytes "
            "(WindowLimits), or say less: the newest input and what answers it always stay",
            messages=least.messages,
            bytes=size,
            max_messages=limits.max_messages,
            max_bytes=limits.max_bytes,
            mandatory=must,
            **({"summary_bytes": reserved} if reserved else {}),
        )


def array_size(messages: int, size: int) -> int:
    """Return the bytes of a JSON array of `messages` members that measure `size` together."""
    return 2 + size + max(0, messages - 1)


def with_entry(unit: Unit, entry: Entry) -> Unit:
    """Return the unit with one more entry in its place."""
    return _unit(unit.key, unit.turn, sorted([*unit.entries, entry], key=_shown_order))


def _unit(key: int, turn: int, entries: list[Entry]) -> Unit:
    return Unit(key, turn, entries, *weigh(entries))


def _states(header: Header) -> Iterator[State]:
    """The states from which the record may go on: as it stands, or as it stood before the attempt under way."""
    yield header.state
    if header.attempt is not None:
        yield header.attempt.state


def _shown_order(entry: Entry) -> tuple[int, int]:
    """A response, then its results in call order whatever order they came in, then what was said meanwhile."""
    if entry.kind is RESPONSE:
        return (0, 0)
    return (1, entry.call) if entry.kind is RESULT else (2, entry.seq)
