"""
The growth of an empty record by all entries of another one, which brings its own marks and times.

It is traced through the same rules entry by entry; only what the entries do not tell (that a call was parked, that an
input opened an attempt) is concluded from what follows them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from minutebook.errors import DecisionHistoryConflict, InvalidMessage
from minutebook.model.entries import INPUT, damaged
from minutebook.model.growth import Growth
from minutebook.model.record import State, Unanswered

if TYPE_CHECKING:
    from minutebook.model.entries import Draft
    from minutebook.model.record import Delta, Header

_MARK_PAYLOAD = re.compile(rb'\{"reason":"[a-z_]{1,32}"\}')


class ImportedGrowth(Growth):
    """
    The growth of an empty record, marks included.

    A mark takes the record back to where its attempt began, so the states since the last mark are kept. That an input
    opened an attempt shows only when a mark stands right after it, or right after what the attempt wrote: it counts as
    unanswered from there on, until an answer stands or another mark supersedes it.
    """

    counts_newest = False
    """The exchange that the original had open, parked or not, is parked here."""

    def __init__(self, header: Header, delta: Delta, wall: int) -> None:
        super().__init__(header, delta, wall)
        if header.entries:
            raise DecisionHistoryConflict(
                f"the conversation holds {header.entries:,} entries already; import into one that holds nothing",
                entries=header.entries,
            )
        begins = delta.begins
        if begins is not None:
            # Numbers and digests go on from the original's: what left it is named by them.
            self.seq, self.digest = begins.seq, begins.digest
            self.state = State(turns=begins.turns, exchanges=begins.exchanges, cut=begins)
        self.marked = self.seq
        self.passed: list[State] = []
        self.inputs: dict[int, Unanswered] = {}

    def _add_result(self, draft: Draft, content: bytes) -> None:
        if self.state.cut and 0 < draft.exchange <= self.state.cut.seq:
            self._append(draft, content, exchange=draft.exchange)  # it came late, and its exchange has left since
        else:
            super()._add_result(draft, content)

    def add(self, draft: Draft, content: bytes) -> None:
        """See `Growth.add`; what it was before is kept for the marks to come."""
        self.passed.append(self.state)
        if draft.kind is INPUT:
            self.inputs[self.seq + 1] = self._unanswered(content)
            self._set(unanswered=None)
        self._apply(draft, content)

    def _refuse_open(self, what: str) -> None:  # noqa: ARG002 - it was parked, or the original would have refused
        self._park_all()

    def _park_all(self) -> None:
        for waiting in self.state.open:
            if not waiting.parked:
                self._park(waiting.exchange)

    def _add_mark(self, draft: Draft, content: bytes) -> None:
        superseded = self.state.unanswered if not self.state.exchange else None
        if not _MARK_PAYLOAD.fullmatch(draft.payload) or draft.exchange < 1:
            raise InvalidMessage("a mark of an abandoned attempt that no record would make", path="$")
        # Where the oldest entries have left, it may begin among those.
        first = max(draft.exchange, self.state.cut.seq + 1 if self.state.cut else 1)
        if superseded and self._supersedes(draft, first, superseded):
            self._append_mark(draft, content)
            self._go_back_before(superseded)
        elif draft.call == self.seq and self._begins_attempt(first):
            self._go_back_to(max(first, self.marked + 1))
            self._append_mark(draft, content)
        else:
            raise InvalidMessage("a mark of an abandoned attempt that does not stand right after it", path="$")
        self.marked = self.seq
        self.passed.clear()
        self.inputs.clear()

    def _supersedes(self, mark: Draft, first: int, unanswered: Unanswered) -> bool:
        """Return whether a mark takes out the unanswered input: alone, or with what failed behind and before it."""
        turn = self.state.turn
        if mark.exchange == mark.call == turn:
            return True
        around = mark.call == self.seq and self._is_followed_by_failures(turn)
        return around and first in (turn, unanswered.since)

    def _begins_attempt(self, first: int) -> bool:
        """Return whether an attempt can be taken back from `first` on: alone, or with what failed right before it."""
        return self.marked < first <= self.seq + 1 or first == self._abandoned_up_to(self.marked)

    def _go_back_to(self, first: int) -> None:
        """Take the state back to where the attempt began; an input right before it is unanswered from here on."""
        if first <= self.seq:
            self.state = self.passed[first - self.marked - 1]
        if first - 1 in self.inputs and self.state.turn == first - 1:
            self._set(unanswered=self.inputs[first - 1])

    def _wall(self, draft: Draft) -> int:
        return draft.wall

    def close(self) -> None:
        """Keep the newest input unanswered unless the delta says that it settles, and park what was left open."""
        if self.state.exchange:
            self._set(unanswered=None)
        super().close()
        self._park_all()
        self._compare()

    def _compare(self) -> None:
        """See that this is the record which its receipts and its state tell of, where they came with it."""
        delta = self.delta
        last = delta.receipts[-1] if delta.receipts else None
        if last is not None and (last.last, last.digest) != (self.seq, self.digest):
            raise damaged(self.seq, "is not the last one by the receipts")
        if delta.ends is not None and self.state != all_parked(delta.ends):
            raise damaged(self.seq, "leaves the conversation in another state than its header tells")

    def header(self) -> Header:
        """Return what the header has become; its version and epoch go on from those of the receipts that came."""
        header = super().header()
        if not self.delta.receipts:
            return header
        last = self.delta.receipts[-1]
        return msgspec.structs.replace(header, version=last.version, epoch=max(header.epoch, last.epoch))


def all_parked(state: State) -> State:
    """Return the state with all calls that wait parked, as they are once a record has moved."""
    parked = tuple(msgspec.structs.replace(waiting, parked=True) for waiting in state.open)
    return msgspec.structs.replace(state, open=parked)
