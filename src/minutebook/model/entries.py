"""
Entries: the immutable rows of a conversation's log, and the digest chain that ties them together.

An entry keeps the bytes it was given. What a window sends of it is a slice of those bytes, so that sizes are additions,
windows are joins, and nothing is encoded twice.
"""

from __future__ import annotations

import enum
import hashlib
import struct
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import msgspec

from minutebook.errors import DecisionHistoryCorrupt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from minutebook.model.keys import ConversationKey


class Kind(enum.IntEnum):
    """What an entry is. The numbers are stored; they never change their meaning."""

    INSTRUCTIONS = 1
    """System or developer text at the head of a transcript: retained, in no window (the caller sends its own)."""
    INPUT = 2
    """What opens a turn: a user message or a task."""
    INJECTION = 3
    """A further message inside a turn; shown after the results of the exchange that it interrupted."""
    RESPONSE = 4
    """A provider's response, byte for byte. It opens an exchange."""
    RESULT = 5
    """What answers one call of a response."""
    ABANDONED = 6
    """
    A mark: the entries from `exchange` to `call` belong to an attempt that failed, was stopped or superseded, or to
    others that failed right before it.
    """
    SUMMARY = 7
    """A summary: in windows it stands for the exchanges up to `call`, which the record still holds."""


# An attribute of an enum costs a quarter of a microsecond on Python 3.11, a global name a tenth of that, and a window
# or a commit compares hundreds of kinds.
INSTRUCTIONS: Final = Kind.INSTRUCTIONS
INPUT: Final = Kind.INPUT
INJECTION: Final = Kind.INJECTION
RESPONSE: Final = Kind.RESPONSE
RESULT: Final = Kind.RESULT
ABANDONED: Final = Kind.ABANDONED
SUMMARY: Final = Kind.SUMMARY

IN_MESSAGE_BEFORE: Final = b"null"
"""The payload of a result that came in the same message as the result before it."""


class Call(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One call of a response. `id` is empty where the provider left it out; then order and name tell calls apart."""

    id: str
    name: str
    custom: bool = False
    """Whether it is no function's, so that its result has a form of its own: of OpenAI Responses, every other tool."""

    def __repr__(self) -> str:
        return "Call()"  # its id and name are a model's text


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """
    What is about to become an entry; the record adds its place, its time and its digest.

    `payload[start:stop]` is the part that a window sends; `messages` is how many wire messages that part is, and
    `size` what it adds to the window in bytes beside one separator a message (so a window of n messages measures
    2 + the sizes + n - 1). An entry that has nothing to send has zeros there.
    """

    kind: Kind
    payload: bytes
    messages: int = 0
    size: int = 0
    start: int = 0
    stop: int = 0
    calls: tuple[Call, ...] = ()
    """RESPONSE: its calls, in the provider's order."""
    call: int = 0
    """
    RESULT: the position of the call it answers. SUMMARY: the `seq` of the newest exchange that it covers. ABANDONED
    marks are made by the record alone, or imported.
    """
    exchange: int = 0
    """RESULT: the `seq` of its response; 0 means the newest response."""
    wall: int = 0
    """Imported: when it was first recorded. Everything else has the time of its commit."""

    def __repr__(self) -> str:
        return f"Draft({self.kind.name}, {len(self.payload):,} bytes)"


Count = Annotated[int, msgspec.Meta(ge=0)]


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One step of the log. `seq` counts 1, 2, 3 … without gaps and alone decides order; `wall` (Unix ms) never does."""

    seq: Count
    kind: Kind
    turn: Count
    """The `seq` of the input that opened its turn; 0 before the first input."""
    exchange: Count
    """The `seq` of its response; 0 outside an exchange. ABANDONED: the first `seq` that the mark takes out."""
    call: Count
    """
    RESULT: the position of the call it answers. ABANDONED: the last `seq` that the mark takes out. SUMMARY: the `seq`
    of the newest exchange that it covers. RESPONSE, INJECTION: the `seq` of the newest message said beside the turn's
    input, so that a window finds it; 0 if there is none.
    """
    messages: Count
    size: Count
    start: Count
    stop: Count
    wall: Count
    calls: tuple[Call, ...]
    digest: bytes
    payload: bytes

    def __repr__(self) -> str:
        return f"Entry({self.seq}, {self.kind.name}, {len(self.payload):,} bytes)"

    @property
    def fragment(self) -> bytes:
        """The bytes that a window sends of this entry, before the wire format's own wrapping."""
        return self.payload if self.stop - self.start == len(self.payload) else self.payload[self.start : self.stop]


Place: TypeAlias = tuple[int, Kind, int, int, int, int, int, int, int, int]
"""An entry's fields from `seq` to `wall`, in their order."""

_PLACE = struct.Struct(">QBQQQQQQQQI")
_sha256 = hashlib.sha256
_encode_calls = msgspec.json.Encoder().encode
_pack_into = msgspec.msgpack.Encoder().encode_into
_unpack = msgspec.msgpack.Decoder(tuple[Entry, ...]).decode


def first_digest(key: ConversationKey) -> bytes:
    """Return the digest that a conversation's chain starts from; it binds every later digest to the key."""
    chain = _sha256(b"minutebook chain 1\n")
    for part in (key.namespace.encode(), key.id.encode()):
        chain.update(len(part).to_bytes(4, "big") + part)
    return chain.digest()


def encode_calls(calls: tuple[Call, ...]) -> bytes:
    """Return the stored form of a response's calls: a JSON list of `[id, name, custom]`, or no bytes for none."""
    return _encode_calls(calls) if calls else b""


def pack_entries(entries: Sequence[Entry]) -> bytes:
    """Return entries as the bytes that a store keeps: an array of arrays in MessagePack, each with its payload."""
    room = bytearray()
    _pack_into(entries, room)
    # The encoder's own bytes keep the room that it grew into, half as much again; a copy has just its size.
    return bytes(room)


def unpack_entries(packed: bytes, first: int) -> tuple[Entry, ...]:
    """
    Return the entries that `pack_entries` wrote, of which the first one's `seq` must be `first`.

    Raises:
        DecisionHistoryCorrupt: they do not decode, or are not what stands there.
    """
    try:
        entries = _unpack(packed)
    except (msgspec.MsgspecError, TypeError):  # its texts may hold a piece of what it could not read
        raise damaged(first, "does not decode") from None
    for seq, entry in enumerate(entries, first):
        if entry.seq != seq:
            raise damaged(seq, "is missing")
        if not entry.start <= entry.stop <= len(entry.payload):
            raise damaged(seq, "has a fragment that cannot be")
    return entries


def damaged(seq: int, what: str) -> DecisionHistoryCorrupt:
    """Return the refusal of an entry that cannot be read."""
    return DecisionHistoryCorrupt(f"entry {seq} {what}; restore a backup", seq=seq)


def payload_digest(payload: bytes) -> bytes:
    """Return SHA-256 of an entry's bytes: what the chain covers, and what tells a repeated input."""
    return _sha256(payload).digest()


def chain_digest(before: bytes, content: bytes, place: Place, calls: tuple[Call, ...]) -> bytes:
    """
    Return the digest of one entry: SHA-256 over the digest before it, its place, its calls and the digest of its bytes.

    The bytes enter by their own digest (`content`), so the chain can still be verified where bytes had to be erased
    (promise I-39, SPEC B8). Every field is of fixed width or prefixed by its length, so no two different entries feed
    the hash the same bytes.
    """
    told = encode_calls(calls)
    return _sha256(b"".join((before, content, _PLACE.pack(*place, len(told)), told))).digest()


def recompute_digest(before: bytes, entry: Entry) -> bytes:
    """Return the digest that `entry` must carry after an entry whose digest is `before`."""
    return chain_digest(before, _sha256(entry.payload).digest(), place_of(entry), entry.calls)


def place_of(entry: Entry) -> Place:
    """Return where an entry stands and how much it counts: all that the chain covers of it but its calls and bytes."""
    return (
        entry.seq,
        entry.kind,
        entry.turn,
        entry.exchange,
        entry.call,
        entry.messages,
        entry.size,
        entry.start,
        entry.stop,
        entry.wall,
    )
