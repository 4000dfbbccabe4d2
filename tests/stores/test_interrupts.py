"""Ctrl-C at every moment of a blocking call to a server: whatever it strikes, the store's connections can be had."""

from __future__ import annotations

import dis
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from servers.redis import single
from tests.stores import postgres_lab
from tests.stores.redis_lab import address

from minutebook.stores.places import Places
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
    """Wherever it strikes a blocking call, waiting ones included, the only connection can be had again (I-18)."""
    kind, journal = lent
    drive(append(journal, KEY, "one", say("q")))
    at = 1
    while interrupted(at, LINES[kind], lambda: drive(journal.header(KEY))):
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
        held = places.take(0)
        assert held is not None

        def wait() -> None:
            assert places.take(time.monotonic() + 0.002) is None

        came = interrupted(at, SHARED, wait)
        del held
        places.ring()
        if not came:
            break
        at += 1
    assert at > 5


def test_b2_places_are_as_many_as_were_given_and_one_that_is_free_is_had_at_once() -> None:
    """No more than there are; whoever waits is told when one comes back, and not at its deadline (B2)."""
    places = Places(2)
    held = [places.take(0), places.take(0)]
    assert None not in held
    assert places.take(time.monotonic() + 0.01) is None
    got: list[object] = []
    waiting = threading.Thread(target=lambda: got.append(places.take(time.monotonic() + 30)))
    waiting.start()
    held.pop()
    places.ring()
    waiting.join(10)
    assert not waiting.is_alive()
    assert got[0] is not None
    assert places.take(0) is None


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
