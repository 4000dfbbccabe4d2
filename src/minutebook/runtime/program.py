"""
Programs: what an agent is told, may do, may use, and finishes with, checked when they are made.

A program that exists is legal: nothing in it is found wrong in the middle of a run. It holds no state of a run, so one
program serves any number of them at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast, overload

import msgspec

from minutebook.errors import AgentDecisionProviderSchemaViolation, InvalidOption, InvalidValue
from minutebook.model.codec import JSON, encode, text
from minutebook.model.rules import fault_in
from minutebook.model.schemas import checked_schema
from minutebook.runtime.approvals import canonical
from minutebook.runtime.authority import checked_grants
from minutebook.runtime.budgets import DEFAULT_BUDGETS, Budgets
from minutebook.runtime.capabilities import Capability, check_name
from minutebook.runtime.memory import checked_resources
from minutebook.runtime.schemas import says_all, schema_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Set

    from minutebook.runtime.memory import MemoryResource

T = TypeVar("T")


class Program(Generic[T]):
    """
    One agent as the host declares it.

    Args:
        name: the agent's name, part of the identity of its conversations (SPEC D5).
        instructions: what the model is told before the task.
        capabilities: what it may propose to call, in the order in which it is told of them.
        output: what it finishes with: a Python type, whose value is then the outcome's output, or a JSON schema, whose
            value stays as it came.
        budgets: what one task of an invocation may use.
        authority: the grants it holds. A capability that needs another is not offered, and refused when proposed.
        memory: the resources that its capabilities may use.

    Raises:
        InvalidOption: an option that cannot be, two capabilities of one name, one that uses a memory resource which is
            not declared here so, or one that hands on a grant which is not held here; the message names it.
        InvalidValue: instructions that are no text.
    """

    @overload
    def __init__(
        self: Program[str],
        *,
        name: str,
        instructions: str,
        capabilities: Sequence[Capability[..., Any]] = (),
        budgets: Budgets = ...,
        authority: Set[str] = ...,
        memory: Sequence[MemoryResource] = (),
    ) -> None: ...
    @overload
    def __init__(
        self: Program[JSON],
        *,
        name: str,
        instructions: str,
        capabilities: Sequence[Capability[..., Any]] = (),
        output: dict[str, JSON],
        budgets: Budgets = ...,
        authority: Set[str] = ...,
        memory: Sequence[MemoryResource] = (),
    ) -> None: ...
    @overload
    def __init__(
        self,
        *,
        name: str,
        instructions: str,
        capabilities: Sequence[Capability[..., Any]] = (),
        output: type[T],
        budgets: Budgets = ...,
        authority: Set[str] = ...,
        memory: Sequence[MemoryResource] = (),
    ) -> None: ...
    def __init__(
        self,
        *,
        name: str,
        instructions: str,
        capabilities: Sequence[Capability[..., Any]] = (),
        output: Any = str,
        budgets: Budgets = DEFAULT_BUDGETS,
        authority: Set[str] = frozenset(),
        memory: Sequence[MemoryResource] = (),
    ) -> None:
        """Check every part; nothing is called."""
        self.name: Final = check_name(name, "a program's name")
        self.instructions: Final = text(instructions, "instructions")
        self.capabilities: Final = _by_name(capabilities)
        self.budgets: Final = _budgets(budgets)
        self.authority: Final = checked_grants(authority)
        self.memory: Final = checked_resources(memory)
        for each in self.capabilities.values():
            self._check_declared(each)
        ready_made = type(output) is dict
        self.output: Final = checked_schema(cast("object", output)) if ready_made else schema_of(output, "output")
        """JSON schema of what the program finishes with."""
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Any if ready_made else output)
        self.check_output: Final = None if ready_made or says_all(output) else self.read_output
        """What a provider asks before it records a finish; `None` where the schema says all that the type asks."""

    def __repr__(self) -> str:
        return f"Program({self.name!r}, {len(self.capabilities)} capabilities)"

    @property
    def digest(self) -> str:
        """SHA-256, in hexadecimal, of what an approval to call this agent holds for."""
        parts: list[JSON] = [self.name, self.instructions, [*sorted(self.authority)]]
        parts += [each.digest for each in self.capabilities.values()]
        return hashlib.sha256(canonical(parts)).hexdigest()

    def _check_declared(self, capability: Capability[..., Any]) -> None:
        for resource in capability.memory:
            if resource not in self.memory:
                raise InvalidOption(
                    f"capability {capability.name!r} uses the memory resource {resource.name!r}, which the program "
                    "does not declare with this scope, access and bound; add it to memory=",
                    option="memory",
                )
        if not capability.grants <= self.authority:
            raise InvalidOption(
                f"capability {capability.name!r} hands on {len(capability.grants - self.authority)} grant(s) that the "
                "program does not hold; add them to authority=, or narrow grants=",
                option="authority",
            )

    def read_output(self, value: JSON) -> T:
        """
        Return what a model finished with as the program's output.

        Raises:
            AgentDecisionProviderSchemaViolation: it does not fit the output's schema or type.
        """
        try:
            payload = encode(value)
        except InvalidValue as error:
            raise _no_output(str(error)) from None
        if fault := fault_in(value, self.output):
            raise _no_output(fault)
        try:
            output: T = self._decoder.decode(payload)
        except Exception:  # a type's own __post_init__ may raise anything
            raise _no_output("the type refuses it") from None
        return output


def checked_task(task: object) -> str:
    """
    Return a text that an agent can be asked to do something by.

    One of blanks is refused before anything is recorded: a provider that takes none would refuse it at each resume.

    Raises:
        InvalidValue: no text, or a blank one; `path` is "task".
    """
    checked = text(task, "task")
    if not checked.strip():
        raise InvalidValue("task: empty or blank, which asks for nothing; say what is to be done", path="task")
    return checked


def _no_output(fault: str) -> AgentDecisionProviderSchemaViolation:
    return AgentDecisionProviderSchemaViolation(
        f"the model finished with no valid output: {fault}", provider_error_code="invalid_output"
    )


def _by_name(capabilities: Sequence[object]) -> Mapping[str, Capability[..., Any]]:
    if isinstance(capabilities, (str, bytes, dict)) or not isinstance(capabilities, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption(
            f"capabilities is a list of functions with @capability, not a {type(capabilities).__name__}; write "
            "capabilities=[function]",
            option="capabilities",
        )
    found: dict[str, Capability[..., Any]] = {}
    for each in capabilities:
        if not isinstance(each, Capability):
            raise InvalidOption(
                f"capabilities hold a {type(each).__name__}; decorate the function with @capability",
                option="capabilities",
            )
        if each.name in found:
            raise InvalidOption(f"two capabilities are named {each.name!r}; rename one", option="capabilities")
        found[each.name] = each
    return MappingProxyType(found)


def _budgets(budgets: object) -> Budgets:
    if not isinstance(budgets, Budgets):
        raise InvalidOption(f"budgets must be Budgets, not {type(budgets).__name__}", option="budgets")
    return budgets
