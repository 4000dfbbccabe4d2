"""The stores that hosts open by name: their defaults, files, namespaces and what they close (SPEC D19 to D23)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import stat
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.stores.hosts import ThreadedHost, WaitingHost

import minutebook
import minutebook.sync
from minutebook import (
    BlockingMismatch,
    Conversation,
    DecisionHistoryRetentionExceeded,
    DecisionHistoryStorageUnsafe,
    DecisionHistoryStoreFull,
    HistoryOptions,
    HostStore,
    InvalidId,
    InvalidOption,
    MemoryStore,
    SQLiteStore,
    StoreClosed,
    create_sqlite_decision_history_store,
    open_store,
)
from minutebook.stores.urls import url_of_file
from minutebook.testing import FrozenClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MESSAGE = {"role": "user", "content": "x"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def bounds(store: Any) -> Any:
    return getattr(store, "_core", store).journal._bounds


@pytest.mark.parametrize("faces", [minutebook, minutebook.sync], ids=["async", "sync"])
def test_d19_a_decision_history_in_sqlite_has_the_published_bounds(faces: Any, folder: Path) -> None:
    """128 conversations, 32 MiB, 24 hours; each may be given, and `None` takes it away."""
    store = faces.create_sqlite_decision_history_store(folder / "d.sqlite", namespace="n")
    assert (bounds(store).max_sessions, bounds(store).max_bytes) == (128, 32 * 1024 * 1024)
    assert (bounds(store).ttl_ms, bounds(store).max_retained_bytes) == (24 * 60 * 60 * 1000, None)
    own = faces.create_sqlite_decision_history_store(
        folder / "d.sqlite", namespace="n", max_sessions=2, max_bytes=None, ttl=timedelta(minutes=1)
    )
    assert (bounds(own).max_sessions, bounds(own).max_bytes, bounds(own).ttl_ms) == (2, None, 60_000)


@pytest.mark.parametrize("faces", [minutebook, minutebook.sync], ids=["async", "sync"])
def test_d19_the_stores_have_no_bounds_unless_given(faces: Any, folder: Path) -> None:
    """A chat kept on a plain store never expires by surprise."""
    for store in (faces.MemoryStore(), faces.SQLiteStore(folder / "n.sqlite", namespace="n")):
        given = bounds(store)
        assert (given.max_sessions, given.max_bytes, given.max_retained_bytes, given.ttl_ms) == (None,) * 4


def test_d19_bounds_reach_the_journal(folder: Path) -> None:
    """A full store refuses, and a conversation expires by the given clock."""
    clock = FrozenClock()
    for store in (
        minutebook.sync.MemoryStore("n", max_sessions=1, ttl=60, clock=clock),
        minutebook.sync.SQLiteStore(folder / "n.sqlite", namespace="n", max_sessions=1, ttl=60, clock=clock),
    ):
        first = minutebook.sync.Conversation(store, "first", format="openai-chat")
        second = minutebook.sync.Conversation(store, "second", format="openai-chat")
        first.append([MESSAGE])
        with pytest.raises(DecisionHistoryStoreFull):
            second.append([MESSAGE])
        clock.advance(60_001)
        second.append([MESSAGE])
        assert store.read(first.key) is None


@pytest.mark.parametrize(
    "options",
    [{"max_sessions": 0}, {"max_bytes": -1}, {"ttl": 0}, {"ttl": "1h"}, {"max_bytes": 1, "max_retained_bytes": 2}],
    ids=str,
)
def test_d07_a_bound_that_is_none_is_refused_at_construction(folder: Path, options: dict[str, Any]) -> None:
    """Before a file is created."""
    with pytest.raises(InvalidOption):
        MemoryStore("n", **options)
    with pytest.raises(InvalidOption):
        SQLiteStore(folder / "n.sqlite", namespace="n", **options)
    assert not (folder / "n.sqlite").exists()


def test_d20_the_database_and_its_sidecars_are_private(folder: Path) -> None:
    """Mode 0600 while it is used, under any umask."""
    before = os.umask(0)
    try:
        with minutebook.sync.SQLiteStore(folder / "n.sqlite", namespace="n") as store:
            minutebook.sync.Conversation(store, "x", format="openai-chat").append([MESSAGE])
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    finally:
        os.umask(before)
    assert {"n.sqlite", "n.sqlite-wal"} <= set(modes)
    assert set(modes.values()) == {0o600}


def test_d20_an_open_mode_is_restored_and_a_link_refused(folder: Path) -> None:
    """The file is made private before it is opened; what is no file of ours is left alone."""
    SQLiteStore(folder / "n.sqlite", namespace="n")
    (folder / "old.sqlite").touch(mode=0o644)
    SQLiteStore(folder / "old.sqlite", namespace="n")
    assert stat.S_IMODE((folder / "old.sqlite").stat().st_mode) == 0o600
    (folder / "link.sqlite").symlink_to(folder / "n.sqlite")
    with pytest.raises(DecisionHistoryStorageUnsafe):
        SQLiteStore(folder / "link.sqlite", namespace="n")


def test_d21_only_the_ram_store_has_a_namespace_of_its_own(folder: Path) -> None:
    """Without one, on the store or in the options, no conversation is reachable."""
    assert MemoryStore().namespace == "memory"
    nameless = SQLiteStore(folder / "n.sqlite")
    with pytest.raises(InvalidOption, match="namespace"):
        Conversation(nameless, "x", format="openai-chat")
    assert Conversation(nameless.within("n"), "x", format="openai-chat").key.namespace == "n"


def test_d21_two_namespaces_that_differ_are_an_error(folder: Path) -> None:
    """The same one twice is none."""
    store = SQLiteStore(folder / "n.sqlite", namespace="n")
    assert store.within("n").namespace == "n"
    with pytest.raises(InvalidOption, match="two different"):
        store.within("m")


@pytest.mark.parametrize("namespace", ["", " ", "a\0b", "x" * 513, "\ud800", 3])
def test_d21_a_namespace_that_no_store_holds_is_refused_before_a_file_is_made(folder: Path, namespace: Any) -> None:
    """And nothing is left open that nobody would close."""
    for make in (minutebook.SQLiteStore, minutebook.sync.SQLiteStore):
        with pytest.raises(InvalidId):
            make(folder / "n.sqlite", namespace=namespace)
    with pytest.raises(InvalidId):
        MemoryStore(namespace)
    assert list(folder.iterdir()) == []


def test_d21_nothing_of_one_namespace_is_reachable_through_another(folder: Path) -> None:
    """Neither by id, nor by a key, nor in a listing."""
    one = minutebook.sync.SQLiteStore(folder / "n.sqlite", namespace="one")
    other = minutebook.sync.SQLiteStore(folder / "n.sqlite", namespace="other")
    told = minutebook.sync.Conversation(one, "x", format="openai-chat")
    told.append([MESSAGE])
    assert other.read(other.key("x")) is None
    assert other.list() == ()
    assert other.totals().conversations == 0
    with pytest.raises(InvalidOption, match="another namespace"):
        other.read(told.key)
    one.close()
    other.close()


def test_d19_a_file_or_a_connection_but_not_both(folder: Path) -> None:
    """And not neither."""
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        for given in ({}, {"filename": folder / "n.sqlite", "database": database}):
            with pytest.raises(InvalidOption, match="one of the two"):
                SQLiteStore(**given, namespace="n")
    assert list(folder.iterdir()) == []


def test_d23_close_leaves_the_hosts_connection_open() -> None:
    """The store refuses from then on; the host goes on with its connection, our rows in it."""
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        store = minutebook.sync.SQLiteStore(database=database, namespace="n")
        told = minutebook.sync.Conversation(store, "x", format="openai-chat")
        told.append([MESSAGE])
        store.close()
        store.close()
        with pytest.raises(StoreClosed):
            store.read(told.key)
        assert database.execute("select 1").fetchone() == (1,)
        again = minutebook.sync.SQLiteStore(database=database, namespace="n")
        assert len(list(again.entries(told.key))) == 1


def test_d23_the_hosts_connection_serves_async_callers_too() -> None:
    """In the loop's own thread, where the connection belongs."""

    async def run(database: sqlite3.Connection) -> int:
        async with create_sqlite_decision_history_store(database=database, namespace="n") as store:
            await Conversation(store, "x", format="openai-chat").append([MESSAGE])
            return (await store.totals()).conversations

    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        assert asyncio.run(run(database)) == 1


# --- a host's own database -------------------------------------------------------------------------------------------


def test_d24_a_hosts_database_is_used_by_public_names() -> None:
    """Conversations and decision histories on it; the namespace from the store or from the options."""

    async def run() -> None:
        host = WaitingHost()
        async with HostStore(host, namespace="n", max_retained_bytes=1_000) as store:
            told = Conversation(store, "x", format="openai-chat")
            await told.append([MESSAGE])
            assert (await told.window()).messages == [MESSAGE]
            assert [listing.key for listing in await store.list()] == [told.key] == list(host.records)
            with pytest.raises(DecisionHistoryRetentionExceeded):
                await told.append([{"role": "user", "content": "x" * 1_000}])
        with pytest.raises(StoreClosed):
            await store.read(told.key)
        options = HistoryOptions(store=HostStore(host), namespace="n", max_retained_bytes=1_000_000)
        assert options.store is not None
        assert await HostStore(host, namespace="n").read(told.key) is not None

    asyncio.run(run())


def test_d24_a_blocking_host_serves_blocking_callers() -> None:
    """Its `transact` waits for nothing but the operation; one that waits for an event loop is named, and saves none."""
    host = ThreadedHost()
    with minutebook.sync.HostStore(host, namespace="n") as store:
        told = minutebook.sync.Conversation(store, "x", format="openai-chat")
        told.append([MESSAGE])
        assert told.window().messages == [MESSAGE]
        assert minutebook.sync.HistoryOptions(store=store).store is not None

    class Waits:
        def __await__(self) -> Iterator[object]:
            yield self

    class WaitsForALoop(ThreadedHost):
        async def transact(self, key: Any, operation: Any) -> Any:
            await Waits()
            return await super().transact(key, operation)

    waits = WaitsForALoop()
    store = minutebook.sync.HostStore(waits, namespace="n")
    with pytest.raises(BlockingMismatch):
        minutebook.sync.Conversation(store, "x", format="openai-chat").append([MESSAGE])
    assert waits.records == {}


@pytest.mark.parametrize("faces", [minutebook, minutebook.sync])
def test_d24_what_is_no_hosts_store_is_refused(faces: Any) -> None:
    """A store of ours has a `transact` of another meaning."""
    for wrong in (MemoryStore(), minutebook.sync.MemoryStore(), object(), None, {}):
        with pytest.raises(InvalidOption, match="transact"):
            faces.HostStore(wrong, namespace="n")
    with pytest.raises(InvalidOption):
        faces.HostStore(ThreadedHost(), namespace="n", max_retained_bytes=-1)
    with pytest.raises(InvalidId):
        faces.HostStore(ThreadedHost(), namespace="")


def test_d24_an_operation_that_returns_no_record_is_refused() -> None:
    """`None` is "nothing to save" only where nothing was given: elsewhere it could mean a deletion or a slip."""
    store = minutebook.sync.MemoryStore()
    key = store.key("x")
    assert store.transact(key, lambda record: (None, record)) is None
    assert store.read(key) is None
    minutebook.sync.Conversation(store, "y", format="openai-chat").append([MESSAGE])
    for wrong in (None, b"{}"):
        with pytest.raises(InvalidOption, match="delete"):
            store.transact(store.key("y"), lambda record, wrong=wrong: (wrong, None))  # type: ignore[misc]
    record = store.read(store.key("y"))
    assert record is not None
    assert (len(record.entries), record.header.token) == (1, "")
    assert store.transact(store.key("y"), lambda record: (record, "same")) == "same"


# --- by URL ----------------------------------------------------------------------------------------------------------


def test_open_store_in_ram() -> None:
    """With its own namespace, or with the given one."""
    assert open_store("memory:").namespace == "memory"
    assert open_store("memory:", namespace="n").namespace == "n"
    assert type(open_store("memory:")) is MemoryStore


NAMES = {"a.sqlite": "a.sqlite", "a%20b": "a b", "a%3Fb%23c%25d": "a?b#c%d", "a&b=c+d": "a&b=c+d", "a\nb": "a\nb"}
NAMES |= {"file:a": "file:a", "%C3%A4 b": "ä b", "ä": "ä", "%E4": "\udce4"}


@pytest.mark.parametrize(("written", "name"), NAMES.items())
def test_open_store_reads_the_files_name_as_urls_are_read(
    folder: Path, written: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Escapes stand for bytes of the name, and so any file can be named: relative or, after four slashes, absolute."""
    monkeypatch.chdir(folder)
    for url in (f"sqlite:///{written}", f"sqlite:///{folder}/{written}", url_of_file(name)):
        store = minutebook.sync.open_store(url, namespace="n")
        assert type(store) is minutebook.sync.SQLiteStore
        assert name in os.listdir(folder)
        store.close()
    assert type(open_store(f"sqlite:///{written}", namespace="n")) is SQLiteStore


@pytest.mark.parametrize("faces", [minutebook, minutebook.sync])
@pytest.mark.parametrize(
    ("written", "advice"),
    [("a?mode=ro", "write %3F"), ("a#b", "write %23"), ("a%", "write %25"), ("50%off", "write %25"), ("a%2", "%25")],
)
def test_open_store_refuses_what_would_be_another_file_by_surprise(
    folder: Path, faces: Any, written: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parameters that nobody reads, and a % that is no escape, are no part of a name: told, and no file is made."""
    monkeypatch.chdir(folder)
    with pytest.raises(InvalidOption, match=advice) as refused:
        faces.open_store(f"sqlite:///{written}", namespace="n")
    assert refused.value.facts == {"option": "url"}
    assert os.listdir(folder) == []


@pytest.mark.parametrize(
    "url",
    ["mongodb://user:s3cret@host/db", "mysql://:s3cret@host", "sqlite:", "sqlite://s3cret", "memory:s3cret",
     "memory", "s3cret", "", None, 3, b"memory:", "SQLITE:///s3cret"],
    ids=str,
)  # fmt: skip
def test_open_store_names_what_exists_and_no_password(url: Any) -> None:
    """An unknown scheme is refused by its name alone: the rest of a URL may be a secret (promise I-37)."""
    with pytest.raises(InvalidOption) as refused:
        open_store(url)
    assert "sqlite:///" in str(refused.value)
    assert "memory:" in str(refused.value)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("faces", [minutebook, minutebook.sync])
@pytest.mark.parametrize(
    ("name", "advice"), [("sqlite:///x", "what follows sqlite:///"), ("sqlite:/x", "open_store"), ("~/x", "expanduser")]
)
def test_d19_a_filename_that_only_others_would_expand_is_refused(
    folder: Path, faces: Any, name: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D19: a URL, or a home directory that no shell has put in, is told from a name, also where it could be one."""
    monkeypatch.chdir(folder)
    for directory in ("sqlite:", "~"):
        (folder / directory).mkdir(mode=0o700)
    with pytest.raises(InvalidOption, match=advice) as refused:
        faces.SQLiteStore(name, namespace="n")
    assert refused.value.facts == {"option": "filename"}
    assert [*folder.glob("*/*")] == []
    minutebook.sync.SQLiteStore(f"./{name}", namespace="n").close()
    assert [found.name for found in folder.glob("*/x")] == ["x"]


@pytest.mark.parametrize("url", ["sqlite:///", "sqlite:///:memory:", "sqlite:///nul\0", "sqlite:////"])
def test_open_store_refuses_what_names_no_file(url: str) -> None:
    """Nothing is opened in RAM by surprise."""
    with pytest.raises(InvalidOption):
        open_store(url, namespace="n")


@pytest.mark.parametrize("way", ["read", "export", "delete", "reserve"])
@pytest.mark.parametrize("kind", ["RAM", "SQLite", "hosted"])
def test_d22_d23_how_long_it_is_held_is_told_by_the_stores_clock(kind: str, way: str, folder: Path) -> None:
    """Whoever is refused, by whatever call, is told the age of the hold by the clock that dated its beginning."""
    clock = FrozenClock()
    stores = {
        "RAM": lambda: minutebook.sync.MemoryStore("n", clock=clock),
        "SQLite": lambda: minutebook.sync.SQLiteStore(folder / "d.sqlite", namespace="n", clock=clock),
        "hosted": lambda: minutebook.sync.HostStore(ThreadedHost(), namespace="n", clock=clock),
    }
    with stores[kind]() as store:
        held = minutebook.sync.Conversation(store, "held", format="openai-chat")
        held.append([MESSAGE], id="first")
        with held.turn("x") as turn:
            clock.advance(1_234)
            calls = {
                "read": lambda: store.read(held.key),
                "export": lambda: held.export(folder / "held.jsonl"),
                "delete": lambda: store.delete(held.key),
                "reserve": lambda: held.append([MESSAGE], id="second"),
            }
            with pytest.raises(minutebook.DecisionHistoryBusy) as busy:
                calls[way]()
            assert busy.value.since_ms == 1_234
            turn.respond({"role": "assistant", "content": "y"})
