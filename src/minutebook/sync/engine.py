"""An engine's history for blocking callers: its policy, its sessions and its turns without an event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeAlias

from minutebook import engine as asynchronous
from minutebook.model.colours import check_plain
from minutebook.model.turns import Meta
from minutebook.sync.driving import Over, blocking, drive, iterate
from minutebook.sync.stores import JournalStore, MemoryStore, core_of

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from minutebook.model.codec import JSON
    from minutebook.model.turns import Derive, HistoryEntry, LLMContextMessage, Transform, TurnReason, TurnResponse

HistoryStore = JournalStore
"""What keeps the sessions: any store of `minutebook.sync`."""


def create_in_memory_store(namespace: str = "engine") -> MemoryStore:
    """Return a store in RAM for local work and tests: see `minutebook.create_in_memory_store`."""
    return MemoryStore(namespace)


def HistoryConfig(  # noqa: N802 - it stands for the class, and makes one
    *,
    store: JournalStore,
    max_entries: int | None = None,
    max_chars: int | None = None,
    transform_entry: Transform[Meta] | None = None,
    derive_llm_context: Derive[Meta] | None = None,
    keep_truncated: bool = False,
    metadata: type[Meta] | None = None,
) -> asynchronous.HistoryConfig[Meta]:
    """Return a `minutebook.HistoryConfig` over a blocking store; its functions are plain ones."""
    check_plain(transform_entry, "transform_entry")
    check_plain(derive_llm_context, "derive_llm_context")
    return asynchronous.HistoryConfig(
        store=core_of(store),
        max_entries=max_entries,
        max_chars=max_chars,
        transform_entry=transform_entry,
        derive_llm_context=derive_llm_context,
        keep_truncated=keep_truncated,
        metadata=metadata,
    )


class _Managing(asynchronous.HistoryManager[Meta]):
    """The coroutines of a manager over a store that never suspends them."""

    _blocking = True


class _Engine(asynchronous.Engine[Meta]):
    """The coroutines of an engine over such a manager."""

    _managing = _Managing


class HistoryManager(Generic[Meta]):
    """The entries of sessions, and the contexts made of them: see `minutebook.HistoryManager`."""

    def __init__(self, config: asynchronous.HistoryConfig[Meta]) -> None:
        """Keep the policy; nothing is read or written yet."""
        self._core: asynchronous.HistoryManager[Meta] = _Managing(config)
        self.config = config

    def append(self, session: str, entry: HistoryEntry[Meta], *, id: str = "") -> HistoryEntry[Meta]:  # noqa: A002
        """Record an entry, transformed, and return it: see `minutebook.HistoryManager.append`."""
        return drive(self._core.append(session, entry, id=id))

    def record(
        self,
        session: str,
        make: Callable[[], HistoryEntry[Meta]],
        *,
        id: str = "",  # noqa: A002
        generates: bool = True,
    ) -> HistoryEntry[Meta]:
        """Have an entry made, record it and return it: see `minutebook.HistoryManager.record`."""

        async def made() -> HistoryEntry[Meta]:
            return make()

        return drive(self._core.record(session, made, id=id, generates=generates))

    def get_llm_context(self, session: str) -> list[LLMContextMessage]:
        """Return what a model sees of a session: see `minutebook.HistoryManager.get_llm_context`."""
        return drive(self._core.get_llm_context(session))

    def entries(self, session: str) -> Generator[HistoryEntry[Meta], None, None]:
        """Stream the entries of a session's record, oldest first: see `minutebook.HistoryManager.entries`."""
        return iterate(self._core.entries(session))


def create_history_manager(config: asynchronous.HistoryConfig[Meta]) -> HistoryManager[Meta]:
    """Return the manager of a policy: see `minutebook.create_history_manager`."""
    return HistoryManager(config)


class _ManagerOfEngine(HistoryManager[Meta]):
    """The manager that an engine has already."""

    def __init__(self, core: asynchronous.HistoryManager[Meta]) -> None:
        self._core = core
        self.config = core.config


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


class Engine(Generic[Meta]):
    """Takes turns and records them by a history policy: see `minutebook.Engine`; `respond` is a plain function here."""

    def __init__(self, *, history: asynchronous.HistoryConfig[Meta], respond: Respond) -> None:
        def responds(turn: asynchronous.EngineTurn) -> TurnResponse | str:
            return respond(EngineTurn(turn))

        self._core = _Engine(history=history, respond=responds if callable(respond) else respond)
        self.history: HistoryManager[Meta] = _ManagerOfEngine(self._core.history)

    def turn(
        self,
        session: str,
        reasons: str | Sequence[TurnReason],
        *,
        details: JSON = None,
        id: str = "",  # noqa: A002
    ) -> HistoryEntry[Meta]:
        """Have a turn responded to, and record it whole: see `minutebook.Engine.turn`."""
        return drive(self._core.turn(session, reasons, details=details, id=id))

    def inject(self, session: str, message: str, *, details: JSON = None, id: str = "") -> HistoryEntry[Meta]:  # noqa: A002
        """Record a message that no turn answered: see `minutebook.Engine.inject`."""
        return drive(self._core.inject(session, message, details=details, id=id))

    def get_llm_context(self, session: str) -> list[LLMContextMessage]:
        """Return what a model sees of a session: see `minutebook.Engine.get_llm_context`."""
        return drive(self._core.get_llm_context(session))
