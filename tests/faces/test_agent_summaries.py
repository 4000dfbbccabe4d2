"""Face A, summaries beside `limits`: how long one may be, what it costs, and that none wedges a chat (A6, A7, D18)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.faces.test_agent import agent, echo, messages, noted, said, summaries, told, user
from tests.faces.test_agent_bounds import beyond

from minutebook import MemoryStore, WindowLimits
from minutebook.errors import (
    AgentDecisionProviderUnavailable,
    DecisionHistoryLimitExceeded,
    DecisionHistorySummaryInvalid,
    InvalidValue,
)
from minutebook.testing import Answer, ProviderFake
from minutebook.testing.fakes import Failure, Line, Received

TIGHT = WindowLimits(max_bytes=4096)
EAGER = {"enable_summarization": True, "summarization_threshold": 50}


def long_messages(count: int, size: int = 30) -> list[dict[str, Any]]:
    """Return a history of so many messages with so many bytes more than their place takes."""
    return [(said if n % 2 else user)(f"m{n} " + "x" * size) for n in range(count)]


def writing(text: str) -> Callable[[Received], Line]:
    """Return a script that answers, and writes the same text whenever it is asked for a summary."""

    def script(request: Received) -> Line:
        asked = request.json["messages"][0]["content"].startswith("You write the summary")
        return Answer(text=text) if asked else echo(request)

    return script


def failures(events: list[tuple[str, dict[str, Any]]]) -> list[str]:
    return [fields["error_code"] for name, fields in events if name == "SUMMARIZATION_FAILED"]


# --- how long a summary may be ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["s" * 9000, "s" * 4200, '"' * 2100], ids=["whole", "half", "half, once it is quoted"])
def test_a6_d18_a_summary_too_long_for_the_limits_is_none(text: str) -> None:
    """A6, D18: plain trimming takes its place, an event says so, and it is paid once in ten messages."""
    limits = WindowLimits(max_bytes=8192)
    with ProviderFake("openai-chat", writing(text)) as fake:

        async def story() -> None:
            each = agent(fake, limits=limits, enable_summarization=True, summarization_threshold=100)
            events = noted(each)
            await each.set_history(long_messages(20))
            for n in range(4):
                assert await each.chat(f"q{n}") == f"answer to q{n}"
            assert failures(events) == ["DecisionHistorySummaryInvalid"]
            assert len(summaries(fake)) == 1
            assert await each.summarize_history(keep_recent_count=0) is None
            assert await each.get_history_length() == 28

        told(story())
        assert beyond(fake.requests, limits) == []


def test_a6_d18_the_longest_summary_that_is_one_leaves_room_for_a_chat() -> None:
    """A6, D18: half of what a request holds, to the byte, and the chat goes on behind it."""
    with ProviderFake("openai-chat", echo) as fake:

        async def story() -> None:
            each = agent(fake, limits=TIGHT)
            with pytest.raises(DecisionHistorySummaryInvalid) as caught:
                await each.set_conversation_summary("x" * 5000)
            longest = caught.value.limit - (caught.value.size - 5000)
            assert longest > 1800
            for size in (longest + 1, 5000):
                state = {**await each.export_conversation_state(), "summary": "x" * size}
                with pytest.raises(DecisionHistorySummaryInvalid, match="limits="):
                    await each.import_conversation_state(state)
            await each.set_conversation_summary("x" * longest)
            assert await each.chat("q" * 1000) == "answer to " + "q" * 1000
            assert ("x" * longest).encode() in fake.requests[-1].body

        told(story())
        assert beyond(fake.requests, TIGHT) == []


def test_a6_a_summary_that_does_not_fit_beside_what_must_stay_is_none() -> None:
    """A6: it is short enough by itself, and plain trimming takes its place where the newest messages fill the rest."""
    with ProviderFake("openai-chat", writing("s" * 1800)) as fake:

        async def story() -> None:
            each = agent(fake, **EAGER, limits=TIGHT)
            events = noted(each)
            await each.set_history([*messages(20), user("u" * 1200), said("a" * 1200)])
            assert await each.chat("q") == "answer to q"
            assert failures(events) == ["DecisionHistoryLimitExceeded"]
            assert await each.get_conversation_summary() is None
            assert await each.chat("r") == "answer to r"
            assert len(summaries(fake)) == 1

        told(story())
        assert beyond(fake.requests, TIGHT) == []


def test_a2_a6_a_summary_that_leaves_no_room_for_a_context_is_none() -> None:
    """A2, A6: what is told for the newest message alone must stay too; beside a shorter one there is a summary."""
    with ProviderFake("openai-chat", writing("s" * 1500)) as fake:

        async def story() -> None:
            for told, failed, length in ((2500, ["DecisionHistoryLimitExceeded"], 22), (1200, [], 12)):
                each = agent(fake, **EAGER, limits=TIGHT)
                events = noted(each)
                await each.set_history(messages(20))
                assert await each.chat("q", "c" * told) == "answer to q"
                assert (failures(events), await each.get_history_length()) == (failed, length)
                assert ("c" * told).encode() in fake.requests[-1].body

        told(story())
        assert beyond(fake.requests, TIGHT) == []


@pytest.mark.parametrize("around", ["\n", "  \n\t"])
def test_a6_what_stands_around_a_models_summary_is_no_part_of_it(around: str) -> None:
    """A6: blanks that a model writes before or behind; they would be in every request from then on."""
    with ProviderFake("openai-chat", writing(f"{around}so far{around}")) as fake:

        async def story() -> None:
            each = agent(fake)
            await each.set_history(messages(12))
            assert await each.summarize_history() == "so far"
            await each.chat("now")
            assert b"[Previous conversation summary: so far]" in fake.requests[-1].body

        told(story())


def test_d8_the_refusal_counts_the_summary_and_what_it_advises_frees_the_chat() -> None:
    """D8, A6: a summary of another agent's, with wider limits; its bytes are told, and without it the chat goes on."""
    with ProviderFake("openai-chat", echo) as fake:

        async def story() -> None:
            store = MemoryStore()
            await agent(fake, store=store, conversation="c").set_conversation_summary("x" * 5000)
            each = agent(fake, store=store, conversation="c", limits=TIGHT)
            with pytest.raises(DecisionHistoryLimitExceeded, match="set_conversation_summary") as caught:
                await each.chat("q")
            assert 5000 < caught.value.summary_bytes < caught.value.bytes < 5400
            assert not fake.requests
            await each.set_conversation_summary(None)
            assert await each.chat("q") == "answer to q"

        told(story())


# --- what a summary costs --------------------------------------------------------------------------------------------


def test_a6_d18_one_chat_asks_for_a_summary_twice_at_most() -> None:
    """A6, D18: what two requests have no room for stays in the history whole, and the next chats' summaries tell it."""
    heard: list[str] = []

    def script(request: Received) -> Line:
        asked = request.json["messages"]
        if not asked[0]["content"].startswith("You write the summary"):
            return echo(request)
        heard.extend(message["content"] for message in summaries(fake)[-1]["messages"])
        return Answer(text=f"{len(heard)} messages. " + "s" * 1500)

    with ProviderFake("openai-chat", script) as fake:

        async def story() -> None:
            each = agent(fake, **EAGER, limits=TIGHT, max_history_messages=200)
            events = noted(each)
            history = long_messages(100)
            await each.set_history(history)
            for n in range(12):
                before = len(summaries(fake))
                await each.chat(f"q{n}")
                assert len(summaries(fake)) - before <= 2
                whole = [*(message["content"] for message in history), *(w for m in range(n + 1) for w in turn(m))]
                assert [*heard, *(message["content"] for message in await each.get_history())] == whole
            assert await each.get_history_length() <= 24
            assert failures(events) == []
            counts = [fields["summarized_count"] for name, fields in events if name == "HISTORY_SUMMARIZED"]
            assert sum(counts) == len(heard)

        told(story())
        assert beyond(fake.requests, TIGHT) == []


def turn(number: int) -> tuple[str, str]:
    return f"q{number}", f"answer to q{number}"


def test_a6_a_summary_whose_second_request_is_too_small_for_what_comes_next_tells_what_it_told() -> None:
    """A6: what the first request was paid for is kept; the message that no second one holds stays in the history."""
    with ProviderFake("openai-chat", writing("s" * 1900)) as fake:

        async def story() -> None:
            each = agent(fake, **EAGER, limits=TIGHT)
            await each.set_history([*long_messages(8), user("u" * 3500), said("a" * 1000), *messages(10)])
            await each.chat("q")
            assert [len(asked["messages"]) for asked in summaries(fake)] == [8]
            assert (await each.get_history())[0] == user("u" * 3500)
            assert await each.get_conversation_summary() == "s" * 1900

        told(story())


def test_a6_o20_a_summary_is_paid_once_however_often_the_chat_fails() -> None:
    """A6, A9, O-20: kept for the history that it was made of; one more message makes another history of it."""
    down = True

    def script(request: Received) -> Line:
        asked = request.json["messages"][0]["content"].startswith("You write the summary")
        return Failure(status=503) if down and not asked else writing("short")(request)

    with ProviderFake("openai-chat", script) as fake:

        async def story() -> None:
            nonlocal down
            each = agent(fake, **EAGER)
            await each.set_history(long_messages(16))
            for words in ("q", "q", "q", "other", "q"):
                with pytest.raises(AgentDecisionProviderUnavailable):
                    await each.chat(words)
            assert len(summaries(fake)) == 1
            assert await each.get_conversation_summary() is None
            down = False
            assert await each.chat("q") == "answer to q"
            assert len(summaries(fake)) == 1
            assert await each.get_conversation_summary() == "short"
            assert await each.get_history() == [*long_messages(16)[6:], user("q"), said("answer to q")]

            down = True
            for n in range(2, 4):  # the same words at other places of the record are another history
                await each.set_history(long_messages(16))
                for _ in range(2):
                    with pytest.raises(AgentDecisionProviderUnavailable):
                        await each.chat("q")
                assert len(summaries(fake)) == n
            await each.summarize_history(keep_recent_count=2)  # of the same history, and with less of it left whole
            assert len(summaries(fake)) == 4
            assert await each.get_history_length() == 2

        told(story())


@pytest.mark.parametrize("limit", [2, 3])
def test_a6_o21_under_the_smallest_limits_a_summariser_that_fails_is_not_asked_at_every_message(limit: int) -> None:
    """A6, O-21: where nothing stays whole it is asked at every other message, and never again for the same one."""
    answers = True

    def script(request: Received) -> Line:
        asked = request.json["messages"][0]["content"].startswith("You write the summary")
        return echo(request) if answers and not asked else Failure(status=500)

    with ProviderFake("openai-chat", script) as fake:

        async def story() -> None:
            nonlocal answers
            each = agent(fake, **EAGER, max_history_messages=limit)
            for n in range(9):
                await each.chat(f"q{n}")
            assert len(summaries(fake)) == 4
            answers = False
            for _ in range(3):
                with pytest.raises(AgentDecisionProviderUnavailable):
                    await each.chat("again")
            assert len(summaries(fake)) == 5

        told(story())


@pytest.mark.parametrize("above", [0, 1], ids=["at the threshold", "above it"])
def test_a6_a_summary_is_due_above_the_threshold_and_not_at_it(above: int) -> None:
    """A6: when the estimated tokens exceed the threshold; a history that is estimated at just as many is left whole."""
    with ProviderFake("openai-chat", writing("short")) as fake:

        async def story() -> None:
            history = long_messages(16)
            plain = agent(fake, model="other")
            await plain.set_history(history)
            tokens = await plain.estimate_history_tokens()
            options = {"enable_summarization": True, "summarization_threshold": tokens - above}
            each = agent(fake, **options, model="other")
            await each.set_history(history)
            await each.chat("q")
            assert len(summaries(fake)) == above

        told(story())


def test_a3_a9_a_message_that_failed_before_a_new_start_is_in_the_history_once_it_is_answered() -> None:
    """A3, A9: the same words go on from the input of before, which stands behind the new start then; nothing else."""
    with ProviderFake("openai-chat", [Answer(text="hello"), Failure(status=503), Answer(text="yes")]) as fake:

        async def story() -> None:
            store = MemoryStore()
            each = agent(fake, store=store, conversation="c")
            await each.chat("hi")
            with pytest.raises(AgentDecisionProviderUnavailable):
                await each.chat("q")
            await each.clear_history()
            assert await each.chat("q") == "yes"
            assert fake.requests[-1].json["messages"][1:] == [user("q")]
            for one in (each, agent(fake, store=store, conversation="c")):
                assert await one.get_history() == [user("q"), said("yes")]

        told(story())


def test_a5_the_limit_is_the_agents_and_a_start_is_the_records() -> None:
    """A5, A10: what left for a limit is in the history of an agent with a larger one, back to a summary or a start."""
    with ProviderFake("openai-chat", writing("short")) as fake:

        async def story() -> None:
            store = MemoryStore()
            small = agent(fake, store=store, conversation="c", max_history_messages=2)
            large = agent(fake, store=store, conversation="c")
            for n in range(4):
                await small.chat(f"q{n}")
            assert [message["content"] for message in await small.get_history()] == [*turn(3)]
            whole = [*turn(0), *turn(1), *turn(2), *turn(3)]
            assert [message["content"] for message in await large.get_history()] == whole
            await large.summarize_history(keep_recent_count=4)
            for each in (large, agent(fake, store=store, conversation="c", max_history_messages=100)):
                assert [message["content"] for message in await each.get_history()] == whole[4:]
            await small.clear_history()
            assert await large.get_history() == []

        told(story())


# --- what a refusal says ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [5, "", "\ud800", "x" * 17_000, "x" * 5000], ids=lambda given: f"{given!r:.9}")
def test_a7_the_refusal_of_a_summary_advises_nothing_that_an_agent_has_not(given: Any) -> None:
    """A7: neither a callback nor its bound; the state's summary is refused in the same words."""
    with ProviderFake("openai-chat", echo) as fake:

        async def story() -> None:
            each = agent(fake, limits=TIGHT)
            state = {**await each.export_conversation_state(), "summary": given}
            for call in (lambda: each.set_conversation_summary(given), lambda: each.import_conversation_state(state)):
                with pytest.raises(DecisionHistorySummaryInvalid) as caught:
                    await call()
                assert "summary" in str(caught.value)
                assert "summarize returned" not in str(caught.value)
                assert "max_summary_bytes" not in str(caught.value)

        told(story())


@pytest.mark.parametrize("field", ["content", "name"])
def test_a4_half_a_character_is_refused_with_the_field_named(field: str) -> None:
    """A4: wherever a message is given; its text is in no error."""
    with ProviderFake("openai-chat", echo) as fake:

        async def story() -> None:
            each = agent(fake)
            state = await each.export_conversation_state()
            wrong: Any = {**user("q"), field: "secret\ud800"}
            calls: list[tuple[str, Any]] = [
                (f"$.{field}", lambda: each.add_to_history(wrong)),
                (f"$[1].{field}", lambda: each.set_history([user("a"), wrong])),
                (f"$.history[0].{field}", lambda: each.import_conversation_state({**state, "history": [wrong]})),
                (f"$.{field}", lambda: each.chat(wrong["content"], name=wrong.get("name"))),
            ]
            for path, call in calls:
                with pytest.raises(InvalidValue) as caught:
                    await call()
                assert (caught.value.field, caught.value.path) == (field, path)
                assert "secret" not in str(caught.value)

        told(story())
