"""`minutebook chat` at a real terminal: runs on the real local model; Ctrl-C and kills while a server is asked."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.commands import COMMAND, environment, run
from tests.cli.own_model import OwnModel
from tests.cli.test_demo import on_the_model

import minutebook
from minutebook.cli import agent
from minutebook.cli import chat as chat_module
from minutebook.errors import InvalidOption
from minutebook.model.decisions import Observation
from minutebook.model.entries import Entry, Kind
from minutebook.model.record import Header
from minutebook.runtime.budgets import DEFAULT_BUDGETS
from minutebook.sync import SQLiteStore
from minutebook.testing.fakes import Answer, Failure, ProviderFake

pytestmark = on_the_model

ORDER = "ORD-42449"
TELL = f"My order number is {ORDER}. Where is it?"
ASK = "What is my order number?"
PROMPT = "you> "
SECONDS = 120


class Chat:
    """A chat in a pseudo-terminal of its own."""

    def __init__(self, database: Path, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        command = [*COMMAND, "chat", "--store", f"sqlite:///{database}", *arguments]
        self.child = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment(TERM="dumb", COLUMNS="200"),
            start_new_session=True,
            preexec_fn=lambda: _take_terminal(),
        )
        os.close(theirs)
        self.output = ""

    def until(self, text: str, *, interrupts: bool = False) -> str:
        """
        Return what it printed up to `text`, which is taken away.

        With `interrupts` Ctrl-C is pressed until something comes, as a person does: CPython loses one that arrives
        between the prompt of `input` and its wait for a key.
        """
        deadline = time.monotonic() + SECONDS
        again = time.monotonic()
        while text not in self.output:
            if interrupts and not self.output and time.monotonic() >= again:
                self.interrupt()
                again += 10
            assert time.monotonic() < deadline, f"{text!r} did not come: {self.output!r}"
            assert self._read(0.2) or self.child.poll() is None, f"ended before {text!r}: {self.output!r}"
        before, _, self.output = self.output.partition(text)
        return before + text

    def say(self, line: str) -> None:
        os.write(self._ours, line.encode() + b"\n")

    def interrupt(self) -> None:
        """Press Ctrl-C: the terminal sends the signal, as it does for a person."""
        os.write(self._ours, b"\x03")

    def leave(self) -> int:
        """Press Ctrl-D and return the exit code."""
        os.write(self._ours, b"\x04")
        return self.ended()

    def kill(self) -> None:
        self.child.send_signal(signal.SIGKILL)
        assert self.child.wait(SECONDS) == -signal.SIGKILL

    def ended(self) -> int:
        while self._read(0.2) or self.child.poll() is None:
            pass
        return self.child.returncode

    def close(self) -> None:
        self.child.kill()
        self.child.wait()
        os.close(self._ours)

    def _read(self, seconds: float) -> bool:
        if not select.select([self._ours], [], [], seconds)[0]:
            return False
        try:
            read = os.read(self._ours, 4096)
        except OSError:  # Linux: the other end is closed
            return False
        self.output += read.decode(errors="replace").replace("\r\n", "\n")
        return bool(read)


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Chats:
    """Chats on one database, one after the other, and what its record holds."""

    def __init__(self, database: Path) -> None:
        self.database = database
        self.opened: list[Chat] = []

    def __call__(self, *arguments: str) -> Chat:
        chat = Chat(self.database, *arguments)
        self.opened.append(chat)
        return chat

    def record(self) -> tuple[Header, list[Entry]]:
        """Return the counters and the entries of the one conversation that there is."""
        with SQLiteStore(self.database, namespace="chat") as store:
            (listing,) = store.list()
            if not listing.header.token:
                store.verify(listing.key)
            return listing.header, list(store.entries(listing.key))


@pytest.fixture
def chats(tmp_path: Path) -> Iterator[Chats]:
    tmp_path.chmod(0o700)
    chats = Chats(tmp_path / "chat.sqlite")
    yield chats
    for chat in chats.opened:
        chat.close()


def asks(own: OwnModel) -> tuple[str, ...]:
    return ("--base-url", own.url, "--model", "theirs")


def answer_in(output: str) -> str:
    return " ".join(re.findall(r"^agent> (.*)$", output, re.MULTILINE))


def test_two_runs_with_one_session_share_its_history(chats: Chats) -> None:
    """What the first run was told, the second answers from; another session knows nothing of it."""
    first = chats("--session", "a")
    first.until(PROMPT)
    first.say(TELL)
    assert ORDER in answer_in(first.until(PROMPT))
    assert first.leave() == 0
    second = chats("--session", "a")
    assert "1 messages so far" in second.until(PROMPT)
    second.say(ASK)
    assert ORDER in answer_in(second.until(PROMPT))
    assert second.leave() == 0
    header, entries = chats.record()
    assert (header.token, header.state.turns) == ("", 2)
    assert sum(entry.kind is Kind.INPUT for entry in entries) == 2


def test_ctrl_c_in_a_generation_loses_nothing(chats: Chats, own: OwnModel) -> None:
    """The message stays, no reservation stays, and the next run answers it first."""
    own.holds = (1,)
    first = chats(*asks(own))
    first.until(PROMPT)
    first.say(TELL)
    assert own.arrived.wait(SECONDS)
    first.interrupt()
    assert "Your message is kept" in first.until(PROMPT)
    before = chats.record()
    assert not before[0].token
    assert TELL.encode() in before[1][0].payload
    assert first.leave() == 0
    second = chats(*asks(own))
    assert ORDER in answer_in(second.until(PROMPT))
    assert second.leave() == 0
    header, entries = chats.record()
    assert entries[: len(before[1])] == before[1]
    assert sum(entry.kind is Kind.INPUT for entry in entries) == 1
    assert (header.token, header.state.open, header.state.unanswered) == ("", (), None)


def test_ctrl_c_between_two_decisions_keeps_what_was_decided(chats: Chats, own: OwnModel) -> None:
    """A turn that was stopped after its first decision goes on from it, in the same run."""
    own.holds = (2,)
    chat = chats(*asks(own))
    chat.until(PROMPT)
    chat.say(TELL)
    assert own.arrived.wait(SECONDS)
    chat.interrupt()
    chat.until(PROMPT)
    stopped, before = chats.record()
    assert [waits.waiting for waits in stopped.state.open] == [(0,)]
    chat.say(ASK)
    told = chat.until(PROMPT)
    assert ORDER in answer_in(told)
    assert "interrupted" not in told, "this process has made the call, and knows what came of it"
    assert chat.leave() == 0
    header, entries = chats.record()
    assert entries[: len(before)] == before
    assert (header.token, header.state.open, header.state.unanswered) == ("", (), None)
    assert sum(entry.kind is Kind.INPUT for entry in entries) == 2


def test_d22_after_a_kill_the_next_run_asks_and_recovers(chats: Chats, own: OwnModel) -> None:
    """A killed run leaves its reservation; the next one says so, frees nothing unasked, and goes on once told."""
    own.holds = (1,)
    first = chats(*asks(own))
    first.until(PROMPT)
    first.say(TELL)
    assert own.arrived.wait(SECONDS)
    first.kill()
    _, before = chats.record()
    cautious = chats(*asks(own))
    cautious.until("Recover? [y/N] ")
    cautious.say("")
    assert cautious.ended() == 1
    assert "DecisionHistoryBusy" in cautious.output
    assert chats.record() == (chats.record()[0], before)
    assert chats.record()[0].token
    certain = chats(*asks(own))
    certain.until("Recover? [y/N] ")
    certain.say("y")
    assert ORDER in answer_in(certain.until(PROMPT))
    assert certain.leave() == 0
    header, entries = chats.record()
    assert entries[: len(before)] == before
    assert not header.token
    assert sum(entry.kind is Kind.INPUT for entry in entries) == 1
    assert sum(entry.kind is Kind.ABANDONED for entry in entries) == 1


def test_o33_a_call_whose_result_was_lost_is_told_as_interrupted_and_not_repeated(chats: Chats, own: OwnModel) -> None:
    """O-33, D2, D3: killed between a decision and its result, the next run shows the call and executes nothing."""
    own.holds = (2,)
    first = chats(*asks(own))
    first.until(PROMPT)
    first.say(TELL)
    assert own.arrived.wait(SECONDS)
    first.kill()
    killed, before = chats.record()
    (waits,) = killed.state.open
    (lost,) = waits.calls
    observations = asyncio.run(_unfinished(chats.database))
    assert [(each.capability, each.value, each.error) for each in observations] == [
        (lost.name, {"interrupted": "outcome unknown"}, True)
    ]
    second = chats(*asks(own))
    second.until("Recover? [y/N] ")
    second.say("y")
    told = second.until(PROMPT)
    assert f"{lost.name} was interrupted: whether it took effect is unknown" in told
    assert answer_in(told)
    assert second.leave() == 0
    header, entries = chats.record()
    assert entries[: len(before)] == before
    assert (header.token, header.state.open) == ("", ())
    (result,) = (entry for entry in entries if entry.kind is Kind.RESULT and entry.exchange == waits.exchange)
    assert b"outcome unknown" in result.payload
    proposed = [call.name for entry in entries for call in entry.calls]
    assert proposed.count(lost.name) == 1, "a proposal is executed at most once, and the lost one was not repeated"


async def _unfinished(database: Path) -> tuple[Observation, ...]:
    """Return what a run that goes on observes of the calls that wait."""
    endpoint = agent.Endpoint(model="none", base_url="http://127.0.0.1:1/v1")
    chat = chat_module.Chat(endpoint, minutebook.SQLiteStore(database, namespace="chat"), "1")
    (listing,) = await chat.store.list()
    chat.key = listing.key  # another model's conversation would be another one
    found = await chat.unfinished()
    await chat.close()
    assert found is not None
    assert found[0] == TELL
    return found[1]


def test_ctrl_c_at_the_prompt_ends_the_chat(chats: Chats) -> None:
    """Nothing was said, nothing is recorded, exit code 0; how to come back is told."""
    chat = chats()
    chat.until(PROMPT)
    chat.until("the same command goes on with it", interrupts=True)
    assert chat.ended() == 0


def test_a_pipe_whose_newest_line_has_no_answer_ends_with_the_providers_exit_code(tmp_path: Path) -> None:
    """No terminal, so a script looks at the exit code: 4; each line is tried and told on standard error, and kept."""
    tmp_path.chmod(0o700)
    database = tmp_path / "chat.sqlite"
    command = ("chat", "--store", f"sqlite:///{database}", "--base-url", "http://127.0.0.1:1/v1", "--model", "m")
    told = run(*command, input=f"{TELL}\nAnd more.\n", stdin=None)
    assert told.returncode == 4
    lines = told.stderr.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["AgentDecisionProviderUnavailable"] * 2
    assert all(line.endswith("the next line takes its place") for line in lines)
    assert "agent>" not in told.stdout
    with SQLiteStore(database, namespace="chat") as store:
        (listing,) = store.list()
        inputs = [entry for entry in store.entries(listing.key) if entry.kind is Kind.INPUT]
        assert [TELL.encode() in entry.payload for entry in inputs] == [True, False]
        assert listing.header.state.unanswered
        assert not listing.header.token


def through_a_pipe(database: Path, fake: ProviderFake, lines: str) -> subprocess.CompletedProcess[str]:
    command = ("chat", "--store", f"sqlite:///{database}", "--base-url", fake.base_url, "--model", "m")
    return run(*command, input=lines, stdin=None)


def finishing(text: str) -> Answer:
    return Answer(text=json.dumps({"decision": {"action": "finish", "text": text}}))


def asked_in(fake: ProviderFake) -> list[str]:
    """Return the user's words of the newest request."""
    messages = json.loads(fake.requests[-1].body)["messages"]
    return [message["content"] for message in messages if message["role"] == "user"]


def test_at_a_terminal_a_new_line_takes_the_place_of_a_question_that_the_model_fails_at(chats: Chats) -> None:
    """The way out is told; the new line is asked, the old one is tried once in a run and stays in the record."""
    refusal = Failure(status=400)
    with ProviderFake("openai-chat", [refusal, refusal, refusal, finishing("Fine.")]) as fake:
        arguments = ("--base-url", fake.base_url, "--model", "m")
        first = chats(*arguments)
        first.until(PROMPT)
        first.say("hello")
        assert "takes its place" in first.until(PROMPT)
        assert first.leave() == 0
        second = chats(*arguments)
        assert "Going on with: hello" in second.until(PROMPT)
        second.say("and this?")
        assert "Going on with" not in second.until(PROMPT)
        second.say("or that?")
        told = second.until(PROMPT)
        assert "Going on with" not in told
        assert answer_in(told) == "Fine."
        assert second.leave() == 0
        assert len(fake.requests) == 4
        assert asked_in(fake) == ["or that?"]
    header, entries = chats.record()
    assert [entry.kind for entry in entries if entry.kind is Kind.INPUT] == [Kind.INPUT] * 3
    assert (header.token, header.state.open, header.state.unanswered) == ("", (), None)


def test_from_a_pipe_a_new_line_is_asked_though_the_old_one_fails_again(tmp_path: Path) -> None:
    """It exited with 4 on every start; now so only where the newest line has no answer. Prose is no answer either."""
    tmp_path.chmod(0o700)
    database = tmp_path / "chat.sqlite"
    prose = Answer(text="Hello, how can I help?")
    script = [Failure(status=400), prose, prose, finishing("Fine."), finishing("Also.")]
    with ProviderFake("openai-chat", script) as fake:
        assert through_a_pipe(database, fake, "hello\n").returncode == 4
        told = through_a_pipe(database, fake, "and this?\nand what?\nand that?\n")
        assert told.returncode == 0, told.stderr
        assert re.findall("agent> (.*)", told.stdout) == ["Fine.", "Also."]
        assert told.stderr.count("AgentDecisionProviderSchemaViolation") == 2, "the old question, and the first line"
        assert asked_in(fake) == ["and what?", "and that?"]


def test_from_a_pipe_without_a_line_the_old_question_tells_the_exit_code(tmp_path: Path) -> None:
    """Nothing new was asked and the old question failed again: exit code 4; once it is answered, 0."""
    tmp_path.chmod(0o700)
    database = tmp_path / "chat.sqlite"
    with ProviderFake("openai-chat", [Failure(status=400), Failure(status=400), finishing("Fine.")]) as fake:
        assert [through_a_pipe(database, fake, lines).returncode for lines in ("hello\n", "", "")] == [4, 4, 0]


def test_o33_a_new_line_takes_the_place_of_a_question_whose_call_waits(tmp_path: Path) -> None:
    """The model fails behind a call: what the call came to is recorded with the next line, which is a new turn."""
    tmp_path.chmod(0o700)
    database = tmp_path / "chat.sqlite"
    calling = Answer(text=json.dumps({"decision": {"action": "look_up_order", "order_number": ORDER}}))
    with ProviderFake("openai-chat", [calling, Failure(status=400), Failure(status=400), finishing("Fine.")]) as fake:
        assert through_a_pipe(database, fake, "hello\n").returncode == 4
        told = through_a_pipe(database, fake, "and this?\n")
        assert told.returncode == 0, told.stderr
        assert re.findall("agent> (.*)", told.stdout) == ["Fine."]
    with SQLiteStore(database, namespace="chat") as store:
        (listing,) = store.list()
        store.verify(listing.key)
        assert (listing.header.state.turns, listing.header.state.open) == (2, ())


@pytest.mark.parametrize("asked", ["and this?\n", ""], ids=["a next line", "no line"])
def test_d02_o33_what_a_turn_did_before_its_budget_ended_is_told_as_that(tmp_path: Path, asked: str) -> None:
    """D2, O-33: no call of this process is told as interrupted; the next line takes the question's place."""
    tmp_path.chmod(0o700)
    database = tmp_path / "chat.sqlite"
    calling = Answer(text=json.dumps({"decision": {"action": "look_up_order", "order_number": ORDER}}))
    looking = Answer(text=json.dumps({"decision": {"action": "check_delivery", "order_number": ORDER}}))
    script = [*[calling] * (DEFAULT_BUDGETS.max_decisions - 1), looking, finishing("Fine.")]
    with ProviderFake("openai-chat", script) as fake:
        told = through_a_pipe(database, fake, f"hello\n{asked}")
        assert told.stderr.startswith("AgentBudgetExhausted: the turn used up its budget of decisions")
        assert told.returncode == (0 if asked else 1), told.stderr
        assert "Going on with" not in told.stdout
        if asked:
            assert re.findall("agent> (.*)", told.stdout) == ["Fine."]
            words = asked_in(fake)
            assert (words[0], words[-1]) == ("hello", "and this?")
            assert agent.arrival(ORDER) in words[-2]
            assert "interrupted" not in str(words)


def test_lines_from_a_pipe_are_answered_and_the_end_ends_it(tmp_path: Path) -> None:
    """No terminal: each line is a message, and the record is private in the person's data directory."""
    told = run("chat", input=f"{TELL}\n", stdin=None, env=environment(XDG_DATA_HOME=str(tmp_path)))
    assert told.returncode == 0, told.stderr
    assert ORDER in told.stdout
    folder = tmp_path / "minutebook"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "chat.sqlite").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("environment", [False, True])
def test_i37_a_base_url_with_a_password_is_refused(environment: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything starts, and without a word of it."""
    url = "http://user:hunter2@127.0.0.1:1/v1"
    monkeypatch.setenv("OPENAI_API_KEY", "of-the-test")
    if environment:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
    with pytest.raises(InvalidOption) as refused, agent.endpoint(None if environment else url, "m"):
        pass
    assert "hunter2" not in str(refused.value)
