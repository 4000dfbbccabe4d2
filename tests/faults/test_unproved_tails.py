"""What a store hands over with a reservation is proved before it is sent, also by whoever asks for it later (I-39)."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.faults.alterations import SHELVES
from tests.stores.labs import said

from minutebook import Conversation
from minutebook.errors import DecisionHistoryCorrupt
from minutebook.testing import drive


async def answer(conversation: Conversation, text: str, *, asks: bool) -> bytes:
    """Take a turn, and return its window if it asks for one."""
    async with conversation.turn(f"question of {text}") as turn:
        window = (await turn.window()).json if asks else b""
        await turn.respond(said(text))
    return window


@pytest.mark.parametrize("altered", [False, True], ids=["control, as it was", "altered"])
@pytest.mark.parametrize("kind", SHELVES)
def test_i39_what_came_with_a_reservation_and_was_not_looked_at_is_not_remembered_as_sound(
    kind: str, altered: bool, tmp_path: Path
) -> None:
    """I-39: a turn that asks for no window proves nothing; the next one of the process does, before it sends."""
    shelf = SHELVES[kind](tmp_path)
    first = Conversation(shelf.store(), "c", format="openai-chat")
    drive(answer(first, "first answer", asks=True))
    shelf.keep()
    header, entries = shelf.held(first.key)
    if altered:
        at = next(at for at, entry in enumerate(entries) if b"first answer" in entry.payload)
        payload = entries[at].payload.replace(b"first answer", b"other answer")
        entries[at] = msgspec.structs.replace(entries[at], payload=payload)
    shelf.restore()
    shelf.write(first.key, header, entries)
    later = Conversation(shelf.store(), "c", format="openai-chat")
    drive(answer(later, "second answer", asks=False))
    if altered:
        with pytest.raises(DecisionHistoryCorrupt):
            drive(answer(later, "third answer", asks=True))
    else:
        window = drive(answer(later, "third answer", asks=True))
        assert b"first answer" in window
        assert b"second answer" in window
