"""
What a journal asks of a server that several hosts share: conditional writes, and reads that tell the server's time.

The record's law is the model's, in Python. A server only has to compare and to write: `write` replaces a header that is
still the one it was made from, with the rows that go with it, or changes nothing and says what stands there now. So one
journal, `remote_journal.RemoteJournal`, serves every such server, and each method is one round trip while its worker
knows the header, which it does whenever it holds the reservation (SPEC B1, B2, D22).

A header is compared by its `stamp`, a digest of its bytes: where the stamp is the same, so is the state. What is kept
of headers and receipts is made by `stores.packed`, of entries by `model.entries.pack_entries`, one row each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from minutebook.model.bounds import StoreBounds
    from minutebook.model.entries import Draft, Entry
    from minutebook.model.keys import ConversationKey
    from minutebook.model.record import Header, Receipt
    from minutebook.ports import Page, Totals

DRIFT_MS: Final = 10_000
"""
How far the time that a change was made for may be from the server's. A worker reckons it from the server's last reply:
only one that stood still since, as a suspended machine does, is further off, and looks again (promise I-30).
"""

LARGE_BYTES: Final = 256 * 1024
"""What is larger takes its time to be made and to arrive; it is made on a fresh look, and may be later than others."""

_SLOWEST: Final = 64
"""Bytes in a millisecond that a large change arrives with at least."""
_ENTRY_BYTES: Final = 256
"""What an entry costs beside its payload."""


def weight_of(parts: Sequence[Draft] | Sequence[Entry]) -> int:
    """Return about how many bytes a change with these has."""
    return sum(len(part.payload) for part in parts) + _ENTRY_BYTES * len(parts)


def drift_of(entries: Sequence[Entry]) -> int:
    """Return how many milliseconds a change with these entries may take to arrive."""
    weight = weight_of(entries)
    return DRIFT_MS if weight <= LARGE_BYTES else DRIFT_MS + weight // _SLOWEST


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation as the server had it at one moment."""

    now: int
    """The server's time, Unix milliseconds: what decides on expiry, whatever clocks the workers have."""
    header: Header | None = None
    stamp: bytes = b""
    """What a `Change` must name to replace this header; empty where there is none."""
    damage: str = ""
    """What is wrong with a header that stands there and cannot be read; it can only be removed."""
    receipt: Receipt | None = None
    """The receipt of the idempotency id that was asked for, if that was recorded."""

    def __repr__(self) -> str:
        return f"Look({self.header!r})"


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What one atomic write does to one conversation."""

    expected: bytes
    """The stamp of the header that is replaced; empty where there must be none."""
    header: Header | None
    """The header afterwards; `None` removes the conversation with its entries and receipts, damaged or not."""
    wall: int
    """The time it was made for."""
    drift: int = DRIFT_MS
    """By how many milliseconds the server's time may be another one."""
    entries: tuple[Entry, ...] = ()
    """New entries, oldest first, all above every entry there and above `cut`."""
    receipt: Receipt | None = None
    """A new receipt. One of its idempotency id must not be there yet."""
    earlier: tuple[Receipt, ...] = ()
    """Those of the versions before it, of a record that was imported with them: into where no receipt is."""
    cut: int = 0
    """Entries up to this one leave; 0 for none."""
    grown: int = 0
    """By how many bytes the namespace grows; negative where it shrinks."""
    damaged: bool = False
    """Whether what is removed could not be read, so that only the server can tell what it counted of it."""

    def __repr__(self) -> str:
        return f"Change({len(self.entries)} entries)"


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a `Change`."""

    refused: Literal["", "stale", "full"] = ""
    """
    Empty: it is written. Else nothing is.

    `stale` comes first: another header stands there than was expected, or none, or one where none was; the receipt's
    idempotency id is recorded already; or the server's time is not within `drift` of `wall`. A look comes with it.

    `full`: it would be a new conversation beyond `max_sessions`, or it grows, `grown` > 0, beyond `max_bytes`. Nothing
    else is refused, however full a namespace is.
    """
    look: Look
    """What stands there now; where it was refused as stale, with the receipt of the change's idempotency id."""
    tail: tuple[Entry, ...] = ()
    """Where it was written: the newest entries from before, newest first, at least the page of them asked for."""
    conversations: int = 0
    bytes: int = 0
    """What the namespace would hold, the change included, where it was refused as full."""

    def __repr__(self) -> str:
        return f"Written({self.refused or 'written'!r})"


class Remote(Protocol):
    """
    One server, or cluster, that keeps conversations. Every method is one round trip and atomic.

    Keys, counts and ids come checked; `page.rows` and `rows` are positive. A `page` ends behind the first entry that
    takes it over `messages` or `size`; a remote may return more, never fewer while there are more.

    Raises:
        StorageError: the server failed or the connection broke. After a write its outcome is then unknown.
    """

    @property
    def durable(self) -> bool:
        """Whether a change that was written survives a power cut of the server."""
        ...

    async def look(self, key: ConversationKey, *, receipt: str = "") -> Look:
        """Return a conversation as it stands, with the receipt of an idempotency id if one is asked for."""
        ...

    async def write(self, key: ConversationKey, change: Change, bounds: StoreBounds, *, tail: Page | None) -> Written:
        """Make a change, or none; whatever it is refused for, nothing of it is written."""
        ...

    async def page(
        self, key: ConversationKey, first: int, last: int, page: Page, *, newest_first: bool
    ) -> tuple[Look, Sequence[Entry]]:
        """Return the entries from `first` to `last` that the record holds, a page of them, from one end."""
        ...

    async def receipts(self, key: ConversationKey, after: int, rows: int) -> tuple[Look, Sequence[Receipt]]:
        """Return up to `rows` receipts of the versions above `after`, oldest first."""
        ...

    async def names(self, namespace: str, after: str, rows: int, ttl_ms: int | None) -> Sequence[tuple[str, Header]]:
        """
        Return up to `rows` conversations whose ids are above `after`, in the order of their code points.

        Without the expired ones: those unreserved whose last write is more than `ttl_ms` before the server's time.
        """
        ...

    async def stale(self, namespace: str, ttl_ms: int, rows: int) -> Sequence[tuple[str, Look]]:
        """
        Return up to `rows` unreserved conversations to be seen to, least recently written to first: the expired ones,
        and those whose last write is in the future, as after the server's clock was set back. One whose header is
        damaged is only among the expired.
        """
        ...

    async def totals(self, namespace: str, ttl_ms: int | None) -> Totals:
        """Return what the namespace holds, the expired in `expired` alone."""
        ...

    async def close(self) -> None:
        """Release what this object itself opened; a second call does nothing."""
        ...
