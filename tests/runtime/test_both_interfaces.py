"""One program under both interfaces (D1), whatever its parameters are called: the interface has no names of its own."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
import pytest
from tests.faces.strict import REQUEST
from tests.runtime.test_opaque_refs import EVERY, KINDS, provider_of, reference_of

from minutebook import sync
from minutebook.errors import AgentDecisionProviderSchemaViolation, AgentDecisionProviderUnavailable, InvalidOption
from minutebook.model.decisions import Decision, DecisionRequest
from minutebook.model.rules import fault_in
from minutebook.runtime import Program, capability
from minutebook.testing import Answer, FunctionCall, ProviderFake

GOT: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_got() -> None:
    GOT.clear()


@capability
def door(action: str, speed: int = 1) -> str:
    GOT.append((action, speed))
    return f"{action} it is"


@capability
def start(arguments: list[str], decision: str = "") -> str:
    GOT.append((arguments, decision))
    return "started"


@capability
def both(action: str, arguments: dict[str, str]) -> str:
    GOT.append((action, arguments))
    return "done"


@capability
def tell(output: str, decision: str) -> str:
    GOT.append((output, decision))
    return "told"


@capability
def look(path: str) -> str:
    GOT.append(path)
    return "seen"


CASES: list[tuple[Any, dict[str, Any], Any]] = [
    (door, {"action": "open"}, ("open", 1)),
    (door, {"action": "finish", "speed": 2}, ("finish", 2)),
    (start, {"arguments": ["a"]}, (["a"], "")),
    (start, {"arguments": [], "decision": "d"}, ([], "d")),
    (both, {"action": "look", "arguments": {"action": "x"}}, ("look", {"action": "x"})),
    (tell, {"output": "o", "decision": "d"}, ("o", "d")),
    (look, {"path": "p"}, "p"),
]
NESTED = ("door", "start", "both")


def stated(name: str, arguments: dict[str, Any]) -> str:
    beside = {"arguments": arguments} if name in NESTED else arguments
    return json.dumps({"decision": {"action": name, **beside}})


def proposing(interface: str, name: str, arguments: dict[str, Any]) -> Answer:
    if interface == "native":
        return Answer(calls=(FunctionCall(name, arguments),))
    return Answer(text=stated(name, arguments))


def finishing(interface: str) -> Answer:
    if interface == "native":
        return Answer(text='{"output":"done"}')
    return Answer(text='{"decision":{"action":"finish","output":"done"}}')


PROGRAM = Program(name="clerk", instructions="Answer.", capabilities=[door, start, both, tell, look])


@pytest.mark.parametrize(("api", "interface"), EVERY)
def test_d01_a_program_runs_on_both_interfaces_whatever_its_parameters_are_called(api: str, interface: str) -> None:
    """D1: proposed, executed, recorded, shown to the next task, and proposed again."""
    once = [proposing(interface, case.name, given) for case, given, _ in CASES]
    with ProviderFake(api, [*once, finishing(interface), *once, finishing(interface)]) as fake:
        provider = provider_of(sync, api, interface, fake, sync.HistoryOptions())
        runs = sync.Runtime(PROGRAM, provider)
        for task in ("first", "second"):
            outcome = runs.run(task, run_id="r", invocation_id="i")
            assert (outcome.kind, outcome.output) == ("finished", "done")
            assert [(seen.capability, seen.arguments) for seen in outcome.observations] == [
                (case.name, case.completed(given)) for case, given, _ in CASES
            ]
    assert fake.refused == ()
    assert 2 * [got for _, _, got in CASES] == GOT


@pytest.mark.parametrize("api", list(KINDS))
def test_d01_d27_references_stand_in_the_form_that_a_capability_has(api: str) -> None:
    """D1, D27: what is shown again is stated as the model is to state it, and a reference is given back in it."""

    def again(received: Any) -> Answer:
        return Answer(text=stated("door", {"action": reference_of("action", received.body)}))

    first = Answer(text=stated("door", {"action": "open", "speed": 2}))
    steps = iter([lambda _: first, again, lambda _: finishing("structured")])
    with ProviderFake(api, lambda received: next(steps)(received)) as fake:
        provider = provider_of(sync, api, "structured", fake, sync.HistoryOptions())
        store = sync.MemoryStore(namespace="n")
        assert sync.Runtime(PROGRAM, provider, checkpoints=store, projection="opaque_refs").run("go").kind == "finished"
        assert b'\\"arguments\\":{\\"action\\":\\"ref_' in fake.requests[1].body
    assert GOT == [("open", 2), ("open", 1)]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("door", {"speed": 2}),
        ("door", {"arguments": "open"}),
        ("door", {"arguments": {"action": "open"}, "speed": 2}),
        ("start", {"arguments": ["a"]}),
        ("look", {"arguments": {"path": "p"}}),
    ],
)
def test_d01_d09_a_decision_in_another_form_is_a_schema_violation(name: str, fields: dict[str, Any]) -> None:
    """D9: each capability has one form; nothing is read in the other one, and nothing is executed."""
    with ProviderFake("openai-chat", [Answer(text=json.dumps({"decision": {"action": name, **fields}}))]) as fake:
        provider = provider_of(sync, "openai-chat", "structured", fake)
        with pytest.raises(AgentDecisionProviderSchemaViolation) as caught:
            sync.Runtime(PROGRAM, provider).run("go")
    assert (caught.value.provider_error_code, GOT) == ("arguments_mismatch", [])


@dataclass
class Share:
    """An output whose type asks more of it than a schema can say."""

    percent: int

    def __post_init__(self) -> None:
        if self.percent > 100:
            raise ValueError(f"{self.percent} % is no share")


@pytest.mark.parametrize(("api", "interface"), EVERY)
def test_d09_d25_an_output_that_its_type_refuses_is_recorded_nowhere_and_asked_for_again(
    api: str, interface: str
) -> None:
    """D9, D25: as one that its schema refuses; a refused one that were recorded would be given back at each resume."""
    program = Program(name="clerk", instructions="Answer.", capabilities=[], output=Share)
    said = [{"percent": 120}, {"percent": 60}]
    texts = [json.dumps(each if interface == "native" else {"decision": {"action": "finish", **each}}) for each in said]
    with ProviderFake(api, [Answer(text=text) for text in texts]) as fake, sync.MemoryStore(namespace="n") as store:
        provider = provider_of(sync, api, interface, fake, sync.HistoryOptions(store=store))
        runs = sync.Runtime(program, provider, checkpoints=store)
        with pytest.raises(AgentDecisionProviderSchemaViolation, match="the type refuses it") as caught:
            runs.run("go", run_id="r", invocation_id="i")
        assert "120" not in str(caught.value)
        assert runs.resume("r", "i").output == Share(60)
    assert fake.refused == ()
    assert b"120" not in fake.requests[1].body


@dataclass
class Tree:
    """A type that says all in its schema, itself among it."""

    name: str
    below: list[Tree]


@dataclass
class Shares:
    of: dict[str, list[Share | None]]


T = TypeVar("T")


class Range(msgspec.Struct, Generic[T]):
    low: T
    high: T

    def __post_init__(self) -> None:
        if self.low == self.high:
            raise ValueError("an empty range")


class Pair(msgspec.Struct, Generic[T]):
    first: T
    second: Annotated[str, msgspec.Meta(min_length=1)] | None = None


attributed = dataclass(kw_only=True)(type("Attributed", (), {"__annotations__": {"a": int}, "__attrs_attrs__": ()}))

PLAIN: list[Any] = [str, Any, Literal["a", 2], Tree, Pair[int], dict[str, list[int]], tuple[bool, None]]
ASKING: list[Any] = [Share, Shares, date, Range[int], Pair[date], dict[int, str], list[float], attributed]


@pytest.mark.parametrize(("kind", "plain"), [*((kind, True) for kind in PLAIN), *((kind, False) for kind in ASKING)])
def test_d01_a_request_is_a_plain_value_where_the_schema_says_all_that_the_output_is(kind: Any, plain: bool) -> None:
    """D1: a provider of one's own can send it elsewhere; only a type that asks more sends its check along."""

    class Away:
        def decide(self, request: DecisionRequest) -> Decision:
            requests.append(request)
            raise AgentDecisionProviderUnavailable("away")

    requests: list[DecisionRequest] = []
    with pytest.raises(AgentDecisionProviderUnavailable):
        sync.Runtime(Program(name="p", instructions="i", output=kind), Away()).run("go")
    (request,) = requests
    assert (request.check_output is None) == plain
    if plain:
        assert msgspec.json.decode(msgspec.json.encode(request))["task"] == "go"
        assert pickle.loads(pickle.dumps(request)) == request


def test_d09_a_check_that_cannot_be_called_is_refused_before_anything_is_sent() -> None:
    """D9: a local refusal, and nothing was generated."""
    with ProviderFake("openai-chat", []) as fake:
        provider = provider_of(sync, "openai-chat", "native", fake)
        request = msgspec.structs.replace(REQUEST, check_output="no function")
        with pytest.raises(InvalidOption, match="check_output"):
            provider.decide(request)
    assert fake.requests == ()


def test_d01_the_schema_that_is_sent_admits_each_form_and_no_other() -> None:
    """D1: what a server that binds the answer lets a model write is what is read."""
    schemas: list[Any] = []

    def generate(messages: Any, schema: Any) -> dict[str, Any]:
        schemas.append(schema)
        return {"decision": {"action": "finish", "output": "done"}}

    provider = sync.OpenAIChatDecisionProvider(model="m", decision_interface="structured", generate=generate)
    assert sync.Runtime(PROGRAM, provider).run("go").kind == "finished"
    (schema,) = schemas
    for case, given, _ in CASES:
        assert fault_in(json.loads(stated(case.name, given)), schema) is None
        beside = {"decision": {"action": case.name, "arguments": given}}
        flat = {"decision": {**given, "action": case.name}}
        assert fault_in(flat if case.name in NESTED else beside, schema) is not None
