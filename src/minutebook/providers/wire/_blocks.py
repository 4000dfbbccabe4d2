"""
What Anthropic and Gemini share: a message is a role and a list of blocks, and one message carries all the results.

Sent back is the list alone, between constants that give the role. So a response whose body leaves the role out goes
back right, and every block stays byte for byte as it came, an empty one with a signature too.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Final

import msgspec

from minutebook.errors import InvalidMessage
from minutebook.model import codec
from minutebook.providers.wire import _slices
from minutebook.providers.wire._format import Format
from minutebook.providers.wire._transcript import Waiting
from minutebook.providers.wire._values import (
    Answer,
    Names,
    Piece,
    Reply,
    Side,
    array,
    members,
    refuse_beside,
    refuse_foreign,
    refuse_foreign_parts,
    unknown_role,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from minutebook.model.codec import JSON
    from minutebook.model.entries import Call


OF_OPENAI: Final = dict.fromkeys(("tool_calls", "tool_call_id", "function_call", "audio", "refusal"), "openai-chat")
"""Members of messages that only OpenAI's formats have, and their name; below the types of parts."""
PARTS_OF_OPENAI: Final = {
    **dict.fromkeys(("image_url", "input_audio", "file", "refusal"), "openai-chat"),
    **dict.fromkeys(("input_text", "input_image", "input_file", "output_text"), "openai-responses"),
}


class BlockFormat(Format):
    """A format of messages that are lists of blocks; a table of its words and three readers of one block."""

    grouped = True
    sides: Mapping[str, Side]
    foreign: Mapping[str, str]
    """The members of messages that only another format has, and its name."""
    foreign_parts: Mapping[str, str]
    """The types of blocks that only another format has, and its name."""
    takes_empty_text = False
    """Whether the provider accepts a user's message of nothing but a text that says nothing."""

    @abstractmethod
    def call(self, block: dict[str, JSON], path: str) -> tuple[Call, JSON] | None:
        """Return the call that the block makes, if it makes one that the client answers."""

    @abstractmethod
    def replied(self, block: dict[str, JSON], path: str) -> Reply | None:
        """Return what the block answers, if it is a result."""

    @abstractmethod
    def refuse_more(self, block: dict[str, JSON], path: str) -> None:
        """Refuse a block that is a result and has a member, or a part inside it, that no result has."""

    @abstractmethod
    def rename_block(self, block: dict[str, JSON], names: Names) -> None:
        """Give the block's call id its new name, if it has one."""

    @abstractmethod
    def is_empty(self, block: JSON) -> bool:
        """Return whether the block holds nothing that a provider would take."""

    def is_thought(self, block: JSON) -> bool:  # noqa: ARG002 - a format with such blocks looks
        """Return whether the block only leads to another, so that the provider refuses an answer that ends with it."""
        return False

    # -------------------------------------------------------------------------------------------------------------

    def side(self, value: JSON, path: str) -> Side:
        """Return who speaks in the message; a user's message that holds any result is one of results."""
        message = members(value, path)
        side = self.sides.get(str(message.get("role")))
        self._refuse_foreign(message, side, path)
        if side is None:
            raise unknown_role(message, ", ".join(self.sides), path)
        if side is not Side.USER:
            return side
        content = self._content(message, path)
        refuse_foreign_parts(content, self.foreign_parts, f"{path}.{self.list_key}")
        if not content or not (self.takes_empty_text or self._filled(content)):
            raise InvalidMessage(
                f"{self.list_key} is empty or blank; this provider refuses that", path=f"{path}.{self.list_key}"
            )
        return Side.RESULTS if self.replies(message, path) else Side.USER

    def replies(self, value: JSON, path: str) -> list[Reply]:
        """Return what each result in the message answers, in the message's order."""
        content = self._content(members(value, path), path)
        if isinstance(content, str):
            return []
        place = f"{path}.{self.list_key}"
        found = [self.replied(members(b, f"{place}[{n}]"), f"{place}[{n}]") for n, b in enumerate(content)]
        return [reply for reply in found if reply is not None]

    def complete(self, output: JSON) -> Reply | None:
        """Return what a block answers, if it is a result, or a message that holds one result."""
        if not self._is_message(output):
            return self.replied(output, "$") if isinstance(output, dict) else None
        replies = self.replies(output, "$")
        if len(replies) > 1:
            raise InvalidMessage(f"a message with {len(replies)} results; give each with its own call", path="$")
        return replies[0] if replies else None

    def check_complete(self, call: Call, output: JSON) -> None:  # noqa: ARG002
        """Refuse whatever stands beside the one result: a block, a member, another role."""
        block, path = members(output, "$"), "$"
        if self._is_message(output):
            refuse_beside(block, frozenset({"role", self.list_key}), path)
            if self.side(output, path) is not Side.RESULTS:
                raise InvalidMessage("a result is said by the user's side", path="$.role")
            blocks = array(block[self.list_key], f"$.{self.list_key}")
            if len(blocks) != 1:
                raise InvalidMessage("a result has nothing beside it; this message has", path=f"$.{self.list_key}")
            block, path = members(blocks[0], f"$.{self.list_key}[0]"), f"$.{self.list_key}[0]"
        self.refuse_more(block, path)

    def results_span(self, payload: bytes, value: JSON) -> tuple[int, int]:
        """Return the whole of a single block; of a message the inside of its list, text beside results included."""
        if not self._is_message(value):
            return _slices.find(payload)
        place = _slices.find(payload, self.list_key)
        return _slices.inside(payload, place, len(_slices.items(payload[place[0] : place[1]])))

    def outputs(
        self, payload: bytes, position: int, waiting: Mapping[int, Call]
    ) -> tuple[tuple[int | None, JSON], ...]:
        """Return what a block, or a message of results, gives each call, and what stands beside them as `None`'s."""
        value = codec.decode(payload)
        if not self._is_message(value):
            return ((position, value),)
        blocks = self._content(members(value, "$"), "$")
        replies = [(self.replied(members(block, "$"), "$"), block) for block in blocks]
        if sum(reply is not None for reply, _ in replies) == 1:
            return tuple((None if reply is None else position, block) for reply, block in replies)
        left = Waiting(waiting)
        found: list[tuple[int | None, JSON]] = []
        for reply, block in replies:
            place = None if reply is None else left.take(reply)
            found.append((place, block))
        return tuple(found)

    def located(self, payload: bytes, message: dict[str, JSON], keys: tuple[str | int, ...], path: str) -> Answer:
        """Return where the list of an assistant's message at `keys` stands."""
        self._refuse_foreign(message, Side.ASSISTANT, path)
        content = self._content(message, path)
        refuse_foreign_parts(content, self.foreign_parts, f"{path}.{self.list_key}")
        if isinstance(content, list):
            for index, block in enumerate(content):
                members(block, f"{path}.{self.list_key}[{index}]")
        if not self._is_answer(content):
            return Answer()
        return Answer(*_slices.find(payload, *keys, self.list_key), 1, f"{path}.{self.list_key}")

    def _refuse_foreign(self, message: dict[str, JSON], side: Side | None, path: str) -> None:
        # Of an answer the list alone goes back, so that nothing is lost with an empty member beside it.
        said = side is Side.ASSISTANT
        refuse_foreign({name: message[name] for name in message if message[name] or not said}, side, self.foreign, path)

    def _filled(self, content: list[JSON] | str) -> list[JSON]:
        """Return the blocks that hold something."""
        blocks: list[JSON] = [self.text_part(content)] if isinstance(content, str) else content
        return [block for block in blocks if not self.is_empty(block)]

    def _is_answer(self, content: list[JSON] | str) -> bool:
        """
        Return whether there is anything that the provider takes back as what the model said.

        An answer of nothing but thinking has nothing that may end it (case O-10): the record alone has it.
        """
        return not all(map(self.is_thought, self._filled(content)))

    def call_list(self, fragment: bytes, path: str) -> list[tuple[Call, JSON]]:
        """Return the calls in a list of blocks, with their arguments as JSON values."""
        content = codec.reread(fragment)
        blocks = content if isinstance(content, list) else []
        found = [self.call(members(b, f"{path}[{n}]"), f"{path}[{n}]") for n, b in enumerate(blocks)]
        return [call for call in found if call is not None]

    def pieces(self, messages: Iterable[Piece]) -> Iterator[Piece]:
        """
        Return the steps of a transcript. The model's messages in a row are one response once an earlier one has calls,
        or while the last ends with thinking.

        Both providers join such messages themselves, and the results of all their calls stand in the message after.
        """
        run: list[Piece] = []
        for piece in messages:
            if run and (piece.side is not Side.ASSISTANT or not self._goes_on(run)):
                yield self._joined(run)
                run = []
            if piece.side is Side.ASSISTANT:
                run.append(piece)
            else:
                yield piece
        if run:
            yield self._joined(run)

    def _goes_on(self, run: list[Piece]) -> bool:
        content = self._content(members(run[-1].value, run[-1].path), run[-1].path)
        thinks = isinstance(content, list) and bool(content) and self.is_thought(content[-1])
        return thinks or any(map(self._has_calls, run))

    def _has_calls(self, piece: Piece) -> bool:
        content = self._content(members(piece.value, piece.path), piece.path)
        if isinstance(content, str):
            return False
        return any(self.call(members(block, piece.path), piece.path) for block in content)

    def _joined(self, run: list[Piece]) -> Piece:
        if len(run) == 1:
            return run[0]
        inner = [self._inner(piece) for piece in run]
        before, after = self.response_wrap
        payload = b"%b[%b]%b" % (before, b",".join(filter(None, inner)), after)
        return msgspec.structs.replace(run[0], payload=payload, value=codec.decode(payload))

    def _inner(self, piece: Piece) -> bytes:
        content = self._content(members(piece.value, piece.path), piece.path)
        if isinstance(content, str):
            return codec.encode({"type": "text", "text": content}) if content else b""
        start, stop = self.results_span(piece.payload, piece.value)
        return piece.payload[start:stop]

    def rename(self, fragment: bytes, names: Sequence[tuple[str, str]]) -> bytes:
        """Return a response's list, or the results inside one, with the call ids replaced."""
        if not fragment or fragment.startswith(b'"'):
            return fragment
        bare = not fragment.startswith(b"[")
        blocks = array(codec.decode(b"[%b]" % fragment if bare else fragment), "$")
        left = Names(names)
        for block in blocks:
            self.rename_block(members(block, "$"), left)
        renamed = codec.encode(blocks)
        return renamed[1:-1] if bare else renamed

    def _is_message(self, value: JSON) -> bool:
        return isinstance(value, dict) and "role" in value and isinstance(value.get(self.list_key), list)

    def _content(self, message: dict[str, JSON], path: str) -> list[JSON] | str:
        return array(message.get(self.list_key), f"{path}.{self.list_key}")
