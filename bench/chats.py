"""
Figure 16: what a chat of an agent takes beyond a plain post, and beyond a loop that keeps a list and sends its end.

All send as many messages to a server that answers at once. The loop has nothing after it has ended; the agent has a
record, which on SQLite is durable before the request leaves and again before the answer is returned.

The official client, which the bare loop needs, takes several milliseconds for itself. So a bound beyond that loop says
whether an agent costs its user anything, and no more; what an agent costs is bound beyond the post. To see that this
bound finds anything, one agent reads its whole record at each chat: it has to be found beyond it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx2
import openai

from bench.answering import answering
from bench.measure import interleave
from bench.table import Row
from bench.workload import compact, text
from minutebook import Agent, SQLiteStore

if TYPE_CHECKING:
    from bench.lab import Lab
    from bench.measure import Step, Times
    from minutebook.model.keys import ConversationKey

BOUNDS_MS = {"RAM": 1.0, "SQLite": 5.0}
"""Milliseconds that a chat may take beyond a bare loop, and beyond a post."""
CONVERSATION = "c"
PLANTED = "SQLite, all read"
KEPT = 50
"""Messages that a history has at most: the default."""

PROMPT = "You are Bench.\nYour goal: Answer"
NOTE = (
    "milliseconds that `Agent.chat` takes beyond a bare loop with the official client, which keeps a list and sends "
    "its last messages: as many in each request as the history has, the prompt included, 200 B asked and 300 B "
    "answered. The bare loop has the client parse and check the answer, which ours does not need. Beyond a post: an "
    "HTTP post of as many messages of the same sizes. In the last line, the control, a chat reads the whole record "
    "first, as ours must not, and is to be found beyond the bound."
)


def _kept(behind: int) -> int:
    """Return the messages of a history, full from the first chat on, so that no request is larger than the first."""
    return min(KEPT, 2 * behind)


def _said(turns: int) -> list[dict[str, Any]]:
    sides = (("user", 200), ("assistant", 300))
    return [{"role": role, "content": text(role, turn, size)} for turn in range(turns) for role, size in sides]


def _bare(client: openai.AsyncOpenAI, behind: int) -> Step:
    messages: list[Any] = _said(behind)

    async def chat() -> None:
        messages.append({"role": "user", "content": text("ask", len(messages), 200)})
        window = [{"role": "system", "content": PROMPT}, *messages[1 - _kept(behind) :]]
        reply = await client.chat.completions.create(model="bench", messages=window)
        messages.append({"role": "assistant", "content": reply.choices[0].message.content})

    return chat


def _post(client: httpx2.AsyncClient, url: str, behind: int) -> Step:
    asked = {"role": "user", "content": text("ask", behind, 200)}
    window = [{"role": "system", "content": PROMPT}, *_said(behind)[2 - _kept(behind) :], asked]
    body = compact({"model": "bench", "messages": window})

    async def post() -> None:
        await client.post(f"{url}/chat/completions", content=body, headers={"content-type": "application/json"})

    return post


def _ours(lab: Lab, client: openai.AsyncOpenAI, store: SQLiteStore | None, behind: int) -> Step:
    who: dict[str, Any] = {"name": "Bench", "goal": "Answer", "model": "bench", "client": client}
    agent = Agent(**who, store=store, conversation=CONVERSATION, max_history_messages=_kept(behind))
    lab.run(agent.set_history(_said(behind)))

    async def chat() -> None:
        await agent.chat(text("ask", lab.number(), 200))

    return chat


def _reading_all(store: SQLiteStore, key: ConversationKey, chat: Step) -> Step:
    """Return a chat with a planted fault: it reads the whole record, so that it costs what the conversation has."""

    async def read_and_chat() -> None:
        async for _ in store.entries(key):
            pass
        await chat()

    return read_and_chat


def _at(lab: Lab, url: str, behind: int, *, control: bool) -> list[Row]:
    store = SQLiteStore(lab.path("chats"), namespace="bench")
    client, plain = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0), httpx2.AsyncClient()
    steps = {
        "post": _post(plain, url, behind),
        "bare": _bare(client, behind),
        "RAM": _ours(lab, client, None, behind),
        "SQLite": _ours(lab, client, store, behind),
    }
    if control:
        steps[PLANTED] = _reading_all(store, store.key(CONVERSATION), steps["SQLite"])
    times = interleave(lab.loop, steps, rounds=lab.rounds, each=6)
    for closing in (client.close(), plain.aclose(), store.close()):
        lab.run(closing)
    rows = [_row(times, name, limit, behind) for limit in ("bare", "post") for name in BOUNDS_MS]
    return [*rows, _control(times, behind)] if control else rows


def _row(times: Times, name: str, limit: str, behind: int) -> Row:
    median, least = (1000 * each for each in times.beyond(name, limit))
    what = {"bare": "a bare loop", "post": "a post"}[limit]
    return Row(
        figure="16",
        what=f"ms beyond {what}, {name}, {behind:,} turns behind ({limit} {1000 * times.middle(limit):.2f})",
        median=median,
        least=least,
        fast=BOUNDS_MS[name],
        peer=f"bare loop {_shown(times.beyond('bare', limit))}" if limit == "post" else "",
        note=NOTE,
    )


def _control(times: Times, behind: int) -> Row:
    median, least = (1000 * each for each in times.beyond(PLANTED, "post"))
    return Row(
        figure="16",
        what=f"control: ms beyond a post, {PLANTED}, {behind:,} turns behind",
        median=median,
        least=least,
        fast=BOUNDS_MS["SQLite"],
        at_least=True,
        note=NOTE,
    )


def _shown(seconds: tuple[float, float]) -> str:
    return " / ".join(f"{1000 * each:.2f}" for each in seconds)


def added(lab: Lab) -> list[Row]:
    """Figure 16."""
    with answering() as url:
        talk = url.replace("/v1", "/talk")
        few, many = 10, 1000 if lab.quick else 10_000
        return [*_at(lab, talk, few, control=False), *_at(lab, talk, many, control=True)]
