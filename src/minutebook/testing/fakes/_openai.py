"""What both APIs of OpenAI share: their errors, names, routes and prices, and schemas that are called strict."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from minutebook.testing.fakes.dialect import (
    Asked,
    Dialect,
    Problem,
    Route,
    array,
    event,
    members,
    picked,
    token_count,
)
from minutebook.testing.fakes.seals import Seal, canonical

if TYPE_CHECKING:
    from minutebook.testing.fakes.answers import Answer
    from minutebook.testing.fakes.shapes import Fault

_CODES: Final = {
    400: ("invalid_request_error", None),
    401: ("invalid_request_error", "invalid_api_key"),
    403: ("invalid_request_error", "unsupported_country_region_territory"),
    404: ("invalid_request_error", "model_not_found"),
    409: ("invalid_request_error", None),
    429: ("requests", "rate_limit_exceeded"),
    500: ("server_error", "server_error"),
    503: ("server_error", "overloaded"),
}
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)


def invalid(message: str, param: str | None, code: str | None = None, status: int = 400) -> Problem:
    """Return OpenAI's refusal of a request."""
    return Problem(status=status, type="invalid_request_error", message=message, param=param, code=code)


def failed(status: int, code: str | None) -> Problem:
    """Return what OpenAI says under a status."""
    kind, usual = _CODES.get(status, ("server_error" if status >= 500 else "invalid_request_error", None))
    return Problem(status=status, type=kind, message="The request failed.", code=code or usual)


def error(problem: Problem) -> dict[str, Any]:
    """Return the body of an error."""
    return {
        "error": {"message": problem.message, "type": problem.type, "param": problem.param, "code": problem.code},
    }


def broken(problem: Problem) -> bytes:
    """Return an error inside a stream, as Chat Completions tells it."""
    return event(error(problem))


def malformed(message: str) -> Problem:
    """Return the refusal of what is no JSON object."""
    return invalid(message, None)


def identified(headers: Mapping[str, str], _: Mapping[str, str]) -> Problem | None:
    """Refuse a request without a key."""
    if headers.get("authorization", "").removeprefix("Bearer").strip():
        return None
    return invalid("You didn't provide an API key.", None, status=401)


def at(*path: str | int) -> str:
    """Return a place as OpenAI writes it: `input[0].content`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def misshapen(fault: Fault) -> Problem:
    """Return the refusal of a body that is not of the request's type."""
    place = at(*fault.path)
    if fault.kind == "unknown":
        return invalid(f"Unknown parameter: '{place}'.", place, "unknown_parameter")
    if fault.kind == "missing":
        return invalid(f"Missing required parameter: '{place}'.", place, "missing_required_parameter")
    return invalid(f"Invalid value or type for '{place}'.", place, "invalid_type")


def misnamed(name: Any, param: str) -> Problem | None:
    """Refuse a function's name outside the alphabet."""
    if type(name) is str and _NAME.fullmatch(name):
        return None
    message = f"Invalid '{param}': string does not match pattern. Expected ^[a-zA-Z0-9_-]{{1,64}}$."
    return invalid(message, param, "invalid_value")


def not_strict(schema: Any, param: str, code: str) -> Problem | None:
    """Refuse a schema that is called strict while an object in it is open or a field in it optional."""
    for part in _objects(schema):
        fields = members(part.get("properties"))
        if part.get("additionalProperties") is not False:
            return invalid("'additionalProperties' is required to be supplied and to be false.", param, code)
        if set(map(str, array(part.get("required")))) != set(fields):
            return invalid("'required' is required to include every key in properties.", param, code)
    return None


def _objects(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield every schema of an object within a schema."""
    part = members(schema)
    if part.get("type") == "object" or "properties" in part:
        yield part
    for keyword in ("properties", "$defs"):
        for inner in members(part.get(keyword)).values():
            yield from _objects(inner)
    for keyword in ("anyOf", "oneOf", "allOf"):
        for inner in array(part.get(keyword)):
            yield from _objects(inner)
    yield from _objects(part["items"]) if "items" in part else ()


def no_stream(body: Mapping[str, Any]) -> Problem | None:
    """Refuse a `stream` that is no boolean, and options of a stream where none was asked for."""
    if type(body.get("stream")) not in (bool, type(None)):
        return invalid("Invalid type for 'stream': expected a boolean.", "stream", "invalid_type")
    if body.get("stream_options") is not None and not body.get("stream"):
        return invalid("'stream_options' is only allowed when 'stream' is enabled.", "stream_options")
    return None


def written(arguments: Any) -> str:
    """Return a call's arguments as the text that OpenAI gives; a text stays as it is."""
    return arguments if isinstance(arguments, str) else canonical(arguments).decode()


def dialect(
    name: str,
    path: str,
    *,
    counted: tuple[str, ...],
    check_request: Callable[[dict[str, Any], Seal], Problem | None],
    check_count: Callable[[dict[str, Any], Seal], Problem | None],
    too_long: Callable[[int, int], Problem],
    respond: Callable[[Asked, Answer], dict[str, Any]],
    events: Callable[[Asked, dict[str, Any]], list[bytes]],
    broken: Callable[[Problem], bytes],
    sealed: frozenset[str] = frozenset(),
) -> Dialect:
    """
    Return one of the two APIs: it generates at `path` and counts below it.

    `counted` names the fields that cost tokens; `too_long` is told how many a request takes and how many there are.
    """
    routes = {f"/v1{path}": Route(kind="generate"), f"/v1{path}/input_tokens": Route(kind="count")}
    return Dialect(
        name=name,
        root="/v1",
        route=lambda path, _: routes.get(path),
        identified=identified,
        check=lambda route, body, _, seal: (check_count if route.kind == "count" else check_request)(body, seal),
        tokens=lambda _route, body, _headers, _seal: token_count(picked(body, counted)),
        overflow=lambda _, used, window: too_long(used, window) if used > window else None,
        counted=lambda count: {"object": "response.input_tokens", "input_tokens": count},
        respond=respond,
        events=events,
        failed=failed,
        error=error,
        broken=broken,
        malformed=malformed,
        sealed=sealed,
    )
