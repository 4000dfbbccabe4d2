"""
The raw limit: hand-written sqlite3, WAL with `synchronous=FULL`, prepared statements, nothing but the rows.

It gives no fencing, totals, digest, idempotency, capacity, expiry or privacy, and does not parse what it stores: it is
what the disk and SQLite cost. `Raw` keeps an exchange in one row; `split` gives each message a row of its own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence

import msgspec

INSERT = "INSERT INTO entry (conversation, seq, payload) VALUES (?, ?, ?)"
TAIL = "SELECT payload FROM entry WHERE conversation = ? ORDER BY seq DESC LIMIT ?"
ALL = "SELECT payload FROM entry WHERE conversation = ? ORDER BY seq"
decode = msgspec.json.decode


class Raw:
    """One file, one connection, one writer."""

    def __init__(self, path: str) -> None:
        """Make the file with its one table."""
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = FULL")
        self.connection.execute(
            "CREATE TABLE entry (conversation INTEGER NOT NULL, seq INTEGER NOT NULL, payload BLOB NOT NULL, "
            "UNIQUE (conversation, seq))"
        )
        self.cursor = self.connection.cursor()
        self.seq = 0

    def append(self, *payloads: bytes, conversation: int = 1) -> None:
        """Write rows in one durable transaction."""
        self.group([(conversation, payload) for payload in payloads])

    def group(self, items: Sequence[tuple[int, bytes]]) -> None:
        """Write rows of several conversations in one durable transaction."""
        execute = self.cursor.execute
        execute("BEGIN IMMEDIATE")
        for conversation, payload in items:
            self.seq += 1
            execute(INSERT, (conversation, self.seq, payload))
        execute("COMMIT")

    def fill(self, payloads: Iterable[bytes], conversation: int = 1) -> None:
        """Write many rows at once."""
        self.group([(conversation, payload) for payload in payloads])

    def tail(self, rows: int, conversation: int = 1) -> list[bytes]:
        """Return the newest rows, oldest first."""
        found = [row[0] for row in self.cursor.execute(TAIL, (conversation, rows))]
        found.reverse()
        return found

    def tail_values(self, rows: int) -> list[object]:
        """Return the newest rows decoded, oldest first."""
        return [decode(payload) for payload in self.tail(rows)]

    def every(self, conversation: int = 1) -> Iterator[bytes]:
        """Stream all rows."""
        for row in self.connection.execute(ALL, (conversation,)):
            yield row[0]

    def close(self) -> None:
        """Close the file; SQLite checkpoints it."""
        self.connection.close()
