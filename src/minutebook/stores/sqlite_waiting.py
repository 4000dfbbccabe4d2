"""
How a task waits for a job, or for the end of the writer: the part that needs an event loop, loaded by the first one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

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


async def ended(outcome: Outcome) -> None:
    """Wait until a job has ended that cannot be withdrawn any more, whatever it comes to."""
    if not outcome.done():
        await asyncio.wait([outcome])
        outcome.exception()  # heard, so that the loop does not log it as one that nobody cared for


async def released(release: Callable[[], None]) -> None:
    """
    Give a database back in a thread, since its last holder waits for what is under way and for other processes.

    A task that is cancelled meanwhile leaves it to the thread. Without a running loop nobody is held up.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        release()
        return
    await asyncio.shield(loop.run_in_executor(None, release))


def awaited(job: Job) -> Outcome:
    """Return what a task of the running loop awaits for `job`."""
    return Outcome(job, asyncio.get_running_loop())
