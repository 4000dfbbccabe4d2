"""
What is recorded of a conversation, read back: as entries, as exchanges, the newest of them or page by page.

Reading is not what a model sees: parked exchanges, answers without an input and everything that no window has room for
are there; only what attempts took back is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec

from minutebook.errors import InvalidOption
from minutebook.model import codec
from minutebook.model.bounds import check_place
from minutebook.model.codec import JSON, reread
from minutebook.model.entries import ABANDONED, INPUT, RESULT, SUMMARY, Entry
from minutebook.model.pause import pause
from minutebook.policy.projection import unit_fragments
from minutebook.policy.standing import standing_entries
from minutebook.policy.window import Scan, with_entry
from minutebook.ports import STREAM_PAGE
from minutebook.record_reader import RecordReader
from minutebook.stores.streams import OneRecord, stream_pages

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from minutebook.history import History
    from minutebook.model.keys import ConversationKey
    from minutebook.model.record import Header
    from minutebook.model.units import Unit
    from minutebook.ports import Journal
    from minutebook.stores.journal import JournalStore

READ_AT_ONCE = 64
"""How many exchanges are read back before others get their turn."""


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange with the input that it answers, or an input without an answer, as it is read back."""

    seq: int
    """Where it stands: the `seq` of its response, or of the input that nothing answered."""
    turn: int
    wall: int
    """When it was recorded, in Unix milliseconds; order is by `seq` alone."""
    complete: bool
    """Whether every call has its result; windows leave out an exchange that waits."""
    json: bytes
    """Its wire messages as a JSON array; the turn's input first where this is the turn's first exchange."""

    @property
    def messages(self) -> list[dict[str, JSON]]:
        """The wire messages as Python values."""
        return cast("list[dict[str, JSON]]", reread(self.json))

    def __repr__(self) -> str:
        return f"Exchange({self.seq}, {len(self.json):,} bytes)"


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One retained entry that a search has found."""

    seq: int
    turn: int
    wall: int
    """When it was recorded, in Unix milliseconds."""
    json: bytes
    """What a window sends of it as JSON: a message, a part of one, or an array where it is several items."""

    @property
    def value(self) -> JSON:
        """The same as a Python value."""
        return reread(self.json)

    def __repr__(self) -> str:
        return f"Found({self.seq}, {len(self.json):,} bytes)"


class Reading:
    """The part of a conversation that reads: nothing here writes or reserves (promise I-25)."""

    store: JournalStore
    key: ConversationKey
    history: History

    async def entries(self, *, after: int = 0) -> AsyncIterator[Entry]:
        """
        Stream the entries above `after` that no attempt took back, with their metadata, oldest first.

        Memory is bounded by a page and a turn. What failed attempts left behind is in `store.entries(key)`.

        Raises:
            DecisionHistoryAbsent: the conversation was deleted or has expired meanwhile.
        """
        check_place(after, "after")
        async for turns in self._turns(await self.history.header(), after):
            for entry in turns:
                yield entry

    async def _turns(self, header: Header | None, after: int) -> AsyncIterator[list[Entry]]:
        """
        Stream the standing entries, as many whole turns at once as a page ends.

        A turn is whole where the next one's input comes: its own marks have come before that.
        """
        waiting = header.state.turn if header and header.state.unanswered and header.attempt is None else 0
        turn: list[Entry] = []
        async for page in stream_pages(self.store.journal, self.key, header, after):
            whole: list[Entry] = []
            for entry in page:
                kind = entry.kind
                if kind is INPUT:
                    whole += turn
                    turn = []
                if kind is ABANDONED:
                    turn = standing_entries((*turn, entry))
                elif entry.seq != waiting:
                    turn.append(entry)
            if whole:
                yield whole
        if turn:
            yield turn

    async def exchanges(self, *, after: int = 0) -> AsyncIterator[Exchange]:
        """
        Stream the exchanges above `after`, oldest first, in bounded memory.

        Raises:
            DecisionHistoryAbsent: the conversation was deleted or has expired meanwhile.
        """
        check_place(after, "after")
        header = await self.history.header()
        if header is None:
            return
        async for turns in self._turns(header, after):
            scan = Scan(header, below=turns[-1].seq + 1, reading=True)
            scan.add(reversed(turns))
            for position in reversed(range(len(scan.units))):
                unit = scan.units[position]
                if _lacks_results(unit):
                    unit = await self._with_late_results(unit, header)
                yield self._exchange(unit, scan, position)

    async def search(self, text: str) -> AsyncIterator[Found]:
        """
        Stream the retained entries in which a text stands, oldest first, whatever left the window since.

        What counts is what a window sends of an entry: its texts, without a difference of case, and no names of fields.
        Linear in the record, in memory that one turn bounds.

        Raises:
            InvalidOption: an empty text.
            DecisionHistoryAbsent: the conversation was deleted or has expired meanwhile.
        """
        sought = codec.text(text, "text").casefold()
        if not sought:
            raise InvalidOption("search for a text; an empty one is everywhere", option="text")
        read = 0
        async for entry in self.entries():
            read += 1
            if read % READ_AT_ONCE == 0:
                await pause()
            if entry.kind is SUMMARY:
                continue  # what it tells stands in the record itself
            fragment = entry.fragment
            items = b"[%b]" % fragment
            value = cast("list[JSON]", reread(items))
            if _holds(value, sought):
                yield Found(
                    seq=entry.seq, turn=entry.turn, wall=entry.wall, json=fragment if len(value) == 1 else items
                )

    async def last(self, count: int | None = None) -> list[Exchange]:
        """Return the newest `count` exchanges in order; all with `None`, none with 0 (case O-40). Raises as `page`."""
        return await self.page(limit=count)

    async def page(self, *, before: int = 0, after: int | None = None, limit: int | None = 50) -> list[Exchange]:
        """
        Return up to `limit` exchanges in order: the newest, those before a `seq`, or those after one (0: the oldest).

        Paging by the `seq` of a page's first or last exchange meets each exchange once, also while others come in.

        Raises:
            DecisionHistoryAbsent: the conversation was deleted or has expired meanwhile.
        """
        if limit is not None and (type(limit) is not int or limit < 0):
            raise InvalidOption("limit must be an int of at least 0, or None for all", option="limit")
        check_place(before, "before")
        if after is not None:
            check_place(after, "after")
        if before and after is not None:
            raise InvalidOption("page before a seq or after one, not both", option="before")
        if after is not None:
            return await self._page_after(after, limit) if limit != 0 else []
        journal = self._one_record()
        header = self.history.checked(await journal.header(self.key))
        if header is None or limit == 0:
            return []
        reader = RecordReader(journal, self.key)
        answered = (await reader.entry(before)).turn if header.cut.seq < before <= header.entries else 0
        scan = Scan(header, below=before, answered=answered, reading=True)

        def done() -> bool:
            return scan.exhausted or (limit is not None and len(scan.units) > limit)

        await reader.read_until(done, header, scan, STREAM_PAGE)
        found: list[Exchange] = []
        for position in reversed(range(len(scan.units))[:limit]):
            unit = await self._with_late_results(scan.units[position], header)
            found.append(self._exchange(unit, scan, position))
            if len(found) % READ_AT_ONCE == 0:
                await pause()
        return found

    def _one_record(self, header: Header | None = None) -> Journal:
        """Return the journal for one reading: every page is of the record of `header`, or that it first found."""
        return cast("Journal", OneRecord(self.store.journal, header))

    async def _page_after(self, after: int, limit: int | None) -> list[Exchange]:
        found: list[Exchange] = []
        async for exchange in self.exchanges(after=after):
            found.append(exchange)
            if len(found) == limit:
                break
        return found

    def _exchange(self, unit: Unit, scan: Scan, position: int) -> Exchange:
        """Return what is read of the unit that stands at `position` of the scan."""
        units, turn = scan.units, unit.turn
        older = units[position + 1].turn if position + 1 < len(units) else 0
        said = reversed(scan.inputs.get(turn, ())) if turn != older else ()
        messages = [fragment for entry in said if (fragment := entry.fragment)]
        messages += unit_fragments(unit, self.history.wire)
        response = unit.entries[0] if unit.entries else None
        return Exchange(
            seq=unit.key,
            turn=turn,
            wall=response.wall if response else scan.inputs[turn][-1].wall,
            complete=response is not None and not _lacks_results(unit),
            json=b"[%b]" % b",".join(messages),
        )

    async def _with_late_results(self, unit: Unit, header: Header) -> Unit:
        """Add the results of a parked call that came after later turns; found by reading on, and seldom needed."""
        if not _lacks_results(unit):
            return unit
        here = {entry.call for entry in unit.entries if entry.kind is RESULT}
        waiting = next((waits.waiting for waits in header.state.open if waits.exchange == unit.key), ())
        missing = set(range(len(unit.entries[0].calls))) - here - set(waiting)
        if not missing:
            return unit
        async for turns in self._turns(header, unit.entries[-1].seq):
            for entry in turns:
                if entry.kind is RESULT and entry.exchange == unit.key and entry.call in missing:
                    unit = with_entry(unit, entry)
                    missing.discard(entry.call)
            if not missing:
                break
        return unit

    async def _entry(self, header: Header, seq: int) -> Entry:
        """Return one entry of the conversation that `header` describes."""
        return await RecordReader(self._one_record(header), self.key).entry(seq)


def _holds(value: JSON, sought: str) -> bool:
    """Return whether a text stands in one of the texts of a value."""
    ahead: list[JSON] = [value]
    while ahead:
        each = ahead.pop()
        if isinstance(each, str):
            if sought in each.casefold():
                return True
        elif isinstance(each, list):
            ahead += each
        elif isinstance(each, dict):
            ahead += each.values()
    return False


def _lacks_results(unit: Unit) -> bool:
    """Return whether the unit has another number of results than of calls."""
    entries = unit.entries
    calls = len(entries[0].calls) if entries else 0
    return len([entry for entry in entries if entry.kind is RESULT]) != calls
