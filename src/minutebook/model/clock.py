"""Time as a parameter: every stored time comes from a clock that the host may replace, so that runs can be replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minutebook.errors import InvalidOption

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_WALL_MS = 253_402_300_800_000
"""Every stored time is earlier: the first millisecond of the year 10,000, which no calendar of Python's can show."""


def read_clock(clock: Callable[[], int]) -> int:
    """
    Return the present by `clock`, checked.

    Raises:
        InvalidOption: the clock raised, or gave no integer from 1970 to the end of 9999; nothing was written.
    """
    try:
        wall = clock()
    except Exception as error:
        raise InvalidOption(f"the clock raised {type(error).__name__}", option="clock") from error
    if type(wall) is not int or not 0 <= wall < MAX_WALL_MS:
        raise InvalidOption(
            "the clock must give Unix milliseconds as an int, from 1970 to the end of 9999", option="clock"
        )
    return wall
