"""
The compiled request types against an independent validator, and the seals and counts that the fakes share.

The validator is `jsonschema` over the same schema with every object closed. What it finds valid must pass and what it
finds invalid must not, for right bodies and for thousands of bodies with one place changed.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from anthropic.types.message_count_tokens_params import MessageCountTokensParams
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from openai.types.responses.input_token_count_params import InputTokenCountParams
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming
from pydantic import TypeAdapter

from minutebook.errors import InvalidOption
from minutebook.testing.fakes import Seal, anthropic, gemini, openai_chat, openai_responses
from minutebook.testing.fakes.dialect import Route, token_count
from minutebook.testing.fakes.seals import Prefix, Verdict
from minutebook.testing.fakes.shapes import Fault, shape_of, shape_of_type

MUTATIONS = 120
quick = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)


def closed(schema: Any) -> Any:
    """The schema with every object that has properties closed."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    same = {key: closed(value) for key, value in schema.items()}
    if isinstance(same.get("properties"), dict) and same.get("type") == "object":
        same["additionalProperties"] = False
    return same


SOURCES: dict[str, Any] = {"type": "base64", "media_type": "image/png", "data": "QUJD"}
BODIES: dict[type, list[dict[str, Any]]] = {
    CompletionCreateParamsNonStreaming: [
        {
            "model": "m",
            "messages": [
                {"role": "developer", "content": [{"type": "text", "text": "x"}]},
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,", "detail": "low"}}]},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
                },
                {"role": "tool", "tool_call_id": "c", "content": "x"},
            ],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"x": [1]}, "strict": None}}],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": {"a": 1}, "strict": True},
            },
            "temperature": 1,
            "stop": ["a"],
            "logit_bias": {"1": 2},
        }
    ],
    ResponseCreateParamsNonStreaming: [
        {
            "model": "m",
            "input": [
                {"role": "user", "content": [{"type": "input_image", "detail": "low", "image_url": None}]},
                {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": ""}]},
                {
                    "type": "message",
                    "id": "m",
                    "role": "assistant",
                    "status": "completed",
                    "content": [{"type": "output_text", "text": "x", "annotations": []}],
                },
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "async": True},
                {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]},
                {"type": "item_reference", "id": "x"},
            ],
            "tools": [{"type": "function", "name": "f", "parameters": {}, "strict": False}],
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
            "reasoning": {"effort": "low"},
            "include": ["reasoning.encrypted_content"],
            "store": False,
        },
        {"input": "x", "model": "m", "tool_choice": "auto"},
    ],
    InputTokenCountParams: [{"input": "x", "model": "m", "truncation": "auto", "tools": None}],
    MessageCreateParamsNonStreaming: [
        {
            "model": "m",
            "max_tokens": 1,
            "system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
            "messages": [
                {"role": "user", "content": [{"type": "image", "source": SOURCES}]},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "", "signature": "s"},
                        {"type": "redacted_thinking", "data": "d"},
                        {"type": "text", "text": "x", "citations": None},
                        {"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}, "caller": {"type": "direct"}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "x"}]},
                        {"type": "text", "text": "x"},
                    ],
                },
            ],
            "tools": [{"name": "f", "input_schema": {"type": "object", "x": 1}}],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
            "thinking": {"type": "enabled", "budget_tokens": 1024},
        }
    ],
    MessageCountTokensParams: [{"model": "m", "messages": [{"role": "user", "content": "x"}], "system": "x"}],
}
STRANGE: list[Any] = [
    None,
    True,
    0,
    -1.5,
    "",
    "text",
    "user",
    "function_call",
    [],
    [{}],
    {},
    {"type": "text"},
    {"x": 1},
]


def places(value: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value but the outermost."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, *path, key)


def changed(body: Any, random: Random) -> Any:
    """The body with something else at one of its places: another value, another name, nothing, or one more field."""
    copied = copy.deepcopy(body)
    *outer, last = random.choice(list(places(copied)))
    holder = copied
    for key in outer:
        holder = holder[key]
    kind = random.randrange(4)
    if kind == 0:
        holder[last] = copy.deepcopy(random.choice(STRANGE))
    elif kind == 1:
        del holder[last]
    elif isinstance(holder, dict):
        holder[random.choice(["x", "id", "name", "type", "text", "cache_control"])] = (
            holder[last] if kind == 2 else copy.deepcopy(random.choice(STRANGE))
        )
    return copied


@pytest.mark.parametrize("kind", list(BODIES), ids=lambda kind: kind.__name__)
def test_shapes_agree_with_an_independent_validator(kind: Any, figure: Callable[[str], None]) -> None:
    """Every body, right or with one place changed, is judged alike by the compiled type and by `jsonschema`."""
    validator = Draft202012Validator(closed(TypeAdapter(kind).json_schema()))
    shape = shape_of_type(kind.__module__, kind.__name__)
    random = Random(4711)
    refused = 0
    for body in BODIES[kind]:
        assert shape(body) is None
        assert validator.is_valid(body)
        for _ in range(MUTATIONS):
            other = changed(body, random)
            fault = shape(other)
            assert (fault is None) == validator.is_valid(other), (fault, json.dumps(other))
            refused += fault is not None
    assert refused > MUTATIONS / 4
    figure(f"{len(BODIES[kind]) * MUTATIONS} changed bodies, {refused} refused by both")


GEMINI = {
    "contents": [
        {"role": "user", "parts": [{"text": "x"}]},
        {"role": "model", "parts": [{"functionCall": {"id": "c", "name": "f", "args": {}}, "thoughtSignature": "s"}]},
        {"role": "user", "parts": [{"function_response": {"id": "c", "name": "f", "response": {"output": [1]}}}]},
    ],
    "systemInstruction": {"parts": [{"text": "x"}]},
    "tools": [{"functionDeclarations": [{"name": "f", "parametersJsonSchema": {}}]}],
    "tool_config": {"functionCallingConfig": {"mode": "AUTO"}},
    "generationConfig": {"candidateCount": 1, "thinkingConfig": {"includeThoughts": True}},
}
STRICT = {"type": "object", "properties": {"a": {"items": {"anyOf": [{}]}}}, "required": ["a"]}
JUDGED: list[tuple[Any, list[dict[str, Any]]]] = [
    (openai_chat, BODIES[CompletionCreateParamsNonStreaming]),
    (openai_responses, BODIES[ResponseCreateParamsNonStreaming]),
    (anthropic, [{**BODIES[MessageCreateParamsNonStreaming][0], "max_tokens": 5_000}]),
    (gemini, [GEMINI, {"generateContentRequest": {"model": "models/m", **GEMINI}, "x": 1}]),
]


@pytest.mark.parametrize(("rules", "bodies"), JUDGED, ids=[rules.__name__ for rules, _ in JUDGED])
def test_d09_rules_judge_any_body_and_never_fail(rules: Any, bodies: list[dict[str, Any]]) -> None:
    """Whatever stands at whatever place, every rule comes to an answer, and what passes can be counted and answered."""
    random, seal = Random(4712), Seal(b"one")
    dialect = rules.DIALECT
    routes = [Route(kind="generate", model="m"), Route(kind="count", model="m")]
    passed = 0
    for body in [*bodies, *({**body, "text": {"format": {"strict": True, "schema": STRICT}}} for body in bodies)]:
        for _ in range(MUTATIONS * 4):
            other = changed(changed(body, random), random)
            for route in routes:
                dialect.check(route, other, {}, seal)
            if rules.check_request(other) is None:
                passed += dialect.tokens(routes[0], other, {}, seal) > 0
            rules.check_count(other)
            for name in ("messages", "input", "contents"):
                if isinstance(other.get(name), list):
                    rules.check_messages(other[name])
    assert passed


@pytest.mark.parametrize(
    ("check", "body", "told"),
    [
        (
            openai_chat.check_request,
            {"model": "m", "messages": [{"role": "user", "content": "x", "y": 1}]},
            "messages[0].y",
        ),
        (openai_responses.check_request, {"model": "m", "input": [{"role": "user"}]}, "input[0].content"),
        (
            anthropic.check_count,
            {"model": "m", "messages": [{"role": "user", "content": [{"type": "x"}]}]},
            "content.0.type",
        ),
    ],
)
def test_a_fault_names_the_place(check: Any, body: Any, told: str) -> None:
    """A union of forty kinds says what is wrong with the one that was meant, not that none fits."""
    assert told in check(body).message


def test_shapes_know_only_what_they_are_told() -> None:
    """An SDK that is not there is said so, and a schema's references may recurse."""
    with pytest.raises(InvalidOption, match="no_such_sdk"):
        shape_of_type("no_such_sdk.types", "Request")
    tree = shape_of(
        {
            "$ref": "#/$defs/Tree",
            "$defs": {
                "Tree": {"type": "object", "properties": {"in": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}}
            },
        }
    )
    assert tree({"in": [{"in": []}, {}]}) is None
    assert tree({"in": [{"in": [{"out": 1}]}]}) == Fault(("in", 0, "in", 0, "out"), "unknown")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@quick
@given(st.lists(values, min_size=1), values)
def test_e_counts_grow_with_what_is_said(messages: list[Any], more: Any) -> None:
    """Deterministic, and more by at least one with each message: a longer window never costs less."""
    few, many = token_count({"messages": messages}), token_count({"messages": [*messages, {"content": more}]})
    assert few == token_count(json.loads(json.dumps({"messages": messages})))
    assert few < many
    assert token_count({"messages": messages, "tools": [more]}) > few


@quick
@given(values, values, values)
def test_o11_a_seal_holds_for_one_block_behind_one_prefix(block: Any, before: Any, other: Any) -> None:
    """Valid where it was made; stale behind anything else; foreign on another block, in another spelling or secret."""
    seal, prefix = Seal(b"one"), Prefix(before).digest()
    made = seal.of(block, prefix)
    assert seal.verdict(made, block, prefix) is Verdict.VALID
    assert {"+", "/", "="} <= set(made)
    assert seal.verdict(made, block, Prefix(before, other).digest()) is Verdict.STALE
    assert seal.verdict(made, [block], prefix) is Verdict.FOREIGN
    assert Seal(b"two").verdict(made, block, prefix) is Verdict.FOREIGN
    for spelled in (made.rstrip("="), made.replace("+", "-").replace("/", "_"), f"{made}\n", f" {made}", "", None, 1):
        assert seal.verdict(spelled, block, prefix) is Verdict.FOREIGN


def test_o11_values_are_compared_to_the_last_character() -> None:
    """White space and the order of keys are no content; how a number is written and how a letter is composed are."""
    seal = Seal(b"one")
    made = seal.of({"b": 1, "a": "é"})
    assert seal.verdict(made, {"a": "é", "b": 1}) is Verdict.VALID
    for other in ({"b": 1.0, "a": "é"}, {"b": True, "a": "é"}, {"b": "1", "a": "é"}, {"b": 1, "a": "e\u0301"}):
        assert seal.verdict(made, other) is Verdict.FOREIGN
