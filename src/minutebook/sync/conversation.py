"""Face C for blocking callers: the same turn, as a plain `with` block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from minutebook import conversation as asynchronous
from minutebook import turn as turns
from minutebook.inflight import Line
from minutebook.model.colours import blocking_only, check_plain
from minutebook.model.summaries import SUMMARY_BYTES
from minutebook.sync.driving import Over, blocking, drive, streaming
from minutebook.sync.stores import JournalStore, core_of

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from minutebook.model.bounds import WindowLimits
    from minutebook.model.receipts import Sent
    from minutebook.model.record import Receipt
    from minutebook.ports import Observer, Summarize


class Conversation(Over[asynchronous.Conversation]):
    """One conversation in a store, in one wire format: see `minutebook.Conversation`."""

    def __init__(
        self,
        store: JournalStore,
        id: str,  # noqa: A002 - the field's standard word
        *,
        format: str,  # noqa: A002 - the field's standard word
        limits: WindowLimits | None = None,
        max_retained_bytes: int | None = None,
        on_event: Observer | None = None,
        summarize: Summarize | None = None,
        max_summary_bytes: int = SUMMARY_BYTES,
        reasoning: Literal["strip", "keep"] = "strip",
    ) -> None:
        check_plain(summarize, "summarize")
        self.store = store
        self._core = asynchronous.Conversation(
            core_of(store),
            id,
            format=format,
            limits=limits,
            max_retained_bytes=max_retained_bytes,
            on_event=on_event,
            summarize=summarize,
            max_summary_bytes=max_summary_bytes,
            reasoning=reasoning,
        )
        self.key = self._core.key

    def turn(self, message: object = None, *, id: str = "") -> Turn:  # noqa: A002 - the field's standard word
        """Return a turn, to be entered with `with`; the conversation is reserved while it is open (SPEC C1)."""
        return Turn(self._core.turn(message, id=id))

    append = blocking(asynchronous.Conversation.append)
    open_calls = blocking(asynchronous.Conversation.open_calls)
    complete = blocking(asynchronous.Conversation.complete)
    drop_summary = blocking(asynchronous.Conversation.drop_summary)
    window = blocking(asynchronous.Conversation.window)
    export = blocking(asynchronous.Conversation.export)
    import_ = blocking(asynchronous.Conversation.import_)
    entries = streaming(asynchronous.Conversation.entries)
    exchanges = streaming(asynchronous.Conversation.exchanges)
    last = blocking(asynchronous.Conversation.last)
    page = blocking(asynchronous.Conversation.page)
    search = streaming(asynchronous.Conversation.search)


class Turn(Over[turns.Turn]):
    """One turn of a conversation: a `with` block that holds the reservation (SPEC C1)."""

    def __init__(self, core: turns.Turn) -> None:
        """Prepare the turn; nothing is reserved before the block is entered."""
        self._core = core
        core._line = Line(blocking=True)  # pyright: ignore[reportPrivateUsage]

    if not TYPE_CHECKING:
        __aenter__ = __aexit__ = blocking_only

    def __enter__(self) -> Self:
        drive(self._core.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        drive(self._core.__aexit__(kind, error, trace))

    @property
    def receipt(self) -> Receipt | None:
        """What the last commit wrote, and the request that it answers."""
        return self._core.receipt

    @property
    def sent(self) -> Sent | None:
        """The window that was given last, by numbers."""
        return self._core.sent

    window = blocking(turns.Turn.window)
    respond = blocking(turns.Turn.respond)
    result = blocking(turns.Turn.result)
    say = blocking(turns.Turn.say)
    park = blocking(turns.Turn.park)
