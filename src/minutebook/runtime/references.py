"""
Opaque references: what stands for a model's arguments wherever a model is shown them again (SPEC D27).

In `opaque_refs` mode each value that a model gives to a parameter is kept in the invocation's checkpoint, or in RAM
where none is kept, and a reference of 128 random bits takes its place in everything that a provider records or sends.
A model may give the reference again as the whole value of a parameter of that name. It is looked up among what this
invocation's task has kept and nowhere else, so one that is made up, of another run, invocation or namespace, of an
earlier task, or for a parameter of another name stands for nothing, and the call is refused before it is executed.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from minutebook.model.codec import JSON
    from minutebook.model.decisions import CapabilitySpec

Projection: TypeAlias = Literal["inline", "opaque_refs"]
"""What a provider keeps of a model's arguments: the arguments, or references that stand for them."""

PROJECTIONS: Final = ("inline", "opaque_refs")

_FORM: Final = re.compile(r"ref_[0-9a-f]{32}", re.ASCII)
_SCHEMA: Final[dict[str, JSON]] = {
    "type": "string",
    "pattern": "^ref_[0-9a-f]{32}$",
    "description": "The reference that stands for an earlier value of this parameter.",
}
_UNDECLARED: Final = "undeclared"
"""What stands for every parameter that the capability does not have: a name that a model chose is content too."""


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """A value that a reference stands for, and the parameter it was given to."""

    parameter: str
    value: Any

    def __repr__(self) -> str:
        return "Kept()"


def reference(fresh_id: Callable[[], str]) -> str:
    """Return a new reference. A digest, so that it has its form and length whatever ids a host makes."""
    return f"ref_{hashlib.sha256(fresh_id().encode()).hexdigest()[:32]}"


def is_reference(value: object) -> bool:
    """Return whether a value is a text of the form that references have."""
    return isinstance(value, str) and _FORM.fullmatch(value) is not None


def widened(spec: CapabilitySpec) -> CapabilitySpec:
    """Return a capability of which every parameter takes a reference too."""
    properties = _properties(spec.parameters)
    wide: dict[str, JSON] = {name: {"anyOf": [schema, {**_SCHEMA}]} for name, schema in properties.items()}
    return msgspec.structs.replace(
        spec, parameters={**spec.parameters, "properties": wide} if wide else spec.parameters
    )


def projected(
    arguments: Mapping[str, JSON],
    parameters: Mapping[str, JSON],
    kept: Mapping[str, Kept],
    fresh_id: Callable[[], str],
) -> tuple[dict[str, JSON], dict[str, Kept]]:
    """
    Return what stands for `arguments` of a capability with these `parameters`, and what is to be kept for it.

    A known reference stands for itself. What a model made up in a reference's form is content like any other, and is
    not kept: nothing may ever be executed with it.
    """
    declared = _properties(parameters)
    shown: dict[str, JSON] = {}
    keeping: dict[str, Kept] = {}
    for name, value in arguments.items():
        if name not in declared:
            shown[_UNDECLARED] = reference(fresh_id)
        elif isinstance(value, str) and value in kept:
            shown[name] = value
        else:
            shown[name] = made = reference(fresh_id)
            if not _holds_reference(value):
                keeping[made] = Kept(name, value)
    return shown, keeping


def restored(shown: Mapping[str, JSON], kept: Mapping[str, Kept]) -> tuple[dict[str, JSON], tuple[str, ...]]:
    """Return the real arguments, and the names of the parameters whose references stand for nothing there."""
    arguments: dict[str, JSON] = {}
    dangling: list[str] = []
    for name, value in shown.items():
        found = kept.get(value) if isinstance(value, str) else None
        if found is None or found.parameter != name:
            dangling.append(name)
        arguments[name] = value if found is None else found.value
    return arguments, tuple(dangling)


def refusal(names: Collection[str]) -> str:
    """Return what a model is told of references that stand for nothing."""
    return f"{', '.join(names)}: no reference to an earlier value of this parameter; give the value itself"


def _holds_reference(value: JSON) -> bool:
    if isinstance(value, list):
        return any(map(_holds_reference, value))
    if isinstance(value, dict):
        return any(map(_holds_reference, value.values()))
    return is_reference(value)


def _properties(schema: Mapping[str, JSON]) -> dict[str, JSON]:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}
