"""
The four wire formats, as pure functions on JSON bytes (SPEC C2). A format is loaded when it is first asked for.

A format knows what a message of its provider looks like: which side wrote it, which calls a response makes, what
answers them, and which slice of a raw response goes back to the provider. It opens no connection and imports no SDK.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from minutebook.errors import InvalidOption

if TYPE_CHECKING:
    from minutebook.ports import Wire

__all__ = ["FORMATS", "wire_format"]

FORMATS: Final = ("openai-responses", "openai-chat", "anthropic", "gemini")
"""The names that a conversation may give."""


def wire_format(name: object) -> Wire:
    """
    Return the wire format called `name`, one of `FORMATS`.

    Raises:
        InvalidOption: there is no such format.
    """
    if name not in FORMATS:
        shown = repr(name) if isinstance(name, str) and len(name) <= 40 else type(name).__name__
        raise InvalidOption(f"format must be one of {', '.join(FORMATS)}, not {shown}", option="format")
    module = import_module(f"{__name__}.{str(name).replace('-', '_')}")
    wire: Wire = module.WIRE
    return wire
