"""A private file that appears under its name whole or not at all: exports are written so (promise I-36)."""

from __future__ import annotations

import io
import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO

from minutebook.errors import MinutebookError
from minutebook.stores.private_modes import create_exclusively
from minutebook.stores.private_paths import held_parent
from minutebook.stores.private_refusals import translated, unsafe

if TYPE_CHECKING:
    from collections.abc import Generator

    from _typeshed import ReadableBuffer

    from minutebook.stores.private_paths import Directory


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
    with held_parent(path) as (directory, name):
        target = directory.join(name)
        part = f".minutebook-{os.urandom(8).hex()}.part"
        with translated(target):
            _refuse_target(directory, name, force=force)
            descriptor = create_exclusively(directory, part)
        writer = io.BufferedWriter(_TranslatingFile(descriptor, target))
        try:
            yield writer
            with translated(target):
                _publish(directory, writer, part, name, force=force)
        except BaseException:
            # Closing flushes once more; the failure that brought us here is the one to tell.
            with suppress(OSError, MinutebookError):
                writer.close()
            with suppress(OSError):
                directory.unlink(part)
            raise


def _refuse_target(directory: Directory, name: str, *, force: bool) -> None:
    status = directory.look(name)
    if status is None:
        return
    if stat.S_ISLNK(status.st_mode):
        raise unsafe("symlink", directory.join(name))
    if not force:
        raise unsafe("exists", directory.join(name))
    if not stat.S_ISREG(status.st_mode):
        raise unsafe("not_regular", directory.join(name))


def _publish(directory: Directory, writer: BinaryIO, part: str, name: str, *, force: bool) -> None:
    """Make the part durable, give it its name, make the name durable: in this order a crash shows all or nothing."""
    if writer.closed:
        raise unsafe("replaced", directory.join(name), detail="was closed in the block; leave that to the writer")
    writer.flush()
    os.fsync(writer.fileno())
    written = os.fstat(writer.fileno())
    writer.close()
    status = directory.look(part)
    if status is None or not os.path.samestat(status, written):
        raise unsafe("replaced", directory.join(part))
    _refuse_target(directory, name, force=force)
    directory.rename(part, name)
    directory.sync()


class _TranslatingFile(io.FileIO):
    """A raw file whose disk errors are this package's, so that the block of a writer never meets a bare OSError."""

    def __init__(self, descriptor: int, path: str) -> None:
        super().__init__(descriptor, "wb")
        self._path = path

    def write(self, b: ReadableBuffer, /) -> int:
        with translated(self._path):
            return super().write(b)
