"""
What stands: the entries of a record that no mark takes out.

An attempt that failed, or an input that another one superseded, stays in the record and leaves everything that is read
of it. Its ABANDONED mark comes behind it and names its first and its last entry, so that whoever reads a record
backward knows of it in time, and whoever reads forward takes back what the mark names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minutebook.model.entries import ABANDONED, Entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def pass_over(mark: Entry, below: int, inputs: set[int]) -> int:
    """
    Return the `seq` below which a record stands that is read newest first and has come to a mark.

    That is the attempt's first entry, or the first of all that failed right before it. Where the mark takes out an
    input alone it stays at `below`, and the input is added to `inputs`, which are to be passed over one by one.
    """
    # An attempt holds the reservation, so its entries stand right before its mark. An input that another one
    # superseded stands alone: the late result of a parked call may have come between it and its mark.
    if mark.call == mark.seq - 1:
        return mark.exchange
    inputs.add(mark.exchange)
    return below


def standing_entries(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries, given oldest first, that no mark among them takes out; and no mark."""
    found: list[Entry] = []
    for entry in entries:
        if entry.kind is ABANDONED and entry.call == entry.seq - 1:
            while found and found[-1].seq >= entry.exchange:
                found.pop()
        elif entry.kind is ABANDONED:
            found = [earlier for earlier in found if not entry.exchange <= earlier.seq <= entry.call]
        else:
            found.append(entry)
    return found


def marks_over(entries: Iterable[Entry]) -> dict[int, int]:
    """
    Return by its `seq` the mark of each entry that one took out, of entries given newest first.

    Of several marks over one entry that is the oldest: later ones name what had failed before once more.
    """
    marks: list[Entry] = []
    found: dict[int, int] = {}
    for entry in entries:
        mark = next((mark for mark in reversed(marks) if mark.exchange <= entry.seq <= mark.call), None)
        if mark is not None and entry.kind is not ABANDONED:
            found[entry.seq] = mark.seq
        if entry.kind is ABANDONED:
            marks.append(entry)
    return found


class Passing:
    """The entries from a place downwards, without what marks among them pass over; a `Scanning`."""

    def __init__(self, seq: int) -> None:
        """Begin with the entry `seq`."""
        self.next_seq = seq
        self.entries: list[Entry] = []
        """Newest first."""

    def add(self, entries: Iterable[Entry]) -> None:
        """Take the next entries, newest first and without a gap."""
        for entry in entries:
            if entry.seq <= self.next_seq:
                self.entries.append(entry)
                below = pass_over(entry, entry.seq, set()) if entry.kind is ABANDONED else entry.seq
                self.next_seq = below - 1


def without_passed(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Return the entries, given newest first, without those that are passed over with a mark among them."""
    if not any(entry.kind is ABANDONED for entry in entries):
        return entries
    passing = Passing(entries[0].seq)
    passing.add(entries)
    return passing.entries
