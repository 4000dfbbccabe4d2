"""PostgreSQL when it dies, and its workers when they do: servers killed, standbys promoted, replies mixed up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from servers import postgres
from servers.postgres import Server, until
from servers.proxy import Proxy, proxy
from tests.budgets import PROVE, budget
from tests.stores import postgres_lab
from tests.stores.kills import survive_kills, write_until_killed
from tests.stores.labs import chat, in_threads, said
from tests.stores.test_exclusion import check_contest, contest, failing

from minutebook.errors import (
    DecisionHistoryBusy,
    DecisionHistoryCorrupt,
    DecisionHistoryFenced,
    DecisionHistoryRegressed,
    DecisionHistoryStorageFailed,
    DecisionHistoryStorageLocked,
    DecisionHistoryStorageUnsafe,
    DecisionHistoryStoreFull,
    StorageError,
)
from minutebook.model.bounds import StoreBounds
from minutebook.model.keys import ConversationKey
from minutebook.stores import postgres_lines, postgres_places
from minutebook.stores import postgres_statements as sql
from minutebook.stores.postgres_lines import AsynchronousLines
from minutebook.stores.postgres_schema import CREATE_UNSAFE, MIGRATIONS
from minutebook.stores.postgres_statements import Statement
from minutebook.stores.remote import DRIFT_MS
from minutebook.stores.sections import inside
from minutebook.testing import FrozenClock, drive
from minutebook.testing.conformance import samples
from minutebook.testing.conformance.samples import FORMAT, KEY, adding, append, entries, say

ROOT = Path(__file__).parents[2]
KILLS = budget(6, 500)
CRASHES = budget(2, 40)
SCHEDULES = budget(25, 1_000)
OPERATIONS = budget(1_500, 100_000)


@pytest.fixture
def name() -> str:
    """A lab's name, so a schema, of its own."""
    return uuid.uuid4().hex


@contextlib.contextmanager
def pair(*, synchronous: bool) -> Iterator[tuple[Server, Server]]:
    """Run a primary and a standby that follows it."""
    settings = {"hot_standby": "on", "max_wal_senders": "4", "wal_keep_size": "64MB"}
    with postgres.single(**settings) as primary:
        folder = Path(tempfile.mkdtemp(prefix="minutebook-standby-"))
        standby = Server(folder, settings)
        try:
            standby.own_folder()
            primary.run(
                *(primary.programs / "pg_basebackup", "-D", standby.data, "-R", "-X", "stream", "--no-sync"),
                *("-c", "fast", "-d", primary.url() + "?application_name=standby"),
            )
            standby.start()
            until(lambda: primary.ask("SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'"), "it streams")
            if synchronous:
                primary.ask("ALTER SYSTEM SET synchronous_standby_names = '*'")
                primary.ask("SELECT pg_reload_conf()")
                until(
                    lambda: primary.ask("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"), "it is in sync"
                )
            yield primary, standby
        finally:
            standby.stop()
            shutil.rmtree(folder, ignore_errors=True)


def promote(standby: Server) -> None:
    standby.ask("SELECT pg_promote()")
    until(lambda: standby.ask("SELECT pg_is_in_recovery()") == [(False,)], "the standby is the primary")


class Writer:
    """A worker that writes one entry after another, and notes what was acknowledged and what is unknown."""

    def __init__(self, journal: Any, name: str) -> None:
        self.journal = journal
        self.key = ConversationKey("writers", name)
        self.acknowledged: list[str] = []
        self.unknown: list[str] = []
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        while not self.stop.is_set():
            id_ = f"{len(self.acknowledged)}"
            try:
                drive(append(self.journal, self.key, id_, say(id_)))
            except StorageError:
                self.unknown.append(id_)
                return
            self.acknowledged.append(id_)

    def join(self) -> None:
        self.thread.join(60)
        assert not self.thread.is_alive()


def check_whole(journal: Any, writer: Writer) -> int:
    """See that what was acknowledged is there, once, and that an unknown write is there once or not at all."""
    for id_ in writer.acknowledged:
        assert drive(journal.receipt(writer.key, id_)) is not None, f"{id_} was acknowledged and is lost"
    found = [entry.payload for entry in drive(entries(journal, writer.key))]
    assert len(found) == len(set(found))
    assert 0 <= len(found) - len(writer.acknowledged) <= len(writer.unknown)
    for id_ in writer.unknown:
        drive(append(journal, writer.key, id_, say(id_)))
    again = [entry.payload for entry in drive(entries(journal, writer.key))]
    assert len(again) == len(writer.acknowledged) + len(writer.unknown)
    return len(found) - len(writer.acknowledged)


# --- the server dies -------------------------------------------------------------------------------------------------


@pytest.mark.timeout(3_600 if PROVE else 300)
def test_i01_i03_i12_bad_input_94_a_server_killed_in_commit(name: str, figure: Callable[[str], None]) -> None:
    """What was acknowledged is there; what was cut is found by its id; reservations stand (94, I-1, I-3, I-12)."""
    chance = random.Random(0)
    acknowledged = unknown = written = 0
    with postgres.single() as server:
        for crash in range(CRASHES):
            journal = postgres_lab.journal(name, server=server, blocking=True)
            held = ConversationKey("held", f"{crash}")
            epoch = drive(journal.reserve(held, "t", format=FORMAT)).header.epoch
            writers = [Writer(journal, f"{crash}-{number}") for number in range(4)]
            time.sleep(chance.uniform(0.1, 0.6))
            server.kill()
            for writer in writers:
                writer.join()
            server.start()
            written += sum(check_whole(journal, writer) for writer in writers)
            acknowledged += sum(len(writer.acknowledged) for writer in writers)
            unknown += sum(len(writer.unknown) for writer in writers)
            with pytest.raises(DecisionHistoryBusy):
                drive(journal.reserve(held, "u", format=FORMAT))
            drive(journal.commit(held, "t", epoch, adding("one", say("q")), release=True))
            drive(journal.close())
    assert acknowledged > 10 * CRASHES
    assert unknown
    figure(f"{CRASHES} kills: {acknowledged:,} acknowledged, 0 lost; {unknown} unknown, {written} of them written")


def test_i01_control_a_server_that_acknowledges_early_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the settings that are refused, the same kill loses what was acknowledged, and the harness says so (I-1)."""
    monkeypatch.setattr("minutebook.stores.postgres._check_server", lambda row: None)
    blind = Statement("CREATE FUNCTION {schema}.unsafe() RETURNS text LANGUAGE sql AS $$ SELECT '' $$")
    statements = [blind if each is CREATE_UNSAFE else each for each in MIGRATIONS[0]]
    monkeypatch.setattr("minutebook.stores.postgres.MIGRATIONS", (statements,))
    with postgres.single(synchronous_commit="off", wal_writer_delay="10s") as server:
        journal = postgres_lab.journal(name, server=server, blocking=True)
        drive(append(journal, KEY, "one", say("q")))
        server.ask("CHECKPOINT")
        writer = Writer(journal, "early")
        until(lambda: len(writer.acknowledged) > 50, "there are writes")
        server.kill()
        writer.join()
        server.start()
        with pytest.raises(AssertionError, match="acknowledged and is lost"):
            check_whole(postgres_lab.journal(name, server=server, blocking=True), writer)


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
def test_bad_input_97_a_server_that_may_lose_what_it_wrote_is_refused(setting: str, name: str) -> None:
    """`fsync` or `full_page_writes` off, by name (97)."""
    with postgres.single(**{setting: "off"}) as server:
        journal = postgres_lab.journal(name, server=server, blocking=True)
        with pytest.raises(DecisionHistoryStorageUnsafe) as refused:
            drive(journal.header(KEY))
        assert refused.value.problem == setting


@pytest.mark.parametrize(
    ("setting", "value", "safe"),
    [
        ("synchronous_commit", "off", False),
        ("synchronous_commit", "local", True),
        ("synchronous_commit", "remote_write", True),
        ("fsync", "off", False),
        ("full_page_writes", "off", False),
    ],
)
def test_bad_input_97_a_setting_that_changes_under_an_open_store(
    setting: str, value: str, safe: bool, name: str
) -> None:
    """What may lose what it acknowledges is refused by the very next write, and reads go on (97, I-1)."""
    with postgres.single() as server:
        journal = postgres_lab.journal(name, server=server, blocking=True)
        drive(append(journal, KEY, "one", say("q")))
        _set(server, setting, value)
        if safe:
            drive(append(journal, KEY, "two", say("r")))
        else:
            with pytest.raises(DecisionHistoryStorageUnsafe) as refused:
                drive(append(journal, KEY, "two", say("r")))
            assert refused.value.problem == setting
            assert len(drive(entries(journal, KEY))) == 1
        _set(server, setting, "on")
        drive(append(journal, KEY, "two", say("r")))
        assert len(drive(entries(journal, KEY))) == 2
        drive(journal.close())


def test_bad_input_97_a_commit_that_is_only_local_is_refused_where_there_are_standbys(name: str) -> None:
    """`synchronous_commit=local` gives up what `synchronous_standby_names` promises (97)."""
    with postgres.single(synchronous_commit="local") as server:
        journal = postgres_lab.journal(name, server=server, blocking=True)
        drive(append(journal, KEY, "one", say("q")))
        _set(server, "synchronous_standby_names", "standby")
        for opened in (journal, postgres_lab.journal(name, server=server, blocking=True)):
            with pytest.raises(DecisionHistoryStorageUnsafe) as refused:
                drive(append(opened, KEY, "two", say("r")))
            assert refused.value.problem == "synchronous_commit"
            drive(opened.close())


def _set(server: Server, setting: str, value: str) -> None:
    server.ask(f"ALTER SYSTEM SET {setting} = '{value}'")
    server.ask("SELECT pg_reload_conf()")
    until(lambda: server.ask(f"SHOW {setting}") == [(value,)], "the server has read it")


# --- standbys --------------------------------------------------------------------------------------------------------


def test_i15_bad_input_97_a_standby_and_what_it_lost(name: str) -> None:
    """A standby is refused; promoted without the last writes, it is found out by whoever saw them (97, I-15)."""
    with pair(synchronous=False) as (primary, standby), proxy(primary.port) as wire:
        journal = postgres_lab.journal(name, url=primary.url(port=wire.port), blocking=True)
        drive(append(journal, KEY, "one", say("q")))
        at = primary.ask("SELECT pg_current_wal_lsn()")[0][0]
        until(lambda: standby.ask(f"SELECT pg_last_wal_replay_lsn() >= '{at}'") == [(True,)], "the standby has it")
        with pytest.raises(DecisionHistoryStorageUnsafe) as refused:
            drive(postgres_lab.journal(name, server=standby, blocking=True).header(KEY))
        assert refused.value.problem == "read_only"
        standby.stop()
        drive(append(journal, KEY, "lost", say("r")))
        primary.kill()
        standby.start()
        promote(standby)
        wire.upstream = standby.port
        wire.reset_all()
        for call in (journal.header(KEY), append(journal, KEY, "three", say("s"))):
            with pytest.raises((DecisionHistoryRegressed, DecisionHistoryStorageFailed)) as lost:
                drive(call)
        assert isinstance(lost.value, DecisionHistoryRegressed)
        assert (lost.value.version, lost.value.seen) == (1, 2)
        other = postgres_lab.journal(name, server=standby, blocking=True)
        assert [entry.seq for entry in drive(entries(other, KEY))] == [1]
        for number in range(3):
            drive(append(other, KEY, f"{number}", say("another story")))
        for call in (journal.header(KEY), append(journal, KEY, "three", say("s"))):
            with pytest.raises(DecisionHistoryRegressed) as lost:
                drive(call)
            assert (lost.value.version, lost.value.seen) == (4, 2)
        drive(journal.close())
        drive(other.close())


def test_i01_b2_a_synchronous_standby_has_all_that_was_acknowledged(name: str, figure: Callable[[str], None]) -> None:
    """The primary is killed in the middle of writes and the standby promoted: nothing acknowledged is missing (B2)."""
    with pair(synchronous=True) as (primary, standby):
        journal = postgres_lab.journal(name, server=primary, blocking=True)
        writers = [Writer(journal, f"{number}") for number in range(4)]
        until(lambda: sum(len(writer.acknowledged) for writer in writers) > 40, "there are writes")
        primary.kill()
        for writer in writers:
            writer.join()
        promote(standby)
        after = postgres_lab.journal(name, server=standby, blocking=True)
        for writer in writers:
            check_whole(after, writer)
        figure(f"{sum(len(writer.acknowledged) for writer in writers)} acknowledged before the primary died, 0 lost")
        drive(journal.close())
        drive(after.close())


@contextlib.contextmanager
def without_its_standby(server: Server) -> Iterator[None]:
    """Have a server wait for a standby that is not there, and an operator cancel each such wait."""
    done = threading.Event()

    def cancel() -> None:
        while not done.wait(0.05):
            server.ask("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")

    operator = threading.Thread(target=cancel)
    _set(server, "synchronous_standby_names", "absent")
    operator.start()
    try:
        yield
    finally:
        done.set()
        operator.join()
        _set(server, "synchronous_standby_names", "")


@pytest.mark.parametrize("blocking", [True, False])
def test_i01_b2_a_wait_for_the_standby_that_was_broken_off_is_no_success(blocking: bool, name: str) -> None:
    """An operator cancels the wait: the write is there and may not outlive a failover, so it is told as unknown."""
    with postgres.single() as server:

        async def story() -> None:
            journal = postgres_lab.journal(name, server=server, blocking=blocking)
            await append(journal, KEY, "one", say("q"))
            with without_its_standby(server), pytest.raises(DecisionHistoryStorageFailed) as failed:
                await append(journal, KEY, "two", say("r"))
            assert failed.value.problem == "replication"
            assert await journal.receipt(KEY, "two") is not None
            await append(journal, KEY, "two", say("r"))
            assert len(await entries(journal, KEY)) == 2
            await journal.close()

        drive(story()) if blocking else asyncio.run(story())


@contextlib.contextmanager
def quieted(server: Server, by: str) -> Iterator[str]:
    """Yield a URL whose sessions are told no warnings, once they are open or from their beginning."""
    with contextlib.ExitStack() as stack:
        if by == "url":
            yield server.url() + "?options=-c%20client_min_messages%3Derror"
        elif by == "pooler":
            server.ask(f"ALTER ROLE {postgres.USER} SET client_min_messages = error")
            yield server.url(port=stack.enter_context(postgres.pooler(server)))
        else:
            yield server.url()


@pytest.mark.parametrize("by", ["url", "pooler", "server"])
def test_i01_b2_bad_input_97_a_session_that_is_told_no_warnings_hears_of_its_standby(by: str, name: str) -> None:
    """Whoever set `client_min_messages = error`, a write that was not replicated is none that succeeded (97, I-1)."""
    with postgres.single() as server, quieted(server, by) as url:
        journal = postgres_lab.journal(name, url=url, blocking=True)
        drive(append(journal, KEY, "one", say("q")))
        if by == "server":
            _set(server, "client_min_messages", "error")
        with without_its_standby(server):
            for key in (KEY, ConversationKey("n", "new")):
                with pytest.raises(DecisionHistoryStorageFailed) as failed:
                    drive(append(journal, key, "two", say("r")))
                assert failed.value.problem == "replication"
        drive(append(journal, KEY, "three", say("s")))
        drive(journal.close())


def test_i01_control_a_warning_that_is_not_asked_for_is_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the same write is acknowledged, and the standby has nothing of it (I-1)."""
    asked = "pg_catalog.set_config('client_min_messages', 'warning', true)"
    assert asked in sql.WRITE.text
    monkeypatch.setattr(sql, "WRITE", msgspec.structs.replace(sql.WRITE, text=sql.WRITE.text.replace(asked, "''")))
    with postgres.single() as server, quieted(server, "url") as url:
        journal = postgres_lab.journal(name, url=url, blocking=True)
        drive(append(journal, KEY, "one", say("q")))
        with without_its_standby(server):
            drive(append(journal, KEY, "two", say("r")))
        drive(journal.close())


async def giving_up(server: Server, name: str, how: str) -> tuple[list[str], int]:
    """
    Write to six conversations and one of them again, over two connections, while the standby is gone.

    `how` is `blocking`, `asyncio`, `cancelled`, or `loops` for an event loop of its own for each call.
    Return how each call ended, and how many of the server's processes were at such calls afterwards.
    """
    application, blocking = name[:12], how == "blocking"
    url = server.url() + f"?application_name={application}"
    journal = postgres_lab.journal(name, url=url, blocking=blocking, timeout=0.5, max_connections=2)

    async def done(call: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(call) if how == "loops" else await call

    await done(append(journal, KEY, "one", say("q")))
    _set(server, "synchronous_standby_names", "absent")
    told: list[str] = []
    for number in (0, 0, 1, 2, 3, 4, 5):
        call = append(journal, ConversationKey("n", f"{number}"), "one", say("q"))
        try:
            await done(asyncio.wait_for(call, 0.2) if how == "cancelled" else call)
        except StorageError as error:
            told.append(error.facts.get("problem") or f"{type(error).__name__} {error.facts['owed']}")
        except TimeoutError:
            told.append("cancelled")
    at_work = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND state = 'active'"
    ((left,),) = server.ask(at_work, (application,))
    reader = postgres_lab.journal(name, server=server, blocking=True)
    assert drive(reader.header(KEY)) is not None
    assert drive(reader.header(ConversationKey("n", "0"))) is None
    drive(reader.close())
    _set(server, "synchronous_standby_names", "")
    until(lambda: server.ask(at_work, (application,)) == [(0,)], "nobody waits for a standby any more")
    for number in range(6):
        await done(append(journal, ConversationKey("n", f"{number}"), "one", say("q")))
        assert len(await done(entries(journal, ConversationKey("n", f"{number}")))) == 1
    await done(journal.close())
    until(lambda: server.ask(at_work.replace(" AND state = 'active'", ""), (application,)) == [(0,)], "all are closed")
    return told, left


_FULL = "DecisionHistoryStorageLocked 2"


def given_up(name: str, how: str) -> tuple[list[str], int]:
    """Return what `giving_up` does on a server of its own."""
    with postgres.single() as server:
        story = giving_up(server, name, how)
        return asyncio.run(story) if how in ("asyncio", "cancelled") else drive(story)


@pytest.mark.parametrize("how", ["blocking", "asyncio", "cancelled", "loops"])
def test_b2_bad_input_95_calls_that_were_given_up_leave_no_more_behind_than_there_are_places(
    how: str, name: str
) -> None:
    """A server that waits for its standby is at no more calls of a store than `max_connections`, whoever gave up."""
    told, left = given_up(name, how)
    assert left == 2
    assert told == (["cancelled"] * 7 if how == "cancelled" else ["deadline"] * 2 + [_FULL] * 5)


@pytest.mark.parametrize("how", ["blocking", "asyncio"][: budget(1, 2)])
def test_b2_control_places_that_are_free_too_early_fill_a_server(
    how: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a call that was given up is thought to be over, each of them is still in the server, and is found (B2)."""
    monkeypatch.setattr(postgres_lines, "is_at_work", lambda pgconn: False)
    told, left = given_up(name, how)
    assert left == 7
    assert told == ["deadline"] * 7


@contextlib.contextmanager
def locked(name: str, table: str) -> Iterator[Callable[[], int]]:
    """Lock a table of a store; yield what tells how many of the server's processes wait for that."""
    server = postgres.shared()
    with psycopg.connect(server.url()) as other:
        other.execute(f"LOCK TABLE {postgres_lab.schema_of(name)}.{table}".encode())
        asked = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
        yield lambda: server.ask(asked, (other.info.backend_pid,))[0][0]


@pytest.mark.parametrize("blocking", [True, False])
def test_b2_bad_input_95_what_is_given_up_while_it_is_looked_at_keeps_its_place(blocking: bool, name: str) -> None:
    """A new connection whose first questions are not answered is left behind once, not with each call (95, B2)."""
    drive(append(postgres_lab.journal(name, blocking=True), KEY, "one", say("q")))

    async def story() -> None:
        journal = postgres_lab.journal(name, blocking=blocking, timeout=0.4, max_connections=1)
        with locked(name, "version") as waiting:
            with pytest.raises(DecisionHistoryStorageFailed):
                await journal.header(KEY)
            for _ in range(2):
                with pytest.raises(DecisionHistoryStorageLocked, match="given up keep 1 until"):
                    await journal.header(KEY)
            assert waiting() == 1
        assert await journal.header(KEY) is not None
        await journal.close()

    drive(story()) if blocking else asyncio.run(story())


@pytest.mark.parametrize("closed", [True, False])
def test_i18_a_call_that_is_collected_while_others_are_looked_at_waits_for_no_lock(
    closed: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is broken off in the middle of that look, by the same thread, and is owed like the one that is looked at."""
    looks = postgres_places._is_over

    async def story() -> None:
        journal: Any = postgres_lab.journal(name, blocking=False, timeout=5, max_connections=3)
        await append(journal, KEY, "one", say("q"))
        lines = journal._remote._lines
        with locked(name, "conversation") as waiting:
            calls = [journal.header(KEY) for _ in range(2)]
            tasks = [asyncio.create_task(call) for call in calls]
            while waiting() < len(calls):
                await asyncio.sleep(0)
            tasks[0].cancel()
            await asyncio.wait(tasks[:1])
            lines._closed = closed

            def look(pgconn: Any) -> bool:
                monkeypatch.setattr(postgres_places, "_is_over", looks)
                assert inside()
                calls[1].close()
                return looks(pgconn)

            monkeypatch.setattr(postgres_places, "_is_over", look)
            assert lines._kept() == 2
            assert lines._kept() == (0 if closed else 2)
        tasks[1].cancel()  # what it would wait for is gone
        await asyncio.wait(tasks)
        await journal.close()

    asyncio.run(story())


# --- workers die -----------------------------------------------------------------------------------------------------


def opened(schema: str, url: str, **options: Any) -> Any:
    """Return a journal of this process's own."""
    from minutebook.stores.postgres import PostgresRemote
    from minutebook.stores.remote_journal import RemoteJournal

    return RemoteJournal(PostgresRemote(url, schema=schema, blocking=True, **options))


def writing(schema: str, url: str, first: str) -> None:
    write_until_killed(opened(schema, url), int(first))


def stopped(schema: str, url: str, at: str) -> None:
    """Stop this process in the middle of a turn, and go on when somebody lets it."""
    journal = opened(schema, url)

    async def story() -> None:
        async with chat(journal).turn("old question") as turn:
            await turn.window()
            if at == "window":
                os.kill(os.getpid(), signal.SIGSTOP)
            (call,) = await turn.respond(said("", "call-1"))
            if at == "respond":
                os.kill(os.getpid(), signal.SIGSTOP)
            await turn.result(call, "old result")
            await turn.respond(said("old answer"))
            if at == "end":
                os.kill(os.getpid(), signal.SIGSTOP)

    try:
        drive(story())
    except DecisionHistoryFenced:
        print("fenced")


def child(function: Callable[..., None], *arguments: str) -> subprocess.Popen[str]:
    code = f"import sys; from tests.stores import test_postgres_failures as t; t.{function.__name__}(*sys.argv[1:])"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
    )


@pytest.mark.timeout(7_200 if PROVE else 300)
def test_i01_i03_a_worker_killed_at_any_moment(name: str, figure: Callable[[str], None]) -> None:
    """SIGKILL: every turn that was acknowledged is whole, and one more may be; the rest is recovered (I-1, I-3)."""
    figure(
        survive_kills(
            postgres_lab.journal(name, blocking=True),
            KILLS,
            lambda first: child(writing, postgres_lab.schema_of(name), postgres.shared().url(), f"{first}"),
            lambda: until(lambda: _is_idle(name), "the server saw it go"),
        )
    )


def _is_idle(name: str) -> bool:
    asked = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE %s AND pid <> pg_backend_pid()"
    return bool(postgres.shared().ask(asked, (f"%{postgres_lab.schema_of(name)}%",)) == [(0,)])


@pytest.mark.parametrize("at", ["window", "respond", "end"])
def test_i13_bad_input_65_a_stopped_process_that_wakes_after_recovery(at: str, name: str) -> None:
    """SIGSTOP, recover, a new holder's turn, SIGCONT: the old one is fenced and writes nothing (65, I-13)."""
    server = postgres.shared()
    old = child(stopped, postgres_lab.schema_of(name), server.url(), at)
    stat = Path(f"/proc/{old.pid}/stat")
    until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "it has stopped")
    journal = postgres_lab.journal(name, blocking=True)
    talk = chat(journal)
    drive(talk.store.recover(talk.key, worker_stopped=True))

    async def turn() -> None:
        async with talk.turn("new question") as turn:
            await turn.respond(said("new answer"))

    drive(turn())
    before = drive(journal.header(talk.key))
    old.send_signal(signal.SIGCONT)
    assert old.communicate(timeout=60)[0] == "fenced\n"
    assert drive(journal.header(talk.key)) == before
    drive(journal.close())


def holding(schema: str, url: str) -> None:
    """Take turn after turn, and say how each ended, until this process is killed."""
    journal = opened(schema, url)

    async def turn(number: int) -> None:
        async with chat(journal).turn(f"old {number}") as turn:
            await turn.window()
            await turn.respond(said(f"old answer {number}"))

    number = 0
    while True:
        number += 1
        try:
            drive(turn(number))
            print("written", flush=True)
        except DecisionHistoryFenced:
            print("fenced", flush=True)
        except DecisionHistoryBusy:
            print("busy", flush=True)


@pytest.mark.timeout(3_600 if PROVE else 300)
def test_i13_a_holder_stopped_at_any_moment_writes_nothing_after_recovery(
    name: str, figure: Callable[[str], None]
) -> None:
    """SIGSTOP anywhere, recover, another turn, SIGCONT: what was recorded meanwhile stands unchanged (I-13)."""
    chance = random.Random(13)
    journal = postgres_lab.journal(name, blocking=True)
    talk = chat(journal)
    told: list[str] = []
    recovered = 0
    holder = child(holding, postgres_lab.schema_of(name), postgres.shared().url())
    assert holder.stdout is not None
    reader = threading.Thread(target=lambda: told.extend(line.strip() for line in holder.stdout or ()))
    reader.start()
    try:
        until(lambda: "written" in told, "the holder writes")
        for number in range(SCHEDULES):
            time.sleep(chance.uniform(0, 0.02))
            holder.send_signal(signal.SIGSTOP)
            stat = Path(f"/proc/{holder.pid}/stat")
            until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "it has stopped")  # noqa: B023
            until(lambda: _is_idle(name), "what it sent is done")
            header = drive(journal.header(talk.key))
            if header is not None and header.token:
                drive(talk.store.recover(talk.key, worker_stopped=True, epoch=header.epoch))
                recovered += 1
            drive(talk.append([{"role": "user", "content": "q"}, {"role": "assistant", "content": f"{number}"}]))
            before, fenced, so_far = drive(journal.header(talk.key)), told.count("fenced"), len(told)
            holder.send_signal(signal.SIGCONT)
            until(lambda: len(told) > so_far, "it went on")  # noqa: B023
            newest = drive(journal.oldest(talk.key, before.entries - 1, samples.EVERYTHING))
            assert newest[0].digest == before.digest
            assert told.count("fenced") - fenced <= 1
    finally:
        holder.kill()
        holder.wait()
        reader.join()
    assert recovered > SCHEDULES // 10
    until(lambda: _is_idle(name), "the server saw it go")
    header = drive(journal.header(talk.key))
    if header.token:
        drive(talk.store.recover(talk.key, worker_stopped=True))
    drive(talk.store.verify(talk.key))
    figure(f"{SCHEDULES} stops, {recovered} recoveries, {told.count('fenced')} fenced, 0 late writes")
    drive(journal.close())


def working(schema: str, url: str, first: str, attempts: str) -> None:
    """Four threads take, write and give back; then their diaries go to the parent."""
    print(contest(opened(schema, url, timeout=0.5), int(first), int(attempts)))


@pytest.mark.timeout(3_600 if PROVE else 300)
def test_i10_one_live_decision_over_processes_behind_a_network_that_fails(
    name: str, figure: Callable[[str], None]
) -> None:
    """16 workers in 4 processes, replies late, cut, swallowed or reset: no two holds overlap (I-10)."""
    attempts = budget(8, 2_000)
    schema = postgres_lab.schema_of(name)
    journal = postgres_lab.journal(name, blocking=True)
    drive(append(journal, KEY, "one", say("q")))
    with proxy(postgres.shared().port) as wire, failing(wire) as done:
        wire.delay = (0, 0.002)
        url = postgres.shared().url(port=wire.port)
        workers = [child(working, schema, url, f"{4 * number}", f"{attempts}") for number in range(4)]
        told = [worker.communicate()[0] for worker in workers]
    until(lambda: _is_idle(name), "what was sent is done")
    figure(f"{check_contest(told, attempts, journal)}; {', '.join(f'{n} {how}' for how, n in done.items())}")


# --- capacity, time --------------------------------------------------------------------------------------------------


def test_i29_grants_ahead_never_pass_a_bound(name: str, figure: Callable[[str], None]) -> None:
    """Writers with bounds beside one without: none takes the namespace over, and none is refused early (I-29)."""
    wide = postgres_lab.journal(name, blocking=True)
    bound = 300_000
    narrow = [postgres_lab.journal(name, StoreBounds(max_bytes=bound), blocking=True) for _ in range(4)]
    drive(append(wide, ConversationKey("n", "wide"), "one", say("q")))

    def fill(number: int) -> int:
        step = written = 0
        while True:
            key = ConversationKey("n", f"{number}-{step % 3}")
            try:
                drive(append(narrow[number], key, f"{step}", say("x" * 3_000)))
            except DecisionHistoryStoreFull:
                return written
            written, step = written + 1, step + 1

    written = in_threads([lambda number=number: fill(number) for number in range(4)])
    assert all(type(count) is int for count in written), written
    held = drive(wide.totals("n")).bytes
    one = len(say("x" * 3_000).payload)
    assert bound - one < held <= bound
    figure(f"{sum(written)} writes of 4 workers into {bound:,} bytes: {held:,} held, less than one write left")
    for each in (wide, *narrow):
        drive(each.close())


@pytest.mark.parametrize("days", [-1, 1])
def test_i30_bad_input_59_a_workers_clock_decides_nothing(
    days: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose clock is a day off expires nobody, keeps nobody, and records the server's time (59, I-30)."""
    right = postgres_lab.journal(name, StoreBounds(ttl_ms=3_600_000), blocking=True)
    drive(append(right, KEY, "one", say("q")))
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + days * 86_400 * 10**9)
    monkeypatch.setattr(time, "time", lambda: real() / 10**9 + days * 86_400)
    skewed = postgres_lab.journal(name, StoreBounds(ttl_ms=3_600_000), blocking=True)
    drive(append(skewed, KEY, "two", say("r")))
    walls = [entry.wall for entry in drive(entries(right, KEY))]
    assert len(walls) == 2
    assert 0 <= walls[1] - walls[0] < 60_000
    for each in (right, skewed):
        drive(each.close())


@pytest.mark.parametrize("astray", [5 * DRIFT_MS, -5 * DRIFT_MS])
def test_i30_a_workers_ticks_that_went_astray_are_not_believed(astray: int, name: str) -> None:
    """Whatever a worker reckons from its last look and its own ticks, the server compares it and says better (I-30)."""
    journal, ticks = postgres_lab.journal(name, blocking=True), FrozenClock(10**9)
    journal._ticks = ticks
    drive(append(journal, KEY, "before", say("x")))
    for number in range(3):
        ticks.advance(astray)
        drive(append(journal, KEY, f"{number}", say("x")))
    ((present,),) = postgres.shared().ask("SELECT CAST(1000 * EXTRACT(EPOCH FROM clock_timestamp()) AS bigint)")
    walls = [entry.wall for entry in drive(entries(journal, KEY))]
    assert len(walls) == 4
    assert all(abs(wall - present) < DRIFT_MS for wall in walls)
    drive(journal.close())


@pytest.mark.parametrize("blocking", [True, False])
def test_b2_bad_input_95_calls_that_are_broken_off_again_and_again_end_at_their_deadline(
    blocking: bool, name: str
) -> None:
    """One deadline holds for a call and for all its repeats, whatever the server breaks it off for (95)."""
    server, schema = postgres.shared(), postgres_lab.schema_of(name)

    async def story() -> tuple[float, str]:
        journal = postgres_lab.journal(name, blocking=blocking, timeout=1.5)
        await append(journal, KEY, "one", say("q"))
        ((text,),) = server.ask(f"SELECT pg_get_functiondef('{schema}.write'::regproc)")
        assert text.count("nonce := p_nonce;") == 1
        server.ask(
            text.replace("nonce := p_nonce;", "PERFORM pg_sleep(0.4); RAISE EXCEPTION 'x' USING ERRCODE = '40001';")
        )
        begun = time.monotonic()
        with pytest.raises(StorageError) as refused:
            await append(journal, KEY, "two", say("r"))
        await journal.close()
        return time.monotonic() - begun, refused.value.code

    took, code = drive(story()) if blocking else asyncio.run(story())
    assert took < 10
    assert code in ("DecisionHistoryStorageLocked", "DecisionHistoryStorageFailed")


# --- foreign replies -------------------------------------------------------------------------------------------------


async def mixed(name: str, wire: Proxy, operations: int) -> tuple[int, int, int]:
    """Have tenants write and read, and cancel a fifth unless it ended first; return how much was done, cut, foreign."""
    tenants = 200
    journal = postgres_lab.journal(name, url=postgres.shared().url(port=wire.port), max_connections=40)
    chance = random.Random(2)
    done = cut = foreign = 0

    async def operation(tenant: int, number: int) -> None:
        nonlocal foreign
        key = ConversationKey(f"tenant-{tenant}", "talk")
        mark = f"canary-{tenant}-".encode()
        if number % 2:
            with contextlib.suppress(DecisionHistoryBusy):
                await append(journal, key, f"{number}", say(f"canary-{tenant}-{number}"))
        else:
            found = await entries(journal, key)
            foreign += sum(mark not in entry.payload for entry in found)

    async def tenant(number: int) -> None:
        nonlocal done, cut, foreign
        for step in range(operations // tenants):
            task = asyncio.create_task(operation(number, step))
            if chance.random() < 0.2:
                await asyncio.sleep(chance.uniform(0, 0.3))
                task.cancel()
            try:
                await task
                done += 1
            except asyncio.CancelledError:
                cut += 1
            except StorageError as error:
                # A reply of another conversation's is refused by its number, or looks like damage and loss.
                foreign += isinstance(error, DecisionHistoryCorrupt | DecisionHistoryRegressed)
                foreign += error.facts.get("problem") == "foreign_reply"

    await asyncio.gather(*map(tenant, range(tenants)))
    await journal.close()
    return done, cut, foreign


@pytest.mark.timeout(7_200 if PROVE else 300)
def test_i19_no_reply_reaches_another_caller(name: str, figure: Callable[[str], None]) -> None:
    """200 tenants over 40 connections, late replies, one call in fifty or more cut short: 0 foreign bytes (I-19)."""
    with proxy(postgres.shared().port) as wire:
        drive(append(postgres_lab.journal(name, blocking=True), KEY, "one", say("q")))
        wire.delay = (0, budget(0.01, 0.05))
        done, cut, foreign = asyncio.run(mixed(name, wire, OPERATIONS))
    assert done > OPERATIONS // 2
    assert cut > OPERATIONS // 50
    # A call that was cut in the middle cost its connection.
    assert wire.connections > 50
    assert foreign == 0
    figure(f"{done:,} operations, {cut:,} cancelled, {wire.connections:,} connections, 0 foreign replies")


class Late(AsynchronousLines):
    """The fault of 2023, planted: a cancelled call leaves its reply behind, and the next one is given that."""

    def __init__(self, *options: Any) -> None:
        super().__init__(*options)
        self.left: dict[Any, Any] = {}

    async def lend(self, work: Any, until: float) -> Any:
        async def mixed(line: Any) -> Any:
            outer = self

            class Mixed:
                async def ask(self, statement: Any, schema: str, values: Any = ()) -> Any:
                    asked = asyncio.ensure_future(line.ask(statement, schema, values))
                    try:
                        row = await asyncio.shield(asked)
                    except asyncio.CancelledError:
                        outer.left[statement] = await asked
                        raise
                    return postgres_lines._one_row([outer.left.pop(statement, row)], values)

            return await work(Mixed())

        return await super().lend(mixed, until)


@pytest.mark.parametrize("canary", [True, False])
def test_i19_control_replies_that_are_mixed_up_are_found(
    canary: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the number that each reply carries they become errors; without it the harness sees foreign bytes (I-19)."""
    monkeypatch.setattr("minutebook.stores.postgres.AsynchronousLines", Late)
    if not canary:
        monkeypatch.setattr(postgres_lines, "_one_row", lambda rows, values: rows[0])
    drive(append(postgres_lab.journal(name, blocking=True), KEY, "one", say("q")))  # so that the schema is there
    with proxy(postgres.shared().port) as wire:
        wire.delay = (0, 0.01)
        _, _, foreign = asyncio.run(mixed(name, wire, 2_000))
    assert foreign > 0
