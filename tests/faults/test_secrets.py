"""
The secret canary (I-37): a random marker goes in wherever a caller can put text, and comes out where it belongs alone.

It belongs into the store's files and into the values that a caller asked for. It does not belong into an error, its
causes, notes and facts, a log line, a warning, an event, a `repr` or `str`, or the command line's errors.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import secrets
import sqlite3
import subprocess
import sys
import traceback
import warnings
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.faults import workload
from tests.faults.workload import Clock, Store

from minutebook.conversation import Conversation
from minutebook.engine import Engine, HistoryConfig, HistoryManager
from minutebook.errors import MinutebookError
from minutebook.model.bounds import StoreBounds, WindowLimits
from minutebook.model.keys import ConversationKey
from minutebook.model.record import Delta, Receipt
from minutebook.model.turns import HistoryEntry
from minutebook.ports import Listing
from minutebook.stores.memory import MemoryJournal
from minutebook.stores.sqlite import SQLiteJournal
from minutebook.testing.drive import drive

Figure = Callable[[str], None]


class Leaked(AssertionError):
    """A marker was seen where none may be."""


class Watch:
    """Everything that an operator could see. Each thing that is looked at is counted, and searched for the marker."""

    def __init__(self, marker: str) -> None:
        self.marker = marker
        self.looked = self.unrefused = 0
        self.codes: set[str] = set()
        self.leaks: list[str] = []

    def look(self, what: str, text: object) -> None:
        """Search a text, also in its escaped and its hexadecimal form."""
        self.looked += 1
        shown = str(text)
        for form in (self.marker, self.marker.encode().hex()):
            if form.lower() in shown.lower():
                self.leaks.append(f"{what} holds the marker: {shown[:300]}")
                return

    def look_at_error(self, error: BaseException) -> None:
        """Search an error as a log would print it: with its traceback, causes, notes, arguments and facts."""
        seen: BaseException | None = error
        while seen is not None:
            self.look(
                f"str of {type(seen).__name__}", f"{seen} {seen!r} {seen.args!r} {getattr(seen, '__notes__', '')}"
            )
            self.look(f"facts of {type(seen).__name__}", getattr(seen, "facts", ""))
            # What `from None` hides is printed by no log; everything else is.
            seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
        # Source lines are ours and hold no marker, so what a traceback adds is what the errors say.
        self.look("traceback", "".join(traceback.format_exception(error)))

    def look_at_value(self, value: object) -> None:
        """Search how a value shows itself; asking for its fields is another matter."""
        self.look(f"repr of {type(value).__name__}", f"{value!r} {value}")

    def refused(self, call: Callable[[], Awaitable[Any]] | Callable[[], Any]) -> None:
        """Make a call that is to be refused by an error of ours, and search the error."""
        try:
            result = call()
            if hasattr(result, "send"):
                drive(result)
        except MinutebookError as error:
            self.codes.add(error.code)
            self.look_at_error(error)
        else:
            self.unrefused += 1


@contextlib.contextmanager
def watching() -> Iterator[Watch]:
    """Search all that is logged, warned, printed or given to the hooks of the interpreter meanwhile."""
    watch = Watch("canary" + secrets.token_hex(8))
    log, printed = io.StringIO(), io.StringIO()
    channel, root = logging.StreamHandler(log), logging.getLogger()
    level = root.level
    root.addHandler(channel)
    root.setLevel(logging.DEBUG)
    try:
        with (
            warnings.catch_warnings(record=True) as caught,
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
        ):
            warnings.simplefilter("always")
            yield watch
    finally:
        root.removeHandler(channel)
        root.setLevel(level)
    watch.look("log", log.getvalue())
    watch.look("output", printed.getvalue())
    watch.look("warnings", [str(warning.message) for warning in caught])
    if watch.leaks:
        raise Leaked("\n".join(watch.leaks))


FORMAT = "openai-chat"


def pair(marker: str, n: int = 0) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": f"{marker} asks {n}"},
        {"role": "assistant", "content": f"{marker} answers {n}"},
    ]


def calling(marker: str) -> dict[str, Any]:
    function = {"name": f"tool_{marker}", "arguments": f'{{"key": "{marker}"}}'}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"id-{marker}", "type": "function", "function": function}],
    }


def talk_of(store: Store, marker: str, watch: Watch, **options: Any) -> Conversation:
    return Conversation(store, f"talk {marker}", format=FORMAT, on_event=watch.look_at_value, **options)


async def succeed(store: Store, watch: Watch) -> None:
    """Every kind of success; each value that comes back is shown."""
    marker = watch.marker
    talk = talk_of(store, marker, watch)
    seen: list[Any] = [await talk.append(pair(marker), id=f"append {marker}")]
    for n in range(6):
        async with talk.turn(f"{marker} {n}", id=f"turn {marker} {n}") as turn:
            seen += [turn, await turn.window(WindowLimits(max_messages=5, max_bytes=5_000)), turn.sent]
            calls = await turn.respond(calling(marker))
            seen += calls
            await turn.result(calls[0], {"value": marker})
            await turn.respond({"role": "assistant", "content": marker})
        seen.append(turn.receipt)
    try:
        async with talk.turn(f"{marker} fails") as turn:
            await turn.window()
            await turn.respond(calling(marker))
            raise ValueError("the caller's own")
    except ValueError as error:
        watch.look_at_error(error)
    turn = talk.turn(f"{marker} is recovered")
    await turn.__aenter__()
    seen += [turn, await store.recover(talk.key, worker_stopped=True)]
    seen += [await store.header(talk.key), await store.read(talk.key), await store.verify(talk.key)]
    seen += [await talk.last(None), await talk.page(), await talk.window(), await store.list(), await store.totals()]
    seen += [entry async for entry in store.entries(talk.key)]
    seen += [receipt async for receipt in store.receipts(talk.key)]
    seen += [talk.history.wire.input(marker), store, store.journal, talk, talk.history]
    for value in flattened(seen):
        if type(value) not in ADDRESSES:
            watch.look_at_value(value)


ADDRESSES = (ConversationKey, Listing, Receipt)
"""What addresses conversations and commits shows their ids, to who gave them or asked for the list."""


def flattened(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        yield from flattened(value) if type(value) in (list, tuple) else (value,)


class Odd:
    """A value that JSON cannot hold, and whose `repr` tells a secret."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __repr__(self) -> str:
        return self.marker

    __str__ = __repr__


def refusals(store: Store, watch: Watch) -> None:
    """
    Every refusal that a caller can reach.

    The path to a value that JSON cannot hold is made of the caller's own member names (bad input 25), so no marker is
    one of those here.
    """
    m = watch.marker
    talk = talk_of(store, m, watch)
    key = talk.key
    for bad in ("", " ", m + "\0", m + "\ud800", m * 100, m.encode(), 1, [m]):
        watch.refused(lambda bad=bad: store.key(bad))
        watch.refused(lambda bad=bad: Store(store.journal).within(bad))
        if bad != "":
            watch.refused(lambda bad=bad: talk.append(pair(m), id=bad))
    for bad in (
        Odd(m),
        {"content": Odd(m), m: m},
        {1: m},
        {m: m, "content": float("nan")},
        {"role": m, "content": m},
        {"role": "user", "content": {m}},
        m + "\ud800",
    ):
        watch.refused(lambda bad=bad: talk.append([bad]))
        watch.refused(lambda bad=bad: talk.turn(bad if isinstance(bad, dict) else [bad]).__aenter__())
    watch.refused(lambda: talk.append([*pair(m), {"role": "tool", "tool_call_id": m, "content": m}]))
    watch.refused(lambda: talk.append([pair(m)[0], calling(m), pair(m)[0]]))
    watch.refused(lambda: talk.append([pair(m)[0], {"role": "system", "content": m}]))
    watch.refused(lambda: talk.append(pair(m, 7), id=f"append {m}"))
    watch.refused(lambda: Conversation(store, f"talk {m}", format="no such format"))
    watch.refused(lambda: Conversation(store, f"talk {m}", format="anthropic").append([{"role": "user", "content": m}]))
    watch.refused(lambda: talk_of(store, m, watch, max_retained_bytes=1).append(pair(m)))
    watch.refused(lambda: talk_of(store, m, watch).window(WindowLimits(max_messages=1, max_bytes=1)))
    watch.refused(lambda: store.verify(store.key(f"absent {m}")))
    watch.refused(lambda: store.delete(store.key(f"absent {m}")))
    watch.refused(lambda: store.recover(key, worker_stopped=True))
    watch.refused(lambda: store.recover(store.key(f"absent {m}"), worker_stopped=True))
    watch.refused(lambda: store.journal.commit(key, f"token {m}", 1, Delta(idempotency=m)))
    watch.refused(lambda: store.read(m))  # type: ignore[arg-type]
    drive(in_a_turn(store, watch))


async def in_a_turn(store: Store, watch: Watch) -> None:
    """What a turn refuses while it holds the conversation."""
    m = watch.marker
    talk = talk_of(store, f"{m} quiet", watch)
    async with talk.turn(f"{m} turn") as turn:
        for body in (m, m.encode(), {"error": {"message": m}}, {"choices": []}, {"choices": [{"message": m}]}, Odd(m)):
            watch.refused(lambda body=body: turn.respond(body))
        watch.refused(lambda: talk.turn(m).__aenter__())
        watch.refused(lambda: store.read(talk.key))
        watch.refused(lambda: store.delete(talk.key))
        [call] = await turn.respond(calling(m))
        watch.refused(lambda: turn.respond(calling(m)))
        watch.refused(lambda: turn.result(msgspec.structs.replace(call, position=7), m))
        watch.refused(lambda: turn.result(call, Odd(m)))
        await turn.result(call, m)
        watch.refused(lambda: turn.result(call, m))
        await turn.respond({"role": "assistant", "content": m})


class Note(msgspec.Struct, frozen=True):
    """Metadata of an engine's entries."""

    text: str


def engines(store: Store, watch: Watch) -> None:
    """What an engine refuses, and how its values show themselves."""
    m = watch.marker
    session = f"session {m}"
    policy: dict[str, Any] = {"store": store, "max_chars": 300}

    def turn(response: Any, **options: Any) -> Awaitable[Any]:
        engine = Engine(history=HistoryConfig(**policy, **options), respond=lambda turn: response)
        return engine.turn(session, m)

    for response in (None, Odd(m), {"user_message": m}, m * 30, m + "\ud800"):
        watch.refused(lambda response=response: turn(response))
    for derived in ([m], [{"role": m, "content": m}], [{"role": "user", "content": Odd(m)}], [{m: m}]):
        watch.refused(lambda derived=derived: turn(m, derive_llm_context=lambda entry, defaults: derived))
    for meta in (Odd(m), {m, "set"}, m + "\ud800", float("nan")):
        entry: HistoryEntry[Any] = HistoryEntry(kind="injection", message=m, meta=meta)
        watch.look_at_value(entry)
        watch.refused(lambda entry=entry: HistoryManager(HistoryConfig(**policy)).append(session, entry))
    for meta in (Note(Odd(m)), Note(m + "\ud800"), m):  # type: ignore[arg-type]
        entry = HistoryEntry(kind="injection", message=m, meta=meta)
        typed: HistoryConfig[Any] = HistoryConfig(**policy, metadata=Note)
        watch.refused(lambda entry=entry, typed=typed: HistoryManager(typed).append(session, entry))
    watch.refused(lambda: turn(m, transform_entry=lambda entry: Odd(m)))
    for wrong in ({"kind": m}, {"kind": "turn", "message": m}, {"kind": "injection", "message": Odd(m)}):
        watch.refused(lambda wrong=wrong: HistoryEntry(**wrong))
    said = drive(
        HistoryManager(HistoryConfig(**policy)).append(session, HistoryEntry(kind="injection", message=m, meta=m))
    )
    watch.look_at_value(said)
    watch.look_at_value(HistoryConfig(**policy))

    async def read(metadata: Any) -> None:
        async for entry in HistoryManager(HistoryConfig(**policy, metadata=metadata)).entries(session):
            watch.look_at_value(entry)

    watch.refused(lambda: read(Note))
    watch.refused(lambda: Conversation(store, session, format=FORMAT).append(pair(m)))
    drive(store.delete(store.key(session)))


def damaged(path: Path, watch: Watch) -> None:
    """Rows that hold something else than was written, on a store that is open."""
    store = Store(SQLiteJournal(path, blocking=True))
    talk = talk_of(store, watch.marker, watch)

    async def show() -> None:
        for exchange in await talk.last(None):
            _ = exchange.messages

    for table, column, planted in (
        ("log", "entries", watch.marker.encode()),
        ("log", "entries", watch.marker),
        ("log", "entries", msgspec.msgpack.encode([[1, watch.marker]])),
        (
            "log",
            "entries",
            msgspec.msgpack.encode([[1, 77, *[0] * 8, [[watch.marker] * 2], b"", watch.marker.encode()]]),
        ),
        ("conversation", "state", f'["{watch.marker}"]'.encode()),
        ("conversation", "attempt", watch.marker.encode()),
        ("conversation", "recent", b"\0\0\0\x10" + watch.marker.encode()),
        ("conversation", "format", b"\xff" + watch.marker.encode()),
        ("conversation", "name", b"\xff" + watch.marker.encode()),
    ):
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("SAVEPOINT planted")
            connection.execute(f"UPDATE minutebook_{table} SET {column} = ?", (planted,))
            connection.execute("RELEASE planted")
        for reading in (store.verify(talk.key), store.read(talk.key), talk.window(), show(), store.list()):
            with contextlib.suppress(StopIteration):
                try:
                    drive(reading)
                except MinutebookError as error:
                    watch.codes.add(error.code)
                    watch.look_at_error(error)
    drive(store.close())


def test_i37_no_marker_outside_the_store(tmp_path: Path, figure: Figure) -> None:
    """Every success and failure at DEBUG, with tracebacks, causes, warnings, events and reprs: 0 markers."""
    with watching() as watch:
        bounds = StoreBounds(max_bytes=200_000, max_sessions=3)
        path = tmp_path / "history.sqlite"
        for journal in (
            SQLiteJournal(path, bounds, clock=Clock(), blocking=True),
            MemoryJournal(bounds, clock=Clock()),
        ):
            store = Store(journal)
            store._namespace = f"tenant {watch.marker}"
            drive(succeed(store, watch))
            refusals(store, watch)
            for key in [listing.key for listing in drive(store.list())][:1]:
                drive(store.delete(key))  # the store is bounded: make room for a session
            engines(store, watch)
            for n in range(4):
                with contextlib.suppress(MinutebookError):
                    drive(Conversation(store, f"{watch.marker} {n}", format=FORMAT).append(pair(watch.marker)))
            watch.refused(lambda store=store: Conversation(store, f"{watch.marker} 9", format=FORMAT).append(pair("x")))
            drive(store.close())
            watch.refused(lambda store=store: store.header(store.key(watch.marker)))
        other = tmp_path / "other.sqlite"
        store = Store(SQLiteJournal(other, blocking=True))
        drive(succeed(store, watch))
        drive(store.close())
        damaged(other, watch)
    assert watch.marker.encode() in path.read_bytes()
    figure(f"{watch.looked:,} texts of {len(watch.codes)} kinds of errors, 0 markers")
    assert watch.unrefused < 10
    assert len(watch.codes) >= 12, sorted(watch.codes)


def test_i37_no_marker_where_files_fail(tmp_path: Path) -> None:
    """A database that is none, one of another application, a full table of errors: none quotes what is in the file."""
    with watching() as watch:
        tmp_path.chmod(0o700)
        for n, content in enumerate((watch.marker.encode() * 200, b"SQLite format 3\0" + watch.marker.encode() * 300)):
            path = tmp_path / f"{n}.sqlite"
            path.touch(0o600)
            path.write_bytes(content)
            watch.refused(lambda path=path: SQLiteJournal(path, blocking=True))
        theirs = tmp_path / "theirs.sqlite"
        with contextlib.closing(sqlite3.connect(theirs)) as connection:
            connection.execute(f'CREATE TABLE "{watch.marker}" ("{watch.marker}" TEXT)')
        theirs.chmod(0o600)
        watch.refused(lambda: SQLiteJournal(theirs, blocking=True))


COMMANDS = ["show", "recover", "delete", "verify", "list", "stats", "doctor"]


@pytest.mark.parametrize("broken", [False, True], ids=["refused", "damaged"])
def test_i37_no_marker_in_the_errors_of_the_command_line(tmp_path: Path, broken: bool) -> None:
    """`--json` errors name codes and numbers; an id shows in answers that are about it alone."""
    pytest.importorskip("typer")
    with watching() as watch:
        tmp_path.chmod(0o700)
        path = tmp_path / "history.sqlite"
        store = Store(SQLiteJournal(path, blocking=True))
        drive(talk_of(store, watch.marker, watch).append(pair(watch.marker)))
        drive(store.close())
        if broken:
            path.write_bytes(watch.marker.encode() * 500)
        for command in COMMANDS:
            ids = [f"absent {watch.marker}"] if command in ("show", "recover", "delete", "verify") else []
            options = {"recover": ["--worker-stopped"], "delete": ["--yes"]}.get(command, [])
            where = ["--store", f"sqlite:///{path}", "--namespace", workload.NAMESPACE, "--json"]
            done = subprocess.run(
                [sys.executable, "-m", "minutebook", command, *ids, *options, *where],
                capture_output=True,
                text=True,
                env={**os.environ, "PYTHONWARNINGS": "always"},
            )
            assert "Traceback" not in done.stderr, done.stderr
            watch.look(f"stderr of {command}", done.stderr)
            if command not in ("list", "verify"):
                watch.look(f"output of {command}", done.stdout)
            assert (done.returncode != 0) or command in ("list", "stats", "doctor")


@pytest.mark.parametrize("where", ["cause", "note", "fact", "log", "warning", "repr"])
def test_i37_control_a_planted_leak_is_found(where: str) -> None:
    """A marker in any of the places that are searched is seen."""

    def refuse(marker: str) -> None:
        try:
            raise KeyError(marker if where == "cause" else "harmless")
        except KeyError as cause:
            error = MinutebookError("refused", value=marker if where == "fact" else 1)
            error.add_note(marker if where == "note" else "harmless")
            raise error from cause

    with pytest.raises(Leaked), watching() as watch:  # noqa: PT012 - some leaks are seen as the watch ends
        if where == "log":
            logging.getLogger("minutebook").debug("%s", watch.marker)
        elif where == "warning":
            warnings.warn(watch.marker, stacklevel=1)
        elif where == "repr":
            watch.look_at_value(Odd(watch.marker))
        else:
            watch.refused(lambda: refuse(watch.marker))
