"""Face C where things meet: calls of two conversations, refusals that are caught, results given together (SPEC C1)."""

# ruff: noqa: PT012 - what fails here is a turn, which is a block

import asyncio
import functools
import json

import pytest
from tests.stores.labs import said

from minutebook import (
    Conversation,
    DecisionHistoryConflict,
    DecisionHistoryRetentionExceeded,
    InvalidOption,
    MemoryStore,
    PairingViolation,
    SQLiteStore,
    StorageError,
    WindowLimits,
)
from minutebook.model.entries import Kind
from minutebook.stores.journal import JournalStore
from minutebook.stores.memory import MemoryJournal
from minutebook.testing import Fault, FaultyJournal, SuspendingJournal


def asynchronous(test):
    """Run an async test to its end."""

    @functools.wraps(test)
    def run(*arguments, **named):
        asyncio.run(test(*arguments, **named))

    return run


def calling_of(format_, count):
    """Return a response of a format that makes `count` calls."""
    if format_ == "openai-chat":
        return said("", *(f"c{n}" for n in range(count)))
    if format_ == "openai-responses":
        calls = [{"type": "function_call", "call_id": f"c{n}", "name": "f", "arguments": "{}"} for n in range(count)]
        return {"status": "completed", "output": calls}
    if format_ == "anthropic":
        blocks = [{"type": "tool_use", "id": f"c{n}", "name": "f", "input": {}} for n in range(count)]
        return {"role": "assistant", "content": blocks, "stop_reason": "tool_use"}
    parts = [{"functionCall": {"name": "f", "args": {}}} for _ in range(count)]
    return {"candidates": [{"content": {"role": "model", "parts": parts}}]}


@asynchronous
async def test_bad_input_44_a_call_of_another_conversation_takes_no_result():
    """I-22, bad input 44: two agents in one loop have exchanges of the same number; a result never crosses over."""
    async with MemoryStore() as store:
        one, two = (Conversation(store, name, format="openai-chat") for name in ("one", "two"))
        async with one.turn("q") as first, two.turn("q") as second:
            (mine,) = await first.respond(said("", "a"))
            (other,) = await second.respond(said("", "b"))
            for attempt in (second.result(mine, "x"), second.park(mine), two.complete(mine, "x")):
                with pytest.raises(PairingViolation):
                    await attempt
            await first.result(mine, "one")
            await second.result(other, "two")
            await first.respond(said("done"))
            await second.respond(said("done"))
        assert [m.get("tool_call_id") for m in await two.window()] == [None, None, "b", None]


@asynchronous
async def test_c1_a_refusal_that_is_caught_costs_no_answer():
    """C1, I-4: what `respond` took is recorded when the block ends, whatever was refused in between."""
    async with MemoryStore() as store:
        talk = Conversation(store, "c", format="openai-chat", max_retained_bytes=400)
        async with talk.turn("q") as turn:
            await turn.respond(said("precious"))
            with pytest.raises(DecisionHistoryRetentionExceeded):
                await turn.say("z" * 500)
        assert [m["content"] for m in await talk.window()] == ["q", "precious"]
        with pytest.raises(PairingViolation, match="without a response"):
            async with talk.turn("again") as turn:
                with pytest.raises(DecisionHistoryRetentionExceeded):
                    await turn.respond(said("", "a" * 500))
        assert [m["content"] for m in await talk.window()] == ["q", "precious"], "no response, so no settled turn"
        for late in (turn.respond(said("late")), turn.window(), turn.say("late")):
            with pytest.raises(InvalidOption, match="over"):
                await late


@asynchronous
async def test_c1_results_given_together_are_all_in_the_window(tmp_path):
    """C1, I-23: commits of one turn may be heard of in any order; the window shows every one of them."""
    tmp_path.chmod(0o700)
    async with SQLiteStore(tmp_path / "book.sqlite", namespace="n") as store:
        one, two = (Conversation(store, name, format="openai-chat") for name in ("one", "two"))
        async with two.turn("other") as other, one.turn("mine") as turn:
            (apart,) = await other.respond(said("", "z"))
            first, second = await turn.respond(said("", "a", "b"))
            grouped = [asyncio.create_task(turn.result(first, "ra")), asyncio.create_task(other.result(apart, "rz"))]
            await asyncio.sleep(0)
            alone = asyncio.create_task(turn.result(second, "rb"))
            await asyncio.sleep(0)
            while not one.store.journal._database._queue and not all(task.done() for task in (*grouped, alone)):
                await asyncio.sleep(0)
            await asyncio.gather(*grouped, alone)
            shown = [(m["role"], m.get("tool_call_id")) for m in await turn.window()]
            assert shown == [("user", None), ("assistant", None), ("tool", "a"), ("tool", "b")]
            await turn.respond(said("done"))
            await other.respond(said("done"))


@asynchronous
async def test_c1_a_thousand_calls_of_one_response_take_their_results_in_bounded_steps():
    """B1: a result costs what is new, beside a look at its own exchange; not the square of its calls."""
    async with MemoryStore() as store:
        talk = Conversation(store, "c", format="openai-chat")
        async with talk.turn("q") as turn:
            calls = await turn.respond(said("", *(f"c{n}" for n in range(1_000))))
            for call in calls:
                await turn.result(call, "r")
            await turn.respond(said("done"))
        assert len(await talk.window(WindowLimits(max_messages=2_000))) == 1_003


@asynchronous
async def test_c2_a_conversation_is_not_read_in_another_format():
    """C2: the wire format never changes; every way of reading says so instead of giving messages of no format."""
    async with MemoryStore() as store:
        async with Conversation(store, "c", format="openai-chat").turn("q") as turn:
            await turn.respond(said("a"))
        other = Conversation(store, "c", format="anthropic")
        for read in (other.window, other.last, other.open_calls):
            with pytest.raises(DecisionHistoryConflict, match="openai-chat"):
                await read()
        for stream in (other.exchanges(), other.entries()):
            with pytest.raises(DecisionHistoryConflict):
                await anext(stream)


@asynchronous
@pytest.mark.parametrize("asked_for", [(), ("window",), ("say",), ("window", "say", "window")])
async def test_c1_a_turn_without_an_answer_is_refused_whatever_was_asked_for(asked_for):
    """C1: an answer that nobody gave to `respond` is told, with a window or without; the same message goes on."""
    async with MemoryStore() as store:
        talk = Conversation(store, "c", format="openai-chat")
        with pytest.raises(PairingViolation, match="`respond`"):
            async with talk.turn("q") as turn:
                for name in asked_for:
                    await (turn.say("more") if name == "say" else turn.window())
        assert not await talk.last()
        assert not (await store.header(talk.key)).token
        async with talk.turn("q") as turn:
            assert [m["content"] for m in await turn.window()] == ["q"]
            await turn.respond(said("a"))
        assert [m["content"] for m in await talk.window()] == ["q", "a"]


@asynchronous
async def test_c1_a_turn_is_left_on_purpose_by_an_exception_of_the_callers():
    """C1: it goes on as it is, with nothing of ours around it; the input waits for the same message."""
    async with MemoryStore() as store:
        talk = Conversation(store, "c", format="openai-chat")
        with pytest.raises(LookupError, match="not today") as raised:
            async with talk.turn("q"):
                raise LookupError("not today")
        assert raised.value.__context__ is None
        assert not await talk.last()


@pytest.mark.parametrize("format_", ["openai-chat", "openai-responses", "anthropic", "gemini"])
@asynchronous
async def test_i22_o15_d08_no_window_leaves_while_a_call_waits(format_):
    """I-22, O-15, D8: no call without its result, no exchange cut; with the last result, or parked, it is there."""
    async with MemoryStore() as store:
        talk = Conversation(store, "c", format=format_)
        body = calling_of(format_, 3)
        async with talk.turn("go") as turn:
            await turn.window()
            calls = await turn.respond(body)
            for position, call in enumerate(calls):
                with pytest.raises(PairingViolation, match=rf"{3 - position} call\(s\) wait.*or park"):
                    await turn.window()
                assert turn.sent == turn.receipt.request, "no request was begun"
                assert len(await talk.window()) == 1, "the look from outside shows the input and no exchange that waits"
                await turn.result(call, f"r{position}")
            window = json.loads((await turn.window()).json)
            assert sum("r0" in json.dumps(m) for m in window) == 1
            (again, _, _) = await turn.respond(body)
            await turn.park(again)
            assert (await turn.window()).messages == window, "the parked exchange alone stays out"
            await turn.respond(body)
            for call in await talk.open_calls():
                if call.exchange != again.exchange:
                    await turn.result(call, "r")


@asynchronous
async def test_c3_d18_a_window_that_outlives_its_turn_tells_nothing_and_records_nothing():
    """C3, D18: a window that still waits for its summary when the turn ends is refused: no event, no summary."""
    events, asked_for, given = [], asyncio.Event(), asyncio.Event()

    async def summarize(**request):
        asked_for.set()
        await given.wait()
        return "what was said"

    async with MemoryStore() as store:
        limits = WindowLimits(max_messages=4, low_water=1.0)
        told = Conversation(
            store, "c", format="openai-chat", limits=limits, summarize=summarize, on_event=events.append
        )
        await told.append(
            [
                m
                for n in range(4)
                for m in ({"role": "user", "content": f"q{n}"}, said(f"a{n}")["choices"][0]["message"])
            ]
        )
        async with told.turn("q") as turn:
            stray = asyncio.create_task(turn.window())
            await asked_for.wait()
            await turn.respond(said("a"))
        given.set()
        with pytest.raises(InvalidOption, match="over"):
            await stray
        assert [event.kind for event in events] == []
        header = await store.header(told.key)
        assert header.state.summary == 0
        assert turn.sent is None


def test_bad_input_51_limits_are_what_they_should_be():
    """Bad input 51: a dict or a number in the place of limits is refused by name, and so is a store of another kind."""
    with pytest.raises(InvalidOption, match="WindowLimits"):
        Conversation(MemoryStore(), "c", format="openai-chat", limits={"max_messages": 4})
    with pytest.raises(InvalidOption, match="on_event"):
        Conversation(MemoryStore(), "c", format="openai-chat", on_event=5)


@pytest.mark.parametrize("stream", ["exchanges", "entries", "store.entries", "store.receipts"])
@asynchronous
async def test_c3_a_stream_ends_where_the_record_ended_when_it_began(stream):
    """Whoever answers each exchange that it reads comes to an end; what was added is in the next stream."""
    async with MemoryStore() as store:
        conversation = Conversation(store, "c", format="openai-chat")
        for number in range(3):
            async with conversation.turn(f"{number}") as turn:
                await turn.respond(said("answer"))

        def begun():
            if stream.startswith("store."):
                return getattr(store, stream.removeprefix("store."))(conversation.key)
            return getattr(conversation, stream)()

        counts = []
        for _ in range(2):
            counts.append(0)
            async for _ in begun():
                counts[-1] += 1
                async with conversation.turn("more") as turn:
                    await turn.respond(said("answer"))
        assert 3 <= counts[0] < counts[1] <= 12 * counts[0]


class Counting(SuspendingJournal):
    """A journal that knows how many commits are under way."""

    under_way = 0
    most = 0

    async def _around(self, method, call):
        self.under_way += method == "commit"
        self.most = max(self.most, self.under_way)
        try:
            return await super()._around(method, call)
        finally:
            self.under_way -= method == "commit"


@asynchronous
async def test_c1_i22_results_of_several_tasks_are_recorded_one_after_the_other():
    """No reply overtakes another's: what a turn knows of its record is what the newest of its commits told."""
    journal = Counting(MemoryJournal())
    conversation = Conversation(JournalStore(journal, namespace="n"), "c", format="openai-chat")
    async with conversation.turn("asks") as turn:
        calls = await turn.respond(said("", "a", "b", "c"))
        await asyncio.gather(*(turn.result(call, call.id) for call in reversed(calls)))
        assert journal.most == 1
        assert contents(await turn.window()) == ["asks", "", "a", "b", "c"]
        await turn.respond(said("answer"))
    order = [json.loads(e.fragment)["content"] async for e in conversation.entries() if e.kind is Kind.RESULT]
    assert order == ["c", "b", "a"]
    await conversation.store.verify(conversation.key)


def behind_a_network(*, lost=None):
    """Return a conversation whose journal suspends at each call, and which loses the reply of one commit."""
    faults = [] if lost is None else [Fault(call=lost, method="commit", after=True)]
    journal = FaultyJournal(SuspendingJournal(MemoryJournal()), faults)
    return Conversation(JournalStore(journal, namespace="n"), "c", format="openai-chat"), journal


def contents(window):
    return [message["content"] for message in window]


async def begun(call, steps):
    """Begin a call in a task of its own and let it go on for so many steps."""
    task = asyncio.ensure_future(call)
    for _ in range(steps):
        await asyncio.sleep(0)
    return task


STEPS_OF_A_COMMIT = 4
"""More than one commit takes to end."""


@asynchronous
async def test_c1_a_window_waits_for_what_another_task_is_recording():
    """An answer and words that are on their way to the store stand in the window that is asked for meanwhile."""
    under_way = 0
    for steps in range(STEPS_OF_A_COMMIT):
        conversation, _ = behind_a_network()
        async with conversation.turn("asks") as turn:
            await turn.window()
            await turn.say("first")
            await turn.respond(said("answer"))
            other = await begun(turn.say("second"), steps)
            under_way += not other.done()
            sent = contents(await turn.window())
            assert sent[:3] == ["asks", "answer", "first"]
            await other
            await turn.respond(said("last"))
        end = ["second", "last"] if "second" in sent else ["last", "second"]
        assert contents(await conversation.window()) == ["asks", "answer", "first", *end]
        await conversation.store.verify(conversation.key)
    assert under_way > 1


@asynchronous
async def test_c1_words_whose_reply_is_lost_under_a_window_are_there_once_when_they_are_said_again():
    """Another task takes its window while they are written; whoever says them gives them again under its request."""
    again = 0
    for steps in range(12):
        conversation, journal = behind_a_network(lost=3)
        async with conversation.turn("asks") as turn:
            await turn.window()
            (call,) = await turn.respond(said("", "a"))
            await turn.result(call, "result")

            async def surely(turn=turn):
                for tries in range(3):
                    try:
                        await turn.say("words")
                    except StorageError:
                        continue
                    return tries
                raise AssertionError("it fails each time")

            speaking = await begun(surely(), steps)
            await turn.window()
            again += await speaking
            await turn.respond(said("answer"))
        assert not journal.left
        assert sorted(contents(await conversation.window())) == sorted(["asks", "", "result", "words", "answer"])
        await conversation.store.verify(conversation.key)
    assert again > 1


class SlowAtFirst(SuspendingJournal):
    """A journal whose first commit takes longer to be made than the next: they go over two connections."""

    commits = 0

    async def _around(self, method, call):
        self.commits += method == "commit"
        if method == "commit" and self.commits == 1:
            for _ in range(40):
                await asyncio.sleep(0)
        return await super()._around(method, call)


@asynchronous
async def test_c1_a_turn_that_would_end_before_another_tasks_words_waits_for_them():
    """They carry its answer, which the end does not have any more: it would be lost."""
    conversation = Conversation(JournalStore(SlowAtFirst(MemoryJournal()), namespace="n"), "c", format="openai-chat")
    async with conversation.turn("asks") as turn:
        await turn.window()
        await turn.respond(said("answer"))
        talk = await begun(turn.say("words"), 2)
        assert not talk.done()
    await talk
    assert contents(await conversation.window()) == ["asks", "answer", "words"]
    await conversation.store.verify(conversation.key)


async def given_again_beside_others(before, behind, lost):
    """
    Say words whose reply is lost, and again while other calls stand in the line; cut that and say them once more.

    Returns whether the second try was cut before it was heard, and how often the words are there in the end.
    """
    conversation, _ = behind_a_network(lost=lost)
    async with conversation.turn("asks") as turn:
        calls = await turn.respond(said("", "a", "b", "c"))
        with pytest.raises(StorageError):
            await turn.say("words")
        await turn.result(calls[0], "first")  # sees that they are written
        others = await begun(asyncio.gather(turn.result(calls[1], "second"), turn.say("x"), turn.say("y")), before)
        again = await begun(turn.say("words"), 1)
        last = await begun(turn.result(calls[2], "third"), 1)
        answer = await begun(turn.respond(said("answer")), behind)
        again.cancel()
        cut = isinstance((await asyncio.gather(again, return_exceptions=True))[0], asyncio.CancelledError)
        await asyncio.gather(others, last, answer)
        if cut:
            await turn.say("words")
    return cut, contents(await conversation.window()).count("words")


@asynchronous
async def test_c1_words_that_wait_to_be_given_again_as_an_answer_comes_are_there_once():
    """Who gave them cannot know whether they are there, and no answer that comes meanwhile makes new ones of them."""
    told = {await given_again_beside_others(before, behind, 2) for before in range(6) for behind in range(8)}
    assert told == {(False, 1), (True, 1)}


@pytest.mark.parametrize("lost", [None, 1], ids=["heard", "unheard"])
@asynchronous
async def test_c1_a_turn_ends_behind_what_another_task_is_recording(lost):
    """Its answer is on its way to the store with words of another task as the block is left; later ones are refused."""
    recorded = 0
    for steps in range(STEPS_OF_A_COMMIT):
        conversation, _ = behind_a_network(lost=lost)
        async with conversation.turn("asks") as turn:
            await turn.window()
            await turn.respond(said("answer"))
            talk = await begun(turn.say("words"), steps)
        told = (await asyncio.gather(talk, return_exceptions=True))[0]
        began = not isinstance(told, InvalidOption)
        recorded += began
        assert isinstance(told, StorageError) is (began and lost is not None)
        assert contents(await conversation.window()) == ["asks", "answer", *(["words"] if began else [])]
        with pytest.raises(InvalidOption, match="over"):
            await turn.say("more")
        await conversation.store.verify(conversation.key)
    assert 0 < recorded < STEPS_OF_A_COMMIT
