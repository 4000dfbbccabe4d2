"""
What the attempts at a message that came to no answer have executed, so that the next attempt goes on behind it.

A tool's effect is not undone by the mark that takes its call out of every window. So whoever says the same words again
has the model begin with the calls that were executed and what came of them: as much of that as the record holds. Calls
come one after the other, and what one came to is durable before the next begins: so of the first without a result
nobody knows what came of it, and it is told as that, and those behind it were never begun (case O-33, promise I-44).

What is carried on is in the record already. It is recorded again no sooner than something comes of the new attempt that
stands behind it, so that what fails without that adds its mark alone, however much it carries (SPEC B1).

What failed often fails often in that way: a server that is away. So a process remembers from which mark to look where,
and one that does not reads with pages that grow, so that neither notices how many attempts there were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from minutebook.chat.results import CHAT_INTERFACE, refusal_in, told_in
from minutebook.model.decisions import CallReference, Observation, ProposedCall
from minutebook.model.entries import ABANDONED, RESPONSE, RESULT, Draft, Entry
from minutebook.model.pause import pause
from minutebook.model.shown import type_alone
from minutebook.ports import STREAM_PAGE
from minutebook.providers.chat import CHAT_WIRE
from minutebook.providers.native import read_arguments
from minutebook.runtime.observations import ABANDONED_BYTES, interrupted, refused, shortened

if TYPE_CHECKING:
    from collections.abc import Iterable

    from minutebook.model.record import Header
    from minutebook.record_reader import RecordReader

_ROWS: Final = 16
_MOST_ROWS: Final = 4096
_MORE: Final = 4
"""By what the next page is larger: most attempts are short, and few are many."""
_TOO_LARGE = b'{"reason":"too_large"}'
_MOST_TOLD: Final = (ABANDONED_BYTES, 64)
"""UTF-8 bytes of JSON that a result may have once a request had no room, and once one had none for what was left."""


class Executed(msgspec.Struct, frozen=True, kw_only=True):
    """What was executed for a message: the drafts of the calls with what came of them, and the observations."""

    drafts: tuple[Draft, ...] = ()
    observations: tuple[Observation, ...] = ()

    __repr__ = type_alone


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What a process knows of the attempts up to an entry: its place, and the chain's digest after it."""

    seq: int = 0
    digest: bytes = b""
    next_seq: int = 0
    """Where the attempt ends that called something; 0 where none has."""
    too_large: int = 0
    """How many attempts had no room since for what that attempt had come to."""

    __repr__ = type_alone


NOTHING_SEEN: Final = Seen()


class Attempts:
    """
    The newest attempt at the message that is being answered which called anything, as its entries come in newest first.

    It holds what the attempts before it had executed, so that nothing older is asked for.
    """

    def __init__(self, header: Header, seen: Seen = NOTHING_SEEN, too_large: int = 0) -> None:
        """
        Begin behind the attempt that is under way, which has recorded nothing yet; `seen` is known already.

        So many attempts had no room in later turns of the message, in which nothing was called.
        """
        self._turn = header.state.turn
        self._before = seen
        self._newest: Entry | None = None
        self._called_until = 0
        self._whole = False
        self._responses: list[Entry] = []
        self._results: dict[tuple[int, int], Entry] = {}
        self.too_large = too_large
        """How many attempts had no room since anything was called."""
        self.next_seq = header.attempt.first - 1 if header.attempt else header.entries

    @property
    def done(self) -> bool:
        """Whether everything was read that is looked for."""
        return self._whole or self.next_seq <= self._turn

    def add(self, entries: Iterable[Entry]) -> None:
        """Take the next entries, newest first; those behind `next_seq` are passed over."""
        for entry in entries:
            if self.done:
                return
            if entry.seq > self.next_seq:
                continue
            self.next_seq = entry.seq - 1
            self._newest = self._newest or entry
            self._whole = entry.kind is ABANDONED and bool(self._responses)  # the mark of the attempt before
            if self._whole:
                return
            # Nowhere else: within an attempt the mark where it ends would be jumped over.
            known = not self._called_until and entry.digest == self._before.digest
            if known and entry.seq == self._before.seq:
                self.too_large += self._before.too_large
                self.next_seq = self._before.next_seq
            elif entry.kind is ABANDONED:
                self.too_large += entry.payload == _TOO_LARGE
            elif entry.kind is RESULT or (entry.kind is RESPONSE and entry.calls):
                self._called_until = self._called_until or entry.seq
                if entry.kind is RESPONSE:
                    self._responses.append(entry)
                else:
                    self._results[entry.exchange, entry.call] = entry

    @property
    def seen(self) -> Seen:
        """What is known once everything was read."""
        newest = self._newest
        if newest is None:
            return NOTHING_SEEN
        return Seen(seq=newest.seq, digest=newest.digest, next_seq=self._called_until, too_large=self.too_large)

    def executed(self) -> Executed:
        """
        Return what that attempt executed, oldest first.

        Where a request had no room for it since, by our limits or by the server's, a long result may be what did not
        fit: then it is told that the call was executed, and the result is left out. Where that did not do, so is any.
        """
        drafts: list[Draft] = []
        observations: list[Observation] = []
        for response in reversed(self._responses):
            drafts.append(CHAT_WIRE.response(response.payload))
            lost = False
            for position, call in enumerate(response.calls):
                result = self._results.get((response.seq, position))
                seen = self._observation(_proposed(response, position), result, begun=not lost)
                lost = lost or result is None
                drafts.append(CHAT_INTERFACE.result(position, call, seen))
                observations.append(seen)
        return Executed(drafts=tuple(drafts), observations=tuple(observations))

    def _observation(self, call: ProposedCall, result: Entry | None, *, begun: bool) -> Observation:
        if result is None:
            return interrupted(call) if begun else refused(call, "run_stopped")
        refusal = refusal_in(result)
        if refusal is not None:
            return msgspec.structs.replace(refused(call, "run_stopped"), value=refusal)
        told = told_in(result)
        # The text as the model was told it, an error of the tool's too: it counts against the budgets as executed.
        return Observation(
            capability=call.capability,
            arguments=call.arguments,
            value=told if self.too_large == 0 else shortened(told, _MOST_TOLD[self.too_large > 1]),
            reference=call.reference,
        )


def _proposed(response: Entry, position: int) -> ProposedCall:
    _, given = CHAT_WIRE.calls(response.fragment)[position]
    arguments = read_arguments(given)
    return ProposedCall(
        capability=response.calls[position].name,
        arguments=arguments if isinstance(arguments, dict) else {},
        reference=CallReference(response.seq, position),
    )


async def read_attempts(reader: RecordReader, header: Header, seen: Seen, too_large: int = 0) -> Attempts:
    """Return the attempts before the one under way at its message, once they are read; none at a first attempt."""
    attempts, rows = Attempts(header, seen, too_large), _ROWS
    while not attempts.done:
        await reader.read_on(header, attempts, msgspec.structs.replace(STREAM_PAGE, rows=rows))
        await pause()
        rows = min(_MORE * rows, _MOST_ROWS)
    return attempts
