"""
Values that come out of a coroutine while it runs: how an answer is streamed through loops that know of no stream.

Somewhere deep inside, `emit` suspends with a value. `emitted` runs the coroutine and yields each such value, and what
else it waits for goes on to whoever drives all of this, an event loop or none. Nothing is queued and no task is begun:
the coroutine stands still at the value until the next one is asked for.
"""

from __future__ import annotations

import types
from collections.abc import AsyncGenerator, Coroutine, Generator
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


async def emitted(running: Coroutine[Any, Any, object]) -> AsyncGenerator[str, None]:
    """Yield what `running` emits until it has ended; closing this stops it where it stands, and waits for its end."""
    step = _Step(running)
    try:
        while (found := await step) is not None:
            yield found.value
    except GeneratorExit:
        step.thrown = Stopped()
        try:
            while await step is not None:
                step.thrown = Stopped()
        except Stopped:
            pass
        raise


class _Step:
    """Awaited, it runs the coroutine to its next value, or to its end: then it returns `None`."""

    def __init__(self, running: Coroutine[Any, Any, object]) -> None:
        self._running = running
        self.thrown: BaseException | None = None

    def __await__(self) -> Generator[Any, Any, _Emitted | None]:
        while True:
            thrown, self.thrown = self.thrown, None
            try:
                waits_for = self._running.send(None) if thrown is None else self._running.throw(thrown)
            except StopIteration:
                return None
            if isinstance(waits_for, _Emitted):
                return waits_for
            try:
                yield waits_for
            except BaseException as error:  # passed on to where the coroutine stands
                self.thrown = error
