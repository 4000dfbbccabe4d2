"""
What strikes inside a call of a store in the same thread: the garbage collector, signals, finalizers (I-18, D23).

Python runs their code between any two steps. Here a tracer stands in for that chance: it strikes once, at the n-th line
that runs inside the package, for each n in turn. What is left must be as if it had come right after the call.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.budgets import budget
from tests.stores.hosts import ThreadedHost
from tests.stores.labs import SERVERS, open_journal

import minutebook
from minutebook import Conversation, MinutebookError, SQLiteStore, StoreClosed, StoreReentered, sync
from minutebook.chat.options import given_store
from minutebook.model.bounds import StoreBounds
from minutebook.options import HistoryOptions
from minutebook.stores import aside, sqlite_host, sqlite_pace, sqlite_writer
from minutebook.stores.aside import Aftermath
from minutebook.stores.journal import JournalStore
from minutebook.stores.memory import MemoryJournal
from minutebook.stores.sections import inside
from minutebook.stores.sqlite import SQLiteJournal
from minutebook.testing import drive

PACKAGE = str(Path(minutebook.__file__).parent)
ANSWERED = [{"role": "user", "content": "asks"}, {"role": "assistant", "content": "answers"}]


class Strike:
    """Does something at the n-th line that runs inside the package, in this thread."""

    def __init__(self, line: int, act: Callable[[], object]) -> None:
        self.left = line
        self.act = act
        self.inside = False
        """Whether it struck inside a section."""

    def __enter__(self) -> Strike:
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._count if self.left and frame.f_code.co_filename.startswith(PACKAGE) else None

    def _count(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line" and self.left:
            self.left -= 1
            if not self.left:
                self.inside = inside()
                self.act()
        return self._count


def collect() -> None:
    """Collect what the test dropped, and look at nothing that was there before it."""
    gc.collect()


@pytest.fixture(autouse=True)
def _collected_on_purpose() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


def is_open(path: Path) -> bool:
    """Whether this process has a writer of the file."""
    return any(writer.private.path == str(path) for writer in sqlite_writer._registry.writers.values())


# --- a turn that is dropped ------------------------------------------------------------------------------------------


class Stream:
    """An answer as servers stream it: an object that has its own generator, so that only the collector finds it."""

    def __init__(self, conversation: sync.Conversation) -> None:
        self.pieces = self.run(conversation)
        next(self.pieces)

    def run(self, conversation: sync.Conversation) -> Iterator[str]:
        with conversation.turn("asks"):
            yield "piece"


def open_blocking(kind: str, folder: Path) -> tuple[sync.JournalStore, sync.JournalStore]:
    """Return a store, and another one that sees what the first one recorded but knows nothing of its turns."""
    if kind == "sqlite":
        return tuple(sync.SQLiteStore(folder / "n.sqlite", namespace="n") for _ in range(2))  # type: ignore[return-value]
    if kind == "hosted":
        documents = ThreadedHost()
        return tuple(sync.HostStore(documents, namespace="n") for _ in range(2))  # type: ignore[return-value]
    stores = open_async(kind, folder, blocking=True)
    return tuple(map(sync.JournalStore, stores))  # type: ignore[return-value]


def open_async(kind: str, folder: Path, *, blocking: bool = False) -> tuple[JournalStore, JournalStore]:
    journal: Any
    if kind in SERVERS:
        journals = [open_journal(kind, folder, StoreBounds(), blocking=blocking) for _ in range(2)]
        return tuple(JournalStore(journal, namespace="n") for journal in journals)  # type: ignore[return-value]
    if kind == "sqlite":
        return tuple(SQLiteStore(folder / "n.sqlite", namespace="n") for _ in range(2))  # type: ignore[return-value]
    if kind == "host":
        connection = sqlite3.connect(folder / "host.sqlite")
        journal = SQLiteJournal.on_connection(connection)
    else:
        journal = MemoryJournal()
    return JournalStore(journal, namespace="n"), JournalStore(journal, namespace="n")


ACTS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "append": ("append", lambda store, talk: talk.append(ANSWERED)),
    "read": ("read", lambda store, talk: store.read(talk.key)),
    "receipt": ("receipt", lambda store, talk: store.receipt(talk.key, "prepared")),
    "list": ("list", lambda store, talk: store.list(limit=2)),
    "totals": ("totals", lambda store, talk: store.totals()),
    "verify": ("verify", lambda store, talk: store.verify(talk.key)),
    "delete": ("delete", lambda store, talk: store.delete(talk.key)),
    "recover": ("recover", lambda store, talk: store.recover(talk.key, worker_stopped=True)),
}
"""Public calls which together make every call of a journal."""


def blocking_strike(kind: str, name: str, folder: Path, line: int) -> Strike:
    """Have a dropped turn collected at one line of a call, and see that another worker finds it free afterwards."""
    store, other = open_blocking(kind, folder)
    with store, other:
        talk = sync.Conversation(store, "talk", format="openai-chat")
        talk.append(ANSWERED, id="prepared")
        if name == "recover":
            sync.Conversation(other, "talk", format="openai-chat").turn("held").__enter__()
        Stream(sync.Conversation(store, "dropped", format="openai-chat"))
        with Strike(line, collect) as strike:
            ACTS[name][1](store, talk)
        if not strike.left:
            header = other.header(other.key("dropped"))
            assert header is not None
            assert not header.token, f"{name} over {kind}: a turn that was collected at line {line} is still held"
            with sync.Conversation(other, "dropped", format="openai-chat").turn("next") as turn:
                turn.respond(ANSWERED[1])
            other.verify(other.key("dropped"))
        if name != "delete":
            assert store.verify(talk.key).attempt is None
    return strike


def every_line(strike_at: Callable[[Path, int], Strike], folder: Path, steps: tuple[int, int]) -> tuple[int, int]:
    """Strike at lines in turn, as far as the call goes; return at how many, and how many of them were in a section."""
    folder.chmod(0o700)
    line, struck, within = 1, 0, 0
    while True:
        place = folder / f"{line}"
        place.mkdir(0o700)
        strike = strike_at(place, line)
        if strike.left:
            return struck, within
        struck, within = struck + 1, within + strike.inside
        line += budget(*steps)


@pytest.mark.parametrize("name", ACTS)
@pytest.mark.parametrize("kind", ["memory", "sqlite", "host"])
def test_i18_a_blocking_turn_is_given_back_wherever_it_is_collected(kind: str, name: str, tmp_path: Path) -> None:
    """Inside each call of a journal too: it neither waits for its own thread nor writes into another transaction."""
    struck, within = every_line(functools.partial(blocking_strike, kind, name), tmp_path, (5, 1))
    assert struck > within > 0


@pytest.mark.parametrize("kind", ["hosted", *SERVERS])
def test_i18_a_turn_over_a_server_is_given_back_wherever_it_is_collected(kind: str, tmp_path: Path) -> None:
    """The whole of a blocking call is a section there: its connection may be the only one, or a host have a lock."""
    struck, within = every_line(functools.partial(blocking_strike, kind, "append"), tmp_path, (23, 3))
    assert struck > within > 0


@pytest.mark.parametrize("kind", SERVERS)
def test_i18_a_task_over_a_server_is_given_back_wherever_it_is_collected(kind: str, tmp_path: Path) -> None:
    """What a task leaves waits for a connection of its own, and no lock is held over what waits."""
    assert every_line(functools.partial(asynchronous_strike, kind, "append"), tmp_path, (31, 3))[0] > 9


def test_i18_control_a_turn_that_is_given_back_inside_a_section_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: whoever is closed does not look where."""
    monkeypatch.setattr(aside, "inside", lambda: False)
    with pytest.raises(AssertionError, match="still held"):
        every_line(functools.partial(blocking_strike, "memory", "append"), tmp_path, (5, 5))


async def waiting(conversation: Conversation, held: asyncio.Event) -> None:
    """Hold a turn and wait for what nobody has: with its last reference the task is garbage."""
    async with conversation.turn("asks"):
        held.set()
        await asyncio.get_running_loop().create_future()


async def drop_a_task(store: JournalStore) -> None:
    """Leave a task that holds the conversation `dropped`, and that nobody can reach any more."""
    held = asyncio.Event()
    task = asyncio.create_task(waiting(Conversation(store, "dropped", format="openai-chat"), held))
    await held.wait()
    del task


async def is_free(other: JournalStore, where: str) -> None:
    await asyncio.sleep(0)  # what was handed to the loop begins
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)
    header = await other.header(other.key("dropped"))
    assert header is not None
    assert not header.token, f"{where}: a task that was collected is still held"


def asynchronous_strike(kind: str, name: str, folder: Path, line: int) -> Strike:
    """The same with a task, in its loop's own thread."""

    async def story() -> Strike:
        store, other = open_async(kind, folder)
        async with store, other:
            asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # a task was destroyed: on purpose
            talk = Conversation(store, "talk", format="openai-chat")
            await talk.append(ANSWERED, id="prepared")
            if name == "recover":
                await Conversation(other, "talk", format="openai-chat").turn("held").__aenter__()
            await drop_a_task(store)
            with Strike(line, collect) as strike:
                await ACTS[name][1](store, talk)
            if not strike.left:
                await is_free(other, f"{name} over {kind}, line {line}")
            collect()
        return strike

    return asyncio.run(story())


@pytest.mark.parametrize("name", ACTS)
@pytest.mark.parametrize("kind", ["memory", "sqlite", "host"])
def test_i18_an_asynchronous_turn_is_given_back_wherever_it_is_collected(kind: str, name: str, tmp_path: Path) -> None:
    """Tasks that wait for what nobody has, as asyncio itself keeps no more than weak references to tasks."""
    struck, within = every_line(functools.partial(asynchronous_strike, kind, name), tmp_path, (13, 1))
    assert struck > within
    assert within or kind == "sqlite"  # whose commits are made in its own thread, where nothing strikes here


def collected_in_a_thread(folder: Path, kind: str = "sqlite") -> None:
    """Have a task collected beside its loop, as where the writer's thread happens to run the collector."""

    async def story() -> None:
        store, other = open_async(kind, folder)
        async with store, other:
            asyncio.get_running_loop().set_exception_handler(lambda *_: None)
            await drop_a_task(store)
            await asyncio.to_thread(collect)
            await is_free(other, "in a thread")

    folder.chmod(0o700)
    asyncio.run(story())


@pytest.mark.parametrize("kind", ["sqlite", *SERVERS])
def test_i18_a_turn_that_another_thread_collects_is_given_back_by_its_loop(kind: str, tmp_path: Path) -> None:
    """Nothing else on the loop has to touch the store first."""
    collected_in_a_thread(tmp_path, kind)


def test_i18_a_store_that_is_closed_waits_for_what_another_thread_handed_over(tmp_path: Path) -> None:
    """The loop has not begun it when the store is closed: nothing is held afterwards."""

    async def story() -> None:
        store, other = open_async("sqlite", tmp_path)
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        async with other:
            await drop_a_task(store)
            thread = threading.Thread(target=collect)
            thread.start()
            thread.join()
            await store.close()
            assert (await other.totals()).reserved == 0

    tmp_path.chmod(0o700)
    asyncio.run(story())


def test_i18_a_coroutine_whose_loop_stands_still_is_given_back_where_it_is_closed(tmp_path: Path) -> None:
    """A loop that is run now and then, as a notebook's: what is closed in between waits for no further run."""
    loop = asyncio.new_event_loop()
    journal = SQLiteJournal.on_connection(sqlite3.connect(tmp_path / "host.sqlite"))
    store = JournalStore(journal, namespace="n")
    turn = Conversation(store, "talk", format="openai-chat").turn("asks")

    async def begun() -> Any:
        async def answers() -> Any:
            async with turn:
                yield "piece"

        pieces = answers()
        await anext(pieces)
        return pieces

    try:
        held = begun()
        pieces = loop.run_until_complete(held)
        with contextlib.suppress(StopIteration):
            pieces.aclose().send(None)
        assert drive(store.totals()).reserved == 0
    finally:
        loop.close()
        drive(store.close())


@pytest.mark.parametrize("kind", SERVERS)
def test_i18_a_deadline_of_what_is_left_strikes_nobody_else(kind: str, tmp_path: Path) -> None:
    """What a closed turn leaves has the deadlines of its calls for itself, in whose task it was ever closed."""

    async def story() -> None:
        store, other = open_async(kind, tmp_path)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)
        timeouts: list[asyncio.Task[Any] | None] = []
        entered = asyncio.Timeout.__aenter__

        async def noted(timeout: asyncio.Timeout) -> asyncio.Timeout:
            timeouts.append(asyncio.current_task())
            return await entered(timeout)

        async with store, other:
            await drop_a_task(store)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(asyncio.Timeout, "__aenter__", noted)
                collect()
                await is_free(other, "in another's task")
            assert timeouts[0] is not asyncio.current_task()

    asyncio.run(story())


def test_i18_control_a_turn_that_knows_no_loop_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: it is given back in whatever thread it is collected."""
    monkeypatch.setattr(Aftermath, "from_here", lambda self: functools.partial(self._do, None))
    with pytest.raises(AssertionError, match="still held"):
        collected_in_a_thread(tmp_path)


def test_i18_a_commit_in_which_a_turn_is_collected_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the loop itself: what the turn leaves comes into the same group, and looks after it again."""
    monkeypatch.setattr(sqlite_pace, "perf_counter", lambda: 0.0)  # no disk is slow
    tmp_path.chmod(0o700)
    collecting = False

    def clock() -> int:
        if collecting:
            collect()
        return 1_800_000_000_000

    async def story() -> None:
        nonlocal collecting
        async with SQLiteStore(tmp_path / "n.sqlite", namespace="n", clock=clock) as store:
            asyncio.get_running_loop().set_exception_handler(lambda *_: None)
            held = Conversation(store, "talk", format="openai-chat").turn("held")
            await held.__aenter__()
            await drop_a_task(store)
            collecting = True
            await store.recover(store.key("talk"), worker_stopped=True)
            collecting = False
            await is_free(store, "in a commit")
            assert (await store.verify(store.key("talk"))).version == 2

    asyncio.run(story())


def test_i18_many_turns_collected_at_once_are_given_back_one_after_the_other(tmp_path: Path) -> None:
    """However many: each enters sections of its own, and they do not pile up."""
    tmp_path.chmod(0o700)
    with sync.SQLiteStore(tmp_path / "n.sqlite", namespace="n", max_sessions=1_000) as store:
        number = 400
        for name in range(number):
            Stream(sync.Conversation(store, f"dropped-{name}", format="openai-chat"))

        def clock() -> int:
            if gc.isenabled():
                gc.disable()
                gc.collect()
            return 1_800_000_000_000

        with sync.SQLiteStore(tmp_path / "n.sqlite", namespace="n", clock=clock) as striking:
            gc.enable()
            striking.header(striking.key("any"))
        assert store.totals().reserved == 0
        assert store.totals().conversations == number


# --- blocking stores where an event loop runs ------------------------------------------------------------------------


def notebook_stores(kind: str, folder: Path) -> tuple[sync.JournalStore, sync.JournalStore]:
    """Return two blocking stores on one place, each over a journal of its own, as two workers have them."""
    folder.chmod(0o700)
    if kind == "host":
        connection = sqlite3.connect(folder / "host.sqlite")  # of this thread alone
        return tuple(sync.SQLiteStore(database=connection, namespace="n") for _ in range(2))  # type: ignore[return-value]
    return open_blocking(kind, folder)


def in_a_thread(act: Callable[[], object]) -> None:
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


@pytest.mark.parametrize("where", ["here", "in a thread"])
@pytest.mark.parametrize("how", ["closed", "collected"])
@pytest.mark.parametrize("kind", ["memory", "sqlite", "host", "hosted", *SERVERS])
def test_i18_a_notebook_gives_its_turns_back(kind: str, how: str, where: str, tmp_path: Path) -> None:
    """Its cells run inside a loop, which a blocking store knows nothing of: nothing is left for it, nor waited for."""

    async def cell() -> None:
        store, other = notebook_stores(kind, tmp_path)
        with other:
            with store:
                pieces: Any = Stream(sync.Conversation(store, "dropped", format="openai-chat")).pieces
                act = pieces.close
                if how == "collected":
                    act, pieces = collect, None
                act() if where == "here" else in_a_thread(act)
                # A host's connection is one thread's own: there closing the store gives the turn back.
                assert other.totals().reserved == (kind == "host" and where == "in a thread")
            if kind != "memory":  # where both are one journal
                with sync.Conversation(other, "dropped", format="openai-chat").turn("next") as turn:
                    turn.respond(ANSWERED[1])

    asyncio.run(cell())


OWN: dict[str, Callable[[], JournalStore]] = {
    "agent": lambda: given_store(None, blocking=True),
    "provider": lambda: HistoryOptions().open_store(blocking=True),
}


@pytest.mark.parametrize("whose", OWN)
def test_i18_a_notebook_gives_back_turns_in_a_store_that_nobody_gave(whose: str) -> None:
    """What a blocking agent or provider keeps in RAM of its own knows no loop either, in whichever thread."""

    def run(conversation: Conversation) -> Iterator[str]:
        turn = conversation.turn("asks")
        drive(turn.__aenter__())
        try:
            yield "piece"
        except GeneratorExit as error:
            drive(turn.__aexit__(GeneratorExit, error, None))
            raise

    async def cell() -> None:
        store = OWN[whose]()
        pieces: Any = run(Conversation(store, "dropped", format="openai-chat"))
        next(pieces)
        in_a_thread(pieces.close)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(drive, store.totals()).result().reserved == 0

    asyncio.run(cell())


def test_i18_what_was_handed_to_a_loop_is_done_by_whoever_waits_for_it_there() -> None:
    """Also where that drives an asynchronous store to its end, in which the loop never gets a turn."""

    async def cell() -> None:
        store = JournalStore(MemoryJournal(), namespace="n")

        async def answers() -> Any:
            async with Conversation(store, "dropped", format="openai-chat").turn("asks"):
                yield "piece"

        pieces = answers()
        await anext(pieces)
        in_a_thread(lambda: ended(pieces))
        drive(store.read(store.key("dropped")))
        assert (await store.totals()).reserved == 0

    asyncio.run(cell())


def ended(pieces: Any) -> None:
    """Close an async generator where no loop runs."""
    with contextlib.suppress(StopIteration):
        pieces.aclose().send(None)


# --- a call from a signal handler or a finalizer ---------------------------------------------------------------------


def closing_strike(kind: str, folder: Path, line: int) -> Strike:
    """Close the store at one line of a call; it is closed then, and what is recorded is old or new."""
    store, other = open_blocking(kind, folder)
    if kind == "sqlite":
        other.close()  # of the other kinds both are one journal
    talk = sync.Conversation(store, "talk", format="openai-chat")
    with Strike(line, store.close) as strike, contextlib.suppress(StoreClosed):
        talk.append(ANSWERED)
    if strike.left:
        store.close()
        return strike
    with pytest.raises(StoreClosed):
        store.list()
    assert not is_open(folder / "n.sqlite")
    return strike


@pytest.mark.parametrize("kind", ["memory", "sqlite", "host"])
def test_d23_a_store_is_closed_in_the_middle_of_a_call_of_its_thread(kind: str, tmp_path: Path) -> None:
    """As by the handler of SIGTERM that everybody writes: it waits for no lock that its own thread has."""
    struck, within = every_line(functools.partial(closing_strike, kind), tmp_path, (11, 1))
    assert struck > within > 0


CALLS: dict[str, Callable[[sync.JournalStore], object]] = {
    "write": lambda store: sync.Conversation(store, "other", format="openai-chat").append(ANSWERED),
    "read": lambda store: store.list(),
    "transact": lambda store: store.transact(store.key("other"), lambda record: (record, None)),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", ["memory", "sqlite", "host"])
def test_d23_any_other_call_in_the_middle_of_a_call_is_refused(kind: str, call: str, tmp_path: Path) -> None:
    """With its own name; outside a section it is like any other, and the call that was struck never minds."""

    def strike_at(folder: Path, line: int) -> Strike:
        store, other = open_blocking(kind, folder)
        refused: list[MinutebookError] = []

        def handler() -> None:
            try:
                CALLS[call](store)
            except MinutebookError as error:
                refused.append(error)

        with store, other:
            talk = sync.Conversation(store, "talk", format="openai-chat")
            with Strike(line, handler) as strike:
                talk.append(ANSWERED)
            assert [type(error) for error in refused] == [StoreReentered] * strike.inside
            assert len(talk.window().messages) == 2
            store.verify(talk.key)
        return strike

    struck, within = every_line(strike_at, tmp_path, (11, 1))
    assert struck > within > 0


def test_d23_a_signal_in_the_middle_of_a_commit_closes_the_store_and_ends_the_program(tmp_path: Path) -> None:
    """A real signal: the handler closes and raises; the file is given back, and the record is as it was."""
    tmp_path.chmod(0o700)
    striking = False

    def clock() -> int:
        if striking:
            signal.raise_signal(signal.SIGTERM)
        return 1_800_000_000_000

    store = sync.SQLiteStore(tmp_path / "n.sqlite", namespace="n", clock=clock)
    talk = sync.Conversation(store, "talk", format="openai-chat")
    talk.append(ANSWERED)

    def stop(*_: object) -> None:
        nonlocal striking
        striking = False
        store.close()
        raise SystemExit(0)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        striking = True
        with pytest.raises(SystemExit):
            talk.append(ANSWERED)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not is_open(tmp_path / "n.sqlite")
    with sync.SQLiteStore(tmp_path / "n.sqlite", namespace="n") as again:
        assert again.verify(again.key("talk")).entries == 2


# --- no more threads -------------------------------------------------------------------------------------------------


class NoThreads:
    """A system that has no more threads, for as long as it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused = 0
        self.full = True
        start = threading.Thread.start

        def started(thread: threading.Thread) -> None:
            if self.full:
                self.refused += 1
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", started)


async def append_together(store: JournalStore, number: int) -> None:
    """Append to several conversations at once, which is more than the loop commits by itself."""
    talks = [Conversation(store, f"c{each}", format="openai-chat") for each in range(number)]
    await asyncio.wait_for(asyncio.gather(*(talk.append(ANSWERED) for talk in talks)), 30)


def test_o38_commits_are_made_where_no_thread_can_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container at its limit: by the loop itself, and by the thread once there is one; the file is closed."""
    tmp_path.chmod(0o700)

    async def story() -> None:
        system = NoThreads(monkeypatch)
        monkeypatch.setattr(sqlite_writer, "MAX_GROUP", 2)  # so that not all of them fit into one transaction
        store = SQLiteStore(tmp_path / "n.sqlite", namespace="n")
        for _ in range(2):
            await append_together(store, 5)
        assert system.refused > 1
        system.full = False
        await append_together(store, 5)
        system.full = True
        await store.close()
        assert not is_open(tmp_path / "n.sqlite")
        system.full = False
        async with SQLiteStore(tmp_path / "n.sqlite", namespace="n") as again:
            assert (await again.totals()).conversations == 5
            for each in range(5):
                assert (await again.verify(again.key(f"c{each}"))).version == 3

    asyncio.run(story())


class Exit(BaseException):
    """What a host raises to end a thread of its own."""


def test_o38_an_exit_in_a_hosts_clock_ends_no_writer(tmp_path: Path) -> None:
    """It is told to the jobs that it struck, and the thread serves the next ones."""
    tmp_path.chmod(0o700)
    exits = False

    def clock() -> int:
        if exits and threading.current_thread().name == "minutebook-writer":
            raise Exit
        return 1_800_000_000_000

    async def story() -> None:
        nonlocal exits
        async with SQLiteStore(tmp_path / "n.sqlite", namespace="n", clock=clock) as store:
            talks = [Conversation(store, f"c{each}", format="openai-chat") for each in range(3)]
            exits = True
            struck = await asyncio.gather(*(talk.append(ANSWERED) for talk in talks), return_exceptions=True)
            assert [type(each) for each in struck] == [Exit] * 3
            exits = False
            await append_together(store, 3)
            assert (await store.totals()).reserved == 0

    asyncio.run(story())


def test_i09_a_file_whose_closing_was_cut_is_closed_by_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever becomes of the first one, the process forgets the writer, and opens the file anew."""
    tmp_path.chmod(0o700)
    store = sync.SQLiteStore(tmp_path / "n.sqlite", namespace="n")
    talk = sync.Conversation(store, "talk", format="openai-chat")
    talk.append(ANSWERED)
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_writer.Writer, "_close_files", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            store.close()
    store.close()
    assert not is_open(tmp_path / "n.sqlite")
    with sync.SQLiteStore(tmp_path / "n.sqlite", namespace="n") as again:
        again.verify(again.key("talk"))


# --- a fork beside a call --------------------------------------------------------------------------------------------


FORKED: tuple[Callable[[JournalStore], Any], ...] = (
    lambda store: store.delete(store.key("talk")),
    lambda store: store.recover(store.key("talk"), worker_stopped=True),
    lambda store: store.header(store.key("talk")),
    lambda store: store.list(),
    lambda store: Conversation(store, "other", format="openai-chat").append(ANSWERED),
)


def forked_beside_a_call(kind: str, folder: Path, seconds: int) -> int:
    """Fork while another thread has the store's lock; return how the child, in which nobody gives it back, ended."""
    folder.chmod(0o700)
    store, _ = open_async(kind, folder)
    journal: Any = store.journal
    lock = journal._lock if kind == "memory" else journal._database._lock
    held, go_on = threading.Event(), threading.Event()

    def calling() -> None:
        with lock:
            held.set()
            go_on.wait(60)

    thread = threading.Thread(target=calling)
    thread.start()
    assert held.wait(60)
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)
        os._exit(refusals_missed(store))
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    go_on.set()
    thread.join()
    return ended


def refusals_missed(store: JournalStore) -> int:
    """Call the store in a child, and close it; return how many calls were not refused by name."""
    missed = 0
    for call in FORKED:
        try:
            drive(call(store))
        except StoreClosed:
            continue
        except BaseException:
            pass
        missed += 1
    with contextlib.suppress(StoreClosed):
        drive(store.close())
    return missed


@pytest.mark.parametrize("kind", ["memory", "sqlite", "host"])
def test_i17_a_child_that_is_forked_beside_a_call_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    """The lock that another thread had is held for ever in the child, which waits for none."""
    assert forked_beside_a_call(kind, tmp_path, 30) == 0


def test_i17_control_a_child_that_waits_for_a_lock_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: it looks for a fork no more, and is ended by its alarm."""
    monkeypatch.setattr(sqlite_host, "refuse_fork", lambda pid: None)
    assert forked_beside_a_call("host", tmp_path, 1) == -signal.SIGALRM
