"""
Whether entries are what a wire format makes of their payloads: what an import asks before it believes a file.

Windows are joins of stored slices, by stored sizes and calls. The record's own law cannot judge those, since it reads
no payload, and a file's checks and digests can be made anew by whoever writes the file. So each draft is derived once
more from its payload, by the format that recorded it, and must come out equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from minutebook.errors import DecisionHistoryCorrupt, InvalidMessage, InvalidValue, PairingViolation
from minutebook.model import turns
from minutebook.model.entries import (
    ABANDONED,
    IN_MESSAGE_BEFORE,
    INJECTION,
    INPUT,
    RESPONSE,
    RESULT,
    SUMMARY,
    Call,
    Draft,
)
from minutebook.model.summaries import check_made, read_summary, summary_draft
from minutebook.model.transfer import taken_back
from minutebook.providers.anthropic import ANTHROPIC
from minutebook.providers.chat import CHAT_IDENTITY, CHAT_WIRE
from minutebook.providers.gemini import GEMINI
from minutebook.providers.openai_chat import CHAT
from minutebook.providers.openai_responses import RESPONSES
from minutebook.providers.structured import StructuredWire
from minutebook.providers.wire import FORMATS, wire_format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from minutebook.ports import Wire

_APIS: Final = {api.name: api for api in (CHAT, RESPONSES, ANTHROPIC, GEMINI)}


def is_imported(format: str) -> bool:  # noqa: A002 - the field's standard word
    """Return whether imports take records of a format at all; those of runs and of memory resources they do not."""
    return format == turns.FORMAT or _wire_of(format) is not None


def derived_entries(format: str, drafts: Sequence[Draft]) -> int | None:  # noqa: A002 - the field's standard word
    """
    Return how many drafts, from the first one on, are what `format` makes of their payloads; linear in the payloads.

    `format` is a wire format, that of an engine's sessions, or the identity of a decision provider's conversation:
    `API/model/interface`. `None` for any other. The drafts are those of a lawful record from its first entry on.
    """
    if format == turns.FORMAT:
        marks = (draft.kind is ABANDONED for draft in drafts)
        right = (mark or turns.is_written(draft) for mark, draft in zip(marks, drafts, strict=True))
        return next((position for position, is_right in enumerate(right) if not is_right), len(drafts))
    wire = _wire_of(format)
    return None if wire is None else _Derivation(wire, drafts).count()


def _wire_of(name: str) -> Wire | None:
    if name in FORMATS:
        return wire_format(name)
    if name == CHAT_IDENTITY:
        return CHAT_WIRE
    start, _, rest = name.partition("/")
    model, _, interface = rest.rpartition("/")  # a model's name may have slashes of its own
    api = _APIS.get(start)
    if api is None or not model.strip() or interface not in ("native", "structured"):
        return None
    plain = wire_format(api.name)
    return plain if interface == "native" else StructuredWire(plain, api)


class _Derivation:
    """The drafts of one record, and the calls that its results have to answer."""

    def __init__(self, wire: Wire, drafts: Sequence[Draft]) -> None:
        self.wire = wire
        self.drafts = drafts
        self.calls: dict[int, tuple[Call, ...]] = {}
        marks = ((mark.exchange, mark.call, seq) for seq, mark in enumerate(drafts, 1) if mark.kind is ABANDONED)
        self.taken_back = taken_back(marks)

    def count(self) -> int:
        position = 0
        while position < len(self.drafts):
            group = self.drafts[position : position + self._length(position)]
            if not self._is_derived(position + 1, group):
                break
            position += len(group)
        return position

    def _length(self, position: int) -> int:
        """Return how many drafts come of one payload: a message of results is followed by one for each further one."""
        draft, length = self.drafts[position], 1
        if draft.kind is RESULT and self.wire.grouped:
            for follower in self.drafts[position + 1 :]:
                if follower.payload != IN_MESSAGE_BEFORE or follower.kind is not RESULT:
                    break
                if follower.exchange != draft.exchange:
                    break
                length += 1
        return length

    def _is_derived(self, seq: int, group: Sequence[Draft]) -> bool:
        draft = group[0]
        if draft.kind is ABANDONED:
            return True  # the record's law alone makes marks, and knows each of them
        if draft.kind is SUMMARY:
            return _is_summary(draft)
        if draft.kind is RESULT and draft.exchange < 1:
            return True  # what it answers had left the record; it stands in no window
        try:
            expected = self._derived(group)
        except (InvalidMessage, InvalidValue, PairingViolation):
            expected = ()
        # A decision provider keeps the body that it could not use, whatever that is, and takes it back at once.
        unusable = (Draft(kind=RESPONSE, payload=draft.payload),) if seq in self.taken_back else None
        found = tuple(map(_bare, group))
        if found not in (expected, unusable):
            return False
        if draft.kind is RESPONSE:
            self.calls[seq] = draft.calls
        return True

    def _derived(self, group: Sequence[Draft]) -> tuple[Draft, ...]:
        """Return what the wire format makes of the payload of the group's first draft."""
        draft = group[0]
        if draft.kind is RESULT:
            calls = self.calls.get(draft.exchange, ())
            asked = {each.call: calls[each.call] for each in group if each.call < len(calls)}
            return self.wire.answered(draft.payload, asked)
        if draft.kind is INPUT:
            return (self.wire.input(draft.payload),)
        if draft.kind is INJECTION:
            return (self.wire.injection(draft.payload),)
        if draft.kind is RESPONSE:
            return (self.wire.response(draft.payload),)
        return self.wire.transcript((draft.payload,))


def _is_summary(draft: Draft) -> bool:
    try:
        summary = read_summary(draft)
        check_made(summary)
        return msgspec.structs.replace(summary_draft(summary), wall=draft.wall) == draft
    except DecisionHistoryCorrupt:
        return False


def _bare(draft: Draft) -> Draft:
    """Return a draft without its place and time, which the record's law checks."""
    return msgspec.structs.replace(draft, exchange=0, wall=0, call=draft.call if draft.kind is RESULT else 0)
