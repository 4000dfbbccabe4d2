"""
A TCP proxy that does what networks do: it delays replies, says nothing any more, or ends in the middle of a reply.

It runs in a thread with an event loop of its own; what it does is told by plain attributes, at any time.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable, Iterator


class Proxy:
    """One port of its own before another port of this machine."""

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.port = 0
        self.delay: tuple[float, float] | None = None
        """Between how many seconds each piece of a reply waits."""
        self.drip: float | None = None
        """How many seconds each single byte of a reply waits."""
        self.silent = False
        """Whether replies are swallowed while the connection stands: half open."""
        self.left: int | None = None
        """How many more bytes of replies go through before a connection is reset; then there is no limit again."""
        self.becomes: Callable[[bytes], bytes] | None = None
        """What each piece of a reply is changed into."""
        self.replied = 0
        """How many bytes of replies went through."""
        self.connections = 0
        self._chance = random.Random(0)
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> Proxy:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def reset_all(self) -> None:
        """Reset every connection that stands."""
        self._loop.call_soon_threadsafe(lambda: [writer.transport.abort() for writer in self._writers])

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, back = await asyncio.open_connection("127.0.0.1", self.upstream)
        self._writers.add(writer)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await asyncio.gather(self._requests(reader, back), self._replies(there, writer))
        finally:
            self._writers.discard(writer)
            for end in (writer, back):
                end.transport.abort()

    async def _requests(self, reader: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            back.write(data)
            await back.drain()
        back.close()

    async def _replies(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await there.read(65_536):
            if self.delay is not None:
                await asyncio.sleep(self._chance.uniform(*self.delay))
            if self.silent:
                continue
            if self.becomes is not None:
                data = self.becomes(data)
            left = self.left
            if left is not None and len(data) > left:
                data, self.left = data[:left], None
                writer.write(data)
                await writer.drain()
                self.replied += len(data)
                # What was sent has to arrive: a reset would take it along.
                writer.write_eof()
                await asyncio.sleep(0.002)
                raise ConnectionResetError
            if left is not None:
                self.left = left - len(data)
            self.replied += len(data)
            for piece in (data,) if self.drip is None else [data[at : at + 1] for at in range(len(data))]:
                await asyncio.sleep(self.drip or 0)
                writer.write(piece)
                await writer.drain()
        writer.close()


@contextlib.contextmanager
def proxy(upstream: int) -> Iterator[Proxy]:
    """Run a proxy before a port."""
    made = Proxy(upstream).start()
    try:
        yield made
    finally:
        made.stop()
