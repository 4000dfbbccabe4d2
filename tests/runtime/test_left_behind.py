"""
What the tasks before one left behind: open calls, a decision that nobody received, a conversation that is held.

The next task, in this conversation or in that of another model, interface or mode, goes on behind all of it; what was
executed is told as executed, and what nobody knows as unknown (D2, D22, D25, D28, I-44).
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from tests.faces.test_decisions import Server, finishes, provider_of, says
from tests.faces.test_decisions import calls as proposing
from tests.runtime.programs import DONE, IDS, call, calls, finish, program
from tests.runtime.test_abandon import OUTPUT, look

from minutebook.decisions import HistoryOptions, OpenAIChatDecisionProvider
from minutebook.errors import (
    AgentDecisionProviderUnavailable,
    CheckpointRefused,
    DecisionHistoryAbsent,
    DecisionHistoryBusy,
    DecisionHistoryNotReserved,
    DecisionHistoryStorageFailed,
)
from minutebook.model.decisions import Decision, DecisionRequest
from minutebook.programs import Runtime
from minutebook.runtime import Budgets, Program, delegate
from minutebook.stores.journal import JournalStore
from minutebook.stores.memory import MemoryJournal
from minutebook.stores.opening import MemoryStore
from minutebook.testing import Cut, Fault, FaultyJournal, ScriptedProvider, SuspendingJournal, cancel_at, drive

UNKNOWN = '{"error":{"interrupted":"outcome unknown"}}'
LOST = Fault(call=1, method="commit", after=True, error=asyncio.CancelledError)
"""The decision is recorded, and its caller is cut before it hears of it."""
LOOKING: Program[Any] = Program(name="agent", instructions="You decide.", capabilities=[look], output=OUTPUT)


def within(decisions: int) -> Program[Any]:
    budgets = Budgets(max_decisions=decisions)
    return Program(name="agent", instructions="You decide.", capabilities=[look], output=OUTPUT, budgets=budgets)


ONCE = within(1)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


class Processes:
    """Process after process over one history and one store of checkpoints."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.history = MemoryJournal()
        self.runs = MemoryJournal()

    def one(
        self,
        *faults: Fault,
        declared: Program[Any] = LOOKING,
        interface: str = "native",
        kept: bool = True,
        **options: Any,
    ) -> Runtime[Any]:
        history = JournalStore(FaultyJournal(SuspendingJournal(self.history), faults), namespace="t")
        runs = JournalStore(FaultyJournal(SuspendingJournal(self.runs)), namespace="runs")
        provider = provider_of(self.server, "chat", interface, history=kept and HistoryOptions(store=history))
        return Runtime(declared, provider, checkpoints=runs, **options)

    def run(self, number: int, *faults: Fault, **options: Any) -> Any:
        return drive(self.one(*faults, **options).run(f"task {number}", task_id=f"{number}", **IDS))

    def resume(self, **options: Any) -> Any:
        return drive(self.one(**options).resume("r", "i"))

    def fail(self, path: str, number: int = 0, **options: Any) -> None:
        """Have a task begin, or go on, with one call, of which no model is told since the server is out."""
        self.server.replies = [proposing("chat", options.get("interface", "native"), path), (503, {}, b"")]
        with pytest.raises(AgentDecisionProviderUnavailable):
            self.run(number, **options) if number else self.resume(**options)

    def recover(self) -> None:
        drive(self.one().recover("r", "i", worker_stopped=True))

    def abandon(self, **options: Any) -> None:
        assert drive(self.one(**options).abandon("r", "i")).kind == "abandoned"

    def give_up(self, number: int, path: str, **options: Any) -> None:
        """Have a task execute one call, of which no model is told any more."""
        self.server.replies = [proposing("chat", options.get("interface", "native"), path)]
        assert self.run(number, declared=ONCE, **options).kind == "budget_exhausted"
        self.abandon(**options)

    def lose(self, number: int, path: str, **options: Any) -> None:
        """Have a task's decision recorded that its caller never hears of."""
        self.server.replies = [proposing("chat", options.get("interface", "native"), path)]
        with pytest.raises(asyncio.CancelledError):
            self.run(number, LOST, **options)

    def told(self) -> list[str]:
        """Return the results in the newest request."""
        return [str(message["content"]) for message in self.server.shown() if message["role"] == "tool"]


@pytest.fixture
def processes(server: Server) -> Iterator[Processes]:
    yield Processes(server)
    assert not server.refused


UNKEPT: dict[str, Any] = {"kept": False}
STRUCTURED: dict[str, Any] = {"interface": "structured"}
elsewhere = pytest.mark.parametrize("other", [STRUCTURED, UNKEPT], ids=["another interface", "no history"])

OTHERS: dict[str, dict[str, Any]] = {
    "another interface": {"interface": "structured"},
    "another mode": {"projection": "opaque_refs"},
}
others = pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)


@pytest.mark.parametrize("again", ["resume", "run"])
@pytest.mark.parametrize("options", [{}, OTHERS["another mode"]], ids=["", "opaque_refs"])
def test_d02_d13_d25_i44_a_tasks_own_calls_are_none_of_the_task_that_was_given_up(
    processes: Processes, server: Server, options: Any, again: str
) -> None:
    """D2, D13, D25, I-44: its first decision is recorded and its caller cut; the call is executed and told as that."""
    processes.give_up(1, "a.txt", **options)
    processes.lose(2, "b.txt", **options)
    server.replies = [finishes("chat", "native")]
    outcome = processes.resume(**options) if again == "resume" else processes.run(2, **options)
    assert (outcome.kind, DONE) == ("finished", ["a.txt", "b.txt"])
    assert processes.told() == ["content of a.txt", "content of b.txt"]
    assert len(server.requests) == 3


NAMED = {**OUTPUT, "properties": {"name": {"type": "string"}}, "required": ["name"]}


@pytest.mark.parametrize("interface", ["native", "structured"])
@pytest.mark.parametrize("lost", ["a call", "a finish"])
def test_d25_a_recorded_decision_that_a_changed_program_does_not_take_is_refused_by_what_to_do(
    processes: Processes, server: Server, lost: str, interface: str
) -> None:
    """D25: it fitted once, so asking for it again ends no budget: the program as it was takes it, or `abandon` does."""
    if lost == "a call":
        processes.lose(1, "a.txt", interface=interface)
        changed = Program(name="agent", instructions="You decide.", capabilities=[], output=OUTPUT)
    else:
        server.replies = [finishes("chat", interface)]
        with pytest.raises(asyncio.CancelledError):
            processes.run(1, LOST, interface=interface)
        changed = Program(name="agent", instructions="You decide.", capabilities=[look], output=NAMED)
    with pytest.raises(CheckpointRefused, match=r"the program as it was.*`abandon`") as caught:
        processes.resume(declared=changed, interface=interface)
    assert (caught.value.problem, len(server.requests)) == ("decision", 1)
    processes.abandon(declared=changed, interface=interface)
    answer = {"name": "n"} if changed.output == NAMED else {"answer": "n"}
    stated = json.dumps(answer if interface == "native" else {"decision": {"action": "finish", **answer}})
    server.replies = [says("chat", stated)]
    assert processes.run(2, declared=changed, interface=interface).output == answer


@pytest.mark.parametrize("change", [*OTHERS, "the conversation was deleted"])
def test_d13_d25_a_decision_is_given_to_its_task_whatever_numbers_were_received_before(
    processes: Processes, server: Server, change: str
) -> None:
    """D13, D25: the numbers of another conversation begin anew, and say nothing of this one."""
    options = OTHERS.get(change, {})
    interface = options.get("interface", "native")
    server.replies = [*[proposing("chat", "native", path) for path in ("a.txt", "b.txt")], finishes("chat", "native")]
    assert processes.run(1).kind == "finished"
    if not options:
        processes.history = MemoryJournal()
    processes.lose(2, "c.txt", **options)
    server.replies = [finishes("chat", interface)]
    assert (processes.resume(**options).kind, DONE) == ("finished", ["a.txt", "b.txt", "c.txt"])
    assert len(server.requests) == 5


def test_d13_d25_a_decision_of_a_conversation_that_began_anew_elsewhere_is_given_to_its_task(
    processes: Processes, server: Server
) -> None:
    """D13, D25: what was decided before stands in another one, and that holds no later decision back."""
    processes.fail("a.txt", 1)
    processes.lose(1, "b.txt", **STRUCTURED)
    server.replies = [finishes("chat", "structured")]
    assert (processes.resume(**STRUCTURED).kind, DONE) == ("finished", ["a.txt", "b.txt"])
    assert len(server.requests) == 4


class Unnamed:
    """A provider of one's own that tells places in a conversation, and names none."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    async def decide(self, request: DecisionRequest) -> Decision:
        decision: Decision = await self.inner.decide(request)
        return msgspec.structs.replace(decision, conversation="", digest="")


def test_d25_a_task_goes_on_behind_a_decision_whose_conversation_has_no_name(
    processes: Processes, server: Server
) -> None:
    """D25: a provider of one's own decided first; the library's goes on in what stands under the same key."""
    server.replies = [proposing("chat", "native", "a.txt"), (503, {}, b"")]
    store = HistoryOptions(store=JournalStore(processes.history, namespace="t"))
    own = Runtime(
        LOOKING,
        Unnamed(provider_of(server, "chat", history=store)),
        checkpoints=JournalStore(processes.runs, namespace="runs"),
    )
    with pytest.raises(AgentDecisionProviderUnavailable):
        drive(own.run("task 1", task_id="1", **IDS))
    server.replies = [finishes("chat", "native")]
    assert processes.resume().kind == "finished"
    assert (processes.told(), DONE) == (["content of a.txt"], ["a.txt"])


@others
def test_d28_d26_calls_that_were_left_open_are_told_when_their_conversation_goes_on(
    processes: Processes, server: Server, other: Any
) -> None:
    """D28, D26, I-44: another task was answered elsewhere meanwhile; what they came to is told all the same, once."""
    processes.give_up(1, "a.txt")
    interface = other.get("interface", "native")
    server.replies = [finishes("chat", interface), finishes("chat", "native"), finishes("chat", "native")]
    assert processes.run(2, **other).kind == "finished"
    for number in (3, 4):
        assert processes.run(number).kind == "finished"
        assert processes.told() == ["content of a.txt"]
    assert DONE == ["a.txt"]


@others
def test_i44_d02_what_a_call_of_another_conversation_came_to_is_told_of_no_other(
    processes: Processes, server: Server, other: Any
) -> None:
    """I-44, D2: two that have the same number, each in its conversation; of the older one nobody knows any more."""
    processes.give_up(1, "a.txt")
    processes.give_up(2, "b.txt", **other)
    server.replies = [finishes("chat", "native")]
    assert processes.run(3).kind == "finished"
    assert processes.told() == [UNKNOWN]
    assert DONE == ["a.txt", "b.txt"]


def test_i44_d25_a_call_that_was_never_received_is_not_told_as_what_it_replaced(
    processes: Processes, server: Server
) -> None:
    """I-44, D25: the messages were gone, and the conversation that began anew gave another call the same number."""
    server.replies = [proposing("chat", "native", "a.txt")]
    server.replies += [(503, {}, b"")]
    with pytest.raises(AgentDecisionProviderUnavailable):
        processes.run(1)
    processes.history = MemoryJournal()
    server.replies = [proposing("chat", "native", "b.txt")]
    with pytest.raises(asyncio.CancelledError):
        drive(processes.one(LOST).resume("r", "i"))
    processes.abandon()
    server.replies = [finishes("chat", "native")]
    assert processes.run(2).kind == "finished"
    assert (processes.told(), DONE) == ([UNKNOWN], ["a.txt"])


def test_d25_d28_calls_are_left_open_by_a_task_that_another_interface_finished_too(
    processes: Processes, server: Server
) -> None:
    """D25, D28: it went on elsewhere, without its messages; the next one opens its turn behind what it left."""
    server.replies = [proposing("chat", "native", "a.txt"), (503, {}, b"")]
    with pytest.raises(AgentDecisionProviderUnavailable):
        processes.run(1)
    server.replies = [finishes("chat", "structured"), finishes("chat", "native")]
    assert processes.resume(**OTHERS["another interface"]).kind == "finished"
    assert processes.run(2).kind == "finished"
    assert (processes.told(), DONE) == ([UNKNOWN], ["a.txt"])


@elsewhere
def test_d02_d25_i44_a_task_goes_not_back_to_a_conversation_that_it_left(
    processes: Processes, server: Server, other: Any
) -> None:
    """D2, D25, I-44: what it did since is not there, and numbers name other calls; it is refused before it is asked."""
    processes.fail("a.txt", 1)
    processes.fail("b.txt", **other)
    asked = len(server.requests)
    for _ in range(2):
        with pytest.raises(CheckpointRefused, match=r"interface.*`abandon`") as caught:
            processes.resume()
        assert caught.value.problem == "conversation"
    assert (len(server.requests), DONE) == (asked, ["a.txt", "b.txt"])
    server.replies = [finishes("chat", other.get("interface", "native"))]
    assert processes.resume(**other).kind == "finished"
    assert DONE == ["a.txt", "b.txt"]


def empty_store(_: MemoryJournal) -> MemoryJournal:
    return MemoryJournal()


def put_back(history: MemoryJournal) -> MemoryJournal:
    """Return a record as a copied file has it: the very same one, and it goes another way from here on."""
    memo = {id(lock): lock for lock in (history._lock,)}  # type: ignore[attr-defined]
    return copy.deepcopy(history, memo)


def copy_of(history: MemoryJournal) -> MemoryJournal:
    copied, source = MemoryJournal(), JournalStore(history, namespace="t")
    for each in drive(source.list()):
        drive(source.copy(each.key, JournalStore(copied, namespace="t")))
    return copied


@pytest.mark.parametrize("lost", [False, True], ids=["answered", "a decision unheard"])
@pytest.mark.parametrize("second", [empty_store, copy_of], ids=["an empty store", "a copy"])
def test_d02_d13_d25_i44_a_task_goes_not_back_to_a_store_that_it_left(
    processes: Processes, server: Server, second: Callable[[MemoryJournal], MemoryJournal], lost: bool
) -> None:
    """D2, D13, D25, I-44: one key, two records, whose places name other calls; nothing is carried out twice."""
    processes.fail("a.txt", 1)
    if lost:
        processes.lose(1, "b.txt")
    first = processes.history
    processes.history = left = second(first)
    processes.fail("c.txt")
    done, asked = [*DONE], len(server.requests)
    processes.history = first
    for _ in range(2):
        with pytest.raises(CheckpointRefused, match=r"another store.*`abandon`") as caught:
            processes.resume()
        assert caught.value.problem == "conversation"
    assert (len(server.requests), DONE) == (asked, done)
    processes.history = left
    server.replies = [finishes("chat", "native")]
    assert processes.resume().kind == "finished"
    assert done == DONE
    assert len(set(done)) == len(done)


def test_i44_d02_given_up_behind_a_record_that_was_put_back_no_call_is_told_as_what_it_was_not(
    processes: Processes, server: Server
) -> None:
    """I-44, D2: the conversation is the same by name, and has not what was done since; nobody knows what came of it."""
    processes.fail("a.txt", 1)
    first, processes.history = processes.history, put_back(processes.history)
    processes.fail("b.txt")
    processes.history = first
    with pytest.raises(CheckpointRefused, match=r"put back.*`abandon`"):
        processes.resume()
    processes.abandon()
    server.replies = [finishes("chat", "native")]
    assert processes.run(2).kind == "finished"
    assert processes.told() == [UNKNOWN]


@elsewhere
def test_i44_d02_what_ran_in_a_copy_is_told_of_no_call_as_refused(
    processes: Processes, server: Server, other: Any
) -> None:
    """I-44, D2: of a task before that copy's own nothing follows for the calls of those that came behind it there."""
    processes.give_up(1, "a.txt")
    processes.history = copy_of(processes.history)
    processes.fail("b.txt", 2)
    server.replies = [finishes("chat", other.get("interface", "native"))]
    assert processes.resume(**other).kind == "finished"
    server.replies = [finishes("chat", "native")]
    assert processes.run(3).kind == "finished"
    assert processes.told()[-1] == UNKNOWN
    assert DONE == ["a.txt", "b.txt"]


def test_i44_d02_what_a_copy_was_told_of_its_call_the_first_record_is_told_as_well(
    processes: Processes, server: Server
) -> None:
    """I-44, D2: the call waits in both, which are two conversations; what it came to is known for each of them."""
    processes.give_up(1, "a.txt")
    first, processes.history = processes.history, copy_of(processes.history)
    server.replies = [finishes("chat", "native"), finishes("chat", "native")]
    assert processes.run(2).kind == "finished"
    assert processes.told() == ["content of a.txt"]
    processes.history = first
    assert processes.run(3).kind == "finished"
    assert processes.told() == ["content of a.txt"]


def test_i44_d02_two_tasks_that_were_given_up_in_two_records_of_one_name_are_told_apart(
    processes: Processes, server: Server
) -> None:
    """I-44, D2: the second one's result is not told as the first one's, whose call waits in the other record."""
    server.replies = [finishes("chat", "native")]
    assert processes.run(0).kind == "finished"
    first, second = processes.history, put_back(processes.history)
    processes.give_up(1, "a.txt")
    processes.history = second
    processes.give_up(2, "b.txt")
    processes.history = first
    server.replies = [finishes("chat", "native")]
    assert processes.run(3).kind == "finished"
    assert processes.told() == [UNKNOWN]


def test_i43_what_a_hosts_own_generator_raises_uses_up_a_decision() -> None:
    """I-43: whatever it is, and be it a conversation of the host's own that is held: the model may have been asked."""
    asked: list[int] = []

    def generate(_messages: Any, _schema: Any) -> Any:
        asked.append(1)
        raise DecisionHistoryBusy("a log of the host's own is held")

    provider = OpenAIChatDecisionProvider(model="m", decision_interface="structured", generate=generate)
    runs = JournalStore(MemoryJournal(), namespace="runs")
    runtime = Runtime(within(2), provider, checkpoints=runs)
    for _ in range(2):
        with pytest.raises(AgentDecisionProviderUnavailable, match="generate raised DecisionHistoryBusy"):
            drive(runtime.run("go", **IDS))
    assert drive(runtime.run("go", **IDS)).kind == "budget_exhausted"
    assert len(asked) == 2


@elsewhere
def test_d02_d25_a_task_goes_on_in_no_conversation_of_an_earlier_one(
    processes: Processes, server: Server, other: Any
) -> None:
    """D2, D25: calls that the earlier task left there are none of its own; given up, the next task begins there."""
    processes.fail("a.txt", 1)
    processes.abandon()
    processes.fail("b.txt", 2, **other)
    with pytest.raises(CheckpointRefused):
        processes.resume()
    processes.abandon()
    server.replies = [finishes("chat", "native")]
    assert processes.run(3).kind == "finished"
    assert DONE == ["a.txt", "b.txt"]


def test_d25_a_task_goes_on_in_a_copy_of_its_conversation(processes: Processes, server: Server) -> None:
    """D25: a copy has another birth and the same place; calls that it was cut before receiving come once."""
    processes.fail("a.txt", 1)
    processes.lose(1, "b.txt")
    processes.history = copy_of(processes.history)
    server.replies = [finishes("chat", "native")]
    assert processes.resume().kind == "finished"
    assert DONE == ["a.txt", "b.txt"]
    assert processes.told() == ["content of a.txt", "content of b.txt"]


@pytest.mark.parametrize("ends", ["finished", "abandoned"])
def test_d02_i44_what_was_decided_without_a_history_tells_nothing_of_a_conversation(
    processes: Processes, server: Server, ends: str
) -> None:
    """D2, I-44: a call that was executed before is never told as one that was not."""
    processes.fail("a.txt", 1)
    if ends == "finished":
        server.replies = [finishes("chat", "native")]
        assert processes.resume(**UNKEPT).kind == "finished"
    else:
        processes.fail("b.txt", **UNKEPT)
        processes.abandon()
    server.replies = [finishes("chat", "native")]
    assert processes.run(2).kind == "finished"
    assert processes.told() == [UNKNOWN]


@pytest.mark.parametrize("ends", ["finished", "abandoned"])
def test_d02_i44_a_task_without_a_history_takes_nothing_from_what_is_known(
    processes: Processes, server: Server, ends: str
) -> None:
    """D2, I-44: what the calls before it came to is told all the same, once their conversation goes on."""
    processes.fail("a.txt", 1)
    processes.abandon()
    if ends == "finished":
        server.replies = [finishes("chat", "native")]
        assert processes.run(2, **UNKEPT).kind == "finished"
    else:
        processes.fail("b.txt", 2, **UNKEPT)
        processes.abandon(**UNKEPT)
    server.replies = [finishes("chat", "native")]
    assert processes.run(3).kind == "finished"
    assert processes.told() == ["content of a.txt"]


def test_d22_d28_what_a_killed_worker_held_is_freed_for_the_next_task(server: Server) -> None:
    """D22, D28: killed at any await, said to be stopped, given up, and the task after it as well before it began."""
    held = 0
    for step in range(1, 200):
        processes = Processes(server)
        server.replies = [proposing("chat", "native", "a.txt"), finishes("chat", "native")]
        made = processes.one()
        if not drive(cancel_at(lambda: made.run("task 1", task_id="1", **IDS), step, Cut.KILLED)).struck:  # noqa: B023
            break
        held += any(each.header.token for each in drive(JournalStore(processes.history, namespace="t").list()))
        with suppress(DecisionHistoryNotReserved, DecisionHistoryAbsent):
            processes.recover()
        with suppress(CheckpointRefused):  # it had not begun
            drive(processes.one().abandon("r", "i"))
        with pytest.raises(DecisionHistoryStorageFailed):
            processes.run(2, Fault(call=1, method="header"))
        processes.abandon()
        server.replies = [finishes("chat", "native")]
        assert processes.run(3).kind == "finished", step
    assert held > 3
    assert not server.refused


GONE = [Fault(call=number) for number in range(3, 12)]
"""The history's server goes away while a request is under way, and with it what would give its conversation back."""


UNRELEASED = [Fault(call=number, method="commit") for number in range(1, 9)]
"""The same, however much is read before."""


def out(processes: Processes, server: Server, number: int = 1, **options: Any) -> None:
    """Have a conversation stay held while the run that held it has ended, and be found so."""
    server.replies = [(503, {}, b"")]
    with pytest.raises(AgentDecisionProviderUnavailable):
        processes.run(number, *GONE, **options)
    with pytest.raises(DecisionHistoryBusy, match=r"runtime\.recover\(run_id, invocation_id, ") as caught:
        processes.resume(**options)
    assert (caught.value.epoch, type(caught.value.since_ms)) == (None, int)  # a checkpoint has epochs of its own


def test_d22_a_conversation_that_is_held_is_told_by_its_own_epoch_where_no_run_is_kept(
    processes: Processes, server: Server
) -> None:
    """D22: it is freed by that epoch, for there is no checkpoint that `runtime.recover` could name."""
    out(processes, server)
    store = JournalStore(processes.history, namespace="t")
    unkept = Runtime(LOOKING, provider_of(server, "chat", history=HistoryOptions(store=store)), checkpoints=False)
    with pytest.raises(DecisionHistoryBusy) as caught:
        drive(unkept.run("task 1", **IDS))
    (held,) = drive(store.list())
    assert caught.value.epoch == held.header.epoch
    assert "runtime.recover" not in str(caught.value)


@pytest.mark.parametrize("given_up", [False, True], ids=["resumed", "given up"])
def test_d22_d25_a_conversation_that_was_not_given_back_is_freed_by_who_knows_its_worker(
    processes: Processes, server: Server, given_up: bool
) -> None:
    """D22, D25: time frees nothing, and one statement does; a second one says nothing any more."""
    out(processes, server)
    if given_up:
        processes.abandon()
    processes.recover()
    with pytest.raises(DecisionHistoryNotReserved):
        processes.recover()
    server.replies = [finishes("chat", "native")]
    assert (processes.run(2) if given_up else processes.resume()).kind == "finished"
    with pytest.raises(DecisionHistoryNotReserved):
        processes.recover()


def test_d22_a_statement_about_another_reservation_frees_no_conversation(processes: Processes, server: Server) -> None:
    """D22: who names an epoch means the holder that had it."""
    out(processes, server)
    with pytest.raises(DecisionHistoryNotReserved):
        drive(processes.one().recover("r", "i", worker_stopped=True, epoch=1))
    with pytest.raises(DecisionHistoryBusy):
        processes.resume()


def test_d22_d28_a_statement_about_a_worker_is_none_about_one_that_came_after_a_decision(
    processes: Processes, server: Server
) -> None:
    """D22, D28: what was said in a task before frees nothing once another worker has decided, in whatever model."""
    processes.fail("a.txt", 1)
    processes.recover()
    processes.abandon()
    server.replies = [finishes("chat", "structured")]
    assert processes.run(2, **STRUCTURED).kind == "finished"
    out(processes, server, 3, **STRUCTURED)


def test_d22_d25_a_statement_about_a_worker_is_none_about_the_next_one_of_its_task(
    processes: Processes, server: Server
) -> None:
    """D22, D25: once another worker has decided, what was said frees nothing that is held since."""
    processes.fail("a.txt", 1)
    processes.recover()
    processes.fail("b.txt")
    server.replies = [(503, {}, b"")]
    with pytest.raises(AgentDecisionProviderUnavailable):
        drive(processes.one(*UNRELEASED).resume("r", "i"))
    for _ in range(2):
        with pytest.raises(DecisionHistoryBusy):
            processes.resume()
    assert DONE == ["a.txt", "b.txt"]


def test_d22_of_two_that_say_it_at_once_one_frees_the_conversation(server: Server) -> None:
    """D22: wherever the second strikes, one is told that it was too late, and neither that anything is damaged."""
    tried = 0
    for step in range(1, 100):
        processes = Processes(server)
        out(processes, server)
        first, second = (processes.one().recover("r", "i", worker_stopped=True) for _ in range(2))
        with suppress(StopIteration):
            for _ in range(step):
                first.send(None)
        if first.cr_frame is None:
            second.close()
            break
        tried, late = step, 0
        for each in (second, first):
            try:
                drive(each)
            except DecisionHistoryNotReserved:
                late += 1
        assert late == 1, step
        server.replies = [finishes("chat", "native")]
        assert processes.resume().kind == "finished"
    assert tried > 5


def test_d22_what_is_said_of_an_idle_run_says_nothing_of_who_takes_it_meanwhile(
    processes: Processes, server: Server
) -> None:
    """D22: nobody held it when it was looked at; whoever has it by now goes on, and no statement is about them."""
    processes.fail("a.txt", 1)
    server.replies = [finishes("chat", "native")]
    saying, other = processes.one().recover("r", "i", worker_stopped=True), processes.one().resume("r", "i")
    for _ in range(2):
        saying.send(None)
    while not any(each.header.token for each in drive(JournalStore(processes.runs, namespace="runs").list())):
        other.send(None)
    with pytest.raises(DecisionHistoryNotReserved):
        drive(saying)
    assert drive(other).kind == "finished"


def test_d22_d28_what_an_agent_held_is_freed_with_its_caller(server: Server) -> None:
    """D22, D28: it ran in the same worker, so what is said of the one is said of the other."""
    history, runs = MemoryJournal(), MemoryStore("runs")

    def made(*faults: Fault) -> Runtime[Any]:
        store = JournalStore(FaultyJournal(history, faults), namespace="t")
        providers = {"agent": provider_of(server, "chat", history=HistoryOptions(store=store))}
        asks = calls(call("agent", task="Look."), exchange=2)
        above = ScriptedProvider.answering(lambda request: finish() if request.observations else asks)
        return Runtime(program(delegate(LOOKING)), above, providers=providers, checkpoints=runs)

    server.replies = [(503, {}, b"")]
    with pytest.raises(AgentDecisionProviderUnavailable):
        drive(made(*GONE).run("go", **IDS))
    with pytest.raises(DecisionHistoryBusy):
        drive(made().resume("r", "i"))
    drive(made().recover("r", "i", worker_stopped=True))
    server.replies = [finishes("chat", "native")]
    assert drive(made().resume("r", "i")).kind == "finished"


def test_d13_d25_an_answer_that_used_up_its_budget_unheard_comes_with_a_larger_one(server: Server) -> None:
    """D13, D25: what was asked for counts, heard or not; one decision more delivers what is recorded, unasked."""
    processes = Processes(server)
    server.replies = [finishes("chat", "native", "one")]
    with pytest.raises(asyncio.CancelledError):
        processes.run(1, LOST, declared=ONCE)
    assert processes.resume(declared=ONCE).kind == "budget_exhausted"
    twice: Program[Any] = Program(
        name="agent", instructions="You decide.", capabilities=[look], output=OUTPUT, budgets=Budgets(max_decisions=2)
    )
    outcome = processes.resume(declared=twice)
    assert (outcome.kind, outcome.output) == ("finished", {"answer": "one"})
    assert len(server.requests) == 1


def test_d13_d25_d28_an_answer_of_a_task_with_the_same_words_and_effects_is_none_of_the_next(server: Server) -> None:
    """D13, D25, D28: what a task that began anew was told tells it from no other; who opened the turn does."""
    processes = Processes(server)

    def begun(number: int) -> None:
        server.replies = [proposing("chat", "native", "a.txt"), (503, {}, b"")]
        with pytest.raises(AgentDecisionProviderUnavailable):
            drive(processes.one().run("the task", task_id=f"{number}", **IDS))

    begun(1)
    server.replies = [finishes("chat", "structured", "one")]
    assert processes.resume(interface="structured").kind == "finished"
    begun(2)
    server.replies = [finishes("chat", "structured", "two")]
    with suppress(CheckpointRefused):
        assert processes.resume(interface="structured").output == {"answer": "two"}
