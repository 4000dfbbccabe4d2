"""
Budgets: how many decisions, calls and how much time one invocation may use.

A unit is spent when it is reserved, before the step, and nothing is ever given back: whatever came of a call, it was
made. So what is left only decreases, and a step that fails costs what a step that succeeds does (promise I-43).
"""

from __future__ import annotations

import math
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
    What one invocation may use: requests to its provider, calls of its capabilities, and seconds or a `timedelta`.

    The wall time is looked at between steps; it interrupts none, since time-outs belong to providers and capabilities.
    A capability's own `max_calls` counts beside `max_calls` here.

    Raises:
        InvalidOption: a count that is no positive integer, or a `max_wall` that is not finite and positive.
    """

    max_decisions: int = 16
    max_calls: int = 64
    max_wall: float | timedelta | None = None

    def __post_init__(self) -> None:
        check_count(self.max_decisions, "max_decisions")
        check_count(self.max_calls, "max_calls")
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
        if not (math.isfinite(seconds) and 0.001 <= seconds <= 1e9):
            raise InvalidOption("max_wall must be between a millisecond and 1e9 seconds", option="max_wall")
        return int(seconds * _NANOSECONDS)


DEFAULT_BUDGETS = Budgets()


class Used(msgspec.Struct, frozen=True, kw_only=True):
    """What the earlier part of an invocation has used already."""

    decisions: int
    calls: Mapping[str, int]
    """Executed calls by capability."""


class Ledger:
    """What is left for one invocation. Every number in it only decreases."""

    def __init__(
        self, budgets: Budgets, max_calls_of: Mapping[str, int], used: Used, monotonic_ns: Callable[[], int]
    ) -> None:
        """Open the ledger of a run: counts less what was `used`, and a wall time that starts now."""
        # A program may have been given smaller budgets since: then nothing is left, which is no debt.
        self._decisions = max(0, budgets.max_decisions - used.decisions)
        self._calls = max(0, budgets.max_calls - sum(used.calls.values()))
        self._calls_of = {name: max(0, limit - used.calls.get(name, 0)) for name, limit in max_calls_of.items()}
        self._clock = monotonic_ns
        self._wall = budgets.max_wall_ns
        self._last = 0 if self._wall is None else self._read()

    @property
    def decisions_left(self) -> int:
        """How many more decisions may be asked for."""
        return self._decisions

    @property
    def calls_left(self) -> int:
        """How many more calls may be executed, whatever they are."""
        return self._calls

    def calls_left_of(self, name: str) -> int:
        """Return how many more calls of one capability may be executed."""
        return min(self._calls, self._calls_of.get(name, self._calls))

    def wall_left_ns(self) -> int | None:
        """Return the nanoseconds left, `None` when time has no budget; a clock that goes back gives nothing back."""
        if self._wall is None:
            return None
        now = self._read()
        self._wall = max(0, self._wall - max(0, now - self._last))
        self._last = max(self._last, now)
        return self._wall

    def reserve_decision(self) -> None:
        """Spend a decision, before it is asked for; the caller has seen that one is left."""
        self._decisions -= 1

    def reserve_call(self, name: str) -> None:
        """Spend a call of a capability, before it is executed; the caller has seen that one is left."""
        self._calls -= 1
        if name in self._calls_of:
            self._calls_of[name] -= 1

    def _read(self) -> int:
        now = self._clock()
        if type(now) is not int:
            raise InvalidOption(
                f"monotonic_ns must give an int, not {type(now).__name__}; use time.monotonic_ns", option="monotonic_ns"
            )
        return now
