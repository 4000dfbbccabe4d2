"""An agent for blocking callers: its chat and its history without an event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minutebook import agent as asynchronous
from minutebook.model.colours import Closing
from minutebook.runtime.budgets import DEFAULT_BUDGETS
from minutebook.sync.driving import Over, blocking, plain, streaming
from minutebook.sync.stores import JournalStore, core_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from minutebook.model.bounds import WindowLimits
    from minutebook.model.codec import JSON
    from minutebook.model.keys import ConversationKey
    from minutebook.runtime import Budgets


class _Agent(asynchronous.Agent):
    """The coroutines of an agent over a client that never suspends them."""

    _blocking = True


class Agent(Closing, Over[asynchronous.Agent]):
    """One agent and one conversation with it, with an `openai.OpenAI` client: see `minutebook.Agent`."""

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
        self._core = _Agent(
            name=name,
            goal=goal,
            client=client,
            model=model,
            base_url=base_url,
            api_key=api_key,
            max_history_messages=max_history_messages,
            auto_manage_history=auto_manage_history,
            enable_summarization=enable_summarization,
            summarization_threshold=summarization_threshold,
            summarization_model=summarization_model,
            tools=tools,
            budgets=budgets,
            store=None if store is None else core_of(store),
            conversation=conversation,
            max_output_tokens=max_output_tokens,
            extra_body=extra_body,
            limits=limits,
        )

    @property
    def name(self) -> str:
        """What the agent is called. Another name is another agent, with the same conversation if need be."""
        return self._core.name

    @property
    def goal(self) -> str:
        """What the agent is for."""
        return self._core.goal

    @property
    def conversation(self) -> str:
        """The conversation's id in the store."""
        return self._core.conversation

    @property
    def agent_id(self) -> str:
        """A UUID of the conversation's own: see `minutebook.Agent.agent_id`."""
        return self._core.agent_id

    @property
    def key(self) -> ConversationKey:
        """The conversation's address in its store: to read, verify or export it."""
        return self._core.key

    @property
    def lost_events(self) -> int:
        """How often a handler raised; nothing else came of that."""
        return self._core.lost_events

    chat = blocking(asynchronous.Agent.chat)
    stream = streaming(asynchronous.Agent.stream)
    get_history = blocking(asynchronous.Agent.get_history)
    get_history_length = blocking(asynchronous.Agent.get_history_length)
    add_to_history = blocking(asynchronous.Agent.add_to_history)
    clear_history = blocking(asynchronous.Agent.clear_history)
    set_history = blocking(asynchronous.Agent.set_history)
    export_conversation_state = blocking(asynchronous.Agent.export_conversation_state)
    import_conversation_state = blocking(asynchronous.Agent.import_conversation_state)
    summarize_history = blocking(asynchronous.Agent.summarize_history)
    get_conversation_summary = blocking(asynchronous.Agent.get_conversation_summary)
    set_conversation_summary = blocking(asynchronous.Agent.set_conversation_summary)
    is_summarization_enabled = plain(asynchronous.Agent.is_summarization_enabled)
    estimate_history_tokens = blocking(asynchronous.Agent.estimate_history_tokens)
    search = streaming(asynchronous.Agent.search)
    delete = blocking(asynchronous.Agent.delete)
    recover = blocking(asynchronous.Agent.recover)
    on = plain(asynchronous.Agent.on)
    close = blocking(asynchronous.Agent.close)
