"""
The Anthropic provider against a real model: llama.cpp's Messages endpoint, an independent reading of that API.

The model is small and the endpoint binds no answer to a schema, so what it says of itself is no decision. Proved is
what happens around it: requests that another implementation takes, counts that it bills, streams, an overflow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx2
import msgspec
import pytest
from tests.http_clients import http_client
from tests.local_model import needs_model
from tests.providers.loopback import REQUEST, seen

from minutebook import sync
from minutebook.errors import AgentDecisionProviderSchemaViolation, AgentDecisionProviderUnavailable
from minutebook.local import LocalModel
from minutebook.model.decisions import CallReference, ProposedCall
from minutebook.model.entries import Kind

pytestmark = needs_model

LOOKED = {"decision": {"action": "look", "path": "a.txt"}}


@pytest.fixture(scope="module")
def model() -> Iterator[LocalModel]:
    with LocalModel(context_tokens=2048) as model:
        yield model


class Told:
    """A client of the local server, and what went over its connection."""

    def __init__(self, model: LocalModel) -> None:
        self.answers: list[tuple[str, dict[str, Any]]] = []
        http = http_client(verify=False, timeout=120, event_hooks={"response": [self._keep]})
        url = model.base_url.removesuffix("/v1")
        self.client = anthropic.Anthropic(base_url=url, api_key="none", http_client=http)
        self.model = model

    def _keep(self, response: httpx2.Response) -> None:
        response.read()
        if response.headers["Content-Type"].startswith("application/json"):
            self.answers.append((response.request.url.path, json.loads(response.content)))

    def provider(self, **options: Any) -> sync.AnthropicDecisionProvider:
        given = {"decision_interface": "structured", "max_output_tokens": 48, "extra_body": {"temperature": 0}}
        return sync.AnthropicDecisionProvider(model=self.model.model, client=self.client, **(given | options))


def recorded(provider: sync.AnthropicDecisionProvider) -> list[Any]:
    assert provider.store is not None
    record = provider.store.read(provider.key(REQUEST))
    assert record is not None
    return list(record.entries)


@pytest.mark.parametrize("interface", ["native", "structured"])
def test_d12_a_real_server_bills_what_it_counted(model: LocalModel, interface: str) -> None:
    """D9, D12: an independent server takes both requests; prose is a schema violation, and its body is kept."""
    told = Told(model)
    provider = told.provider(decision_interface=interface, count=True)
    with pytest.raises(AgentDecisionProviderSchemaViolation):
        provider.decide(REQUEST)
    (counted_at, counted), (generated_at, generated) = told.answers
    assert (counted_at, generated_at) == ("/v1/messages/count_tokens", "/v1/messages")
    assert counted["input_tokens"] == generated["usage"]["input_tokens"] > 0
    assert json.loads(recorded(provider)[1].payload) == generated


def test_d26_a_real_stream_adds_up_to_the_answer_without_one(model: LocalModel) -> None:
    """D26: at temperature zero the same answer, streamed and not."""
    bodies = []
    for stream in (False, True):
        provider = Told(model).provider(stream=stream)
        with pytest.raises(AgentDecisionProviderSchemaViolation):
            provider.decide(REQUEST)
        bodies.append(json.loads(recorded(provider)[1].payload))
    whole, streamed = ({key: body[key] for key in ("content", "stop_reason", "usage", "role")} for body in bodies)
    assert whole["content"][0]["text"]
    assert streamed == whole


def test_d26_a_real_server_takes_the_window_of_a_later_step(model: LocalModel) -> None:
    """D26: a conversation that began elsewhere goes on there, its messages as they were recorded."""
    told = Told(model)
    store = sync.MemoryStore("n")
    options: dict[str, Any] = {"history": sync.HistoryOptions(store=store)}
    begun = sync.AnthropicDecisionProvider(
        model=model.model, decision_interface="structured", generate=lambda messages, schema: LOOKED, **options
    )
    (call,) = begun.decide(REQUEST).calls
    assert call == ProposedCall(capability="look", arguments={"path": "a.txt"}, reference=CallReference(2, 0))
    provider = told.provider(**options)
    # With one decision before it the model writes another one.
    decision = provider.decide(msgspec.structs.replace(REQUEST, observations=(seen(call, "blue"),)))
    assert decision.finish or decision.calls[0].capability == "look"
    assert [entry.kind for entry in recorded(provider)] == [Kind.INPUT, Kind.RESPONSE, Kind.RESULT, Kind.RESPONSE]
    assert decision.billed_tokens


def test_d09_d13_a_real_overflow_is_unavailable_and_compacts_nothing(model: LocalModel) -> None:
    """D9, D13: the server's own refusal of a prompt over its context."""
    long = msgspec.structs.replace(REQUEST, task="word " * 3000)
    provider = Told(model).provider()
    for _ in range(2):
        with pytest.raises(AgentDecisionProviderUnavailable) as caught:
            provider.decide(long)
        assert (caught.value.provider_error_code, caught.value.status) == ("context_length_exceeded", 400)
