"""One object of ours over several `asyncio.run`, and what is told of a request that failed (SPEC A1, D9)."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx2
import openai
import pytest

import minutebook
from minutebook import Agent, AgentDecisionProviderUnavailable, Program, ProviderContextCountUnavailable, Runtime
from minutebook.testing import Answer, ProviderFake
from minutebook.testing.fakes import Failure

KEY = "sk-canary-4711"
SECRET = "SECRET-1848"
PROVIDERS: dict[str, Any] = {
    "openai-chat": minutebook.OpenAIChatDecisionProvider,
    "openai-responses": minutebook.OpenAIDecisionProvider,
    "anthropic": minutebook.AnthropicDecisionProvider,
    "gemini": minutebook.GeminiDecisionProvider,
}
CLIENTS: dict[str, Callable[[str, Any], Any]] = {
    "openai-chat": lambda url, http: openai.AsyncOpenAI(base_url=url, api_key=KEY, http_client=http),
    "openai-responses": lambda url, http: openai.AsyncOpenAI(base_url=url, api_key=KEY, http_client=http),
    "anthropic": lambda url, http: anthropic.AsyncAnthropic(base_url=url, api_key=KEY, http_client=http),
    "gemini": lambda _, http: http or httpx2.AsyncClient(),
}


@pytest.fixture(params=PROVIDERS)
def fake(request: pytest.FixtureRequest) -> Iterator[tuple[str, ProviderFake]]:
    """A strict fake that answers `done` as often as it is asked; its client keeps connections alive."""
    with ProviderFake(request.param, lambda _: Answer(text='{"output": "done"}')) as server:
        yield request.param, server
        assert not server.refused


def provider_of(name: str, url: str, **options: Any) -> Any:
    """A provider with a client of its own, unless one is given."""
    if "client" in options and name != "gemini":
        return PROVIDERS[name](model="m", max_output_tokens=64, **options)
    return PROVIDERS[name](model="m", max_output_tokens=64, base_url=url, api_key=KEY, **options)


async def decided(provider: Any) -> Any:
    program = Program(name="p", instructions="You decide.", output=str)
    outcome = await Runtime(program, provider).run("task")
    if outcome.error is not None:
        raise outcome.error
    return outcome.output


def failed(provider: Any) -> Any:
    """What a decision is refused with, from an event loop of its own."""
    with pytest.raises(minutebook.ProviderError) as caught:
        asyncio.run(decided(provider))
    return caught.value


def test_d09_a_provider_outlives_the_event_loop_that_it_was_used_under(fake: tuple[str, ProviderFake]) -> None:
    """D9: each `asyncio.run` is another loop; a client that was made for the one before is left for a fresh one."""
    name, server = fake
    provider = provider_of(name, server.base_url)
    for _ in range(4):
        assert asyncio.run(decided(provider)) == "done"
    assert len(server.requests) == 4


def test_d09_a_provider_is_closed_under_another_loop_than_it_was_used_under(fake: tuple[str, ProviderFake]) -> None:
    """D9: what was opened under a loop ended with it; closing says nothing of that, and a later decision is made."""
    name, server = fake
    provider = provider_of(name, server.base_url)
    asyncio.run(decided(provider))
    asyncio.run(provider.close())
    assert asyncio.run(decided(provider)) == "done"


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_d09_nobody_is_told_of_a_client_that_was_left_behind(
    fake: tuple[str, ProviderFake], caplog: pytest.LogCaptureFixture
) -> None:
    """D9: the official clients close themselves under whatever loop runs when they are collected, which fails."""
    name, server = fake
    provider = provider_of(name, server.base_url)
    gc.collect()  # what other tests left has no loop to close itself under

    async def collected() -> None:
        assert await decided(provider) == "done"
        gc.collect()
        await asyncio.sleep(0)  # what the collection began has its turn

    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            asyncio.run(collected())
        gc.collect()
    assert not caplog.records


def test_d09_within_one_loop_the_connection_is_kept(fake: tuple[str, ProviderFake]) -> None:
    """D9: the control: a fresh client is made for another loop, and not for each request."""
    name, server = fake
    provider = provider_of(name, server.base_url)
    clients: list[object] = []

    async def thrice() -> None:
        for _ in range(3):
            await decided(provider)
            clients.append(provider._post._client)

    asyncio.run(thrice())
    assert len({id(client) for client in clients}) == 1
    asyncio.run(decided(provider))
    assert provider._post._client is not clients[0]


def test_a1_an_agent_outlives_the_event_loop_that_it_was_used_under() -> None:
    """A1: talked to from a script that calls `asyncio.run` for each message, streamed or not."""
    with ProviderFake("openai-chat", lambda _: Answer(text="so")) as server:
        agent = Agent(name="A", goal="g", base_url=server.base_url, api_key=KEY)

        async def streamed() -> str:
            return "".join([piece async for piece in agent.stream("and?")])

        for _ in range(3):
            assert asyncio.run(agent.chat("hi")) == "so"
            assert asyncio.run(streamed()) == "so"
        assert asyncio.run(agent.get_history_length()) == 12


def test_d09_two_loops_at_once_take_turns_with_one_provider(fake: tuple[str, ProviderFake]) -> None:
    """D9: each thread has its loop; neither is given the other's connections."""
    name, server = fake
    provider = provider_of(name, server.base_url)
    took: list[str] = []
    turn = threading.Barrier(2, timeout=20)

    def work() -> None:
        async def body() -> None:
            for _ in range(3):
                turn.wait()
                took.append(await decided(provider))

        asyncio.run(body())

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert took == ["done"] * 6


def test_d09_a_client_that_was_given_is_not_replaced_and_the_error_says_what_to_do(
    fake: tuple[str, ProviderFake],
) -> None:
    """D9: it is the host's; that it fails is the control of the tests above, and the words name the way out."""
    name, server = fake
    provider = provider_of(name, server.base_url, client=CLIENTS[name](server.base_url, None))
    assert asyncio.run(decided(provider)) == "done"
    error = failed(provider)
    assert (error.provider_error_code, error.cause) == ("connection_failed", "RuntimeError")
    assert "another event loop" in str(error)
    assert "asyncio.run" in str(error)
    assert server.wait_for(2)  # it went out by the dead connection, so nothing may send it once more


@pytest.mark.parametrize("count", [False, True])
@pytest.mark.parametrize("name", PROVIDERS)
def test_d09_d12_i37_a_connection_that_failed_names_the_type_of_its_cause_and_not_its_words(
    name: str, count: bool
) -> None:
    """D9, D12, I-37: nobody listens, or a transport of the host raises; its text may quote a key."""

    class Broken(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            raise LookupError(SECRET)

    kind = ProviderContextCountUnavailable if count else AgentDecisionProviderUnavailable
    counting = {"count": count} if name != "openai-chat" else {}
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        for http, cause in ((None, "ConnectError"), (httpx2.AsyncClient(transport=Broken()), "LookupError")):
            error = failed(provider_of(name, url, client=CLIENTS[name](url, http), **counting))
            assert (error.provider_error_code, error.cause) == ("connection_failed", cause)
            assert type(error) is kind or not counting
            assert f"connection_failed ({cause})" in str(error)
            assert "event loop" not in str(error)
            assert SECRET not in f"{error!r} {error} {error.facts}"


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (400, "refused the request"),
        (401, "refused the request"),
        (404, "refused the request"),
        (429, "refused the request"),
        (500, "failed"),
        (503, "failed"),
    ],
)
@pytest.mark.parametrize("name", PROVIDERS)
def test_d09_a_status_is_told_as_what_the_provider_did(name: str, status: int, told: str) -> None:
    """D9: a provider that refuses has given a response; nobody should look for a broken network."""
    with ProviderFake(name, lambda _: Failure(status=status)) as server:
        error = failed(provider_of(name, server.base_url))
    assert type(error) is AgentDecisionProviderUnavailable
    assert (error.status, error.cause) == (status, None)
    assert str(error).startswith(f"the provider {told}: ")
    assert str(error).endswith(f", HTTP status {status}")
