"""Which promises a test's name carries, and that docs/promises.md has a row for each of them."""

import ast
import re
from pathlib import Path

import pytest
from tests.prove import FAMILIES, Collector, promises_of, table

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "promises.md"


def rows() -> set[tuple[str, int]]:
    """Return the ids that the page explains; bad inputs stand there by number, several to a row."""
    found = set()
    for cell in re.findall(r"^\| ([^|]+) \|", PAGE.read_text(), re.MULTILINE):
        if re.fullmatch(r"[\d, ]+", cell):
            found.update(("bad_input", int(number)) for number in cell.split(","))
        elif named := re.fullmatch(r"([A-Z])-?(\d+)", cell):
            found.add((named[1].lower(), int(named[2])))
    return found


def names() -> set[str]:
    """Return the names of all test functions, read from the source."""
    trees = (ast.parse(path.read_text()) for path in sorted(TESTS.rglob("test_*.py")))
    functions = (node for tree in trees for node in ast.walk(tree))
    return {
        node.name
        for node in functions
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


@pytest.mark.parametrize(
    ("name", "carried"),
    [
        ("test_d08_windows_lose_whole_exchanges", {("d", 8)}),
        ("test_a1_b11_the_blocking_twin_does_the_same", {("a", 1), ("b", 11)}),
        ("test_a3_to_a9_random_stories", {("a", number) for number in range(3, 10)}),
        ("test_a1_to_a10_a_conversation_with_a_real_model", {("a", number) for number in range(1, 11)}),
        ("test_a1_to_a3_e6_more", {("a", 1), ("a", 2), ("a", 3), ("e", 6)}),
        ("test_v05_no_statement_is_built[policy/window.py]", {("v", 5)}),
        ("test_i18_v16_a_waiting_commit", {("i", 18), ("v", 16)}),
        ("test_bad_input_01_to_03_and_14_ids", {("bad_input", number) for number in (1, 2, 3, 14)}),
        ("test_d14_bad_input_109_a_redirect", {("d", 14), ("bad_input", 109)}),
        ("test_d26_to_the_letter", {("d", 26)}),
        ("test_import_costs_little", set()),
    ],
)
def test_a_name_carries_its_promises(name: str, carried: set[tuple[str, int]]) -> None:
    """Ids stand at the beginning, ranges of one family whole, and nothing else in a name counts."""
    assert promises_of(f"tests/test_x.py::{name}") == carried


def test_every_id_in_a_name_has_a_row() -> None:
    """A reader who looks an id up finds it, and each family has tests."""
    carried = {promise for name in names() for promise in promises_of(name)}
    assert carried - rows() == set()
    assert {family for family, _ in carried} == set(FAMILIES)


def test_every_row_has_a_test() -> None:
    """A promise that no test is named after is none."""
    carried = {promise for name in names() for promise in promises_of(name)}
    assert rows() - carried == set()


def test_the_table_files_a_test_under_each_of_its_promises() -> None:
    """A chat's row is no advisory, and a range of rows stands under every one of them."""
    collector = Collector()
    collector.ended = {
        "tests/faces/test_agent.py::test_a2_to_a3_context[RAM]": ("passed", 0.5),
        "tests/faces/test_agent.py::test_a2_to_a3_context[SQLite]": ("failed", 0.5),
        "tests/stores/test_ids.py::test_v04_ids": ("passed", 0.1),
    }
    _, *sections = table(collector).split("\n## ")
    assert [section.partition("\n")[0] for section in sections] == ["Chat", "Advisories"]
    chat, advisories = ([row for row in section.splitlines() if row.startswith("| ")][2:] for section in sections)
    assert chat == [f"| A{row} | `tests/faces/test_agent.py` a2_to_a3_context | 2 | failed | 1.0 s |" for row in (2, 3)]
    assert advisories == ["| V-4 | `tests/stores/test_ids.py` v04_ids | 1 | passed | 0.1 s |"]
