"""
The seams: what the history needs from the outside, as Protocols.

Everything that could block, fail or differ between two runs comes in here: storage, the provider, time, randomness.
A backend author writes a `Journal`; a host that already has a database of its own may write a `Store` instead. Both are
proved by the conformance suite in `minutebook.testing`.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from minutebook.model.entries import Call, Draft, Entry
from minutebook.model.record import Header, Receipt

if TYPE_CHECKING:
    import re
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from minutebook.model.codec import JSON
    from minutebook.model.decisions import Decision, DecisionRequest
    from minutebook.model.events import Event
    from minutebook.model.keys import ConversationKey
    from minutebook.model.record import Delta

Result = TypeVar("Result")


UNBOUNDED = 2**62
"""More than any record has, and a number that every store's integers hold."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """
    How much of the log to read at once, newest first: stop after `rows` entries, or once `messages` or `size` in bytes
    is exceeded.
    """

    rows: int
    messages: int = UNBOUNDED
    size: int = UNBOUNDED

    def taken(self, entries: Iterable[Entry]) -> tuple[Entry, ...]:
        """Return this page of the entries that are to be read, which come in order."""
        taken: list[Entry] = []
        messages = size = 0
        for entry in islice(entries, max(0, self.rows)):
            taken.append(entry)
            messages += entry.messages
            size += entry.size
            if messages > self.messages or size > self.size:
                break
        return tuple(taken)


ONE_ENTRY = Page(rows=1)
"""How a single entry is read, whatever its size."""

STREAM_PAGE = Page(rows=256, size=1024 * 1024)
"""How a whole record is read: in pages of bounded memory, so that neither RAM nor an event loop notices its length."""


class Reserved(msgspec.Struct, frozen=True, kw_only=True):
    """A reservation, what the conversation looks like under it, and the newest entries, newest first."""

    header: Header
    tail: tuple[Entry, ...]
    written: tuple[Entry, ...] = ()
    receipt: Receipt | None = None


class Committed(msgspec.Struct, frozen=True, kw_only=True):
    """The header after a commit, the entries that it wrote, and its receipt (the first one, when it was a replay)."""

    header: Header
    written: tuple[Entry, ...]
    receipt: Receipt


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation in a namespace, by its counters alone."""

    key: ConversationKey
    header: Header


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """What a namespace holds. Expired conversations that wait for their purge are counted in `expired` alone."""

    conversations: int
    bytes: int
    reserved: int
    expired: int


class Journal(Protocol):
    """
    Storage of append-only logs: short atomic methods, no callbacks, nothing held between two calls.

    Every method applies the model's own functions (`extend`, `interrupt`, `replayed`) to the stored header inside one
    atomic write, so that all journals accept and refuse the same. `bounds` and the clock belong to the journal.

    Of what `extend` returns every receipt is stored in the same write: one, or all of those that an imported record
    brings along. Versions are theirs, from 1 on.

    A delta that cuts is given to `extend` with the stored entries that `leaving` names; what is stored up to the new
    header's `cut.seq` goes in the same write, for good, and no page reaches below it.

    A conversation whose last write is older than `ttl_ms` has expired unless it is reserved. Every method gives it as
    absent, and every method that is given its key removes it, reads too, as far as the store can be written just then:
    a read never fails for that, and a read of what has not expired writes nothing. `list` and `totals` remove nothing;
    until an access or another write removes it, `totals` counts it in `expired` alone.

    Where a loop runs, calls for a coroutine that was closed are made in tasks of their own, since a call may set its
    deadline on the task that makes it. A journal that sets none may say `tasks_alone = False`: then they begin at once.
    """

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
        """
        Take the reservation, creating the conversation if need be, and commit `opening` in the same atomic write.

        With `release` the reservation is given back at once: one durable append without a hold. With an `opening`
        the write is durable when this returns; without one the reservation survives the process, and becomes durable
        with the next commit. A conversation whose version is `known` returns no tail: the caller has it already.
        An `opening` whose idempotency id was committed before is a replay: its first receipt comes back, nothing is
        written, and a reservation is taken only without `release`.

        Raises:
            DecisionHistoryBusy: it is reserved; nothing changed.
            DecisionHistoryConflict: another wire format, or the idempotency id stands for other content.
            DecisionHistoryStoreFull: the namespace's bounds would be exceeded.
        """
        ...

    async def commit(
        self, key: ConversationKey, token: str, epoch: int, delta: Delta, *, release: bool = False
    ) -> Committed:
        """
        Record `delta` if `token` and `epoch` still own the conversation; durable when this returns.

        A delta that adds no entry (a plain release) need not be synced.

        Raises:
            DecisionHistoryFenced: the reservation was ended by `recover` or `delete`; nothing changed.
            DecisionHistoryConflict: the idempotency id stands for other content.
            DecisionHistoryStoreFull: the namespace's bounds would be exceeded.
        """
        ...

    async def header(self, key: ConversationKey) -> Header | None:
        """Return the header, or `None` when absent or expired; changes nothing that has not expired."""
        ...

    async def newest(self, key: ConversationKey, before: int, page: Page) -> tuple[Entry, ...]:
        """Return the entries below `before`, newest first, one page of them."""
        ...

    async def oldest(self, key: ConversationKey, after: int, page: Page) -> tuple[Entry, ...]:
        """Return the entries above `after`, oldest first, one page of them."""
        ...

    async def receipts(self, key: ConversationKey, after: int, rows: int) -> tuple[Receipt, ...]:
        """Return the receipts of the versions above `after`, oldest first, at most `rows` of them."""
        ...

    async def receipt(self, key: ConversationKey, idempotency: str) -> Receipt | None:
        """Return the receipt of one commit: how an unknown outcome is resolved."""
        ...

    async def delete(self, key: ConversationKey) -> bool:
        """
        Erase an idle conversation with all that belongs to it; return whether every copy in the store's files is gone.

        One whose header is damaged is idle: nobody can write to it any more.

        Raises:
            DecisionHistoryBusy: it is reserved.
            DecisionHistoryAbsent: there is no such conversation.
        """
        ...

    async def recover(self, key: ConversationKey, epoch: int | None) -> Header:
        """
        End the reservation, of `epoch` if given, and mark an attempt under way as abandoned.

        Raises:
            DecisionHistoryNotReserved: nobody holds it, or another epoch does: somebody else was first.
            DecisionHistoryAbsent: there is no such conversation.
        """
        ...

    async def list(self, namespace: str, after: str, rows: int) -> tuple[Listing, ...]:
        """
        Return up to `rows` conversations of the namespace whose ids are above `after`, by code points.

        Raises:
            DecisionHistoryCorrupt: one of them is damaged. Where `id` names it, `good_records` sound ones come before
                it, and the listing goes on above it: see `stream_listings` (case O-44).
        """
        ...

    async def totals(self, namespace: str) -> Totals:
        """Return what the namespace holds."""
        ...

    async def close(self) -> None:
        """Release what the journal itself opened; a second call does nothing."""
        ...


class Store(Protocol):
    """
    A host's own database (SPEC D24): whole records, saved atomically, overlap on one key excluded.

    This `transact` is written by hosts, works on bytes and replaces them; the one of the library's own stores is called
    by hosts, works on a `Record` and only adds to it. `minutebook.HostStore` makes such a store of a host's.
    """

    async def transact(
        self,
        key: ConversationKey,
        operation: Callable[[bytes | None], Awaitable[tuple[bytes | None, Result]]],
    ) -> Result:
        """
        Give `operation` the stored record or `None`, save what it returns, and return its result.

        The operation may wait for minutes (SPEC D24), though the ones of this library never wait. While it runs no
        other operation on `key` may start: it waits or fails with `DecisionHistoryBusy`. If it raises or is cancelled,
        the old record stays. A returned `None` deletes the record. What is returned as the very object that was given
        was only read: a host saves nothing then, and its time to live is not renewed (SPEC D23).
        """
        ...


class Wire(Protocol):
    """
    One provider's wire format, as pure functions on JSON bytes (SPEC C2).

    What a response or a result looks like inside a request is told by constants, so that windows are joins of stored
    bytes: a response's fragment stands between `response_wrap`, and the results of one exchange, in call order and
    joined by commas, between `results_wrap`. Where `grouped`, those results are one message; its wrapping and its
    count belong to the response's draft (`messages` 2), and each result's draft adds only its own bytes and one comma.
    """

    @property
    def name(self) -> str:
        """The name that a conversation gives: `openai-chat`, `openai-responses`, `anthropic` or `gemini`."""
        ...

    @property
    def response_wrap(self) -> tuple[bytes, bytes]:
        """What stands before and after a response's fragment."""
        ...

    @property
    def results_wrap(self) -> tuple[bytes, bytes]:
        """What stands before and after the joined results of one exchange."""
        ...

    @property
    def grouped(self) -> bool:
        """Whether all results of an exchange travel in one message."""
        ...

    def input(self, message: object) -> Draft:
        """Return the draft of what opens a turn: a text, a message of this format, or a list of messages."""
        ...

    def injection(self, message: object) -> Draft:
        """Return the draft of a further message inside a turn; same forms as an input."""
        ...

    def response(self, body: object) -> Draft:
        """Return the draft of a raw response: bytes as received, a dict, or an object of an accepted SDK."""
        ...

    def calls(self, fragment: bytes) -> tuple[tuple[Call, JSON], ...]:
        """Return the calls of a response's fragment with their arguments as the provider wrote them."""
        ...

    def result(self, position: int, call: Call, output: object, *, error: bool = False) -> Draft:
        """Return the draft that answers `call`, at `position` in its response, with a tool's text or value."""
        ...

    def ready_result(self, position: int, call: Call, output: object, *, error: bool = False) -> Draft:
        """Return the draft that answers `call` with a complete result, or a list of parts, of this format."""
        ...

    def answered(self, payload: bytes, calls: Mapping[int, Call]) -> tuple[Draft, ...]:
        """Return the drafts of a recorded payload that answers exactly `calls`, by position: a result, or a message."""
        ...

    def outputs(
        self, payload: bytes, position: int, waiting: Mapping[int, Call]
    ) -> tuple[tuple[int | None, JSON], ...]:
        """
        Return what a recorded result gives the call at `position`, or a message of results each of the `waiting` ones.

        What stands beside results in their message has the position `None`. Everything is in the payload's order.
        """
        ...

    def transcript(self, messages: Sequence[object]) -> tuple[Draft, ...]:
        """Return the drafts of a ready transcript in this format: turns, exchanges, and results beside their calls."""
        ...

    def prefaced(self, text: str, fragment: bytes) -> bytes:
        """Return an input's fragment with a text before what its first message says, as a part of its own."""
        ...

    def sendable(self, fragment: bytes) -> bytes:
        """Return what a request holds of a response's fragment: all of it but what the provider refuses as it is."""
        ...

    def rename(self, fragment: bytes, names: Sequence[tuple[str, str]]) -> bytes:
        """Return a response's or result's fragment with its call ids replaced: (old id, new id) for each, in order."""
        ...

    @property
    def id_form(self) -> re.Pattern[str] | None:
        """What a call's id in a request has to match; `None` where an id goes back in whatever form it came."""
        ...

    @property
    def binds(self) -> bool:
        """Whether the provider binds a response's reasoning to all that stood before it; see `policy.binding`."""
        ...

    @property
    def loops(self) -> bool:
        """Whether calls are the provider's own: exchanges in a row that call are then one open tool loop to it."""
        ...

    def unbound(self, fragment: bytes) -> bytes:
        """Return a response's fragment without its bound reasoning; empty when nothing else is left to send."""
        ...


class DecisionProvider(Protocol):
    """Who makes the decisions of an invocation; with or without a history, the program is the same (SPEC D1, D4)."""

    async def decide(self, request: DecisionRequest) -> Decision:
        """
        Return the next decision: with `request.project`, what that returned of its calls.

        Raises:
            AgentDecisionProviderSchemaViolation: an answer without a valid typed decision.
            AgentDecisionProviderUnavailable: transport or provider failure.
        """
        ...


class Generate(Protocol):
    """
    A generator of the host's own, in the place of a provider's API: a function, or a coroutine function (SPEC D26).

    It serves the structured interface: what it returns is the JSON object that a model bound to `schema` would write.
    """

    def __call__(self, messages: list[dict[str, JSON]], schema: dict[str, JSON], /) -> object:
        """
        Return the decision for `messages`, the instructions first as a message of the role `system`, or what is awaited
        for it.
        """
        ...


class Summarize(Protocol):
    """A host's function, or coroutine function, that makes a summary of what leaves the window (SPEC D17)."""

    def __call__(
        self, *, previous_summary: str | None, turns: list[list[dict[str, JSON]]], max_bytes: int
    ) -> Awaitable[str] | str:
        """
        Return a text of at most `max_bytes` UTF-8 bytes for what `previous_summary` stands for and `turns` together.

        `turns` are the exchanges that left since that summary, oldest first, each as wire messages of the
        conversation's format; the first of a turn stands behind the input that it answers. They are copies.
        """
        ...


class Observer(Protocol):
    """Who is told of events. What it raises is kept from the history (threat: hooks that raise or block)."""

    def __call__(self, event: Event, /) -> None:
        """Take one event."""
        ...


class Random(Protocol):
    """Where tokens and idempotency ids come from."""

    def __call__(self) -> str:
        """Return a fresh unguessable id. Ids that sort by the time they were made are kinder to an index."""
        ...
