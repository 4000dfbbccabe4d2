"""Time that moves only when a test says so; what a store is given in place of the system's clock."""

from __future__ import annotations

__all__ = ["FrozenClock"]

_START = 1_800_000_000_000


class FrozenClock:
    """A clock that stands still: calling it gives Unix milliseconds, as every store's `clock` does."""

    def __init__(self, wall_ms: int = _START) -> None:
        """Stand at `wall_ms`."""
        self.wall_ms = wall_ms

    def __call__(self) -> int:
        """Return the present as Unix milliseconds."""
        return self.wall_ms

    def advance(self, ms: int) -> None:
        """Let `ms` milliseconds pass."""
        self.wall_ms += ms

    def set_back(self, ms: int) -> None:
        """Set the clock back by `ms` milliseconds, as an operator or a time server does."""
        self.wall_ms -= ms

    def jump(self, wall_ms: int) -> None:
        """Stand at `wall_ms` from now on; a time that no store accepts may be given on purpose."""
        self.wall_ms = wall_ms

    def __repr__(self) -> str:
        return f"FrozenClock({self.wall_ms})"
