"""
How the command line speaks: text made safe for a terminal, JSON for programs, one exit code for each kind of error.

Ids and messages come from models and users. Whatever could move a cursor, hide text or turn its direction is shown
escaped, never sent to the terminal as it is (bad inputs 11 and 12).
"""

from __future__ import annotations

import sys
import unicodedata
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
from rich.console import Console
from rich.table import Table

from minutebook.errors import CallerError, DecisionHistoryError, MinutebookError, ProviderError, StorageError

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

_EXITS: tuple[tuple[type[MinutebookError], int], ...] = (
    (DecisionHistoryError, EXIT_REFUSED),
    (CallerError, EXIT_USAGE),
    (StorageError, EXIT_STORAGE),
    (ProviderError, EXIT_PROVIDER),
)

console = Console(highlight=False, emoji=False)


def shown(text: str) -> str:
    """Return `text` with every control, format, surrogate or unassigned character escaped; line breaks too."""
    return "".join(char if _is_plain(char) else f"\\u{{{ord(char):x}}}" for char in text)


def _is_plain(char: str) -> bool:
    return char == " " or (unicodedata.category(char)[0] != "C" and not unicodedata.category(char).startswith("Z"))


def print_json(value: object) -> None:
    """Print one JSON document on a line of standard output."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str = "") -> None:
    """Print a table; every cell is made safe for the terminal, numbers stand right."""
    body = [list(row) for row in rows]
    table = Table(title=title or None, title_justify="left")
    for position, name in enumerate(columns):
        numbers = body and all(isinstance(row[position], int) for row in body)
        table.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for row in body:
        table.add_row(*(f"{cell:,}" if type(cell) is int else shown(str(cell)) for cell in row), end_section=False)
    console.print(table, markup=False) if body else say("nothing to show")


def say(text: str) -> None:
    """Print one line for a person."""
    console.print(text, markup=False)


def fail(error: MinutebookError, *, as_json: bool) -> NoReturn:
    """Report an error of ours by its code and message, and end with the exit code of its kind."""
    code = next((code for kind, code in _EXITS if isinstance(error, kind)), EXIT_FAILED)
    if as_json:
        print_json({"error": error.code, "message": str(error), "exit": code})
    else:
        sys.stderr.write(f"{error.code}: {shown(str(error))}\n")
    raise SystemExit(code)
