"""
What a value with content shows of itself: its type's name, and nothing else (promise I-37). And what a text shows.

A `repr` ends in logs, in tracebacks and in the messages of failed assertions. Classes whose fields may hold messages,
arguments, results or what was made of them take this for their `__repr__`; tests/faults/test_reprs.py finds one that
does not.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from typing import Final

_UNSEEN_CATEGORIES: Final = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""Categories of characters that change how a text looks and are not seen: directions, joiners, controls."""

_UNSEEN_RANGES: Final = (
    (0x00AD, 0x00AD),
    (0x034F, 0x034F),
    (0x061C, 0x061C),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x200B, 0x200F),
    (0x202A, 0x202E),
    (0x2060, 0x206F),
    (0x2800, 0x2800),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFF8),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),
)
"""
What is drawn as nothing whatever its category: Default_Ignorable_Code_Point of Unicode 16.0, as its file
DerivedCoreProperties.txt has it, letters and marks among them; and U+2800, the braille pattern without a dot.
"""
_UNSEEN_STARTS: Final = [first for first, _ in _UNSEEN_RANGES]


def is_unseen(character: str) -> bool:
    """Return whether a person who reads a text does not see the character as what it is; a plain space is seen."""
    if character.isspace():
        return character != " "
    if unicodedata.category(character) in _UNSEEN_CATEGORIES:
        return True
    at = bisect_right(_UNSEEN_STARTS, ord(character)) - 1
    return at >= 0 and ord(character) <= _UNSEEN_RANGES[at][1]


def type_alone(self: object) -> str:
    """Return the name of a value's type, as `__repr__` of a class whose fields hold content."""
    return f"{type(self).__name__}()"
