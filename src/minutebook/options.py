"""
What a decision provider keeps and sends: the options of its history, and the store that they stand for.

Nothing is opened before it is asked for, and every bound is looked at where it is given.
"""

from __future__ import annotations

from datetime import timedelta

import msgspec

from minutebook.errors import InvalidOption
from minutebook.model.bounds import WINDOW_BYTES, StoreBounds, WindowLimits, check_count, check_retained, ttl_ms
from minutebook.model.colours import check_plain, check_store_colour
from minutebook.model.events import check_observer
from minutebook.model.keys import check_id
from minutebook.model.summaries import SUMMARY_BYTES
from minutebook.policy.compaction import summarising
from minutebook.ports import Observer, Summarize
from minutebook.stores.journal import JournalStore, driven

DEFAULT_NAMESPACE = "decisions"
"""The namespace of a provider's own RAM store, which nothing else can reach."""

RETAINED_BYTES = 8 * 1024 * 1024
MAX_SESSIONS = 128
MAX_STORE_BYTES = 32 * 1024 * 1024
TTL = timedelta(hours=1)


class HistoryOptions(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a provider keeps and sends (SPEC D4, D6, D7).

    Raises:
        InvalidOption: a bound that is none, a retention below a window that is not the default one, a namespace without
            a store, or a bound of the RAM store beside a store.
    """

    max_messages: int = 128
    """Wire messages sent at most; tools and instructions are not counted."""
    max_bytes: int = WINDOW_BYTES
    """UTF-8 bytes of the sent messages' JSON at most."""
    low_water: float = 1.0
    """
    How far a window is cut when a limit bites, as a fraction of it; then it grows again, and its start stays (SPEC B3).
    Below 1 a prompt cache stays warm, reasoning stays bound to what it was made behind, and summaries are few.
    """
    max_retained_bytes: int | None = None
    """Payload bytes that one conversation may retain: 8 MiB, or the RAM store's bound where that is smaller."""
    on_event: Observer | None = None
    """Told of what leaves the window and of what is abandoned, by numbers alone; what it raises is kept from us."""
    store: JournalStore | None = None
    """Where conversations are kept; without one, in RAM, in a store of the provider's own."""
    namespace: str | None = None
    """The store's namespace, from trusted configuration, where the store itself has none (SPEC D21)."""
    summarize: Summarize | None = None
    """Makes a summary of what leaves the window, to stand there in its place (SPEC D17, D18); none by default."""
    max_summary_bytes: int = SUMMARY_BYTES
    """How long that may be, in UTF-8 bytes."""
    max_sessions: int | None = None
    """The RAM store's bound on conversations: 128."""
    max_store_bytes: int | None = None
    """The RAM store's bound on bytes in all: 32 MiB."""
    ttl: timedelta | float | None = None
    """How long the RAM store keeps a conversation that is not written to, as a `timedelta` or seconds: one hour."""

    def __post_init__(self) -> None:
        window_limits(self)
        for name, bound in (("max_sessions", self.max_sessions), ("max_store_bytes", self.max_store_bytes)):
            if bound is not None:
                check_count(bound, name)
        if self.max_retained_bytes is not None:
            check_retained(self.max_retained_bytes, self.max_bytes)
        check_observer(self.on_event)
        summarising(self.summarize, self.max_summary_bytes, self.max_bytes, str)
        if self.store is None:
            self._bounds()
            if self.namespace is not None:
                raise InvalidOption("a namespace without a store; the RAM store has its own", option="namespace")
        for name, given in self._own_bounds():
            if self.store is not None and given is not None:
                raise InvalidOption(f"{name} bounds the RAM store; a store of your own has its own bounds", option=name)

    @property
    def retained_bytes(self) -> int:
        """What one conversation may retain, the default worked in: a window that was chosen larger has its room."""
        if self.max_retained_bytes is not None:
            return self.max_retained_bytes
        return min(max(RETAINED_BYTES, self.max_bytes), self.max_store_bytes or MAX_STORE_BYTES)

    def _own_bounds(self) -> tuple[tuple[str, object], ...]:
        return (("max_sessions", self.max_sessions), ("max_store_bytes", self.max_store_bytes), ("ttl", self.ttl))

    def _bounds(self) -> StoreBounds:
        return StoreBounds(
            max_sessions=MAX_SESSIONS if self.max_sessions is None else self.max_sessions,
            max_bytes=MAX_STORE_BYTES if self.max_store_bytes is None else self.max_store_bytes,
            max_retained_bytes=self.retained_bytes,
            ttl_ms=ttl_ms(TTL if self.ttl is None else self.ttl),
        )

    def open_store(self, *, blocking: bool = False) -> JournalStore:
        """
        Return the store with its namespace; a fresh RAM store when none was given, `blocking` if it is used so.

        Raises:
            InvalidOption: no store of this package, no namespace, or two that differ.
        """
        from minutebook.stores.memory import MemoryJournal  # no journal is loaded before one is needed

        given = self.core_store()
        if given is None:
            store = JournalStore(MemoryJournal(self._bounds()), namespace=DEFAULT_NAMESPACE)
            return driven(store) if blocking else store
        if not isinstance(given, JournalStore):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(
                f"store is a store of minutebook, not a {type(given).__module__}.{type(given).__name__}",
                option="store",
            )
        store = given if self.namespace is None else given.within(check_id(self.namespace, "namespace"))
        check_id(store.namespace, "namespace")
        return store

    def core_store(self) -> JournalStore | None:
        """Return the store that was given, as coroutines use it; `None` without one."""
        return self.store


def window_limits(options: HistoryOptions) -> WindowLimits:
    """
    Return the limits of a window.

    Raises:
        InvalidOption: a bound that is none.
    """
    if options.low_water is None:  # pyright: ignore[reportUnnecessaryComparison] - nothing checks a caller's types
        raise InvalidOption("low_water must be a number above 0 and at most 1", option="low_water")
    return WindowLimits(max_messages=options.max_messages, max_bytes=options.max_bytes, low_water=options.low_water)


def check_history_colour(history: object, *, blocking: bool) -> None:
    """
    Refuse options whose store or callback is not for the provider that they are given to.

    Raises:
        BlockingMismatch: a store of the other colour, or where `blocking` a `summarize` that is a coroutine function.
    """
    if isinstance(history, HistoryOptions):
        check_store_colour(history.store, "history", blocking=blocking)
        if blocking:
            check_plain(history.summarize, "summarize")


def given_options(history: object) -> HistoryOptions | None:
    """
    Return what a provider was given as `history`: options, the defaults for `None`, and `None` for `False`.

    Raises:
        InvalidOption: it is none of these.
    """
    if history is None:
        return HistoryOptions()
    if history is False:
        return None
    if isinstance(history, HistoryOptions):
        return history
    raise InvalidOption("history is a HistoryOptions, or False for none", option="history")
