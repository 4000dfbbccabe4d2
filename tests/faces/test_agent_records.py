"""Face A, what becomes of its record: deleted, expired or begun anew, and what agents of other limits add to it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.faces.test_agent import agent, asking, echo, messages, said, summaries, system, told, user
from tests.faces.test_agent_summaries import EAGER, TIGHT, long_messages, writing

from minutebook import Agent, Conversation, MemoryStore
from minutebook.errors import AgentDecisionProviderUnavailable
from minutebook.model.entries import Kind
from minutebook.policy.shortening import KEPT_INSTRUCTIONS
from minutebook.stores.journal import JournalStore
from minutebook.stores.memory import MemoryJournal
from minutebook.testing import Answer, FaultyJournal, ProviderFake
from minutebook.testing.fakes import Failure, Line, Received

# --- what is remembered of a record that is another one now ----------------------------------------------------------


class Scribe:
    """A model that answers, and writes summaries while it `works`."""

    def __init__(self) -> None:
        self.works = False

    def __call__(self, request: Received) -> Line:
        asked = request.json["messages"][0]["content"].startswith("You write the summary")
        return Failure(status=500) if asked and not self.works else writing("short")(request)


@pytest.mark.parametrize(
    ("how", "chats"), [("deleted", 6), ("expired", 6), ("deleted within a millisecond, and as long by now", 1)]
)
def test_a6_o21_a_summariser_that_failed_in_another_record_is_asked_in_this_one(how: str, chats: int) -> None:
    """A6, O-21: the failure is that of a message, and in a record that was begun anew another stands at its place."""
    scribe = Scribe()
    with ProviderFake("openai-chat", scribe) as fake:

        async def story() -> None:
            now = 10**12
            store = MemoryStore(ttl=3600, clock=lambda: now)
            each = agent(fake, store=store, conversation="c", **EAGER, max_history_messages=10)
            for n in range(20):
                await each.chat(f"q{n}")
            failed_at = each._chat._failed[0]
            if how == "expired":
                now += 3600 * 1000 + 1
            else:
                await each.delete()
            if how.startswith("deleted within"):
                await agent(fake, store=store, conversation="c").set_history(messages(failed_at))
            scribe.works, before = True, len(summaries(fake))
            for n in range(chats):
                await each.chat(f"other {n}")
            assert await each.get_conversation_summary() == "short"
            assert len(summaries(fake)) - before >= 1

        told(story())


@pytest.mark.parametrize(("limit", "first"), [(1, []), (2, [system("S")]), (3, [system("S"), system("T")])])
def test_a6_o21_a_history_with_room_for_one_message_is_summarised_again(limit: int, first: list[Any]) -> None:
    """A6, O-21: fewer messages than have to come would ever stand in it, so its turns are counted."""
    scribe = Scribe()
    with ProviderFake("openai-chat", scribe) as fake:

        async def story() -> None:
            each = agent(fake, **EAGER, max_history_messages=limit)
            await each.set_history(first)
            for n in range(9):
                await each.chat(f"q{n}")
            assert 3 <= len(summaries(fake)) <= 5
            scribe.works = True
            for n in range(3):
                await each.chat(f"r{n}")
            assert await each.get_conversation_summary() == "short"

        told(story())


# --- a new start -----------------------------------------------------------------------------------------------------


async def clear(each: Agent) -> None:
    await each.clear_history()


async def set_nothing(each: Agent) -> None:
    await each.set_history([])


async def set_instruction(each: Agent) -> None:
    await each.set_history([system("S")])


async def set_the_same_words(each: Agent) -> None:
    await each.set_history([user("go")])


async def import_nothing(each: Agent) -> None:
    await each.import_conversation_state({**await each.export_conversation_state(), "history": [], "summary": "told"})


async def delete(each: Agent) -> None:
    await each.delete()


STARTS = [clear, set_nothing, set_instruction, set_the_same_words, import_nothing, delete]


@pytest.mark.parametrize("said_before", [False, True], ids=["", "behind a chat"])
@pytest.mark.parametrize("begin", STARTS, ids=lambda begin: begin.__name__)
def test_a3_a9_behind_a_new_start_nothing_comes_back_of_what_failed_before_it(begin: Any, said_before: bool) -> None:
    """A3, A9: the same words are another message there, and begin without what tools have done before the start."""
    down = True

    def script(request: Received) -> Line:
        asked = request.json["messages"][-1]
        if asked["role"] == "user" and "tools" in request.json and "hi" not in str(asked["content"]):
            return asking("a")
        return Failure(status=503) if down and asked["role"] == "tool" else Answer(text="done")

    with ProviderFake("openai-chat", script) as fake:

        async def story() -> None:
            nonlocal down
            ran = 0

            def look(path: str) -> str:
                """Read a file."""
                nonlocal ran
                ran += 1
                return f"result {ran} of {path}"

            store = MemoryStore()
            each = agent(fake, store=store, conversation="c", tools=[look])
            if said_before:
                await each.chat("hi")
            with pytest.raises(AgentDecisionProviderUnavailable):
                await each.chat("go")
            await begin(each)
            stands = await each.get_history()
            down = False
            assert await each.chat("go") == "done"
            results = [m["content"] for m in fake.requests[-1].json["messages"] if m["role"] == "tool"]
            assert results == ["result 2 of a"]
            assert await each.get_history() == [*stands, user("go"), said("done")]
            assert await agent(fake, store=store, conversation="c").get_history() == [*stands, user("go"), said("done")]
            await store.verify(each.key)

        told(story())
        assert not fake.refused


def test_a3_a10_what_a_new_start_superseded_is_exported_imported_and_copied(tmp_path: Path) -> None:
    """A3, A10: the mark stands right before the start, with what failed; every reader of the record takes it so."""
    tmp_path.chmod(0o700)
    with ProviderFake("openai-chat", [Answer(text="yo"), Failure(status=503), Answer(text="done")]) as fake:

        async def story() -> None:
            store, other, third = (MemoryStore() for _ in range(3))
            each = agent(fake, store=store, conversation="c")
            await each.chat("hi")
            with pytest.raises(AgentDecisionProviderUnavailable):
                await each.chat("go")
            await each.clear_history()
            marks = [e.payload async for e in store.entries(each.key) if e.kind is Kind.ABANDONED]
            assert marks[-1] == b'{"reason":"superseded"}'
            talk = Conversation(store, "c", format="openai-chat")
            assert [exchange.messages[0] for exchange in await talk.last()] == [user("hi")]
            await talk.export(tmp_path / "c.jsonl")
            await Conversation(other, "c", format="openai-chat").import_(tmp_path / "c.jsonl")
            await store.copy(each.key, third)
            assert await each.chat("go") == "done"
            for kept in (other, third):
                await kept.verify(each.key)
                with ProviderFake("openai-chat", echo) as echoing:
                    moved = agent(echoing, store=kept, conversation="c")
                    assert await moved.get_history() == []
                    await moved.chat("go")
                    assert await moved.get_history() == [user("go"), said("answer to go")]

        asyncio.run(story())


# --- agents of other limits ------------------------------------------------------------------------------------------


async def add_instruction(each: Agent) -> None:
    await each.add_to_history(system("S9"))


async def set_summary(each: Agent) -> None:
    await each.set_conversation_summary("told")


async def summarise(each: Agent) -> None:
    await each.summarize_history(0)


async def talk(each: Agent) -> None:
    for n in range(6):
        await each.chat(f"small {n}")


@pytest.mark.parametrize("writes", [add_instruction, set_summary, summarise, talk], ids=lambda each: each.__name__)
def test_a5_a10_an_agent_of_a_smaller_limit_loses_no_instruction_of_another(writes: Any) -> None:
    """A5, A10: a limit is the agent's, not the record's; whatever a small one writes, a large one has them all."""
    with ProviderFake("openai-chat", writing("short")) as fake:

        async def story() -> None:
            store = MemoryStore()

            def opened(limit: int, **more: Any) -> Agent:
                return agent(fake, store=store, conversation="c", max_history_messages=limit, **more)

            large, instructions = opened(20), [system(f"S{n}") for n in range(5)]
            for each in instructions:
                await large.add_to_history(each)
            await large.chat("hi")
            small = opened(2, **EAGER)
            assert await small.get_history() == [instructions[0], instructions[-1]]
            await writes(small)
            instructions += [system("S9")] if writes is add_instruction else []
            assert await small.get_history() == await opened(2).get_history()
            for n in range(30):
                await large.chat(f"q{n}")
            for one in (large, opened(20)):
                kept = [message for message in await one.get_history() if message["role"] == "system"]
                assert kept == instructions
            assert fake.requests[-1].json["messages"][1 : len(instructions) + 1] == instructions

        told(story())


def test_a5_b1_an_instruction_costs_the_same_however_many_there_were() -> None:
    """A5, B1: of very many only the newest keep their place, and the first; a small agent reads those of its own."""
    with ProviderFake("openai-chat", echo) as fake:

        async def story() -> None:
            ram = MemoryJournal()
            journal = FaultyJournal(ram)
            each = agent(fake, store=JournalStore(journal, namespace="n"), conversation="c", max_history_messages=4)
            await each.set_history([system(f"S{n:04}") for n in range(KEPT_INSTRUCTIONS + 40)])
            entries = [e async for e in each._chat.store.entries(each.key) if e.kind is Kind.SUMMARY]
            sizes = [len(entries[-1].payload)]
            for n in range(40):
                await each.add_to_history(system(f"T{n:04}"))
            entries = [e async for e in each._chat.store.entries(each.key) if e.kind is Kind.SUMMARY]
            sizes += [len(entry.payload) for entry in entries[-40:]]
            assert max(sizes) - min(sizes) < 100
            whole = [system("S0000"), *(system(f"T{n:04}") for n in range(37, 40))]
            assert await each.get_history() == whole
            journal.calls.clear()
            fresh = agent(fake, store=JournalStore(journal, namespace="n"), conversation="c", max_history_messages=4)
            assert await fresh.get_history() == whole
            assert len(journal.calls) < 30

        told(story())


# --- a summary that is asked for -------------------------------------------------------------------------------------


@pytest.mark.parametrize("failed", [False, True], ids=["at once", "after a chat that failed"])
def test_a7_a_summary_that_is_asked_for_tells_all_that_leaves(failed: bool) -> None:
    """A7: a chat makes two requests for one at most; what it made before it failed is not taken for the whole."""
    down = True

    def script(request: Received) -> Line:
        asked = request.json["messages"][0]["content"].startswith("You write the summary")
        return Failure(status=503) if down and not asked else writing("short")(request)

    with ProviderFake("openai-chat", script) as fake:

        async def story() -> None:
            nonlocal down
            each = agent(fake, **EAGER, limits=TIGHT)
            await each.set_history(long_messages(40, 300))
            if failed:
                for _ in range(2):  # paid once
                    with pytest.raises(AgentDecisionProviderUnavailable):
                        await each.chat("q")
                assert len(summaries(fake)) == 2
            keep = each._chat._renewal[1] or 2
            assert await each.summarize_history(keep) == "short"
            assert await each.get_history() == long_messages(40, 300)[-keep:]
            heard = [message["content"] for asked in summaries(fake) for message in asked["messages"]]
            assert {*heard} >= {message["content"] for message in long_messages(40, 300)[:-keep]}

        told(story())
