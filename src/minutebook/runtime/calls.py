"""
The calls of one decision: each is checked, and then executed, shown to a human, given to agents or refused.

They are carried out in order. Those that delegate and stand side by side run side by side, by whatever `gather` the
face has: the core starts no task. What may be done is asked of the program, the grants and the ledger alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypeVar

from minutebook.errors import InvalidValue
from minutebook.model.codec import JSON
from minutebook.model.decisions import Observation
from minutebook.runtime import observations as observed
from minutebook.runtime.approvals import Approval, PendingApproval, arguments_digest
from minutebook.runtime.authority import Denial, denial
from minutebook.runtime.budgets import Ledger
from minutebook.runtime.capabilities import Capability
from minutebook.runtime.delegation import tasks_in
from minutebook.runtime.execution import Admitted, Refused, checked, executed
from minutebook.runtime.memory import Resources
from minutebook.runtime.outcomes import Branch, Host, Outcome
from minutebook.runtime.program import Program
from minutebook.runtime.records import Intended, Waiting
from minutebook.runtime.references import refusal

if TYPE_CHECKING:
    from minutebook.runtime.notes import Notes

T = TypeVar("T")


class Agent(Protocol):
    """An agent's invocation, as the call knows it that it is for."""

    @property
    def ledger(self) -> Ledger:
        """What it has used."""
        ...

    @property
    def finished_with(self) -> JSON:
        """What its task finished with."""
        ...

    def branch(self, task: str) -> Branch:
        """Return what runs it."""
        ...

    async def abandon(self) -> Outcome[Any]:
        """End its task without an answer."""
        ...


A = TypeVar("A", bound=Agent)
Stop: TypeAlias = InvalidValue | Literal["waits"]
"""Why a run cannot go on after its calls: a fault of the program, or a human who has to answer."""


@dataclass(frozen=True, repr=False)
class Identity(Generic[T]):
    """Which invocation of which program, and with what authority."""

    program: Program[T]
    run_id: str
    invocation_id: str
    grants: frozenset[str]


class Calls(Generic[A]):
    """The calls of an invocation's newest decision, and the agents that are under way for them."""

    def __init__(
        self,
        host: Host,
        identity: Identity[Any],
        notes: Notes,
        invoked: Callable[[Capability[..., Any], str], A],
    ) -> None:
        """Begin with none; `invoked` makes the invocation of an agent."""
        self.host = host
        self.identity = identity
        self.program = identity.program
        self.notes = notes
        self._invoked = invoked
        self.children: dict[int, list[A]] = {}
        """The agents' invocations of calls that are under way, by the call's position."""

    def call_agents(self, position: int, found: Capability[..., Any], branches: Sequence[str]) -> list[A]:
        """Return the agents' invocations of a call, which are under way from now on."""
        self.children[position] = [self._invoked(found, branch) for branch in branches]
        return self.children[position]

    # --- checks ------------------------------------------------------------------------------------------------------

    def denial(self, name: str) -> Denial | None:
        """Return why a capability may not be called now, or `None` if it may."""
        return denial(name, self.program.capabilities, self.identity.grants, self.notes.ledger)

    def _checked(self, position: int) -> Admitted | Refused:
        call = self.notes.progress.calls[position]
        denied = self.denial(call.capability)
        if denied is None and (dangling := self.notes.progress.dangling.get(position)):
            return Refused("invalid_reference", refusal(dangling))
        return checked(call, self.program.capabilities, denied)

    def holds_for(self, shown: PendingApproval | Approval) -> bool:
        """Return whether what was shown of a waiting call, or approved, is still what would be executed."""
        found = self.program.capabilities.get(shown.capability)
        call = self.notes.progress.calls[shown.position]
        return (
            found is not None
            and (found.name, found.digest) == (call.capability, shown.capability_version)
            and arguments_digest(found.completed(call.arguments)) == shown.arguments_digest
        )

    def _delegates(self, position: int) -> bool:
        found = self.program.capabilities.get(self.notes.progress.calls[position].capability)
        return found is not None and found.agent is not None

    # --- carrying out ------------------------------------------------------------------------------------------------

    async def carry_out(self) -> Stop | None:
        """Carry out the calls that have no observation; return why a run cannot go on after them."""
        side_by_side: list[int] = list(self.children)
        for position in self.notes.progress.waiting:
            if position in self.children:
                continue
            # Whatever is no delegation waits for those before it, and is checked after they have used what they did.
            if not self._delegates(position) and (stopped := await self._run_children(side_by_side)):
                return stopped
            admitted = await self._admit(position)
            if admitted == "waits":
                return await self._run_children(side_by_side) or self._wait()
            if isinstance(admitted, Admitted) and admitted.found.agent is not None:
                self._delegate(position, *admitted)
                side_by_side.append(position)
            elif isinstance(admitted, Admitted) and (fault := await self._execute(position, *admitted)):
                return fault
        return await self._run_children(side_by_side)

    async def _admit(self, position: int) -> Admitted | Literal["waits"] | None:
        """Return a call that may be executed now, `waits` for one that a human has to see; observe any other."""
        call = self.notes.progress.calls[position]
        if position in self.notes.progress.open:
            await self.notes.observe(position, observed.interrupted(call))
            return None
        found = self._checked(position)
        if isinstance(found, Refused):
            await self.notes.observe(position, observed.refused(call, *found))
            return None
        answer = self.notes.progress.answers.get(position)
        if answer is not None and not answer.approved:
            await self.notes.observe(position, observed.refused(call, "denied", answer.message))
            return None
        return "waits" if self._needs_answer(position, found.found) else found

    def _needs_answer(self, position: int, found: Capability[..., Any]) -> bool:
        """Return whether a call must be seen by a human, and no answer that still holds is kept for it."""
        answer = self.notes.progress.answers.get(position)
        if not found.needs_approval or answer is None:
            return found.needs_approval
        return answer.approved and not (self.host.clock() < answer.expires_ms and self.holds_for(answer))

    def _waiting_at(self, position: int) -> PendingApproval | None:
        return next((each for each in self.notes.progress.pending if each.position == position), None)

    def _wait(self) -> Stop:
        """Stop for a human, who is shown every call of the decision that will need an answer."""
        now = self.host.clock()
        pending: list[PendingApproval] = []
        for position in self.notes.progress.waiting:
            found = self._checked(position)
            if position in self.notes.progress.open or not isinstance(found, Admitted):
                continue
            if self._needs_answer(position, found.found):
                pending.append(self._shown(position, found.found, now))
        if tuple(pending) != self.notes.progress.pending:
            self.notes.note(Waiting(pending=tuple(pending)))
        return "waits"

    def _shown(self, position: int, found: Capability[..., Any], now: int) -> PendingApproval:
        known = self._waiting_at(position)
        if known is not None and now < known.expires_ms and self.holds_for(known):
            return known
        call = self.notes.progress.calls[position]
        arguments = found.completed(call.arguments)
        return PendingApproval(
            id=self.host.fresh_id(),
            run_id=self.identity.run_id,
            invocation_id=self.identity.invocation_id,
            agent=self.program.name,
            capability=found.name,
            capability_version=found.digest,
            position=position,
            reference=call.reference,
            arguments=arguments,
            arguments_digest=arguments_digest(arguments),
            expires_ms=now + self._approval_ms,
        )

    @property
    def _approval_ms(self) -> int:
        """For how long a call may be approved: no longer than the checkpoint is kept that it would go on from."""
        kept = self.host.checkpoints
        return min(self.host.approval_ms, kept.ttl_ms) if kept and kept.ttl_ms else self.host.approval_ms

    async def _execute(
        self, position: int, found: Capability[..., Any], arguments: dict[str, Any]
    ) -> InvalidValue | None:
        """Execute one call; observe what came of it, and return a fault of the program."""
        call = self.notes.progress.calls[position]
        self.notes.ledger.reserve_call(found.name)
        everything = found.completed(call.arguments)  # at this moment: a function may change a list that is its default
        self.notes.note(Intended(position=position, arguments=None if everything == call.arguments else everything))
        await self.notes.commit()
        try:
            observation = await executed(call, found, arguments | self._memory_argument(found), self.host.cancelled)
        except InvalidValue as error:
            await self.notes.observe(position, observed.failed(call, error.code))
            return error
        await self.notes.observe(position, observation)
        return None

    def _memory_argument(self, found: Capability[..., Any]) -> dict[str, Any]:
        if found.memory_parameter is None:
            return {}
        assert self.host.memory is not None  # the runtime saw to it when it was made
        name, kind = found.memory_parameter
        declared = {each.name: each for each in found.memory}
        return {name: kind.over(Resources(self.host.memory, declared, self.identity.run_id, self.program.name))}

    def _delegate(self, position: int, found: Capability[..., Any], arguments: dict[str, Any]) -> None:
        """Note that a call is about to be carried out by agents, and name their invocations."""
        self.notes.ledger.reserve_call(found.name)
        branches = tuple(self.host.fresh_id() for _ in tasks_in(arguments)[0])
        self.notes.note(Intended(position=position, branches=branches))
        self.call_agents(position, found, branches)

    async def _run_children(self, positions: list[int]) -> Stop | None:
        """Run the agents of these calls side by side and observe what they finish with; stop where one has to wait."""
        if not positions:
            return None
        await self.notes.commit()
        branches: list[Branch] = []
        for position in positions:
            tasks, _ = tasks_in(self.notes.progress.calls[position].arguments)
            branches += [child.branch(task) for child, task in zip(self.children[position], tasks, strict=True)]
        outcomes = iter(await self.host.gather(branches))
        for position in positions:
            children = self.children[position]
            theirs = [next(outcomes) for _ in children]
            if not any(each.kind == "approval_required" for each in theirs):
                await self._settle(position, children, theirs)
        positions.clear()
        return "waits" if self.children else None

    async def abandon(self) -> None:
        """End the agents' tasks without an answer, and refuse what waits."""
        for position, children in list(self.children.items()):
            await self._settle(position, children, [await child.abandon() for child in children])
        await self.notes.refuse_waiting()

    async def _settle(self, position: int, children: list[A], outcomes: list[Outcome[Any]]) -> None:
        call = self.notes.progress.calls[position]
        _, listed = tasks_in(call.arguments)
        results = [_result(child, outcome) for child, outcome in zip(children, outcomes, strict=True)]
        failed = not listed and outcomes[0].kind != "finished"
        observation = Observation(
            capability=call.capability,
            arguments=call.arguments,
            value=results if listed else results[0],
            error=failed,
            reference=call.reference,
        )
        del self.children[position]
        decisions = sum(child.ledger.decisions_used for child in children)
        calls = sum(child.ledger.calls_used for child in children)
        await self.notes.observe(position, observation, decisions=decisions, calls=calls)


def _result(child: Agent, outcome: Outcome[Any]) -> JSON:
    """Return what an agent came to as its caller's data: what it finished with, or why it did not."""
    if outcome.kind == "finished":
        return child.finished_with
    why: dict[str, JSON] = {"error": outcome.kind}
    return why if outcome.budget is None else {**why, "budget": outcome.budget}
