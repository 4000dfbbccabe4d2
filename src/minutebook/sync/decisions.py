"""Decision providers for blocking callers, over the blocking clients of the same SDKs."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from minutebook import decisions as asynchronous
from minutebook.model.colours import Closing, check_plain
from minutebook.sync.driving import Over, blocking, plain
from minutebook.sync.stores import JournalStore, core_of, store_over

if TYPE_CHECKING:
    from collections.abc import Mapping

    from minutebook.model.codec import JSON
    from minutebook.model.context import ContextWindow
    from minutebook.ports import Generate
    from minutebook.stores import journal


class HistoryOptions(asynchronous.HistoryOptions, frozen=True, kw_only=True):
    """What a provider keeps and sends: see `minutebook.HistoryOptions`; `summarize` is a plain function here."""

    store: JournalStore | None = None  # type: ignore[assignment]  # pyright: ignore[reportIncompatibleVariableOverride]
    """Where conversations are kept, a store of `minutebook.sync`."""

    def __post_init__(self) -> None:
        check_plain(self.summarize, "summarize")
        self.core_store()
        super().__post_init__()

    def core_store(self) -> journal.JournalStore | None:
        """Return the store that the given one drives; `None` without one."""
        return None if self.store is None else core_of(self.store)


class _Responses(asynchronous.OpenAIDecisionProvider):
    """The coroutines of a Responses provider over a client that never suspends them."""

    _blocking = True


class _Chat(asynchronous.OpenAIChatDecisionProvider):
    """The coroutines of a Chat Completions provider over a client that never suspends them."""

    _blocking = True


class _Anthropic(asynchronous.AnthropicDecisionProvider):
    """The coroutines of an Anthropic provider over a client that never suspends them."""

    _blocking = True


class _Gemini(asynchronous.GeminiDecisionProvider):
    """The coroutines of a Gemini provider over a client that never suspends them."""

    _blocking = True


class _ApiProvider(Closing, Over[asynchronous.ApiProvider]):
    """What every provider is for blocking callers; `_made` is the asynchronous one that each drives."""

    _made: ClassVar[type[asynchronous.ApiProvider]]

    def __init__(
        self,
        *,
        model: str,
        client: object = None,
        base_url: str | None = None,
        api_key: str | None = None,
        decision_interface: Literal["native", "structured"] = "native",
        history: asynchronous.HistoryOptions | Literal[False] | None = None,
        max_output_tokens: int | None = None,
        count: bool = False,
        context: ContextWindow | None = None,
        extra_body: Mapping[str, JSON] | None = None,
        generate: Generate | None = None,
        stream: bool = False,
    ) -> None:
        self._core = self._made(
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

    @property
    def store(self) -> JournalStore | None:
        """Where the conversations are kept; `None` without a history."""
        return store_over(self._core.store)

    key = plain(asynchronous.ApiProvider.key)
    decide = blocking(asynchronous.ApiProvider.decide)
    close = blocking(asynchronous.ApiProvider.close)


class OpenAIDecisionProvider(_ApiProvider):
    """Decisions by OpenAI's Responses API with an `openai.OpenAI` client: see `minutebook.OpenAIDecisionProvider`."""

    _made = _Responses


class OpenAIChatDecisionProvider(_ApiProvider):
    """Decisions by the Chat Completions API with a blocking client: see `minutebook.OpenAIChatDecisionProvider`."""

    _made = _Chat


class AnthropicDecisionProvider(_ApiProvider):
    """Decisions by Anthropic with an `anthropic.Anthropic` client: see `minutebook.AnthropicDecisionProvider`."""

    def __init__(
        self,
        *,
        model: str,
        client: object = None,
        base_url: str | None = None,
        api_key: str | None = None,
        decision_interface: Literal["native", "structured"] = "native",
        history: asynchronous.HistoryOptions | Literal[False] | None = None,
        max_output_tokens: int | None = None,
        count: bool = False,
        context: ContextWindow | None = None,
        extra_body: Mapping[str, JSON] | None = None,
        generate: Generate | None = None,
        stream: bool = False,
        reasoning: Literal["strip", "keep", "drop_block"] = "strip",
    ) -> None:
        self._core = _Anthropic(
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
            reasoning=reasoning,
        )


class GeminiDecisionProvider(_ApiProvider):
    """Decisions by Gemini with an `httpx2.Client`: see `minutebook.GeminiDecisionProvider`."""

    _made = _Gemini
