"""
Answers that come as a stream of server-sent events, put together to the one body that the same answer has without.

Only that body is recorded: a fragment is no history. What a provider gives whole is taken as its bytes, and of what it
gives in pieces the values are what the pieces add up to. A stream that ends early, or holds a piece of which it is not
known how it adds up, is no answer at all: the body never holds less than was streamed (SPEC D26). What is said anew of
the whole answer with each event, such as its usage, is no piece; there the newest counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from minutebook.errors import InvalidValue
from minutebook.model import codec
from minutebook.providers.decision import reported, unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from minutebook.errors import AgentDecisionProviderUnavailable
    from minutebook.model.codec import JSON
    from minutebook.providers.decision import Api, Code

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
    assembled: Callable[[Iterable[bytes], Code], bytes]
    """Return the body that the events' data add up to; an error among them is called by its code."""


def assembled(api: Api, body: bytes) -> bytes:
    """
    Return the body of a streamed answer. One that came whole after all, as many an error does, is returned as it is.

    Raises:
        AgentDecisionProviderUnavailable: an error among the events, or a stream that ended early or is none.
    """
    if body.lstrip()[:1] in (b"{", b"["):
        return body
    try:
        return api.stream.assembled(_data(body), api.code)
    except (msgspec.DecodeError, InvalidValue, UnicodeDecodeError):
        raise unavailable("not_json", 200) from None


def cut() -> AgentDecisionProviderUnavailable:
    """Return the error for a stream that ended before its answer did."""
    return unavailable("stream_cut", 200)


def _unknown() -> AgentDecisionProviderUnavailable:
    """Return the error for a piece that cannot be added to the others without losing something."""
    return unavailable("stream_unknown", 200)


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


def last_response(events: Iterable[bytes], code: Code) -> bytes:
    """Return the bytes of the response that the last event holds, with all the items that were streamed."""
    streamed = 0
    for data in events:
        event = _members(data)
        kind = _text(event, "type")
        if kind == "error":
            told = codec.decode(bytes(event.get("error", b"null")))
            raise reported(code, codec.decode(data) if told is None else told, "error_event")
        streamed += kind == "response.output_item.done"
        if kind in _ENDS and "response" in event:
            response = event["response"]
            if kind == "response.completed" and streamed and len(_items(_members(response)["output"])) < streamed:
                raise _unknown()
            return bytes(response)
    raise cut()


# --- Pieces of JSON: how OpenAI's client adds up deltas, but for what it would drop ---

_EMPTY: Final[tuple[JSON, ...]] = (None, "", [], {})
"""What adds nothing to a value, and takes nothing from it."""
_KINDS: Final = frozenset({"role", "type"})
"""Texts that say what their pieces are pieces of."""
_LABELS: Final = _KINDS | {"id", "name", "format"}
"""Texts that some servers repeat with each piece."""
_STATED: Final = frozenset(
    {"finish_reason", "content_filter_results", "content_filter_offsets"}
    | {"finishReason", "finishMessage", "safetyRatings", "tokenCount", "avgLogprobs", "logProbabilitySum"}
)
"""What is said anew, of the choice or candidate so far."""


def _joined(key: str, before: JSON, piece: JSON) -> JSON:
    """Return a member's value with a further piece: texts and lists grow, objects by member; all else only repeats."""
    if piece in _EMPTY:
        return piece if before is None else before
    if before in _EMPTY:
        before = {} if isinstance(piece, dict) else [] if isinstance(piece, list) else None
    if before is None or key in _STATED:
        return piece
    if isinstance(before, dict) and isinstance(piece, dict):
        return _joined_members(before, piece)
    if isinstance(before, list) and isinstance(piece, list):
        return _joined_items(before, piece)
    if type(before) is type(piece) and before == piece and (key in _LABELS or not isinstance(piece, str)):
        return before
    if isinstance(before, str) and isinstance(piece, str) and key not in _KINDS:
        return before + piece
    raise _unknown()


def _joined_members(whole: dict[str, JSON], pieces: dict[str, JSON]) -> dict[str, JSON]:
    for key, piece in pieces.items():
        whole[key] = _joined(key, whole.get(key), piece)
    return whole


def _joined_items(whole: list[JSON], pieces: list[JSON]) -> list[JSON]:
    """Return a list with further pieces: a piece of an item has its `index`, any other is an item of its own."""
    for piece in pieces:
        place = _place_of(whole, piece)
        if place is None:
            whole.append(_joined("", None, piece))
        else:
            whole[place] = _joined("", whole[place], piece)
    return whole


def _place_of(items: list[JSON], piece: JSON) -> int | None:
    index = piece.get("index") if isinstance(piece, dict) else None
    if index is None:
        return None
    return next((n for n, item in enumerate(items) if isinstance(item, dict) and item.get("index") == index), None)


# --- Chat Completions: each chunk holds what is new ---


def joined_chunks(events: Iterable[bytes], code: Code) -> bytes:
    """Return the completion that the chunks add up to; of what stands beside their choices the newest counts."""
    whole: dict[str, JSON] = {}
    choice: dict[str, JSON] = {"delta": {"role": "assistant", "content": None}}
    for data in events:
        if data == _DONE:
            break
        chunk = codec.decode(data)
        if not isinstance(chunk, dict) or chunk.get("error") is not None:
            raise reported(code, chunk.get("error") if isinstance(chunk, dict) else None, "error_event")
        choices = chunk.pop("choices", None)
        for each in choices if isinstance(choices, list) else []:
            if not isinstance(each, dict):
                raise _unknown()
            _joined_members(choice, each)
        whole |= {key: value for key, value in chunk.items() if value is not None or key not in whole}
    if not choice.get("finish_reason"):
        raise cut()
    message = choice.pop("delta")
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    for call in calls if isinstance(calls, list) else []:
        if isinstance(call, dict):
            call.pop("index", None)
    return codec.encode({**whole, "object": "chat.completion", "choices": [{**choice, "message": message}]})


class Deltas:
    """
    The text of a streamed completion while its bytes come in, in pieces that end anywhere.

    Whatever is no piece of text is passed over: what the answer is worth is judged once all of it is there.
    """

    def __init__(self) -> None:
        self._rest = b""

    def take(self, piece: bytes) -> str:
        """Return the text that came to its end with `piece`; mostly a few words, and often nothing."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        return "".join(_delta(line) for line in lines)


def _delta(line: bytes) -> str:
    if not line.startswith(b"data:"):
        return ""
    try:
        chunk = codec.decode(line.removeprefix(b"data:").strip())
    except InvalidValue:
        return ""
    choices = chunk.get("choices") if isinstance(chunk, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    delta = choice.get("delta") if isinstance(choice, dict) else None
    content = delta.get("content") if isinstance(delta, dict) else None
    return content if isinstance(content, str) else ""


# --- Anthropic: a message, its blocks, and pieces of blocks ---

_APPENDED: Final = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
_PIECES: Final = {**_APPENDED, "input_json_delta": "partial_json", "citations_delta": "citation"}
_HINTS: Final = frozenset({"type", "estimated_tokens"})
"""Members of a delta that are no part of the block: its kind, and a rough count for a progress bar."""


class _Message:
    """A message while its events come in."""

    def __init__(self, event: Raw) -> None:
        self.fields = _members(event["message"])
        self.blocks: dict[bytes, Raw] = {}
        self.inputs: dict[bytes, str] = {}
        if _items(self.fields.get("content", msgspec.Raw(b"[]"))):
            raise _unknown()

    def begin(self, event: Raw) -> None:
        place = bytes(event["index"])
        if place in self.blocks:
            raise _unknown()
        self.blocks[place] = _members(event["content_block"])

    def extend(self, event: Raw) -> None:
        place = bytes(event["index"])
        block, delta = self.blocks[place], _members(event["delta"])
        kind = _text(delta, "type")
        key = _PIECES.get(kind)
        if key is None or delta.keys() - _HINTS != {key}:
            raise _unknown()
        if kind == "citations_delta":
            before = _items(block["citations"]) if bytes(block.get("citations", b"null")) != b"null" else []
            block["citations"] = msgspec.Raw(_written([*before, delta["citation"]]))
        elif kind == "input_json_delta":
            self.inputs[place] = self.inputs.get(place, "") + _piece(delta[key])
        else:
            block[key] = msgspec.Raw(_written(_piece(block.get(key, _NULL)) + _piece(delta[key])))

    def end(self, event: Raw) -> None:
        place = bytes(event["index"])
        text = self.inputs.pop(place, "").encode()
        if text:
            codec.decode(text)
            if codec.decode(bytes(self.blocks[place].get("input", _NULL))) not in _EMPTY:
                raise _unknown()
            self.blocks[place]["input"] = msgspec.Raw(text)

    def change(self, event: Raw) -> None:
        rest = {key: value for key, value in event.items() if key not in ("type", "delta", "usage")}
        usage = _restated(_members(self.fields.get("usage", b"{}")), _members(event.get("usage", b"{}")))
        self.fields = _restated(self.fields, {**_members(event["delta"]), **rest})
        self.fields["usage"] = msgspec.Raw(_written(usage))

    def written(self) -> bytes:
        if any(self.inputs.values()):
            raise _unknown()
        return _written({**self.fields, "content": list(self.blocks.values())})


_NULL: Final = msgspec.Raw(b"null")


def _piece(raw: msgspec.Raw) -> str:
    """Return the text that a piece is; a `null` stands for an empty one."""
    value = codec.decode(bytes(raw))
    if not isinstance(value, str | None):
        raise _unknown()
    return value or ""


def _restated(before: Raw, newer: Raw) -> Raw:
    """Return members with those that were said anew; a `null` says nothing of one that was known."""
    return before | {key: raw for key, raw in newer.items() if key not in before or bytes(raw) != b"null"}


def joined_blocks(events: Iterable[bytes], code: Code) -> bytes:
    """Return the message that the events add up to, its thinking with signature and its calls with their input."""
    message: _Message | None = None
    for data in events:
        event = _members(data)
        kind = _text(event, "type")
        if kind == "error":
            raise reported(code, codec.decode(bytes(event.get("error", b"null"))), "error_event")
        try:
            if kind == "message_start" and message is None:
                message = _Message(event)
            elif kind == "message_start":
                raise _unknown()
            elif kind == "message_stop" and message is not None:
                return message.written()
            elif message is not None:
                _take(message, kind, event)
        except KeyError:
            raise _unknown() from None
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


def joined_parts(events: Iterable[bytes], code: Code) -> bytes:
    """Return the response with all parts, each with its own bytes: an empty one may carry the signature."""
    whole: Raw = {}
    candidate: Raw = {}
    content: Raw = {}
    parts: list[msgspec.Raw] = []
    for data in events:
        event = _members(data)
        if "error" in event:
            raise reported(code, codec.decode(bytes(event["error"])), "error_event")
        for raw in _items(event.pop("candidates", b"[]")):
            piece = _members(raw)
            if bytes(piece.get("index", b"0")) != b"0":
                raise _unknown()  # of another candidate; one is asked for
            told = _members(piece.pop("content", b"{}"))
            parts += _items(told.pop("parts", b"[]"))
            _add(content, told)
            _add(candidate, piece)
        whole |= event
    if "finishReason" not in candidate and "promptFeedback" not in whole:
        raise cut()
    if candidate:
        content["parts"] = msgspec.Raw(_written(parts))
        candidate["content"] = msgspec.Raw(_written(content))
        whole["candidates"] = msgspec.Raw(_written([candidate]))
    return _written(whole)


def _add(whole: Raw, pieces: Raw) -> None:
    """Add members to others: one that came before is joined as JSON, and loses the spelling of its bytes."""
    for key, raw in pieces.items():
        if key in whole and key not in _STATED:
            value = _joined(key, codec.decode(bytes(whole[key])), codec.decode(bytes(raw)))
            whole[key] = msgspec.Raw(codec.encode(value))
        else:
            whole[key] = raw
