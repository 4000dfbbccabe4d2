"""
Who may write: the rules of reservation, expiry and capacity, as pure functions on headers.

Every journal applies them inside its own atomic write, so that a conversation is held, fenced, freed, expired and
refused by the same rules in RAM and in every database (SPEC D7, D22).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import msgspec

from minutebook.errors import (
    DecisionHistoryBusy,
    DecisionHistoryConflict,
    DecisionHistoryFenced,
    DecisionHistoryNotReserved,
    DecisionHistoryStoreFull,
)
from minutebook.model.law import interrupt

if TYPE_CHECKING:
    from minutebook.model.bounds import StoreBounds
    from minutebook.model.record import Extension, Header

_BIRTH_BYTES: Final = 8
"""How long a record's `birth` is: enough for all that ever have one key."""


def check_idle(header: Header, wall: int) -> None:
    """
    See that nobody holds the conversation.

    Raises:
        DecisionHistoryBusy: somebody does; only `recover` ends that, never time alone (promise I-12).
    """
    if header.token:
        raise DecisionHistoryBusy(
            f"another worker or turn holds this conversation since {max(0, wall - header.since):,} ms, with epoch "
            f"{header.epoch}; wait for it or, once that worker is stopped, call recover(worker_stopped=True)",
            epoch=header.epoch,
            since_ms=max(0, wall - header.since),
        )


def take(header: Header, token: str, format: str, wall: int) -> Header:  # noqa: A002 - the field's standard word
    """
    Return the header under a new reservation; the first one gives the record its `birth`.

    Raises:
        DecisionHistoryBusy: it is held already.
        DecisionHistoryConflict: the conversation was opened with another wire format or identity.
    """
    check_idle(header, wall)
    if header.format != format:
        raise DecisionHistoryConflict(
            f"the conversation was opened as {header.format!r}, not as {format!r}; another format, provider or model "
            "needs a conversation of its own",
        )
    birth = header.birth or _born(token, wall)
    return msgspec.structs.replace(header, birth=birth, token=token, epoch=header.epoch + 1, since=wall)


def _born(token: str, wall: int) -> bytes:
    """Return what tells a record that begins with this reservation from all others: tokens do not come again."""
    return hashlib.sha256(b"%d %b" % (wall, token.encode())).digest()[:_BIRTH_BYTES]


def free(header: Header) -> Header:
    """Return the header without its reservation; the epoch stays, so that the next one is higher."""
    return msgspec.structs.replace(header, token="", since=0)


def is_blank(header: Header) -> bool:
    """
    Return whether an idle record says nothing: a first write was reserved, and then failed or was given up.

    Every journal drops such a record in the write that frees it, so that no failed first operation takes a place in a
    bounded store. Its receipts, of commits that recorded nothing, go with it: to repeat one records nothing again.
    """
    return not header.token and not header.entries


def check_owner(header: Header | None, token: str, epoch: int) -> Header:
    """
    Return the header if `token` and `epoch` still own it.

    Both are compared, since after a power cut an epoch that was never durable may come again (promise I-13).

    Raises:
        DecisionHistoryFenced: the reservation was ended by `recover`, or the conversation by `delete`.
    """
    if header is None or header.token != token or header.epoch != epoch:
        raise DecisionHistoryFenced(
            f"the reservation of epoch {epoch} was ended by a recovery or a deletion; nothing was written, and what "
            "this worker did since is not in the record",
            epoch=epoch,
        )
    return header


def recover(header: Header, epoch: int | None, wall: int) -> Extension:
    """
    Return the record with its reservation ended from outside, and the interrupted attempt marked.

    Raises:
        DecisionHistoryNotReserved: nobody holds it, or another epoch does.
    """
    if not header.token:
        raise DecisionHistoryNotReserved("nobody holds this conversation; there is nothing to recover")
    if epoch is not None and header.epoch != epoch:
        raise DecisionHistoryNotReserved(
            f"the reservation of epoch {epoch} is gone; epoch {header.epoch} holds the conversation now",
            epoch=header.epoch,
        )
    # The token makes the id one that no caller can have chosen: receipts share one name space.
    grown = interrupt(header, "recovered", wall, f"recover-{header.epoch}-{header.token}")
    freed = msgspec.structs.replace(free(grown.header), epoch=header.epoch + 1)
    return msgspec.structs.replace(grown, header=freed)


def expired(header: Header, ttl_ms: int | None, wall: int) -> bool:
    """Return whether the time to live has passed since the last write; a reserved conversation never expires."""
    return ttl_ms is not None and not header.token and wall - header.touched > ttl_ms


def store_full(sessions: int, size: int, bounds: StoreBounds) -> DecisionHistoryStoreFull:
    """Return the refusal of a write that would take a namespace to `sessions` conversations and `size` bytes."""
    return DecisionHistoryStoreFull(
        f"the store would hold {sessions:,} conversations and {size:,} bytes; max_sessions "
        f"{_shown(bounds.max_sessions)}, max_bytes {_shown(bounds.max_bytes)}; delete conversations or raise a bound",
        sessions=sessions,
        bytes=size,
        max_sessions=bounds.max_sessions,
        max_bytes=bounds.max_bytes,
    )


def _shown(bound: int | None) -> str:
    return "unbounded" if bound is None else f"{bound:,}"
