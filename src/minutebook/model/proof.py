"""
Proving a record: its digest chain, its counters and its receipts must tell the same story (SPEC B8, promise I-39).

Entries and receipts are taken in order and nothing is kept of them, so a record of any length is proved in no memory.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from minutebook.errors import DecisionHistoryCorrupt
from minutebook.model.entries import ABANDONED, SUMMARY, damaged, first_digest, recompute_digest
from minutebook.model.summaries import check_made, read_summary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from minutebook.model.entries import Entry
    from minutebook.model.keys import ConversationKey
    from minutebook.model.record import Cut, Header, Receipt


def check_links(key: ConversationKey, entries: Sequence[Entry], cut: Cut | None = None) -> None:
    """
    See that each of some entries in a row, oldest first, follows from the one before it, and a record's first from its
    key, or from where it begins by the `cut` that took what stood before.

    Entries are held to this when they are read for the first time, since a row that decodes may have been altered. The
    oldest one is proved by the one before it alone, so who shows it reads that too. Linear in their bytes.

    Raises:
        DecisionHistoryCorrupt: one is not what was written.
    """
    before = first_digest(key) if entries and entries[0].seq == 1 else None
    if cut is not None and cut.seq and entries and entries[0].seq == cut.seq + 1:
        before = cut.digest
    for entry in entries:
        if before is not None and _digest_after(before, entry) != entry.digest:
            raise damaged(entry.seq, "is not what was written")
        before = entry.digest


def _digest_after(before: bytes, entry: Entry) -> bytes:
    try:
        return recompute_digest(before, entry)
    except struct.error:  # a number that no entry can have
        return b""


def proved(key: ConversationKey, header: Header, entries: Sequence[Entry]) -> Sequence[Entry]:
    """
    Return entries in a row, newest first as a store gave them, once they are what was written.

    The oldest of them is left out, since only the one before it could prove it, unless it is the record's first.

    Raises:
        DecisionHistoryCorrupt: one is not, or the newest is not the last one by the header.
    """
    check_links(key, entries[::-1], header.cut)
    if entries:
        _check_last(header, entries[0])
    return entries if entries and entries[-1].seq == header.cut.seq + 1 else entries[:-1]


def followed(header: Header, entries: Sequence[Entry]) -> Sequence[Entry]:
    """
    Return entries in a row, oldest first, as far as what stands behind each of them tells that it is the recorded one.

    An entry that was rewritten with its own digest follows from the one before it all the same. So the last of them is
    left out, since only the next one could tell, unless it is the record's last: then the header tells.

    Raises:
        DecisionHistoryCorrupt: the last one reaches the header, and is not its last one.
    """
    if not entries or entries[-1].seq < header.entries:
        return entries[:-1]
    _check_last(header, entries[-1])
    return entries


def check_end(key: ConversationKey, header: Header, entries: Sequence[Entry]) -> None:
    """
    See that entries in a row, oldest first, are what was written, up to the last one that the record has.

    Raises:
        DecisionHistoryCorrupt: one does not follow from the one before it, or the last is not the header's.
    """
    check_links(key, entries)
    if (entries[-1].seq, entries[-1].digest) != (header.entries, header.digest) if entries else header.entries:
        raise damaged(header.entries, "is not the last one by the header")


def _check_last(header: Header, last: Entry) -> None:
    if last.seq >= header.entries and last.digest != header.digest:
        raise damaged(last.seq, "is not the last one by the header")


class Proof:
    """How far a record is proved: up to `seq`, and up to the receipt of `version`."""

    def __init__(self, key: ConversationKey, header: Header) -> None:
        """Begin before the first entry that the record which `header` describes holds."""
        self.seq = header.cut.seq
        self.version = 0
        self._header = header
        self._digest = header.cut.digest or first_digest(key)
        self._size = 0
        self._receipted = 0

    def take_entry(self, entry: Entry) -> None:
        """
        Take the next entry.

        Raises:
            DecisionHistoryCorrupt: it is not what was written, or a summary that nobody here makes.
        """
        self.seq += 1
        self._digest = _digest_after(self._digest, entry)
        if entry.seq != self.seq or entry.digest != self._digest:
            raise DecisionHistoryCorrupt(f"entry {self.seq} is not what was written", seq=self.seq)
        if entry.kind is not ABANDONED:
            self._size += len(entry.payload)
        if entry.kind is SUMMARY:
            summary = read_summary(entry)
            check_made(summary)
            if summary.covered.last > entry.seq:  # a chat's first entry reaches as far as itself
                raise damaged(entry.seq, "covers what stands behind it")

    def take_receipt(self, receipt: Receipt) -> None:
        """
        Take the next receipt, once every entry that it tells of was taken. Of one whose entries have left the record
        only its place is proved.

        Raises:
            DecisionHistoryCorrupt: it does not follow the one before it, or tells of other entries.
        """
        self.version += 1
        follows = receipt.version == self.version and receipt.first == self._receipted + 1
        left = receipt.last < self._header.cut.seq
        if not follows or not (left or (receipt.last, receipt.digest) == (self.seq, self._digest)):
            raise DecisionHistoryCorrupt(
                f"the receipt of version {self.version} does not tell of the entries up to {self.seq}", seq=self.seq
            )
        self._receipted = receipt.last

    def close(self) -> None:
        """
        See that the header counts what was proved.

        Raises:
            DecisionHistoryCorrupt: it counts other entries, bytes or versions.
        """
        header = self._header
        if (self.seq, self._digest) != (header.entries, header.digest):
            raise DecisionHistoryCorrupt(
                f"the record ends at entry {self.seq}, its header at {header.entries}", seq=self.seq + 1
            )
        if (self._size, self.version) != (header.bytes, header.version):
            raise DecisionHistoryCorrupt(
                f"the header counts {header.bytes:,} bytes in {header.version:,} versions, the record holds "
                f"{self._size:,} bytes and {self.version:,} receipts",
                seq=self.seq,
            )
