"""
The demo's agent for a person at a terminal; its conversation is kept between runs.

Ctrl-C in a turn stops the turn and comes back to the prompt; at the prompt it ends the chat. Nothing that was recorded
is lost, and what was asked stays asked: the record tells which question has no answer yet and which call has no result,
and the next turn begins with those, once. Where the model fails at it, the next line is a new question and takes its
place. A call whose result was lost, as by a kill, is reported as interrupted to the person and to the model; nothing is
executed because a record says so (SPEC D2, D3).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from minutebook.cli import agent
from minutebook.cli.terminal import exit_code, paragraph, say, shown, told
from minutebook.decisions import HistoryOptions, OpenAIChatDecisionProvider
from minutebook.errors import AgentBudgetExhausted, DecisionHistoryBusy, InvalidOption, MinutebookError
from minutebook.model.decisions import Abandoned, CallReference, Observation, ProposedCall
from minutebook.programs import Runtime
from minutebook.providers.openai_chat import CHAT
from minutebook.providers.structured import StructuredWire
from minutebook.providers.wire import wire_format
from minutebook.runtime import interrupted
from minutebook.stores.opening import open_store
from minutebook.stores.urls import url_of_file

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from minutebook.model.decisions import Decision, DecisionRequest
    from minutebook.model.entries import Entry
    from minutebook.model.keys import ConversationKey
    from minutebook.model.record import Header
    from minutebook.ports import DecisionProvider
    from minutebook.stores.journal import JournalStore

NAMESPACE = "chat"
RUN_ID = "chat"

_WIRE = StructuredWire(wire_format(CHAT.name), CHAT)


def talk(session: str, store: str | None, *, base_url: str | None, model: str | None) -> None:
    """
    Talk until the person ends it.

    Raises:
        MinutebookError: the chat could not begin.
    """
    if not session.strip():
        raise InvalidOption("--session is the name of a conversation, and this one is blank", option="session")
    with agent.endpoint(base_url, model) as endpoint, asyncio.Runner() as runner:
        url = store or _home_store()
        chat = runner.run(_opened(endpoint, url, session))
        say(f"The record is kept in {shown(url)}, namespace {NAMESPACE}.")
        try:
            _converse(runner, chat)
            say("The chat is kept; the same command goes on with it.")
        finally:
            runner.run(chat.close())


def _home_store() -> str:
    """Return the URL of the person's own database, in a private directory."""
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    folder = Path(base, "minutebook")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return url_of_file(str(folder / "chat.sqlite"))


async def _opened(endpoint: agent.Endpoint, url: str, session: str) -> Chat:
    store = open_store(url, namespace=NAMESPACE)
    try:
        return Chat(endpoint, store, session)
    except BaseException:
        await store.close()
        raise


class Chat:
    """One session: the agent, where its conversation is kept, and how a turn is taken."""

    def __init__(self, endpoint: agent.Endpoint, store: JournalStore, session: str) -> None:
        """Prepare; nothing is read or written yet."""
        self.endpoint = endpoint
        self.store = store
        self.session = session
        self.client: Any = agent.client(endpoint)
        self.provider: OpenAIChatDecisionProvider = agent.provider(endpoint, HistoryOptions(store=store), self.client)
        self.failed = 0
        """The `seq` of the question that the model has failed at in this run: it is not asked again by itself."""
        self.failure: MinutebookError | None = None
        """Why the newest question has no answer."""
        self.observed: dict[CallReference, Observation] = {}
        """What this process really did in a turn that is not finished: no record stands in for it."""
        self.key: ConversationKey = agent.conversation_key(self.provider, RUN_ID, session)

    async def header(self) -> Header | None:
        """Return where the conversation stands."""
        return await self.store.header(self.key)

    async def recover(self) -> None:
        """End the reservation of a worker that the person knows to be stopped."""
        await self.store.recover(self.key, worker_stopped=True)

    async def say(self, task: str, observations: tuple[Observation, ...] = ()) -> str:
        """
        Return the agent's answer to a message, or to one that it was working on.

        Raises:
            AgentBudgetExhausted: it came to none.
        """
        return await self._run(self.provider, task, observations)

    async def say_instead(self, task: str) -> str:
        """Return the agent's answer to a message that takes the place of one without an answer, if there is one."""
        unfinished = await self.unfinished()
        if unfinished is None or not unfinished[1]:
            return await self.say(task)
        return await self._run(_Abandoning(self.provider, unfinished[1]), task)

    async def note_failure(self, error: MinutebookError) -> None:
        """Note that the question without an answer has been tried."""
        header = await self.header()
        self.failed = header.state.turn if header else 0
        self.failure = error

    async def _run(self, provider: DecisionProvider, task: str, observations: tuple[Observation, ...] = ()) -> str:
        # What was really done is kept here: the chat goes on with a turn only when the person does.
        runtime = Runtime[agent.Answer](agent.chatting(self.endpoint), provider, checkpoints=False)
        outcome = await runtime.run(
            task,
            run_id=RUN_ID,
            invocation_id=self.session,
            observations=observations,
            on_observation=self._note,
        )
        if outcome.output is None:
            raise AgentBudgetExhausted(
                f"the turn used up its budget of {outcome.budget} before the model answered", budget=outcome.budget
            )
        self.observed.clear()
        return outcome.output.text

    def _note(self, observation: Observation) -> None:
        if observation.reference is not None:
            self.observed[observation.reference] = observation

    async def unfinished(self) -> tuple[str, tuple[Observation, ...]] | None:
        """
        Return the message that has no answer yet, with an observation of each call that waits; `None` if none has.

        A call that this process did not observe itself is observed as interrupted (case O-33).
        """
        header = await self.header()
        if header is None or not (header.state.open or header.state.unanswered):
            return None
        text, observations = "", list[Observation]()
        async for entry in self.store.entries(self.key, after=header.state.turn - 1):
            if entry.seq == header.state.turn:
                text = str(msgspec.json.decode(entry.fragment)["content"])
            for waits in header.state.open:
                if entry.seq == waits.exchange:
                    calls = _proposed(entry)
                    observations += [self._observation(calls[position]) for position in waits.waiting]
        return text, tuple(observations)

    def _observation(self, call: ProposedCall) -> Observation:
        known = self.observed.get(call.reference) if call.reference else None
        return known or interrupted(call)

    async def close(self) -> None:
        """Close what was opened."""
        await self.client.close()
        await self.store.close()


class _Abandoning:
    """A provider whose first request says that the turn before was given up, and what its last calls came to."""

    def __init__(self, provider: DecisionProvider, observations: tuple[Observation, ...]) -> None:
        self._provider = provider
        self._abandoned: Abandoned | None = Abandoned(observations=observations)

    async def decide(self, request: DecisionRequest) -> Decision:
        abandoned, self._abandoned = self._abandoned, None
        return await self._provider.decide(msgspec.structs.replace(request, abandoned=abandoned))


def _proposed(entry: Entry) -> list[ProposedCall]:
    """Return the calls of a recorded decision, as they were proposed."""
    return [
        ProposedCall(
            capability=call.name,
            arguments=arguments if isinstance(arguments, dict) else {},
            reference=CallReference(entry.seq, position),
        )
        for position, (call, arguments) in enumerate(_WIRE.calls(entry.fragment))
    ]


def _edit_lines() -> None:
    """Let the arrow keys edit a line where Python has them."""
    with contextlib.suppress(ImportError):
        import_module("readline")


def _converse(runner: asyncio.Runner, chat: Chat) -> None:
    paragraph(
        f"{chat.endpoint.told}; session {chat.session!r}. Ctrl-C stops an answer; at the prompt it ends the chat, as "
        "Ctrl-D does."
    )
    header = runner.run(chat.header())
    if header is not None:
        paragraph(f"{header.state.turns:,} messages so far, {header.state.exchanges:,} decisions kept.")
        if header.token and not _freed(runner, chat, header):
            return
    _edit_lines()
    _go_on(runner, chat)
    while (line := _ask("you> ")) is not None:
        if line.strip() and _go_on(runner, chat):
            _turn(runner, chat, chat.say_instead(line.strip()))
    if chat.failure and not sys.stdin.isatty():
        raise SystemExit(exit_code(chat.failure))  # a person has seen it; a script looks at this


def _freed(runner: asyncio.Runner, chat: Chat, header: Header) -> bool:
    """Let the person say whether the process that holds the session is gone; return whether it was recovered."""
    paragraph(
        f"Another process holds this session (epoch {header.epoch}). If it was killed or has crashed, it can be "
        "recovered; if it still runs, use that one or another --session."
    )
    reply = _ask("Is it stopped for certain? Recover? [y/N] ")
    if reply is None or reply.strip().lower() not in ("y", "yes"):
        raise DecisionHistoryBusy(
            "the session is held by another process; once that is stopped, run `minutebook chat` again and say yes, or "
            "take another --session",
            epoch=header.epoch,
        )
    runner.run(chat.recover())
    paragraph("Recovered; what was recorded is all there.")
    return True


def _go_on(runner: asyncio.Runner, chat: Chat) -> bool:
    """
    Try what was asked before and has no answer, but not again where the model failed at it in this run.

    Return whether a new question can be asked: not where the person has just stopped the old one.
    """
    header = runner.run(chat.header())
    unfinished = None if header is None or header.state.turn == chat.failed else runner.run(chat.unfinished())
    if unfinished is None:
        return True
    paragraph(f"Going on with: {unfinished[0]}")
    for each in unfinished[1]:
        if each.reference not in chat.observed:
            paragraph(f"{each.capability} was interrupted: whether it took effect is unknown, and it is not repeated.")
    return _turn(runner, chat, chat.say(*unfinished))


def _turn(runner: asyncio.Runner, chat: Chat, answering: Coroutine[Any, Any, str]) -> bool:
    """Take one turn and show its answer, or why there is none; return whether it ended without the person."""
    try:
        answer = runner.run(answering)
    except KeyboardInterrupt:
        paragraph("Stopped. Your message is kept, and is answered first when you write again.")
        return False
    except MinutebookError as error:
        runner.run(chat.note_failure(error))
        _tell_failure(error)
    else:
        chat.failure = None
        paragraph(f"agent> {answer}")
    return True


def _tell_failure(error: MinutebookError) -> None:
    """Say at once why a message has no answer, and how it goes on; from a pipe on standard error."""
    if sys.stdin.isatty():
        paragraph(f"{error.code}: {told(error)}", style="red")
        paragraph(
            "The message is kept without an answer. Write a new one, which takes its place; or leave with Ctrl-D: "
            "the same command tries it once more."
        )
        return
    sys.stdout.write("\n")  # where a terminal's echo would have ended the prompt's line
    sys.stdout.flush()
    kept = "the message is kept without an answer, and the next line takes its place"
    sys.stderr.write(f"{error.code}: {shown(told(error))}; {kept}\n")


def _ask(prompt: str) -> str | None:
    """Return a line of the person's, or `None` when there are no more: Ctrl-D, Ctrl-C or the end of a pipe."""
    try:
        return input(shown(prompt))
    except (EOFError, KeyboardInterrupt):
        sys.stdout.write("\n")
        return None
