"""Field cases O-21 and O-22, and bad input 53: summaries through the four providers, and what hosts do wrong."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.faces.places import Place, lasting
from tests.faces.strict import KINDS, Host, Story, first_words, generated, messages_of
from tests.faces.test_summaries import LIMITS, ROOM, entries_of, take_turn, talk, texts_of

from minutebook.conversation import Conversation
from minutebook.errors import DecisionHistoryBusy, DecisionHistorySummaryInvalid
from minutebook.model.entries import Kind
from minutebook.testing.fakes import Failure


@pytest.mark.parametrize("name", list(KINDS))
@pytest.mark.parametrize("interface", ["native", "structured"])
def test_o21_o22_many_summaries_in_one_invocation_never_nest_and_never_hide_the_task(name: str, interface: str) -> None:
    """O-21, O-22: one callback a step at most, each for what newly left; the request shown is the user's own."""
    host = Host("They spoke of </summary>")
    story = Story(name, interface, host=host, max_messages=9)
    assert len(host.given) > 3
    assert [previous for previous, _ in host.given[:1]] == [None]
    for previous, turns in host.given:
        told = json.dumps(turns)
        assert turns
        assert "They spoke of" not in told
        assert "<summary " not in told
        assert (previous or "").count("They spoke of") == (previous is not None)
    for request in generated(story.fake):
        messages = messages_of(request.json)
        words = first_words(messages[0])
        assert words[-1].startswith("Task ")
        assert json.dumps(messages).count("They spoke of") == len(words) - 1 <= 1
    story.close()


@pytest.mark.parametrize("name", list(KINDS))
def test_o21_a_summariser_that_always_fails_leaves_everything_readable(name: str, tmp_path: Path) -> None:
    """O-21 b: a typed error at each try, nothing sent; read, exported and deleted as before; goes on without it."""
    tmp_path.chmod(0o700)

    def full(**_: Any) -> str:
        raise OverflowError("the summariser's own window is too small")

    story = Story(name, "native")
    sent = len(story.fake.requests)
    refused = story.provider(host=full, max_messages=9)
    for _ in range(3):
        with pytest.raises(DecisionHistorySummaryInvalid) as caught:
            refused.decide(story.request)
        assert caught.value.problem == "raised"
    assert len(story.fake.requests) == sent
    key = refused.key(story.request)
    assert story.store.read(key) is not None
    assert story.store.export(key, tmp_path / "export.jsonl") > 20
    story.fails = Failure(status=500)
    assert story.ask(story.provider(max_messages=9))
    story.store.delete(key)
    assert story.store.read(key) is None
    story.close()


@lasting
async def test_bad_input_53_a_callback_that_enters_its_own_conversation_is_busy(place: Place) -> None:
    """Bad input 53: a turn, a write or a deletion from inside is refused by name, and nothing is changed by it."""
    store = place.open()
    plain = talk(store, host=None)
    for number in range(20):
        await take_turn(plain, number)
    before = await entries_of(plain)

    async def turns(**_: Any) -> str:
        async with plain.turn("from inside"):
            return "never"

    async def appends(**_: Any) -> str:
        await plain.append([{"role": "user", "content": "from inside"}])
        return "never"

    async def deletes(**_: Any) -> str:
        await store.delete(plain.key)
        return "never"

    async def reads(**_: Any) -> str:
        await store.read(plain.key)
        return "never"

    for callback in (turns, appends, deletes, reads):
        with pytest.raises(DecisionHistoryBusy):
            await take_turn(talk(store, host=callback), 20)
    after = await entries_of(plain)
    assert [entry.digest for entry in after[: len(before)]] == [entry.digest for entry in before]
    assert {entry.kind for entry in after[len(before) :]} <= {Kind.INPUT, Kind.ABANDONED}
    window = await take_turn(talk(store, host=Host()), 20)
    assert "question 20" in texts_of(window.messages[-1])


@lasting
async def test_bad_input_53_a_callback_may_look_at_its_own_conversation(place: Place) -> None:
    """Bad input 53: what only looks is no danger, and shows the record as it was before the step."""
    store = place.open()
    plain = talk(store, host=None)
    for number in range(20):
        await take_turn(plain, number)
    seen: list[int] = []

    async def looks(**_: Any) -> str:
        seen.append(sum("answer" in texts_of(exchange.messages) for exchange in await plain.last(None)))
        await plain.window()
        return "a summary"

    window = await take_turn(talk(store, host=looks), 20)
    assert seen == [20]
    assert "a summary" in texts_of(window.messages[0])


@lasting
async def test_bad_input_53_a_callback_that_swallows_its_cancellation_leaves_nothing_half(place: Place) -> None:
    """Bad input 53: a callback that swallows it and returns; the turn is there with its summary, or neither is."""
    store, begun = place.open(), asyncio.Event()
    plain = talk(store, host=None)
    for number in range(20):
        await take_turn(plain, number)

    async def stubborn(**_: Any) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "said all the same"
        return "never"

    waiting = asyncio.ensure_future(take_turn(talk(store, host=stubborn), 20))
    await begun.wait()
    waiting.cancel()
    await asyncio.wait([waiting])
    kinds = [entry.kind for entry in await entries_of(plain)]
    assert kinds.count(Kind.SUMMARY) == (not waiting.cancelled())
    await store.verify(plain.key)
    window = await take_turn(talk(store, host=Host()), 21)
    assert "question 21" in texts_of(window.messages[-1])


@lasting
async def test_bad_input_53_a_text_of_the_limit_is_taken_and_one_byte_more_is_not(place: Place) -> None:
    """Bad input 53: the limit is in UTF-8 bytes, exact, whatever the characters."""
    for character in ("x", "é", "漢", "🙂"):
        size = len(character.encode())
        name = f"c{size}"
        store = place.open()

        def made(text: str, name: str = name, store: Any = store) -> Conversation:
            return Conversation(
                store, name, format="openai-chat", limits=LIMITS, summarize=lambda **_: text, max_summary_bytes=ROOM
            )

        text = character * (ROOM // size)
        assert len(text.encode()) == ROOM
        for number in range(14):
            window = await take_turn(made(text), number)
        assert text in window.messages[0]["content"][0]["text"]
        with pytest.raises(DecisionHistorySummaryInvalid) as caught:
            await take_turns(made(text + "x"))
        assert caught.value.problem == "too_long"


async def take_turns(conversation: Conversation) -> None:
    """Go through turns until something has to leave the window, and further."""
    for number in range(14, 40):
        await take_turn(conversation, number)
