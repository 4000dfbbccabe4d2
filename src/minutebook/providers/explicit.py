"""
Whether all that a model will see stands in the request itself, read from its body (SPEC D15).

What a server would fetch, keep, run or insert cannot be counted beforehand: files and pictures by reference, tools that
run at the provider, items of a conversation that it holds. Kinds are taken by allow-lists, since providers add others
several times a year; the arguments and results of a user's own calls are never looked into.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from minutebook.providers.counting import (
    ANTHROPIC,
    GEMINI,
    OPENAI_CHAT,
    OPENAI_RESPONSES,
    Counting,
    Refusal,
    check_fields,
    refused,
    spelled,
)
from minutebook.providers.decision import text_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from minutebook.model.codec import JSON

_RESPONSES_ITEMS: Final = frozenset(
    {"message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"}
)
_RESPONSES_PARTS: Final = frozenset(
    {"input_text", "output_text", "refusal", "input_image", "input_file", "summary_text", "reasoning_text"}
)
_CHAT_PARTS: Final = frozenset({"text", "refusal", "image_url", "input_audio", "file"})
_OPENAI_TOOLS: Final = frozenset({"function", "custom"})
_SERVER_ITEMS: Final = frozenset(
    {"item_reference", "compaction", "compaction_trigger", "configuration_update", "additional_tools"}
)
"""Items that stand for something which the server holds or does."""

_ANTHROPIC_BLOCKS: Final = frozenset(
    {"text", "image", "document", "search_result", "thinking", "redacted_thinking", "tool_use", "tool_result"}
)
_ANTHROPIC_SOURCES: Final = frozenset({"base64", "text", "content"})
_ANTHROPIC_TOOLS: Final = frozenset(
    {"custom", "bash_20250124", "text_editor_20250124", "text_editor_20250429", "text_editor_20250728"}
)
"""Tools that the caller runs. One without a type is the caller's own."""

_GEMINI_PARTS: Final = frozenset(
    {"text", "thought", "thoughtSignature", "inlineData", "functionCall", "functionResponse"}
    | {"videoMetadata", "mediaResolution"}
)


def check_explicit(counting: Counting, body: Mapping[str, JSON]) -> None:
    """
    See that a request can be counted: every field is known, and everything that the model sees is in it.

    Raises:
        ProviderContextCountUnavailable: naming the field, the tool or the kind of content that stands in the way.
    """
    check_fields(counting, body)
    check_content(counting, body)


def check_content(counting: Counting, body: Mapping[str, JSON]) -> None:
    """
    See that what the model sees is in the request, and that the request generates; fields are not asked for.

    Raises:
        ProviderContextCountUnavailable: naming the tool or the kind of content that stands in the way.
    """
    _CHECKS[counting.name](body)


def _check_responses(body: Mapping[str, JSON]) -> None:
    for item in (*_objects(body.get("instructions")), *_objects(body.get("input"))):
        kind = text_at(item, "type") or ("message" if "role" in item else "item_reference")
        if kind not in _RESPONSES_ITEMS:
            raise refused(Refusal.SERVER_STATE if kind in _SERVER_ITEMS else Refusal.OUTSIDE_CONTENT, kind)
        for part in (*_objects(item.get("content")), *_objects(item.get("output"))):
            _check_kind(part, _RESPONSES_PARTS)
            _check_inside(part)
    _check_tools(body, _OPENAI_TOOLS)
    if any(options.get("prewarm") for options in _objects(body.get("prompt_cache_options"))):
        raise refused(Refusal.SERVER_STATE, "prewarm")


def _check_chat(body: Mapping[str, JSON]) -> None:
    for message in _objects(body.get("messages")):
        if message.get("audio") is not None:
            raise refused(Refusal.SERVER_STATE, "audio")
        for part in _objects(message.get("content")):
            _check_kind(part, _CHAT_PARTS)
            for held in (*_objects(part.get("file")), *_objects(part.get("image_url"))):
                _check_inside(held)
            if isinstance(part.get("image_url"), str):
                _check_inside(part)
    _check_tools(body, _OPENAI_TOOLS)
    if body.get("n") not in (None, 1):
        raise refused(Refusal.SEVERAL_ANSWERS, "n")


def _check_inside(part: dict[str, JSON]) -> None:
    for name in ("file_id", "file_url"):
        if part.get(name) is not None:
            raise refused(Refusal.OUTSIDE_CONTENT, name)
    for name in ("image_url", "url"):
        if part.get(name) is not None and not text_at(part, name).startswith("data:"):
            raise refused(Refusal.OUTSIDE_CONTENT, name)


def _check_anthropic(body: Mapping[str, JSON]) -> None:
    _check_blocks(body.get("system"))
    for message in _objects(body.get("messages")):
        _check_blocks(message.get("content"))
    _check_tools(body, _ANTHROPIC_TOOLS, untyped="custom")


def _check_blocks(content: JSON) -> None:
    for block in _objects(content):
        kind = _check_kind(block, _ANTHROPIC_BLOCKS)
        source = block.get("source")
        if kind in ("image", "document"):
            if text_at(source, "type") not in _ANTHROPIC_SOURCES:
                raise refused(Refusal.OUTSIDE_CONTENT, f"{kind}.source.{text_at(source, 'type') or 'none'}")
            for held in _objects(source):
                _check_blocks(held.get("content"))
        if kind in ("tool_result", "search_result"):
            _check_blocks(block.get("content"))


def _check_gemini(body: Mapping[str, JSON]) -> None:
    given = {spelled(name): value for name, value in body.items()}
    for content in (*_objects(given.get("contents")), *_objects(given.get("systemInstruction"))):
        for part in _objects(content.get("parts")):
            _check_part(part)
    for tool in _objects(given.get("tools")):
        for name in tool:
            if spelled(name) != "functionDeclarations":
                raise refused(Refusal.SERVER_TOOL, name)
    for config in _objects(given.get("generationConfig")):
        _check_spelling(config)
        for name, value in config.items():
            if spelled(name) == "candidateCount" and value not in (None, 1):
                raise refused(Refusal.SEVERAL_ANSWERS, name)


def _check_part(part: Mapping[str, JSON]) -> None:
    for name, value in part.items():
        if spelled(name) not in _GEMINI_PARTS:
            raise refused(Refusal.OUTSIDE_CONTENT, name)
        if spelled(name) == "functionResponse":
            for response in _objects(value):
                for inner in _objects(response.get("parts")):
                    _check_part(inner)


def _check_spelling(held: Mapping[str, JSON]) -> None:
    seen: set[str] = set()
    for name in held:
        if spelled(name) in seen:
            raise refused(Refusal.FIELD_TWICE, name)
        seen.add(spelled(name))


def _check_tools(body: Mapping[str, JSON], known: frozenset[str], untyped: str = "") -> None:
    for tool in _objects(body.get("tools")):
        kind = text_at(tool, "type") or untyped
        if kind not in known:
            raise refused(Refusal.SERVER_TOOL, kind)


def _check_kind(part: dict[str, JSON], known: frozenset[str]) -> str:
    kind = text_at(part, "type")
    if kind not in known:
        raise refused(Refusal.OUTSIDE_CONTENT, kind)
    return kind


def _objects(held: JSON) -> Iterator[dict[str, JSON]]:
    """
    Return the objects of a list, and those of the lists in it, since nobody knows what a server makes of such a list.

    Google's API takes a single object without its list, and means the same. Where an API takes a text instead, there is
    nothing to look into.
    """
    if isinstance(held, dict):
        yield held
    for item in held if isinstance(held, list) else ():
        yield from _objects(item)


_CHECKS: Final = {
    OPENAI_RESPONSES.name: _check_responses,
    OPENAI_CHAT.name: _check_chat,
    ANTHROPIC.name: _check_anthropic,
    GEMINI.name: _check_gemini,
}
