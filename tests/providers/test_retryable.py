"""Which failures of a provider may be gone when the same request is sent again, by one fact of the error (SPEC D9)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from minutebook import AgentDecisionProviderUnavailable, Program, sync
from minutebook.providers import anthropic, gemini, openai_http
from minutebook.providers.counting import Refusal, count_failed, refused
from minutebook.providers.decision import unavailable
from minutebook.testing import Answer, ProviderFake
from minutebook.testing.fakes import (
    Disconnect,
    Failure,
    Line,
    Reply,
    StreamFailure,
    html_page,
    malformed_json,
    redirect,
)

PROVIDERS: dict[str, Any] = {
    "openai-chat": sync.OpenAIChatDecisionProvider,
    "openai-responses": sync.OpenAIDecisionProvider,
    "anthropic": sync.AnthropicDecisionProvider,
    "gemini": sync.GeminiDecisionProvider,
}
SAID = Answer(text='{"output": "done"}')
PASSING: dict[str, Line] = {
    **{f"{status}": Failure(status=status) for status in (408, 409, 429, 500, 503, 529)},
    "cut": Disconnect(SAID, 20),
    "a proxy's page": html_page(),
    "a proxy's page under 200": html_page(200),
    "half a body": malformed_json(),
}
LASTING: dict[str, Line] = {
    **{f"{status}": Failure(status=status) for status in (400, 401, 402, 403, 404, 413, 422)},
    "moved": redirect("/elsewhere"),
}
STREAMED: dict[str, tuple[StreamFailure, bool]] = {
    f"{status} inside the stream": (StreamFailure(answer=SAID, status=status), passes)
    for status, passes in {429: True, 500: True, 503: True, 529: True, 401: False, 404: False}.items()
}
ROWS = [
    *((stream, line, True, name) for stream in (False, True) for name, line in PASSING.items()),
    *((stream, line, False, name) for stream in (False, True) for name, line in LASTING.items()),
    *((True, line, passes, name) for name, (line, passes) in STREAMED.items()),
]


@pytest.mark.parametrize(
    ("stream", "line", "passes"),
    [row[:3] for row in ROWS],
    ids=[f"{name}{', streamed' if stream else ''}" for stream, _, _, name in ROWS],
)
@pytest.mark.parametrize("name", PROVIDERS)
def test_d09_an_error_says_whether_the_same_request_may_succeed_later(
    name: str, stream: bool, line: Line, passes: bool
) -> None:
    """D9: in a stream as without one, where the HTTP status was 200; and once it has passed the same run goes on."""
    with ProviderFake(name, [line, SAID]) as fake:
        options = {"model": "m", "base_url": fake.base_url, "api_key": "any", "stream": stream}
        runtime = sync.Runtime(
            Program(name="p", instructions="Look."), PROVIDERS[name](**options, max_output_tokens=100)
        )
        with pytest.raises(AgentDecisionProviderUnavailable) as caught:
            runtime.run("Go.", run_id="r", invocation_id="i")
        assert caught.value.retryable is passes
        assert not isinstance(line, StreamFailure) or caught.value.status == 200
        assert runtime.run("Go.", run_id="r", invocation_id="i").output == "done"


@pytest.mark.parametrize(("line", "passes"), STREAMED.values(), ids=STREAMED)
def test_d09_a_chats_error_says_whether_the_same_words_may_be_answered_later(line: Line, passes: bool) -> None:
    """D9: a stream of an agent fails under 200 too."""
    with ProviderFake("openai-chat", [line]) as fake:
        client = openai.OpenAI(base_url=fake.base_url, api_key="any")
        each = sync.Agent(name="Assistant", goal="Help users", client=client)
        with pytest.raises(AgentDecisionProviderUnavailable) as caught:
            list(each.stream("hi"))
    assert (caught.value.status, caught.value.retryable) == (200, passes)


CODES_THAT_PASS = {
    *("rate_limit_exceeded", "server_error", "vector_store_timeout", "overloaded", "timeout", "internal_error"),
    *("rate_limit_error", "timeout_error", "api_error", "overloaded_error", "conflict_error"),
    *("ABORTED", "CANCELLED", "DATA_LOSS", "DEADLINE_EXCEEDED", "INTERNAL"),
    *("RESOURCE_EXHAUSTED", "UNAVAILABLE", "UNKNOWN", "failed_to_download_image"),
}
"""Of the providers' words those that say nothing of the request: too much at once, or the service itself."""


def codes() -> Iterator[str]:
    """Yield each code that is passed on of a provider's words."""
    yield from openai_http._CODES.values()  # pyright: ignore[reportPrivateUsage]
    yield from anthropic._CODES.values()  # pyright: ignore[reportPrivateUsage]
    yield from gemini._CODES  # pyright: ignore[reportPrivateUsage]


def test_d09_what_a_provider_says_of_a_request_lasts_whatever_the_status() -> None:
    """D9: every code of the tables is told apart, of a count as of an answer; a quota that is used up comes as 429."""
    assert set(codes()) >= CODES_THAT_PASS
    for status in (None, 200, 429, 499, 500):
        generic = {"invalid_request_error"} if status in (429, 499) else set[str]()  # what OpenAI calls most of 4xx
        passing = CODES_THAT_PASS | generic
        for failed in (unavailable, count_failed):
            assert {code for code in codes() if failed(code, status).retryable} == passing


def test_d12_a_request_that_cannot_be_counted_is_none_to_send_again() -> None:
    """D12: its error names what to leave out; a count that did not come may come later."""
    assert [each for each in Refusal if refused(each).retryable] == []
    assert all(count_failed(f"http_{status}", status).retryable for status in (408, 409, 429, 500, 529))
    assert not any(count_failed(f"http_{status}", status).retryable for status in (307, 400, 401, 404, 422))
    assert count_failed("timeout").retryable


@pytest.mark.parametrize(
    ("code", "status"),
    [(400, 400), ("401", 401), (402, 402), (429, 429), (503, 503), (7, 200), (True, 200), ("x", 200)],
)
@pytest.mark.parametrize("name", ["openai-chat", "openai-responses", "anthropic"])
def test_d09_a_status_that_a_server_tells_inside_its_body_is_the_failures(name: str, code: Any, status: int) -> None:
    """D9: servers that speak another maker's format answer 200 with an error whose code is what the status was."""
    with ProviderFake(
        name, [Reply(status=200, body=json.dumps({"error": {"message": "m", "code": code}}).encode())]
    ) as fake:
        options: dict[str, Any] = {"model": "m", "base_url": fake.base_url, "api_key": "any"}
        runtime = sync.Runtime(
            Program(name="p", instructions="Look."), PROVIDERS[name](**options, max_output_tokens=100)
        )
        with pytest.raises(AgentDecisionProviderUnavailable) as caught:
            runtime.run("go")
    assert (caught.value.status, caught.value.retryable) == (status, status not in (400, 401, 402))


def test_d09_what_is_wrong_on_this_side_is_none_to_send_again() -> None:
    """D9: a client without credentials, or a limit of the host's own, stays as it is."""
    assert not any(unavailable(code).retryable for code in ("client_failed", "response_too_large"))
