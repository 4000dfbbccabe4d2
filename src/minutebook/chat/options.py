"""
What an agent is made with, checked where it is given.

Nothing is opened or asked here; a value that comes back is one that the chat can take as it is.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from minutebook.errors import InvalidMessage, InvalidOption
from minutebook.model import codec
from minutebook.model.bounds import check_count, check_flag, checked_limits
from minutebook.model.colours import check_plain
from minutebook.model.shown import type_alone
from minutebook.model.summaries import Covered, bracketed, checked_summary, too_long
from minutebook.policy.compaction import most_of_window, summary_size
from minutebook.providers.chat import checked_message, plain_name
from minutebook.providers.openai_chat import CHAT
from minutebook.runtime.capabilities import Capability, capability

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from minutebook.model.bounds import WindowLimits
    from minutebook.model.chat_messages import ConversationMessage
    from minutebook.model.codec import JSON
    from minutebook.stores.journal import JournalStore


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """
    What an agent is and how its chat is kept (SPEC A1).

    Raises:
        InvalidOption: one that is out of its range; the message names it.
    """

    name: str
    goal: str
    model: str
    max_history_messages: int
    auto_manage_history: bool
    enable_summarization: bool
    summarization_threshold: int
    summarization_model: str | None
    max_output_tokens: int | None
    extra_body: Mapping[str, JSON] | None
    limits: WindowLimits | None = None

    __repr__ = type_alone

    def __post_init__(self) -> None:
        for option in ("name", "goal", "model", "summarization_model"):
            value: object = getattr(self, option)
            if (value is not None or option != "summarization_model") and not codec.text(value, option).strip():
                raise InvalidOption(f"{option} is a text that says something", option=option)
        for option in ("max_history_messages", "summarization_threshold", "max_output_tokens"):
            value = getattr(self, option)
            if value is not None or option != "max_output_tokens":
                check_count(value, option)
        check_flag(self.auto_manage_history, "auto_manage_history")
        check_flag(self.enable_summarization, "enable_summarization")
        checked_limits(self.limits)
        _ = self.extra

    @property
    def prompt(self) -> str:
        """What each request opens with; it is no part of the history."""
        return f"You are {self.name}.\nYour goal: {self.goal}"

    @property
    def request_limits(self) -> WindowLimits:
        """
        What the messages of one request may be: as given, else the core's limits.

        Those have room for as many messages as the history was told to have.
        """
        limits = checked_limits(self.limits)
        if self.limits is not None:
            return limits
        return msgspec.structs.replace(limits, max_messages=max(limits.max_messages, self.max_history_messages))

    @property
    def extra(self) -> dict[str, bytes]:
        """Further fields of each request, of which none may be one that an agent sets."""
        given = cast("object", {} if self.extra_body is None else self.extra_body)
        if not isinstance(given, Mapping):
            raise InvalidOption(f"extra_body is a mapping of fields, not {type(given).__name__}", option="extra_body")
        extra = cast("Mapping[str, JSON]", given)
        for name in extra:
            if name in CHAT.own:
                raise InvalidOption(f"the field {name!r} is set by the agent", option=name)
        return {codec.text(name, "extra_body"): codec.encode(value) for name, value in extra.items()}


def given_id(conversation: str | None, store: object) -> str:
    """
    Return a conversation's id; a fresh UUID for one that ends with its agent.

    Raises:
        InvalidOption: none, for a conversation that is kept in a store of the caller's: nobody would find it again.
    """
    if conversation is None and store is not None:
        raise InvalidOption(
            "store= keeps a conversation to come back to, under an id of yours: give conversation= too, and "
            "conversation=str(uuid.uuid4()) for a new one each time",
            option="conversation",
        )
    return str(uuid.uuid4()) if conversation is None else conversation


SUMMARY_BYTES: Final = 16_384
"""UTF-8 bytes that a summary may have."""

_STATE: Final = {"history": list, "agent_id": str, "agent_name": str, "timestamp": int}
"""The fields of a state beside its summary, and what each of them is."""


def asked(text: object, context: object, name: str | None) -> tuple[ConversationMessage, str | None]:
    """
    Return what a user says as a message of a history, and what is told for it alone; `None` for nothing, or blanks.

    Raises:
        InvalidMessage: no text, a blank one, or a name that is none.
        InvalidValue: a context that is no text.
    """
    message = checked_message({"role": "user", "content": cast("JSON", text), "name": name})
    told = "" if context is None else codec.text(context, "context")
    return message, told if told.strip() else None


def chat_summary(text: object, limits: WindowLimits) -> str:
    """
    Return what was written or given as a chat's summary, if it is one that requests within `limits` have room for.

    Raises:
        DecisionHistorySummaryInvalid: no text, an empty one, one of more than 16 KiB, or one that would fill more than
            half of a request.
    """
    checked = checked_summary(text, SUMMARY_BYTES, "make it shorter")
    size, most = summary_size(bracketed(checked, Covered(), 0, ())), most_of_window(limits.max_bytes)
    if size > most:
        raise too_long(size, most, "which is half of what a request holds; make it shorter, or raise limits=")
    return checked


def given_summary(text: object, limits: WindowLimits) -> str | None:
    """Return a summary's text, `None` for none. Raises as `chat_summary`."""
    return None if text is None else chat_summary(text, limits)


def kept_count(value: object) -> int:
    """Return how many messages are to stay whole, once that is a number of them."""
    if type(value) is not int or value < 0:
        raise InvalidOption("keep_recent_count is an int of at least 0", option="keep_recent_count")
    return value


def given_tools(tools: Sequence[Callable[..., Any]], *, blocking: bool = False) -> list[Capability[..., Any]]:
    """
    Return functions as capabilities of a chat, which has no authority, memory or human beside it.

    Raises:
        InvalidOption: no list, a function that needs one of these, or one whose parameters no JSON can fill.
        BlockingMismatch: a coroutine function where `blocking`.
    """
    if isinstance(tools, (str, bytes, dict)) or not isinstance(tools, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption(
            f"tools is a list of typed functions, not a {type(tools).__name__}; write tools=[function]", option="tools"
        )
    found: list[Capability[..., Any]] = [
        cast("Capability[..., Any]", each) if isinstance(each, Capability) else capability()(each) for each in tools
    ]
    for each in found:
        if blocking:
            check_plain(each.function, f"the tool {each.name!r}")
        if each.needs_approval or each.memory or each.agent is not None or each.needed:
            raise InvalidOption(
                f"the tool {each.name!r} needs approval, authority, memory or another agent, which a chat has not; "
                "use Runtime with a decision provider",
                option="tools",
            )
    return found


def given_store(store: object, *, blocking: bool) -> JournalStore:
    """Return the store that a chat is kept in; a fresh one in RAM where none was given, `blocking` if it is used so."""
    from minutebook.stores.journal import checked_store, driven
    from minutebook.stores.opening import MemoryStore

    if store is not None:
        return checked_store(store)
    return driven(MemoryStore("agents")) if blocking else MemoryStore("agents")


def given_messages(messages: object) -> list[ConversationMessage]:
    """Return a list of messages, each of them checked."""
    if not isinstance(messages, (list, tuple)):
        raise InvalidMessage(f"a history is a list of messages, not {type(messages).__name__}", path="$")
    given = cast("Sequence[object]", messages)
    return [checked_message(message, f"$[{place}]") for place, message in enumerate(given)]


def given_state(state: object, limits: WindowLimits) -> tuple[list[ConversationMessage], str | None]:
    """Return the messages and the summary of an exported state, checked."""
    if not isinstance(state, Mapping):
        raise InvalidOption(
            f"a state is what export_conversation_state returned, not {type(state).__name__}", option="state"
        )
    given = dict(cast("Mapping[object, JSON]", state))
    for field in given:
        if field not in (*_STATE, "summary"):
            told = plain_name(field)
            raise InvalidOption(f"a state has {', '.join(_STATE)} and summary, and no field {told!r}", option=told)
    for field in (*_STATE, "summary"):
        if field not in given:
            raise InvalidOption(
                f"the field {field!r} of a state is missing; a history alone is for set_history", option=field
            )
    for field, kind in _STATE.items():
        if type(given[field]) is not kind:
            raise InvalidOption(
                f"the field {field!r} of a state is a {kind.__name__}, not a {type(given[field]).__name__}",
                option=field,
            )
    history = cast("list[JSON]", given["history"])
    messages = [checked_message(message, f"$.history[{place}]") for place, message in enumerate(history)]
    return messages, given_summary(given["summary"], limits)
