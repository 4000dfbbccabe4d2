"""
What an engine records: turns and injections with typed metadata, how they are stored, and what a model sees of them.

An entry is one payload of the log, so that it is there whole or not at all. It is written as JSON by the one codec:
what does not come back equal is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, TypedDict, TypeVar, cast, get_args

import msgspec

from minutebook.errors import InvalidMessage, InvalidOption, InvalidValue
from minutebook.model.codec import decode, encode
from minutebook.model.entries import INPUT, Draft, damaged, payload_digest
from minutebook.model.shown import type_alone

if TYPE_CHECKING:
    from minutebook.model.codec import JSON
    from minutebook.model.entries import Entry

if TYPE_CHECKING:  # checkers know the default of a type variable, which Python 3.11 does not
    from typing_extensions import TypeVar as TypeVarWithDefault

    Meta = TypeVarWithDefault("Meta", default=object)
else:
    Meta = TypeVar("Meta")
Role: TypeAlias = Literal["system", "developer", "user", "assistant"]

FORMAT: Final = "engine/1"
"""What a session's record says that its entries are."""

USER_INTENT: Final = "user_intent"
"""The kind of a reason that is what the user wants: the default projection shows these alone."""


class LLMContextMessage(TypedDict):
    """One message of the context, as chat APIs take it."""

    role: Role
    content: str


class TurnReason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a turn was taken: by default what the user wants, or whatever else an engine distinguishes by `kind`."""

    text: str
    kind: str = USER_INTENT
    details: JSON = None
    """What the host records beside the text; no default projection shows it."""

    __repr__ = type_alone

    def __post_init__(self) -> None:
        if type(self.text) is not str or type(self.kind) is not str:
            raise InvalidMessage("a reason has a text and a kind", path="$.reasons")


class TurnResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn came to: the message for the user, and what the host records beside it."""

    user_message: str
    details: JSON = None

    __repr__ = type_alone

    def __post_init__(self) -> None:
        if type(self.user_message) is not str:
            raise InvalidMessage("a response has a text for the user", path="$.response")


class HistoryEntry(msgspec.Struct, Generic[Meta], frozen=True, kw_only=True):
    """
    A turn (its reasons and its response) or an injection (a message that no turn answered), with typed metadata.

    Raises:
        InvalidMessage: a turn without a response, an injection without a message, or parts of both.
    """

    kind: Literal["turn", "injection"]
    reasons: tuple[TurnReason, ...] = ()
    response: TurnResponse | None = None
    message: str = ""
    """Of an injection: what is said to the user, or to the model."""
    details: JSON = None
    meta: Meta | None = None

    def __repr__(self) -> str:
        return f"HistoryEntry({self.kind})"  # all else is content

    def __post_init__(self) -> None:
        turn = self.kind == "turn"
        if self.kind not in ("turn", "injection"):
            raise InvalidMessage("an entry is a turn or an injection", path="$.kind")
        if type(self.response) is not (TurnResponse if turn else type(None)):
            raise InvalidMessage("a turn has a TurnResponse, and an injection none", path="$.response")
        if type(self.message) is not str or turn == bool(self.message):
            raise InvalidMessage("an injection has a message, and a turn none", path="$.message")
        if self.reasons and not turn:
            raise InvalidMessage("an injection has no reasons", path="$.reasons")
        if type(self.reasons) is not tuple or not all(type(reason) is TurnReason for reason in self.reasons):
            raise InvalidMessage("reasons are a tuple of TurnReason values", path="$.reasons")


def user_intent(reasons: Sequence[TurnReason]) -> str:
    """Return what the user wants by the reasons of a turn, line by line; empty where they say nothing of it."""
    return "\n".join([reason.text for reason in reasons if reason.kind == USER_INTENT])


def default_projection(entry: HistoryEntry[Any]) -> tuple[LLMContextMessage, ...]:
    """
    Return what a model sees of an entry unless the host says otherwise (SPEC E3).

    A turn is a user message, its `user_intent` reasons line by line, and an assistant message; an injection is one
    assistant message. What would have no text is no message: chat APIs refuse those.
    """
    wanted = user_intent(entry.reasons)
    said = entry.response.user_message if entry.response is not None else entry.message
    messages: tuple[LLMContextMessage, ...] = (
        {"role": "user", "content": wanted},
        {"role": "assistant", "content": said},
    )
    return tuple(message for message in messages if message["content"])


Defaults: TypeAlias = Callable[[], Sequence[LLMContextMessage]]
Transform: TypeAlias = Callable[[HistoryEntry[Meta]], HistoryEntry[Meta]]
Derive: TypeAlias = Callable[[HistoryEntry[Meta], Defaults], Sequence[LLMContextMessage]]


def projection(entry: HistoryEntry[Meta], derive: Derive[Meta] | None) -> list[LLMContextMessage]:
    """
    Return what a model sees of an entry, by the host's projection where there is one.

    Raises:
        InvalidMessage: the host's gives something else than messages.
    """
    return checked_projection(
        default_projection(entry) if derive is None else derive(entry, lambda: default_projection(entry))
    )


def count_chars(messages: Sequence[LLMContextMessage]) -> int:
    """Return how many characters (Unicode code points) messages have together."""
    return sum([len(message["content"]) for message in messages])


def type_of(given: object) -> str:
    """
    Return the name of the type of what a host's function gave instead of what it should, all that may be told of it.

    A coroutine among these is closed, since nobody waits for it: Python would warn of it where nobody looks.
    """
    name = type(given).__name__
    if isinstance(given, Coroutine):
        cast("Coroutine[object, object, object]", given).close()
    return name


def checked_entry(entry: HistoryEntry[Meta], giver: str) -> HistoryEntry[Meta]:
    """
    Return what is to be recorded, once it is an entry; `giver` says who gave it.

    Raises:
        InvalidMessage: it is something else.
    """
    if not isinstance(entry, HistoryEntry):  # pyright: ignore[reportUnnecessaryIsInstance] - a host's function
        raise InvalidMessage(f"{giver} a HistoryEntry, not {type_of(entry)}", path="$")
    return entry


def checked_projection(messages: object) -> list[LLMContextMessage]:
    """
    Return what a host's projection gave, as messages of our own.

    Raises:
        InvalidMessage: no sequence, or something else in it than a role and a text.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes, bytearray)):
        raise InvalidMessage(f"derive_llm_context returns a list of messages, not {type_of(messages)}", path="$")
    checked: list[LLMContextMessage] = []
    for position, message in enumerate(cast("Sequence[object]", messages)):
        found = cast("dict[object, object]", message) if isinstance(message, dict) else {}
        role, content = found.get("role"), found.get("content")
        if len(found) != 2 or role not in get_args(Role) or type(content) is not str:
            raise InvalidMessage(
                "derive_llm_context returns messages of a role (system, developer, user or assistant) and a text",
                path=f"$[{position}]",
            )
        checked.append({"role": cast("Role", role), "content": content})
    return checked


def _read(payload: bytes) -> HistoryEntry[Any]:
    """Return the entry of a payload, its metadata as plain JSON. Whatever is wrong with it is raised as it comes."""
    value: Any = decode(payload)
    response: Any = value["response"]
    return HistoryEntry(
        kind=value["kind"],
        reasons=tuple([TurnReason(kind=kind, text=text, details=more) for kind, text, more in value["reasons"]]),
        response=response and TurnResponse(user_message=response[0], details=response[1]),
        message=value["message"],
        details=value["details"],
        meta=value["meta"],
    )


def is_written(draft: Draft) -> bool:
    """Return whether a draft, its time left out, is what an engine records of the turn or injection in its payload."""
    try:
        return Written(None).draft(_read(draft.payload)) == msgspec.structs.replace(draft, wall=0)
    except (InvalidValue, InvalidMessage, LookupError, TypeError, ValueError):
        return False


class Written(Generic[Meta]):
    """How entries with metadata of one type are written and read; without a type it is plain JSON."""

    def __init__(self, metadata: type[Meta] | None) -> None:
        """
        Take the metadata's type.

        Raises:
            InvalidOption: no JSON can be read as it.
        """
        try:
            self._decoder = None if metadata is None else msgspec.json.Decoder(metadata)
        except (TypeError, NameError, ValueError, RecursionError):  # the last two where msgspec shows what it was given
            raise InvalidOption("metadata is a type that JSON can be read as", option="metadata") from None

    def draft(self, entry: HistoryEntry[Meta]) -> Draft:
        """
        Return an entry as the log takes it.

        Raises:
            InvalidValue: JSON cannot hold a part of it exactly.
        """
        response = entry.response
        value = {
            "kind": entry.kind,
            "reasons": [[reason.kind, reason.text, reason.details] for reason in entry.reasons],
            "response": None if response is None else [response.user_message, response.details],
            "message": entry.message,
            "details": entry.details,
            "meta": self._plain(entry.meta),
        }
        # An input of its own: nothing in it names another entry, so a cut may stand on either side of it.
        return Draft(kind=INPUT, payload=encode(value))

    def digest(self, entry: HistoryEntry[Meta] | None) -> bytes:
        """Return what tells an entry from every other, and from none. Raises as `draft`."""
        return payload_digest(b"" if entry is None else self.draft(entry).payload)

    def _plain(self, meta: Meta | None) -> JSON:
        if self._decoder is None or meta is None:
            return cast("JSON", meta)
        written = b""
        try:
            written = msgspec.json.encode(meta, order="deterministic")  # a set has another order in each process
            same = self._decoder.decode(written) == meta
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
            same = False  # their texts may quote it
        if not same:
            raise InvalidValue("it does not come back equal as the type that metadata= names", path="$.meta")
        return decode(written)

    def entry(self, stored: Entry) -> HistoryEntry[Meta]:
        """
        Return the entry that was stored.

        Raises:
            DecisionHistoryCorrupt: it is none.
            InvalidOption: its metadata is not of the type that is asked for now.
        """
        try:
            entry = _read(stored.payload)
        except (InvalidValue, InvalidMessage, LookupError, TypeError, ValueError):
            raise damaged(stored.seq, "is no turn or injection") from None
        if self._decoder is None or entry.meta is None:
            return entry
        try:
            return msgspec.structs.replace(entry, meta=self._decoder.decode(encode(entry.meta)))
        except msgspec.MsgspecError:
            raise InvalidOption(
                f"the metadata of entry {stored.seq} is not of the type that metadata= names; give the type that it "
                "was recorded with",
                option="metadata",
            ) from None
