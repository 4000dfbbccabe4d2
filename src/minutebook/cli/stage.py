"""What the demo's steps share: the stage that they play on, and the process that one of them kills."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from minutebook import errors
from minutebook.cli import agent
from minutebook.cli.worker import Job, Told
from minutebook.decisions import HistoryOptions, OpenAIChatDecisionProvider
from minutebook.errors import AgentDecisionProviderUnavailable, MinutebookError
from minutebook.model.decisions import DecisionRequest
from minutebook.model.shown import type_alone
from minutebook.programs import Runtime
from minutebook.stores.opening import SQLiteStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from minutebook.cli.report import Report
    from minutebook.model.decisions import Decision, Observation
    from minutebook.model.entries import Entry
    from minutebook.model.keys import ConversationKey
    from minutebook.runtime import Outcome, Program

NAMESPACE = "demo"
ORDER, BUDGET = "order", "budget"
"""The two invocations of a run: the order's conversation, and the one that shows a budget."""

GUESS = 12345
"""What the local model says when it knows no number; a run that drew it would prove nothing."""


@dataclass
class Stage:
    """What the steps share, and hand on to each other."""

    report: Report
    endpoint: agent.Endpoint
    database: Path
    store: SQLiteStore
    client: Any
    bodies: list[bytes]
    """The requests of this process, as they left."""
    order: str
    run_id: str
    """Random, so that a folder that is kept takes any number of runs."""
    remembers: bool = True
    """Off only to prove that the demo then fails."""
    worker: subprocess.Popen[bytes] | None = None
    acknowledged: list[Observation] = field(default_factory=list["Observation"])
    stateless: list[tuple[Decision, bytes]] = field(default_factory=list["tuple[Decision, bytes]"])
    """Decisions that were made without a history, with their requests."""

    __repr__ = type_alone

    @property
    def task(self) -> str:
        """What the user says first."""
        return f"My order number is {self.order}. Where is it?"

    def provider(self, *, history: bool = True, **limits: Any) -> OpenAIChatDecisionProvider:
        """Return the provider of the agent's decisions, over the demo's store unless it is to have no history."""
        options = HistoryOptions(store=self.store, **limits)
        return agent.provider(self.endpoint, options if history else False, self.client)

    async def run(
        self, program: Program[agent.BoundAnswer], provider: OpenAIChatDecisionProvider, task: str, **options: Any
    ) -> Outcome[agent.BoundAnswer]:
        """Run the program."""
        return await Runtime(program, provider, checkpoints=False).run(task, **options)

    def begin_again(self) -> None:
        """Take another order and another conversation."""
        self.order, self.run_id = draw_order(), secrets.token_hex(4)
        self.acknowledged.clear()

    def ids(self, invocation: str = ORDER) -> dict[str, Any]:
        """Return what names an invocation of this run."""
        return {"run_id": self.run_id, "invocation_id": invocation}

    def key(self, invocation: str = ORDER) -> ConversationKey:
        """Return where an invocation's conversation is kept."""
        return agent.conversation_key(self.provider(), self.run_id, invocation)

    async def without_history(self, question: str) -> str:
        """Return what the agent answers when it is told the question alone."""
        program = agent.answering()
        request = DecisionRequest(
            run_id="",
            invocation_id="",
            agent_ref=program.name,
            instructions=program.instructions,
            task=question,
            capabilities=(),
            output=program.output,
        )
        decision: Decision = await self.provider(history=False).decide(request)
        self.stateless.append((decision, self.bodies[-1]))
        assert decision.finish is not None  # there is nothing to call
        return program.read_output(decision.finish.output).text

    async def entries(self, invocation: str = ORDER) -> list[Entry]:
        """Return all that a conversation retains."""
        return [entry async for entry in self.store.entries(self.key(invocation))]

    async def is_sound(self) -> bool:
        """Return whether the conversation's digest chain is whole, and nobody holds it."""
        header = await self.store.verify(self.key())
        return not header.token


def start_worker(stage: Stage) -> subprocess.Popen[bytes]:
    """Start the process that runs the agent on the first message."""
    job = Job(
        endpoint=stage.endpoint,
        database=os.fsencode(stage.database),
        namespace=NAMESPACE,
        task=stage.task,
        **stage.ids(),
    )
    # A process group of its own: Ctrl-C reaches this process alone, which then ends the other one.
    worker = subprocess.Popen(
        [sys.executable, "-m", "minutebook.cli.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        process_group=0,
    )
    assert worker.stdin is not None
    worker.stdin.write(msgspec.json.encode(job))
    worker.stdin.close()
    return worker


def lines(worker: subprocess.Popen[bytes]) -> Iterator[Told]:
    """
    Yield what the process tells, as it tells it.

    Raises:
        MinutebookError: what its run failed with.
        AgentDecisionProviderUnavailable: it ended before it had finished.
    """
    assert worker.stdout is not None
    for line in worker.stdout:
        told = msgspec.json.decode(line, type=Told)
        if told.kind == "failed":
            failed: type[MinutebookError] = getattr(errors, told.code)  # a code is the name of its class
            raise failed(told.message)
        yield told
    raise AgentDecisionProviderUnavailable(
        f"the agent's process ended with status {worker.wait()} before it had finished; see what it printed",
        provider_error_code="WORKER_ENDED",
    )


def answer(outcome: Outcome[agent.BoundAnswer]) -> str:
    """Return the text that a run finished with; nothing when it did not finish."""
    return outcome.output.text if outcome.output else ""


def draw_order() -> str:
    """Return a random order number."""
    drawn = secrets.randbelow(100_000)
    return f"ORD-{drawn:05d}" if drawn != GUESS else draw_order()
