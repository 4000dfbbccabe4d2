"""
OpenAI Chat Completions, and the count endpoint that llama.cpp's server has for it.

    messages are of the SDK's types, every object closed; `annotations`, which the answer has, may come back
    a name of who speaks has 64 characters at most, and no blanks, `<`, `>`, `|`, backslashes or slashes
    tool messages stand directly behind the assistant message whose calls they answer, one for each call
    an assistant message has content, a refusal or calls
    call ids have 40 characters at most, and stand once in a request (stricter than the service, which repeats some)
    a schema that is called strict is closed and has no optional field
    what speaks of tools stands beside tools

The service has no count endpoint for this API; what is counted here is what `usage.prompt_tokens` bills.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from minutebook.testing.fakes import _openai
from minutebook.testing.fakes._openai import at, invalid
from minutebook.testing.fakes.dialect import (
    CREATED,
    Asked,
    Problem,
    array,
    event,
    members,
    pieces,
    repeated,
    token_count,
)
from minutebook.testing.fakes.shapes import Shape, shape_of_type

if TYPE_CHECKING:
    from minutebook.testing.fakes.answers import Answer

__all__ = ["DIALECT", "check_count", "check_messages", "check_request"]

COUNTED: Final = (
    *("messages", "tools", "tool_choice", "parallel_tool_calls", "response_format", "reasoning_effort"),
    *("functions", "function_call", "chat_template_kwargs", "verbosity"),
)
"""The fields that cost tokens."""

_TYPE: Final = ("openai.types.chat.completion_create_params", "CompletionCreateParamsNonStreaming")
_ANSWERED: Final = ("ChatCompletionAssistantMessageParam", "annotations")
_MAX_ID_CHARACTERS: Final = 40
_MAX_NAME_CHARACTERS: Final = 64
_SPEAKER: Final = re.compile(r"[^\s<|\\/>]{1,64}")


def _request_shape() -> Shape:
    return shape_of_type(*_TYPE, (("", "stream"), _ANSWERED))


def _count_shape() -> Shape:
    return shape_of_type(*_TYPE, (("", "stream"), ("", "chat_template_kwargs"), _ANSWERED))


def check_request(body: dict[str, Any]) -> Problem | None:
    """Return why the service would refuse to generate from this body, or `None`."""
    fault = _request_shape()(body)
    if fault is not None:
        return _openai.misshapen(fault)
    return _openai.no_stream(body) or _tools(body) or _sequence(body["messages"])


def check_count(body: dict[str, Any]) -> Problem | None:
    """Return why the count endpoint would refuse this body, or `None`; it may have every field of a generation."""
    fault = _count_shape()(body)
    if fault is not None:
        return _openai.misshapen(fault)
    return _tools(body) or _sequence(body["messages"])


def check_messages(messages: list[Any]) -> Problem | None:
    """Return why no request could hold these messages, or `None`."""
    fault = _request_shape()({"model": "", "messages": messages})
    return _openai.misshapen(fault) if fault is not None else _sequence(messages)


# --- messages ---


def _sequence(messages: list[Any]) -> Problem | None:
    if not messages:
        return invalid("Invalid 'messages': empty array. Expected at least 1 item.", "messages", "empty_array")
    waiting: dict[str, int] = {}
    """The calls that are not answered yet, each with the place of its message."""
    seen: set[str] = set()
    answering = False
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            problem = None if answering else _stray(index)
            problem = problem or _answer(message, waiting, index)
        else:
            problem = _unanswered(waiting) or _content(message, index) or _speaker(message, index)
            answering = bool(message.get("tool_calls"))
        problem = problem or _calls(message, waiting, seen, index)
        if problem is not None:
            return problem
    return _unanswered(waiting)


def _stray(index: int) -> Problem:
    message = "messages with role 'tool' must be a response to a preceding message with 'tool_calls'."
    return invalid(f"Invalid parameter: {message}", at("messages", index, "role"))


def _answer(message: dict[str, Any], waiting: dict[str, int], index: int) -> Problem | None:
    if waiting.pop(message["tool_call_id"], None) is not None:
        return _empty(message, index)
    told = f"'tool_call_id' of '{message['tool_call_id']}' not found in 'tool_calls' of the previous message."
    return invalid(f"Invalid parameter: {told}", at("messages", index, "tool_call_id"))


def _unanswered(waiting: dict[str, int]) -> Problem | None:
    if not waiting:
        return None
    message = (
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
        f"The following tool_call_ids did not have response messages: {', '.join(waiting)}"
    )
    return invalid(message, at("messages", next(iter(waiting.values())), "tool_calls"))


def _content(message: dict[str, Any], index: int) -> Problem | None:
    spoken = message.get("content") is not None or message.get("refusal") is not None
    if message["role"] == "assistant":
        spoken = spoken or any(message.get(key) is not None for key in ("tool_calls", "function_call", "audio"))
    elif message["role"] == "function":
        spoken = True
    if not spoken:
        place = at("messages", index, "content")
        return invalid(f"Invalid value for '{place}': expected a string, got null.", place, "invalid_type")
    return _empty(message, index)


def _speaker(message: dict[str, Any], index: int) -> Problem | None:
    name = message.get("name")
    if name is None or message["role"] == "function" or _SPEAKER.fullmatch(name):
        return None
    place = at("messages", index, "name")
    told = "string does not match pattern. Expected a string that matches the pattern '^[^\\s<|\\\\/>]+$'."
    if len(name) > _MAX_NAME_CHARACTERS:
        told = f"string too long. Expected a string with maximum length {_MAX_NAME_CHARACTERS}."
    return invalid(f"Invalid '{place}': {told}", place, "invalid_value")


def _empty(message: dict[str, Any], index: int) -> Problem | None:
    if message.get("content") == []:
        place = at("messages", index, "content")
        return invalid(f"Invalid '{place}': empty array. Expected at least 1 item.", place, "empty_array")
    return None


def _calls(message: dict[str, Any], waiting: dict[str, int], seen: set[str], index: int) -> Problem | None:
    if message.get("tool_calls") == []:
        place = at("messages", index, "tool_calls")
        return invalid(f"Invalid '{place}': empty array. Expected at least 1 item.", place, "empty_array")
    for position, call in enumerate(message.get("tool_calls", ())):
        place = at("messages", index, "tool_calls", position)
        id_ = call["id"]
        if not 0 < len(id_) <= _MAX_ID_CHARACTERS:
            limits = f"Expected 1 to {_MAX_ID_CHARACTERS} characters, got {len(id_)}."
            code = "string_above_max_length" if id_ else "empty_string"
            return invalid(f"Invalid '{place}.id': wrong length. {limits}", f"{place}.id", code)
        if id_ in seen:
            return invalid(f"Duplicate value for 'tool_call_id' of '{id_}'.", f"{place}.id")
        made = call.get("function") or call.get("custom")
        problem = _openai.misnamed(made["name"], f"{place}.function.name")
        if problem is not None:
            return problem
        seen.add(id_)
        waiting[id_] = index
    return None


# --- tools and schemas ---


def _tools(body: dict[str, Any]) -> Problem | None:
    for index, tool in enumerate(array(body.get("tools"))):
        function = members(tool.get("function"))
        place = at("tools", index, "function")
        problem = _openai.misnamed(function["name"], f"{place}.name") if function else None
        if problem is None and function.get("strict"):
            problem = _openai.not_strict(
                function.get("parameters"), f"{place}.parameters", "invalid_function_parameters"
            )
        if problem is not None:
            return problem
    twice = repeated(members(tool.get("function")).get("name", "") for tool in array(body.get("tools")))
    if twice:
        return invalid(f"Duplicate function name: '{twice}'.", "tools")
    for name in () if array(body.get("tools")) else ("tool_choice", "parallel_tool_calls"):
        if body.get(name) is not None:
            return invalid(f"'{name}' is only allowed when 'tools' are specified.", name)
    schema = members(members(body.get("response_format")).get("json_schema"))
    place = "response_format"
    return _openai.not_strict(schema.get("schema"), place, "invalid_json_schema") if schema.get("strict") else None


# --- answers ---


def _too_long(used: int, window: int) -> Problem:
    message = (
        f"This model's maximum context length is {window} tokens. However, your messages resulted in {used} tokens."
    )
    return invalid(message, "messages", "context_length_exceeded")


_ENDINGS: Final = {"length": "length", "filter": "content_filter"}


def _respond(asked: Asked, answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": answer.text or None,
        "refusal": answer.refusal or None,
        "annotations": [],
    }
    if answer.calls:
        message["tool_calls"] = [
            {
                "id": call.id or asked.fresh("call"),
                "type": "function",
                "function": {"name": call.name, "arguments": _openai.written(call.arguments)},
            }
            for call in answer.calls
        ]
    ending = _ENDINGS.get(answer.ending, "tool_calls" if answer.calls else "stop")
    reasoned = token_count(answer.thinking) if answer.thinking is not None else 0
    said = token_count(message) + reasoned
    return {
        "id": asked.fresh("chatcmpl"),
        "object": "chat.completion",
        "created": CREATED,
        "model": asked.body["model"],
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": ending}],
        "usage": {
            "prompt_tokens": asked.tokens,
            "completion_tokens": said,
            "total_tokens": asked.tokens + said,
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": reasoned, "audio_tokens": 0},
        },
        "service_tier": "default",
    }


def _events(asked: Asked, body: dict[str, Any]) -> list[bytes]:
    usage = members(asked.body.get("stream_options")).get("include_usage") is True
    head = {key: body[key] for key in ("id", "created", "model", "service_tier")}
    head["object"] = "chat.completion.chunk"
    choice = body["choices"][0]
    deltas = [{"role": "assistant", "content": None if choice["message"].get("tool_calls") else ""}]
    deltas += _deltas(choice["message"])
    chunks: list[dict[str, Any]] = [_chunk(delta, None) for delta in deltas]
    chunks.append(_chunk({}, choice["finish_reason"]))
    sent = [event({**head, **chunk, **({"usage": None} if usage else {})}) for chunk in chunks]
    if usage:
        sent.append(event({**head, "choices": [], "usage": body["usage"]}))
    return [*sent, b"data: [DONE]\n\n"]


def _chunk(delta: dict[str, Any], ending: str | None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": ending}]}


def _deltas(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for key in ("content", "refusal"):
        yield from ({key: piece} for piece in pieces(message[key] or ""))
    for index, call in enumerate(message.get("tool_calls", ())):
        function = call["function"]
        begun = {"index": index, "id": call["id"], "type": "function"}
        yield {"tool_calls": [{**begun, "function": {"name": function["name"], "arguments": ""}}]}
        for piece in pieces(function["arguments"]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


# --- the dialect ---

DIALECT: Final = _openai.dialect(
    "openai-chat",
    "/chat/completions",
    counted=COUNTED,
    check_request=lambda body, _: check_request(body),
    check_count=lambda body, _: check_count(body),
    too_long=_too_long,
    respond=_respond,
    events=_events,
    broken=_openai.broken,
)
