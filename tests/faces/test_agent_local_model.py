"""
Ten conversations with a real model behind an independent server: what leaves, what is kept and what is told (SPEC A).

Beside each agent runs a list that is kept by hand, by the rules of the published system. After every turn the bytes
that the server received, the history and the events are compared with what that list says; in the middle the agent's
process ends, and another one goes on from the file.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from tests.faces.relay import Relay
from tests.local_model import needs_model

from minutebook import Agent, SQLiteStore
from minutebook.local import LocalModel

pytestmark = needs_model

PROMPT = {"role": "system", "content": "You are Ada.\nYour goal: Answer in a few words"}
FACTOR_BY_RULE = 2.0
"""How far the estimate may be from the server's count before the first bill."""
FACTOR_LEARNED = 1.35
"""And after it."""

EXTRA = {"temperature": 0}
ROOT = Path(__file__).parents[2]

Step = tuple[str, ...]

CONVERSATIONS: dict[str, tuple[dict[str, Any], list[Step]]] = {
    "plain": ({}, [("chat", "Hello, my name is Alice."), ("chat", "What is my name?"), ("restart",), ("chat", "Bye.")]),
    "streamed": ({}, [("stream", "Count to three."), ("restart",), ("stream", "And on to five."), ("chat", "Thanks.")]),
    "context": (
        {},
        [
            ("context", "When shall we meet?", "timezone: EST"),
            ("chat", "Good."),
            ("restart",),
            ("context", "No?", "x]y"),
        ],
    ),
    "trimmed": (
        {"max_history_messages": 4},
        [("chat", "One."), ("chat", "Two."), ("chat", "Three."), ("restart",), ("chat", "Four."), ("chat", "Five.")],
    ),
    "odd": (
        {"max_history_messages": 3},
        [("chat", "Red."), ("chat", "Green."), ("restart",), ("stream", "Blue."), ("chat", "White.")],
    ),
    "system": (
        {"max_history_messages": 5},
        [
            *[("system", "Speak plainly."), ("chat", "Hi."), ("chat", "More."), ("system", "Be brief."), ("restart",)],
            *[("chat", "What now?"), ("chat", "And then?")],
        ],
    ),
    "names": (
        {},
        [("named", "I am here.", "ann"), ("add", "So am I."), ("restart",), ("named", "Who is here?", "ben")],
    ),
    "cleared": (
        {},
        [("chat", "My secret is blue."), ("clear",), ("chat", "What is my secret?"), ("restart",), ("chat", "Hm.")],
    ),
    "summary": (
        {"max_history_messages": 6},
        [
            *[("summary", "Alice likes tea [and cake]."), ("chat", "What do I like?"), ("restart",)],
            *[("chat", "Really?"), ("chat", "Sure?"), ("chat", "Fine.")],
        ],
    ),
    "long words": (
        {"max_history_messages": 8},
        [
            ("chat", "Donaudampfschifffahrt — 漢字 🙂"),
            ("restart",),
            ("chat", '\u0000 \\u0041 "q"'),
            ("chat", "é?"),
        ],
    ),
}


@pytest.fixture(scope="module")
def model() -> Iterator[LocalModel]:
    with LocalModel(context_tokens=2048, threads=1) as model:
        yield model


def asking(base_url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=base_url, api_key="none", timeout=120)


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


class ByHand:
    """The list that a person would keep: what was said, as it is sent, and what a history shows of it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.kept: list[tuple[bytes, dict[str, Any]]] = []
        self.summary: str | None = None

    def say(self, fragment: bytes, message: dict[str, Any]) -> int:
        """Add a message; return how many leave."""
        self.kept.append((fragment, message))
        removed = 0
        while len(self.kept) > self.limit:
            plain = (n for n, (_, held) in enumerate(self.kept) if held["role"] != "system")
            del self.kept[next(plain)]
            removed += 1
        return removed

    def request(self, message: dict[str, Any], context: str | None, body: dict[str, Any], *, streamed: bool) -> bytes:
        """Return the bytes of the request in which `message` is said."""
        trial = ByHand(self.limit)
        trial.kept = list(self.kept)
        trial.say(compact(message), message)
        held = list(trial.kept)
        place = next(n for n, (_, each) in enumerate(held) if each["role"] == "user")
        head = [fragment for fragment, each in held[:place] if each["role"] == "system"]
        fragments = [fragment for fragment, _ in held[place:]]
        if self.summary is not None:
            fragments[0] = before(f"[Previous conversation summary: {self.summary.replace(']', ')')}]", fragments[0])
        if context is not None:
            fragments[-1] = before(context, fragments[-1])
        sent = b"[%b]" % b",".join([compact(PROMPT), *head, *fragments])
        fields = {"model": compact(body.pop("model")), "messages": sent}
        fields |= {name: compact(value) for name, value in body.items()}
        if streamed:
            fields |= {"stream": b"true", "stream_options": b'{"include_usage":true}'}
        return b"{%b}" % b",".join(b'"%b":%b' % (name.encode(), value) for name, value in fields.items())


def before(text: str, fragment: bytes) -> bytes:
    """Return a user's message with a text before what it says."""
    message = json.loads(fragment)
    said = (
        message["content"] if isinstance(message["content"], list) else [{"type": "text", "text": message["content"]}]
    )
    return compact({**message, "content": [{"type": "text", "text": text}, *said]})


def answer_in(body: bytes) -> tuple[bytes, dict[str, Any]]:
    """Return the assistant's message as it came, and as a history shows it."""
    raw = msgspec.json.decode(body, type=dict[str, msgspec.Raw])["choices"]
    message = bytes(msgspec.json.decode(raw, type=list[dict[str, msgspec.Raw]])[0]["message"])
    return message, {"role": "assistant", "content": json.loads(message)["content"]}


def answer_among(events: bytes) -> tuple[bytes, dict[str, Any]]:
    """Return the assistant's message that streamed events add up to, and as a history shows it."""
    message: dict[str, Any] = {"role": "assistant", "content": None}
    for line in events.splitlines():
        if line.startswith(b"data: {"):
            for choice in json.loads(line.removeprefix(b"data: "))["choices"]:
                said = choice["delta"].get("content")
                message["content"] = (message["content"] or "") + said if said else message["content"]
    return compact(message), message


def parts(steps: list[Step]) -> Iterator[list[Step]]:
    """Yield the steps between one start of a process and the next."""
    part: list[Step] = []
    for step in [*steps, ("restart",)]:
        if step == ("restart",):
            yield part
            part = []
        else:
            part.append(step)


def taken(part: dict[str, Any]) -> list[dict[str, Any]]:
    """Take a part's steps in a process of its own, and return what was seen after each of them."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.faces.agent_part"],
        input=json.dumps(part), capture_output=True, text=True, check=False, timeout=240, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


class Comparing:
    """What a person expects of each step, compared with what was seen and what the server received."""

    def __init__(self, relay: Relay, model: str, options: dict[str, Any]) -> None:
        self.relay = relay
        self.model = model
        self.by_hand = ByHand(options.get("max_history_messages", 50))
        self.turns = 0

    def step(self, kind: str, words: list[str], seen: dict[str, Any]) -> None:
        """Compare one step."""
        expected = self._expected(kind, words, seen["answer"])
        assert seen["events"] == [[name, fields] for name, fields in expected]
        assert seen["history"] == [message for _, message in self.by_hand.kept]
        assert seen["summary"] == self.by_hand.summary

    def _expected(self, kind: str, words: list[str], answer: str | None) -> list[tuple[str, dict[str, Any]]]:
        """Return the events of a step, and have the list say what it leaves."""
        by_hand = self.by_hand
        if kind == "clear":
            cleared = len(by_hand.kept)
            by_hand.kept, by_hand.summary = [], None
            return [("HISTORY_CLEARED", {"previous_length": cleared})]
        if kind == "summary":
            by_hand.summary = words[0]
            return []
        if kind in ("system", "add"):
            message = {"role": "system" if kind == "system" else "user", "content": words[0]}
            said, removed = [message["role"]], by_hand.say(compact(message), message)
        else:
            said, removed = ["user", "assistant"], self._turn(kind, words, answer)
        added = [("MESSAGE_ADDED", {"role": role, "agent": "Ada"}) for role in said]
        trimmed = ("HISTORY_TRIMMED", {"removed_count": removed, "current_length": len(by_hand.kept)})
        return [*added, trimmed] if removed else added

    def _turn(self, kind: str, words: list[str], answer: str | None) -> int:
        """Compare a turn's request and answer; return how many messages leave the history."""
        sent, heard = self.relay.received[self.turns], bytes(self.relay.answered[self.turns])
        self.turns += 1
        message = {"role": "user", "content": words[0]} | ({"name": words[1]} if kind == "named" else {})
        context = None
        if kind == "context":
            fence = re.findall(rb"<context ([0-9a-f]{32})>", sent)[0].decode()
            context = f"<context {fence}>\n{words[1]}\n</context {fence}>"
        body = {"model": self.model, "max_completion_tokens": 12, **EXTRA}
        assert sent == self.by_hand.request(message, context, body, streamed=kind == "stream")
        fragment, told = (answer_among if kind == "stream" else answer_in)(heard)
        assert told == {"role": "assistant", "content": answer}
        assert answer
        return self.by_hand.say(compact(message), message) + self.by_hand.say(fragment, told)


def converse(model: LocalModel, path: Path, options: dict[str, Any], steps: list[Step]) -> int:
    """Go through a conversation, a process for each part, and compare every step; return how many turns there were."""
    made = {"name": "Ada", "goal": "Answer in a few words", "model": model.model, "max_output_tokens": 12}
    made |= {"extra_body": EXTRA, **options}
    with Relay(model.base_url) as relay:
        comparing = Comparing(relay, model.model, options)
        for part in parts(steps):
            seen = taken({"base_url": relay.base_url, "path": str(path), "options": made, "steps": part})
            for (kind, *words), each in zip(part, seen, strict=True):
                comparing.step(kind, words, each)
        assert len(relay.received) == comparing.turns
    return comparing.turns


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a1_to_a10_a_conversation_with_a_real_model(name: str, model: LocalModel, tmp_path: Path) -> None:
    """A1 to A10: exact request bodies, history and events after every turn, with a restart in the middle."""
    tmp_path.chmod(0o700)
    options, steps = CONVERSATIONS[name]
    assert ("restart",) in steps
    assert converse(model, tmp_path / "book.sqlite", options, steps) >= 2


def test_there_are_ten_conversations() -> None:
    """As many as the promise says."""
    assert len(CONVERSATIONS) == 10


@pytest.mark.timeout(300)
def test_a6_a_real_model_summarises(model: LocalModel, tmp_path: Path) -> None:
    """A6: above the threshold a summary of the model's stands in the next requests, also after a restart."""
    tmp_path.chmod(0o700)

    async def story(relay: Relay) -> None:
        client = asking(relay.base_url)
        options: dict[str, Any] = {"name": "Ada", "goal": "Answer in a few words", "client": client}
        # Not at temperature 0: a summary has no bound, and so small a model repeats itself until its window is full.
        options |= {"model": model.model, "conversation": "c", "max_output_tokens": 8}
        options |= {"enable_summarization": True, "summarization_threshold": 150}
        async with SQLiteStore(tmp_path / "book.sqlite", namespace="local") as store:
            agent = Agent(**options, store=store)
            await agent.set_history(
                [{"role": ("user", "assistant")[n % 2], "content": f"Remark number {n} on tea."} for n in range(16)]
            )
            await agent.chat("Go on.")
            summary = await agent.get_conversation_summary()
            assert summary
            assert await agent.get_history_length() == 12
        async with SQLiteStore(tmp_path / "book.sqlite", namespace="local") as store:
            agent = Agent(**options, store=store)
            assert await agent.get_conversation_summary() == summary
            await agent.chat("And?")
            first = next(m for m in json.loads(relay.received[-1])["messages"] if m["role"] == "user")
            assert first["content"][0]["text"].startswith("[Previous conversation summary: ")
        await client.close()

    with Relay(model.base_url) as relay:
        asyncio.run(story(relay))


@pytest.mark.timeout(300)
def test_a7_the_estimate_is_near_the_servers_count(
    model: LocalModel, monkeypatch: pytest.MonkeyPatch, figure: Callable[[str], None]
) -> None:
    """A7: within a stated factor by the rule alone, and within a smaller one after the first bill."""
    monkeypatch.setattr("minutebook.chat.server.exact_counter", lambda _: None)
    texts = [
        "The harbour office keeps a register of every ship that calls, with its tonnage and its draught.",
        "def total(items):\n    return sum(item.price * item.count for item in items)\n",
        "Der Zug nach Köln fährt um acht Uhr dreißig von Gleis vier ab, nicht um neun.",
        '{"order": "ORD-42445", "lines": [{"sku": "A-1", "count": 2}, {"sku": "B-7", "count": 1}]}',
        "Is it true that the longest river of Europe is the Volga? I had thought so.",
    ]

    async def story() -> list[float]:
        client = asking(model.base_url)
        agent = Agent(
            name="Ada", goal="Answer", client=client, model=model.model, max_output_tokens=8,
            extra_body={"temperature": 0},
        )  # fmt: skip
        ratios: list[float] = []
        for text in texts:
            await agent.add_to_history({"role": "user", "content": text})
            await agent.add_to_history({"role": "assistant", "content": text.upper()[:60]})
            ratios.append(
                await agent.estimate_history_tokens() / await counted(client, model, await agent.get_history())
            )
            await agent.chat("Yes or no?")
        await client.close()
        return ratios

    by_rule, *learned = asyncio.run(story())
    worst = max(learned, key=lambda ratio: max(ratio, 1 / ratio))
    figure(f"{by_rule:.2f} of the server's count by the rule, {worst:.2f} at worst once a bill was seen")
    assert 1 / FACTOR_BY_RULE < by_rule < FACTOR_BY_RULE
    assert 1 / FACTOR_LEARNED < worst < FACTOR_LEARNED


async def counted(client: openai.AsyncOpenAI, model: LocalModel, messages: list[dict[str, Any]]) -> int:
    """Return how many tokens the server counts for messages."""
    body = {"model": model.model, "messages": messages}
    count = await client.post("/chat/completions/input_tokens", body=body, cast_to=dict[str, Any])
    tokens: int = count["input_tokens"]
    return tokens
