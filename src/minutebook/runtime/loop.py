"""
The runtime: runs of a program, begun, gone on with, and recovered.

Nothing here reads a message. What the model may do is asked of the program and the ledger, once to tell the model and
once more for each call that it proposes, and the two never disagree; see `invocation`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from minutebook.errors import BlockingMismatch, DecisionHistoryNotReserved, InvalidOption
from minutebook.model.bounds import check_count, ttl_ms
from minutebook.model.clock import read_clock
from minutebook.model.keys import check_id
from minutebook.runtime import observations as observed
from minutebook.runtime.approvals import APPROVAL_SECONDS, check_approvals, refuse_changed
from minutebook.runtime.checkpoints import Log, Storage
from minutebook.runtime.invocation import Invocation
from minutebook.runtime.outcomes import Host, Outcome
from minutebook.runtime.program import Program, checked_task
from minutebook.runtime.references import PROJECTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from minutebook.model.decisions import Observation
    from minutebook.model.telling import Cancelled
    from minutebook.ports import DecisionProvider, Random
    from minutebook.runtime.approvals import Approval, PendingApproval
    from minutebook.runtime.notes import Report
    from minutebook.runtime.outcomes import Branch, Gather
    from minutebook.runtime.references import Projection

__all__ = ["Outcome", "Runtime"]

T = TypeVar("T")


async def one_by_one(branches: Sequence[Branch]) -> list[Outcome[Any]]:
    """Run branches one after the other, each to its end; raise the first error after the last of them."""
    outcomes: list[Outcome[Any]] = []
    errors: list[Exception] = []
    for branch in branches:
        try:
            outcomes.append(await branch())
        except Exception as error:  # told once every branch has come to its end
            errors.append(error)
    if errors:
        raise errors[0]
    return outcomes


def nobody_knows() -> None:
    """Return that nobody can tell whether whoever runs a run was asked to end."""


class Runtime(Generic[T]):
    """
    Runs a program with the decisions of a provider. It holds no state of a run: runs may overlap.

    Args:
        program: what may be done.
        provider: who decides what to do.
        providers: who decides instead for the agents of these names.
        checkpoints: where runs are kept so that they can go on; `None` for nowhere.
        memory: where memory resources are kept.
        fresh_id: gives a new unguessable id at each call; runs and invocations that are not named get theirs here.
        monotonic_ns: gives nanoseconds as an int, for the budget of wall time.
        clock: gives Unix milliseconds, for the expiry of approvals.
        approval_ttl: how long a call that was shown may be approved, as a `timedelta` or in seconds.
        gather: runs branches side by side; without it they run one after the other.
        cancelled: says whether whoever runs a run was asked to end, so that a capability's own cancellation is told
            from that; without it nobody can tell, and each is passed on.
        projection: what providers keep of a model's arguments; see `references`.
    """

    def __init__(
        self,
        program: Program[T],
        provider: DecisionProvider,
        *,
        fresh_id: Random,
        monotonic_ns: Callable[[], int],
        clock: Callable[[], int],
        providers: Mapping[str, DecisionProvider] | None = None,
        checkpoints: Storage | None = None,
        memory: Storage | None = None,
        approval_ttl: timedelta | float = APPROVAL_SECONDS,
        gather: Gather = one_by_one,
        cancelled: Cancelled = nobody_knows,
        projection: Projection = "inline",
    ) -> None:
        """Keep the parts; nothing is called."""
        if not isinstance(program, Program):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
            raise InvalidOption(f"program must be a Program, not {shown_type(program)}", option="program")
        providers = checked_providers(provider, providers)
        for each in (provider, *providers.values()):
            if not inspect.iscoroutinefunction(getattr(each, "decide", None)):
                raise BlockingMismatch(
                    "a provider's decide is an `async def`; a blocking one goes with minutebook.sync.Runtime"
                )
        for option, given in (("checkpoints", checkpoints), ("memory", memory)):
            if not isinstance(given, (Storage, type(None))):  # pyright: ignore[reportUnnecessaryIsInstance] - as above
                raise InvalidOption(f"{option} is a Storage, not {shown_type(given)}", option=option)
        for option, function in (("fresh_id", fresh_id), ("monotonic_ns", monotonic_ns), ("clock", clock)):
            if not callable(function):
                raise InvalidOption(f"{option} is a function, not {shown_type(function)}", option=option)
        _check_agents(agents_of(program), providers, kept=checkpoints is not None, remembers=memory is not None)
        self._program = program
        self._host = Host(
            provider=provider,
            providers=providers,
            checkpoints=checkpoints,
            memory=memory,
            fresh_id=fresh_id,
            monotonic_ns=monotonic_ns,
            clock=lambda: read_clock(clock),
            approval_ms=_approval_ms(approval_ttl),
            gather=gather,
            cancelled=cancelled,
            projection=_checked_projection(projection),
        )

    async def run(
        self,
        task: str,
        *,
        run_id: str | None = None,
        invocation_id: str | None = None,
        task_id: str | None = None,
        observations: Sequence[Observation] = (),
        on_observation: Report | None = None,
    ) -> Outcome[T]:
        """
        Return what the program came to on `task`: finished, stopped for an approval, out of a budget, or failed.

        Each proposed call gets one observation, executed or refused; one that waits for an approval gets it later. A
        run that stopped or raised goes on with `resume`, or with the same task and ids here, where checkpoints are
        kept. Without them the host keeps what `on_observation` reports and gives it, in order, with the same ids: it
        counts against the budgets of calls and decisions (never less than was used); wall time is then counted for
        each run alone, and so is a decision of which nothing was observed.

        Where checkpoints are kept, the newest task of an invocation is carried out once: when it has ended, the same
        task again gives its recorded outcome, with 0 decisions and 0 calls, and nothing is asked or executed. After
        one that *finished* another task is the next turn of the conversation, with budgets of its own. After one that
        ended otherwise every task gets that recorded outcome: what was used up stays used up under these ids. `resume`
        with a program of larger budgets goes on with it; `abandon` gives it up, and the next task begins.

        Args:
            task: what to do; the same text at each step.
            run_id: names the run; a fresh id if left out.
            invocation_id: names the invocation, whose conversation is its own; needs `run_id`; a fresh id if left out.
            task_id: names the task among those of its invocation, so that a retry is told from a next task with the
                same text, such as "Yes."; without it the text alone says whether a task is the newest one again. Needs
                `invocation_id` and checkpoints.
            observations: what the task observed before; needs both ids.
            on_observation: is told of each observation as soon as it is made; one that is `async def` is waited for
                before anything else is done. What it raises ends the run, since a host that cannot keep what was done
                must not have more done.

        Raises:
            ProviderError, DecisionHistoryError: as the provider raised it; what was observed is kept.
            AgentDecisionProviderSchemaViolation: a malformed decision, or an output that does not fit; no call of that
                decision was executed.
            CheckpointRefused: the invocation has another task that is unfinished, or this one with another text or
                other observations; or as `resume`, where it goes on with this one.
            DecisionHistoryBusy: another worker runs this invocation.
            InvalidOption, InvalidId, InvalidValue: an argument that cannot be, as a blank task; nothing was recorded,
                asked or executed.
        """
        earlier = self._checked_earlier(observations, run_id, invocation_id)
        task_id = "" if task_id is None else self._checked_task_id(task_id, invocation_id)
        invocation = self._invocation(
            self._host.fresh_id() if run_id is None else run_id,
            self._host.fresh_id() if invocation_id is None else invocation_id,
            on_observation,
        )
        await invocation.begin(checked_task(task), task_id, earlier)
        return await invocation.run()

    async def resume(
        self,
        run_id: str,
        invocation_id: str,
        *,
        approvals: Sequence[Approval] = (),
        on_observation: Report | None = None,
    ) -> Outcome[T]:
        """
        Go on with an invocation from its checkpoint, in this process or another, and return what it came to (SPEC D25).

        What was executed is not executed again. A call that was under way when its worker was stopped is observed as
        interrupted, its outcome unknown, and not repeated. Budgets go on from what was used. A call that waits for an
        approval is executed or refused as `approvals` say; without an answer the run stops for it again. An accepted
        answer is durable before anything else is done, and used when its call's turn comes, in this run or a later one:
        an approval until it ends, and while the call is what was shown. Of a run that
        has ended the recorded outcome comes back, and nothing is asked, unless a budget ended it of which the program
        has more now: then it goes on with the difference.

        Raises:
            InvalidOption: no checkpoints are kept, or `approvals` is no list.
            ApprovalRefused: an approval is for none of the calls that wait; nothing was executed.
            InvalidValue: an approval whose `by` or `message` is no text; nothing was executed.
            CheckpointRefused: there is no checkpoint (`absent`), or one of another `projection`; or the provider's
                `conversation` has not the task's last decision; or its next `decision` is recorded there, and does not
                fit the program any more.
            DecisionHistoryBusy: another worker runs it, or one that crashed did: see `recover`.
            ProviderError, DecisionHistoryError: as the provider raised it.
        """
        self._kept()
        if not isinstance(approvals, (list, tuple)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption("approvals is a list of the answers, also for one", option="approvals")
        invocation = self._invocation(run_id, invocation_id, on_observation)
        await invocation.go_on()
        try:
            await self._rule(invocation, approvals)
        except BaseException as error:
            await invocation.release(error)
            raise
        return await invocation.run()

    async def abandon(self, run_id: str, invocation_id: str) -> Outcome[T]:
        """
        Give up the newest task of an invocation, so that the next one can begin, and return what it came to.

        That is for a task that ended without an answer, that waits for an approval which nobody will give, or that
        raises however often it is resumed, as one does that fits no window. Nothing more is executed: calls that wait
        are observed as refused, one that was under way as interrupted, and its agents' tasks end like it. What was used
        stays used: the same task again gives this outcome. Another task is the next turn of the conversation, with
        budgets of its own; its model is told what the last calls came to, long results left out. A task that finished
        is left as it is.

        Raises:
            InvalidOption: no checkpoints are kept.
            CheckpointRefused: there is no checkpoint, or one of another `projection`.
            DecisionHistoryBusy: another worker runs it, or one that crashed did: see `recover`.
        """
        self._kept()
        invocation = self._invocation(run_id, invocation_id, None)
        await invocation.go_on()
        return await invocation.abandon()

    async def recover(self, run_id: str, invocation_id: str, *, worker_stopped: bool, epoch: int | None = None) -> None:
        """
        Free the invocation of a worker that is known to be stopped, so that it can be resumed (SPEC D22).

        Should that worker wake, it is fenced before the next thing that it would execute. The agents that it called,
        and the conversation that its provider held, are freed when the invocation is resumed. So is a conversation that
        could not be given back when the invocation itself was, as in an outage: that its worker is stopped is noted
        then, once, of a task that has not finished, and the next one frees it where that was given up.

        Raises:
            InvalidOption: `worker_stopped` is not `True`, or no checkpoints are kept.
            DecisionHistoryNotReserved: nobody holds it and its task has finished, another epoch does, or somebody was
                first to say it.
            DecisionHistoryAbsent: there is no such checkpoint.
        """
        if worker_stopped is not True:
            raise InvalidOption(
                "stop the old worker and verify it, then say worker_stopped=True", option="worker_stopped"
            )
        if epoch is not None:
            check_count(epoch, "epoch")
        storage = self._kept()
        key = storage.checkpoint(run_id, invocation_id, self._program.name)
        try:
            await storage.journal.recover(key, epoch)
        except DecisionHistoryNotReserved:
            if epoch is not None or not await Log(storage, key).say_stopped():
                raise

    def _kept(self) -> Storage:
        if self._host.checkpoints is None:
            raise InvalidOption("no checkpoints are kept; give checkpoints=", option="checkpoints")
        return self._host.checkpoints

    def _checked_earlier(
        self, observations: Sequence[Observation], run_id: str | None, invocation_id: str | None
    ) -> tuple[Observation, ...]:
        earlier = observed.check_earlier(observations)
        _check_identity(run_id, invocation_id, earlier)
        if earlier and self._host.projection == "opaque_refs":
            raise InvalidOption(
                "observations of an earlier run hold arguments for which no reference stands; in opaque_refs mode keep "
                "checkpoints, and go on with resume",
                option="observations",
            )
        return earlier

    def _checked_task_id(self, task_id: str, invocation_id: str | None) -> str:
        if invocation_id is None or self._host.checkpoints is None:
            raise InvalidOption(
                "task_id needs the invocation_id that it belongs to, and checkpoints to be found in", option="task_id"
            )
        return check_id(task_id, "task_id")

    def _invocation(self, run_id: str, invocation_id: str, report: Report | None) -> Invocation[T]:
        return Invocation(
            self._host,
            self._program,
            run_id=check_id(run_id, "run_id"),
            invocation_id=check_id(invocation_id, "invocation_id"),
            grants=self._program.authority,
            report=_checked_report(report),
        )

    async def _rule(self, root: Invocation[T], approvals: Sequence[Approval]) -> None:
        """
        Have each answer kept by the invocation whose call waits for it, once all of them are found to be for one.

        One that is kept already, and was not used, is the same answer again: whoever lost the reply may give it.
        """
        tree = root.tree()
        kept = [answer for each in tree for answer in each.progress.answers.values()]
        approvals = [each for each in approvals if each not in kept]
        owners = {pending.id: each for each in tree for pending in each.progress.pending}
        waiting: dict[str, PendingApproval] = {pending.id: pending for pending in root.pending}
        used = [id_ for each in tree for id_ in each.progress.ruled]
        checked = check_approvals(approvals, waiting, used, self._host.clock()) if approvals else ()
        for each in checked:
            if not owners[each.id].calls.holds_for(waiting[each.id]):
                raise refuse_changed(each.capability)
        for each in checked:
            await owners[each.id].keep_answer(each)


def shown_type(value: object) -> str:
    """Return what an error says that it was given: a type's name, and of a class that it is one."""
    return f"the class {value.__name__} itself" if isinstance(value, type) else type(value).__name__


def checked_providers(provider: T, providers: Mapping[str, T] | None) -> dict[str, T]:
    """
    Return the providers of agents by name, once all of them are objects with a `decide`.

    Raises:
        InvalidOption: one is a class or has no `decide`, or `providers` is no mapping.
    """
    if not isinstance(providers, (Mapping, type(None))):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
        raise InvalidOption(f"providers is a mapping of agents' names, not {shown_type(providers)}", option="providers")
    for option, each in (("provider", provider), *(("providers", each) for each in (providers or {}).values())):
        if isinstance(each, type) or not callable(getattr(each, "decide", None)):
            raise InvalidOption(
                f"{option}: a provider is an object with the method decide, not {shown_type(each)}", option=option
            )
    return dict(providers or {})


def _checked_projection(projection: object) -> Projection:
    if projection not in PROJECTIONS:
        raise InvalidOption("projection is 'inline' or 'opaque_refs'", option="projection")
    return projection


def _approval_ms(approval_ttl: object) -> int:
    ms = ttl_ms(approval_ttl, "approval_ttl")
    if ms is None:
        raise InvalidOption("an approval has to end: approval_ttl is a timedelta or seconds", option="approval_ttl")
    return ms


def agents_of(program: Program[Any]) -> list[Program[Any]]:
    """Return a program and those that it delegates to, however far below; each once."""
    found: list[Program[Any]] = []
    ahead = [program]
    while ahead:
        each = ahead.pop()
        if not any(each is other for other in found):
            found.append(each)
            ahead += [capability.agent for capability in each.capabilities.values() if capability.agent is not None]
    return found


def _check_agents(
    agents: list[Program[Any]], providers: Mapping[str, DecisionProvider], *, kept: bool, remembers: bool
) -> None:
    names = [each.name for each in agents]
    for name in names:
        if names.count(name) > 1:
            raise InvalidOption(f"two agents are named {name!r}; rename one, or declare it once", option="program")
    for name in providers:
        if name not in names:
            raise InvalidOption("providers names an agent that the program does not have", option="providers")
    for each in agents:
        if not kept and any(capability.needs_approval for capability in each.capabilities.values()):
            raise InvalidOption(
                f"agent {each.name!r} has capabilities that need approval, and a run that stops for one is kept in a "
                "checkpoint; give checkpoints=, or a provider with a history",
                option="checkpoints",
            )
        if not remembers and each.memory:
            raise InvalidOption(f"agent {each.name!r} declares memory resources; give memory=", option="memory")


def _check_identity(run_id: str | None, invocation_id: str | None, earlier: tuple[Observation, ...]) -> None:
    if invocation_id is not None and run_id is None:
        raise InvalidOption("invocation_id needs the run_id that it belongs to", option="run_id")
    if earlier and invocation_id is None:
        raise InvalidOption("observations need the run_id and invocation_id that they belong to", option="observations")


def _checked_report(on_observation: Report | None) -> Report | None:
    if on_observation is not None and not callable(on_observation):
        raise InvalidOption("on_observation must be a function, plain or async", option="on_observation")
    return on_observation
