"""Every public name says what its caller gets: modules, classes, functions and methods."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "minutebook"
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def undocumented(node: Documented, name: str) -> Iterator[str]:
    """Return what has no docstring of `node` and the public names in it; an overload's is that of what it overloads."""
    if ast.get_docstring(node) is None:
        yield name
    if isinstance(node, ast.Module | ast.ClassDef):
        for each in node.body:
            if isinstance(each, Documented) and not each.name.startswith("_") and not _overloads(each):  # type: ignore[union-attr]
                yield from undocumented(each, f"{name}.{each.name}")  # type: ignore[union-attr]


def _overloads(node: Documented) -> bool:
    return any(ast.unparse(each) == "overload" for each in getattr(node, "decorator_list", ()))


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_public_name_has_a_docstring(path: Path) -> None:
    """One line at the least."""
    assert list(undocumented(ast.parse(path.read_text()), path.stem)) == []


def test_control_a_name_without_a_docstring_is_found() -> None:
    """Functions, methods and classes, however deep; nothing that is private, and nothing inside a function."""
    text = '"""One."""\ndef a(): ...\nclass B:\n    """One."""\n    async def c(self): ...\n    def _d(self): ...\n'
    overloaded = '@overload\ndef e(): ...\ndef e():\n    """One."""\n    def f(): ...\n'
    assert list(undocumented(ast.parse(text + overloaded), "m")) == ["m.a", "m.B.c"]
