"""
What every decision provider shares, as pure functions on values.

A step has two sides. An *interface* is how a decision is asked for: `native` offers capabilities as tools, `structured`
asks for one typed object. An *API* is what one provider's requests and bodies look like. Neither knows of the other,
of the history or of HTTP, so each can be read, and tested, by itself.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, cast

import msgspec

from minutebook.errors import (
    AgentDecisionProviderSchemaViolation,
    AgentDecisionProviderUnavailable,
    InvalidMessage,
    InvalidOption,
    InvalidValue,
    PairingViolation,
)
from minutebook.model import codec
from minutebook.model.codec import JSON
from minutebook.model.decisions import CapabilitySpec, Decision, DecisionRequest, Finish, Observation, ProposedCall
from minutebook.model.entries import Call, Draft, payload_digest
from minutebook.model.rules import fault_in
from minutebook.model.schemas import checked_schema
from minutebook.model.shown import type_alone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from minutebook.model.record import OpenExchange
    from minutebook.ports import Wire
    from minutebook.providers.streams import Stream

Fields = dict[str, bytes]
"""A request body: the JSON of each top-level field, in the order in which they are sent."""
Code: TypeAlias = "Callable[[JSON], str | None]"
"""What returns the enumerated code of a provider's error object; `None` for one that is not in its table."""


class Diagnosis(enum.StrEnum):
    """Why a body that came in full is no valid typed decision: the `provider_error_code` of a schema violation."""

    REFUSAL = "refusal"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    INCOMPLETE = "incomplete"
    CONTEXT_LENGTH = "context_length_exceeded"
    FAILED = "response_failed"
    MALFORMED = "malformed_response"
    NO_TEXT = "no_text"
    TEXT_NOT_JSON = "text_not_json"
    OUTPUT_MISMATCH = "output_mismatch"
    DECISION_MISMATCH = "decision_mismatch"
    UNKNOWN_ACTION = "unknown_action"
    UNEXPECTED_CALL = "unexpected_call"
    ARGUMENTS_NOT_JSON = "arguments_not_json"
    ARGUMENTS_MISMATCH = "arguments_mismatch"


_HINTS: Final = {
    Diagnosis.LENGTH: "; raise max_output_tokens",
    Diagnosis.OUTPUT_MISMATCH: "; the text does not match the output schema",
    Diagnosis.ARGUMENTS_MISMATCH: "; the arguments do not match the capability's schema",
    Diagnosis.UNKNOWN_ACTION: "; it names a capability that the program does not have",
}


def violation(diagnosis: Diagnosis) -> AgentDecisionProviderSchemaViolation:
    """Return the error for a body without a valid typed decision; it holds the diagnosis and nothing of the body."""
    hint = _HINTS.get(diagnosis, "")
    return AgentDecisionProviderSchemaViolation(
        f"the response holds no valid typed decision: {diagnosis.value}{hint}", provider_error_code=diagnosis.value
    )


def unavailable(code: str, status: int | None = None) -> AgentDecisionProviderUnavailable:
    """Return the error for a transport or provider failure, by enumerated code and HTTP status alone."""
    told = "" if status is None else f", HTTP status {status}"
    return AgentDecisionProviderUnavailable(
        f"the provider gave no response: {code}{told}", provider_error_code=code, status=status
    )


def reported(code: Code, error: JSON, otherwise: str) -> AgentDecisionProviderUnavailable:
    """Return the error for a failure that is reported under the status 200: by its code, where that is a known one."""
    return unavailable(code(error) or otherwise, 200)


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request before it takes a provider's form."""

    model: str
    instructions: str
    messages: bytes
    """The window: a JSON array of wire messages, which enters the body as these very bytes."""
    tools: tuple[CapabilitySpec, ...]
    schema: dict[str, JSON]
    """What a text that the model answers with must match, its root an object; empty for plain text."""
    max_output_tokens: int | None

    __repr__ = type_alone


class Api(msgspec.Struct, frozen=True, kw_only=True):
    """What one provider's API looks like: constants, and functions from JSON to JSON."""

    name: str
    """The wire format's name."""
    path: str
    """Where requests are posted; `{model}` in it stands for the model's name."""
    count_path: str
    fields: Callable[[Ask], Fields]
    """Return the fields of the request body."""
    code: Code
    """Return what an error object under the status 200 is called."""
    error: Callable[[dict[str, JSON]], JSON] = lambda body: body.get("error")
    """Return the error object of a body that is an error and nothing else; `None` for any other body."""
    check: Callable[[dict[str, JSON]], None]
    """Refuse a body that is no usable response: `AgentDecisionProviderUnavailable` or a schema violation."""
    text: Callable[[bytes], str | None]
    """Return what the model says in a response's fragment; `None` when that is nothing."""
    said: Callable[[str], bytes]
    """Return the payload of a response that says this text and nothing else, as the wire format keeps it."""
    called: Callable[[Sequence[tuple[Call, dict[str, JSON]]]], bytes]
    """Return the payload of a response that makes these calls and nothing else, as the wire format keeps it."""
    stream: Stream
    """How an answer is streamed."""
    billed: Callable[[dict[str, JSON]], JSON]
    """Return the input tokens by the provider's account, unchecked."""
    own: frozenset[str]
    """The fields that are ours, or that would make the provider keep or choose a history of its own."""
    counted: frozenset[str]
    """The fields that the counting endpoint takes."""
    uncounted: frozenset[str]
    """The fields that change no count. One in neither set is refused where requests are counted."""
    shared: Mapping[str, frozenset[str]] = {}
    """The fields of ours to which the caller may add members, and for each the members that are ours alone."""
    withheld: str = ""
    """The type of the entries in `input_transformations` that tell of reasoning withheld from the model, if any do."""
    needs_output_bound: bool = False
    """Whether a request without a bound on what is generated is none."""
    needs_reasoning: Callable[[Mapping[str, bytes]], bool] = lambda _: False
    """Return whether, with these extra fields, a call goes back only with the reasoning that it came with."""


class Interface(Protocol):
    """How a decision is asked for, and how it is read."""

    @property
    def name(self) -> str:
        """`native` or `structured`."""
        ...

    @property
    def wire(self) -> Wire:
        """The wire format in which its conversation is kept."""
        ...

    def instructions(self, request: DecisionRequest) -> str:
        """Return the system text."""
        ...

    def tools(self, request: DecisionRequest) -> tuple[CapabilitySpec, ...]:
        """Return the capabilities that are offered as tools."""
        ...

    def schema(self, request: DecisionRequest) -> dict[str, JSON]:
        """Return what a text that the model answers with must match."""
        ...

    def result(self, position: int, call: Call, observation: Observation) -> Draft:
        """Return the draft that answers a call: built from the observation and from nothing else (SPEC D26)."""
        ...

    def read(self, request: DecisionRequest, draft: Draft) -> Decision:
        """Return the decision in a response's draft; its calls have no reference yet."""
        ...

    def restated(self, draft: Draft, decision: Decision) -> Draft:
        """Return a draft that states the decision and nothing else that stood in the response."""
        ...


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
        """Return the request's capabilities, in the program's order."""
        return request.capabilities

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
    raise violation(Diagnosis.OUTPUT_MISMATCH)


def _proposed(request: DecisionRequest, call: Call, arguments: JSON) -> ProposedCall:
    if isinstance(arguments, str):
        try:
            arguments = codec.decode(arguments.encode())
        except (InvalidValue, UnicodeEncodeError):
            raise violation(Diagnosis.ARGUMENTS_NOT_JSON) from None
    return proposed(request, call.name, arguments)


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
    """Return the finish with `value`, once that matches the request's output schema."""
    if fault_in(value, request.output):
        raise violation(Diagnosis.OUTPUT_MISMATCH)
    return Decision(finish=Finish(output=value))


def parsed(text: str | None) -> JSON:
    """Return the JSON value that a model's text states; nothing around it is overlooked."""
    if text is None or not text.strip():
        raise violation(Diagnosis.NO_TEXT)
    try:
        return codec.decode(text.encode())
    except (InvalidValue, UnicodeEncodeError):
        raise violation(Diagnosis.TEXT_NOT_JSON) from None


# --- schemas ---


def is_object(schema: Mapping[str, JSON]) -> bool:
    """Return whether a schema says by itself that its values are objects."""
    return schema.get("type") == "object"


def in_object(name: str, schema: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return the schema of an object whose one property matches `schema`; definitions move up, where they are found."""
    inner = dict(schema)
    definitions = inner.pop("$defs", None)
    outer: dict[str, JSON] = {
        "type": "object",
        "properties": {name: inner},
        "required": [name],
        "additionalProperties": False,
    }
    return outer if definitions is None else {**outer, "$defs": definitions}


def is_closed(schema: JSON) -> bool:
    """
    Return whether every object in a schema requires all its properties and admits no other.

    OpenAI enforces only such schemas (`strict`) and refuses the request for any other.
    """
    if isinstance(schema, list):
        return all(map(is_closed, schema))
    if not isinstance(schema, dict):
        return True
    if is_object(schema):
        properties, required = schema.get("properties"), schema.get("required")
        names = set(properties) if isinstance(properties, dict) else set[str]()
        if schema.get("additionalProperties") is not False or names != set(cast("list[str]", required or [])):
            return False
    return all(map(is_closed, schema.values()))


def checked_request(request: DecisionRequest) -> DecisionRequest:
    """
    Return a request of which every rule is enforced on what the model answers, before anything is sent.

    Its schemas are copies: nobody can change one while the answer is on its way.

    Raises:
        InvalidOption: two capabilities of one name, parameters that are no object schema, or a schema with a keyword
            that is not enforced here.
    """
    names = [*(spec.name for spec in request.capabilities), *request.withheld]
    if len(set(names)) < len(names):
        raise InvalidOption("two capabilities have the same name", option="capabilities")
    capabilities = tuple(_checked_spec(spec) for spec in request.capabilities)
    return msgspec.structs.replace(request, capabilities=capabilities, output=checked_schema(request.output))


def _checked_spec(spec: CapabilitySpec) -> CapabilitySpec:
    parameters = checked_schema(spec.parameters)
    if not is_object(parameters):
        raise InvalidOption("a capability's parameters are a schema of type object", option="capabilities")
    return msgspec.structs.replace(spec, parameters=parameters)


# --- a step ---


def answers(
    waiting: Sequence[OpenExchange], observations: Iterable[Observation], interface: Interface
) -> tuple[Draft, ...]:
    """
    Return the results for the exchange that waits, in call order; observations of earlier exchanges are recorded.

    Raises:
        PairingViolation: a waiting call without an observation, or one that does not belong to its call.
    """
    drafts: list[Draft] = []
    for exchange in waiting:
        found = _by_position(exchange, observations)
        missing = [position for position in exchange.waiting if position not in found]
        if missing:
            raise PairingViolation(
                f"{len(missing)} call(s) of the exchange at seq {exchange.exchange} have no observation: {missing}; "
                "a decision needs the outcome of every call before it",
                exchange=exchange.exchange,
                waiting=tuple(missing),
            )
        for position, observation in sorted(found.items()):
            draft = interface.result(position, exchange.calls[position], observation)
            drafts.append(msgspec.structs.replace(draft, exchange=exchange.exchange))
    return tuple(drafts)


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


def id_of(call: Call, key: str) -> dict[str, JSON]:
    """Return a call's id as a member called `key`; none where the provider left it out."""
    return {key: call.id} if call.id else {}


def text_at(holder: JSON, key: str) -> str:
    """
    Return the text at `holder[key]`, empty where there is none.

    A body is whatever a server sent, and what stands where a code should may not even be hashable. So a value of a body
    is looked up in a table only by way of this.
    """
    value = holder.get(key) if isinstance(holder, dict) else None
    return value if isinstance(value, str) else ""


def prelude(interface: Interface, request: DecisionRequest) -> str:
    """Return a digest of what a request says before its messages; empty where no reasoning is bound to it."""
    if not interface.wire.binds:
        return ""
    tools: list[JSON] = [[spec.name, spec.description, spec.parameters] for spec in interface.tools(request)]
    return payload_digest(codec.encode([interface.instructions(request), tools]))[:8].hex()


def withheld(api: Api, payload: bytes) -> int:
    """Return how many reasoning blocks or items a response says that its provider withheld from the model."""
    if not api.withheld or b'"input_transformations"' not in payload:
        return 0
    body = codec.decode(payload)
    told = body.get("input_transformations") if isinstance(body, dict) else None
    return sum(text_at(each, "type") == api.withheld for each in told) if isinstance(told, list) else 0


def token_count(value: JSON) -> int | None:
    """Return a provider's token count if it is one: an integer of at least 0, and no boolean."""
    return value if type(value) is int and value >= 0 else None


def as_data(request: DecisionRequest) -> str:
    """Return the task with the real observations as data: all that a provider without a history is told."""
    if not request.observations:
        return request.task
    done: list[JSON] = [
        {"capability": seen.capability, "arguments": seen.arguments, "error" if seen.error else "result": seen.value}
        for seen in request.observations
    ]
    return f"{request.task}\n\nDone so far, oldest first: {codec.encode(done).decode()}"


def merged(api: Api, fields: Fields, extra: Mapping[str, bytes]) -> Fields:
    """Return our fields with the caller's; in one that is shared, the members of both."""
    both = {**fields, **extra}
    for name in api.shared.keys() & fields.keys() & extra.keys():
        ours, theirs = codec.decode(fields[name]), codec.decode(extra[name])
        both[name] = codec.encode({**cast("dict[str, JSON]", theirs), **cast("dict[str, JSON]", ours)})
    return both


def joined(fields: Mapping[str, bytes]) -> bytes:
    """Return the bytes of a JSON object with these fields."""
    return b"{%b}" % b",".join(b'"%b":%b' % (name.encode(), value) for name, value in fields.items())
