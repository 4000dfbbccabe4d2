"""
What an object says that was made for an event loop and met none, or the other way round.

Python's own words for a wrong `with` name a protocol and no way out. Classes take these as the methods that they have
not; a type checker is not told, so it goes on to refuse the line.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Literal, NoReturn, Protocol, TypeAlias

from minutebook.errors import BlockingMismatch

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

Colour: TypeAlias = Literal["asynchronous", "blocking"]

_LOOPLESS = ("NoEventLoopError", "AsyncLibraryNotFoundError")
_NO_LOOP = "no running event loop"


def asynchronous_only(self: object, *_: object) -> NoReturn:
    """
    Refuse a plain `with`, as `__enter__` and `__exit__` of an asynchronous class.

    Raises:
        BlockingMismatch: always.
    """
    raise BlockingMismatch(
        f"this {type(self).__name__} is asynchronous: enter it with `async with` and await its methods, or take it "
        "from minutebook.sync"
    )


def blocking_only(self: object, *_: object) -> NoReturn:
    """
    Refuse an `async with`, as `__aenter__` and `__aexit__` of a class of `minutebook.sync`.

    Raises:
        BlockingMismatch: always.
    """
    raise BlockingMismatch(
        f"this {type(self).__name__} is one of minutebook.sync: enter it with a plain `with` and await nothing, or "
        "take it from minutebook"
    )


class _Closes(Protocol):
    async def close(self) -> None: ...


class _ClosesAtOnce(Protocol):
    def close(self) -> None: ...


class AsyncClosing:
    """What an `async with` block closes at its end, whatever it ends with; a plain `with` is told so."""

    if not TYPE_CHECKING:
        __enter__ = __exit__ = asynchronous_only

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self: _Closes, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Closing:
    """What a `with` block closes at its end, whatever it ends with; an `async with` is told so."""

    if not TYPE_CHECKING:
        __aenter__ = __aexit__ = blocking_only

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self: _ClosesAtOnce, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_store_colour(store: object, option: str, *, blocking: bool) -> None:
    """
    Refuse a store of the other colour, be it given as it is or in options.

    A store in RAM suits both when it is one of minutebook, and so does one over a journal of the host's: that has none.

    Raises:
        BlockingMismatch: one of `minutebook.sync` where an event loop runs, or one that needs a loop where none runs.
    """
    colour: Colour | None = getattr(store, "_colour", None)
    if colour is None or (colour == "blocking") is blocking:
        return
    ours, other = ("minutebook.sync", "minutebook") if blocking else ("minutebook", "minutebook.sync")
    why = "nothing runs an event loop for it" if blocking else "it would stop the event loop while it reads and writes"
    raise BlockingMismatch(
        f"{option} has a store of {other}, and this is an object of {ours}: {why}; take the store, and the options "
        f"that hold it, from {ours}"
    )


def check_plain(function: object, what: str) -> None:
    """
    Refuse a coroutine function where no event loop runs what it waits for.

    Raises:
        BlockingMismatch: it is one, or an object that is called like one.
    """
    called = type(function).__call__ if callable(function) else None
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called):
        raise BlockingMismatch(
            f"{what} is an `async def`, and minutebook.sync runs no event loop for it; give a plain function, or use "
            "the names of minutebook with await"
        )


def refuse_loopless(error: BaseException, *, loop_runs: bool = False) -> None:
    """
    Refuse what a call raised because no event loop runs; pass over every other error.

    It is a fault of the program, which whoever wrote that has to see: what a model may react to is another thing. Where
    a loop runs, the one that was missed is one of another thread, and the fault that of what was called.

    Raises:
        BlockingMismatch: `error` is one, or says that there is no event loop.
    """
    if isinstance(error, BlockingMismatch):
        raise error
    named = str(error) == _NO_LOOP or type(error).__name__ in _LOOPLESS
    if named and isinstance(error, RuntimeError) and not loop_runs:
        raise BlockingMismatch(
            "this call waits for an event loop and none runs here: give minutebook.sync plain functions, a store of "
            "minutebook.sync and a blocking client, or use the names of minutebook with await"
        ) from None
