"""
A turn of which a commit ends unheard: cut under way, or its reply lost. Nothing is lost, and nothing is there twice.

Whoever is cancelled, or is told that storage failed, cannot know whether the commit was written. The turn looks, and
goes on from what there is (promises I-8, I-18; bad inputs 61, 62).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.stores.labs import KINDS, chat, open_journal, said

import minutebook.sync
from minutebook import turn as turn_module
from minutebook.errors import DecisionHistoryStorageFailed, DecisionHistoryStoreFull, InvalidOption, PairingViolation
from minutebook.ports import STREAM_PAGE
from minutebook.stores.journal import JournalStore
from minutebook.sync.stores import core_of
from minutebook.testing import Cut, Fault, FaultyJournal, SuspendingJournal, cancel_at, drive


def contents(conversation: Any) -> list[Any]:
    return [message["content"] for message in drive(conversation.window())]


async def once_lost(conversation: Any, call: int, after: bool) -> None:
    """A turn of which the commit number `call` fails, before or after it was written; each step is given again."""
    whole = conversation.history.journal
    conversation.history.journal = faulty = FaultyJournal(whole, [Fault(call=call, method="commit", after=after)])

    async def surely(step: Any) -> Any:
        with contextlib.suppress(DecisionHistoryStorageFailed):
            return await step()
        return await step()

    async with conversation.turn("asks") as turn:
        await surely(turn.window)
        first, second = await surely(lambda: turn.respond(said("", "call-1", "call-2")))
        await surely(lambda: turn.result(second, "two"))
        await surely(lambda: turn.say("and be quick"))
        await surely(lambda: turn.result(first, "one"))
        await surely(turn.window)
        await surely(lambda: turn.respond(said("first answer")))
        await surely(turn.window)
        await surely(lambda: turn.say("more"))
        await surely(lambda: turn.respond(said("second answer")))
        await surely(lambda: turn.respond(said("third answer")))
        await surely(turn.window)
        await surely(lambda: turn.respond(said("last answer")))
    assert not faulty.left, "the fault never struck"


COMMITS = 8
"""How many commits that turn makes; the last one settles it."""
STEPS = ["asks", "", "one", "two", "and be quick", "first answer", "second answer", "more"]
TOLD = [*STEPS, "third answer", "last answer"]


@pytest.mark.parametrize("after", [False, True], ids=["unwritten", "written"])
@pytest.mark.parametrize("kind", KINDS)
def test_i18_i08_a_step_given_again_after_a_lost_reply_is_recorded_once(kind: str, after: bool, tmp_path: Any) -> None:
    """Whichever commit of a turn fails, before or after it was written: each step given again is there once."""
    for call in range(1, COMMITS + 1):
        conversation = chat(open_journal(kind, tmp_path, name=f"{after}-{call}"))
        try:
            drive(once_lost(conversation, call, after))
        except DecisionHistoryStorageFailed:
            # The last commit settles the turn: unwritten, the block ends with the error, and no window shows the turn.
            assert (call, after) == (COMMITS, False)
            assert contents(conversation) == []
            continue
        assert contents(conversation) == TOLD, call
        drive(conversation.store.verify(conversation.key))


def test_i18_control_without_the_look_a_written_answer_is_there_twice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """Control: a turn that takes every failed commit for unwritten records an answer twice."""
    monkeypatch.setattr(turn_module, "may_be_written", lambda error: False)
    conversation = chat(open_journal("RAM", tmp_path))
    with contextlib.suppress(Exception):
        drive(once_lost(conversation, 5, True))
    assert contents(conversation).count("first answer") == 2


@pytest.mark.parametrize("cut", [Cut.CANCELLED, Cut.INTERRUPTED], ids=lambda cut: cut.value)
@pytest.mark.parametrize("kind", KINDS)
def test_i18_a_step_cut_at_any_await_can_be_given_again(kind: str, cut: Cut, tmp_path: Any) -> None:
    """I-18: a window, a result and an answer, each cut at each await and then given again, within the same turn."""

    async def cut_at(step: int, name: str) -> bool:
        journal = open_journal(kind, tmp_path, name=name)
        conversation = chat(SuspendingJournal(journal))
        struck = False
        async with conversation.turn("asks") as turn:
            (call,) = await turn.respond(said("", "call-1"))
            for act in (
                lambda: turn.result(call, "one"),
                lambda: turn.respond(said("first answer")),
                turn.window,
                lambda: turn.respond(said("second answer")),
            ):
                if not struck:
                    ended = await cancel_at(act, step, cut)
                    struck = ended.struck
                    if not struck:
                        assert ended.error is None
                        continue
                await act()
        assert contents(chat(journal)) == ["asks", "", "one", "first answer", "second answer"], (name, step)
        await conversation.store.verify(conversation.key)
        return struck

    step = 1
    while drive(cut_at(step, f"{cut.value}-{step}")):
        step += 1
    assert step > 2


def test_i18_of_responses_given_at_once_none_is_lost(tmp_path: Any) -> None:
    """Tasks that answer side by side: each answer is recorded, once, in some order."""
    tmp_path.chmod(0o700)

    async def run() -> list[Any]:
        async with minutebook.SQLiteStore(tmp_path / "book.sqlite", namespace="n") as store:
            conversation = minutebook.Conversation(store, "c", format="openai-chat")
            async with conversation.turn("asks") as turn:
                await turn.respond(said("0"))
                await asyncio.gather(*(turn.respond(said(f"{number}")) for number in range(1, 6)))
            return [message["content"] for message in await conversation.window()]

    assert sorted(asyncio.run(run())) == ["0", "1", "2", "3", "4", "5", "asks"]


@pytest.fixture
def changing_threads() -> Iterator[None]:
    """Have threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("changing_threads")
@pytest.mark.parametrize("looped", [False, True], ids=["no loop", "under a loop"])
def test_i18_results_of_several_threads_leave_a_window_that_is_right(looped: bool) -> None:
    """Threads that give their results at once: the window has all of them, and what one says is before the end."""
    store = minutebook.sync.MemoryStore("n")

    def story() -> None:
        for number in range(300):
            conversation = minutebook.sync.Conversation(store, f"{number}", format="openai-chat")
            with conversation.turn("asks") as turn:
                calls = turn.respond(said("", "call-1", "call-2", "call-3", "call-4"))
                threads = [threading.Thread(target=turn.result, args=(call, "r")) for call in calls]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                talk = threading.Thread(target=turn.say, args=("meanwhile",))
                talk.start()
                assert len(turn.window()) in (6, 7)
                talk.join()
                turn.respond(said("answers"))
            assert len(conversation.window()) == 8

    async def under_a_loop() -> None:
        story()

    asyncio.run(under_a_loop()) if looped else story()


def test_i18_a_thread_that_comes_as_the_turn_ends_is_told_and_waits_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It saw the turn held, and finds it over when its call comes into the line."""
    conversation = minutebook.sync.Conversation(minutebook.sync.MemoryStore("n"), "c", format="openai-chat")
    seen, over, told = threading.Event(), threading.Event(), []
    look = turn_module.Turn._held

    def looked(turn: Any) -> Any:
        hold = look(turn)
        if threading.current_thread() is late and not seen.is_set():
            seen.set()
            over.wait(10)
        return hold

    def speak() -> None:
        with pytest.raises(InvalidOption, match="the turn is over"):
            turn.say("too late")
        told.append(True)

    late = threading.Thread(target=speak, daemon=True)
    monkeypatch.setattr(turn_module.Turn, "_held", looked)
    with conversation.turn("asks") as turn:
        turn.respond(said("answer"))
        late.start()
        assert seen.wait(10)
    over.set()
    late.join(10)
    assert told == [True]
    assert len(conversation.window()) == 2


@pytest.mark.usefixtures("changing_threads")
def test_i18_of_answers_and_words_that_threads_give_at_once_none_is_lost() -> None:
    """Each is recorded, once, in some order; of two answers none takes the other's place before its commit."""
    store = minutebook.sync.MemoryStore("n")
    for number in range(300):
        conversation = minutebook.sync.Conversation(store, f"{number}", format="openai-chat")
        with conversation.turn("asks") as turn:
            turn.window()
            threads = [threading.Thread(target=turn.respond, args=(said(f"answer {each}"),)) for each in range(3)]
            threads += [threading.Thread(target=turn.say, args=(f"words {each}",)) for each in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        told = [message["content"] for message in conversation.window()]
        assert sorted(told) == [*(f"answer {n}" for n in range(3)), "asks", *(f"words {n}" for n in range(3))]


@pytest.fixture
def interleaved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the other threads run whenever a turn looks at what was said."""

    def look(turn: Any) -> Any:
        said = vars(turn)["_said"]
        time.sleep(0.0005)
        return said

    monkeypatch.setattr(
        turn_module.Turn, "_said", property(look, lambda turn, said: vars(turn).update(_said=said)), False
    )


@pytest.mark.usefixtures("interleaved")
@pytest.mark.parametrize("written", [False, True], ids=["refused", "reply lost"])
def test_i18_what_threads_say_is_there_once_beside_a_response_that_fails(written: bool) -> None:
    """What the failed commit took is put back before another thread's words are added, and is not what was written."""
    for number in range(15):
        error = DecisionHistoryStorageFailed("lost") if written else DecisionHistoryStoreFull("full")
        faults = [Fault(call=1, method="commit", after=written, error=lambda error=error: error)]
        store = minutebook.sync.MemoryStore("n")
        core_of(store).journal = FaultyJournal(core_of(store).journal, faults)
        conversation = minutebook.sync.Conversation(store, f"{number}", format="openai-chat")
        with conversation.turn("asks") as turn:
            turn.window()
            turn.say("before")
            threads = [threading.Thread(target=turn.say, args=(f"words {each}",)) for each in range(3)]

            def respond(turn: Any = turn) -> None:
                with contextlib.suppress(DecisionHistoryStorageFailed, DecisionHistoryStoreFull):
                    turn.respond(said("", "call-1"))

            threads.insert(number % 4, threading.Thread(target=respond))
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for call in conversation.open_calls() or turn.respond(said("", "call-1")):
                turn.result(call, "one")
            turn.window()
            turn.respond(said("answer"))
        told = [message["content"] for message in conversation.window()]
        assert sorted(told) == ["", "answer", "asks", "before", "one", "words 0", "words 1", "words 2"]


@pytest.mark.parametrize("lost", [(0,), (1,), (2,), (0, 1), (0, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("after", [False, True], ids=["unwritten", "written"])
@pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
def test_c1_i08_results_that_come_again_in_any_order_are_there_once(
    lost: tuple[int, ...], after: bool, together: bool, tmp_path: Any
) -> None:
    """Some of three replies are lost, others come in between, and then all results come again: each is there once."""
    whole = open_journal("RAM", tmp_path)
    conversation = chat(SuspendingJournal(whole))
    faults = [Fault(call=2 + number, method="commit", after=after) for number in lost]
    conversation.history.journal = FaultyJournal(conversation.history.journal, faults)
    heard: list[bool] = []

    async def story() -> None:
        async with conversation.turn("asks") as turn:
            calls = await turn.respond(said("", "call-0", "call-1", "call-2"))
            steps = [turn.result(call, call.id) for call in calls]
            if together:
                heard.extend([error is None for error in await asyncio.gather(*steps, return_exceptions=True)])
            else:
                for step in steps:
                    with contextlib.suppress(DecisionHistoryStorageFailed):
                        await step
            for call in reversed(calls):
                await turn.result(call, call.id)
                await turn.result(call, call.id)
            with pytest.raises(PairingViolation):
                await turn.result(calls[0], "another")
            await turn.respond(said("answer"))

    asyncio.run(story())
    assert not conversation.history.journal.left, "a fault never struck"
    assert heard == ([number not in lost for number in range(3)] if together else [])
    assert sorted(contents(chat(whole))[2:]) == ["answer", "call-0", "call-1", "call-2"]
    drive(chat(whole).store.verify(conversation.key))


def journal_with(whole: Any, *plan: Fault) -> Any:
    """A conversation over a journal that fails as planned."""
    conversation = chat(whole)
    conversation.history.journal = FaultyJournal(whole, plan)
    return conversation


def test_i18_an_answer_that_failed_and_came_again_is_under_the_mark_once(tmp_path: Any) -> None:
    """What the turn lost with the commit before it is the same that it keeps back now."""
    whole = open_journal("RAM", tmp_path)
    conversation = journal_with(whole, Fault(call=1, method="commit"))

    async def story() -> None:
        async with conversation.turn("asks") as turn:
            await turn.respond(said("first"))
            with pytest.raises(DecisionHistoryStorageFailed):
                await turn.respond(said("second"))
            await turn.respond(said("second"))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        drive(story())
    kept = [entry.payload for entry in drive(recorded(conversation))]
    assert [sum(text in payload for payload in kept) for text in (b"first", b"second")] == [1, 1]


async def recorded(conversation: Any) -> list[Any]:
    return [entry async for entry in conversation.store.entries(conversation.key)]


@pytest.mark.parametrize("another", [False, True], ids=["", "another response"])
def test_i18_what_was_said_before_a_response_that_was_lost_and_not_given_again_is_there_once(
    another: bool, tmp_path: Any
) -> None:
    """The caller looks at the calls instead of repeating the response: both are in the record, and nothing is twice."""
    whole = open_journal("RAM", tmp_path)
    conversation = journal_with(whole, Fault(call=1, method="commit", after=True))

    async def story() -> None:
        async with conversation.turn("asks") as turn:
            await turn.window()
            await turn.say("said once")
            with pytest.raises(DecisionHistoryStorageFailed):
                await turn.respond(said("", "call-1"))
            with pytest.raises(PairingViolation):
                await (turn.respond(said("something else")) if another else turn.window())
            (call,) = await conversation.open_calls()
            await turn.result(call, "one")
            assert [message["content"] for message in await turn.window()].count("said once") == 1
            await turn.respond(said("answer"))

    drive(story())
    assert contents(chat(whole)).count("said once") == 1


@pytest.mark.parametrize("again", [False, True], ids=["control, not again", "again"])
def test_c1_d26_the_same_result_again_leaves_what_was_said_behind_the_answer(again: bool, tmp_path: Any) -> None:
    """C1: the model has not seen it; a result that is known already writes nothing, and nothing else with it."""
    whole = open_journal("RAM", tmp_path)

    async def story() -> None:
        async with chat(whole).turn("asks") as turn:
            (call,) = await turn.respond(said("", "call-1"))
            await turn.result(call, "one")
            await turn.window()
            await turn.say("by the way")
            if again:
                await turn.result(call, "one")
            await turn.respond(said("answer"))

    drive(story())
    assert contents(chat(whole)) == ["asks", "", "one", "answer", "by the way"]


@pytest.mark.parametrize("before", [False, True], ids=["nothing said before", "said before"])
@pytest.mark.parametrize("between", ["nothing", "window", "say", "window, say", "say, window"])
def test_c1_i08_a_response_whose_reply_was_lost_is_taken_again_whatever_came_in_between(
    between: str, before: bool, tmp_path: Any
) -> None:
    """C1, I-8: the response is there once, its calls come back, and each message is there once, behind it."""
    whole = open_journal("RAM", tmp_path)
    conversation = journal_with(whole, Fault(call=1, method="commit", after=True))

    async def story() -> None:
        async with conversation.turn("asks") as turn:
            await turn.window()
            if before:
                await turn.say("a")
            with pytest.raises(DecisionHistoryStorageFailed):
                await turn.respond(said("", "call-1"))
            for step in between.split(", "):
                if step == "window":
                    with pytest.raises(PairingViolation):
                        await turn.window()
                elif step == "say":
                    await turn.say("b")
            (call,) = await turn.respond(said("", "call-1"))
            with pytest.raises(PairingViolation):
                await turn.respond(said("", "call-1"))  # a third one is another one
            await turn.result(call, "one")
            await turn.window()
            await turn.respond(said("answer"))

    drive(story())
    messages = ["a"] * before + ["b"] * ("say" in between)
    assert contents(chat(whole)) == ["asks", "", "one", *messages, "answer"]
    drive(chat(whole).store.verify(conversation.key))


def test_i18_a_look_that_is_cancelled_too_leaves_an_answer_there_once(tmp_path: Any) -> None:
    """The reply to the commit of a kept answer was lost, and whoever looks for it is cancelled in the middle."""
    whole = open_journal("RAM", tmp_path)
    conversation = journal_with(
        whole,
        Fault(call=1, method="commit", after=True),
        Fault(call=1, method="header", error=asyncio.CancelledError),
    )

    async def story() -> None:
        async with conversation.turn("asks") as turn:
            await turn.window()
            await turn.respond(said("ANSWER"))
            with pytest.raises(DecisionHistoryStorageFailed):
                await turn.window()
            await turn.window()

    with pytest.raises(asyncio.CancelledError):
        drive(story())
    assert conversation.history.journal.left == ()
    stored = drive(whole.oldest(conversation.key, 0, STREAM_PAGE))
    assert [entry.kind.name for entry in stored] == ["INPUT", "RESPONSE", "ABANDONED"]


@pytest.mark.parametrize("again", list(itertools.permutations("abc")), ids="".join)
@pytest.mark.parametrize("written", list(itertools.product([False, True], repeat=3)), ids=str)
def test_i08_i18_messages_that_were_lost_together_are_there_once(
    written: tuple[bool, ...], again: tuple[str, ...], tmp_path: Any
) -> None:
    """I-8: whichever of them was written, and in whichever order they come again; one that comes later is another."""
    whole = open_journal("RAM", tmp_path)
    plan = [Fault(call=1 + number, method="commit", after=after) for number, after in enumerate(written)]
    conversation = journal_with(SuspendingJournal(whole), *plan)

    async def story() -> None:
        async with conversation.turn("asks") as turn:
            lost = await asyncio.gather(*map(turn.say, "abc"), return_exceptions=True)
            assert all(type(error) is DecisionHistoryStorageFailed for error in lost)
            for message in again:
                await turn.say(message)
            await turn.say("new")
            await turn.say("a")
            await turn.respond(said("answer"))

    asyncio.run(story())
    assert conversation.history.journal.left == ()
    first = contents(chat(whole))[1:4]
    assert sorted(first) == ["a", "b", "c"]
    assert contents(chat(whole)) == ["asks", *first, "new", "a", "answer"]
    drive(chat(whole).store.verify(conversation.key))


@pytest.mark.parametrize("step", range(12))
def test_i08_i18_a_message_that_comes_again_beside_a_new_one_is_there_once(step: int, tmp_path: Any) -> None:
    """I-8: at whichever point of the repetition the other begins: it makes nothing new of what is under way already."""
    whole = open_journal("RAM", tmp_path)
    plan = [Fault(call=1, method="commit", after=True), Fault(call=2, method="commit")]
    conversation = journal_with(SuspendingJournal(whole), *plan)

    async def story() -> None:
        async with conversation.turn("asks") as turn:
            await asyncio.gather(turn.say("a"), turn.say("b"), return_exceptions=True)
            again = asyncio.create_task(turn.say("a"))
            for _ in range(step):
                await asyncio.sleep(0)
            await turn.say("new")
            await again
            await turn.respond(said("answer"))

    asyncio.run(story())
    assert conversation.history.journal.left == ()
    assert sorted(contents(chat(whole))) == ["a", "answer", "asks", "new"]


def kinds(whole: Any) -> list[str]:
    return [entry.kind.name for entry in drive(whole.oldest(chat(whole).key, 0, STREAM_PAGE))]


def test_c1_i18_responses_that_were_lost_one_after_the_other_are_under_the_mark_as_far_as_there_is_a_place(
    tmp_path: Any,
) -> None:
    """Of two responses with calls only one has a place in an exchange; the one without calls has its own."""
    whole = open_journal("RAM", tmp_path)
    conversation = journal_with(whole, *[Fault(call=number, method="commit") for number in (1, 2, 3)])

    async def story() -> None:
        async with conversation.turn("asks") as turn:
            for body in (said("", "call-1"), said("", "call-2")):
                with pytest.raises(DecisionHistoryStorageFailed):
                    await turn.respond(body)
            await turn.respond(said("answer"))
            with pytest.raises(DecisionHistoryStorageFailed):
                await turn.window()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        drive(story())
    assert conversation.history.journal.left == ()
    assert kinds(whole) == ["INPUT", "RESPONSE", "RESPONSE", "ABANDONED"]
    assert drive(JournalStore(whole, namespace="lab").totals()).reserved == 0


@pytest.mark.parametrize("after", [False, True], ids=["not written", "reply lost"])
@pytest.mark.parametrize("calls", [(), ("call-1",)], ids=["without calls", "with calls"])
def test_c1_i18_what_was_lost_and_came_again_is_under_the_mark_once(
    calls: tuple[str, ...], after: bool, tmp_path: Any
) -> None:
    """A response and what was said before it, given again after their commit failed, in a turn that fails later."""
    whole = open_journal("RAM", tmp_path)
    conversation = journal_with(whole, Fault(call=1, method="commit", after=after))

    async def story() -> None:
        async with conversation.turn("asks") as turn:
            await turn.window()
            await turn.say("and be quick")
            for step in (lambda: turn.respond(said("answer", *calls)), turn.window)[: 1 if calls else 2]:
                try:
                    await step()
                except DecisionHistoryStorageFailed:
                    await step()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        drive(story())
    assert conversation.history.journal.left == ()
    assert sorted(kinds(whole)) == ["ABANDONED", "INJECTION", "INPUT", "RESPONSE"]


def test_c1_i18_a_response_that_was_refused_is_no_one_s_to_find(tmp_path: Any) -> None:
    """Control: what the record refuses is not recorded behind its caller's back."""
    whole = open_journal("RAM", tmp_path)

    async def story() -> None:
        async with chat(whole).turn("asks") as turn:
            await turn.respond(said("", "call-1"))
            await turn.respond(said("", "call-2"))

    with pytest.raises(PairingViolation):
        drive(story())
    assert kinds(whole) == ["INPUT", "RESPONSE", "ABANDONED"]


@pytest.mark.parametrize("after", [False, True], ids=["not written", "reply lost"])
def test_c1_i08_a_turn_without_a_message_is_begun_again_under_its_id(after: bool, tmp_path: Any) -> None:
    """An input that `append` recorded, an attempt that came to nothing, and the same id again."""
    whole = open_journal("RAM", tmp_path)
    drive(chat(whole).append([{"role": "user", "content": "asks"}]))
    conversation = journal_with(whole, Fault(call=2, method="commit", after=after))

    async def attempt(each: Any) -> None:
        async with each.turn(id="once") as turn:
            await turn.window()
            await turn.respond(said("", "call-1"))
            raise ZeroDivisionError

    with pytest.raises((ZeroDivisionError, DecisionHistoryStorageFailed)):
        drive(attempt(conversation))

    async def again() -> None:
        async with chat(whole).turn(id="once") as turn:
            await turn.window()
            await turn.respond(said("answer"))

    drive(again())
    assert contents(chat(whole)) == ["asks", "answer"]
    with pytest.raises(PairingViolation):
        drive(again())
