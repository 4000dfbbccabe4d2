"""Running without an event loop: the driver, and the one suspension that needs no loop to end."""

from __future__ import annotations

import contextlib
import types
from typing import TYPE_CHECKING, TypeVar

from minutebook.errors import BlockingMismatch
from minutebook.model.colours import refuse_loopless

if TYPE_CHECKING:
    from collections.abc import Awaitable, Generator

Result = TypeVar("Result")


@types.coroutine
def pause() -> Generator[None, None, None]:
    """
    Suspend once without waiting for anything, so that a long read does not hold an event loop (case O-38).

    A loop runs what else is ready and comes back; a blocking driver goes on at once.
    """
    yield


def drive(awaitable: Awaitable[Result]) -> Result:
    """
    Run a coroutine that waits for nothing to its end, and return its result; a `pause` is gone through.

    Raises:
        BlockingMismatch: it suspended, or found no event loop, so something asynchronous was given where blocking
            code runs.
    """
    steps = awaitable.__await__()
    try:
        while next(steps) is None:
            pass
    except StopIteration as done:
        result: Result = done.value
        return result
    except BaseException as error:
        # An interrupt may have come between two steps. What is left at a pause has to end there: merely closed, an
        # async generator would count as running for ever.
        _end(steps)
        refuse_loopless(error)
        raise
    _end(steps)
    raise BlockingMismatch(
        "this call waits for an event loop: give minutebook.sync a store of minutebook.sync and a blocking client, or "
        "use the names of minutebook with await"
    )


def _end(steps: Generator[object, None, object]) -> None:
    with contextlib.suppress(GeneratorExit, StopIteration, StopAsyncIteration, RuntimeError):
        steps.throw(GeneratorExit)
