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
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from minutebook.errors import StoreReentered

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

is_mine: Final = methodcaller("_is_owned")
"""Whether this thread has an `RLock`: what `threading.Condition` asks one too. The documented interface cannot say."""


class _Here(threading.local):
    """The locks of one thread's own."""

    def __init__(self) -> None:
        """Begin outside of all sections."""
        self.inside: Any = threading.RLock()
        self.catching_up = threading.RLock()


_here: Final = _Here()

_left: Final[dict[int, deque[Callable[[], object]]]] = {}
"""
What each thread has to do at the end of its section. This and `_here` are the mutable values of this module, because
the rule that they keep is about threads, whatever stores they use.
"""


class _Section:
    """Refuses a thread that is inside a section already, and does what was left to the end of one."""

    def __enter__(self) -> AbstractContextManager[object]:
        inside: Any = _here.inside
        if inside._is_owned():
            raise StoreReentered(
                "a store was called inside another call of this thread, from a signal handler or a finalizer; nothing "
                "was done. Raise an exception there, such as SystemExit, and call the store where that is caught"
            )
        return inside  # type: ignore[no-any-return]

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if _left:
            _catch_up()


section: Final = _Section()


def inside() -> bool:
    """Return whether this thread is inside a section, so that no store can be called."""
    return bool(is_mine(_here.inside))


def later(step: Callable[[], object]) -> None:
    """Have this thread take a step at the end of the section that it is in."""
    _left.setdefault(get_ident(), deque()).append(step)


def _catch_up() -> None:
    steps = _left.get(get_ident())
    # The steps enter sections of their own. Were each to take the next step there, they would pile up as calls.
    if steps is None or is_mine(_here.catching_up):
        return
    with _here.catching_up:
        while steps:
            steps.popleft()()
        _left.pop(get_ident(), None)
