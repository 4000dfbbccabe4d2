"""
How a ready transcript becomes drafts: turns, exchanges, and results beside their calls.

Results find their calls within the newest exchange alone, since real ids repeat across exchanges (case O-09) and some
are missing. What cannot be paired is refused with its index; nothing is guessed and nothing is left out. What a
provider made of messages that it dropped opens the input behind it where it stands first, since a window begins there.
"""

from __future__ import annotations

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
        self.waiting: dict[int, Call] = {}
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
            kind = Kind.INJECTION if self.asked or self.waiting else Kind.INPUT
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
        if self.waiting:
            raise PairingViolation(
                f"message {piece.index} answers while {len(self.waiting)} call(s) before it wait for their results",
                index=piece.index,
                waiting=tuple(self.waiting),
            )
        if not self.heard and self.wire.is_compacted(piece.value):
            if not isinstance(piece.value, list) or not all(map(self.wire.precedes, piece.value)):
                raise _lost(piece)
            self.opening.append(piece)
            return
        draft = self.wire.responded(piece.payload, piece.value, piece.path)
        self.drafts.append(draft)
        self.waiting = dict(enumerate(draft.calls))
        self.asked = False

    def _answer(self, piece: Piece) -> None:
        positions: list[int] = []
        for reply in self.wire.replies(piece.value, piece.path):
            position = match(self.waiting, reply)
            if position is None:
                raise PairingViolation(
                    f"message {piece.index} holds a result without a waiting call in the exchange before it",
                    index=piece.index,
                )
            del self.waiting[position]
            positions.append(position)
        # The lowest position carries the message, so that whoever renames ids knows which empty results it stands for.
        self.drafts.extend(self.wire.resulted_whole(piece, sorted(positions)))


def _lost(piece: Piece) -> InvalidMessage:
    return InvalidMessage(
        f"message {piece.index} holds a compaction, which stands for messages that are not here; a window begins with "
        "an input, and none follows right behind it, so what it stands for would be lost. Give the transcript with the "
        "messages before it, or leave the compaction out",
        path=piece.path,
        index=piece.index,
    )


def match(waiting: Mapping[int, Call], reply: Reply) -> int | None:
    """Return the position of the call that `reply` answers: by id; where a side has no id, by order and name."""
    by_id = [position for position, call in waiting.items() if reply.id and call.id == reply.id]
    if by_id:
        return by_id[0]
    for position, call in waiting.items():
        if not (reply.id and call.id) and (not reply.name or call.name == reply.name):
            return position
    return None
