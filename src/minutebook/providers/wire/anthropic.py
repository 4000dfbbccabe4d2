"""
Anthropic Messages: content is a text or a list of blocks; the results of an exchange are one user message.

Thinking goes back as it came, with whatever it led to, also where its text is empty and its signature is not. What led
to nothing, at the end of an answer that was cut, does not go back, nor does a text that says nothing: the provider
refuses both, whatever it said itself. Nor does what only servers of its kind make: thinking without a seal, and call
ids of another form than the API takes. Tools that the provider runs itself (`server_tool_use`) are not answered here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from minutebook.errors import InvalidMessage
from minutebook.model import codec
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
    kind_of,
    members,
    refuse_beside,
    refuse_error,
    refuse_other_parts,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from minutebook.model.codec import JSON

_PARTS: Final = frozenset({"text", "image", "document", "search_result", "tool_reference"})
_THINKING: Final = {"thinking": "signature", "redacted_thinking": "data"}
"""The blocks that are bound to all messages before them, each with the member that seals it."""
_OF_RESULTS: Final[dict[str, tuple[type, ...]]] = {"content": (str, list), "is_error": (bool,)}
"""The members of a result that may be left out and may not be null, with their JSON types."""
_RESULT: Final = frozenset({"type", "tool_use_id", "cache_control", *_OF_RESULTS})


class Anthropic(BlockFormat):
    """The wire format `anthropic`."""

    name = "anthropic"
    response_wrap = (b'{"role":"assistant","content":', b"}")
    results_wrap = (b'{"role":"user","content":[', b"]}")
    list_key = "content"
    result_parts = _PARTS
    binds = True
    id_form = re.compile(r"[a-zA-Z0-9_-]+", re.ASCII)
    sides: Mapping[str, Side] = {"user": Side.USER, "assistant": Side.ASSISTANT, "system": Side.INSTRUCTIONS}
    foreign: Mapping[str, str] = {**OF_OPENAI, "parts": "gemini"}
    foreign_parts: Mapping[str, str] = PARTS_OF_OPENAI

    def user_message(self, text: str) -> JSON:
        """Return a user's message that says `text`."""
        return {"role": "user", "content": text}

    def text_part(self, text: str) -> JSON:
        """Return a part of a user's message that says `text`."""
        return {"type": "text", "text": text}

    def answer(self, payload: bytes, value: JSON, path: str) -> Answer:
        """Return where the content of a message stands."""
        message = members(value, path)
        refuse_error(message, path)
        if message.get("role") != "assistant":
            raise InvalidMessage("a response is a message of the role assistant", path=f"{path}.role")
        return self.located(payload, message, (), path)

    def call(self, block: dict[str, JSON], path: str) -> tuple[Call, JSON] | None:
        """Return the call of a `tool_use` block."""
        if block.get("type") != "tool_use":
            return None
        return Call(identifier(block, "id", path), identifier(block, "name", path)), block.get("input")

    def replied(self, block: dict[str, JSON], path: str) -> Reply | None:
        """Return what a `tool_result` block answers."""
        if block.get("type") != "tool_result":
            return None
        for name, types in _OF_RESULTS.items():
            if name in block and not isinstance(block[name], types):
                raise InvalidMessage(f"no request may have such a {name}; leave it out", path=f"{path}.{name}")
        return Reply(identifier(block, "tool_use_id", path), "")

    def refuse_more(self, block: dict[str, JSON], path: str) -> None:
        """Refuse a `tool_result` block with a member, or a block inside it, that the API's type has not."""
        refuse_beside(block, _RESULT, path)
        refuse_other_parts(block.get("content"), _PARTS, f"{path}.content")

    def reply(self, call: Call, output: JSON, *, error: bool) -> JSON:
        """Return the `tool_result` block; `is_error` stands there only when it is one, an empty text never."""
        content = output
        if isinstance(output, list):
            content = [part for part in output if part != {"type": "text", "text": ""}] or ""
        block: dict[str, JSON] = {"type": "tool_result", "tool_use_id": call.id, "content": content}
        return {**block, "is_error": True} if error else block

    def rename_block(self, block: dict[str, JSON], names: Names) -> None:
        """Give the block's call id its new name, if it has one."""
        key = {"tool_use": "id", "tool_result": "tool_use_id"}.get(str(block.get("type")))
        if key:
            names.replace(block, key)

    def is_empty(self, block: JSON) -> bool:
        """
        Return whether the provider refuses the block: a text of blanks or of nothing, or thinking that nothing seals.

        The API itself seals all of it; servers of its kind do not, and take a conversation without it.
        """
        if not isinstance(block, dict):
            return False
        if kind_of(block) == "text":
            return not str(block.get("text")).strip()
        return self.is_thought(block) and not isinstance(block.get(_THINKING[kind_of(block)]), str)

    def is_thought(self, block: JSON) -> bool:
        """Return whether the block is thinking, readable or not."""
        return kind_of(block) in _THINKING

    def sendable(self, fragment: bytes) -> bytes:
        """
        Return a response's list without blank texts and thinking at its end, every other block byte for byte.

        A null `caller`, which an SDK's dump has in every call, is none and no request's.
        """
        if b"null" in fragment:
            fragment = _slices.without(fragment, _is_no_caller, frozenset())
        blocks = _blocks(fragment)
        kept = [place for place, block in enumerate(blocks) if not self.is_empty(block)]
        while kept and self.is_thought(blocks[kept[-1]]):
            kept.pop()
        return fragment if len(kept) == len(blocks) else _left(fragment, kept)

    def unbound(self, fragment: bytes) -> bytes:
        """Return a response's list without its thinking, every other block byte for byte."""
        if b"thinking" not in fragment and b"\\u" not in fragment:  # an escape may spell it
            return fragment
        blocks = _blocks(fragment)
        kept = [place for place, block in enumerate(blocks) if not self.is_thought(block)]
        if len(kept) == len(blocks):
            return fragment
        return b"" if all(self.is_empty(blocks[place]) for place in kept) else _left(fragment, kept)

    def _content(self, message: dict[str, JSON], path: str) -> list[JSON] | str:
        content = message.get("content")
        return content if isinstance(content, str) else array(content, f"{path}.content")


def _is_no_caller(path: str, value: bytes) -> bool:
    return path == "caller" and value == b"null"


def _blocks(fragment: bytes) -> list[JSON]:
    """Return the blocks of a response's fragment; a text has none."""
    return array(codec.reread(fragment), "$") if fragment.startswith(b"[") else []


def _left(fragment: bytes, kept: Sequence[int]) -> bytes:
    """Return a list of the blocks at some places of another, each as its bytes; nothing for none."""
    items = _slices.items(fragment)
    return b"[%b]" % b",".join([items[place] for place in kept]) if kept else b""


WIRE: Final = Anthropic()
