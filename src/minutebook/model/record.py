"""
The record's own law: how a log grows, and what it refuses.

`extend` is the only way a record changes. It is pure: (header, delta, wall time) in, (new header, new entries) out, or
a typed refusal. Every store calls it inside its own atomic write, so all stores accept and refuse the same, and a
refusal has nothing to undo.

A turn is recorded before its request is sent. From then until it settles it is an *attempt*: the header keeps the
state to go back to. An attempt that fails is closed by an ABANDONED mark that takes its entries out of every window;
the input itself stays as `unanswered`, so that a retry of the same input does not record it twice (case O-34).

What an engine's cap drops leaves the record by a *cut*: a prefix, between two turns. The state keeps where it stands,
so that numbers, digests and counters go on (SPEC E6).

An imported record brings its own marks and times. It is traced through the same rules entry by entry; only what the
entries do not tell (that a call was parked, that an input opened an attempt) is concluded from what follows them.
"""

from __future__ import annotations

import hashlib
import re
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from minutebook.errors import (
    DecisionHistoryAbsent,
    DecisionHistoryConflict,
    DecisionHistoryRetentionExceeded,
    InvalidMessage,
    InvalidOption,
    PairingViolation,
)
from minutebook.model.entries import (
    ABANDONED,
    INJECTION,
    INPUT,
    INSTRUCTIONS,
    RESPONSE,
    RESULT,
    SUMMARY,
    Call,
    Draft,
    Entry,
    chain_digest,
    damaged,
    encode_calls,
    first_digest,
    payload_digest,
)
from minutebook.model.receipts import Sent, decode_sent
from minutebook.model.shown import type_alone

if TYPE_CHECKING:
    from collections.abc import Iterable

    from minutebook.model.keys import ConversationKey


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


_UNCUT = Cut()


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


class Attempt(msgspec.Struct, frozen=True, array_like=True):
    """A turn or step under way: the first `seq` that it may be taken back from, and the state to go back to."""

    first: int
    state: State


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation's counters. Of constant size, replaced by each commit in the same atomic write as the entries."""

    format: str
    """The wire format or identity that the conversation was opened with; it never changes."""
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
        return self.state.cut or _UNCUT

    @property
    def retained(self) -> int:
        """How many entries the record holds; `entries` is also the number of the newest."""
        return self.entries - self.cut.seq

    def __repr__(self) -> str:
        held = f", held by epoch {self.epoch}" if self.token else ""
        return f"Header(version {self.version}, {self.entries} entries{held})"


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """What one commit adds. Either it is recorded whole or nothing of it is."""

    drafts: tuple[Draft, ...] = ()
    idempotency: str
    """Same id and same content: the first receipt again, nothing written. Same id, other content: a conflict."""
    opens: bool = False
    """Begin an attempt: after the input if the delta holds one, else before everything in it."""
    settles: bool = False
    """End the attempt: its entries stand."""
    abandons: str = ""
    """End the attempt as failed, for this enumerated reason: its entries leave every window."""
    parks: tuple[int, ...] = ()
    """Open exchanges that may wait while the conversation goes on."""
    window_from: int = 0
    window_limits: tuple[int, int] = (0, 0)
    cut_at: int = 0
    prelude: str = ""
    sent: bytes = b""
    """The receipt of the request that led to this commit, as JSON; empty when there was none."""
    max_retained_bytes: int | None = None
    imported: bool = False
    """A whole record with its own marks and times, into a conversation without entries. Calls left open are parked."""
    begins: Cut | None = None
    """Imported: where that record begins, if its oldest entries had left it."""
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
    """The outcome of `extend`: the header to store, the entries to add, and the receipt."""

    header: Header
    entries: tuple[Entry, ...]
    receipt: Receipt


def new_header(key: ConversationKey, format: str, wall: int) -> Header:  # noqa: A002 - the field's standard word
    """Return the header of a conversation that holds nothing yet."""
    return Header(format=format, created=wall, touched=wall, digest=first_digest(key))


def content_digest(delta: Delta, contents: Iterable[bytes]) -> bytes:
    """Return what tells a replay from a conflict: a digest over what is recorded, not over how it was sent."""
    digest = hashlib.sha256(b"%d %d %s\n" % (delta.opens, delta.settles, delta.abandons.encode()))
    for draft, content in zip(delta.drafts, contents, strict=True):
        digest.update(b"%d %d %d\n%s" % (draft.kind, draft.call, draft.exchange, content))
    return digest.digest()


def replayed(receipt: Receipt, delta: Delta) -> Receipt:
    """
    Return the receipt of an earlier commit that `delta` repeats.

    Raises:
        DecisionHistoryConflict: the id is the same and the content is not.
    """
    if receipt.content != content_digest(delta, [payload_digest(draft.payload) for draft in delta.drafts]):
        raise DecisionHistoryConflict(
            "this idempotency id already stands for other content; use a new id for a new exchange",
            first=receipt.first,
            last=receipt.last,
        )
    return receipt


def leaving(header: Header, delta: Delta) -> range:
    """
    Return which stored entries the cut of `delta` has to see: those that leave, and the first that stays.

    Empty where nothing leaves. A journal gives them to `extend` and drops all but the last of them in the same write:
    those up to the new header's `cut.seq`.
    """
    first = header.cut.seq + 1
    return range(first, min(delta.cut + 1, header.entries) + 1) if delta.cut >= first else range(0)


def has_left(seq: int, header: Header) -> DecisionHistoryAbsent:
    """Return the refusal of an entry that a cut took while the record was read."""
    return DecisionHistoryAbsent(
        f"entry {seq} left the record while it was read: the first that stays is {header.cut.seq + 1}; read it again",
        seq=seq,
        cut=header.cut.seq,
    )


def extend(
    header: Header,
    delta: Delta,
    wall: int,
    max_retained_bytes: int | None = None,
    stored: Iterable[Entry] = (),
) -> Extension:
    """
    Return what the record becomes when `delta` is committed; linear in what comes and what leaves.

    `stored` are the entries that `leaving` names, oldest first.

    Raises:
        PairingViolation: a result without an open call, a second answer, new input while calls wait, or a cut that
            would take an exchange which waits.
        DecisionHistoryRetentionExceeded: the conversation would retain more than the store's or the delta's
            `max_retained_bytes`.
        InvalidMessage: instructions after the conversation has begun, or an imported mark that no record would make.
        InvalidOption: an attempt opened while another one is open, or a cut where none may stand.
        DecisionHistoryConflict: an import into a conversation that holds entries.
    """
    growth = _Import(header, delta, wall) if delta.imported else _Growth(header, delta, wall)
    contents = [payload_digest(draft.payload) for draft in delta.drafts]
    growth.open(contents)
    for draft, content in zip(delta.drafts, contents, strict=True):
        growth.add(draft, content)
    growth.close()
    if delta.cut:
        growth.cut(stored)
    if delta.drafts:
        _check_retained(growth.bytes, max_retained_bytes, delta.max_retained_bytes)
    after = growth.header()
    receipt = Receipt(
        idempotency=delta.idempotency,
        first=header.entries + 1,
        last=after.entries,
        version=after.version,
        epoch=after.epoch,
        digest=after.digest,
        content=content_digest(delta, contents),
        wall=wall,
        sent=delta.sent,
    )
    return Extension(header=after, entries=tuple(growth.added), receipt=receipt)


def interrupt(header: Header, reason: str, wall: int, idempotency: str) -> Extension:
    """
    Return the record after its reservation was ended from outside: an ABANDONED mark, and the state to go on from.

    The mark is made even when the interrupted attempt had written nothing: an operator sees that there was one.
    """
    return extend(header, Delta(idempotency=idempotency, abandons=reason), wall)


def _check_retained(size: int, *bounds: int | None) -> None:
    bound = min((bound for bound in bounds if bound is not None), default=size)
    if size > bound:
        raise DecisionHistoryRetentionExceeded(
            f"the conversation would retain {size:,} bytes, limit {bound:,}; "
            "raise max_retained_bytes, or go on in a new conversation",
            size=size,
            limit=bound,
        )


class _Growth:
    """The one mutable thing here: a header's fields while a delta is applied to them. It never leaves `extend`."""

    def __init__(self, header: Header, delta: Delta, wall: int) -> None:
        self.before = header
        self.delta = delta
        self.wall = wall
        self.state = header.state
        self.attempt = header.attempt
        self.seq = header.entries
        self.bytes = header.bytes
        self.digest = header.digest
        self.added: list[Entry] = []
        self.opening = delta.opens
        self.repeated: Draft | None = None

    def header(self) -> Header:
        return msgspec.structs.replace(
            self.before,
            touched=self.wall,
            version=self.before.version + 1,
            entries=self.seq,
            bytes=self.bytes,
            digest=self.digest,
            state=self.state,
            attempt=self.attempt,
        )

    def open(self, contents: list[bytes]) -> None:
        """Begin the attempt that the delta asks for; one that repeats an unanswered input goes on from that input."""
        if not self.opening:
            return
        if self.attempt is not None:
            raise InvalidOption("a turn is already open in this reservation; settle or abandon it first")
        inputs = [
            (draft, content) for draft, content in zip(self.delta.drafts, contents, strict=True) if draft.kind is INPUT
        ]
        if not inputs:
            self._begin_attempt()
        elif self.state.unanswered and inputs[0][1] == self.state.unanswered.content:
            self.repeated = inputs[0][0]
            self._begin_attempt()

    def _begin_attempt(self) -> None:
        self.attempt = Attempt(self.seq + 1, self.state)
        self.opening = False

    def add(self, draft: Draft, content: bytes) -> None:
        """Apply one draft by the rule of its kind."""
        if draft is self.repeated:
            return
        if self.attempt is None and self.state.unanswered and draft.kind not in (RESULT, SUMMARY):
            self._drop_unanswered(self.state.unanswered)
        self._apply(draft, content)

    def _apply(self, draft: Draft, content: bytes) -> None:
        kind = draft.kind
        if kind is INPUT:
            self._add_input(draft, content)
        elif kind is RESPONSE:
            self._add_response(draft, content)
        elif kind is RESULT:
            self._add_result(draft, content)
        elif kind is INJECTION:
            self._add_injection(draft, content)
        elif kind is INSTRUCTIONS:
            self._add_instructions(draft, content)
        elif kind is SUMMARY:
            self._add_summary(draft, content)
        else:
            self._add_mark(draft, content)

    def _add_mark(self, draft: Draft, content: bytes) -> None:  # noqa: ARG002 - an import's rule needs them
        raise InvalidOption("an attempt is abandoned by `abandons`, not by an entry of the caller's")

    def _drop_unanswered(self, unanswered: Unanswered) -> None:
        """Take an input that was never answered out of the story: the next one supersedes it."""
        self._mark("superseded", first=self.state.turn, last=self.state.turn)
        self._go_back_before(unanswered)

    def _go_back_before(self, unanswered: Unanswered) -> None:
        self._set(
            turn=unanswered.turn,
            exchange=unanswered.exchange,
            turns=self.state.turns - 1,
            said=unanswered.said,
            unanswered=None,
        )

    def _add_instructions(self, draft: Draft, content: bytes) -> None:
        if self.seq > len(self.added) or any(entry.kind is not INSTRUCTIONS for entry in self.added):
            raise InvalidMessage(
                "instructions may only stand at the head of a conversation; send them with the request instead",
                path="$",
            )
        self._append(draft, content, exchange=0)

    def _add_input(self, draft: Draft, content: bytes) -> None:
        self._refuse_open("a new input")
        before = Unanswered(content, self.state.turn, self.state.exchange, self.state.said)
        self._set(turn=self.seq + 1, exchange=0, turns=self.state.turns + 1, said=0)
        self._append(draft, content, exchange=0)
        if self.opening:
            self._set(unanswered=before)
            self._begin_attempt()

    def _add_injection(self, draft: Draft, content: bytes) -> None:
        self._append(draft, content, exchange=self.state.exchange, call=self.state.said)
        if not self.state.exchange:
            self._set(said=self.seq)

    def _add_response(self, draft: Draft, content: bytes) -> None:
        self._refuse_open("a new response")
        seq = self.seq + 1
        waiting = (*self.state.open, OpenExchange(seq, draft.calls)) if draft.calls else self.state.open
        self._set(exchange=seq, exchanges=self.state.exchanges + 1, open=waiting)
        self._append(draft, content, exchange=seq, call=self.state.said)

    def _add_summary(self, draft: Draft, content: bytes) -> None:
        if draft.call and not self.state.summarised <= draft.call <= self.seq:
            raise InvalidOption(
                f"a summary covers the exchanges up to one from {max(self.state.summarised, 1)} to {self.seq}, "
                f"not to {draft.call}; one that covers nothing drops the summary before it",
                option="call",
            )
        self._append(draft, content, exchange=0)
        self._set(summary=self.seq if draft.call else 0, summarised=draft.call, late=0)

    def _add_result(self, draft: Draft, content: bytes) -> None:
        exchange = draft.exchange or self.state.exchange
        found = next((open_ for open_ in self.state.open if open_.exchange == exchange), None)
        if found is None:
            raise PairingViolation("a result for an exchange that has no open call", exchange=exchange)
        if not 0 <= draft.call < len(found.calls) or draft.call in found.answered:
            raise PairingViolation(
                f"call {draft.call} of this exchange does not wait for a result; {len(found.waiting)} of its "
                f"{len(found.calls)} calls do",
                exchange=exchange,
                call=draft.call,
            )
        answered = msgspec.structs.replace(found, answered=(*found.answered, draft.call))
        rest = tuple(open_ for open_ in self.state.open if open_ is not found)
        complete = len(answered.answered) == len(found.calls)
        self._set(open=rest if complete else (*rest, answered))
        if complete and exchange <= self.state.summarised:
            self._set(late=min(self.state.late or exchange, exchange))
        self._append(draft, content, exchange=exchange)

    def _refuse_open(self, what: str) -> None:
        for open_ in self.state.open:
            if not open_.parked:
                raise PairingViolation(
                    f"{what} while {len(open_.waiting)} call(s) of the exchange before it wait for their results; "
                    "give the results, or park the calls",
                    exchange=open_.exchange,
                    waiting=open_.waiting,
                )

    def close(self) -> None:
        """Apply what the delta says beside its entries: parked exchanges, the window's start, the attempt's end."""
        for exchange in self.delta.parks:
            self._park(exchange)
        if self.delta.window_from:
            delta = self.delta
            self._set(
                window_from=delta.window_from,
                window_limits=delta.window_limits,
                cut_at=delta.cut_at,
                prelude=delta.prelude,
            )
        if self.delta.abandons:
            self._abandon(self.delta.abandons)
        elif self.delta.settles:
            self.attempt = None
            self._set(unanswered=None)

    def cut(self, stored: Iterable[Entry]) -> None:
        """Have the entries up to the delta's `cut` leave, given those of them that are stored."""
        at, before = self.delta.cut, self.state.cut or _UNCUT
        if at <= before.seq:
            return
        self._refuse_cut(at)
        tally = _Leaving(before)
        for entry in chain(stored, self.added):
            if entry.seq > at:
                if entry.kind is not INPUT:
                    raise InvalidOption(
                        f"a cut stands between two turns; entry {entry.seq}, the first that would stay, opens none",
                        option="cut",
                    )
                break
            tally.take(entry)
        if tally.seq != at:
            raise damaged(tally.seq + 1, "is missing")
        self.bytes -= tally.size
        self.added = [entry for entry in self.added if entry.seq > at]
        self.state = _without(self.state, tally.cut())

    def _refuse_cut(self, at: int) -> None:
        state = self.state
        if at > self.seq:
            raise InvalidOption(f"a cut up to entry {at} of a record that ends at {self.seq}", option="cut")
        if self.attempt is not None:
            raise InvalidOption("a turn is open; settle or abandon it before anything is cut", option="cut")
        for open_ in state.open:
            if open_.exchange <= at:
                raise PairingViolation(
                    f"a cut up to entry {at} would take an exchange of which {len(open_.waiting)} call(s) wait for "
                    "their results; give the results first",
                    exchange=open_.exchange,
                )
        if 0 < state.late <= at < state.summarised:
            # Which further ones the summary passed over is not known here, and they would be in no window any more.
            raise InvalidOption(
                f"the summary passed over exchange {state.late}, which is complete since; renew or drop the summary "
                "before anything is cut",
                option="cut",
            )

    def _park(self, exchange: int) -> None:
        if all(open_.exchange != exchange for open_ in self.state.open):
            raise PairingViolation("only an exchange with an open call can be parked", exchange=exchange)
        self._set(
            open=tuple(
                msgspec.structs.replace(open_, parked=True) if open_.exchange == exchange else open_
                for open_ in self.state.open
            )
        )

    def _abandon(self, reason: str) -> None:
        first = self.seq + 1
        if self.attempt is not None:
            first, self.state = self.attempt.first, self.attempt.state
            self.attempt = None
        self._mark(reason, first=first, last=self.seq)

    def _mark(self, reason: str, *, first: int, last: int) -> None:
        payload = b'{"reason":"%s"}' % reason.encode()
        self._append(Draft(kind=ABANDONED, payload=payload, call=last), payload_digest(payload), exchange=first)

    def _set(self, **changes: object) -> None:
        self.state = msgspec.structs.replace(self.state, **changes)

    def _wall(self, draft: Draft) -> int:  # noqa: ARG002 - an import's rule needs it
        return self.wall

    def _append(self, draft: Draft, content: bytes, *, exchange: int, call: int | None = None) -> None:
        self.seq += 1
        call = draft.call if call is None else call
        if draft.kind is not ABANDONED:  # a mark must always find room, or a refusal could not be told
            self.bytes += len(draft.payload)
        wall = self._wall(draft)
        self.digest = chain_digest(
            self.digest,
            content,
            encode_calls(draft.calls),
            seq=self.seq,
            kind=draft.kind,
            turn=self.state.turn,
            exchange=exchange,
            call=call,
            messages=draft.messages,
            size=draft.size,
            start=draft.start,
            stop=draft.stop,
            wall=wall,
        )
        self.added.append(
            Entry(
                seq=self.seq,
                kind=draft.kind,
                turn=self.state.turn,
                exchange=exchange,
                call=call,
                messages=draft.messages,
                size=draft.size,
                start=draft.start,
                stop=draft.stop,
                wall=wall,
                calls=draft.calls,
                digest=self.digest,
                payload=draft.payload,
            )
        )


class _Leaving:
    """What a cut takes out, told entry by entry, in the memory of one turn's numbers."""

    def __init__(self, before: Cut) -> None:
        self.seq: int = before.seq
        self.size: int = 0
        self._digest = before.digest
        self._before = before
        self._turns: list[int] = []
        self._exchanges: list[int] = []

    def take(self, entry: Entry) -> None:
        if entry.seq != self.seq + 1:
            raise damaged(self.seq + 1, "is missing")
        self.seq, self._digest = entry.seq, entry.digest
        if entry.kind is ABANDONED:
            # A mark stands right behind what it takes back, so that is the end of what was counted.
            for counted in (self._turns, self._exchanges):
                while counted and counted[-1] >= entry.exchange:
                    counted.pop()
            return
        self.size += len(entry.payload)
        if entry.kind is INPUT:
            self._turns.append(entry.seq)
        elif entry.kind is RESPONSE:
            self._exchanges.append(entry.seq)

    def cut(self) -> Cut:
        before = self._before
        turns, exchanges = before.turns + len(self._turns), before.exchanges + len(self._exchanges)
        return Cut(self.seq, self._digest, turns, exchanges)


def _without(state: State, cut: Cut) -> State:
    """Return the state without what names an entry that has left."""
    at = cut.seq
    state = msgspec.structs.replace(state, cut=cut)
    if state.turn <= at:
        state = msgspec.structs.replace(state, turn=0, exchange=0, said=0, unanswered=None)
    elif state.unanswered is not None and state.unanswered.turn <= at:
        state = msgspec.structs.replace(state, unanswered=Unanswered(state.unanswered.content, 0, 0))
    if state.summary <= at:
        return msgspec.structs.replace(state, summary=0, summarised=0, late=0)
    return msgspec.structs.replace(state, late=state.late if state.late > at else 0)


_MARK_PAYLOAD = re.compile(rb'\{"reason":"[a-z_]{1,32}"\}')


class _Import(_Growth):
    """
    The growth of an empty record by all entries of another one, marks included.

    A mark takes the record back to where its attempt began, so the states since the last mark are kept. That an input
    opened an attempt shows only when a mark stands right after it, or right after what the attempt wrote: it counts as
    unanswered from there on, until an answer stands or another mark supersedes it.
    """

    def __init__(self, header: Header, delta: Delta, wall: int) -> None:
        super().__init__(header, delta, wall)
        if header.entries:
            raise DecisionHistoryConflict(
                f"the conversation holds {header.entries:,} entries already; import into one that holds nothing",
                entries=header.entries,
            )
        begins = delta.begins
        if begins is not None:
            # Numbers and digests go on from the original's: what left it is named by them.
            self.seq, self.digest = begins.seq, begins.digest
            self.state = State(turns=begins.turns, exchanges=begins.exchanges, cut=begins)
        self.marked = self.seq
        self.passed: list[State] = []
        self.inputs: dict[int, Unanswered] = {}

    def _add_result(self, draft: Draft, content: bytes) -> None:
        if self.state.cut and 0 < draft.exchange <= self.state.cut.seq:
            self._append(draft, content, exchange=draft.exchange)  # it came late, and its exchange has left since
        else:
            super()._add_result(draft, content)

    def add(self, draft: Draft, content: bytes) -> None:
        self.passed.append(self.state)
        if draft.kind is INPUT:
            self.inputs[self.seq + 1] = Unanswered(content, self.state.turn, self.state.exchange, self.state.said)
            self._set(unanswered=None)
        self._apply(draft, content)

    def _refuse_open(self, what: str) -> None:  # noqa: ARG002 - it was parked, or the original would have refused
        self._park_all()

    def _park_all(self) -> None:
        for waiting in self.state.open:
            if not waiting.parked:
                self._park(waiting.exchange)

    def _add_mark(self, draft: Draft, content: bytes) -> None:
        first, last = draft.exchange, draft.call
        superseded = self.state.unanswered if not self.state.exchange else None
        if not _MARK_PAYLOAD.fullmatch(draft.payload):
            raise InvalidMessage("a mark of an abandoned attempt that no record would make", path="$")
        if superseded and first == last == self.state.turn:
            self._append(draft, content, exchange=first)
            self._go_back_before(superseded)
        elif last == self.seq and self.marked < first <= last + 1:
            self._go_back_to(first)
            self._append(draft, content, exchange=first)
        else:
            raise InvalidMessage("a mark of an abandoned attempt that does not stand right after it", path="$")
        self.marked = self.seq
        self.passed.clear()
        self.inputs.clear()

    def _go_back_to(self, first: int) -> None:
        """Take the state back to where the attempt began; an input right before it is unanswered from here on."""
        if first <= self.seq:
            self.state = self.passed[first - self.marked - 1]
        if first - 1 in self.inputs and self.state.turn == first - 1:
            self._set(unanswered=self.inputs[first - 1])

    def _wall(self, draft: Draft) -> int:
        return draft.wall

    def close(self) -> None:
        """Keep the newest input unanswered unless the delta says that it settles, and park what was left open."""
        if self.state.exchange:
            self._set(unanswered=None)
        super().close()
        self._park_all()
