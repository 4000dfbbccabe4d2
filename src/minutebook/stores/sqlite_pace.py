"""
Whether a disk syncs fast enough for commits to be made on an event loop.

Handing a commit to the writer's thread costs more than a fast disk takes for it, and a slow one would hold up every
task of the loop (case O-38). Nobody can tell beforehand, so the last commits decide, wherever they were made.
"""

from __future__ import annotations

from time import perf_counter
from typing import Final

SLOW_SECONDS: Final = 0.005
"""A commit that took longer is not to be made on a loop."""

FAST_COMMITS: Final = 32
"""How many commits in a row must be fast, after a slow one, before a loop makes one itself again."""


class Pace:
    """How the last durable commits of one file went. Used by whoever holds the writer's lock."""

    __slots__ = ("_begun", "_due")

    def __init__(self) -> None:
        """Begin as if all had been fast."""
        self._begun = 0.0
        self._due = 0

    @property
    def slow(self) -> bool:
        """Whether a loop has to leave its commits to the thread."""
        return self._due > 0

    def begin(self) -> None:
        """Begin to time a commit."""
        self._begun = perf_counter()

    def end(self) -> None:
        """Note that the commit was made."""
        if perf_counter() - self._begun > SLOW_SECONDS:
            self._due = FAST_COMMITS
        elif self._due:
            self._due -= 1
