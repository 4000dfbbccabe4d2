"""
Calls and results: the second look at what a window is about to send.

That a result belongs to an open call of its own exchange is settled when it is written (`model.law.extend`). Here
the complete window is checked again, and call ids that a provider used twice are told apart: pairing is by exchange
and position, so the record keeps the ids as they came, and only the request gets new ones (cases O-02, O-09).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minutebook.errors import DecisionHistoryCorrupt
from minutebook.model.entries import RESULT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from minutebook.model.units import Unit

Renaming = dict[int, tuple[tuple[str, str], ...]]
"""For each exchange that needs it, the (old id, new id) of every one of its calls, in order."""


def check_unit(unit: Unit) -> None:
    """
    See that every call of a unit has exactly one result, in call order, and every result its call.

    Raises:
        DecisionHistoryCorrupt: stored rows break the rule that was kept when they were written; `seq` names the unit.
    """
    calls = len(unit.entries[0].calls)
    if not calls and len(unit.entries) == 1:
        return
    answered = [entry.call for entry in unit.entries if entry.kind is RESULT]
    if answered != list(range(calls)):
        raise DecisionHistoryCorrupt(
            f"the exchange at seq {unit.key} has {calls} calls and {len(answered)} results; verify the store",
            seq=unit.key,
        )


def repeated_ids(units: Iterable[Unit]) -> Renaming:
    """
    Return new ids for calls whose id stands earlier in the same window; empty when all differ.

    The new id names the exchange and the position, so it is the same in every window that needs one. It has
    only letters, digits and underscores, and at most 40 characters: all providers take it.
    """
    responses = [unit.entries[0] for unit in units if unit.entries and unit.entries[0].calls]
    ids = [call.id for entry in responses for call in entry.calls]
    taken = set(ids)
    if len(taken) == len(ids):
        return {}
    seen: set[str] = set()
    renaming: Renaming = {}
    for entry in responses:
        names: list[tuple[str, str]] = []
        for position, call in enumerate(entry.calls):
            new = call.id if call.id not in seen or not call.id else _free_id(entry.seq, position, taken)
            names.append((call.id, new))
            seen.add(new)
        if any(old != new for old, new in names):
            renaming[entry.seq] = tuple(names)
    return renaming


def _free_id(exchange: int, position: int, taken: set[str]) -> str:
    new = f"call_{exchange}_{position}"
    while new in taken:
        new += "_"
    taken.add(new)
    return new
