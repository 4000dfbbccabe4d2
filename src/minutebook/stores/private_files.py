"""
Files that only their user can read: the SQLite store's database with its sidecars, and exports (SPEC D20).

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
import io
import os
import re
import stat
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Literal, TypeAlias

from minutebook.errors import (
    DecisionHistoryStorageFailed,
    DecisionHistoryStorageUnsafe,
    InvalidOption,
    MinutebookError,
    StorageError,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = [
    "SIDECARS",
    "PrivateDatabase",
    "Problem",
    "network_filesystem",
    "open_lock_file",
    "open_private_database",
    "private_file_writer",
    "recheck",
]

LOCK_SIDECAR = "-lock"
SIDECARS = ("-wal", "-shm", "-journal", LOCK_SIDECAR)

# SQLite's unix layer holds a path in 512 bytes and refuses a database whose `-journal` would not fit, with no more than
# "unable to open database file". File systems allow 255 bytes for one name.
MAX_PATH_BYTES = 512 - len("-journal")
MAX_NAME_BYTES = 255 - len("-journal")

PRIVATE_MODE = 0o600
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_MAX_LINKS = 40  # as the kernel counts them before it says ELOOP
_CREATION_ATTEMPTS = 8

# On Windows the ACL is the host's (SPEC D20): owners, modes and the walk over directories have no meaning there. This
# is the one switch; names, links and kinds of file are checked everywhere.
_POSIX = os.name == "posix"
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
# O_PATH needs only the right to pass through a directory, which is all that a parent of ours may grant.
_DIRECTORY = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_PATH", 0) | _NO_FOLLOW

Problem: TypeAlias = Literal[
    "symlink",
    "not_regular",
    "hard_link",
    "owner",
    "mode",
    "replaced",
    "exists",
    "no_directory",
    "directory_owner",
    "directory_writable",
    "network_filesystem",
]

_ADVICE: dict[Problem, str] = {
    "symlink": "is a symbolic link; name the real file",
    "not_regular": "is no regular file; name another file",
    "hard_link": "has a second name (hard link) through which it can be read; copy it to a file of its own",
    "owner": "belongs to another user; give it to the user that runs this program",
    "mode": "can be read or written by others; set its mode to 0600 while no program has it open",
    "replaced": "is no longer the file that was opened; close the store, find out who moved it, then open again",
    "exists": "exists; name another file, or pass force to replace it",
    "no_directory": "lies in a directory that does not exist; create it with mode 0700",
    "directory_owner": "lies below a directory of another user; use a directory of this user",
    "directory_writable": "lies below a directory in which others may write; use one of your own with mode 0700",
    "network_filesystem": "lies on a network file system, whose locks SQLite cannot rely on; use a local disk, or pass "
    "allow_network_filesystem=True",
}

_FAILURES: dict[int, tuple[str, str]] = {
    errno.EACCES: ("permission", "this user may not open it; check the owner and mode of it and its directory"),
    errno.EPERM: ("permission", "the system does not permit it; check file attributes and mount options"),
    errno.EROFS: ("read_only", "the file system is read-only; use one that can be written"),
    errno.ENOSPC: ("disk_full", "the disk is full; free space"),
    errno.EDQUOT: ("disk_full", "this user's quota is used up; free space"),
    errno.EFBIG: ("file_limit", "a file may not grow to this size; raise the limit (ulimit -f)"),
    errno.EMFILE: ("descriptors", "this program has too many files open; raise the limit (ulimit -n)"),
    errno.ENFILE: ("descriptors", "the system has too many files open"),
}

# fmt: off
_NETWORK_TYPES = frozenset({
    "9p", "acfs", "afs", "afpfs", "auristorfs", "beegfs", "ceph", "cifs", "coda", "davfs", "glusterfs", "gpfs",
    "lustre", "ncp", "ncpfs", "nfs", "nfs4", "orangefs", "panfs", "pvfs2", "smb2", "smb3", "smbfs", "webdav",
})
# Under FUSE the type reads `fuse.<program>`; these programs speak to another machine.
_NETWORK_PROGRAMS = frozenset({
    "ceph", "ceph-fuse", "curlftpfs", "davfs", "davfs2", "gcsfuse", "glusterfs", "goofys", "juicefs", "mfs",
    "moosefs", "nfs", "rclone", "s3fs", "seaweedfs", "smb", "smbnetfs", "sshfs",
})
# fmt: on


@dataclass(frozen=True, slots=True)
class PrivateDatabase:
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
        DecisionHistoryStorageFailed: the system refused (permission, read-only, full disk, too many open files).
    """
    with _held_parent(path) as (directory, name), _translated(directory.join(name)):
        _refuse_long_path(directory.join(name))
        if not allow_network_filesystem:
            _refuse_network(directory.join(name), mountinfo)
        _refuse_read_only(directory)
        # All are judged before any is touched: a refusal leaves the files as they were.
        found = {each: directory.look(each) for each in (name, *(name + sidecar for sidecar in SIDECARS))}
        for each, status in found.items():
            _refuse_foreign(status, directory.join(each))
        database = found.pop(name)
        used = database is not None and (database.st_dev, database.st_ino) in in_use
        for each in found:
            _restore(directory, each, may_open=not used)
        secured = _restore(directory, name, may_open=not used) or _create(directory, name)
        private = PrivateDatabase(directory.join(name), secured.st_dev, secured.st_ino)
    recheck(private)
    return private


def recheck(private: PrivateDatabase) -> None:
    """
    Return if the path still names the file that was opened, and it and its sidecars are still private.

    Looks at the five names and opens nothing, so no lock of a live connection is dropped: about 15 microseconds. The
    directories above are not walked again.

    Raises:
        DecisionHistoryStorageUnsafe: `problem` is "replaced" when the file is gone or another is in its place,
            else what became of it or of a sidecar.
    """
    with _translated(private.path):
        status = _look(private.path)
        if status is None or not status.st_nlink or (status.st_dev, status.st_ino) != (private.device, private.inode):
            raise _unsafe("replaced", private.path)
        _refuse_shared(status, private.path)
        for sidecar in SIDECARS:
            _refuse_shared(_look(private.path + sidecar), private.path + sidecar)


def open_lock_file(private: PrivateDatabase) -> int:
    """
    Return a descriptor of the database's `-lock` sidecar, created with mode 0600 or found private.

    The caller keeps it open while the store is. Once per process and database: closing a second descriptor would
    drop POSIX locks taken through the first.

    Raises:
        DecisionHistoryStorageUnsafe: the sidecar or a directory is not private.
        DecisionHistoryStorageFailed: the system refused.
    """
    with _held_parent(private.path) as (directory, database), _translated(private.path + LOCK_SIDECAR):
        name = database + LOCK_SIDECAR
        if _restore(directory, name, may_open=True) is None:
            _create(directory, name)
        descriptor = directory.open(name, os.O_RDWR | getattr(os, "O_NONBLOCK", 0))
        try:
            _refuse_shared(os.fstat(descriptor), directory.join(name))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


@contextmanager
def private_file_writer(path: str | os.PathLike[str], *, force: bool = False) -> Generator[BinaryIO, None, None]:
    """
    Yield a binary writer whose bytes appear at `path`, mode 0600, all at once when the block ends (promise I-36).

    Until then they are in a `.minutebook-*.part` file of the same directory, which is synced and then renamed, and
    the directory synced. When the block raises, the part is removed and an older file at `path` is as it was; when
    the process is killed, the part is all that stays. `force` replaces a regular file, never a link or anything else.
    The caller does not close the writer. The parent directory is held to the rules of `open_private_database`, so
    only this user could create `path` between the last look and the rename.

    Raises:
        InvalidOption: as for `open_private_database`.
        DecisionHistoryStorageUnsafe: `problem` is "exists" without `force`, else see `Problem`.
        DecisionHistoryStorageFailed: the disk failed, also from `write` in the block; the old file is untouched.
    """
    with _held_parent(path) as (directory, name):
        target = directory.join(name)
        part = f".minutebook-{os.urandom(8).hex()}.part"
        with _translated(target):
            _refuse_target(directory, name, force=force)
            descriptor = _create_exclusively(directory, part)
        writer = io.BufferedWriter(_TranslatingFile(descriptor, target))
        try:
            yield writer
            with _translated(target):
                _publish(directory, writer, part, name, force=force)
        except BaseException:
            # Closing flushes once more; the failure that brought us here is the one to tell.
            with suppress(OSError, MinutebookError):
                writer.close()
            with suppress(OSError):
                directory.unlink(part)
            raise


def network_filesystem(path: str, mountinfo: str) -> str | None:
    """
    Return the type of the network file system that holds the real, absolute `path`, or None where it is local.

    `mountinfo` has the format of proc(5). The longest mount point wins, and of equal ones the last, which covers the
    others. Pure.
    """
    longest, kind = -1, ""
    for line in mountinfo.split("\n"):
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        if not separator or len(fields) < 5:
            continue
        point = _unescaped(fields[4]).rstrip("/")
        if len(point) >= longest and (path == point or path.startswith(point + "/")):
            longest, kind = len(point), after.split(" ")[0]
    family, _, program = kind.partition(".")
    return kind if family in _NETWORK_TYPES or program in _NETWORK_PROGRAMS else None


def _unescaped(field: str) -> str:
    # The kernel writes space, tab, newline, backslash and `#` as three octal digits.
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field)


# --- directories -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Directory:
    """
    A directory that passed the walk. While `descriptor` is open, a name in it is found in this directory and no other.

    On Windows there is no descriptor and names are joined to the path.
    """

    path: str
    descriptor: int | None

    def join(self, name: str) -> str:
        return os.path.join(self.path, name)

    def _name(self, name: str) -> str:
        return self.join(name) if self.descriptor is None else name

    def look(self, name: str) -> os.stat_result | None:
        return _look(self._name(name), self.descriptor)

    def open(self, name: str, flags: int) -> int:
        return os.open(self._name(name), flags | _NO_FOLLOW, PRIVATE_MODE, dir_fd=self.descriptor)

    def rename(self, old: str, new: str) -> None:
        os.replace(self._name(old), self._name(new), src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def unlink(self, name: str) -> None:
        os.unlink(self._name(name), dir_fd=self.descriptor)

    def sync(self) -> None:
        if self.descriptor is not None:
            _sync_and_close(os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.descriptor))


def _look(path: str, directory: int | None = None) -> os.stat_result | None:
    try:
        return os.stat(path, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _sync_and_close(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems cannot sync a directory and say so; any other failure is the disk's.
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(descriptor)


@contextmanager
def _held_parent(path: str | os.PathLike[str]) -> Generator[tuple[_Directory, str], None, None]:
    """Yield the checked parent directory of `path`, held open, and the name in it."""
    text = _plain_name(path)
    parent, name = os.path.split(text)
    with _translated(text):
        absolute = os.path.join(os.getcwd(), parent)
        if _POSIX:
            descriptor, real = _walk(absolute, text)
            directory = _Directory(real, descriptor)
        else:
            directory = _Directory(os.path.realpath(absolute, strict=True), None)
    try:
        yield directory, name
    finally:
        if directory.descriptor is not None:
            os.close(directory.descriptor)


def _plain_name(path: str | os.PathLike[str]) -> str:
    text: object = os.fspath(path) if isinstance(path, os.PathLike) else path
    if type(text) is not str:
        raise InvalidOption(f"a file name is a str or a path of str, not {type(text).__name__}", option="path")
    if not text or text == ":memory:":
        raise InvalidOption(f"{text!r} names no file; for a history in memory use the memory store", option="path")
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError as cause:
        raise InvalidOption("the file name has letters that this system cannot write", option="path") from cause
    if b"\0" in encoded:
        raise InvalidOption("a file name cannot hold NUL", option="path")
    name = os.path.basename(text)
    if name in ("", ".", ".."):
        raise InvalidOption(f"{text!r} names a directory; add the name of a file", option="path")
    size = len(os.fsencode(name))
    if size > MAX_NAME_BYTES:
        raise InvalidOption(f"a file name may have {MAX_NAME_BYTES} bytes, this one has {size}", option="path")
    return text


def _refuse_long_path(path: str) -> None:
    size = len(os.fsencode(path))
    if size > MAX_PATH_BYTES:
        raise InvalidOption(f"SQLite takes paths of up to {MAX_PATH_BYTES} bytes, this one has {size}", option="path")


def _walk(absolute: str, path: str) -> tuple[int, str]:
    """
    Return a descriptor of the directory `absolute` and its path without links; each directory passed was checked.

    Step by step from the root with the directory before held open, so what is checked is what is entered: `realpath`
    and a check afterwards would leave a gap between the two. `path` is what the caller named, for messages.
    """
    here = os.open("/", _DIRECTORY)
    try:
        real: list[str] = []
        links: list[str] = []
        pending = absolute.split("/")[::-1]
        while pending:
            _refuse_directory(here, path, sticky_passes=True)
            part = pending.pop()
            if part in ("", "."):
                continue
            target = _link_target(here, part, path)
            if target is None:
                here = _entered(here, part)
                real = real[:-1] if part == ".." else [*real, part]
                continue
            links.append(target)
            _refuse_circle(links)
            pending += target.split("/")[::-1]
            if target.startswith("/"):
                here, real = _entered(here, "/"), []
        _refuse_directory(here, path, sticky_passes=False)
    except BaseException:
        os.close(here)
        raise
    return here, "/" + "/".join(real)


def _entered(here: int, part: str) -> int:
    descriptor = os.open(part, _DIRECTORY, dir_fd=here)
    os.close(here)
    return descriptor


def _refuse_circle(links: list[str]) -> None:
    if len(links) > _MAX_LINKS:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _link_target(here: int, part: str, path: str) -> str | None:
    status = os.stat(part, dir_fd=here, follow_symlinks=False)
    if not stat.S_ISLNK(status.st_mode):
        return None
    # In a sticky directory anyone may lay a link, and so choose which of our own directories is written to.
    if status.st_uid not in (0, os.geteuid()):
        raise _unsafe("directory_owner", path)
    return os.readlink(part, dir_fd=here)


def _refuse_directory(directory: int, path: str, *, sticky_passes: bool) -> None:
    status = os.fstat(directory)
    if status.st_uid not in (0, os.geteuid()):
        raise _unsafe("directory_owner", path)
    # An ACL that lets others write shows as the group's write bit (its mask), so the mode is enough.
    if status.st_mode & _WRITABLE_BY_OTHERS and not (sticky_passes and status.st_mode & stat.S_ISVTX):
        raise _unsafe("directory_writable", path, detail=_writable_advice(directory, status.st_mode))


def _writable_advice(directory: int, mode: int) -> str:
    """Say which directory it is, and what to do; a sticky one is everybody's and is not for one program to change."""
    try:
        named = repr(os.readlink(f"/proc/self/fd/{directory}"))
    except OSError:
        named = "a directory above it"
    shown = f"lies in or below {named} (mode {stat.S_IMODE(mode):04o}), in which others may write; "
    if mode & stat.S_ISVTX:
        return shown + "put it into a directory of your own with mode 0700"
    return shown + "take that right from them (chmod go-w), or use another directory"


def _refuse_network(path: str, mountinfo: str | None) -> None:
    if mountinfo is None:
        try:
            with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape", newline="\n") as text:
                mountinfo = text.read()
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return
    kind = network_filesystem(path, mountinfo)
    if kind is not None:
        raise _unsafe("network_filesystem", path, filesystem=kind)


def _refuse_read_only(directory: _Directory) -> None:
    # A database that already is private is not opened here, so nothing else would notice before the first write.
    if directory.descriptor is not None and os.statvfs(directory.descriptor).f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))


# --- files -----------------------------------------------------------------------------------------------------------


def _refuse_foreign(status: os.stat_result | None, path: str) -> None:
    """Refuse what must not be opened, not even to restore its mode. None, a name without a file, passes."""
    if status is None:
        return
    if stat.S_ISLNK(status.st_mode):
        raise _unsafe("symlink", path)
    if not stat.S_ISREG(status.st_mode):
        raise _unsafe("not_regular", path)
    # Zero is a sidecar that SQLite removed while we looked.
    if status.st_nlink > 1:
        raise _unsafe("hard_link", path)
    if _POSIX and status.st_uid != os.geteuid():
        raise _unsafe("owner", path)


def _refuse_shared(status: os.stat_result | None, path: str) -> None:
    """Refuse what is foreign or open to others. A narrower mode passes: under a umask a new sidecar has one briefly."""
    _refuse_foreign(status, path)
    if _POSIX and status is not None and stat.S_IMODE(status.st_mode) & ~PRIVATE_MODE:
        raise _unsafe("mode", path)


def _restore(directory: _Directory, name: str, *, may_open: bool) -> os.stat_result | None:
    """Return the file's status once its mode is 0600, or None where there is no file."""
    path = directory.join(name)
    status = directory.look(name)
    _refuse_foreign(status, path)
    if status is None or not _POSIX or stat.S_IMODE(status.st_mode) == PRIVATE_MODE:
        return status
    if not may_open:
        raise _unsafe("mode", path)
    try:
        # Without O_NONBLOCK a FIFO put there since the look would hold us until someone writes to it.
        descriptor = directory.open(name, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        _refuse_foreign(os.fstat(descriptor), path)
        return _private_mode(descriptor, path)
    finally:
        os.close(descriptor)


def _create(directory: _Directory, name: str) -> os.stat_result:
    """Return the status of the new empty file, or of the one that another process of this user created just before."""
    for _ in range(_CREATION_ATTEMPTS):
        try:
            descriptor = _create_exclusively(directory, name)
        except FileExistsError:
            status = _restore(directory, name, may_open=True)
            if status is not None:
                return status
        else:
            status = os.fstat(descriptor)
            os.close(descriptor)
            directory.sync()
            return status
    raise _unsafe("replaced", directory.join(name))


def _create_exclusively(directory: _Directory, name: str) -> int:
    descriptor = directory.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        # The umask may have taken bits away, never added one: the mode was 0600 or less until here.
        _private_mode(descriptor, directory.join(name))
    except BaseException:
        os.close(descriptor)
        with suppress(OSError):
            directory.unlink(name)
        raise
    return descriptor


def _private_mode(descriptor: int, path: str) -> os.stat_result:
    if _POSIX:
        os.fchmod(descriptor, PRIVATE_MODE)
    status = os.fstat(descriptor)
    # Some file systems (FAT, some shares) accept a mode and keep none.
    if _POSIX and stat.S_IMODE(status.st_mode) != PRIVATE_MODE:
        raise _unsafe("mode", path, detail="cannot be made private: its file system keeps no modes; use another")
    return status


def _refuse_target(directory: _Directory, name: str, *, force: bool) -> None:
    status = directory.look(name)
    if status is None:
        return
    if stat.S_ISLNK(status.st_mode):
        raise _unsafe("symlink", directory.join(name))
    if not force:
        raise _unsafe("exists", directory.join(name))
    if not stat.S_ISREG(status.st_mode):
        raise _unsafe("not_regular", directory.join(name))


def _publish(directory: _Directory, writer: BinaryIO, part: str, name: str, *, force: bool) -> None:
    """Make the part durable, give it its name, make the name durable: in this order a crash shows all or nothing."""
    if writer.closed:
        raise _unsafe("replaced", directory.join(name), detail="was closed in the block; leave that to the writer")
    writer.flush()
    os.fsync(writer.fileno())
    written = os.fstat(writer.fileno())
    writer.close()
    status = directory.look(part)
    if status is None or not os.path.samestat(status, written):
        raise _unsafe("replaced", directory.join(part))
    _refuse_target(directory, name, force=force)
    directory.rename(part, name)
    directory.sync()


class _TranslatingFile(io.FileIO):
    """A raw file whose disk errors are this package's, so that the block of a writer never meets a bare OSError."""

    def __init__(self, descriptor: int, path: str) -> None:
        super().__init__(descriptor, "wb")
        self._path = path

    def write(self, b: ReadableBuffer, /) -> int:
        with _translated(self._path):
            return super().write(b)


# --- refusals --------------------------------------------------------------------------------------------------------


def _unsafe(problem: Problem, path: str, *, detail: str = "", **facts: str) -> DecisionHistoryStorageUnsafe:
    return DecisionHistoryStorageUnsafe(f"{path!r} {detail or _ADVICE[problem]}", problem=problem, path=path, **facts)


@contextmanager
def _translated(path: str) -> Generator[None, None, None]:
    try:
        yield
    except OSError as cause:
        raise _translation(cause, path) from cause


def _translation(cause: OSError, path: str) -> StorageError | InvalidOption:
    code = cause.errno or 0
    if code == errno.ENAMETOOLONG:
        return InvalidOption("the path is longer than this system takes; name a shorter one", option="path")
    if code == errno.ELOOP:
        return _unsafe("symlink", path)
    if code in (errno.ENOENT, errno.ENOTDIR):
        return _unsafe("no_directory", path)
    problem, advice = _FAILURES.get(code, ("disk", "the disk or file system failed"))
    name = errno.errorcode.get(code, "OSError")
    return DecisionHistoryStorageFailed(f"{path!r} ({name}): {advice}", problem=problem, path=path)
