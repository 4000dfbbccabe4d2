"""
Histories kept by this package against the strict fakes: whole programs, conversations led over a socket, and windows.

Each check that passes here has its control: a window with one thing planted in it has to be refused.
"""

from __future__ import annotations

import asyncio
import copy
import json
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import httpx2
import msgspec
import openai
import pytest
from tests.budgets import budget
from tests.http_clients import http_client

from minutebook import AgentDecisionProviderUnavailable, DecisionHistoryLimitExceeded, WindowLimits, sync
from minutebook.decisions import HistoryOptions, OpenAIChatDecisionProvider, OpenAIDecisionProvider
from minutebook.programs import Runtime
from minutebook.runtime import Program, capability
from minutebook.testing import Answer, FunctionCall, ProviderFake
from minutebook.testing.fakes import Failure, anthropic, gemini, openai_chat, openai_responses

SEEDS = budget(3, 40)
TURNS = budget(6, 12)

PROVIDERS = {
    "openai-chat": (OpenAIChatDecisionProvider, sync.OpenAIChatDecisionProvider),
    "openai-responses": (OpenAIDecisionProvider, sync.OpenAIDecisionProvider),
}


# --- programs ---


class Result(msgspec.Struct):
    answer: str


@capability
def look(path: str) -> str:
    """Read a file."""
    if path == "gone":
        raise FileNotFoundError(path)
    return f"content of {path} — 漢字 🙂"


STEPS: list[list[str]] = [["a"], ["b", "gone"], ["a"], ["c", "d", "e"], ["f"], ["g"]]
"""What each decision looks at; the seventh finishes."""


def decisions(interface: str) -> Iterator[Answer | Failure]:
    """The model's answers; the structured interface makes one call at a time."""
    for number, paths in enumerate(STEPS):
        if interface == "native":
            calls = tuple(FunctionCall("look", {"path": path}) for path in paths)
            yield Answer(thinking=f"Step {number}: ü", text="" if number % 2 else "I look.", calls=calls)
        else:
            for path in paths:
                yield Answer(thinking=f"Step {number}", text=_decided(action="look", path=path))
    value = {"answer": "done"}
    yield Answer(text=json.dumps(value) if interface == "native" else _decided(action="finish", **value))


def _decided(**decision: Any) -> str:
    return json.dumps({"decision": decision}, indent=1)


@pytest.mark.parametrize("provider", list(PROVIDERS))
@pytest.mark.parametrize("interface", ["native", "structured"])
@pytest.mark.parametrize("colour", ["blocking", "async"])
@pytest.mark.parametrize("max_messages", [128, 9], ids=["whole", "trimmed"])
def test_d01_d08_e_a_whole_program_breaks_no_rule(
    provider: str, interface: str, colour: str, max_messages: int
) -> None:
    """D1, D8, O-25: with every decision counted first, trimmed or not, and sealed reasoning wanted byte for byte."""
    program = Program(name="agent", instructions="You decide.", capabilities=[look], output=Result)
    script = list(decisions(interface))
    options: dict[str, Any] = {
        "model": "m",
        "decision_interface": interface,
        "count": True,
        "max_output_tokens": 500,
        "history": HistoryOptions(max_messages=max_messages),
    }
    with ProviderFake(provider, script, exact=True) as fake:
        if colour == "blocking":
            http = http_client(verify=False, timeout=20)
            client = openai.OpenAI(base_url=fake.base_url, api_key="sk-any", http_client=http)
            outcome = sync.Runtime(program, PROVIDERS[provider][1](client=client, **options)).run("Look into a.")
        else:
            outcome = asyncio.run(_run(program, fake, PROVIDERS[provider][0], options))
        assert outcome.output == Result("done")
        assert fake.refused == ()
        counts, generations = fake.requests[::2], fake.requests[1::2]
        assert len(counts) == len(generations) == len(script)
        assert all(counted.path.endswith("/input_tokens") for counted in counts)
        name = "input" if provider == "openai-responses" else "messages"
        for counted, generated in zip(counts, generations, strict=True):
            # What is counted is what is sent, to the byte of the window.
            assert counted.json[name] == generated.json[name]
        shown = [len(generated.json[name]) for generated in generations]
        instructed = provider == "openai-chat"
        if max_messages == 128:
            assert shown == sorted(set(shown))
        else:
            assert max(shown) <= max_messages + instructed
            assert shown != sorted(set(shown)), "nothing was trimmed"


async def _run(program: Any, fake: ProviderFake, kind: Any, options: dict[str, Any]) -> Any:
    client = openai.AsyncOpenAI(base_url=fake.base_url, api_key="sk-any", http_client=httpx2.AsyncClient(verify=False))
    async with client:
        return await Runtime(program, kind(client=client, **options)).run("Look into a.")


@pytest.mark.parametrize("provider", list(PROVIDERS))
def test_d09_e_a_failed_step_is_asked_again_as_it_was(provider: str) -> None:
    """D9, I-28: after a failure nothing else is sent, and the same step sends the same bytes again."""
    value = json.dumps({"answer": "done"})
    script = [Failure(status=429), Answer(text=value)]
    program = Program(name="agent", instructions="You decide.", capabilities=[look], output=Result)
    with ProviderFake(provider, script) as fake:
        http = http_client(verify=False, timeout=20)
        client = openai.OpenAI(base_url=fake.base_url, api_key="sk-any", http_client=http)
        deciding = PROVIDERS[provider][1](client=client, model="m")
        running = sync.Runtime(program, deciding)
        with pytest.raises(AgentDecisionProviderUnavailable) as caught:
            running.run("Look.", run_id="r", invocation_id="i")
        assert caught.value.provider_error_code == "rate_limit_exceeded"
        assert len(fake.requests) == 1
        assert running.run("Look.", run_id="r", invocation_id="i").output == Result("done")
        assert fake.requests[0].body == fake.requests[1].body
        assert fake.refused == ()


# --- conversations over a socket ---

HEADERS = {
    "authorization": "Bearer any",
    "x-goog-api-key": "any",
    "anthropic-version": "2026-10-21",
    "content-type": "application/json",
}
NAMES = ("look", "list", "write")
ENVELOPES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "openai-chat": ("/chat/completions", lambda window: b'{"model":"m","messages":%b}' % window),
    "openai-responses": ("/responses", lambda window: b'{"model":"m","store":false,"input":%b}' % window),
    "anthropic": (
        "/v1/messages",
        lambda window: (
            b'{"model":"m","max_tokens":99,"tools":%b,"messages":%b}'
            % (json.dumps([{"name": name, "input_schema": {"type": "object"}} for name in NAMES]).encode(), window)
        ),
    ),
    "gemini": ("/v1/models/m:generateContent", lambda window: b'{"contents":%b}' % window),
}
RULES: dict[str, Any] = {
    "openai-chat": openai_chat.check_messages,
    "openai-responses": openai_responses.check_messages,
    "anthropic": anthropic.check_messages,
    "gemini": gemini.check_messages,
}
TEXTS = ("yes", "ä€🙂", 'quote " and \\ and \n', "x" * 60, "\u0000nul", "line\u2028separator")
formats = pytest.mark.parametrize("name", list(ENVELOPES))


def led(name: str, seed: int, *, exact: bool = True, reasoning: Any = "strip") -> Any:
    """Lead a random conversation with a fake, every window the whole of it, and return it with the fake."""
    random = Random(f"{name}-{seed}")
    left = [0]

    def answer(_: Any) -> Answer:
        calls = 0 if left[0] == 0 else random.randrange(4)
        left[0] = 0 if calls == 0 else left[0] - 1
        made = tuple(FunctionCall(random.choice(NAMES), {"text": random.choice(TEXTS), "n": 1.0}) for _ in range(calls))
        thinking = random.choice((None, "", "So: ü", "x" * 30))
        text = random.choice(TEXTS) if not calls or random.randrange(2) else ""
        redacted = name == "anthropic" and random.randrange(5) == 0
        return Answer(text=text, calls=made, thinking=thinking, redacted=redacted)

    conversation = sync.Conversation(sync.MemoryStore(namespace="tests"), f"{seed}", format=name, reasoning=reasoning)
    path, envelope = ENVELOPES[name]
    with (
        ProviderFake(name, answer, exact=exact) as fake,
        httpx2.Client(base_url=fake.base_url, headers=HEADERS, verify=False, timeout=20) as client,
    ):
        for number in range(TURNS):
            left[0] = random.randrange(5)
            with conversation.turn(f"{number} {random.choice(TEXTS)}") as turn:
                asked = True
                while asked:
                    response = client.post(path, content=envelope(turn.window().json))
                    assert response.status_code == 200, response.text
                    calls = list(turn.respond(response.content))
                    asked = bool(calls)
                    for call in random.sample(calls, len(calls)):
                        turn.result(call, random.choice(TEXTS), error=random.randrange(4) == 0)
                    if calls and random.randrange(4) == 0:
                        turn.say(_user(name, "by the way"))
        assert fake.refused == ()
    return conversation, fake


def _user(name: str, text: str) -> dict[str, Any]:
    return {"role": "user", "parts": [{"text": text}]} if name == "gemini" else {"role": "user", "content": text}


def windows(conversation: Any) -> Iterator[list[Any]]:
    """Every window that some limit on messages gives, and every second one that some limit on bytes does."""
    whole = conversation.window()
    for count in range(1, len(whole.messages) + 1):
        for low_water in (1.0, 0.5):
            try:
                yield conversation.window(WindowLimits(max_messages=count, low_water=low_water)).messages
            except DecisionHistoryLimitExceeded:
                continue
    for size in range(2, len(whole.json) + 1, max(1, len(whole.json) // 40)):
        try:
            yield conversation.window(WindowLimits(max_bytes=size)).messages
        except DecisionHistoryLimitExceeded:
            continue


@formats
def test_i22_o10_o11_windows_break_no_rule_and_planted_faults_do(name: str, figure: Callable[[str], None]) -> None:
    """I-22, I-23: over a socket and at every limit no rule is broken; each planted fault is found."""
    checked = planted = 0
    spent = 0.0
    for seed in range(SEEDS):
        conversation, fake = led(name, seed)
        for messages in windows(conversation):
            began = time.perf_counter()
            problem = RULES[name](messages)
            spent += time.perf_counter() - began
            assert problem is None, (seed, problem, messages)
            checked += 1
            for broken in plants(name, messages):
                assert RULES[name](broken) is not None, (seed, broken)
                planted += 1
        whole = conversation.window().messages
        assert sealed(name, whole, fake) is None
        for moved in moves(name, whole):
            assert sealed(name, moved, fake) is not None, (seed, moved)
            planted += 1
    assert checked > 20 * SEEDS
    assert planted > checked
    figure(
        f"{checked:,} windows, 0 refused, {spent / checked * 1e6:.0f} µs each; {planted:,} planted faults, all found"
    )


def sealed(name: str, messages: list[Any], fake: ProviderFake) -> Any:
    """Check messages with the seals, for which the request's tools count where they are part of the prefix."""
    if name == "openai-chat":
        return openai_chat.check_messages(messages)
    if name == "anthropic":
        tools = json.loads(ENVELOPES[name][1](b"[]"))["tools"]
        return anthropic.check_messages(messages, fake.seal, {"tools": tools})
    return RULES[name](messages, fake.seal)


def plants(name: str, messages: list[Any]) -> Iterator[list[Any]]:
    """Copies of a window with a result left out, a call left out, and something put between a call and its result."""
    for index, message in enumerate(messages):
        results = _results(name, message)
        if results == [None]:
            yield [*messages[:index], *messages[index + 1 :]]
            yield [*messages[:index], _user(name, "x"), *messages[index:]]
        for place in results:
            if place is not None:
                yield _without(messages, index, place)
        for place in _calls(name, message):
            yield _without(messages, index, place)


KEYS = {
    "openai-chat": ("tool_calls", "", "tool"),
    "openai-responses": ("", "function_call", "function_call_output"),
    "anthropic": ("content", "tool_use", "tool_result"),
    "gemini": ("parts", "functionCall", "functionResponse"),
}


def _is(item: Any, kind: str) -> bool:
    return kind in (item.get("type"), item.get("role")) or kind in item


def _results(name: str, message: Any) -> list[int | None]:
    """Where results stand in a message: `None` where the message is one."""
    key, _, kind = KEYS[name]
    if name.startswith("openai"):
        return [None] if _is(message, kind) else []
    listed = message[key] if isinstance(message[key], list) else []
    return [place for place, item in enumerate(listed) if _is(item, kind)]


def _calls(name: str, message: Any) -> list[int | None]:
    key, kind, _ = KEYS[name]
    if name == "openai-responses":
        return [None] if _is(message, kind) else []
    listed = message.get(key) or []
    return [place for place, item in enumerate(listed) if isinstance(item, dict) and (not kind or _is(item, kind))]


def _without(messages: list[Any], index: int, place: int | None) -> list[Any]:
    copied = copy.deepcopy(messages)
    if place is None:
        del copied[index]
        return copied
    for key in ("tool_calls", "content", "parts"):
        if isinstance(copied[index].get(key), list):
            del copied[index][key][place]
            if not copied[index][key]:
                del copied[index]
            break
    return copied


def moves(name: str, messages: list[Any]) -> Iterator[list[Any]]:
    """Copies of a whole conversation whose reasoning is moved to another place, or whose signature is lost."""
    if name == "openai-responses":
        for index, item in enumerate(messages[:-1]):
            if item.get("type") == "reasoning":
                yield [*messages[:index], messages[index + 1], item, *messages[index + 2 :]]
    elif name == "anthropic":
        for index, message in enumerate(messages):
            content = message["content"]
            if content[0] and isinstance(content, list) and content[0]["type"].endswith("thinking"):
                if len(content) > 2:
                    yield [
                        *messages[:index],
                        {**message, "content": [content[1], content[0], *content[2:]]},
                        *messages[index + 1 :],
                    ]
                yield [_user(name, "a summary"), *messages]
    elif name == "gemini":
        spoken = [n for n, m in enumerate(messages) if m["role"] == "user" and "text" in m["parts"][0]]
        for index in range(spoken[-1], len(messages)):
            for part in messages[index]["parts"]:
                if "thoughtSignature" in part and "functionCall" in part:
                    broken = copy.deepcopy(messages)
                    for copied in broken[index]["parts"]:
                        copied.pop("thoughtSignature", None)
                    yield broken


@pytest.mark.parametrize("name", ["anthropic", "openai-responses"])
def test_o10_a_cut_window_is_stale_where_reasoning_is_bound(name: str) -> None:
    """The fakes tell what the window alone cannot: after a cut, reasoning that was kept has another prefix."""
    conversation, fake = led(name, 0, reasoning="keep")
    whole = conversation.window()
    cut = conversation.window(WindowLimits(max_messages=len(whole.messages) // 2))
    assert RULES[name](cut.messages) is None
    if name == "anthropic":
        problem = sealed(name, cut.messages, fake)
        assert problem is not None
        assert "bound to a different conversation" in problem.message
        stripping, fake = led(name, 0)
        stripped = stripping.window(WindowLimits(max_messages=len(whole.messages) // 2))
        assert sealed(name, stripped.messages, fake) is None
    else:
        assert openai_responses.withheld({"input": whole.messages}, fake.seal) == []
        assert openai_responses.withheld({"input": cut.messages}, fake.seal) != []
        assert sealed(name, cut.messages, fake) is None
