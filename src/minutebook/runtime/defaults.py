"""
What a call leaves out: the defaults that its function would fill in, as JSON.

A human who approves a call must be shown all that it would do, and the approval must hold for no other default than
the one that was shown (promise I-42). So a call's arguments are completed before they are shown and hashed: parameters
by the function's signature, fields inside them by the schema that was made of their types. What a type makes anew each
time can be neither shown nor bound, so `unshown_field` finds it when a capability is declared.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from msgspec import inspect as kinds

from minutebook.errors import InvalidValue
from minutebook.model.codec import JSON, decode, encode
from minutebook.model.rules import REF, fault_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from minutebook.model.schemas import Schema

_EMPTY: Final = (list, dict, set, bytearray)
"""The factories whose value a schema tells: it is empty."""


def defaults_of(function: Callable[..., Any]) -> tuple[dict[str, JSON], tuple[str, ...]]:
    """
    Return the defaults of a function's parameters as JSON, and the names of those that JSON cannot hold.

    They are read each time, since a function may have changed a list that is its default.
    """
    given: dict[str, JSON] = {}
    unshown: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is inspect.Parameter.empty:
            continue
        try:
            given[parameter.name] = _as_json(parameter.default)
        except (InvalidValue, TypeError, ValueError):
            unshown.append(parameter.name)
    return given, tuple(unshown)


def unshown_field(kind: Any) -> str | None:
    """
    Return the name of a field, at any depth of a type, whose default nobody could be shown; `None` if there is none.

    That is one which a `default_factory` makes, unless it is empty, or one that JSON cannot hold. What a TypedDict need
    not have, or is `UNSET`, is absent when it is left out: it has no default.
    """
    waiting: list[Any] = [kinds.type_info(kind)]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop()
        if isinstance(each, tuple):
            waiting.extend(each)  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(each, (kinds.Type, kinds.Field)) and id(each) not in seen:
            seen.add(id(each))
            if isinstance(each, kinds.Field) and not _is_shown(each):
                return each.name
            waiting.extend(getattr(each, name) for name in each.__struct_fields__)
    return None


def _is_shown(field: kinds.Field) -> bool:
    """Return whether the schema tells what stands in a field that was left out, if anything does."""
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory in _EMPTY
    return field.default is msgspec.NODEFAULT or is_json(field.default)


def is_json(value: Any) -> bool:
    """Return whether JSON can hold a default exactly, as what a type's conversion would read again."""
    try:
        _as_json(value)
    except (InvalidValue, TypeError, ValueError):
        return False
    return True


def _as_json(value: Any) -> JSON:
    return decode(encode(_listed(msgspec.to_builtins(value, str_keys=True, order="deterministic"))))


def _listed(value: Any) -> Any:
    """Return a value of Python's plain types with lists for the tuples in it."""
    if isinstance(value, (list, tuple)):
        return [_listed(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {name: _listed(item) for name, item in cast("dict[str, Any]", value).items()}
    return value


def completed(arguments: Mapping[str, JSON], parameters: Schema, defaults: Mapping[str, JSON]) -> dict[str, JSON]:
    """
    Return arguments that fit `parameters` with all that they leave out, inside objects too.

    No call waits for an approval whose types make a field anew each time: `unshown_field` had its declaration refused.
    """
    declared: Any = parameters.get("properties", {})  # of all that a model may fill, which a Memory is not
    left_out = {name: default for name, default in defaults.items() if name in declared}
    filled = _filled({**left_out, **arguments}, parameters, parameters.get("$defs", {}))
    return cast("dict[str, JSON]", filled)


def _filled(value: JSON, schema: Any, defs: Any) -> JSON:
    if isinstance(schema, bool) or not isinstance(value, (dict, list)):
        return value
    if "$ref" in schema:
        value = _filled(value, defs[schema["$ref"].removeprefix(REF)], defs)
    for part in schema.get("allOf", ()):
        value = _filled(value, part, defs)
    for part in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        if part is True or (part and fault_in(value, {**part, "$defs": defs}) is None):
            value = _filled(value, part, defs)
            break
    return _items(value, schema, defs) if isinstance(value, list) else _fields(value, schema, defs)


def _items(value: list[JSON], schema: Any, defs: Any) -> JSON:
    first = schema.get("prefixItems", ())
    value = value + [rule["default"] for rule in first[len(value) :] if "default" in rule]
    rules = [*first, *[schema.get("items", True)] * (len(value) - len(first))]
    return [_filled(item, rule, defs) for item, rule in zip(value, rules, strict=False)]


def _fields(value: Any, schema: Any, defs: Any) -> JSON:
    declared, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    left_out = {name: rule["default"] for name, rule in declared.items() if "default" in rule}
    return {name: _filled(item, declared.get(name, others), defs) for name, item in {**left_out, **value}.items()}
