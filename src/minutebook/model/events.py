"""
What observers are told: a closed enumeration of events with fixed fields, numbers and codes only (SPEC D4, D8, D16).

No field can hold message text, a signature, an id or a key, so no event can leak one (promise I-37).
"""

from __future__ import annotations

import inspect

import msgspec

from minutebook.errors import InvalidOption


def check_observer(on_event: object) -> None:
    """
    See that an option is what is told of events: called with each one, and not waited for.

    Raises:
        InvalidOption: it is not.
    """
    if on_event is None:
        return
    if not callable(on_event):
        raise InvalidOption("on_event is called with each event; it must be callable", option="on_event")
    if inspect.iscoroutinefunction(on_event):
        raise InvalidOption("on_event is not waited for; give a plain function", option="on_event")


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    """Base of every event; `kind` names it."""

    @property
    def kind(self) -> str:
        """The event's name, as it appears in its JSON."""
        return str(self.__struct_config__.tag)


class HistoryTrimmed(Event, frozen=True, kw_only=True, tag="decision_history_trimmed"):
    """Complete exchanges left the window; the record still holds them. The counts are those of the window now."""

    message_count: int
    bytes: int
    first_removed: int
    """Where the last window began: the `seq` of its oldest exchange or input; 1 before the first window."""
    last_removed: int
    """The `seq` of the newest exchange or input that left."""


class HistoryAbandoned(Event, frozen=True, kw_only=True, tag="decision_history_abandoned"):
    """An attempt failed or was stopped; its entries are in no window. The counts are those of its last request."""

    message_count: int
    bytes: int
    first_abandoned: int
    reason: str
    """
    An enumerated reason: `failed`, `cancelled`, `refused`, or `too_large` where what must be sent exceeds a limit of
    ours or of the model.
    """


class ProviderContextCount(Event, frozen=True, kw_only=True, tag="provider_context_count"):
    """A request was counted before it was generated (SPEC D16)."""

    provider: str
    """`openai`, `anthropic` or `google`."""
    count: int
    """Input tokens by the provider's counting endpoint."""
    reservation: int
    """Tokens that the request would take of the window, multiplier, margin and output allowance worked in."""
    window: int
    fits: bool


class HistorySummary(Event, frozen=True, kw_only=True, tag="decision_history_summary"):
    """A summary stands for exchanges that left; the record holds them. The counts are those of the window now."""

    message_count: int
    bytes: int
    exchanges: int
    """How many exchanges it covers in all."""
    newly_covered: int
    summary_bytes: int


class HistoryResumed(Event, frozen=True, kw_only=True, tag="decision_history_resumed"):
    """An invocation goes on from a checkpoint. The counts are those of the window of its first request (SPEC D25)."""

    message_count: int
    bytes: int
    resumed_without_messages: bool
    """Whether its messages are gone, as after the end of a process with a history in RAM: observations go as data."""


class ReasoningWithheld(Event, frozen=True, kw_only=True, tag="provider_reasoning_withheld"):
    """The provider withheld reasoning that was sent to it from the model: it is stale. The counts are the window's."""

    message_count: int
    bytes: int
    blocks: int
    """How many reasoning blocks or items the provider says it withheld."""
