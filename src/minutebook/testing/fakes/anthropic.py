"""
Anthropic Messages.

    blocks are of the SDK's types, every object closed, and of a kind that their role may write
    the first message is the user's (the direct API has let others pass, Bedrock has not); a system message stands
    behind a user's
    a request with a `tool_use`, a `tool_result` or a `tool_choice` has tools, whichever they are
    every `tool_use` is answered in the very next message, whose results come first and are one for each call
    content is not empty, nor is a text; of a message's texts one has more than white space in it
    ids of calls are of `^[a-zA-Z0-9_-]+$` and stand once in a request
    a thinking block is as it came and stands behind what it came behind: system, tools and every earlier block.
    One that does not is refused, or left out and reported where `block_binding` asks for that
    an assistant message does not end with thinking; with manual thinking on, one in an open tool loop begins with it

`cache_control` is no part of what a block is bound to, nor are fields that are null.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from minutebook.testing.fakes._anthropic_blocks import THINKING, at, blocks, dropped, prefix_of, thoughts
from minutebook.testing.fakes.dialect import (
    Asked,
    Dialect,
    Problem,
    Route,
    array,
    event,
    members,
    picked,
    pieces,
    repeated,
    token_count,
)
from minutebook.testing.fakes.seals import Seal, Verdict, canonical
from minutebook.testing.fakes.shapes import Fault, Shape, shape_of_type

if TYPE_CHECKING:
    from minutebook.testing.fakes.answers import Answer

__all__ = ["BINDING_BETA", "DIALECT", "check_count", "check_messages", "check_request"]

BINDING_BETA: Final = "thinking-binding-controls-2026-08-01"
"""The beta header with which `thinking.block_binding` may be sent."""

COUNTED: Final = ("messages", "system", "tools", "tool_choice", "thinking", "output_config")
"""The fields that cost tokens."""

_MODULES: Final = ("anthropic.types.message_create_params", "anthropic.types.message_count_tokens_params")
_IN_HEADERS: Final = ("user_profile_id", "workspace_id")
_ID: Final = re.compile(r"[a-zA-Z0-9_-]+", re.ASCII)
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}", re.ASCII)
_MIN_BUDGET_TOKENS: Final = 1024
_OF_USERS: Final = frozenset({"tool_result", "image", "document", "search_result", "container_upload"})
_ERRORS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def check_request(
    body: dict[str, Any], seal: Seal | None = None, betas: frozenset[str] = frozenset()
) -> Problem | None:
    """Return why the service would refuse to generate from this body, or `None`; `seal` also checks the thinking."""
    problem = _misshapen(_request_shape(), body, betas)
    return problem or _limits(body) or _common(body, seal)


def check_count(body: dict[str, Any], seal: Seal | None = None, betas: frozenset[str] = frozenset()) -> Problem | None:
    """Return why the count endpoint would refuse this body, or `None`; it looks at the thinking too."""
    problem = _misshapen(shape_of_type(_MODULES[1], "MessageCountTokensParams", (), _IN_HEADERS), body, betas)
    return problem or _common(body, seal) or _remote(body["messages"])


def check_messages(
    messages: list[Any], seal: Seal | None = None, head: Mapping[str, Any] | None = None
) -> Problem | None:
    """
    Return why no request could hold these messages, or `None`.

    With a `seal` the thinking is checked as well; then `head` has the request's `system` and `tools`.
    """
    fault = _request_shape()({"model": "", "max_tokens": 1, "messages": messages})
    return (
        (_fault(fault) if fault is not None else None)
        or _sequence(messages)
        or (_bound({**(head or {}), "messages": messages}, seal) if seal is not None else None)
    )


def _request_shape() -> Shape:
    return shape_of_type(_MODULES[0], "MessageCreateParamsNonStreaming", (("", "stream"),), _IN_HEADERS)


def _misshapen(shape: Shape, body: dict[str, Any], betas: frozenset[str]) -> Problem | None:
    thinking = members(body.get("thinking"))
    if BINDING_BETA in betas and "block_binding" in thinking:
        if thinking.get("type") != "adaptive":
            return invalid("thinking.block_binding: only with adaptive thinking")
        if set(members(thinking["block_binding"])) - {"prefix_mismatch_behavior"} or _behavior(body) not in _BEHAVIORS:
            return invalid("thinking.block_binding.prefix_mismatch_behavior: Input should be 'error' or 'drop_block'")
        body = {**body, "thinking": {key: value for key, value in thinking.items() if key != "block_binding"}}
    fault = shape(body)
    return _fault(fault) if fault is not None else None


_BEHAVIORS: Final = (None, "error", "drop_block")


def _behavior(body: Mapping[str, Any]) -> Any:
    return members(members(body.get("thinking")).get("block_binding")).get("prefix_mismatch_behavior")


def _fault(fault: Fault) -> Problem:
    told = {
        "invalid": "Input is of no type or value that is allowed here",
        "missing": "Field required",
        "unknown": "Extra inputs are not permitted",
    }
    return invalid(f"{at(*fault.path)}: {told[fault.kind]}")


def invalid(message: str) -> Problem:
    """Return the refusal of a request, in which the place stands in front of the message."""
    return Problem(type="invalid_request_error", message=message)


def _limits(body: dict[str, Any]) -> Problem | None:
    limit, thinking = body["max_tokens"], members(body.get("thinking"))
    if limit < 1:
        return invalid("max_tokens: Input should be greater than or equal to 1")
    if type(body.get("stream")) not in (bool, type(None)):
        return invalid("stream: Input should be a valid boolean")
    budget = thinking.get("budget_tokens")
    if budget is not None and not _MIN_BUDGET_TOKENS <= budget < limit:
        return invalid(f"thinking.budget_tokens: from {_MIN_BUDGET_TOKENS}, and less than `max_tokens`")
    return None


def _common(body: dict[str, Any], seal: Seal | None) -> Problem | None:
    problem = _tools(body) or _system(body.get("system")) or _sequence(body["messages"]) or _opens_with_thinking(body)
    return problem or (_bound(body, seal) if seal is not None else None)


def _tools(body: dict[str, Any]) -> Problem | None:
    tools, choice = array(body.get("tools")), members(body.get("tool_choice"))
    for index, tool in enumerate(tools):
        if not _NAME.fullmatch(tool.get("name") or "-"):
            return invalid(f"tools.{index}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'")
    if repeated(tool["name"] for tool in tools if "name" in tool):
        return invalid("tools: Tool names must be unique.")
    forced = choice.get("type") in ("any", "tool")
    if forced and members(body.get("thinking")).get("type") == "enabled":
        return invalid("Thinking may not be enabled when tool_choice forces tool use.")
    kinds = {block["type"] for message in body["messages"] for block in blocks(message)}
    if not tools and kinds & {"tool_use", "tool_result"}:
        return invalid("Requests which include `tool_use` or `tool_result` blocks must define tools.")
    if choice and not tools:
        return invalid("tool_choice: may only be specified while providing tools")
    return None


def _system(system: Any) -> Problem | None:
    for index, block in enumerate(array(system)):
        if not block["text"].strip():
            return invalid(f"system.{index}: text content blocks must be non-empty")
    return None


# --- messages ---


def _sequence(messages: list[Any]) -> Problem | None:
    if not messages:
        return invalid("messages: at least one message is required")
    if messages[0]["role"] != "user":
        return invalid('messages: first message must use the "user" role')
    waiting: list[str] = []
    seen: set[str] = set()
    for index, message in enumerate(messages):
        content = blocks(message)
        problem = _role(messages, index) or _content(message["role"], content, index)
        problem = problem or _answers(waiting, message["role"], content, index)
        if problem is not None:
            return problem
        waiting = [block["id"] for block in content if block["type"] == "tool_use"]
        problem = _ids(content, seen, index)
        if problem is not None:
            return problem
    return _open(waiting, len(messages) - 1) if waiting else None


def _role(messages: list[Any], index: int) -> Problem | None:
    if messages[index]["role"] == "system" and messages[index - 1]["role"] != "user":
        return invalid(f"messages.{index}: a system message must come after a user message")
    return None


def _content(role: str, content: list[dict[str, Any]], index: int) -> Problem | None:
    if not content:
        return invalid(f"messages.{index}: all messages must have non-empty content")
    for position, block in enumerate(content):
        place, kind = at("messages", index, "content", position), block["type"]
        if kind != "text" and (kind in _OF_USERS) != (role == "user"):
            return invalid(f"{place}: `{kind}` blocks are not allowed in a message of the role {role}")
        if role == "user" and kind == "text" and block.get("citations"):
            return invalid(f"{place}.text.citations: not permitted in user messages")
        texts = [block, *(array(block.get("content")) if kind == "tool_result" else ())]
        if not all(part["text"] for part in texts if part.get("type") == "text"):
            return invalid(f"{place}: text content blocks must be non-empty")
    said = [block["text"] for block in content if block["type"] == "text"]
    if said and not any(map(str.strip, said)):
        return invalid(f"messages.{index}: text content blocks must contain non-whitespace text")
    if content[-1]["type"] in THINKING:
        return invalid(f"messages.{index}: The final block in an assistant message cannot be `thinking`.")
    return None


def _answers(waiting: list[str], role: str, content: list[dict[str, Any]], index: int) -> Problem | None:
    """Refuse a message that does not answer the calls of the message before it, each once and before all else."""
    results = [block["tool_use_id"] for block in content if block["type"] == "tool_result"]
    first = [block["tool_use_id"] for block in content[: len(results)] if block["type"] == "tool_result"]
    stray = next((id_ for id_ in results if id_ not in waiting), None)
    if stray is not None:
        return invalid(
            f"messages.{index}.content: unexpected `tool_use_id` found in `tool_result` blocks: {stray}. Each "
            "`tool_result` block must have a corresponding `tool_use` block in the previous message."
        )
    twice = repeated(results)
    if twice is not None:
        return invalid(
            f"messages.{index}.content: each tool_use must have a single result. Found multiple `tool_result` blocks "
            f"with id: {twice}"
        )
    missing = [id_ for id_ in waiting if role != "user" or id_ not in first]
    return _open(missing, index - 1) if missing else None


def _open(missing: list[str], index: int) -> Problem:
    return invalid(
        f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: "
        f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in the next "
        "message."
    )


def _ids(content: list[dict[str, Any]], seen: set[str], index: int) -> Problem | None:
    for position, block in enumerate(content):
        if block["type"] != "tool_use":
            continue
        place = at("messages", index, "content", position, "tool_use")
        if not _ID.fullmatch(block["id"]):
            return invalid(f"{place}.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
        if not _NAME.fullmatch(block["name"]):
            return invalid(f"{place}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'")
        if block["id"] in seen:
            return invalid(f"messages.{index}.content.{position}: `tool_use` ids must be unique")
        seen.add(block["id"])
    return None


def _remote(messages: list[Any]) -> Problem | None:
    """Refuse media that would have to be fetched, which are not counted."""
    for index, message in enumerate(messages):
        for position, block in enumerate(blocks(message)):
            inner = [block, *(array(block.get("content")) if block["type"] == "tool_result" else ())]
            if any(members(part.get("source")).get("type") in ("url", "file") for part in inner):
                return invalid(f"messages.{index}.content.{position}: this source cannot be counted")
    return None


# --- thinking ---


def _opens_with_thinking(body: dict[str, Any]) -> Problem | None:
    """Refuse an open tool loop without its thinking, where thinking is on by hand."""
    messages = body["messages"]
    if members(body.get("thinking")).get("type") != "enabled":
        return None
    if not any(block["type"] == "tool_result" for block in blocks(messages[-1])):
        return None
    opening = blocks(messages[-2])[0]["type"]
    if opening in THINKING:
        return None
    place = at("messages", len(messages) - 2, "content", 0, "type")
    return invalid(f"{place}: Expected `thinking` or `redacted_thinking`, but found `{opening}`.")


def _bound(body: Mapping[str, Any], seal: Seal) -> Problem | None:
    drops = _behavior(body) == "drop_block"
    for index, position, verdict in thoughts(body, seal, prefix_of(body)):
        place = at("messages", index, "content", position)
        if verdict is Verdict.FOREIGN:
            return invalid(f"{place}: Invalid `signature` in `thinking` block")
        if verdict is Verdict.STALE and not drops:
            return invalid(f"{place}: The block is bound to a different conversation")
    return None


# --- answers ---


def tokens(body: Mapping[str, Any], seal: Seal) -> int:
    """Return what a request costs; thinking that is left out costs nothing."""
    gone = {entry["path"] for entry in dropped(body, seal)}
    messages = [
        {
            **message,
            "content": [b for m, b in enumerate(blocks(message)) if at("messages", n, "content", m) not in gone],
        }
        for n, message in enumerate(body["messages"])
    ]
    return token_count(picked({**body, "messages": messages}, COUNTED))


def _overflow(body: dict[str, Any], used: int, window: int) -> Problem | None:
    if used > window:
        return invalid(f"prompt is too long: {used} tokens > {window} maximum")
    limit = body["max_tokens"]
    if used + limit > window:
        return invalid(f"input length and `max_tokens` exceed context limit: {used} + {limit} > {window}")
    return None


def _respond(asked: Asked, answer: Answer) -> dict[str, Any]:
    content = _answer(asked, answer)
    ending = {"length": "max_tokens", "filter": "refusal"}.get(answer.ending)
    stop = ending or ("refusal" if answer.refusal else "tool_use" if answer.calls else "end_turn")
    refused = {"type": "refusal", "category": None, "explanation": answer.refusal or None}
    body: dict[str, Any] = {
        "id": asked.fresh("msg"),
        "type": "message",
        "role": "assistant",
        "model": asked.body["model"],
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "stop_details": refused if stop == "refusal" else None,
        "usage": {
            "input_tokens": asked.tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": token_count(content),
            "service_tier": "standard",
        },
    }
    if BINDING_BETA in _betas(asked.headers):
        body["input_transformations"] = dropped(asked.body, asked.seal)
    return body


def _answer(asked: Asked, answer: Answer) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = []
    if answer.thinking is not None or answer.redacted:
        prefix = prefix_of(asked.body)
        for _ in thoughts(asked.body, asked.seal, prefix):
            pass  # walked to its end, so that the prefix is the whole request
        content.append(_thought(asked.seal, answer, prefix.digest()))
    if answer.text:
        content.append({"type": "text", "text": answer.text, "citations": None})
    for call in answer.calls:
        made = {"type": "tool_use", "id": call.id or asked.fresh("toolu"), "name": call.name}
        content.append({**made, "input": call.arguments, "caller": {"type": "direct"}})
    return content


def _thought(seal: Seal, answer: Answer, prefix: bytes) -> dict[str, Any]:
    if answer.redacted:
        block: dict[str, Any] = {"type": "redacted_thinking"}
        return {**block, "data": seal.of(block, prefix)}
    block = {"type": "thinking", "thinking": answer.thinking}
    return {**block, "signature": seal.of(block, prefix)}


def _events(_: Asked, body: dict[str, Any]) -> list[bytes]:
    usage = {**body["usage"], "output_tokens": 1}
    begun: dict[str, Any] = {**body, "content": [], "stop_reason": None, "stop_details": None, "usage": usage}
    begun.pop("input_transformations", None)
    sent = [event({"type": "message_start", "message": begun}, "message_start"), event({"type": "ping"}, "ping")]
    for index, block in enumerate(body["content"]):
        start, deltas = _streamed(block)
        told = [{"type": "content_block_start", "index": index, "content_block": start}]
        told += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        told += [{"type": "content_block_stop", "index": index}]
        sent += [event(value, str(value["type"])) for value in told]
    delta = {key: body[key] for key in ("stop_reason", "stop_sequence", "stop_details")}
    end = {"type": "message_delta", "delta": delta, "usage": {"output_tokens": body["usage"]["output_tokens"]}}
    end.update(picked(body, ("input_transformations",)))
    return [*sent, event(end, "message_delta"), event({"type": "message_stop"}, "message_stop")]


def _streamed(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return how a block begins in a stream, and the deltas that make it whole."""
    kind = block["type"]
    if kind == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
    if kind == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
        signed = {"type": "signature_delta", "signature": block["signature"]}
        return {**block, "thinking": "", "signature": ""}, [*deltas, signed]
    if kind == "tool_use":
        written = canonical(block["input"]).decode()
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": p} for p in pieces(written)]
    return block, []


# --- the dialect ---

_ROUTES: Final = {"/v1/messages": Route(kind="generate"), "/v1/messages/count_tokens": Route(kind="count")}


def _betas(headers: Mapping[str, str]) -> frozenset[str]:
    return frozenset(beta.strip() for beta in headers.get("anthropic-beta", "").split(","))


def _identified(headers: Mapping[str, str], _: Mapping[str, str]) -> Problem | None:
    key = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer").strip()
    if not key:
        return Problem(status=401, type="authentication_error", message="x-api-key header is required")
    return None if headers.get("anthropic-version") else invalid("anthropic-version: header is required")


def _check(route: Route, body: dict[str, Any], headers: Mapping[str, str], seal: Seal) -> Problem | None:
    check = check_count if route.kind == "count" else check_request
    return check(body, seal, _betas(headers))


def _failed(status: int, code: str | None) -> Problem:
    return Problem(status=status, type=code or _ERRORS.get(status, "api_error"), message="The request failed.")


def _error(problem: Problem) -> dict[str, Any]:
    return {"type": "error", "error": {"type": problem.type, "message": problem.message}}


DIALECT: Final = Dialect(
    name="anthropic",
    root="",
    route=lambda path, _: _ROUTES.get(path),
    identified=_identified,
    check=_check,
    tokens=lambda _route, body, _headers, seal: tokens(body, seal),
    overflow=_overflow,
    counted=lambda count: {"input_tokens": count},
    respond=_respond,
    events=_events,
    failed=_failed,
    error=_error,
    broken=lambda problem: event(_error(problem), "error"),
    malformed=invalid,
    sealed=frozenset({"signature", "data"}),
)
