"""
The wall clock that a store has unless its host gives another one.

It stands here and not in the model: below the stores nothing reads a clock, so that every run replays.
"""

from __future__ import annotations

import time


def system_clock() -> int:
    """Return the system's wall time as Unix milliseconds."""
    return time.time_ns() // 1_000_000
