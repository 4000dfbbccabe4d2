"""What `show` shows: the exchanges that are retained, and the requests that were made of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from minutebook.cli.terminal import shown
from minutebook.conversation import Conversation
from minutebook.model.clock import MAX_WALL_MS
from minutebook.model.entries import Kind
from minutebook.model.receipts import decode_sent
from minutebook.model.summaries import read_summary
from minutebook.ports import ONE_ENTRY, STREAM_PAGE, Page
from minutebook.providers.wire import FORMATS
from minutebook.stores.streams import standing

if TYPE_CHECKING:
    from minutebook.model.entries import Entry
    from minutebook.model.record import Header, Receipt
    from minutebook.stores.journal import JournalStore


_RECEIPTS_AT_ONCE = 32


class Retained(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange that is retained; one that is not complete waits for results, unless it was abandoned."""

    seq: int
    turn: int
    recorded: str
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


RETAINED = ("seq", "turn", "recorded (UTC)", "calls", "messages", "bytes", "complete", "in last request")
SENT = ("answered by", "from seq", "to seq", "messages", "bytes", "counted tokens", "billed tokens", "left out")
"""The headings of the two tables."""


def retained_row(row: Retained) -> tuple[object, ...]:
    """Return an exchange as a row of its table."""
    complete = "abandoned" if row.abandoned else "yes" if row.complete else "waits"
    shown_last = "yes" if row.in_last_request else ""
    return (row.seq, row.turn, row.recorded, row.calls, row.messages, row.bytes, complete, shown_last)


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


async def look(
    store: JournalStore,
    id: str,  # noqa: A002 - the field's standard word
    header: Header,
    last: int,
) -> tuple[list[Retained], list[Request]]:
    """Return the newest `last` exchanges and the requests that they answered, oldest first; costs what it returns."""
    exchanges = await _newest_exchanges(store, id, header, last)
    answers = await _newest_answers(store, id, header, exchanges[-1].response.seq) if exchanges else []
    await standing(store.journal, store.key(id), header)
    waiting = {waits.exchange for waits in header.state.open}
    rows = [_row(exchange, waiting, answers[0] if answers else None) for exchange in reversed(exchanges)]
    return rows, [_request(receipt) for receipt in reversed(answers)]


class _Exchange(msgspec.Struct, kw_only=True):
    response: Entry
    results: list[Entry]
    abandoned_at: int
    """The `seq` of the mark that took it out; 0 if it stands."""


async def _newest_exchanges(store: JournalStore, id: str, header: Header, last: int) -> list[_Exchange]:  # noqa: A002
    """Return the newest `last` exchanges, newest first: so a mark and late results are met before what they are of."""
    found: list[_Exchange] = []
    results: dict[int, list[Entry]] = {}
    marks: list[Entry] = []
    page = Page(rows=min(STREAM_PAGE.rows, 4 * last), messages=STREAM_PAGE.messages, size=STREAM_PAGE.size)
    before = header.entries + 1
    while entries := await store.journal.newest(store.key(id), before, page):
        for entry in entries:
            if entry.kind is Kind.ABANDONED:
                marks.append(entry)
            elif entry.kind is Kind.RESULT:
                results.setdefault(entry.exchange, []).append(entry)
            elif entry.kind is Kind.RESPONSE:
                # Its own mark came first of those that take it out.
                mark = next((mark.seq for mark in reversed(marks) if mark.exchange <= entry.seq <= mark.call), 0)
                found.append(_Exchange(response=entry, results=results.pop(entry.seq, []), abandoned_at=mark))
                if len(found) == last:
                    return found
        before = entries[-1].seq
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


def _row(exchange: _Exchange, waiting: set[int], newest: Receipt | None) -> Retained:
    entry = exchange.response
    return Retained(
        seq=entry.seq,
        turn=entry.turn,
        recorded=moment(entry.wall),
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


async def exchange_text(store: JournalStore, id: str, header: Header, last: int) -> list[str]:  # noqa: A002
    """Return what the newest messages say, one line each, safe for a terminal."""
    wire = next((name for name in FORMATS if header.format.startswith(name)), FORMATS[1])
    conversation = Conversation(store, id, format=wire)
    seq = header.state.summary
    summary = await store.journal.oldest(store.key(id), seq - 1, ONE_ENTRY) if seq else ()
    lines = [f"{seq:>6}  summary: {shown(read_summary(entry).text)}" for entry in summary]
    for exchange in await conversation.last(last):
        for message in exchange.messages:
            lines.append(f"{exchange.seq:>6}  {shown(str(message.get('role', message.get('type', ''))))}: ")
            lines[-1] += shown(exchange_summary(message))
    return lines


def exchange_summary(message: dict[str, Any]) -> str:
    """Return a message without its role, as one line of text or JSON."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    return msgspec.json.encode({name: part for name, part in message.items() if name != "role"}).decode()
