"""Face A when things end badly: cut at any await, killed in the middle, and storage that fails (SPEC A9, A10)."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.budgets import budget
from tests.faces.test_agent import agent, asking, echo, look, messages, said, sent, summarising, system, user
from tests.faces.test_sync_interrupts import Interrupt
from tests.http_clients import http_client
from tests.stores.labs import KINDS, opening

import minutebook.chat.chat as chat_module
from minutebook import Agent, SQLiteStore, sync
from minutebook.errors import (
    AgentDecisionProviderUnavailable,
    DecisionHistoryBusy,
    DecisionHistoryConflict,
    DecisionHistoryStorageFailed,
    InvalidOption,
    MinutebookError,
)
from minutebook.history import Hold
from minutebook.model.entries import Kind
from minutebook.model.pause import drive
from minutebook.stores.journal import JournalStore
from minutebook.stores.memory import MemoryJournal
from minutebook.stores.sqlite import SQLiteJournal
from minutebook.stores.streams import stream_receipts
from minutebook.testing import Answer, Cut, Fault, FaultyJournal, ProviderFake, SuspendingJournal, cancel_at
from minutebook.testing.fakes import Failure, Line, Received, Silence

OLD = [system("S"), *messages(14)]
SUMMED = [system("S"), *messages(14)[4:], user("asks"), said("answer")]
WHOLE = [*OLD, user("asks"), said("answer")]

Method = Callable[[Agent], Coroutine[Any, Any, Any]]


def script(request: Received) -> Line:
    """Write summaries, make one call where there is a tool, then answer."""
    asked = request.json["messages"]
    if asked[0]["content"].startswith("You write the summary"):
        return summarising(request)
    if "tools" in request.json and asked[-1]["role"] == "user":
        return asking("a")
    return Answer(text="answer")


async def chat(each: Agent) -> None:
    await each.chat("asks")


async def chat_named(each: Agent) -> None:
    await each.chat("asks", id="m")


async def stream_named(each: Agent) -> None:
    async for _ in each.stream("asks", id="m"):
        pass


async def stream(each: Agent) -> None:
    async for _ in each.stream("asks"):
        pass


async def add(each: Agent) -> None:
    await each.add_to_history(system("T"))


async def set_history(each: Agent) -> None:
    await each.set_history([user("new"), system("U")])


async def clear(each: Agent) -> None:
    await each.clear_history()


async def summarise(each: Agent) -> None:
    await each.summarize_history()


async def set_summary(each: Agent) -> None:
    await each.set_conversation_summary("s")


def noting_look(called: list[str]) -> Callable[[str], str]:
    def look(path: str) -> str:
        """Read a file."""
        called.append(path)
        return path

    return look


METHODS: dict[str, tuple[Method, dict[str, Any], list[dict[str, Any]], str | None]] = {
    "chat": (chat, {}, WHOLE, None),
    "chat with a tool": (chat, {"tools": [look]}, WHOLE, None),
    "chat with a summary": (
        chat,
        {"enable_summarization": True, "summarization_threshold": 60},
        SUMMED,
        "m0; m1; m2; m3",
    ),
    "stream": (stream, {}, WHOLE, None),
    "chat by id": (chat_named, {"tools": [look]}, WHOLE, None),
    "stream by id": (stream_named, {}, WHOLE, None),
    "add": (add, {}, [*OLD, system("T")], None),
    "set": (set_history, {}, [user("new"), system("U")], None),
    "clear": (clear, {}, [], None),
    "summarise": (summarise, {}, [system("S"), *messages(14)[4:]], "m0; m1; m2; m3"),
    "set summary": (set_summary, {}, OLD, "s"),
}
"""Each method with the agent's options, and the history and summary that it leaves."""


class _Blocking(Agent):
    """The coroutines of an agent over a client that never suspends them."""

    _blocking = True


def blocking(fake: ProviderFake, **options: Any) -> Agent:
    http = http_client(verify=False, timeout=20)
    client = openai.OpenAI(base_url=fake.base_url, api_key="k", http_client=http)
    return _Blocking(name="Assistant", goal="Help users", client=client, **options)


async def struck(
    fake: ProviderFake, make: Callable[..., Agent], method: str, step: int, cut: Cut, journal: Any
) -> tuple[bool, bool]:
    """
    Cut a method at one await, and see that what is left is old or new, and that the next chat works.

    Returns whether the method was still under way, and whether it was done all the same.
    """
    call, options, after, summary = METHODS[method]
    called: list[str] = []
    tools = [noting_look(called)] if "tools" in options else []
    options = {**options, "tools": tools}
    plain = JournalStore(journal, namespace="n")
    await make(fake, store=plain, conversation="c").set_history(OLD)
    store = JournalStore(SuspendingJournal(journal), namespace="n")  # type: ignore[arg-type]
    each = make(fake, store=store, conversation="c", **options)
    ended = await cancel_at(lambda: call(each), step, cut)
    place = f"{method} {cut.value} at await {step}"
    if ended.struck:
        assert not isinstance(ended.error, (MinutebookError, AssertionError)), f"{place}: {ended.error!r}"
    if cut is not Cut.CLOSED:  # what a closed coroutine left to do may still be under way
        assert (await plain.totals()).reserved == 0, place
    again = make(fake, store=JournalStore(journal, namespace="n"), conversation="c", tools=tools)
    history = await again.get_history()
    assert history in (OLD, after), f"{place}: neither old nor new"
    done = history == after and await again.get_conversation_summary() == summary
    assert done or await again.get_conversation_summary() is None
    asked, answered = [user("asks"), said("answer")]
    named = method.endswith("by id")
    assert await again.chat("asks", id="m" if named else "") == "answer"
    repeated = history[-2:] == [asked, answered] and not named
    whole = history if history == after and named else [*history, asked, answered]
    assert await again.get_history() == whole, place
    assert sum(message == asked for message in await again.get_history()) == 1 + repeated
    inputs = [
        entry async for entry in plain.entries(again.key) if entry.kind is Kind.INPUT and b'"asks"' in entry.payload
    ]
    assert len(inputs) == 1 + repeated, f"{place}: the message is recorded {len(inputs)} times"
    assert len(called) <= 1 + repeated, f"{place}: the tool ran {len(called)} times"
    await plain.verify(again.key)
    return ended.struck, done


async def everywhere(
    fake: ProviderFake, make: Callable[..., Agent], method: str, cut: Cut, fresh: Callable[[int], Any]
) -> int:
    """Cut a method at each of its awaits, each time over a fresh journal; return how many there were."""
    step, done_before_the_end = 1, 0
    while True:
        journal = fresh(step)
        under_way, done = await struck(fake, make, method, step, cut, journal)
        await journal.close()
        if not under_way:
            assert done
            return step
        done_before_the_end += done
        assert done_before_the_end <= 3, "a method that is done has little left to wait for"
        step += 1


@pytest.mark.timeout(300)
@pytest.mark.parametrize("cut", [Cut.CANCELLED, Cut.CLOSED, Cut.INTERRUPTED], ids=lambda cut: cut.value)
@pytest.mark.parametrize("method", METHODS)
def test_a9_i18_cut_at_any_await(method: str, cut: Cut) -> None:
    """A9, I-18: cancelled, closed or interrupted at each await of the store, nothing is half there or said twice."""
    with ProviderFake("openai-chat", script) as fake:
        assert drive(everywhere(fake, blocking, method, cut, lambda _: MemoryJournal())) > 4
        assert not fake.refused


@pytest.mark.timeout(300)
@pytest.mark.parametrize("cut", [Cut.CANCELLED, Cut.TIMEOUT], ids=lambda cut: cut.value)
@pytest.mark.parametrize("method", ["chat", "chat with a tool", "chat by id", "chat with a summary", "stream"])
@pytest.mark.parametrize("kind", ["RAM", "SQLite"])
def test_a9_o35_cut_at_any_await_under_asyncio(kind: str, method: str, cut: Cut, tmp_path: Path) -> None:
    """A9, O-35: the awaits of the real client among them, in RAM and in a file."""
    tmp_path.chmod(0o700)

    def fresh(step: int) -> Any:
        return MemoryJournal() if kind == "RAM" else SQLiteJournal(tmp_path / f"{step}.sqlite")

    with ProviderFake("openai-chat", script) as fake:
        assert asyncio.run(everywhere(fake, agent, method, cut, fresh)) > 8


def test_a9_control_a_hold_that_is_not_given_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A harness that finds nothing in a library that cleans up nothing would prove nothing."""

    async def forgotten(self: Hold, error: BaseException, drafts: Any = ()) -> None:
        self.history.tokens.issue(self)

    monkeypatch.setattr(Hold, "abandon", forgotten)
    with ProviderFake("openai-chat", script) as fake, pytest.raises((DecisionHistoryBusy, AssertionError)):
        drive(everywhere(fake, blocking, "chat", Cut.CANCELLED, lambda _: MemoryJournal()))


@pytest.mark.parametrize("after", [False, True], ids=["not written", "reply lost"])
@pytest.mark.parametrize("method", ["summarise", "set", "clear", "chat with a summary"])
def test_a6_o20_a_write_that_fails_leaves_all_or_nothing(method: str, after: bool) -> None:
    """O-20: whichever call to the store fails, the reopened chat is fully before or fully after."""
    call, options, new, summary = METHODS[method]
    with ProviderFake("openai-chat", script) as fake:

        async def story(number: int) -> bool:
            journal = MemoryJournal()
            plain = JournalStore(journal, namespace="n")
            await blocking(fake, store=plain, conversation="c").set_history(OLD)
            faulty = FaultyJournal(journal, [Fault(call=number, after=after)])
            each = blocking(fake, store=JournalStore(faulty, namespace="n"), conversation="c", **options)  # type: ignore[arg-type]
            failed = False
            try:
                await call(each)
            except DecisionHistoryStorageFailed:
                failed = True
            assert (await plain.totals()).reserved == 0
            again = blocking(fake, store=plain, conversation="c")
            found = (await again.get_history(), await again.get_conversation_summary())
            assert found in ((OLD, None), (new, summary))
            await plain.verify(each.key)
            return failed

        number = 1
        while drive(story(number)):
            number += 1
        assert number > 2


@pytest.mark.parametrize("after", [False, True], ids=["not written", "reply lost"])
@pytest.mark.parametrize("by_id", [False, True], ids=["by the words", "by id"])
@pytest.mark.parametrize("kind", KINDS)
def test_a9_b2_i08_i18_a_chat_whose_store_fails_once_is_said_again_from_another_process(
    kind: str, by_id: bool, after: bool, tmp_path: Path
) -> None:
    """
    A9, B2, I-8, I-18: whichever call to the store fails or loses its reply, nothing is held, said or done twice.

    Where only the last reply was lost the chat is whole, and says so itself.
    """
    id_ = "m" if by_id else ""

    def calling(request: Received) -> Line:
        newest = request.json["messages"][-1]
        stopped = newest["role"] == "tool" and "run_stopped" in newest["content"]
        return asking("a") if stopped or newest["role"] == "user" else Answer(text="answer")

    with ProviderFake("openai-chat", calling) as fake:

        async def story(number: int) -> bool:
            opened, called = opening(kind, tmp_path, f"{number}.db"), list[str]()
            faulty = FaultyJournal(opened(), [Fault(call=number, after=after)])
            options: dict[str, Any] = {"conversation": "c", "tools": [noting_look(called)]}
            each = blocking(fake, store=JournalStore(faulty, namespace="n"), **options)  # type: ignore[arg-type]
            heard = ""
            with contextlib.suppress(DecisionHistoryStorageFailed):
                heard = await each.chat("asks", id=id_)
            plain = JournalStore(opened(), namespace="n")
            again = blocking(fake, store=plain, **options)
            if by_id or not heard:
                assert await again.chat("asks", id=id_) == "answer"
            assert await again.get_history() == [user("asks"), said("answer")]
            assert called == ["a"]
            await plain.verify(again.key)
            await plain.close()
            await faulty.close()
            return not faulty.left

        number = 1
        while drive(story(number)):
            number += 1
        assert number > 5


@pytest.mark.parametrize("kind", KINDS)
def test_a9_b2_d22_i44_a_chat_killed_at_any_await_is_said_again_from_another_process(kind: str, tmp_path: Path) -> None:
    """A9, B2, D22, I-44: busy until somebody says the process is gone; then it is answered, and no tool runs twice."""
    recovered = 0
    with ProviderFake("openai-chat", script) as fake:

        async def story(step: int) -> bool:
            nonlocal recovered
            opened, called = opening(kind, tmp_path, f"{step}.db"), list[str]()
            options: dict[str, Any] = {"conversation": "c", "tools": [noting_look(called)]}
            suspending = SuspendingJournal(opened())
            each = blocking(fake, store=JournalStore(suspending, namespace="n"), **options)  # type: ignore[arg-type]
            ended = await cancel_at(lambda: each.chat("asks", id="m"), step, Cut.KILLED)
            plain = JournalStore(opened(), namespace="n")
            again = blocking(fake, store=plain, **options)
            header = await plain.header(again.key)
            if header is not None and header.token:
                with pytest.raises(DecisionHistoryBusy):
                    await again.chat("asks", id="m")
                await again.recover(worker_stopped=True, epoch=header.epoch)
                recovered += 1
            assert await again.chat("asks", id="m") == "answer"
            assert await again.get_history() == [user("asks"), said("answer")]
            assert len(called) <= 1
            inputs = [entry async for entry in plain.entries(again.key) if entry.kind is Kind.INPUT]
            assert len(inputs) == 1
            await plain.verify(again.key)
            await plain.close()
            await suspending.close()
            return ended.struck

        step = 1
        while drive(story(step)):
            step += 1
        assert recovered > 5


def test_a9_i44_a_call_that_never_began_is_told_as_that_and_the_one_under_way_as_unknown() -> None:
    """A9, I-44: of two calls of one answer the first was struck; nobody knows what came of it."""
    told: list[str] = []
    called: list[str] = []

    def calling(request: Received) -> Line:
        results = [message["content"] for message in request.json["messages"] if message["role"] == "tool"]
        told[:] = results
        return Answer(text="answer") if results else asking("a", "b")

    def look(path: str) -> str:
        """Read a file."""
        called.append(path)
        raise KeyboardInterrupt

    with ProviderFake("openai-chat", calling) as fake:
        each = blocking(fake, tools=[look])
        with pytest.raises(KeyboardInterrupt):
            drive(each.chat("asks"))
        assert drive(each.chat("asks")) == "answer"
    assert told == ['{"error":{"interrupted":"outcome unknown"}}', '{"error":{"refused":"run_stopped"}}']
    assert called == ["a"]


def test_a9_i44_an_interrupt_before_a_commit_is_heard_of_tells_its_calls_as_never_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A9, I-44: the answer was written, and who wrote it struck before it went on from there; none of it is lost."""
    take, told, called = Hold._take, list[str](), list[str]()

    def struck(self: Hold, committed: Any) -> None:
        if any(entry.kind is Kind.RESPONSE for entry in committed.written):
            monkeypatch.setattr(Hold, "_take", take)
            raise KeyboardInterrupt
        take(self, committed)

    def calling(request: Received) -> Line:
        told[:] = [message["content"] for message in request.json["messages"] if message["role"] == "tool"]
        return Answer(text="answer") if told else asking("a", "b")

    monkeypatch.setattr(Hold, "_take", struck)
    with ProviderFake("openai-chat", calling) as fake:
        each = blocking(fake, tools=[noting_look(called)])
        with pytest.raises(KeyboardInterrupt):
            drive(each.chat("asks"))
        assert drive(each.chat("asks")) == "answer"
    assert (told, called) == (['{"error":{"refused":"run_stopped"}}'] * 2, [])


def interrupted_chat(fake: ProviderFake, line: int) -> bool:
    """Interrupt a chat at one line of what keeps its record, and say the same again; return whether it has so many."""
    called: list[str] = []
    store = JournalStore(MemoryJournal(), namespace="n")
    each = blocking(fake, tools=[noting_look(called)], store=store, conversation="c")
    strike = Interrupt(line, "chat/provider.py", "history/hold.py")
    with contextlib.suppress(KeyboardInterrupt), strike:
        assert drive(each.chat("asks")) == "answer"
    before, place = list(called), f"line {line}, {strike.at}"
    history = drive(each.get_history())
    assert drive(each.chat("asks")) == "answer", place
    results = [message for message in fake.requests[-1].json["messages"] if message["role"] == "tool"]
    for message in results if not history else []:
        assert message["tool_call_id"] not in before or "refused" not in message["content"], place
    assert len(called) <= (4 if history else 2), place
    drive(store.verify(each.key))
    return bool(strike.at)


def test_a9_i44_an_interrupt_behind_a_tool_or_a_commit_is_told_as_what_it_is(figure: Callable[[str], None]) -> None:
    """A9, I-44: it comes out as it came, no call that began is told as never begun, and none is done again."""

    def calling(request: Received) -> Line:
        return Answer(text="answer") if request.json["messages"][-1]["role"] == "tool" else asking("a", "b")

    step = budget(17, 1)
    line = 1
    with ProviderFake("openai-chat", calling) as fake:
        while interrupted_chat(fake, line):
            line += step
    assert line > 100
    figure(f"interrupted at {line // step:,} of about {line:,} lines")


@pytest.mark.parametrize("after", [False, True], ids=["not written", "reply lost"])
def test_a5_i08_a_message_that_is_added_again_by_id_is_there_once(after: bool) -> None:
    """A5, I-8: whichever call to the store fails; another message under the id is refused, and none is lost."""
    with ProviderFake("openai-chat", script) as fake:

        async def story(number: int, message: Any) -> bool:
            journal = MemoryJournal()
            faulty = FaultyJournal(journal, [Fault(call=number, after=after)])
            each = blocking(fake, store=JournalStore(faulty, namespace="n"), conversation="c")  # type: ignore[arg-type]
            with contextlib.suppress(DecisionHistoryStorageFailed):
                await each.add_to_history(message, id="m")
            again = blocking(fake, store=JournalStore(journal, namespace="n"), conversation="c")
            await again.add_to_history(message, id="m")
            assert await again.get_history() == [message]
            with pytest.raises(DecisionHistoryConflict):
                await again.add_to_history(said("other"), id="m")
            with pytest.raises(DecisionHistoryConflict):
                await again.chat("other", id="m")
            assert await again.get_history() == [message]
            return not faulty.left

        for message in (said("hi"), system("S")):
            number = 1
            while drive(story(number, message)):
                number += 1
            assert number > 2


@pytest.mark.parametrize("streamed", [False, True], ids=["chat", "stream"])
@pytest.mark.parametrize("before", ["", "other", "m"], ids=["no id", "another id", "the same id"])
@pytest.mark.parametrize("between", [False, True], ids=["at once", "after other words"])
def test_a9_i08_an_answered_id_gives_its_answer_whatever_was_tried_before(
    between: bool, before: str, streamed: bool
) -> None:
    """A9, I-8: the same words failed before, under this id or not, and others may have come in between."""
    answers: list[Line] = [Failure(status=503), *([Answer(text="other")] if between else []), Answer(text="answer")]

    async def say(each: Agent, text: str, id_: str) -> str:
        if streamed:
            return "".join([piece async for piece in each.stream(text, id=id_)])
        return await each.chat(text, id=id_)

    with ProviderFake("openai-chat", answers) as fake:

        async def story() -> None:
            each = agent(fake)
            with pytest.raises(AgentDecisionProviderUnavailable):
                await say(each, "asks", before)
            if between:
                await each.chat("other")
            for _ in range(3):
                assert await say(each, "asks", "m") == "answer"
            with pytest.raises(DecisionHistoryConflict):
                await say(each, "other words", "m")
            others = [user("other"), said("other")] if between else []
            assert await each.get_history() == [*others, user("asks"), said("answer")]

        asyncio.run(story())
        assert len(fake.requests) == 2 + between


def test_a9_i08_who_looks_while_another_answers_is_given_that_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A9, I-8: two workers with one id; the second looked before the first had answered, and begins after it."""
    looked = chat_module.recorded_answer
    with ProviderFake("openai-chat", script) as fake:
        store = JournalStore(MemoryJournal(), namespace="n")
        first, second = (blocking(fake, store=store, conversation="c") for _ in range(2))

        async def late(*given: Any) -> str | None:
            found = await looked(*given)
            if given[0] is second._chat.history and not fake.requests:
                assert await first.chat("asks", id="m") == "answer"
            return found

        monkeypatch.setattr(chat_module, "recorded_answer", late)
        assert drive(second.chat("asks", id="m")) == "answer"
        assert len(fake.requests) == 1
        assert drive(second.get_history()) == [user("asks"), said("answer")]


def test_a9_i44_in_a_second_round_too_a_call_that_never_began_is_told_as_that() -> None:
    """A9, I-44: the commit of the second answer failed, so that none of its calls was begun."""
    told: list[str] = []
    called: list[str] = []

    def calling(request: Received) -> Line:
        results = [message["content"] for message in request.json["messages"] if message["role"] == "tool"]
        told[:] = results
        return [asking("a"), asking("b", "c")][len(results)] if len(results) < 2 else Answer(text="answer")

    with ProviderFake("openai-chat", calling) as fake:
        journal = MemoryJournal()
        faulty: Any = FaultyJournal(journal, [Fault(call=3, method="commit")])
        options: dict[str, Any] = {"conversation": "c", "tools": [noting_look(called)]}
        with pytest.raises(DecisionHistoryStorageFailed):
            drive(blocking(fake, store=JournalStore(faulty, namespace="n"), **options).chat("asks"))
        assert drive(blocking(fake, store=JournalStore(journal, namespace="n"), **options).chat("asks")) == "answer"
    assert told == ["a", *['{"error":{"refused":"run_stopped"}}'] * 2]
    assert called == ["a"]


def test_a6_c3_receipts_tell_of_the_requests_that_were_sent_and_of_no_other() -> None:
    """C3, A6: what is measured to see whether a summary is due, and what a retry carries over, is no request."""
    script_: list[Line] = [asking("a"), Failure(status=503), Answer(text="answer")]
    with ProviderFake("openai-chat", script_) as fake:
        store = JournalStore(MemoryJournal(), namespace="n")
        each = blocking(fake, store=store, conversation="c", tools=[look], enable_summarization=True)
        with pytest.raises(AgentDecisionProviderUnavailable):
            drive(each.chat("asks"))
        assert drive(each.chat("asks")) == "answer"

        async def sent_receipts() -> list[Any]:
            header = await store.header(each.key)
            return [r async for r in stream_receipts(store.journal, each.key, header) if r.sent]

        assert len(drive(sent_receipts())) == len(fake.requests) - 1  # one was refused, and nothing answered it


def test_a1_i08_an_id_needs_a_record_that_could_know_it() -> None:
    """A1: where nothing is recorded no repetition can be recognised, and nobody may believe so."""
    with ProviderFake("openai-chat", script) as fake:
        each = blocking(fake, auto_manage_history=False)
        for method in (each.chat, each.stream):
            with pytest.raises(InvalidOption, match="auto_manage_history"):
                drive(method("asks", id="m"))  # type: ignore[arg-type]
        assert not fake.requests


CHILD = """
import sys
import openai
from minutebook import sync

def look(path: str) -> str:
    "Read a file."
    print("called", flush=True)
    sys.stdin.read()
    return path

with sync.SQLiteStore(sys.argv[1], namespace="n") as store:
    client = openai.OpenAI(base_url=sys.argv[2], api_key="k", max_retries=0)
    tools = [look] if sys.argv[3] == "tool" else []
    agent = sync.Agent(name="Assistant", goal="Help users", client=client, store=store, conversation="c", tools=tools)
    agent.chat("first")
    print("said", flush=True)
    agent.chat("asks")
"""


def started(path: Path, fake: ProviderFake, where: str) -> subprocess.Popen[str]:
    """Begin the two chats of `CHILD` in a process of their own, with a tool or without."""
    command = [sys.executable, "-c", CHILD, path, fake.base_url, where]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("where", ["request", "tool"])
def test_a9_o33_killed_in_the_middle_and_gone_on_with(where: str, tmp_path: Path) -> None:
    """A9, D22, O-33: after a kill the chat is held until somebody says the process is gone; then it is as it was."""
    tmp_path.chmod(0o700)
    path = tmp_path / "book.sqlite"
    arrived = threading.Event()

    def answering(request: Received) -> Line:
        asked = request.json["messages"][-1]
        if asked["content"] == "asks" and not arrived.is_set():
            arrived.set()
            return asking("a") if where == "tool" else Silence()
        return echo(request)

    with ProviderFake("openai-chat", answering) as fake:
        child = started(path, fake, where)
        assert child.stdout is not None
        assert child.stdout.readline() == "said\n"
        if where == "tool":
            assert child.stdout.readline() == "called\n"
        assert arrived.wait(30)
        child.kill()
        child.wait()

        async def story() -> None:
            async with SQLiteStore(path, namespace="n") as store:
                each = agent(fake, store=store, conversation="c")
                before = [user("first"), said("answer to first")]
                assert await each.get_history() == before
                with pytest.raises(DecisionHistoryBusy):
                    await each.chat("asks")
                await each.recover(worker_stopped=True)
                assert await each.get_history() == before
                kinds = [entry.kind.name async for entry in store.entries(each.key)]
                done = ["RESPONSE"] if where == "tool" else []
                assert kinds == ["INPUT", "RESPONSE", "INPUT", *done, "ABANDONED"]
                assert await each.chat("asks") == "answer to asks"
                assert [message["content"] for message in sent(fake.requests[-1])[1:]] == [
                    *("first", "answer to first", "asks")
                ]
                assert await each.get_history() == [*before, user("asks"), said("answer to asks")]
                await store.verify(each.key)

        asyncio.run(story())


@pytest.mark.timeout(120)
def test_a9_o33_i44_killed_in_a_tool_it_is_told_as_unknown_and_not_run_again(tmp_path: Path) -> None:
    """A9, O-33, I-44: whoever says the same words after the kill has the model told that nobody knows."""
    tmp_path.chmod(0o700)
    path = tmp_path / "book.sqlite"

    def answering(request: Received) -> Line:
        newest = request.json["messages"][-1]
        return asking("a") if newest["content"] == "asks" else echo(request)

    with ProviderFake("openai-chat", answering) as fake:
        child = started(path, fake, "tool")
        assert child.stdout is not None
        assert [child.stdout.readline() for _ in range(2)] == ["said\n", "called\n"]
        child.kill()
        child.wait()
        called: list[str] = []

        async def story() -> None:
            async with SQLiteStore(path, namespace="n") as store:
                each = agent(fake, store=store, conversation="c", tools=[noting_look(called)])
                await each.recover(worker_stopped=True)
                unknown = '{"error":{"interrupted":"outcome unknown"}}'
                assert await each.chat("asks") == f"answer to {unknown}"
                assert [message["role"] for message in fake.requests[-1].json["messages"][3:]] == [
                    *("user", "assistant", "tool")
                ]
                assert called == []
                await store.verify(each.key)

        asyncio.run(story())


@pytest.mark.timeout(120)
def test_a9_o33_i44_killed_behind_a_tool_its_result_is_told_and_it_is_not_run_again(tmp_path: Path) -> None:
    """A9, O-33, I-44: what a tool came to is recorded before the request leaves that tells the model of it."""
    tmp_path.chmod(0o700)
    path = tmp_path / "book.sqlite"
    arrived = threading.Event()

    def answering(request: Received) -> Line:
        newest = request.json["messages"][-1]
        if newest["role"] == "tool" and not arrived.is_set():
            arrived.set()
            return Silence()
        return asking("a") if newest["content"] == "asks" else echo(request)

    with ProviderFake("openai-chat", answering) as fake:
        child = started(path, fake, "tool")
        assert child.stdin is not None
        child.stdin.close()  # the tool goes on
        assert arrived.wait(30)
        child.kill()
        child.wait()
        child.stdout.close()  # type: ignore[union-attr]
        called: list[str] = []

        async def story() -> None:
            async with SQLiteStore(path, namespace="n") as store:
                each = agent(fake, store=store, conversation="c", tools=[noting_look(called)])
                await each.recover(worker_stopped=True)
                assert await each.chat("asks") == "answer to a"
                assert called == []
                await store.verify(each.key)

        asyncio.run(story())


def test_a10_o32_two_processes_do_not_mix_their_turns(tmp_path: Path) -> None:
    """A10, O-32: another process's turns are seen at once; what this one remembers is not taken for the record."""
    tmp_path.chmod(0o700)
    with ProviderFake("openai-chat", echo) as fake:
        options: dict[str, Any] = {"name": "Assistant", "goal": "Help users", "conversation": "c"}
        options["client"] = openai.OpenAI(base_url=fake.base_url, api_key="k")
        with (
            sync.SQLiteStore(tmp_path / "book.sqlite", namespace="n") as one,
            sync.SQLiteStore(tmp_path / "book.sqlite", namespace="n") as two,
        ):
            first, second = sync.Agent(**options, store=one), sync.Agent(**options, store=two)
            for n in range(3):
                first.chat(f"a{n}")
                second.chat(f"b{n}")
                assert first.get_history() == second.get_history()
            second.clear_history()
            first.chat("fresh")
            assert [message["content"] for message in second.get_history()] == ["fresh", "answer to fresh"]
