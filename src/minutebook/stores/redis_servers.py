"""What a Redis or Valkey server has to be, and whether what it acknowledges is on its disk: read from what it says."""

from __future__ import annotations

import re
from typing import Any, Final, NoReturn

from minutebook.errors import DecisionHistorySchemaUnsupported, DecisionHistoryStorageUnsafe

OLDEST: Final = (7, 0)
"""The oldest version of Redis whose scripts have flags; every Valkey has them."""

SYNCED: Final = ("appendfsync", "no-appendfsync-on-rewrite")
"""The settings that say when a server syncs its append-only file."""


def is_appended(settings: dict[str, str]) -> bool:
    """
    Return whether all that a server has is in its append-only file, as its INFO proves it.

    Right after the file was switched on it is none: until the first rewrite has ended, which the server repeats should
    it fail, a server that is killed begins again with nothing. No figure tells the first rewrite from a later one.
    """
    wanted = {"aof_enabled": "1", "aof_rewrite_in_progress": "0", "aof_rewrite_scheduled": "0"}
    return all(settings.get(name) == value for name, value in wanted.items())


def is_synced(told: Any) -> bool:
    """Return whether a server that appends to a file says that it syncs each time, also while it rewrites the file."""
    if isinstance(told, Exception):
        return False
    settings: dict[bytes, bytes] = dict(zip(told[::2], told[1::2], strict=True))
    return settings.get(b"appendfsync") == b"always" and settings.get(b"no-appendfsync-on-rewrite") == b"no"


def read_settings(info: Any) -> dict[str, str]:
    """
    Return what a server says of itself, from its INFO.

    Raises:
        DecisionHistoryStorageUnsafe: the user may not ask.
    """
    if isinstance(info, Exception):
        raise DecisionHistoryStorageUnsafe(
            "the server's settings cannot be read; grant the user the command INFO", problem="denied"
        )
    lines = info.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def check_server(settings: dict[str, str], *, cluster: bool) -> None:
    """
    See that a server, as its INFO describes it, keeps what it is given (bad inputs 97, 98, 101).

    Raises:
        DecisionHistorySchemaUnsupported: it is too old.
        DecisionHistoryStorageUnsafe: it evicts, only reads, or is a cluster where none is meant or the other way round.
    """
    version = settings.get("redis_version", "0")
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST:
        raise DecisionHistorySchemaUnsupported(
            f"the server speaks as Redis {version}; it has to be Redis {OLDEST[0]}.{OLDEST[1]} or Valkey 7.2 at least"
        )
    mode = settings.get("redis_mode", settings.get("server_mode", ""))
    if mode == "sentinel":
        _unsafe("the server is a sentinel, which keeps nothing; give the URL of what it watches", "sentinel")
    if (mode == "cluster") is not cluster:
        _unsafe(
            "the server is a single one; give redis://"
            if cluster
            else "the server is a cluster's node; give redis+cluster:// or cluster=True",
            "cluster",
        )
    if settings.get("role") != "master" and not cluster:
        _unsafe("the server is a replica and only reads; give the URL of its primary", "replica")
    policy = settings.get("maxmemory_policy", "unknown")
    if policy != "noeviction":
        _unsafe(
            f"maxmemory-policy is {policy}: the server would delete history to make room; set it to noeviction",
            "evicting",
        )


def _unsafe(message: str, problem: str) -> NoReturn:
    raise DecisionHistoryStorageUnsafe(message, problem=problem)
