"""
The words that the formats share, and the checks that read one message: each refuses with the path to the place.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from minutebook.errors import InvalidMessage
from minutebook.model import codec
from minutebook.model.shown import type_alone

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from minutebook.model.codec import JSON


class Side(enum.Enum):
    """Who speaks in a message."""

    INSTRUCTIONS = "instructions"
    USER = "user"
    ASSISTANT = "assistant"
    RESULTS = "results"


class Answer(msgspec.Struct, frozen=True):
    """Where in a response's payload the part that is sent back stands. `messages` is 0 where nothing is usable."""

    start: int = 0
    stop: int = 0
    messages: int = 0
    path: str = "$"

    __repr__ = type_alone


class Reply(msgspec.Struct, frozen=True):
    """What a result says of the call that it answers; the id, the name or both may be empty."""

    id: str
    name: str

    __repr__ = type_alone


class Piece(msgspec.Struct, frozen=True):
    """One step of a transcript: a message, or the items of one response, with the place where it stands."""

    path: str
    index: int
    side: Side
    payload: bytes
    value: JSON

    __repr__ = type_alone


class Names:
    """The pairs that a rename still has to use."""

    def __init__(self, names: Sequence[tuple[str, str]]) -> None:
        self._left: dict[str, deque[str]] = {}
        for old, new in names:
            self._left.setdefault(old, deque()).append(new)

    def new(self, old: str) -> str | None:
        """Return the new id for the next place that holds `old`; `None` leaves it as it is."""
        left = self._left.get(old)
        return left.popleft() if left else None

    def replace(self, holder: dict[str, JSON], key: str) -> None:
        """Give the id at `holder[key]` its new name; a missing id has the old name ""."""
        old = _text(holder.get(key))
        new = self.new(old)
        if new is not None and new != old:
            holder[key] = new


def _text(value: JSON) -> str:
    return value if isinstance(value, str) else ""


def identifier(holder: dict[str, JSON], key: str, path: str) -> str:
    """Return the id or name at `holder[key]`; empty where it is missing or null."""
    value = holder.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidMessage(f"{key} is a {type(value).__name__}, not a text", path=f"{path}.{key}")
    return value


def members(value: JSON, path: str) -> dict[str, JSON]:
    """Return `value` if it is a JSON object."""
    if not isinstance(value, dict):
        raise InvalidMessage(f"a JSON object is needed here, not a {type(value).__name__}", path=path)
    return value


def array(value: JSON, path: str) -> list[JSON]:
    """Return `value` if it is a JSON array."""
    if not isinstance(value, list):
        raise InvalidMessage(f"a JSON array is needed here, not a {type(value).__name__}", path=path)
    return value


def refuse_error(body: dict[str, JSON], path: str) -> None:
    """Refuse a body that reports an error instead of an answer; a null error is none."""
    if body.get("error") is not None:
        raise InvalidMessage("the body is an error, not a response", path=f"{path}.error")


def only(values: list[JSON], what: str, path: str) -> JSON:
    """Return the one alternative of a response."""
    if len(values) != 1:
        raise InvalidMessage(f"{len(values)} {what} where exactly one is kept; ask for one", path=path)
    return values[0]


def unknown_role(value: dict[str, JSON], roles: str, path: str) -> InvalidMessage:
    """Return the refusal of a role that the format does not have."""
    state = "unknown" if "role" in value else "missing"
    return InvalidMessage(f"the role is {state}; this format has {roles}", path=f"{path}.role")


def check_content(message: dict[str, JSON], path: str, others: Mapping[str, str]) -> None:
    """Refuse content that is neither a text nor a list of parts, and parts as `refuse_foreign_parts` does."""
    content = message.get("content")
    if not isinstance(content, (str, list)):
        raise InvalidMessage("content is neither a text nor a list of parts", path=f"{path}.content")
    refuse_foreign_parts(content, others, f"{path}.content")


def refuse_foreign_parts(content: list[JSON] | str, others: Mapping[str, str], path: str) -> None:
    """
    Refuse the first part of a type that only another format has, which `others` names.

    Parts of unknown types pass (bad input 47). But a call that stands where nobody looks for one is never paired, and a
    provider would refuse every request with it, or with any part of another API, from then on (case O-12).
    """
    for index, part in enumerate(content if isinstance(content, list) else ()):
        kind = kind_of(part)
        if kind in others:
            raise foreign(f"a part of the type {kind}", others[kind], f"{path}[{index}]")


def refuse_foreign(message: dict[str, JSON], side: Side | None, others: Mapping[str, str], path: str) -> None:
    """
    Refuse the first member that only another format has, which `others` names.

    What such a member holds, as a call, would be in no request. A null in what the model said is sent nowhere.
    """
    for name in message:
        if name in others and not (message[name] is None and side is Side.ASSISTANT):
            raise foreign(f"a message with {name}", others[name], f"{path}.{name}")


def foreign(what: str, format_: str, path: str) -> InvalidMessage:
    """Return the refusal of what only the format `format_` has."""
    return InvalidMessage(
        f"{what} is of the format {format_}; convert the message before it is recorded here", path=path
    )


def kind_of(value: JSON) -> str:
    """Return the `type` of an item, block or part; empty where it has none."""
    return _text(value.get("type")) if isinstance(value, dict) else ""


def refuse_beside(value: dict[str, JSON], allowed: frozenset[str], path: str) -> None:
    """Refuse a member beside those that a result has: what stands there would be said, and not by a tool."""
    if not value.keys() <= allowed:
        raise InvalidMessage("a result has nothing beside it; this holds a member that no result has", path=path)


def are_parts(output: JSON, types: frozenset[str]) -> bool:
    """Return whether `output` is a list of content parts of the given types, which goes to the provider as it is."""
    return isinstance(output, list) and len(output) > 0 and all(kind_of(part) in types for part in output)


def refuse_other_parts(content: JSON, types: frozenset[str], path: str) -> None:
    """Refuse a result's list of parts unless it could be given without the result around it."""
    if isinstance(content, list) and not are_parts(content, types):
        raise InvalidMessage(f"a result holds parts of the types {', '.join(sorted(types))}, at least one", path=path)


def as_text(output: JSON) -> str:
    """Return a text as it is, any other value as JSON text."""
    return output if isinstance(output, str) else codec.encode(output).decode()
