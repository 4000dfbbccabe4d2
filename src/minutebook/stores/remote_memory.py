"""
What a journal heard of a server: the newest header of each conversation, how far others were seen to go, and the time.

Nothing here asks anything. A reply may be overtaken by that of a later request, so each is told how many replies had
been heard when its request was made; one that knows less than was known by then tells of a loss (promise I-15). Time is
the server's, as its last reply told and as the worker's own ticks went on since (promise I-30).
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import msgspec

from minutebook.errors import DecisionHistoryRegressed
from minutebook.model.clock import read_clock
from minutebook.model.record import Header
from minutebook.model.shown import type_alone
from minutebook.stores.remote import Look
from minutebook.stores.sections import section

if TYPE_CHECKING:
    from collections.abc import Callable

    from minutebook.model.keys import ConversationKey

_KNOWN_HEADERS: Final = 4096
_KNOWN_MARKS: Final = 65_536
"""How many conversations beside those are told apart from what a server lost; about half a kilobyte each."""


def monotonic_ms() -> int:
    """Return milliseconds since some moment; a wall clock that is set does not touch them."""
    return time.monotonic_ns() // 1_000_000


class Mark(msgspec.Struct, frozen=True, gc=False):
    """How far a journal saw one record go, and when, as a count of all that it heard."""

    birth: bytes
    version: int
    digest: bytes
    heard: int

    __repr__ = type_alone


class _Known(msgspec.Struct, frozen=True):
    """What a journal last heard of one conversation, and when, as a count of all that it heard."""

    header: Header
    stamp: bytes
    heard: int

    __repr__ = type_alone

    @property
    def mark(self) -> Mark:
        """What stays once the header is forgotten."""
        return Mark(self.header.birth, self.header.version, self.header.digest, self.heard)


class RemoteMemory:
    """What one journal heard; it serves any number of threads or tasks."""

    def __init__(self, ticks: Callable[[], int]) -> None:
        """Take what gives milliseconds that only go on; nothing is known yet."""
        self._ticks = ticks
        self._lock = threading.Lock()
        """Held over what is remembered, and over nothing that waits."""
        self._known: OrderedDict[ConversationKey, _Known] = OrderedDict()
        self._marks: OrderedDict[ConversationKey, Mark] = OrderedDict()
        """Of those conversations whose headers are forgotten: least recently used first, as `_known` is."""
        self.heard = 0
        """How many replies there were."""
        self._time: tuple[int, int] | None = None

    def now(self) -> int | None:
        """Return the server's time by reckoning; `None` before its first reply."""
        return None if self._time is None else self._time[0] + read_clock(self._ticks) - self._time[1]

    def recall(self, key: ConversationKey, *, guess: bool) -> Look | None:
        """Return the conversation as it was heard of last, at the present time; `None` where a look is needed."""
        now, known = self.now(), self._known.get(key)
        if now is None or (known is None and not guess):
            return None
        if known is None:
            return Look(now=now)
        return Look(now=now, header=known.header, stamp=known.stamp)

    def hear(self, key: ConversationKey, look: Look, begun: int) -> None:
        """
        Remember what a reply says whose request was made when `begun` replies had been heard.

        Raises:
            DecisionHistoryRegressed: the server had told of a newer version before it was asked.
        """
        with section as inside, inside, self._lock:
            self._time = (look.now, read_clock(self._ticks))
            self.heard += 1
            before = self._mark(key)
            # A reply may be overtaken by that of a later request, and then tells of the past.
            overtaken = before is not None and before.heard > begun
            if look.header is None:
                if not overtaken:
                    self._known.pop(key, None)
                    self._marks.pop(key, None)
            elif before is None or not _is_behind(look.header, before):
                self._keep(key, _Known(look.header, look.stamp, self.heard))
            elif not overtaken:
                raise regressed(look.header, before)

    def seen(self, key: ConversationKey) -> Mark | None:
        """Return how far a conversation was seen to go."""
        with section as inside, inside, self._lock:
            return self._mark(key)

    def _mark(self, key: ConversationKey) -> Mark | None:
        """Return how far a conversation was seen to go; the lock is held."""
        known = self._known.get(key)
        return known.mark if known is not None else self._marks.get(key)

    def _keep(self, key: ConversationKey, known: _Known) -> None:
        """Remember a header, of the least recently used one only its mark, and of more nothing; the lock is held."""
        self._marks.pop(key, None)
        self._known[key] = known
        self._known.move_to_end(key)
        if len(self._known) > _KNOWN_HEADERS:
            oldest, left = self._known.popitem(last=False)
            self._marks[oldest] = left.mark
            if len(self._marks) > _KNOWN_MARKS:
                self._marks.popitem(last=False)


def is_overtaken(before: Mark, now: Header) -> bool:
    """Return whether somebody may have written on where `before` was seen: it is the same record, and a newer one."""
    return 0 < before.version < now.version and now.birth == before.birth


def _is_behind(now: Header, before: Mark) -> bool:
    if now.birth != before.birth:
        return False  # another record: this one was deleted or has expired
    return now.version < before.version or (now.version == before.version and now.digest != before.digest)


def regressed(now: Header, before: Mark) -> DecisionHistoryRegressed:
    """Return the refusal of a server that has not what it told of before."""
    return DecisionHistoryRegressed(
        f"the server has version {now.version} of this conversation, and not the version {before.version} that it "
        "acknowledged before: it was restored, or a standby took over that had not everything; find what was lost, "
        "then open the store again to go on from what the server has",
        version=now.version,
        seen=before.version,
    )
