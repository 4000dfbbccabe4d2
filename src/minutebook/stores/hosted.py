"""
A journal over a host's own database that only knows whole records (SPEC D24).

The host keeps one opaque document per conversation and gives it out under exclusion: `ports.Store.transact`. Everything
else is kept inside the document by the model's own rules: the entries, the receipts, and the reservation with its token
and epoch. So a host that offers nothing but an atomic exchange of bytes gets recording before sending, idempotency,
fencing and recovery all the same.

Each method is one `transact` whose operation never waits and has no effect of its own, so a host may run it under a row
lock, or again after a conflict. The price is that every call reads, and every write rewrites, the whole document:
O(record) where a journal of one's own costs O(new bytes). Good for conversations of some hundred exchanges.

What is the host's here: how many records it keeps and how large they are together, when they expire, and whether a
write that returned survives a power cut. Expiry must leave a record alone while it is in use: the host cannot see a
reservation, so it should count from the last save.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol, TypeVar, cast, runtime_checkable

import msgspec

from minutebook.errors import (
    DecisionHistoryAbsent,
    DecisionHistoryCorrupt,
    DecisionHistorySchemaUnsupported,
    InvalidOption,
    StoreClosed,
)
from minutebook.model.bounds import check_count
from minutebook.model.clock import read_clock
from minutebook.model.cuts import leaving
from minutebook.model.entries import Call, Entry, Kind
from minutebook.model.keys import ConversationKey, check_id
from minutebook.model.law import extend
from minutebook.model.record import Delta, Header, Receipt, new_header, replayed
from minutebook.model.reservation import check_idle, check_owner, free, is_blank, recover, take
from minutebook.model.shown import type_alone
from minutebook.ports import Committed, Listing, Page, Reserved, Store, Totals
from minutebook.stores.clock import system_clock
from minutebook.stores.packed import Count, Head
from minutebook.stores.sections import section
from minutebook.stores.streams import named_in_listing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from minutebook.model.record import Extension

__all__ = ["HostedJournal", "ListingStore"]

T = TypeVar("T")

DOCUMENT_VERSION = 1
"""What a document says of its own form; another number is refused, never guessed at."""

_KEYS_AT_ONCE = 256


@runtime_checkable
class ListingStore(Store, Protocol):
    """A host's store that can also name its records; without it a hosted journal answers everything but listings."""

    async def keys(self, namespace: str, after: str, rows: int) -> tuple[str, ...]:
        """Return up to `rows` ids of the namespace above `after`, in the order of their code points."""
        ...


class _Row(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An entry as the document holds it: its bytes as a text, or in base64 where they are no UTF-8."""

    seq: Count
    kind: Kind
    turn: Count
    exchange: Count
    call: Count
    messages: Count
    size: Count
    start: Count
    stop: Count
    wall: Count
    calls: tuple[Call, ...]
    digest: bytes
    text: str
    raw: bytes

    __repr__ = type_alone

    @classmethod
    def of(cls, entry: Entry) -> _Row:
        try:
            text, raw = entry.payload.decode(), b""
        except UnicodeDecodeError:
            text, raw = "", entry.payload
        return cls(**{name: getattr(entry, name) for name in _ENTRY_FIELDS}, text=text, raw=raw)

    def entry(self) -> Entry:
        fields = {name: getattr(self, name) for name in _ENTRY_FIELDS}
        return Entry(**fields, payload=self.raw or self.text.encode())


_ENTRY_FIELDS = tuple(field for field in Entry.__struct_fields__ if field != "payload")


class _Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One conversation, whole."""

    version: int = DOCUMENT_VERSION
    head: Head
    entries: tuple[_Row, ...] = ()
    receipts: tuple[Receipt, ...] = ()
    """Oldest first."""

    __repr__ = type_alone

    @property
    def header(self) -> Header:
        return self.head.header()

    def receipt(self, idempotency: str) -> Receipt | None:
        return next((receipt for receipt in self.receipts if receipt.idempotency == idempotency), None)

    def earlier(self, delta: Delta) -> Receipt | None:
        """Return the receipt of the commit that `delta` repeats, if it does."""
        receipt = self.receipt(delta.idempotency)
        return replayed(receipt, delta) if receipt else None

    def grown(self, header: Header, extension: Extension | None) -> _Document:
        """Return the document as `extension` leaves it, under `header`."""
        if extension is None:
            return msgspec.structs.replace(self, head=Head.of(header))
        left = max(0, header.cut.seq - self.header.cut.seq)
        return _Document(
            head=Head.of(header),
            entries=(*self.entries[left:], *map(_Row.of, extension.entries)),
            receipts=(*self.receipts, *extension.receipts),
        )


def _kept(document: _Document, *, release: bool) -> _Document | None:
    return None if release and is_blank(document.header) else document


class _Version(msgspec.Struct):
    version: int


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Document).decode
_decode_version = msgspec.json.Decoder(_Version).decode


class HostedJournal:
    """
    A journal over a host's `Store`.

    A host whose `transact` refuses overlap rather than waiting makes two short calls on one conversation, for example
    a reader beside a commit, fail with `DecisionHistoryBusy`; since no operation here waits, a host does better to
    wait. Refusals are raised inside the operation, so the host has nothing to save.

    Args:
        store: the host's store; with a `keys` method (`ListingStore`) the journal can list.
        max_retained_bytes: refuse to retain more than this in one conversation.
        clock: the time that is recorded; it decides nothing.
        blocking: whether the host's `transact` never suspends. Then it is a section, so that it is not called inside
            itself by what the garbage collector closes: the host may have a lock there.
    """

    durable = False
    """Unknown here: what a save is worth is the host's to say."""

    def __init__(
        self,
        store: Store,
        *,
        max_retained_bytes: int | None = None,
        clock: Callable[[], int] = system_clock,
        blocking: bool = False,
    ) -> None:
        self._store = store
        self._blocking = blocking
        self._max_retained_bytes = (
            None if max_retained_bytes is None else check_count(max_retained_bytes, "max_retained_bytes")
        )
        self._clock = clock
        self._closed = False

    # --- writing -----------------------------------------------------------------------------------------------------

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
        wall = self._now()
        if not token:
            raise InvalidOption("a reservation needs a token", option="token")
        if opening is not None:
            check_id(opening.idempotency, "idempotency id")

        def change(found: _Document | None) -> tuple[_Document | None, Reserved]:
            document = found or _Document(head=Head.of(new_header(key, format, wall)))
            held = take(document.header, token, format, wall)
            receipt = document.earlier(opening) if opening else None
            grown = self._extend(document, held, opening if receipt is None else None, wall)
            after = grown.header if grown else held
            document = document.grown(free(after) if release else after, grown)
            shown = tail is not None and document.header.version != known
            return _kept(document, release=release), Reserved(
                header=document.header,
                tail=_newest(document, document.header.entries + 1, tail) if shown and tail else (),
                written=grown.entries if grown else (),
                receipt=receipt or (grown.receipt if grown else None),
            )

        return await self._transact(key, change)

    async def commit(
        self, key: ConversationKey, token: str, epoch: int, delta: Delta, *, release: bool = False
    ) -> Committed:
        """See `Journal.commit`."""
        wall = self._now()
        check_id(delta.idempotency, "idempotency id")

        def change(found: _Document | None) -> tuple[_Document | None, Committed]:
            held = check_owner(found.header if found else None, token, epoch)
            document = cast("_Document", found)
            receipt = document.earlier(delta)
            grown = self._extend(document, held, delta if receipt is None else None, wall)
            after = grown.header if grown else held
            document = document.grown(free(after) if release else after, grown)
            return _kept(document, release=release), Committed(
                header=document.header,
                written=grown.entries if grown else (),
                receipt=grown.receipt if grown else cast("Receipt", receipt),
            )

        return await self._transact(key, change)

    async def recover(self, key: ConversationKey, epoch: int | None) -> Header:
        """See `Journal.recover`."""
        wall = self._now()

        def change(found: _Document | None) -> tuple[_Document, Header]:
            if found is None:
                raise DecisionHistoryAbsent("no such conversation to recover")
            grown = recover(found.header, epoch, wall)
            return found.grown(grown.header, grown), grown.header

        return await self._transact(key, change)

    async def delete(self, key: ConversationKey) -> bool:
        """See `Journal.delete`. Always `False`: what copies the host's database keeps is not known here."""
        wall = self._now()

        async def operation(stored: bytes | None) -> tuple[None, bool]:
            if stored is None:
                raise DecisionHistoryAbsent("no such conversation to delete")
            with contextlib.suppress(DecisionHistoryCorrupt):  # then nobody can write to it either
                check_idle(_decode_document(stored).header, wall)
            return None, False

        return await self._exchange(key, operation)

    async def close(self) -> None:
        """Refuse further calls; the store is the host's to close. A second call does nothing."""
        self._closed = True

    # --- reading -----------------------------------------------------------------------------------------------------

    async def header(self, key: ConversationKey) -> Header | None:
        """See `Journal.header`."""
        document = await self._read(key)
        return document.header if document else None

    async def newest(self, key: ConversationKey, before: int, page: Page) -> tuple[Entry, ...]:
        """See `Journal.newest`."""
        document = await self._read(key)
        return _newest(document, before, page) if document else ()

    async def oldest(self, key: ConversationKey, after: int, page: Page) -> tuple[Entry, ...]:
        """See `Journal.oldest`."""
        document = await self._read(key)
        if document is None:
            return ()
        first = max(after - document.header.cut.seq, 0)
        return page.taken(row.entry() for row in document.entries[first : first + max(0, page.rows)])

    async def receipts(self, key: ConversationKey, after: int, rows: int) -> tuple[Receipt, ...]:
        """See `Journal.receipts`."""
        document = await self._read(key)
        above = (receipt for receipt in (document.receipts if document else ()) if receipt.version > after)
        return tuple(receipt for receipt, _ in zip(above, range(rows), strict=False))

    async def receipt(self, key: ConversationKey, idempotency: str) -> Receipt | None:
        """See `Journal.receipt`."""
        check_id(idempotency, "idempotency id")
        document = await self._read(key)
        return document.receipt(idempotency) if document else None

    async def list(self, namespace: str, after: str, rows: int) -> tuple[Listing, ...]:
        """
        See `Journal.list`. Reads each record that it lists, whole.

        Raises:
            InvalidOption: the host's store has no `keys` method.
        """
        check_id(namespace, "namespace")
        if not isinstance(self._store, ListingStore):
            raise InvalidOption(
                "this host store cannot name its records; give it a `keys(namespace, after, rows)` method to list",
                option="store",
            )
        found: list[Listing] = []
        for name in await self._store.keys(namespace, after, rows) if rows > 0 else ():
            key = ConversationKey(namespace, name)
            with named_in_listing(key, len(found)):
                header = await self.header(key)
            if header is not None:
                found.append(Listing(key=key, header=header))
        return tuple(found)

    async def totals(self, namespace: str) -> Totals:
        """
        See `Journal.totals`. Reads every record of the namespace; what has expired is not known here.

        Raises:
            InvalidOption: the host's store has no `keys` method.
        """
        headers: list[Header] = []
        after = ""
        while page := await self.list(namespace, after, _KEYS_AT_ONCE):
            headers.extend(listing.header for listing in page)
            after = page[-1].key.id
        return Totals(
            conversations=len(headers),
            bytes=sum(header.bytes for header in headers),
            reserved=sum(bool(header.token) for header in headers),
            expired=0,
        )

    # --- the parts ---------------------------------------------------------------------------------------------------

    async def _transact(
        self, key: ConversationKey, change: Callable[[_Document | None], tuple[_Document | None, T]]
    ) -> T:
        """Apply a pure change to the stored document."""
        self._check_open()

        async def operation(stored: bytes | None) -> tuple[bytes | None, T]:
            saved, result = change(_decoded(stored))
            return _encode(saved) if saved else None, result

        return await self._exchange(key, operation)

    async def _exchange(
        self, key: ConversationKey, operation: Callable[[bytes | None], Awaitable[tuple[bytes | None, T]]]
    ) -> T:
        """Have the host exchange the document by what `operation` makes of it."""
        if not self._blocking:
            return await self._store.transact(key, operation)
        with section as inside, inside:
            return await self._store.transact(key, operation)

    async def _read(self, key: ConversationKey) -> _Document | None:
        """Return the document; what is saved is what was stored, byte for byte."""
        self._check_open()

        async def operation(stored: bytes | None) -> tuple[bytes | None, _Document | None]:
            return stored, _decoded(stored)

        return await self._exchange(key, operation)

    def _extend(self, document: _Document, held: Header, delta: Delta | None, wall: int) -> Extension | None:
        if delta is None:
            return None
        stored = (row.entry() for row in document.entries[: len(leaving(held, delta))])
        return extend(held, delta, wall, self._max_retained_bytes, stored)

    def _now(self) -> int:
        self._check_open()
        return read_clock(self._clock)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the store is closed")


def _decoded(stored: bytes | None) -> _Document | None:
    return None if stored is None else _decode_document(stored)


def _decode_document(stored: bytes) -> _Document:
    try:
        version = _decode_version(stored).version
        if version == DOCUMENT_VERSION:
            return _decode(stored)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        # Its text may hold a piece of what could not be read.
        raise DecisionHistoryCorrupt("a hosted record is not what was written; restore a backup") from None
    raise DecisionHistorySchemaUnsupported(
        f"the hosted record has version {version}; this library reads {DOCUMENT_VERSION}",
        found=version,
        supported=DOCUMENT_VERSION,
    )


def _newest(document: _Document, before: int, page: Page) -> tuple[Entry, ...]:
    end = min(max(0, before - 1 - document.header.cut.seq), len(document.entries))
    return page.taken(row.entry() for row in reversed(document.entries[max(0, end - max(0, page.rows)) : end]))
