"""
Where a message stands inside the bytes that carry it.

What goes back to a provider is a slice of what was received. A slice is found by its own bytes: should they occur
twice, either place holds the same bytes, so either will do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

_BLANKS = b" \t\r\n"
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


def find(payload: bytes, *keys: str | int) -> tuple[int, int]:
    """Return where in `payload`, a checked JSON document, the value at the path `keys` starts and stops."""
    inner = payload
    for key in keys:
        inner = bytes(_items(inner)[key] if isinstance(key, int) else _members(inner)[key])
    inner = inner.strip(_BLANKS)
    start = payload.find(inner)
    return start, start + len(inner)


def items(array: bytes) -> list[bytes]:
    """Return the bytes of each item of a JSON array."""
    return [bytes(item) for item in _items(array)]


def inside(payload: bytes, array: tuple[int, int], count: int) -> tuple[int, int]:
    """Return where the first `count` items of the array at `array` stand, without its brackets."""
    begin, end = array
    spans = _spans(payload, begin + 1, items(payload[begin:end])[:count])
    return (spans[0][0], spans[-1][1]) if spans else (0, 0)


def _spans(payload: bytes, place: int, wanted: Sequence[bytes]) -> list[tuple[int, int]]:
    # Between two items stand only blanks and a comma, and no item starts with either: the next find is the next item.
    spans: list[tuple[int, int]] = []
    for item in wanted:
        start = payload.index(item, place)
        place = start + len(item)
        spans.append((start, place))
    return spans
