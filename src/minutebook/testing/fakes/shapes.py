"""
Request bodies held to the SDK's own request types, every object closed.

The official SDKs describe what may be sent as `TypedDict`s. Made into JSON schemas they are always those of the
installed SDK, and nothing has to be copied here; but they let unknown fields pass, which the services do not. So a
schema is compiled to plain functions in which an object knows its fields and no others.

A union of forty kinds of items is decided by the tags of a value, `type` and `role`. That is what makes a fault name
the place that is wrong, where a trial of all forty could only say that none fits, and what makes it quick.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import msgspec

from minutebook.errors import InvalidOption

if TYPE_CHECKING:
    from minutebook.model.codec import JSON

__all__ = ["Fault", "Shape", "shape_of", "shape_of_type"]


class Fault(msgspec.Struct, frozen=True):
    """What is wrong with a value, and where."""

    path: tuple[str | int, ...] = ()
    """Keys and indices from the outside to the place."""
    kind: Literal["invalid", "missing", "unknown"] = "invalid"
    """A value of another type or not among those allowed; a field that is required; a field that nobody declared."""

    def inside(self, key: str | int) -> Fault:
        """Return the fault as seen from the container that holds the value under `key`."""
        return Fault((key, *self.path), self.kind)


Shape: TypeAlias = "Callable[[Any], Fault | None]"
"""Returns the first fault of a JSON value, or `None`."""

_INVALID: Final = Fault()
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "array": (list,),
    "boolean": (bool,),
    "integer": (int,),
    "null": (type(None),),
    "number": (int, float),
    "object": (dict,),
    "string": (str,),
}
_TAGS: Final = ("type", "role")
_ABSENT: Final = object()


@cache
def shape_of_type(
    module: str,
    name: str,
    more: tuple[tuple[str, str], ...] = (),
    less: tuple[str, ...] = (),
    optional: tuple[tuple[str, str], ...] = (),
) -> Shape:
    """
    Return the shape of a request type of an installed SDK.

    Where the service differs from the type, it is told so: `more` are fields that may hold anything, each with the
    definition that has it, "" being the request itself; `less` are fields of the request that travel as headers;
    `optional` are fields that the type demands and the service does not.

    Raises:
        InvalidOption: the SDK, or pydantic with which it comes, is not installed.
    """
    try:
        adapter = import_module("pydantic").TypeAdapter
        schema = adapter(getattr(import_module(module), name)).json_schema()
    except ImportError as error:
        raise InvalidOption(
            f"this fake checks requests by the types of the {module.partition('.')[0]} package; install it"
        ) from error
    for definition, field in more:
        (schema["$defs"][definition] if definition else schema)["properties"][field] = {}
    for field in less:
        del schema["properties"][field]
    for definition, field in optional:
        schema["$defs"][definition]["required"].remove(field)
    return shape_of(schema)


def shape_of(schema: dict[str, Any]) -> Shape:
    """
    Compile a JSON schema in the words that the SDKs' types come to, closing every object that has properties.

    `schema` may use `$ref` to its own `$defs`, `anyOf`, `const`, `enum`, `type`, `properties`, `required`, `items` and
    `additionalProperties`; other keywords restrict nothing.
    """
    return _Compiler(schema.get("$defs", {})).shape(schema)


class _Compiler:
    """The shapes of one schema; each definition is compiled once, when it is first met in a value."""

    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._named: dict[str, Shape] = {}

    def shape(self, schema: Any) -> Shape:
        if "$ref" in schema:
            name = schema["$ref"]
            return lambda value: self._lookup(name)(value)
        if "anyOf" in schema:
            return _union([self._branch(part) for part in self._flat(schema)])
        if "const" in schema:
            return _one_of((schema["const"],))
        if "enum" in schema:
            return _one_of(tuple(schema["enum"]))
        return self._plain(schema)

    def _plain(self, schema: Any) -> Shape:
        kind = schema.get("type")
        if kind is None:
            return lambda _: None
        if kind == "array":
            return _array(self.shape(schema.get("items", {})))
        if kind == "object":
            return self._object(schema)
        types = _TYPES[kind]
        return lambda value: None if type(value) in types else _INVALID

    def _object(self, schema: Any) -> Shape:
        fields = {name: self.shape(part) for name, part in schema.get("properties", {}).items()}
        others = schema.get("additionalProperties", True)
        other = None if fields or others is False else self.shape({} if others is True else others)
        return _object(fields, tuple(schema.get("required", ())), other)

    def _lookup(self, reference: str) -> Shape:
        shape = self._named.get(reference)
        if shape is None:
            shape = self._named[reference] = self.shape(self._resolved({"$ref": reference}))
        return shape

    def _resolved(self, schema: Any) -> Any:
        while "$ref" in schema:
            schema = self._definitions[schema["$ref"].removeprefix("#/$defs/")]
        return schema

    def _flat(self, schema: Any) -> list[Any]:
        """Return the alternatives of a schema, those of its alternatives among them."""
        resolved = self._resolved(schema)
        if "anyOf" not in resolved:
            return [schema]
        return [part for alternative in resolved["anyOf"] for part in self._flat(alternative)]

    def _branch(self, schema: Any) -> _Branch:
        resolved = self._resolved(schema)
        fields = resolved.get("properties", {})
        tags = {name: self._words(fields[name]) for name in _TAGS if name in fields}
        values = self._words(resolved)
        types: set[type] = {type(value) for value in values}
        return _Branch(
            shape=self.shape(schema),
            types=tuple(types) or _TYPES.get(resolved.get("type"), ()),
            tags={name: words for name, words in tags.items() if words},
            required=frozenset(resolved.get("required", ())),
        )

    def _words(self, schema: Any) -> frozenset[Any]:
        """Return the only values that a schema allows; none if it allows others."""
        resolved = self._resolved(schema)
        if "anyOf" in resolved:
            words = [self._words(part) for part in self._flat(resolved)]
            return frozenset(word for some in words for word in some) if all(words) else frozenset()
        if resolved.get("type") == "null":
            return frozenset([None])
        return frozenset([resolved["const"]] if "const" in resolved else resolved.get("enum", ()))


class _Branch(msgspec.Struct, frozen=True):
    """One alternative of a union: its shape, and what tells whether it is the one that a value meant."""

    shape: Shape
    types: tuple[type, ...]
    tags: dict[str, frozenset[Any]]
    required: frozenset[str]

    def is_meant(self, value: Any) -> bool:
        """Return whether a value has this alternative's type, and its tags where it is an object."""
        if self.types and type(value) not in self.types:
            return False
        if type(value) is not dict:
            return True
        members = cast("dict[str, Any]", value)
        return all(
            _is_word(members[name]) and members[name] in words if name in members else name not in self.required
            for name, words in self.tags.items()
        )


def _union(branches: list[_Branch]) -> Shape:
    tagged = frozenset(word for branch in branches for words in branch.tags.values() for word in words)
    meant: dict[tuple[Any, ...], list[_Branch]] = {}

    def candidates(value: Any) -> list[_Branch]:
        if type(value) is not dict:
            return [branch for branch in branches if branch.is_meant(value)]
        tags = tuple(cast("dict[str, Any]", value).get(name, _ABSENT) for name in _TAGS)
        # What is remembered has to be bounded, and tags that no alternative has could be anything.
        if not all(tag is _ABSENT or (_is_word(tag) and tag in tagged) for tag in tags):
            return [branch for branch in branches if branch.is_meant(value)]
        if tags not in meant:
            meant[tags] = [branch for branch in branches if branch.is_meant(value)]
        return meant[tags]

    def check(value: Any) -> Fault | None:
        found = candidates(value)
        if not found:
            return _untagged(branches, value)
        deepest = _INVALID
        for branch in found:
            fault = branch.shape(value)
            if fault is None:
                return None
            deepest = max(deepest, fault, key=lambda fault: len(fault.path))
        return deepest

    return check


def _untagged(branches: list[_Branch], value: Any) -> Fault:
    """Return what is wrong with a value that no alternative of a union can have meant."""
    if type(value) is not dict:
        return _INVALID
    members = cast("dict[str, Any]", value)
    objects = [branch for branch in branches if branch.tags]
    for name in _TAGS:
        words = [branch.tags[name] for branch in objects if name in branch.tags]
        if name in members and words and not any(_is_word(members[name]) and members[name] in some for some in words):
            return Fault((name,))
        if name not in members and objects and all(name in branch.required for branch in objects):
            return Fault((name,), "missing")
    return _INVALID


def _is_word(tag: Any) -> bool:
    return tag is None or type(tag) is str


def _one_of(values: tuple[Any, ...]) -> Shape:
    allowed: set[tuple[type, Any]] = {(type(value), value) for value in values}
    types: set[type] = {type(value) for value in values}
    # The type is looked at first: what is no plain value cannot be hashed.
    return lambda value: None if type(value) in types and (type(value), value) in allowed else _INVALID


def _array(item: Shape) -> Shape:
    def check(value: Any) -> Fault | None:
        if type(value) is not list:
            return _INVALID
        for index, member in enumerate(cast("list[JSON]", value)):
            fault = item(member)
            if fault is not None:
                return fault.inside(index)
        return None

    return check


def _object(fields: dict[str, Shape], required: tuple[str, ...], other: Shape | None) -> Shape:
    def check(value: Any) -> Fault | None:
        if type(value) is not dict:
            return _INVALID
        members = cast("dict[str, Any]", value)
        for name, member in members.items():
            shape = fields.get(name, other)
            if shape is None:
                return Fault((name,), "unknown")
            fault = shape(member)
            if fault is not None:
                return fault.inside(name)
        missing = next((name for name in required if name not in members), None)
        return None if missing is None else Fault((missing,), "missing")

    return check
