"""
Journals that go wrong on purpose, and always at the same place.

What can happen to a call is little: it is never made, or it is made and its reply is lost. Which error the caller sees
is a matter of the driver; a cancellation is one of them. So a `Fault` names a call, a side and an error, and a run with
the same faults is the same run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeVar

import msgspec

from minutebook.errors import DecisionHistoryStorageFailed
from minutebook.testing.drive import KILLED, checkpoint

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from minutebook.model.entries import Entry
    from minutebook.model.keys import ConversationKey
    from minutebook.model.record import Delta, Header, Receipt
    from minutebook.ports import Committed, Journal, Listing, Page, Reserved, Totals

__all__ = ["Fault", "FaultyJournal", "SuspendingJournal"]

Result = TypeVar("Result")


def reply_lost() -> DecisionHistoryStorageFailed:
    """Return the error of a connection that broke: the outcome is unknown to whoever sees it."""
    return DecisionHistoryStorageFailed("the connection broke; whether the write is durable is unknown")


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that goes wrong."""

    call: int
    """The number of the call that it strikes, from 1."""
    method: str = ""
    """Count the calls of this method alone; empty counts all."""
    after: bool = False
    """Strike when the call has done its work: the write happened, and its reply is lost."""
    error: Callable[[], BaseException] = reply_lost
    """Makes what the caller sees, for example `asyncio.CancelledError`."""


class _Journal(ABC):
    """
    A journal around another one; what is done around each call is told by `_around`.

    Whoever was cut by `Cut.KILLED` reaches it no more.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    @abstractmethod
    async def _around(self, method: str, call: Callable[[], Awaitable[Result]]) -> Result:
        """Call the method of this name, or not, and return what the caller is to see."""

    async def _called(self, method: str, call: Callable[[], Awaitable[Result]]) -> Result:
        if KILLED.get():
            raise DecisionHistoryStorageFailed("the process that calls was killed")
        return await self._around(method, call)

    async def reserve(
        self,
        key: ConversationKey,
        token: str,
        *,
        format: str,  # noqa: A002 - the field's standard word
        opening: Delta | None = None,
        release: bool = False,
        tail: Page | None = None,
        known: int = -1,
    ) -> Reserved:
        """See `Journal.reserve`."""
        return await self._called(
            "reserve",
            lambda: self.journal.reserve(
                key, token, format=format, opening=opening, release=release, tail=tail, known=known
            ),
        )

    async def commit(
        self, key: ConversationKey, token: str, epoch: int, delta: Delta, *, release: bool = False
    ) -> Committed:
        """See `Journal.commit`."""
        return await self._called("commit", lambda: self.journal.commit(key, token, epoch, delta, release=release))

    async def header(self, key: ConversationKey) -> Header | None:
        """See `Journal.header`."""
        return await self._called("header", lambda: self.journal.header(key))

    async def newest(self, key: ConversationKey, before: int, page: Page) -> tuple[Entry, ...]:
        """See `Journal.newest`."""
        return await self._called("newest", lambda: self.journal.newest(key, before, page))

    async def oldest(self, key: ConversationKey, after: int, page: Page) -> tuple[Entry, ...]:
        """See `Journal.oldest`."""
        return await self._called("oldest", lambda: self.journal.oldest(key, after, page))

    async def receipts(self, key: ConversationKey, after: int, rows: int) -> tuple[Receipt, ...]:
        """See `Journal.receipts`."""
        return await self._called("receipts", lambda: self.journal.receipts(key, after, rows))

    async def receipt(self, key: ConversationKey, idempotency: str) -> Receipt | None:
        """See `Journal.receipt`."""
        return await self._called("receipt", lambda: self.journal.receipt(key, idempotency))

    async def delete(self, key: ConversationKey) -> bool:
        """See `Journal.delete`."""
        return await self._called("delete", lambda: self.journal.delete(key))

    async def recover(self, key: ConversationKey, epoch: int | None) -> Header:
        """See `Journal.recover`."""
        return await self._called("recover", lambda: self.journal.recover(key, epoch))

    async def list(self, namespace: str, after: str, rows: int) -> tuple[Listing, ...]:
        """See `Journal.list`."""
        return await self._called("list", lambda: self.journal.list(namespace, after, rows))

    async def totals(self, namespace: str) -> Totals:
        """See `Journal.totals`."""
        return await self._called("totals", lambda: self.journal.totals(namespace))

    async def close(self) -> None:
        """Close the journal behind; no fault strikes here."""
        await self.journal.close()


class FaultyJournal(_Journal):
    """A journal that fails where its plan says, and records in `calls` which methods were called."""

    def __init__(self, journal: Journal, plan: Iterable[Fault] = ()) -> None:
        """Take the faults to come; each strikes once."""
        super().__init__(journal)
        self._plan = list(plan)
        self.calls: list[str] = []

    @property
    def left(self) -> tuple[Fault, ...]:
        """The faults that have not struck: a test whose fault never strikes proves nothing."""
        return tuple(self._plan)

    async def _around(self, method: str, call: Callable[[], Awaitable[Result]]) -> Result:
        self.calls.append(method)
        fault = self._due(method)
        if fault is None:
            return await call()
        self._plan.remove(fault)
        if fault.after:
            await call()
        raise fault.error()

    def _due(self, method: str) -> Fault | None:
        counts = {"": len(self.calls), method: self.calls.count(method)}
        return next((fault for fault in self._plan if counts.get(fault.method) == fault.call), None)


class SuspendingJournal(_Journal):
    """
    A journal that suspends before and after every call, as one behind a network does.

    What is cut at the first suspension was never sent; what is cut at the second was done, and nobody heard of it.
    """

    async def _around(self, method: str, call: Callable[[], Awaitable[Result]]) -> Result:  # noqa: ARG002
        await checkpoint()
        result = await call()
        await checkpoint()
        return result
