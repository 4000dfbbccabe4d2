"""
What is done for a coroutine that was closed: it cannot wait any more, and what it held has to be given back.

This is where reservations meet the event loop. It is found by looking for a running one, so that blocking callers load
no asyncio before something of theirs was closed.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from minutebook.errors import MinutebookError
from minutebook.model.pause import drive

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine

_LEFT: Final = set["asyncio.Future[Any]"]()
"""What closed coroutines left behind: what they waited for, and the tasks of `aside`."""


def aside(work: Coroutine[Any, Any, object]) -> bool:
    """
    Do what a closed coroutine leaves to do; return whether it is done by now.

    Where no event loop runs, it is done at once, and what it raises goes on. Else a task does it, once what the
    coroutine waited for has ended. Nobody waits for that task or hears its refusal, and it ends with the loop at the
    latest, begun or not.
    """
    import asyncio

    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        drive(work)
        return True
    before = [each for each in _LEFT if each.get_loop() is loop and not isinstance(each, asyncio.Task)]
    leave(loop.create_task(_behind(before, work)))
    return False


def leave(future: asyncio.Future[Any]) -> None:
    """Keep what a closed coroutine waited for, so that what is done `aside` for it comes behind that."""
    _LEFT.add(future)
    future.add_done_callback(_ended)


def _ended(future: asyncio.Future[Any]) -> None:
    _LEFT.discard(future)
    if not future.cancelled():
        future.exception()  # heard, so that the loop does not log it as one that nobody cared for


async def _behind(before: list[asyncio.Future[Any]], work: Coroutine[Any, Any, object]) -> None:
    import asyncio

    with contextlib.suppress(MinutebookError):
        if before:
            await asyncio.wait(before)
        await work
