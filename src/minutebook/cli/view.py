"""
What `show` shows: what is retained of any record, entry by entry and exchange by exchange, and the requests made of it.

A record without exchanges is a log all the same: an engine's session, a checkpoint, a memory resource, or a message
that nothing has answered. What a mark takes out is shown too: an operator looks here when no window holds it any more.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

import msgspec

from minutebook.model.clock import MAX_WALL_MS
from minutebook.model.codec import JSON, reread
from minutebook.model.entries import Entry, Kind
from minutebook.model.receipts import decode_sent
from minutebook.model.shown import type_alone
from minutebook.model.summaries import read_summary
from minutebook.policy.standing import marks_over
from minutebook.ports import STREAM_PAGE, Page
from minutebook.record_reader import RecordReader
from minutebook.stores.streams import OneRecord, standing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from minutebook.model.record import Header, Receipt
    from minutebook.ports import Journal
    from minutebook.stores.journal import JournalStore


_RECEIPTS_AT_ONCE = 32


class Logged(msgspec.Struct, frozen=True, kw_only=True):
    """One entry that is retained, whatever record it is of."""

    seq: int
    kind: str
    turn: int
    recorded_ms: int
    bytes: int
    abandoned_by: int | None
    """The `seq` of the mark that took it out; `None` if it stands."""

    __repr__ = type_alone


class Retained(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange that is retained; one that is not complete waits for results, unless it was abandoned."""

    seq: int
    turn: int
    recorded_ms: int
    calls: int
    messages: int
    bytes: int
    complete: bool
    abandoned: bool
    in_last_request: bool


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request that was answered: what of the record it held, and its tokens."""

    answered_by: int
    from_seq: int
    to_seq: int
    messages: int
    bytes: int
    counted_tokens: int | None
    billed_tokens: int | None
    trimmed: bool
    """Whether older exchanges stayed out."""
    summary: int | None
    """The `seq` of the summary in their place."""


class Said(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one entry says: messages of the wire format or, where it holds none, a text."""

    seq: int
    kind: str
    abandoned_by: int | None = None
    messages: list[JSON] = []
    text: str = ""

    __repr__ = type_alone


LOG = ("seq", "kind", "turn", "recorded (UTC)", "bytes", "abandoned by")
RETAINED = ("seq", "turn", "recorded (UTC)", "calls", "messages", "bytes", "complete", "in last request")
SENT = ("answered by", "from seq", "to seq", "messages", "bytes", "counted tokens", "billed tokens", "left out")
"""The headings of the three tables."""


def log_row(row: Logged) -> tuple[object, ...]:
    """Return an entry as a row of its table."""
    return (row.seq, row.kind, row.turn, moment(row.recorded_ms), row.bytes, _or_blank(row.abandoned_by))


def retained_row(row: Retained) -> tuple[object, ...]:
    """Return an exchange as a row of its table."""
    complete = "abandoned" if row.abandoned else "yes" if row.complete else "waits"
    shown_last = "yes" if row.in_last_request else ""
    return (row.seq, row.turn, moment(row.recorded_ms), row.calls, row.messages, row.bytes, complete, shown_last)


def sent_row(row: Request) -> tuple[object, ...]:
    """Return a request as a row of its table."""
    summary = "" if row.summary is None else f", summary {row.summary}"
    left_out = f"older exchanges{summary}" if row.trimmed else ""
    return (*msgspec.structs.astuple(row)[:5], _or_blank(row.counted_tokens), _or_blank(row.billed_tokens), left_out)


def _or_blank(number: int | None) -> int | str:
    return "" if number is None else number


def moment(unix_ms: int) -> str:
    """Return a time as a person reads it, in UTC; one that no calendar has, of a damaged record, as its number."""
    if not 0 <= unix_ms < MAX_WALL_MS:
        return f"{unix_ms} ms"
    return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """The newest of what is retained, oldest first: its entries, its exchanges, and the requests that they answered."""

    entries: list[Entry]
    log: list[Logged]
    retained: list[Retained]
    sent: list[Request]

    __repr__ = type_alone


async def look(
    store: JournalStore,
    id: str,  # noqa: A002 - the field's standard word
    header: Header,
    last: int,
) -> Look:
    """
    Return the newest `last` exchanges with all that was recorded beside them; costs what it returns.

    Of a record without exchanges it is the newest `last` entries.

    Raises:
        DecisionHistoryCorrupt: an entry is missing, or is not what was written.
        DecisionHistoryAbsent: the conversation was deleted or has expired meanwhile.
    """
    entries = await _newest_entries(store, id, header, last)
    marks = marks_over(entries)
    exchanges = _exchanges(entries, marks)
    answers = await _newest_answers(store, id, header, exchanges[-1].response.seq) if exchanges else []
    await standing(store.journal, store.key(id), header)
    waiting = {waits.exchange for waits in header.state.open}
    return Look(
        entries=entries[::-1],
        log=[_logged(entry, marks) for entry in reversed(entries)],
        retained=[_row(exchange, waiting, answers[0] if answers else None) for exchange in reversed(exchanges)],
        sent=[_request(receipt) for receipt in reversed(answers)],
    )


class _Newest:
    """The entries from the newest down to where one exchange too many begins; a `Scanning`."""

    def __init__(self, header: Header, last: int) -> None:
        self.next_seq = header.entries
        self.entries: list[Entry] = []
        """Newest first."""
        self._in_exchanges = header.state.exchanges > 0
        self._begins = header.cut.seq
        self._left = last

    @property
    def whole(self) -> bool:
        """Whether nothing older is wanted."""
        return self._left < 0 or self.next_seq <= self._begins

    def add(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if self.whole or entry.seq > self.next_seq:
                continue
            self._left -= entry.kind is Kind.RESPONSE or not self._in_exchanges
            if self._left < 0:
                self._drop_what_is_older()
                return
            self.entries.append(entry)
            self.next_seq = entry.seq - 1

    def _drop_what_is_older(self) -> None:
        """Drop what ends the exchange that is one too many: its results, and the marks on it."""
        while self.entries[-1].kind in (Kind.RESULT, Kind.ABANDONED):
            self.entries.pop()


async def _newest_entries(store: JournalStore, id: str, header: Header, last: int) -> list[Entry]:  # noqa: A002
    """Return the entries of the newest `last` exchanges, newest first, proved as they are read."""
    reader = _reader(store, id, header)
    newest = _Newest(header, last)
    page = Page(rows=min(STREAM_PAGE.rows, 4 * last), messages=STREAM_PAGE.messages, size=STREAM_PAGE.size)
    await reader.read_until(lambda: newest.whole, header, newest, page)
    return newest.entries


def _reader(store: JournalStore, id: str, header: Header) -> RecordReader:  # noqa: A002
    return RecordReader(cast("Journal", OneRecord(store.journal, header)), store.key(id))


class _Exchange(msgspec.Struct, kw_only=True):
    response: Entry
    results: list[Entry]
    abandoned_at: int
    """The `seq` of the mark that took it out; 0 if it stands."""


def _exchanges(entries: list[Entry], marks: dict[int, int]) -> list[_Exchange]:
    """Return the exchanges among entries, newest first as those are: so late results are met before their response."""
    found: list[_Exchange] = []
    results: dict[int, list[Entry]] = {}
    for entry in entries:
        if entry.kind is Kind.RESULT:
            results.setdefault(entry.exchange, []).append(entry)
        elif entry.kind is Kind.RESPONSE:
            taken = marks.get(entry.seq, 0)
            found.append(_Exchange(response=entry, results=results.pop(entry.seq, []), abandoned_at=taken))
    return found


async def _newest_answers(store: JournalStore, id: str, header: Header, oldest: int) -> list[Receipt]:  # noqa: A002
    """Return the receipts of the requests that were answered at `oldest` or later, newest first."""
    found: list[Receipt] = []
    above = header.version
    while above > 0:
        below, above = above, max(0, above - _RECEIPTS_AT_ONCE)
        page = await store.journal.receipts(store.key(id), above, below - above)
        for receipt in sorted(page, key=lambda each: each.version, reverse=True):
            if receipt.last < oldest:
                return found
            if receipt.sent and receipt.version <= below:
                found.append(receipt)
    return found


def _logged(entry: Entry, marks: dict[int, int]) -> Logged:
    return Logged(
        seq=entry.seq,
        kind=entry.kind.name.lower(),
        turn=entry.turn,
        recorded_ms=entry.wall,
        bytes=len(entry.payload),
        abandoned_by=marks.get(entry.seq),
    )


def _row(exchange: _Exchange, waiting: set[int], newest: Receipt | None) -> Retained:
    entry = exchange.response
    return Retained(
        seq=entry.seq,
        turn=entry.turn,
        recorded_ms=entry.wall,
        calls=len(entry.calls),
        messages=entry.messages + sum(result.messages for result in exchange.results),
        bytes=len(entry.payload) + sum(len(result.payload) for result in exchange.results),
        complete=entry.seq not in waiting and not exchange.abandoned_at,
        abandoned=exchange.abandoned_at > 0,
        in_last_request=newest is not None and entry.seq not in waiting and _was_sent(exchange, newest),
    )


def _was_sent(exchange: _Exchange, newest: Receipt) -> bool:
    """
    Return whether the request that `newest` tells of held a complete exchange.

    A parked one inside the range was left out until its last result was there, an abandoned one after its mark.
    """
    sent = decode_sent(newest.sent)
    complete_at = max((result.seq for result in exchange.results), default=0)
    in_range = 0 < sent.first <= exchange.response.seq <= sent.last
    return in_range and complete_at < newest.last and not 0 < exchange.abandoned_at < newest.last


def _request(receipt: Receipt) -> Request:
    sent = decode_sent(receipt.sent)
    return Request(
        answered_by=receipt.last,  # results come before the response in one commit
        from_seq=sent.first,
        to_seq=sent.last,
        messages=sent.messages,
        bytes=sent.bytes,
        counted_tokens=sent.counted_tokens,
        billed_tokens=sent.billed_tokens,
        trimmed=sent.trimmed,
        summary=sent.summary or None,
    )


async def said_in(store: JournalStore, id: str, header: Header, found: Look) -> list[Said]:  # noqa: A002
    """Return what the entries say, and before them a summary that stands."""
    said = [_said(entry, row.abandoned_by) for entry, row in zip(found.entries, found.log, strict=True)]
    seq = header.state.summary
    if seq and seq < found.entries[0].seq:
        return [_said(await _reader(store, id, header).entry(seq), None), *said]
    return said


def _said(entry: Entry, abandoned_by: int | None) -> Said:
    kind = entry.kind.name.lower()
    if entry.kind is Kind.SUMMARY:
        return Said(seq=entry.seq, kind=kind, abandoned_by=abandoned_by, text=read_summary(entry).text)
    if entry.kind is Kind.ABANDONED:
        taken = f"entries {entry.exchange} to {entry.call}" if entry.exchange <= entry.call else "an attempt"
        text = f"{taken} abandoned, {entry.payload.decode()}"
        return Said(seq=entry.seq, kind=kind, abandoned_by=abandoned_by, text=text)
    items = cast("list[JSON]", reread(b"[%b]" % entry.fragment))
    text = "" if items else entry.payload.decode()
    return Said(seq=entry.seq, kind=kind, abandoned_by=abandoned_by, messages=items, text=text)


def lines_of(said: Iterable[Said]) -> Iterator[str]:
    """Yield what entries say, a line for each message; not yet safe to print."""
    for each in said:
        taken = f"abandoned by {each.abandoned_by}, " if each.abandoned_by else ""
        for told in map(_message, each.messages) if each.messages else (_text(each),):
            yield f"{each.seq:>6}  {taken}{told}"


def _text(said: Said) -> str:
    if said.kind == "abandoned":
        return f"mark: {said.text}"
    if said.kind == "summary" and not said.text:
        return "mark: no summary stands from here on"
    return f"{said.kind}: {said.text}"


def _message(item: JSON) -> str:
    """Return a message, or an item without a role, as its role or type and its text or JSON."""
    if not isinstance(item, dict):
        return msgspec.json.encode(item).decode()
    content = item.get("content")
    more = any(value not in (None, "", []) for name, value in item.items() if name not in ("role", "content"))
    if more or not isinstance(content, str):
        content = msgspec.json.encode({name: part for name, part in item.items() if name != "role"}).decode()
    return f"{item.get('role', item.get('type', ''))}: {content}"
