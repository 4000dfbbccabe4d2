"""The fake of Anthropic Messages, asked by the official client: what is right passes, each broken rule is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx2
import pytest
from tests.http_clients import http_client

from minutebook.testing.fakes import Answer, FunctionCall, ProviderFake, Seal
from minutebook.testing.fakes import anthropic as rules

TOOLS: list[Any] = [{"name": "look", "description": "Read.", "input_schema": {"type": "object"}}]
LOOKS = (FunctionCall("look", {"path": "ä", "n": 1.0}), FunctionCall("look", {"path": "b"}))
SCRIPT = (
    Answer(thinking="Two files.", text="I look.", calls=LOOKS),
    Answer(thinking="", calls=(FunctionCall("look", {"path": "c"}),)),
    Answer(redacted=True, text="Both are fine."),
)
SYSTEM: list[Any] = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
BY_HAND: dict[str, Any] = {"max_tokens": 5_000, "thinking": {"type": "enabled", "budget_tokens": 2_000}}
BINDING = {"anthropic-beta": rules.BINDING_BETA}


def client_of(fake: ProviderFake) -> anthropic.Anthropic:
    # Without certificates, since loading them takes longer than a test.
    return anthropic.Anthropic(
        base_url=fake.base_url, api_key="sk-any", max_retries=0, http_client=http_client(verify=False, timeout=20)
    )


def results(message: Any) -> list[Any]:
    return [
        {"type": "tool_result", "tool_use_id": block.id, "content": "fine"}
        for block in message.content
        if block.type == "tool_use"
    ]


def conversation(fake: ProviderFake) -> dict[str, Any]:
    """A whole conversation as the official client leads it, and the body of the request that would come next."""
    client = client_of(fake)
    messages: list[Any] = [{"role": "user", "content": "Look at ä and b."}]
    for _ in SCRIPT:
        message = client.messages.create(model="m", max_tokens=99, messages=messages, tools=TOOLS, system=SYSTEM)
        messages.append({"role": "assistant", "content": [block.to_dict() for block in message.content]})
        messages.append({"role": "user", "content": results(message) or "Thanks."})
    return {"model": "m", "max_tokens": 99, "messages": messages, "tools": TOOLS, "system": SYSTEM}


def answered(body: Any) -> int:
    return sum(message["role"] == "assistant" for message in body["messages"])


@pytest.fixture(scope="module")
def led() -> Iterator[tuple[ProviderFake, dict[str, Any]]]:
    with ProviderFake("anthropic", lambda received: SCRIPT[answered(received.json)]) as fake:
        yield fake, conversation(fake)
        assert all(received.problem for received in fake.requests[len(SCRIPT) :]), "a broken request passed"


def refusal(fake: ProviderFake, body: Any, path: str = "/v1/messages", **options: Any) -> anthropic.APIStatusError:
    with pytest.raises(anthropic.APIStatusError) as caught:
        client_of(fake).post(path, body=body, cast_to=httpx2.Response, options=options)  # type: ignore[arg-type]
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


def block(message: int, *path: Any, value: Any) -> Change:
    return at("messages", message, "content", *path, value=value)


def move(message: int, source: int, target: int) -> Change:
    def change(body: Any) -> None:
        content = body["messages"][message]["content"]
        content.insert(target, content.pop(source))

    return change


def add(message: int, index: int, added: Any) -> Change:
    return lambda body: body["messages"][message]["content"].insert(index, added)


def insert(index: int, message: Any) -> Change:
    return lambda body: body["messages"].insert(index, message)


TEXT = {"type": "text", "text": "By the way."}
CITED = {
    "type": "char_location",
    "cited_text": "x",
    "document_index": 0,
    "document_title": None,
    "start_char_index": 0,
    "end_char_index": 1,
}
IMAGE = {"type": "image", "source": {"type": "url", "url": "https://example.invalid/a.png"}}

# 0 user; 1 thinking, text, two calls; 2 results; 3 thinking, call; 4 result; 5 redacted, text; 6 user
RULES: list[tuple[str, Change, str]] = [
    ("unknown at the top", at("top_p", value=1), "top_p: Extra inputs"),
    ("temperature is gone", at("temperature", value=1), "temperature: Extra inputs"),
    ("a header in the body", at("user_profile_id", value="x"), "user_profile_id: Extra inputs"),
    ("unknown in a message", at("messages", 0, "id", value="x"), "messages.0.id: Extra inputs"),
    ("unknown in a block", block(1, 1, "x", value=1), "messages.1.content.1.x: Extra inputs"),
    ("unknown in a result", block(2, 0, "name", value="look"), "messages.2.content.0.name: Extra inputs"),
    ("no max_tokens", at("max_tokens", value=...), "max_tokens: Field required"),
    ("no output", at("max_tokens", value=0), "max_tokens: Input should be greater"),
    ("a result without its call's id", block(2, 0, "tool_use_id", value=...), "tool_use_id: Field required"),
    ("stream of a text", at("stream", value="yes"), "stream: Input should be"),
    ("a small budget", at("thinking", value={"type": "enabled", "budget_tokens": 1023}), "budget_tokens"),
    (
        "a forced tool while thinking",
        lambda body: body.update(**BY_HAND, tool_choice={"type": "any"}),
        "tool_choice forces tool use",
    ),
    ("no tools", at("tools", value=...), "must define tools"),
    ("a tool twice", at("tools", value=TOOLS * 2), "must be unique"),
    ("a tool's name outside", at("tools", 0, "name", value="a b"), "tools.0.custom.name"),
    ("no messages", at("messages", value=[]), "at least one message"),
    ("the model begins", at("messages", 0, value=...), 'first message must use the "user" role'),
    ("a role of nobody", at("messages", 0, "role", value="human"), "messages.0.role"),
    ("a system message first", insert(0, {"role": "system", "content": "x"}), "first message"),
    ("a system message behind the model", insert(6, {"role": "system", "content": "x"}), "after a user message"),
    ("no content", at("messages", 0, "content", value=[]), "non-empty content"),
    ("an empty text", at("messages", 0, "content", value=""), "must be non-empty"),
    ("an empty text beside others", add(1, 1, {"type": "text", "text": ""}), "must be non-empty"),
    ("a blank text", block(1, 1, "text", value=" \n"), "non-whitespace text"),
    ("an empty text in a result", block(2, 0, "content", value=[{"type": "text", "text": ""}]), "must be non-empty"),
    ("an empty system text", at("system", 0, "text", value=""), "system.0"),
    (
        "a result in the model's message",
        add(1, 1, {"type": "tool_result", "tool_use_id": "a"}),
        "`tool_result` blocks are",
    ),
    (
        "a call in the user's message",
        add(2, 2, {"type": "tool_use", "id": "a", "name": "b", "input": {}}),
        "`tool_use` bl",
    ),
    (
        "a document in the model's message",
        add(5, 1, {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}}),
        "`document` blocks are not allowed",
    ),
    (
        "citations by the user",
        at("messages", 0, "content", value=[{"type": "text", "text": "x", "citations": [CITED]}]),
        "text.citations: not permitted",
    ),
    ("a result dropped", block(2, 0, value=...), "without `tool_result` blocks immediately after"),
    ("all results dropped", at("messages", 2, value=...), "without `tool_result` blocks immediately after"),
    ("an open end", at("messages", slice(4, None), value=...), "without `tool_result` blocks immediately after"),
    ("a call dropped", block(1, 2, value=...), "unexpected `tool_use_id`"),
    ("both calls dropped", block(1, slice(2, 4), value=...), "unexpected `tool_use_id`"),
    (
        "a result twice",
        lambda body: body["messages"][2]["content"].append(body["messages"][2]["content"][0]),
        "multiple",
    ),
    ("a result for nothing", block(2, 0, "tool_use_id", value="toolu_9"), "unexpected `tool_use_id`"),
    ("words before results", add(2, 0, TEXT), "immediately after"),
    ("words between results", add(2, 1, TEXT), "immediately after"),
    (
        "results in two messages",
        lambda body: insert(3, {"role": "user", "content": [body["messages"][2]["content"].pop()]})(body),
        "immediately after",
    ),
    ("a user between", insert(2, {"role": "user", "content": "x"}), "immediately after"),
    ("a call split from its message", insert(2, {"role": "assistant", "content": "x"}), "immediately after"),
    ("an id outside", lambda body: _rename(body, "functions.look:0"), "should match pattern"),
    ("an id twice", lambda body: _rename(body, body["messages"][3]["content"][1]["id"]), "ids must be unique"),
    ("a call's name outside", block(3, 1, "name", value="a b"), "should match pattern"),
    ("thinking at the end", block(5, 1, value=...), "cannot be `thinking`"),
    (
        "an open loop without its thinking",
        lambda body: body.update(
            max_tokens=5_000,
            thinking={"type": "enabled", "budget_tokens": 2_000},
            messages=[
                *body["messages"][:3],
                {**body["messages"][3], "content": body["messages"][3]["content"][1:]},
                body["messages"][4],
            ],
        ),
        "Expected `thinking` or `redacted_thinking`, but found `tool_use`",
    ),
    ("a thought changed", block(1, 0, "thinking", value="Two files!"), "messages.1.content.0: Invalid `signature`"),
    ("a withheld thought filled", block(3, 0, "thinking", value="x"), "messages.3.content.0: Invalid `signature`"),
    ("a signature changed", block(1, 0, "signature", value="Zm9v"), "messages.1.content.0: Invalid `signature`"),
    (
        "a signature in URL-safe letters",
        lambda body: block(
            1, 0, "signature", value=body["messages"][1]["content"][0]["signature"].replace("+", "-").replace("/", "_")
        )(body),
        "messages.1.content.0: Invalid `signature`",
    ),
    ("redacted data changed", block(5, 0, "data", value="Zm9v"), "messages.5.content.0: Invalid `signature`"),
    ("the system text changed", at("system", 0, "text", value="Be brief!"), "messages.1.content.0: The block is bound"),
    ("a tool changed", at("tools", 0, "description", value="Read!"), "messages.1.content.0: The block is bound"),
    (
        "the first words changed",
        at("messages", 0, "content", value="Look."),
        "messages.1.content.0: The block is bound",
    ),
    ("a summary put in front", insert(0, {"role": "user", "content": "x"}), "messages.2.content.0: The block is bound"),
    ("an old result changed", block(2, 0, "content", value="odd"), "messages.3.content.0: The block is bound"),
    ("an old argument changed", block(1, 2, "input", "n", value=1), "messages.3.content.0: The block is bound"),
    ("an exchange left out", at("messages", slice(1, 3), value=...), "messages.1.content.0: The block is bound"),
    ("one thought left out", block(1, 0, value=...), "messages.3.content.0: The block is bound"),
    ("a thought moved", move(1, 0, 2), "messages.1.content.2: The block is bound"),
    (
        "a thought in another's place",
        lambda body: at("messages", 3, "content", 0, value=body["messages"][1]["content"][0])(body),
        "messages.3.content.0: The block is bound",
    ),
]


def _rename(body: Any, name: str) -> None:
    body["messages"][1]["content"][2]["id"] = name
    body["messages"][2]["content"][0]["tool_use_id"] = name


@pytest.mark.parametrize(("change", "told"), [rule[1:] for rule in RULES], ids=[rule[0] for rule in RULES])
def test_i22_o10_o11_each_broken_rule_is_refused(
    led: tuple[ProviderFake, dict[str, Any]], change: Change, told: str
) -> None:
    """Every change of a right conversation that breaks one rule is refused with that rule's words and place."""
    fake, right = led
    assert rules.check_request(right, fake.seal) is None
    body = copy.deepcopy(right)
    change(body)
    caught = refusal(fake, body)
    assert isinstance(caught, anthropic.BadRequestError)
    assert caught.type == "invalid_request_error"
    assert told in str(caught)


ALLOWED: list[tuple[str, Change]] = [
    (
        "cache marks moved",
        lambda body: (body["system"][0].pop("cache_control"), _mark(body["messages"][2]["content"][1])),
    ),
    ("fields that are null left out", lambda body: [b.pop("citations", 0) for b in body["messages"][1]["content"]]),
    ("a text as a list of one", at("messages", 0, "content", value=[{"type": "text", "text": "Look at ä and b."}])),
    ("words behind the results", lambda body: (body["messages"].__delitem__(slice(5, 7)), add(4, 1, TEXT)(body))),
    ("a blank text beside another", lambda body: body["messages"][6].update(content=[TEXT, {**TEXT, "text": " "}])),
    (
        "a forced tool while thinking adaptively",
        lambda body: body.update(thinking={"type": "adaptive"}, tool_choice={"type": "any"}),
    ),
    ("two user messages in a row", insert(7, {"role": "user", "content": "x"})),
    ("a system message behind the user's", insert(7, {"role": "system", "content": "x"})),
    ("all thinking stripped behind a cut", lambda body: _strip(body, 3)),
    ("thinking by hand", lambda body: body.update(BY_HAND)),
    ("thinking by hand in an open loop", lambda body: body.update(BY_HAND, messages=body["messages"][:5])),
    ("the newest words alone", at("messages", slice(0, 6), value=...)),
]


def _mark(marked: Any) -> None:
    marked["cache_control"] = {"type": "ephemeral", "ttl": "1h"}


def _strip(body: Any, start: int) -> None:
    body["messages"] = body["messages"][:1] + body["messages"][start:]
    for message in body["messages"]:
        if message["role"] == "assistant":
            message["content"] = [b for b in message["content"] if not b["type"].endswith("thinking")]


@pytest.mark.parametrize("change", [rule[1] for rule in ALLOWED], ids=[rule[0] for rule in ALLOWED])
def test_o10_what_the_service_takes_is_not_refused(led: tuple[ProviderFake, dict[str, Any]], change: Change) -> None:
    """What carries no meaning may change, and thinking may be left out as a whole."""
    fake, right = led
    body = copy.deepcopy(right)
    change(body)
    # Inserted words stand behind every block here, so nothing is stale.
    assert rules.check_request(body, fake.seal) is None
    head = {"system": body["system"], "tools": body["tools"]}
    assert rules.check_messages(body["messages"], fake.seal, head) is None


def test_o10_stale_blocks_are_dropped_where_the_request_asks_for_it() -> None:
    """With `drop_block` on both endpoints: no refusal, the same count, and each dropped block is reported."""
    with ProviderFake("anthropic", [*SCRIPT, Answer(text="on", thinking="fresh"), Answer(text="done")]) as fake:
        body = conversation(fake)
        client = client_of(fake)
        body["messages"] = body["messages"][:1] + body["messages"][3:]
        binding: Any = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
        asked = {**body, "thinking": binding, "betas": [rules.BINDING_BETA]}
        message = client.beta.messages.create(**asked)
        assert message.input_transformations is not None
        dropped = [getattr(told, "path", "") for told in message.input_transformations]
        assert dropped == ["messages.1.content.0", "messages.3.content.0"]
        del asked["max_tokens"]
        assert client.beta.messages.count_tokens(**asked).input_tokens == message.usage.input_tokens
        del asked["thinking"]
        assert "bound to a different" in str(refusal(fake, {**body, "max_tokens": 99}))
        # The fresh block stands behind what was sent, the stale blocks included, and only there.
        body["messages"] += [
            {"role": "assistant", "content": [b.to_dict() for b in message.content]},
            {"role": "user", "content": "more"},
        ]
        again = client.beta.messages.create(**body, thinking=binding, betas=[rules.BINDING_BETA])
        assert [getattr(told, "path", "") for told in again.input_transformations or ()] == dropped


@pytest.mark.parametrize(
    ("thinking", "headers", "told"),
    [
        ({"type": "adaptive", "block_binding": {}}, {}, "thinking.block_binding: Extra inputs"),
        ({"type": "enabled", "budget_tokens": 2_000, "block_binding": {}}, BINDING, "only with adaptive"),
        ({"type": "adaptive", "block_binding": {"x": 1}}, BINDING, "prefix_mismatch_behavior"),
        (
            {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "keep"}},
            BINDING,
            "prefix_mismatch_behavior",
        ),
    ],
)
def test_block_binding_needs_its_header_and_its_words(
    led: tuple[ProviderFake, dict[str, Any]], thinking: Any, headers: dict[str, str], told: str
) -> None:
    """Controls of the binding without the beta header, or in other words, are refused."""
    caught = refusal(led[0], {**led[1], "max_tokens": 9_000, "thinking": thinking}, headers=headers)
    assert told in str(caught)


def test_counts_what_it_bills_and_streams_what_it_answers() -> None:
    """The count endpoint, `usage` and the message that a stream comes to tell one story, refusals and cuts too."""
    answers = [*SCRIPT, Answer(refusal="Policy."), Answer(text="a text that was", ending="length")]
    with ProviderFake("anthropic", [line for answer in answers for line in (answer, answer)]) as fake:
        client = client_of(fake)
        asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "漢字"}], "tools": TOOLS}
        counted = client.messages.count_tokens(**asked).input_tokens
        for answer in answers:
            whole = client.messages.create(**asked, max_tokens=99)
            assert whole.usage.input_tokens == counted
            with client.messages.stream(**asked, max_tokens=99) as stream:
                streamed = stream.get_final_message()
            assert streamed.usage.input_tokens == counted
            assert streamed.usage.output_tokens == whole.usage.output_tokens
            assert streamed.stop_reason == whole.stop_reason
            assert [b.type for b in streamed.content] == [b.type for b in whole.content]
            assert "".join(b.text for b in streamed.content if b.type == "text") == answer.text
            made = [(b.name, b.input) for b in streamed.content if b.type == "tool_use"]
            assert made == [(call.name, call.arguments) for call in answer.calls]
            # What was put together from the deltas is sealed as what came at once.
            content = [
                {key: value for key, value in b.to_dict().items() if key != "parsed_output"} for b in streamed.content
            ]
            if content and content[-1]["type"] == "text":
                follow = [
                    *asked["messages"],
                    {"role": "assistant", "content": content},
                    {"role": "user", "content": "x"},
                ]
                assert rules.check_messages(follow, fake.seal, {"tools": TOOLS}) is None
        assert [whole.stop_reason] == ["max_tokens"]
        assert fake.refused == ()


@pytest.mark.parametrize("field", [("max_tokens", 9), ("stream", False), ("metadata", {}), ("stop_sequences", [])])
def test_count_bodies_have_their_own_fields(led: tuple[ProviderFake, dict[str, Any]], field: tuple[str, Any]) -> None:
    """A field of generation that the count endpoint does not know is refused there, and so is what it cannot count."""
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], field[0]: field[1]}
    assert "Extra inputs" in str(refusal(led[0], body, "/v1/messages/count_tokens"))


def test_count_refuses_media_to_be_fetched_and_stale_thinking(led: tuple[ProviderFake, dict[str, Any]]) -> None:
    """A URL cannot be counted, and the count endpoint checks thinking as generation does."""
    fake, right = led
    counted = {key: copy.deepcopy(value) for key, value in right.items() if key != "max_tokens"}
    remote = {**counted, "messages": [{"role": "user", "content": [IMAGE]}]}
    assert rules.check_request({**remote, "max_tokens": 9}) is None
    assert "cannot be counted" in str(refusal(fake, remote, "/v1/messages/count_tokens"))
    counted["messages"] = counted["messages"][:1] + counted["messages"][3:]
    assert "bound to a different" in str(refusal(fake, counted, "/v1/messages/count_tokens"))


def test_headers_that_the_service_demands() -> None:
    """Without a key 401, without a version 400."""
    with ProviderFake("anthropic") as fake:
        for headers, status, kind in (
            ({}, 401, "authentication_error"),
            ({"authorization": "Bearer"}, 401, "authentication_error"),
            ({"x-api-key": "k"}, 400, "invalid_request_error"),
        ):
            response = httpx2.post(f"{fake.base_url}/v1/messages", headers=headers, json={}, verify=False)
            assert (response.status_code, response.json()["error"]["type"]) == (status, kind)


def test_seals_of_another_secret_are_foreign(led: tuple[ProviderFake, dict[str, Any]]) -> None:
    """Fakes with one secret accept each other's blocks, as after a restart; others do not."""
    _, right = led
    assert rules.check_request(right, Seal(b"another")) is not None
    with ProviderFake("anthropic", [Answer(text="on")]) as restarted:
        client_of(restarted).messages.create(**right)
        assert restarted.refused == ()
