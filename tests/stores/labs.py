"""Journals of every kind for the promises' tests, and what the tests do with them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.budgets import PROVE
from tests.stores import postgres_lab
from tests.stores.hosts import ThreadedHost
from tests.stores.postgres_lab import POSTGRES
from tests.stores.redis_lab import REDIS, salted_journal

from minutebook.conversation import Conversation
from minutebook.model.bounds import StoreBounds
from minutebook.stores.hosted import HostedJournal
from minutebook.stores.journal import JournalStore
from minutebook.stores.memory import MemoryJournal
from minutebook.stores.sqlite import SQLiteJournal
from minutebook.testing import FrozenClock

SERVERS = (*POSTGRES, *REDIS)
KINDS = ("RAM", "SQLite", "hosted", *SERVERS)
ALONE = ("RAM", "hosted")
"""Kinds of which no other process could open the same journal."""
BOUNDED = ("RAM", "SQLite", *SERVERS)


def open_journal(
    kind: str,
    folder: Path,
    bounds: StoreBounds | None = None,
    clock: Callable[[], int] | None = None,
    *,
    name: str = "lab.db",
    blocking: bool = True,
) -> Any:
    """Return a journal of this kind; two on one folder and name share a file, as two processes would."""
    clock = clock or FrozenClock()
    if kind == "RAM":
        return MemoryJournal(bounds, clock=clock)
    if kind == "hosted":
        bound = bounds.max_retained_bytes if bounds else None
        return HostedJournal(ThreadedHost(), max_retained_bytes=bound, clock=clock)
    if kind in POSTGRES:
        return postgres_lab.salted_journal(f"{folder}/{name}", bounds, clock, blocking=blocking)
    if kind in REDIS:
        return salted_journal(kind, f"{folder}/{name}", bounds, clock, blocking=blocking)
    folder.chmod(0o700)
    return SQLiteJournal(folder / name, bounds, clock=clock, blocking=blocking)


def opening(kind: str, folder: Path, name: str = "lab.db", *, blocking: bool = True) -> Callable[[], Any]:
    """
    Return what opens journals of this kind over one and the same record, each as another process would.

    Of those that stand `ALONE` it is the same one each time, to be closed once all is done.
    """
    if kind in ALONE:
        only = open_journal(kind, folder)
        return lambda: only
    return lambda: open_journal(kind, folder, name=name, blocking=blocking)


def chat(journal: Any, name: str = "chat", **options: Any) -> Conversation:
    """Return a conversation over a store of its own: its tokens are another worker's than those of a second one."""
    return Conversation(JournalStore(journal, namespace="lab"), name, format="openai-chat", **options)


def said(text: str, *calls: str) -> dict[str, Any]:
    """Return a raw chat response; every test that needs one of no special shape takes this."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": call, "type": "function", "function": {"name": "work", "arguments": "{}"}} for call in calls
        ]
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


def in_threads(works: Iterable[Callable[[], Any]]) -> list[Any]:
    """Start all at one gun, and return what each returned or raised, in order."""
    works = list(works)
    gun = threading.Barrier(len(works))
    answers: list[Any] = [None] * len(works)

    def run(number: int, work: Callable[[], Any]) -> None:
        gun.wait()
        try:
            answers[number] = work()
        except BaseException as error:
            answers[number] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(1_200 if PROVE else 60)
        assert not thread.is_alive(), "a worker never came back: a lock is held"
    return answers
