"""
The one Writer of a database file in this process: it owns the connection, the lock and the queue.

A write is a *job*: a function on a cursor inside a transaction that it neither begins nor ends. Blocking callers run
theirs at once, in their own thread. Jobs of event loops are gathered for one iteration of their loop: a single one runs
on the spot if nobody else is writing and the last commits were fast (`Pace`), others go to a thread that commits all
that has queued up in one transaction and wakes each loop once. Running on the spot whenever the writer is idle would
never let a group form.

Ctrl-C may end a task between any two steps. So a group is looked after by its tasks themselves, in the first step that
each takes after that iteration: what one of them was stopped in, the next one does.

No connection of ours checkpoints by itself: the writer does, between transactions (`Log`).

After a failed sync the writer refuses everything until the database is opened again: see `Latch` (promise I-6).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from typing import TYPE_CHECKING, Final, TypeVar, cast

from minutebook.errors import StorageError
from minutebook.model.pause import pause
from minutebook.stores import sqlite_statements as sql
from minutebook.stores.aside import leave
from minutebook.stores.private_files import (
    PrivateDatabase,
    open_lock_file,
    open_private_database,
    recheck,
    sidecars_of,
    stands,
)
from minutebook.stores.private_refusals import unsafe
from minutebook.stores.sections import section
from minutebook.stores.sqlite_connection import (
    BUSY_SECONDS,
    DRIVER_ERRORS,
    Latch,
    cause_of,
    checkpoint_lock,
    closed,
    is_busy,
    open_reading,
    open_writing,
    patiently,
    read_snapshot,
    refuse_foreign,
    refuse_fork,
    translated,
)
from minutebook.stores.sqlite_jobs import Job, fail_jobs, wake
from minutebook.stores.sqlite_log import LOCK_SECONDS, Log
from minutebook.stores.sqlite_pace import Pace

if TYPE_CHECKING:
    import asyncio

    from minutebook.stores.sqlite_jobs import Work

T = TypeVar("T")

MAX_GROUP: Final = 1024
"""The most jobs in one transaction."""

_RECHECK_EVERY = 64

_SECOND_LOG = (
    "had its log, or the log's index, replaced while this program had it open, and somebody may have written since; "
    "end this program, find out who did it, then open again"
)


# --- the writer ------------------------------------------------------------------------------------------------------


class Writer:
    """The writing end of one database file: see the module's own text."""

    durable = True

    def __init__(self, private: PrivateDatabase) -> None:
        """Open the database, creating or migrating it; `acquire_writer` is what callers use."""
        self.private = private
        self.holders = 1
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._read_lock = threading.Lock()
        self._latch = Latch()
        self._pace = Pace()
        self._closed = self._files_closed = False
        self.stranded = False
        """Whether it was closed beside another log than its own; its connections stay, so that neither is lost."""
        self._lock_file = open_lock_file(private)
        try:
            self._connection = open_writing(private.path)
            self._sidecars = sidecars_of(private)
        except BaseException:
            os.close(self._lock_file)
            raise
        self._cursor = self._connection.cursor()
        self._reading: sqlite3.Connection | None = None
        self._full: bool = True
        self._log = Log(private.path, self._lock_file, self._cursor, self._read_lock, self._undo)
        self._transactions = 0
        self._mail_lock = threading.RLock()
        self._mail = threading.Condition(self._mail_lock)
        """Entered by its lock, whose release no signal can cut in two."""
        self._queue: list[Job] = []
        self._chores = False
        self._thread: threading.Thread | None = None
        self._gathered: dict[asyncio.AbstractEventLoop, list[Job]] = {}

    @property
    def transactions(self) -> int:
        """How many write transactions were begun: far fewer than jobs when groups form."""
        return self._transactions

    # --- the two colours

    def run(self, work: Work[T], *, size: int = 0, durable: bool = True, erases: bool = False) -> T:
        """Run one job in this thread; see `Database`."""
        refuse_fork(self._pid)
        job = Job(work, size, durable, erases)
        with section as inside, inside, self._lock:
            self._transact([job], patient=True)
            self._do_chores()
        if job.error is not None:
            raise job.error
        return cast("T", job.result)

    async def submit(self, work: Work[T], *, size: int = 0, durable: bool = True, erases: bool = False) -> T:
        """Gather one job and wait for its outcome; see `Outcome` for cancellation, and `Database`."""
        # Loads asyncio, which blocking callers do without.
        from minutebook.stores.sqlite_waiting import ended, get_running_loop

        refuse_fork(self._pid)
        job = Job(work, size, durable, erases)
        loop = get_running_loop()
        group = self._gathered.setdefault(loop, [])
        try:
            group.append(job)
            await pause()
            if self._gathered.get(loop) is group:
                self._flush(loop, group)
            if job.future is not None:
                return cast("T", await job.future)
        except GeneratorExit as error:
            if not job.claim() and job.future is not None:
                leave(job.future, error)
            raise
        except BaseException:
            # An interrupt leaves a job behind that may be in the thread by now: what it does has to be found.
            if not job.withdraw() and job.future is not None:
                await ended(job.future)
            raise
        if job.error is not None:
            raise job.error
        return cast("T", job.result)

    def attempt(self, work: Work[None]) -> bool:
        """Run one job in this thread unless anybody else is writing; see `Database`."""
        refuse_fork(self._pid)
        job = Job(work, 0, durable=False, erases=False)
        done = self._try(job)
        if job.error is not None and not isinstance(job.error, StorageError):
            raise job.error
        return done and job.error is None

    def _try(self, job: Job) -> bool:
        """Run a job in this thread unless anybody else is writing; return whether it was run."""
        # No lock that was tried for could be let go of for sure: an interrupt may strike right behind the trial.
        if self._lock.locked():
            return False
        with section as inside, inside, self._lock:
            # Its own before it runs: what is left to the end of this section may look after its group again.
            if not job.claim():
                return False
            done = self._transact([job], patient=False)
            if not done:
                job.ticket.release()
            return done

    def _flush(self, loop: asyncio.AbstractEventLoop, group: list[Job]) -> None:
        """
        Have the jobs done that one iteration of the loop gathered: a single one here, several in the thread.

        They stay gathered until that is so, for the next of their tasks if this one is interrupted. The thread passes
        by what it is given twice.
        """
        jobs = [job for job in group if not job.ticket.locked()]
        if len(jobs) == 1 and self._is_quick(jobs[0]) and not self._queue and self._try(jobs[0]):
            if self._has_chores():
                self._post([])
        else:
            from minutebook.stores.sqlite_waiting import promise

            promise(jobs, loop)
            self._post(jobs)
        if self._gathered.get(loop) is group:
            self._gathered.pop(loop, None)  # what a collected turn left may have been here meanwhile
        for other in list(self._gathered):
            if other.is_closed():
                self._gathered.pop(other, None)

    def _is_quick(self, job: Job) -> bool:
        """Whether a job will not hold up its loop: an erasure waits for readers, a durable one for the disk's sync."""
        return not job.erases and not (job.durable and self._pace.slow)

    def _post(self, jobs: list[Job]) -> None:
        """Give jobs to the thread, starting it if need be; no jobs means that only chores wait."""
        with section as inside, inside, self._mail_lock:
            self._queue.extend(jobs)
            self._chores = True
            served = not self._closed and self._is_served()
            self._mail.notify()
        if self._closed:
            self._refuse_queued()
        elif not served:
            for _ in range(len(self._queue) // MAX_GROUP + 1):
                self._serve_group(self._taken())

    def _is_served(self) -> bool:
        """Have the thread run; False where none can be started, so that whoever has jobs does them here and now."""
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name="minutebook-writer", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system has no more threads, or the interpreter ends
                return False
            self._thread = thread
        return True

    def _serve(self) -> None:
        """Be the writer's thread: commit what has queued up, again and again, until the writer is closed."""
        while not self._closed:
            with section as inside, inside, self._mail_lock:
                while not (self._queue or self._chores or self._closed):
                    self._mail.wait()
            if not self._closed:
                # Whatever it raises, an exit in a host's clock too, its jobs are told. Others wait for this thread.
                with contextlib.suppress(BaseException):
                    self._serve_group(self._taken())
        self._refuse_queued()

    def _taken(self) -> list[Job]:
        """Take from the queue what goes into one transaction."""
        with section as inside, inside, self._mail_lock:
            jobs, self._queue = self._queue[:MAX_GROUP], self._queue[MAX_GROUP:]
            self._chores = bool(self._queue)
            return jobs

    def _serve_group(self, jobs: list[Job]) -> None:
        """Commit jobs in one transaction, tell their tasks, who find nobody writing then, and do the chores."""
        claimed: list[Job] = []
        try:
            with section as inside, inside, self._lock:
                claimed = [job for job in jobs if job.claim()]
                if claimed:
                    self._transact(claimed, patient=True)
        finally:
            wake(claimed)
        if self._has_chores():
            with section as inside, inside, self._lock:
                self._do_chores()

    def _refuse_queued(self) -> None:
        """Tell the tasks of jobs that were not begun that the writer is closed."""
        with self._mail_lock:
            jobs, self._queue = self._queue, []
        jobs = [job for job in jobs if job.claim()]
        for job in jobs:
            job.error = closed()
        wake(jobs)

    # --- one transaction

    def _transact(self, jobs: list[Job], *, patient: bool) -> bool:
        """
        Run the jobs in one transaction and note each one's outcome; the caller holds the lock.

        Return False, with nothing done, when another process is writing and the caller is not `patient`.
        """
        begun = False
        try:
            self._refuse_unusable()
            self._refuse_replaced()
            if not self._begin(any(job.durable for job in jobs), patient=patient):
                return False
            begun = True
            self._run_jobs(jobs)
            self._commit()
            self._log.grew(sum([job.size for job in jobs]))
        except BaseException as error:
            self._undo(error)
            if begun and len(jobs) > 1 and isinstance(error, DRIVER_ERRORS) and not self._latch.failed:
                self._transact_each(jobs)
                return True
            fail_jobs(jobs, error, self._connection)
            if not isinstance(error, Exception):
                raise
        else:
            self._erase(jobs)
        return True

    def _refuse_unusable(self) -> None:
        if self._closed:
            raise closed()
        self._latch.refuse_failed()

    def _refuse_replaced(self) -> None:
        """Look whether the paths still name our files, and now and then at all modes too."""
        same = stands(self.private) and all(map(stands, self._sidecars))
        if not same or not self._transactions % _RECHECK_EVERY:
            recheck(self.private, self._sidecars)

    def _begin(self, durable: bool, *, patient: bool) -> bool:
        if self._connection.in_transaction:
            # An interrupt came between the end of a job and the commit.
            self._cursor.execute(sql.ROLLBACK)
        if durable != self._full:
            self._cursor.execute(sql.SYNC_FULL if durable else sql.SYNC_NORMAL)
            self._full = durable
        try:
            self._cursor.execute(sql.BEGIN_WRITE)
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            if not patient:
                return False
            patiently(lambda: self._cursor.execute(sql.BEGIN_WRITE), BUSY_SECONDS)
        self._transactions += 1
        return True

    def _commit(self) -> None:
        if not self._full:  # without a sync it says nothing of the disk
            self._cursor.execute(sql.COMMIT)
            return
        self._pace.begin()
        self._cursor.execute(sql.COMMIT)
        self._pace.end()

    def _run_jobs(self, jobs: list[Job]) -> None:
        """
        Run each job; what it raises ends the transaction if it is alone, in a group only what it did itself.

        Most refusals come before anything was written, so there is no savepoint around each job. When one refuses too
        late for that, the whole group is rolled back and run again, this time with savepoints.
        """
        if len(jobs) == 1:
            jobs[0].finish(jobs[0].work(self._cursor))
            return
        for job in jobs:
            before = self._connection.total_changes
            try:
                job.finish(job.work(self._cursor))
            except DRIVER_ERRORS:
                raise
            except Exception as error:
                job.error = error
                if self._connection.total_changes != before:
                    break
        else:
            return
        self._cursor.execute(sql.ROLLBACK)
        self._cursor.execute(sql.BEGIN_WRITE)
        self._run_saved(jobs)

    def _run_saved(self, jobs: list[Job]) -> None:
        for job in jobs:
            job.result = job.error = None
            self._cursor.execute(sql.SAVE_JOB)
            try:
                job.finish(job.work(self._cursor))
            except DRIVER_ERRORS:
                raise
            except Exception as error:
                job.error = error
                self._cursor.execute(sql.UNDO_JOB)
            self._cursor.execute(sql.FREE_JOB)

    def _undo(self, error: BaseException) -> None:
        self._latch.undo(self._cursor, error)
        if self._latch.failed:
            _registry.forget(self)

    def _transact_each(self, jobs: list[Job]) -> None:
        """Run each job of a group alone, so that one too large for the disk does not fail its neighbours."""
        for job in jobs:
            job.result = job.error = None
            self._transact([job], patient=True)

    # --- checkpoints and erasure

    def _erase(self, jobs: list[Job]) -> None:
        """Cut the log for the jobs that erased something; whether it worked is their result."""
        erasing = [job for job in jobs if job.erases and job.error is None]
        if not erasing:
            return
        erased = self._log.erase(self._transactions)
        for job in erasing:
            if job.result is True:  # a cut tells what it recorded
                job.result = erased

    def _do_chores(self) -> None:
        """Make the checkpoint or the erasure that is due; what cannot be done now is due again later."""
        if self._has_chores():
            self._log.tend(self._transactions, idle=not self._queue)

    def _has_chores(self) -> bool:
        """Whether anything of the log is due, on a connection that can still be believed."""
        return not self._closed and not self._latch.failed and self._log.is_due(self._transactions)

    # --- reading

    def read(self, work: Work[T]) -> T:
        """Run one reading job on a snapshot; see `Database`."""
        refuse_fork(self._pid)
        with section as inside, inside, self._read_lock:
            self._refuse_unusable()
            try:
                if self._reading is None:
                    recheck(self.private, self._sidecars)
                    self._reading = open_reading(self.private.path)
                return read_snapshot(self._reading, work)
            except DRIVER_ERRORS as error:
                raise translated(error, self._reading, reading=True) from cause_of(error)

    # --- closing

    def release(self) -> None:
        """Close the database once the last journal has given it back."""
        if os.getpid() == self._pid:
            _registry.release(self)

    def close(self) -> None:
        """End the thread, refuse what has not begun, and close the connections; a second call does what is left."""
        with self._mail_lock:
            self._closed = True
            self._mail.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._refuse_queued()
        with self._lock, self._read_lock:
            if not self._files_closed:
                try:
                    self._close_files()
                finally:
                    self._files_closed = True
                    os.close(self._lock_file)

    def _close_files(self) -> None:
        whole = all(map(stands, self._sidecars))
        # Where a sidecar is merely gone nobody has begun another, and closing saves what our log alone still holds.
        self.stranded = not whole and any(os.path.lexists(each.path) and not stands(each) for each in self._sidecars)
        if self.stranded:
            # SQLite would copy our log into the database and remove, by its name, the one that somebody else wrote.
            self.abandon()
            return
        # The last connection to a database checkpoints as it closes, so this too happens under the lock.
        with contextlib.suppress(sqlite3.Error), checkpoint_lock(self._lock_file, LOCK_SECONDS):
            if self._reading is not None:
                self._reading.close()
            if whole and not self._latch.failed:
                with contextlib.suppress(sqlite3.Error):
                    self._cursor.execute(sql.TRUNCATE)
            self._cursor.close()
            self._connection.close()

    def abandon(self) -> None:
        """
        Forget the connections without closing them: in a forked child, or where a second log stands.

        In a child they are the parent's; SQLite's manual forbids even `sqlite3_close` on them. So they get one
        reference more than anybody will ever give back.
        """
        import ctypes

        for connection in (self._connection, self._reading):
            if connection is not None:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


# --- one writer per file ---------------------------------------------------------------------------------------------


class _Registry:
    """
    The writers of this process by file. The one mutable value of this module, because the rule it keeps is global:
    two writers of one file in one process would wait for each other's locks instead of sharing a commit.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.writers: dict[tuple[int, int], Writer] = {}

    def acquire(self, path: str | os.PathLike[str], allow_network_filesystem: bool) -> Writer:
        with section as inside, inside, self.lock:
            private = open_private_database(
                path, in_use=self.writers.keys(), allow_network_filesystem=allow_network_filesystem
            )
            file = (private.device, private.inode)
            writer = self.writers.get(file)
            if writer is not None:
                if writer.stranded:
                    raise unsafe("replaced", private.path, detail=_SECOND_LOG)
                writer.holders += 1
                return writer
            try:
                refuse_foreign(private.path)
                writer = self.writers[file] = Writer(private)
            except DRIVER_ERRORS as error:
                raise translated(error) from cause_of(error)
            return writer

    def release(self, writer: Writer) -> None:
        with section as inside, inside, self.lock:
            writer.holders -= 1
            if writer.holders:
                return
            # Closed under the lock: who opens the same file next must not meet it half closed.
            try:
                writer.close()
            finally:
                if not writer.stranded:
                    self.forget(writer)

    def forget(self, writer: Writer) -> None:
        """Let the next opening make a new writer, after this one failed or was closed."""
        file = (writer.private.device, writer.private.inode)
        if self.writers.get(file) is writer:
            self.writers.pop(file, None)

    def after_fork(self) -> None:
        self.lock = threading.Lock()
        for writer in self.writers.values():
            writer.abandon()
        self.writers = {}


_registry = _Registry()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_registry.after_fork)


def acquire_writer(path: str | os.PathLike[str], *, allow_network_filesystem: bool = False) -> Writer:
    """
    Return the writer of a database file, opened if this process has none; each call is answered by one `release`.

    Raises:
        InvalidOption: the name is none that a database can have.
        DecisionHistoryStorageUnsafe: the file, a sidecar or a directory is not private.
        DecisionHistorySchemaUnsupported: another application's database, or a newer version; the file is unchanged.
        DecisionHistoryCorrupt: no database; the file is unchanged.
        DecisionHistoryStorageFailed: the disk failed.
    """
    return _registry.acquire(path, allow_network_filesystem)


__all__ = ["Writer", "acquire_writer"]
