"""The fakes of OpenAI's two APIs, asked by the official client: what is right passes, each broken rule is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import openai
import pytest
from tests.http_clients import http_client

from minutebook.testing.fakes import Answer, FunctionCall, ProviderFake, Seal, openai_chat, openai_responses

PARAMETERS = {
    "type": "object",
    "properties": {"path": {"type": "string"}},
    "required": ["path"],
    "additionalProperties": False,
}
FUNCTION = {"name": "look", "description": "Read.", "parameters": PARAMETERS, "strict": True}
CHAT_TOOLS: list[Any] = [{"type": "function", "function": FUNCTION}]
TOOLS: list[Any] = [{"type": "function", **FUNCTION}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
LOOKS = (FunctionCall("look", {"path": "ä"}), FunctionCall("look", {"path": "b"}))
SCRIPT = (
    Answer(thinking="Two files.", text="I look.", calls=LOOKS),
    Answer(thinking="One more.", calls=(FunctionCall("look", {"path": "c"}),)),
    Answer(text="Both are fine."),
)


def client_of(fake: ProviderFake) -> openai.OpenAI:
    # Without certificates, since loading them takes longer than a test.
    return openai.OpenAI(
        base_url=fake.base_url, api_key="sk-any", max_retries=0, http_client=http_client(verify=False, timeout=20)
    )


def chat_body(fake: ProviderFake) -> dict[str, Any]:
    """A whole conversation as the official client leads it, and the body of the request that would come next."""
    client = client_of(fake)
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Look at ä and b."}]
    for _ in SCRIPT:
        answer = client.chat.completions.create(model="m", messages=messages, tools=CHAT_TOOLS).choices[0].message
        messages.append(answer.model_dump(exclude_none=True))
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "fine"} for call in answer.tool_calls or ()]
    messages.append({"role": "user", "content": "Thanks."})
    return {"model": "m", "messages": messages, "tools": CHAT_TOOLS}


def responses_body(fake: ProviderFake) -> dict[str, Any]:
    client = client_of(fake)
    items: list[Any] = [{"role": "user", "content": "Look at ä and b."}]
    for _ in SCRIPT:
        response = client.responses.create(model="m", input=items, tools=TOOLS, instructions="Be brief.", store=False)
        assert response.input_transformations == []
        items += [item.model_dump(exclude_none=True) for item in response.output]
        items += [
            {"type": "function_call_output", "call_id": item.call_id, "output": "fine"}
            for item in response.output
            if item.type == "function_call"
        ]
    items.append({"role": "user", "content": "Thanks."})
    return {"model": "m", "input": items, "tools": TOOLS, "instructions": "Be brief.", "store": False}


@pytest.fixture(scope="module")
def chat() -> Iterator[tuple[ProviderFake, dict[str, Any]]]:
    with ProviderFake(
        "openai-chat", lambda r: SCRIPT[sum(m["role"] == "assistant" for m in r.json["messages"])]
    ) as fake:
        yield fake, chat_body(fake)
        assert all(received.problem for received in fake.requests[len(SCRIPT) :]), "a broken request passed"


def answered(items: list[Any]) -> int:
    """How many responses a list of items holds: reasoning begins two of them, and a final text is one."""
    return sum(item.get("type") == "reasoning" for item in items)


@pytest.fixture(scope="module")
def responses() -> Iterator[tuple[ProviderFake, dict[str, Any]]]:
    with ProviderFake("openai-responses", lambda r: SCRIPT[answered(r.json["input"])]) as fake:
        yield fake, responses_body(fake)
        assert all(received.problem for received in fake.requests[len(SCRIPT) :]), "a broken request passed"


def refusal(fake: ProviderFake, path: str, body: Any) -> openai.APIStatusError:
    with pytest.raises(openai.APIStatusError) as caught:
        client_of(fake).post(path, body=body, cast_to=httpx2.Response)
    assert fake.refused[-1].problem is not None
    assert fake.refused[-1].problem.status == caught.value.status_code
    return caught.value


Change = Callable[[dict[str, Any]], Any]


def at(*path: Any, value: Any) -> Change:
    """Return a change that puts a value, or with `...` takes one away, at a place of a body."""

    def change(body: Any) -> None:
        *outer, last = path
        for key in outer:
            body = body[key]
        if value is ...:
            del body[last]
        else:
            body[last] = value

    return change


def move(name: str, source: int, target: int) -> Change:
    return lambda body: body[name].insert(target, body[name].pop(source))


def repeat(name: str, index: int) -> Change:
    return lambda body: body[name].insert(index, copy.deepcopy(body[name][index]))


# --- Chat ---

# 0 system, 1 user, 2 assistant with two calls, 3 and 4 results, 5 assistant with a call, 6 result, 7 text, 8 user
CHAT_RULES: list[tuple[str, Change, str | None, str | None]] = [
    ("unknown at the top", at("max_output_tokens", value=1), "unknown_parameter", "max_output_tokens"),
    ("unknown in a message", at("messages", 1, "x", value=1), "unknown_parameter", "messages[1].x"),
    ("unknown in a call", at("messages", 2, "tool_calls", 0, "x", value=1), "unknown_parameter", None),
    ("unknown in a tool", at("tools", 0, "function", "x", value=1), "unknown_parameter", "tools[0].function.x"),
    ("no model", at("model", value=...), "missing_required_parameter", "model"),
    ("no messages", at("messages", value=[]), "empty_array", "messages"),
    ("no role", at("messages", 1, "role", value=...), "missing_required_parameter", "messages[1].role"),
    ("role of nobody", at("messages", 1, "role", value="human"), "invalid_type", "messages[1].role"),
    ("stream of a text", at("stream", value="yes"), "invalid_type", "stream"),
    ("options of no stream", at("stream_options", value={"include_usage": True}), None, "stream_options"),
    ("a number for a text", at("messages", 1, "content", value=5), "invalid_type", "messages[1].content"),
    ("null content", at("messages", 1, "content", value=None), "invalid_type", "messages[1].content"),
    ("an answer of nothing", at("messages", 7, "content", value=None), "invalid_type", "messages[7].content"),
    ("a name with a blank", at("messages", 1, "name", value="ann b"), "invalid_value", "messages[1].name"),
    ("a name with a slash", at("messages", 1, "name", value="a/b"), "invalid_value", "messages[1].name"),
    ("a name of nothing", at("messages", 1, "name", value=""), "invalid_value", "messages[1].name"),
    ("a long name", at("messages", 1, "name", value="n" * 65), "invalid_value", "messages[1].name"),
    ("no parts", at("messages", 1, "content", value=[]), "empty_array", "messages[1].content"),
    ("no calls", at("messages", 7, "tool_calls", value=[]), "empty_array", "messages[7].tool_calls"),
    ("a result dropped", at("messages", 3, value=...), None, "messages[2].tool_calls"),
    ("all results dropped", at("messages", slice(3, 5), value=...), None, "messages[2].tool_calls"),
    ("results of an open end", at("messages", slice(6, None), value=...), None, "messages[5].tool_calls"),
    ("a call dropped", at("messages", 2, "tool_calls", 0, value=...), None, "messages[3].tool_call_id"),
    ("a call's message dropped", at("messages", 2, value=...), None, "messages[2].role"),
    ("a result twice", repeat("messages", 3), None, "messages[4].tool_call_id"),
    ("a result for nothing", at("messages", 3, "tool_call_id", value="call_9"), None, "messages[3].tool_call_id"),
    ("a result in a later turn", move("messages", 4, 7), None, "messages[2].tool_calls"),
    ("a user between", move("messages", 8, 3), None, "messages[2].tool_calls"),
    ("a result after a text", move("messages", 6, 7), None, "messages[5].tool_calls"),
    ("an id twice", repeat("messages", 2), None, "messages[2].tool_calls"),
    ("an id too long", at("messages", 2, "tool_calls", 0, "id", value="c" * 41), "string_above_max_length", None),
    ("an empty id", at("messages", 2, "tool_calls", 0, "id", value=""), "empty_string", None),
    ("a name outside", at("messages", 2, "tool_calls", 0, "function", "name", value="a b"), "invalid_value", None),
    ("a tool's name outside", at("tools", 0, "function", "name", value="ä"), "invalid_value", None),
    ("a tool twice", lambda body: body["tools"].append(body["tools"][0]), None, "tools"),
    (
        "a strict tool that is open",
        at("tools", 0, "function", "parameters", value={"type": "object", "properties": {}}),
        "invalid_function_parameters",
        "tools[0].function.parameters",
    ),
    (
        "a strict form with an optional field",
        at(
            "response_format",
            value={
                "type": "json_schema",
                "json_schema": {"name": "x", "strict": True, "schema": {**SCHEMA, "required": []}},
            },
        ),
        "invalid_json_schema",
        "response_format",
    ),
]


@pytest.mark.parametrize(("change", "code", "param"), [r[1:] for r in CHAT_RULES], ids=[r[0] for r in CHAT_RULES])
def test_i22_o15_chat_refuses_each_broken_rule(
    chat: tuple[ProviderFake, dict[str, Any]], change: Change, code: str | None, param: str | None
) -> None:
    """Every change of a right conversation that breaks one rule is refused with that rule's place and code."""
    fake, right = chat
    assert openai_chat.check_request(right) is None
    body = copy.deepcopy(right)
    change(body)
    caught = refusal(fake, "/chat/completions", body)
    assert isinstance(caught, openai.BadRequestError)
    assert (caught.type, caught.code) == ("invalid_request_error", code)
    assert param is None or caught.param == param


def test_chat_repeats_no_call_id_in_a_request(chat: tuple[ProviderFake, dict[str, Any]]) -> None:
    """I-22, O-9: an id that a later exchange has again is refused, though each pair by itself is right."""
    body = copy.deepcopy(chat[1])
    body["messages"][5]["tool_calls"][0]["id"] = body["messages"][2]["tool_calls"][0]["id"]
    body["messages"][6]["tool_call_id"] = body["messages"][2]["tool_calls"][0]["id"]
    assert "Duplicate" in str(refusal(chat[0], "/chat/completions", body))


def test_chat_counts_what_it_bills_and_streams_what_it_answers() -> None:
    """The count endpoint, `usage` and the body of a stream tell one story, refusals and cuts too."""
    answers = [*SCRIPT[:1], Answer(refusal="No, thank you."), Answer(text="a text that was", ending="length")]
    with ProviderFake("openai-chat", [line for answer in answers for line in (answer, answer)]) as fake:
        client = client_of(fake)
        asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "漢字"}], "tools": CHAT_TOOLS}
        counted = client.post("/chat/completions/input_tokens", body=asked, cast_to=httpx2.Response).json()
        for answer in answers:
            whole = client.chat.completions.create(**asked)
            assert whole.usage is not None
            assert whole.usage.prompt_tokens == counted["input_tokens"]
            chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
            assert chunks[-1].usage is not None
            assert chunks[-1].usage.prompt_tokens == counted["input_tokens"]
            deltas = [chunk.choices[0].delta for chunk in chunks[:-1]]
            message = whole.choices[0].message
            assert "".join(delta.content or "" for delta in deltas) == (message.content or "") == answer.text
            assert "".join(delta.refusal or "" for delta in deltas) == (message.refusal or "") == answer.refusal
            arguments = [
                "".join(
                    call.function.arguments or ""
                    for delta in deltas
                    for call in delta.tool_calls or ()
                    if call.index == index and call.function
                )
                for index in range(len(answer.calls))
            ]
            assert arguments == [call.function.arguments for call in message.tool_calls or ()]  # type: ignore[union-attr]
            assert [json.loads(text) for text in arguments] == [call.arguments for call in answer.calls]
            assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
        assert [whole.choices[0].finish_reason] == ["length"]
        assert fake.refused == ()


# --- Responses ---

# 0 user, 1 reasoning, 2 message, 3 and 4 calls, 5 and 6 outputs, 7 reasoning, 8 call, 9 output, 10 message, 11 user
RESPONSES_RULES: list[tuple[str, Change, type[openai.APIStatusError], str | None, str]] = [
    ("unknown at the top", at("max_tokens", value=1), openai.BadRequestError, "unknown_parameter", "max_tokens"),
    ("unknown in an item", at("input", 1, "x", value=1), openai.BadRequestError, "unknown_parameter", "input[1].x"),
    (
        "unknown in a part",
        at("input", 2, "content", 0, "x", value=1),
        openai.BadRequestError,
        "unknown_parameter",
        "input[2].content[0].x",
    ),
    ("no input", at("input", value=[]), openai.BadRequestError, "missing_required_parameter", "One of"),
    ("no model", at("model", value=...), openai.BadRequestError, "missing_required_parameter", "model"),
    (
        "an item of no type",
        at("input", 1, "type", value="thought"),
        openai.BadRequestError,
        "invalid_type",
        "input[1].type",
    ),
    (
        "no call id",
        at("input", 3, "call_id", value=...),
        openai.BadRequestError,
        "missing_required_parameter",
        "input[3].call_id",
    ),
    ("too few tokens", at("max_output_tokens", value=15), openai.BadRequestError, "integer_below_min_value", "16"),
    (
        "a response kept there",
        at("previous_response_id", value="resp_1"),
        openai.BadRequestError,
        "previous_response_not_found",
        "Previous",
    ),
    ("a conversation kept there", at("conversation", value="conv_1"), openai.NotFoundError, None, "Conversation"),
    (
        "an item kept there",
        at("input", 0, value={"type": "item_reference", "id": "msg_1"}),
        openai.NotFoundError,
        None,
        "msg_1",
    ),
    ("in the background", at("background", value=True), openai.BadRequestError, None, "Background"),
    (
        "an input text by the model",
        at("input", 0, value={"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}),
        openai.BadRequestError,
        "invalid_value",
        "output_text",
    ),
    (
        "an output text by the user",
        at("input", 0, "content", value=[{"type": "output_text", "text": "x", "annotations": []}]),
        openai.BadRequestError,
        "invalid_type",
        "input[0]",
    ),
    (
        "a compaction of nobody",
        at("input", 0, value={"type": "compaction", "encrypted_content": "x"}),
        openai.BadRequestError,
        None,
        "Nothing was compacted",
    ),
    ("a call id twice", lambda body: _rename(body), openai.BadRequestError, None, "Duplicate call_id"),
    (
        "a tool twice",
        lambda body: body["tools"].append(body["tools"][0]),
        openai.BadRequestError,
        None,
        "Duplicate function name",
    ),
    ("an item that is none", at("input", 0, value=5), openai.BadRequestError, "invalid_type", "input[0]"),
    ("an output dropped", at("input", 5, value=...), openai.BadRequestError, None, "No tool output found"),
    ("the last output dropped", at("input", 9, value=...), openai.BadRequestError, None, "No tool output found"),
    ("a call dropped", at("input", 4, value=...), openai.BadRequestError, None, "No tool call found"),
    ("an output before its call", move("input", 5, 3), openai.BadRequestError, None, "No tool call found"),
    ("an output twice", repeat("input", 5), openai.BadRequestError, None, "No tool call found"),
    (
        "an output of another kind",
        at("input", 5, "type", value="custom_tool_call_output"),
        openai.BadRequestError,
        None,
        "No tool call found",
    ),
    ("a user between", move("input", 11, 5), openai.BadRequestError, None, "No tool output found"),
    ("an item twice", repeat("input", 2), openai.BadRequestError, None, "Duplicate item"),
    ("an empty call id", at("input", 3, "call_id", value=""), openai.BadRequestError, "empty_string", "call_id"),
    (
        "a call id too long",
        at("input", 3, "call_id", value="c" * 65),
        openai.BadRequestError,
        "string_above_max_length",
        "call_id",
    ),
    ("a name outside", at("input", 3, "name", value="a.b"), openai.BadRequestError, "invalid_value", "name"),
    (
        "reasoning without what followed",
        at("input", slice(2, 7), value=...),
        openai.BadRequestError,
        None,
        "without its required following item",
    ),
    (
        "reasoning before another response's item",
        at("input", slice(8, 10), value=...),
        openai.BadRequestError,
        None,
        "without its required following item",
    ),
    (
        "reasoning without its first follower",
        at("input", 2, value=...),
        openai.BadRequestError,
        None,
        "without its required following item",
    ),
    (
        "reasoning at the end",
        at("input", slice(8, None), value=...),
        openai.BadRequestError,
        None,
        "without its required following item",
    ),
    (
        "reasoning before words without an id",
        at("input", 2, "id", value=...),
        openai.BadRequestError,
        None,
        "without its required following item",
    ),
    ("reasoning moved", move("input", 1, 3), openai.BadRequestError, None, "without its required"),
    (
        "a follower without reasoning",
        at("input", 7, value=...),
        openai.BadRequestError,
        None,
        "without its required 'reasoning' item",
    ),
    (
        "reasoning without its content",
        at("input", 1, "encrypted_content", value=...),
        openai.NotFoundError,
        None,
        "not persisted",
    ),
    (
        "a foreign content",
        at("input", 1, "encrypted_content", value="Zm9v"),
        openai.BadRequestError,
        "invalid_encrypted_content",
        "verified",
    ),
    (
        "a summary changed",
        at("input", 1, "summary", 0, "text", value="Two files!"),
        openai.BadRequestError,
        "invalid_encrypted_content",
        "verified",
    ),
    (
        "a strict tool that is open",
        at("tools", 0, "parameters", "additionalProperties", value=True),
        openai.BadRequestError,
        "invalid_function_parameters",
        "additionalProperties",
    ),
    (
        "a strict form that is open",
        at(
            "text",
            value={"format": {"type": "json_schema", "name": "x", "strict": True, "schema": {"type": "object"}}},
        ),
        openai.BadRequestError,
        "invalid_json_schema",
        "additionalProperties",
    ),
]


@pytest.mark.parametrize(
    ("change", "kind", "code", "told"), [r[1:] for r in RESPONSES_RULES], ids=[r[0] for r in RESPONSES_RULES]
)
def test_i22_o10_responses_refuses_each_broken_rule(
    responses: tuple[ProviderFake, dict[str, Any]],
    change: Change,
    kind: type[openai.APIStatusError],
    code: str | None,
    told: str,
) -> None:
    """Every change of a right conversation that breaks one rule is refused with that rule's error."""
    fake, right = responses
    assert openai_responses.check_request(right, fake.seal) is None
    body = copy.deepcopy(right)
    change(body)
    caught = refusal(fake, "/responses", body)
    assert type(caught) is kind
    assert (caught.type, caught.code) == ("invalid_request_error", code)
    assert told in str(caught)


SAID = {"type": "output_text", "text": "x"}


def _search(items: list[Any]) -> None:
    # Without an id it could be what the reasoning led to.
    items.insert(2, {"type": "tool_search_call", "arguments": {}, "execution": "server", "status": "completed"})


def _rename(body: Any) -> None:
    for index in (8, 9):
        body["input"][index]["call_id"] = body["input"][3]["call_id"]


ALLOWED: list[tuple[str, Change]] = [
    ("a function without strict", at("tools", 0, "strict", value=...)),
    ("reasoning before a call without an id", at("input", 8, "id", value=...)),
    ("a call's status of null", at("input", 3, "status", value=None)),
    ("the model's words by hand", at("input", 10, value={"role": "assistant", "content": [SAID]})),
    ("reasoning before a hosted tool's call", lambda body: _search(body["input"])),
    ("outputs in another order", move("input", 5, 6)),
    ("a whole response and its outputs left out", at("input", slice(1, 7), value=...)),
    ("everything before the last words left out", at("input", slice(0, 11), value=...)),
    ("reasoning and the ids of what followed left out", lambda body: _without_reasoning(body["input"])),
]


def _without_reasoning(items: list[Any]) -> None:
    items[:] = [item for item in items if item.get("type") != "reasoning"]
    for item in items:
        item.pop("id", None)
    # A message with parts of the model needs its id; its text alone does not.
    for item in items:
        if item.get("type") == "message":
            item["content"] = item["content"][0]["text"]
            item.pop("status")


@pytest.mark.parametrize("change", [r[1] for r in ALLOWED], ids=[r[0] for r in ALLOWED])
def test_o10_what_the_service_takes_is_not_refused(
    responses: tuple[ProviderFake, dict[str, Any]], change: Change
) -> None:
    """Leaving out whole responses is right, and so is the documented way to leave out reasoning alone."""
    body = copy.deepcopy(responses[1])
    change(body)
    assert openai_responses.check_request(body, responses[0].seal) is None
    assert openai_responses.check_messages(body["input"], responses[0].seal) is None


def test_o10_reasoning_of_another_prefix_is_withheld_and_reported() -> None:
    """As the service does: no error, but the item's id and why in `input_transformations`."""
    with ProviderFake("openai-responses", [*SCRIPT, Answer(text="on")]) as fake:
        body = responses_body(fake)
        thoughts = [item["id"] for item in body["input"] if item.get("type") == "reasoning"]
        body["input"] = body["input"][:1] + body["input"][7:]
        response = client_of(fake).responses.create(**body)
        assert response.input_transformations is not None
        assert [(told.id, told.reason) for told in response.input_transformations] == [(thoughts[1], "prefix_mismatch")]


def test_responses_counts_what_it_bills_and_streams_what_it_answers() -> None:
    """The count endpoint, `usage` and the last event of a stream tell one story, refusals and cuts too."""
    answers = [*SCRIPT, Answer(refusal="No, thank you."), Answer(text="a text that was", ending="length")]
    with ProviderFake("openai-responses", [line for answer in answers for line in (answer, answer, answer)]) as fake:
        client = client_of(fake)
        asked: dict[str, Any] = {"model": "m", "input": "漢字", "tools": TOOLS, "instructions": "Be brief."}
        counted = client.responses.input_tokens.count(**asked).input_tokens
        for answer in answers:
            whole = client.responses.create(**asked, store=False)
            assert whole.usage is not None
            assert whole.usage.input_tokens == counted
            with client.responses.stream(**asked, store=False) as stream:
                assert [event.type for event in stream][-1] == f"response.{whole.status}"
            events = list(client.responses.create(**asked, store=False, stream=True))
            kinds = [event.type for event in events]
            assert [event.sequence_number for event in events] == list(range(len(events)))
            assert (
                kinds[-1]
                == f"response.{whole.status}"
                == f"response.{'incomplete' if answer.ending == 'length' else 'completed'}"
            )
            last: Any = events[-1]
            assert last.response.usage == whole.usage
            assert [i.type for i in last.response.output] == [i.type for i in whole.output]
            assert last.response.output_text == whole.output_text == answer.text
            done = [event.item.to_dict() for event in events if event.type == "response.output_item.done"]
            assert done == [item.to_dict() for item in last.response.output]
        assert fake.refused == ()


def test_count_bodies_have_their_own_fields() -> None:
    """A field of generation that the count endpoint does not know is refused there (E, O-25)."""
    with ProviderFake("openai-responses") as fake:
        for name, value in (("store", False), ("max_output_tokens", 20), ("include", [])):
            caught = refusal(fake, "/responses/input_tokens", {"model": "m", "input": "x", name: value})
            assert (caught.status_code, caught.code) == (400, "unknown_parameter")


def test_llama_cpps_count_takes_what_generation_takes_and_its_own_field() -> None:
    """Chat's count endpoint has every field of a generation and the template's; the rules are the same."""
    asked: dict[str, Any] = {"model": "m", "messages": [{"role": "function", "name": "f", "content": None}]}
    assert openai_chat.check_count({**asked, "chat_template_kwargs": {"x": 1}, "max_tokens": 5}) is None
    for wrong in ({**asked, "x": 1}, {**asked, "messages": []}):
        assert openai_chat.check_count(wrong) is not None
    problem = openai_chat.check_messages([{"role": "user", "content": "x", "y": 1}])
    assert problem is not None
    assert problem.param == "messages[0].y"
    assert openai_chat.check_request({**asked, "chat_template_kwargs": {}}) is not None


def test_rules_work_on_messages_alone() -> None:
    """Without a server, and with a seal or without: the same rules (O-10, I-22)."""
    with ProviderFake("openai-responses", SCRIPT) as fake:
        items = responses_body(fake)["input"]
    assert openai_responses.check_messages(items) is None
    forged = copy.deepcopy(items)
    forged[1]["encrypted_content"] = "Zm9v"
    assert openai_responses.check_messages(forged) is None
    for seal in (fake.seal, Seal(b"another")):
        problem = openai_responses.check_messages(forged if seal is fake.seal else items, seal)
        assert problem is not None
        assert problem.code == "invalid_encrypted_content"
