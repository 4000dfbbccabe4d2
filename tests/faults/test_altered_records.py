"""
Records altered where they are stored, in every field and so that every store still reads them (I-39).

Whatever is asked of such a record afterwards gives what was recorded, or an error by name: no other exception, and
never bytes that are not the recorded ones. With MINUTEBOOK_PROVE=1 every alteration is tried, else some of them.
"""

from __future__ import annotations

import json
import re
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from tests.budgets import PROVE, budget
from tests.faults.alterations import SHELVES, Alteration, Ram, Shelf, Sqlite, changes, forgeries, rechained
from tests.policy.histories import SHAPES

from minutebook import record_reader
from minutebook.conversation import Conversation
from minutebook.errors import DecisionHistoryConflict, DecisionHistoryCorrupt, MinutebookError
from minutebook.history import hold
from minutebook.model import proof
from minutebook.model.bounds import WindowLimits
from minutebook.model.entries import Entry, first_digest
from minutebook.model.record import Header
from minutebook.ports import Page
from minutebook.record_reader import RecordReader
from minutebook.stores import streams
from minutebook.stores.journal import JournalStore
from minutebook.stores.memory import MemoryJournal
from minutebook.testing import drive

SHARE = {"RAM": budget(8, 1), "SQLite": budget(100, 10)}
"""One of so many alterations is tried."""

Figure = Callable[[str], None]
long_run = pytest.mark.timeout(7_200 if PROVE else 120)


def talk(shelf: Shelf, name: str, **options: Any) -> Conversation:
    return Conversation(shelf.store(), "talk", format=name, **options)


async def tell(talk: Conversation, shape: Any, number: int, *calls: tuple[str, str], parked: bool = False) -> None:
    """Record one turn: a question, calls with their results unless they are parked, an answer."""
    async with talk.turn(shape.user(f"question {number}")) as turn:
        await turn.window()
        if calls:
            made = await turn.respond(shape.response(f"looking {number}", calls)[0])
            if parked:
                await turn.park(made[0])
                return
            for call in reversed(made):
                await turn.result(call, f"result of {call.name}")
            await turn.say(shape.user(f"hurry {number}"))
            await turn.window()
        await turn.respond(shape.response(f"answer {number}", ())[0])


def summary_of(**told: Any) -> str:
    return f"{len(told['turns'])} exchanges"


async def several(talk: Conversation, shape: Any) -> None:
    """Record calls side by side, messages within turns, a failed attempt and a parked call."""
    await tell(talk, shape, 1)
    await tell(talk, shape, 2, ("call_a", "read"), ("call_b", "pay"))
    try:
        async with talk.turn(shape.user("question 3")) as turn:
            await turn.window()
            await turn.respond(shape.response("half", [("call_c", "read")])[0])
            raise ConnectionError
    except ConnectionError:
        pass
    await tell(talk, shape, 3, ("call_a", "read"))
    await tell(talk, shape, 4, ("call_p", "approve"), parked=True)
    await tell(talk, shape, 5)


async def summarised(talk: Conversation, shape: Any) -> None:
    """A conversation whose older turns left its window, with a summary in their place."""
    for number in range(1, 7):
        await tell(talk, shape, number, *([("call_a", "read")] if number == 2 else []))


STORIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "several": (several, {}),
    "summarised": (
        summarised,
        {
            "limits": WindowLimits(max_messages=8, low_water=0.65),
            "summarize": summary_of,
            "max_summary_bytes": 64,
            "reasoning": "keep",
        },
    ),
}


class Altered:
    """One recorded conversation, and what every call made of it before it was altered."""

    def __init__(self, shelf: Shelf, name: str, story: str, folder: Path) -> None:
        self.shelf, self.shape, self.folder = shelf, SHAPES[name], folder
        tells, self.options = STORIES[story]
        drive(tells(self.talk(), self.shape))
        shelf.keep()
        self.key = self.talk().key
        self.header, self.entries = shelf.held(self.key)
        self.messages = self._messages()
        self.right: dict[str, Any] = {}
        self.written = True
        for call in CALLS:
            shelf.alter(self.key, self.header, self.entries, written=True)
            self.right[call.__name__] = drive(call(self))

    def talk(self) -> Conversation:
        return talk(self.shelf, self.shape.name, **self.options)

    def _messages(self) -> set[str]:
        """Every wire message that was recorded, as one text each; results of a message of several are told apart."""
        exchanges = drive(self.talk().last(None))
        return {compact(each) for exchange in exchanges for each in exchange.messages}

    def judge(self, what: str, header: Header, entries: list[Entry], *, told: bool = True) -> Iterator[tuple[str, str]]:
        """
        Yield (call, how it was met) for every call on an altered record: `right`, `other`, or the error's code.

        With `told` it is an alteration that can be told: then nothing but what was recorded may come out.
        """
        replaced = entries != self.entries
        for call in CALLS:
            self.shelf.alter(self.key, header, entries, written=self.written)
            self.written = call in WRITING
            try:
                got = drive(call(self))
            except MinutebookError as error:
                yield call.__name__, error.code
                continue
            except Exception as error:
                raise AssertionError(f"{what}, {call.__name__}: {traceback.format_exc(limit=-6)}") from error
            right = got == self.right[call.__name__]
            if told and not right:
                # A header may say that a window begins elsewhere; what stands in it is what was recorded all the same.
                assert not replaced, f"{what}, {call.__name__}: {got!r} and not {self.right[call.__name__]!r}"
                self.check_recorded(what, call.__name__, got)
            yield call.__name__, "right" if right else "other"

    def check_recorded(self, what: str, call: str, got: Any) -> None:
        """Every message of a window is a recorded one, but for this call's own and a summary before the first."""
        for each in got if call in WINDOWS else ():
            told = compact(each)
            assert told in self.messages or "<summary" in told or "new" in told, f"{what}, {call}: {told}"


def compact(message: Any) -> str:
    """Return what a message says: without the names of its calls, which a window may change, and what it may strip."""
    if isinstance(message.get("content"), list):
        message = {**message, "content": [part for part in message["content"] if part["type"] != "thinking"]}
    return re.sub(r'"call_\w+"', '"call"', json.dumps(message, sort_keys=True))


# --- what is asked of a record ---------------------------------------------------------------------------------------


async def window(case: Altered) -> Any:
    return (await case.talk().window()).messages


async def narrow_window(case: Altered) -> Any:
    return (await case.talk().window(WindowLimits(max_messages=8))).messages


async def windows_after_each_other(case: Altered) -> Any:
    same = case.talk()
    await same.window(WindowLimits(max_messages=8))
    return (await same.window()).messages


async def entries(case: Altered) -> Any:
    return [entry async for entry in case.talk().entries()]


async def exchanges(case: Altered) -> Any:
    return [(each, each.messages) async for each in case.talk().exchanges()]


async def search(case: Altered) -> Any:
    return [(found, found.value) async for found in case.talk().search("E")]


async def last(case: Altered) -> Any:
    return [(each, each.messages) for each in await case.talk().last(2)]


async def page(case: Altered) -> Any:
    places: list[dict[str, int]] = [{"before": 5, "limit": 2}, {"before": 9, "limit": 2}, {"after": 4, "limit": 2}, {}]
    found = [await case.talk().page(**where) for where in places]
    return [[(each, each.messages) for each in part] for part in found]


async def read(case: Altered) -> Any:
    record = await case.shelf.store().read(case.key)
    return record and record.entries


async def stored_entries(case: Altered) -> Any:
    return [entry async for entry in case.shelf.store().entries(case.key)]


async def export(case: Altered) -> Any:
    path = case.folder / "export.jsonl"
    await case.talk().export(path, force=True)
    return path.read_bytes()


async def verify(case: Altered) -> Any:
    return (await case.shelf.store().verify(case.key)).digest


async def open_calls(case: Altered) -> Any:
    return await case.talk().open_calls()


async def turn(case: Altered) -> Any:
    async with case.talk().turn(case.shape.user("new")) as turn:
        sent = (await turn.window()).messages
        calls = await turn.respond(case.shape.response("new answer", [("call_new", "read")])[0])
        for call in calls:
            await turn.result(call, "new result")
        sent += (await turn.window()).messages
        await turn.respond(case.shape.response("new end", ())[0])
    return sent


async def complete(case: Altered) -> Any:
    for call in await case.talk().open_calls():
        await case.talk().complete(call, "late new result")
    return (await case.talk().window()).messages


async def append_whole(case: Altered) -> Any:
    told = [message for exchange in await case.talk().page(after=0, limit=1) for message in exchange.messages]
    try:
        await case.talk().append(told, whole=True)
    except DecisionHistoryConflict:
        return "shorter"
    return "the same"


CALLS = (
    window,
    narrow_window,
    windows_after_each_other,
    entries,
    exchanges,
    search,
    last,
    page,
    read,
    stored_entries,
    export,
    verify,
    open_calls,
    turn,
    complete,
    append_whole,
)
WRITING = (turn, complete, append_whole)
"""They come last: only after them has everything to be put back."""
WINDOWS = ("window", "narrow_window", "windows_after_each_other", "turn", "complete")


@long_run
@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("kind", SHELVES)
def test_i39_an_altered_record_is_right_or_refused_by_name(
    kind: str, name: str, story: str, tmp_path: Path, figure: Figure
) -> None:
    """Every field of every entry and of the header: what was recorded, or a named error; nothing else, ever."""
    case = Altered(SHELVES[kind](tmp_path), name, story, tmp_path)
    possible = (each for each in changes(case.key, case.header, case.entries) if case.shelf.can_hold(each[1]))
    tried = chosen(possible, f"{kind} {name} {story}", SHARE[kind])
    met = Counter(how for what, header, altered in tried for _, how in case.judge(what, header, altered))
    case.shelf.close()
    figure(f"{kind}, {name}, {story}: {len(tried):,} alterations, {sum(met.values()):,} calls, {dict(met)}, 0 wrong")
    assert met["right"]
    assert met["DecisionHistoryCorrupt"]


@long_run
@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("name", SHAPES)
def test_i39_a_record_whose_chain_was_made_right_again_raises_nothing_of_another_kind(
    name: str, story: str, tmp_path: Path
) -> None:
    """
    What somebody with the means to write every digest anew says cannot be told from the truth (the guide says so).

    It is met all the same by an answer or by an error of ours.
    """
    case = Altered(Ram(tmp_path), name, story, tmp_path)
    met = Counter[str]()
    for what, header, altered in chosen(changes(case.key, case.header, case.entries), f"{name} {story}", SHARE["RAM"]):
        if header is case.header:
            met.update(how for _, how in case.judge(what, *rechained(case.key, header, altered), told=False))
    assert met["right"]


def test_i39_control_without_the_chain_altered_records_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A harness that can only pass proves nothing: where nothing is proved, what was altered goes out."""
    monkeypatch.setattr(proof, "_check_last", lambda *_: None)
    for reader in (hold, record_reader):
        monkeypatch.setattr(reader, "proved", lambda key, header, entries: entries)
    for reader in (record_reader, streams):
        monkeypatch.setattr(reader, "check_links", lambda *_: None)
    case = Altered(Ram(tmp_path), "openai-chat", "several", tmp_path)
    wrong = 0
    for what, header, altered in chosen(changes(case.key, case.header, case.entries), "control", 40):
        try:
            Counter(case.judge(what, header, altered))
        except AssertionError:
            wrong += 1
    assert wrong > 20


SHOWING = (entries, exchanges, search, stored_entries, last, window)


@pytest.mark.parametrize("call", SHOWING, ids=lambda call: call.__name__)
def test_i39_a_newest_entry_forged_with_its_own_digest_is_found_by_the_header(call: Any, tmp_path: Path) -> None:
    """Its payload and its digest rewritten, the header left: no call that shows it takes it for the truth."""
    case = Altered(Sqlite(tmp_path), "openai-chat", "several", tmp_path)
    *older, newest = case.entries
    for what, forged in forgeries(newest, older[-1].digest, case.entries):
        case.shelf.alter(case.key, case.header, [*older, forged], written=True)
        with pytest.raises(DecisionHistoryCorrupt) as caught:
            drive(call(case))
        assert caught.value.seq == newest.seq, what
    case.shelf.close()


@pytest.mark.parametrize("call", SHOWING, ids=lambda call: call.__name__)
def test_i39_control_without_the_header_a_forged_newest_entry_is_shown(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chain alone does not tell."""
    case = Altered(Ram(tmp_path), "openai-chat", "several", tmp_path)
    monkeypatch.setattr(proof, "_check_last", lambda *_: None)
    *older, newest = case.entries
    telling = next(each for _, each in forgeries(newest, older[-1].digest, case.entries) if b"ANSWER" in each.payload)
    case.shelf.alter(case.key, case.header, [*older, telling], written=True)
    shown = drive(call(case))[-1]
    assert "ANSWER 5" in str(shown.payload if isinstance(shown, Entry) else shown)


def test_i39_a_stream_shows_no_forged_entry_before_it_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is the last of a page: the next one proves it before it is given out."""
    case = Altered(Ram(tmp_path), "openai-chat", "several", tmp_path)
    for rows in (1, 2, 3):
        monkeypatch.setattr(streams, "STREAM_PAGE", Page(rows=rows, messages=2**62, size=2**62))
        for at, entry in enumerate(case.entries):
            before = case.entries[at - 1].digest if at else first_digest(case.key)
            forged = next(each for _, each in forgeries(entry, before, case.entries))
            case.shelf.alter(case.key, case.header, [*case.entries[:at], forged, *case.entries[at + 1 :]], written=True)
            seen: list[Entry] = []
            with pytest.raises(DecisionHistoryCorrupt):
                drive(collect(case, seen))
            assert seen == case.entries[: len(seen)], f"entry {entry.seq}, pages of {rows}"
            assert len(seen) <= at


async def collect(case: Altered, seen: list[Entry]) -> None:
    async for entry in case.shelf.store().entries(case.key):
        seen += [entry]


@pytest.mark.parametrize("seq", range(1, 9))
def test_i39_one_entry_that_is_read_alone_is_held_to_its_neighbours(seq: int, tmp_path: Path) -> None:
    """Forged with its own digest, it does not lead to the next one, nor to the header."""
    case = Altered(Ram(tmp_path), "openai-chat", "several", tmp_path)
    place = seq if seq < 8 else case.header.entries
    entry = case.entries[place - 1]
    before = case.entries[place - 2].digest if place > 1 else first_digest(case.key)
    reader = RecordReader(case.shelf.journal(), case.key)
    assert drive(reader.entry(place)) == entry
    for _, forged in forgeries(entry, before, case.entries):
        case.shelf.alter(
            case.key, case.header, [*case.entries[: place - 1], forged, *case.entries[place:]], written=True
        )
        reader = RecordReader(case.shelf.journal(), case.key)
        with pytest.raises(DecisionHistoryCorrupt):
            drive(reader.entry(place))


def chosen(alterations: Iterator[Alteration], seed: str, share: int) -> list[Alteration]:
    random = Random(seed)
    return [each for each in alterations if share == 1 or not random.randrange(share)]


class Misplacing(MemoryJournal):
    """A journal that tells the third receipt of a conversation as one of another place."""

    def __init__(self, **changes: int) -> None:
        super().__init__()
        self.changes = changes

    async def receipts(self, key: Any, after: int, rows: int) -> Any:
        found = await super().receipts(key, after, rows)
        return tuple([msgspec.structs.replace(each, **self.changes) if each.version == 3 else each for each in found])


@pytest.mark.parametrize("changes", [{"version": 2}, {"first": 1}, {"first": 6}, {"version": 4, "first": 7}], ids=str)
def test_i39_a_receipt_that_is_out_of_its_place_is_found(changes: dict[str, int]) -> None:
    """One that tells of entries that another commit wrote, or of another version: `verify` names it."""
    for journal, sound in ((Misplacing(), True), (Misplacing(**changes), False)):
        talk = Conversation(JournalStore(journal, namespace="n"), "talk", format="openai-chat")
        for number in range(4):
            question = {"role": "user", "content": f"question {number}"}
            drive(talk.append([question, {"role": "assistant", "content": "answer"}]))
        if sound:
            drive(talk.store.verify(talk.key))
            continue
        with pytest.raises(DecisionHistoryCorrupt, match="the receipt of version 3"):
            drive(talk.store.verify(talk.key))


def test_b5_a_search_gives_an_answer_of_several_items_as_an_array(tmp_path: Path) -> None:
    """What is found is JSON whatever the format: one item by itself, several as the array that they stand in."""
    case = Altered(Ram(tmp_path), "openai-responses", "several", tmp_path)
    found = drive(search(case))
    assert any(isinstance(value, list) and len(value) > 1 for _, value in found)
    assert any(isinstance(value, dict) for _, value in found)
