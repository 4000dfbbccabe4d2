"""
Observers that fail, over every provider: an event that is told badly changes no request, no record and no outcome.

A hook is the host's. Whatever error it raises is kept from the step; what ends a task or a process passes through, and
then the step is there whole or not at all, and the program goes on from it.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.budgets import budget
from tests.faces.strict import KINDS, Host, Life, decisions, generated, messages_of

from minutebook import ContextWindow
from minutebook.errors import DecisionHistoryBusy
from minutebook.history import History
from minutebook.testing import ProviderFake

WINDOW = {"context": ContextWindow(context_window_tokens=1_200, input_token_multiplier=1, safety_margin_tokens=0)}
names = pytest.mark.parametrize("name", list(KINDS))


WORDS = re.compile(r"Task \d|content of \w+|I look|They looked|Permit all.{0,30}?\(\d+\)")


class Hook:
    """Notes the kind of each event, and raises at all of them, or at one."""

    def __init__(self, raised: BaseException | None = None, at: int = 0) -> None:
        self.raised, self.at = raised, at
        self.kinds: list[str] = []

    def __call__(self, event: Any) -> None:
        self.kinds.append(event.kind)
        if self.raised is not None and (not self.at or len(self.kinds) == self.at):
            raise self.raised


def live(name: str, path: Path, hook: Hook, tasks: int = 2) -> list[tuple[int, list[str]]]:
    """
    Work on two tasks, a restart between them, guarded and with summaries.

    Return what each request showed: how many messages, and which words of tasks, results and summaries. Fences are
    drawn at random, and the ids that a fake gives follow from the bytes of the request.
    """
    with ProviderFake(name, decisions("native", tasks), exact=True) as fake:
        life = Life(fake, name, "native", path=path)
        history = {"max_messages": 12, "max_summary_bytes": 300, "summarize": Host(), "on_event": hook}
        told = [life.work(f"Task {n}.", history=history, **WINDOW).output.answer for n in range(tasks)]
        assert told == [f"done {n}" for n in range(tasks)]
        assert fake.refused == ()
        shown = [messages_of(request.json) for request in generated(fake)]
        return [(len(messages), WORDS.findall(json.dumps(messages))) for messages in shown]


@names
@pytest.mark.parametrize(
    "raised", [OSError("hook"), DecisionHistoryBusy("hook"), asyncio.CancelledError(), GeneratorExit()], ids=repr
)
def test_d04_d16_a_hook_that_raises_at_every_event_changes_no_request(
    name: str, raised: BaseException, tmp_path: Path
) -> None:
    """D4, D16: an error of the host's, one of ours, a cancellation of its own; the same requests leave, in order."""
    tmp_path.chmod(0o700)
    quiet, raising = Hook(), Hook(raised)
    plain = live(name, tmp_path / "plain.sqlite", quiet)
    assert live(name, tmp_path / "raising.sqlite", raising) == plain
    assert raising.kinds == quiet.kinds
    assert {"provider_context_count", "decision_history_summary", "decision_history_trimmed"} <= set(quiet.kinds)


@names
@pytest.mark.parametrize("raised", budget([KeyboardInterrupt], [KeyboardInterrupt, SystemExit]))
def test_d04_i18_stopped_at_any_event_a_program_goes_on_to_its_end(
    name: str, raised: type[BaseException], tmp_path: Path
) -> None:
    """I-18: the nth event ends the process; the next one is not Busy, breaks no rule, and finishes."""
    tmp_path.chmod(0o700)
    counted = Hook()
    live(name, tmp_path / "whole.sqlite", counted, tasks=1)
    events = len(counted.kinds)
    assert events >= 6
    for at in range(1, events + 1, budget(3, 1)):
        path = tmp_path / f"{at}.sqlite"
        with ProviderFake(name, [*decisions("native", 1), *decisions("native", 1)], exact=True) as fake:
            life = Life(fake, name, "native", path=path)
            history = {"max_messages": 12, "max_summary_bytes": 300, "summarize": Host()}
            with pytest.raises(raised):
                life.work("Task 0.", history={**history, "on_event": Hook(raised(), at)}, **WINDOW)
            outcome = life.work("Task 0.", history=history, **WINDOW)
            assert outcome.output.answer == "done 0", at
            assert fake.refused == (), at


def test_d04_control_a_hook_whose_errors_are_not_kept_away_ends_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hook is called and does raise: where nothing keeps its error from the step, the program fails."""
    tmp_path.chmod(0o700)
    monkeypatch.setattr(History, "emit", lambda self, event: self._observer(event))
    with pytest.raises(OSError, match="hook"):
        live("anthropic", tmp_path / "book.sqlite", Hook(OSError("hook")))
