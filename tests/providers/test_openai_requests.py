"""The OpenAI providers' pure half: what a request asks for, and which schemas it states."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from minutebook.errors import (
    AgentDecisionProviderSchemaViolation,
    AgentDecisionProviderUnavailable,
    InvalidOption,
)
from minutebook.model.codec import MAX_DEPTH
from minutebook.model.decisions import CapabilitySpec, DecisionRequest, Observation
from minutebook.model.entries import Call
from minutebook.model.rules import fault_in
from minutebook.providers.decision import Ask, is_closed, joined
from minutebook.providers.native import Native
from minutebook.providers.openai_chat import CHAT
from minutebook.providers.openai_http import OPENAI, known_code
from minutebook.providers.openai_responses import RESPONSES
from minutebook.providers.sdk_http import status_code
from minutebook.providers.step import checked_request, read, withheld
from minutebook.providers.structured import Structured, StructuredWire
from minutebook.providers.wire import FORMATS, wire_format


def closed(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def capability(name: str, parameters: dict[str, Any]) -> CapabilitySpec:
    return CapabilitySpec(name=name, description=f"Do {name}.", parameters=parameters)


LOOK = capability("look", closed(path={"type": "string", "maxLength": 9}))
POINT = {"Point": closed(x={"type": "integer"})}
MOVE = capability("move", {**closed(to={"$ref": "#/$defs/Point"}), "$defs": POINT})
DRAW = capability("draw", {**closed(at={"$ref": "#/$defs/Point"}), "$defs": {"Point": closed(y={"type": "integer"})}})
OPTIONAL = capability("find", {"type": "object", "properties": {"word": {"type": "string"}}})
REQUEST = DecisionRequest(
    run_id="r",
    invocation_id="i",
    agent_ref="a",
    instructions="You decide.",
    task="Do it.",
    capabilities=(LOOK, MOVE, DRAW),
    output=closed(answer={"type": "string"}),
)
STRUCTURED = Structured(wire_format("openai-chat"), CHAT)
NATIVE = Native(wire_format("openai-chat"), CHAT)


def asked(interface: Any, request: DecisionRequest = REQUEST, messages: bytes = b"[]", **changes: Any) -> Ask:
    ask = Ask(
        model="m",
        instructions=interface.instructions(request),
        messages=messages,
        tools=interface.tools(request),
        schema=interface.schema(request),
        max_output_tokens=None,
    )
    return msgspec.structs.replace(ask, **changes)


def fits(value: Any, schema: dict[str, Any]) -> bool:
    return fault_in(value, schema) is None


def says(text: str) -> bytes:
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return json.dumps({"choices": [choice]}).encode()


def test_d01_a_structured_schema_offers_exactly_the_capabilities_and_the_finish() -> None:
    """D1: flat objects with a constant action, under one key, since OpenAI refuses an `anyOf` at the root."""
    schema = STRUCTURED.schema(REQUEST)
    Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    assert list(schema["properties"]) == ["decision"]  # type: ignore[call-overload,arg-type]
    accepted = [
        {"action": "look", "path": "a"},
        {"action": "move", "to": {"x": 1}},
        {"action": "draw", "at": {"y": 1}},
        {"action": "finish", "answer": "done"},
    ]
    refused = [
        {"action": "look", "path": "much too long"},
        {"action": "move", "to": {"y": 1}},
        {"action": "draw", "at": {"x": 1}},
        {"action": "finish", "path": "a"},
        {"action": "erase"},
        {"path": "a"},
    ]
    assert all(fits({"decision": decision}, schema) for decision in accepted)
    assert not any(fits({"decision": decision}, schema) for decision in refused)
    without = STRUCTURED.schema(msgspec.structs.replace(REQUEST, capabilities=()))
    assert not fits({"decision": accepted[0]}, without)
    assert fits({"decision": accepted[3]}, without)


@pytest.mark.parametrize(
    "output", [{"type": "string"}, {"type": "array", "items": {}}, closed(action={"type": "string"})]
)
@pytest.mark.parametrize("interface", [NATIVE, STRUCTURED])
def test_d01_an_output_that_cannot_stand_alone_has_a_place_of_its_own(interface: Any, output: dict[str, Any]) -> None:
    """D1: what is no object, or has a field called `action`, stands under `output` and comes back without it."""
    request = msgspec.structs.replace(REQUEST, output=output)
    value: Any = {"string": "x", "array": [1], "object": {"action": "y"}}[output["type"]]
    body: Any = {"output": value}
    if interface is STRUCTURED:
        body = {"decision": {"action": "finish", **body}}
    elif output["type"] == "object":
        body = value
    assert fits(body, interface.schema(request))
    finish = read(CHAT, interface, request, says(json.dumps(body)))[1].finish
    assert finish is not None
    assert finish.output == value
    with pytest.raises(AgentDecisionProviderSchemaViolation):
        read(CHAT, interface, request, says(json.dumps({"output": value, "more": 1})))


def test_d01_native_definitions_are_found_from_the_root() -> None:
    """D1: an output schema that is a reference, as msgspec makes it, keeps its definitions where it looks for them."""
    output = {"$ref": "#/$defs/Point", "$defs": POINT}
    request = msgspec.structs.replace(REQUEST, output=output)
    for interface, body in (
        (NATIVE, {"output": {"x": 1}}),
        (STRUCTURED, {"decision": {"action": "finish", "output": {"x": 1}}}),
    ):
        assert fits(body, interface.schema(request))
        assert read(CHAT, interface, request, says(json.dumps(body)))[1].finish


def test_strict_is_said_only_of_schemas_that_openai_can_enforce() -> None:
    """A schema with an optional field or an open object would be refused with 400 if it were called strict."""
    assert is_closed(closed(a={"type": "string"}, b={"anyOf": [closed(), {"type": "null"}]}))
    assert not is_closed(OPTIONAL.parameters)
    assert not is_closed(closed(a={"type": "array", "items": {"type": "object"}}))
    fields = CHAT.fields(asked(NATIVE, msgspec.structs.replace(REQUEST, capabilities=(LOOK, OPTIONAL))))
    tools = json.loads(fields["tools"])
    assert [tool["function"]["strict"] for tool in tools] == [True, False]
    assert json.loads(fields["response_format"])["json_schema"]["strict"] is True
    schema = json.loads(RESPONSES.fields(asked(STRUCTURED))["text"])["format"]
    assert (schema["type"], schema["strict"]) == ("json_schema", True)


@pytest.mark.parametrize("api", [CHAT, RESPONSES])
def test_d07_the_window_enters_the_body_as_it_is(api: Any) -> None:
    """D7, I-26: with and without instructions, and whatever its spacing."""
    window = '[ {"role":"user","content":"ü\\u0000"} ,{"x":1e2}]'.encode()
    for instructions in ("Say «yes».", ""):
        body = joined(api.fields(asked(NATIVE, messages=window, instructions=instructions)))
        json.loads(body)
        assert window[1:] in body
        assert (b"Say" in body) is bool(instructions)


def test_responses_leave_no_state_at_the_provider() -> None:
    """D4: nothing is stored there, and reasoning comes back in a form that can be kept here."""
    fields = RESPONSES.fields(asked(NATIVE, max_output_tokens=5))
    assert fields["store"] == b"false"
    assert fields["include"] == b'["reasoning.encrypted_content"]'
    assert fields["max_output_tokens"] == b"5"
    assert {"previous_response_id", "conversation", "context_management", "truncation"} <= RESPONSES.own


@pytest.mark.parametrize("name", FORMATS)
def test_d26_a_structured_exchange_is_a_response_and_a_user_message(name: str) -> None:
    """D26: over every wire format, the result is that format's user message, and pairs with the one call."""
    plain = wire_format(name)
    wire = StructuredWire(plain, CHAT)
    draft = wire.result(0, Call("", "look"), {"role": "tool", "n": [1]}, error=False)
    told = plain.input('Result of look: {"role":"tool","n":[1]}')
    assert (draft.payload, draft.size, draft.messages) == (told.payload, told.size, 1)
    assert wire.results_wrap == (b"", b"")


def test_d26_a_structured_response_keeps_the_message_and_names_its_call() -> None:
    """D26: the provider's bytes are kept; a finish, prose or an object of another form is no structured call."""
    wire = STRUCTURED.wire
    body = says('{ "decision": {"action": "look", "path": "a"} }')
    draft = wire.response(body)
    assert draft.payload == body
    assert draft.calls == (Call("", "look"),)
    assert wire.calls(draft.payload[draft.start : draft.stop])[0][1] == {"path": "a"}
    for text in ('{"decision": {"action": "finish", "answer": "x"}}', "look", '{"action": "look"}', "[]"):
        assert wire.response(says(text)).calls == ()


def test_d26_an_error_is_told_as_one() -> None:
    """D26: both interfaces say that an operation failed, and add nothing to what the runtime observed."""
    failed = Observation(capability="look", arguments={}, value={"why": "absent"}, error=True)
    call = Call("c", "look")
    assert b'{\\"error\\":{\\"why\\":\\"absent\\"}}' in NATIVE.result(0, call, failed).payload
    assert b'Error of look: {\\"why\\":\\"absent\\"}' in STRUCTURED.result(0, call, failed).payload


UNENFORCED: list[dict[str, Any]] = [
    {"type": "nothing"},
    {"$ref": "http://127.0.0.1:1/schema"},
    {"pattern": "("},
    {"properties": {"a": {"contains": {}}}},
    {"if": {}},
]


@pytest.mark.parametrize("schema", UNENFORCED)
@pytest.mark.parametrize("field", ["output", "parameters"])
def test_a_schema_that_is_not_enforced_is_refused_before_anything_is_sent(schema: dict[str, Any], field: str) -> None:
    """D9: a program's fault is told while it costs nothing, and nothing is fetched for a schema."""
    changes: dict[str, Any] = {"output": schema}
    if field == "parameters":
        changes = {"capabilities": (capability("look", {"type": "object", **schema}),)}
    with pytest.raises(InvalidOption, match="schema"):
        checked_request(msgspec.structs.replace(REQUEST, **changes))


def test_a_checked_request_shares_no_schema_with_the_host() -> None:
    """D9: a schema that the host changes while the answer is on its way changes nothing any more."""
    checked = checked_request(REQUEST)
    assert checked == REQUEST
    assert checked.output is not REQUEST.output
    assert checked.capabilities[0].parameters is not REQUEST.capabilities[0].parameters


def test_d09_a_response_of_any_depth_is_refused_by_diagnosis() -> None:
    """D9: what the codec refuses inside a model's text is the model's fault, never ours."""
    for text in (
        "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
        '{"answer":NaN}',
        '{"answer":"a","answer":"b"}',
        '"\\ud800"',
    ):
        with pytest.raises(AgentDecisionProviderSchemaViolation) as caught:
            read(CHAT, NATIVE, REQUEST, says(text))
        assert caught.value.provider_error_code == "text_not_json"


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (302, b'{"error":{"code":"server_error"}}', "redirect_refused"),
        (400, b'{"error":{"code":"context_length_exceeded"}}', "context_length_exceeded"),
        (400, b'{"error":{"code":400,"type":"exceed_context_size_error"}}', "context_length_exceeded"),
        (401, b'{"error":{"code":"sk-secret","type":"sk-secret"}}', "http_401"),
        (500, b'{"error":"server_error"}', "http_500"),
        (500, b"[]", "http_500"),
        (500, b"\xff", "http_500"),
    ],
)
def test_d09_codes_come_from_a_closed_table(status: int, body: bytes, code: str) -> None:
    """D9, I-37: a provider's own words are passed on only where they are known; else the status is the code."""
    assert status_code(OPENAI.code, status, body) == code
    assert known_code(None) is None


def answered(api: Any, text: str) -> dict[str, Any]:
    """A full body of either API: a text, a call, an error that is null, and the counts."""
    if api is CHAT:
        call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"path":"a"}'}}
        message = {"role": "assistant", "content": [{"type": "text", "text": text}], "refusal": None}
        choice = {"index": 0, "message": {**message, "tool_calls": [call]}, "finish_reason": "stop"}
        return {"choices": [choice], "error": None, "usage": {"prompt_tokens": 3}}
    part = {"type": "output_text", "text": text, "annotations": []}
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": '{"path":"a"}', "status": "completed"}
    items = [{"type": "message", "role": "assistant", "content": [part]}, call]
    usage = {"usage": {"input_tokens": 3}, "incomplete_details": {"reason": "max_output_tokens"}}
    return {"status": "completed", "error": None, "output": items, **usage}


def broken(api: Any, text: str) -> list[Any]:
    """Bodies that report why there is no answer, in every word of theirs."""
    if api is CHAT:
        return [answered(api, text) | {"error": {"code": "server_error", "type": "server_error"}}]
    failed = answered(api, text) | {"status": "failed", "error": {"code": "server_error", "type": "server_error"}}
    return [failed, answered(api, text) | {"status": "incomplete"}]


def variants(value: Any) -> Any:
    """`value` with each place in it, itself too, taken by what nobody expects there, and with each place left out."""
    yield from (None, True, -1, 10**600, 1.5, "", "x", [], [{}], [[]], {}, {"a": 1}, {"code": [], "type": {}})
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for place, item in list(items):
        for changed in variants(item):
            copied = value.copy()
            copied[place] = changed
            yield copied
        copied = value.copy()
        del copied[place]
        yield copied


@pytest.mark.parametrize("api", [CHAT, RESPONSES])
@pytest.mark.parametrize("kind", [Native, Structured])
def test_d09_no_value_of_a_body_is_believed_to_have_a_type(api: Any, kind: Any) -> None:
    """D9: whatever stands at whatever place, the body holds a decision or is refused by one of the two errors."""
    interface = kind(wire_format(api.name), api)
    text = '{"decision":{"action":"finish","answer":"a"}}' if kind is Structured else '{"answer":"a"}'
    codes = set()
    for body in [answered(api, text), *broken(api, text)]:
        for variant in variants(body):
            try:
                read(api, interface, REQUEST, json.dumps(variant).encode())
                codes.add("decision")
            except (AgentDecisionProviderSchemaViolation, AgentDecisionProviderUnavailable) as refused:
                codes.add(refused.provider_error_code)
    assert codes >= {"decision" if kind is Native else "unexpected_call", "malformed_response", "not_json"}


@pytest.mark.parametrize("code", [{}, {"a": 1}, [], 5, True])
def test_d09_a_code_that_is_no_text_is_none_that_we_know(code: Any) -> None:
    """D9: it is in no table, so the failed response is a violation, and a status stays the code."""
    with pytest.raises(AgentDecisionProviderSchemaViolation) as failed:
        read(RESPONSES, NATIVE, REQUEST, json.dumps({"status": "failed", "error": {"code": code}}).encode())
    assert failed.value.provider_error_code == "response_failed"
    choice = {"message": {"role": "assistant", "content": "x"}, "finish_reason": code}
    with pytest.raises(AgentDecisionProviderSchemaViolation) as cut:
        read(CHAT, NATIVE, REQUEST, json.dumps({"choices": [choice]}).encode())
    assert cut.value.provider_error_code == "incomplete"
    assert status_code(OPENAI.code, 500, json.dumps({"error": {"code": code, "type": code}}).encode()) == "http_500"


def test_d04_reasoning_that_openai_withheld_is_counted() -> None:
    """D4: items of the type that tells of reasoning, and of the one API that tells."""
    told = {"id": "rs_1", "action": "removed", "reason": "prefix_mismatch", "type": "reasoning"}
    body = json.dumps({"status": "completed", "input_transformations": [told, {"type": "novel"}, told, 7]}).encode()
    assert (withheld(RESPONSES, body), withheld(CHAT, body), withheld(RESPONSES, b"{}")) == (2, 0, 0)


NUMBERS: list[dict[str, Any]] = [
    {"enum": [1]},
    {"const": 1},
    {"multipleOf": 0.1},
    {"maximum": 1.5},
    {"minimum": 10**400},
    {"type": "array", "uniqueItems": True},
]


@pytest.mark.parametrize("rule", NUMBERS, ids=str)
@pytest.mark.parametrize("number", ["1e308", "-1e308", "1" + "0" * 30, "-1" + "0" * 600])
def test_d09_a_number_of_any_size_is_held_to_the_schema(rule: dict[str, Any], number: str) -> None:
    """D9: what a model writes where a number belongs fits the schema or is a violation, and never an error of ours."""
    request = msgspec.structs.replace(REQUEST, output=closed(answer=rule))
    for value in (number, f"[{number},{number}]"):
        with contextlib.suppress(AgentDecisionProviderSchemaViolation):
            assert read(CHAT, NATIVE, request, says('{"answer":' + value + "}"))[1].finish
