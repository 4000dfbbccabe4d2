"""
Where the command line writes to: what becomes of a terminal that is closed, a reader that goes away, a disk that is
full.

A stream that was closed before the command began is wanted by nobody: what is written there goes nowhere. One that
takes no more ends the command, since nobody would hear what it does; what it has done by then is done. Of standard
error, on which errors are told, nothing depends.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Generator

    from _typeshed import ReadableBuffer

EXIT_LOST = 3
"""Standard output cannot be written: the code of what storage does not take."""
EXIT_PIPE = 141
"""Whoever read our output has gone: what a shell shows for a program that SIGPIPE ended."""


class OutputLost(Exception):
    """Standard output took no more. No `OSError`, which other code might take for one of its own."""

    def __init__(self, reason: str, untold: str = "") -> None:
        """Take what the system said, and what was to be told, already safe for a terminal."""
        self.reason = reason
        super().__init__(
            f"standard output cannot be written ({reason}), so the command ended"
            + (f"; it was to say: {untold}" if untold else "")
        )


@contextlib.contextmanager
def telling(told: str) -> Generator[None]:
    """Have standard error say what standard output did not take."""
    try:
        yield
    except OutputLost as lost:
        raise OutputLost(lost.reason, told) from lost


def lose_output(lost: OutputLost) -> NoReturn:
    """End the command whose output was lost, and say so; what is still buffered goes nowhere."""
    _to_nowhere(1)
    sys.stderr.write(f"OutputLost: {lost}\n")
    raise SystemExit(EXIT_LOST)


def leave_pipe() -> NoReturn:
    """End quietly when nobody reads any more; what is still buffered goes nowhere."""
    _to_nowhere(1)
    raise SystemExit(EXIT_PIPE)


def _to_nowhere(descriptor: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


class _Guarded(io.BufferedWriter):
    """Writes where another stream does. That one is kept, and neither of them closes under the other."""

    def __init__(self, raw: Any, replaced: object) -> None:
        super().__init__(raw)
        self._replaced = replaced

    def close(self) -> None:
        if not self.closed:
            self.flush()


class _Output(_Guarded):
    """Standard output: what keeps it from being written is told apart from every other failure."""

    def write(self, content: ReadableBuffer, /) -> int:
        with _output():
            return super().write(content)

    def flush(self) -> None:
        with _output():
            super().flush()


@contextlib.contextmanager
def _output() -> Generator[None]:
    try:
        yield
    except BrokenPipeError:
        leave_pipe()
    except OSError as error:
        raise OutputLost(os.strerror(error.errno or 0)) from error


class _Asides(_Guarded):
    """Standard error: what it does not take is left out, and changes no exit code."""

    def write(self, content: ReadableBuffer, /) -> int:
        with contextlib.suppress(OSError):
            return super().write(content)
        return len(memoryview(content))

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            _to_nowhere(2)


def guard_streams() -> None:
    """
    Prepare the process's streams for the commands. What a host has put there stays where it has no buffer of its own.

    What a terminal's encoding cannot show is written as its escape instead of ending the command.
    """
    # In the order of their numbers: of a closed one the system gives the number to the next file that is opened, and a
    # database would be there for everybody to write into.
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - as long as the process
    sys.stdout = _guarded(sys.stdout, _Output)
    sys.stderr = _guarded(sys.stderr, _Asides)


def _guarded(stream: Any, kind: type[_Guarded]) -> Any:
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")
    buffer: Any = getattr(stream, "buffer", None)
    if buffer is None or isinstance(buffer, _Guarded):  # a host's own, as `io.StringIO`, or ours from a call before
        return stream
    with contextlib.suppress(OSError, ValueError):
        stream.flush()
    raw = getattr(buffer, "raw", buffer)  # without a buffer under `python -u`
    return io.TextIOWrapper(
        kind(raw, stream), encoding=stream.encoding, errors="backslashreplace", line_buffering=stream.isatty()
    )
