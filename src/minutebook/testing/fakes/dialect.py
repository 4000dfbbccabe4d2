"""What the four fakes have in common: how a provider's rules, bodies and errors are given to the server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import msgspec

from minutebook.model.shown import type_alone
from minutebook.testing.fakes.answers import Answer
from minutebook.testing.fakes.seals import Seal, canonical

if TYPE_CHECKING:
    from minutebook.model.codec import JSON

__all__ = [
    "Asked",
    "Dialect",
    "Problem",
    "Route",
    "array",
    "event",
    "members",
    "picked",
    "pieces",
    "repeated",
    "token_count",
]

CREATED: Final = 1_790_000_000
"""When all answers were made, in seconds: a fake has no clock."""

_BYTES_A_TOKEN: Final = 4
_TOKENS_OF_A_REQUEST: Final = 3
_PIECE: Final = 7
"""Characters in one delta of a stream: few, so that every text comes in several."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request is refused, in the provider's words."""

    status: int = 400
    type: str
    """The provider's class of error, for example `invalid_request_error`."""
    message: str
    code: str | None = None
    param: str | None = None
    """The place in the request, in the provider's notation."""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """What a path asks for."""

    kind: Literal["generate", "count"]
    model: str = ""
    """The model, where it is part of the path."""
    stream: bool = False
    """Whether the path asks for a stream; elsewhere the body does."""
    framed: bool = True
    """Whether a stream comes as server-sent events."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A request that passed all rules, and what its answer is made with."""

    route: Route
    body: dict[str, Any]
    headers: Mapping[str, str]
    """By lower-case names."""
    seal: Seal
    tokens: int
    """What the request costs."""
    fresh: Callable[[str], str]
    """Returns a new id of this kind."""

    __repr__ = type_alone


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """One provider's API as values and pure functions."""

    name: str
    root: str
    """What the base URL ends with, as the official client wants it."""
    route: Callable[[str, Mapping[str, str]], Route | None]
    """From the path and the query."""
    identified: Callable[[Mapping[str, str], Mapping[str, str]], Problem | None]
    """Refuses headers and a query without a key, or without what else the service demands."""
    check: Callable[[Route, dict[str, Any], Mapping[str, str], Seal], Problem | None]
    tokens: Callable[[Route, dict[str, Any], Mapping[str, str], Seal], int]
    overflow: Callable[[dict[str, Any], int, int], Problem | None]
    """Refuses a request of so many tokens for a model of so many; the second number is the window."""
    counted: Callable[[int], dict[str, Any]]
    """The body of the count endpoint."""
    respond: Callable[[Asked, Answer], dict[str, Any]]
    events: Callable[[Asked, dict[str, Any]], list[bytes]]
    """A response's body as the pieces of a stream."""
    failed: Callable[[int, str | None], Problem]
    """What the service says under a status."""
    error: Callable[[Problem], dict[str, Any]]
    broken: Callable[[Problem], bytes]
    """An error as an event of a stream."""
    malformed: Callable[[str], Problem]
    """A body that is no JSON object, or a path that leads nowhere."""
    sealed: frozenset[str]
    """The fields that hold a seal."""


def token_count(counted: Any) -> int:
    """
    Return what a request costs at a fake: 3, and a token for every 4 bytes begun of the counted fields.

    The bytes are those of compact JSON with sorted keys. So the count is the same for the same content, grows by one or
    more with each message, and never falls when anything is added. It is no real tokenizer's, and does not try to be.
    """
    return _TOKENS_OF_A_REQUEST + -(-len(canonical(counted)) // _BYTES_A_TOKEN)


def members(value: Any) -> dict[str, Any]:
    """Return a JSON object, or an empty one for anything else: the shape was checked, or the rule does not apply."""
    return cast("dict[str, Any]", value) if type(value) is dict else {}


def array(value: Any) -> list[Any]:
    """Return a JSON array, or an empty one for anything else."""
    return cast("list[JSON]", value) if type(value) is list else []


def picked(body: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return those fields of a body that have these names and a value."""
    return {name: body[name] for name in names if body.get(name) is not None}


def repeated(names: Iterable[str]) -> str | None:
    """Return the first name that stands there a second time."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def pieces(text: str) -> list[str]:
    """Return a text in the pieces in which a stream brings it; an empty text has none."""
    return [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]


def event(value: Any, name: str = "") -> bytes:
    """Return one server-sent event."""
    return (b"event: %b\n" % name.encode() if name else b"") + b"data: %b\n\n" % canonical(value)
