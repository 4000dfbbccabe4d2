"""
What is done for a coroutine that was closed: it cannot wait any more, and what it held has to be given back.

This is where reservations meet the event loop. It is found by looking for a running one, so that blocking callers load
no asyncio before something of theirs was closed, and nothing is loaded while the interpreter ends.
"""

from __future__ import annotations

import contextlib
import types
from sys import modules
from typing import TYPE_CHECKING, Any

from minutebook.errors import MinutebookError
from minutebook.model.pause import drive

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine, Generator


class Aftermath:
    """What the closed coroutines of one store left to do."""

    def __init__(self) -> None:
        """Begin with nothing to do."""
        self._tasks: set[asyncio.Task[None]] = set()
        """An event loop keeps a weak reference to its tasks alone."""

    def do(self, work: Coroutine[Any, Any, object], closed: GeneratorExit) -> bool:
        """
        Do what a coroutine leaves to do that was `closed`; return whether it is done by now.

        It is begun at once, so that whatever needs no waiting is done even where the loop ends now. What it has to wait
        for goes on in a task of the running loop, behind what the coroutine itself waited for. Nobody hears a refusal
        of that task; what is raised before goes on.
        """
        loop = _running_loop()
        if loop is None:
            drive(work)
            return True
        steps = _behind(vars(closed).get(_LEFT), work).__await__()
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
        while own := [task for task in list(self._tasks) if task.get_loop() is _running_loop()]:
            await modules["asyncio"].wait(own)


_LEFT = "left"


def leave(future: asyncio.Future[Any], closed: GeneratorExit) -> None:
    """Note on what closes a coroutine what that waited for, so that what is done for it comes behind that."""
    if not future.done():
        setattr(closed, _LEFT, future)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    asyncio = modules.get("asyncio")
    if asyncio is None:
        return None
    try:
        return asyncio.get_running_loop()  # type: ignore[no-any-return]
    except RuntimeError:
        return None


async def _behind(left: asyncio.Future[Any] | None, work: Coroutine[Any, Any, object]) -> None:
    cancelled: BaseException | None = None
    while left is not None and not left.done():
        try:
            await modules["asyncio"].wait([left])
        except modules["asyncio"].CancelledError as error:  # the loop ends, which still does what is begun
            cancelled = error
    if left is not None and not left.cancelled():
        left.exception()  # heard, so that the loop does not log it as one that nobody cared for
    await work
    if cancelled is not None:
        raise cancelled


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
        except GeneratorExit:  # the loop was closed and this task with it
            steps.close()
            raise
        except BaseException as error:
            thrown = error
        try:
            waits_for = steps.send(heard) if thrown is None else steps.throw(thrown)
        except StopIteration:
            return
