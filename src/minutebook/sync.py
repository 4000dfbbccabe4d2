"""
The same objects for blocking callers: no event loop, no thread, no second implementation.

The core is `async def` and imports no event loop; over a store that finishes every call at once its coroutines never
suspend. So each method here runs the coroutine of the asynchronous object to its end with one step, and an async
iterator becomes a generator. What is documented there holds here; the names and arguments are equal, and a test
compares them.
"""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar

import minutebook
from minutebook import agent as agents
from minutebook import conversation as asynchronous
from minutebook import decisions, programs
from minutebook.errors import BlockingMismatch
from minutebook.model.clock import system_clock
from minutebook.model.pause import drive
from minutebook.model.summaries import SUMMARY_BYTES
from minutebook.providers.guard import Guard, Provider, carrier, refusal_in
from minutebook.providers.openai_chat import CHAT
from minutebook.providers.openai_http import OPENAI
from minutebook.providers.openai_responses import RESPONSES
from minutebook.runtime.approvals import APPROVAL_SECONDS
from minutebook.runtime.budgets import DEFAULT_BUDGETS
from minutebook.runtime.memory import MemoryHandle
from minutebook.stores.journal import JournalStore
from minutebook.stores.memory import MemoryJournal
from minutebook.stores.opening import (
    DECISION_BYTES,
    DECISION_SESSIONS,
    DECISION_TTL_SECONDS,
    host_journal,
    sqlite_journal,
    store_bounds,
    store_url,
)

if TYPE_CHECKING:
    import os
    import sqlite3
    from collections.abc import Mapping, Sequence
    from datetime import timedelta
    from types import TracebackType
    from typing import NoReturn, Self

    # Values and errors are the same for both colours, and a checker finds them here too.
    from httpx2 import BaseTransport, Request, Response

    from minutebook import ports
    from minutebook.errors import *  # noqa: F403
    from minutebook.model.bounds import WindowLimits as WindowLimits
    from minutebook.model.codec import JSON
    from minutebook.model.context import ContextWindow as ContextWindow
    from minutebook.model.decisions import Decision as Decision
    from minutebook.model.decisions import DecisionRequest as DecisionRequest
    from minutebook.model.decisions import Observation as Observation
    from minutebook.model.keys import ConversationKey as ConversationKey
    from minutebook.model.receipts import Sent
    from minutebook.model.record import Receipt, Record
    from minutebook.ports import Generate, Observer, Random, Summarize
    from minutebook.runtime import Approval as Approval
    from minutebook.runtime import Budgets as Budgets
    from minutebook.runtime import CapabilityFailed as CapabilityFailed
    from minutebook.runtime import MemoryResource as MemoryResource
    from minutebook.runtime import MemoryValue as MemoryValue
    from minutebook.runtime import Outcome as Outcome
    from minutebook.runtime import PendingApproval as PendingApproval
    from minutebook.runtime import Program as Program
    from minutebook.runtime import capability as capability
    from minutebook.runtime import delegate as delegate
    from minutebook.runtime.references import Projection

__all__ = [
    "Agent",
    "AnthropicDecisionProvider",
    "ContextGuardTransport",
    "Conversation",
    "GeminiDecisionProvider",
    "HistoryOptions",
    "HostStore",
    "Memory",
    "MemoryStore",
    "OpenAIChatDecisionProvider",
    "OpenAIDecisionProvider",
    "Runtime",
    "SQLiteStore",
    "Turn",
    "create_sqlite_decision_history_store",
    "open_store",
]


if not TYPE_CHECKING:  # checkers are told the names above
    BaseTransport = object  # the HTTP library is loaded by the first request and not by a name

    def __getattr__(name: str) -> object:
        """Values and errors have no colour: they are those of `minutebook`."""
        if name not in minutebook.__all__:
            raise AttributeError(f"module 'minutebook.sync' has no attribute {name!r}")
        return getattr(minutebook, name)


P = ParamSpec("P")
Core = TypeVar("Core")
Core_co = TypeVar("Core_co", covariant=True)
Result = TypeVar("Result")
T = TypeVar("T")


# --- driving ---------------------------------------------------------------------------------------------------------


def _iterate(stream: AsyncIterator[Result]) -> Generator[Result, None, None]:
    """Yield what an async iterator yields; closing this closes it."""
    try:
        while True:
            try:
                item = drive(stream.__anext__())
            except StopAsyncIteration:
                return
            yield item
    finally:
        if isinstance(stream, AsyncGenerator):
            drive(stream.aclose())


class _Over(Generic[Core_co]):
    """An object that does what `_core`, its asynchronous twin, does; also what a base of that one does."""

    _core: Core_co


def _blocking(
    method: Callable[Concatenate[Core, P], Awaitable[Result]],
) -> Callable[Concatenate[_Over[Core], P], Result]:
    """Return the blocking twin of a coroutine method."""

    @functools.wraps(method)
    def call(self: _Over[Core], /, *args: P.args, **kwargs: P.kwargs) -> Result:
        return drive(method(self._core, *args, **kwargs))  # pyright: ignore[reportPrivateUsage]

    return call


def _streaming(
    method: Callable[Concatenate[Core, P], AsyncIterator[Result]],
) -> Callable[Concatenate[_Over[Core], P], Generator[Result, None, None]]:
    """Return the blocking twin of a method that streams."""

    @functools.wraps(method)
    def call(self: _Over[Core], /, *args: P.args, **kwargs: P.kwargs) -> Generator[Result, None, None]:
        return _iterate(method(self._core, *args, **kwargs))  # pyright: ignore[reportPrivateUsage]

    return call


def _plain(method: Callable[Concatenate[Core, P], Result]) -> Callable[Concatenate[_Over[Core], P], Result]:
    """Return the twin of a method that is no coroutine."""

    @functools.wraps(method)
    def call(self: _Over[Core], /, *args: P.args, **kwargs: P.kwargs) -> Result:
        return method(self._core, *args, **kwargs)  # pyright: ignore[reportPrivateUsage]

    return call


# --- stores ----------------------------------------------------------------------------------------------------------


class Store(_Over[JournalStore]):
    """What all blocking stores are: see `minutebook.stores.journal.JournalStore`."""

    def __init__(self, core: JournalStore) -> None:
        """Wrap a store whose journal never suspends."""
        self._core = core

    @property
    def namespace(self) -> str:
        """The namespace that every conversation of this store is in."""
        return self._core.namespace

    key = _plain(JournalStore.key)
    fresh_id = _plain(JournalStore.fresh_id)
    read = _blocking(JournalStore.read)
    entries = _streaming(JournalStore.entries)
    receipts = _streaming(JournalStore.receipts)
    delete = _blocking(JournalStore.delete)
    recover = _blocking(JournalStore.recover)
    header = _blocking(JournalStore.header)
    list = _blocking(JournalStore.list)
    totals = _blocking(JournalStore.totals)
    verify = _blocking(JournalStore.verify)
    drop_summary = _blocking(JournalStore.drop_summary)
    export = _blocking(JournalStore.export)
    import_ = _blocking(JournalStore.import_)
    close = _blocking(JournalStore.close)

    def within(self, namespace: str) -> Self:
        """See `JournalStore.within`."""
        view = object.__new__(type(self))
        view._core = self._core.within(namespace)
        return view

    def transact(
        self,
        key: ConversationKey,
        operation: Callable[[Record | None], tuple[Record | None, Result]],
        *,
        format: str = "record",  # noqa: A002 - the field's standard word
    ) -> Result:
        """See `JournalStore.transact`; `operation` is a plain function here."""

        async def awaited(record: Record | None) -> tuple[Record | None, Result]:
            return operation(record)

        return drive(self._core.transact(key, awaited, format=format))

    @property
    def journal(self) -> NoReturn:
        """
        Nothing: what is asked for here belongs to the asynchronous twin.

        Raises:
            BlockingMismatch: a blocking store was given to an asynchronous conversation or provider.
        """
        raise BlockingMismatch(
            "a store of minutebook.sync was given to an asynchronous object; take both from minutebook or both from "
            "minutebook.sync"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class MemoryStore(Store):
    """A store in RAM: see `minutebook.MemoryStore`."""

    def __init__(
        self,
        namespace: str = "memory",
        *,
        max_sessions: int | None = None,
        max_bytes: int | None = None,
        max_retained_bytes: int | None = None,
        ttl: timedelta | float | None = None,
        clock: Callable[[], int] = system_clock,
    ) -> None:
        bounds = store_bounds(max_sessions, max_bytes, max_retained_bytes, ttl)
        super().__init__(JournalStore(MemoryJournal(bounds, clock=clock), namespace=namespace))


class SQLiteStore(Store):
    """A store in one private SQLite file, or on a connection of the host's: see `minutebook.SQLiteStore`."""

    def __init__(
        self,
        filename: str | os.PathLike[str] | None = None,
        *,
        database: sqlite3.Connection | None = None,
        namespace: str | None = None,
        max_sessions: int | None = None,
        max_bytes: int | None = None,
        max_retained_bytes: int | None = None,
        ttl: timedelta | float | None = None,
        clock: Callable[[], int] = system_clock,
    ) -> None:
        bounds = store_bounds(max_sessions, max_bytes, max_retained_bytes, ttl)
        journal = sqlite_journal(filename, database, namespace, bounds, clock, blocking=True)
        super().__init__(JournalStore(journal, namespace=namespace))


class HostStore(Store):
    """
    A store in a database of the host's own: see `minutebook.HostStore`.

    The host's `transact` stays `async def`, and waits for nothing but `operation`, which finishes at once: it blocks in
    its driver instead. One that waits for an event loop is refused at its first call with `BlockingMismatch`.
    """

    def __init__(
        self,
        store: ports.Store,
        *,
        namespace: str | None = None,
        max_retained_bytes: int | None = None,
        clock: Callable[[], int] = system_clock,
    ) -> None:
        super().__init__(JournalStore(host_journal(store, max_retained_bytes, clock), namespace=namespace))


def create_sqlite_decision_history_store(
    filename: str | os.PathLike[str] | None = None,
    *,
    database: sqlite3.Connection | None = None,
    namespace: str | None = None,
    max_sessions: int | None = DECISION_SESSIONS,
    max_bytes: int | None = DECISION_BYTES,
    ttl: timedelta | float | None = DECISION_TTL_SECONDS,
) -> SQLiteStore:
    """Return a `SQLiteStore` with the bounds of a decision history: 128 conversations, 32 MiB, 24 hours (SPEC D19)."""
    return SQLiteStore(
        filename, database=database, namespace=namespace, max_sessions=max_sessions, max_bytes=max_bytes, ttl=ttl
    )


def open_store(url: str, *, namespace: str | None = None) -> MemoryStore | SQLiteStore:
    """Return the store that a URL from configuration names: see `minutebook.open_store`."""
    filename = store_url(url)
    if filename is None:
        return MemoryStore() if namespace is None else MemoryStore(namespace)
    return SQLiteStore(filename, namespace=namespace)


# --- bring your own loop ---------------------------------------------------------------------------------------------


class Conversation(_Over[asynchronous.Conversation]):
    """One conversation in a store, in one wire format: see `minutebook.Conversation`."""

    def __init__(
        self,
        store: Store,
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
        self.store = store
        self._core = asynchronous.Conversation(
            _core_of(store),
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

    append = _blocking(asynchronous.Conversation.append)
    open_calls = _blocking(asynchronous.Conversation.open_calls)
    complete = _blocking(asynchronous.Conversation.complete)
    drop_summary = _blocking(asynchronous.Conversation.drop_summary)
    window = _blocking(asynchronous.Conversation.window)
    export = _blocking(asynchronous.Conversation.export)
    import_ = _blocking(asynchronous.Conversation.import_)
    entries = _streaming(asynchronous.Conversation.entries)
    exchanges = _streaming(asynchronous.Conversation.exchanges)
    last = _blocking(asynchronous.Conversation.last)
    page = _blocking(asynchronous.Conversation.page)
    search = _streaming(asynchronous.Conversation.search)


class Turn(_Over[asynchronous.Turn]):
    """One turn of a conversation: a `with` block that holds the reservation (SPEC C1)."""

    def __init__(self, core: asynchronous.Turn) -> None:
        """Prepare the turn; nothing is reserved before the block is entered."""
        self._core = core

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

    window = _blocking(asynchronous.Turn.window)
    respond = _blocking(asynchronous.Turn.respond)
    result = _blocking(asynchronous.Turn.result)
    say = _blocking(asynchronous.Turn.say)
    park = _blocking(asynchronous.Turn.park)


# --- decisions -------------------------------------------------------------------------------------------------------


def HistoryOptions(  # noqa: N802 - it stands for the class, and makes one
    *,
    max_messages: int = 128,
    max_bytes: int = 262_144,
    low_water: float = 1.0,
    max_retained_bytes: int | None = None,
    on_event: Observer | None = None,
    store: Store | None = None,
    namespace: str | None = None,
    summarize: Summarize | None = None,
    max_summary_bytes: int = SUMMARY_BYTES,
    max_sessions: int | None = None,
    max_store_bytes: int | None = None,
    ttl: timedelta | float | None = None,
) -> decisions.HistoryOptions:
    """Return a `minutebook.HistoryOptions` over a blocking store."""
    return decisions.HistoryOptions(
        max_messages=max_messages,
        max_bytes=max_bytes,
        low_water=low_water,
        max_retained_bytes=max_retained_bytes,
        on_event=on_event,
        store=None if store is None else _core_of(store),
        namespace=namespace,
        summarize=summarize,
        max_summary_bytes=max_summary_bytes,
        max_sessions=max_sessions,
        max_store_bytes=max_store_bytes,
        ttl=ttl,
    )


class _Responses(decisions.ApiProvider):
    """The coroutines of a Responses provider over a client that never suspends them."""

    _api = RESPONSES
    _sdk = OPENAI
    _blocking = True


class _Chat(decisions.ApiProvider):
    """The coroutines of a Chat Completions provider over a client that never suspends them."""

    _api = CHAT
    _sdk = OPENAI
    _blocking = True


class _Anthropic(decisions.AnthropicDecisionProvider):
    """The coroutines of an Anthropic provider over a client that never suspends them."""

    _blocking = True


class _Gemini(decisions.GeminiDecisionProvider):
    """The coroutines of a Gemini provider over a client that never suspends them."""

    _blocking = True


class _ApiProvider(_Over[decisions.ApiProvider]):
    """What every provider is for blocking callers; `_made` is the asynchronous one that each drives."""

    _made: ClassVar[type[decisions.ApiProvider]]

    def __init__(
        self,
        *,
        model: str,
        client: object = None,
        base_url: str | None = None,
        api_key: str | None = None,
        decision_interface: Literal["native", "structured"] = "native",
        history: decisions.HistoryOptions | Literal[False] | None = None,
        max_output_tokens: int | None = None,
        count: bool = False,
        context: ContextWindow | None = None,
        extra_body: Mapping[str, JSON] | None = None,
        generate: Generate | None = None,
        stream: bool = False,
    ) -> None:
        self._core = self._made(
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

    @property
    def store(self) -> Store | None:
        """Where the conversations are kept; `None` without a history."""
        return _store_over(self._core.store)

    key = _plain(decisions.ApiProvider.key)
    decide = _blocking(decisions.ApiProvider.decide)
    close = _blocking(decisions.ApiProvider.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class OpenAIDecisionProvider(_ApiProvider):
    """Decisions by OpenAI's Responses API with an `openai.OpenAI` client: see `minutebook.OpenAIDecisionProvider`."""

    _made = _Responses


class OpenAIChatDecisionProvider(_ApiProvider):
    """Decisions by the Chat Completions API with a blocking client: see `minutebook.OpenAIChatDecisionProvider`."""

    _made = _Chat


class AnthropicDecisionProvider(_ApiProvider):
    """Decisions by Anthropic with an `anthropic.Anthropic` client: see `minutebook.AnthropicDecisionProvider`."""

    def __init__(
        self,
        *,
        model: str,
        client: object = None,
        base_url: str | None = None,
        api_key: str | None = None,
        decision_interface: Literal["native", "structured"] = "native",
        history: decisions.HistoryOptions | Literal[False] | None = None,
        max_output_tokens: int | None = None,
        count: bool = False,
        context: ContextWindow | None = None,
        extra_body: Mapping[str, JSON] | None = None,
        generate: Generate | None = None,
        stream: bool = False,
        reasoning: Literal["strip", "keep", "drop_block"] = "strip",
    ) -> None:
        self._core = _Anthropic(
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
            reasoning=reasoning,
        )


class GeminiDecisionProvider(_ApiProvider):
    """Decisions by Gemini with an `httpx2.Client`: see `minutebook.GeminiDecisionProvider`."""

    _made = _Gemini


class ContextGuardTransport(BaseTransport):
    """The guard under a blocking SDK client: see `minutebook.ContextGuardTransport`."""

    def __init__(
        self,
        *,
        provider: Provider,
        context: ContextWindow,
        transport: BaseTransport | None = None,
        qualified: Sequence[str] = (),
        on_event: Observer | None = None,
    ) -> None:
        self._guard = Guard(provider, context, qualified, on_event, blocking=True)
        self._inner = carrier(transport, "handle_request", "HTTPTransport")

    def handle_request(self, request: Request) -> Response:
        """Return the response to `request`: see `minutebook.ContextGuardTransport.handle_async_request`."""
        return drive(self._guard.send(request, self._inner.handle_request))

    def surface(self, request: Any, call_next: Callable[[Any], Any]) -> Any:
        """Raise a refusal as it is, and guard nothing by itself: see `minutebook.ContextGuardTransport.surface`."""
        try:
            returned = call_next(request)
        except Exception as error:
            refusal = refusal_in(error)
        else:
            return drive(self._guard.carried(returned))
        raise refusal

    def close(self) -> None:
        """Close the transport that carries the requests."""
        self._inner.close()

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._inner.__exit__(exc_type, exc_value, traceback)


class DecisionProvider(Protocol):
    """Who makes the decisions of an invocation, for blocking callers."""

    def decide(self, request: DecisionRequest) -> Decision:
        """Return the next decision: see `minutebook.ports.DecisionProvider.decide`."""
        ...


class _Awaitable:
    """A blocking provider in the form that the runtime awaits."""

    def __init__(self, provider: DecisionProvider) -> None:
        self._provider = provider
        store = getattr(provider, "store", None)
        self.store = _core_of(store) if isinstance(store, Store) else None

    async def decide(self, request: DecisionRequest) -> Decision:
        decision: object = self._provider.decide(request)
        if isinstance(decision, Coroutine):
            decision.close()
            raise BlockingMismatch("an asynchronous provider was given to a blocking runtime")
        return decision  # type: ignore[return-value]


class Memory(MemoryHandle):
    """The memory resources of one call, for a capability that is a plain function: see `minutebook.Memory`."""

    def read(self, name: str) -> MemoryValue:
        """See `minutebook.Memory.read`."""
        return drive(self._resources.read(name))

    def write(self, name: str, value: JSON) -> int:
        """See `minutebook.Memory.write`."""
        return drive(self._resources.write(name, value))

    def compare_and_set(self, name: str, value: JSON, *, version: int) -> int | None:
        """See `minutebook.Memory.compare_and_set`."""
        return drive(self._resources.compare_and_set(name, value, version=version))


class Runtime(Generic[T]):
    """
    Runs a program with the decisions of blocking providers: see `minutebook.Runtime`.

    Agents that one decision calls side by side run one after the other.
    """

    def __init__(
        self,
        program: Program[T],
        provider: DecisionProvider,
        *,
        providers: Mapping[str, DecisionProvider] | None = None,
        checkpoints: Store | Literal[False] | None = None,
        memory: Store | None = None,
        fresh_id: Random = programs.fresh_id,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        clock: Callable[[], int] = system_clock,
        approval_ttl: timedelta | float = APPROVAL_SECONDS,
        projection: Projection = "inline",
    ) -> None:
        self._core = programs.Runtime(
            program,
            _Awaitable(provider),
            providers={name: _Awaitable(each) for name, each in (providers or {}).items()},
            checkpoints=checkpoints if checkpoints is None or checkpoints is False else _core_of(checkpoints),
            memory=None if memory is None else _core_of(memory),
            fresh_id=fresh_id,
            monotonic_ns=monotonic_ns,
            clock=clock,
            approval_ttl=approval_ttl,
            projection=projection,
        )

    def run(
        self,
        task: str,
        *,
        run_id: str | None = None,
        invocation_id: str | None = None,
        task_id: str | None = None,
        observations: Sequence[Observation] = (),
        on_observation: Callable[[Observation], None] | None = None,
    ) -> Outcome[T]:
        """Return what the program came to on `task`: see `minutebook.Runtime.run`."""
        return drive(
            self._core.run(
                task,
                run_id=run_id,
                invocation_id=invocation_id,
                task_id=task_id,
                observations=observations,
                on_observation=on_observation,
            )
        )

    def resume(
        self,
        run_id: str,
        invocation_id: str,
        *,
        approvals: Sequence[Approval] = (),
        on_observation: Callable[[Observation], None] | None = None,
    ) -> Outcome[T]:
        """Go on with an invocation from its checkpoint: see `minutebook.Runtime.resume`."""
        return drive(self._core.resume(run_id, invocation_id, approvals=approvals, on_observation=on_observation))

    def recover(self, run_id: str, invocation_id: str, *, worker_stopped: bool, epoch: int | None = None) -> None:
        """Free the invocation of a worker that is known to be stopped: see `minutebook.Runtime.recover`."""
        drive(self._core.recover(run_id, invocation_id, worker_stopped=worker_stopped, epoch=epoch))


class _Agent(agents.Agent):
    """The coroutines of an agent over a client that never suspends them."""

    _blocking = True


class Agent(_Over[agents.Agent]):
    """One agent and one conversation with it, with an `openai.OpenAI` client: see `minutebook.Agent`."""

    def __init__(
        self,
        *,
        name: str,
        goal: str,
        client: object = None,
        model: str = "gpt-4o-mini",
        base_url: str | None = None,
        api_key: str | None = None,
        max_history_messages: int = 50,
        auto_manage_history: bool = True,
        enable_summarization: bool = False,
        summarization_threshold: int = 3000,
        summarization_model: str | None = None,
        tools: Sequence[Callable[..., Any]] = (),
        budgets: Budgets = DEFAULT_BUDGETS,
        store: Store | None = None,
        conversation: str | None = None,
        max_output_tokens: int | None = None,
        extra_body: Mapping[str, JSON] | None = None,
    ) -> None:
        self._core = _Agent(
            name=name,
            goal=goal,
            client=client,
            model=model,
            base_url=base_url,
            api_key=api_key,
            max_history_messages=max_history_messages,
            auto_manage_history=auto_manage_history,
            enable_summarization=enable_summarization,
            summarization_threshold=summarization_threshold,
            summarization_model=summarization_model,
            tools=tools,
            budgets=budgets,
            store=None if store is None else _core_of(store),
            conversation=conversation,
            max_output_tokens=max_output_tokens,
            extra_body=extra_body,
        )
        self.name = self._core.name
        self.goal = self._core.goal
        self.conversation = self._core.conversation

    @property
    def agent_id(self) -> str:
        """A UUID: the conversation's id where that is one, else one that is made of it."""
        return self._core.agent_id

    @property
    def key(self) -> ConversationKey:
        """The conversation's address in its store: to read, verify or export it."""
        return self._core.key

    @property
    def lost_events(self) -> int:
        """How often a handler raised; nothing else came of that."""
        return self._core.lost_events

    chat = _blocking(agents.Agent.chat)
    stream = _streaming(agents.Agent.stream)
    get_history = _blocking(agents.Agent.get_history)
    get_history_length = _blocking(agents.Agent.get_history_length)
    add_to_history = _blocking(agents.Agent.add_to_history)
    clear_history = _blocking(agents.Agent.clear_history)
    set_history = _blocking(agents.Agent.set_history)
    export_conversation_state = _blocking(agents.Agent.export_conversation_state)
    import_conversation_state = _blocking(agents.Agent.import_conversation_state)
    summarize_history = _blocking(agents.Agent.summarize_history)
    get_conversation_summary = _blocking(agents.Agent.get_conversation_summary)
    set_conversation_summary = _blocking(agents.Agent.set_conversation_summary)
    is_summarization_enabled = _plain(agents.Agent.is_summarization_enabled)
    estimate_history_tokens = _blocking(agents.Agent.estimate_history_tokens)
    search = _streaming(agents.Agent.search)
    delete = _blocking(agents.Agent.delete)
    recover = _blocking(agents.Agent.recover)
    on = _plain(agents.Agent.on)
    close = _blocking(agents.Agent.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _store_over(core: JournalStore | None) -> Store | None:
    return None if core is None else Store(core)


def _core_of(store: Store) -> JournalStore:
    if not isinstance(store, Store):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BlockingMismatch(
            f"minutebook.sync takes a store of minutebook.sync, not {type(store).__module__}.{type(store).__name__}"
        )
    return store._core  # pyright: ignore[reportPrivateUsage]
