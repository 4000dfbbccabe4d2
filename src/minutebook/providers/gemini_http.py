"""
Posting bytes to Gemini with httpx2 itself.

Google's own client drops fields that it does not know, rewrites signatures, and by default goes on with requests of its
own after an answer. So there is none here: one `post`, whose redirects are refused (SPEC D9, D13).
"""

from __future__ import annotations

import os
import re
from typing import Any, Final
from urllib.parse import urlsplit

from minutebook.errors import AgentDecisionProviderUnavailable, InvalidOption, MinutebookError
from minutebook.providers.decision import unavailable
from minutebook.providers.gemini import code_of
from minutebook.providers.sdk_http import (
    MAX_REFUSAL_BYTES,
    MAX_RESPONSE_BYTES,
    LoopOfUse,
    check_base_url,
    check_colour,
    connection_failed,
    imported,
    is_timeout,
    read_body,
    result_of,
    status_code,
)

API_VERSION: Final = "v1"
"""The version of the API that is asked where no base URL names another; Google's own client asks the same."""
BASE_URL: Final = f"https://generativelanguage.googleapis.com/{API_VERSION}"
_VERSION: Final = re.compile(r"v[0-9]+((alpha|beta)[0-9]*)?", re.ASCII)
TIMEOUT_SECONDS: Final = 600.0
CONNECT_SECONDS: Final = 5.0
_KEYS: Final = ("GOOGLE_API_KEY", "GEMINI_API_KEY")
"""Where Google's own client looks for a key, in its order."""


class Httpx2Post:
    """
    The one request that leaves: bytes to a path below `base_url`, bytes back.

    Args:
        client: an `httpx2.AsyncClient`, or where `blocking` an `httpx2.Client`; without one, one is made at first use.
        base_url: the service's address, with the version of its API or without: then it is `v1`.
        api_key: sent as `x-goog-api-key`; without one the environment's, or with a client whatever that one sends.
        blocking: whether no event loop runs this.

    Raises:
        InvalidOption: a client that is none, a text that is empty, or a base URL that is none.
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
            if value is not None and (type(value) is not str or not value):
                raise InvalidOption(f"{name} is a text", option=name)
        self._base_url = BASE_URL if base_url is None else versioned(base_url)
        self._key = api_key
        self._blocking = blocking
        self._made = client is None
        self._client: Any = None if client is None else _checked(client, blocking=blocking)
        self._loop = LoopOfUse("gemini")

    def connect(self) -> None:
        """
        Have a client, so that a missing package or key is told before anything is recorded.

        Raises:
            InvalidOption: the package is absent, or neither options nor environment name a key.
        """
        if self._client is None:
            httpx2 = imported("httpx2", "gemini")
            if not self._own_key():
                raise InvalidOption(f"no key for Gemini: give client or api_key, or set {' or '.join(_KEYS)}")
            kind = httpx2.Client if self._blocking else httpx2.AsyncClient
            self._client = kind(timeout=httpx2.Timeout(TIMEOUT_SECONDS, connect=CONNECT_SECONDS))

    def _own_key(self) -> str | None:
        if self._key is None and self._made:
            return next(filter(None, map(os.environ.get, _KEYS)), None)
        return self._key

    async def close(self) -> None:
        """Close the client if it was made here; the host's own stays open. The next request makes another."""
        if self._made and self._client is not None:
            client, self._client = self._client, None
            if self._blocking:
                client.close()
            elif not self._loop.moved():  # else its connections ended with the event loop that they were opened under
                await client.aclose()

    async def __call__(self, path: str, body: bytes) -> bytes:
        """
        Post `body` once and return the body of a 2xx response.

        Raises:
            AgentDecisionProviderUnavailable: every other status, a redirect, a time-out, a connection that failed,
                a body above `MAX_RESPONSE_BYTES`, and whatever a transport of the host raises.
        """
        self._client, moved = self._loop.usable(self._client, made=self._made, blocking=self._blocking)
        self.connect()
        client = self._client
        key = self._own_key()
        headers = {"Content-Type": "application/json", **({"x-goog-api-key": key} if key else {})}
        failure: AgentDecisionProviderUnavailable
        try:
            request = client.build_request("POST", self._base_url + path, content=body, headers=headers)
            response = await result_of(client.send(request, stream=True, follow_redirects=False))
            status = int(response.status_code)
            bound = MAX_RESPONSE_BYTES if 200 <= status < 300 else MAX_REFUSAL_BYTES
            received = await read_body(response, bound, blocking=self._blocking)
        except MinutebookError:
            raise
        except Exception as error:  # the host's transport, proxy or hook may raise anything
            failure = unavailable("timeout") if is_timeout(error) else connection_failed(error, moved=moved)
        else:
            if not 200 <= status < 300:
                failure = unavailable(status_code(code_of, status, received or b""), status)
            elif received is not None:
                return received
            else:
                failure = unavailable("response_too_large")
        # Raised out here and without its cause: the client's errors hold the request with its key (promise I-37).
        raise failure


def versioned(base_url: str) -> str:
    """
    Return a base URL with the version of the API: its own, wherever in the path it stands, or `v1` behind the path.

    Raises:
        InvalidOption: no `http` or `https` URL of a host, or one with a query or fragment; it is not quoted.
    """
    check_base_url(base_url, "https://generativelanguage.googleapis.com or the same with /v1beta")
    trimmed = base_url.rstrip("/")
    named = any(map(_VERSION.fullmatch, urlsplit(trimmed).path.split("/")))
    return trimmed if named else f"{trimmed}/{API_VERSION}"


def _checked(client: object, *, blocking: bool) -> Any:
    httpx2 = imported("httpx2", "gemini")
    ours, other = (httpx2.Client, httpx2.AsyncClient) if blocking else (httpx2.AsyncClient, httpx2.Client)
    check_colour(client, ours, other, blocking=blocking)
    return client
