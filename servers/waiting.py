"""How long a server is waited for, and for what."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

PATIENCE_SECONDS = 60


def until(fact: Callable[[], Any], what: str) -> Any:
    """Ask until something is so, and return it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        with contextlib.suppress(Exception):
            if value := fact():
                return value
        if time.monotonic() > deadline:
            raise AssertionError(f"in {PATIENCE_SECONDS} s: {what}")
        time.sleep(0.02)
