"""
How a conversation is addressed, and which strings may address one.

Ids are opaque: they are compared by exact code points and never become part of a path, a key pattern or a statement.
So nothing is escaped or normalised here; the few strings that some store could not hold are refused for all stores
alike (promises I-32, I-33; bad inputs 1 to 15).
"""

from __future__ import annotations

import msgspec

from minutebook.errors import InvalidId

MAX_ID_BYTES = 512
"""The longest namespace or id, in UTF-8 bytes."""


def check_id(value: object, what: str) -> str:
    """
    Return `value` if it is a string that every store can hold, else refuse it.

    Raises:
        InvalidId: not exactly `str`, empty or blank, longer than 512 UTF-8 bytes, or with a NUL or lone surrogate.
    """
    if type(value) is not str:
        raise InvalidId(f"{what} must be a str, not {type(value).__name__}")
    if not value.strip():
        raise InvalidId(f"{what} is empty or blank")
    if "\0" in value:
        raise InvalidId(f"{what} holds a NUL character")
    if len(value) > MAX_ID_BYTES:
        raise InvalidId(f"{what} has {len(value):,} characters; the limit is {MAX_ID_BYTES} UTF-8 bytes")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidId(f"{what} holds a lone surrogate at position {error.start}") from None
    if size > MAX_ID_BYTES:
        raise InvalidId(f"{what} has {size:,} UTF-8 bytes; the limit is {MAX_ID_BYTES}")
    return value


def check_given_id(value: object, what: str) -> str:
    """Return the id of something that may have none, which is ""; else as `check_id`."""
    return check_id(value, what) if value != "" else ""


class ConversationKey(msgspec.Struct, frozen=True, order=True):
    """
    The address of one conversation: a namespace from trusted configuration, and an id within it.

    Raises:
        InvalidId: either part is no string that every store can hold.
    """

    namespace: str
    id: str

    def __post_init__(self) -> None:
        check_id(self.namespace, "namespace")
        check_id(self.id, "conversation id")
