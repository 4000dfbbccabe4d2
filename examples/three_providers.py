"""
One program on OpenAI, Anthropic and Gemini: only the line that makes the provider differs.

    python three_providers.py

With a key in the environment (OPENAI_API_KEY, ANTHROPIC_API_KEY, GEMINI_API_KEY) a provider's own service answers.
Without one a strict fake of it does, on this machine: it refuses what the service refuses, such as a call without its
result or a signature that was changed. It needs `minutebook[openai,anthropic,gemini]`.
"""

import os
from contextlib import ExitStack
from typing import Any

from minutebook.sync import (
    AnthropicDecisionProvider,
    Budgets,
    GeminiDecisionProvider,
    OpenAIDecisionProvider,
    Program,
    Runtime,
    capability,
)
from minutebook.testing import Answer, FunctionCall, ProviderFake
from minutebook.testing.fakes import Received

PROVIDERS = {
    "openai-responses": (OpenAIDecisionProvider, "gpt-6", "OPENAI_API_KEY", ""),
    "anthropic": (AnthropicDecisionProvider, "claude-opus-5-5", "ANTHROPIC_API_KEY", ""),
    "gemini": (GeminiDecisionProvider, "gemini-3.8-flash", "GEMINI_API_KEY", "/v1beta"),
}
"""How a provider is made, its model, the key of its service, and the API's version where it is part of the address."""

CHAT: dict[str, Any] = {"run_id": "customer-7", "invocation_id": "chat"}


@capability(max_calls=2)
def look_up(order: str) -> dict[str, str]:
    """Look up an order by its number."""
    return {"order": order, "arrives": "Tuesday"}


PROGRAM = Program(
    name="shop",
    instructions="You answer questions about orders. Look an order up before you say anything about it.",
    capabilities=[look_up],
    budgets=Budgets(max_decisions=4),
)


def model(received: Received) -> Answer:
    """Answer a fake's requests as a model would, from nothing but what was sent."""
    told = received.body.decode()
    if "Which order" in told:
        return Answer(text='{"output": "Yours is ORD-42445."}' if "ORD-42445" in told else '{"output": "No idea."}')
    if "Tuesday" in told:
        return Answer(text='{"output": "It arrives on Tuesday."}')
    return Answer(thinking="I have to look it up.", calls=(FunctionCall("look_up", {"order": "ORD-42445"}),))


def main() -> None:
    """Ask each of the three the same two questions; the second one is answered from the history."""
    for name, (provider_class, model_name, key, version) in PROVIDERS.items():
        with ExitStack() as stack:
            fake = None if os.environ.get(key) else stack.enter_context(ProviderFake(name, model))
            where = {"base_url": fake.base_url + version, "api_key": "none is needed"} if fake else {}
            provider = stack.enter_context(provider_class(model=model_name, max_output_tokens=4_000, **where))
            runtime = Runtime(PROGRAM, provider)
            print(f"{name}, {'a strict fake' if fake else 'the service'}")
            for question in ("Where is ORD-42445?", "Which order was it?"):
                outcome = runtime.run(question, **CHAT)
                called = ", ".join(seen.capability for seen in outcome.observations) or "nothing"
                decisions = "1 decision" if outcome.decisions == 1 else f"{outcome.decisions} decisions"
                print(f"  {question} {outcome.output} ({decisions}, called: {called})")
            if fake:
                print(f"  {len(fake.requests)} requests, {len(fake.refused)} refused")


if __name__ == "__main__":
    main()
