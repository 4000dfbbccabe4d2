"""
What a record is beside its entries: its header and state, and what a commit adds to it and is answered with.

A turn is recorded before its request is sent. From then until it settles it is an *attempt*: the header keeps the
state to go back to. An attempt that fails is closed by an ABANDONED mark that takes its entries out of every window;
the input itself stays as `unanswered`, so that a retry of the same input does not record it twice (case O-34).

All of these are values. How a record changes is its law: `model/law.py`.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import msgspec

from minutebook.errors import (
    DecisionHistoryConflict,
)
from minutebook.model.entries import (
    Call,
    Draft,
    Entry,
    first_digest,
    payload_digest,
)
from minutebook.model.receipts import Sent, decode_sent
from minutebook.model.shown import type_alone

if TYPE_CHECKING:
    from collections.abc import Iterable

    from minutebook.model.keys import ConversationKey


MAX_PARKED: Final = 128
"""
How many exchanges may wait parked in one conversation.

Each of them stands in the header, with all its calls, and every commit writes the header anew.
"""

MAX_PARKED_CALLS: Final = 1_024
"""
How many calls the exchanges may hold that wait parked in one conversation, those with a result included.

The two numbers bound what waits parked adds to every commit, but for the length of the calls' ids and names, which is
the provider's. The newest exchange is bounded by neither while it is open: a response is recorded however many calls it
makes, and each of them is written with every commit until all have their results.
"""


class OpenExchange(msgspec.Struct, frozen=True, array_like=True):
    """An exchange that still waits for results. A parked one lets the conversation go on meanwhile (SPEC C4)."""

    exchange: int
    calls: tuple[Call, ...]
    answered: tuple[int, ...] = ()
    parked: bool = False

    @property
    def waiting(self) -> tuple[int, ...]:
        """The positions of the calls that have no result yet."""
        answered = set(self.answered)
        return tuple(position for position in range(len(self.calls)) if position not in answered)


class Unanswered(msgspec.Struct, frozen=True, array_like=True):
    """An input without an answer: what tells its retry, and the turn and exchange that stood before it."""

    content: bytes
    turn: int
    exchange: int
    said: int = 0
    since: int = 0
    """Where the stretch of marks and what they take out begins that stands right before it; 0 where none does."""


class Cut(msgspec.Struct, frozen=True, array_like=True):
    """Where a record begins whose oldest entries have left it: what its chain and its counters go on from (SPEC E6)."""

    seq: int = 0
    """The newest entry that left; 0 while none has."""
    digest: bytes = b""
    """The chain's digest after it."""
    turns: int = 0
    """How many turns left, of those that `State.turns` counts."""
    exchanges: int = 0

    def __repr__(self) -> str:
        return f"Cut({self.seq})"


UNCUT: Final = Cut()
"""Where a record begins that holds all its entries."""


class State(msgspec.Struct, frozen=True, array_like=True):
    """Where the conversation stands: what an abandoned attempt goes back to."""

    turn: int = 0
    """The `seq` of the newest turn's input; 0 before the first."""
    exchange: int = 0
    """The `seq` of the newest response of that turn; 0 if it has none."""
    turns: int = 0
    exchanges: int = 0
    open: tuple[OpenExchange, ...] = ()
    unanswered: Unanswered | None = None
    """The newest input while no attempt to answer it has settled: in no window but its own turn's."""
    window_from: int = 0
    """The `seq` of the oldest exchange of the last window; 0 before the first window."""
    window_limits: tuple[int, int] = (0, 0)
    """The limits that `window_from` was chosen under: (messages, bytes)."""
    said: int = 0
    """The `seq` of the newest message said in the turn before its first response; 0 if there is none."""
    summary: int = 0
    """The `seq` of the newest summary; 0 before the first."""
    summarised: int = 0
    """The `seq` of the newest exchange that it covers."""
    cut_at: int = 0
    """The newest `seq` when the window's start last moved; 0 before that. Reasoning up to it may be stale."""
    prelude: str = ""
    """Digest of what the last request said before its window, where reasoning is bound to that; else empty."""
    late: int = 0
    """The `seq` of the oldest exchange that the newest summary passed over and that is complete since; 0 for none."""
    cut: Cut | None = None
    """Where the record begins, once its oldest entries have left it; the same before and after any attempt."""
    abandoned: tuple[int, int] = (0, 0)
    """
    The newest stretch in which nothing stands: the first `seq` that a mark takes out, and the mark's own. A mark that
    comes right behind takes it in, so that one step leads over all that failed. Zeros where the newest mark is none
    that stands right behind what it takes out.
    """
    outgrown: tuple[int, int] = (0, 0)
    """Messages and bytes of a tool loop that found no room, until a turn is answered again; see `policy.room`."""


class Attempt(msgspec.Struct, frozen=True, array_like=True):
    """A turn or step under way: the first `seq` that it may be taken back from, and the state to go back to."""

    first: int
    state: State


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation's counters. Of constant size, replaced by each commit in the same atomic write as the entries."""

    format: str
    """The wire format or identity that the conversation was opened with; it never changes."""
    birth: bytes = b""
    """What tells this record from every other that had its key or will have it; empty while nobody reserved it yet."""
    created: int
    touched: int
    epoch: int = 0
    token: str = ""
    """Who holds the reservation; empty when nobody does."""
    since: int = 0
    version: int = 0
    entries: int = 0
    digest: bytes
    bytes: int = 0
    """Retained payload bytes."""
    state: State = State()
    attempt: Attempt | None = None

    @property
    def cut(self) -> Cut:
        """Where the record begins: after entry 0, or after the newest one that left it."""
        return self.state.cut or UNCUT

    @property
    def retained(self) -> int:
        """How many entries the record holds; `entries` is also the number of the newest."""
        return self.entries - self.cut.seq

    @property
    def awaits_answer(self) -> bool:
        """Whether something is recorded that a model may answer: what stands last is none of its own answers."""
        state = self.state
        first, mark = state.abandoned
        last = first - 1 if mark == self.entries else self.entries
        answered = last == state.exchange and all(waits.exchange != last for waits in state.open)
        return bool(state.turn) and (state.unanswered is not None or not answered)

    def __repr__(self) -> str:
        held = f", held by epoch {self.epoch}" if self.token else ""
        return f"Header(version {self.version}, {self.entries} entries{held})"


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """What one commit adds. Either it is recorded whole or nothing of it is."""

    drafts: tuple[Draft, ...] = ()
    idempotency: str
    """Same id and same content: the first receipt again, nothing written. Same id, other content: a conflict."""
    given: bytes = b""
    """Where what is recorded is made of what somebody gave, and is made otherwise each time: a digest of the latter.
    It is the content then, that tells a replay from a conflict."""
    opens: bool = False
    """Begin an attempt: after the input if the delta holds one, else before everything in it."""
    settles: bool = False
    """End the attempt: its entries stand."""
    abandons: str = ""
    """End the attempt as failed, for this enumerated reason: its entries leave every window."""
    supersedes: bool = False
    """Take an input that nothing has answered out of the story first, as a next input would: the same one that comes
    again is a new one."""
    parks: tuple[int, ...] = ()
    """Open exchanges that may wait while the conversation goes on."""
    window_from: int = 0
    window_limits: tuple[int, int] = (0, 0)
    cut_at: int = 0
    prelude: str = ""
    unseen: bool = False
    """Whether an answer in it thinks, and was made behind what no window tells: stale, if windows have been cut."""
    stale: bool = False
    """Whether that is stale in any case: a window told of something else than what stands before it."""
    outgrown: tuple[int, int] = (0, 0)
    """Messages and bytes of a tool loop that found no room; zeros where this says nothing of one."""
    sent: bytes = b""
    """The receipt of the request that led to this commit, as JSON; empty when there was none."""
    max_retained_bytes: int | None = None
    imported: bool = False
    """A whole record with its own marks and times, into a conversation without entries. Calls left open are parked."""
    begins: Cut | None = None
    """Imported: where that record begins, if its oldest entries had left it."""
    ends: State | None = None
    """Imported: where that record stands. One whose entries tell another state is refused."""
    receipts: tuple[Receipt, ...] = ()
    """Imported: that record's receipts, from version 1 on, in the place of one for this commit; `idempotency` is then
    that of the last of them, so that whoever repeats that commit or this one is answered by it."""
    cut: int = 0
    """The newest entry that leaves the record with this commit, and all before it; entries of this commit too."""

    __repr__ = type_alone


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What one commit did: the entries it wrote, the chain's digest after them, and the request it answers."""

    idempotency: str
    first: int
    last: int
    """First and last `seq` written; `last` is `first` - 1 when the commit added no entry."""
    version: int
    epoch: int
    digest: bytes
    content: bytes
    wall: int
    sent: bytes = b""
    """The request as it is stored; see `request`."""

    @property
    def request(self) -> Sent | None:
        """The window that was sent and which limits bit, by numbers; `None` for a commit that answers no request."""
        return decode_sent(self.sent) if self.sent else None

    def __repr__(self) -> str:
        return f"Receipt(version {self.version}, entries {self.first} to {self.last})"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """
    A detached snapshot of a conversation, and what an operation wants to add to it.

    The entries are all there, oldest first; `added` is the delta, which is all that is written (SPEC D23, D24).
    """

    header: Header
    entries: tuple[Entry, ...]
    added: tuple[Draft, ...] = ()

    def __repr__(self) -> str:
        return f"Record({len(self.entries)} entries, {self.header.bytes:,} bytes, {len(self.added)} added)"

    def adding(self, *drafts: Draft) -> Record:
        """Return this record with `drafts` to be added when it is saved."""
        return msgspec.structs.replace(self, added=(*self.added, *drafts))


class Extension(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of `extend`: the header to store, the entries to add, and the receipts."""

    header: Header
    entries: tuple[Entry, ...]
    receipts: tuple[Receipt, ...]
    """One for a commit; for a record that was imported with its receipts, all of these."""

    @property
    def receipt(self) -> Receipt:
        """The receipt of the version that `header` has."""
        return self.receipts[-1]


def new_header(key: ConversationKey, format: str, wall: int) -> Header:  # noqa: A002 - the field's standard word
    """Return the header of a conversation that holds nothing yet."""
    return Header(format=format, created=wall, touched=wall, digest=first_digest(key))


def content_digest(delta: Delta, contents: Iterable[bytes]) -> bytes:
    """
    Return what tells a replay from a conflict: a digest over what is recorded, not over how it was sent; or over what
    was given, where the delta says so.
    """
    digest = hashlib.sha256(b"%d %d %s\n" % (delta.opens, delta.settles, delta.abandons.encode()))
    if delta.supersedes:
        digest.update(b"supersedes\n")
    if delta.given:
        digest.update(b"given %b" % delta.given)
        return digest.digest()
    for draft, content in zip(delta.drafts, contents, strict=True):
        digest.update(b"%d %d %d\n%s" % (draft.kind, draft.call, draft.exchange, content))
    return digest.digest()


def replayed(receipt: Receipt, delta: Delta) -> Receipt:
    """
    Return the receipt of an earlier commit that `delta` repeats.

    Raises:
        DecisionHistoryConflict: the id is the same and the content is not.
    """
    if receipt.content != _content(delta):
        raise DecisionHistoryConflict(
            "this idempotency id already stands for other content; use a new id for a new exchange",
            first=receipt.first,
            last=receipt.last,
        )
    return receipt


def _content(delta: Delta) -> bytes:
    if delta.receipts:
        return delta.receipts[-1].content
    return content_digest(delta, [payload_digest(draft.payload) for draft in delta.drafts])
