"""
The recorded exchanges of providers, read with the standard library alone: no line of this is minutebook's.

So the counts made here are a second opinion: who speaks in each message of a request, and what turns, exchanges, calls
and results it holds. Streams are put together as the providers' documents say.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from typing import Any, NamedTuple

ADDRESSES = {
    "openai-chat": re.compile(r"/chat/completions$|\.writer\.com(:\d+)?/v1/chat$"),
    "openai-responses": re.compile(r"/responses(/compact|/input_tokens)?$"),
    "anthropic": re.compile(r"/v1/messages(/count_tokens)?$"),
    "gemini": re.compile(r":(stream)?[gG]enerateContent$"),
}
"""The address of a request tells its format; those that only count hold a history too."""
LISTS = {"openai-chat": "messages", "openai-responses": "input", "anthropic": "messages", "gemini": "contents"}
GROUPED = ("anthropic", "gemini")
FOREIGN = {
    "Bedrock, another format": re.compile(r"/model/[^/]+/(converse|invoke)[a-z-]*$"),
    "Cohere's own chat, another format": re.compile(r"api\.cohere\.com/v2/chat$"),
    "Ollama's own chat, another format": re.compile(r"/api/chat$"),
}
"""Why a request is in none of the four formats; all of these are chats."""


class Request(NamedTuple):
    """One recorded request with what the service answered."""

    name: str
    """The wire format, or empty."""
    foreign: str
    """Why there is none."""
    items: list[Any]
    """The messages, contents or items of its history."""
    response: Any
    """The answer's body, a stream put together; `None` for one that brings no answer."""
    failed: str
    """Why there is no answer to give, or empty."""


class Recording(NamedTuple):
    """One recorded test."""

    id: str
    requests: list[Request]


def recordings(directory):
    """Return the tests of all files in order."""
    for path in sorted(directory.glob("*.jsonl.gz")):
        for line in gzip.decompress(path.read_bytes()).decode().splitlines():
            test = json.loads(line)
            if "calls" in test:
                requests = [_answer_alone(call) for call in test["calls"]]
            else:
                requests = [_request(exchange) for exchange in test["exchanges"]]
            yield Recording(f"{path.name} {test['id']}", requests)


def _answer_alone(call):
    if call["method"] not in ("generateContent", "generateContentStream"):
        return Request("", f"a recorded {call['method']}, no conversation", [], None, "no conversation")
    bodies = call["response"] if isinstance(call["response"], list) else [call["response"]]
    return Request("gemini", "", [], _gemini_stream(bodies), "")


def _request(exchange):
    address = exchange["uri"].partition("?")[0]
    name = next((name for name, pattern in ADDRESSES.items() if pattern.search(address)), "")
    if not name:
        reason = next((reason for reason, pattern in FOREIGN.items() if pattern.search(address)), "another API")
        return Request("", reason, [], None, reason)
    items = exchange["request"].get(LISTS[name], [])
    items = [{"role": "user", "content": items}] if isinstance(items, str) else items
    response, failed = _answered(name, address, exchange)
    return Request(name, "", items, response, failed)


def _answered(name, address, exchange):
    body = exchange.get("response")
    if exchange.get("status") != 200 or (isinstance(body, dict) and body.get("error")):
        return None, "the service refused the request"
    if re.search(r"/(count_tokens|input_tokens|compact)$", address):
        return None, "a count or a compaction, no answer"
    if isinstance(body, str):
        return _assembled(name, body)
    return (body, "") if body else (None, "no answer was recorded")


# --- streams ---------------------------------------------------------------------------------------------------------


def _assembled(name, text):
    events = [json.loads(line[5:]) for line in re.findall(r"^data:.*$", text, re.M) if line[5:].strip() != "[DONE]"]
    if not events and text.lstrip().startswith("["):
        events = json.loads(text)
    if name == "openai-responses":
        bodies = [e["response"] for e in events if e.get("type") in ("response.completed", "response.incomplete")]
        return (bodies[-1], "") if bodies else (None, "a stream without its end")
    if not events:
        return None, "a stream without events"
    return {"openai-chat": _chat_stream, "anthropic": _anthropic_stream, "gemini": _gemini_stream}[name](events), ""


def _chat_stream(events):
    message: dict[str, Any] = {"role": "assistant", "content": None}
    calls: dict[int, Any] = {}
    indexes = set()
    for event in events:
        for choice in event.get("choices") or ():
            indexes.add(choice.get("index", 0))
            delta = choice.get("delta") or {}
            for piece in delta.pop("tool_calls", None) or ():
                call = calls.setdefault(piece.get("index", 0), {"type": "function", "function": {}})
                call.update({key: piece[key] for key in ("id",) if piece.get(key)})
                function = piece.get("function") or {}
                if function.get("name"):
                    call["function"]["name"] = function["name"]  # some services say it with every piece
                call["function"].setdefault("arguments", "")
                call["function"]["arguments"] += function.get("arguments") or ""
            for key, value in delta.items():
                if isinstance(value, str) and key not in ("role", "name", "tool_call_id"):
                    message[key] = (message.get(key) or "") + value
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return {"choices": [{"index": index, "message": message} for index in sorted(indexes)]}


def _anthropic_stream(events):
    message: dict[str, Any] = {}
    blocks: dict[int, Any] = {}
    texts: dict[int, str] = {}
    for event in events:
        if event["type"] == "message_start":
            message = event["message"]
        elif event["type"] == "content_block_start":
            blocks[event["index"]] = event["content_block"]
        elif event["type"] == "content_block_delta":
            block, delta = blocks[event["index"]], event["delta"]
            key = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}.get(
                delta["type"]
            )
            if key:
                block[key] = block.get(key, "") + delta[key]
            elif delta["type"] == "input_json_delta":
                texts[event["index"]] = texts.get(event["index"], "") + delta["partial_json"]
        elif event["type"] == "message_delta":
            message.update(event["delta"])
    for index, text in texts.items():
        blocks[index]["input"] = json.loads(text or "{}")
    return {**message, "content": [blocks[index] for index in sorted(blocks)]}


def _gemini_stream(events):
    *_, last = events
    candidates = [candidate for event in events for candidate in event.get("candidates") or ()]
    parts = [part for candidate in candidates for part in (candidate.get("content") or {}).get("parts") or ()]
    return {**last, "candidates": [{"content": {"role": "model", "parts": parts}, "index": 0}]} if candidates else last


# --- who speaks ------------------------------------------------------------------------------------------------------


class Said(NamedTuple):
    """What one message is: who speaks, the calls it makes, the calls it answers (an id or a name each)."""

    side: str
    calls: list[str]
    answers: list[str]


def look(name, item):
    """Return what a message of a request is."""
    return {"openai-chat": _chat, "openai-responses": _responses, "anthropic": _anthropic, "gemini": _gemini}[name](
        item
    )


_ROLES = {"user": "user", "assistant": "model", "model": "model", "tool": "results", "function": "results"}


def _chat(message):
    side = _ROLES.get(message["role"], "instructions")
    calls = [call.get("id") or "" for call in message.get("tool_calls") or ()] if side == "model" else []
    if side == "model" and not calls and (message.get("function_call") or {}).get("name"):
        calls = [""]
    return Said(side, calls, [message.get("tool_call_id") or ""] if side == "results" else [])


def _responses(item):
    kind = item.get("type") or "message"
    if kind == "message":
        return Said(_ROLES.get(item["role"], "instructions"), [], [])
    ours = item.get("execution") != "server"
    if kind.endswith(("_call_output", "tool_search_output")) and ours:
        return Said("results", [], [item.get("call_id") or ""])
    makes = kind in ("function_call", "custom_tool_call", "tool_search_call", "computer_call", "shell_call")
    return Said("model", [item.get("call_id") or ""] if makes and ours else [], [])


def _anthropic(message):
    content = message["content"] if isinstance(message["content"], list) else []
    calls = [block["id"] for block in content if block["type"] == "tool_use"]
    answers = [block["tool_use_id"] for block in content if block["type"] == "tool_result"]
    side = _ROLES.get(message["role"], "instructions")
    return Said("results" if answers else side, calls, answers)


def _gemini(content):
    parts = content.get("parts") or []
    calls = [part.get("functionCall") or part.get("function_call") for part in parts]
    answers = [part.get("functionResponse") or part.get("function_response") for part in parts]
    named = [[one.get("id") or one.get("name") or "" for one in found if one] for found in (calls, answers)]
    return Said("results" if named[1] else _ROLES.get(content.get("role"), "instructions"), *named)


def ends_with_thinking(name, item):
    """Return whether the model was cut while it thought, so that the next message goes on with it."""
    content = item.get("content") if name == "anthropic" else None
    return isinstance(content, list) and bool(content) and content[-1]["type"].endswith("thinking")


def is_compaction(name, item):
    """Return whether an item stands for what was before it: at the head it belongs to the input behind it."""
    return name == "openai-responses" and item.get("type") == "compaction"


def counts(name, items):
    """Return how many turns, exchanges, calls, results, instructions and further messages a history holds."""
    found: Counter[str] = Counter()
    waiting, asked, before, thinks = 0, False, "", False
    for item in items:
        said = look(name, item)
        if is_compaction(name, item) and not found["turns"]:
            continue
        if said.side == "model":
            joins = name == "openai-responses" or (name in GROUPED and (waiting or thinks))
            found["exchanges"] += not (joins and before == "model")
            asked = False
        elif said.side == "user":
            found["said" if asked or waiting else "turns"] += 1
            asked = asked or not waiting
        elif said.side == "instructions":
            found["instructions"] += 1
        found["calls"] += len(said.calls)
        found["results"] += len(said.answers)
        waiting += len(said.calls) - len(said.answers)
        before, thinks = said.side, ends_with_thinking(name, item)
    return +found


# --- what a window has to be -----------------------------------------------------------------------------------------

_WRAPS = {
    "anthropic": (b'{"role":"assistant","content":', b'{"role":"user","content":'),
    "gemini": (b'{"role":"model","parts":', b'{"role":"user","parts":'),
}


class _Exchange:
    def __init__(self):
        self.models = []
        self.calls = []
        self.results = []
        self.said = []
        self.waiting = 0


def as_sent(name, items):
    """Return the window of a whole history as bytes, and what it changes, by name and number of messages."""
    told: Counter[str] = Counter()
    out: list[bytes] = []
    exchange = None
    begun, before, thinks = False, "", False
    ids: list[str] = []

    def close():
        nonlocal exchange
        if exchange is None:
            return
        if not begun:
            told["answers and results before any input"] += len(exchange.models) + len(exchange.results)
        else:
            out.extend(_exchange_sent(name, exchange, told))
            ids.extend(exchange.calls)
        exchange = None

    for item in items:
        said = look(name, item)
        if said.side == "instructions":
            told["instructions at the head"] += 1
        elif said.side == "user" or (is_compaction(name, item) and not begun):
            if exchange is not None and exchange.waiting:
                exchange.said.append(item)
            else:
                close()
                begun = True
                out.append(_encoded(item))
        elif said.side == "model":
            joins = name == "openai-responses" or (
                name in GROUPED and exchange is not None and (exchange.waiting or thinks)
            )
            if not (joins and before == "model"):
                close()
                exchange = _Exchange()
            exchange.models.append(item)
            exchange.calls += said.calls
            exchange.waiting += len(said.calls)
        else:
            exchange.results.append((exchange.calls.index(said.answers[0]), item))
            exchange.waiting -= len(said.answers)
        before, thinks = said.side, ends_with_thinking(name, item)
    close()
    if name != "gemini" and len(set(ids)) < len(ids):
        told["call ids told apart"] += len(ids) - len(set(ids))
    return b"[" + b",".join(out) + b"]", +told


def _encoded(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _exchange_sent(name, exchange, told):
    out = []
    spoken = [item for item in exchange.models if not _says_nothing(name, item)]
    told["answers with nothing to send"] += len(exchange.models) - len(spoken)
    results = [item for _, item in sorted(exchange.results, key=lambda pair: pair[0])]
    told["results in the order of their calls"] += results != [item for _, item in exchange.results]
    if name not in GROUPED:
        sent = [_taken(name, item) for item in spoken]
        told["members left out that say nothing"] += sum(item != left for item, left in zip(spoken, sent, strict=True))
        out = [_encoded(item) for item in (*sent, *results)]
    else:
        for messages, wrap in zip((spoken, results), _WRAPS[name], strict=True):
            if messages:
                out.append(_grouped_sent(name, messages, wrap, told))
    return out + [_encoded(item) for item in exchange.said]


def _taken(name, item):
    """Return an answer of Chat Completions without the members that say nothing and that OpenAI refuses."""
    if name != "openai-chat":
        return item
    kept = {key: value for key, value in item.items() if value is not None or key in ("content", "refusal")}
    if kept.get("tool_calls"):  # of a stream, whose pieces were counted
        calls = [{key: value for key, value in call.items() if key != "index"} for call in kept["tool_calls"]]
        kept["tool_calls"] = calls
    return {key: value for key, value in kept.items() if (key, value) not in (("tool_calls", []), ("content", []))}


def _grouped_sent(name, messages, wrap, told):
    key = "content" if name == "anthropic" else "parts"
    if len(messages) == 1:
        sent = wrap + _encoded(messages[0][key]) + b"}"
        told["a message's role written before its list"] += sent != _encoded(messages[0])
        return sent
    told["messages of one side joined"] += len(messages) - 1
    lists = [[{"type": "text", "text": m[key]}] if isinstance(m[key], str) else m[key] for m in messages]
    return wrap + _encoded([block for blocks in lists for block in blocks]) + b"}"


def _says_nothing(name, item):
    if name == "openai-chat":
        spoken = ("content", "tool_calls", "function_call", "refusal", "audio", "reasoning_content", "reasoning")
        return not any(item.get(key) for key in spoken)
    if name == "openai-responses":
        return False
    if name == "gemini":
        return all(part == {"text": ""} for part in item.get("parts") or ())
    content = item["content"]
    return not content.strip() if isinstance(content, str) else not any(map(_says_something, content))


def _says_something(block):
    return block["type"] != "text" or block["text"].strip()


# --- pairing ---------------------------------------------------------------------------------------------------------


def violations(name, messages):
    """Count calls without results, results without calls, repeated ids, and what stands between them."""
    found, waiting, seen = 0, [], set()
    for number, message in enumerate(messages):
        said = look(name, message)
        found += number == 0 and said.side != "user" and not is_compaction(name, message)
        if said.side == "results":
            for answered in said.answers:
                if answered in waiting:
                    waiting.remove(answered)
                else:
                    found += 1
        elif waiting and not (name == "openai-responses" and said.side == "model"):
            found += 1
        if name != "gemini":
            found += sum(call in seen for call in said.calls if call)
            seen.update(said.calls)
        waiting += said.calls
    return found + len(waiting)


# --- chains ----------------------------------------------------------------------------------------------------------


def chains(requests, broken):
    """
    Return the requests that were answered, each behind the one whose history and answer it goes on from.

    `broken` counts by reason what goes on from an answer that the client had changed: that begins a chain of its own.
    """
    found: list[list[Request]] = []
    for request in requests:
        if not request.name or not request.items or request.response is None:
            continue
        before = next((chain for chain in reversed(found) if _goes_on(chain[-1], request)), None)
        change = "" if before is None else _changed(before[-1], request)
        if before is None or change:
            found.append([request])
            broken.update([change] if change else [])
        else:
            before.append(request)
    return found


def left_behind(before, after):
    """Return the messages of a request that are new, and how many of them are the answer that came before it."""
    new = after.items[len(before.items) :]
    sides = [look(after.name, item).side for item in new]
    return new, next((place for place, side in enumerate(sides) if side != "model"), len(sides))


def _goes_on(before, after):
    same = before.name == after.name and after.items[: len(before.items)] == before.items
    return same and left_behind(before, after)[1] > 0


def _changed(before, after):
    """Return how the client changed the answer's calls before it sent them back, or an empty text."""
    new, place = left_behind(before, after)
    made = [id_ for item in answer_items(before.name, before.response) for id_ in look(before.name, item).calls]
    sent = [id_ for item in new[:place] for id_ in look(after.name, item).calls]
    if len(made) != len(sent):
        return "a call added to an answer, or left out of it"
    return "" if made == sent or before.name == "gemini" else "the ids of an answer's calls changed"


def answer_items(name, response):
    """Return the messages of an answer as a request would hold them; none for one without a message."""
    if name == "openai-responses":
        return response["output"]
    if name == "anthropic":
        return [response]
    if name == "openai-chat":
        return [choice["message"] for choice in response["choices"] if choice.get("message")]
    return [c["content"] for c in response.get("candidates") or () if c.get("content")]


def calls_of(name, answer):
    """Return how many calls an answer makes that the client has to answer."""
    items = answer if isinstance(answer, list) else [answer] if "role" in answer else answer_items(name, answer)
    answered = {item.get("call_id") for item in items if look(name, item).side == "results"}
    return sum(id_ not in answered or not id_ for item in items for id_ in look(name, item).calls)


def separate_results(name, item, waiting):
    """Return (id or name of the call, a message of its own) for each result; what stands beside goes with one."""
    if name not in GROUPED:
        return [(look(name, item).answers[0], item)]
    key = "content" if name == "anthropic" else "parts"
    found: list[tuple[str, Any]] = []
    beside: list[Any] = []
    for block in item[key]:
        if not look(name, {"role": "user", key: [block]}).answers:
            beside.append(block)
            continue
        answered, block = _stripped(block, waiting)
        found.append((answered, {"role": "user", key: [*beside, block]}))
        beside = []
    found[-1][1][key].extend(beside)
    return found


def _stripped(block, waiting):
    """Return what a block answers, and the block: without an id that the client made up, then the name tells it."""
    if "tool_use_id" in block:
        return block["tool_use_id"], block
    key = "functionResponse" if "functionResponse" in block else "function_response"
    answer = block[key]
    if answer.get("id") in waiting:
        return answer["id"], block
    return answer["name"], {**block, key: {name: value for name, value in answer.items() if name != "id"}}


def said_by_model(name, fragment):
    """Return the text and the arguments of calls in an answer as it is sent back: what no client may change."""
    if not fragment:
        return "", []
    if name == "openai-chat":
        message = json.loads(fragment)
        calls = [call["function"].get("arguments") for call in message.get("tool_calls") or ()]
        return _text(message.get("content")), [_value(call) for call in calls]
    blocks = json.loads(b"[" + fragment + b"]" if name == "openai-responses" else fragment)
    if isinstance(blocks, str):
        return blocks, []
    if name == "openai-responses":
        texts = [_text(item["content"]) for item in blocks if (item.get("type") or "message") == "message"]
        return "".join(texts), [_value(item["arguments"]) for item in blocks if item.get("type") == "function_call"]
    if name == "anthropic":
        return _text(blocks), [block["input"] for block in blocks if block["type"] == "tool_use"]
    spoken = [part for part in blocks if not part.get("thought")]
    calls = [part.get("functionCall") or part.get("function_call") for part in blocks]
    return _text(spoken), [call.get("args", {}) for call in calls if call]


def _text(content):
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.get("text", "") for part in content if "thinking" not in part.get("type", ""))


def _value(arguments):
    try:
        return json.loads(arguments or "{}")
    except json.JSONDecodeError:
        return arguments
