"""
What all tests share: where conversations are kept, figures, and a word at the end on what was skipped and why.

A test whose promise has a number says what it reached: `figure("1,989 states, 0 lost")`. The figures are printed at the
end of a run, and `make prove` writes them, with the tests that gave them, to docs/reliability.md.
"""

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.faces.places import PLACES, Place
from tests.http_clients import close_clients
from tests.journals import close_journals

FIGURES = pytest.StashKey["Figures"]()


class Figures:
    """What the tests of a run reached, by their ids; also of those that ran in another process."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take what a test has noted once it is over."""
        if report.when == "teardown":
            self.noted += [(report.nodeid, text) for name, text in report.user_properties if name == "figure"]


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FIGURES] = figures = Figures()
    config.pluginmanager.register(figures)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where a conversation is kept: RAM, and a SQLite file in a private folder."""
    tmp_path.chmod(0o700)
    return Place(request.param, tmp_path)


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Close the HTTP clients that a test opened, and the files that it left open."""
    yield
    close_clients()
    close_journals()


@pytest.fixture(autouse=True, scope="module")
def _collected() -> Iterator[None]:
    """
    Collect what the tests of a file left behind before the next file's begin.

    What is interrupted, killed or cancelled is told of as it is collected; that is to be told beside its own file.
    Telling parses source, and CPython 3.11 refuses to parse where that comes in the middle of parsing.
    """
    yield
    gc.collect()


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Note what a promise's test has reached in this run."""

    def note(text: str) -> None:
        request.node.user_properties.append(("figure", text))

    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the figures, and name each skipped test's reason once with how many it kept from running."""
    figures = config.stash[FIGURES].noted
    if figures:
        terminalreporter.section("figures")
        for nodeid, text in figures:
            terminalreporter.write_line(f"{nodeid.rpartition('::')[2]}: {text}")
    skipped: dict[str, int] = {}
    for report in terminalreporter.stats.get("skipped", []):
        reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
        skipped[reason] = skipped.get(reason, 0) + 1
    terminalreporter.section(f"skipped: {sum(skipped.values())}")
    for reason, count in sorted(skipped.items()):
        terminalreporter.write_line(f"{count} x {reason}")
