"""`minutebook.sync` against `minutebook`: the same names and arguments, results, errors and bytes (SPEC B11)."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.stores.labs import said

import minutebook
import minutebook.sync
from minutebook import BlockingMismatch, MinutebookError, WindowLimits, conversation, decisions, engine, programs
from minutebook.model.entries import Draft, Kind
from minutebook.model.pause import drive, pause
from minutebook.model.record import Extension, Header, Receipt, Record
from minutebook.ports import Listing
from minutebook.stores import opening
from minutebook.stores.journal import JournalStore
from minutebook.sync.driving import iterate
from minutebook.testing import FrozenClock

PAIRS = [
    (JournalStore, minutebook.sync.JournalStore),
    (opening.MemoryStore, minutebook.sync.MemoryStore),
    (opening.SQLiteStore, minutebook.sync.SQLiteStore),
    (opening.HostStore, minutebook.sync.HostStore),
    (conversation.Conversation, minutebook.sync.Conversation),
    (conversation.Turn, minutebook.sync.Turn),
    (decisions.OpenAIDecisionProvider, minutebook.sync.OpenAIDecisionProvider),
    (decisions.OpenAIChatDecisionProvider, minutebook.sync.OpenAIChatDecisionProvider),
    (decisions.AnthropicDecisionProvider, minutebook.sync.AnthropicDecisionProvider),
    (decisions.GeminiDecisionProvider, minutebook.sync.GeminiDecisionProvider),
    (programs.Runtime, minutebook.sync.Runtime),
    (minutebook.Agent, minutebook.sync.Agent),
    (minutebook.Memory, minutebook.sync.Memory),
    (engine.HistoryManager, minutebook.sync.HistoryManager),
    (engine.Engine, minutebook.sync.Engine),
    (engine.EngineTurn, minutebook.sync.EngineTurn),
]
MADE_BY_OTHERS = {minutebook.sync.JournalStore, minutebook.sync.Turn, minutebook.sync.EngineTurn}
"""Classes that no caller constructs: their arguments differ, since they wrap what the other one is."""

CORE_ATTRIBUTES = {"history", "journal", "tails", "tokens"}
"""Attributes of the asynchronous objects that belong to the core, not to callers."""

SET_BY_INSTANCES = {minutebook.sync.Turn: {"receipt"}}
"""A property there, where the asynchronous object sets an attribute of itself."""

DRIVEN = {
    "AsyncIterator": "Iterator",
    "Awaitable[tuple[Record | None, Result]]": "tuple[Record | None, Result]",
    "Awaitable[HistoryEntry[Meta]]": "HistoryEntry[Meta]",
    "Report | None": "Callable[[Observation], None] | None",
}
"""What the annotations of a driven method say instead."""


def ids(pair: object) -> str:
    return getattr(pair, "__name__", str(pair))


def public(kind: type) -> set[str]:
    return (
        {name for name in dir(kind) if not name.startswith("_")} - CORE_ATTRIBUTES - SET_BY_INSTANCES.get(kind, set())
    )


def parameters(function: Any) -> list[tuple[str, object, object, str]]:
    """Name, kind, default and annotation of each, as a caller of either colour would read them."""

    def told(annotation: object) -> str:
        text = str(annotation).replace("asynchronous.", "").replace("engine.", "")
        for asynchronous, blocking in DRIVEN.items():
            text = text.replace(asynchronous, blocking)
        return text

    signature = inspect.signature(function)
    return [(each.name, each.kind, each.default, told(each.annotation)) for each in signature.parameters.values()]


@pytest.mark.parametrize(("asynchronous", "blocking"), PAIRS, ids=ids)
def test_b11_the_classes_have_the_same_public_names(asynchronous: type, blocking: type) -> None:
    """A method added to one must be added to the other."""
    assert public(blocking) == public(asynchronous)


@pytest.mark.parametrize(("asynchronous", "blocking"), PAIRS, ids=ids)
def test_b11_the_methods_have_the_same_arguments(asynchronous: type, blocking: type) -> None:
    """Names, kinds, defaults and types; and each public method says what it does."""
    names = public(asynchronous) | (set() if blocking in MADE_BY_OTHERS else {"__init__"})
    for name in names:
        theirs, ours = getattr(asynchronous, name), getattr(blocking, name)
        assert isinstance(theirs, property) == isinstance(ours, property), name
        assert ours.__doc__ or name == "__init__", name
        if not isinstance(theirs, property):
            assert parameters(ours) == parameters(theirs), name
            assert not inspect.iscoroutinefunction(ours), name
            assert not inspect.isasyncgenfunction(ours), name


@pytest.mark.parametrize(
    "name",
    [
        "create_sqlite_decision_history_store",
        "open_store",
        "create_in_memory_store",
        "create_history_manager",
    ],
)
def test_b11_the_functions_have_the_same_arguments(name: str) -> None:
    """And the same defaults."""
    assert parameters(getattr(minutebook.sync, name)) == parameters(getattr(minutebook, name))


OPTIONS = [
    (minutebook.HistoryOptions, minutebook.sync.HistoryOptions),
    (minutebook.HistoryConfig, minutebook.sync.HistoryConfig),
]


@pytest.mark.parametrize(("asynchronous", "blocking"), OPTIONS, ids=ids)
def test_b11_e1_options_are_classes_with_the_same_fields(asynchronous: Any, blocking: Any) -> None:
    """In both colours: to ask what a value is, to be made again with a change, and generic where the other one is."""
    assert blocking.__struct_fields__ == asynchronous.__struct_fields__
    assert blocking.__struct_defaults__ == asynchronous.__struct_defaults__
    assert public(blocking) == public(asynchronous)
    assert inspect.signature(blocking).parameters.keys() == inspect.signature(asynchronous).parameters.keys()
    with minutebook.sync.MemoryStore() as store:
        made = blocking(store=store)
        assert isinstance(made, blocking)
        assert isinstance(made, asynchronous)
        assert not isinstance(asynchronous(store=minutebook.MemoryStore()), blocking)
        assert made.store is msgspec.structs.replace(made, store=made.store).store is store


def test_b11_e1_a_config_takes_the_type_of_its_metadata() -> None:
    """As an annotation and in the call that makes it, in both colours."""
    for module in (minutebook, minutebook.sync):
        config = module.HistoryConfig[None](store=module.create_in_memory_store(), max_entries=2)
        assert (type(config), config.max_entries) == (module.HistoryConfig, 2)


@pytest.mark.parametrize("module", [minutebook, minutebook.sync], ids=ids)
def test_b11_e2_what_is_no_store_or_policy_is_refused_by_the_option_in_both_colours(module: Any) -> None:
    """With what to give in its place where that is known."""
    wrong: list[tuple[str, Callable[[], Any]]] = [
        ("store", lambda: module.HistoryConfig(store=None)),
        ("store", lambda: module.HistoryConfig(store={})),
        ("config", lambda: module.create_history_manager(None)),
        ("config", lambda: module.create_history_manager(module.create_in_memory_store())),
        ("config", lambda: module.HistoryManager(module.HistoryOptions())),
        ("history", lambda: module.Engine(history=None, respond=lambda turn: "never asked")),
        (
            "store",
            lambda: module.OpenAIDecisionProvider(model="m", api_key="k", history=module.HistoryOptions(store=5)),
        ),
        ("store", lambda: module.Agent(name="A", goal="g", api_key="k", store=5)),
    ]
    for option, made in wrong:
        with pytest.raises(minutebook.InvalidOption) as caught:
            made()
        assert caught.value.option == option
    with pytest.raises(minutebook.InvalidOption, match=r"give create_in_memory_store\(\)"):
        module.HistoryConfig(store=None)
    with pytest.raises(TypeError, match="store"):
        module.HistoryConfig()


def test_b11_instances_show_the_same_attributes() -> None:
    """What a conversation and a turn carry beside their methods."""
    ours = minutebook.sync.Conversation(minutebook.sync.MemoryStore(), "x", format="openai-chat")
    theirs = minutebook.Conversation(minutebook.MemoryStore(), "x", format="openai-chat")
    for mine, other in ((ours, theirs), (ours.turn("x"), theirs.turn("x"))):
        named = {name for name in vars(other) if not name.startswith("_")} - CORE_ATTRIBUTES
        assert all(hasattr(type(mine), name) or name in vars(mine) for name in named)


def test_b11_a_strict_checker_finds_every_method_on_its_class(tmp_path: Path) -> None:
    """mypy looks at each bound method as a caller writes it; of a name that is not there it says so."""
    lines = ["from minutebook import sync"]
    for _, blocking in PAIRS:
        kind = f"sync.{blocking.__name__}{'[str]' if getattr(blocking, '__parameters__', ()) else ''}"
        lines += [f"def use_{blocking.__name__}(x: {kind}) -> None:", *(f"    x.{name}" for name in public(blocking))]
    file = tmp_path / "uses.py"
    file.write_text("\n".join([*lines, "    x.no_such_name"]))
    checking = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), str(file)]
    told = subprocess.run(checking, capture_output=True, text=True, timeout=120).stdout
    errors = [line for line in told.splitlines() if ": error: " in line]
    assert [line.partition(": error: ")[0] for line in errors] == [f"{file}:{len(lines) + 1}"], told
    assert "no_such_name" in errors[0]


@pytest.mark.parametrize("package", ["minutebook", "minutebook.sync", "minutebook.testing"])
def test_b11_strict_checkers_know_every_name_of_a_package_and_refuse_any_other(package: str, tmp_path: Path) -> None:
    """mypy and pyright alike; a name that is made when it is first used is a name to them, and a slip is none."""
    file = tmp_path / "uses.py"
    named = sorted(importlib.import_module(package).__all__)
    lines = [f"import {package} as package", *(f"from {package} import {name}" for name in named)]
    slips = [f"from {package} import Convresation", "package.no_such_name"]
    file.write_text("\n".join([*lines, *slips]))
    (tmp_path / "pyrightconfig.json").write_text('{"reportUnusedExpression": false}')
    mypy = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(file)]
    pyright = [str(Path(sys.executable).with_name("pyright")), "-p", str(tmp_path), "--pythonpath", sys.executable]
    for checker in (mypy, pyright):
        told = subprocess.run(checker, capture_output=True, text=True, timeout=200).stdout
        errors = [line.partition(f"{file}:")[2] for line in told.splitlines() if "error: " in line]
        assert [int(line.partition(":")[0]) for line in errors] == [len(lines) + 1, len(lines) + 2], told
        assert "Convresation" in errors[0]
        assert "no_such_name" in errors[1]


# --- one scenario, two colours ---------------------------------------------------------------------------------------


class Colour:
    """How one colour runs what a scenario says: a scenario is async, and blocking results are awaited as they are."""

    def __init__(self, faces: Any) -> None:
        self.faces = faces

    async def get(self, result: Any) -> Any:
        """The result of a call of either colour."""
        return await result if inspect.isawaitable(result) else result

    async def all(self, stream: AsyncIterator[Any] | Iterator[Any]) -> list[Any]:
        """What a stream of either colour yields."""
        return [item async for item in stream] if isinstance(stream, AsyncIterator) else list(stream)

    @contextlib.asynccontextmanager
    async def within(self, block: Any) -> AsyncIterator[Any]:
        """A `with` block of either colour."""
        if self.faces is minutebook:
            async with block as entered:
                yield entered
        else:
            with block as entered:
                yield entered


Scenario = Callable[[Colour, Any, Any], Any]


async def settle(colour: Colour, store: Any, told: Any) -> list[Any]:
    async with colour.within(told.turn("one")) as turn:
        window = await colour.get(turn.window())
        calls = await colour.get(turn.respond(said("", "a", "b")))
        for call in calls:
            await colour.get(turn.result(call, {"n": 1}))
        await colour.get(turn.say("more"))
        await colour.get(turn.respond(said("done")))
        sent = turn.sent
    return [window.json, calls, sent, turn.receipt, (await colour.get(told.window())).messages]


async def fail_and_retry(colour: Colour, store: Any, told: Any) -> list[Any]:
    with contextlib.suppress(OSError):
        async with colour.within(told.turn("one")) as turn:
            await colour.get(turn.respond(said("", "a")))
            raise OSError
    async with colour.within(told.turn("one", id="t")) as turn:
        await colour.get(turn.respond(said("done")))
    return [turn.receipt]


async def park(colour: Colour, store: Any, told: Any) -> list[Any]:
    async with colour.within(told.turn("one")) as turn:
        (call,) = await colour.get(turn.respond(said("", "a")))
        await colour.get(turn.park(call))
    waiting = await colour.get(told.open_calls())
    return [waiting, await colour.get(told.complete(waiting[0], "late")), await colour.get(told.open_calls())]


async def read(colour: Colour, store: Any, told: Any) -> list[Any]:
    messages = [m for n in range(5) for m in ({"role": "user", "content": str(n)}, said("so")["choices"][0]["message"])]
    receipt = await colour.get(told.append(messages, id="whole"))
    again = await colour.get(told.append(messages, id="whole"))
    more = await colour.get(told.append([*messages, {"role": "user", "content": "x"}], whole=True))
    return [
        receipt,
        again,
        more,
        await colour.all(told.entries()),
        await colour.all(told.exchanges(after=2)),
        await colour.get(told.last(2)),
        await colour.get(told.page(after=0, limit=2)),
        (await colour.get(told.window(WindowLimits(max_messages=3)))).json,
    ]


async def look_at_the_store(colour: Colour, store: Any, told: Any) -> list[Any]:
    await settle(colour, store, told)
    return [
        store.namespace,
        store.within("n").namespace,
        await colour.get(store.read(told.key)),
        await colour.all(store.receipts(told.key)),
        await colour.get(store.header(told.key)),
        await colour.get(store.list()),
        await colour.get(store.totals()),
        await colour.get(store.verify(told.key)),
        await colour.get(store.delete(told.key)),
        await colour.get(store.read(told.key)),
    ]


async def transact(colour: Colour, store: Any, told: Any) -> list[Any]:
    draft = Draft(kind=Kind.INPUT, payload=b"{}", messages=1, size=2, stop=2)

    def add(record: Any) -> tuple[Any, str]:
        return record.adding(draft), "result"

    async def add_later(record: Any) -> tuple[Any, str]:
        return add(record)

    await colour.get(told.append([{"role": "user", "content": "x"}]))
    return [await colour.get(store.transact(told.key, add if colour.faces is minutebook.sync else add_later))]


async def meet_a_holder(colour: Colour, store: Any, told: Any) -> list[Any]:
    async with colour.within(told.turn("one")) as turn:
        await colour.get(told.append([{"role": "user", "content": "y"}]))
        await colour.get(turn.respond(said("never")))
    return []


async def lose_the_conversation(colour: Colour, store: Any, told: Any) -> list[Any]:
    async with colour.within(told.turn("one")) as turn:
        await colour.get(store.recover(told.key, worker_stopped=True))
        await colour.get(turn.respond(said("late", "a")))
    return []


async def end_without_an_answer(colour: Colour, store: Any, told: Any) -> list[Any]:
    async with colour.within(told.turn("one")):
        pass
    return []


async def exceed_the_window(colour: Colour, store: Any, told: Any) -> list[Any]:
    async with colour.within(told.turn("x" * 100)) as turn:
        await colour.get(turn.window(WindowLimits(max_bytes=50)))
    return []


async def answer_nothing(colour: Colour, store: Any, told: Any) -> list[Any]:
    async with colour.within(told.turn("one")) as turn:
        (call,) = await colour.get(turn.respond(said("", "a")))
        await colour.get(turn.result(call, "ok"))
        await colour.get(turn.result(call, "again"))
    return []


async def recover_nothing(colour: Colour, store: Any, told: Any) -> list[Any]:
    await colour.get(told.append([{"role": "user", "content": "x"}]))
    await colour.get(store.recover(told.key, worker_stopped=True))
    return []


async def use_a_closed_store(colour: Colour, store: Any, told: Any) -> list[Any]:
    await colour.get(store.close())
    await colour.get(told.append([{"role": "user", "content": "x"}]))
    return []


async def send_no_message(colour: Colour, store: Any, told: Any) -> list[Any]:
    await colour.get(told.append([{"role": "nobody"}]))
    return []


SCENARIOS: list[Scenario] = [
    settle, fail_and_retry, park, read, look_at_the_store, transact, meet_a_holder, lose_the_conversation,
    end_without_an_answer, exceed_the_window, answer_nothing, recover_nothing, use_a_closed_store, send_no_message,
]  # fmt: skip
REFUSED = {
    "meet_a_holder", "lose_the_conversation", "exceed_the_window", "answer_nothing", "recover_nothing",
    "end_without_an_answer",
}  # fmt: skip


async def run(faces: Any, scenario: Scenario, open_: Callable[[Any], Any]) -> tuple[Any, Any, Any]:
    """What a scenario returned or raised, and the whole record that it left."""
    colour = Colour(faces)
    store = open_(faces)
    store_of = getattr(store, "_core", store)
    counted = iter(range(10**6))
    type(store_of).fresh_id, before = (lambda self: f"id-{next(counted)}"), type(store_of).fresh_id
    told = faces.Conversation(store, "x", format="openai-chat")
    try:
        try:
            outcome: Any = [_detached(value) for value in await scenario(colour, store, told)]
        except MinutebookError as error:
            outcome = (type(error), str(error), {k: v for k, v in error.facts.items() if k != "since_ms"})
        record = await left_behind(store_of, told)
        await colour.get(store.close())
        return outcome, record, scenario.__name__
    finally:
        type(store_of).fresh_id = before  # type: ignore[method-assign]


def _detached(value: Any) -> Any:
    if isinstance(value, Record | Extension | Listing):
        return msgspec.structs.replace(value, header=_detached(value.header))
    return tuple(map(_detached, value)) if isinstance(value, tuple) else _without_token(value)


def _without_token(value: Any) -> Any:
    """Tokens are random, a birth is made of the first one; a recovery's receipt is named after the one it ended."""
    if isinstance(value, Receipt) and value.idempotency.startswith("recover-"):
        return msgspec.structs.replace(value, idempotency="recover")
    if isinstance(value, Header):
        assert len(value.birth) == 8
        return msgspec.structs.replace(value, token="", birth=b"")
    return value


async def left_behind(store: Any, told: Any) -> Any:
    try:
        header = await store.header(told.key)
    except minutebook.StoreClosed:
        return None
    if header is None:
        return None
    entries = [entry async for entry in store.entries(told.key)]
    receipts = [_without_token(receipt) async for receipt in store.receipts(told.key)]
    return _without_token(header), entries, receipts


def opened(kind: str, folder: Path) -> Callable[[Any], Any]:
    def open_(faces: Any) -> Any:
        clock = FrozenClock()
        if kind == "memory":
            return faces.MemoryStore("n", clock=clock)
        return faces.SQLiteStore(folder / f"{faces.__name__}.sqlite", namespace="n", clock=clock)

    return open_


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=ids)
def test_b11_both_colours_tell_the_same_story(scenario: Scenario, kind: str, tmp_path: Path) -> None:
    """Equal results, the same errors, and records that are equal to the byte, receipts and digests included."""
    tmp_path.chmod(0o700)
    open_ = opened(kind, tmp_path)
    asynchronous = asyncio.run(run(minutebook, scenario, open_))
    blocking = asyncio.run(run(minutebook.sync, scenario, open_))
    assert blocking == asynchronous
    if scenario.__name__ in REFUSED:
        assert isinstance(blocking[0], tuple), "the scenario is one that is refused"


# --- driving ---------------------------------------------------------------------------------------------------------


class Suspending:
    """An awaitable that waits for somebody: it gives its driver what it waits for."""

    def __await__(self) -> Iterator[object]:
        yield self


def test_b11_what_suspends_is_closed_and_named() -> None:
    """The coroutine is not left half way, and the error says what to give instead."""
    closed: list[bool] = []

    async def waits() -> None:
        try:
            await Suspending()  # type: ignore[misc]
        finally:
            closed.append(True)

    with pytest.raises(BlockingMismatch, match=r"minutebook\.sync"):
        drive(waits())
    assert closed == [True]


def test_b11_a_pause_is_gone_through() -> None:
    """Case O-38: the core pauses in long reads for the sake of a loop; without one it goes on at once."""

    async def pauses() -> int:
        for _ in range(3):
            await pause()
        return 3

    assert drive(pauses()) == 3


def test_b11_a_generator_that_is_closed_closes_the_async_one() -> None:
    """Also when it is dropped half way; what the stream raises comes out of the loop over it."""
    closed: list[str] = []

    async def stream() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
            raise OSError
        finally:
            closed.append("closed")

    first = iterate(stream())
    assert next(first) == 1
    first.close()
    with pytest.raises(OSError):  # noqa: PT011 - its type is all it has
        list(iterate(stream()))
    assert closed == ["closed"] * 2


def test_b11_stores_of_the_wrong_colour_are_named() -> None:
    """Each way round, when the conversation is made and before anything is written."""
    with pytest.raises(BlockingMismatch):
        minutebook.sync.Conversation(minutebook.MemoryStore(), "x", format="openai-chat")  # type: ignore[arg-type]
    with pytest.raises(BlockingMismatch):
        minutebook.Conversation(minutebook.sync.MemoryStore(), "x", format="openai-chat")  # type: ignore[arg-type]
    with pytest.raises(BlockingMismatch):
        minutebook.sync.HistoryOptions(store=minutebook.MemoryStore())  # type: ignore[arg-type]


def test_b11_a_coroutine_in_a_blocking_runtime_is_named() -> None:
    """An asynchronous provider is closed, not left unawaited."""

    class Provider:
        async def decide(self, request: object) -> object:
            raise AssertionError("never begun")

    program = minutebook.Program(name="p", instructions="i", capabilities=[])
    with pytest.raises(BlockingMismatch):
        minutebook.sync.Runtime(program, Provider()).run("task")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_b11_threads_share_a_store(kind: str, tmp_path: Path) -> None:
    """Eight threads, each with its conversations and all with one: nothing lost, nothing twice, only Busy refused."""
    tmp_path.chmod(0o700)
    failed: list[BaseException] = []
    done: list[int] = []
    with opened(kind, tmp_path)(minutebook.sync) as store:

        def work(number: int) -> None:
            try:
                for turn in range(10):
                    for name in (f"own-{number}", "shared"):
                        told = minutebook.sync.Conversation(store, name, format="openai-chat")
                        with contextlib.suppress(minutebook.DecisionHistoryBusy), told.turn(f"{number} {turn}") as held:
                            held.window()
                            held.respond(said("so"))
                            done.append(number)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        listing = store.list()
        assert sum(each.header.state.exchanges for each in listing) == len(done) >= 80
        for each in listing:
            store.verify(each.key)
