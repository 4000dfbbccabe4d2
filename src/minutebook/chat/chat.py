"""
A chat's story over a history: who said what, what is sent of it, and what is recorded of it when.

Each message is one turn. Its input is recorded before anything is asked, the runtime's loop decides and calls, and one
last commit brings the answer, with a summary if one was made, and gives the reservation back. So whatever fails in
between, an abandoned turn is all that is left, and the history is what it was; the same words again go on behind what
the turn's tools have done (`attempts.py`). Which messages leave a history stands in `policy/shortening.py`, and what a
summary makes of it in `view.py`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from minutebook.chat.attempts import NOTHING_SEEN, Executed, read_attempts
from minutebook.chat.provider import ChatProvider, tell_executed, unfinished
from minutebook.chat.reading import ChatReading
from minutebook.chat.repeats import answer_id, ended_turn, recorded, recorded_answer
from minutebook.chat.requests import fitted_request, refuse_context
from minutebook.chat.view import NO_SUMMARY, Renewed, View, renewed_view
from minutebook.errors import DecisionHistoryConflict, MinutebookError
from minutebook.fitting import ROUNDS
from minutebook.history import opening_id
from minutebook.model import codec
from minutebook.model.chat_events import (
    ChatEvent,
    ChatHistoryTrimmed,
    MessageAdded,
    SummarizationFailed,
)
from minutebook.model.emitting import emit
from minutebook.model.entries import INPUT, INSTRUCTIONS, SUMMARY, Draft, Entry, payload_digest
from minutebook.model.law import extend
from minutebook.model.record import Delta, Header
from minutebook.model.summaries import (
    Covered,
    Summary,
    chat_opening,
    drawn_fence,
    summary_draft,
)
from minutebook.policy.shortening import (
    INSTRUCTING,
    Said,
    asked_with,
    has_grown,
    kept_places,
    kept_whole,
    said_in,
    shortened,
)
from minutebook.programs import Runtime, fresh_id
from minutebook.providers.chat import CHAT_WIRE, fenced_context
from minutebook.record_reader import RecordReader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from minutebook.chat.options import Settings
    from minutebook.history import Hold
    from minutebook.model.bounds import WindowLimits
    from minutebook.model.chat_messages import ConversationMessage
    from minutebook.providers.sdk_http import SdkPost
    from minutebook.runtime import Program
    from minutebook.stores.journal import JournalStore
    from minutebook.windows import Window


class Chat(ChatReading):
    """One agent's conversation in a store."""

    def __init__(
        self,
        store: JournalStore,
        id: str,  # noqa: A002 - the field's standard word
        settings: Settings,
        program: Program[str],
        post: SdkPost,
    ) -> None:
        """Name the conversation; nothing is read or written yet."""
        super().__init__(store, id, settings, post)
        self._program = program
        self._failed = (0, b"")
        """The message at which no summary could be made, by its place and the digest of the record up to it."""
        self._failed_turns = 0
        """How many turns there were then, its own included."""
        self._seen = NOTHING_SEEN
        """What is known of the attempts at a message that came to nothing."""
        self._renewal: tuple[View, int, Renewed | None] = (View(), 0, None)
        """What was made of which history, to keep how much whole: it was paid for, and the turn may fail."""

    # --- changing the history ----------------------------------------------------------------------------------------

    async def add(self, message: ConversationMessage, id: str) -> list[ChatEvent]:  # noqa: A002 - the field's word
        """Record one checked message behind the others, once under an id, and return what is to be told."""
        draft = CHAT_WIRE.recorded(message)
        given = payload_digest(draft.payload) if id else b""
        if id and await recorded(self.history, self.history.delta((), id, given=given)):
            return []
        async with await self.history.open(attempt=False) as hold:
            view = await self._view(hold.header)
            drafts = [draft]
            opening = view.opening
            if message["role"] in INSTRUCTING:
                places = kept_places(view.kept, [_next_seq(hold.header)], self.settings.max_history_messages)
                opening = chat_opening(view.summary, view.covered, opening.start if opening else 0, places)
                drafts.append(summary_draft(opening))
            said = await self._commit(hold, drafts, id, given)
        role = str(message["role"])
        return [MessageAdded(role=role, agent=self.settings.name), *self._grown(hold.header, view.said, said, opening)]

    async def begin_anew(
        self, messages: Sequence[ConversationMessage], summary: str | None
    ) -> tuple[int, list[ChatHistoryTrimmed]]:
        """
        Record a new start with these messages behind it and a summary before it; all of it or nothing.

        A message that was not answered stands before the start, whatever its tools did: the same words are another one.
        Returns how long the history was, and what is to be told of the messages that it has no room for.
        """
        async with await self.history.open(attempt=False) as hold:
            view = await self._view(hold.header)
            first, start = _next_seq(hold.header), hold.header.entries
            drafts = [CHAT_WIRE.recorded(message) for message in messages]
            instructing = [first + n for n, message in enumerate(messages) if message["role"] in INSTRUCTING]
            places = kept_places((), instructing, self.settings.max_history_messages)
            opening: Summary | None = None
            if start or summary or places:
                opening = chat_opening(summary, Covered(last=start), start, places)
                drafts.append(summary_draft(opening))
            said = await self._commit(hold, drafts, supersedes=True)
        return len(view.said), self._grown(hold.header, (), said, opening)

    async def set_summary(self, text: str | None) -> None:
        """Have another summary stand before the same messages, or none."""
        async with await self.history.open(attempt=False) as hold:
            view = await self._view(hold.header)
            start = view.opening.start if view.opening else 0
            opening = chat_opening(text, view.covered, start, view.kept)
            if text or view.opening:
                await self._commit(hold, [summary_draft(opening)])
                self._grown(hold.header, view.said, (), opening)
            else:
                await hold.commit((), release=True)

    async def summarise(self, keep: int) -> tuple[str | None, list[ChatEvent]]:
        """Have a summary stand for all but the newest messages; return the one that stands now, and what is told."""
        async with await self.history.open(attempt=False) as hold:
            view = await self._view(hold.header)
            try:
                renewed = await self._renewed(view, keep)
            except NO_SUMMARY as error:
                await hold.commit((), release=True)
                return view.summary, [SummarizationFailed(error_code=error.code, removed_count=0)]
            if renewed is None:
                await hold.commit((), release=True)
                return view.summary, []
            await self._commit(hold, [summary_draft(renewed.opening)])
        self._grown(hold.header, renewed.said, (), renewed.opening)
        return renewed.opening.text, [renewed.event]

    async def _commit(
        self,
        hold: Hold,
        drafts: list[Draft],
        id: str = "",  # noqa: A002
        given: bytes = b"",
        *,
        supersedes: bool = False,
    ) -> tuple[Said, ...]:
        """Record drafts and give the reservation back; return the messages among them."""
        if not hold.header.entries and drafts and drafts[0].kind is SUMMARY:
            # An opening stands behind something. The prompt is in no window and in no history; an operator sees it.
            prompt = codec.encode({"role": "system", "content": self.settings.prompt})
            drafts = [Draft(kind=INSTRUCTIONS, payload=prompt), *drafts]
        committed = await hold.conclude(drafts, supersedes=supersedes, idempotency=id, given=given)
        return tuple(said for each in committed.written if (said := said_in(each)) is not None)

    def _grown(
        self, header: Header, before: tuple[Said, ...], added: tuple[Said, ...], opening: Summary | None
    ) -> list[ChatHistoryTrimmed]:
        """Remember the history as it is now, and return what is to be told of messages that it has no room for."""
        now = shortened([*before, *added], self.settings.max_history_messages)
        self._known = View(digest=header.digest, said=now, opening=opening)
        removed = len(before) + len(added) - len(now)
        return [ChatHistoryTrimmed(removed_count=removed, current_length=len(now))] if removed else []

    # --- saying something --------------------------------------------------------------------------------------------

    async def say(
        self,
        message: ConversationMessage,
        context: str | None,
        *,
        id: str = "",  # noqa: A002
        streamed: bool = False,
    ) -> tuple[str, list[ChatEvent]]:
        """
        Return what the agent answers, once both messages are in the history, and what is to be told.

        Under an `id` that is answered already the recorded answer comes back: nothing is asked, called or told.

        Raises:
            AgentDecisionProviderUnavailable, AgentDecisionProviderSchemaViolation: the history is as it was.
            AgentBudgetExhausted: the tools' loop came to no answer; the history is as it was.
            DecisionHistoryLimitExceeded: what must be sent has no room in a request; the history is as it was.
            DecisionHistoryBusy: another chat of this conversation is under way.
        """
        draft = CHAT_WIRE.input(message)
        # One fence for all requests of the message, so that they begin alike.
        context = None if context is None else fenced_context(context, drawn_fence(self.store.fresh_id()))
        if not self.settings.auto_manage_history:
            return await self._say_aside(draft, context, streamed=streamed), []
        superseded: list[str] = []
        opened: Hold | str | None = await recorded_answer(self.history, id, draft)
        if opened is None:
            if context is not None:
                refuse_context(context, self.settings.request_limits)
            opened = await self._opened(draft, id, superseded)
        if isinstance(opened, str):
            if streamed:
                await emit(opened)
            return opened, []
        async with opened as hold:
            return await self._answered(hold, context, answer_id(id), superseded, streamed=streamed)

    async def _answered(
        self, hold: Hold, context: str | None, idempotency: str, superseded: list[str], *, streamed: bool
    ) -> tuple[str, list[ChatEvent]]:
        """Return the answer to the message whose turn is held, recorded under an id, and what is to be told."""
        entry = await self._input(hold)
        asking = Said("user", entry)
        view = await self._view(hold.header, entry)
        renewed, failed = await self._renewed_or_failed(hold, view, asking, context)
        said, opening = (renewed.said, renewed.opening) if renewed else (view.said, view.opening)
        asked = asked_with(said, asking, self.settings.max_history_messages)
        executed = await self._executed_before(hold, superseded)
        staged = (*executed.drafts, summary_draft(renewed.opening)) if renewed else executed.drafts
        provider = ChatProvider(self._server, hold, asked, staged, context, streamed=streamed)
        try:
            answer = await self._run(provider, executed)
        finally:
            hold.unrecorded = provider.left()
        committed = await hold.conclude(provider.staged, settles=True, idempotency=idempotency)
        answering = [each for each in map(said_in, committed.written) if each is not None][-1]
        trimmed = self._grown(hold.header, said, (asking, answering), opening)
        told: list[ChatEvent] = [renewed.event] if renewed else []
        if failed:
            removed = sum(each.removed_count for each in trimmed)
            told.append(SummarizationFailed(error_code=failed, removed_count=removed))
        told += [MessageAdded(role=role, agent=self.settings.name) for role in ("user", "assistant")]
        return answer, [*told, *trimmed]

    async def _opened(self, draft: Draft, id: str, superseded: list[str]) -> Hold | str:  # noqa: A002
        """
        Return a turn for the message, or what it was answered by now.

        One that others superseded begins anew; `superseded` is given the ids of those turns, oldest first.
        """
        try:
            return await self.history.open_anew((draft,), idempotency=id, superseded=superseded)
        except DecisionHistoryConflict as error:
            opening = opening_id(id, len(superseded))
            ended = await ended_turn(self.store, self.history, opening) if error.problem else None
            if ended is None or ended.answer is None:
                raise
            return ended.answer

    async def _say_aside(self, draft: Draft, context: str | None, *, streamed: bool) -> str:
        """Return an answer to the history as it stands and a message that does not enter it; nothing is written."""
        header = await self.history.header()
        view = View() if header is None else await self._view(header)
        standing = self._standing(header)
        entry = extend(standing.header, Delta(drafts=(draft,), idempotency=""), standing.header.touched).entries[-1]
        asked = (*view.said, Said("user", entry))
        return await self._run(
            ChatProvider(self._server, standing, asked, (draft,), context, streamed=streamed), Executed()
        )

    async def _input(self, hold: Hold) -> Entry:
        """Return the entry of the message that is being answered; a retry goes on from the one of before."""
        newest, turn = hold.tail.entries[:1], hold.header.state.turn
        if newest and newest[0].seq == turn and newest[0].kind is INPUT:
            return newest[0]
        return await self._entry(hold.header, turn)

    async def _renewed_or_failed(
        self, hold: Hold, view: View, asking: Said, context: str | None
    ) -> tuple[Renewed | None, str]:
        """Return what `_renewed_if_long` does, and the code of the error where no summary could be made."""
        try:
            return await self._renewed_if_long(hold, view, asking, context), ""
        except NO_SUMMARY as error:
            self._failed = (asking.entry.seq, asking.entry.digest)
            self._failed_turns = hold.header.state.turns
            return None, error.code

    async def _renewed_if_long(self, hold: Hold, view: View, newest: Said, context: str | None) -> Renewed | None:
        """
        Return the history with a summary, if one is due.

        That is once messages would leave the history or the request, or once the history is estimated too long and has
        grown since the last summary. Where none could be made, the next one is due no sooner than the history has
        grown by as much: a summariser that fails is not asked at every message (case O-21).

        Raises:
            ProviderError, DecisionHistorySummaryInvalid: there is none.
            DecisionHistoryLimitExceeded: nor is one that has no room beside the newest message and what must stay.
        """
        settings = self.settings
        if not settings.enable_summarization:
            return None

        staged: list[Draft] = []

        async def windowed(limits: WindowLimits, floor: int) -> Window:
            return await hold.window(limits, staged, floor=floor, asks=False)

        fitted = await fitted_request((*view.said, newest), settings.request_limits, windowed)
        held = sum(each.seq >= fitted.opening for each in (*view.said, newest) if not each.instructs)
        keep = kept_whole(view.said, settings.max_history_messages, None if fitted.whole else held)
        if await self._failed_lately(hold.header, view, keep):
            return None
        if fitted.whole and len(view.said) + 2 <= settings.max_history_messages:
            start = view.opening.start if view.opening else 0
            long = self._server.estimated(fitted.json, leaving_out=1) > settings.summarization_threshold
            if not long or (view.summary and not has_grown(view.said, start, keep)):
                return None
        renewed = await self._renewed(view, keep, most_requests=ROUNDS)
        if renewed is not None:
            staged.append(summary_draft(renewed.opening))
            asked = asked_with(renewed.said, newest, settings.max_history_messages)
            await fitted_request(asked, settings.request_limits, windowed, context)
        return renewed

    async def _failed_lately(self, header: Header, view: View, keep: int) -> bool:
        """
        Return whether no summary could be made of this record, and too few messages have come since.

        Where the history has no room for as many, its turns tell. A record that was deleted and begun anew is another.
        """
        (failed, digest), turns = self._failed, header.state.turns - self._failed_turns
        came = max(sum(each.seq > failed for each in view.said), 2 * turns - 1)
        if not 0 < failed <= header.entries or came >= max(keep, 2):
            return False
        return (await self._entry(header, failed)).digest == digest

    async def _renewed(self, view: View, keep: int, *, most_requests: int = sys.maxsize) -> Renewed | None:
        """
        Return `renewed_view`, which is not asked for anew where nothing came of what it made of the same history.

        One that told less, for it was given few requests, is none where there may be more (SPEC A7).
        """
        made_of, kept, renewed = self._renewal
        same = (made_of.said, made_of.opening, kept) == (view.said, view.opening, keep)
        if renewed is None or not same or not (renewed.whole or most_requests == ROUNDS):
            renewed = await renewed_view(self._server, view, keep, most_requests=most_requests)
            self._renewal = (view, keep, renewed)
        return renewed

    async def _executed_before(self, hold: Hold, superseded: list[str]) -> Executed:
        """
        Return what attempts at the message have executed, with which this one begins.

        Also in turns of its id that others superseded (promise I-44). An agent without tools can repeat none, and asks
        anew.
        """
        if not self._program.capabilities:
            return Executed()
        reader = RecordReader(self.store.journal, self.key)
        attempts = await read_attempts(reader, hold.header, self._seen)
        self._seen, executed = attempts.seen, attempts.executed()
        for opening in reversed(superseded):
            turn = None if executed.drafts else await ended_turn(self.store, self.history, opening)
            if turn is not None:
                attempts = await read_attempts(reader, turn.within(hold.header), NOTHING_SEEN, attempts.too_large)
                executed = attempts.executed()
        return executed

    async def _run(self, provider: ChatProvider, executed: Executed) -> str:
        # What the model is asked stands in the history: this provider passes no task on.
        running = Runtime(self._program, provider, checkpoints=False).run(
            "answer the newest message",
            run_id=fresh_id(),
            invocation_id=fresh_id(),
            observations=executed.observations,
            on_observation=provider.observe,
        )
        try:
            outcome = await running
            if outcome.kind == "finished":
                return provider.answer
            raise unfinished(outcome)
        except MinutebookError as error:
            tell_executed(error, provider.executed, kept=self.settings.auto_manage_history)
            raise


def _next_seq(header: Header) -> int:
    """Return where the next message will stand: an input that nothing answered is superseded first, by a mark."""
    return header.entries + 1 + (header.state.unanswered is not None)
