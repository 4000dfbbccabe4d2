"""SPEC D8, D12, D17, D26: a program whose tasks call tools and think goes on when its conversation is full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from minutebook.sync import (
    AnthropicDecisionProvider,
    ContextWindow,
    HistoryOptions,
    MemoryStore,
    Program,
    Runtime,
    capability,
)
from minutebook.testing import Answer, FunctionCall, ProviderFake

if TYPE_CHECKING:
    from collections.abc import Callable

TASKS = 60


def summarize(*, previous_summary: str | None, turns: Any, max_bytes: int) -> str:
    """Say little of any turns."""
    return f"{len(turns)} more turns"


FULL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "messages, as they come": ({}, {"max_messages": 40}),
    "messages, low water": ({}, {"max_messages": 40, "low_water": 0.65}),
    "bytes": ({}, {"max_bytes": 9_000}),
    "tokens": ({"context": ContextWindow(context_window_tokens=6_000)}, {}),
    "a summary": ({}, {"max_messages": 20, "summarize": summarize}),
    "a summary, tokens": ({"context": ContextWindow(context_window_tokens=6_000)}, {"summarize": summarize}),
}


@pytest.mark.parametrize("name", FULL)
def test_d8_d12_d26_tasks_with_thinking_and_tools_go_on_at_every_limit(
    name: str, figure: Callable[[str], None]
) -> None:
    """
    D8, D12, D26: no task is refused, whichever limit bites, and the strict server refuses no request.

    Each loop has its whole reasoning, so nothing leaves inside one: room was made in its task's first request.
    """
    looked: list[int] = []

    @capability
    def look() -> str:
        """Look."""
        looked.append(1)
        return "x" * 200

    def model(request: Any) -> Answer:
        if "tool_result" in str(request.json["messages"][-1]) and len(looked) % 3:
            return Answer(text='{"output": "done"}', thinking="b")
        return Answer(calls=(FunctionCall("look", {}),), thinking="a")

    provided, kept = FULL[name]
    with ProviderFake("anthropic", model) as fake, MemoryStore("n") as store:
        provider = AnthropicDecisionProvider(
            model="claude-opus-5-5",
            base_url=fake.base_url,
            api_key="k",
            max_output_tokens=2_000,
            extra_body={"thinking": {"type": "adaptive"}},
            history=HistoryOptions(store=store, **kept),
            **provided,
        )
        runtime = Runtime(Program(name="p", instructions="i", capabilities=[look]), provider, checkpoints=store)
        for number in range(TASKS):
            outcome = runtime.run(f"task {number}", run_id="r", invocation_id="c", task_id=f"t{number}")
            assert outcome.kind == "finished"
        provider.close()
    assert fake.refused == ()
    asked = [len(request.json["messages"]) for request in fake.requests if "max_tokens" in request.json]
    figure(f"{name}: {len(asked)} requests, {max(asked)} messages at most, {min(asked[-20:])} at least at the end")
    assert len(looked) > TASKS
    assert min(asked[-20:]) > 4
