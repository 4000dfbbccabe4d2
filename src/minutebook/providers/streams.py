"""
Answers that come as a stream of server-sent events, put together to the one body that the same answer has without.

Only that body is recorded: a fragment is no history. What a provider gives whole is taken as its bytes, and of what it
gives in pieces the values are what the pieces add up to. A stream that ends early, or holds a piece of unknown kind,
is no answer at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from minutebook.errors import InvalidValue
from minutebook.model import codec
from minutebook.providers.decision import unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from minutebook.errors import AgentDecisionProviderUnavailable
    from minutebook.model.codec import JSON

Raw = dict[str, msgspec.Raw]
"""An object of which each member is kept as its bytes."""

_DONE: Final = b"[DONE]"
_members = msgspec.json.Decoder(Raw).decode
_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """How one provider's API streams an answer."""

    fields: dict[str, bytes]
    """What a request says to have its answer streamed."""
    path: str = ""
    """Where such a request is posted, if elsewhere; `{model}` in it stands for the model's name."""
    assembled: Callable[[Iterable[bytes]], bytes]
    """Return the body that the events' data add up to."""


def assembled(stream: Stream, body: bytes) -> bytes:
    """
    Return the body of a streamed answer. One that came whole after all, as many an error does, is returned as it is.

    Raises:
        AgentDecisionProviderUnavailable: an error among the events, or a stream that ended early or is none.
    """
    if body.lstrip()[:1] in (b"{", b"["):
        return body
    try:
        return stream.assembled(_data(body))
    except (msgspec.DecodeError, InvalidValue, UnicodeDecodeError):
        raise unavailable("not_json", 200) from None


def cut() -> AgentDecisionProviderUnavailable:
    """Return the error for a stream that ended before its answer did."""
    return unavailable("stream_cut", 200)


def _data(body: bytes) -> Iterator[bytes]:
    """Return the data of each event that came in full."""
    lines: list[bytes] = []
    for line in body.splitlines(keepends=True):
        text = line.rstrip(b"\r\n")
        if text.startswith(b"data:"):
            lines.append(text.removeprefix(b"data:").removeprefix(b" "))
        elif not text and lines:
            yield b"\n".join(lines)
            lines.clear()


def _text(raw: Raw, key: str) -> str:
    value = codec.decode(bytes(raw[key])) if key in raw else None
    return value if isinstance(value, str) else ""


def _written(value: object) -> bytes:
    return msgspec.json.encode(value)


# --- OpenAI Responses: the last event holds the response whole ---

_ENDS: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})


def last_response(events: Iterable[bytes], code: Callable[[JSON], str | None]) -> bytes:
    """Return the bytes of the response that the last event holds."""
    for data in events:
        event = _members(data)
        kind = _text(event, "type")
        if kind == "error":
            raise unavailable(code(codec.decode(data)) or "error_event", 200)
        if kind in _ENDS and "response" in event:
            return bytes(event["response"])
    raise cut()


# --- Chat Completions: each chunk holds what is new ---

_JOINED: Final = frozenset({"content", "refusal", "reasoning_content", "reasoning", "arguments", "input"})
"""Texts that come in pieces; of any other member the newest value counts."""


def joined_chunks(events: Iterable[bytes], code: Callable[[JSON], str | None]) -> bytes:
    """Return the completion that the chunks add up to."""
    whole: dict[str, JSON] = {}
    choice: dict[str, JSON] = {}
    for data in events:
        if data == _DONE:
            break
        chunk = codec.decode(data)
        if not isinstance(chunk, dict) or chunk.get("error") is not None:
            raise unavailable(code(chunk.get("error") if isinstance(chunk, dict) else None) or "error_event", 200)
        choices = chunk.pop("choices", None)
        for each in choices if isinstance(choices, list) else []:
            _merge(choice, each)
        _merge(whole, chunk)
    if choice.get("finish_reason") is None:
        raise cut()
    delta = choice.pop("delta", None)
    message: dict[str, JSON] = {"role": "assistant", "content": None, **(delta if isinstance(delta, dict) else {})}
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        if isinstance(call, dict):
            call.pop("index", None)
    return codec.encode({**whole, "object": "chat.completion", "choices": [{**choice, "message": message}]})


def _merge(whole: dict[str, JSON], piece: JSON) -> None:
    if not isinstance(piece, dict):
        raise unavailable("stream_unknown", 200)
    for key, value in piece.items():
        before = whole.get(key)
        if isinstance(value, str) and isinstance(before, str) and (key in _JOINED or not value):
            whole[key] = before + value
        elif isinstance(value, list):
            whole[key] = _merged_list(before if isinstance(before, list) else [], value)
        elif isinstance(value, dict) and isinstance(before, dict):
            _merge(before, value)
        elif value is not None or key not in whole:
            whole[key] = value


def _merged_list(whole: list[JSON], pieces: list[JSON]) -> list[JSON]:
    """Return a list with further pieces: a piece of an item has its `index`, any other is an item of its own."""
    for piece in pieces:
        found = next((item for item in whole if _is_same_item(item, piece)), None)
        if isinstance(found, dict):
            _merge(found, piece)
        else:
            whole.append(piece)
    return whole


def _is_same_item(item: JSON, piece: JSON) -> bool:
    if not isinstance(item, dict) or not isinstance(piece, dict) or piece.get("index") is None:
        return False
    return item.get("index") == piece["index"]


# --- Anthropic: a message, its blocks, and pieces of blocks ---

_APPENDED: Final = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


class _Message:
    """A message while its events come in."""

    def __init__(self, event: Raw) -> None:
        self.fields = _members(event["message"])
        self.blocks: dict[bytes, Raw] = {}
        self.inputs: dict[bytes, str] = {}

    def begin(self, event: Raw) -> None:
        self.blocks[bytes(event["index"])] = _members(event["content_block"])

    def extend(self, event: Raw) -> None:
        place = bytes(event["index"])
        block, delta = self.blocks[place], _members(event["delta"])
        kind = _text(delta, "type")
        if kind in _APPENDED:
            key = _APPENDED[kind]
            block[key] = msgspec.Raw(_written(_text(block, key) + _text(delta, key)))
        elif kind == "input_json_delta":
            self.inputs[place] = self.inputs.get(place, "") + _text(delta, "partial_json")
        elif kind == "citations_delta":
            before = _items(block["citations"]) if bytes(block.get("citations", b"null")) != b"null" else []
            block["citations"] = msgspec.Raw(_written([*before, delta["citation"]]))
        else:
            raise unavailable("stream_unknown", 200)

    def end(self, event: Raw) -> None:
        text = self.inputs.pop(bytes(event["index"]), "").encode()
        if text:
            codec.decode(text)
            self.blocks[bytes(event["index"])]["input"] = msgspec.Raw(text)

    def change(self, event: Raw) -> None:
        usage = {**_members(self.fields.get("usage", b"{}"))}
        usage |= {key: value for key, value in _members(event.get("usage", b"{}")).items() if bytes(value) != b"null"}
        rest = {key: value for key, value in event.items() if key not in ("type", "delta", "usage")}
        self.fields |= {**_members(event["delta"]), **rest, "usage": msgspec.Raw(_written(usage))}

    def written(self) -> bytes:
        return _written({**self.fields, "content": list(self.blocks.values())})


def joined_blocks(events: Iterable[bytes], code: Callable[[JSON], str | None]) -> bytes:
    """Return the message that the events add up to, its thinking with signature and its calls with their input."""
    message: _Message | None = None
    for data in events:
        event = _members(data)
        kind = _text(event, "type")
        if kind == "error":
            raise unavailable(code(codec.decode(bytes(event.get("error", b"null")))) or "error_event", 200)
        try:
            if kind == "message_start":
                message = _Message(event)
            elif kind == "message_stop" and message is not None:
                return message.written()
            elif message is not None:
                _take(message, kind, event)
        except KeyError:
            raise unavailable("stream_unknown", 200) from None
    raise cut()


def _take(message: _Message, kind: str, event: Raw) -> None:
    if kind == "content_block_start":
        message.begin(event)
    elif kind == "content_block_delta":
        message.extend(event)
    elif kind == "content_block_stop":
        message.end(event)
    elif kind == "message_delta":
        message.change(event)


# --- Gemini: each event is a response with the parts that are new ---


def joined_parts(events: Iterable[bytes], code: Callable[[JSON], str | None]) -> bytes:
    """Return the response with all parts, each with its own bytes: an empty one may carry the signature."""
    whole: Raw = {}
    candidate: Raw = {}
    content: Raw = {}
    parts: list[msgspec.Raw] = []
    for data in events:
        event = _members(data)
        if "error" in event:
            raise unavailable(code(codec.decode(bytes(event["error"]))) or "error_event", 200)
        for raw in _items(event.pop("candidates", b"[]")):
            piece = _members(raw)
            told = _members(piece.pop("content", b"{}"))
            parts += _items(told.pop("parts", b"[]"))
            content |= told
            candidate |= piece
        whole |= event
    if "finishReason" not in candidate and "promptFeedback" not in whole:
        raise cut()
    if candidate:
        content["parts"] = msgspec.Raw(_written(parts))
        candidate["content"] = msgspec.Raw(_written(content))
        whole["candidates"] = msgspec.Raw(_written([candidate]))
    return _written(whole)
