"""
The history: one conversation's story, told over a journal.

    open     the reservation and the input go in together, durable before any request is made
    window   what of the record is sent: read newest first, as far as the limits reach
    commit   what came back goes in; the last commit of a turn settles it and gives the reservation back
    abandon  what failed is marked, leaves every window, and stays visible to an operator

Nothing is held between two calls but the reservation: no transaction, no lock, no connection. Sizes come with the
entries, so a step costs its new bytes and its window, whatever the length of the conversation (SPEC B1). The core
starts no task and takes no lock; it runs the same under any event loop and under none.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, cast

import msgspec

from minutebook.errors import (
    CallerError,
    DecisionHistoryAbsent,
    DecisionHistoryBusy,
    DecisionHistoryConflict,
    DecisionHistoryCorrupt,
    DecisionHistoryError,
    DecisionHistoryFenced,
    DecisionHistoryNotReserved,
    DecisionHistoryRetentionExceeded,
    DecisionHistoryStoreFull,
    MinutebookError,
    ProviderContextWindowExceeded,
)
from minutebook.fitting import Fitted, Fitting
from minutebook.model.codec import reread
from minutebook.model.entries import RESPONSE
from minutebook.model.events import HistoryAbandoned, HistorySummary, HistoryTrimmed
from minutebook.model.pause import pause
from minutebook.model.receipts import Sent, encode_sent
from minutebook.model.record import Delta, extend, new_header
from minutebook.model.summaries import read_summary, summary_draft
from minutebook.model.tails import Tail
from minutebook.policy.binding import Reasoning, bind, prelude_mark
from minutebook.policy.compaction import Removed, Summarising
from minutebook.policy.window import Plan, Scan
from minutebook.ports import STREAM_PAGE, Committed, Page

if TYPE_CHECKING:
    from collections.abc import Callable

    from minutebook.model.bounds import WindowLimits
    from minutebook.model.codec import JSON
    from minutebook.model.entries import Draft, Entry
    from minutebook.model.events import Event
    from minutebook.model.keys import ConversationKey
    from minutebook.model.record import Header, Receipt, State
    from minutebook.model.summaries import Summary
    from minutebook.model.tails import Tails, Tokens
    from minutebook.model.units import Settled
    from minutebook.policy.tokens import TokenGuard
    from minutebook.ports import Journal, Observer, Wire

INPUT_ROWS = 256
"""How many rows are read at once for the input of a window's oldest turn and what was said beside it."""

PAGE_ROWS = 4096
"""How many rows are read at once for a window, however large its limits are."""


class Window(Sequence["dict[str, JSON]"]):
    """
    The messages to send, oldest first, each a dict of the wire format; `json` is the same as bytes.

    It is a copy: changing a message changes neither the record nor a later window.
    """

    def __init__(
        self, json: bytes, plan: Plan | None = None, limits: WindowLimits | None = None, summary: int = 0
    ) -> None:
        """Keep the bytes; they are decoded, and measured for a receipt, when somebody looks."""
        self.json = json
        self._plan = plan
        self._limits = limits
        self._summary = summary
        self._messages: list[dict[str, JSON]] | None = None

    @cached_property
    def sent(self) -> Sent:
        """What the receipt of a request with this window says of it, by numbers."""
        return _sent(self._plan, self.json, self._limits, self._summary) if self._plan and self._limits else Sent()

    @property
    def messages(self) -> list[dict[str, JSON]]:
        """The messages as Python values."""
        if self._messages is None:
            self._messages = cast("list[dict[str, JSON]]", reread(self.json))
        return self._messages

    def __len__(self) -> int:
        return self._plan.messages if self._plan else 0

    def __iter__(self) -> Iterator[dict[str, JSON]]:
        return iter(self.messages)

    def __getitem__(self, index: Any) -> Any:
        messages: Any = self.messages
        return messages[index]

    def __repr__(self) -> str:
        return f"Window({len(self)} messages, {len(self.json):,} bytes)"


class History:
    """One conversation over one journal: its wire format, its limits, and who is told of events."""

    def __init__(
        self,
        journal: Journal,
        tails: Tails,
        tokens: Tokens,
        fresh_id: Callable[[], str],
        key: ConversationKey,
        *,
        wire: Wire,
        identity: str,
        limits: WindowLimits,
        low_water: float,
        max_retained_bytes: int | None = None,
        observer: Observer | None = None,
        summarising: Summarising | None = None,
        reasoning: Reasoning = "keep",
    ) -> None:
        """Name the conversation; nothing is read or written yet."""
        self.journal = journal
        self.tails = tails
        self.tokens = tokens
        self.fresh_id = fresh_id
        self.key = key
        self.wire = wire
        self.identity = identity
        self.limits = limits
        self.low_water = limits.low_water or low_water
        self.max_retained_bytes = max_retained_bytes
        self.summarising = summarising
        self.reasoning: Reasoning = reasoning
        self._observer = observer
        self.lost_events = 0
        """Events whose observer raised: counted here, and kept from everything else."""

    async def open(self, drafts: Sequence[Draft] = (), *, idempotency: str = "", attempt: bool = True) -> Hold:
        """
        Reserve the conversation; with `attempt`, record what opens the turn in the same durable write.

        Raises:
            DecisionHistoryBusy: another worker holds it.
            DecisionHistoryConflict: the turn of this idempotency id is answered already, or had another input.
        """
        hold = Hold(self)
        opened = await hold.reserve(self.delta(drafts, idempotency, opens=True) if attempt else None)
        if opened and hold.header.attempt is None:
            await hold.begin_again(opened.receipt)
        return hold

    async def append(self, drafts: Sequence[Draft], *, idempotency: str = "") -> Committed | None:
        """Record `drafts` in one durable write, without a hold. A replay of the same id writes nothing."""
        hold = Hold(self)
        return await hold.reserve(self.delta(drafts, idempotency), release=True)

    async def header(self) -> Header | None:
        """
        Return the conversation's counters, `None` when absent or expired.

        Raises:
            DecisionHistoryConflict: it was recorded in another wire format; read as this one it would make no sense.
        """
        header = await self.journal.header(self.key)
        if header is not None and header.format.partition("/")[0] != self.wire.name:
            raise DecisionHistoryConflict(
                f"the conversation was recorded as {header.format.partition('/')[0]!r}; read it in that format"
            )
        return header

    async def window(
        self, limits: WindowLimits | None = None, staged: Sequence[Draft] = (), floor: int | None = None
    ) -> Window:
        """
        Return the window as it stands, without a reservation; writes nothing and asks for no summary.

        With `staged` it is the window of a record that ends with those drafts; with a `floor` see `fit`.
        """
        header = await self.header()
        if header is None and not staged:
            return Window(b"[]")
        if header is None:
            _, window, _ = await self.fit(
                new_header(self.key, self.identity, 0), Tail(), limits or self.limits, staged, floor=floor
            )
            return window
        known = self.tails.get(self.key)
        tail = known.continued(header, ()) if known else None
        _, window, read = await self.fit(header, tail or Tail(), limits or self.limits, staged, floor=floor)
        self.tails.put(self.key, header, read)
        return window

    async def fit(
        self,
        header: Header,
        tail: Tail,
        limits: WindowLimits,
        staged: Sequence[Draft] = (),
        guard: TokenGuard | None = None,
        *,
        summarising: Summarising | None = None,
        prelude: str = "",
        floor: int | None = None,
    ) -> tuple[Fitted, Window, Tail]:
        """
        Return what is sent, as a window too, for a record that ends with `staged`, and the tail without it.

        With a `floor` the exchanges up to that `seq` stay out, whatever a summary covers.

        Raises:
            DecisionHistoryLimitExceeded: the latest exchange and the current input alone exceed a limit.
            ProviderContextWindowExceeded: the same, counted in tokens by `guard`.
            DecisionHistorySummaryInvalid: the callback that `summarising` has raised, or gave no summary.
        """
        low_water = limits.low_water or self.low_water
        after = header
        entries: Sequence[Entry] = ()
        if staged:
            grown = extend(header, Delta(drafts=tuple(staged), idempotency=""), header.touched)
            after, entries = grown.header, grown.entries
        if floor is not None:
            after = msgspec.structs.replace(after, state=msgspec.structs.replace(after.state, summarised=floor))
        scan, read = await self._scanned(after, entries, tail, limits, low_water)
        await self._add_missing_input(scan, limits)
        settled = scan.settle(header)
        shown = await self._summary_entry(after, (*entries, *read), tail)
        summary = read_summary(shown) if shown else None
        if summary is not None and not summary.told:
            summary = None

        def bound(plan: Plan, behind_new: bool) -> Plan:
            mark = prelude_mark(self.wire, prelude, header.entries + 1 if behind_new else after.state.summary)
            return bind(plan, after, self.wire, limits, self.reasoning, mark)

        fitting = Fitting(scan, self.wire, limits, low_water, self.emit, bound, summary=summary, guard=guard)
        if summarising is None:
            fitted = await fitting.cut()
        else:
            fitted = await fitting.compacted(summarising, lambda: self._uncovered(header, after.state))
        seq = header.entries + 1 if fitted.summary else after.state.summary
        kept = shown if shown and shown.seq <= header.entries else None
        return fitted, Window(fitted.json, fitted.shown, limits, seq), self._tail(read, settled, kept)

    async def _summary_entry(self, header: Header, entries: Sequence[Entry], tail: Tail) -> Entry | None:
        """Return the entry of the summary that windows show, if there is one."""
        seq = header.state.summary
        if not seq:
            return None
        if tail.summary is not None and tail.summary.seq == seq:
            return tail.summary
        found = next((entry for entry in entries if entry.seq == seq), None)
        if found is None:
            found = next(iter(await self.journal.oldest(self.key, seq - 1, Page(rows=1, messages=1, size=1))), None)
        return found or await self._refuse_missing(seq)

    async def _uncovered(self, header: Header, state: State) -> Removed:
        """Return all exchanges that no summary covers as `state` has it, those in the window too; linear in them."""
        header = msgspec.structs.replace(
            header,
            state=msgspec.structs.replace(header.state, summary=state.summary, summarised=state.summarised),
        )
        scan = Scan(header)
        late: set[int] = set()
        while scan.next_seq > state.summarised or not late <= {unit.key for unit in scan.units}:
            entries = await self.journal.newest(self.key, scan.next_seq + 1, STREAM_PAGE)
            if not entries:
                await self._refuse_missing(scan.next_seq)
            scan.add(entries)
            if scan.next_seq <= state.summarised:
                late = late or scan.late()
            await pause()
        await self._add_missing_input(scan, None)
        units = [unit for unit in reversed(scan.units) if unit.key > state.summarised or unit.key in late]
        return Removed(units, scan.inputs)

    async def _scanned(
        self, header: Header, staged: Sequence[Entry], tail: Tail, limits: WindowLimits, low_water: float
    ) -> tuple[Scan, list[Entry]]:
        """Return a scan that decides the window, and the entries that it took, without the staged ones."""
        scan = Scan(header)
        scan.add(reversed(staged))
        read = list(tail.entries)
        scan.add(read)
        if tail.settled is not None:
            scan.join(tail.settled)
            if scan.reaches(limits, low_water):
                return scan, read
            return await self._scanned(header, staged, Tail(tail.entries), limits, low_water)
        while not scan.reaches(limits, low_water):
            entries = await self.journal.newest(self.key, scan.next_seq + 1, self.page(limits))
            if not entries:
                await self._refuse_missing(scan.next_seq)
            scan.add(entries)
            read.extend(entries)
        return scan, read

    def _tail(self, read: Sequence[Entry], settled: Settled | None, summary: Entry | None) -> Tail:
        """Return what to remember of a record whose newest entries are `read`."""
        if settled is None:
            return Tail(self._useful(read), summary=summary)
        live = tuple(entry for entry in read if entry.seq >= settled.below)
        return Tail(live, settled.trimmed(self.limits.max_messages, self.limits.max_bytes), summary)

    def bounded(self, tail: Tail) -> Tail:
        """Return the tail without what no window needs: one to which much was added since the last window."""
        entries = self._useful(tail.entries)
        return tail if len(entries) == len(tail.entries) else Tail(entries)

    def _useful(self, entries: Sequence[Entry]) -> tuple[Entry, ...]:
        """Return the entries, newest first, up to one beyond the limits, and on to its turn's input if near."""
        messages = size = turn = end = 0
        limits = self.limits
        for position, entry in enumerate(entries, 1):
            messages += entry.messages
            size += entry.size
            if not end and (messages > limits.max_messages or size > limits.max_bytes):
                end, turn = position, entry.turn
            if end and (entry.seq == turn or not turn):
                return tuple(entries[:position])
            if position > 4 * limits.max_messages + 64:
                return tuple(entries[:position])  # marks of failed attempts measure nothing; more is read when needed
            if messages > 2 * limits.max_messages or size > 2 * limits.max_bytes:
                break  # a turn of many steps: its input is read again where a window needs it
        return tuple(entries[:end] if end else entries)

    async def _add_missing_input(self, scan: Scan, limits: WindowLimits | None) -> None:
        turn, said = scan.missing_input(limits)
        entries: list[Entry] = []
        while turn and (not entries or entries[-1].seq < said):
            after = entries[-1].seq if entries else turn - 1
            rows = min(max(said, turn) - after, INPUT_ROWS)
            page = await self.journal.oldest(self.key, after, Page(rows=rows, messages=2**62, size=2**62))
            if not page:
                await self._refuse_missing(after + 1)
            entries.extend(page)
        if entries:
            scan.add_input(entries)

    async def _refuse_missing(self, seq: int) -> NoReturn:
        """Say why an entry is not there: a window is read without a reservation, so the record may be gone by now."""
        if await self.journal.header(self.key) is None:
            raise DecisionHistoryAbsent("the conversation was deleted or expired while it was read")
        raise DecisionHistoryCorrupt(f"entry {seq} is missing from the record; verify the store", seq=seq)

    def page(self, limits: WindowLimits) -> Page:
        """Return how much to read at once so that one page usually decides a window."""
        rows = min(limits.max_messages + 8, PAGE_ROWS)
        return Page(rows=rows, messages=limits.max_messages, size=limits.max_bytes)

    def delta(self, drafts: Sequence[Draft], idempotency: str = "", **flags: Any) -> Delta:
        """Return what one commit adds, under a fresh idempotency id unless the caller chose one."""
        return Delta(
            drafts=tuple(drafts),
            idempotency=idempotency or self.fresh_id(),
            max_retained_bytes=self.max_retained_bytes,
            **flags,
        )

    def emit(self, event: Event) -> None:
        """Tell the observer. Whatever it raises changes nothing here, but for the stop of the whole program."""
        if self._observer is None:
            return
        try:
            self._observer(event)
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException:  # a hook may raise a cancellation of its own; it must not end our turn
            self.lost_events += 1


class Hold:
    """
    A reservation in use: the header and the tail as this worker knows them, until it settles or abandons.

    `generated` is for the caller to set once a request has left: from then on a failure is marked in the record.
    """

    def __init__(self, history: History) -> None:
        """Prepare to reserve; nothing is held yet."""
        self.history = history
        self.token = history.tokens.issue(self)
        self.held = False
        self.generated = False
        self.header: Header
        self.tail = Tail()
        self._plan: Plan | None = None
        self._sent: Sent | None = None
        self._prelude = ""
        self._window_end = 0
        """The newest `seq` when the last window was made."""
        self._summary: Draft | None = None

    async def reserve(self, delta: Delta | None, *, release: bool = False) -> Committed | None:
        """Take the reservation and commit `delta` with it; a second time if an orphan of this process held it."""
        try:
            return await self._reserve(delta, release=release)
        except DecisionHistoryBusy:
            if not await self._free_orphan():
                self.history.tokens.end(self.token)
                raise
        except BaseException as error:
            await self._undo_reserve(error)
            raise
        return await self._reserve(delta, release=release)

    async def _reserve(self, delta: Delta | None, *, release: bool) -> Committed | None:
        history = self.history
        known = history.tails.get(history.key)
        reserved = await history.journal.reserve(
            history.key,
            self.token,
            format=history.identity,
            opening=delta,
            release=release,
            tail=None if release else history.page(history.limits),
            known=known.version + (delta is not None) if known else -1,
        )
        self.header = reserved.header
        self.held = not release
        continued = known.continued(reserved.header, reserved.written) if known else None
        self.tail = continued or Tail(reserved.tail)
        if release:
            self._end()
        if reserved.receipt is None:
            return None
        return Committed(header=reserved.header, written=reserved.written, receipt=reserved.receipt)

    async def begin_again(self, opened: Receipt) -> None:
        """
        Go on with a turn whose opening was committed before under the same idempotency id, if nothing answers it yet.

        Raises:
            DecisionHistoryConflict: it was answered or superseded; the reservation is given back.
        """
        try:
            state = self.header.state
            if state.unanswered is None or opened.last < state.turn:
                raise DecisionHistoryConflict(
                    "a turn of this id was recorded and is not open any more: it was answered, or another input "
                    "superseded it; look for it in the record, or take a new id",
                    first=opened.first,
                )
            await self.commit((), opens=True)
        except BaseException as error:
            await self.abandon(error)
            raise

    async def _free_orphan(self) -> bool:
        history = self.history
        header = await history.journal.header(history.key)
        if header is None or not history.tokens.is_orphan(header.token):
            return False
        with contextlib.suppress(DecisionHistoryNotReserved, DecisionHistoryAbsent):  # another task was first
            await history.journal.recover(history.key, header.epoch)
        return True

    async def _undo_reserve(self, error: BaseException) -> None:
        """Give back what a cancelled reserve may have taken all the same. A refused one took nothing."""
        history = self.history
        try:
            if not isinstance(error, (Exception, GeneratorExit)):
                header = await history.journal.header(history.key)
                if header is not None and header.token == self.token:
                    self.header, self.held = header, True
                    await self.abandon(error)
        finally:
            history.tokens.end(self.token)

    async def window(
        self,
        limits: WindowLimits | None = None,
        staged: Sequence[Draft] = (),
        guard: TokenGuard | None = None,
        prelude: str = "",
        floor: int | None = None,
    ) -> Window:
        """
        Return what to send, with `staged` as if it were recorded already.

        `prelude` is a digest of what the request says before the window, where reasoning is bound to that too. With a
        `floor` the exchanges up to that `seq` stay out.

        Raises:
            DecisionHistoryLimitExceeded: what must stay exceeds a limit (SPEC D8).
            ProviderContextWindowExceeded: it does not fit the model's window by the count of `guard` (SPEC D12).
        """
        history = self.history
        pending = () if self._summary is None else (self._summary,)
        header = self.header
        fitted, window, tail = await history.fit(
            header,
            self.tail,
            limits or history.limits,
            (*pending, *staged),
            guard,
            summarising=history.summarising,
            prelude=prelude,
            floor=floor,
        )
        if self.header is header:  # else something was recorded meanwhile, which this tail does not know of
            self.tail = tail
        self._tell_trimmed(fitted.plan, window)
        self._plan, self._sent, self._window_end = fitted.plan, window.sent, header.entries
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
        release: bool = False,
        parks: tuple[int, ...] = (),
        idempotency: str = "",
    ) -> Committed:
        """
        Record `drafts`, durable when this returns; with `release` the reservation ends in the same write.

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
        delta = history.delta(
            drafts if pending is None else (pending, *drafts),
            idempotency,
            opens=opens,
            settles=settles,
            parks=parks,
            window_from=plan.window_from if plan else 0,
            window_limits=(sent.max_messages, sent.max_bytes) if plan and sent else (0, 0),
            cut_at=sent.cut_at if sent else 0,
            prelude=self._prelude,
            sent=encode_sent(sent) if sent else b"",
        )
        try:
            committed = await history.journal.commit(history.key, self.token, self.header.epoch, delta, release=release)
        except BaseException:
            self._summary = self._summary or pending  # the next commit takes it: its answer was made behind it
            raise
        self._take(committed)
        if sent is not None:
            self._plan = self._sent = None
        if release:
            history.tails.put(history.key, self.header, history.bounded(self.tail))
            self._end()
        return committed

    def _answered(self, drafts: Sequence[Draft]) -> Sent | None:
        """Return what the receipt of an answer says of its request, as the record stands by now."""
        sent, entries = self._sent, self.header.entries
        if sent is None:
            return None
        first = entries + 1
        if self._summary is not None:
            sent = msgspec.structs.replace(sent, summary=first)
            first += 1
        if entries != self._window_end:
            # Something came in behind the window and stands before its answer now, which was made without it.
            position = next(place for place, draft in enumerate(drafts) if draft.kind is RESPONSE)
            sent = msgspec.structs.replace(sent, cut_at=first + position)
        return sent

    def _take(self, committed: Committed) -> None:
        """
        Go on from what was written. Commits of one turn may be under way together, and are heard of in any order: then
        the newest header counts, and the next window reads the entries again.
        """
        follows = committed.header.version == self.header.version + 1
        self.tail = self.tail.grown(committed.written) if follows else Tail()
        if committed.header.version > self.header.version:
            self.header = committed.header

    async def abandon(self, error: BaseException, drafts: Sequence[Draft] = ()) -> None:
        """
        Give the reservation back and take this turn's entries out of every window; `error` goes on afterwards.

        `drafts` came in but were not committed yet: they are recorded for the operator, under the same mark.

        A coroutine that is being closed cannot wait any more: then the reservation is left to be found as an orphan.
        """
        if not self.held:
            return
        if isinstance(error, GeneratorExit):
            self._end()
            return
        reason = _reason(error)
        marked = self.generated or self.header.attempt is not None
        history = self.history
        try:
            try:
                await self._mark(reason if marked else "", drafts if marked else ())
            except DecisionHistoryError:
                raise
            except BaseException as again:
                # A second cancellation, or an interrupt, struck while we cleaned up. Once more, or every other process
                # would find the conversation busy until somebody recovers it.
                if isinstance(again, (Exception, GeneratorExit)):
                    raise
                await self._mark(reason if marked else "", drafts if marked else ())
                raise
        except DecisionHistoryFenced:
            return  # whoever recovered the conversation has marked the attempt
        except MinutebookError as second:
            error.add_note(f"the reservation could not be given back ({second.code}); recover the conversation")
            return
        finally:
            history.tails.drop(history.key)
            self._end()
        if marked:
            first = self.header.attempt.first if self.header.attempt else self.header.entries + 1
            sent = self._sent or Sent()
            history.emit(
                HistoryAbandoned(message_count=sent.messages, bytes=sent.bytes, first_abandoned=first, reason=reason)
            )

    async def _mark(self, reason: str, drafts: Sequence[Draft]) -> None:
        """Commit the mark and what is under it; where there is no room for that, the mark alone, which has room."""
        history = self.history
        # What came in under a plain reservation makes an attempt of its own, so that the mark covers it.
        delta = history.delta(drafts, opens=bool(drafts) and self.header.attempt is None, abandons=reason)
        try:
            await history.journal.commit(history.key, self.token, self.header.epoch, delta, release=True)
        except (DecisionHistoryRetentionExceeded, DecisionHistoryStoreFull):
            if not drafts:
                raise
            await self._mark(reason, ())

    def _end(self) -> None:
        self.held = False
        self.history.tokens.end(self.token)


def _reason(error: BaseException) -> str:
    """Return the enumerated reason of an abandoned attempt; never the error's own words."""
    if not isinstance(error, Exception):
        return "cancelled"
    refusals = (DecisionHistoryError, CallerError, ProviderContextWindowExceeded)
    return "refused" if isinstance(error, refusals) else "failed"


def _sent(plan: Plan, json: bytes, limits: WindowLimits, summary: int) -> Sent:
    return Sent(
        first=plan.start,
        last=plan.units[-1].key if plan.units else 0,
        units=len(plan.units),
        messages=plan.messages,
        bytes=len(json),
        digest=hashlib.sha256(json).hexdigest(),
        max_messages=limits.max_messages,
        max_bytes=limits.max_bytes,
        trimmed=plan.trimmed,
        cut_at=plan.cut_at,
        stripped=plan.stripped,
        summary=summary,
    )
