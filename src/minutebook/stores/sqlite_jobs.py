"""
The jobs of a writer: what is run in a transaction, how it ends, and who is told.

A job is a function on a cursor inside a transaction that it neither begins nor ends. Blocking callers look at its
outcome themselves; tasks of an event loop wait for a future, and each loop is woken once for all that is done.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from minutebook.stores.sqlite_connection import DRIVER_ERRORS, cause_of, translated

if TYPE_CHECKING:
    import asyncio
    import sqlite3
    from collections.abc import Callable, Sequence

    from minutebook.errors import MinutebookError

T = TypeVar("T")
Work: TypeAlias = "Callable[[sqlite3.Cursor], T]"


class Kept(Generic[T]):
    """What a job returns to raise `error` although its changes are to be committed."""

    __slots__ = ("error",)

    def __init__(self, error: MinutebookError) -> None:
        self.error = error


class Database(Protocol):
    """Where a journal's jobs run."""

    @property
    def durable(self) -> bool:
        """Whether a commit that returned survives a power cut."""
        ...

    def run(self, work: Work[T], *, size: int = 0, durable: bool = True, erases: bool = False) -> T:
        """
        Run a job of about `size` bytes here and commit it. Behind one that `erases` no copy is left in the files; where
        it returns True, that is answered by whether it came so.
        """
        ...

    async def submit(self, work: Work[T], *, size: int = 0, durable: bool = True, erases: bool = False) -> T:
        """Have a write job run and committed; other tasks of the loop go on meanwhile."""
        ...

    def attempt(self, work: Work[None]) -> bool:
        """Run a small job here if that can be done at once; return whether it was committed. It need not be synced."""
        ...

    def read(self, work: Work[T]) -> T:
        """Run a reading job on one snapshot."""
        ...

    def release(self) -> None:
        """Give the database back; the last holder closes what was opened for it."""
        ...


class Job:
    """One write job, from its submission to its outcome."""

    __slots__ = ("durable", "erases", "error", "future", "result", "size", "ticket", "work")

    def __init__(self, work: Work[Any], size: int, durable: bool, erases: bool) -> None:
        self.work = work
        self.size = size
        self.durable = durable
        self.erases = erases
        self.future: asyncio.Future[Any] | None = None
        """What a task waits for; `None` where the job runs in its caller's own thread."""
        self.result: Any = None
        self.error: BaseException | None = None
        self.ticket = threading.Lock()
        """Held by whoever may run the job, or has withdrawn it; given back only where it could not be begun."""

    def claim(self) -> bool:
        """Take the one right to run the job or to withdraw it; False for whoever comes second."""
        return self.ticket.acquire(blocking=False)

    def withdraw(self) -> bool:
        """Have the job never run; False where it has begun, or has ended, and its outcome can be waited for."""
        return self.claim() if self.future is None else self.future.cancel()

    def finish(self, result: object) -> None:
        """Note what the job's work returned."""
        if isinstance(result, Kept):
            self.error = result.error
        else:
            self.result = result

    def settle(self) -> None:
        """Hand the outcome to the task that waits; called in its loop's own thread."""
        future = self.future
        if future is None or future.done():
            return
        if self.error is None:
            future.set_result(self.result)
        else:
            future.set_exception(self.error)


def _with_cause(error: MinutebookError, cause: BaseException | None) -> MinutebookError:
    error.__cause__ = cause
    return error


def fail_jobs(jobs: list[Job], error: BaseException, connection: sqlite3.Connection) -> None:
    """Note a failed transaction of a connection as the outcome of each of its jobs."""
    for job in jobs:
        if isinstance(error, DRIVER_ERRORS):
            job.error = _with_cause(translated(error, connection), cause_of(error))
        else:
            # Each task raises an exception of its own; a shared one would collect all their tracebacks.
            job.error = error if len(jobs) == 1 else copy.copy(error)


def wake(jobs: Sequence[Job]) -> None:
    """Wake each loop once for all of its jobs; a loop that was closed meanwhile has nobody left to wake."""
    loops: dict[asyncio.AbstractEventLoop, list[Job]] = {}
    for job in jobs:
        if job.future is not None:
            loops.setdefault(job.future.get_loop(), []).append(job)
    for loop, own in loops.items():
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle_all, own, loop)


def _settle_all(jobs: Sequence[Job], loop: asyncio.AbstractEventLoop) -> None:
    try:
        for job in jobs:
            job.settle()
    except BaseException:  # an interrupt ends the loop, which may go on later: then the others are told
        loop.call_soon(_settle_all, jobs, loop)
        raise
