"""A decision provider without a model: it answers by a script, and keeps what it was asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from minutebook.errors import InvalidOption

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Self

    from minutebook.model.decisions import Decision, DecisionRequest

__all__ = ["ScriptedProvider"]


class ScriptedProvider:
    """
    Answers each request with the next line of its script; a line that is an exception is raised.

    `requests` holds every request in order, those that were answered by an exception included. In `opaque_refs` mode it
    decides references, as that asks of every provider; the script gives the values.
    """

    def __init__(self, script: Iterable[Decision | BaseException]) -> None:
        """Take the answers in order."""
        lines = list(script)
        self.requests: list[DecisionRequest] = []
        self._answer: Callable[[DecisionRequest], Decision | BaseException] = lambda _: self._next(lines)

    @classmethod
    def answering(cls, answer: Callable[[DecisionRequest], Decision | BaseException]) -> Self:
        """Return a provider that asks a function of the request for each answer."""
        provider = cls(())
        provider._answer = answer
        return provider

    async def decide(self, request: DecisionRequest) -> Decision:
        """
        Return the script's next decision.

        Raises:
            InvalidOption: the script has ended; the test asked for more decisions than it wrote.
        """
        self.requests.append(request)
        answer = self._answer(request)
        if isinstance(answer, BaseException):
            raise answer
        if request.project is None or not answer.calls:
            return answer
        return msgspec.structs.replace(answer, calls=await request.project(answer.calls))

    def _next(self, lines: list[Decision | BaseException]) -> Decision | BaseException:
        if len(self.requests) > len(lines):
            raise InvalidOption(f"the script has {len(lines)} decisions and was asked for one more", option="script")
        return lines[len(self.requests) - 1]
