"""
The guard transport: SPEC D10 to D16, promises I-28 and I-37, bad inputs 108 to 112, over real sockets and real SDKs.

Where the rule is about hosts nothing can be reached here: there the transport underneath is one that answers from this
process, so that what would have left is seen, and its control shows that it does see it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx2
import msgspec
import openai
import pytest
from tests.http_clients import http_client
from tests.naming import named
from tests.providers.counting_server import ANTHROPIC, GEMINI, CountingServer, counting_server
from tests.providers.test_openai_requests import variants

from minutebook import ContextGuardTransport, ContextWindow, sync
from minutebook.errors import (
    AgentDecisionProviderUnavailable,
    BlockingMismatch,
    CallerError,
    InvalidOption,
    MinutebookError,
    ProviderContextCountUnavailable,
    ProviderContextWindowExceeded,
)
from minutebook.model.events import ProviderContextCount
from minutebook.providers import guard as guard_module
from minutebook.providers.counting import ANTHROPIC_BETAS, COUNTINGS, Refusal, output_limit, refused
from minutebook.providers.explicit import check_explicit
from minutebook.providers.sdk_http import own_error

KEY = "sk-canary-4711"
SECRET = "canary-content-0815"
WINDOW = ContextWindow(context_window_tokens=1_000, safety_margin_tokens=100)
"""100 tokens of output leave room for 666 counted ones: ceil(666 × 1.2) + 100 + 100 = 1,000."""

PATHS = {
    "openai": "/v1/responses",
    "chat": "/v1/chat/completions",
    "anthropic": "/v1/messages",
    "google": "/v1beta/models/gemini-3:generateContent",
}
SAID = [{"role": "user", "content": SECRET}]
BODIES: dict[str, dict[str, Any]] = {
    "openai": {"model": "m", "input": SAID, "max_output_tokens": 100, "store": False},
    "chat": {"model": "m", "messages": SAID, "max_completion_tokens": 100},
    "anthropic": {"model": "m", "messages": SAID, "max_tokens": 100},
    "google": {
        "contents": [{"role": "user", "parts": [{"text": SECRET}]}],
        "generationConfig": {"maxOutputTokens": 100},
    },
}
APIS = list(PATHS)
each_api = pytest.mark.parametrize("api", APIS)


def provider_of(api: str) -> Any:
    return "openai" if api == "chat" else api


def wire_of(api: str) -> str:
    return {"openai": "openai-responses", "chat": "openai-chat", "google": "gemini"}.get(api, api)


@pytest.fixture
def server() -> Iterator[CountingServer]:
    with counting_server() as server:
        yield server


def base_of(server: CountingServer, api: str) -> str:
    return server.url + ("/v1" if provider_of(api) == "openai" else "")


def guard_of(server: CountingServer, api: str, **options: Any) -> sync.ContextGuardTransport:
    # Without certificates, since loading them takes longer than a test; and what a client of plain HTTP needs.
    options.setdefault("transport", httpx2.HTTPTransport(verify=False))
    return sync.ContextGuardTransport(
        **{"provider": provider_of(api), "context": WINDOW, "qualified": [base_of(server, api)], **options}
    )


def post(server: CountingServer, api: str, body: Any = None, **request: Any) -> httpx2.Response:
    """Send one request through a blocking guard; a mapping is encoded with spaces, as no encoder of ours would."""
    options = {name: request.pop(name) for name in ("context", "on_event", "qualified") if name in request}
    body = BODIES[api] if body is None else body
    content = body if isinstance(body, bytes) else json.dumps(body, indent=1).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}", **request.pop("headers", {})}
    target = request.pop("target", PATHS[api])
    with httpx2.Client(transport=guard_of(server, api, **options), follow_redirects=True, timeout=20) as client:
        return client.request(
            request.pop("method", "POST"), server.url + target, content=content, headers=headers, **request
        )


def refusal(act: Callable[[], object], *more: str) -> Any:
    """The error of ours that `act` ends in; it tells no content, no key, and nothing of `more`."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - an SDK may wrap it; what it is, is asserted below
        act()
    error = own_error(caught.value)
    assert isinstance(error, MinutebookError), caught.value
    told = "".join(traceback.format_exception(error)) + repr(error) + repr(vars(error))
    for canary in (KEY, SECRET, *more):
        assert canary not in told
    return error


def refused_with(server: CountingServer, code: Refusal, act: Callable[[], object]) -> Any:
    """A refusal without any request: neither a count nor a generation arrived."""
    error = refusal(act)
    assert isinstance(error, ProviderContextCountUnavailable)
    assert error.provider_error_code == code.value
    assert server.requests == []
    return error


# --- counted, and sent as it was counted ---


@each_api
def test_d11_the_count_is_of_the_bytes_that_are_sent(server: CountingServer, api: str) -> None:
    """D11: what arrives is the body, byte for byte; the count has the same bytes of every field that a model sees."""
    events: list[Any] = []
    body = {**BODIES[api], "tools": []}
    content = json.dumps(body, indent=3).encode()
    assert post(server, api, content, on_event=events.append).status_code == 200
    (counted,), (generated,) = server.counted, server.generated
    assert server.requests == [counted, generated]
    assert generated.body == content
    shown = counted.json["generateContentRequest"] if api == "google" else counted.json
    kept = {name: value for name, value in body.items() if name in shown}
    assert {name: value for name, value in shown.items() if name in body} == kept
    dropped = {"openai": {"max_output_tokens", "store"}, "chat": {"max_completion_tokens"}, "anthropic": {"max_tokens"}}
    assert set(body) - set(shown) == dropped.get(api, set())
    key = next(name for name in ("input", "messages", "contents") if name in body)
    said = content[content.index(f'"{key}": '.encode()) :].split(b"\n   ]")[0].partition(b": ")[2]
    assert SECRET.encode() in said
    assert said in counted.body, "the very bytes, spaces and all"
    assert counted.headers["Authorization"] == generated.headers["Authorization"] == f"Bearer {KEY}"
    if api == "google":
        assert shown["model"] == "models/gemini-3"
    assert events == [
        ProviderContextCount(provider=provider_of(api), count=7, reservation=209, window=1_000, fits=True)
    ]
    assert set(msgspec.to_builtins(events[0])) == {"kind", "provider", "count", "reservation", "window", "fits"}


@each_api
def test_d12_what_does_not_fit_is_not_generated(server: CountingServer, api: str) -> None:
    """D12, I-28: to the token; the refusal tells the numbers, and the server's record shows no generation."""
    events: list[Any] = []
    server.count = lambda body: 666
    post(server, api, on_event=events.append)
    assert len(server.generated) == 1
    server.count = lambda body: 667
    error = refusal(lambda: post(server, api, on_event=events.append))
    assert isinstance(error, ProviderContextWindowExceeded)
    assert (error.count, error.reservation, error.window) == (667, 1_001, 1_000)
    assert len(server.counted) == 2
    assert len(server.generated) == 1
    assert [event.fits for event in events] == [True, False]
    assert all(canary not in repr(events) for canary in (KEY, SECRET))


def test_d12_control_the_servers_record_sees_a_generation_without_a_guard(server: CountingServer) -> None:
    """A record that missed a generation would make every test here pass: a plain client's is in it."""
    with httpx2.Client(timeout=20) as client:
        client.post(server.url + PATHS["anthropic"], json=BODIES["anthropic"])
    assert len(server.generated) == 1
    assert SECRET in server.generated[0].body.decode()


def test_d16_an_observer_that_raises_changes_nothing(server: CountingServer) -> None:
    """D16: neither the refusal nor the request."""

    def raises(event: object) -> None:
        raise OSError(SECRET)

    assert post(server, "anthropic", on_event=raises).status_code == 200


# --- under the official SDKs ---


def blocking_call(server: CountingServer, api: str, **options: Any) -> Any:
    guard = guard_of(server, api)
    http = http_client(transport=guard)
    if options.pop("surface", False):
        options["middleware"] = [guard.surface]
    if api == "anthropic":
        return anthropic.Anthropic(base_url=server.url, api_key=KEY, http_client=http, **options).messages.create
    client = openai.OpenAI(base_url=base_of(server, api), api_key=KEY, http_client=http, **options)
    return client.responses.create if api == "openai" else client.chat.completions.create


def call_of(server: CountingServer, api: str, colour: str, **options: Any) -> Callable[[], Any]:
    """A call of an official client of either colour over a guard of that colour."""
    if colour == "blocking":
        return lambda: blocking_call(server, api, **options)(**BODIES[api])
    return lambda: asynchronous_call(server, api, BODIES[api], **options)


def asynchronous_call(server: CountingServer, api: str, body: dict[str, Any], **options: Any) -> Any:
    async def call() -> Any:
        transport = ContextGuardTransport(
            provider=provider_of(api),
            context=WINDOW,
            transport=httpx2.AsyncHTTPTransport(verify=False),
            qualified=[base_of(server, api)],
        )
        async with httpx2.AsyncClient(transport=transport) as http:
            if api == "anthropic":
                given = {"middleware": [transport.surface]} if options.pop("surface", False) else {}
                client = anthropic.AsyncAnthropic(
                    base_url=server.url, api_key=KEY, http_client=http, **given, **options
                )
                return await client.messages.create(**body)
            other = openai.AsyncOpenAI(base_url=base_of(server, api), api_key=KEY, http_client=http, **options)
            create: Any = other.responses.create if api == "openai" else other.chat.completions.create
            return await create(**body)

    return asyncio.run(call())


def test_d11_a_field_of_the_other_api_is_counted_at_whatever_server_takes_it(server: CountingServer) -> None:
    """D11: llama.cpp's server binds answers of Responses by `response_format`; another may tell the model of it."""
    bound = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}
    content = json.dumps({**BODIES["openai"], "response_format": bound}).encode()
    assert post(server, "openai", content).status_code == 200
    (counted,), (generated,) = server.counted, server.generated
    assert counted.json["response_format"] == generated.json["response_format"] == bound


def test_d11_how_much_an_answer_is_asked_to_say_is_counted(server: CountingServer) -> None:
    """D11: the model is told of `verbosity`: it is among what makes a cached prefix another one."""
    content = json.dumps({**BODIES["chat"], "verbosity": "high", "reasoning_effort": "low", "seed": 1}).encode()
    assert post(server, "chat", content).status_code == 200
    (counted,) = server.counted
    assert (counted.json["verbosity"], counted.json["reasoning_effort"]) == ("high", "low")
    assert "seed" not in counted.json, "a field that no model sees is dropped"


@pytest.mark.parametrize("api", ["openai", "chat", "anthropic"])
@pytest.mark.parametrize("colour", ["blocking", "async"])
def test_d14_the_official_clients_work_over_it(server: CountingServer, api: str, colour: str) -> None:
    """
    D14: the response reaches the SDK as its own type; each call is one count and one generation, of one body. A key of
    the host's that makes a request happen once goes with the generation alone: its answer is not that of the count.
    """
    told = call_of(server, api, colour, default_headers={"Idempotency-Key": "once", "X-Host": "h"})()
    assert told.id in ("resp", "c", "msg")
    (counted,), (generated,) = server.counted, server.generated
    assert {name: generated.json[name] for name in counted.json} == counted.json
    assert "accept-encoding" in {name.lower() for name in counted.headers}
    assert (generated.headers["Idempotency-Key"], generated.headers["X-Host"]) == ("once", "h")
    assert {name.lower() for name in counted.headers} & {"idempotency-key", "x-host"} == {"x-host"}


@pytest.mark.parametrize("api", ["openai", "chat"])
@pytest.mark.parametrize("colour", ["blocking", "async"])
def test_d14_a_refusal_leaves_openais_client_as_it_is_and_once(server: CountingServer, api: str, colour: str) -> None:
    """D14: no retry and no wrapping, with the SDK's own retries on."""
    server.count = lambda body: 10_000
    call = call_of(server, api, colour)
    with pytest.raises(ProviderContextWindowExceeded):
        call()
    assert len(server.counted) == 1
    assert server.generated == []


@pytest.mark.parametrize("colour", ["blocking", "async"])
def test_d14_anthropics_client_wraps_a_refusal_and_the_middleware_does_not(server: CountingServer, colour: str) -> None:
    """D14: with `surface` the refusal comes out as it is and once; without, as the cause, and never a generation."""
    server.count = lambda body: 10_000
    call = call_of(server, "anthropic", colour, surface=True)
    with pytest.raises(ProviderContextWindowExceeded) as caught:
        call()
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)
    assert len(server.counted) == 1
    call = call_of(server, "anthropic", colour, max_retries=0)
    with pytest.raises(anthropic.APIConnectionError) as wrapped:
        call()
    assert isinstance(wrapped.value.__cause__, ProviderContextWindowExceeded)
    assert server.generated == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("colour", ["blocking", "async"])
def test_d14_the_middleware_without_the_transport_is_found_out(
    server: CountingServer, colour: str, *, stream: bool
) -> None:
    """D14: nothing came through the guard, so the first response is refused, and its connection is closed."""
    if stream:
        data = b'event: message_stop\ndata: {"type": "message_stop"}\n\n'
        server.generate = lambda body: (200, {"Content-Type": "text/event-stream"}, data)
    body: dict[str, Any] = {**BODIES["anthropic"], "stream": stream}
    closed: list[bool] = []

    async def asynchronous() -> None:
        guard = ContextGuardTransport(provider="anthropic", context=WINDOW)

        async def after(request: Any, call_next: Any) -> Any:
            answered.append(await call_next(request))
            return answered[-1]

        async with httpx2.AsyncClient() as http:
            client = anthropic.AsyncAnthropic(
                base_url=server.url, api_key=KEY, http_client=http, middleware=[guard.surface, after]
            )
            with pytest.raises(InvalidOption, match=r"httpx2\.AsyncClient\(transport=guard\)"):
                await client.messages.create(**body)
            closed.append(answered[0].http_response.is_closed)

    def blocking() -> None:
        guard = sync.ContextGuardTransport(provider="anthropic", context=WINDOW)

        def after(request: Any, call_next: Any) -> Any:
            answered.append(call_next(request))
            return answered[-1]

        with httpx2.Client() as http:
            client = anthropic.Anthropic(
                base_url=server.url, api_key=KEY, http_client=http, middleware=[guard.surface, after]
            )
            with pytest.raises(InvalidOption, match=r"httpx2\.Client\(transport=guard\)"):
                client.messages.create(**body)
            closed.append(answered[0].http_response.is_closed)

    answered: list[Any] = []
    blocking() if colour == "blocking" else asyncio.run(asynchronous())
    assert closed == [True]
    assert server.counted == []
    assert len(server.generated) == 1


def test_d14_the_middleware_leaves_other_errors_alone(server: CountingServer) -> None:
    """D14: what the provider answers is the SDK's to tell."""
    guard = guard_of(server, "anthropic")
    http = http_client(transport=guard)
    client = anthropic.Anthropic(
        base_url=server.url, api_key=KEY, http_client=http, middleware=[guard.surface], max_retries=0
    )
    server.generate = lambda body: (400, {}, b'{"type":"error","error":{"type":"invalid_request_error","message":"m"}}')
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(**BODIES["anthropic"])
    with counting_server() as gone:
        http = http_client(transport=guard_of(gone, "anthropic"))
    with pytest.raises(anthropic.APIConnectionError):
        client.with_options(base_url=gone.url, http_client=http).models.list()


@pytest.mark.parametrize("api", ["openai", "anthropic"])
def test_d14_streams_pass_once_they_are_counted(server: CountingServer, api: str) -> None:
    """D14: `stream` is on the drop-list; the events arrive as the server sends them."""
    event = {"openai": "response.completed", "anthropic": "message_stop"}[api]
    data = {"type": event, "sequence_number": 0, "response": {}} if api == "openai" else {"type": event}
    text = f"event: {event}\ndata: {json.dumps(data)}\n\n".encode()
    server.generate = lambda body: (200, {"Content-Type": "text/event-stream"}, text)
    told = list(blocking_call(server, api)(**BODIES[api], stream=True))
    assert [each.type for each in told] == [event]
    assert "stream" not in server.counted[0].json
    assert server.generated[0].json["stream"] is True


def test_d14_gemini_is_counted_whole_in_both_methods(server: CountingServer) -> None:
    """D14: system text, tools and schema stand in the wrapper, in either spelling, by the same version of the API."""
    body = {
        "contents": BODIES["google"]["contents"],
        "system_instruction": {"parts": [{"text": "s"}]},
        "tools": [{"function_declarations": [{"name": "f", "parameters_json_schema": {"type": "object"}}]}],
        "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
        "generation_config": {"max_output_tokens": 100, "candidate_count": 1},
        "safetySettings": [],
        "labels": {"a": "b"},
    }
    post(server, "google", body)
    post(server, "google", body, target="/v1/models/gemini-3:streamGenerateContent?alt=sse")
    assert [seen.target for seen in server.counted] == [
        "/v1beta/models/gemini-3:countTokens",
        "/v1/models/gemini-3:countTokens",
    ]
    for seen in server.counted:
        assert set(seen.json) == {"generateContentRequest"}
        shown = seen.json["generateContentRequest"]
        assert shown.pop("model") == "models/gemini-3"
        assert shown == {name: value for name, value in body.items() if name not in ("safetySettings", "labels")}


# --- D15: what lets the server have a conversation of its own ---


STATE: dict[str, list[dict[str, Any]]] = {
    "openai": [
        {"previous_response_id": "resp_1"},
        {"conversation": "conv_1"},
        {"conversation": {"id": "conv_1"}},
        {"prompt": {"id": "pmpt_1"}},
        {"context_management": [{"type": "compaction"}]},
        {"background": True},
        {"background_options": {"continuation_id": "x"}},
        {"truncation": "auto"},
        {"truncation": "new"},
        {"store": True},
        {"store": None},
        {"store": 0},
        {"prompt_cache_options": {"prewarm": True}},
    ],
    "chat": [{"store": True}, {"web_search_options": {}}, {"audio": {"voice": "v"}}],
    "anthropic": [
        {"container": "c_1"},
        {"container": {"skills": []}},
        {"mcp_servers": [{"url": "https://x"}]},
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
        {"compaction": {"type": "on_demand"}},
        {"thread": {"type": "create"}},
        {"fallbacks": ["other"]},
        {"fallback_credit_token": "t"},
    ],
    "google": [
        {"cachedContent": "cachedContents/1"},
        {"cached_content": "cachedContents/1"},
        {"continuationToken": "t"},
        {"continuation_token": "t"},
        {"store": True},
    ],
}
STATES = [(api, fields) for api, rows in STATE.items() for fields in rows]


@pytest.mark.parametrize(("api", "fields"), STATES, ids=str)
def test_d15_implicit_server_state_is_refused_by_name(server: CountingServer, api: str, fields: dict[str, Any]) -> None:
    """D15: before anything is sent, a count too."""
    error = refused_with(server, Refusal.SERVER_STATE, lambda: post(server, api, {**BODIES[api], **fields}))
    name = "prewarm" if "prompt_cache_options" in fields else next(iter(fields))
    assert error.field == name
    assert repr(name) in str(error)


@pytest.mark.parametrize(
    ("api", "fields"),
    [
        ("openai", {"previous_response_id": None, "conversation": None, "background": False, "truncation": "disabled"}),
        ("openai", {"stream": False, "include": [], "metadata": {}, "service_tier": "auto", "prompt_cache_key": "k"}),
        ("chat", {"store": False, "n": 1, "stop": ["x"], "seed": 1}),
        ("anthropic", {"container": None, "mcp_servers": [], "service_tier": "auto", "stop_sequences": ["x"]}),
        ("anthropic", {"thinking": {"type": "adaptive"}, "cache_control": {"type": "ephemeral"}, "speed": "fast"}),
        ("google", {"cachedContent": None, "store": False, "serviceTier": "standard"}),
    ],
    ids=str,
)
def test_d15_what_is_switched_off_or_harmless_passes(server: CountingServer, api: str, fields: dict[str, Any]) -> None:
    """D15: a refusal of everything would prove nothing; and what is dropped from the count is still sent."""
    body = {**BODIES[api], **fields}
    post(server, api, body)
    assert server.generated[0].json == body
    shown = server.counted[0].json.get("generateContentRequest", server.counted[0].json)
    assert set(shown) <= {*COUNTINGS[wire_of(api)].counted, "model"}


@each_api
def test_d15_control_without_the_check_the_state_reaches_the_server(
    server: CountingServer, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusals above come from the check and from nothing else: a guard without it sends what they refuse."""
    monkeypatch.setattr(guard_module, "check_explicit", lambda counting, body: None)
    body = {**BODIES[api], **STATE[api][0]}
    post(server, api, body)
    assert server.generated[0].json == body


def test_d15_a_store_that_is_not_mentioned_is_one(server: CountingServer) -> None:
    """D15: OpenAI stores a response unless it is told not to."""
    body = {name: value for name, value in BODIES["openai"].items() if name != "store"}
    assert refused_with(server, Refusal.SERVER_STATE, lambda: post(server, "openai", body)).field == "store"


@each_api
def test_d11_a_field_on_no_list_is_refused_by_name(server: CountingServer, api: str) -> None:
    """D11: whatever a provider adds next year; a name that might be content is not repeated."""
    error = refused_with(
        server, Refusal.UNKNOWN_FIELD, lambda: post(server, api, {**BODIES[api], "personality": "kind"})
    )
    assert error.field == "personality"
    error = refused_with(server, Refusal.UNKNOWN_FIELD, lambda: post(server, api, {**BODIES[api], f"a {SECRET} b": 1}))
    assert error.field == ""


FUNCTION = {"type": "function", "name": "f", "parameters": {}}


def said(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": list(parts)}]}


def heard(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


def parts(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"contents": [{"role": "user", "parts": list(parts)}]}


OUTSIDE: list[tuple[str, dict[str, Any], Refusal, str]] = [
    *(
        ("openai", {"tools": [FUNCTION, {"type": kind}]}, Refusal.SERVER_TOOL, kind)
        for kind in (
            *("mcp", "file_search", "code_interpreter", "shell", "web_search", "web_search_2025_08_26"),
            *("web_search_preview", "image_generation", "tool_search", "programmatic_tool_calling", "computer"),
        )
    ),
    *(
        ("openai", {"input": [{"type": kind, "id": "x"}]}, Refusal.SERVER_STATE, kind)
        for kind in ("item_reference", "compaction", "compaction_trigger", "configuration_update", "additional_tools")
    ),
    ("openai", {"input": [{"id": "msg_1"}]}, Refusal.SERVER_STATE, "item_reference"),
    ("openai", {"input": [{"type": "mcp_call", "id": "x"}]}, Refusal.OUTSIDE_CONTENT, "mcp_call"),
    ("openai", said({"type": "input_file", "file_id": "f"}), Refusal.OUTSIDE_CONTENT, "file_id"),
    ("openai", said({"type": "input_file", "file_url": "https://x"}), Refusal.OUTSIDE_CONTENT, "file_url"),
    ("openai", said({"type": "input_image", "file_id": "f"}), Refusal.OUTSIDE_CONTENT, "file_id"),
    ("openai", said({"type": "input_image", "image_url": "https://x"}), Refusal.OUTSIDE_CONTENT, "image_url"),
    ("openai", said({"type": "input_video"}), Refusal.OUTSIDE_CONTENT, "input_video"),
    (
        "openai",
        {
            "input": [
                {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_file", "file_id": "f"}]}
            ]
        },
        Refusal.OUTSIDE_CONTENT,
        "file_id",
    ),
    ("chat", {"tools": [{"type": "web_search"}]}, Refusal.SERVER_TOOL, "web_search"),
    ("chat", {"n": 2}, Refusal.SEVERAL_ANSWERS, "n"),
    ("chat", {"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, Refusal.SERVER_STATE, "audio"),
    *(
        ("chat", heard({"type": kind}), Refusal.OUTSIDE_CONTENT, kind)
        for kind in ("video_url", "input_file", "image_file", "container_upload")
    ),
    ("chat", heard({"type": "file", "file": {"file_id": "f"}}), Refusal.OUTSIDE_CONTENT, "file_id"),
    ("chat", heard({"type": "image_url", "image_url": {"url": "https://x"}}), Refusal.OUTSIDE_CONTENT, "url"),
    ("chat", heard({"type": "image_url", "image_url": "https://x"}), Refusal.OUTSIDE_CONTENT, "image_url"),
    *(
        ("anthropic", {"tools": [{"name": "f", "input_schema": {}}, {"type": kind}]}, Refusal.SERVER_TOOL, kind)
        for kind in (
            *("web_search_20250305", "web_search_20260318", "web_fetch_20260318", "code_execution_20260521"),
            *("memory_20250818", "computer_toolset_20260801", "browser_toolset_20260801", "tool_search_tool_regex"),
        )
    ),
    *(
        ("anthropic", heard({"type": kind}), Refusal.OUTSIDE_CONTENT, kind)
        for kind in ("container_upload", "compaction", "server_tool_use", "web_search_tool_result", "mcp_tool_use")
    ),
    *(
        ("anthropic", {"system": [{"type": "text", "text": "s"}, {"type": kind}]}, Refusal.OUTSIDE_CONTENT, kind)
        for kind in ("container_upload", "compaction", "mcp_tool_use")
    ),
    (
        "anthropic",
        {"system": [{"type": "document", "source": {"type": "url", "url": "https://x"}}]},
        Refusal.OUTSIDE_CONTENT,
        "document.source.url",
    ),
    *(
        (
            "anthropic",
            heard({"type": kind, "source": {"type": source}}),
            Refusal.OUTSIDE_CONTENT,
            f"{kind}.source.{source}",
        )
        for kind in ("image", "document")
        for source in ("url", "file")
    ),
    (
        "anthropic",
        heard({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": {"type": "url"}}]}),
        Refusal.OUTSIDE_CONTENT,
        "image.source.url",
    ),
    (
        "anthropic",
        heard(
            {
                "type": "document",
                "source": {"type": "content", "content": [{"type": "image", "source": {"type": "file"}}]},
            }
        ),
        Refusal.OUTSIDE_CONTENT,
        "image.source.file",
    ),
    ("google", parts({"fileData": {"fileUri": "files/1"}}), Refusal.OUTSIDE_CONTENT, "fileData"),
    ("google", parts({"file_data": {"file_uri": "files/1"}}), Refusal.OUTSIDE_CONTENT, "file_data"),
    ("google", parts({"toolCall": {}}), Refusal.OUTSIDE_CONTENT, "toolCall"),
    ("google", parts({"toolResponse": {}}), Refusal.OUTSIDE_CONTENT, "toolResponse"),
    (
        "google",
        parts({"functionResponse": {"name": "f", "response": {}, "parts": [{"fileData": {}}]}}),
        Refusal.OUTSIDE_CONTENT,
        "fileData",
    ),
    ("google", {"systemInstruction": {"parts": [{"fileData": {}}]}}, Refusal.OUTSIDE_CONTENT, "fileData"),
    ("google", {"contents": {"parts": {"fileData": {}}}}, Refusal.OUTSIDE_CONTENT, "fileData"),
    ("google", {"tools": {"googleSearch": {}}}, Refusal.SERVER_TOOL, "googleSearch"),
    ("openai", {"instructions": [{"type": "item_reference", "id": "x"}]}, Refusal.SERVER_STATE, "item_reference"),
    *(
        ("google", {"tools": [{"functionDeclarations": []}, {tool: {}}]}, Refusal.SERVER_TOOL, tool)
        for tool in (
            *("googleSearch", "google_search", "googleSearchRetrieval", "urlContext", "codeExecution", "fileSearch"),
            *("googleMaps", "mcpServers", "computerUse"),
        )
    ),
    (
        "google",
        {"generationConfig": {"maxOutputTokens": 100, "candidateCount": 2}},
        Refusal.SEVERAL_ANSWERS,
        "candidateCount",
    ),
    (
        "google",
        {"generationConfig": {"maxOutputTokens": 1, "max_output_tokens": 1}},
        Refusal.FIELD_TWICE,
        "max_output_tokens",
    ),
    ("google", {"generation_config": {"maxOutputTokens": 100}}, Refusal.FIELD_TWICE, "generation_config"),
    ("chat", {"max_tokens": 100}, Refusal.FIELD_TWICE, "max_completion_tokens"),
]


@pytest.mark.parametrize(("api", "fields", "code", "name"), OUTSIDE, ids=[f"{row[0]}-{row[3]}" for row in OUTSIDE])
def test_d15_what_is_not_in_the_request_is_refused_by_name(
    server: CountingServer, api: str, fields: dict[str, Any], code: Refusal, name: str
) -> None:
    """D15: tools that the provider runs, files and pictures by reference, items that it holds."""
    assert refused_with(server, code, lambda: post(server, api, {**BODIES[api], **fields})).field == name


def listed(value: Any) -> Iterator[Any]:
    """`value` with each list and object in it put into a list, and into two."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for place, item in list(items):
        variants = [[item], [["x", item]]] if isinstance(item, (dict, list)) else []
        for changed in (*variants, *listed(item)):
            copied = value.copy()
            copied[place] = changed
            yield copied


HIDDEN = [
    (api, changed)
    for api, fields, _, name in [*OUTSIDE, ("openai", {"prompt_cache_options": {"prewarm": True}}, "", "prewarm")]
    if name not in ("n", "max_completion_tokens")
    for changed in listed(fields)
]


@pytest.mark.parametrize("api", APIS)
def test_d15_what_is_refused_is_refused_in_a_list_of_lists_too(api: str) -> None:
    """D15: tools, items, messages, parts and sources; a list in between hides nothing from the check."""
    cases = [changed for of, changed in HIDDEN if of == api]
    assert len(cases) > 8
    for changed in cases:
        with pytest.raises(ProviderContextCountUnavailable):
            check_explicit(COUNTINGS[wire_of(api)], {**BODIES[api], **changed})


def test_d15_control_the_same_places_pass_with_what_is_harmless() -> None:
    """The control: it is what stands in the lists that is refused, and not that they are lists of lists."""
    harmless = {"openai": said({"type": "input_text", "text": "x"}), "google": parts({"text": "x"})}
    for api, fields in {"chat": heard({"type": "text", "text": "x"}), **harmless}.items():
        for changed in listed(fields):
            check_explicit(COUNTINGS[wire_of(api)], {**BODIES[api], **changed})


RICH: dict[str, dict[str, Any]] = {
    "openai": {
        "input": [
            {"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]},
        ],
        "tools": [FUNCTION],
        "prompt_cache_options": {"prewarm": False},
    },
    "chat": {
        "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "n": 1,
    },
    "anthropic": {
        "system": [{"type": "text", "text": "s"}],
        "messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "content", "content": []}}]}],
        "tools": [{"type": "custom", "name": "f", "input_schema": {}}],
    },
    "google": {
        "contents": [{"parts": [{"functionResponse": {"name": "f", "response": {}, "parts": [{"inlineData": {}}]}}]}],
        "systemInstruction": {"parts": [{"text": "s"}]},
        "tools": [{"functionDeclarations": [{"name": "f"}]}],
        "generationConfig": {"maxOutputTokens": 100, "candidateCount": 1},
    },
}


@each_api
def test_d15_no_value_of_a_body_is_believed_to_have_a_type(api: str) -> None:
    """D15: whatever stands at whatever place, the body can be counted or is refused by name; nothing else is raised."""
    counting, codes = COUNTINGS[wire_of(api)], set()
    for body in variants({**BODIES[api], **RICH[api]}):
        try:
            check_explicit(counting, body if isinstance(body, dict) else {"x": body})
            output_limit(counting, body)
            codes.add("counted")
        except ProviderContextCountUnavailable as refusal:
            codes.add(refusal.provider_error_code)
    assert codes >= {"counted", "unknown_field", "no_output_limit", "server_tool", "outside_content"}


@pytest.mark.parametrize(
    ("api", "fields"),
    [
        ("openai", {"input": SECRET}),
        ("openai", said({"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": "data:image/png,"})),
        ("openai", {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"file_id":"f"}'}]}),
        ("openai", {"input": [{"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"}]}),
        ("openai", {"tools": [FUNCTION, {"type": "custom", "name": "c"}]}),
        ("chat", heard({"type": "image_url", "image_url": {"url": "data:image/png,"}})),
        ("chat", heard({"type": "image_url", "image_url": "data:image/png,"})),
        ("chat", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
        (
            "anthropic",
            heard({"type": "tool_use", "id": "t", "name": "f", "input": {"type": "url", "source": {"type": "url"}}}),
        ),
        ("anthropic", heard({"type": "image", "source": {"type": "base64", "data": ""}})),
        ("anthropic", {"tools": [{"name": "f", "input_schema": {}}, {"type": "bash_20250124", "name": "bash"}]}),
        ("anthropic", {"system": [{"type": "text", "text": "s"}]}),
        ("google", parts({"functionCall": {"name": "f", "args": {"fileData": {}}}, "thoughtSignature": "+/=="})),
        ("google", parts({"function_response": {"name": "f", "response": {"toolCall": {}}}}, {"inline_data": {}})),
    ],
    ids=str,
)
def test_d15_what_is_in_the_request_passes(server: CountingServer, api: str, fields: dict[str, Any]) -> None:
    """D15: content by value, calls and results of the user's own, whatever is in them."""
    body = {**BODIES[api], **fields}
    post(server, api, body)
    assert server.generated[0].json == body


@pytest.mark.parametrize(
    "beta", ["message-threads-2026-08-12", "compact-2026-09-04", "context-management-2025-06-27", "x"]
)
def test_d15_a_beta_feature_that_is_not_known_is_refused(server: CountingServer, beta: str) -> None:
    """D15: they hold threads, compact and edit; one that does not is sent with the count as well."""
    known = "thinking-binding-controls-2026-08-01"
    assert known in ANTHROPIC_BETAS
    headers = {"anthropic-beta": f"{known}, {beta}"}
    error = refused_with(server, Refusal.HEADER_REFUSED, lambda: post(server, "anthropic", headers=headers))
    assert error.field == beta
    post(server, "anthropic", headers={"anthropic-beta": known}, target="/v1/messages?beta=true")
    assert [seen.headers["anthropic-beta"] for seen in server.requests] == [known] * 2
    assert server.counted[0].target == "/v1/messages/count_tokens?beta=true"


@each_api
@pytest.mark.parametrize("limit", [None, 0, -1, True, 1.5, "100", [], "absent"], ids=repr)
def test_d10_a_request_without_a_bound_on_its_output_is_refused(server: CountingServer, api: str, limit: Any) -> None:
    """D10: there is nothing to reserve."""
    body = json.loads(json.dumps(BODIES[api]))
    holder = body["generationConfig"] if api == "google" else body
    name = next(name for name in COUNTINGS[wire_of(api)].output_limits if name in holder)
    if limit == "absent":
        del holder[name]
    else:
        holder[name] = limit
    assert refused_with(server, Refusal.NO_OUTPUT_LIMIT, lambda: post(server, api, body)).field == name


# --- bodies that cannot be counted (bad input 112) ---


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"null", b"[]", b'"x"', b"{", b'{"a":1,"a":2}', b'{"a":NaN}', b'{"a":"\\ud800"}', b"\xff"),
        b"\xef\xbb\xbf{}",
        '{"a":1}'.encode("utf-16"),
        b'{"model":"m","messages":[],"max_tokens":1,"thread":null,"thread":{"type":"create"}}',
        b"[" * 300 + b"]" * 300,
    ],
)
def test_d11_a_body_that_two_could_read_differently_is_refused(server: CountingServer, body: bytes) -> None:
    """D11: what we read must be what the server reads, so only strict JSON is counted; equal keys are none."""
    refused_with(server, Refusal.BODY_NOT_JSON, lambda: post(server, "anthropic", body))


def stream() -> Iterator[bytes]:
    yield json.dumps(BODIES["anthropic"]).encode()


@pytest.mark.parametrize(
    "request_",
    [
        {"content": stream()},
        {"files": {"file": ("a.txt", b"x")}},
        {"files": {"file": ("a.txt", b"x")}, "data": {"a": "b"}},
        {"content": b"{}", "headers": {"Transfer-Encoding": "chunked", "Content-Type": "application/json"}},
        {"data": {"model": "m"}},
        {"content": b"{}", "headers": {"Content-Type": "text/plain"}},
        {"content": b"{}", "headers": {"Content-Type": "application/json", "Content-Encoding": "gzip"}},
        {},
    ],
    ids=lambda request: "+".join(request) or "nothing",
)
def test_d11_streamed_and_multipart_bodies_are_refused(server: CountingServer, request_: dict[str, Any]) -> None:
    """D11, bad input 112: a body has to be there in one piece to be counted, and to be the one that is sent."""
    with httpx2.Client(transport=guard_of(server, "anthropic"), timeout=20) as client:
        error = refusal(lambda: client.post(server.url + "/v1/messages", **request_))
    assert error.provider_error_code in ("body_streamed", "body_not_json")
    assert server.requests == []


def test_d11_the_body_that_is_sent_is_the_one_that_was_counted(server: CountingServer) -> None:
    """D11: a body that somebody changes while it is counted is sent as it was counted."""
    request = httpx2.Request(
        "POST",
        server.url + "/v1/messages",
        content=json.dumps(BODIES["anthropic"]).encode(),
        headers={"Content-Type": "application/json"},
    )

    def changes(event: object) -> None:
        other = httpx2.Request("POST", server.url, content=b"x" * len(request.content))
        request.stream, request._content = other.stream, other.content

    with httpx2.Client(transport=guard_of(server, "anthropic", on_event=changes), timeout=20) as client:
        client.send(request)
    assert server.generated[0].json == BODIES["anthropic"]


# --- counts that fail (bad inputs 108 to 110) ---


def hangs(handler: Any) -> None:
    handler.rfile.read(1)


def cut(handler: Any) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
    handler.wfile.flush()
    handler.close_connection = True


def endless(handler: Any) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n" + b" " * 200_000)
    handler.wfile.flush()
    handler.close_connection = True


FAILURES: list[tuple[str, Any, str]] = [
    *((str(status), (status, {}, b"{}"), f"http_{status}") for status in (201, 400, 401, 404, 429, 500, 529)),
    ("redirected", (307, {"Location": "/v1/messages"}, b""), "redirect_refused"),
    ("moved away", (301, {"Location": "https://evil.example/"}, b""), "redirect_refused"),
    ("html", (200, {"Content-Type": "text/html"}, b"<html>7</html>"), "not_json"),
    ("empty", (200, {}, b""), "not_json"),
    ("twice", (200, {}, b'{"input_tokens":1,"input_tokens":9}'), "not_json"),
    ("error", (200, {}, b'{"error":{"message":"canary-content-0815"}}'), "no_count"),
    ("list", (200, {}, b"[7]"), "no_count"),
    *(
        (f"count {value}", (200, {}, b'{"input_tokens":%b}' % value), "no_count")
        for value in (b"-1", b"true", b"false", b"null", b'"7"', b"7.0", b"7e0", b"{}", b"[]")
    ),
    ("huge digits", (200, {}, b'{"input_tokens":' + b"9" * 2_000 + b"}"), "not_json"),
    ("compressed", (200, {"Content-Encoding": "gzip"}, b"\x1f\x8b\x08"), "encoded_count"),
    ("cut", cut, "connection_failed"),
    ("hangs", hangs, "timeout"),
    ("endless", endless, "count_too_long"),
    ("long", (200, {}, b'{"input_tokens":7}' + b" " * 70_000), "count_too_long"),
]


@pytest.mark.parametrize("colour", ["blocking", "async"])
@pytest.mark.parametrize(("reply", "code"), [row[1:] for row in FAILURES], ids=[row[0] for row in FAILURES])
def test_d12_i28_without_a_count_nothing_is_generated(
    server: CountingServer, reply: Any, code: str, colour: str
) -> None:
    """D12, I-28: however a count fails, the refusal is the same and the server saw no generation."""
    server.count = lambda body: reply
    timeout = httpx2.Timeout(20, read=0.2) if reply is hangs else httpx2.Timeout(20)
    events: list[Any] = []

    async def send() -> None:
        transport = ContextGuardTransport(
            provider="anthropic",
            context=WINDOW,
            transport=httpx2.AsyncHTTPTransport(verify=False),
            qualified=[server.url],
            on_event=events.append,
        )
        async with httpx2.AsyncClient(transport=transport, timeout=timeout, follow_redirects=True) as client:
            await client.post(server.url + "/v1/messages", json=BODIES["anthropic"], headers={"x-api-key": KEY})

    if colour == "async":
        error = refusal(lambda: asyncio.run(send()))
    else:
        error = refusal(lambda: post(server, "anthropic", timeout=timeout, on_event=events.append))
    assert isinstance(error, ProviderContextCountUnavailable)
    assert error.provider_error_code == code
    assert (error.__cause__, error.__context__) == (None, None)
    assert len(server.counted) == 1
    assert server.generated == []
    assert events == []


def test_i28_control_the_server_sees_what_nobody_counted(server: CountingServer) -> None:
    """The same request from a client without the guard is a generation, and no count."""
    with httpx2.Client(verify=False) as client:
        client.post(server.url + "/v1/messages", json=BODIES["anthropic"], headers={"x-api-key": KEY})
    assert (len(server.counted), len(server.generated)) == (0, 1)


def test_d12_a_cancelled_count_ends_the_request(server: CountingServer) -> None:
    """D12: a task that is cancelled while it waits for a count has generated nothing, and ends as cancelled."""
    arrived = threading.Event()

    def waits(handler: Any) -> None:
        arrived.set()
        hangs(handler)

    server.count = lambda body: waits

    async def cancelled() -> None:
        guard = ContextGuardTransport(
            provider="anthropic",
            context=WINDOW,
            transport=httpx2.AsyncHTTPTransport(verify=False),
            qualified=[server.url],
        )
        async with httpx2.AsyncClient(transport=guard, timeout=20) as client:
            task = asyncio.ensure_future(client.post(server.url + "/v1/messages", json=BODIES["anthropic"]))
            await asyncio.to_thread(arrived.wait, 20)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(cancelled())
    assert len(server.counted) == 1
    assert server.generated == []


def test_d12_a_huge_count_is_one(server: CountingServer) -> None:
    """O-26 c: 10**30 is an integer of at least 0, and does not fit."""
    server.count = lambda body: 10**30
    error = refusal(lambda: post(server, "anthropic"))
    assert isinstance(error, ProviderContextWindowExceeded)
    assert error.reservation == 12 * 10**29 + 200
    assert server.generated == []


def test_d12_a_zero_count_is_one(server: CountingServer) -> None:
    """O-26 c: 0 is a count."""
    server.count = lambda body: 0
    assert post(server, "anthropic").status_code == 200


def test_d12_a_server_that_is_not_there(server: CountingServer) -> None:
    """D12: a refused connection is a count that could not be had."""
    server.close()
    assert refusal(lambda: post(server, "anthropic")).provider_error_code == "connection_failed"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_d14_bad_input_109_a_redirect_is_never_followed(server: CountingServer, status: int) -> None:
    """Bad input 109: neither to another host nor back to this one; the key is sent nowhere else."""
    with counting_server() as other:
        server.generate = lambda body: (status, {"Location": f"{other.url}/v1/messages"}, b"")
        error = refusal(lambda: post(server, "anthropic"))
        assert isinstance(error, AgentDecisionProviderUnavailable)
        assert (error.provider_error_code, error.status) == ("redirect_refused", status)
        assert len(server.generated) == 1
        assert other.requests == []


def test_d13_an_error_of_the_generation_is_passed_on(server: CountingServer) -> None:
    """D13: it is the caller's; nothing is tried again here."""
    server.generate = lambda body: (400, {}, b'{"error":{"code":"context_length_exceeded"}}')
    assert post(server, "anthropic").status_code == 400
    assert len(server.requests) == 2


# --- hosts and paths (bad input 111) ---


class Wire(httpx2.BaseTransport):
    """What would have left: every request that reaches the network, answered from here."""

    def __init__(self) -> None:
        self.urls: list[str] = []

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.urls.append(str(request.url))
        if str(request.url).partition("?")[0].endswith(("tokens", "countTokens")):
            return httpx2.Response(200, json={"input_tokens": 1, "totalTokens": 1})
        return httpx2.Response(200, json=GEMINI if "models/" in str(request.url) else ANTHROPIC)


def through(api: str, url: str, **request: Any) -> Wire:
    wire = Wire()
    guard = sync.ContextGuardTransport(provider=provider_of(api), context=WINDOW, transport=wire)
    try:
        with httpx2.Client(transport=guard) as client:
            client.request(request.pop("method", "POST"), url, json=request.pop("json", BODIES[api]), **request)
    except ProviderContextCountUnavailable as error:
        assert wire.urls == [], "a refusal after something had left"
        raise error from None
    return wire


OFFICIAL = {
    "openai": ["https://api.openai.com", "https://eu.api.openai.com", "https://jp.api.openai.com"],
    "anthropic": ["https://api.anthropic.com", "https://API.Anthropic.COM", "https://api.anthropic.com:443"],
    "google": ["https://generativelanguage.googleapis.com"],
}


@pytest.mark.parametrize(("api", "host"), [(api, host) for api, hosts in OFFICIAL.items() for host in hosts])
def test_d14_the_direct_endpoints_are_guarded(api: str, host: str) -> None:
    """D14: as the URL is sent, so spelled in capitals or with the default port it is the same host."""
    wire = through(api, host + PATHS[api])
    assert len(wire.urls) == 2
    assert all(url.startswith(f"https://{httpx2.URL(host).host}/") for url in wire.urls)


HOSTS = [
    "http://api.anthropic.com",
    "https://api.anthropic.com.",
    "https://api.anthropic.com.evil.example",
    "https://api.anthropic.com.evil",
    "https://evil.example/api.anthropic.com",
    "https://evil-api.anthropic.com",
    "https://x.api.anthropic.com",
    "https://anthropic.com",
    "https://api.anthropic.com:8443",
    "https://api.anthropic.com:80",
    "https://user@api.anthropic.com",
    "https://user:pw@api.anthropic.com",
    "https://api.anthropic.com@evil.example",
    "https://api.anthropic.com\\@evil.example",
    "https://api.anthropic.com%2eevil.example",
    "https://api.anthropic.com;evil.example",
    "https://\u0430pi.anthropic.com",
    "https://xn--pi-6kc.anthropic.com",
    "https://160.79.104.10",
    "https://[::1]",
    "https://2684381194",
    "http://127.0.0.1:8080",
    "https://localhost",
    "https://bedrock-runtime.us-east-1.amazonaws.com",
    "https://us-east5-aiplatform.googleapis.com",
    "https://name.services.ai.azure.com/anthropic",
    "https://api.openai.com",
    "wss://api.anthropic.com",
]


@pytest.mark.parametrize("host", HOSTS)
def test_d14_bad_input_111_every_other_host_is_refused(host: str) -> None:
    """Bad input 111: the final URL decides, byte by byte, before anything leaves."""
    with pytest.raises((ProviderContextCountUnavailable, httpx2.UnsupportedProtocol)) as caught:
        through("anthropic", host + "/v1/messages")
    if isinstance(caught.value, ProviderContextCountUnavailable):
        assert caught.value.provider_error_code == "host_refused"
        assert "evil" not in str(caught.value)


@pytest.mark.parametrize(
    "base_url", ["https://api.anthropic.com.evil", "https://api.anthropic.com@evil.example", "//evil"]
)
def test_d14_the_sdks_base_url_changes_nothing(base_url: str) -> None:
    """D14: what counts is the URL after the SDK has put it together, wherever it took its base from."""
    wire = Wire()
    guard = sync.ContextGuardTransport(provider="anthropic", context=WINDOW, transport=wire)
    client = anthropic.Anthropic(
        base_url=base_url,
        api_key=KEY,
        http_client=http_client(transport=guard),
        middleware=[guard.surface],
        max_retries=0,
    )
    with pytest.raises((ProviderContextCountUnavailable, anthropic.APIConnectionError)):
        client.messages.create(**BODIES["anthropic"])
    assert wire.urls == []


def test_d14_control_the_wire_sees_what_leaves() -> None:
    """A wire that saw nothing would make every refusal pass."""
    assert through("anthropic", "https://api.anthropic.com/v1/messages").urls == [
        "https://api.anthropic.com/v1/messages/count_tokens",
        "https://api.anthropic.com/v1/messages",
    ]


@pytest.mark.parametrize(
    ("api", "method", "path"),
    [
        ("openai", "POST", "/v1/chat/completions"),
        ("openai", "POST", "/v1/completions"),
        ("openai", "POST", "/v1/responses/compact"),
        ("openai", "POST", "/v1/conversations"),
        ("openai", "POST", "/v1/batches"),
        ("openai", "POST", "/v1/responses/"),
        ("openai", "POST", "/v1//responses"),
        ("openai", "POST", "/v1/%72esponses"),
        ("openai", "POST", "/v2/responses"),
        ("openai", "POST", "/responses"),
        ("openai", "POST", "/v1/responses?api-version=1"),
        ("openai", "POST", "/v1/files"),
        ("openai", "PUT", "/v1/responses"),
        ("openai", "QUERY", "/v1/responses"),
        ("openai", "DELETE", "/v1/responses/resp_1"),
        ("anthropic", "POST", "/v1/complete"),
        ("anthropic", "POST", "/v1/messages/batches"),
        ("anthropic", "POST", "/v1/messages?beta=false"),
        ("anthropic", "POST", "/v1/threads"),
        ("anthropic", "PATCH", "/v1/messages"),
        ("google", "POST", "/v1beta/models/m:batchGenerateContent"),
        ("google", "POST", "/v1beta/models/m:predict"),
        ("google", "POST", "/v1beta/interactions"),
        ("google", "POST", "/v1beta/cachedContents"),
        ("google", "POST", "/v1beta/tunedModels/m:generateContent"),
        ("google", "POST", "/v1beta/models/a/b:generateContent"),
        ("google", "POST", "/v1beta/models/m%2Fn:generateContent"),
        ("google", "POST", "/v1beta/models/m:generateContent?key=k"),
        ("google", "POST", "/v1beta/models/m:streamGenerateContent?alt=json"),
        ("google", "POST", "/v1beta1/projects/p/locations/l/publishers/google/models/m:generateContent"),
    ],
)
def test_d14_a_path_that_is_not_known_is_refused(api: str, method: str, path: str) -> None:
    """D14: what could generate uncounted is refused, and what is not known could."""
    with pytest.raises(ProviderContextCountUnavailable) as caught:
        through(api, OFFICIAL[api][0] + path, method=method)
    assert caught.value.provider_error_code == "path_refused"


@pytest.mark.parametrize(
    ("api", "method", "path"),
    [
        ("openai", "GET", "/v1/models"),
        ("openai", "POST", "/v1/responses/input_tokens"),
        ("anthropic", "GET", "/v1/models/m"),
        ("anthropic", "HEAD", "/v1/models"),
        ("anthropic", "POST", "/v1/messages/count_tokens"),
        ("anthropic", "POST", "/v1/messages/count_tokens?beta=true"),
        ("google", "GET", "/v1beta/models?pageSize=5"),
        ("google", "POST", "/v1/models/m:countTokens"),
    ],
)
def test_d14_reading_and_counting_pass(api: str, method: str, path: str) -> None:
    """D14: they generate nothing, and are sent as they are, once."""
    url = OFFICIAL[api][0] + path
    assert through(api, url, method=method).urls == [url]


@pytest.mark.parametrize(
    "request_",
    [
        {"headers": {"Host": "evil.example"}},
        {"headers": {"Upgrade": "websocket"}},
        {"headers": {"X-HTTP-Method-Override": "POST"}},
        {"extensions": {"target": b"/v1/complete"}},
        {"extensions": {"sni_hostname": "evil.example"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_d14_what_would_change_the_way_behind_the_url_is_refused(request_: dict[str, Any], method: str) -> None:
    """D14: another host by header, another path by extension, another protocol on the same connection."""
    with pytest.raises(ProviderContextCountUnavailable) as caught:
        through("anthropic", "https://api.anthropic.com/v1/messages", method=method, **request_)
    assert caught.value.provider_error_code == "header_refused"


@pytest.mark.parametrize(
    "qualified",
    [
        "http://127.0.0.1:1",
        [1],
        ["http://example.com"],
        ["http://10.0.0.1:8080"],
        ["ftp://127.0.0.1"],
        ["127.0.0.1:8080"],
        [""],
        ["https://user@example.com"],
        ["https://example.com?x=1"],
        ["https://example.com#x"],
        ["http://127.0.0.1.evil.example"],
        ["http://[::1"],
    ],
    ids=str,
)
def test_d14_a_server_is_qualified_by_a_plain_url(qualified: Any) -> None:
    """D14: https anywhere, http on this machine only, since the key goes with it."""
    with pytest.raises(CallerError):
        sync.ContextGuardTransport(provider="anthropic", context=WINDOW, transport=Wire(), qualified=qualified)


def test_d14_a_qualified_server_is_that_one_alone(server: CountingServer) -> None:
    """D14: its port, its path in front, and no other server beside it."""
    with counting_server() as other:
        error = refusal(lambda: post(server, "anthropic", qualified=[other.url]))
        assert error.provider_error_code == "host_refused"
        error = refusal(lambda: post(server, "anthropic", qualified=[server.url + "/proxy"]))
        assert error.provider_error_code == "path_refused"
        assert server.requests == other.requests == []
    post(server, "anthropic", qualified=[server.url + "/proxy/"], target="/proxy/v1/messages")
    assert [seen.target for seen in server.requests] == ["/proxy/v1/messages/count_tokens", "/proxy/v1/messages"]


# --- options, colours, logs ---


@pytest.mark.parametrize(
    "options",
    [
        {"provider": "azure"},
        {"provider": None},
        {"context": 1_000},
        {"context": None},
        {"on_event": "print"},
        {"qualified": None},
        {"transport": object()},
        {"transport": httpx2.Client},
    ],
    ids=named,
)
def test_d14_options_are_checked_at_construction(options: dict[str, Any]) -> None:
    """D14: each is refused where it is given, in both colours."""
    for kind in (ContextGuardTransport, sync.ContextGuardTransport):
        with pytest.raises(InvalidOption):
            kind(**{"provider": "anthropic", "context": WINDOW, **options})


def test_b11_a_transport_of_the_other_colour_is_named() -> None:
    """B11: one that would block the loop, or that nobody would await."""
    with pytest.raises(BlockingMismatch):
        ContextGuardTransport(provider="openai", context=WINDOW, transport=Wire())  # type: ignore[arg-type]
    with pytest.raises(BlockingMismatch):
        sync.ContextGuardTransport(
            provider="openai",
            context=WINDOW,
            transport=httpx2.AsyncHTTPTransport(verify=False),  # type: ignore[arg-type]
        )


def test_d14_without_a_transport_it_has_its_own_and_closes_it() -> None:
    """D14: the default reaches the network; closing the client closes it."""
    client = http_client(transport=sync.ContextGuardTransport(provider="google", context=WINDOW))
    with client, pytest.raises(ProviderContextCountUnavailable):
        client.post("https://evil.example/v1beta/models/m:generateContent", json=BODIES["google"])
    assert client.is_closed

    async def both() -> None:
        async with httpx2.AsyncClient(transport=ContextGuardTransport(provider="google", context=WINDOW)) as client:
            with pytest.raises(ProviderContextCountUnavailable):
                await client.post("https://evil.example/v1beta/models/m:generateContent", json=BODIES["google"])

    asyncio.run(both())


def test_i37_nothing_of_a_request_is_logged_by_a_refusal(
    server: CountingServer, caplog: pytest.LogCaptureFixture
) -> None:
    """I-37: at DEBUG, in counts that fail, in refusals and in requests that pass, no logger of ours says a word."""
    with caplog.at_level(logging.DEBUG):
        post(server, "anthropic")
        refusal(lambda: post(server, "anthropic", {**BODIES["anthropic"], "thread": {"id": SECRET}}))
        server.count = lambda body: (500, {}, SECRET.encode())
        refusal(lambda: post(server, "anthropic"))
    assert not [each for each in caplog.records if each.name.startswith("minutebook")]
    assert SECRET not in caplog.text
    assert KEY not in caplog.text


def test_i37_every_refusal_says_what_to_do() -> None:
    """The enumeration is closed, and each member has its words."""
    for code in Refusal:
        assert str(refused(code, "field")).count(":") >= 2
        assert refused(code, "a b").field == ""
