"""
Values held to a JSON schema, wherever a model's word is taken for one: by providers and by the runtime.

Two tables: the rules that look at one value alone, and those that lead to further schemas. A fault names a place and a
rule, never a piece of the value: it goes back to a model and into records. Where a rule does not apply to the type of a
value it holds, as JSON schema has it.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from minutebook.model.codec import JSON

Fault: TypeAlias = "tuple[str, str]"
"""The place, as a path from `$`, and what is wrong there."""

REF = "#/$defs/"
"""What every reference starts with: a schema refers to its own definitions alone."""

_MUST = "must satisfy "
_SHOWN_RULE_BYTES = 80


def fault_in(value: JSON, schema: dict[str, JSON]) -> str | None:
    """
    Return the first fault of `value` by `schema`, or `None` if there is none; `schema` was checked when it was made.

    A value that is too deep for the thread's stack has a fault too, because models write values and schemas recurse.
    """
    try:
        fault = _fault(value, schema, schema.get("$defs"), "$")
    except RecursionError:
        fault = ("$", "nested too deeply")
    return None if fault is None else f"{fault[0]}: {fault[1]}"


def _fault(value: JSON, schema: Any, defs: Any, path: str) -> Fault | None:
    if isinstance(schema, bool):
        return None if schema else (path, "nothing may stand here")
    for keyword, rule in schema.items():
        if keyword in RULES and not RULES[keyword](value, rule):
            return path, f"{_MUST}{keyword} {_shown(rule)}"
        if keyword in NESTED and (fault := NESTED[keyword](value, schema, defs, path)):
            return fault
    return None


def _shown(rule: JSON) -> str:
    return msgspec.json.encode(rule)[:_SHOWN_RULE_BYTES].decode(errors="ignore")


# --- one value alone ---

TYPES: dict[str, tuple[type, ...]] = {
    "array": (list,),
    "boolean": (bool,),
    "integer": (int,),
    "null": (type(None),),
    "number": (int, float),
    "object": (dict,),
    "string": (str,),
}
"""Python's types for each of JSON's, compared exactly: to Python a bool is an integer."""


def _has_type(value: JSON, rule: Any) -> bool:
    return any(type(value) in TYPES[name] for name in ([rule] if isinstance(rule, str) else rule))


def _identity(value: JSON) -> bytes:
    # Bytes tell 1, 1.0 and true apart, which Python's `==` does not.
    return msgspec.json.encode(value, order="sorted")


def _is_one_of(value: JSON, rule: Any) -> bool:
    return _identity(value) in {_identity(item) for item in rule}


def _is_unique(value: JSON, rule: Any) -> bool:
    return not rule or not isinstance(value, list) or len({_identity(item) for item in value}) == len(value)


def _of_number(holds: Callable[[Any, Any], bool]) -> Callable[[JSON, Any], bool]:
    return lambda value, rule: type(value) not in TYPES["number"] or holds(value, rule)


def _is_multiple(value: Any, rule: Any) -> bool:
    # As decimals, which is how both were written: 0.3 is three times 0.1.
    return _exact(value) % _exact(rule) == 0


def _exact(number: float) -> Fraction:
    return Fraction(number if type(number) is int else repr(number))


@lru_cache(maxsize=256)
def compiled_pattern(rule: str) -> re.Pattern[str]:
    """
    Return a schema's pattern as Python's: `$` is the very end, and `\\d` and `\\w` are ASCII, as JSON schema has it.

    Raises:
        re.error: Python knows no such pattern.
    """
    return re.compile(_ENDS.sub(lambda found: r"\Z" if found[0] == "$" else found[0], rule), re.ASCII)


_ENDS = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\$", re.DOTALL)
"""An escape, a class of characters, or what stands for the end."""


def _of_size(kind: type[str] | type[list[Any]] | type[dict[str, Any]], sign: int) -> Callable[[JSON, Any], bool]:
    return lambda value, rule: not isinstance(value, kind) or len(value) * sign >= rule * sign


RULES: dict[str, Callable[[JSON, Any], bool]] = {
    "type": _has_type,
    "enum": _is_one_of,
    "const": lambda value, rule: _is_one_of(value, [rule]),
    "minimum": _of_number(lambda value, rule: value >= rule),
    "maximum": _of_number(lambda value, rule: value <= rule),
    "exclusiveMinimum": _of_number(lambda value, rule: value > rule),
    "exclusiveMaximum": _of_number(lambda value, rule: value < rule),
    "multipleOf": _of_number(_is_multiple),
    "minLength": _of_size(str, 1),
    "maxLength": _of_size(str, -1),
    "minItems": _of_size(list, 1),
    "maxItems": _of_size(list, -1),
    "minProperties": _of_size(dict, 1),
    "maxProperties": _of_size(dict, -1),
    "pattern": lambda value, rule: not isinstance(value, str) or compiled_pattern(rule).search(value) is not None,
    "required": lambda value, rule: not isinstance(value, dict) or all(name in value for name in rule),
    "uniqueItems": _is_unique,
}
"""Whether a value satisfies each rule that needs nothing but the value."""

# --- values inside the value ---


def _properties(value: JSON, schema: Any, defs: Any, path: str) -> Fault | None:
    if not isinstance(value, dict):
        return None
    for name, part in schema["properties"].items():
        if name in value and (fault := _fault(value[name], part, defs, f"{path}.{name}")):
            return fault
    return None


def _other_properties(value: JSON, schema: Any, defs: Any, path: str) -> Fault | None:
    if not isinstance(value, dict):
        return None
    rule, declared = schema["additionalProperties"], schema.get("properties", {})
    others = [item for name, item in value.items() if name not in declared]
    if rule is False and others:
        return path, "has a field that is not declared"
    # A name that no schema declares was chosen by whoever wrote the value, so the path does not show it.
    return next((fault for item in others if (fault := _fault(item, rule, defs, f"{path}[*]"))), None)


def _property_names(value: JSON, schema: Any, defs: Any, path: str) -> Fault | None:
    if not isinstance(value, dict):
        return None
    rule = schema["propertyNames"]
    return next((fault for name in value if (fault := _fault(name, rule, defs, f"{path} (a field's name)"))), None)


def _first_items(value: JSON, schema: Any, defs: Any, path: str) -> Fault | None:
    if not isinstance(value, list):
        return None
    for at, (item, part) in enumerate(zip(value, schema["prefixItems"], strict=False)):
        if fault := _fault(item, part, defs, f"{path}[{at}]"):
            return fault
    return None


def _items(value: JSON, schema: Any, defs: Any, path: str) -> Fault | None:
    if not isinstance(value, list):
        return None
    first = len(schema.get("prefixItems", ()))
    for at, item in enumerate(value[first:], start=first):
        if fault := _fault(item, schema["items"], defs, f"{path}[{at}]"):
            return fault
    return None


def _all_of(value: JSON, schema: Any, defs: Any, path: str) -> Fault | None:
    return next((fault for part in schema["allOf"] if (fault := _fault(value, part, defs, path))), None)


def _any_of(value: JSON, schema: Any, defs: Any, path: str) -> Fault | None:
    faults: list[Fault] = []
    for part in schema["anyOf"]:
        fault = _fault(value, part, defs, path)
        if fault is None:
            return None
        faults.append(fault)
    # The one alternative whose type the value has is the one that was meant.
    meant = [fault for fault in faults if fault[0] != path or not fault[1].startswith(_MUST + "type")]
    return meant[0] if len(meant) == 1 else (path, "fits none of the alternatives")


def _one_of(value: JSON, schema: Any, defs: Any, path: str) -> Fault | None:
    fitting = sum(_fault(value, part, defs, path) is None for part in schema["oneOf"])
    return None if fitting == 1 else (path, f"fits {fitting} alternatives where it must fit one")


def _reference(value: JSON, schema: Any, defs: Any, path: str) -> Fault | None:
    return _fault(value, defs[schema["$ref"].removeprefix(REF)], defs, path)


NESTED: dict[str, Callable[[JSON, Any, Any, str], Fault | None]] = {
    "$ref": _reference,
    "additionalProperties": _other_properties,
    "allOf": _all_of,
    "anyOf": _any_of,
    "items": _items,
    "oneOf": _one_of,
    "prefixItems": _first_items,
    "properties": _properties,
    "propertyNames": _property_names,
}
"""The first fault by each rule that leads to further schemas."""
