"""
What an engine's session retains: the newest entries within a number of entries and of characters (SPEC E5, E6).

A suffix without a gap, like a window, but of whole entries and by two plain sums. What each entry costs is given from
outside, so nothing here projects, reads or writes.
"""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable


class Retention(msgspec.Struct, frozen=True):
    """How many entries a session retains, and how many characters their projections have; `None` is no bound."""

    max_entries: int | None = None
    max_chars: int | None = None

    @property
    def is_none(self) -> bool:
        """Whether nothing is retained at all: a bound that is not positive (SPEC E5)."""
        return any(bound is not None and bound <= 0 for bound in (self.max_entries, self.max_chars))

    def rows(self, most: int) -> int:
        """Return how many entries to read at once, at most `most`: all that may be retained, and some marks."""
        return most if self.max_entries is None else min(most, max(self.max_entries, 0) + 8)

    def holds(self, entries: int, chars: int) -> bool:
        """Return whether so many of the newest entries are retained; the newest one always is (SPEC E5)."""
        if self.is_none:
            return not entries
        within = self.max_entries is None or entries <= self.max_entries
        return entries <= 1 or (within and (self.max_chars is None or chars <= self.max_chars))


class Retained:
    """
    The entries that a session retains, oldest first: where each stands, and how many characters it projects to.

    It belongs to a record that ends at entry `seq` with the chain digest `digest`; both tell whether it still holds.
    """

    def __init__(self, seq: int, digest: bytes, costs: Iterable[tuple[int, int]]) -> None:
        """Take the entries as (`seq`, characters), oldest first."""
        self.seq = seq
        self.digest = digest
        self.costs = deque(costs)
        self.chars = sum(chars for _, chars in self.costs)

    def count_at(self, digest: bytes) -> int | None:
        """Return how many entries are retained of the record that ends with `digest`; `None` where it is another."""
        count = len(self.costs)
        return count if self.digest == digest else None  # looked at second: it changes first, in another thread too

    def begin_behind(self, cut: int) -> None:
        """Leave out what has left the record up to the entry `cut`."""
        while self.costs and self.costs[0][0] <= cut:
            self._drop()

    def add(self, seq: int, digest: bytes, chars: int) -> None:
        """Take the entry that the record ends with by now."""
        self.seq, self.digest = seq, digest
        self.costs.append((seq, chars))
        self.chars += chars

    def excess(self, retention: Retention, chars: int) -> int:
        """Return how many of the oldest are retained no more once one of so many characters has been added."""
        entries, total, dropped = len(self.costs) + 1, self.chars + chars, 0
        for _, oldest in chain(self.costs, ((0, chars),)):
            if retention.holds(entries - dropped, total):
                break
            total -= oldest
            dropped += 1
        return dropped

    def place(self, dropped: int) -> int:
        """Return where the oldest stands that stays once so many are dropped; 0 where none does."""
        return self.costs[dropped][0] if dropped < len(self.costs) else 0

    def drop(self, count: int) -> None:
        """Leave out so many of the oldest."""
        for _ in range(count):
            self._drop()

    def _drop(self) -> None:
        self.chars -= self.costs.popleft()[1]
