"""An object of one colour where the other is needed says so, and what to write instead (SPEC B11)."""

# ruff: noqa: PT012 - what fails here is a turn, which is a block

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.stores.labs import said

import minutebook
import minutebook.sync
from minutebook import BlockingMismatch, InvalidValue, PairingViolation
from minutebook.testing import ScriptedProvider

CALLING = said("", "c1")

MADE: dict[str, Callable[[Any], Any]] = {
    "store": lambda faces: faces.MemoryStore(),
    "turn": lambda faces: faces.Conversation(faces.MemoryStore(), "c", format="openai-chat").turn("q"),
    "provider": lambda faces: faces.OpenAIDecisionProvider(model="m", api_key="k"),
}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_b11_an_asynchronous_object_in_a_plain_with_says_what_to_write(made: Callable[[Any], Any]) -> None:
    """B11: a typed error with the way out, before anything is reserved or read."""
    with pytest.raises(BlockingMismatch, match=r"`async with`.*minutebook\.sync"), made(minutebook):
        pass


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_b11_a_blocking_object_in_an_async_with_says_what_to_write(made: Callable[[Any], Any]) -> None:
    """B11: the other way round."""

    async def body() -> None:
        with pytest.raises(BlockingMismatch, match="plain `with`"):
            async with made(minutebook.sync):
                pass

    asyncio.run(body())


def test_b11_a_missing_await_is_named_where_it_shows() -> None:
    """B11, C1: a coroutine as a result, a message or a response; nothing is recorded."""

    async def waits() -> str:
        return "done"

    given = [waits() for _ in range(3)]

    async def body() -> None:
        async with minutebook.MemoryStore() as store:
            talk = minutebook.Conversation(store, "c", format="openai-chat")
            with pytest.raises(InvalidValue, match="await"):
                talk.turn(given[0])
            with pytest.raises(PairingViolation, match="`await`"):
                async with talk.turn("q") as turn:
                    (call,) = await turn.respond(CALLING)
                    with pytest.raises(InvalidValue, match="await"):
                        await turn.result(call, given[1])
                    with pytest.raises(InvalidValue, match="await"):
                        await turn.respond(given[2])
                    turn.result(call, "done").close()  # not awaited, so nothing was recorded
            assert len(await talk.window()) == 0
        for coroutine in given:
            coroutine.close()

    asyncio.run(body())


def test_b11_a_strict_checker_refuses_the_wrong_colour(tmp_path: Path) -> None:
    """B11: the words for people who run the line take nothing from those who check it first."""
    file = tmp_path / "uses.py"
    file.write_text(
        "import minutebook\n"
        "import minutebook.sync\n"
        "with minutebook.MemoryStore() as one:\n    pass\n"
        "async def body() -> None:\n    async with minutebook.sync.MemoryStore() as two:\n        pass\n"
    )
    checking = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), str(file)]
    told = subprocess.run(checking, capture_output=True, text=True, timeout=120).stdout
    assert f"{file}:3: error:" in told, told
    assert f"{file}:6: error:" in told, told


# --- coroutine functions in minutebook.sync ---


async def waits(order: str) -> str:
    """Look an order up, and really wait for something."""
    await asyncio.sleep(0.001)
    return order


async def summarises(**_: Any) -> str:
    return "never asked"


async def responds(_: Any) -> str:
    return await waits("so")


class Called:
    """An object that is called like a coroutine function."""

    async def __call__(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("never called")


def delegating() -> Any:
    below = minutebook.Program(name="below", instructions="i", capabilities=[minutebook.capability(waits)])
    return minutebook.Program(name="above", instructions="i", capabilities=[minutebook.delegate(below)])


class Decides:
    """A provider of the host's that proposes one call."""

    def __init__(self, capability: str) -> None:
        self.capability = capability
        self.requests: list[Any] = []

    def decide(self, request: Any) -> minutebook.Decision:
        self.requests.append(request)
        call = minutebook.ProposedCall(capability=self.capability, arguments={"order": "7"})
        return minutebook.Decision(calls=(call,))


def program(function: Any) -> Any:
    return minutebook.Program(name="p", instructions="i", capabilities=[minutebook.capability(function)])


def talk_with(function: Any) -> Any:
    sync = minutebook.sync
    return sync.Conversation(sync.MemoryStore(), "c", format="openai-chat", summarize=function)


def policy(**functions: Any) -> Any:
    return minutebook.sync.HistoryConfig(store=minutebook.sync.MemoryStore(), **functions)


WAITING: dict[str, Callable[[], Any]] = {
    "tool": lambda: minutebook.sync.Agent(name="A", goal="g", api_key="k", tools=[waits]),
    "decorated tool": lambda: minutebook.sync.Agent(
        name="A", goal="g", api_key="k", tools=[minutebook.capability(waits)]
    ),
    "capability": lambda: minutebook.sync.Runtime(program(waits), Decides("waits")),
    "capability of an agent below": lambda: minutebook.sync.Runtime(delegating(), Decides("below")),
    "provider": lambda: minutebook.sync.Runtime(program(plain), type("P", (), {"decide": waits})()),
    "transform_entry": lambda: policy(transform_entry=responds),
    "derive_llm_context": lambda: policy(derive_llm_context=Called()),
    "summarize of a conversation": lambda: talk_with(summarises),
    "summarize of options": lambda: minutebook.sync.HistoryOptions(summarize=summarises),
    "summarize of the other colour's options": lambda: minutebook.sync.OpenAIDecisionProvider(
        model="m", api_key="k", history=minutebook.HistoryOptions(summarize=summarises)
    ),
}


def plain(order: str) -> str:
    """Look an order up."""
    return order


@pytest.mark.parametrize("made", WAITING.values(), ids=WAITING)
def test_b11_a_coroutine_function_in_a_blocking_object_is_refused_where_it_is_given(made: Callable[[], Any]) -> None:
    """B11: nothing runs what it waits for, so it is refused before it can do anything."""
    with pytest.raises(BlockingMismatch, match=r"async def.*plain function"):
        made()


def test_b11_plain_functions_are_taken_in_all_these_places() -> None:
    """B11: the control: what is refused above is the coroutine function, and nothing else of the call."""
    minutebook.sync.Agent(name="A", goal="g", api_key="k", tools=[plain])
    minutebook.sync.Runtime(program(plain), Decides("plain"))
    minutebook.sync.Engine(history=policy(), respond=lambda _: "so")
    talk_with(lambda **_: "summary")
    minutebook.sync.HistoryOptions(summarize=lambda **_: "summary")


def hidden(order: str) -> Any:
    """Return what waits for an event loop, from a function that does not look like it."""
    return waits(order)


def test_b11_a_call_that_finds_no_event_loop_is_told_to_the_developer_and_not_to_the_model() -> None:
    """B11: a fault of the program goes up; the model is not asked again as if its call had failed."""
    deciding = Decides("hidden")
    with pytest.raises(BlockingMismatch, match="event loop"):
        minutebook.sync.Runtime(program(hidden), deciding).run("task")
    assert len(deciding.requests) == 1


def test_b11_o19_a_summary_that_finds_no_event_loop_is_told_to_the_developer() -> None:
    """B11: `summarize` returned a coroutine; nothing is recorded as if it had raised."""
    store = minutebook.sync.MemoryStore()
    talk = minutebook.sync.Conversation(
        store,
        "c",
        format="openai-chat",
        limits=minutebook.WindowLimits(max_messages=3, max_bytes=65_536),
        summarize=lambda **_: waits("x"),  # type: ignore[arg-type]
    )
    for number in range(2):
        talk.append([{"role": "user", "content": f"q{number}"}, {"role": "assistant", "content": "a"}])
    with pytest.raises(BlockingMismatch, match="event loop"), talk.turn("next") as turn:
        turn.window()


def test_b11_an_engines_answer_that_finds_no_event_loop_is_named() -> None:
    """B11: a bare RuntimeError says nothing of what to write instead."""
    engine = minutebook.sync.Engine(history=policy(), respond=responds)  # type: ignore[arg-type]
    with pytest.raises(BlockingMismatch, match="plain functions"):
        engine.turn("s", "why")
    assert engine.get_llm_context("s") == []


def test_b11_other_errors_of_a_capability_are_observations_as_before() -> None:
    """B11: the control: a RuntimeError of another kind is the model's to react to."""

    def broken(order: str) -> str:
        raise RuntimeError("no running water")

    deciding = Decides("broken")
    with pytest.raises(IndexError):
        minutebook.sync.Runtime(program(broken), _Twice(deciding)).run("task")
    (seen,) = deciding.requests[1].observations
    assert seen.error is True


class _Twice:
    """Ask `provider` twice, and end the run with an error of its own."""

    def __init__(self, provider: Decides) -> None:
        self.provider = provider

    def decide(self, request: Any) -> minutebook.Decision:
        decision = self.provider.decide(request)
        if len(self.provider.requests) > 1:
            raise IndexError
        return decision


# --- stores of the other colour ---

API = {"model": "m", "api_key": "k"}
PROVIDERS = ["OpenAIDecisionProvider", "OpenAIChatDecisionProvider", "AnthropicDecisionProvider"]
PROVIDERS += ["GeminiDecisionProvider"]


def provider_over(name: str) -> Callable[[Any, Any, Any], Any]:
    return lambda ours, other, store: getattr(ours, name)(
        **API, max_output_tokens=64, history=other.HistoryOptions(store=store)
    )


def runtime_over(option: str) -> Callable[[Any, Any, Any], Any]:
    def made(ours: Any, _: Any, store: Any) -> Any:
        deciding = Decides("plain") if ours is minutebook.sync else ScriptedProvider([])
        return ours.Runtime(program(plain), deciding, **{option: store})

    return made


STORED: dict[str, Callable[[Any, Any, Any], Any]] = {
    **{name: provider_over(name) for name in PROVIDERS},
    "Engine": lambda ours, other, store: ours.Engine(
        history=other.HistoryConfig(store=store), respond=lambda _: "never asked"
    ),
    "HistoryManager": lambda ours, other, store: ours.HistoryManager(other.HistoryConfig(store=store)),
    "create_history_manager": lambda ours, other, store: ours.create_history_manager(other.HistoryConfig(store=store)),
    "HistoryConfig": lambda ours, _, store: ours.HistoryConfig(store=store),
    "Conversation": lambda ours, _, store: ours.Conversation(store, "c", format="openai-chat"),
    "Agent": lambda ours, _, store: ours.Agent(name="A", goal="g", api_key="k", store=store, conversation="c"),
    "Runtime(checkpoints=)": runtime_over("checkpoints"),
    "Runtime(memory=)": runtime_over("memory"),
}
"""What takes a store, with the options of the store's own colour where it comes in options."""


@pytest.mark.parametrize("made", STORED.values(), ids=STORED)
@pytest.mark.parametrize("kind", ["ram", "file"])
def test_b11_o38_a_blocking_store_in_an_asynchronous_object_is_refused(
    made: Callable[[Any, Any, Any], Any], kind: str, tmp_path: Path
) -> None:
    """B11, case O-38: it would stop the event loop; refused where it is given, and nothing is read or written."""
    tmp_path.chmod(0o700)
    sync = minutebook.sync
    opened: Any = sync.MemoryStore() if kind == "ram" else sync.SQLiteStore(tmp_path / "h.sqlite", namespace="n")
    with opened as store, pytest.raises(BlockingMismatch, match=r"minutebook\.sync"):
        made(minutebook, sync, store)


@pytest.mark.parametrize("made", STORED.values(), ids=STORED)
def test_b11_an_asynchronous_store_in_a_blocking_object_is_refused(
    made: Callable[[Any, Any, Any], Any], tmp_path: Path
) -> None:
    """B11: the other way round it said that there is no running event loop, once it was used."""
    tmp_path.chmod(0o700)

    async def body() -> None:
        async with minutebook.SQLiteStore(tmp_path / "h.sqlite", namespace="n") as store:
            with pytest.raises(BlockingMismatch, match=r"minutebook\.sync"):
                made(minutebook.sync, minutebook, store)

    asyncio.run(body())


@pytest.mark.parametrize("made", STORED.values(), ids=STORED)
def test_b11_a_store_of_the_objects_own_colour_is_taken_everywhere(
    made: Callable[[Any, Any, Any], Any], tmp_path: Path
) -> None:
    """B11: the control, each way round."""
    tmp_path.chmod(0o700)
    with minutebook.sync.SQLiteStore(tmp_path / "h.sqlite", namespace="n") as store:
        made(minutebook.sync, minutebook.sync, store)
        made(minutebook.sync, minutebook.sync, store.within("n"))

    async def body() -> None:
        async with minutebook.SQLiteStore(tmp_path / "h.sqlite", namespace="n") as store:
            made(minutebook, minutebook, store)

    asyncio.run(body())


def test_b11_d24_a_hosts_store_that_finds_no_event_loop_is_named() -> None:
    """B11, D24: its `transact` is `async def` in both colours, so only the first call can tell."""

    class Waits:
        async def transact(self, key: Any, operation: Any) -> Any:
            await asyncio.sleep(1)

    store = minutebook.sync.HostStore(Waits(), namespace="n")
    with pytest.raises(BlockingMismatch, match="event loop"):
        minutebook.sync.Conversation(store, "x", format="openai-chat").append([{"role": "user", "content": "q"}])
    with pytest.raises(BlockingMismatch):
        minutebook.Engine(history=minutebook.sync.HistoryConfig(store=store), respond=lambda _: "never asked")


class HostsOwn(minutebook.MemoryStore):
    """A host's own kind of our store."""


@pytest.mark.parametrize("store", [minutebook.MemoryStore(), HostsOwn()])
def test_d21_a_store_of_the_other_colour_is_named_as_its_host_imports_it(store: Any) -> None:
    """D21: ours by the name of the package, a class of the host's by its own module."""
    with pytest.raises(BlockingMismatch) as refused:
        minutebook.sync.Conversation(store, "c", format="openai-chat")
    name = "minutebook.MemoryStore" if type(store) is minutebook.MemoryStore else f"{__name__}.HostsOwn"
    assert str(refused.value) == f"minutebook.sync takes a store of minutebook.sync, not {name}"
