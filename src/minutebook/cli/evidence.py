"""What the demo looks at to see whether a claim holds: pure functions on entries, receipts and request bodies."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from minutebook.model.entries import Kind
from minutebook.model.receipts import decode_sent
from minutebook.policy.standing import standing_entries

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from minutebook.model.decisions import Decision, Observation
    from minutebook.model.entries import Entry
    from minutebook.model.record import Receipt


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One request, by its numbers."""

    request: str
    retained: int
    """Exchanges that the record held before it."""
    exchanges: int
    """Exchanges in it."""
    messages: int
    bytes: int
    counted_tokens: int | None
    billed_tokens: int | None


def kept_once(entries: Sequence[Entry], acknowledged: Sequence[Observation]) -> bool:
    """Return whether each acknowledged call and its result stand in the record once, and no other result does."""
    kept = standing_entries(entries)
    responses = Counter(entry.seq for entry in kept if entry.kind is Kind.RESPONSE and entry.calls)
    results = Counter((entry.exchange, entry.call) for entry in kept if entry.kind is Kind.RESULT)
    told = [each.reference for each in acknowledged]
    places = Counter((at.exchange, at.position) for at in told if at is not None)
    return (
        len(places) == len(acknowledged)
        and results == places
        and responses.keys() == {exchange for exchange, _ in places}
        and all(count == 1 for count in (*results.values(), *responses.values()))
    )


def starts_with(after: Sequence[Entry], before: Sequence[Entry]) -> bool:
    """Return whether a record still holds all that it held, byte for byte, at its beginning."""
    return [(entry.seq, entry.payload) for entry in after[: len(before)]] == [
        (entry.seq, entry.payload) for entry in before
    ]


def messages(body: bytes) -> list[dict[str, Any]]:
    """Return a request's messages without its instructions."""
    return [message for message in msgspec.json.decode(body)["messages"] if message["role"] != "system"]


def messages_after(seq: int, entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return the messages that the standing entries above `seq` are."""
    return [msgspec.json.decode(entry.fragment) for entry in standing_entries(entries) if entry.seq > seq]


def told_outside_messages(body: bytes) -> bytes:
    """Return a request without its conversation: instructions, schema and everything else."""
    request = msgspec.json.decode(body)
    request["messages"] = [message for message in request["messages"] if message["role"] == "system"]
    return msgspec.json.encode(request)


def request_rows(name: str, entries: Sequence[Entry], receipts: Iterable[Receipt]) -> list[Row]:
    """Return a row for each request of a conversation that was answered."""
    exchanges = [entry.seq for entry in standing_entries(entries) if entry.kind is Kind.RESPONSE]
    rows: list[Row] = []
    for receipt in receipts:
        if not receipt.sent:
            continue
        sent = decode_sent(receipt.sent)
        rows.append(
            Row(
                request=f"{name} {len(rows) + 1}",
                retained=sum(seq < receipt.first for seq in exchanges),
                exchanges=sum(sent.first <= seq <= sent.last for seq in exchanges if seq < receipt.first),
                messages=sent.messages,
                bytes=sent.bytes,
                counted_tokens=sent.counted_tokens,
                billed_tokens=sent.billed_tokens,
            )
        )
    return rows


def stateless_row(decision: Decision, body: bytes) -> Row:
    """Return the row of a request that was made without a history."""
    sent = messages(body)
    return Row(
        request="stateless",
        retained=0,
        exchanges=0,
        messages=len(sent),
        bytes=len(msgspec.json.encode(sent)),
        counted_tokens=decision.counted_tokens,
        billed_tokens=decision.billed_tokens,
    )


def counts_agree(rows: Sequence[Row]) -> bool:
    """Return whether every request was counted, and billed as it was counted."""
    return bool(rows) and all(
        row.counted_tokens is not None and row.counted_tokens == row.billed_tokens for row in rows
    )
