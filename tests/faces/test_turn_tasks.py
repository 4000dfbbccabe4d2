"""
Several tasks of one turn, over a journal that suspends, fails before or after a write, and is cancelled (SPEC C1).

One task asks the model and answers its calls, one talks, one brings late results of parked calls. Whatever fails is
given again at once. Each thing is in the record once, no window lacks what was said before it, and what was said under
a request stands behind its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest
from tests.budgets import budget
from tests.stores.labs import chat, said

from minutebook.errors import StorageError
from minutebook.model.entries import Kind
from minutebook.ports import STREAM_PAGE
from minutebook.stores.memory import MemoryJournal
from minutebook.testing import Fault, FaultyJournal, SuspendingJournal, drive

TURNS = 3
TRIES = 60


class Flaky(FaultyJournal):
    """A journal that fails at random where a turn records something or looks for what it recorded."""

    def __init__(self, random: Random, rate: float) -> None:
        super().__init__(SuspendingJournal(MemoryJournal()))
        self.random = random
        self.rate = rate
        self.at_all = False

    def _due(self, method: str) -> Fault | None:
        if not self.at_all or method not in ("commit", "receipt") or self.random.random() >= self.rate:
            return None
        fault = Fault(call=0, method=method, after=self.random.random() < 0.5)
        self._plan.append(fault)
        return fault


class Told:
    """What happened in one conversation, as those who told it know."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.journal = Flaky(random, random.choice([0.0, 0.1, 0.3]))
        self.cancels = random.choice([0.0, 0.15, 0.3])
        self.conversation: Any = chat(self.journal)
        self.recorded: list[str] = []
        self.missed: list[str] = []
        """What was said before a window that lacks it."""
        self.under: list[tuple[str, str]] = []
        """What was said under a request, and the answer to that."""
        self.window = ""
        self._count = 0

    def name(self, kind: str) -> str:
        """Return a text that nothing else has."""
        self._count += 1
        return f"{kind}{self._count}."

    async def pause(self, most: int, *, least: int = 0) -> None:
        """Let the others go on for some steps."""
        for _ in range(self.random.randint(least, most)):
            await asyncio.sleep(0)

    async def give(self, step: Callable[[], Awaitable[Any]], name: str = "") -> Any:
        """Take a step, again and again until it is heard to be done; some first tries are cancelled."""
        for number in range(TRIES):
            task = asyncio.ensure_future(step())
            if number == 0 and self.random.random() < self.cancels:
                await self.pause(7, least=1)  # a try that never began is none
                task.cancel()
            try:
                result = await task
            except (asyncio.CancelledError, StorageError):
                continue
            self.recorded += [name] if name else []
            return result
        raise AssertionError("it fails each time")

    async def talk(self, turn: Any) -> None:
        """Say something now and then, as long as the turn goes on."""
        while self.journal.at_all:
            await self.pause(25)
            word, window = self.name("word"), self.window
            if self.journal.at_all:
                await self.give(lambda word=word: turn.say(word), word)  # type: ignore[misc]
                if window and window == self.window:
                    self.under.append((word, window))

    async def late(self, turn: Any, parked: list[Any]) -> None:
        """Bring the results of calls that were parked."""
        while self.journal.at_all and parked:
            await self.pause(40)
            call, output = parked.pop(0), self.name("late")
            await self.give(lambda call=call, output=output: turn.result(call, output), output)  # type: ignore[misc]

    async def ask(self, turn: Any, parked: list[Any]) -> None:
        """Ask the model until it calls nothing, and answer or park what it calls."""
        for step in range(self.random.randint(1, 4)):
            before = [name for name in self.recorded if name.startswith("word")]
            while True:
                try:
                    window = await turn.window()
                except StorageError:
                    continue
                break
            shown = {str(message["content"]) for message in window}
            self.missed += [word for word in before if word not in shown]
            answer = self.window = self.name("answer")
            await self.pause(20)
            calls = [self.name("call") for _ in range(self.random.choice([0, 1, 2]) if step < 3 else 0)]
            body = said(answer, *calls)
            self.window = ""
            made = await self.give(lambda body=body: turn.respond(body), answer)  # type: ignore[misc]
            if made and self.random.random() < 0.3:
                await self.give(lambda made=made: turn.park(made[0]))  # type: ignore[misc]
                parked += made
                continue
            for call in made:
                output = self.name("result")
                await self.give(lambda call=call, output=output: turn.result(call, output), output)  # type: ignore[misc]
            if not made:
                break

    async def story(self) -> None:
        """Take some turns; the last steps of each are safe, so that it ends."""
        parked: list[Any] = []
        for _ in range(TURNS):
            async with self.conversation.turn(self.name("asks")) as turn:
                self.journal.at_all = True
                others = [asyncio.ensure_future(self.talk(turn)), asyncio.ensure_future(self.late(turn, list(parked)))]
                parked.clear()
                await self.ask(turn, parked)
                self.journal.at_all = False
                await asyncio.gather(*others)


def check(told: Told) -> int:
    """Check what is recorded, and return how many entries there are."""
    entries = drive(told.journal.oldest(told.conversation.key, 0, STREAM_PAGE))
    texts = [entry.payload.decode() for entry in entries]
    places = {name: [n for n, text in enumerate(texts) if f'"{name}"' in text] for name in told.recorded}
    assert {name: found for name, found in places.items() if len(found) != 1} == {}
    assert told.missed == []
    early = [(word, answer) for word, answer in told.under if places[word] < places[answer]]
    assert early == []
    assert all(entry.kind is not Kind.ABANDONED for entry in entries)
    drive(told.conversation.store.verify(told.conversation.key))
    return len(entries)


@pytest.mark.parametrize("part", range(4))
def test_c1_i08_i18_tasks_that_share_a_turn_record_each_thing_once_and_in_order(
    part: int, figure: Callable[[str], None]
) -> None:
    """C1, I-8, I-18: under failures, lost replies and cancellations, each given again at once."""
    seeds, entries, struck = budget(100, 2_000), 0, 0
    for seed in range(part * seeds, (part + 1) * seeds):
        told = Told(seed)
        try:
            asyncio.run(told.story())
            entries += check(told)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        struck += told.journal.rate > 0 or told.cancels > 0
    assert struck > seeds // 2
    figure(f"{seeds:,} conversations, {entries:,} entries, nothing twice, lost or before its answer")
