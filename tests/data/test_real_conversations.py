"""
Real conversations through `Conversation`: appended, reopened, and windowed at every limit, on RAM and SQLite.

The recordings are not part of the repository (see `tests/recordings.py`); the loaders of
`tests/providers/test_real_conversations_wire.py` read them. What a window may be is judged here by the plain rules
alone: pairing, bounds, and equality with the record.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest
from tests.faces.places import PLACES, Place
from tests.providers.test_real_conversations_wire import (
    CHAT_FILES,
    blocks,
    chat_calls,
    chat_conversations,
    claude_code_sessions,
    codex_rollouts,
    cut_unanswered,
)
from tests.recordings import needs_recordings

from minutebook.conversation import Conversation
from minutebook.errors import DecisionHistoryLimitExceeded
from minutebook.model import codec
from minutebook.model.bounds import WindowLimits
from minutebook.model.entries import Kind

pytestmark = needs_recordings

HUGE = 2**40
EVERY = 64
"""Up to this many messages every limit is tried; longer conversations get a spread of about as many."""


def chat():
    for file in CHAT_FILES:
        for number, messages in enumerate(chat_conversations(file)):
            yield f"{file}-{number}", cut_unanswered(messages)


def codex():
    for name, items in codex_rollouts():
        yield name, [item for item in items if item.get("role") != "developer"]


RECORDINGS = {"openai-chat": chat, "anthropic": claude_code_sessions, "openai-responses": codex}


def places(name, message):
    """Return the ids of the calls that a message makes, and of those that it answers, in order."""
    if name == "openai-chat":
        made = [call.get("id") for call in message.get("tool_calls") or ()]
        made = made or ([None] if message.get("function_call") else [])
        return made, [message.get("tool_call_id")] if message["role"] in ("tool", "function") else []
    if name == "anthropic":
        made = [block["id"] for block in blocks(message, "tool_use")] if message["role"] == "assistant" else []
        return made, [block["tool_use_id"] for block in blocks(message, "tool_result")]
    kind = message.get("type", "")
    answered = kind.endswith("_call_output")
    return [message["call_id"]] if kind in ("function_call", "custom_tool_call") else [], (
        [message["call_id"]] if answered else []
    )


def violations(name, messages):
    """Count calls without results, results without calls, wrong order, and what stands between them."""
    found, waiting, seen = 0, [], set()
    for message in messages:
        made, answered = places(name, message)
        for id_ in answered:
            found += not waiting or bool(id_ and waiting[0] and waiting[0] != id_)  # some recordings leave ids out
            waiting = waiting[1:]
        model = name == "openai-responses" and message.get("role") != "user"
        found += bool(waiting and not answered and not model)
        found += sum(bool(id_) and id_ in seen for id_ in made)
        seen.update(made)
        waiting += made
    return found + len(waiting)


def opens_with_input(name, messages):
    return not messages or (messages[0].get("role") == "user" and not places(name, messages[0])[1])


def spread(total, count=EVERY):
    """Return every number from 1 to `total`, or about `count` of them, both ends included."""
    if total <= count:
        return range(1, total + 1)
    return sorted({1 + (total - 1) * step // (count - 1) for step in range(count)})


async def windows_of(conversation, name, figures):
    """Build windows at every limit and judge each; return the one without limits."""
    whole = await conversation.window(WindowLimits(max_messages=HUGE, max_bytes=HUGE))
    limits = [WindowLimits(max_messages=count, max_bytes=HUGE, low_water=1) for count in spread(len(whole))]
    limits += [
        WindowLimits(max_messages=HUGE, max_bytes=size, low_water=1) for size in spread(max(2, len(whole.json)), 24)
    ]
    newest = None
    for limit in limits:
        try:
            window = await conversation.window(limit)
        except DecisionHistoryLimitExceeded:
            figures["refused"] += 1
            continue
        messages = json.loads(window.json)
        figures["windows"] += 1
        figures["violations"] += violations(name, messages)
        assert opens_with_input(name, messages)
        assert len(messages) == len(window) <= limit.max_messages
        assert len(window.json) <= limit.max_bytes
        if messages:
            last = [messages[-1].get(key) for key in ("role", "type", "name", "output")]  # ids may be told apart
            newest = newest or last
            assert last == newest
    assert (await conversation.window(WindowLimits(max_messages=HUGE, max_bytes=HUGE, low_water=1))).json == whole.json
    figures["violations"] += violations(name, json.loads(whole.json))
    return whole


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", RECORDINGS)
@pytest.mark.parametrize("kind", PLACES)
def test_i22_real_conversations_are_kept_whole_and_every_window_of_them_is_legal(kind, name, tmp_path, figure):
    """Byte-equal on return, and no pairing violation at any limit; the counts equal those of the raw files."""
    figures, raw = Counter(), Counter()

    async def main():
        place = Place(kind, tmp_path)
        store = place.open()
        for recording, messages in RECORDINGS[name]():
            if not messages:
                continue
            raw["conversations"] += 1
            raw["messages"] += len(messages)
            raw["results"] += sum(len(places(name, message)[1]) for message in messages)
            await Conversation(store, recording, format=name).append(messages, id="import")
        store = place.open()
        for recording, messages in RECORDINGS[name]():
            if not messages:
                continue
            conversation = Conversation(store, recording, format=name)
            entries = [entry async for entry in conversation.entries()]
            figures["conversations"] += 1
            figures["results"] += sum(entry.kind is Kind.RESULT for entry in entries)
            figures["messages"] += len(messages) if returned(name, entries) == given(name, messages) else 0
            await windows_of(conversation, name, figures)
        await place.close()

    asyncio.run(main())
    figure(", ".join(f"{value:,} {what}" for what, value in figures.items()))
    assert figures["violations"] == 0
    assert figures["windows"] > figures["conversations"]
    assert {what: figures[what] for what in raw} == dict(raw)


def given(name, messages):
    """Return what was handed over, item by item, as the codec writes it."""
    return b",".join(codec.encode(message) for message in messages)


def returned(name, entries):
    """Return the payloads, put together as they were given; the items of one response apart again."""
    out = []
    for entry in entries:
        if entry.kind is Kind.RESULT and entry.payload == b"null":
            continue  # it came in the message of the result before it
        items = entry.payload[1:-1] if name == "openai-responses" and entry.payload[:1] == b"[" else entry.payload
        out.append(items)
    return b",".join(out)


def test_i22_a_planted_violation_is_found():
    """The judge finds a result moved before its call, a lost result and a doubled id."""
    name = "openai-chat"
    spoken = ([message for message in m if message["role"] != "system"] for _, m in chat())
    messages = next(m for m in spoken if sum(map(chat_calls, m)) > 2 and not violations(name, m))
    place = next(n for n, message in enumerate(messages) if message["role"] == "tool")
    assert violations(name, messages) == 0
    assert violations(name, messages[:place] + messages[place + 1 :]) > 0
    assert violations(name, [*messages[: place - 1], messages[place], messages[place - 1], *messages[place + 1 :]]) > 0
    assert violations(name, [*messages, *messages]) > 0
