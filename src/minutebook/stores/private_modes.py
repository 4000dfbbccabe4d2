"""What stands at a name in a held directory: judged, made private where it is ours, or created private."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from minutebook.stores.private_paths import POSIX, PRIVATE_MODE
from minutebook.stores.private_refusals import unsafe

if TYPE_CHECKING:
    from minutebook.stores.private_paths import Directory

_CREATION_ATTEMPTS = 8


def refuse_foreign(status: os.stat_result | None, path: str) -> None:
    """Refuse what must not be opened, not even to restore its mode. None, a name without a file, passes."""
    if status is None:
        return
    if stat.S_ISLNK(status.st_mode):
        raise unsafe("symlink", path)
    if not stat.S_ISREG(status.st_mode):
        raise unsafe("not_regular", path)
    # Zero is a sidecar that SQLite removed while we looked.
    if status.st_nlink > 1:
        raise unsafe("hard_link", path)
    if POSIX and status.st_uid != os.geteuid():
        raise unsafe("owner", path)


def refuse_shared(status: os.stat_result | None, path: str) -> None:
    """Refuse what is foreign or open to others. A narrower mode passes: under a umask a new sidecar has one briefly."""
    refuse_foreign(status, path)
    if POSIX and status is not None and stat.S_IMODE(status.st_mode) & ~PRIVATE_MODE:
        raise unsafe("mode", path)


def is_private(status: os.stat_result) -> bool:
    """Return whether a file's mode is 0600, as every file of ours has it."""
    return not POSIX or stat.S_IMODE(status.st_mode) == PRIVATE_MODE


def restore(directory: Directory, name: str, *, may_open: bool) -> os.stat_result | None:
    """Return the file's status once its mode is 0600, or None where there is no file."""
    path = directory.join(name)
    status = directory.look(name)
    refuse_foreign(status, path)
    if status is None or is_private(status):
        return status
    if not may_open:
        raise unsafe("mode", path)
    try:
        # Without O_NONBLOCK a FIFO put there since the look would hold us until someone writes to it.
        descriptor = directory.open(name, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        refuse_foreign(os.fstat(descriptor), path)
        return _private_mode(descriptor, path)
    finally:
        os.close(descriptor)


def create(directory: Directory, name: str) -> os.stat_result:
    """Return the status of the new empty file, or of the one that another process of this user created just before."""
    for _ in range(_CREATION_ATTEMPTS):
        try:
            descriptor = create_exclusively(directory, name)
        except FileExistsError:
            status = restore(directory, name, may_open=True)
            if status is not None:
                return status
        else:
            status = os.fstat(descriptor)
            os.close(descriptor)
            directory.sync()
            return status
    raise unsafe("replaced", directory.join(name))


def create_exclusively(directory: Directory, name: str) -> int:
    """
    Return a descriptor of a new file with mode 0600.

    Raises:
        DecisionHistoryStorageUnsafe: its file system keeps no modes; the file is gone again.
    """
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
    if POSIX:
        os.fchmod(descriptor, PRIVATE_MODE)
    status = os.fstat(descriptor)
    # Some file systems (FAT, some shares) accept a mode and keep none.
    if POSIX and stat.S_IMODE(status.st_mode) != PRIVATE_MODE:
        raise unsafe("mode", path, detail="cannot be made private: its file system keeps no modes; use another")
    return status
