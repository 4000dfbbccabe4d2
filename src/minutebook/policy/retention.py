"""
What an engine's session retains: the newest entries within a number of entries and of characters (SPEC E5, E6).

A suffix without a gap, like a window, but of whole entries and by two plain sums. What each entry costs is given from
outside, so nothing here projects, reads or writes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING

import msgspec

from minutebook.model.entries import ABANDONED, INPUT
from minutebook.model.shown import type_alone
from minutebook.policy.standing import pass_over

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from minutebook.model.entries import Entry
    from minutebook.model.keys import ConversationKey
    from minutebook.model.record import Header

KNOWN_SESSIONS = 1024
"""Of how many sessions a manager remembers what their entries cost."""


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


class Retained(msgspec.Struct, frozen=True):
    """
    The entries that a session retains, oldest first: where each stands, and how many characters it projects to.

    It belongs to a record that ends at entry `seq` with the chain digest `digest`; both tell whether it still holds.
    """

    seq: int
    digest: bytes
    costs: tuple[tuple[int, int], ...]
    """The entries as (`seq`, characters)."""

    __repr__ = type_alone

    def behind(self, cut: int) -> Retained:
        """Return the same without what has left the record up to the entry `cut`."""
        left = bisect_right(self.costs, cut, key=lambda cost: cost[0])
        return msgspec.structs.replace(self, costs=self.costs[left:]) if left else self

    def grown(self, seq: int, digest: bytes, chars: int, dropped: int) -> Retained:
        """Return what is retained with the entry that the record ends with by now, once so many oldest are dropped."""
        return Retained(seq, digest, (*self.costs, (seq, chars))[dropped:])

    def excess(self, retention: Retention, chars: int) -> int:
        """Return how many of the oldest are retained no more once one of so many characters has been added."""
        sizes = [*(each for _, each in self.costs), chars]
        total, dropped = sum(sizes), 0
        for oldest in sizes:
            if retention.holds(len(sizes) - dropped, total):
                break
            total -= oldest
            dropped += 1
        return dropped

    def cut(self, dropped: int, header: Header) -> int:
        """
        Return up to which entry all leaves once so many of the oldest are dropped, of these and the one that is added
        behind `header`; 0 where nothing leaves.
        """
        added = header.entries + 1
        if dropped > len(self.costs):
            return added
        staying = self.costs[dropped][0] if dropped < len(self.costs) else added
        return staying - 1 if staying - 1 > header.cut.seq else 0


class KnownSessions:
    """What is known of the sessions that were read or written to most recently: it saves work, and nothing more."""

    def __init__(self, most: int = KNOWN_SESSIONS) -> None:
        """Begin empty; of more than `most` sessions the least recent is forgotten."""
        self._most = most
        self._known: OrderedDict[ConversationKey, Retained] = OrderedDict()

    def get(self, key: ConversationKey) -> Retained | None:
        """Return what is known of a session."""
        return self._known.get(key)

    def put(self, key: ConversationKey, known: Retained) -> None:
        """Know this of a session from now on."""
        self._known.pop(key, None)  # it goes to the end
        self._known[key] = known
        while len(self._known) > self._most:
            self._known.popitem(last=False)


class RetainedScan:
    """
    Finds what a record retains, newest first, a `Scanning`; `done` once nothing further can be retained.

    What an entry costs is what `project` says of it, which is asked once for each that is retained, and for one more
    only where nothing but its characters can tell that it is not (SPEC E4). Where the scan meets the entry that `known`
    ends with, known costs go on from there: to cost entries it ends there; where it `shows` them it asks `project` for
    each that is retained all the same, and for no other.
    """

    def __init__(
        self,
        retention: Retention,
        header: Header,
        project: Callable[[Entry], int],
        known: Retained | None,
        *,
        shows: bool,
    ) -> None:
        """Begin at the end of the record that `header` describes."""
        self.next_seq = header.entries
        self.done = retention.is_none or header.entries == header.cut.seq
        self._retention = retention
        self._header = header
        self._project = project
        self._known = known.behind(header.cut.seq) if known is not None else None
        self._shows = shows
        self._told: dict[int, int] | None = None
        """What is known to be retained from here on, and what it costs; `None` before that is met."""
        self._costs: list[tuple[int, int]] = []
        self._chars = 0

    def add(self, entries: Iterable[Entry]) -> None:
        """Take the next entries, newest first; those behind the end count for nothing."""
        for entry in entries:
            if self.done:
                return
            if entry.seq > self.next_seq:
                continue
            self.next_seq = self._behind(entry)
            self._take(entry)
            self.done = self.done or self.next_seq <= self._header.cut.seq

    def retained(self) -> Retained:
        """Return what was found to be retained."""
        return Retained(self._header.entries, self._header.digest, tuple(reversed(self._costs)))

    def _behind(self, entry: Entry) -> int:
        """Return where to read on: behind a mark what it takes out is passed over, but not the end of what is known."""
        if entry.kind is not ABANDONED:
            return entry.seq - 1
        below, known = pass_over(entry, entry.seq, set()), self._known
        return known.seq if known is not None and below <= known.seq < entry.seq else below - 1

    def _take(self, entry: Entry) -> None:
        known = self._known
        if known is not None and (entry.seq, entry.digest) == (known.seq, known.digest):
            if not self._shows:
                self._costs += reversed(known.costs)
                self.done = True
                return
            self._told = dict(known.costs)
        if entry.kind is INPUT:
            self._weigh(entry)

    def _weigh(self, entry: Entry) -> None:
        told = None if self._told is None else self._told.get(entry.seq)
        if self._told is not None and (told is None or not self._holds(told)):
            self.done = True
            return
        projected = self._project(entry)
        chars = projected if told is None else told
        if not self._holds(chars):
            self.done = True
            return
        self._costs.append((entry.seq, chars))
        self._chars += chars
        self.done = not self._holds(0)

    def _holds(self, chars: int) -> bool:
        """Return whether one more entry of so many characters is retained too."""
        return self._retention.holds(len(self._costs) + 1, self._chars + chars)
