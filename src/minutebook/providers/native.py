"""
The native interface: capabilities are the provider's tools, and a text without a call is the output.

Beside it stands what an answer may state under either interface: a call that was offered, with arguments that match its
schema, or an output that matches the program's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minutebook.errors import InvalidValue
from minutebook.model import codec
from minutebook.model.decisions import CapabilitySpec, Decision, DecisionRequest, Finish, Observation, ProposedCall
from minutebook.model.entries import Call, Draft
from minutebook.model.rules import fault_in
from minutebook.providers.decision import Api, Diagnosis, in_object, is_object, violation

if TYPE_CHECKING:
    from minutebook.model.codec import JSON
    from minutebook.ports import Wire


class Native:
    """Provider tool calling: capabilities are tools, and a text without a call is the output."""

    name = "native"

    def __init__(self, wire: Wire, api: Api) -> None:
        self.wire = wire
        self._api = api

    def instructions(self, request: DecisionRequest) -> str:
        """Return the instructions as they are; the tools describe themselves."""
        return request.instructions

    def tools(self, request: DecisionRequest) -> tuple[CapabilitySpec, ...]:
        """
        Return the request's capabilities, in the program's order.

        Where the API binds reasoning to the tools, with those that are used up in their places: so the tools stay the
        same as long as a task lasts, and what is cached up to them. A call of one is read as any withheld one's.
        """
        return (request.shown if self._api.shows_spent else ()) or request.capabilities

    def schema(self, request: DecisionRequest) -> dict[str, JSON]:
        """Return the output's schema, as `{"output": …}` when its root is no object."""
        return request.output if is_object(request.output) else in_object("output", request.output)

    def result(self, position: int, call: Call, observation: Observation) -> Draft:
        """Return the tool's message: a text as it is, any other value as JSON, an error as `{"error": value}`."""
        value = observation.value
        if observation.error:
            value = {"error": value}
        # Always a text: a value that looks like a message or a content part of the provider's must not become one.
        text = value if isinstance(value, str) else codec.encode(value).decode()
        return self.wire.result(position, call, text, error=observation.error)

    def read(self, request: DecisionRequest, draft: Draft) -> Decision:
        """Return the calls, or the finish that the text states."""
        fragment = draft.payload[draft.start : draft.stop]
        calls = self.wire.calls(fragment)
        if calls:
            return Decision(calls=tuple(_proposed(request, call, arguments) for call, arguments in calls))
        value = parsed(self._api.text(fragment))
        if not is_object(request.output):
            value = value.get("output") if isinstance(value, dict) and value.keys() == {"output"} else _no_output()
        return finished(request, value)

    def restated(self, draft: Draft, decision: Decision) -> Draft:
        """Return the calls with the decision's arguments, or the output; without text, reasoning and signatures."""
        fragment = draft.payload[draft.start : draft.stop]
        if not decision.calls:
            return self.wire.response(self._api.said(output_text(self._api, fragment)))
        named = [call for call, _ in self.wire.calls(fragment)]
        arguments = [call.arguments for call in decision.calls]
        return self.wire.response(self._api.called(list(zip(named, arguments, strict=True))))


def output_text(api: Api, fragment: bytes) -> str:
    """Return the JSON value that a response's text states, written anew."""
    return codec.encode(parsed(api.text(fragment))).decode()


def _no_output() -> JSON:
    raise violation(Diagnosis.OUTPUT_MISMATCH, '{"output": …}')


def _proposed(request: DecisionRequest, call: Call, arguments: JSON) -> ProposedCall:
    return proposed(request, call.name, read_arguments(arguments))


def read_arguments(given: JSON) -> JSON:
    """
    Return a call's arguments, which a provider writes as JSON or as a text of it; `{}` where it wrote none.

    Some servers leave them out of a call without arguments, or write null or a blank text there (case O-12).

    Raises:
        AgentDecisionProviderSchemaViolation: a text that is no JSON.
    """
    if isinstance(given, str):
        try:
            given = codec.decode(given.encode()) if given.strip() else None
        except (InvalidValue, UnicodeEncodeError):
            raise violation(Diagnosis.ARGUMENTS_NOT_JSON) from None
    return {} if given is None else given


def proposed(request: DecisionRequest, name: str, arguments: JSON) -> ProposedCall:
    """
    Return the proposal to call `name`: one that was offered, with arguments that match its schema, or one withheld.

    A withheld call is no fault of the answer: the runtime refuses it, and tells the model why (SPEC D28).

    Raises:
        AgentDecisionProviderSchemaViolation: the program has no such capability, or the arguments do not fit.
    """
    spec = next((spec for spec in request.capabilities if spec.name == name), None)
    if spec is None and name not in request.withheld:
        raise violation(Diagnosis.UNKNOWN_ACTION)
    if not isinstance(arguments, dict) or (spec and fault_in(arguments, spec.parameters)):
        raise violation(Diagnosis.ARGUMENTS_MISMATCH)
    return ProposedCall(capability=name, arguments=arguments)


def finished(request: DecisionRequest, value: JSON) -> Decision:
    """
    Return the finish with `value`, once that matches the request's output schema.

    Raises:
        AgentDecisionProviderSchemaViolation: it does not, or is refused by what else the program makes of it.
    """
    if fault_in(value, request.output):
        raise violation(Diagnosis.OUTPUT_MISMATCH)
    if request.check_output is not None:
        request.check_output(value)
    return Decision(finish=Finish(output=value))


def parsed(text: str | None) -> JSON:
    """Return the JSON value that a model's text states; nothing around it is overlooked."""
    if text is None or not text.strip():
        raise violation(Diagnosis.NO_TEXT)
    try:
        return codec.decode(text.encode())
    except (InvalidValue, UnicodeEncodeError):
        raise violation(Diagnosis.TEXT_NOT_JSON) from None
