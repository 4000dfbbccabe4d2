"""
The history of a chat: which messages of a record it has, and how it is shortened (SPEC A3, A5, A6).

It is a list of messages, not of exchanges: calls and their results are no part of it. It begins behind the newest start
and holds at most so many messages. What leaves it leaves no record, and nothing here is stored but the start and the
places of instructions, in the summary's entry: the rest is a pure function of the record and the limit.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Final

import msgspec

from minutebook.errors import DecisionHistoryCorrupt
from minutebook.model.chat_messages import role_of
from minutebook.model.codec import reread
from minutebook.model.entries import ABANDONED, INJECTION, INPUT, RESPONSE, Entry
from minutebook.model.shown import type_alone
from minutebook.policy.standing import pass_over

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from minutebook.model.record import Header
    from minutebook.model.turns import Role

INSTRUCTING = frozenset({"system", "developer"})
"""The roles of instructions: they outlive what was said, and no summary tells them (SPEC A5, A6; case O-17)."""


class Said(msgspec.Struct, frozen=True):
    """One message of a chat, and the entry that holds it."""

    role: Role
    entry: Entry

    __repr__ = type_alone

    @property
    def seq(self) -> int:
        """Where it stands in the record."""
        return self.entry.seq

    @property
    def instructs(self) -> bool:
        """Whether it is an instruction."""
        return self.role in INSTRUCTING


def said_in(entry: Entry) -> Said | None:
    """
    Return the message that an entry is in a chat's history; `None` for calls, results and marks.

    Raises:
        DecisionHistoryCorrupt: a message without a role of a chat.
    """
    if entry.kind is INPUT:
        return Said("user", entry)
    if entry.kind is RESPONSE:
        return None if entry.calls else Said("assistant", entry)
    if entry.kind is not INJECTION:
        return None
    role = role_of(reread(entry.fragment))
    if role is None:
        raise DecisionHistoryCorrupt(f"entry {entry.seq} is no message of a chat; verify the store", seq=entry.seq)
    return Said(role, entry)


class Backward:
    """
    The standing messages of a record, as its entries come in newest first.

    An attempt that was abandoned is passed over, and so is an input that nothing has answered, or not yet: it enters
    the history together with its answer.
    """

    def __init__(self, header: Header) -> None:
        """Begin at the end of the record, or right before the attempt that is under way."""
        state = header.attempt.state if header.attempt else header.state
        self.next_seq = header.attempt.first - 1 if header.attempt else header.entries
        self._passed = {state.turn} if state.unanswered else set[int]()
        self.said: list[Said] = []
        """What was found so far, newest first."""

    def add(self, entries: Iterable[Entry]) -> None:
        """Take the next entries, newest first and without a gap."""
        for entry in entries:
            if entry.seq > self.next_seq:
                continue
            self.next_seq = entry.seq - 1
            if entry.kind is ABANDONED:
                self.next_seq = pass_over(entry, entry.seq, self._passed) - 1
            elif entry.seq not in self._passed and (found := said_in(entry)) is not None:
                self.said.append(found)


def shortened(said: Sequence[Said], limit: int) -> tuple[Said, ...]:
    """
    Return the messages that stay under `limit`: the oldest that are no instructions leave first (SPEC A5).

    Only where instructions alone are too many do they leave too, the oldest first, but for the first of them. So under
    a limit that they fill, what is said leaves at once. A developer's message is one of them: SPEC A5 names system
    messages, case O-17 both. Shortening what was shortened before and has grown gives the same as shortening all of it
    at once.
    """
    over = len(said) - limit
    if over <= 0:
        return tuple(said)
    plain = [place for place, each in enumerate(said) if not each.instructs]
    instructions = [place for place, each in enumerate(said) if each.instructs]
    leaving = set([*plain, *instructions[1:]][:over])
    return tuple(each for place, each in enumerate(said) if place not in leaving)


def asked_with(said: Sequence[Said], asked: Said, limit: int) -> tuple[Said, ...]:
    """Return what a request is made of: the history that `asked` leaves room for, and `asked` in any case (SPEC A5)."""
    return (*(each for each in shortened([*said, asked], limit) if each is not asked), asked)


KEPT_INSTRUCTIONS: Final = 256
"""How many instructions a record keeps the places of at least, for agents with larger limits than the one that adds."""


def kept_places(before: Sequence[int], added: Iterable[int], limit: int) -> tuple[int, ...]:
    """
    Return what a history's opening keeps once instructions are `added`: where they stand, so that none is looked for.

    It is the record's, and an agent's `limit` only its own, so that what another one kept stays (SPEC A10). Where they
    become too many for all of that the oldest leave, but for the first; else each one would cost more than the last.
    """
    places = (*before, *added)
    most = max(limit, len(before), KEPT_INSTRUCTIONS)
    return places if len(places) <= most else places[:1] + places[len(places) - most + 1 :]


def kept_within(places: Sequence[int], limit: int) -> tuple[int, ...]:
    """Return the places of the instructions that a history of at most `limit` messages can have: see `shortened`."""
    return tuple(places if len(places) <= limit else (places[0], *places[len(places) - limit + 1 :]))


def first_input(said: Iterable[Said]) -> int:
    """Return the `seq` of the oldest user's message, with which a request's window begins; 0 if there is none."""
    return next((each.seq for each in said if each.role == "user"), 0)


def opening_input(said: Iterable[Said], start: int) -> int:
    """Return the `seq` of the user's message that opens a window from the exchange at `start` on; 0 for none."""
    return max((each.seq for each in said if each.role == "user" and each.seq <= start), default=0)


def before_window(said: Iterable[Said], first: int) -> list[Said]:
    """Return the instructions that stand before the window which begins at `first`: answers there are not sent."""
    return [each for each in said if each.seq < first and each.instructs]


def left_out(said: Iterable[Said], opening: int, start: int) -> list[Said]:
    """
    Return the instructions that are in no window which opens at `opening` with the exchange at `start`.

    An instruction goes with the exchange that it was said behind, so that of a turn some may leave.
    """
    return [each for each in said if each.instructs and (each.seq < opening or 0 < each.entry.exchange < start)]


def fitting(sizes: Sequence[int], room: int) -> int:
    """Return how many of the first of so many bytes have room together, each with a byte between it and the next."""
    sums = accumulate(size + 1 for size in sizes)
    return sum(total <= room for total in sums)


class Parting(msgspec.Struct, frozen=True, kw_only=True):
    """What leaves a history for a summary, oldest first, and what stays."""

    leaving: tuple[Said, ...]
    staying: tuple[Said, ...]
    start: int
    """The `seq` behind which what stays begins, but for its instructions from before."""

    __repr__ = type_alone

    def untold(self, covered: int) -> list[Said]:
        """
        Return what a summary has to tell that no earlier one, which reaches up to `covered`, has told.

        Answers at the head of what stays are told too, since no request would hold them.
        """
        told = [each for each in self.leaving if each.seq > covered]
        for each in self.staying:
            if each.role == "user" and each.seq > self.start:
                break
            if each.role == "assistant" and each.seq > max(covered, self.start):
                told.append(each)
        return told


KEEP_RECENT: Final = 10
"""How many messages stay whole when the others are summarised (SPEC A6)."""


def kept_whole(said: Sequence[Said], limit: int, held: int | None = None) -> int:
    """
    Return how many of the newest messages stay whole when a summary is made by itself: ten, or half of a smaller room.

    The room is what a history's `limit` leaves beside its instructions, and the `held` messages of a request that does
    not hold all of them. Messages come in pairs, so half of it is counted in pairs too; the next pair has its place in
    the other half, and pushes out nothing that no summary has told.
    """
    room = limit - sum(each.instructs for each in said)
    return max(0, min(KEEP_RECENT, (room if held is None else min(room, held)) // 4 * 2))


def has_grown(said: Sequence[Said], start: int, keep: int) -> bool:
    """Return whether as many messages came behind what stayed whole as did stay: then a summary is worth a request."""
    return sum(each.seq > start for each in said if not each.instructs) >= 2 * keep


def parted(said: Sequence[Said], keep: int) -> Parting:
    """Return what leaves when the newest `keep` messages stay whole, and every instruction (SPEC A6)."""
    older = said[: max(0, len(said) - keep)]
    leaving = tuple(each for each in older if not each.instructs)
    staying = tuple(each for each in older if each.instructs) + tuple(said[len(older) :])
    return Parting(leaving=leaving, staying=staying, start=older[-1].seq if older else 0)
