"""
`opaque_refs` mode: what a model once wrote as arguments is shown to no model again, and is executed all the same.

A random marker stands in every place of a call where a model can write one, in what it says and thinks beside the call,
and in calls that are refused. Capabilities get it; requests, the history's file, summaries, events, logs and errors do
not. Each such search has its control: in `inline` mode the marker is where it has always been.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from tests.budgets import budget
from tests.faults.test_secrets import Watch, watching
from tests.providers.loopback import REQUEST
from tests.runtime.programs import call, calls, finish, program, runtime

import minutebook
from minutebook import decisions, sync
from minutebook.errors import (
    AgentDecisionProviderSchemaViolation,
    AgentDecisionProviderUnavailable,
    CheckpointRefused,
    DecisionHistoryBusy,
    InvalidOption,
)
from minutebook.model.decisions import Decision, DecisionRequest, Observation
from minutebook.programs import Runtime
from minutebook.runtime import Budgets, Program, capability, checkpoints, delegate, records
from minutebook.runtime.references import is_reference
from minutebook.stores.journal import JournalStore
from minutebook.stores.memory import MemoryJournal
from minutebook.sync import driving
from minutebook.testing import Answer, Cut, FunctionCall, ProviderFake, ScriptedProvider, SuspendingJournal
from minutebook.testing.drive import cancel_at, drive
from minutebook.testing.fakes import Failure, Received

ROOT = Path(__file__).parents[2]
FORGED = budget(2_000, 100_000)

KINDS = {
    "openai-chat": "OpenAIChatDecisionProvider",
    "openai-responses": "OpenAIDecisionProvider",
    "anthropic": "AnthropicDecisionProvider",
    "gemini": "GeminiDecisionProvider",
}
MESSAGES = {"openai-chat": "messages", "openai-responses": "input", "anthropic": "messages", "gemini": "contents"}
EVERY = [
    pytest.param(api, interface, id=f"{api}-{interface}") for api in KINDS for interface in ("native", "structured")
]

Line = Answer | Failure


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


# --- a program, and a model that writes the marker -------------------------------------------------------------------


class Desk:
    """Capabilities that note what they were given, and return none of it."""

    def __init__(self) -> None:
        self.got: list[tuple[Any, ...]] = []

    def program(self, **options: Any) -> Program[Any]:
        @capability
        def save(
            note: Annotated[str, msgspec.Meta(max_length=60)],
            tags: dict[str, int],
            deep: list[dict[str, list[str]]],
            count: int,
        ) -> str:
            """Save a note."""
            self.got.append(("save", note, tags, deep, count))
            return "saved"

        @capability
        def send(note: str, to: str) -> str:
            """Send a note."""
            self.got.append(("send", note, to))
            return "sent"

        return program(save, send, **options)


def saving(marker: str, count: int = 1) -> dict[str, Any]:
    return {"note": f"a {marker}", "tags": {marker: 7}, "deep": [{f"k{marker}": ["x", marker]}], "count": count}


def saved(marker: str, count: int = 1) -> tuple[Any, ...]:
    return ("save", *saving(marker, count).values())


def said(interface: str, marker: str, *proposed: tuple[str, dict[str, Any]]) -> Answer:
    """Return an answer with these calls, and with the marker in all that stands beside them."""
    if interface == "native":
        made = tuple(FunctionCall(name, arguments) for name, arguments in proposed)
        return Answer(thinking=f"I think of {marker}.", text=f"I save {marker}.", calls=made)
    ((name, arguments),) = proposed
    text = json.dumps({"decision": {"action": name, **arguments}}, indent=1)
    return Answer(thinking=f"I think of {marker}.", text=text)


def done(interface: str) -> Answer:
    value = {"answer": "done"}
    return Answer(text=json.dumps(value if interface == "native" else {"decision": {"action": "finish", **value}}))


class Result(msgspec.Struct):
    answer: str


def reference_of(parameter: str, body: bytes) -> str:
    """Return the newest reference that a request shows for a parameter, however often its JSON is escaped."""
    found = re.findall(rb'%b[\\"]+:\s*[\\"]+(ref_[0-9a-f]{32})' % parameter.encode(), body)
    return str(found[-1].decode())


def forged() -> str:
    return f"ref_{secrets.token_hex(16)}"


class Model:
    """Saves the marker, gives a reference again, makes one up, and finishes."""

    def __init__(self, interface: str, marker: str) -> None:
        self.interface = interface
        self.marker = marker
        self.step = 0

    def __call__(self, received: Received) -> Line:
        self.step += 1
        return [self.save, self.use, self.forge, lambda _: done(self.interface)][self.step - 1](received)

    def save(self, _: Received) -> Line:
        both = [("save", saving(self.marker)), ("save", saving(self.marker, 2))]
        return said(self.interface, self.marker, *both[: 2 if self.interface == "native" else 1])

    def use(self, received: Received) -> Line:
        known = reference_of("note", received.body)
        return said(self.interface, self.marker, ("send", {"note": known, "to": f"to {self.marker}"}))

    def forge(self, _: Received) -> Line:
        return said(self.interface, self.marker, ("send", {"note": forged(), "to": f"to {self.marker}"}))


def provider_of(face: Any, api: str, interface: str, fake: ProviderFake, history: Any = None, **options: Any) -> Any:
    if api == "anthropic":
        options["max_output_tokens"] = 4000
    url = fake.base_url + ("/v1beta" if api == "gemini" else "")
    kind = getattr(face, KINDS[api])
    return kind(model="m", decision_interface=interface, base_url=url, api_key="k", history=history, **options)


def bytes_in(folder: Path, name: str) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.glob(f"{name}*")))


def messages_in(api: str, received: Received) -> list[bytes]:
    body = msgspec.json.decode(received.body, type=dict[str, msgspec.Raw])
    return [bytes(each) for each in msgspec.json.decode(body[MESSAGES[api]], type=list[msgspec.Raw])]


# --- the marker ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("api", "interface"), EVERY)
def test_d27_i37_no_argument_that_a_model_wrote_is_shown_again(
    api: str, interface: str, stream: bool, folder: Path
) -> None:
    """Requests, the history's file, events, logs and reprs hold references; capabilities and checkpoints the values."""
    desk, events = Desk(), []
    with (
        watching() as watch,
        sync.SQLiteStore(folder / "history.sqlite", namespace="n") as messages,
        sync.SQLiteStore(folder / "runs.sqlite", namespace="n") as runs,
        ProviderFake(api, Model(interface, watch.marker)) as fake,
    ):
        history = sync.HistoryOptions(store=messages, on_event=events.append)
        provider = provider_of(sync, api, interface, fake, history, stream=stream)
        opaque = sync.Runtime(desk.program(output=Result), provider, checkpoints=runs, projection="opaque_refs")
        outcome = opaque.run("Save it.", run_id="r", invocation_id="i")
        look_at_all(watch, api, fake, events, outcome)

    first = [saved(watch.marker)] + ([saved(watch.marker, 2)] if interface == "native" else [])
    assert desk.got == [*first, ("send", f"a {watch.marker}", f"to {watch.marker}")]
    assert outcome.output == Result("done")
    refused = outcome.observations[-1]
    assert refused.error
    assert refused.value["refused"] == "invalid_reference"
    assert [each.arguments for each in outcome.observations[:1]] == [saving(watch.marker)]
    assert watch.marker.encode() not in bytes_in(folder, "history")
    assert watch.marker.encode() in bytes_in(folder, "runs")  # what it is kept in, and a control of the search


def look_at_all(watch: Watch, api: str, fake: ProviderFake, events: list[Any], outcome: Any) -> None:
    assert fake.refused == ()
    assert len(fake.requests) == 4
    for earlier, later in zip(fake.requests, fake.requests[1:], strict=False):
        # Byte-stable: what was sent once is sent again as it was, and what is new stands behind it.
        sent = messages_in(api, earlier)
        assert messages_in(api, later)[: len(sent)] == sent
    for received in fake.requests:
        watch.look("request", received.body.decode())
        for sealed in (b'"type":"reasoning"', b'"thinking"', b'"signature"', b'"reasoning_content"'):
            assert sealed not in received.body.replace(b" ", b"")
    for event in events:
        watch.look_at_value(event)
        watch.look("event", msgspec.json.encode(event).decode())
    watch.look_at_value(outcome)
    for observation in outcome.observations:
        watch.look_at_value(observation)


@pytest.mark.parametrize(("api", "interface"), EVERY)
def test_d26_d27_control_inline_mode_is_as_it_was(api: str, interface: str, folder: Path) -> None:
    """Without the option the message goes back byte for byte, marker and all: the searches above can find one."""
    marker, desk = secrets.token_hex(8), Desk()
    lines = iter([said(interface, marker, ("save", saving(marker))), done(interface)])
    with (
        sync.SQLiteStore(folder / "history.sqlite", namespace="n") as messages,
        ProviderFake(api, lines, exact=True) as fake,
    ):
        provider = provider_of(sync, api, interface, fake, sync.HistoryOptions(store=messages))
        sync.Runtime(desk.program(output=Result), provider).run("Save it.")
    assert fake.refused == ()
    assert fake.requests[1].body.count(marker.encode()) >= 4
    assert marker.encode() in bytes_in(folder, "history")
    assert b"ref_" not in fake.requests[0].body


@pytest.mark.parametrize(("api", "interface"), EVERY)
def test_d18_d27_summaries_are_made_of_projected_turns(api: str, interface: str) -> None:
    """What leaves the window goes to the callback as it stands in the record: with references."""
    marker, desk, removed = secrets.token_hex(8), Desk(), []

    async def summarize(previous_summary: str | None, turns: Any, max_bytes: int) -> str:
        removed.append(turns)
        return "They saved notes."

    notes = iter([said(interface, marker, ("save", saving(marker, n))) for n in range(5)] + [done(interface)])
    with ProviderFake(api, notes) as fake:
        history = decisions.HistoryOptions(max_messages=7, summarize=summarize)
        provider = provider_of(decisions, api, interface, fake, history)
        opaque = Runtime(desk.program(output=Result), provider, projection="opaque_refs")
        outcome = asyncio.run(opaque.run("Save it."))
    assert outcome.output == Result("done")
    assert fake.refused == ()
    assert removed
    assert "ref_" in json.dumps(removed)
    assert marker not in json.dumps(removed)
    assert desk.got == [saved(marker, n) for n in range(5)]
    assert not [received for received in fake.requests if marker.encode() in received.body]


@pytest.mark.parametrize(("api", "interface"), EVERY)
def test_d27_without_a_history_the_observations_are_projected(api: str, interface: str) -> None:
    """A stateless provider is told what was done as data, and of the arguments their references."""
    marker, desk = secrets.token_hex(8), Desk()
    with ProviderFake(api, Model(interface, marker)) as fake:
        provider = provider_of(sync, api, interface, fake, False)
        outcome = sync.Runtime(desk.program(output=Result), provider, projection="opaque_refs").run("Save it.")
    assert outcome.output == Result("done")
    assert fake.refused == ()
    assert desk.got[-1] == ("send", f"a {marker}", f"to {marker}")
    assert b"Done so far" in fake.requests[1].body
    assert not [received for received in fake.requests if marker.encode() in received.body]


def wrong(interface: str, marker: str) -> Answer:
    return said(interface, marker, ("save", {**saving(marker), marker: marker}))


@pytest.mark.parametrize(("api", "interface"), EVERY)
def test_d27_i37_what_fails_keeps_no_argument_either(api: str, interface: str, folder: Path) -> None:
    """An answer that fits no schema, with a marker for a parameter's name, is neither kept nor told; nor is a 500's."""
    desk, kept = Desk(), {}
    for projection in ("opaque_refs", "inline"):
        with (
            watching() as watch,
            sync.SQLiteStore(folder / f"{projection}.sqlite", namespace="n") as store,
            ProviderFake(api, [wrong(interface, watch.marker), Failure(status=500)]) as fake,
        ):
            provider = provider_of(sync, api, interface, fake, sync.HistoryOptions(store=store))
            attempt = sync.Runtime(desk.program(output=Result), provider, projection=projection)  # type: ignore[arg-type]
            for expected in (AgentDecisionProviderSchemaViolation, AgentDecisionProviderUnavailable):
                with pytest.raises(expected) as failed:
                    attempt.run("Save it.", run_id="r", invocation_id="i")
                watch.look_at_error(failed.value)
        kept[projection] = watch.marker.encode() in bytes_in(folder, projection)
    assert kept == {"opaque_refs": False, "inline": True}
    assert desk.got == []


# --- references that stand for nothing -------------------------------------------------------------------------------


def scripted(*script: Decision | Callable[[DecisionRequest], Decision]) -> ScriptedProvider:
    """Return a provider by script, of which a line may be made of the request that it answers."""
    lines = iter(script)

    def answer(request: DecisionRequest) -> Decision:
        line = next(lines)
        return line(request) if callable(line) else line

    return ScriptedProvider.answering(answer)


def opaque_over(declared: Program[Any], provider: Any, **options: Any) -> Runtime[Any]:
    return Runtime(declared, provider, projection="opaque_refs", **options)


def near(known: str) -> Iterator[str]:
    """Return references that differ from a known one in one digit."""
    for at in range(len("ref_"), len(known)):
        yield known[:at] + ("0" if known[at] != "0" else "1") + known[at + 1 :]


def test_d27_of_forged_references_none_is_executed(figure: Callable[[str], None]) -> None:
    """Made up at random or one digit off, each call is refused before execution; the true reference is a control."""
    desk = Desk()

    def forging(request: DecisionRequest) -> Decision:
        known = str(request.observations[0].arguments["note"])
        guesses = [*near(known), *(forged() for _ in range(FORGED - 32))]
        return calls(*(call("send", note=guess, to="x") for guess in guesses), call("send", note=known, to="last"))

    provider = scripted(calls(call("save", **saving("own"))), forging, finish())
    outcome = drive(opaque_over(desk.program(), provider).run("Go."))
    refused = [each for each in outcome.observations if each.error]
    assert {each.value["refused"] for each in refused} == {"invalid_reference"}
    assert len(refused) == FORGED
    assert desk.got == [saved("own"), ("send", "a own", "last")]
    figure(f"{FORGED:,} forged references, 0 executed")


def reference_from(request: DecisionRequest, parameter: str = "note") -> str:
    return str(request.observations[0].arguments[parameter])


Made = tuple[str, str]


def kept_by(store: minutebook.MemoryStore, run_id: str, invocation_id: str, task: str = "Go.") -> Made:
    """Return references to a note and to a count that another run has kept in a store."""
    provider = scripted(calls(call("save", **saving("theirs"))), finish())
    drive(
        opaque_over(Desk().program(), provider, checkpoints=store).run(task, run_id=run_id, invocation_id=invocation_id)
    )
    request = provider.requests[-1]
    return reference_from(request), reference_from(request, "count")


def foreign_references(store: minutebook.MemoryStore, elsewhere: minutebook.MemoryStore) -> Mapping[str, Made]:
    return {
        "run": kept_by(store, "other", "i"),
        "invocation": kept_by(store, "r", "other"),
        "namespace": kept_by(elsewhere, "r", "i"),
        "expired": kept_by(store, "r", "i", "An earlier task."),
    }


@pytest.mark.parametrize("whose", ["run", "invocation", "namespace", "expired", "kind", "own"])
def test_d27_a_reference_is_for_its_run_invocation_namespace_task_and_parameter(whose: str) -> None:
    """Wherever else it is given it stands for nothing; `own` is the control that the right one does."""
    desk = Desk()
    store, elsewhere = minutebook.MemoryStore(namespace="n"), minutebook.MemoryStore(namespace="other")
    made = foreign_references(store, elsewhere)

    def give(request: DecisionRequest) -> Decision:
        note = made[whose][0] if whose in made else reference_from(request, "count" if whose == "kind" else "note")
        return calls(call("send", note=note, to="x"))

    provider = scripted(calls(call("save", **saving("own"))), give, finish())
    opaque = opaque_over(desk.program(), provider, checkpoints=store)
    outcome = drive(opaque.run("Go.", run_id="r", invocation_id="i"))
    if whose == "own":
        assert desk.got == [saved("own"), ("send", "a own", "x")]
    else:
        assert desk.got == [saved("own")]
        assert outcome.observations[1].value["refused"] == "invalid_reference"
        assert "theirs" not in str(outcome.observations)


def test_d27_a_reference_inside_a_value_is_no_value() -> None:
    """A reference is the whole value of a parameter; a capability never gets the text of one instead of a value."""
    desk = Desk()

    def nest(request: DecisionRequest) -> Decision:
        note = reference_from(request)
        return calls(call("save", **{**saving("x"), "deep": [{"k": [note]}]}))

    outcome = drive(
        opaque_over(desk.program(), scripted(calls(call("save", **saving("own"))), nest, finish())).run("Go.")
    )
    assert desk.got == [saved("own")]
    assert outcome.observations[1].value["message"].startswith("deep: no reference")


def test_d27_a_reference_that_was_refused_does_not_come_to_stand_for_one() -> None:
    """What stands for a made-up reference can be given again, and is refused again."""
    desk = Desk()
    again = lambda request: calls(call("send", note=reference_from(request), to="x"))  # noqa: E731
    provider = scripted(calls(call("send", note=forged(), to="x")), again, finish())
    outcome = drive(opaque_over(desk.program(), provider).run("Go."))
    assert desk.got == []
    assert [each.value["refused"] for each in outcome.observations] == ["invalid_reference"] * 2


def test_d27_what_a_reference_stands_for_is_held_to_the_parameter_s_own_rules() -> None:
    """A capability with a narrower parameter of the same name refuses a value that came by reference, too."""
    got: list[str] = []

    @capability
    def short(note: Annotated[str, msgspec.Meta(max_length=3)]) -> str:
        """Take a short note."""
        got.append(note)
        return "ok"

    @capability
    def wide(note: str) -> str:
        """Take any note."""
        return "ok"

    give = lambda request: calls(call("short", note=reference_from(request)))  # noqa: E731
    outcome = drive(
        opaque_over(program(wide, short), scripted(calls(call("wide", note="much too long")), give, finish())).run(
            "Go."
        )
    )
    assert got == []
    assert outcome.observations[1].value["refused"] == "invalid_arguments"


def test_d27_a_name_that_a_model_chose_is_not_shown_either() -> None:
    """A parameter that the capability does not have is content in the place of a name: it is refused, and hidden."""
    desk = Desk()
    provider = scripted(calls(call("send", note="n", to="x", canary="c")), finish())
    drive(opaque_over(desk.program(), provider).run("Go."))
    assert desk.got == []
    assert "canary" not in str([msgspec.structs.asdict(each) for each in provider.requests[1].observations])


# --- going on --------------------------------------------------------------------------------------------------------


def worker(folder: str, part: str) -> None:
    """One process of a run: the first proposes and stops for an approval, the second gives a reference again."""
    got: list[str] = []

    @capability(needs_approval=True)
    def save(note: str) -> str:
        """Save a note."""
        got.append(note)
        return "saved"

    def generate(messages: list[Any], schema: Any) -> Any:
        told = json.dumps(messages)
        assert "marker-4711" not in told
        if len(got) == 2:
            return {"decision": {"action": "finish", "output": "done"}}
        note = reference_of("note", told.encode()) if "ref_" in told else "a marker-4711"
        return {"decision": {"action": "save", "note": note}}

    with sync.SQLiteStore(Path(folder) / "runs.sqlite", namespace="n") as store:
        provider = sync.OpenAIChatDecisionProvider(
            model="m",
            decision_interface="structured",
            generate=generate,
            history=sync.HistoryOptions(store=store) if part.endswith("messages") else None,
        )
        opaque = sync.Runtime(
            Program(name="clerk", instructions="", capabilities=[save]),
            provider,
            checkpoints=store,
            projection="opaque_refs",
        )
        if part.startswith("first"):
            assert opaque.run("Save it.", run_id="r", invocation_id="i").kind == "approval_required"
            return
        outcome = opaque.resume("r", "i")
        while outcome.kind == "approval_required":
            (pending,) = outcome.pending
            assert pending.arguments == {"note": "a marker-4711"}  # a human sees what will be executed
            outcome = opaque.resume("r", "i", approvals=[pending.approve(by="ann")])
    print(json.dumps([outcome.output, got]))


@pytest.mark.parametrize("history", ["messages", "nothing"])
def test_d25_d27_a_run_that_goes_on_in_another_process_still_has_its_values(history: str, folder: Path) -> None:
    """References are found again through the checkpoint, with the messages and where those were in RAM and are gone."""
    told = [
        subprocess.run(
            [
                sys.executable,
                "-c",
                f"from tests.runtime.test_opaque_refs import worker; worker({str(folder)!r}, {part!r})",
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )
        for part in (f"first {history}", f"second {history}")
    ]
    assert [each.returncode for each in told] == [0, 0], [each.stderr for each in told]
    assert json.loads(told[1].stdout) == ["done", ["a marker-4711"] * 2]


class CutOff:
    """A provider whose first decision is recorded and never arrives."""

    def __init__(self, provider: Any) -> None:
        self.provider = provider
        self.cuts = 1

    async def decide(self, request: DecisionRequest) -> Decision:
        decision: Decision = await self.provider.decide(request)
        if self.cuts:
            self.cuts -= 1
            raise ConnectionError
        return decision


@pytest.mark.parametrize(("api", "interface"), EVERY)
def test_d25_d27_a_decision_that_was_recorded_and_not_delivered_still_has_its_values(
    api: str, interface: str, folder: Path
) -> None:
    """The values are durable before the response is, so what was recorded leads to them; nothing is asked twice."""

    async def lead(fake: ProviderFake) -> Any:
        async with minutebook.SQLiteStore(folder / "all.sqlite", namespace="n") as store:
            provider = provider_of(decisions, api, interface, fake, decisions.HistoryOptions(store=store))
            opaque = opaque_over(desk.program(output=Result), CutOff(provider), checkpoints=store)
            with pytest.raises(ConnectionError):
                await opaque.run("Save it.", run_id="r", invocation_id="i")
            assert desk.got == []
            return await opaque.resume("r", "i")

    marker, desk = secrets.token_hex(8), Desk()
    with ProviderFake(api, Model(interface, marker)) as fake:
        outcome = asyncio.run(lead(fake))
    assert outcome.output == Result("done")
    assert fake.refused == ()
    assert len(fake.requests) == 4
    assert desk.got[0] == saved(marker)
    assert desk.got[-1] == ("send", f"a {marker}", f"to {marker}")
    assert not [received for received in fake.requests if marker.encode() in received.body]


@pytest.mark.parametrize("modes", [("inline", "opaque_refs"), ("opaque_refs", "inline")])
def test_d27_a_task_goes_on_in_the_mode_in_which_it_began(modes: Any) -> None:
    """What was recorded inline would be shown in the other mode, and references would stand for nothing in the one."""
    store = minutebook.MemoryStore(namespace="n")
    provider = scripted(calls(call("save", **saving("x"))))
    with pytest.raises(RuntimeError, match="StopIteration"):
        drive(
            Runtime(Desk().program(), provider, checkpoints=store, projection=modes[0]).run(
                "Go.", run_id="r", invocation_id="i"
            )
        )
    with pytest.raises(CheckpointRefused) as refused:
        drive(Runtime(Desk().program(), provider, checkpoints=store, projection=modes[1]).resume("r", "i"))
    assert refused.value.facts["problem"] == "projection"


@pytest.mark.parametrize("api", list(KINDS))
def test_d27_a_later_task_in_the_mode_shows_nothing_of_an_inline_one(api: str) -> None:
    """The mode is part of the conversation's identity: the invocation keeps its ids, and begins another one."""
    marker, store = secrets.token_hex(8), sync.MemoryStore(namespace="n")
    lines = [said("native", marker, ("save", saving(marker))), done("native"), done("native"), done("native")]
    with ProviderFake(api, lines) as fake:
        provider = provider_of(sync, api, "native", fake, sync.HistoryOptions(store=store))
        for projection in ("inline", "inline", "opaque_refs"):
            each = sync.Runtime(Desk().program(output=Result), provider, checkpoints=store, projection=projection)  # type: ignore[arg-type]
            each.run(f"Task for {len(fake.requests)}.", run_id="r", invocation_id="i")
    assert fake.refused == ()
    assert [marker.encode() in received.body for received in fake.requests] == [False, True, True, False]


@pytest.mark.parametrize(("api", "interface"), EVERY)
def test_d27_what_stands_beside_a_finish_is_not_shown_to_the_next_task(api: str, interface: str) -> None:
    """D27: thinking and text of a model that finishes may quote an argument; of a finish its output alone goes on."""
    marker, store = secrets.token_hex(8), sync.MemoryStore(namespace="n")
    finishing = msgspec.structs.replace(done(interface), thinking=f"I have saved {marker}.")
    lines = [said(interface, marker, ("save", saving(marker))), finishing, done(interface)]
    with ProviderFake(api, lines) as fake:
        provider = provider_of(sync, api, interface, fake, sync.HistoryOptions(store=store))
        runs = sync.Runtime(Desk().program(output=Result), provider, checkpoints=store, projection="opaque_refs")
        for task in ("first", "second"):
            assert runs.run(task, run_id="r", invocation_id="i").kind == "finished"
    assert (len(fake.requests), fake.refused) == (3, ())
    assert [marker.encode() in received.body for received in fake.requests] == [False, False, False]


# --- stopped at every await ------------------------------------------------------------------------------------------


class Sweep:
    """One run of two calls, the second with a reference to what the first was given, and what was wrong with it."""

    def __init__(self) -> None:
        self.got: list[str] = []
        self.asked: list[str] = []

    def generate(self, messages: list[Any], schema: Any) -> Any:
        told = json.dumps(messages)
        self.asked.append(told)
        step = sum(str(each["content"]).startswith(("Result of", "Error of")) for each in messages)
        if step == 2:
            return {"decision": {"action": "finish", "output": "done"}}
        note = reference_of("note", told.encode()) if step else "a marker-4711"
        return {"decision": {"action": "save", "note": note}}

    def runtime(self, journal: Any) -> Runtime[Any]:
        @capability
        def save(note: str) -> str:
            """Save a note."""
            self.got.append(note)
            return "saved"

        store = JournalStore(journal, namespace="t")
        provider = decisions.OpenAIChatDecisionProvider(
            model="m",
            decision_interface="structured",
            generate=self.generate,
            history=decisions.HistoryOptions(store=store),
        )
        return opaque_over(program(save, budgets=Budgets(max_decisions=50)), provider, checkpoints=store)

    async def finished(self, journal: Any) -> Any:
        """Go on until there is an outcome, as a host would in a process of its own."""
        try:
            return await self.runtime(journal).resume("r", "i")
        except CheckpointRefused:
            return await self.runtime(journal).run("Go.", run_id="r", invocation_id="i")
        except DecisionHistoryBusy as busy:
            await self.runtime(journal).recover("r", "i", worker_stopped=True, epoch=busy.epoch)
            return await self.finished(journal)

    def wrong(self, outcome: Any) -> list[str]:
        unknown = sum(each.value == {"interrupted": "outcome unknown"} for each in outcome.observations)
        right = {
            "finished": outcome.kind == "finished",
            "real values": [each.arguments for each in outcome.observations] == [{"note": "a marker-4711"}] * 2,
            "executed": 2 - unknown <= len(self.got) <= 2 and set(self.got) <= {"a marker-4711"},
            "at most one unknown": unknown <= 1,
            "none refused": sum(each.error for each in outcome.observations) == unknown,
            "nothing shown": not any("marker-4711" in told for told in self.asked),
        }
        return [what for what, holds in right.items() if not holds]


def swept(cut: Cut) -> tuple[int, list[str]]:
    """Stop a run at each of its awaits in turn, go on in what stands for another process, and tell what was wrong."""
    wrong: list[str] = []
    for step in range(1, 1_000):
        each, journal = Sweep(), MemoryJournal()

        def run(each: Sweep = each, journal: MemoryJournal = journal) -> Any:
            return each.runtime(SuspendingJournal(journal)).run("Go.", run_id="r", invocation_id="i")

        if not drive(cancel_at(run, step, cut)).struck:
            return step - 1, wrong
        wrong += [f"{cut}, await {step}: {what}" for what in each.wrong(drive(each.finished(journal)))]
    raise AssertionError("the run never ended")


@pytest.mark.parametrize("cut", [Cut.CANCELLED, Cut.INTERRUPTED, Cut.CLOSED, Cut.KILLED])
def test_d25_d27_stopped_at_any_await_references_still_lead_to_their_values(
    cut: Cut, figure: Callable[[str], None]
) -> None:
    """Whatever was recorded before the end, each call is executed with what the model wrote, and at most once."""
    awaits, wrong = swept(cut)
    assert wrong == []
    assert awaits > 20
    figure(f"{awaits} awaits")


def test_d27_control_values_that_are_not_kept_first_are_found_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep finds a runtime that lets a provider record references before what they stand for."""
    note = checkpoints.Log.note

    def forgetful(log: Any, *noted: Any) -> None:
        note(log, *[record for record in noted if not isinstance(record, records.Referred)])

    monkeypatch.setattr(checkpoints.Log, "note", forgetful)
    assert swept(Cut.KILLED)[1] != []


# --- what cannot be --------------------------------------------------------------------------------------------------


def test_d27_a_provider_that_does_not_project_is_refused_before_anything_is_executed() -> None:
    """One that decides arguments may have kept them too; the runtime sees it at the first decision."""
    desk = Desk()

    class Keeping:
        async def decide(self, request: DecisionRequest) -> Decision:
            return calls(call("send", note="raw", to="x"))

    with pytest.raises(AgentDecisionProviderSchemaViolation) as refused:
        drive(opaque_over(desk.program(), Keeping()).run("Go."))
    assert refused.value.facts["provider_error_code"] == "not_projected"
    assert desk.got == []


def test_b11_d27_a_blocking_provider_of_a_host_projects_too() -> None:
    """It runs the projection to its end where it stands, since nothing in it waits."""
    desk, asked = Desk(), []

    class Blocking:
        def decide(self, request: DecisionRequest) -> Decision:
            asked.append(request)
            if request.observations:
                return finish()
            assert request.project is not None
            return Decision(calls=driving.drive(request.project((call("send", note="raw", to="x"),))))

    with sync.MemoryStore(namespace="n") as store:
        opaque = sync.Runtime(desk.program(), Blocking(), checkpoints=store, projection="opaque_refs")
        assert opaque.run("Go.").output == "done"
    assert desk.got == [("send", "raw", "x")]
    assert set(map(is_reference, asked[1].observations[0].arguments.values())) == {True}


@pytest.mark.parametrize("interface", ["native", "structured"])
def test_d27_a_projection_of_a_host_returns_the_calls_that_it_was_given(interface: str) -> None:
    """A host with a runtime of its own gives `project` itself; what is no projection is told as its fault."""

    async def none_of_them(_: Any) -> Any:
        return ()

    request = msgspec.structs.replace(REQUEST, project=none_of_them)
    line = said(interface, "x", ("look", {"path": "x"}))
    with ProviderFake("openai-chat", [line]) as fake, pytest.raises(InvalidOption, match="in their order"):
        provider_of(sync, "openai-chat", interface, fake).decide(request)


@pytest.mark.parametrize("projection", ["opaque", "", None, True])
def test_d27_a_mode_that_is_none_is_refused(projection: Any) -> None:
    """There are two."""
    with pytest.raises(InvalidOption, match="projection is"):
        Runtime(Desk().program(), ScriptedProvider([]), projection=projection)


def test_d27_observations_of_an_earlier_run_have_no_references() -> None:
    """They are refused, not shown: a host that wants to go on keeps checkpoints."""
    seen = Observation(capability="send", arguments={"note": "raw", "to": "x"}, value="sent")
    with pytest.raises(InvalidOption, match="checkpoints"):
        drive(opaque_over(Desk().program(), scripted()).run("Go.", run_id="r", invocation_id="i", observations=[seen]))


def test_d27_anthropic_s_thinking_by_hand_is_refused_before_anything_is_sent() -> None:
    """Its tool loop would have to go back with the thinking that the mode leaves out."""
    with ProviderFake("anthropic", [done("structured")]) as fake:
        for interface in ("native", "structured"):
            thinking: Any = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
            provider = provider_of(sync, "anthropic", interface, fake, extra_body=thinking)
            opaque = sync.Runtime(Desk().program(output=Result), provider, projection="opaque_refs")
            if interface == "native":
                with pytest.raises(InvalidOption, match="thinking"):
                    opaque.run("Go.")
                assert fake.requests == ()
            else:
                assert opaque.run("Go.").output == Result("done")


def test_d27_an_agent_that_is_called_gets_its_task_as_a_capability_gets_its_values() -> None:
    """Its caller is shown a reference from then on, and neither can use the other's."""
    below = scripted(finish("read"))
    reader = Program(name="reader", instructions="You read.")
    above = scripted(calls(call("reader", task="Read marker-0815.")), finish())
    clerk = program(delegate(reader), budgets=Budgets(max_depth=1))
    outcome = drive(opaque_over(clerk, above, providers={"reader": below}).run("Go."))
    assert outcome.output == "done"
    assert below.requests[0].task == "Read marker-0815."
    assert re.fullmatch("ref_[0-9a-f]{32}", str(above.requests[1].observations[0].arguments["task"]))


def test_d27_control_a_scripted_run_inline_is_told_the_arguments() -> None:
    """The default: what a provider is told is what was observed."""
    inline, provider = runtime(Desk().program(), calls(call("send", note="raw", to="x")), finish())
    drive(inline.run("Go."))
    assert provider.requests[1].observations[0].arguments == {"note": "raw", "to": "x"}
    assert provider.requests[1].project is None
