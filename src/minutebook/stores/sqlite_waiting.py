"""
How a task waits for a job, or for the end of the writer: the part that needs an event loop, loaded by the first one.
"""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from minutebook.stores.sqlite_jobs import Job


class Outcome(asyncio.Future[Any]):
    """
    What a job comes to. Cancelled before the job began, it never runs; cancelled later, the task waits for its end.

    Only so does whoever is cancelled find what the job did: otherwise its commit could land after they looked.
    """

    def __init__(self, job: Job, loop: asyncio.AbstractEventLoop) -> None:
        """Be what `job` tells its outcome to."""
        super().__init__(loop=loop)
        self._ticket = job.ticket
        job.future = self

    def cancel(self, msg: object = None) -> bool:
        """Withdraw the job, if it has not begun. A task whose future does not let it go is cancelled behind it."""
        return self._ticket.acquire(blocking=False) and super().cancel(msg)


def promise(jobs: Iterable[Job], loop: asyncio.AbstractEventLoop) -> None:
    """Give each job the outcome that its task waits for; called in the loop's own thread, before the job can begin."""
    for job in jobs:
        if job.future is None:
            Outcome(job, loop)


async def ended(outcome: asyncio.Future[Any]) -> None:
    """Wait until a job has ended that cannot be withdrawn any more, whatever it comes to."""
    try:
        await outcome  # and not through anything that could be cancelled before it
    except GeneratorExit:
        raise
    except BaseException:  # noqa: S110 - what ended the wait for it goes on instead
        pass


async def released(release: Callable[[], None]) -> None:
    """
    Give a database back in a thread, since its last holder waits for what is under way and for other processes.

    A task that is cancelled meanwhile leaves it to the thread. Without a running loop nobody is held up; nor can a loop
    be spared where there is no thread to be had.
    """
    try:
        given_back = asyncio.get_running_loop().run_in_executor(None, release)
    except RuntimeError:
        release()
        return
    await asyncio.shield(given_back)


__all__ = ["Outcome", "ended", "get_running_loop", "promise", "released"]
