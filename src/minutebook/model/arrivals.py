"""
An export read back: how far its lines are good, and the one commit that records them again (SPEC C4, case O-48).

Nothing of a line is believed before its check holds, and no record is made that its own law does not allow.
"""

from __future__ import annotations

import base64
import binascii
import bisect
import re
from typing import Final, TypeVar

import msgspec

from minutebook.errors import ImportRefused, InvalidId, InvalidMessage, InvalidOption, PairingViolation
from minutebook.model.clock import MAX_WALL_MS
from minutebook.model.codec import MAX_PAYLOAD_BYTES
from minutebook.model.entries import Draft, Entry, Kind, first_digest, recompute_digest
from minutebook.model.keys import MAX_ID_BYTES, ConversationKey
from minutebook.model.law import extend
from minutebook.model.record import Delta, new_header
from minutebook.model.transfer import VERSION, Checks, End, Head, Row, Version, encode_line, left_out, written

MAX_IMPORT_ENTRIES: Final = 1_000_000
"""The most entries of one import, which is one commit."""

MAX_IMPORT_BYTES: Final = 512 * 1024 * 1024
"""The most payload bytes of one import: all of them are in memory at once."""

_LONGEST_MARK = 128
_LARGEST = 2**62
_DIGEST = re.compile("[0-9a-f]{64}")
_KINDS = {kind.name.lower(): kind for kind in Kind}

Line = TypeVar("Line", Head, Row, End, Version)


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
            if encode_line(value) == json:
                return value
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            pass
        raise self.refusal("foreign", "it is no line of this format")

    def _take_head(self, line: bytes) -> None:
        if not line.endswith(b"\n"):
            raise self.refusal("torn", "the file ends inside it")
        try:
            version = msgspec.json.decode(line, type=Version).minutebook
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
        if not _is_anchor(head):
            raise self.refusal("foreign", "a field is out of its range")
        self._digests.append(head.begins.digest if head.begins else first_digest(self._key))
        self.head = head

    def _take_row(self, head: Head, json: bytes) -> None:
        row = self._decoded(json, Row)
        entry = self._entry(row)
        size = self._bytes + (len(entry.payload) if entry.kind is not Kind.ABANDONED else 0)
        if len(self.drafts) == head.entries or size > head.bytes:
            raise self.refusal("altered", "there is more than the first line announces")
        self._bytes = size
        self.drafts.append(draft_of(entry))
        self._digests.append(entry.digest)
        self._stands.append(row.stands)
        self._check_at.append(self._checks.last)

    def _entry(self, row: Row) -> Entry:
        payload = self._payload(row)
        places = (row.turn, row.exchange, row.call, row.messages, row.size, row.wall)
        out = min(places) < 0 or max(places) > _LARGEST or row.wall >= MAX_WALL_MS
        if row.kind not in _KINDS or out or len(row.calls) > len(payload):
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
        expected = self._head().cut + len(self.drafts) + 1
        digest = recompute_digest(self._digests[-1], entry) if row.seq == expected else b""
        if digest.hex() != row.digest or not digest:
            raise self.refusal("altered", f"entry {expected} is not what was recorded")
        return msgspec.structs.replace(entry, digest=digest)

    def _payload(self, row: Row) -> bytes:
        try:
            payload = base64.b64decode(row.payload_base64, validate=True) or row.payload.encode()
        except (binascii.Error, ValueError):
            payload = None
        if payload is None or written(payload) != (row.payload, row.payload_base64):
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
        newest = head.cut + entries
        if end.digest != self._digests[-1].hex() or not all(0 <= place <= newest for place in places):
            raise self.refusal("altered", "its digest or window is not that of the entries")
        sizes = (*end.window_limits, *end.outgrown)
        if min(sizes) < 0 or max(sizes) > _LARGEST or len(end.prelude) > _LONGEST_MARK:
            raise self.refusal("foreign", "a field is out of its range")
        self.end = end

    # --- what it makes ---

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
        told = {self._head().cut + position + 1 for position in range(count) if not self._stands[position]}
        return out == told if self.end is not None and count == len(self.drafts) else out <= told

    def complete_entries(self, bound: int) -> int:
        """Return how many of the first `bound` entries there are up to the end of the last complete exchange."""
        open_calls: dict[int, int] = {}
        newest = complete = 0
        for count, draft in enumerate(self.drafts[:bound], 1):
            if not self._stands[count - 1]:
                continue
            seq = self._head().cut + count
            if draft.kind is Kind.RESPONSE:
                newest, open_calls[seq] = seq, len(draft.calls)
            elif draft.kind is Kind.RESULT:
                open_calls[draft.exchange] = open_calls.get(draft.exchange, 0) - 1
            if draft.kind in (Kind.RESPONSE, Kind.RESULT) and not open_calls.get(newest):
                complete = count
        return complete

    def numbered(self, count: int) -> list[Draft]:
        """
        Return the first `count` entries with the places that they name as in a record which begins with the first.

        What names an entry that had left names none above 0.
        """
        cut = self._head().cut
        return [_moved(draft, cut) for draft in self.drafts[:count]] if cut else self.drafts[:count]

    def delta(self, count: int) -> Delta:
        """Return the one commit that records the first `count` entries: all of them, or a good prefix."""
        end = self.end if count == len(self.drafts) else None
        check = self._checks.last if end else self._check_at[count - 1] if count else b""
        newest = next((seq for seq in range(count, 0, -1) if self.drafts[seq - 1].kind is Kind.INPUT), 0)
        return Delta(
            drafts=tuple(self.drafts[:count]),
            idempotency="import-" + check.decode(),
            imported=True,
            begins=self._head().begins,
            settles=not newest or self._stands[newest - 1],
            window_from=end.window_from if end else 0,
            window_limits=end.window_limits if end else (0, 0),
            cut_at=end.cut_at if end else 0,
            prelude=end.prelude if end else "",
            outgrown=end.outgrown if end else (0, 0),
        )


def _is_anchor(head: Head) -> bool:
    """
    Return whether the first line names a place that a record can begin at.

    Every turn and every exchange that left did so with an entry of its own.
    """
    counts = (head.cut, head.cut_turns, head.cut_exchanges)
    if not head.cut:
        return (head.cut_digest, *counts) == ("", 0, 0, 0)
    explained = min(counts) >= 0 and head.cut_turns + head.cut_exchanges <= head.cut <= _LARGEST - head.entries
    return explained and bool(_DIGEST.fullmatch(head.cut_digest))


def _moved(draft: Draft, cut: int) -> Draft:
    if draft.kind is Kind.ABANDONED:
        return msgspec.structs.replace(draft, exchange=draft.exchange - cut, call=draft.call - cut)
    return msgspec.structs.replace(draft, exchange=draft.exchange - cut) if draft.kind is Kind.RESULT else draft


def draft_of(entry: Entry) -> Draft:
    """Return the draft that records an entry again."""
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
