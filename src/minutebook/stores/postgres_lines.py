"""
Connections to a PostgreSQL server: lent for one call at a time, in both colours.

A connection that was interrupted between a statement and its whole reply is never used again, whatever interrupted it:
its reply would be the next caller's (advisory A14). Nor is one that the server sent something on while nobody used it.
How many there may be, and which of them the server is still at, is kept in `postgres_places`.

Nothing here waits without end: a call has a deadline, which its connection and its place in the queue count against. Of
several hosts, or addresses of one, each is given an equal share of what is left, so that none that says nothing keeps
the next one from being asked.

A statement is kept prepared on a connection whose other end is the very process that it was made to: to parse a call
with thirty values costs the server as much as to run it. Behind a pooler, which gives each client a number of its own
making, nothing is; and should a statement be missing nevertheless, or one of its name be there, the server has run
nothing yet, and the call goes on without.

This is no pool of the driver's: those hide why a connection was refused until their own time is over, serve one event
loop alone, and keep threads or tasks of their own.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
import weakref
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import psycopg
from psycopg import conninfo, generators, waiting
from psycopg.errors import DuplicatePreparedStatement, InvalidSqlStatementName
from psycopg.pq import ConnStatus, TransactionStatus
from psycopg.types.numeric import Int8BinaryDumper

from minutebook.errors import (
    DecisionHistoryStorageFailed,
    DecisionHistoryStorageLocked,
    StorageError,
)
from minutebook.stores import postgres_statements as sql
from minutebook.stores.places import INTERVAL, LoopPlaces, Place, Places
from minutebook.stores.postgres_address import LATE, reason
from minutebook.stores.postgres_places import Idle, Owed, is_at_work
from minutebook.stores.sections import inside, later, section

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from psycopg.abc import PQGen
    from psycopg.pq.abc import PGconn

    from minutebook.stores.postgres_address import Address
    from minutebook.stores.postgres_statements import Statement

    Row = tuple[Any, ...]

T = TypeVar("T")


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
    """The connections of one store, which nobody uses after a fork: the journal sees to that."""

    def deadline(self) -> float:
        """Return by when a call that begins now has to end, by the monotonic clock."""
        ...

    async def lend(self, work: Callable[[Line], Awaitable[T]], until: float) -> T:
        """
        Run `work` on a connection.

        Raises:
            DecisionHistoryStorageLocked: none was free before `until`; nothing was sent.
            DecisionHistoryStorageFailed: none could be made, or `until` passed after something was sent.
        """
        ...

    async def close(self) -> None:
        """Close what is idle; what is lent is closed when it comes back."""
        ...


class _Notices:
    """What a server says beside its answers: whether it gave up waiting for its synchronous standby."""

    def __init__(self) -> None:
        self.unreplicated = False

    def take(self, said: psycopg.errors.Diagnostic) -> None:
        # The words are in the server's language and of its version; the function's name is not.
        self.unreplicated |= said.source_function == "SyncRepWaitForLSN"

    def check(self) -> None:
        if self.unreplicated:
            raise Unreplicated


_UNPREPARED: Final = (InvalidSqlStatementName, DuplicatePreparedStatement)


class _Blocking(psycopg.Connection[Any]):
    """A connection that waits until its deadline, and is closed by whoever interrupts it, not cancelled."""

    until: float | None = None

    def __init__(self, pgconn: PGconn) -> None:
        super().__init__(pgconn)
        self.notices = _Notices()
        self.add_notice_handler(self.notices.take)

    def wait(self, gen: PQGen[T], interval: float = INTERVAL, timeout: float | None = None) -> T:
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
        self.notices.check()
        return _one_row(cursor.fetchall(), values)

    async def tell(self, statement: Statement, schema: str, values: Sequence[object] = ()) -> None:
        """See `Line.tell`."""
        self.execute(sql.within(statement, schema), values or None)

    def keep_prepared(self, process: int) -> None:
        """See `Line.keep_prepared`."""
        _keep_prepared(self, process)


class _Asynchronous(psycopg.AsyncConnection[Any]):
    """The same for an event loop."""

    def __init__(self, pgconn: PGconn) -> None:
        super().__init__(pgconn)
        self.notices = _Notices()
        self.add_notice_handler(self.notices.take)

    async def wait(self, gen: PQGen[T], interval: float = INTERVAL, timeout: float | None = None) -> T:
        return await waiting.wait_async(gen, self.pgconn.socket, interval=interval, timeout=timeout)

    async def ask(self, statement: Statement, schema: str, values: Sequence[object] = ()) -> Row:
        """See `Line.ask`."""
        try:
            cursor = await self.execute(sql.within(statement, schema), values or None, binary=True)
        except _UNPREPARED:
            self.prepare_threshold = None
            cursor = await self.execute(sql.within(statement, schema), values or None, binary=True)
        self.notices.check()
        return _one_row(await cursor.fetchall(), values)

    async def tell(self, statement: Statement, schema: str, values: Sequence[object] = ()) -> None:
        """See `Line.tell`."""
        await self.execute(sql.within(statement, schema), values or None)

    def keep_prepared(self, process: int) -> None:
        """See `Line.keep_prepared`."""
        _keep_prepared(self, process)


def _keep_prepared(connection: _Blocking | _Asynchronous, process: int) -> None:
    # By default the size of a whole number would decide on its type, and each mix of them be a statement of its own.
    connection.adapters.register_dumper(int, Int8BinaryDumper)
    if connection.info.backend_pid == process:
        connection.prepare_threshold = 0


class ForeignReply(Exception):
    """A reply that is none to what was asked: the connection is closed, and nothing of it is used."""


class Unreplicated(Exception):
    """A transaction that is committed on the server, which did not wait for its standby to have it."""


def nonce() -> int:
    """Return a number for one call; a reply that begins with another one belongs to another call."""
    return secrets.randbits(62)


def _one_row(rows: Sequence[Row], values: Sequence[object]) -> Row:
    if len(rows) != 1 or (values and rows[0][0] != values[0]):
        raise ForeignReply
    return rows[0]


READ_ONLY: Final = "25006"
"""The code of a server that has begun to only read."""


def _is_clean(connection: _Blocking | _Asynchronous, error: BaseException) -> bool:
    """Return whether a connection can be used again after an error: one that the server told, whole."""
    return (
        isinstance(error, psycopg.Error)
        and error.sqlstate not in (None, READ_ONLY)
        and connection.pgconn.status == ConnStatus.OK
        and connection.pgconn.transaction_status == TransactionStatus.IDLE
    )


def _unconnected(*reasons: str) -> StorageError:
    all_of_them = ", ".join(dict.fromkeys(reasons))
    return DecisionHistoryStorageFailed(
        f"no connection to the server could be made: {all_of_them}; nothing was sent",
        problem="connection",
        reason=all_of_them,
        sent=False,
    )


def _late_to_connect() -> StorageError:
    return _unconnected(LATE)


def _is_demoted(error: BaseException) -> bool:
    return isinstance(error, psycopg.Error) and error.sqlstate == READ_ONLY


class _Lines:
    """What both colours share."""

    def __init__(self, address: Address, size: int, greet: Callable[[Line], Awaitable[None]]) -> None:
        """Take an address, how many connections there may be, and what is done on each new one."""
        self._address = address
        self._size = size
        self._greet = greet
        self._owed = Owed()
        self._closed = False

    def deadline(self) -> float:
        """See `Lines.deadline`."""
        return time.monotonic() + self._address.seconds

    async def _connect(self, until: float) -> Any:
        """
        Return a connection to the first host that takes one and has been greeted.

        Raises:
            DecisionHistoryStorageFailed: none did before `until`, by the monotonic clock; nothing was sent.
        """
        reasons: list[str] = []
        attempts: Sequence[dict[str, Any]] = ()
        try:
            attempts = await self._attempts()
        except (psycopg.Error, UnicodeError) as error:  # of a name in PGHOST, which no URL shows
            reasons.append(reason(error))
        for number, attempt in enumerate(attempts):
            seconds = self._address.share(until - time.monotonic(), len(attempts) - number)
            try:
                return await self._reached(conninfo.make_conninfo("", **attempt), seconds)
            except (psycopg.Error, TimeoutError) as error:
                if getattr(error, "sqlstate", None) is not None:
                    raise  # it has answered
                reasons.append(LATE if isinstance(error, TimeoutError) else reason(error))
        raise _unconnected(*reasons)

    @abstractmethod
    async def _attempts(self) -> Sequence[dict[str, Any]]:
        """Return how each address of each host is reached."""

    @abstractmethod
    async def _reached(self, text: str, seconds: float) -> Any:
        """Return a connection that has been greeted, all within so many seconds."""

    def _give_back(self, idle: Idle, connection: Any) -> None:
        idle.connections.append(connection)
        if self._closed:  # looked at afterwards: whoever closes the store meanwhile has it in the list, or is seen here
            idle.finish()

    def _struck(self, idle: Idle, connection: Any, error: BaseException) -> bool:
        """Take back a connection in whose call an error struck, and return whether it can be used again."""
        if _is_clean(connection, error):
            self._give_back(idle, connection)
            return True
        self._break_off(connection)
        if _is_demoted(error):
            idle.finish()  # its name may lead to another server by now
        return False

    def _break_off(self, connection: Any) -> None:
        """Part with a connection; while the server is still at its call it is owed, and counts among those in use."""
        if not is_at_work(connection.pgconn):
            connection.pgconn.finish()
            return
        self._owed.add(connection)
        if self._closed:
            self._finish_owed()

    def _finish_owed(self) -> None:
        if inside():
            later(self._finish_owed)
            return
        with section as mine, mine:
            self._owed.finish()

    def _late_for_a_place(self) -> StorageError:
        seconds, owed = self._address.seconds, len(self._owed)
        why = f": calls that were given up keep {owed} until the server is done" if owed else ""
        told = f"none of {self._size} connections was free within {seconds:g} seconds{why}; nothing was sent"
        return DecisionHistoryStorageLocked(told, seconds=seconds, owed=owed)

    def _late_to_answer(self) -> StorageError:
        return DecisionHistoryStorageFailed(
            f"the server gave no answer within {self._address.seconds:g} seconds, and the connection is not used any "
            "more; whether the write is there is unknown: ask for its receipt",
            problem="deadline",
        )


class BlockingLines(_Lines):
    """Connections for threads; no method suspends."""

    def __init__(self, address: Address, size: int, greet: Callable[[Line], Awaitable[None]]) -> None:
        super().__init__(address, size, greet)
        self._idle = Idle(Places(size, self._owed.settle))

    async def lend(self, work: Callable[[Line], Awaitable[T]], until: float) -> T:
        """See `Lines.lend`."""
        with section as mine, mine:  # else a call in the middle of this one could wait for the place that this has
            place = Place()
            try:
                with place.call:
                    return await self._lent(place, work, until)
            finally:
                self._idle.places.ring()

    async def _lent(self, place: Place, work: Callable[[Line], Awaitable[T]], until: float) -> T:
        if not self._idle.places.take(place, until):
            raise self._late_for_a_place()
        connection = self._idle.take() or await self._connect(until)
        try:
            connection.until = until
            result = await work(connection)
        except BaseException as error:
            clean = self._struck(self._idle, connection, error)
            if clean or not isinstance(error, psycopg.Error) or time.monotonic() < until:
                raise
        else:
            self._give_back(self._idle, connection)
            return result
        raise self._late_to_answer()

    async def _attempts(self) -> Sequence[dict[str, Any]]:
        # A name is looked up by the system, which has time limits of its own.
        return conninfo.conninfo_attempts(self._address.options)

    async def _reached(self, text: str, seconds: float) -> _Blocking:
        until = time.monotonic() + seconds
        connection = _Blocking(waiting.wait_conn(generators.connect(text), interval=INTERVAL, timeout=seconds))
        try:
            connection.until = until
            connection.autocommit, connection.prepare_threshold = True, None
            await self._greet(connection)
        except BaseException:
            self._break_off(connection)
            raise
        return connection

    async def close(self) -> None:
        """See `Lines.close`."""
        self._closed = True
        with section as mine, mine:
            self._idle.finish()
            self._owed.finish()


class AsynchronousLines(_Lines):
    """Connections for event loops, some for each; those of a loop that was closed go with it."""

    def __init__(self, address: Address, size: int, greet: Callable[[Line], Awaitable[None]]) -> None:
        super().__init__(address, size, greet)
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Idle] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        """Held over the table of loops, and over nothing that waits."""

    def _of_this_loop(self) -> Idle:
        loop = asyncio.get_running_loop()
        idle = self._loops.get(loop)
        if idle is None:
            with section as mine, mine, self._lock:
                for other in [other for other in self._loops if other.is_closed()]:
                    self._loops.pop(other).finish()
                idle = self._loops[loop] = Idle(LoopPlaces(self._size, self._kept))
        return idle

    def _kept(self) -> int:
        with section as mine, mine:
            return self._owed.settle()

    async def lend(self, work: Callable[[Line], Awaitable[T]], until: float) -> T:
        """See `Lines.lend`."""
        idle = self._of_this_loop()
        late: Callable[[], StorageError] = self._late_for_a_place
        try:
            async with asyncio.timeout(until - time.monotonic()):
                await idle.places.take()
                try:
                    late = _late_to_connect
                    connection = idle.take() or await self._connect(until)
                    late = self._late_to_answer
                    try:
                        result = await work(connection)
                    except BaseException as error:
                        self._struck(idle, connection, error)
                        raise
                    self._give_back(idle, connection)
                    return result
                finally:
                    idle.places.give()
        except TimeoutError:
            pass
        raise late()

    async def _attempts(self) -> Sequence[dict[str, Any]]:
        return await conninfo.conninfo_attempts_async(self._address.options)

    async def _reached(self, text: str, seconds: float) -> _Asynchronous:
        async with asyncio.timeout(seconds):
            made = await waiting.wait_conn_async(generators.connect(text), interval=INTERVAL, timeout=seconds)
            connection = _Asynchronous(made)
            try:
                await connection.set_autocommit(True)
                connection.prepare_threshold = None
                await self._greet(connection)
            except BaseException:
                self._break_off(connection)
                raise
            return connection

    async def close(self) -> None:
        """See `Lines.close`."""
        self._closed = True
        with section as mine, mine, self._lock:
            for idle in self._loops.values():
                idle.finish()
            self._owed.finish()
