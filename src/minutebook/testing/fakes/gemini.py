"""
Gemini generateContent, with countTokens and both forms of streams, under `/v1` and `/v1beta`.

    fields are those of the API, in camelCase or snake_case, every object closed
    the first content is the user's; every content has parts, every part one kind of content
    a content with calls stands directly behind a user's, and the next one answers each of its calls, once, by id or
    else by order and name; call ids stand once in a request, and contents of one role are not joined first (stricter
    than the service)
    from the user's last words on, the first call of each model content carries its signature, as it came; so does
    whatever else has one there. Older contents are not looked at. `SKIPPED` passes for any signature
    countTokens takes `contents` or a whole `generateContentRequest`, not both; bare contents count without the rest
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from minutebook.testing.fakes._gemini_types import shape, snake, spelled
from minutebook.testing.fakes.dialect import (
    Asked,
    Dialect,
    Problem,
    Route,
    event,
    pieces,
    token_count,
)
from minutebook.testing.fakes.seals import Seal, Verdict, canonical
from minutebook.testing.fakes.shapes import Fault

if TYPE_CHECKING:
    from minutebook.testing.fakes.answers import Answer

__all__ = ["DIALECT", "SKIPPED", "check_count", "check_messages", "check_request"]

SKIPPED: Final = "skip_thought_signature_validator"
"""The value that the service takes for the signature of a call that it did not make."""

_KINDS: Final = (
    *("text", "inlineData", "fileData", "functionCall", "functionResponse", "executableCode"),
    *("codeExecutionResult", "toolCall", "toolResponse"),
)
_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}", re.ASCII)


def check_request(body: dict[str, Any], seal: Seal | None = None) -> Problem | None:
    """Return why the service would refuse to generate from this body, or `None`; `seal` also checks signatures."""
    same = spelled(body, "Request")
    fault = shape("Request")(same)
    return _misshapen(fault) if fault is not None else _common(same, seal)


def check_count(body: dict[str, Any], seal: Seal | None = None, model: str = "") -> Problem | None:
    """Return why countTokens would refuse this body, or `None`; with `model`, that of the path has to be the body's."""
    same = spelled(body, "CountRequest")
    fault = shape("CountRequest")(same)
    if fault is not None:
        return _misshapen(fault)
    if ("contents" in same) == ("generateContentRequest" in same):
        return invalid("contents and generate_content_request are mutually exclusive, and one of them is required.")
    request = same.get("generateContentRequest")
    if request is None:
        return _sequence(same["contents"], seal)
    if request.get("model") is None or (model and request["model"] != f"models/{model}"):
        return invalid("generate_content_request.model: must be the model that is asked.")
    return _common(request, seal)


def check_messages(contents: list[Any], seal: Seal | None = None) -> Problem | None:
    """Return why no request could hold these contents, or `None`."""
    return check_request({"contents": contents}, seal)


def invalid(message: str, status: int = 400, kind: str = "INVALID_ARGUMENT") -> Problem:
    """Return the refusal of a request."""
    return Problem(status=status, type=kind, message=message)


def at(*path: str | int) -> str:
    """Return a place as Gemini writes it: `contents[0].parts[1]`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{snake(step)}" for step in path).removeprefix(".")


def _misshapen(fault: Fault) -> Problem:
    *outer, last = fault.path or ("",)
    if fault.kind == "unknown":
        place = f" at '{at(*outer)}'" if outer else ""
        return invalid(f'Invalid JSON payload received. Unknown name "{last}"{place}: Cannot find field.')
    told = "must be set" if fault.kind == "missing" else "Invalid value"
    return invalid(f"{at(*fault.path)}: {told}.")


def _common(body: dict[str, Any], seal: Seal | None) -> Problem | None:
    if body.get("cachedContent"):
        return invalid("CachedContent not found.", 403, "PERMISSION_DENIED")
    if body.get("generationConfig", {}).get("candidateCount", 1) != 1:
        return invalid("Multiple candidates is not enabled for this model.")
    names = [f["name"] for tool in body.get("tools", ()) for f in tool.get("functionDeclarations", ())]
    wrong = next((name for name in names if not _NAME.fullmatch(name)), None)
    if wrong is not None:
        return invalid(
            "tools.function_declarations.name: Invalid function name. Must start with a letter or underscore."
        )
    if len(set(names)) != len(names):
        return invalid("tools.function_declarations: Duplicate function declaration found.")
    system = body.get("systemInstruction")
    if system is not None and not all("text" in part for part in system["parts"]):
        return invalid("system_instruction: only texts are allowed.")
    return _sequence(body["contents"], seal)


# --- contents ---


def _sequence(contents: list[Any], seal: Seal | None) -> Problem | None:
    if not contents:
        return invalid("contents is not specified.")
    if _role(contents[0]) != "user":
        return invalid("Please ensure that multiturn requests begin with a user turn.")
    seen: set[str] = set()
    calls: list[dict[str, Any]] = []
    for index, content in enumerate(contents):
        before = calls
        calls, answers = _held(content, "functionCall"), _held(content, "functionResponse")
        problem = _parts(content, index) or _turn(contents, index, calls, answers, before)
        problem = problem or _paired(before, answers) or _ids(calls, seen)
        if problem is not None:
            return problem
    if calls:
        return _uneven()
    return _signed(contents, seal) if seal is not None else None


def _role(content: dict[str, Any]) -> str:
    return str(content.get("role", "user"))


def _held(content: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [part[kind] for part in content["parts"] if kind in part]


def _parts(content: dict[str, Any], index: int) -> Problem | None:
    if not content["parts"]:
        return invalid(f"contents[{index}].parts: must not be empty.")
    for position, part in enumerate(content["parts"]):
        if sum(kind in part for kind in _KINDS) != 1:
            place = at("contents", index, "parts", position)
            return invalid(f"{place}.data: required oneof field 'data' must have one initialized field")
        if "fileData" in part:
            return invalid("You do not have permission to access the File.", 403, "PERMISSION_DENIED")
    return None


def _turn(
    contents: list[Any],
    index: int,
    calls: list[dict[str, Any]],
    answers: list[dict[str, Any]],
    before: list[dict[str, Any]],
) -> Problem | None:
    """Refuse a content whose calls or responses stand in the wrong turn."""
    role = _role(contents[index])
    if (calls and role == "user") or (answers and role == "model"):
        return invalid(f"contents[{index}]: calls are the model's, and responses the user's.")
    if calls and _role(contents[index - 1]) != "user":
        return invalid(
            "Please ensure that function call turn comes immediately after a user turn or after a function response "
            "turn."
        )
    if answers and not before:
        return invalid("Please ensure that function response turn comes immediately after a function call turn.")
    return _uneven() if len(answers) != len(before) else None


def _uneven() -> Problem:
    return invalid(
        "Please ensure that the number of function response parts is equal to the number of function call parts of the "
        "function call turn."
    )


def _paired(calls: list[dict[str, Any]], answers: list[dict[str, Any]]) -> Problem | None:
    """Refuse responses that are not those of the calls, by id where there is one, else by order and name."""
    left = list(calls)
    # Those with ids first, so that one without takes none of their calls.
    for answer in sorted(answers, key=lambda answer: not answer.get("id")):
        id_ = answer.get("id")
        found = next(
            (call for call in left if (call.get("id") == id_ if id_ else call["name"] == answer["name"])), None
        )
        if found is None or found["name"] != answer["name"]:
            return invalid("Function response does not match any function call of the function call turn.")
        left.remove(found)
    return None


def _ids(calls: list[dict[str, Any]], seen: set[str]) -> Problem | None:
    for call in calls:
        if not _NAME.fullmatch(call["name"]):
            return invalid("function_call.name: Invalid function name.")
        if call.get("id", "") in seen:
            return invalid("Duplicate function call id.")
        seen |= {call["id"]} if call.get("id") else set()
    return None


# --- signatures ---


def _signed(contents: list[Any], seal: Seal) -> Problem | None:
    spoken = [n for n, c in enumerate(contents) if _role(c) == "user" and not _held(c, "functionResponse")]
    for index in range(spoken[-1], len(contents)):
        first = True
        for position, part in enumerate(contents[index]["parts"]):
            signature = part.get("thoughtSignature")
            if signature is None and "functionCall" in part and first:
                name, place = part["functionCall"]["name"], at("contents", index, "parts", position)
                return invalid(
                    f"Function call is missing a thought_signature in functionCall parts. Function call `{name}`, "
                    f"position {place}."
                )
            first = first and "functionCall" not in part
            if signature not in (None, SKIPPED) and seal.verdict(signature, _sealed(part)) is not Verdict.VALID:
                return invalid("Corrupted thought signature.")
    return None


def _sealed(part: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name != "thoughtSignature"}


def _sign(part: dict[str, Any], seal: Seal) -> dict[str, Any]:
    return {**part, "thoughtSignature": seal.of(part)}


# --- answers ---

_COUNTED: Final = ("contents", "systemInstruction", "tools", "toolConfig", "generationConfig")


def tokens(body: dict[str, Any]) -> int:
    """Return what a body of generateContent or of countTokens costs."""
    request = body.get("generateContentRequest", body.get("generate_content_request", body))
    same = spelled(request, "Request")
    return token_count({name: same[name] for name in _COUNTED if name in same})


def _overflow(_: dict[str, Any], used: int, window: int) -> Problem | None:
    if used <= window:
        return None
    return invalid(f"The input token count ({used}) exceeds the maximum number of tokens allowed ({window}).")


def _respond(asked: Asked, answer: Answer) -> dict[str, Any]:
    parts = _answer(asked, answer)
    thoughts = sum(token_count(part) for part in parts if part.get("thought"))
    said = token_count(parts)
    body: dict[str, Any] = {
        "usageMetadata": {
            "promptTokenCount": asked.tokens,
            "candidatesTokenCount": said,
            "thoughtsTokenCount": thoughts,
            "totalTokenCount": asked.tokens + said + thoughts,
        },
        "modelVersion": asked.route.model,
        "responseId": asked.fresh("r"),
    }
    if answer.refusal:
        return {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, **body}
    ending = {"length": "MAX_TOKENS", "filter": "SAFETY"}.get(answer.ending, "STOP")
    content = {"parts": parts, "role": "model"} if parts else {"role": "model"}
    return {"candidates": [{"content": content, "finishReason": ending, "index": 0}], **body}


def _answer(asked: Asked, answer: Answer) -> list[dict[str, Any]]:
    """Return the parts: of parallel calls the first is signed, and without calls the text, where there was thinking."""
    parts: list[dict[str, Any]] = [{"text": answer.thinking, "thought": True}] if answer.thinking else []
    if answer.text:
        part = {"text": answer.text}
        parts.append(_sign(part, asked.seal) if answer.thinking is not None and not answer.calls else part)
    for index, call in enumerate(answer.calls):
        made = {"name": call.name, "args": call.arguments}
        named = made if call.id is None else {"id": call.id or asked.fresh("call"), **made}
        parts.append({"functionCall": named} if index else _sign({"functionCall": named}, asked.seal))
    return parts


def _events(asked: Asked, body: dict[str, Any]) -> list[bytes]:
    chunks = list(_chunks(asked.seal, body))
    if asked.route.framed:
        return [event(chunk) for chunk in chunks]
    marks = [b"[", *[b","] * (len(chunks) - 1)]
    return [mark + canonical(chunk) for mark, chunk in zip(marks, chunks, strict=True)] + [b"]"]


def _chunks(seal: Seal, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    rest = {name: value for name, value in body.items() if name != "candidates"}
    if "candidates" not in body:
        yield rest
        return
    (candidate,) = body["candidates"]
    streamed = [part for whole in candidate["content"].get("parts", ()) for part in _streamed(seal, whole)]
    for part in streamed:
        yield {"candidates": [{"content": {"parts": [part], "role": "model"}, "index": 0}], **rest}
    yield {"candidates": [{**candidate, "content": {"role": "model"}}], **rest}


def _streamed(seal: Seal, part: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a part in pieces; the signature of a text comes last, on a part whose text is empty."""
    if "text" not in part:
        return [part]
    parts = [{**_sealed(part), "text": piece} for piece in pieces(part["text"])]
    return [*parts, _sign({"text": ""}, seal)] if "thoughtSignature" in part else parts


# --- the dialect ---

_PATH: Final = re.compile(r"/v1(?:beta)?/models/([^/:]+):(generateContent|streamGenerateContent|countTokens)")
_STATUSES: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def _route(path: str, query: Mapping[str, str]) -> Route | None:
    found = _PATH.fullmatch(path)
    if found is None:
        return None
    model, method = found.groups()
    streams = method == "streamGenerateContent"
    kind = "count" if method == "countTokens" else "generate"
    return Route(kind=kind, model=model, stream=streams, framed=query.get("alt") == "sse")  # type: ignore[arg-type]


def _identified(headers: Mapping[str, str], query: Mapping[str, str]) -> Problem | None:
    if headers.get("x-goog-api-key") or query.get("key") or headers.get("authorization"):
        return None
    return invalid("Method doesn't allow unregistered callers.", 403, "PERMISSION_DENIED")


def _check(route: Route, body: dict[str, Any], _: Mapping[str, str], seal: Seal) -> Problem | None:
    return check_count(body, seal, route.model) if route.kind == "count" else check_request(body, seal)


def _failed(status: int, code: str | None) -> Problem:
    return Problem(status=status, type=code or _STATUSES.get(status, "UNKNOWN"), message="The request failed.")


def _error(problem: Problem) -> dict[str, Any]:
    return {"error": {"code": problem.status, "message": problem.message, "status": problem.type}}


DIALECT: Final = Dialect(
    name="gemini",
    root="",
    route=_route,
    identified=_identified,
    check=_check,
    tokens=lambda _route, body, _headers, _seal: tokens(body),
    overflow=_overflow,
    counted=lambda count: {"totalTokens": count},
    respond=_respond,
    events=_events,
    failed=_failed,
    error=_error,
    broken=lambda problem: event(_error(problem)),
    malformed=invalid,
    sealed=frozenset({"thoughtSignature"}),
)
