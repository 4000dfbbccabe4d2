"""
The URLs that name stores: how one of each scheme is written, and what opens it.

A store that is added adds a row to `SCHEMES`, and is then open to `open_store` of both colours and to every command.
Only the scheme of a URL is ever shown: the rest may hold a password (promise I-37).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from minutebook.errors import InvalidOption
from minutebook.model.shown import type_alone


class Scheme(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of URL."""

    form: str
    """How such a URL is written, for the message that lists them."""
    open: Callable[[Any, str, str | None], Any]
    """Makes the store of a URL and a namespace from the classes of one colour, which a module has by their names."""
    file: Callable[[str], str] | None = None
    """What gives the name of the file, for a store that is one."""
    lasting: bool = True
    """Whether another process finds what one stored."""
    driver: str = ""
    """The package that the store imports when it is opened."""
    remains: str = "the server may keep copies in its log, on replicas and in backups"
    """Where copies are of what was deleted and not erased."""

    __repr__ = type_alone


def scheme_of(url: object) -> Scheme:
    """
    Return what a store's URL is.

    Raises:
        InvalidOption: it has no scheme, or one of no store; the message says which there are.
    """
    found = re.match(r"([a-z][a-z0-9+.-]{0,31}):", url) if type(url) is str else None
    scheme = SCHEMES.get(found[1]) if found else None
    if scheme is None:
        raise _refused(f"no store for {found[0]!r}" if found else "this is no URL of a store")
    return scheme


def open_in(stores: object, url: str, namespace: str | None) -> Any:
    """
    Return the store that `url` names, of the colour of the module `stores`.

    Raises:
        InvalidOption: no URL of a store that exists.
    """
    return scheme_of(url).open(stores, url, namespace)


def file_of(url: str) -> str | None:
    """
    Return the name of the file that a store's URL names, or `None` where it names something else than a file.

    Raises:
        InvalidOption: no URL of a store that exists.
    """
    scheme = scheme_of(url)
    return None if scheme.file is None else scheme.file(url)


def _refused(told: str) -> InvalidOption:
    *forms, last = dict.fromkeys(scheme.form for scheme in SCHEMES.values())
    return InvalidOption(f"{told}; there are {', '.join(forms)} and {last}", option="url")


def _open_memory(stores: Any, url: str, namespace: str | None) -> Any:
    if url != "memory:":
        raise _refused("nothing follows memory:")
    return stores.MemoryStore() if namespace is None else stores.MemoryStore(namespace)


def _open_sqlite(stores: Any, url: str, namespace: str | None) -> Any:
    return stores.SQLiteStore(_sqlite_file(url), namespace=namespace)


def _open_postgres(stores: Any, url: str, namespace: str | None) -> Any:
    rest, options = _options_of(url, {"schema": str, "timeout": float})
    return stores.PostgresStore(rest, namespace=namespace, **options)


def _open_redis(stores: Any, url: str, namespace: str | None) -> Any:
    rest, options = _options_of(url, {"timeout": float})
    return stores.RedisStore(rest, namespace=namespace, **options)


def _options_of(url: str, kinds: Mapping[str, Callable[[str], Any]]) -> tuple[str, dict[str, Any]]:
    """
    Return a URL without the query's options that are the store's own and not its driver's, and these.

    Raises:
        InvalidOption: one is there twice, or is no number where it has to be one.
    """
    from urllib.parse import unquote  # loaded by those whose store is on a server

    address, _, query = url.partition("?")
    pairs = [pair.partition("=") for pair in query.split("&") if pair]
    options: dict[str, Any] = {}
    for name, _, value in pairs:
        if name in kinds:
            if name in options:
                raise InvalidOption(f"the URL gives {name} twice", option=name)
            options[name] = _read(name, unquote(value), kinds[name])
    rest = "&".join("".join(pair) for pair in pairs if pair[0] not in kinds)
    return f"{address}?{rest}" if rest else address, options


def _read(name: str, value: str, kind: Callable[[str], Any]) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise InvalidOption(f"the URL's {name} is no number", option=name) from None


def _sqlite_file(url: str) -> str:
    if not url.startswith("sqlite:///"):
        raise _refused("sqlite: wants three slashes before the file's name, and so four before one from the root")
    name = url.removeprefix("sqlite:///")
    if mark := re.search("[?#]", name):
        raise InvalidOption(
            "a sqlite:/// URL has no parameters and no fragment, so nothing follows the file's name; "
            f"write %{ord(mark[0]):X} for a {mark[0]} in it, or give SQLiteStore the name",
            option="url",
        )
    if re.search("%(?![0-9A-Fa-f]{2})", name):
        raise InvalidOption(
            "in a sqlite:/// URL % begins an escape of two hexadecimal digits; write %25 for a % in the file's name",
            option="url",
        )
    from urllib.parse import unquote

    return unquote(name, errors="surrogateescape")  # any name that a file can have, as the system gives it to Python


def url_of_file(name: str) -> str:
    """Return the URL that names a SQLite file."""
    for mark in "%?#":  # % first: the others' escapes begin with it
        name = name.replace(mark, f"%{ord(mark):X}")
    return f"sqlite:///{name}"


_POSTGRES: Final = Scheme(form="postgresql://<host>/<database>", open=_open_postgres, driver="psycopg")
_REDIS: Final = Scheme(form="redis://<host>:<port>/<number>", open=_open_redis, driver="redis")
_CLUSTER: Final = Scheme(form="redis+cluster://<host>:<port>,<host>:<port>", open=_open_redis, driver="redis")

SCHEMES: Final[Mapping[str, Scheme]] = {
    "sqlite": Scheme(
        form="sqlite:///<file>",
        open=_open_sqlite,
        file=_sqlite_file,
        remains="a reader still keeps a copy in the log, which goes with the next write",
    ),
    **dict.fromkeys(("postgresql", "postgres"), _POSTGRES),
    **dict.fromkeys(("redis", "rediss", "valkey", "valkeys", "unix"), _REDIS),
    **dict.fromkeys(("redis+cluster", "rediss+cluster", "valkey+cluster", "valkeys+cluster"), _CLUSTER),
    "memory": Scheme(form="memory:", open=_open_memory, lasting=False),
}
"""Every scheme that names a store; those of one kind of server are written alike."""
