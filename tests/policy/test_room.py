"""SPEC D8, D26, B3: a conversation of tool loops whose reasoning is bound goes on at its limits, whatever they are."""

from __future__ import annotations

import hashlib
import json
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from minutebook import DecisionHistoryLimitExceeded, WindowLimits
from minutebook.sync import Conversation, MemoryStore, SQLiteStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LIMITS: dict[str, WindowLimits] = {
    "messages": WindowLimits(max_messages=40, low_water=1.0),
    "messages, low water": WindowLimits(max_messages=40, low_water=0.65),
    "bytes": WindowLimits(max_bytes=9_000, low_water=1.0),
    "bytes, low water": WindowLimits(max_bytes=9_000, low_water=0.8),
}


def signature(messages: list[Any]) -> str:
    return hashlib.sha256(json.dumps(messages, sort_keys=True).encode()).hexdigest()[:16]


def answer(messages: list[Any], calls: int, *, thinks: bool = True) -> dict[str, Any]:
    """A response that thinks, and calls or says something."""
    content: list[dict[str, Any]] = [{"type": "thinking", "thinking": "", "signature": signature(messages)}] * thinks
    content += [{"type": "tool_use", "id": f"c{n}", "name": "look", "input": {}} for n in range(calls)]
    content += [] if calls else [{"type": "text", "text": "done"}]
    return {"role": "assistant", "content": content, "stop_reason": "tool_use" if calls else "end_turn"}


def check_bound(messages: list[Any], steps: int) -> None:
    """See that the API would take these messages: no block is stale, and the last `steps` answers have theirs."""
    answers = [(place, each["content"]) for place, each in enumerate(messages) if each["role"] == "assistant"]
    for place, content in answers:
        for block in content:
            if block["type"] == "thinking":
                assert block["signature"] == signature(messages[:place]), "a stale block"
    for _, content in answers[len(answers) - steps :]:
        assert content[0]["type"] == "thinking", "an open loop without its reasoning"


class Talk:
    """A conversation, each of whose requests is judged."""

    def __init__(self, told: Conversation) -> None:
        self.told = told
        self.sizes: list[int] = []
        self.starts: list[int] = []

    def turn(self, steps: int, *, thinks: bool = True, size: int = 40) -> None:
        """One turn of so many steps with a call each, and an answer."""
        with self.told.turn("q" * size) as turn:
            for step in range(steps + 1):
                window = turn.window()
                if thinks:
                    check_bound(window.messages, step)
                self.sizes.append(len(window))
                self.starts.append(window.sent.first)
                for call in turn.respond(answer(window.messages, step < steps, thinks=thinks)):
                    turn.result(call, "r" * size)


@pytest.mark.parametrize("name", LIMITS)
def test_d8_d26_b3_a_conversation_of_tool_loops_goes_on_at_its_limits(name: str, figure: Callable[[str], None]) -> None:
    """D8, D26, B3: no turn is refused, the windows stay large, and most turns leave their start where it was."""
    random = Random(7)
    talk = Talk(Conversation(MemoryStore("n"), "c", format="anthropic", limits=LIMITS[name]))
    for _ in range(120):
        talk.turn(random.randint(0, 4), size=random.randint(20, 60))
    moves = sum(before != after for before, after in pairwise(talk.starts))
    late = talk.sizes[len(talk.sizes) // 2 :]
    figure(f"{name}: {len(talk.sizes)} requests, {moves} moves of the start, {min(late)} to {max(late)} messages")
    assert 5 < moves < 100
    assert min(late) > 0.5 * max(late)


def test_d26_control_without_room_turns_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same conversation, with nothing left free: a loop is cut, and from then on each one."""
    monkeypatch.setattr("minutebook.windows.makes_room", lambda *_: False)
    talk = Talk(Conversation(MemoryStore("n"), "c", format="anthropic", limits=LIMITS["messages"]))
    for _ in range(6):
        talk.turn(2)
    for _ in range(3):
        with pytest.raises(DecisionHistoryLimitExceeded, match="open tool loop"):
            talk.turn(2)


@pytest.mark.parametrize("low_water", [1.0, 0.65])
def test_d8_d26_reasoning_that_begins_at_the_limit_costs_one_turn(low_water: float) -> None:
    """D8, D26: nothing tells that a loop will think, so its first one is refused; the same words then have room."""
    limits = WindowLimits(max_messages=20, low_water=low_water)
    talk = Talk(Conversation(MemoryStore("n"), "c", format="anthropic", limits=limits))
    for _ in range(9):
        talk.turn(0, thinks=False)
    with pytest.raises(DecisionHistoryLimitExceeded, match="open tool loop") as refused:
        talk.turn(3)
    assert refused.value.earliest
    for _ in range(12):
        talk.turn(3)


def test_d8_d26_a_loop_that_outgrows_its_room_leaves_more_to_the_next(tmp_path: Path) -> None:
    """D8, D26: the turn that is refused is abandoned; where its window had to begin the next begins, also elsewhere."""
    tmp_path.chmod(0o700)
    limits = WindowLimits(max_messages=20, low_water=0.8)
    with SQLiteStore(tmp_path / "book.sqlite", namespace="n") as store:
        talk = Talk(Conversation(store, "c", format="anthropic", limits=limits))
        for _ in range(8):
            talk.turn(1)
        with pytest.raises(DecisionHistoryLimitExceeded, match="open tool loop"):
            talk.turn(8)
        talk.told.export(tmp_path / "moved.jsonl")
        moved = MemoryStore("n")
        store.copy(talk.told.key, moved)
    taken = Conversation(MemoryStore("n"), "c", format="anthropic", limits=limits)
    taken.import_(tmp_path / "moved.jsonl")
    with SQLiteStore(tmp_path / "book.sqlite", namespace="n") as store:
        for told in (Conversation(store, "c", format="anthropic", limits=limits), taken):
            Talk(told).turn(8)
        Talk(Conversation(moved, "c", format="anthropic", limits=limits)).turn(8)


@pytest.mark.parametrize("low_water", [1.0, 0.65, 0.3])
@pytest.mark.parametrize("steps", [3, 6, 7])
def test_d8_d26_loops_that_need_most_of_the_window_have_it_each_time(steps: int, low_water: float) -> None:
    """D8, D26: room is made for the largest loop that a window holds, even if little else stays then."""
    limits = WindowLimits(max_messages=20, low_water=low_water)
    talk = Talk(Conversation(MemoryStore("n"), "c", format="anthropic", limits=limits))
    for _ in range(12):
        talk.turn(steps)


def test_d8_windows_without_bound_reasoning_are_as_large_as_ever() -> None:
    """D8: only what thinks in its loops is given room; what calls and does not think fills its window to the limit."""
    talk = Talk(Conversation(MemoryStore("n"), "c", format="anthropic", limits=LIMITS["messages"]))
    for _ in range(30):
        talk.turn(1, thinks=False)
    assert set(talk.sizes[-20:]) == {39}
