"""
Budgets: how many decisions, calls, levels of agents and how much time one task of an invocation may use.

A unit is spent when it is reserved, before the step, and nothing is ever given back: whatever came of a call, it was
made. So what is left only decreases, and a step that fails costs what a step that succeeds does (promise I-43). An
agent that another one called spends of its own budgets and of its caller's at once, so what all of them use together
is never more than what the first one had.

Wall time cannot be spent before it has passed. It is noted with every record, and where a run stops or raises, by an
interrupt or a cancellation too. What a process that was killed had used since its last record nobody knows, so that is
not counted; such steps are bounded by the decisions and calls, which were spent before them.

They are those of one task, however often it is stopped, resumed or tried again. The next task of the invocation has its
own, and begins only after one that finished, or that the host gave up: what ended a task without an answer ends the
invocation otherwise. An agent that was called has one task.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from minutebook.errors import InvalidOption
from minutebook.model.bounds import check_count

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Budget: TypeAlias = Literal["decisions", "calls", "wall"]

_NANOSECONDS = 1_000_000_000


class Budgets(msgspec.Struct, frozen=True, kw_only=True):
    """
    What one task of an invocation may use: requests to its provider, calls of its capabilities, and its wall time in
    seconds or as a `timedelta`.

    The wall time is looked at between steps; it interrupts none, since time-outs belong to providers and capabilities.
    It runs while the task does, and not while that waits for an approval. A capability's own `max_calls` counts
    beside `max_calls` here. `max_depth` is how many levels of agents may stand below this one. What an agent's agents
    use counts for it too.

    Raises:
        InvalidOption: a count that is no positive integer, or a `max_wall` that is not finite and positive.
    """

    max_decisions: int = 16
    max_calls: int = 64
    max_wall: float | timedelta | None = None
    max_depth: int = 4

    def __post_init__(self) -> None:
        check_count(self.max_decisions, "max_decisions")
        check_count(self.max_calls, "max_calls")
        check_count(self.max_depth, "max_depth")
        _ = self.max_wall_ns

    @property
    def max_wall_ns(self) -> int | None:
        """The wall time in whole nanoseconds: what is compared is integers, never fractions."""
        if self.max_wall is None:
            return None
        seconds = self.max_wall.total_seconds() if isinstance(self.max_wall, timedelta) else self.max_wall
        if type(seconds) not in (int, float):
            raise InvalidOption(
                f"max_wall must be seconds or a timedelta, not {type(seconds).__name__}", option="max_wall"
            )
        if not 0.001 <= seconds <= 1e9:
            raise InvalidOption("max_wall must be between a millisecond and 1e9 seconds", option="max_wall")
        return int(seconds * _NANOSECONDS)


DEFAULT_BUDGETS = Budgets()


class Used(msgspec.Struct, frozen=True, kw_only=True):
    """What the earlier part of a task has used already."""

    decisions: int = 0
    """Its own, and those of the agents below it."""
    calls: Mapping[str, int] = {}
    """Its own executed calls by capability."""
    below_calls: int = 0
    """Calls that the agents below it executed."""
    wall_ns: int = 0


class Ledger:
    """What is left for one task, within what is left for the one that called its agent. Its numbers only decrease."""

    def __init__(
        self,
        budgets: Budgets,
        max_calls_of: Mapping[str, int],
        used: Used,
        monotonic_ns: Callable[[], int],
        above: Ledger | None = None,
    ) -> None:
        """Open the ledger: counts less what was `used`, which the ledgers above are charged with too."""
        # A program may have been given smaller budgets since: then nothing is left, which is no debt.
        self._decisions = max(0, budgets.max_decisions - used.decisions)
        calls = sum(used.calls.values()) + used.below_calls
        self._calls = max(0, budgets.max_calls - calls)
        self._calls_of = {name: max(0, limit - used.calls.get(name, 0)) for name, limit in max_calls_of.items()}
        self._above = above
        self._depth = budgets.max_depth if above is None else min(budgets.max_depth, above.depth_left - 1)
        self._clock = monotonic_ns
        self._wall = None if budgets.max_wall_ns is None else max(0, budgets.max_wall_ns - used.wall_ns)
        self._wall_used = used.wall_ns
        self._last = 0 if self._wall is None else self._read()
        self._decisions_used, self._calls_used = used.decisions, calls
        if above is not None:
            above.charge(used.decisions, calls)

    @property
    def decisions_left(self) -> int:
        """How many more decisions may be asked for."""
        return self._decisions if self._above is None else min(self._decisions, self._above.decisions_left)

    @property
    def calls_left(self) -> int:
        """How many more calls may be executed, whatever they are."""
        return self._calls if self._above is None else min(self._calls, self._above.calls_left)

    @property
    def depth_left(self) -> int:
        """How many more levels of agents may stand below this one."""
        return self._depth

    @property
    def decisions_used(self) -> int:
        """How many decisions were asked for, here and below, in all parts of the task."""
        return self._decisions_used

    @property
    def calls_used(self) -> int:
        """How many calls were executed, here and below, in all parts of the task."""
        return self._calls_used

    @property
    def wall_used_ns(self) -> int:
        """The budgeted time that was used; 0 where time has no budget."""
        self.wall_left_ns()
        return self._wall_used

    def calls_left_of(self, name: str) -> int:
        """Return how many more calls of one capability may be executed."""
        return min(self.calls_left, self._calls_of.get(name, self._calls))

    def wall_left_ns(self) -> int | None:
        """Return the nanoseconds left, `None` when time has no budget; a clock that goes back gives nothing back."""
        above = None if self._above is None else self._above.wall_left_ns()
        if self._wall is None:
            return above
        now = self._read()
        passed = max(0, now - self._last)
        self._wall = max(0, self._wall - passed)
        self._wall_used += passed
        self._last = max(self._last, now)
        return self._wall if above is None else min(self._wall, above)

    def reserve_decision(self) -> None:
        """Spend a decision, before it is asked for; the caller has seen that one is left."""
        self.charge(1, 0)

    def reserve_call(self, name: str) -> None:
        """Spend a call of a capability, before it is executed; the caller has seen that one is left."""
        self.charge(0, 1)
        if name in self._calls_of:
            self._calls_of[name] -= 1

    def charge(self, decisions: int, calls: int) -> None:
        """Spend what was used here or below, here and in every ledger above."""
        self._decisions = max(0, self._decisions - decisions)
        self._calls = max(0, self._calls - calls)
        self._decisions_used += decisions
        self._calls_used += calls
        if self._above is not None:
            self._above.charge(decisions, calls)

    def _read(self) -> int:
        now = self._clock()
        if type(now) is not int:
            raise InvalidOption(
                f"monotonic_ns must give an int, not {type(now).__name__}; use time.monotonic_ns", option="monotonic_ns"
            )
        return now
