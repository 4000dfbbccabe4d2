"""How tokens of a chat are estimated: the rule, and what bills correct of it (SPEC A7)."""

from __future__ import annotations

import pytest

from minutebook.policy.estimates import MAX_RATIO, MIN_RATIO, Billed, Estimates, estimated_text


@pytest.mark.parametrize(
    ("text", "tokens"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("漢字", 2), ("abc漢", 2), ("\n" * 8, 2)]
)
def test_a7_a_text_is_a_quarter_of_its_ascii_and_each_other_character(text: str, tokens: int) -> None:
    """A7: the rule that anybody can check."""
    assert estimated_text(text) == tokens


def test_a7_a_message_has_three_more_and_one_for_a_name() -> None:
    """A7: what stands around a message, by OpenAI's own account."""
    plain = Estimates().expected([("user", "abcd", "")])
    assert plain == 3 + 1 + 1
    assert Estimates().expected([("user", "abcd", "anna")]) == plain + 1 + 1
    assert Estimates(count=len).expected([("user", "abcd", "ann")]) == 3 + 4 + 4 + 3 + 1


@pytest.mark.parametrize(
    ("billed", "corrected"),
    [
        (int(100 * MIN_RATIO), 25),
        (int(100 * MIN_RATIO) - 1, 100),
        (int(100 * MAX_RATIO), 800),
        (int(100 * MAX_RATIO) + 1, 100),
        (150, 150),
    ],
)
def test_a7_a_bill_beyond_belief_is_not_believed(billed: int, corrected: int) -> None:
    """A7: it is of something else than was expected, such as an image; the estimate stays what it was."""
    assert Estimates().learned(Billed(expected=100, tokens=billed)).corrected(100) == corrected
    assert Estimates().learned(Billed(expected=0, tokens=billed)).corrected(100) == 100


def test_a7_beside_tools_the_difference_of_two_bills_is_believed() -> None:
    """A7: whatever the tools take is in both; bills of requests less than 100 tokens apart tell nothing."""
    first = Billed(expected=50, tokens=9000 + 2 * 50)
    near = Billed(expected=149, tokens=9000 + 2 * 149)
    far = Billed(expected=150, tokens=9000 + 2 * 150)
    assert Estimates().learned_beside_tools(first, near).corrected(100) == 100
    assert Estimates().learned_beside_tools(first, far).corrected(100) == 200
    assert (
        Estimates().learned_beside_tools(far, first).corrected(100) == 200
    )  # after a summary it is the other way round
