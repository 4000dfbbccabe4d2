"""A worker on a shared server that is killed at any moment, again and again: what was acknowledged is whole."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable
from typing import Any

from minutebook.testing import drive
from minutebook.testing.conformance.samples import FORMAT, KEY, adding, answer, entries, say


def write_until_killed(journal: Any, first: int) -> None:
    """Write one turn after another and say which are acknowledged, until this process is killed."""
    number = first
    while True:
        opening = adding(f"{number}", say(f"{number}"), opens=True)
        epoch = drive(journal.reserve(KEY, f"t{number}", format=FORMAT, opening=opening)).header.epoch
        drive(journal.commit(KEY, f"t{number}", epoch, adding(f"{number}+", answer("a"), settles=True), release=True))
        print(number, flush=True)
        number += 1


def survive_kills(
    journal: Any, kills: int, start: Callable[[int], subprocess.Popen[str]], settled: Callable[[], Any]
) -> str:
    """
    Kill workers that `start` runs; every turn that was acknowledged is whole, and one more may be. Return a figure.

    `settled` returns once the server has seen that the worker is gone.
    """
    chance = random.Random(1)
    acknowledged = more = turns = 0
    for _ in range(kills):
        worker = start(turns + 1000)
        assert worker.stdout is not None
        assert worker.stdout.readline()
        time.sleep(chance.uniform(0, 0.05))
        worker.kill()
        told = 1 + len(worker.stdout.read().split())
        worker.wait()
        settled()
        header = drive(journal.header(KEY))
        if header.token:
            drive(journal.recover(KEY, header.epoch))
            header = drive(journal.header(KEY))
        assert told <= header.state.exchanges - turns <= told + 1
        more += header.state.exchanges - turns - told
        acknowledged += told
        turns = header.state.exchanges
    found = drive(entries(journal, KEY))
    assert [entry.seq for entry in found] == list(range(1, len(found) + 1))
    drive(journal.close())
    return f"{kills} kills: {acknowledged:,} turns acknowledged, 0 lost, {more} more written"
