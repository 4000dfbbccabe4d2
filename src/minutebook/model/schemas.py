"""
JSON schemas, taken ready-made once every word of them is one that is enforced.

A program's output, a capability's parameters, and what a host of its own asks a provider for: each is checked before
anything is sent, so that holding an answer to it cannot fail once that answer is paid for. A schema with a keyword
that `rules` does not know is refused, never overlooked.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from minutebook.errors import InvalidOption, InvalidValue
from minutebook.model.codec import JSON, decode, encode
from minutebook.model.rules import NESTED, REF, RULES, TYPES, compiled_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Schema: TypeAlias = "dict[str, JSON]"

_NOTES = {
    "$comment",
    "$schema",
    "contentEncoding",
    "default",
    "deprecated",
    "description",
    "discriminator",
    "examples",
    "format",
    "title",
}
"""Keywords that tell a reader something and restrict nothing here; a type's own format is held by its conversion."""


def checked_schema(schema: object) -> Schema:
    """
    Return a copy of a schema of which every rule is enforced here.

    Raises:
        InvalidOption: it is no object of JSON, or has a keyword that is unknown, a rule that its keyword cannot have,
            or a `$ref` that leads nowhere or only to itself.
    """
    try:
        copy = decode(encode(schema))
    except InvalidValue as error:
        raise InvalidOption(f"the schema is no JSON: {error}", option="schema") from None
    if not isinstance(copy, dict):
        raise InvalidOption(f"a schema must be a dict, not {type(schema).__name__}", option="schema")
    defs = copy.get("$defs", {})
    if not isinstance(defs, dict):
        raise _no_rule("$defs")
    for part in parts_of(copy):
        _check_rules(part, defs)
    for part in parts_of(copy):
        _check_ends(part, defs, ())
    return copy


def parts_of(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and all schemas inside it, each one that is no bare true or false."""
    pending: list[Any] = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, bool):
            continue
        if not isinstance(part, dict):
            raise InvalidOption(f"a schema inside the schema is a {type(part).__name__}", option="schema")
        found = cast("dict[str, Any]", part)
        yield found
        for keyword, shape in _CHILDREN.items():
            if keyword in found:
                pending.extend(_children(found[keyword], keyword, shape))


_CHILDREN: dict[str, type | None] = {
    "$defs": dict,
    "additionalProperties": None,
    "allOf": list,
    "anyOf": list,
    "items": None,
    "oneOf": list,
    "prefixItems": list,
    "properties": dict,
    "propertyNames": None,
}
"""The keywords that hold schemas: by name, in order, or a single one."""


def _children(rule: Any, keyword: str, shape: type | None) -> list[Any]:
    if shape is None:
        return [rule]
    if not isinstance(rule, shape) or rule == []:
        raise _no_rule(keyword)
    return [*cast("dict[str, object]", rule).values()] if shape is dict else [*cast("list[object]", rule)]


def _is_name_list(rule: Any) -> bool:
    return isinstance(rule, list) and all(isinstance(name, str) for name in cast("list[object]", rule))


def _is_type(rule: Any) -> bool:
    names = cast("list[object]", rule) if isinstance(rule, list) else [rule]
    return bool(names) and all(isinstance(name, str) and name in TYPES for name in names)


def _is_pattern(rule: Any) -> bool:
    try:
        compiled_pattern(rule)
    except (TypeError, re.error):
        return False
    return True


def _is_number(rule: Any) -> bool:
    return type(rule) in TYPES["number"]


def _is_size(rule: Any) -> bool:
    return type(rule) is int and rule >= 0


_ACCEPTED: dict[str, Callable[[Any], bool]] = {
    "type": _is_type,
    "enum": lambda rule: isinstance(rule, list),
    "const": lambda _: True,
    "multipleOf": lambda rule: _is_number(rule) and rule > 0,
    "pattern": _is_pattern,
    "required": _is_name_list,
    "uniqueItems": lambda rule: isinstance(rule, bool),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _is_size),
}
"""What each rule must look like, so that holding a value to it cannot fail."""


def _check_rules(part: dict[str, Any], defs: dict[str, Any]) -> None:
    for keyword, rule in part.items():
        if keyword not in RULES and keyword not in NESTED and keyword not in _CHILDREN and keyword not in _NOTES:
            raise InvalidOption(f"the schema's keyword {keyword!r} is not enforced here; leave it out", option="schema")
        if keyword in RULES and not _ACCEPTED[keyword](rule):
            raise _no_rule(keyword)
    ref = part.get("$ref")
    if "$ref" in part and not (isinstance(ref, str) and ref.startswith(REF) and ref.removeprefix(REF) in defs):
        raise InvalidOption(f"the schema's $ref must name one of its own definitions, as {REF}name", option="schema")


def _check_ends(part: Any, defs: dict[str, Any], seen: tuple[str, ...]) -> None:
    """Refuse a schema that leads back to itself without going one step into the value: no check of it would end."""
    if isinstance(part, bool):
        return
    same: list[Any] = [*part.get("allOf", ()), *part.get("anyOf", ()), *part.get("oneOf", ())]
    for inner in same:
        _check_ends(inner, defs, seen)
    if "$ref" in part:
        if part["$ref"] in seen:
            raise InvalidOption("the schema has a $ref that leads only to itself", option="schema")
        _check_ends(defs[part["$ref"].removeprefix(REF)], defs, (*seen, part["$ref"]))


def _no_rule(keyword: str) -> InvalidOption:
    return InvalidOption(f"the schema's keyword {keyword!r} has a rule that it cannot have", option="schema")
