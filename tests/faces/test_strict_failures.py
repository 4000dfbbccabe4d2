"""
What can fail around a decision, over every provider: three kinds of errors that nobody takes for one another.

The provider's failures compact nothing, with summaries and a token guard at work as well (I-28). What is refused here
keeps its own code, is never told as the model's fault, and is not tried again at the provider (D9). Without a usable
count nothing is generated, and no key goes anywhere else (bad inputs 108 to 111).
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import shutil
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.faces.strict import (
    KEY,
    KINDS,
    REQUEST,
    Host,
    Story,
    calling,
    client_of,
    counted,
    finishing,
    first_words,
    generated,
    messages_of,
    provider_of,
)

from minutebook import ContextWindow, sync
from minutebook.errors import (
    AgentDecisionProviderSchemaViolation,
    AgentDecisionProviderUnavailable,
    DecisionHistoryBusy,
    DecisionHistoryFenced,
    DecisionHistoryLimitExceeded,
    DecisionHistoryRetentionExceeded,
    DecisionHistoryStorageUnsafe,
    DecisionHistoryStoreFull,
    DecisionHistorySummaryInvalid,
    MinutebookError,
    PairingViolation,
    ProviderContextCountUnavailable,
    ProviderContextWindowExceeded,
)
from minutebook.model.decisions import Observation
from minutebook.model.entries import Kind
from minutebook.testing import Answer, ProviderFake
from minutebook.testing.fakes import Disconnect, Failure, Reply, html_page, malformed_json, redirect

names = pytest.mark.parametrize("name", list(KINDS))

# --- a failure at the provider changes nothing (I-28) -----------------------------------------------------------------

OVERFLOWS = {
    "openai-responses": {"error": {"type": "invalid_request_error", "code": "context_length_exceeded", "message": "x"}},
    "openai-chat": {"error": {"type": "invalid_request_error", "code": "context_length_exceeded", "message": "x"}},
    "anthropic": {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "prompt is too long: 200001 tokens > 200000 maximum"},
    },
    "gemini": {
        "error": {
            "code": 400,
            "status": "INVALID_ARGUMENT",
            "message": "The input token count (1048577) exceeds the maximum number of tokens allowed (1048576).",
        }
    },
}
FAILURES: dict[str, Any] = {
    "overflow": None,
    "rate": Failure(status=429),
    "internal": Failure(status=500),
    "unavailable": Failure(status=503),
    "too large": Failure(status=413),
    "gateway": html_page(),
    "redirected": redirect("https://example.invalid/v1"),
    "malformed": malformed_json(),
    "cut": Disconnect(Answer(text="half an answer"), 20),
}
GUARD = {"context": ContextWindow(context_window_tokens=2_500, input_token_multiplier=1), "count": True}


def failure_of(name: str, kind: str) -> Any:
    return FAILURES[kind] or Reply(status=400, body=json.dumps(OVERFLOWS[name]).encode())


def failed(provider: Any, request: Any) -> MinutebookError:
    with pytest.raises(MinutebookError) as caught:
        provider.decide(request)
    return caught.value


def entries(story: Story) -> list[Any]:
    return list(story.store.entries(story.provider().key(story.request)))


def unfenced(messages: list[Any]) -> str:
    """The messages as text, the fence of a summary left out: it is drawn anew until a summary is recorded."""
    told = json.dumps(messages, ensure_ascii=False)
    words = first_words(messages[0])
    fence = words[0].partition("\n")[0].removeprefix("<summary ").removesuffix(">")
    return told.replace(fence, "") if len(words) == 2 else told


@names
@pytest.mark.parametrize("interface", ["native", "structured"])
def test_d13_i28_no_failure_of_a_provider_compacts_with_summaries_and_guard_on(name: str, interface: str) -> None:
    """I-28, D9, D13: the same request again after each failure; no summary is asked for or recorded because of one."""
    host = Host()
    story = Story(name, interface, host=host, max_messages=11, options=GUARD)
    recorded = [entry for entry in entries(story) if entry.kind is Kind.SUMMARY]
    assert recorded
    for leaves in (True, False):
        # Under the old limit another exchange leaves, and is offered each time; under a wider one nothing does.
        provider = story.provider(host=host, max_messages=11 if leaves else 60, options=GUARD)
        sent: list[str] = []
        offered: list[Any] = []
        for kind in FAILURES:
            story.fails = failure_of(name, kind)
            asked, generations = len(host.given), len(generated(story.fake))
            error = failed(provider, story.request)
            assert isinstance(error, AgentDecisionProviderUnavailable), (kind, error)
            assert len(generated(story.fake)) == generations + 1, kind
            assert len(host.given) == asked + leaves, kind
            offered += host.given[asked:]
            sent.append(unfenced(messages_of(generated(story.fake)[-1].json)).replace(f"({asked + 1})", ""))
        bare = {text.partition("</summary ")[2] for text in sent}
        assert len(bare) == 1, "a failure changed the window"
        assert all(each == offered[0] for each in offered)
        now = entries(story)
        assert [entry for entry in now if entry.kind is Kind.SUMMARY] == recorded
    assert {entry.kind for entry in entries(story)[-len(FAILURES) :]} == {Kind.ABANDONED}
    story.fails = finishing(interface)
    assert story.provider(host=host, max_messages=11, options=GUARD).decide(story.request).finish
    assert len([entry for entry in entries(story) if entry.kind is Kind.SUMMARY]) == len(recorded) + 1
    assert story.fake.refused == ()
    story.close()


# --- local refusals keep their own codes (D9) -------------------------------------------------------------------------


class Case:
    """A conversation of one step whose results wait, on a store of its own, and what is refused about it."""

    def __init__(self, name: str, store: Any, script: Any, **fake: Any) -> None:
        self.fake = ProviderFake(name, script, **fake)
        self.name, self.store = name, store
        self.client = client_of(self.fake, name)
        decision = self.provider().decide(REQUEST)
        self.observations = tuple(
            Observation(capability="look", arguments=call.arguments, value="x" * 900, reference=call.reference)
            for call in decision.calls
        )
        self.request = msgspec.structs.replace(REQUEST, observations=self.observations)

    def provider(self, host: Any = None, options: dict[str, Any] | None = None, **history: Any) -> Any:
        kept = sync.HistoryOptions(store=self.store, summarize=host, **history)
        return provider_of(self.client, self.name, "native", history=kept, **{"count": False, **(options or {})})

    def close(self) -> None:
        self.client["client"].close()
        self.fake.close()
        self.store.close()


TOKENS = {"context": ContextWindow(context_window_tokens=200, safety_margin_tokens=0), "count": True}


def limit_exceeded(case: Case) -> Any:
    return lambda: case.provider(max_messages=2).decide(case.request)


def retention_exceeded(case: Case) -> Any:
    return lambda: case.provider(max_bytes=3_900, max_retained_bytes=3_900).decide(
        msgspec.structs.replace(
            case.request,
            observations=tuple(msgspec.structs.replace(each, value="x" * 1_500) for each in case.observations),
        )
    )


def summary_invalid(case: Case) -> Any:
    calls = case.provider().decide(case.request).calls
    seen = [
        Observation(capability="look", arguments=call.arguments, value="y", reference=call.reference) for call in calls
    ]
    request = msgspec.structs.replace(case.request, observations=(*case.observations, *seen))
    return lambda: case.provider(host=lambda **_: " ", max_messages=4).decide(request)


def window_exceeded(case: Case) -> Any:
    return lambda: case.provider(options=TOKENS).decide(case.request)


def count_unavailable(case: Case) -> Any:
    return lambda: case.provider(options={"count": True}).decide(case.request)


def pairing_violation(case: Case) -> Any:
    return lambda: case.provider().decide(msgspec.structs.replace(case.request, observations=case.observations[:1]))


def busy(case: Case) -> Any:
    def overlapping() -> None:
        inner: list[BaseException] = []

        def line(_: Any) -> Any:
            try:
                case.provider().decide(case.request)
            except BaseException as error:  # raised again where the test looks
                inner.append(error)
            return Failure(status=500)

        case.fake._lines = line
        with pytest.raises(AgentDecisionProviderUnavailable):
            case.provider().decide(case.request)
        raise inner[0]

    return overlapping


def fenced(case: Case) -> Any:
    def line(_: Any) -> Any:
        case.store.recover(case.provider().key(REQUEST), worker_stopped=True)
        return finishing("native")

    case.fake._lines = line
    return lambda: case.provider().decide(case.request)


def store_full(case: Case) -> Any:
    others = iter(range(9))

    def fill() -> None:
        while True:
            case.provider().decide(msgspec.structs.replace(REQUEST, invocation_id=f"other {next(others)}"))

    return fill


REFUSALS: dict[str, tuple[Callable[[Case], Any], type[MinutebookError], int]] = {
    "DecisionHistoryLimitExceeded": (limit_exceeded, DecisionHistoryLimitExceeded, 0),
    "DecisionHistoryRetentionExceeded": (retention_exceeded, DecisionHistoryRetentionExceeded, 1),
    "DecisionHistorySummaryInvalid": (summary_invalid, DecisionHistorySummaryInvalid, 0),
    "ProviderContextWindowExceeded": (window_exceeded, ProviderContextWindowExceeded, 0),
    "ProviderContextCountUnavailable": (count_unavailable, ProviderContextCountUnavailable, 0),
    "PairingViolation": (pairing_violation, PairingViolation, 0),
    "DecisionHistoryBusy": (busy, DecisionHistoryBusy, 1),
    "DecisionHistoryFenced": (fenced, DecisionHistoryFenced, 1),
    "DecisionHistoryStoreFull": (store_full, DecisionHistoryStoreFull, 0),
}
"""What brings each about, its class, and how many requests are generated from: an answer may have come first."""


@names
@pytest.mark.parametrize("code", list(REFUSALS))
def test_d09_every_local_refusal_keeps_its_code_with_every_provider(name: str, code: str) -> None:
    """D9: neither the model's fault nor the provider's; nothing is sent for it, or nothing more."""
    prepare, kind, generations = REFUSALS[code]
    store = sync.MemoryStore(namespace="n", max_sessions=1 if kind is DecisionHistoryStoreFull else None)
    script = [calling("native", "a", "b"), calling("native", "c"), finishing("native")]
    case = Case(name, store, script, counts=[Failure(status=503)] if kind is ProviderContextCountUnavailable else [])
    act = prepare(case)
    before = len(generated(case.fake))
    with pytest.raises(MinutebookError) as caught:
        act()
    assert type(caught.value) is kind
    assert caught.value.code == code
    assert not isinstance(caught.value, AgentDecisionProviderSchemaViolation | AgentDecisionProviderUnavailable)
    assert len(generated(case.fake)) - before == generations
    assert case.fake.refused == ()
    case.close()


@names
def test_d09_a_database_that_became_unsafe_is_told_as_that(name: str, tmp_path: Any) -> None:
    """D9, D20: the file was replaced while it was open; nothing is sent, and nobody blames the provider."""
    tmp_path.chmod(0o700)
    path = tmp_path / "book.sqlite"
    case = Case(name, sync.SQLiteStore(path, namespace="n"), [calling("native", "a")])
    copy = tmp_path / "copy.sqlite"
    shutil.copy(path, copy)
    copy.chmod(0o600)
    os.replace(copy, path)
    with pytest.raises(DecisionHistoryStorageUnsafe):
        case.provider().decide(case.request)
    assert len(case.fake.requests) == 1
    case.client["client"].close()
    case.fake.close()


# --- counts that are none (bad inputs 108 to 110) ---------------------------------------------------------------------

COUNT_FIELD = {"gemini": "totalTokens"}
PACKED = {"content-type": "application/json", "content-encoding": "gzip"}
BOMB = gzip.compress(b" " * (80 * 1024 * 1024), 9)


def count_reply(name: str, value: Any) -> Reply:
    return Reply(body=json.dumps({COUNT_FIELD.get(name, "input_tokens"): value}).encode())


NO_COUNTS: dict[str, Callable[[str], Any]] = {
    "negative": lambda name: count_reply(name, -1),
    "fraction": lambda name: count_reply(name, 7.0),
    "text": lambda name: count_reply(name, "7"),
    "boolean": lambda name: count_reply(name, True),
    "null": lambda name: count_reply(name, None),
    "list": lambda name: count_reply(name, [7]),
    "missing": lambda name: Reply(body=b"{}"),
    "no object": lambda name: Reply(body=b"7"),
    "html": lambda name: Reply(headers={"content-type": "text/html"}, body=b"<html>7</html>"),
    "an error under 200": lambda name: Reply(body=json.dumps(OVERFLOWS[name]).encode()),
    "rate": lambda name: Failure(status=429),
    "absent": lambda name: Failure(status=404),
    "half": lambda name: malformed_json(),
    "a gzip bomb": lambda name: Reply(
        headers={"content-type": "application/json", "content-encoding": "gzip"}, body=BOMB
    ),
}


@names
@pytest.mark.parametrize("colour", ["blocking", "async"])
def test_bad_input_108_and_110_what_is_no_count_is_no_generation(name: str, colour: str) -> None:
    """Bad inputs 108, 110, D12, I-28: a count that is not to be had, for every provider and in both colours."""
    for kind, made in NO_COUNTS.items():
        with ProviderFake(name, [finishing("native")], counts=[made(name)]) as fake:
            error = decided(fake, name, colour, **GUARD)
            assert isinstance(error, ProviderContextCountUnavailable), (kind, error)
            assert not isinstance(error, AgentDecisionProviderUnavailable)
            assert (len(counted(fake)), len(generated(fake))) == (1, 0), kind


def decided(fake: ProviderFake, name: str, colour: str, **options: Any) -> Any:
    """The decision on a first request, or the error instead of it."""
    if colour == "blocking":
        client = client_of(fake, name)
        try:
            return provider_of(client, name, "native", **options).decide(REQUEST)
        except MinutebookError as error:
            return error
        finally:
            client["client"].close()

    async def awaited() -> Any:
        import minutebook

        client = client_of(fake, name, blocking=False)
        try:
            return await provider_of(client, name, "native", minutebook, **options).decide(REQUEST)
        except MinutebookError as error:
            return error
        finally:
            await (client["client"].aclose() if name == "gemini" else client["client"].close())

    return asyncio.run(awaited())


@names
def test_bad_input_108_control_a_count_that_is_one_is_followed_by_its_generation(name: str) -> None:
    """The same harness with a usable count, zero included: one count, one generation, a decision."""
    for line in (None, count_reply(name, 0), count_reply(name, 7)):
        with ProviderFake(name, [finishing("native")], counts=[line]) as fake:
            decision = decided(fake, name, "blocking", **GUARD)
            assert decision.finish.output == {"answer": "done"}
            assert (len(counted(fake)), len(generated(fake))) == (1, 1)


@names
@pytest.mark.parametrize("colour", ["blocking", "async"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_bad_input_109_no_redirect_is_followed_and_no_key_sent_on(name: str, colour: str, status: int) -> None:
    """Bad input 109, D9: neither of a count nor of a generation, by no provider; nobody else hears of it."""
    with ProviderFake(name, [finishing("native")]) as other:
        away = redirect(f"{other.base_url}/v1/elsewhere?key={KEY}", status)
        with ProviderFake(name, [finishing("native")], counts=[away]) as fake:
            error = decided(fake, name, colour, **GUARD)
            assert isinstance(error, ProviderContextCountUnavailable)
            assert error.provider_error_code == "redirect_refused"
            assert (len(fake.requests), len(generated(fake))) == (1, 0)
        with ProviderFake(name, [away]) as fake:
            error = decided(fake, name, colour, count=False)
            assert isinstance(error, AgentDecisionProviderUnavailable)
            assert (error.provider_error_code, error.status) == ("redirect_refused", status)
            assert len(fake.requests) == 1
        assert other.requests == ()


@names
def test_bad_input_112_what_is_sent_is_what_was_counted(name: str) -> None:
    """Bad input 112, D11: with a count between, the window that is generated from is the counted one to the byte."""
    with ProviderFake(name, [finishing("native")], exact=True) as fake:
        assert decided(fake, name, "blocking", **GUARD).finish
        (count,), (generation,) = counted(fake), generated(fake)
        assert window_in(count.body) == window_in(generation.body)
        inner = count.json.get("generateContentRequest", count.json)
        for field, value in inner.items():
            if field != "model" or "model" in generation.json:
                assert generation.json[field] == value, field


def window_in(body: bytes) -> bytes:
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    if "generateContentRequest" in fields:
        fields = msgspec.json.decode(fields["generateContentRequest"], type=dict[str, msgspec.Raw])
    return bytes(next(fields[name] for name in ("input", "messages", "contents") if name in fields))
