"""
From units to bytes: a window is joined from stored slices, and nothing of it is encoded again.

The one exception is a call id that the same window would hold twice: those few exchanges are written with new ids. And
of a response what its provider refuses to take back is left out, the same in every window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minutebook.errors import DecisionHistoryCorrupt
from minutebook.model.entries import RESPONSE, RESULT, Entry
from minutebook.policy.pairing import Renaming, check_unit, repeated_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    renaming = repeated_ids(plan.units)
    fragments: list[bytes] = []
    turn = 0
    for unit in plan.units:
        if unit.turn != turn:
            turn = unit.turn
            fragments += [entry.fragment for entry in reversed(_input(plan, turn))]
        if unit.entries:
            fragments.append(_joined(unit, wire, renaming))
    if summary is not None and fragments:
        fragments[0] = wire.prefaced(summary.told, fragments[0])
    return b"[%b]" % b",".join(filter(None, fragments))


def _input(plan: Plan, turn: int) -> Sequence[Entry]:
    if turn not in plan.inputs:
        raise DecisionHistoryCorrupt(f"an exchange answers seq {turn}, where no input is; verify the store", seq=turn)
    return plan.inputs[turn]


def _joined(unit: Unit, wire: Wire, renaming: Renaming) -> bytes:
    """Return a unit's wire messages joined, and remember them with it for the next window."""
    if unit.joined is not None and unit.joined[0] is wire and unit.key not in renaming:
        return unit.joined[1]
    check_unit(unit)
    joined = b",".join(unit_fragments(unit, wire, renaming))
    if unit.key not in renaming:
        unit.joined = (wire, joined)
    return joined


def unit_fragments(unit: Unit, wire: Wire, renaming: Renaming | None = None) -> list[bytes]:
    """Return the wire messages of one unit, its turn's input left out."""
    names = (renaming or {}).get(unit.key, ())
    fragments: list[bytes] = []
    results: list[bytes] = []
    said: list[bytes] = []
    for entry in unit.entries:
        fragment = entry.fragment
        if not fragment:
            continue
        if entry.kind is RESPONSE:
            before, after = wire.response_wrap
            sent = wire.sendable(fragment)
            fragments.append(before + (wire.rename(sent, names) if names else sent) + after)
        elif entry.kind is RESULT:
            results.append(wire.rename(fragment, _answered(entry, unit, names)) if names else fragment)
        else:
            said.append(fragment)
    if results:
        before, after = wire.results_wrap
        fragments.append(before + b",".join(results) + after)
    return fragments + said


def _answered(entry: Entry, unit: Unit, names: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """The renamed calls that one result entry answers: its own, and those of later entries that it stands for."""
    empty = [other.call for other in unit.entries if other.kind is RESULT and not other.fragment]
    return (names[entry.call], *(names[call] for call in empty if call > entry.call))
