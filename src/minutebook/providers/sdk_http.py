"""
Posting bytes with a provider's official client, of which OpenAI's and Anthropic's are two of one make.

The client is the host's, with its keys, proxies and time-outs. Its low-level `post` takes the body as `content`, so
what is sent are the bytes that were built, and gives back the raw response, so what is kept are the bytes that came.
Its own retries and redirects are off: a step is one request (SPEC D9, D13).

One coroutine serves both clients: under the blocking one it ends without ever suspending. Which of the two is told by
whoever drives it, since a blocking client under an event loop would stop the loop for as long as a model thinks.
"""

from __future__ import annotations

import contextlib
import inspect
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from urllib.parse import urlsplit

import msgspec

from minutebook.errors import BlockingMismatch, InvalidOption, InvalidValue, MinutebookError
from minutebook.model import codec
from minutebook.model.pause import drive
from minutebook.providers.decision import unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping

    from minutebook.errors import AgentDecisionProviderUnavailable
    from minutebook.model.codec import JSON

MAX_RESPONSE_BYTES: Final = codec.MAX_PAYLOAD_BYTES
"""How long a response may be once it is unpacked: no record takes a longer one."""

MAX_REFUSAL_BYTES: Final = 1024 * 1024
"""Of a response whose status is not 2xx, only a code is passed on; one that is longer counts as empty."""


OnChunk: TypeAlias = "Callable[[bytes], Awaitable[None]]"
"""Who is given the pieces of a body while it comes in."""


class Post(Protocol):
    """Who posts the bytes of a request, and has a client of its own for as long as nobody closes it."""

    def connect(self) -> None:
        """Have a client, so that a missing package or key is told before anything is recorded."""
        ...

    async def close(self) -> None:
        """Close the client if it was made here."""
        ...

    async def __call__(self, path: str, body: bytes) -> bytes:
        """Post `body` once and return the body of a 2xx response."""
        ...


class LoopOfUse:
    """
    The event loop that the connections of a client belong to: they end with it, and no other loop can use them.

    It is asked by the library that the clients themselves ask; nothing of a loop is used but whether it is the same.
    """

    def __init__(self, extra: str) -> None:
        """Begin with none; `extra` is what brings that library."""
        self._extra = extra
        self._loop: object = None

    def moved(self) -> bool:
        """Return whether another loop runs now than at the time before. Without a loop nothing moves."""
        before, now = self._loop, self._running()
        self._loop = before if now is None else now
        return now is not None and before is not None and now != before

    def usable(self, client: Any, *, made: bool, blocking: bool) -> tuple[Any, bool]:
        """
        Return a client for this request, `None` where a fresh one is to be made, and whether its connections are of
        another event loop.

        Such a client is left for a fresh one where it was `made` here: a program may call `asyncio.run` several times.
        """
        moved = not blocking and self.moved()
        return (None, False) if moved and made else (client, moved)

    def _running(self) -> object:
        try:
            return imported("anyio.lowlevel", self._extra).current_token()
        except RuntimeError:
            return None


class Sdk(msgspec.Struct, frozen=True, kw_only=True):
    """What tells one official client from the other: names, and what its provider's errors are called."""

    package: str
    """The module, and the extra of minutebook that installs it."""
    blocking: str
    asynchronous: str
    base_error: str
    key: str
    """The environment variable that holds a key."""
    headers: Mapping[str, str] = {}
    """Headers of every request; `anthropic-beta` joins what the client sends there by itself."""
    sender: str
    """The method of a client that sends one request and returns the response. It is no public one: see `versions`."""
    versions: str
    """The versions of the package whose clients were seen to send by it."""
    sends_tuples: bool = False
    """Whether that method returns a tuple which begins with the response."""
    authenticates: Callable[[Any], bool] = bool
    """Return whether a client that was made from options and environment has what it needs to prove who it is."""
    code: Callable[[int, JSON], str | None]
    """Return the enumerated code for a status and the `error` of its body; `None` for one not in its table."""


class Unshown(bytes):
    """A body whose `repr` is its length: at DEBUG, Anthropic's client logs its options, what it posts among them."""

    def __repr__(self) -> str:
        return f"<{len(self):,} bytes>"


class SdkPost:
    """
    The one request that leaves: bytes to a path, bytes back.

    Args:
        sdk: which official client it is.
        client: an asynchronous client of it, or where `blocking` a blocking one; without one, one is made at first use.
        base_url: for a client of our own; else the environment says.
        api_key: likewise.
        blocking: whether no event loop runs this.

    Raises:
        InvalidOption: a client that is none or of an unknown version, options of a client beside one, or a base URL
            that is none.
        BlockingMismatch: a client of the other colour.
    """

    def __init__(
        self,
        sdk: Sdk,
        client: object = None,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        blocking: bool = False,
    ) -> None:
        for name, value in (("base_url", base_url), ("api_key", api_key)):
            if value is not None and (client is not None or type(value) is not str or not value):
                raise InvalidOption(f"{name} is a text, and given without a client", option=name)
        if base_url is not None:
            check_base_url(base_url, "https://models.example.com/v1")
        self._sdk = sdk
        self._settings = {"base_url": base_url, "api_key": api_key}
        self._blocking = blocking
        self._made = client is None
        self._client: Any = None if client is None else _single(sdk, client, blocking=blocking)
        self._loop = LoopOfUse(sdk.package)

    def host(self) -> str | None:
        """Return where requests go, by a client or URL that says so; `None` for wherever a client of our own goes."""
        url = self._settings["base_url"] if self._client is None else str(self._client.base_url)
        return urlsplit(url or "").hostname

    def connect(self) -> None:
        """
        Have a client, so that a missing package or key is told before anything is recorded.

        Raises:
            InvalidOption: the package is absent or of an unknown version, nothing names a key, or the environment names
                a base URL that is none.
        """
        if self._client is None:
            sdk, module = self._sdk, imported(self._sdk.package, self._sdk.package)
            missing = f"no {sdk.blocking} client: give client or api_key, or set {sdk.key}"
            # An asynchronous client's own HTTP client closes itself when it is collected, under whatever loop runs
            # then, which fails under another than that of its connections, and is printed. This one does not.
            own = {} if self._blocking else {"http_client": module.DefaultAsyncHttpxClient()}
            try:
                made = getattr(module, sdk.blocking if self._blocking else sdk.asynchronous)(**self._settings, **own)
            except getattr(module, sdk.base_error) as error:
                raise InvalidOption(missing) from error
            if not sdk.authenticates(made):
                raise InvalidOption(missing)
            check_base_url(str(made.base_url), "https://models.example.com/v1")
            self._client = _single(sdk, made, blocking=self._blocking)

    async def close(self) -> None:
        """
        Close the client if it was made here; the host's own stays open. The next request makes another.

        What was opened under an event loop that is gone ended with it, and is let go.
        """
        if self._made and self._client is not None:
            client, self._client = self._client, None
            if self._blocking or not self._loop.moved():
                await result_of(client.close())

    async def __call__(self, path: str, body: bytes, on_chunk: OnChunk | None = None) -> bytes:
        """
        Post `body` once and return the body of a 2xx response; `on_chunk` is given each piece of that as it comes in.

        Raises:
            AgentDecisionProviderUnavailable: every other status, a redirect, a time-out, a connection that failed,
                a body above `MAX_RESPONSE_BYTES`, and whatever a transport of the host raises.
        """
        self._client, moved = self._loop.usable(self._client, made=self._made, blocking=self._blocking)
        self.connect()
        client = self._client
        package = self._sdk.package
        module, response_type = imported(package, package), imported("httpx2", package).Response
        failure: MinutebookError
        try:
            options = {"headers": self._headers(client), "follow_redirects": False}
            posted = client.post(path, content=Unshown(body), cast_to=response_type, options=options, stream=True)
            response = await result_of(posted)
            received = await read_body(response, MAX_RESPONSE_BYTES, blocking=self._blocking, on_chunk=on_chunk)
            if received is not None:
                return received
            failure = unavailable("response_too_large")
        except module.APIStatusError as error:
            failure = unavailable(self._status_code(error.status_code, error.response.content), error.status_code)
        except module.APITimeoutError:
            failure = unavailable("timeout")
        except module.APIConnectionError as error:
            failure = own_error(error) or connection_failed(error.__cause__ or error, moved=moved)
        except getattr(module, self._sdk.base_error):
            failure = unavailable("client_failed")
        except MinutebookError:
            raise
        except Exception as error:  # the host's transport, proxy or hook may raise anything
            failure = unavailable("timeout") if is_timeout(error) else connection_failed(error, moved=moved)
        # Raised out here and without its cause: the SDK's errors hold the request with its key and messages, and
        # quote the provider, which quotes them in turn (promise I-37).
        raise failure

    def _status_code(self, status: int, body: bytes) -> str:
        return status_code(self._sdk.code, status, body)

    def _headers(self, client: Any) -> dict[str, str]:
        """Return the headers of a request. One with several values keeps those that the host's client sends."""
        headers = {"Content-Type": "application/json"}
        for name, value in self._sdk.headers.items():
            given = client.default_headers.get(name)
            headers[name] = f"{given},{value}" if isinstance(given, str) and given else value
        return headers


def check_base_url(base_url: str, example: str) -> None:
    """
    Refuse what no request can be posted below.

    Raises:
        InvalidOption: no `http` or `https` URL of a host, or one with a user, query or fragment; it is not quoted.
    """
    try:
        base_url.encode()
        url = urlsplit(base_url)
        (url.hostname or "").encode("idna")
        plain = url.scheme in ("http", "https") and url.hostname and url.port != 0 and not (url.query or url.fragment)
        # A password in a URL is shown wherever that is: by a client's repr, in logs, among the arguments of a command.
        plain = plain and "@" not in url.netloc
    except ValueError:
        plain = False
    if not plain:
        raise InvalidOption(
            f"base_url is the URL of a server, such as {example}, without user, query and fragment; give a key as "
            "api_key",
            option="base_url",
        )


def status_code(code: Callable[[int, JSON], str | None], status: int, body: bytes) -> str:
    """Return the enumerated code for a response whose status is not 2xx."""
    if 300 <= status < 400:
        return "redirect_refused"
    try:
        value = codec.decode(body)
    except InvalidValue:
        value = None
    return code(status, value.get("error") if isinstance(value, dict) else None) or f"http_{status}"


def imported(module: str, extra: str) -> Any:
    """
    Return a module of an extra.

    Raises:
        InvalidOption: it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise InvalidOption(f"the package {module} is missing; run: pip install 'minutebook[{extra}]'") from error


async def result_of(returned: Any) -> Any:
    """Return what a method of either client comes to."""
    return await returned if inspect.isawaitable(returned) else returned


async def read_body(response: Any, max_bytes: int, *, blocking: bool, on_chunk: OnChunk | None = None) -> bytes | None:
    """
    Return the body of a streamed response; `None`, and a closed connection, once it is longer than `max_bytes`.

    `on_chunk` is waited for with each piece.
    """
    body = bytearray()  # a list would cost more than the pieces do where a server sends them byte by byte
    async with contextlib.aclosing(_pieces(response, blocking=blocking)) as pieces:
        async for piece in pieces:
            if len(body) + len(piece) > max_bytes:
                return None
            body += piece
            if on_chunk is not None:
                await on_chunk(piece)
    return bytes(body)


async def _pieces(response: Any, *, blocking: bool) -> AsyncGenerator[bytes, None]:
    """Yield the body as it comes in; the client unpacks it in pieces of at most 1 MiB."""
    if blocking:
        pieces: Generator[bytes, None, None] = response.iter_bytes()
        with contextlib.closing(pieces):
            for piece in pieces:
                yield piece
    else:
        coming: AsyncGenerator[bytes, None] = response.aiter_bytes()
        async with contextlib.aclosing(coming):
            async for piece in coming:
                yield piece


def connection_failed(error: BaseException, *, moved: bool) -> AgentDecisionProviderUnavailable:
    """Return the error for a connection that failed, by the type of what told so; its text may quote the request."""
    advice = (
        "; the client that was given was used under another event loop, and its connections ended with that one: give "
        "each asyncio.run a client of its own, or leave client out"
    )
    return unavailable("connection_failed", cause=type(error).__name__, advice=advice if moved else "")


def is_timeout(error: Exception) -> bool:
    """Return whether the HTTP client, of whichever of its two names, waited too long."""
    return any(kind.__name__ == "TimeoutException" for kind in type(error).__mro__)


def check_colour(client: object, ours: type, other: type, *, blocking: bool) -> None:
    """
    Refuse a client that is not of the class `ours`.

    Raises:
        BlockingMismatch: it is of the class `other`.
        InvalidOption: it is of another one.
    """
    package = ours.__module__.partition(".")[0]
    if isinstance(client, other):
        raise BlockingMismatch(
            f"an {package}.{other.__name__} was given to {'a blocking' if blocking else 'an asynchronous'} provider; "
            f"give an {package}.{ours.__name__}, or take the provider from "
            f"{'minutebook' if blocking else 'minutebook.sync'}"
        )
    if not isinstance(client, ours):
        raise InvalidOption(f"client is an {package}.{ours.__name__}, not {type(client).__name__}", option="client")


def _single(sdk: Sdk, client: object, *, blocking: bool) -> Any:
    """Return a client without its retries; the connections stay shared with it."""
    module = imported(sdk.package, sdk.package)
    pair = getattr(module, sdk.blocking), getattr(module, sdk.asynchronous)
    ours, other = pair if blocking else pair[::-1]
    check_colour(client, ours, other, blocking=blocking)
    checked: Any = client
    single = checked.with_options(max_retries=0)
    _bound_refusals(single, sdk, blocking=blocking)
    return single


def _bound_refusals(client: Any, sdk: Sdk, *, blocking: bool) -> None:
    """
    Have a client of our own read the body of a response that is not 2xx within a bound.

    The client reads those bodies itself, whole, before it raises. What it sends with is the one place to come before.
    """
    send = getattr(client, sdk.sender, None)
    if not callable(send):
        raise _unknown_sender(sdk)
    in_tuple = sdk.sends_tuples

    async def sent(*given: Any, **options: Any) -> Any:
        made = await result_of(send(*given, **options))
        if in_tuple is not isinstance(made, tuple):
            raise _unknown_sender(sdk)
        response: Any = made[0] if in_tuple else made
        if not hasattr(response, "is_success"):
            raise _unknown_sender(sdk)
        if response.is_success:
            return made
        body = await read_body(response, MAX_REFUSAL_BYTES, blocking=blocking)
        headers = [(name, value) for name, value in response.headers.multi_items() if name not in _OF_THE_TRANSFER]
        request, status = response.request, response.status_code
        bounded = type(response)(status, headers=headers, content=body or b"", request=request)
        return (bounded, *made[1:]) if in_tuple else bounded

    def sent_at_once(*given: Any, **options: Any) -> Any:
        return drive(sent(*given, **options))

    setattr(client, sdk.sender, sent_at_once if blocking else sent)


def _unknown_sender(sdk: Sdk) -> InvalidOption:
    """Return the error for a version of the package that sends in another way: its refusals would have no bound."""
    version = getattr(imported(sdk.package, sdk.package), "__version__", "of an unknown version")
    return InvalidOption(
        f"{sdk.package} {version} does not send by {sdk.sender}, where the length of what a server refuses with is "
        f"bounded; versions known to work are {sdk.versions}: install one of them, or a newer minutebook",
        option="client",
    )


_OF_THE_TRANSFER: Final = frozenset({"content-encoding", "content-length", "transfer-encoding"})


def own_error(error: BaseException) -> MinutebookError | None:
    """Return the error of this package that an SDK wrapped: a refusal from inside a transport keeps its code."""
    cause: BaseException | None = error
    for _ in range(8):
        if isinstance(cause, MinutebookError):
            return cause
        cause = cause.__cause__ if cause is not None else None
    return None
