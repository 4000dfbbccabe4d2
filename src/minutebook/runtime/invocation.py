"""
One invocation in progress: ask for a decision, check each proposed call, execute it, observe what came of it, repeat.

Each step is noted before the next, and the state is the notes applied (`records`), so an invocation that goes on in
another process is in no other state than one that never stopped. What may be done is asked of the program, the grants
and the ledger alone, once to tell the model and once more for each call that it proposes.

The calls of one decision are carried out in order. Those that delegate and stand side by side run side by side, by
whatever `gather` the face has: the core starts no task.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

from minutebook.errors import CheckpointRefused, InvalidValue
from minutebook.model.codec import JSON
from minutebook.model.decisions import Decision, DecisionRequest, Observation, Resumed
from minutebook.runtime import observations as observed
from minutebook.runtime.approvals import Approval, PendingApproval, arguments_digest
from minutebook.runtime.authority import Denial, denial
from minutebook.runtime.budgets import Budget, Ledger
from minutebook.runtime.capabilities import Capability
from minutebook.runtime.checkpoints import Log
from minutebook.runtime.delegation import tasks_in, tasks_of
from minutebook.runtime.execution import Admitted, Refused, checked, executed
from minutebook.runtime.memory import Resources
from minutebook.runtime.outcomes import Branch, Host, Outcome
from minutebook.runtime.program import Program
from minutebook.runtime.proposals import check_projected, checked_decision
from minutebook.runtime.records import (
    Asking,
    Began,
    Call,
    Decided,
    Ended,
    Ending,
    Given,
    Intended,
    Observed,
    Progress,
    Record,
    Referred,
    Ruled,
    Waiting,
)
from minutebook.runtime.references import Kept, projected, refusal, widened

if TYPE_CHECKING:
    from minutebook.model.decisions import ProposedCall

T = TypeVar("T")

Report: TypeAlias = Callable[[Observation], None]


class Invocation(Generic[T]):
    """One run in progress: its log, its ledger, and the invocations of the agents that it called."""

    def __init__(
        self,
        host: Host,
        program: Program[T],
        *,
        run_id: str,
        invocation_id: str,
        grants: frozenset[str],
        above: Ledger | None = None,
        report: Report | None = None,
    ) -> None:
        """Name it; nothing is read, held or asked yet."""
        self.host = host
        self.program = program
        self.run_id = run_id
        self.invocation_id = invocation_id
        self.grants = grants
        self.above = above
        self.report = report
        self.progress = Progress()
        self.ledger: Ledger
        self.children: dict[int, list[Invocation[Any]]] = {}
        """The agents' invocations of calls that are under way, by the call's position."""
        self.resumed: Resumed | None = None
        self.offered_nothing = False
        self.settled = False
        """Whether what came of the task stands, whatever budgets there are now."""
        storage = host.checkpoints
        self.log = Log(storage, storage.checkpoint(run_id, invocation_id, program.name)) if storage else None

    # --- beginning and going on --------------------------------------------------------------------------------------

    async def begin(self, task: str, task_id: str = "", earlier: Sequence[Observation] = ()) -> None:
        """
        Begin a task of which `earlier` is observed already, if the one before it has finished.

        The same task again is gone on with, to its recorded outcome where it has ended. After a task that ended without
        finishing no other begins, or its budgets would be there anew: what it came to is what the invocation came to.

        Raises:
            CheckpointRefused: another task is unfinished, or this one has other observations or another text.
        """
        before = await self.log.take() if self.log else Progress()
        try:
            await self._begin_after(before, task, task_id, earlier)
        except BaseException as error:
            await self.release(error)
            raise

    async def _begin_after(self, before: Progress, task: str, task_id: str, earlier: Sequence[Observation]) -> None:
        again = before.began and before.task_id == task_id and (before.task == task or task_id != "")
        if again and before.task == task and list(earlier) in ([], before.observations):
            await self._go_on(before)
        elif before.began and before.ended is None:
            raise CheckpointRefused(
                "this invocation has an unfinished task, of another text or with other observations: go on with "
                "it by `resume`, give it up by `abandon`, or take a new invocation_id",
                problem="unfinished",
            )
        elif again:
            raise CheckpointRefused(
                "this task has ended, and had another text or other observations: give both as they were, or take a "
                "new task_id or invocation_id",
                problem="repeated",
            )
        elif before.ended is None or before.ended.kind in ("finished", "abandoned"):
            self._begin(task, task_id, before, earlier)
        else:
            self.progress, self.settled = before, True
            self._open_ledger()

    def _begin(
        self,
        task: str,
        task_id: str = "",
        before: Progress | None = None,
        earlier: Sequence[Observation] = (),
    ) -> None:
        self.progress = Progress()
        # In another mode it has another conversation, of which nothing was received yet.
        same = before is not None and before.projection == self.host.projection
        self._keep(
            Began(
                task=task,
                task_id=task_id,
                seen=before.seen if before and same else 0,
                projection=self.host.projection,
                before=before.given_up() if before and same else None,
                address=self.log.address if self.log else "",
            )
        )
        for each in earlier:
            self._keep(
                Given(
                    capability=each.capability,
                    arguments=each.arguments,
                    value=each.value,
                    error=each.error,
                    reference=each.reference,
                )
            )
        self._open_ledger()
        if self.log is None:  # then the host may go on with a run that it keeps itself
            self.resumed = Resumed()

    async def go_on(self) -> None:
        """
        Go on with the newest task from its checkpoint, the agents that it called included.

        Raises:
            CheckpointRefused: there is no checkpoint.
            DecisionHistoryBusy: another worker has it.
        """
        before = await self.log.take() if self.log else Progress()
        if not before.began:
            error = CheckpointRefused(
                "no checkpoint of this run and invocation: it never began, has expired, or is kept in another store",
                problem="absent",
            )
            await self.release(error)
            raise error
        try:
            await self._go_on(before)
        except BaseException as error:
            await self.release(error)
            raise

    async def _go_on(self, before: Progress) -> None:
        if before.projection != self.host.projection:
            raise CheckpointRefused(
                f"the task was begun with projection={before.projection!r}; go on with the same",
                problem="projection",
            )
        self.progress = before
        self._open_ledger()
        self.resumed = Resumed(seen=before.seen, worker_stopped=before.recovered)
        # Opened before anything is carried out, so that what they used is charged before anybody uses more.
        for position, branches in before.open.items():
            found = self.program.capabilities.get(before.calls[position].capability)
            if branches and found is not None and found.agent is not None:
                tasks = tasks_of(before.calls[position].arguments, branches)
                children = self.children[position] = self._children(found, branches)
                for child, task in zip(children, tasks, strict=True):
                    await child.begin_or_go_on(task)
        self._count_from_here()

    async def begin_or_go_on(self, task: str) -> None:
        """Go on as an agent whose caller's log is held, so that nobody else can be at work on this one."""
        before = await self.log.take(owned=True) if self.log else Progress()
        if before.began:
            await self._go_on(before)
        else:
            self._begin(task)

    def _open_ledger(self) -> None:
        limits = {name: each.max_calls for name, each in self.program.capabilities.items() if each.max_calls}
        used = self.progress.used
        self.ledger = Ledger(self.program.budgets, limits, used, self.host.monotonic_ns, self.above)
        self._count_from_here()

    def _count_from_here(self) -> None:
        """Begin to count what this run uses, apart from what the invocation had used before it."""
        self.decisions_before = self.ledger.decisions_used
        self.calls_before = self.ledger.calls_used

    def _children(self, found: Capability[..., Any], branches: Sequence[str]) -> list[Invocation[Any]]:
        assert found.agent is not None
        return [
            Invocation(
                self.host,
                found.agent,
                run_id=self.run_id,
                invocation_id=branch,
                grants=found.grants & self.grants,
                above=self.ledger,
            )
            for branch in branches
        ]

    async def release(self, error: BaseException | None = None) -> None:
        """Give back the log and those of the agents that it called, each of them whatever becomes of the others."""
        async with contextlib.AsyncExitStack() as stack:
            for each in self.tree():
                if each.log is not None:
                    stack.push_async_callback(each.log.release, error)

    # --- what humans answer ------------------------------------------------------------------------------------------

    def tree(self) -> list[Invocation[Any]]:
        """Return this invocation and those below it that are under way."""
        below = [each for children in self.children.values() for child in children for each in child.tree()]
        return [self, *below]

    @property
    def pending(self) -> tuple[PendingApproval, ...]:
        """The calls that wait for a human, here and below."""
        return tuple(pending for each in self.tree() for pending in each.progress.pending)

    def holds_for(self, shown: PendingApproval | Approval) -> bool:
        """Return whether what was shown of a waiting call, or approved, is still what would be executed."""
        found = self.program.capabilities.get(shown.capability)
        call = self.progress.calls[shown.position]
        return (
            found is not None
            and (found.name, found.digest) == (call.capability, shown.capability_version)
            and arguments_digest(call.arguments) == shown.arguments_digest
        )

    async def keep_answer(self, approval: Approval) -> None:
        """Keep a human's checked answer, durably: however far this run comes, it is not asked for again."""
        self._note(Ruled(approval=approval))
        await self._commit()

    # --- the loop ----------------------------------------------------------------------------------------------------

    async def run(self) -> Outcome[T]:
        """Run to an outcome, and give the log back whatever happens."""
        try:
            outcome = await self._run()
        except BaseException as error:
            await self.release(error)
            raise
        await self.release()
        return outcome

    async def _run(self) -> Outcome[T]:
        if (ended := self.progress.ended) and not self._raised(ended):
            return self._told(ended)
        while True:
            if self.progress.waiting and (stopped := await self._carry_out()):
                return stopped
            # The model was offered nothing to call, so that it would finish, and proposed a call all the same.
            if self.offered_nothing:
                return self._end("budget_exhausted", budget="calls")
            if spent := self._spent():
                return self._end("budget_exhausted", budget=spent)
            decision = await self._decide()
            if decision.finish is not None:
                return self._end("finished", output=decision.finish.output)

    async def abandon(self) -> Outcome[T]:
        """End the task without an answer, its agents' first, and give the log back; nothing more is executed."""
        try:
            outcome = await self._abandon()
        except BaseException as error:
            await self.release(error)
            raise
        await self.release()
        return outcome

    async def _abandon(self) -> Outcome[T]:
        if (ended := self.progress.ended) and ended.kind in ("finished", "abandoned"):
            return self._told(ended)
        for position, children in list(self.children.items()):
            self._settle(position, children, [await child.abandon() for child in children])
        self._refuse_waiting()
        return self._end("abandoned")

    def _raised(self, ended: Ended) -> bool:
        """Return whether a budget that ended the task has been raised since."""
        if self.settled or ended.kind != "budget_exhausted":
            return False
        return self._spent() is None and (ended.budget != "calls" or self.ledger.calls_left > 0)

    def _spent(self) -> Budget | None:
        """Return the budget that forbids another decision. Spent calls do not: a model can still finish."""
        if self.ledger.wall_left_ns() == 0:
            return "wall"
        return None if self.ledger.decisions_left else "decisions"

    async def _decide(self) -> Decision:
        self.offered_nothing = self.ledger.calls_left == 0
        self.ledger.reserve_decision()
        self._note(Asking())
        await self._commit()
        provider = self.host.providers.get(self.program.name, self.host.provider)
        decision = await provider.decide(self._request())
        anew = isinstance(decision, Decision) and decision.without_messages  # pyright: ignore[reportUnnecessaryIsInstance]
        decision = checked_decision(decision, set() if anew else self.progress.answered)
        if self.host.projection == "opaque_refs":
            check_projected(decision)
        if decision.finish is not None:
            self.program.read_output(decision.finish.output)
        self.resumed = None
        calls = tuple(Call(each.capability, each.arguments, each.reference) for each in decision.calls)
        self._note(Decided(calls=calls, exchange=decision.exchange, without_messages=anew))
        return decision

    def _request(self) -> DecisionRequest:
        declared = self.program.capabilities
        # Asked once for each: a clock that moves on between two questions could leave a capability out of both lists.
        withheld = tuple(name for name in declared if self._denial(name) is not None)
        opaque = self.host.projection == "opaque_refs"
        specs = [each.spec for name, each in declared.items() if name not in withheld]
        return DecisionRequest(
            run_id=self.run_id,
            invocation_id=self.invocation_id,
            agent_ref=self.program.name,
            instructions=self.program.instructions,
            task=self.progress.task,
            capabilities=tuple(map(widened, specs) if opaque else specs),
            output=self.program.output,
            withheld=withheld,
            observations=self.progress.told,
            resumed=self.resumed,
            abandoned=self.progress.abandoned,
            project=self._project if opaque else None,
        )

    async def _project(self, calls: tuple[ProposedCall, ...]) -> tuple[ProposedCall, ...]:
        """Keep what calls give as arguments, durably before a provider records what stands for it."""
        projected_calls: list[ProposedCall] = []
        keeping: dict[str, Kept] = {}
        for call in calls:
            found = self.program.capabilities.get(call.capability)
            parameters = found.parameters if found else {}
            shown, kept = projected(call.arguments, parameters, self.progress.kept, self.host.fresh_id)
            projected_calls.append(msgspec.structs.replace(call, arguments=shown))
            keeping |= kept
        self._note(Referred(kept=keeping))
        await self._commit()
        return tuple(projected_calls)

    def _denial(self, name: str) -> Denial | None:
        return denial(name, self.program.capabilities, self.grants, self.ledger)

    def _checked(self, position: int) -> Admitted | Refused:
        call = self.progress.calls[position]
        denied = self._denial(call.capability)
        if denied is None and (dangling := self.progress.dangling.get(position)):
            return Refused("invalid_reference", refusal(dangling))
        return checked(call, self.program.capabilities, denied)

    # --- the calls of one decision -----------------------------------------------------------------------------------

    async def _carry_out(self) -> Outcome[T] | None:
        """Carry out the calls that have no observation; return the outcome of a run that cannot go on after them."""
        side_by_side: list[int] = list(self.children)
        for position in self.progress.waiting:
            if position in self.children:
                continue
            # Whatever is no delegation waits for those before it, and is checked after they have used what they did.
            if not self._delegates(position) and (stopped := await self._run_children(side_by_side)):
                return stopped
            admitted = self._admit(position)
            if admitted == "waits":
                return await self._run_children(side_by_side) or self._wait()
            if isinstance(admitted, Admitted) and admitted.found.agent is not None:
                self._delegate(position, *admitted)
                side_by_side.append(position)
            elif isinstance(admitted, Admitted) and (fault := await self._execute(position, *admitted)):
                return self._fail(fault)
        return await self._run_children(side_by_side)

    def _delegates(self, position: int) -> bool:
        found = self.program.capabilities.get(self.progress.calls[position].capability)
        return found is not None and found.agent is not None

    def _admit(self, position: int) -> Admitted | Literal["waits"] | None:
        """Return a call that may be executed now, `waits` for one that a human has to see; observe any other."""
        call = self.progress.calls[position]
        if position in self.progress.open:
            self._observe(position, observed.interrupted(call))
            return None
        found = self._checked(position)
        if isinstance(found, Refused):
            self._observe(position, observed.refused(call, *found))
            return None
        answer = self.progress.answers.get(position)
        if answer is not None and not answer.approved:
            self._observe(position, observed.refused(call, "denied", answer.message))
            return None
        return "waits" if self._needs_answer(position, found.found) else found

    def _needs_answer(self, position: int, found: Capability[..., Any]) -> bool:
        """Return whether a call must be seen by a human, and no answer that still holds is kept for it."""
        answer = self.progress.answers.get(position)
        if not found.needs_approval or answer is None:
            return found.needs_approval
        return answer.approved and not (self.host.clock() < answer.expires_ms and self.holds_for(answer))

    def _waiting_at(self, position: int) -> PendingApproval | None:
        return next((each for each in self.progress.pending if each.position == position), None)

    def _wait(self) -> Outcome[T]:
        """Stop for a human, who is shown every call of the decision that will need an answer."""
        now = self.host.clock()
        pending: list[PendingApproval] = []
        for position in self.progress.waiting:
            found = self._checked(position)
            if position in self.progress.open or not isinstance(found, Admitted):
                continue
            if self._needs_answer(position, found.found):
                pending.append(self._shown(position, found.found, now))
        if tuple(pending) != self.progress.pending:
            self._note(Waiting(pending=tuple(pending)))
        return self._outcome("approval_required", pending=self.pending)

    def _shown(self, position: int, found: Capability[..., Any], now: int) -> PendingApproval:
        known = self._waiting_at(position)
        if known is not None and now < known.expires_ms and self.holds_for(known):
            return known
        call = self.progress.calls[position]
        return PendingApproval(
            id=self.host.fresh_id(),
            run_id=self.run_id,
            invocation_id=self.invocation_id,
            agent=self.program.name,
            capability=found.name,
            capability_version=found.digest,
            position=position,
            reference=call.reference,
            arguments=call.arguments,
            arguments_digest=arguments_digest(call.arguments),
            expires_ms=now + self.host.approval_ms,
        )

    async def _execute(
        self, position: int, found: Capability[..., Any], arguments: dict[str, Any]
    ) -> InvalidValue | None:
        """Execute one call; observe what came of it, and return a fault of the program."""
        call = self.progress.calls[position]
        self.ledger.reserve_call(found.name)
        self._note(Intended(position=position))
        await self._commit()
        try:
            observation = await executed(call, found, arguments | self._handle(found))
        except InvalidValue as error:
            self._observe(position, observed.failed(call, error.code))
            return error
        self._observe(position, observation)
        return None

    def _handle(self, found: Capability[..., Any]) -> dict[str, Any]:
        if found.handle is None:
            return {}
        assert self.host.memory is not None  # the runtime saw to it when it was made
        name, kind = found.handle
        declared = {each.name: each for each in found.memory}
        return {name: kind.over(Resources(self.host.memory, declared, self.run_id, self.program.name))}

    def _delegate(self, position: int, found: Capability[..., Any], arguments: dict[str, Any]) -> None:
        """Note that a call is about to be carried out by agents, and name their invocations."""
        self.ledger.reserve_call(found.name)
        branches = tuple(self.host.fresh_id() for _ in tasks_in(arguments)[0])
        self._note(Intended(position=position, branches=branches))
        self.children[position] = self._children(found, branches)

    async def _run_children(self, positions: list[int]) -> Outcome[T] | None:
        """Run the agents of these calls side by side and observe what they finish with; stop where one has to wait."""
        if not positions:
            return None
        await self._commit()
        branches: list[Branch] = []
        for position in positions:
            tasks, _ = tasks_in(self.progress.calls[position].arguments)
            branches += [child.branch(task) for child, task in zip(self.children[position], tasks, strict=True)]
        outcomes = iter(await self.host.gather(branches))
        for position in positions:
            children = self.children[position]
            theirs = [next(outcomes) for _ in children]
            if not any(each.kind == "approval_required" for each in theirs):
                self._settle(position, children, theirs)
        positions.clear()
        return self._outcome("approval_required", pending=self.pending) if self.children else None

    def branch(self, task: str) -> Branch:
        """Return what runs this invocation as an agent that was called."""

        async def run() -> Outcome[T]:
            if not self.progress.began:
                await self.begin(task)
            return await self.run()

        return run

    def _settle(self, position: int, children: list[Invocation[Any]], outcomes: list[Outcome[Any]]) -> None:
        call = self.progress.calls[position]
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
        self._observe(position, observation, decisions=decisions, calls=calls)

    # --- notes and outcomes ------------------------------------------------------------------------------------------

    def _note(self, record: Record) -> None:
        self._keep(msgspec.structs.replace(record, wall_ns=self.ledger.wall_used_ns))

    def _keep(self, record: Record) -> None:
        self.progress.apply(record)
        if self.log is not None:
            self.log.note(record)

    async def _commit(self) -> None:
        if self.log is not None:
            await self.log.commit()

    def _observe(self, position: int, observation: Observation, *, decisions: int = 0, calls: int = 0) -> None:
        self._note(
            Observed(
                position=position,
                value=observation.value,
                error=observation.error,
                decisions=decisions,
                calls=calls,
            )
        )
        if self.report is not None:
            self.report(self.progress.observations[-1])

    def _fail(self, fault: InvalidValue) -> Outcome[T]:
        """End a run whose program is at fault; the calls that are left are refused."""
        self._refuse_waiting()
        return self._end("failed", error=fault)

    def _refuse_waiting(self) -> None:
        """Observe the calls that are left: as stopped, or as interrupted where one was under way."""
        for position in self.progress.waiting:
            call = self.progress.calls[position]
            under_way = position in self.progress.open
            self._observe(position, observed.interrupted(call) if under_way else observed.refused(call, "run_stopped"))

    def _end(
        self,
        kind: Ending,
        *,
        output: JSON = None,
        budget: Budget | None = None,
        error: InvalidValue | None = None,
    ) -> Outcome[T]:
        ended = Ended(kind=kind, output=output, budget=budget, fault=str(error) if error else "")
        self._note(ended)
        return self._told(ended, error)

    def _told(self, ended: Ended, error: InvalidValue | None = None) -> Outcome[T]:
        finished = ended.kind == "finished"
        return self._outcome(
            ended.kind,
            output=self.program.read_output(ended.output) if finished else None,
            budget=ended.budget,
            error=error or (InvalidValue(ended.fault, path="$") if ended.fault else None),
        )

    def _outcome(
        self,
        kind: Literal["finished", "approval_required", "budget_exhausted", "failed", "abandoned"],
        *,
        output: T | None = None,
        budget: Budget | None = None,
        error: InvalidValue | None = None,
        pending: tuple[PendingApproval, ...] = (),
    ) -> Outcome[T]:
        return Outcome(
            kind=kind,
            run_id=self.run_id,
            invocation_id=self.invocation_id,
            observations=tuple(self.progress.observations),
            decisions=self.ledger.decisions_used - self.decisions_before,
            calls=self.ledger.calls_used - self.calls_before,
            output=output,
            budget=budget,
            error=error,
            pending=pending,
        )


def _result(child: Invocation[Any], outcome: Outcome[Any]) -> JSON:
    """Return what an agent came to as its caller's data: what it finished with, or why it did not."""
    if outcome.kind == "finished":
        ended = child.progress.ended
        return ended.output if ended else None
    why: dict[str, JSON] = {"error": outcome.kind}
    return why if outcome.budget is None else {**why, "budget": outcome.budget}
