"""Where a run takes place: a directory, servers, an event loop, how often, and files that are filled once."""

from __future__ import annotations

import asyncio
import itertools
import os
from dataclasses import dataclass, field
from typing import Any

from bench import ours, peers
from bench.hosts import Hosts
from bench.limits import Raw
from bench.workload import compact, exchange, rows


@dataclass
class Lab:
    """One run of the bench."""

    directory: str
    quick: bool
    hosts: Hosts
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _files: dict[tuple[str, int], str] = field(default_factory=dict)
    _numbers: Any = field(default_factory=lambda: itertools.count(10**7))

    @property
    def rounds(self) -> int:
        """How many interleaved rounds a figure has."""
        return 7 if self.quick else 15

    @property
    def lengths(self) -> tuple[int, int]:
        """How many exchanges a conversation holds before the work that is timed."""
        return (300, 1000) if self.quick else (1000, 10_000)

    @property
    def longest(self) -> int:
        """The longest conversation."""
        return 3000 if self.quick else 100_000

    def number(self) -> int:
        """Return the number of an exchange that was not used yet."""
        return next(self._numbers)

    def path(self, name: str) -> str:
        """Return a path of a file that is not there yet."""
        return os.path.join(self.directory, f"{name}-{self.number()}.db")

    def ours_at(self, length: int) -> str:
        """Return a file of ours with `length` exchanges in the conversation `talk`."""
        if ("ours", length) not in self._files:
            path = self._files["ours", length] = self.path("ours")
            store = ours.store_at(path, blocking=True)
            ours.fill(store, "talk", length)
            self.run(store.close())
        return self._files["ours", length]

    def entries_at(self, length: int) -> str:
        """Return the same file with `length` entries of an exchange each in the conversations `entries` and `held`."""
        path = self.ours_at(length)
        if ("entries", length) not in self._files:
            self._files["entries", length] = path
            ours.fill_entries(path, ("entries", "held"), [compact(exchange(n)) for n in range(length)])
        return path

    def raw_at(self, length: int, *, split: bool = False) -> Raw:
        """Return a raw file of its own with `length` exchanges, a row for each exchange or for each message."""
        raw = Raw(self.path("raw"))
        for first in range(0, length, 500):
            numbers = range(first, min(first + 500, length))
            raw.fill([row for n in numbers for row in (rows(n) if split else [compact(exchange(n))])])
        return raw

    def peers_at(self, length: int) -> dict[str, Any]:
        """Return a session of each peer with `length` exchanges."""
        return {name: self._peer_at(name, length) for name in peers.names()}

    def _peer_at(self, name: str, length: int) -> Any:
        session = peers.session(name, self.path(name))
        for first in range(0, length, 500):
            numbers = range(first, min(first + 500, length))
            self.run(session.add_items([message for n in numbers for message in exchange(n)]))
        return session

    def run(self, work: Any) -> Any:
        """Run a coroutine in the bench's loop."""
        return self.loop.run_until_complete(work)

    def close_peers(self, sessions: dict[str, Any]) -> None:
        """Close the sessions."""
        for session in sessions.values():
            self.run(peers.close(session))
