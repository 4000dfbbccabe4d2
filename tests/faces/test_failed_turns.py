"""
What turns cost while every one of them fails, as through a provider's outage (SPEC B1, case O-34).

Counted is what a store hands out: entries, by page or with a reservation. A turn that fails in the 500th place must
cost no more than one at the beginning, in the process that saw the others fail and in one that did not.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.faces.test_agent import agent
from tests.stores.labs import open_journal, said

from minutebook import Conversation, Engine, EngineTurn, HistoryConfig, WindowLimits
from minutebook.errors import AgentDecisionProviderUnavailable
from minutebook.model.entries import Kind
from minutebook.model.growth import Growth
from minutebook.providers.openai_chat import CHAT
from minutebook.stores.journal import JournalStore
from minutebook.testing import Answer, ProviderFake, drive
from minutebook.testing.fakes import Failure, Line, Received
from minutebook.testing.faults import _Journal  # pyright: ignore[reportPrivateUsage]

Result = TypeVar("Result")

TURNS = 500
LIMITS = WindowLimits(max_messages=16, max_bytes=20_000)
BOUNDS = {"max_entries": 8, "max_chars": 1000}


class Counting(_Journal):
    """A journal that counts the entries which it hands out."""

    def __init__(self, journal: Any) -> None:
        super().__init__(journal)
        self.entries = 0

    async def _around(self, method: str, call: Callable[[], Awaitable[Result]]) -> Result:
        result: Any = await call()
        if method in ("newest", "oldest"):
            self.entries += len(result)
        elif method == "reserve":
            self.entries += len(result.tail)
        return result


class Costs:
    """The entries that each turn reads, one turn after the other."""

    def __init__(self, kind: str, folder: Path, *, fresh: bool = False) -> None:
        """With `fresh` every turn has a store of its own over the same logs, as another process has."""
        self.journal = Counting(open_journal(kind, folder))
        self.turns: list[int] = []
        self._fresh = fresh
        self._store = self._opened()

    def _opened(self) -> JournalStore:
        return JournalStore(self.journal, namespace="lab")

    @property
    def store(self) -> JournalStore:
        if self._fresh:
            self._store = self._opened()
        return self._store

    @contextlib.contextmanager
    def turn(self, number: int) -> Iterator[None]:
        """Note what a turn reads that fails as the test wants it."""
        before = self.journal.entries
        with contextlib.suppress(OutageError, AgentDecisionProviderUnavailable):
            yield
            pytest.fail(f"turn {number} did not fail")
        self.turns.append(self.journal.entries - before)

    @property
    def grows(self) -> bool:
        """Whether the last hundred turns read more than any before them: until then every page that is read is full."""
        assert len(self.turns) == TURNS
        return max(self.turns[-100:]) > max(self.turns[:-100])


class OutageError(Exception):
    """What a provider's client raises."""


def talk(costs: Costs) -> Conversation:
    return Conversation(costs.store, "talk", format="openai-chat", limits=LIMITS)


def answered(costs: Costs, turns: int) -> None:
    async def tell() -> None:
        for number in range(turns):
            async with talk(costs).turn(f"old {number}") as turn:
                await turn.respond(said("yes"))

    drive(tell())


async def fail(costs: Costs, text: str, *, window: bool, steps: bool) -> None:
    async with talk(costs).turn(text) as turn:
        if window:
            await turn.window()
        if steps:
            for call in await turn.respond(said("", "a", "b")):
                await turn.result(call, "ok")
            await turn.window()
        raise OutageError


def fail_often(costs: Costs, *, same: bool, window: bool = True, steps: bool = False) -> None:
    for number in range(TURNS):
        with costs.turn(number):
            drive(fail(costs, "same" if same else f"turn {number}", window=window, steps=steps))


# --- a conversation --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "window", "same", "before"),
    [*itertools.product(["RAM"], [True, False], [True, False], [0, 12]), ("SQLite", True, False, 12)],
)
def test_b1_o34_failed_turns_of_a_conversation_read_nothing_again(
    kind: str, window: bool, same: bool, before: int, tmp_path: Path
) -> None:
    """The process that saw the others fail goes on from what it knows: after the first it reads no entry at all."""
    costs = Costs(kind, tmp_path)
    answered(costs, before)
    fail_often(costs, same=same, window=window)
    assert set(costs.turns[1:]) == {0}
    drive(costs.store.verify(costs.store.key("talk")))


@pytest.mark.parametrize(
    ("kind", "same", "steps"),
    [*itertools.product(["RAM"], [True, False], [True, False]), ("SQLite", False, False)],
)
def test_b1_o34_failed_turns_cost_another_process_a_window(kind: str, same: bool, steps: bool, tmp_path: Path) -> None:
    """A process that knows nothing passes over all that failed in one step, however often it did."""
    costs = Costs(kind, tmp_path, fresh=True)
    answered(costs, 12)
    fail_often(costs, same=same, steps=steps)
    assert not costs.grows
    assert max(costs.turns) <= 6 * LIMITS.max_messages
    window = drive(talk(costs).window())
    assert [message["content"] for message in window.messages][-2:] == ["old 11", "yes"]


def test_b1_o34_after_an_outage_the_conversation_goes_on_at_the_same_cost(tmp_path: Path) -> None:
    """The first answer after 500 failures, the window of a later process and its input cost a window each."""
    costs = Costs("RAM", tmp_path, fresh=True)
    answered(costs, 12)
    fail_often(costs, same=True)

    async def goes_on() -> list[Any]:
        async with talk(costs).turn("same") as turn:
            await turn.say("and quickly")
            window = await turn.window()
            for step in range(10):
                (call,) = await turn.respond(said("", f"call {step}"))
                await turn.result(call, "ok")
            await turn.respond(said("at last"))
        return window.messages

    before = costs.journal.entries
    assert [message["content"] for message in drive(goes_on())][-2:] == ["same", "and quickly"]
    assert costs.journal.entries - before <= 6 * LIMITS.max_messages
    for messages in (16, 8, 5):
        before = costs.journal.entries
        window = drive(talk(costs).window(WindowLimits(max_messages=messages, max_bytes=20_000)))
        texts = [each["content"] for each in window.messages if each["role"] == "user"]
        assert texts[-2:] == ["same", "and quickly"]
        assert costs.journal.entries - before <= 6 * LIMITS.max_messages


def test_b1_o34_control_marks_that_stand_alone_are_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one mark over what failed before it, another process reads more with every failure."""
    monkeypatch.setattr(Growth, "_abandoned_up_to", lambda self, seq: 0)
    monkeypatch.setattr(Growth, "_is_followed_by_failures", lambda self, turn: False)
    costs = Costs("RAM", tmp_path, fresh=True)
    answered(costs, 12)
    fail_often(costs, same=False)
    assert costs.grows


def test_b1_o34_control_a_process_that_forgets_is_found_out(tmp_path: Path) -> None:
    """A store that remembers nothing reads a page for each turn, which the count of nothing would show."""
    costs = Costs("RAM", tmp_path, fresh=True)
    answered(costs, 12)
    fail_often(costs, same=True)
    assert min(costs.turns) > 0


# --- an agent --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "fresh"), [("RAM", False), ("SQLite", True)])
def test_b1_a9_failed_chats_of_an_agent_cost_a_window(kind: str, fresh: bool, tmp_path: Path) -> None:
    """The same and other messages in turn, with a provider that is down."""
    down = False

    def respond(_: Received) -> Line:
        return Failure(status=500) if down else Answer(text="fine")

    costs = Costs(kind, tmp_path, fresh=fresh)

    async def story(fake: ProviderFake) -> None:
        nonlocal down
        each = agent(fake, store=costs.store, conversation="talk")
        for number in range(12):
            await each.chat(f"old {number}")
        down = True
        for number in range(TURNS):
            each = agent(fake, store=costs.store, conversation="talk") if fresh else each
            with costs.turn(number):
                await each.chat(f"turn {number // 2}")
        down = False
        assert await each.chat("again") == "fine"
        assert len(await each.get_history()) == 26

    with ProviderFake(CHAT.name, respond) as fake:
        asyncio.run(story(fake))
    assert not costs.grows


# --- an engine -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "fresh", "looks", "bounds"),
    [*itertools.product(["RAM"], [False, True], [False, True], [{}, BOUNDS]), ("SQLite", True, True, BOUNDS)],
)
def test_b1_e8_failed_turns_of_an_engine_cost_what_is_retained(
    kind: str, fresh: bool, looks: bool, bounds: dict[str, int], tmp_path: Path
) -> None:
    """Contexts are of the same entries all the time, and each is projected once for each of them (SPEC E4)."""
    costs = Costs(kind, tmp_path, fresh=fresh)
    projected: list[int] = []
    contexts: list[int] = []
    down = False

    def derive(_: Any, defaults: Any) -> Any:
        projected[-1] += 1
        return defaults()

    async def respond(turn: EngineTurn) -> str:
        if looks:
            contexts.append(len(await turn.get_llm_context()))
        if down:
            raise OutageError
        return "fine"

    def made() -> Engine[Any]:
        return Engine(history=HistoryConfig(store=costs.store, derive_llm_context=derive, **bounds), respond=respond)

    projected.append(0)
    engine = made()
    for number in range(12):
        drive(engine.turn("session", f"old {number}"))
    down = True
    for number in range(TURNS):
        engine = made() if fresh else engine
        projected.append(0)
        with costs.turn(number):
            drive(engine.turn("session", f"turn {number}"))
    assert not costs.grows
    if looks:
        assert len(set(contexts[-TURNS:])) == 1
        assert len(set(projected[2:])) == 1
    down = False
    drive(engine.turn("session", "again"))
    marks = [each for each in drive(_all(costs)) if each.kind is Kind.ABANDONED]
    assert len(marks) == (1 if bounds else TURNS)  # a session that is cut keeps one for all that failed in a row


async def _all(costs: Costs) -> list[Any]:
    return [entry async for entry in costs.store.entries(costs.store.key("session"))]
