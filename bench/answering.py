"""
A provider that answers at once, as a process of its own, which prints its base URL and serves until its input ends.

Each answer is a Chat Completions body with one call of `look_up_order`, its id and arguments new each time; below
`/talk` it is a text. Nothing else of a request is looked at, so what a client waits for is the way there and back and
as little else as possible.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import subprocess
import sys
from typing import TYPE_CHECKING

from bench.workload import compact, exchange, text

if TYPE_CHECKING:
    from collections.abc import Iterator

_numbers = itertools.count(10**6)


def answer(number: int, *, talks: bool = False) -> bytes:
    """Return the body of a response that makes the call of this exchange, or that says something."""
    said = {"role": "assistant", "content": text("answer", number, 300)} if talks else exchange(number)[1]
    choice = {"index": 0, "finish_reason": "stop" if talks else "tool_calls", "message": said}
    usage = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
    head = {"id": f"chatcmpl-{number}", "object": "chat.completion", "created": 1, "model": "bench"}
    return compact({**head, "choices": [choice], "usage": usage})


class _Answering(asyncio.Protocol):
    def __init__(self) -> None:
        self._received = bytearray()
        self._whole = 0
        """How long the request under way is, its head included; 0 until that is known."""
        self._talks = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._whole and (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._received[:end]).lower()
            self._talks = head.startswith(b"post /talk/")
            self._whole = end + 4 + int(head.partition(b"content-length:")[2].split(None, 1)[0])
        if self._whole and len(self._received) >= self._whole:
            self._received.clear()  # no client here sends a second request before it has its answer
            self._whole = 0
            body = answer(next(_numbers), talks=self._talks)
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
            self._transport.write(head + body)  # type: ignore[attr-defined]


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Answering, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await asyncio.to_thread(sys.stdin.read)  # it ends with whoever started it, however that one ends


@contextlib.contextmanager
def answering() -> Iterator[str]:
    """Run the provider in another process, so that it shares no interpreter lock with what is measured."""
    command = [sys.executable, "-m", "bench.answering"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()


if __name__ == "__main__":
    asyncio.run(_serve())
