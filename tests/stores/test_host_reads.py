"""Reads of a host's own store: they save nothing where the host sees what they are, and so renew no time to live."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.stores.hosts import WaitingHost
from tests.stores.labs import said

from minutebook import Conversation, HostStore
from minutebook.ports import STREAM_PAGE
from minutebook.testing import drive
from minutebook.testing.conformance import check_store


class NotingHost(WaitingHost):
    """A host that notes what it saves, as one does whose documents expire some time after their last save."""

    def __init__(self, *, looks: bool) -> None:
        super().__init__()
        self.looks = looks
        self.saved: list[str] = []

    async def transact(self, key: Any, operation: Any) -> Any:
        async with self.locks.setdefault(key, asyncio.Lock()):
            stored = self.records.get(key)
            document, result = await operation(stored)
            if document is not stored or not self.looks:
                self.saved.append(key.id)
                self.save(key, document)
            return result


async def _read_all(store: HostStore, conversation: Conversation) -> None:
    journal, key = store.journal, conversation.key
    await journal.header(key)
    await journal.newest(key, 10, STREAM_PAGE)
    await journal.oldest(key, 0, STREAM_PAGE)
    await journal.receipts(key, 0, 10)
    await journal.receipt(key, "no such id")
    await store.read(key)
    await store.read(store.key("absent"))
    await store.list()
    await store.totals()
    await store.verify(key)
    await conversation.window()
    await conversation.last()


@pytest.mark.parametrize("looks", [True, False], ids=["the object looked at", "control, every answer saved"])
def test_d23_a_read_hands_a_host_the_very_object_that_it_gave(looks: bool) -> None:
    """SPEC D23: no read renews a time to live; and every write is saved."""
    host = NotingHost(looks=looks)
    store = HostStore(host, namespace="n")
    conversation = Conversation(store, "c", format="openai-chat")

    async def written() -> None:
        await conversation.append([{"role": "user", "content": "asks"}, said("answers")["choices"][0]["message"]])

    drive(written())
    assert "c" in host.saved
    host.saved.clear()
    drive(_read_all(store, conversation))
    assert bool(host.saved) is not looks


def test_d24_a_host_that_saves_no_read_has_the_whole_contract() -> None:
    """The suite finds nothing in one that does so, on every rule."""

    async def fresh() -> Any:
        return NotingHost(looks=True)

    report = asyncio.run(check_store(fresh))
    assert report.passed, report
