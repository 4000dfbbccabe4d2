"""
What a host's own store must do (SPEC D24): give out whole records under exclusion, and save all or nothing.

The records here are JSON documents, as a `HostedJournal` writes them; a host may keep them in a text column.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, TypeVar

from minutebook.errors import DecisionHistoryBusy, DecisionHistoryFenced
from minutebook.model.keys import ConversationKey
from minutebook.testing.conformance import samples
from minutebook.testing.conformance.report import Report, check_name, expect, run_check
from minutebook.testing.conformance.samples import KEY
from minutebook.testing.drive import Cut, cancel_at

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeAlias

    from minutebook.ports import Store

    StoreFactory: TypeAlias = Callable[[], Awaitable[Store]]

__all__ = ["STORE_CHECKS", "check_store"]

T = TypeVar("T")

_OLD = b'{"record":"old"}'
_NEW = b'{"record":"new"}'
_MOST_AWAITS = 200  # a driver that polls would have no last one
_WORKERS = 8
_PATIENCE_SECONDS = 5.0


async def read(store: Store, key: ConversationKey = KEY) -> bytes | None:
    """Return what the store holds, and save the same again."""

    async def operation(stored: bytes | None) -> tuple[bytes | None, bytes | None]:
        return stored, stored

    return await store.transact(key, operation)


async def write(store: Store, record: bytes | None, key: ConversationKey = KEY) -> None:
    """Save a record, or delete it with `None`."""

    async def operation(_: bytes | None) -> tuple[bytes | None, None]:
        return record, None

    await store.transact(key, operation)


class _Stop(BaseException):
    """What no `except Exception` catches, as an interrupt is."""


# --- whole records ---------------------------------------------------------------------------------------------------


async def saves_what_was_returned(store: Store) -> None:
    """An absent record is given as `None`; what an operation returns is saved, and its result is answered."""
    expect(await read(store) is None, "something is there before anything was saved")

    async def operation(stored: bytes | None) -> tuple[bytes | None, object]:
        expect(stored is None, "an absent record was given as something")
        return _OLD, marker

    marker = object()
    expect(await store.transact(KEY, operation) is marker, "the operation's result is not what was answered")
    expect(await read(store) == _OLD, "the record that was returned is not the one saved")
    await write(store, _NEW)
    expect(await read(store) == _NEW, "a second save is not what is read")
    await write(store, None)
    expect(await read(store) is None, "a returned `None` does not delete the record")


async def keeps_bytes_exactly(store: Store) -> None:
    """Records come back byte for byte: other scripts, escapes, spaces at both ends, a mebibyte."""
    text = "\u00e9e\u0301\U0001f600\u2028\ufeff'\"\\% {x} $1 :a ?"
    for number, record in enumerate(
        (
            json.dumps({"text": text}, ensure_ascii=False).encode(),
            json.dumps({"text": text + "\x00\x1f"}).encode(),
            b' {"b": 1,\t"a": 1.0}\n',
            json.dumps({"text": "x" * 2**20}).encode(),
        )
    ):
        await write(store, record)
        expect(await read(store) == record, f"record {number} came back with other bytes")


async def gives_private_snapshots(store: Store) -> None:
    """What an operation is given is `bytes` of its own: nothing done to it reaches the store unless it is returned."""
    await write(store, _OLD)

    async def operation(stored: bytes | None) -> tuple[bytes | None, None]:
        expect(type(stored) is bytes, f"the snapshot is a {type(stored).__name__}, which can be changed or shared")
        return stored, None

    await store.transact(KEY, operation)


# --- all or nothing --------------------------------------------------------------------------------------------------


async def keeps_the_old_record_on_errors(store: Store) -> None:
    """Whatever an operation raises reaches the caller unchanged, the old record stays, and the next operation works."""
    for before in (None, _OLD):
        await write(store, before)
        for error in (ValueError("refused"), DecisionHistoryFenced("refused"), _Stop()):

            async def operation(_: bytes | None, error: BaseException = error) -> tuple[bytes | None, None]:
                await asyncio.sleep(0)
                raise error

            seen: BaseException | None = None
            try:
                await store.transact(KEY, operation)
            except BaseException as raised:
                seen = raised
            expect(seen is error, f"a {type(error).__name__} became {type(seen).__name__}")
            expect(await _soon(read(store)) == before, f"a {type(error).__name__} changed the record")


async def keeps_the_old_record_on_cancellation(store: Store) -> None:
    """A cancelled operation saves nothing, not even later; the next operation works."""
    for before in (None, _OLD):
        await write(store, before)
        entered, go_on = asyncio.Event(), asyncio.Event()

        async def operation(_: bytes | None) -> tuple[bytes | None, None]:
            entered.set()  # noqa: B023 - awaited in the same round
            await go_on.wait()  # noqa: B023
            return _NEW, None

        task = asyncio.ensure_future(store.transact(KEY, operation))
        await _soon(entered.wait())
        task.cancel()
        await _settled(task)
        expect(task.cancelled(), "the cancellation did not reach the caller")
        go_on.set()
        await _settled()
        expect(await _soon(read(store)) == before, "a cancelled operation was saved")


async def is_whole_after_a_cut_at_any_await(store: Store) -> None:
    """Cut at any await of its own, a save is there whole or not at all, and the next operation works."""
    for cut in (Cut.CANCELLED, Cut.TIMEOUT, Cut.INTERRUPTED, Cut.CLOSED):
        step, struck = 0, True
        while struck and step < _MOST_AWAITS:
            step += 1
            await _soon(write(store, _OLD))
            struck = (await cancel_at(lambda: write(store, _NEW), step, cut)).struck
            await _settled()
            expect(await _soon(read(store)) in (_OLD, _NEW), f"neither old nor new after {cut.value} at await {step}")


async def keeps_the_old_record_when_closed(store: Store) -> None:
    """An operation whose coroutine is closed while it waits saves nothing; the next operation works."""

    async def operation(_: bytes | None) -> tuple[bytes | None, None]:
        waiting.append(True)
        await asyncio.sleep(0)
        waiting.clear()
        return _NEW, None

    await write(store, _OLD)
    step, waiting = 0, list[bool]()
    while not waiting:
        step += 1
        ended = await cancel_at(lambda: store.transact(KEY, operation), step, Cut.CLOSED)
        expect(ended.struck, "the operation was never seen waiting")
        await _settled()
    expect(await _soon(read(store)) == _OLD, "a closed operation was saved")


# --- exclusion -------------------------------------------------------------------------------------------------------


async def excludes_overlap(store: Store) -> None:
    """Two operations on one key never overlap: one waits, or is refused as busy, and no change is lost."""
    running = overlaps = 0

    async def increment(stored: bytes | None) -> tuple[bytes | None, None]:
        nonlocal running, overlaps
        running += 1
        overlaps += running > 1
        count = json.loads(stored)["count"] if stored else 0
        for _ in range(3):
            await asyncio.sleep(0)
        running -= 1
        return json.dumps({"count": count + 1}).encode(), None

    answers = await _soon(
        asyncio.gather(*(store.transact(KEY, increment) for _ in range(_WORKERS)), return_exceptions=True)
    )
    others = {type(answer).__name__ for answer in answers if answer is not None} - {DecisionHistoryBusy.__name__}
    expect(not others, f"overlap was refused with {sorted(others)}; DecisionHistoryBusy is the rule")
    done = sum(answer is None for answer in answers)
    stored = await read(store)
    count = json.loads(stored)["count"] if stored else 0
    expect(not overlaps, f"{overlaps} operations ran beside another one on the same key")
    expect(done > 0 and count == done, f"{done} operations succeeded and {count} are in the record")


async def lets_other_keys_go_on(store: Store) -> None:
    """While an operation waits for its model, other conversations are read and written."""
    go_on, entered = asyncio.Event(), asyncio.Event()

    async def operation(_: bytes | None) -> tuple[bytes | None, None]:
        entered.set()
        await go_on.wait()
        return _NEW, None

    task = asyncio.ensure_future(store.transact(KEY, operation))
    try:
        await _soon(entered.wait())
        other = ConversationKey(KEY.namespace, "another")
        await _soon(write(store, _OLD, other))
        expect(await _soon(read(store, other)) == _OLD, "another conversation was not saved meanwhile")
        go_on.set()
        await _soon(task)
    finally:
        task.cancel()
        await _settled(task)
    expect(await read(store) == _NEW, "the operation that waited was not saved")


# --- identity --------------------------------------------------------------------------------------------------------


async def compares_ids_exactly(store: Store) -> None:
    """Every pair of namespace and id is a record of its own: nothing is folded, trimmed, normalised or joined."""
    keys = [ConversationKey("tenant", name) for name in samples.ODD_IDS]
    keys += [ConversationKey(name, "tenant") for name in samples.ODD_IDS]
    keys += [ConversationKey(*pair) for pair in samples.JOINED]
    for number, key in enumerate(keys):
        expect(await read(store, key) is None, f"pair {number} shares a record with an earlier one")
        await write(store, b'{"record":%d}' % number, key)
    for number, key in enumerate(keys):
        expect(await read(store, key) == b'{"record":%d}' % number, f"pair {number} shares a record with a later one")


async def _soon(call: Awaitable[T]) -> T:
    try:
        return await asyncio.wait_for(call, _PATIENCE_SECONDS)
    except TimeoutError:
        expect(False, f"nothing happened for {_PATIENCE_SECONDS} s: a lock was left behind, or is held too widely")
        raise


async def _settled(*tasks: asyncio.Future[None]) -> None:
    """Let the loop run what a cut call may have left under way."""
    if tasks:
        await asyncio.wait(tasks, timeout=_PATIENCE_SECONDS)
    for _ in range(20):
        await asyncio.sleep(0)


STORE_CHECKS: tuple[Callable[[Store], Awaitable[None]], ...] = (
    saves_what_was_returned,
    keeps_bytes_exactly,
    gives_private_snapshots,
    keeps_the_old_record_on_errors,
    keeps_the_old_record_on_cancellation,
    is_whole_after_a_cut_at_any_await,
    keeps_the_old_record_when_closed,
    excludes_overlap,
    lets_other_keys_go_on,
    compares_ids_exactly,
)
"""Every check, in the order of the report."""


async def check_store(factory: StoreFactory, *, only: Callable[[Store], Awaitable[None]] | None = None) -> Report:
    """Prove a host's store: `factory()` gives a fresh and empty one, as often as it is asked. Needs asyncio."""
    outcomes = [
        await run_check(_on_a_store(check, factory), check_name(check), (check.__doc__ or "").strip())
        for check in ((only,) if only else STORE_CHECKS)
    ]
    return Report(tuple(outcomes))


def _on_a_store(check: Callable[[Store], Awaitable[None]], factory: StoreFactory) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        await check(await factory())

    return run
