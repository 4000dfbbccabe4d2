"""The command line: `minutebook chat`, `demo`, and what an operator needs on any store."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; without its extra installed, say how to install it."""
    from minutebook.cli.streams import guard_streams

    guard_streams()  # before anything looks at them
    try:
        from minutebook.cli.app import run
    except ModuleNotFoundError as missing:
        if missing.name not in ("typer", "rich"):
            raise
        sys.stderr.write("The command line needs its extra: pip install 'minutebook[cli]'\n")
        raise SystemExit(2) from None
    run()
