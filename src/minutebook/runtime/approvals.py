"""
Approvals: what a human must see before a call is executed, and what one answer of theirs authorizes (promise I-42).

An approval names everything that it is for: run, invocation, agent, the call's place, the capability's version, the
digest of the exact arguments, and when it ends. The runtime compares each of them with its own checkpoint, never with
what a client or a message says, so an approval that was altered, or made up, is for nothing. It is accepted once,
and durable in the checkpoint's log before anything is done; the intent to execute its call follows, and is noted once.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from minutebook.errors import ApprovalRefused, InvalidValue
from minutebook.model.codec import JSON, encode, text
from minutebook.model.decisions import CallReference
from minutebook.model.shown import is_unseen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

APPROVAL_SECONDS: Final = 24 * 60 * 60
"""How long a call waits for its approval before it has to be shown anew, unless the host says otherwise."""


def canonical(value: JSON) -> bytes:
    """
    Return the one JSON text that equal values have: keys by code points, no spaces, numbers with their type.

    Raises:
        InvalidValue: JSON cannot hold the value exactly.
    """
    return encode(_ordered(value))


def _ordered(value: JSON) -> JSON:
    if isinstance(value, dict):
        return {key: _ordered(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [_ordered(item) for item in value]
    return value


def arguments_digest(arguments: dict[str, JSON]) -> str:
    """Return SHA-256 of the canonical arguments, in hexadecimal."""
    return hashlib.sha256(canonical(arguments)).hexdigest()


class PendingApproval(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waits for a human: what it is, and what an approval of it binds."""

    id: str
    run_id: str
    invocation_id: str
    agent: str
    """The agent that proposed the call: the program's, or one that it delegated to."""
    capability: str
    capability_version: str
    position: int
    """The call's place in its decision."""
    reference: CallReference | None
    """Where the proposal stands in its conversation; `None` without a history."""
    arguments: dict[str, Any]
    """JSON, exactly as it would be executed: what the model left out stands there with its default."""
    arguments_digest: str
    expires_ms: int
    """When an approval of it ends, in Unix milliseconds; from then on the call is shown anew."""

    def __repr__(self) -> str:
        return f"PendingApproval({self.capability!r}, {self.reference})"

    @property
    def shown(self) -> str:
        """
        The arguments as their digest covers them, for a human: canonical JSON, with characters that hide or turn text
        written as escapes. Letters that only look alike stay as they are.
        """
        return "".join(_escaped(each) if is_unseen(each) else each for each in canonical(self.arguments).decode())

    def approve(self, *, by: str) -> Approval:
        """
        Return the approval of exactly this call by the principal `by`, whom the host has made sure of.

        Raises:
            InvalidValue: `by` is blank, or has characters that nobody sees.
        """
        return self._ruled(approved=True, by=by, message=None)

    def deny(self, *, by: str, message: str | None = None) -> Approval:
        """Return the refusal of this call; `message` is for the model."""
        return self._ruled(approved=False, by=by, message=message)

    def _ruled(self, *, approved: bool, by: str, message: str | None) -> Approval:
        bound = {name: getattr(self, name) for name in _BOUND}
        told = None if message is None else text(message, "message")
        return Approval(id=self.id, approved=approved, by=_principal(by), message=told, **bound)


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """A human's answer to one pending call. It may travel as JSON: `msgspec.json.encode(approval)`."""

    id: str
    run_id: str
    invocation_id: str
    agent: str
    capability: str
    capability_version: str
    position: int
    reference: CallReference | None
    arguments_digest: str
    expires_ms: int
    approved: bool
    by: str
    """Who answered, as the host knows them; kept in the checkpoint."""
    message: str | None = None
    """What the model is told of a denial."""

    def __repr__(self) -> str:
        return f"Approval({self.capability!r}, {self.reference}, approved={self.approved})"


_BOUND = (
    "run_id",
    "invocation_id",
    "agent",
    "capability",
    "capability_version",
    "position",
    "reference",
    "arguments_digest",
    "expires_ms",
)
"""What an approval and the call that waits must have in common."""


def _principal(by: object) -> str:
    """
    Return who answered, if that is a name which a person can read.

    Raises:
        InvalidValue: no text, a blank one, or one with characters that are not seen or turn what stands around them.
    """
    name = text(by, "by")
    if not name.strip() or any(map(is_unseen, name)):
        raise InvalidValue("by is blank, or has characters that nobody sees; name who answered", path="by")
    return name


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def check_approvals(
    approvals: Sequence[object], waiting: Mapping[str, PendingApproval], used: Sequence[str], now_ms: int
) -> tuple[Approval, ...]:
    """
    Return the approvals once each is for a call that waits; a denial is held to the same.

    `waiting` is what the checkpoints say, by id, with the version that each capability has now.

    Raises:
        ApprovalRefused: one is for nothing; `problem` says why. Nothing was executed.
        InvalidValue: `by` or `message` is no text, or `by` names nobody.
    """
    checked: dict[str, Approval] = {}
    for each in approvals:
        if not isinstance(each, Approval):
            raise _refused("altered", f"a {type(each).__name__} is no Approval")
        if each.id in checked:
            raise _refused("repeated", "two answers to one call")
        if each.id in used:
            raise _refused("used", "the call was answered before")
        if each.id not in waiting:
            raise _refused("unknown", "no call of this invocation waits for it")
        _check_bound(each, waiting[each.id], now_ms)
        checked[each.id] = each
    return tuple(checked.values())


def _check_bound(approval: Approval, pending: PendingApproval, now_ms: int) -> None:
    # A bool is an int to Python and 1.0 equals 1: types are compared too, since an approval may come as anything.
    for name in _BOUND:
        theirs, ours = getattr(approval, name), getattr(pending, name)
        if type(theirs) is not type(ours) or theirs != ours:
            raise _refused("altered", f"its {name} is not that of the call that waits")
    if type(approval.approved) is not bool:
        raise _refused("altered", "approved is True or False")
    _principal(approval.by)
    if approval.message is not None:
        text(approval.message, "message")
    if now_ms >= pending.expires_ms:
        raise _refused("expired", f"it ended {now_ms - pending.expires_ms:,} ms ago; resume without it to see it anew")


def _refused(problem: str, told: str) -> ApprovalRefused:
    return ApprovalRefused(f"the approval authorizes nothing: {told}", problem=problem)


def refuse_changed(name: str) -> ApprovalRefused:
    """Return the refusal of an approval whose capability was changed after it was shown."""
    return _refused("changed", f"capability {name!r} has another version now; resume without it to see it anew")
