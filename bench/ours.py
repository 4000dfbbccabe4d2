"""minutebook as it is measured: a store in one of two colours, and conversations filled by bulk appends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.measure import drive
from bench.workload import body, exchange, text
from minutebook.conversation import Conversation
from minutebook.model.bounds import WindowLimits
from minutebook.model.entries import Draft, Kind
from minutebook.model.record import Delta
from minutebook.stores.journal import JournalStore
from minutebook.stores.sqlite import SQLiteJournal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from minutebook.model.keys import ConversationKey

LIMITS = WindowLimits(max_messages=64, max_bytes=2**20, low_water=1.0)
"""Exactly 64 messages, so that every subject reads as much."""

_BULK = 200


def store_at(path: str, *, blocking: bool) -> JournalStore:
    """Return a store on a new or existing file."""
    return JournalStore(SQLiteJournal(path, blocking=blocking), namespace="bench")


def conversation(store: JournalStore, name: str) -> Conversation:
    """Return a conversation whose windows hold 64 messages."""
    return Conversation(store, name, format="openai-chat", limits=LIMITS)


def fill(store: JournalStore, name: str, exchanges: int) -> None:
    """Write exchanges by bulk appends into a blocking store."""
    target = conversation(store, name)
    for first in range(0, exchanges, _BULK):
        numbers = range(first, min(first + _BULK, exchanges))
        drive(target.append([message for number in numbers for message in exchange(number)]))


def fill_entries(path: str, names: Sequence[str], payloads: Sequence[bytes]) -> None:
    """Write entries of one exchange each into conversations of that form."""
    store = store_at(path, blocking=True)
    for name in names:
        for first in range(0, len(payloads), _BULK):
            drafts = tuple(map(one_entry, payloads[first : first + _BULK]))
            delta = Delta(drafts=drafts, idempotency=store.fresh_id())
            drive(store.journal.reserve(store.key(name), "bench", format="entry", opening=delta, release=True))
    drive(store.close())


def one_entry(payload: bytes) -> Draft:
    """Return an exchange as one entry, which is what the raw limit's one row holds."""
    return Draft(kind=Kind.RESPONSE, payload=payload, messages=1, size=len(payload), stop=len(payload))


async def reserve_entry(store: JournalStore, key: ConversationKey, payload: bytes) -> None:
    """Append one entry without a hold: reservation, entry and release in one durable transaction."""
    delta = Delta(drafts=(one_entry(payload),), idempotency=store.fresh_id())
    await store.journal.reserve(key, "bench", format="entry", opening=delta, release=True)


async def commit_entry(store: JournalStore, key: ConversationKey, payload: bytes, epoch: int) -> None:
    """Append one entry under a reservation that stays."""
    await store.journal.commit(key, "bench", epoch, Delta(drafts=(one_entry(payload),), idempotency=store.fresh_id()))


async def hold(store: JournalStore, key: ConversationKey) -> int:
    """Reserve a conversation for `commit_entry`; return the epoch."""
    return (await store.journal.reserve(key, "bench", format="entry")).header.epoch


async def step(target: Conversation, number: int) -> int:
    """Take a whole turn: record the input, make the window, record the answer. Return the window's bytes."""
    async with target.turn(text("user", number, 200)) as turn:
        window = await turn.window()
        await turn.respond(body(number))
    return len(window.json)
