"""
What a server's or a connection's error is here: a typed one, in words of our own.

Of what a server says at most the first word, a code, is kept: the rest may quote what was sent to it (promise I-37).
"""

from __future__ import annotations

import re
import socket
import ssl
from typing import TYPE_CHECKING, Final

from redis.exceptions import (
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    AuthorizationError,
    BusyLoadingError,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeout

from minutebook.errors import (
    DecisionHistorySchemaUnsupported,
    DecisionHistoryStorageFailed,
    DecisionHistoryStorageLocked,
    DecisionHistoryStorageUnsafe,
    StorageError,
)

if TYPE_CHECKING:
    from minutebook.stores.redis_address import Address

DENIED: Final = (
    NoPermissionError,
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    AuthorizationError,
)
"""What a server says to a user that it does not know, or that may not do something."""
_DENIED_INSIDE: Final = re.compile(r"executing the script can't|ACL failure in script|NOPERM")
"""What servers say where a script calls a command that the user may not."""
DEMOTED: Final = (ReadOnlyError, MasterDownError)
"""What a server says once it follows another one."""

_CROWDED: Final = "max number of clients"
"""How begins what servers say to a connection beyond their `maxclients`."""
CROWDED: Final = "the server has too many connections"
TOO_LONG: Final = "it took too long"
UNTRUSTED: Final = "the certificate is not accepted"
_REASONS: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (ssl.SSLCertVerificationError, UNTRUSTED),
    (ssl.SSLError, "the two do not agree on TLS"),
    (FileNotFoundError, "there is no such socket, or no such file of a certificate"),
    (ConnectionRefusedError, "nothing listens there"),
    (socket.gaierror, "the host's name is unknown"),
    (UnicodeError, "a host's name, a user or a password is none that can be sent"),
    (TimeoutError, TOO_LONG),
    (RedisTimeout, TOO_LONG),
)


def reason_of(error: BaseException | None) -> str:
    """Return why no connection stands, in words of our own."""
    chain: list[BaseException] = []
    while error is not None:
        chain.append(error)
        error = error.__cause__ or error.__context__
    if any(isinstance(each, RedisConnectionError | ResponseError) and str(each).startswith(_CROWDED) for each in chain):
        return CROWDED
    named = (reason for kind, reason in _REASONS if any(isinstance(each, kind) for each in chain))
    return next(named, type(chain[0]).__name__ if chain else "it ended")


def no_room(address: Address) -> StorageError:
    """Return what it is here that every connection was in use for the whole time."""
    return DecisionHistoryStorageLocked(
        f"none of {address.max_connections} connections was free within {address.timeout:g} s; nothing was sent. "
        "Raise max_connections or timeout",
        seconds=address.timeout,
    )


def unconnected(error: BaseException | None, address: Address) -> StorageError:
    """Return what it is here that a connection could not be made; what the driver says may quote the address."""
    if isinstance(error, ResponseError) and "DB index" in str(error):
        return DecisionHistoryStorageUnsafe(
            f"the server has no database {address.database}; give another number, or raise its setting databases",
            problem="database",
        )
    reason = reason_of(error)
    if isinstance(error, ResponseError | AuthenticationError | BusyLoadingError) and reason != CROWDED:
        return refusal(error, writes=False)
    return DecisionHistoryStorageFailed(
        f"no connection to the server could be made: {reason}; nothing was sent",
        problem="connection",
        reason=reason,
        sent=False,
    )


def is_occupied(answer: object) -> bool:
    """Return whether a server refused something, whole, since it loads its data or is at another's script."""
    busy = isinstance(answer, ResponseError) and str(answer).startswith("BUSY ")
    return busy or isinstance(answer, BusyLoadingError)


def refusal(error: BaseException, *, writes: bool) -> StorageError:
    """Return what a server's or a connection's error is here; of its words at most the first, a code, is kept."""
    if is_occupied(error):
        loads = isinstance(error, BusyLoadingError)
        doing = "loads its data" if loads else "is at another client's script"
        return DecisionHistoryStorageFailed(
            f"the server {doing}, and did so for the whole time; nothing was written",
            problem="loading" if loads else "busy",
            sent=False,
        )
    if isinstance(error, OutOfMemoryError):
        return DecisionHistoryStorageFailed(
            "the server's memory is full (maxmemory); nothing was written. Delete conversations or give it more",
            problem="out_of_memory",
        )
    if isinstance(error, DEMOTED):
        return DecisionHistoryStorageUnsafe(
            "the server has become a replica and only reads; nothing was written", problem="replica"
        )
    if isinstance(error, DENIED) or (isinstance(error, ResponseError) and _DENIED_INSIDE.search(str(error))):
        return DecisionHistoryStorageUnsafe(
            "the server denies the user; check its password, and grant EVALSHA, EVAL, INFO, what the scripts call, "
            "and all keys that begin with minutebook",
            problem="denied",
        )
    if isinstance(error, ResponseError):
        return _answered(error)
    return DecisionHistoryStorageFailed(
        f"the connection to the server failed ({type(error).__name__}); "
        + (
            "a write under way may have been made: ask for its receipt, or repeat it with the same idempotency id"
            if writes
            else "nothing was changed"
        ),
        problem="connection",
    )


def _answered(error: ResponseError) -> StorageError:
    words = _words(error)
    if "WRONGTYPE" in str(error) or words == "WRONGTYPE":
        return foreign()
    code = re.match(r"[A-Z]{3,20}\b", words)
    told = code[0] if code else type(error).__name__
    return DecisionHistoryStorageFailed(f"the server refused with {told}; see its log", problem=told.lower())


def _words(error: ResponseError) -> str:
    return getattr(error, "status_code", None) or str(error)


def foreign() -> DecisionHistorySchemaUnsupported:
    """Return the refusal of a key that is ours by its name and not by what it holds."""
    return DecisionHistorySchemaUnsupported(
        "a key of this store holds something that this library did not write; nothing was changed"
    )
