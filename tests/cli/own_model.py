"""A server of the user's own for the demo and the chat, which can hold a request until its client is killed."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class OwnModel(ThreadingHTTPServer):
    """
    A server that speaks Chat Completions as a paid one does: it needs a key, and has no counting endpoint.

    It takes the first action that its schema offers, with the last order number that it was told. A request that it
    holds is answered by nothing: it tells that the request is there, and waits until who sent it is gone.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.finishes_at_once = 0
        """How many requests to answer with a finish, whatever is offered."""
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        self.holds: tuple[int, ...] = ()
        """Which requests are held, counted from 1."""
        self.arrived = threading.Event()
        """Set once such a request is there."""
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class _Answer(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, OwnModel)
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, self.headers["Authorization"], request))
        if len(self.server.asked) in self.server.holds:
            self.server.arrived.set()
            with contextlib.suppress(ConnectionResetError):
                self.rfile.read(1)  # ends when the client does
            return
        told = json.dumps([message["content"] for message in request["messages"]])
        order = ([*re.findall(r"ORD-[0-9]{5}", told)] or ["ORD-00000"])[-1]
        day = ([*re.findall(r"[A-Z][a-z]+day", told)] or ["Someday"])[-1]
        schema = request["response_format"]["json_schema"]["schema"]["properties"]["decision"]
        early = self.server.finishes_at_once > 0
        self.server.finishes_at_once -= early
        name = schema["anyOf"][-1 if early else 0]["properties"]["action"]["const"]
        fields = {"text": f"Order {order} arrives on {day}"} if name == "finish" else {"order_number": order}
        text = json.dumps({"decision": {"action": name, **fields}})
        message = {"role": "assistant", "content": text}
        body = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"prompt_tokens": len(told)}}
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

    def log_message(self, *arguments: object) -> None: ...
