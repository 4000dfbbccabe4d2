"""
Anthropic Messages: the request's fields, what a body says, and what its errors are called.

The answer's schema goes along as `output_config.format`, in the part of JSON Schema that the API takes; whatever of it
the API cannot hold the model to is told in words, and held here all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from minutebook.model import codec
from minutebook.model.codec import JSON
from minutebook.model.decisions import CapabilitySpec
from minutebook.providers.counting import ANTHROPIC as ANTHROPIC_COUNTING
from minutebook.providers.decision import Api, Ask, Diagnosis, Fields, id_of, is_object, text_at, violation
from minutebook.providers.sdk_http import Sdk
from minutebook.providers.streams import Stream, joined_blocks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from minutebook.model.entries import Call

DROP_BLOCK_BETA: Final = "thinking-binding-controls-2026-08-01"
"""The beta header under which the API takes `thinking.block_binding`."""

# --- errors ----------------------------------------------------------------------------------------------------------

_CODES: Final = {
    "exceed_context_size_error": "context_length_exceeded",
    "request_too_large": "context_length_exceeded",
    **{
        code: code
        for code in (
            "invalid_request_error",
            "authentication_error",
            "billing_error",
            "permission_error",
            "not_found_error",
            "rate_limit_error",
            "timeout_error",
            "api_error",
            "overloaded_error",
            "conflict_error",
            "tool_reference_unresolved",
        )
    },
}
"""The provider's words that are passed on. A closed table, since a body could hold anything, a key among it."""
_OVERFLOWS: Final = ("prompt is too long", "input length and `max_tokens` exceed context limit")
_NO_CREDIT: Final = "credit balance is too low"


def code_of(status: int, error: JSON) -> str | None:
    """
    Return the enumerated code of an error object: its stable detail, else its type; `None` for one not in the table.

    An overflow and an empty account have no code of their own, only a message under `invalid_request_error`.
    """
    message, details = text_at(error, "message"), error.get("details") if isinstance(error, dict) else None
    if status == 413 or message.startswith(_OVERFLOWS):
        return "context_length_exceeded"
    if _NO_CREDIT in message:
        return "billing_error"
    return _CODES.get(text_at(details, "error_code")) or _CODES.get(text_at(error, "type"))


ANTHROPIC_SDK: Final = Sdk(
    package="anthropic",
    blocking="Anthropic",
    asynchronous="AsyncAnthropic",
    base_error="AnthropicError",
    key="ANTHROPIC_API_KEY",
    sender="_attempt_request",
    versions="2.10 to 2.15",
    sends_tuples=True,
    authenticates=lambda client: any((client.api_key, client.auth_token, client.credentials)),
    code=code_of,
)

# --- the request -----------------------------------------------------------------------------------------------------


def request_fields(ask: Ask) -> Fields:
    """Return the request's fields. The window's bytes are `messages` as they are."""
    schema = enforced_schema(ask.schema)
    system = [ask.instructions] if ask.instructions else []
    fields = {"model": codec.encode(ask.model), "max_tokens": codec.encode(ask.max_output_tokens)}
    if schema is None:
        told = codec.encode(ask.schema).decode()
        system.append(f"When you are done, answer with one JSON value of this schema and nothing else: {told}")
    if system:
        fields["system"] = codec.encode("\n\n".join(system))
    fields["messages"] = ask.messages
    fields |= _tool_fields(ask)
    if schema is not None:
        fields["output_config"] = codec.encode({"format": {"type": "json_schema", "schema": schema}})
    return fields


_STAND_IN: Final = CapabilitySpec(name="none", description="Not to be called.", parameters={"type": "object"})
"""Stands beside calls in the messages where nothing is declared; the API compares no call with the tools."""


def _tool_fields(ask: Ask) -> Fields:
    """Return the tools. Where none may be called the request says so, for calls are taken back beside tools alone."""
    tools = ask.tools or ((_STAND_IN,) if _holds_calls(ask.messages) else ())
    if not tools:
        return {}
    fields = {"tools": codec.encode([_tool(spec) for spec in tools])}
    return fields if ask.tools and not ask.idle else fields | {"tool_choice": b'{"type":"none"}'}


def _holds_calls(messages: bytes) -> bool:
    """Return whether there is a call, or a result of one, among the messages; linear in them."""
    contents = [message.get("content") for message in cast("list[dict[str, JSON]]", codec.decode(messages))]
    blocks = [block for content in contents if isinstance(content, list) for block in content]
    return any(text_at(block, "type") in ("tool_use", "tool_result") for block in blocks)


def _tool(spec: CapabilitySpec) -> dict[str, JSON]:
    return {"name": spec.name, "description": spec.description, "input_schema": spec.parameters}


_KEPT: Final = frozenset({"$ref", "type", "enum", "const", "title", "description", "required"})
_LISTS: Final = {"anyOf": "anyOf", "oneOf": "anyOf", "allOf": "allOf"}
_FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}
)


def enforced_schema(schema: JSON) -> dict[str, JSON] | None:
    """
    Return the part of a schema that the API enforces, what it cannot hold told in `description`.

    `None` where that part would refuse answers that the schema takes, or say nothing: an object of any properties, or
    any value at all.
    """
    if not isinstance(schema, dict) or not schema.keys() & {"$ref", "type", "enum", "const", *_LISTS}:
        return None
    if is_object(schema) and schema.get("additionalProperties") is not False and not schema.get("properties"):
        return None
    kept: dict[str, Any] = {key: value for key, value in schema.items() if key in _KEPT}
    told = {key: value for key, value in schema.items() if key not in _KEPT}
    for key, name in _LISTS.items():
        if key in told:
            kept[name] = [enforced_schema(each) for each in cast("list[JSON]", told.pop(key))]
    for key in ("properties", "$defs"):
        if key in told:
            named = cast("dict[str, JSON]", told.pop(key))
            kept[key] = {name: enforced_schema(each) for name, each in named.items()}
    if "items" in told:
        kept["items"] = enforced_schema(told.pop("items"))
    if is_object(schema):
        told.pop("additionalProperties", None)
        kept |= {"properties": kept.get("properties", {}), "additionalProperties": False}
    if told.get("format") in _FORMATS:
        kept["format"] = told.pop("format")
    if told.get("minItems") in (0, 1):
        kept["minItems"] = told.pop("minItems")
    if _has_none(kept):
        return None
    if told:
        kept["description"] = "\n\n".join(filter(None, [text_at(kept, "description"), codec.encode(told).decode()]))
    return kept


def _has_none(kept: dict[str, Any]) -> bool:
    """Return whether one of the schemas inside could not be told."""
    inner = [kept.get("items", True), *kept.get("anyOf", ()), *kept.get("allOf", ())]
    inner += [*kept.get("properties", {}).values(), *kept.get("$defs", {}).values()]
    return any(each is None for each in inner)


# --- the response ----------------------------------------------------------------------------------------------------

_ENDINGS: Final = {
    "refusal": Diagnosis.REFUSAL,
    "max_tokens": Diagnosis.LENGTH,
    "model_context_window_exceeded": Diagnosis.CONTEXT_LENGTH,
}
_USABLE: Final = frozenset({"end_turn", "tool_use", "stop_sequence"})


def error_of(body: dict[str, JSON]) -> JSON:
    """Return the error object of a body that is an error by its type, or has one; `None` for any other."""
    error = body.get("error")
    return {} if error is None and body.get("type") == "error" else error


def check(body: dict[str, JSON]) -> None:
    """Refuse a body without content, or with an answer that was refused, cut or paused."""
    if not isinstance(body.get("content"), list):
        raise violation(Diagnosis.MALFORMED)
    ending = text_at(body, "stop_reason")
    if ending not in _USABLE:
        raise violation(_ENDINGS.get(ending, Diagnosis.INCOMPLETE))


def text(fragment: bytes) -> str | None:
    """Return the content's text; of a list of blocks, the texts joined, without thinking."""
    content = codec.decode(fragment)
    if not isinstance(content, list):
        return content if isinstance(content, str) else None
    blocks = [block for block in content if isinstance(block, dict) and block.get("type") == "text"]
    return "".join(text_at(block, "text") for block in blocks) if blocks else None


def billed(body: dict[str, JSON]) -> JSON:
    """Return the input's tokens by the provider's account: read from its cache, written to it, and neither."""
    usage = body.get("usage")
    if not isinstance(usage, dict):
        return None
    parts = [usage.get(f"{kind}input_tokens") or 0 for kind in ("", "cache_read_", "cache_creation_")]
    counts = [part for part in parts if type(part) is int]
    return sum(counts) if "input_tokens" in usage and len(counts) == len(parts) else None


def called(calls: Sequence[tuple[Call, dict[str, JSON]]]) -> bytes:
    """Return the assistant's message that makes these calls."""
    blocks: list[JSON] = [
        {"type": "tool_use", **id_of(call, "id"), "name": call.name, "input": arguments} for call, arguments in calls
    ]
    return codec.encode({"role": "assistant", "content": blocks})


def needs_reasoning(extra: Mapping[str, bytes]) -> bool:
    """Return whether thinking is on by hand: then an assistant's message in an open tool loop has to begin with it."""
    return "thinking" in extra and text_at(codec.decode(extra["thinking"]), "type") == "enabled"


ANTHROPIC: Final = Api(
    name="anthropic",
    path="/v1/messages",
    count_path="/v1/messages/count_tokens",
    fields=request_fields,
    code=lambda error: code_of(200, error),
    error=error_of,
    check=check,
    text=text,
    said=lambda text: codec.encode({"role": "assistant", "content": text}),
    called=called,
    stream=Stream(
        fields={"stream": b"true"},
        assembled=joined_blocks,
    ),
    billed=billed,
    own=frozenset({"model", "messages", "system", "tools", "max_tokens", "stream", *ANTHROPIC_COUNTING.switched_off}),
    shared={"output_config": frozenset({"format"})},
    of_tools=frozenset({"tool_choice"}),
    shows_spent=True,
    withheld="thinking_dropped",
    needs_output_bound=True,
    needs_reasoning=needs_reasoning,
)
