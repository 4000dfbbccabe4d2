"""
Face E: an engine's history policy.

An engine takes turns for reasons, records what came of each, and makes the context of the next one anew from what its
session retains. The policy is a `HistoryConfig`; what it does to a record is told in `sessions`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, cast

from minutebook.engine_config import HistoryConfig
from minutebook.errors import HistoryMessageTooLong, InvalidMessage, InvalidOption
from minutebook.model.bounds import check_count
from minutebook.model.turns import HistoryEntry, LLMContextMessage, Meta, TurnReason, TurnResponse, type_of, user_intent
from minutebook.sessions import HistoryManager
from minutebook.stores.journal import JournalStore
from minutebook.stores.opening import MemoryStore

if TYPE_CHECKING:
    from minutebook.model.codec import JSON

__all__ = [
    "Engine",
    "EngineTurn",
    "HistoryConfig",
    "HistoryManager",
    "HistoryStore",
    "Respond",
    "create_history_manager",
    "create_in_memory_store",
]


HistoryStore = JournalStore
"""What keeps the sessions: any store of the package."""


def create_in_memory_store(namespace: str = "engine") -> MemoryStore:
    """Return a store in RAM for local work and tests; an engine never takes one by itself (SPEC E2)."""
    return MemoryStore(namespace)


def create_history_manager(config: HistoryConfig[Meta]) -> HistoryManager[Meta]:
    """Return the manager of a policy, without an engine's boundary checks (SPEC E5, E8)."""
    return HistoryManager(config)


class EngineTurn:
    """One turn that is to be responded to: its session, its reasons, and the context that it is taken in."""

    def __init__(self, manager: HistoryManager[Any], session: str, reasons: tuple[TurnReason, ...]) -> None:
        """Name the turn; its context is read when it is asked for."""
        self._manager = manager
        self.session = session
        self.reasons = reasons

    @property
    def user_intent(self) -> str:
        """What the user wants, as the default projection will show it once the turn is recorded."""
        return user_intent(self.reasons)

    async def get_llm_context(self) -> list[LLMContextMessage]:
        """Return the session's context, without this turn."""
        return await self._manager.get_llm_context(self.session)


Respond: TypeAlias = Callable[[EngineTurn], Awaitable[TurnResponse | str] | TurnResponse | str]


class Engine(Generic[Meta]):
    """
    Takes turns and records them by a history policy.

    Args:
        history: the policy; its bounds are positive or `None` here (SPEC E5).
        respond: given each turn, returns its response, or just the message for the user; plain or a coroutine function.

    Raises:
        InvalidOption: a bound that is not positive, or a `respond` that cannot be called.
        BlockingMismatch: the policy's store is one of `minutebook.sync`.
    """

    _managing = HistoryManager

    def __init__(self, *, history: HistoryConfig[Meta], respond: Respond) -> None:
        if not isinstance(history, HistoryConfig):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption("history is a HistoryConfig with a store of your choice", option="history")
        for name, bound in (("max_entries", history.max_entries), ("max_chars", history.max_chars)):
            if bound is not None:
                check_count(bound, name)
        if not callable(respond):
            raise InvalidOption("respond is a function of a turn", option="respond")
        self.history = self._managing(history)
        self._respond = respond

    async def turn(
        self,
        session: str,
        reasons: str | Sequence[TurnReason],
        *,
        details: JSON = None,
        id: str = "",  # noqa: A002 - the field's standard word
    ) -> HistoryEntry[Meta]:
        """
        Have a turn responded to, record it whole, and return it as it is recorded.

        The session is reserved meanwhile. Whatever fails goes on as it is, and of the turn nothing is recorded but the
        mark of a failed attempt (SPEC E8). The same turn again under one `id` is recorded once and responded to no
        more: whoever does not know how a call ended makes it again.

        Raises:
            DecisionHistoryBusy: another turn of the session is under way, or one that crashed was; see `recover`.
            DecisionHistoryConflict: the `id` stands for another entry: an injection, or a turn with other reasons or
                details.
            DecisionHistoryAbsent: the turn of this `id` was recorded and has left the record since.
            HistoryMessageTooLong: the response's message has more than `max_chars` characters.
            InvalidMessage: no reasons or no response.
        """
        asked = EngineTurn(self.history, session, _checked_reasons(reasons))

        def taken(response: TurnResponse) -> HistoryEntry[Meta]:
            return HistoryEntry(kind="turn", reasons=asked.reasons, response=response, details=details)

        async def respond() -> HistoryEntry[Meta]:
            given = self._respond(asked)
            response = await given if inspect.isawaitable(given) else given
            response = TurnResponse(user_message=response) if isinstance(response, str) else response
            if type(response) is not TurnResponse:
                raise InvalidMessage(f"respond returns a TurnResponse or a text, not {type_of(response)}", path="$")
            self._refuse_too_long(response.user_message)
            return taken(response)

        return await self.history.record(session, respond, id=id, given=taken(TurnResponse(user_message="")))

    async def inject(
        self,
        session: str,
        message: str,
        *,
        details: JSON = None,
        id: str = "",  # noqa: A002 - the field's standard word
    ) -> HistoryEntry[Meta]:
        """
        Record a message that no turn answered, and return its entry as it is recorded; once under one `id`.

        Raises:
            DecisionHistoryConflict: the `id` stands for another entry.
            DecisionHistoryAbsent: what was recorded under this `id` has left the record since.
            HistoryMessageTooLong: it has more than `max_chars` characters; nothing was read or written.
            InvalidMessage: it is no text, or an empty one.
            DecisionHistoryBusy: a turn of the session is under way.
        """
        if type(message) is not str:
            raise InvalidMessage(f"a message is a text, not {type_of(message)}", path="$.message")
        self._refuse_too_long(message)
        entry: HistoryEntry[Meta] = HistoryEntry(kind="injection", message=message, details=details)
        return await self.history.append(session, entry, id=id)

    async def get_llm_context(self, session: str) -> list[LLMContextMessage]:
        """Return what a model sees of a session; see `HistoryManager.get_llm_context`."""
        return await self.history.get_llm_context(session)

    def _refuse_too_long(self, message: str) -> None:
        limit = self.history.config.max_chars
        if limit is not None and len(message) > limit:
            raise HistoryMessageTooLong(
                f"an assistant message of {len(message):,} characters, max_chars {limit:,}; shorten it, or raise "
                "max_chars",
                chars=len(message),
                limit=limit,
            )


def _checked_reasons(reasons: object) -> tuple[TurnReason, ...]:
    given = (TurnReason(text=reasons),) if isinstance(reasons, str) else reasons
    if not isinstance(given, (tuple, list)) or not given:
        raise InvalidMessage("a turn has reasons: a text, or TurnReason values", path="$.reasons")
    for position, reason in enumerate(cast("Sequence[object]", given)):
        if type(reason) is not TurnReason:  # before `respond` is paid for, which looks into them
            raise InvalidMessage(f"a reason is a TurnReason, not {type_of(reason)}", path=f"$.reasons[{position}]")
    return tuple(cast("Sequence[TurnReason]", given))
