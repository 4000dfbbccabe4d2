"""
Coroutines driven by hand: to their end without an event loop, or cut at the n-th await.

A cancellation can strike at every await, so a test that wants to know what is left behind has to strike at each of
them in turn. `cancel_at` counts the suspensions of a coroutine as it forwards them, under a bare loop and under asyncio
alike; a journal that never suspends is given its awaits by `SuspendingJournal`.
"""

from __future__ import annotations

import enum
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from minutebook.model.pause import drive

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Generator

__all__ = ["Cut", "Ended", "cancel_at", "checkpoint", "drive"]

Result = TypeVar("Result")
KILLED: ContextVar[bool] = ContextVar("killed", default=False)
"""Whether what runs stands for a process that was killed, and only does so because Python cleans up."""


class Cut(enum.Enum):
    """How a coroutine is ended from outside."""

    CANCELLED = "cancelled"
    """By its task's `cancel`; without an event loop by a `CancelledError` thrown in."""
    TIMEOUT = "timeout"
    """By `asyncio.timeout`; needs an event loop."""
    CLOSED = "closed"
    """By `close`, as an abandoned generator is: a `GeneratorExit`, after which it cannot wait any more."""
    INTERRUPTED = "interrupted"
    """By a `KeyboardInterrupt`, as if the user pressed Ctrl-C during that await."""
    KILLED = "killed"
    """As if its process was killed there: what Python then cleans up reaches no journal of `testing`."""


_CLOSING = (Cut.CLOSED, Cut.KILLED)


class Ended(msgspec.Struct, Generic[Result], frozen=True, kw_only=True):
    """How a coroutine ended that was to be cut."""

    struck: bool
    """Whether it lived long enough to be cut; `False` means that it has fewer awaits than that."""
    result: Result | None = None
    error: BaseException | None = None

    def __repr__(self) -> str:
        return f"Ended(struck={self.struck}, error={type(self.error).__name__})"

    @property
    def finished(self) -> bool:
        """Whether it ran to its end and returned, cut or not."""
        return self.error is None


class checkpoint:  # noqa: N801 - awaited like a function
    """One suspension that every loop resumes at once: `await checkpoint()`."""

    def __await__(self) -> Generator[None, None, None]:
        yield


async def cancel_at(
    factory: Callable[[], Coroutine[Any, Any, Result]], step: int, cut: Cut = Cut.CANCELLED
) -> Ended[Result]:
    """
    Run what `factory` makes and cut it at its `step`-th suspension, counted from 1; whatever it then raises is told.

    To strike everywhere, begin anew with step 1, 2, 3 … until `struck` is false. Awaited under asyncio or in `drive`.
    """
    strike = _Strike(factory(), step, cut)
    try:
        if cut is Cut.TIMEOUT:
            result: Result | None = await strike.timed()
        else:
            result = await strike
    except BaseException as error:
        return Ended(struck=strike.struck, error=error)
    if strike.struck and cut in _CLOSING:
        return Ended(struck=True, error=GeneratorExit())
    return Ended(struck=strike.struck, result=result)


class _Strike(Generic[Result]):
    """An awaitable that forwards a coroutine's suspensions, and strikes at one of them."""

    def __init__(self, coroutine: Coroutine[Any, Any, Result], step: int, cut: Cut) -> None:
        self._coroutine = coroutine
        self._step = step
        self._cut = cut
        self._limit: asyncio.Timeout | None = None
        self.struck = False

    async def timed(self) -> Result | None:
        import asyncio

        async with asyncio.timeout(None) as self._limit:
            return await self

    def __await__(self) -> Generator[Any, Any, Result | None]:
        step, thrown = 0, None
        while True:
            try:
                waits_for = self._coroutine.throw(thrown) if thrown else self._coroutine.send(None)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            thrown, step = None, step + 1
            if step == self._step:
                self.struck = True
                if self._cut in _CLOSING:
                    self._close()
                    return None
                thrown = self._blow()
                if thrown is not None:
                    continue
            try:
                yield waits_for
            except BaseException as error:
                thrown = error

    def _close(self) -> None:
        before = KILLED.set(self._cut is Cut.KILLED)
        try:
            self._coroutine.close()
        finally:
            KILLED.reset(before)

    def _blow(self) -> BaseException | None:
        """Return what to throw in, or arrange for the event loop to do it."""
        import asyncio

        if self._cut is Cut.INTERRUPTED:
            return KeyboardInterrupt()
        if self._limit is not None:
            self._limit.reschedule(asyncio.get_running_loop().time())
            return None
        try:
            task = asyncio.current_task()
        except RuntimeError:
            return asyncio.CancelledError()
        assert task is not None
        task.cancel()
        return None
