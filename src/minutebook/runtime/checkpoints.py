"""
Checkpoints: a log of records for each invocation, over the same journals as every conversation (SPEC D25).

The log is a conversation of its own format. Who runs an invocation holds its reservation, so two workers never carry
out the same calls: the second is told `DecisionHistoryBusy`, and one that was declared stopped is fenced at its next
commit, which comes before whatever it would execute next. An intent is durable before anything is executed; an outcome
goes in with the next commit, which follows at once.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minutebook.errors import (
    DecisionHistoryBusy,
    DecisionHistoryCorrupt,
    DecisionHistoryFenced,
)
from minutebook.model.codec import encode
from minutebook.model.entries import Kind, damaged, first_digest
from minutebook.model.keys import ConversationKey
from minutebook.model.proof import check_end
from minutebook.model.record import Delta
from minutebook.model.reservation import check_owner
from minutebook.ports import STREAM_PAGE
from minutebook.reserving import FULL, Reservation
from minutebook.runtime.records import Progress, draft_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from minutebook.model.codec import JSON
    from minutebook.model.entries import Draft, Entry
    from minutebook.model.record import Header
    from minutebook.model.tails import Tokens
    from minutebook.ports import Journal
    from minutebook.runtime.records import Record

FORMAT = "checkpoint/1"

_FREED_BY = (
    "wait for it or, once that worker is stopped, call runtime.recover(run_id, invocation_id, worker_stopped=True)"
)


@dataclass(frozen=True)
class Storage:
    """A store as the runtime uses it: its journal, its namespace, and where its tokens and ids come from."""

    journal: Journal
    namespace: str
    tokens: Tokens
    fresh_id: Callable[[], str]
    ttl_ms: int | None = None
    """For how long it keeps what nobody writes to; `None` for ever, or as long as only its host knows."""

    def key(self, *parts: str) -> ConversationKey:
        """
        Return an address in the namespace that no other list of texts has.

        Raises:
            InvalidId: the parts together exceed 512 bytes.
        """
        named: list[JSON] = [*parts]
        return ConversationKey(self.namespace, encode(named).decode())

    def checkpoint(self, run_id: str, invocation_id: str, agent: str) -> ConversationKey:
        """Return where the log of an invocation is kept."""
        return self.key("checkpoint", run_id, invocation_id, agent)


class Log:
    """The log of one invocation while this worker holds it."""

    def __init__(self, storage: Storage, key: ConversationKey) -> None:
        """Name the log; nothing is read or held yet."""
        self._storage = storage
        self._key = key
        self.address = first_digest(key).hex()[:32]
        self._reservation = Reservation(storage.journal, storage.tokens, key)
        self._noted: list[Draft] = []
        """What no commit was made of yet."""
        self._tried: Delta | None = None
        """A commit of which nobody heard how it ended. As it was, and under its own id, it is written once at most."""
        self._last: Delta | None = None
        """The commit that gives the log back, from the first attempt to write it."""

    async def take(self, *, owned: bool = False) -> Progress:
        """
        Reserve the log and return the state that its newest task is in.

        With `owned` a reservation that is found was the worker's before us, whose place we hold further up: it ends.

        Raises:
            DecisionHistoryBusy: another worker runs this invocation, or one that crashed did.
            DecisionHistoryFenced: this worker was declared stopped before it had read the log.
        """
        try:
            header = (await self._reservation.take(FORMAT, owned=owned)).header
            return self._checked(Progress.of(await self._newest_task(header)))
        except DecisionHistoryBusy as busy:
            since = "" if busy.since_ms is None else f" since {busy.since_ms:,} ms, with epoch {busy.epoch}"
            raise DecisionHistoryBusy(
                f"another worker runs this invocation{since}; {_FREED_BY}", **busy.facts
            ) from None
        except BaseException as error:
            await self.release(error)
            raise

    def _checked(self, progress: Progress) -> Progress:
        if progress.began and progress.address != self.address:
            raise DecisionHistoryCorrupt("the checkpoint holds a task of another invocation; restore a backup")
        return progress

    async def _newest_task(self, header: Header) -> list[Entry]:
        first = header.state.turn
        entries: list[Entry] = []
        after = max(0, first - 2)  # the one before the task proves its first
        while page := await self._storage.journal.oldest(self._key, after, STREAM_PAGE):
            entries += page
            after = page[-1].seq
        try:
            check_end(self._key, header, entries)
        except DecisionHistoryCorrupt:
            # No damage, where somebody recovered the log since it was reserved here, and wrote on.
            check_owner(await self._storage.journal.header(self._key), header.token, header.epoch)
            raise
        task = [entry for entry in entries if entry.seq >= first]
        if [entry.seq for entry in task if entry.kind is Kind.INPUT] != ([first] if first else []):
            raise damaged(first, "does not begin the newest task")
        return task

    async def say_stopped(self) -> bool:
        """
        Note of an idle log that whoever wrote it is stopped, with the mark that a log gets which is held.

        Returns whether that says anything: its newest task has not finished, and nobody said it before or just now.
        """
        try:
            progress = await self.take()
            finished = progress.ended is not None and progress.ended.kind == "finished"
            unsaid = not finished and not progress.recovered
            if unsaid:
                self._tried = Delta(idempotency=self._storage.fresh_id(), abandons="recovered")
            await self.release()
        except (DecisionHistoryBusy, DecisionHistoryFenced):
            return False
        return unsaid

    def note(self, *records: Record) -> None:
        """Keep records for the next commit, in one step."""
        self._noted += [draft_of(record) for record in records]

    async def commit(self) -> None:
        """
        Make what was noted durable.

        Raises:
            DecisionHistoryFenced: this worker was declared stopped; nothing was written, and nothing may be executed.
            DecisionHistoryStoreFull, DecisionHistoryRetentionExceeded: there is no room; nothing was written.
        """
        await self._write_tried()
        if self._noted:
            self._tried = self._delta()
            await self._write_tried()

    async def _write_tried(self) -> None:
        if self._tried is not None:
            await self._reservation.commit(self._tried)
            self._tried = None

    def _delta(self) -> Delta:
        drafts, self._noted = tuple(self._noted), []
        return Delta(drafts=drafts, idempotency=self._storage.fresh_id())

    async def release(self, error: BaseException | None = None) -> None:
        """
        Give the log back, with what was noted; after an `error` that goes on, see `Reservation.give_up`.

        Where that fails it is tried once more, and a note on its error says what came of that.

        Raises:
            DecisionHistoryFenced: this worker was declared stopped; nothing was written.
            DecisionHistoryStoreFull, DecisionHistoryRetentionExceeded: it is given back, and what was noted is lost.
        """
        if error is not None:
            await self._reservation.give_up(error, self._give_back)
        elif self._reservation.held:
            try:
                await self._give_back()
            except BaseException as failed:
                if await self._reservation.give_up(failed, self._give_back):
                    failed.add_note("the run gave its log back all the same; `resume` goes on from there")
                raise

    async def _give_back(self) -> None:
        """Write what was noted and give the log back, in one commit unless an earlier one is in doubt; may be cut."""
        if self._last is None:
            if self._tried is not None and self._noted:
                with contextlib.suppress(*FULL):  # its records are lost, as its caller was told
                    await self._write_tried()
                self._tried = None
            self._last = self._tried or self._delta()
        elif await self._reservation.look_for(self._last.idempotency, release=True):
            return
        await self._reservation.release(self._last)


def conversation_busy(busy: DecisionHistoryBusy) -> DecisionHistoryBusy:
    """Return what a run is told whose conversation is held: without its epoch, which is none of the checkpoint's."""
    since = "" if busy.since_ms is None else f" since {busy.since_ms:,} ms"
    return DecisionHistoryBusy(
        f"another worker or turn holds the conversation of this invocation{since}; {_FREED_BY}, and resume",
        since_ms=busy.since_ms,
    )
