"""Remotes over the tests' Redis and Valkey servers: each test's names are its own, and time stands still for it."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Any

from servers.redis import shared

from minutebook.model.bounds import StoreBounds
from minutebook.stores.redis import RedisRemote
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


class FrozenRedis(RedisRemote):
    """A remote whose server has the clock of a test, and none but its own namespaces."""

    clock: Callable[[], int]
    salt: str

    async def _run(self, script: Script, place: tuple[str, int, int], *arguments: Any, **named: Any) -> list[Any]:
        namespace, *bucket = place
        return await super()._run(frozen(script, self.clock()), (self.salt + namespace, *bucket), *arguments, **named)


def frozen_journal(
    kind: str, salt: str, bounds: StoreBounds | None, clock: Callable[[], int], *, blocking: bool
) -> RemoteJournal:
    """Return a journal over the shared server of this kind; those of one `salt` share their conversations."""
    bounds = bounds or StoreBounds()
    remote = FrozenRedis(address(shared(kind).url), bounded=is_bounded(bounds), blocking=blocking)
    remote.clock, remote.salt = clock, salt
    return RemoteJournal(remote, bounds, ticks=clock)


def is_bounded(bounds: StoreBounds) -> bool:
    return bounds.max_sessions is not None or bounds.max_bytes is not None
