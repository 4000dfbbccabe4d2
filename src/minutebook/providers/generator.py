"""
A generator of the host's own in the place of a provider's API: a model in this process, or another library's client.

It gives one typed object and nothing around it. So an assistant's message with the object's JSON is recorded, and no
id, usage or other metadata that nobody told (SPEC D26).
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, cast

from minutebook.errors import (
    AgentDecisionProviderUnavailable,
    BlockingMismatch,
    CallerError,
    InvalidOption,
    InvalidValue,
    ProviderError,
    raised_at,
)
from minutebook.model import codec
from minutebook.model.colours import refuse_loopless
from minutebook.providers.decision import Diagnosis, violation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from minutebook.model.codec import JSON
    from minutebook.ports import Generate
    from minutebook.providers.decision import Api, Ask


class Generator:
    """
    What makes a payload of a request that never leaves: the host's function, called as the structured interface asks.

    Raises:
        InvalidOption: it is no function.
        BlockingMismatch: a coroutine function where `blocking`.
    """

    def __init__(self, generate: Generate, api: Api, *, blocking: bool) -> None:
        if not callable(generate):  # pyright: ignore[reportUnnecessaryComparison] - callers without types
            raise InvalidOption("generate is called with messages and a schema; it must be callable", option="generate")
        if blocking and inspect.iscoroutinefunction(generate):
            raise _mismatch()
        self._generate = generate
        self._api = api
        self._blocking = blocking

    async def __call__(self, ask: Ask) -> bytes:
        """
        Return the payload of an assistant's message that says what was generated.

        Raises:
            AgentDecisionProviderUnavailable: the function raised; its error is left out, since it may quote content.
            AgentDecisionProviderSchemaViolation: it returned what JSON cannot hold.
            BlockingMismatch: it returned an awaitable to a blocking provider.
        """
        value = await self._value(_messages(ask), ask.schema)
        try:
            text = codec.encode(value).decode()
        except InvalidValue:
            raise violation(Diagnosis.MALFORMED) from None
        return self._api.said(text)

    async def _value(self, messages: list[dict[str, JSON]], schema: dict[str, JSON]) -> object:
        failure: AgentDecisionProviderUnavailable
        try:
            returned = self._generate(messages, schema)
            if not inspect.isawaitable(returned):
                return returned
            if not self._blocking:
                return await cast("Awaitable[object]", returned)
            if inspect.iscoroutine(returned):
                returned.close()
            raise _mismatch()
        except (ProviderError, CallerError):  # said on purpose; all else, as of a store of the host's, is its own
            raise
        except Exception as error:
            refuse_loopless(error)
            failure = AgentDecisionProviderUnavailable(
                f"generate raised {raised_at(error)}", provider_error_code="generator_failed", status=None
            )
        # Raised out here and without its cause: whatever it is, it may quote the messages it was given (promise I-37).
        raise failure


def check_alone(generate: object, decision_interface: str, others: Mapping[str, bool]) -> None:
    """
    Refuse what a generator makes void: the native interface, and every option of a request that leaves.

    Raises:
        InvalidOption: one of them is given.
    """
    if generate is None:
        return
    if decision_interface != "structured":
        raise InvalidOption("generate needs decision_interface='structured'", option="decision_interface")
    for name, given in others.items():
        if given:
            raise InvalidOption(f"{name} is of a request to a provider; with generate none leaves", option=name)


def _messages(ask: Ask) -> list[dict[str, JSON]]:
    """Return the messages as a generator is given them, its own to change."""
    instructions: list[dict[str, JSON]] = [{"role": "system", "content": ask.instructions}] if ask.instructions else []
    return instructions + cast("list[dict[str, JSON]]", codec.decode(ask.messages))


def _mismatch() -> BlockingMismatch:
    return BlockingMismatch(
        "a blocking provider was given an asynchronous generate; give a plain function, or take the provider from "
        "minutebook"
    )
