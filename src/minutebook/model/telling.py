"""
Code of the host's that is called: whatever it raises is its own affair, but for a stop that is meant for who calls it.

An observer of the record (SPEC D4) and a handler of a chat (SPEC A8) only listen: the write that they are told of is
done. What a capability raises is told to the model (SPEC D28). Each may raise a cancellation of its own making, which
looks the same as one of the caller's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias, TypeVar

Told = TypeVar("Told")
Returned = TypeVar("Returned")

STOPS: Final = (KeyboardInterrupt, SystemExit)
"""What ends the program itself, whoever happens to run: always passed on."""

Cancelled: TypeAlias = Callable[[], bool | None]
"""Says whether whoever runs this was asked to end; `None` where nobody can tell: no loop of asyncio runs here."""


def is_own(error: BaseException, cancelled: Cancelled, *, waited: bool) -> bool:
    """
    Return whether what the host's code raised is of its own making; `waited` says that it was awaited.

    Where nothing is awaited nobody else can close or cancel it. At an await whoever waits may be closed, or cancelled,
    and where nobody can tell that counts as so.
    """
    if isinstance(error, STOPS):
        return False
    if isinstance(error, Exception) or not waited:
        return True
    return not isinstance(error, GeneratorExit) and cancelled() is False


def tell(listener: Callable[[Told], Returned], event: Told) -> tuple[Returned | None, BaseException | None]:
    """Call `listener` and return what it returned and what it raised, of which one is `None`; only a stop comes out."""
    try:
        return listener(event), None
    except STOPS:
        raise
    except BaseException as error:  # no await happened: a cancellation, or a closing, is of the listener's own making
        return None, error
