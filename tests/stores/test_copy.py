"""A copy of a conversation in another store: the very same record, proved, or nothing of it (SPEC B10, B8, C4, E6)."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from tests.stores.labs import BOUNDED, KINDS, chat, in_threads, open_journal, said
from tests.stores.test_cuts import all_of, cut, settled_place, tell
from tests.stores.test_transfer import conversation, fail, tell_a_story

import minutebook
from minutebook.errors import (
    BlockingMismatch,
    DecisionHistoryAbsent,
    DecisionHistoryBusy,
    DecisionHistoryConflict,
    DecisionHistoryCorrupt,
    DecisionHistoryRetentionExceeded,
    DecisionHistoryStoreFull,
    InvalidOption,
    MinutebookError,
    StoreClosed,
)
from minutebook.model.bounds import StoreBounds
from minutebook.model.entries import Draft, Kind
from minutebook.model.imported import all_parked
from minutebook.model.keys import ConversationKey
from minutebook.model.record import Delta, Header, State
from minutebook.stores import copying
from minutebook.stores.journal import JournalStore
from minutebook.stores.memory import MemoryJournal
from minutebook.sync import (
    Agent,
    Engine,
    HistoryConfig,
    HistoryOptions,
    MemoryStore,
    OpenAIChatDecisionProvider,
    Program,
    Runtime,
    SQLiteStore,
    WindowLimits,
    capability,
)
from minutebook.testing import FrozenClock, drive
from minutebook.testing.fakes import Answer, ProviderFake

Figure = Callable[[str], None]
PAIRS = [(here, there) for here in KINDS for there in KINDS]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def recorded(header: Header) -> Header:
    """
    Return what a copy keeps of a header: all but its birth, when it was made, touched and how often reserved, and with
    what waits parked.
    """
    return msgspec.structs.replace(header, birth=b"", created=0, touched=0, epoch=0, state=all_parked(header.state))


def check_equal(here: Any, there: Any, key: ConversationKey) -> None:
    """See that two blocking stores hold the same record, to the last receipt, and that the copy is proved."""
    before, after = here.header(key), there.header(key)
    assert recorded(after) == recorded(before)
    assert list(there.entries(key)) == list(here.entries(key))
    assert list(there.receipts(key)) == list(here.receipts(key))
    assert there.verify(key) == after


# --- the same record -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("here", "there"), PAIRS, ids="-".join)
def test_b10_a_copy_is_the_same_record_between_any_two_stores(here: str, there: str, folder: Path) -> None:
    """B10: entries, receipts, marks, counters, state and windows; a second copy writes nothing."""
    for seed in range(6):
        chance = Random(seed)
        source, target = (JournalStore(open_journal(kind, folder, name=f"{kind}{seed}{at}"), namespace="lab")
                          for at, kind in enumerate((here, there)))  # fmt: skip
        talk = chat(source.journal)

        async def story(talk: Any = talk, chance: Random = chance, seed: int = seed) -> None:
            await tell(talk, chance, 6)
            if seed % 2 and (at := await settled_place(talk, chance)):
                await cut(talk, at)
                await tell(talk, chance, 2)

        drive(story())
        assert drive(source.copy(talk.key, target)).written
        assert not drive(source.copy(talk.key, target)).written
        before, after = drive(source.header(talk.key)), drive(target.header(talk.key))
        assert recorded(after) == recorded(before)
        assert drive(all_of(chat(target.journal))) == drive(all_of(talk))
        assert drive(target.journal.receipts(talk.key, 0, 999)) == drive(source.journal.receipts(talk.key, 0, 999))
        assert drive(chat(target.journal).window()).json == drive(talk.window()).json
        for store in (source, target):
            drive(store.close())


def test_b10_e6_any_story_comes_out_in_the_same_state(figure: Figure) -> None:
    """B10, E6: whatever was parked, abandoned, tried again, completed late and cut away, the law makes it again."""
    cuts = 0
    for seed in range(150):
        chance = Random(seed)
        source, target = (JournalStore(MemoryJournal(clock=FrozenClock()), namespace="lab") for _ in range(2))
        talk = chat(source.journal)

        async def story(talk: Any = talk, chance: Random = chance) -> int:
            made = 0
            for _ in range(3):
                await tell(talk, chance, 3)
                if chance.random() < 0.6 and (at := await settled_place(talk, chance)):
                    await cut(talk, at)
                    made += 1
            return made

        cuts += drive(story())
        copied = drive(source.copy(talk.key, target))
        before = drive(source.header(talk.key))
        assert recorded(copied.header) == recorded(before), seed
        assert drive(all_of(chat(target.journal))) == drive(all_of(talk))
    assert cuts > 100
    figure(f"150 stories, {cuts} cuts")


def summarised(store: Any, name: str) -> None:
    talk = minutebook.sync.Conversation(
        store, name, format="openai-chat", limits=WindowLimits(max_messages=6), summarize=lambda **_: "They spoke."
    )
    for number in range(12):
        with talk.turn(f"question {number}") as turn:
            turn.window()
            turn.respond(said(f"answer {number}"))


def chatted(store: Any, name: str) -> None:
    """A chat whose older messages became summaries, and that was begun anew."""
    with ProviderFake("openai-chat", lambda request: Answer(text="So it is.")) as fake:
        agent = Agent(
            name="Assistant",
            goal="Help",
            base_url=fake.base_url,
            api_key="none",
            store=store,
            conversation=name,
            max_history_messages=20,
            enable_summarization=True,
            summarization_threshold=100,
        )
        for number in range(16):
            agent.chat(f"message {number} of some length")
        assert agent.get_conversation_summary()
        agent.clear_history()
        agent.chat("again")
        agent.close()


def engined(store: Any, name: str) -> None:
    engine = Engine(history=HistoryConfig(store=store, max_entries=2), respond=lambda turn: "so")
    for number in range(5):
        engine.turn(name, f"{number}")


@capability(needs_approval=True)
def refund(order: str) -> str:
    """Give money back."""
    return f"refunded {order}"


def decided(store: Any, name: str) -> None:
    """A run with checkpoints that stops for an approval, and one that goes on to its end."""

    def generate(messages: Any, schema: Any) -> Any:
        if "refunded" in messages[-1]["content"]:
            return {"decision": {"action": "finish", "output": "Done."}}
        return {"decision": {"action": "refund", "order": "O-1"}}

    provider = OpenAIChatDecisionProvider(
        model="local", decision_interface="structured", generate=generate, history=HistoryOptions(store=store)
    )
    runtime = Runtime(Program(name="shop", instructions="Help.", capabilities=[refund]), provider)
    runtime.run("Money back.", run_id=name, invocation_id="waits")
    stopped = runtime.run("Money back.", run_id=name, invocation_id="done")
    runtime.resume(name, "done", approvals=[each.approve(by="ann") for each in stopped.pending])


def hosted(store: Any, name: str) -> None:
    """Records of a host's own format, whose bytes are no text."""
    draft = Draft(kind=Kind.INPUT, payload=b"\xff\x00", messages=1, size=2, stop=2)
    for _ in range(3):
        store.transact(store.key(name), lambda record: (_grown(store, name, record, draft), None))


def _grown(store: Any, name: str, record: Any, draft: Draft) -> Any:
    from minutebook.model.record import Record, new_header

    return (record or Record(header=new_header(store.key(name), "record", 0), entries=())).adding(draft)


@pytest.mark.parametrize("make", [summarised, chatted, engined, decided, hosted], ids=lambda make: make.__name__)
def test_b10_records_of_every_face_are_copied(make: Callable[[Any, str], None], folder: Path) -> None:
    """B10: conversations, chats, engines, decisions, checkpoints and a host's own: nothing asks what a format is."""
    with SQLiteStore(folder / "a", namespace="n") as here, SQLiteStore(folder / "b", namespace="n") as there:
        make(here, "one")
        keys = [listing.key for listing in here.list()]
        for key in keys:
            assert here.copy(key, there).written
            check_equal(here, there, key)
        assert [listing.key for listing in there.list()] == keys != []


def test_b10_a_copy_exports_the_very_same_file(folder: Path) -> None:
    """B10, C4: but for the day on which the conversation was made in this store."""
    here, there = (MemoryStore("n", clock=FrozenClock()) for _ in range(2))
    told = conversation(here)
    tell_a_story(told)
    here.copy(told.key, there)
    for store, name in ((here, "here"), (there, "there")):
        store.export(told.key, folder / name)
    assert (folder / "here").read_bytes() == (folder / "there").read_bytes()


def test_b10_a_copied_conversation_goes_on_like_its_original(folder: Path) -> None:
    """B10: the parked call takes its result, the unanswered input its retry; versions and epochs go on."""
    here, there = MemoryStore("n"), MemoryStore("n")
    told = conversation(here)
    tell_a_story(told)
    here.copy(told.key, there)
    again = conversation(there)
    for each in (told, again):
        (slow,) = each.open_calls()
        each.complete(slow, "late")
        with each.turn("four") as turn:
            turn.respond(said("fourth"))
    assert again.window().json == told.window().json
    before, after = here.header(told.key), there.header(told.key)
    assert before is not None
    assert after is not None
    assert (after.version, after.epoch, after.digest) != (0, 0, b"")
    assert after.epoch >= max(receipt.epoch for receipt in here.receipts(told.key))
    there.verify(told.key)


@pytest.mark.parametrize("kind", BOUNDED)
def test_i08_a_commit_that_is_repeated_after_the_move_is_answered_and_not_recorded_twice(
    kind: str, tmp_path: Path
) -> None:
    """I-8: its outcome was unknown to its caller; the receipt has moved with the record, whatever keeps it."""
    here = JournalStore(MemoryJournal(clock=FrozenClock()), namespace="lab")
    there = JournalStore(open_journal(kind, tmp_path), namespace="lab")
    key = here.key("c")
    draft = Draft(kind=Kind.INPUT, payload=b"{}", messages=1, size=2, stop=2)
    deltas = [Delta(drafts=(draft,), idempotency=name) for name in ("one", "two")]

    async def commit(store: JournalStore, delta: Delta) -> Any:
        return (await store.journal.reserve(key, "t", format="f", opening=delta, release=True)).receipt

    first, second = [drive(commit(here, delta)) for delta in deltas]
    drive(here.copy(key, there))
    assert drive(commit(there, deltas[0])) == first
    assert drive(commit(there, deltas[1])) == second
    header = drive(there.header(key))
    assert header is not None
    assert (header.entries, header.version) == (2, 2)
    with pytest.raises(DecisionHistoryConflict):
        drive(commit(there, msgspec.structs.replace(deltas[1], drafts=(draft, draft))))


def test_b10_progress_tells_of_each_entry_here_and_there() -> None:
    """B10: growing counts up to the total; what is there already is only proved."""
    here, there = MemoryStore("n"), MemoryStore("n")
    told = conversation(here)
    spoken = {"role": "assistant", "content": "so"}
    told.append([message for n in range(200) for message in ({"role": "user", "content": str(n)}, spoken)])
    seen: list[tuple[int, int]] = []
    here.copy(told.key, there, progress=lambda *counts: seen.append(counts))
    here.copy(told.key, there, progress=lambda *counts: seen.append(counts))
    assert seen == [(256, 800), (512, 800), (768, 800), (800, 800), (256, 400), (400, 400)]


def test_b10_memory_is_that_of_one_conversation(figure: Figure) -> None:
    """B10: beside the payloads of the largest one little is needed, however many are copied."""
    here = MemoryStore("n")
    for name in range(30):
        conversation(here, str(name)).append([{"role": "user", "content": "x" * 20_000}] * 10)

    class Sink(MemoryJournal):
        """Takes what it is given, and shows it again until the next one comes."""

        async def reserve(self, *arguments: Any, **options: Any) -> Any:
            self._namespaces.clear()
            return await super().reserve(*arguments, **options)

    source, there = here._core, JournalStore(Sink(), namespace="n")  # type: ignore[attr-defined]
    tracemalloc.start()
    try:
        for name in range(30):
            drive(source.copy(source.key(str(name)), there))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6 * 200_000
    figure(f"30 conversations of 200 kB: at most {peak // 1000:,} kB")


# --- refusals --------------------------------------------------------------------------------------------------------


def test_b10_another_conversation_under_the_id_is_refused_and_stays_as_it_is() -> None:
    """B10: whether it is an earlier state, a later one or none of it is told, and nothing is changed."""
    here, there = MemoryStore("n"), MemoryStore("n")
    told = conversation(here)
    tell_a_story(told)
    here.copy(told.key, there)
    fail(told, "five")

    def refusal(source: Any, target: Any, name: str = "first") -> str:
        before = list(target.entries(target.key(name)))
        with pytest.raises(DecisionHistoryConflict) as refused:
            source.copy(source.key(name), target)
        assert list(target.entries(target.key(name))) == before
        return str(refused.value.problem)

    assert refusal(here, there) == "behind"
    assert refusal(there, here) == "ahead"
    fail(conversation(there), "six")
    assert refusal(here, there) == refusal(there, here) == "other"
    minutebook.sync.Conversation(there, "second", format="anthropic").append([{"role": "user", "content": "x"}])
    conversation(here, "second").append([{"role": "user", "content": "x"}])
    assert refusal(here, there, "second") == "other"


def test_b10_i08_what_was_imported_is_no_copy_and_is_told(folder: Path) -> None:
    """B10, I-8: it has not the receipts, and says so, also once either went on; deleted there, it is copied whole."""
    exchange = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "so"}]
    here, there = MemoryStore("n"), MemoryStore("n")
    told = conversation(here)
    first = told.append(exchange, id="order-1")
    told.export(folder / "one.jsonl")
    conversation(there).import_(folder / "one.jsonl")

    def problem(source: Any, target: Any) -> str:
        before = target.header(target.key("first"))
        with pytest.raises(DecisionHistoryConflict) as refused:
            source.copy(source.key("first"), target)
        assert target.header(target.key("first")) == before
        return str(refused.value.problem)

    assert problem(here, there) == problem(there, here) == "receipts"
    conversation(there).append(exchange, id="order-2")
    assert problem(here, there) == problem(there, here) == "receipts"
    there.delete(there.key("first"))
    conversation(there).import_(folder / "one.jsonl")
    told.append(exchange, id="order-3")
    assert problem(here, there) == problem(there, here) == "receipts"
    there.delete(there.key("first"))
    assert here.copy(told.key, there).written
    assert conversation(there).append(exchange, id="order-1") == first
    check_equal(here, there, told.key)


@pytest.mark.parametrize("brought", ["copy", "import"])
@pytest.mark.parametrize("longer", ["here", "there", "neither"])
def test_b10_no_entry_is_lost_by_what_a_refused_copy_advises(folder: Path, brought: str, longer: str) -> None:
    """B10: whoever does what it says has every entry in one of the stores, and a copy of that one in the other."""
    exchange = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "so"}]
    here, there = MemoryStore("n"), MemoryStore("n")
    told, key = conversation(here), here.key("first")
    told.append(exchange)
    if brought == "copy":
        here.copy(key, there)
    else:
        told.export(folder / "one.jsonl")
        conversation(there).import_(folder / "one.jsonl")
    for store in {"here": [here], "there": [there]}.get(longer, []):
        conversation(store).append(exchange)
    source, target = here, there
    try:
        here.copy(key, there)
    except DecisionHistoryConflict as refused:
        advice = str(refused)
        if "copy from there, once the one here is deleted" in advice:
            here.delete(key)
            source, target = there, here
        else:
            assert "delete it there first" in advice or "delete the imported one" in advice
            there.delete(key)
        assert ("2 of them are only there" in advice) is ((brought, longer) == ("import", "there"))
        assert source.copy(key, target).written
    check_equal(source, target, key)
    assert here.header(key).entries == (2 if longer == "neither" else 4)  # type: ignore[union-attr]


def test_b10_a_copy_of_the_same_length_is_held_to_its_version_and_window(folder: Path) -> None:
    """B10: a commit that adds no entry makes another state, one in each too; two imports of one file are the same."""
    here, there = MemoryStore("n"), MemoryStore("n")
    told = conversation(here)
    tell_a_story(told)
    here.copy(told.key, there)

    async def move_the_window(store: Any, limit: int) -> None:
        moved = Delta(idempotency="moved", window_from=1, window_limits=(limit, limit))
        await store._core.journal.reserve(told.key, "t", format="openai-chat", opening=moved, release=True)

    drive(move_the_window(here, 9))
    assert here.header(told.key).entries == there.header(told.key).entries
    for source, target, problem in ((here, there, "behind"), (there, here, "ahead")):
        with pytest.raises(DecisionHistoryConflict) as refused:
            source.copy(told.key, target)
        assert refused.value.problem == problem
    drive(move_the_window(there, 8))
    assert list(there.receipts(told.key))[-1].content == list(here.receipts(told.key))[-1].content
    with pytest.raises(DecisionHistoryConflict, match="with another window") as refused:
        here.copy(told.key, there)
    assert refused.value.problem == "receipts"
    told.export(folder / "one.jsonl")
    imported = [MemoryStore("n", clock=FrozenClock(now)) for now in (1, 2)]
    for store in imported:
        conversation(store).import_(folder / "one.jsonl")
    assert not imported[0].copy(told.key, imported[1]).written


@pytest.mark.parametrize("at", [3, 4])
def test_b10_e6_a_prefix_that_left_since_is_told_as_a_later_state(at: int) -> None:
    """B10, E6: a cut alone makes the one a later state of the other; also one behind which nothing stays."""
    here, there = MemoryStore("n"), MemoryStore("n")
    config = HistoryConfig(store=here, max_entries=5, keep_truncated=True)
    engine = Engine(history=config, respond=lambda turn: "so")
    for number in range(4):
        engine.turn("one", f"{number}")
    key = here.key("one")
    here.copy(key, there)

    async def cut_most_of_it() -> None:
        await here._core.journal.reserve(  # type: ignore[attr-defined]
            key, "t", format="engine/1", opening=Delta(idempotency="cut", cut=at), release=True
        )

    drive(cut_most_of_it())
    for source, target, problem in ((here, there, "behind"), (there, here, "ahead")):
        with pytest.raises(DecisionHistoryConflict) as refused:
            source.copy(key, target)
        assert refused.value.problem == problem
    assert there.delete(key) is False
    here.copy(key, there)
    check_equal(here, there, key)


def test_d22_what_is_held_on_either_side_is_busy() -> None:
    """D22: by a reservation here or there, and by a turn that was left open."""
    here, there = MemoryStore("n"), MemoryStore("n")
    told = conversation(here)
    with told.turn("one") as turn:
        with pytest.raises(DecisionHistoryBusy):
            here.copy(told.key, there)
        turn.respond(said("so"))
    assert there.header(told.key) is None
    with conversation(there).turn("another") as turn:
        with pytest.raises(DecisionHistoryBusy):
            here.copy(told.key, there)
        turn.respond(said("so"))


def test_b10_what_is_absent_or_no_store_is_refused() -> None:
    """B10: and a store of another namespace, of the other colour, or closed."""
    here, there = MemoryStore("n"), MemoryStore("n")
    with pytest.raises(DecisionHistoryAbsent):
        here.copy(here.key("none"), there)
    with pytest.raises(InvalidOption, match="another namespace"):
        here.copy(here.key("none"), MemoryStore("other"))
    with pytest.raises(BlockingMismatch):
        here.copy(here.key("none"), minutebook.MemoryStore("n"))  # type: ignore[arg-type]
    asynchronous = minutebook.MemoryStore("n")
    with pytest.raises(BlockingMismatch):
        asyncio.run(asynchronous.copy(asynchronous.key("none"), there))  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="target"):
        asyncio.run(asynchronous.copy(asynchronous.key("none"), {}))  # type: ignore[arg-type]
    there.close()
    with pytest.raises(StoreClosed):
        here.copy(here.key("none"), there)


@pytest.mark.parametrize("kind", ["RAM", "SQLite"])
@pytest.mark.parametrize(
    ("bounds", "error"),
    [
        (StoreBounds(max_bytes=2_500), DecisionHistoryStoreFull),
        (StoreBounds(max_sessions=2), DecisionHistoryStoreFull),
        (StoreBounds(max_retained_bytes=500), DecisionHistoryRetentionExceeded),
    ],
    ids=["bytes", "sessions", "retained"],
)
def test_d07_a_full_target_refuses_and_holds_nothing_half(
    kind: str, bounds: StoreBounds, error: type[MinutebookError], folder: Path
) -> None:
    """D7: what was copied before stays as it is; with room the same copy goes on."""
    here = MemoryStore("n")
    for name in ("a", "b", "c"):
        conversation(here, name).append([{"role": "user", "content": "x" * 1_000}])
    source = here._core  # type: ignore[attr-defined]
    there = JournalStore(open_journal(kind, folder, bounds), namespace="n")
    copied: list[str] = []

    def copy_all() -> None:
        for name in ("a", "b", "c"):
            drive(source.copy(here.key(name), there))
            copied.append(name)

    with pytest.raises(error):
        copy_all()
    assert [listing.key.id for listing in drive(there.list())] == copied
    for name in copied:
        drive(there.verify(there.key(name)))
    drive(there.close())
    wider = JournalStore(MemoryJournal() if kind == "RAM" else open_journal(kind, folder), namespace="n")
    written = [drive(source.copy(here.key(name), wider)).written for name in ("a", "b", "c")]
    assert written == [kind == "RAM" or name not in copied for name in ("a", "b", "c")]
    drive(wider.close())


def test_d06_a_copy_begins_its_time_to_live_anew() -> None:
    """D6: what has expired here is absent; what is old here is young there, and expires there by its own clock."""
    clock, later = FrozenClock(), FrozenClock()
    here, there = MemoryStore("n", ttl=60, clock=clock), MemoryStore("n", ttl=60, clock=later)
    told = conversation(here)
    tell_a_story(told)
    clock.advance(59_000)
    later.advance(59_000)
    here.copy(told.key, there)
    clock.advance(2_000)
    later.advance(2_000)
    with pytest.raises(DecisionHistoryAbsent):
        here.copy(told.key, there)
    there.verify(told.key)
    later.advance(60_000)
    assert there.header(told.key) is None


def test_b10_a_conversation_larger_than_one_commit_is_refused_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B10: by its counters, with both numbers."""
    here, there = MemoryStore("n"), MemoryStore("n")
    told = conversation(here)
    tell_a_story(told)
    monkeypatch.setattr(copying, "MAX_IMPORT_BYTES", 100)
    with pytest.raises(DecisionHistoryRetentionExceeded, match="100 bytes at most"):
        here.copy(told.key, there)
    assert there.header(told.key) is None


# --- damage ----------------------------------------------------------------------------------------------------------


def altered_payload(database: Path) -> None:
    """Turn one letter of the first entry of a conversation that `tell_a_story` told, where it is stored."""
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        rowid, entries = connection.execute("SELECT rowid, entries FROM minutebook_log WHERE seq = 1").fetchone()
        assert entries.count(b"one ") == 1
        connection.execute(
            "UPDATE minutebook_log SET entries = ? WHERE rowid = ?", (entries.replace(b"one ", b"eno "), rowid)
        )


def altered_state(database: Path) -> None:
    """Count a turn more in a conversation's state."""
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        (stored,) = connection.execute("SELECT state FROM minutebook_conversation").fetchone()
        state = msgspec.json.decode(stored, type=State)
        wrong = msgspec.json.encode(msgspec.structs.replace(state, turns=state.turns + 1))
        connection.execute("UPDATE minutebook_conversation SET state = ?", (wrong,))


def altered_counter(database: Path) -> None:
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE minutebook_conversation SET bytes = bytes + 1")


def altered_receipt(database: Path) -> None:
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        changed = connection.execute("UPDATE minutebook_receipt SET last = last + 1 WHERE version = 1").rowcount
        assert changed == 1


def unaltered(database: Path) -> None:
    """The control."""


ALTERATIONS = (altered_payload, altered_state, altered_counter, altered_receipt)


@pytest.mark.parametrize("alter", [*ALTERATIONS, unaltered], ids=lambda alter: alter.__name__)
def test_i39_b08_an_altered_original_is_refused_and_nothing_is_written(
    alter: Callable[[Path], None], folder: Path
) -> None:
    """I-39, B8: entries, receipts, counters and the state that they make are proved; unaltered, it is copied."""
    with SQLiteStore(folder / "a", namespace="n") as here:
        tell_a_story(conversation(here))
    alter(folder / "a")
    with SQLiteStore(folder / "a", namespace="n") as here, MemoryStore("n") as there:
        if alter is unaltered:
            assert here.copy(here.key("first"), there).written
            return
        with pytest.raises(DecisionHistoryCorrupt):
            here.copy(here.key("first"), there)
        assert there.list() == ()


def test_i39_b08_a_copy_that_is_there_is_proved_and_not_believed(folder: Path) -> None:
    """I-39, B8: its header tells the same digest, and an entry behind it was altered; the control has it whole."""
    here = MemoryStore("n")
    told = conversation(here)
    tell_a_story(told)
    for name in ("sound", "altered"):
        with SQLiteStore(folder / name, namespace="n") as there:
            assert here.copy(told.key, there).written
    altered_payload(folder / "altered")
    with SQLiteStore(folder / "sound", namespace="n") as there:
        assert not here.copy(told.key, there).written
    with SQLiteStore(folder / "altered", namespace="n") as there:
        assert there.header(told.key).digest == here.header(told.key).digest  # type: ignore[union-attr]
        with pytest.raises(DecisionHistoryCorrupt):
            here.copy(told.key, there)


def test_b08_control_a_store_that_loses_an_entry_is_found_out() -> None:
    """B8: a journal that says that it wrote, and gives back a payload of its own, does not pass for a copy."""

    class Lying(MemoryJournal):
        async def oldest(self, *arguments: Any) -> Any:
            page = await super().oldest(*arguments)
            return tuple(msgspec.structs.replace(entry, payload=entry.payload + b" ") for entry in page)

    here, there = MemoryStore("n"), JournalStore(Lying(), namespace="n")
    told = conversation(here)
    tell_a_story(told)
    with pytest.raises(DecisionHistoryCorrupt):
        drive(here._core.copy(told.key, there))  # type: ignore[attr-defined]


# --- meanwhile -------------------------------------------------------------------------------------------------------


class Meanwhile(MemoryJournal):
    """A journal whose first page of entries is followed by something that another worker does."""

    does: Callable[[], object] | None = None

    async def oldest(self, *arguments: Any) -> Any:
        page = await super().oldest(*arguments)
        if self.does is not None:
            does, self.does = self.does, None
            does()
        return page


@pytest.fixture
def meanwhile() -> tuple[Meanwhile, JournalStore, JournalStore]:
    journal = Meanwhile(clock=FrozenClock())
    source = JournalStore(journal, namespace="lab")
    drive(tell(chat(journal), Random(3), 200))
    return journal, source, JournalStore(MemoryJournal(), namespace="lab")


def test_b10_an_original_that_goes_on_is_copied_as_it_was(
    meanwhile: tuple[Meanwhile, JournalStore, JournalStore],
) -> None:
    """B10: one moment of it, whole; the next copy says that the one there is behind."""
    journal, source, target = meanwhile
    key = source.key("chat")
    before = drive(source.header(key))
    assert before is not None
    journal.does = lambda: drive(tell(chat(journal), Random(4), 3))
    copied = drive(source.copy(key, target))
    assert recorded(copied.header) == recorded(before)
    with pytest.raises(DecisionHistoryConflict) as refused:
        drive(source.copy(key, target))
    assert refused.value.problem == "behind"


def test_b10_e6_an_original_that_is_cut_is_read_again(meanwhile: tuple[Meanwhile, JournalStore, JournalStore]) -> None:
    """B10, E6: what left meanwhile is no hole in the copy."""
    journal, source, target = meanwhile
    key = source.key("chat")
    talk = chat(journal)

    async def cut_most() -> None:
        entries = await all_of(talk)
        header = await source.header(key)
        assert header is not None
        waiting = min((open_.exchange for open_ in header.state.open), default=header.entries + 1)
        await cut(talk, max(e.seq - 1 for e in entries if e.kind is Kind.INPUT and e.seq - 1 < waiting))

    drive(cut_most())  # once, to see that there is a place to cut at
    drive(tell(talk, Random(5), 200))
    for call in drive(talk.open_calls()):
        drive(talk.complete(call, "late"))
    journal.does = lambda: drive(cut_most())
    copied = drive(source.copy(key, target))
    after = drive(source.header(key))
    assert after is not None
    assert journal.does is None
    assert recorded(copied.header) == recorded(after)


def test_b10_o51_an_original_that_is_deleted_or_made_anew_is_absent(
    meanwhile: tuple[Meanwhile, JournalStore, JournalStore],
) -> None:
    """B10, O-51: never a mixture of two conversations."""
    journal, source, target = meanwhile
    key = source.key("chat")

    def replace() -> None:
        drive(source.delete(key))
        drive(tell(chat(journal), Random(6), 1))

    journal.does = replace
    with pytest.raises(DecisionHistoryAbsent):
        drive(source.copy(key, target))
    assert drive(target.header(key)) is None


def test_i10_of_many_copies_at_once_one_writes(folder: Path) -> None:
    """I-10: all end well with the same record, which is there once."""
    here = SQLiteStore(folder / "a", namespace="n")
    names = [str(number) for number in range(6)]
    for name in names:
        tell_a_story(conversation(here, name))
    theirs = [SQLiteStore(folder / "b", namespace="n") for _ in range(6)]
    for name in names:
        done = in_threads([lambda store=store, name=name: here.copy(here.key(name), store) for store in theirs])
        assert all(type(each).__name__ == "Copied" for each in done), done
        assert {each.header.digest for each in done} == {here.header(here.key(name)).digest}  # type: ignore[union-attr]
        check_equal(here, theirs[0], here.key(name))
    for store in (here, *theirs):
        store.close()


def test_i18_a_copy_that_is_cancelled_leaves_all_or_nothing(folder: Path) -> None:
    """I-18: at every await; the next copy makes it whole, and what was there is only proved."""
    here = minutebook.MemoryStore("n")
    told = minutebook.Conversation(here, "c", format="openai-chat")

    async def story() -> None:
        for number in range(5):
            async with told.turn(f"{number}") as turn:
                await turn.respond(said("so"))

    async def cancelled_after(steps: int, store: minutebook.SQLiteStore) -> bool:
        task = asyncio.ensure_future(here.copy(told.key, store))
        for _ in range(steps):
            if task.done():
                break
            await asyncio.sleep(0)
        task.cancel()
        return not isinstance((await asyncio.gather(task, return_exceptions=True))[0], asyncio.CancelledError)

    async def sweep() -> int:
        steps = 0
        while True:
            async with minutebook.SQLiteStore(folder / f"{steps}", namespace="n") as store:
                ended = await cancelled_after(steps, store)
                for listing in await store.list():
                    assert not listing.header.token
                await here.copy(told.key, store)
                assert (await store.verify(told.key)).digest == (await here.header(told.key)).digest  # type: ignore[union-attr]
            if ended:
                return steps
            steps += 1

    before = threading.active_count()
    asyncio.run(story())
    assert asyncio.run(sweep()) > 3
    assert threading.active_count() <= before + 1  # of the last store's writer, which may still be ending
