"""Memory resources: business data by name, within declared scopes, of which no update is lost (D2, D28)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.budgets import budget
from tests.runtime.programs import call, calls, finish, kept, runtime
from tests.stores.labs import KINDS, open_journal

from minutebook import sync
from minutebook.errors import (
    DecisionHistoryBusy,
    DecisionHistoryStoreFull,
    InvalidOption,
    InvalidValue,
    MemoryRefused,
)
from minutebook.model.bounds import StoreBounds
from minutebook.programs import storage_of
from minutebook.runtime import Memory, MemoryResource, MemoryValue, Program, capability, delegate
from minutebook.runtime.memory import Resources
from minutebook.stores.journal import JournalStore
from minutebook.stores.memory import MemoryJournal
from minutebook.stores.opening import MemoryStore
from minutebook.testing import ScriptedProvider, drive

NOTES = MemoryResource(name="notes", scope="run")
STOCK = MemoryResource(name="stock", scope="namespace", max_bytes=64)
HABITS = MemoryResource(name="habits", scope="agent")
RATES = MemoryResource(name="rates", scope="namespace", writable=False)


@capability(memory=[NOTES, HABITS, STOCK])
async def add(name: str, text: str, memory: Memory) -> list[Any]:
    """Add a text to a resource."""
    held = await memory.read(name)
    texts = [*(held.value or []), text]
    await memory.compare_and_set(name, texts, version=held.version)
    return texts


def clerk(name: str = "clerk", *capabilities: Any) -> Program[Any]:
    return Program(
        name=name, instructions="", capabilities=capabilities or (add,), memory=[NOTES, HABITS, STOCK, RATES]
    )


def added(store: JournalStore, name: str, text: str, *, run_id: str = "r", agent: str = "clerk") -> Any:
    """Return what a resource holds after a run of an agent has added to it."""
    made, _ = kept(clerk(agent), store, calls(call("add", name=name, text=text)), finish())
    return drive(made.run("go", run_id=run_id)).observations[0].value


def test_d28_each_scope_shares_what_it_says_and_no_more() -> None:
    """D28: of one run, of one agent's runs, of the namespace; another store's namespace shares nothing."""
    store = MemoryStore("one")
    assert added(store, "notes", "a", run_id="1") == ["a"]
    assert added(store, "notes", "b", run_id="1", agent="other") == ["a", "b"]
    assert added(store, "notes", "c", run_id="2") == ["c"]
    assert added(store, "habits", "a", run_id="1") == ["a"]
    assert added(store, "habits", "b", run_id="2") == ["a", "b"]
    assert added(store, "habits", "c", run_id="1", agent="other") == ["c"]
    assert added(store, "stock", "a", run_id="1") == ["a"]
    assert added(store, "stock", "b", run_id="2", agent="other") == ["a", "b"]
    assert added(JournalStore(store.journal, namespace="two"), "stock", "c") == ["c"]


def test_d28_an_agent_that_is_called_shares_the_run() -> None:
    """D5, D28: what passes between an agent and its caller is the task, the result, and what both declare."""
    below = ScriptedProvider([calls(call("add", name="notes", text="below")), finish("done")])
    above = clerk("clerk", add, delegate(clerk("scholar")))
    script = (calls(call("add", name="notes", text="above"), call("scholar", task="t")), finish())
    made, _ = kept(above, MemoryStore(), *script, providers={"scholar": below})
    drive(made.run("go"))
    assert below.requests[1].observations[0].value == ["above", "below"]


def test_d28_a_model_sees_no_memory_and_cannot_name_one_that_is_not_declared() -> None:
    """D28: the parameter is no argument; another name is refused before anything is read or written."""
    assert set(add.parameters["properties"]) == {"name", "text"}  # type: ignore[arg-type]
    store = MemoryStore()
    script = (calls(call("add", name="rates", text="x"), call("add", name="notes", text="x", memory={})), finish())
    made, provider = kept(clerk(), store, *script)
    drive(made.run("go"))
    values: list[Any] = [seen.value for seen in provider.requests[1].observations]
    assert values[0] == {"error": "MemoryRefused"}
    assert values[1]["refused"] == "invalid_arguments"
    ids = [listing.key.id for listing in drive(store.list())]
    assert not [each for each in ids if each.startswith('["memory"')]


@pytest.mark.parametrize(
    "declared",
    [(), (MemoryResource(name="notes", scope="agent"), HABITS, STOCK), (NOTES, HABITS)],
    ids=["nothing", "another scope", "one less"],
)
def test_d28_an_undeclared_resource_or_scope_is_refused_before_execution(declared: Any) -> None:
    """D28: when the program is made, before any run of it."""
    with pytest.raises(InvalidOption, match="does not declare"):
        Program(name="clerk", instructions="", capabilities=[add], memory=declared)


def test_options_of_memory_that_cannot_be() -> None:
    """Checked where they are given."""
    for options in (
        {"name": "a b"},
        {"name": ""},
        {"name": 7},
        {"scope": "world"},
        {"scope": ["run"]},
        {"max_bytes": 0},
        {"writable": 1},
    ):
        with pytest.raises(InvalidOption):
            MemoryResource(**{"name": "notes", "scope": "run", **options})  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="two memory resources"):
        Program(name="clerk", instructions="", memory=[NOTES, NOTES])
    with pytest.raises(InvalidOption, match="MemoryResource"):
        capability(memory=["notes"])(add.function)  # type: ignore[list-item]
    with pytest.raises(InvalidOption, match="go together"):
        capability(add.function)
    with pytest.raises(InvalidOption, match="go together"):
        capability(memory=[NOTES])(test_options_of_memory_that_cannot_be)

    async def two(one: Memory, other: Memory) -> None: ...

    with pytest.raises(InvalidOption, match="second Memory"):
        capability(memory=[NOTES])(two)
    with pytest.raises(InvalidOption, match="give memory="):
        runtime(clerk())


# --- the handle, over every store ------------------------------------------------------------------------------------


def handle(store: JournalStore, *declared: MemoryResource) -> Memory:
    """Return what a capability is given."""
    found = {each.name: each for each in declared or (NOTES, HABITS, STOCK, RATES)}
    return Memory.over(Resources(storage_of(store), found, "r", "clerk"))


@pytest.mark.parametrize("kind", KINDS)
def test_d28_read_write_and_compare_and_set(kind: str, tmp_path: Any) -> None:
    """D28: a value and its version, exact; a set that follows another version changes nothing."""

    async def story() -> None:
        memory = handle(JournalStore(open_journal(kind, tmp_path), namespace="t"))
        assert await memory.read("notes") == MemoryValue(None, 0)
        assert await memory.write("notes", {"b": 1.0, "a": [2**70, None]}) == 1
        assert repr((await memory.read("notes")).value) == repr({"b": 1.0, "a": [2**70, None]})
        assert await memory.compare_and_set("notes", "two", version=1) == 2
        for version in (0, 1, 3, 99):
            assert await memory.compare_and_set("notes", "lost", version=version) is None
        assert await memory.read("notes") == MemoryValue("two", 2)
        assert await memory.write("notes", None) == 3
        assert await memory.read("notes") == MemoryValue(None, 3)
        assert await memory.compare_and_set("habits", "first", version=1) is None
        assert await memory.compare_and_set("habits", "first", version=0) == 1

    drive(story())


def test_d28_what_a_resource_refuses_changes_nothing() -> None:
    """D28: too large by one byte, read-only, undeclared, no JSON, no version; the value stays as it was."""
    store = MemoryStore()
    memory = handle(store)
    drive(memory.write("stock", "x" * 62))
    for problem, refused in {
        "too_large": lambda: memory.write("stock", "x" * 63),
        "read_only": lambda: memory.write("rates", 1),
        "undeclared": lambda: memory.read("other"),
    }.items():
        with pytest.raises(MemoryRefused) as caught:
            drive(refused())
        assert caught.value.problem == problem
    with pytest.raises(MemoryRefused):
        drive(memory.read(["stock"]))  # type: ignore[arg-type]
    with pytest.raises(InvalidValue):
        drive(memory.write("stock", float("nan")))
    for version in (-1, True, "1"):
        with pytest.raises(InvalidOption, match="version"):
            drive(memory.compare_and_set("stock", 1, version=version))  # type: ignore[arg-type]
    assert drive(memory.read("stock")) == MemoryValue("x" * 62, 1)
    assert drive(store.totals()).conversations == 1


def test_d07_a_full_store_refuses_a_write_and_keeps_the_value() -> None:
    """D7: every version stays, within the store's bounds; the one that finds no room changes nothing."""
    store = JournalStore(MemoryJournal(StoreBounds(max_bytes=200)), namespace="t")
    memory = handle(store)
    drive(memory.write("notes", "x" * 40))
    drive(memory.write("notes", "y" * 40))
    with pytest.raises(DecisionHistoryStoreFull):
        drive(memory.write("notes", "z" * 40))
    held = drive(memory.read("notes"))
    assert held == MemoryValue("y" * 40, 2)


def test_b11_a_plain_function_uses_the_blocking_handle() -> None:
    """B11: the same names and results without a loop."""

    @capability(memory=[NOTES])
    def note(text: str, memory: sync.Memory) -> list[Any]:
        held = memory.read("notes")
        memory.write("notes", text)
        return [held.version, memory.compare_and_set("notes", text, version=1), memory.read("notes").value]

    class Provider:
        def decide(self, request: Any) -> Any:
            return finish() if request.observations else calls(call("note", text="t"))

    declared = Program(name="clerk", instructions="", capabilities=[note], memory=[NOTES])
    with sync.MemoryStore() as store:
        outcome = sync.Runtime(declared, Provider(), memory=store).run("go")
    assert outcome.observations[0].value == [0, 2, "t"]


# --- many at once ----------------------------------------------------------------------------------------------------

ROUNDS = budget(25, 400)


def count_up(memory: Any, times: int, *, safely: bool) -> None:
    """Add to a counter so many times, by compare-and-set or by the unprotected pair that loses updates."""
    for _ in range(times):
        while True:
            held = drive(memory.read("notes"))
            value = (held.value or 0) + 1
            if not safely:
                drive(memory.write("notes", value))
                break
            if drive(memory.compare_and_set("notes", value, version=held.version)) is not None:
                break


def counted(kind: str, folder: Any, *, safely: bool) -> int:
    """Return what eight threads count to."""
    store = JournalStore(open_journal(kind, folder), namespace="t")
    errors: list[BaseException] = []
    start = threading.Barrier(8)

    def one() -> None:
        start.wait()
        try:
            count_up(handle(JournalStore(store.journal, namespace="t")), ROUNDS, safely=safely)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [error for error in errors if not isinstance(error, DecisionHistoryBusy)] == []
    return int(drive(handle(store).read("notes")).value)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_d28_no_update_is_lost_among_many_writers(kind: str, tmp_path: Any) -> None:
    """D28: of those that follow one version exactly one is accepted, equal values too."""
    assert counted(kind, tmp_path, safely=True) == 8 * ROUNDS


def test_d28_control_an_unprotected_pair_loses_updates(tmp_path: Any) -> None:
    """A count that always comes out would prove nothing: reading and then writing loses some."""
    assert any(counted("SQLite", tmp_path / str(number), safely=False) < 8 * ROUNDS for number in made(tmp_path, 20))


def made(folder: Any, count: int) -> Any:
    for number in range(count):
        (folder / str(number)).mkdir(mode=0o700)
        yield number


def test_d28_equal_values_do_not_pass_for_one_another() -> None:
    """Two workers that take a lock with the same value: one of them is told that it did not."""
    store = MemoryStore()

    async def both() -> list[int | None]:
        taken = [handle(store).compare_and_set("notes", {"locked": True}, version=0) for _ in range(2)]
        return list(await asyncio.gather(*taken))

    assert asyncio.run(both()) == [1, None]


def test_i37_memory_shows_nothing_of_what_it_holds() -> None:
    """I-37: neither a value's repr nor a refusal says what was stored."""
    memory = handle(MemoryStore())
    drive(memory.write("stock", "CANARY"))
    with pytest.raises(MemoryRefused) as caught:
        drive(memory.write("stock", "CANARY" * 20))
    assert "CANARY" not in repr((drive(memory.read("stock")), memory, caught.value, vars(caught.value)))
