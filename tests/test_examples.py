"""The examples run as they stand, each step in a process of its own, with no key and no network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name: str, folder: Path, *arguments: str) -> tuple[int, list[str], str]:
    """Return how an example ends in an empty private folder, and what it says."""
    folder.chmod(0o700)
    ran = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments], cwd=folder, capture_output=True, text=True, timeout=60
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


def test_every_example_is_run() -> None:
    """An example that no test runs is one that may have stopped working."""
    text = Path(__file__).read_text()
    assert all(f'"{path.name}"' in text for path in EXAMPLES.glob("*.py"))
