"""
What Anthropic and Gemini say to their providers, and what each of the two refuses.

The server is strict where the real ones are: Anthropic's bodies are held to the installed SDK's types with every object
closed, calls and results must stand beside each other, and a thinking block is bound by its signature to all that stood
before it. Gemini's calls need their signatures in the current turn. Everything that was received is kept as bytes.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, ClassVar

import anthropic
import httpx2
import msgspec
from anthropic.types.beta.message_create_params import MessageCreateParamsNonStreaming as BetaMessage
from anthropic.types.message_count_tokens_params import MessageCountTokensParams
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter
from tests.http_clients import http_client
from tests.providers.loopback import KEY, SECRET, Reply, Server, acting, closed, ok

from minutebook import sync
from minutebook.decisions import AnthropicDecisionProvider, GeminiDecisionProvider

# --- Anthropic -------------------------------------------------------------------------------------------------------


def _validator(params: Any) -> Draft202012Validator:
    return Draft202012Validator(closed(TypeAdapter(params).json_schema()))


_KNOWN = {
    ("/v1/messages", False): _validator(MessageCreateParamsNonStreaming),
    ("/v1/messages", True): _validator(BetaMessage),
    ("/v1/messages/count_tokens", False): _validator(MessageCountTokensParams),
}
BETA = "thinking-binding-controls-2026-08-01"
THOUGHTS = ("thinking", "redacted_thinking")


def signature(body: dict[str, Any], messages: int) -> str:
    """What binds a block to the system text, the tools, and the messages before it."""
    before = [body.get("system"), body.get("tools"), body["messages"][:messages]]
    return hashlib.sha256(json.dumps(before, sort_keys=True).encode()).hexdigest()


def stale(body: dict[str, Any]) -> list[str]:
    """The thinking blocks whose signature is of another conversation, as `messages.i.content.j`."""
    found = []
    for i, message in enumerate(body["messages"]):
        blocks = message["content"] if isinstance(message["content"], list) else []
        for j, block in enumerate(blocks):
            signed = block.get("signature") or block.get("data")
            if block["type"] in THOUGHTS and signed != signature(body, i):
                found.append(f"messages.{i}.content.{j}")
    return found


def unpaired(messages: list[dict[str, Any]]) -> str:
    """What Anthropic would refuse in the order of calls and results; nothing when all is well."""
    waiting: list[str] = []
    for message in messages:
        blocks = message["content"] if isinstance(message["content"], list) else []
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if sorted(results) != sorted(waiting):
            return "each tool_use needs its tool_result in the message after"
        if results and any(block["type"] != "tool_result" for block in blocks[: len(results)]):
            return "results stand first"
        waiting = [block["id"] for block in blocks if block["type"] == "tool_use"]
    return "a tool_use without its tool_result" if waiting else ""


def unthinking(messages: list[dict[str, Any]]) -> bool:
    """Whether the open tool loop has a message that does not begin with its thinking, while another one does."""
    loop: list[bool] = []
    for message in reversed(messages):
        blocks = message["content"] if isinstance(message["content"], list) else []
        if message["role"] == "user":
            if not any(block["type"] == "tool_result" for block in blocks):
                break
        else:
            loop.append(bool(blocks) and blocks[0]["type"] in THOUGHTS)
    return len(set(loop)) > 1


class Claude:
    """What Anthropic says."""

    name = "anthropic"
    path = "/v1/messages"
    count_path = "/v1/messages/count_tokens"
    kind = AnthropicDecisionProvider
    blocking_kind = sync.AnthropicDecisionProvider
    options: ClassVar[dict[str, Any]] = {"max_output_tokens": 500}

    @staticmethod
    def fault(path: str, headers: Any, body: dict[str, Any]) -> str:
        dropping = BETA in (headers["anthropic-beta"] or "")
        known = _KNOWN.get((path, dropping)) or _KNOWN.get((path, False))
        body = {key: value for key, value in body.items() if key != "stream" or value is not True}
        if known is None:
            return f"no such path: {path}"
        faults = [f"{error.json_path}: {error.message[:200]}" for error in known.iter_errors(body)]
        binding = (body.get("thinking") or {}).get("block_binding") or {}
        if faults and not (binding and "count_tokens" in path):
            return faults[0]
        if stale(body) and binding.get("prefix_mismatch_behavior") != "drop_block":
            return f"{stale(body)[0]}: The block is bound to a different conversation"
        if not binding and unthinking(body["messages"]):
            return "Expected thinking or redacted_thinking, but found tool_use"
        return unpaired(body["messages"])

    @staticmethod
    def error(kind: str | None = "invalid_request_error", message: str = "", **more: Any) -> bytes:
        told = {"type": kind, "message": message or f"about {SECRET} and {KEY}", **more}
        return json.dumps({"type": "error", "error": told, "request_id": "req_1"}).encode()

    @staticmethod
    def message(*blocks: dict[str, Any], **fields: Any) -> Reply:
        usage = {"input_tokens": 7, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 1, "output_tokens": 5}
        body = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": list(blocks)}
        return ok({**body, "stop_reason": "end_turn", "stop_sequence": None, "usage": usage, **fields})

    def says(self, text: str) -> Reply:
        return self.message({"type": "text", "text": text})

    def calls(self, *paths: str, ids: str = "toolu") -> Reply:
        blocks = [
            {"type": "tool_use", "id": f"{ids}_{n}", "name": "look", "input": {"path": path}}
            for n, path in enumerate(paths)
        ]
        return self.message(*blocks, stop_reason="tool_use")

    def count(self, tokens: Any) -> Reply:
        return ok({"input_tokens": tokens})

    def client(self, server: Server, **options: Any) -> Any:
        # The SDK's own retries and redirects stay on: that none happens is for the provider to see to.
        http = http_client(verify=False, follow_redirects=True, timeout=20)
        return anthropic.Anthropic(base_url=server.url, api_key=KEY, http_client=http, **options)

    def async_client(self, server: Server) -> Any:
        return anthropic.AsyncAnthropic(base_url=server.url, api_key=KEY, timeout=20)

    def made_with(self, server: Server) -> dict[str, Any]:
        """The options that have the provider make a client of its own."""
        return {"base_url": server.url, "api_key": KEY}

    @staticmethod
    def shown(body: dict[str, Any]) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = body["messages"]
        return messages

    @staticmethod
    def user(text: str) -> dict[str, Any]:
        return {"role": "user", "content": text}

    @staticmethod
    def results(message: dict[str, Any]) -> list[Any]:
        """What the results in a message say."""
        content = message["content"]
        return [content] if isinstance(content, str) else [block["content"] for block in content]

    @staticmethod
    def window(body: bytes) -> bytes:
        return bytes(msgspec.json.decode(body, type=dict[str, msgspec.Raw])["messages"])


# --- Gemini ----------------------------------------------------------------------------------------------------------

_FIELDS = {
    "": {"contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "safetySettings", "labels"},
    "generationConfig": {"responseMimeType", "responseJsonSchema", "maxOutputTokens", "temperature", "thinkingConfig"},
}


class Google:
    """What Gemini says."""

    name = "gemini"
    path = "/v1/models/m:generateContent"
    count_path = "/v1/models/m:countTokens"
    kind = GeminiDecisionProvider
    blocking_kind = sync.GeminiDecisionProvider
    options: ClassVar[dict[str, Any]] = {}

    @staticmethod
    def fault(path: str, headers: Any, body: dict[str, Any]) -> str:
        if path == Google.count_path:
            (inner,) = body.values()
            if list(body) != ["generateContentRequest"] or inner.pop("model") != "models/m":
                return "countTokens takes contents or a generateContentRequest with its model"
            body = inner
        elif path not in (Google.path, "/v1/models/m:streamGenerateContent?alt=sse"):
            return f"no such path: {path}"
        unknown = set(body) - _FIELDS[""] | set(body["generationConfig"]) - _FIELDS["generationConfig"]
        if unknown:
            return f'Invalid JSON payload received. Unknown name "{unknown}"'
        return Google.unpaired(body["contents"])

    @staticmethod
    def unpaired(contents: list[dict[str, Any]]) -> str:
        waiting = 0
        turn = max((n for n, each in enumerate(contents) if each["role"] == "user" and "text" in each["parts"][0]))
        for n, content in enumerate(contents):
            answered = sum("functionResponse" in part for part in content["parts"])
            if answered != waiting:
                return "the number of function response parts is equal to the number of function call parts"
            calls = [part for part in content["parts"] if "functionCall" in part]
            if calls and n > turn and "thoughtSignature" not in calls[0]:
                return "Function call is missing a thought_signature"
            waiting = len(calls)
        return "a function call without its response" if waiting else ""

    @staticmethod
    def error(status: str | None = "INVALID_ARGUMENT", message: str = "", **more: Any) -> bytes:
        told = {"code": 400, "message": message or f"about {SECRET} and {KEY}", "status": status, **more}
        return json.dumps({"error": told}).encode()

    @staticmethod
    def message(*parts: dict[str, Any], **fields: Any) -> Reply:
        candidate = {"content": {"role": "model", "parts": list(parts)}, "finishReason": "STOP", "index": 0, **fields}
        return ok({"candidates": [candidate], "usageMetadata": {"promptTokenCount": 11}, "modelVersion": "m"})

    def says(self, text: str) -> Reply:
        return self.message({"text": text, "thoughtSignature": "+//+Pj8="})

    def calls(self, *paths: str, ids: str = "fc") -> Reply:
        parts: list[dict[str, Any]] = [
            {"functionCall": {"id": f"{ids}_{n}", "name": "look", "args": {"path": path}}}
            for n, path in enumerate(paths)
        ]
        parts[0]["thoughtSignature"] = f"c2ln+/{ids}=="
        return self.message(*parts)

    def count(self, tokens: Any) -> Reply:
        return ok({"totalTokens": tokens})

    def client(self, server: Server, **options: Any) -> Any:
        return http_client(verify=False, follow_redirects=True, **{"timeout": 20, **options})

    def async_client(self, server: Server) -> Any:
        return httpx2.AsyncClient(timeout=20)

    def made_with(self, server: Server) -> dict[str, Any]:
        return {"base_url": f"{server.url}/v1", "api_key": KEY}

    @staticmethod
    def shown(body: dict[str, Any]) -> list[dict[str, Any]]:
        contents: list[dict[str, Any]] = body["contents"]
        return contents

    @staticmethod
    def user(text: str) -> dict[str, Any]:
        return {"role": "user", "parts": [{"text": text}]}

    @staticmethod
    def results(message: dict[str, Any]) -> list[Any]:
        parts = message["parts"]
        return [
            part["text"] if "text" in part else next(iter(part["functionResponse"]["response"].values()))
            for part in parts
        ]

    @staticmethod
    def window(body: bytes) -> bytes:
        return bytes(msgspec.json.decode(body, type=dict[str, msgspec.Raw])["contents"])


Dialect = Claude | Google
CLAUDE, GOOGLE = Claude(), Google()


def serving(dialect: Dialect) -> Server:
    return Server(dialect.fault, (400, {}, dialect.error()))


def calls(dialect: Dialect, interface: str, *paths: str, ids: str = "id") -> Reply:
    """A response that calls `look` for each path."""
    if interface == "structured":
        return dialect.says(acting("look", path=paths[0]))
    return dialect.calls(*paths, ids=ids)


def finishes(dialect: Dialect, interface: str, answer: str = "done") -> Reply:
    return dialect.says(
        acting("finish", answer=answer) if interface == "structured" else json.dumps({"answer": answer})
    )


def provider_of(dialect: Dialect, server: Server, interface: str = "native", **options: Any) -> Any:
    """A provider whose coroutines end without suspending, unless an asynchronous client is given."""
    given = {**dialect.options, "model": "m", "decision_interface": interface, **options}
    if dialect is GOOGLE:
        given = {"base_url": f"{server.url}/v1", "api_key": KEY, **given}
    if isinstance(given.get("client"), (anthropic.AsyncAnthropic, httpx2.AsyncClient)):
        return dialect.kind(**given)
    given.setdefault("client", dialect.client(server))
    return dialect.blocking_kind(**given)._core
