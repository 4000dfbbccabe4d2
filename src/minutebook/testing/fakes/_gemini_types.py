"""
Gemini's request types as they are on the wire, as a table: no SDK shows them so.

Both spellings are one: fields in snake_case are read as the camelCase that the service writes.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

from minutebook.testing.fakes.dialect import array, members
from minutebook.testing.fakes.shapes import Shape, shape_of

__all__ = ["shape", "snake", "spelled"]

_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "number"}
_INTEGER: Final = {"type": "integer"}
_FLAG: Final = {"type": "boolean"}
_TEXTS: Final = {"type": "array", "items": _TEXT}
_ANY: Final[dict[str, Any]] = {"type": "object"}
_ANYS: Final = {"type": "array", "items": _ANY}


def _one(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


def _many(name: str) -> dict[str, Any]:
    return {"type": "array", "items": _one(name)}


_FIELDS: Final[dict[str, dict[str, Any]]] = {
    "Request": {
        "model": _TEXT,
        "contents": _many("Content"),
        "systemInstruction": _one("Content"),
        "tools": _many("Tool"),
        "toolConfig": _one("ToolConfig"),
        "generationConfig": _one("GenerationConfig"),
        "safetySettings": _ANYS,
        "cachedContent": _TEXT,
        "labels": _ANY,
        "serviceTier": _TEXT,
        "store": _FLAG,
    },
    "CountRequest": {"contents": _many("Content"), "generateContentRequest": _one("Request")},
    "Content": {"parts": _many("Part"), "role": {"enum": ["user", "model"]}},
    "Part": {
        "text": _TEXT,
        "inlineData": _one("Blob"),
        "fileData": _ANY,
        "functionCall": _one("FunctionCall"),
        "functionResponse": _one("FunctionResponse"),
        "executableCode": _ANY,
        "codeExecutionResult": _ANY,
        "toolCall": _ANY,
        "toolResponse": _ANY,
        "thought": _FLAG,
        "thoughtSignature": _TEXT,
        "videoMetadata": _ANY,
        "mediaResolution": _ANY,
        "partMetadata": _ANY,
    },
    "Blob": {"mimeType": _TEXT, "data": _TEXT, "displayName": _TEXT},
    "FunctionCall": {"id": _TEXT, "name": _TEXT, "args": _ANY},
    "FunctionResponse": {
        "id": _TEXT,
        "name": _TEXT,
        "response": _ANY,
        "parts": _ANYS,
        "willContinue": _FLAG,
        "scheduling": _TEXT,
    },
    "Tool": {
        "functionDeclarations": _many("FunctionDeclaration"),
        **dict.fromkeys(("googleSearch", "codeExecution", "urlContext", "fileSearch", "googleMaps"), _ANY),
        **dict.fromkeys(("computerUse", "googleSearchRetrieval"), _ANY),
    },
    "FunctionDeclaration": {
        "name": _TEXT,
        "description": _TEXT,
        "behavior": _TEXT,
        **dict.fromkeys(("parameters", "parametersJsonSchema", "response", "responseJsonSchema"), _ANY),
    },
    "ToolConfig": {
        "functionCallingConfig": _one("FunctionCallingConfig"),
        "retrievalConfig": _ANY,
        "includeServerSideToolInvocations": _FLAG,
    },
    "FunctionCallingConfig": {
        "mode": {"enum": ["AUTO", "ANY", "NONE", "VALIDATED"]},
        "allowedFunctionNames": _TEXTS,
    },
    "GenerationConfig": {
        **dict.fromkeys(("temperature", "topP", "topK", "presencePenalty", "frequencyPenalty"), _NUMBER),
        **dict.fromkeys(("candidateCount", "maxOutputTokens", "seed", "logprobs"), _INTEGER),
        **dict.fromkeys(("responseSchema", "responseJsonSchema", "speechConfig", "imageConfig"), _ANY),
        **dict.fromkeys(("stopSequences", "responseModalities"), _TEXTS),
        **dict.fromkeys(("responseMimeType", "mediaResolution"), _TEXT),
        "responseLogprobs": _FLAG,
        "thinkingConfig": _one("ThinkingConfig"),
    },
    "ThinkingConfig": {"includeThoughts": _FLAG, "thinkingBudget": _INTEGER, "thinkingLevel": _TEXT},
}
_REQUIRED: Final = {
    "Request": ["contents"],
    "Content": ["parts"],
    "FunctionCall": ["name"],
    "FunctionResponse": ["name", "response"],
    "FunctionDeclaration": ["name"],
}
_HUMP: Final = re.compile(r"_([a-z])")


@cache
def _camel(name: str) -> str:
    return _HUMP.sub(lambda found: found[1].upper(), name)


def snake(name: str) -> str:
    """Return a name in camelCase as one with underscores."""
    return re.sub(r"([A-Z])", lambda found: f"_{found[1].lower()}", name)


def spelled(value: Any, kind: str) -> Any:
    """Return a value of a type of the table with its fields in camelCase; what a field holds freely stays as it is."""
    if type(value) is not dict:
        return value
    same: dict[str, Any] = {}
    for name, member in members(value).items():
        known = _camel(name) if _camel(name) in _FIELDS[kind] else name
        schema = _FIELDS[kind].get(known, {})
        inner = (schema.get("items") or schema).get("$ref", "").removeprefix("#/$defs/")
        if inner and type(member) is list:
            same[known] = [spelled(item, inner) for item in array(member)]
        else:
            same[known] = spelled(member, inner) if inner else member
    return same


@cache
def shape(kind: str) -> Shape:
    """Return the shape of a type, to be asked after `spelled`."""
    definitions = {
        name: {"type": "object", "properties": fields, "required": _REQUIRED.get(name, [])}
        for name, fields in _FIELDS.items()
    }
    return shape_of({**_one(kind), "$defs": definitions})
