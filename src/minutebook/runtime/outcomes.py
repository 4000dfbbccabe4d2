"""What a run comes to, and what every run is given from outside."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

from minutebook.errors import InvalidValue
from minutebook.model.decisions import Observation
from minutebook.runtime.approvals import PendingApproval
from minutebook.runtime.budgets import Budget
from minutebook.runtime.checkpoints import Storage
from minutebook.runtime.references import Projection

if TYPE_CHECKING:
    from collections.abc import Mapping

    from minutebook.model.telling import Cancelled
    from minutebook.ports import DecisionProvider, Random

T = TypeVar("T")


class Outcome(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """What a run came to, with everything that it observed."""

    kind: Literal["finished", "approval_required", "budget_exhausted", "failed", "abandoned"]
    run_id: str
    invocation_id: str
    observations: tuple[Observation, ...]
    """All of the task, oldest first, those that it went on with among them."""
    decisions: int
    """Decisions that this run asked for, those of the agents that it called among them."""
    calls: int
    """Calls that this run executed, well or badly, those of the agents that it called among them."""
    output: T | None = None
    """What the model finished with; `None` unless it finished."""
    budget: Budget | None = None
    """Which budget ended the run."""
    error: InvalidValue | None = None
    """The program's fault that ended the run: a capability returned what JSON cannot hold."""
    pending: tuple[PendingApproval, ...] = ()
    """The calls that wait for a human, its agents' among them; none of them was executed."""

    def __repr__(self) -> str:
        return (
            f"Outcome({self.kind!r}, decisions={self.decisions}, calls={self.calls}, budget={self.budget!r}, "
            f"{len(self.pending)} pending)"
        )


Branch: TypeAlias = Callable[[], Awaitable[Outcome[Any]]]
Gather: TypeAlias = Callable[[Sequence[Branch]], Awaitable[list[Outcome[Any]]]]
"""Runs branches to the end of each and returns their outcomes in order; raises the first error once all have ended."""


@dataclass(frozen=True)
class Host:
    """What every invocation of a runtime is given from outside."""

    provider: DecisionProvider
    providers: Mapping[str, DecisionProvider]
    """Who decides instead for the agents of these names."""
    checkpoints: Storage | None
    memory: Storage | None
    fresh_id: Random
    monotonic_ns: Callable[[], int]
    clock: Callable[[], int]
    approval_ms: int
    """How long a call waits for its approval before it has to be shown anew."""
    gather: Gather
    cancelled: Cancelled
    projection: Projection
    """What providers keep of a model's arguments."""
