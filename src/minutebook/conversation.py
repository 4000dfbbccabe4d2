"""
Face C: bring your own loop.

For people who call a provider's SDK themselves and keep a list. A turn records the input before the request is made,
gives the window to send, takes the raw response and the results of tools, and settles; whatever goes wrong in between,
the next turn finds a history that every provider accepts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from minutebook.continuation import Continuation
from minutebook.errors import DecisionHistoryCorrupt, InvalidOption, PairingViolation
from minutebook.history import History, Hold, Window
from minutebook.model.bounds import WindowLimits, check_retained
from minutebook.model.codec import JSON
from minutebook.model.entries import Call, Draft
from minutebook.model.events import check_observer
from minutebook.model.keys import ConversationKey, check_id
from minutebook.model.summaries import SUMMARY_BYTES
from minutebook.policy.binding import check_reasoning
from minutebook.policy.compaction import summarising
from minutebook.ports import Page
from minutebook.providers.wire import wire_format
from minutebook.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike
    from types import TracebackType
    from typing import Self

    from minutebook.model.receipts import Sent
    from minutebook.model.record import Header, Receipt
    from minutebook.model.transfer import Imported
    from minutebook.ports import Observer, Summarize
    from minutebook.stores.journal import JournalStore
    from minutebook.stores.transfer import Progress

LOW_WATER = 0.65
"""How far a conversation's window is cut when a limit bites, if its limits do not say otherwise (SPEC C4)."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call that waits for its result, with its arguments as the provider wrote them."""

    id: str
    name: str
    arguments: JSON
    exchange: int
    """The `seq` of the response it belongs to: pairing is by exchange and position, never by id alone."""
    position: int
    conversation: ConversationKey
    """Where it was made: two conversations have exchanges of the same number all the time."""
    custom: bool = False
    """Whether it is a call of a custom tool, whose arguments are free text."""

    def __repr__(self) -> str:
        return f"ToolCall(exchange={self.exchange}, position={self.position})"


class Conversation(Reading):
    """
    One conversation in a store, in one wire format.

    Args:
        store: a store with a namespace.
        id: names the conversation within the namespace; opaque, at most 512 UTF-8 bytes.
        format: `openai-chat`, `openai-responses`, `anthropic` or `gemini`; given once, it never changes.
        limits: what a window may hold.
        max_retained_bytes: refuse to retain more than this in this conversation, beside the store's own bounds.
        on_event: told of what leaves the window and of what is abandoned, by numbers alone.
        summarize: makes a summary of what leaves a turn's window, to stand there in its place; see `Summarize`.
        max_summary_bytes: how long that may be, in UTF-8 bytes.
        reasoning: what a window does with Anthropic's thinking that is stale because older exchanges left it. `strip`
            leaves it out, but refuses the window (`DecisionHistoryLimitExceeded`) inside an open tool loop, where the
            API demands it; `keep` leaves it in, for requests of yours that have the API drop it. What is retained is
            never changed, and no other format has such reasoning.

    Raises:
        InvalidOption: an unknown format, a store without a namespace, or a retention below the chosen window.
        InvalidId: an id that no store can hold.
    """

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
        check_reasoning(reasoning, ("strip", "keep"))
        self.store = store
        self.key = store.key(id)
        self._wire = wire_format(format)
        limits = _checked_limits(limits)
        check_observer(on_event)
        self.history = History(
            store.journal,
            store.tails,
            store.tokens,
            store.fresh_id,
            self.key,
            wire=self._wire,
            identity=self._wire.name,
            limits=limits,
            low_water=LOW_WATER,
            max_retained_bytes=None
            if max_retained_bytes is None
            else check_retained(max_retained_bytes, limits.max_bytes),
            observer=on_event,
            summarising=summarising(summarize, max_summary_bytes, limits.max_bytes, store.fresh_id),
            reasoning=reasoning,
        )

    def turn(self, message: object = None, *, id: str = "") -> Turn:  # noqa: A002 - the field's standard word
        """
        Return a turn, to be entered with `async with`; the conversation is reserved while it is open (SPEC C1).

        `message` is a text, a wire message or a list of them; without one the turn goes on from what is recorded.
        A turn that failed and comes again with the same message goes on from the recorded input: it is there once. An
        `id` makes that explicit: the same id with another message is a conflict.
        """
        drafts = () if message is None else (self._wire.input(message),)
        return Turn(self, drafts, check_id(id, "turn id") if id else "")

    async def append(self, messages: Sequence[object], *, id: str = "", whole: bool = False) -> Receipt | None:  # noqa: A002
        """
        Record a ready transcript of wire messages in one durable write: all of it or nothing.

        System and developer messages at its head are retained and stand in no window: send your own with each request.

        With an `id` the same transcript may come again and is recorded once. With `whole` the messages are the whole
        conversation so far, as a client that keeps its own list sends it: what is recorded already is passed over, and
        the results of one exchange may stand in any order.

        Raises:
            DecisionHistoryBusy: another worker holds the conversation.
            DecisionHistoryConflict: the id stands for another transcript, or a whole one contradicts the record.
            PairingViolation: a result without its call, or a call without its result before the next input.
        """
        idempotency = check_id(id, "append id") if id else ""
        drafts: Sequence[Draft] = self._wire.transcript(messages)
        if whole:
            return await self._append_whole(drafts, idempotency)
        if not drafts:
            return None
        committed = await self.history.append(drafts, idempotency=idempotency)
        return committed.receipt if committed else None

    async def _append_whole(self, drafts: Sequence[Draft], idempotency: str) -> Receipt | None:
        """Compare and record under one reservation, so that two clients with the same list record it once."""
        hold = await self.history.open(attempt=False)
        try:
            continuation = Continuation(self._wire, drafts)
            async for entry in self.entries():
                continuation.take(entry)
            drafts = continuation.left()
            committed = await hold.commit(drafts, release=True, idempotency=idempotency if drafts else "")
        except BaseException as error:
            await hold.abandon(error)
            raise
        return committed.receipt if drafts else None

    async def open_calls(self) -> tuple[ToolCall, ...]:
        """
        Return the calls that wait for a result, parked ones included, oldest first.

        Raises:
            DecisionHistoryAbsent: the conversation was deleted or has expired meanwhile.
            DecisionHistoryCorrupt: what is stored of a response is not what its header says.
        """
        found: list[ToolCall] = []
        header = await self.history.header()
        if header is None:
            return ()
        for waiting in header.state.open:
            response = await self._entry(header, waiting.exchange)
            calls = self._wire.calls(response.fragment)
            if len(calls) != len(waiting.calls):
                raise DecisionHistoryCorrupt(
                    f"the response at seq {waiting.exchange} has {len(calls)} calls, its header {len(waiting.calls)}; "
                    "verify the store",
                    seq=waiting.exchange,
                )
            found.extend(_tool_call(self.key, calls[p], waiting.exchange, p) for p in waiting.waiting)
        return tuple(found)

    async def complete(self, call: ToolCall, output: object, *, error: bool = False) -> Receipt | None:
        """
        Record the late result of a parked call; its exchange is complete, and in windows again, once all have come.

        The same result again is a no-op.

        Raises:
            PairingViolation: the call does not wait for a result, or another conversation made it.
            DecisionHistoryConflict: another result stands already.
        """
        draft = self._wire.result(call.position, _checked_call(call, self.key), output, error=error)
        draft = msgspec.structs.replace(draft, exchange=call.exchange)
        committed = await self.history.append((draft,), idempotency=await self._result_id(call))
        return committed.receipt if committed else None

    async def _result_id(self, call: ToolCall) -> str:
        """Return the idempotency id of a late result; its response's digest makes it one that no caller chooses."""
        page = await self.store.journal.oldest(self.key, call.exchange - 1, Page(rows=1, messages=1, size=1))
        digest = page[0].digest.hex() if page else ""
        return f"result-{call.exchange}-{call.position}-{digest}"

    async def drop_summary(self) -> bool:
        """Have windows show no summary any more; see `JournalStore.drop_summary`."""
        return await self.store.drop_summary(self.key)

    async def window(self, limits: WindowLimits | None = None) -> Window:
        """
        Return the window as the next turn would see it; reserves and writes nothing.

        Raises:
            DecisionHistoryLimitExceeded: what must stay exceeds a limit (SPEC D8).
            DecisionHistoryAbsent: the conversation was deleted or has expired meanwhile.
        """
        limits = None if limits is None else _checked_limits(limits)
        return await self._one_record().window(limits)

    async def export(self, path: str | PathLike[str], *, force: bool = False, progress: Progress | None = None) -> int:
        """Write the conversation to a private file and return how many entries it holds; see `JournalStore.export`."""
        return await self.store.export(self.key, path, force=force, progress=progress)

    async def import_(
        self, path: str | PathLike[str], *, good_prefix: bool = False, progress: Progress | None = None
    ) -> Imported:
        """
        Record an exported conversation in this one, which holds nothing yet; see `JournalStore.import_`.

        Each entry is derived again from its payload by the wire format and must come out as the file has it. A decision
        provider's conversation of the same API is taken too, of either interface, and keeps its identity: give the
        `id` of the key that the provider has for the invocation, and go on through that provider.

        Raises:
            ImportRefused: also, as `unlawful`, a file of another format, or an entry that is not of its payload.
        """
        return await self.store.import_(self.key, path, check=self._derived, good_prefix=good_prefix, progress=progress)

    def _derived(self, format: str, drafts: Sequence[Draft]) -> int | None:  # noqa: A002 - the field's standard word
        # Imported here: the decision providers' formats are needed by no other conversation.
        from minutebook.providers.derivation import derived_entries

        return derived_entries(format, drafts) if format.partition("/")[0] == self._wire.name else None


class Turn:
    """
    One turn of a conversation: an `async with` block that holds the reservation (SPEC C1).

    Leaving the block settles the turn; an exception or a cancellation abandons it, and so does leaving it without a
    response: then its input is in no window until the same message comes again.
    """

    def __init__(self, conversation: Conversation, drafts: tuple[Draft, ...], idempotency: str) -> None:
        """Prepare the turn; nothing is reserved before the block is entered."""
        self._conversation = conversation
        self._history = conversation.history
        self._wire = self._history.wire
        self._drafts = drafts
        self._idempotency = idempotency
        self._hold: Hold | None = None
        self._answer: tuple[Draft, ...] = ()
        self._responded = False
        self.receipt: Receipt | None = None
        """What the last commit wrote, and the request that it answers."""

    async def __aenter__(self) -> Self:
        """
        Reserve the conversation and record the input, durable before any request is made.

        Raises:
            DecisionHistoryBusy: another worker holds the conversation.
            PairingViolation: an exchange before it waits for results that are not parked.
        """
        if self._hold is not None:
            raise InvalidOption("a turn is entered once; make a new one", option="turn")
        self._hold = await self._history.open(self._drafts, idempotency=self._idempotency)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        hold = self._entered()
        try:
            if error is None:
                await self._settle(hold)
        except BaseException as refusal:
            await hold.abandon(refusal, self._answer)
            raise
        if error is not None:
            await hold.abandon(error, self._answer)

    async def _settle(self, hold: Hold) -> None:
        if not self._responded:
            refusal = PairingViolation(
                "the turn ended without a response; was the call of `respond` left out, or its `await`?"
            )
            if hold.sent is not None:
                raise refusal  # a window was asked for, so a request was made: its answer would be lost without a word
            await hold.abandon(refusal)
            return
        _check_answered(hold.header, "the turn ends")
        self.receipt = (await hold.commit(self._answer, settles=True, release=True)).receipt

    async def window(self, limits: WindowLimits | None = None) -> Window:
        """
        Return the messages to send: this turn's input, the newest exchanges within the limits, and no more.

        Raises:
            DecisionHistoryLimitExceeded: what must stay exceeds a limit; nothing may be sent (SPEC D8).
        """
        limits = None if limits is None else _checked_limits(limits)
        await self._record()  # an answer that was kept back: the turn goes on, and its request's receipt goes with it
        return await self._held().window(limits)

    @property
    def sent(self) -> Sent | None:
        """
        The request under way, or the last one that was answered, by numbers: which exchanges, how many messages and
        bytes, the limits, and whether older exchanges stayed out. `None` before the first window.
        """
        return self._entered().sent or (self.receipt.request if self.receipt else None)

    async def respond(self, body: object) -> list[ToolCall]:
        """
        Record the provider's raw response and return the calls that it makes.

        `body` is the response as bytes, as a dict, or as an object of the openai or anthropic SDK. A response with
        calls is durable when this returns, so before any tool runs. One without is written when the block ends, in the
        same commit that settles the turn: until then an exception would abandon it in any case.

        Raises:
            InvalidMessage: no response of this wire format; nothing was recorded.
            PairingViolation: calls of the response before it wait for their results.
        """
        hold = self._held()
        draft = self._wire.response(body)
        hold.generated = True
        if not draft.calls:
            _check_answered(await self._record(), "the model answers")
            self._answer, self._responded = (draft,), True
            return []
        committed = await self._record(draft)
        self._responded = True
        key, exchange = self._conversation.key, committed.state.exchange
        calls = self._wire.calls(draft.payload[draft.start : draft.stop])
        return [_tool_call(key, call, exchange, position) for position, call in enumerate(calls)]

    async def result(self, call: ToolCall, output: object, *, error: bool = False) -> None:
        """
        Record what answers a call, durable when this returns: a text, a JSON value, or a complete wire message.

        Raises:
            PairingViolation: the call does not wait for a result, or another conversation made it.
        """
        named = _checked_call(call, self._conversation.key)
        draft = self._wire.result(call.position, named, output, error=error)
        draft = msgspec.structs.replace(draft, exchange=call.exchange)
        await self._record(draft)

    async def say(self, message: object) -> None:
        """Record a further message inside the turn; while a call is open it is shown after the results (case O-08)."""
        await self._record(self._wire.injection(message))

    async def park(self, call: ToolCall) -> None:
        """
        Let the exchange of `call` wait while the conversation goes on, for an approval or a slow tool.

        It is in no window until `Conversation.complete` has brought its results.
        """
        _checked_call(call, self._conversation.key)
        await self._record(parks=(call.exchange,))

    async def _record(self, *drafts: Draft, parks: tuple[int, ...] = ()) -> Header:
        """Commit an answer that was kept back and what comes after it; nothing to write is nothing written."""
        hold = self._held()
        # Taken before the first await: of two commits under way together only one records it.
        kept, self._answer = self._answer, ()
        if kept or drafts or parks:
            try:
                self.receipt = (await hold.commit((*kept, *drafts), parks=parks)).receipt
            except BaseException:
                self._answer = kept  # a refusal that the caller catches must not cost the model's answer
                raise
        return hold.header

    def _held(self) -> Hold:
        hold = self._entered()
        if not hold.held:
            raise InvalidOption("the turn is over; begin another one", option="turn")
        return hold

    def _entered(self) -> Hold:
        if self._hold is None:
            raise InvalidOption(
                "the turn is not entered; it is a `with` block (under an event loop, `async with`)", option="turn"
            )
        return self._hold


def _checked_limits(limits: object) -> WindowLimits:
    if limits is None:
        return WindowLimits()
    if not isinstance(limits, WindowLimits):
        raise InvalidOption(f"limits is a WindowLimits, not {type(limits).__name__}", option="limits")
    return limits


def _checked_call(call: object, key: ConversationKey) -> Call:
    """Return the call that a result names, if it was made in this conversation."""
    if not isinstance(call, ToolCall):
        raise InvalidOption(f"a call is what `respond` returned, not {type(call).__name__}", option="call")
    if call.conversation != key:
        raise PairingViolation("the call was made in another conversation", exchange=call.exchange)
    return Call(call.id, call.name, call.custom)


def _tool_call(key: ConversationKey, call: tuple[Call, JSON], exchange: int, position: int) -> ToolCall:
    named, arguments = call
    return ToolCall(
        id=named.id,
        name=named.name,
        arguments=arguments,
        exchange=exchange,
        position=position,
        conversation=key,
        custom=named.custom,
    )


def _check_answered(header: Header, what: str) -> None:
    for waits in header.state.open:
        if not waits.parked:
            raise PairingViolation(
                f"{what} while {len(waits.waiting)} call(s) wait for their results; give them, or park them",
                exchange=waits.exchange,
            )
