"""
The stores that hosts open by name: in RAM, in a SQLite file, on a server, in a database of their own, and by a URL.

Each is `JournalStore` over one journal; what is decided here is only defaults. A journal and its driver are loaded when
a store is opened on it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import msgspec

from minutebook.errors import InvalidOption
from minutebook.model.bounds import StoreBounds, ttl_ms
from minutebook.model.keys import check_id
from minutebook.model.shown import type_alone
from minutebook.stores.clock import system_clock
from minutebook.stores.journal import JournalStore
from minutebook.stores.urls import open_in

if TYPE_CHECKING:
    import os
    import sqlite3
    from collections.abc import Callable, Mapping
    from datetime import timedelta

    from minutebook import ports
    from minutebook.stores.hosted import HostedJournal
    from minutebook.stores.memory import MemoryJournal
    from minutebook.stores.remote_journal import RemoteJournal
    from minutebook.stores.sqlite import SQLiteJournal

DECISION_SESSIONS: Final = 128
DECISION_BYTES: Final = 32 * 1024 * 1024
DECISION_TTL_SECONDS: Final = 24 * 60 * 60
"""The bounds of a decision history in SQLite (SPEC D19): conversations, bytes in all, time since the last write."""


class MemoryStore(JournalStore):
    """
    A store in RAM: gone with the process, for any number of threads and event loops.

    Args:
        namespace: the tenant or application; this store alone has a default.
        max_sessions: the most conversations.
        max_bytes: the most payload bytes of all conversations together.
        max_retained_bytes: the most payload bytes of one conversation.
        ttl: a conversation expires when nothing was written for this long, as a `timedelta` or in seconds.
        clock: gives Unix milliseconds.

    A bound that is `None` does not exist. A full store refuses; it never evicts (SPEC D7).

    Raises:
        InvalidOption: a bound that is no positive number.
        InvalidId: a namespace that no store can hold.
    """

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
        super().__init__(memory_journal(bounds, clock), namespace=namespace, clock=clock)


class SQLiteStore(JournalStore):
    """
    A store in one private SQLite file, or on an open connection of the host's.

    Args:
        filename: the database file, created with mode 0600 in an existing directory. A plain name: `file:` is no
            scheme here, and `?`, `#` and `%` are letters. A text that begins with `sqlite:/` or `~/` is refused.
        database: instead of a file, an open `sqlite3.Connection`; its closing, settings and file modes are the host's.
            So is SQLite's own checkpoint of a log, which takes no lock of ours: below 3.51.3 two at once can damage it
            (advisory V-24). After a failed sync every store on it is refused until the host opens another connection.
        namespace: the tenant or application, from trusted configuration; here or in the history's options.
        max_sessions: the most conversations of the namespace.
        max_bytes: the most payload bytes of the namespace.
        max_retained_bytes: the most payload bytes of one conversation.
        ttl: a conversation expires when nothing was written for this long, as a `timedelta` or in seconds; each one of
            the namespace, also where another store object wrote it.
        clock: gives Unix milliseconds.

    A bound that is `None` does not exist. A full store refuses; it never evicts (SPEC D7).

    Raises:
        InvalidOption: neither or both of `filename` and `database`, a bound that is no positive number, or a name that
            no database can have.
        InvalidId: a namespace that no store can hold.
        StorageError: the file is not private, foreign, damaged, locked, or the disk failed.
    """

    _colour = "asynchronous"

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
        journal = sqlite_journal(filename, database, namespace, bounds, clock, blocking=False)
        super().__init__(journal, namespace=namespace, clock=clock)


class RedisStore(JournalStore):
    """
    A store on a Redis or Valkey server that any number of hosts share, or on a cluster of them.

    Nothing is connected here; the first call does. What it needs of the server is checked on every new connection and
    every ten seconds: Redis 7.0 or Valkey 7.2 at least, `maxmemory-policy noeviction`, a primary.
    `store.durable` says afterwards whether what is acknowledged is on the server's disk.

    Args:
        url: `redis://user:password@host:6379/0`, `rediss://` with TLS, `unix:///path`, or with `+cluster` one or more
            of a cluster's nodes: `redis+cluster://host1:7000,host2:7000`. `valkey` may stand for `redis`. Behind `?`
            may stand what `client_options` takes.
        namespace: the tenant or application, from trusted configuration; here or in the history's options.
        cluster: whether it is a cluster, where the URL does not say so.
        timeout: how many seconds a call may take, its connection included. A write of many entries goes in slices,
            and each has as long.
        max_connections: how many at once, of one event loop or, without one, of all threads.
        client_options: what redis-py's connections take beside: `password`, `username`, `credential_provider`,
            `ssl_ca_certs` and so on.
        max_sessions: the most conversations of the namespace; with this or `max_bytes` it is on one node of a cluster.
        max_bytes: the most payload bytes of the namespace.
        max_retained_bytes: the most payload bytes of one conversation.
        ttl: a conversation expires when nothing was written for this long by the server's clock, as a `timedelta` or
            in seconds.

    A bound that is `None` does not exist. A full store refuses; it never evicts (SPEC D7).

    Raises:
        InvalidOption: no URL of a server, an option that redis-py does not take, a bound that is no positive number, or
            redis-py is not installed.
        InvalidId: a namespace that no store can hold.
    """

    _colour = "asynchronous"

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
        super().__init__(redis_journal(url, options, bounds, blocking=False), namespace=namespace)


class HostStore(JournalStore):
    """
    A store in a database of the host's own, of which only one method is asked: `ports.Store.transact` (SPEC D24).

    The host keeps one opaque document per conversation and exchanges it atomically; entries, receipts, reservations
    and recovery are kept inside it. Every call reads the whole document and every write rewrites it, so the cost grows
    with the conversation: good for some hundred exchanges. How many documents there are, how large they are together,
    when they expire and whether a save survives a power cut is the host's. Closing the store leaves the host's open.

    Args:
        store: the host's; prove it with `minutebook.testing.conformance.check_store`. With a method
            `async keys(namespace, after, rows)` that names its records the store can also list.
        namespace: the tenant or application, from trusted configuration; here or in the history's options.
        max_retained_bytes: the most payload bytes of one conversation.
        clock: gives Unix milliseconds, which are recorded and decide nothing.

    Raises:
        InvalidOption: `store` has no `transact`, or is a store of this library; a bound that is no positive number.
        InvalidId: a namespace that no store can hold.
    """

    _colour = "asynchronous"

    def __init__(
        self,
        store: ports.Store,
        *,
        namespace: str | None = None,
        max_retained_bytes: int | None = None,
        clock: Callable[[], int] = system_clock,
    ) -> None:
        journal = host_journal(store, max_retained_bytes, clock, blocking=False)
        super().__init__(journal, namespace=namespace, clock=clock)


class PostgresStore(JournalStore):
    """
    A store in one schema of a PostgreSQL database, for any number of hosts.

    Nothing is connected here; the first call does, and makes the tables where they are missing. Each new connection is
    looked at: a standby, a database whose encoding is not UTF8, and `synchronous_commit`, `fsync` or `full_page_writes`
    that are off are refused. It works through PgBouncer in transaction mode.

    Args:
        url: `postgresql://user:password@host/database`, or `key=value …` as libpq reads it. With several hosts the one
            that can be written to is taken.
        namespace: the tenant or application, from trusted configuration; here or in the history's options.
        schema: where the tables are: lower-case letters, digits and `_`.
        timeout: how many seconds a call may take, its connection included.
        max_connections: how many at once, for each event loop; one is enough for any number of open turns.
        max_sessions: the most conversations of the namespace.
        max_bytes: the most payload bytes of the namespace.
        max_retained_bytes: the most payload bytes of one conversation.
        ttl: a conversation expires when nothing was written for this long, as a `timedelta` or in seconds, by the
            server's clock.

    A bound that is `None` does not exist. A full store refuses; it never evicts (SPEC D7).

    Raises:
        InvalidOption: no connection string, or an option out of its range; or psycopg is not installed.
        InvalidId: a namespace that no store can hold.
    """

    _colour = "asynchronous"

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
        journal = postgres_journal(url, schema, timeout, max_connections, bounds, blocking=False)
        super().__init__(journal, namespace=namespace)


def create_sqlite_decision_history_store(
    filename: str | os.PathLike[str] | None = None,
    *,
    database: sqlite3.Connection | None = None,
    namespace: str | None = None,
    max_sessions: int | None = DECISION_SESSIONS,
    max_bytes: int | None = DECISION_BYTES,
    ttl: timedelta | float | None = DECISION_TTL_SECONDS,
) -> SQLiteStore:
    """
    Return a `SQLiteStore` with the bounds of a decision history: 128 conversations, 32 MiB, 24 hours (SPEC D19).

    They hold for the whole `namespace`, whoever wrote what is there: what a store without a `ttl` keeps in it expires
    with the rest. So let the namespace be the decision history's own, and not that of chats which are to stay.

    Raises:
        InvalidOption: see `SQLiteStore`.
    """
    return SQLiteStore(
        filename, database=database, namespace=namespace, max_sessions=max_sessions, max_bytes=max_bytes, ttl=ttl
    )


def open_store(url: str, *, namespace: str | None = None) -> JournalStore:
    """
    Return the store that a URL from configuration names, without bounds.

    `memory:` is a store in RAM. `sqlite:///name.sqlite` is a file, from the current directory on;
    `sqlite:////var/lib/name.sqlite` one from the root on. As in every URL `%20` and the like stand for characters of
    the name; a `?` or a `#`, which would begin parameters or a fragment, is refused, since there are none.

    Raises:
        InvalidOption: no URL of a store that exists, or one whose driver is not installed; the message says which there
            are, or what to install.
        InvalidId: a namespace that no store can hold.
        StorageError: see the store's class.
    """
    store: JournalStore = open_in(sys.modules[__name__], url, namespace)
    return store


def store_bounds(
    max_sessions: int | None, max_bytes: int | None, max_retained_bytes: int | None, ttl: timedelta | float | None
) -> StoreBounds:
    """Return the bounds as the journals take them, checked."""
    return StoreBounds(
        max_sessions=max_sessions, max_bytes=max_bytes, max_retained_bytes=max_retained_bytes, ttl_ms=ttl_ms(ttl)
    )


def memory_journal(bounds: StoreBounds, clock: Callable[[], int]) -> MemoryJournal:
    """Return a journal in RAM; none of its methods suspends."""
    from minutebook.stores.memory import MemoryJournal

    return MemoryJournal(bounds, clock=clock)


class RedisOptions(msgspec.Struct, frozen=True):
    """How a `RedisStore` reaches its server; see there."""

    cluster: bool | None
    timeout: float
    max_connections: int
    client_options: Mapping[str, Any] | None

    __repr__ = type_alone  # among them are passwords


def redis_journal(url: str, options: RedisOptions, bounds: StoreBounds, *, blocking: bool) -> RemoteJournal:
    """Return the journal of a server or a cluster; with `blocking` none of its methods suspends."""
    try:
        from minutebook.stores.redis import RedisRemote
        from minutebook.stores.redis_address import Address
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "redis":
            raise
        raise InvalidOption(
            "RedisStore needs redis-py, which is not installed: pip install 'minutebook[redis]'", option="url"
        ) from None
    from minutebook.stores.remote_journal import RemoteJournal

    bounded = bounds.max_sessions is not None or bounds.max_bytes is not None
    return RemoteJournal(
        RedisRemote(Address(url, **msgspec.structs.asdict(options)), bounded=bounded, blocking=blocking), bounds
    )


def host_journal(
    store: ports.Store, max_retained_bytes: int | None, clock: Callable[[], int], *, blocking: bool
) -> HostedJournal:
    """Return a journal over a host's store; it suspends where the host's `transact` does, with `blocking` nowhere."""
    from minutebook.stores.hosted import HostedJournal

    # Ours have a `transact` too, on records instead of bytes: a store over one, of either colour, would fail later.
    if hasattr(store, "within") or not callable(getattr(store, "transact", None)):
        raise InvalidOption(
            f"a host's store has an async `transact(key, operation)` on bytes; {type(store).__name__} is none",
            option="store",
        )
    return HostedJournal(store, max_retained_bytes=max_retained_bytes, clock=clock, blocking=blocking)


def postgres_journal(
    url: str, schema: str, timeout: float, max_connections: int, bounds: StoreBounds, *, blocking: bool
) -> RemoteJournal:
    """Return the journal of a schema; with `blocking` none of its methods suspends."""
    try:
        from minutebook.stores.postgres import PostgresRemote
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "psycopg":
            raise
        raise InvalidOption(
            "PostgresStore needs psycopg, which is not installed: pip install 'minutebook[postgres]'", option="url"
        ) from None
    from minutebook.stores.remote_journal import RemoteJournal

    remote = PostgresRemote(url, schema=schema, timeout=timeout, max_connections=max_connections, blocking=blocking)
    return RemoteJournal(remote, bounds)


def sqlite_journal(
    filename: str | os.PathLike[str] | None,
    database: sqlite3.Connection | None,
    namespace: str | None,
    bounds: StoreBounds,
    clock: Callable[[], int],
    *,
    blocking: bool,
) -> SQLiteJournal:
    """Return the journal of a file or of a host's connection; with `blocking` none of its methods suspends."""
    from minutebook.stores.sqlite import SQLiteJournal

    if (filename is None) == (database is None):
        raise InvalidOption("give a filename or an open database, one of the two", option="filename")
    if namespace is not None:
        check_id(namespace, "namespace")  # before a file is created that nobody would close
    if database is not None:
        return SQLiteJournal.on_connection(database, bounds, clock=clock)
    assert filename is not None
    _refuse_notation(filename)
    return SQLiteJournal(filename, bounds, clock=clock, blocking=blocking)


def _refuse_notation(filename: str | os.PathLike[str]) -> None:
    """Refuse what other programs make a name of: taken as it stands it would name a file that nobody meant."""
    text = filename if isinstance(filename, str) else ""
    if text.startswith("sqlite:/"):
        raise InvalidOption(
            "a store's file is given by its name; give what follows sqlite:///, or the URL to open_store",
            option="filename",
        )
    if text.startswith("~/"):
        raise InvalidOption(
            "no home directory is put in for ~; give os.path.expanduser(name), or ./~/… for a directory of that name",
            option="filename",
        )
