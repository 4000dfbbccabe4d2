"""
The prefix cut: what leaves a record because an engine's cap drops it (SPEC E6).

It is taken between two turns. The state keeps where it stands, so that numbers, digests and counters go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from minutebook.errors import DecisionHistoryAbsent
from minutebook.model.entries import ABANDONED, INPUT, RESPONSE, damaged
from minutebook.model.record import Cut, Unanswered

if TYPE_CHECKING:
    from minutebook.model.entries import Entry
    from minutebook.model.record import Delta, Header, State


def leaving(header: Header, delta: Delta) -> range:
    """
    Return which stored entries the cut of `delta` has to see: those that leave, and the first that stays.

    Empty where nothing leaves. A journal gives them to `extend` and drops all but the last of them in the same write:
    those up to the new header's `cut.seq`.
    """
    first = header.cut.seq + 1
    return range(first, min(delta.cut + 1, header.entries) + 1) if delta.cut >= first else range(0)


def has_left(seq: int, header: Header) -> DecisionHistoryAbsent:
    """Return the refusal of an entry that a cut took while the record was read."""
    return DecisionHistoryAbsent(
        f"entry {seq} left the record while it was read: the first that stays is {header.cut.seq + 1}; read it again",
        seq=seq,
        cut=header.cut.seq,
    )


class Leaving:
    """What a cut takes out, told entry by entry, in the memory of one turn's numbers."""

    def __init__(self, before: Cut) -> None:
        self.seq: int = before.seq
        self.size: int = 0
        self._digest = before.digest
        self._before = before
        self._turns: list[int] = []
        self._exchanges: list[int] = []

    def take(self, entry: Entry) -> None:
        """
        Take the next entry that leaves.

        Raises:
            DecisionHistoryCorrupt: it is not the next one.
        """
        if entry.seq != self.seq + 1:
            raise damaged(self.seq + 1, "is missing")
        self.seq, self._digest = entry.seq, entry.digest
        if entry.kind is ABANDONED:
            # A mark stands right behind what it takes back, so that is the end of what was counted.
            for counted in (self._turns, self._exchanges):
                while counted and counted[-1] >= entry.exchange:
                    counted.pop()
            return
        self.size += len(entry.payload)
        if entry.kind is INPUT:
            self._turns.append(entry.seq)
        elif entry.kind is RESPONSE:
            self._exchanges.append(entry.seq)

    def cut(self) -> Cut:
        """Return where the record begins once all that was taken has left it."""
        before = self._before
        turns, exchanges = before.turns + len(self._turns), before.exchanges + len(self._exchanges)
        return Cut(self.seq, self._digest, turns, exchanges)


def without(state: State, cut: Cut) -> State:
    """Return the state without what names an entry that has left."""
    at = cut.seq
    first, last = state.abandoned
    state = msgspec.structs.replace(state, cut=cut, abandoned=(max(first, at + 1), last) if last > at else (0, 0))
    unanswered = state.unanswered
    if state.turn <= at:
        state = msgspec.structs.replace(state, turn=0, exchange=0, said=0, unanswered=None)
    elif unanswered is not None and unanswered.turn <= at:
        since = max(unanswered.since, at + 1) if unanswered.since and state.turn > at + 1 else 0
        state = msgspec.structs.replace(state, unanswered=Unanswered(unanswered.content, 0, 0, since=since))
    if state.summary <= at:
        return msgspec.structs.replace(state, summary=0, summarised=0, late=0)
    return msgspec.structs.replace(state, late=state.late if state.late > at else 0)
