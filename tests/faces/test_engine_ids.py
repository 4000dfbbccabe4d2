"""
An engine's calls under an id: made again, each is recorded once, whatever its transform adds (SPEC E7, E8, case I-08).

What is compared is what was given. What the transform made of it the first time is what comes back.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.faces.test_engine import context, injection, manager, turn
from tests.stores.labs import KINDS, open_journal

from minutebook import (
    DecisionHistoryAbsent,
    DecisionHistoryConflict,
    DecisionHistoryStorageFailed,
    Engine,
    HistoryConfig,
    HistoryEntry,
    InvalidValue,
    TurnReason,
    TurnResponse,
)
from minutebook.stores.journal import JournalStore
from minutebook.stores.memory import MemoryJournal
from minutebook.testing import Fault, FaultyJournal, drive


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JournalStore]:
    made = JournalStore(open_journal(request.param, tmp_path), namespace="engine")
    yield made
    drive(made.close())


def numbering() -> Any:
    """Return a transform that adds a number of its own to each entry, as a clock would, and strips the details."""
    numbers = itertools.count()
    return lambda entry: msgspec.structs.replace(entry, meta={"number": next(numbers)}, details=None)


def engine_of(store: JournalStore, **policy: Any) -> Engine[Any]:
    return Engine(history=HistoryConfig(store=store, **policy), respond=lambda turn: "yes")


def test_e7_i08_what_a_transform_adds_makes_no_repetition_a_conflict(store: JournalStore) -> None:
    """An injection, an appended entry and a turn: the first one comes back, and the transform is not asked again."""
    engine = engine_of(store, transform_entry=numbering())
    calls: list[Any] = [
        lambda: engine.inject("s", "one", details={"long": "story"}, id="a"),
        lambda: engine.history.append("s", turn("two", details=[2]), id="b"),
        lambda: engine.turn("s", "three", details=[3], id="c"),
    ]
    first = [drive(call()) for call in calls]
    assert [entry.meta for entry in first] == [{"number": number} for number in range(3)]
    assert [drive(call()) for call in calls * 2] == first * 2
    assert context(engine) == ["a one", "u two", "a yes", "u three", "a yes"]
    assert drive(store.verify(store.key("s"))).entries == 3
    assert drive(engine.inject("s", "four")).meta == {"number": 3}


def test_e7_i08_another_entry_under_an_id_is_a_conflict_behind_a_transform_too(store: JournalStore) -> None:
    """Also where the transform makes the same of both; the id goes on standing for the first."""
    engine = engine_of(store, transform_entry=lambda entry: msgspec.structs.replace(entry, details=None, meta=None))
    first = drive(engine.turn("s", "one", details=1, id="a"))
    drive(engine.inject("s", "one", details=1, id="b"))
    others: list[Any] = [
        lambda: engine.turn("s", "one", details=2, id="a"),
        lambda: engine.turn("s", [TurnReason(text="one", kind="timer")], details=1, id="a"),
        lambda: engine.inject("s", "one", details=1, id="a"),
        lambda: engine.inject("s", "one", details=2, id="b"),
        lambda: engine.inject("s", "two", details=1, id="b"),
        lambda: engine.history.append("s", injection("one", details=1, meta=0), id="b"),
        lambda: engine.turn("s", "one", details=1, id="b"),
    ]
    for other in others:
        with pytest.raises(DecisionHistoryConflict):
            drive(other())
    assert drive(engine.turn("s", "one", details=1, id="a")) == first
    assert drive(store.verify(store.key("s"))).entries == 2


def test_e6_i08_a_repetition_of_what_has_left_is_refused_alike(store: JournalStore) -> None:
    """A turn and an injection: absent, since nothing of it can come back; another one under its id is a conflict."""
    engine = engine_of(store, max_entries=1, transform_entry=numbering())
    for number, call in enumerate((engine.turn, engine.inject)):
        drive(call("s", "one", id=f"{number}"))
        drive(engine.inject("s", "next"))
        with pytest.raises(DecisionHistoryAbsent, match="take a new id"):
            drive(call("s", "one", id=f"{number}"))
        with pytest.raises(DecisionHistoryConflict):
            drive(call("s", "other", id=f"{number}"))
        assert context(engine) == ["a next"]
    assert drive(store.verify(store.key("s"))).token == ""


def test_e8_i08_an_injection_whose_reply_was_lost_comes_back_as_it_was_recorded() -> None:
    """Struck at each call of its store, and made again: one entry, with what the transform added to it."""
    struck = recorded = 0
    for call, after in itertools.product(range(1, 12), (False, True)):
        ram = MemoryJournal()
        sound = engine_of(JournalStore(ram, namespace="n"), transform_entry=numbering())
        faulty = FaultyJournal(ram, [Fault(call=call, after=after)])
        try:
            drive(engine_of(JournalStore(faulty, namespace="n"), transform_entry=numbering()).inject("s", "m", id="1"))
        except DecisionHistoryStorageFailed:
            struck += 1
        key = sound.history.config.store.key("s")
        assert drive(sound.history.config.store.totals()).reserved == 0
        recorded += drive(sound.history.config.store.receipt(key, "1")) is not None
        entry = drive(sound.inject("s", "m", id="1"))
        assert drive(sound.inject("s", "m", id="1")) == entry == injection("m", meta={"number": 0})
        assert context(sound) == ["a m"]
    assert struck >= 4
    assert recorded >= 12


def test_e7_i08_a_made_entry_comes_once_under_its_id_whatever_it_is(store: JournalStore) -> None:
    """`record` without a word on what was given compares nothing, with one it compares that."""
    kept, made = manager(store=store), itertools.count()

    async def make() -> HistoryEntry[Any]:
        return injection(f"{next(made)}")

    first = drive(kept.record("s", make, id="a"))
    assert drive(kept.record("s", make, id="a")) == first
    second = drive(kept.record("s", make, id="b", given=injection("x")))
    assert drive(kept.record("s", make, id="b", given=injection("x"))) == second
    for given in (None, injection("y")):
        with pytest.raises(DecisionHistoryConflict):
            drive(kept.record("s", make, id="b", given=given))
    assert next(made) == 2


def test_e7_i08_what_is_given_under_an_id_is_what_can_be_compared(store: JournalStore) -> None:
    """JSON and the metadata's own type; without an id a transform may strip what is neither."""
    kept = manager(store=store, transform_entry=lambda entry: msgspec.structs.replace(entry, details=None))
    odd: Any = object()
    assert drive(kept.append("s", injection("m", details=odd))) == injection("m")
    with pytest.raises(InvalidValue):
        drive(kept.append("s", injection("m", details=odd), id="a"))
    assert drive(store.verify(store.key("s"))).entries == 1


def test_e1_i08_a_set_in_metadata_is_the_same_under_any_hash_seed(tmp_path: Path) -> None:
    """From four processes with other seeds: the first one records it, and the others meet it again."""
    tmp_path.chmod(0o700)
    source = """
import sys
from minutebook.sync import HistoryConfig, HistoryEntry, SQLiteStore, create_history_manager
with SQLiteStore(sys.argv[1], namespace="n") as store:
    kept = create_history_manager(HistoryConfig(store=store, metadata=frozenset[str]))
    entry = HistoryEntry(kind="injection", message="m", meta=frozenset({"alpha", "beta", "gamma", "delta"}))
    assert kept.append("s", entry, id="1") == entry
    print(store.header(store.key("s")).entries)
"""
    for seed in range(1, 5):
        ran = subprocess.run(
            [sys.executable, "-c", source, str(tmp_path / "book.sqlite")],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ran.returncode, ran.stdout.strip()) == (0, "1"), ran.stderr


def test_e8_control_a_response_is_nothing_that_was_given(store: JournalStore) -> None:
    """A turn that an engine took and one that was appended whole stand for different calls."""
    engine = engine_of(store)
    drive(engine.turn("s", "one", id="a"))
    with pytest.raises(DecisionHistoryConflict):
        drive(engine.history.append("s", turn("one", "yes"), id="a"))
    kept = drive(engine.history.append("s", turn("two", "yes"), id="b"))
    assert kept.response == TurnResponse(user_message="yes")
