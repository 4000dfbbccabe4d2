"""
What the four formats share: how a message becomes a draft, how sizes add up, how the results of a call are written.

A format says in a handful of methods what its messages look like. Everything that the record relies on is here, once:
the slice that is sent, and the size formula.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from minutebook.errors import DecisionHistoryCorrupt, InvalidMessage, InvalidValue, PairingViolation
from minutebook.model import codec
from minutebook.model.entries import IN_MESSAGE_BEFORE, Call, Draft, Kind
from minutebook.providers.wire import _bodies, _slices
from minutebook.providers.wire._mistaken import mistaken
from minutebook.providers.wire._transcript import Waiting, Walk
from minutebook.providers.wire._values import Answer, Piece, Reply, Side, are_parts, array, as_text, kind_of, members

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Mapping

    from minutebook.model.codec import JSON


class Format(ABC):
    """
    A wire format (see `minutebook.ports.Wire`): the parts that a provider's module does not have to say again.

    The methods above the line are what a format is; those below are written in terms of them.
    """

    name: str = ""
    response_wrap: tuple[bytes, bytes] = (b"", b"")
    results_wrap: tuple[bytes, bytes] = (b"", b"")
    grouped: bool = False
    binds: bool = False
    id_form: re.Pattern[str] | None = None
    loops: bool = True
    list_key: str = "content"
    """Where a message has what it says: a text, or a list of parts."""
    result_parts: frozenset[str] = frozenset()
    """The types of the parts that a result may be a list of."""

    @abstractmethod
    def user_message(self, text: str) -> JSON:
        """Return a user's message that says `text`."""

    @abstractmethod
    def text_part(self, text: str) -> JSON:
        """Return a part of a user's message that says `text`."""

    @abstractmethod
    def side(self, value: JSON, path: str) -> Side:
        """Return who speaks in the message, refusing what is none: `InvalidMessage`."""

    @abstractmethod
    def answer(self, payload: bytes, value: JSON, path: str) -> Answer:
        """Return where the answer stands in a response's body or in an assistant's message."""

    @abstractmethod
    def call_list(self, fragment: bytes, path: str) -> list[tuple[Call, JSON]]:
        """Return the calls in a response's fragment, which stood at `path`, in order, with their arguments."""

    @abstractmethod
    def replies(self, value: JSON, path: str) -> list[Reply]:
        """Return what each result in a message of side RESULTS answers."""

    def results_span(self, payload: bytes, value: JSON) -> tuple[int, int]:  # noqa: ARG002 - grouped formats look
        """Return the slice of a complete result, or of a message of side RESULTS, that stands in `results_wrap`."""
        return _slices.find(payload)

    def told(self, output: JSON) -> JSON:
        """Return a tool's output in the form in which results hold data: as a text, any other value as JSON text."""
        return as_text(output)

    @abstractmethod
    def reply(self, call: Call, output: JSON, *, error: bool) -> JSON:
        """Return what answers `call` with `output`: a message, or where results are grouped, a block of one."""

    @abstractmethod
    def complete(self, output: JSON) -> Reply | None:
        """Return what `output` answers, if it already is a complete result of this format."""

    def check_complete(self, call: Call, output: JSON) -> None:
        """
        Refuse a complete result in a form that the provider does not take for `call`, or with anything beside it.

        Raises:
            InvalidMessage: `path` names the place.
        """
        del call, output

    def pieces(self, messages: Iterable[Piece]) -> Iterable[Piece]:
        """Return the steps of a transcript; here every message is one."""
        return messages

    @abstractmethod
    def rename(self, fragment: bytes, names: Sequence[tuple[str, str]]) -> bytes:
        """Return a fragment with its call ids replaced, each pair used once, in order."""

    def is_compacted(self, value: JSON) -> bool:
        """Return whether a response in a transcript holds what the provider made of messages before it."""
        return any(kind_of(part) == "compaction" for part in self._parts_of(value))

    def precedes(self, item: JSON) -> bool:
        """Return whether an item that is no user's may stand before a user's message in one input; here none may."""
        del item
        return False

    def _parts_of(self, value: JSON) -> list[JSON]:
        held = value.get(self.list_key) if isinstance(value, dict) else value
        return held if isinstance(held, list) else []

    def sendable(self, fragment: bytes) -> bytes:
        """Return the fragment as it is: this format's providers take back whatever they said."""
        return fragment

    def unbound(self, fragment: bytes) -> bytes:
        """Return the fragment as it is: this format binds no reasoning to what stands before it."""
        return fragment

    # -------------------------------------------------------------------------------------------------------------

    def input(self, message: object) -> Draft:
        """
        Return the draft of what opens a turn: a text, one message, or a list of messages of this format.

        Raises:
            InvalidMessage: no message of the user's side; `path` names the place.
            InvalidValue: what JSON cannot hold.
        """
        return self._spoken(Kind.INPUT, message)

    def injection(self, message: object) -> Draft:
        """Return the draft of a further message inside a turn; same forms and refusals as `input`."""
        return self._spoken(Kind.INJECTION, message)

    def response(self, body: object) -> Draft:
        """
        Return the draft of a raw response; bytes are kept as received, and a slice of them is what is sent back.

        A response without usable content is kept and has nothing to send (case O-13).

        Raises:
            InvalidMessage: an error object, a body without a message or with several alternatives, a stream or a piece
                of one, an HTTP response in the place of its body, or the body of another format.
            InvalidValue: not strict JSON.
        """
        payload, value = _bodies.opened_response(body)
        try:
            return self.responded(payload, value, "$")
        except InvalidMessage as error:
            told = mistaken(value, self.name) or error
            raise InvalidMessage(f"{told}; this conversation's format is {self.name}", **error.facts) from None

    def calls(self, fragment: bytes) -> tuple[tuple[Call, JSON], ...]:
        """Return the calls of a response's fragment with their arguments as the provider wrote them."""
        return tuple(self.call_list(fragment, "$")) if fragment else ()

    def result(self, position: int, call: Call, output: object, *, error: bool = False) -> Draft:
        """
        Return the draft that answers `call` with a tool's output, which is data: a text, or any other value as JSON.

        Whatever it looks like, a message, a block or a part of this format too, it is that text or value.

        Raises:
            InvalidMessage: a call whose results are no data; see `ready_result`.
            InvalidValue: what JSON cannot hold.
        """
        _, value = _bodies.opened(output)
        return self._replied(position, call, self.told(value), error=error)

    def ready_result(self, position: int, call: Call, output: object, *, error: bool = False) -> Draft:
        """
        Return the draft that answers `call` with what already has this format's own form.

        That is a complete result of `call`, taken as it stands, or a list of the parts that results may hold. Nothing
        stands beside the result, and no other parts in it: whoever writes one for a tool says nothing as somebody else.

        Raises:
            PairingViolation: a complete result that answers another call.
            InvalidMessage: neither of the two; one in a form that the provider does not take; or more than a result.
            InvalidValue: what JSON cannot hold.
        """
        payload, value = _bodies.opened(output)
        reply = self.complete(value)
        if reply is None:
            if not are_parts(value, self.result_parts):
                raise InvalidMessage(
                    f"neither a complete result of the format {self.name} nor a list of parts that its results hold; "
                    "give a tool's output without raw=True",
                    path="$",
                )
            return self._replied(position, call, value, error=error)
        if reply.id != call.id or reply.name not in ("", call.name):
            raise PairingViolation(
                f"the message answers another call than the one at position {position}; give it with its own call",
                call=position,
            )
        self.check_complete(call, value)
        return self._resulted(payload, value, position)

    def _replied(self, position: int, call: Call, output: JSON, *, error: bool) -> Draft:
        value = self.reply(call, output, error=error)
        return self._resulted(codec.encode(value), value, position)

    def answered(self, payload: bytes, calls: Mapping[int, Call]) -> tuple[Draft, ...]:
        """
        Return the drafts of a recorded payload that answers exactly `calls`, by position: a result, or a message.

        Results find their calls as in a transcript.

        Raises:
            InvalidMessage: no result of this format.
            PairingViolation: it answers other calls, or not all of these.
        """
        payload, value = _bodies.opened(payload)
        reply = self.complete(value) if len(calls) == 1 else None
        if reply is not None and Waiting(calls).take(reply) is not None:
            return (self._resulted(payload, value, *calls),)
        walk = Walk(self)
        walk.waiting = Waiting(calls)
        side = self.side(value, "$")
        if side is not Side.RESULTS:
            raise InvalidMessage("not a result", path="$")
        walk.take(Piece("$", 0, side, payload, value))
        if walk.waiting.calls:
            raise PairingViolation(f"the message leaves {len(walk.waiting.calls)} of its calls unanswered")
        return tuple(walk.drafts)

    def outputs(
        self,
        payload: bytes,
        position: int,
        waiting: Mapping[int, Call],  # noqa: ARG002 - grouped formats look
    ) -> tuple[tuple[int | None, JSON], ...]:
        """Return what a recorded result gives its call: here every result is a message of its own."""
        return ((position, codec.decode(payload)),)

    def transcript(self, messages: Sequence[object]) -> tuple[Draft, ...]:
        """
        Return the drafts of a ready transcript: messages, SDK objects or bytes, or one JSON array as bytes.

        User messages in a row open one turn: the first is its input, the others are injections, and so is what a
        user says while calls wait. Results find their calls within the newest exchange, by id, else by order and name.
        The last exchange may be unfinished. Linear in the transcript.

        Raises:
            InvalidMessage: no message of this format, instructions after the conversation has begun, or a compaction
                that neither stands behind an input nor can open one: it would be in no window.
            PairingViolation: a result without a waiting call, or a response while calls wait; `index` is the message.
        """
        walk = Walk(self)
        for piece in self.pieces(self._opened(messages)):
            walk.take(piece)
        return walk.end()

    def _opened(self, messages: object) -> Iterable[Piece]:
        for index, message in enumerate(_listed(messages)):
            path = f"$[{index}]"
            payload, value = _bodies.opened(message, path)
            yield Piece(path, index, self.side(value, path), payload, value)

    def _spoken(self, kind: Kind, message: object) -> Draft:
        if isinstance(message, str):
            message = self.user_message(codec.text(message, "$"))
        payload, value = _bodies.opened(message)
        if not isinstance(value, list):
            self._check_user(value, "$")
            return self.spoken(kind, payload)
        if not value:
            raise InvalidMessage("an empty list opens no turn; give at least one message", path="$")
        for index, item in enumerate(value):
            if index == len(value) - 1 or not self.precedes(item):
                self._check_user(item, f"$[{index}]")
        return self.spoken_together(kind, payload, len(value))

    def spoken_together(self, kind: Kind, payload: bytes, count: int) -> Draft:
        """Return the draft of a list of so many messages."""
        start, stop = _slices.inside(payload, _slices.find(payload), count)
        return Draft(
            kind=kind, payload=payload, messages=count, size=stop - start - (count - 1), start=start, stop=stop
        )

    def spoken(self, kind: Kind, payload: bytes) -> Draft:
        """Return the draft of one message of the user's."""
        start, stop = _slices.find(payload)
        return Draft(kind=kind, payload=payload, messages=1, size=stop - start, start=start, stop=stop)

    def prefaced(self, text: str, fragment: bytes) -> bytes:
        """Return an input's fragment with a text before what its first message says, as a part of its own."""
        try:
            messages = _slices.items(b"[%b]" % fragment)
            place = next(place for place, each in enumerate(messages) if not self.precedes(codec.decode(each)))
            value = members(codec.decode(messages[place]), "$")
        except (StopIteration, msgspec.MsgspecError, InvalidMessage, InvalidValue):  # its text may quote the message
            raise DecisionHistoryCorrupt(
                "the input of a window's oldest turn is no message; verify the store"
            ) from None
        said = value.get(self.list_key)
        parts = [self.text_part(said)] if isinstance(said, str) else array(said, f"$.{self.list_key}")
        messages[place] = codec.encode({**value, self.list_key: [self.text_part(text), *parts]})
        return b",".join(messages)

    def _check_user(self, value: JSON, path: str) -> None:
        side = self.side(value, path)
        if side is Side.USER:
            return
        hints = {
            Side.INSTRUCTIONS: "instructions are no part of the history; send them with each request",
            Side.ASSISTANT: "a model's message is given to `respond` or in a transcript",
            Side.RESULTS: "results are given to `result`, each with its call",
        }
        raise InvalidMessage(f"not a user's message: {hints[side]}", path=path)

    def responded(self, payload: bytes, value: JSON, path: str) -> Draft:
        """Return the draft of a response whose body stands at `path`."""
        answer = self.answer(payload, value, path)
        if not answer.messages:
            return Draft(kind=Kind.RESPONSE, payload=payload)
        fragment = payload[answer.start : answer.stop]
        calls = tuple(call for call, _ in self.call_list(fragment, answer.path))
        size = len(self.sendable(fragment)) + _length(self.response_wrap) - (answer.messages - 1)
        messages = answer.messages
        if calls and self.grouped:
            # The message of the results is counted here. Each result adds itself and a comma, one comma too many.
            messages += 1
            size += _length(self.results_wrap) - 1
        return Draft(
            kind=Kind.RESPONSE,
            payload=payload,
            messages=messages,
            size=size,
            start=answer.start,
            stop=answer.stop,
            calls=calls,
        )

    def _resulted(self, payload: bytes, value: JSON, position: int) -> Draft:
        start, stop = self.results_span(payload, value)
        messages, size = (0, stop - start + 1) if self.grouped else (1, stop - start)
        return Draft(
            kind=Kind.RESULT,
            payload=payload,
            messages=messages,
            size=size,
            start=start,
            stop=stop,
            call=position,
        )

    def resulted_whole(self, piece: Piece, positions: list[int]) -> list[Draft]:
        """Return the drafts of a message of results: the first carries the message whole, the others stand for it."""
        first = self._resulted(piece.payload, piece.value, positions[0])
        rest = [Draft(kind=Kind.RESULT, payload=IN_MESSAGE_BEFORE, call=position) for position in positions[1:]]
        return [first, *rest]


def _listed(messages: object) -> Sequence[object]:
    """Return the messages of a transcript, those of a JSON array as the bytes of each."""
    if isinstance(messages, (bytes, bytearray, memoryview)):
        payload, value = _bodies.opened(cast("bytes", messages))
        if not isinstance(value, list):
            raise InvalidMessage("a transcript is a JSON array of messages", path="$")
        return _slices.items(payload)
    if isinstance(messages, str) or not isinstance(messages, Sequence):
        raise InvalidMessage(
            f"a list of messages is needed here, not a {type(messages).__name__}; put a single message in a list",
            path="$",
        )
    return cast("Sequence[object]", messages)


def _length(wrap: tuple[bytes, bytes]) -> int:
    return len(wrap[0]) + len(wrap[1])
