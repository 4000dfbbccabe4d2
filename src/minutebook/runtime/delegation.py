"""
Delegation: an agent that another agent may call, as one of its capabilities.

The agent that is called has an identity of its own, so it shares neither messages nor observations with its caller; a
subset of its caller's authority; and budgets within its caller's. What it finishes with is the call's result: data,
which grants and changes nothing (SPEC D5, D28). With several branches one call gives as many tasks, each to an
invocation of its own; they run side by side, and share nothing with each other either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import msgspec

from minutebook.errors import DecisionHistoryCorrupt, InvalidOption, InvalidValue
from minutebook.model.bounds import check_count, check_flag
from minutebook.model.codec import JSON, text
from minutebook.runtime.authority import check_grant, checked_grants
from minutebook.runtime.capabilities import RESERVED_NAMES, Capability, InvalidArguments, check_name, contract_of
from minutebook.runtime.program import Program, checked_task

if TYPE_CHECKING:
    from collections.abc import Sequence, Set

MAX_TASK_CHARACTERS = 32_768
MAX_BRANCHES = 64

_Task = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TASK_CHARACTERS)]


def delegate(
    agent: Program[Any],
    *,
    name: str | None = None,
    description: str | None = None,
    authority: str | None = None,
    grants: Set[str] | None = None,
    max_calls: int | None = None,
    max_branches: int = 1,
    needs_approval: bool = False,
) -> Capability[..., NoReturn]:
    """
    Return a capability that gives a task to `agent`, or several tasks at once to as many invocations of it.

    The model gives a `task`, or with `max_branches` above 1 a list of `tasks`; what comes back is what the agent
    finished with, or a list of that in the tasks' order. A branch that did not finish is an error that says why. Calls
    of one decision that delegate run side by side too. The runtime asks the agent's provider, by the agent's name.

    Args:
        agent: who is asked.
        name: what the caller calls it; the agent's name if left out.
        description: what the caller's model is told of it.
        authority: the grant that the caller must hold for it.
        grants: the authority handed on; all that the agent declares if left out. The caller must hold it too.
        max_calls: how often one task of the caller may call it.
        max_branches: how many tasks one call may give, at most 64.
        needs_approval: stop at each call until a human has approved these very tasks.

    Raises:
        InvalidOption: an option that cannot be, or grants that the agent does not declare.
    """
    if not isinstance(agent, Program):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
        raise InvalidOption(f"agent must be a Program, not {type(agent).__name__}", option="agent")
    called = check_name(agent.name if name is None else name, "a capability's name")
    if called in RESERVED_NAMES:
        raise InvalidOption(f"the name {called!r} is reserved for providers; give another", option="name")
    if check_count(max_branches, "max_branches") > MAX_BRANCHES:
        raise InvalidOption(f"max_branches must be at most {MAX_BRANCHES}, not {max_branches}", option="max_branches")
    handed = agent.authority if grants is None else checked_grants(grants)
    if not handed <= agent.authority:
        raise InvalidOption("grants hold more than the agent declares in its authority", option="grants")
    parameters, arguments = contract_of([_field(max_branches)])
    return Capability(
        function=_refuse,
        name=called,
        description=text(f"Give a task to {agent.name}." if description is None else description, "description"),
        parameters=parameters,
        authority=None if authority is None else check_grant(authority),
        max_calls=None if max_calls is None else check_count(max_calls, "max_calls"),
        arguments=arguments,
        needs_approval=check_flag(needs_approval, "needs_approval"),
        agent=agent,
        grants=handed,
    )


def _field(max_branches: int) -> tuple[str, Any]:
    if max_branches == 1:
        return "task", _Task
    return "tasks", Annotated[list[_Task], msgspec.Meta(min_length=1, max_length=max_branches)]


def tasks_in(arguments: dict[str, JSON]) -> tuple[list[str], bool]:
    """Return the tasks that a delegating call gives, and whether they came as a list."""
    tasks: Any = arguments.get("tasks")
    return (tasks, True) if tasks is not None else ([str(arguments["task"])], False)


def check_tasks(arguments: dict[str, JSON]) -> None:
    """
    Refuse a task of which no agent could make anything, before an invocation begins with it.

    Raises:
        InvalidArguments: a task is blank.
    """
    try:
        for task in tasks_in(arguments)[0]:
            checked_task(task)
    except InvalidValue as error:
        raise InvalidArguments(str(error)) from None


def tasks_of(arguments: dict[str, JSON], branches: Sequence[str]) -> list[str]:
    """
    Return the tasks of a call whose invocations a checkpoint names, one for each.

    Raises:
        DecisionHistoryCorrupt: it names more or fewer, or what the call gave are no tasks.
    """
    given = arguments.get("tasks", [arguments.get("task")])
    tasks = [task for task in given if isinstance(task, str)] if isinstance(given, list) else []
    if len(tasks) != len(branches):
        raise DecisionHistoryCorrupt(
            f"a checkpoint names {len(branches)} invocations for {len(tasks)} tasks; restore a backup"
        )
    return tasks


def _refuse(**_: Any) -> NoReturn:
    raise InvalidOption("an agent is called by the runtime alone; run its program instead", option="agent")
