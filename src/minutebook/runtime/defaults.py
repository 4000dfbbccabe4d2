"""
What a call leaves out: the defaults that its function would fill in, as JSON.

A human who approves a call must be shown all that it would do, and the approval must hold for no other default than
the one that was shown (promise I-42). So a call's arguments are completed before they are shown and hashed: parameters
by the function's signature, fields inside them by the schema that was made of their types.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, cast

import msgspec

from minutebook.errors import InvalidValue
from minutebook.model.codec import JSON, decode, encode
from minutebook.model.rules import REF, fault_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from minutebook.model.schemas import Schema


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
            plain = msgspec.to_builtins(parameter.default, str_keys=True, order="deterministic")
            given[parameter.name] = decode(encode(_listed(plain)))
        except (InvalidValue, TypeError, ValueError):
            unshown.append(parameter.name)
    return given, tuple(unshown)


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

    A field that a type makes anew each time (a `default_factory` of its own) has no default that anyone could know.
    """
    filled = _filled(dict(arguments), parameters, parameters.get("$defs", {}))
    declared: Any = parameters.get("properties", {})  # of all that a model may fill, which a Memory is not
    left_out = {name: default for name, default in defaults.items() if name in declared}
    return {**left_out, **cast("dict[str, JSON]", filled)}


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
    rules = [*first, *[schema.get("items", True)] * (len(value) - len(first))]
    return [_filled(item, rule, defs) for item, rule in zip(value, rules, strict=False)]


def _fields(value: Any, schema: Any, defs: Any) -> JSON:
    declared, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    given = {name: _filled(item, declared.get(name, others), defs) for name, item in value.items()}
    left_out = {name: rule["default"] for name, rule in declared.items() if "default" in rule}
    return {**left_out, **given}
