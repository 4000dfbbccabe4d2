"""The tools that users test with: they do what they say, at the place that was named."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from minutebook.errors import BlockingMismatch, DecisionHistoryStorageFailed, InvalidOption
from minutebook.model.decisions import Decision, DecisionRequest, Finish
from minutebook.stores.memory import MemoryJournal
from minutebook.testing import (
    Cut,
    Fault,
    FaultyJournal,
    FrozenClock,
    ScriptedProvider,
    SuspendingJournal,
    cancel_at,
    checkpoint,
    drive,
)
from minutebook.testing.conformance.samples import FORMAT, KEY, adding, append, entries, say

REQUEST = DecisionRequest(
    run_id="r", invocation_id="i", agent_ref="a", instructions="", task="t", capabilities=(), output={}
)


def test_clock_moves_only_when_told() -> None:
    """A frozen clock gives the same time until it is advanced, set back or moved."""
    clock = FrozenClock(1_000)
    assert [clock(), clock()] == [1_000, 1_000]
    clock.advance(5)
    assert clock() == 1_005
    clock.set_back(10)
    assert clock() == 995
    clock.jump(7)
    assert clock() == 7


def test_fault_before_a_call_leaves_nothing_and_after_it_everything() -> None:
    """The n-th call fails, before or after its work; what has not struck is told."""
    journal = MemoryJournal(clock=FrozenClock())
    plan = [Fault(call=1), Fault(call=2, after=True), Fault(call=9, method="reserve")]
    faulty = FaultyJournal(journal, plan)
    for count in (0, 1):
        with pytest.raises(DecisionHistoryStorageFailed):
            drive(append(faulty, KEY, "one", say("x")))
        assert len(drive(entries(journal, KEY))) == count
    drive(append(faulty, KEY, "one", say("x")))
    assert faulty.calls == ["reserve"] * 3
    assert faulty.left == (plan[2],)


def test_fault_of_one_method_counts_that_method_alone() -> None:
    """`method` counts its own calls, and `error` makes what is raised."""
    faulty = FaultyJournal(MemoryJournal(), [Fault(call=2, method="header", error=asyncio.CancelledError)])
    drive(faulty.header(KEY))
    drive(faulty.totals("suite"))
    with pytest.raises(asyncio.CancelledError):
        drive(faulty.header(KEY))


async def steps(log: list[str], count: int) -> str:
    try:
        for number in range(count):
            log.append(f"{number}")
            await checkpoint()
    except BaseException as error:
        log.append(type(error).__name__)
        await checkpoint() if not isinstance(error, GeneratorExit) else None
        log.append("cleaned")
        raise
    return "done"


@pytest.mark.parametrize(
    ("cut", "inside", "outside"),
    [
        (Cut.CANCELLED, "CancelledError", asyncio.CancelledError),
        (Cut.TIMEOUT, "CancelledError", TimeoutError),
        (Cut.CLOSED, "GeneratorExit", GeneratorExit),
        (Cut.INTERRUPTED, "KeyboardInterrupt", KeyboardInterrupt),
    ],
)
def test_cut_strikes_at_the_named_await(cut: Cut, inside: str, outside: type[BaseException]) -> None:
    """Each kind of end arrives at the n-th await, clean-up runs, and the caller sees the usual error."""
    for step in (1, 2, 3):
        log: list[str] = []
        ended = asyncio.run(cancel_at(lambda log=log: steps(log, 3), step, cut))  # type: ignore[misc]
        assert ended.struck
        assert not ended.finished
        assert type(ended.error) is outside
        assert log == [*"012"[:step], inside, "cleaned"]
    ended = asyncio.run(cancel_at(lambda: steps([], 3), 4, cut))
    assert (ended.struck, ended.result) == (False, "done")


def test_cut_needs_no_event_loop() -> None:
    """Without asyncio a cancellation is thrown in."""
    log: list[str] = []
    ended = drive(cancel_at(lambda: steps(log, 3), 2, Cut.CANCELLED))
    assert type(ended.error) is asyncio.CancelledError
    assert log == ["0", "1", "CancelledError", "cleaned"]


def test_drive_refuses_what_needs_an_event_loop() -> None:
    """A coroutine that waits for a loop is refused by name, not run for ever."""

    async def waits() -> None:
        loop = asyncio.new_event_loop()
        try:
            await loop.create_future()
        finally:
            loop.close()

    with pytest.raises(BlockingMismatch):
        drive(waits())


def test_suspending_journal_suspends_before_and_after() -> None:
    """Two awaits a call: at the first nothing has happened, at the second everything has."""
    for step, count in ((1, 0), (2, 1)):
        journal = MemoryJournal()
        suspending = SuspendingJournal(journal)
        opening = adding("one", say("x"))
        call: Any = lambda s=suspending, o=opening: s.reserve(KEY, "t", format=FORMAT, opening=o)  # noqa: E731
        assert drive(cancel_at(call, step)).struck
        assert len(drive(entries(journal, KEY))) == count


def test_scripted_provider_answers_in_order_and_keeps_its_requests() -> None:
    """Decisions come in order, exceptions are raised, and a script that has ended says so."""
    first = Decision(finish=Finish(output=1))
    provider = ScriptedProvider([first, ValueError("down")])
    assert drive(provider.decide(REQUEST)) is first
    with pytest.raises(ValueError, match="down"):
        drive(provider.decide(REQUEST))
    with pytest.raises(InvalidOption, match="2 decisions"):
        drive(provider.decide(REQUEST))
    assert provider.requests == [REQUEST] * 3


def test_scripted_provider_may_look_at_the_request() -> None:
    """A function of the request answers for it."""
    provider = ScriptedProvider.answering(lambda request: Decision(finish=Finish(output=request.task)))
    assert drive(provider.decide(REQUEST)).finish == Finish(output="t")
    assert provider.requests == [REQUEST]
