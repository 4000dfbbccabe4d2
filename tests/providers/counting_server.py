"""
A loopback server that counts and generates as the official APIs do, and remembers every request as bytes.

It counts by a rule that is given, answers with a fixed body of each API, and knows no refusals: whether something was
generated is read from its record, and never from what a client says of it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

Reply = tuple[int, dict[str, str], bytes]


class Seen(NamedTuple):
    """One request as it arrived."""

    method: str
    target: str
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def responses(text: str = '{"answer":"done"}') -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"type": "message", "id": "msg", "role": "assistant", "status": "completed", "content": [part]}
    body = {"id": "resp", "object": "response", "status": "completed", "error": None, "output": [item]}
    return {**body, "usage": {"input_tokens": 11}}


def chat(text: str = '{"answer":"done"}') -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return {"id": "c", "object": "chat.completion", "choices": [choice], "usage": {"prompt_tokens": 11}}


ANTHROPIC = {
    "id": "msg",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "done"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 11, "output_tokens": 1},
}
GEMINI = {"candidates": [{"content": {"role": "model", "parts": [{"text": "done"}]}, "finishReason": "STOP"}]}

COUNTS = {"/input_tokens": "input_tokens", "/count_tokens": "input_tokens", ":countTokens": "totalTokens"}


class CountingServer:
    """Counts with `count(body)`, answers with `generate(body)`; either may be replaced by a `Reply` of one's own."""

    def __init__(self) -> None:
        self.requests: list[Seen] = []
        self.count: Callable[[dict[str, Any]], Any] = lambda body: 7
        self.generate: Callable[[dict[str, Any]], Any] | None = None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 65_536

            def do_POST(self) -> None:
                outer.answer(self)

            do_GET = do_DELETE = do_PUT = do_PATCH = do_HEAD = do_POST  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    @property
    def counted(self) -> list[Seen]:
        return [seen for seen in self.requests if self._field(seen.target)]

    @property
    def generated(self) -> list[Seen]:
        return [seen for seen in self.requests if seen.method == "POST" and not self._field(seen.target)]

    @staticmethod
    def _field(target: str) -> str:
        path = target.partition("?")[0]
        return next((field for ending, field in COUNTS.items() if path.endswith(ending)), "")

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        seen = Seen(handler.command, handler.path, handler.headers, body)
        self.requests.append(seen)
        reply = self._reply(seen)
        if callable(reply):
            reply(handler)
            return
        status, headers, content = reply if isinstance(reply, tuple) else (200, {}, json.dumps(reply).encode())
        handler.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(content)

    def _reply(self, seen: Seen) -> Any:
        if seen.method != "POST":
            return {"data": [], "object": "list"}
        field = self._field(seen.target)
        if field:
            counted = self.count(seen.json)
            return {field: counted} if type(counted) is int else counted
        if self.generate is not None:
            return self.generate(seen.json)
        if "chat" in seen.target:
            return chat()
        if "responses" in seen.target:
            return responses()
        return ANTHROPIC if "messages" in seen.target else GEMINI

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@contextmanager
def counting_server() -> Iterator[CountingServer]:
    """A server for as long as the block runs."""
    server = CountingServer()
    try:
        yield server
    finally:
        server.close()
