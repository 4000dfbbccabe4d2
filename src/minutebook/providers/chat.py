"""
A chat over the Chat Completions API: what its messages may be, how they are kept, and what an answer says.

The format is `openai-chat` with two additions. A system or developer message may stand anywhere: it is kept as said
beside the conversation, and sent where it was said. And a chat may go on at another maker's server, so its calls are
sent in the form that OpenAI's takes: with a type and arguments that are a text, and ids that are replaced, as repeated
ones are, where it would refuse them.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from minutebook.errors import AgentDecisionProviderSchemaViolation, InvalidMessage, InvalidValue
from minutebook.model import codec
from minutebook.model.chat_messages import ROLES, ConversationMessage, role_of
from minutebook.model.entries import INJECTION, Draft
from minutebook.model.shown import type_alone
from minutebook.providers.decision import Diagnosis, token_count, violation
from minutebook.providers.endpoints import OFFICIAL
from minutebook.providers.openai_chat import CHAT
from minutebook.providers.step import opened
from minutebook.providers.wire import _bodies, _slices
from minutebook.providers.wire._values import Side, kind_of
from minutebook.providers.wire.openai_chat import OpenAIChat

if TYPE_CHECKING:
    from collections.abc import Callable

    from minutebook.model.codec import JSON
    from minutebook.model.entries import Entry
    from minutebook.model.turns import Role

CHAT_IDENTITY: Final = "openai-chat/agent"
"""What a chat's conversation is opened with."""

_NAME: Final = re.compile(r"[^\s<|\\/>]{1,64}")
"""What the API takes as the name of who speaks."""

_FIELDS: Final = ("role", "content", "name")
_USABLE: Final = frozenset({Diagnosis.LENGTH.value, Diagnosis.REFUSAL.value})
"""Endings of a text that is an answer all the same: to a person a refusal is one, and so is a text that was cut."""


_TOKENIZERS: Final = (
    ("o200k_base", re.compile(r"(ft:)?(gpt-4o|gpt-4\.1|gpt-4\.5|gpt-5(\.\d+)?|o1|o3|o4|chatgpt)(-|:|$)")),
    ("cl100k_base", re.compile(r"(ft:)?(gpt-4|gpt-3\.5|gpt-35)(-|:|$)")),
)
"""OpenAI's tokenizers and the names of the models that each is of, fine-tuned ones included."""


class ChatWire(OpenAIChat):
    """The wire format of a chat."""

    id_form = re.compile(r".{1,40}", re.DOTALL)

    def sendable(self, fragment: bytes) -> bytes:
        """Return a response's message as a request may hold it: what it may hold of the message is byte for byte."""
        sent = super().sendable(fragment)
        return sent if not sent or _calls_are_whole(sent) else _with_whole_calls(sent)

    def injection(self, message: object) -> Draft:
        """Return the draft of a further message: also of a system or developer message."""
        payload, value = _bodies.opened(message)
        if isinstance(value, dict) and self.side(value, "$") is Side.INSTRUCTIONS:
            return self.spoken(INJECTION, payload)
        return super().injection(payload)

    def recorded(self, message: ConversationMessage) -> Draft:
        """Return the draft of a checked message, by its role."""
        if message["role"] == "user":
            return self.input(message)
        return self.response(message) if message["role"] == "assistant" else self.injection(message)


CHAT_WIRE: Final = ChatWire()


class _WholeFunction(msgspec.Struct, gc=False):
    arguments: str

    __repr__ = type_alone


class _WholeCall(msgspec.Struct, gc=False):
    type: str
    function: _WholeFunction

    __repr__ = type_alone


class _CallingMessage(msgspec.Struct, gc=False):
    """A message whose calls all have what the API demands of a function's call, or one without calls."""

    tool_calls: list[_WholeCall] = []

    __repr__ = type_alone


_calling_message: Final = msgspec.json.Decoder(_CallingMessage).decode


def _calls_are_whole(fragment: bytes) -> bool:
    """Return whether the calls of a message surely have what the API demands, as nearly all do."""
    try:
        _calling_message(fragment)
    except msgspec.ValidationError:
        return False
    return True


def _with_whole_calls(fragment: bytes) -> bytes:
    """Return a message in which each call has what the API demands of it; one whose calls do is the same bytes."""
    message = _slices.members(fragment)
    calls = message.get("tool_calls", b"")
    if not calls.startswith(b"["):
        return fragment
    given = [call.strip() for call in _slices.items(calls)]
    whole = [_whole_call(call) for call in given]
    return fragment if whole == given else _slices.joined(message | {"tool_calls": b"[%b]" % b",".join(whole)})


def _whole_call(given: bytes) -> bytes:
    """Return a call with its type, and with its arguments as a text: of a server that writes them as JSON, that."""
    if not given.startswith(b"{"):
        return given
    call = _slices.members(given)
    whole = dict(call)
    if not call.get("type", b"").startswith(b'"'):
        whole["type"] = b'"custom"' if "custom" in call and "function" not in call else b'"function"'
    if call.get("function", b"").startswith(b"{"):
        function = _slices.members(call["function"])
        arguments = function.get("arguments", b"null")
        if not arguments.startswith(b'"'):
            text = "{}" if arguments == b"null" else arguments.decode()
            whole["function"] = _slices.joined(function | {"arguments": codec.encode(text)})
    return given if whole == call else _slices.joined(whole)


def checked_message(message: object, path: str = "$") -> ConversationMessage:
    """
    Return a message of a history as a copy, once it is one (SPEC A4).

    What an agent says may be blank, since a server may have said it. Nobody else says nothing: there would be nothing
    to answer, and servers refuse it (case O-13).

    Raises:
        InvalidMessage: it has another role or field, no content, a blank one, or a name that is none; `field` names it.
        InvalidValue: a text that is no Unicode; `field` names it too.
    """
    if not isinstance(message, dict):
        raise InvalidMessage(f"a message is a dict, not a {type(message).__name__}", path=path, field="")
    given = cast("dict[object, JSON]", message)
    for field in given:
        if field not in _FIELDS:
            shown = plain_name(field)
            raise _refused(f"the field {shown!r} is unknown; a message has role, content and name", path, shown)
    role = role_of(given)
    if role is None:
        raise _refused(f"the field 'role' is one of {', '.join(ROLES)}", path, "role")
    checked: ConversationMessage = {"role": role, "content": _checked_text(given.get("content"), path, "content")}
    if role != "assistant" and not checked["content"].strip():
        raise _refused("the field 'content' is blank; say something", path, "content")
    if given.get("name") is not None:
        checked["name"] = _checked_text(given["name"], path, "name")
        if not _is_name(checked["name"]):
            raise _refused(
                "the field 'name' is 1 to 64 characters without blanks and <, >, |, \\ and /, as the API has it; "
                "mend it or leave it out",
                path,
                "name",
            )
    return checked


def _is_name(value: JSON) -> bool:
    """Return whether the API takes a value as the name of who speaks."""
    return isinstance(value, str) and bool(_NAME.fullmatch(value))


def plain_name(field: object) -> str:
    """Return the name of an unknown field as an error shows it: what is no plain name may be content."""
    return field if isinstance(field, str) and field.isidentifier() and len(field) <= 40 else "another"


def _checked_text(value: object, path: str, field: str) -> str:
    if not isinstance(value, str):
        raise _refused(f"the field {field!r} is a text, not a {type(value).__name__}", path, field)
    try:
        return codec.text(value, f"{path}.{field}")
    except InvalidValue as error:
        raise InvalidValue(str(error), path=error.path, field=field) from None


def _refused(told: str, path: str, field: str) -> InvalidMessage:
    return InvalidMessage(told, path=f"{path}.{field}", field=field)


def message_in(role: Role, entry: Entry) -> ConversationMessage:
    """Return the message that an entry is in a history: role, content, and a name where it has one."""
    fragment = entry.fragment
    value = codec.reread(fragment) if fragment else None
    held: dict[str, JSON] = value if isinstance(value, dict) else {}
    message: ConversationMessage = {"role": role, "content": _text(held)}
    name = held.get("name")
    if isinstance(name, str) and _is_name(name):  # a server may have given its answer another
        message["name"] = name
    return message


def _text(message: dict[str, JSON]) -> str:
    """Return what a message says: its content, of parts the texts joined, or its refusal."""
    content = message.get("content")
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(each for each in texts if isinstance(each, str))
    refusal = message.get("refusal")
    return content if isinstance(content, str) and content else refusal if isinstance(refusal, str) else ""


def weighed(messages: bytes) -> list[tuple[str, str, str]]:
    """Return role, text and name of a request's messages, calls among the texts."""
    found: list[tuple[str, str, str]] = []
    for value in cast("list[dict[str, JSON]]", codec.reread(messages)):
        calls = value.get("tool_calls")
        said = _text(value) + (codec.encode(calls).decode() if calls else "")
        name = value.get("name")
        found.append((str(value.get("role")), said, name if isinstance(name, str) else ""))
    return found


def read_answer(payload: bytes) -> tuple[Draft, str, int | None]:
    """
    Return what an answer is recorded as, what it says (empty beside calls), and the tokens that were billed for it.

    Raises:
        AgentDecisionProviderUnavailable: no JSON object, or a provider failure that it reports.
        AgentDecisionProviderSchemaViolation: a body without an answer, one that was filtered, or calls of which some
            may be missing or were not meant, since it was cut or refused (SPEC D9).
    """
    ended: AgentDecisionProviderSchemaViolation | None = None
    try:
        body = opened(CHAT, payload)
    except AgentDecisionProviderSchemaViolation as error:
        if error.provider_error_code not in _USABLE:
            raise
        ended = error
        body = cast("dict[str, JSON]", codec.reread(payload))
    try:
        draft = CHAT_WIRE.response(payload)
    except (InvalidMessage, InvalidValue):
        raise violation(Diagnosis.MALFORMED) from None
    if not draft.messages:
        raise violation(Diagnosis.NO_TEXT)
    if draft.calls and ended is not None:
        raise ended
    value = codec.reread(payload[draft.start : draft.stop])
    said = "" if draft.calls else _text(cast("dict[str, JSON]", value))
    if not draft.calls and not said:
        raise violation(Diagnosis.NO_TEXT)
    return draft, said, token_count(CHAT.billed(body))


def fenced_context(context: str, fence: str) -> str:
    """Return a context as it is told: unaltered, inside a fence that nobody who wrote it could know (SPEC A2)."""
    return f"<context {fence}>\n{context}\n</context {fence}>"


def with_context(messages: bytes, told: str) -> bytes:
    """Return a request's messages with a context, as it is told, before what the newest user's message says."""
    fragments = _slices.items(messages)
    for place in reversed(range(len(fragments))):
        value = codec.reread(fragments[place])
        if isinstance(value, dict) and value.get("role") == "user":
            fragments[place] = CHAT_WIRE.prefaced(told, fragments[place])
            break
    return b"[%b]" % b",".join(fragments)


_PART: Final = ("content.type", "content.text", "content.refusal")
_FUNCTION: Final = ("tool_calls.function.name", "tool_calls.function.arguments")
_KNOWN: Final = frozenset(
    {
        *("role", "content", "name", "refusal", "audio", "annotations", "function_call", "tool_calls", "tool_call_id"),
        *("tool_calls.id", "tool_calls.type", "tool_calls.function", "tool_calls.custom", *_FUNCTION, *_PART),
    }
)
"""The members that OpenAI's API has in messages of the roles of a chat; it refuses a request with any other."""
_WITHIN: Final = frozenset({"content", "tool_calls", "tool_calls.function"})
_PARTS: Final = frozenset({"text", "refusal"})


class _KnownFunction(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: msgspec.Raw = msgspec.Raw()
    arguments: msgspec.Raw = msgspec.Raw()

    __repr__ = type_alone


class _KnownCall(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    id: msgspec.Raw = msgspec.Raw()
    type: msgspec.Raw = msgspec.Raw()
    function: _KnownFunction | None = None
    custom: msgspec.Raw = msgspec.Raw()

    __repr__ = type_alone


class _KnownMessage(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A message of `_KNOWN` members that says nothing in parts, as nearly all are."""

    role: str
    content: str | None = None
    name: str | None = None
    refusal: msgspec.Raw = msgspec.Raw()
    audio: msgspec.Raw = msgspec.Raw()
    annotations: msgspec.Raw = msgspec.Raw()
    function_call: msgspec.Raw = msgspec.Raw()
    tool_calls: list[_KnownCall] | None = None
    tool_call_id: msgspec.Raw = msgspec.Raw()

    __repr__ = type_alone


_known_messages: Final = msgspec.json.Decoder(list[_KnownMessage]).decode


def without_foreign(messages: bytes, host: str | None) -> bytes:
    """
    Return a request's messages with what no message of OpenAI's has only where it may be asked for: in what the newest
    user's message has led to so far, and nowhere for a `host` of OpenAI's.

    Such are other makers' reasoning, their own members of messages and calls, parts of other types, and names of other
    forms. Some of these servers demand what they said back with the results of calls. A conversation may go on at
    another server, which may refuse it, so that it is not replayed any later.
    """
    if _are_known(messages):
        return messages
    fragments = _slices.items(messages)
    newest = max((place for place, each in enumerate(fragments) if _role(each) == "user"), default=0)
    end = len(fragments) if _is_openai((host or "").rstrip(".")) else newest
    older = [_without_parts(_slices.without(each, _is_foreign, _WITHIN)) for each in fragments[:end]]
    return b"[%b]" % b",".join([*older, *fragments[end:]])


def _are_known(messages: bytes) -> bool:
    """Return whether messages surely have nothing foreign in them."""
    try:
        return all(each.name is None or _is_name(each.name) for each in _known_messages(messages))
    except msgspec.ValidationError:
        return False


def _is_foreign(path: str, value: bytes) -> bool:
    return path not in _KNOWN or (path == "name" and not _is_name(codec.decode(value)))


def _without_parts(fragment: bytes) -> bytes:
    """Return a message without parts that no answer to OpenAI's models may have; one of the user's has none."""
    message = _slices.members(fragment)
    if not message.get("content", b"").startswith(b"["):
        return fragment
    given = _slices.items(message["content"])
    parts = [part for part in given if kind_of(codec.reread(part)) in _PARTS]
    if len(parts) == len(given):
        return fragment
    return _slices.joined(message | {"content": b"[%b]" % b",".join(parts) if parts else b"null"})


def _is_openai(host: str) -> bool:
    return host in OFFICIAL["openai"].hosts or host.endswith(".openai.azure.com")


def _role(fragment: bytes) -> JSON:
    value = codec.reread(fragment)
    return value.get("role") if isinstance(value, dict) else None


def behind(head: list[bytes], messages: bytes) -> bytes:
    """Return an array of messages with others before them."""
    inside = messages[1:-1]
    return b"[%b]" % b",".join([*head, inside] if inside else head)


def exact_counter(model: str) -> Callable[[str], int] | None:
    """Return what counts a text's tokens exactly; `None` for a model that is not OpenAI's, or without `rs-bpe`."""
    named = next((name for name, models in _TOKENIZERS if models.match(model)), None)
    if named is None:
        return None
    try:
        openai: Any = import_module("rs_bpe.bpe").openai
    except ImportError:
        return None
    count: Callable[[str], int] = getattr(openai, named)().count
    return count
