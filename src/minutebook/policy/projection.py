"""
From units to bytes: a window is joined from stored slices, and nothing of it is encoded again.

The one exception is a call id that the same window would hold twice, or that the API refuses: those few exchanges are
written with new ids. And of a response what its provider refuses to take back is left out, or put in the form that it
takes, the same in every window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minutebook.errors import DecisionHistoryCorrupt
from minutebook.model.entries import RESPONSE, RESULT, Entry
from minutebook.policy.pairing import Renaming, check_unit, repeated_ids

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from minutebook.model.summaries import Summary
    from minutebook.model.units import Unit
    from minutebook.policy.window import Plan
    from minutebook.ports import Wire


def project(plan: Plan, wire: Wire, summary: Summary | None = None) -> bytes:
    """
    Return the window as the bytes of a JSON array of wire messages, oldest first.

    A summary stands in the first message, which is a user's, before what that says: so no two messages of one role meet
    that did not meet before (case O-14).

    Raises:
        DecisionHistoryCorrupt: a call without its result, a result without its call, or a turn without its input.
    """
    renaming = repeated_ids(plan.units, wire.id_form)
    parts: list[bytes] = []
    turn = 0
    for unit in plan.units:
        opens = unit.turn != turn
        turn = unit.turn
        known = unit.joined
        if known is None or known[0] is not wire or known[1] is not opens or unit.key in renaming:
            said = reversed(_input(plan, turn)) if opens else ()
            parts.append(_joined(unit, said, wire, renaming))
            if unit.key not in renaming:
                unit.joined = (wire, opens, parts[-1])  # the next window finds it with the unit
        else:
            parts.append(known[2])
    if summary is not None and parts:
        parts[0] = wire.prefaced(summary.told, parts[0])
    return b"[%b]" % b",".join(filter(None, parts))


def _input(plan: Plan, turn: int) -> Sequence[Entry]:
    if turn not in plan.inputs:
        raise DecisionHistoryCorrupt(f"an exchange answers seq {turn}, where no input is; verify the store", seq=turn)
    return plan.inputs[turn]


def _joined(unit: Unit, said: Iterable[Entry], wire: Wire, renaming: Renaming) -> bytes:
    """Return a unit's wire messages joined, behind what was said before it."""
    fragments = [fragment for entry in said if (fragment := entry.fragment)]
    if unit.entries:
        check_unit(unit)
        fragments += unit_fragments(unit, wire, renaming)
    return b",".join(fragments)


def unit_fragments(unit: Unit, wire: Wire, renaming: Renaming | None = None) -> list[bytes]:
    """Return the wire messages of one unit, its turn's input left out."""
    names = renaming.get(unit.key, ()) if renaming else ()
    fragments: list[bytes] = []
    results: list[bytes] = []
    said: list[bytes] = []
    empty = [other.call for other in unit.entries if other.kind is RESULT and not other.fragment] if names else []
    for entry in unit.entries:
        kind, fragment = entry.kind, entry.fragment
        if not fragment:
            continue
        if kind is RESPONSE:
            before, after = wire.response_wrap
            sent = wire.sendable(fragment)
            fragments.append(before + (wire.rename(sent, names) if names else sent) + after)
        elif kind is RESULT:
            results.append(wire.rename(fragment, _answered(entry, empty, names)) if names else fragment)
        else:
            said.append(fragment)
    if results:
        before, after = wire.results_wrap
        fragments.append(before + b",".join(results) + after)
    return fragments + said if said else fragments


def _answered(entry: Entry, empty: Sequence[int], names: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """The renamed calls that one result entry answers: its own, and those of `empty` ones behind it."""
    return (names[entry.call], *(names[call] for call in empty if call > entry.call))
