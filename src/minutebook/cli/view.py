"""What `show` shows: the exchanges that are retained, and the requests that were made of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from minutebook.cli.terminal import shown
from minutebook.conversation import Conversation
from minutebook.model.entries import Kind
from minutebook.model.receipts import Sent, decode_sent
from minutebook.providers.wire import FORMATS

if TYPE_CHECKING:
    from minutebook.model.entries import Entry
    from minutebook.model.record import Header, Receipt
    from minutebook.stores.journal import JournalStore


class Retained(msgspec.Struct, kw_only=True):
    """One exchange that is retained."""

    seq: int
    turn: int
    recorded: str
    calls: int
    messages: int
    bytes: int
    complete: str
    in_last_request: str


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request that was answered: what of the record it held, and its tokens."""

    answered_by: int
    from_seq: int
    to_seq: int
    messages: int
    bytes: int
    counted_tokens: int | None
    billed_tokens: int | None
    left_out: str


def columns(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the headings of a table of such values."""
    return tuple(name.replace("_", " ") for name in kind.__struct_fields__)


def cells(value: msgspec.Struct) -> tuple[object, ...]:
    """Return a value as a row of its table."""
    return tuple("" if each is None else each for each in msgspec.structs.astuple(value))


def moment(unix_ms: int) -> str:
    """Return a time as a person reads it, in UTC."""
    return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


async def retained(store: JournalStore, id: str, header: Header, last: int) -> list[Retained]:  # noqa: A002
    """Return the newest `last` exchanges, oldest first, with whether the last request held them."""
    sent = await last_sent(store, id)
    waiting = {waits.exchange for waits in header.state.open}
    marks: list[Entry] = []
    rows: dict[int, Retained] = {}
    async for entry in store.entries(store.key(id)):
        if entry.kind is Kind.ABANDONED:
            marks.append(entry)
        elif entry.kind is Kind.RESPONSE:
            rows[entry.seq] = _row(entry, waiting, sent)
        elif entry.kind is Kind.RESULT and entry.exchange in rows:
            rows[entry.exchange].messages += entry.messages
            rows[entry.exchange].bytes += len(entry.payload)
    for mark in marks:
        for seq in range(mark.exchange, mark.call + 1):
            if seq in rows:
                rows[seq].complete = "abandoned"
                rows[seq].in_last_request = ""
    return list(rows.values())[-last:]


def _row(entry: Entry, waiting: set[int], sent: Sent) -> Retained:
    return Retained(
        seq=entry.seq,
        turn=entry.turn,
        recorded=moment(entry.wall),
        calls=len(entry.calls),
        messages=entry.messages,
        bytes=len(entry.payload),
        complete="waits" if entry.seq in waiting else "yes",
        in_last_request="yes" if sent.first and sent.first <= entry.seq <= sent.last else "",
    )


async def last_sent(store: JournalStore, id: str) -> Sent:  # noqa: A002
    """Return the newest request that a receipt tells of."""
    newest = Sent()
    async for receipt in store.receipts(store.key(id)):
        if receipt.sent:
            newest = decode_sent(receipt.sent)
    return newest


async def requests(store: JournalStore, id: str, last: int) -> list[Request]:  # noqa: A002
    """Return the newest `last` requests, oldest first, by their numbers."""
    receipts = [receipt async for receipt in store.receipts(store.key(id)) if receipt.sent]
    return [_request(receipt) for receipt in receipts[-last:]]


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
        left_out="older exchanges" if sent.trimmed else "",
    )


async def exchange_text(store: JournalStore, id: str, header: Header, last: int) -> list[str]:  # noqa: A002
    """Return what the newest messages say, one line each, safe for a terminal."""
    wire = next((name for name in FORMATS if header.format.startswith(name)), FORMATS[1])
    conversation = Conversation(store, id, format=wire)
    lines: list[str] = []
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
