"""
What values show of themselves (I-37): every class of the package, made with a marker wherever a text may stand.

A `repr` ends in logs, in tracebacks with locals and in the messages of failed assertions. Each class of the package
that shows its fields is made here from its annotations alone, so that one that is added tomorrow is asked as well.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import pkgutil
import secrets
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import msgspec
import pytest

import minutebook

MARKER = "canary" + secrets.token_hex(8)
CONTENT: Any = {MARKER: [MARKER]}
NUMBERS = ("int", "float", "bool", "None", "timedelta", "Path")


def modules() -> Iterator[Any]:
    for found in pkgutil.walk_packages(minutebook.__path__, "minutebook."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


MODULES = list(modules())
CLASSES: dict[str, type[Any]] = {
    f"{each.__module__.removeprefix('minutebook.')}.{each.__qualname__}": each
    for module in MODULES
    for each in vars(module).values()
    if inspect.isclass(each) and each.__module__ == module.__name__ and not issubclass(each, BaseException | enum.Enum)
}
NAMES: dict[str, Any] = {name: each for module in MODULES for name, each in vars(module).items()}

SHOWN: dict[str, set[str]] = {
    # Ids, in what addresses conversations and runs.
    "options.HistoryOptions": {"namespace"},
    "sync.decisions.HistoryOptions": {"namespace"},
    "model.decisions.DecisionRequest": {"run_id", "invocation_id"},
    "model.keys.ConversationKey": {"namespace", "id"},
    "model.record.Receipt": {"idempotency"},
    "runtime.checkpoints.Storage": {"namespace"},
    "runtime.memory.Resources": {"run_id", "agent", "declared"},
    # What tells a conversation from others: digits drawn at random, and the first ones of digests of it.
    "model.decisions.Abandoned": {"conversation", "digest"},
    "model.decisions.Decision": {"conversation", "digest"},
    "model.decisions.Resumed": {"conversation", "digest"},
    # SHA-256 of content, and marks of windows.
    "model.receipts.Sent": {"digest"},
    "model.record.State": {"prelude"},
    "model.record.Unanswered": {"content"},
    "model.summaries.Covered": {"digest"},
    "model.tails.Remembered": {"digest"},
    "model.transfer.End": {"digest", "prelude"},
    # Words of ours, from a fixed list.
    "model.events.HistoryAbandoned": {"reason"},
    "model.events.ProviderContextCount": {"provider"},
    "policy.tokens.TokenGuard": {"provider"},
    # What a program's author declares.
    "model.context.ContextWindow": {"input_token_multiplier"},
    "model.decisions.CapabilitySpec": {"name", "description", "parameters"},
    "runtime.approvals.Approval": {"capability"},
    "runtime.approvals.PendingApproval": {"capability"},
    "runtime.budgets.Used": {"calls"},
    "runtime.capabilities.Capability": {"name"},
    "runtime.memory.MemoryResource": {"name"},
    "runtime.outcomes.Host": {"providers", "gather", "cancelled"},
    # Tables of ours, and the host's choice of an address.
    "providers.counting.Counting": {
        *("name", "provider", "counted", "uncounted", "switched_off", "required", "output_limits", "answer", "wrapper")
    },
    "providers.decision.Api": {
        *(
            "name",
            "path",
            "count_path",
            "model_prefix",
            "own",
            "shared",
            "of_tools",
            "withheld",
            "stream",
            "code",
            "error",
        )
    },
    "providers.endpoints.Route": {"path", "count", "queries"},
    "providers.endpoints.Match": {"count_path", "model"},
    "providers.endpoints.Official": {"hosts", "base"},
    "providers.endpoints.Origin": {"scheme", "host", "base"},
    "providers.sdk_http.Sdk": {
        *("package", "blocking", "asynchronous", "base_error", "key", "headers", "sender", "versions")
    },
    "providers.streams.Stream": {"fields", "path"},
    "stores.private_files.PrivateDatabase": {"path"},
    "stores.private_paths.Directory": {"path"},
    # Lines that the command line prints, and what a test asks of a fake.
    "cli.doctor.Finding": {"check", "found", "attention"},
    "cli.evidence.Row": {"request"},
    "cli.report.Claim": {"claim"},
    "testing.conformance.report.Outcome": {"name", "rule", "reason"},
    "testing.fakes.answers.Failure": {"code", "headers"},
    "testing.fakes.dialect.Dialect": {"name", "root", "sealed"},
    "testing.fakes.dialect.Problem": {"type", "message", "code", "param"},
    "testing.fakes.dialect.Route": {"model"},
    "testing.fakes.server.Received": {"method", "path", "header_names"},
    "testing.fakes.shapes.Fault": {"path"},
    "testing.fakes.shapes._Branch": {"shape", "types", "tags", "required"},
    "testing.faults.Fault": {"method"},
    "model.chat_events.MessageAdded": {"role"},
    "model.chat_events.SummarizationFailed": {"error_code"},
}
"""Fields whose texts a class may show, and why; every other text of every class is content."""

SHOW_NUMBERS = {
    "providers.sdk_http.Unshown",
    "runtime.program.Program",
    "testing.clock.FrozenClock",
    "windows.Window",
}
"""Classes that are no records and have a `repr` of their own: of counts and a declared name, as other tests show."""


def is_record(kind: type[Any]) -> bool:
    return issubclass(kind, msgspec.Struct | tuple) or dataclasses.is_dataclass(kind)


def fields_of(kind: type[Any]) -> dict[str, ast.expr]:
    """Return the annotation of each field, as it is written."""
    found: dict[str, ast.expr] = {}
    for each in reversed(kind.__mro__):
        for name, written in inspect.get_annotations(each).items():
            found[name] = (
                ast.parse(written if isinstance(written, str) else inspect.formatannotation(written)).body[0].value
            )  # type: ignore[attr-defined]
    names = getattr(kind, "__struct_fields__", None) or found
    return {name: found[name] for name in names if "ClassVar" not in ast.unparse(found[name])}


class Maker(NamedTuple):
    """Makes values by their annotations, as deep as `depth` lets it; below that there are none."""

    module: Any
    depth: int = 4

    def value(self, written: ast.expr) -> Any:
        match written:
            case ast.BinOp(left=left, right=right):
                # Whichever of them shows something; else the one that is not `None`.
                either = [self.value(each) for each in (left, right) if ast.unparse(each) != "None"]
                return next((each for each in either if MARKER in shows(each)), either[0])
            case ast.Subscript(value=ast.Name(id="Literal"), slice=each):
                return ast.literal_eval(each.elts[0] if isinstance(each, ast.Tuple) else each)
            case ast.Subscript(value=ast.Name(id="tuple" | "list" | "Sequence" | "frozenset" | "set"), slice=each):
                first = self.value(each.elts[0] if isinstance(each, ast.Tuple) else each)
                return (first,)
            case ast.Subscript(value=ast.Name(id="dict" | "Mapping"), slice=ast.Tuple(elts=[key, each])):
                return {MARKER if ast.unparse(key) == "str" else self.value(key): self.value(each)}
            case ast.Subscript(value=each):
                return self.value(each)
            case ast.Constant(value=str() as quoted):
                return self.value(ast.parse(quoted, mode="eval").body)
            case ast.Name(id=name) | ast.Attribute(attr=name):
                return self.named(name)
        return CONTENT

    def named(self, name: str) -> Any:
        """Return a value of a type by its name; one that is not known here may be any content."""
        if name in NUMBERS:
            return 1
        if name in ("str", "bytes"):
            return MARKER if name == "str" else MARKER.encode()
        found = vars(self.module).get(name, NAMES.get(name))
        if get_origin(found) is Literal:
            return get_args(found)[0]
        if get_origin(found) in (Annotated, Union, UnionType) and get_args(found):
            first = get_args(found)[0]
            return self.named(getattr(first, "__name__", str(first)))
        if inspect.isclass(found) and issubclass(found, enum.Enum):
            return next(iter(found))
        if inspect.isclass(found) and found.__module__.startswith("minutebook"):
            return made(found, self.depth - 1) if is_record(found) and self.depth else object()
        return object() if name in ("Callable", "Protocol", "Random", "Summarize") else CONTENT


def made(kind: type[Any], depth: int = 4) -> Any:
    """Return an instance of a class whose texts, bytes and JSON all hold the marker, but for those it may show."""
    maker = Maker(importlib.import_module(kind.__module__), depth)
    shown = SHOWN.get(f"{kind.__module__.removeprefix('minutebook.')}.{kind.__qualname__}", set())
    values = {name: "shown" if name in shown else maker.value(each) for name, each in fields_of(kind).items()}
    if issubclass(kind, tuple):
        return kind._make(values.values())  # type: ignore[attr-defined]
    if issubclass(kind, msgspec.Struct):
        # Its own checks would refuse most of this.
        return type(kind.__name__, (kind,), {"__post_init__": lambda _: None, "__module__": kind.__module__})(**values)
    value = object.__new__(kind)
    for name, each in values.items():
        object.__setattr__(value, name, each)
    return value


def shows(value: object) -> str:
    return f"{value!r} {value}"


def test_i37_every_repr_is_asked() -> None:
    """A class that is no record has the `repr` of `object`, or is named here; what may be shown names what is there."""
    own = {name for name, kind in CLASSES.items() if not is_record(kind) and {"__repr__", "__str__"} & {*vars(kind)}}
    assert own == SHOW_NUMBERS
    assert {(name, field) for name in SHOWN for field in SHOWN[name] if field not in fields_of(CLASSES[name])} == set()


class Whole(msgspec.Struct):
    text: str


class Parted(NamedTuple):
    whole: tuple[int, Whole | None]


@dataclasses.dataclass
class Listed:
    texts: dict[str, list[bytes]]
    count: int = 0


@pytest.mark.parametrize("kind", [Whole, Parted, Listed])
def test_i37_control_a_class_that_shows_its_fields_is_found(kind: type[Any]) -> None:
    """As a struct, a named tuple or a dataclass: by its own text, by one in a mapping, and by what is within it."""
    assert MARKER in shows(made(kind))


@pytest.mark.parametrize("name", [name for name, kind in CLASSES.items() if is_record(kind)])
def test_i37_no_value_shows_content(name: str) -> None:
    """I-37: no text, bytes or JSON of a value is in its `repr` or `str`, however deep."""
    assert MARKER not in shows(made(CLASSES[name]))
