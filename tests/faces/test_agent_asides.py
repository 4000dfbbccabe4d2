"""Face A, a chat that keeps nothing beside one that does: it sees the history as it stands, and no half of a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.faces.test_agent import agent, asking, echo, messages, sent, summarising, told
from tests.faces.test_agent_faults import blocking

import minutebook.history.standing as standing_module
from minutebook import Agent, Conversation, MemoryStore
from minutebook.errors import AgentDecisionProviderUnavailable, DecisionHistoryAbsent, PairingViolation
from minutebook.model.law import extend
from minutebook.model.pause import drive
from minutebook.model.record import Delta
from minutebook.stores.journal import JournalStore
from minutebook.stores.memory import MemoryJournal
from minutebook.testing import Answer, FaultyJournal, ProviderFake, SuspendingJournal
from minutebook.testing.fakes import Failure, Line, Received


def look(path: str) -> str:
    """Read a file."""
    return path


def script(request: Received) -> Line:
    """Write summaries; make two rounds of calls where there is a tool, then answer."""
    asked = request.json["messages"]
    if asked[0]["content"].startswith("You write the summary"):
        return summarising(request)
    rounds = sum(message["role"] == "tool" for message in asked)
    if "tools" in request.json and asked[-1]["role"] in ("user", "tool") and rounds < 2:
        return asking("a")
    return echo(request) if asked[-1]["role"] == "user" else Answer(text="looked")


async def chat(each: Agent) -> None:
    await each.chat("words under way")


async def chat_again(each: Agent) -> None:
    with pytest.raises(AgentDecisionProviderUnavailable):
        await each.chat("words under way")


async def clear(each: Agent) -> None:
    await each.clear_history()


async def summarise(each: Agent) -> None:
    await each.summarize_history(2)


UNDER_WAY: dict[str, tuple[Callable[[Agent], Coroutine[Any, Any, None]], dict[str, Any]]] = {
    "chat": (chat, {}),
    "chat with tools": (chat, {"tools": [look]}),
    "chat with a summary": (chat, {"tools": [look], "enable_summarization": True, "summarization_threshold": 30}),
    "clear": (clear, {}),
    "summarise": (summarise, {}),
}


def steps_of(running: Coroutine[Any, Any, None]) -> Any:
    """Run a coroutine from one suspension to the next; yield at each."""
    waits = running.__await__()
    while True:
        try:
            next(waits)
        except StopIteration:
            return
        yield


def asides_beside(fake: ProviderFake, name: str, *, failed_before: bool) -> int:
    """
    Say something aside, and estimate, at each await of another agent's method; return how often.

    What is sent is always what is sent before that method or after it, and so is what is estimated.
    """
    method, options = UNDER_WAY[name]
    journal = MemoryJournal()
    plain = JournalStore(journal, namespace="n")
    aside = blocking(fake, store=plain, conversation="c", auto_manage_history=False)
    drive(aside.set_history(messages(8)))
    if failed_before:
        with ProviderFake("openai-chat", [asking("a"), Failure(status=503)]) as down:
            drive(chat_again(blocking(down, store=plain, conversation="c", tools=[look])))
    store = JournalStore(SuspendingJournal(journal), namespace="n")  # type: ignore[arg-type]

    def seen() -> tuple[Any, int]:
        answer = drive(aside.chat("aside"))
        assert answer == "answer to aside"
        return sent(fake.requests[-1]), drive(aside.estimate_history_tokens())

    before, met = seen(), []
    for _ in steps_of(method(blocking(fake, store=store, conversation="c", **options))):
        entries = drive(plain.header(aside.key))
        met.append(seen())
        assert drive(plain.header(aside.key)) == entries
    after = seen()
    assert before != after
    assert all(each in (before, after) for each in met), name
    assert before in met
    return len(met)


@pytest.mark.parametrize("failed_before", [False, True], ids=["", "behind a failure"])
@pytest.mark.parametrize("name", UNDER_WAY)
def test_a1_a9_an_aside_sees_the_history_as_it_stands_at_any_await_of_another(name: str, failed_before: bool) -> None:
    """A1, A7, A9: no unanswered words, no half turn, and nothing of what failed; an estimate counts the same."""
    with ProviderFake("openai-chat", script) as fake:
        assert asides_beside(fake, name, failed_before=failed_before) >= 6
        assert not fake.refused


def test_a1_c03_what_an_aside_has_read_keeps_nothing_of_a_turn_from_a_window_of_its_store() -> None:
    """A1, C3: at any await of another's chat, as a process shows that never met the aside: with the turn's input."""
    with ProviderFake("openai-chat", script) as fake:
        journal = MemoryJournal()
        store = JournalStore(journal, namespace="n")
        aside = blocking(fake, store=store, conversation="c", auto_manage_history=False)
        drive(aside.set_history(messages(2)))
        under_way = blocking(fake, store=JournalStore(SuspendingJournal(journal), namespace="n"), conversation="c")  # type: ignore[arg-type]
        newest: list[str] = []
        for _ in steps_of(chat(under_way)):
            assert drive(aside.chat("aside")) == "answer to aside"
            shown, fresh = (
                drive(Conversation(each, "c", format="openai-chat").window())
                for each in (store, JournalStore(journal, namespace="n"))
            )
            assert shown.json == fresh.json
            newest.append(fresh.messages[-1]["content"])
        assert "words under way" in newest


def test_a1_control_an_aside_that_sees_what_is_under_way_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A1: a record taken with the attempt that is under way in it."""
    monkeypatch.setattr("minutebook.windows.without_attempt", lambda header: extend(header, Delta(idempotency=""), 0))
    monkeypatch.setattr(standing_module, "without_attempt", lambda header: extend(header, Delta(idempotency=""), 0))
    with ProviderFake("openai-chat", script) as fake, pytest.raises((AssertionError, PairingViolation)):
        asides_beside(fake, "chat with tools", failed_before=False)


@pytest.mark.parametrize("what", ["chat", "clear", "delete and chat"])
def test_a1_an_aside_goes_on_with_the_history_that_it_began_with(what: str) -> None:
    """A1: whatever others do while a tool runs: add to it, begin it anew, or delete it."""
    with ProviderFake("openai-chat", script) as fake:

        async def story() -> None:
            store = MemoryStore()
            other = agent(fake, store=store, conversation="c")
            await other.set_history(messages(4))

            async def look(path: str) -> str:
                """Read a file, while others talk."""
                if what == "delete and chat":
                    await other.delete()
                if what == "clear":
                    await other.clear_history()
                await other.chat(f"words of others beside {path}")
                return path

            options: dict[str, Any] = {"tools": [look], "auto_manage_history": False}
            each = agent(fake, store=store, conversation="c", **options)
            assert await each.chat("aside") == "looked"
            last = sent(fake.requests[-1])
            assert [message["content"] for message in last[1:6]] == ["m0", "m1", "m2", "m3", "aside"]
            assert [message["role"] for message in last[6:]] == ["assistant", "tool"] * 2
            await store.verify(each.key)

        told(story())
        assert not fake.refused


def test_a1_an_aside_whose_history_is_gone_before_it_was_read_says_so() -> None:
    """A1: deleted between the look at its header and its pages; another one in its place is not taken for it."""
    with ProviderFake("openai-chat", script) as fake:

        async def story() -> None:
            store = MemoryStore()
            await agent(fake, store=store, conversation="c").set_history(messages(4))
            each = agent(fake, store=JournalStore(store.journal, namespace="memory"), conversation="c")
            header = await each._chat.history.header()
            standing = each._chat._standing(header)
            await each.delete()
            await agent(fake, store=store, conversation="c").set_history(messages(4))
            with pytest.raises(DecisionHistoryAbsent):
                await standing.window(each._chat.settings.request_limits)

        asyncio.run(story())


def test_a1_b1_what_is_read_of_a_history_that_stands_still_is_remembered() -> None:
    """A1, A7, B1: the first aside or estimate reads it; the others look at its header alone, until it goes on."""
    with ProviderFake("openai-chat", script) as fake:
        journal = FaultyJournal(MemoryJournal())
        store = JournalStore(journal, namespace="n")
        drive(blocking(fake, store=JournalStore(journal, namespace="n"), conversation="c").set_history(messages(8)))
        each = blocking(fake, store=store, conversation="c", auto_manage_history=False)

        def pages() -> int:
            journal.calls.clear()
            assert drive(each.chat("aside")) == "answer to aside"
            drive(each.estimate_history_tokens())
            return sum(call in ("newest", "oldest") for call in journal.calls)

        first, second = pages(), pages()
        assert first > second == 0
        drive(each.add_to_history(messages(1)[0]))
        assert pages() <= first
        assert pages() == 0
