"""The fake of Gemini generateContent, asked by raw posts: what is right passes, each broken rule is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from minutebook.testing.fakes import Answer, FunctionCall, ProviderFake, Seal, gemini

TOOLS: list[Any] = [{"functionDeclarations": [{"name": "look", "parametersJsonSchema": {"type": "object"}}]}]
LOOKS = (FunctionCall("look", {"path": "ä"}), FunctionCall("look", {"path": "b"}, id=None))
SCRIPT = (
    Answer(thinking="Two files.", text="I look.", calls=LOOKS),
    Answer(calls=(FunctionCall("look", {"path": "c"}),)),
    Answer(thinking="So.", text="Both are fine."),
    Answer(thinking="Again.", calls=LOOKS),
    Answer(calls=(FunctionCall("look", {"path": "d"}),)),
)
KEY = {"x-goog-api-key": "any"}
GENERATE = "/v1beta/models/m:generateContent"
COUNT = "/v1beta/models/m:countTokens"


def post(fake: ProviderFake, path: str, body: Any, headers: dict[str, str] = KEY) -> httpx2.Response:
    return httpx2.post(f"{fake.base_url}{path}", json=body, headers=headers, verify=False, timeout=20)


def conversation(fake: ProviderFake) -> dict[str, Any]:
    """A whole conversation, in two turns of which the second is under way: the body of its next request."""
    contents: list[Any] = [{"role": "user", "parts": [{"text": "Look at ä and b."}]}]
    body = {"contents": contents, "tools": TOOLS, "systemInstruction": {"parts": [{"text": "Be brief."}]}}
    for _ in SCRIPT:
        response = post(fake, GENERATE, body)
        assert response.status_code == 200, response.text
        content = response.json()["candidates"][0]["content"]
        contents.append(content)
        calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
        answers = [
            {**{key: call[key] for key in ("id", "name") if key in call}, "response": {"output": "fine"}}
            for call in calls
        ]
        parts = [{"functionResponse": answer} for answer in answers] or [{"text": "Once more."}]
        contents.append({"role": "user", "parts": parts})
    return body


@pytest.fixture(scope="module")
def led() -> Iterator[tuple[ProviderFake, dict[str, Any]]]:
    with ProviderFake("gemini", lambda r: SCRIPT[sum(c["role"] == "model" for c in r.json["contents"])]) as fake:
        yield fake, conversation(fake)
        assert all(received.problem for received in fake.requests[len(SCRIPT) :]), "a broken request passed"


Change = Callable[[dict[str, Any]], Any]


def at(*path: Any, value: Any) -> Change:
    """Return a change that puts a value, or with `...` takes one away, at a place of a body."""

    def change(body: Any) -> None:
        *outer, last = path
        for key in outer:
            body = body[key]
        if value is ...:
            del body[last]
        else:
            body[last] = value

    return change


def part(content: int, *path: Any, value: Any) -> Change:
    return at("contents", content, "parts", *path, value=value)


def insert(index: int, content: Any) -> Change:
    return lambda body: body["contents"].insert(index, content)


def swap(content: int, one: int, other: int) -> Change:
    def change(body: Any) -> None:
        parts = body["contents"][content]["parts"]
        parts[one], parts[other] = parts[other], parts[one]

    return change


USER = {"role": "user", "parts": [{"text": "x"}]}
MODEL = {"role": "model", "parts": [{"text": "x"}]}

# 0 user; 1 thought, text, two calls; 2 responses; 3 call; 4 response; 5 thought, text; 6 user;
# 7 thought, two calls; 8 responses; 9 call; 10 response
RULES: list[tuple[str, Change, str]] = [
    ("unknown at the top", at("max_tokens", value=1), 'Unknown name "max_tokens": Cannot find field.'),
    ("unknown in a content", at("contents", 0, "x", value=1), "Unknown name \"x\" at 'contents[0]'"),
    ("unknown in a part", part(1, 1, "x", value=1), "Unknown name \"x\" at 'contents[1].parts[1]'"),
    ("unknown in a call", part(1, 2, "functionCall", "x", value=1), "at 'contents[1].parts[2].function_call'"),
    ("unknown in a declaration", at("tools", 0, "functionDeclarations", 0, "x", value=1), "function_declarations[0]'"),
    ("unknown in the settings", at("generationConfig", value={"max_tokens": 1}), "at 'generation_config'"),
    ("no contents", at("contents", value=...), "contents: must be set"),
    ("empty contents", at("contents", value=[]), "contents is not specified"),
    ("no parts", at("contents", 0, "parts", value=[]), "contents[0].parts: must not be empty"),
    ("an empty part", part(0, 0, value={}), "required oneof field 'data'"),
    ("a signature alone", part(0, 0, value={"thoughtSignature": "x"}), "required oneof field 'data'"),
    ("two kinds in a part", part(0, 0, "functionCall", value={"name": "look"}), "required oneof field 'data'"),
    ("a content that is none", at("contents", 0, value=5), "contents[0]: Invalid value"),
    ("a role of nobody", at("contents", 0, "role", value="assistant"), "contents[0].role"),
    ("a call of no name", part(1, 2, "functionCall", "name", value=...), "function_call.name: must be set"),
    ("arguments of a text", part(1, 2, "functionCall", "args", value="{}"), "function_call.args: Invalid value"),
    ("a response that is no object", part(2, 0, "functionResponse", "response", value="x"), "response: Invalid value"),
    ("a cache kept there", at("cachedContent", value="cachedContents/1"), "CachedContent not found"),
    ("a file kept there", part(0, 0, value={"fileData": {"fileUri": "x"}}), "permission"),
    ("two candidates", at("generationConfig", value={"candidateCount": 2}), "Multiple candidates"),
    ("a tool's name outside", at("tools", 0, "functionDeclarations", 0, "name", value="1a"), "Invalid function name"),
    ("a tool twice", lambda body: body["tools"].append(body["tools"][0]), "Duplicate function declaration"),
    (
        "an instruction of a call",
        at("systemInstruction", "parts", 0, value={"functionCall": {"name": "x"}}),
        "only texts",
    ),
    ("the model begins", at("contents", 0, value=...), "begin with a user turn"),
    ("a call by the user", at("contents", 3, "role", value="user"), "calls are the model's"),
    ("a response by the model", at("contents", 2, "role", value="model"), "calls are the model's"),
    ("a call behind the model's words", insert(3, MODEL), "function call turn comes immediately after"),
    ("a response dropped", part(2, 0, value=...), "number of function response parts"),
    ("all responses dropped", at("contents", 2, value=...), "call turn comes immediately after a user turn"),
    ("an open end", at("contents", slice(4, None), value=...), "number of function response parts"),
    ("a call dropped", part(1, 3, value=...), "number of function response parts"),
    (
        "a response twice",
        lambda b: b["contents"][2]["parts"].append(b["contents"][2]["parts"][0]),
        "number of function resp",
    ),
    ("a user between", insert(2, USER), "number of function response parts"),
    ("the calls dropped", part(1, slice(2, 4), value=...), "comes immediately after a function call turn"),
    (
        "responses twice",
        lambda b: insert(3, copy.deepcopy(b["contents"][2]))(b),
        "immediately after a function call turn",
    ),
    ("another id", part(2, 0, "functionResponse", "id", value="call_9"), "does not match"),
    ("another name", part(4, 0, "functionResponse", "name", value="list"), "does not match"),
    ("another name without an id", part(2, 1, "functionResponse", "name", value="list"), "does not match"),
    ("an id twice", lambda body: _rename(body, body["contents"][1]["parts"][2]["functionCall"]["id"]), "Duplicate"),
    ("a call's name outside", part(1, 2, "functionCall", "name", value=""), "Invalid function name"),
    ("no signature on a step's first call", part(9, 0, "thoughtSignature", value=...), "missing a thought_signature"),
    (
        "no signature on the first of two",
        part(7, 1, "thoughtSignature", value=...),
        "`look`, position contents[7].parts[1]",
    ),
    ("the signature on the second call", swap(7, 1, 2), "missing a thought_signature"),
    ("a signature changed", part(9, 0, "thoughtSignature", value="Zm9v"), "Corrupted thought signature"),
    (
        "a signature in URL-safe letters",
        lambda body: part(
            9,
            0,
            "thoughtSignature",
            value=body["contents"][9]["parts"][0]["thoughtSignature"].replace("+", "-").replace("/", "_"),
        )(body),
        "Corrupted thought signature",
    ),
    ("an argument changed", part(9, 0, "functionCall", "args", "path", value="e"), "Corrupted thought signature"),
    (
        "another call's signature",
        lambda body: part(9, 0, "thoughtSignature", value=body["contents"][7]["parts"][1]["thoughtSignature"])(body),
        "Corrupted thought signature",
    ),
]


def _rename(body: Any, name: str) -> None:
    body["contents"][3]["parts"][0]["functionCall"]["id"] = name
    body["contents"][4]["parts"][0]["functionResponse"]["id"] = name


@pytest.mark.parametrize(("change", "told"), [rule[1:] for rule in RULES], ids=[rule[0] for rule in RULES])
def test_i22_o11_o15_each_broken_rule_is_refused(
    led: tuple[ProviderFake, dict[str, Any]], change: Change, told: str
) -> None:
    """Every change of a right conversation that breaks one rule is refused with that rule's words."""
    fake, right = led
    assert gemini.check_request(right, fake.seal) is None
    body = copy.deepcopy(right)
    change(body)
    response = post(fake, GENERATE, body)
    error = response.json()["error"]
    assert told in error["message"]
    denied = "permission" in told or "CachedContent" in told
    status = (403, "PERMISSION_DENIED") if denied else (400, "INVALID_ARGUMENT")
    assert (response.status_code, error["status"]) == status == (error["code"], error["status"])


ALLOWED: list[tuple[str, Change]] = [
    ("an older exchange left out", at("contents", slice(1, 3), value=...)),
    ("older turns left out", at("contents", slice(0, 6), value=...)),
    ("an older signature lost", part(1, 2, "thoughtSignature", value=...)),
    ("an older signature changed", part(5, 1, "thoughtSignature", value="Zm9v")),
    ("a thought of this turn left out", part(7, 0, value=...)),
    ("a transplanted call", part(9, 0, "thoughtSignature", value=gemini.SKIPPED)),
    ("an empty text", part(6, 0, "text", value="")),
    ("no role for the user", at("contents", 6, "role", value=...)),
    ("responses in another order", swap(2, 0, 1)),
    ("a response without its id", part(4, 0, "functionResponse", "id", value=...)),
    ("free fields", part(1, 2, "functionCall", "args", value={"some_name": {"x_y": [None]}, "path": 1e2})),
]


@pytest.mark.parametrize("change", [rule[1] for rule in ALLOWED], ids=[rule[0] for rule in ALLOWED])
def test_o11_what_the_service_takes_is_not_refused(led: tuple[ProviderFake, dict[str, Any]], change: Change) -> None:
    """Only the current turn's signatures are looked at, so what is older may leave or lose its own."""
    fake, right = led
    body = copy.deepcopy(right)
    change(body)
    assert gemini.check_request(body, fake.seal) is None
    assert gemini.check_messages(body["contents"], fake.seal) is None


def snake(value: Any) -> Any:
    """A body as some clients write it: every name of the API in snake_case."""
    names = {"functionCall": "function_call", "functionResponse": "function_response"}
    names |= {"thoughtSignature": "thought_signature", "systemInstruction": "system_instruction"}
    names |= {"functionDeclarations": "function_declarations", "parametersJsonSchema": "parameters_json_schema"}
    if isinstance(value, list):
        return [snake(item) for item in value]
    return {names.get(key, key): snake(item) for key, item in value.items()} if isinstance(value, dict) else value


def test_both_spellings_are_one(led: tuple[ProviderFake, dict[str, Any]]) -> None:
    """snake_case passes, breaks the same rules and costs the same."""
    fake, right = led
    body = snake(right)
    assert "thought_signature" in json.dumps(body)
    assert gemini.check_request(body, fake.seal) is None
    assert gemini.tokens(body) == gemini.tokens(right)
    del body["contents"][9]["parts"][0]["thought_signature"]
    problem = gemini.check_request(body, fake.seal)
    assert problem is not None
    assert "missing a thought_signature" in problem.message


def test_o25_counts_what_it_bills_only_when_all_is_counted() -> None:
    """`generateContentRequest` counts the whole request and equals the bill; bare contents count less."""
    with ProviderFake("gemini", [*SCRIPT, Answer(text="done")]) as fake:
        body = conversation(fake)
        whole = {"generateContentRequest": {"model": "models/m", **body}}
        counted = post(fake, COUNT, whole).json()["totalTokens"]
        bare = post(fake, COUNT, {"contents": body["contents"]}).json()["totalTokens"]
        billed = post(fake, GENERATE, body).json()["usageMetadata"]["promptTokenCount"]
        assert bare < counted == billed
        for wrong, told in (
            ({**whole, "contents": body["contents"]}, "mutually exclusive"),
            ({}, "mutually exclusive"),
            ({"contents": body["contents"], "tools": TOOLS}, 'Unknown name "tools"'),
            ({"generateContentRequest": body}, "must be the model"),
            ({"generateContentRequest": {**body, "model": "models/other"}}, "must be the model"),
            ({"generateContentRequest": {"model": "models/m", "contents": body["contents"][1:]}}, "begin with a user"),
        ):
            response = post(fake, COUNT, wrong)
            assert response.status_code == 400
            assert told in response.json()["error"]["message"]


def events(response: httpx2.Response) -> list[Any]:
    return [json.loads(line.removeprefix("data: ")) for line in response.text.splitlines() if line]


def test_streams_in_both_forms_come_to_the_answer() -> None:
    """Events and a JSON array hold the same chunks; a text's signature comes last, on a part of its own."""
    answers = [*SCRIPT[:1], SCRIPT[2], Answer(refusal="No."), Answer(text="a text that was", ending="length")]
    with ProviderFake("gemini", [line for answer in answers for line in (answer, answer, answer)]) as fake:
        body = {"contents": [USER], "tools": TOOLS}
        for answer in answers:
            whole = post(fake, GENERATE, body).json()
            framed = post(fake, "/v1/models/m:streamGenerateContent?alt=sse", body)
            assert framed.headers["content-type"].startswith("text/event-stream")
            listed = post(fake, "/v1/models/m:streamGenerateContent", body)
            assert listed.headers["content-type"] == "application/json"
            chunks = events(framed)
            assert [list(chunk) for chunk in chunks] == [list(chunk) for chunk in listed.json()]
            assert chunks[-1]["usageMetadata"]["promptTokenCount"] == whole["usageMetadata"]["promptTokenCount"]
            if answer.refusal:
                assert chunks[-1]["promptFeedback"] == whole["promptFeedback"]
                continue
            parts = [p for chunk in chunks for p in chunk["candidates"][0]["content"].get("parts", ())]
            assert "".join(p.get("text", "") for p in parts if not p.get("thought")) == answer.text
            assert "".join(p["text"] for p in parts if p.get("thought")) == (answer.thinking or "")
            made = [(p["functionCall"]["name"], p["functionCall"]["args"]) for p in parts if "functionCall" in p]
            assert made == [(call.name, call.arguments) for call in answer.calls]
            assert chunks[-1]["candidates"][0]["finishReason"] == whole["candidates"][0]["finishReason"]
            if answer is SCRIPT[2]:
                assert parts[-1]["text"] == ""
                assert gemini.check_messages([USER, {"role": "model", "parts": parts}, USER], fake.seal) is None
                # In the current turn, merging it into the text before it is found out.
                merged = {"text": answer.text, "thoughtSignature": parts[-1]["thoughtSignature"]}
                assert gemini.check_messages([USER, {"role": "model", "parts": [merged]}], fake.seal) is not None
                assert gemini.check_messages([USER, {"role": "model", "parts": parts}], fake.seal) is None
        assert fake.refused == ()


def test_only_its_own_paths_and_only_with_a_key() -> None:
    """The key in a header or in the query, which is not kept; no other path, model list or method."""
    with ProviderFake("gemini", [Answer(text="one"), Answer(text="two")]) as fake:
        body = {"contents": [USER]}
        assert post(fake, GENERATE, body, {}).json()["error"]["status"] == "PERMISSION_DENIED"
        assert post(fake, f"{GENERATE}?key=secret-key&x=1", body, {}).status_code == 200
        assert fake.requests[-1].path == f"{GENERATE}?x=1"
        for path in ("/v1/models", "/v2/models/m:generateContent", "/v1/models/m:embed", "/v1/interactions"):
            assert post(fake, path, body).json()["error"]["status"] == "NOT_FOUND"
        assert "secret-key" not in repr(fake.requests)


def test_signatures_of_another_secret_are_foreign(led: tuple[ProviderFake, dict[str, Any]]) -> None:
    """What another service has signed is refused in the current turn (O-12)."""
    assert gemini.check_request(led[1], Seal(b"another")) is not None
    assert gemini.check_request(led[1]) is None
