"""
Figure 15: what one step of the runtime adds to the provider's time, beside a bare loop that keeps a list.

A step is one decision and what comes of it: a request, its answer, one call that is executed. Every loop here stands
still inside that call, and is let go to the same place in its next step; what is timed is the way between.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import httpx2
import openai

from bench.answering import answering
from bench.measure import interleave
from bench.table import Row
from bench.workload import compact, exchange, text
from minutebook import Budgets, HistoryOptions, OpenAIChatDecisionProvider, Program, Runtime, SQLiteStore, capability

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bench.lab import Lab
    from bench.measure import Step

    Pause = Callable[[], Awaitable[None]]
    Begin = Callable[[Pause, int], Awaitable[object]]

BOUNDS_MS = {"RAM": 1.0, "SQLite": 5.0}
WINDOW = 128
"""Messages that a request holds: the default."""

INSTRUCTIONS = "You look up orders."
TASK = text("task", 0, 200)
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "look_up_order",
            "description": "Look up an order.",
            "parameters": {
                "type": "object",
                "properties": {"order": {"type": "integer"}, "query": {"type": "string"}},
                "required": ["order", "query"],
                "additionalProperties": False,
            },
        },
    }
]
NOTE = (
    "milliseconds that a step takes beyond the provider's time, which is a plain HTTP post of the same window to a "
    "server that answers at once. A step: a request, an answer with 300 B of arguments, a call with 1.5 KB of result. "
    "Ours: the official client, checks and budgets; on SQLite the conversation and the checkpoints, durable. Bare "
    "loop: the official client and a list that is sent whole, median / minimum; ours sends 128 messages at most."
)


class Stepped:
    """A loop that stands still in each call until it is let go."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._go, self._arrived = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Future[object] | None = None

    async def start(self, behind: int) -> None:
        """Begin anew, and go on until `behind` steps are done."""
        await self.end()
        self._task = asyncio.ensure_future(self._begin(self._pause, behind))
        self._task.add_done_callback(lambda _: self._arrived.set())
        await self._until_call()

    async def step(self) -> None:
        """Go on to the call of the next step."""
        self._go.set()
        await self._until_call()

    async def end(self) -> None:
        """Stop the loop where it stands."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._arrived.clear()

    async def _pause(self) -> None:
        self._arrived.set()
        await self._go.wait()
        self._go.clear()

    async def _until_call(self) -> None:
        await self._arrived.wait()
        self._arrived.clear()
        if self._task is not None and self._task.done():
            raise RuntimeError(f"the loop has ended: {await self._task}")


def _said(steps: range) -> list[dict[str, Any]]:
    return [message for number in steps for message in exchange(number)[1:3]]


def _bare(client: openai.AsyncOpenAI) -> Begin:
    async def begin(pause: Pause, behind: int) -> None:
        messages: list[Any] = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": TASK}]
        messages += _said(range(behind))
        while True:
            reply = await client.chat.completions.create(model="bench", messages=messages, tools=TOOLS)
            said = reply.choices[0].message
            messages.append(said.model_dump(exclude_none=True))
            for call in said.tool_calls or ():
                if call.type == "function":
                    order = json.loads(call.function.arguments)["order"]
                    await pause()
                    result = text("result", order, 1500)
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

    return begin


def _ours(client: openai.AsyncOpenAI, store: SQLiteStore | None, lab: Lab) -> Begin:
    provider = OpenAIChatDecisionProvider(model="bench", client=client, history=HistoryOptions(store=store))

    async def begin(pause: Pause, behind: int) -> None:
        left = behind

        @capability
        async def look_up_order(order: int, query: str) -> str:
            """Look up an order."""
            nonlocal left
            left -= 1
            if left < 0:
                await pause()
            return text("result", order, 1500 * bool(query))

        program = Program(
            name="bench",
            instructions=INSTRUCTIONS,
            capabilities=[look_up_order],
            budgets=Budgets(max_decisions=10**6, max_calls=10**6),
        )
        await Runtime(program, provider).run(TASK, run_id=f"run-{lab.number()}", invocation_id="1")

    return begin


def _post(client: httpx2.AsyncClient, url: str, behind: int) -> Step:
    sent = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": TASK}]
    sent += _said(range(behind))[1 - WINDOW - WINDOW % 2 :]
    body = compact({"model": "bench", "messages": sent, "tools": TOOLS})

    async def post() -> None:
        await client.post(f"{url}/chat/completions", content=body, headers={"content-type": "application/json"})

    return post


async def _closed(loops: dict[str, Stepped], *closing: Awaitable[None]) -> None:
    for loop in loops.values():
        await loop.end()
    for each in closing:
        await each


def _at(lab: Lab, url: str, behind: int) -> list[Row]:
    store = SQLiteStore(lab.path("steps"), namespace="bench")
    client, plain = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0), httpx2.AsyncClient()
    loops = {
        "bare": Stepped(_bare(client)),
        "RAM": Stepped(_ours(client, None, lab)),
        "SQLite": Stepped(_ours(client, store, lab)),
    }
    for loop in loops.values():
        lab.run(loop.start(behind))
    steps: dict[str, Step] = {"post": _post(plain, url, behind), **{name: loop.step for name, loop in loops.items()}}
    # A short run would have many more steps behind it after some rounds, so it begins anew; a long one hardly changes.
    anew: dict[str, Step] = {}
    if behind < 100:
        anew = {name: (lambda loop=loop: lab.run(loop.start(behind))) for name, loop in loops.items()}
    times = interleave(lab.loop, steps, rounds=lab.rounds, each=6, before=anew)
    lab.run(_closed(loops, client.close(), plain.aclose(), store.close()))
    bare = " / ".join(f"{1000 * each:.2f}" for each in times.beyond("bare", "post"))
    rows = []
    for name, bound in BOUNDS_MS.items():
        median, least = (1000 * each for each in times.beyond(name, "post"))
        what = f"ms added by a step, {name}, {behind:,} behind (post {1000 * times.middle('post'):.2f})"
        rows.append(
            Row(figure="15", what=what, median=median, least=least, fast=bound, peer=f"bare loop {bare}", note=NOTE)
        )
    return rows


def added(lab: Lab) -> list[Row]:
    """Figure 15."""
    with answering() as url:
        return [row for behind in ((10, 200) if lab.quick else (10, 1000)) for row in _at(lab, url, behind)]
