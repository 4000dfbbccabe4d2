"""Face C, row by row: a turn of one's own loop, wire formats, receipts, and reading back (SPEC C1 to C4)."""

# ruff: noqa: PT012 - what fails here is a turn, which is a block

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys

import msgspec
import pytest
from tests.faces.places import (
    Place,
    calling,
    chat,
    dump,
    lasting,
    output,
    reply,
    said,
    seen,
    short,
    tell,
    user,
)

from minutebook.conversation import Conversation
from minutebook.errors import (
    DecisionHistoryAbsent,
    DecisionHistoryBusy,
    DecisionHistoryConflict,
    DecisionHistoryFenced,
    DecisionHistoryLimitExceeded,
    DecisionHistoryRetentionExceeded,
    InvalidMessage,
    InvalidOption,
    PairingViolation,
)
from minutebook.model.bounds import WindowLimits
from minutebook.model.entries import Kind
from minutebook.model.receipts import decode_sent
from minutebook.stores.journal import JournalStore
from minutebook.testing.drive import Cut, cancel_at
from minutebook.testing.faults import SuspendingJournal


async def marks(store, name="c"):
    """Return the reasons of the marks that an operator sees."""
    entries = [entry async for entry in store.entries(store.key(name))]
    return [json.loads(entry.payload)["reason"] for entry in entries if entry.kind is Kind.ABANDONED]


def told(exchanges):
    """Return the messages of exchanges in short."""
    return [message for exchange in exchanges for message in short(exchange.messages)]


# --- C1 --------------------------------------------------------------------------------------------------------------


@lasting
async def test_c1_the_input_is_durable_before_the_request_and_the_turn_settles_whole(place):
    """Another worker sees the input while the turn is open, and finds it busy; afterwards all is there."""
    store, other = place.open(), place.open()
    conversation = chat(store)
    async with conversation.turn("where is it?") as turn:
        entries = [entry async for entry in other.entries(other.key("c"))]
        assert [entry.kind for entry in entries] == [Kind.INPUT]
        with pytest.raises(DecisionHistoryBusy):
            async with chat(other).turn("me too"):
                pass
        assert short(await turn.window()) == ["U where is it?"]
        calls = await turn.respond(reply(calling("C1")))
        assert [(call.id, call.name, call.arguments) for call in calls] == [("C1", "tool", "{}")]
        await turn.result(calls[0], {"status": "ok", "rows": [1, 2]})
        assert short(await turn.window()) == ["U where is it?", "A{C1}", "R C1"]
        assert await turn.respond(reply(said("there"))) == []
    assert await seen(chat(other)) == ["U where is it?", "A{C1}", "R C1", "A there"]
    assert await marks(store) == []
    assert turn.receipt.last == (await store.header(store.key("c"))).entries


@pytest.mark.parametrize("step", ["before any answer", "while a call waits", "after a result", "after the answer"])
@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError, KeyboardInterrupt])
def test_c1_an_exception_abandons_what_came_in(place, step, error):
    """Visible to an operator, in no window, no reservation left; the same message again is there once."""

    @lasting
    async def body(place):
        store = place.open()
        conversation = chat(store)
        await tell(conversation, "earlier")
        before = await conversation.window()
        with pytest.raises(error):
            async with conversation.turn("now") as turn:
                await turn.window()
                if step != "before any answer":
                    calls = await turn.respond(reply(calling("C1", "C2")))
                if step in ("after a result", "after the answer"):
                    await turn.result(calls[0], "one")
                if step == "after the answer":
                    await turn.result(calls[1], "two")
                    await turn.respond(reply(said("blocked by a guard")))
                raise error
        assert (await conversation.window()).json == before.json
        assert await marks(store) == ["failed" if error is RuntimeError else "cancelled"]
        expected = {"before any answer": 0, "while a call waits": 1, "after a result": 2, "after the answer": 4}[step]
        entries = [entry async for entry in store.entries(store.key("c"))]
        assert sum(entry.seq > 3 and entry.kind in (Kind.RESPONSE, Kind.RESULT) for entry in entries) == expected
        await tell(chat(place.open()), "now")
        assert await seen(conversation) == ["U earlier", "A ok", "U now", "A ok"]
        assert [e.kind async for e in conversation.entries()].count(Kind.INPUT) == 2

    body(place)


@pytest.mark.parametrize("cut", [Cut.CANCELLED, Cut.INTERRUPTED])
def test_i18_a_turn_cut_at_every_await_leaves_a_whole_turn_or_none(cut, tmp_path):
    """Cut at the n-th await for every n: the next turn works, and windows hold the turn whole or not at all."""

    async def everywhere():
        step, whole = 0, 0
        while True:
            step += 1
            place = Place("ram", tmp_path)
            plain = place.open()
            store = JournalStore(SuspendingJournal(plain.journal), namespace="tests")
            await tell(chat(plain), "earlier")
            ended = await cancel_at(lambda store=store: tell(chat(store), "now", calls=("C1", "C2")), step, cut)
            assert (await plain.totals()).reserved == 0
            now = await seen(chat(plain))
            full = ["U now", "A{C1, C2}", "R C1", "R C2", "A ok"]
            assert now in (["U earlier", "A ok"], ["U earlier", "A ok", *full])
            whole += len(now) > 2
            await tell(chat(store), "after")
            assert await seen(chat(plain)) == [*now, "U after", "A ok"]
            if not ended.struck:
                return step, whole

    steps, whole = asyncio.run(everywhere())
    assert steps > 8
    assert 0 < whole < steps


KILLED = """
import asyncio, os, signal, sys
from tests.faces.places import *
async def main():
    store = JournalStore(SQLiteJournal(sys.argv[1]), namespace="tests")
    async with chat(store).turn("pay") as turn:
        await turn.respond(reply(calling("C1", name="pay")))
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


def test_c1_o33_a_killed_process_leaves_a_reservation_that_only_recovery_ends(tmp_path):
    """Busy until somebody says that the worker is stopped; then the attempt is marked once and is in no window."""
    place = Place("sqlite", tmp_path)

    async def main():
        child = subprocess.run(
            [sys.executable, "-c", KILLED, place.path], env={**os.environ, "PYTHONPATH": os.getcwd()}
        )
        assert child.returncode == -signal.SIGKILL
        for _ in range(5):
            store = place.open()
            with pytest.raises(DecisionHistoryBusy):
                await tell(chat(store), "next")
        with pytest.raises(InvalidOption):
            await store.recover(store.key("c"), worker_stopped=False)
        await store.recover(store.key("c"), worker_stopped=True)
        assert await marks(store) == ["recovered"]
        assert await seen(chat(store)) == []
        entries = [entry async for entry in store.entries(store.key("c"))]
        assert [entry.kind for entry in entries] == [Kind.INPUT, Kind.RESPONSE, Kind.ABANDONED]
        await tell(chat(place.open()), "next")
        assert await seen(chat(place.open())) == ["U next", "A ok"]
        await place.close()

    asyncio.run(main())


@lasting
async def test_c1_leaving_a_turn_with_open_calls_or_without_an_answer_abandons_it(place):
    """Open calls are an error that names the numbers, and so is no answer at all; nothing is shown."""
    store = place.open()
    conversation = chat(store)
    with pytest.raises(PairingViolation, match=r"2 call\(s\) wait"):
        async with conversation.turn("x") as turn:
            await turn.respond(reply(calling("C1", "C2")))
    with pytest.raises(PairingViolation, match="without a response"):
        async with conversation.turn("y"):
            pass
    assert await seen(conversation) == []
    assert await marks(store) == ["refused", "superseded", "refused"]


@lasting
async def test_c1_an_answer_while_calls_wait_is_refused_and_gives_the_reservation_back(place):
    """At once, not when the turn ends; also with more calls, a new input inside is impossible."""
    store = place.open()
    for wrong in (said("never mind"), calling("C2")):
        with pytest.raises(PairingViolation):
            async with chat(store).turn("x") as turn:
                await turn.respond(reply(calling("C1")))
                await turn.respond(reply(wrong))
        assert not (await store.header(store.key("c"))).token
    await tell(chat(place.open()), "x")


@lasting
async def test_d07_an_answer_that_is_not_retained_leaves_the_conversation_usable(place):
    """The refusal has its code and both numbers; the reservation is given back, the history is as it was."""
    store = place.open()
    conversation = chat(store, max_retained_bytes=600)
    await tell(conversation, "a")
    before = await conversation.window()
    with pytest.raises(DecisionHistoryRetentionExceeded):
        await tell(conversation, "b", answer="x" * 600)
    assert (await conversation.window()).json == before.json
    assert not (await store.header(store.key("c"))).token
    await tell(chat(place.open()), "b")


@lasting
async def test_c1_the_same_turn_id_goes_on_or_conflicts(place):
    """O-34: a failed turn of the id goes on from its input; one that is over is a conflict that says how it ended."""
    conversation = chat(place.open())
    for _ in range(3):
        with pytest.raises(RuntimeError):
            async with conversation.turn("go", id="t1") as turn:
                assert short(await turn.window()) == ["U go"]
                raise RuntimeError
    async with chat(place.open()).turn("go", id="t1") as turn:
        await turn.respond(reply(said("gone")))
    assert await refused(conversation, "go", "t1") == "answered"
    assert await refused(conversation, "other", "t1") is None
    assert await seen(conversation) == ["U go", "A gone"]
    with pytest.raises(RuntimeError):
        async with conversation.turn("more", id="t2") as turn:
            await turn.result((await turn.respond(reply(calling("C1"))))[0], "seen")
            raise RuntimeError
    assert await refused(conversation, "go", "t1") == "answered"
    await tell(conversation, "still more")
    assert await seen(conversation) == ["U go", "A gone", "U still more", "A ok"]
    assert await refused(conversation, "more", "t2") == "superseded"
    assert await refused(conversation, "go", "t1") == "answered"


async def refused(conversation, message, id_):
    """The reason for which a turn is in conflict."""
    with pytest.raises(DecisionHistoryConflict) as caught:
        async with conversation.turn(message, id=id_):
            pass
    return caught.value.problem


@lasting
async def test_c1_a_turn_without_a_message_goes_on_and_is_taken_back_whole(place):
    """It answers what is recorded; if it fails, its calls do not stay open."""
    store = place.open()
    conversation = chat(store)
    await conversation.append([user("question")])
    with pytest.raises(RuntimeError):
        async with conversation.turn() as turn:
            await turn.respond(reply(calling("C1")))
            raise RuntimeError
    assert await seen(conversation) == ["U question"]
    async with conversation.turn() as turn:
        assert short(await turn.window()) == ["U question"]
        await turn.respond(reply(said("answer")))
    assert await seen(conversation) == ["U question", "A answer"]


@lasting
async def test_c1_a_turn_that_goes_on_behind_an_answer_needs_one_of_its_own(place):
    """What was answered before it began is not what it was begun for."""
    conversation = chat(place.open())
    await conversation.append([user("question"), calling("C1")])
    (call,) = await conversation.open_calls()
    await conversation.complete(call, "found")
    with pytest.raises(PairingViolation, match="without a response"):
        async with conversation.turn() as turn:
            await turn.window()
    assert [entry.kind.name async for entry in conversation.store.entries(conversation.key)][-1] == "ABANDONED"


@lasting
async def test_c1_o05_a_turn_without_a_message_is_refused_where_there_is_nothing_to_answer(place):
    """A lookup that found no question must not become a request without one, whose answer no window would hold."""
    store = place.open()
    conversation = chat(store)
    with pytest.raises(PairingViolation, match="holds none to answer; give one"):
        async with conversation.turn(None):
            pass
    assert await store.header(conversation.key) is None


@lasting
@pytest.mark.parametrize("behind", ["an answer", "a failed attempt", "a transcript", "a late result"])
async def test_c1_o05_a_turn_without_a_message_asks_nothing_again_that_is_answered(place, behind):
    """A worker that comes after one which had finished must not run the tools once more, nor record a second answer."""
    conversation = chat(place.open())
    if behind == "a transcript":
        await conversation.append([user("asks"), {"role": "assistant", "content": "ok"}])
    elif behind == "a late result":
        async with conversation.turn("asks") as turn:
            (call,) = await turn.respond(reply(calling("slow")))
            await turn.park(call)
            await turn.respond(reply(said("wait")))
        await conversation.complete(call, "late")
        await tell(conversation, None)
    else:
        await tell(conversation, "asks")
    if behind == "a failed attempt":
        with pytest.raises(ZeroDivisionError):
            async with conversation.turn("fails") as turn:
                await turn.respond(reply(calling("f")))
                raise ZeroDivisionError
        await tell(conversation, None)  # the input that failed has no answer
    before = await seen(conversation)
    header = await place.open().header(conversation.key)
    with pytest.raises(PairingViolation, match="the newest one is answered; give one"):
        async with conversation.turn(None):
            pass
    assert await seen(conversation) == before
    after = await place.open().header(conversation.key)
    assert (after.entries, after.token) == (header.entries, "")


@lasting
async def test_i13_a_worker_that_lost_the_conversation_writes_nothing(place):
    """After a recovery the old turn is fenced, also when it leaves."""
    store, other = place.open(), place.open()
    with pytest.raises(DecisionHistoryFenced):
        async with chat(store).turn("old") as turn:
            await other.recover(other.key("c"), worker_stopped=True)
            await tell(chat(other), "new")
            await turn.respond(reply(calling("late")))
    assert await seen(chat(place.open())) == ["U new", "A ok"]


# --- C2 --------------------------------------------------------------------------------------------------------------

SIGNED = {
    "openai-chat": (
        b'{ "choices":[ {"message": {"role":"assistant" , "content":"hi", "x_new":{"sig":"Zm9v+/=="}}} ] }',
        b'{"role":"assistant" , "content":"hi", "x_new":{"sig":"Zm9v+/=="}}',
    ),
    "openai-responses": (
        b'{"output":[ {"type":"reasoning","encrypted_content":"Zm9v+/==","id":"r"} , {"type":"message",'
        b'"role":"assistant","content":[]  ,"new":1.50} ]}',
        b'{"type":"reasoning","encrypted_content":"Zm9v+/==","id":"r"} , {"type":"message","role":"assistant",'
        b'"content":[]  ,"new":1.50}',
    ),
    "anthropic": (
        b'{"role":"assistant","content":[{"type":"thinking","thinking":"","signature":"Zm9v+/=="} ,{"type":"text",'
        b'"text":"h\\u00e9"}]}',
        b'{"role":"assistant","content":[{"type":"thinking","thinking":"","signature":"Zm9v+/=="} ,{"type":"text",'
        b'"text":"h\\u00e9"}]}',
    ),
    "gemini": (
        b'{"candidates":[{"content":{"parts":[{"text":"hi","thoughtSignature":"Zm9v+/=="} ],"role":"model"}}]}',
        b'{"role":"model","parts":[{"text":"hi","thoughtSignature":"Zm9v+/=="} ]}',
    ),
}


@pytest.mark.parametrize("name", SIGNED)
def test_c2_d26_a_raw_response_is_kept_and_sent_back_byte_for_byte(place, name):
    """Spacing, escapes, unknown fields and signatures, also after the store was opened again."""

    @lasting
    async def body(place):
        raw, sent = SIGNED[name]
        store = place.open()
        async with Conversation(store, "c", format=name).turn("q") as turn:
            await turn.respond(raw)
        store = place.open()
        window = await Conversation(store, "c", format=name).window()
        assert window.json.endswith(b"," + sent + b"]")
        entries = [entry async for entry in store.entries(store.key("c"))]
        assert entries[-1].payload == raw

    body(place)


@lasting
async def test_c2_the_format_is_given_once_and_never_changes(place):
    """Another format on the same conversation is a conflict, an unknown one an option error."""
    store = place.open()
    await tell(chat(store), "a")
    with pytest.raises(DecisionHistoryConflict):
        async with Conversation(store, "c", format="anthropic").turn("b"):
            pass
    with pytest.raises(InvalidOption):
        Conversation(store, "c", format="morse")


# --- C3 --------------------------------------------------------------------------------------------------------------


def rebuilt(entries, sent, first_after):
    """Make a window's bytes again from the rows that stood before `first_after`, with nothing of the policy."""
    rows = [entry for entry in entries if entry.seq < first_after]
    for mark in [row for row in rows if row.kind is Kind.ABANDONED]:
        rows = [row for row in rows if not mark.exchange <= row.seq <= mark.call and row is not mark]
    out, shown = [], set()
    for row in rows:
        complete = [r.call for r in rows if r.kind is Kind.RESULT and r.exchange == row.seq]
        if row.kind is Kind.INPUT and not any(r.turn == row.seq and r.kind is Kind.RESPONSE for r in rows):
            out.append(row.fragment)
        if row.kind is not Kind.RESPONSE or row.seq < sent.first or len(complete) < len(row.calls):
            continue
        if row.turn not in shown:
            shown.add(row.turn)
            out.append(next(r.fragment for r in rows if r.seq == row.turn))
        out.append(row.fragment)
        results = [r for r in rows if r.kind is Kind.RESULT and r.exchange == row.seq]
        out += [r.fragment for r in sorted(results, key=lambda r: r.call)]
    return b"[" + b",".join(out) + b"]"


@lasting
async def test_c3_every_receipt_tells_what_was_sent_and_the_bytes_can_be_made_again(place):
    """Numbers, limits and digest of each request are in the receipts; the record alone gives the same bytes."""
    store = place.open()
    limits = WindowLimits(max_messages=6, max_bytes=1_000, low_water=0.7)
    conversation = chat(store, limits=limits)
    windows = []
    for number in range(8):
        async with conversation.turn(f"q{number}") as turn:
            windows.append(await turn.window())
            assert turn.sent == windows[-1].sent
            if number % 2:
                for call in reversed(await turn.respond(reply(calling("a", "b")))):
                    await turn.result(call, f"r{number}")
                windows.append(await turn.window())
            await turn.respond(reply(said(f"a{number}")))
        if number == 4:
            with pytest.raises(RuntimeError):
                async with conversation.turn("q5") as failed:
                    await failed.window()
                    raise RuntimeError
    receipts = [receipt async for receipt in store.receipts(store.key("c")) if receipt.sent]
    entries = [entry async for entry in store.entries(store.key("c"))]
    requests = [decode_sent(receipt.sent) for receipt in receipts]
    assert [sent.digest for sent in requests] == [hashlib.sha256(window.json).hexdigest() for window in windows]
    for sent, receipt, window in zip(requests, receipts, windows, strict=True):
        assert (sent.messages, sent.bytes) == (len(window.messages), len(window.json))
        assert (sent.max_messages, sent.max_bytes) == (6, 1_000)
        # Two calls "a" in one window are told apart by new ids; the digest is of what was really sent.
        again = rebuilt(entries, sent, receipt.first)
        assert len(json.loads(again)) == sent.messages
        if again.count(b'"id": "a"') < 2:
            assert hashlib.sha256(again).hexdigest() == sent.digest
    assert any(sent.trimmed for sent in requests)
    assert turn.receipt.sent == receipts[-1].sent


@lasting
async def test_c3_a_request_after_an_answer_has_a_receipt_of_its_own(place):
    """Two answers in one turn: each commit carries the window that led to it."""
    store = place.open()
    async with chat(store).turn("q") as turn:
        first = await turn.window()
        await turn.respond(reply(said("part one")))
        second = await turn.window()
        await turn.respond(reply(said("part two")))
    receipts = [decode_sent(r.sent) async for r in store.receipts(store.key("c")) if r.sent]
    assert [sent.digest for sent in receipts] == [first.sent.digest, second.sent.digest]
    assert await seen(chat(store)) == ["U q", "A part one", "A part two"]


@lasting
async def test_c3_d08_a_window_that_cannot_be_legal_is_refused_and_nothing_changes(place):
    """The limit error says the numbers; the turn can end as abandoned, or go on with other limits."""
    store = place.open()
    conversation = chat(store)
    await tell(conversation, "a", calls=("C1", "C2"))
    async with conversation.turn("b") as turn:
        with pytest.raises(DecisionHistoryLimitExceeded) as caught:
            await turn.window(WindowLimits(max_messages=2))
        assert caught.value.max_messages == 2
        assert short(await turn.window(WindowLimits(max_messages=3))) == ["U a", "A ok", "U b"]
        await turn.respond(reply(said("fine")))
    assert len(await conversation.window()) == 7


@lasting
async def test_i25_reading_and_windows_write_nothing(place):
    """Header, digests and every row are the same before and after."""
    store = place.open()
    conversation = chat(store)
    for number in range(6):
        await tell(conversation, f"q{number}", calls=("C1",))
    before = await dump(store)
    for limit in range(2, 30):
        await conversation.window(WindowLimits(max_messages=limit + 1))
    await conversation.last(3)
    [exchange async for exchange in conversation.exchanges()]
    await conversation.open_calls()
    assert await dump(store) == before


@lasting
async def test_o24_what_is_done_to_a_window_has_no_effect_outside_it(place):
    """A window is a copy; changing its messages changes neither the record nor the next window."""
    store = place.open()
    conversation = chat(store)
    await tell(conversation, "a")
    before = await dump(store)
    window = await conversation.window()
    window[0]["content"] = "changed"
    window.messages.clear()
    assert await seen(conversation) == ["U a", "A ok"]
    assert await dump(store) == before


# --- C4 --------------------------------------------------------------------------------------------------------------


@lasting
async def test_c4_o40_last_and_paging_both_ways_meet_each_exchange_once_while_others_come_in(place):
    """The newest in order, none for 0, all for None; pages forwards and backwards cover what there was."""
    conversation = chat(place.open())
    for number in range(1, 11):
        await tell(conversation, f"q{number}", answer=f"a{number}", calls=(f"C{number}",) if number % 3 == 0 else ())
    exchanges = [exchange async for exchange in conversation.exchanges()]
    assert len(exchanges) == 13
    for count in (0, 1, 3, 12, 13, 14):
        assert await conversation.last(count) == (exchanges[-count:] if count else [])
    assert await conversation.last(None) == exchanges
    back, before = [], 0
    while page := await conversation.page(before=before, limit=4):
        back = [*page, *back]
        before = page[0].seq
        await tell(chat(place.open()), "meanwhile")
    assert back == exchanges
    forth, after = [], 0
    while page := await conversation.page(after=after, limit=4):
        forth += page
        after = page[-1].seq
        if len(forth) < 20:
            await tell(conversation, "meanwhile")
    assert forth[:13] == exchanges
    assert len({exchange.seq for exchange in forth}) == len(forth)
    assert told(forth) == await seen(conversation, WindowLimits(max_messages=1000))
    for bad in (-1, True, 1.5, "3"):
        with pytest.raises(InvalidOption):
            await conversation.page(limit=bad)
    with pytest.raises(InvalidOption):
        await conversation.page(before=3, after=3)


@lasting
async def test_c4_entries_stream_with_their_metadata_and_without_what_was_taken_back(place):
    """Seq, kind, size and time come along; failed attempts are for `store.entries`."""
    store = place.open()
    conversation = chat(store)
    await tell(conversation, "a")
    with pytest.raises(RuntimeError):
        async with conversation.turn("b") as turn:
            await turn.respond(reply(calling("C1")))
            raise RuntimeError
    assert [entry.seq async for entry in conversation.entries()] == [1, 2]
    assert [entry.seq async for entry in store.entries(store.key("c"))] == [1, 2, 3, 4, 5]
    assert [entry.seq async for entry in conversation.entries(after=1)] == [2]


TRANSCRIPT = [
    {"role": "system", "content": "be kind"},
    user("one"),
    user("more of one"),
    calling("C1", "C2"),
    output("C2"),
    output("C1"),
    said("done"),
    user("two"),
    said("yes"),
]


@lasting
async def test_c4_a_transcript_is_appended_whole_once_or_not_at_all(place):
    """Same id and content: recorded once, also from elsewhere; other content: a conflict; a fault anywhere: nothing."""
    store = place.open()
    conversation = chat(store)
    first = await conversation.append(TRANSCRIPT, id="import-1")
    again = await chat(place.open()).append(TRANSCRIPT, id="import-1")
    assert first == again
    before = await dump(store)
    with pytest.raises(DecisionHistoryConflict):
        await conversation.append(TRANSCRIPT[:-2], id="import-1")
    for fault, error in (
        ([*TRANSCRIPT, output("C9")], PairingViolation),
        ([user("x"), {"role": "robot", "content": "y"}], InvalidMessage),
        ([user("x"), calling("C1"), said("z")], PairingViolation),
        ([user("x"), said("y"), {"role": "system", "content": "z"}], InvalidMessage),
    ):
        with pytest.raises(error):
            await conversation.append(fault)
    assert await dump(store) == before
    assert await seen(conversation) == [
        "U one",
        "U more of one",
        "A{C1, C2}",
        "R C1",
        "R C2",
        "A done",
        "U two",
        "A yes",
    ]
    assert await conversation.append([]) is None


@lasting
async def test_c4_o18_a_whole_transcript_adds_only_what_is_new(place):
    """Also to turns that were recorded from raw responses; a contradiction is a conflict and stores nothing."""
    store = place.open()
    conversation = chat(store)
    await tell(conversation, "one", answer="first", calls=("C1",))
    client = [user("one"), calling("C1"), output("C1", "result of C1"), said("first")]
    assert await conversation.append(client, whole=True) is None
    client += [user("go"), said("gone"), user("go")]
    assert await conversation.append(client, whole=True) is not None
    assert await conversation.append(client, whole=True) is None
    assert await seen(conversation) == short(client)
    before = await dump(store)
    for wrong in (client[:3], [user("ONE"), *client[1:], said("x")], [*client[:4], user("stop")]):
        with pytest.raises((DecisionHistoryConflict, PairingViolation)):
            await conversation.append(wrong, whole=True)
    after = await dump(store)
    assert after[1] == before[1]
    assert not after[0].token
    results = await asyncio.gather(
        *(chat(place.open()).append([*client, said("ok")], whole=True) for _ in range(4)), return_exceptions=True
    )
    assert sum(getattr(result, "last", None) is not None for result in results) == 1
    assert await seen(conversation) == [*short(client), "A ok"]


@lasting
async def test_c4_o36_a_parked_call_waits_in_no_window_and_its_late_result_completes_it(place):
    """The conversation goes on, also in another process; the same result again is a no-op, another one an error."""
    store = place.open()
    conversation = chat(store)
    async with conversation.turn("send it") as turn:
        calls = await turn.respond(reply(calling("C1", "C2", name="send_mail")))
        await turn.result(calls[1], "looked up")
        await turn.park(calls[0])
        await turn.say("use the new address")
    assert await seen(conversation) == ["U send it", "U use the new address"]
    await tell(conversation, "meanwhile")
    with pytest.raises(RuntimeError):
        async with conversation.turn("lost") as turn:
            await turn.result(calls[0], "taken back with its turn")
            raise RuntimeError
    conversation = chat(place.open())
    (waiting,) = await conversation.open_calls()
    assert (waiting.id, waiting.position, waiting.exchange) == ("C1", 0, calls[0].exchange)
    first = await conversation.complete(waiting, "sent")
    assert await conversation.complete(waiting, "sent") == first
    with pytest.raises(DecisionHistoryConflict, match="another result of this call stands already"):
        await conversation.complete(waiting, "sent twice")
    with pytest.raises(PairingViolation):
        await conversation.complete(calls[1], "again")
    assert await conversation.open_calls() == ()
    whole = ["U send it", "A{C1, C2}", "R C1", "R C2", "U use the new address", "U meanwhile", "A ok"]
    assert await seen(conversation) == whole
    assert told(await conversation.last(None)) == whole
    assert told([exchange async for exchange in conversation.exchanges()]) == whole
    assert all(exchange.complete for exchange in await conversation.last(None))
    assert b"taken back" not in (await conversation.last(None))[0].json
    await tell(conversation, "lost")
    page = await conversation.page(before=(await conversation.last(1))[0].turn, limit=5)
    assert told(page) == whole


@lasting
async def test_c4_low_water_is_065_here_and_1_on_demand(place):
    """After a cut the window has room for several turns; with 1.0 it never holds less than it could."""
    for name, low in (("default", None), ("full", 1.0)):
        conversation = chat(place.open(), name, limits=WindowLimits(max_messages=20, low_water=low))
        lengths = []
        for number in range(30):
            async with conversation.turn(f"q{number}") as turn:
                lengths.append(len(await turn.window()))
                await turn.respond(reply(said("a")))
        assert max(lengths) <= 20
        assert min(lengths[12:]) == (13 if low is None else 19)


@lasting
async def test_c4_reading_a_conversation_that_is_deleted_meanwhile_says_so(place):
    """No endless loop, no false alarm of damage; one that was absent from the beginning holds nothing."""
    store = place.open()
    conversation = chat(store)
    for number in range(3):
        await tell(conversation, f"q{number}")
    header = await store.header(store.key("c"))
    await store.delete(store.key("c"))
    assert await conversation.last(5) == []
    assert await seen(conversation) == []
    real = store.journal.header
    asked = []

    async def once_more(key):
        asked.append(key)
        return header if len(asked) == 1 else await real(key)

    store.journal.header = once_more
    with pytest.raises(DecisionHistoryAbsent):
        await conversation.last(5)


# --- bad inputs, each through a whole conversation --------------------------------------------------------------------

REFUSED = {
    "39-result-without-call": ([user("u"), output("C9")], PairingViolation),
    "39-result-first": ([output("C1")], PairingViolation),
    "42-result-twice": ([user("u"), calling("C1"), output("C1"), output("C1")], PairingViolation),
    "44-result-of-another": ([user("u"), calling("C1"), output("C2")], PairingViolation),
    "46-unknown-role": ([user("u"), {"role": "oracle", "content": "x"}], InvalidMessage),
    "46-system-in-the-middle": ([user("u"), said("a"), {"role": "system", "content": "x"}], InvalidMessage),
    "46-no-role": ([{"content": "x"}], InvalidMessage),
}


@pytest.mark.parametrize(("messages", "error"), REFUSED.values(), ids=REFUSED)
@lasting
async def test_bad_input_39_42_44_46_in_a_transcript_are_refused_whole(place, messages, error):
    """Nothing of the transcript is recorded, also where its head was lawful, and the conversation goes on."""
    conversation = chat(place.open())
    await tell(conversation, "before")
    before = await dump(conversation.store)
    with pytest.raises(error):
        await conversation.append(messages)
    assert await dump(conversation.store) == before
    await tell(conversation, "after")
    assert await seen(conversation) == ["U before", "A ok", "U after", "A ok"]


@lasting
async def test_bad_input_44_a_call_of_another_conversation_is_not_answered_here(place):
    """Its place in the other record means nothing in this one; both go on."""
    store = place.open()
    one, other = chat(store, "one"), chat(store, "other")
    async with one.turn("x") as turn:
        (foreign,) = await turn.respond(reply(calling("C1")))
        async with other.turn("y") as second:
            await second.say("beside")
            (own,) = await second.respond(reply(calling("C1")))
            with pytest.raises(PairingViolation):
                await second.result(foreign, "of another")
            await second.result(own, "mine")
            await second.respond(reply(said("done")))
        await turn.result(foreign, "theirs")
        await turn.respond(reply(said("done")))
    assert (await seen(one))[-2:] == ["R C1", "A done"]


@lasting
async def test_bad_input_41_45_47_survive(place):
    """One id twice in a response, an empty list, and a block of a newer provider: kept as they came."""
    conversation = chat(place.open())
    assert await conversation.append([]) is None
    newer = {"role": "user", "content": [{"type": "hologram", "hologram": {"x": [1, 2.0, None]}}]}
    twice = calling("C1", "C1")
    await conversation.append([newer, twice, output("C1", "first"), output("C1", "second"), said("ok")])
    window = await conversation.window()
    assert window[0] == newer
    ids = [call["id"] for call in window[1]["tool_calls"]]
    assert len(set(ids)) == 2
    assert [(m["tool_call_id"], m["content"]) for m in window[2:4]] == list(zip(ids, ("first", "second"), strict=True))
    assert twice["tool_calls"][0]["id"] == twice["tool_calls"][1]["id"] == "C1"  # what was given is left alone


@lasting
async def test_bad_input_40_a_call_without_result_holds_up_the_next_turn_alone(place):
    """What is said in the same turn is kept; a new turn is refused until the call has its result."""
    conversation = chat(place.open())
    await conversation.append([user("u"), calling("C1"), user("beside")])
    before = await dump(conversation.store)
    with pytest.raises(PairingViolation):
        async with conversation.turn("next"):
            pass
    assert (await dump(conversation.store))[1] == before[1]
    (call,) = await conversation.open_calls()
    await conversation.complete(call, "late")
    await tell(conversation, "next")
    assert await seen(conversation) == ["U u", "A{C1}", "R C1", "U beside", "U next", "A ok"]


@lasting
async def test_c01_c04_a_late_result_is_told_that_the_turn_of_its_call_was_abandoned(place):
    """Parking outlives a turn, and no failure of it; a call that was answered, or never made, is no such one."""
    conversation = chat(place.open())
    with pytest.raises(ZeroDivisionError):
        async with conversation.turn("refund it") as turn:
            (lost,) = await turn.respond(reply(calling("C1")))
            await turn.park(lost)
            await turn.window()
            raise ZeroDivisionError
    async with conversation.turn("again") as turn:
        (given,) = await turn.respond(reply(calling("C2")))
        await turn.result(given, "done")
        await turn.respond(reply(said("ok")))
    for call, abandoned in (
        (lost, True),
        (given, False),
        (msgspec.structs.replace(lost, exchange=-1), False),
        (msgspec.structs.replace(lost, exchange=99), False),
    ):
        with pytest.raises(PairingViolation) as refused:
            await conversation.complete(call, "approved")
        assert ("was abandoned" in str(refused.value)) == abandoned
        assert refused.value.exchange == call.exchange


@pytest.mark.parametrize("bound", [0, -1, True, 1.0, float("nan"), 2**63, "128"])
@lasting
async def test_bad_input_51_numbers_that_bound_nothing_are_refused(place, bound):
    """Where they are given, with the option named; nothing is recorded."""
    store = place.open()
    with pytest.raises(InvalidOption) as refused:
        chat(store, max_retained_bytes=bound)
    assert refused.value.option == "max_retained_bytes"
    conversation = chat(store)
    if type(bound) is not int or bound < 0:  # to read none, or more than there is, is no fault
        for read in (conversation.last(bound), conversation.page(limit=bound)):
            with pytest.raises(InvalidOption):
                await read
    assert await store.header(conversation.key) is None


@lasting
async def test_bad_input_50_the_limit_bites_exactly_at_its_number(place):
    """Four messages pass a limit of 4 whole; at 3 the oldest turn leaves, and at 1 nothing may be sent."""
    conversation = chat(place.open())
    await tell(conversation, "one")
    await tell(conversation, "two")
    assert len(await conversation.window(WindowLimits(max_messages=4))) == 4
    assert await seen(conversation, WindowLimits(max_messages=3, low_water=1.0)) == ["U two", "A ok"]
    with pytest.raises(DecisionHistoryLimitExceeded):
        await conversation.window(WindowLimits(max_messages=1))
