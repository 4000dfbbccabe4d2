"""
What a value with content shows of itself: its type's name, and nothing else (promise I-37).

A `repr` ends in logs, in tracebacks and in the messages of failed assertions. Classes whose fields may hold messages,
arguments, results or what was made of them take this for their `__repr__`; tests/faults/test_reprs.py finds one that
does not.
"""

from __future__ import annotations


def type_alone(self: object) -> str:
    """Return the name of a value's type, as `__repr__` of a class whose fields hold content."""
    return f"{type(self).__name__}()"
