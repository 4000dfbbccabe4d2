"""What a store writes for its caller in one go, and of which the reply is lost: it is there once (I-8, I-18)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.stores.labs import KINDS, chat, open_journal, said

from minutebook import reserving
from minutebook.errors import DecisionHistoryStorageFailed
from minutebook.model.bounds import WindowLimits
from minutebook.model.entries import INPUT, Draft
from minutebook.model.record import Record, new_header
from minutebook.stores.journal import JournalStore
from minutebook.testing import Fault, FaultyJournal, drive

every_kind = pytest.mark.parametrize("kind", KINDS)
ADDED = Draft(kind=INPUT, payload=b'{"x":1}', messages=1, size=7, start=0, stop=7)


def store_over(journal: Any, *plan: Fault) -> tuple[JournalStore, FaultyJournal]:
    faulty = FaultyJournal(journal, plan)
    return JournalStore(faulty, namespace="lab"), faulty


async def add(store: JournalStore) -> str:
    """Add one entry by `transact`."""
    key = store.key("c")

    async def operation(record: Record | None) -> tuple[Record, str]:
        return (record or Record(header=new_header(key, "record", 0), entries=())).adding(ADDED), "added"

    return await store.transact(key, operation)


def left(journal: Any) -> tuple[int, int]:
    """Return how many entries are there, and how many conversations are held."""
    store = JournalStore(journal, namespace="lab")
    header = drive(store.header(store.key("c")))
    return header.entries if header else 0, int(bool(header and header.token))


@every_kind
def test_d24_i18_a_transaction_whose_reply_is_lost_is_there_and_says_so(kind: str, tmp_path: Any) -> None:
    """SPEC D24: the caller is not told that it failed, and so does not write it a second time."""
    journal = open_journal(kind, tmp_path)
    store, faulty = store_over(journal, Fault(call=1, method="commit", after=True))
    assert drive(add(store)) == "added"
    assert (faulty.left, left(journal)) == ((), (1, 0))
    assert drive(add(store)) == "added"
    assert left(journal) == (2, 0)


@every_kind
def test_d24_i18_a_transaction_that_was_not_written_fails_and_leaves_nothing_held(kind: str, tmp_path: Any) -> None:
    """The other side of the same doubt: nothing is there, and the next one is the first."""
    journal = open_journal(kind, tmp_path)
    store, faulty = store_over(journal, Fault(call=1, method="commit"))
    with pytest.raises(DecisionHistoryStorageFailed):
        drive(add(store))
    assert (faulty.left, left(journal)) == ((), (0, 0))
    assert drive(add(store)) == "added"
    assert left(journal) == (1, 0)


@every_kind
def test_d24_i18_a_transaction_of_which_nobody_can_tell_says_so(kind: str, tmp_path: Any) -> None:
    """The look is refused too: the error is that of the commit, whose words are that the outcome is unknown."""
    journal = open_journal(kind, tmp_path)
    unheard = Fault(call=1, method="receipt", error=lambda: DecisionHistoryStorageFailed("no answer at all"))
    store, faulty = store_over(journal, Fault(call=1, method="commit", after=True), unheard)
    with pytest.raises(DecisionHistoryStorageFailed, match="unknown"):
        drive(add(store))
    assert (faulty.left, left(journal)) == ((), (1, 0))


def test_i18_control_without_the_look_a_transaction_is_there_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: a caller who is told that it failed does it again."""
    monkeypatch.setattr(reserving, "may_be_written", lambda error: False)
    journal = open_journal("RAM", None)  # type: ignore[arg-type]
    store, _ = store_over(journal, Fault(call=1, method="commit", after=True))
    with pytest.raises(DecisionHistoryStorageFailed):
        drive(add(store))
    drive(add(store))
    assert left(journal)[0] == 2


@every_kind
def test_d18_i18_a_summary_whose_dropping_was_not_heard_of_is_dropped_and_said_to_be(kind: str, tmp_path: Any) -> None:
    """`drop_summary` returns whether there was one, also where the reply is lost."""
    journal = open_journal(kind, tmp_path)
    limits = WindowLimits(max_messages=4, max_bytes=4_000, low_water=0.5)

    def summarize(*, previous_summary: str | None, turns: Any, max_bytes: int) -> str:
        return "what was before"

    async def story() -> None:
        conversation = chat(journal, "c", limits=limits, summarize=summarize, max_summary_bytes=100)
        for number in range(4):
            async with conversation.turn(f"question {number}") as turn:
                await turn.window()
                await turn.respond(said(f"answer {number}"))
        assert b"what was before" in (await conversation.window()).json

    drive(story())
    before = left(journal)[0]
    store, faulty = store_over(journal, Fault(call=1, method="commit", after=True))
    assert drive(store.drop_summary(store.key("c"))) is True
    assert (faulty.left, left(journal)) == ((), (before + 1, 0))
    assert drive(store.drop_summary(store.key("c"))) is False
