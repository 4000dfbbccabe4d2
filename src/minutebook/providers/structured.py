"""
The structured interface: every decision is one typed JSON object, for models and servers without tool calling.

The object is `{"decision": {"action": NAME, …}}` with the parameters of the action beside its name; `finish` is the
action that ends the invocation. Where a parameter is called `action` or `arguments` itself, they stand one level down:
`{"decision": {"action": NAME, "arguments": {…}}}`; so a program needs no other names than under the native interface,
and no decision can be read in two ways. The alternatives stand one level down because OpenAI refuses a
schema whose root is an `anyOf`. A structured call has no id and no message type of its own: its result is a user's
message, and only the record knows that the two are one exchange. `StructuredWire` is how it knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from minutebook.errors import InvalidOption, InvalidValue
from minutebook.model import codec
from minutebook.model.codec import JSON
from minutebook.model.decisions import CapabilitySpec, Decision, DecisionRequest, Observation
from minutebook.model.entries import Call, Draft, Kind
from minutebook.providers.decision import Diagnosis, in_object, is_object, violation
from minutebook.providers.native import finished, output_text, parsed, proposed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from minutebook.ports import Wire
    from minutebook.providers.decision import Api

FINISH: Final = "finish"
_ROOT: Final = "decision"
_ACTION: Final = "action"
_ARGUMENTS: Final = "arguments"
_WORDS: Final = {False: "Result", True: "Error"}
_LOCAL_REFERENCE: Final = "#/$defs/"


class StructuredWire:
    """A wire format whose calls are texts: the plain format, but for what a call and its result look like."""

    results_wrap: tuple[bytes, bytes] = (b"", b"")
    grouped = False
    loops = False

    def __init__(self, plain: Wire, api: Api) -> None:
        self.name = plain.name
        self.response_wrap = plain.response_wrap
        self.input = plain.input
        self.injection = plain.injection
        self.outputs = plain.outputs
        self.ready_result = plain.ready_result
        self.transcript = plain.transcript
        self.sendable = plain.sendable
        self.rename = plain.rename
        self.binds = plain.binds
        self.id_form = None  # the calls are texts
        self.unbound = plain.unbound
        self.prefaced = plain.prefaced
        self.plain = plain
        self._api = api

    def response(self, body: object) -> Draft:
        """Return the draft of a raw response; a text that names an action is its one call."""
        draft = self.plain.response(body)
        if draft.calls:
            return draft
        calls = tuple(call for call, _ in self.calls(draft.payload[draft.start : draft.stop]))
        return msgspec.structs.replace(draft, calls=calls)

    def calls(self, fragment: bytes) -> tuple[tuple[Call, JSON], ...]:
        """Return the call that the text makes, if it makes one."""
        text = self._api.text(fragment) if fragment else None
        try:
            value = codec.decode(text.encode()) if text else None
        except (InvalidValue, UnicodeEncodeError):
            return ()
        name, fields = _action(value)
        return ((Call("", name), _unwrapped(fields)),) if name not in ("", FINISH) else ()

    def result(self, position: int, call: Call, output: object, *, error: bool = False) -> Draft:
        """Return the draft that answers `call`: a user's message with the value as JSON."""
        told = f"{_WORDS[error]} of {call.name}: {codec.encode(output).decode()}"
        return msgspec.structs.replace(self.plain.input(told), kind=Kind.RESULT, call=position)

    def answered(self, payload: bytes, calls: Mapping[int, Call]) -> tuple[Draft, ...]:
        """Return the draft of the user's message that answers the one call; nothing but what `result` writes is one."""
        told = _told(codec.decode(payload))
        if told is None or len(calls) != 1:
            return ()
        ((position, call),) = calls.items()
        for error, word in _WORDS.items():
            start = f"{word} of {call.name}: "
            if told.startswith(start):
                value = codec.decode(told.removeprefix(start).encode())
                return (self.result(position, call, value, error=error),)
        return ()


class Structured:
    """Typed JSON output: one action at a time."""

    name = "structured"

    def __init__(self, wire: Wire, api: Api) -> None:
        self.wire = StructuredWire(wire, api)
        self._api = api

    def instructions(self, request: DecisionRequest) -> str:
        """Return the instructions and the catalogue of actions: a server that binds the answer may not show them."""
        lines = [request.instructions] if request.instructions else []
        lines.append(f'Answer with one JSON object: {{"{_ROOT}": {{"{_ACTION}": NAME, …}}}}. The actions:')
        lines += [
            _line(spec.name, _shown_parameters(spec.parameters), spec.description) for spec in request.capabilities
        ]
        lines.append(_line(FINISH, ", ".join(_parameters(_finish_schema(request.output))), "end with the output"))
        return "\n".join(lines)

    def tools(self, request: DecisionRequest) -> tuple[CapabilitySpec, ...]:  # noqa: ARG002 - the interface's shape
        """Return no tools."""
        return ()

    def schema(self, request: DecisionRequest) -> dict[str, JSON]:
        """
        Return the schema of a decision: exactly the capabilities of the request, and the finish.

        Raises:
            InvalidOption: a capability called `finish`.
        """
        if any(spec.name == FINISH for spec in request.capabilities):
            raise InvalidOption(
                f"the structured interface has its own action {FINISH!r}; rename the capability", option="capabilities"
            )
        named = [(spec.name, _stated_schema(spec.parameters)) for spec in request.capabilities]
        named.append((FINISH, _finish_schema(request.output)))
        definitions: dict[str, JSON] = {}
        alternatives: list[JSON] = [_alternative(name, schema, definitions) for name, schema in named]
        decision: dict[str, JSON] = {"anyOf": alternatives, "$defs": definitions}
        return in_object(_ROOT, decision if definitions else {"anyOf": alternatives})

    def result(self, position: int, call: Call, observation: Observation) -> Draft:
        """Return the user's message that tells the observation."""
        return self.wire.result(position, call, observation.value, error=observation.error)

    def read(self, request: DecisionRequest, draft: Draft) -> Decision:
        """Return the one call or the finish that the text states."""
        fragment = draft.payload[draft.start : draft.stop]
        if self.wire.plain.calls(fragment):
            raise violation(Diagnosis.UNEXPECTED_CALL)
        name, fields = _action(parsed(self._api.text(fragment)))
        if not name:
            raise violation(Diagnosis.DECISION_MISMATCH)
        if name != FINISH:
            return Decision(calls=(proposed(request, name, _arguments(request, name, fields)),))
        if _is_flat(request.output):
            return finished(request, fields)
        if fields.keys() != {"output"}:
            raise violation(Diagnosis.OUTPUT_MISMATCH)
        return finished(request, fields["output"])

    def restated(self, draft: Draft, decision: Decision) -> Draft:
        """Return the text that states the call with the decision's arguments, or the finish."""
        if not decision.calls:
            return self.wire.response(self._api.said(output_text(self._api, draft.payload[draft.start : draft.stop])))
        (call,) = decision.calls
        _, fields = _action(parsed(self._api.text(draft.payload[draft.start : draft.stop])))
        stated = call.arguments if _unwrapped(fields) is fields else {_ARGUMENTS: call.arguments}
        text = codec.encode({_ROOT: {_ACTION: call.capability, **stated}}).decode()
        return self.wire.response(self._api.said(text))


def _told(message: JSON) -> str | None:
    """Return the text of a user's message as `result` makes it: its content, or where it has parts, its one part."""
    held = message if isinstance(message, dict) else {}
    parts = held.get("parts")
    if isinstance(parts, list) and len(parts) == 1:
        part = parts[0]
        told = part.get("text") if isinstance(part, dict) else None
    else:
        told = held.get("content")
    return told if isinstance(told, str) else None


def _action(value: JSON) -> tuple[str, dict[str, JSON]]:
    """Return the action's name and what stands beside it; no name when the value is no decision."""
    decision = value.get(_ROOT) if isinstance(value, dict) and len(value) == 1 else None
    name = decision.get(_ACTION) if isinstance(decision, dict) else None
    if not isinstance(decision, dict) or not isinstance(name, str):
        return "", {}
    return name, {key: item for key, item in decision.items() if key != _ACTION}


def _nests(parameters: Mapping[str, JSON]) -> bool:
    """Return whether a capability's arguments stand one level down, since a name of theirs has a meaning here."""
    return not {_ACTION, _ARGUMENTS}.isdisjoint(_parameters(parameters))


def _stated_schema(parameters: dict[str, JSON]) -> dict[str, JSON]:
    return in_object(_ARGUMENTS, parameters) if _nests(parameters) else parameters


def _shown_parameters(parameters: Mapping[str, JSON]) -> str:
    names = ", ".join(_parameters(parameters))
    return f"{_ARGUMENTS}: {{{names}}}" if _nests(parameters) else names


def _unwrapped(fields: dict[str, JSON]) -> dict[str, JSON]:
    """Return what stands beside an action's name as its arguments, by its form: one that could be both is nested."""
    inner = fields.get(_ARGUMENTS)
    return inner if len(fields) == 1 and isinstance(inner, dict) else fields


def _arguments(request: DecisionRequest, name: str, fields: dict[str, JSON]) -> dict[str, JSON]:
    """Return the arguments of a decision, in the form that its capability has; of one withheld, in whichever it has."""
    spec = next((spec for spec in request.capabilities if spec.name == name), None)
    inner = _unwrapped(fields)
    if spec is not None and _nests(spec.parameters) is (inner is fields):
        raise violation(Diagnosis.ARGUMENTS_MISMATCH)
    return inner


def _is_flat(output: Mapping[str, JSON]) -> bool:
    """Return whether the output's properties can stand beside the action."""
    return is_object(output) and _ACTION not in _parameters(output)


def _finish_schema(output: dict[str, JSON]) -> dict[str, JSON]:
    return output if _is_flat(output) else in_object("output", output)


def _parameters(schema: Mapping[str, JSON]) -> dict[str, JSON]:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _line(name: str, parameters: str, description: str) -> str:
    return f"- {name}({parameters}): {description}"


def _alternative(name: str, schema: dict[str, JSON], definitions: dict[str, JSON]) -> dict[str, JSON]:
    """Return the object with the constant action and the properties of `schema`; its definitions join the others."""
    # Two schemas may define one name differently, so each definition takes its action's name along.
    told = _renamed({key: value for key, value in schema.items() if key != "$defs"}, name)
    own = schema.get("$defs")
    for key, value in own.items() if isinstance(own, dict) else ():
        definitions[f"{name}.{key}"] = _renamed(value, name)
    assert isinstance(told, dict)
    required = told.get("required")
    return {
        "additionalProperties": False,
        **told,
        "properties": {_ACTION: {"type": "string", "const": name}, **_parameters(told)},
        "required": [_ACTION, *(required if isinstance(required, list) else [])],
    }


def _renamed(schema: JSON, name: str) -> JSON:
    if isinstance(schema, list):
        return [_renamed(item, name) for item in schema]
    if not isinstance(schema, dict):
        return schema
    renamed = {key: _renamed(value, name) for key, value in schema.items()}
    reference = renamed.get("$ref")
    if isinstance(reference, str) and reference.startswith(_LOCAL_REFERENCE):
        renamed["$ref"] = f"{_LOCAL_REFERENCE}{name}.{reference.removeprefix(_LOCAL_REFERENCE)}"
    return renamed
