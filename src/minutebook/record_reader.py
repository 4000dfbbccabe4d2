"""
Entries of one conversation, read from a journal and proved as they are read for the first time.

A row that decodes may have been altered. So each entry is seen to follow from the one before it before anything is made
of it; what a process remembers was proved once and is not looked at again (promise I-39).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, Protocol

from minutebook.errors import DecisionHistoryAbsent, DecisionHistoryCorrupt
from minutebook.model.cuts import has_left
from minutebook.model.entries import ABANDONED, INPUT
from minutebook.model.pause import pause
from minutebook.model.proof import check_links, followed, proved
from minutebook.ports import ONE_ENTRY, Page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from minutebook.model.entries import Entry
    from minutebook.model.keys import ConversationKey
    from minutebook.model.record import Cut, Header
    from minutebook.ports import Journal

_THREE = Page(rows=3)


class Scanning(Protocol):
    """What takes entries newest first, and knows from where it reads on."""

    @property
    def next_seq(self) -> int:
        """The `seq` to read on from, downwards."""
        ...

    def add(self, entries: Iterable[Entry], /) -> None:
        """Take the next entries, newest first and without a gap."""
        ...


class RecordReader:
    """Reads one conversation. Whatever is missing, altered or gone meanwhile is refused by name."""

    def __init__(self, journal: Journal, key: ConversationKey) -> None:
        """Name what is read; nothing is read yet."""
        self._journal = journal
        self._key = key

    async def entry(self, seq: int) -> Entry:
        """
        Return one entry, proved by its neighbours: by the one before it, and by the next one or else the header.

        Raises:
            DecisionHistoryCorrupt: it is missing, or is not what was written.
            DecisionHistoryAbsent: the conversation was deleted or has expired meanwhile.
        """
        near = await self._near(seq)
        if near[-1].seq == seq:  # none was behind it: what the header counts by now is there, or has to be
            header = await self._journal.header(self._key) or await self.refuse_missing(seq)
            near = await self._near(seq) if header.entries > seq else near
            if near[-1].seq == seq < header.entries:
                await self.refuse_missing(seq + 1)
            if header.entries <= seq:
                followed(header, near)
        return next(entry for entry in near if entry.seq == seq)

    async def is_taken_out(self, place: int, after: int, header: Header) -> bool:
        """
        Return whether a mark behind `after` took out the entry `place`, which no later turn's mark does.

        Costs what is recorded up to the next input. Raises as `entry`.
        """
        for seq in range(after + 1, header.entries + 1):
            entry = await self.entry(seq)
            if entry.kind is ABANDONED and entry.exchange <= place <= entry.call:
                return True
            if entry.kind is INPUT:
                break
        return False

    async def _near(self, seq: int) -> Sequence[Entry]:
        """Return an entry and its neighbours, as far as they are there, each proved by the one before it."""
        page = await self._journal.oldest(self._key, max(seq - 2, 0), _THREE)
        near = [entry for entry in page if seq - 1 <= entry.seq <= seq + 1]
        places = {entry.seq for entry in near}
        if seq not in places:
            await self.refuse_missing(seq)
        begins: Cut | None = None
        if seq > 1 and seq - 1 not in places and not (begins := await self._begins_behind(seq - 1)):
            await self.refuse_missing(seq - 1)
        check_links(self._key, near, begins)
        return near

    async def _begins_behind(self, seq: int) -> Cut | None:
        """Return where the record begins, if that is right behind the entry `seq`."""
        header = await self._journal.header(self._key)
        return header.cut if header is not None and header.cut.seq == seq else None

    async def read_on(self, header: Header, scan: Scanning, page: Page) -> Sequence[Entry]:
        """Have a scan take the next entries, about a page of them, and return them. Raises as `entry`."""
        before = scan.next_seq + 1
        entries = await self._journal.newest(self._key, before, page)
        if len(entries) == 1 < entries[0].seq:  # a page of one entry holds none that could prove it
            entries += await self._journal.newest(self._key, entries[0].seq, ONE_ENTRY)
        found = proved(self._key, header, entries) or await self.refuse_missing(before - 1)
        if before <= header.entries:  # the scan may have passed over what a mark took back, and with it the next entry
            behind = await self._journal.oldest(self._key, before - 1, ONE_ENTRY)
            if [entry.seq for entry in behind] != [before]:
                await self.refuse_missing(before)
            check_links(self._key, (found[0], *behind))
        scan.add(found)
        return found

    async def read_until(self, done: Callable[[], bool], header: Header, scan: Scanning, page: Page) -> None:
        """Have a scan take entries page by page until `done`; what else is ready runs in between. Raises as `entry`."""
        while not done():
            await self.read_on(header, scan, page)
            await pause()

    async def refuse_missing(self, seq: int) -> NoReturn:
        """Say why an entry is not there: what is read without a reservation may be gone by now."""
        header = await self._journal.header(self._key)
        if header is None:
            raise DecisionHistoryAbsent("the conversation was deleted or expired while it was read")
        if header.cut.seq >= max(seq - 1, 1):  # also where only the one that would prove it has left
            raise has_left(seq, header)
        raise DecisionHistoryCorrupt(f"entry {seq} is missing from the record; verify the store", seq=seq)
