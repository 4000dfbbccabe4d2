"""
The connections to a PostgreSQL server between two calls: which are idle, and which are owed a reply.

A server notices that a client went away only once it has something to tell it. One that waits for a row, or for a
synchronous standby that is gone, waits on, however early its client gave up. Were its place lent again at once, every
call that came too late would leave one more such wait behind, until the server takes no connection of anybody's. To
cancel it is no way out: it would commit without the standby, and the next call would find the write there. So a call
that was broken off keeps its place until the server is done with it.
"""

from __future__ import annotations

import contextlib
import select
import threading
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import ConnStatus, TransactionStatus

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn


class Owed:
    """
    Connections of a store whose calls were broken off while the server was at them, in whatever thread or loop.

    None is ever used again: of what still comes it only counts that it came.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Held, inside a section, while connections are looked at, which never waits: one thread at a time may."""
        self._connections: list[psycopg.BaseConnection[Any]] = []

    def __len__(self) -> int:
        return len(self._connections)

    def add(self, connection: psycopg.BaseConnection[Any]) -> None:
        """Keep a connection until the server is done with its call; this takes no lock."""
        self._connections.append(connection)

    def settle(self) -> int:
        """Close the connections whose calls are over, and return how many are left."""
        with self._lock:
            for connection in list(self._connections):
                if _is_over(connection.pgconn):
                    self._connections.remove(connection)
        return len(self)

    def finish(self) -> None:
        """Close all, which are then over with the next look."""
        with self._lock:
            for connection in list(self._connections):
                connection.pgconn.finish()


class Idle:
    """The idle connections of one event loop, or of all threads, and the places of those that are lent."""

    def __init__(self, places: Any) -> None:
        self.places = places
        self.connections: list[Any] = []

    def take(self) -> Any:
        """Return a sound idle connection, or `None`."""
        while (connection := self._pop()) is not None:
            if _is_sound(connection.pgconn):
                return connection
            connection.pgconn.finish()
        return None

    def finish(self) -> None:
        """Close those that are idle."""
        while (connection := self._pop()) is not None:
            connection.pgconn.finish()

    def _pop(self) -> Any:
        # Asked whether there is one, a list may have given it to another thread by the time it is taken.
        try:
            return self.connections.pop()
        except IndexError:
            return None


def _is_sound(pgconn: PGconn) -> bool:
    """Return whether an idle connection may be used: open, with nothing to read, be it a farewell or a late reply."""
    return pgconn.status == ConnStatus.OK and not _has_news(pgconn)


def _has_news(pgconn: PGconn) -> bool:
    """Return whether an open connection has something to read, its end included."""
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))


def is_at_work(pgconn: PGconn) -> bool:
    """Return whether the server has a whole call of this connection and has not told its end; never waits."""
    if pgconn.status != ConnStatus.OK or pgconn.transaction_status != TransactionStatus.ACTIVE:
        return False
    with contextlib.suppress(psycopg.Error):
        return pgconn.flush() == 0  # what it has not got whole it does not run
    return False


def _is_over(pgconn: PGconn) -> bool:
    """Return whether the server is done with a call that was broken off, or gone; then its connection is closed."""
    with contextlib.suppress(psycopg.Error):
        while not _is_drained(pgconn):
            if not _has_news(pgconn):
                return False
    pgconn.finish()
    return True


def _is_drained(pgconn: PGconn) -> bool:
    """Drop what has come of a reply; return whether it is whole, which the server tells after its commit."""
    pgconn.consume_input()
    while not pgconn.is_busy():
        if pgconn.get_result() is None:
            return True
    return False
