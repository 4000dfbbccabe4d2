"""
The way to a private file: every directory from the root down, walked so that what is checked is what is entered.

A directory that passed is held open, and names are looked up in it and no other.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from minutebook.errors import InvalidOption
from minutebook.stores.private_refusals import translated, unsafe

if TYPE_CHECKING:
    from collections.abc import Generator

# File systems allow 255 bytes for one name.
MAX_NAME_BYTES = 255 - len("-journal")

PRIVATE_MODE = 0o600
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_MAX_LINKS = 40  # as the kernel counts them before it says ELOOP

# On Windows the ACL is the host's (SPEC D20): owners, modes and the walk over directories have no meaning there. This
# is the one switch; names, links and kinds of file are checked everywhere.
POSIX = os.name == "posix"
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
# O_PATH needs only the right to pass through a directory, which is all that a parent of ours may grant.
_DIRECTORY = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_PATH", 0) | _NO_FOLLOW


class Directory(msgspec.Struct, frozen=True):
    """
    A directory that passed the walk. While `descriptor` is open, a name in it is found in this directory and no other.

    On Windows there is no descriptor and names are joined to the path.
    """

    path: str
    descriptor: int | None

    def join(self, name: str) -> str:
        """Return the path of a name in it, for messages and for SQLite."""
        return os.path.join(self.path, name)

    def _name(self, name: str) -> str:
        return self.join(name) if self.descriptor is None else name

    def look(self, name: str) -> os.stat_result | None:
        """Return the status of what stands at a name, links not followed; `None` where there is nothing."""
        return look(self._name(name), self.descriptor)

    def open(self, name: str, flags: int) -> int:
        """Return a descriptor of a name in it; a link is refused by the system, what is created has mode 0600."""
        return os.open(self._name(name), flags | _NO_FOLLOW, PRIVATE_MODE, dir_fd=self.descriptor)

    def rename(self, old: str, new: str) -> None:
        """Give what stands at one name another, in the place of what stood there."""
        os.replace(self._name(old), self._name(new), src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def unlink(self, name: str) -> None:
        """Take a name away."""
        os.unlink(self._name(name), dir_fd=self.descriptor)

    def sync(self) -> None:
        """Make its names durable."""
        if self.descriptor is not None:
            _sync_and_close(os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.descriptor))


def look(path: str, directory: int | None = None) -> os.stat_result | None:
    """Return the status of what stands at a path, links not followed; `None` where there is nothing."""
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
def held_parent(path: str | os.PathLike[str]) -> Generator[tuple[Directory, str], None, None]:
    """Yield the checked parent directory of `path`, held open, and the name in it."""
    text = _plain_name(path)
    parent, name = os.path.split(text)
    with translated(text):
        absolute = os.path.join(os.getcwd(), parent)
        if POSIX:
            descriptor, real = _walk(absolute, text)
            directory = Directory(real, descriptor)
        else:
            directory = Directory(os.path.realpath(absolute, strict=True), None)
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
        raise unsafe("directory_owner", path)
    return os.readlink(part, dir_fd=here)


def _refuse_directory(directory: int, path: str, *, sticky_passes: bool) -> None:
    status = os.fstat(directory)
    if status.st_uid not in (0, os.geteuid()):
        raise unsafe("directory_owner", path)
    # An ACL that lets others write shows as the group's write bit (its mask), so the mode is enough.
    if status.st_mode & _WRITABLE_BY_OTHERS and not (sticky_passes and status.st_mode & stat.S_ISVTX):
        raise unsafe("directory_writable", path, detail=_writable_advice(directory, status.st_mode))


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
