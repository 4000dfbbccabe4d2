"""
The raw limits on servers: psycopg and redis-py by hand, one round trip for each transaction, and nothing but the rows.

On PostgreSQL a row with a whole exchange, inserted by a statement that commits by itself and is kept prepared by the
driver. On Redis a script that does the least that makes a store of it: it compares the writer's epoch, counts, and
writes one field.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

TABLE = (
    "CREATE TABLE IF NOT EXISTS raw (conversation bigint NOT NULL, seq bigint NOT NULL, payload bytea NOT NULL, "
    "PRIMARY KEY (conversation, seq))"
)
INSERT = "INSERT INTO raw (conversation, seq, payload) VALUES (%b, %b, %b)"
INSERT_MANY = (
    "INSERT INTO raw (conversation, seq, payload) SELECT * FROM unnest(%b::bigint[], %b::bigint[], %b::bytea[])"
)
LEAST = """
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return 0 end
local seq = redis.call('HINCRBY', KEYS[1], 'seq', 1)
redis.call('HSET', KEYS[1], seq, ARGV[2])
return seq
"""

_seqs = itertools.count(1)


class RawPostgres:
    """One table, one connection of each colour."""

    def __init__(self, server: Any) -> None:
        """Make the table."""
        import psycopg

        self._url = server.url()
        self.connection = psycopg.connect(self._url, autocommit=True)
        self.connection.execute(TABLE)
        self.waiting: Any = None

    async def open(self) -> None:
        """Connect the asynchronous one."""
        import psycopg

        self.waiting = await psycopg.AsyncConnection.connect(self._url, autocommit=True)

    def append(self, payload: bytes) -> None:
        """Write one row in one durable transaction."""
        self.connection.execute(INSERT, (1, next(_seqs), payload), binary=True)

    def append_between(self, payload: bytes) -> None:
        """Write one row between a BEGIN and a COMMIT, as most code has it: three round trips."""
        with self.connection.transaction():
            self.connection.execute(INSERT, (1, next(_seqs), payload), binary=True)

    async def append_waiting(self, payload: bytes) -> None:
        """Write one row in one durable transaction, for an event loop."""
        await self.waiting.execute(INSERT, (1, next(_seqs), payload), binary=True)

    def group(self, items: Sequence[tuple[int, bytes]]) -> None:
        """Write rows of several conversations by one statement, in one durable transaction."""
        numbers, payloads = [number for number, _ in items], [payload for _, payload in items]
        self.connection.execute(INSERT_MANY, (numbers, [next(_seqs) for _ in items], payloads), binary=True)

    async def close(self) -> None:
        """Close both connections."""
        self.connection.close()
        if self.waiting is not None:
            await self.waiting.close()


class RawRedis:
    """One hash for each conversation, one client of each colour."""

    def __init__(self, server: Any, conversations: int = 1) -> None:
        """Load the script, and give each conversation to the writer of epoch 1."""
        import redis
        from redis import asyncio as waiting

        self.client = redis.Redis(port=server.port)
        self.waiting = waiting.Redis(port=server.port)
        self.sha = str(self.client.script_load(LEAST))
        for number in range(conversations):
            self.client.hset(f"raw:{number}", "epoch", 1)

    def append(self, payload: bytes) -> None:
        """Write one field."""
        self.client.evalsha(self.sha, 1, "raw:0", 1, payload)

    async def append_waiting(self, payload: bytes) -> None:
        """Write one field, for an event loop."""
        await self.waiting.evalsha(self.sha, 1, "raw:0", 1, payload)

    def group(self, items: Sequence[tuple[int, bytes]]) -> None:
        """Write fields of several conversations by scripts that are sent together."""
        pipeline = self.client.pipeline(transaction=False)
        for number, payload in items:
            pipeline.evalsha(self.sha, 1, f"raw:{number}", 1, payload)
        pipeline.execute()

    async def close(self) -> None:
        """Close both clients."""
        self.client.close()
        await self.waiting.aclose()
