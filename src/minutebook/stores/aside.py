"""
What is done for a coroutine that was closed: it cannot wait any more, and what it held has to be given back.

A blocking store knows no event loop, whichever may run where it is used, as one does in every cell of a notebook: what
is left is done by the thread that closes the coroutine, or at the end of the section that the thread is in. An
asynchronous store's is done by the loop that the coroutine began in. That one is found by looking for a running one, so
that nothing is loaded while the interpreter ends.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import types
from sys import modules
from typing import TYPE_CHECKING, Any

from minutebook.errors import MinutebookError
from minutebook.inflight import no_loop, running_loop
from minutebook.model.pause import drive
from minutebook.stores.sections import inside, later

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Coroutine, Generator
    from typing import TypeAlias

    from minutebook.model.tails import Aside

    _Handed: TypeAlias = tuple[asyncio.AbstractEventLoop, Coroutine[Any, Any, object], asyncio.Future[Any] | None]
    """A loop, the work, and what the closed coroutine waited for."""


class Aftermath:
    """
    What the closed coroutines of one store left to do.

    Args:
        blocking: whether the store is called without an event loop, and never suspends.
        tasks_alone: whether the calls that a loop makes of it have to be made in tasks of their own.
    """

    def __init__(self, *, blocking: bool = False, tasks_alone: bool = True) -> None:
        """Begin with nothing to do."""
        self._loop = no_loop if blocking else running_loop
        self._tasks_alone = tasks_alone
        self._tasks: set[asyncio.Task[None]] = set()
        """An event loop keeps a weak reference to its tasks alone."""
        self._handed: set[_Handed] = set()
        """What was handed to a loop that has not begun it yet."""

    def from_here(self) -> Aside:
        """Return what does the work of a coroutine that runs here, wherever it is closed one day."""
        return functools.partial(self._do, self._loop())

    def _do(
        self, home: asyncio.AbstractEventLoop | None, work: Coroutine[Any, Any, object], closed: GeneratorExit
    ) -> bool:
        """
        Do what a coroutine leaves to do that was `closed`; return whether it is done by now.

        It is begun at once, so that whatever needs no waiting is done even where the loop ends now. What it has to wait
        for goes on in a task of the running loop, behind what the coroutine itself waited for. Nobody hears a refusal
        of that task; what is raised before goes on.

        The garbage collector closes what it finds in whatever thread it runs. So the work is handed to the loop that is
        its `home`, if that runs; and inside a store's section it is left to the section's end.
        """
        left = vars(closed).get(_LEFT)
        if home is not None and home is not self._loop():
            if home.is_running() and self._hand_over(home, work, left):
                return False
            left = None  # it went with the loop
        if inside():
            self._go_on(work, left)
            return False
        return self._begin(work, left)

    def _hand_over(
        self, home: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, object], left: asyncio.Future[Any] | None
    ) -> bool:
        """Have a loop of another thread do it, and whoever waits for all of it; False where the loop was closed."""
        handed = (home, work, left)
        self._handed.add(handed)
        try:
            home.call_soon_threadsafe(self._take_up, handed)
        except RuntimeError:
            self._handed.discard(handed)
            return False
        return True

    def _take_up(self, handed: _Handed) -> None:
        """Begin what was handed to this thread's loop, or to one that stopped before it, unless it is begun already."""
        try:
            self._handed.remove(handed)
        except KeyError:
            return
        home, work, left = handed
        self._go_on(work, left if home is self._loop() else None)

    def postpone(self, work: Coroutine[Any, Any, object]) -> None:
        """Do what was asked for inside a store's section at its end. Nobody hears a refusal."""
        self._go_on(work)

    def _go_on(self, work: Coroutine[Any, Any, object], left: asyncio.Future[Any] | None = None) -> None:
        """
        Begin what could not be begun at once, behind this thread's section if it is in one.

        Whoever is here by chance must not be hurt by what it raises.
        """
        if inside():
            later(functools.partial(self._go_on, work, left))
            return
        try:
            self._begin(work, left)
        except MinutebookError:
            pass
        except Exception as error:
            threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, None)))

    def _begin(self, work: Coroutine[Any, Any, object], left: asyncio.Future[Any] | None) -> bool:
        loop = self._loop()
        if loop is None:
            drive(work)
            return True
        if self._tasks_alone:
            # From the first step on: a deadline is its task's, and would strike whoever is here by chance.
            self._keep(loop.create_task(_unheard(_behind(left, work))))
            return False
        steps = _behind(left, work).__await__()
        try:
            while (waits_for := next(steps)) is None:  # a pause, which waits for nothing
                pass
        except StopIteration:
            return True
        self._keep(loop.create_task(_unheard(_rest(steps, waits_for))))
        return False

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finished(self) -> None:
        """
        Wait until all of it is done that the running loop does.

        What was handed to that, or to a loop that runs no more, is begun here and now.
        """
        loop = self._loop()
        for handed in list(self._handed):
            if handed[0] is loop or not handed[0].is_running():
                self._take_up(handed)
        while own := [task for task in list(self._tasks) if task.get_loop() is loop]:
            await modules["asyncio"].wait(own)


_LEFT = "left"


def leave(future: asyncio.Future[Any], closed: GeneratorExit) -> None:
    """Note on what closes a coroutine what that waited for, so that what is done for it comes behind that."""
    if not future.done():
        setattr(closed, _LEFT, future)


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


async def _unheard(work: Awaitable[None]) -> None:
    with contextlib.suppress(MinutebookError):
        await work


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
