"""`minutebook export` and `minutebook import`, run as processes: all of it or nothing, and told so (SPEC B10, C4)."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import COMMAND, NAMESPACE, converse, documents, environment, hold, run

import minutebook
from minutebook.model.decisions import Decision, Finish, ProposedCall
from minutebook.programs import Runtime
from minutebook.runtime import Memory, MemoryResource, Program, capability
from minutebook.sync import SQLiteStore
from minutebook.testing import ScriptedProvider

STOCK = MemoryResource(name="stock", scope="namespace")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    converse(tmp_path / "shop.sqlite", "one", turns=3)
    return tmp_path


def asked(folder: Path, *arguments: str, database: str = "shop.sqlite", **options: Any) -> Any:
    """Run a command in a folder on the database there."""
    return run(*arguments, "--store", f"sqlite:///{database}", "--namespace", NAMESPACE, cwd=folder, **options)


def entries(folder: Path, name: str, database: str = "shop.sqlite") -> list[bytes]:
    with SQLiteStore(folder / database, namespace=NAMESPACE) as store:
        return [entry.payload for entry in store.entries(store.key(name))]


def test_b10_an_export_comes_back_whole_in_another_database(folder: Path) -> None:
    """B10, C4: private, verified, byte for byte; a second import of the file changes nothing."""
    told = asked(folder, "export", "one", "one.jsonl")
    assert (told.returncode, told.stdout) == (0, "exported one: 6 entries to one.jsonl\n")
    assert (folder / "one.jsonl").stat().st_mode & 0o777 == 0o600
    absent = asked(folder, "import", "copy", "one.jsonl", database="new.sqlite")
    assert absent.returncode == 2
    assert "no database" in absent.stderr
    assert "--create makes one" in absent.stderr
    assert not (folder / "new.sqlite").exists()
    for written in (True, False):
        made = asked(folder, "import", "copy", "one.jsonl", "--create", "--json", database="new.sqlite")
        assert made.returncode == 0
        (document,) = documents(made.stdout)
        assert document == {"id": "copy", "file": "one.jsonl", "entries": 6, "left": 0, "line": 0, "written": written}
    assert entries(folder, "copy", "new.sqlite") == entries(folder, "one")
    assert asked(folder, "verify", "copy", database="new.sqlite").returncode == 0


def test_b10_a_file_whose_name_is_no_utf8_is_told_in_json(folder: Path) -> None:
    """B10: what was done is told; the byte that no document can hold is escaped, as JSON escapes half a character."""
    for command in (("export", "one"), ("import", "two")):
        told = asked(folder, *command, "f\udcff", "--json")
        assert told.returncode == 0
        assert documents(told.stdout)[0]["file"] == "f\udcff"


def test_b10_an_export_replaces_nothing_unasked(folder: Path) -> None:
    """B10, C4: a file that is there stays without `--force`, and the message names that flag."""
    (folder / "mine").write_text("mine")
    refused = asked(folder, "export", "one", "mine")
    assert refused.returncode == 2
    assert "exists; name another file, or say --force to replace it" in refused.stderr
    assert (folder / "mine").read_text() == "mine"
    (document,) = documents(asked(folder, "export", "one", "mine", "--force", "--json").stdout)
    assert document == {"id": "one", "file": "mine", "entries": 6, "importable": True}
    assert asked(folder, "export", "absent", "other").returncode == 1
    hold(folder / "shop.sqlite", "held")
    assert asked(folder, "export", "held", "other").returncode == 1
    assert not (folder / "other").exists()


@capability(memory=[STOCK])
async def count(memory: Memory) -> str:
    """Say what is in stock."""
    await memory.write("stock", 7)
    return "7"


async def run_in(database: Path) -> None:
    """Run a program that keeps a checkpoint and a memory resource."""
    clerk: Program[str] = Program(name="clerk", instructions="Count.", capabilities=[count], memory=[STOCK], output=str)
    script = [Decision(calls=(ProposedCall(capability="count", arguments={}),)), Decision(finish=Finish(output="7"))]
    async with minutebook.SQLiteStore(database, namespace=NAMESPACE) as store:
        runtime = Runtime(clerk, ScriptedProvider(script), checkpoints=store, memory=store)
        assert (await runtime.run("go", run_id="r", invocation_id="i")).output == "7"


def test_b10_c04_an_export_says_where_no_import_takes_it(folder: Path) -> None:
    """B10, C4: the records of runs and of memory resources; whoever would import one is told what carries it."""
    asyncio.run(run_in(folder / "shop.sqlite"))
    with SQLiteStore(folder / "shop.sqlite", namespace=NAMESPACE) as store:
        kept = [each.key.id for each in store.list() if each.key.id != "one"]
    assert len(kept) == 2
    for number, name in enumerate(kept):
        told = asked(folder, "export", name, f"{number}.jsonl")
        assert told.returncode == 0
        assert told.stdout.endswith("; no import takes a record of this kind: `minutebook copy` carries it\n")
        (document,) = documents(asked(folder, "export", name, f"{number}.jsonl", "--force", "--json").stdout)
        assert document["importable"] is False
        refused = asked(folder, "import", "two", f"{number}.jsonl")
        assert refused.returncode == 3
        assert "its format is none that is taken here" in refused.stderr
        assert "by `copy`" in refused.stderr
    assert asked(folder, "export", "one", "one.jsonl").stdout == "exported one: 6 entries to one.jsonl\n"


def test_o48_a_torn_file_is_refused_or_its_good_prefix_is_taken(folder: Path) -> None:
    """O-48: nothing of it goes in unasked; the message says how far it is good and how that part is had."""
    asked(folder, "export", "one", "one.jsonl")
    whole = (folder / "one.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "torn.jsonl").write_bytes(b"".join(whole[:4]) + whole[4][:20])
    refused = asked(folder, "import", "torn", "torn.jsonl")
    assert (refused.returncode, refused.stdout) == (3, "")
    assert "line 5" in refused.stderr
    assert "nothing was imported: --good-prefix takes" in refused.stderr
    assert asked(folder, "show", "torn").returncode == 1
    taken = asked(folder, "import", "torn", "torn.jsonl", "--good-prefix")
    assert taken.returncode == 0
    assert "2 entries; 4 were left out, from line 5 on" in taken.stdout
    assert entries(folder, "torn") == entries(folder, "one")[:2]
    (folder / "early.jsonl").write_bytes(b"".join(whole[:2]))
    hopeless = asked(folder, "import", "early", "early.jsonl", "--good-prefix", "--json")
    (document,) = documents(hopeless.stdout)
    assert (document["error"], document["exit"], hopeless.returncode) == ("ImportRefused", 3, 3)
    assert "no exchange is complete before it" in document["message"]


def test_c04_a_file_of_the_conversation_as_it_stands_is_recognised(folder: Path) -> None:
    """C4: imported where it was exported nothing is written; once either has gone on it is a conflict, as before."""
    asked(folder, "export", "one", "one.jsonl")
    before = record(folder, "one")
    told = asked(folder, "import", "one", "one.jsonl")
    assert (told.returncode, told.stdout) == (0, "one is there already: 6 entries\n")
    assert record(folder, "one") == before
    converse(folder / "shop.sqlite", "other", turns=3)
    assert asked(folder, "import", "other", "one.jsonl").returncode == 1, "as many entries, of another conversation"
    converse(folder / "shop.sqlite", "one")
    gone_on = record(folder, "one")
    assert asked(folder, "import", "one", "one.jsonl").returncode == 1
    assert record(folder, "one") == gone_on
    asked(folder, "export", "one", "later.jsonl")
    hold(folder / "shop.sqlite", "one")
    assert "DecisionHistoryBusy" in asked(folder, "import", "one", "later.jsonl").stderr


def record(folder: Path, name: str) -> tuple[Any, list[Any]]:
    with SQLiteStore(folder / "shop.sqlite", namespace=NAMESPACE) as store:
        key = store.key(name)
        return store.header(key), list(store.receipts(key))


@pytest.mark.parametrize(("file", "code"), [("absent.jsonl", 3), ("shop.sqlite", 3), (".", 3), ("one.jsonl", 1)])
def test_b10_what_cannot_be_imported_has_its_exit_code(folder: Path, file: str, code: int) -> None:
    """B10: no such file, a foreign one, a folder; and a conversation that holds something else."""
    asked(folder, "export", "one", "one.jsonl")
    converse(folder / "shop.sqlite", "two")
    before = entries(folder, "two")
    refused = asked(folder, "import", "two", file)
    assert (refused.returncode, refused.stdout) == (code, "")
    assert "Traceback" not in refused.stderr
    assert entries(folder, "two") == before


def test_b10_progress_is_shown_on_a_terminal_and_nowhere_else(folder: Path) -> None:
    """B10: on standard error, so that what is piped stays clean; in a pipe there is none."""
    assert asked(folder, "export", "one", "quiet.jsonl").stderr == ""
    ours, theirs = pty.openpty()
    command = (*COMMAND, "export", "one", "one.jsonl", "--store", "sqlite:///shop.sqlite", "--namespace", NAMESPACE)
    settings = environment(TERM="xterm", COLUMNS="80")
    child = subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, env=settings, timeout=120
    )
    os.close(theirs)
    shown = os.read(ours, 100_000)
    os.close(ours)
    assert child.stdout == b"exported one: 6 entries to one.jsonl\n"
    assert b"exporting" in shown
    assert b"6/6" in shown
