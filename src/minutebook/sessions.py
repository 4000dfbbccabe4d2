"""
An engine's sessions: what is recorded of them, what a policy retains, and the contexts made of that.

A session is one conversation of the format `engine/1`, an entry one payload in it, so a turn is there whole or not at
all. What the policy drops leaves the record by a prefix cut, in the commit that makes it too much.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeAlias

import msgspec

from minutebook.errors import (
    DecisionHistoryAbsent,
    DecisionHistoryConflict,
    InvalidOption,
)
from minutebook.history import History
from minutebook.model.bounds import WindowLimits
from minutebook.model.colours import check_store_colour
from minutebook.model.cuts import has_left
from minutebook.model.entries import INPUT, damaged
from minutebook.model.keys import check_id
from minutebook.model.pause import pause
from minutebook.model.proof import check_links
from minutebook.model.shown import type_alone
from minutebook.model.turns import (
    HistoryEntry,
    LLMContextMessage,
    Meta,
    Written,
    checked_projection,
    default_projection,
)
from minutebook.policy.retention import Retained, Retention
from minutebook.ports import STREAM_PAGE, Page
from minutebook.providers.wire import wire_format
from minutebook.stores.journal import JournalStore
from minutebook.stores.streams import standing, stream_entries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from minutebook.model.entries import Entry
    from minutebook.model.keys import ConversationKey
    from minutebook.model.record import Header

FORMAT = "engine/1"
KNOWN_SESSIONS = 1024
"""Of how many sessions a manager remembers what their entries cost, the most recently written to."""

Defaults: TypeAlias = Callable[[], Sequence[LLMContextMessage]]
Transform: TypeAlias = Callable[[HistoryEntry[Meta]], HistoryEntry[Meta]]
Derive: TypeAlias = Callable[[HistoryEntry[Meta], Defaults], Sequence[LLMContextMessage]]


class HistoryConfig(msgspec.Struct, Generic[Meta], frozen=True, kw_only=True):
    """
    What an engine keeps, how much of it, and what a model sees of it; generic in the metadata of entries (SPEC E1).

    Raises:
        InvalidOption: no store or none with a namespace, a bound that is no integer, a function that cannot be called.
    """

    store: JournalStore
    """Where sessions are kept; required, so that nobody loses them by a default (SPEC E2)."""
    max_entries: int | None = None
    """The most entries of a session; `None` is no bound (SPEC E6)."""
    max_chars: int | None = None
    """The most characters (Unicode code points) that the projections of a session's entries have together (SPEC E5)."""
    transform_entry: Transform[Meta] | None = None
    """Given every entry before it is recorded, to strip fields or add metadata; returns what is recorded (SPEC E7)."""
    derive_llm_context: Derive[Meta] | None = None
    """
    Given an entry and `defaults`, which returns its default projection; returns the messages that a model sees of it:
    none, one or many (SPEC E4). It is called once for each entry of a context and once to cost one; keep it cheap and
    free of side effects.
    """
    keep_truncated: bool = False
    """Keep what the bounds drop in the record, out of the context; else it leaves the record for good (SPEC E6)."""
    metadata: type[Meta] | None = None
    """The type that stored metadata is read as; without it metadata is plain JSON, as it was given."""

    __repr__ = type_alone

    def __post_init__(self) -> None:
        if not isinstance(self.store, JournalStore):  # pyright: ignore[reportUnnecessaryIsInstance]
            check_store_colour(self.store, "store", blocking=False)
            raise InvalidOption(
                f"store is a store of minutebook, not {type(self.store).__name__}; for local work give "
                "create_in_memory_store()",
                option="store",
            )
        _ = self.store.namespace  # refused where there is none (SPEC D21)
        Written(self.metadata)
        for name in ("max_entries", "max_chars"):
            if type(getattr(self, name)) not in (int, type(None)):
                raise InvalidOption(f"{name} is an int, or None for no bound", option=name)
        for name in ("transform_entry", "derive_llm_context"):
            if not (getattr(self, name) is None or callable(getattr(self, name))):
                raise InvalidOption(f"{name} is a function", option=name)
        if type(self.keep_truncated) is not bool:
            raise InvalidOption("keep_truncated is True or False", option="keep_truncated")


class _Shown(msgspec.Struct, frozen=True):
    """One retained entry: where it stands, what a model sees of it, and how many characters that is."""

    seq: int
    messages: list[LLMContextMessage]
    chars: int

    __repr__ = type_alone


class HistoryManager(Generic[Meta]):
    """
    The entries of sessions, and the contexts made of them.

    Used without an `Engine` it takes any bound; one that is not positive retains nothing (SPEC E5).
    """

    _blocking = False

    def __init__(self, config: HistoryConfig[Meta]) -> None:
        """Keep the policy; nothing is read or written yet."""
        check_store_colour(config.store, "history", blocking=self._blocking)
        self.config = config
        self._journal = config.store.journal
        self._written = Written(config.metadata)
        self._retention = Retention(config.max_entries, config.max_chars)
        self._known: OrderedDict[ConversationKey, Retained] = OrderedDict()

    async def append(self, session: str, entry: HistoryEntry[Meta], *, id: str = "") -> HistoryEntry[Meta]:  # noqa: A002
        """
        Record an entry, transformed, and return it as it is recorded; durable when this returns.

        What the bounds drop leaves in the same commit. The same entry again under one `id` is recorded once.

        Raises:
            DecisionHistoryBusy: a turn of the session, or another append, is under way.
            DecisionHistoryConflict: the session is no engine's, or the `id` stands for another entry.
        """

        async def given() -> HistoryEntry[Meta]:
            return entry

        return await self._record(session, given, check_id(id, "append id") if id else "", generates=False)

    async def get_llm_context(self, session: str) -> list[LLMContextMessage]:
        """
        Return what a model sees of the session's retained entries, oldest first; empty for a session without any.

        Each retained entry is projected once (SPEC E4). Reads only; a turn may be under way meanwhile.

        Raises:
            DecisionHistoryConflict: the session is no engine's.
        """
        key = self.config.store.key(session)
        while True:
            header = await self._header(key)
            try:
                shown, _ = (
                    await self._newest(key, header, self._known.get(key), costing=False) if header else ([], False)
                )
            except DecisionHistoryAbsent:  # what was to be read next has left since: the session is read anew
                continue
            return [message for each in reversed(shown) for message in each.messages]

    async def entries(self, session: str) -> AsyncIterator[HistoryEntry[Meta]]:
        """
        Stream the entries that the record of a session holds, oldest first, in bounded memory.

        Raises:
            DecisionHistoryAbsent: the session was deleted or has expired meanwhile, or what comes next has left it.
            DecisionHistoryConflict: the session is no engine's.
        """
        key = self.config.store.key(session)
        async for stored in stream_entries(self._journal, key, await self._header(key)):
            if stored.kind is INPUT:
                yield self._written.entry(stored)

    async def _header(self, key: ConversationKey) -> Header | None:
        header = await self._journal.header(key)
        if header is not None and header.format != FORMAT:
            raise DecisionHistoryConflict(f"the conversation was recorded as {header.format!r}, not by an engine")
        return header

    # --- recording ---------------------------------------------------------------------------------------------------

    async def _record(
        self, session: str, make: Callable[[], Awaitable[HistoryEntry[Meta]]], idempotency: str, *, generates: bool
    ) -> HistoryEntry[Meta]:
        """
        Have an entry made while the session is reserved, and record it with what the bounds drop.

        Whatever fails goes on, and nothing is recorded but, where `make` generates, the mark of a failed attempt.
        """
        key = self.config.store.key(session)
        hold = await self._history(key).open(attempt=False)
        known: Retained | None = None
        try:
            hold.generated = generates
            made = await make()
            entry = made if self.config.transform_entry is None else self.config.transform_entry(made)
            draft, chars = self._written.draft(entry), 0
            cut = dropped = 0
            if self._retention != Retention():
                chars = self._shown(0, entry, costing=True).chars
                known = await self._retained(key, hold.header)
                dropped = known.excess(self._retention, chars)
                cut = self._cut(known, dropped, hold.header)
            committed = await hold.commit((draft,), cut=cut, release=True, idempotency=idempotency)
            if known is not None and committed.written:
                known.add(committed.header.entries, committed.header.digest, chars)
                known.drop(dropped)
        except BaseException as error:
            await hold.abandon(error)
            raise
        finally:
            self._remember(key, known)
        return entry

    def _history(self, key: ConversationKey) -> History:
        store = self.config.store
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
            low_water=1.0,
        )

    def _cut(self, known: Retained, dropped: int, header: Header) -> int:
        """Return up to which entry all leaves, once so many of what is retained are dropped; 0 where nothing does."""
        if self.config.keep_truncated:
            return 0
        staying = known.place(dropped)
        end = header.entries + 1
        cut = staying - 1 if staying else end if dropped > len(known.costs) else end - 1
        return cut if cut > header.cut.seq else 0

    # --- what is retained --------------------------------------------------------------------------------------------

    def _shown(self, seq: int, entry: HistoryEntry[Meta], *, costing: bool) -> _Shown:
        """Return an entry projected; where it is only costed, and no bound counts characters, it is not."""
        if costing and (self.config.max_chars is None or self._retention.is_none):
            return _Shown(seq, [], 0)
        derive = self.config.derive_llm_context
        given = default_projection(entry) if derive is None else derive(entry, lambda: default_projection(entry))
        messages = checked_projection(given)
        return _Shown(seq, messages, sum([len(message["content"]) for message in messages]))

    async def _retained(self, key: ConversationKey, header: Header) -> Retained:
        """Return what the session retains, by numbers; what is known of it already is not costed again (SPEC E4)."""
        known = self._known.pop(key, None)
        if known is None or known.digest != header.digest:
            newer, met = await self._newest(key, header, known, costing=True)
            older = known.costs if known is not None and met else ()
            costs = [*older, *((each.seq, each.chars) for each in reversed(newer))]
            known = Retained(header.entries, header.digest, costs)
        known.begin_behind(header.cut.seq)
        return known

    async def _newest(
        self, key: ConversationKey, header: Header, known: Retained | None, *, costing: bool
    ) -> tuple[list[_Shown], bool]:
        """
        Return the retained entries, newest first, and whether they go back to what is `known` and end there.

        To cost entries, what is known ends them; to show them, it tells how many there are, so that the first that is
        retained no more is not projected to find that out.
        """
        found: list[_Shown] = []
        most = known.count_at(header.digest) if known is not None and not costing else None
        newer: tuple[Entry, ...] = ()
        chars, before = 0, header.entries + 1
        page = Page(rows=self._retention.rows(STREAM_PAGE.rows), messages=STREAM_PAGE.messages, size=STREAM_PAGE.size)
        while before > header.cut.seq + 1 and not self._retention.is_none:
            entries = await self._journal.newest(key, before, page)
            now = await standing(self._journal, key, header)
            if not entries:
                raise has_left(before - 1, now) if before <= now.cut.seq + 1 else damaged(before - 1, "is missing")
            check_links(key, (*entries[::-1], *newer), now.cut)
            newer = entries[-1:]
            for stored in entries:
                if costing and known is not None and (stored.seq, stored.digest) == (known.seq, known.digest):
                    return found, True
                if len(found) == most:
                    return found, False
                if stored.kind is INPUT:
                    shown = self._shown(stored.seq, self._written.entry(stored), costing=costing)
                    chars += shown.chars
                    if not self._retention.holds(len(found) + 1, chars):
                        return found, False
                    found.append(shown)
            before = entries[-1].seq
            await pause()
        return found, False

    def _remember(self, key: ConversationKey, known: Retained | None) -> None:
        if known is not None:
            self._known[key] = known
            while len(self._known) > KNOWN_SESSIONS:
                self._known.popitem(last=False)
