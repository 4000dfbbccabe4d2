"""
Where a PostgreSQL server is, and how to reach it: a connection string, read and checked, and why none could be reached.

Nothing of a connection string is in any message, and a driver's own words, which may quote it, are in none either: it
may hold a password (promise I-37).
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

import psycopg
from psycopg import conninfo

from minutebook.errors import InvalidOption

LATE: Final = "it took too long"
_REASONS: Final = (
    ("certificate", "the certificate is not accepted, or there is no such file of one"),
    ("authentication failed", "the user or the password is wrong"),
    ("no password supplied", "the server wants a password"),
    ("no pg_hba.conf entry", "the server does not admit this user from here"),
    ("does not exist", "there is no such database or role"),
    ("too many", "the server has too many connections"),
    ("remaining connection slots", "the server has too many connections"),
    ("starting up", "the server is starting"),
    ("shutting down", "the server is shutting down"),
    ("session is read-only", "the server only reads"),
    ("refused", "nothing listens there"),
    ("No such file", "there is no such socket"),
    ("timeout expired", LATE),
    ("timed out", LATE),
    ("resolve", "the host's name is unknown"),
    ("translate host name", "the host's name is unknown"),
    ("idna", "no host can have that name"),
    ("SSL", "the two do not agree on TLS"),
    ("invalid ", "an option of the connection has a value that it cannot have"),
)
"""What a driver's or server's words mean. The words themselves may quote the connection string."""


class Address:
    """Where a server is, with the password, which nothing of this shows."""

    def __init__(self, text: str, seconds: float) -> None:
        """
        Take a URL or a list of `key=value`, and how long a call may take.

        Raises:
            InvalidOption: it is neither, or names a host that none can be.
        """
        given = None
        with contextlib.suppress(psycopg.Error, AttributeError, TypeError, ValueError):
            given = conninfo.conninfo_to_dict(text)
        if given is None:  # out here: a driver's words may quote a piece of the text, and so of the password
            raise InvalidOption(
                "no connection string of PostgreSQL: give postgresql://user@host/database, or key=value …", option="url"
            )
        if not all(map(_can_be_a_host, str(given.get("host") or "").split(","))):
            raise InvalidOption(
                "no host can have the name in the URL: its parts have 1 to 63 letters, digits and hyphens", option="url"
            )
        if type(seconds) not in (int, float) or not 0 < seconds <= 86_400:
            raise InvalidOption("timeout must be seconds, more than 0 and up to a day", option="timeout")
        options: dict[str, Any] = {
            "fallback_application_name": "minutebook",
            "keepalives_idle": 30,
            "keepalives_interval": 10,
            "keepalives_count": 3,
            "tcp_user_timeout": int(seconds * 1000),
        }
        if "," in str(given.get("host") or given.get("hostaddr") or ""):
            options["target_session_attrs"] = "read-write"
        # Whatever a URL says of encodings: ids and records are bytes, and settings are told in ASCII.
        self.options = {**options, **given, "client_encoding": "UTF8"}
        self.seconds = seconds
        self._each = _seconds_of(given.get("connect_timeout"))

    def share(self, left: float, hosts: int) -> float:
        """Return how many of the seconds that are left the next of so many hosts may take."""
        share = max(left, 0.0) / hosts
        return min(share, self._each) if self._each else share


def _can_be_a_host(host: str) -> bool:
    """Return whether a host's name can be looked up, as Python does it: in ASCII, by the rules of IDNA."""
    if host.startswith(("/", "@")):
        return True  # a folder of sockets
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def _seconds_of(connect_timeout: object) -> float:
    """
    Return libpq's limit for one host; 0 for none.

    Raises:
        InvalidOption: it is no number.
    """
    try:
        return max(float(str(connect_timeout or 0)), 0.0)
    except ValueError:
        pass
    raise InvalidOption("connect_timeout must be a number of seconds", option="url")


def reason(error: Exception) -> str:
    """Return why no connection could be made, in words of our own."""
    told = str(error)
    return next((meaning for words, meaning in _REASONS if words in told), type(error).__name__)
