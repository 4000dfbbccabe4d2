"""Calls that several tasks have under way together, for whoever has to see first what they come to."""

from __future__ import annotations

from sys import modules
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from types import TracebackType


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs here, if one does; loads no asyncio, which blocking callers do without."""
    # Of the two ways to ask, this one raises nothing where no loop runs, which would cost blocking callers more.
    asyncio = modules.get("asyncio")
    return asyncio._get_running_loop() if asyncio is not None else None


class InFlight:
    """
    The calls that are under way: each is made in a `with` block of its own.

    Tasks of one event loop may wait until none is. Blocking callers have none to wait for, unless several threads share
    an object; such a thread sees what is done by then.
    """

    def __init__(self) -> None:
        self._calls = 0
        self._waiting: list[asyncio.Future[None]] = []

    def __enter__(self) -> None:
        self._calls += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._calls -= 1
        if self._calls:
            return
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def ended(self) -> None:
        """Wait until no call is under way, whatever they come to."""
        while self._calls and (loop := running_loop()):
            waiter = loop.create_future()
            self._waiting.append(waiter)
            await waiter
