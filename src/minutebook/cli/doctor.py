"""
What `doctor` looks at: versions, durability, privacy, reservations. It changes nothing recorded and shows no content.

Opening the store, as for every command, makes its files private; the modes are looked at before.
"""

from __future__ import annotations

import os
import platform
import sqlite3
import stat
from importlib import metadata
from typing import TYPE_CHECKING

import msgspec

from minutebook._version import __version__
from minutebook.errors import DecisionHistoryCorrupt
from minutebook.model.clock import read_clock
from minutebook.stores.streams import stream_listings
from minutebook.stores.urls import SCHEMES, file_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from minutebook.stores.journal import JournalStore

WAL_RESET_MENDED = (3, 51, 3)
"""SQLite below this can damage a database when two connections checkpoint its log at once (advisory V-24)."""

_DAMAGED = "restore a backup, or erase it with `minutebook delete`"


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at; `attention` says what to do, and is empty when all is well."""

    check: str
    found: str
    attention: str = ""


async def examine(store: JournalStore, longest_turn: int) -> list[Finding]:
    """
    Return what was found about this installation, an open store and its reservations.

    A turn that is under way is well for `longest_turn` minutes, by this machine's clock.
    """
    findings = [*_installation()]
    totals = await store.totals()
    findings.append(_durability(store))  # which a store on a server knows once it was asked for something
    findings.append(Finding("conversations", f"{totals.conversations:,} in {totals.bytes:,} bytes"))
    held: list[int] = []
    damaged: list[Finding] = []
    async for listing in stream_listings(store.journal, store.namespace):
        if isinstance(listing, DecisionHistoryCorrupt):
            damaged.append(Finding("damaged", str(listing.id), _DAMAGED))
        elif listing.header.token:
            held.append(listing.header.since)
    return [*findings, _reserved(held, read_clock(store.clock), longest_turn), *damaged]


def _reserved(since: list[int], now: int, longest_turn: int) -> Finding:
    if not since:
        return Finding("reserved", "0")
    minutes = max(now - min(since), 0) // 60_000
    found = f"{len(since):,}, the longest for {minutes:,} min"
    if minutes < longest_turn:
        return Finding("reserved", found)
    return Finding("reserved", found, "see whether its worker lives; once it is stopped, run `minutebook recover`")


def _installation() -> Iterator[Finding]:
    yield Finding("minutebook", __version__)
    yield Finding("python", platform.python_version())
    mended = sqlite3.sqlite_version_info >= WAL_RESET_MENDED
    serialised = "" if mended else " (before 3.51.3: checkpoints are made one at a time, under the store's lock file)"
    yield Finding("sqlite", sqlite3.sqlite_version + serialised)
    drivers = {scheme.driver for scheme in SCHEMES.values() if scheme.driver}
    for name in ("msgspec", "anthropic", "httpx2", "openai", "rich", "rs-bpe", "typer", "xllamacpp", *sorted(drivers)):
        try:
            yield Finding(name, metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Finding(name, "not installed")


def files(url: str) -> Iterator[Finding]:
    """Yield the modes of a store's files as they are before it is opened, which makes them private again."""
    path = file_of(url)
    if path is None:
        return
    for name in (path, *(path + suffix for suffix in ("-wal", "-shm", "-journal", "-lock"))):
        if os.path.lexists(name):
            mode = stat.S_IMODE(os.lstat(name).st_mode)  # a link is not followed; opening refuses it
            attention = "" if mode == 0o600 else "others had rights to it; opening the store has made it private"
            yield Finding(f"mode of …{os.path.basename(name)[-40:]}", f"{mode:04o}", attention)


def _durability(store: JournalStore) -> Finding:
    attention = "" if store.durable else "acknowledged writes may be lost when the power fails"
    return Finding("durable", "yes" if store.durable else "no", attention)
