"""Remotes over the tests' Redis and Valkey servers: each test's names are its own, and time stands still if it asks."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Any

from tests.servers.redis import Cluster, shared

from minutebook.model.bounds import StoreBounds
from minutebook.model.keys import ConversationKey
from minutebook.stores.redis import BUCKETS, RedisRemote, _bucket
from minutebook.stores.redis_address import Address
from minutebook.stores.redis_scripts import CLOCK, Script
from minutebook.stores.remote_journal import RemoteJournal

REDIS = ("Redis", "Redis cluster")


def address(url: str, **options: Any) -> Address:
    """Return an address; what is not given is as in a `RedisStore`."""
    given = {"cluster": None, "timeout": 5.0, "max_connections": 16, "client_options": None} | options
    return Address(url, **given)


@functools.cache
def frozen(script: Script, now: int) -> Script:
    """Return a script for which it is `now`, whatever its server says."""
    text = script.text.replace(CLOCK, f"\nlocal now = {now}\n")
    assert text != script.text
    return Script(text, hashlib.sha1(text.encode()).hexdigest(), script.keys)


class SaltedRedis(RedisRemote):
    """A remote with none but its own namespaces, and where a test has a clock, that of its server."""

    clock: Callable[[], int] | None
    salt: str

    async def _run(self, script: Script, place: tuple[str, int, int], *arguments: Any, **named: Any) -> list[Any]:
        namespace, *bucket = place
        timed = frozen(script, self.clock()) if self.clock else script
        return await super()._run(timed, (self.salt + namespace, *bucket), *arguments, **named)


def salted_journal(
    kind: str, salt: str, bounds: StoreBounds | None, clock: Callable[[], int] | None, *, blocking: bool
) -> RemoteJournal:
    """
    Return a journal over the shared server of this kind; those of one `salt` share their conversations.

    With a clock, the server's time is what that says.
    """
    bounds = bounds or StoreBounds()
    remote = SaltedRedis(address(shared(kind).url), bounded=is_bounded(bounds), blocking=blocking)
    remote.clock, remote.salt = clock, salt
    return RemoteJournal(remote, bounds, ticks=clock) if clock else RemoteJournal(remote, bounds)


def keys_of(kind: str, salt: str, key: ConversationKey) -> dict[str, bytes]:
    """Return the keys of a conversation by their letters, as a store without bounds lays it out."""
    buckets = BUCKETS if kind == "Redis cluster" else 1
    bucket = b"%d\n%s" % (_bucket(key.id, buckets), (salt + key.namespace).encode())
    tag = b"minutebook:{%s}" % hashlib.sha256(bucket).hexdigest().encode()
    log = tag + b"c" + hashlib.sha256(key.id.encode()).hexdigest().encode()
    return {letter: tag + letter.encode() for letter in "mhif"} | {"c": log}


def ask(kind: str, command: str, key: bytes, *arguments: object) -> Any:
    """Return what the shared server that has a key answers to a command."""
    there = shared(kind)
    return (there.master_of(key) if isinstance(there, Cluster) else there).ask(command, key, *arguments)


def is_bounded(bounds: StoreBounds) -> bool:
    return bounds.max_sessions is not None or bounds.max_bytes is not None


def size_of(kind: str, salt: str, key: ConversationKey) -> int:
    """Return how many bytes of memory the keys of one conversation take, where it is alone in its namespace."""
    keys = keys_of(kind, salt, key).values()
    return sum(int(ask(kind, "MEMORY USAGE", each, "SAMPLES", 0) or 0) for each in keys)
