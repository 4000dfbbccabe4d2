"""
Gemini generateContent: the request's fields, what a body says, and what its errors are called.

Both spellings of the wire are known, camelCase as the service writes it and snake_case as some clients do: a field that
is ours is refused in either.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from minutebook.model import codec
from minutebook.model.codec import JSON
from minutebook.providers.counting import GEMINI as GEMINI_COUNTING
from minutebook.providers.decision import Api, Ask, Diagnosis, Fields, id_of, text_at, violation
from minutebook.providers.streams import Stream, joined_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from minutebook.model.decisions import CapabilitySpec
    from minutebook.model.entries import Call

# --- errors ----------------------------------------------------------------------------------------------------------

_CODES: Final = frozenset(
    {
        "ABORTED",
        "ALREADY_EXISTS",
        "API_KEY_INVALID",
        "CANCELLED",
        "DATA_LOSS",
        "DEADLINE_EXCEEDED",
        "FAILED_PRECONDITION",
        "INTERNAL",
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "OUT_OF_RANGE",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "UNAUTHENTICATED",
        "UNAVAILABLE",
        "UNIMPLEMENTED",
        "UNKNOWN",
    }
)
"""The provider's words that are passed on. A closed table, since a body could hold anything, a key among it."""
_OVERFLOW: Final = re.compile(r"input token count .{0,40}exceeds the maximum number of tokens")


def code_of(status: int, error: JSON) -> str | None:  # noqa: ARG001 - the shape that other APIs need
    """
    Return the enumerated code of an error object: the reason in its details, else its status; `None` for no known one.

    An overflow has no code of its own, only a message under INVALID_ARGUMENT.
    """
    if _OVERFLOW.search(text_at(error, "message")):
        return "context_length_exceeded"
    details = error.get("details") if isinstance(error, dict) else None
    reasons = [text_at(detail, "reason") for detail in details] if isinstance(details, list) else []
    return next((code for code in (*reasons, text_at(error, "status")) if code in _CODES), None)


# --- the request -----------------------------------------------------------------------------------------------------


def request_fields(ask: Ask) -> Fields:
    """Return the request's fields; the model is in the path. The window's bytes are `contents` as they are."""
    fields = {"contents": ask.messages}
    if ask.instructions:
        fields["systemInstruction"] = codec.encode({"parts": [{"text": ask.instructions}]})
    if ask.tools:
        fields["tools"] = codec.encode([{"functionDeclarations": [_function(spec) for spec in ask.tools]}])
    generation: dict[str, JSON] = {"responseMimeType": "application/json", "responseJsonSchema": ask.schema}
    if ask.max_output_tokens is not None:
        generation["maxOutputTokens"] = ask.max_output_tokens
    fields["generationConfig"] = codec.encode(generation)
    return fields


def _function(spec: CapabilitySpec) -> dict[str, JSON]:
    return {"name": spec.name, "description": spec.description, "parametersJsonSchema": spec.parameters}


_NO_SIGNATURE: Final = "skip_thought_signature_validator"

# --- the response ----------------------------------------------------------------------------------------------------

_ENDINGS: Final = {
    "MAX_TOKENS": Diagnosis.LENGTH,
    **dict.fromkeys(
        ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "LANGUAGE", "IMAGE_SAFETY"),
        Diagnosis.CONTENT_FILTER,
    ),
    "MALFORMED_FUNCTION_CALL": Diagnosis.MALFORMED,
    "MALFORMED_RESPONSE": Diagnosis.MALFORMED,
    "UNEXPECTED_TOOL_CALL": Diagnosis.UNEXPECTED_CALL,
}


def check(body: dict[str, JSON]) -> None:
    """Refuse a body of a prompt that was blocked, or with an answer that was cut, filtered or broken."""
    candidates = body.get("candidates")
    if not candidates and text_at(body.get("promptFeedback"), "blockReason"):
        raise violation(Diagnosis.CONTENT_FILTER)
    candidate = candidates[0] if isinstance(candidates, list) and len(candidates) == 1 else None
    if not isinstance(candidate, dict):
        raise violation(Diagnosis.MALFORMED)
    ending = text_at(candidate, "finishReason")
    if ending != "STOP":
        raise violation(_ENDINGS.get(ending, Diagnosis.INCOMPLETE))


def text(fragment: bytes) -> str | None:
    """Return the texts of the parts, joined, without thoughts."""
    parts = codec.decode(fragment)
    listed = parts if isinstance(parts, list) else []
    said = [part.get("text") for part in listed if isinstance(part, dict) and not part.get("thought")]
    texts = [text for text in said if isinstance(text, str)]
    return "".join(texts) if texts else None


def billed(body: dict[str, JSON]) -> JSON:
    """Return the prompt's tokens by the provider's account, those from its cache included."""
    usage = body.get("usageMetadata")
    return usage.get("promptTokenCount") if isinstance(usage, dict) else None


def _spelled(*names: str) -> frozenset[str]:
    """Return names in both spellings."""
    return frozenset(names) | {re.sub("([A-Z])", r"_\1", name).lower() for name in names}


def called(calls: Sequence[tuple[Call, dict[str, JSON]]]) -> bytes:
    """
    Return the content that makes these calls, which no signature of the provider's is bound to.

    Within a turn the first call of each response has to carry one; this is the value that the provider documents for
    calls which come without.
    """
    parts: list[JSON] = [
        {
            "functionCall": {**id_of(call, "id"), "name": call.name, "args": arguments},
            **({} if position else {"thoughtSignature": _NO_SIGNATURE}),
        }
        for position, (call, arguments) in enumerate(calls)
    ]
    return codec.encode({"role": "model", "parts": parts})


GEMINI: Final = Api(
    name="gemini",
    path="/models/{model}:generateContent",
    count_path="/models/{model}:countTokens",
    model_prefix="models/",
    fields=request_fields,
    code=lambda error: code_of(200, error),
    check=check,
    text=text,
    said=lambda text: codec.encode({"role": "model", "parts": [{"text": text}]}),
    called=called,
    stream=Stream(
        fields={},
        path="/models/{model}:streamGenerateContent?alt=sse",
        assembled=joined_parts,
    ),
    billed=billed,
    own=_spelled("model", "contents", "systemInstruction", "tools", *GEMINI_COUNTING.switched_off)
    | {"generation_config"},
    of_tools=_spelled("toolConfig"),
    shared={
        "generationConfig": _spelled(
            *("responseMimeType", "responseSchema", "responseJsonSchema", "maxOutputTokens", "candidateCount")
        )
    },
)
