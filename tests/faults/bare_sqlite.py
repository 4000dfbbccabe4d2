"""
A child for the fault harness to prove itself on: numbered rows in plain SQLite, one transaction each.

    python bare_sqlite.py DATABASE JOURNAL_MODE SYNCHRONOUS ROWS

Each transaction adds a row and counts it in a second table, so half a transaction shows. What a database holds after a
fault is read by `found_rows`, beside the writing that it judges. The journal is checkpointed often, so a short
run holds every kind of write.
"""

from __future__ import annotations

import functools
import os
import signal
import sqlite3
import sys
from pathlib import Path
from random import Random

NAME = "rows.db"
CHECKPOINT_PAGES = 24


@functools.cache
def body(number: int) -> bytes:
    """Return the content of row `number`, no two sectors of it alike; every fourth needs an overflow page."""
    return Random(number).randbytes(5_000 if number % 4 == 0 else 700)


def write_rows(database: str, journal_mode: str, synchronous: str, rows: int) -> None:
    """Add `rows` rows after those that are there, acknowledging each once its commit has returned."""
    acks = os.open(os.environ["FAULT_ACK_FILE"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    hold = int(os.environ.get("FAULT_HOLD_AFTER", "0"))
    connection = sqlite3.connect(database, isolation_level=None)
    connection.execute(f"PRAGMA journal_mode={journal_mode}")
    connection.execute(f"PRAGMA synchronous={synchronous}")
    connection.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
    connection.execute("BEGIN")
    connection.execute("CREATE TABLE IF NOT EXISTS rows (number INTEGER PRIMARY KEY, body BLOB)")
    connection.execute("CREATE TABLE IF NOT EXISTS total (rows INTEGER)")
    connection.execute("INSERT INTO total SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM total)")
    connection.execute("COMMIT")
    first = connection.execute("SELECT rows FROM total").fetchone()[0] + 1
    for number in range(first, first + rows):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO rows VALUES (?, ?)", (number, body(number)))
        connection.execute("UPDATE total SET rows = rows + 1")
        connection.execute("COMMIT")
        os.write(acks, f"ack {number}\n".encode())
        if number - first + 1 == hold:
            signal.pause()
    connection.close()


def found_rows(directory: Path) -> int:
    """
    Return how many rows a directory holds after a fault, none where there is no database or no table yet.

    Raises:
        sqlite3.DatabaseError: SQLite finds the file damaged.
        ValueError: the rows are not exactly 1 to n, each as written and counted.
    """
    if not (directory / NAME).exists():
        return 0
    connection = sqlite3.connect(directory / NAME, isolation_level=None)
    try:
        # Exclusive locking spares the shared-memory file, which no disk image has; syncs would only cost time.
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        connection.execute("PRAGMA synchronous=OFF")
        if not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
            return 0
        problems = [row[0] for row in connection.execute("PRAGMA integrity_check") if row[0] != "ok"]
        if problems:
            raise ValueError(f"integrity_check: {problems[0]}")
        rows = connection.execute("SELECT number, body FROM rows ORDER BY number").fetchall()
        total = int(connection.execute("SELECT rows FROM total").fetchone()[0])
    finally:
        connection.close()
    if rows != [(number, body(number)) for number in range(1, total + 1)]:
        raise ValueError(f"{len(rows)} rows under a total of {total}, or one of them not as written")
    return total


if __name__ == "__main__":
    write_rows(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
