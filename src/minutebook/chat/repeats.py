"""
What was recorded under an id of the caller's: who asks again, since no answer came back, is answered from the record.

A chat commits twice, its message and its answer, and each of the two has an id of its own.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from minutebook.model.record import replayed
from minutebook.providers.chat import read_answer
from minutebook.record_reader import RecordReader

if TYPE_CHECKING:
    from minutebook.history import History
    from minutebook.model.entries import Draft
    from minutebook.model.record import Delta, Receipt


def answer_id(id: str) -> str:  # noqa: A002 - the field's standard word
    """Return under which id the answer to the message of `id` is recorded; none for none."""
    return hashlib.sha256(b"answer\0" + id.encode()).hexdigest() if id else ""


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
    return read_answer((await RecordReader(history.journal, history.key).entry(receipt.last)).payload)[1]
