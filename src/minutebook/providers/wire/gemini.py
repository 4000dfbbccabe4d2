"""
Gemini generateContent: `parts` in a content; ids of calls are optional, so order and name pair where they are missing.

A signature belongs to its part, an empty text with a signature too: parts are never merged, split or dropped. Both
spellings of the wire are read, camelCase as the service writes it and snake_case as some clients do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from minutebook.errors import InvalidMessage
from minutebook.model.entries import Call
from minutebook.providers.wire import _slices
from minutebook.providers.wire._blocks import OF_OPENAI, PARTS_OF_OPENAI, BlockFormat
from minutebook.providers.wire._values import (
    Answer,
    Names,
    Reply,
    Side,
    array,
    identifier,
    members,
    only,
    refuse_beside,
    refuse_error,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from minutebook.model.codec import JSON


_CALLS: Final = frozenset({"functionCall", "function_call"})
_RESPONSE: Final = frozenset({"id", "name", "response", "parts", "scheduling", "willContinue", "will_continue"})
"""The members of a `functionResponse`."""
_MEDIA: Final = frozenset({"inlineData", "inline_data", "fileData", "file_data"})
"""The members of the parts inside one."""


class Gemini(BlockFormat):
    """The wire format `gemini`."""

    name = "gemini"
    response_wrap = (b'{"role":"model","parts":', b"}")
    results_wrap = (b'{"role":"user","parts":[', b"]}")
    list_key = "parts"
    takes_empty_text = True
    # "function" is what older clients write above results.
    sides: Mapping[str, Side] = {"user": Side.USER, "model": Side.ASSISTANT, "function": Side.USER}
    foreign: Mapping[str, str] = {**OF_OPENAI, "content": "anthropic or openai-chat"}
    # A part of Gemini's own has no type.
    foreign_parts: Mapping[str, str] = {
        "text": "anthropic or openai-chat",
        **dict.fromkeys(("image", "document", "thinking", "tool_use", "tool_result"), "anthropic"),
        **PARTS_OF_OPENAI,
    }

    def user_message(self, text: str) -> JSON:
        """Return a user's content that says `text`."""
        return {"role": "user", "parts": [{"text": text}]}

    def text_part(self, text: str) -> JSON:
        """Return a part of a user's message that says `text`."""
        return {"text": text}

    def answer(self, payload: bytes, value: JSON, path: str) -> Answer:
        """Return where the parts stand in a response, or in a bare content; a candidate without any is empty."""
        body = members(value, path)
        if "candidates" not in body and ("parts" in body or "role" in body):
            return self._parts(payload, body, (), path)
        refuse_error(body, path)
        place = f"{path}.candidates"
        candidate = members(only(array(body.get("candidates"), place), "candidates", place), f"{place}[0]")
        content = members(candidate.get("content") or {}, f"{place}[0].content")
        return self._parts(payload, content, ("candidates", 0, "content"), f"{place}[0].content")

    def _parts(self, payload: bytes, content: dict[str, JSON], keys: tuple[str | int, ...], path: str) -> Answer:
        if content.get("role") not in (None, "model"):
            raise InvalidMessage("a response is a content of the role model", path=f"{path}.role")
        return self.located(payload, content, keys, path) if content.get("parts") else Answer()

    def call(self, block: dict[str, JSON], path: str) -> tuple[Call, JSON] | None:
        """Return the call of a `functionCall` part."""
        key, call = _member(block, "functionCall", "function_call", path)
        if call is None:
            return None
        place = f"{path}.{key}"
        return Call(identifier(call, "id", place), identifier(call, "name", place)), call.get("args", {})

    def replied(self, block: dict[str, JSON], path: str) -> Reply | None:
        """Return what a `functionResponse` part answers."""
        key, response = _member(block, "functionResponse", "function_response", path)
        if response is None:
            return None
        place = f"{path}.{key}"
        return Reply(identifier(response, "id", place), identifier(response, "name", place))

    def refuse_more(self, block: dict[str, JSON], path: str) -> None:
        """
        Refuse a part with more than its `functionResponse`, were it the same in the other spelling.

        Inside it are what the API's type has, and parts that are media.
        """
        refuse_beside(block, frozenset(list(block)[:1]), path)
        ((key, value),) = block.items()
        response, place = members(value, f"{path}.{key}"), f"{path}.{key}"
        refuse_beside(response, _RESPONSE, place)
        for index, part in enumerate(array(response.get("parts") or [], f"{place}.parts")):
            refuse_beside(members(part, f"{place}.parts[{index}]"), _MEDIA, f"{place}.parts[{index}]")

    def told(self, output: JSON) -> JSON:
        """Return a tool's output as it is: results hold JSON values."""
        return output

    def reply(self, call: Call, output: JSON, *, error: bool) -> JSON:
        """Return the `functionResponse` part: the value under `output`, or under `error`."""
        response: dict[str, JSON] = {"name": call.name, "response": {"error" if error else "output": output}}
        return {"functionResponse": {"id": call.id, **response} if call.id else response}

    def rename_block(self, block: dict[str, JSON], names: Names) -> None:
        """Give the part's call id its new name, if it has a call or a result."""
        for key in ("functionCall", "function_call", "functionResponse", "function_response"):
            if block.get(key) is not None:
                names.replace(members(block[key], f"$.{key}"), "id")

    def is_empty(self, block: JSON) -> bool:
        """Return whether the part is a text without a character and nothing beside it."""
        return block in ({}, {"text": ""})

    def sendable(self, fragment: bytes) -> bytes:
        """Return a response's parts without members that are null, as a dump of the SDK's has them for every kind."""
        return _slices.without(fragment, _says_nothing, _CALLS) if b"null" in fragment else fragment


def _member(block: dict[str, JSON], camel: str, snake: str, path: str) -> tuple[str, dict[str, JSON] | None]:
    """Return a member's spelling and the member; one that is null is none."""
    key = camel if block.get(camel) is not None else snake
    return key, None if block.get(key) is None else members(block[key], f"{path}.{key}")


_KNOWN: Final = frozenset(
    {"text", "inlineData", "fileData", "functionCall", "functionResponse", "executableCode", "codeExecutionResult"}
    | {"thought", "thoughtSignature", "videoMetadata", "partMetadata", "mediaResolution", "toolCall", "toolResponse"}
    | {"id", "args", "name", "partialArgs", "willContinue"}
)
"""Members that a dump of the SDK writes as null; what else a provider says stays as it came."""


def _says_nothing(name: str, value: bytes) -> bool:
    return value == b"null" and _camel(name.rpartition(".")[2]) in _KNOWN


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


WIRE: Final = Gemini()
