"""Ctrl-C at every moment of a blocking call to a server: whatever it strikes, the store's connections can be had."""

from __future__ import annotations

import asyncio
import contextlib
import dis
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from servers.postgres import until
from servers.redis import single
from tests.stores import postgres_lab
from tests.stores.redis_lab import address

from minutebook.stores import places as places_module
from minutebook.stores.places import LoopPlaces, Place, Places
from minutebook.stores.redis import RedisRemote
from minutebook.stores.remote_journal import RemoteJournal
from minutebook.testing import drive
from minutebook.testing.conformance.samples import KEY, append, say

CHECKED = ("CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD", "RESUME")
"""The instructions behind which the interpreter looks for signals."""

SHARED = ("stores/places.py", "threading.py", "queue.py")
LINES = {
    "Postgres": ("postgres_lines.py", "postgres_places.py", *SHARED),
    "Redis": ("redis_links.py", "redis_wire.py", "redis_sockets.py", *SHARED),
}
"""Where a call is struck: in all that lends it a connection, opens it, asks and takes it back."""

DRIVER = ("redis/connection.py", "redis/_parsers/socket.py", "redis/_parsers/resp2.py")


def interrupted(at: int, files: tuple[str, ...], call: Callable[[], object]) -> bool:
    """Make a call, with Ctrl-C at the given one of the moments at which it can strike; return whether it came to it."""
    seen = 0

    def trace(frame: Any, event: str, argument: object) -> Any:
        nonlocal seen
        if not frame.f_code.co_filename.endswith(files):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        before = ""

        def step(frame: Any, event: str, argument: object) -> Any:
            nonlocal seen, before
            if event == "opcode":
                struck, before = before in CHECKED, dis.opname[frame.f_code.co_code[frame.f_lasti]]
                seen += struck
                if struck and seen == at:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return step

        return step

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.fixture(params=["Postgres", "Redis"])
def lent(request: pytest.FixtureRequest) -> Iterator[tuple[str, Any]]:
    """A kind of server, and a blocking journal over one that may have a single connection."""
    if request.param == "Postgres":
        journal = postgres_lab.journal(uuid.uuid4().hex, blocking=True, max_connections=1, timeout=5)
        yield request.param, journal
        drive(journal.close())
        return
    with single() as server:
        remote = RedisRemote(address(server.url, max_connections=1), bounded=False, blocking=True)
        journal = RemoteJournal(remote)
        yield request.param, journal
        drive(journal.close())


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # Ctrl-C before its first step
def test_i18_ctrl_c_at_any_moment_takes_no_place_away(lent: tuple[str, Any], figure: Callable[[str], None]) -> None:
    """Wherever it strikes a blocking call, the only connection can be had by whoever handles it, traceback and all."""
    kind, journal = lent
    drive(append(journal, KEY, "one", say("q")))
    handled: list[BaseException] = []

    def call() -> None:
        try:
            drive(journal.header(KEY))
        except KeyboardInterrupt as error:
            handled[:] = [error]
            raise

    at = 1
    while interrupted(at, LINES[kind], call):
        assert drive(journal.header(KEY)) is not None
        at += 1
    assert at > 30
    figure(f"{kind}: Ctrl-C at {at} moments of a blocking call, 0 places lost")


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_i18_ctrl_c_in_a_first_call_and_inside_the_driver_takes_no_place_away(figure: Callable[[str], None]) -> None:
    """
    So it is in the lines of the driver, and where the connection is made first, server looked at and all (I-18, I-19).

    No reply is left behind either: what the next call is told is its own.
    """
    with single() as server:
        setting = RemoteJournal(RedisRemote(address(server.url), bounded=False, blocking=True))
        drive(append(setting, KEY, "one", say("q")))
        at = 1
        while True:
            remote = RedisRemote(address(server.url, max_connections=1), bounded=False, blocking=True)
            journal = RemoteJournal(remote)
            came = interrupted(at, LINES["Redis"] + DRIVER, lambda journal=journal: drive(journal.header(KEY)))
            assert drive(journal.header(KEY)).version == 1
            drive(journal.close())
            if not came:
                break
            at += 1
    assert at > 300
    figure(f"Ctrl-C at {at} moments of a first call, 0 places lost")


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_i18_ctrl_c_while_a_place_is_waited_for_takes_none_away() -> None:
    """One who waits for another's place and gives up by Ctrl-C has taken none, nor does a lock stay (I-18)."""
    places = Places(1)
    at = 1
    while True:
        with holding(places):
            came = interrupted(at, SHARED, lambda: ask(places, 0.002))
        if not came:
            break
        at += 1
    assert at > 5


def ask(places: Places, seconds: float) -> bool:
    """Have a place and give it back; return whether it was there in time."""
    place = Place()
    try:
        with place.call:
            return places.take(place, time.monotonic() + seconds)
    finally:
        places.ring()


@pytest.fixture
def _rung_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits is told that its turn has come, or not in time: it looks by itself too late."""
    monkeypatch.setattr(places_module, "INTERVAL", 60.0)


@contextlib.contextmanager
def holding(places: Places, seconds: float = 0) -> Iterator[None]:
    """Have a place, which has to be there in time."""
    place = Place()
    with place.call:
        assert places.take(place, time.monotonic() + seconds)
        yield
    places.ring()


@pytest.mark.usefixtures("_rung_alone")
def test_b2_places_are_as_many_as_were_given_and_one_that_is_free_is_had_at_once() -> None:
    """No more than there are, without those that are kept; whoever waits is told, and not at its deadline (B2)."""
    kept = 1
    places = Places(3, lambda: kept)
    got: list[bool] = []
    with holding(places):
        with holding(places):
            assert not ask(places, 0.01)
            waiting = threading.Thread(target=lambda: got.append(ask(places, 30)))
            waiting.start()
        waiting.join(10)
        assert not waiting.is_alive()
        kept = 2
        assert not ask(places, 0)
        kept = 4
        assert not ask(places, 0)
    assert got == [True]
    kept = 0
    with holding(places), holding(places):
        assert ask(places, 0)


@pytest.mark.usefixtures("_rung_alone")
def test_b2_i18_threads_have_places_in_the_order_in_which_they_asked() -> None:
    """Whoever gives back and asks again is behind those that wait, and one that Ctrl-C took away is in nobody's way."""
    places = Places(1)
    order: list[int] = []
    gone = Place()

    def waiting(number: int) -> None:
        with holding(places, 30):
            order.append(number)

    def struck() -> None:
        with gone.call:
            places.take(gone, 0)
            raise KeyboardInterrupt

    threads = [threading.Thread(target=waiting, args=(number,)) for number in range(8)]
    with holding(places):
        with pytest.raises(KeyboardInterrupt):
            struck()
        for number, thread in enumerate(threads):
            thread.start()
            until(lambda: sum(each.call.locked() for each in places._line) == number + 2, "it waits")  # noqa: B023
    waiting(len(threads))
    for thread in threads:
        thread.join()
    assert order == list(range(len(threads) + 1))


@pytest.mark.usefixtures("_rung_alone")
def test_b2_tasks_have_places_in_the_order_in_which_they_asked() -> None:
    """So it is for an event loop, with one of those that wait cancelled (B2)."""
    order: list[int] = []

    async def story() -> None:
        places = LoopPlaces(1, lambda: 0)

        async def waiting(number: int) -> None:
            await places.take()
            order.append(number)
            await asyncio.sleep(0)
            places.give()

        await places.take()
        tasks = [asyncio.create_task(waiting(number)) for number in range(6)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        tasks[3].cancel()
        places.give()
        await waiting(6)
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(asyncio.wait_for(story(), 10))
    assert order == [1, 2, 4, 5, 6]


def test_i18_control_a_semaphore_that_is_struck_loses_a_place() -> None:
    """The harness finds what is planted: a place that is taken and not given back (I-18)."""
    places = threading.BoundedSemaphore(1)

    def call() -> None:
        places.acquire(timeout=1)
        try:
            pass
        finally:
            places.release()

    lost = 0
    for at in range(1, 60):
        if interrupted(at, ("threading.py",), call):
            lost += places._value == 0
            places = threading.BoundedSemaphore(1)
    assert lost
