"""What callers give to face C is what it says it is: no subclass, no look-alike and no slip of a type passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.stores.labs import said

import minutebook
from minutebook import (
    DecisionHistoryConflict,
    DecisionHistorySummaryInvalid,
    InvalidOption,
    InvalidValue,
    MinutebookError,
    PairingViolation,
)
from minutebook.model.bounds import WindowLimits
from minutebook.sync import Conversation, MemoryStore
from minutebook.testing import ScriptedProvider, drive


class ShortText(str):
    """A text that says that it is one byte long, and not blank."""

    def encode(self, *arguments: Any) -> bytes:
        return b"x"

    def strip(self, *arguments: Any) -> str:
        return "x"


class SmallNumber(int):
    """A number that says that it is above nothing and below everything."""

    def __gt__(self, other: object) -> bool:
        return False

    def __lt__(self, other: object) -> bool:
        return True


class Lawless(WindowLimits, frozen=True):
    """Limits that were never checked."""

    def __post_init__(self) -> None:
        pass


CALLING = said("", "c1")
SAYING = said("Done.")


def talk(name: str = "c", **options: Any) -> Conversation:
    return Conversation(MemoryStore(), name, format="openai-chat", **options)


def test_d18_a_summary_that_lies_about_its_length_is_invalid() -> None:
    """D18: a subclass of str may say of its bytes what it likes; the summary is refused and nothing is changed."""
    told = talk(limits=WindowLimits(max_messages=4), summarize=lambda **_: ShortText("z" * 100_000))
    for number in range(2):
        with told.turn(f"q{number}") as turn:
            turn.respond(SAYING)
    with pytest.raises(DecisionHistorySummaryInvalid) as refused, told.turn("q") as turn:
        turn.window()
    assert refused.value.problem == "not_text"
    assert len(told.last()) == 2


@pytest.mark.parametrize(
    ("option", "call"),
    [
        ("conversation id", lambda told: talk(ShortText("c"))),
        ("turn id", lambda told: told.turn("x", id=ShortText("t"))),
        ("append id", lambda told: told.append([], id=ShortText("t"))),
        ("max_messages", lambda told: told.window(WindowLimits(max_messages=SmallNumber(5)))),
        ("limits", lambda told: told.window(Lawless(max_messages=-1))),
        ("limits", lambda told: talk(limits=Lawless(max_messages=-1))),
        ("max_retained_bytes", lambda told: talk(max_retained_bytes=SmallNumber(5))),
        ("max_summary_bytes", lambda told: talk(summarize=lambda **_: "", max_summary_bytes=SmallNumber(5))),
        ("limit", lambda told: told.page(limit=SmallNumber(5))),
        ("whole", lambda told: told.append([], whole="no")),
        ("whole", lambda told: told.append([], whole=1)),
        ("$", lambda told: told.turn(ShortText("x")).__enter__()),
        ("$[0].content", lambda told: told.append([{"role": "user", "content": ShortText("x")}])),
    ],
)
def test_bad_input_51_no_subclass_and_no_look_alike_passes(option: str, call: Any) -> None:
    """Bad input 51: exact types at every door of a conversation; what was refused left nothing behind."""
    told = talk()
    with pytest.raises(MinutebookError) as refused:
        call(told)
    assert option in (
        refused.value.facts.get("option"),
        refused.value.facts.get("path"),
        str(refused.value)[: len(option)],
    )
    assert told.window().messages == []


@pytest.mark.parametrize("place", ["2", -1, True, 2.0, 2**62 + 1, SmallNumber(2)])
def test_o40_a_place_in_the_record_is_a_number_of_its_own(place: Any) -> None:
    """O-40: what is no place is refused by the option's name, wherever one is given; 0 and one beyond the end are."""
    told = talk()
    with told.turn("q") as turn:
        turn.respond(SAYING)
    for read in (
        lambda at: told.page(before=at),
        lambda at: told.page(after=at),
        lambda at: list(told.entries(after=at)),
        lambda at: list(told.exchanges(after=at)),
        lambda at: list(told.store.entries(told.key, after=at)),
        lambda at: list(told.store.receipts(told.key, after=at)),
    ):
        with pytest.raises(InvalidOption) as refused:
            read(place)
        assert refused.value.option in ("before", "after")
        assert len(read(0)) > 0
        read(2**62)


@pytest.mark.parametrize("given", [ShortText("x"), SmallNumber(5), {"a": SmallNumber(5)}, {ShortText("k"): 1}])
def test_bad_input_51_a_result_is_plain_json(given: object) -> None:
    """Bad input 51, O-30: the path to the value is named, and the call still waits."""
    told = talk()
    with told.turn("q") as turn:
        (call,) = turn.respond(CALLING)
        with pytest.raises(InvalidValue):
            turn.result(call, given)
        with pytest.raises(InvalidOption, match="error is True or False"):
            turn.result(call, "x", error="no")  # type: ignore[arg-type]
        turn.result(call, "x")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"id": "other"}, PairingViolation),
        ({"name": "g"}, PairingViolation),
        ({"custom": True}, PairingViolation),
        ({"position": 1}, PairingViolation),
        ({"position": -1}, PairingViolation),
        ({"exchange": 9}, PairingViolation),
        ({"id": 5}, InvalidOption),
        ({"id": ShortText("c1")}, InvalidOption),
        ({"exchange": "2"}, InvalidOption),
        ({"position": 0.0}, InvalidOption),
        ({"position": False}, InvalidOption),
    ],
)
def test_i22_a_call_made_by_hand_is_the_responses_own_or_is_refused(changes: dict[str, Any], error: type) -> None:
    """I-22: under another id a result would stand in every window beside a call that it does not answer."""
    told = talk()
    with told.turn("q") as turn:
        (call,) = turn.respond(CALLING)
        forged = msgspec.structs.replace(call, **changes)
        with pytest.raises(error):
            turn.result(forged, "x")
        turn.park(call)
    with pytest.raises(error):
        told.complete(forged, "x")
    told.complete(type(call)(**msgspec.structs.asdict(call)), "late")  # as one that was kept elsewhere
    assert [message["role"] for message in told.window()] == ["user", "assistant", "tool"]


def test_c4_export_and_drop_summary_are_refused_in_another_format(tmp_path: Path) -> None:
    """C4: a conversation that was recorded in one format is not exported in another, nor is its summary dropped."""
    tmp_path.chmod(0o700)
    store = MemoryStore()
    with Conversation(store, "c", format="openai-chat").turn("q") as turn:
        turn.respond(SAYING)
    other = Conversation(store, "c", format="anthropic")
    with pytest.raises(DecisionHistoryConflict, match="'openai-chat'"):
        other.export(tmp_path / "c.jsonl")
    with pytest.raises(DecisionHistoryConflict, match="'openai-chat'"):
        other.drop_summary()
    assert not (tmp_path / "c.jsonl").exists()


@pytest.mark.parametrize("flag", ["no", 1, None])
def test_c4_force_and_good_prefix_are_true_or_false(tmp_path: Path, flag: Any) -> None:
    """C4: what merely counts as true would replace a file, or take a torn one."""
    tmp_path.chmod(0o700)
    told = talk()
    with told.turn("q") as turn:
        turn.respond(SAYING)
    path = tmp_path / "c.jsonl"
    told.export(path)
    before = path.read_bytes()
    with pytest.raises(InvalidOption, match="force"):
        told.export(path, force=flag)
    assert path.read_bytes() == before
    path.write_bytes(before[:-5])
    with pytest.raises(InvalidOption, match="good_prefix"):
        talk("d").import_(path, good_prefix=flag)
    assert json.loads(before.splitlines()[0])["entries"] == 2


@pytest.mark.parametrize("store", ["support.sqlite", None, object(), Path("support.sqlite"), minutebook.MemoryStore])
def test_d24_what_is_no_store_is_refused_where_it_is_given(store: Any) -> None:
    """By what it is, and with what to take: a path is the first thing that newcomers try."""
    with pytest.raises(InvalidOption, match="a store of minutebook, such as SQLiteStore"):
        minutebook.Conversation(store, "c", format="openai-chat")
    if store is not None:
        program = minutebook.Program(name="p", instructions="Do it.", capabilities=[])
        with pytest.raises(InvalidOption, match="checkpoints is a store of minutebook"):
            minutebook.Runtime(program, ScriptedProvider([]), checkpoints=store)


HUGE = 10**5_000
DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]


def acting(*, amount: int) -> str:
    """Act."""
    return str(amount)


def recorded() -> tuple[MemoryStore, Any]:
    """A store with one conversation, and its key."""
    told = talk()
    told.append([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}])
    store = told.store
    assert isinstance(store, MemoryStore)
    return store, told.key


def ran(**options: Any) -> object:
    program = minutebook.Program(name="p", instructions="i", capabilities=[minutebook.capability(acting)])
    runtime = minutebook.Runtime(program, ScriptedProvider([]), checkpoints=minutebook.MemoryStore("n"))
    return drive(runtime.run("t", run_id="r", invocation_id="i", **options))


ENTRIES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "WindowLimits(max_messages=)": (lambda bad: WindowLimits(max_messages=bad), (HUGE, -HUGE)),
    "MemoryStore(max_sessions=)": (lambda bad: MemoryStore("n", max_sessions=bad), (HUGE, -HUGE)),
    "MemoryStore(ttl=)": (lambda bad: MemoryStore("n", ttl=bad), (HUGE, -HUGE, float("nan"), float("inf"))),
    "Conversation(max_retained_bytes=)": (lambda bad: talk(max_retained_bytes=bad), (HUGE,)),
    "Conversation.page(before=)": (lambda bad: talk().page(before=bad), (HUGE, -HUGE)),
    "store.entries(after=)": (lambda bad: list(recorded()[0].entries(recorded()[1], after=bad)), (HUGE,)),
    "store.list(limit=)": (lambda bad: recorded()[0].list(limit=bad), (HUGE,)),
    "ContextWindow": (lambda bad: minutebook.ContextWindow(context_window_tokens=bad), (HUGE,)),
    "Budgets(max_decisions=)": (lambda bad: minutebook.Budgets(max_decisions=bad), (HUGE,)),
    "Budgets(max_wall=)": (lambda bad: minutebook.Budgets(max_wall=bad), (HUGE, float("nan"), float("inf"))),
    "MemoryResource(max_bytes=)": (
        lambda bad: minutebook.MemoryResource(name="r", scope="run", max_bytes=bad),
        (HUGE,),
    ),
    "Runtime(approval_ttl=)": (
        lambda bad: minutebook.Runtime(
            minutebook.Program(name="p", instructions="i"), ScriptedProvider([]), approval_ttl=bad
        ),
        (HUGE, -HUGE),
    ),
    "HistoryOptions(ttl=)": (lambda bad: minutebook.HistoryOptions(ttl=bad), (HUGE,)),
    "HistoryOptions(max_store_bytes=)": (
        lambda bad: minutebook.HistoryOptions(max_store_bytes=bad),
        ("1MB", b"1", [], 1.5, HUGE),
    ),
    "HistoryOptions(max_sessions=)": (lambda bad: minutebook.HistoryOptions(max_sessions=bad), ("1", HUGE)),
    "HistoryConfig(metadata=)": (
        lambda bad: minutebook.HistoryConfig(store=minutebook.create_in_memory_store(), metadata=bad),
        (HUGE, DEEP),
    ),
    "store.verify(receipt=)": (lambda bad: recorded()[0].verify(recorded()[1], receipt=bad), ("x", 5, True, {})),
    "store.transact(operation)": (
        lambda bad: recorded()[0].transact(recorded()[1], bad),
        (None, 5, "x", lambda _: None, lambda _: 5, lambda record: [record, None], lambda record: (record,)),
    ),
    "store.copy(progress=)": (
        lambda bad: recorded()[0].copy(recorded()[1], MemoryStore("n"), progress=bad),
        (5, "x", True),
    ),
    "extra_body=": (
        lambda bad: minutebook.OpenAIChatDecisionProvider(model="m", api_key="k", extra_body=bad),
        ("x", 5, [], True, b""),
    ),
    "Program(memory=)": (
        lambda bad: minutebook.Program(name="p", instructions="i", memory=bad),
        (None, 5, "x", True, {}),
    ),
    "Program(output=)": (lambda bad: minutebook.Program(name="p", instructions="i", output=bad), (DEEP,)),
    "capability(memory=)": (lambda bad: minutebook.capability(memory=bad)(acting), (None, 5, "x")),
    "run(observations=)": (lambda bad: ran(observations=bad), (None, 5, "x", True, {})),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_bad_input_51_what_is_given_to_a_public_entry_is_refused_by_name(entry: str) -> None:
    """No error of Python's own comes through: each is ours, short, and says which option it is about."""
    call, values = ENTRIES[entry]
    for bad in values:
        with pytest.raises(InvalidOption) as refused:
            call(bad)
        assert len(str(refused.value)) < 300
        assert refused.value.option


def test_c4_what_export_tells_its_progress_to_is_a_function(tmp_path: Path) -> None:
    """Refused before a file is there."""
    tmp_path.chmod(0o700)
    store, key = recorded()
    with pytest.raises(InvalidOption):
        store.export(key, tmp_path / "a.jsonl", progress=5)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_d24_a_refused_operation_leaves_the_conversation_free() -> None:
    """What an operation returned is looked at under the reservation, which is given back."""
    store, key = recorded()
    with pytest.raises(InvalidOption):
        store.transact(key, lambda _: 5)  # type: ignore[arg-type,return-value]
    header = store.header(key)
    assert header is not None
    assert not header.token
