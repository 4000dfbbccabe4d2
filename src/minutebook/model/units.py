"""
Units: what a window sends whole or not at all, and the part of a record that is put together to units once.

Most of a record is *settled*: whatever is recorded later, its exchanges stay as they are. A process remembers them with
running sums, so that the next window looks only at what is new and finds by bisection where it begins.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import msgspec

from minutebook.model.entries import RESPONSE, Entry
from minutebook.model.shown import type_alone

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Unit(msgspec.Struct, gc=False):
    """An exchange, or a message without one. `key` is the `seq` it stands at."""

    key: int
    turn: int
    entries: list[Entry]
    """Oldest first: the response, its results in call order, what was said meanwhile. Empty for a turn's input."""
    messages: int = 0
    """The wire messages it adds, its turn's input left out."""
    size: int = 0
    """The bytes it adds, separators left out."""
    joined: tuple[object, bool, bytes] | None = None
    """
    The wire format of the last window that it was in, whether it opened its turn there, and its wire messages joined by
    commas: behind the turn's input if it did.
    """

    __repr__ = type_alone

    @property
    def is_exchange(self) -> bool:
        """Whether it holds a response."""
        return bool(self.entries) and self.entries[0].kind is RESPONSE


_TRIMMED_AT_ONCE = 16

Inputs = dict[int, list[Entry]]
"""By turn: its input and what was said beside it, newest first."""


def weigh(entries: Iterable[Entry]) -> tuple[int, int]:
    """Return the wire messages of some entries and their bytes, separators left out."""
    messages = size = 0
    for entry in entries:
        messages += entry.messages
        size += entry.size
    return messages, size


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """
    The settled units below a place in the record, oldest first, with running sums; never changed, only replaced.

    `messages[i]` and `size[i]` are what all units before unit `i` add, with the inputs of the turns before its own. So
    the units from `i` on cost the totals less those, whatever was dropped at the front.
    """

    below: int
    """Everything older than this `seq` is in here, as far back as it goes; nothing from there on is."""
    whole: bool
    """Whether it goes back to the beginning of the record."""
    units: list[Unit]
    inputs: Inputs
    messages: list[int]
    size: list[int]
    all_messages: int
    all_size: int
    held: int
    """Bytes that remembering it takes, roughly."""

    __repr__ = type_alone

    def first_fitting(self, messages: int, size: int, turn: int) -> int:
        """
        Return from which unit on they fit into this many messages and bytes, one byte a message for its separator.

        The input of `turn` is not counted: the newer units that go before these have it already.
        """
        shared = weigh(self.inputs.get(turn, ()))
        spare_messages = self.all_messages - shared[0] - messages
        spare = self.all_size + self.all_messages - sum(shared) - size

        def fits(position: int) -> bool:
            of_messages = self.messages[position]
            return of_messages >= spare_messages and self.size[position] + of_messages >= spare

        return bisect_left(range(len(self.units)), True, key=fits)

    def trimmed(self, messages: int, size: int) -> Settled:
        """Return this without its oldest units, but for one more than a window of such limits can hold."""
        needless = self.first_fitting(messages, size, 0) - 1
        if needless < _TRIMMED_AT_ONCE:
            return self
        dropped, units = self.units[:needless], self.units[needless:]
        turns = {unit.turn for unit in units}
        return msgspec.structs.replace(
            self,
            whole=False,
            units=units,
            inputs={turn: said for turn, said in self.inputs.items() if turn in turns},
            messages=self.messages[needless:],
            size=self.size[needless:],
            held=self.held - _held(dropped, [said for turn, said in self.inputs.items() if turn not in turns]),
        )

    def first_from(self, key: int) -> int:
        """Return the position of the first unit that stands at `key` or behind it."""
        return bisect_left(self.units, key, key=lambda unit: unit.key)

    def cost(self, position: int, turn: int) -> tuple[int, int]:
        """Return the messages and bytes of the units from `position` on; the input of `turn` is not counted."""
        if position == len(self.units):
            return 0, 0
        shared = weigh(self.inputs.get(turn, ()))
        return (
            self.all_messages - shared[0] - self.messages[position],
            self.all_size - shared[1] - self.size[position],
        )


def settle(before: Settled | None, below: int, units: Sequence[Unit], inputs: Inputs, *, whole: bool) -> Settled:
    """Return what is settled below `below`: `before`, and further `units`, oldest first, whose inputs are given."""
    messages = size = held = turn = 0
    of_messages: list[int] = []
    of_size: list[int] = []
    old: list[Unit] = []
    if before is not None and before.units:
        messages, size, held = before.all_messages, before.all_size, before.held
        of_messages += before.messages
        of_size += before.size
        old = before.units
        turn = old[-1].turn
    shared = weigh(inputs.get(turn, ()))
    new: list[Sequence[Entry]] = []
    for unit in units:
        if unit.turn != turn:
            turn = unit.turn
            said = inputs.get(turn, ())
            shared = weigh(said)
            messages += shared[0]
            size += shared[1]
            new.append(said)
        # The input is in the totals since the turn's first unit; a window that begins in the turn needs it too.
        of_messages.append(messages - shared[0])
        of_size.append(size - shared[1])
        messages += unit.messages
        size += unit.size
    return Settled(
        below=below,
        whole=whole,
        units=[*old, *units],
        inputs=inputs,
        messages=of_messages,
        size=of_size,
        all_messages=messages,
        all_size=size,
        held=held + _held(units, new),
    )


def _held(units: Iterable[Unit], inputs: Iterable[Sequence[Entry]]) -> int:
    """Return how many bytes these take in memory, roughly: their payloads, and their messages once they are joined."""
    parts = [*inputs, *[unit.entries for unit in units]]
    return sum([len(entry.payload) + entry.size for entries in parts for entry in entries])
