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
    from collections.abc import Iterable


def pass_over(mark: Entry, below: int, inputs: set[int]) -> int:
    """
    Return the `seq` below which a record stands that is read newest first and has come to a mark.

    That is the attempt's first entry. Where the mark takes out an input alone it stays at `below`, and the input is
    added to `inputs`, which are to be passed over one by one.
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
        if entry.kind is ABANDONED:
            found = [earlier for earlier in found if not entry.exchange <= earlier.seq <= entry.call]
        else:
            found.append(entry)
    return found
