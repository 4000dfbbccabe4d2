"""
Connections to a server in two colours, and what each does when a call is interrupted.

A connection on which a command went out and whose reply was not read to its end would give that reply to the next
caller, and so on for ever (case A14: one chat's text in another's window). So a connection is given back by the one
line that has seen a whole reply, and closed by everything else: a cancellation, Ctrl-C, a timeout, a reply that cannot
be read. Giving back waits for nothing, so no interrupt can come between.

It is closed too where it leads to a server that is no longer the one to ask, and where its store was closed meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
import weakref
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeVar

from redis.asyncio.retry import Retry as AsyncRetry
from redis.exceptions import BusyLoadingError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeout
from redis.retry import Retry

from minutebook.errors import InvalidOption
from minutebook.stores.places import Place, Places
from minutebook.stores.redis_sockets import AsyncLocal, AsyncTcp, AsyncTls, Local, Tcp, Tls
from minutebook.stores.sections import section

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractContextManager

    from minutebook.stores.redis_address import Address, Node

T = TypeVar("T")

_ASYNC: Final = (AsyncTcp, AsyncTls, AsyncLocal)
_BLOCKING: Final = (Tcp, Tls, Local)


class Link(Protocol):
    """
    One connection. Whatever a method raises but a server's error, the connection is closed by whoever called it.

    `until` is when a method gives up, by `time.monotonic`.
    """

    looked: float
    """When the server behind it was last looked at, by `time.monotonic`."""

    async def open(self, until: float) -> bool:
        """See that it is connected and nothing waits to be read; return whether it is a new connection."""
        ...

    async def exchange(self, commands: Sequence[tuple[Any, ...]], until: float) -> list[Any]:
        """Send commands together and return the reply of each; a server's error is a reply too."""
        ...

    def drop(self) -> None:
        """Close it at once, in whatever loop or thread it is used."""
        ...


class Links(Protocol):
    """The connections of one store: as many at once as it may have, and the idle ones of each node."""

    section: ClassVar[AbstractContextManager[AbstractContextManager[object]]]
    """Entered for a whole call, with what it gives, so that a thread begins none in the middle of another."""

    async def lend(self, node: Node, work: Callable[[Link], Awaitable[T]], until: float) -> T:
        """
        Run `work` on an idle connection of a node or a new one, once there may be one more.

        It is used again only if `work` returns: then it is connected, and all its replies were read.

        Raises:
            NoRoom: none was free before `until`.
        """
        ...

    def forget(self, node: Node) -> None:
        """Close the idle connections of a node, whose name may lead to another server by now."""
        ...

    async def rest(self, seconds: float) -> None:
        """Wait."""
        ...

    async def close(self) -> None:
        """Close the idle connections of every loop and thread; those in use are closed as they are given back."""
        ...


class _Inherited:
    """
    What a forked child has of its parent's connections, which it must not close.

    An event loop that closes a connection takes it out of what the loop waits for, and that, an epoll, both processes
    have together: the parent would hear of no reply any more. So here nothing ever collects them (promise I-17).
    """

    def __init__(self) -> None:
        self._made: weakref.WeakSet[_AsyncLink] = weakref.WeakSet()
        self._kept: list[object] = []

    def note(self, link: _AsyncLink) -> None:
        """Remember a connection, should this process fork."""
        self._made.add(link)

    def after_fork(self) -> None:
        """Take every connection from whoever would close it."""
        for link in list(self._made):
            self._kept.append(link.detach())


_inherited = _Inherited()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_inherited.after_fork)


class _AsyncLink:
    __slots__ = ("__weakref__", "_connection", "looked")

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.looked = 0.0
        _inherited.note(self)

    async def open(self, until: float) -> bool:
        connection = self._connection
        if connection.is_connected and await self._spoiled():
            self.drop()
        if connection.is_connected:
            return False
        connection.deadline.until = until
        try:
            async with asyncio.timeout(_left(until)):
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

    async def exchange(self, commands: Sequence[tuple[Any, ...]], until: float) -> list[Any]:
        connection = self._connection
        try:
            # One deadline over all of it. redis-py's own for sending would start a task, which outlives what it sends.
            async with asyncio.timeout(_left(until)):
                await connection.send_packed_command([packed(commands)], check_health=False)
                return [await _reply(connection) for _ in commands]
        except TimeoutError:
            raise RedisTimeout("no reply in time") from None

    def drop(self) -> None:
        # Without waiting redis-py suspends nowhere in it, so that a coroutine that is being closed may do it too.
        closing = self._connection.disconnect(nowait=True)
        try:
            closing.send(None)
        except StopIteration:
            pass
        except RuntimeError:  # no loop runs here, or its own has ended
            self._shut()
        finally:
            closing.close()

    def drop_elsewhere(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close it from outside its loop, which may run in another thread, stand still or have ended."""
        self._shut()
        try:
            loop.call_soon_threadsafe(self.drop)  # its descriptor goes when the loop runs
        except RuntimeError:
            self.drop()

    def _shut(self) -> None:
        """End the connection itself, which takes no loop; a descriptor of our own cannot be another's by then."""
        writer = getattr(self._connection, "_writer", None)
        if writer is not None:
            with (
                contextlib.suppress(OSError, ValueError),
                socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as own,
            ):
                own.shutdown(socket.SHUT_RDWR)

    def detach(self) -> object:
        """Make it one that is not connected, and return what it was connected by."""
        connection = self._connection
        held = (connection._reader, connection._writer)
        connection._reader = connection._writer = None
        return held


def packed(commands: Sequence[tuple[Any, ...]]) -> bytes:
    """
    Return commands as RESP has them.

    redis-py's own takes as long for the forty arguments of a request as the server for all that they ask.
    """
    parts: list[bytes] = []
    for command in commands:
        parts.append(b"*%d\r\n" % len(command))
        for argument in command:
            given = argument if type(argument) is bytes else str(argument).encode()
            parts.append(b"$%d\r\n%b\r\n" % (len(given), given))
    return b"".join(parts)


def _left(until: float) -> float:
    return max(until - time.monotonic(), 0.0)


async def _reply(connection: Any) -> Any:
    try:
        return await connection.read_response()
    except (ResponseError, BusyLoadingError) as error:  # redis-py has the second among broken connections
        return error


class AsyncLinks:
    """For callers with an event loop, any number of them: no connection is used by two loops."""

    section: ClassVar[AbstractContextManager[AbstractContextManager[object]]] = nullcontext(nullcontext())

    def __init__(self, address: Address) -> None:
        """Connect nothing yet."""
        self._address = address
        self._loops: dict[asyncio.AbstractEventLoop, _Loop] = {}
        self._closed = False
        self._new(address.nodes[0])

    def _new(self, node: Node) -> Any:
        return _made(_ASYNC, self._address, node, AsyncRetry, None)

    async def lend(self, node: Node, work: Callable[[Link], Awaitable[T]], until: float) -> T:
        """See `Links.lend`."""
        mine = self._of_this_loop()
        try:
            async with asyncio.timeout(_left(until)):
                await mine.room.acquire()
        except TimeoutError:
            raise NoRoom from None
        try:
            return await self._lent(mine.idle.setdefault(node, []), node, work)
        finally:
            mine.room.release()

    async def _lent(self, idle: list[_AsyncLink], node: Node, work: Callable[[Link], Awaitable[T]]) -> T:
        link = idle.pop() if idle else _AsyncLink(self._new(node))
        clean = False
        try:
            result = await work(link)
            clean = True
        finally:
            self._give(idle, link, clean=clean)
        return result

    def _give(self, idle: list[_AsyncLink], link: _AsyncLink, *, clean: bool) -> None:
        _keep(idle, link, clean=clean, closed=lambda: self._closed)

    def _of_this_loop(self) -> _Loop:
        loop = asyncio.get_running_loop()
        mine = self._loops.get(loop)
        if mine is None:
            for ended in [each for each in list(self._loops) if each.is_closed()]:
                self._end(ended)
            mine = self._loops[loop] = _Loop(self._address)
        return mine

    def forget(self, node: Node) -> None:
        """See `Links.forget`. Those of other loops find out by themselves."""
        mine = self._loops.get(asyncio.get_running_loop())
        if mine is not None:
            _drop_all(mine.idle.get(node, []))

    async def rest(self, seconds: float) -> None:
        """See `Links.rest`."""
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        """See `Links.close`."""
        self._closed = True
        for loop in list(self._loops):
            self._end(loop)
        await asyncio.sleep(0)  # a transport tells its end to the loop's next round

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close the idle connections of a loop, this one or another."""
        links = self._loops.pop(loop, None)
        here = loop is asyncio.get_running_loop()
        for idle in list(links.idle.values()) if links else ():
            with contextlib.suppress(IndexError):
                while link := idle.pop():
                    link.drop() if here else link.drop_elsewhere(loop)


class _Loop:
    """One event loop's connections."""

    __slots__ = ("idle", "room")

    def __init__(self, address: Address) -> None:
        self.room = asyncio.Semaphore(address.max_connections)
        self.idle: dict[Node, list[_AsyncLink]] = {}


def _keep(idle: list[Any], link: Link, *, clean: bool, closed: Callable[[], bool]) -> None:
    """Lay a connection to the idle ones, or close it."""
    if not clean or closed():
        link.drop()
        return
    idle.append(link)
    if closed():  # by another thread, which may have looked before
        _drop_all(idle)


def _idle_one(idle: list[_BlockingLink]) -> _BlockingLink | None:
    with contextlib.suppress(IndexError):
        return idle.pop()
    return None


def _drop_all(links: list[Any]) -> None:
    """Close connections that other threads may be taking at the same time."""
    with contextlib.suppress(IndexError):
        while True:
            links.pop().drop()


class NoRoom(Exception):
    """All connections that a store may have were in use until the deadline: nothing was sent."""


class _BlockingLink:
    __slots__ = ("_connection", "looked")

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.looked = 0.0

    async def open(self, until: float) -> bool:
        connection = self._connection
        if connection.is_connected and self._spoiled():
            self.drop()
        if connection.is_connected:
            return False
        connection.deadline.until = until
        connection.connect()
        return True

    def _spoiled(self) -> bool:
        try:
            return bool(self._connection.can_read())
        except (RedisError, OSError):
            return True

    async def exchange(self, commands: Sequence[tuple[Any, ...]], until: float) -> list[Any]:
        connection = self._connection
        connection.deadline.until = until
        connection.send_packed_command([packed(commands)], check_health=False)
        return [self._reply() for _ in commands]

    def _reply(self) -> Any:
        try:
            return self._connection.read_response()
        except (ResponseError, BusyLoadingError) as error:
            return error

    def drop(self) -> None:
        self._connection.disconnect()


class BlockingLinks:
    """For callers without an event loop, in any number of threads: no method suspends."""

    section: ClassVar[AbstractContextManager[AbstractContextManager[object]]] = section

    def __init__(self, address: Address) -> None:
        """Connect nothing yet."""
        self._address = address
        self._places = Places(address.max_connections)
        self._idle: dict[Node, list[_BlockingLink]] = {}
        self._closed = False
        self._new(address.nodes[0])

    def _new(self, node: Node) -> _BlockingLink:
        return _BlockingLink(_made(_BLOCKING, self._address, node, Retry, self._address.timeout))

    async def lend(self, node: Node, work: Callable[[Link], Awaitable[T]], until: float) -> T:
        """See `Links.lend`."""
        place = Place()
        try:
            with place.call:
                if not self._places.take(place, until):
                    raise NoRoom
                return await self._lent(self._idle.setdefault(node, []), node, work)
        finally:
            self._places.ring()

    async def _lent(self, idle: list[_BlockingLink], node: Node, work: Callable[[Link], Awaitable[T]]) -> T:
        link = _idle_one(idle) or self._new(node)
        clean = False
        try:
            result = await work(link)
            clean = True
        finally:
            _keep(idle, link, clean=clean, closed=lambda: self._closed)
        return result

    def forget(self, node: Node) -> None:
        """See `Links.forget`."""
        _drop_all(self._idle.get(node, []))

    async def rest(self, seconds: float) -> None:
        """See `Links.rest`."""
        time.sleep(seconds)

    async def close(self) -> None:
        """See `Links.close`."""
        self._closed = True
        for links in list(self._idle.values()):
            _drop_all(links)


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
            "redis-py takes no connection of these options; see client_options and what the URL says behind ?",
            option="client_options",
        )
    raise refused
