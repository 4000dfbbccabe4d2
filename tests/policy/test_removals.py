"""
Each removal is an event (SPEC D8): what left the window since the last one that was answered, and told once.

What left is worked out from the messages of the two windows alone: a text stands for one answer of the record. A turn's
input leaves with the last of its exchanges.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.stores.labs import said

from minutebook.model.entries import RESPONSE
from minutebook.model.events import HistoryTrimmed
from minutebook.sync import Conversation, MemoryStore, WindowLimits


class Watched:
    """A conversation told at random, and the removals that its events ought to tell of."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.store = MemoryStore("n")
        self.limits = WindowLimits(
            max_messages=self.random.randint(7, 14), low_water=self.random.choice((1, 0.65, 0.4))
        )
        self.events: list[Any] = []
        self.told = self.opened()
        self.answered: set[int] = set()
        """What the last window showed that was answered, and that answer: the `seq` of each response."""
        self.newest_removed = 0
        self.found = 0
        self.names = 0

    def opened(self) -> Conversation:
        return Conversation(self.store, "c", format="openai-chat", limits=self.limits, on_event=self.events.append)

    def texts(self) -> dict[str, int]:
        """Return which answer each text stands for."""
        entries = [entry for entry in self.told.entries() if entry.kind is RESPONSE]
        return {name: entry.seq for entry in entries for name in self.named(entry.payload.decode())}

    @staticmethod
    def named(text: str) -> list[str]:
        return [each for each in text.replace('"', " ").split() if each.startswith("text-")]

    def fresh_text(self) -> str:
        self.names += 1
        return f"text-{self.names}"

    def turn(self) -> None:
        if self.random.random() < 0.1:
            self.told = self.opened()
        before = self.answered, self.newest_removed
        try:
            with self.told.turn("asks") as turn:
                for step in range(self.random.choice((1, 1, 1, 2, 3))):
                    self.step(turn, calls=int(step == 0 and self.random.random() < 0.5))
        except OSError:
            self.answered, self.newest_removed = before  # what its requests were answered has come to nothing

    def step(self, turn: Any, calls: int) -> None:
        shown = self.judge(turn)
        if self.random.random() < 0.1:
            raise OSError
        for call in turn.respond(said(self.fresh_text(), *[f"c{self.names}"] * calls)):
            turn.result(call, "r")
        turn.say("so")  # the answer is recorded before it
        self.answered = {*shown, max(self.texts().values())}

    def judge(self, turn: Any) -> set[int]:
        """Return what a window shows, once its events were compared with what left."""
        self.events.clear()
        told = self.texts()
        for _ in range(self.random.choice((1, 2))):  # asked for twice, it is told of once
            window = turn.window()
        shown = {told[name] for name in self.named(window.json.decode())}
        left = self.answered - shown
        trimmed = [event for event in self.events if isinstance(event, HistoryTrimmed)]
        assert len(trimmed) == bool(left)
        for event in trimmed:
            self.found += 1
            assert event.last_removed == max(left)
            assert self.newest_removed < event.first_removed <= min(left)
            assert (event.message_count, event.bytes) == (len(window), len(window.json))
            self.newest_removed = event.last_removed
        return shown


@pytest.mark.parametrize("seed", range(8))
def test_d08_each_removal_is_one_event_that_tells_what_left(seed: int) -> None:
    """D8: whatever failed in between, and whoever goes on with the conversation."""
    story = Watched(seed)
    for _ in range(60):
        story.turn()
    assert story.found > 3
