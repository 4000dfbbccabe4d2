"""
Face A, what a failed chat has executed and the same words again go on behind: what it costs, and what is told of it
(SPEC A9, B1; case O-33, promise I-44).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.faces.test_agent import Till, agent, asking, messages, paying, results, said, summarising, told, user
from tests.faces.test_agent_faults import blocking

from minutebook import Agent, Budgets, Conversation, MemoryStore, WindowLimits, capability
from minutebook.errors import (
    AgentBudgetExhausted,
    AgentDecisionProviderUnavailable,
    DecisionHistoryFenced,
    DecisionHistoryLimitExceeded,
    DecisionHistoryStorageFailed,
    InvalidValue,
)
from minutebook.model.entries import Entry
from minutebook.model.pause import drive
from minutebook.stores.journal import JournalStore
from minutebook.stores.memory import MemoryJournal
from minutebook.testing import (
    Answer,
    Cut,
    Fault,
    FaultyJournal,
    FunctionCall,
    ProviderFake,
    SuspendingJournal,
    cancel_at,
)
from minutebook.testing.fakes import Failure, Line, Received

UNKNOWN = '{"error":{"interrupted":"outcome unknown"}}'
NEVER_BEGUN = '{"error":{"refused":"run_stopped"}}'


def giving(size: int, ran: list[str]) -> Callable[[str], str]:
    """Return a tool that gives so many bytes."""

    def look(path: str) -> str:
        """Read a file."""
        ran.append(path)
        return "r" * size

    return look


async def entries(each: Agent) -> list[Entry]:
    return [entry async for entry in each._chat.store.entries(each.key)]


# --- what it costs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("summarised", [False, True], ids=["", "with a summary"])
@pytest.mark.parametrize("size", [10, 20_000])
def test_a9_b1_retries_at_a_server_that_is_away_record_their_marks_alone(size: int, *, summarised: bool) -> None:
    """A9, B1: however large what is carried on is, and a summary that the turn was to begin with."""
    up = False

    def server(request: Received) -> Line:
        asked = request.json["messages"]
        if asked[0]["content"].startswith("You write the summary"):
            return summarising(request)
        if asked[-1]["role"] == "user":
            return asking("a")
        return Answer(text="done") if up else Failure(status=503)

    with ProviderFake("openai-chat", server) as fake:

        async def story() -> None:
            nonlocal up
            store, ran = MemoryStore(max_retained_bytes=100_000), list[str]()
            options: dict[str, Any] = {"store": store, "conversation": "c", "tools": [giving(size, ran)]}
            options |= {"enable_summarization": summarised, "summarization_threshold": 20}
            each = agent(fake, **options)
            await each.set_history(messages(30))
            grown = list[tuple[int, int]]()
            for _ in range(12):
                with pytest.raises(AgentDecisionProviderUnavailable):
                    await each.chat("go")
                header = await store.header(each.key)
                assert header is not None
                grown.append((header.entries, header.bytes))
            entries, size_before = grown[0]
            assert grown == [(entries + n, size_before) for n in range(12)]
            up = True
            assert await agent(fake, **options).chat("go") == "done"
            assert results(fake.requests[-1]) == ["r" * size]
            assert ran == ["a"]
            assert (await each.get_history())[-2:] == [user("go"), said("done")]
            assert (await each.get_conversation_summary() is not None) is summarised
            await store.verify(each.key)

        told(story())
        assert not fake.refused


def test_a9_b1_what_is_carried_on_is_recorded_once_with_what_comes_of_it() -> None:
    """A9, B1, I-44: with a further call, before that is carried out, and with the answer."""
    script = [paying(1), Failure(status=503), Failure(status=503), paying(2), Failure(status=503), Answer(text="done")]
    with ProviderFake("openai-chat", script) as fake:

        async def story() -> None:
            till = Till()
            each = agent(fake, store=MemoryStore(), tools=[till.tool()])
            for _ in range(3):
                with pytest.raises(AgentDecisionProviderUnavailable):
                    await each.chat("pay")
            assert await each.chat("pay") == "done"
            assert till.paid == [1, 2]
            kinds = [entry.kind.name for entry in await entries(each)]
            one, two = ["RESPONSE", "RESULT"], ["RESPONSE", "RESULT"] * 2
            assert kinds == ["INPUT", *one, *["ABANDONED"] * 2, *two, "ABANDONED", *two, "RESPONSE"]
            assert results(fake.requests[-1]) == ["paid 1", "paid 2"]
            await each._chat.store.verify(each.key)

        told(story())
        assert not fake.refused


@pytest.mark.parametrize("cold", [False, True], ids=["", "from other processes"])
def test_a9_i44_what_is_carried_on_is_told_once_whatever_stood_behind_it(*, cold: bool) -> None:
    """A9, B1, I-44: a summary that was set between two attempts is where a process begins to look the next time."""
    script = [paying(1), Failure(status=503), paying(2), Failure(status=503), Answer(text="done")]
    with ProviderFake("openai-chat", script) as fake:

        async def story() -> None:
            till = Till()
            options: dict[str, Any] = {"store": MemoryStore(), "conversation": "c", "tools": [till.tool()]}
            each = agent(fake, **options)
            for _ in range(2):
                with pytest.raises(AgentDecisionProviderUnavailable):
                    await each.chat("pay")
                await each.set_conversation_summary("They pay")
                each = agent(fake, **options) if cold else each
            assert await each.chat("pay") == "done"
            assert results(fake.requests[-1]) == ["paid 1", "paid 2"]
            assert till.paid == [1, 2]
            await each._chat.store.verify(each.key)

        told(story())
        assert not fake.refused


def calling(request: Received) -> Line:
    """Pay twice, one after the other, and again what was never begun; then answer."""
    newest = results(request)
    if newest and newest[-1] == NEVER_BEGUN:
        return paying(2)
    return [paying(1), paying(2), Answer(text="done")][min(len(newest), 2)]


async def carried_on(fake: ProviderFake, journal: Any, between: Callable[[Agent], Any], second: Any) -> list[int]:
    """Pay once and fail; have `between` say it again over the journal `second`; then see it done, and what was paid."""
    till, plain = Till(), JournalStore(journal, namespace="n")
    options: dict[str, Any] = {"conversation": "c", "tools": [till.tool()]}
    with pytest.raises(AgentBudgetExhausted):
        await blocking(fake, store=plain, **options, budgets=Budgets(max_decisions=1)).chat("pay")
    await between(blocking(fake, store=JournalStore(second, namespace="n"), **options))
    again = blocking(fake, store=plain, **options)
    header = await plain.header(again.key)
    if header is not None and header.token:
        await plain.recover(again.key, worker_stopped=True)
    if not await again.get_history():
        assert await again.chat("pay") == "done"
    # Killed between a call's commit and its beginning nobody can know, and the model is told that.
    assert till.paid == [1, 2] or (till.paid == [1] and results(fake.requests[-1]) == ["paid 1", UNKNOWN])
    assert await again.get_history() == [user("pay"), said("done")]
    await plain.verify(again.key)
    return till.paid


@pytest.mark.parametrize("after", [False, True], ids=["not written", "reply lost"])
def test_a9_i44_a_retry_whose_store_fails_once_runs_no_tool_twice(*, after: bool) -> None:
    """A9, I-44: whichever call to the store fails while a retry carries on, and what stands behind it, no effect."""
    with ProviderFake("openai-chat", calling) as fake:

        async def story(number: int) -> bool:
            journal = MemoryJournal()
            faulty = FaultyJournal(journal, [Fault(call=number, after=after)])

            async def between(each: Agent) -> None:
                with contextlib.suppress(DecisionHistoryStorageFailed):
                    await each.chat("pay")

            assert await carried_on(fake, journal, between, faulty) == [1, 2]
            return not faulty.left

        number = 1
        while drive(story(number)):
            number += 1
        assert number > 8


@pytest.mark.parametrize("cut", [Cut.CANCELLED, Cut.CLOSED, Cut.INTERRUPTED, Cut.KILLED], ids=lambda cut: cut.value)
def test_a9_i18_i44_a_retry_that_is_cut_at_any_await_runs_no_tool_twice(cut: Cut) -> None:
    """A9, I-18, I-44: what it carried on and had not recorded yet is found where it was."""
    with ProviderFake("openai-chat", calling) as fake:

        async def story(step: int) -> bool:
            journal, struck = MemoryJournal(), list[bool]()

            async def between(each: Agent) -> None:
                struck.append((await cancel_at(lambda: each.chat("pay"), step, cut)).struck)

            paid = await carried_on(fake, journal, between, SuspendingJournal(journal))
            assert paid == [1, 2] or cut is Cut.KILLED
            return struck[0]

        step = 1
        while drive(story(step)):
            step += 1
        assert step > 8


# --- what had no room ------------------------------------------------------------------------------------------------


def bad() -> float:
    """Give what is no JSON."""
    return float("nan")


@pytest.mark.parametrize(
    ("behind", "error"),
    [
        (Answer(calls=(FunctionCall("bad", {}),)), InvalidValue),
        (paying(1), AgentBudgetExhausted),
        (Failure(status=503), AgentDecisionProviderUnavailable),
    ],
    ids=["a tool's fault", "a budget", "the server"],
)
def test_a9_d8_what_had_room_is_told_whole_whatever_failed_behind_it(behind: Line, error: type[Exception]) -> None:
    """A9, D8: left out is what no request has room for, and nothing for any other refusal."""
    with ProviderFake("openai-chat", [asking("a"), behind, Answer(text="done")]) as fake:

        async def story() -> None:
            ran = list[str]()
            tools = [giving(6000, ran), bad, Till().tool()]
            options: dict[str, Any] = {"store": MemoryStore(), "conversation": "c", "tools": tools}
            with pytest.raises(error):
                await agent(fake, **options, budgets=Budgets(max_decisions=2)).chat("go")
            assert await agent(fake, **options).chat("go") == "done"
            assert results(fake.requests[-1])[0] == "r" * 6000
            assert ran == ["a"]

        told(story())
        assert not fake.refused


@pytest.mark.parametrize("history", [0, 2])
def test_a9_o25_a_result_too_large_for_the_model_is_left_out_of_the_retry(history: int) -> None:
    """A9, O-25: once nothing older could leave instead; the error says what to do, and each of it frees the chat."""

    def server(request: Received) -> Line:
        asked = request.json["messages"]
        if asked[0]["content"].startswith("You write the summary"):
            return summarising(request)
        return asking("a") if asked[-1]["role"] == "user" else Answer(text="done")

    with ProviderFake("openai-chat", server, window_tokens=2_000) as fake:

        async def story() -> None:
            ran = list[str]()
            each = agent(fake, store=MemoryStore(), tools=[giving(20_000, ran)])
            await each.set_history(messages(history))
            for _ in range(2 if history else 0):
                with pytest.raises(AgentDecisionProviderUnavailable, match=r"summarize_history\(\)"):
                    await each.chat("go")
            assert history == 0 or await each.summarize_history(keep_recent_count=0) is not None
            with pytest.raises(AgentDecisionProviderUnavailable, match="the same words again leave long results out"):
                await each.chat("go")
            assert await each.chat("go") == "done"
            assert results(fake.requests[-1]) == ['{"abandoned":"executed; 20,002 bytes left out"}']
            assert ran == ["a"]
            kept = [entry for entry in await entries(each) if b"r" * 20_000 in entry.payload]
            assert len(kept) == 1

        told(story())


def test_a9_d8_what_no_request_has_room_for_is_left_out_however_often_it_fails_then() -> None:
    """A9, D8, B1: the mark that says so is found behind any number of others, by a process that saw none of them."""
    script = [asking("a", "b"), *[Failure(status=503)] * 40, Answer(text="done")]
    with ProviderFake("openai-chat", script) as fake:

        async def story() -> None:
            ran = list[str]()

            def look(path: str) -> str:
                """Read a file."""
                ran.append(path)
                return "r" * {"a": 9000, "b": 1000}[path]

            options: dict[str, Any] = {"store": MemoryStore(), "conversation": "c", "tools": [look]}
            options |= {"limits": WindowLimits(max_bytes=5000)}
            each = agent(fake, **options)
            with pytest.raises(DecisionHistoryLimitExceeded):
                await each.chat("go")
            for _ in range(40):
                with pytest.raises(AgentDecisionProviderUnavailable):
                    await each.chat("go")
            assert await agent(fake, **options).chat("go") == "done"
            left = '{"abandoned":"executed; 9,002 bytes left out"}'
            assert [results(request) for request in fake.requests[1:]] == [[left, "r" * 1000]] * 41
            assert ran == ["a", "b"]

        told(story())


def test_a9_o25_many_results_that_have_no_room_together_are_left_out_in_the_end() -> None:
    """A9, O-25: none of them is long, so that the first retry is refused too; the next one is not."""

    def server(request: Received) -> Line:
        return asking(*"abcd") if request.json["messages"][-1]["role"] == "user" else Answer(text="done")

    with ProviderFake("openai-chat", server, window_tokens=2_000) as fake:

        async def story() -> None:
            ran = list[str]()
            store, tools = MemoryStore(), [giving(4000, ran)]
            for _ in range(2):
                with pytest.raises(AgentDecisionProviderUnavailable, match="the same words again"):
                    await agent(fake, store=store, tools=tools).chat("go")
            assert await agent(fake, store=store, tools=tools).chat("go") == "done"
            assert results(fake.requests[-1]) == ['{"abandoned":"executed; 4,002 bytes left out"}'] * 4
            assert ran == list("abcd")

        told(story())


def test_a9_o25_i44_a_result_that_has_no_room_is_left_out_under_an_id_that_others_superseded() -> None:
    """A9, O-25, I-44: the marks of all its turns since the call count, however often it was superseded."""
    script = [asking("a"), Failure(status=503), *[Answer(text="hello")] * 2, Answer(text="done")]
    with ProviderFake("openai-chat", script) as fake:

        async def story() -> None:
            ran = list[str]()
            options: dict[str, Any] = {"store": MemoryStore(), "conversation": "c", "tools": [giving(6000, ran)]}
            with pytest.raises(AgentDecisionProviderUnavailable):
                await agent(fake, **options).chat("go", id="m1")
            options |= {"limits": WindowLimits(max_bytes=5000)}
            await agent(fake, **options).chat("hello")
            with pytest.raises(DecisionHistoryLimitExceeded):
                await agent(fake, **options).chat("go", id="m1")
            await agent(fake, **options).chat("hello")
            assert await agent(fake, **options).chat("go", id="m1") == "done"
            assert results(fake.requests[-1]) == ['{"abandoned":"executed; 6,002 bytes left out"}']
            assert ran == ["a"]

        told(story())


def test_a2_a9_a_context_that_no_request_has_room_for_costs_no_result() -> None:
    """A2, A9, D8: it is refused before anything is recorded, so that the same words without it tell all there is."""
    with ProviderFake("openai-chat", [asking("a"), Failure(status=503), Answer(text="done")]) as fake:

        async def story() -> None:
            ran = list[str]()
            each = agent(fake, store=MemoryStore(), tools=[giving(6000, ran)], limits=WindowLimits(max_bytes=20_000))
            with pytest.raises(AgentDecisionProviderUnavailable):
                await each.chat("go")
            before = await entries(each)
            with pytest.raises(DecisionHistoryLimitExceeded, match="give a shorter context") as caught:
                await each.chat("go", context="c" * 30_000)
            assert (caught.value.max_bytes, len(fake.requests)) == (20_000, 2)
            assert await entries(each) == before
            assert await each.chat("go") == "done"
            assert results(fake.requests[-1]) == ["r" * 6000]

        told(story())


# --- what was never begun --------------------------------------------------------------------------------------------


def test_a9_o33_of_the_calls_behind_a_kill_one_alone_is_unknown() -> None:
    """A9, O-33, I-44: calls come one after the other, so those behind the one under way were never begun."""
    script = [Answer(calls=tuple(FunctionCall(name, {}) for name in ("done", "slow", "pay", "pay"))), Answer(text="ok")]
    with ProviderFake("openai-chat", script) as fake:

        async def story() -> None:
            store, ran = MemoryStore(), list[str]()

            def done() -> str:
                """Come to an end."""
                return "done"

            async def slow() -> str:
                """Be under way while somebody takes the process for dead."""
                await store.recover(each.key, worker_stopped=True)
                return "late"

            def pay() -> str:
                """Pay."""
                ran.append("pay")
                return "paid"

            each = agent(fake, store=store, tools=[done, slow, pay])
            with pytest.raises(DecisionHistoryFenced):
                await each.chat("go")
            assert await agent(fake, store=store, tools=[done, slow, pay]).chat("go") == "ok"
            assert results(fake.requests[-1]) == ["done", UNKNOWN, NEVER_BEGUN, NEVER_BEGUN]
            assert ran == []

        told(story())
        assert not fake.refused


@pytest.mark.parametrize("moved", [False, True], ids=["in place", "imported"])
@pytest.mark.parametrize("failures", [1, 3])
def test_a9_i43_a_call_that_was_never_begun_uses_up_nothing(failures: int, *, moved: bool, tmp_path: Path) -> None:
    """A9, I-43: not its `max_calls` either, however often what is known of it was carried on and recorded since."""
    both = Answer(calls=(FunctionCall("slow", {}), FunctionCall("pay", {})))
    again = [line for _ in range(failures) for line in (Answer(calls=(FunctionCall("slow", {}),)), Failure(status=503))]
    script = [both, *again, Answer(calls=(FunctionCall("pay", {}),)), Answer(text="ok")]
    with ProviderFake("openai-chat", script) as fake:

        async def story() -> None:
            tmp_path.chmod(0o700)
            store, ran, begun = MemoryStore("n"), list[str](), asyncio.Event()

            async def slow() -> str:
                """Wait, the first time."""
                if not begun.is_set():
                    begun.set()
                    await asyncio.Event().wait()
                return "waited"

            @capability(max_calls=1)
            def pay() -> str:
                """Pay once."""
                ran.append("pay")
                return "paid"

            each = agent(fake, store=store, tools=[slow, pay])
            running = asyncio.ensure_future(each.chat("go"))
            await begun.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            for _ in range(failures):
                with pytest.raises(AgentDecisionProviderUnavailable):
                    await each.chat("go")
            if moved:
                await store.export(each.key, tmp_path / "book.jsonl")
                store = MemoryStore("n")
                await Conversation(store, each.key.id, format="openai-chat").import_(tmp_path / "book.jsonl")
            assert await agent(fake, store=store, tools=[slow, pay]).chat("go") == "ok"
            assert results(fake.requests[-1]) == [UNKNOWN, NEVER_BEGUN, *["waited"] * failures, "paid"]
            assert ran == ["pay"]
            await store.verify(each.key)

        told(story())
        assert not fake.refused


@pytest.mark.parametrize("end", ["", "\n"])
def test_a9_d3_a_tool_that_gives_a_refusals_text_was_executed_all_the_same(end: str) -> None:
    """A9, D3, I-43: what a tool says grants nothing: its `max_calls` is used up."""
    once = Answer(calls=(FunctionCall("pay", {}),))
    with ProviderFake("openai-chat", [once, Failure(status=503), once, Answer(text="no")]) as fake:

        async def story() -> None:
            ran = list[str]()

            @capability(max_calls=1)
            def pay() -> str:
                """Pay once."""
                ran.append("pay")
                return NEVER_BEGUN + end

            each = agent(fake, store=MemoryStore(), tools=[pay])
            with pytest.raises(AgentDecisionProviderUnavailable):
                await each.chat("go")
            assert await each.chat("go") == "no"
            assert ran == ["pay"]

        told(story())
