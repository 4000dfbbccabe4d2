"""
Random stories of an agent beside a list that is kept by hand (SPEC A3 to A9).

The list knows nothing of records, turns or openings. After every step the history, the summary and the request are what
it says, whether the agent is the same one or a new one over the same store.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import openai
import pytest
from tests.budgets import budget
from tests.faces.test_agent import PROMPT, echo, sent, summarising
from tests.http_clients import http_client

from minutebook import sync
from minutebook.errors import AgentDecisionProviderUnavailable
from minutebook.testing import FunctionCall, ProviderFake
from minutebook.testing.fakes import Answer, Failure, Line, Received

INSTRUCTING = ("system", "developer")
ROLES = ("user", "assistant", "assistant", "user", "system", "developer")
STEPS = 90


def look(path: str) -> str:
    """Read a file."""
    return f"content of {path}"


class Kept:
    """What a person would keep."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held: list[dict[str, Any]] = []
        self.summary: str | None = None
        self.told: list[dict[str, Any]] = []
        """The messages that a summary has told already."""

    def trim(self) -> None:
        """Over the limit the oldest speech goes; without any, the oldest instruction but the first."""
        while len(self.held) > self.limit:
            speech = [n for n, each in enumerate(self.held) if each["role"] not in INSTRUCTING]
            del self.held[speech[0] if speech else 1]

    def add(self, message: dict[str, Any]) -> None:
        self.held.append(message)
        self.trim()

    def summarise(self, keep: int) -> None:
        """Tell what leaves and the answers that no request would open with, but nothing twice."""
        older = self.held[: max(0, len(self.held) - keep)]
        leaving = [each for each in older if each["role"] not in INSTRUCTING]
        if not leaving:
            return
        recent = self.held[len(older) :]
        head = []
        for each in recent:
            if each["role"] == "user":
                break
            if each["role"] == "assistant":
                head.append(each)
        untold = [each for each in leaving + head if not any(each is told for told in self.told)]
        self.told += untold
        if untold:
            self.summary = "; ".join([*([self.summary] if self.summary else []), *(each["content"] for each in untold)])
        self.held = [each for each in older if each["role"] in INSTRUCTING] + recent

    def request(self, asked: dict[str, Any]) -> list[Any]:
        """Return what is sent with a message, of the first one its parts as texts."""
        trial = Kept(self.limit)
        trial.held = [*self.held]
        trial.add(asked)
        if not any(each is asked for each in trial.held):
            trial.held.append(asked)
        first = next(n for n, each in enumerate(trial.held) if each["role"] == "user")
        head = [each for each in trial.held[:first] if each["role"] in INSTRUCTING]
        shown = [[each["role"], each["content"]] for each in trial.held[first:]]
        if self.summary is not None:
            shown[0][1] = [f"[Previous conversation summary: {self.summary}]", shown[0][1]]
        return [[PROMPT["role"], PROMPT["content"]], *([each["role"], each["content"]] for each in head), *shown]


def spoken(request: Received) -> list[Any]:
    """Return the messages of a request in the same form, without calls and results."""
    found: list[Any] = []
    for message in sent(request):
        content = message["content"]
        if message["role"] != "tool" and not message.get("tool_calls"):
            found.append([message["role"], content if isinstance(content, str) else [part["text"] for part in content]])
    return found


class Server:
    """A model that answers, calls or fails as it is told."""

    def __init__(self) -> None:
        self.fails = False
        self.calls = False

    def __call__(self, request: Received) -> Line:
        asked = request.json["messages"]
        if asked[0]["content"].startswith("You write the summary"):
            return summarising(request)
        if self.calls and asked[-1]["role"] == "user":
            return Answer(calls=(FunctionCall("look", {"path": "a"}),))
        if self.fails:
            return Failure(status=503)
        if asked[-1]["role"] == "tool":
            return Answer(text="looked")
        return echo(request)


def tell_story(seed: int, fake: ProviderFake, server: Server) -> int:
    """Go through one random story; return how many requests were compared."""
    chance = random.Random(seed)
    limit = chance.choice([1, 2, 3, 4, 6, 9, 14])
    kept = Kept(limit)
    store = sync.MemoryStore()
    http = http_client(verify=False, timeout=20)
    client = openai.OpenAI(base_url=fake.base_url, api_key="k", http_client=http)
    compared = 0

    def opened() -> sync.Agent:
        return sync.Agent(
            name="Assistant", goal="Help users", client=client, store=store, conversation="c",
            max_history_messages=limit, tools=[look],
        )  # fmt: skip

    agent = opened()
    for number in range(STEPS):
        step = chance.choices(
            ["chat", "fail", "add", "clear", "set", "summarise", "summary", "reopen"], [8, 3, 8, 1, 1, 2, 1, 3]
        )[0]
        if step in ("chat", "fail"):
            # A message that failed often comes again in the same words.
            text = chance.choice(["again", f"u{number}"])
            asked = {"role": "user", "content": text}
            request = kept.request(asked)
            server.fails, server.calls = step == "fail", chance.random() < 0.3
            if step == "fail":
                with pytest.raises(AgentDecisionProviderUnavailable):
                    agent.chat(text)
            else:
                answer = agent.chat(text)
                kept.held.append(asked)
                kept.add({"role": "assistant", "content": answer})
            assert spoken(fake.requests[-1]) == request, f"story {seed}, step {number}"
            compared += 1
        elif step == "add":
            message = {"role": chance.choice(ROLES), "content": f"m{number}"}
            agent.add_to_history(message)
            kept.add(message)
        elif step == "clear":
            agent.clear_history()
            kept.held, kept.summary = [], None
        elif step == "set":
            messages = [{"role": chance.choice(ROLES), "content": f"s{number}-{n}"} for n in range(chance.randrange(8))]
            agent.set_history(messages)
            kept.held, kept.summary = [*messages], None
            kept.trim()
        elif step == "summarise":
            keep = chance.randrange(5)
            server.fails = server.calls = False
            agent.summarize_history(keep)
            kept.summarise(keep)
        elif step == "summary":
            kept.summary = f"about {number}"
            agent.set_conversation_summary(kept.summary)
        else:
            agent = opened()
        assert agent.get_history() == kept.held, f"story {seed}, step {number}: {step}"
        assert agent.get_conversation_summary() == kept.summary, f"story {seed}, step {number}: {step}"
    store.verify(agent.key)
    assert json.dumps(agent.export_conversation_state()["history"]) == json.dumps(kept.held)
    return compared


def tell_stories(count: int, fake: ProviderFake, server: Server) -> int:
    """Go through so many stories; return how many requests were compared."""
    return sum(tell_story(seed, fake, server) for seed in range(count))


@pytest.mark.timeout(600)
def test_a3_to_a9_random_stories_follow_a_list(figure: Callable[[str], None]) -> None:
    """A3 to A9: histories, summaries and requests of random stories, with failures, calls and restarts among them."""
    server = Server()
    stories = budget(48, 400)
    with ProviderFake("openai-chat", server) as fake:
        compared = tell_stories(stories, fake, server)
        assert not fake.refused
    figure(f"{stories} stories, {compared:,} requests compared, 0 differences")
    assert compared > 20 * stories


@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("minutebook.chat.chat.shortened", lambda said, limit: tuple(said[-limit:])),
        ("minutebook.chat.chat.asked_with", lambda said, asked, limit: (*said, asked)),
        ("minutebook.chat.requests.first_input", lambda _: 1),
        ("minutebook.chat.requests.left_out", lambda *_: []),
        ("minutebook.chat.chat.kept_places", lambda *_: ()),
    ],
)
def test_a5_control_the_stories_find_a_planted_fault(
    name: str, planted: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stories that find nothing in a history that forgets its instructions, or its limit, would prove nothing."""
    monkeypatch.setattr(name, planted)
    server = Server()
    with ProviderFake("openai-chat", server) as fake, pytest.raises(AssertionError, match="story"):
        tell_stories(48, fake, server)
