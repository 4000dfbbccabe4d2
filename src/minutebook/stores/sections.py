"""
What may not happen inside a store's lock: another call of a store by the same thread.

Python runs code between any two steps of a call. The garbage collector closes generators and coroutines that nobody
needs any more, and what a turn in one of them holds has to be given back; a signal handler may call a store too. If the
thread has a store's lock just then, such a call would wait for its own thread, or write into a transaction that is
under way. So every lock of a store is taken by

    with section as inside, inside, self._lock:

What a closed turn has left is done once the section has ended (`later`); any other call is refused. `inside` is a lock
of the thread's own, which nobody else ever takes. It alone says whether the thread is inside a section: the interpreter
takes and releases it in one step, which no signal can cut in two.
"""

from __future__ import annotations

import threading
from collections import deque
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

from minutebook.errors import StoreReentered

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

is_mine: Final = methodcaller("_is_owned")
"""Whether this thread has an `RLock`: what `threading.Condition` asks one too. The documented interface cannot say."""


_MADE: Final[dict[str, Callable[[], Any]]] = {
    "inside": threading.RLock,
    "catching_up": threading.RLock,
    "left": deque,
}


class _Here(threading.local):
    """The locks of one thread's own, and what it has to do at the end of its section."""

    def __getattr__(self, name: str) -> Any:
        """Make one when it is first wanted, in one step, since code that strikes in between may want it too."""
        return self.__dict__.setdefault(name, _MADE[name]())


_here: Final = _Here()
"""The mutable value of this module, because the rule that it keeps is about threads, whatever stores they use."""


class _Section:
    """Refuses a thread that is inside a section already, and does what was left to the end of one."""

    def __enter__(self) -> AbstractContextManager[object]:
        inside: Any = _here.inside
        if inside._is_owned():
            raise StoreReentered(
                "a store was called inside another call of this thread, from a signal handler, a finalizer, or a clock "
                "or callback of the host's that a store had called; nothing was done. Call it outside of that: a "
                "handler may raise, such as SystemExit, and the store be called where that is caught"
            )
        return inside  # type: ignore[no-any-return]

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if _here.left:
            _catch_up()


section: Final = _Section()


def inside() -> bool:
    """Return whether this thread is inside a section, so that no store can be called."""
    return bool(is_mine(_here.inside))


def later(step: Callable[[], object]) -> None:
    """Have this thread take a step at the end of the section that it is in."""
    _here.left.append(step)


def _catch_up() -> None:
    # The steps enter sections of their own. Were each to take the next step there, they would pile up as calls.
    if is_mine(_here.catching_up):
        return
    raised: BaseException | None = None
    with _here.catching_up:
        while steps := _here.left:
            try:
                steps.popleft()()
            except BaseException as error:  # an exit: the other steps are taken all the same
                raised = error
    if raised is not None:
        raise raised
