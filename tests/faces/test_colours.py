"""An object of one colour where the other is needed says so, and what to write instead (SPEC B11)."""

# ruff: noqa: PT012 - what fails here is a turn, which is a block

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.stores.labs import said

import minutebook
import minutebook.sync
from minutebook import BlockingMismatch, InvalidValue, PairingViolation

CALLING = said("", "c1")

MADE: dict[str, Callable[[Any], Any]] = {
    "store": lambda faces: faces.MemoryStore(),
    "turn": lambda faces: faces.Conversation(faces.MemoryStore(), "c", format="openai-chat").turn("q"),
    "provider": lambda faces: faces.OpenAIDecisionProvider(model="m", api_key="k"),
}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_b11_an_asynchronous_object_in_a_plain_with_says_what_to_write(made: Callable[[Any], Any]) -> None:
    """B11: a typed error with the way out, before anything is reserved or read."""
    with pytest.raises(BlockingMismatch, match=r"`async with`.*minutebook\.sync"), made(minutebook):
        pass


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_b11_a_blocking_object_in_an_async_with_says_what_to_write(made: Callable[[Any], Any]) -> None:
    """B11: the other way round."""

    async def body() -> None:
        with pytest.raises(BlockingMismatch, match="plain `with`"):
            async with made(minutebook.sync):
                pass

    asyncio.run(body())


def test_b11_a_missing_await_is_named_where_it_shows() -> None:
    """B11, C1: a coroutine as a result, a message or a response; nothing is recorded."""

    async def waits() -> str:
        return "done"

    given = [waits() for _ in range(3)]

    async def body() -> None:
        async with minutebook.MemoryStore() as store:
            talk = minutebook.Conversation(store, "c", format="openai-chat")
            with pytest.raises(InvalidValue, match="await"):
                talk.turn(given[0])
            with pytest.raises(PairingViolation, match="`await`"):
                async with talk.turn("q") as turn:
                    (call,) = await turn.respond(CALLING)
                    with pytest.raises(InvalidValue, match="await"):
                        await turn.result(call, given[1])
                    with pytest.raises(InvalidValue, match="await"):
                        await turn.respond(given[2])
                    turn.result(call, "done").close()  # not awaited, so nothing was recorded
            assert len(await talk.window()) == 0
        for coroutine in given:
            coroutine.close()

    asyncio.run(body())


def test_b11_a_strict_checker_refuses_the_wrong_colour(tmp_path: Path) -> None:
    """B11: the words for people who run the line take nothing from those who check it first."""
    file = tmp_path / "uses.py"
    file.write_text(
        "import minutebook\n"
        "import minutebook.sync\n"
        "with minutebook.MemoryStore() as one:\n    pass\n"
        "async def body() -> None:\n    async with minutebook.sync.MemoryStore() as two:\n        pass\n"
    )
    checking = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), str(file)]
    told = subprocess.run(checking, capture_output=True, text=True, timeout=120).stdout
    assert f"{file}:3: error:" in told, told
    assert f"{file}:6: error:" in told, told
