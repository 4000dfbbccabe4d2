"""Field cases O-01 to O-09, trimming and pairing: each with its input, through `Conversation`, on every store."""

from __future__ import annotations

import json

import pytest
from tests.faces.places import (
    PLACES,
    SHARED,
    Place,
    calling,
    chat,
    dump,
    lasting,
    output,
    reply,
    said,
    seen,
    short,
    user,
)

from minutebook.conversation import Conversation
from minutebook.errors import DecisionHistoryLimitExceeded, PairingViolation
from minutebook.model.bounds import WindowLimits


def upto(messages):
    return WindowLimits(max_messages=messages, low_water=1)


WEATHER = [
    {"role": "system", "content": "be brief"},
    user("weather in Oslo?"),
    calling("C1", name="weather"),
    output("C1"),
    said("cold"),
    user("and Bergen?"),
    calling("C2", name="weather"),
    output("C2"),
    said("wet"),
    user("thanks"),
]


@lasting
async def test_o01_a_window_opens_with_a_user_message_at_every_limit(place):
    """At limits 9 to 1: the first item is the user's, every call has its result, or the limit error is raised."""
    conversation = chat(place.open())
    await conversation.append(WEATHER)
    whole = short(WEATHER[1:])
    expected = {
        9: whole,
        8: [whole[0], *whole[3:]],
        7: [whole[0], *whole[3:]],
        6: whole[4:],
        5: whole[4:],
        4: [whole[4], *whole[7:]],
        3: [whole[4], *whole[7:]],
    }
    expected[8] = [whole[0], whole[3], *whole[4:]]
    for limit, items in expected.items():
        assert await seen(conversation, upto(limit)) == items, limit
    for limit in (2, 1):
        with pytest.raises(DecisionHistoryLimitExceeded):
            await conversation.window(upto(limit))


@lasting
async def test_o02_only_whole_oldest_exchanges_leave_never_one_from_the_middle(place):
    """One message too many: the oldest step leaves with its result."""
    conversation = chat(place.open())
    await conversation.append([user("1"), calling("C1"), output("C1"), said("one"), user("2"), said("two"), user("3")])
    assert await seen(conversation, upto(6)) == ["U 1", "A one", "U 2", "A two", "U 3"]
    assert await seen(conversation, upto(4)) == ["U 2", "A two", "U 3"]


@lasting
async def test_o03_one_request_with_many_steps_is_trimmed_inside_its_turn(place):
    """The opening request and the newest step always stay; a limit below both is refused."""
    conversation = chat(place.open())
    async with conversation.turn("review change 17") as turn:
        for number in (1, 2, 3):
            (call,) = await turn.respond(reply(calling(f"C{number}")))
            await turn.result(call, "diff")
        assert short(await turn.window(upto(5))) == ["U review change 17", "A{C2}", "R C2", "A{C3}", "R C3"]
        assert short(await turn.window(upto(3))) == ["U review change 17", "A{C3}", "R C3"]
        with pytest.raises(DecisionHistoryLimitExceeded):
            await turn.window(upto(2))


@lasting
async def test_o04_a_history_far_below_the_limit_comes_back_unchanged(place):
    """The trailing result is there; two windows are byte-identical."""
    conversation = chat(place.open())
    messages = [user("sum 2 and 3"), calling("C1", name="add"), output("C1", "5")]
    await conversation.append([{"role": "system", "content": "s"}, *messages])
    window = await conversation.window()
    assert window.messages == messages
    assert (await chat(place.open()).window()).json == window.json


@lasting
async def test_o05_a_newest_result_larger_than_the_limit_is_refused_and_kept(place):
    """The error says limit, size and how many items must stay, without content; the record holds the result."""
    store = place.open()
    conversation = chat(store, limits=WindowLimits(max_bytes=2_000))
    async with conversation.turn("summarise the log") as turn:
        (call,) = await turn.respond(reply(calling("C1", name="read_log")))
        await turn.result(call, "secret " * 2_000)
        for _ in range(2):
            with pytest.raises(DecisionHistoryLimitExceeded) as caught:
                await turn.window()
        assert (caught.value.max_bytes, caught.value.mandatory, caught.value.messages) == (2_000, 1, 3)
        assert caught.value.bytes > 14_000
        assert "secret" not in str(caught.value)
        entries = [entry async for entry in store.entries(store.key("c"))]
        assert b"secret" in entries[-1].payload
        await turn.respond(reply(said("too large")))


@lasting
async def test_o06_items_are_kept_whole_or_leave_whole(place):
    """At every limit each item equals the record's: type, id, status and value."""
    conversation = chat(place.open())
    record = []
    for number in range(4):
        rows = json.dumps({"status": "ok", "rows": [1, number]})
        record += [user(f"u{number}"), calling(f"C{number}"), output(f"C{number}", rows), said(f"a{number}")]
    await conversation.append(record)
    for limit in range(2, 17):
        assert all(message in record for message in await conversation.window(upto(limit)))


def test_o07_parallel_results_are_shown_in_call_order_in_both_runs(tmp_path):
    """The record keeps the arrival; windows of both runs are byte-identical."""
    windows = []
    for kind in (*PLACES, *SHARED):
        for order in ((0, 1), (1, 0)):
            directory = tmp_path / f"{kind}{order[0]}"
            directory.mkdir(mode=0o700)

            @lasting
            async def run(place, order=order):
                store = place.open()
                async with chat(store).turn("go") as turn:
                    calls = await turn.respond(reply(calling("C1", "C2")))
                    for position in order:
                        await turn.result(calls[position], f"result {position}")
                    windows.append((await turn.window()).json)
                    await turn.respond(reply(said("ok")))
                entries = [entry async for entry in store.entries(store.key("c"))]
                assert [entry.call for entry in entries[2:4]] == list(order)

            run(Place(kind, directory))
    assert len(set(windows)) == 1
    assert short(json.loads(windows[0]))[-2:] == ["R C1", "R C2"]


@lasting
async def test_o08_what_is_said_while_calls_wait_is_shown_after_their_results(place):
    """With one open call, and between the results of two; the record keeps the order of arrival."""
    store = place.open()
    async with chat(store).turn("build") as turn:
        (call,) = await turn.respond(reply(calling("C1")))
        await turn.say("by the way, use port 8081")
        with pytest.raises(PairingViolation, match=r"1 call\(s\) wait"):
            await turn.window()
        await turn.result(call, "built")
        assert short(await turn.window())[1:] == ["A{C1}", "R C1", "U by the way, use port 8081"]
        first, second = await turn.respond(reply(calling("C2", "C3")))
        await turn.result(second, "x")
        await turn.say("and hurry")
        await turn.result(first, "y")
        assert short(await turn.window())[4:] == ["A{C2, C3}", "R C2", "R C3", "U and hurry"]
        await turn.respond(reply(said("ok")))
    kinds = [entry.kind.name async for entry in store.entries(store.key("c"))]
    assert kinds[:4] == ["INPUT", "RESPONSE", "INJECTION", "RESULT"]


@lasting
async def test_o09_a_provider_that_repeats_one_call_id_for_twenty_turns(place):
    """Twenty results in the record, each answered once; in the window the ids differ and agree."""
    store = place.open()
    conversation = chat(store)
    for number in range(20):
        async with conversation.turn(f"cat {number}") as turn:
            (call,) = await turn.respond(reply(calling("call_0", name="ls")))
            await turn.result(call, f"file {number}")
            await turn.window()
            await turn.respond(reply(said("hello")))
    entries = (await dump(store))[1]
    assert sum(entry.kind.name == "RESULT" for entry in entries) == 20
    messages = (await conversation.window()).messages
    made = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    answered = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    assert made == answered
    assert len(set(made)) == 20
    assert [m["content"] for m in messages if m["role"] == "tool"] == [f"file {n}" for n in range(20)]


@lasting
async def test_o09_results_without_any_id_find_their_calls_by_order_and_name(place):
    """A format whose ids may be missing: two calls of one name, answered in order."""
    store = place.open()
    conversation = Conversation(store, "g", format="gemini")
    parts = [{"functionCall": {"name": "look", "args": {"n": n}}} for n in range(2)]
    async with conversation.turn("go") as turn:
        calls = await turn.respond({"candidates": [{"content": {"role": "model", "parts": parts}}]})
        for call in reversed(calls):
            await turn.result(call, call.position)
        window = (await turn.window()).messages
        assert [part["functionResponse"]["response"]["output"] for part in window[-1]["parts"]] == [0, 1]
        await turn.respond({"candidates": [{"content": {"role": "model", "parts": [{"text": "ok"}]}}]})
