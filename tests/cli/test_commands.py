"""The operator's commands, run as processes on databases that the library made."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import re
import sqlite3
import subprocess
import sys
import time
import uuid
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from servers import postgres, redis
from tests.cli.commands import COMMAND, NAMESPACE, chat_response, converse, documents, environment, hold, run

import minutebook
import minutebook.sync
from minutebook.cli import terminal
from minutebook.cli.view import look
from minutebook.model.bounds import WindowLimits
from minutebook.model.decisions import Decision, DecisionRequest, Finish
from minutebook.model.shown import is_unseen
from minutebook.stores.journal import JournalStore
from minutebook.stores.memory import MemoryJournal
from minutebook.stores.private_refusals import unsafe
from minutebook.sync import Conversation, SQLiteStore, open_store

PACKAGES = ("anthropic", "httpx2", "msgspec", "openai", "rich", "typer")

HOSTILE = "a\x1b[2J\u202eb\u200d c\n[red]d\u3164\u009b31m\ufe0f"
"""Clears the screen, turns the writing round, breaks the line, is no markup, and hides letters that nobody sees."""
HOSTILE_SHOWN = "a\\u{1b}[2J\\u{202e}b\\u{200d} c\\u{a}[red]d\\u{3164}\\u{9b}31m\\u{fe0f}"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path / "shop.sqlite"


def asked(database: Path, command: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command on the database."""
    return run(command, *arguments, "--store", f"sqlite:///{database}", "--namespace", NAMESPACE, **options)


def calling(call_id: str) -> dict[str, Any]:
    """Return a response that calls a tool."""
    call = {"id": call_id, "type": "function", "function": {"name": "refund", "arguments": '{"order":"ORD-1"}'}}
    return {"choices": [{"message": {"role": "assistant", "content": None, "tool_calls": [call]}}]}


def test_b10_list_shows_counters_and_states(database: Path) -> None:
    """B10: each conversation with its counters; a reserved one says so; JSON has the same for programs."""
    converse(database, "one", "two", turns=2)
    hold(database, "held")
    told = asked(database, "list")
    assert told.returncode == 0
    assert "reserved (epoch 1)" in told.stdout
    found = documents(asked(database, "list", "--json").stdout)
    assert [each["id"] for each in found] == ["held", "one", "two"]
    assert [each["reserved"] for each in found] == [True, False, False]
    assert [(each["turns"], each["exchanges"]) for each in found[1:]] == [(2, 2), (2, 2)]


def test_b10_e6_commands_show_what_an_engine_retains(database: Path) -> None:
    """B10, E6: counters are of what stays, the chain is proved from its anchor, and nothing trips over the rest."""
    with SQLiteStore(database, namespace=NAMESPACE) as store:
        engine = minutebook.sync.Engine(
            history=minutebook.sync.HistoryConfig(store=store, max_entries=2), respond=lambda turn: "MARKER"
        )
        for number in range(5):
            engine.turn("capped", f"{number}")
    (listed,) = documents(asked(database, "list", "--json").stdout)
    assert (listed["turns"], listed["entries"], listed["format"]) == (2, 2, "engine/1")
    (proved,) = documents(asked(database, "verify", "capped", "--json").stdout)
    assert (proved["sound"], proved["entries"]) == (True, 2)
    told = asked(database, "show", "capped")
    assert (told.returncode, told.stderr) == (0, "")
    assert "MARKER" not in told.stdout
    assert asked(database, "delete", "capped", "--yes").returncode == 0


LONG_IDS = ("order-48213/eu-central-1/2026-11-30", "6f2c9a1e-7d43-4b8e-9c55-0a1b2c3d4e5f " * 8 + "end")


def test_b10_no_id_is_broken_at_any_width(database: Path) -> None:
    """B10: an id is what people copy into the next command; at every width and in a pipe it is on one line."""
    converse(database, *LONG_IDS)
    for columns in ("30", "80", "200", ""):
        told = asked(database, "list", env=environment(COLUMNS=columns)).stdout
        assert all(sum(id_ in line for line in told.splitlines()) == 1 for id_ in LONG_IDS), columns
        assert told.count("turns") == (2 if columns in ("30", "80", "200") else 1)


def test_b10_tables_fit_80_columns(database: Path) -> None:
    """B10: neither a number nor a heading is cut or broken; what does not fit is told row by row."""
    converse(database, "one", turns=2)
    narrow, wide = (asked(database, "show", "one", env=environment(COLUMNS=w)).stdout for w in ("80", "200"))
    assert max(map(len, narrow.splitlines())) <= 80
    for told in (narrow, wide):
        words = told.replace("─", " ").split()
        assert {"exchanges", "recorded", "messages", "request", "answered", "tokens", "yes"} <= set(words)
    assert asked(database, "show", "one", env=environment(COLUMNS="40")).stdout.count("recorded") == 2


def test_b10_help_fits_80_columns() -> None:
    """B10: the line that says what a command is for is not cut, and the program is called by its name."""
    told = run("--help", env=environment(COLUMNS="80")).stdout
    assert "..." not in told.partition("Commands:")[2]
    assert told.startswith("Usage: minutebook ")


def test_b10_what_is_not_there_is_told_in_words(database: Path) -> None:
    """B10: an empty namespace, a last page that is full, and a store that is gone with its process."""
    converse(database, "a", "b")
    assert "see --namespace" in run("list", "--store", f"sqlite:///{database}", "--namespace", "shpo").stdout
    assert "--after b" in asked(database, "list", "--limit", "2").stdout
    assert "--after" not in asked(database, "list", "--limit", "3").stdout
    gone = run("list", "--store", "memory:", "--namespace", NAMESPACE)
    assert (gone.returncode, gone.stdout) == (2, "")
    assert "sqlite:///" in gone.stderr


def test_b10_list_pages_by_id(database: Path) -> None:
    """B10: `--after` and `--limit` meet each conversation once."""
    converse(database, "a", "b", "c")
    first = documents(asked(database, "list", "--limit", "2", "--json").stdout)
    rest = documents(asked(database, "list", "--after", first[-1]["id"], "--json").stdout)
    assert [each["id"] for each in first + rest] == ["a", "b", "c"]
    assert "--after b" in asked(database, "list", "--limit", "2", "--json").stderr


def test_b10_show_has_what_is_retained_beside_what_was_sent(database: Path) -> None:
    """B10: exchanges and requests by their numbers; messages only when they are asked for."""
    converse(database, "one", turns=3)
    told = asked(database, "show", "one")
    assert told.returncode == 0
    assert "retained" in told.stdout
    assert "sent" in told.stdout
    assert "Tuesday" not in told.stdout
    assert "Tuesday" in asked(database, "show", "one", "--messages").stdout
    (shown,) = documents(asked(database, "show", "one", "--last", "2", "--json").stdout)
    assert [row["seq"] for row in shown["retained"]] == [4, 6]
    assert [row["answered_by"] for row in shown["sent"]] == [4, 6]
    assert [row["messages"] for row in shown["sent"]] == [3, 5]


class Finishing:
    """A model that has one answer to everything."""

    def decide(self, request: DecisionRequest) -> Decision:
        return Decision(finish=Finish(output="Fine."))


def test_b10_show_tells_what_a_record_without_exchanges_has(database: Path) -> None:
    """B10: an engine's session, a checkpoint, a message without an answer: each entry, and its words."""
    with SQLiteStore(database, namespace=NAMESPACE) as store:
        config = minutebook.sync.HistoryConfig(store=store, max_entries=3)
        engine = minutebook.sync.Engine(history=config, respond=lambda turn: f"You said: {turn.user_intent}")
        for words in ("hello", "again", HOSTILE, "thanks"):
            engine.turn("engine", words)
        runtime = minutebook.sync.Runtime(
            minutebook.Program(name="clerk", instructions="Answer."), Finishing(), checkpoints=store
        )
        runtime.run("How are you?", run_id="run", invocation_id="chat")
        conversation = Conversation(store, "asked", format="openai-chat")
        with contextlib.suppress(KeyError), conversation.turn("Anyone there?") as turn:
            turn.window()
            raise KeyError
        ids = [listing.key.id for listing in store.list()]
        recorded = {id_: list(store.entries(store.key(id_))) for id_ in ids}
    (checkpoint,) = (id_ for id_ in ids if id_.startswith('["checkpoint"'))
    listed = {each["id"]: each["entries"] for each in documents(asked(database, "list", "--json").stdout)}
    assert listed == {id_: len(entries) for id_, entries in recorded.items()}
    for id_, words in (("engine", "thanks"), (checkpoint, "How are you?"), ("asked", "Anyone there?")):
        told = asked(database, "show", id_)
        assert (told.returncode, told.stderr) == (0, "")
        assert not re.search(f"nothing to show|{re.escape(words)}", told.stdout)
        (found,) = documents(asked(database, "show", id_, "--json").stdout)
        assert [(row["seq"], row["kind"], row["bytes"]) for row in found["log"]] == [
            (entry.seq, entry.kind.name.lower(), len(entry.payload)) for entry in recorded[id_]
        ]
        assert (found["retained"], found["sent"]) == ([], [])
        told = asked(database, "show", id_, "--messages")
        assert (told.returncode, told.stderr) == (0, "")
        assert words in told.stdout
    assert len(recorded["engine"]) == 3
    assert "\x1b" not in asked(database, "show", "engine", "--messages").stdout
    (newest,) = documents(asked(database, "show", "engine", "--messages", "--last", "1", "--json").stdout)
    assert [row["seq"] for row in newest["log"]] == [4]
    assert newest["messages"] == [{"seq": 4, "kind": "input", "text": recorded["engine"][-1].payload.decode()}]
    (said,) = documents(asked(database, "show", "asked", "--messages", "--json").stdout)
    assert said["messages"][0]["messages"] == [{"role": "user", "content": "Anyone there?"}]
    assert [(each["seq"], each["kind"]) for each in said["messages"]] == [(1, "input"), (2, "abandoned")]


def test_c01_show_has_what_an_abandoned_attempt_left(database: Path) -> None:
    """C1: visible to an operator: its message, its calls and their results, each under the mark that took them out."""
    converse(database, "one", turns=2)
    with SQLiteStore(database, namespace=NAMESPACE) as store:
        conversation = Conversation(store, "one", format="openai-chat")
        with contextlib.suppress(KeyError), conversation.turn("Refund it") as turn:
            turn.window()
            turn.result(turn.respond(calling("c"))[0], "refunded 12 EUR")
            raise KeyError
    (told,) = documents(asked(database, "show", "one", "--messages", "--last", "1", "--json").stdout)
    assert [(row["seq"], row["kind"], row["abandoned_by"]) for row in told["log"]] == [
        (5, "input", None),
        (6, "response", 8),
        (7, "result", 8),
        (8, "abandoned", None),
    ]
    lines = asked(database, "show", "one", "--messages", "--last", "1").stdout.partition("\nmessages\n")[2].splitlines()
    assert lines[0] == "     5  user: Refund it"
    assert lines[1].startswith("     6  abandoned by 8, assistant: ")
    assert "refund" in lines[1]
    assert lines[2].startswith("     7  abandoned by 8, tool: ")
    assert "refunded 12 EUR" in lines[2]
    assert lines[3:] == ['     8  mark: entries 6 to 7 abandoned, {"reason":"failed"}']


def test_i39_show_makes_nothing_of_an_altered_entry(database: Path) -> None:
    """I-39: what `show` shows was proved; an altered entry is named, and none of it is told."""
    converse(database, "one", turns=2)
    damage(database)
    told = asked(database, "show", "one", "--messages")
    assert (told.returncode, told.stdout) == (3, "")
    assert told.stderr.startswith("DecisionHistoryCorrupt: entry 2 ")


def test_c04_show_marks_what_the_last_request_really_held(database: Path) -> None:
    """A parked exchange is in no request until its result is there, wherever it stands in the range."""

    def marks() -> list[tuple[bool, bool]]:
        (told,) = documents(asked(database, "show", "one", "--json").stdout)
        assert not any(row["abandoned"] for row in told["retained"])
        return [(row["complete"], row["in_last_request"]) for row in told["retained"]]

    with SQLiteStore(database, namespace=NAMESPACE) as store:
        conversation = Conversation(store, "one", format="openai-chat")
        converse(database, "one")
        with conversation.turn("Park this") as turn:
            turn.window()
            (parked,) = turn.respond(calling("c"))
            turn.park(parked)
        converse(database, "one", turns=2)
        assert marks() == [(True, True), (False, False), (True, True), (True, False)]
        assert re.search(r"^ +4 .* waits *$", asked(database, "show", "one").stdout, re.MULTILINE)
        (waits,) = conversation.open_calls()
        conversation.complete(waits, "done")
        assert marks() == [(True, True), (True, False), (True, True), (True, False)]
        converse(database, "one")
        assert marks() == [(True, True)] * 4 + [(True, False)]


def test_c01_show_marks_what_a_failed_turn_had_sent(database: Path) -> None:
    """C1: what a request held was sent, though its turn failed afterwards; the next request holds none of it."""

    def marks() -> list[tuple[bool, bool]]:
        (told,) = documents(asked(database, "show", "one", "--json").stdout)
        return [(row["abandoned"], row["in_last_request"]) for row in told["retained"]]

    converse(database, "one")
    with SQLiteStore(database, namespace=NAMESPACE) as store:
        conversation = Conversation(store, "one", format="openai-chat")
        with contextlib.suppress(KeyError), conversation.turn("Look twice") as turn:
            for call_id in ("c1", "c2"):
                turn.window()
                turn.result(turn.respond(calling(call_id))[0], "seen")
            raise KeyError
    assert marks() == [(False, True), (True, True), (True, False)]
    converse(database, "one")
    assert marks() == [(False, True), (True, False), (True, False), (False, False)]


def test_b10_show_begins_with_a_whole_exchange(database: Path) -> None:
    """B10: the results of the exchange before the first that is shown are not shown without it, nor its mark."""
    with SQLiteStore(database, namespace=NAMESPACE) as store:
        conversation = Conversation(store, "one", format="openai-chat")
        with conversation.turn("Look") as turn:
            turn.window()
            turn.result(turn.respond(calling("c1"))[0], "seen")
            turn.window()
            turn.respond(chat_response("So."))
    (told,) = documents(asked(database, "show", "one", "--last", "1", "--json").stdout)
    assert [(row["seq"], row["kind"]) for row in told["log"]] == [(4, "response")]
    assert [row["seq"] for row in told["retained"]] == [4]


def test_b01_show_costs_what_it_shows() -> None:
    """B1: the newest three of a thousand exchanges are a few rows read, each once."""

    class Counting(MemoryJournal):
        read = 0

        async def newest(self, *arguments: Any) -> Any:
            return self.counted(await super().newest(*arguments))

        async def oldest(self, *arguments: Any) -> Any:
            return self.counted(await super().oldest(*arguments))

        async def receipts(self, *arguments: Any) -> Any:
            return self.counted(await super().receipts(*arguments))

        def counted(self, found: Any) -> Any:
            self.read += len(found)
            return found

    async def body() -> None:
        journal = Counting()
        store = JournalStore(journal, namespace=NAMESPACE)
        conversation = minutebook.Conversation(store, "long", format="openai-chat")
        for position in range(1000):
            async with conversation.turn(f"Question {position}") as turn:
                await turn.window()
                await turn.respond(chat_response("So."))
        header = await store.header(conversation.key)
        assert header is not None
        journal.read = 0
        found = await look(store, "long", header, 3)
        assert [row.seq for row in found.retained] == [1996, 1998, 2000] == [row.answered_by for row in found.sent]
        assert [entry.seq for entry in found.entries] == [*range(1995, 2001)]
        assert journal.read < 60

    asyncio.run(body())


def test_b10_an_absent_conversation_is_exit_code_1(database: Path) -> None:
    """B10: the history refuses, in words and in JSON."""
    converse(database, "one")
    told = asked(database, "show", "other")
    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr.startswith("DecisionHistoryAbsent: ")
    (error,) = documents(asked(database, "show", "other", "--json").stdout)
    assert (error["error"], error["exit"]) == ("DecisionHistoryAbsent", 1)


def test_d22_recover_needs_the_word_that_the_worker_is_stopped(database: Path) -> None:
    """D22: without `--worker-stopped` nothing is freed; with it once, and never twice."""
    hold(database, "held")
    refused = asked(database, "recover", "held")
    assert refused.returncode == 2
    assert "say --worker-stopped" in refused.stderr
    assert asked(database, "recover", "held", "--worker-stopped", "--epoch", "7").returncode == 1
    (told,) = documents(asked(database, "recover", "held", "--worker-stopped", "--epoch", "1", "--json").stdout)
    assert told == {"id": "held", "recovered": True, "epoch": 2}
    assert asked(database, "recover", "held", "--worker-stopped").returncode == 1


def test_d22_a_held_conversation_is_not_deleted(database: Path) -> None:
    """D22: deleting what another process holds is refused, and the record stays."""
    hold(database, "held")
    refused = asked(database, "delete", "held", "--yes")
    assert refused.returncode == 1
    assert "`minutebook recover` with --worker-stopped" in refused.stderr
    assert "store.recover" not in refused.stderr
    assert asked(database, "show", "held").returncode == 0


def test_b10_delete_asks_a_person_and_refuses_to_guess_without_one(database: Path) -> None:
    """B10: no terminal and no `--yes` erases nothing; with it everything goes."""
    converse(database, "one", "two")
    refused = asked(database, "delete", "one", "--json")
    assert refused.returncode == 2
    (told,) = documents(refused.stdout)
    assert told["error"] == "InvalidOption"
    assert "--yes" in told["message"]
    assert asked(database, "show", "one").returncode == 0
    (told,) = documents(asked(database, "delete", "one", "--yes", "--json").stdout)
    assert told == {"id": "one", "deleted": True, "erased": True}
    assert asked(database, "show", "one").returncode == 1


def test_b10_delete_says_that_a_reader_keeps_a_copy(database: Path) -> None:
    """B10: where a file's log cannot be emptied, nobody is told of erasing what is there."""
    converse(database, "one")
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM sqlite_master").fetchall()
        told = asked(database, "delete", "one", "--yes")
    assert told.returncode == 0
    assert "one: deleted; a reader still keeps a copy in the log" in told.stdout


@pytest.mark.parametrize("kind", ["Postgres", "Redis"])
def test_b10_i37_delete_says_what_a_server_may_keep(kind: str) -> None:
    """B10: of a server something true is said: not of readers, nor that what it keeps beside is erased."""
    url = postgres.shared().url() if kind == "Postgres" else redis.shared("Redis").url
    name = f"{uuid.uuid4()}"
    with open_store(url, namespace=NAMESPACE) as store:
        Conversation(store, name, format="openai-chat").append([{"role": "user", "content": "x"}])
    told = run("delete", name, "--yes", "--store", url, "--namespace", NAMESPACE)
    assert told.returncode == 0, told.stderr
    assert told.stdout.strip() == f"{name}: deleted; the server may keep copies in its log, on replicas and in backups"


@pytest.mark.parametrize(
    ("reply", "deleted"), [(b"n\n", False), (b"\n", False), (b"\x04", False), (b"y\n", True)], ids=repr
)
def test_b10_delete_at_a_terminal(database: Path, reply: bytes, deleted: bool) -> None:
    """B10: a person at a terminal is asked, and only yes erases; no is an answer, not a refusal of the history."""
    converse(database, "one")
    ours, theirs = pty.openpty()
    os.write(ours, reply)
    told = asked(database, "delete", "one", stdin=theirs)
    os.close(ours)
    os.close(theirs)
    assert told.returncode == 0
    assert ("nothing deleted" in told.stdout) != deleted
    assert asked(database, "show", "one").returncode == deleted


def test_bad_input_117_a_store_without_a_namespace_is_refused(database: Path) -> None:
    """Nothing is guessed and nothing is shown: the message names the option and the variable (117)."""
    converse(database, "c")
    for command in (["list"], ["show", "c"], ["delete", "c", "--yes"], ["stats"]):
        told = run(*command, "--store", f"sqlite:///{database}")
        assert told.returncode == 2
        assert "--namespace" in told.stderr
        assert "Question" not in told.stdout + told.stderr
    assert asked(database, "list", "--json").stdout.count('"id"') == 1


@pytest.mark.parametrize("flag", ["--recurse", "--namespaces", "-x", "--api-key"])
def test_bad_input_118_an_unknown_flag_is_refused_by_name(database: Path, flag: str) -> None:
    """Before the store is opened (118)."""
    converse(database, "c")
    told = asked(database, "list", flag)
    assert told.returncode == 2
    assert flag in told.stderr


def test_bad_input_119_no_secret_is_taken_from_the_command_line(database: Path) -> None:
    """Keys come from the environment alone; a password in a store's address is refused, and not said again (119)."""
    for command in ("chat", "demo", "list", "show", "doctor"):
        told = run(command, "--help").stdout.lower()
        assert "--api-key" not in told
        assert "--password" not in told
    told = run("list", "--store", f"sqlite://user:hunter2@/{database}", "--namespace", NAMESPACE)
    assert told.returncode != 0
    assert "hunter2" not in told.stdout + told.stderr


def test_d18_a_poisoned_summary_is_shown_and_dropped(database: Path) -> None:
    """`show` tells which requests had a summary; `drop-summary` takes it out of every window, once."""
    limits = WindowLimits(max_messages=8, max_bytes=4_000)
    with SQLiteStore(database, namespace=NAMESPACE) as store:
        conversation = Conversation(
            store, "c", format="openai-chat", limits=limits, summarize=lambda **given: "poison", max_summary_bytes=99
        )
        for position in range(9):
            with conversation.turn(f"Question {position}") as turn:
                turn.window()
                turn.respond(chat_response("yes"))
        assert b"poison" in conversation.window().json
    (told,) = documents(asked(database, "show", "c", "--json").stdout)
    newest = told["sent"][-1]
    assert (newest["trimmed"], type(newest["summary"])) == (True, int)
    assert (told["sent"][0]["trimmed"], told["sent"][0]["summary"]) == (False, None)
    shown = asked(database, "show", "c", "--messages").stdout
    assert f"older exchanges, summary {newest['summary']}" in shown
    assert "summary: poison" in shown
    assert asked(database, "drop-summary", "absent").returncode != 0
    outcomes = [documents(asked(database, "drop-summary", "c", "--json").stdout)[0]["dropped"] for _ in range(2)]
    assert outcomes == [True, False]
    assert "mark: no summary stands from here on" in asked(database, "show", "c", "--messages").stdout
    with SQLiteStore(database, namespace=NAMESPACE) as store:
        assert b"poison" not in Conversation(store, "c", format="openai-chat", limits=limits).window().json
    assert asked(database, "verify", "c").returncode == 0


def test_b08_verify_names_the_first_entry_that_fails(database: Path) -> None:
    """B8: one changed byte in a payload is found by its seq, exit code 5; the other conversations are told too."""
    converse(database, "bad", "good", turns=2)
    assert asked(database, "verify").returncode == 0
    damage(database)
    told = asked(database, "verify", "--json")
    assert told.returncode == 5
    bad, good = documents(told.stdout)
    assert (bad["id"], bad["sound"], bad["seq"]) == ("bad", False, 2)
    assert (good["id"], good["sound"]) == ("good", True)
    assert asked(database, "verify", "good").returncode == 0
    assert "entry 2" in asked(database, "verify", "bad").stdout


def test_b08_verify_says_that_there_is_nothing_to_verify(database: Path) -> None:
    """B8: a slip in the namespace ends as an absent conversation does, and is not taken for a sound one."""
    converse(database, "good")
    absent = asked(database, "verify", "absent")
    told = run("verify", "--store", f"sqlite:///{database}", "--namespace", "shpo")
    assert (told.returncode, told.stdout) == (absent.returncode, "") == (1, "")
    assert told.stderr.startswith("DecisionHistoryAbsent: no conversation in this namespace")
    (document,) = documents(run("verify", "--json", "--store", f"sqlite:///{database}", "--namespace", "shpo").stdout)
    assert (document["error"], document["exit"]) == ("DecisionHistoryAbsent", 1)


def test_o44_b10_a_damaged_header_is_named_and_every_command_goes_on(database: Path) -> None:
    """O-44: list, verify and doctor tell of the others and name the damaged one; without it all is well again."""
    converse(database, "a", "z", turns=1)
    converse(database, "bad", turns=3)
    damage_header(database, turns=3)
    told = asked(database, "list", "--json")
    assert told.returncode == 5
    assert [(each["id"], "damaged" in each) for each in documents(told.stdout)] == [
        ("a", False),
        ("bad", True),
        ("z", False),
    ]
    table = asked(database, "list")
    assert (table.returncode, "damaged" in table.stdout) == (5, True)
    assert [each["id"] for each in documents(asked(database, "list", "--json", "--after", "bad").stdout)] == ["z"]
    assert [each["id"] for each in documents(asked(database, "list", "--json", "--limit", "1").stdout)] == ["a"]
    told = asked(database, "verify", "--json")
    assert told.returncode == 5
    assert [(each["id"], each["sound"]) for each in documents(told.stdout)] == [
        ("a", True),
        ("bad", False),
        ("z", True),
    ]
    assert asked(database, "verify", "bad").returncode == 5
    told = asked(database, "doctor", "--json")
    ill = [(each["check"], each["found"]) for each in documents(told.stdout) if each["attention"]]
    assert (told.returncode, ill) == (5, [("damaged", "bad")])
    assert asked(database, "delete", "bad", "--yes").returncode == 0
    assert [asked(database, command).returncode for command in ("list", "verify", "doctor")] == [0, 0, 0]
    assert [each["id"] for each in documents(asked(database, "list", "--json").stdout)] == ["a", "z"]


def damage_header(database: Path, turns: int) -> None:
    """Break the state of the conversation with so many turns, in the file itself."""
    content = database.read_bytes()
    state = b"[%d,%d,%d,%d,[]" % (2 * turns - 1, 2 * turns, turns, turns)
    assert content.count(state) == 1
    database.write_bytes(content.replace(state, b"{" + state[1:]))


def damage(database: Path) -> None:
    """Change the first response of the first conversation, as a careless edit would."""
    with sqlite3.connect(database) as connection:
        rows = connection.execute("SELECT rowid, entries FROM minutebook_log ORDER BY rowid").fetchall()
        row, entries = next((row, entries) for row, entries in rows if b"Tues" in entries)
        change = "UPDATE minutebook_log SET entries = ? WHERE rowid = ?"
        connection.execute(change, (entries.replace(b"Tues", b"Mon_", 1), row))


def test_b10_stats_and_doctor(database: Path) -> None:
    """B10: what a namespace holds; and what wants attention, with exit code 5 when something does."""
    converse(database, "one", turns=2)
    (totals,) = documents(asked(database, "stats", "--json").stdout)
    assert (totals["conversations"], totals["reserved"], totals["expired"]) == (1, 0, 0)
    assert "conversations" in asked(database, "stats").stdout
    well = asked(database, "doctor", "--json")
    assert well.returncode == 0
    found = {each["check"]: each["found"] for each in documents(well.stdout)}
    assert found["durable"] == "yes"
    assert {name: found[name] for name in PACKAGES} == {name: version(name) for name in PACKAGES}
    hold(database, "held")
    busy = asked(database, "doctor", "--json")
    assert busy.returncode == 0
    assert {each["check"]: each["found"] for each in documents(busy.stdout)}["reserved"] == "1, the longest for 0 min"
    ill = asked(database, "doctor", "--longest-turn", "0", "--json")
    assert ill.returncode == 5
    assert [each["check"] for each in documents(ill.stdout) if each["attention"]] == ["reserved"]
    assert "held" not in ill.stdout
    listed = {each["id"]: each["reserved_since_ms"] for each in documents(asked(database, "list", "--json").stdout)}
    assert listed["one"] is None
    assert abs(listed["held"] - time.time() * 1000) < 600_000


def test_i37_ids_cannot_move_the_cursor(database: Path) -> None:
    """Bad inputs 11, 12: controls, bidi, joiners and line breaks of an id and of a message arrive escaped."""
    converse(database, HOSTILE, text=HOSTILE)
    for told in (
        asked(database, "list"),
        asked(database, "verify"),
        asked(database, "show", HOSTILE, "--messages"),
        asked(database, "delete", HOSTILE, "--yes"),
    ):
        assert told.returncode == 0, told.stderr
        assert HOSTILE_SHOWN in told.stdout
        assert not {"\x1b", "\u202e", "\u200d"} & set(told.stdout)
    converse(database, HOSTILE, text=HOSTILE)
    for command in (["list"], ["show", HOSTILE, "--messages"]):
        told = asked(database, *command, "--json")
        assert not {char for char in HOSTILE if is_unseen(char)} & set(told.stdout.rstrip("\n"))
        assert documents(told.stdout)[0]["id"] == HOSTILE


def test_i37_a_store_url_may_hold_a_password_and_is_not_shown() -> None:
    """I-37: neither where the scheme is unknown nor where no server answers."""
    for scheme, code in (("mongodb", 2), ("postgresql", 3), ("redis", 3)):
        told = run("list", "--store", f"{scheme}://me:secret@127.0.0.1:1/0", "--namespace", "x")
        assert (scheme, told.returncode) == (scheme, code)
        assert "secret" not in told.stdout + told.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "--namespace", "x"),
        ("list", "--store", "sqlite:///x"),
        ("list", "--store", "sqlite:///x", "--namespace", ""),
        ("list", "--store", "sqlite:///x", "--namespace", "x", "--nonsense"),
        ("list", "--store", "sqlite:///x", "--namespace", "x", "--limit", "0"),
        ("show", "--store", "sqlite:///x", "--namespace", "x"),
        ("nonsense",),
        ("demo", "--base-url", "http://127.0.0.1:1"),
        ("chat", "--model", "m"),
    ],
)
def test_b10_wrong_usage_is_exit_code_2(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """B10: what is missing, unknown or out of range is said on standard error, and nothing is made."""
    told = run(*arguments, cwd=tmp_path)
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("given", [True, False])
def test_b10_the_chat_says_where_its_record_is_kept(given: bool, tmp_path: Path) -> None:
    """B10: the store and the namespace that it shows are what the operator's commands take."""
    tmp_path.chmod(0o700)
    url = f"sqlite:///{tmp_path}/{'own' if given else 'minutebook/chat'}.sqlite"
    arguments = ("--store", url) if given else ()
    environs = environment(XDG_DATA_HOME=str(tmp_path))
    told = run("chat", "--base-url", "http://127.0.0.1:1/v1", "--model", "m", *arguments, env=environs)
    assert told.returncode == 0, told.stderr
    assert told.stdout.splitlines()[0] == f"The record is kept in {url}, namespace chat."
    assert run("list", "--store", url, "--namespace", "chat").returncode == 0


def test_b10_a_blank_session_is_refused_by_its_option() -> None:
    """B10: before a model is started, and in the words of the command."""
    for session in ("", " "):
        told = run("chat", "--session", session, "--base-url", "http://127.0.0.1:1/v1", "--model", "m")
        assert (told.returncode, told.stdout) == (2, "")
        assert told.stderr.startswith("InvalidOption: --session is the name of a conversation")


def test_b10_a_slip_in_a_name_makes_no_empty_database(database: Path) -> None:
    """B10: a command for operators never creates what it was to look at."""
    told = asked(database, "verify")
    assert told.returncode == 2
    assert not database.exists()


@pytest.mark.parametrize("command", ["list", "doctor"])
def test_b10_an_empty_file_is_made_no_database(command: str, database: Path) -> None:
    """B10: SQLite would take it for a new one; a command for operators leaves it as it is, its rights too."""
    database.touch(mode=0o644)
    told = asked(database, command)
    assert (told.returncode, "an empty file" in told.stderr) == (2, True)
    assert (database.stat().st_size, database.stat().st_mode & 0o777) == (0, 0o644)
    assert [each.name for each in database.parent.iterdir()] == [database.name]


def test_b10_a_database_of_another_application_is_left_as_it_is(database: Path) -> None:
    """Exit code 3, and not a byte of the file changes."""
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE theirs (x)")
        connection.execute("PRAGMA application_id = 77")
    connection.close()
    database.chmod(0o600)
    before = database.read_bytes()
    assert asked(database, "list").returncode == 3
    assert database.read_bytes() == before


def test_d20_a_link_is_refused(database: Path) -> None:
    """D20: exit code 3 for a database behind a symbolic link, also a dangling one."""
    converse(database, "one")
    link = database.with_name("link.sqlite")
    link.symlink_to(database)
    told = asked(link, "list")
    assert told.returncode == 3
    assert told.stderr.startswith("DecisionHistoryStorageUnsafe: ")
    dangling = database.with_name("dangling.sqlite")
    dangling.symlink_to(database.with_name("nowhere"))
    assert asked(dangling, "list").returncode == 3


def test_bad_input_90_a_network_file_system_is_told_without_an_option_that_no_command_has() -> None:
    """No flag allows it, so none is named; a program's own word for it is the library's."""
    refusal = unsafe("network_filesystem", "/mnt/shop.sqlite")
    assert "allow_network_filesystem=True" in str(refusal)
    assert terminal.told(refusal).endswith("use a local disk")


def test_d20_doctor_tells_that_others_could_read_the_file(database: Path) -> None:
    """D20: opening makes the file private again, and doctor says that it was not; its help says so before."""
    assert "Files that others had rights to become private" in " ".join(run("doctor", "--help").stdout.split())
    converse(database, "one")
    database.chmod(0o644)
    told = asked(database, "doctor", "--json")
    assert told.returncode == 5
    (mode,) = [each for each in documents(told.stdout) if each["attention"]]
    assert (mode["found"], database.stat().st_mode & 0o777) == ("0644", 0o600)
    assert asked(database, "doctor").returncode == 0


def test_d20_a_folder_in_which_others_may_write_is_refused(database: Path) -> None:
    """D20: exit code 3, before anything is read."""
    converse(database, "one")
    database.parent.chmod(0o777)
    assert asked(database, "list").returncode == 3
    database.parent.chmod(0o700)


def test_b10_a_reader_that_goes_away_ends_the_command_quietly(database: Path) -> None:
    """B10: a closed pipe is no traceback."""
    converse(database, *(f"id-{n}" for n in range(300)))
    for json in ((), ("--json",)):
        arguments = ("list", "--limit", "300", *json, "--store", f"sqlite:///{database}", "--namespace", NAMESPACE)
        child = subprocess.Popen(
            [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
        )
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(60) == 141


FULL = Path("/dev/full")


UNTOLD = {
    "list": "",
    "list --json": "",
    "show one --json": "",
    "verify": "one: sound, ",
    "show absent --json": "DecisionHistoryAbsent: ",
    "delete one --yes": "one: erased",
    "delete one --yes --json": "one: erased",
    "--version": "",
    "--help": "",
}
"""Commands, and what of their output standard error says where standard output cannot be written."""


def to_full_device(*arguments: str, **environs: str) -> subprocess.CompletedProcess[str]:
    """Run a command whose standard output is on a disk that is full."""
    with FULL.open("wb") as full:
        return subprocess.run(
            [*COMMAND, *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**environs),
            timeout=120,
        )


@pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")
@pytest.mark.parametrize("arguments", UNTOLD)
def test_b10_an_output_that_cannot_be_written_is_told(arguments: str, database: Path) -> None:
    """B10: a full disk under standard output is exit code 3 and one line, which says what was to be told."""
    converse(database, "one")
    where = () if arguments.startswith("--") else ("--store", f"sqlite:///{database}", "--namespace", NAMESPACE)
    told = to_full_device(*arguments.split(), *where)
    assert told.returncode == 3, told.stderr
    (line,) = told.stderr.splitlines()
    assert line.startswith("OutputLost: standard output cannot be written (No space left on device)")
    assert line.partition("; it was to say: ")[2].startswith(UNTOLD[arguments])
    assert ("it was to say" in line) == bool(UNTOLD[arguments])
    assert asked(database, "show", "one").returncode == arguments.startswith("delete")


@pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_b10_a_copy_whose_account_cannot_be_written_says_it_on_standard_error(unbuffered: str, database: Path) -> None:
    """B10: the copy is there, and whoever made it is told so."""
    converse(database, "one", "two")
    target = f"sqlite:///{database.with_name('copy.sqlite')}"
    arguments = ("copy", f"sqlite:///{database}", target, "--namespace", NAMESPACE, "--create")
    told = to_full_device(*arguments, PYTHONUNBUFFERED=unbuffered)
    assert told.returncode == 3
    assert "it was to say: copied 2 conversations " in told.stderr
    assert run(*arguments).stdout.startswith("copied 0 conversations with 0 entries; 2 were there already; ")


@pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")
def test_b10_an_error_that_cannot_be_told_keeps_its_exit_code(database: Path) -> None:
    """B10: nothing depends on standard error, not even where it is full or closed."""
    converse(database, "one")
    for redirected in ("2>/dev/full", "2>&-"):
        command = ("sh", "-c", f'exec "$@" {redirected}', "sh", *COMMAND)
        where = ("--store", f"sqlite:///{database}", "--namespace", NAMESPACE)
        assert run("show", "absent", *where, command=command).returncode == 1
        assert run("list", "--limit", "1", "--json", *where, command=command).returncode == 0


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_b10_a_command_works_without_streams(closed: str, database: Path) -> None:
    """B10: what was closed is wanted by nobody, and no other file takes its number."""
    converse(database, "one", "two")
    command = ("sh", "-c", f'exec "$@" {closed}', "sh", *COMMAND)
    where = ("--store", f"sqlite:///{database}", "--namespace", NAMESPACE)
    assert run("list", *where, command=command).returncode == 0
    assert run("list", "--json", *where, command=command).returncode == 0
    assert run("delete", "one", *where, command=command).returncode == 2
    assert run("delete", "one", "--yes", *where, command=command).returncode == 0
    assert run("show", "one", *where, command=command).returncode == 1
    assert asked(database, "verify").returncode == 0


IN_A_HOST = """
import contextlib, io, sys
from minutebook.cli import main

def called(*arguments):
    sys.argv = ["minutebook", *arguments]
    with contextlib.suppress(SystemExit):
        main()

told = io.StringIO()
with contextlib.redirect_stdout(told):
    called("--version")
before = sys.stdout
for _ in range(2):
    called("--version")
sys.stdout = before
print(told.getvalue(), end="")
print("still here", file=sys.__stdout__)
"""


def test_b10_a_process_of_its_own_streams_keeps_them(database: Path) -> None:
    """B10: what it has put there instead is written to, and a second command finds the streams of the first."""
    told = run(command=(sys.executable, "-c", IN_A_HOST))
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.splitlines() == [*[minutebook.__version__] * 3, "still here"]


def test_i37_b10_a_hint_is_read_by_a_shell_as_the_very_id_that_it_names(database: Path) -> None:
    """B10: whoever follows `--after` meets each conversation once, also one whose id cannot be shown as it is."""
    ids = sorted([HOSTILE, "\x1b'2\\", "it's", "\\", "x\u00a0"])
    converse(database, *ids)
    found: list[str] = []
    hint = ""
    for json in ("", "--json", "", "--json", ""):
        command = ("bash", "-c", f'exec "$@" {json} {hint}'.rstrip(), "bash", *COMMAND)
        ended = run(
            "list", "--limit", "1", "--store", f"sqlite:///{database}", "--namespace", NAMESPACE, command=command
        )
        told = ended.stdout + ended.stderr
        assert not any(map(is_unseen, told.replace("\n", "")))
        hint = told.partition("There may be more: ")[2]
        read = subprocess.run(["bash", "-c", f"printf %s {hint}"], capture_output=True, timeout=60).stdout
        found.append(read.decode().removeprefix("--after"))
    assert found == ids


def test_b10_a_terminal_without_unicode_gets_escapes(database: Path) -> None:
    """B10: what an encoding cannot show is escaped, not an error."""
    converse(database, "größe")
    told = asked(database, "list", env=environment(PYTHONIOENCODING="ascii", PYTHONUTF8="0"))
    assert told.returncode == 0
    assert "gr\\xf6\\xdfe" in told.stdout


def test_b10_a_files_url_is_read_as_a_url(tmp_path: Path) -> None:
    """B10: a blank is %20; a parameter is refused in every command, before a file or a model is looked for."""
    tmp_path.chmod(0o700)
    converse(tmp_path / "my shop.sqlite", "one")
    where = ("--namespace", NAMESPACE, "--store", f"sqlite:///{tmp_path}/my%20shop.sqlite")
    for command in (["list"], ["show", "one"], ["doctor"]):
        assert run(*command, *where).returncode == 0, command
    before = sorted(path.name for path in tmp_path.iterdir())
    for command in (["list"], ["show", "one"], ["doctor"], ["import", "one", "x", "--create"]):
        told = run(*command, *where[:3], f"{where[3]}?mode=ro")
        assert (told.returncode, told.stdout) == (2, ""), command
        assert "no parameters" in told.stderr
    told = run("chat", "--store", f"{where[3]}?mode=ro", "--base-url", "http://127.0.0.1:1/v1", "--model", "m")
    assert (told.returncode, "no parameters" in told.stderr) == (2, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_b10_the_environment_names_the_store(database: Path) -> None:
    """B10: store and namespace may come from the environment; there is no other default."""
    converse(database, "one")
    told = run("list", "--json", env=environment(MINUTEBOOK_STORE=f"sqlite:///{database}", MINUTEBOOK_NAMESPACE="shop"))
    assert [each["id"] for each in documents(told.stdout)] == ["one"]


def test_b10_version_and_help() -> None:
    """B10: the version alone, and the commands with a line each."""
    from minutebook import __version__

    assert run("--version").stdout == f"{__version__}\n"
    told = run("--help").stdout
    assert all(name in told for name in ("chat", "demo", "list", "show", "recover", "delete", "verify", "doctor"))
