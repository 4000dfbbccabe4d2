"""
What is done for a coroutine that was closed: it cannot wait any more, and what it held has to be given back.

This is where reservations meet the event loop. It is found by looking for a running one, so that blocking callers load
no asyncio before something of theirs was closed.
"""

from __future__ import annotations

import contextlib
import types
from typing import TYPE_CHECKING, Any, Final

from minutebook.errors import MinutebookError
from minutebook.model.pause import drive

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine, Generator

_LEFT: Final = set["asyncio.Future[Any]"]()
"""What closed coroutines waited for, until it has ended."""


class Aftermath:
    """What the closed coroutines of one store left to do."""

    def __init__(self) -> None:
        """Begin with nothing to do."""
        self._tasks: set[asyncio.Task[None]] = set()
        """An event loop keeps a weak reference to its tasks alone."""

    def do(self, work: Coroutine[Any, Any, object]) -> bool:
        """
        Do what a closed coroutine leaves to do; return whether it is done by now.

        It is begun at once, so that whatever needs no waiting is done even where the loop ends now. What it has to wait
        for goes on in a task of the running loop, behind what the coroutine itself waited for. Nobody hears a refusal
        of that task; what is raised before goes on.
        """
        import asyncio

        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            drive(work)
            return True
        steps = _behind([each for each in _LEFT if each.get_loop() is loop], work).__await__()
        try:
            while (waits_for := next(steps)) is None:  # a pause, which waits for nothing
                pass
        except StopIteration:
            return True
        task = loop.create_task(_unheard(steps, waits_for))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return False

    async def finished(self) -> None:
        """Wait until all of it is done that the running loop does."""
        while self._tasks:
            import asyncio

            loop = asyncio.get_running_loop()
            own = [task for task in self._tasks if task.get_loop() is loop]
            if not own:
                return
            await asyncio.wait(own)


def leave(future: asyncio.Future[Any]) -> None:
    """Keep what a closed coroutine waited for, so that what is done for it afterwards comes behind that."""
    _LEFT.add(future)
    future.add_done_callback(_ended)


def _ended(future: asyncio.Future[Any]) -> None:
    _LEFT.discard(future)
    if not future.cancelled():
        future.exception()  # heard, so that the loop does not log it as one that nobody cared for


async def _behind(before: list[asyncio.Future[Any]], work: Coroutine[Any, Any, object]) -> None:
    if before:
        import asyncio

        await asyncio.wait(before)
    await work


async def _unheard(steps: Generator[Any, Any, None], waits_for: object) -> None:
    with contextlib.suppress(MinutebookError):
        await _rest(steps, waits_for)


@types.coroutine
def _rest(steps: Generator[Any, Any, None], waits_for: object) -> Generator[Any, Any, None]:
    """Run a coroutine that was begun already and stands at what it waits for."""
    while True:
        thrown = heard = None
        try:
            heard = yield waits_for
        except BaseException as error:
            thrown = error
        try:
            waits_for = steps.send(heard) if thrown is None else steps.throw(thrown)
        except StopIteration:
            return
