"""
What the attempts at a message that came to no answer have executed, so that the next attempt goes on behind it.

A tool's effect is not undone by the mark that takes its call out of every window. So whoever says the same words again
has the model begin with the calls that were executed and what came of them: as much of that as the record holds. A call
of which it holds no result was under way, or its result was lost with the process: nobody knows what came of it, and it
is told as that (case O-33, promise I-44).

What failed often fails often, without a call: a server that is away. So a process remembers up to which mark there was
none, and one that does not reads with pages that grow, so that neither notices how many attempts there were (SPEC B1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import msgspec

from minutebook.model import codec
from minutebook.model.decisions import CallReference, Observation, ProposedCall
from minutebook.model.entries import ABANDONED, RESPONSE, RESULT, Draft, Entry
from minutebook.model.pause import pause
from minutebook.model.shown import type_alone
from minutebook.ports import STREAM_PAGE
from minutebook.providers.chat import CHAT_WIRE
from minutebook.providers.native import Native
from minutebook.providers.openai_chat import CHAT
from minutebook.runtime.observations import interrupted, shortened

if TYPE_CHECKING:
    from collections.abc import Iterable

    from minutebook.model.codec import JSON
    from minutebook.model.record import Header
    from minutebook.record_reader import RecordReader

_ROWS: Final = 16
_MOST_ROWS: Final = 4096
_MORE: Final = 4
"""By what the next page is larger: most attempts are short, and few are many."""
_REFUSED = b'{"reason":"refused"}'
_NATIVE = Native(CHAT_WIRE, CHAT)


class Executed(msgspec.Struct, frozen=True, kw_only=True):
    """What was executed for a message: the drafts of the calls with what came of them, and the observations."""

    drafts: tuple[Draft, ...] = ()
    observations: tuple[Observation, ...] = ()

    __repr__ = type_alone


class Mark(msgspec.Struct, frozen=True):
    """An entry by its place and the chain's digest after it, which no other record has there."""

    seq: int
    digest: bytes

    __repr__ = type_alone


NO_MARK: Final = Mark(0, b"")


class Attempts:
    """
    The newest attempt at the message that is being answered which called anything, as its entries come in newest first.

    It began with what the attempts before it had executed, so that nothing older is asked for.
    """

    def __init__(self, header: Header, bare: Mark = NO_MARK) -> None:
        """
        Begin behind the attempt that is under way, which has recorded nothing yet.

        Up to the mark `bare` nothing is known to have been called for the message.
        """
        self._turn = header.state.turn
        self._bare = bare
        self._newest = NO_MARK
        self._whole = False
        self._responses: list[Entry] = []
        self._results: dict[tuple[int, int], Entry] = {}
        self._refused = False
        self.next_seq = header.attempt.first - 1 if header.attempt else header.entries

    @property
    def done(self) -> bool:
        """Whether everything was read that is looked for."""
        return self._whole or self.next_seq <= self._turn

    def add(self, entries: Iterable[Entry]) -> None:
        """Take the next entries, newest first and without a gap."""
        for entry in entries:
            if self.done:
                return
            self.next_seq = entry.seq - 1
            place = Mark(entry.seq, entry.digest)
            self._newest = self._newest if self._newest.seq else place
            if entry.kind is ABANDONED:
                self._whole = bool(self._responses)  # this is the mark of the attempt before
                self._refused |= not self._whole and entry.payload == _REFUSED
                self._whole |= place == self._bare
            elif entry.kind is RESPONSE and entry.calls:
                self._responses.append(entry)
            elif entry.kind is RESULT:
                self._results[entry.exchange, entry.call] = entry

    @property
    def bare(self) -> Mark:
        """The mark up to which nothing was called, once everything was read: the newest one, if that is so of it."""
        return NO_MARK if self._responses else self._newest

    def executed(self) -> Executed:
        """
        Return what that attempt executed, oldest first.

        Where the history refused since, a long result may be what did not fit: then it is told that the call was
        executed, and the result is left out.
        """
        drafts: list[Draft] = []
        observations: list[Observation] = []
        for response in reversed(self._responses):
            drafts.append(CHAT_WIRE.response(response.payload))
            for position, call in enumerate(response.calls):
                seen = self._observation(response, position)
                drafts.append(_NATIVE.result(position, call, seen))
                observations.append(seen)
        return Executed(drafts=tuple(drafts), observations=tuple(observations))

    def _observation(self, response: Entry, position: int) -> Observation:
        _, given = CHAT_WIRE.calls(response.fragment)[position]
        arguments = codec.decode(given.encode()) if isinstance(given, str) else given
        call = ProposedCall(
            capability=response.calls[position].name,
            arguments=arguments if isinstance(arguments, dict) else {},
            reference=CallReference(response.seq, position),
        )
        result = self._results.get((response.seq, position))
        if result is None:
            return interrupted(call)
        told = cast("dict[str, JSON]", codec.reread(result.fragment))["content"]
        # The text as the model was told it, an error too: whether a call was refused is not asked of a text that a tool
        # may have written, so that each counts against the budgets as executed.
        return Observation(
            capability=call.capability,
            arguments=call.arguments,
            value=shortened(told) if self._refused else told,
            reference=call.reference,
        )


async def read_attempts(reader: RecordReader, header: Header, bare: Mark) -> Attempts:
    """Return the attempts before the one under way at its message, once they are read; none at a first attempt."""
    attempts, rows = Attempts(header, bare), _ROWS
    while not attempts.done:
        await reader.read_on(header, attempts, msgspec.structs.replace(STREAM_PAGE, rows=rows))
        await pause()
        rows = min(_MORE * rows, _MOST_ROWS)
    return attempts
