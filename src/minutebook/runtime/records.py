"""
What a checkpoint records, and the one fold that makes an invocation's state of it.

An invocation notes each of its steps as a record, and its state is those records applied one after the other. A run
that goes on in another process applies the same records again: there is no second way to arrive at a state, so what
was really done, used and asked for cannot be told differently after a crash (SPEC D2, D25).

The order is what makes it safe. `Asking` is durable before a decision is asked for, and `Intended` before a call is
executed; `Observed` follows. An intent without its observation is an effect of which nobody knows (promise I-44).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from minutebook.errors import DecisionHistoryCorrupt, InvalidValue
from minutebook.model.codec import decode
from minutebook.model.decisions import Abandoned, CallReference, Observation, ProposedCall, Resumed
from minutebook.model.entries import Draft, Entry, Kind
from minutebook.model.shown import type_alone
from minutebook.runtime.approvals import Approval, PendingApproval
from minutebook.runtime.budgets import Budget, Used
from minutebook.runtime.observations import shortened, used_by
from minutebook.runtime.references import Kept, Projection, restored

if TYPE_CHECKING:
    from collections.abc import Iterable

Ending: TypeAlias = Literal["finished", "budget_exhausted", "failed", "abandoned"]


class _Record(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="is", forbid_unknown_fields=True
):
    wall_ns: int = 0
    """The budgeted time that the invocation had used when it was noted."""

    __repr__ = type_alone


class LastCall(msgspec.Struct, frozen=True):
    """What one call of a task's last decision came to."""

    capability: str
    value: Any
    error: bool
    reference: CallReference

    __repr__ = type_alone


class Before(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    What the tasks before one left behind: the last calls of one that was given up, until a model is told of them, and
    whether a worker was said to be stopped, until a decision comes.
    """

    calls: tuple[LastCall, ...] = ()
    worker_stopped: bool = False
    conversation: str | None = ""
    """Which conversation the calls stand in; empty where no decision was received, `None` in one without a name."""
    seen: int = 0
    digest: str = ""
    """The last decision that was received there."""

    __repr__ = type_alone


class Began(_Record, frozen=True, kw_only=True, tag="began"):
    """A task begins. `seen` is the newest exchange that the invocation received before it."""

    task: str
    task_id: str = ""
    """What the host names it by; empty for by its text alone."""
    ref: str = ""
    """Names it among all tasks that the invocation ever had; empty where nothing of it is kept."""
    seen: int = 0
    projection: Projection = "inline"
    before: Before | None = None
    """What tasks before it left behind; `None` for an invocation's first."""
    address: str = ""
    """A digest of where the log is kept: a whole log of another run tells no story in this one's place."""


class Given(_Record, frozen=True, kw_only=True, tag="given"):
    """An observation that the host brought along."""

    capability: str
    arguments: dict[str, Any]
    value: Any
    error: bool
    reference: CallReference | None


class Asking(_Record, frozen=True, kw_only=True, tag="asking"):
    """A decision is about to be asked for: it is used from now on."""


class Referred(_Record, frozen=True, kw_only=True, tag="referred"):
    """References stand for these values from now on, whatever becomes of the decision that gave them (SPEC D27)."""

    kept: dict[str, Kept]


class Call(msgspec.Struct, frozen=True):
    """A proposed call as it is stored: in `opaque_refs` mode with references for arguments."""

    capability: str
    arguments: dict[str, Any]
    reference: CallReference | None

    __repr__ = type_alone


class Decided(_Record, frozen=True, kw_only=True, tag="decided"):
    """A decision came, with these calls."""

    calls: tuple[Call, ...]
    exchange: int | None = None
    conversation: str = ""
    digest: str = ""
    without_messages: bool = False


class Waiting(_Record, frozen=True, kw_only=True, tag="waiting"):
    """These calls wait for a human, instead of whatever waited before."""

    pending: tuple[PendingApproval, ...]


class Ruled(_Record, frozen=True, kw_only=True, tag="ruled"):
    """A human's answer is accepted; it is for the call at its position, and for no other."""

    approval: Approval


class Intended(_Record, frozen=True, kw_only=True, tag="intended"):
    """A call is about to be executed; one that delegates, by these invocations."""

    position: int
    arguments: dict[str, Any] | None = None
    """All that is executed, defaults included; `None` where that is what was proposed."""
    branches: tuple[str, ...] = ()


class Observed(_Record, frozen=True, kw_only=True, tag="observed"):
    """What came of a call, and what the agents below it used in all."""

    position: int
    value: Any
    error: bool
    decisions: int = 0
    calls: int = 0


class Ended(_Record, frozen=True, kw_only=True, tag="ended"):
    """What the task came to."""

    kind: Ending
    output: Any = None
    budget: Budget | None = None
    fault: str = ""
    """The program's fault that ended it, as its error said."""


class Elapsed(_Record, frozen=True, kw_only=True, tag="elapsed"):
    """A run stops here, or fails: it had used this time, of which no other record tells (promise I-43)."""


Record: TypeAlias = (
    Began | Given | Asking | Referred | Decided | Waiting | Ruled | Intended | Observed | Ended | Elapsed
)


def draft_of(record: Record) -> Draft:
    """Return a record as it is stored: everything in it is JSON that was made or checked by the codec."""
    kind = Kind.INPUT if isinstance(record, Began) else Kind.INJECTION
    return Draft(kind=kind, payload=msgspec.json.encode(record))


def record_in(entry: Entry) -> Record:
    """
    Return the record that an entry holds.

    Raises:
        DecisionHistoryCorrupt: it holds none.
    """
    try:
        record: Record = msgspec.convert(decode(entry.payload), Record)
    except (InvalidValue, msgspec.ValidationError):
        raise DecisionHistoryCorrupt(f"entry {entry.seq} of the checkpoint is no record", seq=entry.seq) from None
    return record


class Progress:
    """The state of an invocation's newest task: its records, applied."""

    def __init__(self) -> None:
        """Begin before the first record."""
        self.task = self.task_id = self.ref = self.address = ""
        self.began = False
        self.ended: Ended | None = None
        self.observations: list[Observation] = []
        self.answered: set[CallReference] = set()
        self.calls: tuple[ProposedCall, ...] = ()
        """The calls of the newest decision, with real arguments; all that are observed are `done`."""
        self.dangling: dict[int, tuple[str, ...]] = {}
        """Positions of calls with references that stand for nothing, and the names of those parameters."""
        self.projection: Projection = "inline"
        self.kept: dict[str, Kept] = {}
        """What references stand for; empty in `inline` mode."""
        self.done: set[int] = set()
        self.open: dict[int, Intended] = {}
        """The intents of calls whose outcome is not noted, by position."""
        self.pending: tuple[PendingApproval, ...] = ()
        self.ruled: list[str] = []
        """The ids of approvals that were accepted."""
        self.answers: dict[int, Approval] = {}
        """What humans answered to calls of the newest decision that have no observation yet, by position."""
        self.seen = 0
        """The newest exchange that came to its caller."""
        self.recovered = False
        """Whether somebody said that the worker which wrote these records is stopped."""
        self._before: Before | None = None
        """What tasks before it left behind, until this one's model is told of it."""
        self._decided_in: str | None = None
        """Which conversation the newest decision stands in, empty for one without a name; `None` before the first."""
        self._digest = ""
        self._shown: list[dict[str, Any]] = []
        """The arguments of the newest decision's calls as the provider gave them."""
        self._told: list[dict[str, Any]] = []
        """The arguments of each observation as a provider may see them."""
        self._given: list[Observation] = []
        self._asked = 0
        self._executed: Counter[str] = Counter()
        self._below = [0, 0]
        self.wall_ns = 0
        """The budgeted time that it had used by its newest record."""

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Progress:
        """
        Return the state that entries of a checkpoint's newest task tell, oldest first.

        Raises:
            DecisionHistoryCorrupt: one of them is no record, or none that an invocation would note there.
        """
        progress = cls()
        for entry in entries:
            if entry.kind is Kind.ABANDONED:
                progress.recovered = True
                continue
            record = record_in(entry)
            if not progress.may_follow(record):
                raise DecisionHistoryCorrupt(
                    f"entry {entry.seq} of the checkpoint does not follow from those before it", seq=entry.seq
                )
            progress.apply(record)
        return progress

    def may_follow(self, record: Record) -> bool:
        """Return whether a record can stand next: the first begins the task, and others are of calls that wait."""
        if isinstance(record, Began) is self.began:
            return False
        if isinstance(record, Observed) and min(record.decisions, record.calls) < 0:
            return False
        return self.waiting_at(record)

    def waiting_at(self, record: Record) -> bool:
        """Return whether all calls that a record is of were proposed, and have no observation yet."""
        if isinstance(record, (Intended, Observed)):
            places = [record.position]
        elif isinstance(record, Ruled):
            places = [record.approval.position]
        else:
            places = [each.position for each in record.pending] if isinstance(record, Waiting) else []
        return set(places) <= set(self.waiting)

    @property
    def waiting(self) -> tuple[int, ...]:
        """The positions of the calls that have no observation yet."""
        return tuple(at for at in range(len(self.calls)) if at not in self.done)

    @property
    def used(self) -> Used:
        """What this task has used, the agents below it included where they ended."""
        given = used_by(self._given)
        return Used(
            decisions=given.decisions + self._asked + self._below[0],
            calls=Counter(given.calls) + self._executed,
            below_calls=self._below[1],
            wall_ns=self.wall_ns,
        )

    def left_behind(self) -> Before:
        """Return what the next task begins behind, once this one has finished or was given up."""
        if self._decided_in is None:
            before = self._before or Before()
            return msgspec.structs.replace(before, worker_stopped=self.recovered or before.worker_stopped)
        if self.ended is None or self.ended.kind != "abandoned":
            return self._before or self._behind((), worker_stopped=False)
        if self._before is not None and not self._decided_in:
            # Calls in a place without a name say nothing of a conversation that has one.
            return msgspec.structs.replace(self._before, worker_stopped=self.recovered)
        last = {each.reference for each in self.calls}
        told = tuple(
            LastCall(each.capability, shortened(each.value), each.error, each.reference)
            for each in self.observations
            if each.reference is not None and each.reference in last
        )
        return self._behind(told, worker_stopped=self.recovered)

    def _behind(self, calls: tuple[LastCall, ...], *, worker_stopped: bool) -> Before:
        return Before(calls, worker_stopped, self._decided_in or None, self.seen, self._digest)

    @property
    def resumed(self) -> Resumed:
        """What the provider is told when the task goes on."""
        conversation = self._decided_in or ("" if self.seen or self._decided_in is None else None)
        return Resumed(seen=self.seen, worker_stopped=self.recovered, conversation=conversation, digest=self._digest)

    @property
    def abandoned(self) -> Abandoned | None:
        """What the provider is told of tasks before this one, until this one has a decision."""
        if self._before is None or self._decided_in is not None:
            return None
        observations = tuple(
            Observation(
                capability=each.capability, arguments={}, value=each.value, error=each.error, reference=each.reference
            )
            for each in self._before.calls
        )
        return Abandoned(
            observations=observations,
            conversation=self._before.conversation,
            seen=self._before.seen,
            digest=self._before.digest,
            worker_stopped=self._before.worker_stopped,
        )

    @property
    def told(self) -> tuple[Observation, ...]:
        """The observations as a provider may see them: in `opaque_refs` mode with references for arguments."""
        if self.projection == "inline":
            return tuple(self.observations)
        return tuple(
            msgspec.structs.replace(each, arguments=arguments)
            for each, arguments in zip(self.observations, self._told, strict=True)
        )

    def apply(self, record: Record) -> None:
        """Go on by one record."""
        self.wall_ns = max(self.wall_ns, record.wall_ns)
        _APPLY[type(record)](self, record)

    def _began(self, record: Began) -> None:
        self.task, self.task_id, self.ref = record.task, record.task_id, record.ref
        self.began, self.seen, self.address = True, record.seen, record.address
        self.projection, self._before = record.projection, record.before

    def _take_given(self, record: Given) -> None:
        observation = Observation(
            capability=record.capability,
            arguments=record.arguments,
            value=record.value,
            error=record.error,
            reference=record.reference,
        )
        self._given.append(observation)
        self._observe(observation, observation.arguments)

    def _asking(self, _: Asking) -> None:
        self.ended = None  # a budget had ended it, and was raised since
        self._asked += 1

    def _referred(self, record: Referred) -> None:
        self.kept.update(record.kept)

    def _decided(self, record: Decided) -> None:
        if record.without_messages:
            # The conversation began anew, and its numbers with it: what they named before they name no more.
            self.observations = [msgspec.structs.replace(each, reference=None) for each in self.observations]
            self.answered.clear()
        self._shown = [each.arguments for each in record.calls]
        real = [self._restored(each.arguments) for each in record.calls]
        self.dangling = {at: dangling for at, (_, dangling) in enumerate(real) if dangling}
        self.calls = tuple(
            ProposedCall(capability=each.capability, arguments=arguments, reference=each.reference)
            for each, (arguments, _) in zip(record.calls, real, strict=True)
        )
        self.done, self.open, self.answers = set(), {}, {}
        self.seen, self._decided_in, self._digest = record.exchange or 0, record.conversation, record.digest
        if self._before is not None:
            # Of calls in another conversation no model was told yet; whose worker was stopped is known no more.
            kept = self._before.conversation not in ("", None, record.conversation)
            self._before = msgspec.structs.replace(self._before, worker_stopped=False) if kept else None
        self.recovered = False

    def _restored(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
        return (arguments, ()) if self.projection == "inline" else restored(arguments, self.kept)

    def _waiting(self, record: Waiting) -> None:
        self.pending = record.pending

    def _ruled(self, record: Ruled) -> None:
        self.ruled.append(record.approval.id)
        self.answers[record.approval.position] = record.approval
        self.pending = tuple(each for each in self.pending if each.id != record.approval.id)

    def _intended(self, record: Intended) -> None:
        self.open[record.position] = record
        self._executed[self.calls[record.position].capability] += 1

    def _observed(self, record: Observed) -> None:
        call = self.calls[record.position]
        intended = self.open.pop(record.position, None)
        executed = intended.arguments if intended else None
        self.answers.pop(record.position, None)
        self.done.add(record.position)
        self.pending = tuple(each for each in self.pending if each.position != record.position)
        self._below[0] += record.decisions
        self._below[1] += record.calls
        self._observe(
            Observation(
                capability=call.capability,
                arguments=call.arguments if executed is None else executed,
                value=record.value,
                error=record.error,
                reference=call.reference,
            ),
            self._shown[record.position],
        )

    def _observe(self, observation: Observation, told: dict[str, Any]) -> None:
        self.observations.append(observation)
        self._told.append(told)
        if observation.reference is not None:
            self.answered.add(observation.reference)

    def _ended(self, record: Ended) -> None:
        self.ended = record

    def _elapsed(self, _: Elapsed) -> None:
        """Change nothing but the time, which every record tells."""


_APPLY: dict[type[Any], Any] = {
    Began: Progress._began,  # pyright: ignore[reportPrivateUsage]
    Given: Progress._take_given,  # pyright: ignore[reportPrivateUsage]
    Asking: Progress._asking,  # pyright: ignore[reportPrivateUsage]
    Referred: Progress._referred,  # pyright: ignore[reportPrivateUsage]
    Decided: Progress._decided,  # pyright: ignore[reportPrivateUsage]
    Waiting: Progress._waiting,  # pyright: ignore[reportPrivateUsage]
    Ruled: Progress._ruled,  # pyright: ignore[reportPrivateUsage]
    Intended: Progress._intended,  # pyright: ignore[reportPrivateUsage]
    Observed: Progress._observed,  # pyright: ignore[reportPrivateUsage]
    Ended: Progress._ended,  # pyright: ignore[reportPrivateUsage]
    Elapsed: Progress._elapsed,  # pyright: ignore[reportPrivateUsage]
}
