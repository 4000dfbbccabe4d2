"""
What Anthropic and Gemini share: a message is a role and a list of blocks, and one message carries all the results.

Sent back is the list alone, between constants that give the role. So a response whose body leaves the role out goes
back right, and every block stays byte for byte as it came, an empty one with a signature too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minutebook.errors import InvalidMessage
from minutebook.model import codec
from minutebook.providers.wire import _slices
from minutebook.providers.wire._format import Format
from minutebook.providers.wire._values import Answer, Names, Reply, Side, array, members, unknown_role

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from minutebook.model.codec import JSON
    from minutebook.model.entries import Call


class BlockFormat(Format):
    """A format of messages that are lists of blocks; a table of its words and three readers of one block."""

    grouped = True
    list_key = ""
    sides: Mapping[str, Side]

    def call(self, block: dict[str, JSON], path: str) -> tuple[Call, JSON] | None:
        """Return the call that the block makes, if it makes one that the client answers."""
        raise NotImplementedError

    def replied(self, block: dict[str, JSON], path: str) -> Reply | None:
        """Return what the block answers, if it is a result."""
        raise NotImplementedError

    def rename_block(self, block: dict[str, JSON], names: Names) -> None:
        """Give the block's call id its new name, if it has one."""
        raise NotImplementedError

    def is_empty(self, block: JSON) -> bool:
        """Return whether the block holds nothing that a provider would take."""
        raise NotImplementedError

    # -------------------------------------------------------------------------------------------------------------

    def side(self, value: JSON, path: str) -> Side:
        """Return who speaks in the message; a user's message that holds any result is one of results."""
        message = members(value, path)
        side = self.sides.get(str(message.get("role")))
        if side is None:
            raise unknown_role(message, ", ".join(self.sides), path)
        if side is not Side.USER:
            return side
        content = self._content(message, path)
        if all(self.is_empty(block) for block in content):
            raise InvalidMessage(
                f"{self.list_key} is empty; this provider refuses that", path=f"{path}.{self.list_key}"
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
        if not isinstance(output, dict):
            return None
        if "role" not in output or not isinstance(output.get(self.list_key), list):
            return self.replied(output, "$")
        replies = self.replies(output, "$")
        if len(replies) > 1:
            raise InvalidMessage(f"a message with {len(replies)} results; give each with its own call", path="$")
        return replies[0] if replies else None

    def results_span(self, payload: bytes, value: JSON) -> tuple[int, int]:
        """Return the whole of a single block; of a message the inside of its list, text beside results included."""
        if isinstance(value, dict) and "role" not in value:
            return _slices.find(payload)
        place = _slices.find(payload, self.list_key)
        return _slices.inside(payload, place, len(_slices.items(payload[place[0] : place[1]])))

    def located(self, payload: bytes, message: dict[str, JSON], keys: tuple[str | int, ...], path: str) -> Answer:
        """Return where the list of an assistant's message at `keys` stands."""
        content = self._content(message, path)
        if isinstance(content, list):
            for index, block in enumerate(content):
                members(block, f"{path}.{self.list_key}[{index}]")
        if not content or (isinstance(content, list) and all(self.is_empty(block) for block in content)):
            return Answer()
        return Answer(*_slices.find(payload, *keys, self.list_key), 1)

    def call_list(self, fragment: bytes) -> list[tuple[Call, JSON]]:
        """Return the calls in a list of blocks, with their arguments as JSON values."""
        content = codec.decode(fragment)
        blocks = content if isinstance(content, list) else []
        found = [self.call(members(b, f"$[{n}]"), f"$[{n}]") for n, b in enumerate(blocks)]
        return [call for call in found if call is not None]

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

    def _content(self, message: dict[str, JSON], path: str) -> list[JSON] | str:
        return array(message.get(self.list_key), f"{path}.{self.list_key}")
