"""What a server sends without end or out of all proportion: read up to a bound, whatever its status (SPEC D9)."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import tomllib
import tracemalloc
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from tests.http_clients import http_client

from minutebook.errors import AgentDecisionProviderUnavailable, InvalidOption
from minutebook.providers.anthropic import ANTHROPIC_SDK
from minutebook.providers.gemini_http import Httpx2Post
from minutebook.providers.openai_http import OPENAI
from minutebook.providers.sdk_http import MAX_REFUSAL_BYTES, MAX_RESPONSE_BYTES, Sdk, SdkPost
from minutebook.testing import drive

ROOT = Path(__file__).parents[2]
MIB = 1024 * 1024
BOMB_BYTES = 3 * MAX_RESPONSE_BYTES
BOMB = gzip.compress(b" " * BOMB_BYTES, 9)
GIVEN_UP_BYTES = 8 * MAX_RESPONSE_BYTES
"""Where the endless body ends after all, so that a client without a bound is found out and not waited for."""


class Flood:
    """A loopback server that answers everything with one status and one kind of body, and counts what it sent."""

    def __init__(self) -> None:
        self.status = 200
        self.write: Callable[[BaseHTTPRequestHandler], None] = self.endless
        self.sent = 0
        self.cut = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(outer.status)
                self.send_header("Content-Type", "application/json")
                self.close_connection = True
                try:
                    outer.write(self)
                except OSError:
                    outer.cut.set()

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()
        self.base_url = f"http://127.0.0.1:{self._http.server_port}/v1"

    def endless(self, handler: BaseHTTPRequestHandler) -> None:
        """One chunk after the other, until the client hangs up."""
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        chunk = b"10000\r\n" + b" " * 65_536 + b"\r\n"
        while self.sent < GIVEN_UP_BYTES:
            handler.wfile.write(chunk)
            self.sent += 65_536
        handler.wfile.write(b"0\r\n\r\n")

    def bomb(self, handler: BaseHTTPRequestHandler) -> None:
        """A few bytes that unpack to a thousand times as many."""
        handler.send_header("Content-Encoding", "gzip")
        handler.send_header("Content-Length", str(len(BOMB)))
        handler.end_headers()
        handler.wfile.write(BOMB)

    def body(self, body: bytes) -> Callable[[BaseHTTPRequestHandler], None]:
        """A body of a known length."""

        def write(handler: BaseHTTPRequestHandler) -> None:
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body)

        return write

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def flood() -> Iterator[Flood]:
    server = Flood()
    yield server
    server.close()


def openai_post(flood: Flood, *, blocking: bool) -> Any:
    http, kind = (httpx2.Client, openai.OpenAI) if blocking else (httpx2.AsyncClient, openai.AsyncOpenAI)
    client = kind(base_url=flood.base_url, api_key="k", http_client=http(verify=False))
    return SdkPost(OPENAI, client, blocking=blocking)("/chat/completions", b"{}")


def anthropic_post(flood: Flood, *, blocking: bool) -> Any:
    http, kind = (httpx2.Client, anthropic.Anthropic) if blocking else (httpx2.AsyncClient, anthropic.AsyncAnthropic)
    client: Any = kind(base_url=flood.base_url, api_key="k", http_client=http(verify=False))  # type: ignore[arg-type]
    return SdkPost(ANTHROPIC_SDK, client, blocking=blocking)("/v1/messages", b"{}")


def gemini_post(flood: Flood, *, blocking: bool) -> Any:
    client = http_client(verify=False) if blocking else httpx2.AsyncClient(verify=False)
    return Httpx2Post(client, flood.base_url, "k", blocking=blocking)("/models/m:generateContent", b"{}")


def posted(make: Callable[..., Any], *, blocking: bool) -> Callable[[Flood], bytes]:
    def post(flood: Flood) -> bytes:
        async def within() -> bytes:
            return await make(flood, blocking=blocking)  # type: ignore[no-any-return]

        return drive(within()) if blocking else asyncio.run(within())

    return post


MAKES = {"openai": openai_post, "anthropic": anthropic_post, "gemini": gemini_post}
POSTS = {
    f"{name}-{'blocking' if blocking else 'asynchronous'}": posted(make, blocking=blocking)
    for name, make in MAKES.items()
    for blocking in (True, False)
}


def refused(post: Callable[[Flood], bytes], flood: Flood) -> tuple[str, int]:
    """Return the code of the refusal, and how many bytes were held at once before it came."""
    tracemalloc.start()
    try:
        with pytest.raises(AgentDecisionProviderUnavailable) as caught:
            post(flood)
        return str(caught.value.provider_error_code), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("post", POSTS.values(), ids=POSTS)
def test_d09_an_endless_body_is_read_up_to_the_bound(flood: Flood, post: Callable[[Flood], bytes]) -> None:
    """The connection is closed there, so that the server stops too."""
    code, held = refused(post, flood)
    assert code == "response_too_large"
    assert held < 2 * MAX_RESPONSE_BYTES
    assert flood.cut.wait(20)
    assert flood.sent < MAX_RESPONSE_BYTES + 32 * MIB  # what the two sockets hold


@pytest.mark.parametrize("post", POSTS.values(), ids=POSTS)
def test_d09_a_gzip_bomb_is_unpacked_up_to_the_bound(flood: Flood, post: Callable[[Flood], bytes]) -> None:
    """The bound is of what is unpacked, and no piece is unpacked far beyond it."""
    flood.write = flood.bomb
    assert len(BOMB) < MAX_RESPONSE_BYTES // 100
    code, held = refused(post, flood)
    assert code == "response_too_large"
    assert held < 2 * MAX_RESPONSE_BYTES + 2 * len(BOMB)


@pytest.mark.parametrize("kind", ["endless", "bomb"])
@pytest.mark.parametrize("status", [307, 400, 503])
@pytest.mark.parametrize("post", POSTS.values(), ids=POSTS)
def test_d09_the_body_of_a_refusal_is_bounded_too(
    flood: Flood, post: Callable[[Flood], bytes], status: int, kind: str
) -> None:
    """Only a code is taken from it; the status is told all the same."""
    flood.status, flood.write = status, getattr(flood, kind)
    code, held = refused(post, flood)
    assert code == ("redirect_refused" if status == 307 else f"http_{status}")
    # What the client made before, and a piece in flight.
    assert held < 16 * MAX_REFUSAL_BYTES
    assert flood.sent < MAX_REFUSAL_BYTES + 32 * MIB


@pytest.mark.parametrize("post", POSTS.values(), ids=POSTS)
def test_d09_a_body_of_just_the_bound_is_taken(flood: Flood, post: Callable[[Flood], bytes]) -> None:
    """The bound is the last length that is taken, and one byte more is the first that is not."""
    flood.write = flood.body(b" " * MAX_RESPONSE_BYTES)
    assert len(post(flood)) == MAX_RESPONSE_BYTES
    flood.write = flood.body(b" " * (MAX_RESPONSE_BYTES + 1))
    assert refused(post, flood)[0] == "response_too_large"


@pytest.mark.parametrize("post", POSTS.values(), ids=POSTS)
def test_d09_the_code_of_a_packed_refusal_is_read(flood: Flood, post: Callable[[Flood], bytes]) -> None:
    """A refusal within the bound is unpacked like any other body."""
    packed = gzip.compress(
        json.dumps(
            {"error": {"code": "rate_limit_exceeded", "type": "rate_limit_error", "status": "RESOURCE_EXHAUSTED"}}
        ).encode()
    )

    def write(handler: BaseHTTPRequestHandler) -> None:
        handler.send_header("Content-Encoding", "gzip")
        flood.body(packed)(handler)

    flood.status, flood.write = 429, write
    assert refused(post, flood)[0] in ("rate_limit_exceeded", "rate_limit_error", "RESOURCE_EXHAUSTED")


CLIENTS: dict[str, tuple[Any, Sdk, bool]] = {
    "openai": (openai.OpenAI, OPENAI, True),
    "openai-asynchronous": (openai.AsyncOpenAI, OPENAI, False),
    "anthropic": (anthropic.Anthropic, ANTHROPIC_SDK, True),
    "anthropic-asynchronous": (anthropic.AsyncAnthropic, ANTHROPIC_SDK, False),
}


def installed(sdk: Sdk) -> str:
    return str(openai.__version__ if sdk is OPENAI else anthropic.__version__)


@pytest.mark.parametrize("name", CLIENTS)
def test_d09_a_client_that_sends_in_another_way_is_refused_by_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a newer SDK with another name for its private method. Nothing is sent without the bound."""
    kind, sdk, blocking = CLIENTS[name]
    client = kind(api_key="k")
    SdkPost(sdk, client, blocking=blocking)
    for owner in [each for each in kind.__mro__ if sdk.sender in vars(each)]:
        monkeypatch.setattr(owner, "_renamed", vars(owner)[sdk.sender], raising=False)
        monkeypatch.delattr(owner, sdk.sender)
    monkeypatch.setenv(sdk.key, "k")
    for construct in (
        lambda: SdkPost(sdk, client, blocking=blocking),
        lambda: SdkPost(sdk, None, blocking=blocking).connect(),
    ):
        with pytest.raises(InvalidOption, match=f"^{sdk.package} {installed(sdk)} .* {sdk.sender}, .* {sdk.versions}"):
            construct()


@pytest.mark.parametrize("name", CLIENTS)
def test_d09_a_client_that_returns_something_else_is_refused_by_name(
    flood: Flood, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the method is there, but what it returns is no response; that is no failed connection."""
    kind, sdk, blocking = CLIENTS[name]
    owner = next(each for each in kind.__mro__ if sdk.sender in vars(each))
    monkeypatch.setattr(owner, sdk.sender, lambda *_, **__: object())
    post = SdkPost(sdk, kind(base_url=flood.base_url, api_key="k"), blocking=blocking)

    async def within() -> None:
        with pytest.raises(InvalidOption, match=f"^{sdk.package} {installed(sdk)} .* {sdk.versions}"):
            await post("/x", b"{}")

    if blocking:
        drive(within())
    else:
        asyncio.run(within())


def named(versions: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The first and the last of the versions that are known to work."""
    first, last = (tuple(map(int, version.split("."))) for version in versions.split(" to "))
    return first, last


def is_named(version: str, versions: str) -> bool:
    """Whether a version is one of those that are known to work."""
    first, last = named(versions)
    return first <= tuple(map(int, version.split(".")[:2])) <= last


@pytest.mark.parametrize("sdk", [OPENAI, ANTHROPIC_SDK], ids=lambda sdk: sdk.package)
def test_d09_the_installed_clients_are_of_versions_known_to_work(sdk: Sdk) -> None:
    """
    The tests of this file have tried the installed version: where it is newer than those named, it is to be named. One
    that came out since makes no fault here of what the others have shown to work.

    The error for a client that sends in another way tells people these versions; the extra asks for the oldest, and for
    no major behind the newest.
    """
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = next(each for each in extras[sdk.package] if each.startswith(sdk.package))
    oldest, newest = named(sdk.versions)
    assert asked == f"{sdk.package}>={'.'.join(map(str, oldest))},<{newest[0] + 1}"
    if is_named(installed(sdk), f"{newest[0]}.{newest[1] + 1} to {newest[0]}.999"):
        pytest.skip(
            f"{sdk.package} {installed(sdk)} is newer than {sdk.versions}: where the others pass, name it in Sdk"
        )
    assert is_named(installed(sdk), sdk.versions)


def test_d09_control_an_older_and_a_newer_version_are_found() -> None:
    """The control: a version on either side of those named, and one that looks smaller as a text."""
    assert [is_named(version, "3.9 to 3.57") for version in ("3.9.0", "3.57.9", "3.10.1")] == [True] * 3
    assert [is_named(version, "3.9 to 3.57") for version in ("3.8.9", "3.58.0", "4.0.0", "2.99.0")] == [False] * 4


def test_d09_control_the_client_alone_has_no_bound(flood: Flood) -> None:
    """The same bomb and the official client by itself: all of it is held, so the figures above can be missed."""
    flood.write = flood.bomb
    options: Any = {"follow_redirects": False}
    tracemalloc.start()
    try:
        with openai.OpenAI(base_url=flood.base_url, api_key="k", http_client=httpx2.Client(verify=False)) as client:
            body = client.post("/chat/completions", content=b"{}", cast_to=httpx2.Response, options=options).content
            held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(body) == BOMB_BYTES
    assert held > BOMB_BYTES
