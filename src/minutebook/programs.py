"""
Running programs: the runtime with the clock and the ids that it is given from outside.

The runtime itself imports neither, so that every failure replays; a host that has no wish of its own gets them here.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, TypeVar

from minutebook import runtime

if TYPE_CHECKING:
    from collections.abc import Callable

    from minutebook.ports import DecisionProvider, Random
    from minutebook.runtime import Program

T = TypeVar("T")


def fresh_id() -> str:
    """Return an unguessable id."""
    return secrets.token_hex(16)


class Runtime(runtime.Runtime[T]):
    """
    Runs a program with the decisions of a provider. It holds no state of a run: runs may overlap.

    Args:
        program: what may be done.
        provider: who decides what to do.
        fresh_id: gives the ids of runs and invocations that are not named.
        monotonic_ns: gives nanoseconds as an int, for the budget of wall time.

    Raises:
        InvalidOption: `program` is none.
    """

    def __init__(
        self,
        program: Program[T],
        provider: DecisionProvider,
        *,
        fresh_id: Random = fresh_id,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__(program, provider, fresh_id=fresh_id, monotonic_ns=monotonic_ns)
