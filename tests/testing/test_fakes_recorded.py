"""
The fakes' rules against requests that the services themselves have answered: what they took is not refused here.

The recordings are not part of the repository (see `tests/recordings.py`). They are of many
programs and ages; what some of them ask for is state at the provider or a beta, which the fakes mean to refuse.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.providers.test_real_conversations_wire import read
from tests.recordings import DATA, needs_recordings

from minutebook.testing.fakes import anthropic, gemini, openai_chat, openai_responses

pytestmark = needs_recordings

SERVICES: dict[str, tuple[Any, str, int]] = {
    "chat_completions": (openai_chat, r"api\.openai\.com/v1/chat/completions$", 400),
    "anthropic_messages": (anthropic, r"api\.anthropic\.com/v1/messages(\?.*)?$", 200),
    "openai_responses": (openai_responses, r"api\.openai\.com/v1/responses$", 200),
    "gemini_generate": (gemini, r"generativelanguage\.googleapis\.com/.*enerateContent(\?.*)?$", 150),
}
MEANT: dict[str, dict[str, int]] = {
    "chat_completions": {},
    "anthropic_messages": {
        r"^messages\.\d+\.content\.\d+\.(tool|name): ": 6,  # blocks of tools that a beta runs there
        r"^tools\.\d+\.type: ": 3,  # such tools
        r"^(mcp_servers|output_format|context_management|output_config\.task_budget): Extra": 9,  # betas
    },
    "openai_responses": {
        r"^Background mode": 6,
        r"^(Conversation|Previous response) not found": 4,
        r"^Nothing was compacted here": 1,
        r"^No tool call found for function call output with call_id search_call": 1,  # the answer of another kind
    },
    "gemini_generate": {
        r"^You do not have permission to access the File": 11,
        r"^CachedContent not found": 2,
        r"^Please ensure that function call turn comes immediately": 2,  # two contents of the model, joined there
        r"^tools: Invalid value": 2,  # one tool in the place of a list
    },
}
"""What is refused here and was taken there, as a pattern of the words and at most how often."""


def requests(service: str) -> Iterator[tuple[dict[str, Any], Any]]:
    """Every recorded request of a service with its response."""
    _, address, _ = SERVICES[service]
    for path in sorted((DATA / "provider_exchanges").glob(f"{service}__*.gz")):
        for recording in read(path):
            for exchange in recording["exchanges"]:
                if re.search(address, exchange["uri"]) and isinstance(exchange.get("request"), dict):
                    yield exchange["request"], exchange.get("response")


def has_failed(response: Any) -> bool:
    return isinstance(response, dict) and bool(response.get("error"))


@pytest.mark.parametrize("service", list(SERVICES))
def test_i22_what_a_service_took_is_not_refused(service: str, figure: Callable[[str], None]) -> None:
    """Every recorded request that was answered breaks no rule here, but for those that the fakes mean to refuse."""
    rules, _, least = SERVICES[service]
    taken = 0
    refused: Counter[str] = Counter()
    for body, response in requests(service):
        if has_failed(response):
            continue
        problem = rules.check_request(body)
        if problem is None:
            taken += 1
            continue
        meant = next((pattern for pattern in MEANT[service] if re.search(pattern, problem.message)), None)
        assert meant is not None, problem
        refused[meant] += 1
    assert taken >= least
    assert all(count <= MEANT[service][pattern] for pattern, count in refused.items())
    figure(f"{taken} answered requests taken, {sum(refused.values())} refused on purpose")


def test_o10_the_recorded_refusal_of_lone_reasoning_is_refused_here() -> None:
    """O-10: the one history among the recordings that OpenAI refused for its order is refused in the same words."""
    found = [
        (openai_responses.check_request(body), response["error"])
        for body, response in requests("openai_responses")
        if has_failed(response) and "following item" in response["error"]["message"]
    ]
    assert found
    for problem, error in found:
        assert problem is not None
        assert (problem.message, problem.type, problem.code, problem.param) == (
            error["message"],
            error["type"],
            error["code"],
            error["param"],
        )
