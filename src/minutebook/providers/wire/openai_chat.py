"""
OpenAI Chat Completions, the format that local servers speak too: one message a result, ids on both sides.

Of a response the `choices[0].message` object is sent back, with every field the server put there, but for what no
request may hold: an SDK's `model_dump()` writes out every member that the type has, and null is one of the values that
the API refuses there, and its stream helper leaves the place of each call beside it. Some servers write every member
with nothing in it. The older pair of `function_call` and role `function`, which has no ids, is read in transcripts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from minutebook.errors import InvalidMessage
from minutebook.model import codec
from minutebook.model.entries import Call
from minutebook.model.shown import type_alone
from minutebook.providers.wire import _slices
from minutebook.providers.wire._format import Format
from minutebook.providers.wire._values import (
    Answer,
    Names,
    Reply,
    Side,
    array,
    check_content,
    foreign,
    identifier,
    kind_of,
    members,
    only,
    refuse_beside,
    refuse_error,
    refuse_foreign,
    refuse_other_parts,
    unknown_role,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from minutebook.model.codec import JSON

_SIDES: Final = {
    "system": Side.INSTRUCTIONS,
    "developer": Side.INSTRUCTIONS,
    "user": Side.USER,
    "assistant": Side.ASSISTANT,
    "tool": Side.RESULTS,
    "function": Side.RESULTS,
}
_MEMBERS: Final = ("content", "tool_calls", "function_call", "refusal", "audio")
_CONTENT: Final = (*_MEMBERS, "reasoning_content", "reasoning")
"""Any of these makes an assistant's message worth sending; the last two are local servers' own."""
_NAMED: Final = {"function_call": "name", "audio": "id"}
"""The members of an answer that stand for something by a name or an id alone."""
_PARTS: Final = frozenset({"text"})
_OF_RESULTS: Final = frozenset({"role", "tool_call_id", "name", "content"})
_REFUSED: Final = frozenset(
    {
        *("audio.data", "audio.expires_at", "audio.transcript"),  # a request names the audio by its id
        *("parsed", "tool_calls.function.parsed_arguments"),  # what `parse()` of the SDK made of the answer
        "tool_calls.index",  # where the SDK's stream helper put a call together
    }
)
"""The members of an answer that no request holds, whatever their value."""
_WITHIN: Final = frozenset({"audio", "tool_calls", "tool_calls.function"})
_NULLABLE: Final = frozenset({"content", "refusal"})
"""The members of an answer that say with null that there is none, and that the API writes and takes that way."""
_READ: Final = frozenset({"audio", "function_call", "parsed"})
"""The members by which alone an answer has to be looked through; they are rare."""
_ITEMS_OF_RESPONSES: Final = frozenset(
    {"message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"}
)
_FOREIGN: Final = {**dict.fromkeys(("call_id", "encrypted_content", "phase"), "openai-responses"), "parts": "gemini"}
_FOREIGN_PARTS: Final = {
    **dict.fromkeys(("tool_use", "tool_result"), "anthropic"),
    **dict.fromkeys(("input_text", "input_image", "input_file", "output_text", "summary_text"), "openai-responses"),
}


class OpenAIChat(Format):
    """The wire format `openai-chat`."""

    name = "openai-chat"
    result_parts = _PARTS

    def user_message(self, text: str) -> JSON:
        """Return a user's message that says `text`."""
        return {"role": "user", "content": text}

    def text_part(self, text: str) -> JSON:
        """Return a part of a user's message that says `text`."""
        return {"type": "text", "text": text}

    def side(self, value: JSON, path: str) -> Side:
        """Return who speaks in the message."""
        message = members(value, path)
        if kind_of(message) in _ITEMS_OF_RESPONSES:
            raise foreign(f"an item of the type {kind_of(message)}", "openai-responses", f"{path}.type")
        side = _SIDES.get(str(message.get("role")))
        if side is None:
            raise unknown_role(message, ", ".join(_SIDES), path)
        refuse_foreign(message, side, _FOREIGN, path)
        if side is not Side.ASSISTANT or message.get("content"):
            check_content(message, path, _FOREIGN_PARTS)
        return side

    def answer(self, payload: bytes, value: JSON, path: str) -> Answer:
        """Return where the assistant's message stands in a completion, or in a bare message."""
        body = members(value, path)
        if "choices" not in body and "role" in body:
            return self._message(payload, body, (), path)
        refuse_error(body, path)
        place = f"{path}.choices"
        choice = members(only(array(body.get("choices"), place), "choices", place), f"{place}[0]")
        place = f"{place}[0].message"
        return self._message(payload, members(choice.get("message"), place), ("choices", 0, "message"), place)

    def _message(self, payload: bytes, message: dict[str, JSON], keys: tuple[str | int, ...], path: str) -> Answer:
        if self.side(message, path) is not Side.ASSISTANT:
            raise InvalidMessage("a response is a message of the role assistant", path=f"{path}.role")
        if not any(_says_something(key, message.get(key)) for key in _CONTENT):
            return Answer()
        return Answer(*_slices.find(payload, *keys), 1, path)

    def call_list(self, fragment: bytes, path: str) -> list[tuple[Call, JSON]]:
        """Return the calls of a message; the arguments are the text that the model wrote."""
        message = members(codec.reread(fragment), path)
        place = f"{path}.tool_calls"
        calls = array(message.get("tool_calls") or [], place)
        found = [_call(members(call, f"{place}[{n}]"), f"{place}[{n}]") for n, call in enumerate(calls)]
        if not found and message.get("function_call"):
            named = _named("", message["function_call"], "arguments", f"{path}.function_call")
            found += [named] if named[0].name else []
        return found

    def replies(self, value: JSON, path: str) -> list[Reply]:
        """Return what the tool's message answers."""
        message = members(value, path)
        return [Reply(identifier(message, "tool_call_id", path), identifier(message, "name", path))]

    def reply(self, call: Call, output: JSON, *, error: bool) -> JSON:  # noqa: ARG002
        """Return the tool's message. The format has no mark for errors: the text says so."""
        return {"role": "tool", "tool_call_id": call.id, "content": output}

    def complete(self, output: JSON) -> Reply | None:
        """Return what a tool's message answers."""
        if not isinstance(output, dict) or _SIDES.get(str(output.get("role"))) is not Side.RESULTS:
            return None
        check_content(output, "$", _FOREIGN_PARTS)
        return self.replies(output, "$")[0]

    def check_complete(self, call: Call, output: JSON) -> None:  # noqa: ARG002
        """Refuse what the API takes in no tool's message."""
        message = members(output, "$")
        refuse_beside(message, _OF_RESULTS, "$")
        refuse_other_parts(message.get("content"), _PARTS, "$.content")

    def sendable(self, fragment: bytes) -> bytes:
        """Return a response's message without the members that a request may not hold, the others byte for byte."""
        return fragment if _goes_back(fragment) else _slices.without(fragment, _is_refused, _WITHIN)

    def rename(self, fragment: bytes, names: Sequence[tuple[str, str]]) -> bytes:
        """Return a message with its call ids replaced."""
        if not fragment:
            return fragment
        left = Names(names)
        message = members(codec.decode(fragment), "$")
        if message.get("role") == "tool":
            left.replace(message, "tool_call_id")
        elif not message.get("tool_calls"):
            return fragment  # the older pair has no ids
        for call in array(message.get("tool_calls") or [], "$.tool_calls"):
            left.replace(members(call, "$.tool_calls"), "id")
        return codec.encode(message)


class _PlainFunction(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What a request may say of a function that was called, and nothing else."""

    name: msgspec.Raw
    arguments: msgspec.Raw

    __repr__ = type_alone


class _PlainCall(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A call with what a request may say of it, and nothing else."""

    id: msgspec.Raw
    type: msgspec.Raw
    function: _PlainFunction

    __repr__ = type_alone


_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_plain_calls: Final = msgspec.json.Decoder(list[_PlainCall]).decode
_NULL: Final = msgspec.Raw(b"null")


def _goes_back(fragment: bytes) -> bool:
    """
    Return whether a message surely holds nothing that is refused, as nearly all do.

    Its members are read and nothing is made of their values, which takes less time than a search of the bytes for what
    could be refused: that goes through long texts several times, and sees no name that is written with escapes.
    """
    try:
        return all(_is_plain(name, value) for name, value in _members(fragment).items())
    except msgspec.MsgspecError:
        return True  # nothing, or no message any more: whoever reads its calls names the fault


def _is_plain(name: str, value: msgspec.Raw) -> bool:
    if value == _NULL:
        return name in _NULLABLE
    if name == "tool_calls":
        try:
            return bool(_plain_calls(value))
        except msgspec.ValidationError:
            return False
    return name not in _READ and (name not in _NULLABLE or bytes(memoryview(value)[:1]) == b'"')


def _is_refused(path: str, value: bytes) -> bool:
    if path in _REFUSED:
        return True
    if "." in path:
        return False
    if value == b"null" or (path in _NULLABLE and value.startswith(b'"')):
        return path not in _NULLABLE
    return path in _MEMBERS and _is_nothing(path, codec.reread(value))


def _is_nothing(name: str, value: JSON) -> bool:
    """Return whether a member of an answer is written with nothing in it; what has a name or id is nothing without."""
    if name in _NAMED:
        named = value.get(_NAMED[name]) if isinstance(value, dict) else None
        return not isinstance(named, str) or not named
    return not value


def _says_something(name: str, value: JSON) -> bool:
    if isinstance(value, list):
        return any(part != {"type": "text", "text": ""} for part in value)
    return not _is_nothing(name, value) and (not isinstance(value, dict) or any(value.values()))


def _call(call: dict[str, JSON], path: str) -> tuple[Call, JSON]:
    id_ = identifier(call, "id", path)
    if "custom" in call and (kind_of(call) == "custom" or "function" not in call):
        return _named(id_, call["custom"], "input", f"{path}.custom")
    return _named(id_, call.get("function"), "arguments", f"{path}.function")


def _named(id_: str, value: JSON, arguments: str, path: str) -> tuple[Call, JSON]:
    holder = members(value, path)
    return Call(id_, identifier(holder, "name", path)), holder.get(arguments)


WIRE: Final = OpenAIChat()
