"""The journal over servers: how often it asks, what it remembers, and what it refuses to believe."""

from __future__ import annotations

import os
from typing import Any

import pytest
from tests.stores.remote_lab import LabRemote, Rows

from minutebook.errors import (
    DecisionHistoryBusy,
    DecisionHistoryCorrupt,
    DecisionHistoryFenced,
    DecisionHistoryRegressed,
    DecisionHistoryStorageFailed,
    DecisionHistoryStorageLocked,
    DecisionHistoryStoreFull,
    InvalidOption,
    StoreClosed,
)
from minutebook.model.bounds import StoreBounds
from minutebook.model.keys import ConversationKey
from minutebook.stores import remote_memory
from minutebook.stores.journal import JournalStore
from minutebook.stores.remote import DRIFT_MS, Written
from minutebook.stores.remote_journal import RemoteJournal
from minutebook.testing import FrozenClock, drive
from minutebook.testing.conformance.samples import EVERYTHING, FORMAT, KEY, adding, answer, append, entries, say


class Lab:
    """Some workers at one server, each with a clock of its own that nobody asks."""

    def __init__(self, bounds: StoreBounds | None = None) -> None:
        self.clock = FrozenClock()
        self.rows = Rows()
        self.bounds = bounds

    def worker(self, kind: type[LabRemote] = LabRemote, ticks: Any = None) -> tuple[RemoteJournal, LabRemote]:
        remote = kind(self.clock, self.rows)
        return RemoteJournal(remote, self.bounds, ticks=ticks or self.clock), remote


# --- round trips -----------------------------------------------------------------------------------------------------


def test_b1_a_known_conversation_costs_one_round_trip_a_write() -> None:
    """A worker that knows the header writes in one: a step with its opening, its commits and its release (B1)."""
    journal, remote = Lab().worker()
    drive(append(journal, KEY, "one", say("q")))
    remote.trips = 0
    reserved = drive(
        journal.reserve(KEY, "t", format=FORMAT, opening=adding("two", say("r"), opens=True), tail=EVERYTHING)
    )
    assert remote.trips == 1
    assert [entry.seq for entry in reserved.tail] == [2, 1]
    drive(journal.commit(KEY, "t", reserved.header.epoch, adding("three", answer("a"))))
    drive(journal.commit(KEY, "t", reserved.header.epoch, adding("four", settles=True), release=True))
    assert remote.trips == 3
    drive(append(journal, KEY, "five", say("s")))
    drive(append(journal, ConversationKey("suite", "new"), "one", say("q")))
    assert remote.trips == 5


def test_b1_i31_looking_for_the_expired_costs_a_round_trip_a_minute() -> None:
    """Under a time to live a write costs one round trip too; what has expired is looked for now and then (B1, I-31)."""
    lab = Lab(StoreBounds(ttl_ms=10**9))
    journal, remote = lab.worker()
    drive(append(journal, KEY, "first", say("q")))
    for _ in range(2):
        drive(append(journal, KEY, f"look {remote.trips}", say("q")))
        remote.trips = 0
        for _ in range(20):
            drive(append(journal, KEY, f"{lab.clock()} {remote.trips}", say("q")))
        assert remote.trips == 20
        lab.clock.advance(61_000)


def test_b1_a_stale_header_costs_one_more() -> None:
    """Where another worker went on, the refusal brings the header that counts, which is looked at once (B1, I-15)."""
    lab = Lab()
    one, remote = lab.worker()
    two, _ = lab.worker()
    drive(append(one, KEY, "one", say("q")))
    drive(append(two, KEY, "two", say("r")))
    remote.trips = 0
    drive(append(one, KEY, "three", say("s")))
    assert remote.trips == 3  # the refused one, the receipt of the version that was known, and the write
    assert [entry.seq for entry in drive(entries(one, KEY))] == [1, 2, 3]


def test_d22_what_is_only_remembered_refuses_nothing() -> None:
    """A worker that remembers a held conversation, or a hold of its own, looks before it refuses (D22)."""
    lab = Lab()
    one, _ = lab.worker()
    two, _ = lab.worker()
    held = drive(one.reserve(KEY, "t", format=FORMAT)).header
    with pytest.raises(DecisionHistoryBusy):
        drive(two.reserve(KEY, "u", format=FORMAT))
    drive(one.commit(KEY, "t", held.epoch, adding("one", say("q")), release=True))
    assert drive(two.reserve(KEY, "u", format=FORMAT)).header.epoch == 2
    with pytest.raises(DecisionHistoryFenced):
        drive(one.commit(KEY, "t", held.epoch, adding("late", say("r"))))


def test_d22_a_conversation_that_never_stands_still_is_refused_by_name() -> None:
    """Each retry means that somebody else got on; after many the call ends, with nothing written."""

    class Restless(LabRemote):
        async def write(self, key: Any, change: Any, bounds: Any, *, tail: Any) -> Written:
            return Written(refused="stale", look=await self.look(key))

    journal, remote = Lab().worker(Restless)
    with pytest.raises(DecisionHistoryStorageLocked):
        drive(append(journal, KEY, "one", say("q")))
    assert remote.trips < 100
    assert drive(journal.header(KEY)) is None


# --- unknown outcomes ------------------------------------------------------------------------------------------------


class Cutting(LabRemote):
    """A server whose connection breaks once: before a write, or after it."""

    cut = ""

    async def write(self, key: Any, change: Any, bounds: Any, *, tail: Any) -> Written:
        cut, self.cut = self.cut, ""
        if cut == "before":
            raise DecisionHistoryStorageFailed("the connection broke")
        written = await super().write(key, change, bounds, tail=tail)
        if cut == "after":
            raise DecisionHistoryStorageFailed("the connection broke")
        return written


@pytest.mark.parametrize("cut", ["before", "after"])
@pytest.mark.parametrize("release", [False, True])
def test_i08_after_a_cut_the_same_id_writes_once(cut: str, release: bool) -> None:
    """Whether a write that was cut is there, a second one of the same id finds out (I-8)."""
    journal, remote = Lab().worker(Cutting)
    assert isinstance(remote, Cutting)
    drive(append(journal, KEY, "one", say("q")))
    epoch = drive(journal.reserve(KEY, "t", format=FORMAT)).header.epoch
    remote.cut = cut
    delta = adding("two", say("r"))
    with pytest.raises(DecisionHistoryStorageFailed):
        drive(journal.commit(KEY, "t", epoch, delta, release=release))
    if release and cut == "after":
        assert drive(journal.receipt(KEY, "two")) is not None
    else:
        drive(journal.commit(KEY, "t", epoch, delta, release=release))
    assert [entry.seq for entry in drive(entries(journal, KEY))] == [1, 2]


# --- what the server lost --------------------------------------------------------------------------------------------


def test_i15_a_server_that_lost_what_it_acknowledged_is_refused() -> None:
    """A worker that saw a newer version reads and writes no older one, and a fresh one goes on from what there is."""
    lab = Lab()
    journal, _ = lab.worker()
    drive(append(journal, KEY, "one", say("q")))
    backup = (lab.rows[KEY].head, dict(lab.rows[KEY].entries), dict(lab.rows[KEY].receipts))
    drive(append(journal, KEY, "two", say("r")))
    lab.rows[KEY].head, lab.rows[KEY].entries, lab.rows[KEY].receipts = backup
    for call in (journal.header(KEY), append(journal, KEY, "three", say("s")), journal.recover(KEY, None)):
        with pytest.raises(DecisionHistoryRegressed) as refused:
            drive(call)
        assert (refused.value.version, refused.value.seen) == (1, 2)
    assert len(lab.rows[KEY].entries) == 1
    fresh, _ = lab.worker()
    drive(append(fresh, KEY, "other", say("another story")))
    # As many versions, and another one.
    with pytest.raises(DecisionHistoryRegressed):
        drive(journal.header(KEY))


@pytest.mark.parametrize("more", range(1, 6))
def test_i15_a_loss_that_others_have_written_over_is_refused(more: int) -> None:
    """A worker that saw what was lost goes on from no other story, however long that has become meanwhile (I-15)."""
    lab = Lab()
    journal, _ = lab.worker()
    drive(append(journal, KEY, "one", say("q")))
    backup = (lab.rows[KEY].head, dict(lab.rows[KEY].entries), dict(lab.rows[KEY].receipts))
    for id_ in ("two", "three"):
        drive(append(journal, KEY, id_, say("acknowledged")))
    lab.rows[KEY].head, lab.rows[KEY].entries, lab.rows[KEY].receipts = backup
    fresh, _ = lab.worker()
    for number in range(more):
        drive(append(fresh, KEY, f"other {number}", say("another story")))
    calls = (
        lambda: journal.header(KEY),
        lambda: append(journal, KEY, "four", say("s")),
        lambda: journal.newest(KEY, 9, EVERYTHING),
        lambda: journal.receipts(KEY, 0, 9),
        lambda: journal.recover(KEY, None),
        lambda: journal.delete(KEY),
        lambda: journal.header(KEY),
    )
    for call in calls:
        with pytest.raises(DecisionHistoryRegressed) as refused:
            drive(call())
        assert (refused.value.version, refused.value.seen) == (1 + more, 3)
    assert len(lab.rows[KEY].entries) == 1 + more
    drive(append(fresh, KEY, "more", say("s")))


def test_i15_what_others_wrote_is_no_loss() -> None:
    """However many versions they wrote, and after an outcome that is unknown, the worker goes on (I-15)."""
    lab = Lab()
    journal, remote = lab.worker(Cutting)
    assert isinstance(remote, Cutting)
    other, _ = lab.worker()
    for round_ in range(3):
        drive(append(journal, KEY, f"mine {round_}", say("q")))
        for number in range(round_ + 1):
            drive(append(other, KEY, f"theirs {round_} {number}", say("r")))
        drive(journal.header(KEY))
        remote.cut = "after"
        with pytest.raises(DecisionHistoryStorageFailed):
            drive(append(journal, KEY, f"cut {round_}", say("s")))
        drive(append(other, KEY, f"more {round_}", say("r")))
    drive(append(journal, KEY, "last", say("q")))
    assert len(drive(entries(journal, KEY))) == 16


def test_i15_a_receipt_that_was_kept_finds_what_was_lost() -> None:
    """Nobody who saw the newer version is left, and another story has grown as long: the receipt tells (I-15)."""
    lab = Lab()
    journal, _ = lab.worker()
    drive(append(journal, KEY, "one", say("q")))
    backup = (lab.rows[KEY].head, dict(lab.rows[KEY].entries), dict(lab.rows[KEY].receipts))
    drive(append(journal, KEY, "two", say("r")))
    kept = drive(journal.receipt(KEY, "two"))
    store = JournalStore(journal, namespace=KEY.namespace)
    assert drive(store.verify(KEY, receipt=kept)).version == 2
    lab.rows[KEY].head, lab.rows[KEY].entries, lab.rows[KEY].receipts = backup
    fresh = JournalStore(lab.worker()[0], namespace=KEY.namespace)
    for id_ in ("other", "two"):
        with pytest.raises(DecisionHistoryRegressed) as refused:
            drive(fresh.verify(KEY, receipt=kept))
        assert refused.value.seen == 2
        drive(append(fresh.journal, KEY, id_, say("another story")))
    assert drive(fresh.verify(KEY)).version == 3


class Overtaken(LabRemote):
    """A server one of whose looks comes after something that was asked for later."""

    later: Any = None

    async def look(self, key: Any, *, receipt: str = "") -> Any:
        look = await super().look(key, receipt=receipt)
        if self.later is not None:
            later, self.later = self.later, None
            await later
        return look


def test_i15_absence_that_was_overtaken_hides_no_loss() -> None:
    """A look from before the conversation began, which comes after that, has nobody forget how far it went (I-15)."""
    lab = Lab()
    journal, remote = lab.worker(Overtaken)
    assert isinstance(remote, Overtaken)
    backup: list[Any] = []

    async def begin() -> None:
        await append(journal, KEY, "one", say("q"))
        backup.extend((lab.rows[KEY].head, dict(lab.rows[KEY].entries), dict(lab.rows[KEY].receipts)))
        await append(journal, KEY, "two", say("acknowledged"))

    remote.later = begin()
    assert drive(journal.header(KEY)) is None
    lab.rows[KEY].head, lab.rows[KEY].entries, lab.rows[KEY].receipts = backup
    with pytest.raises(DecisionHistoryRegressed):
        drive(journal.header(KEY))


def test_i15_a_reply_that_was_overtaken_is_no_loss() -> None:
    """A look that was asked for before a write, and comes after it, tells of the past."""
    lab = Lab()
    journal, _ = lab.worker()
    drive(append(journal, KEY, "one", say("q")))
    journal, remote = lab.worker(Overtaken)
    assert isinstance(remote, Overtaken)
    drive(journal.header(KEY))
    remote.later = append(journal, KEY, "two", say("r"))
    overtaken = drive(journal.header(KEY))
    assert overtaken is not None
    assert overtaken.version == 1
    now = drive(journal.header(KEY))
    assert now is not None
    assert now.version == 2
    drive(append(journal, KEY, "three", say("s")))


def test_i15_deleted_and_begun_anew_is_no_loss() -> None:
    """Another worker may delete a conversation and begin it anew; its first version is no older one."""
    lab = Lab()
    one, _ = lab.worker()
    two, _ = lab.worker()
    drive(append(one, KEY, "one", say("q")))
    drive(append(one, KEY, "two", say("r")))
    drive(two.delete(KEY))
    lab.clock.advance(1)
    drive(append(two, KEY, "one", say("anew")))
    header = drive(one.header(KEY))
    assert header is not None
    assert header.version == 1


@pytest.mark.parametrize("anew", range(1, 4))
def test_i15_b2_begun_anew_in_the_same_millisecond_is_no_loss(anew: int) -> None:
    """A record is known by its birth, and not by its times: shorter, as long or longer than the one before (I-15)."""
    lab = Lab()
    one, _ = lab.worker()
    two, _ = lab.worker()
    for id_ in ("one", "two"):
        drive(append(one, KEY, id_, say("q")))
    before = drive(one.header(KEY))
    drive(two.delete(KEY))
    for number in range(anew):
        drive(append(two, KEY, f"anew {number}", say("r")))
    now = drive(two.header(KEY))
    assert before is not None
    assert now is not None
    assert before.created == now.created
    assert drive(one.header(KEY)) == now
    drive(append(one, KEY, "three", say("s")))
    assert len(drive(entries(two, KEY))) == anew + 1


def test_i15_b2_what_is_deleted_while_its_receipt_is_looked_up_is_no_loss() -> None:
    """The receipts that a look-up finds may be another record's by then (I-15)."""

    class Replaced(LabRemote):
        at_receipts: Any = None

        async def receipts(self, key: Any, after: int, rows: int) -> Any:
            if self.at_receipts is not None:
                change, self.at_receipts = self.at_receipts, None
                await change()
            return await super().receipts(key, after, rows)

    lab = Lab()
    journal, remote = lab.worker(Replaced)
    assert isinstance(remote, Replaced)
    other, _ = lab.worker()
    drive(append(journal, KEY, "one", say("q")))
    drive(append(other, KEY, "two", say("r")))

    async def begin_anew() -> None:
        await other.delete(KEY)
        await append(other, KEY, "anew", say("another story"))

    remote.at_receipts = begin_anew
    drive(journal.header(KEY))
    assert remote.at_receipts is None
    assert drive(journal.header(KEY)) == drive(other.header(KEY))


def _lost_behind_others(others: int) -> RemoteJournal:
    """Return a journal that was acknowledged a commit, used other conversations, and whose server lost the commit."""
    lab = Lab()
    journal, _ = lab.worker()
    drive(append(journal, KEY, "one", say("q")))
    backup = (lab.rows[KEY].head, dict(lab.rows[KEY].entries), dict(lab.rows[KEY].receipts))
    drive(append(journal, KEY, "two", say("acknowledged")))
    lab.rows[KEY].head, lab.rows[KEY].entries, lab.rows[KEY].receipts = backup
    for number in range(others):
        lab.rows.pop(ConversationKey("suite", f"{number - 1}"), None)
        drive(append(journal, ConversationKey("suite", f"{number}"), "one", say("q")))
    return journal


@pytest.mark.parametrize("others", [10, 4_200])
def test_i15_a_loss_is_known_however_many_others_were_used_since(others: int) -> None:
    """A header is forgotten after some thousand others, and how far its conversation went is not (I-15)."""
    journal = _lost_behind_others(others)
    for call in (journal.header(KEY), append(journal, KEY, "three", say("s"))):
        with pytest.raises(DecisionHistoryRegressed) as refused:
            drive(call)
        assert (refused.value.version, refused.value.seen) == (1, 2)


def test_i15_what_is_remembered_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more conversations than the guide names nothing stays; the marks go least recently used first (I-15)."""
    monkeypatch.setattr(remote_memory, "_KNOWN_HEADERS", 2)
    monkeypatch.setattr(remote_memory, "_KNOWN_MARKS", 4)
    with pytest.raises(DecisionHistoryRegressed):
        drive(_lost_behind_others(5).header(KEY))
    assert drive(_lost_behind_others(6).header(KEY)).version == 1


# --- time ------------------------------------------------------------------------------------------------------------


def test_i30_a_worker_that_stood_still_takes_the_servers_time() -> None:
    """A machine that was suspended reckons with a time long past; its write is made at the server's (I-30)."""
    lab = Lab(StoreBounds(ttl_ms=60_000))
    ticks = FrozenClock(1_000)
    journal, _ = lab.worker(ticks=ticks)
    other, _ = lab.worker()
    drive(append(journal, KEY, "one", say("q")))
    lab.clock.advance(50_000)
    drive(append(other, KEY, "two", say("r")))
    lab.clock.advance(50_000)
    drive(append(journal, KEY, "three", say("s")))  # its own ticks say that no time has passed
    walls = [entry.wall for entry in drive(entries(other, KEY))]
    assert walls == [lab.clock() - 100_000, lab.clock() - 50_000, lab.clock()]


def test_i30_ticks_that_run_ahead_expire_nobody() -> None:
    """A worker whose own time says that a conversation has expired looks before it believes that (I-30)."""
    lab = Lab(StoreBounds(ttl_ms=60_000))
    ticks = FrozenClock(1_000)
    journal, _ = lab.worker(ticks=ticks)
    drive(append(journal, KEY, "one", say("q")))
    ticks.advance(10**9)
    drive(append(journal, KEY, "two", say("r")))
    assert [entry.wall for entry in drive(entries(journal, KEY))] == [lab.clock()] * 2


def test_i30_a_write_is_within_the_drift() -> None:
    """Whatever a worker's ticks do, an entry's time is within `DRIFT_MS` of the server's."""
    lab = Lab()
    ticks = FrozenClock(1_000)
    journal, _ = lab.worker(ticks=ticks)
    drive(append(journal, KEY, "0", say("q")))
    for number, skew in enumerate((DRIFT_MS - 1, 1, DRIFT_MS, 2, 5 * DRIFT_MS), 1):
        ticks.advance(skew)
        drive(append(journal, KEY, f"{number}", say("q")))
    assert all(abs(entry.wall - lab.clock()) <= DRIFT_MS for entry in drive(entries(journal, KEY)))


def test_b1_i30_a_time_that_was_put_right_is_reckoned_with_from_then_on() -> None:
    """What a worker hears of the server's time costs it no further round trips (B1, I-30)."""
    lab = Lab()
    ticks = FrozenClock(10**9)
    journal, remote = lab.worker(ticks=ticks)
    drive(append(journal, KEY, "before", say("q")))
    ticks.advance(5 * DRIFT_MS)
    drive(append(journal, KEY, "astray", say("q")))
    remote.trips = 0
    for number in range(5):
        drive(append(journal, KEY, f"{number}", say("q")))
    assert remote.trips == 5


class Slow(LabRemote):
    """A server at the end of a slow line, and how many bytes it was sent."""

    rate = 1_000
    """Bytes in a millisecond."""
    sent = 0

    async def write(self, key: Any, change: Any, bounds: Any, *, tail: Any) -> Written:
        size = sum(len(entry.payload) for entry in change.entries)
        self.sent += size
        self.clock.advance(size // self.rate)  # type: ignore[attr-defined]
        return await super().write(key, change, bounds, tail=tail)


@pytest.mark.parametrize("known", [False, True])
def test_i30_a_large_write_takes_its_time_and_is_sent_once(known: bool) -> None:
    """What takes longer than `DRIFT_MS` to arrive is written at the first time, a large one after a look (I-30)."""
    lab = Lab()
    journal, remote = lab.worker(Slow)
    assert isinstance(remote, Slow)
    if known:
        drive(append(journal, KEY, "one", say("q")))
    remote.trips = remote.sent = 0
    text = "y" * 13_000_000
    drive(append(journal, KEY, "two", say(text)))
    assert remote.sent < 1.1 * len(text)
    assert remote.trips == 2
    assert drive(journal.receipt(KEY, "two")) is not None


def test_i30_a_write_that_is_always_late_is_given_up() -> None:
    """A way that is too slow for a write is told after a few times, with nothing written (I-30)."""
    journal, remote = Lab().worker(Slow)
    assert isinstance(remote, Slow)
    remote.rate = 10
    with pytest.raises(DecisionHistoryStorageLocked, match="too slow"):
        drive(append(journal, KEY, "one", say("y" * 200_000)))
    assert remote.sent < 4 * 210_000
    assert drive(journal.header(KEY)) is None


def test_bad_input_57_ticks_that_raise() -> None:
    """They are refused by name, and nothing is written (57)."""

    def broken() -> int:
        raise OSError

    lab = Lab()
    journal, _ = lab.worker(ticks=broken)
    with pytest.raises(InvalidOption):
        drive(append(journal, KEY, "one", say("q")))


# --- expiry and bounds -----------------------------------------------------------------------------------------------


def test_i31_what_was_written_in_the_future_expires_all_the_same() -> None:
    """After the server's clock was set back, a write brings records of the future to the present (I-30, I-31)."""
    lab = Lab(StoreBounds(ttl_ms=60_000))
    journal, _ = lab.worker()
    drive(append(journal, KEY, "one", say("q")))
    lab.clock.set_back(86_400_000)
    drive(append(journal, ConversationKey("suite", "other"), "one", say("q")))
    lab.clock.advance(60_001)
    assert drive(journal.header(KEY)) is None


def test_i29_what_has_expired_makes_room() -> None:
    """A full namespace is looked through for what has expired before a write is refused (D7, I-29, I-31)."""
    lab = Lab(StoreBounds(ttl_ms=60_000, max_sessions=2))
    journal, _ = lab.worker()
    for name in ("a", "b"):
        drive(append(journal, ConversationKey("suite", name), "one", say("q")))
    with pytest.raises(DecisionHistoryStoreFull):
        drive(append(journal, KEY, "one", say("q")))
    lab.clock.advance(60_001)
    drive(append(journal, KEY, "one", say("q")))
    assert drive(journal.totals("suite")).conversations == 1


@pytest.mark.parametrize("error", [DecisionHistoryCorrupt, DecisionHistoryRegressed])
def test_i31_what_is_wrong_with_one_that_has_expired_is_nobody_elses_trouble(error: type[Exception]) -> None:
    """One that cannot be removed is no error of whoever writes another one, and the others are removed (I-31, I-29)."""

    class Stuck(LabRemote):
        async def write(self, key: Any, change: Any, bounds: Any, *, tail: Any) -> Written:
            if key.id == "a" and change.header is None:
                raise error("one that is damaged")
            return await super().write(key, change, bounds, tail=tail)

    lab = Lab(StoreBounds(ttl_ms=60_000, max_sessions=3))
    journal, _ = lab.worker(Stuck)
    for name in "abc":
        drive(append(journal, ConversationKey("suite", name), "one", say("q")))
    lab.clock.advance(60_001)
    drive(append(journal, KEY, "one", say("q")))
    assert {key.id for key in lab.rows} == {"a", KEY.id}


# --- closing ---------------------------------------------------------------------------------------------------------


def test_i17_a_forked_child_is_refused() -> None:
    """Nothing is asked of the server in the child, not even to close (I-17)."""
    journal, remote = Lab().worker()
    drive(append(journal, KEY, "one", say("q")))
    remote.trips = 0
    child = os.fork()
    if not child:
        try:
            for call in (journal.header(KEY), journal.newest(KEY, 9, EVERYTHING), append(journal, KEY, "x", say("r"))):
                with pytest.raises(StoreClosed):
                    drive(call)
            drive(journal.close())
            os._exit(remote.trips)
        except BaseException:
            os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert drive(journal.header(KEY)) is not None
