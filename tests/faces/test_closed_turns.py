"""
Turns in generators that are closed before they ended, as a server closes an answer whose reader went away (I-18).

Whoever is closed by `close` or by its collection cannot wait any more. The reservation is given back all the same, so
that a worker with another connection goes on without a `recover`.
"""

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.stores.labs import said

from minutebook import Conversation, ConversationKey, DecisionHistoryBusy, JournalStore, SQLiteStore, StoreClosed, sync
from minutebook.errors import DecisionHistoryStorageFailed
from minutebook.stores import journal as journals
from minutebook.stores.memory import MemoryJournal
from minutebook.stores.sqlite import SQLiteJournal
from minutebook.testing import Fault, FaultyJournal, SuspendingJournal, drive

ANSWER = {"role": "assistant", "content": "answer"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path / "book.sqlite"


@pytest.mark.parametrize("answered", [False, True])
def test_i18_a_closed_generator_gives_its_turn_back(answered: bool, path: Path) -> None:
    """Without an event loop, before the answer and after it: the next worker finds the conversation free."""
    with sync.SQLiteStore(path, namespace="n") as mine, sync.SQLiteStore(path, namespace="n") as other:

        def answer() -> Iterator[str]:
            with sync.Conversation(mine, "c", format="openai-chat").turn("one") as turn:
                if answered:
                    turn.respond(ANSWER)
                yield "piece"

        pieces = answer()
        assert next(pieces) == "piece"
        pieces.close()
        talk = sync.Conversation(other, "c", format="openai-chat")
        with talk.turn("two") as turn:
            turn.respond(ANSWER)
        assert [message["content"] for message in talk.window().messages] == ["two", "answer"]
        other.verify(talk.key)


async def others_turn(other: SQLiteStore) -> list[str]:
    """Record a turn as another worker, once the loop did what waits, and return what the conversation shows."""
    while waiting := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.gather(*waiting)
    talk = Conversation(other, "c", format="openai-chat")
    async with talk.turn("two") as turn:
        await turn.respond(ANSWER)
    await other.verify(talk.key)
    return [message["content"] for message in (await talk.window()).messages]


@pytest.mark.parametrize("how", ["aclose", "dropped", "coroutine closed"])
def test_i18_a_closed_async_generator_gives_its_turn_back(how: str, path: Path) -> None:
    """Under an event loop: closed and waited for, dropped, or in a coroutine that is closed while it waits."""

    async def answer(store: SQLiteStore) -> AsyncIterator[str]:
        async with Conversation(store, "c", format="openai-chat").turn("one"):
            yield "piece"

    async def story() -> list[str]:
        async with SQLiteStore(path, namespace="n") as mine, SQLiteStore(path, namespace="n") as other:
            if how == "coroutine closed":
                held = asyncio.Event()
                coroutine = hold(mine, held)
                await driven(coroutine, held)
                coroutine.close()
            else:
                pieces = answer(mine)
                assert await anext(pieces) == "piece"
                if how == "aclose":
                    await pieces.aclose()
                del pieces
                gc.collect()
                await asyncio.sleep(0)  # a round of the loop, in which it takes up what was collected
            return await others_turn(other)

    async def hold(store: SQLiteStore, held: asyncio.Event) -> None:
        async with Conversation(store, "c", format="openai-chat").turn("one"):
            held.set()
            await asyncio.Event().wait()

    async def driven(coroutine: Any, held: asyncio.Event) -> None:
        """Run a coroutine inside this task as far as its turn."""
        while not held.is_set():
            future = coroutine.send(None)
            if future is None:
                await asyncio.sleep(0)
            elif not held.is_set():
                future._asyncio_future_blocking = False
                await asyncio.wait([future])

    assert asyncio.run(story()) == ["two", "answer"]


async def asking(store: JournalStore, name: str = "c") -> AsyncIterator[str]:
    """Give pieces of an answer that is never recorded, as of a reader who goes away."""
    async with Conversation(store, name, format="openai-chat").turn("one"):
        yield "piece"


async def other_worker_goes_on(path: Path, name: str = "c") -> list[str]:
    """Record a turn as a worker with another store, and return what the conversation shows then."""
    async with SQLiteStore(path, namespace="n") as other:
        talk = Conversation(other, name, format="openai-chat")
        async with talk.turn("two") as turn:
            await turn.respond(ANSWER)
        await other.verify(talk.key)
        return [message["content"] for message in (await talk.window()).messages]


@pytest.mark.parametrize("how", ["aclose", "left open", "cancelled"])
def test_i18_a_store_that_is_closed_gives_back_what_its_turns_hold(how: str, path: Path) -> None:
    """Whether they were closed right before, are never closed, or their task is cancelled and not waited for."""

    async def consume(pieces: AsyncIterator[str], begun: asyncio.Event) -> None:
        await anext(pieces)
        begun.set()
        await asyncio.Event().wait()

    async def story() -> None:
        async with SQLiteStore(path, namespace="n") as store:
            pieces = asking(store)
            if how == "cancelled":
                begun = asyncio.Event()
                task = asyncio.create_task(consume(pieces, begun))
                await begun.wait()
                task.cancel()
            else:
                await anext(pieces)
            if how == "aclose":
                await pieces.aclose()  # type: ignore[attr-defined]
        assert await other_worker_goes_on(path) == ["two", "answer"]

    asyncio.run(story())


def test_i18_a_turn_follows_one_that_was_closed_right_before(path: Path) -> None:
    """Fifty times, without a moment between: what is given back a little later is waited for."""

    async def story() -> None:
        async with SQLiteStore(path, namespace="n") as store:
            for number in range(50):
                pieces = asking(store)
                await anext(pieces)
                await pieces.aclose()  # type: ignore[attr-defined]
                async with Conversation(store, "c", format="openai-chat").turn(str(number)) as turn:
                    await turn.respond(ANSWER)
            shown = (await Conversation(store, "c", format="openai-chat").window()).messages
            assert [message["content"] for message in shown[::2]] == [str(number) for number in range(50)][
                -len(shown[::2]) :
            ]

    asyncio.run(story())


@pytest.mark.parametrize("after", ["read", "delete", "export"])
def test_i18_what_follows_a_closed_turn_finds_the_conversation_idle(after: str, path: Path) -> None:
    """Not only the next turn: whatever wants an idle conversation waits for what was left."""

    async def story() -> None:
        async with SQLiteStore(path, namespace="n") as store:
            pieces = asking(store)
            await anext(pieces)
            await pieces.aclose()  # type: ignore[attr-defined]
            key = store.key("c")
            if after == "export":
                assert await store.export(key, path.with_name("c.jsonl")) > 0
            else:
                assert await getattr(store, after)(key) is not None

    asyncio.run(story())


def test_i18_a_loop_that_ends_gives_back_what_was_closed_in_it(path: Path) -> None:
    """A store that nobody closes, and a generator that the loop itself closes at its end."""

    async def leaves_all() -> tuple[SQLiteStore, AsyncIterator[str]]:
        store = SQLiteStore(path, namespace="n")
        pieces = asking(store)
        await anext(pieces)
        return store, pieces

    store, _ = asyncio.run(leaves_all())
    assert asyncio.run(other_worker_goes_on(path)) == ["two", "answer"]
    asyncio.run(store.close())


def test_i18_closing_a_store_leaves_what_others_hold(path: Path) -> None:
    """It gives back its own reservations alone, and none that it lost to a recovery."""

    async def story() -> None:
        async with SQLiteStore(path, namespace="n") as other:
            async with SQLiteStore(path, namespace="n") as store:
                pieces, lost = asking(store), asking(store, "lost")
                await anext(pieces)
                await anext(lost)
                await other.recover(other.key("lost"), worker_stopped=True)
                theirs = asking(other, "lost")
                await anext(theirs)
            header = await other.header(other.key("lost"))
            assert header is not None
            assert header.token
            assert (await other.header(other.key("c"))).token == ""  # type: ignore[union-attr]
            await theirs.aclose()  # type: ignore[attr-defined]

    asyncio.run(story())


def closing_inside(store: sync.SQLiteStore) -> None:
    with sync.Conversation(store, "c", format="openai-chat").turn("three") as turn:
        store.close()
        turn.respond(ANSWER)


def test_i18_a_blocking_store_gives_back_what_its_turns_hold(path: Path) -> None:
    """A suspended generator that outlives its store, and a turn inside which the store is closed."""

    def answer(store: sync.SQLiteStore) -> Iterator[str]:
        with sync.Conversation(store, "c", format="openai-chat").turn("one"):
            yield "piece"

    with sync.SQLiteStore(path, namespace="n") as store:
        pieces = answer(store)
        next(pieces)
    asyncio.run(other_worker_goes_on(path))
    pieces.close()  # type: ignore[attr-defined]
    store = sync.SQLiteStore(path, namespace="n")
    with pytest.raises(StoreClosed):
        closing_inside(store)
    asyncio.run(other_worker_goes_on(path))


def test_i18_a_blocking_generator_left_at_the_end_of_the_program_gives_back_its_turn(path: Path) -> None:
    """The interpreter closes it when modules are gone already; nothing is printed of that."""
    script = (
        "import sys; from minutebook import sync\n"
        "def answer(store):\n"
        "    with sync.Conversation(store, 'c', format='openai-chat').turn('one'):\n"
        "        yield 'piece'\n"
        "store = sync.SQLiteStore(sys.argv[1], namespace='n')\n"
        "pieces = answer(store)\n"
        "next(pieces)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("", "")
    asyncio.run(other_worker_goes_on(path))


def test_i18_a_store_that_is_closed_gives_back_what_could_not_be_given_back_before(path: Path) -> None:
    """The turn failed while the storage did; the store is closed when that answers again."""
    journal = FaultyJournal(SQLiteJournal(path, blocking=True), [Fault(call=1, method="commit")])
    store = sync.JournalStore(JournalStore(journal, namespace="n"))
    with store:
        with (
            pytest.raises(ZeroDivisionError),
            sync.Conversation(store, "c", format="openai-chat").turn("one"),
        ):
            raise ZeroDivisionError
        assert store.totals().reserved == 1
    assert not journal.left
    asyncio.run(other_worker_goes_on(path))


def test_i18_a_store_that_is_closed_gives_back_what_was_found_still_held(path: Path) -> None:
    """A commit's reply was lost, so it is looked for first; then the storage takes no write until the store closes."""
    lost, refused = Fault(call=1, method="commit", after=True), Fault(call=2, method="commit")
    journal = FaultyJournal(SQLiteJournal(path, blocking=True), [lost, refused])
    with sync.JournalStore(JournalStore(journal, namespace="n")) as store:
        with (
            pytest.raises(DecisionHistoryStorageFailed),
            sync.Conversation(store, "c", format="openai-chat").turn("one") as turn,
        ):
            turn.respond(said("", "call-1"))
        assert store.totals().reserved == 1
    assert not journal.left
    asyncio.run(other_worker_goes_on(path))


def fails(store: JournalStore, key: ConversationKey) -> None:
    """Leave a turn by an error."""

    async def turn() -> None:
        async with Conversation(store, key.id, format="openai-chat").turn("one"):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        drive(turn())


def freed_by_the_next_turn(store: JournalStore, other: JournalStore, key: ConversationKey) -> None:
    fails(store, key)


def freed_by_an_operator(store: JournalStore, other: JournalStore, key: ConversationKey) -> None:
    drive(store.recover(key, worker_stopped=True))


def taken_over_by_another(store: JournalStore, other: JournalStore, key: ConversationKey) -> None:
    drive(other.recover(key, worker_stopped=True))
    drive(Conversation(other, key.id, format="openai-chat").turn("two").__aenter__())
    with pytest.raises(DecisionHistoryBusy):
        drive(Conversation(store, key.id, format="openai-chat").turn("two").__aenter__())


def freed_by_the_close(store: JournalStore, other: JournalStore, key: ConversationKey) -> None:
    drive(store.close())


def lost_by_the_next_turn(store: JournalStore, other: JournalStore, key: ConversationKey) -> None:
    turn = Conversation(store, key.id, format="openai-chat").turn("two")
    drive(turn.__aenter__())
    drive(other.recover(key, worker_stopped=True))
    drive(turn.__aexit__(ZeroDivisionError, ZeroDivisionError(), None))


def given_back_and_written_to(store: JournalStore, other: JournalStore, key: ConversationKey) -> None:
    drive(other.recover(key, worker_stopped=True))
    drive(Conversation(store, key.id, format="openai-chat").append([{"role": "user", "content": "two"}]))


def erased(store: JournalStore, other: JournalStore, key: ConversationKey) -> None:
    drive(other.recover(key, worker_stopped=True))
    drive(store.delete(key))


@pytest.mark.parametrize(
    "how",
    [
        freed_by_the_next_turn,
        freed_by_an_operator,
        freed_by_the_close,
        lost_by_the_next_turn,
        taken_over_by_another,
        given_back_and_written_to,
        erased,
    ],
)
def test_i18_a_store_keeps_nothing_of_what_is_given_back_by_now(
    how: Callable[[JournalStore, JournalStore, ConversationKey], None],
) -> None:
    """However that came about: a store that lives long keeps no turn, and its close asks after none."""
    journal = MemoryJournal()
    faulty = FaultyJournal(journal, [Fault(call=number, method="commit") for number in range(1, 31)])
    store, other = JournalStore(faulty, namespace="n"), JournalStore(journal, namespace="n")
    keys = [store.key(f"c{number}") for number in range(30)]
    for key in keys:
        fails(store, key)
    assert len(store.tokens.holders()) == 30
    for key in keys:
        how(store, other, key)
    gc.collect()
    assert store.tokens.holders() == []


@pytest.mark.parametrize(("seconds", "tried"), [(0.0, 1), (60.0, 5)])
def test_i18_a_store_that_is_closed_waits_no_call_s_time_for_each_turn(
    seconds: float, tried: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its time the first failure ends that: of a server that is silent each takes as long as a call may."""
    monkeypatch.setattr(journals, "FREEING_SECONDS", seconds)
    journal = FaultyJournal(
        SQLiteJournal(path, blocking=True), [Fault(call=number, method="recover") for number in range(1, 6)]
    )
    store = JournalStore(journal, namespace="n")
    turns = [Conversation(store, f"c{number}", format="openai-chat").turn("one") for number in range(5)]
    for turn in turns:
        drive(turn.__aenter__())
    drive(store.close())
    assert journal.calls.count("recover") == tried


def test_d23_i18_a_store_closes_whatever_comes_up_as_a_turn_is_given_back(path: Path) -> None:
    """An error that is none of ours keeps neither the other turns' reservations nor the storage; it is told then."""
    journal = FaultyJournal(
        SQLiteJournal(path, blocking=True), [Fault(call=1, method="recover", error=lambda: LookupError("a host's"))]
    )
    store = JournalStore(journal, namespace="n")
    turns = [Conversation(store, f"c{number}", format="openai-chat").turn("one") for number in range(3)]
    for turn in turns:
        drive(turn.__aenter__())
    with pytest.raises(LookupError, match="a host's"):
        drive(store.close())
    assert journal.left == ()
    with pytest.raises(StoreClosed):
        drive(store.totals())
    drive(store.close())
    with sync.SQLiteStore(path, namespace="n") as other:
        assert other.totals().reserved == 1


@pytest.mark.parametrize("run", [asyncio.run, drive])
def test_i18_a_store_gives_back_what_a_loop_stopped_before(run: Callable[[Any], object], path: Path) -> None:
    """A turn closed in another thread is handed to its loop, which stops: whoever closes the store gives it back."""

    def closed(pieces: AsyncIterator[str]) -> None:
        with pytest.raises(StopIteration):
            pieces.aclose().send(None)  # type: ignore[attr-defined]

    async def stops(store: JournalStore) -> None:
        pieces = asking(store)
        await anext(pieces)
        with ThreadPoolExecutor(1) as thread:
            thread.submit(closed, pieces).result()
        asyncio.get_running_loop().stop()

    store, loop = JournalStore(SQLiteJournal(path, blocking=True), namespace="n"), asyncio.new_event_loop()
    loop.run_until_complete(stops(store))
    loop.close()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run(store.close())
        del store
        gc.collect()
    assert not told
    assert asyncio.run(other_worker_goes_on(path)) == ["two", "answer"]


def test_i18_loops_in_several_threads_close_their_turns(tmp_path: Path) -> None:
    """Each gives back its own, however often the threads change places."""
    tmp_path.chmod(0o700)

    async def opens_and_closes(file: Path) -> None:
        async with SQLiteStore(file, namespace="n") as store:
            for _ in range(10):
                held = [asking(store, f"c{number}") for number in range(20)]
                await asyncio.gather(*(anext(each) for each in held))
                for each in held:
                    await each.aclose()  # type: ignore[attr-defined]

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            files = [tmp_path / f"{number}.sqlite" for number in range(4)]
            assert list(threads.map(lambda file: asyncio.run(opens_and_closes(file)), files)) == [None] * 4
    finally:
        sys.setswitchinterval(before)
    for file in files:
        asyncio.run(other_worker_goes_on(file, "c7"))


def test_i18_cancelled_twice_while_it_reserves_it_holds_nothing() -> None:
    """A second cancellation strikes whoever looks after the first; a network's journal waits there."""

    async def struck(first: int, second: int) -> bool:
        journal = MemoryJournal()
        store = JournalStore(SuspendingJournal(journal), namespace="n")

        async def turn() -> None:
            async with Conversation(store, "c", format="openai-chat").turn("one") as turn:
                await turn.respond(ANSWER)

        task = asyncio.create_task(turn())
        for wait in (first, second):
            for _ in range(wait):
                await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait([task])
        header = await journal.header(store.key("c"))
        assert header is None or not header.token, (first, second)
        return task.cancelled()

    async def everywhere() -> list[bool]:
        return [await struck(first, second) for first in range(8) for second in range(5)]

    assert sum(asyncio.run(everywhere())) > 20


class FileHost:
    """A host's own store that knows nothing of processes: one document in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def transact(self, key: ConversationKey, operation: Callable[[bytes | None], Awaitable[Any]]) -> Any:
        document, result = await operation(self.path.read_bytes() if self.path.exists() else None)
        if document is not None:
            self.path.write_bytes(document)
        return result


def test_i17_a_child_that_closes_its_copy_gives_back_nothing(path: Path) -> None:
    """After a fork the reservations are the parent's, also where the store behind does not look."""
    store = sync.HostStore(FileHost(path), namespace="n")
    talk = sync.Conversation(store, "c", format="openai-chat")
    with talk.turn("one") as turn:
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                store.close()
            os._exit(0)
        os.waitpid(child, 0)
        turn.respond(ANSWER)
    assert [message["content"] for message in talk.window().messages] == ["one", "answer"]
