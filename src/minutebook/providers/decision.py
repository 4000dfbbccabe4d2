"""
What every decision provider is made of, as values.

A step has two sides. An *interface* is how a decision is asked for: `native` offers capabilities as tools, `structured`
asks for one typed object. An *API* is what one provider's requests and bodies look like. Neither knows of the other,
of the history or of HTTP, so each can be read, and tested, by itself.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, cast

import msgspec

from minutebook.errors import AgentDecisionProviderSchemaViolation, AgentDecisionProviderUnavailable
from minutebook.model.codec import JSON
from minutebook.model.decisions import CapabilitySpec, Decision, DecisionRequest, Observation
from minutebook.model.entries import Call, Draft
from minutebook.model.shown import type_alone

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from minutebook.ports import Wire
    from minutebook.providers.streams import Stream

Fields = dict[str, bytes]
"""A request body: the JSON of each top-level field, in the order in which they are sent."""
Code: TypeAlias = "Callable[[JSON], str | None]"
"""What returns the enumerated code of a provider's error object; `None` for one that is not in its table."""


class Diagnosis(enum.StrEnum):
    """Why a body that came in full is no valid typed decision: the `provider_error_code` of a schema violation."""

    REFUSAL = "refusal"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    INCOMPLETE = "incomplete"
    CONTEXT_LENGTH = "context_length_exceeded"
    FAILED = "response_failed"
    MALFORMED = "malformed_response"
    NO_TEXT = "no_text"
    TEXT_NOT_JSON = "text_not_json"
    OUTPUT_MISMATCH = "output_mismatch"
    DECISION_MISMATCH = "decision_mismatch"
    UNKNOWN_ACTION = "unknown_action"
    UNEXPECTED_CALL = "unexpected_call"
    ARGUMENTS_NOT_JSON = "arguments_not_json"
    ARGUMENTS_MISMATCH = "arguments_mismatch"


_HINTS: Final = {
    Diagnosis.LENGTH: "; raise max_output_tokens",
    Diagnosis.TEXT_NOT_JSON: "; the text has to be JSON, of the schema that was sent",
    Diagnosis.OUTPUT_MISMATCH: "; the text does not match the output schema",
    Diagnosis.ARGUMENTS_MISMATCH: "; the arguments do not match the capability's schema",
    Diagnosis.UNKNOWN_ACTION: "; it names a capability that the program does not have",
}


def violation(diagnosis: Diagnosis, form: str = "") -> AgentDecisionProviderSchemaViolation:
    """
    Return the error for a body without a valid typed decision; it holds the diagnosis and nothing of the body.

    `form` is what should have stood there, where that can be said in a few words.
    """
    hint = _HINTS.get(diagnosis, "") + (f", which is {form}" if form else "")
    return AgentDecisionProviderSchemaViolation(
        f"the response holds no valid typed decision: {diagnosis.value}{hint}", provider_error_code=diagnosis.value
    )


def unavailable(
    code: str, status: int | None = None, *, cause: str | None = None, advice: str = ""
) -> AgentDecisionProviderUnavailable:
    """
    Return the error for a transport or provider failure, by enumerated code and HTTP status alone.

    `cause` is the name of the type of the exception behind it, never its text; `advice` says what to do.
    """
    under = f" ({cause})" if cause else ""
    at = "" if status is None else f", HTTP status {status}"
    return AgentDecisionProviderUnavailable(
        f"the provider {_done(status)}: {code}{under}{at}{advice}", provider_error_code=code, status=status, cause=cause
    )


def _done(status: int | None) -> str:
    """Return what a provider did that left no response to use, as its HTTP status tells."""
    if status is None:
        return "gave no response"
    if status >= 500:
        return "failed"
    return "refused the request" if status >= 400 else "gave no usable response"


_STATUS: Final = re.compile("[0-9]{3}")


def reported(code: Code, error: JSON, otherwise: str) -> AgentDecisionProviderUnavailable:
    """
    Return the error for a failure that is reported under the status 200: by its code, where that is a known one.

    Servers that speak another maker's format give the status that it would have had for a code.
    """
    if known := code(error):
        return unavailable(known, 200)
    told = error.get("code") if isinstance(error, dict) else None
    if isinstance(told, str) and _STATUS.fullmatch(told):
        told = int(told)
    return unavailable(otherwise, told if type(told) is int and 400 <= told < 600 else 200)


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request before it takes a provider's form."""

    model: str
    instructions: str
    messages: bytes
    """The window: a JSON array of wire messages, which enters the body as these very bytes."""
    tools: tuple[CapabilitySpec, ...]
    idle: bool = False
    """Whether the tools are only shown, and none may be called."""
    schema: dict[str, JSON]
    """What a text that the model answers with must match, its root an object; empty for plain text."""
    max_output_tokens: int | None

    __repr__ = type_alone


class Api(msgspec.Struct, frozen=True, kw_only=True):
    """What one provider's API looks like: constants, and functions from JSON to JSON."""

    name: str
    """The wire format's name."""
    path: str
    """Where requests are posted; `{model}` in it stands for the model's name."""
    count_path: str
    model_prefix: str = ""
    """What the provider writes before a model's name where it lists them; a name is given with it or without."""
    fields: Callable[[Ask], Fields]
    """Return the fields of the request body."""
    code: Code
    """Return what an error object under the status 200 is called."""
    error: Callable[[dict[str, JSON]], JSON] = lambda body: body.get("error")
    """Return the error object of a body that is an error and nothing else; `None` for any other body."""
    check: Callable[[dict[str, JSON]], None]
    """Refuse a body that is no usable response: `AgentDecisionProviderUnavailable` or a schema violation."""
    text: Callable[[bytes], str | None]
    """Return what the model says in a response's fragment; `None` when that is nothing."""
    said: Callable[[str], bytes]
    """Return the payload of a response that says this text and nothing else, as the wire format keeps it."""
    called: Callable[[Sequence[tuple[Call, dict[str, JSON]]]], bytes]
    """Return the payload of a response that makes these calls and nothing else, as the wire format keeps it."""
    stream: Stream
    """How an answer is streamed."""
    billed: Callable[[dict[str, JSON]], JSON]
    """Return the input tokens by the provider's account, unchecked."""
    own: frozenset[str]
    """The fields that are ours, and those by which the provider would keep or choose a history of its own."""
    shared: Mapping[str, frozenset[str]] = {}
    """The fields of ours to which the caller may add members, and for each the members that are ours alone."""
    withheld: str = ""
    """The type of the entries in `input_transformations` that tell of reasoning withheld from the model, if any do."""
    of_tools: frozenset[str]
    """The fields that a caller may add where tools may be called, and nowhere else."""
    shows_spent: bool = False
    """Whether capabilities that are used up stay among the tools: reasoning is bound to them, and calls need them."""
    needs_output_bound: bool = False
    """Whether a request without a bound on what is generated is none."""
    needs_reasoning: Callable[[Mapping[str, bytes]], bool] = lambda _: False
    """Return whether, with these extra fields, a call goes back only with the reasoning that it came with."""


class Interface(Protocol):
    """How a decision is asked for, and how it is read."""

    @property
    def name(self) -> str:
        """`native` or `structured`."""
        ...

    @property
    def wire(self) -> Wire:
        """The wire format in which its conversation is kept."""
        ...

    def instructions(self, request: DecisionRequest) -> str:
        """Return the system text."""
        ...

    def tools(self, request: DecisionRequest) -> tuple[CapabilitySpec, ...]:
        """Return the capabilities that go as tools: those that are offered, and with some APIs those that were."""
        ...

    def schema(self, request: DecisionRequest) -> dict[str, JSON]:
        """Return what a text that the model answers with must match."""
        ...

    def result(self, position: int, call: Call, observation: Observation) -> Draft:
        """Return the draft that answers a call: built from the observation and from nothing else (SPEC D26)."""
        ...

    def read(self, request: DecisionRequest, draft: Draft) -> Decision:
        """Return the decision in a response's draft; its calls have no reference yet."""
        ...

    def restated(self, draft: Draft, decision: Decision) -> Draft:
        """Return a draft that states the decision and nothing else that stood in the response."""
        ...


# --- schemas ---


def is_object(schema: Mapping[str, JSON]) -> bool:
    """Return whether a schema says by itself that its values are objects."""
    return schema.get("type") == "object"


def in_object(name: str, schema: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return the schema of an object whose one property matches `schema`; definitions move up, where they are found."""
    inner = dict(schema)
    definitions = inner.pop("$defs", None)
    outer: dict[str, JSON] = {
        "type": "object",
        "properties": {name: inner},
        "required": [name],
        "additionalProperties": False,
    }
    return outer if definitions is None else {**outer, "$defs": definitions}


def is_closed(schema: JSON) -> bool:
    """
    Return whether every object in a schema requires all its properties and admits no other.

    OpenAI enforces only such schemas (`strict`) and refuses the request for any other.
    """
    if isinstance(schema, list):
        return all(map(is_closed, schema))
    if not isinstance(schema, dict):
        return True
    if is_object(schema):
        properties, required = schema.get("properties"), schema.get("required")
        names = set(properties) if isinstance(properties, dict) else set[str]()
        if schema.get("additionalProperties") is not False or names != set(cast("list[str]", required or [])):
            return False
    return all(map(is_closed, schema.values()))


# --- values of a body ---


def id_of(call: Call, key: str) -> dict[str, JSON]:
    """Return a call's id as a member called `key`; none where the provider left it out."""
    return {key: call.id} if call.id else {}


def text_at(holder: JSON, key: str) -> str:
    """
    Return the text at `holder[key]`, empty where there is none.

    A body is whatever a server sent, and what stands where a code should may not even be hashable. So a value of a body
    is looked up in a table only by way of this.
    """
    value = holder.get(key) if isinstance(holder, dict) else None
    return value if isinstance(value, str) else ""


def token_count(value: JSON) -> int | None:
    """Return a provider's token count if it is one: an integer of at least 0, and no boolean."""
    return value if type(value) is int and value >= 0 else None


def joined(fields: Mapping[str, bytes]) -> bytes:
    """Return the bytes of a JSON object with these fields."""
    return b"{%b}" % b",".join(b'"%b":%b' % (name.encode(), value) for name, value in fields.items())
