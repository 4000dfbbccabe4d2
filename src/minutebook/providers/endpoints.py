"""
Where providers serve their APIs, and which of their paths generate: what the guard lets through at all (SPEC D14).

The final URL of a request decides, not what a client was told: environment variables, redirects and base URLs move it.
Hosts are compared whole and exactly; paths as they are sent, escapes and all.
"""

from __future__ import annotations

import ipaddress
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import msgspec

from minutebook.errors import InvalidOption
from minutebook.model import codec
from minutebook.providers.counting import (
    ANTHROPIC,
    GEMINI,
    OPENAI_CHAT,
    OPENAI_RESPONSES,
    Counting,
    Refusal,
    refused,
)

if TYPE_CHECKING:
    from httpx2 import URL, Request


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One path that generates, and the path that counts for it."""

    path: re.Pattern[str]
    count: str
    """The counting path, as a template of the match."""
    counting: Counting
    queries: tuple[bytes, ...] = (b"",)
    official: bool = True
    """Whether the official host has the counting path."""


class Official(msgspec.Struct, frozen=True, kw_only=True):
    """Where a provider's API is served, and which of its paths generate."""

    hosts: tuple[str, ...]
    base: str
    """The path in front of all others."""
    routes: tuple[Route, ...]


_MODEL: Final = r"(?P<version>v1|v1beta)/models/(?P<model>[A-Za-z0-9._-]+)"

OFFICIAL: Final[dict[str, Official]] = {
    "openai": Official(
        hosts=("api.openai.com", *(f"{region}.api.openai.com" for region in ("us", "eu", "ae", "au", "in", "jp"))),
        base="/v1",
        routes=(
            Route(path=re.compile("/responses"), count="/responses/input_tokens", counting=OPENAI_RESPONSES),
            Route(
                path=re.compile("/chat/completions"),
                count="/chat/completions/input_tokens",
                counting=OPENAI_CHAT,
                official=False,
            ),
        ),
    ),
    "anthropic": Official(
        hosts=("api.anthropic.com",),
        base="",
        routes=(
            Route(
                path=re.compile("/v1/messages"),
                count="/v1/messages/count_tokens",
                counting=ANTHROPIC,
                queries=(b"", b"beta=true"),
            ),
        ),
    ),
    "google": Official(
        hosts=("generativelanguage.googleapis.com",),
        base="",
        routes=(
            Route(
                path=re.compile(f"/{_MODEL}:generateContent"),
                count=r"/\g<version>/models/\g<model>:countTokens",
                counting=GEMINI,
            ),
            Route(
                path=re.compile(f"/{_MODEL}:streamGenerateContent"),
                count=r"/\g<version>/models/\g<model>:countTokens",
                counting=GEMINI,
                queries=(b"", b"alt=sse"),
            ),
        ),
    ),
}
"""The direct endpoints. Azure, Bedrock, Vertex and other resellers have other hosts, paths and bodies: refused."""


class Origin(msgspec.Struct, frozen=True):
    """Where requests may go: scheme, host, port and the path in front."""

    scheme: str
    host: str
    port: int | None
    base: str
    official: bool = True


def origins(official: Official, qualified: Any) -> list[Origin]:
    """
    Return where requests may go: the official hosts, and the servers that the application vouches for.

    Raises:
        InvalidOption: no list of base URLs, or one that speaks http beyond this machine.
    """
    if type(qualified) not in (tuple, list):
        raise InvalidOption("qualified is a list or tuple of base URLs", option="qualified")
    hosts = [Origin("https", host, None, official.base) for host in official.hosts]
    return [*hosts, *(_origin(codec.text(base, "qualified")) for base in qualified)]


def origin_of(request: Request, known: list[Origin]) -> Origin:
    """
    Return where a request goes.

    Raises:
        ProviderContextCountUnavailable: nowhere that is known, or something in it would change the way behind its URL.
    """
    url, headers = request.url, request.headers
    for name in ("target", "sni_hostname"):
        if name in request.extensions:
            raise refused(Refusal.HEADER_REFUSED, name)
    for name in ("upgrade", "x-http-method-override"):
        if name in headers:
            raise refused(Refusal.HEADER_REFUSED, name)
    if headers.get("host") != url.netloc.decode("ascii"):
        raise refused(Refusal.HEADER_REFUSED, "host")
    asked = (url.scheme, url.raw_host.decode("ascii"), url.port)
    there = [origin for origin in known if (origin.scheme, origin.host, origin.port) == asked]
    if not there or url.userinfo:
        raise refused(Refusal.HOST_REFUSED)
    for origin in there:
        if _path(url).startswith(f"{origin.base}/"):
            return origin
    raise refused(Refusal.PATH_REFUSED)


class Match(msgspec.Struct, frozen=True):
    """A request that generates: by which route, and how it is counted there."""

    route: Route
    count_path: str
    model: str
    """The model that the path names; empty where the body does."""


def match_of(request: Request, official: Official, origin: Origin) -> Match | None:
    """
    Return how a request generates; `None` for reading and for counting, which do not.

    Raises:
        ProviderContextCountUnavailable: any other path or method, since it may generate.
    """
    path, query = _path(request.url)[len(origin.base) :], request.url.query
    if request.method in ("GET", "HEAD"):
        return None
    for route in official.routes if request.method == "POST" else ():
        found = route.path.fullmatch(path)
        if found and query in route.queries and (route.official or not origin.official):
            return Match(route, origin.base + found.expand(route.count), found.groupdict().get("model", ""))
        if _counts(route, path) and query in route.queries:
            return None
    raise refused(Refusal.PATH_REFUSED)


def _origin(base: str) -> Origin:
    """Return where a compatible server stands that the application vouches for."""
    url = _url(base)
    host = url.raw_host.decode("ascii")
    plain = url.scheme in ("http", "https") and host and not (url.userinfo or url.query or url.fragment)
    if not plain or (url.scheme == "http" and not _is_loopback(host)):
        raise InvalidOption(
            "qualified holds base URLs of servers: https, or http on this machine, such as http://127.0.0.1:8080/v1, "
            "without user, query and fragment",
            option="qualified",
        )
    return Origin(url.scheme, host, url.port, _path(url).rstrip("/"), official=False)


def _url(text: str) -> URL:
    httpx2 = httpx2_module()
    try:
        url: URL = httpx2.URL(text)
    except (httpx2.InvalidURL, ValueError):
        url = httpx2.URL("")  # the error is left behind: it quotes the text, a password in it too
    return url


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _path(url: URL) -> str:
    """Return the path as it is sent, escapes and all: two spellings of a path are two paths here."""
    return url.raw_path.partition(b"?")[0].decode("ascii")


def _counts(route: Route, path: str) -> bool:
    if route.counting is GEMINI:
        return re.fullmatch(f"/{_MODEL}:countTokens", path) is not None
    return path == route.count


def httpx2_module() -> Any:
    """
    Return the HTTP library, which is loaded where it is first used.

    Raises:
        InvalidOption: it is not installed.
    """
    try:
        return import_module("httpx2")
    except ImportError as error:
        raise InvalidOption(
            "the guard needs httpx2, which comes with the SDKs; run: pip install 'minutebook[openai]', or "
            "'minutebook[anthropic]'"
        ) from error
