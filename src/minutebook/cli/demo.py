"""
The demo: an order number told to an agent, a kill in the middle of a decision, and what is remembered afterwards.

Every step is one function that acts, tells what it did, and claims what it saw. Nothing that the model says is
scripted: the order number is random in each run and stands in no prompt and no schema, so an answer with the right
number can only come from the history. What is claimed is memory, recovery, limits, budgets and counting; which
capability a model chooses, and how well it writes, is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from minutebook.cli import agent, evidence
from minutebook.cli.stage import BUDGET, NAMESPACE, ORDER, Stage, answer, draw_order, lines, start_worker
from minutebook.cli.worker import observation_of
from minutebook.errors import DecisionHistoryBusy
from minutebook.model.entries import Kind
from minutebook.model.events import HistoryTrimmed
from minutebook.stores.opening import SQLiteStore

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from minutebook.cli.report import Report
    from minutebook.model.events import Event

QUESTION = "What is my order number?"

OBSERVED_BEFORE_THE_KILL = 2
UNDER_WAY_SECONDS = 0.1
"""How long after a request has left the kill comes: the server is generating, and answers much later."""

MAX_ATTEMPTS = 3
"""How many orders are tried: one time in twenty-five or so the local model finishes before it looked anything up."""

TIGHT_MAX_MESSAGES = 4
MAX_LOOP_DECISIONS = 3


# --- the steps ---


async def tell(stage: Stage) -> None:
    """Let another process run the agent on the user's first message, until it waits for its third decision."""
    report = stage.report
    report.step("A user tells an order number; the agent works in a process of its own")
    for attempt in range(1, MAX_ATTEMPTS + 1):
        if await works_on_it(stage) or attempt == MAX_ATTEMPTS:
            break
        report.say("It finished early. What a model chooses is not claimed here: another order, another conversation.")
        stage.begin_again()
    report.claim(
        "two capabilities were called over two decisions, each with the number that the user told",
        [(seen.capability, seen.arguments["order_number"]) for seen in stage.acknowledged]
        == [(each.name, stage.order) for each in agent.CAPABILITIES],
    )


async def works_on_it(stage: Stage) -> bool:
    """Tell what the other process does; return whether it is waiting for the decision after its observations."""
    report, asked = stage.report, 0
    report.say(f"user: {stage.task}")
    stage.worker = start_worker(stage)
    for told in lines(stage.worker):
        asked += told.kind == "asked"
        if told.kind == "observed":
            stage.acknowledged.append(seen := observation_of(told))
            result = msgspec.json.encode(seen.value).decode()
            report.say(f"decision {asked}: {seen.capability} {seen.arguments['order_number']} → {result}")
        if told.kind == "finished":
            stage.worker.wait()
            break
        if told.kind == "asked" and asked > OBSERVED_BEFORE_THE_KILL:
            return True
    return False


async def kill(stage: Stage) -> None:
    """Kill that process while its third request is being answered."""
    report, worker = stage.report, stage.worker
    assert worker is not None
    report.step("That process is killed with SIGKILL in the middle of its next decision")
    await asyncio.sleep(UNDER_WAY_SECONDS)
    before = await stage.store.header(stage.key())
    worker.send_signal(signal.SIGKILL)
    status = worker.wait()
    report.say(f"decision {OBSERVED_BEFORE_THE_KILL + 1}: the request has left; process {worker.pid} is killed")
    report.claim(
        "it was killed while it held the conversation and waited for its third decision",
        status == -signal.SIGKILL
        and before is not None
        and bool(before.token)
        and before.state.exchanges == OBSERVED_BEFORE_THE_KILL,
    )


async def recover(stage: Stage) -> None:
    """Find the conversation busy, recover it, and go on from the observations that were acknowledged."""
    report, provider = stage.report, stage.provider()
    report.step("The next process finds the conversation busy, recovers it, and goes on")
    options: dict[str, Any] = {**stage.ids(), "observations": stage.acknowledged}
    busy = None
    try:
        await stage.run(agent.serving(), provider, stage.task, **options)
    except DecisionHistoryBusy as error:
        busy = error
        report.say(f"{error.code}: {error}")
    report.claim("nobody can write to a conversation that another process may still hold", busy is not None)
    await stage.store.recover(stage.key(), worker_stopped=True)
    report.say("recover(key, worker_stopped=True)")
    outcome = await stage.run(agent.serving(), provider, stage.task, **options)
    report.say(f"decision {OBSERVED_BEFORE_THE_KILL + 1} again: {answer(outcome)}")
    entries = await stage.entries()
    report.claim(
        "the answer has the order number, and the day that check_delivery gave",
        stage.order in answer(outcome) and agent.arrival(stage.order) in answer(outcome),
    )
    report.claim(
        "all that was acknowledged is in the record once: nothing is missing, nothing is there twice",
        evidence.kept_once(entries, stage.acknowledged),
    )
    marks = sum(entry.kind is Kind.ABANDONED for entry in entries)
    report.claim("the decision that was cut off is marked as abandoned, for an operator to see", marks == 1)
    report.claim("the digest chain of the record is sound", await stage.is_sound())


async def remember(stage: Stage) -> None:
    """Ask for the number twice: with the history, and without."""
    report = stage.report
    report.step("Asked for the order number: with history, and without")
    report.say(f"user: {QUESTION}")
    recalled = answer(
        await stage.run(agent.answering(), stage.provider(history=stage.remembers), QUESTION, **stage.ids())
    )
    guessed = await stage.without_history(QUESTION)
    told, alone = (len(evidence.messages(body)) for body in stage.bodies[-2:])
    report.table(("", "messages sent", "answer"), [("with history", told, recalled), ("without", alone, guessed)])
    report.claim(f"with history the answer has the number {stage.order}", stage.order in recalled)
    report.claim(
        "without history the request did not hold the number, and the answer is wrong",
        stage.order.encode() not in stage.bodies[-1] and stage.order not in guessed,
    )
    report.claim(
        "the number stood in no instructions and no schema of any request, only in the conversation",
        not any(stage.order.encode() in evidence.told_outside_messages(body) for body in stage.bodies),
    )


async def tighten(stage: Stage) -> None:
    """Ask once more with room for few messages: the oldest exchanges leave the window, and stay in the record."""
    report = stage.report
    report.step(f"The window is tightened to {TIGHT_MAX_MESSAGES} messages")
    before = await stage.entries()
    events: list[Event] = []
    tight = stage.provider(max_messages=TIGHT_MAX_MESSAGES, on_event=events.append)
    outcome = await stage.run(agent.answering(), tight, QUESTION, **stage.ids())
    sent, after = evidence.messages(stage.bodies[-1]), await stage.entries()
    trimmed = [event for event in events if isinstance(event, HistoryTrimmed)]
    for event in trimmed:
        report.say(
            f"event {event.kind}: the exchanges from seq {event.first_removed} to {event.last_removed} left the "
            f"window, which has {event.message_count} messages in {event.bytes:,} bytes now"
        )
    report.say(f"agent: {answer(outcome)}")
    report.claim(
        "an event tells which exchanges left; the request holds what came after them, and nothing else",
        bool(trimmed) and sent == evidence.messages_after(trimmed[-1].last_removed, after[: len(before) + 1]),
    )
    report.claim("the request keeps within the limit", len(sent) <= TIGHT_MAX_MESSAGES)
    report.claim(
        f"what is retained stays whole: {len(before)} entries as they were, and {len(after) - len(before)} more",
        evidence.starts_with(after, before) and len(after) > len(before) and await stage.is_sound(),
    )


async def loop(stage: Stage) -> None:
    """Give the agent a prompt that sends a small model in circles, and a budget."""
    report = stage.report
    report.step(f"A prompt that names one action over and over, and a budget of {MAX_LOOP_DECISIONS} decisions")
    outcome = await stage.run(agent.looping(MAX_LOOP_DECISIONS), stage.provider(), stage.task, **stage.ids(BUDGET))
    called = [f"{seen.capability} {seen.arguments['order_number']}" for seen in outcome.observations]
    for position, each in enumerate(called, start=1):
        report.say(f"decision {position}: {each}")
    stopped = outcome.kind == "budget_exhausted"
    report.say("the budget is spent, and the run ends" if stopped else f"agent: {answer(outcome)}")
    report.claim(
        "the run ended within its budget, and every call that was made has its observation",
        outcome.decisions <= MAX_LOOP_DECISIONS and outcome.calls == len(called) and (stopped or bool(outcome.output)),
    )
    if stage.endpoint.local:
        report.claim(
            "so small a model does not choose: it looked up the same order until the budget stopped it",
            stopped and len(called) == MAX_LOOP_DECISIONS and len(set(called)) == 1,
        )


async def count(stage: Stage) -> list[evidence.Row]:
    """Show every request by its numbers, and return them."""
    report = stage.report
    report.step("What each request held, and what it cost")
    rows: list[evidence.Row] = []
    for invocation in (ORDER, BUDGET):
        receipts = [receipt async for receipt in stage.store.receipts(stage.key(invocation))]
        rows += evidence.request_rows(invocation, await stage.entries(invocation), receipts)
    for decision, body in stage.stateless:
        rows.append(evidence.stateless_row(decision, body))
    report.table(
        ("request", "exchanges retained", "sent", "messages", "bytes", "tokens counted before", "billed after"),
        [tuple("" if value is None else value for value in msgspec.structs.astuple(row)) for row in rows],
    )
    if stage.endpoint.local:
        report.claim(
            f"the server billed each of {len(rows)} requests the tokens that it had counted before",
            evidence.counts_agree(rows),
        )
    else:
        report.say("This API has no endpoint that counts before generation: only what was billed is shown.")
    return rows


STEPS: tuple[Callable[[Stage], Coroutine[Any, Any, Any]], ...] = (tell, kill, recover, remember, tighten, loop)


# --- the whole ---


async def play(endpoint: agent.Endpoint, folder: Path, report: Report, *, remembers: bool = True) -> list[evidence.Row]:
    """Go through all steps on a database in `folder`, and return the numbers of every request."""
    database = folder / "demo.sqlite"
    bodies: list[bytes] = []
    client = agent.client(endpoint, agent.requests_noted(bodies.append))
    async with client, SQLiteStore(database, namespace=NAMESPACE) as store:
        stage = Stage(report, endpoint, database, store, client, bodies, draw_order(), secrets.token_hex(4), remembers)
        try:
            for step in STEPS:
                await step(stage)
                if not report.holds:  # each step builds on those before it
                    return []
            return await count(stage)
        finally:
            if stage.worker is not None:
                stage.worker.kill()
                stage.worker.wait()


def perform(
    report: Report, *, base_url: str | None, model: str | None, keep: Path | None, remembers: bool = True
) -> int:
    """
    Perform the demo and return its exit code: 0 when every claim holds.

    Raises:
        MinutebookError: the demo could not be performed.
    """
    with contextlib.ExitStack() as stack:
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="minutebook-")))
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        endpoint = stack.enter_context(agent.endpoint(base_url, model))
        introduce(report, endpoint, folder)
        rows = asyncio.run(play(endpoint, folder, report, remembers=remembers))
        if endpoint.local:
            report.title(
                "With OPENAI_API_KEY, or --base-url and --model, the same runs on your model, which also chooses."
            )
        return report.end({"model": endpoint.model, "local": endpoint.local, "requests": rows})


def introduce(report: Report, endpoint: agent.Endpoint, folder: Path) -> None:
    """Say what is about to be shown."""
    report.title("minutebook demo")
    report.say(f"model: {endpoint.told}")
    report.say(f"record: SQLite, in {folder} ({stat.S_IMODE(folder.stat().st_mode):04o})")
    report.say(
        "interface: structured. The model answers with JSON that a schema binds; it is not made to call tools. The "
        "form of an answer is bound too, and the number and the day in it are the model's."
    )
    report.say("claimed: memory, recovery, limits, budgets, counting. Not claimed: choice of tools, good prose.")
