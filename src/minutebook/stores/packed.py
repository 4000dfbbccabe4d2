"""
Headers and receipts as bytes, for stores that keep them whole; entries have `model.entries.pack_entries`.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Final

import msgspec

from minutebook.errors import DecisionHistoryCorrupt, InvalidId
from minutebook.model.entries import Entry, damaged, unpack_entries
from minutebook.model.keys import check_id
from minutebook.model.record import Attempt, Header, Receipt, State
from minutebook.model.shown import type_alone
from minutebook.stores.remote import Look

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]

STAMP_BYTES: Final = 16
"""How long a stamp is."""


class Head(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A header as it is stored. (`Header` itself cannot be decoded: a field of it hides the type `bytes`.)"""

    format: str
    birth: bytes
    created: Count
    touched: Count
    epoch: Count
    token: str
    since: Count
    version: Count
    entries: Count
    size: Count
    digest: bytes
    state: State
    attempt: Attempt | None

    __repr__ = type_alone

    @classmethod
    def of(cls, header: Header) -> Head:
        """Return what is stored of a header: all of it."""
        return cls(**{_OURS.get(name, name): getattr(header, name) for name in Header.__struct_fields__})

    def header(self) -> Header:
        """Return the header."""
        return Header(**{name: getattr(self, _OURS.get(name, name)) for name in Header.__struct_fields__})


_OURS = {"bytes": "size"}

_pack = msgspec.msgpack.Encoder().encode
_unpack_head = msgspec.msgpack.Decoder(Head).decode
_unpack_receipt = msgspec.msgpack.Decoder(tuple[str, Count, Count, Count, Count, bytes, bytes, Count, bytes]).decode


def pack_header(header: Header) -> bytes:
    """Return a header as MessagePack; the same header always gives the same bytes."""
    return _pack(Head.of(header))


def unpack_header(packed: object) -> Header:
    """
    Return the header that `pack_header` wrote.

    Raises:
        DecisionHistoryCorrupt: it does not decode.
    """
    try:
        return _unpack_head(packed).header()  # type: ignore[arg-type]
    except (msgspec.MsgspecError, TypeError):  # its texts may hold a piece of what it could not read
        raise DecisionHistoryCorrupt("a conversation's header does not decode; restore a backup") from None


def unpack_id(name: bytes) -> str:
    """
    Return a conversation's id as it was given.

    Raises:
        DecisionHistoryCorrupt: it is none.
    """
    try:
        return check_id(name.decode(), "an id")
    except (UnicodeDecodeError, InvalidId):
        raise DecisionHistoryCorrupt("the database is damaged: an id in it is none; restore a backup") from None


def unpack_entry(packed: bytes, seq: int) -> Entry:
    """
    Return the one entry that is kept under its number.

    Raises:
        DecisionHistoryCorrupt: it does not decode, or is not what stands there.
    """
    entries = unpack_entries(packed, seq)
    if len(entries) != 1:
        raise damaged(seq, "does not decode")
    return entries[0]


def look_of(now: int, packed: bytes | None, stamp: bytes | None, receipt: bytes | None) -> Look:
    """Return what a server said of one conversation: its packed header and the stamp beside it, if it is there."""
    header, damage = None, ""
    if packed is not None or stamp:
        try:
            header = read_header(packed, stamp)
        except DecisionHistoryCorrupt as error:
            damage = str(error)
    found = unpack_receipt(receipt) if receipt else None
    return Look(now=now, header=header, stamp=stamp or b"", damage=damage, receipt=found)


def read_header(packed: bytes | None, stamp: bytes | None) -> Header:
    """
    Return the header that was kept with its stamp.

    Raises:
        DecisionHistoryCorrupt: it is not what was written.
    """
    if packed is None or stamp_of(packed) != stamp:
        raise DecisionHistoryCorrupt("a conversation's header is not what was written; restore a backup")
    return unpack_header(packed)


def stamp_of(packed: bytes) -> bytes:
    """Return what tells one packed header from every other: the beginning of its SHA-256."""
    return hashlib.sha256(packed).digest()[:STAMP_BYTES]


def pack_receipt(receipt: Receipt) -> bytes:
    """Return a receipt as MessagePack."""
    return _pack(
        (
            receipt.idempotency,
            receipt.version,
            receipt.first,
            receipt.last,
            receipt.epoch,
            receipt.digest,
            receipt.content,
            receipt.wall,
            receipt.sent,
        )
    )


def unpack_receipt(packed: object) -> Receipt:
    """
    Return the receipt that `pack_receipt` wrote.

    Raises:
        DecisionHistoryCorrupt: it does not decode.
    """
    try:
        idempotency, version, first, last, epoch, digest, content, wall, sent = _unpack_receipt(packed)  # type: ignore[arg-type]
    except (msgspec.MsgspecError, TypeError):
        raise DecisionHistoryCorrupt("a receipt does not decode; restore a backup") from None
    return Receipt(
        idempotency=idempotency,
        first=first,
        last=last,
        version=version,
        epoch=epoch,
        digest=digest,
        content=content,
        wall=wall,
        sent=sent,
    )
