"""
An editor that gives three questions to three invocations of another agent at once, and a shared memory resource.

    python delegation.py

Each branch has a conversation, an identity and a ledger of its own, and sees nothing of the editor's task or of the
other branches. What it may do is a subset of what the editor may; what all of them use together is within the editor's
budgets. A function stands in for the model, and answers only when all three branches have asked: they run side by side.
"""

import asyncio
import json
from typing import Any

from minutebook import (
    Budgets,
    HistoryOptions,
    Memory,
    MemoryResource,
    MemoryStore,
    OpenAIChatDecisionProvider,
    Program,
    Runtime,
    capability,
    delegate,
)

SOURCES = MemoryResource(name="sources", scope="run")
FACTS = {"tallest": "Everest", "longest": "the Nile", "deepest": "the Mariana Trench"}
TASKS = [f"Which is the {word}?" for word in FACTS]


@capability(authority="library.read", memory=[SOURCES])
async def consult(topic: str, memory: Memory) -> str:
    """Look something up in the library, and note that it was."""
    while True:
        noted = await memory.read("sources")
        topics = [*(noted.value or []), topic]  # type: ignore[misc]
        if await memory.compare_and_set("sources", topics, version=noted.version):
            return FACTS[topic]


@capability(memory=[SOURCES])
async def sources(memory: Memory) -> int:
    """Count what was consulted in this run, whoever did."""
    return len((await memory.read("sources")).value or [])  # type: ignore[arg-type]


researcher = Program(
    name="researcher",
    instructions="You answer one question from the library.",
    capabilities=[consult],
    authority={"library.read"},
    budgets=Budgets(max_decisions=3),
    memory=[SOURCES],
)
editor = Program(
    name="editor",
    instructions="You write an article.",
    capabilities=[delegate(researcher, max_branches=3, description="Have questions answered."), sources],
    authority={"library.read", "press.publish"},
    budgets=Budgets(max_decisions=12, max_calls=8, max_depth=1),
    memory=[SOURCES],
)


async def main() -> None:
    """Run the editor, and show what it came to."""
    all_there = asyncio.Barrier(len(TASKS))

    async def model(messages: list[dict[str, Any]], schema: dict[str, Any]) -> dict[str, Any]:
        """Decide as a model would, for whichever agent asks."""
        instructions, task, *rest = [str(message["content"]) for message in messages]
        results = [json.loads(said.partition(": ")[2]) for said in rest[1::2]]  # "Result of consult: "Everest""
        if "one question" in instructions:
            topic = next(word for word in FACTS if word in task)
            if not results:
                await all_there.wait()
                return {"decision": {"action": "consult", "topic": topic}}
            return {"decision": {"action": "finish", "output": f"{topic}: {results[0]}"}}
        if not results:
            return {"decision": {"action": "researcher", "tasks": TASKS}}
        if len(results) == 1:
            return {"decision": {"action": "sources"}}
        return {"decision": {"action": "finish", "output": f"{', '.join(results[0])} ({results[1]} sources)"}}

    async with MemoryStore("press") as store:
        provider = OpenAIChatDecisionProvider(
            model="stand-in",
            decision_interface="structured",
            generate=model,
            history=HistoryOptions(store=store),
        )
        outcome = await Runtime(editor, provider, checkpoints=store).run("Write about extremes.", run_id="issue-7")
        print(outcome.output)
        print(f"{outcome.decisions} decisions and {outcome.calls} calls, those of the branches among them")
        print(f"{(await store.totals()).conversations} logs: 4 conversations, 4 checkpoints, 1 memory resource")


if __name__ == "__main__":
    asyncio.run(main())
