"""Face A, how large a request becomes: with tools, over hundreds of chats, and where a server refuses (A5 to A7)."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.budgets import budget
from tests.faces.test_agent import (
    agent,
    asking,
    messages,
    noted,
    said,
    sent,
    summaries,
    summarising,
    system,
    told,
    user,
)
from tests.faces.test_agent_law import INSTRUCTING, ROLES, Kept, Server, spoken
from tests.faces.test_agent_law import look as law_look
from tests.http_clients import http_client

from minutebook import Agent, Conversation, MemoryStore, SQLiteStore, WindowLimits, sync
from minutebook.errors import (
    AgentDecisionProviderUnavailable,
    DecisionHistoryConflict,
    DecisionHistoryLimitExceeded,
    InvalidOption,
)
from minutebook.model.entries import Kind
from minutebook.policy.shortening import before_window
from minutebook.testing import Answer, ProviderFake
from minutebook.testing.fakes import Line, Received, Reply

DECODER = json.JSONDecoder()
DEFAULT = WindowLimits()
SMALL = WindowLimits(max_messages=24, max_bytes=20_000)


def looking(request: Received) -> Line:
    """Write summaries, call once for each message, and answer when the result has come."""
    asked = request.json["messages"]
    if asked[0]["content"].startswith("You write the summary"):
        return summarising(request)
    return asking("a") if asked[-1]["role"] == "user" else Answer(text="looked")


def giving(size: int) -> Any:
    """Return a tool that gives so many bytes."""

    def look(path: str) -> str:
        """Read a file."""
        return "r" * size

    return look


def measured(request: Received) -> tuple[int, int]:
    """Return how many messages a request has, the prompt left out, and the bytes of their JSON as they were sent."""
    body = request.body.decode()
    start = body.index('"messages":[') + len('"messages":')
    found, end = DECODER.raw_decode(body, start)
    _, after_prompt = DECODER.raw_decode(body, start + 1)
    return len(found) - 1, len(body[after_prompt:end].encode()) + (len(found) == 1)


def beyond(requests: Iterable[Received], limits: WindowLimits) -> list[tuple[int, int]]:
    """Return the sizes of the requests that exceed limits."""
    sizes = [measured(request) for request in requests]
    return [(count, size) for count, size in sizes if count > limits.max_messages or size > limits.max_bytes]


async def chats(each: Agent, numbers: range) -> None:
    for n in numbers:
        assert await each.chat(f"q{n}") == "looked"


def transcript(numbers: range) -> list[dict[str, Any]]:
    return [message for n in numbers for message in (user(f"q{n}"), said("looked"))]


# --- what a request holds --------------------------------------------------------------------------------------------


def test_a5_d7_o15_hundreds_of_chats_with_tools_stay_within_the_limits(tmp_path: Path) -> None:
    """A5, D7: the largest of 600 requests is within the limits, over a restart; the history is what A5 says."""
    tmp_path.chmod(0o700)
    with ProviderFake("openai-chat", looking) as fake:

        async def story() -> None:
            for numbers in (range(150), range(150, 300)):
                async with SQLiteStore(tmp_path / "book.sqlite", namespace="n") as store:
                    each = agent(fake, store=store, conversation="c", tools=[giving(3500)], limits=SMALL)
                    await chats(each, numbers)
                    assert await each.get_history() == transcript(range(numbers.stop - 25, numbers.stop))
                    await store.verify(each.key)

        told(story())
        assert len(fake.requests) == 600
        assert beyond(fake.requests, SMALL) == []
        assert max(size for _, size in map(measured, fake.requests)) > 0.8 * SMALL.max_bytes
        last = fake.requests[-1].json["messages"][1:]
        assert last[0]["role"] == "user"
        assert [each["content"] for each in last if each["role"] == "user"][-1] == "q299"
        assert not fake.refused  # the fake takes no call without its results, nor the other way round


def test_a5_d7_the_measure_finds_requests_that_nothing_bounds() -> None:
    """Control: under limits that bound nothing the same chats make requests that `beyond` tells of."""
    with ProviderFake("openai-chat", looking) as fake:
        wide = WindowLimits(max_messages=10_000, max_bytes=10_000_000)
        told(chats(agent(fake, tools=[giving(1500)], limits=wide), range(25)))
        assert len(beyond(fake.requests, SMALL)) > 20


def test_a5_d7_the_defaults_are_the_cores() -> None:
    """A5, D7: 25 chats with results of 16 kB stay within 128 messages and 262,144 bytes without any option."""
    with ProviderFake("openai-chat", looking) as fake:

        async def story() -> None:
            each = agent(fake, tools=[giving(16_000)])
            await chats(each, range(25))
            assert await each.get_history() == transcript(range(25))

        told(story())
        assert beyond(fake.requests, DEFAULT) == []
        assert max(size for _, size in map(measured, fake.requests)) > 0.9 * DEFAULT.max_bytes


def test_a5_d7_the_prompts_cache_stays_warm_with_a_low_water() -> None:
    """D7, B3: `low_water` holds for an agent too: a window that was cut keeps its start until a limit bites again."""
    limits = WindowLimits(max_messages=24, max_bytes=20_000, low_water=0.5)
    with ProviderFake("openai-chat", looking) as fake:
        told(chats(agent(fake, tools=[giving(1500)], limits=limits), range(40)))
        opening = [request.json["messages"][1]["content"] for request in fake.requests]
        moves = sum(before != after for before, after in itertools.pairwise(opening))
        assert 5 < moves < 20
        assert beyond(fake.requests, limits) == []


def test_a5_d7_instructions_outlive_the_exchanges_that_leave() -> None:
    """A5: system messages stay in the request, first and once, also those that stood between turns that left."""
    with ProviderFake("openai-chat", looking) as fake:

        async def story() -> None:
            each = agent(fake, tools=[giving(1500)], limits=SMALL)
            await each.add_to_history(system("S1"))
            await chats(each, range(3))
            await each.add_to_history(system("S2"))
            await chats(each, range(3, 24))
            assert (await each.get_history())[0] == system("S1")

        told(story())
        last = sent(fake.requests[-1])[1:]
        assert last[:2] == [system("S1"), system("S2")]
        assert sum(message["role"] == "system" for message in last) == 2
        assert last[2]["role"] == "user"
        assert all(b'"S1"' in request.body for request in fake.requests)
        assert beyond(fake.requests, SMALL) == []


def test_a2_a5_a_context_counts_within_the_limits() -> None:
    """A2, A5: what is told for one message alone takes the room of older exchanges."""
    with ProviderFake("openai-chat", looking) as fake:

        async def story() -> None:
            each = agent(fake, tools=[giving(1500)], limits=SMALL)
            await chats(each, range(12))
            await each.chat("with it", 'c"' * 3000)

        told(story())
        assert all(b"<context " in request.body for request in fake.requests[-2:])
        assert beyond(fake.requests, SMALL) == []


def test_a1_d7_a_chat_that_is_not_managed_is_bounded_too() -> None:
    """A1: the history is sent as it stands, as far as it fits, and is not changed."""
    with ProviderFake("openai-chat", looking) as fake:

        async def story() -> None:
            each = agent(fake, auto_manage_history=False, tools=[giving(1500)], limits=SMALL)
            await each.set_history(messages(50))
            await chats(each, range(2))
            assert await each.get_history() == messages(50)

        told(story())
        assert beyond(fake.requests, SMALL) == []
        assert measured(fake.requests[0])[0] > SMALL.max_messages - 2


def test_d8_what_cannot_fit_is_refused_by_name_before_it_is_sent() -> None:
    """D8: the newest message, or a tool's result beside it; nothing is sent and the history is as it was."""
    limits = WindowLimits(max_messages=24, max_bytes=4000)
    with ProviderFake("openai-chat", looking) as fake:

        async def story() -> None:
            each = agent(fake, limits=limits)
            for context, size in ((None, 5000), ("c" * 5000, 1)):
                with pytest.raises(DecisionHistoryLimitExceeded, match="limits=") as caught:
                    await each.chat("x" * size, context)
                assert caught.value.max_bytes == 4000 < caught.value.bytes < 5200
            await each.set_history([system("s" * 5000)])
            with pytest.raises(DecisionHistoryLimitExceeded, match="instructions"):
                await each.chat("hi")
            assert not fake.requests
            await each.clear_history()
            each = agent(fake, limits=limits, tools=[giving(6000)])
            with pytest.raises(DecisionHistoryLimitExceeded):
                await each.chat("look")
            assert len(fake.requests) == 1  # the request for the call
            assert await each.get_history() == []

        told(story())


def test_d8_a_chat_whose_newest_exchange_is_too_large_is_freed() -> None:
    """D8: under smaller limits than it was made with; a summary takes its place, and so does a new start."""
    with ProviderFake("openai-chat", summarising) as fake:

        async def story() -> None:
            store = MemoryStore()
            await agent(fake, store=store, conversation="c").chat("x" * 3000)
            each = agent(fake, store=store, conversation="c", limits=WindowLimits(max_bytes=5000))
            with pytest.raises(DecisionHistoryLimitExceeded, match="keep_recent_count=0"):
                await each.chat("and now?")
            with pytest.raises(DecisionHistoryLimitExceeded):
                await each.estimate_history_tokens()
            wide = agent(fake, store=store, conversation="c")
            assert await wide.summarize_history(keep_recent_count=0)
            await wide.set_conversation_summary("short")
            assert await each.chat("and now?") == "answer to and now?"
            assert await each.estimate_history_tokens() > 0

        told(story())


@pytest.mark.parametrize("given", [128, {"max_bytes": 1}, WindowLimits])
def test_a1_limits_that_are_none_are_refused_by_name(given: Any) -> None:
    """A1: where they are given."""
    with pytest.raises(InvalidOption) as caught:
        Agent(name="A", goal="g", limits=given)
    assert caught.value.option == "limits"


def test_b11_the_blocking_twin_has_the_same_limits() -> None:
    """B11: the same requests without an event loop."""
    with ProviderFake("openai-chat", looking) as fake:
        http = http_client(verify=False, timeout=20)
        client = openai.OpenAI(base_url=fake.base_url, api_key="k", http_client=http)
        each = sync.Agent(name="A", goal="g", client=client, tools=[giving(3500)], limits=SMALL)
        for n in range(15):
            each.chat(f"q{n}")
        assert beyond(fake.requests, SMALL) == []
        assert max(size for _, size in map(measured, fake.requests)) > 0.8 * SMALL.max_bytes


def tell_story(seed: int, fake: ProviderFake, server: Server) -> tuple[int, int]:
    """Go through one random story under changing limits; return how many chats were cut, and how many were refused."""
    chance = random.Random(seed)
    kept, store = Kept(14), sync.MemoryStore()
    http = http_client(verify=False, timeout=20)
    client = openai.OpenAI(base_url=fake.base_url, api_key="k", http_client=http)
    cut = refused = 0
    for number in range(25):
        limits = WindowLimits(max_messages=chance.randrange(4, 30), max_bytes=chance.randrange(500, 4000))
        each = sync.Agent(
            name="Assistant", goal="Help users", client=client, store=store, conversation="c",
            max_history_messages=14, tools=[law_look], limits=limits,
        )  # fmt: skip
        place = f"story {seed}, step {number}"
        for _ in range(chance.randrange(3)):
            message = {"role": chance.choice(ROLES), "content": f"m{number}" * chance.randrange(1, 60)}
            each.add_to_history(message)
            kept.add(message)
        if chance.random() < 0.1:
            kept.summary = f"about {number}"
            each.set_conversation_summary(kept.summary)
        asked, before = user(f"u{number}"), len(fake.requests)
        whole = kept.request(asked)
        server.calls = chance.random() < 0.5
        try:
            answer = each.chat(asked["content"])
        except DecisionHistoryLimitExceeded:
            refused += 1
        else:
            kept.held.append(asked)
            kept.add(said(answer))
            cut += follows(spoken(fake.requests[-1]), whole, kept.summary, place)
        assert beyond(fake.requests[before:], limits) == [], place
        assert each.get_history() == kept.held, place
    store.verify(each.key)
    return cut, refused


def follows(request: list[Any], whole: list[Any], summary: str | None, place: str) -> bool:
    """Hold a request to the one that nothing bounds, and return whether older messages left it."""

    def speech(messages: list[Any]) -> list[Any]:
        return [
            [role, text if isinstance(text, str) else text[-1]] for role, text in messages if role not in INSTRUCTING
        ]

    assert [each for each in request if each[0] in INSTRUCTING] == [each for each in whole if each[0] in INSTRUCTING], (
        place
    )
    shown, full = speech(request), speech(whole)
    assert shown[0][0] == "user", place
    assert set(map(tuple, shown)) <= set(map(tuple, full)), place
    assert shown[-1] == full[-1], place
    told = [text[0] for _, text in request if not isinstance(text, str)]
    assert told == ([] if summary is None else [f"[Previous conversation summary: {summary}]"]), place
    return len(shown) < len(full)


@pytest.mark.timeout(300)
def test_a5_d7_random_stories_stay_within_random_limits(figure: Callable[[str], None]) -> None:
    """A5, D7, D8: each request is within its limits, keeps every instruction and the newest message, or is refused."""
    server = Server()
    with ProviderFake("openai-chat", server) as fake:
        counts = [tell_story(seed, fake, server) for seed in range(budget(20, 200))]
        assert not fake.refused
    cut, refused = map(sum, zip(*counts, strict=True))
    figure(f"{len(counts)} stories, {cut:,} requests cut, {refused:,} refused, 0 beyond their limits")
    assert min(cut, refused) > len(counts)


@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("left_out", lambda *_: []),
        ("left_out", lambda said, opening, _: before_window(said, opening)),
        ("opening_input", lambda said, _: said[0].seq),
    ],
)
def test_a5_control_stories_within_limits_find_a_planted_fault(
    name: str, planted: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stories that miss instructions which left with the turns around them would prove nothing."""
    monkeypatch.setattr(f"minutebook.chat.requests.{name}", planted)
    server = Server()
    with ProviderFake("openai-chat", server) as fake, pytest.raises(AssertionError, match="story"):
        _ = [tell_story(seed, fake, server) for seed in range(20)]


# --- what starts a summary, and what it takes away -------------------------------------------------------------------


def test_a6_the_estimate_sees_calls_and_results_and_starts_summaries() -> None:
    """A6, A7: 25 chats with results of 16 kB and a threshold of 3,000: what is sent is estimated, and summarised."""
    with ProviderFake("openai-chat", looking) as fake:

        async def story() -> None:
            each = agent(fake, tools=[giving(16_000)], enable_summarization=True)
            await each.chat("q0")
            assert 3000 < await each.estimate_history_tokens() < 9000
            await chats(each, range(1, 25))
            assert await each.get_history() == transcript(range(16, 25))
            assert str(await each.get_conversation_summary()).startswith("q0; looked; q1")

        told(story())
        assert [len(asked["messages"]) for asked in summaries(fake)] == [2, 10, 10, 10]  # O-21: not at every message
        results = [request.body.count(b"r" * 16_000) for request in fake.requests]
        assert max(results) == 10  # those of fewer than twice ten messages, and of the one that is being answered
        assert not fake.refused


def test_a6_what_leaves_the_request_by_its_limits_is_summarised_first() -> None:
    """A6: below any threshold too, since no request would hold it any more."""
    with ProviderFake("openai-chat", looking) as fake:

        async def story() -> None:
            far = {"enable_summarization": True, "summarization_threshold": 10**9}
            each = agent(fake, **far, tools=[giving(10)], limits=SMALL)
            await chats(each, range(9))
            assert [asked["messages"] for asked in summaries(fake)] == [transcript(range(4))]
            assert await each.get_history() == transcript(range(4, 9))

        told(story())
        assert beyond(fake.requests, SMALL) == []


def test_a4_a6_calls_and_results_of_summarised_turns_are_not_sent() -> None:
    """A4, A6: they leave with their turn; a restart changes nothing of that, and the record keeps them."""
    with ProviderFake("openai-chat", looking) as fake:

        async def story() -> None:
            store = MemoryStore()
            each = agent(fake, store=store, conversation="c", tools=[giving(700)])
            await chats(each, range(6))
            before = await each.estimate_history_tokens()
            assert await each.summarize_history(keep_recent_count=2) == "; ".join(f"q{n}; looked" for n in range(5))
            assert await each.estimate_history_tokens() < before / 2
            for one in (each, agent(fake, store=store, conversation="c", tools=[giving(700)])):
                await one.chat("next")
            assert [request.body.count(b"r" * 700) for request in fake.requests[-4:]] == [1, 2, 2, 3]
            entries = [entry async for entry in store.entries(each.key)]
            assert sum(b"r" * 700 in entry.payload for entry in entries) == 8

        told(story())
        assert not fake.refused


def test_a7_the_bill_corrects_the_estimate_with_tools_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A7: a server whose tokens are two bytes long; a process that knows no bill yet estimates by the rule alone."""
    monkeypatch.setattr("minutebook.chat.server.exact_counter", lambda _: None)

    def script(request: Received) -> Line:
        return billing(request, len(request.body) // 2)

    with ProviderFake("openai-chat", script) as fake:

        async def story() -> None:
            store = MemoryStore()
            each = agent(fake, store=store, conversation="c", tools=[giving(4000)])
            await chats(each, range(5))
            last = fake.requests[-1].json["messages"][1:]
            really = (len(json.dumps([*last, said("looked")])) + 1) // 2
            assert 0.85 * really < await each.estimate_history_tokens() < 1.15 * really
            unbilled = await agent(fake, store=store, conversation="c").estimate_history_tokens()
            assert unbilled < 0.6 * really

        told(story())


@pytest.mark.parametrize("tools_tokens", [0, 5000])
def test_a7_what_a_server_makes_of_tools_spoils_no_estimate(tools_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A7: one that bills tools at nothing, or at length, and texts at the rule's double: learned apart."""
    monkeypatch.setattr("minutebook.chat.server.exact_counter", lambda _: None)

    def script(request: Received) -> Line:
        return billing(request, 2 * ruled(request.json["messages"]) + tools_tokens)

    with ProviderFake("openai-chat", script) as fake:

        async def story() -> None:
            each = agent(fake, tools=[giving(4000)])
            await chats(each, range(5))
            really = 2 * ruled([*fake.requests[-1].json["messages"][1:], said("looked")])
            assert 0.95 * really < await each.estimate_history_tokens() < 1.05 * really
            each = agent(fake, tools=[giving(4000)])  # no estimate in between: the first bill is not forgotten
            await each.chat("one")
            assert await each.estimate_history_tokens() > 1.9 * (4000 / 4)

        told(story())


def test_a7_an_exact_count_is_not_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A7: what a server bills beyond it is its own, such as a prompt that it adds."""
    monkeypatch.setattr("minutebook.chat.server.exact_counter", lambda _: lambda text: len(text.split()))

    def script(request: Received) -> Line:
        return billing(request, 900)

    with ProviderFake("openai-chat", script) as fake:

        async def story() -> None:
            for tools in ([], [giving(10)]):
                each = agent(fake, tools=tools)
                await each.set_history([user("four words are here"), said("and three more")])
                assert await each.estimate_history_tokens() == (3 + 1 + 4) + (3 + 1 + 3)
                await each.chat("look")
                assert await each.estimate_history_tokens() < 80

        told(story())


def ruled(messages: list[dict[str, Any]]) -> int:
    """Return what the rule expects of messages."""
    texts = [str(m.get("content") or "") + (compact(m["tool_calls"]) if "tool_calls" in m else "") for m in messages]
    roles = sum(-(-len(message["role"]) // 4) for message in messages)
    return 3 * len(messages) + roles + sum(-(-len(text) // 4) for text in texts)


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def billing(request: Received, tokens: int) -> Line:
    """Make one call for each question where there are tools, then answer; billed at so many tokens."""
    answer: dict[str, Any] = {"role": "assistant", "content": "looked"}
    ending = "stop"
    if "tools" in request.json and request.json["messages"][-1]["role"] == "user":
        function = {"name": "look", "arguments": '{"path":"a"}'}
        call = {"id": f"call_{len(request.body)}", "type": "function", "function": function}
        answer, ending = {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
    usage = {"prompt_tokens": tokens, "completion_tokens": 1, "total_tokens": tokens + 1}
    choice = {"index": 0, "finish_reason": ending, "message": answer}
    return Reply(body=json.dumps({"choices": [choice], "usage": usage}).encode())


def test_a6_d7_what_a_summary_is_made_of_is_sent_in_requests_within_the_limits() -> None:
    """A6: in several that build on one another; each message is told once, in order."""
    limits = WindowLimits(max_bytes=40_000)

    def script(request: Received) -> Line:
        made_of = json.loads(request.json["messages"][1]["content"])
        names = [made_of.get("summary_so_far", "")] + [message["content"][0] for message in made_of["messages"]]
        return Answer(text="".join(names))

    with ProviderFake("openai-chat", script) as fake:

        async def story() -> None:
            each = agent(fake, limits=limits)
            history = [user(letter + '"' * 4000) for letter in "abcdefg"]  # a quote in quoted JSON has four bytes
            await each.set_history(history)

            assert await each.summarize_history(keep_recent_count=0) == "abcdefg"
            asked = summaries(fake)
            assert [len(each_asked["messages"]) for each_asked in asked] == [2, 2, 2, 1]
            assert [message for each_asked in asked for message in each_asked["messages"]] == history
            assert [each_asked.get("summary_so_far") for each_asked in asked] == [None, "ab", "abcd", "abcdef"]

        told(story())
        assert beyond(fake.requests, limits) == []


def test_a6_d7_a_summarys_request_is_within_the_limits_to_the_byte() -> None:
    """A6: messages of every size around the one of which two fit: what stands around them is counted too."""
    limits = WindowLimits(max_bytes=2000)
    with ProviderFake("openai-chat", summarising) as fake:

        async def story() -> None:
            for size in range(890, 950):
                each = agent(fake, limits=limits)
                await each.set_history([user("x" * size), user("y" * size)])
                await each.summarize_history(keep_recent_count=0)

        told(story())
        told_at_once = [len(asked["messages"]) for asked in summaries(fake)]
        assert told_at_once[0] == 2
        assert told_at_once[-2:] == [1, 1]
        assert beyond(fake.requests, limits) == []
        largest = max(measured(request)[1] for request in fake.requests)
        assert largest > limits.max_bytes - 64


def test_a6_a_message_that_no_request_for_a_summary_holds_is_not_sent() -> None:
    """A6: there is no summary then, and an event has the code; the chat goes on."""
    with ProviderFake("openai-chat", summarising) as fake:

        async def story() -> None:
            each = agent(fake, limits=WindowLimits(max_bytes=5000))
            events = noted(each)
            await each.set_history([user("x" * 6000), said("a"), user("b"), said("c")])
            assert await each.summarize_history(keep_recent_count=0) is None
            failed = {"error_code": "DecisionHistoryLimitExceeded", "removed_count": 0}
            assert events == [("SUMMARIZATION_FAILED", failed)]
            assert not fake.requests
            assert await each.chat("d") == "answer to d"

        told(story())


# --- where the server refuses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["summary", "limits"])
@pytest.mark.parametrize("streamed", [False, True])
def test_d13_a_request_too_large_for_the_model_is_refused_with_the_way_out(way: str, *, streamed: bool) -> None:
    """D13, A9: nothing is shortened by itself; the error says what frees the chat, and each of both does."""
    with ProviderFake("openai-chat", looking, window_tokens=12_000) as fake:

        async def asks(each: Agent) -> str:
            if streamed:
                return "".join([piece async for piece in each.stream("again")])
            return await each.chat("again")

        async def story() -> None:
            store = MemoryStore()
            options: dict[str, Any] = {"store": store, "conversation": "c", "tools": [giving(8000)]}
            each = agent(fake, **options)
            with pytest.raises(AgentDecisionProviderUnavailable):
                await chats(each, range(50))
            done = await each.get_history_length() // 2
            assert 2 < done < 50
            for _ in range(2):
                before = len(fake.requests)
                with pytest.raises(AgentDecisionProviderUnavailable) as caught:
                    await asks(each)
                assert caught.value.provider_error_code == "context_length_exceeded"
                assert caught.value.status == 400
                assert "summarize_history()" in str(caught.value)
                assert "limits=WindowLimits(max_bytes=" in str(caught.value)
                assert "again" not in str(caught.value)
                assert len(fake.requests) - before <= 2  # the call, and the refusal; no request for a summary
                assert await each.get_history() == transcript(range(done))
            assert not summaries(fake)
            if way == "summary":
                assert await each.summarize_history(keep_recent_count=2) is not None
            else:
                each = agent(fake, **options, limits=WindowLimits(max_bytes=24_000))
            assert await asks(each) == "looked"
            assert (await each.get_history())[-2:] == [user("again"), said("looked")]

        told(story())


def test_a9_an_answer_that_was_cut_by_length_is_recorded_as_it_came() -> None:
    """A9: to a person a cut text is an answer: returned, in the history and sent again; the record tells of it."""
    with ProviderFake("openai-chat", [Answer(text="half a", ending="length"), Answer(text="whole")]) as fake:

        async def story() -> None:
            store = MemoryStore()
            each = agent(fake, store=store, max_output_tokens=2)
            assert await each.chat("one") == "half a"
            assert await each.chat("two") == "whole"
            assert sent(fake.requests[-1])[1:] == [user("one"), said("half a"), user("two")]
            payloads = [entry.payload async for entry in store.entries(each.key) if entry.kind is Kind.RESPONSE]
            endings = [json.loads(payload)["choices"][0]["finish_reason"] for payload in payloads]
            assert endings == ["length", "stop"]

        told(story())


# --- reading an agent's record ---------------------------------------------------------------------------------------


def test_a10_the_readers_of_a_conversation_read_an_agents_record() -> None:
    """A10: as `openai-chat` in the agent's store: calls and results too. Nothing is written that way."""
    with ProviderFake("openai-chat", looking) as fake:

        async def story() -> None:
            store = MemoryStore()
            each = agent(fake, store=store, tools=[giving(10)])
            await chats(each, range(3))
            reader = Conversation(store, each.key.id, format="openai-chat")
            exchanges = [exchange async for exchange in reader.exchanges()]
            assert len(exchanges) == 6
            assert [entry.seq async for entry in reader.entries()] == list(range(1, 13))
            assert len([found async for found in reader.search("rrrrrrrrrr")]) == 3
            with pytest.raises(DecisionHistoryConflict):
                await reader.append([user("mine")])
            with pytest.raises(DecisionHistoryConflict):
                await Conversation(store, each.key.id, format="anthropic").last()
            assert await each.get_history() == transcript(range(3))

        told(story())
