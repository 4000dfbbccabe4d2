"""
The suite that a store of your own has to pass: for a `Journal`, and for a host's own `Store` (SPEC D24).

    report = await check_journal(fresh)     # `async def fresh(bounds, clock) -> Journal`
    assert report.passed, report

Under pytest one import gives one test for each check:

    class TestMyJournal(JournalConformance):
        async def fresh(self, bounds, clock):
            return MyJournal(connect(), bounds, clock=clock)

Every check gets a store of its own from the factory, empty and with the bounds and the clock that it asks for. What a
store leaves to somebody else (its bounds, expiry, listing) is said by an option and told as skipped, with the reason.
A failure names the rule and the numbers, never content. The checks run under asyncio; a blocking journal is welcome.
"""

from minutebook.testing.conformance.journals import JOURNAL_CHECKS, check_journal
from minutebook.testing.conformance.report import Outcome, Report
from minutebook.testing.conformance.stores import STORE_CHECKS, check_store
from minutebook.testing.conformance.suites import JournalConformance, StoreConformance

__all__ = [
    "JOURNAL_CHECKS",
    "STORE_CHECKS",
    "JournalConformance",
    "Outcome",
    "Report",
    "StoreConformance",
    "check_journal",
    "check_store",
]
