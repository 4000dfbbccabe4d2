"""The SQLite journal on real files, with real threads, loops and processes. No sleeps: whoever waits is woken."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import fcntl
import gc
import os
import random
import re
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from tests.budgets import budget
from tests.faults.powercut import SOUND, Outcome, Verdict, rebuild
from tests.faults.trace import strace_problem, trace_child
from tests.journals import is_writing

import minutebook.stores.sqlite as sqlite_module
import minutebook.stores.sqlite_connection as connection_module
import minutebook.stores.sqlite_host as host_module
import minutebook.stores.sqlite_log as log_module
import minutebook.stores.sqlite_pace as pace_module
import minutebook.stores.sqlite_rows as rows_module
import minutebook.stores.sqlite_writer as writer_module
from minutebook.errors import (
    DecisionHistoryAbsent,
    DecisionHistoryBusy,
    DecisionHistoryConflict,
    DecisionHistoryCorrupt,
    DecisionHistoryFenced,
    DecisionHistoryNotReserved,
    DecisionHistoryRetentionExceeded,
    DecisionHistorySchemaUnsupported,
    DecisionHistoryStorageFailed,
    DecisionHistoryStorageLocked,
    DecisionHistoryStorageUnsafe,
    DecisionHistoryStoreFull,
    InvalidId,
    InvalidOption,
    MinutebookError,
    PairingViolation,
    StoreClosed,
)
from minutebook.model.bounds import StoreBounds
from minutebook.model.entries import Call, Draft, Entry, Kind, first_digest, recompute_digest
from minutebook.model.keys import ConversationKey
from minutebook.model.record import Delta
from minutebook.ports import Page
from minutebook.stores import sqlite_statements as sql
from minutebook.stores.sqlite import PURGED_PER_WRITE, SQLiteJournal
from minutebook.stores.sqlite_jobs import Job
from minutebook.stores.sqlite_writer import Writer

T = TypeVar("T")

KEY = ConversationKey("tenant", "talk")
WHOLE = Page(rows=10_000, messages=2**62, size=2**62)
HOUR = 3_600_000


class Clock:
    """A clock that stands until it is told."""

    def __init__(self) -> None:
        self.now = 1_800_000_000_000

    def __call__(self) -> int:
        return self.now


def done(coroutine: Coroutine[Any, Any, T]) -> T:
    """Finish a coroutine of the blocking colour: it must not suspend even once."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    raise AssertionError("a blocking journal suspended")


def text(kind: Kind, body: bytes, **more: Any) -> Draft:
    return Draft(kind=kind, payload=body, messages=1, size=len(body), stop=len(body), **more)


def exchange(name: str, body: bytes = b'"hello"') -> Delta:
    """A settled turn of four entries: input, call, result, answer."""
    calls = (Call("call-1", "search"),)
    drafts = (
        text(Kind.INPUT, body),
        text(Kind.RESPONSE, b'"call"', calls=calls),
        text(Kind.RESULT, b'"result"'),
        text(Kind.RESPONSE, b'"answer"'),
    )
    return Delta(drafts=drafts, idempotency=name, opens=True, settles=True)


def turn(name: str, body: bytes = b'"hello"') -> Delta:
    return Delta(drafts=(text(Kind.INPUT, body),), idempotency=name, opens=True)


def answer(name: str) -> Delta:
    return Delta(drafts=(text(Kind.RESPONSE, b'"answer"'),), idempotency=name, settles=True)


def append(journal: SQLiteJournal, key: ConversationKey, name: str, body: bytes = b'"hello"') -> Any:
    return journal.reserve(key, f"token-{name}", format="f", opening=exchange(name, body), release=True)


def raw(path: Path, statement: str, *values: object) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        return connection.execute(statement, values).fetchall()
    finally:
        connection.close()


def writer_of(journal: SQLiteJournal) -> Writer:
    database = journal._database
    assert isinstance(database, Writer)
    return database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path / "history.db"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def journal(path: Path, clock: Clock) -> Iterator[SQLiteJournal]:
    journal = SQLiteJournal(path, StoreBounds(ttl_ms=HOUR), clock=clock, blocking=True)
    yield journal
    done(journal.close())


# --- the contract ----------------------------------------------------------------------------------------------------


def test_i20_what_was_appended_is_read_back_equal_in_both_orders(journal: SQLiteJournal) -> None:
    """Every field of every entry, and the chain's digests, survive the store."""
    bodies = [b'"\\u0000"', b"\xf0\x9f\x98\x80", b"", bytes(range(256)) * 40]
    written: list[Entry] = []
    for number, body in enumerate(bodies):
        written += done(append(journal, KEY, str(number), body)).written
    assert list(done(journal.oldest(KEY, 0, WHOLE))) == written
    assert list(done(journal.newest(KEY, 10_000, WHOLE))) == written[::-1]
    assert done(journal.oldest(KEY, 3, WHOLE)) == tuple(written[3:])
    assert done(journal.newest(KEY, 3, WHOLE)) == (written[1], written[0])
    digest = first_digest(KEY)
    for entry in written:
        digest = recompute_digest(digest, entry)
        assert entry.digest == digest
    header = done(journal.header(KEY))
    assert header is not None
    assert (header.digest, header.entries, header.version, header.epoch) == (digest, 16, 4, 4)
    assert header.bytes == sum(len(entry.payload) for entry in written)


def test_pages_end_at_rows_or_once_messages_or_size_are_exceeded(journal: SQLiteJournal) -> None:
    """A page holds the entry that exceeds it, so that progress is always made."""
    done(append(journal, KEY, "a", b"x" * 100))
    newest = done(journal.newest(KEY, 100, WHOLE))
    assert done(journal.newest(KEY, 100, Page(rows=2, messages=99, size=2**40))) == newest[:2]
    assert done(journal.newest(KEY, 100, Page(rows=9, messages=2, size=2**40))) == newest[:3]
    assert done(journal.newest(KEY, 100, Page(rows=9, messages=99, size=9))) == newest[:2]
    assert done(journal.oldest(KEY, 0, Page(rows=9, messages=99, size=50))) == newest[:-2:-1]
    assert done(journal.newest(KEY, 100, Page(rows=0, messages=9, size=9))) == ()
    assert done(journal.newest(KEY, 1, WHOLE)) == ()
    assert done(journal.oldest(KEY, 4, WHOLE)) == ()


def test_reserve_returns_the_tail_unless_the_version_is_known(journal: SQLiteJournal) -> None:
    """A warm process reads no entries again."""
    header = done(append(journal, KEY, "a")).header
    cold = done(journal.reserve(KEY, "t", format="f", tail=Page(rows=3, messages=9, size=999)))
    assert [entry.seq for entry in cold.tail] == [4, 3, 2]
    done(journal.commit(KEY, "t", cold.header.epoch, Delta(idempotency="r"), release=True))
    warm = done(journal.reserve(KEY, "t", format="f", tail=WHOLE, known=header.version + 1))
    assert warm.tail == ()
    assert done(journal.reserve(ConversationKey("tenant", "new"), "t", format="f", tail=WHOLE)).tail == ()


def test_d22_a_held_conversation_is_busy_and_nothing_changes(journal: SQLiteJournal, clock: Clock) -> None:
    """The second of two overlapping decisions fails at once, and learns how old the reservation is."""
    first = done(journal.reserve(KEY, "one", format="f", opening=turn("a")))
    clock.now += 500
    for release in (False, True):
        with pytest.raises(DecisionHistoryBusy) as caught:
            done(journal.reserve(KEY, "two", format="f", opening=turn("b"), release=release))
        assert (caught.value.epoch, caught.value.since_ms) == (1, 500)
    with pytest.raises(DecisionHistoryBusy):
        done(journal.delete(KEY))
    assert done(journal.header(KEY)) == first.header
    assert first.header.token == "one"


def test_a_conversation_keeps_its_format(journal: SQLiteJournal) -> None:
    """Another wire format is a conflict."""
    done(append(journal, KEY, "a"))
    with pytest.raises(DecisionHistoryConflict):
        done(journal.reserve(KEY, "t", format="g"))


def test_i13_only_token_and_epoch_together_may_write(journal: SQLiteJournal) -> None:
    """After `recover` the old holder changes nothing, also when one of the two happens to fit."""
    old = done(journal.reserve(KEY, "old", format="f", opening=turn("a"))).header
    recovered = done(journal.recover(KEY, old.epoch))
    assert (recovered.token, recovered.epoch, recovered.attempt) == ("", old.epoch + 1, None)
    new = done(journal.reserve(KEY, "new", format="f")).header
    for token, epoch in (("old", old.epoch), ("old", new.epoch), ("new", old.epoch), ("", new.epoch)):
        with pytest.raises(DecisionHistoryFenced):
            done(journal.commit(KEY, token, epoch, answer("late")))
    assert done(journal.header(KEY)) == new
    assert done(journal.newest(KEY, 99, WHOLE))[0].kind is Kind.ABANDONED
    done(journal.commit(KEY, "new", new.epoch, exchange("b"), release=True))
    with pytest.raises(DecisionHistoryFenced):
        done(journal.commit(ConversationKey("tenant", "none"), "t", 1, answer("c")))


def test_i14_recover_wants_a_reservation_and_its_epoch(journal: SQLiteJournal) -> None:
    """Of two recoveries one wins; the other is told that somebody was first."""
    with pytest.raises(DecisionHistoryAbsent):
        done(journal.recover(KEY, None))
    done(append(journal, KEY, "a"))
    with pytest.raises(DecisionHistoryNotReserved):
        done(journal.recover(KEY, None))
    epoch = done(journal.reserve(KEY, "t", format="f")).header.epoch
    with pytest.raises(DecisionHistoryNotReserved):
        done(journal.recover(KEY, epoch - 1))
    done(journal.recover(KEY, epoch))
    with pytest.raises(DecisionHistoryNotReserved):
        done(journal.recover(KEY, epoch))


def test_i08_a_repeated_commit_returns_the_first_receipt(journal: SQLiteJournal) -> None:
    """Same id and content: nothing is written. Same id, other content: a conflict."""
    first = done(append(journal, KEY, "a"))
    again = done(append(journal, KEY, "a"))
    assert (again.receipt, again.written) == (first.receipt, ())
    assert again.header.entries == first.header.entries
    with pytest.raises(DecisionHistoryConflict):
        done(append(journal, KEY, "a", b'"other"'))
    epoch = done(journal.reserve(KEY, "t", format="f")).header.epoch
    held = done(journal.commit(KEY, "t", epoch, exchange("b")))
    repeated = done(journal.commit(KEY, "t", epoch, exchange("b"), release=True))
    assert (repeated.receipt, repeated.written, repeated.header.token) == (held.receipt, (), "")
    assert done(journal.receipt(KEY, "b")) == held.receipt
    assert done(journal.receipt(KEY, "c")) is None
    assert done(journal.header(KEY)) == repeated.header


def test_receipts_are_listed_by_version(journal: SQLiteJournal) -> None:
    """Ids of any order come back in the order of the commits, page by page."""
    names = [f"{random.Random(7).random()}-{number}" for number in range(20)]
    random.Random(1).shuffle(names)
    made = [done(append(journal, KEY, name)).receipt for name in names]
    found: list[Any] = []
    while page := done(journal.receipts(KEY, found[-1].version if found else 0, 7)):
        found += page
    assert found == made


def test_i04_a_refused_delta_changes_nothing(journal: SQLiteJournal) -> None:
    """What the model refuses leaves header, entries and totals as they were, also while a conversation is created."""
    other = ConversationKey("tenant", "other")
    wrong = Delta(drafts=(text(Kind.RESULT, b'"result"'),), idempotency="w")
    with pytest.raises(PairingViolation):
        done(journal.reserve(other, "t", format="f", opening=wrong))
    assert done(journal.header(other)) is None
    assert done(journal.totals("tenant")).conversations == 0
    epoch = done(journal.reserve(KEY, "t", format="f")).header.epoch
    before = done(journal.header(KEY))
    with pytest.raises(PairingViolation):
        done(journal.commit(KEY, "t", epoch, wrong))
    assert done(journal.header(KEY)) == before


def test_bad_input_01_to_05_are_refused_before_anything_is_read(journal: SQLiteJournal) -> None:
    """Bad inputs 1 to 5, for the ids that reach the journal."""
    for name in ("", " ", "a\0b", "\ud800", "x" * 513):
        with pytest.raises(InvalidId):
            done(append(journal, KEY, name))
        with pytest.raises(InvalidId):
            done(journal.receipt(KEY, name))
        with pytest.raises(InvalidId):
            done(journal.totals(name))
    with pytest.raises(InvalidOption):
        done(journal.reserve(KEY, "", format="f"))


def test_i33_listing_is_by_code_points_and_within_the_namespace(journal: SQLiteJournal) -> None:
    """No folding, no normalisation, no neighbour's conversation."""
    names = ["B", "a", "a:b", "a%", "\u00e9", "e\u0301", "\uffff", "\U00010000", "'; DROP TABLE x"]
    for name in names:
        done(journal.reserve(ConversationKey("tenant", name), "t", format="f"))
        done(journal.reserve(ConversationKey("tenant:" + name, "b"), "t", format="f"))
    found: list[str] = []
    while page := done(journal.list("tenant", found[-1] if found else "", 2)):
        found += [listing.key.id for listing in page]
    assert found == sorted(names)
    assert done(journal.list("nobody", "", 9)) == ()
    totals = done(journal.totals("tenant"))
    assert (totals.conversations, totals.reserved, totals.bytes, totals.expired) == (len(names), len(names), 0, 0)


# --- capacity and time -----------------------------------------------------------------------------------------------


def test_d07_a_full_store_refuses_and_evicts_nothing(path: Path) -> None:
    """Sessions and bytes are exact: the last byte fits, the next does not."""
    size = sum(len(draft.payload) for draft in exchange("a").drafts)
    journal = SQLiteJournal(
        path, StoreBounds(max_sessions=2, max_bytes=2 * size, max_retained_bytes=2 * size), blocking=True
    )
    one, two, three = (ConversationKey("tenant", name) for name in "123")
    done(append(journal, one, "a"))
    done(append(journal, two, "a"))
    for key in (one, three):
        with pytest.raises(DecisionHistoryStoreFull):
            done(append(journal, key, "b"))
    assert done(journal.totals("tenant")).bytes == 2 * size
    assert done(journal.header(three)) is None
    done(append(journal, ConversationKey("neighbour", "1"), "a"))
    done(journal.delete(two))
    with pytest.raises(DecisionHistoryRetentionExceeded):
        done(append(journal, one, "b", b"x" * 3 * size))
    done(append(journal, one, "b"))
    done(journal.close())


def test_i29_thirty_two_threads_race_for_the_last_bytes(path: Path) -> None:
    """Never over by one byte, and exactly as many winners as there is room for."""
    size = sum(len(draft.payload) for draft in exchange("a").drafts)
    rounds = 5
    for number in range(rounds):
        namespace = f"round-{number}"
        journal = SQLiteJournal(path, StoreBounds(max_bytes=3 * size + size // 2), blocking=True)
        barrier = threading.Barrier(32)

        def race(
            worker: int, journal: SQLiteJournal = journal, namespace: str = namespace, all_: threading.Barrier = barrier
        ) -> bool:
            all_.wait()
            try:
                done(append(journal, ConversationKey(namespace, str(worker)), "a"))
            except DecisionHistoryStoreFull:
                return False
            return True

        with ThreadPoolExecutor(32) as pool:
            assert sum(pool.map(race, range(32))) == 3
        assert done(journal.totals(namespace)).bytes == 3 * size
        done(journal.close())


@pytest.mark.parametrize("seed", range(3))
def test_i29_grants_ahead_of_need_never_change_what_fits(path: Path, seed: int) -> None:
    """Bytes of any size go to any conversation until one byte would be too much; then exactly that one is refused."""
    random_ = random.Random(seed)
    limit = 700_000
    journals = [SQLiteJournal(path, bounds, blocking=True) for bounds in (StoreBounds(max_bytes=limit), StoreBounds())]
    sizes: dict[str, int] = {}
    overhead = sum(len(draft.payload) for draft in exchange("a", b"").drafts)
    refused = 0
    for number in range(400):
        name = str(random_.randrange(20))
        key = ConversationKey("tenant", name)
        size = random_.choice([10, 1000, 30_000]) + overhead
        total = sum(sizes.values())
        if random_.random() < 0.08 and name in sizes:
            done(journals[0].delete(key))
            del sizes[name]
        elif total + size > limit:
            refused += 1
            with pytest.raises(DecisionHistoryStoreFull) as caught:
                done(append(journals[0], key, str(number), b"x" * (size - overhead)))
            assert caught.value.bytes == total + size
        else:
            journal = journals[random_.random() < 0.1]
            done(append(journal, key, str(number), b"x" * (size - overhead)))
            sizes[name] = sizes.get(name, 0) + size
        totals = done(journals[0].totals("tenant"))
        assert (totals.conversations, totals.bytes) == (len(sizes), sum(sizes.values()))
        check = "SELECT granted = (SELECT sum(granted) FROM minutebook_conversation) FROM minutebook_namespace"
        assert raw(path, check) == [(1,)]
    assert refused > 20
    for journal in journals:
        done(journal.close())


def test_i30_expiry_is_atomic_with_access_and_reading_renews_nothing(journal: SQLiteJournal, clock: Clock) -> None:
    """An expired conversation is absent to every method; the next reservation begins anew."""
    done(append(journal, KEY, "a"))
    clock.now += HOUR
    assert done(journal.header(KEY)) is not None
    clock.now += 1
    assert done(journal.header(KEY)) is None
    assert done(journal.newest(KEY, 99, WHOLE)) == done(journal.oldest(KEY, 0, WHOLE)) == ()
    assert done(journal.receipts(KEY, 0, 9)) == ()
    assert done(journal.receipt(KEY, "a")) is None
    assert done(journal.list("tenant", "", 9)) == ()
    totals = done(journal.totals("tenant"))
    assert (totals.conversations, totals.bytes, totals.expired) == (0, 0, 0)
    for call in (journal.recover(KEY, None), journal.delete(KEY)):
        with pytest.raises(DecisionHistoryAbsent):
            done(call)
    assert done(journal.totals("tenant")).expired == 0
    begun = done(append(journal, KEY, "a", b'"anew"'))
    assert (begun.header.version, begun.header.entries, len(begun.written)) == (1, 4, 4)


def test_o45_the_read_that_finds_it_expired_leaves_no_row(journal: SQLiteJournal, clock: Clock, path: Path) -> None:
    """D6, O-45: whichever read comes first, and however many rows there are; other conversations stay."""
    reads: list[Callable[[], Coroutine[Any, Any, object]]] = [
        lambda: journal.header(KEY),
        lambda: journal.newest(KEY, 99, WHOLE),
        lambda: journal.oldest(KEY, 0, WHOLE),
        lambda: journal.receipts(KEY, 0, 9),
        lambda: journal.receipt(KEY, "0"),
    ]
    for read in reads:
        for number in range(100):
            done(append(journal, KEY, str(number)))
        clock.now += HOUR + 1
        assert not done(read())
        for table in ("conversation", "log", "receipt", "residue", "namespace"):
            assert raw(path, f"SELECT count(*) FROM minutebook_{table}") == [(0,)], table


def test_i25_only_a_read_of_what_has_expired_writes(journal: SQLiteJournal, clock: Clock) -> None:
    """I-25: a live or absent conversation is read without a transaction of ours, to the last millisecond."""
    done(append(journal, KEY, "a"))
    before = writer_of(journal).transactions
    clock.now += HOUR
    for key in (KEY, ConversationKey("tenant", "absent")):
        done(journal.header(key))
        done(journal.newest(key, 99, WHOLE))
        done(journal.oldest(key, 0, WHOLE))
        done(journal.receipts(key, 0, 9))
        done(journal.receipt(key, "a"))
    done(journal.list("tenant", "", 9))
    done(journal.totals("tenant"))
    assert writer_of(journal).transactions == before
    clock.now += 1
    done(journal.header(KEY))
    assert writer_of(journal).transactions == before + 1


@pytest.mark.parametrize("where", ["ours", "read-only host", "locked host"])
def test_d06_a_read_never_fails_because_it_cannot_remove(
    where: str, journal: SQLiteJournal, clock: Clock, path: Path
) -> None:
    """D6: beside another writer, or on a connection that only reads, the expired one is absent and stays for later."""
    done(append(journal, KEY, "a"))
    clock.now += HOUR + 1
    mode = "ro" if where == "read-only host" else "rw"
    connection = sqlite3.connect(f"file:{path}?mode={mode}", uri=True, timeout=0)
    hosted = SQLiteJournal.on_connection(connection, StoreBounds(ttl_ms=HOUR), clock=clock)
    other = sqlite3.connect(path, isolation_level=None)
    if where != "read-only host":
        other.execute("BEGIN IMMEDIATE")
    reader = journal if where == "ours" else hosted
    began = time.monotonic()
    assert done(reader.header(KEY)) is None
    assert done(reader.oldest(KEY, 0, WHOLE)) == ()
    assert time.monotonic() - began < 5
    other.close()
    assert raw(path, "SELECT count(*) FROM minutebook_conversation") == [(1,)]
    assert done(journal.header(KEY)) is None
    assert raw(path, "SELECT count(*) FROM minutebook_conversation") == [(0,)]
    connection.close()


def test_i30_a_reserved_conversation_never_expires(journal: SQLiteJournal, clock: Clock) -> None:
    """Time alone ends no reservation, and a purge passes it by."""
    epoch = done(journal.reserve(KEY, "t", format="f", opening=turn("a"))).header.epoch
    for days in range(3):
        clock.now += 24 * HOUR
        done(append(journal, ConversationKey("tenant", f"other-{days}"), "a"))
        assert done(journal.header(KEY)) is not None
    done(journal.commit(KEY, "t", epoch, answer("b"), release=True))
    clock.now += HOUR + 1
    assert done(journal.header(KEY)) is None
    clock.now += HOUR
    done(append(journal, ConversationKey("tenant", "last"), "a"))
    assert done(journal.totals("tenant")).expired == 0


def test_i30_a_reservation_that_a_purge_passed_by_expires_once_it_is_given_back(
    journal: SQLiteJournal, clock: Clock
) -> None:
    """Given back by a replay, which writes nothing new, it is found by the next purge like any other."""
    epoch = done(journal.reserve(KEY, "t", format="f", opening=exchange("a"))).header.epoch
    clock.now += 2 * HOUR
    done(append(journal, ConversationKey("tenant", "other"), "a"))
    done(journal.commit(KEY, "t", epoch, exchange("a"), release=True))
    assert done(journal.totals("tenant")).expired == 1
    clock.now += 2 * 65_536
    done(append(journal, ConversationKey("tenant", "other"), "b"))
    assert done(journal.totals("tenant")).expired == 0


def test_d06_i31_a_reservation_that_a_purge_passed_by_expires_once_it_is_recovered(
    journal: SQLiteJournal, clock: Clock
) -> None:
    """D6, I-31: freed by who knows its worker to be stopped, it is found by the next purge like any other."""
    done(journal.reserve(KEY, "t", format="f", opening=exchange("a")))
    clock.now += 2 * HOUR
    done(append(journal, ConversationKey("tenant", "other"), "a"))
    done(journal.recover(KEY, None))
    clock.now += HOUR + 2 * 65_536
    done(append(journal, ConversationKey("tenant", "new"), "a"))
    totals = done(journal.totals("tenant"))
    assert (totals.conversations, totals.expired) == (1, 0)


def test_i30_a_clock_set_back_makes_no_record_immortal(journal: SQLiteJournal, clock: Clock, path: Path) -> None:
    """What was written ten years ahead expires an hour after the next write that sees it."""
    done(append(journal, KEY, "a"))
    clock.now += 10 * 365 * 24 * HOUR
    ahead = ConversationKey("tenant", "ahead")
    done(append(journal, ahead, "a"))
    clock.now -= 10 * 365 * 24 * HOUR
    done(append(journal, KEY, "b"))
    header = done(journal.header(ahead))
    assert header is not None
    assert header.touched == clock.now
    clock.now += HOUR + 1
    assert done(journal.header(ahead)) is None


def test_i31_a_write_purges_a_few_and_capacity_as_many_as_it_needs(path: Path, clock: Clock) -> None:
    """Expired conversations never count against capacity, and no write removes more than it must."""
    bounds = StoreBounds(max_sessions=40, ttl_ms=HOUR)
    journal = SQLiteJournal(path, bounds, clock=clock, blocking=True)
    for number in range(40):
        done(append(journal, ConversationKey("tenant", str(number)), "a"))
    clock.now += HOUR + 1
    done(append(journal, KEY, "a"))
    assert 0 < done(journal.totals("tenant")).expired == 40 - PURGED_PER_WRITE
    clock.now += 2 * 65_536
    left = 40 - PURGED_PER_WRITE
    while left:
        done(append(journal, KEY, f"b{left}"))
        left = max(0, left - PURGED_PER_WRITE)
        assert done(journal.totals("tenant")).expired == left
    for number in range(300):
        done(append(journal, KEY, f"c{number}"))
    assert raw(path, "SELECT count(*) FROM minutebook_residue") == [(0,)]
    assert raw(path, "SELECT count(DISTINCT conversation) FROM minutebook_log") == [(1,)]
    assert raw(path, "SELECT count(DISTINCT conversation) FROM minutebook_receipt") == [(1,)]
    done(journal.close())


@pytest.mark.parametrize("time", [float("nan"), -1, None, True, 2**63, "now"])
def test_bad_input_57_and_58_a_clock_that_gives_no_time_is_refused(path: Path, time: object) -> None:
    """Bad inputs 56 to 58: nothing is written."""
    journal = SQLiteJournal(path, clock=lambda: time, blocking=True)  # type: ignore[arg-type,return-value]
    with pytest.raises(InvalidOption):
        done(append(journal, KEY, "a"))
    done(journal.close())
    assert raw(path, "SELECT count(*) FROM minutebook_conversation") == [(0,)]


# --- groups, loops and threads ---------------------------------------------------------------------------------------


def test_commits_of_many_tasks_share_transactions(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """256 tasks with 4 exchanges each need far fewer transactions than commits, and a lone task gets no thread."""
    monkeypatch.setattr(pace_module, "perf_counter", lambda: 0.0)  # no disk is slow

    async def work() -> None:
        journal = SQLiteJournal(path)
        await append(journal, KEY, "alone")
        assert writer_of(journal)._thread is None

        async def task(number: int) -> None:
            for name in "abcd":
                await append(journal, ConversationKey("tenant", str(number)), name)

        before = writer_of(journal).transactions
        await asyncio.gather(*map(task, range(256)))
        assert writer_of(journal).transactions - before <= 64
        assert (await journal.totals("tenant")).conversations == 257
        await journal.close()

    asyncio.run(work())


def test_d06_who_is_told_of_a_commit_finds_nobody_writing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a read right behind it would leave what it finds expired."""
    journal, writing = SQLiteJournal(path), []
    wake = writer_module.wake

    def told(jobs: list[Job]) -> None:
        writing.append(writer_of(journal)._lock.locked())
        wake(jobs)

    async def story() -> None:
        monkeypatch.setattr(writer_module, "wake", told)
        await asyncio.gather(*(append(journal, ConversationKey("tenant", name), "a") for name in "abc"))
        assert writing
        assert not any(writing)
        await journal.close()

    asyncio.run(story())


def test_a_refused_job_takes_nothing_of_its_group_with_it(path: Path) -> None:
    """In one transaction some are Busy, some conflict, one finds the store full after it purged: the rest stands."""

    async def work() -> None:
        clock = Clock()
        journal = SQLiteJournal(path, StoreBounds(max_bytes=900, ttl_ms=HOUR), clock=clock)
        await append(journal, ConversationKey("tenant", "old"), "a")
        clock.now += HOUR + 1
        await journal.reserve(ConversationKey("tenant", "held"), "t", format="f")
        before = writer_of(journal).transactions
        outcomes = await asyncio.gather(
            *(append(journal, ConversationKey("tenant", str(number)), "a") for number in range(8)),
            append(journal, ConversationKey("tenant", "large"), "a", b"x" * 1000),
            append(journal, ConversationKey("tenant", "held"), "a"),
            *(append(journal, ConversationKey("tenant", f"more-{number}"), "a") for number in range(8)),
            return_exceptions=True,
        )
        assert writer_of(journal).transactions == before + 1
        kinds = [type(outcome) for outcome in outcomes if isinstance(outcome, BaseException)]
        assert kinds == [DecisionHistoryStoreFull, DecisionHistoryBusy]
        assert (await journal.totals("tenant")).conversations == 17
        await journal.close()

    asyncio.run(work())


def test_two_loops_and_blocking_threads_share_one_writer(path: Path) -> None:
    """Loops in two threads and two blocking threads on one file: every commit is there, nobody saw a lock."""
    shared = SQLiteJournal(path)

    async def tasks(thread: int) -> None:
        journal = SQLiteJournal(path)
        assert writer_of(journal) is writer_of(shared)
        keys = [ConversationKey("tenant", f"{thread}-{number}") for number in range(32)]
        for name in "abc":
            await asyncio.gather(*(append(journal, key, name) for key in keys))
        await journal.close()

    def blocking(thread: int) -> None:
        journal = SQLiteJournal(path, blocking=True)
        for name in range(50):
            done(append(journal, ConversationKey("tenant", f"blocking-{thread}"), str(name)))
        done(journal.close())

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(asyncio.run, tasks(thread)) for thread in range(2)]
        jobs += [pool.submit(blocking, thread) for thread in range(2)]
        for job in jobs:
            job.result()
    assert raw(path, "SELECT sum(version) FROM minutebook_conversation") == [(2 * 32 * 3 + 2 * 50,)]
    asyncio.run(shared.close())


PROCESS = """
import asyncio, sys
from minutebook.model.entries import Draft, Kind
from minutebook.model.keys import ConversationKey
from minutebook.model.record import Delta
from minutebook.stores.sqlite import SQLiteJournal

async def main(path, process, tasks, rounds):
    journal = SQLiteJournal(path)
    async def task(number):
        for name in range(rounds):
            delta = Delta(drafts=(Draft(kind=Kind.INPUT, payload=b"x" * 500),), idempotency=str(name), settles=True)
            key = ConversationKey("tenant", f"{process}-{number}")
            await journal.reserve(key, "t", format="f", opening=delta, release=True)
    await asyncio.gather(*map(task, range(tasks)))
    await journal.close()

asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
"""


def processes(path: Path, count: int, tasks: int, rounds: int) -> None:
    running = [
        subprocess.Popen([sys.executable, "-c", PROCESS, str(path), *map(str, (number, tasks, rounds))])
        for number in range(count)
    ]
    assert [process.wait() for process in running] == [0] * count


def test_o31_two_processes_of_many_tasks_never_meet_a_lock(path: Path) -> None:
    """ "database is locked" reaches nobody."""
    processes(path, 2, 64, 10)
    assert raw(path, "SELECT count(*), sum(entries) FROM minutebook_conversation") == [(128, 1280)]
    assert raw(path, "PRAGMA integrity_check") == [("ok",)]


@pytest.mark.parametrize("turn", range(int(os.environ.get("MINUTEBOOK_CREATIONS", "3"))))
def test_o47_eight_processes_create_the_database_at_once(path: Path, turn: int) -> None:
    """All find it made, and made once."""
    processes(path, 8, 2, 2)
    assert raw(path, "SELECT count(*) FROM minutebook_conversation") == [(16,)]
    assert raw(path, "SELECT version FROM minutebook_schema") == [(sql.SCHEMA_VERSION,)]


def test_i18_v16_a_waiting_commit_can_be_cancelled_and_a_begun_one_stands(path: Path) -> None:
    """Cancelled before it began it is never written; once begun its receipt is found by its id."""

    async def work() -> None:
        begun, go_on = threading.Event(), threading.Event()
        holding = False

        def clock() -> int:
            if holding and threading.current_thread().name == "minutebook-writer":
                begun.set()
                assert go_on.wait(30)
            return 1_800_000_000_000

        journal = SQLiteJournal(path, clock=clock)
        loop = asyncio.get_running_loop()
        other = ConversationKey("tenant", "other")
        holding = True
        started = [asyncio.ensure_future(append(journal, key, "started")) for key in (KEY, other)]
        await loop.run_in_executor(None, begun.wait, 30)
        waiting = [asyncio.ensure_future(append(journal, key, "waiting")) for key in (KEY, other)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for task in (started[0], waiting[0]):
            task.cancel()
        holding = False
        go_on.set()
        outcomes = await asyncio.gather(*started, *waiting, return_exceptions=True)
        assert [isinstance(outcome, asyncio.CancelledError) for outcome in outcomes] == [True, False, True, False]
        assert await journal.receipt(KEY, "started") is not None
        assert await journal.receipt(KEY, "waiting") is None
        assert await journal.receipt(other, "waiting") is not None
        await journal.close()

    asyncio.run(work())


def test_i18_a_job_that_fails_behind_a_cancelled_task_is_no_lost_exception(path: Path) -> None:
    """The task is cancelled twice while its job runs, waits for it, and nothing is told of an exception unheard of."""

    async def work() -> None:
        begun, go_on = threading.Event(), threading.Event()
        holding = False

        def clock() -> int:
            if holding and threading.current_thread().name == "minutebook-writer":
                begun.set()
                assert go_on.wait(30)
            return 1_800_000_000_000

        journal = SQLiteJournal(path, clock=clock)
        await journal.reserve(KEY, "t", format="f")
        loop = asyncio.get_running_loop()
        lost: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: lost.append(context))
        holding = True
        tasks = [asyncio.ensure_future(append(journal, KEY, name)) for name in ("first", "second")]
        await loop.run_in_executor(None, begun.wait, 30)
        for _ in range(2):
            assert tasks[0].cancel()
            await asyncio.sleep(0)
            assert not tasks[0].done(), "it went before its job did"
        holding = False
        go_on.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError, DecisionHistoryBusy]
        del tasks, outcomes
        gc.collect()
        assert not lost
        await journal.close()

    asyncio.run(work())


def test_bad_input_63_a_loop_that_closed_with_work_pending_hurts_nobody(path: Path) -> None:
    """Bad input 63: its commits may be written, the other loop's are answered."""
    journal = SQLiteJournal(path)
    keys = [ConversationKey("tenant", str(number)) for number in range(20)]
    loop = asyncio.new_event_loop()
    tasks = [loop.create_task(append(journal, key, "gone")) for key in keys]
    loop.call_soon(lambda: loop.call_soon(lambda: loop.call_soon(loop.stop)))
    loop.run_forever()
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.close()

    async def others() -> None:
        await asyncio.gather(*(append(journal, key, "mine") for key in keys))
        await journal.close()

    asyncio.run(others())


def test_i12_a_plain_reservation_survives_its_process(path: Path) -> None:
    """A process that dies without closing leaves the reservation to be seen and recovered."""
    code = PROCESS.split("async def")[0] + (
        "import os\n"
        "journal = SQLiteJournal(sys.argv[1], blocking=True)\n"
        "try: journal.reserve(ConversationKey('tenant', 'talk'), 't', format='f').send(None)\n"
        "except StopIteration: os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    journal = SQLiteJournal(path, blocking=True)
    with pytest.raises(DecisionHistoryBusy):
        done(append(journal, KEY, "a"))
    assert done(journal.recover(KEY, 1)).epoch == 2
    done(journal.close())


def test_i17_use_after_fork_raises_in_the_child_and_leaves_the_parent_unharmed(path: Path) -> None:
    """The child can open the file again for itself."""
    journal = SQLiteJournal(path, blocking=True)
    done(append(journal, KEY, "a"))
    assert used_in_a_child(journal, path) == 0
    assert done(append(journal, KEY, "b")).header.entries == 12
    assert raw(path, "PRAGMA integrity_check") == [("ok",)]
    done(journal.close())


def test_i17_control_a_child_that_is_not_refused_is_found(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the look at the process's id the child goes on with its parent's connection."""
    journal = SQLiteJournal(path, blocking=True)
    done(append(journal, KEY, "a"))
    monkeypatch.setattr(writer_module, "refuse_fork", lambda pid: None)
    assert used_in_a_child(journal, path) == 1


def used_in_a_child(journal: SQLiteJournal, path: Path) -> int:
    """Use a journal in a forked child, and then one of its own; return 0 if only the first was refused, 1 if none."""
    child = os.fork()
    if not child:
        try:
            for call in (append(journal, KEY, "b"), journal.header(KEY)):
                try:
                    done(call)
                except StoreClosed:
                    continue
                os._exit(1)
            done(journal.close())
            own = SQLiteJournal(path, blocking=True)
            done(append(own, KEY, "child"))
            done(own.close())
            os._exit(0)
        except BaseException:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_i09_opening_and_closing_leaks_no_descriptor_and_no_thread(path: Path) -> None:
    """1,000 cycles, some with a writing thread, leave everything as it was."""

    async def cycle(number: int) -> None:
        journal = SQLiteJournal(path)
        await asyncio.gather(*(append(journal, ConversationKey("tenant", name), str(number)) for name in "ab"))
        await journal.header(KEY)
        await journal.close()
        await journal.close()

    asyncio.run(cycle(-1))
    before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for number in range(1000):
        if number % 10 == 0:
            asyncio.run(cycle(number))
        else:
            journal = SQLiteJournal(path, blocking=True)
            done(journal.header(KEY))
            done(journal.close())
    assert len(os.listdir("/proc/self/fd")) <= before
    assert threading.active_count() <= threads


def test_a_closed_journal_refuses_and_the_other_goes_on(path: Path) -> None:
    """Journals of one file close apart."""
    one, two = SQLiteJournal(path, blocking=True), SQLiteJournal(path, blocking=True)
    done(one.close())
    for call in (append(one, KEY, "a"), one.header(KEY)):
        with pytest.raises(StoreClosed):
            done(call)
    done(append(two, KEY, "a"))
    done(two.close())
    assert not path.with_name("history.db-wal").exists()


# --- erasure ---------------------------------------------------------------------------------------------------------

MARKER = b"MARKER-7f3a91"


def copies(path: Path) -> int:
    return sum(file.read_bytes().count(MARKER) for file in path.parent.iterdir())


@pytest.mark.parametrize("blocking", [True, False])
def test_delete_erases_every_copy_in_the_files(path: Path, blocking: bool) -> None:
    """Database, log and sidecars hold no byte of it; before the deletion they do (the control)."""

    async def work() -> bool:
        journal = SQLiteJournal(path, blocking=blocking)
        for number in range(30):
            await append(journal, KEY, f"a{number}", MARKER * 400)
            await append(journal, ConversationKey("tenant", "other"), f"a{number}")
        assert copies(path) >= 30 * 400
        erased = await journal.delete(KEY)
        assert copies(path) == 0
        assert await journal.header(KEY) is None
        with pytest.raises(DecisionHistoryAbsent):
            await journal.delete(KEY)
        assert len(await journal.oldest(ConversationKey("tenant", "other"), 0, WHOLE)) == 120
        await journal.delete(ConversationKey("tenant", "other"))
        await journal.close()
        return erased

    assert asyncio.run(work()) is True
    assert b"tenant" not in path.read_bytes()


def test_delete_says_when_a_reader_kept_a_copy_and_tries_again(path: Path) -> None:
    """`False` while another connection reads the old snapshot; gone with a later write, once it ended."""
    journal = SQLiteJournal(path, blocking=True)
    done(append(journal, KEY, "a", MARKER * 400))
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM minutebook_log").fetchall()
    assert done(journal.delete(KEY)) is False
    assert copies(path) > 0
    reader.execute("COMMIT")
    reader.close()
    for number in range(3):
        done(append(journal, ConversationKey("tenant", "other"), str(number)))
    assert copies(path) == 0
    done(journal.close())


def test_o38_no_read_waits_for_an_erasure_that_waits_for_another_process(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process checkpoints: the deletion waits in its thread, and reads of anything go on."""
    monkeypatch.setattr(log_module, "LOCK_SECONDS", 60.0)
    waiting = threading.Event()
    real = log_module.checkpoint_lock

    def told(descriptor: int, seconds: float) -> Any:
        if seconds == 60.0:
            waiting.set()
        return real(descriptor, seconds)

    async def story() -> None:
        journal = SQLiteJournal(path)
        await append(journal, KEY, "a")
        await append(journal, ConversationKey("tenant", "other"), "b")
        other = os.open(path.with_name("history.db-lock"), os.O_RDWR)
        fcntl.flock(other, fcntl.LOCK_EX)
        monkeypatch.setattr(log_module, "checkpoint_lock", told)
        deletion = asyncio.create_task(journal.delete(KEY))
        await asyncio.to_thread(waiting.wait)
        assert not writer_of(journal)._read_lock.locked()
        assert await journal.header(ConversationKey("tenant", "other")) is not None
        assert not deletion.done()
        os.close(other)
        assert await deletion is True
        await journal.close()

    asyncio.run(story())


def test_o38_an_erasure_that_is_tried_again_lets_what_waits_be_written_first(path: Path) -> None:
    """It keeps reads out, so a writer that has more to write makes only the checkpoint that is due."""
    journal = SQLiteJournal(path, blocking=True)
    done(append(journal, KEY, "a", MARKER))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM minutebook_log").fetchall()
        assert done(journal.delete(KEY)) is False
    writer = writer_of(journal)
    due = writer._transactions + 1
    for idle in (False, True):
        assert writer._log.is_due(due)
        with writer._lock:
            writer._log.tend(due, idle=idle)
        assert (copies(path) == 0) is idle
    assert not writer._log.is_due(due)
    done(journal.close())


def test_o38_closing_holds_no_loop_while_a_write_waits_for_another_process(path: Path) -> None:
    """What the last commit waits for comes from the same loop, so a loop that was held would never see its end."""

    async def story() -> None:
        journal = SQLiteJournal(path)
        await append(journal, KEY, "a")
        foreign = sqlite3.connect(path, isolation_level=None)
        foreign.execute("BEGIN IMMEDIATE")
        written = asyncio.create_task(append(journal, ConversationKey("tenant", "other"), "b"))
        while not is_writing(writer_of(journal)):
            await asyncio.sleep(0)
        closing = asyncio.create_task(journal.close())
        await asyncio.sleep(0)
        foreign.execute("ROLLBACK")
        foreign.close()
        assert (await written).header.entries == 4
        await closing

    asyncio.run(story())


# --- files and faults ------------------------------------------------------------------------------------------------


def other_application(path: Path) -> None:
    raw(path, "PRAGMA application_id = 7")
    raw(path, "CREATE TABLE theirs (a)")


def other_in_wal(path: Path) -> None:
    raw(path, "PRAGMA journal_mode = WAL")
    raw(path, "CREATE TABLE theirs (a)")


def newer_version(path: Path) -> None:
    done(SQLiteJournal(path, blocking=True).close())
    raw(path, "PRAGMA user_version = 99")


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (other_application, DecisionHistorySchemaUnsupported),
        (other_in_wal, DecisionHistorySchemaUnsupported),
        (newer_version, DecisionHistorySchemaUnsupported),
        (lambda path: path.write_bytes(b"some text, no database\n" * 50), DecisionHistoryCorrupt),
        (lambda path: path.write_bytes(random.Random(3).randbytes(8192)), DecisionHistoryCorrupt),
    ],
)
def test_bad_input_87_and_88_foreign_and_newer_files_are_refused_unchanged(
    path: Path, make: Callable[[Path], object], error: type[MinutebookError]
) -> None:
    """A named error, every byte as it was, no sidecar left (promise I-39)."""
    make(path)
    path.chmod(0o600)
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    writers = set(writer_module._registry.writers)
    with pytest.raises(error) as caught:
        SQLiteJournal(path, blocking=True)
    if make is newer_version:
        assert (caught.value.found, caught.value.supported) == (99, sql.SCHEMA_VERSION)
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before
    assert set(writer_module._registry.writers) <= writers


def test_bad_input_91_paths_are_plain_names(tmp_path: Path) -> None:
    """Bad input 91: newline, `?`, `#` and `%` are letters."""
    tmp_path.chmod(0o700)
    for name in ("a?mode=memory", "a#b", "a%41", "a\nb", "file:x"):
        journal = SQLiteJournal(tmp_path / name, blocking=True)
        done(append(journal, KEY, "a"))
        done(journal.close())
        assert raw(tmp_path / name, "SELECT count(*) FROM minutebook_log") == [(1,)]


def test_bad_input_86_the_log_of_another_application_is_refused(path: Path) -> None:
    """SQLite would replay any whole log that lies beside a file; the database keeps every byte (86)."""
    journal = SQLiteJournal(path, blocking=True)
    done(append(journal, KEY, "a"))
    done(journal.close())
    before = path.read_bytes()
    other = path.with_name("other.db")
    theirs = sqlite3.connect(other, isolation_level=None)
    theirs.execute("PRAGMA journal_mode = WAL")
    theirs.execute("CREATE TABLE theirs (a)")
    path.with_name(path.name + "-wal").write_bytes(other.with_name("other.db-wal").read_bytes())
    path.with_name(path.name + "-wal").chmod(0o600)
    theirs.close()
    with pytest.raises(DecisionHistorySchemaUnsupported):
        SQLiteJournal(path, blocking=True)
    assert path.read_bytes() == before
    path.with_name(path.name + "-wal").unlink(missing_ok=True)
    again = SQLiteJournal(path, blocking=True)
    assert done(again.header(KEY)) is not None
    done(again.close())


def test_v24_no_connection_of_ours_checkpoints_by_itself(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite below 3.51.3 may corrupt a log that two connections cut at once: ours cut it under their lock alone."""
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def noted(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        opened.append(connection)
        return connection

    monkeypatch.setattr(connection_module.sqlite3, "connect", noted)
    journal = SQLiteJournal(path, blocking=True)
    done(append(journal, KEY, "a"))
    done(journal.newest(KEY, 99, WHOLE))
    kept: list[object] = []
    for connection in opened:
        try:
            kept.append(connection.execute("PRAGMA wal_autocheckpoint").fetchone()[0])
        except sqlite3.ProgrammingError:
            continue  # closed again, after a look at the file that changes nothing
    assert kept
    assert set(kept) == {0}
    done(journal.close())


@pytest.mark.parametrize("replace", [False, True])
def test_bad_input_85_a_database_that_was_moved_away_is_noticed(path: Path, replace: bool) -> None:
    """Bad input 85: no write goes to a file that nobody will find."""
    journal = SQLiteJournal(path, blocking=True)
    done(append(journal, KEY, "a"))
    path.rename(path.with_name("moved.db"))
    if replace:
        path.touch(0o600)
    with pytest.raises(DecisionHistoryStorageUnsafe) as caught:
        done(append(journal, KEY, "b"))
    assert caught.value.problem == "replaced"
    done(journal.close())


@pytest.mark.parametrize("suffixes", [("-wal",), ("-shm",), ("-wal", "-shm"), ("-lock",)], ids="".join)
def test_i01_bad_input_85_a_removed_sidecar_is_noticed_and_nothing_acknowledged_is_lost(
    path: Path, suffixes: tuple[str, ...]
) -> None:
    """What was acknowledged before is in the database once the store is closed, and nothing is acknowledged after."""
    journal = SQLiteJournal(path, blocking=True)
    done(append(journal, KEY, "a"))
    for suffix in suffixes:
        path.with_name(path.name + suffix).unlink()
    with pytest.raises(DecisionHistoryStorageUnsafe) as caught:
        done(append(journal, KEY, "b"))
    assert caught.value.problem == "replaced"
    with pytest.raises(DecisionHistoryStorageUnsafe):
        done(journal.header(KEY))
    done(journal.close())
    again = SQLiteJournal(path, blocking=True)
    kept = done(again.header(KEY))
    assert kept
    assert kept.entries == 4
    done(again.close())


def test_i01_bad_input_85_what_others_wrote_to_a_second_log_stays_when_the_first_is_closed(path: Path) -> None:
    """Two logs of one database: whoever notices it touches neither, and its program does not open the file again."""
    journal = SQLiteJournal(path, blocking=True)
    done(append(journal, ConversationKey("tenant", "early"), "a"))
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink()
    other = "import os\n" + OTHER.format(path=str(path)) + "os._exit(0)\n"
    assert subprocess.run([sys.executable, "-c", other], timeout=60, check=False).returncode == 0
    with pytest.raises(DecisionHistoryStorageUnsafe):
        done(append(journal, KEY, "b"))
    log = path.with_name(path.name + "-wal").read_bytes()
    assert log
    done(journal.close())
    assert path.with_name(path.name + "-wal").read_bytes() == log
    with pytest.raises(DecisionHistoryStorageUnsafe) as caught:
        SQLiteJournal(path, blocking=True)
    assert caught.value.problem == "replaced"


OTHER = """
import sqlite3
connection = sqlite3.connect({path!r}, isolation_level=None)
connection.execute("PRAGMA wal_autocheckpoint = 0")
connection.execute("PRAGMA user_version")
connection.execute("CREATE TABLE theirs (a)")
"""


@pytest.mark.parametrize("gone", [False, True])
def test_i39_bad_input_87_a_log_without_its_database_is_never_thrown_away(path: Path, gone: bool) -> None:
    """SQLite takes an empty file for a new database and empties the log; all that was acknowledged is in it."""
    journal = SQLiteJournal(path, blocking=True)
    done(append(journal, KEY, "a"))
    log = path.with_name(path.name + "-wal")
    files = {file: file.read_bytes() for file in (path, log)}
    done(journal.close())
    log.write_bytes(files[log])
    path.unlink()
    if not gone:
        path.touch(0o600)
    with pytest.raises(DecisionHistoryCorrupt, match="restore the database beside it"):
        SQLiteJournal(path, blocking=True)
    assert log.read_bytes() == files[log]
    assert path.exists() is not gone
    path.write_bytes(files[path])
    again = SQLiteJournal(path, blocking=True)
    assert done(again.header(KEY)) is not None
    done(again.close())


def altered(position: int, value: object) -> Callable[[bytes], object]:
    """Return the alteration of one value of the row's second entry, by its position."""

    def alter(row: bytes) -> bytes:
        entries = msgspec.msgpack.decode(row)
        entries[1][position] = value
        return msgspec.msgpack.encode(entries)

    return alter


@pytest.mark.parametrize(
    ("alter", "seq"),
    [
        (altered(0, 40), 2),
        (altered(1, 77), 1),
        (altered(1, "x"), 1),
        (altered(2, -1), 1),
        (altered(8, 10**6), 2),
        (altered(10, "{"), 1),
        (altered(11, 5), 1),
        (altered(12, "text"), 1),
        (lambda row: row[:-1], 1),
        (lambda row: row + b"\0", 1),
        (lambda row: b"", 1),
        (lambda row: msgspec.msgpack.encode([]), 4),
        (lambda row: "text", None),
        (lambda row: None, None),
    ],
)
def test_i39_a_row_that_does_not_decode_is_named(path: Path, alter: Callable[[bytes], object], seq: int | None) -> None:
    """Never skipped and never repaired: the error says which entry, or where the row begins that cannot be read."""
    journal = SQLiteJournal(path, blocking=True)
    done(append(journal, KEY, "a"))
    ((row,),) = raw(path, "SELECT entries FROM minutebook_log")
    raw(path, "UPDATE minutebook_log SET entries = ?", alter(row) if alter(row) is not None else 5)
    for call in (journal.newest(KEY, 99, WHOLE), journal.oldest(KEY, 0, WHOLE)):
        with pytest.raises(DecisionHistoryCorrupt) as caught:
            done(call)
        assert getattr(caught.value, "seq", None) in (seq, 1 if seq == 4 else seq)
    done(journal.close())


@pytest.mark.parametrize("missing", [1, 5, 9])
def test_i39_a_row_that_is_gone_is_named(path: Path, missing: int) -> None:
    """From either end the first entry that should stand there and does not is told."""
    journal = SQLiteJournal(path, blocking=True)
    for name in "abc":
        done(append(journal, KEY, name))
    raw(path, "DELETE FROM minutebook_log WHERE seq = ?", missing)
    for call, seq in ((journal.newest(KEY, 99, WHOLE), missing + 3), (journal.oldest(KEY, 0, WHOLE), missing)):
        with pytest.raises(DecisionHistoryCorrupt) as caught:
            done(call)
        assert caught.value.seq == seq
    done(journal.close())


@pytest.mark.parametrize("size", [10, 3_000, 9_000, 40_000])
def test_b1_pages_are_the_same_wherever_a_row_of_the_log_ends(path: Path, size: int) -> None:
    """A long commit is divided into rows; every page from both ends holds what a list of its entries would."""
    journal = SQLiteJournal(path, blocking=True)
    drafts = tuple(text(Kind.INPUT, b'"%d%b"' % (number, b"x" * size)) for number in range(17))
    for name in "abc":
        delta = Delta(drafts=drafts, idempotency=name, settles=True)
        done(journal.reserve(KEY, "t", format="f", opening=delta, release=True))
    entries = done(journal.oldest(KEY, 0, WHOLE))
    assert [entry.seq for entry in entries] == list(range(1, 52))
    rows = raw(path, "SELECT length(entries) FROM minutebook_log")
    assert len(rows) > 3 if size > 1_000 else len(rows) == 3
    assert max(rows)[0] < max(size, 16_384) + 4_000
    for place in range(53):
        for limit in (1, 2, 5, 17, 60):
            page = Page(rows=limit, messages=2**62, size=2**62)
            assert done(journal.oldest(KEY, place, page)) == entries[place : place + limit]
            below = entries[: max(0, place - 1)][::-1]
            assert done(journal.newest(KEY, place, page)) == below[:limit]
        page = Page(rows=99, messages=3, size=2**62)
        assert done(journal.oldest(KEY, place, page)) == entries[place : place + 4]
    done(journal.close())


@pytest.mark.parametrize(
    "change", ["state = x'7b'", "touched = 'x'", "format = x'ff'", "attempt = x'5b315d'", "digest = 5"]
)
def test_i39_a_header_that_does_not_decode_is_refused(path: Path, change: str) -> None:
    """A header of other types is no header."""
    journal = SQLiteJournal(path, blocking=True)
    done(append(journal, KEY, "a"))
    raw(path, "UPDATE minutebook_conversation SET " + change)
    for call in (journal.header(KEY), append(journal, KEY, "b")):
        with pytest.raises(DecisionHistoryCorrupt):
            done(call)
    done(journal.close())


def test_v15_a_foreign_lock_is_waited_for_and_then_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program's open transaction ends in StorageLocked; afterwards the store works. A loop is not held up."""
    monkeypatch.setattr(writer_module, "BUSY_SECONDS", 0.05)

    async def work() -> None:
        journal = SQLiteJournal(path)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(DecisionHistoryStorageLocked):
            await append(journal, KEY, "a")
        assert writer_of(journal)._thread is not None
        other.execute("ROLLBACK")
        other.close()
        await append(journal, KEY, "a")
        await journal.close()

    asyncio.run(work())


class FailingCursor:
    """A cursor that fails one statement, as the disk would."""

    def __init__(self, cursor: sqlite3.Cursor, statement: str, code: str) -> None:
        self.cursor, self.statement, self.code = cursor, statement, code

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cursor, name)

    def execute(self, statement: str, *values: Any) -> Any:
        if statement == self.statement:
            error = sqlite3.OperationalError("planted")
            error.sqlite_errorname, error.sqlite_errorcode = self.code, getattr(sqlite3, self.code)
            raise error
        return self.cursor.execute(statement, *values)


def test_i07_a_full_disk_refuses_and_the_same_call_succeeds_once(path: Path) -> None:
    """The store goes on after a clean rollback."""
    journal = SQLiteJournal(path, blocking=True)
    done(append(journal, KEY, "a"))
    writer = writer_of(journal)
    cursor = writer._cursor
    writer._cursor = FailingCursor(cursor, sql.COMMIT, "SQLITE_FULL")  # type: ignore[assignment]
    with pytest.raises(DecisionHistoryStorageFailed) as caught:
        done(append(journal, KEY, "b"))
    assert caught.value.problem == "disk_full"
    writer._cursor = cursor
    assert done(append(journal, KEY, "b")).header.entries == 8
    done(journal.close())


def test_i06_after_a_failed_sync_the_store_refuses_until_it_is_reopened(path: Path) -> None:
    """A later success would prove nothing, so there is none; another opening reads what is really there."""
    journal = SQLiteJournal(path, blocking=True)
    done(append(journal, KEY, "a"))
    writer = writer_of(journal)
    cursor = writer._cursor
    writer._cursor = FailingCursor(cursor, sql.COMMIT, "SQLITE_IOERR_FSYNC")  # type: ignore[assignment]
    with pytest.raises(DecisionHistoryStorageFailed):
        done(append(journal, KEY, "b"))
    writer._cursor = cursor
    for call in (append(journal, KEY, "b"), journal.header(KEY)):
        with pytest.raises(DecisionHistoryStorageFailed):
            done(call)
    again = SQLiteJournal(path, blocking=True)
    assert done(append(again, KEY, "b")).header.entries == 8
    done(again.close())
    done(journal.close())


POWER_CUT = (
    PROCESS.split("async def")[0]
    + """
import os
from functools import partial
from minutebook.stores import sqlite_log
sqlite_log.CHECKPOINT_BYTES = 100_000
acks = os.open(os.environ["FAULT_ACK_FILE"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
journal = SQLiteJournal(sys.argv[1], blocking=True)
if sys.argv[2] == "unsynced":
    run = journal._database.run
    journal._database.run = lambda work, **more: run(work, **more | {"durable": False})

def done(coroutine):
    try: coroutine.send(None)
    except StopIteration: pass

def append(name, number):
    delta = Delta(drafts=(Draft(kind=Kind.INPUT, payload=b"x" * 3000),), idempotency=str(number), settles=True)
    done(journal.reserve(ConversationKey("tenant", name), "t", format="f", opening=delta, release=True))

for number in range(12):
    append("talk", number)
    os.write(acks, b"ack %d\\n" % number)
    if number == 6:
        append("other", 1)
        done(journal.delete(ConversationKey("tenant", "other")))
        os.write(acks, b"ack deleted\\n")
done(journal.close())
"""
)


def after_power_cut(directory: Path, acknowledged: tuple[str, ...]) -> Verdict:
    """Open what the disk may hold: every acknowledged commit is there, the chain is whole, what was deleted is gone."""
    directory.chmod(0o700)
    for file in directory.iterdir():
        file.chmod(0o600)
    try:
        journal = SQLiteJournal(directory / "history.db", blocking=True)
        try:
            digest, header = first_digest(KEY), done(journal.header(KEY))
            for entry in done(journal.oldest(KEY, 0, WHOLE)):
                digest = recompute_digest(digest, entry)
            if header is not None and header.digest != digest:
                return Verdict(Outcome.CORRUPT, "chain")
            names = [name for name in acknowledged if name != "deleted"]
            if any(done(journal.receipt(KEY, name)) is None for name in names):
                return Verdict(Outcome.LOST, names[-1])
            if names != list(acknowledged) and done(journal.header(ConversationKey("tenant", "other"))) is not None:
                return Verdict(Outcome.LOST, "the deletion")
        finally:
            done(journal.close())
    except MinutebookError as error:
        return Verdict(Outcome.CORRUPT, str(error))
    return SOUND


@pytest.mark.skipif(strace_problem() is not None, reason=str(strace_problem()))
@pytest.mark.parametrize("mode", ["synced", "unsynced"])
def test_i02_a_power_cut_loses_nothing_that_was_acknowledged(path: Path, mode: str) -> None:
    """At any moment of creating, appending, deleting and checkpointing; left unsynced, the same run does lose."""
    trace = trace_child([sys.executable, "-c", POWER_CUT, str(path), mode], root=path.parent)
    report = rebuild(trace, None, after_power_cut, budget=budget(400, 100_000), seed=5)
    print(report)
    assert report.corrupt == report.other == 0, report
    assert report.clean if mode == "synced" else report.lost > 0, report


def test_i02_a_commit_is_synced_where_it_changes_what_is_retained(path: Path) -> None:
    """The mark of a failed attempt or of an input that is superseded, drafts, a cut; a plain release rests on them."""
    journal = SQLiteJournal(path, blocking=True)
    question = text(Kind.INPUT, b'"q"')
    opening = Delta(drafts=(question,), idempotency="opening", opens=True)
    epoch = done(journal.reserve(KEY, "t", format="f", opening=opening)).header.epoch

    def synced_and_retained(name: str, **more: Any) -> tuple[int, int, int]:
        header = done(journal.commit(KEY, "t", epoch, Delta(idempotency=name, **more))).header
        (synchronous,) = writer_of(journal)._connection.execute(sql.GET_SYNCHRONOUS).fetchone()
        return synchronous, header.entries, header.cut.seq

    normal, full = 1, 2
    assert synced_and_retained("rests") == (normal, 1, 0)
    assert synced_and_retained("fails", abandons="failed") == (full, 2, 0)
    assert synced_and_retained("rests again") == (normal, 2, 0)
    assert synced_and_retained("supersedes", supersedes=True) == (full, 3, 0)
    assert synced_and_retained("rests meanwhile") == (normal, 3, 0)
    assert synced_and_retained("adds", drafts=(question,)) == (full, 4, 0)
    assert synced_and_retained("rests once more") == (normal, 4, 0)
    assert synced_and_retained("cuts", cut=4) == (full, 4, 4)
    done(journal.close())


def test_the_log_stays_bounded(path: Path) -> None:
    """Checkpoints of our own keep the write-ahead log near its bound, for small and large payloads alike."""
    journal = SQLiteJournal(path, blocking=True)
    for number in range(60):
        done(append(journal, KEY, str(number), b"x" * 400_000))
    assert path.with_name("history.db-wal").stat().st_size < 3 * log_module.CHECKPOINT_BYTES
    done(journal.close())


# --- a host's connection ---------------------------------------------------------------------------------------------


def test_d19_a_hosts_connection_is_used_as_it_is(tmp_path: Path) -> None:
    """Any row_factory, text_factory and isolation_level; nothing of it is changed, and closing it stays the host's."""
    connection = sqlite3.connect(tmp_path / "host.db")
    connection.row_factory = sqlite3.Row
    connection.text_factory = bytes
    connection.execute("CREATE TABLE theirs (a TEXT)")
    connection.execute("PRAGMA application_id = 5")
    connection.execute("PRAGMA user_version = 3")
    connection.execute("PRAGMA synchronous = EXTRA")
    journal = SQLiteJournal.on_connection(connection)
    assert journal.durable
    done(append(journal, KEY, "a"))
    assert len(done(journal.newest(KEY, 99, WHOLE))) == 4
    assert [listing.key for listing in done(journal.list("tenant", "", 9))] == [KEY]
    assert isinstance(done(journal.delete(KEY)), bool)
    connection.execute("INSERT INTO theirs VALUES ('x')")
    for call in (append(journal, KEY, "b"), journal.header(KEY)):
        with pytest.raises(InvalidOption):
            done(call)
    connection.commit()
    done(append(journal, KEY, "b"))
    done(journal.close())
    with pytest.raises(StoreClosed):
        done(journal.header(KEY))
    assert tuple(connection.execute("SELECT a FROM theirs").fetchone()) == (b"x",)
    assert connection.execute("PRAGMA user_version").fetchone()[0] == 3
    connection.close()


@pytest.mark.parametrize(
    ("mode", "synchronous", "durable"),
    [
        ("WAL", "FULL", True),
        ("WAL", "NORMAL", False),
        ("DELETE", "EXTRA", True),
        ("DELETE", "FULL", False),
        ("TRUNCATE", "FULL", True),
        ("TRUNCATE", "NORMAL", False),
        ("PERSIST", "FULL", True),
        ("PERSIST", "OFF", False),
        ("MEMORY", "EXTRA", False),
        ("OFF", "EXTRA", False),
    ],
)
def test_bad_input_89_a_hosts_settings_decide_what_is_claimed(
    tmp_path: Path, mode: str, synchronous: str, durable: bool
) -> None:
    """Bad input 89: never a silent claim."""
    connection = sqlite3.connect(tmp_path / "host.db")
    connection.execute(f"PRAGMA journal_mode = {mode}")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    assert SQLiteJournal.on_connection(connection).durable is durable
    assert not SQLiteJournal.on_connection(sqlite3.connect(":memory:")).durable
    connection.close()


def test_bad_input_88_a_hosts_newer_tables_are_refused(tmp_path: Path) -> None:
    """Bad input 88, on a connection."""
    connection = sqlite3.connect(tmp_path / "host.db")
    SQLiteJournal.on_connection(connection)
    connection.execute("UPDATE minutebook_schema SET version = 99")
    connection.commit()
    with pytest.raises(DecisionHistorySchemaUnsupported):
        SQLiteJournal.on_connection(connection)
    connection.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("DROP TABLE minutebook_schema", 0),
        ("DELETE FROM minutebook_schema", 0),
        ("UPDATE minutebook_schema SET version = 'one'", 0),
        ("UPDATE minutebook_schema SET version = -1", -1),
    ],
)
def test_i40_a_hosts_tables_that_say_no_version_are_refused_unchanged(path: Path, change: str, said: int) -> None:
    """They are not made again beside the records that they hold."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        done(append(SQLiteJournal.on_connection(connection), KEY, "a"))
        connection.execute(change)
        before = list(connection.iterdump())
        with pytest.raises(DecisionHistorySchemaUnsupported, match="nothing was written") as caught:
            SQLiteJournal.on_connection(connection)
        assert (caught.value.found, caught.value.supported) == (said, sql.SCHEMA_VERSION)
        assert list(connection.iterdump()) == before


def in_a_file(path: Path) -> SQLiteJournal:
    return SQLiteJournal(path, blocking=True)


def of_a_host(path: Path) -> SQLiteJournal:
    return SQLiteJournal.on_connection(sqlite3.connect(path))


places = pytest.mark.parametrize("place", [in_a_file, of_a_host])


@places
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("ALTER TABLE minutebook_conversation RENAME COLUMN birth TO other", 1),
        ("DROP TABLE minutebook_namespace", 1),
        ("ALTER TABLE minutebook_conversation RENAME COLUMN birth TO b; UPDATE minutebook_schema SET version = 2", 2),
        ("DROP TABLE minutebook_schema; DROP TABLE minutebook_namespace", 0),
        ("UPDATE minutebook_schema SET version = 'one'; DROP TABLE minutebook_namespace", 0),
    ],
)
def test_i40_tables_of_another_schema_than_they_say_are_refused_with_both_numbers(
    path: Path, place: Callable[[Path], SQLiteJournal], change: str, named: int
) -> None:
    """A column or a table is missing, or a newer release has moved them under an open store: nothing is written."""
    journal = place(path)
    done(append(journal, KEY, "a"))
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.executescript(change)
    for call, nothing in (
        (journal.header(KEY), "read"),
        (journal.list("tenant", "", 9), "read"),
        (append(journal, KEY, "b"), "written"),
    ):
        with pytest.raises(DecisionHistorySchemaUnsupported) as caught:
            done(call)
        assert (caught.value.found, caught.value.supported) == (named, sql.SCHEMA_VERSION)
        told = "use the newer release" if named > sql.SCHEMA_VERSION else f"nothing was {nothing}"
        assert told in str(caught.value)
        assert (f"schema version {named}" if named else "say no version") in str(caught.value)
    done(journal.close())
    assert raw(path, "SELECT count(*) FROM minutebook_log") == [(1,)]


def test_i40_tasks_are_told_of_another_schema_each_by_an_error_of_its_own(path: Path) -> None:
    """A group of writes that meet a log with other columns."""

    async def story() -> None:
        journal = SQLiteJournal(path)
        raw(path, "ALTER TABLE minutebook_log RENAME COLUMN entries TO other")
        keys = [ConversationKey("tenant", name) for name in ("b", "c")]
        told = await asyncio.gather(*[append(journal, key, "b") for key in keys], return_exceptions=True)
        assert [type(error) for error in told] == [DecisionHistorySchemaUnsupported] * 2
        assert told[0] is not told[1]
        await journal.close()

    asyncio.run(story())


@places
def test_d23_a_read_that_fails_speaks_of_no_write(path: Path, place: Callable[[Path], SQLiteJournal]) -> None:
    """Nobody looks for what a read has written; a write that fails in the same way leaves that open."""
    journal = place(path)
    done(append(journal, KEY, "a"))
    done(journal.header(KEY))
    database: Any = journal._database
    reading = database._connection if place is of_a_host else database._reading
    reading.set_progress_handler(lambda: 1, 1)
    with pytest.raises(DecisionHistoryStorageFailed, match=r"\(SQLITE_INTERRUPT\); nothing was read$"):
        done(journal.header(KEY))
    reading.set_progress_handler(None, 0)
    database._connection.set_progress_handler(lambda: 1, 1)
    with pytest.raises(DecisionHistoryStorageFailed, match="whether this write reached the disk"):
        done(append(journal, KEY, "b"))
    database._connection.set_progress_handler(None, 0)
    assert done(append(journal, KEY, "b")).header.entries == 8
    done(journal.close())


def test_d23_a_read_that_a_lock_keeps_out_speaks_of_no_write(path: Path) -> None:
    """A host's connection in a rollback journal, beside another program's exclusive lock."""
    journal = SQLiteJournal.on_connection(sqlite3.connect(path, timeout=0))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(DecisionHistoryStorageLocked, match="nothing was read"):
            done(journal.header(KEY))
        with pytest.raises(DecisionHistoryStorageLocked, match="nothing was written"):
            done(append(journal, KEY, "a"))


def test_a_hosts_closed_connection_is_a_typed_error(tmp_path: Path) -> None:
    """No driver's exception comes out."""
    connection = sqlite3.connect(tmp_path / "host.db")
    journal = SQLiteJournal.on_connection(connection)
    connection.close()
    for call in (append(journal, KEY, "a"), journal.header(KEY)):
        with pytest.raises(StoreClosed):
            done(call)


class FailingConnection(sqlite3.Connection):
    """A connection whose commits fail while they are told to."""

    failing = False

    def cursor(self, *arguments: Any) -> Any:
        cursor = super().cursor(*arguments)
        return FailingCursor(cursor, sql.COMMIT, "SQLITE_IOERR_FSYNC") if self.failing else cursor


def test_i06_a_failed_sync_is_the_connections_so_every_store_on_it_refuses(tmp_path: Path) -> None:
    """One that wrapped it before, and one that wraps it afterwards; another connection to the same file works."""
    connection = sqlite3.connect(tmp_path / "host.db", factory=FailingConnection)
    one, other = (SQLiteJournal.on_connection(connection) for _ in range(2))
    done(append(one, KEY, "a"))
    connection.failing = True
    with pytest.raises(DecisionHistoryStorageFailed):
        done(append(one, KEY, "b"))
    connection.failing = False
    for journal in (one, other):
        for call in (append(journal, KEY, "b"), journal.header(KEY)):
            with pytest.raises(DecisionHistoryStorageFailed) as caught:
                done(call)
            assert caught.value.problem == "failed_before"
    with pytest.raises(DecisionHistoryStorageFailed):
        SQLiteJournal.on_connection(connection)
    connection.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "host.db")) as again:
        assert done(append(SQLiteJournal.on_connection(again), KEY, "b")).header.entries == 8


# --- statements ------------------------------------------------------------------------------------------------------


def test_v05_every_statement_is_a_named_constant() -> None:
    """`execute` is given nothing but `sql.NAME`, and `sql` holds nothing but texts that never change."""
    calls = 0
    for module in (sqlite_module, rows_module, writer_module, log_module, connection_module, host_module):
        tree = ast.parse(Path(str(module.__file__)).read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "").startswith("execute"):
                calls += 1
                for given in (
                    [node.args[0]]
                    if not isinstance(node.args[0], ast.IfExp)
                    else [node.args[0].body, node.args[0].orelse]
                ):
                    assert isinstance(given, ast.Attribute), ast.unparse(node)
                    assert isinstance(given.value, ast.Name), ast.unparse(node)
                    assert given.value.id == "sql", ast.unparse(node)
                    assert given.attr.isupper(), ast.unparse(node)
    assert calls > 60
    assert not any(
        isinstance(node, ast.JoinedStr | ast.BinOp) for node in ast.walk(ast.parse(Path(str(sql.__file__)).read_text()))
    )
    assert str(sql.APPLICATION_ID) in sql.SET_APPLICATION_ID


def test_v05_every_statement_binds_by_order_alone() -> None:
    """Of a number at a place (`?1`) Python 3.12.0 to 3.12.3 warn, which `-W error` makes the end of every call."""
    texts = [text for name, text in vars(sql).items() if name.isupper() and isinstance(text, str)]
    assert len(texts) > 60
    assert [text for text in texts if re.search(r"[?:@$]\w", text)] == []


def test_i40_a_migrated_file_tells_the_newest_version() -> None:
    """What an older release looks at in a file's header is what the last of the migrations leads to."""
    assert f"PRAGMA user_version = {sql.SCHEMA_VERSION}" == sql.SET_USER_VERSION
    assert len(connection_module.MIGRATIONS) == sql.SCHEMA_VERSION


def test_the_blocking_colour_needs_no_event_loop() -> None:
    """Importing and using the module blocking does not load asyncio."""
    code = "import sys; import minutebook.stores.sqlite; assert 'asyncio' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
