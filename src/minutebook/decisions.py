"""
Face D: the decision providers, with their history.

A provider answers one question, «what next?», and keeps what was said meanwhile. Each `decide` is one step: the task or
the outcomes since the last decision go in, one request leaves, and its response is recorded in the commit that ends the
step. Whatever fails in between is marked and leaves the conversation as it was; the same step can then be asked again.

Every provider here is thin: an API, an interface, a way to post bytes, and `Steps`, which joins them to a history.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, TypeAlias, cast
from urllib.parse import quote

import msgspec

from minutebook.errors import (
    AgentDecisionProviderSchemaViolation,
    AgentDecisionProviderUnavailable,
    DecisionHistoryAbsent,
    DecisionHistoryNotReserved,
    InvalidOption,
    PairingViolation,
)
from minutebook.history import History, Hold
from minutebook.model import codec
from minutebook.model.bounds import WINDOW_BYTES, StoreBounds, WindowLimits, check_count, check_retained, ttl_ms
from minutebook.model.context import ContextWindow, window_exceeded
from minutebook.model.decisions import CallReference, Decision, DecisionRequest
from minutebook.model.entries import Draft, Kind, payload_digest
from minutebook.model.events import HistoryResumed, ReasoningWithheld
from minutebook.model.keys import check_id
from minutebook.model.summaries import SUMMARY_BYTES
from minutebook.policy.binding import check_reasoning
from minutebook.policy.compaction import summarising
from minutebook.policy.tokens import TokenGuard
from minutebook.ports import Page
from minutebook.providers.anthropic import ANTHROPIC, ANTHROPIC_SDK, DROP_BLOCK_BETA
from minutebook.providers.counting import COUNTINGS, count_body, count_failed, counted_tokens
from minutebook.providers.decision import (
    Ask,
    Native,
    answers,
    as_data,
    checked_request,
    joined,
    merged,
    prelude,
    read,
    read_message,
    withheld,
)
from minutebook.providers.endpoints import OFFICIAL
from minutebook.providers.gemini import GEMINI
from minutebook.providers.gemini_http import Httpx2Post
from minutebook.providers.generator import Generator, check_alone
from minutebook.providers.openai_chat import CHAT
from minutebook.providers.openai_http import OPENAI
from minutebook.providers.openai_responses import RESPONSES
from minutebook.providers.sdk_http import SdkPost
from minutebook.providers.streams import assembled
from minutebook.providers.structured import Structured
from minutebook.providers.wire import wire_format

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from types import TracebackType
    from typing import Self

    from minutebook.history import Window
    from minutebook.model.codec import JSON
    from minutebook.model.keys import ConversationKey
    from minutebook.model.record import Header
    from minutebook.policy.binding import Reasoning
    from minutebook.ports import Generate, Observer, Summarize
    from minutebook.providers.decision import Api, Interface
    from minutebook.providers.sdk_http import Post, Sdk
    from minutebook.stores.journal import JournalStore

__all__ = [
    "AnthropicDecisionProvider",
    "GeminiDecisionProvider",
    "HistoryOptions",
    "OpenAIChatDecisionProvider",
    "OpenAIDecisionProvider",
]

DEFAULT_NAMESPACE = "decisions"
"""The namespace of a provider's own RAM store, which nothing else can reach."""

RETAINED_BYTES = 8 * 1024 * 1024
MAX_SESSIONS = 128
MAX_STORE_BYTES = 32 * 1024 * 1024
TTL = timedelta(hours=1)


class HistoryOptions(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a provider keeps and sends (SPEC D4, D6, D7).

    Raises:
        InvalidOption: a bound that is none, a retention below the chosen window, a namespace without a store, or a
            bound of the RAM store beside a store.
    """

    max_messages: int = 128
    """Wire messages sent at most; tools and instructions are not counted."""
    max_bytes: int = WINDOW_BYTES
    """UTF-8 bytes of the sent messages' JSON at most."""
    low_water: float = 1.0
    """
    How far a window is cut when a limit bites, as a fraction of it; then it grows again, and its start stays (SPEC B3).
    Below 1 a prompt cache stays warm, reasoning stays bound to what it was made behind, and summaries are few.
    """
    max_retained_bytes: int | None = None
    """Payload bytes that one conversation may retain: 8 MiB, or the RAM store's bound where that is smaller."""
    on_event: Observer | None = None
    """Told of what leaves the window and of what is abandoned, by numbers alone; what it raises is kept from us."""
    store: JournalStore | None = None
    """Where conversations are kept; without one, in RAM, in a store of the provider's own."""
    namespace: str | None = None
    """The store's namespace, from trusted configuration, where the store itself has none (SPEC D21)."""
    summarize: Summarize | None = None
    """Makes a summary of what leaves the window, to stand there in its place (SPEC D17, D18); none by default."""
    max_summary_bytes: int = SUMMARY_BYTES
    """How long that may be, in UTF-8 bytes."""
    max_sessions: int | None = None
    """The RAM store's bound on conversations: 128."""
    max_store_bytes: int | None = None
    """The RAM store's bound on bytes in all: 32 MiB."""
    ttl: timedelta | float | None = None
    """How long the RAM store keeps a conversation that is not written to, as a `timedelta` or seconds: one hour."""

    def __post_init__(self) -> None:
        _limits(self)
        if self.max_retained_bytes is not None:
            check_retained(self.max_retained_bytes, self.max_bytes)
        if self.on_event is not None and not callable(self.on_event):
            raise InvalidOption("on_event is called with each event; it must be callable", option="on_event")
        summarising(self.summarize, self.max_summary_bytes, self.max_bytes, str)
        if self.store is None:
            self._bounds()
            if self.namespace is not None:
                raise InvalidOption("a namespace without a store; the RAM store has its own", option="namespace")
        for name, given in self._own_bounds():
            if self.store is not None and given is not None:
                raise InvalidOption(f"{name} bounds the RAM store; a store of your own has its own bounds", option=name)

    @property
    def retained_bytes(self) -> int:
        """What one conversation may retain, the default worked in: a window that was chosen larger has its room."""
        if self.max_retained_bytes is not None:
            return self.max_retained_bytes
        return min(max(RETAINED_BYTES, self.max_bytes), self.max_store_bytes or MAX_STORE_BYTES)

    def _own_bounds(self) -> tuple[tuple[str, object], ...]:
        return (("max_sessions", self.max_sessions), ("max_store_bytes", self.max_store_bytes), ("ttl", self.ttl))

    def _bounds(self) -> StoreBounds:
        return StoreBounds(
            max_sessions=MAX_SESSIONS if self.max_sessions is None else self.max_sessions,
            max_bytes=MAX_STORE_BYTES if self.max_store_bytes is None else self.max_store_bytes,
            max_retained_bytes=self.retained_bytes,
            ttl_ms=ttl_ms(TTL if self.ttl is None else self.ttl),
        )

    def open_store(self) -> JournalStore:
        """
        Return the store with its namespace; a fresh RAM store when none was given.

        Raises:
            InvalidOption: no store of this package, no namespace, or two that differ.
        """
        # Imported here: a face wires stores, but none is loaded before one is needed.
        from minutebook.stores.journal import JournalStore
        from minutebook.stores.memory import MemoryJournal

        if self.store is None:
            return JournalStore(MemoryJournal(self._bounds()), namespace=DEFAULT_NAMESPACE)
        if not isinstance(self.store, JournalStore):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(
                f"store is a store of minutebook, not a {type(self.store).__module__}.{type(self.store).__name__}; "
                "one of minutebook.sync goes with the options and providers of minutebook.sync",
                option="store",
            )
        store = self.store if self.namespace is None else self.store.within(check_id(self.namespace, "namespace"))
        check_id(store.namespace, "namespace")
        return store


Prepared: TypeAlias = "tuple[Ask, dict[str, bytes], int | None]"
"""A request, the fields of its body, and their input tokens where they are counted."""


class Steps:
    """
    The steps of a provider: what joins an API, an interface and a way to post bytes to a history.

    Args:
        api: how requests and bodies look.
        model: the provider's name of the model; part of every conversation's identity.
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
    ) -> None:
        self.api = api
        self.model = codec.text(model, "model")
        if not self.model.strip():
            raise InvalidOption("model names the provider's model", option="model")
        self.interface = _interface(api, decision_interface)
        self.max_output_tokens = max_output_tokens
        if max_output_tokens is not None:
            check_count(max_output_tokens, "max_output_tokens")
        elif api.needs_output_bound and generator is None:
            raise InvalidOption("this provider generates nothing without max_output_tokens", option="max_output_tokens")
        for name, value in (("count", count), ("stream", stream)):
            if type(value) is not bool:
                raise InvalidOption(f"{name} is True or False", option=name)
        self.context = _checked_context(context, max_output_tokens)
        self.count = count or context is not None
        self.stream = api.stream if stream else None
        self.extra = _extra_fields(api, extra_body or {}, count=self.count)
        self.options = _options(history)
        self.store = self.options.open_store() if self.options else None
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
                raise InvalidOption(f"a history needs a {name}; without history=False the host gives it", option=name)
        mode = [] if request.project is None else ["opaque_refs"]
        return self.store.key(codec.encode([*ids, self.api.name, self.model, self.interface.name, *mode]).decode())

    async def decide(self, request: DecisionRequest) -> Decision:
        """Return the next decision, recorded before it is returned; see `DecisionProvider.decide`."""
        request = checked_request(request)
        self._check_projected(request)
        if self.store is None:
            return await self._decide_without_history(request)
        history = self._history(self.store, request)
        header = await history.journal.header(history.key)
        anew = await self._begins_anew(history, header, request)
        if (recorded := await self._undelivered(history, header, request, anew=anew)) is not None:
            return recorded
        hold = await self._open(history, header, request, anew=anew)
        unusable: tuple[Draft, ...] = ()
        try:
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
            if request.project is None:
                unusable = (*staged, Draft(kind=Kind.RESPONSE, payload=payload))
            draft, decision = await self._projected(request, *self._read(request, payload))
            hold.note_tokens(counted=counted, billed=decision.billed_tokens, guard=guard)
            committed = await hold.commit((*staged, draft), settles=True, release=True)
        except BaseException as error:
            kept = isinstance(error, AgentDecisionProviderSchemaViolation)
            await hold.abandon(error, unusable if kept else ())
            raise
        blocks = withheld(self.api, payload)
        if blocks:
            sent = window.sent
            history.emit(ReasoningWithheld(message_count=sent.messages, bytes=sent.bytes, blocks=blocks))
        decision = _referenced(decision, committed.header.state.exchange, counted)
        return msgspec.structs.replace(decision, without_messages=anew)

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
        opened = await history.journal.oldest(history.key, header.state.turn - 1, _ONE_ENTRY)
        return bool(opened) and opened[0].payload == self.interface.wire.input(as_data(request)).payload

    async def _undelivered(
        self, history: History, header: Header | None, request: DecisionRequest, *, anew: bool
    ) -> Decision | None:
        """
        Return the decision that answers a resumed request and is recorded already, since its caller was cut off.

        It is not asked for again (SPEC D13, D25). Only a runtime that counts what it received can tell, and only one
        that notes its intents knows that none of the calls was executed.
        """
        if request.resumed is None or request.resumed.seen is None or header is None or header.token:
            return None
        newest = header.state.exchange
        if header.attempt is not None or not newest or not (anew or newest > request.resumed.seen):
            return None
        entries = await history.journal.oldest(history.key, newest - 1, _ONE_ENTRY)
        if not entries:
            return None
        # What was recorded in `opaque_refs` mode is a message of ours, with nothing of a body around it.
        read = self._read if request.project is None else self._read_message
        decision = _referenced(read(request, entries[0].payload)[1], newest, None)
        return msgspec.structs.replace(decision, without_messages=anew)

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
            limits=_limits(options),
            low_water=1.0,
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
        resumed = request.resumed
        if header is None and request.observations and resumed is None:
            raise DecisionHistoryAbsent(
                "the invocation has observations, but its conversation does not exist or has expired; raise ttl, "
                "or keep it in a durable store"
            )
        if header is not None and header.token and resumed is not None and resumed.worker_stopped:
            # Whoever held it was the worker of this invocation, and somebody said that it is stopped.
            with contextlib.suppress(DecisionHistoryNotReserved, DecisionHistoryAbsent):
                await history.journal.recover(history.key, header.epoch)
            header = await history.journal.header(history.key)
        turn = _turn_to_begin(header, request)
        if not turn:
            return await history.open(attempt=False)
        # Where the messages are gone, what was really done goes as data, as it does without a history.
        task = as_data(request) if anew else request.task
        # Under one id a task is recorded once, whoever else begins or retries the same turn of the invocation; another
        # task instead of one that was never answered has another id, and supersedes it.
        return await history.open((self.interface.wire.input(task),), idempotency=_task_id(turn, task))

    async def _decide_without_history(self, request: DecisionRequest) -> Decision:
        message = self.interface.wire.input(as_data(request))
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
            schema=self.interface.schema(request),
            max_output_tokens=self.max_output_tokens,
        )
        fields = merged(self.api, self.api.fields(ask), self.extra)
        return ask, fields if self.stream is None else fields | self.stream.fields

    async def _response(self, ask: Ask, fields: Mapping[str, bytes]) -> bytes:
        """Return the response's payload: one request to the provider, or one call of the host's generator."""
        if self._generator is not None:
            return await self._generator(ask)
        if self.stream is None:
            return await self._post(self._path(self.api.path), joined(fields))
        body = await self._post(self._path(self.stream.path or self.api.path), joined(fields))
        return assembled(self.api, body)

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
            failure = count_failed(error.provider_error_code, error.status)
        else:
            return counted_tokens(counting, payload)
        raise failure


_ONE_ENTRY = Page(rows=1, messages=2**62, size=2**62)


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


def _task_id(turn: int, task: str) -> str:
    return f"task-{turn}-{payload_digest(task.encode())[:16].hex()}"


def _turn_to_begin(header: Header | None, request: DecisionRequest) -> int:
    """Return the number of the turn that the task opens, or opens again; 0 for a later step of a turn under way."""
    if header is None:
        return 1
    state = header.state
    if state.unanswered is not None:
        return state.turns
    return 0 if state.turns and (state.open or request.observations) else state.turns + 1


def _check_unfinished(header: Header) -> None:
    """Refuse a step that has nothing to decide on."""
    if header.attempt is None and not header.state.open:
        raise PairingViolation("no call waits for an outcome: the invocation has finished, or was deleted meanwhile")


def _referenced(decision: Decision, exchange: int, counted: int | None) -> Decision:
    calls = tuple(
        msgspec.structs.replace(call, reference=CallReference(exchange, position))
        for position, call in enumerate(decision.calls)
    )
    return msgspec.structs.replace(decision, calls=calls, counted_tokens=counted, exchange=exchange)


def _interface(api: Api, name: object) -> Interface:
    wire = wire_format(api.name)
    if name == "native":
        return Native(wire, api)
    if name == "structured":
        return Structured(wire, api)
    raise InvalidOption("decision_interface is 'native' or 'structured'", option="decision_interface")


def _limits(options: HistoryOptions) -> WindowLimits:
    if options.low_water is None:  # pyright: ignore[reportUnnecessaryComparison] - nothing checks a caller's types
        raise InvalidOption("low_water must be a number above 0 and at most 1", option="low_water")
    return WindowLimits(max_messages=options.max_messages, max_bytes=options.max_bytes, low_water=options.low_water)


def _options(history: object) -> HistoryOptions | None:
    if history is None:
        return HistoryOptions()
    if history is False:
        return None
    if isinstance(history, HistoryOptions):
        return history
    raise InvalidOption("history is a HistoryOptions, or False for none", option="history")


def _checked_context(context: object, max_output_tokens: int | None) -> ContextWindow | None:
    if context is None:
        return None
    if not isinstance(context, ContextWindow):
        raise InvalidOption("context is a ContextWindow", option="context")
    if max_output_tokens is None:
        raise InvalidOption("context reserves the output too; give max_output_tokens", option="max_output_tokens")
    context.check_output(max_output_tokens)
    return context


def _extra_fields(api: Api, extra: Mapping[str, JSON], *, count: bool) -> dict[str, bytes]:
    fields = {codec.text(name, "extra_body"): codec.encode(value) for name, value in extra.items()}
    for name, value in extra.items():
        if name in api.own:
            raise InvalidOption(f"the field {name!r} is set here, or would change what the model sees", option=name)
        if name in api.shared:
            _check_members(name, value, api.shared[name])
        if count and name not in api.counted | api.uncounted:
            raise InvalidOption(f"whether the field {name!r} changes a token count is not known", option=name)
    return fields


def _check_members(name: str, value: object, own: frozenset[str]) -> None:
    """Refuse members of a shared field that are ours, and a value that has no members."""
    if not isinstance(value, dict):
        raise InvalidOption(f"the field {name!r} is an object", option=name)
    taken = sorted(own & cast("dict[str, JSON]", value).keys())
    if taken:
        raise InvalidOption(
            f"the member {taken[0]!r} of {name!r} is set here, or would change what the model sees", option=name
        )


def _is_official(post: Post) -> bool:
    """Return whether requests go to OpenAI itself, as they do unless a client or URL names another server."""
    host = post.host() if isinstance(post, SdkPost) else None
    return host is None or host.rstrip(".") in OFFICIAL["openai"].hosts


class ApiProvider:
    """What every provider of an API is, under an event loop and in `minutebook.sync` without one."""

    _api: Api
    _sdk: Sdk
    _blocking = False
    _reasoning: Reasoning = "keep"

    def __init__(
        self,
        *,
        model: str,
        client: object = None,
        base_url: str | None = None,
        api_key: str | None = None,
        decision_interface: Literal["native", "structured"] = "native",
        history: HistoryOptions | Literal[False] | None = None,
        max_output_tokens: int | None = None,
        count: bool = False,
        context: ContextWindow | None = None,
        extra_body: Mapping[str, JSON] | None = None,
        generate: Generate | None = None,
        stream: bool = False,
    ) -> None:
        others = {"client": client, "base_url": base_url, "api_key": api_key, "max_output_tokens": max_output_tokens}
        others |= {"count": count or None, "stream": stream or None, "context": context, "extra_body": extra_body}
        check_alone(generate, decision_interface, {name: given is not None for name, given in others.items()})
        generator = None if generate is None else Generator(generate, self._api, blocking=self._blocking)
        self._generates = generate is not None
        self._post = self._posting(client, base_url, api_key)
        if context is not None and self._api is CHAT and (not count or _is_official(self._post)):
            raise InvalidOption(
                "OpenAI does not count Chat Completions; context needs a server that does, such as llama.cpp's: give "
                "its base_url or a client of it, and count=True",
                option="context",
            )
        self._steps = Steps(
            self._api,
            model=model,
            decision_interface=decision_interface,
            history=history,
            max_output_tokens=max_output_tokens,
            count=count,
            context=context,
            extra_body=extra_body,
            post=self._post,
            generator=generator,
            stream=stream,
            reasoning=self._reasoning,
        )

    def _posting(self, client: object, base_url: str | None, api_key: str | None) -> Post:
        return SdkPost(self._sdk, client, base_url, api_key, blocking=self._blocking)

    @property
    def store(self) -> JournalStore | None:
        """Where the conversations are kept; `None` without a history."""
        return self._steps.store

    def key(self, request: DecisionRequest) -> ConversationKey:
        """Return the address of the invocation's conversation in `store`: to read, delete or recover it."""
        return self._steps.key(request)

    async def decide(self, request: DecisionRequest) -> Decision:
        """
        Return the next decision of an invocation; its response is recorded before this returns.

        Every observation of the invocation so far may be given; those that answer the last decision are recorded with
        the response. Nothing is ever sent twice: after a failure the conversation is as it was before the step.

        Raises:
            AgentDecisionProviderSchemaViolation: an answer without a valid typed decision.
            AgentDecisionProviderUnavailable: transport or provider failure.
            ProviderContextCountUnavailable: the request could not be counted; nothing was generated.
            ProviderContextWindowExceeded: the least that can be sent does not fit `context`; nothing was generated.
            PairingViolation: a call of the last decision has no observation, or the invocation has finished.
            DecisionHistoryError: the history refuses; see its codes.
            InvalidOption: a history without `run_id`, `invocation_id` or `agent_ref`, or capabilities that clash.
        """
        if not self._generates:
            self._post.connect()
        return await self._steps.decide(request)

    async def close(self) -> None:
        """
        Close the client that this provider made for itself; one that was given, and the store, stay open.

        Nothing more need follow, but a later decision makes another client.
        """
        await self._post.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class OpenAIDecisionProvider(ApiProvider):
    """
    Decisions by OpenAI's Responses API, stateless at the provider.

    Args:
        model: the model's name.
        client: an `openai.AsyncOpenAI` (in `minutebook.sync` an `openai.OpenAI`), which stays the caller's to close;
            when it is left out one is made at first use from `base_url`, `api_key` and the environment, to be closed
            with `async with provider` or `close`.
        base_url: where our own client sends its requests.
        api_key: our own client's key.
        decision_interface: `native` (tool calling) or `structured` (typed JSON output).
        history: options, `None` for the defaults, or `False` for none: observations are then sent as data.
        max_output_tokens: the provider's bound on what it generates, reasoning included.
        count: count each request before it is generated; the count is in the decision and in the receipt.
        stream: have the answer streamed, so that no time-out strikes a long one; recorded is the whole that it adds up
            to, and a stream that ends early is `AgentDecisionProviderUnavailable` (`stream_cut`).
        context: the model's window, by the caller's word. Each request is counted and takes
            `ceil(tokens × 1.2) + 512 + max_output_tokens` of it; the oldest complete exchanges leave until it fits.
            Needs `max_output_tokens`.
        extra_body: further top-level fields of each request, such as `temperature` or `reasoning`.
        generate: makes each decision in the place of a request, for the structured interface: given the messages and
            the schema that binds the answer, it returns the object that a model would write. What it returns is
            recorded as an assistant's message with that JSON and nothing else; what it raises is
            `AgentDecisionProviderUnavailable` (`generator_failed`), our own errors apart. Options of a request, such
            as a client or `count`, are refused beside it.

    Raises:
        InvalidOption: an option out of its range, or two that exclude each other.
        BlockingMismatch: an `openai.OpenAI`, which would block the event loop.
    """

    _api = RESPONSES
    _sdk = OPENAI


class OpenAIChatDecisionProvider(ApiProvider):
    """
    Decisions by the Chat Completions API, which local servers speak too: llama.cpp, Ollama, vLLM.

    Options and refusals are those of `OpenAIDecisionProvider`. Counting needs llama.cpp's server: OpenAI itself has
    no counting endpoint for this API. So `context` needs `count=True`, and a `base_url` or `client` of such a server.
    """

    _api = CHAT
    _sdk = OPENAI


class AnthropicDecisionProvider(ApiProvider):
    """
    Decisions by Anthropic's Messages API.

    Options and refusals are those of `OpenAIDecisionProvider`, with an `anthropic.AsyncAnthropic` (in `minutebook.sync`
    an `anthropic.Anthropic`) as the client, and these differences:

    Args:
        max_output_tokens: must be given, thinking included; this API generates nothing without.
        extra_body: further fields, such as `thinking`; `output_config` may hold anything but `format`.
        reasoning: what becomes of thinking that is stale because older exchanges left the window. `strip` leaves it
            out of what is sent, but refuses the step (`DecisionHistoryLimitExceeded`) inside an open tool loop, where
            the API demands it. `drop_block` has the API drop it, with `thinking` of the type `adaptive`. `keep` sends
            it all the same. The record keeps all of it in every case.

    Raises:
        InvalidOption: an option out of its range, or two that exclude each other.
        BlockingMismatch: an `anthropic.Anthropic`, which would block the event loop.
    """

    _api = ANTHROPIC
    _sdk = ANTHROPIC_SDK

    def __init__(
        self,
        *,
        model: str,
        client: object = None,
        base_url: str | None = None,
        api_key: str | None = None,
        decision_interface: Literal["native", "structured"] = "native",
        history: HistoryOptions | Literal[False] | None = None,
        max_output_tokens: int | None = None,
        count: bool = False,
        context: ContextWindow | None = None,
        extra_body: Mapping[str, JSON] | None = None,
        generate: Generate | None = None,
        stream: bool = False,
        reasoning: Literal["strip", "keep", "drop_block"] = "strip",
    ) -> None:
        check_reasoning(reasoning)
        if reasoning == "drop_block":
            extra_body = _dropping(extra_body)
            self._sdk = msgspec.structs.replace(ANTHROPIC_SDK, headers={"anthropic-beta": DROP_BLOCK_BETA})
        self._reasoning = reasoning
        super().__init__(
            model=model,
            client=client,
            base_url=base_url,
            api_key=api_key,
            decision_interface=decision_interface,
            history=history,
            max_output_tokens=max_output_tokens,
            count=count,
            context=context,
            extra_body=extra_body,
            generate=generate,
            stream=stream,
        )


def _dropping(extra: Mapping[str, JSON] | None) -> Mapping[str, JSON]:
    """Return the further fields with the API's own option to drop stale thinking, on every request alike."""
    thinking = (extra or {}).get("thinking")
    if not isinstance(thinking, dict) or thinking.get("type") != "adaptive":
        raise InvalidOption(
            "reasoning='drop_block' needs extra_body={'thinking': {'type': 'adaptive', …}}; the API has it there alone",
            option="reasoning",
        )
    binding: JSON = {"prefix_mismatch_behavior": "drop_block"}
    return {**(extra or {}), "thinking": {**thinking, "block_binding": binding}}


class GeminiDecisionProvider(ApiProvider):
    """
    Decisions by Gemini's generateContent, posted with httpx2: Google's own client would drop fields and signatures.

    Options and refusals are those of `OpenAIDecisionProvider`, with these differences:

    Args:
        client: an `httpx2.AsyncClient` (in `minutebook.sync` an `httpx2.Client`), its proxies and time-outs included.
        base_url: the service's address and API version; also beside a client.
        api_key: else `GOOGLE_API_KEY` or `GEMINI_API_KEY`; beside a client that proves itself it may be left out.
        extra_body: further fields; `generationConfig` may hold anything but the answer's form and bound, such as
            `temperature` or `thinkingConfig`.

    Raises:
        InvalidOption: an option out of its range, or two that exclude each other.
        BlockingMismatch: an `httpx2.Client`, which would block the event loop.
    """

    _api = GEMINI

    def _posting(self, client: object, base_url: str | None, api_key: str | None) -> Post:
        return Httpx2Post(client, base_url, api_key, blocking=self._blocking)
