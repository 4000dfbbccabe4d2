"""
Values that come out of a coroutine while it runs: how an answer is streamed through loops that know of no stream.

Somewhere deep inside, `emit` suspends with a value. `emitted` runs the coroutine and yields each such value, and what
else it waits for goes on to whoever drives all of this, an event loop or none. Nothing is queued and no task is begun:
the coroutine stands still at the value until the next one is asked for.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any

import msgspec


class Stopped(BaseException):
    """Nobody asks for further values: raised where the coroutine stands, so that it can clean up, waiting included."""


class _Emitted(msgspec.Struct, frozen=True):
    value: str

    def __repr__(self) -> str:
        return "_Emitted()"


@types.coroutine
def emit(value: str) -> Generator[_Emitted, None, None]:
    """Hand `value` to whoever iterates `emitted`, and go on when the next one is asked for."""
    yield _Emitted(value)


async def emitted(begin: Callable[[], Coroutine[Any, Any, object]]) -> AsyncGenerator[str, None]:
    """Yield what a coroutine emits until it has ended; closing this stops it where it stands, and waits for its end."""
    step = _Step(begin())
    while (found := await step) is not None:
        try:
            yield found.value
        except BaseException:
            # Whoever closes an async generator waits for it, so that what runs inside may wait as well.
            await step.stop()
            raise


class _Step:
    """Awaited, it runs the coroutine to its next value, or to its end: then it returns `None`."""

    def __init__(self, running: Coroutine[Any, Any, object]) -> None:
        self._running = running
        self._thrown: BaseException | None = None

    async def stop(self) -> None:
        """Have the coroutine end where it stands, whatever it still emits."""
        with contextlib.suppress(Stopped):
            self._thrown = Stopped()
            while await self is not None:
                self._thrown = Stopped()

    def __await__(self) -> Generator[Any, Any, _Emitted | None]:
        while True:
            thrown, self._thrown = self._thrown, None
            try:
                waits_for = self._running.send(None) if thrown is None else self._running.throw(thrown)
            except StopIteration:
                return None
            if isinstance(waits_for, _Emitted):
                return waits_for
            try:
                yield waits_for
            except BaseException as error:  # passed on to where the coroutine stands
                self._thrown = error
