"""Ctrl-C at any line of a blocking call: the record old or new, and the conversation usable in the same process."""

from __future__ import annotations

import linecache
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.budgets import budget

import minutebook
from minutebook.sync import Conversation, MemoryStore, SQLiteStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from minutebook.sync import JournalStore

PACKAGE = str(Path(minutebook.__file__).parent)


class Interrupt:
    """
    Raises `KeyboardInterrupt` at the n-th line that runs inside the package, or in those files of it.

    A `with` line that is met again as its block ends is passed over: there a tracer could raise between the block and
    the release of its lock, where the interpreter never looks for signals. So is a `try` line, which does nothing and
    has no place in the block's exception table: raised there, nothing would release the lock. So is the return of what
    is at hand, since signals are looked for at calls and jumps alone.
    """

    def __init__(self, line: int, *within: str) -> None:
        self.line = line
        self.within = tuple([f"{PACKAGE}/{file}" for file in within or ("",)])
        self.lines = 0
        self.at = ""

    def __enter__(self) -> Interrupt:
        sys.settrace(self._enter_frame)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _enter_frame(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(self.within):
            return None
        entered: set[int] = set()

        def count(frame: FrameType, event: str, argument: object) -> Any:
            if event == "line" and not leaves_block(frame, entered):
                self.lines += 1
                if self.lines == self.line:
                    self.at = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                    raise KeyboardInterrupt
            return count

        return count


def leaves_block(frame: FrameType, entered: set[int]) -> bool:
    """Whether a `with` line is met for the second time, or one at all in which nothing can strike."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    if not line.startswith("with "):
        return line == "try:" or re.fullmatch(r"return( \w+| \[\])?", line) is not None
    again = frame.f_lineno in entered
    entered ^= {frame.f_lineno}
    return again


def answer(text: str, *calls: str) -> dict[str, Any]:
    called = [{"id": call, "type": "function", "function": {"name": "f", "arguments": "{}"}} for call in calls]
    message: dict[str, Any] = {"role": "assistant", "content": text}
    return {"choices": [{"message": message | ({"tool_calls": called} if called else {})}]}


def take_a_turn(told: Conversation) -> None:
    with told.turn("two") as turn:
        turn.window()
        (call,) = turn.respond(answer("", "a"))
        turn.result(call, "ok")
        turn.respond(answer("second"))


def append(told: Conversation) -> None:
    told.append([{"role": "user", "content": "two"}, {"role": "assistant", "content": "second"}], id="two")


def transact(told: Conversation) -> None:
    told.store.transact(told.key, lambda record: (record, None))


def read(told: Conversation) -> None:
    told.last(1)
    told.window()
    for _ in told.entries():
        break


def open_store(kind: str, folder: Path) -> JournalStore:
    if kind == "memory":
        return MemoryStore("n")
    return SQLiteStore(folder / "n.sqlite", namespace="n")


def interrupt_at(line: int, kind: str, folder: Path, act: Callable[[Conversation], None], number: int) -> bool:
    """Interrupt `act` at one line, see what is left, and go on; return whether it lived that long."""
    store = open_store(kind, folder)
    told = Conversation(store, f"conversation-{number}", format="openai-chat")
    with told.turn("one") as turn:
        turn.respond(answer("first"))
    before = list(store.entries(told.key))
    strike = Interrupt(line)
    try:
        with strike:
            act(told)
    except KeyboardInterrupt:
        pass
    where = f"line {line}, {strike.at}"
    assert list(store.entries(told.key))[:2] == before, where
    store.verify(told.key)
    try:
        take_a_turn(told)
    except minutebook.MinutebookError as error:
        raise AssertionError(f"{where}: {error}") from error
    header = store.verify(told.key)
    assert not header.token, where
    assert header.attempt is None, where
    assert [message["content"] for message in told.window().messages][-4:] == ["two", "", "ok", "second"], where
    sizes = sum(len(entry.payload) for entry in store.entries(told.key) if entry.kind is not entry.kind.ABANDONED)
    assert header.bytes == sizes, where
    store.close()
    return bool(strike.at)


# Whoever records warnings keeps the coroutine that was interrupted before it began, and with it the turn's holder.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("act", [take_a_turn, append, transact, read], ids=lambda act: act.__name__)
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_b11_an_interrupt_at_any_line_leaves_old_or_new(
    kind: str, act: Callable[[Conversation], None], tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """Line by line through the package, with steps that have no common measure with its loops; all lines to prove."""
    tmp_path.chmod(0o700)
    step = budget(7 if kind == "memory" else 53, 1)
    line = 1
    while interrupt_at(line, kind, tmp_path, act, line):
        line += step
    assert line > 20
    figure(f"{act.__name__} over {kind}: interrupted at {line // step:,} of about {line:,} lines")


def interrupted_steps(line: int, within: tuple[str, ...], again: int = 0) -> tuple[list[str], int]:
    """
    Interrupt a turn at one line, and give again the step that it struck; return what is told then, and the lines.

    Given again it is interrupted once more, at the line `again` of it, and given for a third time.
    """
    told = Conversation(MemoryStore("n"), "c", format="openai-chat")
    made: list[Any] = []
    strike, second = Interrupt(line, *within), Interrupt(again, *within)

    def surely(step: Callable[[], Any]) -> Any:
        for struck in (strike, second):
            try:
                with struck:
                    return step()
            except KeyboardInterrupt:
                continue
        return step()

    with told.turn("asks") as turn:
        surely(turn.window)
        made += surely(lambda: turn.respond(answer("", "a", "b")))
        surely(lambda: turn.result(made[0], "one"))
        surely(lambda: turn.say("be quick"))
        surely(lambda: turn.result(made[1], "two"))
        surely(turn.window)
        surely(lambda: turn.say("by the way"))
        made += surely(lambda: turn.respond(answer("", "c")))
        surely(lambda: turn.result(made[2], "three"))
        surely(lambda: turn.respond(answer("first")))
        surely(turn.window)
    told.store.verify(told.key)
    return [str(message["content"]) for message in told.window()], strike.lines


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_i18_i08_a_step_of_a_turn_that_is_interrupted_and_given_again_is_there_once(
    figure: Callable[[str], None],
) -> None:
    """I-18: also behind its commit, before its caller has heard of that; each step up to its own last line."""
    within, step = ("turn.py", "history/hold.py", "reserving.py"), budget(7, 1)
    line, lines = 1, 1
    while line <= lines:
        contents, lines = interrupted_steps(line, within)
        assert contents == ["asks", "", "one", "two", "be quick", "", "three", "by the way", "first"], line
        line += step
    assert lines > 200
    figure(f"interrupted at {lines // step:,} of {lines:,} lines")


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_i18_i08_a_step_that_is_interrupted_twice_is_there_once(figure: Callable[[str], None]) -> None:
    """I-18: the repeat too, while it finds out how the first try ended; behind its own end no signal can strike."""
    within, step = ("turn.py", "history/hold.py", "reserving.py"), budget(61, 1)
    tried, lines = 0, interrupted_steps(0, within)[1]
    for line in range(1, lines, step):
        for again in range(1, 80, budget(4, 1)):
            contents, _ = interrupted_steps(line, within, again)
            assert contents == ["asks", "", "one", "two", "be quick", "", "three", "by the way", "first"], (line, again)
            tried += 1
    figure(f"{tried:,} pairs of {lines:,} lines")
