"""
The one JSON codec. Every value that enters a record passes `encode`, and every byte that leaves one passes `decode`.

msgspec does the fast work, but alone it turns NaN into null, a tuple into a list and the key 1 into "1", keeps the last
of two equal keys, and copies whatever it is given. So both directions are guarded, and there is no second format to
fall back to: a value is held exactly, or refused with the path to the place.

- `encode` walks the caller's object once and copies it while it checks. Only the copy is encoded, so what is stored is
  what was checked, whatever another thread does to the original meanwhile. The walk also counts: a list that holds
  itself twice at each of thirty levels is refused by its number of values, and not found out by filling the memory.
- `decode` re-encodes what it read. The same bytes again prove that no key stood there twice, since a dict cannot write
  one twice. Other bytes prove nothing (they may be pretty-printed, or write 1E5), so a second reader decides.

No error here carries a piece of a value, nor a foreign exception that would: `JSONDecodeError.doc` is a whole document.
"""

from __future__ import annotations

import json
import re
from math import isfinite
from types import CoroutineType
from typing import Any, TypeAlias, cast

import msgspec

from minutebook.errors import InvalidValue

__all__ = [
    "JSON",
    "MAX_DEPTH",
    "MAX_INT_DIGITS",
    "MAX_NODES",
    "MAX_PAYLOAD_BYTES",
    "decode",
    "encode",
    "encode_copy",
    "reread",
    "text",
]

JSON: TypeAlias = "dict[str, JSON] | list[JSON] | str | int | float | bool | None"

MAX_PAYLOAD_BYTES = 64 * 1024 * 1024
"""The longest payload, in bytes of JSON."""

MAX_DEPTH = 200
"""The most containers around one another; a bare number has none, `[]` has one."""

MAX_INT_DIGITS = 1000
"""The longest integer, in decimal digits without its sign."""

MAX_NODES = 2_000_000
"""The most values in one payload: every container, text, number, boolean and null, but not the keys."""

_INT_BOUND = 10**MAX_INT_DIGITS
_INT64_BOUND = 2**63
_DIGITS = b"0123456789"
_MEND_SURROGATE = "cut texts between characters, or replace it with U+FFFD"
_TOO_SMALL_HERE = "this thread's stack or the interpreter's limit on integer digits is too small for it"

_SPACE = b" \t\r\n"
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")

# A text that is never closed runs to the end, else each quote in it would start another search of the whole rest.
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)

_SHOWN_KEYS = frozenset(
    {
        "action", "approval", "arguments", "args", "call", "call_id", "candidates", "caller", "choices", "content",
        "data", "delta", "document", "encrypted_content", "error", "exchange", "file", "file_data", "function",
        "functionCall", "functionResponse", "function_call", "history", "id", "image_url", "index", "inlineData",
        "input", "input_text", "is_error", "kind", "message", "messages", "meta", "metadata", "mimeType", "model",
        "name", "namespace", "operation", "output", "parameters", "parts", "path", "prompt", "properties",
        "reasoning", "refusal", "response", "result", "results", "role", "schema", "signature", "source", "status",
        "summary", "system", "text", "thinking", "thought", "thoughtSignature", "timestamp", "title",
        "tool_call_id", "tool_calls", "tool_use_id", "tools", "turn", "type", "url", "usage", "user", "value",
    }
)  # fmt: skip
"""
The keys that a path names: words of the wire formats and of records. Any other may be content itself, such as a
customer's name in a tool's arguments, and is shown as `*` (promise I-37).
"""

# Where a value stands: its parent's place, and the key or index there. A link is cheaper than a text seldom read. The
# outermost link stands for the root itself.
_Place: TypeAlias = "tuple[_Place, object] | None"
_ROOT: _Place = (None, 0)


def encode(value: object, *, limit: int = MAX_PAYLOAD_BYTES) -> bytes:
    """
    Return `value` as compact UTF-8 JSON that decodes to the same value with the same types.

    Accepted are dict with str keys, list, str, int, float, bool and None of exactly these types: a subclass, an enum
    member or a tuple would come back as something else. The object is read once and may change afterwards. `limit` is
    in bytes of JSON and cannot exceed `MAX_PAYLOAD_BYTES`; texts over it are refused before they are copied.

    Raises:
        InvalidValue: JSON cannot hold the value exactly, or it exceeds a bound; `path` names the place.
    """
    return encode_copy(value, limit=limit)[0]


def encode_copy(value: object, *, limit: int = MAX_PAYLOAD_BYTES) -> tuple[bytes, JSON]:
    """Return the same bytes and the copy that they were made of, which is what they decode to. Raises as `encode`."""
    limit = min(limit, MAX_PAYLOAD_BYTES)
    copy = _copied(value, limit)
    try:
        payload = msgspec.json.encode(copy)
    except (UnicodeEncodeError, RecursionError, ValueError):
        payload = None  # and the error is left behind: a UnicodeEncodeError holds the whole text
    if payload is None:
        _refuse_surrogates(copy)
        raise _refused(_ROOT, _TOO_SMALL_HERE)
    if len(payload) > limit:
        raise _too_long(len(payload), limit)
    return payload, copy


def decode(data: bytes | bytearray | memoryview) -> JSON:
    """
    Return the value of one strict JSON document in UTF-8, within the bounds of this module.

    Refused are NaN and the infinities, numbers that overflow to them, equal keys in one object, lone surrogates however
    written, a byte order mark, other encodings, and anything after the value. Integers come back exact; a fraction is
    read as the nearest double. Bytes that `encode` wrote take about twice the time of a bare decode.

    Raises:
        InvalidValue: the bytes are no such document; `path` names the place where it is known, else it is `$`.
    """
    return _read(_owned(data))


def reread(data: bytes) -> JSON:
    """
    Return the value of bytes that were accepted before they were recorded; what was refused then is not sought again.

    Raises:
        InvalidValue: the bytes are no JSON any more.
    """
    try:
        return cast("JSON", msgspec.json.decode(data))
    except (msgspec.DecodeError, RecursionError, ValueError):
        return decode(data)  # names the fault


def text(value: object, name: str) -> str:
    """
    Return `value` if it is exactly a str that UTF-8 can hold within `MAX_PAYLOAD_BYTES`; NUL is text like any other.

    Raises:
        InvalidValue: it is not; `path` is `name`.
    """
    if type(value) is not str:
        raise InvalidValue(f"{name}: a {type(value).__name__} where a str is needed", path=name)
    if len(value) > MAX_PAYLOAD_BYTES:
        raise InvalidValue(f"{name}: {len(value):,} characters, limit {MAX_PAYLOAD_BYTES:,} bytes", path=name)
    if _has_surrogates(value):
        raise InvalidValue(f"{name}: the text has a lone surrogate; {_MEND_SURROGATE}", path=name)
    return value


# --- from a Python value to a checked copy of it ---


def _copied(value: object, limit: int) -> JSON:
    """
    Copy `value` container by container while checking it; of its texts, only surrogates are left to the encoder.

    Iterative, so that its depth never adds to the caller's stack. Each container is copied in one C call, which no
    other thread can interrupt, and only the copy is looked at. None of the caller's code runs: types are compared by
    identity before a value is touched, and every key of a dict is a plain str before one of them is looked up.
    """
    top: list[Any] = [None]
    # Typed Any, because here is where a value gets its type: what is found, and where its copy goes.
    pending: list[tuple[Any, Any, Any, int, _Place]] = [([value], top, 0, 0, None)]
    nodes, room = 0, limit
    while pending:
        found, parent, name, depth, here = pending.pop()
        nodes += len(found)
        if nodes > MAX_NODES:
            raise _refused(here, f"more than {MAX_NODES:,} values up to here; split the payload")
        keyed = type(found) is dict
        box: Any = found.copy()
        parent[name] = box
        for key, item in box.items() if keyed else enumerate(box):
            if keyed:
                if type(key) is not str:
                    raise _refused(here, f"a key of type {type(key).__name__}; JSON has only str keys")
                room -= len(key)
            kind: Any = type(item)  # pyright: ignore[reportUnknownVariableType]
            if kind is str:
                room -= len(item)
            elif kind is dict or kind is list:
                if depth == MAX_DEPTH:
                    raise _refused((here, key), f"more than {MAX_DEPTH} containers deep, or inside itself")
                pending.append((item, box, key, depth + 1, (here, key)))
            elif item is not None and kind is not bool:
                room -= _number_bytes(item, (here, key))
        if room < 0:
            raise _refused(here, f"the texts up to here exceed the limit of {limit:,} bytes")
    return cast("JSON", top[0][0])


def _number_bytes(item: object, place: _Place) -> int:
    """Return about how many bytes a number takes, zero when few; refuse whatever is no number that JSON has."""
    if type(item) is int:
        if -_INT64_BOUND <= item < _INT64_BOUND:
            return 0
        if -_INT_BOUND < item < _INT_BOUND:
            return item.bit_length() // 4
        raise _refused(place, f"an integer of more than {MAX_INT_DIGITS:,} digits")
    if type(item) is float:
        if isfinite(item):
            return 0
        raise _refused(place, "NaN or an infinity, which JSON does not have")
    if type(item) is CoroutineType:
        raise _refused(place, "a coroutine; is an `await` missing?")
    raise _refused(place, f"a {type(item).__name__}; convert it to a JSON type first")


def _refuse_surrogates(copy: JSON) -> None:
    """Refuse the first text or key of a checked copy that UTF-8 cannot hold."""
    pending: list[tuple[JSON, _Place]] = [(copy, _ROOT)]
    while pending:
        value, place = pending.pop()
        if isinstance(value, str):
            if _has_surrogates(value):
                raise _refused(place, f"a lone surrogate in a text; {_MEND_SURROGATE}")
        elif isinstance(value, dict):
            for key, item in value.items():
                if _has_surrogates(key):
                    raise _refused((place, key), f"a lone surrogate in a key; {_MEND_SURROGATE}")
                pending.append((item, (place, key)))
        elif isinstance(value, list):
            pending.extend((item, (place, index)) for index, item in enumerate(value))


def _has_surrogates(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return True
    return False


# --- from bytes to a value ---


def _owned(data: bytes | bytearray | memoryview) -> bytes:
    """Return bytes that nobody else can change, without a copy where `data` is bytes already."""
    if type(data) is memoryview:
        size = _view_bytes(data)
    elif type(data) is bytes or type(data) is bytearray:
        size = len(data)
    else:
        raise _refused(_ROOT, f"a {type(data).__name__} where bytes are needed")
    if size > MAX_PAYLOAD_BYTES:
        raise _too_long(size, MAX_PAYLOAD_BYTES)
    return bytes(data)


def _view_bytes(view: memoryview) -> int:
    try:
        return view.nbytes
    except ValueError:
        raise _refused(_ROOT, "a memoryview that was released") from None


def _read(data: bytes) -> JSON:
    _refuse_bulk(data)
    try:
        value = cast("JSON", msgspec.json.decode(data))
        again = msgspec.json.encode(value)
    except msgspec.DecodeError as error:
        reason = str(error)  # the kind of fault and its offset, never a piece of the document
    except (RecursionError, ValueError):
        reason = _TOO_SMALL_HERE
    else:
        if again != data:
            _refuse_equal_keys(data)
        if _may_hold_long_integer(data):
            _copied(value, MAX_PAYLOAD_BYTES)
        return value
    _refuse_by_name(data)
    raise _refused(_ROOT, f"not one JSON document in UTF-8 ({len(data):,} bytes): {reason}")


def _refuse_bulk(data: bytes) -> None:
    """
    Refuse what is too deep or has too many values, before a reader builds any of it.

    A first count takes brackets and commas inside texts for real ones, and settles nearly every payload. Where it does
    not, the texts are taken out and the rest is counted: both in C, since a loop here would cost more than the decode.
    """
    if len(data) <= MAX_DEPTH:
        return
    opens = data.count(b"[") + data.count(b"{")
    few = len(data) < 2 * MAX_NODES or opens + data.count(b",") < MAX_NODES
    if few and opens <= MAX_DEPTH:
        return
    # Each value has one text at most, and one more for its key.
    frame, texts = _TEXT.subn(b'"', data, count=2 * MAX_NODES + 1)
    frame = frame.translate(None, _SPACE)
    empty = frame.count(b"[]") + frame.count(b"{}")
    opens = frame.count(b"[") + frame.count(b"{")
    # A value is the first of all, or the first in its container, or it stands behind a comma.
    if texts > 2 * MAX_NODES or 1 + opens - empty + frame.count(b",") > MAX_NODES:
        raise _refused(_ROOT, f"more than {MAX_NODES:,} values; split the payload")
    if opens > MAX_DEPTH:
        _refuse_depth(frame.translate(_ONE_KIND, _NOT_BRACKETS))


def _refuse_depth(brackets: bytes) -> None:
    """Refuse a row of brackets that is not gone when its innermost pairs were taken out `MAX_DEPTH` times."""
    for _ in range(MAX_DEPTH):
        outer = brackets.replace(b"[]", b"")
        if len(outer) == len(brackets):
            break
        brackets = outer
    if brackets:
        raise _refused(_ROOT, f"more than {MAX_DEPTH} containers deep, or brackets that do not match")


def _may_hold_long_integer(data: bytes) -> bool:
    """
    Return whether more than `MAX_INT_DIGITS` digits stand in a row, be it in a number or in a text.

    Such a row covers one of the bytes looked at, so all others are skipped and a short payload costs nothing.
    """
    step = MAX_INT_DIGITS + 1
    for nth, probe in enumerate(data[MAX_INT_DIGITS::step]):
        if probe in _DIGITS:
            at = MAX_INT_DIGITS + nth * step
            before, behind = data[at - MAX_INT_DIGITS : at], data[at : at + step]
            row = len(before) - len(before.rstrip(_DIGITS)) + len(behind) - len(behind.lstrip(_DIGITS))
            if row > MAX_INT_DIGITS:
                return True
    return False


class _EqualKeys:
    """Stands in a decoded tree where an object was that has one key twice."""

    def __init__(self, key: str) -> None:
        self.key = key


def _refuse_equal_keys(data: bytes) -> None:
    """Refuse a document, sound but for this, in which some object has a key twice."""
    found: list[_EqualKeys] = []

    def object_of(pairs: list[tuple[str, object]]) -> object:
        fields = dict(pairs)
        if len(fields) == len(pairs):
            return fields
        # `fields` has its keys in the order of their first places, so the first that differs is a second one.
        firsts = [*fields, None]
        found.append(_EqualKeys(next(key for (key, _), first in zip(pairs, firsts, strict=False) if key != first)))
        return found[-1]

    tree: object = None
    try:
        tree = json.JSONDecoder(object_pairs_hook=object_of).decode(data.decode())
    except (RecursionError, ValueError):
        read = False
    else:
        read = True
    if not read:
        raise _refused(_ROOT, _TOO_SMALL_HERE)
    if found:
        raise _refused(_place_of_equal_keys(tree), "a key that stands there twice")


def _place_of_equal_keys(tree: object) -> _Place:
    pending: list[tuple[object, _Place]] = [(tree, _ROOT)]
    while pending:
        value, place = pending.pop()
        if isinstance(value, _EqualKeys):
            return (place, value.key)
        if isinstance(value, dict):
            pending.extend((item, (place, key)) for key, item in cast("dict[str, object]", value).items())
        elif isinstance(value, list):
            pending.extend((item, (place, index)) for index, item in enumerate(cast("list[object]", value)))
    return None


def _bounded_int(digits: str) -> int:
    # Python itself refuses to read very many digits, and anything at the bound is refused by the walk in any case.
    return int(digits) if len(digits) <= MAX_INT_DIGITS else _INT_BOUND


_TOLERANT = json.JSONDecoder(parse_int=_bounded_int)


def _refuse_by_name(data: bytes) -> None:
    """Refuse with its place what a tolerant reader lets through: NaN, infinities, long integers, lone surrogates."""
    try:
        tree = cast("JSON", _TOLERANT.decode(data.decode()))
    except (RecursionError, ValueError):
        return
    _refuse_surrogates(_copied(tree, MAX_PAYLOAD_BYTES))


# --- refusals ---


def _refused(place: _Place, fault: str) -> InvalidValue:
    path = _path(place)
    return InvalidValue(f"{path}: {fault}", path=path)


def _too_long(size_bytes: int, limit: int) -> InvalidValue:
    return _refused(_ROOT, f"{size_bytes:,} bytes of JSON, limit {limit:,}")


def _path(place: _Place) -> str:
    steps: list[str] = []
    while place is not None:
        place, step = place
        steps.append(_step(step))
    return "$" + "".join(reversed(steps[:-1]))


def _step(step: object) -> str:
    if not isinstance(step, str):
        return f"[{step}]"
    return f".{step}" if step in _SHOWN_KEYS else ".*"
