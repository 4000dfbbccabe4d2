"""
Running programs: the runtime with the clocks, the ids, the stores and the event loop that it is given from outside.

The runtime itself imports none of them, so that every failure replays; a host that has no wish of its own gets them
here.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from minutebook import runtime
from minutebook.runtime.approvals import APPROVAL_SECONDS
from minutebook.runtime.checkpoints import Storage
from minutebook.runtime.loop import agents_of, one_by_one
from minutebook.stores.clock import system_clock
from minutebook.stores.journal import JournalStore, checked_store
from minutebook.stores.memory import MemoryJournal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import timedelta

    from minutebook.ports import DecisionProvider, Random
    from minutebook.runtime import Outcome, Program
    from minutebook.runtime.outcomes import Branch
    from minutebook.runtime.references import Projection

T = TypeVar("T")


def fresh_id() -> str:
    """Return an unguessable id."""
    return secrets.token_hex(16)


async def side_by_side(branches: Sequence[Branch]) -> list[Outcome[Any]]:
    """
    Run branches as tasks of the event loop, or one after the other where none runs; see `one_by_one`.

    A cancellation reaches each of them, and is passed on when they have ended.
    """
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return await one_by_one(branches)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_settled(branch)) for branch in branches]
    settled = [task.result() for task in tasks]
    for each in settled:
        if isinstance(each, Exception):
            raise each
    return [each for each in settled if not isinstance(each, Exception)]


async def _settled(branch: Branch) -> Outcome[Any] | Exception:
    """Return what a branch raises, since a task group ends the other branches when one raises."""
    try:
        return await branch()
    except Exception as error:  # raised again when all have ended
        return error


def task_cancelled() -> bool | None:
    """Return whether the task that runs this was asked to end; `None` where no loop of asyncio runs here."""
    import asyncio

    try:
        task = asyncio.current_task()
    except RuntimeError:
        return None
    return task is not None and task.cancelling() > 0


class Runtime(runtime.Runtime[T]):
    """
    Runs a program with the decisions of a provider. It holds no state of a run: runs may overlap.

    Args:
        program: what may be done.
        provider: who decides what to do.
        providers: who decides instead for the agents of these names; the others ask `provider`.
        checkpoints: where runs are kept so that they can go on after an approval or a crash. Left out, it is the
            history's store, unless that is in RAM and no capability needs approval: what ends with the process has
            nothing to go on from. `False` keeps none.
        memory: where memory resources are kept; the checkpoints' or the history's store if left out.
        fresh_id: gives the ids of runs and invocations that are not named.
        monotonic_ns: gives nanoseconds as an int, for the budget of wall time.
        clock: gives Unix milliseconds, for the expiry of approvals.
        approval_ttl: how long a call that was shown may be approved, as a `timedelta` or in seconds; a day if left out.
        projection: `inline` keeps a model's messages as they came; in `opaque_refs` no argument that it wrote is shown
            to it again: the history keeps references, and what they stand for is kept with the checkpoints (SPEC D27).

    Agents that one decision calls side by side run as tasks of the event loop.

    Raises:
        InvalidOption: `program` is none, or needs a store that is not there.
        BlockingMismatch: a provider or a store of `minutebook.sync`.
    """

    def __init__(
        self,
        program: Program[T],
        provider: DecisionProvider,
        *,
        providers: Mapping[str, DecisionProvider] | None = None,
        checkpoints: JournalStore | Literal[False] | None = None,
        memory: JournalStore | None = None,
        fresh_id: Random = fresh_id,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        clock: Callable[[], int] = system_clock,
        approval_ttl: timedelta | float = APPROVAL_SECONDS,
        projection: Projection = "inline",
    ) -> None:
        history = history_store(provider)
        kept = _checkpoints(checkpoints, history, program)
        super().__init__(
            program,
            provider,
            providers=providers,
            checkpoints=kept,
            memory=_storage(memory, "memory") or kept or (storage_of(history) if history else None),
            fresh_id=fresh_id,
            monotonic_ns=monotonic_ns,
            clock=clock,
            approval_ttl=approval_ttl,
            gather=side_by_side,
            cancelled=task_cancelled,
            projection=projection,
        )


def history_store(provider: object) -> JournalStore | None:
    """Return the store of a provider's history, where it has one."""
    store = getattr(provider, "store", None)
    return store if isinstance(store, JournalStore) else None


def storage_of(store: JournalStore) -> Storage:
    """Return a store as the runtime takes it."""
    ttl_ms = getattr(store.journal, "ttl_ms", None)
    return Storage(store.journal, store.namespace, store.tokens, store.fresh_id, ttl_ms)


def _storage(store: object, option: str) -> Storage | None:
    if store is None:
        return None
    return storage_of(checked_store(store, option))


def _checkpoints(given: object, history: JournalStore | None, program: Program[Any]) -> Storage | None:
    if given is False:
        return None
    if given is not None:
        return _storage(given, "checkpoints")
    if history is None:
        return None
    in_ram = isinstance(history.journal, MemoryJournal)
    return storage_of(history) if not in_ram or _stops(program) else None


def _stops(program: Program[Any]) -> bool:
    """Return whether a run of a program may stop for an approval; what is no program is refused later."""
    agents = agents_of(program) if isinstance(program, runtime.Program) else []  # pyright: ignore[reportUnnecessaryIsInstance]
    return any(capability.needs_approval for each in agents for capability in each.capabilities.values())
