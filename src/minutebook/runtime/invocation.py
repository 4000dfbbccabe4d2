"""
One invocation in progress: ask for a decision, check each proposed call, execute it, observe what came of it, repeat.

Each step is noted before the next, and the state is the notes applied (`records`), so an invocation that goes on in
another process is in no other state than one that never stopped. What may be done is asked of the program, the grants
and the ledger alone, once to tell the model and once more for each call that it proposes.

What becomes of the calls of a decision stands in `calls`, and what is noted in `notes`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import msgspec

from minutebook.errors import CheckpointRefused, DecisionHistoryBusy, InvalidValue
from minutebook.model.codec import JSON
from minutebook.model.decisions import Decision, DecisionRequest, Observation, Resumed
from minutebook.runtime.approvals import Approval, PendingApproval
from minutebook.runtime.authority import SPENT, Denial
from minutebook.runtime.budgets import Budget, Ledger
from minutebook.runtime.calls import Calls, Identity, Stop
from minutebook.runtime.capabilities import Capability
from minutebook.runtime.checkpoints import Log, conversation_busy
from minutebook.runtime.delegation import tasks_of
from minutebook.runtime.notes import Notes, Report
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
    Progress,
    Referred,
    Ruled,
)
from minutebook.runtime.references import Kept, projected, widened

if TYPE_CHECKING:
    from minutebook.model.decisions import CapabilitySpec, ProposedCall

T = TypeVar("T")


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
        self.identity = Identity(program, run_id, invocation_id, grants)
        self.above = above
        storage = host.checkpoints
        log = Log(storage, storage.checkpoint(run_id, invocation_id, program.name)) if storage else None
        self.notes = Notes(log, report)
        self.calls: Calls[Invocation[Any]] = Calls(
            host, self.identity, self.notes, partial(_invoked, host, self.identity, self.notes)
        )
        self.resumed: Resumed | None = None
        self.offered_nothing = False
        self.settled = False
        """Whether what came of the task stands, whatever budgets there are now."""

    @property
    def progress(self) -> Progress:
        """The state of its newest task."""
        return self.notes.progress

    @property
    def ledger(self) -> Ledger:
        """What is left of its budgets, and what was used of them."""
        return self.notes.ledger

    # --- beginning and going on --------------------------------------------------------------------------------------

    async def begin(self, task: str, task_id: str = "", earlier: Sequence[Observation] = ()) -> None:
        """
        Begin a task of which `earlier` is observed already, if the one before it has finished.

        The same task again is gone on with, to its recorded outcome where it has ended. After a task that ended without
        finishing no other begins, or its budgets would be there anew: what it came to is what the invocation came to.

        Raises:
            CheckpointRefused: another task is unfinished, or this one has other observations or another text.
        """
        before = await self.notes.take()
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
            self.notes.progress, self.settled = before, True
            self._open_ledger()

    def _begin(
        self,
        task: str,
        task_id: str = "",
        before: Progress | None = None,
        earlier: Sequence[Observation] = (),
    ) -> None:
        self.notes.begin()
        # In another mode it has another conversation, of which nothing was received yet.
        same = before is not None and before.projection == self.host.projection
        self.notes.keep(
            Began(
                task=task,
                task_id=task_id,
                ref=self.host.fresh_id() if self.notes.kept else "",
                seen=before.seen if before and same else 0,
                projection=self.host.projection,
                before=before.left_behind() if before and before.began else None,
                address=self.notes.address,
            )
        )
        for each in earlier:
            self.notes.keep(
                Given(
                    capability=each.capability,
                    arguments=each.arguments,
                    value=each.value,
                    error=each.error,
                    reference=each.reference,
                )
            )
        self._open_ledger()
        if not self.notes.kept:  # then the host may go on with a run that it keeps itself
            self.resumed = Resumed()

    async def go_on(self) -> None:
        """
        Go on with the newest task from its checkpoint, the agents that it called included.

        Raises:
            CheckpointRefused: there is no checkpoint.
            DecisionHistoryBusy: another worker has it.
        """
        before = await self.notes.take()
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
        self.notes.progress = before
        self._open_ledger()
        self.resumed = before.resumed
        # Opened before anything is carried out, so that what they used is charged before anybody uses more.
        for position, intended in before.open.items():
            found, branches = self.program.capabilities.get(before.calls[position].capability), intended.branches
            if branches and found is not None and found.agent is not None:
                tasks = tasks_of(before.calls[position].arguments, branches)
                children = self.calls.call_agents(position, found, branches)
                for child, task in zip(children, tasks, strict=True):
                    await child.begin_or_go_on(task, worker_stopped=before.recovered)
        self._count_from_here()

    async def begin_or_go_on(self, task: str, *, worker_stopped: bool) -> None:
        """
        Go on as an agent whose caller's log is held, so that nobody else can be at work on this one.

        What was said of its caller's worker was said of its own, which is the same.
        """
        before = await self.notes.take(owned=True)
        before.recovered |= worker_stopped
        if before.began:
            await self._go_on(before)
        else:
            self._begin(task)

    def _open_ledger(self) -> None:
        limits = {name: each.max_calls for name, each in self.program.capabilities.items() if each.max_calls}
        used = self.progress.used
        self.notes.count_in(Ledger(self.program.budgets, limits, used, self.host.monotonic_ns, self.above))
        self._count_from_here()

    def _count_from_here(self) -> None:
        """Begin to count what this run uses, apart from what the invocation had used before it."""
        self.decisions_before = self.ledger.decisions_used
        self.calls_before = self.ledger.calls_used

    async def release(self, error: BaseException | None = None) -> None:
        """Give back the log and those of the agents that it called, each of them whatever becomes of the others."""
        failed: list[BaseException] = []
        for each in reversed(self.tree()):
            try:
                await each.notes.release(error, worked=any(one.notes.worked for one in each.tree()))
            except BaseException as second:  # raised once each was given back
                failed.append(second)
        try:
            if failed:
                raise failed[-1]
        finally:
            failed.clear()  # an error that its own frame held would keep what an interrupt left from being gone

    # --- what humans answer ------------------------------------------------------------------------------------------

    def tree(self) -> list[Invocation[Any]]:
        """Return this invocation and those below it that are under way."""
        below = [each for children in self.calls.children.values() for child in children for each in child.tree()]
        return [self, *below]

    @property
    def pending(self) -> tuple[PendingApproval, ...]:
        """The calls that wait for a human, here and below."""
        return tuple(pending for each in self.tree() for pending in each.progress.pending)

    async def keep_answer(self, approval: Approval) -> None:
        """Keep a human's checked answer, durably: however far this run comes, it is not asked for again."""
        self.notes.note(Ruled(approval=approval))
        await self.notes.commit()

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
            if self.progress.waiting and (stop := await self.calls.carry_out()):
                return await self._stopped(stop)
            # The model was offered nothing to call, so that it would finish, and proposed a call all the same.
            if self.offered_nothing:
                return self._end("budget_exhausted", budget="calls")
            if spent := self._spent():
                return self._end("budget_exhausted", budget=spent)
            await self._decide()
            if ended := self.progress.ended:
                return self._told(ended)

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
        await self.calls.abandon()
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

    async def _decide(self) -> None:
        """Ask for a decision and note it; one that finishes together with that end, so that no record tells of half."""
        self.offered_nothing = self.ledger.calls_left == 0
        self.ledger.reserve_decision()
        self.notes.note(Asking())
        await self.notes.commit()
        provider = self.host.providers.get(self.program.name, self.host.provider)
        try:
            decision = await provider.decide(self._request())
        except DecisionHistoryBusy as busy:
            if not self.notes.kept:
                raise
            raise conversation_busy(busy) from busy
        anew = isinstance(decision, Decision) and decision.without_messages  # pyright: ignore[reportUnnecessaryIsInstance]
        decision = checked_decision(decision, set() if anew else self.progress.answered)
        if self.host.projection == "opaque_refs":
            check_projected(decision)
        if decision.finish is not None:
            self.program.read_output(decision.finish.output)
        self.resumed = None
        calls = tuple(Call(each.capability, each.arguments, each.reference) for each in decision.calls)
        decided = Decided(
            calls=calls,
            exchange=decision.exchange,
            conversation=decision.conversation,
            digest=decision.digest,
            without_messages=anew,
        )
        finish = decision.finish
        self.notes.note(decided, *([] if finish is None else [Ended(kind="finished", output=finish.output)]))

    def _request(self) -> DecisionRequest:
        declared = self.program.capabilities
        # Asked once for each: a clock that moves on between two questions could leave a capability out of both lists.
        denied = {name: self.calls.denial(name) for name in declared}
        opaque = self.host.projection == "opaque_refs"

        def specs(denials: Collection[Denial | None]) -> tuple[CapabilitySpec, ...]:
            told = [each.spec for name, each in declared.items() if denied[name] in denials]
            return tuple(map(widened, told) if opaque else told)

        return DecisionRequest(
            run_id=self.identity.run_id,
            invocation_id=self.identity.invocation_id,
            agent_ref=self.program.name,
            instructions=self.program.instructions,
            task=self.progress.task,
            task_ref=self.progress.ref,
            capabilities=specs((None,)),
            output=self.program.output,
            check_output=self.program.check_output,
            withheld=tuple(name for name, denial in denied.items() if denial is not None),
            shown=specs({None, *SPENT}),
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
        self.notes.note(Referred(kept=keeping))
        await self.notes.commit()
        return tuple(projected_calls)

    def branch(self, task: str) -> Branch:
        """Return what runs this invocation as an agent that was called."""

        async def run() -> Outcome[T]:
            if not self.progress.began:
                await self.begin(task)
            return await self.run()

        return run

    # --- notes and outcomes ------------------------------------------------------------------------------------------

    async def _stopped(self, stop: Stop) -> Outcome[T]:
        """Stop for a human, or end a run whose program is at fault: the calls that are left are refused."""
        if stop == "waits":
            return self._outcome("approval_required", pending=self.pending)
        await self.notes.refuse_waiting()
        return self._end("failed", error=stop)

    @property
    def finished_with(self) -> JSON:
        """What the task finished with."""
        return self.progress.ended.output if self.progress.ended else None

    def _end(
        self,
        kind: Ending,
        *,
        budget: Budget | None = None,
        error: InvalidValue | None = None,
    ) -> Outcome[T]:
        ended = Ended(kind=kind, budget=budget, fault=str(error) if error else "")
        self.notes.note(ended)
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
            run_id=self.identity.run_id,
            invocation_id=self.identity.invocation_id,
            observations=tuple(self.progress.observations),
            decisions=self.ledger.decisions_used - self.decisions_before,
            calls=self.ledger.calls_used - self.calls_before,
            output=output,
            budget=budget,
            error=error,
            pending=pending,
        )


def _invoked(
    host: Host, caller: Identity[Any], notes: Notes, found: Capability[..., Any], branch: str
) -> Invocation[Any]:
    """
    Return the invocation of an agent that a call is for.

    Its caller's own invocation knows of it, and not the other way: one that an interrupt left is gone at once, and what
    it held is known to be nobody's.
    """
    assert found.agent is not None
    return Invocation(
        host,
        found.agent,
        run_id=caller.run_id,
        invocation_id=branch,
        grants=found.grants & caller.grants,
        above=notes.ledger,
    )
