"""
How much a run spends on a promise: seconds under `make test`, what the promise names under `make prove`.

`budget` is the one way to scale a test, so that `tests/prove.py` can tell which tests do and say of the others nothing.
"""

import os
from typing import TypeVar

T = TypeVar("T")

PROVE = os.environ.get("MINUTEBOOK_PROVE") == "1"
"""Whether this is the long run. Beside `budget` only time limits and hypothesis' own seeds look at it."""


def budget(usual: T, long: T) -> T:
    """Return how much to try: what `make test` has time for, or all of it."""
    return long if PROVE else usual
