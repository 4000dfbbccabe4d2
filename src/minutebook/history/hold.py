"""
A reservation in use: the windows that are made under it, what is committed, and what becomes of what failed.

Nobody may have heard how a commit ended: its reply was lost, or it was cancelled under way. Such a commit is looked for
by its id before anything else is written.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec

from minutebook.errors import (
    CallerError,
    DecisionHistoryConflict,
    DecisionHistoryError,
    DecisionHistoryLimitExceeded,
    InvalidOption,
    ProviderContextWindowExceeded,
    StorageError,
)
from minutebook.model.entries import ABANDONED, RESPONSE, RESULT
from minutebook.model.events import HistoryAbandoned, HistorySummary, HistoryTrimmed
from minutebook.model.law import extend
from minutebook.model.proof import proved
from minutebook.model.receipts import Sent, encode_sent
from minutebook.model.record import Delta
from minutebook.model.shown import type_alone
from minutebook.model.summaries import summary_draft
from minutebook.model.tails import Tail
from minutebook.policy.binding import prelude_mark
from minutebook.ports import Committed, Page
from minutebook.record_reader import RecordReader
from minutebook.reserving import Reservation, may_be_written
from minutebook.windows import Window, bounded, page_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

    from minutebook.history.conversation import History
    from minutebook.model.bounds import WindowLimits
    from minutebook.model.entries import Draft
    from minutebook.model.record import Header, Receipt, State
    from minutebook.model.summaries import Summary
    from minutebook.policy.tokens import TokenGuard
    from minutebook.policy.window import Plan


class _Doubt(msgspec.Struct, frozen=True):
    """A commit of which nobody heard how it ended: it was cancelled under way, or its reply was lost."""

    idempotency: str
    drafts: tuple[Draft, ...]
    summary: Draft | None
    """The summary that went with it."""
    release: bool
    """Whether it was to give the reservation back."""

    __repr__ = type_alone


class Hold:
    """
    A reservation in use: the header and the tail as this worker knows them, until it settles or abandons.

    As an `async with` block it is abandoned by what leaves the block with an error. A block that ends well has given
    the reservation back by its last commit.

    `generated` is for the caller to set once a request has left: from then on a failure is marked in the record.
    `unrecorded` is for what came in and was not committed yet, an answer before its own commit among it: where that is
    cut, it is under the mark. `too_large` is to be set where the provider refused what must be sent as more than the
    model takes: the mark says so, as it does where a limit of ours refused it.
    """

    def __init__(self, history: History) -> None:
        """Prepare to reserve; nothing is held yet."""
        self.history = history
        self._reservation = Reservation(history.journal, history.tokens, history.key)
        self.generated = False
        self.unrecorded: tuple[Draft, ...] = ()
        self.too_large = False
        self.tail = Tail()
        self._plan: Plan | None = None
        self._told = False
        """Whether the last window, and what this turn adds behind it, is what stands before the next answer."""
        self._sent: Sent | None = None
        self._prelude = ""
        self._window_from = self._window_end = 0
        """Where the last window began, and the newest `seq` when it was made."""
        self._outgrown = (0, 0)
        """Messages and bytes of the tool loop that has found no room since the last window."""
        self._unproved = 0
        """The newest `seq` of the tail that the store gave and nobody has proved yet; 0 for none."""
        self._summary: Draft | None = None
        self._doubts: dict[str, _Doubt] = {}
        """By their ids; several where commits were under way together."""
        self._newest: tuple[int, tuple[Draft, ...]] = (0, ())
        """What the newest commit recorded, and the version of the header that says so."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            await self.abandon(error)

    @property
    def held(self) -> bool:
        """Whether the reservation is this worker's, neither settled nor abandoned."""
        return self._reservation.held

    @property
    def header(self) -> Header:
        """The conversation as this worker knows it."""
        return self._reservation.header

    async def reserve(self, delta: Delta | None, *, release: bool = False) -> Committed | None:
        """Take the reservation and commit `delta` with it; see `Reservation.take`."""
        history = self.history
        known = history.tails.get(history.key)
        try:
            reserved = await self._reservation.take(
                history.identity,
                opening=delta,
                release=release,
                tail=None if release else page_of(history.limits),
                known=known.version + (delta is not None) if known else -1,
            )
        except BaseException as error:
            await self.abandon(error)
            raise
        continued = known.continued(reserved.header, reserved.written) if known else None
        self.tail = continued or Tail(reserved.tail)
        self._unproved = 0 if continued else reserved.header.entries - len(reserved.written)
        if reserved.receipt is None:
            return None
        return Committed(header=reserved.header, written=reserved.written, receipt=reserved.receipt)

    async def begin_again(self, opened: Receipt) -> None:
        """
        Go on with a turn whose opening was committed before under the same idempotency id, if nothing answers it yet.

        Raises:
            DecisionHistoryConflict: it was answered or superseded, as `problem` says; the reservation is given back.
        """
        async with self:
            state = self.header.state
            if state.unanswered is None or opened.last < state.turn:
                superseded = await self._was_superseded(opened)
                raise DecisionHistoryConflict(
                    "another input came before the turn of this id was answered, and took its place; say it again "
                    "under a new id"
                    if superseded
                    else "the turn of this id is answered; its answer is in the record",
                    problem="superseded" if superseded else "answered",
                    first=opened.first,
                )
            await self.commit((), opens=True)

    async def _was_superseded(self, opened: Receipt) -> bool:
        """Return whether a mark took out the input that was opened with `opened`; costs what its turn holds."""
        reader = RecordReader(self.history.journal, self.history.key)
        turn = (await reader.entry(opened.last)).turn  # a retry of the words wrote no entry of its own
        return await reader.is_taken_out(turn, opened.last, self.header)

    async def window(
        self,
        limits: WindowLimits | None = None,
        staged: Sequence[Draft] = (),
        guard: TokenGuard | None = None,
        prelude: str = "",
        floor: int | None = None,
        asks: bool = True,
    ) -> Window:
        """
        Return what to send, with `staged` as if it were recorded already.

        `prelude` is a digest of what the request says before the window, where reasoning is bound to that too. With a
        `floor` the exchanges up to that `seq` stay out. One that `asks` nobody is measured alone: no receipt tells of
        it.

        Raises:
            DecisionHistoryLimitExceeded: what must stay exceeds a limit (SPEC D8).
            ProviderContextWindowExceeded: it does not fit the model's window by the count of `guard` (SPEC D12).
            InvalidOption: the reservation ended meanwhile.
        """
        history = self.history
        if self._unproved:
            self.tail = Tail(tuple(proved(history.key, self.header, self.tail.entries)))
            self._unproved = 0
        pending = () if self._summary is None else (self._summary,)
        header = self.header
        self.tail = self.tail.upto(header.entries)
        try:
            fitted, window, tail = await history.reader().fit(
                header,
                self.tail,
                limits or history.limits,
                (*pending, *staged),
                guard,
                summarising=history.summarising,
                prelude=prelude,
                floor=floor,
            )
        except DecisionHistoryLimitExceeded as error:
            self._outgrown = error.outgrown or self._outgrown
            raise
        if not self.held:  # the turn ended while a summary was waited for: nothing of this window may be told or kept
            raise InvalidOption("the turn is over; begin another one", option="turn")
        if self.header is header:  # else something was recorded meanwhile, which this tail does not know of
            self.tail = tail
        if not asks:
            return window
        self._tell_trimmed(fitted.plan, window)
        self._outgrown = (0, 0)
        self._plan, self._sent = fitted.plan, window.sent
        self._window_from, self._window_end = fitted.plan.window_from, header.entries
        # What came in while it was made may stand before its answer, and is not in it.
        self._told = not fitted.shown.stale and self.header.entries == header.entries
        self._prelude = prelude_mark(history.wire, prelude, window.sent.summary)
        if fitted.summary is not None:
            self._summary = summary_draft(fitted.summary)
            self._tell_summarised(fitted.summary, fitted.newly_covered, window)
        return window

    def _tell_summarised(self, summary: Summary, newly_covered: int, window: Window) -> None:
        self.history.emit(
            HistorySummary(
                message_count=len(window),
                bytes=len(window.json),
                exchanges=summary.covered.exchanges,
                newly_covered=newly_covered,
                summary_bytes=len(summary.text.encode()),
            )
        )

    def _tell_trimmed(self, plan: Plan, window: Window) -> None:
        if plan.left[0] and (self._plan is None or self._plan.start != plan.start):
            self.history.emit(
                HistoryTrimmed(
                    message_count=window.sent.messages,
                    bytes=window.sent.bytes,
                    first_removed=plan.left[0],
                    last_removed=plan.left[1],
                )
            )

    @property
    def sent(self) -> Sent | None:
        """The window of this turn's last request, by numbers."""
        return self._sent

    def note_tokens(
        self, *, counted: int | None = None, billed: int | None = None, guard: TokenGuard | None = None
    ) -> None:
        """Add token counts to the receipt of the request that is under way, and what `guard` held it to."""
        if self._sent is None:
            return
        noted = {"counted_tokens": counted, "billed_tokens": billed}
        if guard is not None and counted is not None:
            noted["reserved_tokens"] = guard.context.reservation(counted, guard.max_output_tokens)
            noted["window_tokens"] = guard.context.context_window_tokens
        self._sent = msgspec.structs.replace(self._sent, **{k: v for k, v in noted.items() if v is not None})

    async def commit(
        self,
        drafts: Sequence[Draft],
        *,
        opens: bool = False,
        settles: bool = False,
        supersedes: bool = False,
        release: bool = False,
        parks: tuple[int, ...] = (),
        cut: int = 0,
        idempotency: str = "",
        given: bytes = b"",
    ) -> Committed:
        """
        Record `drafts`, durable when this returns; with `release` the reservation ends in the same write.

        The entries up to `cut` leave the record in that write too (SPEC E6). `given` is as in `Delta`.

        Raises:
            DecisionHistoryFenced: another worker recovered the conversation meanwhile; nothing was written.
        """
        history = self.history
        plan = sent = pending = None
        if any(draft.kind is RESPONSE for draft in drafts):
            # The request and its summary go with the answer. Taken before the first await: of two commits under way
            # together only one records them.
            plan, sent, pending = self._plan, self._answered(drafts), self._summary
            self._summary = None
        unseen = not self._told and history.thinks(drafts)
        delta = history.delta(
            drafts if pending is None else (pending, *drafts),
            idempotency,
            given=given,
            opens=opens,
            settles=settles,
            supersedes=supersedes,
            parks=parks,
            cut=cut,
            window_from=plan.window_from if plan else 0,
            window_limits=(sent.max_messages, sent.max_bytes) if plan and sent else (0, 0),
            cut_at=sent.cut_at if sent else 0,
            unseen=unseen,
            stale=unseen and self._window_end > 0,
            prelude=self._prelude,
            sent=encode_sent(sent) if sent else b"",
        )
        try:
            committed = await self._reservation.commit(delta, release=release)
            self._newest = (committed.header.version, tuple(drafts))
            self._take(committed)
            if sent is not None:
                self._plan = self._sent = None
            self._overtake(drafts)
            if release:
                self._remember()
        except BaseException as error:
            self._summary = self._summary or pending  # the next commit takes it: its answer was made behind it
            if may_be_written(error):
                self._doubts[delta.idempotency] = _Doubt(delta.idempotency, tuple(drafts), pending, release)
            raise
        return committed

    def unwritten(self, drafts: Sequence[Draft]) -> tuple[Draft, ...]:
        """
        Return those of `drafts` that the newest commit has not recorded, as far as the header tells: these very ones.

        An interrupt may come between a commit and its caller, who then has them at hand as if nothing had become of
        them.
        """
        version, recorded = self._newest
        if self.header.version < version:
            return tuple(drafts)
        known = {id(each) for each in recorded}
        return tuple([draft for draft in drafts if id(draft) not in known])

    def _remember(self) -> None:
        """Have the process remember the record's end as it was given back."""
        history = self.history
        if self._unproved:  # no window was asked for, so what this worker wrote is all that is known
            self.tail = Tail(tuple([entry for entry in self.tail.entries if entry.seq > self._unproved]))
        tail = self.tail.upto(self.header.entries)
        history.tails.put(history.key, self.header, bounded(tail, history.limits))

    async def look_for(self, idempotency: str) -> Receipt | None:
        """
        Return the receipt of a commit of which nobody heard how it ended, if it was written, and go on from there.

        What it held is not committed again: its summary and the request that it answers are recorded.
        """
        history, doubt = self.history, self._doubts.get(idempotency)
        releases, before = doubt is not None and doubt.release, self.header.state
        receipt = await self._reservation.look_for(idempotency, release=releases)
        if receipt and releases:
            history.tails.drop(history.key)
        elif receipt:
            self.tail, self._unproved = Tail(), 0
            self._follow(before, self.header.state)
            if doubt:
                self._newest = (receipt.version, doubt.drafts)
                if self._summary is doubt.summary:
                    self._summary = None
            if receipt.sent:
                self._plan = self._sent = None
            self._overtake(doubt.drafts if doubt else ())
        self._doubts.pop(idempotency, None)  # not before: what strikes above leaves it in doubt
        return receipt

    async def conclude(
        self,
        drafts: Sequence[Draft],
        *,
        settles: bool = False,
        supersedes: bool = False,
        cut: int = 0,
        idempotency: str = "",
        given: bytes = b"",
    ) -> Committed:
        """
        Record a last commit and give the reservation back with it; where only the reply was lost, that is as good.

        Raises:
            StorageError: it was not written, or nobody can tell now.
        """
        try:
            return await self.commit(
                drafts,
                settles=settles,
                supersedes=supersedes,
                release=True,
                cut=cut,
                idempotency=idempotency,
                given=given,
            )
        except StorageError:
            with contextlib.suppress(StorageError):
                if (found := await self._found()) is not None:
                    return found
            raise

    async def _found(self) -> Committed | None:
        """Return what the last commit came to, if nobody heard how it ended; `None` if nothing was written."""
        history, doubt = self.history, next((each for each in self._doubts.values() if each.release), None)
        receipt = await self.look_for(doubt.idempotency) if doubt else None
        header = await history.journal.header(history.key) if receipt else None
        if receipt is None or header is None:
            return None
        page = Page(rows=max(receipt.last - receipt.first + 1, 1))
        written = await history.journal.oldest(history.key, receipt.first - 1, page)
        return Committed(header=header, written=tuple([e for e in written if e.seq <= receipt.last]), receipt=receipt)

    def _answered(self, drafts: Sequence[Draft]) -> Sent | None:
        """Return what the receipt of an answer says of its request, as the record stands by now."""
        sent, entries = self._sent, self.header.entries
        if sent is None:
            return None
        first = entries + 1
        if self._summary is not None:
            sent = msgspec.structs.replace(sent, summary=first)
            first += 1
        if not self._told:
            position = max(place for place, draft in enumerate(drafts) if draft.kind is RESPONSE)
            sent = msgspec.structs.replace(sent, cut_at=first + position)
        return sent

    def _take(self, committed: Committed) -> None:
        """
        Go on from what was written. Commits of one turn may be under way together, and are heard of in any order: then
        the newest header counts, and the next window reads the entries again.
        """
        follows = committed.header.version == self.header.version + 1
        self.tail = self.tail.grown(committed.written).above(committed.header.cut.seq) if follows else Tail()
        if committed.header.version > self.header.version:
            self._follow(self.header.state, committed.header.state)
            self._reservation.header = committed.header

    def _overtake(self, drafts: Sequence[Draft]) -> None:
        """See whether words or an answer were recorded under a request, and stand unseen before its answer."""
        if self._sent is not None and any(draft.kind is not RESULT for draft in drafts):
            self._told = False

    def _follow(self, before: State, state: State) -> None:
        """See whether a late result put an exchange back into what the last window told of."""
        waiting = {each.exchange for each in state.open}
        for exchange in {each.exchange for each in before.open} - waiting:
            is_newest = exchange == state.exchange and exchange > self._window_end
            if exchange >= self._window_from and not is_newest:
                self._told = False

    async def abandon(self, error: BaseException) -> None:
        """
        Give the reservation back and take this turn's entries out of every window; `error` goes on afterwards.

        What is `unrecorded` is recorded for the operator, under the same mark, if there is room for it. Commits of
        which nobody heard how they ended are looked for first: what they wrote is not written again, and where one
        ended the turn, that stands, and a note on the error says so.
        """
        if not self.held:
            return
        history = self.history

        async def give_back() -> None:
            self.unrecorded = self.unwritten(self.unrecorded)
            for doubt in tuple(self._doubts.values()):
                if not await self.look_for(doubt.idempotency):
                    continue
                if doubt.release:
                    error.add_note("the last commit was written all the same: what it holds stands in the record")
                    return
                # Of this object, since a second cancellation may have all this done once more.
                self.unrecorded = self.unwritten(self.unrecorded)
            attempt = self.header.attempt
            if self.generated or attempt:
                # What came in under a plain reservation makes an attempt of its own, so that the mark covers it.
                placed = self._placed(self.unrecorded)
                opens = bool(placed) and attempt is None
                delta = history.delta(placed, opens=opens, abandons=self._reason(error), outgrown=self._outgrown)
            else:
                delta = history.delta((), outgrown=self._outgrown)
            await self._reservation.release(delta)

        first = self.header.attempt.first if self.header.attempt else self.header.entries + 1
        try:
            await self._reservation.give_up(error, give_back)
        finally:
            ended = self._reservation.ended
            if ended is None:  # nobody knows how it ended
                history.tails.drop(history.key)
            else:
                self._take(ended)
                self._remember()
        if ended is not None and any(entry.kind is ABANDONED for entry in ended.written):
            sent = self._sent or Sent()
            history.emit(
                HistoryAbandoned(
                    message_count=sent.messages, bytes=sent.bytes, first_abandoned=first, reason=self._reason(error)
                )
            )

    def _reason(self, error: BaseException) -> str:
        """Return the enumerated reason of an abandoned attempt; never the error's own words."""
        if not isinstance(error, Exception):
            return "cancelled"
        if self.too_large or isinstance(error, (DecisionHistoryLimitExceeded, ProviderContextWindowExceeded)):
            return "too_large"
        return "refused" if isinstance(error, (DecisionHistoryError, CallerError)) else "failed"

    def _placed(self, drafts: Sequence[Draft]) -> tuple[Draft, ...]:
        """Return those of the drafts that the record has a place for; nobody has seen yet whether it has."""
        placed: list[Draft] = []
        header = self.header
        for draft in drafts:
            delta = Delta(drafts=(draft,), idempotency="", opens=header.attempt is None)
            with contextlib.suppress(CallerError):
                header = extend(header, delta, header.touched).header
                placed.append(draft)
        return tuple(placed)
