"""`minutebook copy`, run as processes: whole and proved, or named and left, whatever strikes in between (SPEC B10)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pty
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from servers import postgres
from servers import redis as servers
from tests.budgets import PROVE, budget
from tests.cli.commands import COMMAND, NAMESPACE, converse, documents, environment, hold, run
from tests.faults.kill import SYNCS, database_files, fault_points, kill_at
from tests.faults.trace import strace_problem

from minutebook.errors import DecisionHistoryError
from minutebook.sync import Conversation, SQLiteStore, open_store

Figure = Callable[[str], None]
HOSTILE = "a\x1b[2Jb\nc"

needs_strace = pytest.mark.skipif(strace_problem() is not None, reason=str(strace_problem()))
long_run = pytest.mark.timeout(7_200 if PROVE else 300)


def url(path: Path) -> str:
    return f"sqlite:///{path}"


def _database(folder: Path) -> str:
    """Return the URL of a database of its own on the shared PostgreSQL server."""
    server = postgres.shared()
    name = "c" + hashlib.sha256(str(folder).encode()).hexdigest()[:20]
    import psycopg

    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return str(server.url(name))


def _emptied(kind: str) -> str:
    """Return the URL of the shared server of this kind, or of its cluster, once nothing is on it."""
    import redis

    address = str(servers.shared(kind).url)
    nodes = address.partition("://")[2].rpartition("@")[2].partition("/")[0].split(",")
    if "cluster" in address:
        host, port = nodes[0].rsplit(":", 1)
        redis.RedisCluster(host=host, port=int(port)).flushall(target_nodes="primaries")
    else:
        redis.Redis.from_url(address).flushall()
    return address


PLACES: dict[str, Callable[[Path], str]] = {
    "sqlite": lambda folder: url(folder / "b"),
    "postgresql": _database,
    "redis": lambda folder: _emptied("Redis"),
    "cluster": lambda folder: _emptied("Redis cluster"),
}
"""For each kind of store that a URL names, the URL of an empty one; a store that is added adds a row."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture(params=PLACES)
def anywhere(request: pytest.FixtureRequest, folder: Path) -> Path:
    """A folder whose database is copied to a store of each kind."""
    (folder / "target").write_text(PLACES[request.param](folder))
    return folder


def target(folder: Path) -> str:
    """Return the URL of what the database `a` of a folder is copied to: `b`, if no other was chosen."""
    chosen = folder / "target"
    return chosen.read_text() if chosen.exists() else url(folder / "b")


def arguments(folder: Path, *more: str) -> list[str]:
    return ["copy", url(folder / "a"), target(folder), "--namespace", NAMESPACE, "--create", *more]


def opened(folder: Path) -> Any:
    """Return the store that is copied to."""
    return open_store(target(folder), namespace=NAMESPACE)


def copied(folder: Path, *more: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return run(*arguments(folder, *more), **options)


def started(folder: Path, *more: str, **options: Any) -> subprocess.Popen[bytes]:
    command = [*COMMAND, *arguments(folder, *more)]
    return subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def whole_copies(folder: Path) -> set[str]:
    """
    Return which conversations were copied, each of them the very same as in `a`, proved, and held by nobody.

    Whatever it holds of any other is a conversation that stands there half.
    """
    found: set[str] = set()
    with (
        SQLiteStore(folder / "a", namespace=NAMESPACE) as here,
        opened(folder) as there,
    ):
        for listing in there.list(limit=10_000):
            key = listing.key
            assert not listing.header.token, key.id
            assert there.verify(key) == listing.header
            assert list(there.entries(key)) == list(here.entries(key)), key.id
            assert list(there.receipts(key)) == list(here.receipts(key)), key.id
            found.add(key.id)
    return found


# --- what it does ----------------------------------------------------------------------------------------------------


def test_b10_a_namespace_is_copied_and_a_second_run_only_proves_it(folder: Path) -> None:
    """B10: in words and in JSON; nothing goes to standard error of a pipe, and no other namespace comes along."""
    converse(folder / "a", "one", "two", turns=3)
    with SQLiteStore(folder / "a", namespace="other") as store:
        Conversation(store, "secret", format="openai-chat").append([{"role": "user", "content": "x"}])
    first = copied(folder)
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout == "copied 2 conversations with 12 entries; 0 were there already; 0 were left\n"
    assert whole_copies(folder) == {"one", "two"}
    again = copied(folder, "--json")
    assert (again.returncode, again.stderr) == (0, "")
    verified = documents(run("verify", "--store", url(folder / "b"), "--namespace", NAMESPACE, "--json").stdout)
    for told, proved in zip(documents(again.stdout), verified, strict=True):
        assert told["outcome"] == "equal"
        assert (told["id"], told["entries"], told["digest"]) == (proved["id"], proved["entries"], proved["digest"])
    with SQLiteStore(folder / "b", namespace="other") as store:
        assert store.list() == ()


def test_b10_chosen_conversations_alone_are_copied(folder: Path) -> None:
    """B10: `--conversation` may be given again; an id that is not there is told, and the others go over."""
    converse(folder / "a", "one", "two", "three")
    told = copied(folder, "--conversation", "two", "--conversation", "none", "--conversation", "one", "--json")
    assert told.returncode == 1
    outcomes = [(each["id"], each["outcome"], each.get("error")) for each in documents(told.stdout)]
    assert outcomes == [("two", "copied", None), ("none", "left", "DecisionHistoryAbsent"), ("one", "copied", None)]
    assert whole_copies(folder) == {"one", "two"}


def test_d22_a_reserved_conversation_is_told_and_left(folder: Path) -> None:
    """D22: exit code 1, and how it is freed; the others are copied. Once it is free it goes over."""
    converse(folder / "a", "one", "two")
    hold(folder / "a", "held")
    told = copied(folder)
    assert told.returncode == 1
    assert told.stdout.startswith("held: left, DecisionHistoryBusy: ")
    assert "`minutebook recover` with --worker-stopped" in told.stdout
    assert told.stdout.endswith("copied 2 conversations with 4 entries; 0 were there already; 1 were left\n")
    run("recover", "held", "--worker-stopped", "--store", url(folder / "a"), "--namespace", NAMESPACE)
    assert copied(folder).returncode == 0
    assert whole_copies(folder) == {"held", "one", "two"}


def test_b10_a_conversation_that_differs_there_is_refused_by_name_and_kept(folder: Path) -> None:
    """B10: an earlier state, and another one of the same id; both stay, and the exit code is that of a refusal."""
    converse(folder / "a", "behind", "other", "same")
    assert copied(folder, "--conversation", "behind", "--conversation", "same").returncode == 0
    converse(folder / "a", "behind")
    converse(folder / "b", "other", text="Never.")
    before = (folder / "b").read_bytes()
    told = copied(folder, "--json")
    assert told.returncode == 1
    behind, other, same = documents(told.stdout)
    assert (behind["error"], other["error"], same["outcome"]) == (*["DecisionHistoryConflict"] * 2, "equal")
    assert "an earlier state of this conversation, 2 entries to 4; delete it there first" in behind["message"]
    assert "another conversation of this id" in other["message"]
    assert (folder / "b").read_bytes() == before


def _damage_sqlite(place: str) -> None:
    with contextlib.closing(sqlite3.connect(place.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        connection.execute("UPDATE minutebook_conversation SET state = '{' WHERE name = ?", (b"c",))


def _damage_postgres(place: str) -> None:
    database = place.rpartition("/")[2]
    postgres.shared().ask("UPDATE minutebook.conversation SET header = 'x' WHERE conversation = 'c'", database=database)


@pytest.mark.parametrize(
    ("place", "damage"),
    [(lambda folder: url(folder / "a"), _damage_sqlite), (_database, _damage_postgres)],
    ids=["sqlite", "postgresql"],
)
def test_o44_a_damaged_header_is_named_and_left_and_the_others_go_over(
    place: Callable[[Path], str], damage: Callable[[str], None], folder: Path
) -> None:
    """O-44: the exit code is that of damage, and a second run does the same."""
    source = place(folder)
    converse(folder / "made", *"abcde")
    assert run("copy", url(folder / "made"), source, "--create", "--namespace", NAMESPACE).returncode == 0
    damage(source)
    for outcome in ("copied", "equal"):
        told = run("copy", source, url(folder / "b"), "--create", "--json", "--namespace", NAMESPACE)
        assert told.returncode == 3, told.stderr
        outcomes = {each["id"]: each["outcome"] for each in documents(told.stdout)}
        assert outcomes == dict.fromkeys("abde", outcome) | {"c": "left"}


def test_i37_an_id_in_a_line_cannot_move_the_cursor(folder: Path) -> None:
    """I-37: it is told escaped."""
    hold(folder / "a", HOSTILE)
    told = copied(folder)
    assert told.stdout.startswith("a\\u{1b}[2Jb\\u{a}c: left, ")
    assert "\x1b" not in told.stdout


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("sqlite:///a", "sqlite:///none", "or an empty file; see TO; --create makes one"),
        ("sqlite:///none", "sqlite:///a", "there is no database of this name, or an empty file; see FROM"),
        ("sqlite:///a", "memory:", "give TO sqlite:///"),
        ("memory:", "sqlite:///a", "give FROM sqlite:///"),
        ("sqlite:///a", "sqlite:///./a", "the same store"),
        ("sqlite:///a", "oracle://me:hunter2@host", "no store for 'oracle:'"),
    ],
)
def test_b10_wrong_stores_are_exit_code_2_and_nothing_is_made(
    folder: Path, source: str, target: str, words: str
) -> None:
    """B10: a slip in a name makes no database and does not look like success; no password is said again."""
    converse(folder / "a", "one")
    told = run("copy", source, target, "--namespace", NAMESPACE, cwd=folder)
    assert (told.returncode, told.stdout) == (2, "")
    assert words in told.stderr
    assert "hunter2" not in told.stderr
    assert not (folder / "none").exists()


def test_b10_an_empty_namespace_is_no_success(folder: Path) -> None:
    """B10: exit code 1, and where to look."""
    converse(folder / "a", "one")
    told = run("copy", url(folder / "a"), url(folder / "b"), "--namespace", "shpo", "--create")
    assert (told.returncode, told.stdout) == (1, "")
    assert "see --namespace" in told.stderr


def test_bad_input_119_both_urls_can_come_from_the_environment(folder: Path) -> None:
    """119: a URL with a password has a place that no other user can read."""
    converse(folder / "a", "one")
    variables = {"MINUTEBOOK_STORE": url(folder / "a"), "MINUTEBOOK_TARGET": url(folder / "b")}
    told = run("copy", "--namespace", NAMESPACE, "--create", env=environment(**variables))
    assert told.returncode == 0
    assert whole_copies(folder) == {"one"}


def test_b10_progress_is_shown_on_a_terminal_and_lines_go_to_standard_output(folder: Path) -> None:
    """B10: the bar counts conversations and entries on standard error; with `--json` there is none."""
    converse(folder / "a", "one", "two", turns=3)
    hold(folder / "a", "held")
    for more, shown in (((), True), (("--json",), False)):
        ours, theirs = pty.openpty()
        settings = environment(TERM="xterm", COLUMNS="80")
        command = [*COMMAND, *arguments(folder, *more)]
        child = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, env=settings, timeout=120, check=False)
        os.close(theirs)
        bar = b""
        with contextlib.suppress(OSError):  # Linux: the other end is closed
            while piece := os.read(ours, 100_000):
                bar += piece
        os.close(ours)
        assert child.returncode == 1
        assert child.stdout.count(b"\n") == (2 if shown else 3)
        assert b"\x1b" not in child.stdout
        assert (b"copying" in bar and b"3/3" in bar and b"12/12" in bar) == shown, bar
        assert bool(bar) == shown


# --- killed, interrupted ---------------------------------------------------------------------------------------------


def finish(folder: Path, names: set[str]) -> None:
    """Run the command again: it goes on, and everything is there."""
    again = copied(folder)
    assert again.returncode == 0, again.stderr
    assert whole_copies(folder) == names


STEADY = """
from minutebook.cli import main
from minutebook.stores import sqlite_pace

sqlite_pace.SLOW_SECONDS = 3_600  # where a commit is made, and with it how often it writes, hangs on no disk's pace
main()
"""


@needs_strace
@long_run
def test_i01_i03_a_copy_killed_at_every_sync_write_and_unlink_goes_on(
    tmp_path_factory: pytest.TempPathFactory, figure: Figure
) -> None:
    """I-1, I-3: for every n a conversation is there whole or not at all, and the same command makes the copy whole."""
    names = {"one", "two", "three"}

    def fresh() -> Path:
        folder = tmp_path_factory.mktemp("killed")
        folder.chmod(0o700)
        converse(folder / "a", *names, turns=4, text="x" * 3_000)
        with SQLiteStore(folder / "b", namespace=NAMESPACE):
            return folder  # the making of a database has syncs of its own

    def command(folder: Path) -> list[str]:
        return [sys.executable, "-c", STEADY, *arguments(folder)]

    first = fresh()
    points = fault_points(command(first), (*SYNCS, "unlink", "pwrite64"), paths=database_files(first / "b"))
    syncs = [point for point in points if point[0] != "pwrite64"]
    writes = [point for point in points if point[0] == "pwrite64"]
    chosen = [*syncs, *writes[:: budget(max(1, len(writes) // 5), 1)]]
    held: list[int] = []
    for call, n in chosen:
        folder = fresh()
        end = kill_at(command(folder), n, call=call, paths=database_files(folder / "b"))
        assert end.struck, f"{call} {n} was never reached"
        held.append(len(whole_copies(folder)))
        finish(folder, names)
    assert len(set(held)) > 2, held
    figure(f"{len(chosen)} of {len(points)} moments; {held} of 3 conversations were there, each whole")


@long_run
def test_i01_what_a_killed_copy_has_told_is_there_and_many_kills_end_in_the_whole(
    anywhere: Path, figure: Figure
) -> None:
    """I-1: a line that was printed is a conversation that is there; each run goes on where one before was killed."""
    folder = anywhere
    names = {f"{number:03}" for number in range(120)}
    converse(folder / "a", *names, turns=2, text="x" * 2_000)
    held = [0]
    for number in range(budget(6, 40)):
        child = started(folder, "--json")
        assert child.stdout is not None
        told = []
        for line in child.stdout:
            told.append(json.loads(line)["id"])
            if len(told) == held[-1] + 3 + 5 * (number % 3):
                break
        child.kill()
        rest = child.communicate()[0].splitlines(keepends=True)
        told += [json.loads(line)["id"] for line in rest if line.endswith(b"\n")]
        assert child.returncode == -signal.SIGKILL or held[-1] + 14 > len(names)
        there = whole_copies(folder)
        assert set(told) <= there
        held.append(len(there))
    assert held == sorted(held)
    finish(folder, names)
    figure(f"{len(held) - 1} kills, {held[1:]} conversations there behind each")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_bad_input_113_an_interrupted_copy_leaves_nothing_half_and_goes_on(folder: Path, number: int) -> None:
    """113: what was told is there, nothing is held, and the next run makes it whole."""
    names = {f"{each:03}" for each in range(60)}
    converse(folder / "a", *names, turns=2, text="x" * 2_000)
    child = started(folder, "--json")
    assert child.stdout is not None
    first = json.loads(child.stdout.readline())["id"]
    child.send_signal(number)
    out, err = child.communicate(timeout=60)
    assert child.returncode != 0
    assert b"Traceback" not in err
    told = {first, *(json.loads(line)["id"] for line in out.splitlines(keepends=True) if line.endswith(b"\n"))}
    there = whole_copies(folder)
    assert told <= there < names
    finish(folder, names)


def test_i01_control_a_conversation_that_stands_half_is_found_out(folder: Path) -> None:
    """I-1: the harness fails where a copy lacks its last commit, or an entry was altered."""
    converse(folder / "a", "one", turns=2)
    with (
        SQLiteStore(folder / "a", namespace=NAMESPACE) as here,
        opened(folder) as there,
    ):
        here.copy(here.key("one"), there)
    assert whole_copies(folder) == {"one"}
    converse(folder / "a", "one")
    with pytest.raises(AssertionError):
        whole_copies(folder)


# --- others at work --------------------------------------------------------------------------------------------------


@long_run
def test_i10_two_copies_at_once_both_end_well(anywhere: Path) -> None:
    """I-10: none is in the other's way, and each conversation is there once."""
    folder = anywhere
    names = {f"{each:02}" for each in range(40)}
    converse(folder / "a", *names, turns=2)
    opened(folder).close()
    children = [started(folder, "--json") for _ in range(2)]
    outputs = [child.communicate(timeout=120) for child in children]
    assert [child.returncode for child in children] == [0, 0], outputs
    for out, _ in outputs:
        assert {each["id"] for each in documents(out.decode())} == names
        assert {each["outcome"] for each in documents(out.decode())} <= {"copied", "equal"}
    assert whole_copies(folder) == names


@long_run
def test_b10_an_original_that_is_written_to_meanwhile_is_copied_at_one_moment(anywhere: Path, figure: Figure) -> None:
    """B10: each copy is a state that its original had, whole; what was reserved just then is told, and nothing else."""
    folder = anywhere
    names = [f"{each:02}" for each in range(30)]
    converse(folder / "a", *names, turns=10)
    stop = threading.Event()
    written = 0

    def keep_writing() -> None:
        nonlocal written
        with SQLiteStore(folder / "a", namespace=NAMESPACE) as store:
            while not stop.is_set():
                for name in names:
                    conversation = Conversation(store, name, format="openai-chat")
                    with contextlib.suppress(DecisionHistoryError), conversation.turn(f"Question {written}") as turn:
                        turn.window()
                        turn.respond({"choices": [{"message": {"role": "assistant", "content": "So."}}]})
                        written += 1

    writer = threading.Thread(target=keep_writing)
    writer.start()
    try:
        told = copied(folder, "--json")
    finally:
        stop.set()
        writer.join()
    outcomes = documents(told.stdout)
    assert [each["id"] for each in outcomes] == names
    left = [each for each in outcomes if each["outcome"] == "left"]
    assert {each["error"] for each in left} <= {"DecisionHistoryBusy"}
    assert told.returncode == bool(left)
    assert written > len(names)
    with (
        SQLiteStore(folder / "a", namespace=NAMESPACE) as here,
        opened(folder) as there,
    ):
        for listing in there.list():
            header = there.verify(listing.key)
            earlier = [receipt for receipt in here.receipts(listing.key) if receipt.version <= header.version]
            assert list(there.receipts(listing.key)) == earlier
            assert header.digest == earlier[-1].digest
        assert len(there.list()) == len(names) - len(left)
    figure(f"{written} turns meanwhile, {len(left)} of {len(names)} conversations were reserved")


# --- a target that fails ---------------------------------------------------------------------------------------------


def test_i04_i07_a_full_disk_refuses_and_with_room_the_copy_goes_on(folder: Path) -> None:
    """I-4, I-7: exit code 3; what was told is there, nothing half; the same command goes on."""
    names = {f"{each:02}" for each in range(20)}
    converse(folder / "a", *names, turns=2, text="x" * 30_000)
    with SQLiteStore(folder / "b", namespace=NAMESPACE):
        pass
    full = copied(
        folder,
        "--json",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, resource.RLIM_INFINITY)),
    )
    *told, last = documents(full.stdout)
    assert (full.returncode, last["error"]) == (3, "DecisionHistoryStorageFailed")
    there = whole_copies(folder)
    assert {each["id"] for each in told} <= there < names
    finish(folder, names)


def test_i39_a_torn_target_is_refused_and_a_damaged_copy_is_named(folder: Path) -> None:
    """I-39: of a file that was cut nothing is written; an altered entry is found though its header is the same."""
    converse(folder / "a", "one", "three", "two", turns=3)
    assert copied(folder).returncode == 0
    whole = (folder / "b").read_bytes()
    with contextlib.closing(sqlite3.connect(folder / "b")) as connection, connection:
        (rowid,) = connection.execute(
            "SELECT max(l.rowid) FROM minutebook_log AS l JOIN minutebook_conversation AS c ON c.id = l.conversation "
            "WHERE c.name = CAST('three' AS BLOB)"
        ).fetchone()
        (entries,) = connection.execute("SELECT entries FROM minutebook_log WHERE rowid = ?", (rowid,)).fetchone()
        altered = entries.replace(b"Tuesday", b"Someday")
        assert altered != entries
        connection.execute("UPDATE minutebook_log SET entries = ? WHERE rowid = ?", (altered, rowid))
    told = copied(folder, "--json")
    assert told.returncode == 3
    assert [(each["id"], each["outcome"], each.get("error")) for each in documents(told.stdout)] == [
        ("one", "equal", None),
        ("three", "left", "DecisionHistoryCorrupt"),
        ("two", "equal", None),
    ]
    (folder / "b").write_bytes(whole[: len(whole) // 2])
    torn = copied(folder)
    assert torn.returncode == 3
    assert "Traceback" not in torn.stderr
    assert (folder / "b").read_bytes() == whole[: len(whole) // 2]


def test_b10_every_command_works_on_every_store_by_its_url(anywhere: Path) -> None:
    """B10: a copy to it, all that an operator may ask of it, and a copy back, which is the same record."""
    folder, place = anywhere, target(anywhere)
    converse(folder / "a", "one", "two", turns=3)
    opened(folder).close()
    there = ("--store", place, "--namespace", NAMESPACE)
    commands: list[tuple[int | None, tuple[str, ...]]] = [
        (0, ("copy", url(folder / "a"), place, "--namespace", NAMESPACE)),
        (0, ("list", *there)),
        (0, ("show", "one", "--messages", *there)),
        (0, ("verify", *there)),
        (0, ("stats", *there)),
        (None, ("doctor", *there)),  # which may find that a server is not durable
        (0, ("export", "one", str(folder / "one.jsonl"), *there)),
        (0, ("import", "three", str(folder / "one.jsonl"), *there)),
        (0, ("drop-summary", "one", *there)),
        (1, ("recover", "one", "--worker-stopped", *there)),
        (0, ("copy", place, url(folder / "back"), "--create", "--namespace", NAMESPACE, "--conversation", "one")),
        (0, ("delete", "one", "--yes", *there)),
        (1, ("show", "one", *there)),
    ]
    for code, command in commands:
        told = run(*command)
        assert told.returncode in ((0, 5) if code is None else (code,)), (command[0], told.stdout, told.stderr)
        assert "Traceback" not in told.stderr
    (folder / "target").write_text(url(folder / "back"))
    assert whole_copies(folder) == {"one"}


READING = ("list", "show", "verify", "stats", "doctor", "export")


def _read(command: str, place: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command that only reads, of one conversation where it takes one."""
    one = {"show": ("one",), "export": ("one", str(folder / f"{command}.jsonl"))}.get(command, ())
    told = run(command, *one, "--store", place, "--namespace", NAMESPACE)
    assert "Traceback" not in told.stderr
    return told


@pytest.mark.parametrize("command", READING)
def test_i25_a_command_that_reads_makes_nothing_in_an_empty_database(command: str, folder: Path) -> None:
    """I-25: no schema is there afterwards, whatever the command says of it."""
    place = _database(folder)
    _read(command, place, folder)
    asked = "SELECT nspname FROM pg_namespace WHERE nspname = 'minutebook'"
    assert postgres.shared().ask(asked, database=place.rpartition("/")[2]) == []


def test_i25_a_role_that_may_only_read_has_every_command_that_reads(folder: Path) -> None:
    """I-25: with USAGE and SELECT alone it lists, shows, verifies, exports and copies; to write it is refused."""
    place, server = _database(folder), postgres.shared()
    database = place.rpartition("/")[2]
    role = database.replace("c", "r", 1)
    converse(folder / "a", "one", "two")
    assert run("copy", url(folder / "a"), place, "--namespace", NAMESPACE).returncode == 0
    server.ask(f"CREATE ROLE {role} LOGIN PASSWORD '{postgres.PASSWORD}'")
    for grant in ("USAGE ON SCHEMA minutebook", "SELECT ON ALL TABLES IN SCHEMA minutebook"):
        server.ask(f"GRANT {grant} TO {role}", database=database)
    reader = server.url(database, user=role)
    for command in READING:
        assert _read(command, reader, folder).returncode == 0, command
    assert run("copy", reader, url(folder / "b"), "--create", "--namespace", NAMESPACE).returncode == 0
    assert whole_copies(folder) == {"one", "two"}
    told = run("delete", "one", "--yes", "--store", reader, "--namespace", NAMESPACE)
    assert (told.returncode, "GRANT" in told.stderr) == (3, True), told.stderr
    server.ask(f"DROP OWNED BY {role}", database=database)
    server.ask(f"DROP ROLE {role}")


def test_b10_every_command_refuses_a_scheme_of_no_store_alike() -> None:
    """B10, I-37: by its name alone, with what there is, and exit code 2."""
    strange = ("--store", "oracle://me:hunter2@host/db", "--namespace", NAMESPACE)
    commands = [
        *(["list"], ["verify"], ["stats"], ["doctor"], ["show", "x"], ["export", "x", "f"], ["import", "x", "f"]),
        *(["drop-summary", "x"], ["recover", "x", "--worker-stopped"], ["delete", "x", "--yes"]),
    ]
    children = [
        subprocess.Popen([*COMMAND, *each, *strange], env=environment(), stderr=subprocess.PIPE, text=True)
        for each in commands
    ]
    for each, child in zip(commands, children, strict=True):
        told = child.communicate(timeout=120)[1]
        assert child.returncode == 2, each
        assert told.startswith("InvalidOption: no store for 'oracle:'; there are sqlite:///<file>"), each
        assert "hunter2" not in told
