"""What Anthropic receives: whole bodies as they arrive, headers, schemas, and thinking in and out of a tool loop."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import msgspec
import pytest
from jsonschema import Draft202012Validator
from tests.naming import named
from tests.providers.dialects import BETA, CLAUDE, finishes, provider_of, serving, signature, stale
from tests.providers.loopback import KEY, OUTPUT, REQUEST, TASK, Answering, Reply, Server, acting, asking, ok, seen

from minutebook import MemoryStore, sync
from minutebook.decisions import AnthropicDecisionProvider, ApiProvider, HistoryOptions
from minutebook.errors import AgentDecisionProviderUnavailable, DecisionHistoryLimitExceeded, InvalidOption
from minutebook.model.codec import JSON
from minutebook.model.context import ContextWindow
from minutebook.providers.anthropic import billed, enforced_schema
from minutebook.testing import drive

ADAPTIVE: dict[str, Any] = {"type": "adaptive", "display": "omitted"}


@pytest.fixture
def server() -> Iterator[Server]:
    server = serving(CLAUDE)
    yield server
    server.close()


LOOSE = {"description": '{"maxLength":40}', "type": "string"}
"""What the API enforces of a text of at most 40 characters; the rest is told."""


def test_d01_a_native_request_is_exactly_this(server: Server) -> None:
    """D1, D7: tools with their own schema, the output's schema as the API takes it, the window as it is."""
    server.replies = [CLAUDE.calls("a", ids="x"), finishes(CLAUDE, "native")]
    provider = provider_of(CLAUDE, server, extra_body={"thinking": ADAPTIVE, "output_config": {"effort": "low"}})
    (call,) = drive(provider.decide(REQUEST)).calls
    drive(provider.decide(asking(seen(call, "no", failed=True))))
    assert server.requests[-1][0] == "/v1/messages"
    assert server.body() == {
        "model": "m",
        "max_tokens": 500,
        "system": "You decide.",
        "messages": [
            {"role": "user", "content": TASK},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "x_0", "name": "look", "input": {"path": "a"}}],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "x_0", "content": '{"error":"no"}', "is_error": True}
                ],
            },
        ],
        "tools": [{"name": "look", "description": "Read a file.", "input_schema": REQUEST.capabilities[0].parameters}],
        "output_config": {
            "effort": "low",
            "format": {"type": "json_schema", "schema": {**OUTPUT, "properties": {"answer": LOOSE}}},
        },
        "thinking": ADAPTIVE,
    }
    assert server.headers[-1]["Authorization"] == f"Bearer {KEY}"
    assert server.headers[-1]["anthropic-beta"] is None
    assert server.refused == []


def test_d01_a_structured_request_offers_no_tools(server: Server) -> None:
    """D1: the actions are alternatives of the one schema, and are told in the system text."""
    server.replies = [CLAUDE.says(acting("look", path="a")), finishes(CLAUDE, "structured")]
    provider = provider_of(CLAUDE, server, "structured")
    (call,) = drive(provider.decide(REQUEST)).calls
    drive(provider.decide(asking(seen(call))))
    body = server.body()
    assert list(body) == ["model", "max_tokens", "system", "messages", "output_config"]
    assert body["system"].startswith("You decide.\nAnswer with one JSON object")
    schema = body["output_config"]["format"]["schema"]
    look, finish = schema["properties"]["decision"]["anyOf"]
    assert look["properties"] == {"action": {"type": "string", "const": "look"}, "path": LOOSE}
    assert finish["required"] == ["action", "answer"]
    assert body["messages"][-1] == {"role": "user", "content": 'Result of look: "content"'}
    assert server.refused == []


def test_d12_a_count_is_of_the_same_fields_without_those_that_change_none(server: Server) -> None:
    """D12: same bytes, same headers; the number reaches decision and receipt."""
    server.replies = [CLAUDE.count(7), finishes(CLAUDE, "native")]
    extra: dict[str, JSON] = {"thinking": {"type": "adaptive"}, "stop_sequences": ["x"], "metadata": {}}
    provider = provider_of(CLAUDE, server, count=True, extra_body=extra)
    decision = drive(provider.decide(REQUEST))
    assert (decision.counted_tokens, decision.billed_tokens) == (7, 11)
    counted, generated = server.body(0), server.body(1)
    assert counted == {key: value for key, value in generated.items() if key in counted}
    assert set(generated) - set(counted) == {"max_tokens", "stop_sequences", "metadata"}
    assert CLAUDE.window(server.requests[0][1]) == CLAUDE.window(server.requests[1][1])
    assert server.refused == []


@pytest.mark.parametrize(
    "options",
    [
        {"max_output_tokens": None},
        {"reasoning": "drop"},
        {"reasoning": "drop_block"},
        {"reasoning": "drop_block", "extra_body": {"thinking": {"type": "enabled", "budget_tokens": 1024}}},
        *({"extra_body": {name: {}}} for name in ("container", "mcp_servers", "context_management", "thread", "tools")),
        *({"extra_body": {name: {}}} for name in ("compaction", "fallbacks", "system", "max_tokens", "stream")),
        {"extra_body": {"output_config": {"format": {}}}},
        {"extra_body": {"output_config": "low"}},
        {"base_url": "http://127.0.0.1", "client": anthropic.Anthropic(api_key=KEY)},
        {"client": anthropic.AnthropicBedrock(aws_region="eu-west-1")},
    ],
    ids=named,
)
def test_d15_options_are_checked_at_construction(options: dict[str, Any]) -> None:
    """D4, D15: nothing that would have the provider keep, cut or continue a history of its own."""
    with pytest.raises(InvalidOption):
        sync.AnthropicDecisionProvider(**{"model": "m", "max_output_tokens": 5, **options})


def test_a_client_keeps_its_own_beta_headers(server: Server) -> None:
    """The one that `drop_block` needs joins those that the host's client sends."""
    client = anthropic.Anthropic(base_url=server.url, api_key=KEY, default_headers={"anthropic-beta": "a-1,b-2"})
    server.replies = [finishes(CLAUDE, "native")]
    options: dict[str, Any] = {"reasoning": "drop_block", "extra_body": {"thinking": ADAPTIVE}}
    drive(provider_of(CLAUDE, server, client=client, **options).decide(REQUEST))
    assert server.headers[0]["anthropic-beta"] == f"a-1,b-2,{BETA}"


# --- schemas ---


def closed(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


ENFORCED: list[tuple[dict[str, Any], dict[str, Any] | None]] = [
    ({"type": "string"}, {"type": "string"}),
    ({"type": "integer", "minimum": 1}, {"type": "integer", "description": '{"minimum":1}'}),
    (
        {"type": "string", "pattern": "^a", "description": "A word."},
        {"type": "string", "description": 'A word.\n\n{"pattern":"^a"}'},
    ),
    ({"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
    ({"type": "string", "format": "color"}, {"type": "string", "description": '{"format":"color"}'}),
    (
        {"type": "array", "items": {"type": "null"}, "minItems": 1},
        {"type": "array", "items": {"type": "null"}, "minItems": 1},
    ),
    ({"type": "array", "minItems": 2}, {"type": "array", "description": '{"minItems":2}'}),
    ({"oneOf": [{"type": "null"}, {"const": 1}]}, {"anyOf": [{"type": "null"}, {"const": 1}]}),
    ({"$ref": "#/$defs/A", "$defs": {"A": closed()}}, {"$ref": "#/$defs/A", "$defs": {"A": closed()}}),
    (
        {"type": "object", "properties": {"a": {"enum": [1]}}},
        {"type": "object", "properties": {"a": {"enum": [1]}}, "additionalProperties": False},
    ),
    ({}, None),
    ({"type": "object"}, None),
    ({"type": "object", "additionalProperties": {"type": "string"}}, None),
    (closed(a={}), None),
    ({"type": "array", "items": {}}, None),
    ({"anyOf": [{"type": "null"}, {"type": "object"}]}, None),
    ({"$ref": "#/$defs/A", "$defs": {"A": {}}}, None),
]


@pytest.mark.parametrize(("schema", "enforced"), ENFORCED, ids=str)
def test_d01_a_schema_is_sent_in_the_part_that_the_api_enforces(schema: Any, enforced: Any) -> None:
    """D1: what the API would refuse is told in words; a form that it cannot hold at all is not sent as one."""
    assert enforced_schema(schema) == enforced
    if enforced is not None:
        Draft202012Validator.check_schema(enforced)


def test_d01_an_output_that_the_api_cannot_hold_is_told_and_held_here(server: Server) -> None:
    """D1, D9: without a form at the API the answer is still typed."""
    output: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "integer"}}
    server.replies = [CLAUDE.says('{"a":1}'), CLAUDE.says('{"a":"x"}')]
    provider = provider_of(CLAUDE, server)
    finish = drive(provider.decide(asking(output=output))).finish
    assert finish is not None
    assert finish.output == {"a": 1}
    assert "output_config" not in server.body()
    assert server.body()["system"].endswith(json.dumps(output, separators=(",", ":")))
    with pytest.raises(Exception, match="output_mismatch"):
        drive(provider.decide(asking(output=output, invocation_id="2")))


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"input_tokens": 3}, 3),
        ({"input_tokens": 3, "cache_read_input_tokens": None, "cache_creation_input_tokens": 4}, 7),
        ({"input_tokens": "3"}, None),
        ({"cache_read_input_tokens": 3}, None),
        ([], None),
        (None, None),
    ],
)
def test_d12_billed_tokens_are_those_read_written_and_neither(usage: Any, tokens: int | None) -> None:
    """D16: the whole input, whatever part of it came from the provider's cache."""
    assert billed({"usage": usage}) == tokens


# --- thinking ---


def thinking(*blocks: dict[str, Any], **fields: Any) -> Answering:
    """A response that begins with thinking which is bound to its request, as the API binds it."""

    def reply(body: dict[str, Any]) -> Reply:
        signed = signature(body, len(body["messages"]))
        thoughts = [
            {"type": "thinking", "thinking": "", "signature": signed},
            {"type": "redacted_thinking", "data": signed},
        ]
        return CLAUDE.message(*thoughts, *blocks, **fields)

    return Answering(reply)


def calling(number: int) -> Answering:
    block = {"type": "tool_use", "id": f"t{number}", "name": "look", "input": {"path": f"{number}"}}
    return thinking(block, stop_reason="tool_use")


def saying(text: str) -> Answering:
    return thinking({"type": "text", "text": text})


def thoughts(body: dict[str, Any]) -> list[int]:
    """How many thinking blocks each of the model's messages in a request has."""
    return [
        sum("thinking" in block["type"] for block in message["content"])
        for message in body["messages"]
        if message["role"] == "assistant"
    ]


def test_d26_thinking_goes_back_in_an_open_tool_loop(server: Server) -> None:
    """D26: step after step, as it came; the server would refuse a changed, a moved and a missing block."""
    server.replies = [calling(1), calling(2), calling(3), finishes(CLAUDE, "native")]
    provider = provider_of(CLAUDE, server, extra_body={"thinking": ADAPTIVE})
    observations: list[Any] = []
    for _ in range(3):
        (call,) = drive(provider.decide(asking(*observations))).calls
        observations.append(seen(call))
    assert drive(provider.decide(asking(*observations))).finish
    assert [thoughts(server.body(n)) for n in range(4)] == [[], [2], [2, 2], [2, 2, 2]]
    assert server.refused == []


def test_d26_stale_thinking_is_stripped_after_a_cut(server: Server) -> None:
    """D26: structured exchanges are no tool loop of the API's; the record keeps every block."""
    server.replies = [saying(acting("look", path=str(n))) for n in range(5)]
    options = HistoryOptions(max_messages=5)
    provider = provider_of(CLAUDE, server, "structured", extra_body={"thinking": ADAPTIVE}, history=options)
    observations: list[Any] = []
    for _ in range(5):
        (call,) = drive(provider.decide(asking(*observations))).calls
        observations.append(seen(call))
    assert [thoughts(server.body(n)) for n in range(5)] == [[], [2], [2, 2], [0, 0], [0, 0]]
    assert server.refused == []
    entries = drive(provider.store.read(provider.key(REQUEST))).entries
    assert sum(entry.payload.count(b"redacted_thinking") for entry in entries) == 5


def test_d26_control_kept_thinking_is_refused_after_a_cut(server: Server) -> None:
    """D26: `keep` sends the blocks all the same, and this server refuses them as the real one does."""
    server.replies = [saying(acting("look", path=str(n))) for n in range(5)]
    options: dict[str, Any] = {"history": HistoryOptions(max_messages=5), "reasoning": "keep"}
    provider = provider_of(CLAUDE, server, "structured", extra_body={"thinking": ADAPTIVE}, **options)
    observations: list[Any] = []
    for _ in range(3):
        (call,) = drive(provider.decide(asking(*observations))).calls
        observations.append(seen(call))
    with pytest.raises(AgentDecisionProviderUnavailable):
        drive(provider.decide(asking(*observations)))
    assert thoughts(server.body()) == [2, 2]
    assert server.refused == ["messages.1.content.0: The block is bound to a different conversation"]


def test_d26_a_cut_inside_an_open_tool_loop_is_refused_or_left_to_the_provider(server: Server) -> None:
    """D26: `strip` sends nothing there; `drop_block` asks on every request and count of the conversation."""
    for reasoning in ("strip", "drop_block"):
        drops = reasoning == "drop_block"
        server.requests.clear()
        server.replies = [reply for n in range(4) for reply in (CLAUDE.count(5), calling(n))]
        if not drops:
            server.replies = [calling(n) for n in range(3)]
        options: dict[str, Any] = {"history": HistoryOptions(max_messages=5), "count": drops}
        provider = provider_of(CLAUDE, server, reasoning=reasoning, extra_body={"thinking": ADAPTIVE}, **options)
        observations: list[Any] = []
        for _ in range(3):
            (call,) = drive(provider.decide(asking(*observations))).calls
            observations.append(seen(call))
        if not drops:
            with pytest.raises(DecisionHistoryLimitExceeded, match="drop_block"):
                drive(provider.decide(asking(*observations)))
            assert len(server.requests) == 3
            assert drive(provider.store.header(provider.key(REQUEST))).token == ""
            continue
        assert drive(provider.decide(asking(*observations))).calls
        bodies = [json.loads(body) for _, body in server.requests]
        assert len(bodies) == 8
        binding = {"prefix_mismatch_behavior": "drop_block"}
        assert all(body["thinking"] == {**ADAPTIVE, "block_binding": binding} for body in bodies)
        assert all(BETA in headers["anthropic-beta"] for headers in server.headers[-8:])
        assert thoughts(bodies[-1]) == [2, 2]
        assert len(stale(bodies[-1])) == 4
    assert server.refused == []


def test_d26_thinking_is_stale_when_tools_or_instructions_change(server: Server) -> None:
    """D26, D28: a capability that is withheld changes what stands before all messages, and so do other instructions."""
    gone: dict[str, Any] = {"capabilities": (), "withheld": ("look",)}
    options: dict[str, Any] = {"extra_body": {"thinking": ADAPTIVE}}
    server.replies = [saying(acting("look", path=str(n))) for n in range(4)]
    provider = provider_of(CLAUDE, server, "structured", **options)
    observations: list[Any] = []
    for changes in ({}, {}, gone, {**gone, "instructions": "Now decide."}):
        (call,) = drive(provider.decide(asking(*observations, **changes))).calls
        observations.append(seen(call))
    assert [thoughts(server.body(n)) for n in range(4)] == [[], [2], [0, 0], [0, 0, 0]]
    assert server.refused == []
    server.replies = [calling(1), saying('{"answer":"x"}')]
    native = provider_of(CLAUDE, server, **options)
    (call,) = drive(native.decide(REQUEST)).calls
    with pytest.raises(DecisionHistoryLimitExceeded, match="the tools, the instructions or the summary changed"):
        drive(native.decide(asking(seen(call), **gone)))
    assert drive(native.decide(asking(seen(call)))).finish
    assert thoughts(server.body()) == [2]
    assert server.refused == []


def test_d03_d28_calls_go_back_beside_a_stand_in_where_nothing_was_offered(server: Server) -> None:
    """D3, D11, D28: this API takes no call back without tools, and is told of none that there is no authority for."""
    bare: dict[str, Any] = {"capabilities": (), "withheld": ("look",)}
    server.replies = [CLAUDE.calls("a"), CLAUDE.count(5), finishes(CLAUDE, "native"), finishes(CLAUDE, "native")]
    store = HistoryOptions(store=MemoryStore())
    (call,) = drive(provider_of(CLAUDE, server, history=store).decide(REQUEST)).calls
    assert drive(provider_of(CLAUDE, server, history=store, count=True).decide(asking(seen(call), **bare))).finish
    for body in (server.body(1), server.body(2)):
        (tool,) = body["tools"]
        assert (tool["name"], body["tool_choice"]) == ("none", {"type": "none"})
    alone = asking(invocation_id="2", task="tool_use", **bare)
    assert drive(provider_of(CLAUDE, server, history=store).decide(alone)).finish
    assert not server.body().keys() & {"tools", "tool_choice"}
    assert server.refused == []


WRITE = msgspec.structs.replace(REQUEST.capabilities[0], name="write")
WIDE = msgspec.structs.replace(WRITE, parameters={"type": "string"})


@pytest.mark.parametrize(
    "wrong",
    [
        {"capabilities": (), "shown": REQUEST.capabilities},
        {"shown": REQUEST.capabilities * 2},
        {"withheld": ("write",), "shown": (WRITE,)},
        {"withheld": ("write",), "shown": (*REQUEST.capabilities, WRITE, WRITE)},
        {"withheld": ("write",), "shown": (*REQUEST.capabilities, WIDE)},
    ],
    ids=["neither", "twice", "without what is offered", "withheld twice", "no object"],
)
def test_d09_d28_what_is_shown_is_the_capabilities_and_withheld_ones(server: Server, wrong: dict[str, Any]) -> None:
    """D9, D28: an adapter's request that shows anything else is refused before it is sent."""
    with pytest.raises(InvalidOption):
        drive(provider_of(CLAUDE, server).decide(asking(**wrong)))
    assert server.requests == []


def test_d12_d26_what_leaves_for_the_models_window_makes_later_thinking_stale_too(server: Server) -> None:
    """D12, D26: a cut by tokens is a cut; what was counted is what is sent, its stale thinking left out."""

    def counted(body: dict[str, Any]) -> Reply:
        return CLAUDE.count(100 * len(body["messages"]))

    context = ContextWindow(context_window_tokens=1_600)
    provider = provider_of(CLAUDE, server, "structured", extra_body={"thinking": ADAPTIVE}, context=context)
    observations: list[Any] = []
    for number in range(5):
        server.replies = []
        answered = saying(acting("look", path=str(number)))
        server._reply = lambda path: Answering(counted) if path.endswith("count_tokens") else answered  # noqa: B023
        (call,) = drive(provider.decide(asking(*observations))).calls
        observations.append(seen(call))
    generated = [json.loads(body) for path, body in server.requests if path == "/v1/messages"]
    counts = [json.loads(body)["messages"] for path, body in server.requests if path != "/v1/messages"]
    assert [len(body["messages"]) for body in generated] == [1, 3, 3, 3, 3]
    assert [thoughts(body) for body in generated] == [[], [2], [0], [0], [0]]
    assert all(body["messages"] in counts for body in generated)
    assert server.refused == []


def test_d04_reasoning_that_the_provider_withheld_is_told_by_numbers(server: Server) -> None:
    """D4: an event with the number of blocks, and nothing of them; what was shown all the same is none."""
    told: list[Any] = []
    entries = [{"type": kind, "path": "messages.1.content.0", "reason": "x"} for kind in ("thinking_dropped", "novel")]
    for transformations in (entries + entries, [], None, "x", [7]):
        server.replies = [
            CLAUDE.message({"type": "text", "text": '{"answer":"x"}'}, input_transformations=transformations)
        ]
        drive(provider_of(CLAUDE, server, history=HistoryOptions(on_event=told.append)).decide(REQUEST))
    (event,) = told
    assert msgspec.to_builtins(event) == {
        "kind": "provider_reasoning_withheld",
        "message_count": 1,
        "bytes": len(CLAUDE.window(server.requests[0][1])),
        "blocks": 2,
    }


def test_d26_stale_thinking_of_closed_tool_loops_is_stripped(server: Server) -> None:
    """D26: a next task finds closed loops behind it, whose thinking the API no longer demands."""
    done = '{"answer":"x"}'
    server.replies = [calling(1), saying(done), calling(2), saying(done), saying(done), saying(done)]
    provider = provider_of(CLAUDE, server, extra_body={"thinking": ADAPTIVE}, history=HistoryOptions(max_messages=8))
    for number in (1, 2):
        (call,) = drive(provider.decide(asking(task=f"task {number}"))).calls
        assert drive(provider.decide(asking(seen(call), task=f"task {number}"))).finish
    for number in (3, 4):
        assert drive(provider.decide(asking(task=f"task {number}"))).finish
    assert [thoughts(server.body(n)) for n in range(6)] == [[], [2], [2, 2], [2, 2, 2], [0], [0, 2]]
    assert server.refused == []


def test_d13_hidden_calls_do_not_happen(server: Server) -> None:
    """D13: a status that the client would retry, twice and after a pause, costs one request in either colour."""

    async def decided(client: Any) -> None:
        with pytest.raises(AgentDecisionProviderUnavailable):
            await provider_of(CLAUDE, server, client=client).decide(REQUEST)

    for client in (CLAUDE.client(server, max_retries=5), CLAUDE.async_client(server)):
        server.requests.clear()
        server.replies = [(529, {"x-should-retry": "true", "retry-after-ms": "1"}, b"")] * 6
        if isinstance(client, anthropic.Anthropic):
            drive(decided(client))
        else:
            asyncio.run(decided(client))
        assert len(server.requests) == 1


def test_a_client_of_the_host_is_not_changed(server: Server) -> None:
    """Its retries stay its own, for the host's other requests."""
    client = CLAUDE.client(server, max_retries=5)
    server.replies = [ok(msgspec.json.decode(finishes(CLAUDE, "native")[2]))]
    drive(provider_of(CLAUDE, server, client=client).decide(REQUEST))
    assert client.max_retries == 5


def test_d04_anthropics_provider_takes_the_options_of_the_others_and_one_more() -> None:
    """D4: the list stands there twice, so that editors show it; it must not come apart."""
    shared = inspect.signature(ApiProvider).parameters.values()
    (*ours, reasoning) = inspect.signature(AnthropicDecisionProvider).parameters.values()
    assert ours == list(shared)
    assert reasoning.name == "reasoning"
