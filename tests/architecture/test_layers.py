"""The layers of the package: what each part may import, read from the source and held here."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "minutebook"

LAYERS = {
    "errors": set(),
    "model": {"errors"},
    "ports": {"model", "errors"},
    "policy": {"ports", "model", "errors"},
    "stores": {"ports", "model", "errors"},
    "providers": {"ports", "model", "errors"},
    "fitting": {"ports", "policy", "model", "errors"},
    "record_reader": {"ports", "policy", "model", "errors"},
    "windows": {"record_reader", "fitting", "ports", "policy", "model", "errors"},
    "history": {"windows", "record_reader", "fitting", "ports", "policy", "model", "errors"},
    "runtime": {"history", "ports", "policy", "model", "errors"},
}
"""For each part, the other parts that it may import. Faces, the command line and testing stand above all of these."""

FACES = {
    "agent",
    "chat",
    "chat_options",
    "chat_requests",
    "talk",
    "conversation",
    "continuation",
    "decisions",
    "engine",
    "programs",
    "reading",
    "sessions",
    "sync",
    "cli",
    "local",
    "options",
    "steps",
    "turn",
    "__init__",
    "__main__",
    "_version",
    "testing",
}

CORE = ("model", "policy", "fitting", "record_reader", "windows", "history", "runtime")
FORBIDDEN_IN_CORE = {
    "asyncio",
    "aiosqlite",
    "anyio",
    "httpx2",
    "openai",
    "psycopg",
    "random",
    "redis",
    "secrets",
    "socket",
    "sqlite3",
    "time",
    "trio",
    "uuid",
}
"""No event loop, database, HTTP client, SDK, clock or random source in the core: they arrive through ports."""


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_modules(path: Path) -> set[str]:
    """Return the modules that a file imports anywhere in it, under TYPE_CHECKING and inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute, so that a layer is seen where it is named"
            found.add(node.module or "")
            if node.module == "minutebook":
                found.update(f"minutebook.{alias.name}" for alias in node.names)
    return found


def own_parts(path: Path) -> set[str]:
    names = {name.split(".")[1] for name in imported_modules(path) if name.startswith("minutebook.")}
    return names - {part_of(path)}


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_part_imports_only_the_layers_below_it(path: Path) -> None:
    """An arrow of the design means «may import»; nothing else is allowed."""
    part = part_of(path)
    if part in LAYERS:
        assert own_parts(path) <= LAYERS[part]
    else:
        assert part in FACES, f"{part} is in no layer; say where it belongs"


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


def test_the_architecture_page_names_every_file() -> None:
    """A file that the page does not place is one that a newcomer has to guess about; so is one that is gone."""
    text = (PACKAGE.parents[1] / "docs" / "architecture.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"`([a-z_]+\.py|[a-z]+/)`", row)}
    folders = {"wire/", "conformance/"}
    files = {
        path.name
        for path in sources()
        if not path.name.startswith("_") and not {"wire", "conformance"} & set(path.relative_to(PACKAGE).parts)
    }
    parts = {f"{path.name}/" for path in PACKAGE.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    assert files - named == set()
    assert {name for name in named if name.endswith(".py")} - files == set()
    assert (parts - {"model/"} | folders) - named == set()


BANNED = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle", "yaml"}


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a01_a02_a03_a04_no_decoder_that_can_run_code(path: Path) -> None:
    """Advisories A1 to A4: nothing read from a store, a file or a message is revived as an object or executed."""
    tree = ast.parse(path.read_text())
    assert not {name.split(".")[0] for name in imported_modules(path)} & BANNED
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not called & {"eval", "exec", "compile", "__import__"}


def test_a03_control_the_ban_sees_a_planted_decoder(tmp_path: Path) -> None:
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
