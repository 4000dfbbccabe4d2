"""
OpenAI Responses, without any state at the provider: the request's fields, and what a body says.

`store` is false and reasoning comes back encrypted, so that the record holds all there is of a conversation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from minutebook.model import codec
from minutebook.model.codec import JSON
from minutebook.providers.counting import OPENAI_RESPONSES
from minutebook.providers.decision import Api, Ask, Diagnosis, Fields, id_of, is_closed, reported, text_at, violation
from minutebook.providers.openai_chat import as_json, function
from minutebook.providers.openai_http import known_code
from minutebook.providers.streams import Stream, last_response

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from minutebook.model.entries import Call

_CUTS: Final = {"max_output_tokens": Diagnosis.LENGTH, "content_filter": Diagnosis.CONTENT_FILTER}
_TRANSPORT: Final = frozenset(
    {"server_error", "rate_limit_exceeded", "vector_store_timeout", "context_length_exceeded", "insufficient_quota"}
    | {"overloaded", "timeout", "internal_error"}
)
"""Codes of a failed response that say nothing of the model's answer (SPEC D9)."""


def request_fields(ask: Ask) -> Fields:
    """Return the request's fields. The window's bytes are `input` as they are."""
    schema: dict[str, JSON] = {"type": "json_schema", "name": "decision", "schema": ask.schema}
    fields = {"model": codec.encode(ask.model)}
    if ask.instructions:
        fields["instructions"] = codec.encode(ask.instructions)
    fields["input"] = ask.messages
    fields["text"] = codec.encode({"format": {**schema, "strict": is_closed(ask.schema)}})
    if ask.tools:
        fields["tools"] = codec.encode([{"type": "function", **function(spec)} for spec in ask.tools])
    if ask.max_output_tokens is not None:
        fields["max_output_tokens"] = codec.encode(ask.max_output_tokens)
    fields["store"] = b"false"
    fields["include"] = b'["reasoning.encrypted_content"]'
    return fields


def error_of(body: dict[str, JSON]) -> JSON:
    """Return the error object of a body that is no response, since it has no status; a response judges its own."""
    return None if "status" in body else body.get("error")


def check(body: dict[str, JSON]) -> None:
    """Refuse a response that failed, was cut or filtered, or that refuses to answer."""
    error, status = body.get("error"), body.get("status")
    if status == "failed" or error is not None:
        raise _failure(error)
    if status != "completed":
        reason = text_at(body.get("incomplete_details"), "reason")
        raise violation(_CUTS.get(reason, Diagnosis.INCOMPLETE))
    if not isinstance(body.get("output"), list):
        raise violation(Diagnosis.MALFORMED)
    if any(part.get("type") == "refusal" for part in _parts(body["output"])):
        raise violation(Diagnosis.REFUSAL)


def _failure(error: JSON) -> Exception:
    told = isinstance(error, dict) and error.get("code") is not None
    if not told or text_at(error, "code") in _TRANSPORT:
        return reported(known_code, error, "response_failed")
    return violation(Diagnosis.FAILED)


def _parts(output: JSON) -> Iterator[dict[str, JSON]]:
    """Return the content parts of the messages among the output items."""
    for item in output if isinstance(output, list) else ():
        content = item.get("content") if isinstance(item, dict) and item.get("type") == "message" else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict):
                yield part


def text(fragment: bytes) -> str | None:
    """Return the texts of the items' messages, joined; `None` when there is none."""
    items = codec.decode(b"[%b]" % fragment)
    texts = [part.get("text") for part in _parts(items) if part.get("type") == "output_text"]
    texts += _bare_texts(items)
    return "".join(part for part in texts if isinstance(part, str)) if texts else None


def _bare_texts(items: JSON) -> list[JSON]:
    """Return the texts of messages that no provider wrote: parts would need ids, and nobody gave any."""
    listed = items if isinstance(items, list) else []
    return [item["content"] for item in listed if isinstance(item, dict) and _is_bare(item)]


def _is_bare(item: dict[str, JSON]) -> bool:
    return item.get("type", "message") == "message" and isinstance(item.get("content"), str)


def billed(body: dict[str, JSON]) -> JSON:
    """Return the input's tokens by the provider's account."""
    usage = body.get("usage")
    return usage.get("input_tokens") if isinstance(usage, dict) else None


def called(calls: Sequence[tuple[Call, dict[str, JSON]]]) -> bytes:
    """Return the items that make these calls. Without an item id none is missed for its reasoning (case O-10)."""
    return codec.encode(
        [
            {"type": "function_call", **id_of(call, "call_id"), "name": call.name, "arguments": as_json(arguments)}
            for call, arguments in calls
        ]
    )


RESPONSES: Final = Api(
    name="openai-responses",
    path="/responses",
    count_path="/responses/input_tokens",
    fields=request_fields,
    code=known_code,
    error=error_of,
    check=check,
    text=text,
    said=lambda text: codec.encode([{"role": "assistant", "content": text}]),
    called=called,
    stream=Stream(fields={"stream": b"true"}, assembled=last_response),
    billed=billed,
    of_tools=frozenset({"tool_choice", "parallel_tool_calls"}),
    withheld="reasoning",
    own=frozenset({"model", "instructions", "input", "text", "tools", "max_output_tokens", "include", "stream"})
    | frozenset({"stream_options", *OPENAI_RESPONSES.switched_off}),
)
