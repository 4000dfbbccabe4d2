"""Field cases O-13, O-15, O-17, O-18, the shape of messages: each through `Conversation`, on every store."""

# ruff: noqa: PT012 - what fails here is a turn, which is a block

from __future__ import annotations

import asyncio

import pytest
from tests.faces.places import calling, chat, dump, lasting, reply, said, seen, short, tell, user

from minutebook.conversation import Conversation
from minutebook.errors import (
    DecisionHistoryConflict,
    DecisionHistoryLimitExceeded,
    InvalidMessage,
    PairingViolation,
)
from minutebook.model.bounds import WindowLimits
from minutebook.model.entries import Kind


@pytest.mark.parametrize("name", ["openai-chat", "anthropic", "gemini", "openai-responses"])
def test_o13_a_turn_stopped_before_it_said_anything_is_in_no_window(place, name):
    """An empty answer has nothing to send; an aborted one is marked; the next message works."""
    empty = {
        "openai-chat": {"choices": [{"message": {"role": "assistant", "content": ""}}]},
        "anthropic": {"role": "assistant", "content": []},
        "gemini": {"candidates": [{"content": {}}]},
        "openai-responses": {"output": []},
    }[name]

    @lasting
    async def body(place):
        store = place.open()
        conversation = Conversation(store, "c", format=name)
        for text in ("one", "two", "three"):
            with pytest.raises(asyncio.CancelledError):
                async with conversation.turn(text) as turn:
                    await turn.respond(empty)
                    raise asyncio.CancelledError
        async with conversation.turn("kept") as turn:
            await turn.respond(empty)
        async with conversation.turn("four") as turn:
            window = await turn.window()
            assert [m["role"] for m in window] == ["user", "user"]
            assert len(window) == window.sent.messages
            await turn.respond(empty)
        assert sum([entry.kind is Kind.RESPONSE async for entry in store.entries(store.key("c"))]) == 5

    body(place)


@lasting
async def test_o15_v17_an_exchange_with_an_open_call_is_neither_cut_nor_shown(place):
    """Two of three results have arrived: there is no window, at any limit; once whole the exchange is there whole."""
    conversation = chat(place.open())
    for number in range(5):
        await tell(conversation, f"q{number}")
    async with conversation.turn("three") as turn:
        calls = await turn.respond(reply(calling("C1", "C2", "C3")))
        await turn.result(calls[0], "1")
        await turn.result(calls[1], "2")
        for limit in range(3, 12):
            with pytest.raises(PairingViolation, match=r"1 call\(s\) wait"):
                await turn.window(WindowLimits(max_messages=limit))
            shown = await seen(conversation, WindowLimits(max_messages=limit))
            assert not any(item.startswith(("A{", "R")) for item in shown)
        await turn.result(calls[2], "3")
        assert short(await turn.window(WindowLimits(max_messages=5))) == [
            "U three",
            "A{C1, C2, C3}",
            "R C1",
            "R C2",
            "R C3",
        ]
        await turn.respond(reply(said("ok")))


@pytest.mark.parametrize("role", ["system", "developer"])
def test_o17_instructions_are_no_history(place, role):
    """Kept at the head of the record, in no window, never in the way: target 3 and target 1 are legal or refused."""

    @lasting
    async def body(place):
        store = place.open()
        conversation = chat(store)
        turns = [message for n in range(6) for message in (user(f"u{n}"), said(f"a{n}"))]
        await conversation.append([{"role": role, "content": "be kind"}, *turns])
        assert await seen(conversation, WindowLimits(max_messages=3, low_water=1)) == ["U u5", "A a5"]
        with pytest.raises(DecisionHistoryLimitExceeded):
            await conversation.window(WindowLimits(max_messages=1))
        window = await conversation.window()
        assert len(window) == 12
        assert not window.sent.trimmed
        assert (await dump(store))[1][0].kind is Kind.INSTRUCTIONS
        with pytest.raises(InvalidMessage):
            await conversation.append([{"role": role, "content": "again"}])

    body(place)


@lasting
async def test_o18_a_client_that_sends_everything_each_time(place):
    """After three turns six items, each once in the window; a contradiction stores nothing; equal sentences stay."""
    store = place.open()
    conversation = chat(store)
    client = []
    for number in (1, 2, 3):
        client.append(user(f"U{number}"))
        await conversation.append(client, whole=True)
        async with conversation.turn() as turn:
            assert short(await turn.window()) == short(client)
            await turn.respond(reply(said(f"A{number}")))
        client.append(said(f"A{number}"))
    assert len((await dump(store))[1]) == 6
    with pytest.raises(DecisionHistoryConflict):
        await conversation.append([user("U1"), said("changed"), user("U4")], whole=True)
    assert len((await dump(store))[1]) == 6
    twice = chat(store, "twice")
    go = [user("go"), said("gone"), user("go")]
    await twice.append(go, whole=True)
    await twice.append(go, whole=True)
    assert await seen(twice) == ["U go", "A gone", "U go"]
