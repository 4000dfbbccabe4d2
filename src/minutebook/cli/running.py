"""How every command runs: its common options, a store that is opened for one thing, errors as exit codes."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minutebook.cli.streams import telling
from minutebook.cli.terminal import fail, print_json, say
from minutebook.errors import InvalidOption, MinutebookError
from minutebook.stores.opening import open_store
from minutebook.stores.urls import SCHEMES, file_of, scheme_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from minutebook.stores.journal import JournalStore

_VARIABLES = {"--store": "MINUTEBOOK_STORE", "FROM": "MINUTEBOOK_STORE", "TO": "MINUTEBOOK_TARGET"}
"""The variable that a URL may be in instead of on the command line."""

_FORMS = " or ".join(dict.fromkeys(scheme.form for scheme in SCHEMES.values() if scheme.lasting))

StoreUrl = Annotated[str, typer.Option("--store", envvar="MINUTEBOOK_STORE", help=f"Where the records are: {_FORMS}.")]
FromUrl = Annotated[str, typer.Argument(metavar="FROM", envvar="MINUTEBOOK_STORE", help="Where the records are.")]
ToUrl = Annotated[str, typer.Argument(metavar="TO", envvar="MINUTEBOOK_TARGET", help="Where they go as well.")]
Namespace = Annotated[
    str, typer.Option("--namespace", envvar="MINUTEBOOK_NAMESPACE", help="The tenant or application; never guessed.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Id = Annotated[str, typer.Argument(help="The conversation's id.")]
BaseUrl = Annotated[
    str | None, typer.Option("--base-url", help="A server that speaks Chat Completions; needs --model.")
]
Model = Annotated[
    str | None, typer.Option("--model", help="Your own model, instead of the local one; OPENAI_API_KEY is its key.")
]


def with_store(
    url: str,
    namespace: str,
    work: Callable[[JournalStore], Awaitable[None]],
    *,
    as_json: bool,
    create: bool | None = None,
) -> None:
    """
    Open the store, do one thing with it, close it; an error of ours becomes its exit code.

    A database that is not there is refused unless `create` says that one is to be made; `None` is of a command that
    makes none.
    """

    async def inside() -> None:
        async with open_store(url, namespace=namespace) as opened:
            await work(opened)

    def run() -> None:
        check_lasting(url, create=create)
        asyncio.run(inside())

    reported(run, as_json=as_json)


def with_stores(
    source: str,
    target: str,
    namespace: str,
    work: Callable[[JournalStore, JournalStore], Awaitable[None]],
    *,
    as_json: bool,
    create: bool,
) -> None:
    """Open two stores, do one thing with them, close both; see `with_store`."""

    async def inside() -> None:
        async with open_store(source, namespace=namespace) as here, open_store(target, namespace=namespace) as there:
            await work(here, there)

    def run() -> None:
        check_lasting(source, option="FROM")
        check_lasting(target, create=create, option="TO")
        _check_apart(source, target)
        asyncio.run(inside())

    reported(run, as_json=as_json)


def _check_apart(source: str, target: str) -> None:
    files = [file_of(url) for url in (source, target)]
    there = [name for name in files if name is not None and os.path.exists(name)]
    if source == target or (len(there) == len(files) and os.path.samefile(*there)):
        raise InvalidOption("FROM and TO are the same store, so nothing would be copied", option="target")


def check_lasting(url: str, *, create: bool | None = None, option: str = "--store") -> None:
    """
    Refuse a store that ends with its process, and a file that is not there: a slip in a name must not look sound.

    `create` is whether a file is to be made, or `None` where there is no such option to be told of.
    """
    if not scheme_of(url).lasting:
        raise InvalidOption(
            f"{url.partition(':')[0]}: is a store of one process and empty in every other; give {option} {_FORMS}",
            option="store",
        )
    name = file_of(url)
    if name is None:
        _warn_of_password(url, option)
    elif not create and not _is_there(name):
        advice = "" if create is None else "; --create makes one"
        raise InvalidOption(
            f"there is no database of this name, or an empty file; see {option}{advice}", option="store"
        )


def _is_there(name: str) -> bool:
    """Return whether a file holds anything: SQLite takes an empty one for a new database, and would make it one."""
    return any(os.path.lexists(each) and os.lstat(each).st_size for each in (name, f"{name}-wal"))


_PASSWORD = re.compile(r"://[^/?#]*:[^/?#]+@|[?&](?:ssl)?password=")


def _warn_of_password(url: str, option: str) -> None:
    """Say so where other users of the machine could read a password in the list of processes (bad input 119)."""
    if _PASSWORD.search(url) and any(url in argument for argument in sys.argv[1:]):
        sys.stderr.write(
            f"Others can read the password of {option} in the list of processes; give the URL in {_VARIABLES[option]}\n"
        )


def reported(work: Callable[[], None], *, as_json: bool) -> None:
    """Do something; an error of ours becomes its exit code."""
    try:
        work()
    except MinutebookError as error:
        fail(error, as_json=as_json)


def report(as_json: bool, values: dict[str, Any], told: str) -> None:
    """Tell the outcome of one thing: as a JSON document, or in words."""
    with telling(told):
        print_json(values) if as_json else say(told)
