"""
What a child does to a real store while it is killed, cut off or failed, and what may be found afterwards.

    python workload.py SCRIPT DATABASE [--count N] [--seed N] [--log-bytes N] [--host MODE-SYNC] [--blocking] [--normal]
                       [--early]
    python workload.py --nursery       a fork for each such line of standard input

A script is a row of steps through the public faces. Its times and ids come from its seed, so a second run of it over
the RAM journal tells the exact bytes of the record after every step: `Story`. After a fault the record on the disk
has to be one of these, from the state that was acknowledged last to the one that would have been acknowledged next.
Nothing between two states exists, and nothing beyond the next one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import re
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from minutebook.conversation import Conversation
from minutebook.errors import DecisionHistoryCorrupt, MinutebookError
from minutebook.model.bounds import StoreBounds, WindowLimits
from minutebook.model.keys import ConversationKey
from minutebook.ports import Page
from minutebook.stores import sqlite_connection, sqlite_log
from minutebook.stores import sqlite_statements as sql
from minutebook.stores.journal import JournalStore
from minutebook.stores.memory import MemoryJournal
from minutebook.stores.sqlite import SQLiteJournal
from minutebook.testing.drive import drive

NAME = "history.sqlite"
NAMESPACE = "tenant"
START = 1_800_000_000_000
TTL_MS = 60_000
NUMBERS = ("count", "seed", "log_bytes")
FLAGS = ("blocking", "normal", "early")
WHOLE = Page(rows=100_000, messages=2**62, size=2**62)


@dataclass(frozen=True)
class Plan:
    """
    One run. In a child the log is checkpointed whenever it holds about `log_bytes`.

    With `host`, such as "DELETE-EXTRA", it runs on a host's connection of that journal mode and `synchronous`.

    Two controls must fail: with `normal` commits are not synced, with `early` they are acknowledged before they begin.
    """

    script: str
    count: int = 6
    seed: int = 0
    log_bytes: int = 60_000
    host: str = ""
    blocking: bool = True
    normal: bool = False
    early: bool = False

    def command(self, root: Path) -> list[str]:
        """Return the child's command line for a database in `root`."""
        return [sys.executable, __file__, *self.arguments(root)]

    def arguments(self, root: Path) -> list[str]:
        options = [f"--{name.replace('_', '-')}={getattr(self, name)}" for name in (*NUMBERS, "host")]
        flags = [f"--{name}" for name in FLAGS if getattr(self, name)]
        return [self.script, str(root / NAME), *options, *flags]


class Clock:
    """A clock that stands until it is told."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now


class Store(JournalStore):
    """A store whose ids can be told beforehand."""

    def __init__(self, journal: Any) -> None:
        super().__init__(journal, namespace=NAMESPACE)
        self.ids = 0

    def fresh_id(self) -> str:
        self.ids += 1
        return f"id-{self.ids}"


# --- what is written ------------------------------------------------------------------------------------------------


def body(seed: int, name: str) -> str:
    """Return a text of which no two sectors are alike; some need overflow pages, some a few bytes."""
    random = Random(f"{seed} {name}")
    return random.randbytes(random.choice((20, 300, 700, 3_000))).hex()


def pair(seed: int, name: str) -> list[dict[str, Any]]:
    """Return a transcript of one exchange."""
    return [
        {"role": "user", "content": body(seed, f"{name} asks")},
        {"role": "assistant", "content": body(seed, f"{name} answers")},
    ]


def called(seed: int, name: str) -> dict[str, Any]:
    """Return a response that calls a tool."""
    function = {"name": "pay", "arguments": json.dumps({"text": body(seed, f"{name} argument")})}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": name, "type": "function", "function": function}],
    }


@dataclass
class Run:
    """What a script works with. `acknowledge` tells the parent; the clock is moved before every step."""

    plan: Plan
    store: Store
    clock: Clock
    acknowledge: Callable[[str], None]

    def talk(self, name: str = "talk") -> Conversation:
        return Conversation(self.store, name, format="openai-chat")

    def text(self, name: str) -> str:
        return body(self.plan.seed, name)

    def pass_time(self, milliseconds: int = 1_000) -> None:
        self.clock.now += milliseconds

    async def append(self, talk: Conversation, name: str) -> None:
        """Append one exchange under an id of its own, and acknowledge it."""
        self.pass_time()
        if self.plan.early:
            self.acknowledge(f"append {name}")
        await talk.append(pair(self.plan.seed, name), id=f"append {name}")
        if not self.plan.early:
            self.acknowledge(f"append {name}")


async def append(run: Run) -> None:
    """One exchange at a time, each by its own id."""
    for n in range(run.plan.count):
        await run.append(run.talk(), str(n))


async def turns(run: Run) -> None:
    """Turns of two exchanges, the first with a call: four durable commits each."""
    for n in range(run.plan.count):
        run.pass_time()
        async with run.talk().turn(run.text(f"{n} asks")) as turn:
            run.acknowledge(f"{n} input")
            await turn.window()
            [call] = await turn.respond(called(run.plan.seed, f"{n} call"))
            run.acknowledge(f"{n} call")
            await turn.result(call, run.text(f"{n} result"))
            run.acknowledge(f"{n} result")
            await turn.respond({"role": "assistant", "content": run.text(f"{n} answers")})
        run.acknowledge(f"{n} settled")


async def delete(run: Run) -> None:
    """One conversation stays; the others come and go."""
    await run.append(run.talk("stays"), "stays")
    for n in range(run.plan.count):
        await run.append(run.talk(f"goes {n}"), f"goes {n}")
        run.pass_time()
        erased = await run.store.delete(run.store.key(f"goes {n}"))
        run.acknowledge(f"deleted {n} {erased}")


async def expire(run: Run) -> None:
    """Conversations that expire, and are removed by the writes to a later one."""
    for n in range(run.plan.count):
        await run.append(run.talk(f"short {n}"), f"{n} first")
        await run.append(run.talk(f"short {n}"), f"{n} second")
        run.pass_time(3 * TTL_MS)


async def recover(run: Run) -> None:
    """Workers that die between their request and its answer, and are recovered."""
    for n in range(run.plan.count):
        run.pass_time()
        turn = run.talk().turn(run.text(f"{n} asks"))
        await turn.__aenter__()
        run.acknowledge(f"{n} input")
        run.pass_time()
        await run.store.recover(run.store.key("talk"), worker_stopped=True)
        run.acknowledge(f"{n} recovered")
        await run.append(run.talk(), str(n))


async def reserve(run: Run) -> None:
    """Plain reservations, which only the next commit makes durable."""
    for n in range(run.plan.count):
        run.pass_time()
        key, token = run.store.key("talk"), f"token {n}"
        reserved = await run.store.journal.reserve(key, token, format="openai-chat")
        turn = run.talk()
        drafts = turn.history.wire.transcript(pair(run.plan.seed, str(n)))
        delta = turn.history.delta(drafts, f"append {n}")
        await run.store.journal.commit(key, token, reserved.header.epoch, delta, release=True)
        run.acknowledge(f"append {n}")


async def create(run: Run) -> None:
    """Open, write once, close: the first start."""
    await run.append(run.talk(), "only")


async def compact(run: Run) -> None:
    """Forty messages, then a turn whose window leaves most of them out."""
    run.pass_time()
    forty = [message for n in range(20) for message in pair(run.plan.seed, str(n))]
    await run.talk().append(forty, id="forty")
    run.acknowledge("forty")
    async with run.talk().turn(run.text("asks")) as turn:
        run.acknowledge("input")
        await turn.window(WindowLimits(max_messages=6))
        await turn.respond({"role": "assistant", "content": run.text("answers")})
    run.acknowledge("settled")


async def migrate(run: Run) -> None:
    """One more exchange, in a database that was just brought to a newer schema."""
    await run.append(run.talk(), "after the migration")


KEPT = 2
"""How many exchanges the script `cut` keeps."""


async def cut(run: Run) -> None:
    """Appends of which each takes the oldest exchange out of the record in its own commit (SPEC E6)."""
    for n in range(run.plan.count):
        run.pass_time()
        history = run.talk().history
        delta = history.delta(
            history.wire.transcript(pair(run.plan.seed, str(n))), f"append {n}", cut=max(0, 2 * (n + 1 - KEPT))
        )
        journal, key = run.store.journal, run.store.key("talk")
        await journal.reserve(key, f"token {n}", format="openai-chat", opening=delta, release=True)
        run.acknowledge(f"append {n}")


LANES = "abcd"


async def lane(run: Run, name: str) -> None:
    """What one of the tasks does."""
    for n in range(run.plan.count):
        await run.talk(name).append(pair(run.plan.seed, f"{name} {n}"), id=f"append {n}")
        run.acknowledge(f"{name} {n}")


async def tasks(run: Run) -> None:
    """Four tasks with a conversation each, whose commits are made durable together."""
    await asyncio.gather(*(lane(run, name) for name in LANES))


SCRIPTS = {
    script.__name__: script
    for script in (append, turns, delete, expire, recover, reserve, create, compact, migrate, tasks, cut)
}


def _next_schema(cursor: sqlite3.Cursor) -> None:
    cursor.execute("ALTER TABLE minutebook_log ADD COLUMN note BLOB")
    cursor.execute("UPDATE minutebook_log SET note = entries")
    cursor.execute("CREATE TABLE minutebook_moved AS SELECT * FROM minutebook_log")
    cursor.execute("UPDATE minutebook_schema SET version = 2")


def _broken_step(cursor: sqlite3.Cursor) -> None:
    _next_schema(cursor)
    cursor.execute("UPDATE minutebook_log SET no_such_column = 1")


@contextlib.contextmanager
def newer_schema(*, broken: bool = False) -> Iterator[None]:
    """Be a later release, whose schema has version 2; or one whose migration fails half way."""
    version, steps, pragma = sql.SCHEMA_VERSION, sqlite_connection.MIGRATIONS, sql.SET_USER_VERSION
    sql.SCHEMA_VERSION = 2  # type: ignore[misc]
    sqlite_connection.MIGRATIONS = (*steps, _broken_step if broken else _next_schema)  # type: ignore[misc]
    sql.SET_USER_VERSION = "PRAGMA user_version = 2"  # type: ignore[misc]
    try:
        yield
    finally:
        sql.SCHEMA_VERSION, sqlite_connection.MIGRATIONS, sql.SET_USER_VERSION = version, steps, pragma  # type: ignore[misc]


def schema_of(database: Path) -> tuple[int, bool, int]:
    """Return the version that our table tells, whether the newer schema's column is there, and the file's version."""
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as connection:
        version = connection.execute("SELECT version FROM minutebook_schema").fetchone()[0]
        columns = [row[1] for row in connection.execute("PRAGMA table_info(minutebook_log)")]
        return version, "note" in columns, connection.execute("PRAGMA user_version").fetchone()[0]


def bounds(plan: Plan) -> StoreBounds:
    """Return what the plan's store may hold."""
    return StoreBounds(ttl_ms=TTL_MS if plan.script == "expire" else None)


def stories(plan: Plan) -> list[Story]:
    """Return the stories that a database has to agree with: one, or one for each of the tasks."""
    return [Story.of(plan, name) for name in LANES] if plan.script == "tasks" else [Story.of(plan)]


async def work(plan: Plan, store: Store, clock: Clock, acknowledge: Callable[[str], None], one_lane: str = "") -> None:
    """Run the plan's script on an open store."""
    run = Run(plan, store, clock, acknowledge)
    await (lane(run, one_lane) if one_lane else SCRIPTS[plan.script](run))


def open_journal(plan: Plan, database: Path, clock: Clock) -> SQLiteJournal:
    """Open the plan's journal; for the control, its connection no longer syncs."""
    if plan.host:
        return OfHost.on_connection(host_connection(plan, database), bounds(plan), clock=clock)
    journal = SQLiteJournal(database, bounds(plan), clock=clock, blocking=plan.blocking)
    if plan.normal:
        # The writer sets the pragma only where a job needs another one than the last, so this stays for the run.
        journal._database._connection.execute("PRAGMA synchronous = NORMAL")  # type: ignore[attr-defined]
    return journal


class OfHost(SQLiteJournal):
    """A journal on a host's connection; the host closes that when the journal is closed."""

    async def close(self) -> None:
        await super().close()
        self._database._connection.close()  # type: ignore[attr-defined]


def host_connection(plan: Plan, database: Path) -> sqlite3.Connection:
    """Return a connection as the plan's host opens and sets it up."""
    connection = sqlite3.connect(database)
    mode, synchronous = plan.host.split("-")
    connection.execute(f"PRAGMA journal_mode = {mode}")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    return connection


async def work_on_file(plan: Plan, database: Path, acknowledge: Callable[[str], None]) -> None:
    """Run the plan's script on a database file."""
    clock = Clock()
    async with Store(open_journal(plan, database, clock)) as store:
        await work(plan, store, clock, acknowledge)


def run_plan(plan: Plan, database: Path, acknowledge: Callable[[str], None] = lambda label: None) -> None:
    """Run the plan's script in its colour."""
    coroutine = work_on_file(plan, database, acknowledge)
    drive(coroutine) if plan.blocking else asyncio.run(coroutine)


async def _endure(plan: Plan, database: Path, acknowledge: Callable[[str], None]) -> None:
    try:
        clock = Clock()
        store = Store(open_journal(plan, database, clock))
    except MinutebookError as error:
        return tell("open", error)
    try:
        await work(plan, store, clock, acknowledge)
    except MinutebookError as error:
        tell("work", error)
        try:
            clock.now, store.ids = START, 0
            await work(plan, store, clock, lambda label: None)
            tell("again", None)
        except MinutebookError as second:
            tell("again", second)
    finally:
        await store.close()
    return None


def endure(plan: Plan, database: Path, acknowledge: Callable[[str], None]) -> None:
    """Run the plan's script; where it fails by name, say so and run it again on the same store, which may refuse."""
    with newer_schema() if plan.script == "migrate" else contextlib.nullcontext():
        coroutine = _endure(plan, database, acknowledge)
        drive(coroutine) if plan.blocking else asyncio.run(coroutine)


def tell(stage: str, error: MinutebookError | None) -> None:
    """Say on standard error how a stage ended: `work DecisionHistoryStorageFailed failed_before`."""
    problem = error.facts.get("problem") if error else None
    sqlite = error.facts.get("sqlite") if error else None
    told = f"{error.code} {problem if problem != 'database' else sqlite}" if error else "ok"
    sys.stderr.write(f"{stage} {told}\n")


# --- what may be found ----------------------------------------------------------------------------------------------

Dump = dict[str, Any]
"""Every conversation by its id: header, entries and receipts as plain values."""


async def dump(journal: Any) -> Dump:
    """Return all that the journal holds; whose token holds a conversation, or began it, differs from run to run."""
    found: Dump = {}
    for listing in await journal.list(NAMESPACE, "", 10_000):
        header = msgspec.to_builtins(listing.header)
        header["token"], header["birth"] = bool(header["token"]), bool(header["birth"])
        entries = await journal.oldest(listing.key, 0, WHOLE)
        receipts = msgspec.to_builtins(await journal.receipts(listing.key, 0, 100_000))
        for receipt in receipts:
            receipt["idempotency"] = re.sub(r"^(recover-\d+).*", r"\1", receipt["idempotency"])
        found[listing.key.id] = (header, msgspec.to_builtins(entries), receipts)
    return found


def recorded(found: Dump) -> Dump:
    """Return what a repeated append must leave as it is: all but the reservations that it takes and gives back."""
    kept = {}
    for name, (header, entries, receipts) in found.items():
        told = {field: header[field] for field in ("version", "entries", "bytes", "digest", "state", "attempt")}
        kept[name] = told, entries, [{**receipt, "epoch": 0} for receipt in receipts]
    return kept


class _Watched:
    """A RAM journal that notes what it holds after each write."""

    def __init__(self, journal: MemoryJournal, note: Callable[[Dump], None]) -> None:
        self._journal, self._note = journal, note

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._journal, name)
        if name not in ("reserve", "commit", "recover", "delete"):
            return method

        async def write(*arguments: Any, **options: Any) -> Any:
            result = await method(*arguments, **options)
            self._note(await dump(self._journal))
            return result

        return write


@dataclass
class Story:
    """The states that a plan goes through, each with its time, and how many of them each acknowledgement covers."""

    plan: Plan
    lane: str = ""
    states: list[tuple[int, Dump]] = field(default_factory=lambda: [(START, {})])
    labels: list[str] = field(default_factory=list)
    covered: list[int] = field(default_factory=lambda: [0])

    @classmethod
    def of(cls, plan: Plan, lane: str = "") -> Story:
        """Tell the plan's story on the RAM journal; of tasks that run beside each other, one lane's."""
        story, clock = cls(plan, lane), Clock()

        def acknowledge(label: str) -> None:
            story.labels.append(label.replace("False", "True"))  # RAM erases nothing; a file does
            story.covered.append(len(story.states) - 1)

        journal = _Watched(MemoryJournal(bounds(plan), clock=clock), lambda d: story.states.append((clock.now, d)))
        drive(work(plan, Store(journal), clock, acknowledge, lane))
        return story

    @property
    def final(self) -> Dump:
        """What is recorded when all is done."""
        return self.states[-1][1]

    def allowed(self, acknowledged: int, *, later: bool = False) -> list[tuple[int, Dump]]:
        """Return the states that may be found after so many acknowledgements, the expected ones first."""
        last = self.covered[-1 if later else min(acknowledged + 1, len(self.labels))]
        return self.states[self.covered[acknowledged] : last + 1]

    def problem(
        self, found: Callable[[int], Dump], acknowledged: tuple[str, ...], *, later: bool = False
    ) -> tuple[str, str] | None:
        """Return ("lost" or "other", a note), or None where one of the allowed states was found."""
        if self.lane:
            everything, acknowledged = found, tuple(label for label in acknowledged if label[0] == self.lane)
            found = lambda wall: {name: held for name, held in everything(wall).items() if name == self.lane}  # noqa: E731
        if list(acknowledged) != self.labels[: len(acknowledged)]:
            return "other", f"acknowledged {acknowledged[-1:]}, the story says otherwise"
        if any(found(wall) == state for wall, state in self.allowed(len(acknowledged), later=later)):
            return None
        earlier = self.states[: self.covered[len(acknowledged)]]
        for back, (wall, state) in enumerate(reversed(earlier), 1):
            if found(wall) == state:
                return "lost", f"the state {back} write(s) before the acknowledged one"
        return "other", "no state of the story"


class Found:
    """A database after a fault, opened as any program would open it, and verified."""

    def __init__(self, plan: Plan, database: Path) -> None:
        """Open; every conversation's digest chain is recomputed."""
        self.clock = Clock()
        self.expires = bounds(plan).ttl_ms is not None
        self.journal = open_journal(replace(plan, blocking=True, normal=False), database, self.clock)
        self.store = Store(self.journal)
        self._read: Dump | None = None

    def at(self, wall: int) -> Dump:
        """Return all that is there at a time."""
        if self._read is not None and not self.expires:
            return self._read
        self.clock.now = wall
        self._read = drive(dump(self.journal))
        for name in self._read:
            drive(self.store.verify(ConversationKey(NAMESPACE, name)))
        return self._read

    def integrity(self) -> str:
        """Return what SQLite thinks of the file itself."""
        return str(self.journal._read(lambda cursor: cursor.execute("PRAGMA integrity_check").fetchone()[0]))

    def close(self) -> None:
        drive(self.store.close())

    def __enter__(self) -> Found:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def judged(
    told: list[Story], directory: Path, acknowledged: tuple[str, ...], *, later: bool = False
) -> tuple[str, str] | None:
    """
    Return ("lost", "corrupt" or "other", a note) about a database after a fault, or None where it is sound.

    With `later` the child may have gone on unheard after its last acknowledgement.
    """
    try:
        with Found(told[0].plan, directory / NAME) as found:
            integrity = found.integrity()
            if integrity != "ok":
                return "corrupt", integrity
            problems = (story.problem(found.at, acknowledged, later=later) for story in told)
            return next((problem for problem in problems if problem), None)
    except (DecisionHistoryCorrupt, sqlite3.DatabaseError) as error:
        return "corrupt", str(error)
    except MinutebookError as error:
        return "other", f"{error.code}: {error}"


def acknowledging(ack_file: str) -> Callable[[str], None]:
    """Return what writes one acknowledgement to the file that the harness reads, and waits where it is to be held."""
    descriptor = os.open(ack_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    until_held = itertools.count(int(os.environ.get("FAULT_HOLD_AFTER", "0")) - 1, -1)

    def acknowledge(label: str) -> None:
        os.write(descriptor, f"ack {label}\n".encode())
        if next(until_held) == 0:
            signal.pause()

    return acknowledge


def parsed(arguments: Iterable[str]) -> tuple[Plan, Path]:
    """Return the plan and the database that a command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("script", choices=SCRIPTS)
    parser.add_argument("database", type=Path)
    for name in NUMBERS:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(Plan, name))
    parser.add_argument("--host", default=Plan.host)
    for name in FLAGS:
        parser.add_argument(f"--{name}", action="store_true")
    options = vars(parser.parse_args(list(arguments)))
    database = options.pop("database")
    return Plan(**options), database


def main(arguments: Iterable[str], ack_file: str) -> None:
    chosen, file = parsed(arguments)
    sqlite_log.CHECKPOINT_BYTES = chosen.log_bytes  # type: ignore[misc]
    endure(chosen, file, acknowledging(ack_file))


def serve() -> None:
    """Be a nursery: fork a child for each line of standard input; tell its process id, and its status in the end."""
    for line in sys.stdin:
        *arguments, ack_file = json.loads(line)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                main(arguments, ack_file)
                status = 0
            finally:
                os._exit(status)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--nursery"]:
        serve()
    else:
        main(sys.argv[1:], os.environ["FAULT_ACK_FILE"])
