"""An engine's history for blocking callers: its policy, its sessions and its turns without an event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeAlias

from minutebook import engine as asynchronous
from minutebook.model.colours import check_plain
from minutebook.model.turns import Meta
from minutebook.stores import journal
from minutebook.sync.driving import Over, blocking, drive, streaming
from minutebook.sync.stores import JournalStore, MemoryStore, core_of

if TYPE_CHECKING:
    from minutebook.model.turns import HistoryEntry, TurnResponse

HistoryStore = JournalStore
"""What keeps the sessions: any store of `minutebook.sync`."""


def create_in_memory_store(namespace: str = "engine") -> MemoryStore:
    """Return a store in RAM for local work and tests: see `minutebook.create_in_memory_store`."""
    return MemoryStore(namespace)


class HistoryConfig(asynchronous.HistoryConfig[Meta], Generic[Meta], frozen=True, kw_only=True):
    """What an engine keeps and shows: see `minutebook.HistoryConfig`; its functions are plain ones here."""

    store: JournalStore  # type: ignore[assignment]  # pyright: ignore[reportIncompatibleVariableOverride]
    """Where sessions are kept, a store of `minutebook.sync`."""

    def __post_init__(self) -> None:
        check_plain(self.transform_entry, "transform_entry")
        check_plain(self.derive_llm_context, "derive_llm_context")
        super().__post_init__()

    def core_store(self) -> journal.JournalStore:
        """Return the store that the given one drives. Raises as `minutebook.HistoryConfig.core_store`."""
        if isinstance(self.store, (JournalStore, journal.JournalStore)):  # pyright: ignore[reportUnnecessaryIsInstance]
            return core_of(self.store)
        return super().core_store()


class _Managing(asynchronous.HistoryManager[Meta]):
    """The coroutines of a manager over a store that never suspends them."""

    _blocking = True


class _Engine(asynchronous.Engine[Meta]):
    """The coroutines of an engine over such a manager."""

    _managing = _Managing


class HistoryManager(Over[asynchronous.HistoryManager[Meta]], Generic[Meta]):
    """The entries of sessions, and the contexts made of them: see `minutebook.HistoryManager`."""

    def __init__(self, config: HistoryConfig[Meta]) -> None:
        """Keep the policy; nothing is read or written yet."""
        self._core = _Managing(config)
        self.config = config

    append = blocking(asynchronous.HistoryManager[Meta].append)

    def record(
        self,
        session: str,
        make: Callable[[], HistoryEntry[Meta]],
        *,
        id: str = "",  # noqa: A002
        given: HistoryEntry[Meta] | None = None,
        generates: bool = True,
    ) -> HistoryEntry[Meta]:
        """Have an entry made, record it and return it: see `minutebook.HistoryManager.record`."""

        async def made() -> HistoryEntry[Meta]:
            return make()

        return drive(self._core.record(session, made, id=id, given=given, generates=generates))

    get_llm_context = blocking(asynchronous.HistoryManager[Meta].get_llm_context)
    entries = streaming(asynchronous.HistoryManager[Meta].entries)


def create_history_manager(config: HistoryConfig[Meta]) -> HistoryManager[Meta]:
    """Return the manager of a policy: see `minutebook.create_history_manager`."""
    return HistoryManager(config)


class EngineTurn(Over[asynchronous.EngineTurn]):
    """One turn that is to be responded to: see `minutebook.EngineTurn`."""

    def __init__(self, core: asynchronous.EngineTurn) -> None:
        """Name the turn; its context is read when it is asked for."""
        self._core = core
        self.session = core.session
        self.reasons = core.reasons

    @property
    def user_intent(self) -> str:
        """What the user wants, as the default projection will show it once the turn is recorded."""
        return self._core.user_intent

    get_llm_context = blocking(asynchronous.EngineTurn.get_llm_context)


Respond: TypeAlias = Callable[[EngineTurn], "TurnResponse | str"]


class Engine(Over[asynchronous.Engine[Meta]], Generic[Meta]):
    """Takes turns and records them by a history policy: see `minutebook.Engine`; `respond` is a plain function here."""

    def __init__(self, *, history: HistoryConfig[Meta], respond: Respond) -> None:
        def responds(turn: asynchronous.EngineTurn) -> TurnResponse | str:
            return respond(EngineTurn(turn))

        self._core = _Engine(history=history, respond=responds if callable(respond) else respond)
        self.history = HistoryManager(history)
        self._core.history = self.history._core  # one manager, so that what it learnt of a session is learnt once

    turn = blocking(asynchronous.Engine[Meta].turn)
    inject = blocking(asynchronous.Engine[Meta].inject)
    get_llm_context = blocking(asynchronous.Engine[Meta].get_llm_context)
