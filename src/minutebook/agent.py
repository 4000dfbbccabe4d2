"""
Face A: an agent that one talks to, and the history of the talk.

Names, defaults and events are the published system's (SPEC A); what is said is kept by the same core as everything
else. `chat.py` tells the story, `policy/shortening.py` says which messages a history has.
"""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING, Any

from minutebook.chat.chat import Chat
from minutebook.chat.options import (
    Settings,
    asked,
    given_id,
    given_messages,
    given_state,
    given_store,
    given_summary,
    given_tools,
    kept_count,
)
from minutebook.errors import InvalidOption
from minutebook.model import codec
from minutebook.model.chat_events import AgentEvent, Handlers, HistoryCleared
from minutebook.model.clock import read_clock
from minutebook.model.colours import AsyncClosing
from minutebook.model.emitting import emitted
from minutebook.model.keys import check_given_id
from minutebook.policy.shortening import KEEP_RECENT
from minutebook.programs import task_cancelled
from minutebook.providers.chat import checked_message
from minutebook.providers.openai_http import OPENAI
from minutebook.providers.sdk_http import SdkPost
from minutebook.runtime.budgets import DEFAULT_BUDGETS, Budgets
from minutebook.runtime.program import Program

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from minutebook.model.bounds import WindowLimits
    from minutebook.model.chat_messages import ConversationMessage, ConversationState
    from minutebook.model.codec import JSON
    from minutebook.model.keys import ConversationKey
    from minutebook.model.record import Header
    from minutebook.reading import Found
    from minutebook.stores.journal import JournalStore


class Agent(AsyncClosing):
    """
    One agent and one conversation with it, over a server that speaks OpenAI's Chat Completions.

    Args:
        name: what the agent is called; the model is told.
        goal: what it is for; the model is told.
        client: an `openai.AsyncOpenAI` (in `minutebook.sync` an `openai.OpenAI`), which stays the caller's to close;
            without one, one is made at first use from `base_url`, `api_key` and the environment.
        model: the server's name of the model.
        base_url: where our own client sends its requests: any compatible server.
        api_key: our own client's key.
        max_history_messages: how many messages the history has at most; the oldest leave it and stay retained.
            Instructions, which are messages of the roles `system` and `developer`, outlive what was said, and a first
            one always stays. An agent with a larger number has the others in its history again, back to the newest
            summary or new start.
        auto_manage_history: whether `chat` keeps the history. If not, it sends the history as it stands and changes
            nothing of it; what is kept is then the caller's to add. A chat that another agent is in the middle of is no
            part of it.
        enable_summarization: whether a summary takes the place of older messages before they leave the history or the
            request, and once there are too many; the ten newest stay whole, or half of what a smaller history has.
        summarization_threshold: above how many estimated tokens that is. After a summary, and after one that failed,
            as many messages come first as stay whole.
        summarization_model: which model writes the summaries; the agent's own if left out.
        tools: typed functions that the model may call, in the runtime's loop; see `capability`. The model is told a
            function's name, its parameters and the first line of its docstring; `capability(description=…)` says more.
            A plain function is called where the agent runs and holds the event loop until it returns, so one that takes
            long is an `async def`, with `asyncio.to_thread` for what blocks. What they have done for a message that
            failed is not done again when the same words are said again; with `auto_manage_history=False` it may be,
            since nothing is recorded.
        budgets: what one message may use of requests, calls and time.
        store: where the conversation is kept; in RAM if left out.
        conversation: its id in the store, to come back to it, and as such required beside `store`. Without a store it
            names what ends with this agent, in `key` and `agent_id`; a fresh UUID if left out.
        max_output_tokens: the server's bound on what it generates as an answer. A request for a summary has none, since
            a summary that was cut is none; it asks for 300 words at most, and what is taken are 16 KiB, and half of
            what `limits` give a request.
        extra_body: further fields of each request, such as `temperature`; of one for a summary too. `tool_choice` and
            what else speaks of tools stays out of those that have none.
        limits: what one request holds of the conversation, calls and results included: 128 messages (or as many as
            `max_history_messages`) and 262,144 bytes if left out. What does not fit leaves the request, oldest exchange
            first and whole, and stays in the history. The prompt and the tools' schemas are not counted.

    Raises:
        InvalidOption: an option out of its range, or two that exclude each other.
        InvalidId: an id that no store can hold.
        BlockingMismatch: a client or a store of the other colour, or in `minutebook.sync` a tool that is `async def`.
    """

    _blocking = False

    def __init__(
        self,
        *,
        name: str,
        goal: str,
        client: object = None,
        model: str = "gpt-4o-mini",
        base_url: str | None = None,
        api_key: str | None = None,
        max_history_messages: int = 50,
        auto_manage_history: bool = True,
        enable_summarization: bool = False,
        summarization_threshold: int = 3000,
        summarization_model: str | None = None,
        tools: Sequence[Callable[..., Any]] = (),
        budgets: Budgets = DEFAULT_BUDGETS,
        store: JournalStore | None = None,
        conversation: str | None = None,
        max_output_tokens: int | None = None,
        extra_body: Mapping[str, JSON] | None = None,
        limits: WindowLimits | None = None,
    ) -> None:
        settings = Settings(
            name=name,
            goal=goal,
            model=model,
            max_history_messages=max_history_messages,
            auto_manage_history=auto_manage_history,
            enable_summarization=enable_summarization,
            summarization_threshold=summarization_threshold,
            summarization_model=summarization_model,
            max_output_tokens=max_output_tokens,
            extra_body=extra_body,
            limits=limits,
        )
        self._post = SdkPost(OPENAI, client, base_url, api_key, blocking=self._blocking)
        capabilities = given_tools(tools, blocking=self._blocking)
        program = Program(name="agent", instructions=settings.prompt, capabilities=capabilities, budgets=budgets)
        self._chat = Chat(
            given_store(store, blocking=self._blocking), given_id(conversation, store), settings, program, self._post
        )
        self._handlers = Handlers(blocking=self._blocking, cancelled=task_cancelled)

    async def chat(self, text: str, context: str | None = None, *, name: str | None = None, id: str = "") -> str:  # noqa: A002
        """
        Return the agent's answer to `text`; both are in the history then, or neither is (SPEC A9).

        The same words again, after a failure, go on behind the calls that were executed before it; a note on the error
        names them. Other words begin without them, and the same ones then too, unless an `id` says which message they
        are.

        Args:
            text: what the user says.
            context: what the model is told for this message alone; it does not enter the history (SPEC A2).
            name: who says it, where several do.
            id: names the message, so that a caller who never heard how a chat ended may ask again: once it is answered
                its recorded answer comes back, and nothing is asked, called or told. Whatever was said or begun anew
                before its answer, it goes on behind the calls that were executed for it: none is executed twice. Words
                that failed and are said again under another id, or none, are the same message, with one answer. Without
                an id the same words, once they are answered, are another message.

        Raises:
            InvalidMessage: no text, a blank one, or a name that the API does not take; `field` says which.
            InvalidValue: a context that is no text, or half a character in one of them.
            DecisionHistoryLimitExceeded: what must be sent exceeds `limits`; nothing was sent.
            AgentDecisionProviderUnavailable: the server gave no answer. Nothing shortens a request that was too large
                for the model (`provider_error_code` is `context_length_exceeded`): the message says what to do.
            AgentDecisionProviderSchemaViolation: what it gave is none.
            AgentBudgetExhausted: the tools' loop came to no answer within its budgets.
            DecisionHistoryBusy: another chat of this conversation is under way, or was when its process ended.
            DecisionHistoryConflict: the `id` stands for another message.
            DecisionHistoryAbsent: the conversation was deleted or has expired while it was read, which without
                `auto_manage_history` nobody holds.
        """
        self._post.connect()
        answer, events = await self._chat.say(*asked(text, context, name), id=self._message_id(id))
        await self._handlers.tell(events)
        return answer

    def stream(
        self,
        text: str,
        context: str | None = None,
        *,
        name: str | None = None,
        id: str = "",  # noqa: A002
    ) -> AsyncGenerator[str, None]:
        """
        Stream the agent's answer in pieces as they come in; the turn is recorded when the stream ends.

        It ends once somebody asks for what comes behind the last piece, as a loop over it does. Whoever stops before
        that, and were it with the last piece in hand, leaves the history as it was, and the chat is busy until the
        generator is closed. `async with contextlib.aclosing(agent.stream(text)) as pieces:` has it done when the block
        ends, and `with contextlib.closing(...)` has that of a `minutebook.sync.Agent`. A plain `break` leaves it to the
        event loop, a moment later, or without one to whoever still holds the generator.

        What the model says beside its calls is streamed too, before they are carried out. The answer is what comes
        behind the last of them; it alone is in the history, and is what `chat` returns. Under an `id` that is answered
        already the recorded answer comes in one piece. Arguments and refusals are those of `chat`.
        """
        self._post.connect()
        message, id_ = asked(text, context, name), self._message_id(id)

        async def saying() -> None:
            await self._handlers.tell((await self._chat.say(*message, id=id_, streamed=True))[1])

        return emitted(saying)

    def _message_id(self, id: str) -> str:  # noqa: A002
        if id != "" and not self._chat.settings.auto_manage_history:
            raise InvalidOption(
                "nothing is recorded with auto_manage_history=False, so no id can be known", option="id"
            )
        return check_given_id(id, "message id")

    async def get_history(self) -> list[ConversationMessage]:
        """Return a copy of the history: messages of role, content and maybe name, oldest first (SPEC A3)."""
        return (await self._chat.view()).messages

    async def get_history_length(self) -> int:
        """Return how many messages the history has."""
        return len((await self._chat.view()).said)

    async def add_to_history(self, message: ConversationMessage, *, id: str = "") -> None:  # noqa: A002
        """
        Add a message behind the others, once under an `id`; the oldest leave if there are too many (SPEC A5).

        Raises:
            InvalidMessage: it is none; `field` names what is wrong (SPEC A4).
            DecisionHistoryConflict: the `id` stands for another message.
        """
        added = checked_message(message)
        await self._handlers.tell(await self._chat.add(added, check_given_id(id, "message id")))

    async def clear_history(self) -> None:
        """
        Begin a new history, its summary included; what was said before stays retained (SPEC A3).

        A message that failed before it is another one behind it, and goes on from nothing that its tools have done.
        """
        length, _ = await self._chat.begin_anew((), None)
        await self._handlers.tell([HistoryCleared(previous_length=length)])

    async def set_history(self, messages: Sequence[ConversationMessage]) -> None:
        """Begin a new history with these messages, without a summary; all of them or nothing. Refuses as adding one."""
        await self._handlers.tell((await self._chat.begin_anew(given_messages(messages), None))[1])

    async def export_conversation_state(self) -> ConversationState:
        """
        Return the history and its summary as plain JSON, with who it is of, and when, in Unix milliseconds.

        That is by the store's clock, which is this machine's where the store is a server's.
        """
        view = await self._chat.view()
        return {
            "history": view.messages,
            "agent_id": self.agent_id,
            "agent_name": self.name,
            "timestamp": read_clock(self._chat.store.clock),
            "summary": view.summary,
        }

    async def import_conversation_state(self, state: Mapping[str, object]) -> None:
        """
        Begin a new history with what `export_conversation_state` returned, of this agent or another.

        Raises:
            InvalidOption: it is no such state; `option` names the field.
            InvalidMessage: a message in it is none.
            DecisionHistorySummaryInvalid: its summary is none, or is too long.
        """
        messages, summary = given_state(state, self._chat.settings.request_limits)
        await self._handlers.tell((await self._chat.begin_anew(messages, summary))[1])

    async def summarize_history(self, keep_recent_count: int = KEEP_RECENT) -> str | None:
        """
        Have a summary take the place of all but the newest messages, and return its text (SPEC A7).

        With nothing to summarise the present summary is returned, and so it is if none can be made: an event says so,
        and the history is trimmed to its greatest length alone. A message too large for a summary's request stays, and
        what came behind it.

        Raises:
            InvalidOption: a number of messages that is none.
        """
        self._post.connect()
        text, events = await self._chat.summarise(kept_count(keep_recent_count))
        await self._handlers.tell(events)
        return text

    async def get_conversation_summary(self) -> str | None:
        """Return the summary that stands before the history; `None` without one."""
        return (await self._chat.view()).summary

    async def set_conversation_summary(self, text: str | None) -> None:
        """
        Have `text` stand before the history as its summary; `None` for none.

        Raises:
            DecisionHistorySummaryInvalid: no text, an empty one, one of more than 16 KiB, or one that would fill more
                than half of what `limits` give a request.
        """
        await self._chat.set_summary(given_summary(text, self._chat.settings.request_limits))

    def is_summarization_enabled(self) -> bool:
        """Return whether older messages are summarised by themselves."""
        return self._chat.settings.enable_summarization

    async def estimate_history_tokens(self) -> int:
        """
        Return how many tokens the history takes as the next request would hold it.

        That includes its summary, and the calls and results of its turns; not what `limits` leave out, what is being
        said right now, the prompt and the tools' schemas.

        With the package `rs-bpe` texts are counted exactly for OpenAI's models; for others, and without it, by a rule
        of thumb, a quarter of a token for each ASCII character and one for each other. What the server billed corrects
        that rule, with tools from the second bill on.

        Raises:
            DecisionHistoryLimitExceeded: the newest exchange alone exceeds `limits`.
            DecisionHistoryAbsent: the conversation was deleted or has expired meanwhile.
        """
        return await self._chat.estimated()

    @property
    def name(self) -> str:
        """What the agent is called. Another name is another agent, with the same conversation if need be."""
        return self._chat.settings.name

    @property
    def goal(self) -> str:
        """What the agent is for."""
        return self._chat.settings.goal

    @property
    def conversation(self) -> str:
        """The conversation's id in the store."""
        return self.key.id

    @property
    def agent_id(self) -> str:
        """
        A UUID: the conversation's id where that is one in its usual form, else one that is made of its address.

        The same UUID in capitals or without hyphens names another conversation (promise I-33), and so has another id.
        """
        with contextlib.suppress(ValueError):
            if str(uuid.UUID(self.key.id)) == self.key.id:
                return self.key.id
        address = codec.encode([self.key.namespace, self.key.id]).decode()
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"minutebook:{address}"))

    @property
    def key(self) -> ConversationKey:
        """The conversation's address in its store: to read, verify or export it."""
        return self._chat.key

    async def search(self, text: str) -> AsyncIterator[Found]:
        """Stream what is retained and holds a text, whether or not it left the history; see `Conversation.search`."""
        async for found in self._chat.search(text):
            yield found

    async def delete(self) -> bool:
        """Erase the conversation, with all that ever left the history; see `JournalStore.delete`."""
        return await self._chat.store.delete(self.key)

    async def recover(self, *, worker_stopped: bool, epoch: int | None = None) -> Header:
        """Free the conversation of a process that is known to be stopped; see `JournalStore.recover` (SPEC D22)."""
        return await self._chat.store.recover(self.key, worker_stopped=worker_stopped, epoch=epoch)

    def on(self, event: AgentEvent, handler: Callable[[Any], Awaitable[object] | object]) -> None:
        """
        Have `handler`, a function or coroutine function, told of an event once what it tells of is recorded (SPEC A8).

        It is given the event's value: `MessageAdded`, `HistoryCleared`, `ChatHistoryTrimmed` (when trimmed),
        `HistorySummarized` or `SummarizationFailed`. What it raises is counted in `lost_events` and changes nothing.

        Raises:
            InvalidOption: no event of `AgentEvent`, or nothing that can be called.
        """
        self._handlers.add(event, handler)

    @property
    def lost_events(self) -> int:
        """How often a handler raised; nothing else came of that."""
        return self._handlers.lost

    async def close(self) -> None:
        """Close the client that this agent made for itself; one that was given, and a store, stay open."""
        await self._post.close()
