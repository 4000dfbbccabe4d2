"""Which mark took an entry out: what an operator is told of failed attempts (SPEC C1)."""

from __future__ import annotations

import pytest

from minutebook.model.entries import ABANDONED
from minutebook.policy.standing import marks_over
from minutebook.sync import Conversation, MemoryStore


def test_c1_each_entry_is_named_with_the_first_mark_that_took_it_out() -> None:
    """A later mark takes in what failed right before it; the entry was out by then, and a mark is taken out by none."""
    store = MemoryStore("n")
    conversation = Conversation(store, "c", format="openai-chat")
    calls = [{"id": "call-1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    body = {"choices": [{"message": {"role": "assistant", "content": None, "tool_calls": calls}}]}

    def fail() -> None:
        with conversation.turn("asks") as turn:
            turn.respond(body)
            raise ZeroDivisionError

    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            fail()
    entries = list(store.entries(conversation.key))
    marks = [entry.seq for entry in entries if entry.kind is ABANDONED]
    assert [entry.kind.name for entry in entries] == ["INPUT", *["RESPONSE", "ABANDONED"] * 3]
    assert {mark.exchange for mark in entries if mark.kind is ABANDONED} == {2}  # each takes in those before it
    assert marks_over(reversed(entries)) == {mark - 1: mark for mark in marks}
