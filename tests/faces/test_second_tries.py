"""
What a commit that failed once had taken along, given again: what was said, the summary that a request showed, the mark
of a late result. All of it is recorded with the answer, once, as if nothing had failed (promises I-8, I-18).
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from tests.stores.labs import BOUNDED, KINDS, chat, open_journal, said

import minutebook.sync
from minutebook.errors import DecisionHistoryStorageFailed
from minutebook.model.bounds import StoreBounds, WindowLimits
from minutebook.model.events import HistoryAbandoned
from minutebook.ports import STREAM_PAGE
from minutebook.testing import Fault, FaultyJournal, drive

SIDES = pytest.mark.parametrize("after", [False, True], ids=["unwritten", "written"])


def failing_once(journal: Any, after: bool, **options: Any) -> tuple[Any, FaultyJournal]:
    """Return a conversation whose first commit under a reservation fails, before or after it was written."""
    faulty = FaultyJournal(journal, [Fault(call=1, method="commit", after=after)])
    return chat(faulty, **options), faulty


def kinds_in(journal: Any, conversation: Any) -> list[str]:
    return [entry.kind.name for entry in drive(journal.oldest(conversation.key, 0, STREAM_PAGE))]


@SIDES
@pytest.mark.parametrize("kind", KINDS)
def test_i08_i18_what_was_said_before_an_answer_that_failed_once_is_recorded_with_it(
    kind: str, after: bool, tmp_path: Any
) -> None:
    """What was said under way waits for its answer, also where that is given twice; it is there once, behind it."""
    journal = open_journal(kind, tmp_path)
    conversation, faulty = failing_once(journal, after)

    async def story() -> None:
        async with conversation.turn("asks") as turn:
            await turn.window()
            await turn.say("said under way")
            with pytest.raises(DecisionHistoryStorageFailed):
                await turn.respond(said("", "call-1"))
            (call,) = await turn.respond(said("", "call-1"))
            await turn.result(call, "one")
            await turn.window()
            await turn.respond(said("answer"))

    drive(story())
    assert faulty.left == ()
    assert kinds_in(journal, conversation) == ["INPUT", "RESPONSE", "INJECTION", "RESULT", "RESPONSE"]
    texts = [message["content"] for message in drive(chat(journal).window())]
    assert texts == ["asks", "", "one", "said under way", "answer"]


@SIDES
@pytest.mark.parametrize("kind", KINDS)
def test_d18_i08_the_summary_that_a_request_showed_is_recorded_with_its_answer_given_again(
    kind: str, after: bool, tmp_path: Any
) -> None:
    """D18: the callback is asked once, and its summary stands once, before the answer that was made behind it."""
    journal, asked = open_journal(kind, tmp_path), []

    def summarize(*, previous_summary: str | None, turns: Any, max_bytes: int) -> str:
        asked.append(len(turns))
        return "what was before"

    limits = WindowLimits(max_messages=6, max_bytes=4_000, low_water=0.5)
    options: dict[str, Any] = {"limits": limits, "summarize": summarize, "max_summary_bytes": 100}

    async def answered(number: int) -> None:
        async with chat(journal, **options).turn(f"question {number}") as turn:
            await turn.window()
            await turn.respond(said(f"answer {number}"))

    for number in range(3):
        drive(answered(number))
    assert asked == []
    conversation, faulty = failing_once(journal, after, **options)

    async def story() -> None:
        async with conversation.turn("asks") as turn:
            assert b"what was before" in (await turn.window()).json
            with pytest.raises(DecisionHistoryStorageFailed):
                await turn.respond(said("", "call-1"))
            (call,) = await turn.respond(said("", "call-1"))
            await turn.result(call, "one")
            assert b"what was before" in (await turn.window()).json
            await turn.respond(said("answer"))

    drive(story())
    assert faulty.left == ()
    assert kinds_in(journal, conversation)[6:] == ["INPUT", "SUMMARY", "RESPONSE", "RESULT", "RESPONSE"]
    assert len(asked) == 1
    drive(conversation.store.verify(conversation.key))


@pytest.mark.parametrize("late", [False, True], ids=["control, nothing comes in", "a late result"])
def test_d26_thinking_behind_a_late_result_that_it_did_not_see_is_never_sent(late: bool) -> None:
    """
    D26: a parked call's result arrives while a request is under way. It stands before the answer from then on, which
    was made without it, so that answer's thinking is bound to what no window shows any more.
    """
    conversation = minutebook.sync.Conversation(
        minutebook.sync.MemoryStore("n"), "c", format="anthropic", reasoning="strip"
    )
    use = {"type": "tool_use", "id": "call-1", "name": "work", "input": {}}
    thought = {"type": "thinking", "thinking": "so", "signature": "SIGNED"}
    with conversation.turn("first") as turn:
        (call,) = turn.respond({"role": "assistant", "content": [use]})
        turn.park(call)
        turn.window()
        turn.respond({"role": "assistant", "content": [{"type": "text", "text": "it takes a while"}]})
    with conversation.turn("second") as turn:
        turn.window()
        if late:
            turn.result(conversation.open_calls()[0], "late")
        turn.respond({"role": "assistant", "content": [thought, {"type": "text", "text": "answer"}]})
    window = conversation.window()
    assert window.sent.stripped == int(late)
    assert (b"SIGNED" in window.json) is not late
    assert b"answer" in window.json
    assert (b"late" in window.json) is late


def told_by(conversation: Any, story: Any) -> tuple[list[Any], list[str]]:
    """Return what observers are told of abandoned attempts, and the notes on the error in which the story ends."""
    events: list[Any] = []
    conversation.history.emit = events.append
    with pytest.raises(ZeroDivisionError) as failed:
        drive(story(conversation))
    return [event for event in events if isinstance(event, HistoryAbandoned)], getattr(failed.value, "__notes__", [])


async def fails(conversation: Any) -> None:
    async with conversation.turn("asks") as turn:
        await turn.window()
        await turn.respond(said("an answer that is kept until the turn ends"))
        raise ZeroDivisionError


@pytest.mark.parametrize("given_back", [False, True], ids=["the write fails", "control, it does not"])
@pytest.mark.parametrize("kind", KINDS)
def test_d04_an_attempt_is_told_as_abandoned_when_its_mark_is_in_the_record(
    kind: str, given_back: bool, tmp_path: Any
) -> None:
    """D4: an event never tells of something that is not so; without the mark a note on the error says what to do."""
    journal = open_journal(kind, tmp_path)
    faults = [] if given_back else [Fault(call=1, method="commit")]
    conversation = chat(FaultyJournal(journal, faults))
    events, notes = told_by(conversation, fails)
    assert conversation.history.journal.left == ()
    assert [event.first_abandoned for event in events] == [2] * given_back
    assert ["recover the conversation" in note for note in notes] == [True] * (not given_back)
    assert ("ABANDONED" in kinds_in(journal, conversation)) is given_back


def test_d04_what_is_given_back_without_an_attempt_is_told_of_nobody() -> None:
    """D4: whoever compares a whole transcript holds the conversation as well, and leaves no mark."""
    journal = open_journal("RAM", None)  # type: ignore[arg-type]
    conversation, faulty = failing_once(journal, False)

    async def story(conversation: Any) -> None:
        with pytest.raises(DecisionHistoryStorageFailed):
            await conversation.append([{"role": "user", "content": "asks"}], whole=True)
        raise ZeroDivisionError

    assert told_by(conversation, story) == ([], [])
    assert (faulty.left, kinds_in(journal, conversation)) == ((), [])


@pytest.mark.parametrize("kind", BOUNDED)
def test_d04_d07_an_attempt_without_room_for_what_came_in_is_told_as_abandoned_too(kind: str, tmp_path: Any) -> None:
    """D7: the mark alone is recorded where the answer does not fit; it is a mark, and observers are told of it."""
    journal = open_journal(kind, tmp_path, StoreBounds(max_retained_bytes=500))
    conversation = chat(journal)

    async def story(conversation: Any) -> None:
        async with conversation.turn("asks") as turn:
            await turn.window()
            await turn.respond(said("x" * 1_000))
            raise ZeroDivisionError

    events, notes = told_by(conversation, story)
    assert kinds_in(journal, conversation) == ["INPUT", "ABANDONED"]
    assert [event.first_abandoned for event in events] == [2]
    assert notes == []


@pytest.mark.parametrize("kind", KINDS)
def test_c3_i08_a_receipt_names_the_request_of_its_own_answer_whichever_reply_is_lost(kind: str, tmp_path: Any) -> None:
    """C3: a request is answered once; an answer for which no window was asked has none, also behind a lost reply."""
    answered: dict[int, list[bool]] = {}
    for lost in (0, 1, 2, 3):
        journal = open_journal(kind, tmp_path, name=f"{lost}.db")
        faults = [Fault(call=lost, method="commit", after=True)] if lost else []
        conversation = chat(FaultyJournal(journal, faults))

        async def again(step: Any) -> Any:
            with contextlib.suppress(DecisionHistoryStorageFailed):
                return await step()
            return await step()

        async def story(conversation: Any = conversation, again: Any = again) -> None:
            async with conversation.turn("asks") as turn:
                await turn.window()
                with contextlib.suppress(DecisionHistoryStorageFailed):
                    await turn.respond(said("", "call-1"))
                (call,) = await conversation.open_calls()
                await again(lambda: turn.result(call, "one"))
                await turn.respond(said("answer without a window"))
                await again(turn.window)
                await turn.respond(said("answer"))

        drive(story())
        assert conversation.history.journal.left == ()
        receipts = drive(journal.receipts(conversation.key, 0, 10))
        answered[lost] = [receipt.request is not None for receipt in receipts]
    assert list(answered.values()) == [[False, True, False, False, True]] * 4
