"""
Room for a tool loop whose reasoning is bound to the window it began in.

Inside such a loop nothing can leave the window: its reasoning would be stale, and the provider demands it there (SPEC
D26). So a window makes room before the loop begins, in the first request of a turn. It keeps its start for as long as a
third of what exchanges may fill is free, and room for a loop like the largest that the limits reach; else it is cut to
half, as for SPEC B3, or further where that loop needs more. A loop that outgrows its room is refused all the same. Then
the record remembers how large it had become, and the next turn begins with room for twice as much, or with what must
stay alone: whatever the limits are, a conversation never gets stuck at them.

What has left does not come back while reasoning stands that was made without it. Windows that hold no reasoning of the
kind are as large as ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from minutebook.model.units import weigh
from minutebook.policy.binding import open_loop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from minutebook.model.record import State
    from minutebook.model.units import Unit
    from minutebook.policy.binding import Reasoning
    from minutebook.ports import Wire

LOW_WATER: Final = 0.5
"""To what share of its limits a window is cut, at most, where it has to make room."""

LEAST: Final = 1 / 3
"""The share of the limits that a turn begins with, at least."""


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """What a window leaves free behind it."""

    low_water: float
    """The share of the limits that it is cut to."""
    least: float = 0
    """The share of them that stays free."""
    messages: int = 0
    """How many messages have room, where that is more."""
    size: int = 0
    """How many bytes, separators left out."""
    loop: tuple[int, int] | None = None
    """
    Messages and bytes of a turn whose open loop keeps the window's start, under other limits too; `None` where nothing
    has to stay.
    """

    def may_fill(self, most: int, wanted: int) -> int:
        """Return how much of `most` a window may fill that keeps its start, where so much is `wanted` behind it."""
        return max(most - max(wanted, int(most * self.least)), 0)

    def cut_to(self, most: int, wanted: int) -> int:
        """Return how much of `most` a window fills that is cut."""
        return max(min(int(most * self.low_water), most - wanted), 0)


def makes_room(wire: Wire, reasoning: Reasoning) -> bool:
    """Return whether windows of a wire format may have to make room."""
    return wire.binds and wire.loops and reasoning == "strip"


def room_for(units: Sequence[Unit], turn: Sequence[Unit], state: State, wire: Wire, low_water: float) -> Room | None:
    """
    Return the room that a window of the newest of `units` leaves for a tool loop; `None` for none.

    The units of the newest `turn` tell whether it is in the middle of one: with reasoning that keeps the window's start
    and has no room beside it. Nor has reasoning without calls. All are oldest first; linear in them.
    """
    loop = open_loop(turn, wire)
    if any(unit.key in loop and _thinks(unit, wire) for unit in turn):
        # All of the turn has to be there again, what was said beside its loop too.
        held = [entry for unit in turn if unit.key >= state.window_from for entry in unit.entries]
        return Room(low_water=min(low_water, LOW_WATER), loop=weigh(held))
    exchanges = [unit for unit in units if unit.is_exchange]
    thinking = [unit for unit in exchanges if _thinks(unit, wire)]
    if not any(unit.entries[0].calls for unit in thinking) and not any(state.outgrown):
        return Room(low_water=low_water) if thinking else None
    low_water = min(low_water, LOW_WATER)
    if loop:
        return Room(low_water=low_water)
    loops: dict[int, tuple[int, int]] = {}
    for unit in exchanges:
        if unit.entries[0].calls:
            messages, size = loops.get(unit.turn, (0, 0))
            loops[unit.turn] = (messages + unit.messages, size + unit.size)
    messages, size = state.outgrown
    loops[0] = (2 * messages, 2 * size)  # nobody knows how large it would have become
    return Room(
        low_water=low_water,
        least=LEAST,
        messages=max(messages for messages, _ in loops.values()),
        size=max(size for _, size in loops.values()),
    )


def _thinks(unit: Unit, wire: Wire) -> bool:
    fragment = unit.entries[0].fragment
    return wire.unbound(fragment) != fragment
