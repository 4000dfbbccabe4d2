"""The fakes' server: faults, scripts, counts, context windows, exact spelling, and what is recorded."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import anthropic
import httpx2
import msgspec
import openai
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from tests.http_clients import http_client

from minutebook.errors import InvalidOption
from minutebook.testing.fakes import (
    Answer,
    Disconnect,
    Failure,
    FunctionCall,
    ProviderFake,
    Reply,
    Silence,
    Stall,
    StreamFailure,
    html_page,
    malformed_json,
    redirect,
)

KEY = "sk-canary-4711"
ASK: list[Any] = [{"role": "user", "content": "x"}]
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "openai-responses": ("/responses", {"model": "m", "input": "x"}),
    "openai-chat": ("/chat/completions", {"model": "m", "messages": ASK}),
    "anthropic": ("/v1/messages", {"model": "m", "messages": ASK, "max_tokens": 50}),
    "gemini": ("/v1/models/m:generateContent", {"contents": [{"role": "user", "parts": [{"text": "x"}]}]}),
}
COUNTS: dict[str, tuple[str, dict[str, Any]]] = {
    "openai-responses": ("/responses/input_tokens", BODIES["openai-responses"][1]),
    "openai-chat": ("/chat/completions/input_tokens", BODIES["openai-chat"][1]),
    "anthropic": ("/v1/messages/count_tokens", {"model": "m", "messages": ASK}),
    "gemini": ("/v1/models/m:countTokens", BODIES["gemini"][1]),
}
HEADERS = {
    "authorization": f"Bearer {KEY}",
    "x-goog-api-key": KEY,
    "anthropic-version": "2026-10-21",
    "content-type": "application/json",
}
every = pytest.mark.parametrize("provider", list(BODIES))


def post(fake: ProviderFake, path: str, body: Any, **options: Any) -> httpx2.Response:
    options.setdefault("timeout", 20)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx2.post(f"{fake.base_url}{path}", content=content, headers=HEADERS, verify=False, **options)


def ask(fake: ProviderFake, provider: str, **options: Any) -> httpx2.Response:
    return post(fake, *BODIES[provider], **options)


def openai_client(fake: ProviderFake, **options: Any) -> openai.OpenAI:
    http = http_client(verify=False, follow_redirects=True, timeout=options.pop("timeout", 20))
    return openai.OpenAI(base_url=fake.base_url, api_key=KEY, max_retries=0, http_client=http, **options)


def anthropic_client(fake: ProviderFake) -> anthropic.Anthropic:
    http = http_client(verify=False, timeout=20)
    return anthropic.Anthropic(base_url=fake.base_url, api_key=KEY, max_retries=0, http_client=http)


OPENAI_FAILURES = [
    (400, None, openai.BadRequestError, "invalid_request_error", None),
    (401, None, openai.AuthenticationError, "invalid_request_error", "invalid_api_key"),
    (404, None, openai.NotFoundError, "invalid_request_error", "model_not_found"),
    (409, None, openai.ConflictError, "invalid_request_error", None),
    (429, None, openai.RateLimitError, "requests", "rate_limit_exceeded"),
    (429, "insufficient_quota", openai.RateLimitError, "requests", "insufficient_quota"),
    (500, None, openai.InternalServerError, "server_error", "server_error"),
    (503, None, openai.InternalServerError, "server_error", "overloaded"),
]


@pytest.mark.parametrize(("status", "code", "kind", "type_", "told"), OPENAI_FAILURES)
def test_d09_failures_are_openais_own(status: int, code: str | None, kind: Any, type_: str, told: str | None) -> None:
    """D9: the official client raises the class, type and code that the service would have given."""
    with ProviderFake("openai-chat", [Failure(status=status, code=code, headers={"retry-after": "7"})]) as fake:
        with pytest.raises(openai.APIStatusError) as caught:
            openai_client(fake).chat.completions.create(model="m", messages=ASK)
        assert type(caught.value) is kind
        assert (caught.value.type, caught.value.code) == (type_, told)
        assert caught.value.response.headers["retry-after"] == "7"
        assert fake.refused == (), "a scripted failure is no broken rule"


@pytest.mark.parametrize(
    ("status", "type_"),
    [
        (400, "invalid_request_error"),
        (402, "billing_error"),
        (403, "permission_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (504, "timeout_error"),
        (529, "overloaded_error"),
    ],
)
def test_d09_failures_are_anthropics_own(status: int, type_: str) -> None:
    """D9: likewise; the client names the type."""
    with ProviderFake("anthropic", [Failure(status=status)]) as fake:
        with pytest.raises(anthropic.APIStatusError) as caught:
            anthropic_client(fake).messages.create(model="m", messages=ASK, max_tokens=9)
        assert (caught.value.status_code, caught.value.type) == (status, type_)


@pytest.mark.parametrize(("status", "name"), [(429, "RESOURCE_EXHAUSTED"), (500, "INTERNAL"), (503, "UNAVAILABLE")])
def test_d09_failures_are_geminis_own(status: int, name: str) -> None:
    """D9: likewise; the body has the status as a number and as a name."""
    with ProviderFake("gemini", [Failure(status=status)]) as fake:
        response = ask(fake, "gemini")
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["status"]) == (status, status, name)


@every
def test_d09_whatever_else_can_happen(provider: str) -> None:
    """D9: pages of a proxy, redirects, bodies that are no JSON; then the same request is answered."""
    moved = redirect("/elsewhere")
    with ProviderFake(provider, [html_page(), html_page(200), moved, malformed_json(), Answer(text="done")]) as fake:
        pages = [ask(fake, provider) for _ in range(2)]
        assert [(page.status_code, page.headers["content-type"]) for page in pages] == [
            (502, "text/html"),
            (200, "text/html"),
        ]
        followed = ask(fake, provider, follow_redirects=True)
        assert (followed.status_code, [r.status_code for r in followed.history]) == (404, [307])
        malformed = ask(fake, provider)
        assert malformed.status_code == 200
        with pytest.raises(json.JSONDecodeError):
            malformed.json()
        assert ask(fake, provider).status_code == 200
        assert [request.path for request in fake.refused] == ["/elsewhere"]


@every
def test_d09_cut_connections_break_bodies_and_streams(provider: str) -> None:
    """D9: with nothing, a part or all but a byte of the answer, the client sees a broken connection."""
    path, body = BODIES[provider]
    streams = (path.replace("generate", "streamGenerate") + "?alt=sse", body)
    if provider != "gemini":
        streams = (path, {**body, "stream": True})
    answer = Answer(text="a long text that is cut", calls=(FunctionCall("look", {}),))
    cuts = [Disconnect(answer, 0), Disconnect(answer, 30), Disconnect(answer, 10**9)]
    with ProviderFake(provider, [cut for cut in cuts for _ in range(2)]) as fake:
        for _ in cuts:
            for asked in (BODIES[provider], streams):
                with pytest.raises(httpx2.TransportError):
                    post(fake, *asked)
        assert fake.refused == ()


@every
def test_d09_a_request_that_its_client_cut_off_is_none(provider: str) -> None:
    """D9: a test that cancels what it sends still finds that nothing was refused, and no answer is used up by it."""
    path, body = BODIES[provider]
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n".encode()
    with ProviderFake(provider, [Answer(text="done")]) as fake:
        place = urlsplit(fake.base_url)
        for sent in (head, head + content[:-1]):
            with socket.create_connection((place.hostname, place.port), timeout=10) as client:
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
                assert client.recv(1) == b""
        assert fake.requests == fake.refused == ()
        assert ask(fake, provider).status_code == 200


def test_d09_cut_stream_reaches_the_official_clients() -> None:
    """D9: what had arrived is told, then the stream breaks."""
    answer = Answer(text="a long text that is cut in the middle of it all")
    with ProviderFake("openai-chat", [Disconnect(answer, 1_500)]) as fake:
        told: list[str] = []
        stream = openai_client(fake).chat.completions.create(model="m", messages=ASK, stream=True)
        with pytest.raises((openai.APIError, httpx2.TransportError)):
            told.extend(chunk.choices[0].delta.content or "" for chunk in stream)
        assert answer.text.startswith("".join(told))
        assert "".join(told)


def test_d09_errors_inside_a_stream() -> None:
    """D9: a stream whose status was 200 tells an error; without a stream it is a failure."""
    answer = Answer(text="some text")
    with ProviderFake("anthropic", [StreamFailure(answer=answer, status=529, after_events=3)] * 2) as fake:
        with pytest.raises(anthropic.APIStatusError) as caught:
            list(anthropic_client(fake).messages.create(model="m", messages=ASK, max_tokens=9, stream=True))
        assert caught.value.body["error"]["type"] == "overloaded_error"  # type: ignore[index,call-overload]
        with pytest.raises(anthropic.APIStatusError) as caught:
            anthropic_client(fake).messages.create(model="m", messages=ASK, max_tokens=9)
        assert caught.value.status_code == 529
    with ProviderFake("openai-chat", [StreamFailure(answer=answer, status=500)]) as fake:
        stream = openai_client(fake).chat.completions.create(model="m", messages=ASK, stream=True)
        with pytest.raises(openai.APIError) as failed:
            list(stream)
        assert failed.value.code == "server_error"
    with ProviderFake("openai-responses", [StreamFailure(answer=answer, status=500)]) as fake:
        # The official client passes this API's error on as an event.
        *_, last = openai_client(fake).responses.create(model="m", input="x", stream=True)
        assert (last.type, getattr(last, "code", None)) == ("error", "server_error")
    with ProviderFake("gemini", [StreamFailure(answer=answer, status=503)]) as fake:
        streamed = post(fake, "/v1/models/m:streamGenerateContent?alt=sse", BODIES["gemini"][1])
        assert streamed.status_code == 200
        assert '"status":"UNAVAILABLE"' in streamed.text.splitlines()[-2]


@every
def test_d09_silence_lasts_until_the_client_gives_up_or_the_fake_is_closed(provider: str) -> None:
    """D9: no response comes; closing the fake ends the connection of whoever still waits."""
    fake = ProviderFake(provider, [Silence(), Silence()])
    with pytest.raises(httpx2.ReadTimeout):
        ask(fake, provider, timeout=httpx2.Timeout(5, read=0.05))
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(ask, fake, provider)
        assert fake.wait_for(2)
        began = time.monotonic()
        fake.close()
        assert isinstance(waiting.exception(10), httpx2.RemoteProtocolError)
        assert time.monotonic() - began < 5
    fake.close()
    with pytest.raises(httpx2.ConnectError):
        ask(fake, provider)


def test_o35_a_stream_that_stops_is_left_open_until_somebody_ends_it() -> None:
    """O-35: some of the answer is there and no more comes; the client gives up, or the fake is closed."""
    stall = Stall(Answer(text="a long text that stops in the middle of it all"), 1_500)
    with ProviderFake("openai-chat", [stall, stall]) as fake, ThreadPoolExecutor() as pool:
        told: list[str] = []
        client = openai_client(fake, timeout=httpx2.Timeout(5, read=0.1))
        stream = client.chat.completions.create(model="m", messages=ASK, stream=True)
        with pytest.raises((openai.APIError, httpx2.ReadTimeout)):
            told.extend(chunk.choices[0].delta.content or "" for chunk in stream)
        assert stall.answer.text.startswith("".join(told))
        assert "".join(told)
        waiting = pool.submit(ask, fake, "openai-chat")
        assert fake.wait_for(2)
        fake.close()
        assert isinstance(waiting.exception(10), httpx2.TransportError)


def _handlers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "process_request_thread" in thread.name]


def _connected(fake: ProviderFake, *header: str) -> socket.socket:
    """Return a connection on which a request has been sent, and which is reset when it is closed."""
    parts = urlsplit(fake.base_url)
    connection = socket.create_connection((parts.hostname, parts.port), 5)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    body = json.dumps(BODIES["openai-chat"][1])
    lines = [f"POST {parts.path}/chat/completions HTTP/1.1", "host: here", f"authorization: Bearer {KEY}", *header]
    connection.sendall("\r\n".join([*lines, f"content-length: {len(body)}", "", body]).encode())
    return connection


@pytest.mark.parametrize("size", [10, 300_000])
@pytest.mark.parametrize("line", [Answer, Disconnect, Stall], ids=["answer", "cut", "stall"])
def test_o35_a_client_that_drops_its_connection_leaves_no_traceback(
    line: Any, size: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """The answer finds nobody, or the next request never comes: both are what a cancelled call looks like."""
    gone = threading.Event()
    answer = Answer(text="x" * size)

    def script(_: Any) -> Any:
        assert gone.wait(10)
        return answer if line is Answer else line(answer, size)

    before = _handlers()
    with ProviderFake("openai-chat", script) as fake:
        connection = _connected(fake)
        assert fake.wait_for(1)
        connection.close()
        gone.set()
        kept = _connected(fake)
        assert kept.recv(20).startswith(b"HTTP/1.1 200")
        kept.close()
        handlers = [thread for thread in _handlers() if thread not in before]
    for thread in handlers:
        thread.join(10)
        assert not thread.is_alive()
    assert capfd.readouterr().err == ""


def test_o35_any_other_failure_of_a_connection_is_still_shown(capfd: pytest.CaptureFixture[str]) -> None:
    """Must be found: a length that is no number fails in the connection's thread, with its traceback."""
    before = _handlers()
    with ProviderFake("openai-chat", [Answer(text="x")]) as fake:
        connection = _connected(fake, "content-length: many")
        assert connection.recv(1) == b""
        connection.close()
        handlers = [thread for thread in _handlers() if thread not in before]
    for thread in handlers:
        thread.join(10)
    assert "ValueError" in capfd.readouterr().err


def test_a_closed_fake_answers_nobody_who_kept_a_connection() -> None:
    """A connection that is kept alive ends with the fake: no answer comes from a thread left over."""
    with httpx2.Client(verify=False, headers=HEADERS, timeout=5) as client:
        with ProviderFake("gemini", [Answer(text="one"), Answer(text="two")]) as fake:
            url = f"{fake.base_url}{BODIES['gemini'][0]}"
            assert client.post(url, json=BODIES["gemini"][1]).status_code == 200
        with pytest.raises(httpx2.TransportError):
            client.post(url, json=BODIES["gemini"][1])


@every
def test_e_counts_equal_the_bill_and_may_be_scripted(provider: str) -> None:
    """E, O-25: an honest count is what generation bills; a scripted one is whatever a broken service says."""
    nothing = Reply(body=b'{"input_tokens": -1, "totalTokens": -1}')
    counts = [None, Failure(status=429), nothing, None]
    with ProviderFake(provider, [Answer(text="done")], counts=counts) as fake:
        honest, failed, odd, again = (post(fake, *COUNTS[provider]) for _ in counts)
        used = honest.json().get("input_tokens", honest.json().get("totalTokens"))
        usage = ask(fake, provider).json()
        usage = usage.get("usage") or usage["usageMetadata"]
        names = ("input_tokens", "prompt_tokens", "promptTokenCount")
        assert used == next(usage[name] for name in names if name in usage) > 0
        assert (failed.status_code, odd.status_code, again.content) == (429, 200, honest.content)
        assert -1 in odd.json().values()
        assert post(fake, *COUNTS[provider]).content == honest.content


OVERFLOWS = {
    "openai-responses": ("context window", "context_length_exceeded"),
    "openai-chat": ("maximum context length is {n} tokens", "context_length_exceeded"),
    "anthropic": ("prompt is too long: {m} tokens > {n} maximum", None),
    "gemini": ("The input token count ({m}) exceeds the maximum number of tokens allowed ({n})", None),
}


@every
def test_e_what_does_not_fit_the_window_is_refused_by_generation_alone(provider: str) -> None:
    """E, O-26: one token too many is the provider's overflow error; the count endpoint still counts."""
    with ProviderFake(provider) as fake:
        counted = post(fake, *COUNTS[provider]).json()
        used = counted.get("input_tokens", counted.get("totalTokens"))
    with ProviderFake(provider, [Answer(text="done")], window_tokens=used - 1) as fake:
        assert post(fake, *COUNTS[provider]).json() == counted
        refused = ask(fake, provider)
        told, code = OVERFLOWS[provider]
        assert refused.status_code == 400
        assert told.format(n=used - 1, m=used) in refused.json()["error"]["message"]
        assert refused.json()["error"]["code"] == code if code else True
        assert fake.refused != ()
    room = 50 if provider == "anthropic" else 0
    with ProviderFake(provider, [Answer(text="done")], window_tokens=used + room) as fake:
        assert ask(fake, provider).status_code == 200


def test_e_anthropic_also_makes_room_for_the_output() -> None:
    """O-26: input and `max_tokens` together have to fit."""
    path, body = BODIES["anthropic"]
    with ProviderFake("anthropic", [Answer(text="done")], window_tokens=60) as fake:
        refused = post(fake, path, body)
        assert "input length and `max_tokens` exceed context limit" in refused.json()["error"]["message"]
        assert post(fake, path, {**body, "max_tokens": 5}).status_code == 200


@every
@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"x"', b"\xff{}", b'{"model":NaN}', b'{"a":1,"a":2}', b'{"a":"\\ud83d"}']
)
def test_i26_o28_a_body_that_is_no_strict_json_is_refused(provider: str, body: bytes) -> None:
    """O-28, O-30: halves of characters, NaN, a key twice: 400 before any other rule."""
    with ProviderFake(provider, [Answer(text="x")]) as fake:
        response = post(fake, BODIES[provider][0], body)
        assert response.status_code == 400
        assert "JSON" in response.json()["error"]["message"]
        assert len(fake.refused) == 1


@every
def test_a_body_of_unknown_length_is_refused(provider: str) -> None:
    """No client of these APIs sends one; it is not read, and the connection is not used again."""
    with ProviderFake(provider) as fake:
        url = f"{fake.base_url}{BODIES[provider][0]}"
        response = httpx2.post(url, content=iter([b"{", b"}"]), headers=HEADERS, verify=False)
        assert response.status_code == 400
        assert fake.requests[0].body == b""


@every
def test_other_paths_and_methods_are_refused(provider: str) -> None:
    """What is stateful, forbidden or unknown has no path here."""
    with ProviderFake(provider, [Answer(text="x")]) as fake:
        for path in ("/responses/compact", "/v1/models", "/v1/messages/batches", "/v1/models/m:embedContent", "/"):
            assert post(fake, path, {}).status_code == 404
        response = httpx2.get(f"{fake.base_url}{BODIES[provider][0]}", headers=HEADERS, verify=False)
        assert response.status_code == 405
        without = httpx2.post(f"{fake.base_url}{BODIES[provider][0]}", json=BODIES[provider][1], verify=False)
        assert without.status_code in (401, 403)
        assert len(fake.refused) == len(fake.requests) == 7


@every
def test_i37_requests_are_kept_as_they_came_and_keys_are_not(provider: str) -> None:
    """I-26, I-37: the bytes, the path and the names of headers; no value of a header."""
    path, body = BODIES[provider]
    raw = b" " + json.dumps(body, indent=3, ensure_ascii=True).encode() + b"\n"
    with ProviderFake(provider, [Answer(text="x")]) as fake:
        assert post(fake, path, raw).status_code == 200
        (received,) = fake.requests
        assert (received.method, received.body, received.json) == ("POST", raw, body)
        assert received.path.endswith(path)
        assert {"authorization", "content-type"} <= {name.lower() for name in received.header_names}
        assert KEY not in repr(fake.__dict__)
        assert KEY.encode() not in msgspec.msgpack.encode(received)


def test_scripts_answer_in_order_by_request_and_not_beyond_their_end() -> None:
    """A list is used up, a function sees what came, and one that raises fails the test that uses it."""
    with ProviderFake("openai-chat", [Answer(text="only")]) as fake:
        assert ask(fake, "openai-chat").status_code == 200
        assert "script has ended" in ask(fake, "openai-chat").text
        assert [r.problem.status for r in fake.refused if r.problem] == [500]
    with ProviderFake("openai-chat", lambda received: Answer(text=f"{len(received.body)}")) as fake:
        (choice,) = ask(fake, "openai-chat").json()["choices"]
        assert choice["message"]["content"] == f"{len(fake.requests[0].body)}"

    def fails(_: Any) -> Answer:
        raise RuntimeError("the test's own")

    with pytest.raises(RuntimeError, match="own"), ProviderFake("openai-chat", fails) as fake:
        assert ask(fake, "openai-chat").status_code == 500


def test_answers_that_say_nothing_and_options_that_are_none_are_refused() -> None:
    """What a test could not have meant is told where it is written."""
    with pytest.raises(InvalidOption):
        Answer()
    assert Answer(ending="length").text == ""
    with pytest.raises(InvalidOption, match="openai-responses"):
        ProviderFake("openai")
    with pytest.raises(InvalidOption, match="window_tokens"):
        ProviderFake("openai-chat", window_tokens=0)


@every
def test_ids_are_fresh_in_every_answer_and_the_same_in_every_run(provider: str) -> None:
    """The same request twice has other ids; the same run again has the same ones, so failures replay."""
    runs = []
    for _ in range(2):
        answer = Answer(thinking="x", calls=(FunctionCall("look", {}), FunctionCall("look", {})))
        with ProviderFake(provider, [answer, answer]) as fake:
            runs.append([ask(fake, provider).text for _ in range(2)])
    assert runs[0] == runs[1]
    ids = [set(_ids(json.loads(text))) for text in runs[0]]
    assert len(ids[0]) >= 3
    assert ids[0] & ids[1] == set()


def _ids(value: Any) -> list[str]:
    if isinstance(value, list):
        return [id_ for item in value for id_ in _ids(item)]
    if not isinstance(value, dict):
        return []
    own = [item for key, item in value.items() if key in ("id", "call_id", "responseId") and item]
    return own + [id_ for item in value.values() for id_ in _ids(item)]


FOLLOWS = {
    "openai-responses": lambda body: {
        "model": "m",
        "input": [{"role": "user", "content": "x"}, *body["output"], {"role": "user", "content": "on"}],
    },
    "anthropic": lambda body: {
        "model": "m",
        "max_tokens": 50,
        "messages": [*ASK, {"role": "assistant", "content": body["content"]}, {"role": "user", "content": "on"}],
    },
    "gemini": lambda body: {
        "contents": [BODIES["gemini"][1]["contents"][0], body["candidates"][0]["content"]],
    },
}


@pytest.mark.parametrize("provider", list(FOLLOWS))
def test_o11_exact_fakes_want_sealed_blocks_back_byte_for_byte(provider: str) -> None:
    """O-11: sent in an odd spelling; sliced from the raw body they pass, re-encoded they do not."""
    answer = Answer(thinking="Prüfung 🙂", text="Ergebnis")
    with ProviderFake(provider, [answer] * 4, exact=True) as fake:
        raw = ask(fake, provider)
        follow = FOLLOWS[provider](raw.json())
        refused = post(fake, BODIES[provider][0], follow)
        assert refused.status_code == 400
        assert "another spelling" in refused.text
        marker = "KEEP" * 4
        blocks = _sealed(raw.json())
        encoded = json.dumps(follow)
        for number, block in enumerate(blocks):
            encoded = encoded.replace(json.dumps(block), f"{marker}{number}")
        for number, block in enumerate(blocks):
            encoded = encoded.replace(f"{marker}{number}", _slice(raw.content, block))
        assert json.loads(encoded) == follow
        assert post(fake, BODIES[provider][0], encoded.encode()).status_code == 200
    with ProviderFake(provider, [answer] * 2) as fake:
        assert post(fake, BODIES[provider][0], FOLLOWS[provider](ask(fake, provider).json())).status_code == 200


def _sealed(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, list):
        return [block for item in value for block in _sealed(item)]
    if not isinstance(value, dict):
        return []
    own = [value] if {"signature", "encrypted_content", "thoughtSignature"} & set(value) else []
    return own + [block for item in value.values() for block in _sealed(item)]


def _slice(body: bytes, block: dict[str, Any]) -> str:
    """The text in which a body writes a block."""
    text, decoder = body.decode(), json.JSONDecoder()
    starts = [at for at, letter in enumerate(text) if letter == "{"]
    found = [(at, *decoder.raw_decode(text, at)) for at in starts]
    return next(text[at:end] for at, value, end in found if value == block)


MODELS = {
    "openai-chat": (ChatCompletion, ChatCompletionChunk),
    "openai-responses": (Response, ResponseStreamEvent),
    "anthropic": (Message, RawMessageStreamEvent),
}
SAYS = [
    Answer(thinking="So.", text="I look.", calls=(FunctionCall("look", {"a": 1}), FunctionCall("look", {}))),
    Answer(thinking="", text="done"),
    Answer(text="cut", ending="length"),
    Answer(ending="filter"),
    Answer(refusal="No."),
]


@pytest.mark.parametrize("provider", list(MODELS))
@pytest.mark.parametrize("answer", SAYS, ids=["calls", "text", "length", "filter", "refusal"])
def test_bodies_and_events_are_of_the_sdks_own_types(provider: str, answer: Answer) -> None:
    """The clients build what comes without looking; validated, every body and event has all fields of its type."""
    whole, part = (TypeAdapter(model) for model in MODELS[provider])
    path, body = BODIES[provider]
    with ProviderFake(provider, [answer, answer]) as fake:
        whole.validate_json(ask(fake, provider).content)
        lines = post(fake, path, {**body, "stream": True}).text.splitlines()
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert len(events) > 1
        for event in events:
            if event.get("type") != "ping":  # the client passes pings over
                part.validate_python(event)


def test_blocking_and_asynchronous_clients_share_a_fake() -> None:
    """Many requests at a time, from threads and from one event loop: each is answered, each is recorded."""
    with ProviderFake("openai-responses", lambda _: Answer(text="x")) as fake:

        async def many() -> list[Any]:
            async with openai.AsyncOpenAI(base_url=fake.base_url, api_key=KEY, max_retries=0) as client:
                return await asyncio.gather(*(client.responses.create(model="m", input=f"{n}") for n in range(20)))

        with ThreadPoolExecutor(4) as pool:
            blocking = openai_client(fake)
            threads = [pool.submit(blocking.responses.create, model="m", input=f"t{n}") for n in range(20)]
            loop = asyncio.run(many())
        ids = {response.id for response in [*loop, *(thread.result() for thread in threads)]}
        assert len(ids) == len(fake.requests) == 40
        assert fake.refused == ()


def test_a_scripts_function_may_wait_for_the_test() -> None:
    """While one answer is held back others are given, and what has arrived can be seen."""
    gate = threading.Event()

    def answer(received: Any) -> Answer:
        if b"first" in received.body:
            assert gate.wait(10)
        return Answer(text="x")

    with ProviderFake("openai-responses", answer) as fake, ThreadPoolExecutor() as pool:
        first = pool.submit(post, fake, "/responses", {"model": "m", "input": "first"})
        assert fake.wait_for(1)
        assert not first.done()
        assert post(fake, "/responses", {"model": "m", "input": "second"}).status_code == 200
        gate.set()
        assert first.result(10).status_code == 200
        assert not fake.wait_for(3, timeout_s=0)


def test_what_a_script_raised_is_told_of_by_the_error_that_its_client_raised() -> None:
    """The client knows of a status 500 alone, and its error is the one that leaves the block."""

    def script(_: Any) -> Any:
        raise KeyError("a slip of the script")

    with pytest.raises(openai.APIStatusError) as caught, ProviderFake("openai-chat", script) as fake:
        openai_client(fake).chat.completions.create(model="m", messages=ASK)
    (note,) = caught.value.__notes__
    assert "in the fake itself" in note
    assert "KeyError: 'a slip of the script'" in note
