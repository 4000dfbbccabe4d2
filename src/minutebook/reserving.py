"""
A reservation as its holder has it: taken once, given back once, whatever strikes in between.

Each of a turn, a transaction, an import and a checkpoint holds one conversation under one token. What is the same for
all of them is here: an orphan that this process left is ended and its place taken, a cancelled call is looked after,
and what failed gives back what it held.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from minutebook.errors import (
    DecisionHistoryAbsent,
    DecisionHistoryBusy,
    DecisionHistoryFenced,
    DecisionHistoryNotReserved,
    DecisionHistoryRetentionExceeded,
    DecisionHistorySchemaUnsupported,
    DecisionHistoryStorageFailed,
    DecisionHistoryStorageLocked,
    DecisionHistoryStorageUnsafe,
    DecisionHistoryStoreFull,
    InvalidMessage,
    InvalidOption,
    MinutebookError,
    PairingViolation,
    StorageError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from minutebook.model.keys import ConversationKey
    from minutebook.model.record import Delta, Header, Receipt
    from minutebook.model.tails import Tokens
    from minutebook.ports import Committed, Journal, Page, Reserved

FULL = (DecisionHistoryRetentionExceeded, DecisionHistoryStoreFull)
"""How a store says that there is no room for what it was given: nothing of it was written."""

_REFUSED = (*FULL, InvalidMessage, InvalidOption, PairingViolation)
"""How what was given is refused, for want of room or by the record's law: nothing of it was written."""


_UNWRITTEN = (DecisionHistoryStorageLocked, DecisionHistoryStorageUnsafe, DecisionHistorySchemaUnsupported)
"""How storage says that nothing of it was written, since it could not be got at, or is not fit to hold it."""


class Reservation:
    """
    The reservation of one conversation, under a token that lives as long as this object, or until it has ended.

    `held` says whether it is this worker's; then `header` is the conversation as the holder knows it.
    """

    def __init__(self, journal: Journal, tokens: Tokens, key: ConversationKey) -> None:
        """Prepare to reserve; nothing is held yet."""
        self._journal = journal
        self._tokens = tokens
        self._aside = tokens.aside()
        self._key = key
        self._token = ""  # until it is known by one: an interrupt may come between
        self._token = tokens.issue(self)
        self.held = False
        self.header: Header
        self.ended: Committed | None = None
        """The commit that gave it back, once that is known to be written."""

    async def take(
        self,
        format: str,  # noqa: A002 - the field's standard word
        *,
        owned: bool = False,
        opening: Delta | None = None,
        release: bool = False,
        tail: Page | None = None,
        known: int = -1,
    ) -> Reserved:
        """
        Reserve the conversation, a second time if an orphan of this process held it; see `Journal.reserve`.

        With `owned` whatever holds it is an orphan. After a cancellation `held` says whether it was taken all the same.

        Raises:
            DecisionHistoryBusy: another worker holds it.
        """

        async def reserve() -> Reserved:
            return await self._journal.reserve(
                self._key, self._token, format=format, opening=opening, release=release, tail=tail, known=known
            )

        try:
            try:
                reserved = await reserve()
            except DecisionHistoryBusy:
                if not await self.free(owned=owned):
                    raise
                reserved = await reserve()
        except BaseException as error:
            await self._look(error)
            raise
        self.header, self.held = reserved.header, not release
        if release:
            self._given_back()
        return reserved

    async def free(self, *, owned: bool = False) -> bool:
        """
        Free the conversation from outside, as `recover` does, if this holder has it or an orphan of this process.

        With `owned` whatever holds it is an orphan. Returns whether nobody holds it by now.
        """
        header = await self._see()
        if header is None or not header.token:
            return True
        if not (owned or header.token == self._token or self._tokens.is_orphan(header.token)):
            return False
        with contextlib.suppress(DecisionHistoryNotReserved, DecisionHistoryAbsent):  # another task was first
            await self._journal.recover(self._key, header.epoch)
        self._tokens.seen(self._key)
        return True

    async def _see(self) -> Header | None:
        """Return the conversation as it is stored."""
        header = await self._journal.header(self._key)
        self._tokens.seen(self._key, header.token if header else "")
        return header

    async def _look(self, error: BaseException) -> None:
        """See whether a call that was cut, or whose reply was lost, reserved it all the same; a refusal took none."""
        try:
            if isinstance(error, GeneratorExit):
                self._aside(self._settle(self.free), error)
            elif may_be_written(error):
                await self._settle(self._find_out)
        except MinutebookError as second:
            error.add_note(
                f"whether this reserved the conversation could not be found out ({second.code}); if it stays busy, "
                "recover it"
            )
        finally:
            if not self.held:
                self.end()

    async def _find_out(self) -> None:
        self.held = await self._look_again()

    async def commit(self, delta: Delta, *, release: bool = False) -> Committed:
        """Record `delta` under the reservation; see `Journal.commit`."""
        try:
            committed = await self._journal.commit(self._key, self._token, self.header.epoch, delta, release=release)
        except DecisionHistoryFenced:
            self._tokens.lost(self._key, self)
            raise
        if release:
            self.ended = committed
            self._given_back()
        return committed

    async def look_for(self, idempotency: str, *, release: bool) -> Receipt | None:
        """
        Return the receipt of a commit of which nobody heard how it ended, if it was written, and go on from there.

        A receipt alone does not tell: under an id of the caller's there may be one from long before, and whoever
        recovered the conversation may have recorded another. The token tells whether the one that was to `release` the
        reservation was written, for both go in one write; the epoch tells whose a receipt is not. Where the
        conversation was deleted and begun anew, epochs begin anew too: a header that is read behind the receipt and has
        another birth tells that.
        """
        if release and await self._look_again():
            return None
        receipt = await self._journal.receipt(self._key, idempotency)
        if receipt is None or receipt.epoch > self.header.epoch:
            return None
        header = await self._see()
        if header is None or header.birth != self.header.birth:
            return None
        if release:
            self.end()
        elif header.token == self._token:
            self.header = header
        return receipt

    async def _look_again(self) -> bool:
        """Return whether the reservation is still this worker's, and take the header as it is by now if so."""
        header = await self._see()
        if header is None or header.token != self._token:
            return False
        self.header = header
        return True

    async def conclude(self, delta: Delta) -> None:
        """
        Record a last commit under an id of its own and give the reservation back with it.

        Where only the reply was lost, that is as good: whoever was told that it failed would write it a second time.

        Raises:
            StorageError: it was not written, or nobody can tell now.
        """
        try:
            await self.commit(delta, release=True)
        except StorageError as error:
            with contextlib.suppress(StorageError):
                if may_be_written(error) and await self.look_for(delta.idempotency, release=True):
                    return
            raise

    async def release(self, delta: Delta) -> None:
        """
        Give the reservation back with `delta`, and without its drafts where there is no room for them, or no place.

        Raises:
            DecisionHistoryFenced: another worker recovered the conversation meanwhile; nothing was written.
            DecisionHistoryStoreFull, DecisionHistoryRetentionExceeded: it is given back, and the drafts are lost.
            InvalidMessage, InvalidOption, PairingViolation: likewise; by its law the record has no place for them.
        """
        try:
            await self.commit(delta, release=True)
        except _REFUSED:
            if delta.drafts:
                await self.commit(msgspec.structs.replace(delta, drafts=(), opens=False), release=True)
            raise

    async def give_up(self, error: BaseException, step: Callable[[], Awaitable[None]]) -> bool:
        """
        Give the reservation back by `step` after an `error` that goes on; return whether it did.

        What fails here is only added to the error. A coroutine that is being closed cannot wait any more: under an
        event loop it is given back a little later, and counts as not given back here.
        """
        if not self.held:
            return False
        try:
            if isinstance(error, GeneratorExit):
                return self._aside(self._settle(step), error)
            await self._settle(step)
        except DecisionHistoryFenced:
            return False  # whoever recovered the conversation has marked the attempt
        except MinutebookError as second:
            if self.held:
                error.add_note(f"the reservation could not be given back ({second.code}); recover the conversation")
                return False
        finally:
            self.end()
        return True

    def _settle(self, step: Callable[[], Awaitable[object]]) -> Coroutine[Any, Any, None]:
        """Clean up by `step`. What that does not give back, or nobody lets it, is tried when the store is closed."""
        self._tokens.owe(self._key, self)
        return _once_more(step)

    def _given_back(self) -> None:
        self._tokens.seen(self._key)
        self.end()

    def end(self) -> None:
        """Declare the holder gone, whether or not its release reached the store."""
        self.held = False
        self._tokens.end(self._token)


async def _once_more(step: Callable[[], Awaitable[object]]) -> None:
    """
    Clean up, and once more where a second cancellation or an interrupt strikes meanwhile, which goes on.

    Else every other process would find the conversation busy until somebody recovers it.
    """
    try:
        await step()
    except (Exception, GeneratorExit):
        raise
    except BaseException:
        with contextlib.suppress(DecisionHistoryFenced, *_REFUSED):  # or it was done, and the reply was cut
            await step()
        raise


def may_be_written(error: BaseException) -> bool:
    """
    Return whether a commit that failed so may have been written all the same: it was cut, or storage failed.

    Where a lock was waited for, or no connection could be made, nothing was sent, and to ask would wait as long again;
    where the place is unfit it was found so before anything was written, and to ask would be refused like that.
    """
    if isinstance(error, DecisionHistoryStorageFailed):
        return error.sent is not False
    return not isinstance(error, _UNWRITTEN) and (
        isinstance(error, StorageError) or not isinstance(error, MinutebookError)
    )
