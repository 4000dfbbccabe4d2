"""
The suite as pytest classes: one test for each check. pytest itself is imported when a check has to be skipped.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

from minutebook.testing.conformance.journals import JOURNAL_CHECKS, check_journal
from minutebook.testing.conformance.stores import STORE_CHECKS, check_store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from minutebook.model.bounds import StoreBounds
    from minutebook.ports import Journal, Store
    from minutebook.testing.clock import FrozenClock
    from minutebook.testing.conformance.report import Report

__all__ = ["JournalConformance", "StoreConformance"]


class JournalConformance:
    """Inherit under a name that begins with `Test`, and give `fresh`."""

    bounded: ClassVar[bool] = True
    """Whether the journal keeps `max_sessions` and `max_bytes` itself."""
    expiring: ClassVar[bool] = True
    """Whether the journal keeps `ttl_ms` itself."""
    listing: ClassVar[bool] = True
    """Whether the journal can list."""

    async def fresh(self, bounds: StoreBounds, clock: FrozenClock) -> Journal:
        """Return a fresh and empty journal with these bounds and this clock."""
        raise NotImplementedError("give `fresh`: a fresh and empty journal for each call")

    def run_one(self, check: Callable[..., Awaitable[None]]) -> Report:
        """Run one check on its own."""
        return asyncio.run(
            check_journal(self.fresh, bounded=self.bounded, expiring=self.expiring, listing=self.listing, only=check)
        )


class StoreConformance:
    """Inherit under a name that begins with `Test`, and give `fresh`."""

    async def fresh(self) -> Store:
        """Return a fresh and empty store."""
        raise NotImplementedError("give `fresh`: a fresh and empty store for each call")

    def run_one(self, check: Callable[..., Awaitable[None]]) -> Report:
        """Run one check on its own."""
        return asyncio.run(check_store(self.fresh, only=check))


def _test(check: Callable[..., Awaitable[None]]) -> Callable[[Any], None]:
    def test(self: JournalConformance | StoreConformance) -> None:
        (outcome,) = self.run_one(check).outcomes
        if outcome.state == "skipped":
            import pytest

            pytest.skip(outcome.reason)
        assert outcome.state == "passed", outcome.reason

    test.__name__ = f"test_{check.__name__}"
    test.__doc__ = check.__doc__
    return test


def _add_tests(suite: type, checks: Iterable[Callable[..., Awaitable[None]]]) -> None:
    for check in checks:
        setattr(suite, f"test_{check.__name__}", _test(check))


_add_tests(JournalConformance, JOURNAL_CHECKS)
_add_tests(StoreConformance, STORE_CHECKS)
