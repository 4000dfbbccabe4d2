"""Capabilities and programs: what is refused when they are made, and what of a model's arguments reaches a function."""

from __future__ import annotations

import datetime
import enum
import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional, TypedDict

import msgspec
import pytest
from jsonschema import Draft202012Validator
from tests.runtime.programs import call, calls, finish, program, runtime

import minutebook
from minutebook.errors import AgentDecisionProviderSchemaViolation, InvalidOption, InvalidValue
from minutebook.model.rules import NESTED, RULES, fault_in
from minutebook.model.schemas import checked_schema
from minutebook.runtime import Budgets, Program, capability
from minutebook.runtime.schemas import schema_of
from minutebook.testing import drive


class Line(msgspec.Struct):
    sku: Annotated[str, msgspec.Meta(pattern="^[A-Z]+$", max_length=8)]
    quantity: Annotated[int, msgspec.Meta(ge=1, le=9)] = 1


class Tree(msgspec.Struct):
    name: str
    child: Optional[Tree] = None  # noqa: UP045 - a forward reference at run time


class Place(TypedDict):
    shelf: int


@dataclass
class Buyer:
    name: str


def test_annotations_become_the_schema() -> None:
    """Bounds and patterns come through, objects are closed, and what has no default is required."""

    @capability(authority="orders.write", max_calls=1)
    def order(
        lines: list[Line],
        note: Annotated[str, msgspec.Meta(min_length=1, description="for the packer")] = "none",
        *,
        speed: Literal["slow", "fast"],
    ) -> None:
        """
        Order some lines.

        And what no model is told.
        """

    assert (order.name, order.description, order.authority, order.max_calls) == (
        "order",
        "Order some lines.",
        "orders.write",
        1,
    )
    assert order.parameters == {
        "type": "object",
        "properties": {
            "lines": {"type": "array", "items": {"$ref": "#/$defs/Line"}},
            "note": {"type": "string", "minLength": 1, "description": "for the packer"},
            "speed": {"enum": ["fast", "slow"]},
        },
        "required": ["lines", "speed"],
        "additionalProperties": False,
        "$defs": {
            "Line": {
                "title": "Line",
                "type": "object",
                "properties": {
                    "sku": {"type": "string", "pattern": "^[A-Z]+$", "maxLength": 8},
                    "quantity": {"type": "integer", "minimum": 1, "maximum": 9, "default": 1},
                },
                "required": ["sku"],
                "additionalProperties": False,
            }
        },
    }


def test_a_capability_is_still_its_function() -> None:
    """A decorated function is called and tested as before."""

    @capability
    def add(left: int, right: int = 1) -> int:
        return left + right

    assert add(2) == 3
    assert add(2, right=5) == 7


def test_arguments_arrive_as_the_functions_types() -> None:
    """What is converted is what the annotation says; what the model left out is the function's own default."""
    seen: list[Any] = []

    @capability
    def take(
        line: Line,
        buyer: Buyer,
        place: Place,
        day: datetime.date,
        items: list[Line] = [],  # noqa: B006 - an odd default that must be left alone
        ratio: float = 0.5,
    ) -> None:
        seen.append((line, buyer, place, day, items, ratio))

    arguments = {
        "line": {"sku": "A"},
        "buyer": {"name": "Li"},
        "place": {"shelf": 3},
        "day": "2030-01-31",
    }
    runs, _ = runtime(program(take), calls(call("take", **arguments)), finish())
    assert not drive(runs.run("go")).observations[0].error
    assert seen == [(Line("A"), Buyer("Li"), {"shelf": 3}, datetime.date(2030, 1, 31), [], 0.5)]


@capability
def pick(
    line: Line,
    count: int = 1,
    ratio: float = 1.0,
    flag: bool = False,
    where: dict[str, int] | None = None,
    day: datetime.date | None = None,
    tree: Tree | None = None,
    exact: Literal[1, "one"] = 1,
) -> str:
    return "picked"


DEEP: dict[str, Any] = {"name": "SECRET"}
for _ in range(190):
    DEEP = {"name": "SECRET", "child": DEEP}

UNFIT: list[tuple[dict[str, Any], str]] = [
    ({}, '$: must satisfy required ["line"]'),
    ({"line": "SECRET"}, '$.line: must satisfy type "object"'),
    ({"line": {"sku": "secret"}}, '$.line.sku: must satisfy pattern "^[A-Z]+$"'),
    ({"line": {"sku": "SECRETSECRET"}}, "$.line.sku: must satisfy maxLength 8"),
    ({"line": {"sku": "A", "quantity": 10}}, "$.line.quantity: must satisfy maximum 9"),
    ({"line": {"sku": "A", "SECRET": 1}}, "$.line: has a field that is not declared"),
    ({"line": {"sku": "A"}, "SECRET": 1}, "$: has a field that is not declared"),
    ({"line": {"sku": "A"}, "count": True}, '$.count: must satisfy type "integer"'),
    ({"line": {"sku": "A"}, "count": 1.0}, '$.count: must satisfy type "integer"'),
    ({"line": {"sku": "A"}, "count": "7"}, '$.count: must satisfy type "integer"'),
    ({"line": {"sku": "A"}, "count": None}, '$.count: must satisfy type "integer"'),
    ({"line": {"sku": "A"}, "ratio": False}, '$.ratio: must satisfy type "number"'),
    ({"line": {"sku": "A"}, "flag": 1}, '$.flag: must satisfy type "boolean"'),
    ({"line": {"sku": "A"}, "where": {"SECRET": "x"}}, '$.where[*]: must satisfy type "integer"'),
    ({"line": {"sku": "A"}, "day": "SECRET"}, "$.day: no value of its type"),
    ({"line": {"sku": "A"}, "exact": True}, '$.exact: must satisfy enum [1,"one"]'),
    (
        {"line": {"sku": "A"}, "tree": {"name": "a", "child": {"name": 3}}},
        '$.tree.child.name: must satisfy type "string"',
    ),
]


@pytest.mark.parametrize(("arguments", "message"), UNFIT, ids=range(len(UNFIT)))
def test_unfit_arguments_are_an_observation_that_names_the_place(arguments: dict[str, Any], message: str) -> None:
    """The model may mend them: it reads where and which rule, and nothing of what it wrote is echoed."""
    runs, _ = runtime(program(pick), calls(call("pick", **arguments)), finish())
    outcome = drive(runs.run("go"))
    assert outcome.observations[0].value == {"refused": "invalid_arguments", "message": message}
    assert "secret" not in str(outcome.observations[0].value).lower()
    assert (outcome.kind, outcome.calls) == ("finished", 0)


def test_deep_arguments_crash_nothing() -> None:
    """A value as deep as the codec allows is held to a recursive schema, or refused; either way the run goes on."""
    runs, _ = runtime(program(pick), calls(call("pick", line={"sku": "A"}, tree=DEEP)), finish())
    outcome = drive(runs.run("go"))
    assert outcome.kind == "finished"
    assert outcome.observations[0].value in (
        "picked",
        {"refused": "invalid_arguments", "message": "$: nested too deeply"},
    )


def test_a_types_own_check_refuses_without_its_message() -> None:
    """A `__post_init__` may put the value into its message, which no model and no record gets."""

    class Even(msgspec.Struct):
        number: int

        def __post_init__(self) -> None:
            if self.number % 2:
                raise ValueError(f"SECRET {self.number}")

    def halve(even: Any) -> int:
        return int(even.number) // 2

    halve.__annotations__ = {"even": Even, "return": int}
    runs, _ = runtime(program(capability(halve)), calls(call("halve", even={"number": 3})), finish())
    value = drive(runs.run("go")).observations[0].value
    assert value == {"refused": "invalid_arguments", "message": "$.even: no value of its type"}


def no_annotation(bare) -> None: ...  # type: ignore[no-untyped-def]
def positional(only: int, /) -> None: ...
def many(*values: int) -> None: ...
def named(**values: int) -> None: ...
def function_of(turn: Callable[[], int]) -> None: ...
def number(imaginary: complex) -> None: ...
def undefined(absent: NoSuchType) -> None: ...  # type: ignore[name-defined] # noqa: F821
def two_objects(either: Line | Tree) -> None: ...
def finish_by_name(number: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "parameter"),
    [
        (no_annotation, "bare"),
        (positional, "only"),
        (many, "values"),
        (named, "values"),
        (function_of, "turn"),
        (number, "imaginary"),
        (undefined, "absent"),
        (two_objects, "either"),
    ],
)
def test_a_parameter_that_json_cannot_fill_is_refused_by_name(function: Callable[..., None], parameter: str) -> None:
    """Found when the function is decorated, not when a model first calls it."""
    with pytest.raises(InvalidOption, match=f"parameter '{parameter}'"):
        capability(function)


@pytest.mark.parametrize("name", ["finish", "two words", "<lambda>", "é", "a" * 65, "a\n", ""])
def test_names_that_providers_would_refuse(name: str) -> None:
    """`finish` is the providers' own, and the others are no tool names."""

    def plain() -> None: ...

    plain.__name__ = name
    with pytest.raises(InvalidOption, match="name"):
        capability(plain)


@pytest.mark.parametrize(
    "options",
    [
        {"authority": ""},
        {"authority": "two words"},
        {"authority": {"a"}},
        {"max_calls": 0},
        {"max_calls": True},
    ],
)
def test_options_of_a_capability_that_cannot_be(options: dict[str, Any]) -> None:
    """Refused by name, when the function is decorated."""
    with pytest.raises(InvalidOption):
        capability(**options)(finish_by_name)


@capability
def ping() -> None: ...


@pytest.mark.parametrize(
    "options",
    [
        {"name": ""},
        {"name": "two words"},
        {"capabilities": [ping, ping]},
        {"capabilities": [finish_by_name]},
        {"authority": "orders.read"},
        {"authority": ["orders.read"]},
        {"authority": {"orders read"}},
        {"authority": {3}},
        {"budgets": 3},
        {"output": complex},
        {"output": {"type": "text"}},
        {"output": {"if": {}}},
        {"output": {"$ref": "https://example.org/schema"}},
        {"output": {"$ref": "#/$defs/A", "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}]}}}},
        {"output": {"pattern": "("}},
        {"output": {"minimum": "1"}},
        {"output": {"maxLength": -1}},
        {"output": {"properties": []}},
        {"output": {"properties": {"a": 1}}},
        {"output": {"anyOf": []}},
        {"output": {"required": "a"}},
        {"output": {"const": float("nan")}},
    ],
)
def test_a_program_that_exists_is_legal(options: dict[str, Any]) -> None:
    """Nothing in a program is found wrong in the middle of a run."""
    with pytest.raises(InvalidOption):
        Program(**({"name": "clerk", "instructions": "Answer."} | options))


def test_instructions_are_text() -> None:
    """A lone surrogate could be in no request."""
    with pytest.raises(InvalidValue):
        program().__class__(name="clerk", instructions="\ud800")


def test_a_typed_output_is_a_value_of_its_type() -> None:
    """What a program finishes with is what it says; its schema is closed, inside too."""
    declared = Program(name="clerk", instructions="", output=Line, budgets=Budgets(max_decisions=1))
    assert declared.output["additionalProperties"] is False
    runs, _ = runtime(declared, finish({"sku": "A", "quantity": 2}))
    assert drive(runs.run("go")).output == Line("A", 2)


@pytest.mark.parametrize(
    "output", [None, "text", {"sku": "a"}, {"sku": "A", "more": 1}, {"sku": "A", "quantity": True}]
)
def test_an_output_that_does_not_fit_is_the_providers_fault(output: Any) -> None:
    """D9: no valid typed decision, with this library's own diagnosis and nothing of the output."""
    runs, _ = runtime(Program(name="clerk", instructions="", output=Line), finish(output))
    with pytest.raises(AgentDecisionProviderSchemaViolation) as caught:
        drive(runs.run("go"))
    assert caught.value.provider_error_code == "invalid_output"


def test_a_ready_made_schema_holds_the_output() -> None:
    """A JSON schema as output gives the value as it came."""
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"kind": {"const": "a"}, "sizes": {"type": "array", "items": {"type": "number"}, "minItems": 1}},
        "required": ["kind"],
        "additionalProperties": False,
    }
    declared = Program(name="clerk", instructions="", output=schema)
    schema["properties"].clear()
    runs, _ = runtime(declared, finish({"kind": "a", "sizes": [1, 2.5]}))
    assert drive(runs.run("go")).output == {"kind": "a", "sizes": [1, 2.5]}
    with pytest.raises(AgentDecisionProviderSchemaViolation):
        declared.read_output({"kind": "b"})


SAMPLES: list[Any] = [
    None, True, False, 0, 1, 1.0, -3, 2.5, 10**30, "", "a", "AB", [], [1], [1, 1], [1, "a"], [True, 1], {}, {"a": 1},
    {"a": "x"}, {"a": 1, "b": None}, {"b": {"a": [1]}},
]  # fmt: skip

SCHEMAS: list[dict[str, Any]] = [
    {},
    {"type": ["string", "null"]},
    {"type": "boolean"},
    {"enum": ["a", 2.5, None]},
    {"const": {"a": 1}},
    {"minimum": 0, "exclusiveMaximum": 2},
    {"maximum": 1, "exclusiveMinimum": -3},
    {"multipleOf": 5},
    {"type": "string", "minLength": 1, "maxLength": 1},
    {"pattern": "^A"},
    {"uniqueItems": True},
    {"minItems": 1, "maxItems": 1},
    {"prefixItems": [{"type": "boolean"}], "items": {"type": "number"}},
    {"prefixItems": [{"type": "number"}], "items": False},
    {"properties": {"a": {"type": "string"}}},
    {"properties": {"a": {}}, "additionalProperties": False},
    {"additionalProperties": {"type": "null"}, "properties": {"a": True}},
    {"propertyNames": {"enum": ["a"]}},
    {"required": ["a"], "minProperties": 2, "maxProperties": 2},
    {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    {"allOf": [{"type": "number"}, {"minimum": 1}]},
    {"oneOf": [{"type": "number"}, {"minimum": 1}]},
    {
        "type": "object",
        "properties": {"b": {"$ref": "#/$defs/T"}},
        "$defs": {"T": {"properties": {"a": {"type": "array"}}}},
    },
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_rules_hold_as_in_the_reference_validator(schema: dict[str, Any]) -> None:
    """Every keyword that is accepted is enforced as an independent validator does; 1.0 alone is no integer here."""
    validator: Any = Draft202012Validator(schema)
    checked = checked_schema(schema)
    for value in SAMPLES:
        assert (fault_in(value, checked) is None) == validator.is_valid(value), value


def test_every_rule_has_a_sample() -> None:
    """A keyword that is enforced and compared with nothing could be enforced wrongly."""
    told = json.dumps(SCHEMAS)
    assert [keyword for keyword in (*RULES, *NESTED) if f'"{keyword}"' not in told] == []


@pytest.mark.parametrize(
    ("rule", "right", "wrong"),
    [
        ({"pattern": "^ORD-[0-9]{5}$"}, ["ORD-12345"], ["ORD-12345\n", "ORD-1234"]),
        ({"pattern": r"^\d+$"}, ["12"], ["\u0661\u0662", "12\n"]),
        ({"pattern": r"^[$a]\$$"}, ["$$", "a$"], ["$$\n", "b$"]),
        ({"pattern": r"^[\]$]$"}, ["]", "$"], ["]\n"]),
        ({"multipleOf": 0.1}, [0.3, 0.7, 1, 10**400], [0.35]),
        ({"multipleOf": 0.01}, [4.35, 1.1], [4.355]),
        ({"multipleOf": 3}, [3.0, 9, 3e30], [1, 10**400]),
    ],
    ids=str,
)
def test_a_rule_means_what_it_says(rule: dict[str, Any], right: list[Any], wrong: list[Any]) -> None:
    """A pattern's end is the very end and its digits are ASCII; a multiple is one of the decimals that were written."""
    schema = checked_schema(rule)
    assert [value for value in right if fault_in(value, schema)] == []
    assert [value for value in wrong if not fault_in(value, schema)] == []


@pytest.mark.parametrize("rule", [{"multipleOf": 2.5}, {"minimum": 0.5}, {"const": 1}, {"type": "number"}])
def test_a_number_beyond_the_floats_breaks_no_rule(rule: dict[str, Any]) -> None:
    """A model may write any integer: holding it to a rule gives a fault or none, and never an exception."""
    fault_in(10**400, checked_schema(rule))


class Large(enum.Enum):
    """A number that no schema of msgspec's holds."""

    HUGE = 2**70


@dataclass
class Unfinished:
    """A field of a type that is defined nowhere."""

    field: Missing  # type: ignore[name-defined]  # noqa: F821


class Raising(type):
    """A metaclass whose classes have no attribute and say nothing of it."""

    def __getattr__(cls, name: str) -> object:
        raise OSError


@pytest.mark.parametrize(
    "kind",
    [
        Literal[1, 2**70],
        list[Large],
        dict[str, Unfinished],
        Raising("Odd", (), {}),
        complex,
        list[int] | tuple[int, ...],
    ],
    ids=str,
)
def test_d28_a_type_without_a_schema_is_refused_by_its_parameter(kind: Any) -> None:
    """D28: whatever it is that msgspec cannot do with it, where a capability or a program is declared."""

    def take(line: Line, odd: object) -> None:
        """Take a line."""

    take.__annotations__["odd"] = kind
    with pytest.raises(InvalidOption, match="parameter 'odd' has an annotation that cannot be used") as refused:
        capability(take)
    assert refused.value.option == "odd"
    with pytest.raises(InvalidOption, match=r"no JSON can be converted to it: \S") as refused:
        Program(name="p", instructions="i", output=kind)
    assert refused.value.option == "output"


def test_recursive_types_have_a_schema_that_says_what_it_is() -> None:
    """Providers want an object at the root and not a reference, also where the type refers to itself."""
    schema = schema_of(Tree)
    assert schema["type"] == "object"
    assert (
        fault_in({"name": "a", "child": {"name": "b", "more": 1}}, schema)
        == "$.child: has a field that is not declared"
    )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"type": "function"}, "a dict"),
        (lambda order: order, "a lambda"),
        (functools.partial(print, "x"), "a partial"),
        ("look_up", "a str"),
        (None, "a NoneType"),
    ],
    ids=["schema", "lambda", "partial", "name", "none"],
)
def test_a1_d28_what_is_no_function_with_a_name_is_told_what_one_is(given: Any, told: str) -> None:
    """A1, D28: a schema, a lambda or a partial: the words say what to write, and not how a name is spelled."""
    makers: list[Any] = [lambda: minutebook.Agent(name="A", goal="g", api_key="k", tools=[given])]
    if given is not None:  # without a function the decorator waits for one
        makers.append(lambda: capability(given))
    for made in makers:
        with pytest.raises(InvalidOption, match=f"typed function that has a name, not {told}"):
            made()


@pytest.mark.parametrize("given", [print, {"print": print}, "print", 5], ids=["function", "dict", "name", "number"])
def test_a1_d28_what_is_no_list_of_functions_is_told_what_one_is(given: Any) -> None:
    """A1, D28: one function in the place of a list of them is the usual slip."""
    with pytest.raises(InvalidOption, match=r"tools is a list of typed functions.*tools=\[function\]") as caught:
        minutebook.Agent(name="A", goal="g", api_key="k", tools=given)
    assert caught.value.option == "tools"
    with pytest.raises(InvalidOption, match=r"capabilities=\[function\]") as caught:
        Program(name="p", instructions="i", capabilities=given)
    assert caught.value.option == "capabilities"
