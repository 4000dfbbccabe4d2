"""
Where a message stands inside the bytes that carry it.

What goes back to a provider is a slice of what was received. A slice is found by its own bytes: should they occur
twice, either place holds the same bytes, so either will do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from minutebook.model import codec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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


def members(value: bytes) -> dict[str, bytes]:
    """Return the bytes of each member of a JSON object."""
    return {name: bytes(each).strip(_BLANKS) for name, each in _members(value).items()}


def without(value: bytes, refused: Callable[[str, bytes], bool], within: frozenset[str], path: str = "") -> bytes:
    """
    Return an object, or a list of objects, without the members that `refused` names; all others byte for byte.

    It is asked with a member's path, as in `tool_calls.function`, and its value. Looked into are the paths in `within`.
    """
    if value.startswith(b"["):
        listed = [item.strip(_BLANKS) for item in items(value)]
        left = [without(item, refused, within, path) for item in listed]
        return value if left == listed else b"[%b]" % b",".join(left)
    if not value.startswith(b"{"):
        return value
    given = members(value)
    kept: dict[str, bytes] = {}
    for name, each in given.items():
        place = f"{path}.{name}" if path else name
        if not refused(place, each):
            kept[name] = without(each, refused, within, place) if place in within else each
    return value if kept == given else joined(kept)


def joined(members: dict[str, bytes]) -> bytes:
    """Return the JSON object of these members, each as its bytes are."""
    return b"{%b}" % b",".join(b"%b:%b" % (codec.encode(name), each) for name, each in members.items())


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
