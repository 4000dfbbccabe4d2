"""Face A at servers of other makers: what they write otherwise is no reason to lose a chat (case O-12; SPEC A1, A9)."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import openai
import pytest
from tests.faces.test_agent import agent, echo, said, told, user
from tests.faces.test_agent_retries import Rerouted, at, local, look
from tests.providers.loopback import Answering, Server, ok

from minutebook import MemoryStore
from minutebook.errors import AgentDecisionProviderUnavailable
from minutebook.testing import Answer, ProviderFake
from minutebook.testing.fakes import Failure, Line, Received, Reply

__all__ = ["local"]

FUNCTION: dict[str, Any] = {"name": "look", "arguments": '{"path":"a"}'}
CALL: dict[str, Any] = {"id": "c1", "type": "function", "function": FUNCTION}
ODD_CALLS: dict[str, dict[str, Any]] = {
    "an id of 57 characters": {**CALL, "id": "functions.look:0|" + "a" * 40},
    "an empty id": {**CALL, "id": ""},
    "no id": {key: value for key, value in CALL.items() if key != "id"},
    "null as id": {**CALL, "id": None},
    "no type": {key: value for key, value in CALL.items() if key != "type"},
    "null as type": {**CALL, "type": None},
    "arguments as JSON": {**CALL, "function": {**FUNCTION, "arguments": {"path": "a"}}},
    "nothing of it": {"function": {**FUNCTION, "arguments": {"path": "a"}}},
}


def completion(**message: Any) -> dict[str, Any]:
    """Return a body whose answer has these members."""
    ending = "tool_calls" if message.get("tool_calls") else "stop"
    return {"choices": [{"index": 0, "finish_reason": ending, "message": {"role": "assistant", **message}}]}


NO_ARGUMENTS: dict[str, dict[str, Any]] = {
    "left out": {"name": "look"},
    "null": {"name": "look", "arguments": None},
    "an empty text": {"name": "look", "arguments": ""},
    "a blank text": {"name": "look", "arguments": " \n"},
}


@pytest.mark.parametrize("function", NO_ARGUMENTS.values(), ids=NO_ARGUMENTS)
def test_o12_a_call_without_arguments_is_carried_out_and_gone_on_behind(function: dict[str, Any]) -> None:
    """O-12, A9, I-44: however a server writes that there are none; the same words again do not repeat it."""
    call = Reply(body=json.dumps(completion(content=None, tool_calls=[{**CALL, "function": function}])).encode())
    with ProviderFake("openai-chat", [call, Failure(status=503), Answer(text="found")]) as fake:

        async def story() -> None:
            ran = list[str]()

            def look(path: str = "everywhere") -> str:
                """Read a file."""
                ran.append(path)
                return path

            chatting = agent(fake, store=MemoryStore(), tools=[look])
            with pytest.raises(AgentDecisionProviderUnavailable):
                await chatting.chat("look")
            assert await chatting.chat("look") == "found"
            assert ran == ["everywhere"]
            await chatting._chat.store.verify(chatting.key)

        told(story())
        assert not fake.refused


@pytest.mark.parametrize("call", ODD_CALLS.values(), ids=ODD_CALLS)
def test_o12_a_call_in_another_makers_form_is_answered_and_goes_back_in_openais(call: dict[str, Any]) -> None:
    """O-12, A9: it is carried out once, its results are paired with it, and no later request is refused; twice, too."""

    def calling(request: Received) -> Line:
        if request.json["messages"][-1]["role"] == "user":
            return Reply(body=json.dumps(completion(content=None, tool_calls=[call])).encode())
        return Answer(text="found")

    with ProviderFake("openai-chat", calling) as fake:

        async def story() -> None:
            store, ran = MemoryStore(), list[str]()

            def look(path: str) -> str:
                """Read a file."""
                ran.append(path)
                return path

            chatting = agent(fake, store=store, tools=[look])
            for _ in range(2):
                assert await chatting.chat("look") == "found"
            assert ran == ["a", "a"]
            sent = fake.requests[-1].json["messages"]
            made = [each for message in sent for each in message.get("tool_calls", ())]
            assert [json.loads(each["function"]["arguments"]) for each in made] == [{"path": "a"}] * 2
            assert [each["id"] for each in made] == [m["tool_call_id"] for m in sent if m["role"] == "tool"]
            answers = [entry.payload async for entry in store.entries(chatting.key)]
            assert sum(json.dumps([call]).encode() in payload for payload in answers) == 2  # as they came
            await store.verify(chatting.key)

        told(story())
        assert not fake.refused


@pytest.mark.parametrize("failed", [False, True], ids=["answered", "failed"])
@pytest.mark.parametrize("call", ODD_CALLS.values(), ids=ODD_CALLS)
def test_o12_a_chat_of_another_makers_server_goes_on_at_openais(
    call: dict[str, Any], local: Server, *, failed: bool
) -> None:
    """O-12, A9: with the next message, or with the same one where the first server failed behind the call."""

    def server(asked: dict[str, Any]) -> Any:
        if asked["messages"][-1]["role"] == "tool":
            return ok(completion(content="found"))
        return ok(completion(content=None, tool_calls=[call]))

    with ProviderFake("openai-chat", echo) as fake:

        async def story() -> None:
            options: dict[str, Any] = {"store": MemoryStore(), "conversation": "c", "tools": [look]}
            local.replies = [Answering(server)] * 2
            if failed:
                local.replies[1] = (503, {}, b"{}")
                with pytest.raises(AgentDecisionProviderUnavailable):
                    await agent(fake, client=at(local), **options).chat("look")
                assert await agent(fake, **options).chat("look") == "answer to a"
            else:
                assert await agent(fake, client=at(local), **options).chat("look") == "found"
            assert await agent(fake, **options).chat("and now?") == "answer to and now?"

        told(story())
        assert not fake.refused


PARTS = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "found"}]
FOREIGN: dict[str, dict[str, Any]] = {
    "a member": {"provider_specific_fields": {"a": 1}},
    "reasoning": {"reasoning_content": "hm"},
    "a name with a blank": {"name": "bot x"},
    "a member of the call": {"tool_calls": [{**CALL, "extra_content": {"signature": "s"}}]},
    "a member of the function": {"tool_calls": [{**CALL, "function": {**FUNCTION, "thought": "hm"}}]},
    "parts of another type": {"content": PARTS},
    "parts of another type alone": {"content": PARTS[:1], "tool_calls": [CALL]},
}


def at_openai(fake: ProviderFake) -> openai.AsyncOpenAI:
    """Return a client of OpenAI's own host, whose requests come to the fake."""
    http = httpx2.AsyncClient(transport=Rerouted(fake.base_url), timeout=20)
    return openai.AsyncOpenAI(base_url="https://api.openai.com/v1", api_key="k", http_client=http)


@pytest.mark.parametrize("extra", FOREIGN.values(), ids=FOREIGN)
def test_o12_what_openais_messages_do_not_have_goes_back_within_its_message_and_nowhere_else(
    extra: dict[str, Any], local: Server
) -> None:
    """O-12, A1: to the server whose it is, with the results of the message's calls; in no later one, at no host."""

    def server(asked: dict[str, Any]) -> Any:
        if asked["messages"][-1]["role"] == "tool":
            return ok(completion(**({"content": "found"} | {k: v for k, v in extra.items() if k != "tool_calls"})))
        return ok(completion(**({"content": None, "tool_calls": [CALL]} | extra)))

    with ProviderFake("openai-chat", echo) as fake:

        async def story() -> None:
            options: dict[str, Any] = {"store": MemoryStore(), "conversation": "c", "tools": [look]}
            local.replies = [Answering(server)] * 4
            each = agent(fake, client=at(local), **options)
            alone = "content" in extra and len(extra["content"]) == 1
            if alone:
                local.replies[1] = Answering(lambda _: ok(completion(content="found")))
            assert await each.chat("look") == "found"
            within = local.body(1)["messages"][2]
            assert {key: within[key] for key in extra} == extra
            for host in (at_openai(fake), None):
                options_ = options | ({"client": host} if host else {})
                assert (await agent(fake, **options_).chat("and now?")).startswith("answer")
            assert await each.get_history() == [
                *(user("look"), said("found")),
                *[user("and now?"), said("answer to and now?")] * 2,
            ]
            state = await each.export_conversation_state()
            await each.import_conversation_state(dict(state))
            assert await each.get_history() == state["history"]

        told(story())
        assert not fake.refused


@pytest.mark.parametrize("extra", FOREIGN.values(), ids=FOREIGN)
def test_o12_a_message_that_failed_elsewhere_is_said_again_at_openais(extra: dict[str, Any], local: Server) -> None:
    """O-12, A9: its calls are carried on there without what OpenAI's messages do not have."""
    with ProviderFake("openai-chat", echo) as fake:

        async def story() -> None:
            options: dict[str, Any] = {"store": MemoryStore(), "conversation": "c", "tools": [look]}
            local.replies = [ok(completion(**({"content": None, "tool_calls": [CALL]} | extra))), (503, {}, b"{}")]
            with pytest.raises(AgentDecisionProviderUnavailable):
                await agent(fake, client=at(local), **options).chat("look")
            assert await agent(fake, client=at_openai(fake), **options).chat("look") == "answer to a"

        told(story())
        assert not fake.refused
