"""
What a store may hold, and what a window may send: two bounds that never depend on each other (SPEC D7).

Bounds are checked where they are given, so a value that exists is legal (bad inputs 51, 52, 56).
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import cast

import msgspec

from minutebook.errors import InvalidOption

MAX_COUNT = 2**62
"""No count or size is larger; every store keeps them in 64 bits."""

WINDOW_BYTES = 262_144
"""What a window may hold unless its limits say otherwise."""


def check_count(value: object, name: str) -> int:
    """
    Return `value` if it is a positive integer, else refuse it.

    Raises:
        InvalidOption: not exactly `int` (a bool is none), zero, negative, or beyond 2**62.
    """
    if type(value) is not int:
        raise InvalidOption(f"{name} must be an int, not {type(value).__name__}", option=name)
    if not 0 < value <= MAX_COUNT:
        told = value if abs(value) <= 2 * MAX_COUNT else f"a number of {value.bit_length():,} bits"
        raise InvalidOption(f"{name} must be between 1 and 2**62, not {told}", option=name)
    return value


def check_callable(value: object, name: str) -> None:
    """
    Refuse what is given as a function and is none; `None` is for leaving it out.

    Raises:
        InvalidOption: neither a function nor `None`.
    """
    if value is not None and not callable(value):
        raise InvalidOption(f"{name} is a function, not {type(value).__name__}", option=name)


def check_listed(value: object, name: str) -> tuple[object, ...]:
    """
    Return the values of a list or a tuple.

    Raises:
        InvalidOption: neither of the two, a text or a generator among them.
    """
    if not isinstance(value, (list, tuple)):
        raise InvalidOption(f"{name} is a list or a tuple, not {type(value).__name__}", option=name)
    return tuple(cast("tuple[object, ...]", value))


def check_place(value: object, name: str) -> int:
    """
    Return `value` if it can be a place in a record, or 0 for the one before its first, else refuse it.

    Raises:
        InvalidOption: not exactly `int` (a bool is none), negative, or beyond 2**62.
    """
    return 0 if type(value) is int and not value else check_count(value, name)


def check_flag(value: object, name: str) -> bool:
    """
    Return `value` if it is a bool, else refuse it: `"no"` counts as true in Python.

    Raises:
        InvalidOption: not exactly `bool`.
    """
    if type(value) is not bool:
        raise InvalidOption(f"{name} is True or False, not {type(value).__name__}", option=name)
    return value


def check_retained(value: object, max_bytes: int) -> int:
    """
    Return `value` if it may bound what one conversation retains, beside windows of `max_bytes`.

    A window that was chosen larger than all that is retained would never be reached, so one of both is a slip. The
    default window is nobody's choice and leaves a small conversation free to be small.

    Raises:
        InvalidOption: no positive integer, or below a window that is not the default one (bad input 52).
    """
    retained = check_count(value, "max_retained_bytes")
    if retained < max_bytes != WINDOW_BYTES:
        raise InvalidOption(
            f"max_retained_bytes {retained:,} is below the window's max_bytes {max_bytes:,}, which could never be "
            "reached; raise the first or lower the second",
            option="max_retained_bytes",
        )
    return retained


def ttl_ms(ttl: object, option: str = "ttl") -> int | None:
    """
    Return a time to live in milliseconds; `None` means that nothing expires. `option` is the name it was given under.

    Raises:
        InvalidOption: not a `timedelta` or a number of seconds, or not finite and positive.
    """
    if ttl is None:
        return None
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    if type(seconds) not in (int, float):
        raise InvalidOption(f"{option} must be a timedelta or seconds, not {type(ttl).__name__}", option=option)
    number = seconds if isinstance(seconds, (int, float)) else math.nan
    if not 0.001 <= number <= 1e12:  # an int is compared as what it is: as a float it may be too large
        raise InvalidOption(f"{option} must be finite and at least one millisecond", option=option)
    return int(number * 1000)


class StoreBounds(msgspec.Struct, frozen=True, kw_only=True):
    """
    What one namespace of a store may hold; `None` means without bound (SPEC D6, D7, D19).

    Raises:
        InvalidOption: a bound that is no positive integer, or a conversation's bound above the store's.
    """

    max_sessions: int | None = None
    max_bytes: int | None = None
    max_retained_bytes: int | None = None
    ttl_ms: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_sessions", "max_bytes", "max_retained_bytes", "ttl_ms"):
            value = getattr(self, name)
            if value is not None:
                check_count(value, name)
        if self.max_bytes and self.max_retained_bytes and self.max_retained_bytes > self.max_bytes:
            raise InvalidOption(
                f"max_retained_bytes {self.max_retained_bytes:,} exceeds the store's max_bytes {self.max_bytes:,}",
                option="max_retained_bytes",
            )


class WindowLimits(msgspec.Struct, frozen=True, kw_only=True):
    """
    What may be sent: at most `max_messages` wire messages, and `max_bytes` UTF-8 bytes of their JSON (SPEC D7).

    When a limit bites, the window is cut down to `low_water` of the limits and then left alone until a limit bites
    again, so that a provider's prompt cache stays warm; 1.0 cuts no more than it must. `None` takes the face's own
    default (0.65 for a `Conversation`, 1.0 elsewhere). Tools, schemas and system instructions are not counted here.

    Raises:
        InvalidOption: a limit that is no positive integer, or a `low_water` outside 0 < low_water <= 1.
    """

    max_messages: int = 128
    max_bytes: int = WINDOW_BYTES
    low_water: float | None = None

    def __post_init__(self) -> None:
        check_count(self.max_messages, "max_messages")
        check_count(self.max_bytes, "max_bytes")
        low = self.low_water
        if low is not None and (type(low) not in (int, float) or not 0 < low <= 1):
            raise InvalidOption("low_water must be a number above 0 and at most 1", option="low_water")


def checked_limits(limits: object) -> WindowLimits:
    """
    Return limits as they were given, the default ones for `None`.

    Raises:
        InvalidOption: they are no `WindowLimits`.
    """
    if limits is None:
        return WindowLimits()
    if type(limits) is not WindowLimits:  # a subclass may have left its checks out
        raise InvalidOption(f"limits is a WindowLimits, not {type(limits).__name__}", option="limits")
    return limits
