"""Face A and the runtime: a tool that is cancelled, or misses an event loop, by its own doing (SPEC A4, D28)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import openai
import pytest
from tests.faces.test_agent import agent, said, told, user
from tests.http_clients import http_client
from tests.runtime.programs import call, calls, finish

from minutebook import MemoryStore, Program, Runtime, capability, sync
from minutebook.errors import BlockingMismatch
from minutebook.runtime import Outcome
from minutebook.testing import Answer, FunctionCall, ProviderFake, ScriptedProvider
from minutebook.testing.fakes import Received


def script(request: Received) -> Answer:
    """Call once, then say what came of it."""
    newest = request.json["messages"][-1]
    if newest["role"] == "tool":
        return Answer(text=newest["content"])
    return Answer(calls=(FunctionCall(request.json["tools"][0]["function"]["name"], {"path": "a"}),))


async def cancelled_inside(path: str) -> str:
    """Wait for a task that is cancelled."""
    waits = asyncio.create_task(asyncio.sleep(3600))
    waits.cancel()
    await waits
    return path


async def raising_at_an_await(path: str) -> str:
    """Raise a cancellation."""
    await asyncio.sleep(0)
    raise asyncio.CancelledError(path)


def raising(path: str) -> str:
    """Raise a cancellation without waiting."""
    raise asyncio.CancelledError(path)


async def of_a_thread(path: str) -> str:
    """Look for an event loop where none runs."""
    await asyncio.to_thread(asyncio.get_running_loop)
    return path


OWN: dict[Callable[..., Any], str] = {
    cancelled_inside: "CancelledError",
    raising_at_an_await: "CancelledError",
    raising: "CancelledError",
    of_a_thread: "RuntimeError",
}
"""What goes wrong in a tool alone, and what the model is told of it."""


def running(function: Callable[..., Any]) -> Coroutine[Any, Any, Outcome[str]]:
    """Return a run of a program that calls a function once."""
    declared: Program[str] = Program(name="clerk", instructions="look", capabilities=[capability()(function)])
    provider = ScriptedProvider([calls(call(function.__name__, path="a")), finish("done")])
    return Runtime(declared, provider, checkpoints=False).run("go")


@pytest.mark.parametrize("function", OWN, ids=lambda function: function.__name__)
@pytest.mark.parametrize("managed", [True, False], ids=["kept", "aside"])
def test_a4_a9_what_goes_wrong_in_a_tool_alone_is_told_to_the_model(
    function: Callable[..., Any], managed: bool
) -> None:
    """A4, A9: nobody cancelled the chat, and an event loop runs; so it goes on, as behind any other failure."""
    with ProviderFake("openai-chat", script) as fake:

        async def story() -> None:
            each = agent(fake, store=MemoryStore(), tools=[function], auto_manage_history=managed)
            told_ = f'{{"error":{{"error":"{OWN[function]}"}}}}'
            assert await each.chat("go") == told_
            assert await each.get_history() == ([user("go"), said(told_)] if managed else [])
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0

        told(story())
        assert not fake.refused


@pytest.mark.parametrize("function", OWN, ids=lambda function: function.__name__)
def test_d28_a_capability_that_is_cancelled_by_its_own_doing_is_observed(function: Callable[..., Any]) -> None:
    """D28: in every run that an event loop runs."""

    async def story() -> None:
        outcome = await running(function)
        assert outcome.output == "done"
        assert [each.value for each in outcome.observations] == [{"error": OWN[function]}]

    asyncio.run(story())


def test_a9_a_cancellation_of_the_chat_passes_through_a_tool_that_waits() -> None:
    """A9: by its task, and by a time-out around it; the call was under way, and the history is as it was."""
    with ProviderFake("openai-chat", script) as fake:

        async def story() -> None:
            waiting = asyncio.Event()

            async def wait(path: str) -> str:
                """Wait for ever."""
                waiting.set()
                await asyncio.get_running_loop().create_future()
                return path

            async def cut_short(by: Callable[[asyncio.Task[Any], asyncio.Timeout], object]) -> None:
                each = agent(fake, tools=[wait])
                async with asyncio.timeout(None) as timeout:
                    chat = asyncio.current_task()
                    assert chat is not None
                    waiting.clear()
                    soon = asyncio.create_task(waiting.wait())
                    soon.add_done_callback(lambda _: by(chat, timeout))
                    try:
                        await each.chat("go")
                    finally:
                        assert await each.get_history() == []

            with pytest.raises(asyncio.CancelledError):
                await asyncio.create_task(cut_short(lambda chat, _: chat.cancel()))
            with pytest.raises(TimeoutError):
                await cut_short(lambda _, timeout: timeout.reschedule(0))

        told(story())


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, GeneratorExit, type("Shutdown", (BaseException,), {})])
def test_a9_what_is_meant_for_the_program_passes_through_a_tool(stop: type[BaseException]) -> None:
    """A9: a stop, or what a signal's handler raises; it is no failure of the tool."""
    with ProviderFake("openai-chat", script) as fake:
        client = openai.OpenAI(base_url=fake.base_url, api_key="k", http_client=http_client(verify=False, timeout=20))

        def look(path: str) -> str:
            """Be stopped."""
            raise stop(path)

        each = sync.Agent(name="Assistant", goal="Help users", client=client, tools=[look])
        with pytest.raises(stop):
            each.chat("go")
        assert each.get_history() == []


def test_a4_b11_a_blocking_agents_tool_that_is_cancelled_inside_is_told_to_the_model() -> None:
    """A4, B11: an event loop of its own that ends in a cancellation; one that is missed is still refused by name."""
    with ProviderFake("openai-chat", script) as fake:
        client = openai.OpenAI(base_url=fake.base_url, api_key="k", http_client=http_client(verify=False, timeout=20))

        def look(path: str) -> str:
            """Run a loop."""
            return asyncio.run(cancelled_inside(path))

        def lost(path: str) -> str:
            """Look for a loop."""
            asyncio.get_running_loop()
            return path

        options: dict[str, Any] = {"name": "Assistant", "goal": "Help users", "client": client}
        assert sync.Agent(**options, tools=[look]).chat("go") == '{"error":{"error":"CancelledError"}}'
        with pytest.raises(BlockingMismatch, match="none runs here"):
            sync.Agent(**options, tools=[lost]).chat("go")
