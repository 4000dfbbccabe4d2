"""One step of a decision, as pure functions: what goes into its request, and what its response is recorded as."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec

from minutebook.errors import InvalidMessage, InvalidOption, InvalidValue, PairingViolation
from minutebook.model import codec
from minutebook.model.decisions import CallReference, CapabilitySpec, Decision, DecisionRequest, Observation
from minutebook.model.entries import Draft, payload_digest
from minutebook.model.schemas import checked_schema
from minutebook.providers.decision import (
    Api,
    Ask,
    Diagnosis,
    Fields,
    Interface,
    is_object,
    reported,
    text_at,
    token_count,
    unavailable,
    violation,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from minutebook.model.codec import JSON
    from minutebook.model.record import OpenExchange

# --- what is asked ---


def checked_request(request: DecisionRequest) -> DecisionRequest:
    """
    Return a request of which every rule is enforced on what the model answers, before anything is sent.

    Its schemas are copies: nobody can change one while the answer is on its way.

    Raises:
        InvalidOption: two capabilities of one name, shown ones that are not the capabilities and some that are
            withheld, parameters that are no object schema, a schema with a keyword that is not enforced here, or a
            `check_output` that cannot be called.
    """
    names = [*(spec.name for spec in request.capabilities), *request.withheld]
    if len(set(names)) < len(names):
        raise InvalidOption("two capabilities have the same name", option="capabilities")
    offered = tuple(spec for spec in request.shown if spec.name not in request.withheld)
    once = len({spec.name for spec in request.shown}) == len(request.shown)
    if request.shown and not (once and offered == request.capabilities):
        raise InvalidOption("what is shown is the capabilities, and each withheld one at most once", option="shown")
    if request.check_output is not None and not callable(request.check_output):
        raise InvalidOption("check_output is a function of the output, or None", option="check_output")
    return msgspec.structs.replace(
        request,
        capabilities=tuple(map(_checked_spec, request.capabilities)),
        shown=tuple(map(_checked_spec, request.shown)),
        output=checked_schema(request.output),
    )


def _checked_spec(spec: CapabilitySpec) -> CapabilitySpec:
    parameters = checked_schema(spec.parameters)
    if not is_object(parameters):
        raise InvalidOption("a capability's parameters are a schema of type object", option="capabilities")
    return msgspec.structs.replace(spec, parameters=parameters)


def answers(
    waiting: Sequence[OpenExchange], observations: Iterable[Observation], interface: Interface
) -> tuple[Draft, ...]:
    """
    Return the results for the exchange that waits, in call order; observations of earlier exchanges are recorded.

    Raises:
        PairingViolation: a waiting call without an observation, or one that does not belong to its call.
    """
    known = list(observations)
    for exchange in waiting:
        found = _by_position(exchange, known)
        missing = [position for position in exchange.waiting if position not in found]
        if missing:
            raise PairingViolation(
                f"{len(missing)} call(s) of the exchange at seq {exchange.exchange} have no observation: {missing}; "
                "a decision needs the outcome of every call before it",
                exchange=exchange.exchange,
                waiting=tuple(missing),
            )
    return results(waiting, known, interface)


def results(
    waiting: Sequence[OpenExchange], observations: Sequence[Observation], interface: Interface
) -> tuple[Draft, ...]:
    """
    Return the results that observations are for calls that wait, in call order, each in its own exchange.

    Raises:
        PairingViolation: one does not belong to its call.
    """
    drafts: list[Draft] = []
    for exchange in waiting:
        for position, observation in sorted(_by_position(exchange, observations).items()):
            draft = interface.result(position, exchange.calls[position], observation)
            drafts.append(msgspec.structs.replace(draft, exchange=exchange.exchange))
    return tuple(drafts)


def stopped(
    waiting: Sequence[OpenExchange], observations: Sequence[Observation], *, received: bool = False
) -> tuple[Observation, ...]:
    """
    Return the observations of calls that wait, whose task is over, with one of each call that has none.

    Such a call was not executed, unless it may have been `received` and what came of it is known no more.
    """
    known = {each.reference for each in observations}
    places = [(exchange, position) for exchange in waiting for position in exchange.waiting]
    references = [CallReference(exchange.exchange, position) for exchange, position in places]
    refused = tuple(
        Observation(
            capability=exchange.calls[position].name,
            arguments={},
            value={"interrupted": "outcome unknown"} if received else {"refused": "run_stopped"},
            error=True,
            reference=reference,
        )
        for (exchange, position), reference in zip(places, references, strict=True)
        if reference not in known
    )
    return (*(each for each in observations if each.reference in references), *refused)


def _by_position(exchange: OpenExchange, observations: Iterable[Observation]) -> dict[int, Observation]:
    found: dict[int, Observation] = {}
    for observation in observations:
        reference = observation.reference
        if reference is None or reference.exchange != exchange.exchange:
            continue
        place = reference.position
        if place in found or place not in exchange.waiting or exchange.calls[place].name != observation.capability:
            raise PairingViolation(
                f"an observation does not answer the call at position {place} of the exchange at seq "
                f"{exchange.exchange}: given twice, not waiting, or of another capability",
                exchange=exchange.exchange,
                call=place,
            )
        found[place] = observation
    return found


def prelude(interface: Interface, request: DecisionRequest) -> str:
    """Return a digest of what a request says before its messages; empty where no reasoning is bound to it."""
    if not interface.wire.binds:
        return ""
    tools: list[JSON] = [[spec.name, spec.description, spec.parameters] for spec in interface.tools(request)]
    return payload_digest(codec.encode([interface.instructions(request), tools]))[:8].hex()


def task_with_observations(request: DecisionRequest) -> str:
    """Return the task with the real observations as data: all that a provider without a history is told."""
    if not request.observations:
        return request.task
    done: list[JSON] = [
        {"capability": seen.capability, "arguments": seen.arguments, "error" if seen.error else "result": seen.value}
        for seen in request.observations
    ]
    return f"{request.task}\n\nDone so far, oldest first: {codec.encode(done).decode()}"


def merged(api: Api, ask: Ask, extra: Mapping[str, bytes]) -> Fields:
    """
    Return the fields of a request with the caller's; in one that is shared, the members of both.

    What speaks of tools goes along where one may be called: a server refuses a choice among none.
    """
    fields = api.fields(ask)
    if ask.idle or not ask.tools:
        extra = {name: value for name, value in extra.items() if name not in api.of_tools}
    both = {**fields, **extra}
    for name in api.shared.keys() & fields.keys() & extra.keys():
        ours, theirs = codec.decode(fields[name]), codec.decode(extra[name])
        both[name] = codec.encode({**cast("dict[str, JSON]", theirs), **cast("dict[str, JSON]", ours)})
    return both


# --- what came ---


def opened(api: Api, payload: bytes) -> dict[str, JSON]:
    """
    Return a completed response's body.

    Raises:
        AgentDecisionProviderUnavailable: no JSON object, or a provider failure that it reports.
        AgentDecisionProviderSchemaViolation: a response that was refused, cut or filtered.
    """
    try:
        body = codec.decode(payload)
    except InvalidValue:
        body = None
    if not isinstance(body, dict):
        raise unavailable("not_json", 200)
    error = api.error(body)
    if error is not None:
        raise reported(api.code, error, "error_body")
    api.check(body)
    return body


def read(api: Api, interface: Interface, request: DecisionRequest, payload: bytes) -> tuple[Draft, Decision]:
    """
    Return what a response's body is recorded as, and the decision in it; its calls have no reference yet.

    Raises:
        AgentDecisionProviderUnavailable: no JSON object, or a provider failure that it reports.
        AgentDecisionProviderSchemaViolation: the body holds no valid typed decision.
    """
    body = opened(api, payload)
    draft, decision = read_message(interface, request, payload)
    return draft, msgspec.structs.replace(decision, billed_tokens=token_count(api.billed(body)))


def read_message(interface: Interface, request: DecisionRequest, payload: bytes) -> tuple[Draft, Decision]:
    """
    Return a message's draft and the decision in it, without asking what an API says around it.

    Raises:
        AgentDecisionProviderSchemaViolation: it holds no valid typed decision.
    """
    try:
        draft = interface.wire.response(payload)
    except InvalidMessage:
        raise violation(Diagnosis.MALFORMED) from None
    if not draft.messages:
        raise violation(Diagnosis.NO_TEXT)
    return draft, interface.read(request, draft)


def withheld(api: Api, payload: bytes) -> int:
    """Return how many reasoning blocks or items a response says that its provider withheld from the model."""
    if not api.withheld or b'"input_transformations"' not in payload:
        return 0
    body = codec.decode(payload)
    told = body.get("input_transformations") if isinstance(body, dict) else None
    return sum(text_at(each, "type") == api.withheld for each in told) if isinstance(told, list) else 0
