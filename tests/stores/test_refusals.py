"""
Promise I-4: whatever a store refuses, its content is byte for byte what it was; every refusal on every store.

The table holds each refusal of each writing method. What the docstrings of `ports.Journal` name has to be in it, so
that it cannot fall behind them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.stores.labs import BOUNDED, KINDS, open_journal

from minutebook.errors import InvalidId
from minutebook.model.bounds import StoreBounds
from minutebook.model.keys import ConversationKey
from minutebook.ports import Journal
from minutebook.testing import drive
from minutebook.testing.conformance.samples import FORMAT, adding, answer, append, dump, result, say

IDLE, HELD, GONE = (ConversationKey("lab", name) for name in ("idle", "held", "gone"))
LONG = "x" * 3_000
BOUNDS = StoreBounds(max_sessions=2, max_bytes=3_000, max_retained_bytes=2_500)

Call = Callable[[Any, int], Any]


def reserving(key: ConversationKey, id_: str = "new", *drafts: Any, format_: str = FORMAT) -> Call:
    return lambda journal, _: journal.reserve(key, "other", format=format_, opening=adding(id_, *drafts), release=True)


def committing(
    id_: str = "new", *drafts: Any, token: str = "token", more: int = 0, key: ConversationKey = HELD
) -> Call:
    return lambda journal, epoch: journal.commit(key, token, epoch + more, adding(id_, *drafts))


REFUSALS: dict[str, tuple[str, Call]] = {
    "reserve what is held": ("DecisionHistoryBusy", reserving(HELD, "new", say("x"))),
    "reserve in another format": ("DecisionHistoryConflict", reserving(IDLE, "new", say("x"), format_="other")),
    "reserve with an id of other content": ("DecisionHistoryConflict", reserving(IDLE, "one", say("other"))),
    "reserve beyond a conversation's bytes": ("DecisionHistoryRetentionExceeded", reserving(IDLE, "new", say(LONG))),
    "reserve beyond the store's bytes": ("DecisionHistoryStoreFull", reserving(IDLE, "new", say("x" * 1_200))),
    "reserve beyond the store's conversations": ("DecisionHistoryStoreFull", reserving(GONE, "new", say("x"))),
    "reserve with a result of no call": ("PairingViolation", reserving(IDLE, "new", result(0, "x", exchange=9))),
    "reserve with an id that is none": ("InvalidId", reserving(IDLE, "", say("x"))),
    "reserve without a token": ("InvalidOption", lambda journal, _: journal.reserve(IDLE, "", format=FORMAT)),
    "commit with another token": ("DecisionHistoryFenced", committing("new", say("x"), token="other")),
    "commit with another epoch": ("DecisionHistoryFenced", committing("new", say("x"), more=1)),
    "commit to what is idle": ("DecisionHistoryFenced", committing("new", say("x"), key=IDLE)),
    "commit to what is absent": ("DecisionHistoryFenced", committing("new", say("x"), key=GONE)),
    "commit with an id of other content": ("DecisionHistoryConflict", committing("held", say("other"))),
    "commit beyond a conversation's bytes": ("DecisionHistoryRetentionExceeded", committing("new", answer(LONG))),
    "commit beyond the store's bytes": ("DecisionHistoryStoreFull", committing("new", answer("x" * 1_200))),
    "commit a result of no call": ("PairingViolation", committing("new", result(0, "x", exchange=9))),
    "commit with an id that is none": ("InvalidId", committing("\0", say("x"))),
    "recover what is idle": ("DecisionHistoryNotReserved", lambda journal, _: journal.recover(IDLE, None)),
    "recover another epoch": ("DecisionHistoryNotReserved", lambda journal, epoch: journal.recover(HELD, epoch + 1)),
    "recover what is absent": ("DecisionHistoryAbsent", lambda journal, _: journal.recover(GONE, None)),
    "delete what is held": ("DecisionHistoryBusy", lambda journal, _: journal.delete(HELD)),
    "delete what is absent": ("DecisionHistoryAbsent", lambda journal, _: journal.delete(GONE)),
}
UNBOUNDED = {"hosted": "DecisionHistoryStoreFull"}
"""A host's database has no bounds of its own."""


def documented(method: str) -> set[str]:
    """Return the errors that a method's docstring names."""
    said = inspect.getdoc(getattr(Journal, method)) or ""
    return set(re.findall(r"^ +(\w+): ", said.partition("Raises:")[2], re.MULTILINE))


@pytest.mark.parametrize("method", ["reserve", "commit", "recover", "delete"])
def test_i04_every_documented_refusal_is_in_the_table(method: str) -> None:
    """What a writing method says that it raises is tried below (I-4)."""
    tried = {code for name, (code, _) in REFUSALS.items() if name.startswith(method)}
    assert documented(method)
    assert documented(method) <= tried


async def content(journal: Any) -> tuple[Any, ...]:
    """Return all that a store holds, by value."""
    keys = (IDLE, HELD, GONE)
    return (*[await dump(journal, key) for key in keys], await journal.list("lab", "", 9), await journal.totals("lab"))


async def prepared(journal: Any) -> int:
    """Record a conversation that is idle and one that is held, nearly up to the bounds; return the holder's epoch."""
    await append(journal, IDLE, "one", say("q" * 900))
    held = await journal.reserve(HELD, "token", format=FORMAT, opening=adding("held", say("q" * 900)))
    return int(held.header.epoch)


@pytest.mark.parametrize("kind", KINDS)
def test_i04_a_refusal_changes_nothing_whatever_it_is_for(
    kind: str, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """Each refusal of the table: by its name, and everything that the store holds is equal before and after (I-4)."""
    bounds = BOUNDS if kind in BOUNDED else StoreBounds(max_retained_bytes=BOUNDS.max_retained_bytes)
    journal = open_journal(kind, tmp_path, bounds)
    epoch = drive(prepared(journal))
    before = drive(content(journal))
    tried = {name: each for name, each in REFUSALS.items() if each[0] != UNBOUNDED.get(kind)}
    for name, (code, call) in tried.items():
        raised = ""
        try:
            drive(call(journal, epoch))
        except Exception as error:
            raised = type(error).__name__
        assert raised == code, name
        assert drive(content(journal)) == before, name
    figure(f"{kind}: {len(tried)} of {len(REFUSALS)} refusals, 0 changes")


def test_i04_control_a_refusal_that_leaves_something_is_found(tmp_path: Path) -> None:
    """A journal that writes before it refuses is seen in its content."""
    journal = open_journal("RAM", tmp_path, BOUNDS)
    epoch = drive(prepared(journal))
    before = drive(content(journal))
    drive(journal.commit(HELD, "token", epoch, adding("left", say("x"))))
    with pytest.raises(InvalidId):
        drive(journal.commit(HELD, "token", epoch, adding("", say("x"))))
    assert drive(content(journal)) != before
