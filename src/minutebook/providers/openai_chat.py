"""OpenAI Chat Completions, which local servers speak too: the request's fields, and what a body says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from minutebook.model import codec
from minutebook.model.codec import JSON
from minutebook.providers.counting import OPENAI_CHAT
from minutebook.providers.decision import Api, Ask, Diagnosis, Fields, id_of, is_closed, text_at, violation
from minutebook.providers.openai_http import known_code
from minutebook.providers.streams import Stream, joined_chunks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from minutebook.model.decisions import CapabilitySpec
    from minutebook.model.entries import Call

_ENDINGS: Final = {"length": Diagnosis.LENGTH, "content_filter": Diagnosis.CONTENT_FILTER}
_USABLE: Final = frozenset({"stop", "tool_calls", "function_call"})


def request_fields(ask: Ask) -> Fields:
    """Return the request's fields. The window's bytes stand in `messages` as they are, behind the instructions."""
    fields = {
        "model": codec.encode(ask.model),
        "messages": _with_instructions(ask.instructions, ask.messages),
    }
    if ask.schema:
        schema: dict[str, JSON] = {"name": "decision", "schema": ask.schema, "strict": is_closed(ask.schema)}
        fields["response_format"] = codec.encode({"type": "json_schema", "json_schema": schema})
    if ask.tools:
        tools = [{"type": "function", "function": function(spec)} for spec in ask.tools]
        fields["tools"] = codec.encode(tools)
    if ask.max_output_tokens is not None:
        fields["max_completion_tokens"] = codec.encode(ask.max_output_tokens)
    return fields


def _with_instructions(instructions: str, messages: bytes) -> bytes:
    if not instructions:
        return messages
    return b"[%b,%b" % (codec.encode({"role": "system", "content": instructions}), messages[1:])


def function(spec: CapabilitySpec) -> dict[str, JSON]:
    """Return a capability as a function tool; the provider enforces its schema where it can."""
    return {
        "name": spec.name,
        "description": spec.description,
        "parameters": spec.parameters,
        "strict": is_closed(spec.parameters),
    }


def check(body: dict[str, JSON]) -> None:
    """Refuse a body without an answer, or with one that is a refusal, or was cut or filtered."""
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise violation(Diagnosis.MALFORMED)
    if message.get("refusal"):
        raise violation(Diagnosis.REFUSAL)
    ending = text_at(choice, "finish_reason")
    if ending not in _USABLE:
        raise violation(_ENDINGS.get(ending, Diagnosis.INCOMPLETE))


def text(fragment: bytes) -> str | None:
    """Return the text of an assistant's message; of a list of parts, the texts joined."""
    message = codec.decode(fragment)
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else None


def billed(body: dict[str, JSON]) -> JSON:
    """Return the prompt's tokens by the server's account."""
    usage = body.get("usage")
    return usage.get("prompt_tokens") if isinstance(usage, dict) else None


def called(calls: Sequence[tuple[Call, dict[str, JSON]]]) -> bytes:
    """Return the assistant's message that makes these calls."""
    made: list[JSON] = [
        {**id_of(call, "id"), "type": "function", "function": {"name": call.name, "arguments": as_json(arguments)}}
        for call, arguments in calls
    ]
    return codec.encode({"role": "assistant", "content": None, "tool_calls": made})


def as_json(arguments: dict[str, JSON]) -> str:
    """Return arguments as the text that this provider's calls hold."""
    return codec.encode(arguments).decode()


CHAT: Final = Api(
    name="openai-chat",
    path="/chat/completions",
    # OpenAI has no counting endpoint for this API; llama.cpp's server has this one.
    count_path="/chat/completions/input_tokens",
    fields=request_fields,
    code=known_code,
    check=check,
    text=text,
    said=lambda text: codec.encode({"role": "assistant", "content": text}),
    called=called,
    stream=Stream(
        fields={"stream": b"true", "stream_options": b'{"include_usage":true}'},
        assembled=joined_chunks,
    ),
    billed=billed,
    own=frozenset(
        {"model", "messages", "tools", "functions", "response_format", "max_completion_tokens", "max_tokens"}
        | {"n", "stream", "stream_options", "modalities", *OPENAI_CHAT.switched_off}
    ),
    of_tools=frozenset({"tool_choice", "parallel_tool_calls", "function_call"}),
)
