"""`python -m bench [--quick] [--only 1,4] [--json FILE]`: measure, and print the table."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sqlite3
import sys
import tempfile
import time
from dataclasses import replace
from importlib.metadata import version

from bench import appends, chats, costs, crowds, holdings, peers, reads, remotes, steps
from bench.hosts import Hosts
from bench.lab import Lab
from bench.measure import sync_seconds
from bench.table import Row, rendered

FIGURES = {
    "1": appends.durable_append,
    "2": appends.async_append,
    "3": appends.growth,
    "4": reads.window,
    "5": appends.whole_step,
    "6": crowds.sixteen,
    "7": crowds.many,
    "8": costs.written,
    "9": reads.bound,
    "10": costs.memory,
    "11": costs.imports,
    "12": remotes.servers,
    "13": reads.whole,
    "15": steps.added,
    "16": chats.added,
    "17": holdings.held,
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure the figures of docs/performance.md.")
    parser.add_argument("--quick", action="store_true", help="shorter conversations and fewer rounds; some minutes")
    parser.add_argument("--only", default="", help="figures to measure, such as 1,4")
    parser.add_argument("--json", help="write the table to this file too")
    parser.add_argument("--directory", help="where the databases are made; it decides which disk is measured")
    return parser.parse_args()


def _versions() -> dict[str, str]:
    return {
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
        "minutebook": version("minutebook"),
        "msgspec": version("msgspec"),
        **peers.versions(),
    }


def _spread(seconds: list[float]) -> str:
    return f"{min(seconds) * 1000:.2f} to {max(seconds) * 1000:.2f}"


def main() -> None:
    """Measure the figures that were asked for."""
    given = _arguments()
    chosen = [figure for figure in given.only.split(",") if figure] or list(FIGURES)
    rows: list[Row] = []
    with contextlib.ExitStack() as ending:
        directory = ending.enter_context(tempfile.TemporaryDirectory(prefix="minutebook-bench-", dir=given.directory))
        os.chmod(directory, 0o700)
        hosts = Hosts(given.directory)
        ending.callback(hosts.close)
        lab = Lab(directory, given.quick, hosts)
        before = sync_seconds(directory)
        for figure in chosen:
            begin = time.perf_counter()
            found = FIGURES[figure](lab)
            after = sync_seconds(directory)
            rows += [replace(row, sync_seconds=(before + after) / 2) for row in found]
            before = after
            print(f"figure {figure}: {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
        lab.loop.close()
        versions = _versions() | hosts.versions()
    print(", ".join(f"{name} {number}" for name, number in versions.items()) + f"; {os.cpu_count()} cores")
    if rows:
        syncs = _spread([row.sync_seconds for row in rows])
        print(f"fdatasync of a 3 KB append: {syncs} ms (medians around each figure)\n\n{rendered(rows)}")
    for kind, reason in hosts.missing.items():
        print(f"\nNOT MEASURED: {kind}: {reason}")
    if given.json:
        with open(given.json, "w") as file:
            json.dump({"versions": versions, "rows": [row.as_json() for row in rows]}, file, indent=1)


if __name__ == "__main__":
    main()
