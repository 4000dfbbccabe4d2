"""
OpenAI Responses: a flat list of items, of which one response gives several.

The inside of `output` is sent back, items and separators as received. A reasoning item goes with the item that it led
to; the provider refuses one that stands at the end without a follower, so the slice ends before it (case O-10). Sent
are the items without the nulls that no request may hold, which an SDK's `model_dump()` writes out for every member.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from minutebook.errors import InvalidMessage
from minutebook.model import codec
from minutebook.model.entries import Call
from minutebook.providers.wire import _slices
from minutebook.providers.wire._format import Format
from minutebook.providers.wire._values import (
    Answer,
    Names,
    Piece,
    Reply,
    Side,
    array,
    check_content,
    identifier,
    kind_of,
    members,
    refuse_beside,
    refuse_error,
    refuse_foreign,
    refuse_other_parts,
    unknown_role,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from minutebook.model.codec import JSON

_SIDES: Final = {
    "system": Side.INSTRUCTIONS,
    "developer": Side.INSTRUCTIONS,
    "user": Side.USER,
    "assistant": Side.ASSISTANT,
}
_ARGUMENTS: Final = {
    "function_call": "arguments",
    "custom_tool_call": "input",
    "computer_call": "action",
    "local_shell_call": "action",
    "shell_call": "action",
    "apply_patch_call": "operation",
    "tool_search_call": "arguments",
}
"""The calls that the client answers, and where each has its arguments; the provider answers every other kind."""
_OUTPUT_OF: Final = {call: f"{call}_output" for call in _ARGUMENTS} | {"tool_search_call": "tool_search_output"}
_OUTPUTS: Final = frozenset(_OUTPUT_OF.values())
_PLAIN: Final = frozenset({"function_call_output", "custom_tool_call_output"})
"""The outputs that hold a text or parts, so that one is made of any value; every other one is given complete."""
_HOLDS: Final[dict[str, tuple[str, tuple[type, ...]]]] = {
    **dict.fromkeys(_PLAIN, ("output", (str, list))),
    "computer_call_output": ("output", (dict,)),
    "local_shell_call_output": ("output", (str,)),
    "shell_call_output": ("output", (list,)),
    "apply_patch_call_output": ("status", (str,)),
    "tool_search_output": ("tools", (list,)),
}
"""What a complete output has to hold for the API to take it: a member, and the JSON types of that."""
_OF_ALL_OUTPUTS: Final = frozenset({"type", "id", "call_id", "status", "output", "caller", "created_by"})
_OF_OUTPUTS: Final = {
    "function_call_output": frozenset({"name", "namespace"}),
    "computer_call_output": frozenset({"acknowledged_safety_checks"}),
    "shell_call_output": frozenset({"max_output_length"}),
    "tool_search_output": frozenset({"tools", "execution"}),
}
"""The members of complete outputs: of every type, and which some types have beside them."""
_PARTS: Final = frozenset({"input_text", "input_image", "input_file"})
_OF_CHAT: Final = frozenset(
    {"tool_calls", "tool_call_id", "function_call", "audio", "refusal", "annotations", "name", "parsed"}
)
_FOREIGN: Final = {**dict.fromkeys(_OF_CHAT, "openai-chat"), "parts": "gemini"}
_FOREIGN_PARTS: Final = {
    **dict.fromkeys(("tool_use", "tool_result"), "anthropic"),
    **dict.fromkeys(("text", "image_url", "file"), "openai-chat"),
}
_NULLS: Final = {
    "message": _OF_CHAT | {"status", "content.logprobs", "content.annotations"},
    "reasoning": frozenset({"content", "status"}),
    "mcp_call": frozenset({"status"}),
    "computer_call": frozenset({"action", "actions"}),
    "web_search_call": frozenset({"action.queries", "action.query", "action.sources"}),
    "file_search_call": frozenset({"results.file_id", "results.filename", "results.score", "results.text"}),
    "image_generation_call": frozenset({"error", "svg_usage", "error.moderation_details"}),
    "shell_call_output": frozenset({"output.created_by"}),
    "tool_search_output": frozenset(
        f"{tools}.{name}"
        for tools in ("tools", "tools.tools")
        for name in ("async_", "defer_loading", "description", "format")
    ),
}
"""By the type of an item the members that no request may hold with null; other nulls go back as they came."""
_NULLS_OF_ALL: Final = frozenset({"id", "async_", "namespace", "created_by"})
_PARSED: Final = frozenset({"parsed_arguments", "content.parsed"})
"""What `parse()` of the SDK made of an answer: no request holds it, whatever its value."""
_WITHIN: Final = frozenset({"content", "action", "results", "error", "output", "tools", "tools.tools"})
_SUSPECT: Final = (b"null", b"parsed", rb"\u006", rb"\u007")
"""Without one of these the items hold nothing that is refused; the last two begin the escapes of `parsed`'s letters."""


class OpenAIResponses(Format):
    """The wire format `openai-responses`."""

    name = "openai-responses"
    result_parts = _PARTS

    def user_message(self, text: str) -> JSON:
        """Return a user's message that says `text`."""
        return {"role": "user", "content": text}

    def text_part(self, text: str) -> JSON:
        """Return a part of a user's message that says `text`."""
        return {"type": "input_text", "text": text}

    def side(self, value: JSON, path: str) -> Side:
        """Return who speaks in the item. What is no message and no output is the model's, whatever its type is."""
        item = members(value, path)
        kind = kind_of(item)
        if kind in _OUTPUTS and item.get("execution") != "server":
            return Side.RESULTS
        if kind not in ("", "message"):
            return Side.ASSISTANT
        side = _SIDES.get(str(item.get("role")))
        if side is None:
            raise unknown_role(item, ", ".join(_SIDES), path)
        refuse_foreign(item, side, _FOREIGN, path)
        check_content(item, path, _FOREIGN_PARTS)
        return side

    def answer(self, payload: bytes, value: JSON, path: str) -> Answer:
        """Return where the items stand in a response, or in a bare list of output items."""
        if isinstance(value, list):
            return self._items(payload, value, _slices.find(payload), path)
        body = members(value, path)
        refuse_error(body, path)
        output = array(body.get("output"), f"{path}.output")
        return self._items(payload, output, _slices.find(payload, "output"), f"{path}.output")

    def _items(self, payload: bytes, output: list[JSON], place: tuple[int, int], path: str) -> Answer:
        for index, item in enumerate(output):
            side = self.side(item, f"{path}[{index}]")
            if side is not Side.ASSISTANT and (side is not Side.RESULTS or not _answered(item, output[:index])):
                raise InvalidMessage("a response holds the model's items only", path=f"{path}[{index}]")
        count = len(output)
        while count and kind_of(output[count - 1]) == "reasoning":
            count -= 1
        if all(_is_empty(item) for item in output[:count]):
            return Answer()
        return Answer(*_slices.inside(payload, place, count), count, path)

    def precedes(self, item: JSON) -> bool:
        """Return whether it is a compaction: it stands for what was before, so an input can begin with it."""
        return kind_of(item) == "compaction"

    def call_list(self, fragment: bytes, path: str) -> list[tuple[Call, JSON]]:
        """Return the calls that the client has to answer; arguments are the text that the model wrote."""
        items = [members(item, path) for item in array(codec.reread(b"[%b]" % fragment), path)]
        outputs = {_answered_id(item, path) for item in items if kind_of(item) in _OUTPUTS}
        found: list[tuple[Call, JSON]] = []
        for index, item in enumerate(items):
            kind, place = kind_of(item), f"{path}[{index}]"
            if kind not in _ARGUMENTS or item.get("execution") == "server":
                continue
            name = identifier(item, "name", place) if _OUTPUT_OF[kind] in _PLAIN else kind
            call = Call(identifier(item, "call_id", place), name or kind, kind != "function_call")
            if not call.id or call.id not in outputs:
                found.append((call, item.get(_ARGUMENTS[kind])))
        return found

    def replies(self, value: JSON, path: str) -> list[Reply]:
        """Return what the output item answers."""
        return [Reply(_answered_id(members(value, path), path), "")]

    def reply(self, call: Call, output: JSON, *, error: bool) -> JSON:  # noqa: ARG002
        """Return the output item. The format has no mark for errors: the text says so."""
        kind = _output_of(call)
        if kind not in _PLAIN:
            raise InvalidMessage(
                f"a call of the type {call.name} is answered by a complete item of the type {kind}; give that, and "
                "raw=True",
                path="$",
            )
        return {"type": kind, "call_id": call.id, "output": output}

    def complete(self, output: JSON) -> Reply | None:
        """Return what a complete output item answers, of whichever type it is."""
        if isinstance(output, dict) and kind_of(output) in _OUTPUTS and _place_of_id(output) in output:
            return self.replies(output, "$")[0]
        return None

    def check_complete(self, call: Call, output: JSON) -> None:
        """Refuse an output item of another type than the call's, or one without what its type holds, or with more."""
        kind = _output_of(call)
        if kind_of(output) != kind:
            raise InvalidMessage(f"this call is answered by an item of the type {kind}", path="$.type")
        (name, types), item = _HOLDS[kind], members(output, "$")
        if not isinstance(item.get(name), types):
            raise InvalidMessage(
                f"an item of the type {kind} holds {name}, and this one none that is", path=f"$.{name}"
            )
        refuse_beside(item, _OF_ALL_OUTPUTS | _OF_OUTPUTS.get(kind, frozenset()), "$")
        if kind in _PLAIN:
            refuse_other_parts(item[name], _PARTS, f"$.{name}")

    def sendable(self, fragment: bytes) -> bytes:
        """Return a response's items without the members that a request may not hold, the others byte for byte."""
        if not any(each in fragment for each in _SUSPECT):
            return fragment
        items = _slices.items(b"[%b]" % fragment)
        left = [_sendable(item) for item in items]
        return fragment if left == items else b",".join(left)

    def pieces(self, messages: Iterable[Piece]) -> Iterator[Piece]:
        """Return the steps of a transcript: the model's items in a row are one response."""
        run: list[Piece] = []
        for piece in messages:
            if piece.side is Side.ASSISTANT:
                run.append(piece)
                continue
            if run:
                yield _joined(run)
                run = []
            yield piece
        if run:
            yield _joined(run)

    def rename(self, fragment: bytes, names: Sequence[tuple[str, str]]) -> bytes:
        """Return items with their call ids replaced."""
        left = Names(names)
        items = array(codec.decode(b"[%b]" % fragment), "$")
        for item in items:
            if kind_of(item) in _ARGUMENTS or kind_of(item) in _OUTPUTS:
                held = members(item, "$")
                left.replace(held, _place_of_id(held))
        return codec.encode(items)[1:-1]


def _output_of(call: Call) -> str:
    """Return the type of the item that answers a call; the tools of OpenAI's own making are known by their names."""
    if not call.custom:
        return "function_call_output"
    return _OUTPUT_OF.get(call.name, "custom_tool_call_output")


def _place_of_id(item: dict[str, JSON]) -> str:
    """Return the member by which an item names its call: `id` in a local shell's output, as the API's types have it."""
    return "id" if kind_of(item) == "local_shell_call_output" and "call_id" not in item else "call_id"


def _answered_id(output: dict[str, JSON], path: str) -> str:
    return identifier(output, _place_of_id(output), path)


def _sendable(item: bytes) -> bytes:
    """Return an item as a request may hold it."""
    nulls = _NULLS_OF_ALL | _NULLS.get(kind_of(codec.reread(item)) or "message", frozenset())

    def refused(path: str, value: bytes) -> bool:
        return path in _PARSED or (value == b"null" and path in nulls)

    return _slices.without(item, refused, _WITHIN)


def _answered(output: JSON, before: list[JSON]) -> bool:
    """Return whether an output in a response answers a call of the same response: a tool that the provider ran."""
    id_ = _answered_id(members(output, "$"), "$")
    return any(isinstance(item, dict) and kind_of(item) in _ARGUMENTS and item.get("call_id") == id_ for item in before)


def _is_empty(item: JSON) -> bool:
    return isinstance(item, dict) and kind_of(item) in ("", "message") and not item.get("content")


def _joined(run: list[Piece]) -> Piece:
    payload = b"[%b]" % b",".join(piece.payload for piece in run)
    return msgspec.structs.replace(run[0], payload=payload, value=[piece.value for piece in run])


WIRE: Final = OpenAIResponses()
