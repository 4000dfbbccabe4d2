"""Journals on the shared PostgreSQL server, each lab in a schema of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from tests.servers import postgres

from minutebook.model.bounds import StoreBounds

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
    """Return a journal; with a clock, the server's time is what that says."""
    from minutebook.stores.remote_journal import RemoteJournal

    made = remote(name, clock, **options)
    return RemoteJournal(made, bounds, ticks=clock) if clock else RemoteJournal(made, bounds)
