"""
What was done is told as it was done, and to the decision that proposed it: rows D2, D25, promises I-42, I-44.

Observations and answers go by the place of a call in a decision. Another decision has calls at the same places, and a
conversation that began anew has its exchanges at the same numbers.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.faults.alterations import Ram, rechained
from tests.runtime.programs import DONE, IDS, act, call, calls, finish, kept, program

from minutebook.errors import AgentDecisionProviderSchemaViolation, AgentDecisionProviderUnavailable, ApprovalRefused
from minutebook.programs import storage_of
from minutebook.runtime import Budgets, capability
from minutebook.stores.opening import MemoryStore
from minutebook.testing import drive

INTERRUPTED = {"interrupted": "outcome unknown"}


def paying(to: str = "ann", *, needs_approval: bool) -> Any:
    """Return a capability whose payee is a default: it stands in no proposal."""

    def pay(amount: int, to: str = to) -> str:
        DONE.append((amount, to))
        return "paid"

    return capability(needs_approval=needs_approval)(pay)


@capability(needs_approval=True)
def check(number: int) -> str:
    """Check."""
    return "checked"


@pytest.mark.parametrize("projection", ["inline", "opaque_refs"])
@pytest.mark.parametrize("again", [False, True], ids=["at once", "read back"])
def test_d02_a_call_is_observed_with_the_defaults_that_its_function_filled_in(projection: Any, again: bool) -> None:
    """SPEC D2: also where no human had to see them; in `opaque_refs` mode a provider sees its references alone."""
    store, declared = MemoryStore(), program(paying(needs_approval=False), check)
    proposed = [call("pay", amount=3), *[call("check", number=1)] * again]
    first, told = kept(declared, store, calls(*proposed, exchange=2), finish(), projection=projection)
    outcome = drive(first.run("go", **IDS))
    if again:
        answers = [waits.deny(by="ann") for waits in outcome.pending]
        second, told = kept(declared, store, finish(), projection=projection)
        outcome = drive(second.resume(*IDS.values(), approvals=answers))
    assert (outcome.kind, DONE) == ("finished", [(3, "ann")])
    assert outcome.observations[0].arguments == {"amount": 3, "to": "ann"}
    shown = told.requests[-1].observations[0].arguments
    assert shown == outcome.observations[0].arguments if projection == "inline" else shown.keys() == {"amount"}


class Weighed(msgspec.Struct):
    kilograms: float = math.nan
    unit: str = "kg"


def test_d02_a_default_that_json_cannot_hold_is_told_as_no_other_value() -> None:
    """SPEC D2: to JSON NaN is null, which was not executed; neither the model nor an observation is told of it."""

    @capability
    def weigh(what: Weighed, limit: float = math.inf) -> str:
        DONE.append((what.kilograms, what.unit, limit))
        return "weighed"

    made, _ = kept(program(weigh), MemoryStore(), calls(call("weigh", what={}), exchange=2), finish())
    (seen,) = drive(made.run("go", **IDS)).observations
    assert seen.arguments == {"what": {"unit": "kg"}}
    assert str(DONE) == "[(nan, 'kg', inf)]"
    assert weigh.parameters["$defs"]["Weighed"]["properties"]["kilograms"] == {"type": "number"}


def test_d02_a_call_that_was_approved_under_another_version_is_observed_as_it_ran() -> None:
    """SPEC D2: a new version that needs no approval has another default; what was shown of the old one did not run."""
    store = MemoryStore()
    proposed = calls(call("check", number=1), call("pay", amount=3), exchange=2)
    before = program(check, paying("ann", needs_approval=True))
    stopped, _ = kept(before, store, proposed)
    checking, shown = drive(stopped.run("go", **IDS)).pending
    assert shown.arguments == {"amount": 3, "to": "ann"}
    stopped, _ = kept(before, store)
    drive(stopped.resume(*IDS.values(), approvals=[shown.approve(by="ann")]))
    goes_on, _ = kept(program(check, paying("bob", needs_approval=False)), store, finish())
    outcome = drive(goes_on.resume(*IDS.values(), approvals=[checking.approve(by="ann")]))
    assert DONE == [(3, "bob")]
    assert outcome.observations[1].arguments == {"amount": 3, "to": "bob"}


def test_d02_i44_a_call_of_which_nobody_knows_is_told_with_all_that_was_begun() -> None:
    """I-44: a process that ends in the middle of a call leaves its intent, defaults included."""
    store, ending = MemoryStore(), {"value": True}

    @capability
    def pay(amount: int, to: str = "ann") -> str:
        if ending.pop("value", False):
            raise KeyboardInterrupt
        raise AssertionError("it is never begun again")

    first, _ = kept(program(pay), store, calls(call("pay", amount=3), exchange=2))
    with pytest.raises(KeyboardInterrupt):
        drive(first.run("go", **IDS))
    second, _ = kept(program(pay), store, finish())
    (seen,) = drive(second.resume(*IDS.values())).observations
    assert (seen.value, seen.arguments) == (INTERRUPTED, {"amount": 3, "to": "ann"})


def test_d02_an_approved_call_lends_its_arguments_to_no_call_at_its_place_in_the_next_decision() -> None:
    """SPEC D2: both stand at place 0, one after the other; each is observed with its own."""
    store, declared = MemoryStore(), program(paying(needs_approval=True), act)
    first, _ = kept(declared, store, calls(call("pay", amount=3), exchange=2))
    (shown,) = drive(first.run("go", **IDS)).pending
    second, _ = kept(declared, store, calls(call("act", number=5), exchange=4), finish())
    outcome = drive(second.resume(*IDS.values(), approvals=[shown.approve(by="ann")]))
    assert [seen.arguments for seen in outcome.observations] == [{"amount": 3, "to": "ann"}, {"number": 5}]


def test_d25_a_conversation_that_began_anew_counts_its_exchanges_from_the_start() -> None:
    """SPEC D25: a decision under a number that was answered before, in messages that are gone, is another decision."""
    store, declared = MemoryStore(), program(act, budgets=Budgets(max_decisions=20))
    down = AgentDecisionProviderUnavailable("down")
    early = [calls(call("act", number=number), exchange=2 * number) for number in (1, 2)]
    first, _ = kept(declared, store, *early, down)
    with pytest.raises(AgentDecisionProviderUnavailable):
        drive(first.run("go", **IDS))
    anew = msgspec.structs.replace(calls(call("act", number=3), exchange=2), without_messages=True)
    second, _ = kept(declared, store, anew, calls(call("act", number=4), exchange=4), finish())
    outcome = drive(second.resume(*IDS.values()))
    assert (outcome.kind, DONE) == ("finished", [1, 2, 3, 4])
    assert [seen.arguments["number"] for seen in outcome.observations] == [1, 2, 3, 4]
    assert [seen.reference and seen.reference.exchange for seen in outcome.observations] == [None, None, 2, 4]


def test_d25_control_a_number_that_comes_twice_in_one_conversation_is_refused() -> None:
    """Control: where the messages are there, a number that was answered is no new decision's."""
    store, declared = MemoryStore(), program(act, budgets=Budgets(max_decisions=20))
    again = [calls(call("act", number=number), exchange=2) for number in (1, 2)]
    made, _ = kept(declared, store, *again, finish())
    with pytest.raises(AgentDecisionProviderSchemaViolation):
        drive(made.run("go", **IDS))
    assert DONE == [1]


@pytest.mark.parametrize("altered", [False, True], ids=["control, as it was", "another amount"])
def test_i42_a_log_that_was_made_right_again_with_another_amount_is_for_no_approval(
    altered: bool, tmp_path: Path
) -> None:
    """I-42: the approval is for the digest of the arguments that were shown, whatever a lawful chain says was asked."""
    shelf, declared = Ram(tmp_path), program(paying(needs_approval=True))
    first, _ = kept(declared, shelf.store(), calls(call("pay", amount=3), exchange=2))
    (shown,) = drive(first.run("go", **IDS)).pending
    shelf.keep()
    key = storage_of(shelf.store()).checkpoint(*IDS.values(), "clerk")
    header, entries = shelf.held(key)
    decided = [at for at, entry in enumerate(entries) if b'"is":"decided"' in entry.payload]
    assert len(decided) == 1
    if altered:
        payload = entries[decided[0]].payload.replace(b'"amount":3', b'"amount":9')
        entries[decided[0]] = msgspec.structs.replace(entries[decided[0]], payload=payload)
    shelf.restore()
    shelf.write(key, *rechained(key, header, entries))
    goes_on, _ = kept(declared, shelf.store(), finish())
    if not altered:
        drive(goes_on.resume(*IDS.values(), approvals=[shown.approve(by="ann")]))
        assert DONE == [(3, "ann")]
        return
    with pytest.raises(ApprovalRefused) as refused:
        drive(goes_on.resume(*IDS.values(), approvals=[shown.approve(by="ann")]))
    assert (refused.value.problem, DONE) == ("changed", [])
