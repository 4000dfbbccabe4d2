"""Why a file or directory is not private, and what to do: our refusals by name, the system's in our words."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TypeAlias

from minutebook.errors import (
    DecisionHistoryStorageFailed,
    DecisionHistoryStorageUnsafe,
    InvalidOption,
    StorageError,
)

if TYPE_CHECKING:
    from collections.abc import Generator

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


def unsafe(problem: Problem, path: str, *, detail: str = "", **facts: str) -> DecisionHistoryStorageUnsafe:
    """Return the refusal of `path`, with the advice for its problem or a `detail` in its place."""
    return DecisionHistoryStorageUnsafe(f"{path!r} {detail or _ADVICE[problem]}", problem=problem, path=path, **facts)


@contextmanager
def translated(path: str) -> Generator[None, None, None]:
    """
    Let an `OSError` of the block go on as an error of ours about `path`, with its cause kept.

    Raises:
        DecisionHistoryStorageUnsafe: a link in a circle, or no such directory.
        DecisionHistoryStorageFailed: permission, a read-only or full disk, too many open files, or the disk itself.
        InvalidOption: the path is longer than the system takes.
    """
    try:
        yield
    except OSError as cause:
        raise _translation(cause, path) from cause


def _translation(cause: OSError, path: str) -> StorageError | InvalidOption:
    code = cause.errno or 0
    if code == errno.ENAMETOOLONG:
        return InvalidOption("the path is longer than this system takes; name a shorter one", option="path")
    if code == errno.ELOOP:
        return unsafe("symlink", path)
    if code in (errno.ENOENT, errno.ENOTDIR):
        return unsafe("no_directory", path)
    problem, advice = _FAILURES.get(code, ("disk", "the disk or file system failed"))
    name = errno.errorcode.get(code, "OSError")
    return DecisionHistoryStorageFailed(f"{path!r} ({name}): {advice}", problem=problem, path=path)
