"""One live holder per conversation, fenced when it is recovered, and nothing else held (promises I-10 to I-16)."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import random
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from servers.proxy import Proxy
from tests.budgets import budget
from tests.stores.labs import KINDS, PROVE, chat, in_threads, open_journal, said

from minutebook.errors import (
    DecisionHistoryAbsent,
    DecisionHistoryBusy,
    DecisionHistoryFenced,
    DecisionHistoryNotReserved,
    DecisionHistoryStorageFailed,
    DecisionHistoryStorageLocked,
    InvalidOption,
)
from minutebook.model.entries import Kind
from minutebook.model.keys import ConversationKey
from minutebook.stores.memory import MemoryJournal
from minutebook.testing import Fault, FaultyJournal, FrozenClock, checkpoint, drive
from minutebook.testing.conformance import samples
from minutebook.testing.conformance.samples import FORMAT, adding, answer, dump, say

ATTEMPTS = budget(100, 2_000)
SCHEDULES = budget(0, 1_000)
ROUNDS = budget(20, 2_000)

# --- mutual exclusion under threads ----------------------------------------------------------------------------------


NEVER = sys.maxsize
UNTOLD = (DecisionHistoryStorageFailed, DecisionHistoryStorageLocked)
"""What a worker behind a network meets, which is told nothing of its hold then."""


class Held(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """One hold as its worker saw it, in nanoseconds: when it asked and had, when it gave and was rid."""

    conversation: str
    asked: int
    taken: int
    giving: int
    given: int
    epoch: int
    first: int
    last: int


class Refused(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """One Busy as its worker saw it."""

    conversation: str
    asked: int
    told: int


class Lost(msgspec.Struct, tag=True, array_like=True):
    """An attempt of which its worker was not told what came of it: certain from `taken` to `giving`, if ever."""

    conversation: str
    token: str
    asked: int
    taken: int
    giving: int
    given: int = NEVER


Event = Held | Refused | Lost


def violations(history: list[Held | Refused]) -> list[str]:
    """
    Return what in a history no store with exclusion can have answered.

    Each conversation is checked alone. A hold is certain from `taken` to `giving` and possible from `asked` to
    `given`: certain ones never overlap, a Busy needs a possible one, and real time, epochs and numbers have one order.
    """
    found: list[str] = []
    for conversation in sorted({event.conversation for event in history}):
        events = [event for event in history if event.conversation == conversation]
        holds = sorted((event for event in events if isinstance(event, Held)), key=lambda held: held.epoch)
        for earlier, later in itertools.pairwise(holds):
            if later.taken < earlier.giving:
                found.append(f"{conversation}: epochs {earlier.epoch} and {later.epoch} overlap")
            if later.epoch <= earlier.epoch or later.given < earlier.asked:
                found.append(f"{conversation}: epoch {later.epoch} against real time")
            if later.first != earlier.last + 1:
                found.append(f"{conversation}: entries {later.first} do not follow {earlier.last}")
        # The latest end of all holds that may have begun before a given one, so that long histories stay linear.
        begun = sorted(holds, key=lambda held: held.asked)
        ends = list(itertools.accumulate((held.given for held in begun), max))
        for event in events:
            if isinstance(event, Refused):
                before = bisect.bisect_right(begun, event.told, key=lambda held: held.asked)
                if not before or ends[before - 1] < event.asked:
                    found.append(f"{conversation}: Busy while nobody held")
    return found


def work(
    journal: Any, seed: int, names: list[str], attempts: int, untold: tuple[type[Exception], ...] = ()
) -> list[Event]:
    """Take, write and give back as often as it works, and keep a diary; an error of `untold` leaves it open."""
    chance, diary, now = random.Random(seed), list[Event](), time.perf_counter_ns
    lost: dict[str, list[Lost]] = {name: [] for name in names}
    for number in range(attempts):
        name = chance.choice(names)
        key, token = ConversationKey("lab", name), f"{seed}-{number}"
        asked = giving = now()
        taken = NEVER
        try:
            reserved = drive(journal.reserve(key, token, format=FORMAT, opening=adding(f"{token}-a", say(token))))
            taken = now()
            time.sleep(chance.random() / 5_000)
            epoch, giving = reserved.header.epoch, now()
            committed = drive(journal.commit(key, token, epoch, adding(f"{token}-b", answer(token)), release=True))
        except DecisionHistoryBusy:
            diary.append(Refused(name, asked, now()))
            time.sleep(chance.random() / 5_000)
        except untold:
            lost[name].append(Lost(name, token, asked, taken, giving))
            diary.append(lost[name][-1])
        else:
            first, last = reserved.written[0].seq, committed.written[-1].seq
            diary.append(Held(name, asked, taken, giving, now(), epoch, first, last))
        lost[name] = [each for each in lost[name] if not given_back(journal, key, each)]
    return diary


def given_back(journal: Any, key: ConversationKey, lost: Lost) -> bool:
    """End a hold that its worker was told nothing of, and note when; a request under way may still bring it later."""
    there = lost.taken < NEVER
    while True:
        with contextlib.suppress(*UNTOLD, DecisionHistoryFenced):
            header = drive(journal.header(key))
            if header is None or header.token != lost.token:
                lost.given = time.perf_counter_ns() if there else NEVER
                return there
            there = True
            closing = adding(f"{lost.token}-b", answer(lost.token))
            drive(journal.commit(key, lost.token, header.epoch, closing, release=True))


def resolved(history: list[Event], journal: Any) -> list[Held | Refused]:
    """Return a history in which the record tells whether the attempts that nobody was told of have held."""
    known: list[Held | Refused] = []
    for event in history:
        if not isinstance(event, Lost):
            known.append(event)
            continue
        opening, closing = (
            drive(journal.receipt(ConversationKey("lab", event.conversation), f"{event.token}-{step}")) for step in "ab"
        )
        if opening is not None:
            last = (closing or opening).last
            times = (event.asked, event.taken, event.giving, event.given)
            known.append(Held(event.conversation, *times, opening.epoch, opening.first, last))
    return known


@contextlib.contextmanager
def failing(wire: Proxy) -> Iterator[Counter[str]]:
    """Have a network reset its connections, end in the middle of a reply and fall silent, in turns; count how often."""
    chance, done, over = random.Random(10), Counter[str](), threading.Event()

    def fail() -> None:
        while not over.wait(chance.uniform(0.04, 0.2)):
            how = chance.choice(("reset", "cut", "reset", "cut", "silent"))
            done[how] += 1
            if how == "reset":
                wire.reset_all()
            elif how == "cut":
                wire.left = chance.randrange(300)
            else:
                wire.silent = True
                over.wait(0.01)
                wire.silent = False

    thread = threading.Thread(target=fail)
    thread.start()
    try:
        yield done
    finally:
        over.set()
        thread.join()


def contest(journal: Any, first: int, attempts: int) -> str:
    """Let four threads race on two conversations over a network that fails; return their diaries for the parent."""
    diaries = in_threads([lambda n=n: work(journal, first + n, ["a", "b:c"], attempts, UNTOLD) for n in range(4)])
    failed = [diary for diary in diaries if isinstance(diary, BaseException)]
    assert not failed, failed
    return msgspec.json.encode([event for diary in diaries for event in diary]).decode()


def check_contest(told: list[str], attempts: int, journal: Any) -> str:
    """Hold the diaries of 16 workers in 4 processes, and what the record tells of the rest, to exclusion; sum up."""
    history = [event for diary in told for event in msgspec.json.decode(diary, type=list[Event])]
    assert len(history) == 16 * attempts
    known = resolved(history, journal)
    assert violations(known) == []
    holds = sum(isinstance(event, Held) for event in known)
    lost = sum(isinstance(event, Lost) for event in history)
    assert 4 < holds < len(known)
    assert lost > 0
    return f"{len(history):,} attempts of 16 workers in 4 processes, {holds:,} holds, {lost:,} untold, 0 violations"


def told_by_threads(journal: Any, names: list[str], attempts: int = 100) -> list[Event]:
    diaries = in_threads([lambda seed=seed: work(journal, seed, names, attempts) for seed in range(16)])
    failed = [diary for diary in diaries if isinstance(diary, BaseException)]
    assert not failed, failed
    return [event for diary in diaries for event in diary]


@pytest.mark.timeout(3_600 if PROVE else 300)
@pytest.mark.parametrize("kind", KINDS)
def test_i10_one_live_decision_per_conversation(kind: str, tmp_path: Path, figure: Callable[[str], None]) -> None:
    """16 threads on 4 conversations: no two holds overlap, every Busy has a holder, entries follow in order (I-10)."""
    journal = open_journal(kind, tmp_path)
    names = ["a", "A", "b:c", "\u00e9"]
    attempts = min(ATTEMPTS, 200) if kind == "hosted" else ATTEMPTS  # its writes cost the whole record
    history = told_by_threads(journal, names, attempts)
    assert violations(history) == []
    holds = [event for event in history if isinstance(event, Held)]
    assert len(holds) > attempts
    assert len(holds) < len(history), "nobody was ever refused: the run proves nothing"
    for name in names:
        entries = drive(samples.entries(journal, ConversationKey("lab", name)))
        assert len(entries) == 2 * sum(held.conversation == name for held in holds)
    figure(f"{kind}: {len(history):,} attempts, {len(holds):,} holds, 0 violations")


def test_i10_checker_finds_a_store_without_exclusion() -> None:
    """Control: a journal that hands a held conversation over is found out by the same checker."""

    class HandsOver(MemoryJournal):
        async def reserve(self, key: ConversationKey, token: str, **options: Any) -> Any:
            header = await self.header(key)
            if header is not None and header.token:
                with self._lock:
                    self._namespaces[key.namespace].logs[key.id].header = msgspec.structs.replace(header, token="")
            return await super().reserve(key, token, **options)

        async def commit(self, key: ConversationKey, token: str, epoch: int, delta: Any, **options: Any) -> Any:
            header = await self.header(key)
            assert header is not None
            if not header.token:
                return await super().reserve(key, token, format=FORMAT, opening=delta, release=True)
            return await super().commit(key, header.token, header.epoch, delta, **options)

    found: list[str] = []
    for _ in range(20):
        try:
            found += violations(told_by_threads(HandsOver(clock=FrozenClock()), ["a"]))
        except AssertionError as error:  # it may also trip over itself
            found.append(str(error))
        if found:
            return
    pytest.fail("the checker found nothing in a journal without exclusion")


def test_i10_control_holds_that_nobody_was_told_of_are_known_from_the_record() -> None:
    """Control: replies are lost of both methods; left out, those attempts would be gaps that the checker finds."""
    lose = [
        Fault(method=method, call=number, after=True)
        for first, method in ((5, "reserve"), (8, "commit"), (2, "header"))
        for number in range(first, 60, 7)
    ]
    journal = FaultyJournal(MemoryJournal(), lose)
    history = work(journal, 1, ["a", "b"], 60, UNTOLD)
    lost = [event for event in history if isinstance(event, Lost)]
    assert len({event.taken < NEVER for event in lost}) == 2, "both methods have lost replies"
    assert violations(resolved(history, journal.journal)) == []
    assert any("do not follow" in found for found in violations([each for each in history if each not in lost]))


@pytest.mark.parametrize(
    ("history", "words"),
    [
        ([Held("a", 0, 1, 5, 6, 1, 1, 2), Held("a", 2, 3, 7, 8, 2, 3, 4)], "overlap"),
        ([Held("a", 0, 1, 2, 3, 1, 1, 2), Held("a", 4, 5, 6, 7, 2, 4, 5)], "do not follow"),
        ([Held("a", 4, 5, 6, 7, 1, 1, 2), Held("a", 0, 1, 2, 3, 2, 3, 4)], "real time"),
        ([Held("a", 0, 1, 2, 3, 1, 1, 2), Refused("a", 4, 5)], "nobody held"),
    ],
)
def test_i10_checker_finds_each_violation(history: list[Held | Refused], words: str) -> None:
    """Control: each rule of the checker has a history that breaks it."""
    assert any(words in violation for violation in violations(history))


@pytest.mark.parametrize("kind", KINDS)
def test_i11_busy_is_immediate_and_named(kind: str, tmp_path: Path) -> None:
    """A second holder is refused at once, with the epoch and the age of the first: p99 below 50 ms (I-11)."""
    clock = FrozenClock()
    journal = open_journal(kind, tmp_path, clock=clock)
    key = ConversationKey("lab", "a")
    drive(journal.reserve(key, "t", format=FORMAT))
    clock.advance(1_234)
    with pytest.raises(DecisionHistoryBusy) as busy:
        drive(journal.reserve(key, "u", format=FORMAT))
    assert (busy.value.epoch, busy.value.since_ms) == (1, 1_234)
    assert sorted(refused_in(journal, key, 500))[494] < 0.05


def refused_in(journal: Any, key: ConversationKey, times: int) -> list[float]:
    """Ask so often for a conversation that is held; return the seconds that each refusal took."""
    spent: list[float] = []
    for _ in range(times):
        begun = time.perf_counter()
        with pytest.raises(DecisionHistoryBusy):
            drive(journal.reserve(key, "u", format=FORMAT))
        spent.append(time.perf_counter() - begun)
    return spent


def test_i11_control_a_queue_for_the_conversation_is_found(tmp_path: Path) -> None:
    """A journal that asks again for a tenth of a second before it refuses is too slow for the check."""

    class Queues(FaultyJournal):
        async def reserve(self, *positional: Any, **named: Any) -> Any:
            until = time.perf_counter() + 0.1
            while time.perf_counter() < until:
                with contextlib.suppress(DecisionHistoryBusy):
                    return await self.journal.reserve(*positional, **named)
            return await self.journal.reserve(*positional, **named)

    journal = open_journal("RAM", tmp_path)
    key = ConversationKey("lab", "a")
    drive(journal.reserve(key, "t", format=FORMAT))
    assert min(refused_in(Queues(journal), key, 5)) > 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_i12_reservation_is_never_released_by_time(kind: str, tmp_path: Path) -> None:
    """A hold outlives any time that passes, and the file being closed and opened; only `recover` ends it (I-12)."""
    clock = FrozenClock()
    journal = open_journal(kind, tmp_path, clock=clock)
    key = ConversationKey("lab", "a")
    drive(journal.reserve(key, "t", format=FORMAT, opening=adding("one", say("a"))))
    clock.advance(20 * 365 * 86_400_000)
    if kind == "SQLite":
        drive(journal.close())
        journal = open_journal(kind, tmp_path, clock=clock)
    with pytest.raises(DecisionHistoryBusy):
        drive(journal.reserve(key, "u", format=FORMAT))
    drive(journal.recover(key, None))
    drive(journal.reserve(key, "u", format=FORMAT))


# --- fencing ---------------------------------------------------------------------------------------------------------

AFTER = ("recover", "recover delete", "recover delete new", "recover new", "recover new commit", "recover new release")


def fenced_schedule(journal: Any, key: ConversationKey, done: int, then: str, late: int) -> None:
    """Let a holder commit `done` times, lose the conversation, and wake to write in each way that there is."""
    epoch = drive(journal.reserve(key, "old", format=FORMAT, opening=adding("one", say("a"), opens=True))).header.epoch
    for number in range(done):
        drive(journal.commit(key, "old", epoch, adding(f"old-{number}", answer("b"))))
    for step in then.split():
        if step == "recover":
            drive(journal.recover(key, epoch))
        elif step == "delete":
            drive(journal.delete(key))
        elif step == "new":
            new = drive(journal.reserve(key, "new", format=FORMAT, opening=adding("new", say("c")))).header.epoch
        else:
            drive(journal.commit(key, "new", new, adding("newer", answer("d")), release=step == "release"))
    before = drive(dump(journal, key))
    deltas = [
        adding("late", answer("late")),
        adding("late"),
        adding("late", abandons="failed"),
        adding("one", say("a"), opens=True),
        adding("old-0", answer("b")),
    ]
    for release in (False, True):
        with pytest.raises(DecisionHistoryFenced):
            drive(journal.commit(key, "old", epoch, deltas[late], release=release))
    assert drive(dump(journal, key)) == before


@pytest.mark.parametrize("kind", KINDS)
def test_i13_old_holder_writes_nothing_after_recover(kind: str, tmp_path: Path, figure: Callable[[str], None]) -> None:
    """A holder that wakes after `recover`, at any point and with any commit, is fenced and changes nothing (I-13)."""
    journal = open_journal(kind, tmp_path)
    schedules = list(itertools.product(range(4), AFTER, range(5)))
    chance = random.Random(13)
    schedules += [(chance.randrange(9), chance.choice(AFTER), chance.randrange(5)) for _ in range(SCHEDULES)]
    for number, (done, then, late) in enumerate(schedules):
        fenced_schedule(journal, ConversationKey("lab", f"{number}"), done, then, late)
    assert len(schedules) >= 100
    figure(f"{kind}: {len(schedules):,} schedules, 0 old writes")


@pytest.mark.parametrize("kind", KINDS)
def test_i13_same_epoch_with_another_token_is_fenced(kind: str, tmp_path: Path) -> None:
    """After a power cut an epoch may come again; the token still tells the old holder from the new one (I-13, I-15)."""
    journal = open_journal(kind, tmp_path)
    key = ConversationKey("lab", "a")
    epoch = drive(journal.reserve(key, "old", format=FORMAT)).header.epoch
    drive(journal.recover(key, None))
    drive(journal.delete(key))
    assert drive(journal.reserve(key, "new", format=FORMAT)).header.epoch == epoch
    with pytest.raises(DecisionHistoryFenced):
        drive(journal.commit(key, "old", epoch, adding("late", answer("b"))))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", ["window", "respond", "result", "end"])
def test_i13_turn_of_a_stopped_worker_is_fenced(kind: str, at: str, tmp_path: Path) -> None:
    """A turn that was stopped anywhere, recovered and continued, fails by name and leaves the new turn alone (65)."""
    journal = open_journal(kind, tmp_path)
    old, new = chat(journal), chat(journal)

    async def stopped_worker() -> None:
        async with old.turn("old question") as turn:
            await turn.window()
            if at == "window":
                await taken_over()
            (call,) = await turn.respond(said("", "call-1"))
            if at == "respond":
                await taken_over()
            await turn.result(call, "old result")
            if at == "result":
                await taken_over()
            await turn.respond(said("old answer"))
            if at == "end":
                await taken_over()

    async def taken_over() -> None:
        await new.store.recover(new.key, worker_stopped=True)
        async with new.turn("new question") as turn:
            assert [m["content"] for m in await turn.window()] == ["new question"]
            await turn.respond(said("new answer"))

    with pytest.raises(DecisionHistoryFenced):
        drive(stopped_worker())
    assert [m["content"] for m in drive(new.window())] == ["new question", "new answer"]
    entries = drive(samples.entries(journal, new.key))
    assert b"old answer" not in b"".join(entry.payload for entry in entries)
    drive(new.store.verify(new.key))


@pytest.mark.parametrize("kind", KINDS)
def test_i13_both_token_and_epoch_must_be_those_of_the_reservation(kind: str, tmp_path: Path) -> None:
    """I-13: after a power cut an epoch may come again, and a token of its own process may be an older hold's."""
    journal, key = open_journal(kind, tmp_path), ConversationKey("lab", "owned")
    old = drive(journal.reserve(key, "old", format=FORMAT, opening=adding("one", say("a")))).header.epoch
    drive(journal.recover(key, old))
    new = drive(journal.reserve(key, "new", format=FORMAT)).header.epoch
    before = drive(dump(journal, key))
    for token, epoch in (("new", old), ("new", new + 1), ("new", new - 1), ("old", new), ("old", old), ("", new)):
        with pytest.raises(DecisionHistoryFenced):
            drive(journal.commit(key, token, epoch, adding("late", say("b"))))
    assert drive(dump(journal, key)) == before
    drive(journal.commit(key, "new", new, adding("two", say("b")), release=True))


# --- recovery --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_i14_one_of_two_recoveries_wins(kind: str, tmp_path: Path) -> None:
    """Of several recoveries at once exactly one succeeds; the others are told that there is nothing left (I-14)."""
    journal = open_journal(kind, tmp_path)
    assert [recovered_at_once(journal, number) for number in range(ROUNDS)] == [1] * ROUNDS


def recovered_at_once(journal: Any, number: int) -> int:
    """Recover a conversation four times at once; return how many were told that they did."""
    key = ConversationKey("lab", f"{number}")
    epoch = drive(journal.reserve(key, "t", format=FORMAT)).header.epoch
    recoveries = [partial(journal.recover, key, epoch), partial(journal.recover, key, None)] * 2
    answers = in_threads([lambda recovery=recovery: drive(recovery()) for recovery in recoveries])
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    assert all(type(error) is DecisionHistoryNotReserved for error in errors), errors
    return len(answers) - len(errors)


@pytest.mark.parametrize("kind", KINDS)
def test_i14_a_recovery_of_another_epoch_ends_nobodys_hold(kind: str, tmp_path: Path) -> None:
    """I-14: an operator who means the worker of an earlier epoch does not stop the one that holds it now."""
    journal, key = open_journal(kind, tmp_path), ConversationKey("lab", "held")
    old = drive(journal.reserve(key, "old", format=FORMAT, opening=adding("one", say("a")))).header.epoch
    drive(journal.recover(key, old))
    new = drive(journal.reserve(key, "new", format=FORMAT)).header.epoch
    for epoch in (old, new - 1, new + 1):
        with pytest.raises(DecisionHistoryNotReserved):
            drive(journal.recover(key, epoch))
    drive(journal.commit(key, "new", new, adding("two", say("b")), release=True))


def test_i14_control_a_recovery_that_always_succeeds_is_found(tmp_path: Path) -> None:
    """A journal that takes "nobody holds it any more" for success has four winners."""

    class Obliging(FaultyJournal):
        async def recover(self, key: ConversationKey, epoch: int | None) -> Any:
            with contextlib.suppress(DecisionHistoryNotReserved):
                return await super().recover(key, epoch)
            return await self.header(key)

    assert recovered_at_once(Obliging(open_journal("RAM", tmp_path)), 0) == 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("confirmation", [False, 1, "yes", None])
def test_bad_input_66_recovery_needs_the_statement_that_the_worker_is_stopped(
    kind: str, confirmation: Any, tmp_path: Path
) -> None:
    """Anything but `worker_stopped=True` is refused, and the holder goes on (I-14, bad input 66)."""
    journal = open_journal(kind, tmp_path)
    held, operator = chat(journal), chat(journal)

    async def worker() -> None:
        async with held.turn("hi") as turn:
            with pytest.raises(InvalidOption):
                await operator.store.recover(operator.key, worker_stopped=confirmation)
            await turn.respond(said("hello"))

    drive(worker())
    with pytest.raises(DecisionHistoryNotReserved):
        drive(operator.store.recover(operator.key, worker_stopped=True))
    with pytest.raises(DecisionHistoryAbsent):
        drive(operator.store.recover(operator.store.key("none"), worker_stopped=True))


@pytest.mark.parametrize("kind", KINDS)
def test_o32_second_run_is_refused_before_anything_is_asked(kind: str, tmp_path: Path) -> None:
    """Two runs on one conversation: the second gets Busy, turns stand one after the other, recovery is explicit."""
    journal = open_journal(kind, tmp_path)
    one, two = chat(journal), chat(journal)

    async def run(worker: Any, name: str) -> None:
        async with worker.turn(f"{name} asks") as turn:
            await checkpoint()
            (call,) = await turn.respond(said("", "call-1"))
            await checkpoint()
            await turn.result(call, "done")
            await checkpoint()
            await turn.respond(said(f"{name} is told"))

    first = run(one, "A")
    first.send(None)
    for _ in range(3):
        with pytest.raises(DecisionHistoryBusy):
            drive(run(two, "B"))
        if first.cr_frame is not None:
            try:
                first.send(None)
            except StopIteration:
                break
    drive(run(two, "B"))
    spoken = [m["content"] for m in drive(two.window()) if m["role"] == "user" or m.get("content")]
    assert [text for text in spoken if text and text[0] in "AB"] == ["A asks", "A is told", "B asks", "B is told"]
    killed = run(one, "C")
    killed.send(None)
    for _ in range(3):
        with pytest.raises(DecisionHistoryBusy):
            drive(run(two, "B"))
    drive(two.store.recover(two.key, worker_stopped=True))
    drive(run(two, "D"))
    with pytest.raises(DecisionHistoryFenced):
        drive(killed)


@pytest.mark.parametrize("kind", KINDS)
def test_bad_input_60_second_decision_in_the_same_task(kind: str, tmp_path: Path) -> None:
    """Re-entering a conversation in its own turn is Busy, not a deadlock and not a takeover (bad input 60)."""
    conversation = chat(open_journal(kind, tmp_path))

    async def nested() -> None:
        async with conversation.turn("outer") as turn:
            with pytest.raises(DecisionHistoryBusy):
                await conversation.turn("inner").__aenter__()
            with pytest.raises(DecisionHistoryBusy):
                await conversation.append([{"role": "user", "content": "beside"}])
            await turn.respond(said("done"))

    drive(nested())
    assert [m["content"] for m in drive(conversation.window())] == ["outer", "done"]


@pytest.mark.parametrize("kind", KINDS)
def test_bad_input_67_and_68_delete_and_read_while_reserved(kind: str, tmp_path: Path) -> None:
    """A conversation in use is neither deleted nor read as a snapshot: Busy (SPEC D23, bad inputs 67 and 68)."""
    journal = open_journal(kind, tmp_path)
    held, other = chat(journal), chat(journal)

    async def worker() -> None:
        async with held.turn("hi") as turn:
            with pytest.raises(DecisionHistoryBusy):
                await other.store.delete(other.key)
            with pytest.raises(DecisionHistoryBusy):
                await other.store.read(other.key)
            await turn.respond(said("hello"))

    drive(worker())
    record = drive(other.store.read(other.key))
    assert record is not None
    assert [entry.kind for entry in record.entries] == [Kind.INPUT, Kind.RESPONSE]


# --- nothing is held between two calls -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_i16_pending_decisions_hold_nothing_but_their_reservations(kind: str, tmp_path: Path) -> None:
    """While 50 turns wait for their models, others go on and a foreign connection gets the write lock (I-16)."""
    journal = open_journal(kind, tmp_path)
    turns = [chat(journal, f"waits-{number}").turn("hi") for number in range(50)]
    for turn in turns:
        drive(turn.__aenter__())
    if kind == "SQLite":
        assert can_be_written(tmp_path / "lab.db")
    for number in range(20):
        drive(_one_turn(chat(journal, f"goes on-{number}")))
    for turn in turns:
        drive(turn.respond(said("late")))
        drive(turn.__aexit__(None, None, None))
    assert drive(chat(journal).store.totals()).reserved == 0


def can_be_written(path: Path) -> bool:
    """Whether another connection gets the write lock of a database at once."""
    with contextlib.closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as third:
        try:
            third.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        third.execute("ROLLBACK")
        return True


def test_i16_control_a_transaction_held_during_a_turn_is_found(tmp_path: Path) -> None:
    """A store that began its transaction with the turn would keep the write lock until the model has answered."""
    turn = chat(open_journal("SQLite", tmp_path)).turn("hi")
    drive(turn.__aenter__())
    assert can_be_written(tmp_path / "lab.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "lab.db", isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        assert not can_be_written(tmp_path / "lab.db")
    drive(turn.respond(said("late")))
    drive(turn.__aexit__(None, None, None))


async def _one_turn(conversation: Any, text: str = "hi") -> None:
    async with conversation.turn(text) as turn:
        await turn.window()
        await turn.respond(said("hello"))


@pytest.mark.parametrize("kind", KINDS)
def test_i16_transact_holds_nothing_while_its_operation_waits(kind: str, tmp_path: Path) -> None:
    """An operation of `transact` that waits excludes its own key and nothing else (SPEC D24, I-16)."""
    journal = open_journal(kind, tmp_path)
    store = chat(journal).store

    async def operation(record: Any) -> Any:
        await checkpoint()
        return None, "done"

    waits = store.transact(store.key("a"), operation)
    waits.send(None)
    with pytest.raises(DecisionHistoryBusy):
        drive(store.transact(store.key("a"), operation))
    assert drive(store.transact(store.key("b"), operation)) == "done"
    if kind == "SQLite":
        third = sqlite3.connect(tmp_path / "lab.db", timeout=0, isolation_level=None)
        third.execute("BEGIN IMMEDIATE")
        third.execute("ROLLBACK")
        third.close()
    with pytest.raises(StopIteration, match="done"):
        waits.send(None)
