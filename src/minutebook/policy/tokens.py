"""
The token guard's search: how few of the oldest units must leave until a request fits (SPEC D12, case O-26).

A count costs a request to the provider, so the answer is not found by dropping one and counting again. Stored sizes say
where it should be; from there the search gallops to both sides until it holds a request that fits beside one that does
not. Whatever the counter answers, what is returned was counted and fits; a counter that never counts a shorter request
higher makes it the same as dropping one by one. It waits for counts and for nothing else, and names no event loop.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec

from minutebook.model.context import ContextWindow, window_exceeded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from minutebook.model.events import ProviderContextCount
    from minutebook.policy.room import Room
    from minutebook.policy.window import Plan


class TokenGuard(msgspec.Struct, frozen=True, kw_only=True):
    """What a window is held to beside its bytes and messages: a ceiling, an output allowance, and who counts."""

    context: ContextWindow
    max_output_tokens: int
    provider: str
    """The provider's name, as events tell it."""
    count: Callable[[bytes], Awaitable[int]]
    """Return the input tokens of the whole request whose messages are these bytes."""

    @property
    def most_input(self) -> int:
        """The input tokens that fit."""
        return self.context.most_input(self.max_output_tokens)

    async def measure(self, messages: bytes) -> ProviderContextCount:
        """Return what the request with these messages counts and reserves, and whether it fits."""
        tokens = await self.count(messages)
        return self.context.measured(self.provider, tokens, self.max_output_tokens)


async def fewest_removed(
    sizes: Sequence[int],
    whole: int,
    most_input: int,
    measure: Callable[[int], Awaitable[ProviderContextCount]],
) -> int:
    """
    Return how many of the oldest units leave so that the request fits; it was counted like that.

    Of n units that may leave, at most 2⌈log₂(n+1)⌉ + 2 requests are counted: the whole, the estimate, doubling steps
    away from it until the answer turns, and halves of the last step.

    Args:
        sizes: the bytes of each unit that may leave, oldest first.
        whole: the bytes of all the messages.
        most_input: the input tokens that fit, for the estimate.
        measure: counts the request without so many of the oldest units.

    Raises:
        ProviderContextWindowExceeded: it does not fit without all of them.
    """
    counted = await measure(0)
    if counted.fits:
        return 0
    too_few, enough = 0, len(sizes) + 1
    probe, step = _estimate(sizes, whole, counted.count, most_input), 1
    estimate_fits: bool | None = None
    while enough - too_few > 1:
        counted = await measure(probe)
        too_few, enough = (too_few, probe) if counted.fits else (probe, enough)
        estimate_fits = counted.fits if estimate_fits is None else estimate_fits
        if counted.fits is not estimate_fits:
            step = 0  # the answer lies between two requests that were counted: from here on, the middle
        if step:
            probe = max(enough - step, too_few + 1) if counted.fits else min(too_few + step, enough - 1)
            step *= 2
        else:
            probe = (too_few + enough) // 2
    if enough > len(sizes):
        raise window_exceeded(counted)
    return enough


async def fewest_removed_with_room(
    sizes: Sequence[int],
    whole: int,
    room: Room,
    most_input: int,
    measure: Callable[[int], Awaitable[ProviderContextCount]],
) -> int:
    """
    Return how many of the oldest units leave so that the request fits with `room` behind it; it was counted like that.
    A byte of the room weighs what one does that is sent: `sizes` and `whole` are without what is left out as stale.

    The shares of `room` are of what exchanges may fill: of the tokens beside those of the least that can be sent. So
    the least is counted too, unless all of it leaves room anyway; the answer lies between the two, and is found by
    halves, with no more counts than `fewest_removed` takes. Raises as that.
    """
    counted, held = await measure(0), max(sum(sizes), 1)
    if counted.count <= room.may_fill(most_input, min(counted.count * room.size // whole, room.size)):
        return 0
    least = await measure(len(sizes)) if sizes else counted
    if not least.fits:
        raise window_exceeded(least)
    above, space = counted.count - least.count, most_input - least.count
    wanted = min(above * room.size // held, room.size)  # a token has a byte, whatever else the least is without
    if above <= room.may_fill(space, wanted):
        return 0
    most = room.cut_to(space, wanted)
    too_few, enough = 0, len(sizes)
    probe = _estimate(sizes, sum(sizes), above, most)
    while enough - too_few > 1:
        probe = min(max(probe, too_few + 1), enough - 1)
        fits = (await measure(probe)).count - least.count <= most
        too_few, enough = (too_few, probe) if fits else (probe, enough)
        probe = (too_few + enough) // 2
    return enough


def _estimate(sizes: Sequence[int], whole: int, counted: int, most: int) -> int:
    """Return where the answer is, if every byte of the messages weighs the same."""
    excess = (counted - most) * whole
    for removed, size in enumerate(accumulate(sizes), 1):
        if size * counted >= excess:
            return removed
    return max(1, len(sizes))


def removable_sizes(plan: Plan, removable: int) -> list[int]:
    """Return what each of the oldest `removable` units takes with it, its turn's input where it is the turn's last."""
    sizes: list[int] = []
    for unit, newer in zip(plan.units[:removable], plan.units[1:], strict=False):
        said = plan.inputs.get(unit.turn, ()) if newer.turn != unit.turn else ()
        sizes.append(unit.size + sum([entry.size for entry in said]))
    return sizes
