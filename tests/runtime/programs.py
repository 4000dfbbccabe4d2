"""What the runtime's tests share: programs, decisions to script, and runs under a still clock and counted ids."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from minutebook.model.decisions import CallReference, Decision, Finish, ProposedCall
from minutebook.programs import storage_of
from minutebook.runtime import Program, Runtime, capability
from minutebook.testing import ScriptedProvider, checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from minutebook.stores.journal import JournalStore


DONE: list[Any] = []
"""What capabilities did that cannot be undone; empty before each test."""


@capability
async def act(number: int) -> int:
    """Do something that cannot be undone."""
    DONE.append(number)
    await checkpoint()
    return 2 * number


def call(name: str, /, **arguments: Any) -> ProposedCall:
    return ProposedCall(capability=name, arguments=arguments)


def calls(*proposed: ProposedCall, exchange: int | None = None) -> Decision:
    """Return a decision for these calls, with references as a history gives them when `exchange` is given."""
    if exchange is None:
        return Decision(calls=proposed)
    return Decision(
        calls=tuple(
            ProposedCall(capability=each.capability, arguments=each.arguments, reference=CallReference(exchange, at))
            for at, each in enumerate(proposed)
        )
    )


def finish(output: Any = "done") -> Decision:
    return Decision(finish=Finish(output=output))


def still() -> int:
    """Return the same instant always."""
    return 0


def counted_ids() -> Callable[[], str]:
    ids: Iterator[int] = itertools.count(1)
    return lambda: f"id-{next(ids)}"


def program(*capabilities: Any, **options: Any) -> Program[Any]:
    return Program(name="clerk", instructions="Answer.", capabilities=capabilities, **options)


def runtime(
    declared: Program[Any], *script: Decision | BaseException, clock: Callable[[], int] = still
) -> tuple[Runtime[Any], ScriptedProvider]:
    """Return a runtime over a scripted provider, and the provider, which keeps what it was asked."""
    provider = ScriptedProvider(script)
    return Runtime(declared, provider, fresh_id=counted_ids(), monotonic_ns=clock, clock=still), provider


def kept(
    declared: Program[Any],
    store: JournalStore,
    *script: Decision | BaseException,
    clock: Callable[[], int] = still,
    monotonic_ns: Callable[[], int] = still,
    providers: Mapping[str, ScriptedProvider] | None = None,
    **options: Any,
) -> tuple[Runtime[Any], ScriptedProvider]:
    """Return a runtime that keeps its runs and its memory in `store`, as another process would over the same store."""
    provider = ScriptedProvider(script)
    storage = storage_of(store)
    made = Runtime(
        declared,
        provider,
        providers=providers,
        checkpoints=storage,
        memory=storage,
        fresh_id=store.fresh_id,
        monotonic_ns=monotonic_ns,
        clock=clock,
        **options,
    )
    return made, provider


IDS = {"run_id": "r", "invocation_id": "i"}
