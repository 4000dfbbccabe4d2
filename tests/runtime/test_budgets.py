"""Budgets: checked when made, spent before each step, never given back; when one is out the outcome says which."""

from __future__ import annotations

import itertools
import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.programs import act, call, calls, counted_ids, finish, program, runtime, still

from minutebook.errors import InvalidOption
from minutebook.model.decisions import Decision, DecisionRequest, Finish
from minutebook.runtime import Budgets, Runtime, capability
from minutebook.runtime.budgets import Ledger, Used
from minutebook.testing import ScriptedProvider, drive

NONE_USED = Used(decisions=0, calls={})


@capability
def ping() -> str:
    return "pong"


@capability(max_calls=2)
def rare(number: int) -> int:
    if number < 0:
        raise ValueError
    return number


@pytest.mark.parametrize("name", ["max_decisions", "max_calls"])
@pytest.mark.parametrize("value", [0, -1, True, 1.0, 2.5, math.nan, "3", None, 2**63])
def test_i43_counts_are_positive_integers(name: str, value: Any) -> None:
    """I-43: integers only; a negative or NaN budget would never run out."""
    with pytest.raises(InvalidOption, match=name):
        Budgets(**{name: value})


@pytest.mark.parametrize("value", [0, -1, True, math.nan, math.inf, "3", timedelta(0), timedelta(seconds=-1), 1e12])
def test_i43_wall_time_is_finite_and_positive(value: Any) -> None:
    """I-43: what does not end is `None`, said on purpose."""
    with pytest.raises(InvalidOption, match="max_wall"):
        Budgets(max_wall=value)


def test_wall_time_is_held_in_whole_nanoseconds() -> None:
    """Seconds and a `timedelta` are the same budget."""
    assert Budgets(max_wall=1.5).max_wall_ns == Budgets(max_wall=timedelta(seconds=1.5)).max_wall_ns == 1_500_000_000


def test_decisions_run_out_as_an_outcome() -> None:
    """D28: an exhausted budget is a typed outcome; a model that never finishes is stopped."""
    declared = program(ping, budgets=Budgets(max_decisions=3))
    runs, provider = runtime(declared, *[calls(call("absent"))] * 4)
    outcome = drive(runs.run("go"))
    assert (outcome.kind, outcome.budget, outcome.decisions, outcome.calls) == ("budget_exhausted", "decisions", 3, 0)
    assert len(provider.requests) == len(outcome.observations) == 3


def test_a_model_out_of_calls_may_still_finish() -> None:
    """With no call left nothing is offered to call, so the model ends with what it has."""
    runs, provider = runtime(program(ping, budgets=Budgets(max_calls=1)), calls(call("ping"), call("ping")), finish())
    outcome = drive(runs.run("go"))
    assert [seen.value for seen in outcome.observations] == ["pong", {"refused": "calls_exhausted"}]
    assert provider.requests[1].capabilities == ()
    assert outcome.kind == "finished"


def test_a_model_out_of_calls_that_goes_on_calling_is_stopped() -> None:
    """The budget that is named is the one that was out."""
    runs, _ = runtime(program(ping, budgets=Budgets(max_calls=1)), *[calls(call("ping"))] * 3)
    outcome = drive(runs.run("go"))
    assert (outcome.kind, outcome.budget, outcome.decisions, outcome.calls) == ("budget_exhausted", "calls", 2, 1)
    assert len(outcome.observations) == 2


def test_a_call_that_failed_is_spent_and_a_refused_one_is_not() -> None:
    """What was executed counts, however it ended; what was never executed does not."""
    runs, _ = runtime(
        program(rare),
        calls(call("rare", number="x"), call("rare", number=-1), call("rare", number=1), call("rare", number=2)),
        finish(),
    )
    outcome = drive(runs.run("go"))
    assert [seen.value for seen in outcome.observations[1:]] == [
        {"error": "ValueError"},
        1,
        {"refused": "capability_exhausted"},
    ]
    assert outcome.calls == 2


def test_wall_time_runs_out_between_two_calls() -> None:
    """The rest of a decision is refused and observed; no further decision is asked for."""
    now_ns = [0]

    @capability
    def slow() -> str:
        now_ns[0] += 700_000_000
        return "slow"

    runs, provider = runtime(
        program(slow, budgets=Budgets(max_wall=1)), calls(*[call("slow")] * 3), clock=lambda: now_ns[0]
    )
    outcome = drive(runs.run("go"))
    assert [seen.value for seen in outcome.observations] == ["slow", "slow", {"refused": "wall_exhausted"}]
    assert (outcome.kind, outcome.budget, len(provider.requests)) == ("budget_exhausted", "wall", 1)


def test_d03_d28_wall_time_that_runs_out_as_a_request_is_made_still_shows_what_was_offered() -> None:
    """D3, D28: whichever reading of the clock finds it spent, a request shows what it did before."""
    told: set[tuple[tuple[str, ...], tuple[str, ...]]] = set()
    for last in range(12):
        readings = itertools.count()
        runs, provider = runtime(
            program(act, budgets=Budgets(max_wall=1)),
            finish(),
            clock=lambda readings=readings, last=last: (next(readings) > last) * 10**9,
        )
        drive(runs.run("go"))
        told |= {
            (tuple(each.name for each in request.capabilities), tuple(each.name for each in request.shown))
            for request in provider.requests
        }
    assert told == {(("act",), ("act",)), ((), ("act",))}


@pytest.mark.parametrize("now", [1.0, math.nan, True, None])
def test_a_clock_that_gives_no_integer_is_refused(now: Any) -> None:
    """A NaN compares false with every deadline, and so would never end anything."""
    runs, provider = runtime(program(budgets=Budgets(max_wall=1)), finish(), clock=lambda: now)
    with pytest.raises(InvalidOption, match="monotonic_ns"):
        drive(runs.run("go"))
    assert provider.requests == []


@settings(deadline=None)
@given(readings=st.lists(st.integers(-(2**70), 2**70), min_size=1))
def test_i43_a_clock_that_goes_back_gives_nothing_back(readings: list[int]) -> None:
    """I-43: wall time only decreases, and never below nothing, whatever the clock says."""
    times = iter([0, *readings])
    ledger = Ledger(Budgets(max_wall=60), {}, NONE_USED, lambda: next(times))
    left = [60_000_000_000, *(ledger.wall_left_ns() or 0 for _ in readings)]
    assert left == sorted(left, reverse=True)
    assert left[-1] >= 0


PROPOSED = st.sampled_from(
    [call("ping"), call("ping", extra=1), call("rare", number=1), call("rare", number=-1), call("rare"), call("absent")]
)
STEPS = st.lists(st.lists(PROPOSED, min_size=1, max_size=5), max_size=8)
EXECUTABLE = [call("ping"), call("rare", number=1), call("rare", number=-1)]


def left_by(budgets: Budgets, request: DecisionRequest) -> tuple[int, ...]:
    """Return what is left by the requests alone: how many calls of each kind were executed so far."""
    done = [seen for seen in request.observations if not (seen.error and "refused" in dict(seen.value))]  # type: ignore[arg-type,call-overload]
    return budgets.max_calls - len(done), 2 - sum(seen.capability == "rare" for seen in done)


@settings(deadline=None, max_examples=300)
@given(
    steps=STEPS, cut=st.integers(0, 8), decisions=st.integers(1, 6), limit=st.integers(1, 6), referenced=st.booleans()
)
def test_i43_budgets_only_decrease_also_over_a_resumed_run(
    steps: list[list[Any]], cut: int, decisions: int, limit: int, referenced: bool
) -> None:
    """I-43: over any interleaving, cut anywhere and resumed, nothing is gained and nothing executed beyond a budget."""
    budgets = Budgets(max_decisions=decisions, max_calls=limit)
    declared = program(ping, rare, budgets=budgets)
    script = [calls(*step, exchange=2 * at if referenced else None) for at, step in enumerate(steps, start=1)]
    answers = iter([*script[:cut], ConnectionError("cut"), *script[cut:]])
    provider = ScriptedProvider.answering(lambda _: next(answers, Decision(finish=Finish(output="done"))))
    runs = Runtime(declared, provider, fresh_id=counted_ids(), monotonic_ns=still, clock=still)
    kept: list[Any] = []
    try:
        drive(runs.run("go", run_id="r", invocation_id="i", on_observation=kept.append))
    except ConnectionError:
        outcome = drive(
            runs.run("go", run_id="r", invocation_id="i", observations=tuple(kept), on_observation=kept.append)
        )
        assert outcome.observations == tuple(kept)

    left = [left_by(budgets, request) for request in provider.requests]
    assert all(
        now <= before for earlier, later in itertools.pairwise(left) for before, now in zip(earlier, later, strict=True)
    )
    assert all(each >= 0 for step in left for each in step)
    for request, (any_calls, rare_calls) in zip(provider.requests, left, strict=True):
        offered = {spec.name for spec in request.capabilities}
        assert offered == ({"ping"} if any_calls else set()) | ({"rare"} if min(any_calls, rare_calls) else set())
    # A request that was cut left nothing to count it by, so it alone may come on top.
    assert len(provider.requests) <= decisions + 1
    assert len(kept) <= sum(len(step) for step in steps)


def test_i43_the_ledger_counts_what_was_used_before() -> None:
    """A run that goes on with more than its budget has nothing left, and no debt."""
    ledger = Ledger(Budgets(max_decisions=2, max_calls=2), {"rare": 1}, Used(decisions=5, calls={"rare": 3}), still)
    assert (ledger.decisions_left, ledger.calls_left, ledger.calls_left_of("rare")) == (0, 0, 0)


def test_i43_time_that_a_clock_gives_twice_is_used_once() -> None:
    """I-43: a clock that goes back gives nothing back, and what it then counts again is not charged again."""
    seconds = iter([0, 10, 5, 8, 10, 12])
    ledger = Ledger(Budgets(max_wall=20), {}, NONE_USED, lambda: next(seconds) * 10**9)
    assert [ledger.wall_left_ns() for _ in range(5)] == [left * 10**9 for left in (10, 10, 10, 10, 8)]
