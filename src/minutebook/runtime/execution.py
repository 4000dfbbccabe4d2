"""One call: whether it may be executed, and what comes of it when it is."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from minutebook.errors import InvalidValue
from minutebook.model.codec import decode, encode
from minutebook.model.colours import refuse_loopless
from minutebook.model.shown import type_alone
from minutebook.model.telling import is_own
from minutebook.runtime import observations as observed
from minutebook.runtime.capabilities import Capability, CapabilityFailed, InvalidArguments
from minutebook.runtime.delegation import check_tasks
from minutebook.runtime.observations import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from minutebook.model.decisions import Observation, ProposedCall
    from minutebook.model.telling import Cancelled
    from minutebook.runtime.authority import Denial


_CANCELLATION: Final = "CancelledError"
"""What a cancellation is called; other exceptions that are none of `Exception` are meant for who runs this."""


class Admitted(NamedTuple):
    """A call that may be executed now: the capability, and the arguments as its function takes them."""

    found: Capability[..., Any]
    arguments: dict[str, Any]

    def __repr__(self) -> str:
        return type_alone(self)


class Refused(NamedTuple):
    """Why a call may not be executed."""

    reason: Refusal
    message: str | None

    def __repr__(self) -> str:
        return type_alone(self)


def checked(
    call: ProposedCall, capabilities: Mapping[str, Capability[..., Any]], denied: Denial | None
) -> Admitted | Refused:
    """Return the capability and its arguments, or why the call is refused: it is denied, or does not fit."""
    if denied is not None:
        return Refused(denied, None)
    found = capabilities[call.capability]
    try:
        admitted = Admitted(found, found.convert(call.arguments))
        if found.agent is not None:
            check_tasks(call.arguments)
    except InvalidArguments as error:
        return Refused("invalid_arguments", str(error))
    return admitted


async def executed(
    call: ProposedCall, found: Capability[..., Any], arguments: dict[str, Any], cancelled: Cancelled
) -> Observation:
    """
    Return the observation of a call that is executed here; an exception of the capability is one too.

    So is a cancellation of its own making, as of a task that it waits for: `cancelled` tells that of who waits for it.

    Raises:
        InvalidValue: the capability returned what JSON cannot hold: a fault of the program.
        BlockingMismatch: it waits for an event loop, and none runs; what it did before that is done.
    """
    waited = False
    try:
        value = found.function(**arguments)
        if inspect.isawaitable(value):
            waited = True
            value = await value
    except CapabilityFailed as error:
        return observed.failed(call, "CapabilityFailed", _held(error.message, found))
    except BaseException as error:  # whatever else it is, the model may react to it
        cancellation = type(error).__name__ == _CANCELLATION
        if not (isinstance(error, Exception) or (cancellation and is_own(error, cancelled, waited=waited))):
            raise
        refuse_loopless(error, loop_runs=cancelled() is not None)
        return observed.failed(call, type(error).__name__)
    return observed.executed(call, _held(value, found))


def _held(value: Any, found: Capability[..., Any]) -> Any:
    """Return the runtime's own copy of what a capability gave; that JSON cannot hold it is a fault of the program."""
    try:
        return decode(encode(value))
    except InvalidValue as error:
        raise InvalidValue(f"capability {found.name!r} returned no JSON: {error}", path=error.path) from None
