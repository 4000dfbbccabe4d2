"""
Checkpoints and memory altered where they are stored, in every field (I-39): a run goes on from what was written, or is
refused by name before anything is executed on the word of an altered record.

With MINUTEBOOK_PROVE=1 every alteration is tried, else some of them.
"""

from __future__ import annotations

import contextlib
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from tests.budgets import PROVE, budget
from tests.faults.alterations import SHELVES, Ram, Shelf, changes, rechained
from tests.runtime.programs import IDS, call, calls, finish, kept, program

from minutebook.errors import AgentDecisionProviderUnavailable, DecisionHistoryCorrupt, MinutebookError
from minutebook.model.entries import Entry
from minutebook.model.keys import ConversationKey
from minutebook.model.record import Header
from minutebook.programs import storage_of
from minutebook.runtime import Budgets, Memory, MemoryResource, Program, capability, checkpoints, delegate, memory
from minutebook.runtime.memory import Resources
from minutebook.testing import ScriptedProvider, drive

SHARE = {"RAM": budget(9, 1), "SQLite": budget(150, 12)}
"""One of so many alterations is tried."""

Figure = Callable[[str], None]
long_run = pytest.mark.timeout(7_200 if PROVE else 120)
DONE: list[Any] = []
STOCK = MemoryResource(name="stock", scope="namespace")


@capability
def act(number: int) -> int:
    """Do something that cannot be undone."""
    DONE.append(number)
    return 2 * number


@capability(needs_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    DONE.append(amount)
    return f"paid {amount}"


@capability(memory=[STOCK])
async def count(memory: Memory) -> Any:
    """Say what is in stock, and take one away."""
    held = await memory.read("stock")
    DONE.append(held.value)
    return await memory.write("stock", (held.value or 0) - 1)


HELPER: Program[Any] = Program(name="helper", instructions="Help.", capabilities=[act, pay])
CLERK = program(act, pay, count, delegate(HELPER, max_branches=3), memory=[STOCK], budgets=Budgets(max_decisions=4))


class Run:
    """A run as it was left, and how it is gone on with: by a script for each agent."""

    def __init__(
        self, first: Any, then: Any, *, helper: Any = ((), ()), projection: str = "inline", given_up: bool = False
    ) -> None:
        self.first, self.then, self.helper, self.projection = first, then, helper, projection
        self.given_up = given_up

    def made(self, shelf: Shelf, *, goes_on: bool) -> Any:
        script = self.then if goes_on else self.first
        providers = {"helper": ScriptedProvider(self.helper[goes_on])}
        return kept(CLERK, shelf.store(), *script, providers=providers, projection=self.projection)[0]

    def leave(self, shelf: Shelf) -> None:
        """Run until it stops, fails or ends."""
        with contextlib.suppress(AgentDecisionProviderUnavailable):
            drive(self.made(shelf, goes_on=False).run("go", task_id="one", **IDS))
        if self.given_up:
            drive(self.made(shelf, goes_on=True).abandon("r", "i"))
            with contextlib.suppress(AgentDecisionProviderUnavailable):
                drive(kept(CLERK, shelf.store(), DOWN)[0].run("next", task_id="two", **IDS))


DOWN = AgentDecisionProviderUnavailable("down")
RUNS = {
    "waits": Run([calls(call("act", number=1), call("pay", amount=2), exchange=2)], [finish("paid")]),
    "failed": Run([calls(call("act", number=1), exchange=2), calls(call("count"), exchange=4), DOWN], [finish("on")]),
    "finished": Run([calls(call("act", number=1), exchange=2), finish("done")], [finish("next")]),
    "exhausted": Run([calls(call("act", number=n), exchange=2 * n) for n in range(1, 5)], []),
    "given up": Run([calls(call("act", number=1), call("pay", amount=2), exchange=2)], [finish("on")], given_up=True),
    "delegated": Run(
        [calls(call("helper", tasks=["a", "b"]), exchange=2)],
        [finish("helped")],
        helper=(
            [calls(call("pay", amount=5), exchange=2), calls(call("act", number=6), exchange=2), finish("b is done")],
            [finish("a is done"), finish("more")],
        ),
    ),
}


# --- what is done with a run that was left ---------------------------------------------------------------------------


async def resume(run: Run, shelf: Shelf) -> Any:
    return await run.made(shelf, goes_on=True).resume("r", "i")


async def approve(run: Run, shelf: Shelf) -> Any:
    waits = await run.made(shelf, goes_on=True).resume("r", "i")
    answers = [each.approve(by="ann") for each in waits.pending]
    return waits, await run.made(shelf, goes_on=True).resume("r", "i", approvals=answers)


async def again(run: Run, shelf: Shelf) -> Any:
    return await run.made(shelf, goes_on=True).run("go", task_id="one", **IDS)


async def another(run: Run, shelf: Shelf) -> Any:
    return await run.made(shelf, goes_on=True).run("another", task_id="two", **IDS)


async def recover(run: Run, shelf: Shelf) -> Any:
    made = run.made(shelf, goes_on=True)
    await made.recover("r", "i", worker_stopped=True)
    return await made.resume("r", "i")


async def abandon(run: Run, shelf: Shelf) -> Any:
    given_up = await run.made(shelf, goes_on=True).abandon("r", "i")
    return given_up, await run.made(shelf, goes_on=True).run("another", task_id="three", **IDS)


async def remembered(_: Run, shelf: Shelf) -> Any:
    resources = Resources(storage_of(shelf.store()), {"stock": STOCK}, "r", "clerk")
    before = await resources.read("stock")
    return before, await resources.compare_and_set("stock", 7, version=before.version), await resources.read("stock")


GOES_ON = (resume, approve, again, another, recover, abandon, remembered)


class Left:
    """A run that was left, what comes of it, and what is executed meanwhile."""

    def __init__(self, shelf: Shelf, run: Run) -> None:
        self.shelf, self.run = shelf, run
        drive(kept(CLERK, shelf.store(), calls(call("count")), calls(call("count")), finish())[0].run("stock"))
        run.leave(shelf)
        shelf.keep()
        self.right = {each.__name__: self.asked(each) for each in GOES_ON}
        shelf.restore()
        listed = drive(shelf.store().list())
        self.logs = {
            each.key: shelf.held(each.key) for each in listed if '"stock"' in each.key.id or '"r"' in each.key.id
        }

    def asked(self, how: Any, altered: tuple[ConversationKey, Header, list[Entry]] | None = None) -> Any:
        """Return what comes of the run, as it was left or with one log altered, and what was executed."""
        self.shelf.restore()
        self.shelf.ids = iter(range(1_000, 10_000))
        if altered is not None:
            self.shelf.write(*altered)
        DONE.clear()
        try:
            return drive(how(self.run, self.shelf)), [*DONE]
        except MinutebookError as error:
            return error.code, [*DONE]

    def judge(self, what: str, *altered: Any, told: bool = True) -> Iterator[str]:
        """Yield how each way to go on with an altered run is met; see `tests.faults.test_altered_records`."""
        for how in GOES_ON:
            place = f"{what}, {how.__name__}"
            try:
                came, done = self.asked(how, altered)
            except Exception as error:
                raise AssertionError(f"{place}: {traceback.format_exc(limit=-5)}") from error
            right, rightly_done = self.right[how.__name__]
            if isinstance(came, str):
                yield "right" if came == right else came
            else:
                assert not told or came == right, f"{place}: {came!r} and not {right!r}"
                yield "right"
            assert not told or done == rightly_done[: len(done)], f"{place}: executed {done}, not {rightly_done}"


def records_altered(entry: Entry) -> Iterator[tuple[str, Entry]]:
    """Return a checkpoint's entry with each member of its record altered, left out, or planted."""
    record = msgspec.json.decode(entry.payload)
    if not isinstance(record, dict):
        return
    for name in [*record, "position", "branches", "planted"]:
        for value in (None, -1, 0, 7, True, "", "finished", "observed", [], ["x"], {}, {"position": 9}):
            if record.get(name, ...) != value:
                payload = msgspec.json.encode({**record, name: value})
                yield f"{name} is {value!r}", msgspec.structs.replace(entry, payload=payload)
        payload = msgspec.json.encode({each: record[each] for each in record if each != name})
        yield f"no {name}", msgspec.structs.replace(entry, payload=payload)


def alterations(left: Left, seed: str, share: int) -> Iterator[tuple[str, ConversationKey, Header, list[Entry]]]:
    random = Random(seed)
    for key, (header, entries) in left.logs.items():
        for what, other, altered in changes(key, header, entries):
            if other.entries < 2**32 and not random.randrange(share):  # RAM would make a place for each
                yield f"{key.id}, {what}", key, other, altered
        for at, entry in enumerate(entries):
            for what, changed in records_altered(entry):
                if not random.randrange(share):
                    yield (
                        f"{key.id}, record {entry.seq}: {what}",
                        key,
                        header,
                        [*entries[:at], changed, *entries[at + 1 :]],
                    )


@long_run
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("kind", SHELVES)
def test_i39_an_altered_checkpoint_is_refused_before_anything_is_executed(
    kind: str, name: str, tmp_path: Path, figure: Figure
) -> None:
    """Every field of all that a run, its agents and its memory keep: gone on with rightly, or refused by name."""
    left = Left(SHELVES[kind](tmp_path), RUNS[name])
    met = Counter[str]()
    for what, *altered in alterations(left, f"{kind} {name}", SHARE[kind]):
        met.update(left.judge(what, *altered))
    left.shelf.close()
    figure(f"{kind}, {name}: {sum(met.values()):,} times, {dict(met)}, 0 wrong")
    assert met["right"]
    assert met["DecisionHistoryCorrupt"]


@long_run
@pytest.mark.parametrize("name", RUNS)
def test_i39_a_checkpoint_whose_chain_was_made_right_again_raises_nothing_of_another_kind(
    name: str, tmp_path: Path
) -> None:
    """Records that no invocation would note are refused by the fold itself, whatever their digests say."""
    left = Left(Ram(tmp_path), RUNS[name])
    met = Counter[str]()
    for what, key, header, entries in alterations(left, name, SHARE["RAM"]):
        if header is left.logs[key][0]:
            met.update(left.judge(what, key, *rechained(key, header, entries), told=False))
    assert met["DecisionHistoryCorrupt"]


def test_i39_control_without_the_chain_altered_checkpoints_are_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The harness finds it where nothing is proved: other arguments executed, other values read."""
    for part in (checkpoints, memory):
        monkeypatch.setattr(part, "check_end", lambda key, header, entries: None)
    left = Left(Ram(tmp_path), RUNS["waits"])
    wrong = 0
    for what, *altered in alterations(left, "control", 2):
        try:
            Counter(left.judge(what, *altered))
        except AssertionError:
            wrong += 1
    assert wrong > 5


@pytest.mark.parametrize("versions", [1, 2])
def test_i39_d28_an_altered_memory_value_is_refused(tmp_path: Path, versions: int) -> None:
    """I-39, D28: of the form that a program writes, and none of its own; also the first one, which follows no other."""
    shelf = Ram(tmp_path)
    resources = Resources(storage_of(shelf.store()), {"stock": STOCK}, "r", "clerk")
    for number in range(versions):
        drive(resources.write("stock", 40 + number))
    (listed,) = drive(shelf.store().list())
    header, entries = shelf.held(listed.key)
    payload = entries[-1].payload.replace(b"[4", b"[9")
    assert payload != entries[-1].payload
    shelf.write(listed.key, header, [*entries[:-1], msgspec.structs.replace(entries[-1], payload=payload)])
    with pytest.raises(DecisionHistoryCorrupt):
        drive(resources.read("stock"))


def test_i39_a_record_that_no_run_would_note_is_refused(tmp_path: Path) -> None:
    """A place of a call that was never proposed, with every digest right."""
    left = Left(Ram(tmp_path), RUNS["waits"])
    key, (header, entries) = next(each for each in left.logs.items() if '"r"' in each[0].id)
    at = next(at for at, entry in enumerate(entries) if b'"is":"intended"' in entry.payload)
    payload = entries[at].payload.replace(b'"position":0', b'"position":9')
    assert payload != entries[at].payload
    entries[at] = msgspec.structs.replace(entries[at], payload=payload)
    left.shelf.restore()
    left.shelf.write(key, *rechained(key, header, entries))
    with pytest.raises(DecisionHistoryCorrupt) as refused:
        drive(resume(left.run, left.shelf))
    assert refused.value.seq == entries[at].seq


# --- a whole log in the place of another -----------------------------------------------------------------------------

OTHERS = {
    "another run": ("q", "i", "clerk"),
    "another invocation": ("r", "j", "clerk"),
    "another agent": ("r", "i", "helper"),
}


def logged(shelf: Shelf, run_id: str, invocation_id: str, agent: str) -> tuple[ConversationKey, Header, list[Entry]]:
    key = storage_of(shelf.store()).checkpoint(run_id, invocation_id, agent)
    return key, *shelf.held(key)


@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_i42_i39_the_log_of_another_run_is_never_gone_on_with(
    tmp_path: Path, other: tuple[str, str, str], tasks: int
) -> None:
    """Every digest of it is right, and it is refused all the same: a task is bound to where it was begun."""
    shelf = Ram(tmp_path)
    for run_id, invocation_id, agent in (("r", "i", "clerk"), other):
        declared = program(act, pay) if agent == "clerk" else HELPER
        names = {"run_id": run_id, "invocation_id": invocation_id}
        script = [*[finish("done")] * (tasks - 1), calls(call("pay", amount=len(run_id + agent)), exchange=2)]
        made, _ = kept(declared, shelf.store(), *script)
        for number in range(tasks):
            drive(made.run(f"task {number}", **names))
    shelf.keep()
    _, header, entries = logged(shelf, *other)
    shelf.write(logged(shelf, "r", "i", "clerk")[0], header, entries)
    made, provider = kept(program(act, pay), shelf.store(), finish("done"))
    with pytest.raises(DecisionHistoryCorrupt):
        drive(made.resume("r", "i"))
    assert provider.requests == []


@pytest.mark.parametrize("lost", range(1, 6))
def test_i39_a_log_that_lost_its_end_is_refused_unless_its_header_was_put_back_too(tmp_path: Path, lost: int) -> None:
    """
    Cut alone: refused by name. Put back whole, as a backup is, it is an earlier state, which no file can tell.

    The guide says so: what was executed since may then be executed once more.
    """
    left = Left(Ram(tmp_path), RUNS["failed"])
    key, (header, entries) = next(each for each in left.logs.items() if '"r"' in each[0].id)
    earlier = entries[:-lost]
    left.shelf.restore()
    left.shelf.write(key, header, earlier)
    with pytest.raises(DecisionHistoryCorrupt):
        drive(resume(left.run, left.shelf))
    back = msgspec.structs.replace(header, entries=len(earlier), digest=earlier[-1].digest)
    left.shelf.restore()
    left.shelf.write(key, back, earlier)
    assert drive(resume(left.run, left.shelf)).kind in ("finished", "budget_exhausted")
