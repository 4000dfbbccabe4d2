"""
An engine's history policy, promise by promise: what is recorded, what is retained, and what a model sees (SPEC E1-E8).

Each test names the row that it proves. Stores are real: RAM, a SQLite file, a host's documents.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, TypedDict

import msgspec
import pytest
from tests.naming import named
from tests.stores.labs import KINDS, in_threads, open_journal

import minutebook.sync
from minutebook import (
    Conversation,
    DecisionHistoryAbsent,
    DecisionHistoryBusy,
    DecisionHistoryConflict,
    DecisionHistoryCorrupt,
    DecisionHistoryStorageFailed,
    DecisionHistoryStoreFull,
    Engine,
    EngineTurn,
    HistoryConfig,
    HistoryEntry,
    HistoryManager,
    HistoryMessageTooLong,
    InvalidId,
    InvalidMessage,
    InvalidOption,
    InvalidValue,
    LLMContextMessage,
    MemoryStore,
    SQLiteStore,
    TurnReason,
    TurnResponse,
    create_history_manager,
    create_in_memory_store,
)
from minutebook.model import proof
from minutebook.model.entries import Draft, Kind, pack_entries, recompute_digest, unpack_entries
from minutebook.model.record import State
from minutebook.policy.retention import KNOWN_SESSIONS, Retained, Retention
from minutebook.providers.derivation import derived_entries
from minutebook.stores.journal import JournalStore
from minutebook.stores.memory import MemoryJournal
from minutebook.testing import Cut, Fault, FaultyJournal, SuspendingJournal, cancel_at, drive

Messages = list[LLMContextMessage]


def turn(asks: str, says: str = "yes", **more: Any) -> HistoryEntry[Any]:
    return HistoryEntry(kind="turn", reasons=(TurnReason(text=asks),), response=TurnResponse(user_message=says), **more)


def injection(message: str, **more: Any) -> HistoryEntry[Any]:
    return HistoryEntry(kind="injection", message=message, **more)


def manager(**policy: Any) -> HistoryManager[Any]:
    """Return a manager over a fresh store in RAM, unless one is given."""
    policy.setdefault("store", create_in_memory_store())
    return create_history_manager(HistoryConfig(**policy))


def texts(messages: Sequence[LLMContextMessage]) -> list[str]:
    return [f"{message['role'][0]} {message['content']}" for message in messages]


def context(kept: Any, session: str = "s") -> list[str]:
    return texts(drive(kept.get_llm_context(session)))


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JournalStore]:
    made = JournalStore(open_journal(request.param, tmp_path), namespace="engine")
    yield made
    drive(made.close())


class Counting:
    """A projection that counts its calls by entry."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __call__(self, entry: HistoryEntry[Any], defaults: Any) -> Any:
        self.calls[entry.reasons[0].text if entry.reasons else entry.message] += 1
        return defaults()

    def taken(self) -> dict[str, int]:
        calls, self.calls = dict(self.calls), Counter()
        return calls


# --- E1, E2: the policy ----------------------------------------------------------------------------------------------


def test_e1_a_policy_has_the_fields_of_its_row() -> None:
    """Store, entries, characters, transform, projection; everything but the store has a default."""
    config: HistoryConfig[None] = HistoryConfig(store=create_in_memory_store())
    names = ("max_entries", "max_chars", "transform_entry", "derive_llm_context")
    assert [getattr(config, name) for name in names] == [None] * 4


def test_e1_the_metadata_type_is_inferred_by_strict_checkers(tmp_path: Path) -> None:
    """From `metadata=` and from the functions alone, in both colours; another type is refused by both checkers."""
    source = """
from typing import TypedDict

import msgspec

from minutebook import Engine, HistoryConfig, HistoryEntry, LLMContextMessage
from minutebook import create_history_manager, create_in_memory_store
from typing_extensions import assert_type


class Mood(msgspec.Struct, frozen=True):
    name: str


class Tags(TypedDict):
    names: list[str]


def tagged(entry: HistoryEntry[Tags]) -> HistoryEntry[Tags]:
    return msgspec.structs.replace(entry, meta={"names": []})


store = create_in_memory_store()
plain = HistoryConfig(store=store, max_entries=5)
assert_type(plain, HistoryConfig[object])
by_type = HistoryConfig(store=store, metadata=Mood)
assert_type(by_type, HistoryConfig[Mood])
by_function = HistoryConfig(store=store, transform_entry=tagged, max_chars=10)
assert_type(by_function, HistoryConfig[Tags])


async def use() -> None:
    engine = Engine(history=by_type, respond=lambda turn: "yes")
    entry = await engine.turn("s", "hello")
    assert_type(entry.meta, Mood | None)
    assert_type(await engine.inject("s", "note"), HistoryEntry[Mood])
    assert_type(await engine.history.append("s", entry), HistoryEntry[Mood])
    assert_type(await engine.get_llm_context("s"), list[LLMContextMessage])
    async for each in create_history_manager(by_function).entries("s"):
        assert_type(each.meta, Tags | None)


WRONG
"""
    blocking = source.replace("from minutebook import", "from minutebook.sync import")
    for words in ("async ", "await "):
        blocking = blocking.replace(words, "")
    files = {"typed.py": source, "blocking.py": blocking}
    for wrong, errors in (("", 0), ("HistoryConfig(store=store, transform_entry=tagged, metadata=Mood)", 1)):
        for name, text in files.items():
            (tmp_path / name).write_text(text.replace("WRONG", wrong))
        mypy = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache")]
        mypy += [str(tmp_path / name) for name in files]
        told = subprocess.run(mypy, capture_output=True, text=True, timeout=120)
        assert told.stdout.count("error: ") == errors * len(files), told.stdout
        (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict", "reportMissingTypeStubs": false}')
        pyright = [str(Path(sys.executable).with_name("pyright")), "-p", str(tmp_path), "--pythonpath", sys.executable]
        told = subprocess.run(pyright, capture_output=True, text=True, timeout=120)
        assert (told.returncode != 0) == bool(errors), told.stdout
        assert all((f"{tmp_path / name}:" in told.stdout) == bool(errors) for name in files)


def test_e1_o28_o30_typed_metadata_comes_back_as_its_type(store: JournalStore) -> None:
    """With `metadata=`; without it as the JSON that it is, and what no JSON holds exactly is refused whole."""

    class Mood(msgspec.Struct, frozen=True):
        name: str
        score: float = 0.5

    async def read(kept: HistoryManager[Any]) -> list[Any]:
        return [entry.meta async for entry in kept.entries("s")]

    typed = manager(store=store, metadata=Mood)
    drive(typed.append("s", turn("one", meta=Mood("glad"))))
    drive(typed.append("s", turn("two")))
    assert drive(read(typed)) == [Mood("glad"), None]
    assert drive(read(manager(store=store))) == [{"name": "glad", "score": 0.5}, None]
    with pytest.raises(InvalidOption):
        drive(read(manager(store=store, metadata=int)))
    for meta in (Mood("sad", float("nan")), Mood(7), Mood(object()), Mood("\ud800"), "sad"):  # type: ignore[arg-type]
        with pytest.raises(InvalidValue):
            drive(typed.append("s", turn("three", meta=meta)))
    for plain in ({1: 2}, (1,), b"x", float("inf"), "\ud800", Mood("plain")):
        with pytest.raises(InvalidValue):
            drive(manager(store=store).append("s", turn("three", meta=plain)))
    assert len(drive(read(manager(store=store)))) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"store": None},
        {"store": {}},
        {"max_entries": "5"},
        {"max_entries": True},
        {"max_chars": 2.0},
        {"transform_entry": "strip"},
        {"derive_llm_context": 5},
        {"keep_truncated": 1},
        {"metadata": 5},
    ],
    ids=str,
)
def test_e1_what_is_no_policy_is_refused_where_it_is_given(wrong: dict[str, Any]) -> None:
    """With the option's name."""
    with pytest.raises(InvalidOption) as caught:
        HistoryConfig(**{"store": create_in_memory_store()} | wrong)
    assert caught.value.option == next(iter(wrong))


def test_e2_a_store_is_never_chosen_silently(tmp_path: Path) -> None:
    """Without one there is no policy; a local one is asked for by name, and holds a namespace (SPEC D21)."""
    with pytest.raises(TypeError, match="store"):
        HistoryConfig()  # type: ignore[call-arg]
    assert isinstance(create_in_memory_store(), MemoryStore)
    assert create_in_memory_store("tenant").namespace == "tenant"
    tmp_path.chmod(0o700)
    nameless = SQLiteStore(tmp_path / "a.sqlite")
    with pytest.raises(InvalidOption) as caught:
        HistoryConfig(store=nameless)
    assert caught.value.option == "namespace"
    drive(nameless.close())


# --- E3: what entries are, and what a model sees of them --------------------------------------------------------------


def test_e3_turns_and_injections_have_default_projections(store: JournalStore) -> None:
    """A turn: a user message of its user_intent reasons, and an assistant message; an injection: one assistant's."""
    kept = manager(store=store)
    reasons = (
        TurnReason(text="where is it?"),
        TurnReason(text="a timer rang", kind="timer"),
        TurnReason(text="and when?"),
    )
    drive(kept.append("s", msgspec.structs.replace(turn("", "Soon."), reasons=reasons)))
    drive(kept.append("s", injection("It has arrived.")))
    only_timer = (TurnReason(text="rang", kind="timer"),)
    drive(kept.append("s", msgspec.structs.replace(turn("", "I looked."), reasons=only_timer)))
    drive(kept.append("s", turn("still there?", "")))
    assert drive(kept.get_llm_context("s")) == [
        {"role": "user", "content": "where is it?\nand when?"},
        {"role": "assistant", "content": "Soon."},
        {"role": "assistant", "content": "It has arrived."},
        {"role": "assistant", "content": "I looked."},
        {"role": "user", "content": "still there?"},
    ]


def test_e3_i20_o29_entries_come_back_as_they_were_recorded(store: JournalStore) -> None:
    """With details of every part, byte for byte; any text that JSON can hold."""
    kept = manager(store=store)
    odd = "é\u0301 \U0001f600 \x00 '\"\\"
    entries = [
        HistoryEntry[Any](
            kind="turn",
            reasons=(TurnReason(text=odd, kind="user_intent", details={"a": [1, 2.5, None]}),),
            response=TurnResponse(user_message=odd, details=[True]),
            details={"rationale": odd},
            meta={"n": 10**30},
        ),
        injection(odd, details="x"),
    ]
    for entry in entries:
        assert drive(kept.append("s", entry)) == entry

    async def read() -> list[Any]:
        return [entry async for entry in kept.entries("s")]

    assert drive(read()) == entries


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "note"},
        {"kind": "turn"},
        {"kind": "turn", "response": TurnResponse(user_message=""), "message": "x"},
        {"kind": "turn", "response": "yes"},
        {"kind": "turn", "response": TurnResponse(user_message=""), "reasons": ["x"]},
        {"kind": "turn", "response": TurnResponse(user_message=""), "reasons": [TurnReason(text="x")]},
        {"kind": "injection"},
        {"kind": "injection", "message": 5},
        {"kind": "injection", "message": "x", "reasons": (TurnReason(text="x"),)},
        {"kind": "injection", "message": "x", "response": TurnResponse(user_message="")},
    ],
    ids=str,
)
def test_e3_an_entry_that_is_neither_is_refused(wrong: dict[str, Any]) -> None:
    """A value that exists is a turn or an injection."""
    with pytest.raises(InvalidMessage):
        HistoryEntry(**wrong)


# --- E4: the projection of a host's own ------------------------------------------------------------------------------


def test_e4_derive_is_called_once_for_each_retained_entry_of_a_read(store: JournalStore) -> None:
    """Each read, each retained entry, once; nothing else."""
    derive = Counting()
    kept = manager(store=store, derive_llm_context=derive, max_entries=5)
    for number in range(8):
        drive(kept.append("s", turn(f"{number}")))
    assert derive.taken() == {}
    for _ in range(3):
        assert context(kept)[::2] == [f"u {number}" for number in range(3, 8)]
        assert derive.taken() == {f"{number}": 1 for number in range(3, 8)}


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("bounds", [{"max_entries": 2}, {"max_entries": 2, "max_chars": 1_000}], ids=str)
def test_e4_a_number_of_entries_needs_no_projection_to_tell(
    store: JournalStore, keep: bool, bounds: dict[str, int]
) -> None:
    """A manager that is new to a session projects what `max_entries` retains and nothing else, in each of its reads."""
    derive = Counting()
    policy = {"store": store, "derive_llm_context": derive, "keep_truncated": keep, **bounds}
    for number in range(5):
        drive(manager(**policy).append("s", turn(f"{number}")))
    derive.taken()
    new = manager(**policy)
    for _ in range(3):
        assert context(new)[::2] == ["u 3", "u 4"]
        assert derive.taken() == {"3": 1, "4": 1}


def test_e4_an_entry_that_fills_the_characters_ends_the_reading(store: JournalStore) -> None:
    """Where what is retained has more than `max_chars` already, the entry before it is not projected to tell."""
    derive = Counting()
    policy = {"store": store, "derive_llm_context": derive, "max_chars": 10, "keep_truncated": True}
    for text in ("one", "x" * 50):
        drive(manager(**policy).append("s", turn(text)))
    derive.taken()
    assert context(manager(**policy)) == ["u " + "x" * 50, "a yes"]
    assert derive.taken() == {"x" * 50: 1}


def test_e4_a_reading_remembers_what_entries_cost(store: JournalStore) -> None:
    """After it a manager that was new to the session costs nothing again: not for a read, not to record."""
    derive = Counting()
    policy = {"store": store, "derive_llm_context": derive, "max_chars": 20, "keep_truncated": True}
    for number in range(12):
        drive(manager(**policy).append("s", turn(f"{number:02}", "yes")))
    derive.taken()
    new = manager(**policy)
    assert context(new)[::2] == ["u 08", "u 09", "u 10", "u 11"]
    assert derive.taken() == {f"{number:02}": 1 for number in range(7, 12)}
    assert context(new)[::2] == ["u 08", "u 09", "u 10", "u 11"]
    assert derive.taken() == {f"{number:02}": 1 for number in range(8, 12)}
    drive(new.append("s", turn("12", "yes")))
    assert derive.taken() == {"12": 1}
    drive(manager(**policy).append("s", turn("13", "yes")))
    derive.taken()
    assert context(new)[::2] == ["u 10", "u 11", "u 12", "u 13"]
    assert derive.taken() == {f"{number:02}": 1 for number in range(10, 14)}


def test_e4_a_reading_that_ends_late_forgets_no_newer_cost() -> None:
    """It may end behind turns that it did not see; what those cost stays known, wherever it was held up."""
    late = 0
    for step in itertools.count(1):
        ram, derive = MemoryJournal(), Counting()
        policy: dict[str, Any] = {"max_chars": 1_000, "derive_llm_context": derive}
        kept = manager(store=JournalStore(ram, namespace="n"), **policy)
        for number in range(3):
            drive(kept.append("s", turn(f"{number}")))
        slow = manager(store=JournalStore(SuspendingJournal(ram), namespace="n"), **policy)
        kept._journal, written_by = slow._journal, kept._journal
        reading = kept.get_llm_context("s")
        try:
            for _ in range(step):
                reading.send(None)
        except StopIteration:
            break
        kept._journal = written_by
        drive(kept.append("s", turn("3")))
        drive(reading)
        derive.taken()
        drive(kept.append("s", turn("4")))
        late += 1
        assert derive.taken() == {"4": 1}, f"await {step}"
    assert late


def test_e4_of_many_sessions_the_latest_are_known() -> None:
    """What a session's entries cost is forgotten behind 1,024 others that were written to since, and not before."""
    derive = Counting()
    kept = manager(max_chars=1_000, derive_llm_context=derive)
    for number in range(2):
        drive(kept.append("s", turn(f"{number}")))
    for others, new, costed in ((KNOWN_SESSIONS - 1, "2", ["2"]), (KNOWN_SESSIONS, "3", ["0", "1", "2", "3"])):
        for number in range(others):
            drive(kept.append(f"other {number}", turn("x")))
        derive.taken()
        drive(kept.append("s", turn(new)))
        assert derive.taken() == dict.fromkeys(costed, 1)


@pytest.mark.parametrize("used", ["read", "written"])
def test_e4_a_session_that_is_used_stays_known_before_older_ones(used: str) -> None:
    """The first one that was known is forgotten where it was the last to be used, and not for being the first."""
    derive = Counting()
    kept = manager(max_chars=1_000, derive_llm_context=derive)
    drive(kept.append("s", turn("0")))
    for number in range(KNOWN_SESSIONS - 1):
        drive(kept.append(f"other {number}", turn(f"of {number}")))
    if used == "read":
        context(kept)
    else:
        drive(kept.append("s", turn("1")))
    drive(kept.append("one more", turn("x")))
    derive.taken()
    drive(kept.append("s", turn("2")))
    assert derive.taken() == {"2": 1}
    drive(kept.append("other 0", turn("y")))
    assert derive.taken() == {"of 0": 1, "y": 1}


@pytest.mark.parametrize("keep", [False, True])
def test_e4_what_is_retained_no_more_is_not_projected_for_a_context(store: JournalStore, keep: bool) -> None:
    """By a manager that knows the session; another one costs the first that its characters leave out, and once only."""
    derive = Counting()
    policy: dict[str, Any] = {
        "store": store,
        "derive_llm_context": derive,
        "max_chars": 20,
        "max_entries": 9,
        "keep_truncated": keep,
    }
    kept = manager(**policy)
    for number in range(12):
        drive(kept.append("s", turn(f"{number:02}", "yes")))
    derive.taken()
    for _ in range(3):
        assert context(kept)[::2] == ["u 08", "u 09", "u 10", "u 11"]
        assert derive.taken() == {f"{number:02}": 1 for number in range(8, 12)}
    assert context(manager(**policy))[::2] == ["u 08", "u 09", "u 10", "u 11"]
    assert derive.taken() == {f"{number:02}": 1 for number in range(7 if keep else 8, 12)}
    new = manager(**policy)
    for first in (7 if keep else 8, 8, 8):
        assert context(new)[::2] == ["u 08", "u 09", "u 10", "u 11"]
        assert derive.taken() == {f"{number:02}": 1 for number in range(first, 12)}


def test_e4_a_commit_that_fails_has_no_entry_costed_again() -> None:
    """What a manager found out before its commit failed it still knows when the same entry comes again."""
    journal, derive = MemoryJournal(), Counting()
    policy: dict[str, Any] = {"derive_llm_context": derive, "max_chars": 40}
    kept = manager(store=JournalStore(journal, namespace="n"), **policy)
    for number in range(4):
        drive(kept.append("s", turn(f"{number}", "yes")))
    failing = JournalStore(FaultyJournal(journal, [Fault(call=1, method="commit")]), namespace="n")
    other = manager(store=failing, **policy)
    derive.taken()
    with pytest.raises(DecisionHistoryStorageFailed):
        drive(other.append("s", turn("new", "yes")))
    assert sum(derive.taken().values()) > 1
    drive(other.append("s", turn("new", "yes")))
    assert derive.taken() == {"new": 1}


def test_e4_truncation_costs_each_entry_at_most_once(store: JournalStore) -> None:
    """At each append the new entry alone is projected; another worker costs what is retained once, and no more."""
    derive = Counting()
    policy = {"store": store, "derive_llm_context": derive, "max_chars": 40}
    kept = manager(**policy)
    for number in range(30):
        drive(kept.append("s", turn(f"{number}", "yes")))
        assert derive.taken() == {f"{number}": 1}
    retained = context(kept)[::2]
    derive.taken()
    other = manager(**policy)
    drive(other.append("s", turn("other", "yes")))
    assert derive.taken() == {text[2:]: 1 for text in [*retained, "u other"]}
    drive(kept.append("s", turn("back", "yes")))
    assert derive.taken() == {"other": 1, "back": 1}


@pytest.mark.parametrize("keep", [False, True])
def test_e4_b1_a_turn_costs_the_same_at_any_length(tmp_path: Path, keep: bool) -> None:
    """Statements, rows and projections of a turn do not grow with what is retained, nor with what was dropped."""
    costs: list[tuple[int, int, int]] = []
    for length in (20, 200, 1_000):
        journal = open_journal("SQLite", tmp_path, name=f"{length} {keep}.db")
        derive = Counting()
        kept = manager(
            store=JournalStore(journal, namespace="n"),
            derive_llm_context=derive,
            max_entries=length,
            max_chars=10**9,
            keep_truncated=keep,
        )
        for number in range(length + 20):
            drive(kept.append("s", turn(f"{number}", "x" * 100)))
        derive.taken()
        # Receipts move to their table a few at a time: the mean over a whole round of that is what a turn costs.
        statements: list[str] = []
        journal._database._connection.set_trace_callback(statements.append)
        before = journal._database._connection.total_changes
        for number in range(60):
            drive(kept.append("s", turn(f"more {number}", "x" * 100)))
        changes = journal._database._connection.total_changes - before
        costs.append((round(len(statements) / 60), round(changes / 60), sum(derive.taken().values())))
        drive(journal.close())
    assert len(set(costs)) == 1, costs
    assert costs[0][2] == 60


def test_e4_a_projection_composes_with_the_default_or_ignores_it() -> None:
    """None, one or many messages, of any role."""

    def derive(entry: HistoryEntry[Any], defaults: Any) -> Any:
        if entry.kind == "injection":
            return [{"role": "system", "content": entry.message}]
        if entry.details == "hidden":
            return ()
        return [*defaults(), {"role": "developer", "content": "noted"}]

    kept = manager(derive_llm_context=derive)
    for entry in (turn("one"), turn("two", details="hidden"), injection("rule")):
        drive(kept.append("s", entry))
    assert context(kept) == ["u one", "a yes", "d noted", "s rule"]


def test_e4_o24_what_defaults_gives_is_a_copy() -> None:
    """A projection that alters it alters neither the record nor a later context."""

    def derive(entry: HistoryEntry[Any], defaults: Any) -> Any:
        messages = defaults()
        messages[0]["content"] += "!"
        return messages

    kept = manager(derive_llm_context=derive)
    drive(kept.append("s", turn("one")))
    assert context(kept) == context(kept) == ["u one!", "a yes"]


def test_e4_o24_what_a_context_gives_is_a_copy_of_the_projection() -> None:
    """Whoever alters a context alters nothing that a projection keeps and gives again."""
    rules: Any = [{"role": "system", "content": "Be brief."}]

    def derive(*_: object) -> Any:
        return rules

    kept = manager(derive_llm_context=derive)
    drive(kept.append("s", turn("one")))
    given = drive(kept.get_llm_context("s"))
    given[0]["content"] = "Obey."
    given.append({"role": "user", "content": "more"})
    assert rules == [{"role": "system", "content": "Be brief."}]
    assert context(kept) == ["s Be brief."]


async def unawaited(*_: object) -> Any:
    """Stand where a plain function is due."""


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        (["text"], "$[0]"),
        ([{"role": "user"}], "$[0]"),
        ([{"role": "tool", "content": "x"}], "$[0]"),
        ([{"role": "user", "content": "x"}, {"role": "user", "content": 5}], "$[1]"),
        ([{"role": [], "content": "x"}], "$[0]"),
        ([None], "$[0]"),
        (None, "$"),
        (5, "$"),
        ("", "$"),
        ("text", "$"),
        (b"", "$"),
        ({}, "$"),
        ({"role": "user", "content": "x"}, "$"),
        (set(), "$"),
        (unawaited, "$"),
    ],
    ids=named,
)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_e4_a_projection_of_no_messages_is_refused(wrong: Any, path: str) -> None:
    """Before anything is recorded where it is costed, and when it is read where it is not; with the place of it."""
    policy: dict[str, Any] = {"derive_llm_context": unawaited if wrong is unawaited else lambda entry, defaults: wrong}
    kept = manager(max_chars=100, **policy)
    with pytest.raises(InvalidMessage) as caught:
        drive(kept.append("s", turn("one")))
    assert caught.value.path == path
    assert drive(kept.config.store.header(kept.config.store.key("s"))) is None
    unbounded = manager(**policy)
    drive(unbounded.append("s", turn("one")))
    with pytest.raises(InvalidMessage) as caught:
        drive(unbounded.get_llm_context("s"))
    assert caught.value.path == path


# --- E5: characters --------------------------------------------------------------------------------------------------


def test_e5_characters_of_projections_are_bounded(store: JournalStore) -> None:
    """The newest entries whose projections have at most `max_chars` code points together; absent, no bound."""
    kept = manager(store=store, max_chars=10)
    for number in range(6):
        drive(kept.append("s", turn(f"{number}", "\U0001f600" * 3)))
    assert context(kept)[::2] == ["u 4", "u 5"]
    free = manager(store=create_in_memory_store())
    for _ in range(50):
        drive(free.append("s", turn("x" * 1_000)))
    assert len(context(free)) == 100


def test_e5_the_newest_entry_is_kept_whatever_its_size(store: JournalStore) -> None:
    """Alone, when its own projection exceeds the budget; and it goes when the next one comes."""
    kept = manager(store=store, max_chars=10)
    drive(kept.append("s", turn("one")))
    drive(kept.append("s", turn("x" * 50)))
    assert context(kept) == ["u " + "x" * 50, "a yes"]
    drive(kept.append("s", turn("three")))
    assert context(kept) == ["u three", "a yes"]


@pytest.mark.parametrize("bounds", [{"max_chars": 0}, {"max_chars": -5}, {"max_entries": 0}, {"max_entries": -1}])
@pytest.mark.parametrize("keep", [False, True])
def test_e5_a_bound_that_is_not_positive_retains_nothing(
    store: JournalStore, bounds: dict[str, int], keep: bool
) -> None:
    """With a manager that was made directly; with an engine it is refused."""
    derive = Counting()
    kept = manager(store=store, keep_truncated=keep, derive_llm_context=derive, **bounds)
    for number in range(3):
        drive(kept.append("s", turn(f"{number}")))
    assert context(kept) == []
    header = drive(store.verify(store.key("s")))
    assert header.retained == (3 if keep else 0)
    assert derive.taken() == {}
    with pytest.raises(InvalidOption) as caught:
        Engine(history=kept.config, respond=lambda turn: "yes")
    assert caught.value.option == next(iter(bounds))


def test_e5_a_message_that_is_too_long_is_refused_with_both_numbers(store: JournalStore) -> None:
    """An injection before anything is read, a response before anything of its turn is recorded; code points count."""
    engine = Engine(history=HistoryConfig(store=store, max_chars=5), respond=lambda turn: turn.user_intent * 3)
    with pytest.raises(HistoryMessageTooLong) as caught:
        drive(engine.inject("s", "\U0001f600" * 6))
    assert (caught.value.chars, caught.value.limit) == (6, 5)
    assert "\U0001f600" not in str(caught.value)
    assert drive(store.header(store.key("s"))) is None
    with pytest.raises(HistoryMessageTooLong) as caught:
        drive(engine.turn("s", "ab"))
    assert (caught.value.chars, caught.value.limit) == (6, 5)
    assert context(engine) == []
    drive(engine.inject("s", "\U0001f600" * 5))
    drive(engine.turn("s", "a"))
    assert context(engine) == ["u a", "a aaa"]
    direct = manager(store=store, max_chars=5)
    drive(direct.append("t", injection("x" * 6)))
    assert context(direct, "t") == ["a xxxxxx"]


# --- E6: what truncation drops ---------------------------------------------------------------------------------------


def test_e6_a_hard_cap_and_what_it_drops_is_not_retained(store: JournalStore) -> None:
    """The oldest entries leave the record, a prefix, in the commit that makes them too many; the chain holds."""
    kept = manager(store=store, max_entries=3)
    for number in range(10):
        entry = injection(f"{number}") if number % 2 else turn(f"{number}")
        drive(kept.append("s", entry))
        header = drive(store.verify(store.key("s")))
        assert header.retained == min(3, number + 1)

    async def read() -> list[Any]:
        return [entry async for entry in kept.entries("s")]

    assert drive(read()) == [injection("7"), turn("8"), injection("9")]
    assert (header.entries, header.cut.seq, header.version) == (10, 7, 10)


def test_e6_what_is_dropped_leaves_the_file(tmp_path: Path) -> None:
    """Not one byte of it is in the database or beside it once the next turn is recorded."""
    tmp_path.chmod(0o700)

    async def work() -> None:
        async with SQLiteStore(tmp_path / "engine.sqlite", namespace="n") as store:
            engine = Engine(history=HistoryConfig(store=store, max_entries=2), respond=lambda turn: "MARKER" * 50)
            await engine.turn("s", "MARKER one")
            await engine.turn("s", "MARKER two")
            files = list(tmp_path.iterdir())
            assert sum(file.read_bytes().count(b"MARKER one") for file in files) > 0
            await engine.inject("s", "three")
            assert sum(file.read_bytes().count(b"MARKER one") for file in tmp_path.iterdir()) == 0
            await engine.inject("s", "four")
            assert sum(file.read_bytes().count(b"MARKER") for file in tmp_path.iterdir()) == 0

    asyncio.run(work())


def test_e6_keep_truncated_keeps_it_in_the_record_and_out_of_the_context(store: JournalStore) -> None:
    """Every entry stays, the chain is whole, and the context is the same as without."""
    keeping = manager(store=store, max_entries=3, max_chars=30, keep_truncated=True)
    dropping = manager(max_entries=3, max_chars=30)
    for number in range(12):
        for kept in (keeping, dropping):
            drive(kept.append("s", turn("x" * (number * 7 % 20), f"{number}")))
        assert context(keeping) == context(dropping)
    header = drive(store.verify(store.key("s")))
    assert (header.retained, header.cut.seq) == (12, 0)


def test_e6_with_neither_bound_nothing_is_dropped_and_nothing_is_costed(store: JournalStore) -> None:
    """Truncation does nothing: no projection is asked for, and nothing is read."""
    derive = Counting()
    kept = manager(store=store, derive_llm_context=derive)
    for number in range(40):
        drive(kept.append("s", turn(f"{number}")))
    assert derive.taken() == {}
    assert len(context(kept)) == 80


def test_e6_a_lower_bound_drops_what_was_retained_under_a_higher_one(store: JournalStore) -> None:
    """The context obeys at once, the record with the next append; failed turns among them leave no hole."""

    async def fails(turn: EngineTurn) -> str:
        raise ConnectionError

    wide = manager(store=store)
    broken = Engine(history=HistoryConfig(store=store), respond=fails)
    for number in range(10):
        drive(wide.append("s", turn(f"{number}")))
        with pytest.raises(ConnectionError):
            drive(broken.turn("s", "fails"))
    narrow = manager(store=store, max_entries=2)
    assert context(narrow)[::2] == ["u 8", "u 9"]
    drive(narrow.append("s", turn("10")))
    assert context(narrow)[::2] == ["u 9", "u 10"]
    assert drive(store.verify(store.key("s"))).retained == 3  # two entries, and the mark of a failed turn
    assert context(wide)[::2] == ["u 9", "u 10"]


def test_e5_e6_o40_retention_is_the_longest_suffix_within_the_bounds(store: JournalStore) -> None:
    """Against a plain list, over random stories, bounds and workers that come and go."""
    for seed in range(80):
        chance = Random(seed)
        entries, chars = chance.choice((None, 1, 2, 5)), chance.choice((None, 1, 12, 60))
        policy = {"store": store, "max_entries": entries, "max_chars": chars, "keep_truncated": chance.random() < 0.4}
        kept, told = manager(**policy), list[int]()
        for number in range(chance.randrange(1, 25)):
            if chance.random() < 0.2:
                kept = manager(**policy)
            told.append(chance.choice((0, 1, 3, 8, 30, 90)))
            drive(kept.append(f"s{seed}", turn("", f"{number}".ljust(told[-1], "x"))))
            sizes = [max(size, len(f"{position}")) for position, size in enumerate(told)]
            count = len(sizes)
            while count > 1 and (
                (entries is not None and count > entries) or (chars is not None and sum(sizes[-count:]) > chars)
            ):
                count -= 1
            assert len(context(kept, f"s{seed}")) == count, f"seed {seed}"


def test_e6_retention_as_numbers() -> None:
    """What is dropped follows from two sums; nothing but a bound that is not positive drops the newest."""
    kept = Retained(4, b"d", ((1, 10), (2, 20), (4, 5)))
    table = [
        (Retention(), 0),
        (Retention(max_entries=4), 0),
        (Retention(max_entries=3), 1),
        (Retention(max_entries=1), 3),
        (Retention(max_chars=42), 0),
        (Retention(max_chars=41), 1),
        (Retention(max_chars=31), 2),
        (Retention(max_chars=11), 3),
        (Retention(max_chars=1), 3),
        (Retention(max_chars=0), 4),
        (Retention(max_entries=-1, max_chars=100), 4),
    ]
    assert [kept.excess(retention, 7) for retention, _ in table] == [dropped for _, dropped in table]


def read_beside_turns(step: int, derive: Counting) -> list[int] | None:
    """
    Read a context up to its `step`-th await, have the whole session turn over, and return what the reading gives.

    `None` where it has fewer awaits. `derive` counts the reading's projections.
    """
    ram = MemoryJournal()
    policy: dict[str, Any] = {"max_entries": 300, "max_chars": 10**6}
    kept = manager(store=JournalStore(ram, namespace="n"), **policy)
    for number in range(300):
        drive(kept.append("s", turn(f"{number}", "")))
    reads = manager(store=JournalStore(SuspendingJournal(ram), namespace="n"), derive_llm_context=derive, **policy)
    reading = reads.get_llm_context("s")
    try:
        for _ in range(step):
            reading.send(None)
    except StopIteration:
        return None
    for number in range(300, 600):
        drive(kept.append("s", turn(f"{number}", "")))
    return [int(message["content"]) for message in drive(reading)]


def test_e6_a_context_that_is_read_beside_turns_has_no_hole() -> None:
    """Wherever the session turns over under it, what comes is one state: the old one, or the new one read anew."""
    found: list[int] = []
    anew = 0
    for step in itertools.count(1):
        derive = Counting()
        context = read_beside_turns(step, derive)
        if context is None:
            break
        assert context in ([*range(300)], [*range(300, 600)]), f"await {step}"
        found.append(context[0])
        assert set(derive.calls.values()) == {1}, f"await {step}"
        anew += len(derive.calls) > 300
    assert {0, 300} == set(found)
    assert anew  # a reading that had projected something began again


def test_e4_a_reading_that_begins_again_projects_no_entry_twice() -> None:
    """Where the page that it was at has left, what of it is still there keeps its projections."""

    def reading(step: int) -> tuple[list[str], Counter[str]] | None:
        ram, derive = MemoryJournal(), Counting()
        policy: dict[str, Any] = {"max_entries": 300}
        kept = manager(store=JournalStore(ram, namespace="n"), **policy)
        for number in range(300):
            drive(kept.append("s", turn(f"{number}", "")))
        store = JournalStore(SuspendingJournal(ram), namespace="n")
        read = manager(store=store, derive_llm_context=derive, **policy).get_llm_context("s")
        try:
            for _ in range(step):
                read.send(None)
        except StopIteration:
            return None
        for number in range(300, 350):
            drive(kept.append("s", turn(f"{number}", "")))
        return texts(drive(read)), derive.calls

    again = 0
    for step in itertools.count(1):
        met = reading(step)
        if met is None:
            break
        shown, calls = met
        assert shown in ([f"u {n}" for n in range(300)], [f"u {n}" for n in range(50, 350)])
        assert set(calls.values()) == {1}, f"await {step}"
        again += len(calls) > 300
    assert again


# --- E7: transforms --------------------------------------------------------------------------------------------------


def test_e7_transform_runs_before_anything_is_recorded(tmp_path: Path) -> None:
    """On turns and injections alike: what it strips is in no file, what it adds is there."""
    tmp_path.chmod(0o700)

    class Source(TypedDict):
        by: str

    def transform(entry: HistoryEntry[Source]) -> HistoryEntry[Source]:
        return msgspec.structs.replace(entry, details=None, meta={"by": entry.kind})

    async def work() -> None:
        async with SQLiteStore(tmp_path / "engine.sqlite", namespace="n") as store:
            config = HistoryConfig(store=store, transform_entry=transform)
            engine = Engine(history=config, respond=lambda turn: TurnResponse(user_message="yes"))
            took = await engine.turn("s", "one", details={"rationale": "MARKER"})
            said = await engine.inject("s", "two", details="MARKER")
            assert (took.details, took.meta, said.details, said.meta) == (
                None,
                {"by": "turn"},
                None,
                {"by": "injection"},
            )
            assert [entry.meta async for entry in engine.history.entries("s")] == [{"by": "turn"}, {"by": "injection"}]
            assert sum(file.read_bytes().count(b"MARKER") for file in tmp_path.iterdir()) == 0

    asyncio.run(work())


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_e7_a_transform_that_fails_records_nothing(store: JournalStore) -> None:
    """What it raises goes on as it is; what it returns that is no entry is refused."""

    def raises(entry: HistoryEntry[Any]) -> HistoryEntry[Any]:
        raise LookupError("the host's own")

    wrong = [(lambda entry, given=given: given, InvalidMessage) for given in (None, 5, "text", {}, [turn("one")])]
    for transform, error in ((raises, LookupError), (unawaited, InvalidMessage), *wrong):
        kept = manager(store=store, transform_entry=transform)
        with pytest.raises(error):
            drive(kept.append("s", turn("one")))
        assert drive(store.header(store.key("s"))) is None


@pytest.mark.parametrize("given", [None, 5, "text", {"kind": "turn"}, TurnResponse(user_message="yes")], ids=str)
def test_e7_what_is_no_entry_reaches_no_transform(given: Any) -> None:
    """It is refused by its type's name, appended or made."""
    seen: list[object] = []

    def transform(entry: HistoryEntry[Any]) -> HistoryEntry[Any]:
        seen.append(entry)
        return entry

    async def make() -> Any:
        return given

    kept = manager(transform_entry=transform)
    for call in (kept.append("s", given), kept.record("s", make, generates=False)):
        with pytest.raises(InvalidMessage) as caught:
            drive(call)
        assert type(given).__name__ in str(caught.value)
    assert not seen
    assert drive(kept.config.store.header(kept.config.store.key("s"))) is None


# --- E8: sessions, turns and failures --------------------------------------------------------------------------------


def test_e8_an_engine_takes_turns_in_its_context(store: JournalStore) -> None:
    """A plain or a coroutine function is given the reasons and, when it asks, the context before them."""

    async def respond(turn: EngineTurn) -> TurnResponse:
        before = await turn.get_llm_context()
        return TurnResponse(user_message=f"{turn.user_intent} after {len(before)}", details={"session": turn.session})

    engine = Engine(history=HistoryConfig(store=store, max_entries=2), respond=respond)
    assert isinstance(engine.history, HistoryManager)
    first = drive(engine.turn("s", "one"))
    assert first.response == TurnResponse(user_message="one after 0", details={"session": "s"})
    drive(engine.turn("s", [TurnReason(text="two"), TurnReason(text="rang", kind="timer")]))
    drive(engine.turn("s", "three"))
    assert context(engine) == ["u two", "a two after 2", "u three", "a three after 4"]


def test_e8_o41_sessions_are_isolated(store: JournalStore) -> None:
    """Whatever their ids have in common; so are two namespaces of one store."""
    engine = Engine(history=HistoryConfig(store=store, max_entries=2), respond=lambda turn: turn.session)
    ids = ("s", "S", "s ", "s:1", "s/1", "\u00e9", "e\u0301")
    for number in range(3):
        for session in ids:
            drive(engine.turn(session, f"{number}"))
    for session in ids:
        assert context(engine, session) == ["u 1", f"a {session}", "u 2", f"a {session}"]
    assert context(engine, "another") == []
    other = JournalStore(store.journal, namespace="other")
    assert context(manager(store=other)) == []


def test_e8_o32_two_sessions_at_once_and_two_turns_of_one(tmp_path: Path) -> None:
    """Turns of two sessions overlap; a second turn of one is Busy, and the first is recorded."""
    tmp_path.chmod(0o700)

    async def work() -> None:
        async with SQLiteStore(tmp_path / "engine.sqlite", namespace="n") as store:
            started, go = asyncio.Semaphore(0), asyncio.Event()

            async def respond(turn: EngineTurn) -> str:
                started.release()
                await go.wait()
                return f"{turn.session} {len(await turn.get_llm_context())}"

            engine = Engine(history=HistoryConfig(store=store, max_entries=3), respond=respond)
            tasks = [asyncio.create_task(engine.turn(session, "hello")) for session in "ab"]
            for _ in tasks:
                await started.acquire()
            with pytest.raises(DecisionHistoryBusy):
                await engine.turn("a", "me too")
            with pytest.raises(DecisionHistoryBusy):
                await engine.inject("a", "and I")
            assert await engine.get_llm_context("a") == []
            go.set()
            entries = await asyncio.gather(*tasks)
            assert [entry.response and entry.response.user_message for entry in entries] == ["a 0", "b 0"]
            assert texts(await engine.get_llm_context("a")) == ["u hello", "a a 0"]

    asyncio.run(work())


def test_e8_many_sessions_beside_each_other_lose_nothing(tmp_path: Path) -> None:
    """Forty sessions of ten turns each, all under way at once, each capped, none with another's entries."""
    tmp_path.chmod(0o700)

    async def work() -> None:
        async with SQLiteStore(tmp_path / "engine.sqlite", namespace="n") as store:
            config: HistoryConfig[None] = HistoryConfig(store=store, max_entries=4, max_chars=200)
            engine = Engine(history=config, respond=lambda turn: f"{turn.session} {turn.user_intent}")

            async def talk(session: str) -> None:
                for number in range(10):
                    await engine.turn(session, f"{number}")

            await asyncio.gather(*(talk(f"s{number}") for number in range(40)))
            for number in range(40):
                expected = [text for n in range(6, 10) for text in (f"u {n}", f"a s{number} {n}")]
                assert texts(await engine.get_llm_context(f"s{number}")) == expected
                await store.verify(store.key(f"s{number}"))

    asyncio.run(work())


class Halves(HistoryManager[Any]):
    """A manager with a planted fault: it records what a turn is about before it is responded to."""

    async def record(self, session: str, make: Any, *, generates: bool = True, **more: Any) -> HistoryEntry[Any]:
        if generates:
            await self.append(session, injection("half"))
        return await super().record(session, make, generates=generates, **more)


def engine_of(
    made: type[HistoryManager[Any]], store: JournalStore, policy: dict[str, Any], respond: Any
) -> Engine[Any]:
    """Return an engine whose manager is of a class of ours."""
    config: HistoryConfig[Any] = HistoryConfig(store=store, **policy)
    engine = Engine(history=config, respond=respond)
    engine.history = made(config)
    return engine


FAILING: list[dict[str, Any]] = [{}, {"max_entries": 2}, {"max_chars": 9}]


def struck_by_its_store(made: type[HistoryManager[Any]], policy: dict[str, Any], *, after: bool) -> tuple[int, int]:
    """
    Strike a turn at each call of its store in turn; return how often it was struck, and how often half of it was there.

    The error is the store's own, the record is sound afterwards, and the session goes on.
    """
    struck = halves = 0
    for call in range(1, 40):
        ram = MemoryJournal()
        sound = manager(store=JournalStore(ram, namespace="n"), **policy)
        store, key = sound.config.store, sound.config.store.key("s")
        for number in range(4):
            drive(sound.append("s", turn(f"{number}", "yes")))
        before = context(sound)
        faulty = FaultyJournal(ram, [Fault(call=call, after=after)])
        engine = engine_of(made, JournalStore(faulty, namespace="n"), policy, lambda turn: "yes")
        try:
            drive(engine.turn("s", "4"))
        except DecisionHistoryStorageFailed:
            struck += 1
        else:
            if faulty.left:
                break
        assert drive(store.totals()).reserved == 0  # the next worker need recover nothing
        whole = [*before, "u 4", "a yes"][-4 if policy else None :]
        halves += context(sound) not in (before, whole)
        drive(sound.append("s", turn("5", "yes")))
        assert context(sound)[-2:] == ["u 5", "a yes"]
        drive(store.verify(key))
    return struck, halves


@pytest.mark.parametrize("policy", FAILING, ids=str)
@pytest.mark.parametrize("after", [False, True], ids=["not made", "reply lost"])
def test_e8_i03_a_failing_store_surfaces_its_error_and_no_half_turn(policy: dict[str, Any], after: bool) -> None:
    """
    Struck at each of its calls in turn: the error is the store's, and the turn is there whole or not at all.

    Where the last reply alone was lost there is no error: it is asked for, and the turn is there.
    """
    struck, halves = struck_by_its_store(HistoryManager, policy, after=after)
    assert struck >= 2 - after
    assert halves == 0


def test_e8_control_half_a_turn_would_be_found() -> None:
    """A manager that records in two steps is found out, struck between them or cut there."""
    assert struck_by_its_store(Halves, {}, after=False)[1] > 0
    assert asyncio.run(cut_at_each_await(Halves, Cut.CANCELLED, {}))[1] > 0


def test_e8_a_store_without_room_refuses_the_turn_whole() -> None:
    """Its own error, the session as it was; a policy that drops makes the room that it needs."""
    engine = Engine(history=HistoryConfig(store=MemoryStore("n", max_bytes=500)), respond=lambda turn: turn.user_intent)
    drive(engine.turn("s", "x" * 100))
    with pytest.raises(DecisionHistoryStoreFull):
        drive(engine.turn("s", "x" * 100))
    assert context(engine) == ["u " + "x" * 100, "a " + "x" * 100]
    capped = Engine(
        history=HistoryConfig(store=MemoryStore("n", max_bytes=500), max_entries=1),
        respond=lambda turn: turn.user_intent,
    )
    for number in range(20):
        drive(capped.turn("s", f"{number}".rjust(100)))
    assert context(capped)[0].strip().endswith("19")


def test_e8_o35_a_failed_turn_is_not_recorded_but_marked(store: JournalStore) -> None:
    """What `respond` raises goes on; an operator sees the attempt, no context does, and the next turn goes on."""
    broken = [True]

    def respond(turn: EngineTurn) -> Any:
        if broken[0]:
            raise ConnectionError("the model is away")
        return "yes"

    engine = Engine(history=HistoryConfig(store=store), respond=respond)
    with pytest.raises(ConnectionError):
        drive(engine.turn("s", "one"))
    assert context(engine) == []

    async def stored() -> list[Any]:
        return [(entry.kind, entry.payload) async for entry in store.entries(store.key("s"))]

    assert drive(stored()) == [(Kind.ABANDONED, b'{"reason":"failed"}')]
    broken[0] = False
    drive(engine.turn("s", "one"))
    assert context(engine) == ["u one", "a yes"]


CAPPED: list[tuple[dict[str, Any], int | None]] = [
    ({"max_entries": 2}, 2),
    ({"max_chars": 8}, 2),
    ({"max_entries": 2, "keep_truncated": True}, None),
    ({}, None),
]


@pytest.mark.parametrize(("policy", "cap"), CAPPED, ids=str)
def test_e6_a_provider_that_fails_does_not_grow_a_capped_session(
    store: JournalStore, policy: dict[str, Any], cap: int | None
) -> None:
    """One mark stands for all that fail in a row, so marks are no more than entries; elsewhere each has its own."""
    away = [True]

    def respond(turn: EngineTurn) -> str:
        if away[0]:
            raise ConnectionError
        return "yes"

    engine = Engine(history=HistoryConfig(store=store, **policy), respond=respond)
    for told in range(4):
        away[0] = True
        for number in range(50):
            by_a_new_process = Engine(history=engine.history.config, respond=respond)
            with pytest.raises(ConnectionError):
                drive((by_a_new_process if number % 2 else engine).turn("s", "x"))
        away[0] = False
        drive(engine.turn("s", f"{told}"))
        shown = [text for number in range(told + 1) for text in (f"u {number}", "a yes")]
        assert context(engine) == (shown[-4:] if policy else shown)
        header = drive(store.verify(store.key("s")))
        assert header.retained <= 2 * cap if cap else header.retained == 51 * (told + 1)
    if cap:
        away[0] = True
        with pytest.raises(ConnectionError):
            drive(engine.turn("s", "x"))
        assert drive(store.header(store.key("s"))).entries == header.entries + 1  # type: ignore[union-attr]


@pytest.mark.parametrize("given", [None, 5, b"yes", {"user_message": "yes"}, turn("one"), unawaited], ids=named)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_e8_a_response_that_is_none_is_refused(given: Any) -> None:
    """By its type's name alone, and nothing is recorded of the turn; plain, awaited, or a coroutine in a coroutine."""

    async def responds(turn: EngineTurn) -> Any:
        return given() if given is unawaited else given

    for respond in (lambda turn: given, responds):
        engine = Engine(history=HistoryConfig(store=create_in_memory_store(), max_chars=9), respond=respond)
        with pytest.raises(InvalidMessage) as caught:
            drive(engine.turn("s", "one"))
        assert caught.value.path == "$"
        assert context(engine) == []


@pytest.mark.parametrize("message", [None, 5, b"text", ["text"], unawaited], ids=named)
@pytest.mark.parametrize("bounds", [{}, {"max_chars": 9}], ids=str)
def test_e8_an_injection_of_no_text_is_refused(message: Any, bounds: dict[str, int]) -> None:
    """With the place of it, whatever is bounded; nothing is recorded."""
    store = create_in_memory_store()
    engine = Engine(history=HistoryConfig(store=store, **bounds), respond=lambda turn: "yes")
    with pytest.raises(InvalidMessage) as caught:
        drive(engine.inject("s", message))
    assert caught.value.path == "$.message"
    assert drive(store.header(store.key("s"))) is None


@pytest.mark.parametrize("session", [None, 5, "", b"s", ["s"], "\ud800"], ids=repr)
def test_e8_a_session_that_is_no_id_is_refused(session: Any) -> None:
    """By each call, before anybody responds."""
    engine = Engine(history=HistoryConfig(store=create_in_memory_store()), respond=lambda turn: pytest.fail("asked"))

    async def entries() -> list[Any]:
        return [entry async for entry in engine.history.entries(session)]

    calls: list[Any] = [
        lambda: engine.turn(session, "one"),
        lambda: engine.inject(session, "one"),
        lambda: engine.get_llm_context(session),
        lambda: engine.history.append(session, turn("one")),
        entries,
    ]
    for call in calls:
        with pytest.raises(InvalidId):
            drive(call())


@pytest.mark.parametrize("given", [None, 0, 5, b""], ids=str)
def test_e8_an_append_id_that_is_none_is_refused(given: Any) -> None:
    """An empty text is no id; of another type it is a mistake."""
    kept = manager()
    with pytest.raises(InvalidId):
        drive(kept.append("s", turn("one"), id=given))
    assert context(kept) == []


@pytest.mark.parametrize("reasons", ["", [], None, ["x"], [None], 5, {"text": "x"}, [turn("one")]], ids=str)
def test_e8_a_turn_without_reasons_is_refused(reasons: Any) -> None:
    """An empty text is one; a list of something else is not, and nobody responds to it."""
    engine = Engine(
        history=HistoryConfig(store=create_in_memory_store()),
        respond=lambda turn: "yes" if not turn.user_intent else pytest.fail("asked"),
    )
    if reasons == "":
        drive(engine.turn("s", reasons))
        assert context(engine) == ["a yes"]
        return
    with pytest.raises(InvalidMessage):
        drive(engine.turn("s", reasons))
    assert context(engine) == []


def test_e8_options_of_an_engine_are_checked() -> None:
    """A policy and a function, or a clear refusal."""
    config: HistoryConfig[None] = HistoryConfig(store=create_in_memory_store())
    for wrong in ({"history": None}, {"history": create_in_memory_store()}, {"respond": "yes"}):
        with pytest.raises(InvalidOption) as caught:
            Engine(**{"history": config, "respond": lambda turn: "yes"} | wrong)  # type: ignore[arg-type]
        assert caught.value.option == next(iter(wrong))


def test_e8_o12_another_face_on_one_id_is_a_conflict(store: JournalStore) -> None:
    """A session is no conversation of a wire format, and the other way round; neither is altered."""
    talk = Conversation(store, "c", format="openai-chat")
    drive(talk.append([{"role": "user", "content": "hello"}]))
    kept = manager(store=store)
    for call in (kept.get_llm_context, lambda id_: kept.append(id_, turn("one"))):
        with pytest.raises(DecisionHistoryConflict):
            drive(call("c"))  # type: ignore[arg-type]
    drive(kept.append("s", turn("one")))
    with pytest.raises(DecisionHistoryConflict):
        drive(Conversation(store, "s", format="openai-chat").append([{"role": "user", "content": "hello"}]))
    assert context(kept) == ["u one", "a yes"]


def test_e8_i08_an_entry_comes_once_under_its_id(store: JournalStore) -> None:
    """A repetition records nothing, also after it has left; another entry under the same id is a conflict."""
    kept = manager(store=store, max_entries=2)
    for _ in range(3):
        drive(kept.append("s", turn("one"), id="a"))
    assert context(kept) == ["u one", "a yes"]
    for number in range(3):
        drive(kept.append("s", turn(f"{number}")))
    with pytest.raises(DecisionHistoryAbsent):
        drive(kept.append("s", turn("one"), id="a"))
    assert context(kept)[::2] == ["u 1", "u 2"]
    with pytest.raises(DecisionHistoryConflict):
        drive(kept.append("s", turn("other"), id="a"))
    drive(kept.append("s", turn("3")))
    assert context(kept)[::2] == ["u 2", "u 3"]
    drive(store.verify(store.key("s")))


@pytest.mark.parametrize("policy", [{}, {"max_entries": 2}, {"max_chars": 40, "keep_truncated": True}], ids=str)
@pytest.mark.parametrize("after", [False, True], ids=["not made", "reply lost"])
def test_e8_i08_a_turn_whose_reply_was_lost_is_recorded_once_when_it_comes_again(
    policy: dict[str, Any], after: bool
) -> None:
    """Struck at each call of its store and made again under its id: one turn, one response once it is recorded."""
    struck = known = 0
    for call in range(1, 40):
        ram, asked = MemoryJournal(), list[str]()
        config: HistoryConfig[Any] = HistoryConfig(store=JournalStore(ram, namespace="n"), **policy)

        def respond(turn: EngineTurn, asked: list[str] = asked) -> str:
            asked.append(turn.user_intent)
            return f"answer {len(asked)}"  # no model says the same again

        sound = Engine(history=config, respond=respond)
        drive(sound.turn("s", "before", id="0"))
        faulty = FaultyJournal(ram, [Fault(call=call, after=after)])
        engine = Engine(history=HistoryConfig(store=JournalStore(faulty, namespace="n"), **policy), respond=respond)
        try:
            drive(engine.turn("s", "where", id="1"))
        except DecisionHistoryStorageFailed:
            struck += 1
        else:
            if faulty.left:
                break
        held = drive(config.store.header(config.store.key("s")))
        assert held is not None
        assert held.token == ""  # whatever struck: another worker finds the session idle
        written, before = drive(config.store.receipt(config.store.key("s"), "1")), len(asked)
        entry = drive(sound.turn("s", "where", id="1"))
        known += written is not None
        assert len(asked) == before + (written is None)
        assert entry.response == TurnResponse(user_message=f"answer {len(asked)}")
        settled = drive(config.store.header(config.store.key("s")))
        assert drive(sound.turn("s", "where", id="1")) == entry
        assert settled is not None
        again = drive(config.store.verify(config.store.key("s")))
        assert (again.entries, again.version, again.token) == (settled.entries, settled.version, "")
        assert context(sound) == ["u before", "a answer 1", "u where", f"a answer {len(asked)}"]
    assert struck >= 3 - after
    assert (known > 0) is after


def test_e8_i08_an_id_stands_for_one_turn_or_injection(store: JournalStore) -> None:
    """Anything else under it is a conflict, what has left the record is not responded to again, a failure frees it."""
    asked: list[str] = []

    def respond(turn: EngineTurn) -> str:
        asked.append(turn.user_intent)
        if len(asked) == 1:
            raise ConnectionError
        return "yes"

    engine = Engine(history=HistoryConfig(store=store, max_entries=2), respond=respond)
    with pytest.raises(ConnectionError):
        drive(engine.turn("s", "one", id="a"))
    first = drive(engine.turn("s", "one", details={"n": 1}, id="a"))
    for _ in range(2):
        assert drive(engine.turn("s", "one", details={"n": 1}, id="a")) == first
        drive(engine.inject("s", "two", details=[2], id="b"))
    assert (asked, context(engine)) == (["one", "one"], ["u one", "a yes", "a two"])
    others: list[Any] = [
        lambda: engine.turn("s", "other", details={"n": 1}, id="a"),
        lambda: engine.turn("s", "one", id="a"),
        lambda: engine.turn("s", [TurnReason(text="one", kind="timer")], details={"n": 1}, id="a"),
        lambda: engine.turn("s", "two", id="b"),
        lambda: engine.inject("s", "one", id="a"),
        lambda: engine.inject("s", "two", id="b"),
    ]
    for other in others:
        with pytest.raises(DecisionHistoryConflict):
            drive(other())
    for number in range(2):
        drive(engine.inject("s", f"{number}"))
    with pytest.raises(DecisionHistoryAbsent):
        drive(engine.turn("s", "one", details={"n": 1}, id="a"))
    assert (asked, context(engine)) == (["one", "one"], ["a 0", "a 1"])
    assert drive(store.verify(store.key("s"))).token == ""


def test_e7_i08_a_transform_does_not_hinder_a_repetition(store: JournalStore) -> None:
    """What it strips or adds is not compared, and it does not see what it gave before; another kind is a conflict."""
    seen: list[str] = []

    def transform(entry: HistoryEntry[Any]) -> HistoryEntry[Any]:
        seen.append(entry.kind)
        return msgspec.structs.replace(entry, reasons=(), details=len(seen), meta=None)

    config: HistoryConfig[Any] = HistoryConfig(store=store, transform_entry=transform)
    engine = Engine(history=config, respond=lambda turn: "yes")
    first = drive(engine.turn("s", "one", details={"long": "story"}, id="a"))
    assert drive(engine.turn("s", "one", details={"long": "story"}, id="a")) == first
    assert (seen, first.details) == (["turn"], 1)
    drive(engine.inject("s", "two", id="b"))
    with pytest.raises(DecisionHistoryConflict):
        drive(engine.turn("s", "two", id="b"))


def test_e8_i01_a_restart_on_sqlite_finds_the_session(tmp_path: Path) -> None:
    """A killed process leaves whole turns; after a recovery the next one goes on, capped as before."""
    tmp_path.chmod(0o700)
    source = """
import os, signal, sys
from minutebook.sync import Engine, HistoryConfig, SQLiteStore
store = SQLiteStore(sys.argv[1], namespace="n")
def respond(turn):
    if turn.user_intent == "3":
        os.kill(os.getpid(), signal.SIGKILL)
    return f"seen {len(turn.get_llm_context())}"
engine = Engine(history=HistoryConfig(store=store, max_entries=2), respond=respond)
for number in range(9):
    engine.turn("s", f"{number}")
"""
    path = tmp_path / "engine.sqlite"
    killed = subprocess.run([sys.executable, "-c", source, str(path)], capture_output=True, text=True, timeout=60)
    assert killed.returncode == -9, killed.stderr
    with minutebook.sync.SQLiteStore(path, namespace="n") as store:
        engine = minutebook.sync.Engine(
            history=minutebook.sync.HistoryConfig(store=store, max_entries=2),
            respond=lambda turn: f"seen {len(turn.get_llm_context())}",
        )
        assert texts(engine.get_llm_context("s")) == ["u 1", "a seen 2", "u 2", "a seen 4"]
        with pytest.raises(DecisionHistoryBusy):
            engine.turn("s", "3")
        store.recover(store.key("s"), worker_stopped=True)
        engine.turn("s", "3")
        assert texts(engine.get_llm_context("s")) == ["u 2", "a seen 4", "u 3", "a seen 4"]
        assert store.verify(store.key("s")).retained == 3  # two turns, and the mark of the killed one between them


async def cut_at_each_await(made: type[HistoryManager[Any]], cut: Cut, policy: dict[str, Any]) -> tuple[int, int]:
    """Cut a turn at each of its awaits in turn; return how often, and how often half of it or a hole was there."""
    struck = halves = 0

    async def respond(turn: EngineTurn) -> str:
        await turn.get_llm_context()
        return "yes"

    for step in range(1, 80):
        journal = MemoryJournal()
        store = JournalStore(SuspendingJournal(journal), namespace="n")
        other = JournalStore(journal, namespace="n")
        kept = manager(store=store, **policy)
        for number in range(3):
            await kept.append("s", turn(f"{number}", "yes"))
        before = texts(await kept.get_llm_context("s"))
        engine = engine_of(made, store, policy, respond)
        engine.history._known = kept._known
        ended = await cancel_at(lambda engine=engine: engine.turn("s", "3"), step, cut)  # type: ignore[misc]
        if not ended.struck:
            assert ended.error is None
            break
        struck += 1
        whole = [*before, "u 3", "a yes"][-4 if policy else None :]
        halves += texts(await kept.get_llm_context("s")) not in (before, whole)
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})  # what a closed coroutine left to do
        assert cut is Cut.KILLED or (await other.totals()).reserved == 0
        await kept.append("s", turn("4", "yes"))  # an orphan of this process is continued
        assert texts(await kept.get_llm_context("s"))[-2:] == ["u 4", "a yes"]
        await store.verify(store.key("s"))
    return struck, halves


@pytest.mark.parametrize("cut", list(Cut), ids=lambda cut: cut.value)
@pytest.mark.parametrize(
    "policy", [{}, {"max_entries": 2}, {"max_chars": 9}, {"max_chars": 9, "keep_truncated": True}], ids=str
)
def test_e8_i18_o35_a_turn_that_is_cut_at_any_await_is_whole_or_not_there(cut: Cut, policy: dict[str, Any]) -> None:
    """Cancelled, timed out, closed or interrupted: no half turn, no hole, and the session is not left busy."""
    struck, halves = asyncio.run(cut_at_each_await(HistoryManager, cut, policy))
    assert struck >= 6
    assert halves == 0


def test_b11_both_colours_record_the_same(tmp_path: Path) -> None:
    """One story over SQLite with each: the same entries, contexts, cuts and refusals."""
    tmp_path.chmod(0o700)
    told: list[Any] = []

    def derive(entry: HistoryEntry[Any], defaults: Any) -> Any:
        return [*defaults(), {"role": "system", "content": f"{entry.meta}"}]

    def transform(entry: HistoryEntry[Any]) -> HistoryEntry[Any]:
        return msgspec.structs.replace(entry, meta=entry.kind)

    policy: dict[str, Any] = {
        "max_entries": 3,
        "max_chars": 60,
        "derive_llm_context": derive,
        "transform_entry": transform,
    }

    async def waiting() -> None:
        async def respond(turn: EngineTurn) -> str:
            return f"{turn.session} {turn.user_intent} {len(await turn.get_llm_context())}"

        async with SQLiteStore(tmp_path / "a.sqlite", namespace="n") as store:
            engine = Engine(history=HistoryConfig(store=store, **policy), respond=respond)
            for number in range(6):
                for _ in range(2):
                    await engine.turn("s", f"{number}", id=f"turn {number}")
                    await engine.inject("s", f"note {number}", id=f"note {number}")
            with pytest.raises(HistoryMessageTooLong) as caught:
                await engine.inject("s", "x" * 61)
            entries = [entry async for entry in engine.history.entries("s")]
            header = await store.verify(store.key("s"))
            told.append(
                [entries, await engine.get_llm_context("s"), str(caught.value), header.retained, header.cut.seq]
            )

    def blocking() -> None:
        def respond(turn: minutebook.sync.EngineTurn) -> str:
            return f"{turn.session} {turn.user_intent} {len(turn.get_llm_context())}"

        with minutebook.sync.SQLiteStore(tmp_path / "b.sqlite", namespace="n") as store:
            engine = minutebook.sync.Engine(
                history=minutebook.sync.HistoryConfig(store=store, **policy), respond=respond
            )
            for number in range(6):
                for _ in range(2):
                    engine.turn("s", f"{number}", id=f"turn {number}")
                    engine.inject("s", f"note {number}", id=f"note {number}")
            with pytest.raises(HistoryMessageTooLong) as caught:
                engine.inject("s", "x" * 61)
            entries = list(engine.history.entries("s"))
            header = store.verify(store.key("s"))
            told.append([entries, engine.get_llm_context("s"), str(caught.value), header.retained, header.cut.seq])

    asyncio.run(waiting())
    blocking()
    assert told[0] == told[1]
    assert told[0][3] == len(told[0][0]) > 0


def test_b11_a_coroutine_function_under_blocking_calls_is_told() -> None:
    """One that waits for nothing is driven; one that waits for a loop is refused by name, and nothing is recorded."""

    class Loop:
        def __await__(self) -> Iterator[object]:
            yield self

    async def respond(turn: Any) -> str:
        if turn.user_intent == "wait":
            await Loop()
        return "yes"

    store = minutebook.sync.create_in_memory_store()
    config: HistoryConfig[None] = minutebook.sync.HistoryConfig(store=store)
    engine = minutebook.sync.Engine(history=config, respond=respond)  # type: ignore[arg-type]
    with pytest.raises(minutebook.BlockingMismatch):
        engine.turn("s", "wait")
    assert engine.get_llm_context("s") == []
    engine.turn("s", "one")
    assert texts(engine.get_llm_context("s")) == ["u one", "a yes"]


def test_b11_threads_of_blocking_callers_share_an_engine(tmp_path: Path) -> None:
    """Eight threads, each with a session of its own, and one that all want: no entry is lost or another's."""
    tmp_path.chmod(0o700)
    with minutebook.sync.SQLiteStore(tmp_path / "engine.sqlite", namespace="n") as store:
        config: HistoryConfig[None] = minutebook.sync.HistoryConfig(store=store, max_entries=5, max_chars=100)
        engine = minutebook.sync.Engine(history=config, respond=lambda turn: turn.user_intent)

        def work(name: str) -> int:
            busy = 0
            for number in range(20):
                engine.turn(name, f"{number}")
                try:
                    engine.inject("all", name)
                except DecisionHistoryBusy:
                    busy += 1
            return busy

        busy = in_threads([lambda name=f"s{n}": work(name) for n in range(8)])  # type: ignore[misc]
        for number in range(8):
            expected = [text for n in range(15, 20) for text in (f"u {n}", f"a {n}")]
            assert texts(engine.get_llm_context(f"s{number}")) == expected
        assert store.verify(store.key("all")).entries == 160 - sum(busy)
        assert len(engine.get_llm_context("all")) == 5


def test_i39_an_entry_that_is_none_is_named(store: JournalStore) -> None:
    """What another program wrote into a session is refused by its number, and no piece of it is shown."""
    from minutebook.model.entries import Draft
    from minutebook.model.record import Delta

    kept = manager(store=store)
    drive(kept.append("s", turn("one")))
    for number, payload in enumerate((b'{"kind":"turn"}', b"[]", b"nonsense MARKER", b'"MARKER"')):
        delta = Delta(drafts=(Draft(kind=Kind.INPUT, payload=payload),), idempotency=f"bad {number}")
        key = store.key(f"bad {number}")
        drive(store.journal.reserve(key, "t", format="engine/1", opening=delta, release=True))
        with pytest.raises(DecisionHistoryCorrupt) as caught:
            drive(kept.get_llm_context(key.id))
        assert caught.value.seq == 1
        assert "MARKER" not in str(caught.value)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("seq", [6, 7, 8, 9, 10])
def test_i39_an_altered_entry_is_shown_to_no_model(tmp_path: Path, seq: int, keep: bool) -> None:
    """Each retained entry is held to the chain when it is read, the oldest too, behind a cut and without one."""
    journal = open_journal("SQLite", tmp_path)
    policy: dict[str, Any] = {"store": JournalStore(journal, namespace="n"), "max_entries": 5, "keep_truncated": keep}
    kept = manager(**policy)
    for number in range(1, 11):
        drive(kept.append("s", turn(f"question {number:02}")))
    assert len(context(kept)) == 10
    drive(journal.close())
    with contextlib.closing(sqlite3.connect(tmp_path / "lab.db", isolation_level=None)) as connection:
        (row,) = connection.execute("SELECT entries FROM minutebook_log WHERE seq = ?", (seq,)).fetchone()
        altered = row.replace(b"question", b"QUESTION")
        assert altered != row
        connection.execute("UPDATE minutebook_log SET entries = ? WHERE seq = ?", (altered, seq))
    again = manager(**policy | {"store": JournalStore(open_journal("SQLite", tmp_path), namespace="n")})
    with pytest.raises(DecisionHistoryCorrupt) as caught:
        drive(again.get_llm_context("s"))
    assert caught.value.seq == seq
    with pytest.raises(DecisionHistoryCorrupt):
        drive(again.config.store.verify(again.config.store.key("s")))
    drive(again.config.store.close())


def forged(tmp_path: Path, keep: bool, seq: int) -> HistoryManager[Any]:
    """Return a manager over ten entries, one of them rewritten with its own digest, the header left as it was."""
    journal = open_journal("SQLite", tmp_path)
    policy: dict[str, Any] = {"max_entries": 5, "keep_truncated": keep}
    kept = manager(store=JournalStore(journal, namespace="n"), **policy)
    for number in range(1, 11):
        drive(kept.append("s", turn(f"question {number:02}")))
    drive(journal.close())
    key = kept.config.store.key("s")
    with contextlib.closing(sqlite3.connect(tmp_path / "lab.db", isolation_level=None)) as connection:
        stored = [
            entry
            for first, packed in connection.execute("SELECT seq, entries FROM minutebook_log ORDER BY seq")
            for entry in unpack_entries(packed, first)
        ]
        entry = next(entry for entry in stored if entry.seq == seq)
        before = next((entry.digest for entry in stored if entry.seq == seq - 1), b"")
        if not before:  # it has left
            (state,) = connection.execute("SELECT state FROM minutebook_conversation").fetchone()
            before = msgspec.json.decode(state, type=State).cut.digest  # type: ignore[union-attr]
        assert recompute_digest(before, entry) == entry.digest
        lied = msgspec.structs.replace(entry, payload=entry.payload.replace(b"question", b"QUESTION"))
        lied = msgspec.structs.replace(lied, digest=recompute_digest(before, lied))
        row = pack_entries([lied])
        assert connection.execute("UPDATE minutebook_log SET entries = ? WHERE seq = ?", (row, seq)).rowcount == 1
    return manager(store=JournalStore(open_journal("SQLite", tmp_path), namespace=key.namespace), **policy)


async def streamed(kept: HistoryManager[Any], seen: list[str]) -> None:
    async for entry in kept.entries("s"):
        seen += [reason.text for reason in entry.reasons]


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("seq", [6, 7, 8, 9, 10])
def test_i39_an_entry_forged_with_its_own_digest_is_shown_to_nobody(tmp_path: Path, seq: int, keep: bool) -> None:
    """The next entry tells, or the header of the newest one: in contexts, in streams up to it, and to cost entries."""
    kept, seen = forged(tmp_path, keep, seq), list[str]()
    for call in (kept.get_llm_context("s"), streamed(kept, seen)):
        with pytest.raises(DecisionHistoryCorrupt) as caught:
            drive(call)
        assert caught.value.seq == min(seq + 1, 10)
    assert "QUESTION" not in "".join(seen)
    with pytest.raises(DecisionHistoryCorrupt):
        drive(kept.append("s", turn("next")))
    drive(kept.config.store.close())


def test_i39_control_without_the_header_a_forged_newest_entry_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chain alone does not tell."""
    monkeypatch.setattr(proof, "_check_last", lambda header, last: None)
    kept, seen = forged(tmp_path, False, 10), list[str]()
    drive(streamed(kept, seen))
    assert seen[-1] == context(kept)[-2][2:] == "QUESTION 10"
    drive(kept.config.store.close())


@pytest.mark.parametrize("cap", [None, 3])
def test_e8_a_session_is_exported_and_imported_as_other_conversations_are(tmp_path: Path, cap: int | None) -> None:
    """A session comes back whole in another store, also one whose oldest turns have left; an altered one does not."""
    tmp_path.chmod(0o700)
    store = create_in_memory_store()
    kept = create_history_manager(HistoryConfig(store=store, max_entries=cap))
    for number in range(6):
        drive(kept.append("s", turn(f"question {number}")))
    key = store.key("s")
    drive(store.export(key, tmp_path / "s.jsonl"))
    other = create_in_memory_store()
    drive(other.import_(key, tmp_path / "s.jsonl", check=derived_entries))
    there = create_history_manager(HistoryConfig(store=other, max_entries=cap))
    assert drive(there.get_llm_context("s")) == drive(kept.get_llm_context("s"))
    drafts = [Draft(kind=entry.kind, payload=entry.payload) for entry in drive(_all_entries(store, key))]
    assert derived_entries("engine/1", drafts) == len(drafts)
    for payload in (b"{}", b"[]", drafts[1].payload + b" ", drafts[1].payload.replace(b'"turn"', b'"tern"')):
        altered = [drafts[0], Draft(kind=drafts[1].kind, payload=payload), *drafts[2:]]
        assert derived_entries("engine/1", altered) == 1


async def _all_entries(store: Any, key: Any) -> list[Any]:
    return [entry async for entry in store.entries(key)]


def test_i37_an_entry_shows_its_kind_and_no_more() -> None:
    """I-37: of a list of entries one sees what they are, and none of what was said."""
    assert [repr(turn("canary")), repr(injection("canary"))] == ["HistoryEntry(turn)", "HistoryEntry(injection)"]
