"""
What one process remembers of a store between two calls: its own reservations, and the newest entries it has seen.

Both only save work or trouble; nothing depends on them. A tail is used again only while the stored version and digest
are still those it was read at, and a token only tells this process's own orphans from another worker's reservation.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import msgspec

from minutebook.model.entries import Entry, recompute_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import TypeAlias

    from minutebook.model.keys import ConversationKey
    from minutebook.model.record import Header
    from minutebook.model.units import Settled

    Aside: TypeAlias = Callable[[Coroutine[Any, Any, object], GeneratorExit], bool]
    """Does what a closed holder has left to do, and returns whether it is done by now."""

CACHED_BYTES = 16 * 1024 * 1024
"""Bytes that the tails of one store may hold in all."""


class Tail(msgspec.Struct, frozen=True):
    """The end of one conversation as this process knows it: entries, newest first, and what is settled before them."""

    entries: tuple[Entry, ...] = ()
    settled: Settled | None = None
    summary: Entry | None = None
    """The summary that windows show, where one was read."""

    @property
    def held(self) -> int:
        """How many bytes it takes, roughly."""
        return sum([len(entry.payload) for entry in self.entries]) + (self.settled.held if self.settled else 0)

    def grown(self, written: tuple[Entry, ...]) -> Tail:
        """Return the tail once `written`, oldest first, has been added to the record."""
        return Tail((*reversed(written), *self.entries), self.settled, self.summary) if written else self

    def upto(self, seq: int) -> Tail:
        """Return the tail if it ends with the entry `seq`, else an empty one: of commits of several threads at once."""
        newest = self.entries[0].seq if self.entries else self.settled.below - 1 if self.settled else seq
        return self if newest == seq else Tail()

    def above(self, cut: int) -> Tail:
        """Return the tail without what has left the record up to the entry `cut`."""
        if not cut or (self.settled is None and self.entries and self.entries[-1].seq > cut):
            return self
        if self.settled is not None and self.settled.units:
            oldest = self.settled.units[0]
            if (oldest.turn or oldest.key) > cut:
                return self
        return Tail(tuple([entry for entry in self.entries if entry.seq > cut]))


class Remembered(msgspec.Struct, frozen=True):
    """A tail with the version and the digest of the record that it is the end of."""

    version: int
    digest: bytes
    tail: Tail

    def continued(self, header: Header, written: tuple[Entry, ...]) -> Tail | None:
        """
        Return the tail with `written` after it, if that is how the record went on; `None` if it went otherwise.

        One commit may lie between, which writes nothing where it only goes on with an input that nobody answered.
        """
        if not self.version + bool(written) <= header.version <= self.version + 1:
            return None
        follows = not written or recompute_digest(self.digest, written[0]) == written[0].digest
        last = written[-1].digest if written else self.digest
        return self.tail.grown(written).above(header.cut.seq) if follows and last == header.digest else None


class Tails:
    """
    The tails of recently used conversations; the least recently used ones go first.

    There is no lock. Whoever holds one may be stopped by the garbage collector to give back a turn, by a signal, or for
    ever in the copy that a fork makes, and would have to be waited for. So what is counted is what `setdefault`, `pop`
    and `popitem` say that they put in or took out, each of them in one step, whatever other threads do.
    """

    def __init__(self, max_bytes: int = CACHED_BYTES) -> None:
        """Begin empty."""
        self._max_bytes = max_bytes
        self._bytes = 0
        self._tails: OrderedDict[ConversationKey, tuple[Remembered, int]] = OrderedDict()

    def get(self, key: ConversationKey) -> Remembered | None:
        """Return what is remembered of a conversation."""
        found = self._tails.get(key)
        return found[0] if found else None

    def put(self, key: ConversationKey, header: Header, tail: Tail) -> None:
        """Remember the tail, unless it is larger than the whole cache, or another thread remembers one meanwhile."""
        size = tail.held
        new = (Remembered(header.version, header.digest, tail), size)
        self.drop(key)
        if size > self._max_bytes or self._tails.setdefault(key, new) is not new:
            return
        self._bytes += size
        while self._bytes > self._max_bytes and self._tails:
            with contextlib.suppress(KeyError):  # another thread was first
                _, (_, gone) = self._tails.popitem(last=False)
                self._bytes -= gone

    def drop(self, key: ConversationKey) -> None:
        """Forget the tail."""
        found = self._tails.pop(key, None)
        if found:
            self._bytes -= found[1]


class Tokens:
    """
    The tokens of one store object in one process.

    A reservation whose token this object made and whose holder no longer lives is an orphan: an interrupt struck
    between reserving and releasing. It is continued, where any other held conversation means Busy: see "Reservation" in
    docs/architecture.md.
    """

    def __init__(self, prefix: str, aside: Callable[[], Aside]) -> None:
        """
        Take the unguessable prefix that marks this object's tokens, and what gives a holder its `Aside`.

        It is asked where the holder begins, since that may be closed elsewhere: it knows of the event loop, if any.
        """
        self.aside = aside
        self._prefix = prefix
        self._count = itertools.count(1)
        self._live: weakref.WeakValueDictionary[str, object] = weakref.WeakValueDictionary()
        self._owed: dict[ConversationKey, object] = {}

    def with_aside(self, aside: Callable[[], Aside]) -> Tokens:
        """Return the same tokens for holders whose `Aside` another function gives."""
        tokens = copy.copy(self)
        tokens.aside = aside
        return tokens

    def issue(self, holder: object) -> str:
        """Return a fresh token that lives as long as `holder`, or until it is ended."""
        token = f"{self._prefix}-{next(self._count)}-{id(holder):x}"
        self._live[token] = holder
        return token

    def holders(self) -> list[object]:
        """Return who holds, is about to hold, or still has to give back a conversation under one of these tokens."""
        return [*list(self._live.values()), *list(self._owed.values())]

    def end(self, token: str) -> None:
        """Declare the holder gone, whether or not its release reached the store."""
        self._live.pop(token, None)

    def owe(self, key: ConversationKey, holder: object) -> None:
        """
        Keep a holder that has a conversation to give back, until this is done or not its own to do.

        One is enough for each conversation: whatever orphan has it by then, any holder of it can free that.
        """
        self._owed.setdefault(key, holder)

    def lost(self, key: ConversationKey, holder: object) -> None:
        """Take note that somebody else freed what the holder had."""
        if self._owed.get(key) is holder:
            self._owed.pop(key, None)

    def seen(self, key: ConversationKey, token: str = "") -> None:
        """Take note under which token a conversation was found held: with one of these it is still to be given back."""
        if not self._is_own(token):
            self._owed.pop(key, None)

    def is_orphan(self, token: str) -> bool:
        """Return whether the token is this object's own and has no living holder."""
        return self._is_own(token) and token not in self._live

    def _is_own(self, token: str) -> bool:
        return token.startswith(self._prefix + "-")
