"""
Anthropic's own client with a guard under it: a request is counted first, and one that is too large generates nothing.

    python guarded_client.py

With ANTHROPIC_API_KEY in the environment the service counts and answers; without it a strict fake on this machine does,
and shows which requests arrived. It needs `minutebook[anthropic]`.
"""

import os
from contextlib import ExitStack
from typing import Any

import anthropic
import httpx2

from minutebook import ContextWindow, Event, ProviderContextCount, ProviderContextWindowExceeded
from minutebook.sync import ContextGuardTransport
from minutebook.testing import Answer, ProviderFake

WINDOW = ContextWindow(context_window_tokens=4_000)
"""How much a request may take, its answer included: our own ceiling, far below the model's."""

QUESTION = "Which is the longest river?"
MANUAL = "Rivers are long. " * 2_000


def tell(event: Event) -> None:
    """Say what was counted."""
    if isinstance(event, ProviderContextCount):
        print(f"counted {event.count:,} tokens; reserves {event.reservation:,} of 4,000")


def main() -> None:
    """Ask once with a request that fits, and once with one that does not."""
    with ExitStack() as stack:
        fake = None
        if not os.environ.get("ANTHROPIC_API_KEY"):
            fake = stack.enter_context(ProviderFake("anthropic", [Answer(text="The Nile.")]))
        guard = ContextGuardTransport(
            provider="anthropic",
            context=WINDOW,
            qualified=[fake.base_url] if fake else [],  # the official address needs no word of ours
            on_event=tell,
        )
        service: dict[str, Any] = {"base_url": fake.base_url, "api_key": "none is needed"} if fake else {}
        client = stack.enter_context(
            anthropic.Anthropic(
                **service,
                http_client=httpx2.Client(transport=guard),
                middleware=[guard.surface],
            )
        )
        for content in (QUESTION, MANUAL + QUESTION):
            try:
                said = client.messages.create(
                    model="claude-opus-5-5", max_tokens=1_000, messages=[{"role": "user", "content": content}]
                )
                print("answer:", "".join(block.text for block in said.content if block.type == "text"))
            except ProviderContextWindowExceeded as refused:
                print("refused:", refused)
        for request in fake.requests if fake else ():
            print("arrived:", request.path)


if __name__ == "__main__":
    main()
