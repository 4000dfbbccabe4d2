"""
The record's own law: how a log grows, and what it refuses.

`extend` is the only way a record changes. It is pure: (header, delta, wall time) in, (new header, new entries) out, or
a typed refusal. Every store calls it inside its own atomic write, so all stores accept and refuse the same, and a
refusal has nothing to undo.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minutebook.errors import DecisionHistoryRetentionExceeded
from minutebook.model.entries import payload_digest
from minutebook.model.growth import Growth
from minutebook.model.imported import ImportedGrowth
from minutebook.model.record import Delta, Extension, Receipt, content_digest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from minutebook.model.entries import Entry
    from minutebook.model.record import Header


def extend(
    header: Header,
    delta: Delta,
    wall: int,
    max_retained_bytes: int | None = None,
    stored: Iterable[Entry] = (),
) -> Extension:
    """
    Return what the record becomes when `delta` is committed; linear in what comes and what leaves.

    `stored` are the entries that `leaving` names, oldest first.

    Raises:
        PairingViolation: a result without an open call, a second answer, new input while calls wait, or a cut that
            would take an exchange which waits.
        DecisionHistoryRetentionExceeded: the conversation would retain more than the store's or the delta's
            `max_retained_bytes`.
        InvalidMessage: instructions after the conversation has begun, or an imported mark that no record would make.
        InvalidOption: an attempt opened while another one is open, its input superseded, or a cut where none may stand.
        DecisionHistoryConflict: an import into a conversation that holds entries.
        DecisionHistoryCorrupt: what leaves is not what was written, or an imported record is not the one that its
            receipts and its state tell of.
    """
    growth = ImportedGrowth(header, delta, wall) if delta.imported else Growth(header, delta, wall)
    contents = [payload_digest(draft.payload) for draft in delta.drafts]
    growth.supersede()
    growth.open(contents)
    for draft, content in zip(delta.drafts, contents, strict=True):
        growth.add(draft, content)
    growth.close()
    if delta.cut:
        growth.cut(stored)
    if delta.drafts:
        _check_retained(growth.bytes, max_retained_bytes, delta.max_retained_bytes)
    after = growth.header()
    if delta.receipts:
        return Extension(header=after, entries=tuple(growth.added), receipts=delta.receipts)
    receipt = Receipt(
        idempotency=delta.idempotency,
        first=header.entries + 1,
        last=after.entries,
        version=after.version,
        epoch=after.epoch,
        digest=after.digest,
        content=content_digest(delta, contents),
        wall=wall,
        sent=delta.sent,
    )
    return Extension(header=after, entries=tuple(growth.added), receipts=(receipt,))


def interrupt(header: Header, reason: str, wall: int, idempotency: str) -> Extension:
    """
    Return the record after its reservation was ended from outside: an ABANDONED mark, and the state to go on from.

    The mark is made even when the interrupted attempt had written nothing: an operator sees that there was one.
    """
    return extend(header, Delta(idempotency=idempotency, abandons=reason), wall)


def without_attempt(header: Header) -> Extension:
    """
    Return the record as it stands while a turn is under way: as it would be, were that abandoned now.

    The mark that takes the attempt out is recorded nowhere: it is for whoever reads on behind it, newest first. Without
    an attempt it takes out nothing.
    """
    return interrupt(header, "under_way", header.touched, "")


def _check_retained(size: int, *bounds: int | None) -> None:
    bound = min((bound for bound in bounds if bound is not None), default=size)
    if size > bound:
        raise DecisionHistoryRetentionExceeded(
            f"the conversation would retain {size:,} bytes, limit {bound:,}; "
            "raise max_retained_bytes, or go on in a new conversation",
            size=size,
            limit=bound,
        )
