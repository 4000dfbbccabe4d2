"""
The log of a database file, which its writer copies into the database and, where something was erased, cuts to nothing.

SQLite below 3.51.3 can corrupt a database when two connections checkpoint at once. So no connection of ours checkpoints
by itself; the writer does it, holding a lock on the `-lock` sidecar that all processes share. It is held whatever the
version is, since the other process may run an older one.
"""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING, Final

from minutebook.stores import sqlite_statements as sql
from minutebook.stores.sqlite_connection import checkpoint_lock, pauses, proves_nothing

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

CHECKPOINT_BYTES: Final = 4 * 1024 * 1024
"""The log is copied into the database when about this much was written."""

LOCK_SECONDS: Final = 2.0
"""How long an erasure, or closing, waits for another process's checkpoint."""

_COMMIT_BYTES = 7 * 4096  # the pages that a commit of a few KB writes beside its payloads
_MAX_ERASE_WAIT = 64


class Log:
    """How much one writer's log holds, and what is due of it. Used by whoever holds the writer's lock."""

    def __init__(
        self,
        path: str,
        lock_file: int,
        cursor: sqlite3.Cursor,
        read_lock: threading.Lock,
        doubted: Callable[[sqlite3.Error], None],
    ) -> None:
        """
        Begin with an empty log of the database at `path`.

        `read_lock` keeps the writer's own reader out, and `doubted` is told of an error after which nothing that the
        connection says can be believed.
        """
        self._path = path + "-wal"
        self._lock_file = lock_file
        self._cursor = cursor
        self._read_lock = read_lock
        self._doubted = doubted
        self._bytes = 0
        self._erase_at = 0
        """The transaction behind which an erasure is tried again; 0 for none."""
        self._erase_wait = 1

    def grew(self, size: int) -> None:
        """Note that a transaction was committed with payloads of `size` bytes."""
        self._bytes += size + _COMMIT_BYTES

    def is_due(self, transactions: int) -> bool:
        """Return whether a checkpoint, or a new try to erase, is to be made after so many transactions."""
        return self._bytes > CHECKPOINT_BYTES or 0 < self._erase_at <= transactions

    def tend(self, transactions: int, *, idle: bool) -> None:
        """Make the checkpoint that is due, or with an `idle` writer the erasure; what fails is due again later."""
        if idle and 0 < self._erase_at <= transactions:
            if not self._truncate(0):
                self._erase_wait = min(self._erase_wait * 2, _MAX_ERASE_WAIT)
                self._erase_at = transactions + self._erase_wait
            return
        with checkpoint_lock(self._lock_file, 0) as held:
            if held:
                self._copy(sql.CHECKPOINT)

    def erase(self, transactions: int) -> bool:
        """Return whether nothing is left in the log of what the last transaction erased; else it is tried again."""
        if self._truncate(LOCK_SECONDS):
            return True
        self._erase_wait = 1
        self._erase_at = transactions + 1
        return False

    def _truncate(self, seconds: float) -> bool:
        """
        Copy the log into the database and cut it to nothing; False when a reader or another process was in the way.

        Another process's checkpoint is waited for before our own reader is kept out, so that no read waits for it too.
        """
        with checkpoint_lock(self._lock_file, seconds) as held:
            if not held:
                return False
            with self._read_lock:
                for _ in self._attempts(seconds):
                    if self._copy(sql.TRUNCATE) and self._sync():
                        self._erase_at = 0
                        return True
        return False

    @staticmethod
    def _attempts(seconds: float) -> Iterator[None]:
        yield
        if seconds:
            # One short wait for a reader that is just about to end; a long one is not waited for.
            yield from pauses(min(seconds, 0.05))

    def _copy(self, statement: str) -> bool:
        """Make a checkpoint under the lock that all processes share; False where something of the log is left."""
        try:
            if statement is sql.TRUNCATE:
                busy, frames, _ = self._cursor.execute(sql.TRUNCATE).fetchone()
            else:
                busy, frames, _ = self._cursor.execute(sql.CHECKPOINT).fetchone()
        except sqlite3.Error as error:
            # The commits themselves are in the log and safe. Only a failed sync makes later ones doubtful.
            if proves_nothing(error):
                self._doubted(error)
            return False
        self._bytes = 0
        return not busy and frames <= 0

    def _sync(self) -> bool:
        """
        Make the cut of the log last; False where that failed.

        SQLite does not sync it, since a log that comes back with the power harms no record. But what was erased would
        be in it. Opening and closing the log here drops no lock: SQLite has none on it.
        """
        try:
            descriptor = os.open(self._path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError:
            return False
        return True


__all__ = ["CHECKPOINT_BYTES", "LOCK_SECONDS", "Log"]
