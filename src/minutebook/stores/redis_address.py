"""
Where a Redis or Valkey server is, and how to reach it: a URL from configuration, read and checked.

Nothing of a URL is in any message: it may hold a password (promise I-37).
"""

from __future__ import annotations

import contextlib
import math
import re
import urllib.parse
from typing import TYPE_CHECKING, Any, Final

import msgspec

from minutebook.errors import InvalidOption
from minutebook.model.bounds import check_count
from minutebook.model.shown import type_alone

if TYPE_CHECKING:
    from collections.abc import Mapping

_SCHEMES: Final = {
    "redis": ("redis", False),
    "rediss": ("rediss", False),
    "valkey": ("redis", False),
    "valkeys": ("rediss", False),
    "unix": ("unix", False),
    "redis+cluster": ("redis", True),
    "rediss+cluster": ("rediss", True),
    "valkey+cluster": ("redis", True),
    "valkeys+cluster": ("rediss", True),
}
_OURS: Final = ("host", "port", "path", "url", "connection_class")
_FIXED: Final = ("protocol", "retry", "decode_responses", "encoding", "parser_class")
_TIMES: Final = ("socket_timeout", "socket_connect_timeout", "timeout", "max_connections")
"""What redis-py would take and is not told: the URL says it, it has to be as it is, or `RedisStore` takes it."""

SCHEMES: Final = "redis://, rediss://, valkey://, valkeys://, unix:// and, with +cluster, redis+cluster:// and so on"


class Node(msgspec.Struct, frozen=True):
    """A server's host and port; of one behind a socket in the file system, neither counts."""

    host: str
    port: int

    __repr__ = type_alone


class Address:
    """
    What a URL and its options say: nodes to begin with, and what every connection is made with.

    Raises:
        InvalidOption: no URL of a server, or an option that is none; the message quotes nothing of it.
    """

    __slots__ = ("cluster", "connect", "database", "max_connections", "nodes", "secure", "socket", "timeout")

    def __init__(
        self,
        url: object,
        *,
        cluster: bool | None,
        timeout: object,
        max_connections: object,
        client_options: Mapping[str, Any] | None,
    ) -> None:
        """Read a URL; see `RedisStore` for what each option means."""
        from redis.connection import parse_url  # pyright: ignore[reportUnknownVariableType]

        plain, hosts, self.cluster = _read(url)
        if cluster is not None and cluster is not self.cluster:
            if cluster is False:
                raise InvalidOption("the URL names a cluster and `cluster` is False", option="cluster")
            self.cluster = True
        self.timeout = _seconds(timeout)
        self.max_connections = check_count(max_connections, "max_connections")
        try:
            said: dict[str, Any] | None = parse_url(plain)  # type: ignore[no-untyped-call]
        except ValueError:
            said = None
        if said is None:  # raised out here, so that no traceback leads to the words of the other error
            raise InvalidOption(f"this is no URL of a server; there are {SCHEMES}", option="url")
        kind = said.pop("connection_class", None)
        self.socket = kind is not None and plain.startswith("unix")
        self.secure = kind is not None and not self.socket
        first = Node(str(said.pop("host", "localhost")), int(said.pop("port", 6379)))
        self.nodes = (first, *(Node(host, port or 6379) for host, port in hosts))
        if not all(map(is_place, self.nodes)):
            raise InvalidOption(
                "a host's name has parts of 1 to 63 characters with dots between, and a port is at most 65535",
                option="url",
            )
        if self.cluster and (self.socket or said.get("db")):
            raise InvalidOption("a cluster is reached by TCP and has database 0 alone", option="url")
        if len(self.nodes) > 1 and not self.cluster:
            raise InvalidOption("several hosts make a cluster; give redis+cluster://", option="url")
        self.connect = self._options(said, client_options or {})
        self.database = self.connect.get("db", 0)
        if type(self.database) is not int or self.database < 0:
            raise InvalidOption("db is the number of a database", option="db")
        if self.cluster and self.database:
            raise InvalidOption("a cluster has database 0 alone", option="db")

    def _options(self, said: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Return what every connection is made with."""
        from redis.backoff import NoBackoff

        for name in (*_OURS, *_FIXED, *_TIMES):
            if name in given or (name in said and name not in _OURS):
                raise InvalidOption(f"{name} is given to no connection; see the options of RedisStore", option=name)
        for name in said:
            if name in given:
                raise InvalidOption(f"{name} is given twice, in the URL and in client_options", option=name)
        if not re.fullmatch("[!-~]*", str({**said, **given}.get("client_name") or "")):
            raise InvalidOption("client_name has visible ASCII characters and no blank", option="client_name")
        # No command is sent twice by the client: whether a write that got no reply was done is for the journal to ask.
        return {
            "socket_connect_timeout": self.timeout,
            **said,
            **given,
            "protocol": 2,
            "backoff": NoBackoff(),
        }


def _read(url: object) -> tuple[str, list[tuple[str, int]], bool]:
    """
    Return a URL as redis-py reads it, the further hosts of a cluster, and whether it names one.

    What redis-py passes over in silence is refused: a path that is no number, a name that is given twice or empty. A
    slip would lead to another database than was meant.
    """
    text = url if type(url) is str else ""
    scheme, mark, rest = text.partition("://")
    if not mark or scheme not in _SCHEMES:
        raise InvalidOption(f"this is no URL of a server; there are {SCHEMES}", option="url")
    plain, cluster = _SCHEMES[scheme]
    if any("\ud800" <= letter <= "\udfff" for letter in rest):
        raise InvalidOption("the URL holds something that is no UTF-8", option="url")
    if "#" in rest:
        raise InvalidOption("a # ends a URL; in a password it is written %23", option="url")
    rest, _, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    who, at, hosts = authority.rpartition("@")
    if plain == "unix" and (hosts or not path):
        raise InvalidOption("unix: wants three slashes before the socket's path from the root", option="url")
    if plain != "unix" and not re.fullmatch(r"[0-9]{0,9}", path):
        raise InvalidOption("behind the host stands the number of a database and nothing else: /0", option="url")
    given = _query(query)
    if "db" in given and plain != "unix" and path:
        raise InvalidOption("the database is given twice, as the path and as db", option="url")
    if not re.fullmatch(r"[0-9]{1,9}", given.get("db", "0")):
        raise InvalidOption("db is the number of a database", option="url")
    first, *others = hosts.split(",")
    tail = "?" + urllib.parse.urlencode(given) if given else ""
    return f"{plain}://{who}{at}{first}{slash}{path}{tail}", [_host(host) for host in others], cluster


def _query(query: str) -> dict[str, str]:
    """Return what stands behind the question mark, each once."""
    try:
        pairs = urllib.parse.parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        pairs = [("", "")]
    given = dict(pairs)
    if len(given) < len(pairs) or not all(name and value for name, value in pairs):
        raise InvalidOption("behind ? stand name=value, joined by &, each name once", option="url")
    if any(name in _OURS for name in given):
        raise InvalidOption("where the server is stands before the ? of a URL", option="url")
    return given


def _host(text: str) -> tuple[str, int]:
    found = re.fullmatch(r"(\[[^\]]+\]|[^:\[\]]+)(?::(\d{1,5}))?", text)
    if found is None:
        raise InvalidOption("one of the URL's hosts is none", option="url")
    return found[1].strip("[]"), int(found[2] or 0)


def is_place(node: Node) -> bool:
    """Return whether a host's name, of whichever alphabet, can be looked up; what is there shows when it is."""
    with contextlib.suppress(UnicodeError):
        return b"\0" not in node.host.encode("idna") and 0 <= node.port <= 65_535
    return False


def _seconds(timeout: object) -> float:
    if type(timeout) not in (int, float) or not (math.isfinite(timeout) and 0 < timeout <= 3600):  # type: ignore[operator, arg-type]
        raise InvalidOption("timeout must be seconds above 0 and at most 3600", option="timeout")
    return float(timeout)  # type: ignore[arg-type]
