"""
The servers of one run, each started when it is first wanted, and our stores on them.

A server that this machine has not is left out, and named at the end of the run.
"""

from __future__ import annotations

import contextlib
import importlib
import unittest
from typing import Any

from minutebook.stores.journal import JournalStore

ALWAYS = "Redis, fsync always"
EVERY_SECOND = "Redis, everysec"
POSTGRES = "Postgres"
REDIS = (ALWAYS, EVERY_SECOND)


class Hosts:
    """Servers with folders of their own in `directory`, so that it decides which disk is measured."""

    def __init__(self, directory: str | None) -> None:
        self._directory = directory
        self._stack = contextlib.ExitStack()
        self._servers: dict[str, Any] = {}
        self.missing: dict[str, str] = {}
        """What could not be started, and why."""

    def server(self, kind: str) -> Any:
        """Return a running server, or `None` where there is none on this machine."""
        if kind not in self._servers:
            try:
                self._servers[kind] = self._stack.enter_context(self._single(kind))
            except unittest.SkipTest as reason:
                self._servers[kind] = None
                self.missing[kind] = str(reason)
        return self._servers[kind]

    def _single(self, kind: str) -> Any:
        if kind == POSTGRES:
            settings = {"shared_buffers": "256MB", "max_wal_size": "4GB", "checkpoint_timeout": "30min"}
            return _starting("postgres").single(directory=self._directory, **settings)
        synced = "always" if kind == ALWAYS else "everysec"
        return _starting("redis").single("--appendfsync", synced, directory=self._directory)

    def versions(self) -> dict[str, str]:
        """Return what was started, as each server says."""
        told: dict[str, str] = {}
        for kind, server in self._servers.items():
            if server is not None and kind == POSTGRES:
                told["PostgreSQL"] = server.ask("SHOW server_version")[0][0]
            elif server is not None:
                info = server.info("server")
                told[info.get("server_name", "redis")] = info.get("valkey_version", info["redis_version"])
        return told

    def close(self) -> None:
        """End the servers."""
        self._stack.close()


def _starting(name: str) -> Any:
    return importlib.import_module(f"servers.{name}")


def url_of(kind: str, server: Any) -> str:
    """Return a server's URL."""
    return str(server.url() if kind == POSTGRES else server.url)


def store_on(kind: str, server: Any, *, blocking: bool, namespace: str = "bench") -> JournalStore:
    """Return a store of ours with what its options are by default."""
    from minutebook.stores.remote_journal import RemoteJournal

    if kind == POSTGRES:
        from minutebook.stores.postgres import PostgresRemote

        return JournalStore(RemoteJournal(PostgresRemote(server.url(), blocking=blocking)), namespace=namespace)
    from minutebook.stores.redis import RedisRemote
    from minutebook.stores.redis_address import Address

    address = Address(server.url, cluster=None, timeout=5.0, max_connections=16, client_options=None)
    return JournalStore(RemoteJournal(RedisRemote(address, bounded=False, blocking=blocking)), namespace=namespace)
