"""
What a caller hands over, as checked JSON bytes: a raw body, plain JSON values, or an SDK's object.

Raw bytes are kept as they are. An SDK's object is recognised by the module of its type, so that no SDK is imported
here, and dumped by its own public method. openai and anthropic keep fields they do not know; google-genai drops them
and rewrites signatures, so its objects are refused (SPEC C2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from minutebook.errors import InvalidMessage, InvalidValue
from minutebook.model import codec
from minutebook.providers.wire._mistaken import HTTP_RESPONSE, RAW_RESPONSE, STREAM, is_event_stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from minutebook.model.codec import JSON

_SDK_DEPTH = 8
"""How deep plain containers are searched for SDK objects: messages hold lists of blocks, and those lists again."""


def opened(body: object, path: str = "$") -> tuple[bytes, JSON]:
    """
    Return `body` as the bytes to keep and the value they hold.

    Raises:
        InvalidMessage: an object of a foreign type, a google-genai object among them.
        InvalidValue: JSON that is not strict, or a value that JSON cannot hold; `path` starts at `path`.
    """
    try:
        if isinstance(body, (bytes, bytearray, memoryview)):
            payload = bytes(cast("bytes", body))
            return payload, codec.decode(payload)
        return _encoded(body, path)
    except InvalidValue as error:
        if path == "$":
            raise
        place = path + str(error.facts.get("path", "$"))[1:]
        raise InvalidValue(f"in the message at {path}: {error}", path=place) from error


def opened_response(body: object) -> tuple[bytes, JSON]:
    """
    Return what was given as a response like `opened`.

    Raises:
        InvalidMessage: also, a stream, or an HTTP response in the place of its body.
    """
    try:
        return opened(body)
    except InvalidValue:
        told = _instead(body)
        if told:
            raise InvalidMessage(told, path="$") from None
        raise


def _encoded(body: object, path: str) -> tuple[bytes, JSON]:
    try:
        return codec.encode_copy(body)
    except InvalidValue:
        # Something in it is no plain JSON value. Should that be an SDK's object, its dump takes its place.
        return codec.encode_copy(_dumped(body, path, _SDK_DEPTH, {}))


def _dumped(value: object, path: str, depth: int, seen: dict[int, object]) -> object:
    """
    Return `value` with the SDK objects in it replaced by their JSON values; the codec judges what is left.

    Each container is entered once, so that a list that holds itself costs no more than another one.
    """
    if value is None or isinstance(value, (str, int, float, bytes)):
        return value
    if type(value) not in (dict, list):
        return _sdk_value(value, path)
    place = id(value)
    if place in seen or not depth:
        return seen.get(place, value)
    seen[place] = value
    copied: object
    if isinstance(value, dict):
        entries = cast("dict[object, object]", value).copy()
        copied = {key: _dumped(item, f"{path}.{key}", depth - 1, seen) for key, item in entries.items()}
    else:
        listed = cast("list[object]", value).copy()
        copied = [_dumped(item, f"{path}[{n}]", depth - 1, seen) for n, item in enumerate(listed)]
    seen[place] = copied
    return copied


def _sdk_value(value: object, path: str) -> object:
    modules = [base.__module__ for base in type(value).__mro__]
    if any(module.startswith(("google.genai.", "google.generativeai.", "google.ai.")) for module in modules):
        raise InvalidMessage(
            "google-genai objects drop fields and rewrite signatures; give the raw response body instead "
            "(should_return_http_response=True, then sdk_http_response.body encoded as UTF-8)",
            path=path,
        )
    dump: Callable[..., object] | None = getattr(value, "to_dict", None)
    if dump is not None and any(module.partition(".")[0] in ("openai", "anthropic") for module in modules):
        # Silent: an item of a type newer than the SDK makes pydantic warn, and is kept all the same.
        return dump(mode="json", warnings=False)
    return value


def _instead(value: object) -> str:
    """Return what is to be told of a value that has a response's body in it and is none; empty for any other."""
    if isinstance(value, (bytes, bytearray)):
        return STREAM if is_event_stream(value) else ""
    name, packages = type(value).__name__, {base.__module__.partition(".")[0] for base in type(value).__mro__}
    if name == "Response" and packages & {"httpx", "httpx2"}:
        return HTTP_RESPONSE
    if packages & {"openai", "anthropic"} and name.endswith("APIResponse"):
        return RAW_RESPONSE
    return STREAM if any(hasattr(value, method) for method in ("__next__", "__anext__")) else ""
