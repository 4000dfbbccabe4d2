"""Which promises a test's name carries, and that docs/promises.md has a row for each of them."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from tests.prove import FAMILIES, Collector, _digests, digest_of, promises_of, scales, scaling, table

TESTS = Path(__file__).parent
FACES = TESTS / "faces"
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


@cache
def names_in(path: Path) -> frozenset[str]:
    """Return the names of the test functions of a file, read from the source."""
    return frozenset(
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )


def names() -> set[str]:
    """Return the names of all test functions."""
    return {name for path in TESTS.rglob("test_*.py") for name in names_in(path)}


def carried_by(path: Path) -> set[tuple[str, int]]:
    return {promise for name in names_in(path) for promise in promises_of(name)}


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


def test_the_word_of_a_family_is_followed_by_a_number() -> None:
    """A test whose name says `bad_input` and no more, or says it elsewhere than where ids stand, would be in no row."""
    spoken = {name for name in names() if "bad_input" in name}
    assert {name for name in spoken if "bad_input" not in {family for family, _ in promises_of(name)}} == set()


def test_every_row_has_a_test() -> None:
    """A promise that no test is named after is none."""
    carried = {promise for name in names() for promise in promises_of(name)}
    assert rows() - carried == set()


def named_by_rows() -> dict[tuple[str, int], set[Path]]:
    """Return the files that each row of a chat and of an engine names."""
    told = re.findall(r"^\| ([AE])(\d+) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    return {
        (family.lower(), int(number)): {
            TESTS.parent / file if "/" in file else FACES / file for file in re.findall(r"`([\w/]+\.py)`", text)
        }
        for family, number, text in told
    }


def test_the_files_that_a_row_names_have_a_test_of_it() -> None:
    """Rows of a chat and of an engine say where they are proved, and no file of theirs is named by no row."""
    rows = named_by_rows()
    for row, files in rows.items():
        assert files, f"{row} names no file"
        assert [file.name for file in files if row not in carried_by(file)] == [], row
    told = {FACES / file for file in re.findall(r"`(test_\w+\.py)` (?:and|prove)", PAGE.read_text())}
    theirs = [path for path in FACES.glob("test_*.py") if path.name.startswith(("test_agent", "test_engine"))]
    assert {path.name for path in theirs if {"a", "e"} & {family for family, _ in carried_by(path)}} <= {
        path.name for path in told.union(*rows.values())
    }


def test_elsewhere_a_row_of_a_chat_or_an_engine_stands_in_the_files_that_it_names() -> None:
    """An id of another list that looks like one of theirs is not counted for them."""
    rows = named_by_rows()
    elsewhere = [path for path in TESTS.rglob("test_*.py") if path.parent != FACES and path.name != "test_examples.py"]
    assert [
        (str(path.relative_to(TESTS)), row)
        for path in elsewhere
        for row in carried_by(path) & rows.keys()
        if path not in rows[row]
    ] == []


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


def outcome_of(*outcomes: str) -> str:
    """Return what the table says of a test whose runs ended so."""
    collector = Collector()
    for number, outcome in enumerate(outcomes):
        collector.ended[f"tests/stores/test_ids.py::test_v04_ids[{number}]"] = (outcome, 0.1)
    return next(line for line in table(collector).splitlines() if line.startswith("| V-4 ")).split(" | ")[3]


@pytest.mark.parametrize(
    ("outcomes", "told"),
    [
        (("passed", "passed"), "passed"),
        (("passed", "skipped", "skipped"), "passed, 2 skipped"),
        (("skipped", "skipped"), "skipped"),
        (("failed", "passed", "skipped"), "failed, 1 skipped"),
        (("failed", "passed"), "failed"),
    ],
)
def test_a_row_says_how_many_of_its_runs_were_skipped(outcomes: tuple[str, ...], told: str) -> None:
    """A promise that was looked at on one store of seven is not told as one that was looked at on all."""
    assert outcome_of(*outcomes) == told


KILLS = "tests/faults/test_crash.py::test_i01_killed_at_random_moments"


@pytest.mark.parametrize(
    ("long", "told"),
    [
        ({}, "passed"),
        ({"[a]": "2026-01-02"}, "passed, 1 of 2 at full length on 2026-01-02"),
        ({"[a]": "2026-01-02", "[b]": "2026-01-01"}, "passed, at full length on 2026-01-01"),
        ({"[gone]": "2026-01-02"}, "passed"),
    ],
)
def test_a_row_says_what_of_it_ran_at_full_length_and_when(long: dict[str, str], told: str, tmp_path: Path) -> None:
    """Runs that came since, or are another test's by now, are told as the short ones that they are."""
    earlier, now = Collector(), Collector()
    for run in ("[a]", "[b]"):
        earlier.ended[KILLS + run] = ("passed", 0.1)
    earlier.long = {KILLS + run: (day, digest_of(KILLS)) for run, day in long.items()}
    earlier.long[KILLS + "[b]"] = earlier.long.get(KILLS + "[b]", ("2026-01-03", "as it was before"))
    earlier.save(tmp_path / "parts.json")
    now.load(tmp_path / "parts.json")
    assert next(line for line in table(now).splitlines() if line.startswith("| I-1 ")).split(" | ")[3] == told


def test_a_digest_tells_a_test_by_all_that_it_uses_of_its_module(tmp_path: Path) -> None:
    """A constant or a helper that changes makes another test of it; a neighbour, a comment and the layout do not."""
    module = tmp_path / "test_made_up.py"

    def digest(text: str) -> str:
        module.write_text(text)
        _digests.cache_clear()
        return digest_of(f"{module}::test_it")

    was = digest("A = 1\ndef help(): return A\ndef test_it(): help()\ndef test_else(): pass\n")
    assert digest("A = 1  # one\ndef help():\n  return A\ndef test_it(): help()\n") == was
    assert digest("A = 2\ndef help(): return A\ndef test_it(): help()\n") != was
    assert digest("A = 1\ndef help(): return -A\ndef test_it(): help()\n") != was


@pytest.mark.parametrize(
    ("function", "scaled"),
    [
        ("tests/stores/test_records.py::test_i20_what_was_appended_is_read_back_equal", True),  # by itself
        (
            "tests/faults/test_power_cut.py::test_i02_acknowledged_commits_survive_every_power_cut",
            True,
        ),  # by its module
        ("tests/faces/test_agent_bounds.py::test_no_such_test", False),
        ("tests/faults/test_power_cut.py::test_i03_control_the_check_sees_half_a_commit", False),
        ("tests/stores/test_exclusion.py::test_i12_reservation_is_never_released_by_time", False),
    ],
)
def test_what_has_no_budget_runs_at_no_full_length(function: str, scaled: bool) -> None:
    """A long run says "at full length" of those tests alone that a budget makes longer."""
    assert scales(function) is scaled


def test_names_from_other_modules_carry_their_budget(tmp_path: Path) -> None:
    """A constant, a fixture and a set of parameters scale; a time limit does not, nor does a neighbour."""
    module = tmp_path / "test_made_up.py"
    module.write_text(
        "from tests.budgets import PROVE, budget\n"
        "from tests.faults.test_crash import KILLS\n"
        "CASES = range(budget(1, 2))\n"
        "@pytest.fixture\n"
        "def many(): return list(CASES)\n"
        "def test_by_fixture(many): pass\n"
        "def test_by_import(): assert KILLS\n"
        "@pytest.mark.parametrize('case', CASES)\n"
        "def test_by_parameters(case): pass\n"
        "@pytest.mark.timeout(2 if PROVE else 1)\n"
        "def test_alone(): pass\n"
    )
    assert {name for name in scaling(module) if name.startswith("test_")} == {
        "test_by_fixture",
        "test_by_import",
        "test_by_parameters",
    }


def test_the_switch_is_read_in_one_place() -> None:
    """All budgets go through `budget`: beside it only time limits ask whether the run is a long one."""
    for path in sorted(TESTS.rglob("*.py")):
        text = path.read_text()
        if path.name in ("budgets.py", "prove.py", "test_prove.py"):
            continue
        assert '"MINUTEBOOK_PROVE"' not in text, path
        asked = [line for line in text.splitlines() if " if PROVE" in line or "if not PROVE" in line]
        assert [line for line in asked if "timeout(" not in line and ".join(" not in line] == [], path
