"""The Anthropic and Gemini providers in front of the strict fakes: programs, counts, sealed reasoning, streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import msgspec
import pytest
from tests.http_clients import http_client

from minutebook import AgentDecisionProviderSchemaViolation, DecisionHistoryLimitExceeded, sync
from minutebook.decisions import HistoryOptions
from minutebook.runtime import Program, capability
from minutebook.testing import Answer, FunctionCall, ProviderFake

STEPS: list[list[str]] = [["a"], ["b", "gone"], ["a"], ["c", "d", "e"], ["f"], ["g"]]
"""What each decision looks at; the seventh finishes."""


class Result(msgspec.Struct):
    answer: str


@capability
def look(path: str) -> str:
    """Read a file."""
    if path == "gone":
        raise FileNotFoundError(path)
    return f"content of {path} — 漢字 🙂"


def decided(**decision: Any) -> str:
    return json.dumps({"decision": decision}, indent=1)


def decisions(interface: str, thinking: str) -> Iterator[Answer]:
    """The model's answers; the structured interface makes one call at a time."""
    for number, paths in enumerate(STEPS):
        if interface == "native":
            calls = tuple(FunctionCall("look", {"path": path}) for path in paths)
            yield Answer(thinking=thinking, text="" if number % 2 else "I look.", calls=calls)
        else:
            for path in paths:
                yield Answer(thinking=thinking, text=decided(action="look", path=path))
    value = {"answer": "done"}
    yield Answer(text=json.dumps(value) if interface == "native" else decided(action="finish", **value))


def provider_of(fake: ProviderFake, name: str, interface: str, **options: Any) -> Any:
    given: dict[str, Any] = {"model": "m", "decision_interface": interface, "max_output_tokens": 500, **options}
    http = http_client(verify=False, timeout=20)
    if name == "gemini":
        return sync.GeminiDecisionProvider(client=http, base_url=f"{fake.base_url}/v1", api_key="any", **given)
    client = anthropic.Anthropic(base_url=fake.base_url, api_key="any", http_client=http)
    given.setdefault("extra_body", {"thinking": {"type": "adaptive"}})
    return sync.AnthropicDecisionProvider(client=client, **given)


@pytest.mark.parametrize("interface", ["native", "structured"])
@pytest.mark.parametrize("name", ["anthropic", "gemini"])
@pytest.mark.parametrize("max_messages", [128, 9], ids=["whole", "trimmed"])
@pytest.mark.parametrize("stream", [False, True], ids=["", "streamed"])
def test_d01_d08_d12_d26_a_whole_program_breaks_no_rule(
    name: str, interface: str, max_messages: int, stream: bool
) -> None:
    """Every decision counted first, trimmed or not, and sealed reasoning wanted byte for byte, or stripped."""
    program = Program(name="agent", instructions="You decide.", capabilities=[look], output=Result)
    script = list(decisions(interface, "Step: ü"))
    options: dict[str, Any] = {
        "count": True,
        "stream": stream,
        "history": HistoryOptions(max_messages=max_messages),
    }
    loop_is_cut = (name, interface, max_messages) == ("anthropic", "native", 9)
    if loop_is_cut:
        options["reasoning"] = "drop_block"
    # A streamed answer has no bytes of its own to come back; its seals still are of exact bytes.
    with ProviderFake(name, script, exact=not stream) as fake:
        outcome = sync.Runtime(program, provider_of(fake, name, interface, **options)).run("Look into a.")
        assert fake.refused == ()
        assert outcome.output == Result("done")
        assert len(fake.requests) == 2 * len(script)


@pytest.mark.parametrize("said", ["done", '"done"', '{"result": "done"}', '{"output": "done", "more": 1}'])
@pytest.mark.parametrize("name", ["anthropic", "gemini"])
def test_d09_d13_a_text_that_ends_no_run_is_told_in_which_form_one_would(name: str, said: str) -> None:
    """D9, D13: a program that declares no output ends with a text in an object, which the error names."""
    program = Program(name="p", instructions="Look.")
    with ProviderFake(name, [Answer(text=said), Answer(text='{"output": "done"}')]) as fake:
        runtime = sync.Runtime(program, provider_of(fake, name, "native"))
        with pytest.raises(AgentDecisionProviderSchemaViolation) as caught:
            runtime.run("Go.", run_id="r", invocation_id="i")
        told = "of the schema that was sent" if said == "done" else 'the output schema, which is {"output": …}'
        assert str(caught.value).endswith(told)
        assert runtime.run("Go.", run_id="r", invocation_id="i").output == "done"


def test_d26_a_cut_inside_an_open_tool_loop_is_refused_before_the_fake_would() -> None:
    """D26: nothing that the API would refuse leaves."""
    program = Program(name="agent", instructions="You decide.", capabilities=[look], output=Result)
    options: dict[str, Any] = {"history": HistoryOptions(max_messages=9)}
    with ProviderFake("anthropic", list(decisions("native", "Step")), exact=True) as fake:
        with pytest.raises(DecisionHistoryLimitExceeded, match="drop_block"):
            sync.Runtime(program, provider_of(fake, "anthropic", "native", **options)).run("Look into a.")
        assert fake.refused == ()
