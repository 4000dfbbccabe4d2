"""
What was recorded under an id of the caller's: who asks again, since no answer came back, is answered from the record.

A chat commits twice, its message and its answer, and each of the two has an id of its own. Where others said something
before its answer came the message is recorded once more, under a further id: so all its turns are found, and what tools
did in any of them (promise I-44).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from minutebook.model.entries import ABANDONED, RESPONSE, Entry
from minutebook.model.record import Attempt, replayed
from minutebook.model.shown import type_alone
from minutebook.providers.chat import message_in
from minutebook.record_reader import RecordReader

if TYPE_CHECKING:
    from minutebook.history import History
    from minutebook.model.entries import Draft
    from minutebook.model.record import Delta, Header, Receipt
    from minutebook.stores.journal import JournalStore


def answer_id(id: str) -> str:  # noqa: A002 - the field's standard word
    """Return under which id the answer to the message of `id` is recorded; none for none."""
    return hashlib.sha256(b"answer\0" + id.encode()).hexdigest() if id else ""


class EndedTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn in which a message was said before, the answer that stands in it, and how far it reaches."""

    turn: int
    answer: str | None
    """`None` where another message superseded it."""
    end: int

    __repr__ = type_alone

    def within(self, header: Header) -> Header:
        """Return the header as an attempt at that message would have it which began at the turn's end."""
        state = msgspec.structs.replace(header.state, turn=self.turn)
        return msgspec.structs.replace(header, state=state, attempt=Attempt(self.end + 1, header.state))


async def ended_turn(store: JournalStore, history: History, id: str) -> EndedTurn | None:  # noqa: A002
    """Return the turn that the message of an opening's id has, `None` for none; costs what that turn holds."""
    receipt = await history.journal.receipt(history.key, id)
    if receipt is None:
        return None
    # A retry of the words wrote no entry, and goes on in the turn of what stood last then.
    turn = end = (await history.entry(receipt.last)).turn
    answer: Entry | None = None
    async for entry in store.entries(history.key, after=turn - 1):
        if entry.turn != turn:
            break
        end = entry.seq
        if entry.kind is RESPONSE and not entry.calls:
            answer = answer or entry  # one behind it was added to the history
        elif answer and entry.kind is ABANDONED and entry.exchange <= answer.seq <= entry.call:
            answer = None
    return EndedTurn(turn=turn, answer=message_in("assistant", answer)["content"] if answer else None, end=end)


async def recorded(history: History, delta: Delta) -> Receipt | None:
    """
    Return the receipt of what was recorded under a delta's id, `None` for nothing.

    Raises:
        DecisionHistoryConflict: the id stands for another message.
    """
    receipt = await history.journal.receipt(history.key, delta.idempotency)
    return replayed(receipt, delta) if receipt else None


async def recorded_answer(history: History, id: str, draft: Draft) -> str | None:  # noqa: A002
    """
    Return what the message of an id was answered, `None` where it was not, or where there is no id.

    Raises:
        DecisionHistoryConflict: the id stands for another message than `draft`.
    """
    if not id or await recorded(history, history.delta((draft,), id, opens=True)) is None:
        return None
    receipt = await history.journal.receipt(history.key, answer_id(id))
    if receipt is None:
        return None
    # A summary and the results of calls may go with an answer, which is the last of them.
    answer = await RecordReader(history.journal, history.key).entry(receipt.last)
    return message_in("assistant", answer)["content"]
