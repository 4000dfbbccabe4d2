"""
Files that only their user can read: the SQLite store's database with its sidecars (SPEC D20).

A conversation on disk is as private as the weakest file and directory on the way to it, so three things are proved
before SQLite is given a path: nobody else can put another file there (every directory from the root down), what is
there is an ordinary file of this user under one name, and its mode is 0600 from the first instant.

Two facts about SQLite shape this module. SQLite opens by path and creates `-wal`, `-shm` and `-journal` itself with
the database's own mode, so the directory chain and the database's mode are what protects them. And closing any
descriptor of a file drops every POSIX lock that this process holds on it, so a file that already is private is only
looked at, never opened: a live connection of the same process keeps its locks. Files are
opened only to create them, to take a wider mode back, and for the lock file that the store asks for.

What a mode cannot stop: root, another program of the same user, and copies made of the disk.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import msgspec

from minutebook.errors import DecisionHistoryCorrupt, InvalidOption
from minutebook.stores.network_filesystems import refuse_network
from minutebook.stores.private_modes import create, is_private, refuse_foreign, refuse_shared, restore
from minutebook.stores.private_paths import held_parent, look
from minutebook.stores.private_refusals import translated, unsafe
from minutebook.stores.sqlite_statements import APPLICATION_ID

if TYPE_CHECKING:
    from collections.abc import Collection

    from minutebook.stores.private_paths import Directory

LOCK_SIDECAR = "-lock"
SIDECARS = ("-wal", "-shm", "-journal", LOCK_SIDECAR)
_LASTING_SIDECARS = ("-wal", "-shm", LOCK_SIDECAR)

# SQLite's unix layer holds a path in 512 bytes and refuses a database whose `-journal` would not fit, with no more than
# "unable to open database file".
MAX_PATH_BYTES = 512 - len("-journal")

# SQLite's file format: the first bytes of a database, and where its size in pages and its application's number stand.
_MAGIC = b"SQLite format 3\0"
_PAGES_AT = 28
_APPLICATION_AT = 68
_HEADER_BYTES = 100

_STRANGE = "is open to others and is no database of minutebook's; nothing was changed, name another file"


class PrivateDatabase(msgspec.Struct, frozen=True):
    """
    A database file that passed every check: `path` is absolute, holds no symbolic link, and is for `sqlite3.connect`.

    `(device, inode)` names the file itself, whatever its path: `recheck` compares them, and a process keeps them in
    `in_use` for as long as it has the file open.
    """

    path: str
    device: int
    inode: int


def open_private_database(
    path: str | os.PathLike[str],
    *,
    in_use: Collection[tuple[int, int]] = (),
    allow_network_filesystem: bool = False,
    mountinfo: str | None = None,
) -> PrivateDatabase:
    """
    Return the private file at `path`, created empty with mode 0600 or found and restored to it, with its sidecars.

    `path` is a plain name: `file:` is no scheme here, and `?`, `#` and `%` are letters. The parent directory must
    exist; no directory is created or changed. Symbolic links on the way are followed and every directory passed must
    belong to this user or root. Others may write in a directory above the parent only if it is sticky, as `/tmp`
    is, because there they cannot move what is ours; in the parent itself not even then, because they could create a
    sidecar before SQLite does.

    `in_use` holds the `(device, inode)` of every database this process has open. Such a file and its sidecars are
    only looked at, since closing a descriptor would drop the live connection's locks; a wider mode is then refused
    instead of restored. A process calls this function, connects, and adds to `in_use` under one lock.

    `mountinfo` is the text of `/proc/self/mountinfo` for hosts that know it better. Where it cannot be read the file
    system counts as local.

    Raises:
        InvalidOption: the name is empty, `:memory:`, holds NUL, is too long, is no text or is a directory.
        DecisionHistoryStorageUnsafe: see `Problem`; nothing was created and no file of another was changed.
        DecisionHistoryCorrupt: a log that holds something stands beside no database, or an empty one.
        DecisionHistoryStorageFailed: the system refused (permission, read-only, full disk, too many open files).
    """
    with held_parent(path) as (directory, name), translated(directory.join(name)):
        _refuse_long_path(directory.join(name))
        if not allow_network_filesystem:
            refuse_network(directory.join(name), mountinfo)
        _refuse_read_only(directory)
        # All are judged before any is touched: a refusal leaves the files as they were.
        # The database last: another process that makes it just now writes to it before it has a log.
        sidecars = {name + sidecar: directory.look(name + sidecar) for sidecar in SIDECARS}
        found = {name: directory.look(name), **sidecars}
        for each, status in found.items():
            refuse_foreign(status, directory.join(each))
        database = found.pop(name)
        _refuse_headless(database, found[name + "-wal"])
        used = database is not None and (database.st_dev, database.st_ino) in in_use
        if database is not None and not used:
            _refuse_strange(directory, name, database)
        for each in found:
            restore(directory, each, may_open=not used)
        secured = restore(directory, name, may_open=not used) or create(directory, name)
        private = PrivateDatabase(directory.join(name), secured.st_dev, secured.st_ino)
    recheck(private)
    return private


def sidecars_of(private: PrivateDatabase) -> tuple[PrivateDatabase, ...]:
    """
    Return the sidecars that last as long as a connection does, each as the file that it is now.

    While one is open nothing of SQLite's removes or replaces them. A log that is gone takes with it every commit that
    is not in the database yet, and one that was made anew is a second history of the same database.
    """
    with translated(private.path):
        paths = (private.path + sidecar for sidecar in _LASTING_SIDECARS)
        found = ((path, look(path)) for path in paths)
        return tuple(PrivateDatabase(path, status.st_dev, status.st_ino) for path, status in found if status)


def stands(file: PrivateDatabase) -> bool:
    """Whether the path still names the file: one call to the system, of a microsecond or two."""
    try:
        status = os.stat(file.path, follow_symlinks=False)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == (file.device, file.inode) and status.st_nlink > 0


def recheck(private: PrivateDatabase, sidecars: tuple[PrivateDatabase, ...] = ()) -> None:
    """
    Return if the path still names the file that was opened, and it and its sidecars are still private.

    `sidecars` are those that a live connection has, by `sidecars_of`: they must be the same files too. Looks at the
    five names and opens nothing, so no lock of a live connection is dropped: about 15 microseconds. The directories
    above are not walked again.

    Raises:
        DecisionHistoryStorageUnsafe: `problem` is "replaced" when a file is gone or another is in its place, else
            what became of the database or of a sidecar.
    """
    with translated(private.path):
        for file in (private, *sidecars):
            if not stands(file):
                raise unsafe("replaced", file.path)
        refuse_shared(look(private.path), private.path)
        for sidecar in SIDECARS:
            refuse_shared(look(private.path + sidecar), private.path + sidecar)


def open_lock_file(private: PrivateDatabase) -> int:
    """
    Return a descriptor of the database's `-lock` sidecar, created with mode 0600 or found private.

    The caller keeps it open while the store is. Once per process and database: closing a second descriptor would
    drop POSIX locks taken through the first.

    Raises:
        DecisionHistoryStorageUnsafe: the sidecar or a directory is not private.
        DecisionHistoryStorageFailed: the system refused.
    """
    with held_parent(private.path) as (directory, database), translated(private.path + LOCK_SIDECAR):
        name = database + LOCK_SIDECAR
        if restore(directory, name, may_open=True) is None:
            create(directory, name)
        descriptor = directory.open(name, os.O_RDWR | getattr(os, "O_NONBLOCK", 0))
        try:
            refuse_shared(os.fstat(descriptor), directory.join(name))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def _refuse_strange(directory: Directory, name: str, status: os.stat_result) -> None:
    """Refuse a file that is open to others and no database of ours: its mode is nobody's slip to take back."""
    if is_private(status) or not status.st_size:
        return
    descriptor = directory.open(name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        header = os.read(descriptor, _HEADER_BYTES)
    finally:
        os.close(descriptor)
    application, pages = (int.from_bytes(header[at : at + 4], "big") for at in (_APPLICATION_AT, _PAGES_AT))
    # Until its first checkpoint all of a new database but one page is in the log, the number with it.
    new = application == 0 and pages <= 1
    if not header.startswith(_MAGIC) or not (new or application == APPLICATION_ID):
        raise unsafe("mode", directory.join(name), detail=_STRANGE)


def _refuse_headless(database: os.stat_result | None, log: os.stat_result | None) -> None:
    """
    Refuse a log whose database is gone or was emptied: SQLite would make a new one and throw the log away.

    A database of ours is never empty beside a log, since its first commit is made before there is one.
    """
    if log is not None and log.st_size and (database is None or not database.st_size):
        raise DecisionHistoryCorrupt(
            f"the database is {'gone' if database is None else 'empty'} and its log has {log.st_size:,} bytes; "
            "restore the database beside it, or move the log (-wal) away to begin anew"
        )


def _refuse_long_path(path: str) -> None:
    size = len(os.fsencode(path))
    if size > MAX_PATH_BYTES:
        raise InvalidOption(f"SQLite takes paths of up to {MAX_PATH_BYTES} bytes, this one has {size}", option="path")


def _refuse_read_only(directory: Directory) -> None:
    # A database that already is private is not opened here, so nothing else would notice before the first write.
    if directory.descriptor is not None and os.statvfs(directory.descriptor).f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
