"""How every command runs: its common options, a store that is opened for one thing, errors as exit codes."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minutebook.cli.terminal import fail, leave_pipe, print_json, say
from minutebook.errors import InvalidOption, MinutebookError
from minutebook.stores.opening import open_store, store_url

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from minutebook.stores.journal import JournalStore

StoreUrl = Annotated[
    str, typer.Option("--store", envvar="MINUTEBOOK_STORE", help="Where the records are: sqlite:///path/to/file.")
]
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
    create: bool = False,
) -> None:
    """
    Open the store, do one thing with it, close it; an error of ours becomes its exit code.

    A database that is not there is refused unless `create` says that one is to be made.
    """

    async def inside() -> None:
        async with open_store(url, namespace=namespace) as opened:
            await work(opened)

    def run() -> None:
        _check_lasting(url, create=create)
        asyncio.run(inside())
        sys.stdout.flush()

    reported(run, as_json=as_json)


def _check_lasting(url: str, *, create: bool) -> None:
    """Refuse a store without a file, and a file that is not there: a slip in a name must not look sound."""
    name = store_url(url)
    if name is None:
        raise InvalidOption(
            "memory: is a store of one process and empty in every other; give --store sqlite:///<file>", option="store"
        )
    if not create and not os.path.lexists(name):
        raise InvalidOption("there is no database of this name; see --store", option="store")


def reported(work: Callable[[], None], *, as_json: bool) -> None:
    """Do something; an error of ours becomes its exit code."""
    try:
        work()
    except MinutebookError as error:
        fail(error, as_json=as_json)
    except BrokenPipeError:
        leave_pipe()


def report(as_json: bool, values: dict[str, Any], told: str) -> None:
    """Tell the outcome of one thing: as a JSON document, or in words."""
    print_json(values) if as_json else say(told)
