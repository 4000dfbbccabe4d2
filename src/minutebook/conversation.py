"""
Face C: bring your own loop.

For people who call a provider's SDK themselves and keep a list. A turn records the input before the request is made,
gives the window to send, takes the raw response and the results of tools, and settles; whatever goes wrong in between,
the next turn finds a history that every provider accepts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from minutebook.errors import DecisionHistoryConflict, DecisionHistoryCorrupt, ImportRefused, PairingViolation
from minutebook.history import History
from minutebook.model.bounds import WindowLimits, check_flag, check_retained, checked_limits
from minutebook.model.entries import Draft
from minutebook.model.events import check_observer
from minutebook.model.keys import check_given_id
from minutebook.model.summaries import SUMMARY_BYTES
from minutebook.policy.binding import check_reasoning
from minutebook.policy.compaction import summarising
from minutebook.ports import ONE_ENTRY
from minutebook.providers.wire import wire_format
from minutebook.reading import Reading
from minutebook.record_reader import RecordReader
from minutebook.stores.journal import checked_store
from minutebook.turn import ToolCall, Turn, checked_call, result_draft, tool_call

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    from minutebook.model.record import Header, Receipt
    from minutebook.model.transfer import Imported
    from minutebook.ports import Observer, Summarize
    from minutebook.stores.journal import JournalStore
    from minutebook.stores.transfer import Progress
    from minutebook.windows import Window

LOW_WATER = 0.65
"""How far a conversation's window is cut when a limit bites, if its limits do not say otherwise (SPEC C4)."""


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
        InvalidOption: an unknown format, a store without a namespace, or a retention below a window
            that is not the default one.
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
        self.store = checked_store(store)
        self.key = store.key(id)
        self._wire = wire_format(format)
        limits = checked_limits(limits)
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

        `message` is a text, a wire message or a list of them; without one the turn goes on from what is recorded and
        has no answer yet.
        A turn that failed and comes again with the same message goes on from the recorded input: it is there once. An
        `id` makes that explicit, where a message may be delivered twice: entering the turn raises
        `DecisionHistoryConflict` for another message of the same id, and for a turn that is over, whose `problem` is
        "answered", or "superseded" where another message came before its answer.
        """
        drafts = () if message is None else (self._wire.input(message),)
        return Turn(self.history, drafts, check_given_id(id, "turn id"))

    async def append(self, messages: Sequence[object], *, id: str = "", whole: bool = False) -> Receipt | None:  # noqa: A002
        """
        Record a ready transcript of wire messages in one durable write: all of it or nothing.

        System and developer messages at its head are retained and stand in no window: send your own with each request.
        Thinking that Anthropic's API binds to what stood before it goes back until windows are cut. In a transcript of
        which an earlier part is left out, or that had other instructions, the API takes it for foreign: leave it out.

        With an `id` the same transcript may come again and is recorded once. With `whole` the messages are the whole
        conversation so far, as a client that keeps its own list sends it: what is recorded already is passed over, and
        the results of one exchange may stand in any order.

        Raises:
            DecisionHistoryBusy: another worker holds the conversation.
            DecisionHistoryConflict: the id stands for another transcript, or a whole one contradicts the record.
            PairingViolation: a result without its call, or a call without its result before the next answer. Where the
                transcript ends while a call waits, also behind what a user said meanwhile, it is recorded:
                `open_calls` has the call, and `complete` takes its result.
        """
        idempotency = check_given_id(id, "append id")
        drafts: Sequence[Draft] = self._wire.transcript(messages)
        if check_flag(whole, "whole"):
            return await self._append_whole(drafts, idempotency)
        if not drafts:
            return None
        committed = await self.history.append(drafts, idempotency=idempotency)
        return committed.receipt if committed else None

    async def _append_whole(self, drafts: Sequence[Draft], idempotency: str) -> Receipt | None:
        """Compare and record under one reservation, so that two clients with the same list record it once."""
        from minutebook.continuation import Continuation  # loaded by those who keep a list of their own

        async with await self.history.open(attempt=False) as hold:
            continuation = Continuation(self._wire, drafts)
            async for entry in self.entries():
                continuation.take(entry)
            drafts = continuation.left()
            committed = await hold.conclude(drafts, idempotency=idempotency if drafts else "")
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
            found.extend(tool_call(self.key, calls[p], waiting.exchange, p) for p in waiting.waiting)
        return tuple(found)

    async def complete(
        self, call: ToolCall, output: object, *, error: bool = False, raw: bool = False
    ) -> Receipt | None:
        """
        Record the late result of a parked call; its exchange is complete, and in windows again, once all have come.

        `output`, `error` and `raw` are those of `Turn.result`. The same result again is a no-op.

        Raises:
            PairingViolation: the call does not wait for a result, since its turn was abandoned, say; or another
                conversation made it, or its id or name is not what the response has.
            DecisionHistoryConflict: another result stands already.
        """
        header = await self.history.header()
        call = checked_call(call, self.key, header)
        draft = result_draft(self._wire, call, output, error=error, raw=raw)
        try:
            committed = await self.history.append((draft,), idempotency=await self._result_id(call))
        except DecisionHistoryConflict as conflict:
            if conflict.first is None:
                raise
            told = "another result of this call stands already, and no result is replaced; give that one or none"
            raise DecisionHistoryConflict(told, **conflict.facts) from None
        except PairingViolation as refused:
            if header is None or not await self._was_abandoned(call.exchange, header):
                raise
            told = (
                "the turn that made this call was abandoned, and the call with it, parked or not: no window shows it, "
                "so tell the model of the result in a message"
            )
            raise PairingViolation(told, **refused.facts) from None
        return committed.receipt if committed else None

    async def _was_abandoned(self, exchange: int, header: Header) -> bool:
        """Return whether a mark took out an exchange; costs what its turn recorded behind it."""
        reader = RecordReader(self.store.journal, self.key)
        return exchange > header.cut.seq and await reader.is_taken_out(exchange, exchange, header)

    async def _result_id(self, call: ToolCall) -> str:
        """Return the idempotency id of a late result; its response's digest makes it one that no caller chooses."""
        page = await self.store.journal.oldest(self.key, call.exchange - 1, ONE_ENTRY)
        digest = page[0].digest.hex() if page else ""
        return f"result-{call.exchange}-{call.position}-{digest}"

    async def drop_summary(self) -> bool:
        """
        Have windows show no summary any more; see `JournalStore.drop_summary`.

        Raises:
            DecisionHistoryConflict: also, where it was recorded in another wire format.
        """
        await self.history.header()
        return await self.store.drop_summary(self.key)

    async def window(self, limits: WindowLimits | None = None) -> Window:
        """
        Return the window as the next turn would see it; reserves and writes nothing.

        Raises:
            DecisionHistoryLimitExceeded: what must stay exceeds a limit (SPEC D8).
            DecisionHistoryAbsent: the conversation was deleted or has expired meanwhile.
        """
        limits = None if limits is None else checked_limits(limits)
        return await self.history.window(limits, self._one_record())

    async def export(self, path: str | PathLike[str], *, force: bool = False, progress: Progress | None = None) -> int:
        """
        Write the conversation to a private file and return how many entries it holds; see `JournalStore.export`.

        Raises:
            DecisionHistoryConflict: also, where it was recorded in another wire format: this one could not import it.
        """
        await self.history.header()
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
        from minutebook.providers.derivation import derived_entries, is_imported

        name = format.partition("/")[0]
        if name == self._wire.name:
            return derived_entries(format, drafts)
        if not is_imported(format):
            return None  # any text, which a file that somebody else wrote may have there: it is not quoted
        raise ImportRefused(
            f"line 1: the file is of the format {name}, and this conversation of {self._wire.name}",
            problem="unlawful",
            good_records=0,
            line=1,
        )
