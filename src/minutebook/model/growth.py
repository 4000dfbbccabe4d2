"""
The growth of a record: the one mutable thing, a header's fields while a delta is applied to them entry by entry.

It never leaves `law.extend`, so a refusal in the middle has nothing to undo.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from minutebook.errors import InvalidMessage, InvalidOption, PairingViolation
from minutebook.model.cuts import Leaving, without
from minutebook.model.entries import (
    ABANDONED,
    INJECTION,
    INPUT,
    INSTRUCTIONS,
    RESPONSE,
    RESULT,
    SUMMARY,
    Draft,
    Entry,
    chain_digest,
    damaged,
    payload_digest,
)
from minutebook.model.record import (
    MAX_PARKED,
    MAX_PARKED_CALLS,
    UNCUT,
    Attempt,
    Delta,
    Header,
    OpenExchange,
    Unanswered,
)

if TYPE_CHECKING:
    from collections.abc import Iterable


class Growth:
    """A header's fields while a delta is applied to them."""

    counts_newest = True
    """Whether the exchange that is parked counts among those that wait parked; an import's may be open elsewhere."""

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
        """Return what the header has become."""
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

    def supersede(self) -> None:
        """Take out the input that nothing has answered, where the delta says so and there is one."""
        if not self.delta.supersedes or self.state.unanswered is None:
            return
        if self.attempt is not None:
            raise InvalidOption("a turn is open; settle or abandon it before its input is superseded")
        self._drop_unanswered(self.state.unanswered)

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
        """
        Take an input that was never answered out of the story: the next one supersedes it.

        With what failed around it, unless something that stands came in behind it: a parked call's late result.
        """
        turn = self.state.turn
        if self._is_followed_by_failures(turn):
            self._mark("superseded", first=unanswered.since or turn, last=self.seq)
        else:
            self._mark("superseded", first=turn, last=turn)
        self._go_back_before(unanswered)

    def _is_followed_by_failures(self, turn: int) -> bool:
        """Return whether nothing stands behind the newest input."""
        return self.seq == turn or self.state.abandoned == (turn + 1, self.seq)

    def _abandoned_up_to(self, seq: int) -> int:
        """Return where the stretch begins that ends with the mark at `seq`; 0 if none does."""
        first, last = self.state.abandoned
        return first if first and last == seq else 0

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
        before = self._unanswered(content)
        self._set(turn=self.seq + 1, exchange=0, turns=self.state.turns + 1, said=0)
        self._append(draft, content, exchange=0)
        if self.opening:
            self._set(unanswered=before)
            self._begin_attempt()

    def _unanswered(self, content: bytes) -> Unanswered:
        """Return what stands before an input that is about to come."""
        state = self.state
        return Unanswered(content, state.turn, state.exchange, state.said, self._abandoned_up_to(self.seq))

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
            raise PairingViolation(
                "no call of this exchange waits for a result: each has one, and none is replaced, or there was none",
                exchange=exchange,
            )
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
                    "give the results, or park the calls; outside a turn `open_calls()` has them, and `complete` takes "
                    "their results",
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
            if all(waits.parked for waits in self.state.open):
                self._set(outgrown=(0, 0))
        elif self.delta.stale or (self.delta.unseen and self.state.cut_at):
            answers = [entry.seq for entry in self.added if entry.kind is RESPONSE]
            self._set(cut_at=max(answers, default=self.state.cut_at))
        if self.delta.abandons:
            self._abandon(self.delta.abandons)
        elif self.delta.settles:
            self.attempt = None
            self._set(unanswered=None)
        if any(self.delta.outgrown):
            self._set(outgrown=self.delta.outgrown)

    def cut(self, stored: Iterable[Entry]) -> None:
        """Have the entries up to the delta's `cut` leave, given those of them that are stored."""
        at, before = self.delta.cut, self.state.cut or UNCUT
        if at <= before.seq:
            return
        self._refuse_cut(at)
        tally = Leaving(before)
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
        self.state = without(self.state, tally.cut())

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
        found = next((open_ for open_ in self.state.open if open_.exchange == exchange), None)
        if found is None:
            raise PairingViolation("only an exchange with an open call can be parked", exchange=exchange)
        if found.parked:
            return
        self._refuse_more_parked(found)
        self._set(
            open=tuple(
                msgspec.structs.replace(open_, parked=True) if open_ is found else open_ for open_ in self.state.open
            )
        )

    def _refuse_more_parked(self, found: OpenExchange) -> None:
        parked = [open_ for open_ in self.state.open if open_.parked]
        held = [*parked, found] if self.counts_newest else parked
        if len(held) > MAX_PARKED or sum(len(open_.calls) for open_ in held) > MAX_PARKED_CALLS:
            calls = sum(len(open_.calls) for open_ in parked)
            raise PairingViolation(
                f"{len(parked)} exchanges of this conversation wait parked, with {calls:,} calls; {MAX_PARKED} "
                f"exchanges with {MAX_PARKED_CALLS:,} calls in all can. `complete` their calls (`open_calls()` has "
                f"them), or answer the {len(found.waiting):,} of this exchange now",
                exchange=found.exchange,
            )

    def _abandon(self, reason: str) -> None:
        first = self.seq + 1
        if self.attempt is not None:
            first, self.state = self.attempt.first, self.attempt.state
            self.attempt = None
        self._mark(reason, first=self._abandoned_up_to(first - 1) or first, last=self.seq)

    def _mark(self, reason: str, *, first: int, last: int) -> None:
        payload = b'{"reason":"%s"}' % reason.encode()
        draft = Draft(kind=ABANDONED, payload=payload, exchange=first, call=last)
        self._append_mark(draft, payload_digest(payload))

    def _append_mark(self, draft: Draft, content: bytes) -> None:
        """Append a mark that takes out the entries from its `exchange` to its `call`."""
        self._append(draft, content, exchange=draft.exchange)
        if draft.call != self.seq - 1:
            # Whoever passes over this mark does not know of the input that it takes out, far before it.
            self._set(abandoned=(0, 0))
            return
        begin = self.state.cut.seq + 1 if self.state.cut else 1  # an imported one may reach back to what has left
        self._set(abandoned=(max(draft.exchange, begin), self.seq))

    def _set(self, **changes: object) -> None:
        self.state = msgspec.structs.replace(self.state, **changes)

    def _wall(self, draft: Draft) -> int:  # noqa: ARG002 - an import's rule needs it
        return self.wall

    def _append(self, draft: Draft, content: bytes, *, exchange: int, call: int | None = None) -> None:
        self.seq += 1
        call = draft.call if call is None else call
        if draft.kind is not ABANDONED:  # a mark must always find room, or a refusal could not be told
            self.bytes += len(draft.payload)
        place = (
            self.seq,
            draft.kind,
            self.state.turn,
            exchange,
            call,
            draft.messages,
            draft.size,
            draft.start,
            draft.stop,
            self._wall(draft),
        )
        self.digest = chain_digest(self.digest, content, place, draft.calls)
        self.added.append(Entry(*place, draft.calls, self.digest, draft.payload))
