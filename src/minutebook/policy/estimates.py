"""
How many tokens a chat's messages take, without asking a server (SPEC A7).

Where a tokenizer is at hand its counts are exact for the models that it is of. Otherwise the estimate is a rule that
anybody can check: a quarter of a token for each ASCII character and one for each other, with `PER_MESSAGE` for each
message. The rule is corrected by what a server billed, as a ratio of what was expected, so that another tokenizer, and
a template that adds words of its own, are learned from the first answer on.

What a server makes of tools nobody knows from here: it may write their schemas out at length, or in a few words. So
requests with tools are learned from by two bills for the same tools: what the tools take is in both, and the difference
is what messages take.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import msgspec

from minutebook.model.shown import type_alone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Message = tuple[str, str, str]
    """Role, content and name of a message; the name is empty where there is none."""

PER_MESSAGE: Final = 3
"""Tokens around each message, as OpenAI publishes them for its models; one more where it has a name."""

MIN_RATIO, MAX_RATIO = 0.25, 8.0
"""A bill beyond these is not believed: it is of something else than was expected."""

APART: Final = 100
"""Expected tokens between two requests with tools, below which the difference of their bills tells nothing."""


def estimated_text(text: str) -> int:
    """Return the estimate for a text: a quarter of a token for each ASCII character and one for each other."""
    other = sum(not char.isascii() for char in text) if not text.isascii() else 0
    return other + math.ceil((len(text) - other) / 4)


class Billed(msgspec.Struct, frozen=True, kw_only=True):
    """What was expected of a request's messages, and what a server billed for them, and for tools where it had some."""

    expected: int
    tokens: int


class Estimates(msgspec.Struct, frozen=True, kw_only=True):
    """How texts are counted, and the ratio of what a server billed to what was expected."""

    count: Callable[[str], int] = estimated_text
    ratio: float = 1.0

    __repr__ = type_alone

    def expected(self, messages: Iterable[Message]) -> int:
        """Return what messages take before any correction."""
        count = self.count
        return sum(
            PER_MESSAGE + count(role) + count(content) + (count(name) + 1 if name else 0)
            for role, content, name in messages
        )

    def corrected(self, expected: int) -> int:
        """Return what is estimated where so many tokens were expected."""
        return math.ceil(expected * self.ratio)

    def learned(self, newest: Billed) -> Estimates:
        """Return the estimates after a bill for a request without tools."""
        return self._believed(newest.tokens, newest.expected)

    def learned_beside_tools(self, first: Billed, newest: Billed) -> Estimates:
        """Return the estimates after two bills for requests with the same tools, once they are far enough apart."""
        apart = newest.expected - first.expected
        return self._believed(newest.tokens - first.tokens, apart) if abs(apart) >= APART else self

    def _believed(self, billed: int, expected: int) -> Estimates:
        ratio = billed / expected if expected else 0
        return msgspec.structs.replace(self, ratio=ratio) if MIN_RATIO <= ratio <= MAX_RATIO else self


class Bills:
    """
    What a server billed for requests, and the estimates that come of it, learned once somebody wants one.

    What it is given to weigh messages and to count texts is asked no sooner, and for two bills at most.
    """

    def __init__(
        self, weigh: Callable[[bytes], Sequence[Message]], counter: Callable[[], Callable[[str], int] | None]
    ) -> None:
        """Nothing is billed yet. `counter` returns what counts texts exactly, if anything does."""
        self._weigh = weigh
        self._counter = counter
        self._exact = False
        self._estimates: Estimates | None = None
        self._tools = b""
        self._first: Billed | None = None
        """The first bill for these tools."""
        self._bills: list[tuple[bytes, int]] = []
        """Messages of requests and what these were billed at."""

    def add(self, messages: bytes, tools: bytes, tokens: int) -> None:
        """Remember what a request was billed at; only bills for the same tools are compared."""
        if tools != self._tools:
            self._tools, self._first, self._bills = tools, None, []
        first = self._bills[:1] if self._tools and self._first is None else []
        self._bills = [*first, (messages, tokens)]

    def estimated(self, messages: bytes, *, leaving_out: int = 0) -> int:
        """Return how many tokens messages take, so many of the newest left out."""
        estimates = self._learned()
        found = self._weigh(messages)
        return estimates.corrected(estimates.expected(found[: len(found) - leaving_out]))

    def _learned(self) -> Estimates:
        """Return the estimates, once the newest bill is taken into account: a count that is exact has none to fear."""
        if self._estimates is None:
            count = self._counter()
            self._exact = count is not None
            self._estimates = Estimates(count=count) if count else Estimates()
        bills, self._bills = self._bills, []
        for sent, tokens in () if self._exact else bills:
            billed = Billed(expected=self._estimates.expected(self._weigh(sent)), tokens=tokens)
            if not self._tools:
                self._estimates = self._estimates.learned(billed)
            elif self._first is None:
                self._first = billed
            else:
                self._estimates = self._estimates.learned_beside_tools(self._first, billed)
        return self._estimates
