"""
What a journal asks of a server that several hosts share: conditional writes, and reads that tell the server's time.

The record's law is the model's, in Python. A server only has to compare and to write: `write` replaces a header that is
still the one it was made from, with the rows that go with it, or changes nothing and says what stands there now. So one
journal, `remote_journal.RemoteJournal`, serves every such server, and each method is one round trip while its worker
knows the header, which it does whenever it holds the reservation (SPEC B1, B2, D22).

A header is compared by its `stamp`, a digest of its bytes: where the stamp is the same, so is the state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from minutebook.model.bounds import StoreBounds
    from minutebook.model.entries import Entry
    from minutebook.model.keys import ConversationKey
    from minutebook.model.record import Header, Receipt
    from minutebook.ports import Page, Totals


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation as the server had it at one moment."""

    now: int
    """The server's time, Unix milliseconds: what decides on expiry, whatever clocks the workers have."""
    header: Header | None = None
    stamp: bytes = b""
    """What a `Change` must name to replace this header; empty where there is none."""
    receipt: Receipt | None = None
    """The receipt of the idempotency id that was asked for, if that was recorded."""
    tail: tuple[Entry, ...] = ()
    """The newest entries, newest first, as far as a page was asked for."""

    def __repr__(self) -> str:
        return f"Look({self.header!r})"


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What one atomic write does to one conversation."""

    expected: bytes
    """The stamp of the header that is replaced; empty where there must be none."""
    header: Header | None
    """The header afterwards; `None` removes the conversation with all that belongs to it."""
    entries: tuple[Entry, ...] = ()
    """New entries, oldest first; they follow the last one there."""
    receipt: Receipt | None = None
    cut: int = 0
    """Entries up to this one leave; 0 for none."""
    grown: int = 0
    """By how many bytes the namespace grows; negative where it shrinks."""
    durable: bool = True
    """Whether it must survive a power cut when it returns; a bare reservation need not."""

    def __repr__(self) -> str:
        return f"Change({len(self.entries)} entries)"


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a `Change`."""

    refused: Literal["", "stale", "full"] = ""
    """Empty: it is written. Else nothing is, since the header was another one, or the namespace's bounds are reached."""
    look: Look
    """What stands there now; its receipt is that of the change's idempotency id, if it was refused as stale."""
    conversations: int = 0
    bytes: int = 0
    """What the namespace would hold, where it was refused as full."""


class Remote(Protocol):
    """
    One server, or cluster, that keeps conversations. Every method is one round trip and atomic.

    Raises:
        StorageError: the server failed or the connection broke. After a write its outcome is then unknown.
    """

    async def look(self, key: ConversationKey, *, receipt: str = "", tail: Page | None = None) -> Look:
        """Return a conversation as it stands, with the receipt and the newest entries that are asked for."""
        ...

    async def write(self, key: ConversationKey, change: Change, bounds: StoreBounds, *, tail: Page | None) -> Written:
        """Make a change, or none; whatever it is refused for, nothing of it is written."""
        ...

    async def page(
        self, key: ConversationKey, first: int, last: int, page: Page, *, newest_first: bool
    ) -> tuple[Look, Sequence[Entry]]:
        """Return the entries from `first` to `last` that the record holds, about a page of them, from one end."""
        ...

    async def receipts(self, key: ConversationKey, after: int, rows: int) -> tuple[Look, Sequence[Receipt]]:
        """Return the receipts of the versions above `after`, oldest first."""
        ...

    async def names(self, namespace: str, after: str, rows: int) -> tuple[int, Sequence[tuple[str, Header]]]:
        """Return the server's time and up to `rows` conversations whose ids are above `after`, by code points."""
        ...

    async def stale(self, namespace: str, before: int, rows: int) -> Sequence[str]:
        """Return up to `rows` ids of unreserved conversations that were last written to before this time."""
        ...

    async def totals(self, namespace: str, ttl_ms: int | None) -> Totals:
        """Return what the namespace holds, by the server's time."""
        ...

    async def close(self) -> None:
        """Release what this object itself opened."""
        ...
