"""Stores for blocking callers: each holds its asynchronous twin over a journal whose methods never suspend."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeVar

from minutebook.errors import BlockingMismatch, InvalidOption
from minutebook.model.colours import Closing
from minutebook.stores import journal as asynchronous
from minutebook.stores import opening
from minutebook.stores.clock import system_clock
from minutebook.stores.opening import (
    DECISION_BYTES,
    DECISION_SESSIONS,
    DECISION_TTL_SECONDS,
    RedisOptions,
    host_journal,
    memory_journal,
    postgres_journal,
    redis_journal,
    sqlite_journal,
    store_bounds,
)
from minutebook.stores.urls import open_in
from minutebook.sync.driving import Over, blocking, drive, plain, streaming

if TYPE_CHECKING:
    import os
    import sqlite3
    from collections.abc import Callable, Mapping
    from datetime import timedelta
    from typing import NoReturn, Self

    from minutebook import ports
    from minutebook.model.colours import Colour
    from minutebook.model.keys import ConversationKey
    from minutebook.model.record import Record
    from minutebook.model.transfer import Copied
    from minutebook.stores.transfer import Progress

Result = TypeVar("Result")


class JournalStore(Closing, Over[asynchronous.JournalStore]):
    """What all blocking stores are: see `minutebook.stores.journal.JournalStore`."""

    _colour: Colour = "blocking"

    def __init__(self, core: asynchronous.JournalStore) -> None:
        """Wrap a store whose journal never suspends."""
        self._core = asynchronous.driven(core)

    @property
    def namespace(self) -> str:
        """The namespace that every conversation of this store is in."""
        return self._core.namespace

    @property
    def durable(self) -> bool:
        """Whether a commit that returned survives a power cut, as far as this is known."""
        return self._core.durable

    key = plain(asynchronous.JournalStore.key)
    fresh_id = plain(asynchronous.JournalStore.fresh_id)
    read = blocking(asynchronous.JournalStore.read)
    entries = streaming(asynchronous.JournalStore.entries)
    receipts = streaming(asynchronous.JournalStore.receipts)
    delete = blocking(asynchronous.JournalStore.delete)
    receipt = blocking(asynchronous.JournalStore.receipt)
    recover = blocking(asynchronous.JournalStore.recover)
    header = blocking(asynchronous.JournalStore.header)
    list = blocking(asynchronous.JournalStore.list)
    totals = blocking(asynchronous.JournalStore.totals)
    verify = blocking(asynchronous.JournalStore.verify)
    drop_summary = blocking(asynchronous.JournalStore.drop_summary)
    export = blocking(asynchronous.JournalStore.export)
    import_ = blocking(asynchronous.JournalStore.import_)
    close = blocking(asynchronous.JournalStore.close)

    def within(self, namespace: str) -> Self:
        """See `JournalStore.within`."""
        view = object.__new__(type(self))
        view._core = self._core.within(namespace)
        return view

    def transact(
        self,
        key: ConversationKey,
        operation: Callable[[Record | None], tuple[Record | None, Result]],
        *,
        format: str = "record",  # noqa: A002 - the field's standard word
    ) -> Result:
        """See `JournalStore.transact`; `operation` is a plain function here."""

        async def awaited(record: Record | None) -> tuple[Record | None, Result]:
            return operation(record)

        given = awaited if callable(operation) else operation
        return drive(self._core.transact(key, given, format=format))

    def copy(self, key: ConversationKey, target: JournalStore, *, progress: Progress | None = None) -> Copied:
        """See `JournalStore.copy`."""
        return drive(self._core.copy(key, core_of(target), progress=progress))

    @property
    def journal(self) -> NoReturn:
        """
        Nothing: what is asked for here belongs to the asynchronous twin.

        Raises:
            BlockingMismatch: a blocking store was given to an asynchronous conversation or provider.
        """
        raise BlockingMismatch(
            "a store of minutebook.sync was given to an asynchronous object; take both from minutebook or both from "
            "minutebook.sync"
        )


class MemoryStore(JournalStore):
    """A store in RAM: see `minutebook.MemoryStore`."""

    def __init__(
        self,
        namespace: str = "memory",
        *,
        max_sessions: int | None = None,
        max_bytes: int | None = None,
        max_retained_bytes: int | None = None,
        ttl: timedelta | float | None = None,
        clock: Callable[[], int] = system_clock,
    ) -> None:
        bounds = store_bounds(max_sessions, max_bytes, max_retained_bytes, ttl)
        super().__init__(asynchronous.JournalStore(memory_journal(bounds, clock), namespace=namespace, clock=clock))


class SQLiteStore(JournalStore):
    """A store in one private SQLite file, or on a connection of the host's: see `minutebook.SQLiteStore`."""

    def __init__(
        self,
        filename: str | os.PathLike[str] | None = None,
        *,
        database: sqlite3.Connection | None = None,
        namespace: str | None = None,
        max_sessions: int | None = None,
        max_bytes: int | None = None,
        max_retained_bytes: int | None = None,
        ttl: timedelta | float | None = None,
        clock: Callable[[], int] = system_clock,
    ) -> None:
        bounds = store_bounds(max_sessions, max_bytes, max_retained_bytes, ttl)
        journal = sqlite_journal(filename, database, namespace, bounds, clock, blocking=True)
        super().__init__(asynchronous.JournalStore(journal, namespace=namespace, clock=clock))


class RedisStore(JournalStore):
    """A store on a Redis or Valkey server, or on a cluster of them: see `minutebook.RedisStore`."""

    def __init__(
        self,
        url: str,
        *,
        namespace: str | None = None,
        cluster: bool | None = None,
        timeout: float = 5.0,
        max_connections: int = 16,
        client_options: Mapping[str, Any] | None = None,
        max_sessions: int | None = None,
        max_bytes: int | None = None,
        max_retained_bytes: int | None = None,
        ttl: timedelta | float | None = None,
    ) -> None:
        bounds = store_bounds(max_sessions, max_bytes, max_retained_bytes, ttl)
        options = RedisOptions(cluster, timeout, max_connections, client_options)
        journal = redis_journal(url, options, bounds, blocking=True)
        super().__init__(asynchronous.JournalStore(journal, namespace=namespace))


class HostStore(JournalStore):
    """
    A store in a database of the host's own: see `minutebook.HostStore`.

    The host's `transact` stays `async def`, and waits for nothing but `operation`, which finishes at once: it blocks in
    its driver instead. One that waits for an event loop is refused at its first call with `BlockingMismatch`.
    """

    def __init__(
        self,
        store: ports.Store,
        *,
        namespace: str | None = None,
        max_retained_bytes: int | None = None,
        clock: Callable[[], int] = system_clock,
    ) -> None:
        journal = host_journal(store, max_retained_bytes, clock, blocking=True)
        super().__init__(asynchronous.JournalStore(journal, namespace=namespace, clock=clock))


class PostgresStore(JournalStore):
    """A store in one schema of a PostgreSQL database, for any number of hosts: see `minutebook.PostgresStore`."""

    def __init__(
        self,
        url: str,
        *,
        namespace: str | None = None,
        schema: str = "minutebook",
        timeout: float = 30.0,
        max_connections: int = 8,
        max_sessions: int | None = None,
        max_bytes: int | None = None,
        max_retained_bytes: int | None = None,
        ttl: timedelta | float | None = None,
    ) -> None:
        bounds = store_bounds(max_sessions, max_bytes, max_retained_bytes, ttl)
        journal = postgres_journal(url, schema, timeout, max_connections, bounds, blocking=True)
        super().__init__(asynchronous.JournalStore(journal, namespace=namespace))


def create_sqlite_decision_history_store(
    filename: str | os.PathLike[str] | None = None,
    *,
    database: sqlite3.Connection | None = None,
    namespace: str | None = None,
    max_sessions: int | None = DECISION_SESSIONS,
    max_bytes: int | None = DECISION_BYTES,
    ttl: timedelta | float | None = DECISION_TTL_SECONDS,
) -> SQLiteStore:
    """Return a `SQLiteStore` with the bounds of a decision history: 128 conversations, 32 MiB, 24 hours (SPEC D19)."""
    return SQLiteStore(
        filename, database=database, namespace=namespace, max_sessions=max_sessions, max_bytes=max_bytes, ttl=ttl
    )


def open_store(url: str, *, namespace: str | None = None) -> JournalStore:
    """Return the store that a URL from configuration names: see `minutebook.open_store`."""
    store: JournalStore = open_in(sys.modules[__name__], url, namespace)
    return store


def store_over(core: asynchronous.JournalStore | None) -> JournalStore | None:
    """Return the blocking twin of a store that a provider opened itself."""
    return None if core is None else JournalStore(core)


def core_of(store: JournalStore) -> asynchronous.JournalStore:
    """
    Return the asynchronous store that a blocking one drives.

    Raises:
        BlockingMismatch: it is an asynchronous store.
        InvalidOption: it is none at all.
    """
    if isinstance(store, JournalStore):  # pyright: ignore[reportUnnecessaryIsInstance]
        return store._core  # pyright: ignore[reportPrivateUsage]
    module = type(store).__module__
    # Hosts know our stores by the package's name, not by the module that they happen to stand in.
    public = "minutebook" if module == opening.__name__ else module
    told = f"a store of minutebook.sync, not {public}.{type(store).__name__}"
    if isinstance(store, asynchronous.JournalStore):
        raise BlockingMismatch(f"minutebook.sync takes {told}")
    raise InvalidOption(f"store is {told}", option="store")
