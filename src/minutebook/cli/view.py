"""What `show` shows: the exchanges that are retained, and the requests that were made of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from minutebook.cli.terminal import shown
from minutebook.conversation import Conversation
from minutebook.model.entries import Kind
from minutebook.model.receipts import Sent, decode_sent
from minutebook.providers.wire import FORMATS

if TYPE_CHECKING:
    from minutebook.model.entries import Entry
    from minutebook.model.record import Header, Receipt
    from minutebook.stores.journal import JournalStore


async def exchange_rows(store: JournalStore, id: str, header: Header, last: int) -> list[dict[str, Any]]:  # noqa: A002
    """Return the newest `last` exchanges, oldest first, with whether the last request held them."""
    sent = await last_sent(store, id)
    waiting = {waits.exchange for waits in header.state.open}
    marks: list[Entry] = []
    rows: dict[int, dict[str, Any]] = {}
    async for entry in store.entries(store.key(id)):
        if entry.kind is Kind.ABANDONED:
            marks.append(entry)
        elif entry.kind is Kind.RESPONSE:
            rows[entry.seq] = _row(entry, waiting, sent)
        elif entry.kind is Kind.RESULT and entry.exchange in rows:
            row = rows[entry.exchange]
            row["messages"] += entry.messages
            row["bytes"] += len(entry.payload)
    for mark in marks:
        for seq in range(mark.exchange, mark.call + 1):
            if seq in rows:
                rows[seq]["complete"] = "abandoned"
                rows[seq]["in last request"] = False
    return list(rows.values())[-last:]


def _row(entry: Entry, waiting: set[int], sent: Sent) -> dict[str, Any]:
    return {
        "seq": entry.seq,
        "turn": entry.turn,
        "recorded": datetime.fromtimestamp(entry.wall / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S"),
        "calls": len(entry.calls),
        "messages": entry.messages,
        "bytes": len(entry.payload),
        "complete": "waits" if entry.seq in waiting else "yes",
        "in last request": bool(sent.first) and sent.first <= entry.seq <= sent.last,
    }


async def last_sent(store: JournalStore, id: str) -> Sent:  # noqa: A002
    """Return the newest request that a receipt tells of."""
    newest = Sent()
    async for receipt in store.receipts(store.key(id)):
        if receipt.sent:
            newest = decode_sent(receipt.sent)
    return newest


async def sent_rows(store: JournalStore, id: str, last: int) -> list[dict[str, Any]]:  # noqa: A002
    """Return the newest `last` requests, oldest first, by their numbers."""
    receipts = [receipt async for receipt in store.receipts(store.key(id)) if receipt.sent]
    return [_sent_row(receipt) for receipt in receipts[-last:]]


def _sent_row(receipt: Receipt) -> dict[str, Any]:
    sent = decode_sent(receipt.sent)
    return {
        "answered by": receipt.first,
        "from seq": sent.first,
        "to seq": sent.last,
        "messages": sent.messages,
        "bytes": sent.bytes,
        "counted tokens": "" if sent.counted_tokens is None else sent.counted_tokens,
        "billed tokens": "" if sent.billed_tokens is None else sent.billed_tokens,
        "left out": "older exchanges" if sent.trimmed else "",
    }


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
    import msgspec

    content = message.get("content")
    if isinstance(content, str):
        return content
    return msgspec.json.encode({name: part for name, part in message.items() if name != "role"}).decode()
