"""
What an object says that was made for an event loop and met none, or the other way round.

Python's own words for a wrong `with` name a protocol and no way out. Classes take these as the methods that they have
not; a type checker is not told, so it goes on to refuse the line.
"""

from __future__ import annotations

from typing import NoReturn

from minutebook.errors import BlockingMismatch


def asynchronous_only(self: object, *_: object) -> NoReturn:
    """
    Refuse a plain `with`, as `__enter__` and `__exit__` of an asynchronous class.

    Raises:
        BlockingMismatch: always.
    """
    raise BlockingMismatch(
        f"this {type(self).__name__} is asynchronous: enter it with `async with` and await its methods, or take it "
        "from minutebook.sync"
    )


def blocking_only(self: object, *_: object) -> NoReturn:
    """
    Refuse an `async with`, as `__aenter__` and `__aexit__` of a class of `minutebook.sync`.

    Raises:
        BlockingMismatch: always.
    """
    raise BlockingMismatch(
        f"this {type(self).__name__} is one of minutebook.sync: enter it with a plain `with` and await nothing, or "
        "take it from minutebook"
    )
