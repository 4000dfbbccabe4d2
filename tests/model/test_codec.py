"""The codec holds a JSON value exactly or refuses it with its place; the numbers are those of the bad-input list."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import decimal
import enum
import json
import math
import pathlib
import subprocess
import sys
import textwrap
import threading
import tracemalloc
import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.budgets import budget

from minutebook.errors import InvalidValue
from minutebook.model import codec
from minutebook.model.codec import (
    MAX_DEPTH,
    MAX_INT_DIGITS,
    MAX_NODES,
    MAX_PAYLOAD_BYTES,
    decode,
    encode,
    encode_copy,
    text,
)

NAN, INFINITY = float("nan"), float("inf")


def same(left: object, right: object) -> bool:
    """Equal in every type, sign and order; `==` alone takes 1 for True, 1.0 and -0.0 for 0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    return left == right


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def refused(call: Any, *args: object, **options: Any) -> InvalidValue:
    with pytest.raises(InvalidValue) as caught:
        call(*args, **options)
    return caught.value


# --- properties ---

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)

SIGNS = r"""[ ] { } , : " \ \u d83d de00 \/ a "a" "a": 0 1 - . e E+5 400 true null NaN Infinity é {"a":1,"a":2} [[]]"""
PIECES = st.sampled_from([*SIGNS.split(), "9" * 19, " ", "\n", "\0", "\x7f"])


@given(VALUES)
def test_every_json_value_comes_back_with_the_same_types(value: object) -> None:
    """decode(encode(v)) is v: types, signs, key order and all."""
    payload = encode(value)
    assert same(decode(payload), value)


@given(VALUES)
def test_the_copy_is_what_the_bytes_decode_to_and_nobody_elses(value: object) -> None:
    """encode_copy(v) gives encode(v), and a value of the same types that shares no container with v."""
    payload, copy = encode_copy(value)
    assert payload == encode(value)
    assert same(copy, decode(payload))
    assert not containers(copy) & containers(value)


def containers(value: object) -> set[int]:
    """Return the identities of all lists and dicts in a value that somebody holds."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return set() if inner is None else {id(value)}.union(*map(containers, inner))


@given(VALUES)
def test_what_is_written_parses_with_the_standard_library(value: object) -> None:
    """A strict parser that is not ours reads the same value from our bytes."""
    assert same(json.loads(encode(value).decode("utf-8", "strict")), value)


@given(VALUES, st.sampled_from([None, 0, 2]), st.booleans())
def test_a_document_may_be_written_differently(value: object, indent: int | None, escaped: bool) -> None:
    """White space, escapes and spelling of numbers are no fault; the value is the same."""
    document = json.dumps(value, indent=indent, ensure_ascii=escaped).encode()
    assert same(decode(document), value)


def strictly_read(data: bytes) -> object:
    """An independent strict reader, made of the standard library alone; ValueError when it refuses."""

    def object_of(pairs: list[tuple[str, object]]) -> dict[str, object]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError
        return dict(pairs)

    def no_constant(_: str) -> None:
        raise ValueError

    value = json.loads(data.decode("utf-8", "strict"), object_pairs_hook=object_of, parse_constant=no_constant)
    json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    return value


@given(st.binary() | st.lists(PIECES).map("".join).map(str.encode) | VALUES.map(encode))
@example(b"1E5")
@example(b'"\\u00e9\\/"')
@example(b"-0")
@example(b"0e400")
@example(b"1e-400")
@example(b" null ")
def test_any_bytes_are_read_alike_by_an_independent_reader_or_refused(data: bytes) -> None:
    """decode raises InvalidValue or returns a value that encodes and decodes to itself, and a second reader agrees."""
    try:
        expected = strictly_read(data)
    except ValueError:
        refused(decode, data)
    else:
        value = decode(data)
        assert same(value, expected)
        assert same(decode(encode(value)), value)


@given(VALUES.map(encode), st.data())
def test_mutated_payloads_are_read_or_refused_in_our_own_words(payload: bytes, data: st.DataObject) -> None:
    """One changed, lost or added byte never raises anything but InvalidValue."""
    at = data.draw(st.integers(0, len(payload) - 1))
    byte = data.draw(st.binary(max_size=1))
    mutated = payload[:at] + byte + payload[at + data.draw(st.integers(0, 1)) :]
    try:
        strictly_read(mutated)
    except ValueError:
        refused(decode, mutated)
    else:
        decode(mutated)


# --- numbers ---


@pytest.mark.parametrize("number", [NAN, INFINITY, -INFINITY])
@pytest.mark.parametrize(("wrap", "path"), [(lambda n: n, "$"), (lambda n: {"a": [0, {"text": n}]}, "$.*[1].text")])
def test_bad_input_16_nan_and_infinities_are_refused(number: float, wrap: Any, path: str) -> None:
    """NaN and the infinities are refused with their place, though msgspec alone writes null."""
    assert msgspec.json.encode(number) == b"null"
    assert refused(encode, wrap(number)).path == path


@pytest.mark.parametrize("word", [b"NaN", b"Infinity", b"-Infinity", b"nan", b"inf"])
def test_bad_input_16_words_for_nan_and_infinities_are_refused(word: bytes) -> None:
    """The words that lenient readers accept are refused."""
    refused(decode, word)
    refused(decode, b'{"a":[' + word + b"]}")


def test_bad_input_16_a_word_for_nan_is_refused_with_its_place() -> None:
    """Where a lenient reader can still find the place, the error names it."""
    assert refused(decode, b'{"a":[0,NaN]}').path == "$.*[1]"


@pytest.mark.parametrize("number", [b"1e400", b"-1e400", b"1" * 310 + b".0", b"[1.7976931348623159e308]"])
def test_bad_input_17_numbers_that_overflow_are_refused(number: bytes) -> None:
    """A number beyond the largest double is no infinity; it is refused."""
    refused(decode, number)


def test_bad_input_17_an_overflow_is_refused_with_its_place() -> None:
    """The place of the number is named."""
    assert refused(decode, b'{"a":[0,1e400]}').path == "$.*[1]"


@pytest.mark.parametrize("digits", [MAX_INT_DIGITS + 1, 4300, 4301, 5000, 100_000])
def test_bad_input_18_integers_of_too_many_digits_are_refused(digits: int) -> None:
    """Above 1,000 digits an integer is refused both ways, at the same number, with its place."""
    error = refused(decode, b'{"a":[-' + b"7" * digits + b"]}")
    assert error.path == "$.*[0]"
    assert "1,000 digits" in str(error)
    assert refused(encode, {"a": [-(10 ** (digits - 1))]}).path == "$.*[0]"


@pytest.mark.parametrize("shift", [0, 1, 500, 1000, 1001, 1500])
def test_bad_input_18_the_search_for_long_integers_misses_no_offset(shift: int) -> None:
    """Only every 1,001st byte is looked at, so the integer is tried at different offsets; one digit less passes."""
    before = b'["' + b"x" * shift + b'",'
    refused(decode, before + b"7" * (MAX_INT_DIGITS + 1) + b"]")
    decode(before + b"7" * MAX_INT_DIGITS + b"]")


def test_bad_input_18_many_digits_in_a_text_or_fraction_are_no_fault() -> None:
    """The bound is for integers; base64 or a long fraction passes."""
    for document in (b'"' + b"7" * 5000 + b'"', b"0." + b"7" * 5000, b"7" * 5000 + b"e-4990"):
        assert same(decode(document), json.loads(document))


@pytest.mark.parametrize(
    "number", [2**53 + 1, 2**63, 2**64, 2**64 + 1, -(2**63) - 1, -(2**70), 10**1000 - 1, 1 - 10**1000]
)
def test_bad_input_19_big_integers_come_back_exact(number: int) -> None:
    """No integer within the bound becomes a float or wraps around."""
    assert encode(number) == str(number).encode()
    assert same(decode(encode([number])), [number])


def test_bad_input_23_true_one_and_one_point_zero_stay_distinct() -> None:
    """True, 1 and 1.0 are equal to Python and three values to JSON."""
    value = [True, 1, 1.0, False, 0, 0.0]
    assert encode(value) == b"[true,1,1.0,false,0,0.0]"
    assert same(decode(encode(value)), value)


def test_bad_input_24_negative_zero_keeps_its_sign() -> None:
    """-0.0 is not 0.0."""
    assert encode(-0.0) == b"-0.0"
    assert same(decode(encode({"a": -0.0})), {"a": -0.0})


# --- shape ---


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")])
@pytest.mark.parametrize("complete", [True, False])
def test_bad_input_20_nesting_of_200_000_is_refused_by_decode(opening: bytes, closing: bytes, complete: bool) -> None:
    """Depth is refused by our own bound, never by RecursionError or a crash."""
    document = opening * 200_000 + (b"1" + closing * 200_000 if complete else b"")
    assert "200" in str(refused(decode, document))


def test_bad_input_20_nesting_of_200_000_is_refused_by_encode() -> None:
    """The walk is iterative; the path to so deep a place is still only a text."""
    assert "200 containers deep" in str(refused(encode, nested(200_000)))


@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: [v, *[[]] * 300], lambda v: ["[{" * 300, v]])
def test_bad_input_20_the_bound_is_the_same_both_ways(wrap: Any) -> None:
    """200 containers pass, 201 do not, with brackets in texts and flat neighbours left out of account."""
    extra = len(json.dumps(wrap(0))) > 1
    fits, exceeds = wrap(nested(MAX_DEPTH - extra)), wrap(nested(MAX_DEPTH - extra + 1))
    assert decode(encode(fits)) == fits
    refused(encode, exceeds)
    refused(decode, json.dumps(exceeds).encode())


def test_bad_input_20_a_short_stack_is_no_recursion_error() -> None:
    """A caller that is itself deep in recursion gets the value, or InvalidValue."""
    value = nested(150)
    payload = encode(value)

    def outcome(call: Any, argument: object, depth: int) -> str:
        if depth:
            return outcome(call, argument, depth - 1)
        try:
            call(argument)
        except InvalidValue:
            return "refused"
        return "accepted"

    room, frame = sys.getrecursionlimit(), sys._getframe()
    while frame is not None:
        room, frame = room - 1, frame.f_back
    for call, argument in ((encode, value), (decode, payload), (decode, json.dumps(value, indent=1).encode())):
        assert outcome(call, argument, room - 60) in {"refused", "accepted"}


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (b'{"a":1,"a":2}', "$.*"),
        (b'{"a":1,"a":1}', "$.*"),
        (b'{"a":1,"\\u0061":2}', "$.*"),
        (b'{"x":[0,{"k":1,"j":2,"k":3}]}', "$.*[1].*"),
        (b'[{"":1,"":2}]', "$[0].*"),
        (b'{"a":null,"a":null}', "$.*"),
        (b'{"b":0,"a":1,"c":2,"a":3,"d":4}', "$.*"),
        (b'{"o":{"b":{},"b":{}},"o":1}', "$.*"),
    ],
)
def test_bad_input_21_equal_keys_are_refused(document: bytes, path: str) -> None:
    """A key that stands twice in one object is refused with its place, though msgspec keeps the last one."""
    msgspec.json.decode(document)
    assert refused(decode, document).path == path


def test_bad_input_21_equal_keys_of_different_objects_are_no_fault() -> None:
    """Only keys of the same object may not repeat."""
    assert decode(b'[{"a": {"a": 1}}, {"a": 2}]') == [{"a": {"a": 1}}, {"a": 2}]


@pytest.mark.parametrize("key", [1, 1.5, None, True, b"1", ("a",), decimal.Decimal(1)])
def test_bad_input_22_keys_that_are_no_str_are_refused(key: object) -> None:
    """The key 1 would be written like the key "1", and one of both would be lost."""
    error = refused(encode, {"a": [{"1": 0, key: 1}]})
    assert error.path == "$.*[0]"
    assert type(key).__name__ in str(error)


class Text(str):
    """A str subclass, which would come back as a plain str."""


class Rude(str):
    """A key that may not be compared once armed: a dict look-up of another key with its hash would run this."""

    armed = False

    def __eq__(self, other: object) -> bool:
        if self.armed:
            raise RuntimeError("compared")
        return False

    __hash__ = str.__hash__


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Mood(enum.StrEnum):
    CALM = "calm"


class EqualToAll(dict[str, object]):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class Scalar(float):
    """Like numpy.float64: a float by inheritance that knows its integer value."""

    def __index__(self) -> int:
        return int(self)


@dataclasses.dataclass
class Point:
    x: int = 1


class Row(msgspec.Struct):
    x: int = 1


FOREIGN: list[object] = [
    *(decimal.Decimal("1.5"), datetime.datetime(2026, 1, 1), datetime.date(2026, 1, 1), datetime.timedelta(1)),
    *(b"x", bytearray(b"x"), memoryview(b"x"), {1}, frozenset({1}), (1,), iter([1]), 1j, ..., object(), int),
    *(pathlib.PurePath("x"), uuid.UUID(int=1), Colour.RED, Level.LOW, Mood.CALM, Scalar(1), Text("x"), Point(), Row()),
    *(EqualToAll(a=1), collections.OrderedDict(a=1), msgspec.Raw(b'{"a":1,"a":2}'), msgspec.UNSET),
]


@pytest.mark.parametrize("value", FOREIGN, ids=lambda value: type(value).__name__)
def test_bad_input_25_other_types_are_refused_with_their_place(value: object) -> None:
    """What would come back as another type is refused, and the error names type and place, never the content."""
    error = refused(encode, {"a": [0, 1, {"b": value}]})
    assert error.path == "$.*[2].*"
    assert str(error).startswith("$.*[2].*: ")
    assert type(value).__name__ in str(error)
    assert refused(encode, value).path == "$"


@pytest.mark.parametrize("key", [Text("x"), Mood.CALM, Rude("k")], ids=lambda key: type(key).__name__)
def test_bad_input_25_keys_of_other_types_are_refused_and_never_compared(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that only inherits from str is refused; none of its own code runs."""
    values = [{key: 1}, {"k": [], key: 1}, {"k": [], "l": {key: 1, "k": {}}}]
    monkeypatch.setattr(Rude, "armed", True)
    for value in values:
        refused(encode, value)


def test_bad_input_26_cyclic_objects_are_refused() -> None:
    """A value inside itself is refused, by way of a list, a dict or both."""
    ring: list[Any] = []
    ring.append(ring)
    loop: dict[str, Any] = {"a": [1]}
    loop["a"].append(loop)
    wide: list[Any] = []
    wide.extend([wide] * 100)
    for value in (ring, loop, wide):
        assert "inside itself" in str(refused(encode, value))


def test_bad_input_26_a_list_shared_at_every_level_is_refused_by_count() -> None:
    """Thirty lists that each hold the next one twice are a billion values, refused at the two millionth."""
    value: list[Any] = []
    for _ in range(30):
        value = [value, value]
    assert "2,000,000 values" in str(refused(encode, value))


@pytest.fixture
def hasty_threads() -> Any:
    """Threads that change places as often as the interpreter can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def stores_unchecked_states(encoder: Any, rounds: int) -> bool:
    """Encode while another thread changes the value; tell whether a state was stored that must be refused."""
    rows: list[dict[str, Any]] = [{"n": 1, "more": {"k": [1, 2, 3]}} for _ in range(50)]
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            for row in rows:
                for state in (NAN, (1,), 1):
                    row["n"] = state
                row["extra"] = 1
                row["more"]["k"].append(4)
                del row["extra"], row["more"]["k"][3:]

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(rounds):
            with contextlib.suppress(InvalidValue):
                if any(row["n"] != 1 for row in msgspec.json.decode(encoder(rows))):
                    return True
    finally:
        stop.set()
        thread.join()
    return False


@pytest.mark.usefixtures("hasty_threads")
def test_bad_input_27_an_object_that_changes_while_read_is_stored_as_checked() -> None:
    """Never null for NaN, a list for a tuple, or a foreign error; a bare encoder in the same race stores some."""
    assert not stores_unchecked_states(encode, rounds=300)
    assert stores_unchecked_states(msgspec.json.encode, rounds=1_000_000)


def test_bad_input_28_a_change_after_encode_does_not_reach_the_bytes() -> None:
    """Bytes are kept, not the caller's object; nor does encode change that object."""
    value = {"a": [1, {"b": "x"}]}
    inner = value["a"]
    payload = encode(value)
    assert value["a"] is inner
    value["a"].append(2)
    assert payload == b'{"a":[1,{"b":"x"}]}'


# --- bytes ---


@pytest.mark.parametrize(
    "document",
    [
        "[1]".encode("utf-8-sig"),
        "[1]".encode("utf-16"),
        "[1]".encode("utf-16-le"),
        "[1]".encode("utf-32"),
        '"é"'.encode("latin-1"),
    ],
)
def test_bad_input_29_other_encodings_are_refused(document: bytes) -> None:
    """UTF-8 without a byte order mark, and nothing else; no encoding is guessed."""
    refused(decode, document)


@pytest.mark.parametrize(
    "raw",
    [b"\xc0\xaf", b"\xe0\x80\xaf", b"\xc1\xbf", b"\xe2\x82", b"\xf0\x9f\x98", b"\xff", b"\x80", b"\xf4\x90\x80\x80"],
)
def test_bad_input_30_overlong_and_truncated_utf8_is_refused(raw: bytes) -> None:
    """In values and in keys."""
    refused(decode, b'"' + raw + b'"')
    refused(decode, b'{"' + raw + b'":1}')


@pytest.mark.parametrize(
    "document", [b"[1]x", b"[1][2]", b"1 2", b"{}{}", b"[1]\0", b"[1],", b"[1]\n[2]", b"//c\n1", b"[1,]", b"\x0b1"]
)
def test_bad_input_31_trailing_garbage_and_second_documents_are_refused(document: bytes) -> None:
    """One value, with white space around it at most."""
    refused(decode, document)
    assert decode(b" [1]\r\n\t ") == [1]


@pytest.mark.parametrize(
    "document", [b"", b" ", b"[", b"{", b'"', b'{"a"', b'{"a":', b"[1,", b"-", b"tru", b'"\\', b'"\\u00']
)
def test_bad_input_32_empty_and_unfinished_documents_are_refused(document: bytes) -> None:
    """Nothing is completed or taken for null."""
    refused(decode, document)


@pytest.mark.parametrize(
    "key", ["lc", "__class__", "$type", "py/object", "__reduce__", "constructor", "__proto__", "$ref", "type"]
)
def test_bad_input_33_keys_that_mean_something_elsewhere_are_plain(key: str) -> None:
    """No key has a meaning here; it comes back as it was written."""
    value = {key: {key: ["os.system", {"id": ["x"], key: 1}]}}
    assert same(decode(encode(value)), value)


HALVES = ["\ud83d", "\ude00", "a\udfffb", "\ude00\ud83d"]


@pytest.mark.parametrize("half", HALVES, ids=ascii)
def test_bad_input_34_lone_surrogates_are_refused_however_written(half: str) -> None:
    """In values and keys, as Python text, as bytes and as an escape; never replaced."""
    assert refused(encode, {"a": [half]}).path == "$.*[0]"
    assert refused(encode, [half]).__cause__ is None
    refused(encode, {"a": {half: 1}})
    for written in (json.dumps(half).encode(), json.dumps(half, ensure_ascii=False).encode("utf-8", "surrogatepass")):
        refused(decode, written)
        refused(decode, b"{" + written + b":1}")
    assert refused(decode, b'{"a":[' + json.dumps(half).encode() + b"]}").path == "$.*[0]"


def test_bad_input_34_a_whole_pair_is_one_character() -> None:
    """An escaped pair is the character it stands for."""
    assert decode(b'"\\ud83d\\uDE00"') == "😀"


def test_bad_input_35_nul_inside_text_is_kept() -> None:
    """NUL is a character like any other, in values and keys."""
    value = {"a\0b": "what is the \0 weather"}
    assert b"\0" not in encode(value)
    assert same(decode(encode(value)), value)
    assert text("a\0b", "summary") == "a\0b"


@pytest.mark.parametrize(
    "wrap", [lambda s: s, lambda s: [s], lambda s: {"a": [0, {"b": s}]}, lambda s: {s: 1}], ids="tlvk"
)
def test_bad_input_36_a_text_over_the_limit_is_refused_before_it_is_copied(wrap: Any) -> None:
    """A text of 64 MiB and one byte is refused while less than 1 MiB is allocated, wherever it stands."""
    value = wrap("x" * (MAX_PAYLOAD_BYTES + 1))
    tracemalloc.start()
    try:
        error = refused(encode, value)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "67,108,864 bytes" in str(error)
    assert peak_bytes < 1024 * 1024


def test_bad_input_36_texts_are_counted_together_before_they_are_copied() -> None:
    """A thousand places that share one text of 1 MiB would be 1 GiB of JSON; so would long integers."""
    shared, number = "x" * 1024 * 1024, 10**999
    tracemalloc.start()
    try:
        refused(encode, [shared] * 1000)
        refused(encode, [number] * 100_000)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 32 * 1024 * 1024


def test_bad_input_36_the_limit_is_in_bytes_of_json() -> None:
    """Escapes, quotes and wide characters count as they are written, and the exact limit passes."""
    assert len(encode("é" * 4, limit=10)) == 10
    refused(encode, "é" * 4, limit=9)
    refused(encode, "\0" * 4, limit=25)
    refused(encode, "é" * (MAX_PAYLOAD_BYTES // 2), limit=2 * MAX_PAYLOAD_BYTES)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bad_input_36_a_document_over_the_limit_is_refused_before_it_is_read(kind: Any) -> None:
    """Also as a view, whose items may be wider than a byte."""
    data = kind(b" " * (MAX_PAYLOAD_BYTES + 1))
    tracemalloc.start()
    try:
        refused(decode, data)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1024 * 1024


def test_bad_input_38_too_many_values_are_refused_by_count() -> None:
    """Two million values pass both ways, one more does not; tiny keys are counted by what they hold."""
    fits = [0] * (MAX_NODES - 1)
    payload = encode(fits)
    assert decode(payload) == fits
    keys = b"{" + b",".join(b'"%d":0' % number for number in range(MAX_NODES)) + b"}"
    for document in (payload[:-1] + b",0]", b"[" + payload + b"]", keys):
        assert "2,000,000 values" in str(refused(decode, document))
    for value in ([*fits, 0], [fits]):
        assert "2,000,000 values" in str(refused(encode, value))


@pytest.mark.parametrize(
    "sound", [b'"' + b"," * (3 * MAX_NODES) + b'"', b"[" + b"[]," * (MAX_NODES - 2) + b"{}]"], ids="te"
)
def test_bad_input_38_commas_in_texts_and_empty_containers_are_counted_right(sound: bytes) -> None:
    """The count is exact where the first count is not: `[]` is one value, a comma in a text is none."""
    assert same(decode(sound), json.loads(sound))


@pytest.mark.parametrize(
    "unit", [b'"', b'"\\"', b'\\"', b"[]", b"[", b"]", b'{"', b'"",', b"7"], ids=map(str, range(9))
)
@pytest.mark.timeout(60)
def test_bad_input_38_hostile_bytes_of_full_length_are_refused_in_bounded_time(unit: bytes) -> None:
    """No repetition of signs makes the guards themselves slow: 16 MiB within seconds."""
    refused(decode, b"[" + unit * (16 * 1024 * 1024 // len(unit)))


# --- errors ---


def test_errors_hold_no_content_and_no_foreign_exception() -> None:
    """Neither the message, the facts nor a chained exception carries a piece of the value (promise I-37)."""
    secret = "hunter2"
    values = [{"a": secret + "\ud83d"}, {"a": [secret, {secret}]}, {"a": Text(secret)}, secret * 10_000_000]
    faults = [b",", b',"\xff"', b",NaN", b',"\\ud83d"', b',{"a":1,"a":2}', b',{"a"', b"," + b"1" * 5000]
    cases = [(encode, value) for value in values] + [(decode, b'["hunter2"' + fault + b"]") for fault in faults]
    for call, value in cases:
        error: BaseException | None = refused(call, value)
        while error is not None:
            assert secret not in f"{error} {error!r} {vars(error)}"
            assert not isinstance(error, UnicodeError | json.JSONDecodeError)
            error = error.__cause__ or error.__context__


@pytest.mark.parametrize(
    "key", ["a", "größe", "a b", "\x1b[31m\n", "\u202e", "\ud83d", "k" * 41, "0", "Content", "content ", "IBAN_DE02"]
)
def test_i37_a_path_names_words_of_the_formats_and_no_other_key(key: str) -> None:
    """I-37: a key may be content, as in a tool's arguments; the place is told by the words and numbers around it."""
    error = refused(encode, {"content": [0, {key: {"text": 1j}}]})
    assert error.path == "$.content[1].*.text"
    assert key not in str(error).replace("content[1]", "") or key in ("a", "0")
    str(error).encode()


@pytest.mark.parametrize("value", ["", "a", "é😀", "\0"])
def test_text_returns_a_plain_text(value: str) -> None:
    """Any text that UTF-8 can hold, the empty one included."""
    assert text(value, "title") is value


@pytest.mark.parametrize("value", [None, 1, b"a", Text("a"), Mood.CALM, ["a"], "\ud83d", "a\ude00"])
def test_text_refuses_what_is_no_plain_text_and_names_it(value: object) -> None:
    """The error names the parameter, not the content."""
    error = refused(text, value, "title")
    assert error.path == "title"
    assert str(error).startswith("title: ")
    str(error).encode()


def test_text_refuses_what_exceeds_a_payload() -> None:
    """A text that no payload could hold is refused by its length."""
    refused(text, "x" * (MAX_PAYLOAD_BYTES + 1), "title")


class Octets(bytes):
    """A bytes subclass, which may say anything of itself."""


@pytest.mark.parametrize(
    "data", ["[1]", None, 1, [91, 93], Octets(b"[1]"), Row()], ids=lambda value: type(value).__name__
)
def test_only_bytes_are_decoded(data: object) -> None:
    """A str has no bytes to check, and a subclass may read differently a second time."""
    refused(decode, data)


def test_a_released_view_is_refused() -> None:
    """A view without its buffer raises our error."""
    view = memoryview(b"[1]")
    view.release()
    refused(decode, view)


def test_the_public_names_are_the_documented_ones() -> None:
    """`__all__` is what the module offers."""
    own = {name for name, value in vars(codec).items() if getattr(value, "__module__", "") == codec.__name__}
    bounds = {name for name in vars(codec) if name.startswith("MAX_")}
    assert {name for name in own if not name.startswith("_")} | bounds | {"JSON"} == set(codec.__all__)


# --- cases from other projects, and promises ---


@pytest.mark.parametrize(
    "half",
    [("x" * 30_000 + "😀").encode("utf-16-le")[:-2].decode("utf-16-le", "surrogatepass"), json.loads('"\\ud83d"')],
)
def test_o28_half_a_character_is_refused_at_every_place(half: str) -> None:
    """A text cut inside a surrogate pair is refused with its place: content, argument key, metadata key, plain text."""
    assert refused(encode, {"role": "tool", "content": half}).path == "$.content"
    assert refused(encode, {"arguments": {half: 1}}).path == "$.arguments.*"
    assert refused(encode, [{"metadata": {"a": {half: None}}}]).path == "$[0].metadata.*.*"
    for name in ("summary", "title"):
        assert refused(text, half, name).path == name


@pytest.mark.parametrize("value", [-0.0, 2**53 + 1, 2**63, 2**64 + 1, -(2**70)], ids=str)
def test_o30_what_json_can_hold_is_stored_exactly(value: object) -> None:
    """Nothing is rounded, turned into text, merged or dropped."""
    for place in ({"output": value}, {"arguments": [value]}, {"approval": {"data": value}}):
        payload = encode(place)
        assert same(decode(payload), place)
        assert same(strictly_read(payload), place)


RING: list[Any] = []
RING.append(RING)


@pytest.mark.parametrize(
    "value",
    [
        NAN,
        INFINITY,
        datetime.datetime(2026, 1, 1),
        decimal.Decimal(1),
        b"x",
        {1},
        nested(2000),
        RING,
        {1: "a", "1": "b"},
    ],
    ids=["nan", "inf", "datetime", "Decimal", "bytes", "set", "deep", "cyclic", "keys"],
)
@pytest.mark.parametrize("place", ["output", "arguments", "approval"])
def test_o30_what_json_cannot_hold_is_refused_with_its_place(value: object, place: str) -> None:
    """A typed error with the path to the value, and no error of another library."""
    assert refused(encode, {place: value}).path.startswith(f"$.{place}")


WATCHED_DECODE = """
    import random, sys
    from minutebook.errors import InvalidValue
    from minutebook.model.codec import decode

    seen = []
    watching = False

    def watch(event, arguments):
        if watching:
            seen.append(event)

    sys.addaudithook(watch)
    seeds = [
        b'{"lc":1,"type":"constructor","id":["os","system"],"kwargs":{"a":[1.5,-2,1e5,true,null]}}',
        b'[{"role":"user","content":"\\\\u00e9\\\\ud83d\\\\ude00"},{"a": 1, "b": {"a": [18446744073709551616]}}]',
        b'{"py/object":"subprocess.Popen","__reduce__":["x"],"a":NaN,"a":1e400}',
    ]
    SIGNS = b'[]{}",:0a \\\\\\xff'
    chance = random.Random(38)
    outcomes = {"read": 0, "refused": 0}
    watching = True
    for turn in range(TURNS):
        data = bytearray(seeds[turn % len(seeds)])
        for _ in range(chance.randrange(4)):
            signs = SIGNS if chance.random() < 0.7 else range(256)
            data[chance.randrange(len(data))] = chance.choice(signs)
        try:
            decode(data)
        except InvalidValue:
            outcomes["refused"] += 1
        else:
            outcomes["read"] += 1
    watching = False
    events = len(seen)
    watching = True
    PLANTED
    watching = False
    print(events, len(seen) - events, outcomes["read"], outcomes["refused"])
"""


@pytest.mark.parametrize(
    "planted",
    ["compile('1', 'x', 'eval')", "open('/dev/null').close()", "import wave", "import socket; socket.socket()"],
)
def test_i38_decoding_never_imports_opens_executes_or_connects(planted: str) -> None:
    """Mutated payloads, up to a million, raise no audit event at all, while the same hook sees the planted one."""
    program = textwrap.dedent(WATCHED_DECODE).replace("PLANTED", planted)
    program = program.replace("TURNS", str(budget(2_000, 1_000_000)))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=3_000)
    events, planted_events, read, unread = map(int, done.stdout.split())
    assert events == 0
    assert planted_events > 0
    assert read > 100
    assert unread > 100
