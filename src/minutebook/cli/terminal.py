"""
How the command line speaks: text made safe for a terminal, JSON for programs, one exit code for each kind of error.

Ids and messages come from models and users. Whatever could move a cursor, hide text or turn its direction is shown
escaped, never sent to the terminal as it is (bad inputs 11 and 12). Brackets in them are no markup either.
"""

from __future__ import annotations

import os
import sys
import textwrap
import unicodedata
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from minutebook.errors import (
    CallerError,
    DecisionHistoryError,
    MinutebookError,
    ProviderError,
    RuntimeRefusal,
    StorageError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

EXIT_REFUSED = 1
"""The history refused: busy, absent, nothing to recover, a limit."""
EXIT_USAGE = 2
"""The command was wrong."""
EXIT_STORAGE = 3
"""Files or databases: damaged, unsafe, locked, of another version."""
EXIT_PROVIDER = 4
"""The model's side failed."""
EXIT_FAILED = 5
"""A check that the command made has failed."""
EXIT_PIPE = 141
"""Whoever read our output has gone: what a shell shows for a program that SIGPIPE ended."""

_EXITS: tuple[tuple[type[MinutebookError], int], ...] = (
    (DecisionHistoryError, EXIT_REFUSED),
    (RuntimeRefusal, EXIT_REFUSED),
    (CallerError, EXIT_USAGE),
    (StorageError, EXIT_STORAGE),
    (ProviderError, EXIT_PROVIDER),
)


PIPE_WIDTH = 1000
PROSE_WIDTH = 100


class _Console(Console):
    def on_broken_pipe(self) -> None:
        leave_pipe()


def _width() -> int | None:
    """Return how wide to write where no terminal says it: a file or a pipe folds nothing."""
    return None if sys.stdout.isatty() or os.environ.get("COLUMNS") else PIPE_WIDTH


console = _Console(highlight=False, emoji=False, markup=False, width=_width())


def leave_pipe() -> NoReturn:
    """End quietly when nobody reads any more; what is still buffered goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    raise SystemExit(EXIT_PIPE)


def allow_any_encoding() -> None:
    """Let a terminal that cannot show a character show its escape instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def shown(text: str) -> str:
    """Return `text` with every control, format, surrogate or unassigned character escaped; line breaks too."""
    return "".join(char if _is_plain(char) else f"\\u{{{ord(char):x}}}" for char in text)


def _is_plain(char: str) -> bool:
    return char == " " or unicodedata.category(char)[0] not in "CZ"


def print_json(value: object) -> None:
    """Print one JSON document on a line of standard output."""
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str = "") -> None:
    """Print a table; every cell is made safe for the terminal, numbers stand right."""
    body = [list(row) for row in rows]
    if not body:
        say(f"{title}: nothing to show" if title else "nothing to show")
        return
    table = Table(
        title=Text(title, style="bold") if title else None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for position, name in enumerate(columns):
        numbers = any(type(row[position]) is int for row in body)
        table.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for row in body:
        table.add_row(*(Text(f"{cell:,}" if type(cell) is int else shown(str(cell))) for cell in row))
    console.print(table)


def say(text: str) -> None:
    """Print one line for a person, as it is; what is no text of ours goes through `shown` first."""
    console.print(Text(text), soft_wrap=True)


def paragraph(text: str, *, style: str = "", indent: int = 0, hang: int = 0) -> None:
    """Print a paragraph for a person, made safe for the terminal; its further lines stand `hang` columns deeper."""
    margin = " " * indent
    width = min(console.width, PROSE_WIDTH)
    lines = textwrap.wrap(shown(text), width, initial_indent=margin, subsequent_indent=margin + " " * hang)
    console.print(Text("\n".join(lines), style=style))


def fail(error: MinutebookError, *, as_json: bool) -> NoReturn:
    """Report an error of ours by its code and message, and end with the exit code of its kind."""
    code = next((code for kind, code in _EXITS if isinstance(error, kind)), EXIT_FAILED)
    if as_json:
        print_json({"error": error.code, "message": str(error), "exit": code})
    else:
        sys.stderr.write(f"{error.code}: {shown(str(error))}\n")
    raise SystemExit(code)
