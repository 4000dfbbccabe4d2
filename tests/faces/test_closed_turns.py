"""
Turns in generators that are closed before they ended, as a server closes an answer whose reader went away (I-18).

Whoever is closed by `close` or by its collection cannot wait any more. The reservation is given back all the same, so
that a worker with another connection goes on without a `recover`.
"""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from minutebook import Conversation, SQLiteStore, sync

ANSWER = {"role": "assistant", "content": "answer"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path / "book.sqlite"


@pytest.mark.parametrize("answered", [False, True])
def test_i18_a_closed_generator_gives_its_turn_back(answered: bool, path: Path) -> None:
    """Without an event loop, before the answer and after it: the next worker finds the conversation free."""
    with sync.SQLiteStore(path, namespace="n") as mine, sync.SQLiteStore(path, namespace="n") as other:

        def answer() -> Iterator[str]:
            with sync.Conversation(mine, "c", format="openai-chat").turn("one") as turn:
                if answered:
                    turn.respond(ANSWER)
                yield "piece"

        pieces = answer()
        assert next(pieces) == "piece"
        pieces.close()
        talk = sync.Conversation(other, "c", format="openai-chat")
        with talk.turn("two") as turn:
            turn.respond(ANSWER)
        assert [message["content"] for message in talk.window().messages] == ["two", "answer"]
        other.verify(talk.key)


async def others_turn(other: SQLiteStore) -> list[str]:
    """Record a turn as another worker, once the loop did what was waiting, and return what the conversation shows."""
    while waiting := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.gather(*waiting)
    talk = Conversation(other, "c", format="openai-chat")
    async with talk.turn("two") as turn:
        await turn.respond(ANSWER)
    await other.verify(talk.key)
    return [message["content"] for message in (await talk.window()).messages]


@pytest.mark.parametrize("how", ["aclose", "dropped", "coroutine closed"])
def test_i18_a_closed_async_generator_gives_its_turn_back(how: str, path: Path) -> None:
    """Under an event loop: closed and waited for, dropped, or in a coroutine that is closed while it waits."""

    async def answer(store: SQLiteStore) -> AsyncIterator[str]:
        async with Conversation(store, "c", format="openai-chat").turn("one"):
            yield "piece"

    async def story() -> list[str]:
        async with SQLiteStore(path, namespace="n") as mine, SQLiteStore(path, namespace="n") as other:
            if how == "coroutine closed":
                held = asyncio.Event()
                coroutine = hold(mine, held)
                await driven(coroutine, held)
                coroutine.close()
            else:
                pieces = answer(mine)
                assert await anext(pieces) == "piece"
                if how == "aclose":
                    await pieces.aclose()
                del pieces
                gc.collect()
                await asyncio.sleep(0)  # a round of the loop, in which it takes up what was collected
            return await others_turn(other)

    async def hold(store: SQLiteStore, held: asyncio.Event) -> None:
        async with Conversation(store, "c", format="openai-chat").turn("one"):
            held.set()
            await asyncio.Event().wait()

    async def driven(coroutine: Any, held: asyncio.Event) -> None:
        """Run a coroutine inside this task as far as its turn."""
        while not held.is_set():
            future = coroutine.send(None)
            if future is None:
                await asyncio.sleep(0)
            elif not held.is_set():
                future._asyncio_future_blocking = False
                await asyncio.wait([future])

    assert asyncio.run(story()) == ["two", "answer"]
