"""
Observations as the runtime makes them: one for each proposed call, executed or refused (SPEC D26).

An error's value has one of three shapes. `{"error": kind}` means that the operation was executed and failed,
`{"refused": reason}` that it never was, and `{"interrupted": "outcome unknown"}` that nobody knows; the first two may
have a `message` for the model. A run that goes on later tells from them what was used.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from minutebook.errors import InvalidOption
from minutebook.model.bounds import check_listed
from minutebook.model.codec import encode
from minutebook.model.decisions import Observation
from minutebook.runtime.authority import Denial
from minutebook.runtime.budgets import Used

if TYPE_CHECKING:
    from collections.abc import Sequence

    from minutebook.model.codec import JSON
    from minutebook.model.decisions import ProposedCall

ABANDONED_BYTES: Final = 4096
"""UTF-8 bytes of JSON that the outcome of a call may have to be told after its task was given up."""

Refusal: TypeAlias = Denial | Literal["invalid_arguments", "invalid_reference", "run_stopped", "denied"]
"""Why a proposed call was not executed."""


def executed(call: ProposedCall, value: JSON) -> Observation:
    """Return what a call came to."""
    return _observation(call, value, error=False)


def failed(call: ProposedCall, kind: str, message: str | None = None) -> Observation:
    """Return the observation of a call that was executed and failed."""
    return _observation(call, _told("error", kind, message), error=True)


def refused(call: ProposedCall, reason: Refusal, message: str | None = None) -> Observation:
    """Return the observation of a call that was not executed."""
    return _observation(call, _told("refused", reason, message), error=True)


def interrupted(call: ProposedCall) -> Observation:
    """
    Return the observation of a call whose result was lost, as by a kill: reported, never repeated (case O-33).

    Nobody can tell whether the operation took effect, so it is neither a success nor "not run", and the record alone is
    no ground to execute it (SPEC D2, D3). The model and the operator see that the outcome is unknown, and find out with
    what they may. It counts against the budgets as an execution. Give it with `Runtime.run(observations=...)`.
    """
    return _observation(call, {"interrupted": "outcome unknown"}, error=True)


def _told(shape: str, what: str, message: str | None) -> dict[str, JSON]:
    return {shape: what} if message is None else {shape: what, "message": message}


def _observation(call: ProposedCall, value: JSON, *, error: bool) -> Observation:
    return Observation(
        capability=call.capability, arguments=call.arguments, value=value, error=error, reference=call.reference
    )


def shortened(value: JSON, most: int = ABANDONED_BYTES) -> JSON:
    """
    Return what the next task's model is told of a call whose task was given up: what it came to, if that is short.

    A value of more than `most` bytes may be just what did not fit; that the call was executed is what has to be known.
    """
    size = len(encode(value))
    return value if size <= most else {"abandoned": f"executed; {size:,} bytes left out"}


def was_executed(observation: Observation) -> bool:
    """Return whether the operation was executed, well or badly, or may have been."""
    return not (observation.error and isinstance(observation.value, dict) and "refused" in observation.value)


def check_earlier(observations: object) -> tuple[Observation, ...]:
    """
    Return the observations that an invocation goes on with.

    Raises:
        InvalidOption: no list or tuple, something else is in it, or two of them answer one proposal.
        InvalidValue: one holds what JSON cannot hold exactly.
    """
    earlier: list[Observation] = []
    for at, each in enumerate(check_listed(observations, "observations")):
        if type(each) is not Observation:
            raise InvalidOption(f"observations[{at}] is a {type(each).__name__}", option="observations")
        earlier.append(each)
        encode({"capability": each.capability, "arguments": each.arguments, "value": each.value})
    references = [each.reference for each in earlier if each.reference is not None]
    if len(set(references)) < len(references):
        raise InvalidOption("two observations answer one proposed call", option="observations")
    return tuple(earlier)


def used_by(observations: Sequence[Observation]) -> Used:
    """
    Return what led to these observations, never less than what was really used.

    Proposals of one exchange came from one decision. Where no history gave references each observation is counted as
    a decision of its own, so that going on later never gains any.
    """
    exchanges = {each.reference.exchange for each in observations if each.reference is not None}
    alone = sum(each.reference is None for each in observations)
    calls = Counter(each.capability for each in observations if was_executed(each))
    return Used(decisions=len(exchanges) + alone, calls=calls)
