"""
Answers that come as a stream of server-sent events, put together to the one body that the same answer has without.

Only that body is recorded: a fragment is no history. What a provider gives whole is taken as its bytes, and of what it
gives in pieces the values are what the pieces add up to. A stream that ends early, or holds a piece of which it is not
known how it adds up, is no answer at all: the body never holds less than was streamed (SPEC D26). What is said anew of
the whole answer with each event, such as its usage, is no piece; there the newest counts.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import msgspec

from minutebook.errors import InvalidValue
from minutebook.model import codec
from minutebook.model.pause import pause
from minutebook.providers.decision import reported, unavailable
from minutebook.providers.pieces import EMPTY, STATED, growing, grown, joined, joined_members, unknown

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from minutebook.errors import AgentDecisionProviderUnavailable
    from minutebook.model.codec import JSON
    from minutebook.providers.decision import Api, Code
    from minutebook.providers.pieces import Growing

Raw = dict[str, msgspec.Raw]
"""An object of which each member is kept as its bytes."""

Events: TypeAlias = "AsyncGenerator[bytes, None]"
"""The data of each event that came in full."""

PAUSE_BYTES: Final = 64 * 1024
"""How much of a stream is put together between two pauses, up to the end of an event."""

_DONE: Final = b"[DONE]"
# The end of the body ends a line too, or a long one that is torn would be looked through from each of its bytes.
_LINE: Final = re.compile(rb"([^\r\n]*+)(?:\r\n|\r|\n|\Z)")
_members = msgspec.json.Decoder(Raw).decode
_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """How one provider's API streams an answer."""

    fields: dict[str, bytes]
    """What a request says to have its answer streamed."""
    path: str = ""
    """Where such a request is posted, if elsewhere; `{model}` in it stands for the model's name."""
    assembled: Callable[[Events, Code], Awaitable[bytes]]
    """Return the body that the events' data add up to; an error among them is called by its code."""


async def assembled(api: Api, body: bytes) -> bytes:
    """
    Return the body of a streamed answer. One that came whole after all, as many an error does, is returned as it is.

    Raises:
        AgentDecisionProviderUnavailable: an error among the events, or a stream that ended early or is none.
    """
    if body.lstrip()[:1] in (b"{", b"["):
        return body
    try:
        async with contextlib.aclosing(_told_in(body)) as events:
            return await api.stream.assembled(events, api.code)
    except (msgspec.DecodeError, InvalidValue, UnicodeDecodeError):
        raise unavailable("not_json", 200) from None


def cut() -> AgentDecisionProviderUnavailable:
    """Return the error for a stream that ended before its answer did."""
    return unavailable("stream_cut", 200)


async def _told_in(body: bytes) -> Events:
    """Yield what each event tells that came in full, and pause now and then."""
    lines: list[bytes] = []
    paused = 0
    for found in _LINE.finditer(body):
        text = found[1]
        if found.end() == found.end(1):
            return
        if text.startswith(b"data:"):
            lines.append(text.removeprefix(b"data:").removeprefix(b" "))
        elif not text and lines:
            yield b"\n".join(lines)
            lines.clear()
        if found.end() - paused > PAUSE_BYTES:
            paused = found.end()
            await pause()


def _text(raw: Raw, key: str) -> str:
    value = codec.decode(bytes(raw[key])) if key in raw else None
    return value if isinstance(value, str) else ""


def _written(value: object) -> bytes:
    return msgspec.json.encode(value)


# --- OpenAI Responses: the last event holds the response whole ---

_NO_ITEMS: Final = msgspec.Raw(b"[]")
_ENDS: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})


async def last_response(events: Events, code: Code) -> bytes:
    """Return the bytes of the response that the last event holds, with all the items that were streamed."""
    streamed = 0
    async for data in events:
        event = _members(data)
        kind = _text(event, "type")
        if kind == "error":
            told = codec.decode(bytes(event.get("error", b"null")))
            raise reported(code, codec.decode(data) if told is None else told, "error_event")
        streamed += kind == "response.output_item.done"
        if kind in _ENDS and "response" in event:
            response = event["response"]
            output = _members(response).get("output", _NO_ITEMS)
            if kind == "response.completed" and streamed and len(_items(output)) < streamed:
                raise unknown()
            return bytes(response)
    raise cut()


# --- Chat Completions: each chunk holds what is new ---


async def joined_chunks(events: Events, code: Code) -> bytes:
    """Return the completion that the chunks add up to; of what stands beside their choices the newest counts."""
    whole: dict[str, JSON] = {}
    choice: dict[str, Growing] = {"delta": {"role": "assistant", "content": None}}
    async for data in events:
        if data == _DONE:
            break
        chunk = codec.decode(data)
        if not isinstance(chunk, dict) or chunk.get("error") is not None:
            raise reported(code, chunk.get("error") if isinstance(chunk, dict) else None, "error_event")
        choices = chunk.pop("choices", None)
        for each in choices if isinstance(choices, list) else []:
            if not isinstance(each, dict):
                raise unknown()
            joined_members(choice, each)
        whole |= {key: value for key, value in chunk.items() if value is not None or key not in whole}
    if not choice.get("finish_reason"):
        raise cut()
    told = cast("dict[str, JSON]", grown(choice))
    message = told.pop("delta")
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    for call in calls if isinstance(calls, list) else []:
        if isinstance(call, dict):
            call.pop("index", None)
    return codec.encode({**whole, "object": "chat.completion", "choices": [{**told, "message": message}]})


class Deltas:
    """
    The text of a streamed completion while its bytes come in, in pieces that end anywhere.

    Whatever is no piece of text is passed over: what the answer is worth is judged once all of it is there. Linear in
    what comes in, however long a line is.
    """

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        """What came in of a line that has not ended."""
        self._told: list[bytes] = []
        """What an event tells that has not ended, by lines."""
        self._done = False

    def take(self, piece: bytes) -> str:
        """Return the text that came to its end with `piece`; mostly a few words, and often nothing."""
        self._rest.append(piece)
        if b"\n" not in piece and b"\r" not in piece:
            return ""
        body, ended = b"".join(self._rest), 0
        texts: list[str] = []
        for found in _LINE.finditer(body):
            if found.end() == found.end(1) or (found.end() == len(body) and body.endswith(b"\r")):
                break  # no end yet, or the first half of one
            ended = found.end()
            texts.append(self._take_line(found[1]))
        self._rest = [body[ended:]]
        return "".join(texts)

    def _take_line(self, line: bytes) -> str:
        if line.startswith(b"data:"):
            self._told.append(line.removeprefix(b"data:").removeprefix(b" "))
        elif not line and self._told:
            told, self._told = b"\n".join(self._told), []
            self._done = self._done or told == _DONE
            return "" if self._done else _delta(told)
        return ""


def _delta(told: bytes) -> str:
    try:
        chunk = codec.decode(told)
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
    """A message while its events come in: what grows is kept in pieces, and stands as `null` in its block meanwhile."""

    def __init__(self, event: Raw) -> None:
        self.fields = _members(event["message"])
        self.usage: Raw | None = None
        self.blocks: dict[bytes, Raw] = {}
        self.texts: dict[tuple[bytes, str], list[str]] = {}
        self.citations: dict[bytes, list[msgspec.Raw]] = {}
        self.inputs: dict[bytes, list[str]] = {}
        if _items(self.fields.get("content", msgspec.Raw(b"[]"))):
            raise unknown()

    def begin(self, event: Raw) -> None:
        place = bytes(event["index"])
        if place in self.blocks:
            raise unknown()
        self.blocks[place] = _members(event["content_block"])

    def extend(self, event: Raw) -> None:
        place = bytes(event["index"])
        block, delta = self.blocks[place], _members(event["delta"])
        kind = _text(delta, "type")
        key = _PIECES.get(kind)
        if key is None or delta.keys() - _HINTS != {key}:
            raise unknown()
        if kind == "citations_delta":
            self._cite(place, block, delta[key])
        elif kind == "input_json_delta":
            self.inputs.setdefault(place, []).append(_piece(delta[key]))
        else:
            self._append(place, block, key, _piece(delta[key]))

    def _cite(self, place: bytes, block: Raw, citation: msgspec.Raw) -> None:
        if place not in self.citations:
            before = block.get("citations", _NULL)
            self.citations[place] = _items(before) if bytes(before) != b"null" else []
            block["citations"] = _NULL
        self.citations[place].append(citation)

    def _append(self, place: bytes, block: Raw, key: str, piece: str) -> None:
        if (place, key) not in self.texts:
            self.texts[place, key] = [_piece(block.get(key, _NULL))]
            block[key] = _NULL
        self.texts[place, key].append(piece)

    def end(self, event: Raw) -> None:
        place = bytes(event["index"])
        text = "".join(self.inputs.pop(place, ())).encode()
        if text:
            codec.decode(text)
            if codec.decode(bytes(self.blocks[place].get("input", _NULL))) not in EMPTY:
                raise unknown()
            self.blocks[place]["input"] = msgspec.Raw(text)

    def change(self, event: Raw) -> None:
        if self.usage is None:
            self.usage = _members(self.fields.get("usage", b"{}"))
        _restate(self.usage, _members(event.get("usage", b"{}")))
        rest = {key: value for key, value in event.items() if key not in ("type", "delta", "usage")}
        _restate(self.fields, {**_members(event["delta"]), **rest, "usage": _NULL})

    def written(self) -> bytes:
        if any(map(any, self.inputs.values())):
            raise unknown()
        for (place, key), pieces in self.texts.items():
            self.blocks[place][key] = msgspec.Raw(_written("".join(pieces)))
        for place, citations in self.citations.items():
            self.blocks[place]["citations"] = msgspec.Raw(_written(citations))
        usage = {} if self.usage is None else {"usage": self.usage}
        return _written({**self.fields, **usage, "content": list(self.blocks.values())})


_NULL: Final = msgspec.Raw(b"null")


def _piece(raw: msgspec.Raw) -> str:
    """Return the text that a piece is; a `null` stands for an empty one."""
    value = codec.decode(bytes(raw))
    if not isinstance(value, str | None):
        raise unknown()
    return value or ""


def _restate(whole: Raw, newer: Raw) -> None:
    """Give members what was said anew of them; a `null` says nothing of one that was known."""
    whole |= {key: raw for key, raw in newer.items() if key not in whole or bytes(raw) != b"null"}


async def joined_blocks(events: Events, code: Code) -> bytes:
    """Return the message that the events add up to, its thinking with signature and its calls with their input."""
    message: _Message | None = None
    async for data in events:
        event = _members(data)
        kind = _text(event, "type")
        if kind == "error":
            raise reported(code, codec.decode(bytes(event.get("error", b"null"))), "error_event")
        try:
            if kind == "message_start" and message is None:
                message = _Message(event)
            elif kind == "message_start":
                raise unknown()
            elif kind == "message_stop" and message is not None:
                return message.written()
            elif message is not None:
                _take(message, kind, event)
        except KeyError:
            raise unknown() from None
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


class _Members:
    """Members of which each is its bytes, until a further piece comes: then it is JSON, and loses their spelling."""

    def __init__(self) -> None:
        self.raw: Raw = {}
        self._growing: dict[str, Growing] = {}

    def add(self, pieces: Raw) -> None:
        """Take further members, and pieces of those that came before."""
        for key, raw in pieces.items():
            if key not in self.raw or key in STATED:
                self.raw[key] = raw
                continue
            if key not in self._growing:
                self._growing[key] = growing(codec.decode(bytes(self.raw[key])))
            self._growing[key] = joined(key, self._growing[key], codec.decode(bytes(raw)))

    def written(self, key: str, value: object) -> bytes:
        """Return an object of these members, with `value` for the one called `key`."""
        joint = {name: msgspec.Raw(codec.encode(grown(value))) for name, value in self._growing.items()}
        return _written({**self.raw, **joint, key: value})


async def joined_parts(events: Events, code: Code) -> bytes:
    """Return the response with all parts, each with its own bytes: an empty one may carry the signature."""
    whole: Raw = {}
    candidate, content = _Members(), _Members()
    parts: list[msgspec.Raw] = []
    async for data in events:
        event = _members(data)
        if "error" in event:
            raise reported(code, codec.decode(bytes(event["error"])), "error_event")
        for raw in _items(event.pop("candidates", b"[]")):
            piece = _members(raw)
            if bytes(piece.get("index", b"0")) != b"0":
                raise unknown()  # of another candidate; one is asked for
            told = _members(piece.pop("content", b"{}"))
            parts += _items(told.pop("parts", b"[]"))
            content.add(told)
            candidate.add(piece)
        whole |= event
    if "finishReason" not in candidate.raw and "promptFeedback" not in whole:
        raise cut()
    if candidate.raw or content.raw or parts:
        told_whole = msgspec.Raw(content.written("parts", parts))
        whole["candidates"] = msgspec.Raw(b"[%b]" % candidate.written("content", told_whole))
    return _written(whole)
