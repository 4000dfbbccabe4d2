"""
The store that is written once over any journal: what hosts hold in their hands.

A store adds to a journal what is the same for all of them: the namespace from trusted configuration, the contract of
`transact`, snapshots, streaming, and what one process remembers between two calls.
"""

from __future__ import annotations

import copy
import os
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from minutebook.errors import (
    DecisionHistoryAbsent,
    DecisionHistoryCorrupt,
    DecisionHistoryRegressed,
    InvalidOption,
    MinutebookError,
)
from minutebook.model.bounds import check_count, check_place
from minutebook.model.clock import read_clock
from minutebook.model.colours import AsyncClosing, check_store_colour
from minutebook.model.keys import ConversationKey, check_id
from minutebook.model.record import Delta, Receipt, Record
from minutebook.model.reservation import check_idle
from minutebook.model.summaries import dropped_summary, read_summary
from minutebook.model.tails import Tails, Tokens
from minutebook.ports import ONE_ENTRY
from minutebook.reserving import Reservation
from minutebook.stores.aside import Aftermath
from minutebook.stores.clock import system_clock
from minutebook.stores.sections import inside
from minutebook.stores.streams import stream_pages, stream_proved, stream_receipts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from os import PathLike
    from typing import Self

    from minutebook.model.colours import Colour
    from minutebook.model.entries import Draft, Entry
    from minutebook.model.record import Header
    from minutebook.model.transfer import Copied, Imported
    from minutebook.ports import Journal, Listing, Totals
    from minutebook.stores.transfer import Check, Progress

Result = TypeVar("Result")

FREEING_SECONDS = 5.0
"""After this a store that is closed gives nothing back any more once that fails."""


class JournalStore(AsyncClosing):
    """
    A store over one journal.

    Args:
        journal: where the logs live.
        namespace: the tenant or application, from trusted configuration and never from model input (SPEC D21). It may
            be left out here and given with the history's options instead; until then no conversation is reachable.
        clock: gives Unix milliseconds: the journal's.
    """

    _colour: Colour | None = None  # whether its journal needs an event loop or blocks; see `driven`

    def __init__(
        self, journal: Journal, *, namespace: str | None = None, clock: Callable[[], int] = system_clock
    ) -> None:
        """Check the namespace; nothing is opened here that the journal has not opened."""
        if isinstance(journal, type):
            raise InvalidOption(f"journal is the class {journal.__name__} itself; make one of it", option="journal")
        self.journal = journal
        self._namespace = None if namespace is None else check_id(namespace, "namespace")
        self.clock = clock
        """Gives Unix milliseconds, unchecked: see `read_clock`."""
        self.tails = Tails()
        self._aftermath = Aftermath(tasks_alone=getattr(journal, "tasks_alone", True))
        self._process = os.getpid()
        self.tokens = Tokens(os.urandom(16).hex(), self._aftermath.from_here)

    @property
    def namespace(self) -> str:
        """
        The namespace that every conversation of this store is in.

        Raises:
            InvalidOption: none was given.
        """
        if self._namespace is None:
            raise InvalidOption(
                "this store has no namespace; give it on the store or in the options", option="namespace"
            )
        return self._namespace

    @property
    def durable(self) -> bool:
        """
        Whether a commit that returned survives a power cut, as far as this is known.

        A store on a server knows it once it has asked that for something.
        """
        return bool(getattr(self.journal, "durable", False))

    def within(self, namespace: str) -> Self:
        """
        Return this store for `namespace`.

        Raises:
            InvalidOption: the store has another namespace already (SPEC D21).
        """
        check_id(namespace, "namespace")
        if self._namespace not in (None, namespace):
            raise InvalidOption("the store and the options name two different namespaces", option="namespace")
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__, _namespace=namespace)
        return view

    def key(self, id: str) -> ConversationKey:  # noqa: A002 - the field's standard word
        """Return the address of a conversation in this store's namespace."""
        return ConversationKey(self.namespace, id)

    def fresh_id(self) -> str:
        """Return an unguessable idempotency id; ids sort by the millisecond they were made in."""
        # Ids in order go side by side into an index; random ones would dirty a page of it each (figure 8).
        return f"{system_clock():012x}{os.urandom(10).hex()}"

    async def read(self, key: ConversationKey) -> Record | None:
        """
        Return a detached snapshot, or `None` when absent or expired; renews nothing. May be large: see `entries`.

        Raises:
            DecisionHistoryBusy: the conversation is active (SPEC D23).
        """
        await self._aftermath.finished()
        header = await self.journal.header(self._own(key))
        if header is None:
            return None
        check_idle(header, read_clock(self.clock))
        if not header.entries:
            return None  # a first write was reserved and then failed: nothing was ever recorded
        pages = stream_pages(self.journal, key, header)
        try:
            entries = [entry async for page in pages for entry in page if entry.seq <= header.entries]
        except DecisionHistoryAbsent as gone:
            return await self.read(key) if "cut" in gone.facts else None
        end, digest = (entries[-1].seq, entries[-1].digest) if entries else (header.cut.seq, header.cut.digest)
        if len(entries) != header.retained or digest != header.digest:
            raise DecisionHistoryCorrupt(
                f"the record ends at entry {end}, its header at {header.entries}; verify the store", seq=end + 1
            )
        return Record(header=header, entries=tuple(entries))

    async def entries(self, key: ConversationKey, *, after: int = 0) -> AsyncIterator[Entry]:
        """
        Stream the entries above `after`, oldest first, in bounded memory; none where the conversation is absent.

        Raises:
            DecisionHistoryAbsent: it was deleted or has expired meanwhile; nothing of another one was given out. Or
                what comes next has left the record by a cut; then `cut` is the newest entry that did.
        """
        check_place(after, "after")
        async for page in stream_pages(self.journal, key, await self.header(key), after):
            for entry in page:
                yield entry

    async def receipts(self, key: ConversationKey, *, after: int = 0) -> AsyncIterator[Receipt]:
        """
        Stream the receipts of the versions above `after`, oldest first; none where the conversation is absent.

        Raises:
            DecisionHistoryAbsent: it was deleted or has expired meanwhile; nothing of another one was given out.
        """
        check_place(after, "after")
        async for receipt in stream_receipts(self.journal, key, await self.header(key), after):
            yield receipt

    async def receipt(self, key: ConversationKey, id: str) -> Receipt | None:  # noqa: A002
        """
        Return the receipt of the commit with this idempotency id, or `None` if there was none.

        This is how an unknown outcome is resolved: whoever was cut off while it committed asks again, and never writes
        twice.
        """
        return await self.journal.receipt(self._own(key), check_id(id, "idempotency id"))

    async def transact(
        self,
        key: ConversationKey,
        operation: Callable[[Record | None], Awaitable[tuple[Record | None, Result]]],
        *,
        format: str = "record",  # noqa: A002 - the field's standard word
    ) -> Result:
        """
        Give `operation` a private snapshot, save what it adds, and return its result (SPEC D24).

        This `transact` is called by hosts, works on records and only adds to them; the one of `ports.Store` is written
        by hosts, works on bytes and replaces them. The operation returns the record that it was given, with what it
        adds; where there was none it is given `None`, and returns `None` to save nothing.
        The operation may wait for a model: the conversation is reserved meanwhile, and no transaction, lock or
        connection is held. Whatever it raises, the record stays as it was. Only the drafts that it adds are written;
        where just the reply to that was lost, this returns as if it had come.

        Raises:
            DecisionHistoryBusy: another operation on `key` is under way.
            DecisionHistoryFenced: the reservation was recovered by somebody else meanwhile; nothing was saved.
            InvalidOption: no function, or one that returned no record although it was given one, or no pair; nothing
                was saved.
        """
        if not callable(operation):
            raise InvalidOption(f"operation is a function, not {type(operation).__name__}", option="operation")
        known = await self.journal.header(self._own(key))

        async def saved(header: Header) -> tuple[tuple[Draft, ...], Result]:
            entries = [entry async for entry in self.entries(key)]
            absent = not header.entries
            given = await operation(None if absent else Record(header=header, entries=tuple(entries)))
            if type(given) is not tuple or len(given) != 2:
                raise InvalidOption(
                    f"the operation returned a {type(given).__name__}; it returns (record, result)", option="operation"
                )
            return _added(given[0], absent=absent), given[1]

        return await self._reserved(key, known.format if known else format, saved)

    async def _reserved(
        self,
        key: ConversationKey,
        format: str,  # noqa: A002
        make: Callable[[Header], Awaitable[tuple[tuple[Draft, ...], Result]]],
    ) -> Result:
        """Have drafts made while the conversation is reserved, record them, and return what comes beside them."""
        reservation = Reservation(self.journal, self.tokens, key)
        try:
            drafts, result = await make((await reservation.take(format)).header)
            await reservation.conclude(Delta(drafts=drafts, idempotency=self.fresh_id()))
        except BaseException as error:
            nothing = Delta(idempotency=self.fresh_id())
            await reservation.give_up(error, lambda: reservation.release(nothing))
            raise
        return result

    async def delete(self, key: ConversationKey) -> bool:
        """
        Erase an idle conversation: entries, receipts, reservation and counters together.

        Returns whether every copy in the store's own files is gone; `False` where a reader still kept one, or for RAM.

        Raises:
            DecisionHistoryBusy: it is active.
            DecisionHistoryAbsent: there is none.
        """
        self.tails.drop(self._own(key))
        await self._aftermath.finished()
        erased = await self.journal.delete(key)
        self.tokens.seen(key)
        return erased

    async def recover(self, key: ConversationKey, *, worker_stopped: bool, epoch: int | None = None) -> Header:
        """
        End the reservation of a worker that is known to be stopped (SPEC D22).

        This frees the storage alone: whether a capability took effect is for the runtime and the operator to find out.
        The attempt under way is marked as abandoned, and the old worker, should it wake, can no longer write.

        Raises:
            InvalidOption: `worker_stopped` is not `True`.
            DecisionHistoryNotReserved: nobody holds it, another epoch does, or another recovery was first.
            DecisionHistoryAbsent: there is no such conversation.
        """
        if worker_stopped is not True:
            raise InvalidOption(
                "stop the old worker and verify it, then say worker_stopped=True", option="worker_stopped"
            )
        if epoch is not None:
            check_count(epoch, "epoch")
        self.tails.drop(self._own(key))
        header = await self.journal.recover(key, epoch)
        self.tokens.seen(key)
        return header

    async def drop_summary(self, key: ConversationKey) -> bool:
        """
        Have windows show no summary any more, as after one that was poisoned; return whether there was one.

        What it stood for was never gone: it is in windows again as far as it fits, and the next summary begins anew. A
        chat's history keeps its beginning: there the text alone goes.

        Raises:
            DecisionHistoryBusy: the conversation is active.
            DecisionHistoryAbsent: there is none.
        """
        header = await self.header(key)
        if header is None:
            raise DecisionHistoryAbsent("no such conversation")
        if not header.state.summary:
            return False

        async def dropped(header: Header) -> tuple[tuple[Draft, ...], bool]:
            seq = header.state.summary
            entries = await self.journal.oldest(key, seq - 1, ONE_ENTRY) if seq else ()
            drafts = [draft for entry in entries if (draft := dropped_summary(read_summary(entry))) is not None]
            return tuple(drafts), bool(drafts)

        return await self._reserved(key, header.format, dropped)

    async def header(self, key: ConversationKey) -> Header | None:
        """Return a conversation's counters, active or not; `None` when absent or expired."""
        return await self.journal.header(self._own(key))

    async def list(self, *, after: str = "", limit: int = 100) -> tuple[Listing, ...]:
        """
        Return up to `limit` conversations of the namespace whose ids are above `after`, by code points.

        Raises:
            DecisionHistoryCorrupt: one of them is damaged: `id` names it, and `good_records` sound ones come before it.
                `limit=good_records` gives those, `after=id` what follows; `delete` erases the damaged one.
        """
        if after != "":
            check_id(after, "after")
        return await self.journal.list(self.namespace, after, check_count(limit, "limit"))

    async def totals(self) -> Totals:
        """Return what the namespace holds."""
        return await self.journal.totals(self.namespace)

    async def verify(self, key: ConversationKey, *, receipt: Receipt | None = None) -> Header:
        """
        Prove a conversation and return its header: digest chain, receipts and counters agree (SPEC B8).

        An entry, a receipt or a counter that was altered or lost shows. Somebody who can rewrite the whole record and
        all its digests is not found out without a digest kept elsewhere: a `receipt` that was kept of a commit. With
        one the record also has to hold that commit, which an older backup or a standby that fell behind does not.

        Raises:
            InvalidOption: `receipt` is none.
            DecisionHistoryCorrupt: the first entry that is not what was written; `seq` names it.
            DecisionHistoryRegressed: the record does not hold the commit of `receipt`, which was acknowledged.
            DecisionHistoryAbsent: there is no such conversation, it was deleted, or what comes next was cut meanwhile.
        """
        header = await self.journal.header(self._own(key))
        if header is None:
            raise DecisionHistoryAbsent("no such conversation to verify")
        if receipt is not None and type(receipt) is not Receipt:
            raise InvalidOption(f"receipt is a Receipt that was kept, not {type(receipt).__name__}", option="receipt")
        if receipt is not None and await self.journal.receipt(key, receipt.idempotency) != receipt:
            raise DecisionHistoryRegressed(
                f"the record has version {header.version} and not the commit that made version {receipt.version}: it "
                "was restored, or a standby took over that had not everything; find what was lost",
                version=header.version,
                seen=receipt.version,
            )
        async for _ in stream_proved(self.journal, key, header):
            pass
        return header

    async def export(
        self, key: ConversationKey, path: str | PathLike[str], *, force: bool = False, progress: Progress | None = None
    ) -> int:
        """
        Write an idle conversation to a private file as JSON Lines, and return how many entries it holds.

        The file has mode 0600 and appears whole or not at all; an older one is replaced only with `force`, a link
        never. It holds every entry, abandoned ones too, byte for byte; receipts and reservations stay behind. The
        entries are streamed in bounded memory, twice, in the caller's thread. `progress` is told of (done, total).

        Raises:
            DecisionHistoryBusy: it is active.
            DecisionHistoryAbsent: there is no such conversation, or it was deleted meanwhile.
            DecisionHistoryCorrupt: its digest chain is broken at `seq`; nothing was written.
            DecisionHistoryStorageUnsafe: `path` exists, or it or its directory is not private.
            DecisionHistoryStorageFailed: the disk failed.
        """
        from minutebook.stores.transfer import export_record  # loaded by those who export

        await self._aftermath.finished()
        return await export_record(self, self._own(key), path, force, progress)

    async def import_(
        self,
        key: ConversationKey,
        path: str | PathLike[str],
        *,
        check: Check,
        good_prefix: bool = False,
        progress: Progress | None = None,
    ) -> Imported:
        """
        Record an exported conversation under `key`, in one durable commit: all of it or nothing.

        The file is verified to its last line first. The same file again changes nothing and returns the first
        receipt, whose idempotency id begins with `import-`; so does the file of a conversation that has not changed
        since, of which it returns the newest receipt. Times, marks and payloads are the original's; calls that
        waited for a result wait as parked ones. With `good_prefix` a damaged file is taken up to the last complete
        exchange before the damage, and the result says what was left. All payloads are in memory at once, at most
        512 MiB; the file is read in the caller's thread. `progress` is told of (done, total).

        A file can claim of its payloads what it likes, so `check` is required: it is given the file's format and the
        drafts, and returns how many, from the first one on, are what that format makes of their payloads; `None` for a
        format that it does not know. `Conversation.import_` gives the one of its wire format; a host with a format of
        its own, as `transact` lets it have, gives its own.

        Raises:
            ImportRefused: torn, altered, foreign, too large, or no lawful record; `problem` says which, `line` where,
                `good_records` how many records before it are good.
            DecisionHistoryConflict: the conversation holds something else, or was opened in another format.
            DecisionHistoryBusy: it is active.
            DecisionHistoryRetentionExceeded: it would retain more than a bound.
            DecisionHistoryStoreFull: so would the store.
        """
        from minutebook.stores.transfer import import_record

        return await import_record(self, self._own(key), path, check, good_prefix, progress)

    async def copy(self, key: ConversationKey, target: JournalStore, *, progress: Progress | None = None) -> Copied:
        """
        Copy an idle conversation to another store of the same namespace, in one durable commit: all of it or nothing.

        Entries, receipts, digests, marks, summaries and where the record begins after a cut are the original's, and so
        are its windows; calls that waited for a result wait as parked ones. Its age and its time to live begin anew.
        What `target` holds afterwards is proved entry by entry; a conversation that it holds already, with the same
        digest chain, receipts and state, is only proved. So a copy that was cut short is simply made again. All
        payloads are in memory at once, at most 512 MiB. `progress` is told of (done, total): every entry counts once
        here and once there.

        Raises:
            DecisionHistoryBusy: it is active here or there.
            DecisionHistoryAbsent: there is no such conversation, or it was deleted meanwhile.
            DecisionHistoryConflict: `target` has another one under this id. `problem` is `behind` or `ahead` where one
                is an earlier state of the other, `receipts` where only one has the receipts of their entries, as after
                an import, else `other`.
            DecisionHistoryCorrupt: the original or the copy is not what was written; `seq` names the entry.
            DecisionHistoryRetentionExceeded: it is larger than one commit or one conversation may be there.
            DecisionHistoryStoreFull: so would `target` be.
            InvalidOption: `target` is no store, or one of another namespace.
        """
        from minutebook.stores.copying import copy_record

        return await copy_record(self, self._own(key), target, progress)

    async def close(self) -> None:
        """
        Close what the store itself opened; a second call does nothing.

        A turn that is still open can record nothing any more. Its conversation is given back first, so that the next
        worker need not recover it; what the turn recorded is out of every window, like that of any turn that failed.
        Where the storage does not answer, that is tried for five seconds, and for as long as one more call waits. An
        error that is none of ours, as a host's clock may raise, keeps nothing open: it is raised once all is closed.

        A signal handler may close a store in the middle of another call of its thread: that happens right after the
        transaction that it struck in. Any other call is refused there, with `StoreReentered`.
        """
        if inside():
            self._aftermath.postpone(self.close())
            return
        await self._aftermath.finished()
        # A child closes nothing of its parent's.
        failed = await self._free_all() if os.getpid() == self._process else None
        await self.journal.close()
        try:
            if failed is not None:
                raise failed
        finally:
            del failed

    async def _free_all(self) -> Exception | None:
        """
        Give back what is held, and after a while no more once that fails: silence would take too long.

        Return what came up first that is none of the storage's refusals, as what a host's own store raises.
        """
        until = monotonic() + FREEING_SECONDS
        strange: Exception | None = None
        for holder in self.tokens.holders():
            if isinstance(holder, Reservation):
                try:
                    await holder.free()
                except Exception as error:
                    if not isinstance(error, MinutebookError):
                        strange = strange or error
                    if monotonic() >= until:
                        break
        return strange

    def _own(self, key: ConversationKey) -> ConversationKey:
        if type(key) is not ConversationKey:
            raise InvalidOption(
                f"a key is a ConversationKey, not {type(key).__name__}; use store.key(id)", option="key"
            )
        if key.namespace != self.namespace:
            raise InvalidOption("the key belongs to another namespace than the store", option="key")
        return key


def checked_store(store: object, option: str = "store") -> JournalStore:
    """
    Return `store` if an asynchronous part of the library can use it.

    Raises:
        BlockingMismatch: it is one of `minutebook.sync`.
        InvalidOption: it is no store of minutebook, such as a path or a host's own.
    """
    if not isinstance(store, JournalStore):
        check_store_colour(store, option, blocking=False)
        raise InvalidOption(
            f"{option} is a store of minutebook, such as SQLiteStore or open_store(url), not a {type(store).__name__}; "
            "HostStore makes one of a database of yours",
            option=option,
        )
    return store


def driven(store: JournalStore) -> JournalStore:
    """Return `store` as blocking callers have it: whatever loop runs where they are, it is none of theirs."""
    aftermath = Aftermath(blocking=True)
    view = copy.copy(store)
    vars(view).update(_colour="blocking", _aftermath=aftermath, tokens=store.tokens.with_aside(aftermath.from_here))
    return view


def _added(saved: Record | None, *, absent: bool) -> tuple[Draft, ...]:
    if saved is None and absent:
        return ()
    if not isinstance(saved, Record):
        raise InvalidOption(
            "the operation returned no record: return the one it was given to change nothing; `delete` erases",
            option="operation",
        )
    return saved.added
