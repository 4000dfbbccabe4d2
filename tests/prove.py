"""
`make prove`: the long run of every promise, written to docs/reliability.md as promise, test, last figure.

A test belongs to a promise by its name: `test_i13_…` to promise I-13, `test_d08_…` to row D8 of the specification,
`test_o01_…` to field case O-01, `test_bad_input_16_…` to bad input 16, `test_v05_…` to advisory V-5. A name may carry
several (`test_i22_i23_…`, `test_a3_to_a9_…`, `test_bad_input_01_to_06_and_14_…`, `test_d14_bad_input_109_…`); such a
test stands under each of them. docs/promises.md has a row for every one.
"""

import ast
import hashlib
import json
import os
import re
import sys
from collections import defaultdict
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest
from tests.conftest import FIGURES

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "docs" / "reliability.md"
SWITCH = "MINUTEBOOK_PROVE"
"""Set here, and read by `tests.budgets`."""
ROWS = r"((?:[icdaeobv]\d+_(?:to_(?=[icdaeobv]\d))?)*)"
NAME = re.compile(rf"test_{ROWS}(?:bad_input_(\d+(?:_(?:to_|and_)?\d+)*)_)?{ROWS}")
FAMILIES = {
    "i": ("Promises", "I-"),
    "c": ("Conversations", "C"),
    "d": ("Decisions", "D"),
    "a": ("Chat", "A"),
    "e": ("Engine", "E"),
    "b": ("Beyond", "B"),
    "o": ("Field cases", "O-"),
    "bad_input": ("Bad inputs", ""),
    "v": ("Advisories", "V-"),
}


class Collector:
    """What ran, how it ended, how long it took, and what of it ran at full length, and when."""

    def __init__(self) -> None:
        self.ended: dict[str, tuple[str, float]] = {}
        self.figures: dict[str, list[str]] = {}
        """Of each function, as its newest run at the greatest length told them."""
        self.long: dict[str, tuple[str, str]] = {}
        """Of each test that has a budget and ran with it raised: on which day, and the digest of what it was then."""

    def load(self, path: Path) -> None:
        """Begin with what earlier parts found; a test that is another by now did not run at full length."""
        if path.exists():
            ended, figures, long = json.loads(path.read_text())
            self.ended.update((nodeid, (outcome, seconds)) for nodeid, (outcome, seconds) in ended.items())
            self.figures.update(figures)
            self.long.update(
                (nodeid, (day, digest))
                for nodeid, (day, digest) in long.items()
                if digest == digest_of(function_of(nodeid))
            )

    def save(self, path: Path) -> None:
        path.write_text(json.dumps([self.ended, self.figures, self.long]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.skipped or report.failed:
            self.ended[report.nodeid] = (report.outcome, report.duration)
            function = function_of(report.nodeid)
            if report.outcome != "passed":
                self.long.pop(report.nodeid, None)
            elif os.environ.get(SWITCH) == "1" and scales(function):
                self.long[report.nodeid] = (f"{datetime.now(UTC):%Y-%m-%d}", digest_of(function))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        told: dict[str, list[str]] = defaultdict(list)
        for nodeid, text in session.config.stash[FIGURES].noted:
            told[function_of(nodeid)].append(text)
        kept = set() if os.environ.get(SWITCH) == "1" else {function_of(nodeid) for nodeid in self.long}
        self.figures.update({function: figures for function, figures in told.items() if function not in kept})


def function_of(nodeid: str) -> str:
    return nodeid.partition("[")[0]


def scales(function: str) -> bool:
    """Whether a test has a budget that the long run raises; one that has none is not run any longer by it."""
    path, _, name = function.partition("::")
    return (ROOT / path).exists() and name in scaling(ROOT / path)


def digest_of(function: str) -> str:
    """Return what tells a test from what it was: a digest of it and of all in its module that it uses."""
    path, _, name = function.partition("::")
    return _digests(ROOT / path).get(name, "") if (ROOT / path).exists() else ""


@cache
def _digests(path: Path) -> dict[str, str]:
    named = {name: node for node in ast.parse(path.read_text()).body for name in _bound(node)}
    found: dict[str, str] = {}
    for test in named:
        used: set[str] = set()
        due = {test}
        while due:
            used |= due
            due = {name for each in due for name in _used(named[each]) if name in named} - used
        found[test] = hashlib.sha256("\n".join(ast.dump(named[name]) for name in sorted(used)).encode()).hexdigest()
    return found


@cache
def scaling(path: Path) -> frozenset[str]:
    """Return the names of a module of tests that depend on `budget`: by themselves, or through others of them."""
    tree = ast.parse(path.read_text())
    depend = {name for node in tree.body if isinstance(node, ast.ImportFrom) for name in _scaling_imports(node)}
    named = [(names, _used(node)) for node in tree.body if (names := _bound(node))]
    while more := {name for names, used in named if used & depend for name in names} - depend:
        depend |= more
    return frozenset(depend)


def _scaling_imports(node: ast.ImportFrom) -> set[str]:
    module = ROOT / (node.module or "").replace(".", "/")
    if node.module == "tests.budgets":
        depend = frozenset({"budget"})
    elif (node.module or "").startswith("tests.") and module.with_suffix(".py").exists():
        depend = scaling(module.with_suffix(".py"))
    else:
        return set()
    return {alias.asname or alias.name for alias in node.names if alias.name in depend}


def _bound(node: ast.stmt) -> set[str]:
    """Return the names that a statement of a module binds."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}


def _used(node: ast.stmt) -> set[str]:
    """Return the names that a statement reads, a function's parameters included: fixtures are asked for by name."""
    inside = list(ast.walk(node))
    return {each.id for each in inside if isinstance(each, ast.Name)} | {
        each.arg for each in inside if isinstance(each, ast.arg)
    }


def promises_of(nodeid: str) -> set[tuple[str, int]]:
    """Return every promise that a test's name carries."""
    found = NAME.match(nodeid.rpartition("::")[2] + "_")
    if found is None:
        return set()
    before, inputs, behind = found.groups(default="")
    rows = before + behind
    named = {(family, int(number)) for family, number in re.findall(r"([a-z])(\d+)_", rows)}
    for family, first, last in re.findall(r"([a-z])(\d+)_to_\1(\d+)_", rows):
        named.update((family, number) for number in range(int(first), int(last)))
    named.update(("bad_input", int(number)) for number in re.findall(r"\d+", inputs))
    for first, last in re.findall(r"(\d+)_to_(\d+)", inputs):
        named.update(("bad_input", number) for number in range(int(first), int(last)))
    return named


def table(collector: Collector) -> str:
    """Return the document: one row for each test function, under the promise that its name gives."""
    runs: dict[str, list[str]] = defaultdict(list)
    for nodeid in collector.ended:
        runs[function_of(nodeid)].append(nodeid)
    lines = [
        "# Reliability",
        "",
        "Written by `make prove`, which runs promises at their full length. That takes hours and is done in parts: a",
        "row says what of it was run so, and on which day; its figure is of then. All others are of the last run, on a",
        "budget of seconds each, as `make test` has it. A test that was changed since counts as not run so.",
        "A harness that can only pass has a planted fault that it must find, in the same file.",
        "",
        f"Last run: {datetime.now(UTC):%Y-%m-%d}, Python {sys.version.split()[0]}, {len(collector.ended):,} tests.",
    ]
    for family, (title, prefix) in FAMILIES.items():
        rows = sorted((number, name) for name in runs for kind, number in promises_of(name) if kind == family)
        if rows:
            lines += [
                "",
                f"## {title}",
                "",
                "| promise | test | runs | outcome | last figure |",
                "| --- | --- | --- | --- | --- |",
            ]
            lines += [row(f"{prefix}{number}", name, runs[name], collector) for number, name in rows]
    return "\n".join(lines) + "\n"


def row(promise: str, name: str, runs: list[str], collector: Collector) -> str:
    path, _, function = name.partition("::")
    outcomes = [collector.ended[nodeid][0] for nodeid in runs]
    outcome = "failed" if "failed" in outcomes else "passed" if "passed" in outcomes else "skipped"
    if skipped := outcomes.count("skipped") * (outcome != "skipped"):
        outcome += f", {skipped} skipped"
    if days := sorted(collector.long[nodeid][0] for nodeid in runs if nodeid in collector.long):
        share = f"{len(days)} of {len(runs)} " if len(days) + outcomes.count("skipped") < len(runs) else ""
        outcome += f", {share}at full length on {days[0]}"
    seconds = sum(collector.ended[nodeid][1] for nodeid in runs)
    shown = "; ".join(dict.fromkeys(collector.figures.get(name, []))).replace("|", "/")
    shown = shown or ("none" if days else f"{seconds:.1f} s")  # that time would be of the last run
    return f"| {promise} | `{path}` {function.removeprefix('test_')} | {len(runs)} | {outcome} | {shown} |"


def main(arguments: list[str]) -> int:
    """
    Run the long budgets and write the table, also when something failed: then the table says so.

    With `--short` the budgets are those of `make test`. A run takes hours; with
    `--parts=FILE` it can be made in parts, each given as pytest's own arguments: FILE carries on what was found.
    """
    short = "--short" in arguments
    parts = next((Path(argument.partition("=")[2]) for argument in arguments if argument.startswith("--parts=")), None)
    arguments = [argument for argument in arguments if argument != "--short" and not argument.startswith("--parts=")]
    if not short:
        assert "tests.budgets" not in sys.modules, "it has looked at the switch already"
        os.environ[SWITCH] = "1"
    collector = Collector()
    if parts:
        collector.load(parts)
    code = pytest.main(["-q", "--timeout=14400", *arguments], plugins=[collector])
    if parts:
        collector.save(parts)
    TABLE.write_text(table(collector))
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
