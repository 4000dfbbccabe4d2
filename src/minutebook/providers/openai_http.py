"""
Posting bytes with the official OpenAI client.

The client is the host's, with its keys, proxies and time-outs. Its low-level `post` takes the body as `content`, so
what is sent are the bytes that were built, and gives back the raw response, so what is kept are the bytes that came.
Its own retries and redirects are off: a step is one request (SPEC D9, D13). A body is read in pieces and no further
than a bound, before and after it is unpacked, so that neither a gzip bomb nor an endless one fills the memory.

One coroutine serves both clients: under the blocking one it ends without ever suspending. Which of the two is told by
whoever drives it, since a blocking client under an event loop would stop the loop for as long as a model thinks.
"""

from __future__ import annotations

import contextlib
import inspect
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

from minutebook.errors import (
    AgentDecisionProviderUnavailable,
    BlockingMismatch,
    InvalidOption,
    InvalidValue,
    MinutebookError,
)
from minutebook.model import codec
from minutebook.model.pause import drive
from minutebook.providers.decision import text_at, unavailable
from minutebook.providers.endpoints import OFFICIAL

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from minutebook.model.codec import JSON

MAX_RESPONSE_BYTES: Final = codec.MAX_PAYLOAD_BYTES
"""How long a response may be once it is unpacked: no record takes a longer one."""

MAX_REFUSAL_BYTES: Final = 1024 * 1024
"""Of a response whose status is not 2xx, only a code is passed on; one that is longer counts as empty."""

_CODES: Final = {
    "exceed_context_size_error": "context_length_exceeded",
    **{
        code: code
        for code in (
            "context_length_exceeded",
            "rate_limit_exceeded",
            "insufficient_quota",
            "invalid_api_key",
            "model_not_found",
            "server_error",
            "invalid_encrypted_content",
            "invalid_json_schema",
            "invalid_function_parameters",
            "unsupported_parameter",
            "unsupported_value",
            "unknown_parameter",
            "missing_required_parameter",
            "content_policy_violation",
            "invalid_request_error",
            "not_found_error",
            "vector_store_timeout",
            "overloaded",
            "timeout",
            "internal_error",
        )
    },
}
"""The providers' codes that are passed on. A closed table, since a body could hold anything, a key among it."""


def known_code(error: JSON) -> str | None:
    """Return the code of a provider's error object, or its type; `None` for one not in the table."""
    named = (_CODES.get(text_at(error, key)) for key in ("code", "type"))
    return next((code for code in named if code), None)


def status_code(status: int, body: bytes) -> str:
    """Return the enumerated code for a response whose status is not 2xx."""
    if 300 <= status < 400:
        return "redirect_refused"
    try:
        value = codec.decode(body)
    except InvalidValue:
        value = None
    return known_code(value.get("error") if isinstance(value, dict) else None) or f"http_{status}"


class OpenAIPost:
    """
    The one request that leaves: bytes to a path, bytes back.

    Args:
        client: an `openai.AsyncOpenAI`, or where `blocking` an `openai.OpenAI`; without one, one is made at first use.
        base_url: for a client of our own; else the environment says.
        api_key: likewise.
        blocking: whether no event loop runs this.

    Raises:
        InvalidOption: a client that is none, or options of a client beside one.
        BlockingMismatch: a client of the other colour.
    """

    def __init__(
        self,
        client: object = None,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        blocking: bool = False,
    ) -> None:
        for name, value in (("base_url", base_url), ("api_key", api_key)):
            if value is not None and (client is not None or type(value) is not str or not value):
                raise InvalidOption(f"{name} is a text, and given without a client", option=name)
        self._settings = {"base_url": base_url, "api_key": api_key}
        self._blocking = blocking
        self._made = client is None
        self._client: Any = None if client is None else _single(client, blocking=blocking)

    @property
    def is_official(self) -> bool:
        """Whether requests go to OpenAI itself, as they do unless a client or URL names another server."""
        url = self._settings["base_url"] if self._client is None else str(self._client.base_url)
        host = urlsplit(url or "").hostname
        return host is None or host.rstrip(".") in OFFICIAL["openai"].hosts

    def connect(self) -> None:
        """
        Have a client, so that a missing package or key is told before anything is recorded.

        Raises:
            InvalidOption: the package is absent, or neither options nor environment name a key.
        """
        if self._client is None:
            openai = _imported("openai")
            kind = openai.OpenAI if self._blocking else openai.AsyncOpenAI
            try:
                self._client = _single(kind(**self._settings), blocking=self._blocking)
            except openai.OpenAIError as error:
                raise InvalidOption("no OpenAI client: give client or api_key, or set OPENAI_API_KEY") from error

    async def close(self) -> None:
        """Close the client if it was made here; the host's own stays open. The next request makes another."""
        if self._made and self._client is not None:
            client, self._client = self._client, None
            await _result(client.close())

    async def __call__(self, path: str, body: bytes) -> bytes:
        """
        Post `body` once and return the body of a 2xx response.

        Raises:
            AgentDecisionProviderUnavailable: every other status, a redirect, a time-out, a connection that failed,
                a body above `MAX_RESPONSE_BYTES`, and whatever a transport of the host raises.
        """
        self.connect()
        openai, response_type = _imported("openai"), _imported("httpx2").Response
        failure: AgentDecisionProviderUnavailable
        try:
            response = await _result(
                self._client.post(
                    path,
                    content=body,
                    cast_to=response_type,
                    options={"headers": {"Content-Type": "application/json"}, "follow_redirects": False},
                    stream=True,
                )
            )
            received = await _read(response, MAX_RESPONSE_BYTES, blocking=self._blocking)
            if received is not None:
                return received
            failure = unavailable("response_too_large")
        except openai.APIStatusError as error:
            failure = unavailable(status_code(error.status_code, error.response.content), error.status_code)
        except openai.APITimeoutError:
            failure = unavailable("timeout")
        except openai.APIConnectionError:
            failure = unavailable("connection_failed")
        except openai.OpenAIError:
            failure = unavailable("client_failed")
        except MinutebookError:
            raise
        except Exception as error:  # the host's transport, proxy or hook may raise anything
            failure = unavailable("timeout" if _is_timeout(error) else "connection_failed")
        # Raised out here and without its cause: the SDK's errors hold the request with its key and messages, and
        # quote the provider, which quotes them in turn (promise I-37).
        raise failure


def _imported(name: Literal["openai", "httpx2"]) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise InvalidOption("the OpenAI client is missing; run: pip install minutebook[openai]") from error


async def _result(returned: Any) -> Any:
    """Return what a method of either client comes to."""
    return await returned if inspect.isawaitable(returned) else returned


async def _read(response: Any, max_bytes: int, *, blocking: bool) -> bytes | None:
    """Return the body of a response; `None`, and a closed connection, once it is longer than `max_bytes`."""
    body = bytearray()  # a list would cost more than the pieces do where a server sends them byte by byte
    async with contextlib.aclosing(_pieces(response, blocking=blocking)) as pieces:
        async for piece in pieces:
            if len(body) + len(piece) > max_bytes:
                return None
            body += piece
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


def _bound_refusals(client: Any, *, blocking: bool) -> None:
    """
    Have a client of our own read the body of a response that is not 2xx within a bound.

    The client reads those bodies itself, whole, before it raises. What it sends with is the one place to come before.
    """
    send = client._send_request

    async def sent(request: Any, **options: Any) -> Any:
        response = await _result(send(request, **options))
        if response.is_success:
            return response
        body = await _read(response, MAX_REFUSAL_BYTES, blocking=blocking)
        headers = [(name, value) for name, value in response.headers.multi_items() if name not in _OF_THE_TRANSFER]
        return type(response)(response.status_code, headers=headers, content=body or b"", request=response.request)

    def sent_at_once(request: Any, **options: Any) -> Any:
        return drive(sent(request, **options))

    client._send_request = sent_at_once if blocking else sent


_OF_THE_TRANSFER: Final = frozenset({"content-encoding", "content-length", "transfer-encoding"})


def _is_timeout(error: Exception) -> bool:
    """Return whether the HTTP client, of whichever of its two names, waited too long."""
    return any(kind.__name__ == "TimeoutException" for kind in type(error).__mro__)


def _single(client: object, *, blocking: bool) -> Any:
    """Return a client without its retries; the connections stay shared with it."""
    openai = _imported("openai")
    ours, other = (openai.OpenAI, openai.AsyncOpenAI) if blocking else (openai.AsyncOpenAI, openai.OpenAI)
    if isinstance(client, other):
        raise BlockingMismatch(
            f"an openai.{other.__name__} was given to {'a blocking' if blocking else 'an asynchronous'} provider; give "
            f"an openai.{ours.__name__}, or take the provider from {'minutebook' if blocking else 'minutebook.sync'}"
        )
    if not isinstance(client, ours):
        raise InvalidOption(f"client is an openai.{ours.__name__}, not {type(client).__name__}", option="client")
    checked: Any = client
    single = checked.with_options(max_retries=0)
    _bound_refusals(single, blocking=blocking)
    return single
