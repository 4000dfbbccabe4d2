"""
Export and import of one conversation as a file (SPEC C4; promise I-36, case O-48).

An export appears under its name whole or not at all, and a file that was cut afterwards is recognised. An import is one
commit. Receipts stay behind, since they answer for commits of the other store; the reservation too. Nothing inside a
file is ever taken for a path or an address.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

from minutebook.errors import (
    DecisionHistoryAbsent,
    DecisionHistoryBusy,
    DecisionHistoryCorrupt,
    ImportRefused,
    InvalidOption,
)
from minutebook.model.arrivals import Reading
from minutebook.model.bounds import check_callable, check_flag
from minutebook.model.clock import read_clock
from minutebook.model.entries import Draft, Kind, first_digest, recompute_digest
from minutebook.model.reservation import check_idle
from minutebook.model.transfer import (
    MAX_LINE_BYTES,
    Checks,
    Imported,
    end_of,
    head_of,
    left_out,
    sealed_entry,
)
from minutebook.reserving import Reservation
from minutebook.stores.private_writer import private_file_writer
from minutebook.stores.streams import stream_entries

if TYPE_CHECKING:
    from minutebook.model.keys import ConversationKey
    from minutebook.model.record import Delta, Header, Receipt
    from minutebook.model.transfer import Head
    from minutebook.stores.journal import JournalStore

Progress: TypeAlias = Callable[[int, int], object]
"""Told how many entries are done, and of how many; what it raises ends the export or import."""

Check: TypeAlias = Callable[[str, Sequence[Draft]], int | None]
"""
Told a format and the drafts of a record; says how many of them, from the first one on, are what the format makes of
their payloads, and `None` of a format that it does not know.
"""

_PROGRESS_ENTRIES = 256


class Counting:
    """Tells `progress` of every so many entries, and of the last one."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        """
        Begin with nothing done, of `total`.

        Raises:
            InvalidOption: `progress` is no function.
        """
        check_callable(progress, "progress")
        self._progress = progress
        self.total = total

    def __call__(self, done: int) -> None:
        """Tell that so many are done."""
        if self._progress is not None and (done == self.total or not done % _PROGRESS_ENTRIES):
            self._progress(done, self.total)


async def export_record(
    store: JournalStore, key: ConversationKey, path: str | os.PathLike[str], force: bool, progress: Progress | None
) -> int:
    """See `JournalStore.export`."""
    check_flag(force, "force")
    header = await settled_header(store, key)
    entries = stream_entries(store.journal, key, header)
    marks = [entry async for entry in entries if entry.kind is Kind.ABANDONED]
    out = left_out((mark for mark in marks if mark.seq <= header.entries), header.state)
    with private_file_writer(path, force=force) as file:
        checks = Checks()
        file.write(checks.sealed(head_of(key, header)))
        await _write_entries(store, key, header, file, checks, out, Counting(progress, header.retained))
        file.write(checks.sealed(end_of(header)))
    return header.retained


async def settled_header(store: JournalStore, key: ConversationKey) -> Header:
    """
    Return the header of a conversation that can be carried elsewhere.

    Raises:
        DecisionHistoryAbsent: there is none.
        DecisionHistoryBusy: it is held, or a turn of it was left open.
    """
    header = await store.header(key)
    if header is None:
        raise DecisionHistoryAbsent("no such conversation, or it has expired")
    check_idle(header, read_clock(store.clock))
    if header.attempt is not None:
        raise DecisionHistoryBusy("a turn of this conversation is open; settle or recover it first")
    if not header.version:
        raise DecisionHistoryAbsent("nothing is recorded in this conversation")
    return header


async def _write_entries(
    store: JournalStore,
    key: ConversationKey,
    header: Header,
    file: BinaryIO,
    checks: Checks,
    out: set[int],
    count: Counting,
) -> None:
    """Write every entry that `header` counts, and prove on the way that they are what was recorded."""
    seq, digest = header.cut.seq, header.cut.digest or first_digest(key)
    async for entry in stream_entries(store.journal, key, header):
        if seq == header.entries:
            break
        seq, digest = seq + 1, recompute_digest(digest, entry)
        if (entry.seq, entry.digest) != (seq, digest):
            raise DecisionHistoryCorrupt(f"entry {seq} is not what was written", seq=seq)
        file.write(sealed_entry(checks, entry, stands=seq not in out))
        count(seq - header.cut.seq)
    if (seq, digest) != (header.entries, header.digest):
        raise DecisionHistoryCorrupt(f"the record ends at entry {seq}, its header at {header.entries}", seq=seq + 1)


async def import_record(
    store: JournalStore,
    key: ConversationKey,
    path: str | os.PathLike[str],
    check: Check,
    good_prefix: bool,
    progress: Progress | None,
) -> Imported:
    """See `JournalStore.import_`."""
    if not callable(check):  # pyright: ignore[reportUnnecessaryComparison] - callers without types
        raise InvalidOption("check is asked what the entries are; it must be callable", option="check")
    check_flag(good_prefix, "good_prefix")
    before = await store.header(key)  # a closed store or a foreign key is told before the file is read
    reading = Reading()
    problem = _read(reading, path, progress)
    head = reading.head
    if head is None or (problem is not None and not good_prefix):
        raise problem or reading.refusal("torn", "the file is empty")
    count = lawful = _lawful(reading, head, check)
    if lawful < len(reading.drafts):
        problem = _unlawful(lawful)
    if problem is not None:
        count = reading.complete_entries(lawful)
        if not good_prefix or not count:
            raise problem
    receipt = None
    if before is not None and problem is None and _is_exported(before, head, reading):
        receipt = await _newest_receipt(store, key, before)
    receipt = receipt or await _recorded(store, key, head.format, reading.delta(count))
    return Imported(
        receipt=receipt,
        entries=count,
        left=head.entries - count,
        line=0 if problem is None else problem.facts["line"],
        written=before is None or not before.entries,
    )


def _is_exported(header: Header, head: Head, reading: Reading) -> bool:
    """Return whether a conversation is still the one that the file was made of: its chain starts from its key."""
    digest = "" if reading.end is None else reading.end.digest
    return (header.format, header.entries, header.digest.hex()) == (head.format, head.cut + head.entries, digest)


async def _newest_receipt(store: JournalStore, key: ConversationKey, header: Header) -> Receipt | None:
    check_idle(header, read_clock(store.clock))
    found = await store.journal.receipts(key, header.version - 1, 1)
    return found[0] if found and found[0].digest == header.digest else None


async def _recorded(store: JournalStore, key: ConversationKey, format: str, delta: Delta) -> Receipt:  # noqa: A002
    reservation = Reservation(store.journal, store.tokens, key)
    try:
        reserved = await reservation.take(format, opening=delta, release=True)
    finally:
        store.tails.drop(key)
    assert reserved.receipt is not None
    return reserved.receipt


def _lawful(reading: Reading, head: Head, check: Check) -> int:
    """Return how many entries make a record by its own law and are what their format makes of their payloads."""
    lawful = reading.lawful_entries()
    derived = check(head.format, reading.numbered(lawful))
    if derived is None:
        raise ImportRefused(
            "line 1: its format is none that is taken here; the records of runs and of memory resources are carried by "
            "`copy`",
            problem="unlawful",
            good_records=0,
            line=1,
        )
    return min(lawful, derived)


def _unlawful(good: int) -> ImportRefused:
    return ImportRefused(
        f"line {good + 2}: entry {good + 1} is none that this record could hold; {good:,} records before it are good",
        problem="unlawful",
        good_records=good,
        line=good + 2,
    )


def _read(reading: Reading, path: str | os.PathLike[str], progress: Progress | None) -> ImportRefused | None:
    """Read the file as far as it is good, and return why it ends there if that is not its end."""
    count: Counting | None = None
    with _opened(path) as file:
        try:
            while line := file.readline(MAX_LINE_BYTES + 1):
                if len(line) > MAX_LINE_BYTES:
                    raise reading.refusal("too_large", f"it is longer than {MAX_LINE_BYTES:,} bytes")
                reading.take(line)
                if count is None:
                    count = Counting(progress, reading.head.entries if reading.head else 0)
                elif reading.end is None:
                    count(len(reading.drafts))
            reading.finish()
        except ImportRefused as problem:
            return problem
        except OSError as cause:
            raise _unreadable(cause) from cause
    return None


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Generator[BinaryIO, None, None]:
    if not isinstance(path, (str, os.PathLike)):  # pyright: ignore[reportUnnecessaryIsInstance] - not an int descriptor
        raise InvalidOption(f"a file name is a str or a path, not {type(path).__name__}", option="path")
    try:
        # Without O_NONBLOCK a FIFO would hold us until somebody writes to it.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except OSError as cause:
        raise _unreadable(cause) from cause
    except ValueError:
        raise InvalidOption("the file name holds a character that no file name has", option="path") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ImportRefused("this is no regular file", problem="no_file", good_records=0, line=0)
    with os.fdopen(descriptor, "rb") as file:
        yield file


def _unreadable(cause: OSError) -> ImportRefused:
    name = errno.errorcode.get(cause.errno or 0, "OSError")
    return ImportRefused(f"the file cannot be read ({name})", problem="no_file", good_records=0, line=0)
