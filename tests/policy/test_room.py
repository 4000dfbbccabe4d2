"""SPEC D8, D26, B3: a conversation of tool loops whose reasoning is bound goes on at its limits, whatever they are."""

from __future__ import annotations

import contextlib
import hashlib
import json
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from minutebook import Conversation as AsyncConversation
from minutebook import DecisionHistoryLimitExceeded, WindowLimits
from minutebook.policy.binding import Reasoning
from minutebook.stores.journal import JournalStore
from minutebook.stores.memory import MemoryJournal
from minutebook.sync import Conversation, MemoryStore, SQLiteStore
from minutebook.testing import drive

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

    def fail(self, steps: int, small: WindowLimits, *then: WindowLimits) -> None:
        """A turn that fails behind so many steps, once a window within `small` was refused, and `then` others sent."""
        with contextlib.suppress(ZeroDivisionError), self.told.turn("q") as turn:
            for _ in range(steps):
                (call,) = turn.respond(answer(turn.window().messages, 1))
                turn.result(call, "r")
            with pytest.raises(DecisionHistoryLimitExceeded, match="open tool loop"):
                turn.window(small)
            for limits in then:
                turn.window(limits)
            raise ZeroDivisionError


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
    assert refused.value.outgrown
    assert min(refused.value.outgrown) > 0
    for _ in range(12):
        talk.turn(3)


def test_d8_d26_a_loop_that_outgrows_its_room_leaves_more_to_the_next(tmp_path: Path) -> None:
    """D8, D26: the turn that is refused is abandoned; what its loop had become the next knows, also elsewhere."""
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


@pytest.mark.parametrize("low_water", [1.0, 0.65, 0.3, 0.1])
@pytest.mark.parametrize(
    ("limits", "small", "large", "size"),
    [({"max_messages": 40}, 1, 15, 40), ({"max_messages": 40}, 1, 17, 40), ({"max_bytes": 20_000}, 1, 5, 2_000)],
    ids=str,
)
def test_d8_d26_a_loop_that_found_no_room_has_it_soon(
    limits: dict[str, int], small: int, large: int, size: int, low_water: float
) -> None:
    """D8, D26: all of it is remembered, whatever a cut would have left; twice as much is not always enough at once."""
    talk = Talk(
        Conversation(MemoryStore("n"), "c", format="anthropic", limits=WindowLimits(**limits, low_water=low_water))
    )
    for _ in range(9):
        talk.turn(small)
    for _ in range(2):
        with contextlib.suppress(DecisionHistoryLimitExceeded):
            talk.turn(large, size=size)
    for _ in range(4):
        talk.turn(large, size=size)


@pytest.mark.parametrize("most", [40, 128])
@pytest.mark.parametrize("low_water", [1.0, 0.65, 0.3])
def test_d8_d26_a_loop_that_begins_to_think_late_has_its_room_as_well(low_water: float, most: int) -> None:
    """D8, D26: what it needs is remembered until a turn is answered, and not until it has begun."""
    limits = WindowLimits(max_messages=most, low_water=low_water)
    told = Conversation(MemoryStore("n"), "c", format="anthropic", limits=limits)
    talk = Talk(told)
    for _ in range(most // 2):
        talk.turn(1, thinks=False)
    refused = 0
    for _ in range(6):
        with contextlib.suppress(DecisionHistoryLimitExceeded), told.turn("q") as turn:
            refused += 1
            for step in range(9):
                messages = turn.window().messages
                for call in turn.respond(answer(messages, step < 8, thinks=step > 0)):
                    turn.result(call, "r")
            refused -= 1
    assert refused <= 2


def test_d8_a_refusal_tells_all_of_the_loop() -> None:
    """D8: a host that raises its limits by what it is told goes on."""
    limits = WindowLimits(max_messages=40, low_water=0.2)
    talk = Talk(Conversation(MemoryStore("n"), "c", format="anthropic", limits=limits))
    for _ in range(9):
        talk.turn(1)
    before = len(talk.sizes)
    with pytest.raises(DecisionHistoryLimitExceeded, match="open tool loop") as refused:
        talk.turn(18)
    steps = len(talk.sizes) - before
    assert refused.value.outgrown is not None
    assert refused.value.outgrown[0] == 2 * steps > 0.2 * 40
    assert f"the loop is {2 * steps} messages by now" in str(refused.value)


def test_d8_c04_what_was_said_beside_a_loop_is_part_of_what_it_needs() -> None:
    """D8, C4: a call is parked and something said about it; the turn's earlier steps have to be there again too."""
    limits = WindowLimits(max_messages=40, low_water=1.0)
    told = Conversation(MemoryStore("n"), "c", format="anthropic", limits=limits)
    talk = Talk(told)
    for _ in range(10):
        talk.turn(1)
    with contextlib.suppress(ZeroDivisionError), told.turn("q") as turn:
        for _ in range(4):
            (call,) = turn.respond(answer(turn.window().messages, 1))
            turn.result(call, "r")
        (parked,) = turn.respond(answer(turn.window().messages, 1))
        turn.park(parked)
        turn.say("It will take a while.")
        (call,) = turn.respond(answer(turn.window().messages, 1))
        turn.result(call, "r")
        with pytest.raises(DecisionHistoryLimitExceeded) as refused:
            turn.window(WindowLimits(max_messages=8))
        raise ZeroDivisionError
    assert refused.value.outgrown is not None
    assert refused.value.outgrown[0] == 4 * 2 + 1 + 2


def test_d26_nothing_leaves_inside_a_loop_that_thought_at_its_head_alone() -> None:
    """D26: the head with its thinking neither; whoever thinks once is refused at the limit like the others."""
    talk = Talk(Conversation(MemoryStore("n"), "c", format="anthropic", limits=WindowLimits(max_messages=20)))
    for _ in range(4):
        talk.turn(1)
    sent: list[int] = []
    with contextlib.suppress(ZeroDivisionError), talk.told.turn("q") as turn:
        for step in range(6):
            window = turn.window()
            sent.append(window.json.count(b'"tool_use"'))
            (call,) = turn.respond(answer(window.messages, 1, thinks=not step))
            turn.result(call, "r")
        with pytest.raises(DecisionHistoryLimitExceeded, match="open tool loop"):
            turn.window()
        raise ZeroDivisionError
    assert [after - before for before, after in pairwise(sent)] == [1] * 5


def test_d26_a_loop_that_thought_at_its_head_alone_holds_it_beyond_smaller_limits() -> None:
    """D26, D8: limits that do not reach the head are refused too, and tell all that the loop needs."""
    talk = Talk(Conversation(MemoryStore("n"), "c", format="anthropic"))
    talk.turn(1)
    with contextlib.suppress(ZeroDivisionError), talk.told.turn("q") as turn:
        for step in range(6):
            (call,) = turn.respond(answer(turn.window().messages, 1, thinks=not step))
            turn.result(call, "r")
        with pytest.raises(DecisionHistoryLimitExceeded, match="the loop is 12 messages by now") as refused:
            turn.window(WindowLimits(max_messages=6))
        assert refused.value.outgrown is not None
        raise ZeroDivisionError


def test_d26_a_loop_that_begins_to_think_late_needs_what_its_window_holds_alone() -> None:
    """D26, D8: the turn's first steps had left before, and no limit has to bring them back."""
    limits = WindowLimits(max_messages=9, low_water=0.5)
    told = Conversation(MemoryStore("n"), "c", format="anthropic", limits=limits)
    taken: list[int] = []

    def go_on() -> None:
        with told.turn("q") as turn:
            for step in range(12):
                (call,) = turn.respond(answer(turn.window().messages, 1, thinks=step > 6))
                turn.result(call, "r")
                taken.append(step)

    with pytest.raises(DecisionHistoryLimitExceeded, match="open tool loop") as refused:
        go_on()
    assert refused.value.outgrown is not None
    assert refused.value.outgrown[0] == 10 < 2 * len(taken)


def test_d26_o50_a_loop_is_read_to_its_head_whatever_the_limits_reach() -> None:
    """D26, O-50: only its head thought, and no process remembers that far back; nothing leaves all the same."""
    large = WindowLimits(max_messages=60)
    told = Conversation(MemoryStore("n"), "c", format="anthropic", limits=WindowLimits(max_messages=6))
    with contextlib.suppress(ZeroDivisionError), told.turn("q") as turn:
        for step in range(12):
            (call,) = turn.respond(answer(turn.window(large).messages, 1, thinks=not step))
            turn.result(call, "r")
        with pytest.raises(DecisionHistoryLimitExceeded, match="the loop is 24 messages by now"):
            turn.window()
        check_bound(turn.window(large).messages, 0)
        raise ZeroDivisionError


def test_d8_d17_d26_no_shorter_summary_is_tried_inside_a_loop_that_outgrows_its_window() -> None:
    """D8, D17, D26: it would make the loop's reasoning stale as well; what the loop needs is what is told."""
    store, limits = MemoryStore("n"), WindowLimits(max_bytes=9_000)
    made: list[int] = []

    def told(most: int) -> Talk:
        def summarize(*, previous_summary: str | None, turns: Any, max_bytes: int) -> str:
            made.append(max_bytes)
            return "s" * max_bytes

        options: dict[str, Any] = {"summarize": summarize, "max_summary_bytes": most}
        return Talk(Conversation(store, "c", format="anthropic", limits=limits, **options))

    while not made:
        told(3_000).turn(1)
    with pytest.raises(DecisionHistoryLimitExceeded, match=r"the loop is [0-9]+ messages by now") as refused:
        told(100).turn(40)
    assert refused.value.outgrown
    assert made == [3_000]


def test_b3_d26_a_loop_without_reasoning_keeps_its_start_until_its_window_is_full() -> None:
    """B3, D26: room is made in a turn's first request; inside one that does not think, nothing leaves to make some."""
    talk = Talk(Conversation(MemoryStore("n"), "c", format="anthropic", limits=WindowLimits(max_messages=40)))
    for _ in range(4):
        talk.turn(2)
    begun = len(talk.sizes)
    talk.turn(7, thinks=False)
    assert talk.sizes[-1] > 40 * 2 / 3 + 10
    assert len(set(talk.starts[begun:])) == 1


def test_d26_what_was_made_behind_stale_reasoning_is_stale_for_whoever_strips_it() -> None:
    """D26: the start stays where it is, so nothing else would tell."""
    store, limits = MemoryStore("n"), WindowLimits(max_messages=20, low_water=0.5)

    def told(reasoning: Reasoning) -> Talk:
        return Talk(Conversation(store, "c", format="anthropic", limits=limits, reasoning=reasoning))

    for _ in range(13):
        told("strip").turn(0)
    with told("keep").told.turn("q") as turn:
        turn.respond(answer(turn.window().messages, 0))
    for _ in range(12):
        told("strip").turn(0)


@pytest.mark.parametrize("low_water", [1.0, 0.65, 0.3])
def test_d8_d26_loops_that_need_most_of_the_bytes_have_them_each_time(low_water: float) -> None:
    """D8, D26: a few large results instead of many messages."""
    limits = WindowLimits(max_bytes=9_000, low_water=low_water)
    talk = Talk(Conversation(MemoryStore("n"), "c", format="anthropic", limits=limits))
    for _ in range(15):
        talk.turn(6, size=900)


@pytest.mark.parametrize(("low_water", "share"), [(1.0, 0.5), (0.65, 0.5), (0.3, 0.3)])
def test_b3_a_cut_leaves_half_or_what_the_low_water_says(low_water: float, share: float) -> None:
    """B3: at most that much of the limits, in the first request whose window begins elsewhere."""
    limits = WindowLimits(max_messages=100, low_water=low_water)
    talk = Talk(Conversation(MemoryStore("n"), "c", format="anthropic", limits=limits))
    for _ in range(60):
        talk.turn(1)
    cut = [size for size, (before, after) in zip(talk.sizes[1:], pairwise(talk.starts), strict=True) if before != after]
    assert len(cut) > 2
    assert max(cut) <= 100 * share
    assert max(cut) > 100 * share - 4


def test_d7_d8_a_refusal_under_small_limits_costs_nothing_under_the_old_ones() -> None:
    """D7, D8: one window of a turn is asked for within 8 messages; the next turn's has all that it had before."""
    limits = WindowLimits(max_messages=1_000)
    talk = Talk(Conversation(MemoryStore("n"), "c", format="anthropic", limits=limits))
    for _ in range(40):
        talk.turn(1)
    whole = talk.sizes[-1]
    talk.fail(1, WindowLimits(max_messages=8))
    talk.turn(1)
    assert (talk.sizes[-1], talk.starts[-1]) == (whole + 4, talk.starts[1])


def test_d8_what_a_loop_needs_is_forgotten_once_a_window_is_sent() -> None:
    """D8: refused within 8 messages, sent within 20, and the turn then fails: the next one's start is where it was."""
    limits = WindowLimits(max_messages=20)
    talk = Talk(Conversation(MemoryStore("n"), "c", format="anthropic", limits=limits))
    for _ in range(3):
        talk.turn(1)
    talk.fail(2, WindowLimits(max_messages=8), limits)
    talk.turn(0)
    assert talk.starts[-1] == talk.starts[1]


@pytest.mark.parametrize("then", [6, 1], ids=["the same refusal", "another refusal"])
def test_d8_what_a_loop_needs_is_not_forgotten_by_a_second_refusal(then: int) -> None:
    """D8: within one message not even the newest exchange fits, which tells nothing of the loop: the next has room."""
    talk = Talk(Conversation(MemoryStore("n"), "c", format="anthropic", limits=WindowLimits(max_messages=20)))
    for _ in range(3):
        talk.turn(1)
    with contextlib.suppress(ZeroDivisionError), talk.told.turn("q") as turn:
        for _ in range(3):
            (call,) = turn.respond(answer(turn.window().messages, 1))
            turn.result(call, "r")
        for most in (6, then):
            with pytest.raises(DecisionHistoryLimitExceeded):
                turn.window(WindowLimits(max_messages=most))
        raise ZeroDivisionError
    talk.turn(0)
    assert talk.starts[-1] != talk.starts[1]


def test_d8_c04_what_a_loop_needs_is_forgotten_behind_a_call_that_waits() -> None:
    """D8, C4: the turn is answered, though one of its calls is parked, so the next ones keep their start."""
    told = Conversation(MemoryStore("n"), "c", format="anthropic", limits=WindowLimits(max_messages=20))
    talk = Talk(told)
    for _ in range(3):
        talk.turn(1)
    talk.fail(3, WindowLimits(max_messages=6))
    with told.turn("q") as turn:
        (parked,) = turn.respond(answer(turn.window().messages, 1))
        turn.park(parked)
        turn.respond(answer(turn.window().messages, 0))
    begun = len(talk.starts)
    for _ in range(3):
        talk.turn(0)
    assert len(set(talk.starts[begun:])) == 1


def test_d26_a_late_result_inside_a_loop_is_told_as_what_it_is() -> None:
    """D26, C4: no limit helps there; what came in is recorded, and the next turn has it."""
    told = Conversation(MemoryStore("n"), "c", format="anthropic")
    with told.turn("one") as turn:
        (parked,) = turn.respond(answer(turn.window().messages, 1))
        turn.park(parked)
        turn.respond(answer(turn.window().messages, 0))
    with contextlib.suppress(ZeroDivisionError), told.turn("two") as turn:
        (call,) = turn.respond(answer(turn.window().messages, 1))
        turn.result(call, "r")
        turn.result(parked, "late")
        with pytest.raises(DecisionHistoryLimitExceeded, match=r"late result.*Give the task up") as refused:
            turn.window()
        assert refused.value.outgrown is None
        raise ZeroDivisionError
    told.complete(parked, "late")
    Talk(told).turn(1)
    assert b"late" in told.window().json


async def windows(limits: WindowLimits, seed: int, *, stays: bool) -> list[bytes]:
    """Return all windows of a random conversation, in a process that stays or one that is restarted for each turn."""
    random, journal, made = Random(seed), MemoryJournal(), list[bytes]()
    store = JournalStore(journal, namespace="n")
    for number in range(30):
        store = store if stays else JournalStore(journal, namespace="n")
        told = AsyncConversation(store, "c", format="anthropic", limits=limits)
        steps, fails = random.randint(0, 5), random.random() < 0.2
        with contextlib.suppress(DecisionHistoryLimitExceeded, ZeroDivisionError):
            async with told.turn(f"q{number}") as turn:
                for step in range(steps + 1):
                    window = await turn.window()
                    made.append(window.json)
                    calls = random.randint(1, 3) if step < steps else 0
                    for call in await turn.respond(answer(window.messages, calls)):
                        await turn.result(call, "r" * random.randint(1, 300))
                    if fails:
                        raise ZeroDivisionError
    return made


@pytest.mark.parametrize(
    ("limits", "seed"),
    [(WindowLimits(max_messages=24, low_water=0.65), seed) for seed in (0, 1, 22, 28)]
    + [(WindowLimits(max_bytes=9_000, low_water=0.2), seed) for seed in (2, 6, 12, 14)],
    ids=str,
)
def test_o50_i24_a_restart_changes_no_window_that_makes_room(limits: WindowLimits, seed: int) -> None:
    """O-50, I-24: windows follow from record and limits alone, whatever a process remembers; with failed turns too."""
    stayed, restarted = (drive(windows(limits, seed, stays=stays)) for stays in (True, False))
    assert len(stayed) > 40
    assert stayed == restarted


def test_d8_windows_without_bound_reasoning_are_as_large_as_ever() -> None:
    """D8: only what thinks in its loops is given room; what calls and does not think fills its window to the limit."""
    talk = Talk(Conversation(MemoryStore("n"), "c", format="anthropic", limits=LIMITS["messages"]))
    for _ in range(30):
        talk.turn(1, thinks=False)
    assert set(talk.sizes[-20:]) == {39}
