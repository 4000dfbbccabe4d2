"""
A conversation as it stood at one moment, for windows that are made without a reservation.

Others may go on with it meanwhile, or be in the middle of a turn. All windows of a `Standing` are of the header that it
was made with, and an attempt that is under way there counts as one that was abandoned: no window has half a turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minutebook.model.law import without_attempt
from minutebook.model.record import new_header
from minutebook.model.tails import Tail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from minutebook.history.conversation import History
    from minutebook.model.bounds import WindowLimits
    from minutebook.model.entries import Draft
    from minutebook.model.record import Header
    from minutebook.ports import Journal
    from minutebook.windows import Window


class Standing:
    """The windows of a conversation as it stood; nothing is reserved or written, and no summary is asked for."""

    def __init__(self, history: History, header: Header | None, journal: Journal) -> None:
        """Take the header that was found, `None` where there was none; pages of it are read from `journal`."""
        self._history = history
        self._found = header or new_header(history.key, history.identity, 0)
        self._reader = history.reader(journal)
        known = history.tails.get(history.key)
        self._tail = (known and known.continued(self._found, ())) or Tail()
        self.header = without_attempt(self._found).header
        """What the next entry would follow, were the attempt under way abandoned."""

    async def window(self, limits: WindowLimits, staged: Sequence[Draft] = (), *, floor: int | None = None) -> Window:
        """
        Return the window of the record as it stood, as if `staged` were recorded behind it; see `Hold.window`.

        Raises:
            DecisionHistoryLimitExceeded: what must stay exceeds a limit (SPEC D8).
            DecisionHistoryAbsent: the conversation was deleted or has expired meanwhile.
        """
        _, window, self._tail = await self._reader.fit(
            self._found, self._tail, limits, staged, floor=floor, standing=True
        )
        self._remember()
        return window

    def _remember(self) -> None:
        """Have the process remember the record's end, unless it knows a newer one, or an attempt's are missing here."""
        tails, key = self._history.tails, self._history.key
        known = tails.get(key)
        if self._found.version and self._found.attempt is None and (not known or known.version <= self._found.version):
            tails.put(key, self._found, self._tail)
