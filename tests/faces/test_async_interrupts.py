"""
Ctrl-C at any line of an asynchronous call, under a loop that goes on afterwards, as a notebook's does (I-18).

`run_until_complete` ends with the interrupt. What the same loop runs next must find nothing that waits for ever: not
the tasks that were under way, and not their neighbours in a group that is committed together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.budgets import budget
from tests.faces.test_sync_interrupts import Interrupt

from minutebook import Conversation, JournalStore, MemoryStore, SQLiteStore
from minutebook.stores import sqlite_jobs, sqlite_writer

PATIENCE = 10
"""Seconds after which a task counts as one that waits for ever."""


def messages(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}, {"role": "assistant", "content": f"{text}, answered"}]


async def ended(tasks: list[asyncio.Task[Any]], where: str) -> None:
    """Wait until the tasks have ended, however they do."""
    _, waiting = await asyncio.wait(tasks, timeout=PATIENCE)
    assert not waiting, f"{where}: {len(waiting)} of {len(tasks)} tasks wait for ever"
    for task in tasks:
        if not task.cancelled():
            task.exception()


def to_the_end(loop: asyncio.AbstractEventLoop, work: Any) -> None:
    """Run a coroutine to its end, also through what an interrupted task brings out of the loop once more."""
    task = loop.create_task(work)
    while not task.done():
        try:
            loop.run_until_complete(task)
        except KeyboardInterrupt:
            continue
    task.result()


def interrupt_at(line: int, open_store: Callable[[], JournalStore], together: int) -> bool:
    """Interrupt appends that run together at one line, and go on with the loop; return whether they came so far."""
    loop = asyncio.new_event_loop()
    store = open_store()
    talks = [Conversation(store, f"{line}-{number}", format="openai-chat") for number in range(together)]
    strike = Interrupt(line)

    async def goes_on() -> None:
        await ended(tasks, f"line {line}, {strike.at}")
        again = [asyncio.create_task(talk.append(messages("second"))) for talk in talks]
        await ended(again, f"after line {line}, {strike.at}")
        for talk, task in zip(talks, again, strict=True):
            assert task.exception() is None, f"line {line}, {strike.at}"
            header = await store.verify(talk.key)
            assert not header.token
            shown = [message["content"] for message in (await talk.window()).messages]
            assert shown[-2:] == [each["content"] for each in messages("second")]
            assert len(shown) in (2, 4)
        await store.close()

    try:
        tasks = [loop.create_task(talk.append(messages("first"))) for talk in talks]
        try:
            with strike:
                loop.run_until_complete(asyncio.wait(tasks, timeout=PATIENCE))
        except KeyboardInterrupt:
            pass
        to_the_end(loop, goes_on())
        to_the_end(loop, loop.shutdown_asyncgens())
    finally:
        loop.close()
    return bool(strike.at)


def every_line(open_store: Callable[[], JournalStore], together: int) -> int:
    """Interrupt at lines in turn, all of them to prove; return how many there are."""
    line = 1
    while interrupt_at(line, open_store, together):
        line += budget(13, 1)
    return line


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("together", [1, 3])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_i18_an_interrupt_at_any_line_leaves_no_task_waiting(kind: str, together: int, tmp_path: Path) -> None:
    """Of one append and of several that are committed together; each is old or new, and the next one works."""
    tmp_path.chmod(0o700)
    file = tmp_path / "n.sqlite"
    lines = every_line(lambda: MemoryStore("n") if kind == "memory" else SQLiteStore(file, namespace="n"), together)
    assert lines > 50


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_i18_control_a_group_that_its_first_task_takes_along_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: a task that is interrupted while it looks after its group leaves the others with nobody."""
    tmp_path.chmod(0o700)
    flush = sqlite_writer.Writer._flush

    def forgetting(writer: Any, loop: Any, group: list[sqlite_jobs.Job]) -> None:
        writer._gathered.pop(loop)
        flush(writer, loop, group)

    monkeypatch.setattr(sqlite_writer.Writer, "_flush", forgetting)
    monkeypatch.setattr("tests.faces.test_async_interrupts.PATIENCE", 1)
    with pytest.raises(AssertionError, match="wait for ever"):
        every_line(lambda: SQLiteStore(tmp_path / "n.sqlite", namespace="n"), 3)
