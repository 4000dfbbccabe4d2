"""Face A, the same words again: what they cost behind many failures (SPEC A9, B1; case O-33)."""

from __future__ import annotations

import pytest
from tests.faces.test_agent import agent, asking, told

from minutebook import Agent
from minutebook.errors import AgentDecisionProviderUnavailable
from minutebook.stores.journal import JournalStore
from minutebook.stores.memory import MemoryJournal
from minutebook.testing import Answer, FaultyJournal, ProviderFake
from minutebook.testing.fakes import Failure, Line


def test_b1_a_chat_costs_the_same_behind_any_number_of_failures() -> None:
    """B1, O-33: with tools too; a process that saw none of them reads a few pages more, and finds what was executed."""
    answers: list[Line] = []
    with ProviderFake("openai-chat", lambda request: answers.pop() if answers else Failure(status=503)) as fake:

        async def story() -> None:
            ram, ran = MemoryJournal(), list[str]()

            def look(path: str) -> str:
                """Read a file."""
                ran.append(path)
                return "found"

            def fresh() -> tuple[FaultyJournal, Agent]:
                journal = FaultyJournal(ram)
                store = JournalStore(journal, namespace="n")
                return journal, agent(fake, store=store, conversation="c", tools=[look])

            async def cost(journal: FaultyJournal, each: Agent) -> int:
                journal.calls.clear()
                with pytest.raises(AgentDecisionProviderUnavailable):
                    await each.chat("again")
                return len(journal.calls)

            journal, each = fresh()
            costs = [await cost(journal, each) for _ in range(150)][-5:]
            colds = []
            for _ in range(2):
                colds.append(await cost(*fresh()))
                costs += [await cost(journal, each) for _ in range(150)][-5:]
            assert set(costs) == {costs[0]}
            assert costs[0] < 12
            assert colds[1] <= colds[0] + 4 <= costs[0] + 12

            answers.append(asking("a"))
            await cost(journal, each)
            costs = [await cost(journal, each) for _ in range(40)]
            assert set(costs[2:]) == {costs[2]}
            assert ran == ["a"]
            answers.append(Answer(text="done"))
            assert await fresh()[1].chat("again") == "done"
            assert [message["role"] for message in fake.requests[-1].json["messages"][-3:]] == [
                "user",
                "assistant",
                "tool",
            ]
            assert ran == ["a"]
            await each._chat.store.verify(each.key)

        told(story())
