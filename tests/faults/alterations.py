"""
Stored records, altered field by field so that every store still reads them, and the journals that hold them.

What is altered is a value that the project's own packing wrote, and the same packing puts it back: nothing here is a
flipped bit that a checksum of SQLite or MessagePack would find. `rechained` makes the digests right again, as only
somebody could who means harm; without it a store says what no chain follows from.
"""

from __future__ import annotations

import contextlib
import copy
import shutil
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any

import msgspec

from minutebook.model.entries import Call, Entry, Kind, first_digest, pack_entries, recompute_digest, unpack_entries
from minutebook.model.keys import ConversationKey
from minutebook.model.record import Attempt, Header, OpenExchange, State, Unanswered
from minutebook.ports import Page
from minutebook.stores import sqlite_rows
from minutebook.stores.journal import JournalStore
from minutebook.stores.memory import MemoryJournal, _Rows
from minutebook.stores.sqlite import SQLiteJournal
from minutebook.testing import drive

NAMESPACE = "tenant"
WHOLE = Page(rows=100_000, messages=2**62, size=2**62)
FAR = 2**40
"""A number that no record reaches."""

Alteration = tuple[str, Header, list[Entry]]
"""What is altered, and the header and the entries with it."""


class Counting(JournalStore):
    """A store whose ids, and so the fences of its summaries, are the same each time that the logs were put back."""

    def __init__(self, shelf: Shelf) -> None:
        super().__init__(shelf.journal(), namespace=NAMESPACE)
        self.ids = shelf.ids

    def fresh_id(self) -> str:
        return f"id-{next(self.ids)}"


class Shelf(ABC):
    """A journal whose logs can be put back as they were, or otherwise."""

    def __init__(self) -> None:
        self.opened: list[Any] = []
        self.ids = count(1)

    @abstractmethod
    def journal(self) -> Any:
        """Return the journal as a new process would open it."""

    @abstractmethod
    def keep(self) -> None:
        """Take what is there now for what is right."""

    @abstractmethod
    def restore(self) -> None:
        """Put back what was kept."""

    @abstractmethod
    def write(self, key: ConversationKey, header: Header, entries: Sequence[Entry]) -> None:
        """Store these in the place of what is there."""

    def store(self) -> JournalStore:
        """Return a store as a new process would have it: nothing is remembered."""
        return Counting(self)

    def can_hold(self, header: Header) -> bool:
        """Return whether the journal can have such a header without its process ending at once."""
        return header is not None

    def held(self, key: ConversationKey) -> tuple[Header, list[Entry]]:
        journal = self.journal()
        header = drive(journal.header(key))
        assert header is not None
        return header, list(drive(journal.oldest(key, 0, WHOLE)))

    def alter(self, key: ConversationKey, header: Header, entries: Sequence[Entry], *, written: bool) -> None:
        """Store these in the place of what was kept of a conversation; all is put back first where others `written`."""
        if written:
            self.restore()
        self.ids = count(1_000)
        self.write(key, header, entries)

    def close(self) -> None:
        for journal in self.opened:
            drive(journal.close())
        self.opened.clear()


class Ram(Shelf):
    """Logs in RAM: the packed entries, and the headers as they are."""

    def __init__(self, _: Path) -> None:
        super().__init__()
        self._journal = MemoryJournal()
        self._kept: Any = None

    def journal(self) -> Any:
        return self._journal

    def keep(self) -> None:
        self._kept = copy.deepcopy(self._journal._namespaces)

    def restore(self) -> None:
        self._journal._namespaces = copy.deepcopy(self._kept)

    def can_hold(self, header: Header) -> bool:
        return header.entries < FAR  # a place in RAM is made for each

    def write(self, key: ConversationKey, header: Header, entries: Sequence[Entry]) -> None:
        log = self._journal._namespaces[NAMESPACE].logs[key.id]
        log.header, log.rows = header, _Rows(0, [pack_entries((entry,)) for entry in entries])


class Sqlite(Shelf):
    """Logs in a SQLite file: rows of packed entries, and headers in columns."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        root.chmod(0o700)
        self.database = root / "history.sqlite"
        self._kept = root / "kept"
        self._rows: dict[str, list[tuple[int, int, int]]] = {}
        """By conversation: the rowid of each row, and the first and last `seq` in it."""

    def journal(self) -> Any:
        if not self.opened:
            self.opened.append(SQLiteJournal(self.database, blocking=True))
        return self.opened[0]

    def keep(self) -> None:
        self.close()
        shutil.copy(self.database, self._kept)
        with self._connected() as connection:
            for name, row, first, packed in connection.execute(
                "SELECT name, minutebook_log.rowid, seq, minutebook_log.entries FROM minutebook_log "
                "JOIN minutebook_conversation ON id = conversation ORDER BY seq"
            ):
                place = (row, first, first + len(unpack_entries(packed, first)) - 1)
                self._rows.setdefault(name.decode(), []).append(place)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(self.database, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            yield connection

    def restore(self) -> None:
        self.close()
        for rest in ("-wal", "-shm"):
            self.database.with_name(self.database.name + rest).unlink(missing_ok=True)
        shutil.copyfile(self._kept, self.database)

    def write(self, key: ConversationKey, header: Header, entries: Sequence[Entry]) -> None:
        columns = ("touched", "epoch", "token", "since", "version", "entries", "bytes", "digest", "state", "attempt")
        names = ", ".join(f"{name} = ?" for name in (*columns, "format", "birth", "created"))
        own = (header.format.encode(), header.birth, header.created)
        values = (*sqlite_rows.header_columns(header), *own, key.id.encode())
        with self._connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(f"UPDATE minutebook_conversation SET {names} WHERE name = ?", values)
            for row, first, last in self._rows[key.id]:
                packed = pack_entries(entries[first - 1 : last])
                connection.execute("UPDATE minutebook_log SET entries = ? WHERE rowid = ?", (packed, row))
            connection.execute("COMMIT")


SHELVES: dict[str, Callable[[Path], Shelf]] = {"RAM": Ram, "SQLite": Sqlite}


# --- what can be altered ---------------------------------------------------------------------------------------------


def _numbers(value: int) -> list[int]:
    return [each for each in dict.fromkeys((0, value - 1, value + 1, value + 3, FAR)) if each >= 0 and each != value]


def _calls(calls: tuple[Call, ...]) -> list[tuple[Call, ...]]:
    more = (*calls, Call("planted", "pay"))
    renamed = tuple(msgspec.structs.replace(each, id=f"{each.id}x") for each in calls)
    return [each for each in dict.fromkeys(((), more, calls[1:], calls[::-1], renamed)) if each != calls]


def _payloads(payload: bytes, others: Sequence[bytes]) -> list[bytes]:
    half = len(payload) // 2
    flipped = payload[:half] + bytes([payload[half] ^ 1]) + payload[half + 1 :] if payload else b""
    texts = [payload[:-1], payload[:half], b"", b"null", b"{}", b"[]", b"\xff" * len(payload), payload + b" ", flipped]
    return [each for each in dict.fromkeys((*texts, *others)) if each != payload]


def entry_changes(entry: Entry, entries: Sequence[Entry]) -> Iterator[tuple[str, Entry]]:
    """Return an entry with each of its fields altered in several ways, and what was altered."""
    replace = msgspec.structs.replace
    for name in ("turn", "exchange", "call", "messages", "size", "start", "stop", "wall"):
        for value in _numbers(getattr(entry, name)):
            yield f"{name} {value}", replace(entry, **{name: value})
    for by in (1, -1, 7):
        if entry.start + by >= 0:
            yield f"slice by {by}", replace(entry, start=entry.start + by, stop=entry.stop + by)
    for kind in Kind:
        if kind is not entry.kind:
            yield f"kind {kind.name}", replace(entry, kind=kind)
    for at, calls in enumerate(_calls(entry.calls)):
        yield f"calls {at}", replace(entry, calls=calls)
    for digest in (b"", bytes(32), entry.digest[::-1]):
        yield f"digest {len(digest)}", replace(entry, digest=digest)
    neighbours = [other.payload for other in entries if abs(other.seq - entry.seq) == 1]
    for at, payload in enumerate(_payloads(entry.payload, neighbours)):
        stop = min(entry.stop, len(payload))
        yield f"payload {at}", replace(entry, payload=payload, start=min(entry.start, stop), stop=stop)
        yield f"payload {at} sent whole", replace(entry, payload=payload, start=0, stop=len(payload))
    for other in entries:
        if abs(other.seq - entry.seq) == 1:
            yield f"all that {other.seq} has", replace(other, seq=entry.seq)


def _states(state: State) -> Iterator[tuple[str, State]]:
    replace = msgspec.structs.replace
    for name in State.__struct_fields__:
        value = getattr(state, name)
        if type(value) is int:
            for number in _numbers(value):
                yield f"{name} {number}", replace(state, **{name: number})
        elif type(value) is tuple and [type(each) for each in value] == [int, int]:
            for number in _numbers(value[0]):
                yield f"{name} {number}", replace(state, **{name: (number, value[1])})
                yield f"{name} … {number}", replace(state, **{name: (value[0], number)})
    planted = OpenExchange(2, (Call("planted", "pay"),))
    opens = [(), (planted,), (*state.open, planted), (msgspec.structs.replace(planted, exchange=FAR, parked=True),)]
    opens += [
        (replace(waits, **change),)
        for waits in state.open
        for change in (
            {"exchange": waits.exchange + 1},
            {"exchange": 0},
            {"calls": ()},
            {"calls": (*waits.calls, Call("planted", "pay"))},
            {"answered": (0,)},
            {"answered": (9,)},
            {"answered": (-1,)},
            {"parked": not waits.parked},
        )
    ]
    for at, open_ in enumerate(opens):
        yield f"open {at}", replace(state, open=open_)
    for at, unanswered in enumerate((None, Unanswered(b"", 0, 0), Unanswered(bytes(32), FAR, FAR, FAR))):
        yield f"unanswered {at}", replace(state, unanswered=unanswered)
    yield "window_limits", replace(state, window_limits=(1, 1))
    yield "prelude", replace(state, prelude="planted")


def header_changes(header: Header) -> Iterator[tuple[str, Header]]:
    """Return a header with each of its fields, and of its states', altered in several ways; never who holds it."""
    replace = msgspec.structs.replace
    for name in ("created", "touched", "epoch", "version", "entries", "bytes"):
        for value in _numbers(getattr(header, name)):
            yield f"header's {name} {value}", replace(header, **{name: value})
    yield "header's digest", replace(header, digest=header.digest[::-1])
    yield "header's format", replace(header, format="planted")
    for what, state in _states(header.state):
        if state != header.state:
            yield f"state's {what}", replace(header, state=state)
    for first in (0, 1, header.entries + 1, FAR):
        yield f"attempt from {first}", replace(header, attempt=Attempt(first, header.state))
    yield "attempt from the beginning", replace(header, attempt=Attempt(1, State()))


def forgeries(entry: Entry, before: bytes, entries: Sequence[Entry]) -> Iterator[tuple[str, Entry]]:
    """
    Return an entry with another payload and the digest that it must carry with that, and what was altered.

    It follows from the one before it. What stands behind it, the next entry or the header, is left as it was.
    """
    others = [other.payload for other in entries if other.kind is entry.kind and other.payload != entry.payload]
    telling = [entry.payload.replace(word, word.upper()) for word in (b"question", b"answer", b"result")]
    for at, payload in enumerate(_payloads(entry.payload, [*telling, *others[:3]])):
        stop = min(entry.stop, len(payload))
        forged = msgspec.structs.replace(entry, payload=payload, start=min(entry.start, stop), stop=stop)
        digest = recompute_digest(before, forged)
        yield f"payload {at} and its own digest", msgspec.structs.replace(forged, digest=digest)


def changes(key: ConversationKey, header: Header, entries: list[Entry]) -> Iterator[Alteration]:
    """Return every alteration of one conversation: what it is, and the header and entries with it."""
    for at, entry in enumerate(entries):
        forged = forgeries(entry, entries[at - 1].digest if at else first_digest(key), entries)
        for what, altered in chain(entry_changes(entry, entries), forged):
            yield f"entry {entry.seq} ({entry.kind.name}): {what}", header, [*entries[:at], altered, *entries[at + 1 :]]
    for what, other in header_changes(header):
        yield what, other, entries


def rechained(key: ConversationKey, header: Header, entries: Sequence[Entry]) -> tuple[Header, list[Entry]]:
    """Return the same with every digest made right again, as by somebody who knows how."""
    digest = first_digest(key)
    chained: list[Entry] = []
    for entry in entries:
        digest = recompute_digest(digest, entry)
        chained.append(msgspec.structs.replace(entry, digest=digest))
    return msgspec.structs.replace(header, digest=digest), chained
