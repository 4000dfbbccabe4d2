"""
What a child process did to the files of one directory, as an exact list of events.

The fault tests ask what a disk could hold if the power went at any moment. For that they need every write, sync and
change of a directory entry of a real run, in order, together with the moments at which the child told its caller
that something is safe. `trace_child` runs the child under strace and returns that list. It trusts nothing: after the
run the events are replayed, and unless they give the very bytes that are on the disk the trace is refused. A write
that went round the traced calls (a mapping, `sendfile`), or two threads that wrote the same bytes in an order nobody
saw, therefore show as an error and never as a false proof.

The child acknowledges by appending a line `ack <text>` to the file named in the environment by `FAULT_ACK_FILE`, with
one `os.write` each. That write is in the trace, so what was acknowledged is known at every event.
"""

from __future__ import annotations

import functools
import os
import posixpath
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ACK_VARIABLE = "FAULT_ACK_FILE"

# A child that finds this number in its environment waits to be killed once it has acknowledged so often.
HOLD_VARIABLE = "FAULT_HOLD_AFTER"

# The shared memory of SQLite's WAL is rebuilt from the WAL by whoever opens the database first, and is written through
# a mapping that no trace shows. No power cut leaves anything of it that counts.
IGNORED_SUFFIXES = ("-shm",)


class Untraceable(Exception):
    """The child did something to its directory that the events cannot express, so nothing can be proved from them."""


class ChildFailed(Exception):
    """The child ended with an error of its own. The message holds the end of what it wrote to stderr."""


@dataclass(frozen=True, slots=True)
class Made:
    """A directory entry `path` was created for `file`, or for a new directory where `file` is None."""

    path: str
    file: int | None


@dataclass(frozen=True, slots=True)
class Wrote:
    """`data` was written at byte `offset` of `file`."""

    file: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Resized:
    """`file` was cut or extended with zeros to `size` bytes."""

    file: int
    size: int


@dataclass(frozen=True, slots=True)
class Synced:
    """A sync of `file` returned. It covers the events before `began`, where it was called: another thread may write."""

    file: int
    began: int


@dataclass(frozen=True, slots=True)
class DirectorySynced:
    """A sync of the directory `path` returned; it covers the events before `began`."""

    path: str
    began: int


@dataclass(frozen=True, slots=True)
class Unlinked:
    """The directory entry `path` was removed."""

    path: str


@dataclass(frozen=True, slots=True)
class Renamed:
    """The entry `old` of `file` became `new`, in the place of what `new` was before."""

    old: str
    new: str
    file: int


@dataclass(frozen=True, slots=True)
class Acked:
    """The child told its caller that `text` is safe."""

    text: str


Event = Made | Wrote | Resized | Synced | DirectorySynced | Unlinked | Renamed | Acked
Contents = dict[str, bytes | None]


@dataclass(frozen=True)
class Trace:
    """
    A run of a child: what `root` held before it (None for a directory), and the events in order.

    Paths are relative to `root`. Files are numbered, so that an entry which is renamed, or removed and created again,
    is told from the file behind it; `initial_files` numbers those of `initial`.
    """

    root: Path
    initial: Contents
    initial_files: dict[str, int]
    events: tuple[Event, ...]

    @property
    def acknowledged(self) -> tuple[str, ...]:
        """Everything that the child acknowledged, in order."""
        return tuple(event.text for event in self.events if isinstance(event, Acked))


@functools.cache
def strace_problem() -> str | None:
    """Return why children cannot be traced here, as the reason of a skip, or None where they can."""
    if shutil.which("strace") is None:
        return "strace is not installed (apt-get install strace)"
    probe = subprocess.run(["strace", "-f", "-qq", "-o", "/dev/null", "true"], capture_output=True, text=True)
    if probe.returncode != 0:
        return f"strace may not trace children here (ptrace is refused?): {probe.stderr.strip()[-200:]}"
    return None


def scratch_parent() -> str | None:
    """Return the memory-backed directory for files that nobody keeps, or None for the system's own choice."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def run_group(command: Sequence[str], env: Mapping[str, str], timeout_seconds: float) -> tuple[int, str]:
    """
    Run `command` in a process group of its own and return its exit status and stderr.

    A strace that is killed leaves its child running, so a run over its time is ended as a group.
    """
    child = subprocess.Popen(
        command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        stderr = child.communicate(timeout=timeout_seconds)[1]
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        raise
    return child.returncode, stderr


def child_environment(ack_file: Path, env: Mapping[str, str] | None) -> dict[str, str]:
    """Return the environment of a child that acknowledges into `ack_file`; `env` is laid over our own."""
    return {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(env or {}), ACK_VARIABLE: str(ack_file)}


def read_acks(ack_file: Path) -> tuple[str, ...]:
    """Return what was acknowledged into `ack_file`; a last line that was cut off does not count."""
    if not ack_file.exists():
        return ()
    return tuple(_ack_texts(ack_file.read_bytes()))


def _ack_texts(written: bytes) -> Iterator[str]:
    for line in written.splitlines(keepends=True):
        if line.startswith(b"ack ") and line.endswith(b"\n"):
            yield line[4:-1].decode()


def contents_of(root: Path) -> Contents:
    """Return every file under `root` with its bytes, and every directory with None."""
    found: Contents = {}
    for path in sorted(root.rglob("*")):
        if path.name.endswith(IGNORED_SUFFIXES):
            continue
        if path.is_dir():
            found[str(path.relative_to(root))] = None
        elif path.is_file():
            found[str(path.relative_to(root))] = path.read_bytes()
    return found


# A question mark lets strace go on where an architecture lacks the older call.
_TRACED = (
    "write,pwrite64,ftruncate,fsync,fdatasync,openat,?open,close,dup,?dup2,dup3,fcntl,lseek,?truncate,"
    "?mkdir,mkdirat,?rmdir,?unlink,unlinkat,?rename,?renameat,renameat2,?link,linkat,chdir,"
    "?fork,?vfork,clone,?clone3"
)

# -xx writes every string as hex, so no quoting can be misread; -s has to exceed the largest single write.
_STRACE = ("strace", "-f", "-qq", "-a1", "-xx", "-s", "16777216", "--seccomp-bpf", "-e", "signal=none")


def trace_child(
    command: Sequence[str], env: Mapping[str, str] | None = None, *, root: Path, timeout_seconds: float = 120
) -> Trace:
    """
    Run `command` to its end and return what it did to the files under `root`.

    `root` exists and may hold files; these count as durable. `env` is laid over the environment of this process.

    Raises:
        ChildFailed: the child ended with an error.
        Untraceable: the events do not give the bytes that the child left behind.
    """
    root = root.resolve()
    initial = contents_of(root)
    with tempfile.TemporaryDirectory(dir=scratch_parent()) as scratch:
        ack_file, output = Path(scratch, "acks"), Path(scratch, "strace")
        status, stderr = run_group(
            [*_STRACE, "-e", f"trace={_TRACED}", "-o", str(output), *command],
            child_environment(ack_file, env),
            timeout_seconds,
        )
        if status != 0:
            raise ChildFailed(f"exit status {status}: {stderr[-2000:]}")
        reader = _Reader(root, str(ack_file), initial)
        with output.open(encoding="ascii") as lines:
            reader.read(lines)
    reader.compare(contents_of(root))
    return Trace(root, initial, reader.initial_files, tuple(reader.events))


@dataclass
class _Open:
    """An open file description: what `dup` and `fork` share."""

    path: str
    file: int | None = None  # None for a directory, and for everything outside of the root
    append: bool = False
    position: int = 0


@dataclass
class _Group:
    """Threads that share their descriptors."""

    cwd: str
    opened: dict[int, _Open] = field(default_factory=dict)


@dataclass(slots=True)
class _Call:
    group: _Group
    name: str
    args: list[str]
    result: int
    began: int  # how many events there were when it was entered
    pid: int


# The older calls are the newer ones with the working directory as the base of each path.
_AT_FORMS = {"open": "openat", "mkdir": "mkdirat", "unlink": "unlinkat", "rename": "renameat2", "link": "linkat"}
_LINE = re.compile(r"(\d+) +(?:<\.\.\. \w+ resumed>)?(.*)\n", re.DOTALL)
_UNFINISHED = " <unfinished ...>"


class _Reader:
    """Reads strace's lines into events, with the descriptors of every process and the contents as they should be."""

    def __init__(self, root: Path, ack_file: str, initial: Contents) -> None:
        self.root = str(root)
        self.ack_file = ack_file
        self.events: list[Event] = []
        self.entries: dict[str, int | None] = {}
        self.live: list[bytearray] = []
        for path, content in initial.items():
            self.entries[path] = None if content is None else self._new_file(content)
        self.initial_files = {path: file for path, file in self.entries.items() if file is not None}
        self.groups: dict[int, _Group] = {}
        self.unfinished: dict[int, tuple[str, int]] = {}

    def read(self, lines: Iterable[str]) -> None:
        for line in lines:
            pid, text = self._split(line)
            if text.endswith(_UNFINISHED):
                text = text.removesuffix(_UNFINISHED)
                # An acknowledgement counts from the moment it is spoken, not from the moment strace saw its return.
                spoken = self._acknowledge(self._call(pid, text, "0", len(self.events)))
                self.unfinished[pid] = ("" if spoken else text, len(self.events))
                continue
            begun, began = self.unfinished.pop(pid, ("", len(self.events)))
            args, separator, result = (begun + text).rpartition(") = ")
            if separator and "(" in args and not result.startswith(("-", "?")):
                self._take(self._call(pid, args, result.split(" ", 1)[0], began))

    def compare(self, found: Contents) -> None:
        """Raise `Untraceable` unless the events give exactly what was `found` after the run."""
        expected = {path: None if file is None else bytes(self.live[file]) for path, file in self.entries.items()}
        wrong = sorted(path for path in expected.keys() | found.keys() if expected.get(path, 0) != found.get(path, 0))
        if wrong:
            raise Untraceable(f"the traced calls do not explain what the child left in {', '.join(wrong)}")

    def _split(self, line: str) -> tuple[int, str]:
        match = _LINE.fullmatch(line)
        if match is None:
            raise Untraceable(f"a line of the trace was not understood: {line[:200]!r}")
        return int(match[1]), match[2]

    def _call(self, pid: int, text: str, result: str, began: int) -> _Call:
        name, _, args = text.partition("(")
        return _Call(self._group(pid), name, args.split(", "), int(result, 0), began, pid)

    def _group(self, pid: int) -> _Group:
        """Return the descriptors of `pid`, which may be heard of before its parent's clone returns."""
        if pid not in self.groups:
            parents = [parent for parent, (text, _) in self.unfinished.items() if text.startswith(("clone", "vfork"))]
            if parents:
                self._cloned(self.groups[parents[0]], pid, self.unfinished[parents[0]][0])
            else:
                self.groups[pid] = _Group(os.getcwd())
        return self.groups[pid]

    def _cloned(self, parent: _Group, pid: int, flags: str) -> None:
        if pid not in self.groups:
            self.groups[pid] = parent if "CLONE_FILES" in flags else _Group(parent.cwd, dict(parent.opened))

    def _take(self, call: _Call) -> None:
        if call.name in _AT_FORMS:
            call.args = [part for arg in call.args for part in (("AT_FDCWD", arg) if arg[0] == '"' else (arg,))]
        taker = _TAKERS.get(_AT_FORMS.get(call.name, call.name))
        if taker is not None:
            taker(self, call)

    def _opened(self, call: _Call) -> _Open | None:
        return call.group.opened.get(int(call.args[0]))

    def _path(self, call: _Call, base: str, quoted: str) -> str:
        """Return the absolute path that a call names by `base` (a descriptor or AT_FDCWD) and a string."""
        path = os.fsdecode(_bytes(quoted))
        through = re.match(r"/(?:proc/self|dev)/fd/(\d+)", path)
        if through:
            return posixpath.normpath(call.group.opened[int(through[1])].path + path[through.end() :])
        directory = call.group.cwd
        if base != "AT_FDCWD" and not path.startswith("/"):
            directory = call.group.opened[int(base)].path
        return posixpath.normpath(posixpath.join(directory, path))

    def _inside(self, path: str) -> str | None:
        """Return `path` relative to the root, "" for the root itself, or None where it is of no concern."""
        if path == self.root:
            return ""
        if not path.startswith(self.root + "/") or path.endswith(IGNORED_SUFFIXES):
            return None
        return path[len(self.root) + 1 :]

    def _new_file(self, content: bytes = b"") -> int:
        self.live.append(bytearray(content))
        return len(self.live) - 1

    def _openat(self, call: _Call) -> None:
        path, flags = self._path(call, call.args[0], call.args[1]), call.args[2].split("|")
        if "O_TMPFILE" in flags and self._inside(path) is not None:
            raise Untraceable(f"O_TMPFILE in {path}")
        opened = call.group.opened[call.result] = _Open(path, append="O_APPEND" in flags)
        inside = self._inside(path)
        if not inside or "O_DIRECTORY" in flags:
            return
        if inside not in self.entries and "O_CREAT" in flags:
            self.entries[inside] = self._new_file()
            self.events.append(Made(inside, self.entries[inside]))
        opened.file = self.entries.get(inside)
        if "O_TRUNC" in flags and opened.file is not None and self.live[opened.file]:
            self._resize(opened.file, 0)

    def _close(self, call: _Call) -> None:
        call.group.opened.pop(int(call.args[0]), None)

    def _dup(self, call: _Call) -> None:
        if call.name == "fcntl" and not call.args[1].startswith("F_DUPFD"):
            return
        opened = self._opened(call)
        if opened is None:
            call.group.opened.pop(call.result, None)
        else:
            call.group.opened[call.result] = opened

    def _lseek(self, call: _Call) -> None:
        opened = self._opened(call)
        if opened is not None:
            opened.position = call.result

    def _acknowledge(self, call: _Call) -> bool:
        """Record what a write into the file of acknowledgements says; False for every other call."""
        opened = self._opened(call) if call.name == "write" else None
        if opened is None or opened.path != self.ack_file:
            return False
        self.events.extend(Acked(text) for text in _ack_texts(_bytes(call.args[1])))
        return True

    def _write(self, call: _Call) -> None:
        opened = self._opened(call)
        if opened is None or self._acknowledge(call) or opened.file is None:
            return
        if opened.append:
            opened.position = len(self.live[opened.file])
        self._store(opened.file, opened.position, _bytes(call.args[1])[: call.result])
        opened.position += call.result

    def _pwrite(self, call: _Call) -> None:
        opened = self._opened(call)
        if opened is not None and opened.file is not None:
            # Linux appends under O_APPEND even where an offset is given.
            offset = len(self.live[opened.file]) if opened.append else int(call.args[3])
            self._store(opened.file, offset, _bytes(call.args[1])[: call.result])

    def _store(self, file: int, offset: int, data: bytes) -> None:
        self.events.append(Wrote(file, offset, data))
        apply_write(self.live[file], offset, data)

    def _ftruncate(self, call: _Call) -> None:
        opened = self._opened(call)
        if opened is not None and opened.file is not None:
            self._resize(opened.file, int(call.args[1]))

    def _truncate(self, call: _Call) -> None:
        file = self.entries.get(self._inside(self._path(call, "AT_FDCWD", call.args[0])) or "")
        if file is not None:
            self._resize(file, int(call.args[1]))

    def _resize(self, file: int, size: int) -> None:
        self.events.append(Resized(file, size))
        apply_size(self.live[file], size)

    def _sync(self, call: _Call) -> None:
        opened = self._opened(call)
        if opened is None:
            return
        inside = self._inside(opened.path)
        if opened.file is not None:
            self.events.append(Synced(opened.file, call.began))
        elif inside is not None and (inside == "" or inside in self.entries):
            self.events.append(DirectorySynced(inside, call.began))

    def _mkdirat(self, call: _Call) -> None:
        inside = self._inside(self._path(call, call.args[0], call.args[1]))
        if inside:
            self.entries[inside] = None
            self.events.append(Made(inside, None))

    def _unlinkat(self, call: _Call) -> None:
        self._unlink(self._inside(self._path(call, call.args[0], call.args[1])))

    def _rmdir(self, call: _Call) -> None:
        self._unlink(self._inside(self._path(call, "AT_FDCWD", call.args[0])))

    def _unlink(self, inside: str | None) -> None:
        if inside in self.entries:
            del self.entries[inside]
            self.events.append(Unlinked(inside))

    def _two_paths(self, call: _Call) -> tuple[str | None, str | None]:
        old, new = (self._inside(self._path(call, base, path)) for base, path in (call.args[:2], call.args[2:4]))
        if new is not None and self.entries.get(old or "") is None:
            raise Untraceable(f"{call.name} of a directory, or of a file from outside of the root, to {new}")
        return old, new

    def _rename(self, call: _Call) -> None:
        if "RENAME_EXCHANGE" in call.args[-1]:
            raise Untraceable("renameat2 with RENAME_EXCHANGE")
        old, new = self._two_paths(call)
        if new is None:
            self._unlink(old)
        elif old is not None and (file := self.entries.pop(old)) is not None:
            self.entries[new] = file
            self.events.append(Renamed(old, new, file))

    def _linkat(self, call: _Call) -> None:
        old, new = self._two_paths(call)
        if old is not None and new is not None:
            self.entries[new] = self.entries[old]
            self.events.append(Made(new, self.entries[new]))

    def _chdir(self, call: _Call) -> None:
        call.group.cwd = self._path(call, "AT_FDCWD", call.args[0])

    def _clone(self, call: _Call) -> None:
        self._cloned(call.group, call.result, ", ".join(call.args))


_TAKERS: Mapping[str, Callable[[_Reader, _Call], None]] = {
    "chdir": _Reader._chdir,
    "clone": _Reader._clone,
    "clone3": _Reader._clone,
    "close": _Reader._close,
    "dup": _Reader._dup,
    "dup2": _Reader._dup,
    "dup3": _Reader._dup,
    "fcntl": _Reader._dup,
    "fdatasync": _Reader._sync,
    "fork": _Reader._clone,
    "fsync": _Reader._sync,
    "ftruncate": _Reader._ftruncate,
    "linkat": _Reader._linkat,
    "lseek": _Reader._lseek,
    "mkdirat": _Reader._mkdirat,
    "openat": _Reader._openat,
    "pwrite64": _Reader._pwrite,
    "renameat": _Reader._rename,
    "renameat2": _Reader._rename,
    "rmdir": _Reader._rmdir,
    "truncate": _Reader._truncate,
    "unlinkat": _Reader._unlinkat,
    "vfork": _Reader._clone,
    "write": _Reader._write,
}


def apply_write(content: bytearray, offset: int, data: bytes) -> None:
    """Write `data` at `offset`; a gap before it reads as zeros."""
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def apply_size(content: bytearray, size: int) -> None:
    """Cut `content` to `size` bytes, or extend it with zeros."""
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _bytes(quoted: str) -> bytes:
    if not quoted.endswith('"'):
        raise Untraceable(f"a string of the trace is cut off after {len(quoted):,} characters")
    return bytes.fromhex(quoted[1:-1].replace("\\x", ""))
