"""
A loopback server that providers are tried against, and the one request that all of them are asked to decide.

It answers with what it was scripted to, one reply a request, unless the rules that it is given find something to
refuse. Everything that was received is kept as bytes.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from minutebook.model.decisions import CapabilitySpec, DecisionRequest, Observation

KEY = "sk-canary-4711"
SECRET = "canary-content-0815"
TASK = "Look into a.txt — Prüfsumme 漢字 🙂"
LOOK = CapabilitySpec(
    name="look",
    description="Read a file.",
    parameters={
        "type": "object",
        "properties": {"path": {"type": "string", "maxLength": 40}},
        "required": ["path"],
        "additionalProperties": False,
    },
)
OUTPUT: dict[str, Any] = {
    "type": "object",
    "properties": {"answer": {"type": "string", "maxLength": 40}},
    "required": ["answer"],
    "additionalProperties": False,
}
REQUEST = DecisionRequest(
    run_id="run",
    invocation_id="1",
    agent_ref="agent",
    instructions="You decide.",
    task=TASK,
    capabilities=(LOOK,),
    output=OUTPUT,
)
Reply = tuple[int, dict[str, str], bytes]


class Server:
    """Answers with what it was scripted to, one reply a request, unless `fault` finds something to refuse."""

    def __init__(self, fault: Callable[[str, Any, dict[str, Any]], str], refusal: Reply) -> None:
        self.replies: list[Any] = []
        self.requests: list[tuple[str, bytes]] = []
        self.headers: list[Any] = []
        self.refused: list[str] = []
        self.release = threading.Event()
        self.arrived = threading.Event()
        self._fault = fault
        self._refusal = refusal
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 65_536  # one packet a reply: two would wait for the client's delayed acknowledgement

            def do_POST(self) -> None:
                outer.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        self.requests.append((handler.path, body))
        self.headers.append(handler.headers)
        fault = self._fault(handler.path, handler.headers, json.loads(body))
        if fault:
            self.refused.append(fault)
        reply = self._refusal if fault else self._reply(handler.path)
        self.arrived.set()  # the reply is this request's by now: whoever waited may send the next one
        if isinstance(reply, Answering):
            self.send(handler, reply.reply(json.loads(body)))
        elif callable(reply):
            reply(handler)
        else:
            self.send(handler, reply)

    def _reply(self, path: str) -> Any:
        return self.replies.pop(0)

    @staticmethod
    def send(handler: BaseHTTPRequestHandler, reply: Reply) -> None:
        status, headers, body = reply
        handler.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def body(self, index: int = -1) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.requests[index][1])
        return found

    def close(self) -> None:
        self.release.set()
        self._http.shutdown()
        self._http.server_close()


class Answering(msgspec.Struct):
    """A reply that is made from the request's body."""

    reply: Callable[[dict[str, Any]], Reply]


def ok(body: dict[str, Any] | bytes) -> Reply:
    return 200, {}, body if isinstance(body, bytes) else json.dumps(body).encode()


def closed(schema: Any) -> Any:
    """A schema with every object closed: a field that the types do not know is refused."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    shut = {key: closed(value) for key, value in schema.items()}
    if isinstance(shut.get("properties"), dict) and "type" in shut:
        shut.setdefault("additionalProperties", False)
    return shut


def seen(call: Any, value: Any = "content", *, failed: bool = False) -> Observation:
    return Observation(
        capability=call.capability, arguments=call.arguments, value=value, error=failed, reference=call.reference
    )


def asking(*observations: Observation, **changes: Any) -> DecisionRequest:
    return msgspec.structs.replace(REQUEST, observations=observations, **changes)


def acting(action: str, **fields: Any) -> str:
    return json.dumps({"decision": {"action": action, **fields}})
