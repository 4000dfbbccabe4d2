"""
What every journal must do: the checks for authors of a backend.

A check is a function of a `Lab`; its docstring is the rule that it proves. They run in the table's order, each on fresh
journals, so that one failure does not hide another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minutebook.testing.conformance.journals_bounds import (
    closes_quietly,
    compares_ids_exactly,
    expires_as_one,
    last_byte_has_one_winner,
    lists_by_code_points,
    lists_nothing_expired,
    refuses_when_full,
    removes_what_expired,
)
from minutebook.testing.conformance.journals_cut import (
    answers_for_what_left,
    cuts_inside_a_commit,
    cuts_the_oldest,
    frees_what_was_cut,
    goes_on_behind_a_cut,
    refuses_a_cut_whole,
)
from minutebook.testing.conformance.journals_owner import (
    deletes_for_good,
    excludes_others,
    fences_the_old_holder,
    keeps_no_blank_record,
    one_of_many_wins,
    recovers_once,
    survives_cancellation,
    tells_a_new_record_from_the_old_one,
)
from minutebook.testing.conformance.journals_record import (
    answers_by_commit_as_it_reads,
    finds_receipts,
    keeps_the_digest_chain,
    leaves_out_a_known_tail,
    pages_as_asked,
    reads_back_what_was_written,
    reads_change_nothing,
    refuses_first_write_whole,
    refuses_whole,
    replays_the_first_receipt,
    takes_a_record_with_its_receipts,
)
from minutebook.testing.conformance.lab import Lab
from minutebook.testing.conformance.report import Report, check_name, run_check

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from minutebook.testing.conformance.lab import JournalFactory

__all__ = ["JOURNAL_CHECKS", "check_journal"]


JOURNAL_CHECKS: tuple[Callable[[Lab], Awaitable[None]], ...] = (
    reads_back_what_was_written,
    keeps_the_digest_chain,
    answers_by_commit_as_it_reads,
    reads_change_nothing,
    pages_as_asked,
    leaves_out_a_known_tail,
    finds_receipts,
    refuses_whole,
    refuses_first_write_whole,
    replays_the_first_receipt,
    takes_a_record_with_its_receipts,
    cuts_the_oldest,
    cuts_inside_a_commit,
    goes_on_behind_a_cut,
    answers_for_what_left,
    refuses_a_cut_whole,
    frees_what_was_cut,
    excludes_others,
    fences_the_old_holder,
    recovers_once,
    keeps_no_blank_record,
    deletes_for_good,
    tells_a_new_record_from_the_old_one,
    one_of_many_wins,
    survives_cancellation,
    compares_ids_exactly,
    lists_by_code_points,
    refuses_when_full,
    last_byte_has_one_winner,
    expires_as_one,
    removes_what_expired,
    lists_nothing_expired,
    closes_quietly,
)
"""Every check, in the order of the report."""


async def check_journal(
    factory: JournalFactory,
    *,
    bounded: bool = True,
    expiring: bool = True,
    listing: bool = True,
    only: Callable[[Lab], Awaitable[None]] | None = None,
) -> Report:
    """
    Prove a journal: `factory(bounds, clock)` gives a fresh and empty one, as often as it is asked.

    Say `bounded=False`, `expiring=False` or `listing=False` where the store leaves that to somebody else; what a check
    needs and cannot have is told as skipped. `only` runs one check. Needs asyncio.
    """
    outcomes = [
        await run_check(_on_a_lab(check, factory, bounded, expiring, listing), check_name(check), _rule(check))
        for check in ((only,) if only else JOURNAL_CHECKS)
    ]
    return Report(tuple(outcomes))


def _on_a_lab(
    check: Callable[[Lab], Awaitable[None]], factory: JournalFactory, bounded: bool, expiring: bool, listing: bool
) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        lab = Lab(factory, bounded=bounded, expiring=expiring, listing=listing)
        try:
            await check(lab)
        finally:
            await lab.close()

    return run


def _rule(check: Callable[..., object]) -> str:
    return (check.__doc__ or "").strip()
