"""The examples run as they stand, each step in a process of its own, with no key and no network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from minutebook.testing import Answer, ProviderFake

EXAMPLES = Path(__file__).parents[1] / "examples"
SERVICES = ("OPENAI_", "ANTHROPIC_", "GEMINI_", "GOOGLE_")


def example(name: str, folder: Path, *arguments: str, **environment: str) -> tuple[int, list[str], str]:
    """Return how an example ends in an empty private folder, without a key of whoever runs this, and what it says."""
    folder.chmod(0o700)
    ran = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith(SERVICES)} | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return ran.returncode, ran.stdout.splitlines(), ran.stderr


WAITS = 'waits for approval: refund {"amount":40,"order":"ORD-42445"}'


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("approve", ["refunding 40 for ORD-42445", "agent: Your 40 are on their way."]),
        ("deny", ["agent: A colleague will write to you."]),
    ],
)
def test_d25_d28_approval_and_resume_in_two_processes(answer: str, told: list[str], tmp_path: Path) -> None:
    """D25, D28: what the first process proposed the second executes, or not; a third one finds it done."""
    assert example("approval.py", tmp_path, "propose") == (0, [WAITS], "")
    assert example("approval.py", tmp_path, answer) == (0, told, "")
    assert example("approval.py", tmp_path, answer) == (0, told[-1:], "")


def test_d28_an_example_says_what_it_needs(tmp_path: Path) -> None:
    """Neither a word too few nor a step too early ends in a traceback."""
    status, _, told = example("approval.py", tmp_path)
    assert (status, "propose" in told) == (1, True)
    status, _, told = example("approval.py", tmp_path, "approve")
    assert (status, "Traceback" in told, told.strip().endswith("propose first")) == (1, False, True)


def test_d05_d28_delegation_with_branches_side_by_side(tmp_path: Path) -> None:
    """D5, D28: three branches under way at once, within one budget, with conversations of their own."""
    assert example("delegation.py", tmp_path) == (
        0,
        [
            "tallest: Everest, longest: the Nile, deepest: the Mariana Trench (3 sources)",
            "9 decisions and 5 calls, those of the branches among them",
            "9 logs: 4 conversations, 4 checkpoints, 1 memory resource",
        ],
        "",
    )


ASKED = [
    "  Where is ORD-42445? It arrives on Tuesday. (2 decisions, called: look_up)",
    "  Which order was it? Yours is ORD-42445. (1 decision, called: nothing)",
]


def told_by(provider: str) -> list[str]:
    return [f"{provider}, a strict fake", *ASKED, "  3 requests, 0 refused"]


def test_d01_d05_one_program_on_three_providers(tmp_path: Path) -> None:
    """D1, D5: the same decisions from the same program on each, and no request that the provider would refuse."""
    told = [line for provider in ("openai-responses", "anthropic", "gemini") for line in told_by(provider)]
    assert example("three_providers.py", tmp_path) == (0, told, "")


def test_d01_with_a_key_the_example_asks_the_service(tmp_path: Path) -> None:
    """D1: with a key in the environment requests go where the environment says; here that is a fake of the test's."""
    finish = Answer(text='{"output": "It is here."}')
    with ProviderFake("openai-responses", [finish, finish]) as service:
        key = {"OPENAI_API_KEY": "of-the-test", "OPENAI_BASE_URL": service.base_url}
        status, told, errors = example("three_providers.py", tmp_path, **key)
    assert (status, errors) == (0, "")
    assert told[:2] == [
        "openai-responses, the service",
        "  Where is ORD-42445? It is here. (1 decision, called: nothing)",
    ]
    assert told[3:] == [*told_by("anthropic"), *told_by("gemini")]
    assert (len(service.requests), service.refused) == (2, ())


GUARDED = [
    "counted 27 tokens; reserves 1,545 of 4,000",
    "answer: The Nile.",
    "counted 8,527 tokens; reserves 11,745 of 4,000",
    "refused: the request counts 8,527 input tokens and would reserve 11,745, the window is 4,000; nothing was "
    "generated: raise context_window_tokens, lower max_output_tokens, or shorten the request",
]


def test_d12_d14_a_guarded_client_refuses_before_it_generates(tmp_path: Path) -> None:
    """D12, D14: two requests are counted, and one arrives to be answered."""
    counted, generated = "arrived: /v1/messages/count_tokens", "arrived: /v1/messages"
    assert example("guarded_client.py", tmp_path) == (0, [*GUARDED, counted, generated, counted], "")


TALKED = [
    "My order is ORD-42445. (1 message sent)",
    "It should be here by now. (3 messages sent)",
    "The parcel is a blue one. (5 messages sent)",
    "I live in the third street on the left. (3 messages sent)",
    "There is a dog, a friendly one. (5 messages sent)",
    "Please ring twice. (3 messages sent)",
]


def test_d17_d18_a_summary_survives_a_restart(tmp_path: Path) -> None:
    """D17, D18: a second process shows the same summary, to the fence; without it the model does not know."""
    assert example("summary.py", tmp_path, "ask") == (1, [], "there is no summary yet; talk first\n")
    assert example("summary.py", tmp_path, "talk") == (0, TALKED, "")
    status, told, errors = example("summary.py", tmp_path, "ask")
    assert (status, errors) == (0, "")
    fence = re.fullmatch("<summary ([0-9a-f]{32})>", told[0])
    assert fence
    assert told[1].startswith("For your information: what 4 earlier exchanges were about.")
    assert told[2:] == [
        "ORD-42445; 2 more turns; blue; 2 more turns",
        f"</summary {fence[1]}>",
        "with the summary: Yours is ORD-42445.",
        "without it: You have not told me.",
        "Which order is mine? (5 messages sent)",
        "made anew: Yours is ORD-42445.",
        "retained: 7 exchanges",
    ]


def test_a10_a_chat_goes_on_in_a_new_process(tmp_path: Path) -> None:
    """A1, A10: what one process was told the next one knows, from the file alone."""
    blue = example("persistent_chat.py", tmp_path, "My favourite colour is blue.")
    assert blue == (0, ["0 messages so far", "I will remember that."], "")
    asked = example("persistent_chat.py", tmp_path, "What is my favourite colour?")
    assert asked == (0, ["2 messages so far", "It is blue."], "")
    status, _, told = example("persistent_chat.py", tmp_path)
    assert (status, "favourite" in told) == (1, True)


def test_a6_a_chat_that_summarises(tmp_path: Path) -> None:
    """A6, A8: the event tells how many, the answer knows what the summary says, and the record has the rest."""
    status, told, errors = example("summarising_chat.py", tmp_path)
    assert (status, errors) == (0, "")
    assert told[6:] == [
        "  summarised 2: 12 -> 10",
        "I am at home until six. I see.",
        "Which order was it? It was ORD-42445.",
        "summary: The customer waits for ORD-42445 [a blue parcel].",
        "history: 14 messages",
        "retained: I live in the third street on the left.",
    ]


def test_a4_a_chat_with_tools_and_a_budget(tmp_path: Path) -> None:
    """A4, A9: two calls side by side, none of them in the history; an endless loop ends and leaves nothing there."""
    assert example("chat_with_tools.py", tmp_path) == (
        0,
        [
            *("  looking up ORD-42445", "  looking up ORD-42446", "They arrive on Tuesday.", "With pleasure."),
            *["  looking up ORD-1"] * 3,
            "stopped by the budget of decisions",
            "['Where are my two orders, ORD-42445 and ORD-42446?', 'They arrive on Tuesday.', 'Thank you.', "
            "'With pleasure.']",
            "3 entries tell of Tuesday",
        ],
        "",
    )


def test_a4_two_agents_know_who_said_what(tmp_path: Path) -> None:
    """A4: each history names its speakers, and is its agent's own."""
    status, told, errors = example("two_agents.py", tmp_path)
    assert (status, errors) == (0, "")
    assert told[2] == "Baker to miller: I heard ann and miller."
    assert told[-2:] == [
        "Baker has ann, Baker, miller, Baker, miller, Baker",
        "Miller has baker, Miller, baker, Miller, ann, baker, Miller",
    ]


def test_every_example_is_run_and_listed() -> None:
    """An example that no test runs is one that may have stopped working; one that is not listed is not found."""
    text, listed = Path(__file__).read_text(), (EXAMPLES / "README.md").read_text()
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert {name for name in names if f'"{name}"' in text} == names
    assert set(re.findall(r"\[`([a-z_]+\.py)`\]\(\1\)", listed)) == names


def test_e6_e7_an_engine_under_a_cap(tmp_path: Path) -> None:
    """E6, E7: what the cap drops is gone from the disk, what another policy drops is only out of the context."""
    assert example("engine.py", tmp_path) == (
        0,
        [
            "ada, by the cap:",
            "  user: My order is 17",
            "  assistant: My order is 17? Noted.",
            "  user: It is late",
            "  assistant: It is late? Noted.",
            "  system: [north] The parcel left the depot.",
            "bob, apart from her:",
            "  user: Open on Sunday",
            "  assistant: Open on Sunday? Noted.",
            "refused: 201 characters, limit 200",
            "3 of 4 entries retained, chain sound from entry 2",
            "in the file: no Ada and 17",
            "ada, by a policy that keeps what it drops:",
            "  user: Thank you",
            "  assistant: Thank you? Noted.",
            "4 entries retained",
        ],
        "",
    )
