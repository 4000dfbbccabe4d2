"""Which file systems reach another machine: SQLite cannot rely on their locks (SPEC D20)."""

from __future__ import annotations

import re

from minutebook.stores.private_refusals import unsafe

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


def refuse_network(path: str, mountinfo: str | None) -> None:
    """
    Return if the real `path` is on a local file system by `mountinfo`, or by this system's own where none is given.

    Raises:
        DecisionHistoryStorageUnsafe: it is on another machine's; `filesystem` says of which type.
    """
    if mountinfo is None:
        try:
            with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape", newline="\n") as text:
                mountinfo = text.read()
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return
    kind = network_filesystem(path, mountinfo)
    if kind is not None:
        raise unsafe("network_filesystem", path, filesystem=kind)
