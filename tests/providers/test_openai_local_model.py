"""The OpenAI providers against a real model: an independent server counts, generates and bills."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.http_clients import http_client
from tests.local_model import needs_model

from minutebook import ContextWindow, sync
from minutebook.errors import AgentDecisionProviderUnavailable, ProviderContextWindowExceeded
from minutebook.local import LocalModel
from minutebook.model.decisions import CapabilitySpec, DecisionRequest, Observation
from minutebook.model.receipts import decode_sent
from minutebook.providers.openai_responses import RESPONSES
from minutebook.providers.structured import Structured
from minutebook.providers.wire import wire_format

openai = pytest.importorskip("openai", reason="the providers post through the official client: install `openai`")


from minutebook.decisions import HistoryOptions, OpenAIChatDecisionProvider, OpenAIDecisionProvider  # noqa: E402

pytestmark = needs_model

LOOK = CapabilitySpec(
    name="look",
    description="Read a file.",
    parameters={
        "type": "object",
        "properties": {"path": {"type": "string", "maxLength": 12}},
        "required": ["path"],
        "additionalProperties": False,
    },
)
REQUEST = DecisionRequest(
    run_id="run",
    invocation_id="1",
    agent_ref="agent",
    instructions="You decide what to do next.",
    task="Read the file a.txt with look, then answer with what it says.",
    capabilities=(LOOK,),
    output={
        "type": "object",
        "properties": {"answer": {"type": "string", "maxLength": 12}},
        "required": ["answer"],
        "additionalProperties": False,
    },
)
STEPS = 3


@pytest.fixture(scope="module")
def model() -> Iterator[LocalModel]:
    with LocalModel(context_tokens=2048) as model:
        yield model


def options(model: LocalModel, **changes: Any) -> dict[str, Any]:
    return {
        "model": model.model,
        "base_url": model.base_url,
        "api_key": "none",
        "decision_interface": "structured",
        "max_output_tokens": 64,
        "count": True,
        **changes,
    }


def chat(model: LocalModel) -> Any:
    return OpenAIChatDecisionProvider(**options(model, extra_body={"temperature": 0}))


def responses(model: LocalModel) -> Any:
    # The server takes this API's `text` and does nothing with it: it binds the answer by the other API's field.
    schema: Any = Structured(wire_format("openai-responses"), RESPONSES).schema(REQUEST)
    bound = {"type": "json_schema", "json_schema": {"name": "decision", "schema": schema}}
    return OpenAIDecisionProvider(**options(model, extra_body={"temperature": 0, "response_format": bound}))


async def steps(provider: Any) -> list[Any]:
    """Decide until the model finishes, at most `STEPS` times; each call is answered as a runtime would."""
    made: list[Any] = []
    observations: list[Observation] = []
    while len(made) < STEPS and (not made or made[-1].calls):
        made.append(await provider.decide(msgspec.structs.replace(REQUEST, observations=tuple(observations))))
        observations += [
            Observation(capability=c.capability, arguments=c.arguments, value={"text": "blue"}, reference=c.reference)
            for c in made[-1].calls
        ]
    return made


@pytest.mark.parametrize("make", [chat, responses])
def test_d01_d12_a_real_model_decides_and_every_count_is_what_is_billed(make: Any, model: LocalModel) -> None:
    """D1, D12: typed decisions over several steps; the server bills exactly the tokens that it counted before."""
    provider = make(model)

    async def told() -> tuple[list[Any], list[Any]]:
        decisions = await steps(provider)
        receipts = [receipt async for receipt in provider.store.receipts(provider.key(REQUEST))]
        await provider.store.verify(provider.key(REQUEST))
        return decisions, receipts

    decisions, receipts = asyncio.run(told())
    assert decisions
    for decision in decisions:
        assert decision.counted_tokens == decision.billed_tokens
        assert decision.finish is not None or decision.calls[0].capability == "look"
    counted = [decision.counted_tokens for decision in decisions]
    assert counted == sorted(set(counted)), "each step shows the model more than the one before"
    sent = [decode_sent(receipt.sent) for receipt in receipts if receipt.sent]
    assert [receipt.counted_tokens for receipt in sent] == counted
    assert [receipt.billed_tokens for receipt in sent] == counted


def test_d01_the_blocking_client_decides_the_same(model: LocalModel) -> None:
    """D1: under `openai.OpenAI` the same coroutine ends without suspending, and the model answers alike."""
    with openai.OpenAI(base_url=model.base_url, api_key="none") as client:
        provider = sync.OpenAIChatDecisionProvider(
            **options(model, base_url=None, api_key=None, client=client, extra_body={"temperature": 0})
        )
        blocking = provider.decide(REQUEST)
    other = asyncio.run(chat(model).decide(REQUEST))
    assert blocking == msgspec.structs.replace(other, conversation=blocking.conversation, digest=blocking.digest)


def test_d09_d13_a_real_overflow_is_unavailable_and_compacts_nothing(model: LocalModel) -> None:
    """D9, D13: the server's own refusal of a prompt over its context; asked again, the same request leaves."""
    long = msgspec.structs.replace(REQUEST, task="word " * 3000)
    told: list[Any] = []
    provider = OpenAIChatDecisionProvider(**options(model, count=False, history=HistoryOptions(on_event=told.append)))
    for _ in range(2):
        with pytest.raises(AgentDecisionProviderUnavailable) as caught:
            asyncio.run(provider.decide(long))
        assert (caught.value.provider_error_code, caught.value.status) == ("context_length_exceeded", 400)
    assert [event.kind for event in told] == ["decision_history_abandoned"] * 2


def test_d12_a_real_tokenizer_holds_the_window_and_bills_what_fits(model: LocalModel) -> None:
    """D12: over more turns than fit, every request is billed what was counted, fits, and loses only its oldest part."""
    told: list[Any] = []
    window = ContextWindow(context_window_tokens=600, input_token_multiplier=1, safety_margin_tokens=16)
    provider = OpenAIChatDecisionProvider(
        **options(model, context=window, history=HistoryOptions(on_event=told.append), extra_body={"temperature": 0})
    )

    async def run() -> list[Any]:
        made: list[Any] = []
        for turn in range(6):
            task = f"Turn {turn}: say what the file says. " + "blue and green and red, " * 8
            made.append(await provider.decide(msgspec.structs.replace(REQUEST, task=task, capabilities=())))
        return made

    decisions = asyncio.run(run())
    counted = [decision.counted_tokens for decision in decisions]
    assert counted == [decision.billed_tokens for decision in decisions]
    assert all(0 < tokens <= window.most_input(64) for tokens in counted)
    assert [event for event in told if event.kind == "decision_history_trimmed"]
    assert [event for event in told if event.kind == "provider_context_count" and not event.fits]


def test_d14_a_real_server_is_guarded_under_the_anthropic_client(model: LocalModel) -> None:
    """D14: an independent server counts by the other API too; what fits is billed as counted, what does not is not."""
    anthropic = pytest.importorskip("anthropic")
    told: list[Any] = []
    server = model.base_url.removesuffix("/v1")
    guard = sync.ContextGuardTransport(
        provider="anthropic",
        context=ContextWindow(context_window_tokens=600),
        qualified=[server],
        on_event=told.append,
    )
    http = http_client(transport=guard)
    client = anthropic.Anthropic(base_url=server, api_key="none", http_client=http, middleware=[guard.surface])
    with client:
        said = client.messages.create(model="m", max_tokens=8, messages=[{"role": "user", "content": "Name a colour."}])
        with pytest.raises(ProviderContextWindowExceeded):
            client.messages.create(model="m", max_tokens=8, messages=[{"role": "user", "content": "word " * 200}])
    assert [event.fits for event in told] == [True, False]
    assert told[0].count == said.usage.input_tokens + (said.usage.cache_read_input_tokens or 0) > 0


def test_d01_native_finishing_is_bound_to_the_output_schema(model: LocalModel) -> None:
    """D1: without a capability to call, the native interface's text is the output, typed by the server's grammar."""
    provider = OpenAIChatDecisionProvider(**options(model, decision_interface="native", extra_body={"temperature": 0}))
    decision = asyncio.run(provider.decide(msgspec.structs.replace(REQUEST, capabilities=())))
    assert decision.finish is not None
    assert list(json.loads(json.dumps(decision.finish.output))) == ["answer"]
