"""
Streamed answers: what is recorded is the whole that the events add up to, as the official clients add them up.

The events are written by hand, with signatures, calls in pieces, unknown fields and pings between them. Every answer is
cut at every byte: none of the torn ones may pass for an answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from tests.providers.dialects import CLAUDE, GOOGLE, Dialect, provider_of, serving
from tests.providers.loopback import KEY, REQUEST, SECRET, Server, acting, asking, seen

from minutebook import sync
from minutebook.errors import AgentDecisionProviderSchemaViolation, AgentDecisionProviderUnavailable
from minutebook.model.entries import Kind
from minutebook.providers import streams
from minutebook.providers.anthropic import ANTHROPIC
from minutebook.providers.decision import Api
from minutebook.providers.gemini import GEMINI
from minutebook.providers.native import Native
from minutebook.providers.openai_chat import CHAT
from minutebook.providers.openai_responses import RESPONSES
from minutebook.providers.step import read
from minutebook.providers.wire import wire_format
from minutebook.testing import drive

SSE = {"Content-Type": "text/event-stream"}
Events = list[Any]


def assembled(api: Api, body: bytes) -> bytes:
    """The body that a stream adds up to."""
    return drive(streams.assembled(api, body))


def sse(events: Events, *, named: bool = True, ending: str = "\n", done: bool = False) -> bytes:
    """The events as a server writes them; `ping` is a comment."""
    out = []
    for event in events:
        name = f"event: {event['type']}{ending}" if named else ""
        out.append(f"{name}data: {json.dumps(event)}{ending}{ending}")
    out.insert(1, f": ping{ending}{ending}")
    return ("".join(out) + (f"data: [DONE]{ending}{ending}" if done else "")).encode()


# --- the events of each API, and the body of the same answer without a stream ---

USAGE = {"input_tokens": 7, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 1, "output_tokens": 1}
START = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "novel": 1e2}
CLAUDE_EVENTS: Events = [
    {"type": "message_start", "message": {**START, "stop_reason": None, "stop_sequence": None, "usage": USAGE}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
    {"type": "ping"},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm "}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "ä🙂"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "Zm9v+/=="}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "redacted_thinking", "data": "+//+Pj8="}},
    {"type": "content_block_stop", "index": 1},
    {"type": "content_block_start", "index": 2, "content_block": {"type": "text", "text": "", "citations": None}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "text_delta", "text": "I "}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "text_delta", "text": "look."}},
    {
        "type": "content_block_delta",
        "index": 2,
        "delta": {
            "type": "citations_delta",
            "citation": {"type": "page_location", "cited_text": "x", "document_index": 0},
        },
    },
    {"type": "content_block_stop", "index": 2},
    {
        "type": "content_block_start",
        "index": 3,
        "content_block": {"type": "tool_use", "id": "t1", "name": "look", "input": {}, "caller": {"type": "direct"}},
    },
    {"type": "content_block_delta", "index": 3, "delta": {"type": "input_json_delta", "partial_json": ""}},
    {"type": "content_block_delta", "index": 3, "delta": {"type": "input_json_delta", "partial_json": '{"pa'}},
    {"type": "content_block_delta", "index": 3, "delta": {"type": "input_json_delta", "partial_json": 'th": "a"}'}},
    {"type": "content_block_stop", "index": 3},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None},
        "usage": {"input_tokens": None, "output_tokens": 20},
    },
    {"type": "message_stop"},
]
CLAUDE_BODY: dict[str, Any] = {
    **START,
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {**USAGE, "output_tokens": 20},
    "content": [
        {"type": "thinking", "thinking": "hm ä🙂", "signature": "Zm9v+/=="},
        {"type": "redacted_thinking", "data": "+//+Pj8="},
        {
            "type": "text",
            "text": "I look.",
            "citations": [{"type": "page_location", "cited_text": "x", "document_index": 0}],
        },
        {"type": "tool_use", "id": "t1", "name": "look", "input": {"path": "a"}, "caller": {"type": "direct"}},
    ],
}


def chunk(delta: dict[str, Any], ending: str | None = None, **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": ending}
    return {"id": "c", "object": "chat.completion.chunk", "created": 5, "model": "m", "choices": [choice], **fields}


def call_piece(arguments: str, **fields: Any) -> dict[str, Any]:
    name = fields.pop("name", None)
    function = {"arguments": arguments, **({"name": name} if name else {})}
    return {"tool_calls": [{"index": fields.pop("index", 0), "function": function, **fields}]}


CHAT_EVENTS: Events = [
    chunk({"role": "assistant", "content": "", "refusal": None, "reasoning_content": "h"}),
    chunk({"content": "I ", "reasoning_content": "m"}),
    chunk({"content": "look."}),
    chunk(call_piece("", id="c1", type="function", name="look")),
    chunk(call_piece('{"path"')),
    chunk(call_piece(' : "a"}')),
    chunk(call_piece('{"path":"b"}', index=1, id="c2", type="function", name="look")),
    chunk({}, "tool_calls"),
    {**chunk({}), "choices": [], "usage": {"prompt_tokens": 11}},
]
CHAT_BODY: dict[str, Any] = {
    "id": "c",
    "object": "chat.completion",
    "created": 5,
    "model": "m",
    "usage": {"prompt_tokens": 11},
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": "I look.",
                "refusal": None,
                "reasoning_content": "hm",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"path" : "a"}'}},
                    {"id": "c2", "type": "function", "function": {"name": "look", "arguments": '{"path":"b"}'}},
                ],
            },
        }
    ],
}
RESPONSES_BODY: dict[str, Any] = {
    "id": "resp",
    "object": "response",
    "status": "completed",
    "error": None,
    "output": [
        {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "b3BhcXVl+/=="},
        {
            "type": "function_call",
            "id": "fc",
            "call_id": "c1",
            "name": "look",
            "arguments": '{"path":"a"}',
            "status": "completed",
        },
    ],
    "usage": {"input_tokens": 11},
    "novel": [1e2],
}
RESPONSES_EVENTS: Events = [
    {"type": "response.created", "response": {"id": "resp", "status": "in_progress", "output": []}},
    {
        "type": "response.output_item.added",
        "output_index": 0,
        "item": {"type": "reasoning", "encrypted_content": "half"},
    },
    {"type": "response.function_call_arguments.delta", "delta": '{"pa'},
    {"type": "response.completed", "response": RESPONSES_BODY, "sequence_number": 9},
]


def event(*parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    candidate = {"content": {"role": "model", "parts": list(parts)}, "index": 0, **fields}
    return {"candidates": [candidate], "usageMetadata": {"promptTokenCount": 11}, "modelVersion": "m"}


GEMINI_EVENTS: Events = [
    event({"text": "hm", "thought": True}),
    event({"text": "I "}, {"text": "look."}),
    event({"functionCall": {"name": "look", "args": {"path": "a"}}, "thoughtSignature": "Zm9v+/=="}),
    {**event({"text": "", "thoughtSignature": "+//+Pj8="}, finishReason="STOP"), "responseId": "r"},
]
GEMINI_BODY: dict[str, Any] = {
    **event(
        {"text": "hm", "thought": True},
        {"text": "I "},
        {"text": "look."},
        {"functionCall": {"name": "look", "args": {"path": "a"}}, "thoughtSignature": "Zm9v+/=="},
        {"text": "", "thoughtSignature": "+//+Pj8="},
        finishReason="STOP",
    ),
    "responseId": "r",
}

STREAMS: list[tuple[Api, bytes, dict[str, Any]]] = [
    (ANTHROPIC, sse(CLAUDE_EVENTS), CLAUDE_BODY),
    (RESPONSES, sse(RESPONSES_EVENTS), RESPONSES_BODY),
    (CHAT, sse(CHAT_EVENTS, named=False, done=True), CHAT_BODY),
    (GEMINI, sse(GEMINI_EVENTS, named=False, ending="\r\n"), GEMINI_BODY),
]
each = pytest.mark.parametrize(("api", "stream", "body"), STREAMS, ids=[api.name for api, _, _ in STREAMS])


@each
def test_d26_a_stream_adds_up_to_the_body_of_the_same_answer(api: Api, stream: bytes, body: dict[str, Any]) -> None:
    """D26: signatures, calls, unknown fields and empty parts included, as equal JSON."""
    assert json.loads(assembled(api, stream)) == body


@each
def test_d09_a_stream_that_is_cut_at_any_byte_is_no_answer(api: Api, stream: bytes, body: dict[str, Any]) -> None:
    """D9: unavailable, by a code of our own; only what stands behind the answer's end may be missing."""
    codes: set[str] = set()
    for length in range(len(stream)):
        try:
            made = json.loads(assembled(api, stream[:length]))
        except AgentDecisionProviderUnavailable as unavailable:
            codes.add(unavailable.provider_error_code)
        else:
            assert {**made, "usage": body.get("usage")} == {**body, "usage": body.get("usage")}
            assert length > len(stream) * 0.5
    assert codes == {"stream_cut"}


@each
def test_d26_pieces_with_bytes_of_their_own_keep_them(api: Api, stream: bytes, body: dict[str, Any]) -> None:
    """D26: where an API gives a part whole, its spacing, escapes and numbers stay as they came."""
    odd = {
        "anthropic": (b'{"type": "direct"}', b'{ "type":"direct","n":1.50 }'),
        "openai-responses": (b'"encrypted_content": "b3BhcXVl+/=="', b'"encrypted_content" :"b3BhcXVl+\\/=="'),
        "gemini": (b'"thoughtSignature": "Zm9v+/=="', b'"thoughtSignature" :"Zm9v+\\/==","n":1e2'),
    }.get(api.name)
    if odd is None:
        return  # Chat Completions gives nothing whole
    assert odd[0] in stream
    assert odd[1] in assembled(api, stream.replace(odd[0], odd[1]))


@each
def test_d09_an_answer_that_is_not_streamed_after_all_is_taken_as_it_is(
    api: Api, stream: bytes, body: dict[str, Any]
) -> None:
    """D9: an error under 200, or a server that streams nothing."""
    for given in (json.dumps(body).encode(), b'\n [{"error":1}]'):
        assert assembled(api, given) is given
    for given in (b"", b"<html>", b"data: {\n\n", b"data: [1]\n\n", b"data: NaN\n\n", b"data: \xff\n\n"):
        with pytest.raises(AgentDecisionProviderUnavailable):
            assembled(api, given)


ERRORS: list[tuple[Api, dict[str, Any], str]] = [
    (ANTHROPIC, {"type": "error", "error": {"type": "overloaded_error", "message": SECRET}}, "overloaded_error"),
    (ANTHROPIC, {"type": "error", "error": {"type": SECRET}}, "error_event"),
    (RESPONSES, {"type": "error", "code": "server_error", "message": SECRET}, "server_error"),
    (RESPONSES, {"type": "error", "error": {"code": "rate_limit_exceeded"}}, "rate_limit_exceeded"),
    (RESPONSES, {"type": "error", "code": SECRET}, "error_event"),
    (CHAT, {"error": {"code": "server_error", "message": SECRET}}, "server_error"),
    (CHAT, {"error": SECRET}, "error_event"),
    (GEMINI, {"error": {"status": "UNAVAILABLE", "message": SECRET}}, "UNAVAILABLE"),
    (GEMINI, {"error": SECRET}, "error_event"),
]


@pytest.mark.parametrize(("api", "error", "code"), ERRORS, ids=[f"{a.name}-{c}" for a, _, c in ERRORS])
def test_d09_an_error_among_the_events_is_unavailable(api: Api, error: dict[str, Any], code: str) -> None:
    """D9: there is no status to go by, so its type or code tells."""
    events = {ANTHROPIC.name: CLAUDE_EVENTS[:4], CHAT.name: CHAT_EVENTS[:3], GEMINI.name: GEMINI_EVENTS[:2]}
    stream = sse([*events.get(api.name, RESPONSES_EVENTS[:2]), error], named=False)
    with pytest.raises(AgentDecisionProviderUnavailable) as caught:
        assembled(api, stream)
    assert (caught.value.provider_error_code, caught.value.status) == (code, 200)
    assert SECRET not in str(caught.value)


BODIES: list[tuple[Api, dict[str, Any], str]] = [
    (ANTHROPIC, {"type": "error", "error": {"type": "rate_limit_error"}}, "rate_limit_error"),
    (ANTHROPIC, {"error": {"type": "api_error", "details": {"error_code": "conflict_error"}}}, "conflict_error"),
    (ANTHROPIC, {"type": "error"}, "error_body"),
    (RESPONSES, {"error": {"code": "rate_limit_exceeded"}}, "rate_limit_exceeded"),
    (RESPONSES, {"error": {"code": "invalid_api_key", "type": "invalid_request_error"}}, "invalid_api_key"),
    (CHAT, {"error": {"code": "rate_limit_exceeded"}}, "rate_limit_exceeded"),
    (CHAT, {"error": {"code": 400, "type": "exceed_context_size_error"}}, "context_length_exceeded"),
    (GEMINI, {"error": {"status": "RESOURCE_EXHAUSTED"}}, "RESOURCE_EXHAUSTED"),
    *((api, {"error": {"code": SECRET, "type": SECRET, "status": SECRET}}, "error_body") for api, _, _ in STREAMS),
    *((api, {"error": SECRET}, "error_body") for api, _, _ in STREAMS),
]


@pytest.mark.parametrize(
    ("api", "body", "code"), BODIES, ids=[f"{a.name}-{n}-{c}" for n, (a, _, c) in enumerate(BODIES)]
)
def test_d09_an_error_as_the_body_is_unavailable_by_its_code(api: Api, body: dict[str, Any], code: str) -> None:
    """D9: under 200, whether a stream was asked for or not; a code that is in no table is not passed on."""
    payload = json.dumps({**body, "message": SECRET}).encode()
    for given in (payload, assembled(api, payload)):
        with pytest.raises(AgentDecisionProviderUnavailable) as caught:
            read(api, Native(wire_format(api.name), api), REQUEST, given)
        assert (caught.value.provider_error_code, caught.value.status) == (code, 200)
        assert SECRET not in str(caught.value)


def test_d09_a_failed_response_is_judged_like_one_that_was_not_streamed() -> None:
    """D9: `response.failed` and `response.incomplete` hold the response, which says the rest."""
    for kind, status in (("response.failed", "failed"), ("response.incomplete", "incomplete")):
        response = {"status": status, "error": {"code": "rate_limit_exceeded"} if status == "failed" else None}
        body = assembled(RESPONSES, sse([*RESPONSES_EVENTS[:2], {"type": kind, "response": response}]))
        assert json.loads(body) == response


def test_d26_a_piece_of_unknown_kind_is_refused_and_an_unknown_event_passed_over() -> None:
    """D26: what cannot be added up would be lost; an event beside the message's own changes nothing in it."""
    novel = {"type": "content_block_delta", "index": 0, "delta": {"type": "novel_delta", "x": 1}}
    with pytest.raises(AgentDecisionProviderUnavailable, match="stream_unknown"):
        assembled(ANTHROPIC, sse([*CLAUDE_EVENTS[:3], novel, *CLAUDE_EVENTS[3:]]))
    beside = assembled(ANTHROPIC, sse([*CLAUDE_EVENTS[:3], {"type": "novel"}, *CLAUDE_EVENTS[3:]]))
    assert json.loads(beside) == CLAUDE_BODY


# --- nothing that was streamed is lost ---


def novel_in_chat(*novel: dict[str, Any]) -> bytes:
    """Chunks whose deltas have members of their own; the end in a chunk with none."""
    told = [chunk({"content": "x", **each}) for each in novel]
    return sse([*told, chunk({}, "stop")], named=False, done=True)


def novel_beside_a_delta(*novel: dict[str, Any]) -> bytes:
    told = [chunk({"content": "x"}) for _ in novel]
    for one, each in zip(told, novel, strict=True):
        one["choices"][0] |= each
    return sse([*told, chunk({}, "stop")], named=False, done=True)


def novel_in_claude_deltas(*novel: dict[str, Any]) -> bytes:
    deltas = [{"type": "text_delta", "text": "x", **each} for each in novel]
    told = [{"type": "content_block_delta", "index": 2, "delta": delta} for delta in deltas]
    return sse([*CLAUDE_EVENTS[:10], *told, *CLAUDE_EVENTS[13:]])


def novel_in_claude_blocks(*novel: dict[str, Any]) -> bytes:
    told: Events = []
    for place, each in enumerate(novel, 10):
        told.append({"type": "content_block_start", "index": place, "content_block": {"type": "novel", **each}})
        told.append({"type": "content_block_stop", "index": place})
    return sse([*CLAUDE_EVENTS[:-2], *told, *CLAUDE_EVENTS[-2:]])


def novel_items(*novel: dict[str, Any]) -> bytes:
    items = [{"type": "novel", **each} for each in novel]
    done = [{"type": "response.output_item.done", "output_index": n, "item": each} for n, each in enumerate(items)]
    end = {"type": "response.completed", "response": {**RESPONSES_BODY, "output": items}}
    return sse([*RESPONSES_EVENTS[:1], *done, end])


def novel_in_gemini_parts(*novel: dict[str, Any]) -> bytes:
    return sse([*(event({"text": "x", **each}) for each in novel), event(finishReason="STOP")], named=False)


def novel_in_gemini_contents(*novel: dict[str, Any]) -> bytes:
    told = [event({"text": "x"}) for _ in novel]
    for one, each in zip(told, novel, strict=True):
        one["candidates"][0]["content"] |= each
    return sse([*told, event(finishReason="STOP")], named=False)


def novel_in_gemini_candidates(*novel: dict[str, Any]) -> bytes:
    return sse([*(event({"text": "x"}, **each) for each in novel), event(finishReason="STOP")], named=False)


PLACES: dict[str, tuple[Api, Any, bool]] = {
    "chat delta": (CHAT, novel_in_chat, True),
    "chat choice": (CHAT, novel_beside_a_delta, True),
    "anthropic delta": (ANTHROPIC, novel_in_claude_deltas, False),
    "anthropic block": (ANTHROPIC, novel_in_claude_blocks, True),
    "responses item": (RESPONSES, novel_items, True),
    "gemini part": (GEMINI, novel_in_gemini_parts, True),
    "gemini content": (GEMINI, novel_in_gemini_contents, True),
    "gemini candidate": (GEMINI, novel_in_gemini_candidates, True),
}
"""Where a member may stand that nobody knows, and whether it can be added up there."""
NOVEL: dict[str, Any] = {
    "texts": lambda n: f"<{n}>",
    "texts in an object": lambda n: {"transcript": f"<{n}>", "deep": {"text": f"<{n}>"}},
    "items": lambda n: [f"<{n}>"],
    "items by index": lambda n: [{"index": 0, "text": f"<{n}>"}, {"index": n, "type": "t", "text": f"<{n}>"}],
    "items without an index": lambda n: [{"type": "t", "text": f"<{n}>"}],
    "a text, then items": lambda n: [f"<{n}>"] if n else f"<{n}>",
    "items, then a text": lambda n: f"<{n}>" if n else [f"<{n}>"],
    "an object, then a text": lambda n: f"<{n}>" if n else {"a": f"<{n}>"},
}


def lost(body: bytes, pieces: int) -> list[str]:
    """The pieces that a body does not hold."""
    return [f"<{n}>" for n in range(pieces) if f"<{n}>".encode() not in body]


@pytest.mark.parametrize("kind", NOVEL)
@pytest.mark.parametrize("place", PLACES)
def test_d26_no_piece_of_a_member_that_nobody_knows_is_lost(place: str, kind: str) -> None:
    """D26: it is added up, or there is no answer; what is recorded never holds less than what was streamed."""
    api, stream, known = PLACES[place]
    changes = "then" in kind and place in ("chat delta", "chat choice", "gemini content", "gemini candidate")
    given = stream(*({"novel": NOVEL[kind](n)} for n in range(3)))
    if known and not changes:
        assert lost(assembled(api, given), 3) == []
        return
    with pytest.raises(AgentDecisionProviderUnavailable, match="stream_unknown"):
        assembled(api, given)


def test_d26_control_a_body_of_the_newest_pieces_is_seen_to_have_lost_some() -> None:
    """The control: pieces of which the last one alone was kept, as a plain update of members would do."""
    assert lost(json.dumps({"thinking": "<2>"}).encode(), 3) == ["<0>", "<1>"]


def test_d26_texts_of_a_delta_are_joined_whatever_they_are_called() -> None:
    """D26: reasoning under another name, a transcript, a name in pieces; what is repeated stands once."""
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": "", "thinking": "ab", "audio": {"id": "a", "transcript": "one", "n": 5}},
        {"role": "assistant", "thinking": "cd", "audio": {"id": "a", "transcript": " two", "n": 5}},
        call_piece("", id="c1", type="function", name="lo"),
        call_piece("{}", id="c1", type="function", name="ok"),
        {"content": None, "thinking": ""},
    ]
    body = json.loads(assembled(CHAT, sse([*map(chunk, deltas), chunk({}, "stop")], named=False, done=True)))
    assert body["choices"][0]["message"] == {
        "role": "assistant",
        "content": "",
        "thinking": "abcd",
        "audio": {"id": "a", "transcript": "one two", "n": 5},
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
    }


def test_d26_calls_of_one_index_are_told_apart_by_their_ids() -> None:
    """D26: some servers number every call 0; each is a call of its own, and a piece without an id is of the newest."""
    deltas = [
        call_piece("{", id="c", name="keep"),
        call_piece("}"),
        call_piece("[", id="d", name="keep"),
        call_piece("]"),
    ]
    body = json.loads(assembled(CHAT, sse([*map(chunk, deltas), chunk({}, "tool_calls")], named=False, done=True)))
    assert body["choices"][0]["message"]["tool_calls"] == [
        {"id": "c", "function": {"name": "keep", "arguments": "{}"}},
        {"id": "d", "function": {"name": "keep", "arguments": "[]"}},
    ]


@pytest.mark.parametrize("named", [False, True], ids=["", "named each time"])
def test_d26_a_call_whose_pieces_have_ids_of_their_own_is_one_call(*, named: bool) -> None:
    """D26, O-12: the first id stays; what comes behind its whole arguments under another id and a name is another."""
    texts = ["{" if named else "", '"path":"{' if named else '{"path":"{', "}", '"}']
    deltas = [
        call_piece(text, id=f"c{n}", **({"name": "keep"} if named or not n else {})) for n, text in enumerate(texts)
    ]
    deltas += [call_piece(" \n"), call_piece("{}", id="d", name="look")]
    body = json.loads(assembled(CHAT, sse([*map(chunk, deltas), chunk({}, "tool_calls")], named=False, done=True)))
    assert body["choices"][0]["message"]["tool_calls"] == [
        {"id": "c0", "function": {"name": "keep", "arguments": '{"path":"{}"} \n'}},
        {"id": "d", "function": {"name": "look", "arguments": "{}"}},
    ]


def numbered(*pieces: tuple[str, str | None, str | None]) -> dict[str, Any]:
    """One delta with pieces that all have the index 0: their ids, names and arguments."""
    calls = [
        {"index": 0, "id": id_, "function": {"arguments": arguments, **({} if name is None else {"name": name})}}
        for id_, name, arguments in pieces
    ]
    return {"tool_calls": calls}


NUMBERED: dict[str, tuple[list[dict[str, Any]], list[tuple[str, str, str | None]] | None]] = {
    "no arguments, another function": (
        [numbered(("a", "now", "")), numbered(("b", "today", ""))],
        [("a", "now", ""), ("b", "today", "")],
    ),
    "null arguments, another function": (
        [numbered(("a", "now", None)), numbered(("b", "today", "{}"))],
        [("a", "now", None), ("b", "today", "{}")],
    ),
    "amid arguments, another function": (
        [numbered(("a", "look", "{")), numbered(("b", "today", "{}"))],
        [("a", "look", "{"), ("b", "today", "{}")],
    ),
    "in one event": (
        [numbered(("a", "now", ""), ("b", "now", "")), numbered(("b", None, "{}"))],
        [("a", "now", ""), ("b", "now", "{}")],
    ),
    "the same function, arguments to come": (
        [numbered(("a", "look", "{}")), numbered(("b", "look", "")), numbered(("c", None, "[]"))],
        [("a", "look", "{}"), ("b", "look", "[]")],
    ),
    "an empty piece at the end": (
        [numbered(("a", "look", "{}")), numbered(("b", None, ""))],
        [("a", "look", "{}")],
    ),
    "one piece or two calls": ([numbered(("a", "look", "{}")), numbered(("b", "look", " "))], None),
    "one call or two without arguments": ([numbered(("a", "now", "")), numbered(("b", "now", None))], None),
    "null for none, and one call or two": ([numbered(("a", "now", "null")), numbered(("b", "now", ""))], None),
    "one call or two of which one has arguments": ([numbered(("a", "look", "")), numbered(("b", "look", "{}"))], None),
}
"""Deltas whose pieces all have the index 0, and the calls that they are; none where nothing tells."""


@pytest.mark.parametrize("case", NUMBERED)
def test_d26_of_pieces_that_share_an_index_no_call_is_lost_and_none_is_invented(case: str) -> None:
    """D26, O-12: a call of its own, a further piece, or no answer at all where it may be either."""
    deltas, expected = NUMBERED[case]
    body = chats(*deltas)
    if expected is None:
        with pytest.raises(AgentDecisionProviderUnavailable, match="stream_unknown"):
            assembled(CHAT, body)
        return
    calls = json.loads(assembled(CHAT, body))["choices"][0]["message"]["tool_calls"]
    assert [(each["id"], each["function"]["name"], each["function"]["arguments"]) for each in calls] == expected


def chats(*deltas: dict[str, Any], **choice: Any) -> bytes:
    told = [chunk(delta) for delta in deltas]
    told[-1]["choices"][0] |= choice
    return sse([*told, chunk({}, "stop")], named=False, done=True)


def claude(at: int, *events: dict[str, Any], skip: int = 0) -> bytes:
    return sse([*CLAUDE_EVENTS[:at], *events, *CLAUDE_EVENTS[at + skip :]])


UNKNOWN: dict[str, tuple[Api, bytes]] = {
    "chat-a number that changes": (CHAT, chats({"novel": 1}, {"novel": 2})),
    "chat-a truth that changes": (CHAT, chats({"novel": True}, {"novel": 1})),
    "chat-another role": (CHAT, chats({"content": "a"}, {"role": "tool", "content": "b"})),
    "chat-another kind of call": (CHAT, chats(call_piece("", type="function"), call_piece("", type="custom"))),
    "chat-another choice": (CHAT, chats({"content": "a"}, {"content": "b"}, index=1)),
    "anthropic-a second message": (ANTHROPIC, claude(3, CLAUDE_EVENTS[0])),
    "anthropic-a second block in one place": (ANTHROPIC, claude(3, CLAUDE_EVENTS[1])),
    "anthropic-a message that begins with content": (
        ANTHROPIC,
        claude(0, {"type": "message_start", "message": {**START, "content": [{"type": "text", "text": "a"}]}}, skip=1),
    ),
    "anthropic-a piece that is no text": (
        ANTHROPIC,
        claude(3, {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": 5}}),
    ),
    "anthropic-an input that has no end": (ANTHROPIC, claude(18, skip=1)),
    "anthropic-pieces of an input that was whole": (
        ANTHROPIC,
        claude(14, {**CLAUDE_EVENTS[14], "content_block": {"type": "tool_use", "input": {"a": 1}}}, skip=1),
    ),
    "responses-fewer items than were streamed": (
        RESPONSES,
        sse(
            [
                *({"type": "response.output_item.done", "item": {}} for _ in range(3)),
                {"type": "response.completed", "response": RESPONSES_BODY},
            ]
        ),
    ),
    "gemini-another role": (
        GEMINI,
        sse([GEMINI_EVENTS[0], {"candidates": [{"content": {"role": "user", "parts": []}}]}], named=False),
    ),
    "gemini-another candidate": (GEMINI, sse([GEMINI_EVENTS[0], event({"text": "b"}, index=1)], named=False)),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_d26_what_cannot_be_added_up_is_no_answer(case: str) -> None:
    """D9, D26: one of two values would be lost, and nothing tells which."""
    api, stream = UNKNOWN[case]
    with pytest.raises(AgentDecisionProviderUnavailable, match="stream_unknown"):
        assembled(api, stream)


def test_d26_what_is_said_anew_counts_as_it_was_said_last_and_a_null_says_nothing() -> None:
    """D26: usage, ratings and endings are no pieces; a container that was told is still known at the end."""
    begun = {**CLAUDE_EVENTS[0], "message": {**START, "container": {"id": "k"}, "usage": USAGE}}
    ended = {**CLAUDE_EVENTS[-2], "delta": {"stop_reason": "tool_use", "stop_sequence": None, "container": None}}
    body = json.loads(assembled(ANTHROPIC, sse([begun, *CLAUDE_EVENTS[1:-2], ended, CLAUDE_EVENTS[-1]])))
    assert body == {**CLAUDE_BODY, "container": {"id": "k"}}
    rated = [event({"text": str(n)}, safetyRatings=[{"n": n}], tokenCount=n) for n in (1, 2)]
    rated[1]["candidates"][0]["finishReason"] = "STOP"
    (candidate,) = json.loads(assembled(GEMINI, sse(rated, named=False)))["candidates"]
    assert (candidate["safetyRatings"], candidate["tokenCount"]) == ([{"n": 2}], 2)
    counted = [chunk({"content": "a"}, usage={"prompt_tokens": 1}), chunk({}, "stop", usage={"prompt_tokens": 2})]
    assert json.loads(assembled(CHAT, sse(counted, named=False)))["usage"] == {"prompt_tokens": 2}


def variants(value: Any) -> Iterator[Any]:
    """`value` with each place in it taken by what nobody expects there, and with each place left out."""
    yield from (None, True, -1, "x", [], [{}], {}, {"a": 1})
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for place, item in list(items):
        for changed in variants(item):
            copied = value.copy()
            copied[place] = changed
            yield copied
        copied = value.copy()
        del copied[place]
        yield copied


@pytest.mark.parametrize(
    ("api", "events"),
    [(ANTHROPIC, CLAUDE_EVENTS), (RESPONSES, RESPONSES_EVENTS), (CHAT, CHAT_EVENTS), (GEMINI, GEMINI_EVENTS)],
    ids=lambda given: given.name if isinstance(given, Api) else "",
)
def test_d09_no_value_of_an_event_is_believed_to_have_a_type(api: Api, events: Events) -> None:
    """D9: whatever stands at whatever place, there is a decision or one of the two errors."""
    interface = Native(wire_format(api.name), api)
    seen_: set[str] = set()
    for place, original in enumerate(events):
        for changed in variants(original):
            if not isinstance(changed, dict):
                continue
            stream = sse([*events[:place], changed, *events[place + 1 :]], named=False)
            try:
                read(api, interface, REQUEST, assembled(api, stream))
                seen_.add("decision")
            except (AgentDecisionProviderUnavailable, AgentDecisionProviderSchemaViolation) as refused:
                seen_.add(type(refused).__name__)
    assert seen_ == {"decision", "AgentDecisionProviderUnavailable", "AgentDecisionProviderSchemaViolation"}


# --- as the official clients add them up ---


@pytest.fixture
def dialect() -> Dialect:
    return CLAUDE


@pytest.fixture
def server(dialect: Dialect) -> Iterator[Server]:
    server = serving(dialect)
    yield server
    server.close()


def test_d26_anthropics_own_client_adds_up_the_same(server: Server) -> None:
    """An independent reading of the same events: equal, signature and calls included."""
    server.replies = [(200, SSE, sse(CLAUDE_EVENTS))]
    client = anthropic.Anthropic(base_url=server.url, api_key=KEY)
    with client.messages.stream(model="m", max_tokens=5, messages=[{"role": "user", "content": "x"}]) as stream:
        theirs = stream.get_final_message().to_dict(mode="json", warnings=False)
    ours = json.loads(assembled(ANTHROPIC, sse(CLAUDE_EVENTS)))
    for key in ("content", "stop_reason", "usage", "id"):
        assert theirs[key] == ours[key]


def test_d26_openais_own_client_adds_up_the_same(server: Server) -> None:
    """An independent reading of the same chunks: texts, calls, arguments and unknown members are equal."""
    server._fault = lambda *_: ""
    novel = [chunk({"thinking": text, "novel": {"transcript": text}}) for text in ("ab", "cd")]
    given = sse([*CHAT_EVENTS[:3], *novel, *CHAT_EVENTS[3:]], named=False, done=True)
    server.replies = [(200, SSE, given)]
    client = openai.OpenAI(base_url=server.url, api_key=KEY)
    with client.chat.completions.stream(model="m", messages=[{"role": "user", "content": "x"}]) as stream:
        theirs = stream.get_final_completion().choices[0].message
    (ours,) = json.loads(assembled(CHAT, given))["choices"]
    assert theirs.content == ours["message"]["content"]
    for key in ("thinking", "novel", "reasoning_content"):
        assert theirs.to_dict(mode="json", warnings=False)[key] == ours["message"][key]
    assert (ours["message"]["thinking"], ours["message"]["novel"]) == ("abcd", {"transcript": "abcd"})
    assert theirs.tool_calls is not None
    assert [(call.id, call.function.name, call.function.arguments) for call in theirs.tool_calls] == [
        (call["id"], call["function"]["name"], call["function"]["arguments"]) for call in ours["message"]["tool_calls"]
    ]


# --- through a provider ---


def finish_of(dialect: Dialect) -> bytes:
    if dialect is GOOGLE:
        return sse([event({"text": '{"answer"'}), event({"text": ':"done"}'}, finishReason="STOP")], named=False)
    texts = [
        {"type": "content_block_delta", "index": 2, "delta": {"type": "text_delta", "text": text}}
        for text in ('{"answer"', ':"done"}')
    ]
    end = {**CLAUDE_EVENTS[-2], "delta": {"stop_reason": "end_turn"}}
    return sse([CLAUDE_EVENTS[0], CLAUDE_EVENTS[9], *texts, CLAUDE_EVENTS[13], end, CLAUDE_EVENTS[-1]])


@pytest.mark.parametrize("dialect", [CLAUDE, GOOGLE], ids=["anthropic", "gemini"])
def test_d01_steps_are_streamed_and_recorded_whole(server: Server, dialect: Dialect) -> None:
    """D1, D26: one request a step; a torn stream leaves the conversation as it was, and the step can be asked again."""
    events, body = (CLAUDE_EVENTS, CLAUDE_BODY) if dialect is CLAUDE else (GEMINI_EVENTS, GEMINI_BODY)
    first = sse(events, named=dialect is CLAUDE)
    server.replies = [(200, SSE, first), (200, SSE, first[:-40]), (200, SSE, finish_of(dialect))]
    checked = server._fault
    server._fault = lambda path, headers, sent: "" if "thinking" in json.dumps(sent) else checked(path, headers, sent)
    provider = provider_of(dialect, server, stream=True, count=False)
    (call,) = drive(provider.decide(REQUEST)).calls
    with pytest.raises(AgentDecisionProviderUnavailable, match="stream_cut"):
        drive(provider.decide(asking(seen(call))))
    finish = drive(provider.decide(asking(seen(call)))).finish
    assert finish is not None
    assert finish.output == {"answer": "done"}
    assert server.requests[1] == server.requests[2]
    path = "/v1/messages" if dialect is CLAUDE else "/v1/models/m:streamGenerateContent?alt=sse"
    assert {each for each, _ in server.requests} == {path}
    assert [server.body(n).get("stream") for n in range(3)] == [True if dialect is CLAUDE else None] * 3
    entries = drive(provider.store.read(provider.key(REQUEST))).entries
    assert json.loads(entries[1].payload) == body
    assert [entry.kind for entry in entries].count(Kind.RESPONSE) == 2
    blocks = dialect.shown(server.body())[1]
    assert (blocks["content"] if dialect is CLAUDE else blocks["parts"]) == (
        body["content"] if dialect is CLAUDE else body["candidates"][0]["content"]["parts"]
    )
    assert server.refused == []


@pytest.mark.parametrize("kind", [sync.OpenAIDecisionProvider, sync.OpenAIChatDecisionProvider])
def test_d01_openai_steps_are_streamed_too(server: Server, kind: Any) -> None:
    """D1: the Responses event and the chunks, through the official client."""
    server._fault = lambda *_: ""
    responses = kind is sync.OpenAIDecisionProvider
    stream = sse(RESPONSES_EVENTS) if responses else sse(CHAT_EVENTS, named=False, done=True)
    server.replies = [(200, SSE, stream), (200, SSE, stream[:300])]
    provider = kind(model="m", base_url=f"{server.url}/v1", api_key=KEY, stream=True)
    made = provider.decide(REQUEST)
    assert [call.arguments for call in made.calls] == [{"path": "a"}, {"path": "b"}][: len(made.calls)]
    assert made.billed_tokens == 11
    with pytest.raises(AgentDecisionProviderUnavailable, match="stream_cut"):
        provider.decide(asking(*map(seen, made.calls)))
    assert server.body()["stream"] is True
    assert server.body().get("stream_options") == (None if responses else {"include_usage": True})


def test_d01_structured_decisions_are_streamed_too(server: Server) -> None:
    """D1: both interfaces; the text comes in pieces."""
    text = {"type": "text_delta", "text": acting("finish", answer="x")}
    delta = {"type": "content_block_delta", "index": 2, "delta": text}
    end = {**CLAUDE_EVENTS[-2], "delta": {"stop_reason": "end_turn"}}
    events = [CLAUDE_EVENTS[0], CLAUDE_EVENTS[9], delta, CLAUDE_EVENTS[13], end, CLAUDE_EVENTS[-1]]
    server.replies = [(200, SSE, sse(events))]
    assert drive(provider_of(CLAUDE, server, "structured", stream=True).decide(REQUEST)).finish
