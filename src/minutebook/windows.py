"""
What of a record a window needs, read from a journal newest first, and the window that comes of it.

One page usually decides a window, and what was read before is not read again: a tail that the process remembers goes
first. Nothing here writes, reserves or remembers (SPEC B1, D7).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import msgspec

from minutebook.fitting import Fitted, Fitting
from minutebook.model.codec import reread
from minutebook.model.law import extend, without_attempt
from minutebook.model.pause import pause
from minutebook.model.receipts import Sent
from minutebook.model.record import Delta
from minutebook.model.summaries import read_summary
from minutebook.model.tails import Tail
from minutebook.policy.binding import Reasoning, bind, prelude_mark
from minutebook.policy.compaction import Removed, Summarising
from minutebook.policy.room import Room, makes_room, room_for
from minutebook.policy.standing import Passing, without_passed
from minutebook.policy.window import Plan, Scan
from minutebook.ports import STREAM_PAGE, Page
from minutebook.record_reader import RecordReader

if TYPE_CHECKING:
    from collections.abc import Callable

    from minutebook.model.bounds import WindowLimits
    from minutebook.model.entries import Draft, Entry
    from minutebook.model.events import Event
    from minutebook.model.keys import ConversationKey
    from minutebook.model.record import Header, State
    from minutebook.model.units import Settled
    from minutebook.policy.tokens import TokenGuard
    from minutebook.ports import Journal, Wire

INPUT_ROWS = 32
"""How many rows are read at once for the input of a window's oldest turn and what was said beside it."""

PAGE_ROWS = 4096
"""How many rows are read at once for a window, however large its limits are."""


class Window(Sequence[Any]):
    """
    The messages to send, oldest first, each a dict of the wire format; `json` is the same as bytes.

    To a type checker they are `Any`: every SDK has types of its own for them, and takes these dicts.
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
        self._messages: list[Any] | None = None

    @cached_property
    def sent(self) -> Sent:
        """What the receipt of a request with this window says of it, by numbers."""
        return _sent(self._plan, self.json, self._limits, self._summary) if self._plan and self._limits else Sent()

    @property
    def messages(self) -> list[Any]:
        """The messages as Python values."""
        if self._messages is None:
            self._messages = cast("list[Any]", reread(self.json))
        return self._messages

    def __len__(self) -> int:
        return self._plan.messages if self._plan else 0

    def __iter__(self) -> Iterator[Any]:
        return iter(self.messages)

    def __getitem__(self, index: Any) -> Any:
        messages: Any = self.messages
        return messages[index]

    def __repr__(self) -> str:
        return f"Window({len(self)} messages, {len(self.json):,} bytes)"


class WindowReader(RecordReader):
    """Makes windows of one conversation in one wire format. `limits` say how much of it is worth remembering."""

    def __init__(
        self,
        journal: Journal,
        key: ConversationKey,
        wire: Wire,
        limits: WindowLimits,
        low_water: float,
        reasoning: Reasoning,
        emit: Callable[[Event], None],
    ) -> None:
        """Name what is read; nothing is read yet."""
        super().__init__(journal, key)
        self._wire = wire
        self._limits = limits
        self._low_water = low_water
        self._reasoning: Reasoning = reasoning
        self._emit = emit

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
        standing: bool = False,
    ) -> tuple[Fitted, Window, Tail]:
        """
        Return what is sent, as a window too, for a record that ends with `staged`, and the tail without it.

        With a `floor` the exchanges up to that `seq` stay out, whatever a summary covers. `standing` leaves out what an
        attempt under way has recorded, and the tail that comes back is without it too.

        Raises:
            DecisionHistoryLimitExceeded: the latest exchange and the current input alone exceed a limit.
            ProviderContextWindowExceeded: the same, counted in tokens by `guard`.
            DecisionHistorySummaryInvalid: the callback that `summarising` has raised, or gave no summary.
        """
        low_water = limits.low_water or self._low_water
        after, entries = _with_staged(header, staged, floor, standing=standing)
        roomy = makes_room(self._wire, self._reasoning)

        def reached(scan: Scan) -> bool:
            return scan.reaches(limits, low_water, roomy)

        scan, read = await self._scanned(after, header, entries, tail, page_of(limits), reached)
        await self._add_missing_input(scan, header, limits)
        settled = scan.settle(header)
        shown = await self._summary_entry(after, (*entries, *read), tail)
        summary = read_summary(shown) if shown else None
        if summary is not None and not summary.told:
            summary = None

        def bound(plan: Plan, behind_new: bool) -> Plan:
            mark = prelude_mark(self._wire, prelude, header.entries + 1 if behind_new else after.state.summary)
            return bind(plan, after, self._wire, limits, self._reasoning, mark)

        def room(plan: Plan) -> Room | None:
            return room_for(plan.units, scan.newest_turn(), after.state, self._wire, low_water)

        room_of = room if roomy else None
        fitting = Fitting(scan, self._wire, limits, low_water, self._emit, bound, room_of, summary=summary, guard=guard)
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
        return next((entry for entry in entries if entry.seq == seq), None) or await self.entry(seq)

    async def _uncovered(self, header: Header, state: State) -> Removed:
        """Return all exchanges that no summary covers as `state` has it, those in the window too; linear in them."""
        header = msgspec.structs.replace(
            header,
            state=msgspec.structs.replace(header.state, summary=state.summary, summarised=state.summarised),
        )
        scan = Scan(header)
        late: set[int] = set()
        covered = max(state.summarised, header.cut.seq)
        while scan.next_seq > covered or not late <= {unit.key for unit in scan.units}:
            await self.read_on(header, scan, STREAM_PAGE)
            if scan.next_seq <= covered:
                late = late or scan.late()
            await pause()
        await self._add_missing_input(scan, header, None)
        units = [unit for unit in reversed(scan.units) if unit.key > state.summarised or unit.key in late]
        return Removed(units, scan.inputs)

    async def _scanned(
        self,
        header: Header,
        stored: Header,
        staged: Sequence[Entry],
        tail: Tail,
        page: Page,
        reached: Callable[[Scan], bool],
    ) -> tuple[Scan, list[Entry]]:
        """
        Return a scan that decides the window, and the entries that it took, without the staged ones.

        What is read is held to the header that is `stored`: `header` counts the staged entries too.
        """
        scan = Scan(header)
        scan.add(reversed(staged))
        read = list(tail.entries)
        scan.add(read)
        if tail.settled is not None:
            scan.join(tail.settled)
            if reached(scan):
                return scan, read
            return await self._scanned(header, stored, staged, Tail(tail.entries), page, reached)
        while not reached(scan):
            read.extend(await self.read_on(stored, scan, page))
        return scan, read

    def _tail(self, read: Sequence[Entry], settled: Settled | None, summary: Entry | None) -> Tail:
        """Return what to remember of a record whose newest entries are `read`."""
        if settled is None:
            return Tail(_useful(read, self._limits), summary=summary)
        live = tuple([entry for entry in read if entry.seq >= settled.below])
        return Tail(live, settled.trimmed(self._limits.max_messages, self._limits.max_bytes), summary)

    async def _add_missing_input(self, scan: Scan, header: Header, limits: WindowLimits | None) -> None:
        """Have the input of the oldest unit's turn read, and what was said beside it; `header` is the one stored."""
        turn, said = scan.missing_input(limits)
        if not turn:
            return
        if not said:
            scan.add_input([await self.entry(turn)])
            return
        passing = Passing(min(said, header.entries))
        while passing.next_seq >= turn:
            rows = min(passing.next_seq - turn + 2, INPUT_ROWS)
            await self.read_on(header, passing, Page(rows=rows))
        scan.add_input([entry for entry in reversed(passing.entries) if entry.seq >= turn])


def _with_staged(
    header: Header, staged: Sequence[Draft], floor: int | None, *, standing: bool
) -> tuple[Header, Sequence[Entry]]:
    """Return the header that a window is made for, and the entries that it counts and nobody has stored."""
    after = header
    entries: Sequence[Entry] = ()
    if standing:
        stood = without_attempt(header)
        after, entries = stood.header, stood.entries
    if staged:
        grown = extend(after, Delta(drafts=tuple(staged), idempotency=""), header.touched)
        after, entries = grown.header, (*entries, *grown.entries)
    if floor is not None:
        after = msgspec.structs.replace(after, state=msgspec.structs.replace(after.state, summarised=floor))
    return after, entries


def page_of(limits: WindowLimits) -> Page:
    """
    Return how much to read at once so that one page usually decides a window.

    That is somewhat more than the limits: the oldest entry of a page only proves the one behind it.
    """
    size = limits.max_bytes + limits.max_bytes // 16
    rows = min(limits.max_messages + 8, PAGE_ROWS)
    return Page(rows=rows, messages=limits.max_messages + 2, size=size)


def bounded(tail: Tail, limits: WindowLimits) -> Tail:
    """Return the tail without what no window needs: one to which much was added since the last window."""
    standing = without_passed(tail.entries)
    entries = _useful(standing, limits)
    if len(entries) < len(standing):
        return Tail(entries)
    return tail if len(entries) == len(tail.entries) else Tail(entries, tail.settled, tail.summary)


def _useful(entries: Sequence[Entry], limits: WindowLimits) -> tuple[Entry, ...]:
    """Return the entries, newest first, up to one beyond the limits, and on to its turn's input if near."""
    messages = size = turn = end = 0
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
