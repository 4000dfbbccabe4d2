"""
Proposals: a provider's decision, made sure of before any of it is acted on.

Providers promise that what they return is well formed. The runtime does not rest on that: a decision that is not stops
the step whole, before the first of its calls, so that no effect follows from half a decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec

from minutebook.errors import AgentDecisionProviderSchemaViolation, InvalidValue
from minutebook.model.bounds import MAX_COUNT
from minutebook.model.codec import JSON, decode, encode, text
from minutebook.model.decisions import CallReference, Decision, Finish, ProposedCall
from minutebook.runtime.references import is_reference

if TYPE_CHECKING:
    from collections.abc import Set


def checked_decision(decision: object, answered: Set[CallReference]) -> Decision:
    """
    Return a decision whose calls share nothing with the provider's objects.

    Raises:
        AgentDecisionProviderSchemaViolation: it is no decision, has both calls and a finish or neither, has arguments
            that are no JSON object, or a reference that it repeats or that is among those `answered`.
    """
    if not isinstance(decision, Decision):
        raise _malformed(f"a {type(decision).__name__} is no decision")
    # Structs do not check what they are made of, so neither field is taken for what its annotation says.
    calls, finish = cast("tuple[object, object]", (decision.calls, decision.finish))
    if not isinstance(calls, tuple) or not isinstance(finish, (Finish, type(None))):
        raise _malformed("its calls or its finish are none")
    names = type(decision.conversation) is str and type(decision.digest) is str
    if not names or not _is_place(decision.exchange) or type(decision.without_messages) is not bool:
        raise _malformed("what it says of its conversation is no place in one")
    checked = tuple(_checked_call(call) for call in cast("tuple[object, ...]", calls))
    if (finish is None) != bool(checked):
        raise _malformed("it has either calls or a finish")
    _check_references(checked, answered)
    return msgspec.structs.replace(decision, calls=checked)


def check_projected(decision: Decision) -> None:
    """
    Refuse a decision of a provider that keeps arguments to itself where it was given `project` (SPEC D27).

    Raises:
        AgentDecisionProviderSchemaViolation: an argument that is no reference.
    """
    if not all(is_reference(value) for call in decision.calls for value in call.arguments.values()):
        raise AgentDecisionProviderSchemaViolation(
            "in opaque_refs mode a provider decides what request.project returned of the calls, and keeps nothing "
            "else of their arguments; this one gave an argument itself",
            provider_error_code="not_projected",
        )


def _checked_call(call: object) -> ProposedCall:
    reference: object = call.reference if isinstance(call, ProposedCall) else ""
    if not isinstance(call, ProposedCall) or not isinstance(reference, (CallReference, type(None))):
        raise _malformed("a call is no proposed call")
    if isinstance(reference, CallReference) and not (_is_place(reference.exchange) and _is_place(reference.position)):
        raise _malformed("the reference of a call is no place in a conversation")
    if type(call.arguments) is not dict:
        raise _malformed("the arguments of a call are no object")
    try:
        text(call.capability, "capability")
        arguments = cast("dict[str, JSON]", decode(encode(call.arguments)))
    except InvalidValue as error:
        raise _malformed(f"a call is no JSON: {error}") from None
    return msgspec.structs.replace(call, arguments=arguments)


def _is_place(value: object) -> bool:
    return value is None or (type(value) is int and 0 <= value <= MAX_COUNT)


def _check_references(calls: tuple[ProposedCall, ...], answered: Set[CallReference]) -> None:
    # One proposal, one observation: a reference that comes again would let a later call stand for an earlier one.
    references = [call.reference for call in calls if call.reference is not None]
    if len(set(references)) < len(references) or not answered.isdisjoint(references):
        raise _malformed("a call has the reference of another one")


def _malformed(fault: str) -> AgentDecisionProviderSchemaViolation:
    return AgentDecisionProviderSchemaViolation(
        f"the provider gave no valid decision: {fault}", provider_error_code="malformed_decision"
    )
