"""The one place where the core lets others run: a bare suspension that every driver understands."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator


@types.coroutine
def pause() -> Generator[None, None, None]:
    """
    Suspend once without waiting for anything, so that a long read does not hold an event loop (case O-38).

    A loop runs what else is ready and comes back; a blocking driver goes on at once.
    """
    yield
