"""
JSON schemas made from Python types.

What a model is told is what its proposals are held to. So types are closed here, on the objects inside them too: a
field that a model adds is refused, never dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast, get_origin

import msgspec
from msgspec import inspect

from minutebook.errors import InvalidOption
from minutebook.model.codec import decode
from minutebook.model.rules import REF
from minutebook.model.schemas import checked_schema, parts_of
from minutebook.runtime.defaults import is_json

if TYPE_CHECKING:
    from minutebook.model.schemas import Schema

_PLAIN: Final = (
    *(inspect.AnyType, inspect.NoneType, inspect.BoolType, inspect.IntType, inspect.StrType),
    *(inspect.LiteralType, inspect.EnumType, inspect.UnionType),
    *(inspect.ListType, inspect.TupleType, inspect.VarTupleType, inspect.TypedDictType, inspect.NamedTupleType),
)


def schema_of(kind: Any, option: str = "type") -> Schema:
    """
    Return the schema of a Python type, with its outermost object written in place and every object in it closed.

    Raises:
        InvalidOption: there is none, because msgspec cannot convert JSON to the type; it names `option`.
    """
    try:
        (top,), defs = msgspec.json.schema_components([kind], ref_template=REF + "{name}")
        schema = {**top, "$defs": defs}
        _drop_unshown(schema)
        # Defaults and literals come as Python values; a round trip makes them what a request will hold.
        schema = cast("dict[str, Any]", decode(msgspec.json.encode(schema)))
    except Exception as error:  # a name that is defined nowhere, a literal beyond 64 bits, whatever a metaclass raises
        told = f"no JSON can be converted to it: {(str(error) or type(error).__name__).splitlines()[-1]}"
        raise InvalidOption(f"{told}; take a dataclass, a TypedDict or a msgspec.Struct", option=option) from None
    _close(schema["$defs"])
    return checked_schema(_written_in_place(schema))


def says_all(kind: Any) -> bool:
    """
    Return whether `schema_of` a type is known to say all that the type asks of a value.

    It may not where a class has code of its own to refuse one, where a text has a form, as a date's, where keys are no
    texts, or for a float, to which an integer may be too large.
    """
    left: list[Any] = [inspect.type_info(kind)]
    seen: dict[int, Any] = {}
    while left:
        part = left.pop()
        if isinstance(part, tuple):
            left += part
        elif isinstance(part, (inspect.Type, inspect.Field)) and id(part) not in seen:
            seen[id(part)] = part  # types may hold themselves
            if isinstance(part, inspect.Type) and not _is_plain(part):
                return False
            left += [getattr(part, name) for name in part.__struct_fields__]
    return True


def _is_plain(part: inspect.Type) -> bool:
    """Return whether a type asks for nothing beside what its schema says, whatever the types inside it ask."""
    if isinstance(part, inspect.DictType):
        return part.key_type == inspect.StrType()
    if isinstance(part, (inspect.StructType, inspect.DataclassType)):
        cls = get_origin(part.cls) or part.cls
        return not hasattr(cls, "__post_init__") and not hasattr(cls, "__attrs_attrs__")
    return isinstance(part, _PLAIN)


def _drop_unshown(schema: dict[str, Any]) -> None:
    """Leave out the defaults that JSON cannot hold: to it NaN is null, which is another value."""
    for part in parts_of(schema):
        if "default" in part and not is_json(part["default"]):
            del part["default"]


def _close(defs: dict[str, Any]) -> None:
    for part in defs.values():
        if "properties" in part:
            part.setdefault("additionalProperties", False)


def _written_in_place(schema: dict[str, Any]) -> Schema:
    """Return a schema that says what it is at its top, since providers want an object there and not a reference."""
    defs = schema.pop("$defs")
    ref = schema.pop("$ref", None)
    if ref is not None:
        name = ref.removeprefix(REF)
        schema = {**defs[name], **schema}
        if f'"{ref}"'.encode() not in msgspec.json.encode(defs):  # nothing else refers to it
            del defs[name]
    return {**schema, "$defs": defs} if defs else schema
