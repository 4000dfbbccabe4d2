"""
One turn of a conversation: from its input to its last answer, under one reservation (SPEC C1).

The calls that a response makes are handed out as values, and come back with their results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from minutebook.errors import InvalidOption, MinutebookError, PairingViolation, StorageError
from minutebook.inflight import Line
from minutebook.model.bounds import check_flag, checked_limits
from minutebook.model.colours import asynchronous_only
from minutebook.model.entries import INJECTION, RESULT, Call, Draft, payload_digest
from minutebook.model.keys import ConversationKey
from minutebook.model.shown import type_alone
from minutebook.reserving import may_be_written

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from minutebook.history import History, Hold
    from minutebook.inflight import Place
    from minutebook.model.bounds import WindowLimits
    from minutebook.model.codec import JSON
    from minutebook.model.receipts import Sent
    from minutebook.model.record import Header, Receipt
    from minutebook.ports import Wire
    from minutebook.windows import Window

T = TypeVar("T")


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call that waits for its result, with its arguments as the provider wrote them."""

    id: str
    name: str
    arguments: Any
    """A JSON value, or a text that holds one, or of a custom tool a free text."""
    exchange: int
    """The `seq` of the response it belongs to: pairing is by exchange and position, never by id alone."""
    position: int
    conversation: ConversationKey
    """Where it was made: two conversations have exchanges of the same number all the time."""
    custom: bool = False
    """Whether it is no function's: a custom tool's, whose arguments are free text, or one of OpenAI's own tools."""

    def __repr__(self) -> str:
        return f"ToolCall(exchange={self.exchange}, position={self.position})"


class _Doubt(msgspec.Struct, frozen=True):
    """A commit of which nobody heard how it ended: it was cancelled under way, or its reply was lost."""

    idempotency: str
    kept: tuple[Draft, ...]
    """What had been kept back, and was committed with the drafts."""
    drafts: tuple[Draft, ...]

    __repr__ = type_alone


class Turn:
    """
    One turn of a conversation: an `async with` block that holds the reservation (SPEC C1).

    A turn has an answer: leaving the block settles it once a response was recorded and no call waits for its result.
    Without one it is abandoned and leaving it raises `PairingViolation`, whether a window was asked for or not: an
    answer that nobody gave to `respond` would be lost without a word. An exception or a cancellation abandons the turn
    too, and goes on as it is; so raise one of your own to leave a turn on purpose. Whatever is abandoned is in no
    window; the input stays recorded, and the same message goes on from it.
    """

    def __init__(self, history: History, drafts: tuple[Draft, ...], idempotency: str) -> None:
        """Prepare the turn; nothing is reserved before the block is entered."""
        self._history = history
        self._wire = self._history.wire
        self._drafts = drafts
        self._idempotency = idempotency
        self._hold: Hold | None = None
        self._answer: tuple[Draft, ...] = ()
        self._said: tuple[Draft, ...] = ()
        """What was said while a request was under way, until its answer is there to stand before it."""
        self._lost: tuple[Draft, ...] = ()
        """What came in and was neither recorded nor refused, until it comes again: it is for an operator to find."""
        self._doubts: tuple[_Doubt, ...] = ()
        self._repeatable: tuple[_Doubt, ...] = ()
        """Doubtful commits that were written after all; their callers, who never heard of it, may give that again."""
        self._results: set[tuple[int, int, bytes]] = set()
        """The exchange, position and digest of each result that is recorded."""
        self._left = False
        """Whether the block is being left: nothing more comes in."""
        self._line: Line[tuple[Draft, ...]] = Line()
        """The calls that tasks or threads make together, and what each is to record."""
        self.receipt: Receipt | None = None
        """What the last commit wrote, and the request that it answers."""

    if not TYPE_CHECKING:
        __enter__ = __exit__ = asynchronous_only

    async def __aenter__(self) -> Self:
        """
        Reserve the conversation and record the input, durable before any request is made.

        Raises:
            DecisionHistoryBusy: another worker holds the conversation.
            PairingViolation: an exchange before it waits for results that are not parked; or there is no message, and
                none is recorded that has no answer yet.
        """
        if self._hold is not None:
            raise InvalidOption("a turn is entered once; make a new one", option="turn")
        if self._drafts:
            self._hold = await self._history.open(self._drafts, idempotency=self._idempotency)
        else:
            self._hold = await self._history.go_on(idempotency=self._idempotency)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        hold = self._entered()
        self._left = True
        hold.unrecorded = self._unrecorded()
        if error is not None:
            await hold.abandon(error)
            return
        place = self._line.place(())
        try:
            async with hold:
                # What others record by now is of this turn, and comes before its end; nothing comes behind that.
                await place.first()
                hold.unrecorded = self._unrecorded()
                await self._settle(hold)
        finally:
            place.leave()  # whoever came too late is told

    def _unrecorded(self) -> tuple[Draft, ...]:
        """Return what came in and is not known to be recorded."""
        return (*self._answer, *self._lost, *_without(self._said, self._lost))

    async def _settle(self, hold: Hold) -> None:
        await self._resolve(hold)
        if not self._is_answered(hold.header):
            raise PairingViolation(
                "the turn ended without a response; was the call of `respond` left out, or its `await`? To leave a "
                "turn on purpose raise an exception: its input stays recorded, and the same message goes on from it"
            )
        _check_answered(hold.header, "the turn ends")
        self.receipt = (await hold.conclude((*self._answer, *self._said), settles=True)).receipt

    def _is_answered(self, header: Header) -> bool:
        """Return whether this turn has an answer, recorded or kept back."""
        return bool(self._answer) or (header.attempt is not None and header.state.exchange >= header.attempt.first)

    async def window(self, limits: WindowLimits | None = None) -> Window:
        """
        Return the messages to send: this turn's input, the newest exchanges within the limits, and no more.

        While a call of this turn waits for its result there is no window. With its exchange the request would hold a
        call without a result (promise I-22); without it the newest exchange would be cut, and the results that have
        arrived with it (SPEC D8, case O-15). Give the results, or `park` the call. To look at what is recorded so far
        there is `Conversation.window`, which shows no exchange that waits.

        Raises:
            PairingViolation: calls wait for their results; nothing may be sent.
            DecisionHistoryLimitExceeded: what must stay exceeds a limit; nothing may be sent (SPEC D8).
        """
        limits = None if limits is None else checked_limits(limits)
        # An answer that was kept back: the turn goes on, and its request's receipt goes with it.
        _check_answered(await self._record(), "a window is asked for")
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
        same commit that settles the turn: until then an exception would abandon it in any case. One whose commit fails
        may be given again; where the turn fails instead, it stands under the turn's mark.

        Raises:
            InvalidMessage: no response of this wire format; nothing was recorded.
            PairingViolation: calls of the response before it wait for their results.
        """
        hold = self._held()
        draft = self._wire.response(body)
        hold.generated = True
        calls = self._wire.calls(draft.payload[draft.start : draft.stop]) if draft.calls else ()
        said: tuple[Draft, ...] = ()
        before, place = self._outdated(), self._line.place((draft,))
        try:
            await place.first()
            await self._resolve(hold)  # so that what is recorded by now is not taken
            self._forget_repeatable(before, draft)
            said, self._said = self._said, ()
            if calls:
                return await self._recorded(place, lambda header: self._handed_out(calls, header), draft, *said)
            await self._keep_back(place, draft, said)
        except BaseException as error:
            try:
                self._answer = _without(self._answer, (draft, *said))  # an interrupt may come behind that
                self._put_back(said)
                self._keep_lost(error, (draft,))
            finally:
                place.leave()
            raise
        return []

    def _put_back(self, said: tuple[Draft, ...]) -> None:
        """Have what was said wait for an answer again, before what was said since; some of it may wait already."""
        known = set(map(id, said))
        self._said = (*said, *[draft for draft in self._said if id(draft) not in known])

    def _handed_out(self, calls: tuple[tuple[Call, JSON], ...], header: Header) -> list[ToolCall]:
        """Return the calls of the newest response, which is recorded."""
        key, exchange = self._history.key, header.state.exchange
        return [tool_call(key, call, exchange, position) for position, call in enumerate(calls)]

    async def _keep_back(self, place: Place[tuple[Draft, ...]], answer: Draft, said: tuple[Draft, ...]) -> None:
        """Keep an answer without calls, and what was said before it, until the turn goes on or ends."""

        def keep(header: Header) -> Header:
            if all(waits.parked for waits in header.state.open):
                self._forget_lost((answer, *said))
                self._answer = (answer, *said)
            return header

        _check_answered(await self._recorded(place, keep), "the model answers")

    async def result(self, call: ToolCall, output: object, *, error: bool = False, raw: bool = False) -> None:
        """
        Record what answers a call, durable when this returns.

        `output` is what the tool gave, and data: a text, or any other JSON value. However much it looks like a message
        or a part of the wire format, the model gets it as this tool's output. With `raw=True` it is in the format's own
        form, written by you and not by a tool: the complete result of this call and nothing beside it, or a list of the
        parts that results may hold, such as texts and images. The same result again is a no-op.

        Raises:
            PairingViolation: the call does not wait for a result, another conversation made it, or its id or name is
                not what the response has, or not what the raw result has.
            InvalidMessage: with `raw`, something else than these two; without, a call of one of OpenAI's own tools.
        """
        call = checked_call(call, self._history.key, self._held().header)
        await self._record(result_draft(self._wire, call, output, error=error, raw=raw))

    async def say(self, message: object) -> None:
        """
        Record a further message inside the turn; while a call is open it is shown after the results (case O-08).

        One that comes between a window and its answer is recorded with the answer and stands behind it: the model has
        not seen it, and what it thought stays bound to what it did see. The next window shows it in any case. Until the
        answer is recorded it is in memory alone; a process that is killed in between takes it along with its attempt.
        """
        await self._record(self._wire.injection(message))

    @property
    def _under_way(self) -> bool:
        """Whether a window was sent that has no answer yet."""
        return self._entered().sent is not None and not self._answer

    async def park(self, call: ToolCall) -> None:
        """
        Let the exchange of `call` wait while the conversation goes on, for an approval or a slow tool.

        It is in no window until `Conversation.complete` has brought its results.
        """
        call = checked_call(call, self._history.key, self._held().header)
        await self._record(parks=(call.exchange,))

    async def _record(self, *drafts: Draft, parks: tuple[int, ...] = ()) -> Header:
        """Commit what `_recorded` does, and return the header as it is then."""
        place = self._line.place(drafts)
        try:
            return await self._recorded(place, _as_it_is, *drafts, parks=parks)
        except BaseException:
            place.leave()
            raise

    async def _recorded(
        self,
        place: Place[tuple[Draft, ...]],
        then: Callable[[Header], T],
        *drafts: Draft,
        parks: tuple[int, ...] = (),
    ) -> T:
        """
        Commit an answer that was kept back and what comes after it, and return what `then` makes of the header.

        Calls of other tasks or threads that came before stand before it; see `Line`.

        Nothing to write is nothing written. Nor is what an earlier commit wrote whose caller never heard of it, and
        gives the same again: then what was said while a request is under way goes on waiting for its answer. What
        strikes behind the commit, until `then` is done, leaves that in doubt as well. Where it fails its caller leaves
        the place, behind whatever that has to put back.
        """
        hold, left = self._held(), drafts
        known: _Doubt | None = None
        try:
            await place.first()
            self._held()  # still: the block may have been left meanwhile
            await self._resolve(hold)
            if (known := self._written_before(drafts)) is not None:
                result = self._known_again(known, drafts, then(hold.header))
            else:
                left = self._unwritten(drafts)
                waits = bool(left) and left[0].kind is INJECTION and self._under_way
                if (left and not waits) or parks or (not drafts and (self._answer or self._said)):
                    return await self._commit(hold, place, then, left, parks)
                self._said = (*self._said, *left)
                result = then(hold.header)
            place.leave()
            return result  # noqa: TRY300 - what strikes here is for the handler too
        except BaseException as error:
            # An interrupt may come behind what was done: its caller gives that again.
            self._said = _without(self._said, left)
            if known is not None and known not in self._repeatable:
                self._repeatable = (*self._repeatable, known)
            self._keep_lost(error, left)
            raise

    async def _commit(
        self,
        hold: Hold,
        place: Place[tuple[Draft, ...]],
        then: Callable[[Header], T],
        drafts: tuple[Draft, ...],
        parks: tuple[int, ...],
    ) -> T:
        # What was said under a request stands behind its answer, whatever of other exchanges comes in before that.
        waits = self._under_way and bool(drafts or parks)
        answer, said = self._answer, () if waits else self._said
        kept = (*answer, *said)
        doubt = _Doubt(self._history.fresh_id(), kept, drafts)
        # Taken before the next await: of two commits under way together only one records it.
        self._answer, self._said = (), _without(self._said, said)
        try:
            self._forget_lost((*kept, *drafts))
            self.receipt = (await hold.commit((*kept, *drafts), parks=parks, idempotency=doubt.idempotency)).receipt
            self._results.update(_result_places(drafts))
            result = then(hold.header)
            place.leave()
            return result  # noqa: TRY300 - what strikes here is for the handler too
        except BaseException as error:
            # What the caller catches must not cost the model's answer, nor what was said.
            doubts = (*self._doubts, doubt) if may_be_written(error) else self._doubts
            self._answer, self._said, self._doubts = (*answer, *self._answer), (*said, *self._said), doubts
            raise

    def _keep_lost(self, error: BaseException, drafts: tuple[Draft, ...]) -> None:
        """Keep what an `error` kept from being recorded, unless that says that it was refused."""
        if isinstance(error, StorageError) or not isinstance(error, MinutebookError):
            self._lost = (*self._lost, *[draft for draft in drafts if draft not in self._lost])

    def _forget_lost(self, drafts: tuple[Draft, ...]) -> None:
        """Let go of what came again."""
        self._lost = tuple([draft for draft in self._lost if draft not in drafts])

    def _written_before(self, drafts: tuple[Draft, ...]) -> _Doubt | None:
        """Return the commit of these drafts that was written all the same, if their caller gives them again."""
        return next((each for each in self._repeatable if each.drafts[:1] == drafts[:1]), None)

    def _known_again(self, known: _Doubt, drafts: tuple[Draft, ...], result: T) -> T:
        """Return the result of what is recorded and comes again; what was said since is kept for the next commit."""
        self._forget_lost(known.drafts)  # of its repeats some may have failed before they found out
        said = (*_without(drafts[1:], known.drafts), *self._said)
        others = tuple([each for each in self._repeatable if each is not known])
        self._said, self._repeatable = said, others  # in one step: struck between the two it would be there twice
        return result

    def _unwritten(self, drafts: tuple[Draft, ...]) -> tuple[Draft, ...]:
        """Return `drafts`, or nothing where all are results that are recorded: a call has one, which may come again."""
        places = _result_places(drafts)
        return () if places and places <= self._results else drafts

    def _outdated(self) -> tuple[_Doubt, ...]:
        """Return the doubtful commits that are known to be written as an answer comes, and that nobody gives again."""
        given = [drafts[0] for drafts in self._line.given if drafts]
        return tuple([each for each in self._repeatable if each.drafts[0] not in given])

    def _forget_repeatable(self, before: tuple[_Doubt, ...], answer: Draft) -> None:
        """
        Have what was in doubt, and known to be written `before` an answer came, be new if it comes again behind that.

        Up to then who gives it again cannot know that it is there, and behind an answer may mean it to be there twice.
        """
        if answer not in self._lost and self._written_before((answer,)) is None:
            self._repeatable = tuple([each for each in self._repeatable if all(each is not old for old in before)])

    async def _resolve(self, hold: Hold) -> None:
        """See how doubtful commits ended: what they wrote is not written again, and the turn goes on from there."""
        while self._doubts:
            doubt = self._doubts[0]
            written = await hold.look_for(doubt.idempotency)
            if not self._doubts or self._doubts[0] is not doubt:
                continue  # somebody else saw it meanwhile
            if written is not None:
                self.receipt = written
                self._answer = _without(self._answer, doubt.kept)
                self._said = _without(self._said, (*doubt.kept, *doubt.drafts))
                self._forget_lost(doubt.drafts)
                if doubt.drafts and doubt not in self._repeatable:
                    self._repeatable = (*self._repeatable, doubt)
                self._results.update(_result_places(doubt.drafts))
            self._doubts = self._doubts[1:]  # not before: what strikes above leaves it in doubt

    def _held(self) -> Hold:
        hold = self._entered()
        if self._left or not hold.held:
            raise InvalidOption("the turn is over; begin another one", option="turn")
        return hold

    def _entered(self) -> Hold:
        if self._hold is None:
            raise InvalidOption(
                "the turn is not entered; it is a `with` block (under an event loop, `async with`)", option="turn"
            )
        return self._hold


def _as_it_is(header: Header) -> Header:
    return header


def _without(drafts: tuple[Draft, ...], others: tuple[Draft, ...]) -> tuple[Draft, ...]:
    """Return `drafts` without those very ones, however alike others are."""
    return tuple([draft for draft in drafts if all(draft is not other for other in others)])


def _result_places(drafts: tuple[Draft, ...]) -> set[tuple[int, int, bytes]]:
    """Return of each result which call it answers and the digest of what it says."""
    return {(draft.exchange, draft.call, payload_digest(draft.payload)) for draft in drafts if draft.kind is RESULT}


def checked_call(call: object, key: ConversationKey, header: Header | None) -> ToolCall:
    """
    Return `call` if it was made in this conversation and, while it waits, is what its response has at its place.

    A `ToolCall` can be made by hand, as from a table of approvals. Under another id its result would stand in every
    window beside a call that it does not answer (promise I-22).

    Raises:
        InvalidOption: it is no `ToolCall`, or one of other types.
        PairingViolation: another conversation made it, or the response has another call at its place.
    """
    if type(call) is not ToolCall:
        raise InvalidOption(f"a call is what `respond` returned, not {type(call).__name__}", option="call")
    if not _has_own_types(call):
        raise InvalidOption("a field of this call has another type than those that `respond` returns", option="call")
    if call.conversation != key:
        raise PairingViolation("the call was made in another conversation", exchange=call.exchange)
    for waits in header.state.open if header else ():
        at = call.position
        if waits.exchange == call.exchange and 0 <= at < len(waits.calls) and waits.calls[at] != _named(call):
            raise PairingViolation(
                f"call {at} of the response at seq {call.exchange} has another id or name; take the calls that "
                "`respond` or `open_calls` returns",
                exchange=call.exchange,
            )
    return call


def _has_own_types(call: ToolCall) -> bool:
    kinds = (type(call.exchange), type(call.position), type(call.id), type(call.name), type(call.custom))
    return kinds == (int, int, str, str, bool)


def _named(call: ToolCall) -> Call:
    return Call(call.id, call.name, call.custom)


def result_draft(wire: Wire, call: ToolCall, output: object, *, error: bool, raw: bool) -> Draft:
    """
    Return the draft of what answers a call, in its own exchange.

    Raises:
        InvalidValue: the output is nothing that JSON can hold.
        InvalidOption: `error` or `raw` is no bool.
    """
    made = wire.ready_result if check_flag(raw, "raw") else wire.result
    draft = made(call.position, _named(call), output, error=check_flag(error, "error"))
    return msgspec.structs.replace(draft, exchange=call.exchange)


def tool_call(key: ConversationKey, call: tuple[Call, JSON], exchange: int, position: int) -> ToolCall:
    """Return a call of a response as it is handed out."""
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
                f"{what} while {len(waits.waiting)} call(s) wait for their results; give them, or park them (or is an "
                "`await` missing?)",
                exchange=waits.exchange,
            )
