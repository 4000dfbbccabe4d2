"""
What is written and read: exchanges of about 3 KB in four messages, each text distinct.

A user's message of 200 bytes, a tool call with 300 bytes of JSON arguments, its result of 1.5 KB, a final answer of
600 bytes.
"""

from __future__ import annotations

import json
from typing import Any

Message = dict[str, Any]

_WORDS = "the order was shipped on time and the invoice follows by mail within three working days "


def text(tag: str, number: int, size: int) -> str:
    """Return a text of exactly `size` bytes that differs for each tag and number."""
    head = f"{tag} {number}: "
    return (head + _WORDS * (size // len(_WORDS) + 1))[:size]


def exchange(number: int) -> list[Message]:
    """Return the four messages of one exchange, in the format `openai-chat`."""
    call = f"call_{number}"
    arguments = json.dumps({"order": number, "query": text("query", number, 270)})
    function = {"name": "look_up_order", "arguments": arguments}
    return [
        {"role": "user", "content": text("user", number, 200)},
        {"role": "assistant", "content": None, "tool_calls": [{"id": call, "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": call, "content": text("result", number, 1500)},
        {"role": "assistant", "content": text("answer", number, 600)},
    ]


def rows(number: int) -> list[bytes]:
    """Return the same four messages as compact JSON."""
    return [compact(message) for message in exchange(number)]


def compact(value: object) -> bytes:
    """Return `value` as compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def body(number: int) -> bytes:
    """Return a provider's raw response that ends a turn with 600 bytes of text."""
    message = {"role": "assistant", "content": text("answer", number, 600)}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return compact({"id": f"chatcmpl-{number}", "object": "chat.completion", "choices": [choice]})
