"""
The secret canary (I-37) through the decision providers, the token guard, summaries and the runtime.

A marker goes into every text that a host, a user, a model or a provider can write: the task, instructions, ids, the
key, arguments, results, summaries, answers, reasoning, the provider's own errors, and what callbacks and capabilities
raise. Then everything goes right and wrong that can, with every logger at DEBUG, those of the official clients too.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import msgspec
import openai
import pytest
from tests.faces.strict import KINDS, REQUEST, THINKING
from tests.faults.test_secrets import Leaked, Watch, watching
from tests.http_clients import http_client

from minutebook import ContextWindow, sync
from minutebook.errors import MinutebookError
from minutebook.model.decisions import Observation
from minutebook.providers.sdk_http import SdkPost, Unshown
from minutebook.runtime import Budgets, CapabilityFailed, MemoryResource, Program, capability
from minutebook.testing import Answer, FunctionCall, ProviderFake
from minutebook.testing.fakes import Disconnect, Failure, Reply

GUARD = {"context": ContextWindow(context_window_tokens=9_000), "max_output_tokens": 100}


class Scene:
    """One provider with a marker for a key, on a file of its own; what it hands out is looked at."""

    def __init__(self, name: str, watch: Watch, path: Path, script: list[Any], counts: list[Any] | None = None) -> None:
        self.name, self.watch, self.marker = name, watch, watch.marker
        self.fake = ProviderFake(name, script, counts=counts or [])
        self.http = http_client(verify=False, timeout=20)
        self.store = sync.SQLiteStore(path, namespace=f"tenant {watch.marker}")
        self.memory: list[Any] = []

    def provider(self, interface: str = "native", **options: Any) -> Any:
        history = options.pop("history", {})
        chosen: dict[str, Any] = {"model": "m", **GUARD, **THINKING[self.name], **options}
        key = f"sk-{self.marker}"
        if self.name == "gemini":
            client: dict[str, Any] = {"client": self.http, "base_url": f"{self.fake.base_url}/v1beta", "api_key": key}
        else:
            kind: Any = anthropic.Anthropic if self.name == "anthropic" else openai.OpenAI
            client = {"client": kind(base_url=self.fake.base_url, api_key=key, http_client=self.http)}
        kept = sync.HistoryOptions(store=self.store, on_event=self.watch.look_at_value, **history)
        made = getattr(sync, KINDS[self.name])(
            decision_interface=interface, count=True, history=kept, **client, **chosen
        )
        for value in (made, kept, made.store, made._core, made._core._steps, made._core._post):
            self.watch.look_at_value(value)
        return made

    def run(self, provider: Any, invocation: str, program: Program[Any], approve: bool = False) -> None:
        """Run to the end, whichever it is, and look at all that comes of it."""
        running = sync.Runtime(program, provider)
        ids = {"run_id": f"run {self.marker}", "invocation_id": f"{invocation} {self.marker}"}
        self.watch.look_at_value(running)
        try:
            outcome = running.run(f"{self.marker} look", on_observation=self.watch.look_at_value, **ids)
            while outcome.pending and approve:
                approvals = [waits.approve(by=f"boss {self.marker}") for waits in outcome.pending]
                self.look(outcome, *outcome.pending, *approvals)
                outcome = running.resume(*ids.values(), approvals=approvals)
            self.look(outcome, *outcome.observations)
        except MinutebookError as error:
            self.watch.codes.add(error.code)
            self.watch.look_at_error(error)

    def look(self, *values: Any) -> None:
        for value in values:
            self.watch.look_at_value(value)

    def close(self) -> None:
        self.http.close()
        self.fake.close()
        self.store.close()


def world(marker: str) -> Program[Any]:
    notes = MemoryResource(name="notes", scope="run")

    @capability
    def look(path: str) -> str:
        """Read a file."""
        if "fails" in path:
            raise CapabilityFailed(f"{marker} could not")
        if "raises" in path:
            raise OSError(f"{marker} in an error")
        return f"{marker} content of {path}"

    @capability(needs_approval=True)
    def pay(path: str) -> str:
        """Pay."""
        return marker

    @capability(authority="erase")
    def erase(path: str) -> str:
        """Erase."""
        return marker

    @capability(memory=[notes])
    def note(path: str, memory: sync.Memory) -> int:
        """Note."""
        return memory.write("notes", {"text": f"{marker} {path}"})

    return Program(
        name="agent",
        instructions=f"{marker} decides.",
        capabilities=[look, pay, erase, note],
        memory=[notes],
        budgets=Budgets(max_decisions=8),
        output=str,
    )


def call(name: str, marker: str, text: str = "") -> FunctionCall:
    return FunctionCall(name, {"path": f"{marker} {text}"})


def story(marker: str) -> list[Any]:
    """A run through everything that a model may do."""
    names = [[("look", ""), ("look", "fails")], [("look", "raises"), ("erase", "")], [("note", "")], [("look", "more")]]
    answers: list[Any] = [
        Answer(text=marker, thinking=f"{marker} thinks", calls=tuple(call(name, marker, text) for name, text in step))
        for step in names
    ]
    return [*answers, Answer(calls=(call("pay", marker),)), Answer(text=json.dumps({"output": marker}))]


def failures(name: str, marker: str) -> Iterator[Any]:
    """Whatever a provider can do instead of an answer, and answers that are none, each quoting the marker."""
    said = f"about {marker} and sk-{marker}"
    told = {"type": "error", "error": {"type": marker, "code": marker, "status": marker, "message": said}}
    for status in (400, 401, 404, 429, 500, 529):
        yield Reply(status=status, body=json.dumps(told).encode())
    yield Reply(body=json.dumps(told).encode())
    yield Reply(status=502, headers={"content-type": "text/html"}, body=f"<html>{said}</html>".encode())
    yield Reply(body=f'{{"{marker}'.encode())
    yield Failure(status=503)
    yield Disconnect(Answer(text=marker), 30)
    yield Answer(text=f"{marker} is no JSON")
    yield Answer(text=json.dumps({"wrong": marker}))
    yield Answer(refusal=marker)
    yield Answer(text=marker, ending="length")
    yield Answer(calls=(FunctionCall(f"x{marker}", {"path": marker}),))
    yield Answer(calls=(FunctionCall("look", {marker: marker}),))


def observed(scene: Scene) -> None:
    """What a host that drives a provider itself gets wrong."""
    m = scene.marker
    request = msgspec.structs.replace(REQUEST, run_id=m, invocation_id=m, agent_ref=m, task=m, instructions=m)
    strange = Observation(capability=m, arguments={m: m}, value=m)
    provider = scene.provider()
    # Ids of a run and names of capabilities show: they are addresses, and the program's own words.
    named = msgspec.structs.replace(request, run_id="r", invocation_id="i")
    scene.look(named, msgspec.structs.replace(strange, capability="look"))
    for wrong in (
        msgspec.structs.replace(request, observations=(strange,)),
        msgspec.structs.replace(request, run_id=""),
        msgspec.structs.replace(request, run_id=m * 60),
        msgspec.structs.replace(request, capabilities=REQUEST.capabilities * 2),
    ):
        scene.watch.refused(lambda wrong=wrong: provider.decide(wrong))


@pytest.mark.parametrize("name", list(KINDS))
def test_i37_d04_d09_no_marker_of_a_program_is_seen_outside_the_store(
    name: str, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """I-37: guard, summaries, approvals, memory and every error of the runtime and the provider; 0 markers at DEBUG."""
    tmp_path.chmod(0o700)
    with watching() as watch:
        m = watch.marker
        program = world(m)
        path = tmp_path / "book.sqlite"
        scene = Scene(name, watch, path, [*story(m), *story(m), *failures(name, m), *story(m)[:3]])
        scene.run(scene.provider(), "plain", program, approve=True)
        summed = {"max_messages": 9, "max_summary_bytes": 200, "summarize": lambda **_: f"{m} in short"}
        scene.run(scene.provider(history=summed), "summed", program, approve=True)
        for number, _ in enumerate(failures(name, m)):
            scene.run(scene.provider(), f"failure {number}", program)

        def raising(**_: Any) -> str:
            raise ValueError(f"{m} was in the conversation")

        room = 9 if name == "openai-responses" else 4  # one exchange, and not a second one
        bad = {"max_messages": room, "max_summary_bytes": 200, "summarize": raising}
        scene.run(scene.provider(history=bad), "bad summary", program)
        tight = {"context": ContextWindow(context_window_tokens=150, safety_margin_tokens=0)}
        scene.run(scene.provider(**tight), "tight", program)
        scene.run(scene.provider(history={"max_messages": 1, "max_bytes": 2}), "limit", program)
        observed(scene)
        for receipt in (r for listing in scene.store.list() for r in scene.store.receipts(listing.key)):
            watch.look("what a receipt says was sent", receipt.sent)
        assert not [each for each in scene.fake.refused if each.problem and "script" in each.problem.message]
        scene.close()
        counts = [Reply(status=500, body=m.encode()), Reply(body=json.dumps({"input_tokens": m}).encode())]
        uncounted = Scene(name, watch, tmp_path / "other.sqlite", [], counts)
        for number, _ in enumerate(counts):
            uncounted.run(uncounted.provider(), f"count {number}", program)
        uncounted.close()
    assert m.encode() in path.read_bytes()
    assert watch.codes >= {
        "AgentDecisionProviderSchemaViolation",
        "AgentDecisionProviderUnavailable",
        "DecisionHistoryLimitExceeded",
        "DecisionHistorySummaryInvalid",
        "ProviderContextCountUnavailable",
        "ProviderContextWindowExceeded",
    }
    figure(f"{name}: {watch.looked:,} texts of {len(watch.codes)} kinds of errors, 0 markers")


@pytest.mark.parametrize("name", ["anthropic", "openai-chat"])
def test_i37_control_a_client_that_logs_what_it_posts_is_found(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anthropic's client logs its options at DEBUG, and the watch sees it as soon as a body shows itself."""
    tmp_path.chmod(0o700)
    if name == "anthropic":
        monkeypatch.setattr("minutebook.providers.sdk_http.Unshown", bytes)
    else:
        monkeypatch.setattr(SdkPost, "__call__", logging_call(SdkPost.__call__))
    with pytest.raises(Leaked), contextlib.ExitStack() as ending:  # noqa: PT012 - a leak is seen as the watch ends
        watch = ending.enter_context(watching())
        scene = Scene(name, watch, tmp_path / "book.sqlite", [Answer(text=json.dumps({"output": "x"}))])
        ending.callback(scene.close)
        scene.run(scene.provider(), "i", world(watch.marker))


def logging_call(right: Any) -> Any:
    async def call(self: Any, path: str, body: bytes) -> bytes:
        logging.getLogger("host").debug("posting %r", body)
        return await right(self, path, body)  # type: ignore[no-any-return]

    return call


def test_i37_a_body_shows_its_length_alone() -> None:
    """It is posted byte for byte, and nothing of it is in what a log would print."""
    body = Unshown(b"canary")
    assert body == b"canary"
    assert repr({"content": body}) == "{'content': <6 bytes>}"
