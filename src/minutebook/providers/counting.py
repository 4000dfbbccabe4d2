"""
What of a request is counted: one definition for the decision providers and for the guard under an SDK (SPEC D11, D15).

A count is asked with the very bytes of the fields that the model sees, taken by an allow-list. Fields that never reach
the model are on a drop-list. One on neither list is refused by its name, since every provider adds fields that change
what a model sees, or that let the server keep a conversation of its own.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING, Final

import msgspec

from minutebook.errors import InvalidValue, ProviderContextCountUnavailable
from minutebook.model import codec
from minutebook.providers.decision import joined, token_count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from minutebook.model.codec import JSON

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,63}", re.ASCII)


class Refusal(enum.StrEnum):
    """Why a request cannot be counted as it stands: the `provider_error_code` of a count that is unavailable."""

    UNKNOWN_FIELD = "unknown_field"
    FIELD_TWICE = "field_twice"
    SERVER_STATE = "server_state"
    SERVER_TOOL = "server_tool"
    OUTSIDE_CONTENT = "outside_content"
    NO_OUTPUT_LIMIT = "no_output_limit"
    SEVERAL_ANSWERS = "several_answers"
    BODY_NOT_JSON = "body_not_json"
    BODY_STREAMED = "body_streamed"
    HOST_REFUSED = "host_refused"
    PATH_REFUSED = "path_refused"
    HEADER_REFUSED = "header_refused"


_WHY: Final = {
    Refusal.UNKNOWN_FIELD: "whether it reaches the model is not known; leave it out, or use a version that knows it",
    Refusal.FIELD_TWICE: "it is given in two spellings; give one",
    Refusal.SERVER_STATE: "the server would add to, keep or shorten the conversation; send every message explicitly",
    Refusal.SERVER_TOOL: "the server would run it and add what no count knows; offer functions of your own",
    Refusal.OUTSIDE_CONTENT: "its content is not in the request, so it cannot be counted; send the content itself",
    Refusal.NO_OUTPUT_LIMIT: "a reservation needs the bound on the output; set it",
    Refusal.SEVERAL_ANSWERS: "several answers would take several output allowances; ask for one",
    Refusal.BODY_NOT_JSON: "the body is no strict JSON object in plain UTF-8",
    Refusal.BODY_STREAMED: "a body that is streamed cannot be counted before it is sent; send JSON in one piece",
    Refusal.HOST_REFUSED: "it is not the provider's official host; name a compatible server in `qualified`",
    Refusal.PATH_REFUSED: "this path is not guarded and may generate; use a client without the guard for it",
    Refusal.HEADER_REFUSED: "what this header or extension changes is not known; leave it out",
}


def refused(refusal: Refusal, field: str = "") -> ProviderContextCountUnavailable:
    """
    Return the refusal of a request that cannot be counted; `field` names what is refused.

    A name comes from the request, so one that does not look like a provider's is left out (promise I-37).
    """
    name = field if _NAME.fullmatch(field) else ""
    return ProviderContextCountUnavailable(
        f"the request cannot be counted, so nothing was generated: {reason(refusal, name)}",
        provider_error_code=refusal.value,
        field=name,
        status=None,
    )


def reason(refusal: Refusal, field: str) -> str:
    """Return why a request is refused, and what to do; `field` is empty, or a name that looks like a provider's."""
    told = f" at {field!r}" if field else ""
    return f"{refusal.value}{told}: {_WHY[refusal]}"


def count_failed(code: str, status: int | None = None, *, cause: str | None = None) -> ProviderContextCountUnavailable:
    """Return the error for a count that was asked for and not given; its facts are those of `unavailable`."""
    under = f" ({cause})" if cause else ""
    return ProviderContextCountUnavailable(
        f"no token count could be had, so nothing was generated: {code}{under}",
        provider_error_code=code,
        status=status,
        cause=cause,
    )


class Counting(msgspec.Struct, frozen=True, kw_only=True):
    """How the requests of one API are counted."""

    name: str
    """The wire format's name."""
    provider: str
    """The provider's name, as events tell it."""
    counted: frozenset[str]
    """The fields that the counting endpoint takes: all that the model sees."""
    uncounted: frozenset[str]
    """The drop-list: fields that never reach the model."""
    switched_off: Mapping[str, tuple[JSON, ...]]
    """Fields by which the server would keep, choose or shorten a conversation, each with the values that do not."""
    required: Mapping[str, JSON] = {}
    """What must be said so that the server keeps nothing: silence would mean that it does."""
    output_limits: tuple[str, ...]
    """The names of the bound on the output; within `generationConfig` where `wrapper` is set."""
    answer: str = "input_tokens"
    """The field of the counting endpoint's body that holds the count."""
    wrapper: str = ""
    """The field around a counted request, which then names its model too."""


def spelled(name: str) -> str:
    """Return a field's name in camel case; Google's API takes both spellings and means the same."""
    return re.sub(r"_([a-z0-9])", lambda found: found[1].upper(), name)


def count_body(counting: Counting, fields: Mapping[str, bytes], model: str = "") -> bytes:
    """Return the body of the request that counts the one with `fields`, made of the same bytes."""
    shown = {name: value for name, value in fields.items() if _canonical(counting, name) in counting.counted}
    if not counting.wrapper:
        return joined(shown)
    return joined({counting.wrapper: joined({"model": codec.encode(f"models/{model}"), **shown})})


def _canonical(counting: Counting, name: str) -> str:
    return spelled(name) if counting.wrapper else name


def counted_tokens(counting: Counting, payload: bytes) -> int:
    """
    Return the count in a counting endpoint's body.

    Raises:
        ProviderContextCountUnavailable: no JSON, or no integer of at least 0 where the count belongs.
    """
    body: JSON = None
    code = "no_count"
    try:
        body = codec.decode(payload)
    except InvalidValue:
        code = "not_json"  # and the error is left behind: it quotes the keys of whatever was sent
    tokens = token_count(body.get(counting.answer) if isinstance(body, dict) else None)
    if tokens is None:
        raise count_failed(code)
    return tokens


def check_fields(counting: Counting, body: Mapping[str, JSON]) -> None:
    """
    See that every field is known, and that none lets the server have a conversation of its own.

    Raises:
        ProviderContextCountUnavailable: naming the field.
    """
    seen: set[str] = set()
    for given, value in body.items():
        name = _canonical(counting, given)
        if name in seen:
            raise refused(Refusal.FIELD_TWICE, given)
        seen.add(name)
        if name in counting.switched_off:
            if not _among(value, counting.switched_off[name]):
                raise refused(Refusal.SERVER_STATE, given)
        elif name not in counting.counted | counting.uncounted:
            raise refused(Refusal.UNKNOWN_FIELD, given)
    for name, value in counting.required.items():
        if not _among(body.get(name), (value,)):
            raise refused(Refusal.SERVER_STATE, name)


def _among(value: JSON, values: tuple[JSON, ...]) -> bool:
    # By type too: to a server 0 is not false.
    return any(type(value) is type(other) and value == other for other in values)


def output_limit(counting: Counting, body: Mapping[str, JSON]) -> int:
    """
    Return the bound on the output that a request states.

    Raises:
        ProviderContextCountUnavailable: none, two of them, or no positive integer.
    """
    held: JSON = dict(body)
    if counting.wrapper:
        held = body.get("generationConfig", body.get("generation_config"))
    stated = {name: held[name] for name in counting.output_limits if isinstance(held, dict) and name in held}
    if len(stated) > 1:
        raise refused(Refusal.FIELD_TWICE, next(iter(stated)))
    limit = token_count(next(iter(stated.values()), None))
    if not limit:
        raise refused(Refusal.NO_OUTPUT_LIMIT, counting.output_limits[0])
    return limit


OPENAI_RESPONSES: Final = Counting(
    name="openai-responses",
    provider="openai",
    counted=frozenset(
        {"model", "instructions", "input", "text", "tools", "tool_choice", "parallel_tool_calls", "reasoning"}
        # By the other API's field llama.cpp's server binds the answer; another one may tell the model of it.
        | {"response_format"}
    ),
    uncounted=frozenset(
        {"max_output_tokens", "store", "include", "temperature", "top_p", "top_logprobs", "metadata", "user", "seed"}
        | {"prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier", "service_tier"}
        | {"stream", "stream_options", "max_tool_calls"}
        | {"top_k", "min_p", "cache_prompt"}
    ),
    switched_off={
        "previous_response_id": (None,),
        "conversation": (None,),
        "prompt": (None,),
        "context_management": (None,),
        "background": (None, False),
        "background_options": (None,),
        "truncation": (None, "disabled"),
        "store": (False,),
    },
    required={"store": False},
    output_limits=("max_output_tokens",),
)

OPENAI_CHAT: Final = Counting(
    name="openai-chat",
    provider="openai",
    counted=frozenset(
        {"model", "messages", "tools", "tool_choice", "parallel_tool_calls", "response_format", "reasoning_effort"}
        | {"chat_template_kwargs", "verbosity"}
    ),
    uncounted=frozenset(
        {"max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "metadata", "user"}
        | {"frequency_penalty", "presence_penalty", "repeat_penalty", "logit_bias", "logprobs", "top_logprobs"}
        | {"prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier"}
        | {"cache_prompt", "max_tokens", "stream", "stream_options", "n"}
    ),
    switched_off={"store": (None, False), "web_search_options": (None,), "audio": (None,)},
    output_limits=("max_completion_tokens", "max_tokens"),
)

ANTHROPIC: Final = Counting(
    name="anthropic",
    provider="anthropic",
    counted=frozenset(
        {"model", "messages", "system", "tools", "tool_choice", "thinking", "output_config", "cache_control", "speed"}
    ),
    uncounted=frozenset(
        {"max_tokens", "stream", "stop_sequences", "metadata", "service_tier", "inference_geo", "diagnostics"}
        # Of the API's version of 2023; the present one refuses them itself.
        | {"temperature", "top_p", "top_k"}
    ),
    switched_off={
        "container": (None,),
        "mcp_servers": (None, []),
        "context_management": (None,),
        "compaction": (None,),
        "thread": (None,),
        "fallbacks": (None, []),
        "fallback_credit_token": (None,),
    },
    output_limits=("max_tokens",),
)

ANTHROPIC_BETAS: Final = frozenset(
    {"prompt-caching-2024-07-31", "pdfs-2024-09-25", "token-counting-2024-11-01", "output-128k-2025-02-19"}
    | {"token-efficient-tools-2025-02-19", "extended-cache-ttl-2025-04-11", "interleaved-thinking-2025-05-14"}
    | {"fine-grained-tool-streaming-2025-05-14", "context-1m-2025-08-07", "structured-outputs-2025-11-13"}
    | {"model-context-window-exceeded-2025-08-26", "fast-mode-2026-02-01", "output-300k-2026-03-24"}
    | {"cache-diagnosis-2026-04-07", "thinking-token-count-2026-05-13", "thinking-binding-controls-2026-08-01"}
    | {"thinking-display-updates-2026-08-18"}
)
"""Beta features, by header, that keep nothing at the server and add nothing to what is counted."""

GEMINI: Final = Counting(
    name="gemini",
    provider="google",
    counted=frozenset({"contents", "systemInstruction", "tools", "toolConfig", "generationConfig"}),
    uncounted=frozenset({"safetySettings", "labels", "serviceTier"}),
    switched_off={"cachedContent": (None, ""), "continuationToken": (None, ""), "store": (None, False)},
    output_limits=("maxOutputTokens", "max_output_tokens"),
    answer="totalTokens",
    wrapper="generateContentRequest",
)

COUNTINGS: Final = {counting.name: counting for counting in (OPENAI_RESPONSES, OPENAI_CHAT, ANTHROPIC, GEMINI)}
"""How requests are counted, by the wire format's name."""
