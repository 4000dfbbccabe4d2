"""
An editor that gives three questions to three invocations of another agent at once, and a shared memory resource.

    python delegation.py

Each branch has a conversation, an identity and a ledger of its own, and sees nothing of the editor's task or of the
other branches. What it may do is a subset of what the editor may; what all of them use together is within the editor's
budgets. A strict fake of the service stands in for it, and answers only when all three branches have asked: they run
side by side. It needs `minutebook[openai]`.
"""

import asyncio
import json
import threading

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
from minutebook.testing import Answer, FunctionCall, ProviderFake
from minutebook.testing.fakes import Received

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


ALL_THERE = threading.Barrier(len(TASKS), timeout=30)


def model(received: Received) -> Answer:
    """Answer as a model would, whichever agent asks."""
    instructions, task, *rest = received.json["messages"]
    results = [message["content"] for message in rest if message["role"] == "tool"]
    if "one question" in instructions["content"]:
        topic = next(word for word in FACTS if word in task["content"])
        if not results:
            ALL_THERE.wait()
            return Answer(calls=(FunctionCall("consult", {"topic": topic}),))
        return finish(f"{topic}: {results[0]}")
    if not results:
        return Answer(calls=(FunctionCall("researcher", {"tasks": TASKS}),))
    if len(results) == 1:
        return Answer(calls=(FunctionCall("sources", {}),))
    return finish(f"{', '.join(json.loads(results[0]))} ({results[1]} sources)")


def finish(output: str) -> Answer:
    """Return the answer that ends an agent's task."""
    return Answer(text=json.dumps({"output": output}))


async def main() -> None:
    """Run the editor, and show what it came to."""
    with ProviderFake("openai-chat", model) as fake:
        async with (
            MemoryStore("press") as store,
            OpenAIChatDecisionProvider(
                model="gpt-6", base_url=fake.base_url, api_key="none is needed", history=HistoryOptions(store=store)
            ) as provider,
        ):
            outcome = await Runtime(editor, provider, checkpoints=store).run("Write about extremes.", run_id="issue-7")
            print(outcome.output)
            print(f"{outcome.decisions} decisions and {outcome.calls} calls, those of the branches among them")
            print(f"{(await store.totals()).conversations} logs: 4 conversations, 4 checkpoints, 1 memory resource")


if __name__ == "__main__":
    asyncio.run(main())
