"""The numbers that SPEC gives as defaults, each at its boundary: what is one more, or one byte or millisecond more."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.runtime.programs import call, calls, finish, program, runtime

from minutebook import sync
from minutebook.decisions import HistoryOptions
from minutebook.errors import DecisionHistoryRetentionExceeded, DecisionHistoryStoreFull
from minutebook.model.bounds import WindowLimits
from minutebook.model.entries import Draft, Kind
from minutebook.model.record import Delta
from minutebook.runtime import Budgets, capability
from minutebook.stores.memory import MemoryJournal
from minutebook.testing import FrozenClock, drive

MIB = 1024 * 1024


class Ram:
    """The RAM history that a decision provider opens by itself, on a clock of the test's."""

    def __init__(self, **options: Any) -> None:
        self.clock = FrozenClock(0)
        self.store = HistoryOptions(**options).open_store()
        journal = self.store.journal
        assert isinstance(journal, MemoryJournal)
        journal._clock = self.clock

    def append(self, name: str, size: int = 3) -> None:
        """Record one input of so many bytes of JSON, and give the reservation back."""
        payload = b'"' + b"x" * (size - 2) + b'"'
        draft = Draft(kind=Kind.INPUT, payload=payload, messages=1, size=size, stop=size)
        delta = Delta(drafts=(draft,), idempotency=self.store.fresh_id(), opens=True, settles=True)
        key, token = self.store.key(name), self.store.fresh_id()
        drive(self.store.journal.reserve(key, token, format="f", opening=delta, release=True))


def test_d06_the_ram_history_holds_128_conversations() -> None:
    """D6: the 129th is refused, and the 128 stay."""
    ram = Ram()
    for number in range(128):
        ram.append(f"{number}")
    with pytest.raises(DecisionHistoryStoreFull):
        ram.append("one more")
    assert drive(ram.store.totals()).conversations == 128


def test_d06_d07_the_ram_history_holds_32_mib_in_all_and_8_mib_in_each() -> None:
    """D6, D7: to the byte; what is one byte more leaves everything as it was."""
    ram = Ram()
    for name in "abcd":
        ram.append(name, 8 * MIB - 3)
        with pytest.raises(DecisionHistoryRetentionExceeded):
            ram.append(name, 4)
        ram.append(name, 3)
    assert drive(ram.store.totals()).bytes == 32 * MIB
    with pytest.raises(DecisionHistoryStoreFull):
        ram.append("one more", 2)


@pytest.mark.parametrize(
    ("options", "retained"),
    [
        ({"max_store_bytes": MIB}, MIB),
        ({"max_bytes": 9 * MIB}, 9 * MIB),
        ({"max_store_bytes": 64 * MIB}, 8 * MIB),
    ],
)
def test_d07_a_conversation_retains_8_mib_its_window_or_its_store_s_bound(
    options: dict[str, Any], retained: int
) -> None:
    """D7: no more than a smaller store has, no less than a larger window holds; to the byte."""
    ram = Ram(**options)
    assert HistoryOptions(**options).retained_bytes == retained
    ram.append("c", retained)
    with pytest.raises((DecisionHistoryRetentionExceeded, DecisionHistoryStoreFull)):
        ram.append("c", 3)


def test_d06_the_ram_history_keeps_a_conversation_for_an_hour_of_inactivity() -> None:
    """D6: to the millisecond; a write begins the hour anew."""
    ram = Ram()
    hour = int(timedelta(hours=1).total_seconds() * 1000)
    ram.append("a")
    ram.clock.advance(hour - 1)
    ram.append("a")
    ram.clock.advance(hour)
    assert drive(ram.store.read(ram.store.key("a"))) is not None
    ram.clock.advance(1)
    assert drive(ram.store.read(ram.store.key("a"))) is None


def test_d04_d07_a_window_holds_128_messages_and_262_144_bytes() -> None:
    """D4, D7: the same in the options of a decision provider and in the limits of a window."""
    for given in (HistoryOptions(), sync.HistoryOptions(), WindowLimits()):
        assert (given.max_messages, given.max_bytes) == (128, 262_144)


def test_d17_a_summary_has_4096_bytes() -> None:
    """D17: what a callback is told that it may write."""
    assert HistoryOptions().max_summary_bytes == sync.HistoryOptions().max_summary_bytes == 4096


@capability
def ping() -> str:
    return "pong"


def test_d28_a_task_has_16_decisions_unless_its_program_says_otherwise() -> None:
    """D28: the 17th is not asked for."""
    runs, provider = runtime(program(ping), *[calls(call("ping"))] * 17)
    outcome = drive(runs.run("go"))
    assert (outcome.kind, outcome.budget, len(provider.requests)) == ("budget_exhausted", "decisions", 16)


def test_d28_a_task_has_64_calls_unless_its_program_says_otherwise() -> None:
    """D28: the 65th is refused, and named as such."""
    runs, _ = runtime(program(ping), calls(*[call("ping")] * 65), finish())
    outcome = drive(runs.run("go"))
    told: list[Any] = [each.value for each in outcome.observations]
    assert told == ["pong"] * 64 + [{"refused": "calls_exhausted"}]


def test_d28_a_task_has_no_budget_of_time_and_four_levels_unless_its_program_says_otherwise() -> None:
    """D28: the other two numbers of `Budgets()`."""
    assert (Budgets().max_wall, Budgets().max_depth) == (None, 4)


@pytest.mark.parametrize(("most", "least"), [(20, 13), (100, 65), (200, 129), (400, 259)])
def test_c04_low_water_of_a_conversation_is_065(most: int, least: int) -> None:
    """
    C4: after a cut a window holds 65 of a hundred messages, or one less where turns of two come to no such number.

    260 of 400 are 259 with the input that stands alone: of 0.645 it would be 257, and of 0.655 it would be 261.
    """
    store = sync.MemoryStore(namespace="tests")
    conversation = sync.Conversation(store, "c", format="openai-chat", limits=WindowLimits(max_messages=most))
    turns = [{"role": role, "content": "x"} for _ in range(most // 2) for role in ("user", "assistant")]
    conversation.append(turns)
    with conversation.turn("one more") as turn:
        assert len(turn.window()) == least
        turn.respond({"choices": [{"message": {"role": "assistant", "content": "y"}}]})
