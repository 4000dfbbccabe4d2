"""
Face D: the decision providers, with their history.

A provider answers one question, «what next?», and keeps what was said meanwhile. Every one here is thin: an API, an
interface, a way to post bytes, and `Steps`, which joins them to a history; what a step is says `steps.py`. What a
history keeps and sends is said by `HistoryOptions`, which is written in `options.py` and belongs to this module's
names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from minutebook.errors import InvalidOption
from minutebook.model.colours import AsyncClosing
from minutebook.model.context import ContextWindow
from minutebook.model.decisions import Decision, DecisionRequest
from minutebook.options import HistoryOptions, check_history_colour
from minutebook.policy.binding import check_reasoning
from minutebook.providers.anthropic import ANTHROPIC, ANTHROPIC_SDK, DROP_BLOCK_BETA
from minutebook.providers.endpoints import OFFICIAL
from minutebook.providers.gemini import GEMINI
from minutebook.providers.gemini_http import Httpx2Post
from minutebook.providers.generator import Generator, check_alone
from minutebook.providers.openai_chat import CHAT
from minutebook.providers.openai_http import OPENAI
from minutebook.providers.openai_responses import RESPONSES
from minutebook.providers.sdk_http import SdkPost
from minutebook.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from minutebook.model.codec import JSON
    from minutebook.model.keys import ConversationKey
    from minutebook.policy.binding import Reasoning
    from minutebook.ports import Generate
    from minutebook.providers.decision import Api
    from minutebook.providers.sdk_http import Post, Sdk
    from minutebook.stores.journal import JournalStore

__all__ = [
    "AnthropicDecisionProvider",
    "GeminiDecisionProvider",
    "HistoryOptions",
    "OpenAIChatDecisionProvider",
    "OpenAIDecisionProvider",
]


def _is_official(post: Post) -> bool:
    """Return whether requests go to OpenAI itself, as they do unless a client or URL names another server."""
    host = post.host() if isinstance(post, SdkPost) else None
    return host is None or host.rstrip(".") in OFFICIAL["openai"].hosts


class ApiProvider(AsyncClosing):
    """What every provider of an API is, under an event loop and in `minutebook.sync` without one."""

    _api: Api
    _sdk: Sdk
    _blocking = False
    _reasoning: Reasoning = "keep"

    def __init__(
        self,
        *,
        model: str,
        client: object = None,
        base_url: str | None = None,
        api_key: str | None = None,
        decision_interface: Literal["native", "structured"] = "native",
        history: HistoryOptions | Literal[False] | None = None,
        max_output_tokens: int | None = None,
        count: bool = False,
        context: ContextWindow | None = None,
        extra_body: Mapping[str, JSON] | None = None,
        generate: Generate | None = None,
        stream: bool = False,
    ) -> None:
        others = {"client": client, "base_url": base_url, "api_key": api_key, "max_output_tokens": max_output_tokens}
        others |= {"count": count or None, "stream": stream or None, "context": context, "extra_body": extra_body}
        check_alone(generate, decision_interface, {name: given is not None for name, given in others.items()})
        generator = None if generate is None else Generator(generate, self._api, blocking=self._blocking)
        check_history_colour(history, blocking=self._blocking)
        self._generates = generate is not None
        self._post = self._posting(client, base_url, api_key)
        if context is not None and self._api is CHAT and (not count or _is_official(self._post)):
            raise InvalidOption(
                "OpenAI does not count Chat Completions; context needs a server that does, such as llama.cpp's: give "
                "its base_url or a client of it, and count=True",
                option="context",
            )
        self._steps = Steps(
            self._api,
            model=model,
            decision_interface=decision_interface,
            history=history,
            max_output_tokens=max_output_tokens,
            count=count,
            context=context,
            extra_body=extra_body,
            post=self._post,
            generator=generator,
            stream=stream,
            reasoning=self._reasoning,
            blocking=self._blocking,
        )

    def _posting(self, client: object, base_url: str | None, api_key: str | None) -> Post:
        return SdkPost(self._sdk, client, base_url, api_key, blocking=self._blocking)

    @property
    def store(self) -> JournalStore | None:
        """Where the conversations are kept; `None` without a history."""
        return self._steps.store

    def key(self, request: DecisionRequest) -> ConversationKey:
        """Return the address of the invocation's conversation in `store`: to read, delete or recover it."""
        return self._steps.key(request)

    async def decide(self, request: DecisionRequest) -> Decision:
        """
        Return the next decision of an invocation; its response is recorded before this returns.

        Every observation of the invocation so far may be given; those that answer the last decision are recorded with
        the response. Nothing is ever sent twice: after a failure the conversation is as it was before the step.

        Raises:
            AgentDecisionProviderSchemaViolation: an answer without a valid typed decision.
            AgentDecisionProviderUnavailable: transport or provider failure.
            ProviderContextCountUnavailable: the request could not be counted; nothing was generated.
            ProviderContextWindowExceeded: the least that can be sent does not fit `context`; nothing was generated.
            PairingViolation: a call of the last decision has no observation, or the invocation has finished.
            CheckpointRefused: the conversation has not what was decided of a resumed task last, or has its next
                decision, which the program does not take any more; nothing was asked.
            DecisionHistoryError: the history refuses; see its codes.
            InvalidOption: a history without `run_id`, `invocation_id` or `agent_ref`, or capabilities that clash.
        """
        if not self._generates:
            self._post.connect()
        return await self._steps.decide(request)

    async def close(self) -> None:
        """
        Close the client that this provider made for itself; one that was given, and the store, stay open.

        Nothing more need follow, but a later decision makes another client.
        """
        await self._post.close()


class OpenAIDecisionProvider(ApiProvider):
    """
    Decisions by OpenAI's Responses API, stateless at the provider.

    Args:
        model: the model's name.
        client: an `openai.AsyncOpenAI` (in `minutebook.sync` an `openai.OpenAI`), which stays the caller's to close;
            when it is left out one is made at first use from `base_url`, `api_key` and the environment, to be closed
            with `async with provider` or `close`.
        base_url: where our own client sends its requests.
        api_key: our own client's key.
        decision_interface: `native` (tool calling) or `structured` (typed JSON output).
        history: options, `None` for the defaults, or `False` for none: observations are then sent as data.
        max_output_tokens: the provider's bound on what it generates, reasoning included.
        count: count each request before it is generated; the count is in the decision and in the receipt.
        stream: have the answer streamed, so that no time-out strikes a long one; recorded is the whole that it adds up
            to, and a stream that ends early is `AgentDecisionProviderUnavailable` (`stream_cut`).
        context: the model's window, by the caller's word. Each request is counted and takes
            `ceil(tokens × 1.2) + 512 + max_output_tokens` of it; the oldest complete exchanges leave until it fits.
            Needs `max_output_tokens`.
        extra_body: further top-level fields of each request, such as `temperature` or `reasoning`. `tool_choice` and
            what else speaks of tools stays out of those in which none may be called.
        generate: makes each decision in the place of a request, for the structured interface: given the messages and
            the schema that binds the answer, it returns the object that a model would write. What it returns is
            recorded as an assistant's message with that JSON and nothing else; what it raises is
            `AgentDecisionProviderUnavailable` (`generator_failed`), our own errors apart. Options of a request, such
            as a client or `count`, are refused beside it.

    Raises:
        InvalidOption: an option out of its range, or two that exclude each other.
        BlockingMismatch: an `openai.OpenAI` or a store of `minutebook.sync`, which would block the event loop.
    """

    _api = RESPONSES
    _sdk = OPENAI


class OpenAIChatDecisionProvider(ApiProvider):
    """
    Decisions by the Chat Completions API, which local servers speak too: llama.cpp, Ollama, vLLM.

    Options and refusals are those of `OpenAIDecisionProvider`. Counting needs llama.cpp's server: OpenAI itself has
    no counting endpoint for this API. So `context` needs `count=True`, and a `base_url` or `client` of such a server.
    """

    _api = CHAT
    _sdk = OPENAI


class AnthropicDecisionProvider(ApiProvider):
    """
    Decisions by Anthropic's Messages API.

    Options and refusals are those of `OpenAIDecisionProvider`, with an `anthropic.AsyncAnthropic` (in `minutebook.sync`
    an `anthropic.Anthropic`) as the client, and these differences:

    Args:
        max_output_tokens: must be given, thinking included; this API generates nothing without.
        extra_body: further fields, such as `thinking`; `output_config` may hold anything but `format`.
        reasoning: what becomes of thinking that is stale because older exchanges left the window. `strip` leaves it
            out of what is sent, but refuses the step (`DecisionHistoryLimitExceeded`) inside an open tool loop, where
            the API demands it. `drop_block` has the API drop it, with `thinking` of the type `adaptive`. `keep` sends
            it all the same. The record keeps all of it in every case.

    Raises:
        InvalidOption: an option out of its range, or two that exclude each other.
        BlockingMismatch: an `anthropic.Anthropic` or a store of `minutebook.sync`, which would block the event loop.
    """

    _api = ANTHROPIC
    _sdk = ANTHROPIC_SDK

    def __init__(
        self,
        *,
        model: str,
        client: object = None,
        base_url: str | None = None,
        api_key: str | None = None,
        decision_interface: Literal["native", "structured"] = "native",
        history: HistoryOptions | Literal[False] | None = None,
        max_output_tokens: int | None = None,
        count: bool = False,
        context: ContextWindow | None = None,
        extra_body: Mapping[str, JSON] | None = None,
        generate: Generate | None = None,
        stream: bool = False,
        reasoning: Literal["strip", "keep", "drop_block"] = "strip",
    ) -> None:
        check_reasoning(reasoning)
        if reasoning == "drop_block":
            extra_body = _dropping(extra_body)
            self._sdk = msgspec.structs.replace(ANTHROPIC_SDK, headers={"anthropic-beta": DROP_BLOCK_BETA})
        self._reasoning = reasoning
        super().__init__(
            model=model,
            client=client,
            base_url=base_url,
            api_key=api_key,
            decision_interface=decision_interface,
            history=history,
            max_output_tokens=max_output_tokens,
            count=count,
            context=context,
            extra_body=extra_body,
            generate=generate,
            stream=stream,
        )


def _dropping(extra: Mapping[str, JSON] | None) -> Mapping[str, JSON]:
    """Return the further fields with the API's own option to drop stale thinking, on every request alike."""
    thinking = (extra or {}).get("thinking")
    if not isinstance(thinking, dict) or thinking.get("type") != "adaptive":
        raise InvalidOption(
            "reasoning='drop_block' needs extra_body={'thinking': {'type': 'adaptive', …}}; the API has it there alone",
            option="reasoning",
        )
    binding: JSON = {"prefix_mismatch_behavior": "drop_block"}
    return {**(extra or {}), "thinking": {**thinking, "block_binding": binding}}


class GeminiDecisionProvider(ApiProvider):
    """
    Decisions by Gemini's generateContent, posted with httpx2: Google's own client would drop fields and signatures.

    Options and refusals are those of `OpenAIDecisionProvider`, with these differences:

    Args:
        model: the model's name, as in `gemini-4-pro` or, as the API lists it, `models/gemini-4-pro`.
        client: an `httpx2.AsyncClient` (in `minutebook.sync` an `httpx2.Client`), its proxies and time-outs included.
        base_url: the service's address, such as `https://generativelanguage.googleapis.com`; also beside a client.
            A version of the API in its path (`…/v1beta`) is asked for, otherwise it is `v1`.
        api_key: else `GOOGLE_API_KEY` or `GEMINI_API_KEY`; beside a client that proves itself it may be left out.
        extra_body: further fields; `generationConfig` may hold anything but the answer's form and bound, such as
            `temperature` or `thinkingConfig`.

    Raises:
        InvalidOption: an option out of its range, or two that exclude each other.
        BlockingMismatch: an `httpx2.Client` or a store of `minutebook.sync`, which would block the event loop.
    """

    _api = GEMINI

    def _posting(self, client: object, base_url: str | None, api_key: str | None) -> Post:
        return Httpx2Post(client, base_url, api_key, blocking=self._blocking)
