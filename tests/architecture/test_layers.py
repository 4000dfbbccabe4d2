"""The layers of the package: what each part may import, read from the source and held here."""

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "minutebook"

LAYERS = {
    "inflight": set(),
    "lasting": set(),
    "errors": {"lasting"},
    "model": {"errors"},
    "ports": {"model", "errors"},
    "policy": {"ports", "model", "errors"},
    "reserving": {"ports", "model", "errors"},
    "stores": {"inflight", "reserving", "ports", "model", "errors"},
    "providers": {"ports", "model", "errors", "lasting"},
    "fitting": {"ports", "policy", "model", "errors"},
    "record_reader": {"ports", "policy", "model", "errors"},
    "windows": {"record_reader", "fitting", "ports", "policy", "model", "errors"},
    "history": {"reserving", "windows", "record_reader", "fitting", "ports", "policy", "model", "errors"},
    "runtime": {"history", "reserving", "ports", "policy", "model", "errors"},
}
"""For each part, the other parts that it may import. Faces, the command line and testing stand above all of these."""

FACES = {
    "_version": set(),
    "local": set(),
    "continuation": set(),
    "reading": set(),
    "turn": set(),
    "conversation": {"continuation", "reading", "turn"},
    "options": set(),
    "received": set(),
    "steps": {"options", "received"},
    "decisions": {"options", "steps"},
    "programs": set(),
    "engine_config": set(),
    "sessions": {"engine_config"},
    "engine": {"engine_config", "sessions"},
    "chat": {"programs", "reading"},
    "agent": {"chat", "programs", "reading"},
    "__init__": {"_version", "agent", "conversation", "decisions", "engine", "programs", "reading", "turn"},
}
"""For each face, the other faces that it may import, beside all layers: none of them blocking, a command or a test."""

ABOVE = {
    "sync": {*FACES},
    "cli": {*FACES},
    "__main__": {"cli"},
    "testing": {*FACES, "sync", "cli"},
}
"""What stands above the faces, and what of them and of each other it may import, beside all layers."""

RULES = LAYERS | {part: set(LAYERS) | others for part, others in (FACES | ABOVE).items()}

CORE = ("model", "policy", "reserving", "fitting", "record_reader", "windows", "history", "runtime")
FORBIDDEN_IN_CORE = {
    "aiosqlite",
    "anthropic",
    "anyio",
    "asyncio",
    "concurrent",
    "google",
    "httpx2",
    "multiprocessing",
    "openai",
    "psycopg",
    "queue",
    "random",
    "redis",
    "secrets",
    "socket",
    "sqlite3",
    "subprocess",
    "threading",
    "time",
    "trio",
    "uuid",
}
"""
No event loop, database, HTTP client, SDK, clock, random source, thread or lock in the core: they arrive through ports,
and a lock is given by the store that makes it.
"""


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


PARTS = frozenset(map(part_of, sources()))


def imported_modules(path: Path) -> set[str]:
    """Return the modules that a file imports anywhere in it, under TYPE_CHECKING and inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute, so that a layer is seen where it is named"
            if node.module == "minutebook":
                found.update(f"minutebook.{alias.name}" for alias in node.names)
            else:
                found.add(node.module or "")
    return found


def imported_parts(path: Path) -> set[str]:
    """Return the parts of the package that a file imports; a public name taken from `minutebook` is its `__init__`."""
    named = (name.split(".") for name in imported_modules(path))
    return {rest[0] if rest and rest[0] in PARTS else "__init__" for package, *rest in named if package == "minutebook"}


def own_parts(path: Path) -> set[str]:
    return imported_parts(path) - {part_of(path)}


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_part_imports_only_the_layers_below_it(path: Path) -> None:
    """An arrow of the design means «may import»; nothing else is allowed."""
    part = part_of(path)
    assert part in RULES, f"{part} is in no layer; say where it belongs"
    assert own_parts(path) - RULES[part] == set()


def test_the_rules_have_no_circle_and_name_no_part_that_is_gone() -> None:
    """Two parts that may import each other would be one part."""
    TopologicalSorter(RULES).prepare()
    assert set(RULES) == PARTS


def test_control_an_import_from_above_is_seen(tmp_path: Path) -> None:
    """However it is written, and wherever in a file."""
    planted = tmp_path / "planted.py"
    planted.write_text("from minutebook import sync\ndef late():\n    import minutebook.cli.app\n")
    assert imported_parts(planted) == {"sync", "cli"}
    planted.write_text("import minutebook\n")
    assert imported_parts(planted) == {"__init__"}
    planted.write_text("from minutebook import Conversation\nfrom minutebook.testing.drive import drive\n")
    assert imported_parts(planted) == {"__init__", "testing"}
    assert all("sync" not in RULES[face] and "cli" not in RULES[face] for face in FACES)


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_imports_the_testing_kit(path: Path) -> None:
    """What users test with is above everything and below nothing."""
    if part_of(path) != "testing":
        assert "testing" not in own_parts(path)


@pytest.mark.parametrize("path", [path for path in sources() if part_of(path) in CORE], ids=str)
def test_the_core_reaches_nothing_outside(path: Path) -> None:
    """Time, ids and randomness arrive through ports, so that every failure replays from a seed."""
    outside = {name.split(".")[0] for name in imported_modules(path)}
    assert not outside & FORBIDDEN_IN_CORE


PAGE = PACKAGE.parents[1] / "docs" / "architecture.md"


def placed_on_the_page(text: str) -> list[str]:
    """
    Return the paths that the page's tables place, relative to the package; one that ends in `/` is a whole folder.

    A table of files is headed `| part | file |`, an empty part being that of the row above, or it has `| file |` alone
    and stands under a heading with the part's folder.
    """
    found: list[str] = []
    folder, part, header = "", "", ""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            header = ""
            if line.startswith("## "):
                folder = "".join(re.findall(r"`([a-z_]+/)`", line))
        elif not header:
            header, part = cells[0], folder
        elif header in ("part", "file") and not cells[0].startswith("---"):
            if header == "part" and cells[0]:
                part = "".join(re.findall(r"`([a-z_]+/)`", cells[0]))
            found += [
                part + name for name in re.findall(r"`((?:[a-z_]+/)*[a-z_]+(?:\.py|/))`", cells[header == "part"])
            ]
    return found


def test_the_architecture_page_places_every_file() -> None:
    """A file that the page does not place is one that a newcomer has to guess about; so is one that is gone."""
    placed = placed_on_the_page(PAGE.read_text())
    folders = tuple(path for path in placed if path.endswith("/"))
    files = {str(path.relative_to(PACKAGE)) for path in sources() if not path.name.startswith("_")}
    assert sorted(placed) == sorted(set(placed)), "a file stands on the page twice"
    assert {path for path in files if not path.startswith(folders)} - set(placed) == set()
    assert {path for path in placed if path.endswith(".py")} - files == set()
    assert [folder for folder in folders if not any(path.startswith(folder) for path in files)] == []


def test_control_a_file_of_one_part_does_not_stand_for_its_namesake() -> None:
    """Bare names would do that: several parts have a `clock.py`."""
    text = """
## The ground floor: `model/`

| file | what it holds |
| --- | --- |
| `clock.py`, `pause.py` | `codec.py` is not placed here |

## The floors above

| part | file | what it holds |
| --- | --- | --- |
| ports | `ports.py` | one |
| `stores/` | `sqlite.py` | two |
| | `clock.py`, `sub/` | three |
"""
    model, stores = ["model/clock.py", "model/pause.py"], ["stores/sqlite.py", "stores/clock.py", "stores/sub/"]
    assert placed_on_the_page(text) == [*model, "ports.py", *stores]


BANNED = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle", "yaml"}


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_v01_v02_v03_v04_no_decoder_that_can_run_code(path: Path) -> None:
    """Advisories V-1 to V-4: nothing read from a store, a file or a message is revived as an object or executed."""
    tree = ast.parse(path.read_text())
    assert not {name.split(".")[0] for name in imported_modules(path)} & BANNED
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not called & {"eval", "exec", "compile", "__import__"}


def test_v03_control_the_ban_sees_a_planted_decoder(tmp_path: Path) -> None:
    """A ban that finds nothing in a file full of banned names would prove nothing."""
    planted = tmp_path / "planted.py"
    planted.write_text("import pickle\nimport yaml.loader\n")
    assert {name.split(".")[0] for name in imported_modules(planted)} & BANNED == {"pickle", "yaml"}


def test_importing_the_package_loads_no_driver_and_no_sdk() -> None:
    """`import minutebook` costs the standard library and msgspec at most."""
    code = "import sys; import minutebook; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"sqlite3", "asyncio", "openai", "anthropic", "httpx2", "typer", "rich", "ssl", "xllamacpp"}
    assert not set(run.stdout.split()) & heavy
