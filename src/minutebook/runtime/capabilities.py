"""
Capabilities: typed Python functions that a program lets a model propose to call.

The function's annotations are the contract, both ways: they become the schema that a model is shown, and what it
proposes is converted to those types strictly before the function sees it. A parameter that JSON cannot fill is refused
when the function is decorated.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Union, overload

import msgspec

from minutebook.errors import InvalidOption
from minutebook.model.bounds import check_count, check_flag
from minutebook.model.codec import JSON, encode, text
from minutebook.model.decisions import CapabilitySpec
from minutebook.model.rules import fault_in
from minutebook.model.schemas import Schema
from minutebook.runtime.approvals import canonical
from minutebook.runtime.authority import check_grant
from minutebook.runtime.defaults import completed, defaults_of, unshown_field
from minutebook.runtime.memory import MemoryAccess, checked_resources
from minutebook.runtime.schemas import schema_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from minutebook.runtime.memory import MemoryResource
    from minutebook.runtime.program import Program

P = ParamSpec("P")
R = TypeVar("R")

RESERVED_NAMES = frozenset({"finish"})
"""Names that providers use themselves, for a model that ends the invocation through a call."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_PLACE = re.compile(r" - at `(\$[^`]*)`")
_UNFILLABLE = {
    inspect.Parameter.POSITIONAL_ONLY: "positional-only",
    inspect.Parameter.VAR_POSITIONAL: "a variable number of values",
    inspect.Parameter.VAR_KEYWORD: "a variable number of names",
}


class CapabilityFailed(Exception):
    """
    Raise it in a capability to tell the model what went wrong; the run goes on.

    Of every other exception a model is told the type's name alone, since a message may hold what it must not see.
    """

    def __init__(self, message: str) -> None:
        """Take the text that the model will read."""
        super().__init__(message)
        self.message = message


class InvalidArguments(Exception):
    """What a model proposed does not fit a capability's parameters. Its text names places and rules, no content."""


@dataclass(frozen=True, eq=False)
class Capability(Generic[P, R]):
    """A function that a model may propose to call, and what it needs. Called directly, it is the function."""

    function: Callable[P, R]
    name: str
    description: str
    parameters: Schema
    authority: str | None
    """The grant without which it is neither offered nor executed; `None` when none is needed."""
    max_calls: int | None
    """How often one task of an invocation may execute it, within the program's budget for all calls."""
    arguments: msgspec.json.Decoder[Any]
    needs_approval: bool = False
    """Whether each call waits for a human, who sees its exact arguments (SPEC D28)."""
    version: str = ""
    """The host's own label of what the function does; an approval holds for this version alone."""
    memory: tuple[MemoryResource, ...] = ()
    """The memory resources that it may use."""
    memory_parameter: tuple[str, type[MemoryAccess]] | None = None
    """The parameter that the runtime fills with these resources, and in which form."""
    agent: Program[Any] | None = None
    """Whom it delegates to, instead of calling the function."""
    grants: frozenset[str] = field(default=frozenset())
    """The authority that it hands on to the agent."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, past every check of the runtime."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Capability({self.name!r})"

    @property
    def needed(self) -> frozenset[str]:
        """The grants without which it may not be called: its own, and what it hands on."""
        return self.grants if self.authority is None else self.grants | {self.authority}

    @property
    def digest(self) -> str:
        """
        SHA-256, in hexadecimal, of all that an approval holds for: name, version, parameters with their defaults,
        authority, agent.
        """
        defaults, unshown = defaults_of(self.function)
        contract: list[JSON] = [self.name, self.version, self.parameters, [*sorted(self.needed)], defaults, [*unshown]]
        return hashlib.sha256(canonical([*contract, self.agent.digest if self.agent else None])).hexdigest()

    @property
    def spec(self) -> CapabilitySpec:
        """What a model is told."""
        return CapabilitySpec(name=self.name, description=self.description, parameters=self.parameters)

    def completed(self, arguments: dict[str, JSON]) -> dict[str, JSON]:
        """Return arguments that fit with the defaults that they leave to the function: all that would be executed."""
        return completed(arguments, self.parameters, defaults_of(self.function)[0])

    def convert(self, arguments: dict[str, JSON]) -> dict[str, Any]:
        """
        Return `arguments` as the function's types, by parameter; they share nothing with what was given.

        Raises:
            InvalidArguments: they do not fit.
        """
        if fault := fault_in(arguments, self.parameters):
            raise InvalidArguments(fault)
        try:
            values = self.arguments.decode(encode(arguments))
        except Exception as error:  # a type's own __post_init__ may raise anything
            found = _PLACE.search(str(error))
            raise InvalidArguments(f"{found[1] if found else '$'}: no value of its type") from None
        fields = {name: getattr(values, name) for name in values.__struct_fields__}
        return {name: value for name, value in fields.items() if value is not msgspec.UNSET}


@overload
def capability(function: Callable[P, R], /) -> Capability[P, R]: ...
@overload
def capability(
    *,
    authority: str | None = None,
    max_calls: int | None = None,
    description: str | None = None,
    needs_approval: bool = False,
    version: str = "",
    memory: Sequence[MemoryResource] = (),
) -> Callable[[Callable[P, R]], Capability[P, R]]: ...
def capability(
    function: Callable[..., Any] | None = None,
    /,
    *,
    authority: str | None = None,
    max_calls: int | None = None,
    description: str | None = None,
    needs_approval: bool = False,
    version: str = "",
    memory: Sequence[MemoryResource] = (),
) -> Any:
    """
    Turn a typed function, sync or async, into a capability that a program can declare.

    Its name is the function's, its description the first line of the docstring, and its parameters are what the
    annotations say; `Annotated[str, msgspec.Meta(max_length=64)]` bounds them. What it returns must be JSON of exactly
    the types that JSON has, and becomes the observation's value.

    Args:
        authority: the grant that a program must hold for it.
        max_calls: how often one task of an invocation may execute it; without it only the program's budget counts.
        description: what the model is told, instead of the docstring's first line.
        needs_approval: stop the run at each call until a human has approved these very arguments, defaults included;
            then every default must be one that JSON can hold, and no field inside an argument may have a
            `default_factory`, but for an empty list, dict or set.
        version: a label to change with what the function does, so that an older approval does not hold for it.
        memory: the resources that it uses, through a parameter annotated `Memory` that no model sees.

    Raises:
        InvalidOption: an option or a parameter that cannot be; the message names it.
    """

    def decorate(function: Callable[..., Any]) -> Capability[..., Any]:
        name = _name_of(function)
        if name in RESERVED_NAMES:
            raise InvalidOption(f"the name {name!r} is reserved for providers; rename the capability", option="name")
        parameters, arguments, memory_parameter = _contract(function, name)
        resources = checked_resources(memory)
        if bool(resources) != (memory_parameter is not None):
            raise InvalidOption(
                f"capability {name!r}: a parameter annotated Memory and the resources in memory= go together",
                option="memory",
            )
        if check_flag(needs_approval, "needs_approval"):
            _refuse_unshown(function, name)
        return Capability(
            function=function,
            name=name,
            description=text(_first_line(function) if description is None else description, "description"),
            parameters=parameters,
            authority=None if authority is None else check_grant(authority),
            max_calls=None if max_calls is None else check_count(max_calls, "max_calls"),
            arguments=arguments,
            needs_approval=needs_approval,
            version=text(version, "version"),
            memory=resources,
            memory_parameter=memory_parameter,
        )

    return decorate if function is None else decorate(function)


def _name_of(function: object) -> str:
    """Return what a function was defined as, which is what a model will call it."""
    name = getattr(function, "__name__", None)
    if not callable(function) or name is None or name == "<lambda>":
        told = "a lambda" if name == "<lambda>" else f"a {type(function).__name__}"
        raise InvalidOption(
            f"a capability or tool is a typed function that has a name, not {told}; define one: def look_up(order: "
            "str) -> str, with an annotation for each parameter and a docstring that tells the model what it does",
            option="function",
        )
    return check_name(name, "a capability's name")


def check_name(value: object, what: str) -> str:
    """
    Return `value` if it is a name that every provider accepts, else refuse it.

    Raises:
        InvalidOption: not a str of 1 to 64 ASCII letters, digits, `_` and `-`.
    """
    if type(value) is not str or not _NAME.fullmatch(value):
        raise InvalidOption(f"{what} must be 1 to 64 ASCII letters, digits, '_' or '-'", option=what)
    return value


def _first_line(function: Callable[..., Any]) -> str:
    return (inspect.getdoc(function) or "").partition("\n")[0]


def _contract(
    function: Callable[..., Any], name: str
) -> tuple[Schema, msgspec.json.Decoder[Any], tuple[str, type[MemoryAccess]] | None]:
    """Return the schema of a function's parameters, what converts to them, and the one that the runtime fills."""
    parameters = _signature(function, name).parameters.values()
    accesses = [(each.name, each.annotation) for each in parameters if _is_access(each.annotation)]
    if len(accesses) > 1:
        raise _unusable(name, accesses[1][0], "is a second Memory; one holds all the resources")
    fields = [_field(each, name) for each in parameters if not _is_access(each.annotation)]
    return *contract_of(fields), accesses[0] if accesses else None


def _is_access(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, MemoryAccess)


def contract_of(fields: Sequence[Any]) -> tuple[Schema, msgspec.json.Decoder[Any]]:
    """Return the schema of an object with these fields, and what converts to it."""
    kind = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
    schema = schema_of(kind)
    del schema["title"]  # the function's name is told beside it
    return schema, msgspec.json.Decoder(kind)


def _signature(function: Callable[..., Any], name: str) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except NameError as error:
        where = _parameter_with(function, str(error.name))
        raise _unusable(name, where, f"names {error.name!r}, which its module does not define") from None
    except (SyntaxError, TypeError, ValueError, AttributeError) as error:
        raise InvalidOption(f"capability {name!r} has no readable signature: {error}", option="function") from None


def _parameter_with(function: Callable[..., Any], missing: str) -> str:
    written = {each.name: each.annotation for each in inspect.signature(function).parameters.values()}
    return next((key for key, value in written.items() if isinstance(value, str) and missing in value), "return")


def _field(parameter: inspect.Parameter, name: str) -> tuple[str, Any] | tuple[str, Any, Any]:
    """Return a parameter as a field of the arguments; one that has a default may be left out by the model."""
    if parameter.kind in _UNFILLABLE:
        raise _unusable(name, parameter.name, f"is {_UNFILLABLE[parameter.kind]}, which no JSON object can fill")
    if parameter.annotation is inspect.Parameter.empty:
        raise _unusable(name, parameter.name, "has no annotation")
    try:
        schema_of(parameter.annotation)
        if parameter.default is inspect.Parameter.empty:
            return parameter.name, parameter.annotation
        return parameter.name, Union[parameter.annotation, msgspec.UnsetType], msgspec.UNSET  # noqa: UP007 - at run time
    except (InvalidOption, TypeError) as error:
        raise _unusable(name, parameter.name, f"has an annotation that cannot be used: {error}") from None


def _refuse_unshown(function: Callable[..., Any], name: str) -> None:
    """Refuse a default, of a parameter or of a field in one, that a human could not be shown before it is executed."""
    for parameter in defaults_of(function)[1]:
        raise _unusable(name, parameter, "needs approval and has a default that JSON cannot hold; take None, or none")
    for each in _signature(function, name).parameters.values():
        unshown = None if _is_access(each.annotation) else unshown_field(each.annotation)
        if unshown is not None:
            raise _unusable(
                name,
                each.name,
                f"needs approval, and its field {unshown!r} has a default that its type makes or JSON cannot hold, so "
                "that no human could be shown it; give the field a plain default, or none",
            )


def _unusable(name: str, parameter: str, fault: str) -> InvalidOption:
    return InvalidOption(f"capability {name!r}: parameter {parameter!r} {fault}", option=parameter)
