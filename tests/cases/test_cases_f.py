"""Field cases O-28 to O-30, text and values: through `Conversation`, the same on every store."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from tests.faces.places import calling, chat, dump, lasting, output, reply, said, seen, tell, user

from minutebook.errors import InvalidId, InvalidMessage, InvalidValue

HALF = json.loads('"\\ud83d"')


def deep(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


def cyclic():
    value = []
    value.append(value)
    return value


async def refused(store, error, conversation, value):
    """See that a value is refused wherever it is given, and leaves no trace and no lock."""
    before = await dump(store)
    with pytest.raises(error):
        await conversation.append([user("x"), calling("C1"), output("C1", [{"type": "text", "text": value}])])
    with pytest.raises(error):
        conversation.turn([{"role": "user", "content": "x", "metadata": value}])
    assert await dump(store) == before
    async with conversation.turn("tool") as turn:
        (call,) = await turn.respond(reply(calling("C1")))
        with pytest.raises(error):
            await turn.result(call, {"deep": [value]})
        await turn.result(call, "fine")
        await turn.respond(reply(said("ok")))
    assert not (await store.header(store.key("c"))).token


@lasting
async def test_o28_half_a_character_is_refused_where_it_comes_in(place):
    """Text, argument key, metadata key, title, result: refused by name; every window is strict UTF-8 JSON."""
    store = place.open()
    conversation = chat(store)
    await tell(conversation, "before")
    await refused(store, InvalidValue, conversation, HALF)
    await refused(store, InvalidValue, conversation, {HALF: 1})
    with pytest.raises(InvalidValue):
        conversation.turn("x" * 30_000 + HALF)
    with pytest.raises(InvalidValue):
        async with conversation.turn("q") as turn:
            await turn.respond(b'{"choices":[{"message":{"role":"assistant","content":"\\ud83d"}}]}')
    with pytest.raises(InvalidId):
        chat(store, "title" + HALF)
    with pytest.raises(InvalidId):
        conversation.turn("x", id=HALF)
    await tell(conversation, "whole \U0001f600")
    (await conversation.window()).json.decode("utf-8", "strict")
    assert (await seen(conversation))[-2] == "U whole \U0001f600"


@lasting
async def test_o29_nul_is_kept_in_text_and_refused_in_ids(place):
    """Input, result, arguments, metadata: equal after reopening, on every store."""
    conversation = chat(place.open())
    text = "what is the \x00 weather"
    message = {"role": "user", "content": text, "metadata": {"a\x00b": "\x00"}}
    async with conversation.turn(message) as turn:
        made = calling("C1")
        made["tool_calls"][0]["function"]["arguments"] = '{"q":"\x00"}'
        (call,) = await turn.respond(reply(made))
        assert call.arguments == '{"q":"\x00"}'
        await turn.result(call, text)
        await turn.respond(reply(said(text)))
    window = (await chat(place.open()).window()).messages
    assert window == [message, made, output("C1", text), said(text)]
    with pytest.raises(InvalidId):
        chat(place.open(), "a\x00b")


@pytest.mark.parametrize("value", [-0.0, 2**53 + 1, 2**63, 2**64 + 1, -(2**70), 1.0, True, 1e300, 0.1], ids=repr)
def test_o30_what_json_holds_comes_back_exactly(place, value):
    """Type and value: 1 is not 1.0 is not True; integers past 64 bits are whole."""

    @lasting
    async def body(place):
        message = {"role": "user", "content": "x", "approval": {"value": value}}
        await tell(chat(place.open()), message)
        window = (await chat(place.open()).window()).messages
        back = window[0]["approval"]["value"]
        assert (type(back), repr(back)) == (type(value), repr(value))

    body(place)


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        -float("inf"),
        datetime(2026, 11, 29, tzinfo=UTC),
        Decimal("1.5"),
        b"bytes",
        {1, 2},
        deep(2_000),
        cyclic(),
        {1: "a", "1": "b"},
    ],
    ids=["nan", "inf", "-inf", "datetime", "decimal", "bytes", "set", "deep", "cyclic", "keys"],
)
def test_o30_what_json_cannot_hold_is_refused_without_a_trace(place, value):
    """Decided at append, with the path to the value; nothing is rounded, turned into text or merged."""

    @lasting
    async def body(place):
        store = place.open()
        conversation = chat(store)
        await tell(conversation, "before")
        await refused(store, (InvalidValue, InvalidMessage), conversation, value)

    body(place)


def test_o30_the_path_to_the_value_is_named(place):
    """The caller finds the place."""
    with pytest.raises(InvalidValue) as caught:
        chat(place.open()).turn([{"role": "user", "content": "x", "meta": [1, {"when": float("nan")}]}])
    assert caught.value.path == "$[0].meta[1].*"
