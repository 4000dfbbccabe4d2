"""Bounds hold under a race, and time never takes what it should leave (I-29 to I-31, O-45, bad inputs 51 to 59)."""

from __future__ import annotations

import asyncio
import math
import os
import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budgets import budget
from tests.stores.labs import BOUNDED, KINDS, PROVE, chat, in_threads, open_journal, said
from tests.stores.redis_lab import REDIS

from minutebook import sync
from minutebook.cli.view import moment
from minutebook.decisions import HistoryOptions
from minutebook.errors import (
    DecisionHistoryAbsent,
    DecisionHistoryRetentionExceeded,
    DecisionHistoryStoreFull,
    InvalidOption,
)
from minutebook.model.bounds import StoreBounds, WindowLimits, ttl_ms
from minutebook.model.clock import MAX_WALL_MS
from minutebook.model.keys import ConversationKey
from minutebook.stores.memory import MemoryJournal
from minutebook.testing import FaultyJournal, FrozenClock, drive
from minutebook.testing.conformance import samples
from minutebook.testing.conformance.samples import FORMAT, adding, answer, append, dump, say

ROUNDS = budget(15, 2_000)
HOUR = 3_600_000
DRAFT = say("x" * 50)
SIZE = len(DRAFT.payload)

# --- capacity --------------------------------------------------------------------------------------------------------


def race(journal: Any, namespace: str, bounds: StoreBounds) -> None:
    """Fill a namespace up to its last place, send 32 for it, and see that one got it and nothing was passed."""
    drive(append(journal, ConversationKey(namespace, "first"), "one", DRAFT))
    keys = [ConversationKey(namespace, f"racer-{number}") for number in range(32)]
    answers = in_threads([lambda key=key: drive(append(journal, key, "one", DRAFT)) for key in keys])
    refusals = [answer for answer in answers if answer is not None]
    assert len(refusals) == 31, f"{32 - len(refusals)} of 32 got the last place"
    assert {type(refusal) for refusal in refusals} == {DecisionHistoryStoreFull}
    totals = drive(journal.totals(namespace))
    assert (totals.conversations, totals.bytes) == (2, 2 * SIZE)
    assert sum(drive(journal.header(key)) is not None for key in keys) == 1, "a refused writer left a conversation"


@pytest.mark.timeout(3_600 if PROVE else 300)
@pytest.mark.parametrize("bounds", [StoreBounds(max_sessions=2), StoreBounds(max_bytes=2 * SIZE)], ids=["slot", "byte"])
@pytest.mark.parametrize("kind", BOUNDED)
def test_i29_last_place_has_one_winner(
    kind: str, bounds: StoreBounds, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """32 writers race for the last slot or byte: one wins, the bound is never passed by one byte (I-29)."""
    journal = open_journal(kind, tmp_path, bounds)
    for number in range(ROUNDS):
        race(journal, f"round-{number}", bounds)
    figure(f"{kind}: {ROUNDS:,} rounds of 32 writers, one winner each")


def test_i29_a_bound_that_is_checked_too_early_would_be_found(tmp_path: Path) -> None:
    """Control: a journal that looks at its totals before it writes lets two writers through."""

    class LooksFirst(MemoryJournal):
        async def reserve(self, key: ConversationKey, token: str, **options: Any) -> Any:
            if (await self.totals(key.namespace)).conversations >= 2:
                raise DecisionHistoryStoreFull("full")
            time.sleep(0.001)
            return await super().reserve(key, token, **options)

    with pytest.raises(AssertionError, match="got the last place"):
        race(LooksFirst(), "round", StoreBounds(max_sessions=2))


@pytest.mark.parametrize("kind", BOUNDED)
def test_d07_bounds_hold_to_the_byte(kind: str, tmp_path: Path) -> None:
    """Exactly at a bound is in, one byte more is out, and what was there stays (SPEC D7)."""
    journal = open_journal(kind, tmp_path, StoreBounds(max_bytes=SIZE, max_sessions=1))
    key = ConversationKey("lab", "a")
    with pytest.raises(DecisionHistoryStoreFull) as full:
        drive(append(journal, key, "one", say("x" * 51)))
    assert (full.value.bytes, full.value.max_bytes) == (SIZE + 1, SIZE)
    assert drive(journal.header(key)) is None
    drive(append(journal, key, "one", DRAFT))
    before = drive(dump(journal, key))
    for refused in (append(journal, key, "two", say("")), append(journal, ConversationKey("lab", "b"), "one", say(""))):
        with pytest.raises(DecisionHistoryStoreFull):
            drive(refused)
    assert drive(dump(journal, key)) == before
    drive(append(journal, ConversationKey("other", "a"), "one", DRAFT))


@pytest.mark.parametrize("kind", KINDS)
def test_d07_retained_bound_of_one_conversation(kind: str, tmp_path: Path) -> None:
    """`max_retained_bytes` bounds each conversation, of the store or of the caller, the stricter one (SPEC D7)."""
    journal = open_journal(kind, tmp_path, StoreBounds(max_retained_bytes=2 * SIZE))
    key = ConversationKey("lab", "a")
    drive(append(journal, key, "one", DRAFT, DRAFT))
    before = drive(dump(journal, key))
    with pytest.raises(DecisionHistoryRetentionExceeded) as over:
        drive(append(journal, key, "two", say("")))
    assert over.value.limit == 2 * SIZE
    assert drive(dump(journal, key)) == before
    strict = chat(journal, "b", max_retained_bytes=10)
    with pytest.raises(DecisionHistoryRetentionExceeded) as over:
        drive(strict.append([{"role": "user", "content": "x" * 50}]))
    assert over.value.limit == 10


# --- expiry ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BOUNDED)
def test_o45_conversation_expires_as_one_unit(kind: str, tmp_path: Path) -> None:
    """Three exchanges go together; nothing of them is left after the next access; reading does not prolong (O-45)."""
    clock = FrozenClock()
    journal = open_journal(kind, tmp_path, StoreBounds(ttl_ms=2_000), clock)
    key = ConversationKey("lab", "a")
    for number in range(3):
        drive(append(journal, key, f"{number}", say("q"), answer("a")))
        clock.advance(1_000)
    clock.advance(1_000)
    for _ in range(5):
        assert len(drive(samples.entries(journal, key))) == 6
    clock.advance(1)
    assert drive(journal.header(key)) is None
    assert drive(samples.entries(journal, key)) == ()
    assert drive(journal.receipts(key, 0, 9)) == ()
    assert drive(journal.list("lab", "", 9)) == ()
    assert drive(journal.totals("lab")).bytes == 0
    clock.advance(131_072)  # a database looks for what has expired by the minute
    drive(append(journal, ConversationKey("lab", "b"), "one", say("")))
    drive(append(journal, ConversationKey("lab", "b"), "two", say("")))
    assert drive(journal.totals("lab")).expired == 0
    if kind == "SQLite":
        assert _rows(tmp_path / "lab.db") == {"conversation": 1, "log": 2}


def test_d19_a_ttl_is_the_stores_and_holds_for_its_namespace_alone(tmp_path: Path) -> None:
    """README, Bounds and defaults: a decision history beside a chat that is kept has a namespace of its own."""
    tmp_path.chmod(0o700)
    path, long_ago = tmp_path / "app.sqlite", time.time_ns() // 1_000_000 - 25 * HOUR
    with sync.SQLiteStore(path, namespace="chats", clock=lambda: long_ago) as chats:
        sync.Conversation(chats, "kept", format="openai-chat").append([{"role": "user", "content": "Keep this."}])
        for namespace, kept in (("decisions", True), ("chats", False)):
            with sync.create_sqlite_decision_history_store(path, namespace=namespace) as decisions:
                sync.Conversation(decisions, "d", format="openai-chat").append([{"role": "user", "content": "x"}])
            assert (chats.header(chats.key("kept")) is not None) is kept


def test_d06_a_namespace_in_ram_goes_with_its_last_conversation() -> None:
    """Names of tenants that came once and were refused, deleted or expired are not kept for ever."""
    clock = FrozenClock()
    journal = MemoryJournal(StoreBounds(ttl_ms=1_000, max_retained_bytes=1_000), clock=clock)
    key = ConversationKey("refused", "a")
    with pytest.raises(DecisionHistoryRetentionExceeded):
        drive(append(journal, key, "one", say("x" * 2_000)))
    drive(journal.totals("never written"))
    assert not journal._namespaces
    for end in ("delete", "header", "refused"):
        drive(append(journal, key, "one", say("x")))
        assert set(journal._namespaces) == {"refused"}
        if end == "delete":
            drive(journal.delete(key))
        else:
            clock.advance(1_001)
        if end == "header":
            drive(journal.header(key))
        if end == "refused":
            with pytest.raises(DecisionHistoryRetentionExceeded):
                drive(append(journal, key, "two", say("x" * 2_000)))
        assert not journal._namespaces, end
    drive(append(journal, key, "one", say("x")))
    assert drive(journal.totals("refused")).conversations == 1


def _rows(path: Path) -> dict[str, int]:
    import sqlite3

    with sqlite3.connect(path) as connection:
        return {
            name: connection.execute(f"SELECT count(*) FROM minutebook_{name}").fetchone()[0]
            for name in ("conversation", "log")
        }


@pytest.mark.parametrize("zone", ["UTC", "America/Denver", "Asia/Kolkata", "Europe/Berlin"])
@pytest.mark.parametrize("kind", BOUNDED)
def test_o45_time_zone_has_no_influence(kind: str, zone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing expires early or late in any time zone, nor over a change of daylight saving (O-45)."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        clock = FrozenClock(1_806_192_000_000)  # 2027-03-28 00:00 UTC: Europe changes within the hour
        journal = open_journal(kind, tmp_path, StoreBounds(ttl_ms=2 * HOUR), clock)
        key = ConversationKey("lab", "a")
        drive(append(journal, key, "one", say("q")))
        clock.advance(2 * HOUR)
        assert drive(journal.header(key)) is not None
        clock.advance(1)
        assert drive(journal.header(key)) is None
    finally:
        monkeypatch.undo()
        time.tzset()
        assert os.environ.get("TZ") != zone or zone == "UTC"


jumps = st.lists(st.sampled_from((1, 59_000, HOUR, 24 * HOUR, -1, -59_000, -HOUR, -24 * HOUR)), min_size=1, max_size=12)


@pytest.mark.timeout(3_600 if PROVE else 300)
@pytest.mark.parametrize("kind", BOUNDED)
def test_i30_clock_jumps_delete_nothing_early_and_keep_nothing_for_ever(kind: str, tmp_path: Path) -> None:
    """Under any jumps a record lives as long as the clock says, a reserved one longer, and none for ever (I-30)."""
    clock = FrozenClock()
    live_through_jumps(open_journal(kind, tmp_path, StoreBounds(ttl_ms=LIFE), clock), clock, budget(60, 1_000))


LIFE = 2 * HOUR


class ExpiresHeld(FaultyJournal):
    """A journal that asks nobody whether a record is held before it calls it expired."""

    clock: FrozenClock

    async def header(self, key: ConversationKey) -> Any:
        found = await super().header(key)
        return None if found is not None and found.touched < self.clock() - LIFE else found


@pytest.mark.parametrize("fault", ["outlived its time", "expired before its time", "a reserved record expired"])
def test_i30_control_each_wrong_expiry_is_found(fault: str, tmp_path: Path) -> None:
    """A store that never expires, one that does so early, and one that takes held records are told apart."""
    clock = FrozenClock()
    lives = {"outlived its time": None, "expired before its time": LIFE // 2}
    journal = open_journal("RAM", tmp_path, StoreBounds(ttl_ms=lives.get(fault, LIFE)), clock)
    if fault not in lives:
        journal = ExpiresHeld(journal)
        journal.clock = clock
    with pytest.raises(AssertionError, match=fault):
        live_through_jumps(journal, clock, 60)


def live_through_jumps(journal: Any, clock: FrozenClock, examples: int) -> None:
    """Let records live under so many rows of jumps of the clock, and judge when each is there."""
    ttl = LIFE
    numbers = iter(range(10**9))

    @settings(max_examples=examples, deadline=None, database=None, derandomize=not PROVE, report_multiple_bugs=False)
    @given(jumps=jumps, held=st.booleans())
    def story(jumps: list[int], held: bool) -> None:
        clock.jump(1_800_000_000_000)
        namespace = f"{next(numbers)}"
        key = ConversationKey(namespace, "a")
        written = clock()
        if held:
            drive(journal.reserve(key, "t", format=FORMAT, opening=adding("one", say("q"))))
        else:
            drive(append(journal, key, "one", say("q")))
        alive = True
        for jump in jumps:
            clock.advance(jump)
            drive(append(journal, ConversationKey(namespace, f"{jump}"), f"{next(numbers)}", say("")))
            written = min(written, clock())  # a record from the future counts from when that was noticed
            found = drive(journal.header(key)) is not None
            if held:
                assert found, "a reserved record expired"
            elif clock() - written <= ttl and alive:
                assert found, "a record expired before its time"
            alive = found
        if held:
            epoch = drive(journal.header(key)).epoch
            drive(journal.commit(key, "t", epoch, adding("two"), release=True))
        for _ in range(3):
            clock.advance(ttl + 1)
            drive(append(journal, ConversationKey(namespace, "last"), f"{next(numbers)}", say("")))
        assert drive(journal.header(key)) is None, "a record outlived its time"

    story()


@pytest.mark.parametrize("kind", BOUNDED)
def test_i31_expired_ones_never_count_against_capacity(kind: str, tmp_path: Path) -> None:
    """What has expired makes room at once, however many there are and whatever was written in what order (I-31)."""
    clock = FrozenClock()
    journal = open_journal(kind, tmp_path, StoreBounds(ttl_ms=1_000, max_sessions=50, max_bytes=50 * SIZE), clock)
    keys = [ConversationKey("lab", f"{number}") for number in range(50)]
    for key in keys:
        drive(append(journal, key, "one", DRAFT))
    clock.advance(500)
    drive(append(journal, keys[7], "one", DRAFT))  # a replay writes nothing, so it prolongs nothing
    clock.advance(501)
    drive(append(journal, ConversationKey("lab", "large"), "one", say("x" * (40 * SIZE))))
    assert drive(journal.totals("lab")).conversations == 1


@pytest.mark.parametrize("kind", BOUNDED)
def test_i31_replay_does_not_reorder_expiry(kind: str, tmp_path: Path) -> None:
    """A replay moves a conversation neither in time nor in the order of expiry: a full store still finds it."""
    clock = FrozenClock()
    journal = open_journal(kind, tmp_path, StoreBounds(ttl_ms=1_000, max_sessions=2), clock)
    first, second, third = (ConversationKey("lab", name) for name in "abc")
    drive(append(journal, first, "one", DRAFT))
    clock.advance(500)
    drive(append(journal, second, "one", DRAFT))
    drive(append(journal, first, "one", DRAFT))
    clock.advance(501)
    drive(append(journal, third, "one", DRAFT))
    assert drive(journal.header(second)) is not None


async def fill(journal: Any, count: int) -> None:
    """Write so many conversations, a hundred at once."""
    for first in range(0, count, 100):
        keys = [ConversationKey("lab", f"{number}") for number in range(first, min(first + 100, count))]
        await asyncio.gather(*(append(journal, key, "one", say("")) for key in keys))


@pytest.mark.timeout(14_400 if PROVE else 300)
@pytest.mark.parametrize("kind", BOUNDED)
def test_i31_purge_is_bounded(kind: str, tmp_path: Path, figure: Callable[[str], None]) -> None:
    """Up to a million expired conversations stall no call: each write removes a few of them (I-31)."""
    clock = FrozenClock()
    bounds = StoreBounds(ttl_ms=1_000)
    journal = open_journal(kind, tmp_path, bounds, clock)
    count = budget(2_000, 1_000_000)
    asyncio.run(fill(journal if kind == "RAM" else open_journal(kind, tmp_path, bounds, clock, blocking=False), count))
    clock.advance(10**6)
    taken: list[float] = []
    for number in range(60):
        begun = time.perf_counter()
        drive(append(journal, ConversationKey("lab", "new"), f"{number}", say("")))
        taken.append(time.perf_counter() - begun)
    left = drive(journal.totals("lab")).expired
    assert count - 60 * 32 <= left < count - 60  # a few with each, whatever waits
    assert statistics.median(taken) < 0.25  # a busy machine may stall any one of them
    figure(f"{kind}: slowest write beside {count:,} expired conversations {max(taken) * 1000:.1f} ms")


# --- bad inputs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_bad_input_54_clock_set_back_within_a_reservation(kind: str, tmp_path: Path) -> None:
    """A clock that goes back an hour during a turn changes no order and refuses nothing (54)."""
    clock = FrozenClock()
    conversation = chat(open_journal(kind, tmp_path, clock=clock))

    async def story() -> None:
        async with conversation.turn("hi") as turn:
            clock.set_back(HOUR)
            await turn.respond(said("hello"))

    drive(story())
    drive(conversation.store.verify(conversation.key))
    assert [m["content"] for m in drive(conversation.window())] == ["hi", "hello"]


@pytest.mark.parametrize("kind", BOUNDED)
def test_bad_input_55_jump_of_ten_years(kind: str, tmp_path: Path) -> None:
    """A jump of ten years expires what is idle and leaves what is held (55)."""
    clock = FrozenClock()
    journal = open_journal(kind, tmp_path, StoreBounds(ttl_ms=HOUR), clock)
    idle, held = (ConversationKey("lab", name) for name in ("idle", "held"))
    drive(append(journal, idle, "one", say("")))
    epoch = drive(journal.reserve(held, "t", format=FORMAT)).header.epoch
    clock.advance(10 * 365 * 24 * HOUR)
    assert drive(journal.header(idle)) is None
    drive(journal.commit(held, "t", epoch, adding("one", say("")), release=True))
    assert drive(journal.header(held)) is not None


@pytest.mark.parametrize("kind", BOUNDED)
def test_d07_a_failed_first_operation_takes_no_place(kind: str, tmp_path: Path) -> None:
    """With one place for conversations, failed and refused first writes leave it free (SPEC D7, D24)."""
    journal = open_journal(kind, tmp_path, StoreBounds(max_sessions=1))

    async def fails(record: Any) -> Any:
        raise ValueError("refused")

    async def adds_nothing(record: Any) -> Any:
        return None, "done"

    for number in range(3):
        conversation = chat(journal, f"failed-{number}")
        with pytest.raises(ValueError, match="refused"):
            drive(conversation.store.transact(conversation.key, fails))
        assert drive(conversation.store.transact(conversation.key, adds_nothing)) == "done"
        assert drive(conversation.append([], whole=True)) is None
        assert drive(conversation.store.header(conversation.key)) is None
    assert drive(conversation.store.totals()).conversations == 0
    drive(chat(journal, "next").append([{"role": "user", "content": "hi"}]))
    with pytest.raises(DecisionHistoryStoreFull):
        drive(chat(journal, "one too many").append([{"role": "user", "content": "hi"}]))


@pytest.mark.parametrize(
    "ttl", [0, -1, math.inf, -math.inf, math.nan, True, False, "60", timedelta(0), timedelta(-1), []]
)
def test_bad_input_56_time_to_live(ttl: Any) -> None:
    """A time to live that is zero, negative, infinite, NaN or a bool is refused where it is given (56)."""
    with pytest.raises(InvalidOption):
        ttl_ms(ttl)


@pytest.mark.parametrize("bound", [0, -1, True, 1.0, math.nan, math.inf, 2**63, "128", b"1"])
@pytest.mark.parametrize("name", ["max_sessions", "max_bytes", "max_retained_bytes", "ttl_ms"])
def test_bad_input_51_store_bounds(name: str, bound: Any) -> None:
    """A bound that is no positive integer of 62 bits is refused where it is given (51)."""
    with pytest.raises(InvalidOption):
        StoreBounds(**{name: bound})


@pytest.mark.parametrize(
    "make",
    [
        lambda: StoreBounds(max_bytes=999, max_retained_bytes=1_000),
        lambda: chat(MemoryJournal(), limits=WindowLimits(max_bytes=1_000), max_retained_bytes=999),
        lambda: HistoryOptions(max_bytes=1_000, max_retained_bytes=999),
    ],
    ids=["store", "conversation", "history-options"],
)
def test_bad_input_52_retention_below_the_window_or_above_the_store(make: Callable[[], Any]) -> None:
    """Two bounds of which one could never be reached are refused where both are given, with both numbers (52)."""
    with pytest.raises(InvalidOption, match=r"999.*1,000|1,000.*999") as refused:
        make()
    assert refused.value.option == "max_retained_bytes"


def test_bad_input_52_bounds_that_meet_and_a_window_nobody_chose_are_fine() -> None:
    """Equal bounds work, and the default window leaves a small conversation free to be small (52)."""
    StoreBounds(max_bytes=1_000, max_retained_bytes=1_000)
    chat(MemoryJournal(), limits=WindowLimits(max_bytes=1_000), max_retained_bytes=1_000)
    chat(MemoryJournal(), limits=WindowLimits(max_messages=4), max_retained_bytes=1_000)
    HistoryOptions(max_bytes=1_000, max_retained_bytes=1_000)
    HistoryOptions(max_retained_bytes=1_000)
    HistoryOptions(max_bytes=16 * 1024 * 1024)


class _Broken:
    """A clock that works until it is told to fail."""

    def __init__(self) -> None:
        self.answer: Any = 1_800_000_000_000

    def __call__(self) -> int:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "answer",
    [OSError("clock"), None, "now", 1.5, math.nan, True, -1, MAX_WALL_MS, 2**63],
    ids=["57-raises", "None", "str", "float", "57-nan", "bool", "58-before-1970", "58-beyond", "58-2**63"],
)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in REDIS])  # there the server has the clock
def test_bad_input_57_and_58_clock_that_lies(kind: str, answer: Any, tmp_path: Path) -> None:
    """A clock that raises, or gives no time that can be stored, is refused by name, and nothing is lost (57, 58)."""
    clock = _Broken()
    journal = open_journal(kind, tmp_path, StoreBounds(ttl_ms=HOUR) if kind in BOUNDED else None, clock)
    key = ConversationKey("lab", "a")
    drive(append(journal, key, "one", say("q")))
    before = drive(dump(journal, key))
    good, clock.answer = clock.answer, answer
    for call in (
        append(journal, key, "two", say("r")),
        journal.recover(key, None),
        journal.delete(key),
    ):
        with pytest.raises(InvalidOption):
            drive(call)
    clock.answer = good
    assert drive(dump(journal, key)) == before
    drive(append(journal, key, "two", say("r")))


@pytest.mark.parametrize("kind", KINDS)
def test_bad_input_58_the_first_and_the_last_time_that_a_calendar_shows(kind: str, tmp_path: Path) -> None:
    """1970 and the end of 9999 are stored and read back, and shown; what lies beyond is refused above (58)."""
    clock = FrozenClock(MAX_WALL_MS - 1)
    journal = open_journal(kind, tmp_path, clock=clock)
    key = ConversationKey("lab", "a")
    drive(append(journal, key, "one", say("q")))
    clock.jump(0)
    drive(append(journal, key, "two", say("r")))
    walls = [entry.wall for entry in drive(samples.entries(journal, key))]
    assert list(map(moment, walls)) == ["9999-12-31 23:59:59", "1970-01-01 00:00:00"]
    assert [moment(wall) for wall in (MAX_WALL_MS, 2**63, -1)] == [f"{MAX_WALL_MS} ms", f"{2**63} ms", "-1 ms"]


def test_bad_input_59_two_hosts_with_skewed_clocks(tmp_path: Path) -> None:
    """Two workers of one file whose clocks differ by five minutes order by seq alone, and fence each other (59)."""
    clocks = FrozenClock(), FrozenClock()
    clocks[1].set_back(300_000)
    one, two = (open_journal("SQLite", tmp_path, StoreBounds(ttl_ms=HOUR), clock, blocking=True) for clock in clocks)
    key = ConversationKey("lab", "a")
    for number in range(6):
        drive(append((one, two)[number % 2], key, f"{number}", say(f"{number}")))
    entries = drive(samples.entries(one, key))
    assert [entry.seq for entry in entries] == [1, 2, 3, 4, 5, 6]
    assert entries == drive(samples.entries(two, key))
    epoch = drive(one.reserve(key, "t", format=FORMAT)).header.epoch
    drive(two.recover(key, epoch))
    clocks[0].advance(HOUR - 300_000)
    assert drive(one.header(key)) is not None
    with pytest.raises(DecisionHistoryAbsent):
        drive(two.recover(ConversationKey("lab", "none"), None))
