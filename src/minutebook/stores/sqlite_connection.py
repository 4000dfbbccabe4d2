"""
Connections to a database file: how one is opened, what its file and its settings must be, and what its errors mean.

The writer and a host's own connection both stand on this; nothing here outlives a call.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import time
from typing import TYPE_CHECKING, Final, TypeVar

from minutebook.errors import (
    DecisionHistoryCorrupt,
    DecisionHistorySchemaUnsupported,
    DecisionHistoryStorageFailed,
    DecisionHistoryStorageLocked,
    MinutebookError,
    StoreClosed,
)
from minutebook.stores import sqlite_statements as sql

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

T = TypeVar("T")

BUSY_SECONDS: Final = 10.0
"""How long a write waits for another process's transaction."""

SMALLEST_PAGE: Final = 512
"""SQLite takes a file shorter than its smallest page for an empty one, and would write over it."""

# These failed before anything could be synced, so the rollback leaves the database as it was and it can go on.
_HARMLESS = frozenset({"SQLITE_IOERR_SHMSIZE", "SQLITE_IOERR_SHMMAP", "SQLITE_IOERR_NOMEM"})


# --- errors ----------------------------------------------------------------------------------------------------------


DRIVER_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)
"""What the driver raises: the second where a damaged name stands in SQLite's own message, or in a row."""


_OTHER_TABLES: Final = ("no such table", "no such column", "has no column named", "already exists")
"""What SQLite says to a statement that was written for other tables than it finds."""


def translated(
    error: sqlite3.Error | UnicodeDecodeError, connection: sqlite3.Connection | None = None, *, reading: bool = False
) -> MinutebookError:
    """
    Return our error for one of the driver's; the driver's texts name statements and columns, never content.

    With the `connection` that failed, tables that our statements do not fit are told as another schema.
    """
    nothing = "nothing was read" if reading else "nothing was written"
    if isinstance(error, UnicodeDecodeError):
        return DecisionHistoryCorrupt("the database is damaged: a name in it is no UTF-8; restore a backup")
    name = getattr(error, "sqlite_errorname", "")
    if isinstance(error, sqlite3.ProgrammingError) and not name:
        return StoreClosed("the database connection is closed, or belongs to another thread")
    primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return DecisionHistoryStorageLocked(
            f"another program kept the database locked for {BUSY_SECONDS:.0f} seconds; {nothing}",
            seconds=BUSY_SECONDS,
        )
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CONSTRAINT):
        return DecisionHistoryCorrupt(f"the database is damaged or no database ({name}); restore a backup", sqlite=name)
    if primary == sqlite3.SQLITE_FULL:
        return DecisionHistoryStorageFailed(
            f"the disk is full; {nothing}, free space and try again",
            problem="disk_full",
            sqlite=name,
        )
    if connection is not None and any(told in str(error) for told in _OTHER_TABLES):
        with contextlib.suppress(*DRIVER_ERRORS):
            return _other_schema(_schema_version(connection.cursor()), nothing)
    unknown = "whether this write reached the disk is known only once the store is opened again"
    return DecisionHistoryStorageFailed(
        f"the database failed ({name or type(error).__name__}); {nothing if reading else unknown}",
        problem="database",
        sqlite=name,
    )


def _other_schema(version: int, nothing: str) -> DecisionHistorySchemaUnsupported:
    """Return the refusal of tables that our statements do not fit; `version` is what they are said to have."""
    if version > sql.SCHEMA_VERSION:
        return _newer(version)
    told = f"are not those of schema version {version}, which it says that it has" if version else "say no version"
    return DecisionHistorySchemaUnsupported(
        f"the database's tables {told}; {nothing}. This minutebook knows up to version {sql.SCHEMA_VERSION}: use the "
        "one that wrote them, or restore a backup",
        found=version,
        supported=sql.SCHEMA_VERSION,
    )


def cause_of(error: BaseException) -> BaseException | None:
    """Return the driver's error as the cause of ours; a UnicodeDecodeError would show the bytes that it is about."""
    return None if isinstance(error, UnicodeDecodeError) else error


def proves_nothing(error: BaseException) -> bool:
    """Whether the error leaves open what is on the disk, so that no later success can be believed."""
    if not isinstance(error, sqlite3.Error):
        return False
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code == sqlite3.SQLITE_IOERR and getattr(error, "sqlite_errorname", "") not in _HARMLESS


class Latch:
    """
    What failed on a connection so that nothing it says afterwards can be believed (promise I-6).

    After a failed sync the kernel may have dropped the dirty pages, and a second attempt that succeeds proves nothing.
    """

    __slots__ = ("failed",)

    def __init__(self) -> None:
        self.failed = ""
        """SQLite's name of what failed; empty while nothing did."""

    def refuse_failed(self) -> None:
        """
        Refuse any further use once something failed in this way.

        Raises:
            DecisionHistoryStorageFailed: `problem` is `failed_before`.
        """
        if self.failed:
            raise DecisionHistoryStorageFailed(
                f"the database failed before ({self.failed}) and what is on the disk is unknown; "
                "close the store, and a connection of your own with it, and open the database again",
                problem="failed_before",
                sqlite=self.failed,
            )

    def undo(self, cursor: sqlite3.Cursor, error: BaseException) -> None:
        """Roll back what `error` ended, and note an error, of the rollback too, that proves nothing."""
        if proves_nothing(error):
            self.failed = getattr(error, "sqlite_errorname", "")
        try:
            if cursor.connection.in_transaction:
                cursor.execute(sql.ROLLBACK)
        except sqlite3.Error as second:
            self.failed = getattr(second, "sqlite_errorname", "") or "rollback"


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether somebody else holds the lock that a statement needed."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def refuse_fork(pid: int) -> None:
    """Refuse a connection of the process `pid` in a child of it, which may not use it: `StoreClosed`."""
    if os.getpid() != pid:
        raise StoreClosed("this store was opened before a fork; open it again in the child process")


def pauses(seconds: float) -> Iterator[None]:
    """Yield after each of a series of growing pauses, until `seconds` have passed."""
    import random  # loaded by whoever has to wait

    end = time.monotonic() + seconds
    pause = 0.0002
    while time.monotonic() < end:
        # Processes that wait in step would meet again and again.
        time.sleep(pause * (0.5 + random.random()))  # noqa: S311 - no secret
        yield
        pause = min(pause * 2, 0.01)


def patiently(attempt: Callable[[], object], seconds: float) -> None:
    """Call `attempt` until it succeeds, fails for another reason than a lock, or `seconds` have passed."""
    waits = pauses(seconds)
    while True:
        try:
            attempt()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or next(waits, StopIteration) is StopIteration:
                raise
        else:
            return


def closed() -> StoreClosed:
    """Return the refusal of whatever is asked of a store that was closed."""
    return StoreClosed("the store is closed")


# --- opening ---------------------------------------------------------------------------------------------------------


def _newer(version: int) -> DecisionHistorySchemaUnsupported:
    return DecisionHistorySchemaUnsupported(
        f"the database has schema version {version}, this minutebook knows up to {sql.SCHEMA_VERSION}; "
        "use the newer release that wrote it",
        found=version,
        supported=sql.SCHEMA_VERSION,
    )


def _refuse_unknown_version(version: int) -> None:
    if version > sql.SCHEMA_VERSION:
        raise _newer(version)


def refuse_foreign(path: str) -> None:
    """
    Refuse a file of another application or a newer version before anything is changed in it.

    Opened as immutable, SQLite takes no lock, makes no sidecar and recovers no log. Reading the header with `open`
    would not do: closing a descriptor drops the locks that another connection of this process has on the file.
    """
    try:
        _look_at_header(path)
    except (sqlite3.DatabaseError, DecisionHistorySchemaUnsupported):
        # At the first look it may just have been coming into being; by now it is ours, or its journal is there.
        _look_at_header(path)


def _look_at_header(path: str) -> None:
    if os.path.lexists(path + "-journal"):
        # A transaction is under way or was cut off, perhaps the one that creates the file. What the file holds is known
        # once SQLite has undone it; `_create_database` judges it then.
        return
    if 0 < os.stat(path).st_size < SMALLEST_PAGE:
        raise DecisionHistoryCorrupt("the file is too short to be a database; name another file, or restore a backup")
    from urllib.parse import quote  # loaded by the first file that is opened, not by whoever imports a store

    name = "file:" + quote(os.fsencode(path)) + "?mode=ro"
    _refuse_foreign_view(name + "&immutable=1")
    if os.path.exists(path + "-wal") and not os.path.exists(path + "-journal"):
        # The log may be another database's. A connection that cannot write reads through it and, unlike ours, cannot
        # fold it into the file when it is closed (bad input 86).
        _refuse_foreign_view(name)


def _refuse_foreign_view(name: str) -> None:
    with contextlib.closing(sqlite3.connect(name, uri=True, isolation_level=None)) as connection:
        # Where the power went during a checkpoint the file is shorter than its header says, and the log has the rest.
        connection.execute(sql.READ_DAMAGED)
        _judge_header(connection)


def _judge_header(connection: sqlite3.Connection) -> int:
    """Return the schema version of a file that is ours, 0 of a new one; refuse any other."""
    application = connection.execute(sql.GET_APPLICATION_ID).fetchone()[0]
    version = int(connection.execute(sql.GET_USER_VERSION).fetchone()[0])
    if application == sql.APPLICATION_ID:
        _refuse_unknown_version(version)
    elif application or version or connection.execute(sql.COUNT_OBJECTS).fetchone()[0]:
        raise DecisionHistorySchemaUnsupported(
            f"the database belongs to another application (id {application}, ours is {sql.APPLICATION_ID}); "
            "name another file",
            found=application,
            supported=sql.APPLICATION_ID,
        )
    return version


def _create_tables(cursor: sqlite3.Cursor) -> None:
    cursor.execute(sql.CREATE_SCHEMA)
    cursor.execute(sql.CREATE_NAMESPACE)
    cursor.execute(sql.CREATE_CONVERSATION)
    cursor.execute(sql.CREATE_CONVERSATION_AGE)
    cursor.execute(sql.CREATE_LOG)
    cursor.execute(sql.CREATE_RECEIPT)
    cursor.execute(sql.CREATE_RESIDUE)
    cursor.execute(sql.ADD_VERSION, (1,))


MIGRATIONS: Final[tuple[Callable[[sqlite3.Cursor], None], ...]] = (_create_tables,)
"""What leads from each schema version to the next; the first one makes the tables."""


def _schema_version(cursor: sqlite3.Cursor) -> int:
    """Return the version that our tables are said to have, 0 where there are none."""
    cursor.row_factory = None
    if not cursor.execute(sql.HAS_SCHEMA).fetchone()[0]:
        return 0
    return int(cursor.execute(sql.GET_VERSION).fetchone()[0])


def migrate(cursor: sqlite3.Cursor) -> None:
    """
    Bring our tables to the newest version, inside the caller's transaction.

    Raises:
        DecisionHistorySchemaUnsupported: they are of a newer version than this code knows.
        sqlite3.OperationalError: there are some already that do not say which version they are of.
    """
    version = _schema_version(cursor)
    _refuse_unknown_version(version)
    for step in MIGRATIONS[version:]:
        step(cursor)


def _connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    connection.execute(sql.NO_AUTOCHECKPOINT)
    return connection


def _create_database(connection: sqlite3.Connection) -> None:
    """
    Make or migrate the tables in one transaction, then switch to WAL.

    A new file has its tables and our application id in one commit under the rollback journal. Therefore, whatever
    moment another process looks at it, the file itself is either empty or ours.
    """
    cursor = connection.cursor()
    cursor.execute(sql.SYNC_EXTRA)
    cursor.execute(sql.BEGIN_WRITE)
    try:
        if _judge_header(connection) != sql.SCHEMA_VERSION:
            migrate(cursor)
            cursor.execute(sql.SET_APPLICATION_ID)
            cursor.execute(sql.SET_USER_VERSION)
        cursor.execute(sql.COMMIT)
    except BaseException:
        if connection.in_transaction:
            cursor.execute(sql.ROLLBACK)
        raise
    # SQLite itself does not wait here for the others that are just doing the same.
    patiently(lambda: cursor.execute(sql.USE_WAL), BUSY_SECONDS)


def _set_durable(connection: sqlite3.Connection) -> None:
    """Set what durability and erasure rest on, and read it back."""
    connection.execute(sql.SYNC_FULL)
    connection.execute(sql.USE_SECURE_DELETE)
    connection.execute(sql.LIMIT_WAL)
    if sys.platform == "darwin":
        connection.execute(sql.USE_FULLFSYNC)
        connection.execute(sql.USE_CHECKPOINT_FULLFSYNC)
    mode = connection.execute(sql.GET_JOURNAL_MODE).fetchone()[0]
    synchronous = connection.execute(sql.GET_SYNCHRONOUS).fetchone()[0]
    if mode != "wal" or synchronous != 2:
        raise DecisionHistoryStorageFailed(
            f"SQLite runs with journal_mode={mode} and synchronous={synchronous} where wal and 2 are needed; "
            "use a local disk",
            problem="pragmas",
        )


def open_writing(path: str) -> sqlite3.Connection:
    """
    Return a connection that writes durably, to a database of ours that is made where there is none.

    It has opened its log and the log's index, so these are the files that it goes on with.
    """
    connection = _connect(path)
    try:
        _create_database(connection)
        _set_durable(connection)
        connection.execute(sql.GET_USER_VERSION).fetchone()
        # From here on waiting is the writer's own: SQLite's would hold up an event loop.
        connection.execute(sql.WAIT_FOR_NOBODY)
    except BaseException:
        connection.close()
        raise
    return connection


def open_reading(path: str) -> sqlite3.Connection:
    """Return a connection that can write nothing."""
    connection = _connect(path)
    connection.execute(sql.QUERY_ONLY)
    return connection


# --- the checkpoint lock ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def checkpoint_lock(descriptor: int, seconds: float) -> Generator[bool, None, None]:
    """Hold the lock that all processes take for a checkpoint, or yield False when it cannot be had in time."""
    try:
        import fcntl
    except ImportError:
        # Python for Windows brings its own SQLite, of a version that needs no such lock since 3.51.3.
        yield sqlite3.sqlite_version_info >= (3, 51, 3)
        return
    waits = pauses(seconds)
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if next(waits, StopIteration) is StopIteration:
                yield False
                return
        except OSError:  # no locks to be had, or the disk fails: then there is no checkpoint either
            yield False
            return
        else:
            break
    try:
        yield True
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


# --- reading ---------------------------------------------------------------------------------------------------------


def read_snapshot(connection: sqlite3.Connection, work: Callable[[sqlite3.Cursor], T]) -> T:
    """Return what `work` reads in one transaction, so from one state of the database."""
    cursor = connection.cursor()
    cursor.row_factory = None
    try:
        # Ctrl-C may have ended the last read between any two lines, its own rollback included.
        if connection.in_transaction:
            cursor.execute(sql.ROLLBACK)
        cursor.execute(sql.BEGIN_READ)
        return work(cursor)
    finally:
        if connection.in_transaction:
            cursor.execute(sql.ROLLBACK)
        cursor.close()
