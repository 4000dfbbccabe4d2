"""
A chat's history as it is read back from its record, and remembered for as long as the record stands still.

Only the newest messages behind the history's start are read, as far as its limit reaches, and the instructions that it
keeps from before. Nothing here is recorded or sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minutebook.chat.requests import fitted_request
from minutebook.chat.server import Server
from minutebook.chat.view import View
from minutebook.errors import DecisionHistoryConflict
from minutebook.history import History, Standing
from minutebook.model import codec
from minutebook.model.entries import Entry, recompute_digest
from minutebook.model.summaries import Summary, read_summary
from minutebook.policy.shortening import Backward, Said, kept_within, said_in, shortened
from minutebook.ports import STREAM_PAGE, Page
from minutebook.providers.chat import CHAT_IDENTITY, CHAT_WIRE, message_in
from minutebook.reading import Reading
from minutebook.record_reader import RecordReader

if TYPE_CHECKING:
    from minutebook.chat.options import Settings
    from minutebook.model.bounds import WindowLimits
    from minutebook.model.record import Header
    from minutebook.providers.sdk_http import SdkPost
    from minutebook.stores.journal import JournalStore
    from minutebook.windows import Window


class ChatReading(Reading):
    """One agent's conversation in a store, to be read."""

    def __init__(
        self,
        store: JournalStore,
        id: str,  # noqa: A002 - the field's standard word
        settings: Settings,
        post: SdkPost,
    ) -> None:
        """Name the conversation; nothing is read or written yet."""
        self.store = store
        self.key = store.key(id)
        self.settings = settings
        self._server = Server(settings, post)
        self._known = View()
        self.history = History(
            store.journal,
            store.tails,
            store.tokens,
            store.fresh_id,
            self.key,
            wire=CHAT_WIRE,
            identity=CHAT_IDENTITY,
            limits=settings.request_limits,
        )

    async def view(self) -> View:
        """
        Return the history as it stands; what is being said right now is not in it.

        Raises:
            DecisionHistoryAbsent: the conversation was deleted or has expired meanwhile.
        """
        header = await self.history.header()
        return View() if header is None else await self._view(header)

    async def _view(self, header: Header, newest: Entry | None = None) -> View:
        """
        Return the history before the attempt under way, whose input is `newest` if it was the last to come.

        Raises:
            DecisionHistoryConflict: another face recorded the conversation, so that it is no chat of an agent.
        """
        if header.format != CHAT_IDENTITY:
            raise DecisionHistoryConflict(
                f"the conversation was recorded as {header.format!r}, not by an agent; read it in that format, and "
                "take another conversation= for a chat"
            )
        known = self._known
        if known.digest == header.digest:
            return known
        if newest is not None and known.digest and recompute_digest(known.digest, newest) == header.digest:
            return known
        opening = await self._opening(header)
        view = View(digest=header.digest, said=await self._said(header, opening), opening=opening)
        if header.attempt is None:
            self._known = view
        return view

    def _standing(self, header: Header | None) -> Standing:
        """Return what makes windows of the conversation as it stood with `header`, whatever others do meanwhile."""
        return Standing(self.history, header, self._one_record(header))

    async def _opening(self, header: Header) -> Summary | None:
        seq = (header.attempt.state if header.attempt else header.state).summary
        return read_summary(await self._entry(header, seq)) if seq else None

    async def _said(self, header: Header, opening: Summary | None) -> tuple[Said, ...]:
        """Return the newest messages behind the start, as far as the limit reaches, and the instructions."""
        limit, start = self.settings.max_history_messages, opening.start if opening else 0
        reader = RecordReader(self._one_record(header), self.key)
        page = Page(rows=min(2 * limit + 8, STREAM_PAGE.rows), size=STREAM_PAGE.size)
        backward = Backward(header)

        def done() -> bool:
            instructions = sum(said.instructs for said in backward.said)
            # Either kind fills a history alone; a first instruction from before is looked up.
            return backward.next_seq <= start or max(instructions, len(backward.said) - instructions) >= limit

        await reader.read_until(done, header, backward, page)
        found = {said.seq: said for said in backward.said if said.seq > start}
        for seq in kept_within(opening.kept if opening else (), limit):
            if seq not in found and (kept := said_in(await reader.entry(seq))) is not None:
                found[seq] = kept
        return shortened([found[seq] for seq in sorted(found)], limit)

    async def estimated(self) -> int:
        """
        Return how many tokens the history takes as the next request would hold it; see `Server.estimated`.

        Raises:
            DecisionHistoryLimitExceeded: its newest exchange alone exceeds the limits of a request.
        """
        header = await self.history.header()
        view = View() if header is None else await self._view(header)
        if any(each.role == "user" for each in view.said):
            standing = self._standing(header)

            async def windowed(limits: WindowLimits, floor: int) -> Window:
                return await standing.window(limits, floor=floor)

            fitted = await fitted_request(view.said, self.settings.request_limits, windowed)
            return self._server.estimated(fitted.json)
        messages = [message_in(each.role, each.entry) for each in view.said if each.instructs]
        if view.opening and view.opening.told:
            messages = [{"role": "user", "content": view.opening.told}, *messages]
        return self._server.estimated(codec.encode(messages))
