"""
Stored bytes are input: flipped, cut off, replaced or mixed up, they are refused by name or they are right.

What a conversation says (its entries, and how many there are) is covered by the digest chain, so after `verify` it is
never wrong. A refusal to open changes no byte of the file. With MINUTEBOOK_PROVE=1 budgets are long.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from tests.budgets import PROVE, budget
from tests.faults import workload
from tests.faults.workload import NAME, NAMESPACE, Dump, Found, Plan, Store, Story
from tests.stores import postgres_lab, redis_lab
from tests.stores.hosts import ThreadedHost
from tests.stores.labs import open_journal
from tests.stores.postgres_lab import POSTGRES
from tests.stores.redis_lab import REDIS

from minutebook.conversation import Conversation
from minutebook.errors import (
    DecisionHistoryAbsent,
    DecisionHistoryCorrupt,
    DecisionHistorySchemaUnsupported,
    DecisionHistoryStoreFull,
    MinutebookError,
    StorageError,
)
from minutebook.model.bounds import StoreBounds
from minutebook.model.keys import ConversationKey
from minutebook.ports import Totals
from minutebook.stores.hosted import HostedJournal
from minutebook.stores.journal import JournalStore
from minutebook.stores.packed import stamp_of
from minutebook.stores.sqlite import SQLiteJournal
from minutebook.stores.streams import stream_listings
from minutebook.testing import FrozenClock, drive

FLIPS = budget(500, 10_000)
SEED = 20

Figure = Callable[[str], None]
long_run = pytest.mark.timeout(7_200 if PROVE else 120)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Dump]:
    """The bytes of a small closed database with three conversations, and what it holds."""
    database = tmp_path_factory.mktemp("sound") / NAME
    workload.run_plan(Plan("turns", count=2, seed=9), database)
    workload.run_plan(Plan("delete", count=1, seed=3), database)
    workload.run_plan(Plan("tasks", count=2, seed=4, blocking=False), database)
    with Found(Plan("append"), database) as found:
        held = found.at(0)
    return database.read_bytes(), held


class Case:
    """One damaged copy of a database in a fresh directory."""

    def __init__(self, root: Path, content: bytes) -> None:
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(mode=0o700)
        self.database = root / NAME
        self.content = content
        self.database.touch(0o600)
        self.database.write_bytes(content)

    def judge(self, right: Dump) -> str:
        """Return how the copy was met: "right", or the stage at which it was refused by name."""
        stage = "open"
        try:
            with Found(Plan("append"), self.database) as found:
                stage = "read"
                got = found.at(0)
                stage = "absent"
                for name in right:
                    drive(found.store.verify(ConversationKey(NAMESPACE, name)))
        except DecisionHistoryAbsent:
            return stage
        except StorageError:
            if stage == "open":
                assert self.database.read_bytes() == self.content, "a refusal changed the file"
            return stage
        counters = False
        for name, (header, entries, receipts) in right.items():
            assert got[name][1] == entries, "wrong entries after verify"
            assert [got[name][0][each] for each in PROVED] == [header[each] for each in PROVED], "a wrong header"
            counters |= (got[name][0], got[name][2]) != (header, receipts)
        assert set(got) == set(right)
        return "right, but for a header's other fields or a receipt" if counters else "right"


PROVED = ("entries", "digest")
"""What the chain proves of a header. Changes of its other fields and of receipts are a part of the figure."""


@long_run
def test_i39_a_flipped_bit_is_named_or_harmless(tmp_path: Path, sound: tuple[bytes, Dump], figure: Figure) -> None:
    """Any bit of the file: right data, or a named error; never wrong data after verify, never a changed file."""
    content, right = sound
    random, met = Random(SEED), Counter[str]()
    for flip in range(FLIPS):
        place, bit = random.randrange(len(content)), random.randrange(8)
        damaged = bytearray(content)
        damaged[place] ^= 1 << bit
        try:
            met[Case(tmp_path / "case", bytes(damaged)).judge(right)] += 1
        except Exception as error:
            raise AssertionError(f"seed {SEED}, flip {flip}: bit {bit} of byte {place}") from error
    figure(f"{FLIPS:,} flips: {dict(met)}, 0 wrong entries")
    assert min(met["right"], met["read"], met["open"]) > 0, met


@long_run
def test_i39_a_truncated_file_is_named_or_right(tmp_path: Path, sound: tuple[bytes, Dump], figure: Figure) -> None:
    """Cut at each 512 bytes (bad input 87). Cut to nothing it is a new file."""
    content, right = sound
    lengths = range(512, len(content), budget(1_536, 512))
    met = Counter(Case(tmp_path / "case", content[:length]).judge(right) for length in lengths)
    figure(f"{len(lengths)} lengths: {dict(met)}, 0 wrong")
    assert met["open"]
    assert met["right"] == 0


@pytest.mark.parametrize(
    "content", [b"text, no database\n" * 300, Random(SEED).randbytes(16_384), b"SQLite format 3\0" + bytes(4_096), b"x"]
)
def test_bad_input_87_what_is_no_database_is_refused_unchanged(tmp_path: Path, content: bytes) -> None:
    """Text, random bytes, a magic number alone: a named error, no byte changed, no sidecar but the lock."""
    case = Case(tmp_path / "case", content)
    with pytest.raises((DecisionHistoryCorrupt, DecisionHistorySchemaUnsupported)):
        SQLiteJournal(case.database, blocking=True)
    assert case.database.read_bytes() == content
    assert {path.name for path in case.database.parent.iterdir()} <= {NAME, NAME + "-lock"}


@pytest.mark.parametrize("seed", range(budget(6, 30)))
def test_bad_input_86_the_log_of_another_database_is_never_mixed_in(tmp_path: Path, seed: int) -> None:
    """
    A log left beside the wrong database is refused by name, or the conversation that is read is one of the two, whole.

    SQLite itself cannot tell whose log it is: it takes every page that the log holds. What keeps a mixture from being
    read is the digest chain.
    """
    mine, theirs = Plan("append", count=3, seed=seed), Plan("append", count=1 + seed % 4, seed=seed + 100)
    for plan, root in ((mine, tmp_path / "mine"), (theirs, tmp_path / "theirs")):
        root.mkdir(0o700)
        workload.run_plan(plan, root / NAME)
    leave_a_log(theirs, tmp_path / "theirs" / NAME)
    shutil.copy(tmp_path / "theirs" / f"{NAME}-wal", tmp_path / "mine" / f"{NAME}-wal")
    with Found(theirs, tmp_path / "theirs" / NAME) as found:
        others = found.at(0)
    with contextlib.suppress(DecisionHistoryCorrupt), Found(mine, tmp_path / "mine" / NAME) as found:
        assert found.at(0) in (Story.of(mine).final, others)


LOGS = {
    "of all that it wrote": (10, 0, 10, "theirs"),
    "of all that it wrote, over a longer record": (40, 0, 10, "refused"),
    "of its newest writes": (10, 40, 3, "refused"),
    "of its newest writes, from the start of a short record": (2, 2, 3, "theirs"),
}
"""How many exchanges are recorded here, there before the log begins, and there in the log; and what comes of it."""


@pytest.mark.parametrize(("mine", "earlier", "logged", "comes_of_it"), LOGS.values(), ids=LOGS)
def test_bad_input_86_i39_a_log_that_covers_a_part_breaks_the_chain_and_one_that_covers_all_is_not_told(
    tmp_path: Path, mine: int, earlier: int, logged: int, comes_of_it: str
) -> None:
    """
    The log of another store of ours, for a conversation of the same name: the limit that the guide writes down.

    Over a part of the file opening or `verify` refuses it by name. Over all of it the file is the other store's, as if
    it had been copied here: every digest is right, and only one that was kept elsewhere is another.
    """
    tmp_path.chmod(0o700)
    here, there = tmp_path / NAME, tmp_path / "there.db"
    kept = drive(grown(here, "mine", mine))
    if earlier:
        drive(grown(there, "theirs", earlier))
    theirs = drive(grown(there, "theirs", logged, log=here.with_name(f"{NAME}-wal")))
    try:
        found = drive(proved(here))
    except DecisionHistoryCorrupt:
        assert comes_of_it == "refused"
    else:
        assert comes_of_it == "theirs"
        assert found == theirs != kept


async def grown(database: Path, mark: str, exchanges: int, log: Path | None = None) -> bytes:
    """Record some exchanges and return the digest; a copy of what the log holds then goes to `log`."""
    store = Store(SQLiteJournal(database, blocking=True))
    talk = Conversation(store, "talk", format="openai-chat")
    for number in range(exchanges):
        said = f"{mark} {number} " + 400 * "x"
        await talk.append([{"role": role, "content": said} for role in ("user", "assistant")])
    header = await store.header(talk.key)
    if log is not None:
        shutil.copy(f"{database}-wal", log)
    await store.close()
    assert header is not None
    return header.digest


async def proved(database: Path) -> bytes:
    """Open a database and return the digest of its conversation, once `verify` has nothing against it."""
    store = Store(SQLiteJournal(database, blocking=True))
    try:
        return (await store.verify(store.key("talk"))).digest
    finally:
        await store.close()


def leave_a_log(plan: Plan, database: Path) -> None:
    """Write some more in a process that ends without closing."""
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            drive(more(Store(SQLiteJournal(database, blocking=True)), plan))
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


async def more(store: Store, plan: Plan) -> None:
    talk = Conversation(store, "talk", format="openai-chat")
    for n in range(6):
        await talk.append(workload.pair(plan.seed, f"more {n}") * 3, id=f"more {n}")


# --- O-44: loading a conversation runs code ---------------------------------------------------------------------------

MODULE = "planted_by_a_test_of_minutebook"
LAB = "lab.db"

WATCHED = ("import", "exec", "compile", "open", "socket.connect", "subprocess.Popen", "os.system", "pickle.find_class")
_seen: list[str] | None = None


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _seen is not None and event in WATCHED:
        _seen.append(event)


@pytest.fixture(scope="module")
def audited() -> Callable[[], contextlib.AbstractContextManager[list[str]]]:
    """Return what notes every import, file, socket and evaluation inside its block; a hook stays for good."""
    sys.addaudithook(_audit)

    @contextlib.contextmanager
    def noting() -> Iterator[list[str]]:
        global _seen
        _seen = []
        try:
            yield _seen
        finally:
            _seen = None

    return noting


PICKLE = f"c{MODULE}\nexplode\n(tR.".encode()
TAGGED = msgspec.json.encode({"lc": 2, "type": "constructor", "id": [MODULE, "explode"], "args": [], "method": "run"})
EXTENSION = msgspec.msgpack.encode(msgspec.msgpack.Ext(5, PICKLE))
COLUMNS = [
    ("minutebook_log", "entries"),
    ("minutebook_conversation", "state"),
    ("minutebook_conversation", "attempt"),
    ("minutebook_conversation", "format"),
    ("minutebook_conversation", "recent"),
    ("minutebook_conversation", "digest"),
    ("minutebook_receipt", "sent"),
]


PLAIN = ("format", "sent")
"""These are texts to the store: what they say is compared or returned, not decoded."""


@pytest.mark.parametrize("planted", [PICKLE, TAGGED, EXTENSION], ids=["pickle", "tagged object", "msgpack extension"])
@pytest.mark.parametrize(("table", "column"), COLUMNS, ids=lambda name: name.removeprefix("minutebook_"))
def test_o44_loading_a_conversation_runs_no_code(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    audited: Callable[[], contextlib.AbstractContextManager[list[str]]],
    table: str,
    column: str,
    planted: bytes,
) -> None:
    """Whatever stands in a row, nothing is imported or run; it is named as corrupt, and others are read."""
    root, modules, mark = tmp_path / "case", tmp_path / "modules", tmp_path / "mark"
    for directory in (root, modules):
        directory.mkdir(0o700)
    (modules / f"{MODULE}.py").write_text(f"open({str(mark)!r}, 'w')\ndef explode(*arguments): pass\n")
    monkeypatch.syspath_prepend(modules)
    workload.run_plan(Plan("append", count=20), root / NAME)
    workload.run_plan(Plan("delete", count=0), root / NAME)
    with contextlib.closing(sqlite3.connect(root / NAME, isolation_level=None)) as connection:
        where = "id" if table == "minutebook_conversation" else "conversation"
        name = connection.execute("SELECT id FROM minutebook_conversation WHERE name = ?", (b"talk",)).fetchone()[0]
        assert connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where} = ?", (planted, name)).rowcount
    store = Store(SQLiteJournal(root / NAME, blocking=True))
    other = store.key("stays")
    expected = drive(entries_of(store, other))
    with audited() as noted:
        problems = read_everything(store)
        assert drive(entries_of(store, other)) == expected
        drive(store.verify(other))
    drive(store.close())
    assert [event for event in noted if event != "open"] == []
    assert not mark.exists()
    assert MODULE not in sys.modules
    assert "DecisionHistoryCorrupt" in problems or column in PLAIN


def plant_in_postgres(table: str, column: str) -> Callable[[str, str, ConversationKey, bytes], None]:
    def plant(_: str, name: str, key: ConversationKey, planted: bytes) -> None:
        stamp = ", stamp = %s" if table == "conversation" else ""
        change = f"UPDATE {{schema}}.{table} SET {column} = %s{stamp} WHERE {{key}} RETURNING 1"
        assert postgres_lab.ask_salted(name, key, change, planted, *([stamp_of(planted)] if stamp else []))

    return plant


def plant_in_redis(field: str) -> Callable[[str, str, ConversationKey, bytes], None]:
    def plant(kind: str, name: str, key: ConversationKey, planted: bytes) -> None:
        at = redis_lab.keys_of(kind, name, key)
        if field == "header":
            redis_lab.ask(kind, "HSET", at["h"], key.id, bytes(8) + stamp_of(planted) + planted)
            redis_lab.ask(kind, "HSET", at["c"], "stamp", stamp_of(planted))
        else:
            assert redis_lab.ask(kind, "HEXISTS", at["c"], field)
            redis_lab.ask(kind, "HSET", at["c"], field, planted if field == "v1" else bytes(16) + planted)

    return plant


PLANTS: dict[str, tuple[tuple[str, ...], Callable[[str, str, ConversationKey, bytes], None]]] = {
    "Postgres header": (POSTGRES, plant_in_postgres("conversation", "header")),
    "Postgres entry": (POSTGRES, plant_in_postgres("entry", "packed")),
    "Postgres receipt": (POSTGRES, plant_in_postgres("receipt", "packed")),
    "Redis header": (REDIS, plant_in_redis("header")),
    "Redis entry": (REDIS, plant_in_redis("e1")),
    "Redis receipt": (REDIS, plant_in_redis("v1")),
}
"""What is replaced, with every digest beside it that is not the chain's made right, so that it is really decoded."""


@pytest.mark.parametrize("planted", [PICKLE, TAGGED, EXTENSION], ids=["pickle", "tagged object", "msgpack extension"])
@pytest.mark.parametrize(
    ("kind", "what"), [(kind, what) for what, (kinds, _) in PLANTS.items() for kind in kinds], ids=str
)
def test_o44_loading_from_a_server_runs_no_code(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    audited: Callable[[], contextlib.AbstractContextManager[list[str]]],
    kind: str,
    what: str,
    planted: bytes,
) -> None:
    """The same of what a server keeps: nothing is imported or run, it is named as corrupt, and others are read."""
    modules, mark = tmp_path / "modules", tmp_path / "mark"
    modules.mkdir(0o700)
    (modules / f"{MODULE}.py").write_text(f"open({str(mark)!r}, 'w')\ndef explode(*arguments): pass\n")
    monkeypatch.syspath_prepend(modules)
    store = Store(open_journal(kind, tmp_path))
    for name in ("talk", "stays"):
        drive(Conversation(store, name, format="openai-chat").append(workload.pair(1, name), id="one"))
    PLANTS[what][1](kind, f"{tmp_path}/{LAB}", store.key("talk"), planted)
    store, other = Store(open_journal(kind, tmp_path)), store.key("stays")
    expected = drive(entries_of(store, other))
    drive(store.totals())  # each node of a cluster has its connection now
    with audited() as noted:
        problems = read_everything(store)
        assert drive(entries_of(store, other)) == expected
        drive(store.verify(other))
    assert noted == []
    assert not mark.exists()
    assert MODULE not in sys.modules
    assert problems == {"DecisionHistoryCorrupt"}


async def entries_of(store: Store, key: ConversationKey) -> list[Any]:
    return [entry async for entry in store.entries(key)]


def read_everything(store: Store) -> set[str]:
    """Read and verify the damaged conversation in every way, and return the codes of what was raised; ours alone."""
    talk = Conversation(store, "talk", format="openai-chat")

    async def show() -> None:
        for exchange in await talk.last(None):
            _ = exchange.messages

    async def send() -> None:
        _ = (await talk.window()).messages

    async def receipts() -> list[Any]:
        return [receipt async for receipt in store.receipts(talk.key)]

    codes = set()
    readings = (store.read(talk.key), store.verify(talk.key), show(), send(), receipts(), store.list(), store.totals())
    for reading in readings:
        try:
            drive(reading)
        except MinutebookError as error:
            codes.add(error.code)
    return codes


def test_o44_control_the_planted_module_would_leave_its_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes given to pickle do run the module, so the test above would see it."""
    mark = tmp_path / "mark"
    (tmp_path / f"{MODULE}.py").write_text(f"open({str(mark)!r}, 'w')\ndef explode(*arguments): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    pickle.loads(PICKLE)
    monkeypatch.delitem(sys.modules, MODULE)
    assert mark.exists()


def column_of_sqlite(column: str, planted: object) -> Damage:
    def damage(_: str, folder: Path, keys: list[ConversationKey]) -> None:
        change = f"UPDATE minutebook_conversation SET {column} = ? WHERE name = ?"
        with contextlib.closing(sqlite3.connect(folder / LAB, isolation_level=None)) as connection:
            assert sum(connection.execute(change, (planted, key.id.encode())).rowcount for key in keys) == len(keys)

    return damage


def column_of_postgres(column: str, planted: bytes) -> Damage:
    def damage(_: str, folder: Path, keys: list[ConversationKey]) -> None:
        for key in keys:
            change = f"UPDATE {{schema}}.conversation SET {column} = %s WHERE {{key}} RETURNING 1"
            assert postgres_lab.ask_salted(f"{folder}/{LAB}", key, change, planted) == [(1,)]

    return damage


def part_of_redis(letter: str, *command: Any) -> Damage:
    """Return a command on one of a conversation's keys; `ID` in it stands for the id, `HEAD` for an altered header."""

    def damage(kind: str, folder: Path, keys: list[ConversationKey]) -> None:
        for key in keys:
            at = redis_lab.keys_of(kind, f"{folder}/{LAB}", key)
            head = redis_lab.ask(kind, "HGET", at["h"], key.id)
            meant = {"ID": key.id, "HEAD": head[:-1] + bytes([head[-1] ^ 1])}
            name, *arguments = [meant.get(part, part) if type(part) is str else part for part in command]
            redis_lab.ask(kind, name, at[letter], *arguments)

    return damage


Damage = Callable[[str, Path, list[ConversationKey]], None]
DAMAGES: dict[str, tuple[tuple[str, ...], Damage, bool]] = {
    "SQLite state": (("SQLite",), column_of_sqlite("state", b"{"), True),
    "SQLite attempt": (("SQLite",), column_of_sqlite("attempt", b"?"), True),
    "SQLite epoch": (("SQLite",), column_of_sqlite("epoch", b"x"), True),
    "SQLite token": (("SQLite",), column_of_sqlite("token", 7), True),
    "SQLite format": (("SQLite",), column_of_sqlite("format", b"\xff"), True),
    "SQLite granted": (("SQLite",), column_of_sqlite("granted", b"x"), False),
    "Postgres header": (POSTGRES, column_of_postgres("header", b"\0"), True),
    "Postgres empty header": (POSTGRES, column_of_postgres("header", b""), True),
    "Postgres stamp": (POSTGRES, column_of_postgres("stamp", b"x" * 16), True),
    "Postgres empty stamp": (POSTGRES, column_of_postgres("stamp", b""), True),
    "Redis header": (REDIS, part_of_redis("h", "HSET", "ID", "HEAD"), True),
    "Redis short header": (REDIS, part_of_redis("h", "HSET", "ID", b"x"), True),
    "Redis empty header": (REDIS, part_of_redis("h", "HSET", "ID", b""), True),
    "Redis size": (REDIS, part_of_redis("h", "HSET", "ID", b"\xff" * 40), True),
    "Redis no header": (REDIS, part_of_redis("h", "HDEL", "ID"), True),
    "Redis stamp of the log": (REDIS, part_of_redis("c", "HSET", "stamp", b"x" * 16), False),
    "Redis id of the log": (REDIS, part_of_redis("c", "HSET", "id", b"another"), False),
    "Redis no log": (REDIS, part_of_redis("c", "DEL"), False),
}
"""What is damaged, of which stores, how, and whether a listing looks at it."""


@pytest.mark.parametrize(
    ("kind", "what"), [(kind, what) for what, (kinds, _, _) in DAMAGES.items() for kind in kinds], ids=str
)
def test_o44_a_damaged_header_stops_nobody_else(tmp_path: Path, kind: str, what: str) -> None:
    """A listing refuses it by its id and goes on above it; whoever held it, it can be deleted, and leaves nothing."""
    _, damage, told = DAMAGES[what]
    root = tmp_path / "case"
    root.mkdir(mode=0o700)
    store = JournalStore(open_journal(kind, root), namespace=NAMESPACE)
    names = ["a", "b", "c", "d"]
    for name in names:
        drive(Conversation(store, name, format="openai-chat").append(workload.pair(1, name), id=name))
    sound = sum(header.bytes for name in "ad" if (header := drive(store.header(store.key(name)))))
    drive(Conversation(store, "c", format="openai-chat").turn("held").__aenter__())
    drive(store.journal.close())
    damage(kind, root, [store.key("b"), store.key("c")])
    store = JournalStore(open_journal(kind, root), namespace=NAMESPACE)
    if told:
        with pytest.raises(DecisionHistoryCorrupt) as caught:
            drive(store.list())
        assert (caught.value.id, caught.value.good_records) == ("b", 1)
        assert "b" not in str(caught.value).split()
        assert [listing.key.id for listing in drive(store.list(limit=1))] == ["a"]
        assert [listing.key.id for listing in drive(store.list(after="c"))] == ["d"]
        assert drive(listed(store)) == ["a", ("b", "damaged"), ("c", "damaged"), "d"]
    else:
        assert [listing.key.id for listing in drive(store.list())] == names
    if what == "SQLite granted":  # of which nothing else hangs
        drive(store.recover(store.key("c"), worker_stopped=True))
    else:
        for call in (store.header(store.key("b")), store.recover(store.key("c"), worker_stopped=True)):
            with pytest.raises(DecisionHistoryCorrupt):
                drive(call)
        with pytest.raises(DecisionHistoryCorrupt):
            drive(Conversation(store, "b", format="openai-chat").append(workload.pair(1, "more"), id="more"))
    for name in ("b", "c"):
        drive(store.delete(store.key(name)))
        with pytest.raises(DecisionHistoryAbsent):
            drive(store.delete(store.key(name)))
        assert drive(store.read(store.key(name))) is None
    assert drive(listed(store)) == ["a", "d"]
    assert drive(store.totals()) == Totals(conversations=2, bytes=sound, reserved=0, expired=0)
    assert drive(entries_of(store, store.key("d")))
    drive(Conversation(store, "b", format="openai-chat").append(workload.pair(1, "new"), id="new"))
    assert drive(store.verify(store.key("b"))).entries == 2
    drive(store.close())


EXPIRING = {"SQLite": "SQLite state", "Postgres": "Postgres header", "Redis": "Redis header"}


@pytest.mark.parametrize("kind", EXPIRING)
def test_o44_i31_a_damaged_header_expires_like_any_other(tmp_path: Path, kind: str) -> None:
    """In a full store one that has expired makes room, and one that has not stays; nobody else's write fails for it."""
    root = tmp_path / "case"
    root.mkdir(mode=0o700)
    bounds, clock = StoreBounds(max_sessions=3, ttl_ms=1_000), FrozenClock()

    def opened() -> JournalStore:
        return JournalStore(open_journal(kind, root, bounds, clock), namespace=NAMESPACE)

    store = opened()
    for name in "abc":
        drive(Conversation(store, name, format="openai-chat").append(workload.pair(1, name), id=name))
        clock.advance(400)
    drive(store.journal.close())
    DAMAGES[EXPIRING[kind]][1](kind, root, [store.key(name) for name in "abc"])
    clock.advance(600)
    store = opened()
    assert drive(store.totals()).expired == 2
    for name in "de":
        drive(Conversation(store, name, format="openai-chat").append(workload.pair(1, name), id=name))
    with pytest.raises(DecisionHistoryStoreFull):
        drive(Conversation(store, "f", format="openai-chat").append(workload.pair(1, "f"), id="f"))
    assert drive(listed(store)) == [("c", "damaged"), "d", "e"]
    assert (drive(store.totals()).conversations, drive(store.totals()).expired) == (3, 0)
    clock.set_back(100_000)
    drive(Conversation(store, "d", format="openai-chat").append(workload.pair(1, "more"), id="more"))
    assert drive(listed(store)) == [("c", "damaged"), "d", "e"]
    drive(store.close())


def test_o44_a_damaged_record_of_a_host_stops_nobody_else() -> None:
    """The same of a host's own database: named, gone round, deleted."""
    host = ThreadedHost()
    store = JournalStore(HostedJournal(host), namespace="tenant")
    for name in "abcd":
        drive(Conversation(store, name, format="openai-chat").append(workload.pair(1, name), id=name))
    for name in "bc":
        host.records[store.key(name)] = host.records[store.key(name)][:-9]
    with pytest.raises(DecisionHistoryCorrupt) as caught:
        drive(store.list())
    assert (caught.value.id, caught.value.good_records) == ("b", 1)
    assert drive(listed(store)) == ["a", ("b", "damaged"), ("c", "damaged"), "d"]
    for name in "bc":
        drive(store.delete(store.key(name)))
    assert drive(listed(store)) == ["a", "d"]


async def listed(store: JournalStore) -> list[object]:
    """Return the ids of a namespace, the damaged ones marked."""
    found = [listing async for listing in stream_listings(store.journal, store.namespace)]
    return [(each.id, "damaged") if isinstance(each, DecisionHistoryCorrupt) else each.key.id for each in found]
