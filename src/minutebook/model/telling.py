"""
Telling somebody who only listens: whatever comes of it changes nothing for who tells.

An observer of the record (SPEC D4) and a handler of a chat (SPEC A8) are code of the host's. They may raise anything, a
cancellation of their own making included, and the write that they are told of is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Told = TypeVar("Told")
Returned = TypeVar("Returned")

STOPS: Final = (KeyboardInterrupt, SystemExit)
"""What ends the program itself, whoever happens to run: always passed on."""


def tell(listener: Callable[[Told], Returned], event: Told) -> tuple[Returned | None, BaseException | None]:
    """Call `listener` and return what it returned and what it raised, of which one is `None`; only a stop comes out."""
    try:
        return listener(event), None
    except STOPS:
        raise
    except BaseException as error:  # no await happened: a cancellation, or a closing, is of the listener's own making
        return None, error
