"""Where the tests of a conversation keep it: RAM, a SQLite file or a server; opened, left and opened again."""

from __future__ import annotations

import asyncio
import functools
import json

from minutebook.conversation import Conversation
from minutebook.stores.clock import system_clock
from minutebook.stores.journal import JournalStore
from minutebook.stores.memory import MemoryJournal
from minutebook.stores.sqlite import SQLiteJournal

PLACES = ("ram", "sqlite")
SHARED = ("postgres", "redis", "redis cluster")
"""Servers that many hosts share; what is asked of every store is asked of these as well."""


class Place:
    """One store that can be opened again, as another worker would."""

    def __init__(self, kind, directory):
        self.kind = kind
        self.path = directory / "book.sqlite"
        self._ram = MemoryJournal()
        self._opened = []

    def open(self, namespace="tests", bounds=None, clock=None):
        """Return a store of its own over the same logs."""
        store = JournalStore(self._journal(bounds, clock), namespace=namespace)
        self._opened.append(store)
        return store

    def _journal(self, bounds, clock):
        if self.kind == "ram":
            return MemoryJournal(bounds, clock=clock) if bounds else self._ram
        if self.kind == "sqlite":
            return SQLiteJournal(self.path, bounds, clock=clock or system_clock)
        from tests.stores import postgres_lab, redis_lab

        if self.kind == "postgres":
            return postgres_lab.salted_journal(f"{self.path}", bounds, clock, blocking=False)
        return redis_lab.salted_journal(self.kind.capitalize(), f"{self.path}", bounds, clock, blocking=False)

    async def close(self):
        for store in self._opened:
            if self.kind != "ram":
                await store.close()


def lasting(test):
    """Run an async test to its end, and close what it opened."""

    @functools.wraps(test)
    def run(place, *arguments, **named):
        async def whole():
            try:
                await test(place, *arguments, **named)
            finally:
                await place.close()

        asyncio.run(whole())

    return run


def chat(store, name="c", **options):
    return Conversation(store, name, format="openai-chat", **options)


def user(text):
    return {"role": "user", "content": text}


def said(text):
    return {"role": "assistant", "content": text}


def calling(*ids, name="tool", text=None):
    calls = [{"id": id_, "type": "function", "function": {"name": name, "arguments": "{}"}} for id_ in ids]
    return {"role": "assistant", "content": text, "tool_calls": calls}


def output(id_, text="done"):
    return {"role": "tool", "tool_call_id": id_, "content": text}


def reply(message):
    """Return a completion that holds a message, as bytes with a provider's own spacing."""
    return json.dumps({"id": "r", "choices": [{"index": 0, "message": message}]}, indent=1).encode()


def short(messages):
    """Return messages by a letter and their text or ids: `U hi`, `A{C1}`, `R C1`, `A yo`."""
    out = []
    for message in messages:
        if message["role"] == "user":
            out.append(f"U {message['content']}")
        elif message["role"] == "tool":
            out.append(f"R {message['tool_call_id']}")
        elif message.get("tool_calls"):
            ids = ", ".join(call["id"] for call in message["tool_calls"])
            out.append(f"A{{{ids}}}")
        else:
            out.append(f"A {message['content']}")
    return out


async def seen(conversation, limits=None):
    """Return a window in short."""
    return short(await conversation.window(limits))


async def dump(store, name="c"):
    """Return everything that is retained of a conversation, for comparing before and after."""
    key = store.key(name)
    header = await store.header(key)
    return header, [entry async for entry in store.entries(key)]


async def tell(conversation, text, answer="ok", calls=()):
    """Go through one whole turn: an input, maybe a step of calls, and the answer."""
    async with conversation.turn(text) as turn:
        await turn.window()
        if calls:
            for call in await turn.respond(reply(calling(*calls))):
                await turn.result(call, f"result of {call.id}")
            await turn.window()
        await turn.respond(reply(said(answer)))
    return turn
