"""
Pieces of JSON, joined as OpenAI's client adds up deltas, but for what it would drop.

Texts and lists grow, objects grow by member, and all else only repeats. A value that grows keeps its pieces apart until
the last has come, and finds the item that a piece belongs to by a table: the work is linear in what was streamed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

from minutebook.errors import InvalidValue
from minutebook.model import codec
from minutebook.providers.decision import unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

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

    def so_far(self) -> str:
        """Return the text that the pieces make; joined once: who asks again pays for what came since."""
        self.pieces = ["".join(self.pieces)]
        return self.pieces[0]


class Items:
    """
    A list while its pieces come in: a piece of an item has its number as `index`, any other is one of its own.

    Some servers give each of several calls the number 0, and an `id` that says which is which; others give each piece
    of one call a new `id`. So a piece with another `id` goes on with the call before it unless it names a function:
    another one, or in the same event, it begins another call. The same one again does behind arguments that are whole,
    if any follow, and does not amid arguments. Beside a call without any nothing tells, and there is no answer.
    """

    def __init__(self) -> None:
        self.items: list[Growing] = []
        self._places: dict[float, int] = {}
        self._unsure: list[int] = []
        """Places of calls that are none unless arguments follow."""

    def add(self, pieces: list[JSON]) -> None:
        """Take the pieces of one event: of items that are here, or the first of others."""
        told: set[int] = set()
        for piece in pieces:
            index = piece.get("index") if isinstance(piece, dict) else None
            place = self._places.get(index) if isinstance(index, (int, float)) else None
            if place is None or self._begins_another(place, piece, beside=place in told):
                place = len(self.items)
                self.put(piece, joined("", None, piece))
            else:
                self.items[place] = joined("", self.items[place], _with_first_id(self.items[place], piece))
            told.add(place)

    def put(self, piece: JSON, item: Growing) -> None:
        """Append an item, to be found again by the `index` that `piece` gives it."""
        index = piece.get("index") if isinstance(piece, dict) else None
        if isinstance(index, (int, float)):
            self._places[index] = len(self.items)
        self.items.append(item)

    def grown(self) -> list[JSON]:
        """
        Return the items that the pieces add up to.

        Raises:
            AgentDecisionProviderUnavailable: nothing tells whether one of them is a call.
        """
        unsure = [item for place in self._unsure if isinstance(item := self.items[place], dict)]
        if any(_arguments(call) == "none" for call in unsure):
            raise unknown()
        return [grown(item) for item in self.items]

    def _begins_another(self, place: int, piece: JSON, *, beside: bool) -> bool:
        item = self.items[place]
        if not isinstance(item, dict) or not isinstance(piece, dict):
            return False
        begun, id_ = item.get("id"), piece.get("id")
        if begun in EMPTY or not isinstance(id_, str) or id_ in ("", grown(begun)):
            return False
        further = cast("dict[str, Growing]", piece)
        before, name = _name(item), _name(further)
        if before in EMPTY or name in EMPTY:
            return False
        if beside or name != before:
            return True
        arguments = _arguments(item)
        if arguments == "none":
            raise unknown()
        if arguments == "whole" and _arguments(further) == "none":
            self._unsure.append(len(self.items))
        return arguments == "whole"


Growing: TypeAlias = "dict[str, Growing] | Items | Text | list[JSON] | str | int | float | bool | None"
"""A value to which further pieces may come."""


def _name(call: Mapping[str, Growing]) -> JSON:
    function = call.get("function")
    return grown(function.get("name")) if isinstance(function, dict) else None


def _arguments(call: Mapping[str, Growing]) -> Literal["none", "part", "whole"]:
    """Return how much of the arguments of a call there is: text that is the JSON of an object or a list is whole."""
    function = call.get("function")
    arguments = function.get("arguments") if isinstance(function, dict) else None
    text = arguments.so_far() if isinstance(arguments, Text) else arguments
    if not isinstance(text, str):
        return "none" if text is None else "whole" if isinstance(text, dict) else "part"
    if text.strip() in ("", "null"):
        return "none"
    if not text.rstrip().endswith(("}", "]")):
        return "part"
    try:
        return "whole" if isinstance(codec.decode(text.encode()), (dict, list)) else "part"
    except (InvalidValue, UnicodeEncodeError):
        return "part"


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
        items = before if isinstance(before, Items) else Items()
        items.add(piece)
        return items
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
        return value.grown()
    return "".join(value.pieces) if isinstance(value, Text) else value
