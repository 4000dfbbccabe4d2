"""
A log read page by page, and never a page of another conversation.

Nothing is held between two pages, so a conversation may be deleted meanwhile, and another one made under its key. Each
page is therefore given out only after a look at the header: what was the same conversation before a page was read and
still is afterwards was so in between, since none comes back once it is deleted. Nor is a log given with a hole where a
cut took what comes next (SPEC E6).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from minutebook.errors import DecisionHistoryAbsent, DecisionHistoryCorrupt
from minutebook.model.cuts import has_left
from minutebook.model.entries import damaged
from minutebook.model.pause import pause
from minutebook.model.proof import Proof, check_links, followed
from minutebook.ports import ONE_ENTRY, STREAM_PAGE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator

    from minutebook.model.entries import Entry
    from minutebook.model.keys import ConversationKey
    from minutebook.model.record import Header, Receipt
    from minutebook.ports import Journal, Listing, Page


async def standing(journal: Journal, key: ConversationKey, before: Header) -> Header:
    """
    Return the present header of the conversation that `before` describes; one small read.

    Raises:
        DecisionHistoryAbsent: it was deleted or has expired, whether or not another one has its key now.
    """
    now = await journal.header(key)
    if now is None or now.birth != before.birth:
        raise DecisionHistoryAbsent("the conversation was deleted or expired while it was read")
    return now


class OneRecord:
    """
    The reading side of a journal, for one reading of one conversation: its pages are of the header it gave first.

    What needs no page, since it is remembered, costs nothing more.
    """

    def __init__(self, journal: Journal, header: Header | None = None) -> None:
        """Begin with `header`, or with the next one that is asked for."""
        self._journal = journal
        self._header = header

    async def header(self, key: ConversationKey) -> Header | None:
        """See `Journal.header`."""
        header = await self._journal.header(key)
        self._header = self._header or header
        return header

    async def newest(self, key: ConversationKey, before: int, page: Page) -> tuple[Entry, ...]:
        """See `Journal.newest`. Raises as `standing`."""
        entries = await self._journal.newest(key, before, page)
        # A chain's digest is bound to its record: a page that ends with the one in the header needs no second look.
        if not entries or self._header is None or entries[0].digest != self._header.digest:
            await self._check(key)
        return entries

    async def oldest(self, key: ConversationKey, after: int, page: Page) -> tuple[Entry, ...]:
        """See `Journal.oldest`. Raises as `standing`."""
        entries = await self._journal.oldest(key, after, page)
        await self._check(key)
        return entries

    async def _check(self, key: ConversationKey) -> None:
        if self._header is not None:
            self._header = await standing(self._journal, key, self._header)


async def stream_pages(
    journal: Journal, key: ConversationKey, header: Header | None, after: int = 0
) -> AsyncIterator[tuple[Entry, ...]]:
    """
    Stream the entries above `after` that `header` counts of its conversation, oldest first, page by page.

    What is recorded meanwhile is not among them: else whoever adds to what is read would never come to an end. A step
    of a stream costs as much as an entry does, so whoever reads much of a record reads it in pages. The last entry of a
    page waits for the next one, which proves it; the last of the record is held to the header.

    Raises:
        DecisionHistoryAbsent: it was deleted or has expired meanwhile, or what comes next has left the record.
        DecisionHistoryCorrupt: an entry is missing, or is not what was written.
    """
    after, end = (max(after, header.cut.seq), header.entries) if header is not None else (after, 0)
    before: tuple[Entry, ...] = ()
    waiting: tuple[Entry, ...] = ()
    if header is not None and after > header.cut.seq:
        before = await journal.oldest(key, after - 1, ONE_ENTRY)
    while header is not None and header.version:
        page = await journal.oldest(key, after, STREAM_PAGE)
        counted, header = header.entries, await standing(journal, key, header)
        if header.cut.seq > after and not (page and page[0].seq == after + 1):
            raise has_left(after + 1, header)
        if not page and after < counted:
            raise damaged(after + 1, "is missing")
        if not page:
            return
        # Where the entry before has just left, the anchor stands for it.
        check_links(key, (*[entry for entry in before if entry.seq == after], *page), header.cut)
        read = (*waiting, *page)
        told = followed(header, read)
        counts = tuple(entry for entry in told if entry.seq <= end)
        if counts:
            yield counts
        if told and told[-1].seq >= end:
            return
        before, waiting = page[-1:], read[len(told) :]
        after = page[-1].seq
        await pause()


async def stream_entries(
    journal: Journal, key: ConversationKey, header: Header | None, after: int = 0
) -> AsyncIterator[Entry]:
    """Stream the same entry by entry, in bounded memory. Raises as `stream_pages`."""
    async for page in stream_pages(journal, key, header, after):
        for entry in page:
            yield entry


async def stream_receipts(
    journal: Journal, key: ConversationKey, header: Header | None, after: int = 0
) -> AsyncIterator[Receipt]:
    """
    Stream the receipts of the versions above `after`, as `stream_entries` does the entries.

    Raises:
        DecisionHistoryAbsent: the conversation was deleted or has expired meanwhile.
    """
    end = header.version if header is not None else 0
    while header is not None and after < end:
        page = await journal.receipts(key, after, min(STREAM_PAGE.rows, end - after))
        header = await standing(journal, key, header)
        if not page:
            return
        for receipt in page:
            yield receipt
        after = page[-1].version
        await pause()


_LISTED = 500


async def stream_listings(
    journal: Journal, namespace: str, after: str = ""
) -> AsyncIterator[Listing | DecisionHistoryCorrupt]:
    """
    Yield the conversations of a namespace by id, and in the place of a damaged one the error that names it (case O-44).

    Raises:
        DecisionHistoryCorrupt: damage that no id can be given for.
    """
    rows, met = _LISTED, ""
    while True:
        try:
            page = await journal.list(namespace, after, rows)
        except DecisionHistoryCorrupt as damage:
            if damage.id is None or damage.good_records is None:
                raise
            if damage.good_records and damage.id != met:
                rows, met = damage.good_records, damage.id  # first what comes before it
            else:
                yield damage
                after, rows, met = damage.id, _LISTED, ""
            continue
        if not page and rows == _LISTED:
            return
        for listing in page:
            yield listing
            after, met = listing.key.id, ""
        rows = _LISTED


@contextmanager
def named_in_listing(key: ConversationKey, good_records: int) -> Generator[None, None, None]:
    """Name the conversation that is about to be listed in what is raised about its damage; not in the message."""
    try:
        yield
    except DecisionHistoryCorrupt as error:
        named = DecisionHistoryCorrupt(str(error), **error.facts, good_records=good_records)
        named.id = key.id  # and no fact: those are logged
        raise named from error.__cause__


async def stream_proved(journal: Journal, key: ConversationKey, header: Header) -> AsyncIterator[Entry | Receipt]:
    """
    Stream the record that `header` describes, each entry and receipt once it is proved: a receipt behind its entries.

    Whoever reads it to its end has proved all of it, the header's counters too (SPEC B8).

    Raises:
        DecisionHistoryCorrupt: the first entry or receipt that is not what was written; `seq` names it.
        DecisionHistoryAbsent: the conversation was deleted or has expired meanwhile, or what comes next was cut.
    """
    proof = Proof(key, header)
    entries = stream_entries(journal, key, header)
    async for receipt in stream_receipts(journal, key, header):
        if receipt.version > header.version:
            break
        while proof.seq < min(receipt.last, header.entries):
            entry = await anext(entries, None)
            if entry is None:
                break
            proof.take_entry(entry)
            yield entry
        proof.take_receipt(receipt)
        yield receipt
    proof.close()
