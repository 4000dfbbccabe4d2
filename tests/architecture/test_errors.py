"""What an error's documentation names is there on each error of its class, and nothing else is kept on it."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from minutebook import errors

SOURCE = Path(__file__).parents[2] / "src" / "minutebook"
CLASSES = {name: getattr(errors, name) for name in errors.__all__}


def given_facts(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Return each error class that is called, with the name of each fact it is given."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in CLASSES:
                yield from ((name, keyword.arg) for keyword in node.keywords if keyword.arg)


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_fact_is_an_attribute_of_its_class(path: Path) -> None:
    """So that a type checker knows it, and whoever reads it need not ask whether it is there."""
    found = set(given_facts(ast.parse(path.read_text())))
    assert [each for each in found if not hasattr(CLASSES[each[0]], each[1])] == []


def test_control_a_fact_that_no_class_declares_is_found() -> None:
    assert list(given_facts(ast.parse("raise errors.DecisionHistoryBusy('x', who=1)"))) == [
        ("DecisionHistoryBusy", "who")
    ]
    assert not hasattr(errors.DecisionHistoryBusy, "who")


@pytest.mark.parametrize("name", errors.__all__)
def test_what_a_class_documents_is_on_each_of_its_errors(name: str) -> None:
    """As `None` where it is not known: a host's own store raises what it knows of (SPEC D24)."""
    words = set(re.findall(r"`([a-z_]+)`", inspect.getdoc(CLASSES[name]) or ""))
    bare = CLASSES[name]("told")
    assert all(getattr(bare, fact) is None for fact in ATTRIBUTES & {*dir(bare)})
    assert {word for word in words & ATTRIBUTES if not hasattr(bare, word)} == set()


ATTRIBUTES = {fact for each in CLASSES.values() for fact in inspect.get_annotations(each)}
"""Whatever is an attribute of some error."""
