"""
Reasoning that is bound to what stood before it: D26's one exception, and B3's low-water mark.

A block here is signed with a digest of the messages that its request showed, as Anthropic binds it. So each window can
be judged by itself: a block whose signature is not that of the messages before it is stale, and would be refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

import minutebook
from minutebook.errors import (
    DecisionHistoryLimitExceeded,
    DecisionHistoryStorageFailed,
    DecisionHistoryStoreFull,
    InvalidMessage,
    InvalidOption,
    PairingViolation,
)
from minutebook.model.receipts import decode_sent
from minutebook.policy import binding
from minutebook.providers.wire import wire_format
from minutebook.stores.journal import JournalStore
from minutebook.stores.memory import MemoryJournal
from minutebook.sync import Conversation, MemoryStore, SQLiteStore, WindowLimits
from minutebook.testing import Fault, FaultyJournal, SuspendingJournal, drive

WIRE = wire_format("anthropic")
LOW = (1.0, 0.65, 0.4)


def signature(messages: list[dict[str, Any]]) -> str:
    return hashlib.sha256(json.dumps(messages, sort_keys=True).encode()).hexdigest()[:16]


def thought(messages: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "thinking", "thinking": "", "signature": signature(messages)}


def answer(
    messages: list[dict[str, Any]], *ids: str, name: str = "x", blanks: Sequence[int] = (), cut: bool = False
) -> bytes:
    """
    A response that thinks twice, calls, or says its name; with a provider's own spacing.

    Blank texts stand at the places of `blanks`; where it was cut, the model was thinking again.
    """
    called = [{"type": "tool_use", "id": each, "name": "f", "input": {}} for each in ids]
    said = [{"type": "text", "text": name}]
    content = [thought(messages), {"type": "redacted_thinking", "data": signature(messages)}, *said, *called]
    for place in blanks:
        content.insert(place, {"type": "text", "text": "\n" * (place % 2)})
    content += [thought(messages)] if cut else []
    return json.dumps({"role": "assistant", "content": content, "stop_reason": "x"}, indent=1).encode()


def thoughts(message: dict[str, Any]) -> list[str]:
    blocks = message["content"] if isinstance(message["content"], list) else []
    return [block.get("signature") or block.get("data") for block in blocks if "thinking" in block["type"]]


class Story:
    """A conversation that is told at random, each of its windows judged."""

    def __init__(self, seed: int, reasoning: Any = "strip", *, steady: bool = True) -> None:
        self.random = Random(seed)
        self.reasoning = reasoning
        self.steady = steady
        self.store = MemoryStore("n")
        self.ids = 0
        self.found: Counter[str] = Counter()
        self.signed: dict[str, str] = {}
        self.limits = self._limits()
        self.open("c")

    def _limits(self) -> WindowLimits:
        return WindowLimits(max_messages=self.random.randint(5, 14), low_water=self.random.choice(LOW))

    def open(self, name: str) -> None:
        self.told = Conversation(self.store, name, format="anthropic", limits=self.limits, reasoning=self.reasoning)

    def judge(self, window: Any) -> list[dict[str, Any]]:
        """Count the blocks that a window sends, fresh and stale, and the responses that it sends without theirs."""
        messages: list[dict[str, Any]] = window.messages
        assert len(messages) == window.sent.messages
        assert len(window.json) == window.sent.bytes
        found: Counter[str] = Counter()
        for place, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            name = next(block["text"] for block in message["content"] if block["type"] == "text")
            assert all(block["text"].strip() for block in message["content"] if block["type"] == "text")
            assert "thinking" not in message["content"][-1]["type"]
            made = thoughts(message)
            fresh = self.signed[name] == signature(messages[:place])
            if made:
                assert made == [self.signed[name]] * 2, "both or none, as they came"
            found["fresh" if made and fresh else "stale" if made else "needless" if fresh else "stripped"] += 1
        assert window.sent.stripped == found["stripped"] + found["needless"]
        found["kept after a cut"] = found["fresh"] if window.sent.cut_at else 0
        self.found += found
        return messages

    def turn(self) -> None:
        with contextlib.suppress(OSError), self.told.turn(f"q{self.random.randint(0, 9)}") as turn:
            for step in range(self.random.choice((0, 0, 0, 1, 2))):
                calls = self.respond(turn, self.random.randint(1, 2))
                for call in self.random.sample(calls, len(calls)):
                    if step == 0 and self.random.random() < 0.15:
                        turn.park(call)
                        self.found["parked"] += 1
                        return
                    turn.result(call, "r")
            if self.random.random() < 0.15:
                raise OSError
            self.respond(turn, 0)

    def respond(self, turn: Any, calls: int) -> list[Any]:
        messages = self.judge(turn.window())
        self.ids += 1
        name = f"n{self.ids}"
        self.signed[name] = signature(messages)
        ids = [self.random.choice(("a", f"b{self.ids}")) + str(n) for n in range(calls)]
        blanks = self.random.sample(range(4), self.random.choice((0, 0, 1, 2)))
        body = answer(messages, *ids, name=name, blanks=blanks, cut=self.random.random() < 0.2)
        self.found["refused blocks"] += len(blanks)
        return list(turn.respond(body))

    def go_on(self, folder: Path) -> None:
        """One more thing that happens: mostly a turn; a late result, a restart, other limits, or a move elsewhere."""
        chance = self.random.random()
        waiting = self.told.open_calls()
        try:
            if chance < 0.25 and waiting:
                self.told.complete(waiting[0], "late")
            elif chance < 0.3 and not self.steady:
                self.limits = self._limits()
                self.open(self.told.key.id)
            elif chance < 0.35:
                self.ids += 1
                file = folder / f"{self.ids}.jsonl"
                before = self.told.window().json
                self.told.export(file)
                self.open(f"c{self.ids}")
                self.told.import_(file)
                file.unlink()
                assert self.told.window().json == before
                self.found["moved"] += 1
            else:
                self.turn()
        except DecisionHistoryLimitExceeded:
            self.found["refused"] += 1


def told(folder: Path, seeds: range, **options: Any) -> Counter[str]:
    found: Counter[str] = Counter()
    for seed in seeds:
        story = Story(seed, **options)
        story.turn()
        for _ in range(40):
            story.go_on(folder)
        found += story.found
    return found


def test_d26_b03_no_stale_block_is_sent_and_none_is_left_out_without_need(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """D26, B3: over random histories with failures, parked calls, repeated ids, moves and every low-water mark."""
    tmp_path.chmod(0o700)
    found = told(tmp_path, range(30))
    figure(", ".join(f"{found[name]:,} {name}" for name in sorted(found)))
    assert (found["stale"], found["needless"]) == (0, 0)
    assert min(found[name] for name in ("fresh", "stripped", "kept after a cut", "refused", "moved", "parked")) > 50


def test_d26_no_stale_block_is_sent_under_limits_that_change(tmp_path: Path) -> None:
    """D26: a window that begins earlier than the one before makes blocks stale as well: something came in."""
    tmp_path.chmod(0o700)
    found = told(tmp_path, range(100, 120), steady=False)
    assert found["stale"] == 0
    assert min(found["fresh"], found["stripped"]) > 50


def test_d26_control_keep_sends_stale_blocks(tmp_path: Path) -> None:
    """The judge can fail: with `keep` nothing is left out, and much of it is stale."""
    tmp_path.chmod(0o700)
    found = told(tmp_path, range(6), reasoning="keep")
    assert found["stale"] > 50
    assert found["stripped"] == found["needless"] == 0


FAULTS: dict[str, tuple[str, Any]] = {
    "the last cut is forgotten": ("_cut_at", lambda plan, state, newest, prelude: state.cut_at),
    "what this window cuts is overlooked": ("_cut_at", lambda plan, state, newest, prelude: 0),
    "late results are overlooked": (
        "_stale",
        lambda plan, cut_at: [u.entries[0] for u in plan.units if u.is_exchange and u.entries[0].seq <= cut_at],
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_d26_control_planted_faults_are_found(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the three reasons for which a block is stale is needed."""
    tmp_path.chmod(0o700)
    name, planted = FAULTS[fault]
    monkeypatch.setattr(binding, name, planted)
    assert told(tmp_path, range(20))["stale"] > 0


def test_d26_a_switch_from_keep_to_strip_leaves_nothing_stale() -> None:
    """D26: what was made behind blocks that are stripped from now on is stale too."""
    store = MemoryStore("n")
    limits = WindowLimits(max_messages=6, low_water=0.5)

    def conversation(reasoning: Any) -> Conversation:
        return Conversation(store, "c", format="anthropic", limits=limits, reasoning=reasoning)

    def ask(reasoning: Any) -> Any:
        with conversation(reasoning).turn("q") as turn:
            window = turn.window()
            turn.respond(answer(window.messages))
        return window

    for _ in range(5):
        ask("keep")
    first, second = ask("strip"), ask("strip")
    assert [thoughts(m) for m in first.messages if m["role"] == "assistant"][-1] == []
    assert thoughts(second.messages[-2]) == [signature(first.messages)] * 2
    assert second.json.startswith(first.json[:-1])


@pytest.mark.parametrize("low_water", LOW)
def test_d18_d26_a_summary_is_one_of_the_things_that_reasoning_is_bound_to(low_water: float) -> None:
    """D18, D26: a new one makes what stands behind it stale; what is made behind it stays while it stays."""
    made: list[int] = []

    def summarize(*, previous_summary: str | None, turns: Any, max_bytes: int) -> str:
        made.append(len(turns))
        return f"summary {len(made)}"

    limits = WindowLimits(max_messages=8, low_water=low_water)
    told = Conversation(MemoryStore("n"), "c", format="anthropic", limits=limits, summarize=summarize)
    found: Counter[str] = Counter()
    for _ in range(16):
        with told.turn("q") as turn:
            messages = turn.window().messages
            turn.respond(answer(messages))
        for place, message in enumerate(messages):
            if message["role"] == "assistant":
                signed = set(thoughts(message))
                found["fresh" if signed == {signature(messages[:place])} else "stale" if signed else "stripped"] += 1
    assert found["stale"] == 0
    assert min(found["fresh"], found["stripped"], len(made)) > 2


def test_d26_where_the_window_was_cut_survives_a_restart(tmp_path: Path) -> None:
    """D26, B3: after a restart on SQLite the same window leaves, its stale blocks stripped and its fresh ones kept."""
    tmp_path.chmod(0o700)
    limits = WindowLimits(max_messages=8, low_water=0.5)
    windows = []
    for _ in range(6):
        with SQLiteStore(tmp_path / "book.sqlite", namespace="n") as store:
            told = Conversation(store, "c", format="anthropic", limits=limits)
            with told.turn("q") as turn:
                windows.append(turn.window())
                turn.respond(answer(windows[-1].messages))
    last = windows[-1]
    assert [len(thoughts(message)) for message in last.messages if message["role"] == "assistant"] == [0, 2]
    assert last.json.startswith(windows[-2].json[:-1])
    for place, message in enumerate(last.messages):
        assert set(thoughts(message)) <= {signature(last.messages[:place])}


def test_d26_an_open_loop_is_refused_and_nothing_is_changed() -> None:
    """D26: within an open tool loop no block is stripped by hand: the step is refused, with what to do."""
    store = MemoryStore("n")
    told = Conversation(store, "c", format="anthropic", limits=WindowLimits(max_messages=5, low_water=1.0))
    turn = told.turn("q").__enter__()
    for number in range(3):
        messages = turn.window().messages
        assert [len(thoughts(message)) for message in messages if message["role"] == "assistant"] == [2] * number
        (call,) = turn.respond(answer(messages, f"c{number}"))
        turn.result(call, "r")
    with pytest.raises(DecisionHistoryLimitExceeded, match=r"open tool loop.*drop_block") as refused:
        turn.window()
    assert refused.value.max_messages == 5
    turn.__exit__(OSError, OSError(), None)
    assert told.window().messages == []
    assert sum(b"thinking" in entry.payload for entry in store.entries(told.key)) == 3


def test_d26_the_receipt_tells_what_was_left_out() -> None:
    """C3: up to which entry reasoning is stale, and how many responses were sent without theirs."""
    store = MemoryStore("n")
    told = Conversation(store, "c", format="anthropic", limits=WindowLimits(max_messages=4, low_water=0.9))
    for _ in range(4):
        with told.turn("q") as turn:
            turn.respond(answer(turn.window().messages))
    sent = [decode_sent(receipt.sent) for receipt in store.receipts(told.key) if receipt.sent]
    assert [(each.cut_at, each.stripped) for each in sent] == [(0, 0), (0, 0), (5, 1), (7, 1)]


def test_d26_stale_thinking_is_stripped_however_json_spells_its_type() -> None:
    """D26: an escape for a letter makes no other block of it."""
    told = Conversation(MemoryStore("n"), "c", format="anthropic", limits=WindowLimits(max_messages=4, low_water=0.9))
    windows = []
    for _ in range(4):
        with told.turn("q") as turn:
            windows.append(turn.window())
            turn.respond(answer(windows[-1].messages).replace(b"thinking", rb"th\u0069nking"))
    last = windows[-1]
    assert last.sent.stripped == 1
    for place, message in enumerate(last.messages):
        assert set(thoughts(message)) <= {signature(last.messages[:place])}


@pytest.mark.parametrize(
    ("fragment", "left"),
    [
        (b'[{"type":"text","text":"x"}]', b'[{"type":"text","text":"x"}]'),
        (b'"thinking"', b'"thinking"'),
        (b'[ {"type":"thinking"} , {"type":"text", "text":"\\u0041"}\n]', b'[{"type":"text", "text":"\\u0041"}]'),
        (b'[{"type":"redacted_thinking","data":"x"}]', b""),
        (b'[{"type":"thinking","thinking":"x","signature":"s"},{"type":"text","text":""}]', b""),
        (b'[{"type":"text","text":"thinking"},{"type":"novel","n":1e2}]', None),
    ],
)
def test_d26_every_other_block_stays_byte_for_byte(fragment: bytes, left: bytes | None) -> None:
    """D26: only thinking leaves; a message of nothing else is not sent at all."""
    assert WIRE.unbound(fragment) == (fragment if left is None else left)


def test_o10_d26_a_reasoning_item_leaves_with_its_follower() -> None:
    """O-10: in every window of a conversation that is cut again and again, each item stands before what it led to."""
    store = MemoryStore("n")
    limits = WindowLimits(max_messages=9, low_water=1.0)
    told = Conversation(store, "c", format="openai-responses", limits=limits)
    for number in range(6):
        with told.turn("q") as turn:
            for step in range(2):
                items = turn.window().messages
                ids = [
                    (item["type"], item["id"]) for item in items if item.get("type") in ("reasoning", "function_call")
                ]
                assert ids == [pair for _, i in ids[::2] for pair in (("reasoning", i), ("function_call", i))]
                id_ = f"{number}-{step}"
                reasoning = {"type": "reasoning", "id": id_, "summary": [], "encrypted_content": "x"}
                called = {"type": "function_call", "id": id_, "call_id": id_, "name": "f", "arguments": "{}"}
                (call,) = turn.respond({"output": [reasoning, called]})
                turn.result(call, "r")
            turn.respond({"output": [{"type": "message", "role": "assistant", "content": "done"}]})
    assert len(ids) == 4


@pytest.mark.parametrize("name", ["openai-chat", "openai-responses", "gemini"])
def test_d26_other_formats_bind_nothing(name: str) -> None:
    """OpenAI's reasoning leaves with its exchange, Gemini checks the current turn (docs/architecture.md, Decisions)."""
    wire = wire_format(name)
    assert not wire.binds
    assert wire.unbound(b'[{"type":"thinking"}]') == b'[{"type":"thinking"}]'


def test_options_are_checked_at_construction() -> None:
    """A request of one's own drops by its own field, so a conversation has no `drop_block`."""
    for wrong in ("drop_block", "drop", None, True):
        with pytest.raises(InvalidOption, match="strip, keep"):
            Conversation(MemoryStore("n"), "c", format="anthropic", reasoning=wrong)  # type: ignore[arg-type]


def contents(messages: list[dict[str, Any]]) -> list[Any]:
    return [message["content"] for message in messages if isinstance(message["content"], str)]


def test_d26_o10_what_is_said_while_the_model_thinks_stands_behind_its_answer() -> None:
    """D26: the answer was made without it, so its thinking stays fresh; and its receipt tells of its own request."""
    told = Conversation(MemoryStore("n"), "c", format="anthropic")
    with told.turn("one") as turn:
        turn.respond(answer(turn.window().messages))
    with told.turn("two") as turn:
        seen = turn.window().messages
        turn.say("by the way")
        turn.respond(answer(seen))
    assert turn.receipt is not None
    assert turn.receipt.request is not None
    assert turn.receipt.request.messages == len(seen)
    with told.turn("three") as turn:
        messages = turn.window().messages
        turn.respond(answer(messages))
    assert contents(messages) == ["one", "two", "by the way", "three"]
    assert messages[:3] == seen
    answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    assert answers == [1, 3]
    for place in answers:
        assert thoughts(messages[place]) == [signature(messages[:place])] * 2


def test_d26_o08_what_is_said_while_the_model_thinks_breaks_no_open_loop() -> None:
    """D26, O-08: an answer with calls keeps its thinking, which the API demands there; said last, shown last."""
    told = Conversation(MemoryStore("n"), "c", format="anthropic")
    with told.turn("one") as turn:
        seen = turn.window().messages
        turn.say("by the way")
        turn.say("and hurry")
        (call,) = turn.respond(answer(seen, "c1"))
        turn.result(call, "r")
        messages = turn.window().messages
        assert contents(messages) == ["one", "by the way", "and hurry"]
        assert thoughts(messages[1]) == [signature(messages[:1])] * 2
        turn.respond(answer(messages))
    kinds = [entry.kind.name for entry in told.entries()]
    assert kinds == ["INPUT", "RESPONSE", "INJECTION", "INJECTION", "RESULT", "RESPONSE"]


def fresh(messages: list[dict[str, Any]]) -> int:
    """Return how many answers still think, each of them bound to the very messages before it."""
    found = 0
    for place, message in enumerate(messages):
        signed = thoughts(message) if message["role"] == "assistant" else []
        assert set(signed) <= {signature(messages[:place])}, f"message {place} thinks of other messages"
        found += bool(signed)
    return found


def thoughtful(messages: list[dict[str, Any]]) -> list[str]:
    """Return the names of the answers that still think, none of them stale."""
    fresh(messages)
    thinking = [message["content"] for message in messages if message["role"] == "assistant" and thoughts(message)]
    return [next(block["text"] for block in content if block["type"] == "text") for content in thinking]


def told_of(store: MemoryStore, reasoning: Any = "strip", messages: int = 40) -> Conversation:
    limits = WindowLimits(max_messages=messages, low_water=0.5)
    return Conversation(store, "c", format="anthropic", limits=limits, reasoning=reasoning)


def asked(told: Conversation, text: str, *ids: str) -> list[Any]:
    """Ask once, and park what the answer calls."""
    with told.turn(text) as turn:
        calls = turn.respond(answer(turn.window().messages, *ids))
        for call in calls:
            turn.park(call)
    return calls


def test_d26_a_turn_that_sent_a_stale_block_is_stale_itself_though_no_start_moved() -> None:
    """D26: a late result made the block stale, and one turn kept it; whoever strips afterwards strips both."""
    store = MemoryStore("n")
    (call,) = asked(told_of(store), "zero", "c1")
    asked(told_of(store), "one")
    told_of(store).complete(call, "late")
    asked(told_of(store, "keep"), "two")
    for made, text in enumerate(("three", "four")):
        assert fresh(told_of(store).window().messages) == made
        asked(told_of(store), text)


def test_d26_an_answer_before_which_a_late_result_came_in_is_stale() -> None:
    """D26: the model did not see that exchange, and it stands before its answer."""
    told = told_of(MemoryStore("n"))
    (call,) = asked(told, "zero", "c1")
    with told.turn("one") as turn:
        seen = turn.window().messages
        turn.result(call, "late")
        turn.respond(answer(seen))
    messages = told.window().messages
    assert (len(messages), fresh(messages)) == (len(seen) + 3, 0)
    asked(told, "two")
    assert fresh(told.window().messages) == 1


@pytest.mark.parametrize("way", ["a list of one's own", "a transcript", "no window"])
def test_d26_c4_an_answer_that_no_window_was_made_for_is_stale_once_windows_were_cut(way: str) -> None:
    """D26, C4: the host's own list begins earlier than the windows, so nothing would take its reasoning back."""
    told = told_of(MemoryStore("n"), messages=12)
    mine: list[dict[str, Any]] = []
    for number in range(7):
        with told.turn(f"q{number}") as turn:
            made = json.loads(answer(turn.window().messages))
            turn.respond(made)
        mine += [{"role": "user", "content": f"q{number}"}, {"role": "assistant", "content": made["content"]}]
    question = {"role": "user", "content": "mine"}
    own = json.loads(answer([*mine, question]))
    own = {"role": "assistant", "content": own["content"]}
    if way == "a list of one's own":
        told.append([*mine, question, own], whole=True)
    elif way == "a transcript":
        told.append([question, own])
    else:
        with told.turn("mine") as turn:
            turn.respond(own)
    for number in range(8):
        with told.turn(f"z{number}") as turn:
            messages = turn.window().messages
            fresh(messages)
            turn.respond(answer(messages))


def cut_before(store: MemoryStore, turns: int = 10, messages: int = 16) -> Conversation:
    """Return a conversation whose window has lost its oldest exchanges, and keeps its start for a while."""
    told = told_of(store, messages=messages)
    for number in range(turns):
        asked(told, f"q{number}")
    assert told.window().messages[0]["content"] != "q0"
    return told


@pytest.mark.parametrize("way", ["respond", "append", "append and an end"])
def test_d26_a_loop_that_no_window_began_is_refused_and_stale_for_later_turns(way: str) -> None:
    """D26: nobody knows what it was made behind, and no later turn is refused for it."""
    told = cut_before(MemoryStore("n"), turns=16, messages=30)
    foreign = answer([{"role": "user", "content": "elsewhere"}], "c1")
    if way == "respond":
        with contextlib.suppress(OSError), told.turn("mine") as turn:
            (call,) = turn.respond(foreign)
            turn.result(call, "r")
            with pytest.raises(DecisionHistoryLimitExceeded, match="no window was made for"):
                turn.window()
            raise OSError
    else:
        told.append([{"role": "user", "content": "mine"}, {"role": "assistant", **json.loads(foreign)}])
        (call,) = told.open_calls()
        told.complete(call, "r")
        if way == "append and an end":
            told.append([{"role": "assistant", "content": "done"}])
    for number in range(8):
        with told.turn(f"z{number}") as turn:
            messages = turn.window().messages
            fresh(messages)
            turn.respond(answer(messages))


def test_d26_a_loop_of_the_hosts_own_behind_one_window_stays_fresh() -> None:
    """D26: a window at its beginning tells what all of its answers were made behind."""
    told = cut_before(MemoryStore("n"), turns=13)
    with told.turn("mine") as turn:
        seen = turn.window().messages
        (call,) = turn.respond(made := answer(seen, "c1"))
        turn.result(call, "r")
        result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "r"}]}
        turn.respond(answer([*seen, {"role": "assistant", "content": json.loads(made)["content"]}, result]))
    messages = told.window().messages
    assert messages[: len(seen)] == seen
    assert fresh(messages) == 2


def gone_on(mine: list[dict[str, Any]], made: bytes, call: str) -> list[dict[str, Any]]:
    """Return a host's own list behind an answer of one call and its result."""
    result = {"type": "tool_result", "tool_use_id": call, "content": "r"}
    answered = {"role": "assistant", "content": json.loads(made)["content"]}
    return [*mine, answered, {"role": "user", "content": [result]}]


def loop_of_ones_own(told: Conversation, parked: Any, came: str, *, asks: bool = False) -> None:
    """
    Answer three times as a late result comes in, behind one window and the host's own list that goes on from it.

    A loop that `asks` takes a window for each.
    """
    with told.turn("mine") as turn:
        mine = turn.window().messages
        for name, late in (("own0", "before its answer"), ("own1", "behind its result")):
            if came == late:
                turn.result(parked, "late")
            (call,) = turn.respond(made := answer(mine, name, name=name))
            if (came, name) == ("inside", "own0"):
                turn.result(parked, "late")
            turn.result(call, "r")
            mine = turn.window().messages if asks else gone_on(mine, made, name)
        turn.respond(answer(mine, name="own2"))


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
@pytest.mark.parametrize("came", ["before its answer", "inside", "behind its result"])
def test_d26_a_loop_of_the_hosts_own_is_stale_once_a_late_result_came_in(came: str, cut: bool) -> None:
    """D26: its list knows nothing of the exchange that stands before it now."""
    store = MemoryStore("n")
    if cut:
        cut_before(store, turns=22, messages=40)
    (parked,) = asked(told_of(store), "zero", "p1")
    asked(told_of(store), "one")
    loop_of_ones_own(told_of(store), parked, came)
    for number in range(4):
        assert thoughtful(told_of(store).window().messages) == ["x"] * number
        asked(told_of(store), f"next{number}")


@pytest.mark.parametrize("came", ["before its answer", "inside", "behind its result"])
def test_d26_a_loop_of_the_hosts_own_stays_fresh_while_the_parked_exchange_waits_for_more(came: str) -> None:
    """D26: it is in no window yet."""
    store = MemoryStore("n")
    parked = asked(told_of(store), "zero", "p1", "p2")
    loop_of_ones_own(told_of(store), parked[0], came)
    assert thoughtful(told_of(store).window().messages) == ["own0", "own1", "own2"]


@pytest.mark.parametrize("asks", [False, True], ids=["a list of its own", "windows"])
@pytest.mark.parametrize("came", ["before its answer", "inside", "behind its result"])
def test_d26_a_late_result_of_what_has_left_the_window_makes_nothing_stale(came: str, asks: bool) -> None:
    """D26: the exchange that it completes stands before all that is sent."""
    told = told_of(MemoryStore("n"))
    (parked,) = asked(told, "zero", "p1")
    for number in range(21):
        asked(told, f"q{number}")
    assert told.window().messages[0]["content"] != "q0"
    loop_of_ones_own(told, parked, came, asks=asks)
    assert thoughtful(told.window().messages)[-3:] == ["own0", "own1", "own2"]


def test_d26_an_answer_behind_one_that_was_kept_back_as_a_late_result_came_in_is_stale() -> None:
    """D26: the answer and the result are one commit, behind which the exchange before that answer is whole."""
    told = told_of(MemoryStore("n"))
    with told.turn("mine") as turn:
        (parked,) = turn.respond(answer(turn.window().messages, "p1", name="first"))
        turn.park(parked)
        mine = turn.window().messages
        turn.respond(made := answer(mine, name="own0"))
        turn.result(parked, "late")
        turn.respond(answer([*mine, {"role": "assistant", "content": json.loads(made)["content"]}], name="own1"))
    assert thoughtful(told.window().messages) == []


def test_d26_an_answer_is_stale_before_which_the_newest_exchange_came_back() -> None:
    """D26: it was parked and in no window; under the next request its result comes in."""
    told = told_of(MemoryStore("n"))
    with told.turn("mine") as turn:
        (parked,) = turn.respond(answer(turn.window().messages, "p1", name="first"))
        turn.park(parked)
        seen = turn.window().messages
        turn.result(parked, "late")
        turn.respond(answer(seen, name="second"))
    assert "second" not in thoughtful(told.window().messages)


def test_d26_all_answers_of_one_commit_are_stale_that_know_nothing_of_a_late_result() -> None:
    """D26: one that was kept back is committed with the next one."""
    told = told_of(MemoryStore("n"))
    (parked,) = asked(told, "zero", "p1")
    with told.turn("mine") as turn:
        mine = turn.window().messages
        turn.result(parked, "late")
        turn.respond(made := answer(mine, name="own0"))
        mine = [*mine, {"role": "assistant", "content": json.loads(made)["content"]}]
        (call,) = turn.respond(answer(mine, "c1", name="own1"))
        turn.park(call)
    told.complete(call, "r")
    asked(told, "next")
    assert thoughtful(told.window().messages) == ["x"]


class FarJournal:
    """A journal of which nobody hears what became of a commit until `heard`; then that it was written, or nothing."""

    def __init__(self, journal: Any, *, lost: bool) -> None:
        self._journal = journal
        self._lost = lost
        self.heard: asyncio.Event | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    async def commit(self, *arguments: Any, **named: Any) -> Any:
        committed = await self._journal.commit(*arguments, **named)
        if self.heard is not None:
            await self.heard.wait()
            self.heard = None
            if self._lost:
                raise DecisionHistoryStorageFailed("the reply was lost")
        return committed


@pytest.mark.parametrize("reply", ["at once", "later", "never"])
def test_d26_an_answer_is_stale_before_which_words_were_recorded_while_its_window_was_made(reply: str) -> None:
    """D26: another task says something as the window reads the record; it stands before the answer, unseen by it."""
    whole, wide = MemoryJournal(), WindowLimits(max_messages=60)

    def over(journal: Any) -> minutebook.Conversation:
        store = JournalStore(journal, namespace="n")
        return minutebook.Conversation(store, "c", format="anthropic", limits=WindowLimits(max_messages=4))

    async def story() -> tuple[list[Any], list[Any]]:
        for number in range(9):
            async with over(whole).turn(f"q{number}") as turn:
                await turn.respond(answer((await turn.window(wide)).messages))
        far = FarJournal(SuspendingJournal(whole), lost=reply == "never")
        async with over(far).turn("asks") as turn:
            far.heard = heard = asyncio.Event()
            if reply == "at once":
                heard.set()
            window, said = asyncio.create_task(turn.window(wide)), asyncio.create_task(turn.say("by the way"))
            window = await window
            heard.set()
            await asyncio.gather(said, return_exceptions=True)
            await turn.respond(answer(window.messages, name="unseen"))
        return window.messages, (await over(whole).window(wide)).messages

    seen, messages = asyncio.run(story())
    assert len(seen) == len(messages) - 2
    assert "unseen" not in thoughtful(messages)


def plain(*called: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "text", "text": "plain"}, *called]}


@pytest.mark.parametrize("late", [False, True], ids=["no window", "a late result"])
def test_d26_an_answer_of_the_hosts_own_that_does_not_think_makes_none_before_it_stale(late: bool) -> None:
    """D26: nothing in it is bound to what it was made behind."""
    store = MemoryStore("n")
    told = told_of(store) if late else cut_before(store, turns=22, messages=40)
    asked(told, "first")
    thinking = thoughtful(told.window().messages)
    (parked,) = asked(told, "zero", "p1")
    with told.turn("mine") as turn:
        if late:
            turn.window()
            (call,) = turn.respond(plain({"type": "tool_use", "id": "c1", "name": "f", "input": {}}))
            turn.result(parked, "late")
            turn.result(call, "r")
        turn.respond(plain())
    assert thinking
    assert thoughtful(told.window().messages)[: len(thinking)] == thinking


def test_d26_c4_a_loop_that_no_window_began_is_fresh_until_the_first_window_is_cut() -> None:
    """D26, C4: as a transcript; no window told of anything else."""
    told, mine = told_of(MemoryStore("n")), [{"role": "user", "content": "mine"}]
    with told.turn("mine") as turn:
        (call,) = turn.respond(made := answer(mine, "c1", name="own0"))
        turn.result(call, "r")
        turn.respond(answer(gone_on(mine, made, "c1"), name="own1"))
    assert thoughtful(told.window().messages) == ["own0", "own1"]


def test_d26_an_answer_behind_a_late_result_whose_reply_was_lost_is_stale() -> None:
    """D26: what is known to be written after all came in as any other does."""
    journal = FaultyJournal(MemoryJournal(), [Fault(call=5, method="commit", after=True)])
    told = minutebook.Conversation(JournalStore(journal, namespace="n"), "c", format="anthropic")

    async def story() -> list[str]:
        async with told.turn("zero") as turn:
            (parked,) = await turn.respond(answer((await turn.window()).messages, "p1"))
            await turn.park(parked)
        async with told.turn("mine") as turn:
            mine = (await turn.window()).messages
            (call,) = await turn.respond(made := answer(mine, "c1", name="own0"))
            with pytest.raises(DecisionHistoryStorageFailed):
                await turn.result(parked, "late")
            await turn.result(call, "r")
            await turn.respond(answer(gone_on(mine, made, "c1"), name="own1"))
        return thoughtful((await told.window()).messages)

    assert drive(story()) == []


def test_d26_an_answer_without_a_window_behind_stale_blocks_is_stale() -> None:
    """D26: the turn's window sent them, so all that is answered in it was made behind them."""
    store = MemoryStore("n")
    cut_before(store)
    with told_of(store, "keep", messages=14).turn("kept") as turn:
        seen = turn.window().messages
        (call,) = turn.respond(made := answer(seen, "c1"))
        turn.result(call, "r")
        result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "r"}]}
        turn.respond(answer([*seen, {"role": "assistant", "content": json.loads(made)["content"]}, result]))
    for number in range(6):
        assert fresh(told_of(store, messages=14).window().messages) <= number
        asked(told_of(store, messages=14), f"z{number}")


def test_d26_what_is_made_behind_a_start_that_moved_and_nothing_stale_is_fresh_for_who_strips() -> None:
    """D26: `keep` and `strip` agree where nothing stale was sent."""
    store = MemoryStore("n")
    said = {"role": "assistant", "content": [{"type": "text", "text": "a"}]}
    for number in range(3):
        with told_of(store, messages=6).turn(f"q{number}") as turn:
            turn.window()
            turn.respond(said)
    with told_of(store, "keep", messages=6).turn("q3") as turn:
        seen = turn.window().messages
        assert seen[0]["content"] != "q0"
        turn.respond(answer(seen))
    assert fresh(told_of(store, messages=6).window().messages) == 1


def test_d26_c4_of_several_answers_that_no_window_was_made_for_all_are_stale() -> None:
    """D26, C4: a transcript of two, once windows were cut."""
    told = cut_before(MemoryStore("n"))
    foreign: list[dict[str, Any]] = [{"role": "user", "content": "elsewhere"}]
    for number in range(2):
        foreign.append({"role": "user", "content": f"m{number}"})
        foreign.append({"role": "assistant", "content": json.loads(answer(foreign))["content"]})
    told.append(foreign[1:])
    assert fresh(told.window().messages) == 0


def test_d26_c4_a_transcript_is_fresh_until_its_first_window_is_cut() -> None:
    """D26, C4: what it thinks goes back where all of it is sent, and is stale where its oldest exchanges have left."""
    mine: list[dict[str, Any]] = []
    for number in range(6):
        mine.append({"role": "user", "content": f"q{number}"})
        mine.append({"role": "assistant", "content": json.loads(answer(mine))["content"]})
    store = MemoryStore("n")
    told_of(store).append(mine)
    with told_of(store).turn("whole") as turn:
        assert fresh(turn.window().messages) == 6
        assert turn.window(WindowLimits(max_messages=7)).messages[-1]["content"] == "whole"
        assert fresh(turn.window(WindowLimits(max_messages=7)).messages) == 0
        turn.respond(answer(turn.window(WindowLimits(max_messages=7)).messages))
    assert fresh(told_of(store, messages=9).window().messages) == 1


@pytest.mark.parametrize("way", ["result", "park", "late", "parked again"])
@pytest.mark.parametrize("ids", [(), ("c2",)], ids=["", "calls"])
def test_d26_o08_what_is_said_waits_for_its_answer_whatever_comes_in_meanwhile(way: str, ids: tuple[str, ...]) -> None:
    """D26, O-08: a result of another exchange, a refused one among them, does not bring it before the answer."""
    told = told_of(MemoryStore("n"))
    with told.turn("zero") as turn:
        (answered,) = turn.respond(answer(turn.window().messages, "c1"))
        turn.result(answered, "r")
        turn.respond(answer(turn.window().messages))
    (parked,) = asked(told, "one", "c0")
    with told.turn("two") as turn:
        seen = turn.window().messages
        turn.say("by the way")
        if way == "late":
            turn.result(parked, "late")
        elif way == "parked again":
            turn.park(parked)
        else:
            with pytest.raises(PairingViolation):
                turn.result(answered, "other") if way == "result" else turn.park(answered)
        for call in turn.respond(answer(seen, *ids)):
            if way == "late":
                turn.park(call)
            else:
                turn.result(call, "r")
        messages = turn.window().messages
        assert [said for said in contents(messages) if said != "one"] == ["zero", "two", "by the way"]
        assert messages[-1]["content"] == "by the way"
        fresh(messages)
        turn.respond(answer(messages))
    kinds = [entry.kind.name for entry in told.entries()]
    assert kinds.index("INJECTION") > len(kinds) - kinds[::-1].index("INPUT")
    asked(told, "three")
    fresh(told.window().messages)


def test_c1_what_is_said_while_a_request_is_under_way_is_never_lost() -> None:
    """C1: a request that fails is made again with it, a turn ends with it, and a mark has it when all fails."""
    store = MemoryStore("n")
    told = Conversation(store, "c", format="anthropic")
    with told.turn("one") as turn:
        turn.window()
        turn.say("instead")
        assert contents(turn.window().messages) == ["one", "instead"]
        turn.say("again")
        with pytest.raises(InvalidMessage):
            turn.respond({"role": "user", "content": "no response"})
        (call,) = turn.respond(answer(turn.window().messages, "c1"))
        turn.result(call, "r")
        turn.window()
        turn.say("last")
    assert contents(told.window().messages) == ["one", "instead", "again", "last"]
    with contextlib.suppress(OSError), told.turn("two") as turn:
        turn.window()
        turn.say("lost")
        raise OSError
    assert "lost" not in contents(told.window().messages)
    assert sum(b"lost" in entry.payload for entry in store.entries(told.key)) == 1


@pytest.mark.parametrize("written", [True, False])
def test_c1_what_is_said_is_recorded_once_whatever_became_of_the_next_windows_commit(written: bool) -> None:
    """C1: a commit of which nobody heard, or that was refused, neither loses nor doubles it."""
    error = DecisionHistoryStorageFailed("unknown") if written else DecisionHistoryStoreFull("full")
    journal = FaultyJournal(MemoryJournal(), [Fault(call=1, method="commit", after=written, error=lambda: error)])
    told = minutebook.Conversation(JournalStore(journal, namespace="n"), "c", format="anthropic")

    async def story() -> list[Any]:
        async with told.turn("one") as turn:
            await turn.window()
            await turn.say("by the way")
            with pytest.raises(type(error)):
                await turn.window()
            messages = (await turn.window()).messages
            assert contents(messages) == ["one", "by the way"]
            await turn.respond(answer(messages))
        return [entry.kind.name async for entry in told.entries()]

    assert drive(story()) == ["INPUT", "INJECTION", "RESPONSE"]


def test_c1_what_was_said_and_written_without_a_reply_is_there_once_when_it_is_said_again_behind_a_window() -> None:
    """C1: a window shows it before its speaker tries again; said a third time it is meant."""
    journal = FaultyJournal(MemoryJournal(), [Fault(call=1, method="commit", after=True)])
    told = minutebook.Conversation(JournalStore(journal, namespace="n"), "c", format="anthropic")

    async def story() -> list[Any]:
        async with told.turn("one") as turn:
            with pytest.raises(DecisionHistoryStorageFailed):
                await turn.say("by the way")
            messages = (await turn.window()).messages
            assert contents(messages) == ["one", "by the way"]
            await turn.say("by the way")
            await turn.respond(answer(messages))
            await turn.window()
            await turn.say("by the way")
        return [entry.kind.name async for entry in told.entries()]

    assert drive(story()) == ["INPUT", "INJECTION", "RESPONSE", "INJECTION"]
