"""
I-27 over random histories: what a summary covers, told a second time by a list of labels.

A conversation goes through turns of parallel calls, calls that are parked and completed late, attempts that fail at any
place, dropped summaries, and processes that remember nothing. At every window of a turn each complete exchange either
stands in it or was given to the callback, exactly once; and every summary in the record has the digest that follows
from the payloads of what it was given.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from tests.budgets import PROVE, budget
from tests.policy.histories import SHAPES

from minutebook import sync
from minutebook.errors import DecisionHistoryLimitExceeded
from minutebook.model.bounds import WindowLimits
from minutebook.model.entries import Kind
from minutebook.policy import compaction
from minutebook.stores.journal import JournalStore

HISTORIES = budget(12, 2_000)
TURNS = 60
LABEL = re.compile(r"(?:answer|by the way|question) ([xsq]\d+)")


class Stop(Exception):
    """What ends an attempt from outside."""


class Numbered(JournalStore):
    """A store whose ids are numbers, so that fences are the same in every process; else they are drawn at random."""

    ids: Iterator[int] | None = None

    def fresh_id(self) -> str:
        return super().fresh_id() if self.ids is None else f"id {next(self.ids)}"


class Told:
    """A conversation, the labels of its exchanges, and which of them its summaries were given."""

    def __init__(self, name: str, seed: int, *, ids: Iterator[int] | None = None) -> None:
        self.random = Random(f"{name} {seed}")
        self.shape: Any = SHAPES[name]
        self.name = name
        self.ids = ids
        self.store: Any = sync.MemoryStore(namespace="t")
        self.limits = WindowLimits(
            max_messages=self.random.choice((9, 14, 30)),
            max_bytes=self.random.choice((3_000, 6_000)),
            low_water=self.random.choice((1.0, 0.6)),
        )
        self.conversation: Any = None
        self.made = 0
        self.exchanges: dict[str, bool] = {}
        """By label: whether it is complete."""
        self.parked: list[tuple[str, Any, list[Any]]] = []
        self.given: dict[str, list[list[str]]] = {}
        """By the text of a summary: the labels of each unit that it and those before it were given, in order."""
        self.passed_over: set[str] = set()
        """What a summary passed over because it waited, complete since: the next one has to take it."""
        self.active: str | None = None
        self.windows = self.late = self.abandoned = self.dropped = 0
        self.forget()

    def open(self) -> Any:
        return sync.Conversation(
            self.store,
            "c",
            format=self.name,
            limits=self.limits,
            summarize=self.summarize,
            max_summary_bytes=200,
            reasoning="keep",
        )

    def summarize(self, *, previous_summary: str | None, turns: list[Any], max_bytes: int) -> str:
        assert turns
        before = [] if previous_summary is None else self.given[previous_summary]
        self.made += 1
        text = f"summary no. {self.made}"
        self.given[text] = [*before, *(LABEL.findall(json.dumps(turn)) for turn in turns)]
        return text

    def label(self, kind: str = "x") -> str:
        self.made += 1
        return f"{kind}{self.made}"

    # --- what happens ---

    def live(self) -> None:
        for _ in range(TURNS):
            self.random.choice((self.turn, self.turn, self.turn, self.turn, self.forget, self.complete, self.drop))()

    def turn(self) -> None:
        before = dict(self.exchanges), list(self.parked), self.active, set(self.passed_over)
        said = self.shape.user(f"question {self.label('q')}")
        try:
            with self.conversation.turn(said) as turn:
                for _ in range(self.random.randrange(4)):
                    if self.step(turn, calls=self.random.randrange(1, 4)):
                        break
                else:
                    self.step(turn, calls=0)
        except (Stop, DecisionHistoryLimitExceeded):
            self.exchanges, self.parked, self.active, self.passed_over = before
            self.abandoned += 1

    def step(self, turn: Any, calls: int) -> bool:
        """Take one step, and return whether it left a call waiting."""
        for _ in range(self.random.choice((1, 1, 2))):
            self.check(turn.window())
        self.stop()
        label = self.label()
        named = [(f"call-{label}-{position}", "look") for position in range(calls)]
        made = list(turn.respond(self.shape.response(f"answer {label}", named)[0]))
        self.exchanges[label] = not calls
        self.stop()
        parks = bool(calls) and self.random.randrange(4) == 0
        waiting = self.random.sample(made, len(made))
        for call in waiting[parks:]:
            turn.result(call, f"result {self.random.randrange(9)}")
        if parks:
            turn.park(waiting[0])
            self.parked.append((label, waiting[0], []))
            return True
        if calls and self.random.randrange(4) == 0:
            turn.say(self.shape.user(f"by the way {self.label('s')}"))
        self.exchanges[label] = True
        self.stop()
        return False

    def stop(self) -> None:
        if self.random.randrange(14) == 0:
            raise Stop

    def forget(self) -> None:
        """Go on as another process would, with nothing remembered."""
        self.store._core = Numbered(self.store._core.journal, namespace="t")
        self.store._core.ids = self.ids
        self.conversation = self.open()

    def complete(self) -> None:
        if self.parked:
            label, call, _ = self.parked.pop(self.random.randrange(len(self.parked)))
            self.conversation.complete(call, "late result")
            self.exchanges[label] = True
            self.passed_over.add(label)
            self.late += 1

    def drop(self) -> None:
        if self.random.randrange(3) == 0 and self.exchanges:
            assert self.conversation.drop_summary() is (self.active is not None)
            self.dropped += self.active is not None
            self.active = None

    # --- what must hold ---

    def check(self, window: Any) -> None:
        """Each complete exchange is in the window or was given, once; one that is open is in neither."""
        texts = json.dumps(window.messages)
        shown = re.findall(r"summary no. \d+", texts)
        assert len(shown) <= 1
        if shown != [self.active] and shown:
            self.passed_over = set()
        self.active = shown[0] if shown else None
        covered = [label for unit in self.given.get(self.active or "", []) for label in unit if label[0] == "x"]
        standing = re.findall(r"answer (x\d+)", texts)
        complete = {label for label, done in self.exchanges.items() if done}
        assert len({*covered, *standing}) == len(covered) + len(standing), "shown or covered twice"
        assert complete >= {*covered, *standing}, "what waits, or was taken back, is shown or covered"
        assert complete - {*covered, *standing} <= self.passed_over, "neither shown nor covered"
        self.windows += 1

    def check_record(self) -> int:
        """Make the digest of every summary again from the payloads; return how many there are."""
        entries = list(self.conversation.store.entries(self.conversation.key))
        summaries = [entry for entry in entries if entry.kind is Kind.SUMMARY]
        payloads = dict(payloads_of(entries))
        for entry in summaries:
            told = json.loads(entry.payload)
            if not told["text"]:
                continue
            digest = b""
            units = self.given[told["text"]]
            for unit in units:
                chain = hashlib.sha256(digest)
                # A unit is known by its answer; one that has none yet by what was said, or by the question alone.
                for payload in payloads[max(unit, key=lambda label: "qsx".index(label[0]))]:
                    chain.update(hashlib.sha256(payload).digest())
                digest = chain.digest()
            assert told["covered"]["digest"] == digest.hex()
            assert told["covered"]["exchanges"] == len(units)
        self.conversation.store.verify(self.conversation.key)
        return len(summaries)


def payloads_of(entries: list[Any]) -> Iterator[tuple[str, list[bytes]]]:
    """Yield each unit's label with the payloads that stand for it: its turn's input, and it as it is shown."""
    inputs = {entry.seq: entry for entry in entries if entry.kind is Kind.INPUT}
    for entry in entries:
        found = LABEL.findall(entry.payload.decode())
        parts = [entry]
        if entry.kind is Kind.RESPONSE:
            mine = [other for other in entries if other.exchange == entry.seq]
            results = sorted((e for e in mine if e.kind is Kind.RESULT), key=lambda result: result.call)
            parts = [inputs[entry.turn], entry, *results, *(e for e in mine if e.kind is Kind.INJECTION)]
        elif entry.kind is Kind.INJECTION:
            parts = [inputs[entry.turn], entry]
        for label in found if entry.kind in (Kind.RESPONSE, Kind.INJECTION, Kind.INPUT) else ():
            yield label, [part.payload for part in parts]


@pytest.mark.parametrize("name", list(SHAPES))
@pytest.mark.timeout(7_200 if PROVE else 120)
def test_i27_o23_each_removed_exchange_is_covered_exactly_once(name: str, figure: Callable[[str], None]) -> None:
    """I-27, D17, D18, O-19, O-23: over random histories, with late results, failed attempts and dropped summaries."""
    seen = dict.fromkeys(("windows", "late", "abandoned", "dropped"), 0)
    summaries = 0
    for seed in range(HISTORIES):
        told = Told(name, seed)
        told.live()
        summaries += told.check_record()
        for what in seen:
            seen[what] += getattr(told, what)
    assert summaries > 10 * HISTORIES
    assert all(count >= HISTORIES // 4 for count in seen.values()), seen
    figure(f"{name}: {seen['windows']:,} windows, {summaries:,} summaries, {seen['late']:,} late results, 0 faults")


FAULTS: dict[str, Callable[[Any, int, Any], Any]] = {
    "what is left out first is forgotten": lambda removed, start, covered: compaction.Removed(
        [unit for unit in removed.units if unit.key < start and unit.key not in covered][1:], removed.inputs
    ),
    "what stays in the window is covered too": lambda removed, start, covered: removed,
}


@pytest.mark.parametrize("fault", list(FAULTS))
def test_i27_control_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A summary that passes over an exchange, or covers one that is shown, is seen."""
    monkeypatch.setattr("minutebook.fitting.newly_removed", FAULTS[fault])
    with pytest.raises(AssertionError), contextlib.ExitStack():  # noqa: PT012
        for seed in range(HISTORIES):
            Told("openai-chat", seed).live()


CHILD = """
import hashlib, itertools, sys
from tests.faces.test_summary_law import SHAPES, Told
digest = hashlib.sha256()
for name in SHAPES:
    for seed in range(int(sys.argv[1])):
        told = Told(name, seed, ids=itertools.count())
        check = told.check
        told.check = lambda window: (check(window), digest.update(window.json))
        told.live()
        digest.update(told.conversation.window().json)
print(digest.hexdigest())
"""


def printed(code: str, histories: int) -> set[str]:
    """Return what child processes of different hash seeds print."""
    digests = set()
    for seed in ("0", "1", "4294967295"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", code, str(histories)]
        digests.add(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
    return digests


def test_i24_windows_with_summaries_are_the_same_bytes_under_every_hash_seed() -> None:
    """I-24: one record, one set of limits and one summary give the same bytes, in processes of any hash seed."""
    (digest,) = printed(CHILD, budget(2, 40))
    assert len(digest.strip()) == 64


def test_i24_control_an_order_that_hangs_on_the_hash_seed_is_found() -> None:
    """The children do have different seeds: the order of a set of texts differs between them."""
    assert len(printed("print(list(set(map(str, range(99)))))", 0)) > 1


def test_i24_i25_another_process_builds_the_same_window_with_the_same_summary() -> None:
    """I-24, I-25: what is shown after any history is the record's alone, and to read it writes nothing."""
    summarised = 0
    for name, seed in itertools.product(SHAPES, range(6)):
        told = Told(name, seed)
        told.live()
        before = told.conversation.window().json
        summarised += b"summary no." in before
        entries = list(told.store.entries(told.conversation.key))
        for _ in range(2):
            told.forget()
            assert told.conversation.window().json == before
        assert list(told.store.entries(told.conversation.key)) == entries
    assert summarised > 12
