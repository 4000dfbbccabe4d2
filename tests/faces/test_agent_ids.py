"""Face A, a message that is said again under its id, whatever came in between: no tool runs twice (A9, I-8, I-44)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import openai
import pytest
from tests.budgets import budget
from tests.faces.test_agent import UNUSABLE, agent, said, system, told, user
from tests.http_clients import http_client

from minutebook import Agent, MemoryStore, sync
from minutebook.chat.chat import Chat
from minutebook.errors import (
    AgentDecisionProviderSchemaViolation,
    AgentDecisionProviderUnavailable,
    DecisionHistoryConflict,
    DecisionHistoryFenced,
)
from minutebook.testing import Answer, FunctionCall, ProviderFake
from minutebook.testing.fakes import Failure, Line, Received, Reply

ROUNDS = 2
"""How often a message has something paid before it is answered."""


class Shop:
    """A model that pays in rounds and then answers, a server that fails when it is told, and what was paid."""

    def __init__(self) -> None:
        self.fails_after = ROUNDS + 1
        """How many rounds are paid before the server fails; one more than there are for never."""
        self.failure: Line = Failure(status=503)
        self.paid: list[str] = []

    def __call__(self, request: Received) -> Line:
        asked = request.json["messages"]
        place = max(n for n, message in enumerate(asked) if message["role"] == "user")
        text, rounds = asked[place]["content"], len(results_behind(asked, place))
        if isinstance(text, list):  # a summary stands before it
            text = text[-1]["text"]
        if rounds >= self.fails_after:
            return self.failure
        if rounds == ROUNDS or not text.startswith("pay"):
            return Answer(text=f"answer to {text}")
        return Answer(calls=(FunctionCall("pay", {"what": f"{text}, {rounds}"}),))

    def pay(self, what: str) -> str:
        """Pay."""
        self.paid.append(what)
        return f"paid {what}"


def results_behind(messages: list[dict[str, Any]], place: int) -> list[str]:
    return [message["content"] for message in messages[place:] if message["role"] == "tool"]


async def others_talk(each: Agent, shop: Shop) -> list[dict[str, Any]]:
    shop.fails_after = ROUNDS + 1
    await each.chat("hello", id="other")
    return [user("hello"), said("answer to hello")]


async def others_fail(each: Agent, shop: Shop) -> list[dict[str, Any]]:
    shop.fails_after = 0
    with pytest.raises(AgentDecisionProviderUnavailable):
        await each.chat("hello")
    return []


async def others_add(each: Agent, shop: Shop) -> list[dict[str, Any]]:
    await each.add_to_history(system("S"))
    return [system("S")]


async def begun_anew(each: Agent, shop: Shop) -> list[dict[str, Any]]:
    await each.clear_history()
    return []


BETWEEN = [others_talk, others_fail, others_add, begun_anew]


@pytest.mark.parametrize("streamed", [False, True], ids=["chat", "stream"])
@pytest.mark.parametrize("cold", [False, True], ids=["", "from other processes"])
@pytest.mark.parametrize("between", BETWEEN, ids=lambda each: each.__name__)
def test_a9_i44_an_id_goes_on_behind_what_its_tools_did_whatever_came_in_between(
    between: Callable[[Agent, Shop], Any], cold: bool, streamed: bool
) -> None:
    """A9, I-44: twice superseded, with a further round each time; and a time without any, which loses none of it."""
    shop = Shop()

    async def say(each: Agent) -> str:
        pieces = each.stream("pay", id="m1")
        return "".join([piece async for piece in pieces]) if streamed else await each.chat("pay", id="m1")

    with ProviderFake("openai-chat", shop) as fake:

        async def story() -> None:
            store = MemoryStore()
            each = agent(fake, store=store, conversation="c", tools=[shop.pay])
            stands: list[dict[str, Any]] = []
            for rounds in (1, 1, 2):
                shop.fails_after = rounds
                with pytest.raises(AgentDecisionProviderUnavailable):
                    await say(each)
                new = await between(each, shop)
                stands = [*stands, *new] if between is others_add else new or stands
                each = agent(fake, store=store, conversation="c", tools=[shop.pay]) if cold else each
            shop.fails_after = ROUNDS + 1
            before = len(fake.requests)
            for _ in range(3):
                assert await say(each) == "answer to pay"
            assert shop.paid == ["pay, 0", "pay, 1"]
            assert len(fake.requests) == before + 1
            asked = fake.requests[-1].json["messages"]
            assert results_behind(asked, 0) == ["paid pay, 0", "paid pay, 1"]
            assert await each.get_history() == [*stands, user("pay"), said("answer to pay")]
            with pytest.raises(DecisionHistoryConflict):
                await each.chat("pay more", id="m1")
            await store.verify(each.key)

        told(story())
        assert not fake.refused


@pytest.mark.parametrize("other", ["", "m2"], ids=["no id", "another id"])
def test_a9_i44_an_id_whose_message_was_answered_without_it_gives_that_answer(other: str) -> None:
    """A9, I-8, I-44: the same words said by others went on behind it, so that its answer is recorded."""
    shop = Shop()
    with ProviderFake("openai-chat", shop) as fake:

        async def story() -> None:
            each = agent(fake, store=MemoryStore(), tools=[shop.pay])
            shop.fails_after = 1
            with pytest.raises(AgentDecisionProviderUnavailable):
                await each.chat("pay", id="m1")
            shop.fails_after = ROUNDS + 1
            assert await each.chat("pay", id=other) == "answer to pay"
            await each.chat("hello")
            before = len(fake.requests)
            assert await each.chat("pay", id="m1") == "answer to pay"
            assert [piece async for piece in each.stream("pay", id="m1")] == ["answer to pay"]
            assert (len(fake.requests), shop.paid) == (before, ["pay, 0", "pay, 1"])
            assert await each.get_history_length() == 4

        told(story())


async def added_behind(each: Agent) -> None:
    await each.add_to_history(said("hello"))


async def set_behind(each: Agent) -> None:
    await each.set_history([said("hello")])


@pytest.mark.parametrize("behind", [added_behind, set_behind], ids=lambda each: each.__name__)
@pytest.mark.parametrize("answered", [True, False], ids=["", "not answered before"])
def test_a9_i44_what_was_added_behind_a_message_is_not_its_answer(
    behind: Callable[[Agent], Any], *, answered: bool
) -> None:
    """A9, I-44: what the turn came to is, also where that came without the id; where it came to nothing, a new one."""
    with ProviderFake("openai-chat", [Failure(status=503), Answer(text="the answer")]) as fake:

        async def story() -> None:
            each = agent(fake, store=MemoryStore())
            with pytest.raises(AgentDecisionProviderUnavailable):
                await each.chat("go", id="m1")
            if answered:
                assert await each.chat("go") == "the answer"
            await behind(each)
            for _ in range(2):
                assert await each.chat("go", id="m1") == "the answer"
            assert len(fake.requests) == 2

        told(story())


def test_a9_i44_an_answer_that_was_none_is_not_what_its_id_was_answered() -> None:
    """A9, I-44: what came stands under a mark; behind other words the message is asked anew, and answered once."""
    with ProviderFake("openai-chat", [Reply(body=UNUSABLE), Answer(text="hi"), Answer(text="fine")]) as fake:

        async def story() -> None:
            each = agent(fake, store=MemoryStore())
            with pytest.raises(AgentDecisionProviderSchemaViolation):
                await each.chat("go", id="m1")
            await each.chat("hello")
            for _ in range(2):
                assert await each.chat("go", id="m1") == "fine"
            assert len(fake.requests) == 3
            assert await each.get_history() == [user("hello"), said("hi"), user("go"), said("fine")]

        told(story())


def test_a9_i44_words_that_were_said_before_they_had_an_id_are_asked_anew_under_it() -> None:
    """A9, I-44: the id goes on with words behind which a summary stands; others superseded them, nothing answered."""
    failures = [Failure(status=503), Failure(status=503)]
    with ProviderFake("openai-chat", [*failures, Answer(text="hi"), Answer(text="fine")]) as fake:

        async def story() -> None:
            each = agent(fake, store=MemoryStore())
            with pytest.raises(AgentDecisionProviderUnavailable):
                await each.chat("go")
            await each.set_conversation_summary("what was said")
            with pytest.raises(AgentDecisionProviderUnavailable):
                await each.chat("go", id="m1")
            await each.chat("hello")
            for _ in range(2):
                assert await each.chat("go", id="m1") == "fine"
            assert len(fake.requests) == 4

        told(story())


def test_a9_i44_a_call_whose_outcome_is_unknown_is_told_so_behind_other_words_too() -> None:
    """A9, I-44, O-33: the process ended in the tool, others went on; it is not run again under its id."""
    shop = Shop()
    with ProviderFake("openai-chat", shop) as fake:

        async def story() -> None:
            store = MemoryStore()

            async def pay(what: str) -> str:
                """Pay, while an operator takes this process for dead."""
                await store.recover(each.key, worker_stopped=True)
                return shop.pay(what)

            each = agent(fake, store=store, conversation="c", tools=[pay])
            with pytest.raises(DecisionHistoryFenced):
                await each.chat("pay", id="m1")
            again = agent(fake, store=store, conversation="c", tools=[shop.pay])
            await again.chat("hello")
            assert await again.chat("pay", id="m1") == "answer to pay"
            unknown, paid = results_behind(fake.requests[-1].json["messages"], 0)
            assert (unknown, paid) == ('{"error":{"interrupted":"outcome unknown"}}', "paid pay, 1")
            assert shop.paid == ["pay, 0", "pay, 1"]

        told(story())


def tell_story(seed: int, fake: ProviderFake, shop: Shop) -> int:
    """Say messages under their ids in any order, with failures and others in between; return how many were answered."""
    chance = random.Random(seed)
    shop.paid = []
    store = sync.MemoryStore()
    client = openai.OpenAI(base_url=fake.base_url, api_key="k", http_client=http_client(verify=False, timeout=20))

    def opened() -> sync.Agent:
        return sync.Agent(
            name="Assistant", goal="Help users", client=client, store=store, conversation="c", tools=[shop.pay]
        )

    each, answered = opened(), set[str]()
    for number in range(60):
        step = chance.choices(["pay", "hello", "add", "clear", "reopen", "summary"], [12, 3, 2, 1, 3, 2])[0]
        shop.fails_after = chance.choice([0, 1, 2, ROUNDS + 1, ROUNDS + 1])
        shop.failure = chance.choice([Failure(status=503), Reply(body=UNUSABLE)])
        name, before = f"m{chance.randrange(4)}", len(fake.requests)
        if step == "pay":
            try:
                assert each.chat(f"pay {name}", id=name) == f"answer to pay {name}"
                assert name not in answered or len(fake.requests) == before
                answered.add(name)
            except (AgentDecisionProviderUnavailable, AgentDecisionProviderSchemaViolation):
                assert name not in answered, f"story {seed}, step {number}"
        elif step == "hello":
            shop.fails_after = ROUNDS + 1
            each.chat("hello")
        elif step == "add":
            each.add_to_history({"role": "system", "content": f"S{number}"})
        elif step == "clear":
            each.clear_history()
        elif step == "summary":
            each.set_conversation_summary(f"summary {number}")
        else:
            each = opened()
        assert len(shop.paid) == len(set(shop.paid)), f"story {seed}, step {number}: {shop.paid[-1]!r} twice"
    assert all(f"pay {name}, {n}" in shop.paid for name in answered for n in range(ROUNDS))
    store.verify(each.key)
    return len(answered)


def tell_stories(count: int, fake: ProviderFake, shop: Shop) -> int:
    """Go through so many stories; return how many messages were answered."""
    return sum(tell_story(seed, fake, shop) for seed in range(count))


def test_a9_i44_random_stories_pay_nothing_twice(figure: Callable[[str], None]) -> None:
    """A9, I-8, I-44: failures and answers that are none at any request, and all else, between the tries of four ids."""
    shop, stories = Shop(), budget(20, 300)
    with ProviderFake("openai-chat", shop) as fake:
        answered = tell_stories(stories, fake, shop)
        assert not fake.refused
    figure(f"{stories} stories, {answered} messages answered, nothing paid twice")
    assert answered > 2 * stories


def test_a9_i44_control_the_stories_find_a_chat_that_looks_at_its_newest_turn_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I-44: stories that find nothing then would prove nothing."""
    found = Chat._executed_before

    async def alone(self: Any, hold: Any, superseded: Any) -> Any:
        return await found(self, hold, [])

    monkeypatch.setattr(Chat, "_executed_before", alone)
    shop = Shop()
    with ProviderFake("openai-chat", shop) as fake, pytest.raises(AssertionError, match="twice"):
        tell_stories(20, fake, shop)
