"""
One message to an agent on its way to the answer: the requests that are made for it, and what is recorded between them.

The runtime's loop asks for decisions and carries out the calls; a `ChatProvider` is who decides. It knows the turn that
is being answered and where its window begins, and nothing of histories and summaries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from minutebook.chat.requests import fitted_request
from minutebook.chat.results import CHAT_INTERFACE
from minutebook.errors import (
    AgentBudgetExhausted,
    AgentDecisionProviderSchemaViolation,
    AgentDecisionProviderUnavailable,
    MinutebookError,
)
from minutebook.history import Hold
from minutebook.model.decisions import CallReference, Decision, DecisionRequest, Finish, Observation
from minutebook.model.entries import RESPONSE, Draft
from minutebook.model.law import extend
from minutebook.model.record import Delta
from minutebook.providers.chat import read_answer
from minutebook.providers.decision import Diagnosis
from minutebook.providers.step import results, stopped
from minutebook.runtime.observations import was_executed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from minutebook.chat.requests import FittedRequest
    from minutebook.chat.server import Server
    from minutebook.history import Standing
    from minutebook.model.bounds import WindowLimits
    from minutebook.model.record import Header
    from minutebook.policy.shortening import Said
    from minutebook.runtime import Outcome
    from minutebook.windows import Window

_OLDER_LEAVES: Final = (
    "Call summarize_history() with a small keep_recent_count, or make the agent with smaller limits, such as "
    "limits=WindowLimits(max_bytes=...)"
)
_SAY_LESS: Final = "It holds nothing older than the newest message: say less, or have tools return less"


class ChatProvider:
    """
    One message to an agent on its way to the answer: who decides in the runtime's loop.

    Under a hold every answer that calls is durable before anything is called; of a record as it stood nothing is
    recorded, and what others do with it meanwhile is not seen.
    """

    def __init__(
        self,
        server: Server,
        record: Hold | Standing,
        said: Sequence[Said],
        staged: tuple[Draft, ...],
        context: str | None,
        *,
        streamed: bool = False,
    ) -> None:
        self._server = server
        self._stands = record
        self._hold = record if isinstance(record, Hold) else None
        self._said = said
        self._context = context
        self._streamed = streamed
        self._staged = staged
        self._given = len(staged)
        """How much of it was there before anything came in: what was carried on, and a summary."""
        self.answer = ""
        self._unusable: tuple[Draft, ...] = ()
        self.executed: dict[str, int] = {}
        """How often each tool was executed for it."""

    @property
    def staged(self) -> tuple[Draft, ...]:
        """What is to be recorded with the next commit."""
        return self._staged if self._hold is None else self._hold.unwritten(self._staged)

    async def decide(self, request: DecisionRequest) -> Decision:
        """Return the calls that the model wants, or its answer; see `DecisionProvider.decide`."""
        limits = self._server.settings.request_limits
        fitted = await fitted_request(self._said, limits, self._window, self._context)
        ask = self._server.ask(fitted.json, request)
        try:
            payload = await self._server.answer(ask, streamed=self._streamed)
        except AgentDecisionProviderUnavailable as error:
            raise self._advised(error, fitted) from None
        try:
            draft, said, billed = read_answer(payload)
            decision = CHAT_INTERFACE.read(request, draft) if draft.calls else None
        except AgentDecisionProviderSchemaViolation:
            self._unusable = (Draft(kind=RESPONSE, payload=payload),)
            raise
        self._server.bill(ask, billed)
        if self._hold is not None:
            self._hold.note_tokens(billed=billed)
        self._staged = (*self.staged, draft)
        if decision is None:
            self.answer = said
            return Decision(finish=Finish(output=said), billed_tokens=billed)
        return await self._called(decision)

    async def observe(self, observation: Observation) -> None:
        """
        Record what a call came to, durable before anything else is called or asked.

        Raises:
            DecisionHistoryError: it cannot be kept, so nothing more may be done.
        """
        if was_executed(observation):
            self.executed[observation.capability] = self.executed.get(observation.capability, 0) + 1
        self._staged = (*self.staged, *results(self._record().state.open, [observation], CHAT_INTERFACE))
        await self._keep()

    def left(self) -> tuple[Draft, ...]:
        """
        Return what came in and was not recorded: an operator, and a retry, find it under the failed turn's mark.

        With it goes that calls were never begun: else nobody could tell them from one that was under way.
        """
        waiting = self._record().state.open if self._hold is not None else ()
        never_begun = stopped(waiting, ())
        if not self.staged:  # calls begin one after the other, each behind a commit: the first one was under way
            never_begun = never_begun[1:]
        # What was given goes along with calls alone, which stand behind it: else each failure would record it again.
        staged = self.staged if waiting else self.staged[self._given :]
        return (*staged, *results(waiting, never_begun, CHAT_INTERFACE), *self._unusable)

    async def _keep(self) -> None:
        """Record what is staged, where anything is recorded."""
        if self._hold is not None:
            await self._hold.commit(self.staged)
            self._staged, self._given = (), 0

    async def _called(self, decision: Decision) -> Decision:
        await self._keep()
        exchange = self._record().state.exchange
        calls = tuple(
            msgspec.structs.replace(call, reference=CallReference(exchange, position))
            for position, call in enumerate(decision.calls)
        )
        return msgspec.structs.replace(decision, calls=calls, exchange=exchange)

    def _record(self) -> Header:
        """Return the conversation as it is once what is staged is recorded."""
        header, staged = self._stands.header, self.staged
        return extend(header, Delta(drafts=staged, idempotency=""), header.touched).header if staged else header

    async def _window(self, limits: WindowLimits, floor: int) -> Window:
        return await self._stands.window(limits, self.staged, floor=floor)

    def _advised(self, error: AgentDecisionProviderUnavailable, asked: FittedRequest) -> Exception:
        """Return the error, with what to do where the request was too large for the model: nothing leaves by itself."""
        if error.provider_error_code != Diagnosis.CONTEXT_LENGTH:
            return error
        way_out = _OLDER_LEAVES
        if asked.opening == self._said[-1].seq:
            way_out = _SAY_LESS
            if self._hold is not None:
                self._hold.too_large, way_out = True, f"{_SAY_LESS}; the same words again leave long results out"
        return AgentDecisionProviderUnavailable(
            f"{error}: a request with {len(asked.json):,} bytes of messages is more than the model takes, and the "
            f"history is as it was. {way_out}",
            **error.facts,
            bytes=len(asked.json),
        )


def tell_executed(error: MinutebookError, executed: Mapping[str, int], *, kept: bool) -> None:
    """Note on an error which tools were executed before it, and what the same words again do then."""
    if executed:
        names = ", ".join(name if count == 1 else f"{name} ({count} times)" for name, count in executed.items())
        again = "go on behind that; other words do not tell the model of it" if kept else "may execute them again"
        error.add_note(f"executed for this message: {names}; the same words again {again}")


def unfinished(outcome: Outcome[str]) -> Exception:
    """Return the error for a run that came to no answer."""
    if outcome.error is not None:
        return outcome.error
    return AgentBudgetExhausted(
        f"the budget of {outcome.budget} was used up after {outcome.decisions} requests and {outcome.calls} calls, and "
        "the model had not answered; raise it in budgets=, or ask for less",
        problem="exhausted",
        budget=outcome.budget,
    )
