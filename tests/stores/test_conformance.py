"""The shipped suite on every store of ours, and on stores with planted faults, each of which it has to find."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from tests.stores import hosts, postgres_lab
from tests.stores.redis_lab import salted_journal
from tests.stores.remote_lab import LabRemote

from minutebook.errors import InvalidOption, PairingViolation
from minutebook.model.bounds import StoreBounds
from minutebook.model.keys import ConversationKey
from minutebook.ports import Journal, Listing
from minutebook.stores.hosted import HostedJournal
from minutebook.stores.memory import MemoryJournal
from minutebook.stores.remote_journal import RemoteJournal
from minutebook.stores.sqlite import SQLiteJournal
from minutebook.testing import FrozenClock
from minutebook.testing.conformance import (
    JOURNAL_CHECKS,
    STORE_CHECKS,
    JournalConformance,
    StoreConformance,
    check_journal,
    check_store,
)
from minutebook.testing.conformance.report import Report
from minutebook.testing.faults import _Journal

# --- our stores ------------------------------------------------------------------------------------------------------


class TestMemory(JournalConformance):
    async def fresh(self, bounds: StoreBounds, clock: FrozenClock) -> Journal:
        return MemoryJournal(bounds, clock=clock)


class _OnFiles(JournalConformance):
    blocking = False

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o700)
        self.names = (tmp_path / f"{number}.db" for number in itertools.count())

    async def fresh(self, bounds: StoreBounds, clock: FrozenClock) -> Journal:
        return SQLiteJournal(next(self.names), bounds, clock=clock, blocking=self.blocking)


class TestSQLite(_OnFiles):
    """With an event loop: concurrent commits are grouped."""


class TestSQLiteBlocking(_OnFiles):
    """Without one."""

    blocking = True


class TestRemote(JournalConformance):
    """Over the smallest of servers."""

    async def fresh(self, bounds: StoreBounds, clock: FrozenClock) -> Journal:
        return RemoteJournal(LabRemote(clock), bounds, ticks=clock)


class TestRedis(JournalConformance):
    """On a real server, with an event loop."""

    kind = "Redis"
    blocking = False

    async def fresh(self, bounds: StoreBounds, clock: FrozenClock) -> Journal:
        return salted_journal(self.kind, f"{uuid.uuid4()}", bounds, clock, blocking=self.blocking)


class TestRedisBlocking(TestRedis):
    """Without one."""

    blocking = True


class TestRedisCluster(TestRedis):
    """On a real cluster of three masters and three replicas, with an event loop."""

    kind = "Redis cluster"


class TestRedisClusterBlocking(TestRedisCluster):
    """Without one."""

    blocking = True


class TestPostgres(JournalConformance):
    """On a real server, with an event loop."""

    blocking = False

    @pytest.fixture(autouse=True)
    def _schema(self, tmp_path: Path) -> None:
        self.names = (f"{tmp_path} {number}" for number in itertools.count())

    async def fresh(self, bounds: StoreBounds, clock: FrozenClock) -> Journal:
        return cast("Journal", postgres_lab.journal(next(self.names), bounds, clock, blocking=self.blocking))


class TestPostgresBlocking(TestPostgres):
    """Without one."""

    blocking = True


class TestHosted(JournalConformance):
    """Over a host that only exchanges whole records and waits on overlap."""

    bounded = False
    expiring = False
    host: Any = hosts.WaitingHost

    async def fresh(self, bounds: StoreBounds, clock: FrozenClock) -> Journal:
        return HostedJournal(self.host(), max_retained_bytes=bounds.max_retained_bytes, clock=clock)


class TestHostedOnBusyHost(TestHosted):
    """Over a host that refuses overlap."""

    host = hosts.BusyHost


class TestHostedWithoutListing(TestHosted):
    """Over a host that cannot name its records."""

    listing = False
    host = hosts.PlainHost


class TestWaitingHost(StoreConformance):
    async def fresh(self) -> Any:
        return hosts.WaitingHost()


class TestBusyHost(StoreConformance):
    async def fresh(self) -> Any:
        return hosts.BusyHost()


# --- planted faults in host stores -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("host", "check"), hosts.FAULTS.items(), ids=lambda part: getattr(part, "__name__", part))
def test_d24_suite_finds_a_faulty_host_store(host: Any, check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each planted fault fails the check that is about it; an unprotected get/set pair is one of them (SPEC D24)."""
    monkeypatch.setattr("minutebook.testing.conformance.stores._PATIENCE_SECONDS", 0.2)

    async def fresh() -> Any:
        return host()

    report = asyncio.run(check_store(fresh))
    assert not report.passed
    assert check in {outcome.name for outcome in report.failures}, str(report)


def test_d24_every_store_check_finds_some_fault() -> None:
    """No check of the store suite can only pass; one is met by way of another (a closed operation, below)."""
    assert {check.__name__ for check in STORE_CHECKS} - set(hosts.FAULTS.values()) == {
        "keeps_the_old_record_when_closed"
    }


def test_d24_suite_finds_a_host_that_saves_what_was_closed() -> None:
    """A host that saves in its `finally` fails the check about closed operations."""

    class SavesOnClose(hosts.WaitingHost):
        async def transact(self, key: Any, operation: Any) -> Any:
            saved: bytes | None = b'{"record":"half"}'
            try:
                saved, result = await operation(self.records.get(key))
            finally:
                self.save(key, saved)
            return result

    async def fresh() -> Any:
        return SavesOnClose()

    report = asyncio.run(check_store(fresh))
    assert "keeps_the_old_record_when_closed" in {outcome.name for outcome in report.failures}


# --- planted faults in journals --------------------------------------------------------------------------------------


class Faulty(_Journal):
    """A right journal with one rule left out."""

    def __init__(self, bounds: StoreBounds, clock: FrozenClock) -> None:
        super().__init__(MemoryJournal(bounds, clock=clock))

    async def _around(self, method: str, call: Any) -> Any:
        return await call()


class FencesNothing(Faulty):
    async def commit(self, key: Any, token: str, epoch: int, delta: Any, *, release: bool = False) -> Any:
        header = await self.journal.header(key)
        held = header is not None and header.token
        return await super().commit(
            key, header.token if held else token, header.epoch if held else epoch, delta, release=release
        )


class FencesByEpochAlone(Faulty):
    async def commit(self, key: Any, token: str, epoch: int, delta: Any, *, release: bool = False) -> Any:
        header = await self.journal.header(key)
        held = header is not None and header.token
        return await super().commit(key, header.token if held else token, epoch, delta, release=release)


class WritesAgain(Faulty):
    """Forgets that an id was committed before."""

    async def commit(self, key: Any, token: str, epoch: int, delta: Any, *, release: bool = False) -> Any:
        self.count = getattr(self, "count", 0) + 1
        delta = msgspec.structs.replace(delta, idempotency=f"{delta.idempotency}-{self.count}")
        return await super().commit(key, token, epoch, delta, release=release)


class HandsOver(Faulty):
    """Gives a held conversation to whoever asks."""

    async def reserve(self, key: Any, token: str, **options: Any) -> Any:
        header = await self.journal.header(key)
        if header is not None and header.token:
            await self.journal.recover(key, None)
        return await super().reserve(key, token, **options)


class Races(Faulty):
    """Looks and takes in two steps."""

    async def reserve(self, key: Any, token: str, **options: Any) -> Any:
        header = await self.journal.header(key)
        await asyncio.sleep(0)
        if header is None and await self.journal.header(key) is not None:
            await self.journal.recover(key, None)
        return await super().reserve(key, token, **options)


class Renews(Faulty):
    """A read prolongs."""

    async def header(self, key: Any) -> Any:
        header = await super().header(key)
        if header is not None and not header.token:
            self.journal._namespaces[key.namespace].logs[key.id].header = msgspec.structs.replace(  # type: ignore[attr-defined]
                header,
                touched=self.journal._clock(),  # type: ignore[attr-defined]
            )
        return header


class Addresses(Faulty):
    def __init_subclass__(cls, **options: Any) -> None:
        def moved(name: str) -> Any:
            async def method(self: Any, key: Any, *positional: Any, **named: Any) -> Any:
                return await getattr(Faulty, name)(self, ConversationKey(*cls.address(key)), *positional, **named)

            return method

        for name in ("reserve", "commit", "header", "newest", "oldest", "receipts", "receipt", "delete", "recover"):
            setattr(cls, name, moved(name))

    @staticmethod
    def address(key: Any) -> Any:
        raise NotImplementedError


class CaseFoldedIds(Addresses):
    @staticmethod
    def address(key: Any) -> Any:
        return key.namespace, key.id.lower()


class OneNamespace(Addresses):
    @staticmethod
    def address(key: Any) -> Any:
        return "all", key.id


class OldestForNewest(Faulty):
    async def newest(self, key: Any, before: int, page: Any) -> Any:
        return tuple(reversed(await super().oldest(key, 0, page)))


class ListsPatterns(Faulty):
    async def list(self, namespace: str, after: str, rows: int) -> Any:
        return await super().list("tenant" if "%" in namespace else namespace, after, rows)


class BearsAlike(Faulty):
    """What was deleted and begun anew cannot be told from what it was."""

    async def reserve(self, key: Any, token: str, **options: Any) -> Any:
        reserved = await super().reserve(key, token, **options)
        return msgspec.structs.replace(reserved, header=self._alike(reserved.header))

    async def header(self, key: Any) -> Any:
        header = await super().header(key)
        return header and self._alike(header)

    def _alike(self, header: Any) -> Any:
        return msgspec.structs.replace(header, birth=b"12345678")


class KeepsReceipts(Faulty):
    """A deletion that leaves the receipts behind."""

    def __init__(self, bounds: StoreBounds, clock: FrozenClock) -> None:
        super().__init__(bounds, clock)
        self.kept: dict[Any, Any] = {}

    async def reserve(self, key: Any, token: str, **options: Any) -> Any:
        reserved = await super().reserve(key, token, **options)
        if reserved.receipt:
            self.kept[key, reserved.receipt.idempotency] = reserved.receipt
        return reserved

    async def receipt(self, key: Any, idempotency: str) -> Any:
        return await super().receipt(key, idempotency) or self.kept.get((key, idempotency))


class KeepsBlanks(Faulty):
    """A reservation that is given back unused leaves its header behind."""

    async def commit(self, key: Any, token: str, epoch: int, delta: Any, *, release: bool = False) -> Any:
        committed = await super().commit(key, token, epoch, delta, release=release)
        if release and not committed.header.entries:
            await self.journal.reserve(key, token, format=committed.header.format)
            await self.journal.recover(key, None)
        return committed


class ForgetsBounds(Faulty):
    def __init__(self, bounds: StoreBounds, clock: FrozenClock) -> None:
        super().__init__(StoreBounds(), clock)


class AltersBytes(Faulty):
    async def oldest(self, key: Any, after: int, page: Any) -> Any:
        found = await super().oldest(key, after, page)
        return tuple(msgspec.structs.replace(e, payload=e.payload.replace(b"e\xcc\x81", b"\xc3\xa9")) for e in found)


class ReadsAfterClosing(Faulty):
    async def close(self) -> None:
        return None


class LeavesExpired(Faulty):
    """A read that finds an expired conversation leaves it where it is."""

    async def header(self, key: Any) -> Any:
        listed = [each.header for each in await super().list(key.namespace, "", 9) if each.key == key]
        return listed[0] if listed else None


class KeepsWhatWasCut(Faulty):
    """A cut that only hides: what it took is still read by its number."""

    def __init__(self, bounds: StoreBounds, clock: FrozenClock) -> None:
        super().__init__(bounds, clock)
        self.kept: dict[Any, Any] = {}

    async def reserve(self, key: Any, token: str, **options: Any) -> Any:
        reserved = await super().reserve(key, token, **options)
        self.kept.update(((key, entry.seq), entry) for entry in reserved.written)
        return reserved

    async def newest(self, key: Any, before: int, page: Any) -> Any:
        found = await super().newest(key, before, page)
        below = (found[-1].seq if found else before) - 1
        older = [self.kept[key, seq] for seq in range(below, 0, -1) if (key, seq) in self.kept]
        return (*found, *older)[: page.rows]


class CutsWholeCommits(Faulty):
    """A cut inside a commit takes the whole of it, as dropping a row would."""

    async def oldest(self, key: Any, after: int, page: Any) -> Any:
        receipts = await super().receipts(key, 0, 99)
        header = await super().header(key)
        cut = header.cut.seq if header else 0
        ends = [receipt.last for receipt in receipts if receipt.first <= cut < receipt.last]
        return await super().oldest(key, max([after, *ends]), page)


class NumbersAnew(Faulty):
    """Behind a cut of everything, numbers begin again."""

    async def oldest(self, key: Any, after: int, page: Any) -> Any:
        header = await super().header(key)
        moved = header.cut.seq if header and header.cut.seq > 6 else 0
        found = await super().oldest(key, after, page)
        return tuple(msgspec.structs.replace(entry, seq=entry.seq - moved) for entry in found)


class ForgetsReceipts(Faulty):
    """What left takes the receipts of its commits along."""

    async def receipts(self, key: Any, after: int, rows: int) -> Any:
        header = await super().header(key)
        found = await super().receipts(key, after, rows)
        return tuple(receipt for receipt in found if not header or receipt.last > header.cut.seq)


class CutsAnywhere(Faulty):
    """Asks nobody whether a cut may stand there."""

    async def reserve(self, key: Any, token: str, *, opening: Any = None, **options: Any) -> Any:
        try:
            return await super().reserve(key, token, opening=opening, **options)
        except (InvalidOption, PairingViolation):
            if not opening or not opening.cut:
                raise
            moved = msgspec.structs.replace(opening, cut=2)
            return await super().reserve(key, token, opening=moved, **options)


class FreesNothing(Faulty):
    """Counts what was cut as if it were still there."""

    async def reserve(self, key: Any, token: str, *, opening: Any = None, **options: Any) -> Any:
        if opening and opening.cut and opening.drafts:
            await super().reserve(key, token, opening=msgspec.structs.replace(opening, cut=0), **options)
        return await super().reserve(key, token, opening=opening, **options)


class LeavesReceipts(Faulty):
    """Of a record that comes with its receipts it keeps the last one alone."""

    def __init__(self, bounds: StoreBounds, clock: FrozenClock) -> None:
        super().__init__(bounds, clock)
        self.kept: dict[Any, Any] = {}

    async def reserve(self, key: Any, token: str, *, opening: Any = None, **options: Any) -> Any:
        reserved = await super().reserve(key, token, opening=opening, **options)
        if opening and opening.receipts:
            self.kept[key] = reserved.receipt
        return reserved

    async def receipts(self, key: Any, after: int, rows: int) -> Any:
        return (self.kept[key],) if key in self.kept else await super().receipts(key, after, rows)


class ListsExpired(Faulty):
    """Names what nobody may read any more."""

    async def list(self, namespace: str, after: str, rows: int) -> Any:
        logs = self.journal._namespaces[namespace].logs  # type: ignore[attr-defined]
        names = [name for name in sorted(logs) if name > after]
        return tuple([Listing(key=ConversationKey(namespace, name), header=logs[name].header) for name in names[:rows]])


JOURNAL_FAULTS = {
    LeavesReceipts: "takes_a_record_with_its_receipts",
    KeepsWhatWasCut: "cuts_the_oldest",
    CutsWholeCommits: "cuts_inside_a_commit",
    NumbersAnew: "goes_on_behind_a_cut",
    ForgetsReceipts: "answers_for_what_left",
    CutsAnywhere: "refuses_a_cut_whole",
    FreesNothing: "frees_what_was_cut",
    FencesNothing: "fences_the_old_holder",
    FencesByEpochAlone: "fences_the_old_holder",
    WritesAgain: "replays_the_first_receipt",
    HandsOver: "excludes_others",
    Races: "one_of_many_wins",
    Renews: "reads_change_nothing",
    CaseFoldedIds: "compares_ids_exactly",
    OneNamespace: "compares_ids_exactly",
    OldestForNewest: "pages_as_asked",
    ListsPatterns: "lists_by_code_points",
    KeepsReceipts: "deletes_for_good",
    BearsAlike: "tells_a_new_record_from_the_old_one",
    KeepsBlanks: "keeps_no_blank_record",
    ForgetsBounds: "refuses_when_full",
    AltersBytes: "reads_back_what_was_written",
    LeavesExpired: "removes_what_expired",
    ListsExpired: "lists_nothing_expired",
    ReadsAfterClosing: "closes_quietly",
}


@pytest.mark.parametrize(("journal", "check"), JOURNAL_FAULTS.items(), ids=lambda part: getattr(part, "__name__", part))
def test_suite_finds_a_faulty_journal(journal: Any, check: str) -> None:
    """Each rule that is left out fails the check that is about it."""

    async def fresh(bounds: StoreBounds, clock: FrozenClock) -> Any:
        return journal(bounds, clock)

    report = asyncio.run(check_journal(fresh))
    assert check in {outcome.name for outcome in report.failures}, str(report)


# --- the report ------------------------------------------------------------------------------------------------------


def _report(journal: Any, **options: bool) -> Report:
    async def fresh(bounds: StoreBounds, clock: FrozenClock) -> Any:
        return journal(bounds, clock)

    return asyncio.run(check_journal(fresh, **options))


def test_report_names_every_check_once() -> None:
    """A report holds each check with its rule, and says why one was skipped."""
    report = _report(lambda bounds, clock: MemoryJournal(bounds, clock=clock), bounded=False, listing=False)
    assert [outcome.name for outcome in report.outcomes] == [check.__name__ for check in JOURNAL_CHECKS]
    assert all(outcome.rule.endswith(".") for outcome in report.outcomes)
    assert report.passed
    assert {outcome.name for outcome in report.outcomes if outcome.state == "skipped"} == {
        "frees_what_was_cut",
        "lists_by_code_points",
        "refuses_when_full",
        "last_byte_has_one_winner",
        "expires_as_one",
        "removes_what_expired",
        "lists_nothing_expired",
    }


def test_i37_report_holds_nothing_of_the_hosts() -> None:
    """What a host's driver says in its errors never reaches the report (promise I-37)."""

    class Talks(Faulty):
        async def _around(self, method: str, call: Any) -> Any:
            raise RuntimeError("secret-canary")

    report = _report(Talks)
    assert not report.passed
    assert "secret-canary" not in str(report)
    assert "RuntimeError escaped the store" in str(report)


def test_suite_needs_no_pytest_until_it_runs() -> None:
    """Importing the testing package and its suite imports neither pytest nor hypothesis."""
    code = (
        "import sys, minutebook.testing, minutebook.testing.conformance;"
        "sys.exit(bool({'pytest', 'hypothesis', 'sqlite3'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
