"""
What a figure says in the end: its ratio, its bound, and whether the bound is reached.

Where the median and the minimum fall on different sides of the bound, the run was too noisy to tell, and it says so.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

SLOW_SYNC_SECONDS = 0.001
"""From here on a disk counts as a usual one, whose syncs hide most other work, and the second bound applies."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table. `fast` and `slow` are the bounds by the disk; without a bound the line only informs."""

    figure: str
    what: str
    median: float
    least: float | None = None
    fast: float | None = None
    slow: float | None = None
    at_least: bool = False
    peer: str = ""
    note: str = ""
    sync_seconds: float = 0.0
    """How long the disk took for a sync around this figure: it decides which bound applies."""

    def verdict(self) -> str:
        """Return `reached`, `not reached` or `within noise`; empty where there is no bound."""
        bound = self.slow if self.sync_seconds >= SLOW_SYNC_SECONDS and self.slow is not None else self.fast
        if bound is None:
            return ""
        values = [value for value in (self.median, self.least) if value is not None]
        kept = [value >= bound if self.at_least else value <= bound for value in values]
        return "reached" if all(kept) else "within noise" if any(kept) else "not reached"

    def bound(self) -> str:
        """Return the bound as the table shows it."""
        if self.fast is None:
            return ""
        sign = ">=" if self.at_least else "<="
        return f"{sign} {self.fast:g}" + (f" / {self.slow:g}" if self.slow is not None else "")

    def cells(self) -> list[str]:
        """Return the line's cells."""
        least = "" if self.least is None else f"{self.least:.2f}"
        sync = f"{self.sync_seconds * 1000:.2f}"
        return [self.figure, self.what, self.bound(), sync, f"{self.median:.2f}", least, self.peer, self.verdict()]

    def as_json(self) -> dict[str, object]:
        """Return the line for a file."""
        return {**asdict(self), "verdict": self.verdict()}


HEAD = ["#", "what", "bound (fast / >= 1 ms)", "sync ms", "median", "of minima", "peers", "verdict"]


def rendered(rows: list[Row]) -> str:
    """Return the table as plain text that is Markdown too, with the notes below it."""
    lines = [HEAD, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    shown = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    shown.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    notes = dict.fromkeys((row.figure.split(" ")[0], row.note) for row in rows if row.note)
    return "\n".join([*shown, "", *(f"- {figure}: {note}" for figure, note in notes)])
