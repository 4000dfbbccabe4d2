"""
How many calls of one store may be under way: rights to a connection, which are had in the order in which they are asked
for. Who has waited is never passed by one that has just given back and asks again.

Ctrl-C may strike between any two steps of a blocking call, and a semaphore that it strikes counts wrongly from then on,
or keeps its lock (promise I-18). So nothing is counted for threads: all their calls stand in one line, and the first of
it have a connection, as many as there are. A call stands there for as long as it has a lock of its own,

    with place.call:

which the interpreter releases however the call ends, whoever keeps its traceback.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

INTERVAL: Final = 0.1
"""After how many seconds one who waits looks again for what nobody tells it."""


class Place:
    """Where one call of a thread stands in the line."""

    __slots__ = ("bell", "call")

    def __init__(self) -> None:
        """Make one whose call has not begun."""
        self.call = threading.Lock()
        """Held from before it is in the line until the call is over."""
        self.bell: queue.SimpleQueue[None] = queue.SimpleQueue()


class Places:
    """As many places as there are connections, for threads."""

    def __init__(self, size: int, kept: Callable[[], int] = lambda: 0) -> None:
        """Take how many connections there are, and what says how many of them calls that are over keep."""
        self._size = size
        self._kept = kept
        self._line: list[Place] = []

    def take(self, place: Place, until: float) -> bool:
        """Return whether the call that has this place got a connection until then, by the monotonic clock."""
        self._line.append(place)
        while not self._is_served(place):
            left = until - time.monotonic()
            if left <= 0:
                return False
            with contextlib.suppress(queue.Empty):
                place.bell.get(timeout=min(left, INTERVAL))
        return True

    def ring(self) -> None:
        """Tell whose turn it is by now; one who misses it looks again soon."""
        for place in self._first():
            if place.bell.empty():
                place.bell.put(None)

    def _is_served(self, place: Place) -> bool:
        # The line first: a call that keeps its connection is counted as one that keeps it before it leaves the line.
        first = self._first()
        return place in first[: max(self._size - self._kept(), 0)]

    def _first(self) -> list[Place]:
        """Return the first places whose calls are not over, as many as there are connections; others leave the line."""
        first: list[Place] = []
        for place in list(self._line):
            if len(first) == self._size:
                break
            if place.call.locked():
                first.append(place)
            else:
                with contextlib.suppress(ValueError):  # another thread was faster
                    self._line.remove(place)
        return first


class LoopPlaces:
    """The same for one event loop, whose calls end in its own steps, so that they can be counted."""

    def __init__(self, size: int, kept: Callable[[], int]) -> None:
        """Take how many connections there are, and what says how many of them calls that are over keep."""
        self._size = size
        self._kept = kept
        self._under_way = 0
        self._first = asyncio.Lock()
        """Held by the first of those that wait."""
        self._rung = asyncio.Event()

    async def take(self) -> None:
        """Wait for a connection that is free."""
        async with self._first:
            while self._under_way + self._kept() >= self._size:
                self._rung.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(INTERVAL):
                        await self._rung.wait()
            self._under_way += 1

    def give(self) -> None:
        """Give back what was taken."""
        self._under_way -= 1
        self._rung.set()
