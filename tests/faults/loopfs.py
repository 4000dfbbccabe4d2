"""
A real power cut of a real file system: ext4 in a loop-mounted image, stopped by the shutdown ioctl.

This is the second opinion to the rebuilt disks: another implementation of "what was synced survives", made by the
kernel. Its states are few and slow, and ext4 keeps more than POSIX promises (the sync of a new file keeps its name),
so it can convict a store and cannot acquit one.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.faults.kill import await_acks
from tests.faults.trace import HOLD_VARIABLE, child_environment, read_acks, scratch_parent

# _IOR('X', 125, __u32), with the flag that keeps the journal from being flushed first: the power simply goes.
EXT4_IOC_SHUTDOWN = 0x8004587D
EXT4_GOING_FLAGS_NOLOGFLUSH = 2


class LoopDisk:
    """A mounted ext4 in `image`, at `root`."""

    def __init__(self, image: Path, root: Path) -> None:
        self.image, self.root = image, root

    def cut_power(self) -> None:
        """Stop the file system: every later write or sync fails with EIO, and nothing unsynced will reach the image."""
        descriptor = os.open(self.root, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, struct.pack("I", EXT4_GOING_FLAGS_NOLOGFLUSH))
        finally:
            os.close(descriptor)

    def sync(self) -> None:
        """Make everything on this disk durable, as the state before the run that is to be cut."""
        _run("sync", "--file-system", str(self.root))

    def restart(self) -> None:
        """Mount again what the image holds, after every process with open files in it has ended."""
        _run("umount", str(self.root))
        self.mount()

    def mount(self) -> None:
        _run("mount", "-o", "loop", str(self.image), str(self.root))


@contextlib.contextmanager
def loop_disk(size_mebibytes: int = 16) -> Iterator[LoopDisk]:
    """Give a fresh mounted disk in memory, and unmount and forget it afterwards."""
    with tempfile.TemporaryDirectory(dir=scratch_parent()) as scratch:
        image, root = Path(scratch, "image"), Path(scratch, "mounted")
        root.mkdir()
        with image.open("wb") as blank:
            blank.truncate(size_mebibytes * 1024 * 1024)
        _run("mkfs.ext4", "-q", "-E", "root_owner", str(image))
        disk = LoopDisk(image, root)
        disk.mount()
        root.chmod(0o700)
        try:
            yield disk
        finally:
            _run("umount", str(root))


def cut_during(disk: LoopDisk, command: Sequence[str], acks: int, *, held: bool = False) -> tuple[str, ...]:
    """
    Cut the power while `command` works on `disk`, after `acks` acknowledgements, and restart the disk.

    Returns what was acknowledged before the cut. What a child still says while the cut goes through its calls does
    not count: no machine without power says anything. With `held` the child stops by itself at its last
    acknowledgement; otherwise a later sync of its own might save what a control has to lose.
    """
    with tempfile.TemporaryDirectory(dir=scratch_parent()) as scratch:
        ack_file = Path(scratch, "acks")
        environment = child_environment(ack_file, {HOLD_VARIABLE: str(acks)} if held else None)
        child = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        try:
            await_acks(child, ack_file, acks)
            acknowledged = read_acks(ack_file)
            disk.cut_power()
        finally:
            child.kill()
            child.wait()
    disk.restart()
    return acknowledged


@functools.cache
def loop_problem() -> str | None:
    """Return why no loop disk can be mounted and cut here, as the reason of a skip, or None where it can."""
    if os.geteuid() != 0:
        return "mounting a loop disk needs root"
    missing = [program for program in ("mkfs.ext4", "mount", "umount") if shutil.which(program) is None]
    if missing:
        return f"{', '.join(missing)} not installed"
    try:
        with loop_disk() as disk:
            disk.cut_power()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"loop disks are not permitted here: {getattr(error, 'stderr', None) or error}"
    return None


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
