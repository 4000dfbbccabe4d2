"""What Gemini receives: whole bodies as they arrive, path, key and count, and the current turn's signatures."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from tests.providers.dialects import GOOGLE, finishes, provider_of, serving
from tests.providers.loopback import KEY, OUTPUT, REQUEST, TASK, Server, acting, asking, seen

from minutebook import sync
from minutebook.decisions import GeminiDecisionProvider, HistoryOptions
from minutebook.errors import AgentDecisionProviderUnavailable, InvalidOption
from minutebook.providers.counting import GEMINI as COUNTING
from minutebook.providers.gemini import GEMINI
from minutebook.providers.gemini_http import BASE_URL, Httpx2Post
from minutebook.testing import drive


@pytest.fixture
def server() -> Iterator[Server]:
    server = serving(GOOGLE)
    yield server
    server.close()


def test_d01_a_native_request_is_exactly_this(server: Server) -> None:
    """D1, D7: tools with their own schema, the output's schema whole, the window as it is; the model in the path."""
    server.replies = [GOOGLE.calls("a", ids="x"), finishes(GOOGLE, "native")]
    extra: dict[str, Any] = {
        "generationConfig": {"temperature": 0, "thinkingConfig": {"thinkingLevel": "low"}},
        "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
    }
    provider = provider_of(GOOGLE, server, max_output_tokens=500, extra_body=extra)
    (call,) = drive(provider.decide(REQUEST)).calls
    drive(provider.decide(asking(seen(call, "no", failed=True))))
    assert server.requests[-1][0] == "/v1/models/m:generateContent"
    called = {"functionCall": {"id": "x_0", "name": "look", "args": {"path": "a"}}, "thoughtSignature": "c2ln+/x=="}
    answered = {"functionResponse": {"id": "x_0", "name": "look", "response": {"error": '{"error":"no"}'}}}
    assert server.body() == {
        "contents": [
            {"role": "user", "parts": [{"text": TASK}]},
            {"role": "model", "parts": [called]},
            {"role": "user", "parts": [answered]},
        ],
        "systemInstruction": {"parts": [{"text": "You decide."}]},
        "tools": [
            {
                "functionDeclarations": [
                    {
                        "name": "look",
                        "description": "Read a file.",
                        "parametersJsonSchema": REQUEST.capabilities[0].parameters,
                    }
                ]
            }
        ],
        "generationConfig": {
            "temperature": 0,
            "thinkingConfig": {"thinkingLevel": "low"},
            "responseMimeType": "application/json",
            "responseJsonSchema": OUTPUT,
            "maxOutputTokens": 500,
        },
        "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
    }
    assert server.headers[-1]["x-goog-api-key"] == KEY
    assert server.headers[-1]["Content-Type"] == "application/json"
    assert server.refused == []


def test_d01_a_structured_request_offers_no_tools(server: Server) -> None:
    """D1: the actions are alternatives of the one schema; a result is a user's content."""
    server.replies = [GOOGLE.says(acting("look", path="a")), finishes(GOOGLE, "structured")]
    provider = provider_of(GOOGLE, server, "structured")
    (call,) = drive(provider.decide(REQUEST)).calls
    drive(provider.decide(asking(seen(call))))
    body = server.body()
    assert list(body) == ["contents", "systemInstruction", "generationConfig"]
    schema = body["generationConfig"]["responseJsonSchema"]
    assert [each["properties"]["action"]["const"] for each in schema["properties"]["decision"]["anyOf"]] == [
        "look",
        "finish",
    ]
    assert body["contents"][-1] == {"role": "user", "parts": [{"text": 'Result of look: "content"'}]}
    assert server.refused == []


def test_d11_a_count_is_of_the_whole_request(server: Server) -> None:
    """D11, D12: instructions, tools and schemas too, inside one field with the model's name; the same bytes."""
    server.replies = [GOOGLE.count(7), finishes(GOOGLE, "native")]
    extra: dict[str, Any] = {"safetySettings": [], "labels": {"a": "b"}}
    provider = provider_of(GOOGLE, server, count=True, max_output_tokens=9, extra_body=extra)
    decision = drive(provider.decide(REQUEST))
    assert (decision.counted_tokens, decision.billed_tokens) == (7, 11)
    generated = server.body(1)
    assert server.requests[0][0] == "/v1/models/m:countTokens"
    assert server.body(0) == {
        "generateContentRequest": {
            "model": "models/m",
            **{k: v for k, v in generated.items() if k not in ("labels", "safetySettings")},
        }
    }
    assert GOOGLE.window(server.requests[1][1]) in server.requests[0][1]
    assert server.refused == []


def test_d5_a_models_name_as_the_api_lists_it_is_the_same_model(server: Server) -> None:
    """`models/m` is `m`: in both paths, in what is counted, and in the conversation's identity."""
    server.replies = [GOOGLE.count(7), finishes(GOOGLE, "native")]
    provider = provider_of(GOOGLE, server, model="models/m", count=True, max_output_tokens=9)
    drive(provider.decide(REQUEST))
    assert [path for path, _ in server.requests] == ["/v1/models/m:countTokens", "/v1/models/m:generateContent"]
    assert server.body(0)["generateContentRequest"]["model"] == "models/m"
    assert provider.key(REQUEST).id == provider_of(GOOGLE, server, model="m").key(REQUEST).id
    with pytest.raises(InvalidOption):
        sync.GeminiDecisionProvider(model="models/")


@pytest.mark.parametrize("name", ["gemini-4-pro", "a/../b?x=1#y", "ä {model}"])
def test_a_models_name_is_one_segment_of_the_path(server: Server, name: str) -> None:
    """No name leads anywhere else, whatever is in it."""
    server.replies = [finishes(GOOGLE, "native")]
    server._fault = lambda *_: ""
    drive(provider_of(GOOGLE, server, model=name).decide(REQUEST))
    path = server.requests[0][0]
    assert path.startswith("/v1/models/")
    assert path.endswith(":generateContent")
    assert not set(path.removeprefix("/v1/models/")) & set("/?#")
    assert BASE_URL == "https://generativelanguage.googleapis.com/v1"


@pytest.mark.parametrize(
    "options",
    [
        *({"extra_body": {name: {}}} for name in ("cachedContent", "cached_content", "continuationToken", "store")),
        *({"extra_body": {name: {}}} for name in ("contents", "systemInstruction", "system_instruction", "tools")),
        *({"extra_body": {name: {}}} for name in ("model", "generation_config")),
        *(
            {"extra_body": {"generationConfig": {name: 2}}}
            for name in ("candidateCount", "candidate_count", "responseMimeType", "responseSchema", "maxOutputTokens")
        ),
        {"extra_body": {"generationConfig": [1]}},
        {"client": httpx2},
    ],
    ids=str,
)
def test_d15_options_are_checked_at_construction(options: dict[str, Any]) -> None:
    """D4, D15: no cache, continuation or second candidate, in either spelling."""
    with pytest.raises(InvalidOption):
        sync.GeminiDecisionProvider(**{"model": "m", **options})
    assert GEMINI.own.isdisjoint(COUNTING.counted - {"contents", "systemInstruction", "tools"})


def test_a_key_comes_from_the_option_the_environment_or_the_client(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Google's own order; a client that proves itself is sent no other key."""
    monkeypatch.setenv("GEMINI_API_KEY", "second")
    base_url = f"{server.url}/v1"
    server.replies = [finishes(GOOGLE, "native") for _ in range(4)]
    sync.GeminiDecisionProvider(model="m", base_url=base_url).decide(REQUEST)
    monkeypatch.setenv("GOOGLE_API_KEY", "first")
    sync.GeminiDecisionProvider(model="m", base_url=base_url + "/").decide(REQUEST)
    with httpx2.Client(headers={"Authorization": "Bearer own"}) as client:
        sync.GeminiDecisionProvider(model="m", base_url=base_url, client=client).decide(REQUEST)
        sync.GeminiDecisionProvider(model="m", base_url=base_url, client=client, api_key=KEY).decide(REQUEST)
    assert [headers["x-goog-api-key"] for headers in server.headers] == ["second", "first", None, KEY]
    assert server.headers[2]["Authorization"] == "Bearer own"


def test_d26_the_current_turn_keeps_its_signatures_also_after_a_cut(server: Server) -> None:
    """D26: each step's first call has its own; older exchanges leave whole, and those that stay keep all of theirs."""
    server.replies = [GOOGLE.calls(f"{n}", "x", ids=f"s{n}") for n in range(5)]
    provider = provider_of(GOOGLE, server, history=HistoryOptions(max_messages=5))
    observations: list[Any] = []
    for _ in range(5):
        made = drive(provider.decide(asking(*observations))).calls
        observations += [seen(call) for call in made]
    signed = [
        [part.get("thoughtSignature") for part in content["parts"]]
        for content in server.body()["contents"]
        if content["role"] == "model"
    ]
    assert signed == [["c2ln+/s2==", None], ["c2ln+/s3==", None]]
    assert server.refused == []


def test_d26_calls_without_ids_pair_by_position_and_name(server: Server) -> None:
    """D26: no id is made up; two calls of one capability have two answers, in order."""
    parts: list[dict[str, Any]] = [
        {"functionCall": {"name": "look", "args": {"path": path}}, "thoughtSignature": "s"} for path in "ab"
    ]
    server.replies = [GOOGLE.message(*parts), finishes(GOOGLE, "native")]
    provider = provider_of(GOOGLE, server)
    one, two = drive(provider.decide(REQUEST)).calls
    drive(provider.decide(asking(seen(two, "second"), seen(one, "first"))))
    answers = [part["functionResponse"] for part in server.body()["contents"][-1]["parts"]]
    assert answers == [{"name": "look", "response": {"output": each}} for each in ("first", "second")]
    assert server.refused == []


def test_d13_an_answer_that_could_be_continued_is_not(server: Server) -> None:
    """D13: Google's own client would go on by itself; here a step is one request in either colour."""

    async def decided(client: Any) -> None:
        with pytest.raises(Exception, match="incomplete"):
            await provider_of(GOOGLE, server, client=client).decide(REQUEST)
        with pytest.raises(AgentDecisionProviderUnavailable):
            await provider_of(GOOGLE, server, client=client).decide(REQUEST)

    for client in (GOOGLE.client(server), GOOGLE.async_client(server)):
        server.requests.clear()
        going_on = GOOGLE.message({"text": "{"}, finishReason="CONTINUATION")
        server.replies = [going_on, (503, {"retry-after": "0"}, b""), going_on]
        if isinstance(client, httpx2.Client):
            drive(decided(client))
        else:
            asyncio.run(decided(client))
        assert len(server.requests) == 2
        assert json.loads(server.requests[0][1]) == json.loads(server.requests[1][1])


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("", "/v1"),
        ("/", "/v1"),
        ("/v1", "/v1"),
        ("/v1/", "/v1"),
        ("/v1beta", "/v1beta"),
        ("/v1alpha", "/v1alpha"),
        ("/v1beta2/", "/v1beta2"),
        ("/gateway", "/gateway/v1"),
        ("/gateway/v1beta/google", "/gateway/v1beta/google"),
        ("/v1x", "/v1x/v1"),
    ],
)
def test_d01_a_base_url_may_name_the_version_of_the_api_or_leave_it_out(server: Server, given: str, asked: str) -> None:
    """D1: the service's address is enough, and a version in it is the one that is asked."""
    asyncio.run(_posted(server.url + given))
    assert [path for path, _ in server.requests] == [f"{asked}/models/m:generateContent"]


async def _posted(base_url: str) -> None:
    async with httpx2.AsyncClient(verify=False) as client:
        with pytest.raises(AgentDecisionProviderUnavailable):
            await Httpx2Post(client, base_url)("/models/m:generateContent", b"{}")


@pytest.mark.parametrize(
    "base_url",
    [
        "generativelanguage.googleapis.com",
        "generativelanguage.googleapis.com/v1beta",
        "//generativelanguage.googleapis.com",
        "ftp://host/v1",
        "https://",
        "https:///v1",
        "https://host/v1?key=hunter2",
        "https://host/v1#hunter2",
        "https://user:hunter2@[::1",
        "https://user:hunter2@host/v1",
        "https://hunter2@host/v1",
        "https://user:hunter2@host:port/v1",
    ],
)
def test_d01_i37_a_base_url_that_is_none_is_refused_and_not_quoted(base_url: str) -> None:
    """D1, I-37: at construction; it may hold a key or a password."""
    for kind in (GeminiDecisionProvider, sync.GeminiDecisionProvider):
        with pytest.raises(InvalidOption) as caught:
            kind(model="m", base_url=base_url, api_key=KEY)
        assert caught.value.facts["option"] == "base_url"
        assert "hunter2" not in "".join(traceback.format_exception(caught.value))
