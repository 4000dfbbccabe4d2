"""
What was given in the place of a response and is none: what to call it, and what to give.

It is told by its kind alone; no value of it is repeated, but for a reason out of a provider's own closed list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from minutebook.providers.wire._values import kind_of

if TYPE_CHECKING:
    from minutebook.model.codec import JSON

_ASSEMBLED: Final = "give the completion that its pieces add up to"
STREAM: Final = f"a stream is no response; {_ASSEMBLED}"
HTTP_RESPONSE: Final = "an HTTP response is no body; give response.content, once it is read"
RAW_RESPONSE: Final = "an SDK's raw response is no body; give response.http_response.content"

_BODIES: Final = {
    "openai-responses": "output",
    "openai-chat": "choices",
    "anthropic": "content",
    "gemini": "candidates",
}
"""By format the member that a response's body holds."""
_EVENTS: Final = ("response.", "message_", "content_block_", "content.", "refusal.", "tool_calls.", "logprobs.")
"""How the types of events begin: those of the APIs, and those that OpenAI's stream helper makes of them."""
_BLOCKED: Final = frozenset(
    {"SAFETY", "OTHER", "BLOCKLIST", "PROHIBITED_CONTENT", "IMAGE_SAFETY", "MODEL_ARMOR", "JAILBREAK"}
)


def is_event_stream(body: bytes | bytearray) -> bool:
    """Return whether bytes are those of a streamed response: server-sent events, and no JSON."""
    return body.lstrip().startswith((b"data:", b"event:"))


def mistaken(value: JSON, name: str) -> str:
    """Return what a value is that the format called `name` could not take for a response; empty where that is it."""
    if isinstance(value, list):
        return "" if name == "openai-responses" else "a list is no response; give the body, or one message"
    if not isinstance(value, dict):
        return "a response is the JSON that the provider answered with; give that, as bytes or as the SDK's object"
    return _piece(value) or _blocked(value) or _of_another(value, name) or _without_body(value, name)


def _piece(value: dict[str, JSON]) -> str:
    kind = kind_of(value)
    if kind in ("response.completed", "response.incomplete", "response.failed"):
        return "an event of a stream is no response; give its `response`"
    choices = value.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    piece = value.get("object") == "chat.completion.chunk" or (isinstance(choice, dict) and "delta" in choice)
    if piece or kind in ("chunk", "ping") or kind.startswith(_EVENTS):
        return f"a piece of a stream is no response; {_ASSEMBLED}"
    return ""


def _blocked(value: dict[str, JSON]) -> str:
    feedback = value.get("promptFeedback", value.get("prompt_feedback"))
    if not isinstance(feedback, dict) or value.get("candidates"):
        return ""
    reason = feedback.get("blockReason", feedback.get("block_reason"))
    told = f" ({reason})" if isinstance(reason, str) and reason in _BLOCKED else ""
    return f"the prompt was blocked{told}, so the body holds no answer; leave the turn without one, or ask otherwise"


def _of_another(value: dict[str, JSON], name: str) -> str:
    for other, member in _BODIES.items():
        if other == name or not isinstance(value.get(member), list):
            continue
        if other != "anthropic" or ("stop_reason" in value and value.get("role") == "assistant"):
            return f"this is a body of the format {other}; record it in a conversation of that format"
    return ""


def _without_body(value: dict[str, JSON], name: str) -> str:
    member = _BODIES[name]
    if member in value or "error" in value:
        return ""
    if "role" in value or "parts" in value or kind_of(value):  # a message by itself, and something else is wrong
        items = name == "openai-responses"
        return "one item is no response; give the list of all items of the response" if items else ""
    return f"a body without {member} is no response; give the whole body, as it was received"
