"""
Reasoning that is bound to what stood before it.

On recent Claude models a thinking block is valid only behind the very messages that it was made behind. Once any of
them has left the window, or one came in between, the provider refuses the block, or drops it. So what a window still
sends of such a response is the response without its stale blocks; the record keeps all of it (SPEC D26).

Whether a block is stale needs no look at what was sent then. Windows are the newest units without a gap, so two of them
agree up to a response exactly when they begin at the same place. The header tells where the last window began and the
newest `seq` when that start last moved (`cut_at`): responses up to there are stale, those after it are fresh. A late
result that completes a parked exchange puts it back before what was said meanwhile, which makes that stale too.
A response that was made behind stripped ones stays fresh, since the same ones are stripped in every window that begins
there: the low-water mark of SPEC B3 keeps prompt cache and reasoning alike. One that was made behind stale ones, sent
all the same, is not; nor, once windows were cut, is one that no window was made for, as in a transcript.

Instructions, tools and a summary stand before every exchange. A change of them counts as a move of the start, as far as
they are known: by a digest, and by the summary's `seq`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from minutebook.errors import DecisionHistoryLimitExceeded, InvalidOption
from minutebook.model.entries import RESPONSE, Entry
from minutebook.model.units import Unit
from minutebook.policy.window import array_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from minutebook.model.bounds import WindowLimits
    from minutebook.model.record import Header, State
    from minutebook.policy.window import Plan
    from minutebook.ports import Wire

Reasoning = Literal["strip", "keep", "drop_block"]
"""What becomes of stale reasoning: left out here, sent all the same, or sent for the provider to drop."""


def check_reasoning(value: object, allowed: tuple[Reasoning, ...] = get_args(Reasoning)) -> None:
    """
    See that an option names one of the `allowed` ways.

    Raises:
        InvalidOption: it does not.
    """
    if value not in allowed:
        raise InvalidOption(f"reasoning is one of {', '.join(allowed)}", option="reasoning")


def prelude_mark(wire: Wire, prelude: str, summary: int) -> str:
    """Return what tells whether all that stands before a window's exchanges is as it was, the summary among it."""
    return f"{prelude}:{summary}" if wire.binds else ""


def bind(plan: Plan, header: Header, wire: Wire, limits: WindowLimits, reasoning: Reasoning, prelude: str) -> Plan:
    """
    Return `plan` with the stale reasoning left out where it is to be stripped; linear in the window.

    `prelude` is the mark of what goes before it: instructions, tools and a summary; see `prelude_mark`.

    Raises:
        DecisionHistoryLimitExceeded: the reasoning of an open tool loop is stale. The provider demands it there, so it
            is dropped by the provider itself (`drop_block`) or not at all (SPEC D26).
    """
    if not wire.binds:
        return plan
    cut_at = _cut_at(plan, header.state, header.entries, prelude)
    unbound = {entry.seq: _unbound(entry, wire) for entry in _stale(plan, cut_at)}
    stripped = {seq: entry for seq, entry in unbound.items() if entry is not None}
    plan = msgspec.structs.replace(plan, cut_at=cut_at)
    if not stripped or reasoning != "strip":
        # An answer behind stale blocks will be stale itself for whoever strips them later.
        return msgspec.structs.replace(plan, stale=bool(stripped))
    if not stripped.keys().isdisjoint(open_loop(plan.units, wire)):
        raise _refusal(plan, limits, _OTHER if _changed(prelude, header.state) else _LATE)
    return msgspec.structs.replace(_without(plan, stripped), stripped=len(stripped))


def _cut_at(plan: Plan, state: State, newest: int, prelude: str) -> int:
    """Return the newest `seq` when the window's start last moved, this window taken into account."""
    return newest if _moved(plan, state) or _changed(prelude, state) else state.cut_at


def _moved(plan: Plan, state: State) -> bool:
    return plan.window_from != state.window_from if state.window_from else plan.trimmed


def _changed(prelude: str, state: State) -> bool:
    return bool(prelude and state.prelude) and prelude != state.prelude


def _stale(plan: Plan, cut_at: int) -> Iterator[Entry]:
    """Return the responses before which something left, or came in, since they were made."""
    newest = 0
    for unit in plan.units:
        for entry in unit.entries:
            if entry.kind is RESPONSE and (entry.seq <= cut_at or entry.seq < newest):
                yield entry
        newest = max([newest, *(entry.seq for entry in unit.entries)])


def _unbound(entry: Entry, wire: Wire) -> Entry | None:
    """Return a response as it is sent without its bound reasoning; `None` where it has none."""
    sent = wire.sendable(entry.fragment)
    left = wire.unbound(sent)
    if left == sent:
        return None
    if not left:
        return msgspec.structs.replace(entry, messages=0, size=0, start=0, stop=0)
    size = entry.size - len(sent) + len(left)
    return msgspec.structs.replace(entry, payload=left, size=size, start=0, stop=len(left))


def open_loop(units: Sequence[Unit], wire: Wire) -> set[int]:
    """Return the exchanges that the next answer belongs to: those in a row, up to the newest, that call tools."""
    loop: set[int] = set()
    for unit in reversed(units):
        if not wire.loops or not unit.is_exchange or not unit.entries[0].calls or unit.turn != units[-1].turn:
            break
        loop.add(unit.key)
    return loop


def _without(plan: Plan, stripped: dict[int, Entry]) -> Plan:
    units = tuple(_replaced(unit, stripped) for unit in plan.units)
    messages = plan.messages - sum(unit.messages for unit in plan.units) + sum(unit.messages for unit in units)
    before = plan.size - array_size(plan.messages, 0)
    size = before - sum(unit.size for unit in plan.units) + sum(unit.size for unit in units)
    return msgspec.structs.replace(plan, units=units, messages=messages, size=array_size(messages, size))


def _replaced(unit: Unit, stripped: dict[int, Entry]) -> Unit:
    entry = stripped.get(unit.key)
    if entry is None:
        return unit
    before = unit.entries[0]
    messages = unit.messages - before.messages + entry.messages
    size = unit.size - before.size + entry.size
    return Unit(unit.key, unit.turn, [entry, *unit.entries[1:]], messages, size)


_DROPPED = (
    "or have the provider drop that reasoning: a provider's reasoning='drop_block', or in a loop of your own 'keep' "
    "and requests that ask for it (see the guide)"
)
_OTHER = (
    "the tools, the instructions or the summary changed in an open tool loop, and the provider binds the loop's "
    f"reasoning to them. Ask with what its last request had; or give the task up; {_DROPPED}"
)
_LATE = (
    "what stands before an open tool loop is not what its reasoning was made behind: a late result came in, stale "
    "reasoning was sent until now, or the loop began with an answer that no window was made for; the provider binds "
    "the loop's reasoning to it. Give the task up: what came in is recorded, and the next one has it; "
    f"{_DROPPED}"
)


def outgrown(plan: Plan, limits: WindowLimits, loop: tuple[int, int]) -> DecisionHistoryLimitExceeded:
    """Return the refusal of a window that would have to lose something inside a loop of so many messages and bytes."""
    messages, _ = loop
    told = (
        "older exchanges would have to leave inside an open tool loop, and the provider binds the loop's reasoning to "
        f"them; the loop is {messages:,} messages by now. Raise what limits it, and it goes on: max_messages "
        f"({limits.max_messages:,}), max_bytes ({limits.max_bytes:,}), or the context window where requests are "
        "counted; or give the task up, and the next one begins with room for twice as much, as far as the newest "
        f"exchange leaves it; {_DROPPED}"
    )
    return _refusal(plan, limits, told, loop)


def _refusal(
    plan: Plan, limits: WindowLimits, told: str, loop: tuple[int, int] | None = None
) -> DecisionHistoryLimitExceeded:
    return DecisionHistoryLimitExceeded(
        told,
        messages=plan.messages,
        bytes=plan.size,
        max_messages=limits.max_messages,
        max_bytes=limits.max_bytes,
        outgrown=loop,
    )
