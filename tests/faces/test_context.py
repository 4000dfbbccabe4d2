"""
`context=` in the decision providers: SPEC D10 to D13 and D16, cases O-25 to O-27, over real sockets and real clients.

Every expectation is made from the server's record: the first count of a step shows the whole window, and a plain loop
over its messages says what dropping one exchange after another would have left.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator
from math import ceil, log2
from random import Random
from typing import Any

import httpx2
import msgspec
import openai
import pytest
from tests.http_clients import http_client
from tests.naming import named
from tests.providers.counting_server import CountingServer, chat, counting_server, responses

from minutebook import ContextWindow, HistoryOptions, OpenAIChatDecisionProvider, OpenAIDecisionProvider, sync
from minutebook.errors import (
    AgentDecisionProviderUnavailable,
    InvalidOption,
    ProviderContextCountUnavailable,
    ProviderContextWindowExceeded,
)
from minutebook.model.decisions import CapabilitySpec, DecisionRequest, Observation
from minutebook.model.entries import Kind
from minutebook.model.events import HistoryAbandoned, HistorySummary, HistoryTrimmed, ProviderContextCount
from minutebook.model.receipts import Sent, decode_sent
from minutebook.providers.counting import COUNTINGS
from minutebook.testing import Answer, ProviderFake, drive

KEY = "sk-canary-4711"
SECRET = "canary-content-0815"
LOOK = CapabilitySpec(
    name="look",
    description="Read a file.",
    parameters={
        "type": "object",
        "properties": {"path": {"type": "string"}},
        "required": ["path"],
        "additionalProperties": False,
    },
)
OUTPUT: dict[str, Any] = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
    "additionalProperties": False,
}
REQUEST = DecisionRequest(
    run_id="run",
    invocation_id="1",
    agent_ref="agent",
    instructions="You decide.",
    task=SECRET,
    capabilities=(LOOK,),
    output=OUTPUT,
)
ROOM = ContextWindow(context_window_tokens=1_000, safety_margin_tokens=100)
"""With 100 tokens of output, 666 counted ones fit: ceil(666 × 1.2) + 100 + 100 = 1,000."""

FITS, TOO_MUCH = 666, 667
BLOCKING = {"chat": sync.OpenAIChatDecisionProvider, "responses": sync.OpenAIDecisionProvider}
ALL = [(api, interface) for api in BLOCKING for interface in ("native", "structured")]
every = pytest.mark.parametrize(("api", "interface"), ALL, ids=["-".join(pair) for pair in ALL])
both = pytest.mark.parametrize("api", list(BLOCKING))


@pytest.fixture
def server() -> Iterator[CountingServer]:
    with counting_server() as server:
        yield server


def options_of(api: str, **options: Any) -> dict[str, Any]:
    chosen: dict[str, Any] = {"model": "m", "context": ROOM, "max_output_tokens": 100}
    return chosen | ({"count": True} if api == "chat" else {}) | options


def provider_of(server: CountingServer, api: str, interface: str = "native", **options: Any) -> Any:
    # Retries and redirects of the SDK stay on; without certificates, since loading them takes longer than a test.
    http = http_client(verify=False, follow_redirects=True, timeout=20)
    client = openai.OpenAI(base_url=server.url + "/v1", api_key=KEY, http_client=http)
    return BLOCKING[api](decision_interface=interface, **options_of(api, client=client, **options))  # type: ignore[arg-type]


def asks(api: str, interface: str, *paths: str) -> dict[str, Any]:
    """A response that calls `look` for each path."""
    if interface == "structured":
        text = json.dumps({"decision": {"action": "look", "path": paths[0]}})
        return chat(text) if api == "chat" else responses(text)
    arguments = [(f"call_{path}", json.dumps({"path": path})) for path in paths]
    if api == "chat":
        body = chat("")
        made = [{"id": i, "type": "function", "function": {"name": "look", "arguments": a}} for i, a in arguments]
        body["choices"][0]["message"] = {"role": "assistant", "content": None, "tool_calls": made}
        body["choices"][0]["finish_reason"] = "tool_calls"
        return body
    items = [{"type": "function_call", "call_id": i, "name": "look", "arguments": a} for i, a in arguments]
    return {**responses(), "output": [{"type": "reasoning", "id": "rs", "summary": []}, *items]}


def finishes(api: str, interface: str) -> dict[str, Any]:
    value = {"answer": "done"}
    text = json.dumps({"decision": {"action": "finish", **value}} if interface == "structured" else value)
    return chat(text) if api == "chat" else responses(text)


class Invocation:
    """An invocation as a runtime drives it: every observation so far is given with each request."""

    def __init__(self, server: CountingServer, provider: Any, api: str, interface: str) -> None:
        self.server, self.provider, self.api, self.interface = server, provider, api, interface
        self.observations: list[Observation] = []
        self.task = REQUEST.task

    def request(self) -> DecisionRequest:
        return msgspec.structs.replace(REQUEST, task=self.task, observations=tuple(self.observations))

    def step(self, *paths: str, result: Callable[[str], object] = str) -> Any:
        """One decision: calls for `paths`, whose results the next step brings; without any, the finish."""
        body = asks(self.api, self.interface, *paths) if paths else finishes(self.api, self.interface)
        self.server.generate = lambda _: body
        decision = self.provider.decide(self.request())
        for call in decision.calls:
            value = result(call.arguments["path"])
            self.observations.append(
                Observation(capability="look", arguments=call.arguments, value=value, reference=call.reference)
            )
        return decision

    def turn(self, task: str) -> None:
        """Begin another turn of the same invocation, once the last one has finished."""
        self.task, self.observations = task, []


def grown(server: CountingServer, provider: Any, api: str, interface: str, seed: int) -> Invocation:
    """An invocation of several turns with results of very different sizes, whose newest results wait to be shown."""
    random = Random(seed)
    told = Invocation(server, provider, api, interface)
    for turn in range(random.randrange(1, 5)):
        if turn:
            told.turn(f"task {turn} " + "t" * random.randrange(300))
        for step in range(random.randrange(1, 6)):
            several = random.randrange(1, 4) if interface == "native" else 1
            paths = [f"{turn}-{step}-{number}" for number in range(several)]
            told.step(*paths, result=lambda path: path + "r" * random.randrange(2_000))
        told.step()
    told.turn("the last task")
    told.step("x", result=lambda path: SECRET)
    return told


def messages_in(body: dict[str, Any]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = body["input"] if "input" in body else body["messages"]
    return [message for message in messages if message.get("role") != "system"]


def turns_in(messages: list[dict[str, Any]], interface: str) -> list[tuple[dict[str, Any], list[list[dict[str, Any]]]]]:
    """The messages by turn: its input, and its exchanges, each a response with what answers it."""
    turns: list[tuple[dict[str, Any], list[list[dict[str, Any]]]]] = []
    answering = False
    for message in messages:
        is_result = message.get("role") == "tool" or message.get("type") == "function_call_output"
        is_result = is_result or str(message.get("content", "")).startswith("Result of look")
        if message.get("role") == "user" and not is_result:
            turns.append((message, []))
            answering = False
        elif is_result:
            turns[-1][1][-1].append(message)
            answering = False
        else:
            if not answering:
                turns[-1][1].append([])
            turns[-1][1][-1].append(message)
            answering = True
    return turns


def flat(turns: list[tuple[dict[str, Any], list[list[dict[str, Any]]]]]) -> list[dict[str, Any]]:
    return [message for said, exchanges in turns for message in (said, *(m for e in exchanges for m in e))]


def dropped_one_by_one(turns: Any) -> Iterator[list[dict[str, Any]]]:
    """The whole window, then without its oldest exchange, and so on; the newest exchange stays."""
    left = [(said, list(exchanges)) for said, exchanges in turns]
    yield flat(left)
    while sum(len(exchanges) for _, exchanges in left) > 1:
        left[0][1].pop(0)
        left = [turn for turn in left if turn[1]]
        yield flat(left)


def size_of(messages: list[dict[str, Any]]) -> int:
    return len(json.dumps(messages, ensure_ascii=False, separators=(",", ":")).encode())


def by_size(limit: int) -> Callable[[dict[str, Any]], int]:
    """A counter that lets messages up to `limit` bytes through: as many tokens as fit, and one more beyond."""
    return lambda body: max(0, FITS + size_of(messages_in(body)) - limit)


# --- D12: what leaves, and what is counted ---


@every
@pytest.mark.parametrize("seed", range(6))
def test_d12_the_window_shrinks_by_whole_exchanges_as_if_dropped_one_by_one(
    server: CountingServer, api: str, interface: str, seed: int
) -> None:
    """D12, D8: for each place to cut, the request that is sent is the naive loop's, and one that was counted."""
    events: list[Any] = []
    provider = provider_of(server, api, interface, history=HistoryOptions(on_event=events.append))
    told = grown(server, provider, api, interface, seed)
    server.count = lambda body: TOO_MUCH
    events.clear()
    with pytest.raises(ProviderContextWindowExceeded):
        told.step()
    whole = turns_in(messages_in(server.counted[-len(counts(events))].json), interface)
    exchanges = sum(len(made) for _, made in whole)
    cuts = list(dropped_one_by_one(whole))
    assert len(cuts) == exchanges
    record = provider.store.read(provider.key(told.request()))
    places = [0, *[entry.seq for entry in record.entries if entry.kind is Kind.RESPONSE][-exchanges:]]
    for at, expected in enumerate(cuts):
        before = len(server.requests)
        events.clear()
        server.count = by_size(size_of(expected))
        server.generate = lambda _: (500, {}, b"")
        with pytest.raises(AgentDecisionProviderUnavailable):
            provider.decide(told.request())
        *counted, generated = server.requests[before:]
        assert server.generated[-1] == generated
        assert messages_in(generated.json) == expected
        assert len(counted) <= 2 * ceil(log2(exchanges)) + 2
        assert any({name: generated.json[name] for name in each.json} == each.json for each in counted)
        check_events(events, places[at], counted, generated)


@every
@pytest.mark.parametrize("weight", [0, 400])
def test_d12_d17_a_step_that_makes_summaries_searches_at_most_four_times(
    server: CountingServer, api: str, interface: str, weight: int
) -> None:
    """D12, D17: each room for a summary has its search, each summary one count more, and what is sent was counted."""
    asked: list[int] = []
    events: list[Any] = []

    def summarize(*, previous_summary: str | None, turns: Any, max_bytes: int) -> str:
        asked.append(len(turns))
        return f"HEAVY {len(turns)}"

    options = HistoryOptions(summarize=summarize, max_summary_bytes=200, on_event=events.append)
    told = grown(server, provider_of(server, api, interface, history=options), api, interface, seed=4)
    server.count = lambda body: 0
    server.generate = lambda _: (500, {}, b"")
    with pytest.raises(AgentDecisionProviderUnavailable):
        told.provider.decide(told.request())
    whole = turns_in(messages_in(server.generated[-1].json), interface)
    exchanges = sum(len(made) for _, made in whole)
    search = 2 * ceil(log2(exchanges + 1)) + 2
    most, rounds = 0, 0
    for expected in dropped_one_by_one(whole):
        fits = by_size(size_of(expected))
        server.count = lambda body, fits=fits: fits(body) + weight * ("HEAVY" in json.dumps(body))
        before = len(server.requests)
        asked.clear()
        events.clear()
        try:
            told.provider.decide(told.request())
        except AgentDecisionProviderUnavailable:
            *_, generated = server.requests[before:]
            assert server.generated[-1] == generated
            sent = {name: generated.json[name] for name in server.counted[-1].json}
            assert sent == server.counted[-1].json
            summed = [event for event in events if isinstance(event, HistorySummary)]
            covered = [(event.exchanges, event.newly_covered) for event in summed]
            assert covered == ([(sum(asked), sum(asked))] if asked else [])
        except ProviderContextWindowExceeded:
            pass
        counted = sum(each in server.counted for each in server.requests[before:])
        assert len(asked) <= 2
        assert counted <= 4 * search + len(asked)
        most, rounds = max(most, counted), max(rounds, len(asked))
    assert rounds == (2 if weight else 1)
    if weight:
        assert most > search  # so the bound of one search does not hold for a step


@both
def test_d18_a_step_asks_for_a_summary_twice_and_is_then_refused(server: CountingServer, api: str) -> None:
    """D18: where each summary weighs more than the room kept for it, there are two rounds and no third."""
    asked: list[int] = []

    def summarize(*, previous_summary: str | None, turns: Any, max_bytes: int) -> str:
        asked.append(len(turns))
        return f"HEAVY {len(asked)}"

    options = HistoryOptions(summarize=summarize, max_summary_bytes=200)
    told = Invocation(server, provider_of(server, api, "native", history=options), api, "native")
    server.count = lambda body: 0
    for number in range(20):
        told.turn(f"task {number}")
        told.step(f"{number}", result=lambda path: path + "r" * 500)
        told.step()
    told.turn("the last task")
    # Heavier with each round, so that the second summary is too heavy for its room as the first was.
    server.count = lambda body: by_size(8_000 - 1_000 * len(asked) * ("HEAVY" in json.dumps(body)))(body)
    before = len(server.generated)
    with pytest.raises(ProviderContextWindowExceeded):
        told.step()
    assert len(asked) == 2
    assert len(server.generated) == before


def test_d12_d18_a_refusal_tells_what_a_summary_takes_of_the_window() -> None:
    """D12, D18: its room is counted before one is made; with less of it the same conversation goes on for long."""

    def run(max_summary_bytes: int) -> None:
        asked: list[int] = []

        def summarize(*, previous_summary: str | None, turns: Any, max_bytes: int) -> str:
            asked.append(max_bytes)
            return "brief"

        history = sync.HistoryOptions(summarize=summarize, max_summary_bytes=max_summary_bytes, low_water=0.6)
        with ProviderFake("openai-responses", lambda _: Answer(text='{"output": "fine"}'), window_tokens=1_400) as fake:
            provider = sync.OpenAIDecisionProvider(
                model="m",
                base_url=fake.base_url,
                api_key="k",
                max_output_tokens=100,
                context=ContextWindow(context_window_tokens=1_400),
                history=history,
            )
            runtime = sync.Runtime(sync.Program(name="s", instructions="i"), provider)
            for number in range(20):
                runtime.run(f"q{number} {'w ' * 60}", run_id="r", invocation_id="i")
        assert asked

    with pytest.raises(
        ProviderContextWindowExceeded, match=r"with 4,\d\d\d bytes that are kept for a summary \(max_summ"
    ):
        run(4_096)
    run(300)


def counts(events: list[Any]) -> list[ProviderContextCount]:
    return [event for event in events if isinstance(event, ProviderContextCount)]


def check_events(events: list[Any], left: int, counted: list[Any], generated: Any) -> None:
    assert len(counts(events)) == len(counted)
    trimmed = [event for event in events if isinstance(event, HistoryTrimmed)]
    assert len(trimmed) == (left > 0), "one event tells of all that left, none of requests that were only counted"
    if trimmed:
        assert (trimmed[0].message_count, trimmed[0].last_removed) == (len(messages_in(generated.json)), left)
    abandoned = [event for event in events if isinstance(event, HistoryAbandoned)]
    assert [event.message_count for event in abandoned] == [len(messages_in(generated.json))]
    assert SECRET not in repr(events)


@every
def test_d12_control_the_comparison_finds_another_cut(server: CountingServer, api: str, interface: str) -> None:
    """A comparison that took any suffix would prove nothing: neighbouring cuts differ."""
    told = grown(server, provider_of(server, api, interface), api, interface, 3)
    told.step()
    cuts = list(dropped_one_by_one(turns_in(messages_in(server.generated[-1].json), interface)))
    assert len(cuts) > 5
    assert len({size_of(cut) for cut in cuts}) == len(cuts)
    assert flat(turns_in(messages_in(server.generated[-1].json), interface)) == messages_in(server.generated[-1].json)


@both
def test_d12_the_receipt_describes_what_was_sent(server: CountingServer, api: str) -> None:
    """C3, D12: units, messages, bytes and digest are those of the window that left, and the count is its own."""
    provider = provider_of(server, api)
    told = grown(server, provider, api, "native", 1)
    limit = size_of(list(dropped_one_by_one(turns_in(told_whole(server, told), "native")))[2])
    server.count = by_size(limit)
    decision = told.step()
    generated = server.generated[-1]
    window = messages_in(generated.json)
    receipt = list(provider.store.receipts(provider.key(REQUEST)))[-1]
    sent: Sent = decode_sent(receipt.sent)
    assert sent.messages == len(window)
    assert sent.trimmed
    start = generated.body.index(json.dumps(window[0], ensure_ascii=False, separators=(",", ":")).encode())
    raw = b"[" + generated.body[start : start + sent.bytes - 1]
    assert json.loads(raw) == window
    assert sent.digest == hashlib.sha256(raw).hexdigest()
    assert sent.counted_tokens == decision.counted_tokens == by_size(limit)(generated.json)
    assert (sent.reserved_tokens, sent.window_tokens) == (ROOM.reservation(decision.counted_tokens, 100), 1_000)
    provider.store.verify(provider.key(REQUEST))


def told_whole(server: CountingServer, told: Invocation) -> list[dict[str, Any]]:
    """The messages of the whole window: those of the first count of a step that was refused."""
    before, count = len(server.counted), server.count
    server.count = lambda body: TOO_MUCH
    with pytest.raises(ProviderContextWindowExceeded):
        told.provider.decide(told.request())
    server.count = count
    return messages_in(server.counted[before].json)


@both
def test_d12_a_minimum_that_does_not_fit_is_refused_and_not_generated(server: CountingServer, api: str) -> None:
    """D12, O-26 a: the refusal tells the minimum's numbers; the same step can be asked again, and nothing was lost."""
    provider = provider_of(server, api)
    told = grown(server, provider, api, "native", 2)
    generated = len(server.generated)
    server.count = lambda body: TOO_MUCH + len(messages_in(body))
    with pytest.raises(ProviderContextWindowExceeded) as caught:
        told.step()
    least = messages_in(server.counted[-1].json)
    assert caught.value.count == TOO_MUCH + len(least)
    assert caught.value.reservation == ceil(caught.value.count * 12 / 10) + 200
    assert caught.value.window == 1_000
    assert [message.get("content") for message in least if message.get("role") == "user"] == ["the last task"]
    assert len(server.generated) == generated
    assert KEY not in str(vars(caught.value)) + str(caught.value)
    server.count = lambda body: FITS
    assert told.step().finish.output == {"answer": "done"}
    assert len(server.generated) == generated + 1


@both
def test_d12_i28_without_a_count_nothing_is_generated(server: CountingServer, api: str) -> None:
    """D12, I-28: at the first count and in the middle of the search."""
    provider = provider_of(server, api)
    told = grown(server, provider, api, "native", 4)
    generated, replies = len(server.generated), [TOO_MUCH, (503, {}, SECRET.encode())]
    for left in (replies[1:], replies):
        queue = list(left)
        server.count = lambda body, queue=queue: queue.pop(0)
        with pytest.raises(ProviderContextCountUnavailable) as caught:
            told.step()
        assert (caught.value.provider_error_code, caught.value.status) == ("http_503", 503)
        assert SECRET not in str(caught.value)
        assert queue == []
    assert len(server.generated) == generated


@both
def test_d13_an_error_of_the_generation_removes_nothing(server: CountingServer, api: str) -> None:
    """D13: a provider that says «too long» to what was counted is not asked again with less, and nor is any other."""
    provider = provider_of(server, api)
    told = grown(server, provider, api, "native", 5)
    before = len(server.requests)
    overflow = json.dumps({"error": {"code": "context_length_exceeded", "message": SECRET}}).encode()
    server.generate = lambda body: (400, {}, overflow)
    with pytest.raises(AgentDecisionProviderUnavailable) as caught:
        provider.decide(told.request())
    assert caught.value.provider_error_code == "context_length_exceeded"
    assert [seen.target.endswith("/input_tokens") for seen in server.requests[before:]] == [True, False]


def test_o25_tools_and_schema_and_instructions_are_counted(server: CountingServer) -> None:
    """O-25: messages of 700 tokens and a schema of 450 in a window of 1,000 with 100 of output: refused, not sent."""
    weights = {"input": 700, "instructions": 0, "tools": 450, "text": 0, "model": 0}
    server.count = lambda body: sum(weights[name] for name in body)
    exact = ContextWindow(context_window_tokens=1_000, input_token_multiplier=1, safety_margin_tokens=0)
    provider = provider_of(server, "responses", context=exact)
    with pytest.raises(ProviderContextWindowExceeded) as caught:
        provider.decide(REQUEST)
    assert caught.value.reservation == 1_250
    assert set(server.counted[0].json) == set(weights)
    assert server.generated == []


def test_o26_the_output_allowance_decides(server: CountingServer) -> None:
    """O-26 b: 11,000 tokens of input reserve 16,112 of 16,000 with 2,400 of output; so an exchange leaves."""
    window = ContextWindow(context_window_tokens=16_000)
    provider = provider_of(server, "responses", context=window, max_output_tokens=2_400)
    told = Invocation(server, provider, "responses", "native")
    for path in ("a", "b", "c"):
        told.step(path)
    server.count = lambda body: 11_000 if len(messages_in(body)) == 10 else 10_000
    before = len(server.counted)
    told.step()
    assert len(messages_in(server.counted[before].json)) == 10
    assert len(messages_in(server.generated[-1].json)) == 7


@both
def test_o27_bytes_bind_beside_tokens(server: CountingServer, api: str) -> None:
    """O-27: a count of a third of the window changes nothing about the limit on bytes; both are kept to at once."""
    provider = provider_of(server, api, history=HistoryOptions(max_bytes=4_000))
    told = Invocation(server, provider, api, "native")
    server.count = lambda body: 200
    for path in "abcdef":
        told.step(path, result=lambda path: path * 1_500)
    assert sum("aaa" not in json.dumps(m) for m in messages_in(server.generated[-1].json)) >= 2
    assert all(size_of(messages_in(seen.json)) <= 4_000 for seen in server.requests)
    smaller = size_of(messages_in(server.generated[-1].json)) - 1
    server.count = by_size(smaller)
    told.step()
    assert size_of(messages_in(server.generated[-1].json)) <= smaller


@both
def test_d10_without_a_history_one_count_decides(server: CountingServer, api: str) -> None:
    """D10, D12: there is nothing to leave out."""
    provider = provider_of(server, api, history=False)
    server.generate = lambda body: finishes(api, "native")
    server.count = lambda body: FITS
    assert provider.decide(REQUEST).counted_tokens == FITS
    assert len(server.requests) == 2
    server.count = lambda body: TOO_MUCH
    with pytest.raises(ProviderContextWindowExceeded):
        provider.decide(REQUEST)
    assert len(server.generated) == 1


@both
def test_b11_an_asynchronous_client_is_held_to_the_same_window(server: CountingServer, api: str) -> None:
    """B11: the same requests, byte for byte, under an event loop."""
    kinds = {"chat": OpenAIChatDecisionProvider, "responses": OpenAIDecisionProvider}
    sent: list[list[bytes]] = []
    for blocking in (True, False):
        server.requests.clear()
        server.count = lambda body: 1
        if blocking:
            provider: Any = provider_of(server, api)._core
            run: Any = drive
        else:
            http = httpx2.AsyncClient(verify=False, timeout=20)
            client = openai.AsyncOpenAI(base_url=server.url + "/v1", api_key=KEY, http_client=http)
            provider = kinds[api](**options_of(api, client=client))
            run = asyncio.Runner().run

        class Driven:
            def decide(self, request: DecisionRequest, provider: Any = provider, run: Any = run) -> Any:
                return run(provider.decide(request))

        told = Invocation(server, Driven(), api, "native")
        for path in "abcd":
            told.step(path)
        server.count = by_size(600)
        told.step()
        sent.append([seen.body for seen in server.requests])
    assert sent[0] == sent[1]
    assert len(server.counted) > len(server.generated)


# --- D10: what is refused at construction ---


@pytest.mark.parametrize(
    ("api", "options", "named"),
    [
        ("responses", {"max_output_tokens": None}, "max_output_tokens"),
        ("responses", {"max_output_tokens": 898}, None),
        ("responses", {"max_output_tokens": 899}, "max_output_tokens"),
        ("responses", {"context": 1_000}, "context"),
        ("responses", {"context": {"context_window_tokens": 1_000}}, "context"),
        ("responses", {"extra_body": {"brand_new": 1}}, "brand_new"),
        ("responses", {"extra_body": {"previous_response_id": "x"}}, "previous_response_id"),
        ("responses", {"extra_body": {"conversation": "x"}}, "conversation"),
        ("responses", {"extra_body": {"truncation": "auto"}}, "truncation"),
        ("responses", {"extra_body": {"context_management": []}}, "context_management"),
        ("responses", {"extra_body": {"store": True}}, "store"),
        ("chat", {"count": False}, "context"),
        ("chat", {"client": None}, "context"),
        ("chat", {"client": None, "base_url": "https://api.openai.com/v1", "api_key": KEY}, "context"),
        ("chat", {"client": None, "base_url": "https://EU.api.openai.com./v1", "api_key": KEY}, "context"),
        ("chat", {"client": openai.OpenAI(api_key=KEY)}, "context"),
        ("chat", {"client": None, "base_url": "http://127.0.0.1:1/v1", "api_key": KEY}, None),
        ("chat", {"max_output_tokens": None}, "max_output_tokens"),
    ],
    ids=named,
)
def test_d10_d15_what_could_not_be_counted_is_refused_at_construction(
    server: CountingServer, api: str, options: dict[str, Any], named: str | None
) -> None:
    """D10, D15: no output ceiling, no qualified server for Chat, and fields of state at the server."""
    http = http_client(verify=False)
    client = openai.OpenAI(base_url=server.url + "/v1", api_key=KEY, http_client=http)
    chosen = options_of(api, client=client) | options
    if named is None:
        BLOCKING[api](**chosen)
        return
    with pytest.raises(InvalidOption) as caught:
        BLOCKING[api](**chosen)
    assert caught.value.option == named


EVERY = {**BLOCKING, "anthropic": sync.AnthropicDecisionProvider, "gemini": sync.GeminiDecisionProvider}
STATEFUL = [
    (api, field)
    for api, name in (("responses", "openai-responses"), ("chat", "openai-chat"), ("anthropic", "anthropic"))
    for field in COUNTINGS[name].switched_off
]
STATEFUL += [("gemini", field) for field in COUNTINGS["gemini"].switched_off]
STATEFUL += [("gemini", "cached_content"), ("gemini", "continuation_token")]


@pytest.mark.parametrize("count", [False, True])
@pytest.mark.parametrize(("api", "field"), STATEFUL)
def test_d15_a_field_of_state_at_the_server_is_no_providers_to_send(api: str, field: str, count: bool) -> None:
    """D15: what the guard refuses under an SDK, a provider refuses at construction, counted or not."""
    chosen = {"model": "m", "api_key": KEY, "max_output_tokens": 64, "count": count}
    with pytest.raises(InvalidOption) as caught:
        EVERY[api](**chosen, extra_body={field: {"any": "value"}})
    assert caught.value.option == field


@pytest.mark.parametrize("count", [False, True])
@pytest.mark.parametrize("held", [{"prewarm": True}, {"mode": "explicit", "prewarm": 1}, [{"prewarm": True}]])
def test_d15_a_request_that_would_generate_nothing_is_refused_at_construction(held: object, count: bool) -> None:
    """D15: `prewarm` fills a cache and answers nothing; the guard's refusal of what is in a field holds here too."""
    with pytest.raises(InvalidOption, match="server_state at 'prewarm'") as caught:
        BLOCKING["responses"](model="m", api_key=KEY, count=count, extra_body={"prompt_cache_options": held})
    assert caught.value.option == "prewarm"
    BLOCKING["responses"](model="m", api_key=KEY, count=count, extra_body={"prompt_cache_options": {"ttl": "12h"}})


def test_d11_the_name_of_a_field_is_told_only_where_it_looks_like_one() -> None:
    """D11, I-37: a key of `extra_body` may be anything."""
    with pytest.raises(InvalidOption, match="unknown_field:") as caught:
        BLOCKING["responses"](model="m", api_key=KEY, count=True, extra_body={"Sehr geheim!": 1})
    assert caught.value.option == "extra_body"
    assert "geheim" not in str(caught.value)
    assert caught.value.__context__ is None


def test_d10_a_generator_of_the_hosts_own_has_no_context(server: CountingServer) -> None:
    """D10: no request leaves that could be counted."""
    with pytest.raises(InvalidOption, match="context"):
        sync.OpenAIDecisionProvider(
            model="m", decision_interface="structured", generate=lambda messages, schema: {}, context=ROOM
        )


def test_d10_without_context_nothing_is_counted(server: CountingServer) -> None:
    """D10: only the bounds on bytes and messages apply."""
    provider = provider_of(server, "responses", context=None)
    Invocation(server, provider, "responses", "native").step()
    assert server.counted == []
    assert len(server.generated) == 1
