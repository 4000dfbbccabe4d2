"""One conversation over one journal: what is opened, appended and read of it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from minutebook.errors import DecisionHistoryConflict, PairingViolation
from minutebook.history.hold import Hold
from minutebook.model.entries import RESPONSE
from minutebook.model.record import Delta
from minutebook.model.tails import Tail
from minutebook.model.telling import tell
from minutebook.ports import Committed
from minutebook.record_reader import RecordReader
from minutebook.windows import Window, WindowReader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from minutebook.model.bounds import WindowLimits
    from minutebook.model.entries import Draft, Entry
    from minutebook.model.events import Event
    from minutebook.model.keys import ConversationKey
    from minutebook.model.record import Header
    from minutebook.model.tails import Tails, Tokens
    from minutebook.policy.binding import Reasoning
    from minutebook.policy.compaction import Summarising
    from minutebook.ports import Journal, Observer, Wire


def opening_id(id: str, times: int) -> str:  # noqa: A002 - the field's standard word
    """Return under which id the input of `id` is recorded once others superseded it so many times; none for none."""
    return hashlib.sha256(b"again %d\0" % times + id.encode()).hexdigest() if id and times else id


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
        low_water: float = 1.0,
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

    async def open(self, drafts: Sequence[Draft] = (), *, idempotency: str = "", attempt: bool = True) -> Hold:
        """
        Reserve the conversation; with `attempt`, record what opens the turn in the same durable write.

        Raises:
            DecisionHistoryBusy: another worker holds it.
            DecisionHistoryConflict: the turn of this idempotency id had another input, or is answered or superseded, as
                `problem` says.
        """
        hold = Hold(self)
        opened = await hold.reserve(self.delta(drafts, idempotency, opens=True) if attempt else None)
        if opened and hold.header.attempt is None:
            await hold.begin_again(opened.receipt)
        return hold

    async def open_anew(self, drafts: Sequence[Draft], *, idempotency: str, superseded: list[str]) -> Hold:
        """
        Open a turn as `open` does, under a further id where others took the place of those before.

        `superseded` is given the ids of those turns, oldest first; see `opening_id`.

        Raises:
            DecisionHistoryBusy: another worker holds it.
            DecisionHistoryConflict: the turn of the id had another input, or is answered, as `problem` says.
        """
        while True:
            opening = opening_id(idempotency, len(superseded))
            try:
                return await self.open(drafts, idempotency=opening)
            except DecisionHistoryConflict as error:
                if error.problem != "superseded":
                    raise
            superseded.append(opening)

    async def go_on(self, *, idempotency: str = "") -> Hold:
        """
        Reserve the conversation and begin an attempt at what is recorded and has no answer.

        Raises:
            DecisionHistoryBusy: another worker holds it.
            PairingViolation: it holds nothing, or an answer stands last; whoever asked again would be answered twice.
        """
        header = await self.header()
        if header is None or not header.state.turn:
            raise PairingViolation("a turn without a message, and the conversation holds none to answer; give one")
        async with await self.open(attempt=False) as hold:
            if not hold.header.awaits_answer:
                raise PairingViolation("a turn without a message, and the newest one is answered; give one")
            await hold.commit((), opens=True, idempotency=idempotency)
            if hold.header.attempt is None:  # an attempt of this id was made before, and came to nothing
                await hold.commit((), opens=True)
        return hold

    async def append(self, drafts: Sequence[Draft], *, idempotency: str = "") -> Committed | None:
        """Record `drafts` in one durable write, without a hold. A replay of the same id writes nothing."""
        hold = Hold(self)
        return await hold.reserve(self.delta(drafts, idempotency, unseen=self.thinks(drafts)), release=True)

    async def header(self) -> Header | None:
        """
        Return the conversation's counters, `None` when absent or expired.

        Raises:
            DecisionHistoryConflict: it was recorded in another wire format; read as this one it would make no sense.
        """
        return self.checked(await self.journal.header(self.key))

    def checked(self, header: Header | None) -> Header | None:
        """Return a header that the journal gave. Raises as `header`."""
        if header is not None and header.format.partition("/")[0] != self.wire.name:
            raise DecisionHistoryConflict(
                f"the conversation was recorded as {header.format.partition('/')[0]!r}; read it in that format"
            )
        return header

    async def window(self, limits: WindowLimits | None, journal: Journal) -> Window:
        """
        Return the window as it stands, without a reservation; writes nothing and asks for no summary.

        It is read from `journal`, which watches over the record: that may be deleted meanwhile.
        """
        header = self.checked(await journal.header(self.key))
        if header is None:
            return Window(b"[]")
        known = self.tails.get(self.key)
        tail = known.continued(header, ()) if known else None
        _, window, read = await self.reader(journal).fit(header, tail or Tail(), limits or self.limits)
        self.tails.put(self.key, header, read)
        return window

    def reader(self, journal: Journal | None = None) -> WindowReader:
        """Return what makes this conversation's windows of a journal: of its own, unless one is given."""
        journal = journal or self.journal
        return WindowReader(journal, self.key, self.wire, self.limits, self.low_water, self.reasoning, self.emit)

    async def entry(self, seq: int) -> Entry:
        """See `RecordReader.entry`."""
        return await RecordReader(self.journal, self.key).entry(seq)

    def delta(self, drafts: Sequence[Draft], idempotency: str = "", **flags: Any) -> Delta:
        """Return what one commit adds, under a fresh idempotency id unless the caller chose one."""
        return Delta(
            drafts=tuple(drafts),
            idempotency=idempotency or self.fresh_id(),
            max_retained_bytes=self.max_retained_bytes,
            **flags,
        )

    def thinks(self, drafts: Sequence[Draft]) -> bool:
        """Return whether an answer among `drafts` has reasoning that is bound to what it was made behind."""
        wire = self.wire
        fragments = [each.payload[each.start : each.stop] for each in drafts if each.kind is RESPONSE and wire.binds]
        return any(wire.unbound(fragment) != fragment for fragment in fragments)

    def emit(self, event: Event) -> None:
        """Tell the observer. Whatever it raises changes nothing here, but for the stop of the whole program."""
        if self._observer is not None:
            tell(self._observer, event)
