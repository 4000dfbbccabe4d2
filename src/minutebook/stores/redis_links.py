"""
Connections to a server in two colours, and what each does when a call is interrupted.

A connection on which a command went out and whose reply was not read to its end would give that reply to the next
caller, and so on for ever (case A14: one chat's text in another's window). So a connection is given back by the one
line that has seen a whole reply, and closed by everything else: a cancellation, Ctrl-C, a timeout, a reply that cannot
be read. Giving back waits for nothing, so no interrupt can come between.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from redis import asyncio as aredis
from redis import connection as blocking
from redis.asyncio.retry import Retry as AsyncRetry
from redis.exceptions import BusyLoadingError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeout
from redis.retry import Retry

from minutebook.errors import InvalidOption

if TYPE_CHECKING:
    from collections.abc import Sequence

    from minutebook.stores.redis_address import Address, Node

_ASYNC: Final = (aredis.Connection, aredis.SSLConnection, aredis.UnixDomainSocketConnection)
_BLOCKING: Final = (blocking.Connection, blocking.SSLConnection, blocking.UnixDomainSocketConnection)


class Link(Protocol):
    """One connection. Whatever a method raises but a server's error, the connection is closed by whoever called it."""

    async def open(self) -> bool:
        """See that it is connected and nothing waits to be read; return whether it is a new connection."""
        ...

    async def exchange(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send commands together and return the reply of each; a server's error is a reply too."""
        ...

    async def drop(self) -> None:
        """Close it at once: it never suspends, so that a coroutine that is being closed may call it."""
        ...


class Links(Protocol):
    """The connections of one store: as many at once as it may have, and the idle ones of each node."""

    async def take(self, node: Node) -> Link:
        """Return an idle connection of a node or a new one, once there may be one more."""
        ...

    def give(self, node: Node, link: Link, *, clean: bool) -> None:
        """Take back what `take` gave, to be used again only if `clean`: connected, and all its replies were read."""
        ...

    async def rest(self, seconds: float) -> None:
        """Wait."""
        ...

    async def close(self) -> None:
        """Close the idle connections; those in use are closed by their users, and nothing is taken any more."""
        ...


class _AsyncLink:
    __slots__ = ("_connection", "home")

    def __init__(self, connection: Any, home: _Loop) -> None:
        self._connection = connection
        self.home = home

    async def open(self) -> bool:
        connection = self._connection
        if connection.is_connected and await self._spoiled():
            await self.drop()
        if connection.is_connected:
            return False
        try:
            async with asyncio.timeout(self.home.seconds):
                await connection.connect()
        except TimeoutError:
            raise RedisTimeout("no connection in time") from None
        return True

    async def _spoiled(self) -> bool:
        """Return whether the other side ended it, or something waits there that nobody asked for."""
        try:
            return bool(await self._connection.can_read())
        except (RedisError, OSError):
            return True

    async def exchange(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        connection = self._connection
        try:
            # One deadline over all of it. redis-py's own for sending would start a task, which outlives what it sends.
            async with asyncio.timeout(self.home.seconds):
                await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
                return [await _reply(connection) for _ in commands]
        except TimeoutError:
            raise RedisTimeout("no reply in time") from None

    async def drop(self) -> None:
        with contextlib.suppress(RuntimeError):  # its loop has ended, and the connection with it
            await self._connection.disconnect(nowait=True)


async def _reply(connection: Any) -> Any:
    try:
        return await connection.read_response()
    except BusyLoadingError as error:  # an answer, though redis-py counts it among the broken connections
        return error
    except (RedisConnectionError, RedisTimeout):
        raise
    except RedisError as error:
        return error


class AsyncLinks:
    """For callers with an event loop, any number of them: no connection is used by two loops."""

    def __init__(self, address: Address) -> None:
        """Connect nothing yet."""
        self._address = address
        self._loops: dict[asyncio.AbstractEventLoop, _Loop] = {}

    async def take(self, node: Node) -> Link:
        """See `Links.take`."""
        loop = asyncio.get_running_loop()
        mine = self._loops.get(loop)
        if mine is None:
            for ended in [each for each in list(self._loops) if each.is_closed()]:
                self._loops.pop(ended, None)  # its connections ended with it
            mine = self._loops[loop] = _Loop(self._address)
        try:
            async with asyncio.timeout(mine.seconds):
                await mine.room.acquire()
        except TimeoutError:
            raise RedisTimeout("no connection became free in time") from None
        idle = mine.idle.get(node)
        try:
            return idle.pop() if idle else _AsyncLink(_made(_ASYNC, self._address, node, AsyncRetry, None), mine)
        except BaseException:
            mine.room.release()
            raise

    def give(self, node: Node, link: Link, *, clean: bool) -> None:
        """See `Links.give`."""
        assert isinstance(link, _AsyncLink)
        if clean:
            link.home.idle.setdefault(node, []).append(link)
        link.home.room.release()

    async def rest(self, seconds: float) -> None:
        """See `Links.rest`."""
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        """See `Links.close`."""
        mine = self._loops.pop(asyncio.get_running_loop(), None)
        for links in mine.idle.values() if mine else ():
            for link in links:
                await link.drop()
        await asyncio.sleep(0)  # a transport tells its end to the loop's next round


class _Loop:
    """One event loop's connections."""

    __slots__ = ("idle", "room", "seconds")

    def __init__(self, address: Address) -> None:
        self.seconds = address.timeout
        self.room = asyncio.Semaphore(address.max_connections)
        self.idle: dict[Node, list[Link]] = {}


class _BlockingLink:
    __slots__ = ("_connection",)

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def open(self) -> bool:
        connection = self._connection
        if connection.is_connected and self._spoiled():
            await self.drop()
        if connection.is_connected:
            return False
        connection.connect()
        return True

    def _spoiled(self) -> bool:
        try:
            return bool(self._connection.can_read())
        except (RedisError, OSError):
            return True

    async def exchange(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        connection = self._connection
        connection.send_packed_command(connection.pack_commands(commands), check_health=False)
        return [self._reply() for _ in commands]

    def _reply(self) -> Any:
        try:
            return self._connection.read_response()
        except BusyLoadingError as error:
            return error
        except (RedisConnectionError, RedisTimeout):
            raise
        except RedisError as error:
            return error

    async def drop(self) -> None:
        self._connection.disconnect()


class BlockingLinks:
    """For callers without an event loop, in any number of threads: no method suspends."""

    def __init__(self, address: Address) -> None:
        """Connect nothing yet."""
        self._address = address
        self._room = threading.Semaphore(address.max_connections)
        self._idle: dict[Node, list[Link]] = {}

    async def take(self, node: Node) -> Link:
        """See `Links.take`."""
        if not self._room.acquire(timeout=self._address.timeout):
            raise RedisTimeout("no connection became free in time")
        try:
            with contextlib.suppress(IndexError):
                return self._idle.setdefault(node, []).pop()
            return _BlockingLink(_made(_BLOCKING, self._address, node, Retry, self._address.timeout))
        except BaseException:
            self._room.release()
            raise

    def give(self, node: Node, link: Link, *, clean: bool) -> None:
        """See `Links.give`."""
        if clean:
            self._idle.setdefault(node, []).append(link)
        self._room.release()

    async def rest(self, seconds: float) -> None:
        """See `Links.rest`."""
        time.sleep(seconds)

    async def close(self) -> None:
        """See `Links.close`."""
        for links in self._idle.values():
            while links:
                await links.pop().drop()


def _made(kinds: Sequence[Any], address: Address, node: Node, retry: Any, seconds: float | None) -> Any:
    """Return a connection that is not connected yet."""
    options = address.connect | {"socket_timeout": seconds}
    options["retry"] = retry(options.pop("backoff"), 0)
    kind = kinds[2] if address.socket else kinds[1] if address.secure else kinds[0]
    if not address.socket:
        options |= {"host": node.host, "port": node.port}
    try:
        return kind(**options)
    except (TypeError, ValueError, RedisError):
        refused = InvalidOption(
            "redis-py takes no connection of these options; see client_options", option="client_options"
        )
    raise refused
