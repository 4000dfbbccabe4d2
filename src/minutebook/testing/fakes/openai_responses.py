"""
OpenAI Responses, as under `store: false`: the fake keeps nothing, so whatever refers to something kept is not found.

    items are of the SDK's types, every object closed; as the service has it, a message of the model may come without
    id, status and annotations, a function without `strict`, and a call with a status that is null
    an output stands behind its call, and every call has exactly one output; between a call and its output stand items
    of the model and other outputs alone (stricter than the service, which also takes a user's message there)
    a reasoning item stands directly before the item of the model that it led to; that item, and the others of the same
    response, do not come with their ids where it is missing
    `encrypted_content` is the one that was given; one of another prefix is left out and reported, as the service does
    call ids have 64 characters at most and stand once in a request, as do item ids
    a schema that is called strict is closed and has no optional field
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
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
from minutebook.testing.fakes.seals import Prefix, Seal, Verdict
from minutebook.testing.fakes.shapes import Shape, shape_of_type

if TYPE_CHECKING:
    from minutebook.testing.fakes.answers import Answer

__all__ = ["DIALECT", "check_count", "check_messages", "check_request"]

COUNTED: Final = (
    *("input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "reasoning", "text", "truncation"),
    "personality",
)
"""The fields that cost tokens: those that the count endpoint takes."""

_TYPE: Final = ("openai.types.responses.response_create_params", "ResponseCreateParamsNonStreaming")
_OPTIONAL: Final = (
    *(("ResponseOutputMessageParam", name) for name in ("id", "status", "type")),
    ("ResponseOutputTextParam", "annotations"),
    ("FunctionToolParam", "strict"),
)
_NULLABLE: Final = ("ResponseFunctionToolCallParam", "status")
_COUNT_TYPE: Final = ("openai.types.responses.input_token_count_params", "InputTokenCountParams")
_MAX_ID_CHARACTERS: Final = 64
_MIN_OUTPUT_TOKENS: Final = 16
_CALLS: Final = frozenset(
    {"function_call", "custom_tool_call", "computer_call", "local_shell_call", "shell_call", "apply_patch_call"}
)
_OUTPUTS: Final = {f"{call}_output": call for call in _CALLS}
_NO_FOLLOWERS: Final = frozenset({"message", "reasoning", "item_reference"})
_OUR_ID: Final = re.compile(r"(?:rs|msg|fc)_([0-9a-f]{24})(?:_([0-9]+))?")


def _request_shape() -> Shape:
    return shape_of_type(*_TYPE, (("", "stream"), _NULLABLE), (), _OPTIONAL)


def check_request(body: dict[str, Any], seal: Seal | None = None) -> Problem | None:
    """Return why the service would refuse to generate from this body, or `None`; `seal` also checks the reasoning."""
    fault = _request_shape()(body)
    if fault is not None:
        return _openai.misshapen(fault)
    limit = body.get("max_output_tokens")
    if limit is not None and limit < _MIN_OUTPUT_TOKENS:
        message = f"Invalid 'max_output_tokens': expected a value >= {_MIN_OUTPUT_TOKENS}, got {limit}."
        return invalid(message, "max_output_tokens", "integer_below_min_value")
    if body.get("background"):
        return invalid("Background mode requires 'store' to be true, and nothing is stored here.", "background")
    return _openai.no_stream(body) or _common(body, seal)


def check_count(body: dict[str, Any], seal: Seal | None = None) -> Problem | None:
    """Return why the count endpoint would refuse this body, or `None`."""
    fault = shape_of_type(*_COUNT_TYPE, (_NULLABLE,), (), _OPTIONAL)(body)
    return _openai.misshapen(fault) if fault is not None else _common(body, seal)


def check_messages(items: list[Any], seal: Seal | None = None) -> Problem | None:
    """Return why no request could have these items as its input, or `None`."""
    fault = _request_shape()({"input": items})
    return _openai.misshapen(fault) if fault is not None else _sequence(items, seal)


def _common(body: dict[str, Any], seal: Seal | None) -> Problem | None:
    problem = _kept(body) or _tools(body)
    if problem is not None:
        return problem
    items = body.get("input")
    if items is None or items == []:
        message = "One of \"input\" or \"previous_response_id\" or 'prompt' or 'conversation_id' must be provided."
        return invalid(message, "input", "missing_required_parameter")
    if body.get("model") is None:
        return invalid("Missing required parameter: 'model'.", "model", "missing_required_parameter")
    return None if isinstance(items, str) else _sequence(items, seal)


def _kept(body: dict[str, Any]) -> Problem | None:
    """Refuse what refers to something that the service would have kept."""
    if body.get("previous_response_id") is not None:
        code = "previous_response_not_found"
        return invalid("Previous response not found.", "previous_response_id", code)
    for name in ("conversation", "prompt"):
        if body.get(name) is not None:
            return invalid(f"{name.capitalize()} not found.", name, status=404)
    return None


# --- items ---


def _sequence(items: list[Any], seal: Seal | None) -> Problem | None:
    twice = repeated(item["id"] for item in items if item.get("id"))
    if twice is not None:
        return invalid(f"Duplicate item found with id {twice}. Remove duplicate items and try again.", "input")
    for index, item in enumerate(items):
        problem = _item(item, index)
        if problem is not None:
            return problem
    return _pairs(items) or _reasoning(items, seal)


def _item(item: dict[str, Any], index: int) -> Problem | None:
    kind = item.get("type") or ("message" if "role" in item else "item_reference")
    if kind == "item_reference":
        return invalid(f"Item with id '{item['id']}' not found.", "input", status=404)
    if kind in ("compaction", "compaction_trigger"):
        return invalid("Nothing was compacted here.", at("input", index))
    if kind == "message":
        return _parts(item, index)
    if kind == "function_call":
        return _openai.misnamed(item["name"], at("input", index, "name"))
    return None


def _parts(item: dict[str, Any], index: int) -> Problem | None:
    """Refuse parts that the role does not write: only a model's message holds `output_text`, and nothing else."""
    if item["role"] != "assistant":
        return None
    for position, part in enumerate(array(item["content"])):
        if part["type"] not in ("output_text", "refusal"):
            message = f"Invalid value: '{part['type']}'. Supported values are: 'output_text' and 'refusal'."
            return invalid(message, at("input", index, "content", position), "invalid_value")
    return None


def _pairs(items: list[Any]) -> Problem | None:
    waiting: dict[str, str] = {}
    """The ids of calls without an output, each with its call's type."""
    seen: set[str] = set()
    for index, item in enumerate(items):
        kind, id_ = item.get("type"), item.get("call_id")
        if kind == "local_shell_call_output":
            id_ = item["id"]  # what its type has for the call's id; a `call_id` it has not
        if kind in _CALLS:
            problem = _call_id(id_, index)
            if problem is None and id_ in seen:
                problem = invalid(f"Duplicate call_id found: {id_}.", at("input", index, "call_id"))
            if problem is not None:
                return problem
            seen.add(str(id_))
            waiting[str(id_)] = str(kind)
        elif kind in _OUTPUTS:
            if waiting.pop(str(id_), None) != _OUTPUTS[kind]:
                return invalid(f"No tool call found for function call output with call_id {id_}.", "input")
        elif waiting and item.get("role") in ("user", "system", "developer"):
            break
    if waiting:
        return invalid(f"No tool output found for function call {next(iter(waiting))}.", "input")
    return None


def _call_id(id_: Any, index: int) -> Problem | None:
    place = at("input", index, "call_id")
    if type(id_) is str and 0 < len(id_) <= _MAX_ID_CHARACTERS:
        return None
    code = "string_above_max_length" if id_ else "empty_string"
    return invalid(f"Invalid '{place}': expected 1 to {_MAX_ID_CHARACTERS} characters.", place, code)


# --- reasoning ---


def _reasoning(items: list[Any], seal: Seal | None) -> Problem | None:
    present: set[str] = set()
    for index, item in enumerate(items):
        family, number = _origin(item)
        if item.get("type") == "reasoning":
            problem = _followed(items, index) or _encrypted(item, index, seal)
            if problem is not None:
                return problem
            present.add(family)
        elif number and family not in present:
            return invalid(
                f"Item '{item['id']}' of type '{item['type']}' was provided without its required 'reasoning' item: "
                f"'rs_{family}'.",
                "input",
            )
    return None


def _origin(item: dict[str, Any]) -> tuple[str, int]:
    """
    Return which response an item is of, and its number there.

    Behind reasoning each item's id names the reasoning and counts from 1; every other id has no number. So a request
    alone tells which item needs which reasoning. An item without an id, or with one of no fake, is of no response.
    """
    found = _OUR_ID.fullmatch(item.get("id") or "")
    return (found[1], int(found[2] or 0)) if found else ("", 0)


def _followed(items: list[Any], index: int) -> Problem | None:
    """Refuse a reasoning item before anything but the item that it led to."""
    follower = members(items[index + 1]) if index + 1 < len(items) else {}
    kind = follower.get("type") or "message"
    # A message by hand, without an id, is not what the model said; a call without one is taken.
    said = follower.get("role") == "assistant" and follower.get("id")
    if said or (kind not in _NO_FOLLOWERS and not kind.endswith("_output")):
        (family, _), (other, number) = _origin(items[index]), _origin(follower)
        if not family or not other or (family, 1) == (other, number):
            return None
    message = f"Item '{items[index]['id']}' of type 'reasoning' was provided without its required following item."
    return invalid(message, "input")


def _encrypted(item: dict[str, Any], index: int, seal: Seal | None) -> Problem | None:
    if seal is None:
        return None
    if item.get("encrypted_content") is None:
        message = f"Item with id '{item['id']}' not found. Items are not persisted when `store` is set to false."
        return invalid(f"{message} Try again with `store` set to true, or remove this item.", "input", status=404)
    if seal.verdict(item["encrypted_content"], _sealed(item)) is Verdict.FOREIGN:
        message = f"The encrypted content for item {item['id']} could not be verified."
        return invalid(message, at("input", index), "invalid_encrypted_content")
    return None


def _sealed(item: dict[str, Any]) -> dict[str, Any]:
    return {"id": item["id"], "summary": item["summary"]}


def _prefixes(body: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yield each item of the input with the digest of what stands before it, and an empty one at the end."""
    prefix = Prefix(body.get("instructions"), body.get("tools") or [])
    given = body.get("input")
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else array(given):
        yield item, prefix.digest()
        prefix.add(_same(item))
    yield {}, prefix.digest()


def _same(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item in one of the ways in which it can be written: a text stands for a list of one part."""
    same = {name: value for name, value in item.items() if value is not None and name != "status"}
    if "role" in item:
        same["type"] = "message"
        if isinstance(item["content"], str):
            kind = "output_text" if item["role"] == "assistant" else "input_text"
            same["content"] = [{"type": kind, "text": item["content"]}]
    return same


def withheld(body: Mapping[str, Any], seal: Seal) -> list[dict[str, Any]]:
    """Return what `input_transformations` reports: the reasoning items whose prefix is not the one they came from."""
    return [
        {"type": "reasoning", "id": item["id"], "action": "removed", "reason": "prefix_mismatch"}
        for item, prefix in _prefixes(body)
        if item.get("type") == "reasoning"
        and seal.verdict(item.get("encrypted_content"), _sealed(item), prefix) is not Verdict.VALID
    ]


# --- tools and schemas ---


def _tools(body: dict[str, Any]) -> Problem | None:
    functions = [tool for tool in array(body.get("tools")) if tool["type"] == "function"]
    for index, tool in enumerate(functions):
        place = at("tools", index)
        problem = _openai.misnamed(tool["name"], f"{place}.name")
        if problem is None and tool.get("strict"):
            problem = _openai.not_strict(tool["parameters"], f"{place}.parameters", "invalid_function_parameters")
        if problem is not None:
            return problem
    twice = repeated(tool["name"] for tool in functions)
    if twice is not None:
        return invalid(f"Duplicate function name: '{twice}'.", "tools")
    form = members(members(body.get("text")).get("format"))
    return (
        _openai.not_strict(form.get("schema"), "text.format.schema", "invalid_json_schema")
        if form.get("strict")
        else None
    )


# --- answers ---


def _too_long(_used: int, _window: int) -> Problem:
    message = "Your input exceeds the context window of this model. Please adjust your input and try again."
    return invalid(message, "input", "context_length_exceeded")


def _respond(asked: Asked, answer: Answer) -> dict[str, Any]:
    reason = {"length": "max_output_tokens", "filter": "content_filter"}.get(answer.ending)
    status = "incomplete" if reason else "completed"
    output = _output(asked, answer, status)
    reasoned = sum(token_count(item) for item in output if item["type"] == "reasoning")
    said = token_count(output) + reasoned
    body = asked.body
    return {
        "id": asked.fresh("resp"),
        "object": "response",
        "created_at": CREATED,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": {"reason": reason} if reason else None,
        "input_transformations": withheld(body, asked.seal),
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "metadata": body.get("metadata") or {},
        "model": body["model"],
        "output": output,
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None, **members(body.get("reasoning"))},
        "store": body.get("store", True),
        "temperature": 1.0,
        "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": {
            "input_tokens": asked.tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": said,
            "output_tokens_details": {"reasoning_tokens": reasoned},
            "total_tokens": asked.tokens + said,
        },
        "user": None,
    }


def _output(asked: Asked, answer: Answer, status: str) -> list[dict[str, Any]]:
    items = [_thought(asked, answer.thinking)] if answer.thinking is not None else []

    def id_(kind: str) -> str:
        # See `_origin`.
        return f"{kind}_{items[0]['id'][3:]}_{len(items)}" if answer.thinking is not None else asked.fresh(kind)

    if answer.text or answer.refusal:
        part: dict[str, Any] = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
        if answer.refusal:
            part = {"type": "refusal", "refusal": answer.refusal}
        said = {"id": id_("msg"), "type": "message", "status": status, "role": "assistant", "content": [part]}
        items.append({**said, "phase": "commentary" if answer.calls else "final_answer"})
    for call in answer.calls:
        made = {"id": id_("fc"), "type": "function_call", "status": status, "name": call.name}
        items.append({**made, "arguments": _openai.written(call.arguments), "call_id": call.id or asked.fresh("call")})
    return items


def _thought(asked: Asked, thinking: str) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": thinking}] if thinking else []
    item: dict[str, Any] = {"id": asked.fresh("rs"), "type": "reasoning", "summary": summary}
    *_, (_, prefix) = _prefixes(asked.body)
    return {**item, "encrypted_content": asked.seal.of(_sealed(item), prefix)}


# --- streams ---


class _Stream:
    """The events of a response, numbered."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def tell(self, type_: str, **fields: Any) -> None:
        """Add an event of this type."""
        self.sent.append(event({"type": type_, "sequence_number": len(self.sent), **fields}, type_))


def _events(_: Asked, body: dict[str, Any]) -> list[bytes]:
    stream = _Stream()
    begun: dict[str, Any] = {**body, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    stream.tell("response.created", response=begun)
    stream.tell("response.in_progress", response=begun)
    for index, item in enumerate(body["output"]):
        stream.tell("response.output_item.added", output_index=index, item=_begun(item))
        place = {"item_id": item["id"], "output_index": index}
        if item["type"] == "function_call":
            _texts(stream, "response.function_call_arguments", item["arguments"], "arguments", place)
        elif item["type"] == "message":
            _message(stream, item["content"][0], {**place, "content_index": 0})
        else:
            for number, part in enumerate(item["summary"]):
                _summary(stream, part, {**place, "summary_index": number})
        stream.tell("response.output_item.done", output_index=index, item=item)
    stream.tell(f"response.{body['status']}", response=body)
    return stream.sent


def _begun(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item before anything of it came; its encrypted content is not whole yet."""
    empty: dict[str, dict[str, Any]] = {"function_call": {"arguments": ""}, "message": {"content": []}}
    unfinished = empty.get(item["type"], {"summary": [], "encrypted_content": item.get("encrypted_content", "")[:8]})
    return {**item, **({"status": "in_progress"} if "status" in item else {}), **unfinished}


def _message(stream: _Stream, part: dict[str, Any], place: dict[str, Any]) -> None:
    key = "text" if part["type"] == "output_text" else "refusal"
    stream.tell("response.content_part.added", part={**part, key: ""}, **place)
    logprobs: dict[str, Any] = {"logprobs": []} if key == "text" else {}
    _texts(stream, f"response.{'output_text' if key == 'text' else 'refusal'}", part[key], key, {**place, **logprobs})
    stream.tell("response.content_part.done", part=part, **place)


def _summary(stream: _Stream, part: dict[str, Any], place: dict[str, Any]) -> None:
    stream.tell("response.reasoning_summary_part.added", part={**part, "text": ""}, **place)
    _texts(stream, "response.reasoning_summary_text", part["text"], "text", place)
    stream.tell("response.reasoning_summary_part.done", part=part, **place)


def _texts(stream: _Stream, type_: str, text: str, key: str, place: dict[str, Any]) -> None:
    for piece in pieces(text):
        stream.tell(f"{type_}.delta", delta=piece, **place)
    stream.tell(f"{type_}.done", **{key: text}, **place)


def _broken(problem: Problem) -> bytes:
    # The number is one that no stream of a fake reaches, since what went before is not known here.
    told = {"code": problem.code, "message": problem.message, "param": problem.param, "sequence_number": 10**6}
    return event({"type": "error", **told}, "error")


# --- the dialect ---

DIALECT: Final = _openai.dialect(
    "openai-responses",
    "/responses",
    counted=COUNTED,
    check_request=check_request,
    check_count=check_count,
    too_long=_too_long,
    respond=_respond,
    events=_events,
    broken=_broken,
    sealed=frozenset({"encrypted_content"}),
)
