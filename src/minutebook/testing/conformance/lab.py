"""Where the checks of a journal work: fresh journals, a clock, and how a refusal is looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minutebook.errors import MinutebookError
from minutebook.model.bounds import StoreBounds
from minutebook.testing.clock import FrozenClock
from minutebook.testing.conformance.report import Skipped, expect

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeAlias

    from minutebook.ports import Journal

    JournalFactory: TypeAlias = Callable[[StoreBounds, FrozenClock], Awaitable[Journal]]

WORKERS = 16
"""How many call at once where one of them has to win."""


class Lab:
    """Where a check works: it makes journals, and knows what this kind of journal leaves to somebody else."""

    def __init__(self, factory: JournalFactory, *, bounded: bool, expiring: bool, listing: bool) -> None:
        """Take what `check_journal` was given."""
        self._factory = factory
        self._bounded = bounded
        self.expiring = expiring
        self._listing = listing
        self._opened: list[Journal] = []
        self.clock = FrozenClock()

    async def journal(
        self,
        *,
        max_sessions: int | None = None,
        max_bytes: int | None = None,
        max_retained_bytes: int | None = None,
        ttl_ms: int | None = None,
    ) -> Journal:
        """Return a fresh journal with these bounds."""
        if not self._bounded and (max_sessions or max_bytes):
            raise Skipped("this store's bounds are kept by somebody else")
        if not self.expiring and ttl_ms:
            raise Skipped("this store's expiry is kept by somebody else")
        bounds = StoreBounds(
            max_sessions=max_sessions, max_bytes=max_bytes, max_retained_bytes=max_retained_bytes, ttl_ms=ttl_ms
        )
        journal = await self._factory(bounds, self.clock)
        self._opened.append(journal)
        return journal

    def needs_listing(self) -> None:
        """Leave the check where the store cannot name its conversations."""
        if not self._listing:
            raise Skipped("this store cannot list")

    async def close(self) -> None:
        """Close what the check opened."""
        for journal in self._opened:
            await journal.close()


async def refused(call: Awaitable[object], error: type[MinutebookError], what: str) -> MinutebookError:
    """See that `call` is refused with exactly `error`, and return it."""
    try:
        await call
    except MinutebookError as raised:
        expect(type(raised) is error, f"{what}: {raised.code} instead of {error.__name__}")
        return raised
    expect(False, f"{what}: nothing was refused; {error.__name__} is the rule")
    raise AssertionError
