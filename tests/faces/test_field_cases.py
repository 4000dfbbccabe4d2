"""
Field cases C, D and G as a chat or an engine meets them: what other tests of these faces do not tell.

O-14, O-36 and O-40 stand in the names of `test_agent.py` and `test_engine.py`. A chat has no approvals; what was begun
and is gone on with is a message that failed and is said again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.budgets import budget
from tests.cases.test_cases_g import holding, largest_gap
from tests.faces.test_agent import UNKNOWN, agent, echo, results, said, sent, summaries, summarising, told, user
from tests.faces.test_agent_summaries import EAGER

from minutebook import Agent, Engine, HistoryConfig, MemoryStore, SQLiteStore
from minutebook.errors import DecisionHistoryBusy, InvalidMessage, InvalidValue
from minutebook.stores.journal import JournalStore
from minutebook.testing import Answer, FrozenClock, FunctionCall, ProviderFake
from minutebook.testing.fakes import Line, Received


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path / "book.sqlite"


def engine(store: JournalStore, **policy: Any) -> Engine[Any]:
    return Engine(history=HistoryConfig(store=store, **policy), respond=lambda turn: f"answer to {turn.user_intent}")


# --- C and D: the shape of messages, summaries -----------------------------------------------------------------------


class Transfers:
    """A model that moves three amounts at once, and a tool that never comes back from the third while it `hangs`."""

    def __init__(self) -> None:
        self.hangs = True
        self.moved: list[int] = []

    def __call__(self, request: Received) -> Line:
        newest = request.json["messages"][-1]
        if newest["role"] == "user" and newest["content"] == "transfer":
            return Answer(calls=tuple(FunctionCall("move", {"amount": amount}) for amount in (1, 2, 3)))
        return Answer(text="moved") if newest["role"] == "tool" else summarising(request)

    async def move(self, amount: int) -> str:
        """Move money."""
        self.moved.append(amount)
        if amount == 3 and self.hangs:
            await asyncio.Event().wait()
        return f"moved {amount}"


def test_o15_o23_calls_without_results_are_in_no_summary_and_come_back_with_all_of_them() -> None:
    """Two of three results are there when the chat is cut; summaries are made; then its message comes again."""
    transfers = Transfers()
    with ProviderFake("openai-chat", transfers) as fake:

        async def story() -> None:
            each = agent(fake, store=MemoryStore(), tools=[transfers.move], max_history_messages=10, **EAGER)
            running = asyncio.ensure_future(each.chat("transfer", id="m1"))
            while 3 not in transfers.moved:
                await asyncio.sleep(0)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            for number in range(12):
                await each.chat(f"q{number}")
            assert len(summaries(fake)) > 1
            assert not any(b"transfer" in request.body for request in fake.requests[1:])
            assert await each.chat("transfer", id="m1") == "moved"
            assert results(fake.requests[-1]) == ["moved 1", "moved 2", UNKNOWN]
            for number in range(12):
                await each.chat(f"r{number}")
            summary = await each.get_conversation_summary()
            assert summary is not None
            assert summary.count("transfer") == 1
            assert transfers.moved == [1, 2, 3]

        told(story())
        assert not fake.refused  # the fake takes no call without its result


# --- G: stores under load --------------------------------------------------------------------------------------------


def test_o31_a_chat_that_is_refused_leaves_no_lock_and_a_reader_meets_none(path: Path) -> None:
    """Two stores on one file: what holds half a character is not written, and nobody waits for it or meets a lock."""
    with ProviderFake("openai-chat", echo) as fake:

        async def story() -> None:
            async with SQLiteStore(path, namespace="n") as one, SQLiteStore(path, namespace="n") as two:
                writer, reader = agent(fake, store=one), agent(fake, store=two)
                with pytest.raises((InvalidMessage, InvalidValue)):
                    await writer.set_history([user("whole"), said("half \ud800")])
                await reader.add_to_history(user("at once"))
                assert await writer.get_history() == [user("at once")]
                writing = asyncio.ensure_future(chats(writer, 20))
                while not writing.done():
                    assert len(await reader.get_history()) % 2
                    await asyncio.sleep(0)
                assert await writing == await reader.get_history_length()

        told(story())


async def chats(each: Agent, count: int) -> int:
    for number in range(count):
        await each.chat(f"q{number}")
    return await each.get_history_length()


def test_o31_an_entry_that_is_refused_leaves_no_lock_and_a_reader_meets_none(path: Path) -> None:
    """Of an engine's session too."""

    async def turns(each: Engine[Any]) -> None:
        for number in range(50):
            await each.turn("s", f"q{number}")

    async def story() -> None:
        async with SQLiteStore(path, namespace="n") as one, SQLiteStore(path, namespace="n") as two:
            writer, reader = engine(one), engine(two)
            with pytest.raises(InvalidValue):
                await writer.inject("s", "no number", details={"a": float("nan")})
            await reader.inject("s", "at once")
            writing = asyncio.ensure_future(turns(writer))
            while not writing.done():
                assert len(await reader.get_llm_context("s")) % 2
                await asyncio.sleep(0)
            await writing
            assert len(await reader.get_llm_context("s")) == 101

    asyncio.run(story())


def test_o37_an_agent_that_is_anothers_tool_sees_what_it_is_asked_and_nothing_else() -> None:
    """In one store; what passes between the two is in a window of either once, and a chat of its own is refused."""

    def model(request: Received) -> Line:
        newest = request.json["messages"][-1]
        if newest["content"] == "find out":
            return Answer(calls=(FunctionCall("ask", {"question": "the price?"}),))
        return Answer(text="four" if newest["role"] == "user" else "it is four")

    with ProviderFake("openai-chat", model) as fake:

        async def story() -> None:
            store = MemoryStore()
            two = agent(fake, store=store, conversation="two")

            async def ask(question: str) -> str:
                """Ask the other."""
                with pytest.raises(DecisionHistoryBusy):
                    await one.chat("and you?")
                return await two.chat(question)

            one = agent(fake, store=store, conversation="one", tools=[ask])
            assert await one.chat("find out") == "it is four"
            assert await one.chat("sure?") == "four"
            asked, last = fake.requests[1], fake.requests[-1]
            assert sent(asked)[1:] == [user("the price?")]
            assert (last.body.count(b"the price?"), results(last)) == (1, ["four"])
            assert await two.get_history() == [user("the price?"), said("four")]
            assert await one.get_history() == [user("find out"), said("it is four"), user("sure?"), said("four")]

        told(story())


def test_o38_a_long_chat_and_a_long_session_leave_the_event_loop_to_others(
    path: Path, figure: Callable[[str], None]
) -> None:
    """Read whole, searched, gone on with and projected: whatever is long is cut."""
    items, size = budget((1_000, 4_000), (10_000, 4_000))

    async def story() -> str:
        async with SQLiteStore(path, namespace="n") as store:
            each = agent(fake, store=store, max_history_messages=items)
            await each.set_history([(said if n % 2 else user)("x" * size) for n in range(items)])
            history = HistoryConfig(store=store, max_chars=items * size)
            session = Engine(history=history, respond=lambda _: "y" * size)
            for number in range(items // 10):
                await session.turn("s", f"{number}")

            async def searched() -> None:
                assert [found async for found in each.search("no such text")] == []

            works: dict[str, Callable[[], Awaitable[object]]] = {
                "history": agent(fake, store=store, max_history_messages=items).get_history,
                "search": searched,
                "chat": lambda: each.chat("more"),
                "context": lambda: engine(store, max_chars=items * size).get_llm_context("s"),
                "turn": lambda: session.turn("s", "more"),
            }
            gaps = {name: await largest_gap(work) for name, work in works.items()}
            assert holding(gaps) == set(), gaps
            return ", ".join(f"{name} {gap * 1000:.0f} ms" for name, (gap, _) in gaps.items())

    with ProviderFake("openai-chat", echo) as fake:
        figure(f"{items:,} messages, {items * size:,} bytes; largest gap: {asyncio.run(story())}")


def test_o39_what_a_chat_and_an_engine_record_in_one_millisecond_stays_in_order(path: Path) -> None:
    """The clock stands still, and each reading has a store of its own: calls, results and entries as they came."""
    clock = FrozenClock()
    transfers = Transfers()
    transfers.hangs = False
    with ProviderFake("openai-chat", transfers) as fake:

        async def story() -> None:
            for number in range(6):
                async with SQLiteStore(path, namespace="n", clock=clock) as store:
                    each = agent(fake, store=store, tools=[transfers.move])
                    await each.chat("transfer" if number % 2 else f"q{number}")
                    await engine(store).turn("s", f"{number}")
                    await engine(store).inject("s", f"{number}")
                    said_by = [message["content"] for message in await each.get_history() if message["role"] == "user"]
                    assert said_by == ["transfer" if n % 2 else f"q{n}" for n in range(number + 1)]
                    context = [message["content"] for message in await engine(store).get_llm_context("s")]
                    assert context == [t for n in range(number + 1) for t in (f"{n}", f"answer to {n}", f"{n}")]
            assert results(fake.requests[-1]) == ["moved 1", "moved 2", "moved 3"] * 3
            async with SQLiteStore(path, namespace="n", clock=clock) as store:
                for conversation in ("c", "s"):
                    entries = [entry async for entry in store.entries(store.key(conversation))]
                    assert {entry.wall for entry in entries} == {clock()}

        told(story())
        assert not fake.refused
