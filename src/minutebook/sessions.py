"""
An engine's sessions: what is recorded of them, what a policy retains, and the contexts made of that.

A session is one conversation of the format `engine/1`, an entry one payload in it, so a turn is there whole or not at
all. What the policy drops leaves the record by a prefix cut, in the commit that makes it too much.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Generic, cast

import msgspec

from minutebook.engine_config import HistoryConfig
from minutebook.errors import DecisionHistoryAbsent, DecisionHistoryConflict, InvalidOption
from minutebook.history import History
from minutebook.model.bounds import WindowLimits
from minutebook.model.colours import check_store_colour
from minutebook.model.entries import ABANDONED, INPUT
from minutebook.model.keys import check_given_id
from minutebook.model.turns import (
    FORMAT,
    HistoryEntry,
    LLMContextMessage,
    Meta,
    Written,
    checked_entry,
    count_chars,
    projection,
)
from minutebook.policy.retention import KnownSessions, Retained, RetainedScan, Retention
from minutebook.ports import STREAM_PAGE
from minutebook.providers.wire import wire_format
from minutebook.record_reader import RecordReader
from minutebook.stores.streams import OneRecord, stream_entries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from minutebook.history import Hold
    from minutebook.model.entries import Entry
    from minutebook.model.keys import ConversationKey
    from minutebook.model.record import Header
    from minutebook.ports import Journal


class _Projected:
    """
    What the entries of one reading project to, by their place.

    Where the reading begins anew, the entries that it meets again are not projected again (SPEC E4).
    """

    def __init__(self, project: Callable[[Entry], list[LLMContextMessage]]) -> None:
        self.messages: dict[int, list[LLMContextMessage]] = {}
        self._project = project
        self._by_digest: dict[bytes, list[LLMContextMessage]] = {}

    def __call__(self, stored: Entry) -> int:
        """Return how many characters an entry projects to."""
        messages = self._by_digest.get(stored.digest)
        if messages is None:
            messages = self._by_digest[stored.digest] = self._project(stored)
        self.messages[stored.seq] = messages
        return count_chars(messages)


class HistoryManager(Generic[Meta]):
    """
    The entries of sessions, and the contexts made of them.

    Used without an `Engine` it takes any bound; one that is not positive retains nothing (SPEC E5).
    """

    _blocking = False

    def __init__(self, config: HistoryConfig[Meta]) -> None:
        """
        Keep the policy; nothing is read or written yet.

        Raises:
            InvalidOption: it is none.
            BlockingMismatch: its store is one of the other colour.
        """
        if not isinstance(config, HistoryConfig):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption("config is a HistoryConfig with a store of your choice", option="config")
        check_store_colour(config.store, "history", blocking=self._blocking)
        self.config = config
        self._store = config.core_store()
        self._journal = self._store.journal
        self._written = Written(config.metadata)
        self._retention = Retention(config.max_entries, config.max_chars)
        self._known = KnownSessions()

    async def append(self, session: str, entry: HistoryEntry[Meta], *, id: str = "") -> HistoryEntry[Meta]:  # noqa: A002
        """
        Record an entry, transformed, and return it as it is recorded; durable when this returns.

        What the bounds drop leaves in the same commit. The same entry again under one `id` is recorded once, and comes
        back as it was recorded.

        Raises:
            InvalidMessage: it is no entry.
            InvalidValue: JSON cannot hold a part of it exactly, as given under an `id` or as transformed.
            DecisionHistoryBusy: a turn of the session, or another append, is under way.
            DecisionHistoryConflict: the session is no engine's, or the `id` stands for another entry.
            DecisionHistoryAbsent: what was recorded under this `id` has left the record since.
        """
        given = checked_entry(entry, "what is recorded is")

        async def make() -> HistoryEntry[Meta]:
            return given

        return await self.record(session, make, id=id, given=given, generates=False)

    async def get_llm_context(self, session: str) -> list[LLMContextMessage]:
        """
        Return what a model sees of the session's retained entries, oldest first; empty for a session without any.

        Each retained entry is projected once, and no other, but for one whose characters this manager has to learn to
        tell that it is not retained (SPEC E4). Reads only; a turn may be under way meanwhile.

        Raises:
            DecisionHistoryConflict: the session is no engine's.
        """
        key = self._store.key(session)
        projected = _Projected(lambda stored: projection(self._written.entry(stored), self.config.derive_llm_context))
        while True:
            known = self._known.get(key)  # before the header, so that it is of no newer record
            header = await self._header(key)
            if header is None:
                return []
            try:
                shown = RetainedScan(self._retention, header, projected, known, shows=True)
                found = await self._scanned(key, header, shown)
            except DecisionHistoryAbsent:  # what was to be read next has left since: the session is read anew
                continue
            bounded = self._retention != Retention()  # else nobody asks what an entry costs
            if bounded and self._known.get(key) is known:  # else somebody knows of a newer entry by now
                self._known.put(key, found)
            return [message for seq, _ in found.costs for message in projected.messages[seq]]

    async def entries(self, session: str) -> AsyncIterator[HistoryEntry[Meta]]:
        """
        Stream the entries that the record of a session holds, oldest first, in bounded memory.

        Raises:
            DecisionHistoryAbsent: the session was deleted or has expired meanwhile, or what comes next has left it.
            DecisionHistoryConflict: the session is no engine's.
        """
        key = self._store.key(session)
        async for stored in stream_entries(self._journal, key, await self._header(key)):
            if stored.kind is INPUT:
                yield self._written.entry(stored)

    async def _header(self, key: ConversationKey) -> Header | None:
        header = await self._journal.header(key)
        if header is not None and header.format != FORMAT:
            raise DecisionHistoryConflict(f"the conversation was recorded as {header.format!r}, not by an engine")
        return header

    # --- recording ---------------------------------------------------------------------------------------------------

    async def record(
        self,
        session: str,
        make: Callable[[], Awaitable[HistoryEntry[Meta]]],
        *,
        id: str = "",  # noqa: A002
        given: HistoryEntry[Meta] | None = None,
        generates: bool = True,
    ) -> HistoryEntry[Meta]:
        """
        Have an entry made while the session is reserved, record it as `append` does, and return it as it is recorded.

        Whatever fails goes on, and nothing is recorded but, where `make` `generates`, the mark of a failed attempt: one
        for all that fail in a row, where bounds take what is too much out of the record (SPEC E6). Under an `id` that
        was recorded nothing is made or transformed, and what was recorded is returned. A digest of what was `given` for
        it is kept with the id, and has to be the same then: an entry with all of that in it.

        Raises:
            InvalidMessage: `make`, or the policy's transform, returns something else than an entry.
            InvalidValue: JSON cannot hold a part of the entry exactly or, under an `id`, of what was given.
            DecisionHistoryBusy: as with `append`; nothing is made then.
            DecisionHistoryConflict: the session is no engine's, or the `id` stands for another entry.
            DecisionHistoryAbsent: what was recorded under this `id` has left the record since.
        """
        key = self._store.key(session)
        idempotency = check_given_id(id, "append id")
        digest = self._written.digest(given) if idempotency else b""
        async with await self._history(key).open(attempt=False) as hold:
            if idempotency and await self._journal.receipt(key, idempotency) is not None:
                return await self._again(hold, idempotency, digest)
            hold.generated = generates and not self._is_marked(hold)
            entry = self._transformed(await make())
            await self._keep(hold, entry, idempotency, digest)
        return entry

    async def _again(self, hold: Hold, idempotency: str, given: bytes) -> HistoryEntry[Meta]:
        """Return what was recorded under an id, of the same that is given now."""
        again = await hold.conclude((), idempotency=idempotency, given=given)
        seq, cut = again.receipt.first, again.header.cut.seq
        if seq <= cut:
            raise DecisionHistoryAbsent(
                f"what was recorded under this id, entry {seq}, has left the record; take a new id for a new entry",
                seq=seq,
                cut=cut,
            )
        return self._written.entry(await hold.history.entry(seq))

    async def _keep(self, hold: Hold, entry: HistoryEntry[Meta], idempotency: str, given: bytes) -> None:
        """Record an entry, and have what the bounds drop leave in the same commit."""
        draft = self._written.draft(entry)
        if self._retention == Retention():
            await hold.conclude((draft,), idempotency=idempotency, given=given)
            return
        key, chars = hold.history.key, self._cost(entry)
        known = await self._retained(key, hold.header)
        self._known.put(key, known)  # whatever comes of the commit, no entry is costed again
        dropped = known.excess(self._retention, chars)
        cut = 0 if self.config.keep_truncated else known.cut(dropped, hold.header)
        committed = await hold.conclude((draft,), cut=cut, idempotency=idempotency, given=given)
        if committed.written:
            self._known.put(key, known.grown(committed.receipt.last, committed.receipt.digest, chars, dropped))

    def _is_marked(self, hold: Hold) -> bool:
        """
        Return whether the record ends with the mark of a failed attempt, in a session that is to stay within bounds.

        A cut takes a prefix, so it reaches no mark behind an entry that stays. A provider that is away for long would
        have them grow without an end.
        """
        capped = self._retention != Retention() and not self.config.keep_truncated
        return capped and any(entry.kind is ABANDONED for entry in hold.tail.entries[:1])

    def _transformed(self, made: HistoryEntry[Meta]) -> HistoryEntry[Meta]:
        entry = checked_entry(made, "what is recorded is")
        transform = self.config.transform_entry
        return entry if transform is None else checked_entry(transform(entry), "transform_entry returns")

    def _history(self, key: ConversationKey) -> History:
        store = self._store
        # Its windows are never asked for: a context is what the host's function makes of whole entries. So the format
        # of messages only gives the history a name, and of a session's end as little is remembered as may be.
        return History(
            self._journal,
            store.tails,
            store.tokens,
            store.fresh_id,
            key,
            wire=wire_format("openai-chat"),
            identity=FORMAT,
            limits=WindowLimits(max_messages=1, max_bytes=1),
        )

    # --- what is retained --------------------------------------------------------------------------------------------

    def _cost(self, entry: HistoryEntry[Meta]) -> int:
        """Return how many characters an entry projects to; where no bound counts them, it is not projected."""
        counted = self.config.max_chars is not None and not self._retention.is_none
        return count_chars(projection(entry, self.config.derive_llm_context)) if counted else 0

    async def _retained(self, key: ConversationKey, header: Header) -> Retained:
        """Return what the session retains, by numbers; what is known of it already is not costed again (SPEC E4)."""
        known = self._known.get(key)
        if known is not None and known.digest == header.digest:
            return known
        costed = RetainedScan(
            self._retention, header, lambda stored: self._cost(self._written.entry(stored)), known, shows=False
        )
        return await self._scanned(key, header, costed)

    async def _scanned(self, key: ConversationKey, header: Header, scan: RetainedScan) -> Retained:
        """Return what a scan of the record that `header` describes finds."""
        reader = RecordReader(cast("Journal", OneRecord(self._journal, header)), key)
        page = msgspec.structs.replace(STREAM_PAGE, rows=self._retention.rows(STREAM_PAGE.rows))
        await reader.read_until(lambda: scan.done, header, scan, page)
        return scan.retained()
