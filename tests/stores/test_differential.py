"""
All stores give the same answers: one story told to RAM, SQLite, servers and a host at once (promises I-8, I-21).

The clock is shared and stands still between two steps, so headers, entries, receipts and digests must be equal to the
byte, and so must refusals: their class, their words and their facts.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from tests.budgets import PROVE, budget
from tests.stores import postgres_lab
from tests.stores.hosts import ThreadedHost
from tests.stores.labs import KINDS, open_journal
from tests.stores.redis_lab import REDIS, salted_journal
from tests.stores.remote_lab import LabRemote

from minutebook.errors import DecisionHistoryConflict, MinutebookError
from minutebook.model.bounds import StoreBounds
from minutebook.model.keys import ConversationKey
from minutebook.model.record import Delta, Header
from minutebook.ports import Page
from minutebook.stores.copying import gathered
from minutebook.stores.hosted import HostedJournal
from minutebook.stores.journal import JournalStore
from minutebook.stores.memory import MemoryJournal
from minutebook.stores.remote_journal import RemoteJournal
from minutebook.stores.sqlite import SQLiteJournal
from minutebook.stores.transfer import Counting
from minutebook.testing import Fault, FaultyJournal, FrozenClock, drive
from minutebook.testing.conformance import samples
from minutebook.testing.conformance.samples import FORMAT, answer, result, say

SEQUENCES = budget(200, 5_000)
ON_SERVERS = budget(8, 1)
"""Every how many sequences are told to real servers too."""
LOST_REPLIES = budget(300, 10_000)

NAMES = ("a", "A", "a:b", "\u00e9", "e\u0301", "a%", "a ")
BAD_IDS = ("", " ", "\0", "a\0", "\ud800", "x" * 513, 7, None, b"a")
IDEMPOTENCY = ("one", "two", "three", "recover-1", "recover-2", "ONE", "one ")
TEXTS = ("", "x", "\u00e9\U0001f600", "y" * 300)


class Clones:
    """The same journal several times, and every call made on each."""

    def __init__(self, journals: dict[str, Any]) -> None:
        self.journals = journals

    def call(self, method: str, *positional: Any, **named: Any) -> Any:
        """Return the answer that all journals give, or the refusal; the first difference fails."""
        seen = {name: _answer(journal, method, positional, named) for name, journal in self.journals.items()}
        (first, expected), *others = seen.items()
        for name, got in others:
            assert got == expected, f"{method}: {first} answers {expected!r}, {name} {got!r}"
        return expected

    def prove(self, key: ConversationKey, cuts: list[int]) -> None:
        """See that each journal's record is sound from where it begins, and note where that is."""
        for journal in self.journals.values():
            if drive(journal.header(key)) is not None:
                header = drive(JournalStore(journal, namespace=key.namespace).verify(key))
                cuts.append(header.cut.seq)

    def close(self) -> None:
        for journal in self.journals.values():
            drive(journal.close())


def _answer(journal: Any, method: str, positional: Any, named: Any) -> Any:
    try:
        got = drive(getattr(journal, method)(*positional, **named))
    except MinutebookError as error:
        return type(error), str(error), error.facts
    if method == "totals":
        return msgspec.structs.replace(got, expired=0)  # RAM purges when it looks, a database at its next write
    return None if method == "delete" else got  # RAM erases nothing, and says so


@st.composite
def drafts(draw: st.DrawFn) -> tuple[Any, ...]:
    made: list[Any] = []
    for kind in draw(st.lists(st.sampled_from("irtc"), max_size=3)):
        text = draw(st.sampled_from(TEXTS))
        if kind == "i":
            made.append(say(text))
        elif kind == "r":
            made.append(answer(text))
        elif kind == "c":
            made.append(answer(text, "", "call"))
        else:
            made.append(result(draw(st.integers(0, 2)), text, draw(st.sampled_from((0, 0, 1, 2, 4)))))
    return tuple(made)


deltas = st.builds(
    Delta,
    drafts=drafts(),
    idempotency=st.sampled_from(IDEMPOTENCY) | st.uuids().map(str) | st.sampled_from(("", "\0", "x" * 513)),
    opens=st.booleans(),
    settles=st.booleans(),
    abandons=st.sampled_from(("", "", "failed")),
    supersedes=st.sampled_from((False, False, True)),
    parks=st.sampled_from(((), (), (2,), (1, 2))),
    window_from=st.sampled_from((0, 2)),
    sent=st.sampled_from((b"", b"{}")),
    max_retained_bytes=st.sampled_from((None, None, 900)),
    cut=st.sampled_from((0,) * 12 + (1, 2, 3, 99)),
)
pages = st.builds(
    Page, rows=st.sampled_from((-1, 0, 1, 2, 99)), messages=st.sampled_from((0, 1, 99)), size=st.sampled_from((0, 9**9))
)
bounds = st.builds(
    StoreBounds,
    max_sessions=st.sampled_from((None, 1, 3)),
    max_bytes=st.sampled_from((None, 1_200)),
    max_retained_bytes=st.sampled_from((None, 700)),
    ttl_ms=st.sampled_from((None, 1_000, 200_000)),
)
names = st.sampled_from(NAMES)


def machine(path: Path, seen: list[int], cuts: list[int]) -> type[RuleBasedStateMachine]:
    """
    Return the story, over journals in one file that each example has for itself by its namespaces.

    It notes each example, and where each record began that it proved.
    """
    numbers = itertools.count()

    class Story(RuleBasedStateMachine):
        @initialize(bounds=bounds)
        def begin(self, bounds: StoreBounds) -> None:
            self.clock = FrozenClock()
            self.bounds = bounds
            self.number = next(numbers)
            seen.append(self.number)
            journals: dict[str, Any] = {
                "RAM": MemoryJournal(bounds, clock=self.clock),
                "SQLite": SQLiteJournal(path, bounds, clock=self.clock, blocking=True),
                "remote": RemoteJournal(LabRemote(self.clock), bounds, ticks=self.clock),
            }
            if self.number % ON_SERVERS == 0:  # on a server a story takes some twenty times as long
                journals["Postgres"] = postgres_lab.salted_journal(f"{path}", bounds, self.clock, blocking=True)
                for kind in REDIS:
                    salt = f"{path} {self.number}"
                    journals[kind] = salted_journal(kind, salt, bounds, self.clock, blocking=True)
            if bounds.max_sessions is bounds.max_bytes is bounds.ttl_ms is None:
                hosted = HostedJournal(ThreadedHost(), max_retained_bytes=bounds.max_retained_bytes, clock=self.clock)
                journals["hosted"] = hosted
            self.clones = Clones(journals)
            self.epochs: dict[ConversationKey, list[int]] = {}

        def key(self, namespace: str, name: str) -> ConversationKey:
            return ConversationKey(f"{self.number} {namespace}", name)

        @rule(
            namespace=st.sampled_from(("n", "N")),
            name=names,
            token=st.sampled_from(("t", "u", "t", "")),
            format=st.sampled_from((FORMAT, FORMAT, FORMAT, "another")),
            opening=st.none() | deltas,
            release=st.booleans(),
            tail=st.none() | pages,
            known=st.integers(-1, 3),
        )
        def reserve(self, namespace: str, name: str, token: str, **options: Any) -> None:
            key = self.key(namespace, name)
            got = self.clones.call("reserve", key, token, **options)
            if not isinstance(got, tuple):
                self.epochs.setdefault(key, []).append(got.header.epoch)

        @rule(data=st.data(), token=st.sampled_from(("t", "t", "u")), delta=deltas, release=st.booleans())
        def commit(self, data: st.DataObject, token: str, delta: Delta, release: bool) -> None:
            key = data.draw(st.sampled_from(sorted(self.epochs) or [self.key("n", "a")]))
            epochs = self.epochs.get(key, [1])
            epoch = epochs[-1] if data.draw(st.integers(0, 4)) else data.draw(st.sampled_from([*epochs, 99]))
            self.clones.call("commit", key, token, epoch, delta, release=release)

        @rule(data=st.data(), added=drafts(), idempotency=st.uuids().map(str), most=st.booleans())
        def cut(self, data: st.DataObject, added: Any, idempotency: str, most: bool) -> None:
            key = data.draw(st.sampled_from(sorted(self.epochs) or [self.key("n", "a")]))
            header = self.clones.call("header", key)
            entries = header.entries if isinstance(header, Header) else 0
            at = entries if most else data.draw(st.integers(1, entries + 2))
            delta = Delta(drafts=added, idempotency=idempotency, settles=True, cut=at)
            if isinstance(header, Header) and header.token:
                self.clones.call("commit", key, header.token, header.epoch, delta, release=True)
            else:
                self.clones.call("reserve", key, "t", format=FORMAT, opening=delta, release=True)

        @rule(data=st.data(), epoch=st.sampled_from((None, None, 1, 2, 99)))
        def recover(self, data: st.DataObject, epoch: int | None) -> None:
            key = data.draw(st.sampled_from(sorted(self.epochs) or [self.key("n", "a")]))
            self.clones.call("recover", key, epoch)

        @rule(namespace=st.sampled_from(("n", "N")), name=names)
        def delete(self, namespace: str, name: str) -> None:
            self.clones.call("delete", self.key(namespace, name))

        @rule(data=st.data(), times=st.integers(1, 2), stays=st.booleans())
        def move_away_and_back(self, data: st.DataObject, times: int, stays: bool) -> None:
            key = data.draw(st.sampled_from(sorted(self.epochs) or [self.key("n", "a")]))
            header = self.clones.call("header", key)
            if not isinstance(header, Header) or header.token or header.attempt:
                return
            store = JournalStore(self.clones.journals["RAM"], namespace=key.namespace)
            moved = drive(gathered(store, key, header, Counting(None, 0)))
            if not stays:
                self.clones.call("delete", key)
            for _ in range(times):
                self.clones.call("reserve", key, "t", format=header.format, opening=moved, release=True)

        @rule(ms=st.sampled_from((1, 999, 1_000, 1_001, 200_001, 10**10)))
        def advance(self, ms: int) -> None:
            self.clock.advance(ms)

        @precondition(lambda self: self.bounds.ttl_ms is None)
        @rule(ms=st.sampled_from((1, 3_600_000)))
        def set_back(self, ms: int) -> None:
            self.clock.set_back(ms)

        @rule(namespace=st.sampled_from(("n", "N")), name=names, place=st.integers(-1, 6), page=pages)
        def read(self, namespace: str, name: str, place: int, page: Page) -> None:
            key = self.key(namespace, name)
            self.clones.call("header", key)
            self.clones.call("newest", key, place, page)
            self.clones.call("oldest", key, place, page)
            self.clones.call("receipts", key, place, page.rows)

        @rule(name=names, idempotency=st.sampled_from(IDEMPOTENCY + BAD_IDS[:6]))
        def receipt(self, name: str, idempotency: str) -> None:
            self.clones.call("receipt", self.key("n", name), idempotency)

        @rule(after=st.sampled_from(("", "A", "a", "a:b", "\u00e9", "x" * 512)), rows=st.integers(-1, 4))
        def list(self, after: str, rows: int) -> None:
            self.clones.call("list", f"{self.number} n", after, rows)

        @rule(namespace=st.sampled_from(BAD_IDS))
        def ask_for_a_bad_namespace(self, namespace: Any) -> None:
            self.clones.call("list", namespace, "", 3)
            self.clones.call("totals", namespace)

        @rule()
        def whole(self) -> None:
            for namespace in ("n", "N"):
                self.clones.call("totals", f"{self.number} {namespace}")
                for name in NAMES:
                    key = self.key(namespace, name)
                    self.clones.call("header", key)
                    self.clones.call("oldest", key, 0, samples.EVERYTHING)
                    self.clones.call("receipts", key, 0, 99)
                    self.clones.prove(key, cuts)

        def teardown(self) -> None:
            if hasattr(self, "clones"):
                self.whole()
                self.clones.close()

    return Story


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A database file whose writer stays open for the whole test, so that each example costs no opening."""
    tmp_path.chmod(0o700)
    keeper = SQLiteJournal(tmp_path / "clones.db", blocking=True)
    yield tmp_path / "clones.db"
    drive(keeper.close())


@pytest.mark.timeout(7_200 if PROVE else 300)
def test_i21_all_stores_give_the_same_answers(path: Path, figure: Callable[[str], None]) -> None:
    """The same operations give the same answers, refusals and digests on every journal (I-21)."""
    seen: list[int] = []
    cuts: list[int] = []
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine(path, seen, cuts),
        settings=settings(
            max_examples=SEQUENCES,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=not PROVE,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            print_blob=True,
        ),
    )
    begun = sum(cut > 0 for cut in cuts)
    figure(
        f"{len(seen):,} sequences told to RAM, SQLite, the journal over a server and a hosted one, "
        f"{sum(number % ON_SERVERS == 0 for number in seen):,} of them to Postgres and Redis, 0 differences; "
        f"{len(cuts):,} records proved, {begun:,} of them cut"
    )
    assert len(seen) >= SEQUENCES
    assert begun > SEQUENCES // 10


def test_i21_a_difference_would_be_found() -> None:
    """Two journals of which one counts otherwise are told apart: the harness can fail."""

    class Counts(MemoryJournal):
        async def header(self, key: ConversationKey) -> Any:
            header = await super().header(key)
            return header and msgspec.structs.replace(header, entries=header.entries + 1)

    clones = Clones({"RAM": MemoryJournal(clock=FrozenClock()), "other": Counts(clock=FrozenClock())})
    key = ConversationKey("n", "a")
    clones.call("reserve", key, "t", format=FORMAT, opening=samples.adding("one", say("a")))
    with pytest.raises(AssertionError, match="header"):
        clones.call("header", key)


# --- lost replies ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=KINDS)
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """One journal of each kind, without bounds."""
    made = open_journal(request.param, tmp_path)
    yield made
    drive(made.close())


def sequences(journal: Any) -> int:
    """Return how many sequences of lost replies a journal gets."""
    return LOST_REPLIES // (ON_SERVERS if isinstance(journal, RemoteJournal) else 1)


@pytest.mark.timeout(3_600 if PROVE else 300)
def test_i08_retry_after_a_lost_reply_writes_once(journal: Any) -> None:
    """Whatever replies are lost, asking again with the same id writes once, and answers the first receipt (I-8)."""
    struck = 0
    for seed in range(sequences(journal)):
        chance = random.Random(seed)
        steps = [(f"id-{number}", say(f"{number}")) for number in range(chance.randint(1, 6))]
        plan = [Fault(call=number, after=chance.random() < 0.7) for number in range(1, 40) if chance.random() < 0.4]
        faulty = FaultyJournal(journal, plan)
        key = ConversationKey("lost replies", f"{seed}")
        for id_, draft in steps:
            receipts = [drive(_insist(faulty, key, id_, draft)).receipt for _ in range(chance.randint(1, 3))]
            assert receipts.count(receipts[0]) == len(receipts), f"seed {seed}"
        entries = drive(samples.entries(journal, key))
        assert [entry.payload for entry in entries] == [draft.payload for _, draft in steps], f"seed {seed}"
        header = drive(journal.header(key))
        assert (header.version, header.token) == (len(steps), ""), f"seed {seed}"
        with pytest.raises(DecisionHistoryConflict):
            drive(samples.append(journal, key, "id-0", say("other")))
        struck += len(plan) - len(faulty.left)
    assert struck > sequences(journal)


async def _insist(journal: Any, key: ConversationKey, id_: str, draft: Any) -> Any:
    """Ask until an answer comes, as a caller does whose connection breaks."""
    while True:
        with contextlib.suppress(MinutebookError):
            opening = samples.adding(id_, draft)
            return await journal.reserve(key, f"token-{id_}", format=FORMAT, opening=opening, release=True)


@pytest.mark.timeout(3_600 if PROVE else 300)
def test_i08_retried_commits_of_a_hold_write_once(journal: Any) -> None:
    """The same holds inside a reservation, where the commit that also releases may be the one whose reply is lost."""
    for seed in range(sequences(journal) // 2):
        chance = random.Random(seed)
        plan = [Fault(call=n, after=chance.random() < 0.7) for n in range(1, 40) if chance.random() < 0.4]
        faulty = FaultyJournal(journal, plan)
        key = ConversationKey("lost replies in a hold", f"{seed}")
        epoch = drive(journal.reserve(key, "t", format=FORMAT)).header.epoch
        count = chance.randint(1, 5)
        for number in range(count):
            delta, last = samples.adding(f"id-{number}", say(f"{number}")), number == count - 1
            while True:
                try:
                    committed = drive(faulty.commit(key, "t", epoch, delta, release=last))
                except MinutebookError:
                    # Released all the same: the outcome is found by its id.
                    receipt = drive(journal.receipt(key, delta.idempotency))
                    if not (last and receipt):
                        continue
                else:
                    receipt = committed.receipt
                break
            assert receipt.first == receipt.last == number + 1, f"seed {seed}"
        assert len(drive(samples.entries(journal, key))) == count, f"seed {seed}"
        assert not drive(journal.header(key)).token, f"seed {seed}"
