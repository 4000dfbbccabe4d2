"""Face A, the same words again, also at another server: what they cost, what is replayed (SPEC A9, B1; case O-33)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from tests.faces.test_agent import agent, asking, echo, told
from tests.providers.loopback import Answering, Server, ok
from tests.providers.loopback import Reply as Answered

import minutebook
from minutebook import Agent, Conversation, MemoryStore, sync
from minutebook.errors import AgentDecisionProviderUnavailable, DecisionHistoryConflict, InvalidOption
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
            assert set(costs[-20:]) == {costs[-1]}
            assert costs[-1] < 16
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


THOUGHT = {"reasoning_content": "let me see", "reasoning": "let me see", "reasoning_details": [{"text": "let me see"}]}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"path":"a"}'}}


def thinking(asked: dict[str, Any]) -> Answered:
    """Call once for each message, then answer, and tell of the reasoning beside both, as local servers do."""
    called = asked["messages"][-1]["role"] == "tool"
    said = {"content": "found"} if called else {"content": None, "tool_calls": [CALL]}
    choice = {"index": 0, "finish_reason": "stop" if called else "tool_calls"}
    return ok({"choices": [{**choice, "message": {"role": "assistant", **said, **THOUGHT}}]})


@pytest.fixture
def local() -> Iterator[Server]:
    """Yield a server that takes whatever it is sent."""
    server = Server(lambda *_: "", ok({}))
    server.replies = [Answering(thinking)] * 4
    yield server
    server.close()


class Rerouted(httpx2.AsyncHTTPTransport):
    """A transport that brings requests for any host to one server."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = httpx2.URL(url)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.url = request.url.copy_with(scheme=self._url.scheme, host=self._url.host, port=self._url.port)
        return await super().handle_async_request(request)


def at(server: Server, host: str = "localhost") -> openai.AsyncOpenAI:
    http = httpx2.AsyncClient(transport=Rerouted(server.url), timeout=20)
    return openai.AsyncOpenAI(base_url=f"https://{host}/v1", api_key="k", http_client=http)


def look(path: str) -> str:
    """Read a file."""
    return path


def reasoned(asked: list[dict[str, Any]]) -> list[int]:
    """Return which messages of a request tell of reasoning, by their place from the end."""
    return [place - len(asked) for place, each in enumerate(asked) if THOUGHT.keys() & each.keys()]


def test_a1_a_local_servers_reasoning_is_replayed_within_its_message_alone(local: Server) -> None:
    """A1: with the results of its calls, whole; the next message goes to any server without it; the record has all."""
    with ProviderFake("openai-chat", echo) as strict:

        async def story() -> None:
            store = MemoryStore()
            options: dict[str, Any] = {"store": store, "conversation": "c", "tools": [look]}
            each = agent(strict, client=at(local), **options)
            for _ in range(2):
                assert await each.chat("look") == "found"
            asked = [local.body(place)["messages"] for place in range(4)]
            assert [reasoned(each_asked) for each_asked in asked] == [[], [-2], [], [-2]]
            assert asked[1][-2] == {"role": "assistant", "content": None, "tool_calls": [CALL], **THOUGHT}

            assert await agent(strict, **options).chat("and now?") == "answer to and now?"
            assert reasoned(strict.requests[-1].json["messages"]) == []
            assert not strict.refused
            entries = [entry async for entry in store.entries(each.key)]
            assert sum(b"let me see" in entry.payload for entry in entries) == 4

        told(story())


@pytest.mark.parametrize(
    ("host", "replays"),
    [
        ("api.openai.com", False),
        ("eu.api.openai.com", False),
        ("api.openai.com.", False),
        ("mine.openai.azure.com", False),
        ("api.openai.com.example.com", True),
        ("myapi.openai.com", True),
    ],
)
def test_a1_openais_hosts_get_no_other_servers_reasoning_within_a_message_either(
    host: str, replays: bool, local: Server
) -> None:
    """A1, A9: a message that failed behind a call at a local server is said again, at OpenAI's or at another one."""
    with ProviderFake("openai-chat", echo) as fake:

        async def story() -> None:
            options: dict[str, Any] = {"store": MemoryStore(), "conversation": "c", "tools": [look]}
            local.replies[1] = (503, {}, b"{}")
            with pytest.raises(AgentDecisionProviderUnavailable):
                await agent(fake, client=at(local), **options).chat("look")
            assert await agent(fake, client=at(local, host), **options).chat("look") == "found"
            assert reasoned(local.body()["messages"]) == ([-2] if replays else [])

        told(story())


def test_a3_a10_what_another_face_recorded_is_no_agents_history() -> None:
    """A3, A10: reading refuses it as saying something does, with what to do, and changes nothing of it."""
    with ProviderFake("openai-chat", echo) as fake:

        async def story() -> None:
            store = MemoryStore()
            other = Conversation(store, "c", format="openai-chat")
            await other.append([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])
            each = agent(fake, store=store, conversation="c")
            aside = agent(fake, store=store, conversation="c", auto_manage_history=False)
            calls = [
                *(each.get_history, each.get_history_length, each.get_conversation_summary, each.clear_history),
                *(each.estimate_history_tokens, each.export_conversation_state, each.summarize_history),
                *(lambda: each.chat("hi"), lambda: aside.chat("hi"), lambda: each.set_conversation_summary("s")),
            ]
            for call in calls:
                with pytest.raises(DecisionHistoryConflict, match="as 'openai-chat', not"):
                    await call()
            assert not fake.requests
            assert len(await other.window()) == 2
            assert (await store.verify(each.key)).token == ""

        told(story())


def test_a10_a_store_keeps_a_conversation_under_an_id_of_the_callers() -> None:
    """A10: durable without any export: an id that nobody knows would begin anew in every process, so it is refused."""
    for ours, store in ((minutebook, MemoryStore()), (sync, sync.MemoryStore())):
        with pytest.raises(InvalidOption, match="conversation=") as caught:
            ours.Agent(name="A", goal="g", api_key="k", store=store)
        assert caught.value.option == "conversation"
        assert ours.Agent(name="A", goal="g", api_key="k", store=store, conversation="c").conversation == "c"
        alone = [ours.Agent(name="A", goal="g", api_key="k") for _ in range(2)]
        assert alone[0].agent_id == alone[0].conversation != alone[1].conversation
        assert ours.Agent(name="A", goal="g", api_key="k", conversation="c").conversation == "c"


@pytest.mark.parametrize("failures", range(1, 7))
def test_a9_o33_what_was_called_in_a_conversation_of_the_same_id_is_not_taken_for_what_was_not(failures: int) -> None:
    """
    O-33: a process knows up to which mark nothing was called, by what it saw of a conversation that is deleted since.

    In the one that has its place a mark at the same place stands behind a call, which is told and not run again.
    """
    answers: list[Line] = []
    with ProviderFake("openai-chat", lambda request: answers.pop() if answers else Failure(status=503)) as fake:

        async def story() -> None:
            ram, ran = MemoryJournal(), list[str]()

            def look(path: str) -> str:
                """Read a file."""
                ran.append(path)
                return "found"

            def fresh() -> Agent:
                return agent(fake, store=JournalStore(ram, namespace="n"), conversation="c", tools=[look])

            async def fails(each: Agent) -> None:
                with pytest.raises(AgentDecisionProviderUnavailable):
                    await each.chat("again")

            knows = fresh()
            for _ in range(failures):
                await fails(knows)
            other = fresh()
            await other._chat.store.delete(other.key)
            answers.append(asking("a"))
            await fails(other)
            assert ran == ["a"]
            answers.append(Answer(text="done"))
            assert await knows.chat("again") == "done"
            assert [message["role"] for message in fake.requests[-1].json["messages"]][-3:] == [
                "user",
                "assistant",
                "tool",
            ]

        told(story())
