"""
Streamed answers put together in the plainest way: after each event the whole is written anew.

It says what the result has to be, to the byte. Its work grows with the square of a stream, so it also is what a measure
of that growth has to tell from the real one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec

from minutebook.errors import InvalidValue
from minutebook.model import codec

Raw = dict[str, msgspec.Raw]
members = msgspec.json.Decoder(Raw).decode
items = msgspec.json.Decoder(list[msgspec.Raw]).decode
NULL = msgspec.Raw(b"null")
NOTHING: tuple[Any, ...] = (None, "", [], {})
STATED = {"finish_reason", "finishReason", "safetyRatings", "tokenCount"}
APPENDED = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
PIECES = {**APPENDED, "input_json_delta": "partial_json", "citations_delta": "citation"}


class Unknown(Exception):
    """Nothing tells how two pieces add up."""


class Cut(Exception):
    """The stream ended before its answer did."""


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def plainly_joined(key: str, before: Any, piece: Any) -> Any:
    if piece in NOTHING:
        return piece if before is None else before
    if before in NOTHING:
        before = {} if isinstance(piece, dict) else [] if isinstance(piece, list) else None
    if before is None or key in STATED:
        return piece
    if isinstance(before, dict) and isinstance(piece, dict):
        return before | {name: plainly_joined(name, before.get(name), value) for name, value in piece.items()}
    if isinstance(before, list) and isinstance(piece, list):
        return with_items(before, piece)
    label = key in ("role", "type", "id", "name", "format")
    if type(before) is type(piece) and before == piece and (label or not isinstance(piece, str)):
        return before
    if isinstance(before, str) and isinstance(piece, str) and key not in ("role", "type"):
        return before + piece
    raise Unknown


UNSURE = "\0unsure"
"""Marks a call that is none unless arguments follow; no member of a stream is called so."""


def with_items(whole: list[Any], pieces: list[Any]) -> list[Any]:
    told: set[int] = set()
    for piece in pieces:
        index = piece.get("index") if isinstance(piece, dict) else None
        numbered = isinstance(index, (int, float))
        found = [n for n, item in enumerate(whole) if numbered and index_of(item) == index]
        renamed = bool(found) and id_of(whole[found[-1]]) not in (*NOTHING, id_of(piece)) and is_said(id_of(piece))
        another = renamed and begins_another(whole[found[-1]], piece, beside=found[-1] in told)
        if renamed and not another and isinstance(id_of(whole[found[-1]]), str):
            piece = {key: value for key, value in piece.items() if key != "id"}
        at = found[-1] if found and not another else len(whole)
        item = plainly_joined("", whole[at] if at < len(whole) else None, piece)
        whole = [*whole[:at], item | {UNSURE: True} if another == "if more follows" else item, *whole[at + 1 :]]
        told.add(at)
    return whole


def begins_another(call: Any, piece: Any, *, beside: bool) -> bool | str:
    """Whether a piece with another id than a call of its index is of another call."""
    name, before = function_of(piece).get("name"), function_of(call).get("name")
    if name in NOTHING or before in NOTHING:
        return False
    if beside or name != before:
        return True
    if is_blank(call):
        raise Unknown
    return is_whole(call) and ("if more follows" if is_blank(piece) else True)


def sure(value: Any) -> Any:
    """The value without marks, where each call that has one got arguments."""
    if isinstance(value, list):
        return [sure(item) for item in value]
    if not isinstance(value, dict):
        return value
    if UNSURE in value and is_blank(value):
        raise Unknown
    return {key: sure(member) for key, member in value.items() if key != UNSURE}


def is_blank(call: Any) -> bool:
    arguments = function_of(call).get("arguments")
    return arguments is None or (isinstance(arguments, str) and not arguments.strip())


def id_of(item: Any) -> Any:
    return item.get("id") if isinstance(item, dict) else None


def function_of(item: Any) -> dict[str, Any]:
    function = item.get("function")
    return function if isinstance(function, dict) else {}


def is_whole(call: Any) -> bool:
    arguments = function_of(call).get("arguments")
    try:
        value = codec.decode(arguments.encode()) if isinstance(arguments, str) else arguments
    except (InvalidValue, UnicodeEncodeError):
        return False
    return isinstance(value, dict) or (isinstance(value, list) and isinstance(arguments, str))


def is_said(text: Any) -> bool:
    return isinstance(text, str) and text != ""


def index_of(item: Any) -> Any:
    return item.get("index") if isinstance(item, dict) else None


def plain_chat(events: list[bytes]) -> bytes:
    whole: dict[str, Any] = {}
    choice: Any = {"delta": {"role": "assistant", "content": None}}
    for data in events:
        told = cast("dict[str, Any]", codec.decode(data))
        for each in told.pop("choices", None) or []:
            choice = plainly_joined("", choice, each)
        whole = whole | {key: value for key, value in told.items() if value is not None or key not in whole}
    if not choice.get("finish_reason"):
        raise Cut
    choice = sure(choice)
    message = choice.pop("delta")
    for call in message.get("tool_calls") or []:
        if isinstance(call, dict):
            call.pop("index", None)
    return codec.encode({**whole, "object": "chat.completion", "choices": [{**choice, "message": message}]})


def plain_claude(events: list[bytes]) -> bytes:
    whole: Raw = {}
    blocks: dict[bytes, Raw] = {}
    inputs: dict[bytes, str] = {}
    for data in events:
        event = members(data)
        kind = codec.decode(bytes(event["type"]))
        place = bytes(event.get("index", NULL))
        if kind == "message_start":
            whole = members(event["message"])
        elif kind == "content_block_start":
            if place in blocks:
                raise Unknown
            blocks[place] = members(event["content_block"])
        elif kind == "content_block_delta":
            if place not in blocks:
                raise Unknown
            extend(blocks[place], inputs, place, members(event["delta"]))
        elif kind == "content_block_stop":
            text = inputs.pop(place, "").encode()
            if text:
                codec.decode(text)
                if codec.decode(bytes(blocks[place].get("input", NULL))) not in NOTHING:
                    raise Unknown
                blocks[place]["input"] = msgspec.Raw(text)
        elif kind == "message_delta":
            rest = {key: value for key, value in event.items() if key not in ("type", "delta", "usage")}
            usage = restated(members(whole.get("usage", b"{}")), members(event.get("usage", b"{}")))
            whole = restated(whole, {**members(event["delta"]), **rest}) | {"usage": raw(usage)}
        elif kind == "message_stop":
            if any(inputs.values()):
                raise Unknown
            return msgspec.json.encode({**whole, "content": list(blocks.values())})
    raise Cut


def restated(before: Raw, newer: Raw) -> Raw:
    return before | {key: value for key, value in newer.items() if key not in before or bytes(value) != b"null"}


def extend(block: Raw, inputs: dict[bytes, str], place: bytes, delta: Raw) -> None:
    kind = str(codec.decode(bytes(delta["type"])))
    key = PIECES.get(kind)
    if key is None or set(delta) != {"type", key}:
        raise Unknown
    if kind == "citations_delta":
        before = block.get("citations", NULL)
        block["citations"] = raw([*(items(before) if bytes(before) != b"null" else []), delta[key]])
    elif kind == "input_json_delta":
        inputs[place] = appended(inputs.get(place, ""), text_of(delta[key]))
    else:
        block[key] = raw(appended(text_of(block.get(key, NULL)), text_of(delta[key])))


def appended(text: str, piece: str) -> str:
    return text + piece


def text_of(value: msgspec.Raw) -> str:
    text = codec.decode(bytes(value))
    if not isinstance(text, str | None):
        raise Unknown
    return text or ""


def plain_gemini(events: list[bytes]) -> bytes:
    whole: Raw = {}
    candidate: Raw = {}
    content: Raw = {}
    parts: list[msgspec.Raw] = []
    for data in events:
        event = members(data)
        for each in items(event.pop("candidates", b"[]")):
            piece = members(each)
            told = members(piece.pop("content", b"{}"))
            parts += items(told.pop("parts", b"[]"))
            content = added(content, told)
            candidate = added(candidate, piece)
        whole = whole | event
    if "finishReason" not in candidate:
        raise Cut
    candidate, content = sure_members(candidate), sure_members(content)
    candidate["content"] = raw({**content, "parts": parts})
    return msgspec.json.encode({**whole, "candidates": [candidate]})


def sure_members(whole: Raw) -> Raw:
    """The members, those without a mark as their bytes."""
    marked = {key for key, piece in whole.items() if b"unsure" in bytes(piece)}
    return {
        key: msgspec.Raw(codec.encode(sure(codec.decode(bytes(piece))))) if key in marked else piece
        for key, piece in whole.items()
    }


def added(whole: Raw, pieces: Raw) -> Raw:
    for key, piece in pieces.items():
        if key in whole and key not in STATED:
            value = plainly_joined(key, codec.decode(bytes(whole[key])), codec.decode(bytes(piece)))
            whole = {**whole, key: msgspec.Raw(codec.encode(value))}
        else:
            whole = {**whole, key: piece}
    return whole


PLAIN: dict[str, Callable[[list[bytes]], bytes]] = {
    "openai-chat": plain_chat,
    "anthropic": plain_claude,
    "gemini": plain_gemini,
}
"""By the wire format's name. What Responses streams holds the whole answer in its last event."""
