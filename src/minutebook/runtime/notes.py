"""
What one invocation notes: its records, the state that they make, and what is left of its budgets while it does.

Nothing else changes a state. A record is applied when it is noted and durable with the next commit, so a run that goes
on in another process applies the same records and is in the same state.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from minutebook.model.decisions import Observation
from minutebook.runtime import observations as observed
from minutebook.runtime.records import Elapsed, Observed, Progress, Record

if TYPE_CHECKING:
    from minutebook.runtime.budgets import Ledger
    from minutebook.runtime.checkpoints import Log

Report: TypeAlias = Callable[[Observation], Awaitable[None] | None]
"""Told of each observation as soon as it is made, and waited for where it has to be."""


class Notes:
    """The records of one invocation, in a log where one is kept."""

    def __init__(self, log: Log | None, report: Report | None) -> None:
        """Begin before the first record; nothing is read or held yet."""
        self._log = log
        self._report = report
        self.progress = Progress()
        self._ledger: Ledger | None = None
        self.worked = False
        """Whether anything was noted. A run that only looks, as one does that polls for an answer, adds nothing."""

    @property
    def ledger(self) -> Ledger:
        """What is left of the budgets of its task, which has begun."""
        assert self._ledger is not None
        return self._ledger

    def count_in(self, ledger: Ledger) -> None:
        """Count in `ledger` what is used from now on."""
        self._ledger = ledger

    @property
    def kept(self) -> bool:
        """Whether what is noted outlives this process."""
        return self._log is not None

    @property
    def address(self) -> str:
        """A digest of where the records are kept."""
        return self._log.address if self._log else ""

    async def take(self, *, owned: bool = False) -> Progress:
        """Reserve the log and return the state that its newest task is in; see `Log.take`."""
        return await self._log.take(owned=owned) if self._log else Progress()

    async def release(self, error: BaseException | None = None, *, worked: bool) -> None:
        """
        Give the log back, with the time of which no record tells yet; see `Log.release`.

        Where nothing was noted, here or below, `worked` is false, and none is.
        """
        if self._log is not None:
            if worked and self._ledger is not None and self.progress.ended is None:
                with contextlib.suppress(Exception):  # of a clock that failed: a log that is not given back is worse
                    self._note_elapsed(self._ledger)
            await self._log.release(error)

    def _note_elapsed(self, ledger: Ledger) -> None:
        # Else a step that fails would cost nothing of the wall time, however often it is tried (promise I-43).
        if ledger.wall_used_ns > self.progress.wall_ns:
            self.note(Elapsed())

    def begin(self) -> None:
        """Begin a task: the state is that of no record."""
        self.progress = Progress()

    def keep(self, *records: Record) -> None:
        """Apply records of what was before this run's clock began to count."""
        for record in records:
            self.progress.apply(record)
        if self._log is not None:
            self._log.note(*records)

    def note(self, *records: Record) -> None:
        """Apply records, with the time that the invocation has used: all of them, or none where its clock fails."""
        self.worked = True
        used = self.ledger.wall_used_ns
        self.keep(*[msgspec.structs.replace(record, wall_ns=used) for record in records])

    async def commit(self) -> None:
        """Make what was noted durable; see `Log.commit`."""
        if self._log is not None:
            await self._log.commit()

    async def observe(self, position: int, observation: Observation, *, decisions: int = 0, calls: int = 0) -> None:
        """Note what came of a call, and what the agents below it used in all; nothing goes on before it is told."""
        self.note(
            Observed(
                position=position,
                value=observation.value,
                error=observation.error,
                decisions=decisions,
                calls=calls,
            )
        )
        if self._report is not None:
            told = self._report(self.progress.observations[-1])
            if inspect.isawaitable(told):
                await told

    async def refuse_waiting(self) -> None:
        """Observe the calls that are left: as stopped, or as interrupted where one was under way."""
        for position in self.progress.waiting:
            call = self.progress.calls[position]
            under_way = position in self.progress.open
            await self.observe(
                position, observed.interrupted(call) if under_way else observed.refused(call, "run_stopped")
            )
