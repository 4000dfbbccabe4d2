"""A task that comes to no answer is given up: the invocation's next task begins, and nothing is executed or renewed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.faces.test_decisions import Server, finishes, provider_of
from tests.faces.test_decisions import calls as proposing
from tests.providers.loopback import Reply
from tests.runtime.programs import DONE, IDS, act, call, calls, finish, kept, program, runtime

from minutebook import sync
from minutebook.decisions import HistoryOptions
from minutebook.errors import (
    AgentDecisionProviderUnavailable,
    ApprovalRefused,
    CheckpointRefused,
    DecisionHistoryBusy,
    DecisionHistoryLimitExceeded,
    DecisionHistoryStorageFailed,
    InvalidOption,
)
from minutebook.programs import Runtime
from minutebook.runtime import Budgets, Program, capability, delegate
from minutebook.stores.journal import JournalStore
from minutebook.stores.memory import MemoryJournal
from minutebook.stores.opening import MemoryStore
from minutebook.testing import Cut, Fault, FaultyJournal, ScriptedProvider, cancel_at, drive


@capability(needs_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    DONE.append(amount)
    return "paid"


@capability
def look(path: str) -> str:
    """Read a file."""
    DONE.append(path)
    return f"content of {path}" + "x" * (20_000 if path == "long.txt" else 0)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


CLERK = program(act, pay, budgets=Budgets(max_decisions=2))
OUTPUT: dict[str, Any] = {
    "type": "object",
    "properties": {"answer": {"type": "string", "maxLength": 40}},
    "required": ["answer"],
    "additionalProperties": False,
}
LOOKING: Program[Any] = Program(
    name="agent", instructions="You decide.", capabilities=[look], output=OUTPUT, budgets=Budgets(max_decisions=1)
)
every = pytest.mark.parametrize(
    ("api", "interface"), [(api, how) for api in ("chat", "responses") for how in ("native", "structured")]
)


def exhausted(store: JournalStore) -> Any:
    script = [calls(call("act", number=n), exchange=2 * n) for n in (1, 2)]
    outcome = drive(kept(CLERK, store, *script)[0].run("go", **IDS))
    assert (outcome.kind, outcome.budget) == ("budget_exhausted", "decisions")
    return outcome


def test_d28_after_an_abandoned_task_the_next_one_begins() -> None:
    """D28, D25: an exhausted task is given up by name; the next has budgets of its own, also in another process."""
    store = MemoryStore()
    first = exhausted(store)
    assert drive(kept(CLERK, store)[0].run("next", **IDS)).kind == "budget_exhausted"
    given_up = drive(kept(CLERK, store)[0].abandon("r", "i"))
    assert (given_up.kind, given_up.decisions, given_up.calls) == ("abandoned", 0, 0)
    assert given_up.observations == first.observations
    made, provider = kept(CLERK, store, calls(call("act", number=3), exchange=9), finish("done"))
    outcome = drive(made.run("next", **IDS))
    assert (outcome.kind, outcome.output, outcome.decisions, DONE) == ("finished", "done", 2, [1, 2, 3])
    assert [request.task for request in provider.requests] == ["next", "next"]


@pytest.mark.parametrize("checkpoints", [True, False], ids=["", "no checkpoints"])
@every
def test_d13_d28_a_task_that_another_one_superseded_can_be_told_again(
    server: Server, api: str, interface: str, checkpoints: bool
) -> None:
    """D13, D28, I-44: an outage takes one task after the other; whichever is told at its end is answered."""
    down: Reply = (503, {}, b"")
    server.replies = [*[down] * 5, *[finishes(api, interface)] * 3]
    store = MemoryStore()
    runs = Runtime(
        LOOKING,
        provider_of(server, api, interface, history=HistoryOptions(store=store)),
        checkpoints=store if checkpoints else False,
    )

    def told(number: int, task: str) -> Any:
        return drive(runs.run(task, **IDS, **({"task_id": f"{number}"} if checkpoints else {})))

    for number, task in enumerate("ababa"):
        with pytest.raises(AgentDecisionProviderUnavailable):
            told(number, task)
        if checkpoints:
            drive(runs.abandon("r", "i"))
    assert [told(number, task).kind for number, task in enumerate("baa", 5)] == ["finished"] * 3
    assert [message["content"] for message in server.shown(-1) if message["role"] == "user"] == ["b", "a", "a"]
    assert not server.refused


@pytest.mark.parametrize("words", ["Go on.", "Look."], ids=["", "same words"])
@pytest.mark.parametrize("lost", ["a finish", "calls"])
def test_d13_d25_d28_i44_what_a_task_lost_that_was_given_up_answers_no_later_one(
    server: Server, lost: str, words: str
) -> None:
    """D13, D25, D28, I-44: recorded, and its caller cut; the next task fails before its turn, and asks for its own."""
    journal, runs = MemoryJournal(), MemoryStore("runs")
    server.replies = [
        finishes("chat", "native", "one") if lost == "a finish" else proposing("chat", "native", "a.txt"),
        finishes("chat", "native", "two"),
    ]

    def made(*faults: Fault) -> Runtime[Any]:
        store = JournalStore(FaultyJournal(journal, faults), namespace="t")
        provider = provider_of(server, "chat", "native", history=HistoryOptions(store=store))
        return Runtime(program(look, output=OUTPUT), provider, checkpoints=runs)

    cut = Fault(call=1, method="commit", after=True, error=asyncio.CancelledError)
    with pytest.raises(asyncio.CancelledError):
        drive(made(cut).run("Look.", **IDS, task_id="1"))
    drive(made().abandon("r", "i"))
    for faults in ([Fault(call=1, method="header")], [Fault(call=1, method="reserve")]):
        with pytest.raises(DecisionHistoryStorageFailed):
            drive(made(*faults).run(words, **IDS, task_id="2"))
    with pytest.raises(asyncio.CancelledError):
        drive(made(cut).resume("r", "i"))
    for _ in range(2):  # its own was recorded as well
        outcome = drive(made().resume("r", "i"))
        assert (outcome.kind, outcome.output, DONE) == ("finished", {"answer": "two"}, [])
    assert len(server.requests) == 2
    assert not server.refused


@pytest.mark.parametrize("change", ["the checkpoints are lost", "another mode lies between"])
def test_d25_d27_what_another_task_finished_with_answers_none_that_knows_of_no_decision(
    server: Server, change: str
) -> None:
    """D25, D27: a task that begins without what was received before it asks for its own answer when it is resumed."""
    journal, runs = MemoryJournal(), MemoryStore("runs")
    server.replies = [finishes("chat", "native", told) for told in ("one", "two", "three")]

    def made(*faults: Fault, **options: Any) -> Runtime[Any]:
        store = JournalStore(FaultyJournal(journal, faults), namespace="t")
        provider = provider_of(server, "chat", "native", history=HistoryOptions(store=store))
        return Runtime(program(output=OUTPUT), provider, checkpoints=runs, **options)

    assert drive(made().run("Look.", **IDS, task_id="1")).output == {"answer": "one"}
    if change == "the checkpoints are lost":
        runs = MemoryStore("runs")
    else:
        drive(made(projection="opaque_refs").run("Look.", **IDS, task_id="2"))
    with pytest.raises(DecisionHistoryStorageFailed):
        drive(made(Fault(call=1, method="reserve")).run("Look.", **IDS, task_id="3"))
    asked = len(server.requests)
    outcome = drive(made().resume("r", "i"))
    assert (outcome.kind, outcome.output) == ("finished", {"answer": "two" if asked == 1 else "three"})
    assert len(server.requests) == asked + 1


def test_i43_abandoning_renews_no_budget_of_the_task() -> None:
    """I-43: the same task again gives what it came to; nothing is asked, executed or raised by larger budgets."""
    store = MemoryStore()
    exhausted(store)
    larger = program(act, pay, budgets=Budgets(max_decisions=9))
    for declared in (CLERK, larger):
        drive(kept(declared, store)[0].abandon("r", "i"))
        for again in (kept(declared, store)[0].run("go", **IDS), kept(declared, store)[0].resume("r", "i")):
            outcome = drive(again)
            assert (outcome.kind, outcome.decisions, DONE) == ("abandoned", 0, [1, 2])


def test_d28_a_finished_task_is_left_as_it_is() -> None:
    """D28: there is nothing to give up; what it finished with comes back."""
    store = MemoryStore()
    drive(kept(CLERK, store, finish("done"))[0].run("go", **IDS))
    outcome = drive(kept(CLERK, store)[0].abandon("r", "i"))
    assert (outcome.kind, outcome.output) == ("finished", "done")


def test_i42_a_call_of_an_abandoned_task_is_never_executed() -> None:
    """I-42: what waited for a human is observed as stopped, and an answer that comes later is for nothing."""
    store = MemoryStore()
    waits = drive(
        kept(CLERK, store, calls(call("act", number=1), call("pay", amount=5), exchange=2))[0].run("go", **IDS)
    )
    given_up = drive(kept(CLERK, store)[0].abandon("r", "i"))
    assert [each.value for each in given_up.observations] == [2, {"refused": "run_stopped"}]
    assert given_up.pending == ()
    with pytest.raises(ApprovalRefused):
        drive(kept(CLERK, store)[0].resume("r", "i", approvals=[waits.pending[0].approve(by="ann")]))
    assert DONE == [1]


def test_i44_a_call_that_was_under_way_is_observed_as_interrupted() -> None:
    """I-44, D22: after a crash the worker is declared stopped; its call is reported and not repeated."""
    store = JournalStore(FaultyJournal(MemoryJournal()), namespace="t")
    made, _ = kept(CLERK, store, calls(call("act", number=1), call("act", number=2), exchange=2))
    drive(cancel_at(lambda: made.run("go", **IDS), 1, Cut.KILLED))
    other = JournalStore(store.journal, namespace=store.namespace)
    with pytest.raises(DecisionHistoryBusy):
        drive(kept(CLERK, other)[0].abandon("r", "i"))
    drive(kept(CLERK, other)[0].recover("r", "i", worker_stopped=True))
    given_up = drive(kept(CLERK, other)[0].abandon("r", "i"))
    assert [each.value for each in given_up.observations] == [
        {"interrupted": "outcome unknown"},
        {"refused": "run_stopped"},
    ]
    assert DONE == [1]


def test_d28_the_agents_of_an_abandoned_task_end_like_it() -> None:
    """D28, I-43: what they used stays used by their caller, and none of their calls is executed any more."""
    helper: Program[Any] = Program(name="helper", instructions="Help.", capabilities=[pay])
    boss = program(delegate(helper, max_branches=2))
    store = MemoryStore()
    helping = ScriptedProvider([calls(call("pay", amount=1), exchange=2), finish("b is done")])
    made, _ = kept(boss, store, calls(call("helper", tasks=["a", "b"]), exchange=2), providers={"helper": helping})
    assert drive(made.run("go", **IDS)).kind == "approval_required"
    given_up = drive(kept(boss, store)[0].abandon("r", "i"))
    assert given_up.kind == "abandoned"
    assert [each.value for each in given_up.observations] == [[{"error": "abandoned"}, "b is done"]]
    assert drive(kept(boss, store, finish("next is done"))[0].run("next", **IDS)).output == "next is done"
    held = [listing.header.token for listing in drive(store.list())]
    assert (held, DONE) == ([""] * len(held), [])


@every
def test_d26_the_next_tasks_model_is_told_what_the_last_calls_came_to(server: Server, api: str, interface: str) -> None:
    """D26, D28: the exchange that stood open is completed by what was observed, and the next task opens its turn."""
    store = MemoryStore("t")

    def made() -> Runtime[Any]:
        provider = provider_of(server, api, interface, history=HistoryOptions(store=store))
        return Runtime(LOOKING, provider, checkpoints=store)

    server.replies = [proposing(api, interface, "a.txt")]
    assert drive(made().run("Look.", **IDS)).kind == "budget_exhausted"
    drive(made().abandon("r", "i"))
    server.replies = [finishes(api, interface)]
    assert drive(made().run("What was in it?", **IDS)).output == {"answer": "done"}
    shown = [str(message) for message in server.shown(1)]
    assert [sum(text in message for message in shown) for text in ("content of a.txt", "What was in it?")] == [1, 1]
    assert "What was in it?" in shown[-1]
    assert server.refused == []


@every
def test_d08_a_task_that_fits_no_window_is_given_up(server: Server, api: str, interface: str) -> None:
    """D8, D28: a result that fits no window would stand in the next task's window too; that it was executed is told."""
    store = MemoryStore("t")
    declared: Program[Any] = Program(name="agent", instructions="You decide.", capabilities=[look], output=OUTPUT)

    def made() -> Runtime[Any]:
        options = HistoryOptions(store=store, max_bytes=8_000)
        return Runtime(declared, provider_of(server, api, interface, history=options), checkpoints=store)

    server.replies = [proposing(api, interface, "long.txt")]
    with pytest.raises(DecisionHistoryLimitExceeded):
        drive(made().run("Look.", **IDS))
    with pytest.raises(DecisionHistoryLimitExceeded):
        drive(made().resume("r", "i"))
    given_up = drive(made().abandon("r", "i"))
    assert len(given_up.observations[0].value) > 20_000
    server.replies = [finishes(api, interface)]
    assert drive(made().run("Leave it.", **IDS)).output == {"answer": "done"}
    assert "bytes left out" in str(server.shown(1))
    assert (server.refused, DONE) == ([], ["long.txt"])


def test_d28_calls_of_a_decision_that_was_never_delivered_are_refused_for_the_next_task(server: Server) -> None:
    """D28, D25: a decision that was recorded while its caller was cut off; its calls are stopped with the task."""
    store, journal = MemoryStore("t"), MemoryJournal()

    def made(at: Any) -> Runtime[Any]:
        provider = provider_of(server, "chat", "native", history=HistoryOptions(store=JournalStore(at, namespace="t")))
        return Runtime(LOOKING, provider, checkpoints=store)

    fault = Fault(call=1, method="commit", after=True, error=ConnectionError)
    server.replies = [proposing("chat", "native", "a.txt")]
    with pytest.raises(ConnectionError):
        drive(made(FaultyJournal(journal, [fault])).run("Look.", **IDS))
    drive(made(journal).abandon("r", "i"))
    server.replies = [finishes("chat", "native")]
    assert drive(made(journal).run("Leave it.", **IDS)).kind == "finished"
    assert "run_stopped" in str(server.shown(1))
    assert (server.refused, DONE) == ([], [])


def test_d28_what_cannot_be_abandoned_is_refused_by_name() -> None:
    """D28: without checkpoints nothing is kept that could be given up, and a run that never began is none."""
    with pytest.raises(InvalidOption):
        drive(runtime(CLERK)[0].abandon("r", "i"))
    with pytest.raises(CheckpointRefused) as refused:
        drive(kept(CLERK, MemoryStore())[0].abandon("r", "i"))
    assert refused.value.problem == "absent"


def test_b11_blocking_callers_abandon_too() -> None:
    """B11: the twin in minutebook.sync."""

    @capability
    def add(number: int) -> int:
        return number + 1

    class Provider:
        def decide(self, _: Any) -> Any:
            return calls(call("add", number=1))

    with sync.MemoryStore("t") as store:
        made: Any = sync.Runtime(program(add, budgets=Budgets(max_decisions=1)), Provider(), checkpoints=store)
        assert made.run("go", **IDS).kind == "budget_exhausted"
        assert made.abandon("r", "i").kind == "abandoned"
        assert made.run("next", **IDS).kind == "budget_exhausted"
