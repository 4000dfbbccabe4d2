"""
What passes between a runtime and the provider of its decisions.

Three states have three owners (SPEC D2). Observations are the runtime's truth: operations that were really executed.
Messages are the history's: what a provider said, with its call ids and opaque metadata. A decision is only a proposal;
it grants nothing, and the runtime checks each proposed call anew (SPEC D3).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from minutebook.model.codec import JSON


class CapabilitySpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is told of one capability that it may call now."""

    name: str
    description: str
    parameters: dict[str, JSON]
    """JSON schema of the arguments: an object whose strings and integers are bounded where the program bounds them."""


class CallReference(msgspec.Struct, frozen=True):
    """Where a proposal stands in its conversation: the `seq` of the response, and the call's position in it."""

    exchange: int
    position: int


class ProposedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that a model asks for. `reference` is what its observation will carry back."""

    capability: str
    arguments: dict[str, JSON]
    reference: CallReference | None = None

    def __repr__(self) -> str:
        return f"ProposedCall({self.reference})"  # a name that a model chose is content too


Project: TypeAlias = Callable[[tuple[ProposedCall, ...]], Awaitable[tuple[ProposedCall, ...]]]
"""Keeps what calls give as arguments where the runtime finds it, and returns them with references in its place."""


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that the runtime executed or refused, with what came of it; never what was only proposed."""

    capability: str
    arguments: dict[str, JSON]
    """What it was executed with, with the defaults that JSON can hold; what was proposed, where it was refused."""
    value: JSON
    """The result, or for an error what the model may know of it."""
    error: bool = False
    reference: CallReference | None = None
    """The proposal that led to it; `None` when no history keeps proposals."""

    def __repr__(self) -> str:
        return f"Observation({self.reference}, error={self.error})"


class Resumed(msgspec.Struct, frozen=True, kw_only=True):
    """Said of the first request of an invocation that may have asked before, in another run of it (SPEC D25)."""

    seen: int | None = None
    """
    The exchange of the newest decision that the runtime received, 0 for none: a later one was never delivered, and none
    of its calls was executed. `None` where nobody counts.
    """
    worker_stopped: bool = False
    """Whether somebody said that the worker before is stopped, so that its reservation may be ended (SPEC D22)."""
    conversation: str | None = ""
    """
    Which conversation `seen` is a place in, as `Decision.conversation` names it, `None` for that of a provider that
    keeps none; empty where no decision was received, or nobody knows. A task goes on there, or in one that begins.
    """
    digest: str = ""
    """`Decision.digest` of that decision: what stands at `seen` has it, or the record went another way since."""


class Abandoned(msgspec.Struct, frozen=True, kw_only=True):
    """
    Said until the first decision of a task that comes after others: those are over, and calls of theirs that nothing
    answers, as of one that was given up, wait for nobody any more.
    """

    observations: tuple[Observation, ...] = ()
    """What the last calls of a task that was given up came to, as far as the runtime had received them."""
    conversation: str | None = ""
    """
    Which conversation those calls stand in, as `Decision.conversation` names it, `None` for one without a name. Every
    other call that waits there was not executed; of one that waits in another conversation nobody knows. Empty where no
    decision was received: then that is so of no call that waits, wherever it is.
    """
    seen: int = 0
    """The exchange of the last decision that was received there."""
    digest: str = ""
    """Its `Decision.digest`: where `seen` has another, the conversation is another record than the calls stand in."""
    worker_stopped: bool = False
    """Whether somebody said that the worker of that task is stopped, so that its reservation may be ended."""


class DecisionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a provider needs for the next decision of one invocation."""

    run_id: str
    invocation_id: str
    agent_ref: str
    instructions: str
    task: str
    """What this invocation was asked to do; the same text at each of its steps."""
    task_ref: str = ""
    """
    Names the task among all that its invocation ever had, the same at each of its steps; empty for by its text alone.
    """
    capabilities: tuple[CapabilitySpec, ...]
    """Those that are within authority and budget now, in the program's order."""
    output: dict[str, JSON]
    """JSON schema of what the invocation finishes with."""
    check_output: Callable[[JSON], object] | None = None
    """
    Given where the program's type asks more of an output than its schema says. It raises
    `AgentDecisionProviderSchemaViolation`, and is asked before a finish is recorded: the model can then be asked again.
    """
    withheld: tuple[str, ...] = ()
    """
    Names of the program's other capabilities, which may not be called now: out of budget, or without authority.

    None is among `capabilities`. One that a model proposes all the same is passed on as a call, for the runtime to
    refuse.
    """
    shown: tuple[CapabilitySpec, ...] = ()
    """
    `capabilities`, and among them those of `withheld` whose budget is used up, in the program's order: the same ones as
    long as a task lasts. Empty where nobody keeps account of that; then `capabilities` are shown.

    An API that binds reasoning to the tools, and takes no calls back without any, is given these as tools.
    """
    observations: tuple[Observation, ...] = ()
    """All of this invocation so far, oldest first."""
    resumed: Resumed | None = None
    """Of a run's first request alone: what the runtime knows of the messages before it."""
    abandoned: Abandoned | None = None
    project: Project | None = None
    """
    Given in `opaque_refs` mode (SPEC D27). Then the arguments of `observations` are references already, and what this
    returns of a decision's calls is all that a provider may keep of them, send again, or decide.
    """

    def __repr__(self) -> str:
        return f"DecisionRequest(run={self.run_id!r}, invocation={self.invocation_id!r}, {len(self.observations)} done)"


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    """The model is done: a value that matches the request's output schema."""

    output: JSON

    def __repr__(self) -> str:
        return "Finish()"


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What the model decided: calls to make, or a finish; exactly one of the two."""

    calls: tuple[ProposedCall, ...] = ()
    finish: Finish | None = None
    counted_tokens: int | None = None
    """Input tokens by the provider's counting endpoint before generation, where it was asked."""
    billed_tokens: int | None = None
    """Input tokens by the provider's own account after generation."""
    exchange: int | None = None
    """The `seq` of the response that it was read from; `None` without a history."""
    conversation: str = ""
    """
    Names the conversation that `exchange` is a place in, apart from those of other models and from one that begins
    anew under the same ids; empty without a history.
    """
    digest: str = ""
    """
    Tells `exchange`, and all that is recorded before it, from every other record that has its place; copies keep it.
    """
    without_messages: bool = False
    """
    Whether a resumed invocation began a conversation anew, since its messages are gone: references that the runtime
    holds from before name nothing any more.
    """
