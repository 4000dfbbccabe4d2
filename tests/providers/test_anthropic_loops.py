"""SPEC D8, D12, D17, D26: a program whose tasks call tools and think goes on when its conversation is full."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from minutebook import AgentDecisionProviderUnavailable, DecisionHistoryLimitExceeded
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
from minutebook.testing.fakes import Failure

if TYPE_CHECKING:
    from collections.abc import Callable

TASKS = 60


def summarize(*, previous_summary: str | None, turns: Any, max_bytes: int) -> str:
    """Say little of any turns."""
    return f"{len(turns)} more turns"


LONG = "Decide with care. " * 1_500
"""Instructions that take most of a context window."""
FULL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "messages, as they come": ({}, {"max_messages": 40}),
    "messages, low water": ({}, {"max_messages": 40, "low_water": 0.65}),
    "bytes": ({}, {"max_bytes": 9_000}),
    "tokens": ({"context": ContextWindow(context_window_tokens=6_000)}, {}),
    "a summary": ({}, {"max_messages": 20, "summarize": summarize}),
    "tokens, long instructions": ({"context": ContextWindow(context_window_tokens=14_000)}, {}),
    "a summary, tokens": ({"context": ContextWindow(context_window_tokens=6_000)}, {"summarize": summarize}),
}


def thinking(fake: ProviderFake, history: HistoryOptions, **options: Any) -> AnthropicDecisionProvider:
    """Return a provider whose model thinks in its tool loops."""
    return AnthropicDecisionProvider(
        model="claude-opus-5-5",
        base_url=fake.base_url,
        api_key="k",
        max_output_tokens=2_000,
        extra_body={"thinking": {"type": "adaptive"}},
        history=history,
        **options,
    )


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
        provider = thinking(fake, HistoryOptions(store=store, **kept), **provided)
        runtime = Runtime(
            Program(name="p", instructions=LONG if "long" in name else "i", capabilities=[look]),
            provider,
            checkpoints=store,
        )
        for number in range(TASKS):
            outcome = runtime.run(f"task {number}", run_id="r", invocation_id="c", task_id=f"t{number}")
            assert outcome.kind == "finished"
        provider.close()
    assert fake.refused == ()
    asked = [len(request.json["messages"]) for request in fake.requests if "max_tokens" in request.json]
    figure(f"{name}: {len(asked)} requests, {max(asked)} messages at most, {min(asked[-20:])} at least at the end")
    assert len(looked) > TASKS
    assert min(asked[-20:]) > max(asked) / 2


def test_d8_d12_d17_reasoning_that_a_summary_would_make_stale_stops_no_task() -> None:
    """D8, D12, D17: behind a new summary all of it is left out, so that nothing more would have to leave: one does."""
    made: list[int] = []

    def told(*, previous_summary: str | None, turns: Any, max_bytes: int) -> str:
        made.append(len(turns))
        return "so far"

    with ProviderFake("anthropic", lambda _: Answer(text='{"output": "done"}', thinking="b" * 4_000)) as fake:
        provider = thinking(
            fake,
            HistoryOptions(store=MemoryStore("n"), summarize=told, max_summary_bytes=1_000),
            context=ContextWindow(context_window_tokens=9_000),
        )
        runtime = Runtime(Program(name="p", instructions="i"), provider, checkpoints=MemoryStore("c"))
        for number in range(20):
            outcome = runtime.run(f"task {number} " + "q" * 100, run_id="r", invocation_id="c", task_id=f"t{number}")
            assert outcome.kind == "finished"
        provider.close()
    assert fake.refused == ()
    assert len(made) > 2


LOOPS = [(5, 400), (6, 0), (8, 0), (8, 400), (12, 0)]
"""Steps of each task's loop, and the characters that each of them thinks: half to four fifths of the tokens."""


def steps_in(request: Any) -> int:
    """Return how many results the newest task has in a request."""
    messages = request.json["messages"]
    newest = next(n for n, each in reversed(list(enumerate(messages))) if "task" in str(each))
    return str(messages[newest:]).count("tool_result")


def looping(steps: int, thought: int) -> Callable[[Any], Answer]:
    """Return a model that looks so many times in each task, and thinks each time."""

    def model(request: Any) -> Answer:
        if steps_in(request) < steps:
            return Answer(calls=(FunctionCall("look", {}),), thinking="t" * thought or "a")
        return Answer(text='{"output": "done"}', thinking="b")

    return model


@capability
def look() -> str:
    """Look."""
    return "x" * 400


def runtime_of(fake: ProviderFake, store: MemoryStore, *, reasoning: Any = "strip", **kept: Any) -> Runtime[Any]:
    """Return a runtime whose history and checkpoints are in `store`, with a provider of its own."""
    provider = thinking(fake, HistoryOptions(store=store, **kept), reasoning=reasoning)
    return Runtime(Program(name="p", instructions="i", capabilities=[look]), provider, checkpoints=store)


@pytest.mark.parametrize("raised", [{"max_messages": 60}, {"max_messages": 400, "low_water": 0.65}])
def test_d8_d25_raised_limits_let_a_loop_go_on_that_was_refused(raised: dict[str, Any]) -> None:
    """D8, D25, D26: an open loop keeps the start of its window under any limits that hold it."""

    def model(request: Any) -> Answer:
        return looping(14 if "task 4" in str(request.json["messages"]) else 1, 0)(request)

    with ProviderFake("anthropic", model) as fake, MemoryStore("n") as store:
        runtime = partial(runtime_of, fake, store)
        for number in range(4):
            assert runtime(max_messages=20).run(f"task {number}", run_id="r", invocation_id="c").kind == "finished"
        with pytest.raises(DecisionHistoryLimitExceeded, match="open tool loop"):
            runtime(max_messages=20).run("task 4", run_id="r", invocation_id="c")
        assert runtime(**raised).resume("r", "c").kind == "finished"
    assert fake.refused == ()


@pytest.mark.parametrize(("steps", "thought"), LOOPS)
def test_d8_d12_d26_loops_that_need_most_of_the_tokens_have_them_each_time(steps: int, thought: int) -> None:
    """D8, D12, D26: a loop weighs what it will be sent as, thinking and all; at most the first of all is refused."""
    refused = 0
    with ProviderFake("anthropic", looping(steps, thought)) as fake, MemoryStore("n") as store:
        context = ContextWindow(context_window_tokens=6_000 + 8 * thought)
        provider = thinking(fake, HistoryOptions(store=store), context=context)
        runtime = Runtime(Program(name="p", instructions="i", capabilities=[look]), provider, checkpoints=store)
        for number in range(14):
            try:
                runtime.run(f"task {number}", run_id="r", invocation_id="c", task_id=f"t{number}")
            except DecisionHistoryLimitExceeded:
                refused += 1
                runtime.abandon("r", "c")
        provider.close()
    assert fake.refused == ()
    assert refused <= 1


def test_d8_d12_d26_a_loop_that_outgrows_the_tokens_is_refused_with_all_of_it() -> None:
    """D8, D12, D26: nothing of it leaves, and whoever reads the refusal knows how large it has become."""
    with ProviderFake("anthropic", looping(12, 0)) as fake, MemoryStore("n") as store:
        provider = thinking(fake, HistoryOptions(store=store), context=ContextWindow(context_window_tokens=4_000))
        runtime = Runtime(Program(name="p", instructions="i", capabilities=[look]), provider, checkpoints=store)
        with pytest.raises(DecisionHistoryLimitExceeded, match=r"the loop is [0-9]+ messages by now") as refused:
            runtime.run("task", run_id="r", invocation_id="c")
        provider.close()
    assert refused.value.outgrown is not None
    sent = [request for request in fake.requests if "max_tokens" in request.json]
    assert refused.value.outgrown[0] == 2 * len(sent) > 2


def test_d8_d26_a_task_behind_a_loop_that_found_no_room_begins_with_room_for_twice_as_much() -> None:
    """D8, D26: of messages too, once the task was given up; its calls stay in the record and count for nothing more."""
    model = [looping(1, 0)]
    with ProviderFake("anthropic", lambda request: model[0](request)) as fake, MemoryStore("n") as store:
        provider = thinking(fake, HistoryOptions(store=store, max_messages=30))
        runtime = Runtime(Program(name="p", instructions="i", capabilities=[look]), provider, checkpoints=store)
        for number in range(8):
            runtime.run(f"task {number}", run_id="r", invocation_id="c")
        model[0] = looping(11, 0)
        with pytest.raises(DecisionHistoryLimitExceeded) as refused:
            runtime.run("task 8", run_id="r", invocation_id="c")
        assert refused.value.outgrown is not None
        messages, _ = refused.value.outgrown
        runtime.abandon("r", "c")
        before = len(fake.requests)
        assert runtime.run("task 9", run_id="r", invocation_id="c").kind == "finished"
        assert len(fake.requests[before].json["messages"]) <= max(30 - 2 * messages, messages + 3)
        provider.close()
    assert fake.refused == ()


@pytest.mark.parametrize("dropped", ["keep", "drop_block"])
@pytest.mark.parametrize("before", range(9, 17))
@pytest.mark.parametrize("made", [{}, {"summarize": summarize}], ids=["", "a summary"])
def test_d26_d17_tasks_go_on_behind_one_that_sent_stale_thinking(
    made: dict[str, Any], before: int, dropped: str
) -> None:
    """D26, D17: its answer is stale for whoever strips later, though no start moved, and a summary stands before it."""
    with ProviderFake("anthropic", looping(0, 0)) as fake, MemoryStore("n") as store:
        kept: dict[str, Any] = {"max_messages": 20, "low_water": 0.3}
        for number in range(before):
            assert runtime_of(fake, store, **kept).run(f"task {number}", run_id="r", invocation_id="c").output == "done"
        runtime = runtime_of(fake, store, reasoning=dropped, **kept, **made)
        with contextlib.suppress(AgentDecisionProviderUnavailable):  # what `keep` sends stale is refused
            runtime.run("task then", run_id="r", invocation_id="c")
        refused = len(fake.refused)
        runtime_of(fake, store, **kept).abandon("r", "c")
        for number in range(10):
            outcome = runtime_of(fake, store, **kept).run(f"task after {number}", run_id="r", invocation_id="c")
            assert outcome.output == "done"
        assert len(fake.refused) == refused


@pytest.mark.parametrize("most", [30, 300])
def test_d8_d17_d25_summaries_that_are_switched_on_inside_a_loop_wait_for_its_end(most: int) -> None:
    """D8, D17, D25: one of what left before would make its reasoning stale; the next task's first request has it."""
    made: list[int] = []

    def told(*, previous_summary: str | None, turns: Any, max_bytes: int) -> str:
        made.append(len(turns))
        return "so far"

    steady = looping(4, 0)
    out: list[int] = []

    def model(request: Any) -> Answer | Failure:
        return Failure(status=500) if steps_in(request) in out else steady(request)

    with ProviderFake("anthropic", model) as fake, MemoryStore("n") as store:
        runtime = partial(runtime_of, fake, store)
        for number in range(4):
            assert runtime(max_messages=30).run(f"task {number}", run_id="r", invocation_id="c").kind == "finished"
        out.append(2)
        with pytest.raises(AgentDecisionProviderUnavailable):
            runtime(max_messages=30).run("task 4", run_id="r", invocation_id="c")
        out.clear()
        assert runtime(max_messages=most, summarize=told).resume("r", "c").kind == "finished"
        assert made == []
        assert (
            runtime(max_messages=most, summarize=told).run("task 5", run_id="r", invocation_id="c").kind == "finished"
        )
        assert len(made) == 1
    assert fake.refused == ()
