"""
Long streams: what their pieces add up to is what a plain reading says, to the byte, and the work is linear.

Work is counted and not timed: the opcodes that run and the characters that functions are given and return. The plain
reading, whose work grows with the square, is the control: the same measure has to find it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.providers.plain_streams import PLAIN, Cut, Unknown

from minutebook.errors import AgentDecisionProviderUnavailable, InvalidValue
from minutebook.providers.anthropic import ANTHROPIC
from minutebook.providers.decision import Api
from minutebook.providers.gemini import GEMINI
from minutebook.providers.openai_chat import CHAT
from minutebook.providers.openai_responses import RESPONSES
from minutebook.providers.streams import PAUSE_BYTES, Deltas, assembled
from minutebook.testing import drive

Events = list[dict[str, Any]]


def sse(events: Events) -> bytes:
    return b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events)


# --- what they add up to ---

texts = st.text("aä\\/ ", max_size=3)
leaves = st.one_of(texts, st.sampled_from([None, True, False, 0, 1, 2.5, 10**20]))
names = st.sampled_from(["content", "novel", "id", "name", "type", "role", "index", "finishReason", "safetyRatings"])
indexes = st.sampled_from([0, 1, 1.0, True, None, "a", [0]])
numbered = st.builds(lambda index, rest: {**rest, "index": index}, indexes, st.dictionaries(names, leaves, max_size=2))
values = st.recursive(
    leaves | st.lists(numbered, max_size=3),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
    max_leaves=6,
)
pieces = st.dictionaries(names, values, max_size=4)
# The same few values again and again, or hardly two pieces would ever add up.
alike = st.sampled_from(
    [
        {"content": "a", "novel": {"text": "b", "list": ["x"]}},
        {"content": "ä", "id": "1", "role": "model", "novel": {"list": [{"index": 0, "name": "n", "arguments": "{"}]}},
        {"id": "1", "name": "lo", "novel": {"list": [{"index": 1, "arguments": "}"}, {"index": 0, "arguments": "]"}]}},
        {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "x"}}], "finishReason": "A"},
        {"tool_calls": [{"index": 0, "id": "e", "function": {"arguments": "z"}}]},
        {"tool_calls": [{"index": 0, "id": "g", "function": {"name": "f", "arguments": "{}"}}]},
        {"tool_calls": [{"index": 0, "id": "h", "function": {"name": "f", "arguments": "[1] "}}, {"index": 0}]},
        {"tool_calls": [{"index": 0, "id": "i", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "id": "j", "function": {"name": "h"}}, {"index": 0, "id": "k"}]},
        {"tool_calls": [{"index": 1, "id": "d"}, {"index": 0, "function": {"arguments": "y"}}], "safetyRatings": [1]},
    ]
)
streams_of_pieces = st.lists(alike | pieces, max_size=6) | st.lists(alike, max_size=12)


def chat(told: Events) -> Events:
    chunks: Events = [{"id": "c", "choices": [{"index": 0, "delta": delta}]} for delta in told]
    return [*chunks, {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"n": len(told)}}]


def gemini(told: Events) -> Events:
    events: Events = [
        {"candidates": [{"content": {**piece, "parts": [{"text": str(n)}]}, "novel": piece}], "usage": n}
        for n, piece in enumerate(told)
    ]
    return [*events, {"candidates": [{"finishReason": "STOP"}]}]


blocks = st.sampled_from(
    [
        {"type": "text", "text": "\u00e4/"},
        {"type": "text", "citations": None},
        {"type": "thinking", "thinking": "", "signature": "s"},
        {"type": "text", "citations": [1.50]},
        {"type": "tool_use", "input": {}},
        {"type": "tool_use", "input": {"a": 1}},
        {"type": "novel", "text": 5},
    ]
)
deltas = st.one_of(
    st.builds(lambda text: {"type": "text_delta", "text": text}, texts | st.sampled_from([None, 5])),
    st.builds(lambda text: {"type": "thinking_delta", "thinking": text}, texts),
    st.builds(lambda text: {"type": "signature_delta", "signature": text}, texts),
    st.builds(lambda text: {"type": "input_json_delta", "partial_json": text}, st.sampled_from(["", "[", "1]", "[1]"])),
    st.builds(lambda value: {"type": "citations_delta", "citation": value}, leaves),
)
places = st.sampled_from([0, 0, 0, 1, 1, 2])
changes = st.fixed_dictionaries({"type": st.just("message_delta"), "delta": pieces, "usage": pieces, "novel": leaves})
claude_events = st.one_of(
    st.builds(lambda at, delta: {"type": "content_block_delta", "index": at, "delta": delta}, places, deltas),
    st.builds(lambda at, block: {"type": "content_block_start", "index": at, "content_block": block}, places, blocks),
    st.builds(lambda at: {"type": "content_block_stop", "index": at}, places),
    changes,
)
begun = st.builds(
    lambda first, second: [
        {"type": "content_block_start", "index": 0, "content_block": first},
        {"type": "content_block_start", "index": 1, "content_block": second},
    ],
    blocks,
    blocks,
)


def claude(told: Events) -> Events:
    start = {"type": "message_start", "message": {"id": "m", "content": [], "usage": {"content": 1}}}
    return [start, *told, {"type": "message_stop"}]


def outcome(made: Callable[[], bytes]) -> bytes | str:
    """The body, or why there is none."""
    try:
        return made()
    except (AgentDecisionProviderUnavailable, Unknown, Cut, InvalidValue, msgspec.DecodeError) as error:
        code = getattr(error, "provider_error_code", None)
        return code or {Unknown: "stream_unknown", Cut: "stream_cut"}.get(type(error), "not_json")


def check_alike(api: Api, events: Events) -> bytes | str:
    sent = [json.dumps(event).encode() for event in events]
    plain = outcome(lambda: PLAIN[api.name](sent))
    assert outcome(lambda: drive(assembled(api, sse(events)))) == plain
    return plain


thorough = settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@thorough
@given(streams_of_pieces)
def test_d26_chunks_add_up_to_what_a_plain_reading_says(told: Events) -> None:
    """D26: the same bytes, or the same refusal."""
    check_alike(CHAT, chat(told))


@thorough
@given(streams_of_pieces)
def test_d26_geminis_members_add_up_to_what_a_plain_reading_says(told: Events) -> None:
    """D26: the same bytes, those of members that came once as they came."""
    check_alike(GEMINI, gemini(told))


@thorough
@given(begun, st.lists(claude_events, max_size=8))
def test_d26_blocks_add_up_to_what_a_plain_reading_says(first: Events, told: Events) -> None:
    """D26: the same bytes, or the same refusal."""
    check_alike(ANTHROPIC, claude([*first, *told]))


def test_d26_control_the_plain_reading_is_held_to_answers_and_to_refusals() -> None:
    """The control: among what is compared there are both, and a byte makes a difference."""
    good: Events = [{"content": "a", "role": "assistant"}, {"content": "b"}]
    body = check_alike(CHAT, chat(good))
    assert isinstance(body, bytes)
    assert b'"content":"ab"' in body
    assert body != PLAIN["openai-chat"]([json.dumps(event).encode() for event in chat([{"content": "ab"}, *good])])
    assert check_alike(CHAT, chat([{"role": "assistant"}, {"role": "tool"}])) == "stream_unknown"
    assert check_alike(CHAT, chat(good)[:2]) == "stream_cut"


# --- how much work it is ---


def work_of(run: Callable[[], object]) -> int:
    """
    The opcodes that a call runs, and the characters of the texts that functions are given and return meanwhile.

    A text that an object holds is given to each of its methods.
    """
    counted = 0
    before = sys.gettrace()

    def size(value: object) -> int:
        if isinstance(value, (str, bytes, msgspec.Raw)):
            return len(value) if isinstance(value, (str, bytes)) else memoryview(value).nbytes
        held = vars(value).values() if hasattr(value, "__dict__") and not isinstance(value, type) else ()
        return sum(len(each) for each in held if isinstance(each, (str, bytes)))

    def trace(frame: FrameType, event: str, told: object) -> Any:
        nonlocal counted
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            # What goes on after a pause is given nothing anew.
            if not frame.f_code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
                counted += sum(map(size, frame.f_locals.values()))
        elif event == "return":
            counted += size(told)
        elif event == "opcode":
            counted += 1
        return trace

    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return counted


def claude_deltas(kind: str, key: str, block: dict[str, Any], piece: Any) -> Callable[[int], Events]:
    delta = {"type": kind, key: piece}
    return lambda n: claude(
        [
            {"type": "content_block_start", "index": 0, "content_block": block},
            *({"type": "content_block_delta", "index": 0, "delta": delta} for _ in range(n)),
        ]
    )


def claude_input(n: int) -> Events:
    told = ["[", *[f'"{PIECE}",'] * n, "1]"]
    stop = {"type": "content_block_stop", "index": 0}
    begun = {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "input": {}}}
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in told]
    return claude([begun, *({"type": "content_block_delta", "index": 0, "delta": each} for each in deltas), stop])


def calls(at: int) -> dict[str, Any]:
    return {"tool_calls": [{"index": at, "id": f"c{at}", "function": {"name": "f", "arguments": "{}"}}]}


PIECE = "x" * 20
LONG: dict[str, tuple[Api, Callable[[int], Events]]] = {
    "anthropic text": (ANTHROPIC, claude_deltas("text_delta", "text", {"type": "text", "text": ""}, PIECE)),
    "anthropic thinking": (ANTHROPIC, claude_deltas("thinking_delta", "thinking", {"type": "thinking"}, PIECE)),
    "anthropic input": (ANTHROPIC, claude_input),
    "anthropic citations": (ANTHROPIC, claude_deltas("citations_delta", "citation", {"type": "text"}, {"a": PIECE})),
    "anthropic usage": (
        ANTHROPIC,
        lambda n: claude([{"type": "message_delta", "delta": {f"a{k}": 1}, "usage": {f"b{k}": 1}} for k in range(n)]),
    ),
    "chat text": (CHAT, lambda n: chat([{"content": PIECE}] * n)),
    "chat arguments": (
        CHAT,
        lambda n: chat([{"tool_calls": [{"index": 0, "function": {"arguments": PIECE}}]} for _ in range(n)]),
    ),
    "chat calls": (CHAT, lambda n: chat([calls(at) for at in range(n)])),
    "chat labels": (CHAT, lambda n: chat([{"id": PIECE, "name": PIECE + str(k % 7)} for k in range(n)])),
    "chat members": (CHAT, lambda n: chat([{"novel": {"deep": {"text": PIECE}, "list": [PIECE]}}] * n)),
    "gemini content": (GEMINI, lambda n: gemini([{"novel": PIECE, "list": [PIECE]}] * n)),
    "gemini members": (GEMINI, lambda n: gemini([{f"m{k}": PIECE} for k in range(n)])),
}
"""Streams of n pieces, each growing in another place."""
FEW, MANY = 60, 240


def growth(work: Callable[[int], int]) -> float:
    """How much more work four times as many pieces are; 4 where it is linear, 16 where it grows with the square."""
    return work(MANY) / work(FEW)


@pytest.mark.parametrize("case", LONG)
def test_o38_the_work_of_a_stream_is_linear_in_its_pieces(case: str) -> None:
    """O-38: opcodes and characters; what is fixed about a stream only makes the ratio smaller."""
    api, events = LONG[case]
    bodies = {n: sse(events(n)) for n in (FEW, MANY)}
    assert growth(lambda n: work_of(lambda: drive(assembled(api, bodies[n])))) < 4.4


@pytest.mark.parametrize("case", LONG)
def test_o38_control_the_plain_reading_is_found_to_grow_with_the_square(case: str) -> None:
    """The control: on the same streams the same measure tells the two apart."""
    api, events = LONG[case]
    sent = {n: [json.dumps(event).encode() for event in events(n)] for n in (FEW, MANY)}
    assert growth(lambda n: work_of(lambda: PLAIN[api.name](sent[n]))) > 5.5


def test_o38_a_long_line_that_is_torn_is_looked_through_once() -> None:
    """O-38: were each of its bytes taken for the start of a line, this would not end."""
    with pytest.raises(AgentDecisionProviderUnavailable, match="stream_cut"):
        drive(assembled(CHAT, b"data: " + b"x" * 8_000_000))


# --- and that it holds no event loop ---

RESPONSE = {"type": "response.completed", "response": {"status": "completed", "output": []}}
HEAVY: dict[str, tuple[Api, Events]] = {
    "openai-chat": (CHAT, chat([{"content": "x" * 200}] * 4_000)),
    "anthropic": (ANTHROPIC, LONG["anthropic text"][1](6_000)),
    "gemini": (GEMINI, gemini([{"role": "model"}] * 6_000)),
    "openai-responses": (RESPONSES, [*[{"type": "response.output_text.delta", "delta": "x" * 99}] * 6_000, RESPONSE]),
}


@pytest.mark.parametrize("name", HEAVY)
def test_o38_a_long_stream_is_put_together_with_pauses(name: str) -> None:
    """O-38: after each so many bytes, whichever API; a task beside it takes its turn at every one."""
    api, events = HEAVY[name]
    body = sse(events)
    turns = 0

    async def beside() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def both() -> bytes:
        other = asyncio.create_task(beside())
        made = await assembled(api, body)
        other.cancel()
        return made

    made = asyncio.run(both())
    longest = max(len(line) for line in body.splitlines()) + 2
    assert turns >= len(body) // (PAUSE_BYTES + longest) > 5
    assert made == drive(assembled(api, body))


# --- the text of a completion while it comes in ---


def chunks(*texts: str) -> list[bytes]:
    return [json.dumps({"choices": [{"delta": {"content": text}}]}).encode() for text in texts]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize("size", [1, 2, 7, 64, 10_000])
def test_a10_the_text_that_is_streamed_is_the_text_that_is_recorded(end: bytes, size: int) -> None:
    """A10: whatever ends a line, and wherever the pieces end; events over two lines too, and nothing behind the end."""
    head, tail = chunks("Hell")[0].split(b"[{", 1)
    lines = [b": a comment", b"", b"data: " + head + b"[{", b"data: " + tail, b""]
    lines += [b"data:" + chunks("o, w\u00f6rld")[0], b""]
    last = b'{"choices":[{"delta":{},"finish_reason":"stop"}]}'
    lines += [b"data: " + last, b"", b"data: [DONE]", b"", b"data: " + chunks(" EVIL")[0], b""]
    lines += [b"data: " + chunks("lost")[0]]
    body = end.join(lines) + end
    deltas = Deltas()
    heard = "".join(deltas.take(body[place : place + size]) for place in range(0, len(body), size))
    assembled_body = drive(assembled(CHAT, body))
    assert heard == json.loads(assembled_body)["choices"][0]["message"]["content"] == "Hello, w\u00f6rld"


class Joining(Deltas):
    """Planted fault: what is there is joined with each piece that comes."""

    def __init__(self) -> None:
        super().__init__()
        self.whole = b""

    def take(self, piece: bytes) -> str:
        self.whole += piece
        return super().take(piece)


def test_a10_a_line_that_never_ends_costs_what_it_is_long() -> None:
    """A10: of a line in n pieces nothing is joined before it ends, and the planted fault is found by its work."""

    def work(kind: type[Deltas]) -> Callable[[int], int]:
        def taken(n: int) -> int:
            deltas = kind()
            return work_of(lambda: [deltas.take(b"x" * 100) for _ in range(n)])

        return taken

    assert growth(work(Deltas)) < 4.4
    assert growth(work(Joining)) > 5.5
