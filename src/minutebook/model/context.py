"""
The model's window by the application's word, and what a request of so many input tokens reserves of it (SPEC D10, D11).

The window is a ceiling that the application chooses; none is ever guessed from a model's name. The reservation is
exact: the multiplier is a ratio of integers, since 100 × 1.1 in floating point rounds up to 111.
"""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from typing import Final, TypeAlias

import msgspec

from minutebook.errors import InvalidOption, ProviderContextWindowExceeded
from minutebook.model.bounds import MAX_COUNT, check_count
from minutebook.model.events import ProviderContextCount

Multiplier: TypeAlias = int | float | str | Decimal | Fraction

MAX_MULTIPLIER: Final = 1000
_MAX_DIGITS: Final = 40
"""The longest numerator or denominator of a multiplier, so that no arithmetic is ever long."""

_DECIMAL: Final = re.compile(r"[0-9]{1,4}(\.[0-9]{1,36})?", re.ASCII)


class ContextWindow(msgspec.Struct, frozen=True, kw_only=True):
    """
    How many tokens a request may reserve: `ceil(input × multiplier) + margin + output`, at most the window.

    Raises:
        InvalidOption: a window that is no positive integer, a multiplier below 1 or above 1,000, a margin below 0, or
            one that fills the window alone.
    """

    context_window_tokens: int
    """The ceiling, in tokens of the model."""
    input_token_multiplier: Multiplier = Decimal("1.2")
    """What each counted token is taken for: a number, or its decimal text. A float means the decimal that it shows."""
    safety_margin_tokens: int = 512
    """Tokens that stay free beside input and output."""

    def __post_init__(self) -> None:
        check_count(self.context_window_tokens, "context_window_tokens")
        exact_ratio(self.input_token_multiplier)
        margin = self.safety_margin_tokens
        if type(margin) is not int or not 0 <= margin <= MAX_COUNT:
            raise InvalidOption("safety_margin_tokens is an int of at least 0", option="safety_margin_tokens")
        if margin >= self.context_window_tokens:
            raise InvalidOption(
                f"safety_margin_tokens {margin:,} leaves nothing of context_window_tokens "
                f"{self.context_window_tokens:,}; lower the first or raise the second",
                option="safety_margin_tokens",
            )

    def reservation(self, input_tokens: int, max_output_tokens: int) -> int:
        """Return the tokens that a request with so many of input reserves, its whole output allowance included."""
        ratio = exact_ratio(self.input_token_multiplier)
        multiplied = -(-input_tokens * ratio.numerator // ratio.denominator)
        return multiplied + self.safety_margin_tokens + max_output_tokens

    def most_input(self, max_output_tokens: int) -> int:
        """Return the most input tokens whose reservation fits; below 0 when not even an empty request does."""
        ratio = exact_ratio(self.input_token_multiplier)
        left = self.context_window_tokens - self.safety_margin_tokens - max_output_tokens
        return left * ratio.denominator // ratio.numerator

    def check_output(self, max_output_tokens: int) -> None:
        """
        See that an output allowance leaves room for a request.

        Raises:
            InvalidOption: with it not even one input token fits the window.
        """
        if self.most_input(max_output_tokens) < 1:
            raise InvalidOption(
                f"max_output_tokens {max_output_tokens:,} and the margin of {self.safety_margin_tokens:,} leave no "
                f"room for input in context_window_tokens {self.context_window_tokens:,}",
                option="max_output_tokens",
            )

    def measured(self, provider: str, input_tokens: int, max_output_tokens: int) -> ProviderContextCount:
        """Return what a count comes to, as the event that tells of it (SPEC D16)."""
        reservation = self.reservation(input_tokens, max_output_tokens)
        return ProviderContextCount(
            provider=provider,
            count=input_tokens,
            reservation=reservation,
            window=self.context_window_tokens,
            fits=reservation <= self.context_window_tokens,
        )


def window_exceeded(counted: ProviderContextCount, summary_bytes: int = 0) -> ProviderContextWindowExceeded:
    """Return the refusal of a request that does not fit, of which so much is a summary or the room for one."""
    kept = (
        f", with {summary_bytes:,} bytes that are kept for a summary (max_summary_bytes; drop_summary ends it),"
        if summary_bytes
        else ""
    )
    return ProviderContextWindowExceeded(
        f"the request counts {counted.count:,} input tokens{kept} and would reserve {counted.reservation:,}, the "
        f"window is {counted.window:,}; nothing was generated: raise context_window_tokens, lower max_output_tokens"
        f"{' or max_summary_bytes' if summary_bytes else ''}, or shorten the request",
        count=counted.count,
        reservation=counted.reservation,
        window=counted.window,
    )


def exact_ratio(multiplier: object) -> Fraction:
    """
    Return a multiplier as a ratio of integers.

    Raises:
        InvalidOption: no number, not finite, of too many digits, below 1 or above 1,000.
    """
    found = _ratio(multiplier)
    if found is None or not 1 <= found <= MAX_MULTIPLIER:
        raise InvalidOption(
            f"input_token_multiplier is an int, float, Decimal, Fraction or decimal text from 1 to {MAX_MULTIPLIER:,}, "
            f"of at most {_MAX_DIGITS} digits",
            option="input_token_multiplier",
        )
    return found


def _ratio(multiplier: object) -> Fraction | None:
    if type(multiplier) is int:
        return Fraction(multiplier) if 1 <= multiplier <= MAX_MULTIPLIER else None
    if type(multiplier) is float:
        return _ratio(repr(multiplier))
    if type(multiplier) is str:
        return Fraction(multiplier) if _DECIMAL.fullmatch(multiplier) else None
    if type(multiplier) is Fraction:
        return multiplier if multiplier.denominator < 10**_MAX_DIGITS else None
    if type(multiplier) is Decimal:
        # Its range first: the plain digits of 1E+999999999 would fill the memory.
        return _ratio(f"{multiplier:f}") if multiplier.is_finite() and 1 <= multiplier <= MAX_MULTIPLIER else None
    return None
