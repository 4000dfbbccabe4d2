"""Host stores for the tests: three right ones, and one for each fault that the suite has to find."""

from __future__ import annotations

import asyncio
import threading
import unicodedata
from typing import Any

from minutebook.errors import DecisionHistoryBusy


class WaitingHost:
    """A right one: overlap on a key waits."""

    def __init__(self) -> None:
        self.records: dict[Any, bytes] = {}
        self.locks: dict[Any, asyncio.Lock] = {}

    def address(self, key: Any) -> Any:
        return key

    async def transact(self, key: Any, operation: Any) -> Any:
        place = self.address(key)
        async with self.locks.setdefault(place, asyncio.Lock()):
            saved, result = await operation(self.records.get(place))
            self.save(place, saved)
            return result

    def save(self, place: Any, saved: bytes | None) -> None:
        if saved is None:
            self.records.pop(place, None)
        else:
            self.records[place] = saved

    async def keys(self, namespace: str, after: str, rows: int) -> tuple[str, ...]:
        return tuple(sorted(key.id for key in self.records if key.namespace == namespace and key.id > after)[:rows])


class BusyHost(WaitingHost):
    """A right one: overlap on a key is refused."""

    def __init__(self) -> None:
        super().__init__()
        self.active: set[Any] = set()

    async def transact(self, key: Any, operation: Any) -> Any:
        if key in self.active:
            raise DecisionHistoryBusy("another operation on this record is under way")
        self.active.add(key)
        try:
            await asyncio.sleep(0)
            saved, result = await operation(self.records.get(key))
        finally:
            self.active.discard(key)
        self.save(key, saved)
        return result


class ThreadedHost(WaitingHost):
    """A right one for operations that never wait, from any thread and without an event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    async def transact(self, key: Any, operation: Any) -> Any:
        with self.lock:
            saved, result = await operation(self.records.get(key))
            self.save(key, saved)
            return result


class PlainHost:
    """Like a right one, but it cannot name its records."""

    def __init__(self) -> None:
        self.host = ThreadedHost()

    async def transact(self, key: Any, operation: Any) -> Any:
        return await self.host.transact(key, operation)


# --- planted faults --------------------------------------------------------------------------------------------------


class Unprotected(WaitingHost):
    """A get and a set with nothing between them."""

    async def transact(self, key: Any, operation: Any) -> Any:
        saved, result = await operation(self.records.get(key))
        self.save(key, saved)
        return result


class LosesOldRecord(WaitingHost):
    """Takes the record out before the operation, and puts it back only when that succeeds."""

    async def transact(self, key: Any, operation: Any) -> Any:
        async with self.locks.setdefault(key, asyncio.Lock()):
            saved, result = await operation(self.records.pop(key, None))
            self.save(key, saved)
            return result


class SharesSnapshots(WaitingHost):
    """Gives out the very object that it keeps."""

    async def transact(self, key: Any, operation: Any) -> Any:
        async with self.locks.setdefault(key, asyncio.Lock()):
            kept: Any = self.records.get(key)
            saved, result = await operation(kept)
            self.save(key, saved if saved is None else bytearray(saved))  # type: ignore[arg-type]
            return result


class CommitsAfterCancellation(WaitingHost):
    """Lets the operation run on behind the caller's back, and saves what it returns."""

    async def transact(self, key: Any, operation: Any) -> Any:
        return await asyncio.shield(asyncio.ensure_future(super().transact(key, operation)))


class SwallowsCancellation(WaitingHost):
    """Takes a cancellation for an answer."""

    async def transact(self, key: Any, operation: Any) -> Any:
        try:
            return await super().transact(key, operation)
        except asyncio.CancelledError:
            return None


class CaseFolds(WaitingHost):
    def address(self, key: Any) -> Any:
        return key.namespace.casefold(), key.id.casefold()


class Normalises(WaitingHost):
    def address(self, key: Any) -> Any:
        return tuple(unicodedata.normalize("NFC", part) for part in (key.namespace, key.id))


class Compatible(WaitingHost):
    def address(self, key: Any) -> Any:
        return tuple(unicodedata.normalize("NFKC", part) for part in (key.namespace, key.id))


class Trims(WaitingHost):
    def address(self, key: Any) -> Any:
        return key.namespace.rstrip(), key.id.rstrip()


class Cuts(WaitingHost):
    def address(self, key: Any) -> Any:
        return key.namespace[:255], key.id[:255]


class JoinsByColon(WaitingHost):
    def address(self, key: Any) -> Any:
        return f"{key.namespace}:{key.id}"


class JoinsBySlash(WaitingHost):
    def address(self, key: Any) -> Any:
        return f"{key.namespace}/{key.id}"


class JoinsByNothing(WaitingHost):
    def address(self, key: Any) -> Any:
        return key.namespace + key.id


class ForgetsNamespace(WaitingHost):
    def address(self, key: Any) -> Any:
        return key.id


class LocksEverything(WaitingHost):
    """One lock for all conversations, held while a model is asked."""

    async def transact(self, key: Any, operation: Any) -> Any:
        async with self.locks.setdefault("all", asyncio.Lock()):
            saved, result = await operation(self.records.get(key))
            self.save(key, saved)
            return result


class LeavesLock(WaitingHost):
    """Gives its lock back only after success."""

    async def transact(self, key: Any, operation: Any) -> Any:
        lock = self.locks.setdefault(key, asyncio.Lock())
        await lock.acquire()
        saved, result = await operation(self.records.get(key))
        self.save(key, saved)
        lock.release()
        return result


class WrapsErrors(WaitingHost):
    """Hides a refusal in an error of its own."""

    async def transact(self, key: Any, operation: Any) -> Any:
        try:
            return await super().transact(key, operation)
        except Exception as error:
            raise RuntimeError("transaction failed") from error


class NeverDeletes(WaitingHost):
    """Keeps the old record when the operation returns none."""

    def save(self, place: Any, saved: bytes | None) -> None:
        if saved is not None:
            self.records[place] = saved


class TearsRecords(WaitingHost):
    """Saves in two steps, with an await between them."""

    async def transact(self, key: Any, operation: Any) -> Any:
        async with self.locks.setdefault(key, asyncio.Lock()):
            saved, result = await operation(self.records.get(key))
            self.save(key, None)
            await asyncio.sleep(0)
            self.save(key, saved)
            return result


class ReformatsRecords(WaitingHost):
    """Keeps JSON in a column that sorts and reformats it."""

    def save(self, place: Any, saved: bytes | None) -> None:
        super().save(place, saved and saved.strip())


FAULTS = {
    Unprotected: "excludes_overlap",
    LosesOldRecord: "keeps_the_old_record_on_errors",
    SharesSnapshots: "gives_private_snapshots",
    CommitsAfterCancellation: "keeps_the_old_record_on_cancellation",
    SwallowsCancellation: "keeps_the_old_record_on_cancellation",
    CaseFolds: "compares_ids_exactly",
    Normalises: "compares_ids_exactly",
    Compatible: "compares_ids_exactly",
    Trims: "compares_ids_exactly",
    Cuts: "compares_ids_exactly",
    JoinsByColon: "compares_ids_exactly",
    JoinsBySlash: "compares_ids_exactly",
    JoinsByNothing: "compares_ids_exactly",
    ForgetsNamespace: "compares_ids_exactly",
    LocksEverything: "lets_other_keys_go_on",
    LeavesLock: "keeps_the_old_record_on_errors",
    WrapsErrors: "keeps_the_old_record_on_errors",
    NeverDeletes: "saves_what_was_returned",
    TearsRecords: "is_whole_after_a_cut_at_any_await",
    ReformatsRecords: "keeps_bytes_exactly",
}
"""Each planted fault with the check that must find it."""
