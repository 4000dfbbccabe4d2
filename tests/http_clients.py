"""HTTP clients that tests give to SDKs, closed with the test that opened them: who gives a client closes it."""

from typing import Any

import httpx2

_OPEN: list[httpx2.Client] = []


def http_client(**options: Any) -> httpx2.Client:
    """Return a blocking client which is closed when its test ends."""
    client = httpx2.Client(**options)
    _OPEN.append(client)
    return client


def close_clients() -> None:
    """Close what is still open; a second close of a client does nothing."""
    while _OPEN:
        _OPEN.pop().close()
