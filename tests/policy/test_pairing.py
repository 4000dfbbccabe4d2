"""The second look at a window: stored rows that break the pairing are refused, and repeated ids are told apart."""

from __future__ import annotations

import json

import msgspec
import pytest
from tests.policy.histories import SHAPES, Both, real_window

from minutebook.errors import DecisionHistoryCorrupt
from minutebook.model.bounds import WindowLimits
from minutebook.model.entries import Kind
from minutebook.policy.pairing import check_unit, repeated_ids
from minutebook.sync import Conversation, MemoryStore

HUGE = 2**40


def exchange(both, turn, ids, order=None):
    """Record one turn with calls of the given ids, results in `order`, and the final answer."""
    calls = [(id_, "tool") for id_ in ids]
    both._open([both.shape.user(f"turn {turn}")])
    body, sent = both.shape.response("", calls)
    both._commit([both.wire.response(body)], lambda story, seqs: story.answer(seqs[-1], sent, calls))
    for position in order or range(len(ids)):
        waiting = [p for p in range(len(ids)) if p not in both.story.open()[-1].results]
        both._give(both.story.open()[-1], 1, waiting.index(position))
    both._settle(0, 0, 0)


def test_i22_a_missing_or_a_doubled_stored_result_is_refused_with_its_seq():
    """What storage lost or doubled never reaches a provider."""
    both = Both("openai-chat")
    exchange(both, 1, ["a", "b"])
    plan = real_window(both, 99, HUGE)[0]
    unit = plan.units[0]
    check_unit(unit)
    for entries in (unit.entries[:-1], [*unit.entries, unit.entries[-1]], unit.entries[1:]):
        with pytest.raises(DecisionHistoryCorrupt) as caught:
            check_unit(msgspec.structs.replace(unit, entries=entries))
        assert caught.value.seq == unit.key


@pytest.mark.parametrize("name", SHAPES)
def test_o09_the_same_id_in_twenty_turns_is_unique_in_the_window_and_kept_in_the_record(name):
    """Twenty results, twenty ids; call and result agree; at most 40 plain characters; the record is as it came."""
    both = Both(name)
    for turn in range(20):
        exchange(both, turn, ["call_0"])
    messages = json.loads(real_window(both, 999, HUGE)[1].json)
    made = [holder[key] for message in messages for holder, key in both.shape.ids(message)[0]]
    answered = [holder[key] for message in messages for holder, key in both.shape.ids(message)[1]]
    assert made == answered
    assert len(set(made)) == 20
    assert made[0] == "call_0"
    assert all(len(id_) <= 40 and id_.replace("_", "").isalnum() for id_ in made)
    assert all(call.id == "call_0" for entry in both.entries for call in entry.calls)


def test_o09_an_id_that_looks_like_a_new_one_is_not_met_again():
    """A provider's own id of our shape is stepped around."""
    both = Both("openai-chat")
    exchange(both, 1, ["x"])
    exchange(both, 2, ["x", "call_5_0"])
    exchange(both, 3, ["call_5_0"])
    units = real_window(both, 99, HUGE)[0].units
    names = [new for pairs in repeated_ids(units).values() for _, new in pairs]
    assert len(set(names)) == len(names)
    assert "call_5_0_" in names


@pytest.mark.parametrize("name", SHAPES)
def test_bad_input_41_a_doubled_id_within_one_response_is_kept_apart_by_position(name):
    """Each result keeps to its own call, whatever order they came in."""
    both = Both(name)
    exchange(both, 1, ["same", "same", "other", "same"], order=[3, 0, 2, 1])
    messages = json.loads(real_window(both, 99, HUGE)[1].json)
    made = [holder[key] for message in messages for holder, key in both.shape.ids(message)[0]]
    answered = [holder[key] for message in messages for holder, key in both.shape.ids(message)[1]]
    assert made == answered
    assert len(set(made)) == 4
    text = json.dumps(messages)
    assert [text.index(f"r{position}") for position in range(4)] == sorted(text.index(f"r{p}") for p in range(4))


@pytest.mark.parametrize("name", SHAPES)
def test_o07_parallel_results_are_shown_in_call_order_whatever_order_they_came_in(name):
    """Two runs with swapped delays give byte-identical windows."""
    windows = set()
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        both = Both(name)
        exchange(both, 1, ["a", "b", "c"], order=order)
        windows.add(real_window(both, 99, HUGE)[1].json)
        assert [e.call for e in both.entries if e.kind is Kind.RESULT] == order
    assert len(windows) == 1


class Counted:
    """A wire format that counts how many fragments it writes anew."""

    def __init__(self, wire):
        self._wire = wire
        self.renamed = 0

    def __getattr__(self, name):
        return getattr(self._wire, name)

    def rename(self, fragment, names):
        self.renamed += 1
        return self._wire.rename(fragment, names)


def fragments_written_anew(exchanges):
    """Return how many fragments are written for a window whose parts fit and whose new ids are too long for it."""
    conversation = Conversation(
        MemoryStore(), "c", format="openai-chat", limits=WindowLimits(max_messages=HUGE, max_bytes=HUGE)
    )
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turn = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "x"},
        {"role": "assistant", "content": "a"},
    ]
    conversation.append(turn * exchanges)
    history = conversation._core.history
    whole = len(conversation.window().json)
    history.wire = counted = Counted(history.wire)
    window = conversation.window(WindowLimits(max_messages=HUGE, max_bytes=whole - 8 * exchanges, low_water=1.0))
    assert whole // 2 < len(window.json) <= whole - 8 * exchanges
    assert len(window) < 4 * exchanges * 0.99  # more had to leave than one
    return counted.renamed


def test_o09_b1_a_window_that_its_new_ids_make_too_large_costs_no_square_of_its_length():
    """Eight times the exchanges: eight times the work and a few steps of the search, where one by one it is 64."""
    short, long = fragments_written_anew(600), fragments_written_anew(4_800)
    assert short > 600
    assert long < 8 * 2 * short
