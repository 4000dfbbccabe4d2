"""What a fake is told to answer: answers of a model, and everything that can happen instead of one."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from minutebook.errors import InvalidOption
from minutebook.model.shown import type_alone

__all__ = [
    "Answer",
    "Disconnect",
    "Failure",
    "FunctionCall",
    "Line",
    "Reply",
    "Silence",
    "Stall",
    "StreamFailure",
    "html_page",
    "malformed_json",
    "redirect",
]


class FunctionCall(msgspec.Struct, frozen=True):
    """A call that the model makes."""

    name: str
    """The tool."""
    arguments: Any
    """A JSON value; for the OpenAI formats also a text, which is sent as it is, JSON or not."""
    id: str | None = ""
    """A call id to use again, as some providers do; empty for a fresh one; `None` for a Gemini call without any."""

    __repr__ = type_alone


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """
    What the model says. Each fake makes its provider's full body of it, with ids, usage and seals.

    The order in a body is reasoning, text, calls. Where a provider shows no reasoning (OpenAI Chat), it only costs.

    Raises:
        InvalidOption: an answer that says nothing at all and was not cut.
    """

    text: str = ""
    """What ends a run under `native` is JSON: `{"output": "done"}`, or the output itself where that is an object."""
    calls: tuple[FunctionCall, ...] = ()
    thinking: str | None = None
    """The reasoning that is shown. `None` for none; an empty text is a block whose content is withheld, sealed."""
    redacted: bool = False
    """Anthropic: the reasoning is a `redacted_thinking` block."""
    refusal: str = ""
    """Why the model refuses, in its provider's own form."""
    ending: Literal["complete", "length", "filter"] = "complete"
    """Whether the answer was cut at the output limit or by a filter."""

    __repr__ = type_alone

    def __post_init__(self) -> None:
        said = self.text or self.calls or self.refusal or self.thinking is not None or self.redacted
        if not said and self.ending == "complete":
            raise InvalidOption("an answer that ends by itself says something: text, calls, thinking or a refusal")


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """An error of the service in its provider's own form, for example 429, 500, 503 or 529."""

    status: int
    code: str | None = None
    """The detailed code, where the provider has one; else what it usually says under this status."""
    headers: dict[str, str] = {}
    """Such as `retry-after`."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A response that is sent exactly as it is, whatever was asked for."""

    status: int = 200
    headers: dict[str, str] = msgspec.field(default_factory=lambda: {"content-type": "application/json"})
    body: bytes = b""

    __repr__ = type_alone


class Disconnect(msgspec.Struct, frozen=True):
    """A connection that ends in the middle of an answer, whether that is a body or a stream."""

    answer: Answer
    after_bytes: int
    """How much of the answer arrives."""


class Stall(msgspec.Struct, frozen=True):
    """An answer that stops in the middle while the connection stays open, until the client or the fake ends it."""

    answer: Answer
    after_bytes: int
    """How much of the answer arrives."""


class StreamFailure(msgspec.Struct, frozen=True, kw_only=True):
    """An error that is told inside a stream whose status was 200. Without a stream it is a `Failure`."""

    answer: Answer
    status: int
    after_events: int = 1
    """How many events of the answer arrive before."""


class Silence(msgspec.Struct, frozen=True):
    """No response at all: the connection stays open until the client gives up or the fake is closed."""


Line: TypeAlias = "Answer | Failure | Reply | Disconnect | Stall | StreamFailure | Silence"
"""One line of a script."""


def html_page(status: int = 502) -> Reply:
    """Return what a proxy says in the place of a service."""
    page = b"<!doctype html><html><body><h1>Bad gateway</h1></body></html>"
    return Reply(status=status, headers={"content-type": "text/html"}, body=page)


def redirect(location: str, status: int = 307) -> Reply:
    """Return a redirect, which no provider's API gives and a captive network does."""
    return Reply(status=status, headers={"location": location})


def malformed_json() -> Reply:
    """Return a success whose body is no JSON: it ends too soon, though its length is right."""
    return Reply(body=b'{"id": "half a body", "object": ')
