"""
A change as what the scripts of Redis are given, and what their answers say of a conversation.

A bucket keeps a conversation's header behind its size and its stamp, and a log keeps each entry behind its messages and
its size: so much a script reads without knowing what is packed.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, Literal

from minutebook.model.entries import damaged, pack_entries, unpack_entries
from minutebook.stores.packed import STAMP_BYTES, look_of, pack_receipt, stamp_of
from minutebook.stores.remote import Look, Written

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from minutebook.model.bounds import StoreBounds
    from minutebook.model.entries import Entry
    from minutebook.model.record import Header
    from minutebook.ports import Page
    from minutebook.stores.remote import Change

SLICE: Final = 1_000
"""How many receipts and entries one script writes at most: a few milliseconds of its server (promise I-31)."""
_SLICE_BYTES: Final = 1 << 20
"""How many bytes, but for a single larger entry."""
APART: Final = "a conversation's keys do not belong together; restore a backup"
"""What is wrong where a bucket tells of a conversation and its log does not, or the other way round."""

_SIZE = struct.Struct(">Q")
_WEIGHT = struct.Struct(">QQ")


class Slice:
    """Receipts and then entries that one script writes, as it is given them."""

    def __init__(self, after: int) -> None:
        """Begin behind the entry of this number."""
        self.after = after
        """The number of the entry before its first one."""
        self.receipts = self.entries = self.size = 0
        self.rest: list[bytes] = []

    @property
    def given(self) -> dict[str, object]:
        """What the script is told of it."""
        return {"after": self.after, "receipts": self.receipts}

    def takes(self, size: int) -> bool:
        """Return whether there is room for one more of this size."""
        held = self.receipts + self.entries
        return not held or (held < SLICE and self.size + size <= _SLICE_BYTES)

    def add(self, *parts: bytes, receipt: bool = False) -> None:
        """Add one receipt, in its parts, or one entry."""
        self.receipts += receipt
        self.entries += not receipt
        self.size += sum(map(len, parts))
        self.rest += parts


def slices_of(change: Change) -> Iterator[Slice]:
    """
    Yield what a change brings, at least one slice.

    Receipts that come into a conversation that is there already are all in one: readers would see them before.
    """
    part = Slice(change.entries[0].seq - 1 if change.entries else 0)
    for earlier in change.earlier:
        packed = pack_receipt(earlier)
        if not change.expected and not part.takes(len(packed)):
            yield part
            part = Slice(part.after)
        part.add(earlier.idempotency.encode(), b"%d" % earlier.version, packed, receipt=True)
    if change.expected and change.earlier:
        for entry in change.entries:
            part.add(_packed(entry))
        yield part
        return
    for entry in change.entries:
        packed = _packed(entry)
        if not part.takes(len(packed)):
            yield part
            part = Slice(part.after + part.entries)
        part.add(packed)
    yield part


def _packed(entry: Entry) -> bytes:
    return _WEIGHT.pack(entry.messages, entry.size) + pack_entries((entry,))


def written_as(change: Change, packed: bytes, bounds: StoreBounds, tail: Page | None) -> dict[str, object]:
    """Return a change as what `WRITE` is given, without what it brings."""
    header, receipt = change.header, change.receipt
    return {
        "removes": int(header is None),
        "expected": change.expected,
        "wall": change.wall,
        "drift": change.drift,
        "grown": "" if change.damaged else change.grown,
        "max_sessions": bounds.max_sessions or "",
        "max_bytes": bounds.max_bytes or "",
        "stager": b"",
        "idle": "" if header is None or header.token else header.touched,
        "entries": header.entries if header is not None else 0,
        "gone": header.cut.seq if header is not None else 0,
        "name": receipt.idempotency.encode() if receipt else b"",
        "version": receipt.version if receipt else "",
        "packed": pack_receipt(receipt) if receipt else b"",
        "value": _SIZE.pack(header.bytes) + stamp_of(packed) + packed if header is not None else b"",
        **paged_as(tail),
    }


def paged_as(page: Page | None) -> dict[str, int]:
    """Return a page as what a script is given; without one nothing is read."""
    if page is None:
        return {"rows": 0, "messages": 0, "size": 0}
    return {"rows": page.rows, "messages": page.messages, "size": page.size}


def outcome_of(answer: list[Any], header: Header | None, packed: bytes) -> Written:
    """Return what became of a change to `header`, which is `packed` where it is one."""
    word, now, *said = answer
    if word == b"ok":
        newest, tail = said
        look = Look(now=now, header=header, stamp=stamp_of(packed) if packed else b"")
        return Written(look=look, tail=tuple(read_entries(tail, newest, -1)))
    refused: Literal["stale", "full"] = "stale" if word == b"stale" else "full"
    if refused == "stale":
        return Written(refused=refused, look=read_look(now, *said))
    head, conversations, size = said
    return Written(refused=refused, look=read_look(now, head), conversations=conversations, bytes=size)


def read_look(now: int, head: bytes, receipt: bytes = b"", *, damaged: bool = False) -> Look:
    """Return what a bucket's entry says of a conversation."""
    stamp, packed = head_parts(head)
    if damaged:
        return Look(now=now, stamp=stamp, damage=APART)
    return look_of(now, packed if head else None, stamp, receipt)


def head_parts(head: bytes) -> tuple[bytes, bytes]:
    """Return the stamp and the packed header of a bucket's entry; less than there should be where it is damaged."""
    return head[_SIZE.size : _SIZE.size + STAMP_BYTES], head[_SIZE.size + STAMP_BYTES :]


def read_entries(rows: Sequence[bytes], start: int, step: int) -> list[Entry]:
    """
    Return the entries of a log, of which the first has the number `start`.

    Raises:
        DecisionHistoryCorrupt: one is missing, or damaged.
    """
    found: list[Entry] = []
    for number, row in enumerate(rows):
        seq = start + step * number
        if not row:
            raise damaged(seq, "is missing")
        found += unpack_entries(row[_WEIGHT.size :], seq)
    return found


def pairs_of(flat: Sequence[bytes]) -> Iterable[tuple[bytes, bytes]]:
    """Return names with what belongs to them, as a script tells them one behind the other."""
    return zip(flat[::2], flat[1::2], strict=True)
