"""
A client's whole transcript beside the record: what of it is not recorded yet (case O-18).

Messages are compared in their order, but the results of one exchange by the call that they answer. Parallel calls end
in any order, one side has their results in one message and the other in several, and a parked call's result comes late:
every provider takes these as the same conversation, and a window shows them so.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec

from minutebook.errors import DecisionHistoryConflict
from minutebook.model.codec import JSON, decode
from minutebook.model.entries import INJECTION, INPUT, RESPONSE, RESULT, Call, Draft, Entry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from minutebook.ports import Wire

_SPOKEN = frozenset({INPUT, INJECTION})
_GIVEN = frozenset({"input", "args", "arguments"})
"""Where a call has what it is given, in which a null is a value like any other."""


class Continuation:
    """The drafts of a whole transcript, as one entry of the record after the other is found among them."""

    def __init__(self, wire: Wire, drafts: Sequence[Draft]) -> None:
        """Take the transcript; nothing of it is found yet."""
        self._wire = wire
        self._steps: list[_Step] = []
        self._found = 0
        self._answered: dict[int, _Answers] = {}
        answering: list[Draft] = []
        for number, draft in enumerate(drafts, 1):
            if draft.kind is RESULT:
                answering.append(draft)
                continue
            step = _Step(number, draft)
            self._steps.append(step)
            answering = step.results if draft.kind is RESPONSE else answering

    def take(self, entry: Entry) -> None:
        """
        Find the next entry of the record in the transcript.

        Raises:
            DecisionHistoryConflict: something else stands there, or nothing.
        """
        if entry.kind is RESULT:
            self._take_result(entry)
            return
        step = self._steps[self._found] if self._found < len(self._steps) else None
        same = step is not None and _is_same(self._wire, step.draft, entry)
        if entry.kind is RESPONSE and not entry.fragment and not same:
            return  # a body without usable content is in no window, and so in no client's list (case O-13)
        if step is None:
            raise DecisionHistoryConflict(
                f"the transcript has {self._found} messages beside its results and the record more; it is not this "
                "conversation's",
                seq=entry.seq,
            )
        if not same:
            step.draft = self._rest(step, entry)
            return
        self._found += 1
        if entry.kind is RESPONSE:
            self._answered[entry.seq] = _Answers(self._wire, entry.calls, step.results)

    def _rest(self, step: _Step, entry: Entry) -> Draft:
        """Return what a response says beyond a recorded one: in a list of items two in a row look like one."""
        if step.draft.kind is entry.kind is RESPONSE and not entry.calls:
            given, recorded = _answered(self._wire, _fragment(step.draft)), _answered(self._wire, entry.fragment)
            if recorded and given[: len(recorded)] == recorded:
                return self._wire.response(_members(_fragment(step.draft))[len(recorded) :])
        raise _conflict(f"entry {step.number} of the transcript is not what is recorded", entry)

    def _take_result(self, entry: Entry) -> None:
        answers = self._answered.get(entry.exchange)
        if answers is None or not answers.take(entry):
            raise _conflict("the transcript has not the result that is recorded", entry)

    def left(self) -> tuple[Draft, ...]:
        """
        Return the drafts that the record has not, to be recorded in this order.

        Raises:
            DecisionHistoryConflict: a message of results is recorded in part, and what stands beside them is not.
        """
        left = [draft for exchange, answers in self._answered.items() for draft in answers.left(exchange)]
        for step in self._steps[self._found :]:
            left += [step.draft, *step.results]
        return tuple(left)


class _Step:
    """One draft that is no result, the place that it has in the transcript, and the results that follow a response."""

    __slots__ = ("draft", "number", "results")

    def __init__(self, number: int, draft: Draft) -> None:
        self.number = number
        self.draft = draft
        self.results: list[Draft] = []


class _Side:
    """What the results of one exchange say on one side: by the position of the call, or by the text beside them."""

    def __init__(self, wire: Wire, calls: Sequence[Call]) -> None:
        self._wire = wire
        self._waiting = dict(enumerate(calls))
        self._beside: dict[str, int] = {}

    def told(self, payload: bytes, position: int) -> dict[int | str, JSON]:
        told: dict[int | str, JSON] = {}
        for place, value in self._wire.outputs(payload, position, self._waiting):
            if place is None:
                told[self._beside_key(value)] = value
            else:
                told[place] = value
                self._waiting.pop(place, None)
        return told

    def _beside_key(self, value: JSON) -> str:
        text = _canonical(value)
        count = self._beside[text] = self._beside.get(text, 0) + 1
        return f"{count} {text}"


class _Answers:
    """The results of one exchange on both sides."""

    def __init__(self, wire: Wire, calls: tuple[Call, ...], drafts: Sequence[Draft]) -> None:
        self._wire = wire
        self._calls = calls
        self._recorded = _Side(wire, calls)
        side = _Side(wire, calls)
        self._given = [(draft, side.told(draft.payload, draft.call)) for draft in drafts if draft.stop > draft.start]
        self._stand_for = {draft.call: draft for draft in drafts if draft.stop == draft.start}
        self._missing = {key: value for _, told in self._given for key, value in told.items()}

    def take(self, entry: Entry) -> bool:
        """Return whether the transcript says what a recorded result says, and take that from what is missing."""
        if not entry.fragment:  # it came with the message of the result before it
            return True
        for key, value in self._recorded.told(entry.payload, entry.call).items():
            if key not in self._missing or _canonical(self._missing.pop(key)) != _canonical(value):
                return False
        return True

    def left(self, exchange: int) -> list[Draft]:
        """Return the drafts of what is missing; a message of which a part is recorded is taken apart."""
        left: list[Draft] = []
        for draft, told in self._given:
            missing = {key: value for key, value in told.items() if key in self._missing}
            if len(missing) == len(told):
                left += [draft, *(self._stand_for[key] for key in told if key != draft.call and isinstance(key, int))]
            else:
                left += self._parts(missing, exchange)
        return [msgspec.structs.replace(draft, exchange=exchange) for draft in left]

    def _parts(self, missing: Mapping[int | str, JSON], exchange: int) -> list[Draft]:
        parts: list[Draft] = []
        for key, value in missing.items():
            if isinstance(key, str):
                raise DecisionHistoryConflict(
                    f"a part of the results of the exchange at seq {exchange} is recorded without the message that "
                    "stands beside them in the transcript",
                    seq=exchange,
                )
            parts.append(self._wire.ready_result(key, self._calls[key], value))
        return parts


def _is_same(wire: Wire, draft: Draft, entry: Entry) -> bool:
    """Return whether a client's message says what is recorded: of a raw response, the part that is sent back."""
    # What was said while a call waited stands behind the results in a window, where it looks like an input.
    if draft.kind is not entry.kind and not {draft.kind, entry.kind} <= _SPOKEN:
        return False
    if draft.payload == entry.payload:
        return True
    given, recorded = _fragment(draft), entry.fragment
    if draft.kind is RESPONSE:
        return _answered(wire, given) == _answered(wire, recorded)
    return bool(given) and _canonical(_members(given)) == _canonical(_members(recorded))


def _fragment(draft: Draft) -> bytes:
    return draft.payload[draft.start : draft.stop]


def _answered(wire: Wire, fragment: bytes) -> list[str]:
    """
    Return the messages or items of a response so that the same ones compare equal, wherever the client has them from.

    It may have them from the provider or from a window; and an SDK writes out members that are null, or leaves them.
    """
    return [_canonical(_without_nulls(each)) for each in _members(wire.sendable(fragment))]


def _without_nulls(value: JSON) -> JSON:
    """Return a message or item without the members that are null; what a call is given is left as it is."""
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {name: each for name, each in value.items() if each is not None}
    return {name: each if name in _GIVEN else _without_nulls(each) for name, each in kept.items()}


def _members(fragment: bytes) -> list[JSON]:
    """Return the messages or items of a fragment."""
    members = decode(b"[%b]" % fragment)
    assert isinstance(members, list)
    return members


def _canonical(value: JSON) -> str:
    return json.dumps(value, sort_keys=True)


def _conflict(what: str, entry: Entry) -> DecisionHistoryConflict:
    return DecisionHistoryConflict(f"{what} at seq {entry.seq}", seq=entry.seq)
