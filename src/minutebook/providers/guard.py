"""
The token guard as a transport: put under an official SDK's client by those who call the SDK themselves (SPEC D14).

Every request of the client comes through here. One that generates is counted first, by the provider's own endpoint and
with the very bytes that are then sent; it goes on unchanged if its reservation fits the window, and not at all if it
does not. Nothing is edited or left out here: removing exchanges belongs to the decision providers. What could generate
without being counted is refused, whatever its name: other paths, other hosts, streamed bodies, state at the server.

One coroutine serves both colours; under the blocking transport it ends without ever suspending.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from minutebook.errors import (
    BlockingMismatch,
    InvalidOption,
    InvalidValue,
    MinutebookError,
    ProviderContextCountUnavailable,
)
from minutebook.model import codec
from minutebook.model.context import ContextWindow, window_exceeded
from minutebook.model.events import check_observer
from minutebook.model.telling import tell
from minutebook.providers.counting import (
    ANTHROPIC_BETAS,
    Refusal,
    count_body,
    count_failed,
    counted_tokens,
    output_limit,
    refused,
)
from minutebook.providers.decision import unavailable
from minutebook.providers.endpoints import OFFICIAL, Match, httpx2_module, match_of, origin_of, origins
from minutebook.providers.explicit import check_explicit
from minutebook.providers.sdk_http import own_error, result_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from types import TracebackType
    from typing import Self, TypeAlias

    from httpx2 import URL, AsyncBaseTransport, Headers, Request, Response

    from minutebook.ports import Observer

    Forward: TypeAlias = Callable[[Request], Response | Awaitable[Response]]
else:  # the HTTP library is loaded by the first request and not by a name
    AsyncBaseTransport = object

Provider = Literal["anthropic", "google", "openai"]

MAX_COUNT_BYTES: Final = 65_536
"""The longest body of a counting endpoint that is read."""

_CARRIED: Final = "minutebook.guard"
"""The extension of each response that came through a guard."""

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Guard:
    """
    What both transports are: checks, counts and forwards one request; keeps nothing between two.

    Raises:
        InvalidOption: an unknown provider, no `ContextWindow`, an observer that is not callable, or a server in
            `qualified` that is no plain URL, or speaks http beyond this machine.
    """

    def __init__(
        self, provider: object, context: object, qualified: object, on_event: Observer | None, *, blocking: bool
    ) -> None:
        if type(provider) is not str or provider not in OFFICIAL:
            raise InvalidOption(f"provider is one of {sorted(OFFICIAL)}", option="provider")
        if not isinstance(context, ContextWindow):
            raise InvalidOption("context is a ContextWindow", option="context")
        check_observer(on_event)
        self._official = OFFICIAL[provider]
        self._origins = origins(self._official, qualified)
        self._context = context
        self._on_event = on_event
        self._blocking = blocking

    async def send(self, request: Request, forward: Forward) -> Response:
        """
        Return the response to a request that may be sent; one that generates was counted and fits.

        Raises:
            ProviderContextWindowExceeded: it does not fit; nothing was generated.
            ProviderContextCountUnavailable: it cannot be counted, or was not; nothing was generated.
            AgentDecisionProviderUnavailable: the server answered with a redirect, which is not followed.
        """
        matched = match_of(request, self._official, origin_of(request, self._origins))
        if matched is not None:
            request = await self._counted(request, matched, forward)
        response: Response = await result_of(forward(request))
        if 300 <= response.status_code < 400:
            await self._close(response)
            raise unavailable("redirect_refused", response.status_code)
        response.extensions[_CARRIED] = True
        return response

    async def carried(self, returned: Any) -> Any:
        """
        Return what a client's middleware was given, unless it is a response that no guard carried.

        Raises:
            InvalidOption: it is one: this guard is in the client's middleware, and not under the client.
        """
        response = getattr(returned, "http_response", None)
        if response is None or _CARRIED in response.extensions:
            return returned
        await self._close(response)
        kind = "Client" if self._blocking else "AsyncClient"
        raise InvalidOption(
            "this client sent a request past the guard, uncounted, and its response is withheld: guard.surface guards "
            f"nothing by itself; give the client http_client=httpx2.{kind}(transport=guard) beside it",
            option="http_client",
        )

    async def _counted(self, request: Request, matched: Match, forward: Forward) -> Request:
        """Return the request to send, made of the bytes that were counted."""
        counting, content = matched.route.counting, _content(request)
        body = _body(content)
        check_explicit(counting, body)
        output = output_limit(counting, body)
        _check_betas(request)
        fields = {name: bytes(raw) for name, raw in _fields(content).items()}
        asked = _count_request(request, matched.count_path, count_body(counting, fields, matched.model))
        tokens = counted_tokens(counting, await self._count(asked, forward))
        counted = self._context.measured(counting.provider, tokens, output)
        self._tell(counted)
        if not counted.fits:
            raise window_exceeded(counted)
        return _request(request, request.url, request.headers, content)

    async def _count(self, request: Request, forward: Forward) -> bytes:
        failure: ProviderContextCountUnavailable
        try:
            response = await result_of(forward(request))
            try:
                return await self._read(response)
            finally:
                await self._close(response)
        except MinutebookError:
            raise
        except httpx2_module().TimeoutException:
            failure = count_failed("timeout")
        except Exception as error:  # whatever a transport of the host raises
            failure = count_failed("connection_failed", cause=type(error).__name__)
        # Raised out here and without its cause: an HTTP error holds the request with its key and messages.
        raise failure

    async def _read(self, response: Response) -> bytes:
        status = response.status_code
        if status != 200:
            raise count_failed("redirect_refused" if 300 <= status < 400 else f"http_{status}", status)
        if response.headers.get("content-encoding", "identity") != "identity":
            raise count_failed("encoded_count")  # none was asked for, and a few bytes of it may be very many
        stream: Any = response.stream
        body = bytearray()
        if self._blocking:
            for chunk in stream:
                body += _bounded(chunk, len(body))
        else:
            async for chunk in stream:
                body += _bounded(chunk, len(body))
        return bytes(body)

    async def _close(self, response: Response) -> None:
        if self._blocking:
            response.close()
        else:
            await response.aclose()

    def _tell(self, event: Any) -> None:
        if self._on_event is not None:
            tell(self._on_event, event)


class ContextGuardTransport(AsyncBaseTransport):
    """
    An HTTP transport that lets a request generate only if it was counted and fits the window.

    Put it under the official client: `AsyncAnthropic(http_client=httpx2.AsyncClient(transport=guard))`. That client's
    own errors may wrap a refusal, as anthropic's do after two retries that count again: with
    `middleware=[guard.surface]` beside it the refusal itself comes out at once; else give `max_retries=0` and look at
    `__cause__`. The transport alone guards: a client that has only the middleware is not held to anything before its
    first response comes, which is then refused. Requests that read (GET, HEAD) and that count pass; every path that is
    not known is refused.

    Args:
        provider: `anthropic` (Messages), `google` (generateContent) or `openai` (Responses).
        context: the window, by the application's word.
        transport: what carries the requests, a proxy or adapter of the application's among them, which then vouches
            for it; an `httpx2.AsyncHTTPTransport` of its own when it is left out. Closed with this one.
        qualified: base URLs, as the client is given them, of servers that the application vouches for: they generate
            and count as the official API does. OpenAI's Chat Completions are guarded there alone, since the official
            API cannot count them.
        on_event: told of each count, by numbers alone.

    Raises:
        InvalidOption: an option that is none of these.
        BlockingMismatch: a blocking transport.
    """

    def __init__(
        self,
        *,
        provider: Provider,
        context: ContextWindow,
        transport: AsyncBaseTransport | None = None,
        qualified: Sequence[str] = (),
        on_event: Observer | None = None,
    ) -> None:
        self._guard = Guard(provider, context, qualified, on_event, blocking=False)
        self._inner = inner_transport(transport, "handle_async_request", "AsyncHTTPTransport")

    async def handle_async_request(self, request: Request) -> Response:
        """
        Return the response to `request`, which was counted and fits if it generates.

        Raises:
            ProviderContextWindowExceeded: it does not fit; nothing was generated.
            ProviderContextCountUnavailable: it cannot be counted, or was not; nothing was generated.
            AgentDecisionProviderUnavailable: a redirect, which is never followed.
        """
        return await self._guard.send(request, self._inner.handle_async_request)

    async def surface(self, request: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
        """
        Raise a refusal of this guard as it is: for the `middleware` of an `anthropic.AsyncAnthropic`.

        It counts and holds back nothing: that is for this transport, which has to be under the client as well. A
        client without it is found out by its first response, when that request has already been sent.

        Raises:
            InvalidOption: a response that came through no guard.
        """
        try:
            returned = await call_next(request)
        except Exception as error:
            refusal = own_error(error) or error
        else:
            return await self._guard.carried(returned)
        raise refusal

    async def aclose(self) -> None:
        """Close the transport that carries the requests."""
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self._inner.__aexit__(exc_type, exc_value, traceback)


def inner_transport(transport: object, method: str, default: str) -> Any:
    """
    Return what carries the requests: the application's transport, or a fresh one.

    Raises:
        BlockingMismatch: a transport of the other colour.
        InvalidOption: something that is no transport.
    """
    if transport is None:
        return getattr(httpx2_module(), default)()
    if callable(getattr(transport, method, None)):
        return transport
    if any(callable(getattr(transport, name, None)) for name in ("handle_request", "handle_async_request")):
        raise BlockingMismatch(
            f"the guard of this colour calls {method} on its transport; give an httpx2.{default}, or take the guard "
            f"from {'minutebook' if method == 'handle_request' else 'minutebook.sync'}"
        )
    raise InvalidOption(f"transport is an httpx2.{default}", option="transport")


def _content(request: Request) -> bytes:
    """Return the body, which has to be there in one piece, as plain JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        content = request.content
    except httpx2_module().RequestNotRead:
        raise refused(Refusal.BODY_STREAMED) from None
    if "transfer-encoding" in request.headers:
        raise refused(Refusal.BODY_STREAMED)
    if kind != "application/json" or "content-encoding" in request.headers:
        raise refused(Refusal.BODY_NOT_JSON)
    return content


def _body(content: bytes) -> dict[str, Any]:
    try:
        body = codec.decode(content)
    except InvalidValue:
        body = None
    if not isinstance(body, dict):
        raise refused(Refusal.BODY_NOT_JSON)
    return body


def _check_betas(request: Request) -> None:
    for given in request.headers.get("anthropic-beta", "").split(","):
        if given.strip() and given.strip() not in ANTHROPIC_BETAS:
            raise refused(Refusal.HEADER_REFUSED, given.strip())


_LEFT_OUT: Final = frozenset({"content-length", "accept-encoding", "accept", "idempotency-key"})
"""Headers that belong to the body or to the response of the generation. All others, keys too, go with the count."""


def _count_request(request: Request, path: str, body: bytes) -> Request:
    headers = [(name, value) for name, value in request.headers.multi_items() if name.lower() not in _LEFT_OUT]
    headers += [("accept", "application/json"), ("accept-encoding", "identity")]
    query = b"?beta=true" if request.url.query == b"beta=true" else b""
    return _request(request, request.url.copy_with(raw_path=path.encode("ascii") + query), headers, body)


def _request(request: Request, url: URL, headers: Headers | list[tuple[str, str]], content: bytes) -> Request:
    made: Request = httpx2_module().Request(
        request.method, url, headers=headers, content=content, extensions=request.extensions
    )
    return made


def _bounded(chunk: bytes, before: int) -> bytes:
    if before + len(chunk) > MAX_COUNT_BYTES:
        raise count_failed("count_too_long")
    return chunk
