"""
Who answers a chat: one server's model, asked over the host's client, and what its bills tell of tokens.

Nothing is known here of histories, turns or windows; what is asked comes as a request's messages.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from minutebook.errors import ProviderError
from minutebook.model import codec
from minutebook.model.emitting import emit
from minutebook.policy.estimates import Bills
from minutebook.providers.chat import exact_counter, read_answer, weighed, without_foreign
from minutebook.providers.decision import Ask, joined
from minutebook.providers.openai_chat import CHAT
from minutebook.providers.step import merged, opened
from minutebook.providers.streams import Deltas, assembled

if TYPE_CHECKING:
    from minutebook.chat.options import Settings
    from minutebook.model.decisions import DecisionRequest
    from minutebook.providers.sdk_http import SdkPost


class Server:
    """Who answers: one server's model, asked over the host's client, and what its bills tell of tokens."""

    def __init__(self, settings: Settings, post: SdkPost) -> None:
        """Nothing is asked yet."""
        self.settings = settings
        self._post = post
        self._extra = settings.extra
        self._bills = Bills(weighed, lambda: exact_counter(settings.model))

    def ask(self, messages: bytes, request: DecisionRequest) -> Ask:
        """Return a request of the agent's with these messages."""
        settings = self.settings
        return Ask(
            model=settings.model,
            instructions=settings.prompt,
            messages=without_foreign(messages, self._post.host()),
            tools=request.capabilities,
            schema={},
            max_output_tokens=settings.max_output_tokens,
        )

    async def answer(self, ask: Ask, *, streamed: bool) -> bytes:
        """
        Return the body of an answer; where it is streamed, its text is emitted while it comes in.

        What comes in another way, as from a server that does not stream, is emitted once all of it is there.
        """
        fields = merged(CHAT, ask, self._extra)
        if not streamed:
            return await self._post(CHAT.path, joined(fields))
        deltas, emitted = Deltas(), 0

        async def heard(piece: bytes) -> None:
            nonlocal emitted
            if text := deltas.take(piece):
                emitted += len(text)
                await emit(text)

        body = await assembled(CHAT, await self._post(CHAT.path, joined(fields | CHAT.stream.fields), heard))
        with contextlib.suppress(ProviderError):  # whoever reads the body meets that again
            if rest := read_answer(body)[1][emitted:]:
                await emit(rest)
        return body

    async def written(self, instructions: str, told: object) -> str:
        """
        Return what the model for summaries writes of `told`, which goes as a user's data.

        The agent's bound on answers does not go along: a summary that was cut is none.
        """
        ask = Ask(
            model=self.settings.summarization_model or self.settings.model,
            instructions=instructions,
            messages=codec.encode([{"role": "user", "content": codec.encode(told).decode()}]),
            tools=(),
            schema={},
            max_output_tokens=None,
        )
        payload = await self._post(CHAT.path, joined(merged(CHAT, ask, self._extra)))
        opened(CHAT, payload)  # a refusal is an answer to a person, and so is a text that was cut; neither summarises
        return read_answer(payload)[1].strip()

    def bill(self, ask: Ask, billed: int | None) -> None:
        """Remember what a request was billed at, for the next estimate."""
        if billed:
            fields = CHAT.fields(ask)
            self._bills.add(fields["messages"], fields.get("tools", b""), billed)

    def estimated(self, messages: bytes, *, leaving_out: int = 0) -> int:
        """
        Return how many tokens messages take, the newest ones left out: by a tokenizer, or by a rule that bills correct.
        """
        return self._bills.estimated(messages, leaving_out=leaving_out)
