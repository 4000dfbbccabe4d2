"""
How many blocking calls of one store may be under way: rights to a connection that Ctrl-C cannot take away for good.

Ctrl-C may strike between any two steps of a call, and a semaphore that it strikes counts wrongly from then on, or keeps
its lock (promise I-18). So nothing is counted here: a place is free again once nobody has it any more, as it is however
a call ends. Every pool of connections that threads share lends by it.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import weakref
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_INTERVAL: Final = 0.1
"""After how many seconds one who waits looks again, should the bell not have reached it."""


class Place:
    """A right to one connection, for as long as somebody has it."""

    __slots__ = ("__weakref__",)


class Places:
    """As many places as there are connections."""

    def __init__(self, size: int) -> None:
        """Take how many calls may be under way at once."""
        self._size = size
        self._lock = threading.Lock()
        self._lent: list[weakref.ref[Place]] = []
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()

    def take(self, until: float, settle: Callable[[], object] | None = None) -> Place | None:
        """
        Return a place, or `None` if none was free until then, by the monotonic clock.

        `settle` is called before each look: it lets go of places whose calls are over.
        """
        place = Place()
        while True:
            if settle is not None:
                settle()
            with self._lock:
                self._lent = [each for each in self._lent if each() is not None]
                if len(self._lent) < self._size:
                    self._lent.append(weakref.ref(place))
                    return place
            left = until - time.monotonic()
            if left <= 0:
                return None
            with contextlib.suppress(queue.Empty):
                self._bell.get(timeout=min(left, _INTERVAL))

    def ring(self) -> None:
        """Tell whoever waits that a place is free; one who misses it looks again soon."""
        if self._bell.empty():
            self._bell.put(None)
