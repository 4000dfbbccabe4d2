"""
I-42 to I-45 through the four providers: what the model reads of a call that waits, was denied, or was cut off.

A call stands in no request before the runtime has observed what came of it, and then with that and nothing else. The
fakes refuse a call without its result, so a proposal could not go out alone either.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.faces.strict import IDS, KINDS, client_of, generated, messages_of, provider_of

from minutebook import sync
from minutebook.errors import ApprovalRefused
from minutebook.runtime import Program, capability
from minutebook.testing import Answer, FunctionCall, ProviderFake

every = pytest.mark.parametrize(
    ("name", "interface"), [(name, interface) for name in KINDS for interface in ("native", "structured")]
)


class Done(msgspec.Struct):
    answer: str


class Shop:
    """A program that pays once it was approved, in processes that end after each answer."""

    def __init__(self, name: str, interface: str, path: Path, pays: Callable[[int], str] | None = None) -> None:
        self.name, self.interface, self.path = name, interface, path
        self.paid: list[int] = []
        self.pays = pays or (lambda amount: f"paid {amount}")
        self.fake = ProviderFake(name, self.script())

    def script(self) -> list[Answer]:
        look, pay = {"path": "bill"}, {"amount": 7}
        done = {"answer": "done"}
        if self.interface == "native":
            calls = (FunctionCall("look", look), FunctionCall("pay", pay))
            return [Answer(thinking="Hm", calls=calls), Answer(text=json.dumps(done))]
        decisions = [{"action": "look", **look}, {"action": "pay", **pay}, {"action": "finish", **done}]
        return [Answer(thinking="Hm", text=json.dumps({"decision": each})) for each in decisions]

    def program(self) -> Program[Done]:
        @capability
        def look(path: str) -> str:
            """Look."""
            return f"content of {path}"

        @capability(needs_approval=True)
        def pay(amount: int) -> str:
            """Pay."""
            self.paid.append(amount)
            return self.pays(amount)

        return Program(name="shop", instructions="Decide.", capabilities=[look, pay], output=Done)

    def process(self, work: Callable[[Any], Any]) -> Any:
        """Do `work` with a runtime in a process of its own: another client, another store over the same file."""
        client = client_of(self.fake, self.name)
        with sync.SQLiteStore(self.path, namespace="n") as store:
            history = sync.HistoryOptions(store=store)
            provider = provider_of(client, self.name, self.interface, history=history, count=False)
            try:
                return work(sync.Runtime(self.program(), provider))
            finally:
                client["client"].close()

    def process_without_messages(self, work: Callable[[Any], Any], events: list[Any]) -> Any:
        """The same with a history in RAM, which ends with the process; its checkpoints last."""
        client = client_of(self.fake, self.name)
        with sync.SQLiteStore(self.path, namespace="n") as store:
            history = sync.HistoryOptions(on_event=events.append)
            provider = provider_of(client, self.name, self.interface, history=history, count=False)
            try:
                return work(sync.Runtime(self.program(), provider, checkpoints=store))
            finally:
                client["client"].close()

    def begin(self) -> Any:
        """Run until the payment waits."""
        outcome = self.process(lambda runs: runs.run("Pay the bill.", **IDS))
        assert outcome.kind == "approval_required"
        assert self.paid == []
        return outcome.pending[0]

    def resume(self, *approvals: Any) -> Any:
        return self.process(lambda runs: runs.resume(*IDS.values(), approvals=approvals))

    def told(self) -> str:
        """Everything that any request has shown."""
        shown = [messages_of(request.json) for request in generated(self.fake)]
        return json.dumps(shown, ensure_ascii=False)

    def close(self) -> None:
        assert self.fake.refused == ()
        self.fake.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path / "book.sqlite"


@every
def test_i45_i42_d26_a_call_that_waits_is_shown_to_nobody_until_it_was_observed(
    name: str, interface: str, path: Path
) -> None:
    """I-45, I-42, D25, D26: asked again without an answer nothing is sent; once approved, what was observed is."""
    shop = Shop(name, interface, path)
    pending = shop.begin()
    sent = len(shop.fake.requests)
    for _ in range(2):
        again = shop.resume()
        assert (again.kind, again.pending[0].arguments) == ("approval_required", {"amount": 7})
    assert len(shop.fake.requests) == sent
    assert "paid" not in shop.told()
    with pytest.raises(ApprovalRefused):
        shop.resume(msgspec.structs.replace(pending.approve(by="boss"), arguments_digest="0" * 64))
    assert (shop.paid, len(shop.fake.requests)) == ([], sent)
    outcome = shop.resume(pending.approve(by="boss"))
    assert (outcome.output, shop.paid) == (Done("done"), [7])
    assert shop.told().count("paid 7") == 1
    shop.close()


@every
def test_i45_a_denied_call_is_told_as_refused_and_never_as_done(name: str, interface: str, path: Path) -> None:
    """I-45, D28: the model reads that it was refused, with the human's words."""
    shop = Shop(name, interface, path)
    outcome = shop.resume(shop.begin().deny(by="boss", message="too dear"))
    assert (outcome.output, shop.paid) == (Done("done"), [])
    last = json.dumps(messages_of(generated(shop.fake)[-1].json))
    assert "too dear" in last
    assert "paid" not in last
    shop.close()


@every
def test_i44_i45_o33_a_call_that_was_cut_off_is_told_as_unknown_and_not_repeated(
    name: str, interface: str, path: Path
) -> None:
    """I-44, O-33: stopped after its intent was noted; the next process tells the model that nobody knows, once."""

    def cut(amount: int) -> str:
        raise KeyboardInterrupt

    shop = Shop(name, interface, path, cut)
    pending = shop.begin()
    with pytest.raises(KeyboardInterrupt):
        shop.resume(pending.approve(by="boss"))
    outcome = shop.resume()
    assert (outcome.output, shop.paid) == (Done("done"), [7])
    last = json.dumps(messages_of(generated(shop.fake)[-1].json))
    assert last.count("outcome unknown") == 1
    assert "paid" not in last
    shop.close()


@every
def test_d25_where_the_messages_are_gone_observations_go_as_data_and_the_event_says_so(
    name: str, interface: str, path: Path
) -> None:
    """D25: RAM history with durable checkpoints; no call id and no signature is made up for what was done."""
    shop = Shop(name, interface, path)
    events: list[Any] = []
    outcome = shop.process_without_messages(lambda runs: runs.run("Pay the bill.", **IDS), events)
    approval = outcome.pending[0].approve(by="boss")
    assert not [event for event in events if event.kind == "decision_history_resumed"]
    resumed = shop.process_without_messages(lambda runs: runs.resume(*IDS.values(), approvals=[approval]), events)
    assert (resumed.output, shop.paid) == (Done("done"), [7])
    (told,) = [event for event in events if event.kind == "decision_history_resumed"]
    assert told.resumed_without_messages is True
    (message,) = messages_of(generated(shop.fake)[-1].json)
    assert message["role"] == "user"
    assert "paid 7" in json.dumps(message)
    assert "content of bill" in json.dumps(message)
    shop.close()


@every
def test_i45_control_an_observation_that_was_made_up_is_seen(name: str, interface: str, path: Path) -> None:
    """What the assertions look at does change: where the capability says so, the model reads it."""
    shop = Shop(name, interface, path, lambda amount: "outcome unknown")
    shop.resume(shop.begin().approve(by="boss"))
    assert shop.told().count("outcome unknown") == 1
    shop.close()
