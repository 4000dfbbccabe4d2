"""
A connection of the host's own as the place where a journal's jobs run (SPEC D19).

The host opened it, set it up and will close it. So nothing of it is changed, nothing is claimed that its settings do
not give, and everything runs in the caller's own thread.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from typing import TYPE_CHECKING, Final, TypeVar, cast

from minutebook.errors import InvalidOption, StorageError
from minutebook.stores import sqlite_statements as sql
from minutebook.stores.sections import section
from minutebook.stores.sqlite_connection import (
    DRIVER_ERRORS,
    Latch,
    cause_of,
    closed,
    migrate,
    read_snapshot,
    refuse_fork,
    translated,
)
from minutebook.stores.sqlite_jobs import Kept

if TYPE_CHECKING:
    from minutebook.stores.sqlite_jobs import Work

T = TypeVar("T")

_FULL, _EXTRA = 2, 3  # as `PRAGMA synchronous` answers

_DURABLE_FROM: Final = {"wal": _FULL, "truncate": _FULL, "persist": _FULL, "delete": _EXTRA}
"""
The least `synchronous` with which a commit in a journal mode survives a power cut.

Modes that keep the journal's file sync what ends it. Where the file is unlinked only EXTRA syncs its directory: with
FULL the journal may come back with the power and undo the commit.
"""

_failed: list[tuple[sqlite3.Connection, Latch]] = []
"""
The connections on which a sync failed. The one mutable value of this module, because the rule it keeps is theirs: the
host may give one of them to any number of stores, and each is refused. A connection takes no weak reference.
"""


class HostConnection:
    """A `Database` on a connection that the host opened and will close."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Make or migrate our tables, and note what the connection's settings promise."""
        self._connection = connection
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self.run(migrate)
        cursor = self._host_cursor()
        mode = _text(cursor.execute(sql.GET_JOURNAL_MODE).fetchone()[0])
        synchronous = cursor.execute(sql.GET_SYNCHRONOUS).fetchone()[0]
        secure = cursor.execute(sql.GET_SECURE_DELETE).fetchone()[0]
        cursor.close()
        self._durable = mode in _DURABLE_FROM and synchronous >= _DURABLE_FROM[mode]
        # In WAL old pages stay in the log until the host has it cut; a persistent journal keeps them too.
        self._erases = mode in ("delete", "truncate", "memory") and secure == 1

    @property
    def durable(self) -> bool:
        """Whether the host's settings make a commit that returned survive a power cut."""
        return self._durable

    def _host_cursor(self) -> sqlite3.Cursor:
        cursor = self._connection.cursor()
        cursor.row_factory = None
        return cursor

    def _refuse_unusable(self) -> None:
        if self._closed:
            raise closed()
        for connection, latch in _failed:
            if connection is self._connection:
                latch.refuse_failed()
        if self._connection.in_transaction:
            raise InvalidOption(
                "the connection is inside a transaction of the host's; commit or roll back first, and leave autocommit "
                "at its default",
                option="connection",
            )

    def run(self, work: Work[T], *, size: int = 0, durable: bool = True, erases: bool = False) -> T:  # noqa: ARG002
        """Run one job in a transaction of its own; see `Database`. How durable it is the host's settings decide."""
        refuse_fork(self._pid)
        with section as inside, inside, self._lock:
            try:
                self._refuse_unusable()
                result = self._transact(work)
            except DRIVER_ERRORS as error:
                raise translated(error, self._connection) from cause_of(error)
        if isinstance(result, Kept):
            raise result.error
        return cast("T", self._erases if erases and result is True else result)

    def _transact(self, work: Work[T]) -> T:
        cursor = self._host_cursor()
        try:
            cursor.execute(sql.BEGIN_WRITE)
            result = work(cursor)
            cursor.execute(sql.COMMIT)
        except BaseException as error:
            self._undo(cursor, error)
            raise
        finally:
            cursor.close()
        return result

    def _undo(self, cursor: sqlite3.Cursor, error: BaseException) -> None:
        latch = Latch()
        latch.undo(cursor, error)
        if latch.failed:
            _failed.append((self._connection, latch))

    async def submit(self, work: Work[T], *, size: int = 0, durable: bool = True, erases: bool = False) -> T:
        """Run the job at once, in the loop's thread: the host's connection may belong to it."""
        return self.run(work, size=size, durable=durable, erases=erases)

    def attempt(self, work: Work[None]) -> bool:
        """Run one job unless it fails; see `Database`. A locked database is waited for as the host set it up."""
        with contextlib.suppress(StorageError):
            self.run(work)
            return True
        return False

    def read(self, work: Work[T]) -> T:
        """Run one reading job on a snapshot; see `Database`."""
        refuse_fork(self._pid)
        with section as inside, inside, self._lock:
            try:
                self._refuse_unusable()
                return read_snapshot(self._connection, work)
            except DRIVER_ERRORS as error:
                raise translated(error, self._connection, reading=True) from cause_of(error)

    def release(self) -> None:
        """Use the connection no more; closing it is the host's."""
        self._closed = True


def _text(value: object) -> str:
    # A host's text_factory may give bytes or anything else for the pragma's answer.
    return value.decode() if isinstance(value, bytes) else str(value)
