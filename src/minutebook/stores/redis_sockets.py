"""
The driver's connections in two colours, all of whose waits end at one moment: the deadline of the call that they serve.

An event loop gives a call one limit of time for all that it awaits, so of these a connection only has to choose among
addresses. For blocking callers a socket's own time limit is one for each wait, and a reply of many pieces may have any
number of them: a server that sends a byte now and then would hold its caller for ever. So before each wait the socket
is given what is left until the deadline, whichever of the driver's lines waits: for an address, for the handshake of
TLS, for the answer to AUTH or for a reply (SPEC B2, bad input 95). Only the system's look-up of a name has time limits
of its own.

Of several addresses of a name each is given an equal share of what is left, so that one that says nothing does not hide
the next one.

A reply that is none, as where a proxy lost some bytes of it, ends its connection here, whichever line of the driver
reads it: what the driver's parser says of it may quote what was in it (promise I-37). What a signal handler raises
while a reply is waited for is none of that, and goes on to the caller.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any, Final

from redis import asyncio as aredis
from redis import connection as driver
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeout

_TOLD: Final = (ResponseError, RedisConnectionError, RedisTimeout, OSError)
"""What a server said, and what a connection broke by. What else a driver raises is about the reply's bytes."""
_DRIVERS: Final = ("redis", "asyncio")


def unreadable() -> RedisConnectionError:
    """Return the error of a reply that is none: whatever comes behind it on its connection is in doubt."""
    return RedisConnectionError("a reply that cannot be read")


def _is_of_the_reply(error: Exception) -> bool:
    """Return whether reading raised it, and not somebody who was called in the middle: a signal's handler."""
    if isinstance(error, _TOLD):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is None or str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] in _DRIVERS


class Deadline:
    """Until when whatever has it may wait, by `time.monotonic`."""

    __slots__ = ("until",)

    def __init__(self) -> None:
        """Nothing may wait before `until` is set."""
        self.until = 0.0

    def left(self) -> float:
        """
        Return the seconds that are left, more than 0.

        Raises:
            TimeoutError: none are.
        """
        seconds = self.until - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("the call's time is over")
        return seconds


class _Socket:
    """A connected socket that waits until the deadline and not longer. Whatever else one can do is the socket's own."""

    def __init__(self, plain: socket.socket, deadline: Deadline) -> None:
        self._plain = plain
        self._deadline = deadline
        self._waits = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def settimeout(self, seconds: float | None) -> None:
        """Take whether to wait at all; how long is the deadline's to say."""
        self._waits = seconds != 0

    def recv(self, *arguments: Any) -> bytes:
        self._set_time()
        return self._plain.recv(*arguments)

    def recv_into(self, *arguments: Any) -> int:
        self._set_time()
        return self._plain.recv_into(*arguments)

    def sendall(self, content: bytes) -> None:
        rest = memoryview(content)
        while rest:
            self._set_time()
            rest = rest[self._plain.send(rest) :]

    def _set_time(self) -> None:
        self._plain.settimeout(self._deadline.left() if self._waits else 0)


class _Timed:
    """What every connection has: the deadline of the call that it is lent to."""

    def __init__(self, **options: Any) -> None:
        """Connect nothing yet."""
        self.deadline = Deadline()
        super().__init__(**options)


class _Blocking(_Timed):
    """What each connection of a blocking caller has beside it."""

    def read_response(self, *given: Any, **named: Any) -> Any:
        untyped: Any = super()
        try:
            return untyped.read_response(*given, **named)
        except Exception as error:  # the driver has closed the connection
            if not _is_of_the_reply(error):
                raise
        raise unreadable()


class _Asynchronous(_Timed):
    """The same for an event loop."""

    async def read_response(self, *given: Any, **named: Any) -> Any:
        untyped: Any = super()
        try:
            return await untyped.read_response(*given, **named)
        except Exception as error:
            if not _is_of_the_reply(error):
                raise
        raise unreadable()


class Tcp(_Blocking, driver.Connection):
    """A connection to a host and port."""

    def _connect(self) -> Any:
        return _Socket(_reached(self, self.deadline), self.deadline)


class Tls(_Blocking, driver.SSLConnection):
    """The same, encrypted."""

    def _connect(self) -> Any:
        plain = _reached(self, self.deadline)
        try:
            plain.settimeout(self.deadline.left())
            untyped: Any = self
            return _Socket(untyped._wrap_socket_with_ssl(plain), self.deadline)
        except BaseException:
            plain.close()
            raise


class Local(_Blocking, driver.UnixDomainSocketConnection):
    """A connection to a socket in the file system."""

    def _connect(self) -> Any:
        self.socket_connect_timeout = self.deadline.left()
        return _Socket(super()._connect(), self.deadline)  # type: ignore[no-untyped-call]


class _AsyncReached(_Asynchronous):
    """What each connection to a host has, for an event loop: a socket that is connected by the deadline."""

    _plain: socket.socket | None = None

    async def _connect(self) -> None:
        self._plain = await _reached_async(self, self.deadline)
        try:
            untyped: Any = super()
            await untyped._connect()
        finally:
            self._plain = None


class AsyncTcp(_AsyncReached, aredis.Connection):
    """A connection to a host and port, for an event loop."""

    def _connection_arguments(self) -> dict[str, Any]:
        return {"sock": self._plain}


class AsyncTls(_AsyncReached, aredis.SSLConnection):
    """The same, encrypted."""

    def _connection_arguments(self) -> dict[str, Any]:
        untyped: Any = self.ssl_context
        return {"sock": self._plain, "server_hostname": self.host, "ssl": untyped.get()}


class AsyncLocal(_Asynchronous, aredis.UnixDomainSocketConnection):
    """A connection to a socket in the file system, for an event loop, which sees to its deadline alone."""


_NO_ADDRESS = "the name has no address"


def _reached(connection: Any, deadline: Deadline) -> socket.socket:
    """Return a socket that is connected to one of a host's addresses, with the options that a connection is given."""
    failed = OSError(_NO_ADDRESS)
    found = socket.getaddrinfo(connection.host, connection.port, connection.socket_type, socket.SOCK_STREAM)
    for number, (family, kind, protocol, _, address) in enumerate(found):
        try:
            plain = socket.socket(family, kind, protocol)
            try:
                _set_options(plain, connection)
                plain.settimeout(deadline.left() / (len(found) - number))
                plain.connect(address)
            except BaseException:
                plain.close()
                raise
        except OSError as error:
            failed = error
        else:
            return plain
    raise failed


async def _reached_async(connection: Any, deadline: Deadline) -> socket.socket:
    """Return the same for an event loop; the driver sets the options itself."""
    failed = OSError(_NO_ADDRESS)
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(connection.host, connection.port, type=socket.SOCK_STREAM)
    for number, (family, kind, protocol, _, address) in enumerate(found):
        try:
            plain = socket.socket(family, kind, protocol)
            try:
                plain.setblocking(False)
                async with asyncio.timeout(deadline.left() / (len(found) - number)):
                    await loop.sock_connect(plain, address)
            except BaseException:
                plain.close()
                raise
        except OSError as error:
            failed = error
        else:
            return plain
    raise failed


def _set_options(plain: socket.socket, connection: Any) -> None:
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if connection.socket_keepalive:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in connection.socket_keepalive_options.items():
            plain.setsockopt(socket.IPPROTO_TCP, option, value)
