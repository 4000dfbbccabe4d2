"""Approvals: a call that needs one is shown and not executed, and one answer authorizes exactly one call (I-42)."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.programs import IDS, call, calls, finish, kept, program, runtime
from tests.stores.labs import KINDS, open_journal

from minutebook.errors import (
    AgentDecisionProviderUnavailable,
    ApprovalRefused,
    DecisionHistoryCorrupt,
    InvalidOption,
    InvalidValue,
)
from minutebook.model.decisions import CallReference
from minutebook.ports import Page
from minutebook.runtime import Approval, Budgets, PendingApproval, Program, approvals, capability, delegate
from minutebook.runtime.approvals import APPROVAL_SECONDS, arguments_digest, canonical
from minutebook.stores.journal import JournalStore
from minutebook.stores.memory import MemoryJournal
from minutebook.stores.opening import MemoryStore
from minutebook.testing import Cut, FrozenClock, ScriptedProvider, SuspendingJournal, cancel_at, drive

APPROVAL_MS = APPROVAL_SECONDS * 1000
PAID: list[tuple[int, str]] = []


@pytest.fixture(autouse=True)
def nothing_paid() -> None:
    PAID.clear()


@capability(needs_approval=True, max_calls=3)
def pay(amount: int, to: str = "shop") -> str:
    """Pay."""
    PAID.append((amount, to))
    return f"paid {amount}"


@capability
def look(order: str) -> str:
    """Look up an order."""
    return f"{order} costs 3"


def stopped(store: JournalStore, *proposed: Any, clock: Callable[[], int] | None = None) -> tuple[PendingApproval, ...]:
    """Return what waits after a run that stops at its first decision."""
    made, _ = kept(program(pay, look), store, calls(*proposed, exchange=2), clock=clock or FrozenClock(0))
    outcome = drive(made.run("Pay it.", **IDS))
    assert outcome.kind == "approval_required"
    return outcome.pending


def test_d28_a_call_that_needs_approval_stops_the_run_and_is_not_executed() -> None:
    """D28: the outcome carries what a human must see; nothing was executed, and nothing was said to be."""
    store = MemoryStore()
    made, provider = kept(program(pay, look), store, calls(call("look", order="7"), call("pay", amount=3), exchange=2))
    outcome = drive(made.run("Pay it.", **IDS))
    (waits,) = outcome.pending
    assert (outcome.kind, outcome.output, PAID) == ("approval_required", None, [])
    assert [seen.capability for seen in outcome.observations] == ["look"]
    assert (waits.run_id, waits.invocation_id, waits.agent, waits.capability) == ("r", "i", "clerk", "pay")
    assert (waits.position, waits.reference, waits.arguments) == (1, CallReference(2, 1), {"amount": 3, "to": "shop"})
    assert len(provider.requests) == 1
    assert "amount" not in repr((outcome, waits, waits.approve(by="ann")))


def test_d28_an_approved_call_is_executed_once_and_the_run_goes_on() -> None:
    """D28, O-36: the call stands once, its result stands once, and the model hears of it as executed only then."""
    store = MemoryStore()
    (waits,) = stopped(store, call("pay", amount=3))
    made, provider = kept(program(pay, look), store, finish())
    outcome = drive(made.resume("r", "i", approvals=[waits.approve(by="ann")]))
    assert (outcome.kind, outcome.output, PAID) == ("finished", "done", [(3, "shop")])
    (request,) = provider.requests
    assert [(seen.capability, seen.value, seen.reference) for seen in request.observations] == [
        ("pay", "paid 3", CallReference(2, 0))
    ]
    again = drive(kept(program(pay, look), store)[0].resume("r", "i"))
    assert (again.kind, again.output, again.observations, again.decisions) == (
        "finished",
        "done",
        outcome.observations,
        0,
    )
    assert PAID == [(3, "shop")]


@pytest.mark.parametrize("kind", KINDS)
def test_d25_every_store_keeps_a_run_that_waits(kind: str, tmp_path: Path) -> None:
    """D24, D25: RAM, SQLite and a host's own database, by the same journal and with nothing left busy."""
    store = JournalStore(open_journal(kind, tmp_path), namespace="t")
    (waits,) = stopped(store, call("pay", amount=3))
    made, _ = kept(program(pay, look), store, finish())
    assert drive(made.resume("r", "i", approvals=[waits.approve(by="ann")])).kind == "finished"
    assert PAID == [(3, "shop")]
    assert refusal(store, waits.approve(by="ann")) == "used"
    key = store.key('["checkpoint","r","i","clerk"]')
    assert (drive(store.verify(key)).format, drive(store.header(key)).token) == ("checkpoint/1", "")


@pytest.mark.parametrize(("ttl", "lasts"), [(None, 86_400_000), (3_600, 3_600_000), (1_000_000, 86_400_000)])
def test_d28_an_approval_ends_no_later_than_the_checkpoint_it_is_for(ttl: float | None, lasts: int) -> None:
    """Whoever is shown a day has to find the run after a day."""
    (waits,) = stopped(MemoryStore(ttl=ttl, clock=lambda: 5), call("pay", amount=3), clock=lambda: 5)
    assert waits.expires_ms == 5 + lasts


def test_d28_one_approval_that_is_no_list_is_refused_by_name() -> None:
    """Nothing was executed; the list may be given right after."""
    store = MemoryStore()
    (waits,) = stopped(store, call("pay", amount=3))
    made, _ = kept(program(pay, look), store, finish())
    with pytest.raises(InvalidOption, match="approvals is a list"):
        drive(made.resume("r", "i", approvals=waits.approve(by="ann")))  # type: ignore[arg-type]
    assert drive(made.resume("r", "i", approvals=[waits.approve(by="ann")])).kind == "finished"


def test_d28_a_denied_call_is_observed_as_refused() -> None:
    """D28: the model reads that it was denied, and why where the human says so; nothing was executed or used."""
    store = MemoryStore()
    (waits,) = stopped(store, call("pay", amount=3))
    made, provider = kept(program(pay, look), store, finish())
    outcome = drive(made.resume("r", "i", approvals=[waits.deny(by="ann", message="too much")]))
    assert [seen.value for seen in provider.requests[0].observations] == [{"refused": "denied", "message": "too much"}]
    assert (outcome.kind, outcome.calls, PAID) == ("finished", 0, [])


def test_o36_two_calls_one_approved_and_one_declined() -> None:
    """O-36: every waiting call of the decision is shown at once, and each answer is for its own call."""
    store = MemoryStore()
    first, second = stopped(store, call("pay", amount=3), call("look", order="7"), call("pay", amount=9))
    made, provider = kept(program(pay, look), store, finish())
    drive(made.resume("r", "i", approvals=[second.deny(by="ann"), first.approve(by="ann")]))
    assert PAID == [(3, "shop")]
    assert [seen.value for seen in provider.requests[0].observations] == ["paid 3", "7 costs 3", {"refused": "denied"}]


def test_d28_an_answer_to_one_of_two_stops_the_run_for_the_other() -> None:
    """The calls are carried out in order, as far as they were answered; an earlier answer is not asked for again."""
    store = MemoryStore()
    first, second = stopped(store, call("pay", amount=3), call("pay", amount=9))
    made, provider = kept(program(pay, look), store)
    outcome = drive(made.resume("r", "i", approvals=[first.approve(by="ann")]))
    assert (outcome.kind, outcome.pending, PAID) == ("approval_required", (second,), [(3, "shop")])
    assert provider.requests == []
    drive(kept(program(pay, look), store, finish())[0].resume("r", "i", approvals=[second.approve(by="bo")]))
    assert PAID == [(3, "shop"), (9, "shop")]


# --- answers that are accepted ---------------------------------------------------------------------------------------

WAITING = [call("pay", amount=amount) for amount in (1, 2, 3)]


def answered(waits: PendingApproval, approved: bool) -> Approval:
    return waits.approve(by="ann") if approved else waits.deny(by="ann", message="no")


@settings(deadline=None, max_examples=100)
@given(
    batches=st.permutations(range(3)).flatmap(
        lambda order: st.lists(st.booleans(), min_size=3, max_size=3).map(lambda ends: batched(order, ends))
    ),
    approved=st.lists(st.booleans(), min_size=3, max_size=3),
    down=st.booleans(),
)
def test_i42_every_accepted_answer_is_kept_and_used_in_whatever_order_they_come(
    batches: list[list[int]], approved: list[bool], down: bool
) -> None:
    """I-42, D28: answered one by one, in any order, over resumptions: none is asked for again, each is used once."""
    PAID.clear()
    store = MemoryStore()
    waiting = stopped(store, *WAITING)
    accepted: set[int] = set()
    for batch in batches:
        answers = [answered(waiting[at], approved[at]) for at in batch]
        accepted |= {*batch}
        script = [AgentDecisionProviderUnavailable("down")] if down else [finish()]
        made, _ = kept(program(pay, look), store, *script, clock=FrozenClock(0))
        try:
            outcome = drive(made.resume("r", "i", approvals=answers))
        except AgentDecisionProviderUnavailable:
            outcome = drive(kept(program(pay, look), store, finish(), clock=FrozenClock(0))[0].resume("r", "i"))
        assert outcome.pending == tuple(waiting[at] for at in range(3) if at not in accepted)
    assert outcome.kind == "finished"
    assert [amount for amount, _ in PAID] == [at + 1 for at in range(3) if approved[at]]
    assert [seen.error for seen in outcome.observations] == [not each for each in approved]


def batched(order: list[int], ends: list[bool]) -> list[list[int]]:
    """Return an order in batches: one ends after each position where `ends` says so, and after the last."""
    batches: list[list[int]] = [[]]
    for at, end in zip(order, ends, strict=True):
        batches[-1].append(at)
        if end:
            batches.append([])
    return [each for each in batches if each]


@pytest.mark.parametrize("cut", [Cut.CANCELLED, Cut.CLOSED])
@pytest.mark.parametrize("approved", [True, False])
def test_i42_an_answer_may_be_given_again_until_it_was_used(approved: bool, cut: Cut) -> None:
    """I-42: whoever was stopped at any await may give the answer again; it is the same one, and used once."""
    kept_steps = 0
    for step in itertools.count(1):
        PAID.clear()
        journal = MemoryJournal()
        store = JournalStore(SuspendingJournal(journal), namespace="t")
        first, second = stopped(store, *WAITING[:2])
        answers = [answered(second, approved)]

        def resumed(store: JournalStore = store, answers: Any = answers) -> Any:
            made, _ = kept(program(pay, look), store, finish(), clock=FrozenClock(0))
            return made.resume("r", "i", approvals=answers)

        ended = drive(cancel_at(resumed, step, cut))
        if ended.struck:
            key = store.key('["checkpoint","r","i","clerk"]')
            kept_steps += any(b'"ruled"' in each.payload for each in drive(newest(journal, key)))
            outcome = drive(resumed())
        else:
            assert ended.result is not None
            outcome = ended.result
        assert (outcome.kind, outcome.pending, PAID) == ("approval_required", (first,), [])
        drive(resumed(answers=[first.approve(by="bo")]))
        assert [amount for amount, _ in PAID] == ([1, 2] if approved else [1])
        if not ended.struck:
            assert 0 < kept_steps < step - 1
            return


def test_i42_every_answer_is_durable_before_anything_else_is_done() -> None:
    """I-42, I-44: a worker that is killed in the effect of the first call loses no answer to the others."""

    killed = [True, False]

    @capability(needs_approval=True)
    def pay(amount: int) -> None:
        PAID.append((amount, "shop"))
        if killed.pop(0):
            raise KeyboardInterrupt

    journal = MemoryJournal()
    store = JournalStore(journal, namespace="t")
    made, _ = kept(program(pay), store, calls(*WAITING, exchange=2), clock=FrozenClock(0))
    one, two, three = drive(made.run("go", **IDS)).pending
    answers = [three.deny(by="ann"), two.approve(by="ann"), one.approve(by="ann")]
    with pytest.raises(KeyboardInterrupt):
        drive(kept(program(pay), store, clock=FrozenClock(0))[0].resume("r", "i", approvals=answers))
    noted = drive(newest(journal, store.key('["checkpoint","r","i","clerk"]')))
    kinds = [msgspec.json.decode(each.payload)["is"] for each in noted]
    assert kinds == ["began", "asking", "decided", "waiting", "ruled", "ruled", "ruled", "intended"]
    outcome = drive(kept(program(pay), store, finish(), clock=FrozenClock(0))[0].resume("r", "i"))
    assert [seen.value for seen in outcome.observations] == [
        {"interrupted": "outcome unknown"},
        None,
        {"refused": "denied"},
    ]
    assert PAID == [(1, "shop"), (2, "shop")]


async def newest(journal: Any, key: Any) -> Any:
    return await journal.oldest(key, 0, Page(rows=100, messages=100, size=2**30))


@pytest.mark.parametrize("approved", [True, False])
def test_i42_answers_to_agents_calls_are_kept_too(approved: bool) -> None:
    """I-42, D28: an answer for one agent, and one for its caller, wait for the turn of their calls."""
    store = MemoryStore()
    below = Program(name="buyer", instructions="Buy.", capabilities=[pay])
    providers = {"buyer": ScriptedProvider.answering(lambda request: buying(request))}
    declared = program(pay, delegate(below, max_branches=2))

    def buying(request: Any) -> Any:
        return finish("done") if request.observations else calls(*WAITING[:2], exchange=2)

    def resumed(*answers: Approval) -> Any:
        made, _ = kept(declared, store, finish(), providers=providers, clock=FrozenClock(0))
        return drive(made.resume("r", "i", approvals=answers))

    proposed = calls(call("pay", amount=9), call("buyer", tasks=["t", "u"]), exchange=2)
    made, _ = kept(declared, store, proposed, providers=providers, clock=FrozenClock(0))
    (own,) = drive(made.run("go", **IDS)).pending
    outcome = resumed(answered(own, True))
    first, second, third, fourth = outcome.pending
    assert PAID == [(9, "shop")]
    outcome = resumed(answered(fourth, approved), answered(second, True))
    assert (outcome.pending, PAID) == ((first, third), [(9, "shop")])
    outcome = resumed(answered(third, True))
    assert outcome.pending == (first,)
    outcome = resumed(answered(first, True))
    assert (outcome.kind, outcome.pending) == ("finished", ())
    assert sorted(amount for amount, _ in PAID) == ([1, 1, 2, 2, 9] if approved else [1, 1, 2, 9])


@pytest.mark.parametrize("what", ["expired", "changed"])
def test_i42_a_kept_approval_that_holds_no_more_is_asked_for_anew(what: str) -> None:
    """I-42: an approval ends, and is for what was shown, also when its call's turn comes later."""
    store = MemoryStore()
    first, second = stopped(store, *WAITING[:2])
    made, _ = kept(program(pay, look), store, clock=FrozenClock(0))
    assert drive(made.resume("r", "i", approvals=[second.approve(by="ann")])).pending == (first,)
    now = FrozenClock(APPROVAL_MS if what == "expired" else 0)
    declared = program(capability(needs_approval=True, version="2")(pay.function) if what == "changed" else pay, look)
    again = drive(kept(declared, store, clock=now)[0].resume("r", "i")).pending
    assert [each.position for each in again] == [0, 1]
    assert {each.id for each in again}.isdisjoint({first.id, second.id})
    outcome = drive(kept(declared, store, clock=now)[0].resume("r", "i", approvals=[again[0].approve(by="bo")]))
    assert (outcome.pending, PAID) == (again[1:], [(1, "shop")])


def test_i42_a_kept_denial_stands_whatever_becomes_of_the_capability() -> None:
    """D28: what a human denied is not executed, though later it expires, and needs no approval any more."""
    store = MemoryStore()
    _, second = stopped(store, *WAITING[:2])
    made, _ = kept(program(pay, look), store, clock=FrozenClock(0))
    drive(made.resume("r", "i", approvals=[second.deny(by="ann")]))
    free = program(capability(pay.function), look)
    outcome = drive(kept(free, store, finish(), clock=FrozenClock(APPROVAL_MS))[0].resume("r", "i"))
    assert (outcome.kind, PAID) == ("finished", [(1, "shop")])
    assert outcome.observations[1].value == {"refused": "denied"}


def test_i42_a_kept_answer_is_not_turned_into_another() -> None:
    """I-42: the same answer again is no second one; another answer to that call is refused."""
    store = MemoryStore()
    first, second = stopped(store, *WAITING[:2])
    given = second.approve(by="ann")
    for _ in range(2):
        made, _ = kept(program(pay, look), store, clock=FrozenClock(0))
        assert drive(made.resume("r", "i", approvals=[given])).pending == (first,)
    assert refusal(store, second.deny(by="ann")) == refusal(store, second.approve(by="bo")) == "used"


# --- answers that are refused ----------------------------------------------------------------------------------------


def refusal(store: JournalStore, *given: Any, declared: Any = None, now: int = 0) -> str:
    """Return why approvals are refused; nothing may have been asked or executed."""
    before = list(PAID)
    made, provider = kept(declared or program(pay, look), store, clock=FrozenClock(now))
    with pytest.raises(ApprovalRefused) as caught:
        drive(made.resume("r", "i", approvals=given))
    assert (provider.requests, PAID) == ([], before)
    return str(caught.value.problem)


OTHERS: dict[str, Any] = {
    "id": "another",
    "run_id": "other-run",
    "invocation_id": "other-invocation",
    "agent": "other-agent",
    "capability": "look",
    "capability_version": "0" * 64,
    "position": 1,
    "reference": CallReference(2, 1),
    "arguments_digest": arguments_digest({"amount": 4}),
    "expires_ms": APPROVAL_MS + 1,
}


def approval_of(waits: PendingApproval, *, by: str) -> Approval:
    bound = {name: getattr(waits, name) for name in Approval.__struct_fields__ if hasattr(waits, name)}
    return Approval(approved=True, by=by, **bound)


def accepted_changes() -> set[str]:
    """Return the fields of an approval that may be changed without its being refused."""
    accepted: set[str] = set()
    for name, value in OTHERS.items():
        store = MemoryStore()
        (waits,) = stopped(store, call("pay", amount=3))
        altered = msgspec.structs.replace(approval_of(waits, by="ann"), **{name: value})
        try:
            refusal(store, altered)
        except BaseException:
            accepted.add(name)
    return accepted


def test_i42_every_single_change_of_an_approval_is_refused() -> None:
    """I-42: run, invocation, agent, call, version, arguments, expiry and id: the full matrix, nothing executed."""
    assert set(OTHERS) == set(Approval.__struct_fields__) - {"approved", "by", "message"}
    assert accepted_changes() == set()
    assert PAID == []


def test_i42_control_the_matrix_finds_a_field_that_is_not_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix that can only pass would prove nothing: with two bindings left out it names exactly those two."""
    fewer = tuple(name for name in approvals._BOUND if name not in ("arguments_digest", "run_id"))
    monkeypatch.setattr(approvals, "_BOUND", fewer)
    assert accepted_changes() == {"arguments_digest", "run_id"}


@pytest.mark.parametrize("forged", [True, {"approved": True}, "yes", None, 1])
def test_i42_what_is_no_approval_approves_nothing(forged: Any) -> None:
    """I-42: a flag, a dict of the right look or a text is no approval."""
    store = MemoryStore()
    stopped(store, call("pay", amount=3))
    assert refusal(store, forged) == "altered"


@pytest.mark.parametrize(("name", "value"), [("position", False), ("expires_ms", float(APPROVAL_MS))])
def test_i42_what_merely_equals_what_waits_is_altered(name: str, value: Any) -> None:
    """I-42: a bool for an int, or a float: no call that waits says it so."""
    store = MemoryStore()
    (waits,) = stopped(store, call("pay", amount=3))
    assert getattr(waits, name) == value
    assert refusal(store, msgspec.structs.replace(waits.approve(by="ann"), **{name: value})) == "altered"


@pytest.mark.parametrize("flag", [1, "true", None])
def test_i42_approved_is_true_or_false(flag: Any) -> None:
    """I-42: what merely counts as true is no approval."""
    store = MemoryStore()
    (waits,) = stopped(store, call("pay", amount=3))
    assert refusal(store, msgspec.structs.replace(waits.approve(by="ann"), approved=flag)) == "altered"


def test_i42_an_approval_made_up_for_a_run_that_waits_is_unknown() -> None:
    """I-42: knowing everything that is shown of another waiting call is not enough."""
    store, other = MemoryStore(), MemoryStore()
    stopped(store, call("pay", amount=3))
    (elsewhere,) = stopped(other, call("pay", amount=3))
    assert refusal(store, elsewhere.approve(by="ann")) == "unknown"


def test_v23_what_a_client_says_of_a_pending_call_is_not_asked() -> None:
    """V-23: a call that came back altered from a client, with digests that fit, is approved by nobody."""
    store = MemoryStore()
    (waits,) = stopped(store, call("pay", amount=3))
    sent = msgspec.json.decode(msgspec.json.encode(waits), type=PendingApproval)
    arguments = {"amount": 9, "to": "mallory"}
    altered = msgspec.structs.replace(sent, arguments=arguments, arguments_digest=arguments_digest(arguments))
    assert refusal(store, altered.approve(by="ann")) == "altered"
    # What is executed is the checkpoint's call, whatever the arguments that came back beside the right digest.
    painted = msgspec.structs.replace(sent, arguments=arguments)
    made, _ = kept(program(pay, look), store, finish())
    assert drive(made.resume("r", "i", approvals=[painted.approve(by="ann")])).kind == "finished"
    assert PAID == [(3, "shop")]


def test_i42_an_approval_is_used_once() -> None:
    """I-42: replayed in the same run, after it has ended, and for the identical call of a later decision."""
    store = MemoryStore()
    (waits,) = stopped(store, call("pay", amount=3))
    used = waits.approve(by="ann")
    assert refusal(store, used, used) == "repeated"
    made, _ = kept(program(pay, look), store, calls(call("pay", amount=3), exchange=4), clock=FrozenClock(0))
    outcome = drive(made.resume("r", "i", approvals=[used]))
    assert (outcome.kind, PAID) == ("approval_required", [(3, "shop")])
    assert refusal(store, used) == "used"
    (second,) = outcome.pending
    drive(kept(program(pay, look), store, finish())[0].resume("r", "i", approvals=[second.approve(by="ann")]))
    assert refusal(store, second.approve(by="ann")) == "used"
    assert PAID == [(3, "shop"), (3, "shop")]


def test_i42_an_approval_ends() -> None:
    """I-42: from its expiry on it authorizes nothing, and the call is shown anew under another id."""
    store = MemoryStore()
    (waits,) = stopped(store, call("pay", amount=3))
    assert waits.expires_ms == APPROVAL_MS
    assert refusal(store, waits.approve(by="ann"), now=APPROVAL_MS) == "expired"
    made, _ = kept(program(pay, look), store, clock=FrozenClock(APPROVAL_MS))
    (shown,) = drive(made.resume("r", "i")).pending
    assert (shown.id != waits.id, shown.expires_ms) == (True, 2 * APPROVAL_MS)
    assert refusal(store, waits.approve(by="ann")) == "unknown"
    made, _ = kept(program(pay, look), store, finish(), clock=FrozenClock(APPROVAL_MS))
    drive(made.resume("r", "i", approvals=[shown.approve(by="ann")]))
    assert PAID == [(3, "shop")]


def test_i42_how_long_an_approval_holds_is_for_the_host_to_say() -> None:
    """I-42: from a millisecond on, and never for ever."""
    made, _ = kept(program(pay), MemoryStore(), calls(call("pay", amount=3)), approval_ttl=timedelta(minutes=5))
    assert drive(made.run("Pay.")).pending[0].expires_ms == 300_000
    for forever in (None, 0, float("inf"), "1"):
        with pytest.raises(InvalidOption, match="approval_ttl") as refused:
            kept(program(pay), MemoryStore(), approval_ttl=forever)
        assert refused.value.option == "approval_ttl"


def test_i42_a_capability_that_was_changed_after_the_click_is_shown_anew() -> None:
    """I-42: version, parameters and authority are part of what was approved."""

    def changed(**options: Any) -> Any:
        return capability(needs_approval=True, **options)(pay.function)

    @capability(needs_approval=True)
    def other(amount: float, to: str = "shop") -> str:
        PAID.append((int(amount), to))
        return "paid"

    object.__setattr__(other, "name", "pay")
    for now in (changed(version="2"), changed(authority="money"), other):
        store = MemoryStore()
        (waits,) = stopped(store, call("pay", amount=3))
        declared = program(now, look, authority={"money"})
        assert refusal(store, waits.approve(by="ann"), declared=declared) == "changed"
        made, _ = kept(declared, store, clock=FrozenClock(0))
        (shown,) = drive(made.resume("r", "i")).pending
        assert shown.capability_version != waits.capability_version


class Line(msgspec.Struct, forbid_unknown_fields=True):
    """An object whose fields have defaults."""

    article: str
    count: int = 1


class Gift(msgspec.Struct, forbid_unknown_fields=True, tag="gift"):
    to: str = "ann"


class Loan(msgspec.Struct, forbid_unknown_fields=True, tag="loan"):
    days: int
    lines: tuple[Line, ...] = ()


def paying(kind: Any, default: Any) -> Any:
    """Return the capability `pay` whose second parameter, of this type, has this default."""

    def pay(amount: int, to: Any = default) -> str:
        """Pay."""
        PAID.append((amount, to))
        return "paid"

    pay.__annotations__["to"] = kind
    return capability(needs_approval=True)(pay)


def shown_by(declared: Any, store: JournalStore, **arguments: Any) -> PendingApproval:
    made, _ = kept(program(declared), store, calls(call("pay", **arguments), exchange=2), clock=FrozenClock(0))
    (waits,) = drive(made.run("Pay it.", **IDS)).pending
    return waits


DEFAULTS: dict[str, tuple[Any, Any, Any, str]] = {
    "text": (str, "shop", "mallory", '{"amount":3,"to":"shop"}'),
    "none": (str | None, None, "mallory", '{"amount":3,"to":null}'),
    "number": (float, 1.0, 2.0, '{"amount":3,"to":1.0}'),
    "integer": (int, 1, 10**30, '{"amount":3,"to":1}'),
    "integer and number": (float, 1, 1.0, '{"amount":3,"to":1}'),
    "list": (list[str], ["shop"], ["mallory"], '{"amount":3,"to":["shop"]}'),
    "tuple": (tuple[str, ...], ("shop",), ("mallory",), '{"amount":3,"to":["shop"]}'),
    "set": (frozenset[str], frozenset({"b", "a"}), frozenset({"c"}), '{"amount":3,"to":["a","b"]}'),
    "date": (date, date(2026, 1, 1), date(2027, 1, 1), '{"amount":3,"to":"2026-01-01"}'),
    "object": (Line, Line("cup"), Line("cup", 9), '{"amount":3,"to":{"article":"cup","count":1}}'),
}


@pytest.mark.parametrize(("kind", "default", "later", "shown"), DEFAULTS.values(), ids=DEFAULTS)
def test_i42_a_default_is_shown_and_bound_like_an_argument(kind: Any, default: Any, later: Any, shown: str) -> None:
    """I-42: what the model leaves out is executed too; a changed default is a changed call, which is shown anew."""
    store = MemoryStore()
    waits = shown_by(paying(kind, default), store, amount=3)
    assert waits.shown == shown
    assert waits.arguments_digest == arguments_digest(json.loads(shown))
    changed = paying(kind, later)
    assert refusal(store, waits.approve(by="ann"), declared=program(changed)) == "changed"
    (anew,) = drive(kept(program(changed), store)[0].resume("r", "i")).pending
    assert (anew.shown != shown, PAID) == (True, [])
    made, _ = kept(program(paying(kind, later)), store, finish())
    outcome = drive(made.resume("r", "i", approvals=[anew.approve(by="ann")]))
    assert (outcome.kind, PAID) == ("finished", [(3, later)])


@pytest.mark.parametrize(
    ("kind", "given", "shown"),
    [
        (Line, {"article": "cup"}, {"article": "cup", "count": 1}),
        (
            list[Line],
            [{"article": "cup"}, {"article": "can", "count": 2}],
            [{"article": "cup", "count": 1}, {"article": "can", "count": 2}],
        ),
        (tuple[str, Line], ["a", {"article": "cup"}], ["a", {"article": "cup", "count": 1}]),
        (dict[str, Line], {"x": {"article": "cup"}}, {"x": {"article": "cup", "count": 1}}),
        (Line | None, {"article": "cup"}, {"article": "cup", "count": 1}),
        (Gift | Loan, {"type": "gift"}, {"type": "gift", "to": "ann"}),
        (Gift | Loan, {"type": "loan", "days": 2}, {"type": "loan", "days": 2, "lines": []}),
        (
            Gift | Loan,
            {"type": "loan", "days": 2, "lines": [{"article": "cup"}]},
            {"type": "loan", "days": 2, "lines": [{"article": "cup", "count": 1}]},
        ),
    ],
)
def test_i42_a_default_inside_an_argument_is_shown_too(kind: Any, given: Any, shown: Any) -> None:
    """I-42: an object is shown with all of its fields, in lists, maps and alternatives too."""
    store = MemoryStore()
    declared = paying(kind, "unused")
    waits = shown_by(declared, store, amount=3, to=given)
    assert waits.arguments == {"amount": 3, "to": shown}
    assert declared.convert(waits.arguments) == declared.convert({"amount": 3, "to": given})


def test_i42_a_default_that_the_function_changed_is_not_what_was_approved() -> None:
    """I-42: of a list that is a default, what it holds now would be executed."""
    names = ["shop"]
    declared = paying(list[str], names)
    store = MemoryStore()
    waits = shown_by(declared, store, amount=3)
    names.append("mallory")
    assert refusal(store, waits.approve(by="ann"), declared=program(declared)) == "changed"


@pytest.mark.parametrize("default", [object(), math.nan, -math.inf, b"\xff".decode("latin-1").join, "\ud800"])
def test_i42_a_default_that_cannot_be_shown_is_refused_where_a_human_approves(default: Any) -> None:
    """I-42: refused when it is declared, by its parameter's name; without an approval it is the function's own."""
    with pytest.raises(InvalidOption, match="'to' needs approval and has a default that JSON cannot hold"):
        paying(str, default)
    free = capability(paying(str, "shop").function)
    free.function.__defaults__ = (default,)
    assert free.digest != paying(str, "shop").digest


def to_whom() -> str:
    return "mallory"


@dataclass
class Posted:
    to: str = field(default_factory=to_whom)


class Wired(msgspec.Struct):
    to: str = msgspec.field(default_factory=to_whom)


class Blank(msgspec.Struct):
    to: str = msgspec.field(default_factory=str)


class Grouped(msgspec.Struct):
    to: tuple[str, ...] = msgspec.field(default_factory=tuple)


class Sent(msgspec.Struct):
    by: Wired | None = None


class Packed(msgspec.Struct, array_like=True):
    article: str
    to: str = msgspec.field(default_factory=to_whom)


class Weighed(msgspec.Struct):
    to: float = math.nan


class Chain(msgspec.Struct):
    """A type that holds itself, and nothing that is not shown."""

    next: Chain | None = None
    names: list[str] = []
    tags: set[str] = msgspec.field(default_factory=set)
    told: str | msgspec.UnsetType = msgspec.UNSET


class Listed(NamedTuple):
    article: str
    count: int = 1


class Brief(msgspec.Struct, omit_defaults=True):
    to: str = "ann"


class Loose(TypedDict):
    to: NotRequired[str]


@pytest.mark.parametrize(
    "kind", [Posted, Wired, Blank, Sent, list[Posted], dict[str, list[Sent]] | None, Packed, Weighed]
)
def test_i42_a_type_that_makes_a_default_is_refused_where_a_human_approves(kind: Any) -> None:
    """I-42: what a factory makes can be neither shown nor bound, at whatever depth; without an approval it is taken."""
    with pytest.raises(InvalidOption, match=r"parameter 'to' needs approval, and its field 'to' has a default"):
        paying(kind, None)

    def send(to: Any) -> str:
        return "sent"

    send.__annotations__["to"] = kind
    assert not capability(send).needs_approval


@pytest.mark.parametrize(
    ("kind", "given", "shown"),
    [
        (Chain, {"next": {}}, {"next": {"next": None, "names": [], "tags": []}, "names": [], "tags": []}),
        (Loose, {}, {}),
        (Listed, ["cup"], ["cup", 1]),
        (list[Brief], [{}], [{"to": "ann"}]),
        (Grouped, {}, {"to": []}),
    ],
)
def test_i42_control_a_type_whose_defaults_are_shown_is_taken(kind: Any, given: Any, shown: Any) -> None:
    """I-42: an empty list, dict or set is shown; what need not be there and is not is no default."""
    assert shown_by(paying(kind, None), MemoryStore(), amount=3, to=given).arguments == {"amount": 3, "to": shown}


def test_i42_a_default_that_its_type_would_leave_out_is_shown_whole() -> None:
    """I-42: `omit_defaults` is for who encodes, not for who approves."""
    assert shown_by(paying(Brief, Brief()), MemoryStore(), amount=3).arguments == {"amount": 3, "to": {"to": "ann"}}


@pytest.mark.parametrize("projection", ["inline", "opaque_refs"])
@pytest.mark.parametrize("approved", [True, False])
def test_d02_an_approved_call_is_observed_with_all_that_was_executed(projection: Any, approved: bool) -> None:
    """SPEC D2: its defaults too, where it was executed; in `opaque_refs` mode a provider sees its references alone."""
    store = MemoryStore()
    first, _ = kept(program(pay), store, calls(call("pay", amount=3), exchange=2), projection=projection)
    (waits,) = drive(first.run("Pay it.", **IDS)).pending
    answer = waits.approve(by="ann") if approved else waits.deny(by="ann")
    second, provider = kept(program(pay), store, finish(), projection=projection)
    (seen,) = drive(second.resume("r", "i", approvals=[answer])).observations
    assert seen.arguments == (waits.arguments if approved else {"amount": 3})
    assert [(3, "shop")] * approved == PAID
    (told,) = provider.requests[0].observations
    if projection == "inline":
        assert told.arguments == seen.arguments
    else:
        assert told.arguments.keys() == {"amount"}
        assert str(told.arguments["amount"]).startswith("ref_")


class Altered(MemoryJournal):
    """A planted fault: somebody who writes to the store's file changes an amount after it was shown."""

    alters = False

    async def oldest(self, key: Any, after: int, page: Page) -> Any:
        entries = await super().oldest(key, after, page)
        if not self.alters:
            return entries
        old, new = b'"is":"decided"', b'"amount":3'
        return tuple(
            msgspec.structs.replace(each, payload=each.payload.replace(new, b'"amount":9'))
            if old in each.payload
            else each
            for each in entries
        )


def test_i42_the_arguments_that_would_be_executed_are_those_that_were_shown() -> None:
    """I-42, I-39: arguments that were altered where they are stored are refused before anything is executed."""
    journal = Altered()
    store = JournalStore(journal, namespace="t")
    (waits,) = stopped(store, call("pay", amount=3))
    journal.alters = True
    with pytest.raises(DecisionHistoryCorrupt):
        refusal(store, waits.approve(by="ann"))
    assert PAID == []


def test_d28_what_an_approval_does_not_grant() -> None:
    """D28, I-41: an approved call passes the other checks anew; here its time has run out meanwhile."""
    store = MemoryStore()
    times = iter([0, *[10**12] * 50])
    declared = program(pay, budgets=Budgets(max_wall=60))
    made, _ = kept(declared, store, calls(call("pay", amount=3), exchange=2), monotonic_ns=lambda: 0)
    (waits,) = drive(made.run("Pay.", **IDS)).pending
    made, _ = kept(declared, store, monotonic_ns=lambda: next(times))
    outcome = drive(made.resume("r", "i", approvals=[waits.approve(by="ann")]))
    assert (outcome.kind, outcome.budget, PAID) == ("budget_exhausted", "wall", [])


def test_i42_a_human_sees_what_the_digest_covers() -> None:
    """I-42: canonical JSON with hidden and turning characters as escapes, so that no text looks like another."""
    store = MemoryStore()
    hidden = "a\u202eb\u200bc\u00a0d\U000e0041"
    (waits,) = stopped(store, call("pay", to=hidden, amount=3))
    assert waits.shown == '{"amount":3,"to":"a\\u202eb\\u200bc\\u00a0d\\udb40\\udc41"}'
    assert json.loads(waits.shown) == {"amount": 3, "to": hidden}
    assert waits.arguments_digest == arguments_digest({"to": hidden, "amount": 3})
    assert canonical({"b": 1, "a": [1.0, {"d": None, "c": True}]}) == b'{"a":[1.0,{"c":true,"d":null}],"b":1}'
    assert arguments_digest({"amount": 1}) != arguments_digest({"amount": 1.0}) != arguments_digest({"amount": True})


UNSEEN = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b\u180f\u200b\u200f\u202e\u2066\u2060\u206f\u2800\u3164"
    "\ufe00\ufe0f\ufeff\uffa0\ufff0\U0001bca0\U0001d17a\U000e0000\U000e0041\U000e0100\U000e0fff\u2028\u3000\u00a0"
)


@pytest.mark.parametrize("unseen", UNSEEN, ids=lambda character: f"{ord(character):04x}")
def test_i42_what_is_drawn_as_nothing_is_shown_as_an_escape_and_names_nobody(unseen: str) -> None:
    """I-42: Unicode has letters and marks that nobody sees; what surrounds each of them stays as it is."""
    (waits,) = stopped(MemoryStore(), call("pay", to=f"alice{unseen}bob", amount=3))
    assert waits.shown.isascii()
    assert json.loads(waits.shown)["to"] == f"alice{unseen}bob"
    for answer in (waits.approve, waits.deny):
        with pytest.raises(InvalidValue):
            answer(by=f"ann{unseen}")


def test_i42_seen_characters_stay_and_a_principal_has_a_name() -> None:
    """I-42: letters of every script, emoji and their neighbours in the table are themselves; a blank is nobody."""
    seen = "é日ا😀\u2801\u1161\u3165\ufe10\u0300 x"
    store = MemoryStore()
    (waits,) = stopped(store, call("pay", to=seen, amount=3))
    assert seen in waits.shown
    assert waits.approve(by=seen).by == seen
    for blank in ("", " ", "  "):
        with pytest.raises(InvalidValue):
            waits.approve(by=blank)
        with pytest.raises(InvalidValue):  # one that was made elsewhere, and came as JSON
            refusal(store, msgspec.structs.replace(waits.approve(by="ann"), by=blank))


def test_d28_an_approval_travels_as_json() -> None:
    """Whoever shows the call and whoever resumes the run may be two programs."""
    store = MemoryStore()
    (waits,) = stopped(store, call("pay", amount=3))
    shown = msgspec.json.decode(msgspec.json.encode(waits), type=PendingApproval)
    answer = msgspec.json.decode(msgspec.json.encode(shown.approve(by="ann")), type=Approval)
    drive(kept(program(pay, look), store, finish(), clock=FrozenClock(0))[0].resume("r", "i", approvals=[answer]))
    assert PAID == [(3, "shop")]


def test_d28_a_program_that_stops_needs_a_place_for_its_checkpoints() -> None:
    """What stops and cannot go on is refused when it is made, not when a human is waited for."""
    with pytest.raises(InvalidOption, match="checkpoints"):
        runtime(program(pay))
    with pytest.raises(InvalidOption, match="needs_approval"):
        capability(needs_approval=1)(look.function)  # type: ignore[call-overload]
