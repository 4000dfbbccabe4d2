"""
Every decision provider over the strict fakes: one program, unchanged, and one story that is cut at every place.

A fake refuses what its service would: calls without results, roles that meet, signatures that are not byte for byte
those that it gave, reasoning without its follower, a request over the window. So whatever left is judged by rules that
know nothing of this package, and the tests here ask that nothing was ever refused.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from math import ceil, log2
from typing import Any

import msgspec
import pytest
from tests.budgets import budget
from tests.faces.strict import (
    IDS,
    KINDS,
    STEPS,
    THINKING,
    Host,
    Life,
    Result,
    Story,
    client_of,
    counted,
    decisions,
    finishing,
    first_words,
    generated,
    messages_of,
    provider_of,
)

from minutebook import Budgets, ContextWindow, Program, capability, sync
from minutebook.model.receipts import decode_sent
from minutebook.policy import projection
from minutebook.testing import Answer, FunctionCall, ProviderFake
from minutebook.testing.fakes import Failure

every = pytest.mark.parametrize(
    ("name", "interface"), [(name, interface) for name in KINDS for interface in ("native", "structured")]
)
Figure = Callable[[str], None]


@pytest.fixture
def path(tmp_path: Any) -> Any:
    tmp_path.chmod(0o700)
    return tmp_path / "book.sqlite"


# --- nothing is left to call ------------------------------------------------------------------------------------------


@capability(max_calls=1)
def once(path: str) -> str:
    """Read one file."""
    return f"content of {path}"


@capability(max_calls=1, needs_approval=True)
def signed(path: str) -> str:
    """Read one file, once somebody agrees."""
    return f"content of {path}"


@capability
def often(path: str) -> str:
    """Read files."""
    return f"content of {path}"


ENDS: dict[str, tuple[Any, Budgets]] = {
    "a capability's calls": (once, Budgets()),
    "all calls": (often, Budgets(max_calls=1)),
    "a call that was approved": (signed, Budgets()),
}


OF_TOOLS: dict[str, dict[str, Any]] = {
    "openai-responses": {"tool_choice": "auto"},
    "openai-chat": {"parallel_tool_calls": False},
    "anthropic": {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    "gemini": {"toolConfig": {"functionCallingConfig": {"mode": "AUTO"}}},
}
"""What a caller may say of tools, which a server refuses where there are none."""


@pytest.mark.parametrize("name", list(KINDS))
@pytest.mark.parametrize(("called", "budgets"), ENDS.values(), ids=list(ENDS))
def test_d03_d28_a_model_answers_once_nothing_is_left_to_call(name: str, called: Any, budgets: Budgets) -> None:
    """D3, D11, D26, D28: thinking on, counted; and a next program that declares nothing goes on behind the calls."""
    answers = [
        Answer(thinking="So: ü", calls=(FunctionCall(called.name, {"path": "a"}),)),
        *(Answer(thinking="So: ö", text='{"answer":"done"}') for _ in range(3)),
    ]
    program = Program(name="agent", instructions="Go.", capabilities=[called], budgets=budgets, output=Result)
    bare = Program(name="agent", instructions="Go.", output=Result)
    choosing = OF_TOOLS[name]
    with ProviderFake(name, answers) as fake:
        client = client_of(fake, name)
        options: dict[str, Any] = {"extra_body": {**THINKING[name]["extra_body"], **choosing}}
        if name == "anthropic":
            options["reasoning"] = "strip"
        provider = provider_of(client, name, "native", **options)
        outcome = sync.Runtime(program, provider).run("one", **IDS)
        if outcome.pending:
            approvals = [each.approve(by="ann") for each in outcome.pending]
            outcome = sync.Runtime(program, provider).resume("r", "i", approvals=approvals)
        assert outcome.output == Result("done")
        for task in ("two", "three"):
            assert sync.Runtime(bare, provider).run(task, **IDS).output == Result("done")
        client["client"].close()
        assert not fake.refused
        first, *others = [request.json for request in generated(fake)]
        assert len(counted(fake)) == len(others) + 1
        assert first.items() >= choosing.items()
        if name != "anthropic":
            assert not any(body.keys() & {"tools", *choosing} for body in others)
            return
        assert all(body["tool_choice"] == {"type": "none"} for body in others)
        assert [body["tools"] == first["tools"] for body in others] == [True, False, False]
        assert others[1]["tools"] == others[2]["tools"]


@capability(max_calls=1)
def also(path: str) -> str:
    """Read one file more."""
    return f"more of {path}"


@pytest.mark.parametrize("reasoning", ["strip", "keep", "drop_block"])
def test_d26_d28_the_tools_stay_the_same_while_a_task_lasts(reasoning: str) -> None:
    """D3, D26, D28: budgets are used up one by one, no thinking is lost, and a call of a spent one is told so."""
    names = ["once", "once", "also", "once"]
    answers = [
        *(Answer(thinking=f"So: {n}", calls=(FunctionCall(name, {"path": "a"}),)) for n, name in enumerate(names)),
        *(Answer(thinking="So: ö", text='{"answer":"done"}') for _ in range(2)),
    ]
    program = Program(name="agent", instructions="Go.", capabilities=[once, also], output=Result)
    with ProviderFake("anthropic", answers) as fake:
        client = client_of(fake, "anthropic")
        runtime = sync.Runtime(program, provider_of(client, "anthropic", "native", reasoning=reasoning))
        outcome = runtime.run("one", **IDS)
        assert runtime.run("two", **IDS).output == outcome.output == Result("done")
        client["client"].close()
    spent = {"refused": "capability_exhausted"}
    assert [seen.value for seen in outcome.observations] == ["content of a", spent, "more of a", spent]
    assert not fake.refused
    bodies = [request.json for request in generated(fake)]
    for body in [*bodies, *(request.json for request in counted(fake))]:
        assert [tool["name"] for tool in body["tools"]] == ["once", "also"]
    assert [body.get("tool_choice") for body in bodies] == [None] * 3 + [{"type": "none"}] * 2 + [None]
    assert [json.dumps(body["messages"]).count('"thinking"') // 2 for body in bodies] == [0, 1, 2, 3, 4, 5]


def test_d28_a_model_that_calls_nothing_but_a_spent_one_is_stopped_by_its_decisions() -> None:
    """D28: what is shown and may not be called is no way around the budgets."""
    program = Program(
        name="agent",
        instructions="Go.",
        capabilities=[once, often],
        budgets=Budgets(max_decisions=4),
        output=Result,
    )
    answer = Answer(thinking="So: ü", calls=(FunctionCall("once", {"path": "a"}),))
    with ProviderFake("anthropic", [answer] * 4) as fake:
        client = client_of(fake, "anthropic")
        outcome = sync.Runtime(program, provider_of(client, "anthropic", "native")).run("one", **IDS)
        client["client"].close()
    assert (outcome.kind, outcome.budget, outcome.calls) == ("budget_exhausted", "decisions", 1)
    assert [seen.value for seen in outcome.observations[1:]] == [{"refused": "capability_exhausted"}] * 3
    assert not fake.refused


# --- whole programs ---------------------------------------------------------------------------------------------------

TIGHT = {"context": ContextWindow(context_window_tokens=1_000, input_token_multiplier=1, safety_margin_tokens=0)}
"""No reserve at all: what passes is exactly what the fake, whose window is the same, still takes."""

MODES: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "whole": ({}, {}, False),
    "trimmed": ({"max_messages": 11}, {}, False),
    "guarded": ({}, TIGHT, False),
    "summarised": ({"max_messages": 11, "max_summary_bytes": 400}, {}, True),
    "guarded-summarised": ({"max_messages": 14, "max_summary_bytes": 400}, TIGHT, True),
}


LIVES = [(mode, colour) for colour in ("blocking", "async") for mode in MODES]
"""Each mode in both colours; on the short budget each in one."""


@every
@pytest.mark.parametrize(("mode", "colour"), budget([*LIVES[:4], LIVES[-1]], LIVES))
def test_d01_i22_o11_o15_o25_one_program_breaks_no_rule_of_any_provider(
    name: str, interface: str, colour: str, mode: str, path: Any
) -> None:
    """D1, D8, D12, D18, D26: two tasks, a restart between them, thinking on, every count equal to what was billed."""
    history, options, summarises = MODES[mode]
    host = Host()
    window = 1_000 if options else None
    with ProviderFake(name, decisions(interface, 2), exact=True, window_tokens=window) as fake:
        life = Life(fake, name, interface, colour, path)
        kept = {**history, "summarize": host} if summarises else history
        told = [life.work(f"Task {n}.", history=kept, **options).output.answer for n in range(2)]
        assert told == ["done 0", "done 1"]
        assert fake.refused == ()
        made = generated(fake)
    looked = sum(len(paths) if interface == "structured" else 1 for paths in STEPS) + 1
    assert len(made) == 2 * looked, "a step was asked for twice, or not at all"
    shown = [messages_of(request.json) for request in made]
    lengths = [len(messages) for messages in shown]
    assert (lengths == sorted(set(lengths))) is (mode == "whole"), "nothing was trimmed, or something was"
    assert bool(host.given) is summarises
    assert all(len(messages) <= history.get("max_messages", 128) for messages in shown)
    billed = [(sent.counted_tokens, sent.billed_tokens) for sent in sent_in(path)]
    assert len(billed) == len(made)
    assert all(count == bill and count for count, bill in billed)
    if options:
        assert max(count for count, _ in billed) <= 900
    if summarises:
        check_covered_once(host, shown[-1])


def sent_in(path: Any) -> list[Any]:
    """What the receipts of every conversation in a file say of the requests that were answered."""
    with sync.SQLiteStore(path, namespace="n") as store:
        keys = [
            listing.key for listing in store.list() if '"native"' in listing.key.id or "structured" in listing.key.id
        ]
        receipts = [receipt for key in keys for receipt in store.receipts(key)]
        return [decode_sent(receipt.sent) for receipt in receipts if receipt.sent]


def check_covered_once(host: Host, last: list[Any]) -> None:
    """Each result reached the callback or stands in the last window, none did twice, and none is missing."""
    given = json.dumps([turns for _, turns in host.given], ensure_ascii=False)
    told = given + json.dumps(last, ensure_ascii=False)
    looked = [path for paths in STEPS for path in paths if path != "gone"]
    for path in set(looked):
        assert told.count(f"content of {path} ") == 2 * looked.count(path), path
    assert [previous for previous, _ in host.given[:1]] == [None]
    assert all(previous and host.text in previous for previous, _ in host.given[1:])


# --- one story, cut at every place ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stories() -> Iterator[dict[tuple[str, str], Story]]:
    told = {(name, interface): Story(name, interface) for name in KINDS for interface in ("native", "structured")}
    yield told
    for story in told.values():
        story.close()


def bytes_sent(story: Story) -> int:
    """The bytes of the messages in the last request, as they went out: fakes that are exact write them oddly."""
    body = msgspec.json.decode(generated(story.fake)[-1].body, type=dict[str, msgspec.Raw])
    raw = next(body[name] for name in ("input", "messages", "contents") if name in body)
    first = bytes(msgspec.json.decode(raw, type=list[msgspec.Raw])[0])
    return len(bytes(raw)) - (len(first) + 1 if json.loads(first).get("role") == "system" else 0)


def check_window(story: Story, messages: list[Any], host: Host | None) -> int:
    """Check which results a window shows: the newest; the others reached the host. Return how many."""
    text = json.dumps(messages, ensure_ascii=False)
    kept = [path for path in story.paths if f"<{path}>" in text]
    assert kept == story.paths[len(story.paths) - len(kept) :]
    assert "Task 2: look." in text
    assert messages[0]["role"] == "user"
    words = first_words(messages[0])
    assert words[-1].startswith("Task ")
    if host is None or not host.given:
        assert len(words) == 1
        return len(kept)
    told, _ = words
    fence = told.partition("\n")[0].removeprefix("<summary ").removesuffix(">")
    assert len(fence) == 32
    assert text.count(fence) == 2
    given = json.dumps([turns for _, turns in host.given], ensure_ascii=False)
    assert [path for path in story.paths if f"<{path}>" in given] == story.paths[: len(story.paths) - len(kept)]
    return len(kept)


@every
@pytest.mark.parametrize("summarises", [False, True], ids=["trimmed", "summarised"])
def test_i22_o14_o10_at_every_limit_on_messages_no_rule_is_broken(
    stories: Any, name: str, interface: str, summarises: bool, figure: Figure
) -> None:
    """I-22, D8, D18: each number of messages, with and without a summary before them; every cut there is occurs."""
    story = stories[name, interface]
    results: set[int] = set()
    refusals = asked = 0
    for limit in range(1, len(story.whole) + 1):
        host = Host("</summary>") if summarises else None
        shown = story.ask(story.provider(host=host, max_messages=limit))
        asked += 1
        if shown is None:
            refusals += 1
            assert not results, "a larger limit refused what a smaller one let through"
            continue
        assert len(shown) <= limit
        results.add(check_window(story, shown, host))
    assert refusals > 0
    assert results == set(possible(story))
    figure(f"{name} {interface}: {asked} limits, {len(results)} cuts, 0 refused by the provider")


def possible(story: Story) -> Iterator[int]:
    """How many results the windows of a story can show: those of its newest steps."""
    steps = [len(step) for steps in story.plan() for step in steps]
    yield from itertools.accumulate(reversed(steps))


BY_HAND = {
    "extra_body": {"thinking": {"type": "enabled", "budget_tokens": 1_024}},
    "reasoning": "strip",
    "max_output_tokens": 2_000,
}


@pytest.mark.parametrize("interface", ["native", "structured"])
@pytest.mark.parametrize("summarises", [False, True], ids=["trimmed", "summarised"])
@pytest.mark.parametrize("asks", [False, True], ids=["in a loop", "at a new task"])
def test_d26_o10_o11_stale_thinking_is_stripped_or_the_step_refused(
    interface: str, summarises: bool, asks: bool, figure: Figure
) -> None:
    """D26, O-10, O-11: thinking switched on by hand, at every limit; inside an open loop a cut is refused here."""
    story = Story("anthropic", interface, always_thinks=True, options=BY_HAND)
    if asks:
        story.fails = finishing(interface)
        story.provider(options=BY_HAND).decide(story.request)
        story.fails = Failure(status=500)
        story.request = msgspec.structs.replace(story.request, task="Task 3: look.", observations=())
    taken = refused = stripped = 0
    for limit in range(1, len(story.whole) + 3):
        host = Host("</summary>") if summarises else None
        shown = story.ask(story.provider(host=host, options=BY_HAND, max_messages=limit))
        taken, refused = taken + (shown is not None), refused + (shown is None)
        stripped += shown is not None and json.dumps(shown).count('"thinking"') < json.dumps(story.whole).count(
            '"thinking"'
        )
    assert story.fake.refused == ()
    assert taken > (10 if asks else 0)
    assert refused > 0
    assert stripped >= (10 if asks else 0)
    figure(f"{interface}: {taken} windows taken, {stripped} without stale thinking, {refused} refused here")
    story.close()


def tokens_of_cuts(story: Story) -> dict[int, int]:
    """What the fake counts for each cut of a story, known by how many messages it has: the choices that there are."""
    found: dict[int, int] = {}
    huge = {"context": ContextWindow(context_window_tokens=10**9), "count": True}
    for limit in range(1, len(story.whole) + 1):
        events: list[Any] = []
        shown = story.ask(story.provider(options=huge, max_messages=limit, on_event=events.append))
        if shown is not None:
            (found[len(shown)],) = [event.count for event in events if event.kind == "provider_context_count"]
    return found


@every
def test_d12_i22_at_every_token_window_the_largest_cut_that_fits_is_sent(
    stories: Any, name: str, interface: str
) -> None:
    """D12, I-22: as if dropped one by one, by an exact count, within the bound on counts; no rule is broken."""
    story = stories[name, interface]
    cuts = tokens_of_cuts(story)
    assert len(cuts) > 8
    edges = sorted({count + off for count in cuts.values() for off in (-1, 0)})
    for most in budget(edges[:: max(1, len(edges) // 8)], edges):
        context = ContextWindow(context_window_tokens=most + 100, input_token_multiplier=1, safety_margin_tokens=0)
        events: list[Any] = []
        provider = story.provider(options={"context": context, "count": True}, on_event=events.append)
        shown = story.ask(provider)
        fitting = [messages for messages, count in cuts.items() if count <= most]
        assert (len(shown) if shown else None) == (max(fitting) if fitting else None)
        counts = sum(event.kind == "provider_context_count" for event in events)
        assert counts <= 2 * ceil(log2(story.exchanges + 1)) + 2


@every
def test_i22_d12_d18_at_every_token_window_a_summary_breaks_no_rule(stories: Any, name: str, interface: str) -> None:
    """I-22, D12, D18: what is sent was counted with its summary and fits; the callback is asked at most twice."""
    story = stories[name, interface]
    results: set[int] = set()
    for tokens in range(200, 1_400, budget(120, 20)):
        host = Host("</summary>")
        context = ContextWindow(context_window_tokens=tokens, input_token_multiplier=1, safety_margin_tokens=0)
        events: list[Any] = []
        before = len(counted(story.fake))
        options = {"context": context, "count": True}
        shown = story.ask(story.provider(host=host, options=options, on_event=events.append))
        told = [event for event in events if event.kind == "provider_context_count"]
        assert len(told) == len(counted(story.fake)) - before
        assert len(host.given) <= 2
        # One count that it does not fit, one search with room for a summary, one count of what came.
        assert len(told) <= 2 * ceil(log2(story.exchanges + 1)) + 2 + 2 * len(host.given)
        if shown is None:
            assert not told[-1].fits
            continue
        counts = [event for event, made in zip(told, counted(story.fake)[before:], strict=True) if shows(made, shown)]
        assert counts
        assert all(event.fits and event.count <= tokens - 100 for event in counts)
        results.add(check_window(story, shown, host))
    assert len(results) > 2


def shows(request: Any, messages: list[Any]) -> bool:
    """Whether a request to count has these messages."""
    body = request.json
    return messages_of(body.get("generateContentRequest", body)) == messages


@every
def test_i22_d08_at_every_limit_on_bytes_no_rule_is_broken(stories: Any, name: str, interface: str) -> None:
    """I-22, I-26, D7: the bytes of the messages that left, exact at the place where the next exchange would fit."""
    story = stories[name, interface]
    assert story.ask(story.provider()) == story.whole
    whole = bytes_sent(story)
    sizes: dict[int, int] = {}
    for limit in [*range(300, whole, budget(150, 25)), whole - 1, whole]:
        shown = story.ask(story.provider(max_bytes=limit))
        if shown is not None:
            check_window(story, shown, None)
            sizes[len(shown)] = bytes_sent(story)
            assert sizes[len(shown)] <= limit
    assert sizes[len(story.whole)] == whole
    for messages, size in sizes.items():
        assert len(story.ask(story.provider(max_bytes=size)) or []) == messages
        below = story.ask(story.provider(max_bytes=size - 1))
        assert below is None or len(below) < messages


FAULTS = {
    "a result is left out": lambda fragments: fragments[:-1] if len(fragments) > 1 else fragments,
    "a seal is altered": lambda fragments: [each.replace(b"+/+/", b"+/+A") for each in fragments],
}


PLANTED = [(name, fault) for name in KINDS for fault in FAULTS if (name, fault) != ("openai-chat", "a seal is altered")]
"""Chat Completions shows no reasoning, so nothing in it is sealed."""


@pytest.mark.parametrize(("name", "fault"), PLANTED)
def test_i22_control_a_fault_that_is_planted_in_the_window_is_refused(
    stories: Any, name: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The harness sees what it is there for: with one thing wrong in the projection the provider refuses."""
    story = Story(name, "native")
    right = projection.unit_fragments
    monkeypatch.setattr(projection, "unit_fragments", lambda *given: FAULTS[fault](right(*given)))
    story.store._core.tails.drop(story.provider().key(story.request))
    with pytest.raises(AssertionError):
        story.ask(story.provider())
    assert story.fake.refused
    story.close()
