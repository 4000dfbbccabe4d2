"""
The lines of an export: one conversation as JSON Lines in UTF-8, the library's own format (SPEC C4).

    {"minutebook":1,"format":"openai-chat","namespace":"support","id":"order-48213","entries":2,…,"check":"5f…"}
    {"seq":1,"kind":"input","turn":1,…,"digest":"8c…","payload":"{\"role\":\"user\",…}","check":"0b…"}
    {"seq":2,"kind":"response",…}
    {"end":2,"digest":"d1…",…,"check":"77…"}

Every line ends with a `check`: SHA-256 over the check before it and the line up to here. So whatever was cut or changed
is found at its line, before anything in it is believed, and a file without its last line is known to be torn. Beside
it each entry carries the digest of the record's own chain, which starts from the conversation's key.

A line is accepted only if it is, byte for byte, what this module would write. That leaves no room for a key that
stands twice, a field of another version or a byte order mark. Neither check is a signature: who can write the file can
make a new one.
"""

from __future__ import annotations

import base64
import binascii
import bisect
import hashlib
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from minutebook.errors import (
    ImportRefused,
    InvalidId,
    InvalidMessage,
    InvalidOption,
    InvalidValue,
    PairingViolation,
)
from minutebook.model.codec import MAX_PAYLOAD_BYTES
from minutebook.model.entries import Call, Draft, Entry, Kind, first_digest, recompute_digest
from minutebook.model.keys import MAX_ID_BYTES, ConversationKey
from minutebook.model.record import Delta, Receipt, extend, new_header
from minutebook.model.shown import type_alone

if TYPE_CHECKING:
    from collections.abc import Iterable

    from minutebook.model.record import Header, State

VERSION: Final = 1
"""The format's version; a file of a newer one is refused."""

MAX_LINE_BYTES: Final = MAX_PAYLOAD_BYTES // 2 * 3
"""The longest line: the largest payload in base64, and room for the names of its calls."""

MAX_IMPORT_ENTRIES: Final = 1_000_000
"""The most entries of one import, which is one commit."""

MAX_IMPORT_BYTES: Final = 512 * 1024 * 1024
"""The most payload bytes of one import: all of them are in memory at once."""

_MAX_TEXT_BYTES = 8 * 1024 * 1024  # as a JSON string a byte takes six at most
_LONGEST_MARK = 128
_LARGEST = 2**62
_CHECK = b',"check":"%s"}\n'
_CHECK_BYTES = len(_CHECK % (b"0" * 64))

_KINDS = {kind.name.lower(): kind for kind in Kind}

Line = TypeVar("Line", "Head", "Row", "End", "_Version")


class _Version(msgspec.Struct, frozen=True):
    """What the first line of any version has."""

    minutebook: int


class Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line: which conversation this is, and how much of it follows."""

    minutebook: int
    format: str
    namespace: str
    id: str
    created: int
    entries: int
    bytes: int

    __repr__ = type_alone


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


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """What an import did."""

    receipt: Receipt
    entries: int
    """How many entries of the file the conversation now holds."""
    left: int
    """How many of the entries that the file announces were left out; 0 unless only the good prefix was taken."""
    line: int
    """The line at which the file stopped being good; 0 where all of it was."""


_encode = msgspec.json.Encoder().encode


class Checks:
    """The running check over a file's lines; reading and writing compute the same."""

    def __init__(self) -> None:
        """Begin before the first line."""
        self.last = hashlib.sha256(b"minutebook export 1\n").hexdigest().encode()

    def sealed(self, value: Head | Row | End) -> bytes:
        """Return `value` as the next line of the file."""
        body = _encode(value)[:-1]
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


# --- writing ---------------------------------------------------------------------------------------------------------


def head_of(key: ConversationKey, header: Header) -> Head:
    """Return the first line of a conversation's export."""
    return Head(
        minutebook=VERSION,
        format=header.format,
        namespace=key.namespace,
        id=key.id,
        created=header.created,
        entries=header.entries,
        bytes=header.bytes,
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
        end=header.entries,
        digest=header.digest.hex(),
        window_from=state.window_from,
        window_limits=state.window_limits,
        cut_at=state.cut_at,
        prelude=state.prelude,
    )


def left_out(marks: Iterable[Entry], state: State) -> set[int]:
    """Return the `seq` of every entry that stands in no window for good: what marks took back, and what waits."""
    taken = {seq for mark in marks for seq in range(mark.exchange, min(mark.call, mark.seq) + 1)}
    return taken | ({state.turn} if state.unanswered else set())


def _row(entry: Entry, stands: bool) -> Row:
    payload, payload_base64 = _written(entry.payload)
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


def _written(payload: bytes) -> tuple[str, str]:
    if len(payload) <= _MAX_TEXT_BYTES:
        try:
            return payload.decode(), ""
        except UnicodeDecodeError:
            pass
    return "", base64.b64encode(payload).decode()


# --- reading ---------------------------------------------------------------------------------------------------------


class Reading:
    """
    An export as it is read line by line: how far it is good, and the drafts that record it again.

    `take` and `finish` refuse what is torn, altered or foreign. That the entries make a lawful record is for
    `lawful_entries` to say, which applies the record's own rules to all of them.
    """

    def __init__(self) -> None:
        """Begin before the first line."""
        self.head: Head | None = None
        self.end: End | None = None
        self.line = 1
        """The line to be read next."""
        self.drafts: list[Draft] = []
        self._checks = Checks()
        self._check_at: list[bytes] = []
        self._digests: list[bytes] = []
        self._stands: list[bool] = []
        self._bytes = 0
        self._key = ConversationKey("-", "-")

    def take(self, line: bytes) -> None:
        """
        Read the next line.

        Raises:
            ImportRefused: see `refused`; nothing of this line was taken.
        """
        if self.head is None:
            self._take_head(line)
        elif self.end is not None:
            raise self.refusal("foreign", "lines follow the last one")
        else:
            json = self._opened(line)
            if json.startswith(b'{"end":'):
                self._take_end(self._head(), json)
            else:
                self._take_row(self._head(), json)
        self.line += 1

    def finish(self) -> None:
        """
        See that the last line was read.

        Raises:
            ImportRefused: the file is torn.
        """
        if self.end is None:
            raise self.refusal("torn", "the file ends before its last line")

    def refusal(self, problem: str, message: str) -> ImportRefused:
        """Return a refusal at the present line."""
        good = len(self.drafts)
        return ImportRefused(
            f"line {self.line}: {message}; {good:,} records before it are good",
            problem=problem,
            good_records=good,
            line=self.line,
        )

    def _head(self) -> Head:
        assert self.head is not None
        return self.head

    def _opened(self, line: bytes) -> bytes:
        if not line.endswith(b"\n"):
            raise self.refusal("torn", "the file ends inside it")
        json = self._checks.opened(line)
        if json is None:
            raise self.refusal("altered", "it is not what was written")
        return json

    def _decoded(self, json: bytes, kind: type[Line]) -> Line:
        try:
            value = msgspec.json.decode(json, type=kind)
            if _encode(value) == json:
                return value
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            pass
        raise self.refusal("foreign", "it is no line of this format")

    def _take_head(self, line: bytes) -> None:
        if not line.endswith(b"\n"):
            raise self.refusal("torn", "the file ends inside it")
        try:
            version = msgspec.json.decode(line, type=_Version).minutebook
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            raise self.refusal("foreign", "this is no export of minutebook") from None
        if version != VERSION:
            raise self.refusal("version", f"the export has version {version}, this minutebook reads {VERSION}")
        head = self._decoded(self._opened(line), Head)
        try:
            self._key = ConversationKey(head.namespace, head.id)
        except InvalidId:
            raise self.refusal("foreign", "its key is none that a store holds") from None
        if head.entries > MAX_IMPORT_ENTRIES or head.bytes > MAX_IMPORT_BYTES:
            raise self.refusal(
                "too_large",
                f"it announces {head.entries:,} entries and {head.bytes:,} bytes, limits {MAX_IMPORT_ENTRIES:,} and "
                f"{MAX_IMPORT_BYTES:,}",
            )
        if len(head.format.encode()) > MAX_ID_BYTES or not head.format.isprintable():
            raise self.refusal("unlawful", "its format is none that a conversation is opened in")
        self._digests.append(first_digest(self._key))
        self.head = head

    def _take_row(self, head: Head, json: bytes) -> None:
        row = self._decoded(json, Row)
        entry = self._entry(row)
        size = self._bytes + (len(entry.payload) if entry.kind is not Kind.ABANDONED else 0)
        if len(self.drafts) == head.entries or size > head.bytes:
            raise self.refusal("altered", "there is more than the first line announces")
        self._bytes = size
        self.drafts.append(_draft(entry))
        self._digests.append(entry.digest)
        self._stands.append(row.stands)
        self._check_at.append(self._checks.last)

    def _entry(self, row: Row) -> Entry:
        payload = self._payload(row)
        places = (row.turn, row.exchange, row.call, row.messages, row.size, row.wall)
        if row.kind not in _KINDS or min(places) < 0 or max(places) > _LARGEST or len(row.calls) > len(payload):
            raise self.refusal("foreign", "a field is out of its range")
        if not 0 <= row.start <= row.stop <= len(payload):
            raise self.refusal("foreign", "its fragment is out of its payload")
        entry = Entry(
            seq=row.seq,
            kind=_KINDS[row.kind],
            turn=row.turn,
            exchange=row.exchange,
            call=row.call,
            messages=row.messages,
            size=row.size,
            start=row.start,
            stop=row.stop,
            wall=row.wall,
            calls=row.calls,
            digest=b"",
            payload=payload,
        )
        expected = len(self.drafts) + 1
        digest = recompute_digest(self._digests[-1], entry) if row.seq == expected else b""
        if digest.hex() != row.digest or not digest:
            raise self.refusal("altered", f"entry {expected} is not what was recorded")
        return msgspec.structs.replace(entry, digest=digest)

    def _payload(self, row: Row) -> bytes:
        try:
            payload = base64.b64decode(row.payload_base64, validate=True) or row.payload.encode()
        except (binascii.Error, ValueError):
            payload = None
        if payload is None or _written(payload) != (row.payload, row.payload_base64):
            raise self.refusal("foreign", "its payload is not written as this format writes it")
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise self.refusal("too_large", f"a payload of {len(payload):,} bytes, limit {MAX_PAYLOAD_BYTES:,}")
        return payload

    def _take_end(self, head: Head, json: bytes) -> None:
        end = self._decoded(json, End)
        entries = len(self.drafts)
        if (end.end, head.entries, head.bytes) != (entries, entries, self._bytes):
            raise self.refusal("altered", f"the file ends after {entries:,} of {head.entries:,} entries")
        places = (end.window_from, end.cut_at)
        if end.digest != self._digests[-1].hex() or not all(0 <= place <= entries for place in places):
            raise self.refusal("altered", "its digest or window is not that of the entries")
        if min(end.window_limits) < 0 or max(end.window_limits) > _LARGEST or len(end.prelude) > _LONGEST_MARK:
            raise self.refusal("foreign", "a field is out of its range")
        self.end = end

    # --- what it makes -----------------------------------------------------------------------------------------------

    def lawful_entries(self) -> int:
        """Return how many of the entries, from the first one on, make a record by the record's own law."""
        entries = len(self.drafts)
        if self._is_lawful(entries):
            return entries
        return bisect.bisect_left(range(1, entries), True, key=lambda count: not self._is_lawful(count))

    def _is_lawful(self, count: int) -> bool:
        header = new_header(self._key, self._head().format, 0)
        try:
            grown = extend(header, self.delta(count), 0)
        except (PairingViolation, InvalidMessage, InvalidOption):
            return False
        if grown.header.digest != self._digests[count]:
            return False
        marks = (entry for entry in grown.entries if entry.kind is Kind.ABANDONED)
        out = left_out(marks, grown.header.state)
        told = {position + 1 for position in range(count) if not self._stands[position]}
        return out == told if self.end is not None and count == len(self.drafts) else out <= told

    def complete_entries(self, bound: int) -> int:
        """Return how many of the first `bound` entries there are up to the end of the last complete exchange."""
        open_calls: dict[int, int] = {}
        newest = complete = 0
        for seq, draft in enumerate(self.drafts[:bound], 1):
            if not self._stands[seq - 1]:
                continue
            if draft.kind is Kind.RESPONSE:
                newest, open_calls[seq] = seq, len(draft.calls)
            elif draft.kind is Kind.RESULT:
                open_calls[draft.exchange] = open_calls.get(draft.exchange, 0) - 1
            if draft.kind in (Kind.RESPONSE, Kind.RESULT) and not open_calls.get(newest):
                complete = seq
        return complete

    def delta(self, count: int) -> Delta:
        """Return the one commit that records the first `count` entries: all of them, or a good prefix."""
        end = self.end if count == len(self.drafts) else None
        check = self._checks.last if end else self._check_at[count - 1] if count else b""
        newest = next((seq for seq in range(count, 0, -1) if self.drafts[seq - 1].kind is Kind.INPUT), 0)
        return Delta(
            drafts=tuple(self.drafts[:count]),
            idempotency="import-" + check.decode(),
            imported=True,
            settles=not newest or self._stands[newest - 1],
            window_from=end.window_from if end else 0,
            window_limits=end.window_limits if end else (0, 0),
            cut_at=end.cut_at if end else 0,
            prelude=end.prelude if end else "",
        )


def _draft(entry: Entry) -> Draft:
    return Draft(
        kind=entry.kind,
        payload=entry.payload,
        messages=entry.messages,
        size=entry.size,
        start=entry.start,
        stop=entry.stop,
        calls=entry.calls,
        call=entry.call,
        exchange=entry.exchange,
        wall=entry.wall,
    )
