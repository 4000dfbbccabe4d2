"""What the demo has claimed so far: told to a person as it goes, or kept for a program until the end."""

from __future__ import annotations

import time

import msgspec

from minutebook.cli.terminal import EXIT_FAILED, paragraph, print_json, print_table


class Claim(msgspec.Struct, frozen=True):
    """One thing that the demo says, and whether what it saw bears it out."""

    step: int
    claim: str
    holds: bool


class Report:
    """
    The demo's account.

    Args:
        as_json: print nothing before the end, and then one JSON document.
    """

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.claims: list[Claim] = []
        self.steps = 0
        self.seconds: dict[str, float] = {}
        self._began = self._step_began = time.monotonic()
        self._title = ""

    @property
    def holds(self) -> bool:
        """Whether every claim so far holds."""
        return all(claim.holds for claim in self.claims)

    def title(self, text: str) -> None:
        """Say what this is."""
        self._say(text, "bold")

    def step(self, title: str) -> None:
        """Begin a step."""
        self._end_step()
        self.steps += 1
        self._title = title
        self._say("", "")
        self._say(f"{self.steps}. {title}", "bold")

    def say(self, text: str) -> None:
        """Tell what happened."""
        self._say(text, "", indent=3, hang=2)

    def claim(self, claim: str, holds: bool) -> None:
        """Say what was claimed and whether it holds; one that does not makes the demo fail."""
        self.claims.append(Claim(self.steps, claim, holds))
        self._say(f"{'✔' if holds else '✘ NOT SO:'} {claim}", "green" if holds else "bold red", indent=3, hang=2)

    def table(self, columns: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
        """Show a table."""
        if not self.as_json:
            print_table(columns, rows)

    def end(self, facts: dict[str, object]) -> int:
        """Tell how it went, and return the exit code."""
        self._end_step()
        failed = sum(not claim.holds for claim in self.claims)
        seconds = time.monotonic() - self._began
        if self.as_json:
            print_json(
                {"holds": not failed, "claims": self.claims, "seconds": self.seconds, "total_seconds": seconds} | facts
            )
        told = f"{len(self.claims) - failed} of {len(self.claims)} claims hold, {seconds:.0f} s."
        self._say("", "")
        self._say(told, "bold red" if failed else "bold green")
        return EXIT_FAILED if failed else 0

    def _end_step(self) -> None:
        now = time.monotonic()
        if self._title:
            self.seconds[self._title] = round(now - self._step_began, 2)
        self._title, self._step_began = "", now

    def _say(self, text: str, style: str, indent: int = 0, hang: int = 0) -> None:
        if not self.as_json:
            paragraph(text, style=style, indent=indent, hang=hang)
