"""
The steps of a decision provider: what joins an API, an interface and a way to post bytes to a history.

Each `decide` is one step: the task or the outcomes since the last decision go in, one request leaves, and its response
is recorded in the commit that ends the step. Whatever fails in between is marked and leaves the conversation as it was;
the same step can then be asked again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias
from urllib.parse import quote

import msgspec

from minutebook.errors import (
    AgentDecisionProviderSchemaViolation,
    AgentDecisionProviderUnavailable,
    CheckpointRefused,
    DecisionHistoryAbsent,
    DecisionHistoryNotReserved,
    InvalidOption,
    PairingViolation,
)
from minutebook.history import History, Hold, opening_id
from minutebook.model import codec
from minutebook.model.bounds import check_count, check_flag
from minutebook.model.context import ContextWindow, window_exceeded
from minutebook.model.decisions import Decision, DecisionRequest
from minutebook.model.entries import Draft, Kind, payload_digest
from minutebook.model.events import HistoryResumed, ReasoningWithheld
from minutebook.options import HistoryOptions, given_options, window_limits
from minutebook.policy.compaction import summarising
from minutebook.policy.tokens import TokenGuard
from minutebook.providers.counting import COUNTINGS, count_body, count_failed, counted_tokens
from minutebook.providers.decision import Ask, joined
from minutebook.providers.extra_body import extra_fields
from minutebook.providers.generator import Generator
from minutebook.providers.native import Native
from minutebook.providers.step import (
    answers,
    checked_request,
    merged,
    prelude,
    read,
    read_message,
    stopped,
    task_with_observations,
    withheld,
)
from minutebook.providers.streams import assembled
from minutebook.providers.structured import Structured
from minutebook.providers.wire import wire_format
from minutebook.received import check_same, holds, name_of, referenced

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from minutebook.model.codec import JSON
    from minutebook.model.keys import ConversationKey
    from minutebook.model.record import Header
    from minutebook.policy.binding import Reasoning
    from minutebook.providers.decision import Api, Interface
    from minutebook.stores.journal import JournalStore
    from minutebook.windows import Window


Prepared: TypeAlias = "tuple[Ask, dict[str, bytes], int | None]"
"""A request, the fields of its body, and their input tokens where they are counted."""


class Steps:
    """
    The steps of a provider: what joins an API, an interface and a way to post bytes to a history.

    Args:
        api: how requests and bodies look.
        model: the provider's name of the model, without the prefix of its lists; part of every conversation's identity.
        decision_interface: `native` (provider tool calling) or `structured` (typed JSON output).
        history: options, `None` for the defaults, or `False` for none.
        max_output_tokens: the provider's bound on what it generates.
        count: ask the provider's counting endpoint before each generation.
        context: hold each request to the model's window by that count; the oldest exchanges leave until it fits.
        extra_body: further top-level fields of each request.
        post: posts bytes to a path and returns the body of a 2xx response.
        generator: makes the response of a request instead of `post`.
        stream: have the answer streamed, and record what its events add up to.
        reasoning: what a window does with reasoning that a cut made stale; see `policy.binding`.

    Raises:
        InvalidOption: an option out of its range, or a field in `extra_body` that is not for the caller to set.
    """

    def __init__(
        self,
        api: Api,
        *,
        model: str,
        decision_interface: str,
        history: HistoryOptions | Literal[False] | None,
        max_output_tokens: int | None,
        count: bool,
        context: ContextWindow | None,
        extra_body: Mapping[str, JSON] | None,
        post: Callable[[str, bytes], Awaitable[bytes]],
        generator: Generator | None = None,
        stream: bool = False,
        reasoning: Reasoning = "keep",
        blocking: bool = False,
    ) -> None:
        self.api = api
        self.model = codec.text(model, "model").removeprefix(api.model_prefix)
        if not self.model.strip():
            raise InvalidOption("model names the provider's model", option="model")
        self.interface = _interface(api, decision_interface)
        self.max_output_tokens = max_output_tokens
        if max_output_tokens is not None:
            check_count(max_output_tokens, "max_output_tokens")
        elif api.needs_output_bound and generator is None:
            raise InvalidOption("this provider generates nothing without max_output_tokens", option="max_output_tokens")
        check_flag(count, "count")
        check_flag(stream, "stream")
        self.context = _checked_context(context, max_output_tokens)
        self.count = count or context is not None
        self.stream = api.stream if stream else None
        self.extra = extra_fields(api, {} if extra_body is None else extra_body, count=self.count)
        self.options = given_options(history)
        self.store = self.options.open_store(blocking=blocking) if self.options else None
        self._post = post
        self._generator = generator
        self._reasoning: Reasoning = reasoning

    def key(self, request: DecisionRequest) -> ConversationKey:
        """
        Return where the invocation's conversation is kept: run, invocation, agent, API, model and interface (SPEC D5).

        With `project` in the request it is another one, since a window of the one mode never shows the other's.

        Raises:
            InvalidOption: an id is missing or empty, or the provider keeps no history.
            InvalidId: the ids together exceed 512 bytes.
        """
        if self.store is None:
            raise InvalidOption("this provider keeps no history", option="history")
        ids = [request.run_id, request.invocation_id, request.agent_ref]
        for name, value in zip(("run_id", "invocation_id", "agent_ref"), ids, strict=True):
            if type(value) is not str or not value.strip():
                raise InvalidOption(
                    f"a history needs {name}, a text that is not blank; without history=False the host gives it",
                    option=name,
                )
        mode = [] if request.project is None else ["opaque_refs"]
        return self.store.key(codec.encode([*ids, self.api.name, self.model, self.interface.name, *mode]).decode())

    async def decide(self, request: DecisionRequest) -> Decision:
        """Return the next decision, recorded before it is returned; see `DecisionProvider.decide`."""
        request = checked_request(request)
        self._check_projected(request)
        if self.store is None:
            return await self._decide_without_history(request)
        history = self._history(self.store, request)
        header = await self._freed(history, request)
        anew = await self._begins_anew(history, header, request)
        if header is not None and not anew:
            await check_same(history, header, request)
        # First what is this task's own: none of that was executed, and whatever else is open then is an earlier one's.
        if (recorded := await self._undelivered(history, header, request, anew=anew)) is not None:
            return recorded
        header = await self._closed(history, header, request)
        async with await self._open(history, header, request, anew=anew) as hold:
            _check_unfinished(hold.header)
            staged = answers(hold.header.state.open, request.observations, self.interface)
            prepared: dict[bytes, Prepared] = {}
            guard = self._guard(request, prepared)
            window = await hold.window(staged=staged, guard=guard, prelude=prelude(self.interface, request))
            _tell_resumed(history, request, window, gone=anew or header is None)
            # Under a guard what is sent is what was counted, and is not made a second time.
            ask, fields, counted = prepared.get(window.json) or await self._prepare(request, window.json)
            hold.generated = True
            payload = await self._response(ask, fields)
            try:
                draft, decision = await self._projected(request, *self._read(request, payload))
            except AgentDecisionProviderSchemaViolation:
                if request.project is None:
                    hold.unrecorded = (*staged, Draft(kind=Kind.RESPONSE, payload=payload))
                raise
            hold.unrecorded = (*staged, draft)
            hold.note_tokens(counted=counted, billed=decision.billed_tokens, guard=guard)
            committed = await hold.conclude((*staged, draft), settles=True)
        blocks = withheld(self.api, payload)
        if blocks:
            sent = window.sent
            history.emit(ReasoningWithheld(message_count=sent.messages, bytes=sent.bytes, blocks=blocks))
        decision = referenced(decision, history.key, committed.header, committed.written[-1])
        return msgspec.structs.replace(decision, counted_tokens=counted, without_messages=anew)

    async def _freed(self, history: History, request: DecisionRequest) -> Header | None:
        """Return the conversation as it stands, freed of a worker of this invocation that somebody said is stopped."""
        header = await history.journal.header(history.key)
        said = any(each is not None and each.worker_stopped for each in (request.resumed, request.abandoned))
        if header is None or not header.token or not said:
            return header
        with contextlib.suppress(DecisionHistoryNotReserved, DecisionHistoryAbsent):
            await history.journal.recover(history.key, header.epoch)
        return await history.journal.header(history.key)

    async def _closed(self, history: History, header: Header | None, request: DecisionRequest) -> Header | None:
        """
        Record what the last calls of a task before this one came to, so that this one can open its turn.

        What the runtime knows is of one conversation; what it did with the calls of another one, nobody can tell here.
        """
        before = request.abandoned
        if header is None or before is None or not header.state.open:
            return header
        there = before.conversation == "" or await holds(history, header, before)
        # A copy may hold calls of later tasks as well, which were given up somewhere else.
        same = there and before.conversation in ("", name_of(history.key, header))
        known = stopped(header.state.open, before.observations if there else (), received=not same)
        await history.append(answers(header.state.open, known, self.interface))
        return await history.journal.header(history.key)

    async def _begins_anew(self, history: History, header: Header | None, request: DecisionRequest) -> bool:
        """
        Return whether the messages of a resumed invocation are gone, or were and no decision since was delivered.

        Then what was done goes as data, in the input of a new conversation; so it is by that input that an attempt to
        begin anew is known again.
        """
        if request.resumed is None or not request.observations:
            return False
        if header is None or not header.state.turn:
            return True
        opened = await history.entry(header.state.turn)
        if opened.payload != self.interface.wire.input(task_with_observations(request)).payload:
            return False
        return not request.task_ref or await self._opened_newest(history, header, request)

    async def _undelivered(
        self, history: History, header: Header | None, request: DecisionRequest, *, anew: bool
    ) -> Decision | None:
        """
        Return the decision that answers a resumed request and is recorded already, since its caller was cut off.

        It is not asked for again (SPEC D13, D25). Only a runtime that counts what it received can tell, and only one
        that notes its intents knows that none of the calls was executed. What stands in a turn that another task opened
        is no answer to this one: that task was given up before its caller received it. A task that is named and has
        observed nothing received nothing: what was before it was, perhaps in another conversation, with other numbers.
        """
        if request.resumed is None or request.resumed.seen is None or header is None or header.token:
            return None
        newest = header.state.exchange
        if header.attempt is not None or not newest:
            return None
        received = newest <= request.resumed.seen and (request.observations or not request.task_ref)
        if not anew and (received or not await self._opened_newest(history, header, request)):
            return None
        recorded = await history.entry(newest)
        # What was recorded in `opaque_refs` mode is a message of ours, with nothing of a body around it.
        read = self._read if request.project is None else self._read_message
        try:
            _, decision = read(request, recorded.payload)
        except AgentDecisionProviderSchemaViolation as error:
            raise _changed_since(error) from error
        decision = referenced(decision, history.key, header, recorded)
        return msgspec.structs.replace(decision, without_messages=anew)

    async def _opened_newest(self, history: History, header: Header, request: DecisionRequest) -> bool:
        """
        Return whether the newest turn is one that the request's task opened, be it under a further id.

        Where nothing names the task its words do; it may have begun anew behind any of the observations.
        """
        if not request.task_ref:
            begun = await history.entry(header.state.turn)
            return any(begun.payload == self.interface.wire.input(words).payload for words in _words(request))
        first, times = _task_id(header.state.turns, request, request.task), 0
        while (opened := await history.journal.receipt(history.key, opening_id(first, times))) is not None:
            if opened.last >= header.state.turn:
                return True
            times += 1
        return False

    def _history(self, store: JournalStore, request: DecisionRequest) -> History:
        options = self.options or HistoryOptions()
        return History(
            store.journal,
            store.tails,
            store.tokens,
            store.fresh_id,
            self.key(request),
            wire=self.interface.wire,
            identity=f"{self.api.name}/{self.model}/{self.interface.name}",
            limits=window_limits(options),
            max_retained_bytes=options.retained_bytes,
            observer=options.on_event,
            summarising=summarising(options.summarize, options.max_summary_bytes, options.max_bytes, store.fresh_id),
            reasoning=self._reasoning,
        )

    async def _open(self, history: History, header: Header | None, request: DecisionRequest, *, anew: bool) -> Hold:
        """
        Reserve the conversation: a first step, and its retry, with the task; a later one as it stands.

        An invocation that has finished may get another task: it opens the next turn of the same conversation.
        """
        if header is None and request.observations and request.resumed is None:
            raise DecisionHistoryAbsent(
                "the invocation has observations, but its conversation does not exist or has expired; raise ttl, "
                "or keep it in a durable store"
            )
        turn = _turn_to_begin(header, request)
        if not turn:
            return await history.open(attempt=False)
        # Where the messages are gone, what was really done goes as data, as it does without a history.
        task = task_with_observations(request) if anew else request.task
        # Under one id a task is recorded once, whoever else begins or retries the same turn of the invocation; another
        # task instead of one that was never answered has another id, and supersedes it; one that is told again then is
        # recorded anew.
        task_id = _task_id(turn, request, task)
        return await history.open_anew((self.interface.wire.input(task),), idempotency=task_id, superseded=[])

    async def _decide_without_history(self, request: DecisionRequest) -> Decision:
        message = self.interface.wire.input(task_with_observations(request))
        messages = b"[%b]" % message.payload[message.start : message.stop]
        prepared: dict[bytes, Prepared] = {}
        guard = self._guard(request, prepared)
        if guard is not None:
            measured = await guard.measure(messages)
            if not measured.fits:
                raise window_exceeded(measured)
        ask, fields, counted = prepared.get(messages) or await self._prepare(request, messages)
        read = self._read(request, await self._response(ask, fields))
        _, decision = await self._projected(request, *read)
        return msgspec.structs.replace(decision, counted_tokens=counted)

    def _guard(self, request: DecisionRequest, prepared: dict[bytes, Prepared]) -> TokenGuard | None:
        """Return what holds windows to the model's, and leaves in `prepared` each request that it counted."""
        if self.context is None:
            return None

        async def count(messages: bytes) -> int:
            ask, fields = self._request(request, messages)
            tokens = await self._counted(fields)
            prepared[messages] = ask, fields, tokens
            return tokens

        return TokenGuard(
            context=self.context,
            max_output_tokens=self.max_output_tokens or 0,
            provider=COUNTINGS[self.api.name].provider,
            count=count,
        )

    async def _prepare(self, request: DecisionRequest, messages: bytes) -> Prepared:
        """Return the request, the fields of its body, and their input tokens where they are counted."""
        ask, fields = self._request(request, messages)
        return ask, fields, await self._counted(fields) if self.count else None

    def _request(self, request: DecisionRequest, messages: bytes) -> tuple[Ask, dict[str, bytes]]:
        ask = Ask(
            model=self.model,
            instructions=self.interface.instructions(request),
            messages=messages,
            tools=self.interface.tools(request),
            idle=not request.capabilities,
            schema=self.interface.schema(request),
            max_output_tokens=self.max_output_tokens,
        )
        fields = merged(self.api, ask, self.extra)
        return ask, fields if self.stream is None else fields | self.stream.fields

    async def _response(self, ask: Ask, fields: Mapping[str, bytes]) -> bytes:
        """Return the response's payload: one request to the provider, or one call of the host's generator."""
        if self._generator is not None:
            return await self._generator(ask)
        if self.stream is None:
            return await self._post(self._path(self.api.path), joined(fields))
        body = await self._post(self._path(self.stream.path or self.api.path), joined(fields))
        return await assembled(self.api, body)

    def _path(self, path: str) -> str:
        return path.replace("{model}", quote(self.model, safe=""))

    def _read(self, request: DecisionRequest, payload: bytes) -> tuple[Draft, Decision]:
        if self._generator is not None:
            return self._read_message(request, payload)
        return read(self.api, self.interface, request, payload)

    def _read_message(self, request: DecisionRequest, payload: bytes) -> tuple[Draft, Decision]:
        return read_message(self.interface, request, payload)

    async def _projected(self, request: DecisionRequest, draft: Draft, decision: Decision) -> tuple[Draft, Decision]:
        """
        Return what is recorded of a response and decided in it: as it came, or in `opaque_refs` mode a message of ours.

        That one states the decision with references for arguments. Whatever else stood there may quote an argument, and
        a signature over other bytes than are sent would be a false one: both are left out (SPEC D27).
        """
        if request.project is None:
            return draft, decision
        if decision.calls:
            calls = await request.project(decision.calls)
            if [each.capability for each in calls] != [each.capability for each in decision.calls]:
                raise InvalidOption("project returns the calls it was given, in their order", option="project")
            decision = msgspec.structs.replace(decision, calls=calls)
        return self.interface.restated(draft, decision), decision

    def _check_projected(self, request: DecisionRequest) -> None:
        """Refuse `opaque_refs` mode where the provider takes no call back without the reasoning that led to it."""
        if request.project is not None and self.interface.name == "native" and self.api.needs_reasoning(self.extra):
            raise InvalidOption(
                "with thinking enabled by hand this API refuses a call that goes back without its thinking, which "
                "opaque_refs mode does not keep; leave thinking to the model, or take the structured interface",
                option="projection",
            )

    async def _counted(self, fields: Mapping[str, bytes]) -> int:
        counting = COUNTINGS[self.api.name]
        try:
            payload = await self._post(self._path(self.api.count_path), count_body(counting, fields, self.model))
        except AgentDecisionProviderUnavailable as error:
            failure = count_failed(error.provider_error_code or "", error.status, cause=error.cause)
        else:
            return counted_tokens(counting, payload)
        raise failure


def _tell_resumed(history: History, request: DecisionRequest, window: Window, *, gone: bool) -> None:
    """Tell of a run that goes on; the first one of a host that keeps no count has nothing to go on with."""
    resumed = request.resumed
    if resumed is not None and (resumed.seen is not None or request.observations):
        passed = bool(request.observations or resumed.seen)
        history.emit(
            HistoryResumed(
                message_count=window.sent.messages,
                bytes=window.sent.bytes,
                resumed_without_messages=gone and passed,
            )
        )


def _words(request: DecisionRequest) -> Iterator[str]:
    """Yield the inputs with which a request's task may have begun."""
    for count in range(len(request.observations) + 1):
        yield task_with_observations(msgspec.structs.replace(request, observations=request.observations[:count]))


def _task_id(turn: int, request: DecisionRequest, task: str) -> str:
    """Return under which id a request's task opens a turn: by what names it, or with its input where nothing does."""
    return f"task-{turn}-{payload_digest((request.task_ref or task).encode())[:16].hex()}"


def _turn_to_begin(header: Header | None, request: DecisionRequest) -> int:
    """Return the number of the turn that the task opens, or opens again; 0 for a later step of a turn under way."""
    if header is None:
        return 1
    state = header.state
    if state.unanswered is not None:
        return state.turns
    return 0 if state.turns and (state.open or request.observations) else state.turns + 1


def _changed_since(error: AgentDecisionProviderSchemaViolation) -> CheckpointRefused:
    """Return the error of a recorded decision, which was a valid one, that a program does not take any more."""
    return CheckpointRefused(
        "the task's next decision is recorded already, and fits the capabilities and the output that the program had "
        f"then, not those it has now: {error}; go on with the program as it was, or give the task up by `abandon`",
        problem="decision",
    )


def _check_unfinished(header: Header) -> None:
    """Refuse a step that has nothing to decide on."""
    if header.attempt is None and not header.state.open:
        raise PairingViolation("no call waits for an outcome: the invocation has finished, or was deleted meanwhile")


def _interface(api: Api, name: object) -> Interface:
    wire = wire_format(api.name)
    if name == "native":
        return Native(wire, api)
    if name == "structured":
        return Structured(wire, api)
    raise InvalidOption("decision_interface is 'native' or 'structured'", option="decision_interface")


def _checked_context(context: object, max_output_tokens: int | None) -> ContextWindow | None:
    if context is None:
        return None
    if not isinstance(context, ContextWindow):
        raise InvalidOption("context is a ContextWindow", option="context")
    if max_output_tokens is None:
        raise InvalidOption("context reserves the output too; give max_output_tokens", option="max_output_tokens")
    context.check_output(max_output_tokens)
    return context
