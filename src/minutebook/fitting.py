"""
How one window is fitted: planned by the sizes of what it holds, held to the model's own window by counts, and with a
summary before it where a host makes summaries.

A window is planned a second time only when something leaves that no summary covers yet. Then the cut keeps room for a
summary of full length, the callback is asked once, and what came is measured and counted like everything else; should
it weigh more than the room that was kept, there is one more round, and then a refusal. Nothing here writes.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import msgspec

from minutebook.errors import DecisionHistoryLimitExceeded, MinutebookError, ProviderContextWindowExceeded
from minutebook.model.context import window_exceeded
from minutebook.model.shown import type_alone
from minutebook.model.summaries import Summary
from minutebook.policy.binding import outgrown
from minutebook.policy.compaction import Removed, Summarising, newly_removed, summary_size
from minutebook.policy.projection import project
from minutebook.policy.room import Room
from minutebook.policy.tokens import TokenGuard, fewest_removed, fewest_removed_with_room, removable_sizes
from minutebook.policy.window import Plan, Scan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from minutebook.model.bounds import WindowLimits
    from minutebook.model.events import Event, ProviderContextCount
    from minutebook.ports import Wire

ROUNDS = 2
"""How often a step may ask for a summary (SPEC D18)."""


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent, and the summary that is to be recorded with the answer to it."""

    plan: Plan
    shown: Plan
    """The plan as it is sent, without stale reasoning."""
    json: bytes
    summary: Summary | None = None
    newly_covered: int = 0

    __repr__ = type_alone


class Fitting:
    """
    One window on its way; `summary` is the one that it shows.

    `bind` returns a plan as it is sent, told whether that is behind another summary than this. `room_for` returns what
    is left free, given all that could be sent; `None` where nothing ever is (see `policy.room`).
    """

    def __init__(
        self,
        scan: Scan,
        wire: Wire,
        limits: WindowLimits,
        low_water: float,
        emit: Callable[[Event], None],
        bind: Callable[[Plan, bool], Plan],
        room_for: Callable[[Plan], Room | None] | None,
        *,
        summary: Summary | None,
        guard: TokenGuard | None,
    ) -> None:
        self._scan = scan
        self._wire = wire
        self._limits = limits
        self._low_water = low_water
        self._emit = emit
        self._bind = bind
        self._room_for = room_for
        self._room: Room | None = None
        self._given = self._summary = summary
        self._guard = guard
        self._last_count: ProviderContextCount | None = None

    async def cut(self) -> Fitted:
        """
        Return the newest exchanges that fit, behind the summary that there is.

        Raises:
            DecisionHistoryLimitExceeded: what must stay exceeds a limit.
            ProviderContextWindowExceeded: the same, counted in tokens.
        """
        return await self._counted(*self._planned())

    async def compacted(self, summarising: Summarising, uncovered: Callable[[], Awaitable[Removed]]) -> Fitted:
        """
        Return the same with everything that leaves summarised; `uncovered` reads what no summary covers.

        Raises:
            DecisionHistorySummaryInvalid: the callback raised, or gave no summary.
            DecisionHistoryLimitExceeded, ProviderContextWindowExceeded: also for a summary too large for its room.
        """
        stand_in = summarising.stand_in()
        try:
            plan, json = self._planned()
        except DecisionHistoryLimitExceeded:
            if self._summary is None or self._loop is not None:
                raise
            # The one that stands was made under wider limits. A shorter one is made of it, and of what leaves now.
            return await self._in_rounds(summarising, await uncovered(), stand_in)
        if not plan.uncovered or self._loop is not None:
            # Inside a loop that keeps its start a summary would make its reasoning stale: the next turn makes it.
            if not self._scan.removable(plan):
                return await self._counted(plan, json)
            # One count tells whether anything leaves. How much is found out with room for the summary of it.
            if self._room is None and await self._fits(json):
                return self._fitted(plan, json)
            if self._room is not None and (whole := await self._counted(plan, json)).plan.start == plan.start:
                return whole
        made = self._summary
        room = made if made and summary_size(made) > summary_size(stand_in) else stand_in
        return await self._in_rounds(summarising, await uncovered(), room)

    async def _in_rounds(self, summarising: Summarising, removed: Removed, room: Summary) -> Fitted:
        made = self._summary
        covered: list[int] = []
        asked = 0
        while asked < ROUNDS:
            self._summary = room
            plan = (await self.cut()).plan
            new = newly_removed(removed, plan.start, covered)
            if not new.units and made is not None and room is not made:
                room = made  # it weighs more than a stand-in of its length: by the tokens of another language, say
                continue
            if not new.units and not asked and self._wire.binds:
                # Behind a new summary all reasoning is stale, and without that nothing has to leave any more.
                if (whole := await self._roomless()) is not None:
                    return whole
                self._summary = room
                plan = self._scan.narrowed(plan, min(self._scan.removable(plan), 1))
                new = newly_removed(removed, plan.start, covered)
            if not new.units:
                break
            asked += 1
            room = made = self._summary = await summarising.make(made, new, self._wire)
            covered += [unit.key for unit in new.units]
            json = self._joined(plan)
            if len(json) <= self._limits.max_bytes and await self._fits(json):
                return self._fitted(plan, json, summary=made, newly_covered=len(covered))
        raise self._refusal(summary_size(room))

    async def _roomless(self) -> Fitted | None:
        """Return the window as it stands, with the summary that there is, if it fits so; room or none."""
        self._summary = self._given
        plan, json = self._planned()
        return self._fitted(plan, json) if await self._fits(json) else None

    def _refusal(self, size: int) -> MinutebookError:
        if self._last_count is not None and not self._last_count.fits:
            return window_exceeded(self._last_count, size)
        return DecisionHistoryLimitExceeded(
            f"the summary adds {size:,} bytes and does not fit beside what must stay, limit "
            f"{self._limits.max_bytes:,}; raise max_bytes, or lower max_summary_bytes",
            bytes=size,
            max_bytes=self._limits.max_bytes,
        )

    def _planned(self) -> tuple[Plan, bytes]:
        steady = None if self._low_water == 1 else Room(low_water=self._low_water)
        self._room = self._room_for(self._scan.plan(self._limits, None, self._reserved)) if self._room_for else None
        plan = self._scan.plan(self._limits, self._room or steady, self._reserved)
        if plan.left[1]:
            self._keep_loop(plan)
        json = self._joined(plan)
        if len(json) > self._limits.max_bytes:
            self._keep_loop(plan)
            plan = self._within_bytes(plan)
            json = self._joined(plan)
        return plan, json

    @property
    def _loop(self) -> tuple[int, int] | None:
        """What the open loop has come to that keeps all of the window; `None` where something may leave."""
        return self._room.loop if self._room else None

    def _keep_loop(self, plan: Plan) -> None:
        """Refuse that anything leaves where a loop keeps it (SPEC D26)."""
        if self._loop is not None:
            raise outgrown(plan, self._limits, self._loop)

    @property
    def _reserved(self) -> int:
        """The bytes that the summary takes of the window, at most."""
        return summary_size(self._summary) if self._summary else 0

    def _within_bytes(self, plan: Plan) -> Plan:
        """
        Return `plan` without as many of its oldest units as its new call ids have made it too large for.

        Each unit makes it larger, so doubling steps and a bisection find what dropping one by one would, in a number of
        projections that grows with the logarithm of what leaves.
        """

        def fits(removed: int) -> bool:
            return len(self._joined(self._scan.narrowed(plan, removed))) <= self._limits.max_bytes

        most, too_few, probe = self._scan.removable(plan), 0, 1
        while probe < most and not fits(probe):
            too_few, probe = probe, 2 * probe
        removed = bisect_left(range(min(probe, most) + 1), True, lo=too_few + 1, key=fits)
        if removed > most:
            narrowest = self._scan.narrowed(plan, most)
            size = len(self._joined(narrowest))
            return self._scan.without_oldest(narrowest, self._limits, self._reserved, size)  # which refuses
        return self._scan.narrowed(plan, removed)

    def _joined(self, plan: Plan) -> bytes:
        return project(self._shown(plan), self._wire, self._summary)

    def _shown(self, plan: Plan) -> Plan:
        return self._bind(plan, self._summary is not self._given)

    def _fitted(self, plan: Plan, json: bytes, summary: Summary | None = None, newly_covered: int = 0) -> Fitted:
        return Fitted(plan=plan, shown=self._shown(plan), json=json, summary=summary, newly_covered=newly_covered)

    async def _fits(self, json: bytes) -> bool:
        return self._guard is None or (await self._measured(self._guard, json)).fits

    async def _measured(self, guard: TokenGuard, json: bytes) -> ProviderContextCount:
        counted = self._last_count = await guard.measure(json)
        self._emit(counted)
        return counted

    async def _counted(self, plan: Plan, json: bytes) -> Fitted:
        """Return what of a planned window fits the model's; what comes back was counted like that (SPEC D12)."""
        guard = self._guard
        if guard is None:
            return self._fitted(plan, json)
        built = {0: self._fitted(plan, json)}

        async def measure(removed: int) -> ProviderContextCount:
            if removed:
                self._keep_loop(plan)
                narrower = self._scan.narrowed(plan, removed)
                built[removed] = self._fitted(narrower, self._joined(narrower))
            return await self._measured(guard, built[removed].json)

        sizes = removable_sizes(built[0].shown, self._scan.removable(plan))
        try:
            if self._room is None:
                removed = await fewest_removed(sizes, len(json), guard.most_input, measure)
            else:
                removed = await fewest_removed_with_room(sizes, len(json), self._room, guard.most_input, measure)
        except ProviderContextWindowExceeded:
            if self._last_count is None or not self._reserved:
                raise
            raise window_exceeded(self._last_count, self._reserved) from None
        return built[removed]
