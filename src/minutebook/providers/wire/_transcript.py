"""
How a ready transcript becomes drafts: turns, exchanges, and results beside their calls.

Results find their calls within the newest exchange alone, since real ids repeat across exchanges (case O-09) and some
are missing. What cannot be paired is refused with its index; nothing is guessed and nothing is left out. What a
provider made of messages that it dropped opens the input behind it where it stands first, since a window begins there.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from minutebook.errors import InvalidMessage, PairingViolation
from minutebook.model.entries import Call, Draft, Kind
from minutebook.providers.wire import _slices
from minutebook.providers.wire._values import Piece, Reply, Side

if TYPE_CHECKING:
    from collections.abc import Mapping

    from minutebook.providers.wire._format import Format


class Walk:
    """Where a transcript stands while it is read: the calls that wait, and whether the turn has its answer."""

    def __init__(self, wire: Format) -> None:
        self.wire = wire
        self.drafts: list[Draft] = []
        self.waiting = Waiting({})
        self.begun = False
        self.asked = False
        self.heard = False
        """Whether a user has said anything yet."""
        self.opening: list[Piece] = []
        """What stands before the first input, and belongs to it."""

    def take(self, piece: Piece) -> None:
        """Add the drafts of the next step."""
        if piece.side is Side.INSTRUCTIONS:
            self._instruct(piece)
            return
        self.begun = True
        if piece.side is Side.USER:
            self.heard = True
            kind = Kind.INJECTION if self.asked or self.waiting.calls else Kind.INPUT
            self.asked = self.asked or kind is Kind.INPUT
            self.drafts.append(self._spoken(kind, piece.payload))
        elif piece.side is Side.ASSISTANT:
            self._respond(piece)
        else:
            self._answer(piece)

    def end(self) -> tuple[Draft, ...]:
        """Return the drafts of the whole transcript."""
        if self.opening:
            raise _lost(self.opening[0])
        return tuple(self.drafts)

    def _spoken(self, kind: Kind, payload: bytes) -> Draft:
        if not self.opening:
            return self.wire.spoken(kind, payload)
        messages = [*(each for piece in self.opening for each in _slices.items(piece.payload)), payload]
        self.opening = []
        return self.wire.spoken_together(kind, b"[%b]" % b",".join(messages), len(messages))

    def _instruct(self, piece: Piece) -> None:
        if self.begun:
            raise InvalidMessage(
                "instructions inside a transcript; they may only stand at its head, send them with the request",
                path=f"{piece.path}.role",
                index=piece.index,
            )
        self.drafts.append(Draft(kind=Kind.INSTRUCTIONS, payload=piece.payload))

    def _respond(self, piece: Piece) -> None:
        if self.waiting.calls:
            raise PairingViolation(
                f"message {piece.index} answers while {len(self.waiting.calls)} call(s) before it wait for their "
                "results",
                index=piece.index,
                waiting=tuple(self.waiting.calls),
            )
        if not self.heard and self.wire.is_compacted(piece.value):
            if not isinstance(piece.value, list) or not all(map(self.wire.precedes, piece.value)):
                raise _lost(piece)
            self.opening.append(piece)
            return
        draft = self.wire.responded(piece.payload, piece.value, piece.path)
        self.drafts.append(draft)
        self.waiting = Waiting(dict(enumerate(draft.calls)))
        self.asked = False

    def _answer(self, piece: Piece) -> None:
        positions: list[int] = []
        for reply in self.wire.replies(piece.value, piece.path):
            position = self.waiting.take(reply)
            if position is None:
                raise PairingViolation(
                    f"message {piece.index} holds a result without a waiting call in the exchange before it",
                    index=piece.index,
                )
            positions.append(position)
        # The lowest position carries the message, so that whoever renames ids knows which empty results it stands for.
        self.drafts.extend(self.wire.resulted_whole(piece, sorted(positions)))


def _lost(piece: Piece) -> InvalidMessage:
    return InvalidMessage(
        "a compaction stands for messages that are not here; a window begins with an input, and none follows right "
        "behind it, so what it stands for would be lost. Give the transcript with the messages before it, or leave the "
        "compaction out",
        path=piece.path,
        index=piece.index,
    )


class Waiting:
    """
    The calls of one exchange that wait for results, and how a result finds its own.

    By id; where a side has no id, by order and name. Each call is looked at a few times however many there are.
    """

    def __init__(self, calls: Mapping[int, Call]) -> None:
        """Begin with `calls` by position, in their order."""
        self.calls = dict(calls)
        self._queues: dict[tuple[str, str], deque[int]] = {}
        for position, call in calls.items():
            for queue in (("id", call.id), ("any", ""), ("any", call.name)):
                self._queues.setdefault(queue, deque()).append(position)
            for queue in () if call.id else (("bare", ""), ("bare", call.name)):
                self._queues.setdefault(queue, deque()).append(position)

    def take(self, reply: Reply) -> int | None:
        """Return the position of the call that `reply` answers, which waits no more; `None` if none does."""
        if not reply.id:
            return self._first("any", reply.name)
        found = self._first("id", reply.id)
        return self._first("bare", reply.name) if found is None else found

    def _first(self, side: str, name: str) -> int | None:
        queue = self._queues.get((side, name), deque())
        while queue and queue[0] not in self.calls:
            queue.popleft()
        if not queue:
            return None
        del self.calls[queue[0]]
        return queue.popleft()
