"""Journals on the shared PostgreSQL server, each lab in a schema of its own."""

from __future__ import annotations

import atexit
import functools
import hashlib
from collections.abc import Callable
from typing import Any

from tests.servers import postgres

from minutebook.model.bounds import StoreBounds
from minutebook.model.keys import ConversationKey
from minutebook.testing import drive

POSTGRES = ("Postgres",)


def schema_of(name: str) -> str:
    """Return the schema of a lab: labs of one name share it, as processes share a database."""
    return "t_" + hashlib.sha256(name.encode()).hexdigest()[:20]


def remote(
    name: str, clock: Callable[[], int] | None = None, *, server: Any = None, url: str = "", **options: Any
) -> Any:
    """Return a remote on the shared server, or on another one."""
    server = server or postgres.shared()
    from minutebook.stores.postgres import PostgresRemote

    return PostgresRemote(url or server.url(), schema=schema_of(name), clock=clock, **options)


def journal(
    name: str,
    bounds: StoreBounds | None = None,
    clock: Callable[[], int] | None = None,
    **options: Any,
) -> Any:
    """Return a journal in a schema of its own; with a clock, the server's time is what that says."""
    from minutebook.stores.remote_journal import RemoteJournal

    made = remote(name, clock, **options)
    return RemoteJournal(made, bounds, ticks=clock) if clock else RemoteJournal(made, bounds)


@functools.cache
def _blocking_lines() -> Any:
    """Return connections that all blocking labs of this process share: to connect costs more than most tests."""
    made = remote("common", blocking=True, max_connections=32)
    atexit.register(lambda: drive(made.close()))
    return made._lines


def salted_journal(name: str, bounds: StoreBounds | None, clock: Callable[[], int] | None, *, blocking: bool) -> Any:
    """
    Return a journal in a schema that all labs share; labs of one name share their conversations, and no others.

    With a clock, the server's time is what that says.
    """
    from minutebook.stores.postgres import PostgresRemote
    from minutebook.stores.remote_journal import RemoteJournal

    salt = schema_of(name).encode()

    class Salted(PostgresRemote):
        async def _ask(self, statement: Any, *values: Any) -> Any:
            return await super()._ask(statement, salt + values[0], *values[1:])

        async def close(self) -> None:
            if not blocking:
                await super().close()

    made = Salted(postgres.shared().url(), schema=schema_of("common"), clock=clock, blocking=blocking)
    if blocking:
        made._lines = _blocking_lines()
    return RemoteJournal(made, bounds, ticks=clock) if clock else RemoteJournal(made, bounds)


def ask_salted(name: str, key: ConversationKey, statement: str, *values: object) -> Any:
    """Ask the server about one conversation of a lab, in its own words: `WHERE {key}` is of that conversation."""
    schema = schema_of("common")
    place = (schema_of(name).encode() + key.namespace.encode(), key.id.encode())
    where = "namespace = %s AND conversation = %s"
    return postgres.shared().ask(statement.format(schema=schema, key=where), (*values, *place))


def size_of(name: str, key: ConversationKey) -> int:
    """Return how many bytes the rows of one conversation of a lab take."""
    sums = "SELECT coalesce(sum(pg_column_size(t.*)), 0) FROM {{schema}}.{} AS t WHERE {{key}}"
    tables = ("conversation", "entry", "receipt")
    return sum(int(ask_salted(name, key, sums.format(table))[0][0]) for table in tables)
