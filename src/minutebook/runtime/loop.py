"""
The loop: ask for a decision, check each proposed call, execute it, observe what came of it, and ask again.

Nothing here reads a message. What the model may do is asked of the program and the ledger, once to tell the model and
once more for each call it proposes, and the two never disagree. The calls of one decision are executed one after the
other, in order: the core starts no tasks, and parallelism belongs to the host.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import msgspec

from minutebook.errors import BlockingMismatch, InvalidOption, InvalidValue
from minutebook.model.codec import decode, encode, text
from minutebook.model.decisions import CallReference, DecisionRequest, Observation
from minutebook.model.keys import check_id
from minutebook.runtime import observations as observed
from minutebook.runtime.authority import Denial, denial
from minutebook.runtime.budgets import Budget, Ledger
from minutebook.runtime.capabilities import CapabilityFailed, InvalidArguments
from minutebook.runtime.program import Program
from minutebook.runtime.proposals import checked_decision

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from minutebook.model.decisions import ProposedCall
    from minutebook.ports import DecisionProvider, Random
    from minutebook.runtime.capabilities import Capability

T = TypeVar("T")


class Outcome(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """What a run came to, with everything that it observed."""

    kind: Literal["finished", "budget_exhausted", "failed"]
    run_id: str
    invocation_id: str
    observations: tuple[Observation, ...]
    """All of the invocation, oldest first, those that it went on with among them."""
    decisions: int
    """Decisions that this run asked for."""
    calls: int
    """Calls that this run executed, well or badly."""
    output: T | None = None
    """What the model finished with; `None` unless it finished."""
    budget: Budget | None = None
    """Which budget ended the run."""
    error: InvalidValue | None = None
    """The program's fault that ended the run: a capability returned what JSON cannot hold."""

    def __repr__(self) -> str:
        return f"Outcome({self.kind!r}, decisions={self.decisions}, calls={self.calls}, budget={self.budget!r})"


class Runtime(Generic[T]):
    """
    Runs a program with the decisions of a provider. It holds no state of a run: runs may overlap.

    Args:
        program: what may be done.
        provider: who decides what to do.
        fresh_id: gives a new unguessable id at each call; runs and invocations that are not named get theirs here.
        monotonic_ns: gives nanoseconds as an int, for the budget of wall time.
    """

    def __init__(
        self, program: Program[T], provider: DecisionProvider, *, fresh_id: Random, monotonic_ns: Callable[[], int]
    ) -> None:
        """Keep the parts; nothing is called."""
        if not isinstance(program, Program):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
            raise InvalidOption(f"program must be a Program, not {type(program).__name__}", option="program")
        if not inspect.iscoroutinefunction(getattr(provider, "decide", None)):
            raise BlockingMismatch(
                "a provider's decide is an `async def`; a blocking one goes with minutebook.sync.Runtime"
            )
        self._program = program
        self._provider = provider
        self._fresh_id = fresh_id
        self._clock = monotonic_ns

    async def run(
        self,
        task: str,
        *,
        run_id: str | None = None,
        invocation_id: str | None = None,
        observations: Sequence[Observation] = (),
        on_observation: Callable[[Observation], None] | None = None,
    ) -> Outcome[T]:
        """
        Return what the program came to on `task`: finished, out of a budget, or failed by a fault of its own.

        Each proposed call gets one observation, executed or refused. A run that raised can go on: with the same ids
        and the `observations` that `on_observation` reported, in order. They count against the budgets of calls and
        decisions (never less than was used); wall time is counted for each run alone, and so is a decision of which
        nothing was observed.

        Args:
            task: what to do; the same text at each step.
            run_id: names the run; a fresh id if left out.
            invocation_id: names the invocation, whose conversation is its own; needs `run_id`; a fresh id if left out.
            observations: what the invocation observed before; needs both ids.
            on_observation: is told of each observation as soon as it is made. What it raises ends the run, since a
                host that cannot keep what was done must not have more done.

        Raises:
            ProviderError, DecisionHistoryError: as the provider raised it; what was observed is kept by the host.
            AgentDecisionProviderSchemaViolation: a malformed decision, or an output that does not fit; no call of that
                decision was executed.
            InvalidOption, InvalidId, InvalidValue: an argument that cannot be; nothing was asked or executed.
        """
        earlier = observed.check_earlier(observations)
        _check_identity(run_id, invocation_id, earlier)
        return await _Invocation(
            self._program,
            self._provider,
            Ledger(self._program.budgets, _limits(self._program), observed.used_by(earlier), self._clock),
            task=text(task, "task"),
            run_id=check_id(self._fresh_id() if run_id is None else run_id, "run_id"),
            invocation_id=check_id(self._fresh_id() if invocation_id is None else invocation_id, "invocation_id"),
            earlier=earlier,
            report=_checked_report(on_observation),
        ).run()


def _check_identity(run_id: str | None, invocation_id: str | None, earlier: tuple[Observation, ...]) -> None:
    if invocation_id is not None and run_id is None:
        raise InvalidOption("invocation_id needs the run_id that it belongs to", option="run_id")
    if earlier and invocation_id is None:
        raise InvalidOption("observations need the run_id and invocation_id that they belong to", option="observations")


def _limits(program: Program[Any]) -> dict[str, int]:
    return {name: each.max_calls for name, each in program.capabilities.items() if each.max_calls is not None}


def _checked_report(on_observation: Callable[[Observation], None] | None) -> Callable[[Observation], None] | None:
    # A coroutine that nobody awaits would report nothing, without a word.
    if on_observation is not None and (inspect.iscoroutinefunction(on_observation) or not callable(on_observation)):
        raise InvalidOption("on_observation must be a plain function", option="on_observation")
    return on_observation


class _Invocation(Generic[T]):
    """One run in progress: its ledger and its observations."""

    def __init__(
        self,
        program: Program[T],
        provider: DecisionProvider,
        ledger: Ledger,
        *,
        task: str,
        run_id: str,
        invocation_id: str,
        earlier: tuple[Observation, ...],
        report: Callable[[Observation], None] | None,
    ) -> None:
        self.program = program
        self.provider = provider
        self.ledger = ledger
        self.task = task
        self.run_id = run_id
        self.invocation_id = invocation_id
        self.observations = list(earlier)
        self.answered: set[CallReference] = {each.reference for each in earlier if each.reference is not None}
        self.report = report
        self.decisions_before = ledger.decisions_left
        self.calls_before = ledger.calls_left

    async def run(self) -> Outcome[T]:
        while True:
            if spent := self.spent():
                return self.outcome("budget_exhausted", budget=spent)
            calls_left = self.ledger.calls_left
            self.ledger.reserve_decision()
            decision = checked_decision(await self.provider.decide(self.request()), self.answered)
            if decision.finish is not None:
                return self.outcome("finished", output=self.program.read_output(decision.finish.output))
            if fault := await self.carry_out(decision.calls):
                return self.outcome("failed", error=fault)
            # The model was offered nothing to call, so that it would finish, and proposed a call all the same.
            if calls_left == 0:
                return self.outcome("budget_exhausted", budget="calls")

    def spent(self) -> Budget | None:
        """Return the budget that forbids another decision. Spent calls do not: a model can still finish."""
        if self.ledger.wall_left_ns() == 0:
            return "wall"
        return None if self.ledger.decisions_left else "decisions"

    def request(self) -> DecisionRequest:
        declared = self.program.capabilities
        # Asked once for each: a clock that moves on between two questions could leave a capability out of both lists.
        withheld = tuple(name for name in declared if self.denial(name) is not None)
        return DecisionRequest(
            run_id=self.run_id,
            invocation_id=self.invocation_id,
            agent_ref=self.program.name,
            instructions=self.program.instructions,
            task=self.task,
            capabilities=tuple(each.spec for name, each in declared.items() if name not in withheld),
            output=self.program.output,
            withheld=withheld,
            observations=tuple(self.observations),
        )

    def denial(self, name: str) -> Denial | None:
        return denial(name, self.program.capabilities, self.program.authority, self.ledger)

    async def carry_out(self, calls: tuple[ProposedCall, ...]) -> InvalidValue | None:
        """Observe each of a decision's calls; return the program's fault that stopped them, the rest being refused."""
        fault: InvalidValue | None = None
        for call in calls:
            if fault:
                self.observe(observed.refused(call, "run_stopped"))
            else:
                fault = await self.attempt(call)
        return fault

    async def attempt(self, call: ProposedCall) -> InvalidValue | None:
        """Execute one call if it is permitted and fits; observe what came of it, and return a fault of the program."""
        if denied := self.denial(call.capability):
            self.observe(observed.refused(call, denied))
            return None
        found = self.program.capabilities[call.capability]
        try:
            arguments = found.convert(call.arguments)
        except InvalidArguments as error:
            self.observe(observed.refused(call, "invalid_arguments", str(error)))
            return None
        self.ledger.reserve_call(found.name)
        try:
            observation = await _executed(call, found, arguments)
        except InvalidValue as error:
            self.observe(observed.failed(call, error.code))
            return error
        self.observe(observation)
        return None

    def observe(self, observation: Observation) -> None:
        self.observations.append(observation)
        if observation.reference is not None:
            self.answered.add(observation.reference)
        if self.report is not None:
            self.report(observation)

    def outcome(
        self,
        kind: Literal["finished", "budget_exhausted", "failed"],
        *,
        output: T | None = None,
        budget: Budget | None = None,
        error: InvalidValue | None = None,
    ) -> Outcome[T]:
        return Outcome(
            kind=kind,
            run_id=self.run_id,
            invocation_id=self.invocation_id,
            observations=tuple(self.observations),
            decisions=self.decisions_before - self.ledger.decisions_left,
            calls=self.calls_before - self.ledger.calls_left,
            output=output,
            budget=budget,
            error=error,
        )


async def _executed(call: ProposedCall, found: Capability[..., Any], arguments: dict[str, Any]) -> Observation:
    """Return the observation of a call that is executed here; an exception of the capability is one too."""
    try:
        value = found.function(**arguments)
        if inspect.isawaitable(value):
            value = await value
    except CapabilityFailed as error:
        return observed.failed(call, "CapabilityFailed", _held(error.message, found))
    except Exception as error:  # whatever it is, the model may react to it
        return observed.failed(call, type(error).__name__)
    return observed.executed(call, _held(value, found))


def _held(value: Any, found: Capability[..., Any]) -> Any:
    """Return the runtime's own copy of what a capability gave; that JSON cannot hold it is a fault of the program."""
    try:
        return decode(encode(value))
    except InvalidValue as error:
        raise InvalidValue(f"capability {found.name!r} returned no JSON: {error}", path=error.path) from None
