"""Commits of an event loop on slow and fast disks (case O-38): the writer's clock is a test's, and no test waits."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.stores.test_sqlite_journal import append, writer_of

import minutebook.stores.sqlite_pace as pace_module
from minutebook.conversation import Conversation
from minutebook.model.keys import ConversationKey
from minutebook.stores import sqlite_statements as sql
from minutebook.stores.opening import SQLiteStore
from minutebook.stores.sqlite import SQLiteJournal
from minutebook.stores.sqlite_pace import FAST_COMMITS


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path / "history.db"


class Disk:
    """
    A disk whose syncs are as slow as it is told, on the clock that the writer times its commits by.

    A slow one in the writer's thread does not end before the event loop has taken a turn. One on the loop itself cannot
    wait for that: it is counted in `held`.
    """

    def __init__(self, journal: SQLiteJournal, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.slow = True
        self.held = self.beside = 0
        loop, thread, disk = asyncio.get_running_loop(), threading.get_ident(), self

        class Cursor(sqlite3.Cursor):
            def execute(self, text: str, *bound: Any) -> sqlite3.Cursor:
                if text is sql.COMMIT:
                    disk.now += 1.0 if disk.slow else 0.0
                    on_loop = threading.get_ident() == thread
                    disk.held += on_loop
                    disk.beside += not on_loop
                    if disk.slow and not on_loop:
                        turn = threading.Event()
                        loop.call_soon_threadsafe(turn.set)
                        assert turn.wait(60), "the loop stood still while the thread committed"
                return super().execute(text, *bound)

        monkeypatch.setattr(pace_module, "perf_counter", lambda: self.now)
        writer = writer_of(journal)
        writer._cursor = writer._connection.cursor(Cursor)


async def slowly(path: Path, monkeypatch: pytest.MonkeyPatch, commits: int) -> tuple[int, int]:
    """Append so often on a slow disk; return how many commits held the loop up, and how many were made beside it."""
    async with SQLiteStore(path, namespace="tenant") as store:
        assert isinstance(store.journal, SQLiteJournal)
        disk = Disk(store.journal, monkeypatch)
        conversation = Conversation(store, "c", format="openai-chat")
        for number in range(commits):
            await conversation.append([{"role": "user", "content": f"{number}"}])
        assert [each.messages[0]["content"] for each in await conversation.last(1)] == [f"{commits - 1}"]
        return disk.held, disk.beside


def test_o38_a_slow_disk_holds_the_loop_up_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """O-38: after the first slow commit all others are made in the thread, and the loop takes turns meanwhile."""
    assert asyncio.run(slowly(path, monkeypatch, 20)) == (1, 19)


def test_o38_control_a_writer_that_never_minds_is_found(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """O-38: the planted fault: where no commit counts as slow, each of them holds the loop up."""
    monkeypatch.setattr(pace_module, "SLOW_SECONDS", 10.0)
    assert asyncio.run(slowly(path, monkeypatch, 20)) == (20, 0)


def test_o38_a_disk_has_to_be_fast_for_a_while_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """O-38: so many commits in a row, wherever they are made; each slow one begins the count anew."""

    async def work() -> None:
        journal = SQLiteJournal(path)
        disk = Disk(journal, monkeypatch)
        names = iter(range(1_000))

        async def commits(number: int, *, slow: bool) -> tuple[int, int]:
            disk.slow, disk.held, disk.beside = slow, 0, 0
            for _ in range(number):
                with writer_of(journal)._lock:  # the thread is done: beside it a loop makes no commit
                    pass
                await append(journal, ConversationKey("tenant", f"{next(names)}"), "a")
            return disk.held, disk.beside

        assert await commits(3, slow=False) == (3, 0)
        assert await commits(1, slow=True) == (1, 0)
        assert await commits(FAST_COMMITS - 1, slow=False) == (0, FAST_COMMITS - 1)
        assert await commits(1, slow=True) == (0, 1)
        assert await commits(FAST_COMMITS, slow=False) == (0, FAST_COMMITS)
        assert await commits(3, slow=False) == (3, 0)
        await journal.close()

    asyncio.run(work())


def test_o38_a_reservation_needs_no_sync_and_says_nothing_of_the_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O-38: it is made on the loop on a slow disk too, since nothing is waited for, and does not count as fast."""

    async def work() -> None:
        journal = SQLiteJournal(path)
        disk = Disk(journal, monkeypatch)
        await append(journal, ConversationKey("tenant", "first"), "a")
        disk.slow = False
        for number in range(2 * FAST_COMMITS):
            await journal.reserve(ConversationKey("tenant", f"{number}"), "t", format="f")
        assert (disk.held, disk.beside) == (1 + 2 * FAST_COMMITS, 0)
        await append(journal, ConversationKey("tenant", "last"), "a")
        assert disk.beside == 1
        await journal.close()

    asyncio.run(work())
