"""
What a chat tells its handlers (SPEC A8): five events with exactly these fields, numbers, names and codes only.

No field can hold message text, so no event can leak one (promise I-37); `agent` is the name that the host gave.
"""

from __future__ import annotations

import enum
import inspect
from typing import TYPE_CHECKING, Any

import msgspec

from minutebook.errors import InvalidOption
from minutebook.model.pause import drive
from minutebook.model.telling import is_own, tell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from minutebook.model.telling import Cancelled


class AgentEvent(enum.StrEnum):
    """The events of an agent, by which handlers are registered: `agent.on(AgentEvent.HISTORY_TRIMMED, handler)`."""

    MESSAGE_ADDED = "message_added"
    HISTORY_CLEARED = "history_cleared"
    HISTORY_TRIMMED = "history_trimmed"
    HISTORY_SUMMARIZED = "history_summarized"
    SUMMARIZATION_FAILED = "summarization_failed"


class ChatEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what handlers are given; `event` says for which one it is."""

    @property
    def event(self) -> AgentEvent:
        """The event that this is the data of."""
        return EVENTS[type(self)]


class MessageAdded(ChatEvent, frozen=True, kw_only=True):
    """A message is in the history now."""

    role: str
    agent: str
    """The agent's name."""

    def __repr__(self) -> str:
        return f"MessageAdded(role={self.role!r})"


class HistoryCleared(ChatEvent, frozen=True, kw_only=True):
    """The history begins anew."""

    previous_length: int


class ChatHistoryTrimmed(ChatEvent, frozen=True, kw_only=True):
    """Messages left the history, since it has a greatest length; the record holds them."""

    removed_count: int
    current_length: int


class HistorySummarized(ChatEvent, frozen=True, kw_only=True):
    """A summary stands for messages that left the history; the record holds them."""

    summarized_count: int
    previous_length: int
    new_length: int
    summary_length: int
    """In characters: Unicode code points."""


class SummarizationFailed(ChatEvent, frozen=True, kw_only=True):
    """No summary could be made; the history was trimmed to its greatest length alone."""

    error_code: str
    """The `code` of the error."""
    removed_count: int
    """How many messages that trimming took out."""


EVENTS: dict[type[ChatEvent], AgentEvent] = {
    MessageAdded: AgentEvent.MESSAGE_ADDED,
    HistoryCleared: AgentEvent.HISTORY_CLEARED,
    ChatHistoryTrimmed: AgentEvent.HISTORY_TRIMMED,
    HistorySummarized: AgentEvent.HISTORY_SUMMARIZED,
    SummarizationFailed: AgentEvent.SUMMARIZATION_FAILED,
}


class Handlers:
    """Who is told of which event, in the order in which they were added."""

    def __init__(self, *, blocking: bool, cancelled: Cancelled) -> None:
        """
        Begin with nobody.

        `blocking` says that no event loop runs what a handler would wait for, `cancelled` whether the caller itself was
        asked to end: see `is_own`.
        """
        self._blocking = blocking
        self._cancelled = cancelled
        self._handlers: dict[AgentEvent, list[Callable[[Any], object]]] = {event: [] for event in AgentEvent}
        self.lost = 0
        """How often a handler raised; nothing else came of that."""

    def add(self, event: object, handler: object) -> None:
        """
        Have a function, or a coroutine function, told of an event.

        Raises:
            InvalidOption: no event of `AgentEvent`, or nothing that can be called.
        """
        if not isinstance(event, AgentEvent):
            raise InvalidOption("event is one of AgentEvent", option="event")
        if not callable(handler):
            raise InvalidOption("handler is a function or a coroutine function", option="handler")
        self._handlers[event].append(handler)

    async def tell(self, events: Sequence[ChatEvent]) -> None:
        """
        Tell of events one after the other, and wait for what handlers wait for.

        Whatever a handler raises is counted, and nothing comes of it: only a stop of the program is passed on, and a
        cancellation of the caller that came while a handler waited.
        """
        for event in events:
            for handler in tuple(self._handlers[event.event]):
                waits_for, raised = tell(handler, event)
                if raised is not None or not await self._ended_well(waits_for):
                    self.lost += 1

    async def _ended_well(self, waits_for: object) -> bool:
        """Wait for what a handler returned, if it can be waited for; return whether it raised nothing."""
        try:
            if inspect.isawaitable(waits_for):
                await waits_for if not self._blocking else drive(waits_for)
        except BaseException as error:  # closed or cancelled at the await may be the chat itself
            if not is_own(error, self._cancelled, waited=not self._blocking):
                raise
            return False
        return True
