"""
Proving a record: its digest chain, its counters and its receipts must tell the same story (SPEC B8, promise I-39).

Entries and receipts are taken in order and nothing is kept of them, so a record of any length is proved in no memory.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from minutebook.errors import DecisionHistoryCorrupt
from minutebook.model.entries import ABANDONED, first_digest, recompute_digest

if TYPE_CHECKING:
    from minutebook.model.entries import Entry
    from minutebook.model.keys import ConversationKey
    from minutebook.model.record import Header, Receipt


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
            DecisionHistoryCorrupt: it is not what was written.
        """
        self.seq += 1
        try:
            self._digest = recompute_digest(self._digest, entry)
        except struct.error:  # a number that no entry can have
            self._digest = b""
        if entry.seq != self.seq or entry.digest != self._digest:
            raise DecisionHistoryCorrupt(f"entry {self.seq} is not what was written", seq=self.seq)
        if entry.kind is not ABANDONED:
            self._size += len(entry.payload)

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
