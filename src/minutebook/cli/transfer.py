"""`minutebook export` and `minutebook import`: one conversation to a private file and back, all of it or nothing."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from minutebook.cli.running import AsJson, Id, Namespace, StoreUrl, report, with_store
from minutebook.cli.terminal import shown
from minutebook.errors import DecisionHistoryStorageUnsafe, ImportRefused, InvalidOption
from minutebook.providers.derivation import derived_entries, is_imported

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from minutebook.model.transfer import Imported
    from minutebook.stores.journal import JournalStore

File = Annotated[str, typer.Argument(metavar="FILE", help="The file, JSON Lines; a path as it stands.")]


def export(
    id: Id,  # noqa: A002 - the field's standard word
    file: File,
    store: StoreUrl,
    namespace: Namespace,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    json: AsJson = False,
) -> None:
    """
    Write an idle conversation to a private file.

    The file appears whole or not at all, with mode 0600. It holds every entry, abandoned ones too. The records of runs
    and of memory resources are for reading: `import` takes conversations, `copy` carries everything.
    """

    async def work(opened: JournalStore) -> None:
        with _progress("exporting", as_json=json) as progress:
            try:
                header = await opened.header(opened.key(id))
                entries = await opened.export(opened.key(id), file, force=force, progress=progress)
            except DecisionHistoryStorageUnsafe as error:
                if error.problem != "exists":
                    raise
                raise InvalidOption(str(error), option="file") from error
        told = f"exported {shown(id)}: {entries:,} entries to {shown(file)}"
        imported = header is not None and is_imported(header.format)
        told += "" if imported else "; no import takes a record of this kind: `minutebook copy` carries it"
        report(json, {"id": id, "file": file, "entries": entries, "importable": imported}, told)

    with_store(store, namespace, work, as_json=json)


def import_(
    id: Id,  # noqa: A002 - the field's standard word
    file: File,
    store: StoreUrl,
    namespace: Namespace,
    good_prefix: Annotated[
        bool, typer.Option("--good-prefix", help="Of a damaged file take what is whole before the damage.")
    ] = False,
    create: Annotated[bool, typer.Option("--create", help="Make the database if it is not there.")] = False,
    json: AsJson = False,
) -> None:
    """
    Record an exported conversation under an id.

    The file is verified to its last line first; then all of it goes in by one commit, or nothing. The conversation
    must hold nothing else. The same file again changes nothing.
    """

    async def work(opened: JournalStore) -> None:
        with _progress("reading", as_json=json) as progress:
            try:
                done = await opened.import_(
                    opened.key(id), file, check=derived_entries, good_prefix=good_prefix, progress=progress
                )
            except ImportRefused as error:
                raise _with_advice(error, good_prefix=good_prefix) from error
        values: dict[str, Any] = {"id": id, "file": file, "entries": done.entries, "left": done.left, "line": done.line}
        told = f"imported {shown(id)}" if done.written else f"{shown(id)} is there already"
        report(json, values | {"written": done.written}, f"{told}: {done.entries:,} entries{_left_of(done)}")

    with_store(store, namespace, work, as_json=json, create=create)


def _left_of(done: Imported) -> str:
    return f"; {done.left:,} were left out, from line {done.line:,} on" if done.left else ""


def _with_advice(error: ImportRefused, *, good_prefix: bool) -> ImportRefused:
    """Say what became of the good part of a damaged file, or how it can be had."""
    if not error.good_records or error.problem == "version":
        return error
    advice = (
        "no exchange is complete before it" if good_prefix else "--good-prefix takes the complete exchanges before it"
    )
    return ImportRefused(f"{error}; nothing was imported: {advice}", **error.facts)


@contextlib.contextmanager
def _progress(what: str, *, as_json: bool) -> Generator[Callable[[int, int], object] | None]:
    """Yield what shows how far it is, on a terminal's standard error; elsewhere `None`."""
    if as_json or not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
