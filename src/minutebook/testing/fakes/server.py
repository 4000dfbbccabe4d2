"""
The loopback server: it receives, asks its provider's rules, answers by script, and keeps what it received.

One thread a connection, as the standard library has it, so blocking and asynchronous clients are both served. Nothing
here knows a provider; nothing of a key is kept, neither in a header nor in a query.
"""

from __future__ import annotations

import errno
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from traceback import format_exception
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from minutebook.errors import InvalidOption, InvalidValue
from minutebook.model import codec
from minutebook.model.shown import type_alone
from minutebook.testing.fakes import anthropic, gemini, openai_chat, openai_responses
from minutebook.testing.fakes.answers import Answer, Disconnect, Failure, Line, Reply, Silence, Stall, StreamFailure
from minutebook.testing.fakes.dialect import Asked, Dialect, Problem, Route, members
from minutebook.testing.fakes.seals import Seal

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["ProviderFake", "Received", "Script"]

DIALECTS: Final[Mapping[str, Dialect]] = {
    dialect.name: dialect
    for dialect in (openai_responses.DIALECT, openai_chat.DIALECT, anthropic.DIALECT, gemini.DIALECT)
}
_SECRET: Final = b"minutebook.testing.fakes"
_JSON: Final = MappingProxyType({"content-type": "application/json"})
_SSE: Final = MappingProxyType({"content-type": "text/event-stream; charset=utf-8"})


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it came in."""

    method: str
    path: str
    """With its query, a `key` in it left out."""
    header_names: tuple[str, ...]
    """In their order and spelling. No value is kept: one of them is a key."""
    body: bytes
    """The bytes that came."""
    problem: Problem | None = None
    """Why it was refused, if it broke a rule of the provider or found no answer in the script."""

    def __repr__(self) -> str:
        """Say how long the body is, not what is in it: a failed assertion prints whole lists of these."""
        told = f": {self.problem.message}" if self.problem else ""
        return f"<{self.method} {self.path}, {len(self.body)} bytes{told}>"

    @property
    def json(self) -> Any:
        """The body as a JSON value."""
        return codec.decode(self.body)


Script: TypeAlias = "Iterable[Line] | Callable[[Received], Line]"
"""The answers in order, or what makes one for each request."""


class _Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What goes out: the pieces of one response, of which `cut_bytes` alone arrive."""

    status: int = 200
    headers: Mapping[str, str] = msgspec.field(default_factory=lambda: _JSON)
    pieces: tuple[bytes, ...] = ()
    streamed: bool = False
    cut_bytes: int | None = None
    stalls: bool = False
    """Whether the connection stays open at the cut."""

    __repr__ = type_alone


class ProviderFake:
    """
    A provider's API on this machine, as strict as the real one where histories are concerned.

    Use it as a context manager; `base_url` is what the official client takes. It listens from the moment it is made.

    Args:
        provider: `openai-responses`, `openai-chat`, `anthropic` or `gemini`.
        script: what it answers, one line for each request to generate that breaks no rule.
        counts: what the count endpoint answers, likewise; after the last line, and for `None`, the honest count.
        window_tokens: the model's context window. What does not fit is refused with the provider's overflow error.
        exact: sealed blocks (reasoning, signatures) go out in an odd spelling and have to come back byte for byte,
            where the service compares values only: white space, order of keys and escapes count as well.
        secret: what seals are made with. Fakes with one secret accept each other's, as after a restart.

    Raises:
        InvalidOption: no such provider, or a window that is none.
    """

    def __init__(
        self,
        provider: str,
        script: Script = (),
        *,
        counts: Iterable[Failure | Reply | Silence | None] = (),
        window_tokens: int | None = None,
        exact: bool = False,
        secret: bytes = _SECRET,
    ) -> None:
        """Begin to listen."""
        if provider not in DIALECTS:
            raise InvalidOption(f"provider is one of {', '.join(DIALECTS)}", option="provider")
        if window_tokens is not None and window_tokens < 1:
            raise InvalidOption("window_tokens is a number of tokens from 1", option="window_tokens")
        self._dialect = DIALECTS[provider]
        self._seal = Seal(secret)
        self._window_tokens = window_tokens
        self._lines = script if callable(script) else iter(script)
        self._counts = iter(counts)
        self._exact: dict[str, bytes] | None = {} if exact else None
        self._requests: list[Received] = []
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._raised: list[Exception] = []
        self._http = _Listener(("127.0.0.1", 0), _handler(self._serve))
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        """Return the fake."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it, and raise what a script's function or a rule has raised; an error on its way is told of that."""
        self.close()
        if self._raised and error is None:
            raise self._raised[0]
        if self._raised and error is not None:
            error.add_note(f"in the fake itself:\n{''.join(format_exception(self._raised[0]))}")

    def close(self) -> None:
        """Stop listening, and end the connections that were left without an answer. A second time does nothing."""
        if not self._closed.is_set():
            self._closed.set()
            self._http.shutdown()
            self._http.server_close()
            self._thread.join()

    @property
    def base_url(self) -> str:
        """The base URL as the provider's official client takes it."""
        return f"http://127.0.0.1:{self._http.server_port}{self._dialect.root}"

    @property
    def seal(self) -> Seal:
        """What checks and makes this fake's seals, for the rules without a server."""
        return self._seal

    @property
    def requests(self) -> tuple[Received, ...]:
        """Every request in the order in which it came; one whose client went away before all of it came is none."""
        with self._changed:
            return tuple(self._requests)

    @property
    def refused(self) -> tuple[Received, ...]:
        """The requests that broke a rule or found no answer: in a test that is right, none that it did not mean to."""
        return tuple(request for request in self.requests if request.problem is not None)

    def wait_for(self, count: int, timeout_s: float = 10) -> bool:
        """Return once `count` requests have arrived, answered or not; false if they have not in that time."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._requests) >= count, timeout_s)

    # --- one request ---

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        received = _received(handler)
        headers = {name.lower(): value for name, value in handler.headers.items()}
        query = dict(parse_qsl(urlsplit(handler.path).query))
        with self._changed:
            number = len(self._requests)
            self._requests.append(received)
            self._changed.notify_all()
        # Outside the lock: a script's function may wait for what the test does meanwhile, and rules take their time.
        answer: _Sent | Silence | Problem
        try:
            answer = self._answer(received, headers, query, number)
        except Exception as error:  # of a script's function, or for want of a package: raised where the test can see it
            self._raised.append(error)
            answer = msgspec.structs.replace(self._dialect.failed(500, None), message="The fake itself has failed.")
        if isinstance(answer, Problem):
            with self._changed:
                self._requests[number] = msgspec.structs.replace(received, problem=answer)
            answer = self._refusal(answer)
        if isinstance(answer, Silence):
            self._closed.wait()
        # Whoever keeps a connection open finds it closed with the fake, rather than answered by a thread left over.
        if isinstance(answer, Silence) or self._closed.is_set():
            handler.close_connection = True
        else:
            _send(handler, answer, self._closed)

    def _answer(
        self, received: Received, headers: Mapping[str, str], query: Mapping[str, str], number: int
    ) -> _Sent | Silence | Problem:
        route = self._dialect.route(urlsplit(received.path).path, query)
        if route is None:
            return msgspec.structs.replace(self._dialect.failed(404, None), message="There is nothing at this path.")
        if received.method != "POST":
            return msgspec.structs.replace(self._dialect.failed(405, None), message="This method is not allowed here.")
        problem = self._dialect.identified(headers, query)
        if problem is not None:
            return problem
        try:
            body = codec.decode(received.body)
        except InvalidValue:
            return self._dialect.malformed("We could not parse the JSON body of your request.")
        if not isinstance(body, dict):
            return self._dialect.malformed("The body of a request is a JSON object.")
        return self._judged(route, received, body, headers, number)

    def _judged(
        self, route: Route, received: Received, body: dict[str, Any], headers: Mapping[str, str], number: int
    ) -> _Sent | Silence | Problem:
        problem = self._dialect.check(route, body, headers, self._seal) or self._altered(received, body)
        if problem is not None:
            return problem
        used = self._dialect.tokens(route, body, headers, self._seal)
        salt = received.body, str(number).encode()
        made = iter(range(1_000_000))
        asked = Asked(
            route=route,
            body=body,
            headers=headers,
            seal=self._seal,
            tokens=used,
            fresh=lambda kind: self._seal.id(kind, *salt, str(next(made)).encode()),
        )
        if route.kind == "count":
            with self._changed:
                line = next(self._counts, None)
            counted = self._dialect.counted(used)
            return _Sent(pieces=(_encoded(counted),)) if line is None else self._sent(line, asked)
        if self._window_tokens is not None:
            problem = self._dialect.overflow(body, used, self._window_tokens)
        return problem or self._said(received, asked)

    def _said(self, received: Received, asked: Asked) -> _Sent | Silence | Problem:
        if not callable(self._lines):
            with self._changed:
                line = next(self._lines, None)
            if line is None:
                return msgspec.structs.replace(self._dialect.failed(500, None), message="The script has ended.")
            return self._sent(line, asked)
        return self._sent(self._lines(received), asked)

    # --- one answer ---

    def _sent(self, line: Line, asked: Asked) -> _Sent | Silence:
        if isinstance(line, Silence):
            return line
        if isinstance(line, Reply):
            return _Sent(status=line.status, headers=line.headers, pieces=(line.body,))
        if isinstance(line, Failure):
            refusal = self._refusal(self._dialect.failed(line.status, line.code))
            return msgspec.structs.replace(refusal, headers={**_JSON, **line.headers})
        if isinstance(line, Disconnect | Stall):
            whole = self._whole(line.answer, asked)
            return msgspec.structs.replace(whole, cut_bytes=line.after_bytes, stalls=isinstance(line, Stall))
        if isinstance(line, StreamFailure):
            return self._broken(line, asked)
        return self._whole(line, asked)

    def _streams(self, asked: Asked) -> bool:
        return asked.route.stream or asked.body.get("stream") is True

    def _whole(self, answer: Answer, asked: Asked) -> _Sent:
        body = self._dialect.respond(asked, answer)
        if not self._streams(asked):
            return _Sent(pieces=(_encoded(body) if self._exact is None else self._odd(body, self._exact),))
        headers = _SSE if asked.route.framed else _JSON
        return _Sent(headers=headers, pieces=tuple(self._dialect.events(asked, body)), streamed=True)

    def _broken(self, line: StreamFailure, asked: Asked) -> _Sent:
        problem = self._dialect.failed(line.status, None)
        if not self._streams(asked):
            return self._refusal(problem)
        whole = self._whole(line.answer, asked)
        pieces = (*whole.pieces[: line.after_events], self._dialect.broken(problem))
        return msgspec.structs.replace(whole, pieces=pieces)

    def _refusal(self, problem: Problem) -> _Sent:
        return _Sent(status=problem.status, pieces=(_encoded(self._dialect.error(problem)),))

    # --- exactness ---

    def _odd(self, body: dict[str, Any], kept: dict[str, bytes]) -> bytes:
        """Return a body in which sealed blocks are spelled as no encoder at hand spells them, and remember them."""
        blocks = {seal: block for block, seal in self._blocks(body)}
        text = json.dumps(body, ensure_ascii=True)
        for seal, block in blocks.items():
            odd = json.dumps(dict(reversed(block.items())), ensure_ascii=True, separators=(" ,  ", ":\t"))
            text = text.replace(json.dumps(block, ensure_ascii=True), odd)
            kept[seal] = odd.encode()
        return text.encode()

    def _altered(self, received: Received, body: dict[str, Any]) -> Problem | None:
        """Refuse sealed blocks that are no longer written as they were."""
        kept = self._exact or {}
        for _, seal in self._blocks(body):
            if seal in kept and kept[seal] not in received.body:
                return self._dialect.malformed("A sealed block has come back in another spelling.")
        return None

    def _blocks(self, value: Any) -> Iterator[tuple[dict[str, Any], str]]:
        """Yield every object that holds a seal, and its seal."""
        if isinstance(value, list):
            for item in value:  # pyright: ignore[reportUnknownVariableType]
                yield from self._blocks(item)
        block = members(value)
        for name, member in block.items():
            if name in self._dialect.sealed and isinstance(member, str):
                yield block, member
            yield from self._blocks(member)


# --- HTTP ---


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256  # with the usual five, connections are reset as soon as twenty tasks connect at once

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that has gone, which tests mean to happen; anything else is shown as ever."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _handler(serve: Callable[[BaseHTTPRequestHandler], None]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 65_536  # one packet a response: two would wait for the client's delayed acknowledgement

        def _any(self) -> None:
            try:
                serve(self)
            except ConnectionError:
                self.close_connection = True  # the client has gone

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _any  # noqa: N815 - the standard library's names

        def log_message(self, *_: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            """Write nothing: what is worth knowing is recorded."""

    return Handler


def _received(handler: BaseHTTPRequestHandler) -> Received:
    length = int(handler.headers.get("content-length") or 0)
    if handler.headers.get("transfer-encoding"):
        # A body without a length is not read: no client of these APIs sends one, and an empty one is refused.
        handler.close_connection = True
    body = handler.rfile.read(length)
    if len(body) < length:
        raise ConnectionResetError("the client has gone before all of its request came")
    parts = urlsplit(handler.path)
    query = urlencode([(name, value) for name, value in parse_qsl(parts.query) if name != "key"])
    return Received(
        method=handler.command,
        path=f"{parts.path}?{query}" if query else parts.path,
        header_names=tuple(handler.headers.keys()),
        body=body,
    )


def _encoded(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _send(handler: BaseHTTPRequestHandler, sent: _Sent, closed: threading.Event) -> None:
    handler.send_response(sent.status)
    for name, value in sent.headers.items():
        handler.send_header(name, value)
    if sent.streamed:
        handler.send_header("transfer-encoding", "chunked")
        body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in sent.pieces) + b"0\r\n\r\n"
    else:
        body = b"".join(sent.pieces)
        handler.send_header("content-length", str(len(body)))
    handler.end_headers()
    if sent.cut_bytes is None:
        handler.wfile.write(body)
        return
    # One byte short at most, so that a cut is one whatever number was given.
    handler.wfile.write(body[: min(sent.cut_bytes, len(body) - 1)])
    handler.wfile.flush()
    if sent.stalls:
        closed.wait()
    handler.close_connection = True
    try:
        handler.connection.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        if error.errno != errno.ENOTCONN:  # the client has ended the connection first
            raise
