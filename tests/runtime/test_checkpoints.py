"""Checkpoints: a run goes on where it stopped, with what it did, used and was told, and does nothing twice (D25)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.faces.test_decisions import Server, finishes, provider_of
from tests.faces.test_decisions import calls as proposing
from tests.runtime.programs import DONE, IDS, act, call, calls, finish, kept, program, runtime
from tests.stores.hosts import BusyHost, WaitingHost

from minutebook import sync
from minutebook.decisions import HistoryOptions, OpenAIChatDecisionProvider
from minutebook.errors import (
    AgentDecisionProviderSchemaViolation,
    AgentDecisionProviderUnavailable,
    CheckpointRefused,
    DecisionHistoryBusy,
    DecisionHistoryCorrupt,
    DecisionHistoryFenced,
    DecisionHistoryStorageFailed,
    DecisionHistoryStoreFull,
    InvalidOption,
    InvalidValue,
    MinutebookError,
)
from minutebook.model.bounds import StoreBounds
from minutebook.model.decisions import CallReference, Observation
from minutebook.model.entries import Draft, Kind
from minutebook.model.record import Record, new_header
from minutebook.programs import Runtime, storage_of
from minutebook.runtime import Budgets, Program, capability, checkpoints, delegate, invocation, records
from minutebook.steps import Steps
from minutebook.stores.journal import JournalStore
from minutebook.stores.memory import MemoryJournal
from minutebook.stores.opening import HostStore, MemoryStore, SQLiteStore
from minutebook.testing import Cut, Fault, FaultyJournal, ScriptedProvider, SuspendingJournal, cancel_at, drive


@capability(needs_approval=True)
def look(path: str) -> str:
    """Read a file."""
    DONE.append(1)
    return f"content of {path}"


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


OUTPUT: dict[str, Any] = {
    "type": "object",
    "properties": {"answer": {"type": "string", "maxLength": 40}},
    "required": ["answer"],
    "additionalProperties": False,
}
LOOKING: Program[Any] = Program(name="agent", instructions="You decide.", capabilities=[look], output=OUTPUT)
every = pytest.mark.parametrize(
    ("api", "interface"), [(api, how) for api in ("chat", "responses") for how in ("native", "structured")]
)


# --- approval and resume with real providers -------------------------------------------------------------------------


def process(server: Server, api: str, interface: str, store: Any, checkpoints: Any, events: list[Any]) -> Runtime[Any]:
    """Return what a process has after its start: a provider with a history in `store`, and a runtime."""
    options = HistoryOptions(store=store, on_event=events.append)
    return Runtime(LOOKING, provider_of(server, api, interface, history=options), checkpoints=checkpoints)


@every
def test_d25_with_the_same_store_an_invocation_goes_on_with_its_messages(
    server: Server, api: str, interface: str
) -> None:
    """D25, O-36: the call stands in the resumed request once, as it came, with its one result; identity is kept."""
    server.replies = [proposing(api, interface, "a.txt"), finishes(api, interface)]
    store, events = MemoryStore("t"), list[Any]()
    outcome = drive(process(server, api, interface, store, None, events).run("Look.", **IDS))
    assert (outcome.kind, DONE) == ("approval_required", [])
    approvals = [each.approve(by="ann") for each in outcome.pending]
    outcome = drive(process(server, api, interface, store, None, events).resume("r", "i", approvals=approvals))
    assert (outcome.kind, outcome.output, DONE) == ("finished", {"answer": "done"}, [1])
    (resumed,) = [event for event in events if event.kind == "decision_history_resumed"]
    assert (resumed.resumed_without_messages, resumed.message_count > 1) == (False, True)
    first, second = (server.shown(at) for at in (0, 1))
    assert second[: len(first)] == first
    assert sum("content of a.txt" in str(message) for message in second) == 1
    assert len(server.requests) == 2
    assert server.refused == []


@every
def test_d25_after_a_history_in_ram_is_gone_observations_remain_and_the_event_says_so(
    server: Server, api: str, interface: str, tmp_path: Any
) -> None:
    """D25: RAM history with durable checkpoints: what was done goes as data, with no invented call, and steps go on."""
    tmp_path.chmod(0o700)
    kept_in = {"filename": tmp_path / "runs.sqlite", "namespace": "runs"}
    server.replies = [proposing(api, interface, "a.txt")]
    with sync.SQLiteStore(**kept_in) as runs:
        outcome = drive(process(server, api, interface, None, runs._core, []).run("Look.", **IDS))
    assert outcome.kind == "approval_required"
    server.replies = [proposing(api, interface, "b.txt"), finishes(api, interface)]
    events: list[Any] = []
    with sync.SQLiteStore(**kept_in) as runs:
        second = process(server, api, interface, None, runs._core, events)
        stops = drive(second.resume("r", "i", approvals=[each.approve(by="ann") for each in outcome.pending]))
        assert (stops.kind, DONE) == ("approval_required", [1])
        last = drive(second.resume("r", "i", approvals=[each.approve(by="ann") for each in stops.pending]))
    assert (last.kind, DONE) == ("finished", [1, 1])
    resumed = [event for event in events if event.kind == "decision_history_resumed"]
    assert [event.resumed_without_messages for event in resumed] == [True, False]
    (opening,) = server.shown(1)
    assert opening["role"] == "user"
    assert "content of a.txt" in str(opening["content"])
    assert not {"tool_calls", "call_id"} & opening.keys()
    assert sum("content of b.txt" in str(message) for message in server.shown(2)) == 1
    assert [seen.value for seen in last.observations] == ["content of a.txt", "content of b.txt"]
    assert server.refused == []


@every
def test_d25_observations_of_a_host_go_as_data_where_its_history_is_gone(
    server: Server, api: str, interface: str
) -> None:
    """D25: without checkpoints too; what a reference named before is not taken for a call of the new conversation."""
    server.replies = [proposing(api, interface, "a.txt"), finishes(api, interface)]
    events: list[Any] = []
    provider = provider_of(server, api, interface, history=HistoryOptions(on_event=events.append))
    brought = Observation(
        capability="look", arguments={"path": "0.txt"}, value="content of 0.txt", reference=CallReference(2, 0)
    )
    declared: Any = Program(
        name="agent", instructions="You decide.", capabilities=[capability(look.function)], output=OUTPUT
    )
    outcome = drive(Runtime(declared, provider).run("Look.", **IDS, observations=[brought]))
    assert outcome.kind == "finished"
    assert [(seen.value, seen.reference) for seen in outcome.observations] == [
        ("content of 0.txt", None),
        ("content of a.txt", CallReference(2, 0)),
    ]
    assert [event.resumed_without_messages for event in events if event.kind == "decision_history_resumed"] == [True]
    assert [sum("content of 0.txt" in str(each) for each in server.shown(at)) for at in (0, 1)] == [1, 1]
    assert server.refused == []


@every
def test_d25_where_nothing_was_answered_a_history_that_is_gone_took_nothing_along(
    server: Server, api: str, interface: str
) -> None:
    """D25: a run whose first request failed goes on behind a restart with all the messages there ever were."""
    server.replies = [(503, {}, b""), finishes(api, interface)]
    store, events = MemoryStore("t"), list[Any]()
    with pytest.raises(AgentDecisionProviderUnavailable):
        drive(process(server, api, interface, None, store, events).run("Look.", **IDS))
    assert drive(process(server, api, interface, None, store, events).resume("r", "i")).kind == "finished"
    (resumed,) = [event for event in events if event.kind == "decision_history_resumed"]
    assert (resumed.resumed_without_messages, resumed.message_count) == (False, 1)
    assert server.shown(0) == server.shown(1)


def test_d25_another_model_or_interface_resumes_without_messages(server: Server) -> None:
    """D25, O-36: what is another conversation's is not taken for this one's, and the event says what happened."""
    server.replies = [proposing("chat", "native", "a.txt"), finishes("chat", "structured")]
    store, events = MemoryStore("t"), list[Any]()
    outcome = drive(process(server, "chat", "native", store, None, events).run("Look.", **IDS))
    approvals = [each.approve(by="ann") for each in outcome.pending]
    drive(process(server, "chat", "structured", store, None, events).resume("r", "i", approvals=approvals))
    (resumed,) = [event for event in events if event.kind == "decision_history_resumed"]
    assert resumed.resumed_without_messages is True


@every
@pytest.mark.parametrize("ending", ["calls", "finish"])
def test_d25_a_decision_recorded_while_its_caller_was_cut_off_is_not_asked_for_again(
    server: Server, api: str, interface: str, ending: str
) -> None:
    """D25, D13: the resumed run gets the recorded decision, its calls or its finish, and no request leaves for it."""
    free = program(capability(look.function), output=OUTPUT)
    replies = [proposing(api, interface, "a.txt"), finishes(api, interface)]
    server.replies = replies[:1] if ending == "calls" else replies[1:]
    journal = MemoryJournal()
    runs = JournalStore(MemoryJournal(), namespace="runs")
    cut = FaultyJournal(journal, [Fault(call=1, method="commit", after=True, error=asyncio.CancelledError)])
    provider = provider_of(server, api, interface, history=HistoryOptions(store=JournalStore(cut, namespace="t")))
    with pytest.raises(asyncio.CancelledError):
        drive(Runtime(free, provider, checkpoints=runs).run("Look.", **IDS))
    assert (len(server.requests), cut.left) == (1, ())
    server.replies = replies[1:] if ending == "calls" else []
    provider = provider_of(server, api, interface, history=HistoryOptions(store=JournalStore(journal, namespace="t")))
    outcome = drive(Runtime(free, provider, checkpoints=runs).resume("r", "i"))
    assert (outcome.kind, outcome.output) == ("finished", {"answer": "done"})
    assert ([1] if ending == "calls" else []) == DONE
    assert len(server.requests) == (2 if ending == "calls" else 1)
    assert server.refused == []


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_d25_a_clock_that_fails_behind_the_last_decision_costs_no_answer(
    server: Server, error: type[BaseException]
) -> None:
    """D25: whichever reading of the clock fails, the run goes on, and no answer is asked for a second time."""
    free = program(capability(look.function), output=OUTPUT, budgets=Budgets(max_wall=60))
    readings = itertools.count(1)

    def clock_failing_at(at: int) -> int:
        if next(readings) == at:
            raise error
        return 0

    def story(at: int) -> int:
        nonlocal readings
        readings, asked = itertools.count(1), len(server.requests)
        server.replies = [proposing("chat", "native", "a.txt"), finishes("chat", "native")]
        options, runs = HistoryOptions(store=MemoryStore("t")), MemoryStore("runs")

        def made() -> Runtime[Any]:
            provider = provider_of(server, "chat", "native", history=options)
            return Runtime(free, provider, checkpoints=runs, monotonic_ns=lambda: clock_failing_at(at))

        with contextlib.suppress(error):
            drive(made().run("Look.", **IDS))
        last = next(readings)
        outcome = drive(made().run("Look.", **IDS))
        assert (outcome.kind, outcome.output) == ("finished", {"answer": "done"}), at
        assert len(server.requests) == asked + 2, at
        return last

    at = 1
    while story(at) > at:
        at += 1
    assert at > 10


def test_d25_a_task_before_its_first_decision_is_told_that_those_before_it_are_gone(server: Server) -> None:
    """D25: what the invocation received before counts for its later tasks too, one that was given up between them."""
    down = (503, {}, b"")
    server.replies = [finishes("chat", "native", "one"), down, down, finishes("chat", "native", "three")]
    runs, events = MemoryStore("runs"), list[Any]()
    first = process(server, "chat", "native", MemoryStore("t"), runs, [])
    assert drive(first.run("one", **IDS)).output == {"answer": "one"}
    for task in ("two", "three"):
        drive(first.abandon("r", "i"))
        with pytest.raises(AgentDecisionProviderUnavailable):
            drive(first.run(task, **IDS))
    second = process(server, "chat", "native", MemoryStore("t"), runs, events)
    assert drive(second.resume("r", "i")).output == {"answer": "three"}
    (resumed,) = [event for event in events if event.kind == "decision_history_resumed"]
    assert resumed.resumed_without_messages


def test_d13_a_task_has_a_name_of_its_own_where_it_is_kept() -> None:
    """D13: the same in each run of it and another for the next; elsewhere its words tell its turn in every process."""
    made, provider = kept(program(), MemoryStore(), RuntimeError(), finish(), finish())
    with pytest.raises(RuntimeError):
        drive(made.run("one", **IDS))
    for task in ("one", "two"):
        drive(made.run(task, **IDS))
    first, again, other = [request.task_ref for request in provider.requests]
    assert first == again
    assert len({first, other, ""}) == 3
    made, provider = runtime(program(), finish())
    drive(made.run("one", **IDS))
    assert [request.task_ref for request in provider.requests] == [""]


def test_d25_an_invocation_that_an_interrupt_left_is_nobodys_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Struck between its beginning and its run, and no garbage collected since: the same process goes on with it."""
    run = invocation.Invocation.run

    async def struck(self: Any) -> Any:
        monkeypatch.setattr(invocation.Invocation, "run", run)
        raise KeyboardInterrupt

    monkeypatch.setattr(invocation.Invocation, "run", struck)
    store = MemoryStore()
    gc.disable()
    try:
        with pytest.raises(KeyboardInterrupt):
            drive(kept(program(act), store, finish())[0].run("go", **IDS))
        assert drive(kept(program(act), store, finish())[0].run("go", **IDS)).kind == "finished"
    finally:
        gc.enable()


def test_d25_a_next_task_of_the_same_words_is_asked_for(server: Server) -> None:
    """A recorded finish is given back to the task that it is of, and to no later one of the same words."""
    server.replies = [finishes("chat", "native", "one"), finishes("chat", "native", "two")]
    store = MemoryStore("t")
    for told in ("one", "two"):
        for _ in range(2):  # and once more, as a host that lost the reply does
            made = process(server, "chat", "native", store, store, [])
            assert drive(made.run("Look.", **IDS, task_id=told)).output == {"answer": told}
    assert len(server.requests) == 2
    assert server.refused == []


# --- stopped at every await ------------------------------------------------------------------------------------------


def script() -> tuple[Any, ...]:
    return calls(call("act", number=1), call("act", number=2)), calls(call("act", number=3)), finish()


def answering() -> Any:
    """Return what decides by how much was observed, as a model would: a resumed run meets it where it stands."""
    steps = script()

    def answer(request: Any) -> Any:
        return steps[{0: 0, 2: 1, 3: 2}[len(request.observations)]]

    return answer


def moving() -> Any:
    """Return a clock on which every look takes a microsecond."""
    return functools.partial(next, itertools.count(step=1_000))


def runs(store: JournalStore) -> Any:
    declared = program(act, budgets=Budgets(max_decisions=50, max_calls=50, max_wall=60))
    made, provider = kept(declared, store, monotonic_ns=moving())
    provider._answer = answering()
    return made


async def until_finished(store: JournalStore) -> Any:
    """Go on until there is an outcome, as a host would: begin where nothing was kept, recover what nobody holds."""
    try:
        return await runs(store).resume("r", "i")
    except CheckpointRefused:  # it was stopped before anything was kept
        return await runs(store).run("go", **IDS)
    except DecisionHistoryBusy as busy:
        await runs(store).recover("r", "i", worker_stopped=True, epoch=busy.epoch)
        return await until_finished(store)


def stop_everywhere(cut: Cut, *, same_process: bool) -> list[str]:
    """Stop a run at each of its awaits in turn, go on, and return what then was wrong."""
    wrong: list[str] = []
    for step in range(1, 1_000):
        DONE.clear()
        journal = MemoryJournal()
        store = JournalStore(SuspendingJournal(journal), namespace="t")
        ended = drive(cancel_at(lambda store=store: runs(store).run("go", **IDS), step, cut))
        if not ended.struck:
            assert step > 20
            return wrong
        if cut in (Cut.CANCELLED, Cut.INTERRUPTED) and drive(store.totals()).reserved:
            wrong.append(f"{cut}, await {step}: no other process can go on")
        after = store if same_process else JournalStore(journal, namespace="t")
        outcome = drive(until_finished(after))
        told = [(seen.arguments["number"], seen.value) for seen in outcome.observations]
        lost = {number for number, value in told if value == {"interrupted": "outcome unknown"}}
        right = [(number, {"interrupted": "outcome unknown"} if number in lost else 2 * number) for number in (1, 2, 3)]
        if outcome.kind != "finished" or told != right or sorted(set(DONE)) != sorted(DONE):
            wrong.append(f"{cut}, await {step}: {outcome}, told {told}, done {DONE}")
        if len(lost) > 1 or not {1, 2, 3} - lost <= set(DONE):
            wrong.append(f"{cut}, await {step}: lost {lost}, done {DONE}")
        drive(after.verify(after.key('["checkpoint","r","i","clerk"]')))
    raise AssertionError("the run never ended")


@pytest.mark.parametrize("cut", [Cut.CANCELLED, Cut.INTERRUPTED, Cut.CLOSED, Cut.KILLED])
@pytest.mark.parametrize("same_process", [True, False])
def test_i44_stopped_at_any_await_nothing_is_done_twice_and_nothing_is_lost(cut: Cut, same_process: bool) -> None:
    """I-44, O-33: each effect happens once; one that was under way is told as of unknown outcome, and only that one."""
    assert stop_everywhere(cut, same_process=same_process) == []


@pytest.mark.parametrize("max_wall", [None, 60])
@pytest.mark.parametrize("after", [False, True], ids=["unwritten", "written"])
@pytest.mark.parametrize("error", [DecisionHistoryStorageFailed, asyncio.CancelledError])
def test_d25_whichever_commit_fails_another_worker_goes_on_at_once(
    error: type[BaseException], after: bool, max_wall: int | None
) -> None:
    """D25, D28, I-44: what failed gives the log back, with the time it took, and nothing is done or noted twice."""
    declared = program(act, budgets=Budgets(max_wall=max_wall))
    for number in range(1, 1_000):
        DONE.clear()
        journal = MemoryJournal()
        fault = Fault(call=number, method="commit", after=after, error=lambda: error("cut"))
        faulty = FaultyJournal(journal, [fault])
        made, provider = kept(declared, JournalStore(faulty, namespace="t"), monotonic_ns=moving())
        provider._answer = answering()
        with contextlib.suppress(error):
            drive(made.run("go", **IDS))
        if faulty.left:
            assert number > 5
            return
        store = JournalStore(journal, namespace="t")
        assert drive(store.totals()).reserved == 0, number
        logged = drive(store.read(store.key('["checkpoint","r","i","clerk"]')))
        assert logged is not None
        noted = [msgspec.json.decode(each.payload) for each in logged.entries]
        counted = Counter(each["is"] for each in noted)
        assert max(counted["began"], counted["elapsed"], counted["ended"]) <= 1, number
        assert len(DONE) <= counted["intended"] <= len(DONE) + 1, number
        made, provider = kept(declared, store, monotonic_ns=moving())
        provider._answer = answering()
        assert drive(made.resume("r", "i")).kind == "finished", number
        assert len(DONE) == len(set(DONE)), number
    raise AssertionError("the run never ended")


@pytest.mark.parametrize("after", [False, True], ids=["unwritten", "written"])
def test_d25_a_last_commit_that_failed_is_tried_once_more_and_its_error_says_so(after: bool) -> None:
    """D25, I-44: the outcome is kept and the log given back; where storage stays away the error says what is to do."""
    journal = MemoryJournal()
    lost = Fault(call=2, method="commit", after=after)
    made, _ = kept(program(act), JournalStore(FaultyJournal(journal, [lost]), namespace="t"), finish())
    with pytest.raises(DecisionHistoryStorageFailed) as caught:
        drive(made.run("go", **IDS))
    assert caught.value.__notes__ == ["the run gave its log back all the same; `resume` goes on from there"]
    outcome = drive(kept(program(act), JournalStore(journal, namespace="t"))[0].resume("r", "i"))
    assert (outcome.kind, outcome.output) == ("finished", "done")
    away = [Fault(call=number, method="commit") for number in (2, 3)]
    made, _ = kept(program(act), JournalStore(FaultyJournal(MemoryJournal(), away), namespace="t"), finish())
    with pytest.raises(DecisionHistoryStorageFailed) as caught:
        drive(made.run("go", **IDS))
    assert [note for note in caught.value.__notes__ if "recover the conversation" in note]


def test_i44_control_a_runtime_that_does_not_note_its_intents_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep finds effects that are repeated when the intent is not durable before them."""
    note = checkpoints.Log.note

    def forgetful(log: Any, *noted: Any) -> None:
        note(log, *[record for record in noted if not isinstance(record, records.Intended)])

    monkeypatch.setattr(checkpoints.Log, "note", forgetful)
    assert stop_everywhere(Cut.INTERRUPTED, same_process=False) != []


class Model:
    """A model in the place of an API: acts three times by what it is shown, then finishes; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def __call__(self, messages: list[dict[str, Any]], schema: dict[str, Any]) -> Any:
        said = [str(message["content"]) for message in messages if message["role"] == "user"]
        self.asked.append(said)
        done = sum(" ".join(said).count(f'"number":{number}') for number in (1, 2, 3))
        results = sum(text.startswith(("Result of act", "Error of act")) for text in said)
        number = done + results + 1
        if number > 3:
            return {"decision": {"action": "finish", "output": "done"}}
        return {"decision": {"action": "act", "number": number}}

    def shown(self) -> str:
        return " ".join(self.asked[-1])


def modelled(model: Model, history: JournalStore, kept_in: JournalStore) -> Any:
    provider = OpenAIChatDecisionProvider(
        model="m", decision_interface="structured", generate=model, history=HistoryOptions(store=history)
    )
    return Runtime(program(act), provider, checkpoints=kept_in)


async def recovered(runtime: Any) -> Any:
    """Go on as a host does after a worker is gone."""
    try:
        return await runtime.resume("r", "i")
    except CheckpointRefused:
        return await runtime.run("go", **IDS)
    except DecisionHistoryBusy as busy:
        await runtime.recover("r", "i", worker_stopped=True, epoch=busy.epoch)
        return await recovered(runtime)


def sweep(*, lost: bool) -> int:
    """
    Stop a run with a real history at each of its awaits, go on, and see what was done, asked and shown.

    With `lost` the run that is stopped is one that goes on itself, after the process with its history was gone.
    """
    for step in range(1, 1_000):
        DONE.clear()
        model, history, runs_in = Model(), MemoryJournal(), MemoryJournal()

        def stores(history: Any = history, runs_in: Any = runs_in) -> list[JournalStore]:
            return [JournalStore(each, namespace="t") for each in (history, runs_in)]

        if lost:
            gone = stores(FaultyJournal(history), FaultyJournal(runs_in))
            drive(cancel_at(lambda: modelled(model, *gone).run("go", **IDS), 1, Cut.KILLED))  # noqa: B023
            history = MemoryJournal()
            assert DONE == [1]
            drive(modelled(model, *stores(runs_in=runs_in)).recover("r", "i", worker_stopped=True))
        slow = [SuspendingJournal(each) for each in (history, runs_in)]
        runtime = modelled(model, *stores(*slow))
        ended = drive(cancel_at(lambda: recovered(runtime), step, Cut.KILLED))  # noqa: B023
        if ended.struck:
            ended_by = drive(recovered(modelled(model, *stores(history))))
        elif ended.error is None:
            return step
        else:
            raise ended.error
        told = [(seen.arguments["number"], seen.error) for seen in ended_by.observations]
        assert (ended_by.kind, [number for number, _ in told]) == ("finished", [1, 2, 3]), step
        assert len(DONE) == len(set(DONE)), (step, DONE)
        assert {number for number, unknown in told if not unknown} <= set(DONE)
        assert sum(unknown for _, unknown in told) <= (2 if lost else 1)
        assert len(model.asked) <= 5, (step, len(model.asked))
        shown = model.shown()
        for number, unknown in told:
            value = '{"interrupted":"outcome unknown"}' if unknown else str(2 * number)
            as_data = f'"arguments":{{"number":{number}}},"{"error" if unknown else "result"}":{value}'
            as_message = f"{'Error' if unknown else 'Result'} of act: {value}"
            assert shown.count(as_data) + shown.count(as_message) >= 1, (step, shown)
        assert shown.count("Result of act") + shown.count("Error of act") + shown.count('"arguments"') == 3, shown
        for store in stores(history):
            assert drive(store.totals()).reserved == 0
    raise AssertionError("the run never ended")


@pytest.mark.parametrize("lost", [False, True], ids=["with messages", "without messages"])
def test_d25_stopped_at_any_await_each_result_is_shown_once(lost: bool, figure: Any) -> None:
    """D25, O-36, I-44: whatever was cut off, nothing is done twice, asked for again in vain, or shown twice."""
    figure(f"{sweep(lost=lost):,} awaits")


@pytest.mark.parametrize(
    ("method", "fault"),
    [
        ("_begins_anew", lambda header: header is None),  # an attempt to begin anew is not known again
        ("_undelivered", lambda header: None),  # a decision that nobody heard of is asked for again
    ],
)
def test_d25_control_the_sweep_finds_what_a_resumed_step_must_not_forget(
    method: str, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the two looks at the record before a resumed step is needed: without it some await is not survived."""

    async def planted(steps: Any, history: Any, header: Any, request: Any, **_: Any) -> Any:
        return fault(header)

    monkeypatch.setattr(Steps, method, planted)
    with pytest.raises((AssertionError, MinutebookError)):
        sweep(lost=True)


# --- the log ---------------------------------------------------------------------------------------------------------


def test_o33_an_interrupted_call_is_told_once_also_after_five_reopenings() -> None:
    """O-33: what is added for a lost outcome is added once, whatever happens to the runs after it."""

    @capability
    def stop() -> None:
        raise KeyboardInterrupt

    store = MemoryStore()
    with pytest.raises(KeyboardInterrupt):
        drive(kept(program(stop), store, calls(call("stop"), exchange=2))[0].run("go", **IDS))
    for _ in range(5):
        with pytest.raises(AgentDecisionProviderUnavailable):
            drive(kept(program(stop), store, AgentDecisionProviderUnavailable("down"))[0].resume("r", "i"))
    outcome = drive(kept(program(stop), store, finish())[0].resume("r", "i"))
    assert [seen.value for seen in outcome.observations] == [{"interrupted": "outcome unknown"}]


def test_d25_a_run_that_raised_goes_on_with_what_is_left_of_its_budgets() -> None:
    """D25, I-43: decisions that were asked for count, also those that never came."""
    store = MemoryStore()
    declared = program(act, budgets=Budgets(max_decisions=4))
    down = AgentDecisionProviderUnavailable("down")
    made, _ = kept(declared, store, calls(call("act", number=1)), down)
    with pytest.raises(AgentDecisionProviderUnavailable):
        drive(made.run("go", **IDS))
    with pytest.raises(AgentDecisionProviderUnavailable):
        drive(kept(declared, store, down)[0].resume("r", "i"))
    made, provider = kept(declared, store, calls(call("act", number=2)))
    outcome = drive(made.resume("r", "i"))
    assert (outcome.kind, outcome.budget, outcome.decisions, DONE) == ("budget_exhausted", "decisions", 1, [1, 2])
    (request,) = provider.requests
    assert (request.run_id, request.invocation_id, request.task) == ("r", "i", "go")
    assert [seen.value for seen in request.observations] == [2]
    again = drive(kept(declared, store)[0].resume("r", "i"))
    assert (again.kind, again.budget, again.decisions, again.observations) == (
        "budget_exhausted",
        "decisions",
        0,
        outcome.observations,
    )
    larger = program(act, budgets=Budgets(max_decisions=5))
    assert drive(kept(larger, store, finish())[0].resume("r", "i")).kind == "finished"


def test_d09_d25_an_output_that_a_provider_of_ones_own_did_not_check_is_recorded_nowhere() -> None:
    """D9, D25: refused before it is kept, so that the task, resumed, asks again and is not given it back."""
    store, declared = MemoryStore(), program(act, output=OUTPUT)
    first, _ = kept(declared, store, calls(call("act", number=1)), finish({"answer": 7}))
    with pytest.raises(AgentDecisionProviderSchemaViolation):
        drive(first.run("go", **IDS))
    then, provider = kept(declared, store, finish({"answer": "done"}))
    assert drive(then.resume("r", "i")).output == {"answer": "done"}
    assert (len(provider.requests), DONE) == (1, [1])


def test_d28_wall_time_runs_while_the_run_does_and_goes_on_when_it_is_resumed() -> None:
    """I-43: what was used before counts; the time in which a human was waited for does not."""
    now = [0]

    @capability
    def work() -> None:
        now[0] += 40 * 10**9

    store = MemoryStore()
    declared = program(work, look, budgets=Budgets(max_wall=60))
    proposed = calls(call("work"), call("look", path="a"), exchange=2)
    (waits,) = drive(kept(declared, store, proposed, monotonic_ns=lambda: now[0])[0].run("go", **IDS)).pending
    now[0] = 10**18
    made, _ = kept(declared, store, calls(call("work"), exchange=4), monotonic_ns=lambda: now[0])
    outcome = drive(made.resume("r", "i", approvals=[waits.approve(by="ann")]))
    assert (outcome.kind, outcome.budget, DONE) == ("budget_exhausted", "wall", [1])


NEARLY = 900_000_000
"""Most of the second that `max_wall=1` allows, in nanoseconds."""


class Watch:
    """A clock that only steps move, and what of a run is slow on it and then fails."""

    def __init__(self, error: BaseException) -> None:
        self.now, self.error, self.steps = 0, error, 0

    def fails(self, *_: Any) -> Any:
        self.now += NEARLY
        self.steps += 1
        raise self.error

    def runs(self, store: JournalStore, where: str) -> Any:
        """Return a runtime of which a decision, a capability or an agent's decision fails after most of the budget."""

        @capability
        async def fail() -> None:
            self.fails()

        proposed = {"capability": calls(call("fail")), "agent": calls(call("helper", task="help"))}
        answers = {"clerk": (lambda _: proposed[where]) if where in proposed else self.fails, "helper": self.fails}
        providers = {name: ScriptedProvider.answering(answer) for name, answer in answers.items()}
        declared = program(fail, delegate(HELPER), budgets=Budgets(max_wall=1))
        return kept(declared, store, monotonic_ns=lambda: self.now, providers=providers)[0]


HELPER: Program[Any] = Program(name="helper", instructions="Help.", capabilities=[])


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("decision", AgentDecisionProviderUnavailable("down")),
        ("decision", KeyboardInterrupt()),
        ("decision", asyncio.CancelledError()),
        ("capability", KeyboardInterrupt()),
        ("capability", asyncio.CancelledError()),
        ("agent", AgentDecisionProviderUnavailable("down")),
        ("agent", KeyboardInterrupt()),
    ],
)
@pytest.mark.parametrize("again", ["run", "resume"])
def test_d28_i43_a_step_that_fails_spends_its_wall_time(where: str, error: BaseException, again: str) -> None:
    """I-43, D28: tried again under the same ids, the steps use the budget and at most one step more, all in all."""
    store, watch = MemoryStore(), Watch(error)
    kinds: list[str] = []
    for at in range(12):
        made = watch.runs(store, where)
        with contextlib.suppress(type(error)):
            outcome = drive(made.run("go", **IDS) if again == "run" or at == 0 else made.resume("r", "i"))
            kinds.append(f"{outcome.kind} {outcome.budget}")
    assert watch.steps == 2
    assert kinds == ["budget_exhausted wall"] * 10


def test_d28_i43_an_agent_that_waits_for_a_human_has_spent_its_callers_wall_time() -> None:
    """I-43: what an agent used up to its stop counts for its caller, whose own log tells nothing of it otherwise."""
    now = [0]

    @capability
    def work() -> None:
        now[0] += NEARLY

    helper = Program(name="helper", instructions="Help.", capabilities=[work, look])
    declared = program(delegate(helper), budgets=Budgets(max_wall=1))
    store = MemoryStore()
    proposed = calls(call("helper", task="help"))

    def made(*theirs: Any) -> Any:
        providers = {"helper": ScriptedProvider(theirs)}
        return kept(declared, store, proposed, monotonic_ns=lambda: now[0], providers=providers)[0]

    (waits,) = drive(made(calls(call("work"), call("look", path="a"))).run("go", **IDS)).pending
    now[0] = 10**18
    outcome = drive(made(calls(call("work"))).resume("r", "i", approvals=[waits.approve(by="ann")]))
    assert (outcome.kind, outcome.budget, now[0]) == ("budget_exhausted", "wall", 10**18 + NEARLY)


@pytest.mark.parametrize("below", [False, True], ids=["its own call", "an agent's call"])
def test_d28_polling_for_an_answer_notes_nothing_and_takes_none_of_the_time(below: bool) -> None:
    """I-43, D28: a resume that asks and executes nothing leaves the log as long as it was, however often it comes."""
    helper = Program(name="helper", instructions="Help.", capabilities=[look])
    declared = program(delegate(helper), look, budgets=Budgets(max_wall=60))
    store, looking = MemoryStore(), calls(call("look", path="a"))
    script = calls(call("helper", task="help")) if below else looking
    providers = {"helper": ScriptedProvider([looking])}

    def made() -> Any:
        return kept(declared, store, script, monotonic_ns=moving(), providers=providers)[0]

    drive(made().run("go", **IDS))
    lengths = {each.key.id: each.header.entries for each in drive(store.list())}
    for _ in range(20):
        assert drive(made().resume("r", "i")).kind == "approval_required"
    assert {each.key.id: each.header.entries for each in drive(store.list())} == lengths


def test_d28_i43_a_clock_that_fails_ends_the_run_and_gives_its_log_back() -> None:
    """I-43: the time of the last record then stands; the run's own error is told, and the next worker goes on."""
    store, times = MemoryStore(), iter([0, 0])
    made, _ = kept(program(act, budgets=Budgets(max_wall=1)), store, finish(), monotonic_ns=lambda: next(times))
    with pytest.raises(RuntimeError, match="StopIteration"):
        drive(made.run("go", **IDS))
    assert drive(kept(program(act), store, finish())[0].resume("r", "i")).kind == "finished"


def test_d28_i43_a_run_without_a_budget_of_time_notes_none() -> None:
    """A log holds no word of time that nobody bounds."""
    store = MemoryStore()
    watch = Watch(AgentDecisionProviderUnavailable("down"))
    made, _ = kept(program(act), store, watch.error, monotonic_ns=lambda: watch.now)
    with pytest.raises(AgentDecisionProviderUnavailable):
        drive(made.run("go", **IDS))
    key = storage_of(store).checkpoint("r", "i", "clerk")
    record = drive(store.read(key))
    assert record is not None
    assert [b"elapsed" in each.payload for each in record.entries] == [False, False]


def test_d25_a_task_that_is_unfinished_is_gone_on_with_first() -> None:
    """A new task would take the place of one whose calls wait; it is refused before anything is asked."""
    store = MemoryStore()
    drive(kept(program(look), store, calls(call("look", path="a"), exchange=2))[0].run("go", **IDS))
    made, provider = kept(program(look), store, finish())
    odd = Observation(capability="look", arguments={}, value=1, reference=CallReference(2, 0))
    for task, brought in (("another", []), ("go", [odd])):
        with pytest.raises(CheckpointRefused) as caught:
            drive(made.run(task, **IDS, observations=brought))
        assert caught.value.problem == "unfinished"
    assert drive(store.totals()).reserved == 0
    assert provider.requests == []


def test_o34_the_same_task_again_goes_on_with_the_unfinished_one() -> None:
    """O-34: whoever tries again repeats nothing: neither what was executed nor what was asked of a human."""
    store = MemoryStore()
    proposed = calls(call("act", number=1), call("look", path="a"), exchange=2)
    first = drive(kept(program(act, look), store, proposed)[0].run("go", **IDS))
    again = drive(kept(program(act, look), store)[0].run("go", **IDS))
    assert (again.pending, again.observations, DONE) == (first.pending, first.observations, [1])
    again = drive(kept(program(act, look), store)[0].run("go", **IDS, observations=first.observations))
    assert (again.pending, DONE) == (first.pending, [1])


@pytest.mark.parametrize("named", [False, True], ids=["by text", "by task_id"])
def test_d25_a_finished_task_is_followed_by_the_next_with_budgets_of_its_own(named: bool) -> None:
    """D28, I-43: budgets are those of one task; the next of an invocation begins with nothing used or observed."""
    store = MemoryStore()
    declared = program(act, budgets=Budgets(max_decisions=2, max_calls=1))
    for number in (1, 2):
        made, provider = kept(declared, store, calls(call("act", number=number)), finish())
        task = {"task": "go", "task_id": f"{number}"} if named else {"task": f"go {number}"}
        assert drive(made.run(**task, **IDS)).kind == "finished"
        assert len(provider.requests[-1].observations) == 1
    assert DONE == [1, 2]


# --- tasks that have ended -------------------------------------------------------------------------------------------


@capability(max_calls=1)
def once(number: int) -> int:
    """Do something once."""
    DONE.append(number)
    return number


@capability
def odd() -> Any:
    """Return what JSON cannot hold."""
    DONE.append(0)
    return {1}


def clock() -> Any:
    """Return a clock on which every look takes ten seconds."""
    seconds = iter(range(10**9))
    return lambda: next(seconds) * 10**10


ACTING = calls(call("once", number=1), call("act", number=2))
ENDINGS: dict[str, tuple[Budgets, tuple[Any, ...], Any]] = {
    "finished": (Budgets(), (ACTING, finish()), ("finished", None, "done")),
    "decisions": (Budgets(max_decisions=1), (ACTING,), ("budget_exhausted", "decisions", None)),
    "calls": (Budgets(max_calls=1), (ACTING, ACTING), ("budget_exhausted", "calls", None)),
    "wall": (Budgets(max_wall=100), (ACTING, ACTING, ACTING), ("budget_exhausted", "wall", None)),
    "failed": (Budgets(), (calls(call("once", number=1), call("odd")),), ("failed", None, None)),
}
AGAIN: dict[str, Any] = {
    "same task": lambda made, _: made.run("go", **IDS),
    "same observations": lambda made, seen: made.run("go", **IDS, observations=seen),
    "resume": lambda made, _: made.resume("r", "i"),
    "another task": lambda made, _: made.run("go on", **IDS),
    "another task_id": lambda made, _: made.run("go", **IDS, task_id="2"),
    "another with observations": lambda made, seen: made.run("go on", **IDS, observations=seen),
}


def ended(ending: str) -> tuple[MemoryStore, Any, Any]:
    """Return a store, the program and the outcome of a task that ended so."""
    budgets, script, expected = ENDINGS[ending]
    store, declared = MemoryStore(), program(once, act, odd, budgets=budgets)
    made, _ = kept(declared, store, *script, monotonic_ns=clock())
    outcome = drive(made.run("go", **IDS))
    assert (outcome.kind, outcome.budget, outcome.output) == expected
    return store, declared, outcome


@pytest.mark.parametrize("again", list(AGAIN))
@pytest.mark.parametrize("ending", list(ENDINGS))
def test_i43_a_task_that_has_ended_is_not_begun_anew_by_the_same_ids(ending: str, again: str) -> None:
    """I-43, D25: its outcome again, and nothing asked or executed; only what follows a finished task is another one."""
    store, declared, first = ended(ending)
    before = list(DONE)
    for _ in range(3):
        made, provider = kept(declared, store, ACTING, finish("next"), monotonic_ns=clock())
        outcome = drive(AGAIN[again](made, first.observations))
        if ending == "finished" and again.startswith("another"):
            assert outcome.output == "next"
            return
        assert (outcome.kind, outcome.budget, outcome.output) == (first.kind, first.budget, first.output)
        assert (str(outcome.error), outcome.observations) == (str(first.error), first.observations)
        assert (outcome.decisions, outcome.calls, provider.requests) == (0, 0, [])
    assert before == DONE
    assert drive(store.totals()).reserved == 0


@settings(deadline=None, max_examples=150)
@given(
    steps=st.lists(st.tuples(st.sampled_from(list(AGAIN)), st.booleans()), max_size=8),
    limits=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    cut=st.integers(0, 3),
)
def test_i43_whatever_a_host_does_with_the_same_ids_an_unfinished_invocation_spends_once(
    steps: list[tuple[str, bool]], limits: tuple[int, int], cut: int
) -> None:
    """I-43: runs, other tasks and resumptions in any order, over failing providers: never above one task's budget."""
    DONE.clear()
    store, asked = MemoryStore(), 0
    declared = program(once, act, budgets=Budgets(max_decisions=limits[0], max_calls=limits[1]))
    for again, down in [("same task", bool(cut)), *steps]:
        script = [ACTING] * cut + [AgentDecisionProviderUnavailable("down")] if down else [ACTING] * 9
        made, provider = kept(declared, store, *script)
        with contextlib.suppress(AgentDecisionProviderUnavailable, CheckpointRefused):
            drive(AGAIN[again](made, []))
        asked += len(provider.requests)
    assert asked <= limits[0]
    assert len(DONE) <= limits[1]
    assert DONE.count(1) <= 1


@pytest.mark.parametrize("again", ["same task", "resume"])
def test_d28_only_a_program_with_more_of_it_goes_on_after_a_budget_ended_a_task(again: str) -> None:
    """I-43: with the difference, and as the same task; another task is not what it goes on with."""
    store, _, first = ended("decisions")
    larger = program(once, act, odd, budgets=Budgets(max_decisions=2))
    made, provider = kept(larger, store)
    assert drive(made.run("go on", **IDS)).kind == "budget_exhausted"
    assert provider.requests == []
    made, provider = kept(larger, store, ACTING)
    outcome = drive(AGAIN[again](made, first.observations))
    assert (outcome.kind, outcome.budget, outcome.decisions) == ("budget_exhausted", "decisions", 1)
    assert [request.task for request in provider.requests] == ["go"]
    assert DONE == [1, 2, 2]


@pytest.mark.parametrize("ending", list(ENDINGS))
def test_d25_a_repeated_task_with_another_text_or_other_observations_is_refused(ending: str) -> None:
    """What cannot be told from a slip of the host executes nothing."""
    store, declared, first = ended(ending)
    made, provider = kept(declared, store, ACTING)
    with pytest.raises(CheckpointRefused) as caught:
        drive(made.run("go", **IDS, observations=first.observations[:1]))
    assert (caught.value.problem, provider.requests) == ("repeated", [])
    other = MemoryStore()
    drive(kept(declared, other, finish())[0].run("go", **IDS, task_id="1"))
    with pytest.raises(CheckpointRefused) as caught:
        drive(kept(declared, other, ACTING)[0].run("go on", **IDS, task_id="1"))
    assert caught.value.problem == "repeated"
    for task_id in ("", 1, "a" * 1000):
        with pytest.raises(MinutebookError):
            drive(kept(declared, other)[0].run("go", **IDS, task_id=task_id))  # type: ignore[arg-type]


def test_d25_a_task_id_names_a_task_in_a_checkpoint() -> None:
    """Where it could do nothing it is refused."""
    for made, ids in ((runtime(program())[0], IDS), (kept(program(), MemoryStore())[0], {"run_id": "r"})):
        with pytest.raises(InvalidOption, match="task_id"):
            drive(made.run("go", **ids, task_id="1"))


@pytest.mark.parametrize("blank", ["", " \n\t"])
def test_d25_a_blank_task_is_refused_before_anything_of_it_is_kept(blank: str) -> None:
    """D25: a provider may refuse one at each resume; the next task begins as if nothing had been said."""
    made, provider = kept(program(), MemoryStore(), finish(), finish("again"))
    assert drive(made.run("first", **IDS)).output == "done"
    with pytest.raises(InvalidValue, match="task: empty or blank"):
        drive(made.run(blank, **IDS))
    assert drive(made.run("second", **IDS)).output == "again"
    assert [request.task for request in provider.requests] == ["first", "second"]


def test_d25_a_run_without_a_checkpoint_cannot_be_resumed() -> None:
    """Neither one that never was, nor one of another run, invocation or namespace."""
    store = MemoryStore("one")
    drive(kept(program(look), store, calls(call("look", path="a"), exchange=2))[0].run("go", **IDS))
    for ids in (("r", "other"), ("other", "i")):
        with pytest.raises(CheckpointRefused, match="no checkpoint"):
            drive(kept(program(look), store)[0].resume(*ids))
    other = JournalStore(store.journal, namespace="other")
    with pytest.raises(CheckpointRefused) as caught:
        drive(kept(program(look), other)[0].resume("r", "i"))
    assert caught.value.problem == "absent"
    assert drive(store.totals()).conversations == 1


def test_d22_two_workers_do_not_run_one_invocation() -> None:
    """D22: the second is Busy before anything is asked; recovery wants the statement, and fences the first."""
    store = MemoryStore()
    other = JournalStore(store.journal, namespace=store.namespace)
    seen: list[Any] = []

    @capability
    async def slow(number: int) -> int:
        DONE.append(number)
        made, provider = kept(program(slow), other, finish("second"))
        try:
            await made.resume("r", "i")
        except DecisionHistoryBusy as busy:
            seen.append((busy.code, len(provider.requests)))
            if number == 2:
                await made.recover("r", "i", worker_stopped=True, epoch=busy.epoch)
                outcome = await made.resume("r", "i")
                seen.append((outcome.output, [one.value for one in outcome.observations]))
        return number

    proposed = calls(*[call("slow", number=number) for number in (1, 2)])
    made, provider = kept(program(slow), store, proposed, calls(call("slow", number=3)))
    with pytest.raises(InvalidOption, match="worker_stopped"):
        drive(made.recover("r", "i", worker_stopped=False))
    with pytest.raises(DecisionHistoryFenced):
        drive(made.run("go", **IDS))
    assert (DONE, len(provider.requests)) == ([1, 2], 1)
    busy = ("DecisionHistoryBusy", 0)
    assert seen == [busy, busy, ("second", [1, {"interrupted": "outcome unknown"}])]


@pytest.mark.parametrize("max_wall", [None, 60])
def test_d07_where_there_is_no_room_for_an_intent_nothing_is_executed(max_wall: int | None) -> None:
    """A store that is full refuses before the effect, and the invocation is free for whoever makes room."""

    async def records_in(store: JournalStore) -> list[bytes]:
        return [entry.payload async for entry in store.entries(store.key('["checkpoint","r","i","clerk"]'))]

    declared = program(act, budgets=Budgets(max_wall=max_wall))
    refusals: set[bool] = set()
    for limit in range(40, 800, 4):
        DONE.clear()
        store = JournalStore(MemoryJournal(StoreBounds(max_bytes=limit)), namespace="t")
        try:
            script = calls(call("act", number=1)), finish()
            drive(kept(declared, store, *script, monotonic_ns=moving())[0].run("go", **IDS))
        except DecisionHistoryStoreFull:
            assert drive(store.totals()).reserved == 0
            assert bool(DONE) == any(b'"intended"' in each for each in drive(records_in(store)))
            refusals.add(bool(DONE))
        else:
            assert (DONE, refusals) == ([1], {False, True})
            return
    raise AssertionError("there was never room")


def test_d25_a_record_that_is_none_is_corrupt() -> None:
    """What stands in a checkpoint is a record or the run is not gone on with."""
    store = MemoryStore()
    key = store.key('["checkpoint","r","i","clerk"]')

    async def operation(record: Any) -> Any:
        return record_of(store, key), None

    def record_of(store: Any, key: Any) -> Any:
        header = new_header(key, checkpoints.FORMAT, 0)
        return Record(header=header, entries=()).adding(Draft(kind=Kind.INPUT, payload=b'{"is":"begun"}'))

    drive(store.transact(key, operation, format=checkpoints.FORMAT))
    with pytest.raises(DecisionHistoryCorrupt):
        drive(kept(program(act), store)[0].resume("r", "i"))
    assert getattr(drive(store.header(key)), "token", None) == ""


def test_o30_values_come_back_from_a_checkpoint_as_they_were() -> None:
    """O-30, I-20: type-exact, whole numbers of any length, in arguments, results and outputs."""
    values = [1, 1.0, True, None, -0.0, 2**64 + 1, -(2**70), 10**300, 5e-324, "\U0001f600\0", {"b": [], "a": {}}]

    @capability
    def echo(value: Any) -> Any:
        return value

    store = MemoryStore()
    declared: Any = Program(name="clerk", instructions="", capabilities=[echo, look], output={})
    proposed = [*(call("echo", value=value) for value in values), call("look", path="a")]
    first = drive(kept(declared, store, calls(*proposed, exchange=2))[0].run("go", **IDS))
    second = drive(kept(declared, store)[0].resume("r", "i"))
    assert repr([seen.value for seen in second.observations]) == repr(values)
    assert repr([seen.arguments for seen in second.observations]) == repr(
        [seen.arguments for seen in first.observations]
    )


def test_d25_what_the_host_observed_itself_is_kept_exactly_or_refused() -> None:
    """Observations that a host brings along become part of the checkpoint; what JSON cannot hold is refused."""
    store = MemoryStore()
    brought = Observation(capability="act", arguments={"number": 1}, value=2, reference=CallReference(2, 0))
    made, provider = kept(program(act), store, AgentDecisionProviderUnavailable("down"))
    with pytest.raises(AgentDecisionProviderUnavailable):
        drive(made.run("go", **IDS, observations=[brought]))
    made, provider = kept(program(act), store, finish())
    drive(made.resume("r", "i"))
    assert provider.requests[0].observations == (brought,)
    odd = Observation(capability="act", arguments={}, value=(1, 2), reference=CallReference(4, 0))
    with pytest.raises(InvalidValue):
        drive(kept(program(act), store)[0].run("go", **IDS, observations=[odd]))
    assert drive(kept(program(act), store, finish())[0].run("go", **IDS)).kind == "finished"


def test_d25_checkpoints_are_kept_with_a_history_that_lasts(tmp_path: Any) -> None:
    """By default in the history's store; a history in RAM holds them only for programs that stop."""
    tmp_path.chmod(0o700)

    class Provider:
        def __init__(self, store: JournalStore) -> None:
            self.store = store

        async def decide(self, request: Any) -> Any:
            return finish()

    async def kept_in(store: JournalStore, *capabilities: Any, **options: Any) -> int:
        async with store:
            await Runtime(program(*capabilities), Provider(store), **options).run("go", **IDS)
            return (await store.totals()).conversations

    async def both() -> None:
        lasting = SQLiteStore(tmp_path / "a.sqlite", namespace="t")
        assert await kept_in(lasting, act) == 1
        assert await kept_in(SQLiteStore(tmp_path / "b.sqlite", namespace="t"), act, checkpoints=False) == 0
        assert await kept_in(MemoryStore(), act) == 0
        assert await kept_in(MemoryStore(), look) == 1
        host = WaitingHost()
        await kept_in(HostStore(host, namespace="t"), act)
        assert len(host.records) == 1

    asyncio.run(both())


def test_d24_a_hosts_own_busy_is_enough_to_tell_a_second_worker() -> None:
    """A host's store need not know which reservation it is, or how old."""
    store = HostStore(BusyHost(), namespace="t")

    async def story() -> None:
        first, second = (kept(program(act), store, finish())[0].run("go", **IDS) for _ in range(2))
        told = await asyncio.gather(first, second, return_exceptions=True)
        (refused,) = [each for each in told if isinstance(each, BaseException)]
        assert type(refused) is DecisionHistoryBusy
        assert refused.epoch is None or refused.epoch > 0

    asyncio.run(story())


@pytest.mark.parametrize("method", ["resume", "abandon"])
def test_d25_without_checkpoints_nothing_is_said_of_a_run_that_never_began(method: str) -> None:
    """A host that forgot `checkpoints=` is told so, and does not look for an expired run."""
    made = Runtime(program(act), ScriptedProvider([]), checkpoints=False)
    with pytest.raises(InvalidOption, match="no checkpoints are kept; give checkpoints="):
        drive(getattr(made, method)("r", "i"))


def test_i37_a_checkpoint_shows_nothing_of_what_it_holds() -> None:
    """I-37: neither the records nor the errors of a run say what was said."""
    store = MemoryStore()
    made, _ = kept(program(look), store, calls(call("look", path="CANARY"), exchange=2))
    outcome = drive(made.run("CANARY", **IDS))
    with pytest.raises(CheckpointRefused) as caught:
        drive(made.run("CANARY again", **IDS))
    answer = outcome.pending[0].deny(by="CANARY", message="CANARY")
    assert "CANARY" not in repr((outcome, outcome.pending, answer, caught.value, vars(caught.value)))


def test_d22_who_is_busy_is_told_what_frees_a_run() -> None:
    """D22: a run is freed by the runtime, which knows its key; the store's own advice would be for another one."""
    store = JournalStore(FaultyJournal(MemoryJournal()), namespace="t")
    made, _ = kept(program(act), store, calls(call("act", number=1), exchange=2))
    drive(cancel_at(lambda: made.run("go", **IDS), 1, Cut.KILLED))
    other = JournalStore(store.journal, namespace=store.namespace)
    for again in (kept(program(act), other)[0].resume("r", "i"), kept(program(act), other)[0].run("go", **IDS)):
        with pytest.raises(DecisionHistoryBusy, match=r"runtime\.recover\(run_id, invocation_id, ") as refused:
            drive(again)
        assert "store." not in str(refused.value)
        assert (refused.value.epoch, type(refused.value.since_ms)) == (1, int)
