"""
What of a call that failed is known: that nothing was written, so nothing is looked for and nothing is said to be held;
or that nobody can tell (I-8, I-18, I-21).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.stores import postgres_lab, test_redis
from tests.stores.labs import SERVERS, chat, open_journal, said

from minutebook.errors import (
    DecisionHistoryRetentionExceeded,
    DecisionHistorySchemaUnsupported,
    DecisionHistoryStorageFailed,
    DecisionHistoryStorageLocked,
    DecisionHistoryStorageUnsafe,
    MinutebookError,
)
from minutebook.model.keys import ConversationKey
from minutebook.reserving import may_be_written
from minutebook.testing import Fault, FaultyJournal, drive
from minutebook.testing.conformance.samples import append, say

UNHEARD = lambda: DecisionHistoryStorageFailed("the connection broke; who knows")  # noqa: E731
UNSENT: dict[str, Callable[[], MinutebookError]] = {
    "a lock was waited for": lambda: DecisionHistoryStorageLocked("another program; nothing was written"),
    "no connection": lambda: DecisionHistoryStorageFailed("no connection; nothing was sent", sent=False),
    "an unfit server": lambda: DecisionHistoryStorageUnsafe("the server evicts", problem="evicting"),
    "another's tables": lambda: DecisionHistorySchemaUnsupported("the schema is not ours; nothing was changed"),
}


def conversation_with(*plan: Fault) -> tuple[Any, FaultyJournal]:
    faulty = FaultyJournal(open_journal("RAM", None), plan)  # type: ignore[arg-type]
    return chat(faulty), faulty


def looks_after(error: Callable[[], BaseException], method: str) -> list[str]:
    """Return which reading calls follow on a `reserve` or a `commit` that ended in an error, and was made again."""
    conversation, faulty = conversation_with(Fault(call=1, method=method, error=error))

    async def story() -> None:
        with contextlib.suppress(MinutebookError):
            async with conversation.turn("asks") as turn:
                await turn.window()
                with contextlib.suppress(MinutebookError):
                    await turn.respond(said("", "call-1"))
                (call,) = await turn.respond(said("", "call-1"))
                await turn.result(call, "one")
                await turn.respond(said("answer"))

    drive(story())
    assert faulty.left == ()
    return [each for each in faulty.calls if each in ("header", "receipt")]


@pytest.mark.parametrize("method", ["reserve", "commit"])
@pytest.mark.parametrize("error", UNSENT.values(), ids=list(UNSENT))
def test_i18_what_was_not_sent_is_not_looked_for(error: Callable[[], BaseException], method: str) -> None:
    """I-18: to ask would wait for as long again, or be refused again, for what cannot be there."""
    assert not may_be_written(error())
    assert looks_after(error, method) == []


@pytest.mark.parametrize(("method", "looks"), [("reserve", ["header"]), ("commit", ["receipt"])])
def test_i18_control_what_may_be_written_is_looked_for(method: str, looks: list[str]) -> None:
    """Control: the same harness sees the look where nobody knows."""
    assert may_be_written(UNHEARD())
    assert looks_after(UNHEARD, method) == looks


def test_i18_a_refusal_wrote_nothing_and_whatever_else_cuts_a_call_may_have() -> None:
    """I-18: what a store refuses is told by it; a cancellation and a driver's own error tell nothing."""
    assert not may_be_written(DecisionHistoryRetentionExceeded("full"))
    assert may_be_written(asyncio.CancelledError())
    assert may_be_written(KeyboardInterrupt())
    assert may_be_written(OSError())


@pytest.fixture
def refusing() -> Iterator[int]:
    """A port at which nothing listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def unreachable(kind: str, port: int, *, blocking: bool) -> Any:
    """A journal of a server that is not at its port."""
    if kind.startswith("Postgres"):
        url = f"postgresql://nobody@127.0.0.1:{port}/nothing"
        return postgres_lab.journal("unsent", url=url, blocking=blocking, timeout=0.6)
    scheme = "redis+cluster" if "cluster" in kind else "redis"
    return test_redis.journal(f"{scheme}://127.0.0.1:{port}", blocking=blocking, timeout=0.6)


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "asynchronous"])
@pytest.mark.parametrize("kind", SERVERS)
def test_i21_every_server_says_alike_that_nothing_was_sent(kind: str, blocking: bool, refusing: int) -> None:
    """I-21: a fact of the error, and not a matter of its words."""
    journal = unreachable(kind, refusing, blocking=blocking)

    async def story() -> None:
        key = ConversationKey("n", "c")
        for call in (lambda: journal.header(key), lambda: append(journal, key, "one", say("x"))):
            with pytest.raises(DecisionHistoryStorageFailed) as failed:
                await call()
            assert (failed.value.sent, bool(failed.value.reason)) == (False, True)
            assert not may_be_written(failed.value)
        await journal.close()

    drive(story()) if blocking else asyncio.run(story())


def in_a_circle() -> BaseException:
    """A failure with another for its cause, which came up while it was handled."""
    first, second = ssl.SSLCertVerificationError("the provider's"), OSError("tried again")
    first.__cause__, second.__context__ = second, first
    return first


def tried_again(error: BaseException) -> Iterator[str]:
    """What an application does while it handles a failure that others handle too."""
    try:
        raise error
    except OSError:
        yield "once more"
        yield "gave up"


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "asynchronous"])
@pytest.mark.parametrize("kind", SERVERS)
def test_i05_what_a_caller_was_handling_is_no_reason_and_goes_on(kind: str, blocking: bool, refusing: int) -> None:
    """I-5: of a failure of its own a caller is told nothing, and what it does about it meanwhile is left alone."""
    journal, handled = unreachable(kind, refusing, blocking=blocking), in_a_circle()

    async def story() -> None:
        other = tried_again(handled)
        try:
            raise handled
        except OSError:
            assert next(other) == "once more"
            with pytest.raises(DecisionHistoryStorageFailed, match="nothing listens there") as failed:
                await journal.header(ConversationKey("n", "c"))
        assert "certificate" not in f"{failed.value} {failed.value.reason}"
        assert list(other) == ["gave up"]
        assert handled.__cause__ is not None
        await journal.close()

    drive(story()) if blocking else asyncio.run(story())


def notes_on(*plan: Fault) -> list[str]:
    """Return the notes on the error of a turn that fails as planned."""
    failing, faulty = conversation_with(*plan)

    async def story() -> None:
        async with failing.turn("asks") as turn:
            await turn.respond(said("answer"))
            raise ZeroDivisionError

    with pytest.raises((ZeroDivisionError, DecisionHistoryStorageFailed)) as failed:
        drive(story())
    assert faulty.left == ()
    return getattr(failed.value, "__notes__", [])


@pytest.mark.parametrize("after", [False, True], ids=["not taken", "taken"])
def test_d22_nothing_is_said_to_be_held_where_nobody_knows_that_it_was_taken(after: bool) -> None:
    """D22: neither the reservation nor the look was answered; whoever reads it looks whether it stays busy."""
    (note,) = notes_on(
        Fault(call=1, method="reserve", after=after, error=UNHEARD), Fault(call=1, method="header", error=UNHEARD)
    )
    assert "could not be found out (DecisionHistoryStorageFailed)" in note
    assert "given back" not in note


def test_d22_a_reservation_that_could_not_be_given_back_is_said_to_be_held() -> None:
    """D22: it was taken, and the write that was to give it back failed."""
    (note,) = notes_on(Fault(call=1, method="commit", error=UNHEARD))
    assert "could not be given back (DecisionHistoryStorageFailed); recover" in note
