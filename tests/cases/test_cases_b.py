"""Field case O-12: the same invocation with another model, provider or interface, and never a silent mixture."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.faces.strict import KINDS, REQUEST, client_of, generated, messages_of, provider_of
from tests.policy.histories import SHAPES

from minutebook import WindowLimits, sync
from minutebook.errors import (
    DecisionHistoryConflict,
    DecisionHistoryLimitExceeded,
    InvalidMessage,
    MinutebookError,
    PairingViolation,
)
from minutebook.model.decisions import Observation
from minutebook.providers.chat import CHAT_WIRE
from minutebook.testing import Answer, FunctionCall, ProviderFake
from minutebook.testing.fakes.openai_chat import check_messages

ODD = "functions.search:0|a"
"""A call id that one provider made and another would refuse."""

PAIRS = list(itertools.permutations(KINDS, 2))


def first_step(name: str, store: Any, **options: Any) -> tuple[Any, list[dict[str, Any]]]:
    """Take the first step of the invocation, which calls under an odd id; the decision, and what was shown."""
    id_ = ODD if name.startswith("openai") else ""
    answer = Answer(text="I look.", calls=(FunctionCall("look", {"path": "a"}, id_),), thinking="Hm")
    with ProviderFake(name, [answer]) as fake:
        client = client_of(fake, name)
        history = sync.HistoryOptions(store=store)
        decision = provider_of(client, name, "native", history=history, count=False, **options).decide(REQUEST)
        client["client"].close()
        assert fake.refused == ()
        return decision, messages_of(generated(fake)[-1].json)


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=["-".join(pair) for pair in PAIRS])
def test_o12_d05_another_provider_has_a_conversation_of_its_own(one: str, other: str, tmp_path: Path) -> None:
    """O-12, D5: nothing of the first provider's ids and opaque data reaches the second; its record stays as it was."""
    tmp_path.chmod(0o700)
    with sync.SQLiteStore(tmp_path / "book.sqlite", namespace="n") as store:
        decision, _ = first_step(one, store)
        (listing,) = store.list()
        before = list(store.entries(listing.key))
        _, shown = first_step(other, store)
        assert len(shown) == 1
        assert REQUEST.task in json.dumps(shown)
        assert ODD not in json.dumps(shown)
        assert list(store.entries(listing.key)) == before
        assert len(store.list()) == 2
        assert decision.calls[0].reference is not None


@pytest.mark.parametrize("name", list(KINDS))
@pytest.mark.parametrize("changed", [{"model": "m2"}, {"decision_interface": "structured"}], ids=["model", "interface"])
def test_o12_d05_another_model_or_interface_starts_anew_and_says_so(name: str, changed: dict[str, str]) -> None:
    """O-12, D25: an observation of another conversation is not passed off as one of this; the refusal says why."""
    store = sync.MemoryStore(namespace="n")
    decision, _ = first_step(name, store)
    seen = Observation(capability="look", arguments={"path": "a"}, value="x", reference=decision.calls[0].reference)
    with ProviderFake(name, []) as fake:
        client = client_of(fake, name)
        history = sync.HistoryOptions(store=store)
        options = {"interface": changed.get("decision_interface", "native"), "model": changed.get("model", "m")}
        provider = provider_of(client, name, history=history, count=False, **options)
        with pytest.raises(MinutebookError, match="does not exist or has expired"):
            provider.decide(msgspec.structs.replace(REQUEST, observations=(seen,)))
        assert fake.requests == ()
        client["client"].close()
    assert len(store.list()) == 1


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=["-".join(pair) for pair in PAIRS])
def test_o12_a_conversation_is_never_read_written_or_imported_in_another_format(
    one: str, other: str, tmp_path: Path
) -> None:
    """O-12, C2: opened in another format it is refused by name, and the record is not touched."""
    tmp_path.chmod(0o700)
    store = sync.MemoryStore(namespace="n")
    right = sync.Conversation(store, "c", format=one)
    with right.turn(SHAPES[one].user("hello")) as turn:
        turn.respond(SHAPES[one].response("hi", [])[0])
    before = list(store.entries(right.key))
    wrong = sync.Conversation(store, "c", format=other)
    for use in (wrong.window, wrong.last, wrong.open_calls, lambda: wrong.append([SHAPES[other].user("x")])):
        with pytest.raises(DecisionHistoryConflict):
            use()
    with pytest.raises(DecisionHistoryConflict), wrong.turn(SHAPES[other].user("x")):
        pass
    file = tmp_path / "talk.jsonl"
    right.export(file)
    with pytest.raises(MinutebookError):
        sync.Conversation(store, "copy", format=other).import_(file)
    assert list(store.entries(right.key)) == before
    assert [listing.key.id for listing in store.list()] == ["c"]


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=["-".join(pair) for pair in PAIRS])
def test_o12_messages_of_another_format_are_refused_and_not_reinterpreted(one: str, other: str) -> None:
    """O-12: a transcript with a call and its result is of its own format alone, whatever the two have in common."""
    shape = SHAPES[one]
    calls = [(ODD, "look")]
    asked = [shape.user("q"), *shape.response("", calls)[1]]
    messages = [*asked, *shape.results(calls, ["x"]), *shape.response("a", [])[1]]
    store = sync.MemoryStore(namespace="n")
    sync.Conversation(store, "right", format=one).append(messages)
    wrong = sync.Conversation(store, "wrong", format=other)
    with pytest.raises((InvalidMessage, PairingViolation)):
        wrong.append(messages)
    assert [listing.key.id for listing in store.list()] == ["right"]


FUNCTION: dict[str, Any] = {"name": "look", "arguments": '{"path": 1e2}'}
OTHERS: dict[str, dict[str, Any]] = {
    "a long id": {"id": "x" * 41, "type": "function", "function": FUNCTION},
    "no id": {"type": "function", "function": FUNCTION},
    "no type": {"id": "c1", "function": FUNCTION},
    "arguments as JSON": {"id": "c1", "type": "function", "function": {**FUNCTION, "arguments": {"path": "ü"}}},
    "no arguments": {"id": "c1", "type": "function", "function": {"name": "look"}},
    "a custom tool without a type": {"id": "c1", "custom": {"name": "look", "input": "x"}},
}


@pytest.mark.parametrize("given", OTHERS.values(), ids=OTHERS)
def test_o12_d26_a_call_of_another_makers_server_goes_back_as_it_came(given: dict[str, Any]) -> None:
    """D26, C2: byte for byte to the server whose call it is, whatever OpenAI's own would take."""
    message = {"role": "assistant", "content": None, "tool_calls": [given]}
    body = json.dumps({"choices": [{"message": message}]})
    conversation = sync.Conversation(sync.MemoryStore(), "c", format="openai-chat")
    with conversation.turn("q") as turn:
        (made,) = turn.respond(body.encode())
        turn.result(made, "found")
        window = turn.window()
        turn.respond({"choices": [{"message": {"role": "assistant", "content": "a"}}]})
    assert json.dumps(message).encode() in window.json
    assert window.messages[2] == {"role": "tool", "tool_call_id": given.get("id", ""), "content": "found"}
    assert check_messages(window.messages) is not None
    assert len(conversation.window().json) == len(window.json) + len(b',{"role":"assistant","content":"a"}')
    # Control: the wire of a chat, which may go on at OpenAI's, sends each of them otherwise.
    sent = CHAT_WIRE.sendable(json.dumps(message).encode())
    assert sent != json.dumps(message).encode() or not CHAT_WIRE.id_form.fullmatch(made.id)


def test_o12_i26_a_window_that_is_refused_tells_what_it_needs_with_the_new_ids() -> None:
    """D8: an id that Anthropic refuses is sent as a longer one, and the number that is told counts that."""
    conversation = sync.Conversation(sync.MemoryStore(), "c", format="anthropic")
    use = {"type": "tool_use", "id": "a:0", "name": "look", "input": {}}
    with conversation.turn("q") as turn:
        (made,) = turn.respond({"role": "assistant", "content": [use]})
        turn.result(made, "found")
        window = turn.window()
        assert b"a:0" not in window.json
        with pytest.raises(DecisionHistoryLimitExceeded) as caught:
            turn.window(WindowLimits(max_bytes=len(window.json) - 1))
        assert caught.value.bytes == len(window.json)
        turn.respond({"role": "assistant", "content": [{"type": "text", "text": "a"}]})


@pytest.mark.parametrize("name", ["openai-chat", "openai-responses"])
@pytest.mark.parametrize("block", ["tool_use", "tool_result"])
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_o12_a_call_hidden_in_a_foreign_block_is_refused_with_its_place(name: str, block: str, role: str) -> None:
    """O-12: no pairing would find it there, and the provider would refuse each later request; other parts pass."""
    kind = {("openai-responses", "user"): "input_text", ("openai-responses", "assistant"): "output_text"}
    text = {"type": kind.get((name, role), "text"), "text": "x"}
    message = {"role": role, "content": [text, {"type": block, "id": "toolu_1", "name": "look", "input": {}}]}
    store = sync.MemoryStore(namespace="n")
    conversation = sync.Conversation(store, "c", format=name)
    with pytest.raises(InvalidMessage) as caught:
        conversation.append([{"role": "user", "content": "q"}, message])
    assert caught.value.path == "$[1].content[1]"
    assert store.list() == ()
    message["content"] = [text, {"type": "brand_new", "value": 1}]
    conversation.append([{"role": "user", "content": "q"}, message])
    assert conversation.window().messages[-1] == message


PROPOSED: dict[str, Any] = {
    "openai-chat": {"role": "assistant", "content": "I refund.", "tool_calls": [{"id": "c1", "function": FUNCTION}]},
    "openai-responses": [{"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}],
    "anthropic": {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I refund."},
            {"type": "tool_use", "id": "t1", "name": "look", "input": {}},
        ],
    },
    "gemini": {"role": "model", "parts": [{"text": "I refund."}, {"functionCall": {"name": "look", "args": {}}}]},
}
WITHOUT_WORDS = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "function": FUNCTION}]}


@pytest.mark.parametrize(("given", "other"), PAIRS, ids=["-".join(pair) for pair in PAIRS])
def test_o12_a_response_of_another_format_is_refused_and_its_call_not_left_out(given: str, other: str) -> None:
    """O-12: a text that both know is no reason to take the message, whose call would be in no record of calls."""
    proposals = [PROPOSED[given], *([WITHOUT_WORDS] if given == "openai-chat" else [])]
    conversation = sync.Conversation(sync.MemoryStore(namespace="n"), "c", format=other)
    for proposal in proposals:
        with pytest.raises(InvalidMessage), conversation.turn("q") as turn:
            turn.respond(proposal)
        with pytest.raises(InvalidMessage):
            conversation.append([SHAPES[other].user("q"), *(proposal if isinstance(proposal, list) else [proposal])])


IMAGE = "https://example.org/a.png"
SHOWN: dict[str, list[tuple[dict[str, Any], str]]] = {
    "anthropic": [
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": IMAGE}}]}, "$[0].content[0]"),
        ({"role": "user", "content": [{"type": "input_text", "text": "q"}]}, "$[0].content[0]"),
        ({"role": "user", "parts": [{"text": "q"}]}, "$[0].parts"),
        ({"role": "tool", "tool_call_id": "c1", "content": "x"}, "$[0].tool_call_id"),
    ],
    "gemini": [
        ({"role": "user", "content": "q"}, "$[0].content"),
        ({"role": "user", "parts": [{"type": "text", "text": "q"}]}, "$[0].parts[0]"),
        ({"role": "user", "parts": [{"type": "image", "source": {"type": "url", "url": IMAGE}}]}, "$[0].parts[0]"),
        ({"role": "tool", "tool_call_id": "c1", "content": "x"}, "$[0].tool_call_id"),
    ],
    "openai-chat": [({"role": role, "parts": [{"text": "q"}]}, "$[0].parts") for role in ("user", "assistant")],
    "openai-responses": [({"role": role, "parts": [{"text": "q"}]}, "$[0].parts") for role in ("user", "assistant")],
}


@pytest.mark.parametrize(
    ("name", "message", "path"), [(name, *each) for name, messages in SHOWN.items() for each in messages]
)
def test_o12_what_only_another_format_has_is_refused_with_its_place_and_that_formats_name(
    name: str, message: dict[str, Any], path: str
) -> None:
    """O-12: once recorded, every later request with it would be refused by the provider."""
    conversation = sync.Conversation(sync.MemoryStore(namespace="n"), "c", format=name)
    with pytest.raises(InvalidMessage, match="convert the message before it is recorded") as caught:
        conversation.append([message])
    assert caught.value.path == path
    assert list(conversation.entries()) == []


EMPTY: list[tuple[str, dict[str, Any]]] = [
    ("anthropic", {"role": "assistant", "content": [{"type": "text", "text": "a"}], "tool_calls": [], "refusal": ""}),
    ("gemini", {"role": "model", "parts": [{"text": "a"}], "content": None, "tool_calls": []}),
]


@pytest.mark.parametrize(("name", "answer"), EMPTY, ids=["anthropic", "gemini"])
def test_o12_an_empty_member_of_another_format_costs_no_answer(name: str, answer: dict[str, Any]) -> None:
    """O-12: a proxy may write every member that it knows; nothing stands there that would be lost."""
    conversation = sync.Conversation(sync.MemoryStore(namespace="n"), "c", format=name)
    with conversation.turn("q") as turn:
        turn.respond(answer)
    assert len(conversation.window()) == 2


HIDDEN: list[tuple[str, dict[str, Any], str]] = [
    ("anthropic", {"role": "assistant", "content": [{"type": "output_text", "text": "a"}]}, "$.content[0]"),
    ("anthropic", {"role": "assistant", "content": "a", "tool_calls": [{"id": "c1"}]}, "$.tool_calls"),
    ("gemini", {"parts": [{"type": "text", "text": "a"}]}, "$.parts[0]"),
    ("gemini", {"parts": [{"text": "a"}], "tool_calls": [{"id": "c1"}]}, "$.tool_calls"),
]


@pytest.mark.parametrize(("name", "answer", "path"), HIDDEN)
def test_o12_what_another_format_has_is_refused_in_a_response_too_and_told_once(
    name: str, answer: dict[str, Any], path: str
) -> None:
    """O-12: a response is judged where its list stands; the place is in the text once."""
    conversation = sync.Conversation(sync.MemoryStore(namespace="n"), "c", format=name)
    with pytest.raises(InvalidMessage) as caught, conversation.turn("q") as turn:
        turn.respond(answer)
    assert caught.value.path == path
    assert str(caught.value).count(path) == 1
