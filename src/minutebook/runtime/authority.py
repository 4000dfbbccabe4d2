"""
Authority: what may be called now, by the program and its budgets alone.

The one question of this module has no parameter for anything that was said. No message, summary, import, output or
task can reach the answer, which is the whole of SPEC D3 and promise I-41.
"""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

from minutebook.errors import InvalidOption

if TYPE_CHECKING:
    from collections.abc import Mapping, Set

    from minutebook.runtime.budgets import Ledger
    from minutebook.runtime.capabilities import Capability

Denial: TypeAlias = Literal[
    "unknown_capability",
    "not_authorized",
    "calls_exhausted",
    "capability_exhausted",
    "wall_exhausted",
    "depth_exhausted",
]
"""Why a capability may not be called now."""

SPENT: Final[frozenset[Denial]] = frozenset({"calls_exhausted", "capability_exhausted", "wall_exhausted"})
"""Those by which a capability stops being offered to an invocation; by the others it never was."""

_GRANT = re.compile(r"[A-Za-z0-9_.:/-]{1,128}", re.ASCII)


def check_grant(value: object) -> str:
    """
    Return `value` if it can name a grant, else refuse it. Grants are compared exactly: none includes another.

    Raises:
        InvalidOption: not a str of 1 to 128 ASCII letters, digits and `_ . : / -`.
    """
    if type(value) is not str:
        raise InvalidOption(f"a grant is one text, not {type(value).__name__}", option="authority")
    if not _GRANT.fullmatch(value):
        raise InvalidOption("a grant must be 1 to 128 ASCII letters, digits, or any of _ . : / -", option="authority")
    return value


def checked_grants(authority: object) -> frozenset[str]:
    """
    Return `authority` if it is a set of grants, else refuse it.

    Raises:
        InvalidOption: no set, or something in it that names no grant.
    """
    # A str would be a set of its letters.
    if not isinstance(authority, AbstractSet):
        raise InvalidOption(f"authority must be a set of grants, not {type(authority).__name__}", option="authority")
    return frozenset(check_grant(grant) for grant in cast("Set[object]", authority))


def denial(
    name: str, capabilities: Mapping[str, Capability[..., object]], grants: Set[str], ledger: Ledger
) -> Denial | None:
    """Return why the capability of this name may not be called now, or `None` if it may."""
    found = capabilities.get(name)
    if found is None:
        return "unknown_capability"
    if not found.needed <= grants:
        return "not_authorized"
    if found.agent is not None and ledger.depth_left == 0:
        return "depth_exhausted"
    if ledger.wall_left_ns() == 0:
        return "wall_exhausted"
    if ledger.calls_left == 0:
        return "calls_exhausted"
    return "capability_exhausted" if ledger.calls_left_of(name) == 0 else None
