"""
Face C over the strict fakes: a loop of one's own with summaries and a low-water mark, at every limit, in every format.

The conversation is led over a socket: every window goes to a fake that refuses what its service would, and every answer
comes from it, thinking and parallel calls included. Whatever the limits cut, nothing is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from random import Random
from typing import Any

import httpx2
import pytest
from tests.budgets import budget
from tests.faces.strict import Host, first_words
from tests.testing.test_fakes_histories import ENVELOPES, HEADERS, NAMES, TEXTS

from minutebook import DecisionHistoryLimitExceeded, WindowLimits, sync
from minutebook.policy import projection
from minutebook.testing import Answer, FunctionCall, ProviderFake

TURNS = 14
formats = pytest.mark.parametrize("name", list(ENVELOPES))


class Refused(AssertionError):
    """The provider refused a window."""


class Led:
    """A conversation that is led with a fake under some limits, and how often something left or was refused."""

    def __init__(self, name: str, fake: ProviderFake, client: httpx2.Client, limits: WindowLimits, seed: int) -> None:
        self.name, self.fake, self.client = name, fake, client
        self.random = Random(f"{name} {seed}")
        self.host = Host("</summary>")
        self.store = sync.MemoryStore(namespace="n")
        self.conversation = sync.Conversation(
            self.store, "c", format=name, limits=limits, summarize=self.host, max_summary_bytes=150
        )
        self.limits = limits
        self.refusals = self.windows = self.steady = 0
        self.before = b""

    def answer(self, last: bool) -> Answer:
        count = 0 if last else self.random.randrange(1, 4)
        calls = tuple(
            FunctionCall(self.random.choice(NAMES), {"text": self.random.choice(TEXTS)}) for _ in range(count)
        )
        text = "" if calls and self.random.randrange(2) else self.random.choice(TEXTS)
        return Answer(text=text, calls=calls, thinking=self.random.choice((None, "So: ü")))

    def live(self) -> None:
        for number in range(TURNS):
            try:
                self.turn(number, self.random.randrange(3))
            except DecisionHistoryLimitExceeded:
                self.refusals += 1

    def turn(self, number: int, steps: int) -> None:
        path, envelope = ENVELOPES[self.name]
        with self.conversation.turn(f"question {number}") as turn:
            for step in range(steps + 1):
                window = turn.window()
                self.check(window, number)
                self.fake._lines = lambda _, last=step == steps: self.answer(last)
                response = self.client.post(path, content=envelope(window.json))
                if response.status_code != 200:
                    raise Refused(response.text)
                for call in turn.respond(response.content):
                    turn.result(call, self.random.choice(TEXTS), error=self.random.randrange(4) == 0)

    def check(self, window: Any, number: int) -> None:
        assert len(window.messages) <= self.limits.max_messages
        assert f"question {number}" in json.dumps(window.messages)
        words = first_words(window.messages[0])
        assert len(words) == 1 + bool(self.host.given)
        assert len(re.findall("</summary [0-9a-f]{32}>", json.dumps(window.messages))) == len(words) - 1
        self.windows += 1
        self.steady += window.json.startswith(self.before[:-1]) and bool(self.before)
        self.before = window.json


def led(name: str, max_messages: int, seed: int = 0) -> Led:
    """Lead a conversation to its end under a limit on messages, trimmed down to half of it."""
    with (
        ProviderFake(name, (), exact=True) as fake,
        httpx2.Client(base_url=fake.base_url, headers=HEADERS, verify=False, timeout=20) as client,
    ):
        made = Led(name, fake, client, WindowLimits(max_messages=max_messages, low_water=0.5), seed)
        made.live()
        assert fake.refused == ()
    return made


@formats
def test_o14_o50_i22_summaries_with_a_low_water_mark_break_no_rule_at_any_limit(
    name: str, figure: Callable[[str], None]
) -> None:
    """O-14, O-50, I-22, B3: each limit from the least to the whole; between two cuts the start keeps its bytes."""
    windows = summaries = steady = refusals = 0
    for limit in range(2, 40, budget(4, 1)):
        made = led(name, limit)
        windows += made.windows
        summaries += len(made.host.given)
        steady += made.steady
        refusals += made.refusals
    assert summaries > 20
    assert refusals > 5
    assert steady > windows // 3
    figure(f"{name}: {windows:,} windows, {summaries:,} summaries, {refusals:,} refused here, 0 by the provider")


@formats
def test_o14_control_a_result_that_is_left_out_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake is there: with a result missing from what is projected, the story does not come to its end."""
    right = projection.unit_fragments
    monkeypatch.setattr(projection, "unit_fragments", lambda *given: right(*given)[:1])
    with pytest.raises(Refused):
        led(name, 30, seed=1)
