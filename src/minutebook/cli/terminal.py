"""
How the command line speaks: text made safe for a terminal, JSON for programs, one exit code for each kind of error.

Ids and messages come from models and users. Whatever could move a cursor, hide text or turn its direction is shown
escaped, never sent to the terminal as it is (bad inputs 11 and 12). Brackets in them are no markup either.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import textwrap
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from minutebook.cli.streams import telling
from minutebook.errors import (
    CallerError,
    DecisionHistoryError,
    MinutebookError,
    ProviderError,
    RuntimeRefusal,
    StorageError,
)
from minutebook.model.shown import is_unseen

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

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
    (RuntimeRefusal, EXIT_REFUSED),
    (CallerError, EXIT_USAGE),
    (StorageError, EXIT_STORAGE),
    (ProviderError, EXIT_PROVIDER),
)


PIPE_WIDTH = 1000
PROSE_WIDTH = 100
_BETWEEN = 2  # between two columns of a table, its divider
_PROSE = 12  # the least that a column of prose gets

_FLAGS = {
    "call recover(worker_stopped=True)": "run `minutebook recover` with --worker-stopped",
    "say worker_stopped=True": "say --worker-stopped",
    "pass force": "say --force",
    "use a local disk, or pass allow_network_filesystem=True": "use a local disk",
}
"""What the library's messages call by its own names, and what that is on the command line."""


def _width() -> int | None:
    """Return how wide to write where no terminal says it: a file or a pipe folds nothing."""
    return None if sys.stdout.isatty() or os.environ.get("COLUMNS") else PIPE_WIDTH


console = Console(highlight=False, emoji=False, markup=False, width=_width())


def shown(text: str) -> str:
    """Return `text` with every character escaped that is not seen as what it is; line breaks too."""
    return "".join(f"\\u{{{ord(char):x}}}" if is_unseen(char) else char for char in text)


def quoted(text: str) -> str:
    """Return `text` as a shell reads it back to the very same one; seen as what it is, like what `shown` returns."""
    if not any(map(is_unseen, text)):
        return shlex.quote(text)
    return f"$'{''.join(map(_in_shell, text))}'"


def _in_shell(char: str) -> str:
    if is_unseen(char):
        return "".join(f"\\{byte:03o}" for byte in char.encode())
    return f"\\{char}" if char in "'\\" else char


def print_json(value: object) -> None:
    """Print one JSON document on a line of standard output; what a terminal would obey or hide is escaped in it."""
    written = json.dumps(msgspec.to_builtins(value), ensure_ascii=False, separators=(",", ":"))
    document = "".join(map(_safe_in_json, written))
    sys.stdout.buffer.write(document.encode() + b"\n")
    sys.stdout.buffer.flush()


def _safe_in_json(char: str) -> str:
    return json.dumps(char)[1:-1] if is_unseen(char) else char


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    title: str = "",
    prose: Collection[str] = (),
    empty: str = "nothing to show",
) -> None:
    """
    Print a table; every cell is made safe for the terminal, numbers stand right.

    Only cells of the columns in `prose` are folded: the others hold what people copy into the next command. Where that
    leaves the table too wide for the terminal, each row becomes a line with its first cell and the others below, by
    name.
    """
    body = [[_cell(cell) for cell in row] for row in rows]
    if title:
        console.print(Text(f"\n{title}", style="bold"))
    if not body:
        say(empty)
        return
    cells = dict(zip(columns, zip(*body, strict=True), strict=True))
    widths = {name: max(cell_len(text) for text, _ in cells[name]) for name in columns if name not in prose}
    whole = {name: max(width, cell_len(name)) for name, width in widths.items()}
    if sum(whole.values()) + _BETWEEN * len(columns) + _PROSE * len(prose) > console.width:
        whole = {name: max(width, *map(cell_len, name.split())) for name, width in widths.items()}
    if sum(whole.values()) + _BETWEEN * len(columns) + _PROSE * len(prose) > console.width:
        _print_blocks(columns, body)
        return
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for name in columns:
        numbers = all(number for _, number in cells[name]) and any(text for text, _ in cells[name])
        table.add_column(name, justify="right" if numbers else "left", width=whole.get(name), overflow="fold")
    for row in body:
        table.add_row(*(Text(text) for text, _ in row))
    console.print(table)


def _cell(value: object) -> tuple[str, bool]:
    """Return a cell as it is shown, and whether it goes with numbers; an empty one goes with anything."""
    return (f"{value:,}", True) if type(value) is int else (shown(str(value)), value == "")


def _print_blocks(columns: Sequence[str], rows: Sequence[Sequence[tuple[str, bool]]]) -> None:
    for row in rows:
        text, number = row[0]
        say(f"{columns[0]} {text}" if number else text)
        line = ""
        for told in (f"{name} {text}" for name, (text, _) in zip(columns[1:], row[1:], strict=True) if text):
            if line and cell_len(f"    {line}, {told}") > console.width:
                say(f"    {line},")
                line = told
            else:
                line = f"{line}, {told}" if line else told
        say(f"    {line}")


def say(text: str) -> None:
    """Print one line for a person, as it is; what is no text of ours goes through `shown` first."""
    console.print(Text(text), soft_wrap=True)


def paragraph(text: str, *, style: str = "", indent: int = 0, hang: int = 0) -> None:
    """Print a paragraph for a person, made safe for the terminal; its further lines stand `hang` columns deeper."""
    margin = " " * indent
    width = min(console.width, PROSE_WIDTH)
    lines = textwrap.wrap(shown(text), width, initial_indent=margin, subsequent_indent=margin + " " * hang)
    console.print(Text("\n".join(lines), style=style))


def told(error: MinutebookError) -> str:
    """Return an error's message with the command line's words in the place of the library's."""
    message = str(error)
    for ours, flag in _FLAGS.items():
        message = message.replace(ours, flag)
    return message


def exit_code(error: MinutebookError) -> int:
    """Return the exit code of an error's kind."""
    return next((code for kind, code in _EXITS if isinstance(error, kind)), EXIT_FAILED)


def fail(error: MinutebookError, *, as_json: bool) -> NoReturn:
    """Report an error of ours by its code and message, and end with the exit code of its kind."""
    code = exit_code(error)
    message = told(error)
    line = f"{error.code}: {shown(message)}"
    if as_json:
        with telling(line):
            print_json({"error": error.code, "message": message, "exit": code})
    else:
        sys.stderr.write(f"{line}\n")
    raise SystemExit(code)
