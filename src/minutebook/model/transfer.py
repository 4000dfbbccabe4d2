"""
The lines of an export: one conversation as JSON Lines in UTF-8, the library's own format (SPEC C4).

    {"minutebook":1,"format":"openai-chat","namespace":"support","id":"order-48213","entries":2,…,"check":"5f…"}
    {"seq":1,"kind":"input","turn":1,…,"digest":"8c…","payload":"{\"role\":\"user\",…}","check":"0b…"}
    {"seq":2,"kind":"response",…}
    {"end":2,"digest":"d1…",…,"check":"77…"}

Every line ends with a `check`: SHA-256 over the check before it and the line up to here. So whatever was cut or changed
is found at its line, before anything in it is believed, and a file without its last line is known to be torn. Beside
it each entry carries the digest of the record's own chain, which starts from the conversation's key. A record whose
oldest entries had left it begins at the anchor that its first line names; what follows keeps its numbers.

A line is accepted only if it is, byte for byte, what this module would write. That leaves no room for a key that
stands twice, a field of another version or a byte order mark. Neither check is a signature: who can write the file can
make a new one.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Final

import msgspec

from minutebook.errors import InvalidValue
from minutebook.model.codec import MAX_PAYLOAD_BYTES
from minutebook.model.entries import Call, Entry
from minutebook.model.keys import ConversationKey
from minutebook.model.record import Cut, Header, Receipt
from minutebook.model.shown import type_alone

if TYPE_CHECKING:
    from collections.abc import Iterable

    from minutebook.model.record import State

VERSION: Final = 1
"""The format's version; a file of a newer one is refused."""

MAX_LINE_BYTES: Final = MAX_PAYLOAD_BYTES // 2 * 3
"""The longest line: the largest payload in base64, and room for the names of its calls."""

_MAX_TEXT_BYTES = 8 * 1024 * 1024  # as a JSON string a byte takes six at most
_CHECK = b',"check":"%s"}\n'
_CHECK_BYTES = len(_CHECK % (b"0" * 64))


class Version(msgspec.Struct, frozen=True):
    """What the first line of any version has."""

    minutebook: int


class Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The first line: which conversation this is, and how much of it follows."""

    minutebook: int
    format: str
    namespace: str
    id: str
    created: int
    entries: int
    bytes: int
    cut: int = 0
    """The newest entry that had left the record; 0 where none had."""
    cut_digest: str = ""
    cut_turns: int = 0
    cut_exchanges: int = 0

    __repr__ = type_alone

    @property
    def begins(self) -> Cut | None:
        """Where the record begins, if its oldest entries had left it."""
        if not self.cut:
            return None
        return Cut(self.cut, bytes.fromhex(self.cut_digest), self.cut_turns, self.cut_exchanges)


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One entry. `stands` is false for what is in no window: a failed attempt, or an input that was never answered."""

    seq: int
    kind: str
    turn: int
    exchange: int
    call: int
    messages: int
    size: int
    start: int
    stop: int
    wall: int
    calls: tuple[Call, ...] = ()
    stands: bool = True
    digest: str
    payload: str = ""
    payload_base64: str = ""
    """Instead of `payload` where that is no UTF-8 text, or so long that its escapes could exceed a line."""

    __repr__ = type_alone


class End(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The last line: how many entries there were, their digest, and where the last window began."""

    end: int
    digest: str
    window_from: int
    window_limits: tuple[int, int]
    cut_at: int = 0
    prelude: str = ""
    outgrown: tuple[int, int] = (0, 0)


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """What an import did."""

    receipt: Receipt
    entries: int
    """How many entries of the file the conversation now holds."""
    left: int
    """How many of the entries that the file announces were left out; 0 unless only the good prefix was taken."""
    line: int
    """The line at which the file stopped being good; 0 where all of it was."""
    written: bool
    """Whether it was written now; false where the conversation held the same already."""


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """What a copy to another store did."""

    header: Header
    """The conversation there, proved entry by entry."""
    written: bool
    """Whether it was written now; false where the other store held the same already."""


encode_line = msgspec.json.Encoder().encode


class Checks:
    """The running check over a file's lines; reading and writing compute the same."""

    def __init__(self) -> None:
        """Begin before the first line."""
        self.last = hashlib.sha256(b"minutebook export 1\n").hexdigest().encode()

    def sealed(self, value: Head | Row | End) -> bytes:
        """Return `value` as the next line of the file."""
        body = encode_line(value)[:-1]
        self.last = self._next(body)
        return body + _CHECK % self.last

    def opened(self, line: bytes) -> bytes | None:
        """Return the JSON of the next line once its check holds, or `None`."""
        body, ending = line[:-_CHECK_BYTES], line[-_CHECK_BYTES:]
        check = self._next(body)
        if ending != _CHECK % check:
            return None
        self.last = check
        return body + b"}"

    def _next(self, body: bytes) -> bytes:
        digest = hashlib.sha256(self.last)
        digest.update(body)
        return digest.hexdigest().encode()


def head_of(key: ConversationKey, header: Header) -> Head:
    """Return the first line of a conversation's export."""
    return Head(
        minutebook=VERSION,
        format=header.format,
        namespace=key.namespace,
        id=key.id,
        created=header.created,
        entries=header.retained,
        bytes=header.bytes,
        cut=header.cut.seq,
        cut_digest=header.cut.digest.hex(),
        cut_turns=header.cut.turns,
        cut_exchanges=header.cut.exchanges,
    )


def sealed_entry(checks: Checks, entry: Entry, *, stands: bool) -> bytes:
    """
    Return the line of one entry.

    Raises:
        InvalidValue: the names of its calls do not fit a line; no provider sends such a response.
    """
    line = checks.sealed(_row(entry, stands))
    if len(line) > MAX_LINE_BYTES:
        raise InvalidValue(f"entry {entry.seq} needs a line of {len(line):,} bytes, limit {MAX_LINE_BYTES:,}", path="$")
    return line


def end_of(header: Header) -> End:
    """Return the last line of a conversation's export."""
    state = header.state
    return End(
        end=header.retained,
        digest=header.digest.hex(),
        window_from=state.window_from,
        window_limits=state.window_limits,
        cut_at=state.cut_at,
        prelude=state.prelude,
        outgrown=state.outgrown,
    )


def left_out(marks: Iterable[Entry], state: State) -> set[int]:
    """Return the `seq` of every entry that stands in no window for good: what marks took back, and what waits."""
    retained = state.cut.seq + 1 if state.cut else 1
    taken = taken_back(((mark.exchange, mark.call, mark.seq) for mark in marks), retained)
    return taken | ({state.turn} if state.unanswered else set())


def taken_back(marks: Iterable[tuple[int, int, int]], retained: int = 1) -> set[int]:
    """
    Return every `seq` that marks take out, each given oldest first as (first, last, its own `seq`).

    `retained` is the first entry that has not left the record; what had left is named by a mark and not told. Linear
    in what comes out: a mark takes in the stretch that other marks before it took out already.
    """
    taken: set[int] = set()
    below = 2**63
    for first, last, seq in reversed(list(marks)):
        taken.update(range(max(first, retained), min(last, seq, below - 1) + 1))
        if last == seq - 1:
            below = min(below, first)
    return taken


def _row(entry: Entry, stands: bool) -> Row:
    payload, payload_base64 = written(entry.payload)
    return Row(
        seq=entry.seq,
        kind=entry.kind.name.lower(),
        turn=entry.turn,
        exchange=entry.exchange,
        call=entry.call,
        messages=entry.messages,
        size=entry.size,
        start=entry.start,
        stop=entry.stop,
        wall=entry.wall,
        calls=entry.calls,
        stands=stands,
        digest=entry.digest.hex(),
        payload=payload,
        payload_base64=payload_base64,
    )


def written(payload: bytes) -> tuple[str, str]:
    """Return a payload as a line holds it: as text, or else in base64; the other one is empty."""
    if len(payload) <= _MAX_TEXT_BYTES:
        try:
            return payload.decode(), ""
        except UnicodeDecodeError:
            pass
    return "", base64.b64encode(payload).decode()
