"""Anthropic's blocks: where each stands, and which thinking is bound to what stands before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from minutebook.testing.fakes.dialect import array
from minutebook.testing.fakes.seals import Prefix, Seal, Verdict

__all__ = ["THINKING", "at", "blocks", "dropped", "prefix_of", "thoughts"]

THINKING: Final = ("thinking", "redacted_thinking")


def at(*path: str | int) -> str:
    """Return a place as Anthropic writes it: `messages.0.content`."""
    return ".".join(str(step) for step in path)


def blocks(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the content of a message as blocks; a text is one."""
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else array(content)


def _sealed(block: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the seal of a thinking block, and the rest of the block, which is what was sealed."""
    key = "signature" if block["type"] == "thinking" else "data"
    return block[key], {name: value for name, value in block.items() if name != key}


def _same(block: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in block.items() if value is not None and name != "cache_control"}


def prefix_of(body: Mapping[str, Any]) -> Prefix:
    """Return the prefix of the first message: the tools and the system text."""
    system = body.get("system")
    said = blocks({"content": system}) if system else []
    return Prefix([_same(tool) for tool in array(body.get("tools"))], [_same(block) for block in said])


def thoughts(body: Mapping[str, Any], seal: Seal, prefix: Prefix) -> Iterator[tuple[int, int, Verdict]]:
    """Yield where each thinking block stands and what its seal says, and leave `prefix` behind the last message."""
    for index, message in enumerate(body["messages"]):
        for position, block in enumerate(blocks(message)):
            if block["type"] in THINKING:
                yield index, position, seal.verdict(*_sealed(block), prefix.digest())
            prefix.add([message["role"], _same(block)])


def dropped(body: Mapping[str, Any], seal: Seal) -> list[dict[str, Any]]:
    """Return what `input_transformations` reports: the thinking blocks that the model does not see."""
    return [
        {"type": "thinking_dropped", "path": at("messages", n, "content", m), "reason": "prefix_binding_mismatch"}
        for n, m, verdict in thoughts(body, seal, prefix_of(body))
        if verdict is not Verdict.VALID
    ]
