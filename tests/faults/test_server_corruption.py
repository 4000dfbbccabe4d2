"""
What a server keeps of ours is input too: any bit of it flipped, it is refused by name, or it is right (promise I-39).

A header is held to its stamp and the log to its digest chain, so after `verify` neither is ever wrong; nothing is
repaired by reading it; and a write ends well or in an error of ours. With MINUTEBOOK_PROVE=1 budgets are long.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

import psycopg
import pytest
from psycopg.errors import UniqueViolation
from redis import Redis
from tests.budgets import PROVE, budget
from tests.servers import postgres
from tests.servers.redis import single
from tests.stores import postgres_lab
from tests.stores.labs import chat, said
from tests.stores.redis_lab import address

from minutebook.errors import DecisionHistoryAbsent, MinutebookError, StorageError
from minutebook.model.bounds import StoreBounds
from minutebook.model.keys import ConversationKey
from minutebook.stores import packed
from minutebook.stores.journal import JournalStore
from minutebook.stores.redis import RedisRemote
from minutebook.stores.remote_journal import RemoteJournal
from minutebook.stores.streams import stream_listings
from minutebook.testing import drive

FLIPS = budget(150, 10_000)
SEED = 39
NAMES = ("a", "b", "c")
BOUNDS = StoreBounds(max_sessions=100, max_bytes=10**6, ttl_ms=10**9)

Figure = Callable[[str], None]
Right = dict[str, tuple[Any, ...]]
long_run = pytest.mark.timeout(7_200 if PROVE else 300)


class Shelf(ABC):
    """All that one server keeps of a namespace, by value: to be altered and put back."""

    def __init__(self) -> None:
        self.kept: Any = self.content()

    @abstractmethod
    def journal(self) -> RemoteJournal:
        """Return a journal that remembers nothing."""

    @abstractmethod
    def content(self) -> Any:
        """Return all that the server holds."""

    @abstractmethod
    def flip(self, random: Random) -> str:
        """Flip one bit of what is kept, and return what it was of."""

    @abstractmethod
    def restore(self) -> None:
        """Put back what was kept."""


class OnPostgres(Shelf):
    """The tables of one schema."""

    TABLES = ("namespace", "conversation", "entry", "receipt")

    def __init__(self, remote: Any, connection: Any, schema: str) -> None:
        self.remote = remote
        self.connection = connection
        self.schema = schema
        connection.execute(f"SET search_path = {schema}")
        super().__init__()

    def journal(self) -> RemoteJournal:
        return RemoteJournal(self.remote, BOUNDS)

    def content(self) -> Any:
        return {
            table: self.connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2, 3").fetchall()
            for table in self.TABLES
        }

    def flip(self, random: Random) -> str:
        table = random.choice(self.TABLES)
        place = random.randrange(len(self.kept[table]))
        row = self.kept[table][place]
        column = random.randrange(len(row))
        altered = (*row[:column], flipped(row[column], random), *row[column + 1 :])
        rows = [*self.kept[table][:place], altered, *self.kept[table][place + 1 :]]
        try:
            self._write(table, rows)
        except UniqueViolation:  # the server itself would see that
            return self.flip(random)
        return f"{table} {column}"

    def restore(self) -> None:
        for table in self.TABLES:
            self._write(table, self.kept[table])

    def _write(self, table: str, rows: list[Any]) -> None:
        with self.connection.transaction(), self.connection.cursor() as cursor:
            cursor.execute(f"DELETE FROM {table}")
            cursor.executemany(f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(rows[0]))})", rows)


class OnRedis(Shelf):
    """All keys of one server."""

    def __init__(self, remote: Any, client: Any) -> None:
        self.remote = remote
        self.client = client
        super().__init__()

    def journal(self) -> RemoteJournal:
        return RemoteJournal(self.remote, BOUNDS)

    def content(self) -> Any:
        """Return the keys as the server itself packs them, and what stands in each."""
        found = {}
        for key in sorted(self.client.keys("*")):
            table = self.client.type(key) == b"hash"
            values = self.client.hgetall(key) if table else dict(self.client.zrange(key, 0, -1, withscores=True))
            found[key] = values
        return found

    def flip(self, random: Random) -> str:
        key = random.choice(list(self.kept))
        name, value = random.choice(list(self.kept[key].items()))
        renamed = random.random() < 0.2
        table = type(value) is bytes
        (self.client.hdel if table else self.client.zrem)(key, name)
        name, value = (flipped(name, random), value) if renamed else (name, flipped(value, random))
        if table:
            self.client.hset(key, name, value)
        else:
            self.client.zadd(key, {name: value})
        return f"{key.decode().partition('}')[2][:1]} {'name' if renamed else 'value'}"

    def restore(self) -> None:
        self.client.flushall()
        for key, values in self.kept.items():
            if type(next(iter(values.values()))) is bytes:
                self.client.hset(key, mapping=values)
            else:
                self.client.zadd(key, values)


def flipped(value: Any, random: Random) -> Any:
    """Return a value with one bit of it the other way; of a number one of its lowest 62."""
    if type(value) is bool:
        return not value
    if type(value) is bytes:
        if not value:
            return b"\1"
        at = random.randrange(len(value))
        return value[:at] + bytes([value[at] ^ 1 << random.randrange(8)]) + value[at + 1 :]
    return type(value)(int(value) ^ 1 << random.randrange(62 if type(value) is int else 50))


@contextmanager
def on_postgres(name: str) -> Iterator[Shelf]:
    remote = postgres_lab.remote(name, blocking=True)
    record(RemoteJournal(remote, BOUNDS))
    with psycopg.connect(postgres.shared().url(), autocommit=True) as connection:
        yield OnPostgres(remote, connection, postgres_lab.schema_of(name))
    drive(remote.close())


@contextmanager
def on_redis(_: str) -> Iterator[Shelf]:
    with single() as server:
        remote = RedisRemote(address(server.url), bounded=True, blocking=True)
        record(RemoteJournal(remote, BOUNDS))
        with Redis(port=server.port) as connection:
            yield OnRedis(remote, connection)
        drive(remote.close())


SHELVES = {"Postgres": on_postgres, "Redis": on_redis}


def record(journal: RemoteJournal) -> None:
    """Record turns with calls, one that failed, and one under way."""

    async def turn(name: str, number: int) -> None:
        async with chat(journal, name).turn(f"question {number}", id=f"turn-{number}") as turn:
            (call,) = await turn.respond(said("", f"call-{number}"))
            await turn.result(call, "result")
            if number == 1:
                raise ConnectionError
            await turn.respond(said(f"answer {number}"))

    for name, number in itertools.product(NAMES, range(3)):
        try:
            drive(turn(name, number))
        except ConnectionError:
            assert number == 1
    drive(chat(journal, "c").turn("under way").__aenter__())


def held(journal: RemoteJournal) -> Right:
    """Return what each conversation says."""

    async def one(name: str) -> tuple[Any, ...]:
        store = JournalStore(journal, namespace="lab")
        key = store.key(name)
        header = await store.verify(key)
        receipts = [receipt async for receipt in store.receipts(key)]
        return header, [entry async for entry in store.entries(key)], receipts

    return {name: drive(one(name)) for name in NAMES}


def judge(shelf: Shelf, right: Right) -> str:
    """Return how an altered content was met: "right", or at what it was refused by name."""
    altered = shelf.content()
    met = "right"
    try:
        got = held(shelf.journal())
    except DecisionHistoryAbsent:
        met = "absent"
    except StorageError:
        met = "read"
    else:
        for name, (header, entries, receipts) in right.items():
            found = got[name]
            assert found[1] == entries, "wrong entries after verify"
            assert found[0] == header, "a wrong header"
            if found[2] != receipts:
                met = "right, but for a receipt"
    assert shelf.content() == altered, "reading has changed what is there"
    listed(shelf.journal())
    write(shelf.journal())
    return met


def listed(journal: RemoteJournal) -> None:
    """See that a listing ends, damaged ones among it or not, or is refused by name; so do the totals."""

    async def names() -> list[object]:
        return [each async for each in stream_listings(journal, "lab")]

    for call in (names(), journal.totals("lab")):
        with suppress(MinutebookError):
            drive(call)


def write(journal: RemoteJournal) -> None:
    """See that a new conversation, one that is there, and a deletion end well or are refused by name."""
    for call in (
        chat(journal, "new").append([{"role": "user", "content": "x"}]),
        chat(journal, "b").append([{"role": "user", "content": "x"}], id="more"),
        journal.delete(ConversationKey("lab", "a")),
    ):
        with suppress(MinutebookError):
            drive(call)


def flips(shelf: Shelf, right: Right, count: int) -> Counter[str]:
    """Flip bits, one after the other and each put back, and count how they were met."""
    random, met = Random(SEED), Counter[str]()
    for flip in range(count):
        what = shelf.flip(random)
        try:
            met[judge(shelf, right)] += 1
        except Exception as error:
            raise AssertionError(f"seed {SEED}, flip {flip} of {what}: {error}") from error
        shelf.restore()
    return met


@long_run
@pytest.mark.parametrize("kind", SHELVES)
def test_i39_a_flipped_bit_on_a_server_is_named_or_harmless(kind: str, tmp_path: Any, figure: Figure) -> None:
    """Any bit of any row or key: right data, or a named error; never wrong data after verify, no other exception."""
    with SHELVES[kind](f"{tmp_path}") as shelf:
        right = held(shelf.journal())
        met = flips(shelf, right, FLIPS)
        assert held(shelf.journal()) == right
    figure(f"{kind}: {FLIPS:,} flips: {dict(met)}, 0 wrong entries")
    assert min(met["right"], met["read"]) > 0, met


@pytest.mark.parametrize("kind", SHELVES)
def test_i39_control_a_header_that_is_believed_is_found(
    kind: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no header is held to its stamp, the same flips give one that is not what was written."""
    monkeypatch.setattr(packed, "read_header", lambda header, _: packed.unpack_header(header))
    with SHELVES[kind](f"{tmp_path}") as shelf:
        right = held(shelf.journal())
        with pytest.raises(AssertionError, match="a wrong header"):
            flips(shelf, right, 2_000)
