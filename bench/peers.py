"""The sessions of the OpenAI Agents SDK, as their documentation shows them; what is not installed is left out."""

from __future__ import annotations

import importlib.util
from importlib.metadata import version
from typing import Any

INSTALLED = importlib.util.find_spec("agents") is not None
ASYNC_INSTALLED = INSTALLED and importlib.util.find_spec("aiosqlite") is not None


def names() -> list[str]:
    """Return the peers that can be measured here."""
    return ["SQLiteSession"] * INSTALLED + ["AsyncSQLiteSession"] * ASYNC_INSTALLED


def session(name: str, path: str, conversation: str = "bench") -> Any:
    """Return a session on a file of its own."""
    if name == "SQLiteSession":
        from agents import SQLiteSession

        return SQLiteSession(conversation, path)
    from agents.extensions.memory import AsyncSQLiteSession

    return AsyncSQLiteSession(conversation, path)


def on_redis(url: str, conversation: str = "bench") -> Any:
    """Return a session on a Redis server, with a client of its own; `None` where the peer is not installed."""
    if not INSTALLED:
        return None
    from agents.extensions.memory import RedisSession

    return RedisSession.from_url(conversation, url=url)


async def close(peer: Any) -> None:
    """Close a session of either colour."""
    closing = peer.close()
    if closing is not None:
        await closing


def versions() -> dict[str, str]:
    """Return what is installed."""
    return {
        name: version(name) for name, there in (("openai-agents", INSTALLED), ("aiosqlite", ASYNC_INSTALLED)) if there
    }
