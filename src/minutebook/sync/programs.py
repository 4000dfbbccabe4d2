"""The runtime for blocking callers: decisions, capabilities and memory resources without an event loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar

from minutebook import programs as asynchronous
from minutebook.errors import BlockingMismatch
from minutebook.model.colours import check_plain
from minutebook.runtime.approvals import APPROVAL_SECONDS
from minutebook.runtime.loop import agents_of, checked_providers
from minutebook.runtime.memory import MemoryAccess
from minutebook.stores.clock import system_clock
from minutebook.sync.driving import drive
from minutebook.sync.stores import JournalStore, core_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

    from minutebook.model.codec import JSON
    from minutebook.model.decisions import Decision, DecisionRequest, Observation
    from minutebook.ports import Random
    from minutebook.runtime import Approval, MemoryValue, Outcome, Program
    from minutebook.runtime.references import Projection

T = TypeVar("T")


class DecisionProvider(Protocol):
    """Who makes the decisions of an invocation, for blocking callers."""

    def decide(self, request: DecisionRequest) -> Decision:
        """Return the next decision: see `minutebook.ports.DecisionProvider.decide`."""
        ...


class _Awaitable:
    """A blocking provider in the form that the runtime awaits."""

    def __init__(self, provider: DecisionProvider) -> None:
        self._provider = provider
        store = getattr(provider, "store", None)
        self.store = core_of(store) if isinstance(store, JournalStore) else None

    async def decide(self, request: DecisionRequest) -> Decision:
        decision: object = self._provider.decide(request)
        if isinstance(decision, Coroutine):
            decision.close()
            raise BlockingMismatch("an asynchronous provider was given to a blocking runtime")
        return decision  # type: ignore[return-value]


class Memory(MemoryAccess):
    """The memory resources of one call, for a capability that is a plain function: see `minutebook.Memory`."""

    def read(self, name: str) -> MemoryValue:
        """See `minutebook.Memory.read`."""
        return drive(self._resources.read(name))

    def write(self, name: str, value: JSON) -> int:
        """See `minutebook.Memory.write`."""
        return drive(self._resources.write(name, value))

    def compare_and_set(self, name: str, value: JSON, *, version: int) -> int | None:
        """See `minutebook.Memory.compare_and_set`."""
        return drive(self._resources.compare_and_set(name, value, version=version))


class Runtime(Generic[T]):
    """
    Runs a program with the decisions of blocking providers: see `minutebook.Runtime`.

    Agents that one decision calls side by side run one after the other.
    """

    def __init__(
        self,
        program: Program[T],
        provider: DecisionProvider,
        *,
        providers: Mapping[str, DecisionProvider] | None = None,
        checkpoints: JournalStore | Literal[False] | None = None,
        memory: JournalStore | None = None,
        fresh_id: Random = asynchronous.fresh_id,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        clock: Callable[[], int] = system_clock,
        approval_ttl: timedelta | float = APPROVAL_SECONDS,
        projection: Projection = "inline",
    ) -> None:
        others = checked_providers(provider, providers)
        self._core = asynchronous.Runtime(
            program,
            _Awaitable(provider),
            providers={name: _Awaitable(each) for name, each in others.items()},
            checkpoints=checkpoints if checkpoints is None or checkpoints is False else core_of(checkpoints),
            memory=None if memory is None else core_of(memory),
            fresh_id=fresh_id,
            monotonic_ns=monotonic_ns,
            clock=clock,
            approval_ttl=approval_ttl,
            projection=projection,
        )
        for each in (provider, *others.values()):
            check_plain(getattr(each, "decide", None), "a provider's decide")
        for agent in agents_of(program):
            for capability in agent.capabilities.values():
                check_plain(capability.function, f"the function of capability {capability.name!r}")

    def run(
        self,
        task: str,
        *,
        run_id: str | None = None,
        invocation_id: str | None = None,
        task_id: str | None = None,
        observations: Sequence[Observation] = (),
        on_observation: Callable[[Observation], None] | None = None,
    ) -> Outcome[T]:
        """Return what the program came to on `task`: see `minutebook.Runtime.run`."""
        check_plain(on_observation, "on_observation")
        return drive(
            self._core.run(
                task,
                run_id=run_id,
                invocation_id=invocation_id,
                task_id=task_id,
                observations=observations,
                on_observation=on_observation,
            )
        )

    def resume(
        self,
        run_id: str,
        invocation_id: str,
        *,
        approvals: Sequence[Approval] = (),
        on_observation: Callable[[Observation], None] | None = None,
    ) -> Outcome[T]:
        """Go on with an invocation from its checkpoint: see `minutebook.Runtime.resume`."""
        check_plain(on_observation, "on_observation")
        return drive(self._core.resume(run_id, invocation_id, approvals=approvals, on_observation=on_observation))

    def abandon(self, run_id: str, invocation_id: str) -> Outcome[T]:
        """Give up the newest task of an invocation: see `minutebook.Runtime.abandon`."""
        return drive(self._core.abandon(run_id, invocation_id))

    def recover(self, run_id: str, invocation_id: str, *, worker_stopped: bool, epoch: int | None = None) -> None:
        """Free the invocation of a worker that is known to be stopped: see `minutebook.Runtime.recover`."""
        drive(self._core.recover(run_id, invocation_id, worker_stopped=worker_stopped, epoch=epoch))
