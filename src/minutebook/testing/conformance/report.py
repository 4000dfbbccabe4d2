"""What the suite says of a store, and how a check says it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from minutebook.errors import MinutebookError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["Finding", "Outcome", "Report", "Skipped", "check_name", "expect", "run_check"]


class Finding(AssertionError):
    """A rule that the store breaks, in words and numbers of our own."""


class Skipped(Exception):
    """A check that has nothing to say about this store, and why."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one check found."""

    name: str
    rule: str
    """The rule that was checked, as one sentence."""
    state: Literal["passed", "failed", "skipped"]
    reason: str = ""
    """Why it failed or was skipped; no message content, key or id of the host's."""

    def __str__(self) -> str:
        return f"{self.state:7} {self.name}: {self.reason or self.rule}"


class Report(msgspec.Struct, frozen=True):
    """The outcomes of a whole suite, in its order."""

    outcomes: tuple[Outcome, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return not self.failures

    @property
    def failures(self) -> tuple[Outcome, ...]:
        """The rules that the store breaks."""
        return tuple(outcome for outcome in self.outcomes if outcome.state == "failed")

    def __str__(self) -> str:
        return "\n".join(map(str, self.outcomes))


def expect(fact: bool, otherwise: str) -> None:
    """
    See that `fact` holds.

    Raises:
        Finding: it does not; `otherwise` is what was seen instead.
    """
    if not fact:
        raise Finding(otherwise)


def check_name(check: Callable[..., object]) -> str:
    """Return the name that a check is reported under."""
    return check.__name__


async def run_check(check: Callable[[], Awaitable[None]], name: str, rule: str) -> Outcome:
    """Run one check and tell what it found. An error is told by its name alone: its text may hold a host's content."""
    try:
        await check()
    except Skipped as skipped:
        return Outcome(name=name, rule=rule, state="skipped", reason=str(skipped))
    except Finding as finding:
        return Outcome(name=name, rule=rule, state="failed", reason=str(finding))
    except MinutebookError as error:
        return Outcome(name=name, rule=rule, state="failed", reason=f"{error.code} where nothing should be refused")
    except Exception as error:
        return Outcome(name=name, rule=rule, state="failed", reason=f"{type(error).__name__} escaped the store")
    return Outcome(name=name, rule=rule, state="passed")
