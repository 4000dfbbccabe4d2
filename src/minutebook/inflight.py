"""The event loop that runs, if one does, and what several tasks or threads have under way together."""

from __future__ import annotations

import contextlib
import threading
from sys import modules
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

Given = TypeVar("Given")


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs here, if one does; loads no asyncio, which blocking callers do without."""
    # Of the two ways to ask, this one raises nothing where no loop runs, which would cost blocking callers more.
    asyncio = modules.get("asyncio")
    return asyncio._get_running_loop() if asyncio is not None else None


def no_loop() -> None:
    """Find none, whichever runs: for blocking callers, who may be called by one, as in every cell of a notebook."""


class Line(Generic[Given]):
    """
    The calls of one object that several tasks of an event loop make, or several threads that block: one at a time, in
    the order in which they came.

    Args:
        blocking: whether it is threads that wait, whichever event loop runs where they are.
    """

    def __init__(self, *, blocking: bool = False) -> None:
        """Begin with no call."""
        self._loop = no_loop if blocking else running_loop
        self._places: list[Place[Given]] = []

    def place(self, given: Given) -> Place[Given]:
        """Return the place of a call that was `given` something; it is taken by `first`."""
        return Place(self._places, self._loop, given)

    @property
    def given(self) -> Iterator[Given]:
        """What the calls were given that are under way or wait."""
        return (place.given for place in tuple(self._places))


class Place(Generic[Given]):
    """
    The place of one call in its line. Whoever takes it leaves it, whatever the call ends with.

    It is no block: what an interrupt strikes between the end of a block and that of its call would have come to nothing
    for the caller, though it is done.
    """

    def __init__(
        self, places: list[Place[Given]], loop: Callable[[], asyncio.AbstractEventLoop | None], given: Given
    ) -> None:
        """Prepare the place; it is not in the line yet."""
        self.given = given
        self._places = places
        self._loop = loop
        self._thread = threading.get_ident()
        self._first: asyncio.Future[None] | None = None
        self._alone: threading.Event | None = None

    async def first(self) -> None:
        """Stand in the line, and wait until this is the first in it; at once where it is."""
        if self not in self._places:
            self._places.append(self)
        while self._places[0] is not self:
            if (loop := self._loop()) is not None:
                self._first = loop.create_future()
                await self._first
            elif self._places[0]._thread == self._thread:
                return  # an interrupt left it behind, or has this called; to wait for oneself is to wait for ever
            else:
                self._alone = threading.Event()
                if self._places[0] is not self:  # else the one before left meanwhile, and knew of nobody to tell
                    self._alone.wait()

    def leave(self) -> None:
        """Let the next one be the first; once more changes nothing."""
        with contextlib.suppress(ValueError):  # in one step each, since threads may share the line
            self._places.remove(self)
        for place in self._places[:1]:
            if place._first is not None and not place._first.done():
                place._first.set_result(None)
            if place._alone is not None:
                place._alone.set()
