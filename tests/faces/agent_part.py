"""
One part of an agent's conversation, in a process of its own: from where the file stands to the next restart.

It is given the part as JSON on its standard input, and prints after each step what a host sees, one JSON line a step.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import msgspec
import openai

from minutebook import Agent, AgentEvent, SQLiteStore


async def take(agent: Agent, kind: str, words: list[str]) -> str | None:
    """Take one step, and return the agent's answer if it gave one."""
    if kind == "clear":
        await agent.clear_history()
    elif kind == "summary":
        await agent.set_conversation_summary(words[0])
    elif kind in ("system", "add"):
        await agent.add_to_history({"role": "system" if kind == "system" else "user", "content": words[0]})
    elif kind == "stream":
        return "".join([piece async for piece in agent.stream(words[0])])
    else:
        context, name = (words[1] if kind == each else None for each in ("context", "named"))
        return await agent.chat(words[0], context, name=name)
    return None


async def main(part: dict[str, Any]) -> None:
    """Go through the part's steps."""
    client = openai.AsyncOpenAI(base_url=part["base_url"], api_key="none", timeout=120)
    async with client, SQLiteStore(part["path"], namespace="local") as store:
        agent = Agent(client=client, store=store, conversation="c", **part["options"])
        events: list[Any] = []
        for event in AgentEvent:
            agent.on(event, lambda data: events.append((data.event.name, msgspec.structs.asdict(data))))
        for kind, *words in part["steps"]:
            events.clear()
            seen = {"answer": await take(agent, kind, words), "events": list(events)}
            seen |= {"history": await agent.get_history(), "summary": await agent.get_conversation_summary()}
            print(json.dumps(seen), flush=True)
        await store.verify(agent.key)


if __name__ == "__main__":
    asyncio.run(main(json.load(sys.stdin)))
