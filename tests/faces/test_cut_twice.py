"""
Calls that are cut, and cut again while they clean up: nothing stays held, and what a model answered is in the record.

A cancellation strikes a call to the store before it was made, or once it was made and nobody heard of it; the second
one strikes one of the next calls likewise. What is left is looked at through another store, as another worker has it:
the one that was cut would continue its own orphan (promises I-8, I-18; SPEC C1, D22, D25, E8).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.faces.test_agent import asking as calling_look
from tests.faces.test_agent_faults import blocking, noting_look
from tests.faces.test_decisions import Server, calls, finishes, provider_of
from tests.faces.test_decisions import server as server
from tests.providers.loopback import REQUEST, asking, seen
from tests.runtime.programs import DONE, IDS, act, call, finish, kept, program
from tests.runtime.programs import calls as proposing
from tests.runtime.test_delegation import branching
from tests.stores.labs import said

from minutebook import Conversation, Engine, HistoryConfig, JournalStore
from minutebook.decisions import HistoryOptions
from minutebook.errors import DecisionHistoryStorageFailed
from minutebook.history import Hold
from minutebook.model.entries import Draft, Kind
from minutebook.model.record import Delta
from minutebook.reserving import Reservation
from minutebook.stores.memory import MemoryJournal
from minutebook.stores.opening import SQLiteStore
from minutebook.testing import Answer, Fault, FaultyJournal, ProviderFake, drive
from minutebook.testing.fakes import Received

Act = Callable[[JournalStore], Awaitable[Any]]


async def nothing(store: JournalStore) -> None:
    pass


def cut_twice(act: Act, before: Act = nothing, *, first: type[BaseException] = asyncio.CancelledError) -> Iterator[Any]:
    """Yield the journal that `act` leaves, and where it was cut, for each two cuts that are not far from each other."""
    for number in itertools.count(1):
        for after, gap, then in itertools.product((False, True), (1, 2, 3, 4), (False, True)):
            journal = MemoryJournal()
            drive(before(JournalStore(journal, namespace="n")))  # type: ignore[arg-type]
            cuts = [
                Fault(call=number, after=after, error=lambda: first("cut")),
                Fault(call=number + gap, after=then, error=asyncio.CancelledError),
            ]
            faulty = FaultyJournal(journal, cuts)
            try:
                drive(act(JournalStore(faulty, namespace="n")))  # type: ignore[arg-type]
            except (asyncio.CancelledError, first):
                assert len(faulty.left) < 2
            if len(faulty.left) == 2:
                assert number > 2
                return
            yield journal, (number, after, gap, then)


def held(journal: MemoryJournal) -> int:
    """Return how many conversations nobody else can go on with; each of them is proved."""
    store = JournalStore(journal, namespace="n")
    for listing in drive(store.list()):
        drive(store.verify(listing.key))
    return drive(store.totals()).reserved


# --- nothing stays held ----------------------------------------------------------------------------------------------


def engine(store: JournalStore, **policy: Any) -> Engine[Any]:
    return Engine(history=HistoryConfig(store=store, **policy), respond=lambda turn: "yes")


async def engine_turn(store: JournalStore) -> None:
    await engine(store).turn("s", "hello", id="t")


async def bounded_turn(store: JournalStore) -> None:
    await engine(store, max_entries=1).turn("s", "hello again")


async def injection(store: JournalStore) -> None:
    await engine(store, max_entries=2).inject("s", "hello", id="t")


async def turn(store: JournalStore) -> None:
    async with Conversation(store, "c", format="openai-chat").turn("asks", id="t") as turn:
        await turn.window()
        first, second = await turn.respond(said("", "call-1", "call-2"))
        await turn.result(second, "two")
        await turn.say("and be quick")
        await turn.result(first, "one")
        await turn.window()
        await turn.respond(said("answers"))


async def turn_without_a_message(store: JournalStore) -> None:
    async with Conversation(store, "c", format="openai-chat").turn(id="again") as turn:
        await turn.respond(said("answers"))


async def question(store: JournalStore) -> None:
    await Conversation(store, "c", format="openai-chat").append([{"role": "user", "content": "asks"}], id="u")


async def whole_transcript(store: JournalStore) -> None:
    messages = [{"role": "user", "content": "asks"}, {"role": "assistant", "content": "a"}]
    await Conversation(store, "c", format="openai-chat").append(messages, id="w", whole=True)


async def transaction(store: JournalStore) -> None:
    async def operation(record: Any) -> Any:
        return record.adding(Draft(kind=Kind.INPUT, payload=b'{"role":"user","content":"u"}')), None

    await store.transact(store.key("c"), operation)


async def run(store: JournalStore) -> None:
    DONE.clear()
    await kept(program(act), store, proposing(call("act", number=1)), finish())[0].run("go", **IDS)


async def run_that_stops(store: JournalStore) -> None:
    DONE.clear()
    with contextlib.suppress(ConnectionError):
        await kept(program(act), store, ConnectionError())[0].run("go", **IDS)


async def resumed(store: JournalStore) -> None:
    await kept(program(act), store, proposing(call("act", number=1)), finish())[0].resume("r", "i")


async def run_with_branches(store: JournalStore) -> None:
    await branching(store).run("go", **IDS)


HELD: dict[str, tuple[Act, Act]] = {
    "engine turn": (engine_turn, nothing),
    "engine turn again": (engine_turn, engine_turn),
    "bounded engine turn": (bounded_turn, engine_turn),
    "injection": (injection, nothing),
    "injection again": (injection, injection),
    "turn": (turn, nothing),
    "turn without a message": (turn_without_a_message, question),
    "whole transcript": (whole_transcript, question),
    "transaction": (transaction, question),
    "run": (run, nothing),
    "run with branches": (run_with_branches, nothing),
    "resumed run": (resumed, run_that_stops),
}


@pytest.mark.parametrize("first", [asyncio.CancelledError, DecisionHistoryStorageFailed])
@pytest.mark.parametrize("name", HELD)
def test_i18_d22_cut_and_cut_again_nothing_stays_held(name: str, first: type[BaseException]) -> None:
    """E8, C1, D25: whatever strikes first, and a cancellation behind it: the next worker finds all of it idle."""
    act, before = HELD[name]
    left = [place for journal, place in cut_twice(act, before, first=first) if held(journal)]
    assert left == []


@pytest.mark.parametrize("name", ["engine turn again", "injection again", "run"])
def test_i18_control_a_receipt_that_is_taken_for_the_release_leaves_it_held(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: with the receipt alone to go by, the same sweep finds what nobody gave back."""

    async def by_receipt(self: Reservation, idempotency: str, *, release: bool) -> Any:
        receipt = await self._journal.receipt(self._key, idempotency)
        if receipt and release:
            self.end()
        return receipt

    monkeypatch.setattr(Reservation, "look_for", by_receipt)
    act, before = HELD[name]
    assert any(held(journal) for journal, _ in cut_twice(act, before))


def test_e8_i08_a_repetition_whose_release_was_not_written_is_given_back_and_fails() -> None:
    """The receipt of before says nothing of the release: the storage's error goes on, and no note says otherwise."""
    journal = MemoryJournal()
    drive(engine_turn(JournalStore(journal, namespace="n")))  # type: ignore[arg-type]
    lost = FaultyJournal(journal, [Fault(call=1, method="commit")])
    with pytest.raises(DecisionHistoryStorageFailed) as caught:
        drive(engine_turn(JournalStore(lost, namespace="n")))  # type: ignore[arg-type]
    assert not hasattr(caught.value, "__notes__")
    assert held(journal) == 0


def test_e8_i08_a_repetition_of_which_only_the_release_s_reply_was_lost_is_as_good() -> None:
    """What was recorded comes back, as from any repetition."""
    journal = MemoryJournal()
    first = drive(engine(JournalStore(journal, namespace="n")).turn("s", "hello", id="t"))
    lost = FaultyJournal(journal, [Fault(call=1, method="commit", after=True)])
    assert drive(engine(JournalStore(lost, namespace="n")).turn("s", "hello", id="t")) == first
    assert lost.left == ()
    assert held(journal) == 0


class Overtaken(FaultyJournal):
    """
    A journal whose first commit fails, while the conversation is recovered and another worker does the same.

    With `anew` it is deleted first.
    """

    def __init__(self, journal: Any, other: Act, *, anew: bool) -> None:
        super().__init__(journal)
        self._others: list[Act] = [other]
        self._anew = anew

    async def commit(self, key: Any, token: str, epoch: int, delta: Delta, *, release: bool = False) -> Any:
        while self._others:
            await self.journal.recover(key, epoch)
            if self._anew:
                await self.journal.delete(key)
            await self._others.pop()(JournalStore(self.journal, namespace="n"))
            raise DecisionHistoryStorageFailed("the connection broke")
        return await super().commit(key, token, epoch, delta, release=release)


@pytest.mark.parametrize("anew", [False, True], ids=["recovered", "deleted and begun anew"])
def test_e8_i08_what_another_worker_recorded_under_the_id_is_not_taken_for_ones_own(anew: bool) -> None:
    """A worker that was declared stopped is told that storage failed, not that its own response is recorded."""
    journal = MemoryJournal()
    for number in range(3):  # so that the epoch of the record that is begun anew is a lower one
        drive(engine(JournalStore(journal, namespace="n")).turn("s", "before", id=f"before-{number}"))
    overtaken = Overtaken(journal, lambda store: engine(store).turn("s", "hello", id="t"), anew=anew)
    made = Engine(history=HistoryConfig(store=JournalStore(overtaken, namespace="n")), respond=lambda turn: "no")
    with pytest.raises(DecisionHistoryStorageFailed) as caught:
        drive(made.turn("s", "hello", id="t"))
    assert not hasattr(caught.value, "__notes__")
    sound = engine(JournalStore(journal, namespace="n"))
    assert drive(sound.turn("s", "hello", id="t")).response.user_message == "yes"  # type: ignore[union-attr]
    assert held(journal) == 0


class Raced(FaultyJournal):
    """A journal on which another worker does the same right before the first reservation."""

    def __init__(self, journal: Any, other: Act, plan: list[Fault]) -> None:
        super().__init__(journal, plan)
        self._others: list[Act] = [other]

    async def reserve(self, key: Any, token: str, **given: Any) -> Any:
        while self._others:
            await self._others.pop()(JournalStore(self.journal, namespace="n"))
        return await super().reserve(key, token, **given)


@pytest.mark.parametrize("after", [False, True], ids=["not written", "reply lost"])
def test_a3_i08_a_message_that_another_worker_added_under_the_id_leaves_the_chat_idle(after: bool) -> None:
    """Ours is a repetition then; its commit fails or loses its reply: the message is there once, and nothing held."""
    journal = MemoryJournal()

    async def add(store: JournalStore) -> None:
        with ProviderFake("openai-chat", []) as fake:
            each = blocking(fake, store=store, conversation="c")
            await each.add_to_history({"role": "user", "content": "said"}, id="m")

    raced = Raced(journal, add, [Fault(call=1, method="commit", after=after)])
    try:
        drive(add(JournalStore(raced, namespace="n")))  # type: ignore[arg-type]
    except DecisionHistoryStorageFailed:
        assert not after
    assert raced.left == ()
    assert held(journal) == 0
    store = JournalStore(journal, namespace="n")
    record = drive(store.read(store.key("c")))
    assert record is not None
    assert [entry.kind for entry in record.entries].count(Kind.INPUT) == 1


@pytest.mark.parametrize("name", ["engine turn again", "turn", "run"])
def test_i18_d22_a_task_that_is_cancelled_twice_leaves_its_file_idle(name: str, tmp_path: Path) -> None:
    """Under asyncio, over SQLite: cancelled early and once more soon after; another store finds it idle."""
    tmp_path.chmod(0o700)
    act, before = HELD[name]

    async def cancelled_twice(path: Path, first: int, gap: int) -> bool:
        async with SQLiteStore(path, namespace="n") as store, SQLiteStore(path, namespace="n") as other:
            await before(store)
            task = asyncio.ensure_future(act(store))
            for _ in range(first):
                await asyncio.sleep(0)
            under_way = task.cancel()
            for _ in range(gap):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert (await other.totals()).reserved == 0, (first, gap)
            return under_way

    async def everywhere() -> int:
        # A slow disk stretches an act over any number of the loop's turns, so that there is no last one to strike at.
        places = itertools.product(range(1, 9), (0, 1, 3))
        return sum([await cancelled_twice(tmp_path / f"{first}-{gap}", first, gap) for first, gap in places])

    assert asyncio.run(everywhere()) >= 6


# --- what a model answered is kept -----------------------------------------------------------------------------------


def answers(journal: MemoryJournal) -> int:
    """Return how many answers the store holds, standing or under a mark."""
    store = JournalStore(journal, namespace="n")
    records = [drive(store.read(listing.key)) for listing in drive(store.list())]
    return sum(entry.kind is Kind.RESPONSE for record in records if record for entry in record.entries)


@pytest.mark.parametrize("interface", ["native", "structured"])
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_d01_i18_a_decision_that_came_in_is_in_the_record_wherever_its_step_was_cut(
    server: Server, api: str, interface: str
) -> None:
    """D1: every answer is there once, standing or under the mark of the step that was cut; none is asked for twice."""

    async def two_steps(store: JournalStore) -> None:
        server.requests.clear()
        server.replies = [calls(api, interface, "a.txt"), finishes(api, interface)]
        provider = provider_of(server, api, interface, history=HistoryOptions(store=store))
        first = await provider.decide(REQUEST)
        await provider.decide(asking(seen(first.calls[0], "alpha")))

    for journal, place in cut_twice(two_steps):
        assert answers(journal) == len(server.requests), place
        assert held(journal) == 0, place
    assert server.refused == []


def test_d27_of_a_decision_with_references_nothing_is_kept_as_it_came(server: Server) -> None:
    """D27: where its commit is cut the message of ours is under the mark, and none of the arguments."""

    async def project(proposed: Any) -> Any:
        return tuple(msgspec.structs.replace(each, arguments={"path": {"$ref": "r"}}) for each in proposed)

    async def one_step(store: JournalStore) -> None:
        server.requests.clear()
        server.replies = [calls("chat", "native", "marker-4711")]
        provider = provider_of(server, "chat", history=HistoryOptions(store=store))
        await provider.decide(msgspec.structs.replace(REQUEST, project=project))

    for journal, place in cut_twice(one_step):
        assert answers(journal) == len(server.requests), place
        store = JournalStore(journal, namespace="n")
        for listing in drive(store.list()):
            record = drive(store.read(listing.key))
            assert record is not None
            assert not any(b"marker-4711" in entry.payload for entry in record.entries)


def test_c1_i18_a_response_that_came_in_is_in_the_record_wherever_its_turn_was_cut() -> None:
    """C1: with calls and without, and the results of the calls too: each is there once, standing or under the mark."""
    given: list[str] = []

    async def a_turn(store: JournalStore) -> None:
        given.clear()
        async with Conversation(store, "c", format="openai-chat").turn("asks") as turn:
            await turn.window()
            await turn.say("and be quick")
            given.append("RESPONSE")
            for made in await turn.respond(said("", "call-1", "call-2")):
                given.append("RESULT")
                await turn.result(made, made.id)
            await turn.window()
            given.append("RESPONSE")
            await turn.respond(said("answers"))
            await turn.window()
            given.append("RESPONSE")
            await turn.respond(said("answers again"))

    for journal, place in cut_twice(a_turn):
        store = JournalStore(journal, namespace="n")
        record = drive(store.read(store.key("c")))
        kinds = [entry.kind.name for entry in record.entries] if record else []
        assert [kind for kind in kinds if kind in ("RESPONSE", "RESULT")] == given, place
        assert held(journal) == 0, place


def test_a9_i18_an_answer_that_came_in_is_in_the_record_wherever_its_chat_was_cut() -> None:
    """A9: an answer with a call and the last one: each is there once, standing or under the mark."""

    def script(request: Received) -> Answer:
        return calling_look("a") if request.json["messages"][-1]["role"] == "user" else Answer(text="answer")

    with ProviderFake("openai-chat", script) as fake:
        before = 0

        async def a_chat(store: JournalStore) -> None:
            nonlocal before
            before = len(fake.requests)
            await blocking(fake, store=store, conversation="c", tools=[noting_look([])]).chat("asks")

        for journal, place in cut_twice(a_chat):
            assert answers(journal) == len(fake.requests) - before, place
            assert held(journal) == 0, place
        assert not fake.refused


def test_i18_control_an_answer_that_only_the_caller_has_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: a hold that records nothing under its mark is found by the same count."""
    monkeypatch.setattr(Hold, "_placed", lambda self, drafts: ())

    async def a_turn(store: JournalStore) -> None:
        async with Conversation(store, "c", format="openai-chat").turn("asks") as turn:
            await turn.respond(said("", "call-1"))

    assert any(not answers(journal) for journal, _ in cut_twice(a_turn))
