"""
Pieces of JSON, joined as OpenAI's client adds up deltas, but for what it would drop.

Texts and lists grow, objects grow by member, and all else only repeats. A value that grows keeps its pieces apart until
the last has come, and finds the item that a piece belongs to by a table: the work is linear in what was streamed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias, cast

from minutebook.errors import InvalidValue
from minutebook.model import codec
from minutebook.providers.decision import unavailable

if TYPE_CHECKING:
    from minutebook.errors import AgentDecisionProviderUnavailable
    from minutebook.model.codec import JSON

EMPTY: Final[tuple[JSON, ...]] = (None, "", [], {})
"""What adds nothing to a value, and takes nothing from it."""
STATED: Final = frozenset(
    {"finish_reason", "content_filter_results", "content_filter_offsets"}
    | {"finishReason", "finishMessage", "safetyRatings", "tokenCount", "avgLogprobs", "logProbabilitySum"}
)
"""What is said anew, of the choice or candidate so far."""
_KINDS: Final = frozenset({"role", "type"})
"""Texts that say what their pieces are pieces of."""
_LABELS: Final = _KINDS | {"id", "name", "format"}
"""Texts that some servers repeat with each piece."""


def unknown() -> AgentDecisionProviderUnavailable:
    """Return the error for a piece that cannot be added to the others without losing something."""
    return unavailable("stream_unknown", 200)


class Text:
    """A text in its pieces."""

    def __init__(self, first: str) -> None:
        self.pieces = [first]
        self._length = len(first)

    def add(self, piece: str) -> None:
        """Take a further piece."""
        self.pieces.append(piece)
        self._length += len(piece)

    def says(self, text: str) -> bool:
        """Return whether the pieces so far say `text`; no longer work than `text` is long."""
        return len(text) == self._length and "".join(self.pieces) == text

    def is_whole(self) -> bool:
        """Return whether the pieces so far are the JSON of an object or a list."""
        text = "".join(self.pieces)
        self.pieces = [text]  # joined once: who asks again pays for what came since
        if not text.rstrip().endswith(("}", "]")):
            return False
        try:
            return isinstance(codec.decode(text.encode()), (dict, list))
        except (InvalidValue, UnicodeEncodeError):
            return False


class Items:
    """
    A list while its pieces come in: a piece of an item has its number as `index`, any other is one of its own.

    Some servers give each of several calls the number 0, and an `id` that says which is which; others give each piece
    of one call a new `id`. So another call begins where it is named, once the arguments of the one before are whole.
    """

    def __init__(self) -> None:
        self.items: list[Growing] = []
        self._places: dict[float, int] = {}

    def add(self, piece: JSON) -> None:
        """Take a piece: of an item that is here, or the first of another."""
        index = piece.get("index") if isinstance(piece, dict) else None
        place = self._places.get(index) if isinstance(index, (int, float)) else None
        if place is None or self._begins_another(self.items[place], piece):
            self.put(piece, joined("", None, piece))
        else:
            self.items[place] = joined("", self.items[place], _with_first_id(self.items[place], piece))

    def put(self, piece: JSON, item: Growing) -> None:
        """Append an item, to be found again by the `index` that `piece` gives it."""
        index = piece.get("index") if isinstance(piece, dict) else None
        if isinstance(index, (int, float)):
            self._places[index] = len(self.items)
        self.items.append(item)

    @staticmethod
    def _begins_another(item: Growing, piece: JSON) -> bool:
        if not isinstance(item, dict) or not isinstance(piece, dict):
            return False
        begun, id_ = item.get("id"), piece.get("id")
        if begun in EMPTY or not isinstance(id_, str) or id_ in ("", grown(begun)):
            return False
        function = piece.get("function")
        return isinstance(function, dict) and function.get("name") not in EMPTY and _has_whole_arguments(item)


Growing: TypeAlias = "dict[str, Growing] | Items | Text | list[JSON] | str | int | float | bool | None"
"""A value to which further pieces may come."""


def _has_whole_arguments(call: dict[str, Growing]) -> bool:
    function = call.get("function")
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if isinstance(arguments, str):
        arguments = Text(arguments)
    return arguments.is_whole() if isinstance(arguments, Text) else isinstance(arguments, dict)


def _with_first_id(item: Growing, piece: JSON) -> JSON:
    """Return a further piece of an item, without its id where the item has one: an id is no text that grows."""
    begun = item.get("id") if isinstance(item, dict) else None
    if not isinstance(piece, dict) or begun in EMPTY or not isinstance(begun, (str, Text)):
        return piece
    return {key: value for key, value in piece.items() if key != "id" or not isinstance(value, str)}


def joined(key: str, before: Growing, piece: JSON) -> Growing:
    """
    Return the value of the member `key` with a further piece; `before` is None where there was none.

    Raises:
        AgentDecisionProviderUnavailable: one of the two would be lost, since nothing tells how they add up.
    """
    if piece in EMPTY:
        return cast("Growing", piece) if before is None else before
    if key in STATED:
        return cast("Growing", piece)
    if isinstance(piece, dict) and (before in EMPTY or isinstance(before, dict)):
        return joined_members(before if isinstance(before, dict) else {}, piece)
    if isinstance(piece, list) and (before in EMPTY or isinstance(before, Items)):
        return _joined_items(before if isinstance(before, Items) else Items(), piece)
    if before in EMPTY:
        return cast("Growing", piece)
    if isinstance(piece, str) and isinstance(before, (str, Text)):
        return _joined_texts(key, Text(before) if isinstance(before, str) else before, piece)
    if type(before) is type(piece) and before == piece:
        return before
    raise unknown()


def joined_members(whole: dict[str, Growing], pieces: dict[str, JSON]) -> dict[str, Growing]:
    """Return `whole` itself, with the pieces of each of its members."""
    for key, piece in pieces.items():
        whole[key] = joined(key, whole.get(key), piece)
    return whole


def _joined_items(whole: Items, pieces: list[JSON]) -> Items:
    for piece in pieces:
        whole.add(piece)
    return whole


def _joined_texts(key: str, whole: Text, piece: str) -> Text:
    if key in _LABELS and whole.says(piece):
        return whole
    if key in _KINDS:
        raise unknown()
    whole.add(piece)
    return whole


def growing(value: JSON) -> Growing:
    """Return a value that came whole, in the form to which pieces are added; none of its own items are joined."""
    if isinstance(value, dict):
        return {key: growing(item) for key, item in value.items()}
    if not isinstance(value, list) or not value:
        return value
    items = Items()
    for item in value:
        items.put(item, growing(item))
    return items


def grown(value: Growing) -> JSON:
    """Return the value that the pieces add up to."""
    if isinstance(value, dict):
        return {name: grown(member) for name, member in value.items()}
    if isinstance(value, Items):
        return [grown(item) for item in value.items]
    return "".join(value.pieces) if isinstance(value, Text) else value
