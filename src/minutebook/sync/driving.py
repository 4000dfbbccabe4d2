"""Running what is asynchronous without an event loop: a coroutine with one step, an async iterator as a generator."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from typing import Concatenate, Generic, ParamSpec, TypeVar

from minutebook.model.pause import drive

__all__ = ["Over", "blocking", "drive", "iterate", "plain", "streaming"]

P = ParamSpec("P")
Core = TypeVar("Core")
Core_co = TypeVar("Core_co", covariant=True)
Result = TypeVar("Result")


def iterate(stream: AsyncIterator[Result]) -> Generator[Result, None, None]:
    """Yield what an async iterator yields; closing this closes it."""
    try:
        while True:
            try:
                item = drive(stream.__anext__())
            except StopAsyncIteration:
                return
            yield item
    finally:
        if isinstance(stream, AsyncGenerator):
            drive(stream.aclose())


class Over(Generic[Core_co]):
    """An object that does what `_core`, its asynchronous twin, does; also what a base of that one does."""

    _core: Core_co


def blocking(
    method: Callable[Concatenate[Core, P], Awaitable[Result]],
) -> Callable[Concatenate[Over[Core], P], Result]:
    """Return the blocking twin of a coroutine method."""

    @functools.wraps(method)
    def call(self: Over[Core], /, *args: P.args, **kwargs: P.kwargs) -> Result:
        return drive(method(self._core, *args, **kwargs))  # pyright: ignore[reportPrivateUsage]

    return call


def streaming(
    method: Callable[Concatenate[Core, P], AsyncIterator[Result]],
) -> Callable[Concatenate[Over[Core], P], Generator[Result, None, None]]:
    """Return the blocking twin of a method that streams."""

    @functools.wraps(method)
    def call(self: Over[Core], /, *args: P.args, **kwargs: P.kwargs) -> Generator[Result, None, None]:
        return iterate(method(self._core, *args, **kwargs))  # pyright: ignore[reportPrivateUsage]

    return call


def plain(method: Callable[Concatenate[Core, P], Result]) -> Callable[Concatenate[Over[Core], P], Result]:
    """Return the twin of a method that is no coroutine."""

    @functools.wraps(method)
    def call(self: Over[Core], /, *args: P.args, **kwargs: P.kwargs) -> Result:
        return method(self._core, *args, **kwargs)  # pyright: ignore[reportPrivateUsage]

    return call
