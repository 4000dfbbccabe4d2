"""
Summaries in place of what leaves the window: rows D17 and D18, promise I-27, cases O-14, O-19 to O-24.

What is covered, and its digest, are worked out a second time from the record alone, with the standard library.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from itertools import accumulate, pairwise

import msgspec
import pytest
from tests.faces.places import Place, lasting
from tests.policy.histories import SHAPES

import minutebook.sync
from minutebook.conversation import Conversation
from minutebook.decisions import HistoryOptions, OpenAIDecisionProvider
from minutebook.errors import (
    DecisionHistoryAbsent,
    DecisionHistoryLimitExceeded,
    DecisionHistorySummaryInvalid,
    InvalidOption,
    PairingViolation,
)
from minutebook.model.bounds import WindowLimits
from minutebook.model.decisions import CapabilitySpec, DecisionRequest, Observation
from minutebook.model.entries import Kind
from minutebook.model.events import HistorySummary
from minutebook.stores.opening import MemoryStore
from minutebook.testing.drive import drive
from minutebook.testing.faults import Fault, FaultyJournal

LIMITS = WindowLimits(max_messages=12, max_bytes=4_000)
ROOM = 300


class Host:
    """A host's callback that tells what it was given, and whose texts name what they cover."""

    def __init__(self, text=None):
        self.calls = []
        self.text = text

    def __call__(self, *, previous_summary, turns, max_bytes):
        self.calls.append((previous_summary, turns))
        if isinstance(self.text, BaseException):
            raise self.text
        if callable(self.text):
            return self.text(previous_summary, turns)
        if self.text is not None:
            return self.text
        return f"{(previous_summary or '').partition(' ')[0]}+{len(turns)} exchanges"[-max_bytes:]


def talk(store, name="openai-chat", host=None, limits=LIMITS, events=None, **options):
    return Conversation(
        store,
        f"talk {name}",
        format=name,
        limits=limits,
        summarize=host,
        max_summary_bytes=ROOM,
        on_event=events.append if events is not None else None,
        **options,
    )


async def take_turn(conversation, number, calls=0):
    """Go through one turn, with so many calls at once, and return the window of its first request."""
    shape = SHAPES[conversation.history.wire.name]
    async with conversation.turn(shape.user(f"question {number}")) as turn:
        window = await turn.window()
        if calls:
            named = [(f"call-{number}-{position}", "look") for position in range(calls)]
            for call in await turn.respond(shape.response("", named)[0]):
                await turn.result(call, f"result of {number}")
            await turn.window()
        await turn.respond(shape.response(f"answer {number}", [])[0])
    return window


async def entries_of(conversation):
    return [entry async for entry in conversation.store.entries(conversation.key)]


def texts_of(messages):
    return json.dumps(messages)


def covered_by_hand(entries, last):
    """Return (count, digest) of the exchanges up to `last`, from the record alone."""
    digest, count = b"", 0
    inputs = {entry.seq: entry for entry in entries if entry.kind is Kind.INPUT}
    for response in entries:
        if response.kind is not Kind.RESPONSE or response.seq > last:
            continue
        results = [e for e in entries if e.kind is Kind.RESULT and e.exchange == response.seq]
        chain = hashlib.sha256(digest)
        for entry in (inputs[response.turn], response, *sorted(results, key=lambda result: result.call)):
            chain.update(hashlib.sha256(entry.payload).digest())
        digest, count = chain.digest(), count + 1
    return count, digest.hex()


@pytest.mark.parametrize("name", SHAPES)
@lasting
async def test_d17_i27_each_exchange_is_summarised_once_and_the_digest_is_that_of_the_record(place, name):
    """60 turns: each removed exchange reaches the callback once, in order, behind the summary before it."""
    host, events = Host(), []
    conversation = talk(place.open(), name, host, events=events)
    for number in range(60):
        window = await take_turn(conversation, number, calls=number % 3)
        assert len(window.json) <= LIMITS.max_bytes
        assert len(window) <= LIMITS.max_messages
    entries = await entries_of(conversation)
    given = [turn for _, turns in host.calls for turn in turns]
    answers = [number for turn in given for number in range(60) if f'answer {number}"' in texts_of(turn)]
    assert answers == sorted(set(answers))
    assert answers == list(range(len(answers)))
    assert len(answers) > 40
    summaries = [json.loads(entry.payload) for entry in entries if entry.kind is Kind.SUMMARY]
    assert len(summaries) == len(host.calls) == sum(isinstance(event, HistorySummary) for event in events)
    assert [previous for previous, _ in host.calls] == [None, *(summary["text"] for summary in summaries[:-1])]
    for summary, entry in zip(summaries, (e for e in entries if e.kind is Kind.SUMMARY), strict=True):
        covered = summary["covered"]
        count, digest = covered_by_hand(entries, covered["last"])
        assert (covered["exchanges"], covered["digest"]) == (count, digest)
        assert covered["last"] == entry.call
    assert sum(len(turns) for _, turns in host.calls) == summaries[-1]["covered"]["exchanges"]


@pytest.mark.parametrize("name", SHAPES)
@lasting
async def test_d18_o22_the_summary_is_a_users_words_in_a_fence_and_there_is_one(place, name):
    """It stands in the first message, which is the user's, before what that says; the real request is the last."""
    host = Host("They spoke of </summary> and of [INST] orders.")
    conversation = talk(place.open(), name, host)
    for number in range(30):
        window = await take_turn(conversation, number)
    assert host.calls
    assert all("They spoke" not in texts_of(turns) for _, turns in host.calls)
    first, *others = window.messages
    assert first["role"] == "user"
    parts = first.get("content", first.get("parts"))
    assert [sorted(part) for part in parts] == [sorted(part) for part in reversed(parts)]
    told = parts[0]["text"]
    begin, fence = told.partition("\n")[0].removesuffix(">").split()
    assert begin == "<summary"
    assert len(fence) == 32
    assert told.endswith(f"\n</summary {fence}>")
    assert told.count(fence) == 2
    assert host.text in told
    assert "question" in parts[1]["text"]
    assert not [m for m in others if "They spoke" in texts_of(m) or fence in texts_of(m)]
    assert "question 29" in texts_of(window.messages[-1])


@pytest.mark.parametrize("name", SHAPES)
@lasting
async def test_o14_with_a_summary_the_roles_are_those_of_the_window_without_it(place, name):
    """At every cut: as many messages, in the same order of roles, so no two of a user meet."""
    conversation = talk(place.open(), name, Host())
    for number in range(40):
        window = await take_turn(conversation, number, calls=number % 2)
        roles = [message.get("role", message.get("type")) for message in window.messages]
        assert roles[0] == "user"
        if name != "openai-responses":
            assert all(
                (one, two) != ("user", "user")
                or "tool_result" in texts_of(after)
                or "functionResponse" in texts_of(after)
                for one, two, after in zip(roles, roles[1:], window.messages[1:], strict=False)
            )
        assert len(window) == len(window.messages)


BAD = {
    "empty": "",
    "blank": " \n\t",
    "none": lambda previous, turns: None,
    "bytes": lambda previous, turns: b"text",
    "one byte too long": "é" * (ROOM // 2) + "x",
    "half a character": "\ud800",
    "it raises": RuntimeError("SECRET words of the conversation"),
}


@pytest.mark.parametrize("bad", BAD)
@lasting
async def test_d18_o19_bad_input_53_an_invalid_summary_changes_nothing_and_the_next_step_offers_the_same(place, bad):
    """The typed error quotes nothing; no window changes; the same exchanges come again, and the summary is one then."""
    host = Host()
    conversation = talk(place.open(), host=host)
    number = 0
    while not host.calls:
        await take_turn(conversation, number)
        number += 1
    while True:
        before, calls = await conversation.window(), len(host.calls)
        host.text = BAD[bad]
        try:
            await take_turn(conversation, number)
        except DecisionHistorySummaryInvalid as error:
            refusal = error
            break
        number += 1
        assert number < 60
    assert refusal.problem in ("empty", "not_text", "too_long", "not_unicode", "raised")
    assert "SECRET" not in f"{refusal!r}{refusal.__cause__!r}{refusal.__context__!r}"
    offered = host.calls[calls]
    after = await conversation.window()
    assert after.json == before.json
    kinds = [entry.kind for entry in await entries_of(conversation)]
    assert kinds[-1] is Kind.ABANDONED
    assert kinds.count(Kind.SUMMARY) == calls
    host.text = None
    await take_turn(conversation, number)
    assert host.calls[-1] == offered


@lasting
async def test_o19_a_cancelled_summary_leaves_the_conversation_usable(place):
    """The reservation is given back, and the next turn goes on."""
    begun, store = asyncio.Event(), place.open()

    async def never(**given):
        begun.set()
        await asyncio.Event().wait()

    conversation = talk(store, host=None)
    for number in range(20):
        await take_turn(conversation, number)
    waiting = asyncio.ensure_future(take_turn(talk(store, host=never), 20))
    await begun.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    host = Host()
    window = await take_turn(talk(store, host=host), 20)
    assert len(host.calls) == 1
    assert "question 20" in texts_of(window.messages[-1])


@pytest.mark.parametrize("after", [False, True], ids=["never made", "reply lost"])
def test_o20_whichever_write_fails_the_record_is_before_or_after(after, tmp_path):
    """For every n: reopened, the summary is there with its answer or neither is, and every exchange still is."""
    tmp_path.chmod(0o700)
    for n in range(1, 40):
        place = Place("ram", tmp_path)
        store = place.open()
        plain = talk(store, host=None)
        for number in range(15):
            drive(take_turn(plain, number))
        whole = drive(entries_of(plain))
        store.journal = faulty = FaultyJournal(store.journal, [Fault(call=n, after=after)])
        host = Host()
        for number in range(15, 19):
            try:
                drive(take_turn(talk(store, host=host), number))
            except Exception:
                break
        again = drive(entries_of(talk(place.open())))
        assert [entry.digest for entry in again[: len(whole)]] == [entry.digest for entry in whole]
        drive(place.open().verify(plain.key))
        for entry in again:
            if entry.kind is Kind.SUMMARY:
                assert again[entry.seq].kind is Kind.RESPONSE  # the one behind it, written with it
        if faulty.left:
            assert n > 10
            return
    pytest.fail("some write always failed")


@lasting
async def test_o21_the_callback_runs_only_when_something_left(place):
    """With a low-water mark, most steps ask for nothing; none asks twice."""
    host = Host()
    conversation = talk(place.open(), host=host, limits=WindowLimits(max_messages=40, max_bytes=20_000, low_water=0.5))
    asked = []
    for number in range(80):
        before = len(host.calls)
        await take_turn(conversation, number)
        asked.append(len(host.calls) - before)
        assert asked[-1] == 0 or host.calls[-1][1]
    assert max(asked) == 1
    assert 4 <= sum(asked) <= 12


@lasting
async def test_o23_an_open_call_is_never_summarised_and_its_late_result_is_covered_once(place):
    """While it waits it is in no window and no summary; complete and behind the start, the next summary takes it."""
    host = Host()
    conversation = talk(place.open(), host=host)
    shape = SHAPES["openai-chat"]
    await take_turn(conversation, 0)
    async with conversation.turn(shape.user("transfer 100")) as turn:
        (call,) = await turn.respond(shape.response("", [("transfer-1", "transfer")])[0])
        await turn.park(call)
    for number in range(1, 20):
        await take_turn(conversation, number)
    assert len(host.calls) > 3
    assert "transfer-1" not in texts_of(host.calls)
    await conversation.complete(call, "moved")
    seen = len(host.calls)
    for number in range(20, 26):
        window = await take_turn(conversation, number)
        assert ("transfer-1" in texts_of(window.messages)) is False
    given = [texts_of(turn) for _, turns in host.calls[seen:] for turn in turns]
    assert sum("transfer-1" in turn for turn in given) == 1
    (told,) = [turn for turn in given if "transfer-1" in turn]
    assert "moved" in told
    assert "transfer 100" in told


@lasting
async def test_o24_what_the_callback_does_to_its_arguments_changes_nothing(place):
    """It gets copies: record and windows hold what was said."""

    def spoiling(*, previous_summary, turns, max_bytes):
        for turn in turns:
            for message in turn:
                message.clear()
            turn.clear()
        turns.clear()
        return "spoilt"

    conversation = talk(place.open(), host=spoiling)
    for number in range(25):
        await take_turn(conversation, number)
    read = await conversation.last()
    assert len(read) == 25
    assert [f"answer {number}" in texts_of(exchange.messages) for number, exchange in enumerate(read)] == [True] * 25


@lasting
async def test_d18_windows_keep_their_bytes_until_something_leaves_and_over_a_restart(place):
    """The fence is stored: two processes build the same bytes, and between cuts a window begins with the one before."""
    host = Host()
    limits = WindowLimits(max_messages=20, max_bytes=8_000, low_water=0.5)
    conversation = talk(place.open(), host=host, limits=limits)
    kept = 0
    for number in range(40):
        calls, before = len(host.calls), await conversation.window()
        window = await take_turn(conversation, number)
        if host.calls and len(host.calls) == calls:
            assert window.json.startswith(before.json[:-1])
            kept += 1
        other = await talk(place.open(), limits=limits).window()
        assert other.json == (await conversation.window()).json
    assert kept > 15


@lasting
async def test_d18_a_summary_larger_than_its_room_is_made_once_more_and_then_refused(place):
    """A text whose JSON is far longer than its bytes: more leaves, the callback is asked again, never a third time."""
    host = Host("\x01" * ROOM)  # six bytes of JSON for each one
    conversation = talk(place.open(), host=host, limits=WindowLimits(max_messages=99, max_bytes=3_500))
    for number in range(60):
        before = len(host.calls)
        window = await take_turn(conversation, number)
        assert len(window.json) <= 3_500
        if len(host.calls) - before == 2:
            first, second = host.calls[-2:]
            assert second[0] == host.text
            assert not [turn for turn in second[1] if turn in first[1]]
            break
    else:
        pytest.fail("there was no second round")
    tight = talk(place.open(), host=host, limits=WindowLimits(max_messages=99, max_bytes=1_500))
    before = len(host.calls)
    with pytest.raises(DecisionHistoryLimitExceeded, match="max_summary_bytes"):
        await take_turn(tight, 60)
    assert len(host.calls) - before <= 2


@lasting
async def test_d18_a_step_asks_for_two_summaries_at_most_however_they_grow(place):
    """Each takes more of the wire than the one before, and for the third there would still be something to cover."""
    store = place.open()
    for number in range(20):
        await take_turn(talk(store, limits=WindowLimits(max_messages=99)), number)
    texts = ['"' * (ROOM // 2) + "a" * (ROOM // 2), '"' * ROOM, "\x01" * ROOM]
    host = Host(lambda previous, _: texts[0 if previous is None else texts.index(previous) + 1])
    limits = WindowLimits(max_messages=99, max_bytes=1_300, low_water=1.0)
    with pytest.raises(DecisionHistoryLimitExceeded, match="max_summary_bytes"):
        await take_turn(talk(store, host=host, limits=limits), 20)
    assert [previous for previous, _ in host.calls] == [None, texts[0]]


@lasting
async def test_d18_a_dropped_summary_is_in_no_window_and_is_made_anew(place):
    """What it stood for was never gone: the next summary covers it again, from the beginning."""
    host = Host("poisoned")
    conversation = talk(place.open(), host=host)
    with pytest.raises(DecisionHistoryAbsent):
        await conversation.drop_summary()
    for number in range(20):
        await take_turn(conversation, number)
    covered = sum(len(turns) for _, turns in host.calls)
    assert "poisoned" in texts_of((await conversation.window()).messages)
    assert await conversation.drop_summary() is True
    assert await conversation.drop_summary() is False
    assert "poisoned" not in texts_of((await conversation.window()).messages)
    host.text, seen = "clean", len(host.calls)
    window = await take_turn(conversation, 20)
    (again,) = host.calls[seen:]
    assert again[0] is None
    assert len(again[1]) >= covered
    assert "clean" in texts_of(window.messages)


@lasting
async def test_d17_a_summary_is_exported_and_imported_with_its_conversation(place):
    """The copy shows the same window, byte for byte, and an altered summary is refused."""
    host = Host()
    conversation = talk(place.open(), host=host)
    for number in range(20):
        await take_turn(conversation, number)
    path = place.path.parent / "talk.jsonl"
    await conversation.export(path)
    copy = talk(place.open("other"), host=host)
    await copy.import_(path)
    assert (await copy.window()).json == (await conversation.window()).json
    assert (await copy.window()).sent.summary > 0
    lines = path.read_text().splitlines()
    (line, *_) = [line for line in lines if '"kind":"summary"' in line]
    assert sum('"kind":"summary"' in line for line in lines) == len(host.calls)
    assert "exchanges" in line


def test_d17_blocking_callers_have_the_same_summaries(tmp_path):
    """The same story through minutebook.sync, with a plain function."""
    tmp_path.chmod(0o700)
    host = Host()
    shape = SHAPES["openai-chat"]
    with minutebook.sync.MemoryStore(namespace="t") as store:
        conversation = minutebook.sync.Conversation(
            store, "c", format="openai-chat", limits=LIMITS, summarize=host, max_summary_bytes=ROOM
        )
        for number in range(20):
            with conversation.turn(f"question {number}") as turn:
                window = turn.window()
                turn.respond(shape.response(f"answer {number}", [])[0])
        assert host.calls
        assert "exchanges" in texts_of(window.messages[0])
        assert conversation.drop_summary() is True


@pytest.mark.parametrize(
    ("option", "value"),
    [("summarize", "text"), ("max_summary_bytes", 0), ("max_summary_bytes", 2_001), ("max_summary_bytes", True)],
)
def test_d17_options_are_refused_where_they_are_given(option, value, tmp_path):
    """No function, or a summary that would fill the window."""
    options = {"summarize": Host(), "max_summary_bytes": ROOM, option: value}
    with pytest.raises(InvalidOption) as caught:
        Conversation(Place("ram", tmp_path).open(), "c", format="openai-chat", limits=LIMITS, **options)
    assert caught.value.option == option


GROWING = {
    "quotes": lambda previous, turns: ('x "quoted"\n' * 100)[:ROOM],
    "another language": lambda previous, turns: "語" * (ROOM // 3),
    "by turns": lambda previous, turns: "\x01" * ROOM if len(turns) % 2 else "short",
}


@pytest.mark.parametrize("low", [1.0, 0.65])
@pytest.mark.parametrize("text", GROWING)
@lasting
async def test_d18_o21_a_summary_that_is_longer_on_the_wire_stops_no_conversation(place, text, low):
    """However its JSON or its tokens compare with a stand-in of its length, every later turn finds its window."""
    host = Host(GROWING[text])
    conversation = talk(place.open(), host=host, limits=WindowLimits(max_messages=99, max_bytes=4_500, low_water=low))
    for number in range(120):
        before = len(host.calls)
        window = await take_turn(conversation, number)
        assert len(window.json) <= 4_500
        assert len(host.calls) - before <= 2
    assert len(host.calls) > 3


@lasting
async def test_d18_a_lower_bound_on_summaries_stops_no_conversation(place):
    """The summary that stands may be longer than a new one may be."""
    store, host = place.open(), Host(lambda previous, turns: "x" * ROOM)
    conversation = talk(store, host=host)
    for number in range(20):
        await take_turn(conversation, number)
    assert host.calls
    lower = Conversation(
        store,
        "talk openai-chat",
        format="openai-chat",
        limits=LIMITS,
        summarize=lambda **given: "y",
        max_summary_bytes=9,
    )
    for number in range(20, 50):
        window = await take_turn(lower, number)
    assert "\ny\n" in window[0]["content"][0]["text"]


@lasting
async def test_d18_i27_a_refused_commit_costs_no_summary(place):
    """What the caller catches leaves the summary to the next commit, and the receipt names where it stands."""
    host = Host()
    conversation = talk(place.open(), host=host)
    shape = SHAPES["openai-chat"]
    number = 0
    while not host.calls:
        await take_turn(conversation, number)
        number += 1
    asked = len(host.calls)
    while len(host.calls) == asked:
        async with conversation.turn(f"question {number}") as turn:
            (call,) = await turn.respond(shape.response("", [(f"c{number}", "look")])[0])
            await turn.result(call, "seen")
            await turn.window()
            with pytest.raises(PairingViolation):
                await turn.result(call, "twice")
            await turn.respond(shape.response("done", [])[0])
        number += 1
    entries = await entries_of(conversation)
    assert sum(entry.kind is Kind.SUMMARY for entry in entries) == len(host.calls)
    sent = turn.receipt.request
    assert entries[sent.summary - 1].kind is Kind.SUMMARY
    given = [texts_of(turn) for _, turns in host.calls for turn in turns]
    assert len(given) == len(set(given))


@lasting
async def test_c4_d17_a_late_result_behind_a_summary_is_in_the_next_one_at_once(place):
    """The next turn's window tells of it; nobody has to wait for another cut."""
    host = Host()
    conversation = talk(place.open(), host=host, limits=WindowLimits(max_messages=30, max_bytes=8_000, low_water=0.65))
    shape = SHAPES["openai-chat"]
    async with conversation.turn(shape.user("pay 100")) as turn:
        (call,) = await turn.respond(shape.response("", [("pay-1", "pay")])[0])
        await turn.park(call)
    for number in range(40):
        await take_turn(conversation, number)
    assert host.calls
    await conversation.complete(call, "PAID")
    before = len(host.calls)
    await take_turn(conversation, 40)
    (given,) = host.calls[before:]
    assert "PAID" in texts_of(given[1])
    await take_turn(conversation, 41)
    assert "PAID" not in texts_of(host.calls[before + 1 :])


@lasting
async def test_o18_what_is_said_by_two_tasks_after_an_answer_records_the_answer_once(place):
    """Two commits of one turn that are under way together: the answer that was kept back goes with one of them."""
    conversation = talk(place.open())
    async with conversation.turn("question") as turn:
        await turn.window()
        await turn.respond(SHAPES["openai-chat"].response("answer", [])[0])
        await asyncio.gather(turn.say("one"), turn.say("two"))
    kinds = [entry.kind for entry in await entries_of(conversation)]
    assert kinds.count(Kind.RESPONSE) == 1
    assert kinds.count(Kind.INJECTION) == 2


@lasting
async def test_d26_an_import_knows_what_its_last_request_said_before_the_window(place):
    """A summary dropped after an import makes the thinking behind it stale, as it does without one."""
    host = Host()
    conversation = talk(place.open(), "anthropic", host=host)
    for number in range(30):
        await take_turn(conversation, number)
    assert host.calls
    path = place.path.parent / "talk.jsonl"
    await conversation.export(path)
    copy = talk(place.open("other"), "anthropic", host=host)
    await copy.import_(path)
    sent = []
    for each in (conversation, copy):
        await each.drop_summary()
        sent.append((await each.window()).json)
    assert sent[0] == sent[1]
    assert b'"thinking"' not in sent[0]


@lasting
async def test_d18_a_summary_made_under_wider_limits_is_made_shorter_under_narrow_ones(place):
    """A worker with other limits goes on; one that makes no summaries is told what ends it."""
    store, host = place.open(), Host("x" * 3_000)
    wide = Conversation(
        store,
        "talk openai-chat",
        format="openai-chat",
        limits=WindowLimits(max_messages=9, max_bytes=100_000),
        summarize=host,
        max_summary_bytes=4_000,
    )
    for number in range(20):
        await take_turn(wide, number)
    narrow = WindowLimits(max_messages=9, max_bytes=2_000)
    with pytest.raises(DecisionHistoryLimitExceeded, match="drop_summary"):
        await talk(store, limits=narrow).window()
    shorter = Host("short")
    window = await take_turn(talk(store, host=shorter, limits=narrow), 20)
    assert shorter.calls[0][0] == host.text
    assert "short" in window[0]["content"][0]["text"]


@lasting
async def test_c3_i24_what_comes_in_while_a_window_is_made_is_in_the_next_one(place):
    """Whatever a task records while another one waits for its window: no window after it misses or splits anything."""
    going, gone_on = asyncio.Event(), asyncio.Event()

    async def slow(*, previous_summary, turns, max_bytes):
        going.set()
        await gone_on.wait()
        return "slow"

    store = place.open()
    conversation = talk(store, host=slow)
    shape = SHAPES["openai-chat"]
    for number in range(8):
        async with talk(store).turn(f"question {number}") as turn:
            await turn.respond(shape.response(f"answer {number}", [])[0])
    async with conversation.turn("last question") as turn:
        waiting = asyncio.ensure_future(turn.window())
        await going.wait()
        await turn.say("stop: do not pay")
        gone_on.set()
        await waiting
        after = await turn.window()
        assert "do not pay" in texts_of(after.messages)
        await turn.respond(shape.response("I stop.", [])[0])
    here, elsewhere = await conversation.window(), await talk(place.open()).window()
    assert here.json == elsewhere.json
    assert "do not pay" in texts_of(here.messages)
    entries = await entries_of(conversation)
    assert entries[turn.receipt.request.summary - 1].kind is Kind.SUMMARY


# --- the decision providers ------------------------------------------------------------------------------------------


LOOK = CapabilitySpec(
    name="look",
    description="Read a file.",
    parameters={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)
REQUEST = DecisionRequest(
    run_id="run",
    invocation_id="1",
    agent_ref="agent",
    instructions="You decide.",
    task="Look into all files.",
    capabilities=(LOOK,),
    output={"type": "object", "properties": {}},
)


def decided(steps, **options):
    """Take so many steps of one invocation; return the messages of each request, and the provider."""
    requests = []

    def generate(messages, schema):
        requests.append(messages)
        return {"decision": {"action": "look", "path": f"file {len(requests)}"}}

    provider = OpenAIDecisionProvider(
        model="m", decision_interface="structured", generate=generate, history=HistoryOptions(**options)
    )
    request = REQUEST
    for step in range(steps):
        (call,) = drive(provider.decide(request)).calls
        seen = Observation(
            capability="look", arguments=call.arguments, value=f"content {step}", reference=call.reference
        )
        request = msgspec.structs.replace(request, observations=(*request.observations, seen))
    return requests, provider


def starts_of(requests):
    """Return where each window begins: its first message behind the instructions and the task."""
    return [texts_of(messages[2:3]) for messages in requests]


def test_b3_a_decision_provider_cuts_seldom_with_a_low_water_mark():
    """D8 cuts one exchange a step; a lower mark leaves the start alone for several, and the limit holds in both."""
    often, seldom = (decided(60, max_messages=21, low_water=low)[0] for low in (1.0, 0.5))
    assert max(map(len, often)) == max(map(len, seldom)) == 22  # the instructions are not counted
    changes = [sum(one != two for one, two in pairwise(starts_of(requests))) for requests in (often, seldom)]
    assert changes[0] > 40
    assert 2 <= changes[1] <= 10


def test_d17_d18_a_decision_provider_summarises_what_leaves():
    """One invocation of many steps: the task stays, the summary is before it, each exchange is covered once."""
    host = Host(lambda _, turns: f"{len(turns)} exchanges, \u00e9")
    events = []
    requests, provider = decided(
        60, max_messages=21, low_water=0.5, summarize=host, max_summary_bytes=ROOM, on_event=events.append
    )
    told = [event for event in events if isinstance(event, HistorySummary)]
    covered = [len(turns) for _, turns in host.calls]
    assert [event.newly_covered for event in told] == covered
    assert [event.exchanges for event in told] == list(accumulate(covered))
    assert [event.summary_bytes for event in told] == [len(f"{count} exchanges, \u00e9".encode()) for count in covered]
    assert 2 <= len(host.calls) <= 10
    given = [turn for _, turns in host.calls for turn in turns]
    paths = [number for turn in given for number in range(1, 61) if f'file {number}\\"' in texts_of(turn)]
    assert paths == list(range(1, len(paths) + 1))
    assert len(paths) > 40
    summary, task = requests[-1][1]["content"]
    assert "exchanges" in summary["text"]
    assert task["text"] == REQUEST.task
    record = drive(provider.store.read(provider.key(REQUEST)))
    assert sum(entry.kind is Kind.SUMMARY for entry in record.entries) == len(host.calls)


@pytest.mark.parametrize("low", [None, 0, 1.5, True, "1"])
def test_b3_a_low_water_mark_outside_its_range_is_refused(low):
    """Where it is given, before anything is sent."""
    with pytest.raises(InvalidOption) as caught:
        HistoryOptions(low_water=low)
    assert caught.value.option == "low_water"


class Told:
    """A callable that is no function."""

    def __call__(self, previous_summary, turns, max_bytes):
        return "told"


def told_by_position(previous_summary, turns, max_bytes, /):
    return "told"


def told_more(*, previous_summary, turns, max_bytes, model):
    return "told"


@pytest.mark.parametrize("given", [lambda: "", lambda turns: "", lambda *turns: "", told_by_position, told_more, len])
def test_d17_a_callback_that_the_first_summary_would_fail_at_is_refused_where_it_is_given(given):
    """D17: by every face, with the three names; it came out when the window was full, as a summary that failed."""
    for make in (lambda: talk(MemoryStore(), host=given), lambda: HistoryOptions(summarize=given)):
        with pytest.raises(InvalidOption, match="previous_summary, turns and max_bytes") as refused:
            make()
        assert refused.value.facts == {"option": "summarize"}


@pytest.mark.parametrize(
    "given",
    [Told(), lambda **_: "", lambda *, previous_summary, turns, max_bytes, model="m": "", max],
)
def test_d17_a_callback_that_takes_the_three_keywords_or_may_do_so_is_let_through(given):
    """D17: also one that has more with a default, and one that tells nothing of itself."""
    talk(MemoryStore(), host=given)
    HistoryOptions(summarize=given)
