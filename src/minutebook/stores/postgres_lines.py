"""
Connections to a PostgreSQL server: lent for one call at a time, in both colours.

A connection that was interrupted between a statement and its whole reply is closed on the spot, whatever interrupted
it: its reply would be the next caller's (advisory A14). So is one that the server sent something on while nobody used
it.
Nothing here waits without end: a call has a deadline, which its connection and its place in the queue count against.

A statement is kept prepared on a connection whose other end is the very process that it was made to: to parse a call
with thirty values costs the server as much as to run it. Behind a pooler, which gives each client a number of its own
making, nothing is; and should a statement be missing nevertheless, or one of its name be there, the server has run
nothing yet, and the call goes on without.

This is no pool of the driver's: those hide why a connection was refused until their own time is over, serve one event
loop alone, and keep threads or tasks of their own.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import select
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import psycopg
from psycopg import conninfo, waiting
from psycopg.adapt import AdaptersMap
from psycopg.errors import DuplicatePreparedStatement, InvalidSqlStatementName
from psycopg.pq import ConnStatus, TransactionStatus
from psycopg.types.numeric import Int8BinaryDumper

from minutebook.errors import (
    DecisionHistoryStorageFailed,
    DecisionHistoryStorageLocked,
    InvalidOption,
    StorageError,
    StoreClosed,
)
from minutebook.stores import postgres_statements as sql

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from psycopg.abc import PQGen

    from minutebook.stores.postgres_statements import Statement

    Row = tuple[Any, ...]

T = TypeVar("T")

_INTERVAL: Final = 0.1
"""How often a blocking wait looks for Ctrl-C."""


class Line(Protocol):
    """One connection, for one call."""

    async def ask(self, statement: Statement, schema: str, values: Sequence[object] = ()) -> Row:
        """Return the one row that a statement answers with; its first column is the first value."""
        ...

    async def tell(self, statement: Statement, schema: str, values: Sequence[object] = ()) -> None:
        """Run a statement that answers with nothing."""
        ...

    def keep_prepared(self, process: int) -> None:
        """Keep statements prepared from now on, if it is to the server's `process` that this connection was made."""
        ...


class Lines(Protocol):
    """The connections of one store."""

    async def lend(self, work: Callable[[Line], Awaitable[T]]) -> T:
        """
        Run `work` on a connection.

        Raises:
            DecisionHistoryStorageLocked: none was free before the deadline; nothing was sent.
            DecisionHistoryStorageFailed: the deadline passed after something was sent.
        """
        ...

    async def close(self) -> None:
        """Close what is idle; what is lent is closed when it comes back."""
        ...


class Address:
    """Where a server is, with the password, which nothing of this shows."""

    def __init__(self, text: str, seconds: float) -> None:
        """
        Take a URL or a list of `key=value`, and how long a call may take.

        Raises:
            InvalidOption: it is neither.
        """
        try:
            given = conninfo.conninfo_to_dict(text)
        except (psycopg.Error, AttributeError, TypeError, ValueError):
            # Its words may quote a piece of the text, and so of the password.
            raise InvalidOption(
                "no connection string of PostgreSQL: give postgresql://user@host/database, or key=value …", option="url"
            ) from None
        if type(seconds) not in (int, float) or not 0 < seconds <= 86_400:
            raise InvalidOption("timeout must be seconds, more than 0 and up to a day", option="timeout")
        options: dict[str, Any] = {
            "fallback_application_name": "minutebook",
            "keepalives_idle": 30,
            "keepalives_interval": 10,
            "keepalives_count": 3,
            "tcp_user_timeout": int(seconds * 1000),
            "connect_timeout": max(1, int(seconds)),
        }
        if "," in str(given.get("host", "")):
            options["target_session_attrs"] = "read-write"
        self.text = conninfo.make_conninfo("", **{**options, **given})
        self.seconds = seconds


_TYPES: Final = AdaptersMap(psycopg.adapters)
"""Every whole number is a `bigint`: by default its size would decide, and each mix be a statement of its own."""
_TYPES.register_dumper(int, Int8BinaryDumper)

_UNPREPARED: Final = (InvalidSqlStatementName, DuplicatePreparedStatement)
_OPTIONS: Final[dict[str, Any]] = {"autocommit": True, "prepare_threshold": None, "context": _TYPES}


class _Blocking(psycopg.Connection[Any]):
    """A connection that waits until its deadline, and is closed by whoever interrupts it, not cancelled."""

    until: float | None = None

    def wait(self, gen: PQGen[T], interval: float = _INTERVAL, timeout: float | None = None) -> T:
        if self.until is not None:
            timeout = max(0.0, self.until - time.monotonic())
        return waiting.wait(gen, self.pgconn.socket, interval=interval, timeout=timeout)

    async def ask(self, statement: Statement, schema: str, values: Sequence[object] = ()) -> Row:
        """See `Line.ask`."""
        try:
            cursor = self.execute(sql.within(statement, schema), values or None, binary=True)
        except _UNPREPARED:
            self.prepare_threshold = None
            cursor = self.execute(sql.within(statement, schema), values or None, binary=True)
        return _one_row(cursor.fetchall(), values)

    async def tell(self, statement: Statement, schema: str, values: Sequence[object] = ()) -> None:
        """See `Line.tell`."""
        self.execute(sql.within(statement, schema), values or None)

    def keep_prepared(self, process: int) -> None:
        """See `Line.keep_prepared`."""
        _keep_prepared(self, process)


class _Asynchronous(psycopg.AsyncConnection[Any]):
    """The same for an event loop."""

    async def wait(self, gen: PQGen[T], interval: float = _INTERVAL, timeout: float | None = None) -> T:
        return await waiting.wait_async(gen, self.pgconn.socket, interval=interval, timeout=timeout)

    async def ask(self, statement: Statement, schema: str, values: Sequence[object] = ()) -> Row:
        """See `Line.ask`."""
        try:
            cursor = await self.execute(sql.within(statement, schema), values or None, binary=True)
        except _UNPREPARED:
            self.prepare_threshold = None
            cursor = await self.execute(sql.within(statement, schema), values or None, binary=True)
        return _one_row(await cursor.fetchall(), values)

    async def tell(self, statement: Statement, schema: str, values: Sequence[object] = ()) -> None:
        """See `Line.tell`."""
        await self.execute(sql.within(statement, schema), values or None)

    def keep_prepared(self, process: int) -> None:
        """See `Line.keep_prepared`."""
        _keep_prepared(self, process)


def _keep_prepared(connection: _Blocking | _Asynchronous, process: int) -> None:
    if connection.info.backend_pid == process:
        connection.prepare_threshold = 0


class ForeignReply(Exception):
    """A reply that is none to what was asked: the connection is closed, and nothing of it is used."""


def nonce() -> int:
    """Return a number for one call; a reply that begins with another one belongs to another call."""
    return secrets.randbits(62)


def _one_row(rows: Sequence[Row], values: Sequence[object]) -> Row:
    if len(rows) != 1 or (values and rows[0][0] != values[0]):
        raise ForeignReply
    return rows[0]


def _is_sound(connection: _Blocking | _Asynchronous) -> bool:
    """Return whether an idle connection may be used: open, with nothing to read, be it a farewell or a late reply."""
    if connection.pgconn.status != ConnStatus.OK:
        return False
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN | select.POLLHUP | select.POLLERR)
    return not poll.poll(0)


def _is_clean(connection: _Blocking | _Asynchronous, error: BaseException) -> bool:
    """Return whether a connection can be used again after an error: one that the server told, whole."""
    return (
        isinstance(error, psycopg.Error)
        and error.sqlstate is not None
        and connection.pgconn.status == ConnStatus.OK
        and connection.pgconn.transaction_status == TransactionStatus.IDLE
    )


_REASONS: Final = (
    ("authentication failed", "the user or the password is wrong"),
    ("no password supplied", "the server wants a password"),
    ("no pg_hba.conf entry", "the server does not admit this user from here"),
    ("does not exist", "there is no such database or role"),
    ("too many", "the server has too many connections"),
    ("remaining connection slots", "the server has too many connections"),
    ("starting up", "the server is starting"),
    ("shutting down", "the server is shutting down"),
    ("session is read-only", "the server only reads"),
    ("refused", "nothing listens there"),
    ("No such file", "there is no such socket"),
    ("timeout", "it took too long"),
    ("resolve", "the host's name is unknown"),
    ("translate host name", "the host's name is unknown"),
    ("SSL", "the two do not agree on TLS"),
    ("certificate", "the certificate is not accepted"),
)
"""What a driver's or server's words mean. The words themselves may quote the connection string."""


def _unconnected(error: psycopg.Error) -> StorageError:
    told = str(error)
    reason = next((reason for words, reason in _REASONS if words in told), type(error).__name__)
    return DecisionHistoryStorageFailed(
        f"no connection to the server could be made: {reason}; nothing was sent", problem="connection", reason=reason
    )


class _Idle:
    """The idle connections of one event loop, or of all threads, and how many more may be lent."""

    def __init__(self, places: Any) -> None:
        self.places = places
        self.connections: list[Any] = []

    def take(self) -> Any:
        """Return a sound idle connection, or `None`."""
        while self.connections:
            connection = self.connections.pop()
            if _is_sound(connection):
                return connection
            connection.pgconn.finish()
        return None


class _Lines:
    """What both colours share."""

    def __init__(self, address: Address, size: int, greet: Callable[[Line], Awaitable[None]]) -> None:
        """Take an address, how many connections there may be, and what is done on each new one."""
        self._address = address
        self._size = size
        self._greet = greet
        self._process = os.getpid()
        self._closed = False

    def _give_back(self, idle: _Idle, connection: Any) -> None:
        if self._closed:
            connection.pgconn.finish()
        else:
            idle.connections.append(connection)

    def _check_open(self) -> None:
        if os.getpid() != self._process:
            raise StoreClosed("the store was opened before a fork; open one in this process")
        if self._closed:
            raise StoreClosed("the store is closed")

    def _late(self, *, sent: bool) -> Exception:
        seconds = self._address.seconds
        if sent:
            return DecisionHistoryStorageFailed(
                f"the server gave no answer within {seconds:g} seconds, and the connection was closed; whether the "
                "write is there is unknown: ask for its receipt",
                problem="deadline",
            )
        return DecisionHistoryStorageLocked(
            f"none of {self._size} connections was free within {seconds:g} seconds; nothing was sent", seconds=seconds
        )


class BlockingLines(_Lines):
    """Connections for threads; no method suspends."""

    def __init__(self, address: Address, size: int, greet: Callable[[Line], Awaitable[None]]) -> None:
        super().__init__(address, size, greet)
        self._idle = _Idle(threading.BoundedSemaphore(size))

    async def lend(self, work: Callable[[Line], Awaitable[T]]) -> T:
        """See `Lines.lend`."""
        self._check_open()
        until = time.monotonic() + self._address.seconds
        if not self._idle.places.acquire(timeout=self._address.seconds):
            raise self._late(sent=False)
        try:
            connection = self._idle.take() or await self._connect(until)
            try:
                connection.until = until
                result = await work(connection)
            except BaseException as error:
                if _is_clean(connection, error):
                    self._give_back(self._idle, connection)
                else:
                    connection.pgconn.finish()
                    if isinstance(error, psycopg.Error) and time.monotonic() >= until:
                        raise self._late(sent=True) from None
                raise
            self._give_back(self._idle, connection)
            return result
        finally:
            self._idle.places.release()

    async def _connect(self, until: float) -> _Blocking:
        try:
            connection = _Blocking.connect(self._address.text, **_OPTIONS)
        except psycopg.Error as error:
            raise _unconnected(error) from None
        try:
            connection.until = until
            await self._greet(connection)
        except BaseException:
            connection.pgconn.finish()
            raise
        return connection

    async def close(self) -> None:
        """See `Lines.close`."""
        self._closed = True
        while self._idle.connections:
            self._idle.connections.pop().pgconn.finish()


class AsynchronousLines(_Lines):
    """Connections for event loops, some for each; those of a loop that was closed go with it."""

    def __init__(self, address: Address, size: int, greet: Callable[[Line], Awaitable[None]]) -> None:
        super().__init__(address, size, greet)
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Idle] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        """Held over the table of loops, and over nothing that waits."""

    def _of_this_loop(self) -> _Idle:
        loop = asyncio.get_running_loop()
        idle = self._loops.get(loop)
        if idle is None:
            with self._lock:
                for other in [other for other in self._loops if other.is_closed()]:
                    _finish_all(self._loops.pop(other))
                idle = self._loops[loop] = _Idle(asyncio.Semaphore(self._size))
        return idle

    async def lend(self, work: Callable[[Line], Awaitable[T]]) -> T:
        """See `Lines.lend`."""
        self._check_open()
        idle = self._of_this_loop()
        sent = False
        try:
            async with asyncio.timeout(self._address.seconds), idle.places:
                connection = idle.take()
                if connection is None:
                    connection = await self._connect()
                try:
                    sent = True
                    result = await work(connection)
                except BaseException as error:
                    if _is_clean(connection, error):
                        self._give_back(idle, connection)
                    else:
                        connection.pgconn.finish()
                    raise
                self._give_back(idle, connection)
                return result
        except TimeoutError:
            raise self._late(sent=sent) from None

    async def _connect(self) -> _Asynchronous:
        try:
            connection = await _Asynchronous.connect(self._address.text, **_OPTIONS)
        except psycopg.Error as error:
            raise _unconnected(error) from None
        try:
            await self._greet(connection)
        except BaseException:
            connection.pgconn.finish()
            raise
        return connection

    async def close(self) -> None:
        """See `Lines.close`."""
        self._closed = True
        with self._lock:
            for idle in self._loops.values():
                _finish_all(idle)


def _finish_all(idle: _Idle) -> None:
    while idle.connections:
        idle.connections.pop().pgconn.finish()
